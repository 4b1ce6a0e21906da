"""Draws of any sampler, one for every row or many at once; their mean and SD; whether rows share noise."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy import stats

from localw2._validation import Array, as_array

# Numbers (8 bytes each) that one call for several draws may return.
CHUNK_NUMBERS = 1 << 22
# Rows and columns of the draws that are kept to see whether rows share their noise.
PROBED_ROWS = 1000
PROBED_COLUMNS = 8
# Fewer draws or rows than these cannot tell shared noise from chance.
LEAST_DRAWS = 10
LEAST_ROWS = 20
# Draws that repeat the pair are told of only where chance would bring fewer of them than this.
SURELY_REPEATED = 1e-3


class DependentDrawsWarning(UserWarning):
    """A sampler's draws are not independent: from row to row, or one of another."""


@final
@dataclass(frozen=True)
class SamplerDraws:
    """Draws of ``sampler`` at the rows x, each of the shape of y.

    ``sampler`` is a function that gives one draw for every row, or has (or is) a method
    ``sample(X, n_samples=..., random_state=...)``, which is then asked for many draws at a time.

    >>> draws = SamplerDraws.of(lambda x: x[:, 0] + 1, np.zeros((3, 1)), (3,))
    >>> draws.one(np.random.default_rng(0))
    array([1., 1., 1.])
    """

    function: Callable[..., Any]
    gives_many: bool
    x: Any
    shape: tuple[int, ...]

    @classmethod
    def of(cls, sampler: Any, x: Any, shape: tuple[int, ...]) -> SamplerDraws:
        """Find out how the sampler wants to be called."""
        if inspect.isclass(sampler):
            raise ValueError(f"sampler is the class {sampler.__name__}; give a fitted object of it.")
        method = getattr(sampler, "sample", None)
        if method is not None and _gives_many(method):
            return cls(method, True, x, shape)
        if not callable(sampler):
            raise ValueError(
                f"sampler={sampler!r:.80} can neither be called nor has a method sample(X, n_samples=..., "
                "random_state=...). Give a function of X that returns one draw for every row."
            )
        return cls(sampler, _gives_many(sampler), x, shape)

    @property
    def owner(self) -> Any:
        """The object whose method is called, where there is one."""
        return owner_of(self.function)

    def one(self, rng: np.random.Generator) -> Array:
        """One draw for every row, of the shape of y."""
        first: Array = next(self.chunks(1, rng))[0]
        return first

    def chunks(self, n: int, rng: np.random.Generator) -> Iterator[Array]:
        """n draws in parts of bounded size, (s, \\*shape) each."""
        most = max(1, CHUNK_NUMBERS // int(np.prod(self.shape))) if self.gives_many else 1
        for low in range(0, n, most):
            count = min(most, n - low)
            if self.gives_many:
                found = self.function(self.x, n_samples=count, random_state=int(rng.integers(2**31)))
            else:
                found = self.function(self.x)
            yield self._shaped(found, count)

    def _shaped(self, found: Any, count: int) -> Array:
        draws = as_array(found, "the sampler's draw").astype(np.float64)
        wanted = (count, *self.shape)
        if [n for n in draws.shape if n > 1] != [n for n in wanted if n > 1]:
            expected = wanted if self.gives_many else self.shape
            raise ValueError(
                f"the sampler gave an array of shape {draws.shape} where {expected} was expected: "
                "each draw must have the shape of y, since the two are swapped row by row."
            )
        return draws.reshape(wanted)


def owner_of(function: Any) -> Any:
    """The object whose method a function is; else the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__self__", function)


def _gives_many(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return False
    asked = {"n_samples", "random_state"}
    if not asked <= set(parameters):
        return False
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in variable]
    others = [name for name in needed if name not in asked][1:]
    if others:
        raise ValueError(
            f"the sampler's sample() also needs {', '.join(others)}. Fix that first, such as "
            f"functools.partial(model.sample, {others[0]}=...), or give a function of X alone."
        )
    return True


@final
@dataclass(frozen=True)
class DrawMoments:
    """Mean and SD of the draws at every row and column (N, C), and a few draws (S, rows, columns) of them.

    ``n_left_out`` of the draws repeated the pair and are not in the moments; ``repeats`` says that this is
    not chance, and that they equal yhat.
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
        """Moments of n draws, none of them held longer than its chunk; ``pick`` makes (s, N, C) of them.

        Draws that equal y or yhat of the ``pair`` (2, N, C) in every row are left out, as a sampler with a
        seed of its own gives them, unless chance explains them. A swap of y and yhat changes nothing in that.
        """
        pivot = pick(draws.one(rng)[None])[0]
        new, old = _Sums.of(pivot), _Sums.of(pivot)
        matches = _Matches.of(pivot.shape[0])
        rows, columns = _spaced(pivot.shape[0], PROBED_ROWS), _spaced(pivot.shape[1], PROBED_COLUMNS)
        probes = []
        for chunk in itertools.chain([pivot[None]], map(pick, draws.chunks(n - 1, rng))):
            repeated = matches.found(chunk, pair)
            part = chunk - pivot
            new.add(part[~repeated])
            old.add(part[repeated])
            probes.append(part[:, rows][..., columns])
        by_chance = matches.expected(n)
        all_equal = not (new.square.any() or old.square.any())
        if all_equal or by_chance >= 1:
            new.join(old)
        mean, std = new.moments(pivot)
        surely = matches.of_yhat and by_chance < SURELY_REPEATED and not all_equal
        return cls(mean, std, np.concatenate(probes), n - new.n, surely)

    def dependence(self) -> float:
        r"""How far the draws are from independent across rows: about 1 if they are, g if g rows share noise.

        With e the draws standardised in each of the R rows, :math:`\langle e_s, e_t\rangle / R` of two draws
        varies by 1/R around 0; noise common to g rows makes that g/R, whatever sign it has in each row. The
        value is the largest such factor over the columns; 1.0 where there is too little to tell.
        """
        probe = _distinct(self.probe)
        n = len(probe)
        factors = [1.0]
        if n >= LEAST_DRAWS:
            centred = probe - probe.mean(0)
            spread = np.sqrt((centred**2).sum(0) / (n - 1))
            for column, std in zip(np.moveaxis(centred, 2, 0), spread.T, strict=True):
                moving = std > 1e-9 * std.max(initial=0.0)
                if moving.sum() >= LEAST_ROWS:
                    factors.append(_shared_noise(column[:, moving] / std[moving]))
        return max(factors)


@final
@dataclass
class _Sums:
    """Sum and sum of squares of n draws (N, C), less a pivot.

    The pivot is one of the draws: identical ones then have an SD of exactly 0, whatever their size.
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
        """Mean and SD; fewer than two draws have no SD, which is then 0 everywhere."""
        if self.n < 2:
            return pivot, np.zeros_like(pivot)
        variance = self.square - self.total**2 / self.n
        # Where the pivot itself was left out, draws that are equal have an SD of rounding alone.
        variance[variance < 1e-14 * self.square] = 0.0
        return pivot + self.total / self.n, np.sqrt(variance / (self.n - 1))


@final
@dataclass
class _Matches:
    """How many draws equal y or yhat in every row; in how many of the others (N,) each row does."""

    n: int
    n_others: int
    others: Array
    of_yhat: bool

    @classmethod
    def of(cls, n_rows: int) -> _Matches:
        return cls(0, 0, np.zeros(n_rows), False)

    def found(self, chunk: Array, pair: Array | None) -> Array:
        """Which of the draws (s, N, C) are such repeats, a mask (s,)."""
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

    def expected(self, n: int) -> float:
        """About how many of n draws would be repeats by chance, by the rates of the other draws."""
        if self.n == 0:
            return float(n)
        rates = np.maximum(self.others, 0.5) / max(self.n_others, 1)
        return float(n * np.exp(np.log(rates).sum()))


def _distinct(probe: Array) -> Array:
    """The draws (S, ...) without repeats, which are not what is looked for; all, if next to none are left."""
    distinct: Array = np.unique(probe.reshape(len(probe), -1), axis=0)
    enough = len(distinct) >= min(LEAST_DRAWS, len(probe) / 2)
    return distinct.reshape(-1, *probe.shape[1:]) if enough and len(distinct) < len(probe) else probe


def _shared_noise(e: Array) -> float:
    n, rows = e.shape
    products = (e @ e.T / rows + 1 / n)[np.triu_indices(n, 1)]  # centring makes their mean -1/n
    factor = rows * float(np.mean(products**2))
    by_chance = stats.chi2.sf(factor * len(products), len(products)) > 1e-6
    return 1.0 if by_chance else factor


def _spaced(n: int, most: int) -> Array:
    """At most ``most`` of 0 .. n - 1, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))
