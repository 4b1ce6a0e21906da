"""The tables of a fitted model as numbers x (N, p) and back, for pages in the table's own words."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array
from localw2.balls.norms import Norm, Weighted
from localw2.estimators.tables import read_rows
from localw2.judging.inputs import DAY, Input, describe_inputs, is_whole


@final
class Inputs:
    """The inputs of a fitted regressor, and its tables as numbers x (N, p) and back.

    ``names`` are other names for all columns of the table (``table_names``); those in ``left_out`` are not
    used, for the reasons given there. ``model`` is a copy of the regressor that takes the tables of
    ``decode``.
    """

    def __init__(self, model: Any, names: Sequence[str] | None = None) -> None:
        columns = getattr(model, "columns_", None) or getattr(getattr(model, "law_", None), "columns", None)
        n_features, known = int(model.n_features_in_), getattr(model, "feature_names_in_", None)
        called = _name_columns(names, known, n_features)
        self.table_names = called
        self._columns, self._n_features = columns, n_features
        self._used = list(range(n_features) if columns is None else columns.used)
        self.left_out = {} if columns is None else {called[j]: why for j, why in columns.dropped.items()}
        self.each = [Input(name, "number") for name in called]
        if columns is not None:
            self.each = describe_inputs(columns, called)
        self._durations = () if columns is None else columns.durations
        self._reader, self.model = model, copy.copy(model)
        self._labels: list[Any] | None = None
        if self._durations or any(each.kind != "number" for each in self.each):
            self._labels = list(range(n_features) if known is None else known)
        else:
            vars(self.model).pop("feature_names_in_", None)  # scikit-learn would warn of arrays without names

    def __len__(self) -> int:
        return len(self.each)

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return [each.name for each in self.each]

    def encode(self, X: Any) -> Array:
        """The numbers (N, p) of a table as the model takes it; its names and types are checked."""
        if getattr(X, "ndim", 2) == 1:  # one column
            X = np.asarray(X)[:, None]
        if self._columns is not None:
            return read_rows(self._reader, X, self._columns)
        rows = as_array(X, "X").astype(np.float64)
        if rows.ndim != 2 or rows.shape[1] != self._n_features:
            raise ValueError(
                f"X has shape {rows.shape}, but the model was fitted to {self._n_features} column(s); pass "
                "the same columns in the same order."
            )
        if hasattr(X, "columns"):
            self._reader.predict(X[:1])  # scikit-learn checks the names of the columns and their order
        return rows

    def decode(self, x: Array) -> Any:
        """A table that becomes the numbers x (N, p): an array, or a frame if categories or dates are used."""
        if self._labels is None:
            values = np.zeros((len(x), self._n_features))
            values[:, self._used] = x
            return values
        import pandas as pd

        # What stands in a column that is not used does not matter.
        table: dict[Any, Any] = dict.fromkeys(range(self._n_features), np.zeros(len(x)))
        for i, place in enumerate(self._used):
            table[place] = _restore(self.each[i], x[:, i], i in self._durations)
        return pd.DataFrame(table).set_axis(self._labels, axis=1)

    def embed(self, x: Array) -> Array:
        """Rows x (N, p) in the space in which the model measures distances, before its norm."""
        return x if self._columns is None else np.asarray(self._columns.expand(x))

    @property
    def has_norm(self) -> bool:
        """Whether the fit has a norm of its own, as that of a network has."""
        return isinstance(getattr(self.model, "norm_", None), Norm)

    def choose_norm(self, x: Array) -> Norm:
        """The norm of the fit or, if it has none, distances in standard deviations of these rows x (N, p)."""
        return self.model.norm_ if self.has_norm else Weighted.standardised(self.embed(x))

    def find_typical(self, x: Array | None, otherwise: Any = 0.0) -> Array:
        """A typical row (p,) of rows x (N, p): medians, and the most frequent categories.

        Without rows they are the medians of the training rows or, where these are not known (in files of
        version 0.1), ``otherwise``; of a categorical column the first category.
        """
        medians = np.full(len(self), np.nan) if self._columns is None else self._columns.medians
        numbers = [each.kind != "category" for each in self.each]
        typical: Array = np.where(np.isfinite(medians), medians, np.where(numbers, otherwise, 0.0))
        for j, column in enumerate(() if x is None else x.T):
            seen = column[np.isfinite(column)]
            if len(seen) and self.each[j].kind == "category":
                typical[j] = np.bincount(seen.astype(int)).argmax()
            elif len(seen):
                typical[j] = np.quantile(seen, 0.5, method="nearest" if is_whole(seen) else "linear")
        return typical


def _name_columns(given: Any, known: Any, count: int) -> list[str]:
    """The names of all columns of a table: those given, those known, or x0, x1 and so on."""
    names = given if given is not None else known
    if names is None:
        return ["x"] if count == 1 else [f"x{j}" for j in range(count)]
    names = [names] if isinstance(names, str) else [str(name) for name in names]
    if len(names) != count:
        raise ValueError(
            f"feature_names has {len(names)} name(s), but the model was fitted to {count} column(s); give "
            "one name for each."
        )
    return names


def _restore(each: Input, column: Array, is_duration: bool) -> Any:
    """A column of the table with these numbers (N,)."""
    import pandas as pd

    if each.kind == "category":
        codes = np.where(np.isfinite(column), column, -1).astype(np.int64)
        return pd.Categorical.from_codes(codes, list(each.categories))
    if each.kind == "number" and not is_duration:
        return column
    known = np.isfinite(column)
    seconds = np.where(known, column * DAY, 0).round().astype("m8[s]" if is_duration else "M8[s]")
    return np.where(known, seconds, np.array("NaT", seconds.dtype))
