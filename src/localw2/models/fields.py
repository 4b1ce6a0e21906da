"""Right-hand sides of differential equations, each with its own latent variables."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from localw2.models.laws import Law, ParameterLaw
from localw2.models.network import RandomMLP
from localw2.models.noise_network import NoiseMLP

# An argument with one of these names receives all parameters as one dict.
_ALL_AT_ONCE = ("omega", "parameters")

# The buffers that hold the units of a network's states and slopes.
UNITS = ("location", "spread", "slope")

# Maps time (a scalar) and states (n, d) to derivatives (n, d).
Field = Callable[[Tensor, Tensor], Tensor]


class RandomField(nn.Module, ABC):
    r"""A right-hand side :math:`g(t, y, \omega)` whose omega belongs to a trajectory, not to a time."""

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Latent variables of n trajectories: a tensor, or a list of tensors, n first."""

    @abstractmethod
    def bind(self, omega: Any) -> Field:
        """The right-hand side with omega fixed, which the solver calls many times."""

    def parameters_of(self, omega: Any) -> dict[str, Tensor]:
        """The named parameters (n,) for these omegas, if there are any."""
        return {}


@final
class NetworkField(RandomField):
    r"""A network with random weights as the right-hand side, the same at all times (paper, Fig. example4).

    Every trajectory has its own draw of all weights, held fixed over time; or, with ``n_noise``, of the few
    random inputs of a network with fixed weights (``NoiseMLP``), which can send trajectories apart.
    ``units``, three tensors (d,) a, b and c, make it :math:`g(y) = c \cdot \mathrm{net}((y - a) / b)`, so
    that the network learns numbers near 1 in any units of states and time; by default a = 0 and b = c = 1.

    >>> field = NetworkField(4, width=10, depth=2)
    >>> field.bind(field.draw(7))(torch.tensor(0.0), torch.ones(7, 4)).shape
    torch.Size([7, 4])
    """

    def __init__(
        self,
        n_states: int,
        width: int = 100,
        depth: int = 2,
        residual: bool = False,
        activation: str = "relu",
        initial_std: float | None = 0.01,
        generator: torch.Generator | None = None,
        units: tuple[Tensor, Tensor, Tensor] | None = None,
        n_noise: int | None = None,
    ) -> None:
        super().__init__()
        sizes = n_states, n_states, width, depth
        self.net: RandomMLP | NoiseMLP
        if n_noise is None:
            self.net = RandomMLP(*sizes, residual, activation, initial_std, generator=generator)
        else:
            self.net = NoiseMLP(*sizes, n_noise, residual, activation, generator=generator)
        plain = torch.zeros(n_states), torch.ones(n_states), torch.ones(n_states)
        for name, value, default in zip(UNITS, units or plain, plain, strict=True):
            self.register_buffer(name, torch.as_tensor(value).to(default).clone())

    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Noise of every weight, or the random inputs."""
        return self.net.draw(n, generator)

    def bind(self, omega: Any) -> Field:
        """Compute the weights once; every call is then one batched product per layer."""
        net = self.net
        if isinstance(net, NoiseMLP):
            start, unit, factor = (self.get_buffer(name) for name in UNITS)
            return lambda t, y: net.evaluate((y - start) / unit, omega) * factor
        layers = net.random_layers()
        pairs = zip(layers, omega, strict=True)
        weights = [TrajectoryWeights(layer.mean, layer.std, z) for layer, z in pairs]
        location, spread, slope = (self.get_buffer(name) for name in UNITS)

        def apply(i: int, h: Tensor) -> Tensor:
            return weights[i].product(h) + layers[i].bias

        return lambda t, y: net._through((y - location) / spread, apply) * slope


class TrajectoryWeights:
    r"""Weights :math:`a + s z_b` of every trajectory b, used many times, with one gradient for all uses.

    A solver calls the field about forty times with the same weights. For each call, autograd would compute
    and add a gradient of the size of all weights, which is most of a training step. Here the backward pass of
    a call only keeps its two small factors h (n, in) and grad (n, out). After the last one, a batched product
    :math:`\sum_k h_k^T g_k` over the calls k gives the gradient of all weights. ``token`` is a zero that
    every call depends on, so that autograd reaches the sum only after all calls.
    """

    def __init__(self, mean: Tensor, std: Tensor, noise: Tensor) -> None:
        self.weights = torch.addcmul(mean.detach(), std.detach(), noise)  # (n, in, out), as the noise
        self.uses: list[tuple[Tensor, Tensor]] = []
        self.token: Tensor = _SumOfUses.apply(mean, std, noise, self.uses)  # type: ignore[no-untyped-call]  # torch

    def product(self, h: Tensor) -> Tensor:
        """h (n, in) times each trajectory's weights, (n, out)."""
        outputs: Tensor = _Use.apply(h, self.weights, self.token, self.uses)  # type: ignore[no-untyped-call]  # torch
        return outputs


