"""The theorem's bound on the error of the local loss, term by term: a rate, not a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from localw2._validation import Array, as_array, as_rows, check_flag, check_radius, seed_of
from localw2.balls.norms import Norm, check_norm
from localw2.balls.search import radius_search
from localw2.judging.diagnosis.plots import bound_curves

# Balls counted at each delta; the mean of h over this many is known to 1 % or better.
CENTRES = 1000
# Places where the slope of y is estimated, and from which the default deltas are read.
PLACES = 250
# Share of the places that count as steep; their mean slope is the estimated Lipschitz constant.
STEEP = 0.1


@final
@dataclass(frozen=True, eq=False, repr=False)
class ErrorBound:
    """The three terms of the bound at each delta, (n,) each, and what they were computed from.

    ``rows`` is the term of finitely many rows, ``sampling`` that of few rows in a ball (from about 5 rows on
    it falls with delta), ``smoothing`` that of the law's change inside a ball (it grows with delta).
    ``ball_sizes`` are medians.
    """

    deltas: Array
    ball_sizes: Array
    rows: Array
    sampling: Array
    smoothing: Array
    bound: float
    lipschitz: float
    constant: float
    n_rows: int
    n_outputs: int

    @property
    def total(self) -> Array:
        """The bound itself, (n,)."""
        total: Array = self.rows + self.sampling + self.smoothing
        return total

    @property
    def best_delta(self) -> float:
        """The delta of the grid where the bound is smallest."""
        return float(self.deltas[np.argmin(self.total)])

    def plot(self, measured: tuple[Any, Any] | None = None, ax: Any = None) -> Any:
        """The terms against delta; ``measured`` = (deltas, errors) goes on a second axis. Returns the Axes.

        The second axis has its own scale, since the bound's is off by an unknown factor: compare shapes.
        """
        terms = {
            "bound": self.total,
            "few rows in a ball: $8CM\\,E\\,h(N(x, \\delta), d)$": self.sampling,
            "change of the law in a ball: $8\\sqrt{M}L\\delta$": self.smoothing,
            "finitely many rows: $4M/\\sqrt{N}$": self.rows,
        }
        return bound_curves(self.deltas, terms, self.best_delta, f"{self.constant:g}", measured, ax)

    def __repr__(self) -> str:
        low = int(np.argmin(self.total))
        return (
            f"ErrorBound(a rate, not a certificate: C = {self.constant:g} is assumed, M = {self.bound:.3g}, "
            f"L = {self.lipschitz:.3g}; smallest at delta = {self.best_delta:.3g}, about "
            f"{self.ball_sizes[low]:.0f} rows a ball: {self.total[low]:.3g} = {self.rows[low]:.3g} rows + "
            f"{self.sampling[low]:.3g} sampling + {self.smoothing[low]:.3g} smoothing)"
        )


def error_bound(
    x: Any,
    y: Any,
    deltas: Any = None,
    norm: Norm | None = None,
    *,
    lipschitz: float | None = None,
    bound: float | None = None,
    constant: float = 1.0,
    center: bool = True,
    random_state: Any = None,
) -> ErrorBound:
    r"""How far the local loss may be from what it estimates, as delta grows (paper, Theorem 1).

    .. math:: E\,|W - W_\delta^e| \le \frac{4 M}{\sqrt N} + 8 C M\, E[h(N(x, \delta), d)] + 8 \sqrt M L \delta

    **A rate, not a certificate.** C is a constant that nobody knows (1 here), M and L are estimated. Read
    from it how the terms trade off, not the size of an error.

    ``x`` is (N, p) and ``y`` (N,) or (N, d), with d in ``h``, see ``sampling_rate``. ``deltas`` defaults to a
    grid on which the median ball grows from 2 rows to N. The other quantities, each of which may be given:

    - ``bound``, M: the largest :math:`\|y\|^2`, of y minus its mean, since the loss does not change when y
      and yhat are shifted together (``center=False``: of y as it is). yhat is taken to obey the same bound.
    - ``lipschitz``, L, in the units of ``norm``: how fast the law of y moves with x. Differences of single
      rows would be noise over a small distance, so mean and SD of y are fitted by local straight lines at 250
      places; a place's slope is the largest change of both together (by Gelbrich's bound W2 moves at least so
      fast), and L is the mean slope of the steepest 10 %, which one half of the rows picks and the other
      half measures. yhat is taken to be no steeper.
    - ball sizes are counted, around 1000 random rows where there are more.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=500)
    >>> found = error_bound(x, 2 * x + 0.1 * rng.normal(size=500), random_state=0)
    >>> round(found.lipschitz), bool(found.sampling[0] > found.sampling[-1])
    (2, True)
    >>> error_bound(x, 2 * x, deltas=[0.1, 0.2], lipschitz=2.0, bound=1.0).smoothing
    array([1.6, 3.2])
    """
    rows, outputs = _pairs(x, y)
    norm, rng = check_norm(norm), np.random.default_rng(seed_of(random_state))
    embedded = norm.embed(rows)
    n, d = outputs.shape
    places = rng.choice(n, min(n, PLACES), replace=False)
    radii = _default_radii(embedded, places) if deltas is None else _given_radii(deltas)
    if bound is None:
        shifted = outputs - outputs.mean(0) if check_flag(center, "center") else outputs
        bound = float((shifted**2).sum(1).max())
    bound = _positive(bound, "bound", "it is M, the largest ||y||^2; y without any spread has none")
    slope = _steepest(embedded, outputs, places, rng) if lipschitz is None else lipschitz
    slope = _positive(slope, "lipschitz", "it is L, the slope of y in x", zero=True)
    constant = _positive(constant, "constant", "it is the unknown C of the theorem")
    centres = np.sort(rng.choice(n, min(n, CENTRES), replace=False))
    sizes = [radius_search(rows, delta, norm, None, 0).sizes(centres) for delta in radii]
    return ErrorBound(
        deltas=radii,
        ball_sizes=np.array([np.median(counts) for counts in sizes]),
        rows=np.full(len(radii), 4 * bound / np.sqrt(n)),
        sampling=8 * constant * bound * np.array([sampling_rate(counts, d).mean() for counts in sizes]),
        smoothing=8 * np.sqrt(bound) * slope * radii,
        bound=bound,
        lipschitz=slope,
        constant=constant,
        n_rows=n,
        n_outputs=d,
    )


def sampling_rate(sizes: Any, d: int) -> Array:
    r"""How fast n draws approach their law in W2, h(n, d) of the theorem, d the dimension of the *output*.

    .. math:: h(n, d) = n^{-1/4} \log(1 + n)^{1/2} \ (d \le 4), \qquad n^{-1/d} \ (d > 4)

    This is the proof's h; the main text prints twice as much, and only the unknown C would notice. For d <= 4
    it falls from about 5 rows on; the logarithm lets it rise a little before.

    >>> sampling_rate([1, 16], d=1).round(4), sampling_rate([32], d=5)
    (array([0.8326, 0.8416]), array([0.5]))
    """
    n = as_array(sizes, "sizes").astype(np.float64)
    if (n < 1).any():
        raise ValueError(f"sizes has {n.min():g}; a ball holds at least its centre.")
    rate: Array = n**-0.25 * np.sqrt(np.log1p(n)) if d <= 4 else n ** (-1 / d)
    return rate


def _pairs(x: Any, y: Any) -> tuple[Array, Array]:
    rows, outputs = as_rows(x), as_rows(y, "y").astype(np.float64)
    if len(rows) != len(outputs):
        raise ValueError(f"x has {len(rows)} rows and y has {len(outputs)}; they must be pairs.")
    if len(rows) < 3:
        raise ValueError(f"x has {len(rows)} row(s); a slope of y and a trade-off need at least 3.")
    return rows, outputs


def _positive(value: Any, name: str, why: str, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not (0 <= float(value) < np.inf):
        number = -1.0
    else:
        number = float(value)
    if number < 0 or (number == 0 and not zero):
        raise ValueError(f"{name}={value!r} must be a finite number {'>= 0' if zero else '> 0'}: {why}.")
    return number


def _given_radii(deltas: Any) -> Array:
    values = np.atleast_1d(np.asarray(deltas, dtype=object))
    radii = np.array([check_radius(delta) for delta in values.ravel()])
    if values.ndim != 1 or not len(radii) or not np.isfinite(radii).all():
        raise ValueError(f"deltas={deltas!r} must be a list of finite radii, such as [0.1, 0.2, 0.4].")
    return np.sort(radii)


def _default_radii(embedded: Array, places: Array) -> Array:
    """Radii whose median ball holds 2, ..., N rows, evenly on a log scale."""
    n = len(embedded)
    ranks = np.unique(np.geomspace(2, n, 24).round().astype(int)) - 1
    step = max(1, (1 << 22) // n)
    chunks = (places[low : low + step] for low in range(0, len(places), step))
    reach = np.concatenate([np.partition(cdist(embedded[at], embedded), ranks)[:, ranks] for at in chunks])
    radii = np.unique(np.median(reach, axis=0))
    radii = radii[radii > 0]
    if not len(radii):
        raise ValueError("x does not vary for most rows, so no radius above 0 separates them; give deltas.")
    return radii


def _steepest(embedded: Array, outputs: Array, places: Array, rng: np.random.Generator) -> float:
    """The mean slope of mean and SD of y at the steepest places, by local straight lines in the embedded x.

    One half of the rows finds the places and the direction of steepest change, the other measures the slope
    there, and the other way round: the largest of many noisy slopes would mostly be noise.
    """
    order = rng.permutation(len(embedded))
    halves = [_slopes(embedded[places], embedded[rows], outputs[rows]) for rows in (order[::2], order[1::2])]
    measured = []
    for finder, judge in (halves, halves[::-1]):
        steeper = np.linalg.norm(finder, 2, axis=(2, 3)).argmax(1)  # of the balls of a place
        at = np.arange(len(places)), steeper
        finder, judge = finder[at], judge[at]
        left, sizes, right = np.linalg.svd(finder, full_matrices=False)
        along = np.einsum("ni,nij,nj->n", left[:, :, 0], judge, right[:, 0])
        steep = np.argsort(-sizes[:, 0], kind="stable")[: max(1, round(STEEP * len(places)))]
        measured.append(float(along[steep].mean()))
    return max(0.0, sum(measured) / 2)


def _slopes(places: Array, x: Array, y: Array) -> Array:
    """The change of (mean, SD) of y (n, d) for a unit step in x (n, p), (places, 2, 2 d, p).

    The first of two balls at a place has a size of the best rate. Where x has few levels all its rows may
    share one, or lie in a plane, and show no change across it; the second grows until it shows all changes.
    """
    n, p = x.shape
    at_all, rank = _slope(x - x.mean(0), y)
    if rank == 1:
        raise ValueError(
            f"x has one value in a half of the rows ({n}), so that no slope of y can be measured: give "
            "lipschitz=, how fast the law of y moves with x, or more levels of x."
        )
    # The rate of the best local line, but never so few rows that the slopes of all columns are noise.
    k = min(n, max(10 * (p + 1), int(n ** (4 / (4 + p)))))
    tree, found = cKDTree(x), []
    distinct, inverse = np.unique(places, axis=0, return_inverse=True)
    for place in distinct:
        first, reached = _slope_of_ball(tree, place, y, k)
        last, size = first, 2 * k
        while reached < rank and size < n:
            last, reached = _slope_of_ball(tree, place, y, size)
            size *= 2
        found.append((first, last if reached == rank else at_all))
    return np.array(found)[inverse.ravel()]


def _slope_of_ball(tree: cKDTree, place: Array, y: Array, k: int) -> tuple[Array, int]:
    """The slope among the k nearest rows and those just as near: a ball has whole levels of x."""
    reach = float(tree.query(place, [k])[0][0])
    ball = np.sort(tree.query_ball_point(place, reach * (1 + 1e-9)))
    return _slope(tree.data[ball] - place, y[ball])


def _slope(x: Array, y: Array) -> tuple[Array, int]:
    """The change (2 d, p) of mean and SD of y (n, d), and the rank of its design, p + 1 or less."""
    design = np.column_stack([np.ones(len(x)), x])
    in_mean, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    # The mean of |residual| is sqrt(2 / pi) of the SD for a Gaussian, and far less noisy than squares.
    sizes = np.abs(y - design @ in_mean) * np.sqrt(np.pi / 2)
    in_std = np.linalg.lstsq(design, sizes, rcond=None)[0]
    return np.column_stack([in_mean[1:], in_std[1:]]).T, int(rank)
