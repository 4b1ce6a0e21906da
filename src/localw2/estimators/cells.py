"""One column of a table as numbers: what kind of column it is, and the value of every cell.

Columns come as pandas series or as numpy arrays. A missing cell is NaN throughout.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from localw2._validation import Array

NUMBER, CATEGORY, DATE, DURATION, EMPTY = "number", "category", "date", "duration", "empty"
# What pandas calls the values of a column of objects.
_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal", "boolean"}
_DATES = {"datetime", "datetime64", "date", "period"}
_DURATIONS = {"timedelta", "timedelta64"}
_ISO_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|[+-]\d\d:?\d\d))?)?\s*")
_OTHER_DATE = re.compile(r"\s*\d{1,4}([./-])\d{1,2}\1\d{1,4}\b.*")
_DAY = np.timedelta64(1, "D")
_NA_OF_R = -(2**31)  # a missing whole number of R, as it arrives in Python


def as_pandas(X: Any) -> Any:
    """A frame of polars as one of pandas, if that is installed; anything else as it is."""
    names = getattr(X, "columns", None)
    if not hasattr(X, "to_pandas") or not isinstance(names, list):
        return X
    try:
        import pandas as pd
    except ImportError:
        return X
    return pd.DataFrame({name: X[name].to_numpy() for name in names})  # to_pandas would need pyarrow


def find_kind(column: Any, label: str) -> str:
    """What a column holds: numbers, categories, dates, durations or nothing; ValueError if none of these.

    True and false are numbers (1 and 0). Text is categorical, unless every cell is an ISO date.
    """
    if bool(find_missing(column).all()):
        return EMPTY
    if str(column.dtype) == "category":
        return CATEGORY
    if kind := {"i": NUMBER, "u": NUMBER, "f": NUMBER, "b": NUMBER, "M": DATE, "m": DURATION}.get(
        getattr(column.dtype, "kind", "O")
    ):
        return kind
    held = _infer(column)
    if held in _NUMBERS:
        return NUMBER
    if held in _DATES:
        return DATE
    if held in _DURATIONS:
        return DURATION
    if held == "string":
        return DATE if _has_iso_dates(column) else CATEGORY
    # Numbers among text, as from a sheet with a typo: a category each.
    simple = str | int | float | np.number
    if held.startswith("mixed") and all(isinstance(value, simple) for value in column.dropna()):
        return CATEGORY
    what = f"of type {column.dtype}" if column.dtype != object else f"of objects ({held})"
    raise ValueError(
        f"column {label} is {what}, which is neither numeric nor categorical nor a date. Turn it into one of "
        "these, or drop it."
    )


def find_missing(column: Any) -> Array:
    """Which cells have no value, (N,)."""
    if hasattr(column, "isna"):
        return np.asarray(column.isna(), dtype=bool)
    if column.dtype.kind in "iufbmM":
        missing: Array = np.isnat(column) if column.dtype.kind in "mM" else np.isnan(column)
        return missing
    return np.array([value is None or value != value for value in column], dtype=bool)


def warn_of_missing_in_r(values: Any, name: str, stacklevel: int) -> None:
    """Warn of whole numbers in a table, or in one column, that are R's sign for a missing one.

    ``name`` is that of the table; columns of a frame have their own.
    """
    if hasattr(values, "iloc") and values.ndim == 2:
        columns = [(f"column {str(label)!r}", values.iloc[:, j]) for j, label in enumerate(values.columns)]
    else:
        columns = [(name, values)]
    found = [
        label
        for label, column in columns
        if getattr(getattr(column, "dtype", None), "kind", "O") == "i" and bool((column == _NA_OF_R).any())
    ]
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        warnings.warn(
            f"{_NA_OF_R} in {', '.join(found[:3])}{more}: a missing whole number (NA) of R arrives in Python "
            "as this value, and counts as a number. In R, convert such columns by as.double() first; "
            "elsewhere, put NaN in its place.",
            stacklevel=stacklevel + 1,
        )


def read_numbers(column: Any, label: str) -> Array:
    """A numeric column as float64; ValueError for text, dates and infinite values."""
    kind = getattr(column.dtype, "kind", "O")
    if kind in "mM" or str(column.dtype) == "category":
        raise ValueError(
            f"column {label} was numeric during fitting but is of type {column.dtype} here; convert it to "
            "numbers in the same unit."
        )
    if isinstance(column.dtype, np.dtype) and kind in "iufb":
        values = np.array(column, dtype=np.float64)
    else:
        missing = find_missing(column)
        values = np.full(len(missing), np.nan)
        try:
            values[~missing] = np.asarray(column, dtype=object)[~missing]
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {label} was numeric during fitting but is not here: {error}.") from None
    if np.isinf(values).any():
        raise ValueError(f"column {label} has infinite values; replace them, or leave them empty.")
    return values


def read_days(column: Any, label: str, durations: bool) -> Array:
    """Dates as days since 1970-01-01, durations as days; a moment without a time zone is taken as UTC.

    >>> read_days(np.array(["1970-01-02", "1970-01-01T12:00"], dtype="M8[s]"), "'day'", durations=False)
    array([1. , 0.5])
    """
    kind = getattr(column.dtype, "kind", "O")
    missing = find_missing(column)
    if missing.all():
        return np.full(len(missing), np.nan)
    if kind in "iufb" or (kind in "mM" and (kind == "m") != durations):
        what = "durations" if durations else "dates"
        raise ValueError(
            f"column {label} had {what} during fitting but is of type {column.dtype} here; convert it to "
            f"{what}."
        )
    if isinstance(column, np.ndarray) and kind in "mM":
        days: Array = (column if durations else column - np.datetime64(0, "D")) / _DAY
        return days
    import pandas as pd  # only a frame brings other dates

    series = column if hasattr(column, "iloc") else pd.Series(column)
    if isinstance(series.dtype, pd.PeriodDtype):
        series = series.dt.to_timestamp()
    if durations:
        moments = pd.to_timedelta(series, errors="coerce")
    else:
        text = kind == "O" and _infer(series) == "string"
        moments = pd.to_datetime(series, utc=True, format="ISO8601" if text else None, errors="coerce")
        moments = moments - pd.Timestamp(0, tz="UTC")
    days = np.array(moments / pd.Timedelta(days=1), dtype=np.float64)
    wrong = np.flatnonzero(np.isnan(days) & ~missing)
    if len(wrong):
        what = "durations" if durations else "dates"
        raise ValueError(
            f"column {label} had {what} during fitting, but {str(series.iloc[wrong[0]])[:60]!r} is none. "
            f"Write {'5 days 12:00:00' if durations else '2020-01-31'}, or leave the cell empty."
        )
    return days


def read_texts(column: Any) -> tuple[Array, list[str]]:
    """A categorical column as places (N,) in a list of distinct texts, -1 where missing."""
    missing = find_missing(column)
    if hasattr(column, "factorize"):
        codes, values = column.factorize()
        values = values.tolist()
    else:
        found: dict[Any, int] = {}
        codes = np.full(len(column), -1)
        codes[~missing] = [found.setdefault(value, len(found)) for value in column[~missing]]
        values = list(found)
    if all(type(value) is str for value in values):
        return np.where(missing, -1, codes), values
    texts: dict[str, int] = {}
    # Values that differ in type only, such as 1 and 1.0, are one text.
    merged = np.array([texts.setdefault(_text(value), len(texts)) for value in values] + [-1])
    return np.where(missing, -1, merged[codes]), list(texts)


def look_like_dates(texts: Sequence[str]) -> bool:
    """Whether all texts look like dates in one of the many formats that are not ISO's.

    >>> look_like_dates(["31/01/2020", "1.2.2020 12:00"]), look_like_dates(["12-B"])
    (True, False)
    """
    return all(_OTHER_DATE.fullmatch(text) for text in texts)


def is_date(values: Any) -> bool:
    """Whether values are dates or durations, by their type or, among objects, by the first of them."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if kind in ("m", "M"):
        return True
    if kind == "O" and np.ndim(values) == 1:
        first = next((value for value in values if value is not None and value == value), None)
        return isinstance(first, date | timedelta | np.datetime64 | np.timedelta64)
    return False


