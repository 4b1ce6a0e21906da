r"""Maximum mean discrepancy of one output from frequencies, in time linear in the rows of a ball.

A sum of Gaussian kernels is a Fourier series, if repeated with a period that no pair of values reaches:

.. math::
    \sum_s e^{-u^2 / b_s} = \sum_{|k| \le K} c_k e^{i \omega_k u}, \quad
    c_k = \sum_s \frac{\sqrt{\pi b_s}}{T} e^{-b_s \omega_k^2 / 4}, \quad \omega_k = \frac{2 \pi k}{T},

so that the discrepancy is :math:`\sum_k c_k |\varphi_k(y) - \varphi_k(\hat y)|^2`, where
:math:`\varphi_k` is the mean of :math:`e^{i \omega_k u}` over the ball. T and K are chosen so that what the
series leaves out is below the rounding of a kernel. About 30 frequencies do for single precision and 60 for
double. Balls of similar T and K share their frequencies: the waves are then those of rows, and only their
sums are those of balls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import sparse

from localw2.balls.ragged import Balls, runs, steps

if TYPE_CHECKING:
    from localw2._validation import Array

# Complex numbers in a scratch array: within a core's second-level cache.
SCRATCH_NUMBERS = 1 << 17
# Edges that are summarised at a time.
SCRATCH_EDGES = 1 << 22
# The largest period of balls that share their frequencies, over the smallest; the highest frequency likewise.
GROWTH = math.sqrt(2)
# A matrix of balls and rows with more entries than this is multiplied as a dense one.
DENSE = 0.1
COMPLEX = {np.dtype(np.float32): np.complex64, np.dtype(np.float64): np.complex128}


@final
@dataclass(frozen=True)
class Summary:
    """Mean, variance, smallest and largest value in every ball, (n,) each, in double precision."""

    mean: Array
    variance: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, values: Array, balls: Balls, shares: Array) -> Summary:
        """Those of ``values`` (N,), where ``shares`` (edges,) sum to 1 in every ball.

        >>> balls = Balls(np.array([2, 1]), np.array([0, 1, 2]))
        >>> Summary.of(np.array([1.0, 3.0, 5.0]), balls, np.array([0.5, 0.5, 1.0])).variance
        array([1., 0.])
        """
        found = np.empty((4, len(balls.sizes)))
        for run in runs(balls.sizes, SCRATCH_EDGES):
            sizes, first, last = balls.sizes[run], balls.indptr[run.start], balls.indptr[run.stop]
            starts, share = balls.starts[run] - first, shares[first:last]
            inside = values[balls.rows[first:last]].astype(np.float64)
            mean = np.add.reduceat(inside * share, starts)
            # From deviations, since raw squares would lose the digits of a small variance.
            squares = np.square(inside - np.repeat(mean, sizes))
            variance = np.add.reduceat(squares * share, starts)
            low, high = np.minimum.reduceat(inside, starts), np.maximum.reduceat(inside, starts)
            found[:, run] = mean, variance, low, high
        return cls(*found)


def measure_bandwidths(y: Summary, yhat: Summary, counts: Array) -> Array:
    """The mean squared distance (n,) over ordered pairs of the pooled sample of 2 ``counts`` rows, or 1 if 0.

    It is twice the pooled variance, but for the factor of an unbiased one.
    """
    pooled = (y.variance + yhat.variance) / 2 + np.square((y.mean - yhat.mean) / 2)
    bandwidths = 4 * pooled / np.maximum(2 - 1 / counts, 1)
    return np.where(bandwidths == 0, 1.0, bandwidths)


@final
@dataclass(frozen=True)
class Plan:
    """The ``period`` of every ball (n,) and how many frequencies (``counts``) its narrowest kernel takes."""

    bandwidths: Array  # of all kernels, (n, kernels)
    period: Array
    counts: Array

    @classmethod
    def of(cls, y: Summary, yhat: Summary, bandwidths: Array, dtype: Any) -> Plan:
        """A period is the range of a ball and the reach of its widest kernel."""
        reach = math.sqrt(-math.log(np.finfo(dtype).eps / 8))  # where exp(-u^2) is below the rounding of 1
        widths = np.sqrt(bandwidths)
        period = np.maximum(y.high, yhat.high) - np.minimum(y.low, yhat.low) + reach * widths.max(1)
        return cls(bandwidths, period, reach / (math.pi * widths.min(1)) * period)

    def groups(self, chosen: Array) -> list[Array]:
        """The ``chosen`` balls (indices) in groups of similar period and highest frequency."""
        highest = self.counts[chosen] / self.period[chosen]
        keys = np.floor(np.log([self.period[chosen], highest]) / math.log(GROWTH))
        order = np.lexsort(keys)
        changes = np.flatnonzero(np.diff(keys[:, order]).any(0)) + 1
        return np.split(chosen[order], changes)


def compare_spectra(
    y: Array, yhat: Array, balls: Balls, shares: Array, weights: Array, plan: Plan, chosen: Array
) -> tuple[float, Array]:
    """The sum over ``chosen`` balls of weight times discrepancy, and its slope in yhat (N,).

    y and yhat are (N,) and of one type, in which the waves are computed; ``shares`` (edges,) are those of the
    rows in their balls.

    >>> y, balls, halves = np.array([0.0, 1.0]), Balls(np.array([2]), np.array([0, 1])), np.full(2, 0.5)
    >>> here, there = (Summary.of(values, balls, halves) for values in (y, y + 1))
    >>> plan = Plan.of(here, there, np.ones((1, 1)), float)
    >>> loss, _ = compare_spectra(y, y + 1, balls, halves, np.ones(1), plan, np.array([0]))
    >>> abs(loss - (1 - math.exp(-4)) / 2) < 1e-15  # (1 + 1/e) - (1 + 2/e + e^-4) / 2
    True
    """
    # Only differences matter, and centred values keep their digits.
    middle = y.mean(dtype=np.float64)
    total, slope = 0.0, np.zeros(len(yhat))
    for group in plan.groups(chosen):
        rows, mass = _gather(balls, shares, group, y)
        period = float(plan.period[group].max())
        count = math.ceil(float((plan.counts[group] / plan.period[group]).max()) * period)
        base, block = 2 * math.pi / period, max(1, SCRATCH_NUMBERS // max(mass.shape))
        angles = [base * (values[rows].astype(np.float64) - middle) for values in (y, yhat)]
        for first in range(1, count + 1, block):
            k = np.arange(first, min(first + block, count + 1))
            strength = _weigh_waves(base * k, plan.bandwidths[group], period)
            observed, simulated = (_raise(angle, k, y.dtype) for angle in angles)
            # The difference comes first: sums of it are small, and so is their rounding.
            gap = mass @ np.subtract(observed, simulated, out=observed).view(y.dtype)
            parts = gap.reshape(len(group), len(k), 2)
            total += float(weights[group] @ (strength * np.square(parts).sum(2)).sum(1))
            pull = parts * (weights[group, None] * strength * (base * k)).astype(y.dtype)[..., None]
            back = np.ascontiguousarray(mass.T @ pull.reshape(gap.shape)).view(simulated.dtype)
            slope[rows] += 2 * (back.conj() * simulated).imag.sum(1, dtype=np.float64)
    return total, slope.astype(y.dtype)


def _gather(balls: Balls, shares: Array, group: Array, like: Array) -> tuple[Array, Any]:
    """The rows of some balls, and the shares of these rows in them as a matrix (balls, rows)."""
    sizes = balls.sizes[group]
    edges = np.repeat(balls.starts[group], sizes) + steps(sizes)
    inside = balls.rows[edges]
    used = np.zeros(len(like), bool)
    used[inside] = True
    local = (np.cumsum(used) - 1)[inside]
    shape = len(group), int(used.sum())
    ends = np.concatenate([[0], np.cumsum(sizes)])
    mass = sparse.csr_matrix((shares[edges].astype(like.dtype), local, ends), shape)
    return np.flatnonzero(used), mass.toarray() if mass.nnz > DENSE * shape[0] * shape[1] else mass


def _weigh_waves(omega: Array, bandwidths: Array, period: float) -> Array:
    """Both c_k and c_-k of every ball, (n, frequencies)."""
    found = np.zeros((len(bandwidths), len(omega)))
    for width in bandwidths.T:
        found += np.sqrt(math.pi * width)[:, None] * np.exp(np.outer(width, omega**2 / -4))
    found *= 2 / period
    return found


def _raise(angle: Array, k: Array, dtype: np.dtype[Any]) -> Array:
    """exp(i k angle) for consecutive k, (rows, frequencies).

    Each half is the product of the one before and a factor in double precision: an error of the angle would
    grow with the power.
    """
    powers: Array = np.empty((len(angle), len(k)), COMPLEX[dtype])
    powers[:, 0] = np.exp(1j * k[0] * angle)
    factor, done = np.exp(1j * angle), 1
    while done < len(k):
        more = min(done, len(k) - done)
        np.multiply(powers[:, :more], factor.astype(powers.dtype)[:, None], out=powers[:, done : done + more])
        factor, done = factor * factor, done + more
    return powers
