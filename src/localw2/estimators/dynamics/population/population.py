"""A fitted population as its field reads it: typical values, spread between subjects, noise, how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.stats import t as student

from localw2._wording import align

LEVEL = 0.9  # of the intervals


@final
@dataclass(frozen=True)
class Quantity:
    """An estimate with its standard error; ``positive`` ones have intervals by their logarithms.

    The error comes from leaving out subjects in turn, so that it is itself uncertain: ``freedom`` are its
    degrees of freedom.

    >>> Quantity("k", "typical", 2.0, 0.1, False, 9).interval
    (1.81..., 2.18...)
    """

    parameter: str
    kind: str
    value: float
    error: float
    positive: bool
    freedom: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 90 % interval, by Student's t for the value or its logarithm."""
        wide = float(student.ppf(0.5 + LEVEL / 2, self.freedom)) * self.error
        if self.kind.startswith("correlation"):  # by Fisher's transformation
            inside = np.clip(self.value, -0.999999, 0.999999)
            ends = np.arctanh(inside) + np.array([-1, 1]) * wide / (1 - inside**2)
            return float(np.tanh(ends[0])), float(np.tanh(ends[1]))
        if self.positive and self.value > 0:
            factor = float(np.exp(np.minimum(wide / self.value, 700.0)))
            return self.value / factor, self.value * factor
        return self.value - wide, self.value + wide


@final
@dataclass(frozen=True)
class Population:
    """What a fit of noisy trajectories found.

    ``quantities`` are typical values, spreads (of logarithms, for parameters that are log-normal),
    correlations, effects of covariates and standard deviations of the noise. ``shrinkage`` says how much
    less subjects' own most probable values vary than the population: near 1, their data hardly tell.
    ``two_stage`` are mean and SD of least squares for each subject alone, where they have enough points.
    """

    quantities: tuple[Quantity, ...]
    shrinkage: Mapping[str, float]
    two_stage: Mapping[str, tuple[float, float]] | None
    n_subjects: int
    n_observations: int
    logarithmic: tuple[str, ...]

    def find(self, parameter: str, kind: str) -> Quantity:
        """One of the quantities.

        ``kind`` is "typical", "spread", "effect of ..", "correlation with ..", "additive" or "proportional".
        """
        for quantity in self.quantities:
            if (quantity.parameter, quantity.kind) == (parameter, kind):
                return quantity
        known = ", ".join(f"{q.parameter} {q.kind}" for q in self.quantities)
        raise ValueError(f"there is no {kind!r} of {parameter!r}; there are: {known}.")

    def describe(self, quantity: Quantity) -> str:
        """One of the quantities in words."""
        name = quantity.parameter
        shown = {
            "typical": name,
            "spread": f"{'SD of log ' if name in self.logarithmic else 'SD of '}{name}",
        }
        return shown.get(quantity.kind, f"{name}: {quantity.kind}")

    def __str__(self) -> str:
        lines = [["", "estimate", "s.e.", "5%", "95%", "shrinkage", "two-stage"]]
        for quantity in self.quantities:
            low, high = quantity.interval
            name, kind = quantity.parameter, quantity.kind
            alone = (self.two_stage or {}).get(name)
            beside = (
                ""
                if alone is None
                else {"typical": f"{alone[0]:.4g}", "spread": f"{alone[1]:.3g}"}.get(kind, "")
            )
            shrunk = f"{self.shrinkage[name]:.0%}" if kind == "spread" and name in self.shrinkage else ""
            numbers = [f"{v:.3g}" if np.isfinite(v) else "" for v in (quantity.error, low, high)]
            lines.append([self.describe(quantity), f"{quantity.value:.4g}", *numbers, shrunk, beside])
        head = f"{self.n_subjects} subjects, {self.n_observations} observations"
        return f"{head}\n{align(lines, rule=True)}"


def to_plain(population: Population) -> dict[str, Any]:
    """The population as plain values, for a file."""
    rows = [[q.parameter, q.kind, q.value, q.error, q.positive] for q in population.quantities]
    return {
        "quantities": rows,
        "shrinkage": dict(population.shrinkage),
        "two_stage": None
        if population.two_stage is None
        else {k: list(v) for k, v in population.two_stage.items()},
        "n_subjects": population.n_subjects,
        "n_observations": population.n_observations,
        "logarithmic": list(population.logarithmic),
    }


def from_plain(plain: Mapping[str, Any]) -> Population:
    """The population that ``to_plain`` described, with every value checked."""
    freedom = max(int(plain["n_subjects"]) - 1, 1)
    rows = tuple(
        Quantity(str(name), str(kind), float(value), float(error), bool(positive), freedom)
        for name, kind, value, error, positive in plain["quantities"]
    )
    two_stage = plain["two_stage"]
    if two_stage is not None:
        two_stage = {str(k): (float(a), float(b)) for k, (a, b) in two_stage.items()}
    return Population(
        rows,
        {str(k): float(v) for k, v in plain["shrinkage"].items()},
        two_stage,
        int(plain["n_subjects"]),
        int(plain["n_observations"]),
        tuple(map(str, plain["logarithmic"])),
    )
