"""Small helpers for what users read: aligned tables, suggestions for misspelt names, plain JSON values."""

from __future__ import annotations

import difflib
import html
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOST_SHOWN = 20  # names that are listed where none is close


def align(lines: Sequence[Sequence[str]], rule: bool = False) -> str:
    """Align cells in columns, the first to the left, the others to the right; a rule below the first line.

    >>> print(align([["rows", "n"], ["all", "12"]], rule=True))
    rows   n
    --------
    all   12
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]] if rule else text)


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Suggest the known names closest to a word; if none is close, list them after ``otherwise``.

    >>> suggest("strenght", ["Strength", "age"])
    "Did you mean 'Strength'?"
    >>> suggest("zzz", ["Strength", "age"], "Its columns are")
    'Its columns are Strength, age.'
    """
    names = list(known)
    folded = {name.casefold(): name for name in reversed(names)}
    close = difflib.get_close_matches(word.casefold(), list(folded), n=3)
    if close:
        return f"Did you mean {' or '.join(repr(folded[name]) for name in close)}?"
    more = ", ..." if len(names) > _MOST_SHOWN else ""
    return f"{otherwise} {', '.join(names[:_MOST_SHOWN])}{more}." if otherwise else ""


def describe_weights(weights: Mapping[str, float]) -> str:
    """The weights of a law's members in words.

    >>> describe_weights({"residuals of all rows": 0.25, "network": 0.75})
    '25 % residuals of all rows + 75 % network'
    """
    return " + ".join(f"{100 * weight:.0f} % {name}" for name, weight in weights.items())


def show_controls(text: str) -> str:
    r"""The text with control characters spelt out, so that a terminal shows and does not obey them.

    Names of columns and files come from others: an escape sequence in one could rewrite the screen.

    >>> show_controls("a\x1b[2Jb\tc")
    'a\\x1b[2Jb\tc'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else ascii(c)[1:-1]
        for c in text
    )


def as_label(text: str) -> str:
    r"""The text as a label of a plot: matplotlib takes what stands between dollars for a formula.

    >>> as_label("price in $ per $100")
    'price in \\$ per \\$100'
    """
    return show_controls(text).replace("\n", " ").replace("$", r"\$")


def as_html(text: str) -> str:
    r"""The text as part of a page: tags stay text, and control characters are spelt out.

    >>> as_html("a<b>\x1b[2J")
    'a&lt;b&gt;\\x1b[2J'
    """
    return html.escape(show_controls(text))


def to_plain(value: Any) -> Any:
    """Convert a value to what JSON can hold; infinite and undefined numbers become None.

    >>> to_plain({"loss": math.nan, "delta": (1, 2)})
    {'loss': None, 'delta': [1, 2]}
    """
    if hasattr(value, "tolist"):  # an array, a numpy number or a column of a data frame
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
