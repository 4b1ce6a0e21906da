"""Stochastic equations from the settings of an estimator, and to and from what a model file can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import as_array, check_count, check_flag
from localw2.models.coefficients import (
    Coefficient,
    ConstantCoefficient,
    FunctionCoefficient,
    FunctionJumps,
    Jumps,
    NetworkCoefficient,
    NormalJumps,
    argument_names,
    required_names,
)
from localw2.models.laws import LAWS, Law, ParameterLaw, Shared, as_laws
from localw2.models.sde import StochasticEquation

# The guess of a parameter that nothing is said of.
GUESS = 1.0


@final
@dataclass(frozen=True)
class EquationSettings:
    """What an equation consists of, checked: parts that are "mlp" or functions, and laws of parameters."""

    drift: Any
    diffusion: Any
    jumps: Any
    laws: dict[str, Law]
    correlated: bool
    width: int
    depth: int
    bounds: Any

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> EquationSettings:
        """Check the settings of an estimator."""
        drift, diffusion, jumps = settings["drift"], settings["diffusion"], settings["jumps"]
        for name, part in (("drift", drift), ("diffusion", diffusion)):
            if not (callable(part) or (isinstance(part, str) and part == "mlp")):
                raise ValueError(f"{name}={part!r} is unknown; give 'mlp' or a function {name}(t, y, ...).")
        jumps = _check_jumps(jumps)
        check_flag(settings["correlated"], "correlated")
        check_count(settings["width"], "width", 1)
        check_count(settings["depth"], "depth", 1)
        laws = _laws(settings["parameters"], _functions(drift, diffusion, jumps))
        parts = drift, diffusion, jumps, laws
        shape = bool(settings["correlated"]), settings["width"], settings["depth"]
        return cls(*parts, *shape, settings["bounds"])

    @property
    def has_functions(self) -> bool:
        """Whether any part is a function of the user's."""
        return bool(_functions(self.drift, self.diffusion, self.jumps))

    @property
    def has_networks(self) -> bool:
        """Whether any part is a network."""
        return any(
            isinstance(part, str) and part == "mlp" for part in (self.drift, self.diffusion, self.jumps)
        )

    @property
    def dtype(self) -> torch.dtype:
        """Networks are fast in float32; functions have parameters of any size."""
        return torch.float64 if self.has_functions else torch.float32

    def build(
        self, d: int, units: Mapping[str, tuple[Tensor, Tensor, Tensor]], generator: torch.Generator | None
    ) -> StochasticEquation:
        """The equation of d states, untrained, with the units of its networks by part."""

        def network(
            name: str, count: int, positive: bool = False, matrix: bool = False
        ) -> NetworkCoefficient:
            sizes = d, count, self.width, self.depth
            return NetworkCoefficient(*sizes, positive, matrix, units.get(name), generator)

        drift: Coefficient = (
            network("drift", d)
            if isinstance(self.drift, str)
            else FunctionCoefficient(self.drift, (d,), "drift")
        )
        shape = (d, d) if self.correlated else (d,)
        diffusion: Coefficient = (
            network("diffusion", d, True, self.correlated)
            if isinstance(self.diffusion, str)
            else FunctionCoefficient(self.diffusion, shape, "diffusion")
        )
        jumps: Jumps | None = None
        if isinstance(self.jumps, str) and self.jumps == "mlp":
            parts = network("rate", 1, True), network("jump_mean", d), network("jump_std", d, True)
            jumps = NormalJumps(*parts)
        elif isinstance(self.jumps, str):
            constants = ConstantCoefficient(1, True), ConstantCoefficient(d), ConstantCoefficient(d, True)
            jumps = NormalJumps(*constants)
        elif self.jumps is not None:
            rate, size = self.jumps
            jumps = FunctionJumps(
                FunctionCoefficient(rate, (1,), "the rate of jumps"),
                FunctionCoefficient(size, (d,), "jumps", ("z",)),
            )
        law = ParameterLaw(self.laws, generator) if self.laws else None
        bounds = check_bounds(self.bounds, d)
        return StochasticEquation(drift, diffusion, jumps, law, bounds).to(self.dtype)


