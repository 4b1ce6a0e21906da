"""Draws from any sampler: a function of x, a fitted estimator, a random map, a torch module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from localw2._validation import Array, as_array, as_rows, brief
from localw2.models.base import RandomMap

# Numbers (8 bytes each) that one call for several draws may return.
CHUNK_NUMBERS = 1 << 22


@final
@dataclass(frozen=True)
class SamplerDraws:
    """Draws of ``sampler`` at the rows x, each of the shape of y.

    ``sampler`` is a function that returns one draw for every row, or it has (or is) a method
    ``sample(X, n_samples=..., random_state=...)``, which is then asked for many draws at a time, or it is a
    ``RandomMap`` or another torch module. These two get a tensor in the precision and on the device of their
    parameters, whatever x is; a module that is no ``RandomMap`` makes one draw per call, with torch's global
    random numbers. A fitted pipeline or search has the sampler inside.

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
        sampler, x = find_sampler(sampler, x)
        owner, method = find_owner(sampler), getattr(sampler, "sample", None)
        if isinstance(owner, RandomMap) and (sampler is owner or sampler == owner.sample):
            return cls(functools.partial(_sample_map, owner), True, x, shape)
        if method is not None and _gives_many(method):
            return cls(method, True, x, shape)
        if isinstance(sampler, nn.Module):
            return cls(functools.partial(_call_module, sampler), False, x, shape)
        if not callable(sampler):
            raise ValueError(
                f"sampler={brief(sampler)} is not callable and has no method sample(X, n_samples=..., "
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

    def call(self, n: int, seed: int) -> Array:
        """What the sampler returns if it is asked for n draws (one, if it does not give many) with a seed."""
        asked = {"n_samples": n, "random_state": seed} if self.gives_many else {}
        return as_array(self.function(self.x, **asked), "the sampler's draw").astype(np.float64)

    def chunks(self, n: int, rng: np.random.Generator) -> Iterator[Array]:
        """n draws in chunks of bounded size, (s, \\*shape) each."""
        most = max(1, CHUNK_NUMBERS // int(np.prod(self.shape))) if self.gives_many else 1
        for low in range(0, n, most):
            count = min(most, n - low)
            draws = self.call(count, int(rng.integers(2**31)) if self.gives_many else 0)
            wanted = (count, *self.shape)
            if [n for n in draws.shape if n > 1] != [n for n in wanted if n > 1]:
                expected = wanted if self.gives_many else self.shape
                raise ValueError(
                    f"the sampler returned an array of shape {draws.shape} where {expected} was expected: "
                    "each draw must have the shape of y, because the two are compared row by row."
                )
            yield draws.reshape(wanted)


def find_sampler(sampler: Any, x: Any) -> tuple[Any, Any]:
    """The estimator that draws, and its inputs: a fitted pipeline or search has it inside."""
    if hasattr(sampler, "best_estimator_"):
        return find_sampler(sampler.best_estimator_, x)
    if isinstance(sampler, Pipeline):
        return find_sampler(sampler[-1], sampler[:-1].transform(x) if len(sampler) > 1 else x)
    return sampler, x


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
    reads = hasattr(owner, "encode") and hasattr(owner, "sample") and not inspect.isclass(owner)
    of_rows = reads and getattr(x, "ndim", 0) == 2  # a missing value may be new to a fit
    if not has_table(owner) and not of_rows:
        return x
    columns = getattr(getattr(owner, "law_", None), "columns", None) or getattr(owner, "columns_", None)
    rows = owner.encode(x)
    return rows if columns is None or not hasattr(columns, "expand") else columns.expand(rows)


def as_inputs(owner: Any, x: Any, rows: Array) -> Any:
    """What a sampler is called with: x as it came if it has columns, otherwise one column of its own kind."""
    if has_table(owner) or getattr(x, "ndim", 0) == 2:
        return x
    return x.reshape(-1, 1) if hasattr(x, "reshape") else rows


def _sample_map(model: RandomMap, x: Any, n_samples: int, random_state: int) -> Tensor:
    """Draws of a random map at rows of any kind."""
    inputs = _as_input(model, x)
    generator = torch.Generator(inputs.device).manual_seed(random_state)
    return _call(model, lambda: model.sample(inputs, n_samples, generator), inputs)


@torch.no_grad()
def _call_module(module: nn.Module, x: Any) -> Tensor:
    """One draw of a torch module at rows of any kind."""
    inputs = _as_input(module, x)
    return _call(module, lambda: module(inputs), inputs)


def _call(module: nn.Module, function: Callable[[], Any], x: Tensor) -> Tensor:
    """What a module returns, which must be a tensor; ValueError, with the reason, if it fails."""
    called = f"the module {type(module).__name__}, called on a {x.dtype} tensor of shape {tuple(x.shape)},"
    try:
        found = function()
    except (RuntimeError, TypeError) as error:  # shapes that do not fit, a second argument that it needs
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{called} fails: {reason[:200]}. It must take rows X alone.") from error
    if not isinstance(found, Tensor):
        kind = type(found).__name__
        raise ValueError(f"{called} returns {kind}; it must return one draw for every row, a tensor.")
    return found


def _as_input(module: nn.Module, x: Any) -> Tensor:
    """Rows (N, p) as a tensor of the precision and on the device of the module's parameters."""
    rows = x if isinstance(x, Tensor) else torch.tensor(as_rows(x))
    like = next((p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()), rows)
    return rows.to(like.device, like.dtype if like.is_floating_point() else torch.float64)


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
