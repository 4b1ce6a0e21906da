"""The pairs (y, yhat) that a test swaps: standardised by the sampler itself, as columns to be compared.

Whatever is chosen here by looking at y must not change when y_i and yhat_i are swapped in some rows. The
exactness of the test rests on that alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array
from localw2.judging.independence import LEAST_DRAWS, choose_probe, measure_shared_noise, space_evenly

if TYPE_CHECKING:
    from localw2.models.sampler import SamplerDraws

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
# Draws that repeat the pair give a warning only where fewer than this many are expected by chance.
SURELY_REPEATED = 1e-3


@final
@dataclass(frozen=True)
class SwapPairs:
    """Observed and drawn outputs as columns (N, C), and what was noticed about the draws.

    ``shared_noise`` is roughly how many rows share the noise of a draw, 1 if all are independent; ``repeats``
    says that draws which should be new repeat yhat. ``std`` (N,) is the sampler's SD if there is one column
    that was standardised by it, otherwise None.

    >>> from localw2.models.sampler import SamplerDraws
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
    std: Array | None = None

    @classmethod
    def of(
        cls, y: Array, draws: SamplerDraws, n_moment_draws: int, n_directions: int, rng: np.random.Generator
    ) -> SwapPairs:
        """Draw yhat once and standardise both by ``n_moment_draws`` more draws (0: do not standardise)."""
        shape = y.shape if y.ndim == 3 else (len(y), 1, y[0].size)
        pairs = np.stack([y.reshape(shape), draws.one(rng).reshape(shape)])
        # Times at which a swap changes something (not the start), up to rounding, because a start that is
        # computed in two ways may differ by that much.
        rounding = 4 * np.finfo(np.float64).eps * np.abs(pairs).max(0)
        moving = np.flatnonzero((np.abs(pairs[0] - pairs[1]) > rounding).any((0, 2)))
        if len(moving) == 0:
            n_values = len(np.unique(pairs[0].reshape(len(y), -1), axis=0))
            if n_values >= MANY_VALUES:
                raise ValueError(
                    f"the sampler's draw equals y in every row ({n_values} distinct values), so there is "
                    "nothing to swap. Does it return the data? Pass a sampler that makes new draws from x."
                )
            column = pairs[0, :, 0, :1]  # for both members, so that every distance is 0
            note = "The draw equals y in every row, so there is nothing to swap."
            return cls(column, column, notes=(note,))
        times = moving[space_evenly(len(moving), MOST_TIMES)]
        pairs = pairs[:, :, times]

        def pick(chunk: Array) -> Array:
            picked: Array = chunk.reshape(-1, *shape)[:, :, times].reshape(len(chunk), len(y), -1)
            return picked

        notes: tuple[str, ...] = ()
        if n_moment_draws == 0:
            # A separate stream, so that probing for shared noise does not change the swaps of a given seed.
            moments = DrawMoments.of(draws, LEAST_DRAWS, pick, rng.spawn(1)[0])
        else:
            flat = pairs.reshape(2, len(y), -1)
            moments = DrawMoments.of(draws, n_moment_draws, pick, rng, flat)
            flat, notes = _standardize(flat, moments, n_moment_draws)
            pairs = flat.reshape(pairs.shape)
        first, second = _project(pairs, n_directions, rng)
        alone = n_moment_draws > 0 and moments.std.shape[1] == 1 and (moments.std > 0).any()
        std = moments.std[:, 0] if alone else None
        return cls(first, second, moments.shared_noise, notes, moments.repeats, std)