class _SumOfUses(torch.autograd.Function):
    """A zero whose backward pass adds up the gradients from all uses of the weights."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, std: Tensor, noise: Tensor, uses: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        ctx.noise, ctx.uses = noise, uses
        return mean.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.uses:
            return None, None, None, None
        inputs = torch.stack([h for h, _ in ctx.uses], 1)
        grads = torch.stack([g for _, g in ctx.uses], 1)
        ctx.uses.clear()
        of_weights = torch.bmm(inputs.transpose(1, 2), grads)
        in_std = torch.einsum("nio,nio->io", of_weights, ctx.noise) if ctx.needs_input_grad[1] else None
        return of_weights.sum(0), in_std, None, None


class _Use(torch.autograd.Function):
    """One product with the weights, whose gradient in the weights is computed later."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weights: Tensor, token: Tensor, uses: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        ctx.save_for_backward(h, weights)
        ctx.uses = uses
        return torch.bmm(h[:, None], weights).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weights = ctx.saved_tensors
        if ctx.needs_input_grad[2]:
            ctx.uses.append((h, grad))
        in_h = (
            torch.bmm(grad[:, None], weights.transpose(1, 2)).squeeze(1) if ctx.needs_input_grad[0] else None
        )
        return in_h, None, grad.new_zeros(()) if ctx.needs_input_grad[2] else None, None


