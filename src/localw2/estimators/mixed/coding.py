r"""Outputs of numbers and categories as points: what a mismatch of categories costs beside a number.

A number is divided by its standard deviation. A category of K becomes a vertex of a regular simplex,
:math:`c\,e_k / \sqrt2`, so that two different ones are at the distance c. With

.. math:: c^2 = \frac{2}{1 - \sum_k p_k^2}

two independent rows are as far apart in a category, in the mean square, as in a number: 2. So both kinds
weigh alike in distances between rows, whatever their units and frequencies.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, final

import numpy as np

from localw2._validation import Array, average

MOST_CLASSES = 50  # of a categorical output
_NAMED = 100  # letters of a name in a message


@final
@dataclass(frozen=True, eq=False)
class OutputCoding:
    """The d columns of Y: their ``names``, and ``classes`` of the categorical ones by their places.

    ``framed`` tells whether Y was a frame, and ``single`` whether it had one axis. ``scales`` (d_n,) are the
    standard deviations of the numbers, ``costs`` the squared mismatch costs of the categories.
    """

    names: tuple[str, ...]
    classes: Mapping[int, tuple[Any, ...]]
    scales: Array
    costs: Array
    framed: bool
    single: bool

    @classmethod
    def learn(
        cls, Y: Any, categorical: Any = None, weights: Array | None = None
    ) -> tuple[OutputCoding, Array, Array]:
        """From outputs; and the numbers (N, d_n) and the codes (N, d_c) of the rows."""
        columns, names, framed, single = _columns(Y)
        given = _places(categorical, names)
        classes: dict[int, tuple[Any, ...]] = {}
        numbers, codes = [], []
        for j, column in enumerate(columns):
            if _is_number(column) and j not in given:
                numbers.append(_finite(column, names[j]))
                continue
            found, code = _classify(column, names[j])
            classes[j] = found
            codes.append(code)
        n = len(columns[0])
        values = np.stack(numbers, 1) if numbers else np.empty((n, 0))
        labels = np.stack(codes, 1) if codes else np.empty((n, 0), np.int64)
        if weights is not None and len(weights) != n:
            raise ValueError(f"Y has {n} rows and sample_weight {len(weights)}; they must be pairs.")
        counts = np.ones(n) if weights is None else weights
        scales = np.sqrt(average((values - average(values, weights)) ** 2, weights))
        shares = [np.bincount(code, counts) / counts.sum() for code in codes]
        costs = np.array([2 / max(1 - float((p**2).sum()), 1e-12) for p in shares])
        return cls(names, classes, np.where(scales > 0, scales, 1.0), costs, framed, single), values, labels

    @property
    def numeric(self) -> list[int]:
        """The places of the numbers."""
        return [j for j in range(len(self.names)) if j not in self.classes]

    @property
    def n_classes(self) -> tuple[int, ...]:
        """How many classes each category has."""
        return tuple(len(words) for words in self.classes.values())

    def read(self, Y: Any) -> tuple[Array, Array]:
        """The numbers and codes of other rows; ValueError for a category that the fit has not seen."""
        columns, names, framed, _ = _columns(Y)
        if len(names) != len(self.names) or (framed and self.framed and set(names) != set(self.names)):
            raise ValueError(f"Y has the columns {_short(names)}; the fit had {_short(self.names)}.")
        if framed and self.framed:
            columns = [columns[names.index(name)] for name in self.names]
        numbers = [_finite(columns[j], self.names[j]) for j in self.numeric]
        codes = []
        for j, words in self.classes.items():
            place = {_label(word): k for k, word in enumerate(words)}
            labels = [_label(value) for value in columns[j]]
            if unknown := sorted(set(labels) - place.keys()):
                count = sum(label in unknown for label in labels)
                raise ValueError(
                    f"{self.names[j]!r} has {unknown[0][:_NAMED]!r}, which is not among the classes of the "
                    f"fit: {_short(tuple(place))}. Leave such rows out ({count} of {len(labels)}), or fit "
                    "again with them."
                )
            codes.append(np.array([place[label] for label in labels], np.int64))
        n = len(columns[0])
        return (
            np.stack(numbers, 1) if numbers else np.empty((n, 0)),
            np.stack(codes, 1) if codes else np.empty((n, 0), np.int64),
        )

    def find_unknown(self, Y: Any) -> Array:
        """Which rows (N,) of a frame of outputs have a class that the fit has not seen."""
        found = np.zeros(len(Y), bool)
        for j, words in self.classes.items():
            known = set(map(_label, words))
            found |= np.array([_label(value) not in known for value in Y.iloc[:, j]], dtype=bool)
        return found

    def embed(self, numbers: Array, codes: Array) -> Array:
        """The points (..., D): numbers in their SDs, and a vertex for each category."""
        parts = [numbers / self.scales]
        for k, (size, cost) in enumerate(zip(self.n_classes, self.costs, strict=True)):
            parts.append(np.sqrt(cost / 2) * np.eye(size)[codes[..., k]])
        return np.concatenate(parts, -1)

    def decode(self, points: Array) -> tuple[Array, Array]:
        """Numbers and codes of any points (..., D): those of the nearest vertices."""
        width = len(self.scales)
        ends = width + np.cumsum([0, *self.n_classes])
        codes = [points[..., a:b].argmax(-1) for a, b in pairwise(ends)]
        stacked = np.stack(codes, -1) if codes else np.empty((*points.shape[:-1], 0), np.int64)
        return points[..., :width] * self.scales, stacked

    def as_array(self, numbers: Array, codes: Array) -> Array:
        """The columns of Y (..., d) as floats: numbers, and the place of a category in ``classes``."""
        found = np.empty((*numbers.shape[:-1], len(self.names)))
        found[..., self.numeric] = numbers
        found[..., list(self.classes)] = codes
        return found[..., 0] if self.single else found

    def as_columns(self, numbers: Array, codes: Array) -> dict[str, Array]:
        """The columns of Y by name, categories as they were given, for a frame."""
        found: dict[int, Array] = {j: numbers[..., k].ravel() for k, j in enumerate(self.numeric)}
        for k, (j, words) in enumerate(self.classes.items()):
            plain = all(type(word) is bool for word in words) or all(
                type(word) in (int, float) for word in words
            )
            choices = np.array(words, dtype=None if plain else object)
            found[j] = choices[codes[..., k].ravel()]
        return {name: found[j] for j, name in enumerate(self.names)}


def _columns(Y: Any) -> tuple[list[Any], tuple[str, ...], bool, bool]:
    """The columns of outputs, their names, whether they came as a frame, and whether there was one axis."""
    if hasattr(Y, "columns") and hasattr(Y, "iloc"):
        names = tuple(str(name) for name in Y.columns)
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"the columns of Y must have names of their own; they are {_short(names)}.")
        return [Y.iloc[:, j] for j in range(Y.shape[1])], names, True, False
    if hasattr(Y, "iloc"):  # a series
        return [Y], (str(Y.name) if Y.name is not None else "y",), True, True
    array = np.asarray(Y)
    if array.dtype.kind == "c":
        raise ValueError(
            "Complex data not supported: give the real and the imaginary part as two columns of Y."
        )
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"Y has shape {array.shape}; expected (N,) or (N, d), or a frame.")
    if array.ndim == 1:
        return [array], ("y",), False, True
    return (
        [array[:, j] for j in range(array.shape[1])],
        tuple(f"y{j}" for j in range(array.shape[1])),
        False,
        False,
    )


def _is_number(column: Any) -> bool:
    dtype = getattr(column, "dtype", None)
    if str(dtype) == "category":
        return False
    if getattr(dtype, "kind", None) in ("i", "u", "f"):
        return True
    if getattr(dtype, "kind", None) == "O":
        values = list(column)
        return all(isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in values)
    return False


def _finite(column: Any, name: str) -> Array:
    try:
        values = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name[:_NAMED]!r} was numeric in the fit and is not here.") from None
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name[:_NAMED]!r} has missing or infinite values; a target needs numbers in all rows."
        )
    return values


def _classify(column: Any, name: str) -> tuple[tuple[Any, ...], Array]:
    """The classes of a column in order, as Python values, and the code of each row."""
    values = [value.item() if isinstance(value, np.generic) else value for value in column]
    # NaN differs from itself, and of pandas' NA nobody knows.
    if any(value is None or (value == value) is not True for value in values):
        raise ValueError(f"{name[:_NAMED]!r} has missing values; a target needs a class in all rows.")
    if not all(isinstance(value, str | bool | int | float) for value in values):
        raise ValueError(
            f"{name[:_NAMED]!r} holds {type(values[0]).__name__}; give text, truth values or numbers."
        )
    kept = getattr(getattr(column, "cat", None), "categories", None)
    present = set(values)
    order = (
        [w for w in kept if w in present]
        if kept is not None
        else sorted(present, key=lambda v: (str(type(v)), v))
    )
    words = tuple(word.item() if isinstance(word, np.generic) else word for word in order)
    if not 2 <= len(words) <= MOST_CLASSES:
        raise ValueError(
            f"{name[:_NAMED]!r} has {len(words)} {'class' if len(words) == 1 else 'classes'}; a categorical "
            f"target can have 2 to {MOST_CLASSES}."
            + (
                " Merge rare ones into one class. If they are numbers, remove all other characters; the "
                f"first is {str(words[0])[:_NAMED]!r}."
                if len(words) > MOST_CLASSES
                else ""
            )
        )
    if len(words) > len(values) / 3:
        warnings.warn(
            f"{name[:_NAMED]!r} has {len(words)} classes in {len(values)} rows: with fewer than three rows "
            "of a class there is little to learn.",
            stacklevel=4,
        )
    if len({_label(word) for word in words}) < len(words):
        raise ValueError(f"{name[:_NAMED]!r} has classes that read alike, such as 1 and '1'. Rename one.")
    place = {word: k for k, word in enumerate(words)}
    return words, np.array([place[value] for value in values], np.int64)


def check_classes(words: Any) -> None:
    """ValueError if these are not the classes of a column, as ``OutputCoding.learn`` finds them."""
    plain = isinstance(words, list) and all(isinstance(word, str | bool | int | float) for word in words)
    if not plain or not 2 <= len({_label(word) for word in words}) == len(words) <= MOST_CLASSES:
        raise ValueError(
            f"the classes {str(words)[:80]} must be 2 to {MOST_CLASSES} distinct words or numbers."
        )
    if any(word != word for word in words):
        raise ValueError("a class is not a number.")


def _label(value: Any) -> str:
    """A class as text, the same for 1 and 1.0, which turn into each other in arrays and files."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def list_labels(categorical: Any) -> list[Any]:
    """Names or places of categorical columns as a list, places as Python's integers."""
    given = [categorical] if isinstance(categorical, str | Integral) else list(categorical)
    return [one.item() if isinstance(one, np.generic) else one for one in given]


def _places(categorical: Any, names: Sequence[str]) -> set[int]:
    if categorical is None:
        return set()
    found = set()
    for one in list_labels(categorical):
        if isinstance(one, str) and one in names:
            found.add(list(names).index(one))
        elif isinstance(one, int) and not isinstance(one, bool) and 0 <= one < len(names):
            found.add(one)
        else:
            raise ValueError(f"categorical has {one!r}, which is no column of Y: {_short(tuple(names))}.")
    return found


def _short(names: Sequence[str]) -> str:
    text = ", ".join(map(repr, names))
    return text if len(text) <= 3 * _NAMED else f"{text[: 3 * _NAMED]} ..."
