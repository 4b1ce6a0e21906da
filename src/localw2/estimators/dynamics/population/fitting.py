"""Fit the law of a population's parameters and the noise of its measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from localw2.estimators.dynamics.population.individuals import Anchor, Equation, Estimates, estimate
from localw2.estimators.dynamics.population.simulated import OBSERVED_STEPS, SimulatedSubjects, compare
from localw2.training.loop import train

if TYPE_CHECKING:
    from localw2.models.laws import Law, ParameterLaw
    from localw2.models.measurement import MeasurementNoise
    from localw2.training.config import Fit, FitConfig

# Simulated subjects of a step, at least. With 400 their chance is a fifth of the standard errors.
SIMULATED = 800
# The first fits of subjects are drawn only weakly to the guess: this many of its scales are one SD.
LOOSE = 3.0
# Rounds of the linear mixed model that gives the first guess.
ROUNDS = 50
# A parameter's spread is taken to be at least this part of its scale where subjects' fits are drawn to it.
LEAST = 0.1
# Draws that show mean and covariance of a law.
ANCHOR_DRAWS = 4000
# Epochs of the passes before the last, each around a better centre than the one before.
FIRST_EPOCHS = 60


@final
@dataclass(frozen=True)
class Guess:
    """A first estimate from a linear mixed model around each subject's own fit, in scores."""

    mean: Tensor
    slopes: Tensor | None  # (k, q) in standardised covariates, if laws depend on any
    covariance: Tensor
    noise: Tensor  # (p,) factor of the noise


def first_guess(equation: Equation, noise: MeasurementNoise, y: Tensor) -> tuple[Guess, Estimates]:
    """Fit every subject almost alone, then find mean, spread and noise by expectation maximisation."""
    k = len(equation.field.law.laws)
    n = len(y)
    rows = torch.arange(n)
    centers = torch.zeros(n, k, dtype=y.dtype)
    anchor = Anchor.of(centers, LOOSE**2 * torch.eye(k, dtype=y.dtype), noise)
    found = estimate(equation, anchor, y, rows, centers, OBSERVED_STEPS)
    law = equation.field.law
    covariates = law.standardise(equation.cohort.covariates)
    regression = None if covariates is None else _Regression(covariates, law.linked > 0)
    return _mixed_model(found, k, regression), found


@final
@dataclass(frozen=True)
class _Regression:
    """How parameters depend on standardised covariates (n, q): ``linked`` (k, q) says which on which."""

    covariates: Tensor
    linked: Tensor

    def slopes(self, scores: Tensor) -> Tensor:
        """Least squares (k, q) of scores (n, k) around their means."""
        found = torch.zeros(self.linked.shape).to(scores)
        for own, linked, column in zip(found, self.linked, scores.T, strict=True):
            if bool(linked.any()):
                own[linked] = torch.linalg.pinv(self.covariates[:, linked]) @ (column - column.mean())
        return found


def _mixed_model(found: Estimates, k: int, regression: _Regression | None) -> Guess:
    """Mean and covariance of scores, and noise, of the linear model around the fits."""
    seen = found.std.isfinite()
    # Observations minus what the linear model has at score 0, in units of the noise.
    unit = torch.where(seen, found.std, 1.0).flatten(1)
    design = torch.where(seen.flatten(1)[..., None], found.slopes / unit[..., None], 0.0)
    target = found.residuals.flatten(1) + (design @ found.scores[..., None]).squeeze(-1)
    mean, covariance = found.scores.median(0).values.expand(len(target), -1), torch.eye(k).to(target)
    slopes = None
    variance = torch.ones((), dtype=target.dtype)
    count = seen.sum()
    for _ in range(ROUNDS):
        information = design.transpose(1, 2) @ design / variance
        precision = torch.linalg.inv(covariance)
        posterior = torch.linalg.inv(information + precision)
        pull = (design.transpose(1, 2) @ target[..., None]).squeeze(-1) / variance + mean @ precision
        scores = (posterior @ pull[..., None]).squeeze(-1)
        rest = target - (design @ scores[..., None]).squeeze(-1)
        spent = torch.einsum("mtk,mkl,mtl->", design, posterior, design)
        variance = ((rest.square().sum() + spent) / count).clamp(1e-4, 1e4)
        mean = scores.mean(0).expand_as(scores)
        if regression is not None:
            slopes = regression.slopes(scores)
            mean = mean + regression.covariates @ slopes.T
        apart = scores - mean
        covariance = (apart.T @ apart + posterior.sum(0)) / len(scores)
        covariance = covariance + 1e-6 * torch.eye(k).to(target)
    return Guess(scores.mean(0), slopes, covariance, variance.sqrt())


