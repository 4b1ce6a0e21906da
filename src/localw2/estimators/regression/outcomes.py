"""What values y can have, and how smooth draws are moved there: the data may have bounds or be discrete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, average
from localw2.distribution import Support

MOST_VALUES = 50  # distinct values that a discrete target may have,
ROWS_PER_VALUE = 20  # and the rows that it needs for each, on average
MATCHED_ROWS, MATCHED_DRAWS = 5000, 20  # that the cuts between values are found from
PILE_SHARE, PILE_ROWS = 0.02, 5  # of the rows at the smallest or largest y: more is no coincidence


@final
@dataclass(frozen=True, eq=False)
class Outcomes:
    """For each of d outputs the bounds of y, infinite where there is none, and its values if it is discrete.

    >>> counts = Outcomes.of(np.repeat([0.0, 1.0, 2.0], 40)[:, None], "auto", "auto")
    >>> counts.values
    (array([0., 1., 2.]),)
    """

    lower: Array
    upper: Array
    values: tuple[Array | None, ...]

    @classmethod
    def of(cls, y: Array, bounds: Any, values: Any) -> Outcomes:
        """From outputs y (N, d); ``bounds`` and ``values`` are "auto", None, or what they are."""
        found = tuple(_values(column, values) for column in y.T)
        given = not isinstance(bounds, str)
        # Known values have bounds of their own: those of y, which may not reach them, would cut them off.
        ends = [
            _ends(column, bounds if given or few is None else None)
            for column, few in zip(y.T, found, strict=True)
        ]
        lower, upper = np.array(ends, dtype=np.float64).T
        if given:
            _check_inside(y, lower, upper, bounds)
        for low, high, few in zip(lower, upper, found, strict=True):
            if few is not None and not (low <= few[0] and few[-1] <= high):
                raise ValueError(
                    f"values range from {few[0]:g} to {few[-1]:g}, beyond bounds={bounds!r}; "
                    "give values alone."
                )
        return cls(lower, upper, found)

    @classmethod
    def anything(cls, d: int) -> Outcomes:
        """All numbers, for d outputs."""
        return cls.of(np.zeros((1, d)), None, None)

    @property
    def free(self) -> bool:
        """Whether every number is possible."""
        unbounded = np.isinf(self.lower).all() and np.isinf(self.upper).all()
        return bool(unbounded) and all(v is None for v in self.values)

    @property
    def support(self) -> Support:
        """The same in the words of a distribution."""
        return Support(self.lower, self.upper, np.array([v is not None for v in self.values]))

    def allow(self, y: Array) -> Array:
        """Which of y (N, d) the bounds and values allow, (N, d)."""
        found: Array = (self.lower <= y) & (y <= self.upper)
        for k, values in enumerate(self.values):
            if values is not None:
                found[:, k] &= _are_among(y[:, k], values)
        return found

    def within(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Intervals (..., d) shrunk to ends that y can have, which loses none of its values.

        An interval between two values, which holds none, becomes the value nearest to its middle. One without
        ends stays what it is: any outcome, allowed or not.
        """
        anything = np.isinf(lower) & np.isinf(upper)
        first_lower, first_upper = lower, upper
        lower, upper = np.clip(lower, self.lower, self.upper), np.clip(upper, self.lower, self.upper)
        for k, values in enumerate(self.values):
            if values is None:
                continue
            rounding = 1e-9 * np.diff(values).min()
            low, high = np.nan_to_num(lower[..., k]), np.nan_to_num(upper[..., k])
            first = np.searchsorted(values, low - rounding, side="left")
            last = np.searchsorted(values, high + rounding, side="right") - 1
            middle = np.searchsorted(_midpoints(values), low / 2 + high / 2)
            empty = first > last
            lower[..., k] = values[np.where(empty, middle, np.minimum(first, len(values) - 1))]
            upper[..., k] = values[np.where(empty, middle, np.maximum(last, 0))]
        return np.where(anything, first_lower, lower), np.where(anything, first_upper, upper)

    def quantiles(self, draws: Array, levels: Array) -> Array:
        """Quantiles (Q, N, d) of draws (S, N, d) of y; those of a discrete output are among its values."""
        found: Array = np.quantile(draws, levels, axis=0)
        for k, values in enumerate(self.values):
            if values is not None:
                found[..., k] = np.quantile(draws[..., k], levels, axis=0, method="inverted_cdf")
        return found

    def plain(self) -> dict[str, Any]:
        """As lists, for a file; None where there is no bound."""
        return {
            "lower": _plain_ends(self.lower),
            "upper": _plain_ends(self.upper),
            "values": _plain_values(self.values),
        }

    @classmethod
    def from_plain(cls, plain: Any, d: int) -> Outcomes:
        """From a file; ValueError if it is damaged."""
        lower, upper = _read_ends(plain["lower"], -np.inf, d), _read_ends(plain["upper"], np.inf, d)
        values = _read_values(plain["values"], d)
        if not (lower < upper).all() or any(v is not None and not (np.diff(v) > 0).all() for v in values):
            raise ValueError("its outcomes are damaged.")
        return cls(lower, upper, values)


