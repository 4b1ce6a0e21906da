"""The theorem's bound on the error of the local loss, term by term: a rate, not a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, final

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from localw2._validation import Array, as_rows, brief, check_flag, check_radius, seed_from
from localw2.balls.norms import Norm, check_norm
from localw2.balls.search import radius_search
from localw2.plots.rows import DATA, MODEL, TRUTH, _pyplot

# Balls counted at each delta; the mean of h over this many is known to within 1 %.
CENTRES = 1000
# Places at which the slope of y is estimated, and from which the default deltas are derived.
PLACES = 250
# The steepest share of the places; their mean slope is the estimated Lipschitz constant.
STEEP = 0.1


@final
@dataclass(frozen=True, eq=False, repr=False)
class ErrorBound:
    """The three terms of the bound at each delta, (n,) each, and what they were computed from.

    ``rows`` is due to the finite number of rows, ``sampling`` to few rows per ball (from about 5 rows on it
    falls with delta), ``smoothing`` to the change of the distribution inside a ball (it grows with delta).
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
        """The delta of the grid at which the bound is smallest."""
        return float(self.deltas[np.argmin(self.total)])

    def plot(self, measured: tuple[Any, Any] | None = None, ax: Any = None) -> Any:
        """Draw the terms against delta, ``measured`` = (deltas, errors) on a second axis. Returns the Axes.

        The second axis has its own scale, because the bound is off by an unknown factor: compare shapes only.
        """
        if ax is None:
            _, ax = _pyplot().subplots(figsize=(7.5, 5), layout="constrained")
        for values, label, color, width, line in (
            (self.total, "bound", MODEL, 2.5, "-"),
            (self.sampling, r"few rows per ball: $8CM\,E\,h(N(x, \delta), d)$", MODEL, 1.2, "--"),
            (self.smoothing, r"change within a ball: $8\sqrt{M}L\delta$", MODEL, 1.2, ":"),
            (self.rows, r"finite number of rows: $2M/\sqrt{N}$", DATA, 1.2, "-."),
        ):
            ax.plot(self.deltas, values, label=label, color=color, lw=width, ls=line)
        best = rf"minimum of the bound, $\delta$ = {self.best_delta:.2g}"
        ax.axvline(self.best_delta, color=MODEL, lw=0.8, alpha=0.6, label=best)
        ax.set(xscale="log", yscale="log", xlabel=r"$\delta$")
        ax.set_ylabel(f"bound, with C = {self.constant:g} assumed")
        handles, labels = ax.get_legend_handles_labels()
        if measured is not None:
            at, errors = (np.asarray(values, dtype=np.float64) for values in measured)
            if at.shape != errors.shape or at.ndim != 1:
                raise ValueError(
                    f"measured has shapes {at.shape} and {errors.shape}; pass (deltas, errors), (n,) each."
                )
            right = ax.twinx()
            handles += right.plot(at, errors, "o-", ms=4, lw=1.5, color=TRUTH)
            labels.append("measured error (right axis)")
            right.set(yscale="log", ylabel="measured error")
            right.yaxis.label.set_color(TRUTH)
            right.spines["top"].set_visible(False)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": 2}
        ax.legend(handles, labels, frameon=False, fontsize=8.5, **below)
        ax.spines["top"].set_visible(False)
        ax.set_title("Error bound: a rate, not a certificate", fontsize=11)
        return ax

    def __repr__(self) -> str:
        low = int(np.argmin(self.total))
        return (
            f"ErrorBound(a rate, not a certificate: C = {self.constant:g} is assumed, M = {self.bound:.3g}, "
            f"L = {self.lipschitz:.3g}; smallest at delta = {self.best_delta:.3g}, about "
            f"{self.ball_sizes[low]:.0f} rows per ball: {self.total[low]:.3g} = {self.rows[low]:.3g} rows + "
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
    r"""Bound how far the local loss may be from what it estimates, for each delta (paper, Theorem 1).

    .. math:: E\,|W - W_\delta^e| \le \frac{2 M}{\sqrt N} + 8 C M\, E[h(N(x, \delta), d)] + 8 \sqrt M L \delta

    (The paper has 4 M in the first term; half of it is enough, see the page on theory.) It holds for a fixed
    model, whose draws are independent of y.

    **A rate, not a certificate.** C is an unknown constant (1 is assumed), M and L are estimated. The bound
    shows how the terms trade off, not the size of an error.

    ``x`` is (N, p) and ``y`` (N,) or (N, d); d enters ``h``, see ``sampling_rate``. ``deltas`` defaults to a
    grid on which the median ball grows from 2 rows to N. The other quantities are estimated unless given:

    - ``bound``, M: the largest :math:`\|y\|^2` after subtracting the mean of y, because the loss does not
      change when y and yhat are shifted together (``center=False``: without subtracting). yhat is assumed to
      obey the same bound.
    - ``lipschitz``, L, in the units of ``norm``: how fast the distribution of y changes with x. Differences
      of single rows would be noise over a small distance, so the mean and SD of y are fitted by local
      straight lines at 250 places. The slope at a place is the largest change of both together (by Gelbrich's
      bound W2 changes at least this fast), and L is the mean slope of the steepest 10 %, which are selected
      on one half of the rows and measured on the other. yhat is assumed to be no steeper.
      The theorem's L holds for every omega and is at least as large, infinite for Gaussian coefficients:
      the estimate errs downwards, so that the smoothing term is too small and ``best_delta`` too large.
    - ball sizes are counted, around 1000 random rows if there are more.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=500)
    >>> found = error_bound(x, 2 * x + 0.1 * rng.normal(size=500), random_state=0)
    >>> round(found.lipschitz), bool(found.sampling[0] > found.sampling[-1])
    (2, True)
    >>> error_bound(x, 2 * x, deltas=[0.1, 0.2], lipschitz=2.0, bound=1.0).smoothing
    array([1.6, 3.2])
    """
    rows, outputs = as_rows(x), as_rows(y, "y").astype(np.float64)
    if len(rows) != len(outputs):
        raise ValueError(f"x has {len(rows)} rows and y has {len(outputs)}; they must be pairs.")
    if len(rows) < 3:
        raise ValueError(f"x has {len(rows)} row(s); estimating the slope of y takes at least 3.")
    norm, rng = check_norm(norm), np.random.default_rng(seed_from(random_state))
    embedded = norm.embed(rows)
    n, d = outputs.shape
    places = rng.choice(n, min(n, PLACES), replace=False)
    radii = _choose_radii(embedded, places) if deltas is None else _check_radii(deltas)
    if bound is None:
        shifted = outputs - outputs.mean(0) if check_flag(center, "center") else outputs
        bound = float((shifted**2).sum(1).max())
    bound = _check_positive(bound, "bound", "it is M, the largest ||y||^2, which is 0 if y has no spread")
    slope = _estimate_lipschitz(embedded, outputs, places, rng) if lipschitz is None else lipschitz
    slope = _check_positive(slope, "lipschitz", "it is L, the slope of y in x", zero=True)
    constant = _check_positive(constant, "constant", "it is the unknown C of the theorem")
    centres = np.sort(rng.choice(n, min(n, CENTRES), replace=False))
    sizes = [radius_search(rows, delta, norm, None, 0).sizes(centres) for delta in radii]
    return ErrorBound(
        deltas=radii,
        ball_sizes=np.array([np.median(counts) for counts in sizes]),
        rows=np.full(len(radii), 2 * bound / np.sqrt(n)),
        sampling=8 * constant * bound * np.array([sampling_rate(counts, d).mean() for counts in sizes]),
        smoothing=8 * np.sqrt(bound) * slope * radii,
        bound=bound,
        lipschitz=slope,
        constant=constant,
        n_rows=n,
        n_outputs=d,
    )


def sampling_rate(sizes: Any, d: int) -> Array:
    r"""How fast n draws approach their distribution in W2: h(n, d) of the theorem, with d outputs.

    .. math:: h(n, d) = n^{-1/4} \log(1 + n)^{1/2} \ (d \le 4), \qquad n^{-1/d} \ (d > 4)

    This is the h of the proof; the main text prints twice as much, which the unknown C absorbs. For d <= 4 it
    falls from about 5 rows on; before that the logarithm lets it rise slightly.

    >>> sampling_rate([1, 16], d=1).round(4), sampling_rate([32], d=5)
    (array([0.8326, 0.8416]), array([0.5]))
    """
    n = np.asarray(sizes, dtype=np.float64)
    rate: Array = n**-0.25 * np.sqrt(np.log1p(n)) if d <= 4 else n ** (-1 / d)
    return rate


def _check_positive(value: Any, name: str, why: str, zero: bool = False) -> float:
    fits = not isinstance(value, bool) and isinstance(value, Real) and 0 <= float(value) < np.inf
    if not fits or (value == 0 and not zero):
        raise ValueError(f"{name}={brief(value)} must be a finite number {'>= 0' if zero else '> 0'}: {why}.")
    return float(value)


def _check_radii(deltas: Any) -> Array:
    values = np.atleast_1d(np.asarray(deltas, dtype=object))
    radii = np.array([check_radius(delta) for delta in values.ravel()])
    if values.ndim != 1 or not len(radii) or not np.isfinite(radii).all():
        raise ValueError(f"deltas={brief(deltas)} must be a list of finite radii, such as [0.1, 0.2, 0.4].")
    return np.sort(radii)


def _choose_radii(embedded: Array, places: Array) -> Array:
    """Radii whose median ball holds 2, ..., N rows, evenly on a log scale."""
    n = len(embedded)
    ranks = np.unique(np.geomspace(2, n, 24).round().astype(int)) - 1
    step = max(1, (1 << 22) // n)
    chunks = (places[low : low + step] for low in range(0, len(places), step))
    reach = np.concatenate([np.partition(cdist(embedded[at], embedded), ranks)[:, ranks] for at in chunks])
    radii = np.unique(np.median(reach, axis=0))
    if radii[-1] == 0:
        raise ValueError("most rows share one x, so no radius above 0 separates them; pass deltas.")
    return radii[radii > 0]


def _estimate_lipschitz(embedded: Array, outputs: Array, places: Array, rng: np.random.Generator) -> float:
    """The mean slope of the mean and SD of y at the steepest places, by local lines in the embedded x.

    One half of the rows finds the places and directions of steepest change, the other half measures the slope
    there, and vice versa: the largest of many noisy slopes would mostly be noise.
    """
    order = rng.permutation(len(embedded))
    parts = order[::2], order[1::2]
    halves = [_fit_slopes(embedded[places], embedded[rows], outputs[rows]) for rows in parts]
    measured = []
    for finder, judge in (halves, halves[::-1]):
        steeper = np.linalg.norm(finder, 2, axis=(2, 3)).argmax(1)  # of the two balls at a place
        at = np.arange(len(places)), steeper
        finder, judge = finder[at], judge[at]
        left, sizes, right = np.linalg.svd(finder, full_matrices=False)
        along = np.einsum("ni,nij,nj->n", left[:, :, 0], judge, right[:, 0])
        steep = np.argsort(-sizes[:, 0], kind="stable")[: max(1, round(STEEP * len(places)))]
        measured.append(float(along[steep].mean()))
    return max(0.0, sum(measured) / 2)


def _fit_slopes(places: Array, x: Array, y: Array) -> Array:
    """The change of (mean, SD) of y (n, d) per unit step in x (n, p), (places, 2, 2 d, p).

    The first of two balls at a place has the size with the best rate. If x has few levels, all its rows may
    share one level or lie in a plane and show no change across it; the second ball grows until they do.
    """
    n, p = x.shape
    at_all, rank = _fit_slope(x - x.mean(0), y)
    if rank == 1:
        raise ValueError(
            f"x has a single value in one half of the rows ({n}), so the slope of y cannot be measured. Pass "
            "lipschitz=, how fast the distribution of y changes with x, or rows with more levels of x."
        )
    # The best rate for local lines, but never so few rows that the slopes of all columns are noise.
    k = min(n, max(10 * (p + 1), int(n ** (4 / (4 + p)))))
    tree, found = cKDTree(x), []
    distinct, inverse = np.unique(places, axis=0, return_inverse=True)
    for place in distinct:
        first, reached = _fit_slope_in_ball(tree, place, y, k)
        last, size = first, 2 * k
        while reached < rank and size < n:
            last, reached = _fit_slope_in_ball(tree, place, y, size)
            size *= 2
        found.append((first, last if reached == rank else at_all))
    return np.array(found)[inverse.ravel()]


def _fit_slope_in_ball(tree: cKDTree, place: Array, y: Array, k: int) -> tuple[Array, int]:
    """The slope among the k nearest rows and any that are equally near, so that levels of x stay whole."""
    reach = float(tree.query(place, [k])[0][0])
    ball = np.sort(tree.query_ball_point(place, reach * (1 + 1e-9)))
    return _fit_slope(tree.data[ball] - place, y[ball])


def _fit_slope(x: Array, y: Array) -> tuple[Array, int]:
    """The change (2 d, p) of the mean and SD of y (n, d), and the rank of the design, at most p + 1."""
    design = np.column_stack([np.ones(len(x)), x])
    in_mean, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    # For a Gaussian the mean of |residual| is sqrt(2 / pi) SD, and it is far less noisy than squares.
    sizes = np.abs(y - design @ in_mean) * np.sqrt(np.pi / 2)
    in_std = np.linalg.lstsq(design, sizes, rcond=None)[0]
    return np.column_stack([in_mean[1:], in_std[1:]]).T, int(rank)
