"""Tables with categorical columns, dates and missing values, as numbers.

A table becomes x with one column for each of its columns that is used: numbers as they are, categories as
codes, dates as days, NaN where a value is missing. Trees take x like that. ``Columns.expand`` makes it finite
for everything that measures distances: a missing number becomes the median of its column, with one more
column that says where it was missing, and a categorical column becomes one indicator column per category;
rare categories beyond ``MOST_CATEGORIES`` share the zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from localw2._validation import Array
from localw2.estimators import cells
from localw2.estimators.column_screening import (
    CONSTANT,
    IDENTIFIER,
    NO_VALUES,
    ROW_NUMBER,
    UNREAD_DATES,
    explain_idle,
    find_leaks,
    settle,
)

MOST_CATEGORIES = 30  # indicator columns that one categorical column may become
MOST_CODES = 253  # categories with a code of their own; with all others and missing ones, trees take 255
_MOST_STORED = 254  # in files of development versions


@final
@dataclass(frozen=True, eq=False)
class Columns:
    """How the ``n_features`` columns of a table become the p columns of x.

    ``names`` are those of a frame's columns. ``used`` are the columns of the table that x has, in order, and
    ``dropped`` says why the others are left out. The rest is by column of x: ``categories`` in the order of
    their codes (the ``MOST_CATEGORIES`` most frequent ones first, in alphabetical order), ``lumped`` columns,
    in which any other category has one code more, ``dates`` and ``durations``, ``gaps`` with missing values
    during fitting, and ``medians`` (p,), NaN where they are not known.
    """

    n_features: int
    used: tuple[int, ...]
    medians: Array
    names: tuple[str, ...] | None = None
    dropped: Mapping[int, str] = field(default_factory=dict)
    categories: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    lumped: tuple[int, ...] = ()
    dates: tuple[int, ...] = ()
    durations: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()

    @classmethod
    def of_numbers(cls, p: int, names: tuple[str, ...] | None = None) -> Columns:
        """p columns of numbers, of which nothing else is known."""
        return cls(p, tuple(range(p)), np.full(p, np.nan), names)

    @classmethod
    def noted(cls, reader: BaseEstimator) -> Columns:
        """Columns of numbers, as scikit-learn has noted them on an estimator."""
        names = getattr(reader, "feature_names_in_", None)
        return cls.of_numbers(reader.n_features_in_, None if names is None else tuple(map(str, names)))

    @property
    def width(self) -> int:
        """How many columns x has."""
        return len(self.used)

    @property
    def expanded_width(self) -> int:
        """How many columns ``expand`` makes of x."""
        return len(self.expanded_names())

    @property
    def labels(self) -> list[str]:
        """What to call the columns of the table in a message."""
        return [str(j) for j in range(self.n_features)] if self.names is None else list(map(repr, self.names))

    @property
    def used_names(self) -> list[str]:
        """The names of the columns of x."""
        return self._call(None)

    @property
    def categorical(self) -> list[int]:
        """The columns of x that are categorical."""
        return list(self.categories)

    @property
    def plain(self) -> bool:
        """Whether x has neither categories, nor missing values, nor dates."""
        return not (self.categories or self.gaps or self.dates)

    def encode(self, X: Any) -> Array:
        """The numbers x (N, p) of a frame or an array that has these columns; NaN where a value is missing.

        An unknown category is a missing value, with a warning. A missing value in a column that had none
        during fitting gives a warning too.
        """
        labels = self.labels
        x = np.empty((len(X), self.width))
        new_gaps = []
        for place, j in enumerate(self.used):
            column = _column(X, j)
            if place in self.categories:
                x[:, place] = self._code(place, column)
                missing = bool(cells.find_missing(column).any())
            else:
                x[:, place] = self._measure(place, column)
                missing = bool(np.isnan(x[:, place]).any())
                if missing and np.isnan(self.medians[place]):
                    raise ValueError(
                        f"column {labels[j]} has missing values (NaN) but had none during fitting, and "
                        "its median is not known to fill them. Fill them in, or fit again."
                    )
            if missing and place not in self.gaps:
                new_gaps.append(labels[j])
        if new_gaps:
            warnings.warn(
                f"missing values in {_join(new_gaps)}, where there were none during fitting: predictions for "
                "these rows know nothing of this column, and may be too certain.",
                stacklevel=5,
            )
        return x

    def expand(self, x: Array) -> Array:
        """Finite numbers (N, q) for methods that measure distances; x itself if there is nothing to do.

        First the numbers, then indicators of missing ones, then the indicators of each categorical column.
        """
        missing = np.isnan(x)
        if not self.categories and not self.gaps and not missing.any():
            return x
        numbers = [j for j in range(self.width) if j not in self.categories]
        parts = [np.where(missing[:, numbers], self.medians[numbers], x[:, numbers])]
        parts.append(missing[:, [j for j in numbers if j in self.gaps]])
        for j, words in self.categories.items():
            parts.append(x[:, [j]] == np.arange(min(len(words), MOST_CATEGORIES)))
            if j in self.gaps:
                parts.append(missing[:, [j]])
        return np.ascontiguousarray(np.concatenate(parts, axis=1, dtype=np.float64))

    @property
    def sources(self) -> list[int]:
        """The column of x that each column of ``expand`` comes from."""
        numbers = [j for j in range(self.width) if j not in self.categories]
        found = numbers + [j for j in numbers if j in self.gaps]
        for j, words in self.categories.items():
            found += [j] * (min(len(words), MOST_CATEGORIES) + (j in self.gaps))
        return found

    def expanded_names(self, names: Any = None) -> list[str]:
        """What to call the columns that ``expand`` makes; ``names`` are others for the table's columns."""
        called = self._call(names)
        numbers = [j for j in range(self.width) if j not in self.categories]
        found = [called[j] for j in numbers] + [f"missing {called[j]}" for j in numbers if j in self.gaps]
        for j, words in self.categories.items():
            found += [f"{called[j]}_{word}" for word in words[:MOST_CATEGORIES]]
            found += [f"missing {called[j]}"] if j in self.gaps else []
        return found

    def _call(self, names: Any) -> list[str]:
        known = self.names if names is None else names
        if known is not None and len(known) != self.n_features:
            raise ValueError(f"names has {len(known)} entries; give one for each column of X.")
        return [f"x{j}" if known is None else str(known[j]) for j in self.used]

    def _measure(self, place: int, column: Any) -> Array:
        label = self.labels[self.used[place]]
        if place in self.dates or place in self.durations:
            return cells.read_days(column, label, place in self.durations)
        return cells.read_numbers(column, label)

    def _code(self, place: int, column: Any) -> Array:
        words = self.categories[place]
        known = {word: float(code) for code, word in enumerate(words)}
        other = float(len(words)) if place in self.lumped else np.nan
        places, texts = cells.read_texts(column)
        if (new := sorted(text for text in texts if text not in known)) and place not in self.lumped:
            warnings.warn(
                f"column {self.labels[self.used[place]]} has categories that were not in the training data, "
                f"such as {new[0]!r}; for these rows it counts as missing.",
                stacklevel=6,
            )
        return np.array([*(known.get(text, other) for text in texts), np.nan])[places]

    def to_stored(self) -> dict[str, Any]:
        """Everything but the number and the names of the table's columns, as JSON."""
        return {
            "used": list(self.used),
            "dropped": {str(j): reason for j, reason in self.dropped.items()},
            "categories": {str(j): list(words) for j, words in self.categories.items()},
            "medians": [None if np.isnan(value) else float(value) for value in self.medians],
            **{name: list(getattr(self, name)) for name in _PLACES},
        }

    @classmethod
    def from_stored(cls, stored: Any, p: int, names: Any) -> Columns:
        """The p columns that a file describes, plain numbers if by None; ValueError if it is damaged."""
        names = _check_names(names, p)
        if stored is None:
            return cls.of_numbers(p, names)
        if not isinstance(stored, dict):
            raise _damaged(stored)
        used = _check_places(stored.get("used"), p)
        dropped = _check_keys(stored.get("dropped"), p)
        if sorted([*used, *dropped]) != list(range(p)) or not used:
            raise _damaged(stored)
        if not all(isinstance(reason, str) for reason in dropped.values()):
            raise _damaged(stored)
        categories = _check_keys(stored.get("categories"), len(used))
        for words in categories.values():
            good = isinstance(words, list) and 0 < len(words) <= _MOST_STORED
            if not good or not all(isinstance(w, str) for w in words) or len(set(words)) < len(words):
                raise _damaged(words)
        places = {name: _check_places(stored.get(name), len(used)) for name in _PLACES}
        apart = [*categories, *places["dates"], *places["durations"]]
        if len(set(apart)) < len(apart) or not set(places["lumped"]) <= set(categories):
            raise _damaged(stored)
        medians = stored.get("medians")
        if not isinstance(medians, list) or len(medians) != len(used):
            raise _damaged(medians)
        if not all(m is None or (type(m) in (int, float) and np.isfinite(m)) for m in medians):
            raise _damaged(medians)
        if any(medians[j] is None for j in places["gaps"] if j not in categories):
            raise _damaged(medians)
        known = np.array([np.nan if value is None else value for value in medians], dtype=np.float64)
        words_of = {j: tuple(words) for j, words in categories.items()}
        return cls(p, used, known, names, dropped, words_of, **places)


