"""Tables with gaps and with columns of names, as matrices of numbers: by scikit-learn's own encoders.

A matrix of finite numbers stays as it is. Otherwise a missing number becomes the median of its column, with a
further column that says where it was missing, and a column of names (strings, true and false, or a pandas
category) becomes one column of 0 and 1 a name; rare names beyond ``MOST_NAMES`` share the zeros.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from localw2._validation import Array

MOST_NAMES = 30  # columns of 0 and 1 that one column of names may become
# What pandas calls the values of a column of objects.
_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal"}
_NAMES = {"string", "boolean"}


@final
@dataclass(frozen=True)
class Columns:
    """How a table becomes numbers: by ``encoder``.

    ``complete`` are the columns that had no gap, ``grouped`` those of names with rare ones.
    """

    encoder: ColumnTransformer
    complete: tuple[int, ...]
    grouped: tuple[int, ...]

    def encode(self, X: Any, names: list[str]) -> Array:
        """The matrix (N, q) of a table (N, p)."""
        _refuse_gaps(X, self.complete, names)
        named = _named(self.encoder)
        plain = _plain(X, named, names)
        known = self.encoder.named_transformers_["names"].categories_ if named else []
        for j, kept in zip(named, known, strict=True):
            new = sorted({v for v in plain[:, j] if isinstance(v, str)} - set(kept))
            if new and j not in self.grouped:
                warnings.warn(
                    f"column {names[j]} has names that the fit has not seen, such as {new[0]!r}: of these "
                    "rows the answer ignores it.",
                    stacklevel=5,
                )
        matrix: Array = np.ascontiguousarray(self.encoder.transform(plain), dtype=np.float64)
        return matrix

    @property
    def width(self) -> int:
        """How many columns of numbers a table becomes."""
        return len(self.encoder.get_feature_names_out([f"x{j}" for j in range(self.encoder.n_features_in_)]))

    def as_regressor(self) -> Pipeline:
        """The encoder as part of a regressor: such a thing has a safe way into a file."""
        return make_pipeline(self.encoder, DummyRegressor().fit([[0.0]], [0.0]))

    @classmethod
    def from_regressor(cls, pipeline: Any, p: int, complete: Any, grouped: Any) -> Columns:
        """The encoder of p columns from a file; ValueError if it is none."""
        encoder = pipeline.steps[0][1] if isinstance(pipeline, Pipeline) else None
        known = getattr(encoder, "n_features_in_", None) == p
        known = known and isinstance(complete, list) and isinstance(grouped, list)
        known = known and all(type(j) is int and 0 <= j < p for j in [*complete, *grouped])
        known = known and isinstance(encoder, ColumnTransformer) and set(grouped) <= set(_named(encoder))
        parts = getattr(encoder, "named_transformers_", {})
        if not known or not isinstance(parts.get("numbers"), SimpleImputer | str):
            raise ValueError("the encoder of its columns is damaged.")
        if _named(encoder) and not isinstance(parts.get("names"), OneHotEncoder):
            raise ValueError("the encoder of its columns is damaged.")
        return cls(encoder, tuple(complete), tuple(grouped))


def read_table(estimator: Any, X: Any, y: Any) -> tuple[Array, Array, Columns | None]:
    """Validated numbers X (N, q) and y (N,) or (N, d) for a fit, and the columns if X had to be encoded."""
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    y = _without_mask(y)
    _refuse_dates(y, "y")
    X = _without_mask(X)
    table = _table(X)
    if not _needs_encoding(table):
        X, y = validate_data(
            estimator,
            X,
            y,
            dtype=np.float64,
            order="C",
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=2,
        )
        return X, y, None
    if not _is_frame(table):  # infinite numbers are refused as everywhere
        table = check_array(table, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2)
    validate_data(estimator, X, skip_check_array=True)
    y = check_array(y, dtype=np.float64, ensure_2d=False, ensure_min_samples=2, input_name="y")
    check_consistent_length(table, y)
    names = column_names(estimator)
    kinds = [_kind(_column(table, j), names[j]) for j in range(table.shape[1])]
    numbers, named = ([j for j, kind in enumerate(kinds) if kind == wanted] for wanted in ("number", "name"))
    plain = _plain(table, named, names)
    counts = [_counts(plain[:, j]) for j in named]
    encoder = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median", add_indicator=True), numbers),
            (
                "names",
                OneHotEncoder(
                    categories=[_kept(plain[:, j], found) for j, found in zip(named, counts, strict=True)],
                    handle_unknown="ignore",
                    sparse_output=False,
                ),
                named,
            ),
        ]
    ).fit(plain)
    complete = [j for j in range(table.shape[1]) if not bool(_missing(_column(table, j)).any())]
    grouped = [j for j, found in zip(named, counts, strict=True) if len(found) > MOST_NAMES]
    columns = Columns(encoder, tuple(complete), tuple(grouped))
    return columns.encode(table, names), y, columns


def read_rows(estimator: Any, X: Any, columns: Columns | None) -> Array:
    """Validated numbers (N, q) for a fitted estimator."""
    X = _without_mask(X)
    if columns is None:
        table = _table(X)
        if _needs_encoding(table) and table.shape[1:] == (estimator.n_features_in_,):
            _refuse_gaps(table, range(table.shape[1]), column_names(estimator))
        rows: Array = validate_data(estimator, X, dtype=np.float64, order="C", reset=False)
        return rows
    validate_data(estimator, X, reset=False, skip_check_array=True)
    if not _is_frame(X):
        # Names may be among them: only shape and size are looked at before the encoder does.
        X = check_array(X, dtype=None, ensure_all_finite=False)
    return columns.encode(X, column_names(estimator))


def column_names(estimator: Any) -> list[str]:
    """What to call the columns in a message."""
    known = getattr(estimator, "feature_names_in_", None)
    return [str(j) for j in range(estimator.n_features_in_)] if known is None else [repr(n) for n in known]


def encoded_names(estimator: Any, given: Any = None) -> list[str]:
    """What to call the columns that an estimator's table became; ``given`` are other names of the table's."""
    known = getattr(estimator, "feature_names_in_", None) if given is None else given
    if known is not None and len(known) != estimator.n_features_in_:
        raise ValueError(f"names has {len(known)} entries; give one for each column of X.")
    called = [f"x{j}" for j in range(estimator.n_features_in_)] if known is None else [str(n) for n in known]
    names = estimator.columns_.encoder.get_feature_names_out(called)
    return [str(name).partition("__")[2].replace("missingindicator_", "no ") for name in names]


def on_numbers(estimator: Any, X: Any, names: Any = None) -> tuple[Any, Any, Any]:
    """An estimator that takes the numbers which a table becomes, those of X (if any), and their names.

    For what looks at a model column by column. Without names and gaps in its table all stays as it came.
    """
    if getattr(estimator, "columns_", None) is None:
        return estimator, X, names
    view = copy.copy(estimator)
    view.columns_, view.n_features_in_ = None, estimator.columns_.width
    vars(view).pop("feature_names_in_", None)
    rows = None if X is None else estimator._validated(X)
    return view, rows, encoded_names(estimator, names)


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2


def _without_mask(values: Any) -> Any:
    """A masked array with its gaps as nan; anything else as it is."""
    return np.ma.filled(values.astype(np.float64), np.nan) if np.ma.isMaskedArray(values) else values


def _table(X: Any) -> Any:
    """A pandas frame, or an array of whatever else has rows; None where scikit-learn will tell what it is."""
    if _is_frame(X):
        for name, dtype in X.dtypes.items():
            _refuse_dates(dtype, f"column {name!r}")
        return X
    if hasattr(X, "toarray"):  # a sparse matrix
        return None
    try:
        array = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
    except (TypeError, ValueError):
        return None
    if array.ndim != 2:
        return None
    _refuse_dates(array, "X")
    if array.dtype.kind != "O":
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        return array


def _refuse_dates(values: Any, name: str) -> None:
    dtype = getattr(values, "dtype", values)
    if getattr(dtype, "kind", None) in ("m", "M"):
        raise ValueError(
            f"{name} is of type {dtype}, whose unit would decide what comes out. Turn it into numbers in a "
            "unit of your choice (of dates: days since some day), or drop it."
        )


def _needs_encoding(table: Any) -> bool:
    """Whether a table has names or gaps."""
    if table is None:
        return False
    if _is_frame(table):
        return any(
            not _is_number(table.dtypes.iloc[j]) or bool(table.iloc[:, j].isna().any())
            for j in range(table.shape[1])
        )
    word = next((v for v in table.flat if isinstance(v, str)), None) if table.dtype.kind in "OUS" else None
    if word is not None:
        raise ValueError(
            f"could not convert X to numbers: it holds {word!r}. Names need a pandas frame, whose columns "
            "say which are names."
        )
    return table.dtype.kind == "f" and bool(np.isnan(table).any())


def _refuse_gaps(table: Any, complete: Iterable[int], names: list[str]) -> None:
    """Raise for the first of these columns that has a gap: none had when the model was fitted."""
    for j in complete:
        if bool(_missing(_column(table, j)).any()):
            raise ValueError(
                f"column {names[j]} has missing values (NaN), but had none when the model was fitted: "
                "nothing is known of what they mean. Fill them in, or fit with rows that have such gaps."
            )


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "iuf" and str(dtype) != "category"


def _kind(column: Any, name: str) -> str:
    """Whether a column is one of numbers or of names; ValueError if of neither."""
    if bool(_missing(column).all()):
        raise ValueError(f"column {name} has no values at all; drop it.")
    if isinstance(column, np.ndarray) or _is_number(column.dtype) or _says(column) in _NUMBERS:
        if np.isinf(_floats(column, name)).any():
            raise ValueError(f"column {name} has infinite values; replace them, or leave them empty.")
        return "number"
    if str(column.dtype) == "category" or _says(column) in _NAMES:
        return "name"
    what = f"of type {column.dtype}" if column.dtype != object else f"of objects ({_says(column)})"
    raise ValueError(
        f"column {name} is {what}, which is neither numbers nor names. "
        "Turn it into numbers (of dates: days since some day), or drop it."
    )


def _says(column: Any) -> str:
    """What pandas thinks the values of a column are, gaps apart."""
    from pandas.api.types import infer_dtype  # type: ignore[import-untyped]  # a frame has brought it

    return str(infer_dtype(column, skipna=True))


def _floats(column: Any, name: str) -> Array:
    """A column of numbers, gaps as nan."""
    _refuse_dates(column, f"column {name}")
    gaps = np.asarray(_missing(column), dtype=bool)
    values = np.full(len(gaps), np.nan)
    try:
        values[~gaps] = np.asarray(column, dtype=object)[~gaps]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {name} was one of numbers when the model was fitted, and is none here: {error}."
        ) from None
    return values


def _counts(column: Any) -> dict[str, int]:
    """How often each name occurs in a column of text and gaps."""
    names, counts = np.unique([v for v in column if isinstance(v, str)], return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _kept(column: Any, counts: dict[str, int]) -> Any:
    """The most frequent names of a column, in order; a gap is a name too."""
    kept = sorted(sorted(counts, key=lambda name: -counts[name])[:MOST_NAMES])
    gap = [np.nan] if any(not isinstance(v, str) for v in column) else []
    return np.array([*kept, *gap], dtype=object)


def _named(encoder: ColumnTransformer) -> list[int]:
    return [int(j) for name, _, columns in encoder.transformers for j in columns if name == "names"]


def _column(X: Any, j: int) -> Any:
    return X.iloc[:, j] if hasattr(X, "iloc") else X[:, j]


def _missing(column: Any) -> Any:
    if hasattr(column, "isna"):
        return column.isna()
    return np.array([value is None or value != value for value in column])


def _text(value: Any) -> str:
    """A name, the same for 1, 1.0 and True: these come back from an array, or from a file, as each other."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def _plain(X: Any, named: list[int], names: list[str]) -> Any:
    """A matrix that the encoders take, from a frame and from a list alike: names as text, gaps as nan."""
    matrix = np.empty(X.shape, dtype=object if named else np.float64)
    for j in range(X.shape[1]):
        column = _column(X, j)
        if j not in named:
            matrix[:, j] = _floats(column, names[j])
            continue
        matrix[:, j] = [_text(v) for v in column]
        matrix[np.asarray(_missing(column), dtype=bool), j] = np.nan
    return matrix