def _infer(column: Any) -> str:
    """What pandas takes the values of a column to be, missing ones apart."""
    from pandas.api.types import infer_dtype  # type: ignore[import-untyped]  # a frame has brought it

    return str(infer_dtype(column, skipna=True))


def _has_iso_dates(column: Any) -> bool:
    """Whether every text is a date such as 2020-01-31, with or without a time."""
    cells: Sequence[str] = column.dropna().unique()
    if not all(_ISO_DATE.fullmatch(cell) for cell in cells):
        return False
    import pandas as pd

    try:
        pd.to_datetime(cells, utc=True, format="ISO8601")
    except ValueError:  # such as the 30th of February
        return False
    return True


def _text(value: Any) -> str:
    """A category, the same for 1, 1.0 and True, which turn into each other in arrays and files."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def find_words(y: Any) -> str | None:
    """The name of a target that holds text which is no number; None if none does."""
    frame = hasattr(y, "columns") and hasattr(y, "iloc")
    columns = [y.iloc[:, j] for j in range(y.shape[1])] if frame else [y]
    for column in columns:
        dtype = getattr(column, "dtype", None)
        words = str(dtype) in ("category", "str", "string") or getattr(dtype, "kind", None) in ("O", "U", "T")
        if not words or getattr(column, "ndim", 1) != 1:
            continue
        first = next((value for value in column if isinstance(value, str)), None)
        if first is not None and not _is_numeric(first):
            return repr(column.name) if isinstance(getattr(column, "name", None), str) else "y"
    return None


def _is_numeric(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def make_frame(columns: Mapping[str, Array], shape: tuple[int, int] | None = None) -> Any:
    """A frame of pandas; with a shape (S, N) its index counts draws and rows."""
    import pandas as pd

    index = (
        None
        if shape is None
        else pd.MultiIndex.from_product([range(n) for n in shape], names=["draw", "row"])
    )
    return pd.DataFrame(dict(columns), index=index)
