"""Do tag, version, changelog, citation and badges agree? ``python tools/check_release.py TAG``.

Without a tag, or with an empty one, only the others are compared. The release workflow runs this first.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from badges import draw_badges

ROOT = Path(__file__).parents[1]


def list_faults(root: Path, tag: str = "") -> list[str]:
    """What does not agree, in words; [] if all does."""
    version = _find(root / "src/localw2/__init__.py", r'^__version__ = "(.+)"$')
    released = re.search(
        rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$", (root / "CHANGELOG.md").read_text(), re.M
    )
    cited = _find(root / "CITATION.cff", r"^version: (.+)$")
    date = _find(root / "CITATION.cff", r"^date-released: (.+)$")
    faults = []
    if tag and tag != f"v{version}":
        faults.append(f"the tag is {tag}, but src/localw2/__init__.py says {version}")
    if cited != version:
        faults.append(f"CITATION.cff says {cited}, but src/localw2/__init__.py says {version}")
    if released is None:
        faults.append(f"CHANGELOG.md has no section '## [{version}] - DATE'")
    elif released[1] != date:
        faults.append(f"CITATION.cff says {date}, but CHANGELOG.md says {released[1]}")
    for path, text in draw_badges(root).items():
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text:
            faults.append(f"{path} does not show the present metadata: run python tools/badges.py")
    return faults


def _find(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.M)
    return "nothing" if found is None else found[1]


if __name__ == "__main__":
    sys.exit("\n".join(list_faults(ROOT, *sys.argv[1:2])) or None)
