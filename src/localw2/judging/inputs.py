"""The inputs of a model as people know them: numbers, categories or dates, with missing values or without.

A table becomes numbers x (N, p): a category its code, a date its days since 1970-01-01, a missing value NaN.
What people read and write is translated here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from localw2._validation import Array

MISSING = "missing"  # what people read where a value is missing
OTHER = "(other)"  # what stands for all categories that share one code
DAY = 86_400  # seconds


@final
@dataclass(frozen=True)
class Input:
    """A column of the table that the model uses; ``gaps``: values were missing during fitting.

    >>> Input("day", "date").show(0.5), Input("site", "category", ("east", "west")).show(1.0)
    ('1970-01-01 12:00', 'west')
    >>> Input("year", "number").show(2019.0), Input("dose", "number", gaps=True).show(np.nan)
    ('2019', 'missing')
    """

    name: str
    kind: Literal["number", "category", "date"]
    categories: tuple[str, ...] = ()
    gaps: bool = False

    def show(self, value: float, digits: int = 4) -> str:
        """A value for people."""
        plain = self.to_plain(value)
        if isinstance(plain, str):
            return plain.replace("T", " ") if self.kind == "date" else plain
        return MISSING if plain is None else show_number(plain, digits)

    def to_plain(self, value: float) -> float | str | None:
        """A value of the table as JSON has it: a number, the name of a category, a date, or None."""
        if not math.isfinite(value):
            return None
        if self.kind == "category":
            return self.categories[int(value)]
        if self.kind == "number":
            return float(value)
        moment = str(np.datetime64(round(value * DAY), "s"))
        return moment.removesuffix(":00").removesuffix("T00:00")

    def from_plain(self, value: float | str | None) -> float:
        """The number that a value of the table becomes; ValueError for an unknown category or date.

        >>> Input("day", "date").from_plain("1970-01-03")
        2.0
        """
        if value is None:
            return math.nan
        if self.kind == "category":
            return float(self.categories.index(str(value)))
        if self.kind == "date":
            return int(np.datetime64(str(value), "s").astype(np.int64)) / DAY
        return float(value)


def describe_inputs(columns: Any, names: Any = None) -> list[Input]:
    """The inputs that the columns of a table become; ``names`` are other names for all of its columns."""
    if names is not None and len(names) != columns.n_features:
        raise ValueError(f"names has {len(names)} entries; give one for each column of X.")
    called = columns.used_names if names is None else [str(names[j]) for j in columns.used]
    found = []
    for i, name in enumerate(called):
        words = tuple(columns.categories.get(i, ()))
        words += (OTHER,) if i in columns.lumped else ()
        kind: Literal["number", "category", "date"] = "number"
        if words or i in columns.dates:
            kind = "category" if words else "date"
        unit = " (days)" if i in columns.durations else ""
        found.append(Input(name + unit, kind, words, i in columns.gaps))
    return found


def is_whole(values: Array) -> bool:
    """Whether all values that are there are whole numbers, as years and counts are."""
    seen = values[np.isfinite(values)]
    return bool((seen == np.round(seen)).all())


def show_number(value: float, digits: int = 4) -> str:
    """A number with some digits, but all of those before the point: years stay years.

    >>> show_number(2019.0, 3), show_number(0.123456), show_number(12345.6), show_number(2e-7)
    ('2019', '0.1235', '12346', '2e-07')
    """
    if not math.isfinite(value):
        return "\N{EN DASH}"
    all_digits = abs(value) < 1e9 and (abs(value) >= 1e3 or value == round(value))
    return f"{value + 0.0:.0f}" if all_digits else f"{value:.{digits}g}"
