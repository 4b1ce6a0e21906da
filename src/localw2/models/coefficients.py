"""Drift, diffusion and jumps of stochastic equations: networks of the state, or known functions."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn

from localw2.models.base import normal, source
from localw2.models.fields import SIZES

# Where softplus is 1, so that an untrained network gives its unit.
_ONE = math.log(math.e - 1)
# The penalty on the last layer of a network that begins at given values: small, but large weights would make
# its training unsteady.
_RIDGE = 1e-6
# The buffers that hold the units of a network's states and values.
UNITS = ("location", "spread", "factor")

# Jumps in a step whose number is counted one by one.
MANY = 50.0


class Coefficient(nn.Module, ABC):
    """A function of time and state: a drift (n, d), a diffusion (n, d) or (n, d, d), or a rate (n, 1)."""

    @abstractmethod
    def forward(self, t: Tensor, y: Tensor, values: dict[str, Tensor], *extra: Tensor) -> Tensor:
        """Values at times t (n,) and states y (n, d), given the named parameters (n,)."""


@final
class NetworkCoefficient(Coefficient):
    r"""A network of the state with a linear part, the same at all times.

    With units a, b (d,) and c (m,), it is :math:`c\,g(Au + \mathrm{net}(u))` with :math:`u = (y - a)/b`. The
    linear part A (a skip connection) makes it extrapolate linearly, and lets training start from a linear
    regression; g is the identity, or the softplus for values that must be ``positive``, scaled so that
    g(0) = 1. With ``matrix`` the values are the lower triangle of a matrix (d, d) with a positive diagonal.

    >>> net = NetworkCoefficient(2, 2, width=8, depth=1, positive=True)
    >>> net(torch.zeros(5), torch.zeros(5, 2), {}).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        n_states: int,
        n_values: int,
        width: int,
        depth: int,
        positive: bool = False,
        matrix: bool = False,
        units: tuple[Tensor, Tensor, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.positive, self.matrix, self.n_states = positive, matrix, n_states
        count = n_states * (n_states + 1) // 2 if matrix else n_values
        sizes = [n_states, *[width] * depth]
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(sizes[-1], count))
        self.skip = nn.Linear(n_states, count)
        # Adam moves every weight alike, and a layer has many: without this the network would follow the noise
        # of the data long before its linear part has found the slope.
        self._gain = width**-0.5
        self._reset(source(generator, torch.device("cpu")))
        plain = torch.zeros(n_states), torch.ones(n_states), torch.ones(n_values)
        for name, value, default in zip(UNITS, units or plain, plain, strict=True):
            self.register_buffer(name, torch.as_tensor(value).to(default).clone())
        rows, columns = torch.tril_indices(n_states, n_states)
        self._rows, self._columns = rows.tolist(), columns.tolist()

    def _reset(self, generator: torch.Generator) -> None:
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                layer.weight.data.normal_(generator=generator).mul_(layer.in_features**-0.5)
                # Units whose slopes lie all over the states, which have mean 0 and spread 1 here.
                layer.bias.data.normal_(generator=generator)
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        for tensor in (last.weight, last.bias, self.skip.weight, self.skip.bias):
            tensor.data.zero_()

    def forward(self, t: Tensor, y: Tensor, values: dict[str, Tensor], *extra: Tensor) -> Tensor:
        """Values (n, m), or matrices (n, d, d)."""
        u = (y - self.get_buffer("location")) / self.get_buffer("spread")
        h: Tensor = self.skip(u) + self._gain * self.net(u)
        factor = self.get_buffer("factor")
        if not self.matrix:
            return factor * (nn.functional.softplus(h + _ONE) if self.positive else h)
        lower = h.new_zeros(len(h), self.n_states, self.n_states)
        on = [i for i, (a, b) in enumerate(zip(self._rows, self._columns, strict=True)) if a == b]
        off = [i for i in range(h.shape[1]) if i not in on]
        lower = lower + torch.diag_embed(nn.functional.softplus(h[:, on] + _ONE))
        for i in off:
            unit = h.new_zeros(self.n_states, self.n_states)
            unit[self._rows[i], self._columns[i]] = 1.0
            lower = lower + h[:, i, None, None] * unit
        return factor[:, None] * lower

    @torch.no_grad()
    def start(self, y: Tensor, values: Tensor, weight: Tensor | None = None) -> None:
        """Begin at these values (n, m), or matrices (n, d, d), at states y (n, d), which may have weights.

        The network is linear in its last layer and in its linear part, so that this is a ridge regression.
        """
        u = ((y - self.get_buffer("location")) / self.get_buffer("spread")).double()
        hidden: Any = u.to(y)
        for layer in list(self.net)[:-1]:
            hidden = layer(hidden)
        factor = self.get_buffer("factor")
        if self.matrix:
            wanted = (values / factor[:, None])[:, self._rows, self._columns].double()
            on = torch.tensor([a == b for a, b in zip(self._rows, self._columns, strict=True)]).to(u.device)
            wanted = torch.where(on, _unsoften(wanted), wanted)
        else:
            wanted = (values / factor).double()
            wanted = _unsoften(wanted) if self.positive else wanted
        design = torch.cat([self._gain * hidden.double(), u, torch.ones_like(u[:, :1])], 1)
        share = torch.ones_like(u[:, :1]) if weight is None else weight.to(u)[:, None]
        penalty = torch.full((design.shape[1],), 1e-9).to(u)
        penalty[: hidden.shape[1]] = _RIDGE * self._gain**2
        gram = design.T @ (share * design) / share.sum() + torch.diag(penalty)
        found = torch.linalg.solve(gram, design.T @ (share * wanted) / share.sum()).T
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        k = hidden.shape[1]
        parts = (found[:, :k], torch.zeros_like(found[:, 0]), found[:, k:-1], found[:, -1])
        for tensor, part in zip(
            (last.weight, last.bias, self.skip.weight, self.skip.bias), parts, strict=True
        ):
            tensor.copy_(part.to(tensor))