_LONGEST_MESSAGE = 1000  # letters of an error that names columns
_PLACES = ("lumped", "dates", "durations", "gaps")


def from_stored_encoder(pipeline: Any, p: int, names: Any, plain: Any) -> Columns:
    """The columns of a file of version 0.1, which holds an encoder of scikit-learn in a pipeline, or none.

    ``expand`` gives the matrix that the encoder gave.
    """
    names = _check_names(names, p)
    if pipeline is None:
        return Columns.of_numbers(p, names)
    encoder = pipeline.steps[0][1] if isinstance(pipeline, Pipeline) else None
    if not isinstance(encoder, ColumnTransformer) or getattr(encoder, "n_features_in_", None) != p:
        raise _damaged(encoder)
    _, grouped = plain
    parts = encoder.named_transformers_
    where = {name: [int(j) for j in columns] for name, _, columns in encoder.transformers}
    imputer, one_hot = parts.get("numbers"), parts.get("names")
    numbers, categorical = where.get("numbers", []), where.get("names", [])
    if sorted(numbers) != numbers or sorted(categorical) != categorical:
        raise _damaged(where)
    medians: list[float | None] = [None] * p
    gaps: list[int] = []
    categories: dict[str, list[str]] = {}
    if numbers:
        if not isinstance(imputer, SimpleImputer) or len(imputer.statistics_) != len(numbers):
            raise _damaged(imputer)
        for j, value in zip(numbers, imputer.statistics_, strict=True):
            medians[j] = float(value)
        gaps += [numbers[int(place)] for place in imputer.indicator_.features_]
    if categorical:
        if not isinstance(one_hot, OneHotEncoder) or len(one_hot.categories_) != len(categorical):
            raise _damaged(one_hot)
        for j, words in zip(categorical, one_hot.categories_, strict=True):
            categories[str(j)] = [word for word in words if isinstance(word, str)]
            if len(categories[str(j)]) < len(words):  # the last one is NaN
                gaps.append(j)
            if len(categories[str(j)]) > MOST_CATEGORIES:
                raise _damaged(words)
    stored = {"used": list(range(p)), "dropped": {}, "categories": categories, "medians": medians}
    stored |= {"lumped": grouped, "dates": [], "durations": [], "gaps": sorted(gaps)}
    return Columns.from_stored(stored, p, None if names is None else list(names))


