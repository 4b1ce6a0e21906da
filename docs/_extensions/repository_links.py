"""Links to files outside this folder: they work in the repository, and lead to a page of the built docs."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from sphinx.application import Sphinx

# A file of the repository, and the page that shows it.
PAGES = {
    "ARCHITECTURE.md": "contributors/architecture",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributors/index",
    "README.md": "index",
    "paper/README.md": "reference/paper-results",
}
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


# Pages that a list may name before they exist.
AWAITED = {"how-to/index": ("how-to/scale", "accuracy")}


def translate(app: Sphinx, page: str, source: list[str]) -> None:
    """Point links from `docs/PAGE.md` at the pages that show the files they name."""
    for name in AWAITED.get(page, ()):
        if not (app.srcdir / f"{name}.md").exists():
            path = posixpath.relpath(name, posixpath.dirname(page))
            source[0] = re.sub(rf"\n(.*<)?{re.escape(path)}>?\n", "\n", source[0])
    folder = posixpath.dirname(f"docs/{page}")

    def replaced(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        if target not in PAGES:
            return found[0]
        path = posixpath.relpath(f"docs/{PAGES[target]}.md", folder)
        return f"]({path}{found[2] or ''})"

    source[0] = LINK.sub(replaced, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the translation."""
    app.connect("source-read", translate)
    return {"parallel_read_safe": True}
