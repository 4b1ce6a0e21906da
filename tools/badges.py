"""Draw the badges of README.md from the metadata: ``python tools/badges.py``, after a change of version.

They come with the repository, so that they need no service, and a test holds them against pyproject.toml and
``__version__``. The workflow of a release asks the same.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path("docs/_static/badges")
LABEL, VALUE = "#4a4a4a", "#1f6fb4"  # white text on both has a contrast above 4.5
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img"
  aria-label="{label}: {value}">
<title>{label}: {value}</title>
<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><rect width="{left}" height="20" fill="{grey}"/>\
<rect x="{left}" width="{right}" height="20" fill="{blue}"/></g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{left_middle}" y="14" textLength="{label_length}">{label}</text>
<text x="{right_middle}" y="14" textLength="{value_length}">{value}</text>
</g>
</svg>
"""


def read_facts(root: Path) -> dict[str, str]:
    """What the badges say: version, Pythons, licence and status, by the name of the badge."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(
        r'^__version__ = "(.+)"$', (root / "src/localw2/__init__.py").read_text(encoding="utf-8"), re.M
    )
    assert version is not None
    classifiers: list[str] = project["classifiers"]
    pythons = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: Python :: 3\.\d+$", c)]
    (status,) = (c.rpartition(" ")[2] for c in classifiers if c.startswith("Development Status"))
    return {
        "version": version[1],
        "Python": f"{pythons[0]} to {pythons[-1]}",
        "licence": project["license"],
        "status": status.lower(),
    }


def draw_badge(label: str, value: str) -> str:
    """A label and its value side by side, as SVG."""
    lengths = [round(6.6 * len(text)) for text in (label, value)]  # the mean width of a letter in 11 px
    left, right = (length + 12 for length in lengths)
    return SVG.format(
        label=label,
        value=value,
        grey=LABEL,
        blue=VALUE,
        width=left + right,
        left=left,
        right=right,
        left_middle=left / 2,
        right_middle=left + right / 2,
        label_length=lengths[0],
        value_length=lengths[1],
    )


def draw_badges(root: Path) -> dict[Path, str]:
    """Every badge by its path in the repository."""
    return {
        FOLDER / f"{name.lower()}.svg": draw_badge(name, value) for name, value in read_facts(root).items()
    }


if __name__ == "__main__":
    for path, text in draw_badges(ROOT).items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