def improve_laws(laws: dict[str, Law], guess: Guess) -> dict[str, Law]:
    """The same laws around better first guesses."""
    better: dict[str, Law] = {}
    spread = _units(guess).tolist()
    for (name, law), mean, std in zip(laws.items(), guess.mean.tolist(), spread, strict=True):
        if law.logarithmic:
            relative = law.scale / law.mean
            center = law.mean * torch.tensor(relative * mean).exp().item()
            better[name] = replace(law, mean=center, std=center * relative * std)
        else:
            better[name] = replace(law, mean=law.mean + law.scale * mean, std=law.scale * std)
    return better


def _units(guess: Guess) -> Tensor:
    """The scales (k,) of better laws, in those of the laws before."""
    return guess.covariance.diagonal().sqrt().clamp_min(LEAST)


@torch.no_grad()
def start_slopes(law: ParameterLaw, guess: Guess) -> None:
    """Begin with the guess of how parameters depend on covariates, for a law in the units of the guess."""
    if law.slopes is not None and guess.slopes is not None:
        law.slopes.copy_(guess.slopes / _units(guess)[:, None])


@torch.no_grad()
def anchor_of(law: ParameterLaw, noise: MeasurementNoise, equation: Equation, seed: int) -> Anchor:
    """The population as it is now, for fits of subjects to be drawn to."""
    covariates = law.standardise(equation.cohort.covariates)
    average = None if covariates is None else covariates.new_zeros(ANCHOR_DRAWS, covariates.shape[1])
    drawn = law.scores(law.draw(ANCHOR_DRAWS, torch.Generator().manual_seed(seed)), average)
    centers = drawn.mean(0).expand(len(equation.cohort), -1)
    if covariates is not None:
        centers = centers + law.shift(covariates)
    covariance = torch.cov(drawn.T).reshape(drawn.shape[1], -1)
    floor = LEAST**2 * torch.eye(len(covariance)).to(covariance)
    return Anchor.of(centers, covariance + floor, noise)


@final
@dataclass(frozen=True)
class Trained:
    """A fit and the simulated subjects that it trained; features and own fits of the observed ones."""

    fit: Fit
    model: SimulatedSubjects
    features: Tensor
    estimates: Estimates


def fit_population(
    equation: Equation,
    noise: MeasurementNoise,
    y: Tensor,
    limit: Tensor | None,
    weights: Any,
    config: FitConfig,
) -> Trained:
    """Train in two passes; the second compares subjects by fits around what the first found."""
    law = equation.field.law
    n = len(y)
    x = torch.arange(n, dtype=y.dtype)[:, None]
    n_draws = max(config.n_draws, -(-SIMULATED // n))
    quick = replace(
        config,
        max_epochs=FIRST_EPOCHS,
        checkpoint=None,
        resume=False,
        history=None,
        progress=False,
        n_draws=n_draws,
    )
    for settings in (quick, replace(config, n_draws=n_draws)):
        anchor = anchor_of(law, noise, equation, config.seed)
        model = SimulatedSubjects(equation, anchor, noise, limit, config.seed)
        model.whiten = whitening(model, n_draws)
        features, estimates = model.observed(y)
        fit = train(model, compare(features, model.n_sizes, weights), x, settings)
        if fit.stopped != "all epochs done":  # interrupted
            break
    return Trained(fit, model, features, estimates)


@torch.no_grad()
def whitening(model: SimulatedSubjects, n_draws: int) -> Tensor:
    """The matrix that gives scores of simulated subjects' fits the covariance 1.

    It comes from the model and not from the observed rows: a fixed function of data must not depend on them.
    """
    model.train(False)
    scores = model.simulate(model.anchor.centers, n_draws)[..., : model.whiten.shape[1]].flatten(0, 1)
    covariance = torch.cov(scores.T).reshape(scores.shape[1], -1)
    values, vectors = torch.linalg.eigh(covariance)
    model._simulation = None
    whiten: Tensor = vectors / values.clamp_min(1e-6 * float(values.max())).sqrt()
    return whiten
