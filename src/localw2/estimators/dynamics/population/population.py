"""A fitted population as its field reads it: typical values, spread between subjects, noise, how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.stats import t as student

from localw2._wording import align

LEVEL = 0.9  # of the intervals
# An interval of a correlation that is wider than this leaves hardly anything out.
WIDEST = 1.8


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
    def is_correlation(self) -> bool:
        """Whether it lies between -1 and 1."""
        return self.kind.startswith("correlation")

    @property
    def undetermined(self) -> bool:
        """Whether it is a correlation about which the data say next to nothing."""
        low, high = self.interval
        return self.is_correlation and not high - low < WIDEST

    @property
    def interval(self) -> tuple[float, float]:
        """The 90 % interval, by Student's t for the value, its logarithm, or a scale for correlations."""
        if not np.isfinite(self.error):
            return (0.0 if self.positive else -np.inf), np.inf
        wide = float(student.ppf(0.5 + LEVEL / 2, self.freedom)) * self.error
        if self.is_correlation:
            return _surround(self.value, wide)
        if self.positive and self.value > 0:
            factor = float(np.exp(np.minimum(wide / self.value, 700.0)))
            return self.value / factor, self.value * factor
        return self.value - wide, self.value + wide


def _surround(correlation: float, wide: float) -> tuple[float, float]:
    """The interval of a correlation with this half width, by Fisher's transformation or by the angle.

    Fisher's scale suits subjects whose parameters are seen well. Where errors of measurement matter, an
    estimate near -1 or 1 is off by far more than 1 - r**2, and that scale says "anything"; the angle arccos r
    does not, and covers as well (``benchmarks/population.py correlations``).
    """
    inside = float(np.clip(correlation, -0.999999, 0.999999))
    step = wide / (1 - inside**2)
    if step <= 1:
        low, high = np.tanh(np.arctanh(inside) + np.array([-step, step]))
    else:
        turn = step * np.sqrt(1 - inside**2)
        low, high = np.cos(np.clip(np.arccos(inside) + np.array([turn, -turn]), 0.0, np.pi))
    return float(low), float(high)


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
        return "\n".join([head, align(lines, rule=True), *self.remarks()])

    def remarks(self) -> list[str]:
        """What the numbers do not say by themselves, in sentences."""
        found = []
        if not all(np.isfinite(quantity.error) for quantity in self.quantities if quantity.kind == "spread"):
            found.append("Noise cannot be told from spread: subjects have too few observations.")
        untold = [self.describe(quantity) for quantity in self.quantities if quantity.undetermined]
        if untold:
            found.append(f"These data say next to nothing about: {'; '.join(untold)}.")
        return found


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