@final
@dataclass(frozen=True)
class DrawMoments:
    """Mean and SD of the draws at every row and column (N, C), and whether the draws are independent.

    ``n_left_out`` of the draws repeated the pair and do not enter the moments; ``repeats`` says that they
    equal yhat, and that this is not chance. ``shared_noise`` is that of ``SwapPairs``.
    """

    mean: Array
    std: Array
    shared_noise: float
    n_left_out: int
    repeats: bool

    @classmethod
    def of(
        cls, draws: SamplerDraws, n: int, pick: Callable[[Array], Array], rng: Any, pair: Array | None = None
    ) -> DrawMoments:
        """Moments of n draws, none of them kept longer than its chunk; ``pick`` turns a chunk into (s, N, C).

        Draws that equal y or yhat of the ``pair`` (2, N, C) in every row are left out unless chance explains
        them: a sampler with a fixed seed produces them. Swapping y and yhat does not change which are left
        out.
        """
        # One of the draws is subtracted, so that the SD of identical draws is exactly 0, whatever their size.
        pivot = pick(draws.one(rng)[None])[0]
        rows, columns = choose_probe(*pivot.shape)
        # Index 0 is for new draws, 1 for those that repeat the pair.
        count, total, square = np.zeros(2, np.int64), np.zeros((2, *pivot.shape)), np.zeros((2, *pivot.shape))
        matches, found_yhat, probes = np.zeros(len(pivot)), False, []
        for chunk in itertools.chain([pivot[None]], map(pick, draws.chunks(n - 1, rng))):
            repeated = np.zeros(len(chunk), bool)
            if pair is not None:
                is_y, is_yhat = ((chunk == member).all(2) for member in pair)
                repeated = (is_y | is_yhat).all(1)
                matches += (is_y | is_yhat)[~repeated].sum(0)
                found_yhat |= bool(is_yhat.all(1).any())
            part = chunk - pivot
            for kind, chosen in enumerate((part[~repeated], part[repeated])):
                count[kind] += len(chosen)
                total[kind] += chosen.sum(0)
                square[kind] += (chosen**2).sum(0)
            probes.append(part[:, rows][..., columns])
        # About how many of n draws would be repeats by chance, judging by how often rows of the others match.
        by_chance = n * np.exp(np.log(np.maximum(matches, 0.5) / max(count[0], 1)).sum())
        all_equal = not square.any()
        kinds = slice(2 if all_equal or by_chance >= 1 else 1)
        n_kept, total, square = int(count[kinds].sum()), total[kinds].sum(0), square[kinds].sum(0)
        variance = square - total**2 / max(n_kept, 1)
        # Where the pivot itself was left out, the SD of equal draws is rounding error.
        variance[variance < 1e-14 * square] = 0.0
        return cls(
            mean=pivot + total / max(n_kept, 1),
            std=np.sqrt(variance / max(n_kept - 1, 1)),
            shared_noise=measure_shared_noise(np.concatenate(probes)),
            n_left_out=n - n_kept,
            repeats=found_yhat and bool(by_chance < SURELY_REPEATED) and not all_equal,
        )


def _standardize(pairs: Array, moments: DrawMoments, n_draws: int) -> tuple[Array, tuple[str, ...]]:
    """Standardise both members of each pair (2, N, C) by the sampler's mean and SD, clip at 3 SDs, add notes.

    Columns without spread are only shifted and scaled as a whole: their mean may be yhat itself (a fixed
    seed), and subtracting it would distinguish yhat from y.
    """
    typical = np.sqrt((moments.std**2).mean(0))
    scale = np.maximum(moments.std, LEAST_STD * typical)
    cut = np.clip((pairs - moments.mean) / np.where(scale > 0, scale, 1.0), -CUT, CUT)
    # This shift and this unit do not change under swaps.
    errors = np.sqrt(((pairs[0] - pairs[1]) ** 2).mean(0))
    raw = (pairs - pairs.mean((0, 1))) / np.where(errors > 0, errors, 1.0)
    left_out, notes = moments.n_left_out, []
    if left_out:
        notes.append(f"{left_out} of {n_draws} draws for mean and SD repeated the pairs and were left out.")
    if (typical == 0).all():
        equal = "All draws of the sampler were equal (a point forecast or a fixed seed), so y and yhat were"
        subject = "y and yhat were" if n_draws - left_out < 2 else equal
        notes.append(f"{subject} compared without standardising.")
    few = int((moments.std < LEAST_STD * typical).any(1).sum())
    if few:
        less = f"less than {LEAST_STD:g} of the typical spread"
        notes.append(f"{few} rows have {less} and were compared on that scale.")
    return np.where(typical > 0, cut, raw), tuple(notes)


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
