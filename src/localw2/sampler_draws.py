"""Draws of any sampler, one for every row or many at once; their mean and SD; whether rows share noise."""

from __future__ import annotations

import functools
import inspect
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


class DependentDrawsWarning(UserWarning):
    """A sampler's draws are not independent from row to row."""


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
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return getattr(function, "__self__", function)

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
    """Mean and SD of the draws at every row and column (N, C), and a few draws (S, rows, columns) of them."""

    mean: Array
    std: Array
    probe: Array

    @classmethod
    def of(cls, draws: SamplerDraws, n: int, pick: Callable[[Array], Array], rng: Any) -> DrawMoments:
        """Moments of n draws, none of them held longer than its chunk; ``pick`` makes (s, N, C) of them."""
        # Around the first draw: identical draws then have an SD of exactly 0, whatever their size.
        pivot = pick(draws.one(rng)[None])[0]
        total, square = np.zeros_like(pivot), np.zeros_like(pivot)
        rows, columns = _spaced(pivot.shape[0], PROBED_ROWS), _spaced(pivot.shape[1], PROBED_COLUMNS)
        probes = [np.zeros((1, len(rows), len(columns)))]
        for chunk in draws.chunks(n - 1, rng):
            part = pick(chunk) - pivot
            total += part.sum(0)
            square += (part**2).sum(0)
            probes.append(part[:, rows][..., columns])
        variance = np.clip(square - total**2 / n, 0, None) / (n - 1)
        return cls(pivot + total / n, np.sqrt(variance), np.concatenate(probes))

    def dependence(self) -> float:
        r"""How far the draws are from independent across rows: about 1 if they are, g if g rows share noise.

        With e the draws standardised in each of the R rows, :math:`\langle e_s, e_t\rangle / R` of two draws
        varies by 1/R around 0; noise common to g rows makes that g/R, whatever sign it has in each row. The
        value is the largest such factor over the columns; 1.0 where there is too little to tell.
        """
        n = len(self.probe)
        factors = [1.0]
        if n >= LEAST_DRAWS:
            centred = self.probe - self.probe.mean(0)
            spread = np.sqrt((centred**2).sum(0) / (n - 1))
            for column, std in zip(np.moveaxis(centred, 2, 0), spread.T, strict=True):
                moving = std > 1e-9 * std.max(initial=0.0)
                if moving.sum() >= LEAST_ROWS:
                    factors.append(_shared_noise(column[:, moving] / std[moving]))
        return max(factors)


def _shared_noise(e: Array) -> float:
    n, rows = e.shape
    products = (e @ e.T / rows + 1 / n)[np.triu_indices(n, 1)]  # centring makes their mean -1/n
    factor = rows * float(np.mean(products**2))
    by_chance = stats.chi2.sf(factor * len(products), len(products)) > 1e-6
    return 1.0 if by_chance else factor


def _spaced(n: int, most: int) -> Array:
    """At most ``most`` of 0 .. n - 1, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))
