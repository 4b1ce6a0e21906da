"""``python -m localw2.cli``."""

from localw2.cli import main

main()