def rows_to_match(n: int, rng: np.random.Generator, weights: Array | None) -> Array:
    """The rows at which draws are compared with all of y: some at random, or as often as weights (N,) say.

    >>> rows_to_match(3, np.random.default_rng(0), np.array([1.0, 0.1, 1.9]))
    array([0, 2, 2])
    """
    chosen: Array
    if weights is None:
        chosen = rng.permutation(n)[:MATCHED_ROWS]
        return chosen
    count = min(n, MATCHED_ROWS)
    # At even steps: as often as expected, or once more or less.
    levels = (np.arange(count) + rng.random()) / count * weights.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), levels, side="right"), n - 1)
    return chosen


@final
@dataclass(frozen=True, eq=False)
class Rounding:
    """A draw below ``lower_cut`` becomes the lower bound, one above ``upper_cut`` the upper one.

    A draw of a discrete output becomes the value between whose ``cuts`` it lies.

    >>> counts = Outcomes.of(np.repeat([0.0, 1.0, 2.0], 40)[:, None], "auto", "auto")
    >>> Rounding.halfway(counts).apply(np.array([[-0.7], [0.4], [1.6], [9.0]])).ravel()
    array([0., 0., 2., 2.])
    """

    outcomes: Outcomes
    lower_cut: Array
    upper_cut: Array
    cuts: tuple[Array | None, ...]

    @classmethod
    def halfway(cls, outcomes: Outcomes) -> Rounding:
        """To the nearest value."""
        cuts = tuple(None if v is None else _midpoints(v) for v in outcomes.values)
        return cls(outcomes, outcomes.lower, outcomes.upper, cuts)

    @classmethod
    def match(cls, outcomes: Outcomes, draws: Array, y: Array, weights: Array | None = None) -> Rounding:
        """With cuts at which draws (M, d) fall on each value as often as y (N, d) does.

        ``weights`` (N,) say how often a row of y counts; draws are at rows by ``rows_to_match`` then.

        A network draws from smooth distributions: near a value that many rows have it leaves some draws on
        the way to the next, and cuts halfway would count them there.
        """
        lower, upper = outcomes.lower.copy(), outcomes.upper.copy()
        cuts: list[Array | None] = [None] * len(outcomes.values)
        for k, values in enumerate(outcomes.values):
            if values is not None:
                cuts[k] = _match_cuts(values, draws[:, k], y[:, k], weights)
                continue
            # A bound that no row reaches is only kept to: no draw is moved there from inside.
            below = average(y[:, k] <= outcomes.lower[k], weights)
            above = average(y[:, k] >= outcomes.upper[k], weights)
            if below > 0:
                lower[k] = max(lower[k], np.quantile(draws[:, k], below))
            if above > 0:
                upper[k] = min(upper[k], np.quantile(draws[:, k], 1 - above))
        return cls(outcomes, lower, upper, tuple(cuts))

    def apply(self, draws: Array) -> Array:
        """Draws (..., d) moved to values that y can have."""
        known = self.outcomes
        if known.free:
            return draws
        moved: Array = np.where(draws < self.lower_cut, known.lower, draws)
        moved = np.clip(np.where(draws > self.upper_cut, known.upper, moved), known.lower, known.upper)
        for k, (values, cuts) in enumerate(zip(known.values, self.cuts, strict=True)):
            if values is not None and cuts is not None:
                moved[..., k] = values[np.searchsorted(cuts, draws[..., k])]
        return moved

    def plain(self) -> dict[str, Any]:
        """The cuts as lists, for a file."""
        return {
            "lower_cut": _plain_ends(self.lower_cut),
            "upper_cut": _plain_ends(self.upper_cut),
            "cuts": _plain_values(self.cuts),
        }

    @classmethod
    def from_plain(cls, outcomes: Outcomes, plain: Any, d: int) -> Rounding:
        """From a file; ValueError if it does not fit the outcomes."""
        lower, upper = _read_ends(plain["lower_cut"], -np.inf, d), _read_ends(plain["upper_cut"], np.inf, d)
        cuts = _read_values(plain["cuts"], d)
        counts = [None if v is None else len(v) - 1 for v in outcomes.values]
        fits = counts == [None if v is None else len(v) for v in cuts]
        if not fits or not ((outcomes.lower <= lower) & (upper <= outcomes.upper)).all():
            raise ValueError("its cuts between outcomes are damaged.")
        return cls(outcomes, lower, upper, cuts)


def _are_among(y: Array, values: Array) -> Array:
    """Which of y (N,) are among the values, up to rounding."""
    nearest = values[np.searchsorted(_midpoints(values), y)]
    found: Array = np.isclose(nearest, y, rtol=1e-9, atol=1e-9 * np.diff(values).min())
    return found