def check_bounds(bounds: Any, d: int) -> Tensor | None:
    """Lower and upper bounds (2, d) of the states; None if there are none."""
    if bounds is None:
        return None
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise ValueError(f"bounds={bounds!r} must be a pair (lower, upper), such as (0, None).")
    ends = []
    for end, none in zip(bounds, (-math.inf, math.inf), strict=True):
        each = list(end) if isinstance(end, list | tuple) or hasattr(end, "__len__") else [end]
        numbers = [none if v is None else float(as_array([v], "bounds")[0]) for v in each]
        if len(numbers) not in (1, d):
            raise ValueError(f"bounds has {len(numbers)} values for {d} state(s); give one, or one each.")
        ends.append(torch.tensor(numbers, dtype=torch.float64).expand(d))
    low, high = ends
    if not bool((low < high).all()):
        raise ValueError(f"bounds={bounds!r} must rise: the lower one below the upper.")
    return torch.stack([low, high])


def _check_jumps(jumps: Any) -> Any:
    if jumps is None or (isinstance(jumps, str) and jumps in ("normal", "mlp")):
        return jumps
    if callable(jumps):
        return (_named_rate, jumps)
    if isinstance(jumps, list | tuple) and len(jumps) == 2 and all(callable(part) for part in jumps):
        return tuple(jumps)
    raise ValueError(
        f"jumps={jumps!r} is unknown; give None, 'normal' (constant rate, Gaussian sizes), 'mlp' (both of "
        "the state), a function size(t, y, z, ...) beside a parameter 'rate', or a pair (rate, size) with "
        "rate(t, y, ...)."
    )


def _named_rate(t: Any, y: Any, rate: Any) -> Any:
    """The rate of jumps that is a parameter of that name."""
    return rate[None]


def _functions(drift: Any, diffusion: Any, jumps: Any) -> list[tuple[str, Any, int]]:
    """The functions among the parts, by name, with the number of their arguments for noise."""
    found = [(n, f, 0) for n, f in (("drift", drift), ("diffusion", diffusion)) if callable(f)]
    if isinstance(jumps, tuple):
        found += [("the rate of jumps", jumps[0], 0), ("jumps", jumps[1], 1)]
    return found


def _laws(parameters: Any, functions: list[tuple[str, Any, int]]) -> dict[str, Law]:
    """The laws of all named parameters; a number, or nothing, means one value for all paths."""
    known = {name for label, f, extra in functions for name in argument_names(f, label, extra)}
    required = list(dict.fromkeys(name for _, f, extra in functions for name in required_names(f, extra)))
    if not functions:
        if parameters is not None:
            raise ValueError("parameters belong to functions of your own; networks have none.")
        return {}
    if parameters is None:
        parameters = {name: Shared(GUESS) for name in required}
    if isinstance(parameters, str):
        parameters = [parameters]
    if isinstance(parameters, list | tuple):
        parameters = dict.fromkeys(parameters, GUESS)
    if not parameters and not required:
        return {}
    if isinstance(parameters, Mapping):
        numbers = {n: v for n, v in parameters.items() if isinstance(v, int | float | np.number)}
        named = {n: LAWS[v](GUESS) for n, v in parameters.items() if isinstance(v, str) and v in LAWS}
        parameters = {**parameters, **{n: Shared(float(v)) for n, v in numbers.items()}, **named}
    laws = as_laws(parameters)
    if missing := [name for name in required if name not in laws]:
        raise ValueError(
            f"your functions take {missing[0]!r}, of which parameters says nothing; give it a guess or a law."
        )
    if unused := [name for name in laws if name not in known]:
        raise ValueError(f"parameters has {unused[0]!r}, which none of your functions takes.")
    if any(law.depends_on for law in laws.values()):
        raise ValueError("laws of a stochastic equation cannot depend on covariates.")
    return laws