def _unsoften(values: Tensor) -> Tensor:
    """What a network must return for these positive values."""
    positive = values.clamp_min(1e-6)
    return positive + torch.log(-torch.expm1(-positive)) - _ONE


@final
class ConstantCoefficient(Coefficient):
    """The same values (m,) everywhere, learned in units of ``factor`` (m,), and positive if asked."""

    _gain = 3.0  # Adam moves it by a few percent a step at the rates of networks

    def __init__(self, n_values: int, positive: bool = False) -> None:
        super().__init__()
        self.positive = positive
        self.raw = nn.Parameter(torch.zeros(n_values))
        self.register_buffer("factor", torch.ones(n_values))
        self.register_buffer("location", torch.zeros(n_values))

    def start(self, value: Tensor, unit: Tensor) -> None:
        """Begin at these values, learned in this unit (their own if they are positive)."""
        self.get_buffer("factor").copy_(value if self.positive else unit)
        self.get_buffer("location").copy_(torch.zeros_like(value) if self.positive else value)

    def forward(self, t: Tensor, y: Tensor, values: dict[str, Tensor], *extra: Tensor) -> Tensor:
        """Values (n, m)."""
        h = self._gain * self.raw
        factor, location = self.get_buffer("factor"), self.get_buffer("location")
        one = location + factor * (nn.functional.softplus(h + _ONE) if self.positive else h)
        return one.expand(len(y), -1)