def read_table(
    reader: BaseEstimator, X: Any, y: Any, known: Array | None = None
) -> tuple[Array, Array, Columns]:
    """Checked numbers x (N, p) and y (N,) or (N, d) for a fit, and how x came from the columns of X.

    scikit-learn notes the columns of X on ``reader``, and names it in messages. Columns of a frame that can
    say nothing of new rows are left out, and columns that nearly determine y are named, both in a warning.
    With ``known`` only these rows show what the columns are like; all rows are encoded accordingly, as new
    ones would be.
    """
    if y is None:
        raise ValueError(f"{type(reader).__name__} requires y to be passed, but the target y is None.")
    target = repr(y.name) if isinstance(getattr(y, "name", None), str) else "y"
    if cells.is_date(y) or any(cells.is_date(y.iloc[:, j]) for j in range(y.shape[1] if _is_frame(y) else 0)):
        raise ValueError(
            f"{target} holds dates or durations, and a target must be numeric. Turn it into numbers in a "
            "unit of your choice, such as days since some day."
        )
    if word := cells.find_words(y):
        raise ValueError(
            f"{word} is not numeric. LocalW2MixedRegressor learns the joint distribution of numbers and "
            "categories; turn a number that is written as text into one."
        )
    X, y = cells.as_pandas(_fill_mask(X)), _fill_mask(y)
    if known is None:  # otherwise it was said of all rows
        cells.warn_of_missing_in_r(X, "X", stacklevel=3)
        cells.warn_of_missing_in_r(y, "y", stacklevel=3)
    table = _as_table(X)
    if _is_frame(table) or (table is not None and table.dtype.kind in "mM"):
        validate_data(reader, table, skip_check_array=True)
        y = check_array(y, dtype=np.float64, ensure_2d=False, ensure_min_samples=2, input_name="y")
        check_consistent_length(table, y)
    else:
        table, y = validate_data(
            reader,
            X if table is None else table,
            y,
            dtype=np.float64,
            order="C",
            ensure_all_finite="allow-nan",
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=2,
        )
    x, columns = _learn_columns(table, Columns.noted(reader), slice(None) if known is None else known)
    if columns.dropped:
        warnings.warn(_explain_dropped(columns), stacklevel=3)
    if _is_frame(table) and columns.width > 1 and known is None:
        leaks = find_leaks(x, y.reshape(len(y), -1), columns.categorical)
        if leaks:
            found = _join([columns.labels[columns.used[j]] for j in leaks])
            determines = "determines" if len(leaks) == 1 else "each determine"
            warnings.warn(
                f"{found} nearly {determines} {'the target' if target == 'y' else target} alone. If this is "
                "made from the target, or not known when predictions are needed, leave it out.",
                stacklevel=3,
            )
    return x, y, columns


