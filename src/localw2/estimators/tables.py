"""Tables with categorical columns and missing values, as matrices of numbers: by scikit-learn's encoders.

A matrix of finite numbers stays as it is. Otherwise a missing number becomes the median of its column, with
one more column that says where it was missing, and a categorical column (strings, true and false, or pandas'
category type) becomes one indicator column per category; rare categories beyond ``MOST_CATEGORIES`` share
the zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from localw2._validation import Array

MOST_CATEGORIES = 30  # indicator columns that one categorical column may become
# What pandas calls the values of a column of objects.
_NUMBERS = {"integer", "floating", "mixed-integer-float", "decimal"}
_CATEGORIES = {"string", "boolean"}
_ENCODED = "names"  # the part of the encoder that holds the categories; files know it by this word


@final
@dataclass(frozen=True, eq=False)
class Columns:
    """How the ``n_features`` columns of a table become numbers: by ``encoder``, or as they are without one.

    ``names`` are those of a frame's columns. ``complete`` columns had no missing value, and ``grouped`` ones
    have rare categories that share the zeros.
    """

    n_features: int
    names: tuple[str, ...] | None = None
    encoder: ColumnTransformer | None = None
    complete: tuple[int, ...] = ()
    grouped: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """How many columns of numbers the table becomes."""
        return self.n_features if self.encoder is None else len(self.encoded_names())

    @property
    def labels(self) -> list[str]:
        """What to call the columns in a message."""
        return (
            [str(j) for j in range(self.n_features)] if self.names is None else [repr(n) for n in self.names]
        )

    @property
    def categorical(self) -> list[int]:
        """The numbers of the categorical columns."""
        return [] if self.encoder is None else _categorical(self.encoder)

    def encode(self, X: Any) -> Array:
        """The matrix (N, q) of a frame or an array (N, p) that has these columns."""
        assert self.encoder is not None
        _refuse_missing(X, self.complete, self.labels)
        categorical = _categorical(self.encoder)
        plain = _plain(X, categorical, self.labels)
        known = self.encoder.named_transformers_[_ENCODED].categories_ if categorical else []
        for j, kept in zip(categorical, known, strict=True):
            new = sorted({v for v in plain[:, j] if isinstance(v, str)} - set(kept))
            if new and j not in self.grouped:
                warnings.warn(
                    f"column {self.labels[j]} has categories that were not in the training data, such as "
                    f"{new[0]!r}; predictions for these rows ignore this column.",
                    stacklevel=5,
                )
        matrix: Array = np.ascontiguousarray(self.encoder.transform(plain), dtype=np.float64)
        return matrix

    def encoded_names(self, names: Any = None) -> list[str]:
        """What to call the columns of numbers; ``names`` are other names for the columns of the table."""
        known = self.names if names is None else names
        if known is not None and len(known) != self.n_features:
            raise ValueError(f"names has {len(known)} entries; give one for each column of X.")
        called = [f"x{j}" for j in range(self.n_features)] if known is None else [str(n) for n in known]
        if self.encoder is None:
            return called
        found = self.encoder.get_feature_names_out(called)
        return [str(name).partition("__")[2].replace("missingindicator_", "missing ") for name in found]

    @classmethod
    def noted(cls, reader: BaseEstimator) -> Columns:
        """The columns that scikit-learn has noted on an estimator."""
        names = getattr(reader, "feature_names_in_", None)
        return cls(reader.n_features_in_, None if names is None else tuple(map(str, names)))

    def as_regressor(self) -> Pipeline:
        """The encoder as part of a regressor, for which there is a safe way into a file."""
        return make_pipeline(self.encoder, DummyRegressor().fit([[0.0]], [0.0]))

    def plain(self) -> list[list[int]]:
        """What a file holds beside the encoder."""
        return [list(self.complete), list(self.grouped)]

    @classmethod
    def from_stored(cls, pipeline: Any, p: int, names: Any, plain: Any) -> Columns:
        """The p columns that a file describes; ValueError if it is damaged."""
        if names is not None:
            if not isinstance(names, list) or len(names) != p or not all(isinstance(n, str) for n in names):
                raise ValueError(f"feature_names={str(names)[:80]} is not a list of {p} names.")
            names = tuple(names)
        if pipeline is None:
            return cls(p, names)
        complete, grouped = plain
        encoder = pipeline.steps[0][1] if isinstance(pipeline, Pipeline) else None
        known = getattr(encoder, "n_features_in_", None) == p
        known = known and isinstance(complete, list) and isinstance(grouped, list)
        known = known and all(type(j) is int and 0 <= j < p for j in [*complete, *grouped])
        known = (
            known and isinstance(encoder, ColumnTransformer) and set(grouped) <= set(_categorical(encoder))
        )
        parts = getattr(encoder, "named_transformers_", {})
        known = known and isinstance(parts.get("numbers"), SimpleImputer | str)
        if not known or (_categorical(encoder) and not isinstance(parts.get(_ENCODED), OneHotEncoder)):
            raise ValueError("the encoder of its columns is damaged.")
        return cls(p, names, encoder, tuple(complete), tuple(grouped))


def read_table(reader: BaseEstimator, X: Any, y: Any) -> tuple[Array, Array, Columns]:
    """Checked numbers x (N, q) and y (N,) or (N, d) for a fit, and how x came from the columns of X.

    scikit-learn notes the columns of X on ``reader``, and names it in messages.
    """
    if y is None:
        raise ValueError(f"{type(reader).__name__} requires y to be passed, but the target y is None.")
    y = _fill_mask(y)
    _refuse_dates(y, "y")
    X = _fill_mask(X)
    table = _as_table(X)
    if not _needs_encoding(table):
        X, y = validate_data(
            reader,
            X,
            y,
            dtype=np.float64,
            order="C",
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=2,
        )
        return X, y, Columns.noted(reader)
    if not _is_frame(table):  # infinite numbers are refused as everywhere
        table = check_array(table, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2)
    validate_data(reader, X, skip_check_array=True)
    y = check_array(y, dtype=np.float64, ensure_2d=False, ensure_min_samples=2, input_name="y")
    check_consistent_length(table, y)
    columns = _learn_columns(table, Columns.noted(reader))
    return columns.encode(table), y, columns


def read_rows(reader: BaseEstimator, X: Any, columns: Columns) -> Array:
    """Checked numbers (N, q) for a fitted estimator, on which scikit-learn has noted its columns."""
    X = _fill_mask(X)
    if columns.encoder is None:
        table = _as_table(X)
        if _needs_encoding(table) and table.shape[1:] == (columns.n_features,):
            _refuse_missing(table, range(table.shape[1]), columns.labels)
        rows: Array = validate_data(reader, X, dtype=np.float64, order="C", reset=False)
        return rows
    validate_data(reader, X, reset=False, skip_check_array=True)
    if not _is_frame(X):
        # Categories may be among them: only shape and size are checked before the encoder takes over.
        X = check_array(X, dtype=None, ensure_all_finite=False)
    return columns.encode(X)


def on_numbers(estimator: Any, X: Any, names: Any = None) -> tuple[Any, Any, Any]:
    """An estimator that takes the numbers which a table becomes, those of X (if any), and their names.

    For tools that look at a model column by column. An estimator of plain numbers stays as it is.
    """
    columns = getattr(estimator, "columns_", None)
    if columns is None:
        return estimator, X, names
    return estimator.on_numbers(), None if X is None else estimator.encode(X), columns.encoded_names(names)


def _learn_columns(table: Any, columns: Columns) -> Columns:
    """The columns of a table with an encoder that suits them."""
    labels = columns.labels
    kinds = [_kind(_column(table, j), labels[j]) for j in range(table.shape[1])]
    numbers = [j for j, kind in enumerate(kinds) if kind == "number"]
    categorical = [j for j, kind in enumerate(kinds) if kind == "category"]
    plain = _plain(table, categorical, labels)
    counts = [_counts(plain[:, j]) for j in categorical]
    kept = [_kept(plain[:, j], found) for j, found in zip(categorical, counts, strict=True)]
    one_hot = OneHotEncoder(categories=kept, handle_unknown="ignore", sparse_output=False)
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    encoder = ColumnTransformer([("numbers", imputer, numbers), (_ENCODED, one_hot, categorical)]).fit(plain)
    complete = [j for j in range(table.shape[1]) if not bool(_missing(_column(table, j)).any())]
    grouped = [j for j, found in zip(categorical, counts, strict=True) if len(found) > MOST_CATEGORIES]
    return Columns(columns.n_features, columns.names, encoder, tuple(complete), tuple(grouped))


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2


def _fill_mask(values: Any) -> Any:
    """A masked array with NaN where it is masked; anything else as it is."""
    return np.ma.filled(values.astype(np.float64), np.nan) if np.ma.isMaskedArray(values) else values


def _as_table(X: Any) -> Any:
    """A pandas frame, or an array of anything else with rows; None where scikit-learn will say what it is."""
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
            f"{name} is of type {dtype}, whose unit would decide the result. Turn it into numbers in a unit "
            "of your choice (dates: days since some day), or drop it."
        )


def _needs_encoding(table: Any) -> bool:
    """Whether a table has categorical columns or missing values."""
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
            f"could not convert X to numbers: it holds {word!r}. Give categorical columns in a pandas frame, "
            "whose columns have types."
        )
    return table.dtype.kind == "f" and bool(np.isnan(table).any())


def _refuse_missing(table: Any, complete: Iterable[int], labels: list[str]) -> None:
    """Raise for the first of these columns with a missing value: none had one during fitting."""
    for j in complete:
        if bool(_missing(_column(table, j)).any()):
            raise ValueError(
                f"column {labels[j]} has missing values (NaN) but had none during fitting, so nothing is "
                "known of what they mean. Fill them in, or fit with rows in which they are missing too."
            )


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "iuf" and str(dtype) != "category"


def _kind(column: Any, name: str) -> str:
    """Whether a column is numeric or categorical; ValueError if it is neither."""
    if bool(_missing(column).all()):
        raise ValueError(f"column {name} has no values; drop it.")
    if isinstance(column, np.ndarray) or _is_number(column.dtype) or _says(column) in _NUMBERS:
        if np.isinf(_floats(column, name)).any():
            raise ValueError(f"column {name} has infinite values; replace them, or leave them empty.")
        return "number"
    if str(column.dtype) == "category" or _says(column) in _CATEGORIES:
        return "category"
    what = f"of type {column.dtype}" if column.dtype != object else f"of objects ({_says(column)})"
    raise ValueError(
        f"column {name} is {what}, which is neither numeric nor categorical. "
        "Turn it into numbers (dates: days since some day), or drop it."
    )


def _says(column: Any) -> str:
    """What pandas takes the values of a column to be, missing ones apart."""
    from pandas.api.types import infer_dtype  # type: ignore[import-untyped]  # a frame has brought it

    return str(infer_dtype(column, skipna=True))


def _floats(column: Any, name: str) -> Array:
    """A numeric column, with NaN where values are missing."""
    _refuse_dates(column, f"column {name}")
    missing = np.asarray(_missing(column), dtype=bool)
    values = np.full(len(missing), np.nan)
    try:
        values[~missing] = np.asarray(column, dtype=object)[~missing]
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name} was numeric during fitting but is not here: {error}.") from None
    return values


def _counts(column: Any) -> dict[str, int]:
    """How often each category occurs in a column of text and missing values."""
    found, counts = np.unique([v for v in column if isinstance(v, str)], return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _kept(column: Any, counts: dict[str, int]) -> Any:
    """The most frequent categories of a column, in order; a missing value is a category too."""
    kept = sorted(sorted(counts, key=lambda category: -counts[category])[:MOST_CATEGORIES])
    missing = [np.nan] if any(not isinstance(v, str) for v in column) else []
    return np.array([*kept, *missing], dtype=object)


def _categorical(encoder: ColumnTransformer) -> list[int]:
    return [int(j) for name, _, columns in encoder.transformers for j in columns if name == _ENCODED]


def _column(X: Any, j: int) -> Any:
    return X.iloc[:, j] if hasattr(X, "iloc") else X[:, j]


def _missing(column: Any) -> Any:
    if hasattr(column, "isna"):
        return column.isna()
    return np.array([value is None or value != value for value in column])


def _text(value: Any) -> str:
    """A category, the same for 1, 1.0 and True, which turn into each other in arrays and files."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def _plain(X: Any, categorical: list[int], labels: list[str]) -> Any:
    """A matrix for the encoders, from a frame or an array: categories as text, missing values as NaN."""
    matrix = np.empty(X.shape, dtype=object if categorical else np.float64)
    for j in range(X.shape[1]):
        column = _column(X, j)
        if j not in categorical:
            matrix[:, j] = _floats(column, labels[j])
            continue
        matrix[:, j] = [_text(v) for v in column]
        matrix[np.asarray(_missing(column), dtype=bool), j] = np.nan
    return matrix