@final
class FunctionCoefficient(Coefficient):
    """A known function of time, state and named parameters.

    ``function(t, y, ...)`` is written for one path: t is a number, y is (d,), and parameters are numbers,
    passed by name. It returns values of the shape ``shape``, or one number for all of them. It is mapped over
    paths by ``torch.func.vmap``; one of elementary operations is called once for all, which is tried first.
    ``extra`` are further arguments before the parameters (the noise of a jump).

    >>> drift = FunctionCoefficient(lambda t, y, theta: -theta * y, (1,), "drift")
    >>> drift(torch.zeros(3), torch.ones(3, 1), {"theta": torch.tensor([1.0, 2.0, 3.0])}).flatten()
    tensor([-1., -2., -3.])
    """

    def __init__(
        self, function: Callable[..., Any], shape: tuple[int, ...], name: str, extra: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.function, self.shape, self.name, self.extra = function, shape, name, tuple(extra)
        self.names = argument_names(function, name, len(self.extra))
        self._by_columns: bool | None = None

    def forward(self, t: Tensor, y: Tensor, values: dict[str, Tensor], *extra: Tensor) -> Tensor:
        """Values (n, *shape)."""
        own = {name: values[name] for name in self.names if name in values}
        if self._by_columns is None:
            self._by_columns = self._agrees_by_columns(t, y, own, extra)
        if self._by_columns:
            return self._one(t, y.T, own, *(e.T for e in extra)).T
        mapped: Tensor = torch.vmap(self._one)(t, y, own, *extra)
        return mapped

    @torch.no_grad()
    def _agrees_by_columns(
        self, t: Tensor, y: Tensor, values: dict[str, Tensor], extra: tuple[Tensor, ...]
    ) -> bool:
        if len(self.shape) > 1:
            return False
        # Rows that differ in everything, so that a function which mixes paths is found out.
        rows = torch.arange(5, device=y.device) % len(y)
        shake = 1 + 0.01 * torch.arange(5, device=y.device, dtype=y.dtype)
        t, y = t[rows] * shake, y[rows] * shake[:, None] + 0.01 * shake[:, None]
        values = {name: value[rows] * shake for name, value in values.items()}
        extra = tuple(e[rows] * shake[:, None] for e in extra)
        tolerance = 1e-5 if y.dtype == torch.float32 else 1e-12
        for size in SIZES:
            mapped: Tensor = torch.vmap(self._one)(t, size * y, values, *extra)
            try:
                columns = self._one(t, size * y.T, values, *(e.T for e in extra)).T
            except Exception:  # written for one path only, and a user's function can raise anything
                return False
            if columns.shape != mapped.shape or not torch.allclose(
                columns, mapped, rtol=tolerance, atol=0.0, equal_nan=True
            ):
                return False
        return True

    def _one(self, t: Tensor, y: Tensor, values: dict[str, Tensor], *extra: Tensor) -> Tensor:
        found = self.function(t, y, *extra, **values)
        if isinstance(found, list | tuple):
            found = torch.stack([torch.as_tensor(part, dtype=y.dtype, device=y.device) for part in found])
        found = torch.as_tensor(found, dtype=y.dtype, device=y.device)
        expected = (*self.shape, *y.shape[1:])  # with columns, of many paths at once
        if found.ndim == y.ndim - 1:  # one number for every state
            found = found.expand(expected)
        if tuple(found.shape) != expected:
            raise ValueError(
                f"{self.name} returned shape {tuple(found.shape)} for a state of shape {tuple(y.shape)}; it "
                f"is called for one path and must return shape {self.shape}, as torch.stack([...]) or a list."
            )
        return found


@final
class NormalJumps(nn.Module):
    r"""Jumps of Gaussian size at a rate: all constant, or networks of the state.

    ``rate`` gives :math:`\lambda(y)` (n, 1), ``mean`` and ``std`` those of the size of jumps (n, d).
    """

    def __init__(self, rate: Coefficient, mean: Coefficient, std: Coefficient) -> None:
        super().__init__()
        self.rate, self.mean, self.std = rate, mean, std

    def size(self, t: Tensor, y: Tensor, values: dict[str, Tensor], z: Tensor) -> Tensor:
        """The size (n, d) of a jump with standard normal noise z (n, d)."""
        jump: Tensor = self.mean(t, y, values) + self.std(t, y, values) * z
        return jump


@final
class FunctionJumps(nn.Module):
    """Jumps of a known form: ``rate(t, y, ...)`` and ``size(t, y, z, ...)`` of standard normal z (d,).

    Where the function of the rate is negative there are no jumps: the rate is max(rate, 0).
    """

    def __init__(self, rate: FunctionCoefficient, jump: FunctionCoefficient) -> None:
        super().__init__()
        self.signed_rate, self.jump = rate, jump

    def rate(self, t: Tensor, y: Tensor, values: dict[str, Tensor]) -> Tensor:
        """The rate of jumps (n, 1), which is 0 where the function is negative."""
        return _at_least_zero(self.signed_rate(t, y, values))

    def size(self, t: Tensor, y: Tensor, values: dict[str, Tensor], z: Tensor) -> Tensor:
        """The size (n, d) of a jump with standard normal noise z (n, d)."""
        jump: Tensor = self.jump(t, y, values, z)
        return jump


Jumps = NormalJumps | FunctionJumps


def _at_least_zero(values: Tensor) -> Tensor:
    """max(values, 0), with the derivative of ``values`` everywhere.

    With its own derivative, 0, parameters that make a rate negative could never come back.
    """
    low = values.clamp_min(torch.finfo(values.dtype).min)  # the difference of two infinities is no number
    return torch.where(values > 0, values, low - low.detach())


def count_jumps(expected: Tensor, generator: Any) -> Tensor:
    """Poisson numbers with means ``expected`` (n,), by inversion of a normal number per row.

    The noise is one number per row from ``base.normal``, so that it can be keyed by row as all other noise.
    A mean that is not a number gives a number that is none, and one below 0 counts as 0.
    """
    expected = expected.clamp_min(0)
    z = normal(tuple(expected.shape), expected, generator)
    u = torch.special.ndtr(z)
    most = min(float(expected.nan_to_num(0.0).max()) if expected.numel() else 0.0, MANY)
    term = torch.exp(-expected)
    reached, count = term.clone(), torch.zeros_like(expected).masked_fill(expected.isnan(), math.nan)
    for k in range(1, math.ceil(most + 6 * math.sqrt(most) + 6)):
        more = u > reached
        count = count + more
        term = term * expected / k
        reached = reached + term
    # The exponential of a large number is 0; and so many jumps have a normal number.
    return torch.where(expected > MANY, (expected + expected.sqrt() * z).round().clamp_min(0), count)


def argument_names(function: Callable[..., Any], name: str, n_extra: int = 0) -> list[str]:
    """The arguments of a function after (t, y) and its noise: the parameters that it takes by name."""
    first = ", ".join(["t", "y", *["z"] * n_extra])
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(
            f"the signature of {name}={function!r} cannot be read; wrap it in a def with ({first}, ...)."
        ) from None
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(named) < 2 + n_extra:
        raise ValueError(
            f"{name}{inspect.signature(function)} must take ({first}) first, as in ({first}, theta)."
        )
    rest = named[2 + n_extra :]
    if any(p.kind is p.POSITIONAL_ONLY for p in rest):
        raise ValueError(f"{name} takes its parameters by position only; drop the '/' to allow names.")
    return [p.name for p in rest]


def required_names(function: Callable[..., Any], n_extra: int = 0) -> list[str]:
    """The arguments after (t, y) and the noise that have no default."""
    rest = list(inspect.signature(function).parameters.values())[2 + n_extra :]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in rest if p.default is p.empty and p.kind not in kinds]