def _check_like_fitted(reader: BaseEstimator, X: Any) -> None:
    """Check number and names of columns as scikit-learn does; a name of thousands of letters is cut short."""
    try:
        validate_data(reader, X, reset=False, skip_check_array=True)
    except ValueError as error:
        words = str(error)
        if len(words) <= _LONGEST_MESSAGE:
            raise
        raise ValueError(f"{words[: _LONGEST_MESSAGE // 2]} ... {words[-_LONGEST_MESSAGE // 2 :]}") from None


def read_rows(reader: BaseEstimator, X: Any, columns: Columns) -> Array:
    """Checked numbers x (N, p) for a fitted estimator, on which scikit-learn has noted its columns.

    Columns that were left out of the fit need not be there.
    """
    X = cells.as_pandas(_fill_mask(X))
    cells.warn_of_missing_in_r(X, "X", stacklevel=4)
    if _is_frame(X) and columns.names is not None and columns.dropped:
        unused = [columns.names[j] for j in columns.dropped]
        if any(name not in X.columns for name in unused):
            order = [n for n in columns.names if n in X.columns or n in unused]
            X = X.reindex(columns=[*order, *(n for n in X.columns if n not in order)])
    if _is_frame(X) or not columns.plain or columns.durations:
        _check_like_fitted(reader, X)
        if not _is_frame(X):
            # Categories and dates may be among them: only shape and size are checked here.
            X = check_array(X, dtype=None, ensure_all_finite=False)
        elif len(X) == 0:
            raise ValueError("X has 0 sample(s) (rows); at least one is needed.")
        return columns.encode(X)
    table = _as_table(X)
    rows: Array = validate_data(
        reader,
        X if table is None else table,
        dtype=np.float64,
        order="C",
        ensure_all_finite="allow-nan",
        reset=False,
    )
    return columns.encode(rows) if columns.dropped or np.isnan(rows).any() else rows


