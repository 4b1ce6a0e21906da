"""What screen readers stumble over in Sphinx's HTML: empty headers of tables, lists that are none."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

# The corner of a table with names of rows: a header that says nothing is a cell.
EMPTY_HEADER = re.compile(r"<th(?: [^>]*)?>\s*(?:<p>\s*</p>)?\s*</th>")
# Sphinx writes the parameters of a long signature as descriptions without terms.
WITHOUT_TERMS = re.compile(r"<dl>\s*((?:<dd>(?:(?!</?dl).)*?</dd>\s*)+)</dl>", re.S)


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Write what is meant."""
    if "body" in context:
        body = EMPTY_HEADER.sub("<td></td>", context["body"])
        context["body"] = WITHOUT_TERMS.sub(_lines, body)


def _lines(found: re.Match[str]) -> str:
    lines = found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return f'<span class="sig-lines">{lines}</span>'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the change."""
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
