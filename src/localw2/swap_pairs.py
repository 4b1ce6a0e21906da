"""The pairs (y, yhat) that a test swaps: standardised by the sampler itself, as columns to be compared.

Whatever is chosen here by looking at y must not change when y_i and yhat_i are swapped in some rows: that is
all that the exactness of the test rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from localw2._validation import Array
from localw2.sampler_draws import DrawMoments, SamplerDraws

# Times of a trajectory that are compared: neighbouring ones say nearly the same.
MOST_TIMES = 16
# Standardised values are cut off here. A row that the sampler is far too sure of would otherwise be thousands
# of SDs away on whichever side it is, and drown the rest. Of Gaussian laws, too, the tails bring more noise
# than signal: with the cut the power at N = 1000 was .97 and .99 instead of .95 and .97 (SD 20 % too large,
# mean shifted by .2 SD; 200 runs each).
CUT = 3.0
# SDs below this part of their root mean square are raised to it: a certain row is compared on that scale.
LEAST_STD = 1e-3


@final
@dataclass(frozen=True)
class SwapPairs:
    """Observed and drawn outputs as columns (N, C), and what was seen on the way.

    ``shared_noise`` is about how many rows share the noise of a draw, 1 if all are independent.

    >>> sampler = SamplerDraws.of(lambda x: 5 + 0 * x[:, 0], np.zeros((2, 1)), (2,))
    >>> pairs = SwapPairs.of(np.array([4.0, 6.0]), sampler, 10, 8, np.random.default_rng(0))
    >>> pairs.y.ravel().round(3), pairs.yhat.ravel()
    (array([-1.414,  1.414]), array([0., 0.]))
    """

    y: Array
    yhat: Array
    shared_noise: float
    notes: tuple[str, ...]

    @property
    def n_columns(self) -> int:
        """Directions times times that are compared."""
        return int(self.y.shape[1])

    @classmethod
    def of(
        cls, y: Array, draws: SamplerDraws, n_moment_draws: int, n_directions: int, rng: np.random.Generator
    ) -> SwapPairs:
        """Draw yhat once; standardise both by ``n_moment_draws`` more draws (0: leave them as they are)."""
        shape = (len(y), *{1: (1, 1), 2: (1, y.shape[-1]), 3: y.shape[1:]}[y.ndim])
        pairs = np.stack([y.reshape(shape), draws.one(rng).reshape(shape)])
        times = moving_times(pairs)
        pairs = pairs[:, :, times]
        shared_noise = 1.0
        notes: tuple[str, ...] = ()
        if n_moment_draws:

            def pick(chunk: Array) -> Array:
                picked: Array = chunk.reshape(-1, *shape)[:, :, times].reshape(len(chunk), len(y), -1)
                return picked

            moments = DrawMoments.of(draws, n_moment_draws, pick, rng)
            shared_noise, notes = moments.dependence(), _notes(moments)
            pairs = standardized(pairs.reshape(2, len(y), -1), moments).reshape(pairs.shape)
        first, second = _projected(pairs, n_directions, rng)
        return cls(first, second, shared_noise, notes)


def moving_times(pairs: Array) -> Array:
    """At most 16 evenly spaced times of (2, N, T, d) at which a swap changes something (not the start)."""
    first, second = pairs
    size = np.abs(pairs).max((0, 1, 3))
    moving = np.flatnonzero(np.abs(first - second).max((0, 2)) > 1e-9 * size)
    if len(moving) == 0:
        raise ValueError(
            "the sampler's draw equals y in every row, so there is nothing to swap. Does it return the data?"
        )
    chosen: Array = moving[np.linspace(0, len(moving) - 1, min(len(moving), MOST_TIMES)).round().astype(int)]
    return chosen


def standardized(pairs: Array, moments: DrawMoments) -> Array:
    """Both members of each pair (2, N, C) by the sampler's own mean and SD, cut off at 3 SDs."""
    residuals = pairs - moments.mean
    typical = _typical(moments)
    # A sampler without spread has no scale of its own; that of both members' errors stays under swaps.
    errors = np.sqrt((residuals**2).mean((0, 1)))
    floor = np.where(typical > 0, LEAST_STD * typical, errors)
    scale = np.maximum(moments.std, floor)
    cut: Array = np.clip(residuals / np.where(scale > 0, scale, 1.0), -CUT, CUT)
    return cut


def _typical(moments: DrawMoments) -> Array:
    typical: Array = np.sqrt((moments.std**2).mean(0))
    return typical


def _notes(moments: DrawMoments) -> tuple[str, ...]:
    typical = _typical(moments)
    if (typical == 0).all():
        return (
            "all draws of the sampler were equal: it is a point forecast, or its seed is fixed; "
            "y and the draw were compared on the scale of its errors",
        )
    few = int((moments.std < LEAST_STD * typical).any(1).sum())
    if few == 0:
        return ()
    return (f"{few} rows with less than {LEAST_STD:g} of the usual spread were compared on that scale",)


def _projected(pairs: Array, n_directions: int, rng: np.random.Generator) -> Array:
    """(2, N, T, d) to (2, N, C): along random directions where there are several outputs."""
    _, n, n_times, d = pairs.shape
    if d == 1:
        return pairs[..., 0]
    each = n_directions if n_times == 1 else max(2, n_directions // n_times)
    directions = rng.normal(size=(n_times, d, each))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    projected: Array = np.einsum("pntd,tdk->pntk", pairs, directions).reshape(2, n, n_times * each)
    return projected
