"""Simulated subjects, fitted one by one as the observed ones are: the model that a population fit trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from localw2.balls.neighborhoods import Neighborhoods
from localw2.estimators.dynamics.population.individuals import Anchor, Equation, Estimates, estimate
from localw2.losses.discrepancies import Discrepancy, SlicedW2
from localw2.losses.objective import Objective
from localw2.losses.w2 import WeightedSlicedW2
from localw2.models.base import RandomMap
from localw2.models.solver import SolverError

if TYPE_CHECKING:
    from localw2.losses.problem import Problem
    from localw2.models.measurement import MeasurementNoise

# Steps of training between two solutions of all simulated subjects; in between they are followed linearly.
REFRESH = 8
# What is added to the seed at each refresh.
SEEDS = 1_000_003
# Gauss-Newton steps for a simulated subject, from the scores that it was simulated with, and for an observed
# one, from the centre of the population.
SIMULATED_STEPS, OBSERVED_STEPS = 2, 8
# Directions in which features of observed and simulated subjects are compared.
DIRECTIONS = 32


@final
class SimulatedSubjects(RandomMap):
    """Features (rows, F) of simulated subjects: the scores of its own fit, and how large errors look.

    A row of x is the number of a subject. Between refreshes simulated subjects keep their omegas and errors
    of measurement, and their features follow the law of the parameters linearly: any function of data will do
    as a feature, if observed and simulated subjects share it, and the gradient of the debiased loss has
    expectation 0 at the truth whatever slopes it is computed with.
    """

    def __init__(
        self,
        equation: Equation,
        anchor: Anchor,
        noise: MeasurementNoise,
        limit: Tensor | None,
        seed: int,
        n_steps: int = SIMULATED_STEPS,
    ) -> None:
        super().__init__()
        self.law, self.noise = equation.field.law, noise
        self.equation, self.anchor, self.limit = equation, anchor, limit
        self.seed, self.n_steps = seed, n_steps
        self.whiten = torch.eye(anchor.centers.shape[1]).to(anchor.centers)
        self.covariates = self.law.standardise(equation.cohort.covariates)
        self.register_buffer("age", torch.zeros((), dtype=torch.int64))
        self.age: Tensor
        self.register_buffer("refreshed", parameters_to_vector(self._learned()).detach().clone())
        self.refreshed: Tensor
        self._simulation: _Simulation | None = None

    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Latent variables of n subjects."""
        return self.law.draw(n, generator)

    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """Features of one draw."""
        return self.simulate(x, 1, generator)[0]

    def simulate(self, x: Tensor, n_draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Features (S, n, F) of S draws of every subject."""
        if self._simulation is None or len(self._simulation.noise) != n_draws or int(self.age) % REFRESH == 0:
            self._refresh(n_draws)
        assert self._simulation is not None
        if self.training:
            self.age += 1
        return self._simulation.features(self)

    def observed(self, y: Tensor) -> tuple[Tensor, Estimates]:
        """Features (n, F) of observed subjects (n, T, p), and their fits."""
        rows = torch.arange(len(y))
        found = estimate(self.equation, self.anchor, y, rows, self.anchor.centers, OBSERVED_STEPS)
        return self.describe(found.scores, found.residuals, found.std), found

    def describe(self, scores: Tensor, residuals: Tensor, std: Tensor) -> Tensor:
        """Features (..., F): whitened scores, covariates, and the size of residuals of each kind of error.

        Scores are taken around what covariates tell. With it they would vary mostly together, and what is
        left of their spread would hardly show in any direction. The size of m residuals is
        :math:`\\sqrt2\\,(|r| - \\sqrt m)`, which has an SD near 1 whatever m is: as a mean, it would be lost
        beside the scores of subjects with many observations, and be mostly chance in those with one.
        """
        parts = [(scores - self.anchor.centers) @ self.whiten]
        if self.covariates is not None:
            parts.append(self.covariates.expand(*scores.shape[:-2], -1, -1))
        for weights in self._kinds(std):
            total = (weights * residuals.square()).sum(-2)
            parts.append(2**0.5 * ((total + 1e-6).sqrt() - weights.sum(-2).sqrt()))
        return torch.cat(parts, -1)

    def _kinds(self, std: Tensor) -> list[Tensor]:
        """Weights (m, T, p) of the residuals by which each kind of error is seen."""
        seen = std.isfinite().to(std)
        if not any(p.requires_grad for p in self.noise.parameters()):
            return []  # nothing to learn from them
        if len(self.noise.parts) == 1:
            return [seen]
        base = torch.where(seen > 0, std, torch.inf).amin(-2, keepdim=True)
        additive = torch.where(seen > 0, base / std, 0.0).square()
        return [additive, seen - additive]

    @property
    def n_sizes(self) -> int:
        """How many of the features, the last ones, are sizes of residuals."""
        return sum(weights.shape[-1] for weights in self._kinds(self.equation.seen.to(self.whiten)))

    def _learned(self) -> list[torch.nn.Parameter]:
        return [*self.law.parameters(), *self.noise.parameters()]

    @torch.no_grad()
    def _refresh(self, n_draws: int) -> None:
        """Simulate all subjects anew; after a resumption, as they were when they were last simulated."""
        now = parameters_to_vector(self._learned()).clone()
        due = int(self.age) % REFRESH == 0
        if due:
            self.refreshed.copy_(now)
        else:
            vector_to_parameters(self.refreshed, self._learned())
        generator = torch.Generator().manual_seed(self.seed + SEEDS * (int(self.age) // REFRESH))
        try:
            self._simulation = _Simulation.of(self, n_draws, generator)
        except SolverError:
            self.age += REFRESH - int(self.age) % REFRESH  # the next try has other draws
            raise
        finally:
            if not due:
                vector_to_parameters(now, self._learned())


@final
@dataclass(frozen=True)
class _Simulation:
    """Simulated subjects at a refresh: noise of parameters (S, n, r), exact values, slopes, errors, fits."""

    noise: Tensor
    scores: Tensor  # (S * n, k)
    exact: Tensor  # (S * n, T, p)
    slopes: Tensor  # (S * n, T, p, k)
    errors: Tensor  # (S * n, T, p), standard normal
    y: Tensor
    fits: Estimates

    @classmethod
    def of(cls, model: SimulatedSubjects, n_draws: int, generator: torch.Generator) -> _Simulation:
        n = len(model.equation.cohort)
        rows = torch.arange(n).repeat(n_draws)
        noise = model.draw(n_draws * n, generator)
        scores = model.law.scores(noise, _repeat(model.covariates, n_draws))
        exact, slopes = model.equation.linear(scores, rows)
        errors = torch.randn(exact.shape, dtype=exact.dtype, generator=generator)
        y = _observe(model, exact, errors)
        fits = estimate(model.equation, model.anchor, y, rows, scores, model.n_steps, (exact, slopes))
        return cls(noise.unflatten(0, (n_draws, n)), scores, exact, slopes, errors, y, fits)

    def features(self, model: SimulatedSubjects) -> Tensor:
        """Features (S, n, F) with the law and the noise of now."""
        n_draws, n = self.noise.shape[:2]
        scores = model.law.scores(self.noise.flatten(0, 1), _repeat(model.covariates, n_draws))
        exact = self.exact + torch.einsum("mtpk,mk->mtp", self.slopes, scores - self.scores)
        change = torch.where(self.fits.std.isfinite(), _observe(model, exact, self.errors) - self.y, 0.0)
        found, residuals = self.fits.follow(change[None])
        shape = (n_draws, n)
        return model.describe(
            found[0].unflatten(0, shape), residuals[0].unflatten(0, shape), self.fits.std.unflatten(0, shape)
        )


def _observe(model: SimulatedSubjects, exact: Tensor, errors: Tensor) -> Tensor:
    """What would be reported: with error, and nothing below the limit of quantification."""
    y = exact + model.noise.std(exact) * errors
    return y if model.limit is None else torch.maximum(y, model.limit)


def _repeat(covariates: Tensor | None, n_draws: int) -> Tensor | None:
    return None if covariates is None else covariates.repeat(n_draws, 1)


@final
@dataclass(frozen=True)
class SlicesAndSizes(Discrepancy):
    """The debiased sliced W2 of all columns but the last ``n_sizes``, and the debiased W2 of each of these.

    Sizes of residuals are compared alone: if some subjects are measured worse than others, which no law of
    the errors here can express, directions that mix both would take it for a spread of the parameters. Each
    size has the weight of a column that is sliced.
    """

    takes_weights = True

    n_sizes: int
    debiased: bool = True

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Match every projection by sorting."""
        n_sliced = y.shape[2] - self.n_sizes
        slices = SlicedW2(DIRECTIONS).directions(n_sliced)
        length = (slices.shape[1] / n_sliced) ** 0.5
        directions = torch.block_diag(slices, length * torch.eye(self.n_sizes).to(slices))
        return WeightedSlicedW2(y, hoods, weights, directions.to(y), self.debiased)


def compare(features: Tensor, n_sizes: int, weights: Any) -> Objective:
    """The loss between features (n, F) of observed subjects, the last ones sizes, and of simulated ones."""
    everyone = Neighborhoods.whole(len(features))
    return Objective(features, everyone, SlicesAndSizes(n_sizes), None, None, weights)
