"""Parts of a page that a script writes: whatever stands between two markers."""

from __future__ import annotations

from pathlib import Path

CONTRIBUTORS = Path(__file__).parents[1] / "docs" / "contributors"
PAGE = CONTRIBUTORS / "code-map.md"


def replace_part(page: str, part: str, text: str) -> str:
    """The page with the text between the markers of this part."""
    begin, end = f"<!-- {part}: written by `make code-map` -->\n", f"\n<!-- end of {part} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs {begin.strip()!r} and {end.strip()!r}, once each.")
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{text.strip()}\n{end}{after}"
