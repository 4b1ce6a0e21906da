"""The pairs (y, yhat) that a test swaps: standardised by the sampler itself, as columns to be compared.

Whatever is chosen here by looking at y must not change when y_i and yhat_i are swapped in some rows. The
exactness of the test rests on that alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from localw2._validation import Array
from localw2.judging.swap_test.draws import LEAST_DRAWS, DrawMoments

if TYPE_CHECKING:
    from localw2.judging.sampler import SamplerDraws

# Times of a trajectory that are compared: neighbouring times carry nearly the same information.
MOST_TIMES = 16
# Standardised values are clipped here. A row about which the sampler is far too certain would otherwise be
# thousands of SDs away and drown out the rest. For Gaussian laws, too, the tails add more noise than signal:
# with clipping the power at N = 1000 was .97 and .99 instead of .95 and .97 (SD 20 % too large, mean shifted
# by .2 SD; 200 runs each).
CUT = 3.0
# SDs below this fraction of their root mean square are raised to it, which sets the scale of such rows.
LEAST_STD = 1e-3
# A draw that equals y in at least this many distinct values is the data themselves, not chance.
MANY_VALUES = 20


@final
@dataclass(frozen=True)
class SwapPairs:
    """Observed and drawn outputs as columns (N, C), and what was noticed about the draws.

    ``shared_noise`` is roughly how many rows share the noise of a draw, 1 if all are independent; ``repeats``
    says that draws which should be new repeat yhat.

    >>> from localw2.judging.sampler import SamplerDraws
    >>> sampler = SamplerDraws.of(lambda x: 5 + 0 * x[:, 0], np.zeros((2, 1)), (2,))
    >>> pairs = SwapPairs.of(np.array([4.0, 6.0]), sampler, 10, 8, np.random.default_rng(0))
    >>> pairs.y.ravel(), pairs.yhat.ravel()
    (array([-1.,  1.]), array([0., 0.]))
    """

    y: Array
    yhat: Array
    shared_noise: float = 1.0
    notes: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def n_columns(self) -> int:
        """The number of columns compared: directions times time points."""
        return int(self.y.shape[1])

    @classmethod
    def of(
        cls, y: Array, draws: SamplerDraws, n_moment_draws: int, n_directions: int, rng: np.random.Generator
    ) -> SwapPairs:
        """Draw yhat once and standardise both by ``n_moment_draws`` more draws (0: do not standardise)."""
        shape = (len(y), *{1: (1, 1), 2: (1, y.shape[-1]), 3: y.shape[1:]}[y.ndim])
        pairs = np.stack([y.reshape(shape), draws.one(rng).reshape(shape)])
        times = choose_times(pairs)
        if len(times) == 0:
            column = _merge_equal_pairs(pairs)
            return cls(
                column, column, notes=("The draw equals y in every row, so there is nothing to swap.",)
            )
        pairs = pairs[:, :, times]

        def pick(chunk: Array) -> Array:
            picked: Array = chunk.reshape(-1, *shape)[:, :, times].reshape(len(chunk), len(y), -1)
            return picked

        if n_moment_draws == 0:
            # A separate stream, so that probing for shared noise does not change the swaps of a given seed.
            probed = DrawMoments.of(draws, LEAST_DRAWS, pick, rng.spawn(1)[0])
            first, second = _project(pairs, n_directions, rng)
            return cls(first, second, probed.measure_dependence())
        flat = pairs.reshape(2, len(y), -1)
        moments = DrawMoments.of(draws, n_moment_draws, pick, rng, flat)
        pairs = standardize(flat, moments).reshape(pairs.shape)
        first, second = _project(pairs, n_directions, rng)
        return cls(
            first,
            second,
            moments.measure_dependence(),
            _write_notes(moments, n_moment_draws),
            moments.repeats,
        )


def choose_times(pairs: Array) -> Array:
    """At most 16 evenly spaced times of (2, N, T, d) at which a swap changes something (not the start)."""
    first, second = pairs
    # Up to rounding, because a start that is computed in two ways may differ by that much.
    rounding = 4 * np.finfo(np.float64).eps * np.maximum(np.abs(first), np.abs(second))
    moving = np.flatnonzero((np.abs(first - second) > rounding).any((0, 2)))
    most = min(len(moving), MOST_TIMES)
    chosen: Array = moving[np.linspace(0, max(0, len(moving) - 1), most).round().astype(int)]
    return chosen


def _merge_equal_pairs(pairs: Array) -> Array:
    """One column for both members, so that every distance is 0; an error if the sampler returns the data."""
    n_values = len(np.unique(pairs[0].reshape(pairs.shape[1], -1), axis=0))
    if n_values >= MANY_VALUES:
        raise ValueError(
            f"the sampler's draw equals y in every row ({n_values} distinct values), so there is nothing to "
            "swap. Does it return the data? Pass a sampler that makes new draws from x."
        )
    column: Array = pairs[0, :, 0, :1]
    return column


def standardize(pairs: Array, moments: DrawMoments) -> Array:
    """Standardise both members of each pair (2, N, C) by the sampler's mean and SD, and clip at 3 SDs.

    Columns without spread are only shifted and scaled as a whole: their mean may be yhat itself (a fixed
    seed), and subtracting it would distinguish yhat from y.
    """
    typical = _typical_std(moments)
    scale = np.maximum(moments.std, LEAST_STD * typical)
    cut = np.clip((pairs - moments.mean) / np.where(scale > 0, scale, 1.0), -CUT, CUT)
    # This shift and this unit do not change under swaps.
    errors = np.sqrt(((pairs[0] - pairs[1]) ** 2).mean(0))
    raw = (pairs - pairs.mean((0, 1))) / np.where(errors > 0, errors, 1.0)
    found: Array = np.where(typical > 0, cut, raw)
    return found


def _typical_std(moments: DrawMoments) -> Array:
    typical: Array = np.sqrt((moments.std**2).mean(0))
    return typical


def _write_notes(moments: DrawMoments, n_draws: int) -> tuple[str, ...]:
    notes = []
    if moments.n_left_out:
        notes.append(
            f"{moments.n_left_out} of {n_draws} draws for mean and SD repeated the pairs and were left out."
        )
    typical = _typical_std(moments)
    if (typical == 0).all():
        few_left = n_draws - moments.n_left_out < 2
        equal = "All draws of the sampler were equal (a point forecast or a fixed seed), so y and yhat were"
        notes.append(f"{'y and yhat were' if few_left else equal} compared without standardising.")
    few = int((moments.std < LEAST_STD * typical).any(1).sum())
    if few:
        notes.append(
            f"{few} rows have less than {LEAST_STD:g} of the typical spread and were compared on that scale."
        )
    return tuple(notes)


def _project(pairs: Array, n_directions: int, rng: np.random.Generator) -> Array:
    """Turn (2, N, T, d) into (2, N, C), along random directions if there are several outputs."""
    _, n, n_times, d = pairs.shape
    if d == 1:
        return pairs[..., 0]
    each = n_directions if n_times == 1 else max(2, n_directions // n_times)
    directions = rng.normal(size=(n_times, d, each))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    projected: Array = np.einsum("pntd,tdk->pntk", pairs, directions).reshape(2, n, n_times * each)
    return projected
