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
from localw2.models.network import ACTIVATIONS, RandomMLP
from localw2.models.noise_network import NoiseMLP

# Multiples of states at which a function of columns is compared with one that is mapped over paths: one that
# mixes them only where states are large must not pass.
SIZES = (1.0, 30.0, -30.0, 1000.0)

# An argument with one of these names receives all parameters as one dict.
_ALL_AT_ONCE = ("omega", "parameters")

# Random weights of all trajectories that are solved together, 6 MB of them.
CACHED_WEIGHTS = 3 << 19

# The buffers that hold the units of a network's states and slopes.
UNITS = ("location", "spread", "slope")

# Maps time (a scalar) and states (n, d) to derivatives (n, d).
Field = Callable[[Tensor, Tensor], Tensor]


class RandomField(nn.Module, ABC):
    r"""A right-hand side :math:`g(t, y, \omega)` whose omega belongs to a trajectory, not to a time."""

    # Trajectories that are best solved together on a CPU; None for any number.
    together: int | None = None

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
            # The weights of more than so many do not stay in the cache, and each takes ten times as long.
            weights = sum(layer.mean.numel() for layer in self.net.random_layers())
            self.together = max(1, CACHED_WEIGHTS // weights)
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
        units = [self.get_buffer(name) for name in UNITS]
        return TrajectoryNetworks(net, omega, units).slopes


class TrajectoryNetworks:
    r"""The networks of all trajectories b, with weights :math:`a + s z_b`, evaluated many times.

    A solver calls the field about fifty times with the same weights. For each call, autograd would compute
    and add a gradient of the size of all weights, and keep account of a dozen small operations; together
    that is most of a training step. Here a call is one operation, whose backward pass only keeps the small
    factors h (n, 1, in) and grad (n, 1, out) of every layer. After the last one, a batched product
    :math:`\sum_k h_k^T g_k` over the calls k gives the gradient of all weights. ``token`` is a zero that
    every call depends on, so that autograd reaches the sum only after all calls.
    """

    def __init__(self, net: RandomMLP, omega: list[Tensor], units: list[Tensor]) -> None:
        layers = net.random_layers()
        self._weights = [
            torch.addcmul(layer.mean.detach(), layer.std.detach(), noise)  # (n, in, out), as the noise
            for layer, noise in zip(layers, omega, strict=True)
        ]
        self._biases = [layer.bias.detach() for layer in layers]
        self._location, self._spread, self._slope = units
        self._activation, self._residual = net.activation, net.residual
        self._uses: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]
        parameters = [p for layer in layers for p in (layer.mean, layer.std, layer.bias)]
        self._token: Tensor = _SumOfUses.apply(omega, self._uses, *parameters)  # type: ignore[no-untyped-call]  # torch

    def slopes(self, t: Tensor, y: Tensor) -> Tensor:
        """The slopes (n, d) at states y (n, d), the same at all times."""
        outputs: Tensor = _Use.apply(y, self._token, self)  # type: ignore[no-untyped-call]  # torch
        return outputs

    def forward(self, y: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The slopes, and the inputs (n, 1, in) and outputs (n, 1, out) of every layer."""
        act, last = ACTIVATIONS[self._activation], len(self._weights) - 1
        h, inputs, outputs = ((y - self._location) / self._spread)[:, None], [], []
        for i, (weights, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            inputs.append(h)
            outputs.append(torch.baddbmm(bias, h, weights))
            if i < last:
                h = h + act(outputs[i]) if self._residual and i > 0 else act(outputs[i])
        return outputs[last].squeeze(1) * self._slope, inputs, outputs

    def backward(self, grad: Tensor, inputs: list[Tensor], outputs: list[Tensor], keep: bool) -> Tensor:
        """The gradient in y (n, d); ``keep`` the factors of the gradient in the weights."""
        last = len(self._weights) - 1
        in_h = (grad * self._slope)[:, None]
        for i in reversed(range(last + 1)):
            grad = in_h if i == last else _activation_gradient(self._activation, outputs[i], in_h)
            if keep:
                self._uses[i].append((inputs[i], grad))
            through = torch.bmm(grad, self._weights[i].transpose(1, 2))
            in_h = in_h + through if self._residual and 0 < i < last else through
        return in_h.squeeze(1) / self._spread


def _activation_gradient(name: str, z: Tensor, grad: Tensor) -> Tensor:
    """The gradient in z, where grad is that in the activation of z."""
    if name == "relu":
        return torch.where(z > 0, grad, 0.0)
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (found,) = torch.autograd.grad(ACTIVATIONS[name](z), z, grad)
    return found


class _SumOfUses(torch.autograd.Function):
    """A zero whose backward pass adds up the gradients from all uses of the weights."""

    @staticmethod
    def forward(
        ctx: Any, omega: list[Tensor], uses: list[list[tuple[Tensor, Tensor]]], *parameters: Tensor
    ) -> Tensor:
        ctx.omega, ctx.uses = omega, uses
        return parameters[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for noise, uses in zip(ctx.omega, ctx.uses, strict=True):
            if not uses:
                found += [None, None, None]
                continue
            inputs, grads = (torch.cat(parts, 1) for parts in zip(*uses, strict=True))
            uses.clear()
            of_weights = torch.bmm(inputs.transpose(1, 2), grads)
            found += [of_weights.sum(0), of_weights.mul_(noise).sum(0), grads.sum((0, 1))]
        return None, None, *found


class _Use(torch.autograd.Function):
    """One evaluation of the networks, whose gradient in the weights is computed later."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, token: Tensor, networks: TrajectoryNetworks) -> Tensor:
        slopes, *ctx.layers = networks.forward(y)
        ctx.networks = networks
        return slopes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_weights = ctx.needs_input_grad[1]
        in_y = ctx.networks.backward(grad, *ctx.layers, of_weights)
        return in_y, grad.new_zeros(()) if of_weights else None, None


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
        for size in SIZES:
            mapped: Tensor = torch.vmap(self._one)(t, size * y, values)
            try:
                columns = self._one(t, size * y.T, values).T
            except Exception:  # written for one trajectory only, and a user's function can raise anything
                return False
            if not torch.allclose(columns, mapped, rtol=1e-12, atol=0.0, equal_nan=True):
                return False
        return True

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