def _learn_columns(table: Any, noted: Columns, known: Any) -> tuple[Array, Columns]:
    """The numbers of a table, and the columns that they came from, as the known rows show them.

    A cell of another row that such a column cannot hold is missing.
    """
    labels, frame = noted.labels, _is_frame(table)
    kinds: list[str] = []
    found: list[Array] = []
    words: dict[int, list[str]] = {}
    idle: dict[int, str] = {}
    for j in range(table.shape[1]):
        column = _column(table, j)
        kinds.append(cells.find_kind(_take(column, known), labels[j]))
        if kinds[j] == cells.EMPTY:
            found.append(np.full(len(table), np.nan))
        elif kinds[j] == cells.CATEGORY:
            places, words[j] = cells.read_texts(column)
            found.append(np.where(places < 0, np.nan, places))
        elif kinds[j] in (cells.DATE, cells.DURATION):
            read = partial(cells.read_days, label=labels[j], durations=kinds[j] == cells.DURATION)
            found.append(_read_known(read, column, known))
        else:
            found.append(settle(_read_known(partial(cells.read_numbers, label=labels[j]), column, known)))
        whole = getattr(column.dtype, "kind", "O") in "iu"
        name = labels[j] if noted.names is None else noted.names[j]
        reason = explain_idle(found[j][known], kinds[j], name, whole)
        if reason == IDENTIFIER and cells.look_like_dates(_name_codes(found[j][known], words[j])):
            reason = UNREAD_DATES
        if reason is not None and (frame or reason == NO_VALUES):
            idle[j] = reason
    for reason in (ROW_NUMBER, IDENTIFIER, UNREAD_DATES, CONSTANT):  # something must remain
        if len(idle) == table.shape[1]:
            idle = {j: why for j, why in idle.items() if why != reason}
    used = [j for j in range(table.shape[1]) if j not in idle]
    if not used:
        raise ValueError(f"no column of X has a value: {_join(labels)}.")
    categories = {}
    for place, j in enumerate(used):
        if kinds[j] == cells.CATEGORY:
            categories[place], found[j] = _sort_codes(found[j], words[j], known)
    x = np.stack([found[j] for j in used], axis=1)
    shown = x[known]
    gaps = np.isnan(shown).any(axis=0)
    medians = np.array([np.nan if j in categories else np.nanmedian(shown[:, j]) for j in range(len(used))])
    columns = Columns(
        noted.n_features,
        tuple(used),
        medians,
        noted.names,
        idle,
        {j: tuple(w[:MOST_CODES]) for j, w in categories.items()},
        tuple(j for j, w in categories.items() if len(w) > MOST_CODES),
        tuple(place for place, j in enumerate(used) if kinds[j] == cells.DATE),
        tuple(place for place, j in enumerate(used) if kinds[j] == cells.DURATION),
        tuple(int(j) for j in np.flatnonzero(gaps)),
    )
    return np.ascontiguousarray(x), columns


def _take(column: Any, rows: Any) -> Any:
    return column.iloc[rows] if hasattr(column, "iloc") else column[rows]


