"""Blocks of code end with their last line: doctests need an empty one before the fence, readers do not."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def trim(app: Sphinx, tree: nodes.document) -> None:
    """Cut empty lines at the end of every block."""
    for block in tree.findall(nodes.literal_block):
        text = block.astext()
        if text != text.rstrip() and all(isinstance(child, nodes.Text) for child in block.children):
            block.children = []
            block += nodes.Text(text.rstrip())
            block.rawsource = text.rstrip()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the cut."""
    app.connect("doctree-read", trim)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
