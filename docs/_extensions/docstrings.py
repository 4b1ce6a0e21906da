"""Sections of docstrings (Parameters, Attributes, Examples) as lists that keep grouped entries together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

ARRAY = re.compile(
    r"~?(numpy\.)?ndarray\[tuple\[~?(typing\.)?Any, \.\.\.\], ~?(numpy\.)?dtype\[~?(typing\.)?Any\]\]"
)
TITLES = ("Parameters", "Attributes", "Examples")


def lay_out(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Replace each section, in place."""
    if any(title in TITLES for title in lines):
        lines[:] = list(_laid_out(lines))


def _laid_out(lines: list[str]) -> Iterator[str]:
    section = None
    place = 0
    while place < len(lines):
        line = lines[place]
        if line in TITLES and re.fullmatch("-{3,}", "".join(lines[place + 1 : place + 2])):
            section = line
            yield from ("", f".. rubric:: {section}", "")
            place += 2
            continue
        if section in ("Parameters", "Attributes") and line and not line[0].isspace():
            names, _, rest = line.partition(" : ")
            shown = ", ".join(f"``{each.strip()}``" for each in names.split(","))
            # A parameter's colon is followed by its type, an attribute's by its description.
            yield f"{shown} : *{rest}*" if section == "Parameters" and rest else shown
            if section == "Attributes":
                yield f"    {rest}"
        else:
            yield line
        place += 1


def name_arrays(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write ``Array`` in signatures, as the code does, instead of the type that it abbreviates."""
    shorter = [text and ARRAY.sub("Array", text) for text in (signature, returns)]
    return shorter[0], shorter[1]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the layout."""
    app.connect("autodoc-process-docstring", lay_out)
    app.connect("autodoc-process-signature", name_arrays)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
