"""Which columns drive the distribution of y, and how: permutation importance and partial dependence of a law.

Both are scikit-learn's (``sklearn.inspection``), asked about the whole law instead of the mean alone. They
need nothing but draws, so that any sampler can be explained. They say what the *model* uses, not what causes
y.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import partial_dependence, permutation_importance

from localw2 import plots
from localw2._validation import Array, as_array, as_rows, brief, check_count, check_number, seed_from
from localw2._wording import suggest
from localw2.metrics import crps_scorer
from localw2.models.sampler import SamplerDraws

MOST_POINTS = 20  # values of a column at which a dependence is measured
MOST_CATEGORIES = 10  # of a dependence, the most frequent ones
ENDS = (0.05, 0.95)  # of a column, in quantiles: beyond them there are few rows to learn from


@final
@dataclass(frozen=True, eq=False, repr=False)
class ColumnImportance:
    """How much worse a law and its mean predict if a column is shuffled, (p, n_repeats) each.

    ``law`` is the increase of the mean CRPS in standard deviations of y, ``mean`` that of the squared error
    of the mean in variances of y, both averaged over outputs; ``crps`` and ``error`` are what they increase
    from. About 0, or slightly below, means that the model does not need the column.
    """

    names: tuple[str, ...]
    law: Array
    mean: Array
    crps: float
    error: float
    n_rows: int

    @property
    def order(self) -> Array:
        """The columns, from the one that matters most for the law."""
        return np.argsort(-self.law.mean(1), kind="stable")

    def plot(self, axes: Any = None) -> Any:
        """Draw both importances by column; returns the two Axes."""
        return plots.importance(self.law, self.mean, self.names, axes)

    def __repr__(self) -> str:
        shown = [f"{self.names[j]} {self.law[j].mean():.3g}" for j in self.order[:5]]
        more = ", ..." if len(self.names) > 5 else ""
        return f"ColumnImportance({self.n_rows} rows; law: {', '.join(shown)}{more})"


def column_importance(
    X: Any,
    y: Any,
    model: Any,
    *,
    n_repeats: int = 5,
    max_rows: int = 1000,
    n_samples: int = 100,
    random_state: Any = None,
) -> ColumnImportance:
    r"""Which columns matter for the distribution of y: the increase of the CRPS if one is shuffled.

    .. math:: \frac1{\mathrm{SD}(y)} \big( \overline{\mathrm{CRPS}}(\text{column } j \text{ shuffled})
              - \overline{\mathrm{CRPS}} \big)

    The CRPS sees the whole law: a column that changes the spread alone has an importance here and none for
    the mean, whose squared error is measured beside it. It is ``sklearn.inspection.permutation_importance``
    with ``metrics.crps_scorer``, on at most ``max_rows`` random rows, which should be held-out ones; each
    column is shuffled ``n_repeats`` times, and each row scored by ``n_samples`` draws. Columns that say the
    same share their importance: shuffling one of them leaves the other.

    ``X`` is a table as ``model`` takes it, also with categories and missing values; ``y`` is (N,) or (N, d).
    ``model`` is a fitted estimator or any other sampler that ``diagnose`` takes.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(0.5, 2, size=(400, 2))
    >>> y = x[:, 0] + x[:, 1] * rng.normal(size=400)
    >>> def sampler(x): return x[:, 0] + x[:, 1] * rng.normal(size=len(x))
    >>> found = column_importance(x, y, sampler, random_state=0)
    >>> bool(found.law[1].mean() > 0.01), bool(abs(found.mean[1].mean()) < 0.05)
    (True, True)
    """
    table, outputs = _as_table(X), as_array(y, "y").astype(np.float64)
    if outputs.ndim not in (1, 2) or len(outputs) != len(table):
        raise ValueError(f"X has {len(table)} rows and y has shape {outputs.shape}; they must be pairs.")
    if len(table) < 2:
        raise ValueError("X has one row, which cannot be shuffled; give at least two, better a hundred.")
    n_repeats = check_count(n_repeats, "n_repeats", 1)
    n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
    rng = np.random.default_rng(seed_from(random_state))
    rows = _choose_rows(len(table), check_count(max_rows, "max_rows", 2), rng)
    scale = outputs.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    table, outputs = _take(table, rows), (outputs / scale)[rows]
    drawn = _Quantity(model, ("mean",), scale, outputs.shape[1:], n_samples)
    found = permutation_importance(
        drawn,
        table,
        outputs,
        scoring={"law": partial(crps_scorer, n_samples=n_samples), "mean": _score_mean},
        n_repeats=n_repeats,
        random_state=int(rng.integers(2**31)),
    )
    law, mean = found["law"].importances, found["mean"].importances
    start = crps_scorer(drawn, table, outputs, n_samples=n_samples)
    return ColumnImportance(
        _list_names(X, table.shape[1]), law, mean, -start, -_score_mean(drawn, table, outputs), len(rows)
    )


@final
@dataclass(frozen=True, eq=False, repr=False)
class ColumnDependence:
    """Quantities of a law at some values of a column, averaged over the rows.

    ``grid`` (G,) are values of the column, the last of them missing if some are; ``values`` (len(of), G) are
    the quantities ``of``: levels of quantiles, "mean", "spread" (SD). ``seen`` are the values of the rows.
    """

    name: str
    grid: Array
    of: tuple[float | str, ...]
    values: Array
    seen: Array
    n_rows: int

    def plot(self, axes: Any = None) -> Any:
        """Draw the quantities along the column; returns one or two Axes, the second for the spread."""
        return plots.dependence(self.grid, self.values, self.of, self.name, self.seen, axes=axes)

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.of))
        return f"ColumnDependence({shown} at {len(self.grid)} values of {self.name}, {self.n_rows} rows)"


def column_dependence(
    X: Any,
    model: Any,
    column: Any,
    *,
    of: Any = (0.05, 0.5, 0.95, "spread"),
    output: int = 0,
    max_rows: int = 200,
    n_samples: int = 200,
    random_state: Any = None,
) -> ColumnDependence:
    r"""How the law of y changes along a column: the partial dependence of quantiles and of the spread.

    .. math:: \frac1N \sum_i Q(x_i \text{ with column } j \text{ set to } v)

    Q is a quantity of the law at a row: a quantile (``of=0.9``), "mean", "spread" (the standard deviation),
    or a list of these. The other columns keep the values of at most ``max_rows`` random rows. ``column`` is a
    name or a number; ``output`` chooses one of several outputs. Quantities come from ``n_samples`` draws.

    Numbers take 20 values from the 5 to the 95 % quantile of the column, by
    ``sklearn.inspection.partial_dependence``. What that cannot do is done here: whole numbers and dates take
    values that occur, categories their most frequent ones, and where some are missing, that is a value too.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(0.5, 2, size=(400, 2))
    >>> def sampler(x): return x[:, 0] + x[:, 1] * rng.normal(size=len(x))
    >>> found = column_dependence(x, sampler, column=1, of="spread", random_state=0)
    >>> bool(abs(found.values[0] / found.grid - 1).max() < 0.1)
    True
    """
    table = _as_table(X)
    j, name = _find_column(X, column, table.shape[1])
    kinds = _check_quantities(of)
    n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
    output = check_count(output, "output", 0)
    rng = np.random.default_rng(seed_from(random_state))
    rows = _choose_rows(len(table), check_count(max_rows, "max_rows", 1), rng)
    few = _take(table, rows)
    quantity = _Quantity(model, kinds, 1.0, _find_shape(model, few, output), n_samples, output)
    cells, kind = _read_cells(table, j)
    if kind == "float" and not np.isnan(cells).any() and np.ptp(np.quantile(cells[rows], ENDS)) > 0:
        found = partial_dependence(
            quantity, few, [j], kind="average", percentiles=ENDS, grid_resolution=MOST_POINTS
        )
        grid, values = found["grid_values"][0], found["average"].reshape(len(kinds), -1)
    else:
        places = _choose_places(cells, kind)
        grid = cells[places]
        averages = [quantity.predict(_fill(few, table, j, place)).mean(0) for place in places]
        values = np.array(averages).reshape(len(places), len(kinds)).T
    return ColumnDependence(name, np.asarray(grid), kinds, values, cells[rows], len(rows))


class _Quantity(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A sampler as a regressor whose ``predict`` gives quantities of its law, from draws of a fixed seed."""

    def __init__(
        self,
        model: Any,
        of: Any,
        scale: Any,
        shape: tuple[int, ...],
        n_samples: int,
        output: int | None = None,
    ) -> None:
        self.model = model
        self.of = of
        self.scale = scale
        self.shape = shape
        self.n_samples = n_samples
        self.output = output

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any) -> _Quantity:
        """Nothing: the model is fitted."""
        return self

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draws in units of the scale."""
        draws = SamplerDraws.of(self.model, X, (len(X), *self.shape))
        found: Array = draws.many(n_samples, np.random.default_rng(random_state)) / self.scale
        return found

    def predict(self, X: Any) -> Array:
        """The quantities (N, len(of)) of one output; of all outputs the mean, in the shape of y."""
        draws = self.sample(X, self.n_samples, 0)
        if self.output is None:
            mean: Array = draws.mean(0)
            return mean
        draws = draws.reshape(len(draws), len(X), -1)[..., self.output]
        return np.column_stack([_measure(kind)(draws) for kind in self.of])


def _measure(kind: float | str) -> Callable[[Array], Array]:
    """The quantity (N,) of draws (S, N)."""
    if kind == "mean":
        return lambda draws: np.asarray(draws.mean(0))
    if kind == "spread":
        return lambda draws: np.asarray(draws.std(0, ddof=1))
    return lambda draws: np.asarray(np.quantile(draws, float(kind), axis=0))


def _score_mean(estimator: _Quantity, X: Any, y: Array) -> float:
    return -float(((estimator.predict(X) - y) ** 2).mean())


def _check_quantities(of: Any) -> tuple[float | str, ...]:
    words = "the level of a quantile, such as 0.9, or 'mean' or 'spread', or a list of these"
    kinds = tuple(of) if isinstance(of, Sequence | np.ndarray) and not isinstance(of, str) else (of,)
    for kind in kinds:
        if not (isinstance(kind, str) and kind in ("mean", "spread")):
            check_number(kind, "of", lambda v: 0 < v < 1, words)
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f"of={brief(of)} must be {words}, each once.")
    return tuple(kind if isinstance(kind, str) else float(kind) for kind in kinds)


# --- tables, without knowing what kind they are ---------------------------------------------------------


def _as_table(X: Any) -> Any:
    """A pandas frame as it is, other frames as one, or an array (N, p)."""
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        return X
    if hasattr(X, "to_pandas"):
        return X.to_pandas()
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "O":  # mixed, which an estimator reads
        return X
    return as_array(X, "X", missing=True) if np.ndim(X) == 2 else as_rows(X, "X")


def _list_names(X: Any, p: int) -> tuple[str, ...]:
    named = getattr(X, "columns", None)
    if named is not None:
        return tuple(map(str, named))
    return ("x",) if p == 1 else tuple(f"x{j}" for j in range(p))


def _find_column(X: Any, column: Any, p: int) -> tuple[int, str]:
    """The place of a column, and its name."""
    names = _list_names(X, p)
    labels = list(getattr(X, "columns", names))
    if column in labels:
        j = labels.index(column)
    elif isinstance(column, str):
        hint = suggest(column, names, "Its columns are")
        raise ValueError(f"X has no column {column!r}. {hint}")
    else:
        j = check_count(column, "column", 0, p - 1)
    return j, names[j]


def _find_shape(model: Any, table: Any, output: int) -> tuple[int, ...]:
    """The shape of y at a row, from a draw."""
    few = _take(table, np.arange(min(2, len(table))))
    size = SamplerDraws.of(model, few, (len(few),)).call(1, 0).size // len(few)
    check_count(output, "output", 0, size - 1, f"the model has {size} output(s)")
    return () if size == 1 else (size,)


def _choose_rows(n: int, most: int, rng: np.random.Generator) -> Array:
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))


def _take(table: Any, rows: Array) -> Any:
    return table.iloc[rows] if hasattr(table, "iloc") else table[rows]


def _read_cells(table: Any, j: int) -> tuple[Array, str]:
    """A column as an array, and its kind: "float", "ordered" (whole numbers, dates) or "category"."""
    column = table.iloc[:, j] if hasattr(table, "iloc") else table[:, j]
    kind = getattr(column.dtype, "kind", "O")
    if kind in "mM":
        return np.asarray(column, dtype=f"{kind}8[ns]"), "ordered"
    if kind in "fiu":
        as_float = {"dtype": np.float64, "na_value": np.nan} if hasattr(column, "to_numpy") else {}
        values = column.to_numpy(**as_float) if as_float else column.astype(np.float64)
        return values, "float" if isinstance(column.dtype, np.dtype) and kind == "f" else "ordered"
    cells = [None if _is_missing(value) else value for value in np.asarray(column, dtype=object)]
    return np.array([*cells, None], dtype=object)[:-1], "category"  # of objects, whatever the cells are


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA is neither equal nor unequal to itself
        return True


def _choose_places(cells: Array, kind: str) -> Array:
    """Rows whose values make the grid: spread over the column, or the most frequent; a missing one last."""
    gone = np.array([_is_missing(value) for value in cells])
    known = np.flatnonzero(~gone)
    if len(known) == 0:
        raise ValueError("all values of this column are missing, so nothing can depend on it.")
    if kind == "category":
        words = np.array([str(value) for value in cells[known]])
        _, first, counts = np.unique(words, return_index=True, return_counts=True)
        chosen = known[first[np.sort(np.argsort(-counts, kind="stable")[:MOST_CATEGORIES])]]
    else:
        order = known[np.argsort(cells[known], kind="stable")]
        if len(np.unique(cells[known])) > MOST_POINTS:
            low, high = (round(end * (len(order) - 1)) for end in ENDS)
            order = order[np.linspace(low, high, MOST_POINTS).round().astype(int)]
        chosen = order[np.unique(cells[order], return_index=True)[1]]
    return np.append(chosen, np.flatnonzero(gone)[:1])


def _fill(rows: Any, table: Any, j: int, place: int) -> Any:
    """The rows, all with the cell of one row of the table in a column."""
    changed = rows.copy()
    if hasattr(rows, "iloc"):
        cell = table.iloc[[place] * len(rows), j]  # of its own type, such as a category
        changed.isetitem(j, cell.set_axis(rows.index))
    else:
        changed[:, j] = table[place, j]
    return changed