def _midpoints(values: Array) -> Array:
    """The middle between each value and the next."""
    middles: Array = (values[1:] + values[:-1]) / 2
    return middles


def _plain_ends(ends: Array) -> list[float | None]:
    """Ends (d,) as a list, None where there is none."""
    return [None if np.isinf(v) else float(v) for v in ends]


def _plain_values(values: tuple[Array | None, ...]) -> list[list[float] | None]:
    """Values of each output as lists, None where there are none."""
    return [None if v is None else v.tolist() for v in values]


def _read_ends(plain: Any, missing: float, d: int) -> Array:
    """What ``_plain_ends`` wrote for d outputs; ValueError for anything else."""
    ends = np.array([missing if v is None else v for v in plain], dtype=np.float64)
    if ends.shape != (d,) or np.isnan(ends).any():
        raise ValueError(f"outcomes={str(plain)[:80]} do not belong to {d} output(s).")
    return ends


def _read_values(plain: Any, d: int) -> tuple[Array | None, ...]:
    """What ``_plain_values`` wrote for d outputs, never decreasing; ValueError for anything else."""
    values = tuple(None if v is None else np.array(v, dtype=np.float64) for v in plain)
    rising = all(
        v is None or (v.ndim == 1 and len(v) and np.isfinite(v).all() and (np.diff(v) >= 0).all())
        for v in values
    )
    if len(values) != d or not rising:
        raise ValueError(f"outcomes={str(plain)[:80]} do not belong to {d} output(s).")
    return values


def _check_inside(y: Array, lower: Array, upper: Array, bounds: Any) -> None:
    """Raise where y lies outside the bounds that were given."""
    for k, column in enumerate(y.T):
        outside = (column < lower[k]) | (column > upper[k])
        if outside.any():
            which = f" (output {k}; bounds apply to every output)" if y.shape[1] > 1 else ""
            raise ValueError(
                f"bounds={bounds!r}, but {outside.sum()} of {len(y)} rows of y lie outside, such as "
                f"{column[outside][0]:g}{which}. Give bounds that hold y, or None."
            )


def _ends(y: Array, bounds: Any) -> tuple[float, float]:
    if bounds is None:
        return -np.inf, np.inf
    if isinstance(bounds, str) and bounds == "auto":
        enough = max(PILE_ROWS, PILE_SHARE * len(y))
        low, high = y.min(), y.max()
        spread = low < high
        never_negative = 0.0 if low >= 0 else -np.inf
        return (
            low if spread and (y == low).sum() >= enough else never_negative,
            high if spread and (y == high).sum() >= enough else np.inf,
        )
    try:
        low, high = bounds
        ends = -np.inf if low is None else float(low), np.inf if high is None else float(high)
    except (TypeError, ValueError):
        ends = np.nan, np.nan
    if not ends[0] < ends[1]:
        raise ValueError(f"bounds={bounds!r} must be 'auto', None or (low, high), such as (0, None).")
    return ends


def _values(y: Array, values: Any) -> Array | None:
    """The values that y is restricted to; given ones must include all that it has."""
    if values is None:
        return None
    if isinstance(values, str) and values == "auto":
        found: Array = np.unique(y)
        return found if 2 <= len(found) <= min(MOST_VALUES, len(y) / ROWS_PER_VALUE) else None
    try:
        given: Array = np.unique(np.array(list(values), dtype=np.float64))
    except (TypeError, ValueError):
        given = np.array([np.nan])
    if isinstance(values, str) or given.ndim != 1 or len(given) < 2 or not np.isfinite(given).all():
        raise ValueError(
            f"values={str(values)[:80]} must be 'auto', None or at least two values of y, such as range(11)."
        )
    others = ~_are_among(y, given)
    if others.any():
        raise ValueError(
            f"{others.sum()} of {len(y)} rows of y are not among values, such as {y[others][0]:g}. Give all "
            "values that y (every output of it) can have, or None."
        )
    return given


def _match_cuts(values: Array, draws: Array, y: Array, weights: Array | None) -> Array:
    """Cuts between values at which draws (M,) fall on each as often as y (N,) does.

    Beyond the smallest and the largest value that y has, where no frequency can be matched, they stay
    halfway.
    """
    halfway = _midpoints(values)
    counts = np.bincount(np.searchsorted(halfway, y), weights, len(values))
    shares = np.cumsum(counts)[:-1] / (len(y) if weights is None else weights.sum())
    shares[counts[1:][::-1].cumsum()[::-1] == 0] = 1.0  # rounding must not leave a value that no row has
    cuts: Array = np.where((shares > 0) & (shares < 1), np.quantile(draws, np.minimum(shares, 1.0)), halfway)
    known = np.flatnonzero((shares > 0) & (shares < 1))
    if len(known):
        cuts[: known[0]] = np.minimum(cuts[: known[0]], cuts[known[0]])
        cuts[known[-1] :] = np.maximum(cuts[known[-1] :], cuts[known[-1]])
    return cuts
