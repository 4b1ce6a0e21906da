"""What values y can have: draws of a network know no bounds and no whole numbers, the data may."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from localw2._validation import Array

MATCHED_ROWS, MATCHED_DRAWS = 5000, 20  # that the cuts between values are found from
MOST_VALUES = 50  # that a target on a few values may have,
ROWS_A_VALUE = 20  # and the rows that there must be for each, on average
PILE_SHARE, PILE_ROWS = 0.02, 5  # of the rows, at the smallest or largest y: more is no chance


@final
@dataclass(frozen=True)
class Outcomes:
    """For each of d outputs the ends that y keeps to, and its values if they are few (else None).

    A draw below ``lower_cut`` becomes ``lower``, one above ``upper_cut`` ``upper``; of few values it becomes
    the one between whose ``cuts`` it lies. ``matched`` moves the cuts, which are first halfway.

    >>> counts = Outcomes.of(np.repeat([0.0, 1.0, 2.0], 40)[:, None], "auto", "auto")
    >>> counts.apply(np.array([[-0.7], [0.4], [1.6], [9.0]])).ravel()
    array([0., 0., 2., 2.])
    """

    lower: Array
    upper: Array
    values: tuple[Array | None, ...]
    lower_cut: Array
    upper_cut: Array
    cuts: tuple[Array | None, ...]

    @classmethod
    def of(cls, y: Array, bounds: Any, values: Any) -> Outcomes:
        """From outputs y (N, d); ``bounds`` and ``values`` are "auto", None, or what they are."""
        found = tuple(_values(column, values) for column in y.T)
        given = not isinstance(bounds, str)
        # Values that are known have ends of their own: those of y, if it does not reach them, would cut.
        ends = [
            _ends(column, bounds if given or few is None else None)
            for column, few in zip(y.T, found, strict=True)
        ]
        lower, upper = np.array(ends, dtype=np.float64).T
        if given:
            _check_inside(y, lower, upper, bounds)
        halfway = tuple(None if v is None else _halfway(v) for v in found)
        return cls(lower, upper, found, lower, upper, halfway)

    @classmethod
    def anything(cls, d: int) -> Outcomes:
        """All numbers, for d outputs."""
        return cls.of(np.zeros((1, d)), None, None)

    def matched(self, draws: Array, y: Array) -> Outcomes:
        """The same with cuts at which draws (M, d) fall on each value as often as y (N, d) does.

        A network draws smooth laws: near a value that many rows have it leaves some draws on the way to the
        next, and halfway would count them there.
        """
        lower, upper, cuts = self.lower.copy(), self.upper.copy(), list(self.cuts)
        for k, values in enumerate(self.values):
            if values is not None:
                cuts[k] = _matched_cuts(values, draws[:, k], y[:, k])
                continue
            # An end that no row is at is only kept to: no draw is moved there from within.
            below, above = (y[:, k] <= self.lower[k]).mean(), (y[:, k] >= self.upper[k]).mean()
            if below > 0:
                lower[k] = max(lower[k], np.quantile(draws[:, k], below))
            if above > 0:
                upper[k] = min(upper[k], np.quantile(draws[:, k], 1 - above))
        return replace(self, lower_cut=lower, upper_cut=upper, cuts=tuple(cuts))

    @property
    def free(self) -> bool:
        """Whether draws stay as they are."""
        unbounded = np.isinf(self.lower).all() and np.isinf(self.upper).all()
        return bool(unbounded) and all(v is None for v in self.values)

    def apply(self, draws: Array) -> Array:
        """Draws (..., d) moved to the nearest value that y can have."""
        if self.free:
            return draws
        moved: Array = np.where(draws < self.lower_cut, self.lower, draws)
        moved = np.clip(np.where(draws > self.upper_cut, self.upper, moved), self.lower, self.upper)
        for k, (values, cuts) in enumerate(zip(self.values, self.cuts, strict=True)):
            if values is not None and cuts is not None:
                moved[..., k] = values[np.searchsorted(cuts, draws[..., k])]
        return moved

    def within(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Intervals (N, d) drawn in to ends that y can have: none of its values is lost by that.

        An interval between two values, which holds none, becomes the value nearest to its middle.
        """
        lower, upper = np.clip(lower, self.lower, self.upper), np.clip(upper, self.lower, self.upper)
        for k, values in enumerate(self.values):
            if values is None:
                continue
            rounding = 1e-9 * np.diff(values).min()
            first = np.searchsorted(values, lower[:, k] - rounding, side="left")
            last = np.searchsorted(values, upper[:, k] + rounding, side="right") - 1
            middle = np.searchsorted(_halfway(values), (lower[:, k] + upper[:, k]) / 2)
            empty = first > last
            lower[:, k] = values[np.where(empty, middle, np.minimum(first, len(values) - 1))]
            upper[:, k] = values[np.where(empty, middle, np.maximum(last, 0))]
        return lower, upper

    def quantiles(self, draws: Array, levels: Array) -> Array:
        """Quantiles (Q, N, d) of draws (S, N, d) that were applied: those of few values are such values."""
        found: Array = np.quantile(draws, levels, axis=0)
        for k, values in enumerate(self.values):
            if values is not None:
                found[..., k] = np.quantile(draws[..., k], levels, axis=0, method="inverted_cdf")
        return found

    def plain(self) -> dict[str, Any]:
        """As lists, for a file; None where there is no end."""
        found: dict[str, Any] = {}
        for name in ("lower", "upper", "lower_cut", "upper_cut"):
            found[name] = [None if np.isinf(v) else float(v) for v in getattr(self, name)]
        for name in ("values", "cuts"):
            found[name] = [None if v is None else v.tolist() for v in getattr(self, name)]
        return found

    @classmethod
    def from_plain(cls, plain: Any, d: int) -> Outcomes:
        """From a file; ValueError if it is damaged."""
        wrong = ValueError(f"outcomes={str(plain)[:80]} are not those of {d} output(s).")
        ends: list[Array] = []
        many: list[tuple[Array | None, ...]] = []
        for name in ("lower", "upper", "lower_cut", "upper_cut"):
            missing = np.inf if name.startswith("upper") else -np.inf
            ends.append(np.array([missing if v is None else v for v in plain[name]], dtype=np.float64))
        for name in ("values", "cuts"):
            many.append(tuple(None if v is None else np.array(v, dtype=np.float64) for v in plain[name]))
        sizes = [len(part) for part in ends] + [len(part) for part in many]
        if set(sizes) != {d} or any(part.shape != (d,) or np.isnan(part).any() for part in ends):
            raise wrong
        if not ((ends[0] < ends[1]) & (ends[0] <= ends[2]) & (ends[3] <= ends[1])).all():
            raise wrong
        for values, cuts in zip(*many, strict=True):
            if (values is None) != (cuts is None):
                raise wrong
            if values is not None and not (_rising(values, 2) and _rising(cuts, 1, len(values) - 1)):
                raise wrong
            if values is not None and not (np.diff(values) > 0).all():
                raise wrong
        return cls(ends[0], ends[1], many[0], ends[2], ends[3], many[1])


