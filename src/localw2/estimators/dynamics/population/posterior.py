"""The parameters of single subjects, given their observations: draws weighted by likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from scipy.stats import gaussian_kde
from torch import Tensor

from localw2._validation import Array
from localw2.estimators.dynamics.population.individuals import Anchor, estimate
from localw2.models.laws import LOCATION_STEP, Shared

if TYPE_CHECKING:
    from localw2.estimators.dynamics.population.individuals import Equation
    from localw2.models.laws import ParameterLaw
    from localw2.models.measurement import MeasurementNoise

# Proposals are this much wider than a Gaussian around the most probable scores, with t tails.
WIDER, TAILS = 1.3, 5
PROPOSALS = 400
STEPS = 8
DENSITY_DRAWS = 4000


@final
@dataclass(frozen=True)
class IndividualParameters:
    """Parameters of n subjects: ``samples`` {name: (S, n)} from their posteriors.

    ``effective`` (n,) is how many independent draws the weighted ones are worth: below 50 the draws of that
    subject are only rough. ``subjects`` are their labels.
    """

    samples: dict[str, Array]
    effective: Array
    subjects: list[Any] = field(default_factory=list)

    @property
    def mean(self) -> dict[str, Array]:
        """The posterior mean (n,) of each parameter."""
        return {name: values.mean(0) for name, values in self.samples.items()}

    @property
    def std(self) -> dict[str, Array]:
        """The posterior standard deviation (n,) of each."""
        return {name: values.std(0) for name, values in self.samples.items()}

    def quantiles(self, q: Any = (0.05, 0.5, 0.95)) -> dict[str, Array]:
        """Quantiles (len(q), n) of each."""
        return {name: np.quantile(values, q, axis=0) for name, values in self.samples.items()}


@torch.no_grad()
def draw_posteriors(
    equation: Equation,
    law: ParameterLaw,
    noise: MeasurementNoise,
    y: Tensor,
    limit: Tensor | None,
    n_draws: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Scores (S, n, k) of subjects with observations y (n, T, p), and effective numbers of draws (n,)."""
    generator = torch.Generator().manual_seed(seed)
    n, k = len(y), len(law.laws)
    random = [i for i, one in enumerate(law.laws.values()) if not isinstance(one, Shared)]
    covariates = law.standardise(equation.cohort.covariates)
    prior = law.draw(DENSITY_DRAWS, generator)
    average = None if covariates is None else covariates.new_zeros(DENSITY_DRAWS, covariates.shape[1])
    drawn = law.scores(prior, average)
    shift = torch.zeros(n, k).to(drawn)
    if covariates is not None:
        shift = law.shift(covariates)
    centers = drawn.mean(0) + shift
    if not random:
        return centers.expand(n_draws, n, k).clone(), torch.full((n,), float(n_draws))
    covariance = torch.cov(drawn.T).reshape(k, k) + 1e-8 * torch.eye(k).to(drawn)
    anchor = Anchor.of(centers, covariance, noise)
    rows = torch.arange(n)
    fits = estimate(equation, anchor, y, rows, centers, STEPS)
    proposals, log_proposal = _propose(
        fits.scores[:, random], fits.covariance[:, random][:, :, random], generator
    )
    scores = centers.expand(PROPOSALS, n, k).clone()
    scores[..., random] = proposals
    exact = equation.exact(scores.flatten(0, 1), rows.repeat(PROPOSALS)).unflatten(0, (PROPOSALS, n))
    log_likelihood = _log_likelihood(exact, noise, y, equation.seen, limit)
    density = _prior_density(law, drawn[:, random])
    log_prior = density((proposals - shift[:, random]).flatten(0, 1)).unflatten(0, (PROPOSALS, n))
    weights = _weigh(log_likelihood + log_prior - log_proposal)
    chosen = torch.multinomial(weights.T, n_draws, replacement=True, generator=generator).T
    found = scores.gather(0, chosen[..., None].expand(-1, -1, k))
    return found, 1 / weights.square().sum(0)


def _weigh(log: Tensor) -> Tensor:
    """Weights (S, n) of draws with these logarithms; a draw whose solution is not a number has none."""
    lost = ~(log < math.inf)
    if (unknown := (lost | (log == -math.inf)).all(0)).any():
        raise FloatingPointError(
            f"no draw of the parameters explains subject {int(unknown.nonzero()[0])} "
            f"({int(unknown.sum())} of {len(unknown)} such): their solutions or densities are not finite. "
            "Check the unit of its observations and of the parameters, and that the error of measurement is "
            "not 0."
        )
    return torch.softmax(log.masked_fill(lost, -math.inf), 0)


def _propose(centers: Tensor, covariance: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws (S, n, r) of multivariate t laws, and logarithms of their densities (S, n), up to constants."""
    n, r = centers.shape
    factor = torch.linalg.cholesky(covariance + 1e-10 * torch.eye(r).to(covariance)) * WIDER
    z = torch.randn(PROPOSALS, n, r, dtype=centers.dtype, generator=generator)
    chi = torch.randn(PROPOSALS, n, TAILS, dtype=centers.dtype, generator=generator).square().sum(-1) / TAILS
    t = z / chi.sqrt()[..., None]
    log = -0.5 * (TAILS + r) * torch.log1p(t.square().sum(-1) / TAILS) - factor.diagonal(
        dim1=-2, dim2=-1
    ).log().sum(-1)
    return centers + torch.einsum("nij,snj->sni", factor, t), log


def _log_likelihood(
    exact: Tensor, noise: MeasurementNoise, y: Tensor, seen: Tensor, limit: Tensor | None
) -> Tensor:
    """Of the observations (n, T, p) given exact values (S, n, T, p)."""
    std = noise.std(exact)
    normal = torch.distributions.Normal(exact, std)
    log = normal.log_prob(y)
    if limit is not None:
        below = torch.special.log_ndtr((limit - exact) / std)
        log = torch.where(y <= limit, below, log)
    return torch.where(seen, log, 0.0).sum((-1, -2))


def _prior_density(law: ParameterLaw, drawn: Tensor) -> Any:
    """The logarithm of the density of scores (m, r) of random parameters, from draws (D, r) of them.

    Gaussian laws have theirs; that of any other shape is smoothed from its draws.
    """
    if law.push is None:
        names = [name for name in law.laws if name in law.random_names]
        order = [law.random_names.index(name) for name in names]
        factor = law.factor.tril()
        cov = (factor @ factor.T)[order][:, order] + 1e-10 * torch.eye(len(order)).to(factor)
        mean = LOCATION_STEP * law.location[order]
        return torch.distributions.MultivariateNormal(mean, cov).log_prob
    smooth = gaussian_kde(drawn.numpy().T)
    return lambda scores: torch.from_numpy(np.log(np.maximum(smooth(scores.numpy().T), 1e-300)))
