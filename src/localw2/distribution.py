"""Distributions that an estimator predicts, a law per row, with the names of ``scipy.stats``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Protocol, Self, final

import numpy as np
from scipy import stats

from localw2 import plots
from localw2._validation import (
    Array,
    as_array,
    brief,
    check_count,
    check_number,
    check_probability,
    seed_from,
)

KEPT_BYTES = 1 << 28  # of ordered draws; those of more rows are drawn again whenever they are needed
_AT_A_TIME = 1 << 19  # draws times rows of given draws that are ordered at a time
# A Gaussian is a mixture of boxes whose half widths have the chi distribution with 3 degrees of freedom. With
# eight of them as a kernel, a smoothed density is a mean of differences of the cdf, and adds up to 1.
_BOXES, _FINE_BOXES = (stats.chi.ppf((np.arange(n) + 0.5) / n, 3) for n in (8, 64))  # more for a smooth line
_QUARTER = 2 * stats.norm.ppf(0.625)  # the shortest interval that holds a quarter of a standard Gaussian
_GRID = 300  # values of every law at which densities are plotted


class Distribution(ABC):
    """A law of y for each of N rows, or of every output of each row: what ``predict_distribution`` returns.

    ``shape`` is (N,), (N, d) with d outputs, or (n, T, d) for trajectories. ``cdf``, ``sf``, ``ppf``, ``pdf``
    and ``pmf`` broadcast their argument against it, as scipy does: a number is asked of every law, (N,) has a
    value for each row, and (m, 1) asks m values of every row, which gives (m, N). Indices are those of numpy:
    ``law[0]`` is the law of the first row, ``law[mask]`` has those of some, ``law[:, 1]`` the second output.

    >>> law = NormalDistribution(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    >>> law
    NormalDistribution(shape=(2,))
    >>> law.sf(1.0).round(3)  # P(y > 1) of each row
    array([0.159, 0.5  ])
    >>> law.ppf([[0.05], [0.5], [0.95]]).round(2)
    array([[-1.64, -2.29],
           [ 0.  ,  1.  ],
           [ 1.64,  4.29]])
    >>> law[1]
    NormalDistribution(mean=1, std=2, 5 %: -2.29, 95 %: 4.29)
    """

    @property
    @abstractmethod
    def _n_rows(self) -> int | None:
        """How many rows there are; None for a law without an axis of rows."""

    @property
    @abstractmethod
    def _outputs(self) -> tuple[int, ...]:
        """The axes after that of the rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the laws: (N,), (N, d) or (n, T, d), less the axes that an index took away."""
        return (() if self._n_rows is None else (self._n_rows,)) + self._outputs

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("this is the distribution of a single number, which has no len().")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Self:
        keys = _spell_out(key, len(self.shape))
        first = () if self._n_rows is None else keys[:1]
        rest = keys[len(first) :]
        if any(map(_is_list, first)) and any(map(_is_list, rest)):
            raise IndexError(
                "rows and outputs are both given by lists, which numpy would pair. Choose one after the "
                "other: law[rows][:, outputs]."
            )
        rows = np.array(0) if self._n_rows is None else np.arange(self._n_rows)[first]
        places = np.arange(prod(self._outputs)).reshape(self._outputs)[rest]
        if rows.ndim > 1 or places.ndim > len(self._outputs):
            raise IndexError(f"an index of {key!r} would add an axis; there are {self.shape} distributions.")
        return self._take(rows, places)

    def __repr__(self) -> str:
        if self.shape:
            return f"{type(self).__name__}(shape={self.shape}{self._describe()})"
        low, high = self.interval(0.9)
        numbers = f"mean={self.mean():.3g}, std={self.std():.3g}, 5 %: {low:.3g}, 95 %: {high:.3g}"
        return f"{type(self).__name__}({numbers}{self._describe()})"

    def cdf(self, v: Any) -> Any:
        """The probability of v or less, P(y <= v). It jumps where y has a value with positive probability."""
        return self._cdf(self._broadcast(v, "v"))[()]

    def sf(self, v: Any) -> Any:
        """The probability of more than v, P(y > v)."""
        return self._sf(self._broadcast(v, "v"))[()]

    def pmf(self, v: Any) -> Any:
        """The probability of exactly v, P(y = v): the jump of the cdf, 0 where the law is continuous."""
        return self._pmf(self._broadcast(v, "v"))[()]

    def ppf(self, q: Any) -> Any:
        """The quantile q, the inverse of the cdf: the smallest v with P(y <= v) >= q; 0 <= q <= 1."""
        levels = self._broadcast(q, "q")
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise ValueError(f"q={str(q)[:80]} must be probabilities from 0 to 1, such as [[0.05], [0.95]].")
        return self._ppf(levels)[()]

    def pdf(self, v: Any) -> Any:
        """The density at v; where the law is known by its draws only, a smoothed one."""
        return self._pdf(self._broadcast(v, "v"))[()]

    def std(self) -> Any:
        """The standard deviation of every law, as ``predict(X, return_std=True)`` has it."""
        return np.sqrt(self.var())

    def interval(self, confidence: float) -> tuple[Any, Any]:
        """The central interval of this probability: its lower and upper ends.

        It is the law's own, and never calibrated; ``predict_interval`` is, if the fit was.
        """
        inside = check_probability(confidence, "confidence")
        levels = np.array([(1 - inside) / 2, (1 + inside) / 2])
        low, high = self.ppf(levels.reshape(2, *[1] * len(self.shape)))
        return low, high

    @abstractmethod
    def mean(self) -> Any:
        """The mean of every law, as ``predict`` has it."""

    @abstractmethod
    def var(self) -> Any:
        """The variance of every law."""

    @abstractmethod
    def rvs(self, size: int | None = None, random_state: Any = None) -> Any:
        """Random draws of every law, or with a ``size`` so many, along a new first axis.

        Draws and rows are independent; the outputs of a row are drawn together. The draws follow ``cdf``.
        """

    def plot(self, names: Any = None, rows: Any = None, axes: Any = None) -> Any:
        """Plot the densities of at most 4 rows, or the probabilities of discrete values; a panel per output.

        The probability of a bound is a dot on a line, of which the density leaves it out. ``names`` are those
        of the outputs, ``rows`` those of the rows. Returns the array of Axes.
        """
        n = 1 if self._n_rows is None else self._n_rows
        if not 1 <= n <= plots.MOST_LAWS or prod(self._outputs) > plots.MOST_OUTPUTS:
            raise ValueError(
                f"the distributions have shape {self.shape}, but 1 to {plots.MOST_LAWS} rows and at most "
                f"{plots.MOST_OUTPUTS} outputs can be shown. Choose some, such as law[:3].plot()."
            )
        each = (self._take(np.arange(n), np.array(k)) for k in range(prod(self._outputs)))
        return plots.laws([law._panel() for law in each], names, rows, axes)

    @abstractmethod
    def _take(self, rows: Array, places: Array) -> Self:
        """The laws of rows, and of flat places among the outputs; an array without an axis takes it away."""

    @abstractmethod
    def _cdf(self, v: Array) -> Array: ...

    def _sf(self, v: Array) -> Array:
        return 1 - self._cdf(v)

    @abstractmethod
    def _pmf(self, v: Array) -> Array: ...

    @abstractmethod
    def _ppf(self, q: Array) -> Array: ...

    @abstractmethod
    def _pdf(self, v: Array) -> Array: ...

    def _describe(self) -> str:
        return ""

    def _panel(self) -> plots.Panel:
        """What is plotted of laws (N,)."""
        values, points = self._grid(), self._points()
        return plots.Panel(values, self.pdf(values[:, None]), points, self.pmf(points[:, None]))

    def _points(self) -> Array:
        """The values (k,) of laws without spread, which have no density to be seen."""
        lowest, highest = self.ppf([[0.0], [1.0]])
        return np.unique(lowest[lowest == highest])

    def _grid(self) -> Array:
        """Values (m,) that show every law (N,), however narrow; far tails are cut off."""
        ends = self.ppf([[0.002], [0.05], [0.95], [0.998]])
        reach = 0.75 * (ends[2] - ends[1])
        low, high = np.maximum(ends[0], ends[1] - reach), np.minimum(ends[3], ends[2] + reach)
        pad = np.where(high > low, 0.1 * (high - low), np.maximum(0.5, 1e-3 * np.abs(high)))
        return np.unique(np.linspace(low - pad, high + pad, _GRID))

    def _broadcast(self, values: Any, name: str) -> Array:
        """Values as an array (..., *shape) of floats; infinities are welcome."""
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name}={str(values)[:80]} must be numbers, or an array of them.") from None
        if np.isnan(array).any():
            raise ValueError(f"{name} has NaN, which has no probability; drop or impute it.")
        last = array.shape[max(0, array.ndim - len(self.shape)) :]
        own = self.shape[len(self.shape) - len(last) :]
        if any(n not in (1, m) for n, m in zip(last, own, strict=True)):
            raise ValueError(
                f"{name} has shape {array.shape}, the distributions {self.shape}; the last axes must agree, "
                f"or be 1. To ask m values of every distribution, give {name}[:{', None' * len(self.shape)}]."
            )
        leading = array.shape[: max(0, array.ndim - len(self.shape))]
        return np.broadcast_to(array, leading + self.shape)


@final
class NormalDistribution(Distribution):
    """Gaussian laws with given means and standard deviations, (N,) each, and exact answers.

    A standard deviation of 0 is a law with all its probability in the mean.

    >>> NormalDistribution([0.0, 2.0], [1.0, 0.0]).cdf(1.96).round(3)
    array([0.975, 0.   ])
    """

    def __init__(self, mean: Any, std: Any) -> None:
        try:
            mean, std = np.array(mean, dtype=np.float64), np.array(std, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"mean={brief(mean)} and std={brief(std)} must be numbers, (N,) each.") from None
        if mean.shape != std.shape or mean.ndim > 1:
            raise ValueError(f"mean has shape {mean.shape} and std {std.shape}; give (N,) each.")
        if not bool((np.isfinite(mean) & np.isfinite(std) & (std >= 0)).all()):
            raise ValueError(
                "mean or std has NaN, an infinite value or a negative SD, which is no Gaussian; give finite "
                "means and standard deviations >= 0."
            )
        self._mean, self._std = mean, std

    @property
    def _n_rows(self) -> int | None:
        return len(self._mean) if self._mean.ndim else None

    @property
    def _outputs(self) -> tuple[int, ...]:
        return ()

    def mean(self) -> Any:
        """The mean of every law."""
        return self._mean.copy()[()]

    def var(self) -> Any:
        """The variance of every law."""
        return (self._std**2)[()]

    def std(self) -> Any:
        """The standard deviation of every law."""
        return self._std.copy()[()]

    def rvs(self, size: int | None = None, random_state: Any = None) -> Any:
        """Random draws of every law, (N,), or with a ``size`` (size, N); draws and rows are independent."""
        leading = () if size is None else (check_count(size, "size", 1),)
        rng = np.random.default_rng(seed_from(random_state))
        return (self._mean + self._std * rng.standard_normal(leading + self.shape))[()]

    def _take(self, rows: Array, places: Array) -> NormalDistribution:
        return NormalDistribution(np.atleast_1d(self._mean)[rows], np.atleast_1d(self._std)[rows])

    def _standardize(self, v: Array) -> Array:
        """v in units of the SD from the mean; infinite where the SD is 0, and 0 at its mean."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (v - self._mean) / self._std
        # 0 / 0 is at the mean of a law without spread, where all of it lies at v or below.
        standardized: Array = np.where(np.isnan(z), np.inf, z)
        return standardized

    def _cdf(self, v: Array) -> Array:
        return np.asarray(stats.norm.cdf(self._standardize(v)))

    def _sf(self, v: Array) -> Array:
        return np.asarray(stats.norm.sf(self._standardize(v)))

    def _pmf(self, v: Array) -> Array:
        return np.where((self._std == 0) & (v == self._mean), 1.0, 0.0)

    def _ppf(self, q: Array) -> Array:
        quantiles: Array = self._mean + np.where(self._std > 0, stats.norm.ppf(q), 0.0) * self._std
        return quantiles

    def _pdf(self, v: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            density = stats.norm.pdf(self._standardize(v)) / self._std
        return np.where(self._std > 0, density, np.where(v == self._mean, np.inf, 0.0))


class Source(Protocol):
    """What a law is known by: as many draws of its C outputs at any row, always the same ones."""

    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, rows, C) at the rows of x, some at a time."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Support:
    """What the values of C outputs can be: bounds, infinite where there are none, and which are discrete."""

    lower: Array
    upper: Array
    discrete: Array

    @classmethod
    def anything(cls, n_outputs: int) -> Support:
        """All numbers."""
        return cls(np.full(n_outputs, -np.inf), np.full(n_outputs, np.inf), np.zeros(n_outputs, bool))

    def take(self, places: Array) -> Support:
        """That of some outputs."""
        return Support(self.lower[places], self.upper[places], self.discrete[places])


@final
@dataclass(frozen=True, eq=False)
class _Ordered:
    """Draws (n, C, S) in ascending order and, of several outputs, the place of every draw in that order."""

    values: Array
    places: Array | None

    @classmethod
    def of(cls, draws: Array) -> _Ordered:
        """From draws (S, n, C)."""
        values = np.array(np.moveaxis(draws, 0, -1), dtype=np.float64, order="C")
        if draws.shape[2] == 1:
            values.sort(axis=-1)
            return cls(values, None)
        order = np.argsort(values, axis=-1, kind="stable")
        places = np.empty(order.shape, np.min_scalar_type(len(draws)))
        np.put_along_axis(places, order, np.arange(len(draws), dtype=places.dtype), -1)
        return cls(np.take_along_axis(values, order, -1), places)

    @classmethod
    def join(cls, parts: Iterator[_Ordered], shape: tuple[int, ...]) -> _Ordered:
        """All of (N, C, S), from parts of the rows."""
        values, start = np.empty(shape), 0
        places = np.empty(shape, np.min_scalar_type(shape[2])) if shape[1] > 1 else None
        for part in parts:
            rows = slice(start, start + len(part.values))
            values[rows], start = part.values, rows.stop
            if places is not None and part.places is not None:
                places[rows] = part.places
        return cls(values, places)

    def take(self, rows: Array, places: Array) -> _Ordered:
        """Those of some rows and outputs."""
        which = np.ix_(rows, places)
        joint = self.places is not None and len(places) > 1
        return _Ordered(self.values[which], self.places[which] if joint and self.places is not None else None)


@final
@dataclass(frozen=True, eq=False, repr=False)
class DrawsDistribution(Distribution):
    r"""Laws that are known by S draws each, in which all answers agree with each other.

    With draws :math:`z_0 \le \dots \le z_{S-1}` in ascending order, the quantile q is that of
    ``np.quantile``, :math:`z_{q (S - 1)}` interpolated between neighbours. The cdf is its inverse: linear
    between draws that differ, with a jump where several are equal, as many are that repeat the rows of a
    ball. A discrete output has the cdf of its draws as it is, a step of 1 / S for each. ``rvs`` follows that
    cdf; the outputs of a row take the ranks of one of its draws, and so depend on each other as draws do.

    ``pdf`` is a smoothed density: the draws with a Gaussian kernel, reflected at the bounds, its bandwidth by
    Silverman's rule from the densest quarter of the draws, which keeps modes apart. It integrates to 1, but
    details smaller than the bandwidth are lost, and jumps are smeared; ``pmf`` has them. The mean and the
    variance are those of ``predict``, which may rest on more draws than these.

    Of up to 256 MB of draws (16 000 rows with one output, of 2000 draws each) all are kept in order; of more,
    every call draws again, some rows at a time.

    >>> law = DrawsDistribution.of([[0.0, 5.0], [1.0, 5.0], [3.0, 7.0]])
    >>> law.cdf([1.0, 5.0]), law.ppf(0.5)
    (array([0.5, 0.5]), array([1., 5.]))
    >>> law.pmf([1.0, 5.0]), law.cdf([[2.0], [6.0]])
    (array([0. , 0.5]), array([[0.75, 0.  ],
           [1.  , 0.75]]))
    """

    source: Source
    x: Array
    n_draws: int
    outputs: tuple[int, ...]
    support: Support
    moments: Callable[[Array], tuple[Array, Array]] | None = None
    single: bool = False
    places: Array | None = None
    kept: _Ordered | None = None

    def __post_init__(self) -> None:
        each = 8 if self._n_places == 1 else 8 + np.min_scalar_type(self.n_draws).itemsize
        size = len(self.x), self._n_places, self.n_draws
        if self.kept is None and prod(size) * each <= KEPT_BYTES:
            object.__setattr__(self, "kept", _Ordered.join((part for _, part in self._order()), size))

    @classmethod
    def of(
        cls, samples: Any, lower: float = -np.inf, upper: float = np.inf, discrete: bool = False
    ) -> DrawsDistribution:
        """The laws of draws (S, N), or (S, N, d) of d outputs, from any model, as ``sample`` returns them.

        All lie between ``lower`` and ``upper``; ``discrete`` says that between two values there is no other.
        """
        draws = as_array(samples, "samples")
        if draws.ndim < 2 or len(draws) < 2:
            raise ValueError(
                f"samples has shape {draws.shape}; expected (S, N) or (S, N, d), with at least two draws."
            )
        ends = [
            check_number(v, n, lambda v: v == v, "a number") for v, n in ((lower, "lower"), (upper, "upper"))
        ]
        if draws.min() < ends[0] or draws.max() > ends[1]:
            raise ValueError(
                f"samples range from {draws.min():g} to {draws.max():g}, beyond the bounds {lower:g} and "
                f"{upper:g}. Give bounds that hold them."
            )
        n_draws, n, *outputs = draws.shape
        flat = draws.reshape(n_draws, n, -1)
        shape = flat.shape[2]
        support = Support(np.full(shape, ends[0]), np.full(shape, ends[1]), np.full(shape, bool(discrete)))
        return cls(_GivenDraws(flat), np.arange(n), n_draws, tuple(outputs), support)

    @property
    def _n_rows(self) -> int | None:
        return None if self.single else len(self.x)

    @property
    def _outputs(self) -> tuple[int, ...]:
        return self.outputs

    @property
    def _n_places(self) -> int:
        return prod(self.outputs)

    def mean(self) -> Any:
        """The mean of every law, as ``predict`` has it."""
        return self._moments[0].reshape(self.shape)[()].copy()

    def var(self) -> Any:
        """The variance of every law, the square of what ``predict(X, return_std=True)`` has."""
        return self._moments[1].reshape(self.shape)[()].copy()

    def rvs(self, size: int | None = None, random_state: Any = None) -> Any:
        """Random draws of every law, or with a ``size`` so many, along a new first axis.

        Draws and rows are independent; the outputs of a row, or the times of a trajectory, are drawn
        together. They follow ``cdf``; ``sample`` of the estimator draws from the fit itself instead.
        """
        count = 1 if size is None else check_count(size, "size", 1)
        rng = np.random.default_rng(seed_from(random_state))
        chosen = rng.integers(self.n_draws, size=(len(self.x), count))
        within = rng.random(chosen.shape)
        found = np.empty((len(self.x), self._n_places, count))
        for rows, part in self._parts():
            for i, n in enumerate(range(*rows.indices(len(self.x)))):
                for k, ordered in enumerate(part.values[i]):
                    place = chosen[n] if part.places is None else part.places[i, k, chosen[n]]
                    levels = (place + within[n]) / self.n_draws
                    found[n, k] = _quantiles(ordered, levels, self.support.discrete[k])
        drawn = np.moveaxis(found, -1, 0).reshape(count, *self.shape)
        return (drawn[0] if size is None else drawn)[()]

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Mean and variance, (N, C) each."""
        if not len(self.x):
            return np.empty((0, self._n_places)), np.empty((0, self._n_places))
        if self.moments is not None:
            own = slice(None) if self.places is None else self.places
            mean, variance = (part[:, own] for part in self.moments(self.x))
            return mean, variance
        parts = [(part.values.mean(-1), part.values.var(-1)) for _, part in self._parts()]
        mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        return mean, variance

    def _parts(self) -> Iterator[tuple[slice, _Ordered]]:
        """The draws of all rows in order, some rows at a time."""
        return iter([(slice(None), self.kept)]) if self.kept is not None else self._order()

    def _order(self) -> Iterator[tuple[slice, _Ordered]]:
        if not len(self.x):
            return
        for rows, draws in self.source.common_draws(self.x):
            yield rows, _Ordered.of(draws if self.places is None else draws[:, :, self.places])

    def _take(self, rows: Array, places: Array) -> DrawsDistribution:
        some, flat = np.atleast_1d(rows), places.reshape(-1)
        law = replace(
            self,
            x=self.x[some],
            outputs=places.shape,
            support=self.support.take(flat),
            single=rows.ndim == 0,
            places=flat if self.places is None else self.places[flat],
            kept=None if self.kept is None else self.kept.take(some, flat),
        )
        if "_moments" in self.__dict__:
            law.__dict__["_moments"] = tuple(part[np.ix_(some, flat)] for part in self._moments)
        return law

    def _cdf(self, v: Array) -> Array:
        return self._each(v, lambda z, at, k: _cdf(z, at, self.support.discrete[k]))

    def _pmf(self, v: Array) -> Array:
        return self._each(v, lambda z, at, k: _jumps(z, at, self.support.discrete[k]))

    def _ppf(self, q: Array) -> Array:
        return self._each(q, lambda z, at, k: _quantiles(z, at, self.support.discrete[k]))

    def _pdf(self, v: Array) -> Array:
        if self.support.discrete.any():
            raise ValueError(
                "y is discrete: its values have probabilities, which pmf gives, and no density. If only some "
                "outputs are, ask the others, as in law[:, 0].pdf(v)."
            )
        return self._each(v, lambda z, at, k: _density(z, at, self.support.lower[k], self.support.upper[k]))

    def _each(self, values: Array, answer: Callable[[Array, Array, int], Array]) -> Array:
        """The answers (..., *shape) of every law to its values, from its draws (S,) in order."""
        leading = values.shape[: values.ndim - len(self.shape)]
        flat = values.reshape(prod(leading), len(self.x), self._n_places)
        asked = np.ascontiguousarray(np.moveaxis(flat, 0, -1))
        found = np.empty(asked.shape)
        for rows, part in self._parts():
            for i, n in enumerate(range(*rows.indices(len(self.x)))):
                for k, ordered in enumerate(part.values[i]):
                    found[n, k] = answer(ordered, asked[n, k], k)
        return np.moveaxis(found, -1, 0).reshape(leading + self.shape)

    def _describe(self) -> str:
        return f", {self.n_draws} draws each" if self.shape else ""

    def _panel(self) -> plots.Panel:
        laws = [part.values[:, 0] for _, part in self._parts()]
        if self.support.discrete[0]:
            values = np.unique(np.concatenate([z.ravel() for z in laws]))
            return plots.Panel(None, None, values, self.pmf(values[:, None]))
        lower, upper = self.support.lower[0], self.support.upper[0]
        atoms = np.union1d([bound for bound in (lower, upper) if np.isfinite(bound)], self._points())
        values, density = np.unique(np.clip(self._grid(), lower, upper)), []
        for z in (row for rows in laws for row in rows):
            inner = z[(z > lower) & (z < upper)]
            some = len(inner) > 1
            line = _density(inner, values, lower, upper, _FINE_BOXES) if some else np.zeros(len(values))
            density.append(line * len(inner) / len(z))
        return plots.Panel(values, np.stack(density, 1), atoms, self.pmf(atoms[:, None]))


@final
class _GivenDraws:
    """Draws (S, N, C) that are there already; the inputs are numbers of rows."""

    def __init__(self, draws: Array) -> None:
        self._draws = draws

    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        step = max(1, _AT_A_TIME // len(self._draws))
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            yield rows, self._draws[:, x[rows]]


def _cdf(z: Array, v: Array, discrete: Any) -> Array:
    """The share of the law of draws z (S,), in order, at v or below."""
    n = np.searchsorted(z, v, side="right")
    if discrete:
        share: Array = n / len(z)
        # A level that is rounded up would belong to the next value.
        return np.where(np.ceil(len(z) * share - 1) < n, share, np.nextafter(share, 0))
    last = len(z) - 1
    below, above = z[np.maximum(n - 1, 0)], z[np.minimum(n, last)]
    share = np.divide(v - below, above - below, out=np.zeros(v.shape), where=(n > 0) & (n <= last))
    return np.where(n > 0, np.minimum(n - 1 + share, last) / last, 0.0)


def _jumps(z: Array, v: Array, discrete: Any) -> Array:
    """The probability of exactly v."""
    n = np.searchsorted(z, v, side="right") - np.searchsorted(z, v, side="left")
    jumps: Array = n / len(z) if discrete else np.maximum(n - 1, 0) / (len(z) - 1)
    return jumps


def _quantiles(z: Array, q: Array, discrete: Any) -> Array:
    """What ``np.quantile`` has for a level, digit by digit: linear, and "inverted_cdf" of discrete draws."""
    last = len(z) - 1
    if discrete:
        values: Array = z[np.clip(np.ceil(len(z) * q - 1), 0, last).astype(np.int64)]
        return values
    position = last * q
    place = np.minimum(np.floor(position).astype(np.int64), last)
    below, above = z[place], z[np.minimum(place + 1, last)]
    gap, share = above - below, position - place
    # From the nearer end, so that quantiles never decrease.
    quantiles: Array = np.where(share < 0.5, below + gap * share, above - gap * (1 - share))
    return quantiles


def _density(z: Array, v: Array, lower: float, upper: float, boxes: Array = _BOXES) -> Array:
    """The density at v of draws z (S,), in order, smoothed by a kernel and reflected at the bounds."""
    reach = np.minimum(_bandwidth(z) * boxes, upper - lower)
    if reach[0] == 0:  # all draws are equal
        return np.where(v == z[0], np.inf, 0.0)
    total = np.zeros(v.shape)
    for centre in (v, *(2 * bound - v for bound in (lower, upper) if np.isfinite(bound))):
        inside = _cdf(z, centre[:, None] + reach, False) - _cdf(z, centre[:, None] - reach, False)
        total += (inside / (2 * reach)).mean(1)
    return np.where((lower <= v) & (v <= upper), total, 0.0)


def _bandwidth(z: Array) -> float:
    """Silverman's rule for draws z (S,) in order, each value once, and the SD of their densest quarter.

    The SD of all of them would fill the valley between two modes, and values that many draws share (up to
    their rounding) say how often they come, not how they spread.
    """
    values = z[np.append(True, z[1:] - z[:-1] > 1e-14 * max(abs(z[0]), abs(z[-1])))]
    n = len(values)
    if n < 2:
        return 0.0
    quarter = -(-n // 4)
    narrow = float((values[quarter:] - values[:-quarter]).min()) / _QUARTER
    return float(0.9 * min(float(values.std()), narrow) * n**-0.2)


def _spell_out(key: Any, n_axes: int) -> tuple[Any, ...]:
    """An index as a tuple with an entry for each axis at most, lists as arrays, and no dots."""
    keys = key if isinstance(key, tuple) else (key,)
    dots = [i for i, one in enumerate(keys) if one is Ellipsis]
    if len(keys) - len(dots) > n_axes or len(dots) > 1:
        raise IndexError(f"an index of {key!r} is too long for distributions with {n_axes} axes.")
    if dots:
        whole = (slice(None),) * (n_axes - len(keys) + 1)
        keys = keys[: dots[0]] + whole + keys[dots[0] + 1 :]
    return tuple(one if isinstance(one, slice) else _as_index(one) for one in keys)


def _as_index(key: Any) -> Array:
    """A number, a list of numbers or a mask as an array; an empty list would be one of floats."""
    array = np.asarray(key)
    return array.astype(np.int64) if isinstance(key, list) and not key else array


def _is_list(key: Any) -> bool:
    return not isinstance(key, slice) and key.ndim > 0
