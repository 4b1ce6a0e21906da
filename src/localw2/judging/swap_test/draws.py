"""Mean and SD of a sampler's draws at every row, and whether the draws are independent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import stats

from localw2._validation import Array

if TYPE_CHECKING:
    from localw2.judging.sampler import SamplerDraws

# Rows and columns of the draws that are kept to see whether rows share their noise.
PROBED_ROWS = 1000
PROBED_COLUMNS = 8
# With fewer draws or rows than these, shared noise cannot be told from chance.
LEAST_DRAWS = 10
LEAST_ROWS = 20
# Draws that repeat the pair give a warning only where fewer than this many are expected by chance.
SURELY_REPEATED = 1e-3


class DependentDrawsWarning(UserWarning):
    """A sampler's draws are not independent, either between rows or between calls."""


@final
@dataclass(frozen=True)
class DrawMoments:
    """Mean and SD of the draws at every row and column (N, C), and a subset (S, rows, columns) of the draws.

    ``n_left_out`` of the draws repeated the pair and do not enter the moments; ``repeats`` says that they
    equal yhat, and that this is not chance.
    """

    mean: Array
    std: Array
    probe: Array
    n_left_out: int = 0
    repeats: bool = False

    @classmethod
    def of(
        cls, draws: SamplerDraws, n: int, pick: Callable[[Array], Array], rng: Any, pair: Array | None = None
    ) -> DrawMoments:
        """Moments of n draws, none of them kept longer than its chunk; ``pick`` turns a chunk into (s, N, C).

        Draws that equal y or yhat of the ``pair`` (2, N, C) in every row are left out unless chance explains
        them: a sampler with a fixed seed produces them. Swapping y and yhat does not change which are left
        out.
        """
        pivot = pick(draws.one(rng)[None])[0]
        new, old = _Sums.of(pivot), _Sums.of(pivot)
        matches = _Matches.of(pivot.shape[0])
        rows, columns = (
            _space_evenly(pivot.shape[0], PROBED_ROWS),
            _space_evenly(pivot.shape[1], PROBED_COLUMNS),
        )
        probes = []
        for chunk in itertools.chain([pivot[None]], map(pick, draws.chunks(n - 1, rng))):
            repeated = matches.find(chunk, pair)
            part = chunk - pivot
            new.add(part[~repeated])
            old.add(part[repeated])
            probes.append(part[:, rows][..., columns])
        by_chance = matches.expect(n)
        all_equal = not (new.square.any() or old.square.any())
        if all_equal or by_chance >= 1:
            new.join(old)
        mean, std = new.moments(pivot)
        surely = matches.of_yhat and by_chance < SURELY_REPEATED and not all_equal
        return cls(mean, std, np.concatenate(probes), n - new.n, surely)

    def measure_dependence(self) -> float:
        r"""How many rows share the noise of a draw: about 1 if rows are independent, g if g rows share it.

        With e the draws standardised in each of the R rows, :math:`\langle e_s, e_t\rangle / R` of two draws
        has variance 1/R around 0; noise common to g rows makes that g/R, whatever its sign in each row. The
        result is the largest such factor over the columns, and 1.0 where there are too few draws or rows.
        """
        probe = _drop_repeats(self.probe)
        n = len(probe)
        factors = [1.0]
        if n >= LEAST_DRAWS:
            centred = probe - probe.mean(0)
            spread = np.sqrt((centred**2).sum(0) / (n - 1))
            for column, std in zip(np.moveaxis(centred, 2, 0), spread.T, strict=True):
                moving = std > 1e-9 * std.max(initial=0.0)
                if moving.sum() >= LEAST_ROWS:
                    factors.append(_measure_shared_noise(column[:, moving] / std[moving]))
        return max(factors)


@final
@dataclass
class _Sums:
    """Sum and sum of squares of n draws (N, C), after subtracting a pivot.

    The pivot is one of the draws, so that identical draws have an SD of exactly 0, whatever their size.
    """

    n: int
    total: Array
    square: Array

    @classmethod
    def of(cls, pivot: Array) -> _Sums:
        return cls(0, np.zeros_like(pivot), np.zeros_like(pivot))

    def add(self, part: Array) -> None:
        self.n += len(part)
        self.total += part.sum(0)
        self.square += (part**2).sum(0)

    def join(self, other: _Sums) -> None:
        self.n += other.n
        self.total += other.total
        self.square += other.square

    def moments(self, pivot: Array) -> tuple[Array, Array]:
        """Mean and SD; with fewer than two draws the SD is set to 0."""
        if self.n < 2:
            return pivot, np.zeros_like(pivot)
        variance = self.square - self.total**2 / self.n
        # Where the pivot itself was left out, the SD of equal draws is rounding error.
        variance[variance < 1e-14 * self.square] = 0.0
        return pivot + self.total / self.n, np.sqrt(variance / (self.n - 1))


@final
@dataclass
class _Matches:
    """How many draws equal y or yhat in every row, and in how many of the other draws each row (N,) does."""

    n: int
    n_others: int
    others: Array
    of_yhat: bool

    @classmethod
    def of(cls, n_rows: int) -> _Matches:
        return cls(0, 0, np.zeros(n_rows), False)

    def find(self, chunk: Array, pair: Array | None) -> Array:
        """A mask (s,) of the draws (s, N, C) that equal y or yhat in every row."""
        if pair is None:
            return np.zeros(len(chunk), bool)
        is_yhat = (chunk == pair[1]).all(2)
        same = is_yhat | (chunk == pair[0]).all(2)
        repeated: Array = same.all(1)
        self.n += int(repeated.sum())
        self.n_others += int((~repeated).sum())
        self.others += same[~repeated].sum(0)
        self.of_yhat |= bool(is_yhat.all(1).any())
        return repeated

    def expect(self, n: int) -> float:
        """About how many of n draws would be repeats by chance, judging by the other draws."""
        if self.n == 0:
            return float(n)
        rates = np.maximum(self.others, 0.5) / max(self.n_others, 1)
        return float(n * np.exp(np.log(rates).sum()))


def _drop_repeats(probe: Array) -> Array:
    """The draws (S, ...) without repeats, which are not shared noise; all of them if too few would remain."""
    distinct: Array = np.unique(probe.reshape(len(probe), -1), axis=0)
    enough = len(distinct) >= min(LEAST_DRAWS, len(probe) / 2)
    return distinct.reshape(-1, *probe.shape[1:]) if enough and len(distinct) < len(probe) else probe


def _measure_shared_noise(e: Array) -> float:
    n, rows = e.shape
    products = (e @ e.T / rows + 1 / n)[np.triu_indices(n, 1)]  # after centring their mean is -1/n
    factor = rows * float(np.mean(products**2))
    by_chance = stats.chi2.sf(factor * len(products), len(products)) > 1e-6
    return 1.0 if by_chance else factor


def _space_evenly(n: int, most: int) -> Array:
    """At most ``most`` of 0 .. n - 1, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))