def _read_known(read: Callable[[Any], Array], column: Any, known: Any) -> Array:
    """The numbers of a column; NaN in rows that are not known if they cannot be read."""
    try:
        return read(column)
    except ValueError:
        if isinstance(known, slice):
            raise
    values = np.full(len(column), np.nan)
    values[known] = read(_take(column, known))
    for row in np.setdiff1d(np.arange(len(column)), known):
        with suppress(ValueError):
            values[row] = read(_take(column, slice(row, row + 1)))[0]
    return values


def _name_codes(codes: Array, words: list[str]) -> list[str]:
    """The categories that occur among codes (N,)."""
    return [words[k] for k in np.unique(codes[~np.isnan(codes)]).astype(int)]


def _sort_codes(codes: Array, words: list[str], known: Any) -> tuple[list[str], Array]:
    """Categories of known rows, the most frequent first, and codes (N,) in that order; rare ones share one.

    A category that no known row has is a missing value, or a rare one where there are such.
    """
    shown = codes[known]
    counts = np.bincount(shown[~np.isnan(shown)].astype(int), minlength=len(words))
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda k: (-counts[k], words[k]))
    order = sorted(order[:MOST_CATEGORIES], key=lambda k: words[k]) + order[MOST_CATEGORIES:]
    place = np.full(len(words), float(MOST_CODES) if len(order) > MOST_CODES else np.nan)
    place[order] = np.minimum(np.arange(len(order)), MOST_CODES)
    present = ~np.isnan(codes)
    codes = codes.copy()
    codes[present] = place[codes[present].astype(int)]
    return [words[k] for k in order], codes


def _explain_dropped(columns: Columns) -> str:
    reasons = [f"{columns.labels[j]} ({why})" for j, why in columns.dropped.items()]
    text = f"left out: {_join(reasons)}."
    if ROW_NUMBER in columns.dropped.values():
        text += " If row numbers are meant as an input, convert them to float."
    return text


def _join(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _check_names(names: Any, p: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != p or not all(isinstance(n, str) for n in names):
        raise ValueError(f"feature_names={str(names)[:80]} is not a list of {p} names.")
    return tuple(names)


def _check_places(value: Any, high: int) -> tuple[int, ...]:
    """Ascending numbers of columns that a file states."""
    good = isinstance(value, list) and all(type(j) is int and 0 <= j < high for j in value)
    if not good or sorted(set(value)) != value:
        raise _damaged(value)
    return tuple(value)


def _check_keys(value: Any, high: int) -> dict[int, Any]:
    """A dictionary by numbers of columns, which are text in a file."""
    if not isinstance(value, dict) or not all(isinstance(key, str) and key.isdecimal() for key in value):
        raise _damaged(value)
    found = {int(key): entry for key, entry in value.items()}
    if len(found) < len(value):
        raise _damaged(value)
    return {j: found[j] for j in _check_places(sorted(found), high)}


def _damaged(part: Any) -> ValueError:
    return ValueError(f"the description of its columns is damaged at {str(part)[:80]}.")


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2


def _fill_mask(values: Any) -> Any:
    """A masked array with NaN where it is masked; anything else as it is."""
    return np.ma.filled(values.astype(np.float64), np.nan) if np.ma.isMaskedArray(values) else values


def _as_table(X: Any) -> Any:
    """A pandas frame, or an array of anything else with rows; None where scikit-learn will say what it is."""
    if _is_frame(X):
        return X
    if hasattr(X, "toarray"):  # a sparse matrix
        return None
    try:
        array = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
    except (TypeError, ValueError):
        return None
    if array.ndim != 2:
        return None
    if array.dtype.kind not in "OUS":
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        word = next((v for v in array.flat if isinstance(v, str)), None)
    if word is not None:
        raise ValueError(
            f"could not convert X to numbers: it holds {word!r}. Give categorical columns in a pandas frame, "
            "whose columns have types."
        )
    return array


def _column(X: Any, j: int) -> Any:
    return X.iloc[:, j] if hasattr(X, "iloc") else X[:, j]
