"""Draws from any sampler: a function of x, a fitted estimator, or any object with a similar ``sample``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array

# Numbers (8 bytes each) that one call for several draws may return.
CHUNK_NUMBERS = 1 << 22


@final
@dataclass(frozen=True)
class SamplerDraws:
    """Draws of ``sampler`` at the rows x, each of the shape of y.

    ``sampler`` is a function that returns one draw for every row, or it has (or is) a method
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
            raise ValueError(f"sampler is the class {sampler.__name__}; pass a fitted instance of it.")
        method = getattr(sampler, "sample", None)
        if method is not None and _gives_many(method):
            return cls(method, True, x, shape)
        if not callable(sampler):
            raise ValueError(
                f"sampler={sampler!r:.80} is not callable and has no method sample(X, n_samples=..., "
                "random_state=...). Pass a function of X that returns one draw for every row."
            )
        return cls(sampler, _gives_many(sampler), x, shape)

    def one(self, rng: np.random.Generator) -> Array:
        """One draw for every row, of the shape of y."""
        first: Array = next(self.chunks(1, rng))[0]
        return first

    def many(self, n: int, rng: np.random.Generator) -> Array:
        """n draws for every row, (n, \\*shape)."""
        return np.concatenate(list(self.chunks(n, rng)))

    def chunks(self, n: int, rng: np.random.Generator) -> Iterator[Array]:
        """n draws in chunks of bounded size, (s, \\*shape) each."""
        most = max(1, CHUNK_NUMBERS // int(np.prod(self.shape))) if self.gives_many else 1
        for low in range(0, n, most):
            count = min(most, n - low)
            if self.gives_many:
                found = self.function(self.x, n_samples=count, random_state=int(rng.integers(2**31)))
            else:
                found = self.function(self.x)
            draws = as_array(found, "the sampler's draw").astype(np.float64)
            wanted = (count, *self.shape)
            if [n for n in draws.shape if n > 1] != [n for n in wanted if n > 1]:
                expected = wanted if self.gives_many else self.shape
                raise ValueError(
                    f"the sampler returned an array of shape {draws.shape} where {expected} was expected: "
                    "each draw must have the shape of y, because the two are compared row by row."
                )
            yield draws.reshape(wanted)


def find_owner(function: Any) -> Any:
    """The object that a bound method (or a partial of one) belongs to; otherwise the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__self__", function)


def has_table(owner: Any) -> bool:
    """Whether an estimator was fitted to categorical columns or missing values, so that it encodes x."""
    return getattr(owner, "columns_", None) is not None


def encode_rows(owner: Any, x: Any) -> Any:
    """The rows of x as finite numbers, for distances and to know them again; x itself if it has none else."""
    of_rows = getattr(x, "ndim", 0) == 2 and hasattr(owner, "encode")  # a missing value may be new to a fit
    if not has_table(owner) and not of_rows:
        return x
    rows, columns = owner.encode(x), getattr(getattr(owner, "law_", None), "columns", None)
    return rows if columns is None else columns.expand(rows)


def as_inputs(owner: Any, x: Any, rows: Array) -> Any:
    """What a sampler is called with: x as it came if it has columns, otherwise one column of its own kind."""
    if has_table(owner) or getattr(x, "ndim", 0) == 2:
        return x
    return x.reshape(-1, 1) if hasattr(x, "reshape") else rows


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
    if others := [name for name in needed if name not in asked][1:]:
        raise ValueError(
            f"the sampler's sample() also needs {', '.join(others)}. Fix it first, for example with "
            f"functools.partial(model.sample, {others[0]}=...), or pass a function of X alone."
        )
    return True
