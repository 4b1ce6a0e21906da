"""Mark every entry of the reference as stable or provisional, by the lists in reference/stability.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

PAGE = Path(__file__).parents[1] / "reference" / "stability.md"
KINDS = ("stable", "provisional")
MARKED = ("class", "function", "exception", "data")  # not methods, which share the mark of their class


def read_marks(text: str) -> dict[str, str]:
    """The mark of each name, without ``localw2.``; ``metrics.*`` stands for all of a module.

    >>> read_marks("<!-- stable:begin --> `load`, `plots.*` <!-- stable:end -->")
    {'load': 'stable', 'plots.*': 'stable'}
    """
    found: dict[str, str] = {}
    for kind in KINDS:
        for part in re.findall(rf"<!-- {kind}:begin -->(.*?)<!-- {kind}:end -->", text, re.DOTALL):
            for name in re.findall(r"`([^`]+)`", part):
                if name in found:
                    raise ValueError(f"{PAGE.name} lists {name} twice.")
                found[name] = kind
    return found


def find_mark(name: str, marks: dict[str, str]) -> str | None:
    """The mark of an entry by its whole name, such as ``localw2.metrics.crps``."""
    own = name.removeprefix("localw2.")
    return marks.get(own) or marks.get(f"{own.rpartition('.')[0]}.*")


def mark(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Begin the text of an entry with its mark."""
    if what not in MARKED:
        return
    found = find_mark(name, app.config.stability_marks)
    if found is None:
        logging.getLogger(__name__).warning("%s is neither stable nor provisional in %s", name, PAGE.name)
        return
    lines[:0] = [f".. container:: stability {found}", "", f"   :doc:`{found} </reference/stability>`", ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the marks."""
    app.add_config_value("stability_marks", read_marks(PAGE.read_text(encoding="utf-8")), "env")
    app.connect("autodoc-process-docstring", mark, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