def _rising(values: Any, fewest: int, count: int | None = None) -> bool:
    shape = values.ndim == 1 and len(values) >= fewest and count in (None, len(values))
    return bool(shape and np.isfinite(values).all() and (np.diff(values) >= 0).all())


def check_outcomes(bounds: Any, values: Any) -> None:
    """Raise unless these settings mean something."""
    low, high = _ends(np.zeros(1), bounds)
    found = _values(np.zeros(1), values, fits=False)
    if found is not None and not (low <= found[0] and found[-1] <= high):
        raise ValueError(
            f"values go from {found[0]:g} to {found[-1]:g}, beyond bounds={bounds!r}; give values alone."
        )


def _halfway(values: Array) -> Array:
    """The middle between each value and the next."""
    middles: Array = (values[1:] + values[:-1]) / 2
    return middles


def _matched_cuts(values: Array, draws: Array, y: Array) -> Array:
    """Cuts between values at which draws (M,) fall on each as often as y (N,) does.

    Beyond the smallest and the largest that y has, where no frequency can be matched, they stay halfway.
    """
    halfway = _halfway(values)
    counts = np.bincount(np.searchsorted(halfway, y), minlength=len(values))
    shares = np.cumsum(counts)[:-1] / len(y)
    cuts: Array = np.where((shares > 0) & (shares < 1), np.quantile(draws, np.minimum(shares, 1.0)), halfway)
    known = np.flatnonzero((shares > 0) & (shares < 1))
    if len(known):
        cuts[: known[0]] = np.minimum(cuts[: known[0]], cuts[known[0]])
        cuts[known[-1] :] = np.maximum(cuts[known[-1] :], cuts[known[-1]])
    return cuts


def _check_inside(y: Array, lower: Array, upper: Array, bounds: Any) -> None:
    """Raise where y lies outside the bounds that were given."""
    for k, column in enumerate(y.T):
        outside = (column < lower[k]) | (column > upper[k])
        if outside.any():
            which = f" (output {k}: bounds are those of every output)" if y.shape[1] > 1 else ""
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
        return (
            low if spread and (y == low).sum() >= enough else -np.inf,
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


def _values(y: Array, values: Any, fits: bool = True) -> Array | None:
    """The values that y keeps to; with ``fits`` those given must be all that it has."""
    if values is None:
        return None
    if isinstance(values, str) and values == "auto":
        found: Array = np.unique(y)
        return found if 2 <= len(found) <= min(MOST_VALUES, len(y) / ROWS_A_VALUE) else None
    try:
        given: Array = np.unique(np.array(list(values), dtype=np.float64))
    except (TypeError, ValueError):
        given = np.array([np.nan])
    if isinstance(values, str) or given.ndim != 1 or len(given) < 2 or not np.isfinite(given).all():
        raise ValueError(
            f"values={str(values)[:80]} must be 'auto', None or two values of y at least, as in range(11)."
        )
    nearest = given[np.searchsorted(_halfway(given), y)]
    others = ~np.isclose(nearest, y, rtol=1e-9, atol=1e-9 * np.diff(given).min())
    if fits and others.any():
        raise ValueError(
            f"{others.sum()} of {len(y)} rows of y are not among values, such as {y[others][0]:g}. Give all "
            "values that y (every output of it) can have, or None."
        )
    return given
