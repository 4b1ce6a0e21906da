"""``python -m localw2.apps.cli``."""

from localw2.apps.cli import main

main()
