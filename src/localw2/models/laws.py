"""The joint distribution of a model's named parameters: which vary, in what shape, and from what guess."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, final

import torch
from torch import Tensor, nn

from localw2._validation import check_count, check_number
from localw2.models.base import check_omega, normal, source

# Centres move in larger steps than spreads, because a first guess is often several spreads off.
LOCATION_STEP = 3.0
WIDTH = 20  # of the network of push-forward parameters


@dataclass(frozen=True)
class Law:
    """How one parameter varies between trajectories, and the initial guess.

    ``mean`` and ``std`` should be right to within a small factor; ``std=None`` means a fifth of the mean,
    or 0.2 if the mean is 0.
    """

    mean: float = 0.0
    std: float | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check_number(self.mean, f"{kind}: mean", math.isfinite, "a finite number")
        if self.std is not None:
            words = (
                "a number > 0: it sets the step size. Use Shared(value) for a parameter that does not vary"
            )
            check_number(self.std, f"{kind}: std", lambda s: 0 < s < math.inf, words)

    @property
    def scale(self) -> float:
        """The unit in which the parameter is learned."""
        if self.std is not None:
            return float(self.std)
        return 0.2 * abs(self.mean) if self.mean else 0.2


@final
@dataclass(frozen=True)
class Normal(Law):
    """Gaussian, with correlations to other ``Normal`` and ``LogNormal`` parameters learned from the data.

    >>> Normal(1.0, 0.3).scale, Normal(10.0).scale
    (0.3, 2.0)
    """


@final
@dataclass(frozen=True)
class LogNormal(Law):
    """The exponential of a Gaussian: a parameter that is always positive. ``mean`` must be positive."""

    mean: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mean > 0:
            raise ValueError(f"LogNormal: mean={self.mean} must be > 0; its values are positive.")


@final
@dataclass(frozen=True)
class PushForward(Law):
    """Any shape: a small network maps Gaussian noise, jointly with all other random parameters."""


@final
@dataclass(frozen=True)
class Shared(Law):
    """One unknown value for all trajectories: learned, but not random."""


LAWS: dict[str, type[Law]] = {
    "normal": Normal,
    "lognormal": LogNormal,
    "pushforward": PushForward,
    "shared": Shared,
}


def as_laws(parameters: Any) -> dict[str, Law]:
    """Named laws from laws, names of laws, initial guesses (Gaussian), or parameter names alone.

    >>> as_laws({"r": 1.0, "K": LogNormal(10.0), "c": "shared"})
    {'r': Normal(mean=1.0, std=None), 'K': LogNormal(mean=10.0, std=None), 'c': Shared(mean=0.0, std=None)}
    """
    if isinstance(parameters, str):
        parameters = [parameters]
    if isinstance(parameters, list | tuple):
        parameters = dict.fromkeys(parameters, "normal")
    if not isinstance(parameters, Mapping) or not parameters:
        raise ValueError(
            f"parameters={parameters!r} has no parameters; give a dict such as {{'r': Normal(1.0, 0.2)}}."
        )
    return {name: _law(name, value) for name, value in parameters.items()}


def _law(name: Any, value: Any) -> Law:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"parameter name {name!r} must be a valid Python identifier, such as 'r'.")
    if isinstance(value, Law):
        return value
    if isinstance(value, str) and value in LAWS:
        return LAWS[value]()
    if not isinstance(value, bool) and isinstance(value, Real):
        return Normal(float(value))
    raise ValueError(
        f"parameters[{name!r}]={value!r} is not a law; give one of {', '.join(LAWS)}, an initial guess, or "
        "Normal(mean, std), LogNormal(...), PushForward(...), Shared(value)."
    )


@final
class ParameterLaw(nn.Module):
    r"""The joint distribution of named parameters, as a differentiable function of standard normal noise.

    With noise :math:`z`, Gaussian parameters are :math:`m + s\,(3\mu + Lz)` with a lower triangular L, which
    allows correlations; log-normal ones are exponentials of such; a push-forward one is
    :math:`m + s\,(3\mu_i + z_i + h_i(z))` with a small network h of *all* noise. m and s are the initial
    guesses, where learning starts and in whose units s it takes steps.

    >>> law = ParameterLaw({"r": Normal(1.0, 0.1), "c": Shared(3.0)})
    >>> {name: value.shape for name, value in law(law.draw(5)).items()}
    {'r': torch.Size([5]), 'c': torch.Size([5])}
    """

    def __init__(self, laws: Mapping[str, Law], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.laws = dict(laws)
        gaussian = [n for n, law in self.laws.items() if isinstance(law, Normal | LogNormal)]
        pushed = [n for n, law in self.laws.items() if isinstance(law, PushForward)]
        # Gaussian parameters come first in the noise.
        self.random_names = [*gaussian, *pushed]
        self.shared_names = [n for n in self.laws if n not in self.random_names]
        self.n_gaussian = len(gaussian)
        k = len(self.random_names)
        self.location = nn.Parameter(torch.zeros(k))
        self.factor = nn.Parameter(torch.eye(self.n_gaussian))
        self.shared = nn.Parameter(torch.zeros(len(self.shared_names)))
        self.push: nn.Sequential | None = None
        if pushed:
            first, second, last = nn.Linear(k, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, len(pushed))
            self.push = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)
            generator = source(generator, torch.device("cpu"))
            for layer in (first, second, last):
                layer.weight.data.normal_(generator=generator).mul_(layer.in_features**-0.5)
                layer.bias.data.normal_(generator=generator)
            last.weight.data.mul_(0.1)
            last.bias.data.zero_()

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise (n, number of random parameters)."""
        return normal((check_count(n, "n", 0), len(self.random_names)), self.location, generator)

    def forward(self, noise: Tensor) -> dict[str, Tensor]:
        """The values (n,) of every parameter, in the given order."""
        check_omega(noise, (len(noise), len(self.random_names)))
        inner = noise[:, : self.n_gaussian] @ self.factor.tril().T
        if self.push is not None:
            inner = torch.cat([inner, noise[:, self.n_gaussian :] + self.push(noise)], 1)
        inner = inner + LOCATION_STEP * self.location
        values = dict(zip(self.random_names, inner.unbind(1), strict=True))
        for name, value in zip(self.shared_names, LOCATION_STEP * self.shared, strict=True):
            values[name] = value.expand(len(noise))
        return {
            name: torch.exp(math.log(law.mean) + law.scale / law.mean * values[name])
            if isinstance(law, LogNormal)
            else law.mean + law.scale * values[name]
            for name, law in self.laws.items()
        }

    def displacements(self) -> dict[str, float]:
        """How far the centre of each parameter has moved from its initial guess, in units of its scale."""
        names = [*self.random_names, *self.shared_names]
        moved = LOCATION_STEP * torch.cat([self.location, self.shared]).detach()
        return dict(zip(names, moved.tolist(), strict=True))

    def extra_repr(self) -> str:
        """The laws by name."""
        return ", ".join(f"{name}={law}" for name, law in self.laws.items())