@final
class FunctionField(RandomField):
    r"""A known right-hand side with named parameters, whose joint distribution is learned.

    ``function(t, y, ...)`` is written for **one** trajectory: t is a number, y is (d,), and every parameter
    is a number, passed by name (or all together as a dict, if the only other argument is called ``omega``
    or ``parameters``). It is mapped over trajectories by ``torch.func.vmap``, so it can mix states but never
    trajectories. Use torch functions, and ``torch.where`` instead of ``if``.

    >>> from localw2.models.laws import Normal
    >>> field = FunctionField(lambda t, y, r, K: r * y * (1 - y / K), {"r": Normal(1.0), "K": Normal(10.0)})
    >>> field.bind(field.draw(7))(torch.tensor(0.0), torch.ones(7, 1)).shape
    torch.Size([7, 1])
    """

    def __init__(
        self,
        function: Callable[..., Any],
        laws: Mapping[str, Law],
        generator: torch.Generator | None = None,
        given: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.function = function
        self.law = ParameterLaw(laws, generator=generator)
        self.initial_names = [name for name in laws if is_initial(name)]
        self.names = [name for name in laws if not is_initial(name)]
        self.given = [name for name in given if name in {p.name for p in _arguments(function)[2:]}]
        self._by_name = _takes_names(function, [*self.names, *self.given])
        self._by_columns: bool | None = None  # whether the function takes all trajectories at once

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Noise of the random parameters."""
        return self.law.draw(n, generator)

    def bind(self, omega: Tensor) -> Field:
        """Compute the parameters from omega, once for all times."""
        parameters = self._of_function(self.law(omega))
        mapped = torch.vmap(self._one, in_dims=(None, 0, 0))
        return lambda t, y: mapped(t.to(y.dtype), y, parameters)

    def slopes(self, t: Tensor, y: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Slopes (n, d) at times t (n,) and states y (n, d), with the values (n,) of everything named.

        A function of elementary operations gives the same if it is called once with columns y (d, n) as if it
        is mapped over trajectories, and much faster. That is tried at the first call.
        """
        values = self._of_function(values)
        if self._by_columns is None:
            self._by_columns = self._agrees_by_columns(t, y, values)
        if self._by_columns:
            return self._one(t, y.T, values).T
        mapped: Tensor = torch.vmap(self._one)(t, y, values)
        return mapped

    def _of_function(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: values[name] for name in (*self.names, *self.given)}

    def _agrees_by_columns(self, t: Tensor, y: Tensor, values: dict[str, Tensor]) -> bool:
        # Rows that differ in everything, so that a function which mixes trajectories is found out.
        n = 5
        rows = torch.arange(n, device=y.device) % len(y)
        shake = 1 + 0.01 * torch.arange(n, device=y.device, dtype=y.dtype)
        t, y, values = t[rows] * shake, y[rows] * shake[:, None] + 0.01 * shake[:, None], values
        values = {name: value[rows] * shake for name, value in values.items()}
        mapped: Tensor = torch.vmap(self._one)(t, y, values)
        try:
            columns = self._one(t, y.T, values).T
        except Exception:  # written for one trajectory only, and a user's function can raise anything
            return False
        return torch.allclose(columns, mapped, rtol=1e-12, atol=0.0, equal_nan=True)

    def _one(self, t: Tensor, y: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        """The slopes of one trajectory."""
        slope = self.function(t, y, **parameters) if self._by_name else self.function(t, y, parameters)
        if isinstance(slope, list | tuple):
            slope = torch.stack([torch.as_tensor(part, dtype=y.dtype, device=y.device) for part in slope])
        if not isinstance(slope, Tensor) or slope.shape != y.shape:
            came = f"shape {tuple(slope.shape)}" if isinstance(slope, Tensor) else type(slope).__name__
            raise ValueError(
                f"the field returned {came} for a state of shape {tuple(y.shape)}; it is called for one "
                "trajectory and must return one slope per state, as torch.stack([...]) or a list."
            )
        return slope

    def parameters_of(self, omega: Tensor) -> dict[str, Tensor]:
        """The parameter values (n,) for these omegas, of trajectories with average covariates."""
        average = omega.new_zeros(len(omega), len(self.law.covariates)) if self.law.covariates else None
        parameters: dict[str, Tensor] = self.law(omega, average)
        return parameters


def is_initial(name: str) -> bool:
    """Whether a parameter is an initial state: y0, or y0_1, y0_2, ... of several.

    >>> is_initial("y0"), is_initial("y0_2"), is_initial("y1")
    (True, True, False)
    """
    return re.fullmatch(r"y0(_[1-9][0-9]*)?", name) is not None


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """The required arguments after (t, y)."""
    return [p.name for p in _arguments(function)[2:] if p.default is inspect.Parameter.empty]


def _takes_names(function: Callable[..., Any], names: list[str]) -> bool:
    """Whether the parameters are passed by name; otherwise they are passed as one dict."""
    arguments = _arguments(function)
    if clash := sorted({p.name for p in arguments[:2]} & set(names)):
        raise ValueError(
            f"the parameter {clash[0]!r} has the same name as the field's time or state; rename it."
        )
    if any(p.kind is p.POSITIONAL_ONLY for p in arguments[2:]):
        raise ValueError("the field takes its parameters by position only; drop the '/' to allow names.")
    known, required = {p.name for p in arguments[2:]}, parameter_names(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    if takes_any or (set(names) <= known and set(required) <= set(names)):
        return True
    if len(arguments) == 3 and arguments[2].name in _ALL_AT_ONCE:
        return False
    raise ValueError(
        f"the field takes {', '.join(required) or 'nothing'} after (t, y), but the parameters are "
        f"{', '.join(names)}. Use the same names, as in def field(t, y, {', '.join(names)})."
    )


def _arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(
            f"the signature of field={function!r} cannot be read; wrap it in a def with (t, y, ...)."
        ) from None
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(named) < 2:
        raise ValueError(
            f"the field {inspect.signature(function)} must take time and state first, as in (t, y, ...)."
        )
    return named
