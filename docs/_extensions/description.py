"""A description of each page for search engines: its first paragraph, unless the page has one of its own."""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONGEST = 200


def describe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Add the meta tag."""
    tags = context.get("metatags", "")
    if tree is None or 'name="description"' in tags:
        return
    for paragraph in tree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if len(text) > 30:
            short = text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " …"
            context["metatags"] = (
                f'{tags}\n<meta name="description" content="{html.escape(short, quote=True)}" />'
            )
            return


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the tag."""
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
