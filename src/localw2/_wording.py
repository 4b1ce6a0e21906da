"""Tables for people who read them as text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]], rule: bool = False) -> str:
    """Cells in columns, the first to the left and the others to the right; a rule below the first line.

    >>> print(aligned([["rows", "n"], ["all", "12"]], rule=True))
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
