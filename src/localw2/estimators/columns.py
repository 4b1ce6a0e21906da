"""Tables with gaps and with columns of names, as matrices of numbers: by scikit-learn's own encoders.

A matrix of finite numbers stays as it is. Otherwise a missing number becomes the median of its column, with a
further column that says where it was missing, and a column of names (strings, or a pandas category) becomes
one column of 0 and 1 a name; rare names beyond ``MOST_NAMES`` share the zeros.
"""

from __future__ import annotations

import warnings
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
_NAMED = "OSUb"  # kinds of numpy's types, and what pandas' own come down to: names, or true and false


@final
@dataclass(frozen=True)
class Columns:
    """How a table becomes numbers: by ``encoder``.

    ``complete`` are the columns of numbers that had no gap, ``grouped`` those of names with rare ones.
    """

    encoder: ColumnTransformer
    complete: tuple[int, ...]
    grouped: tuple[int, ...]

    def encode(self, X: Any, names: list[str]) -> Array:
        """The matrix (N, q) of a table (N, p)."""
        for j in self.complete:
            if bool(_missing(_column(X, j)).any()):
                raise ValueError(
                    f"column {names[j]} has missing values, but had none when the model was fitted: nothing "
                    "is known of what they mean. Fill them in, or fit with rows that have such gaps."
                )
        named = _named(self.encoder)
        plain = _plain(X, named)
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

    def as_regressor(self) -> Pipeline:
        """The encoder as part of a regressor: such a thing has a safe way into a file."""
        return make_pipeline(self.encoder, DummyRegressor().fit([[0.0]], [0.0]))

    @classmethod
    def from_regressor(cls, pipeline: Any, complete: Any, grouped: Any) -> Columns:
        """The encoder from a file; ValueError if it is none."""
        encoder = pipeline.steps[0][1] if isinstance(pipeline, Pipeline) else None
        p = getattr(encoder, "n_features_in_", 0)
        known = isinstance(complete, list) and isinstance(grouped, list)
        known = known and all(type(j) is int and 0 <= j < p for j in [*complete, *grouped])
        if not isinstance(encoder, ColumnTransformer) or not known:
            raise ValueError("the encoder of its columns is damaged.")
        return cls(encoder, tuple(complete), tuple(grouped))


def read_table(estimator: Any, X: Any, y: Any) -> tuple[Array, Array, Columns | None]:
    """Validated numbers X (N, q) and y (N,) or (N, d) for a fit, and the columns if X had to be encoded."""
    if not _needs_encoding(X):
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
    if not hasattr(X, "iloc"):  # infinite numbers are refused as everywhere
        X = check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2)
    validate_data(estimator, X, skip_check_array=True)
    y = check_array(y, dtype=np.float64, ensure_2d=False, ensure_min_samples=2, input_name="y")
    check_consistent_length(X, y)
    names = column_names(estimator)
    kinds = [_kind(_column(X, j), names[j]) for j in range(X.shape[1])]
    numbers, named = ([j for j, kind in enumerate(kinds) if kind == wanted] for wanted in ("number", "name"))
    plain = _plain(X, named)
    frequent = [_frequent(plain[:, j]) for j in named]
    encoder = ColumnTransformer(
        [
            ("numbers", SimpleImputer(strategy="median", add_indicator=True), numbers),
            (
                "names",
                OneHotEncoder(categories=frequent, handle_unknown="ignore", sparse_output=False),
                named,
            ),
        ]
    ).fit(plain)
    gaps = [bool(_missing(_column(X, j)).any()) for j in range(X.shape[1])]
    grouped = [j for j, kept in zip(named, frequent, strict=True) if len(kept) == MOST_NAMES]
    columns = Columns(encoder, tuple(j for j in numbers if not gaps[j]), tuple(grouped))
    return columns.encode(X, names), y, columns


def read_rows(estimator: Any, X: Any, columns: Columns | None) -> Array:
    """Validated numbers (N, q) for a fitted estimator."""
    if columns is None:
        rows: Array = validate_data(estimator, X, dtype=np.float64, order="C", reset=False)
        return rows
    if not hasattr(X, "iloc"):
        # Names may be among them: only shape and size are looked at before the encoder does.
        X = check_array(X, dtype=None, ensure_all_finite=False)
    validate_data(estimator, X, reset=False, skip_check_array=True)
    return columns.encode(X, column_names(estimator))


def column_names(estimator: Any) -> list[str]:
    """What to call the columns in a message."""
    known = getattr(estimator, "feature_names_in_", None)
    return [str(j) for j in range(estimator.n_features_in_)] if known is None else [repr(n) for n in known]


def _needs_encoding(X: Any) -> bool:
    """Whether a table has names or gaps; of what is no table, scikit-learn's own checks tell."""
    if hasattr(X, "iloc"):  # a pandas frame
        return any(
            not _is_number(X.dtypes.iloc[j]) or bool(X.iloc[:, j].isna().any()) for j in range(X.shape[1])
        )
    array = X if isinstance(X, np.ndarray) else None
    if array is None and isinstance(X, list | tuple):
        try:
            array = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError):
            return False
    return array is not None and array.ndim == 2 and array.dtype.kind == "f" and bool(np.isnan(array).any())


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "iuf" and str(dtype) != "category"


def _kind(column: Any, name: str) -> str:
    if isinstance(column, np.ndarray) or _is_number(column.dtype):
        values = np.asarray(column, dtype=np.float64)
        if np.isinf(values).any():
            raise ValueError(f"column {name} has infinite values; replace them, or leave them empty.")
        if np.isnan(values).all():
            raise ValueError(f"column {name} has no values at all; drop it.")
        return "number"
    if str(column.dtype) == "category" or getattr(column.dtype, "kind", "O") in _NAMED:
        return "name"
    raise ValueError(
        f"column {name} is of type {column.dtype}, which is neither numbers nor names. "
        "Turn it into numbers (of dates: days since some day), or drop it."
    )


def _frequent(column: Any) -> Any:
    """The most frequent names of a column, in order; a gap is a name too."""
    names, counts = np.unique([v for v in column if isinstance(v, str)], return_counts=True)
    kept = sorted(names[np.argsort(-counts, kind="stable")[:MOST_NAMES]].tolist())
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


def _plain(X: Any, named: list[int]) -> Any:
    """A matrix that the encoders take, from a frame and from a list alike: names as text, gaps as nan."""
    if not named:
        return np.asarray(X, dtype=np.float64)
    matrix = np.empty(X.shape, dtype=object)
    for j in range(X.shape[1]):
        column = _column(X, j)
        gaps = np.asarray(_missing(column), dtype=bool)
        values = [str(v) for v in column] if j in named else np.asarray(column, dtype=np.float64)
        matrix[:, j] = values
        matrix[gaps, j] = np.nan
    return matrix
