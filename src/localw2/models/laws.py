"""The joint distribution of a model's named parameters: which vary, in what shape, and from what guess."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, final

import torch
from torch import Tensor, nn

from localw2._validation import check_count, check_flag, check_number
from localw2.models.base import check_omega, normal, source

# Centres move in larger steps than spreads, because a first guess is often several spreads off.
LOCATION_STEP = 3.0
WIDTH = 20  # of the network of push-forward parameters
CURVE_WIDTH = 8  # of the network by which a parameter depends on covariates
EFFECTS = ("linear", "network")


@dataclass(frozen=True)
class Law:
    """How one parameter varies between trajectories, and the initial guess.

    ``mean`` and ``std`` should be right to within a small factor; ``std=None`` means a fifth of the mean,
    or 0.2 if the mean is 0. ``depends_on`` names covariates of the trajectories on which the parameter (the
    logarithm of a ``LogNormal``) depends; its mean is that of a trajectory with average covariates. The
    ``effect`` is "linear", or a curve that a small "network" learns, of all these covariates together.
    """

    mean: float = 0.0
    std: float | None = None
    depends_on: tuple[str, ...] = ()
    effect: str = field(default="linear", kw_only=True)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        object.__setattr__(self, "depends_on", _names(kind, self.depends_on))
        if self.effect not in EFFECTS:
            raise ValueError(
                f"{kind}: effect={self.effect!r} is unknown; choose one of {', '.join(EFFECTS)}."
            )
        if self.effect != "linear" and not self.depends_on:
            raise ValueError(
                f"{kind}: effect={self.effect!r} is that of covariates; name them in depends_on."
            )
        check_number(self.mean, f"{kind}: mean", math.isfinite, "a finite number")
        if self.std is not None:
            words = (
                "a number > 0: it sets the step size. Use Shared(value) for a parameter that does not vary"
            )
            check_number(self.std, f"{kind}: std", lambda s: 0 < s < math.inf, words)

    @property
    def logarithmic(self) -> bool:
        """Whether the law is that of the logarithm, so that values are positive."""
        return False

    @property
    def scale(self) -> float:
        """The unit in which the parameter is learned."""
        if self.std is not None:
            return float(self.std)
        return 0.2 * abs(self.mean) if self.mean else 0.2


def _names(kind: str, names: Any) -> tuple[str, ...]:
    """Names of covariates, as a tuple."""
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n.isidentifier() for n in names):
        raise ValueError(f"{kind}: depends_on={names!r} must be names of covariates, such as ('weight',).")
    if len(set(names)) < len(names):
        raise ValueError(f"{kind}: depends_on={names!r} names a covariate twice.")
    return tuple(names)


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

    @property
    def logarithmic(self) -> bool:
        """Always."""
        return True


@final
@dataclass(frozen=True)
class PushForward(Law):
    """Any shape: a small network maps Gaussian noise, jointly with all other random parameters.

    It sees the signs of the noise too, so that it can split a population into groups. With ``positive`` it
    gives the logarithm of the parameter, whose ``mean`` must be positive.
    """

    positive: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self.positive, "PushForward: positive")
        if self.positive and not self.mean > 0:
            raise ValueError(f"PushForward: mean={self.mean} must be > 0 for positive values.")

    @property
    def logarithmic(self) -> bool:
        """Whether it is asked for."""
        return self.positive


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
    {'r': Normal(mean=1.0, std=None, ...), 'K': LogNormal(mean=10.0, ...), 'c': Shared(mean=0.0, ...)}
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


def _make_curve(n_covariates: int, generator: torch.Generator | None) -> nn.Sequential:
    """A small network of covariates, 0 everywhere: learning starts from a linear effect."""
    first, last = nn.Linear(n_covariates, CURVE_WIDTH), nn.Linear(CURVE_WIDTH, 1, bias=False)
    generator = source(generator, torch.device("cpu"))
    for values, size in ((first.weight, n_covariates**-0.5), (first.bias, 1.0)):
        values.data.normal_(generator=generator).mul_(size)
    last.weight.data.zero_()
    return nn.Sequential(first, nn.Tanh(), last)


@final
class ParameterLaw(nn.Module):
    r"""The joint distribution of named parameters, as a differentiable function of standard normal noise.

    With noise :math:`z`, Gaussian parameters are :math:`m + s\,(3\mu + Lz)` with a lower triangular L, which
    allows correlations; log-normal ones are exponentials of such; a push-forward one is
    :math:`m + s\,(3\mu_i + z_i + a_i^T z + b_i^T \mathrm{sign}\,z + h_i(z))`, b for push-forward noise only,
    with a small network h of *all* noise and its signs. m and s are the initial guesses, where learning
    starts and in whose units s it takes steps. Covariates shift the bracket, see ``shift``.

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
        self.covariates = list(dict.fromkeys(name for law in self.laws.values() for name in law.depends_on))
        self.slopes: nn.Parameter | None = None
        if self.covariates:
            linked = [[name in law.depends_on for name in self.covariates] for law in self.laws.values()]
            self.linked: Tensor
            self.register_buffer(
                "linked", torch.tensor(linked, dtype=torch.get_default_dtype()), persistent=False
            )
            self.slopes = nn.Parameter(torch.zeros(len(self.laws), len(self.covariates)))
            for name, value in (("covariate_mean", 0.0), ("covariate_std", 1.0)):
                self.register_buffer(name, torch.full((len(self.covariates),), value))
        self.curves = nn.ModuleDict()
        for place, law in enumerate(self.laws.values()):
            if law.effect == "network":  # by its place: torch does not take every name
                self.curves[str(place)] = _make_curve(len(law.depends_on), generator)
        self.push: nn.Sequential | None = None
        if pushed:
            first, second, last = (
                nn.Linear(2 * k, WIDTH),
                nn.Linear(WIDTH, WIDTH),
                nn.Linear(WIDTH, len(pushed)),
            )
            self.push = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)
            generator = source(generator, torch.device("cpu"))
            for layer in (first, second, last):
                layer.weight.data.normal_(generator=generator).mul_(layer.in_features**-0.5)
                layer.bias.data.normal_(generator=generator)
            # Learning starts from a Gaussian law, so that no fit depends on where the network started.
            last.weight.data.zero_()
            last.bias.data.zero_()
            # Two groups are linear in noise and own signs: this part finds them, the network what is left.
            self.straight = nn.Parameter(torch.zeros(len(pushed), k + len(pushed)))

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise (n, number of random parameters)."""
        return normal((check_count(n, "n", 0), len(self.random_names)), self.location, generator)

    def forward(self, noise: Tensor, covariates: Tensor | None = None) -> dict[str, Tensor]:
        """The values (n,) of every parameter, in the given order, given standardised covariates (n, q)."""
        return self.values_of(self.scores(noise, covariates))

    def scores(self, noise: Tensor, covariates: Tensor | None = None) -> Tensor:
        """Every parameter (n, k) in its units: how many of its scales it lies from its initial guess."""
        check_omega(noise, (len(noise), len(self.random_names)))
        inner = noise[:, : self.n_gaussian] @ self.factor.tril().T
        if self.push is not None:
            own, signs = noise[:, self.n_gaussian :], noise.sign()
            straight = torch.cat([noise, signs[:, self.n_gaussian :]], 1) @ self.straight.T
            inner = torch.cat([inner, own + straight + self.push(torch.cat([noise, signs], 1))], 1)
        inner = inner + LOCATION_STEP * self.location
        columns = dict(zip(self.random_names, inner.unbind(1), strict=True))
        for name, value in zip(self.shared_names, LOCATION_STEP * self.shared, strict=True):
            columns[name] = value.expand(len(noise))
        if self.slopes is not None:
            if covariates is None:
                raise ValueError(f"the laws depend on {', '.join(self.covariates)}, which were not given.")
            for name, shift in zip(self.laws, self.shift(covariates).unbind(1), strict=True):
                columns[name] = columns[name] + shift
        return torch.stack([columns[name] for name in self.laws], 1)

    def shift(self, covariates: Tensor) -> Tensor:
        r"""How far standardised covariates c (n, q) move every parameter (n, k), in its units.

        It is :math:`b_i^T c`, and with a network :math:`f_i` also :math:`f_i(c) - f_i(0)`, so that it is 0
        for average covariates.
        """
        assert self.slopes is not None
        found: Tensor = covariates @ (self.slopes * self.linked).T
        if len(self.curves) == 0:
            return found
        columns, laws = list(found.unbind(1)), list(self.laws.values())
        for name, curve in self.curves.items():
            place = int(name)
            own = covariates[:, [self.covariates.index(c) for c in laws[place].depends_on]]
            columns[place] = columns[place] + (curve(own) - curve(torch.zeros_like(own[:1]))).squeeze(1)
        return torch.stack(columns, 1)

    def learn_units(self, covariates: Mapping[str, Tensor]) -> None:
        """Take mean and standard deviation of covariates (n,), in whose units effects are learned."""
        if self.covariates:
            table = torch.stack([covariates[name] for name in self.covariates], 1)
            self.get_buffer("covariate_mean").copy_(table.mean(0))
            std = table.std(0, correction=0)
            self.get_buffer("covariate_std").copy_(torch.where(std > 0, std, 1.0))

    def standardise(self, covariates: Mapping[str, Tensor]) -> Tensor | None:
        """The covariates (n, q) that the laws depend on, in units of their spread; None if there are none."""
        if not self.covariates:
            return None
        table = torch.stack([covariates[name] for name in self.covariates], 1)
        standard: Tensor = (table - self.get_buffer("covariate_mean")) / self.get_buffer("covariate_std")
        return standard

    def values_of(self, scores: Tensor) -> dict[str, Tensor]:
        """The values (n,) of every parameter that has these scores (n, k)."""
        return {
            name: torch.exp(math.log(law.mean) + law.scale / law.mean * score)
            if law.logarithmic
            else law.mean + law.scale * score
            for (name, law), score in zip(self.laws.items(), scores.unbind(1), strict=True)
        }

    @torch.no_grad()
    def restate(self, laws: Mapping[str, Law]) -> None:
        """Let some shared parameters, whose values stay, be learned in the units of other laws."""
        for place, name in enumerate(self.shared_names):
            old, new = self.laws[name], laws.get(name, self.laws[name])
            if new != old:  # else the value would be rounded for nothing
                value = old.mean + old.scale * LOCATION_STEP * self.shared[place]
                self.shared[place] = (value - new.mean) / (LOCATION_STEP * new.scale)
                self.laws[name] = new

    def displacements(self) -> dict[str, float]:
        """How far the centre of each parameter has moved from its initial guess, in units of its scale."""
        names = [*self.random_names, *self.shared_names]
        moved = LOCATION_STEP * torch.cat([self.location, self.shared]).detach()
        return dict(zip(names, moved.tolist(), strict=True))

    def extra_repr(self) -> str:
        """The laws by name."""
        return ", ".join(f"{name}={law}" for name, law in self.laws.items())
