"""The loss of a population fit around its minimum: a last step to it, and standard errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from localw2._validation import Array
from localw2.estimators.dynamics.population.simulated import compare
from localw2.models.laws import LOCATION_STEP, Law, LogNormal, Normal, ParameterLaw, PushForward, Shared

if TYPE_CHECKING:
    from localw2.estimators.dynamics.population.simulated import SimulatedSubjects
    from localw2.losses.objective import Objective

# Simulated subjects behind the slopes of the gradient (with 4000 the least slope can come out as 0 by chance,
# and standard errors without bounds), those behind the gradients of groups, and the most groups of subjects
# that are left out in turn.
SIMULATED, SIMULATED_PER_GROUP, GROUPS = 16_000, 4000, 100
# Slopes below this part of the largest are taken as this.
FLAT = 1e-4
# Steps of differences, in units of the parameters' scales and of logarithms of standard deviations.
STEP = 0.05
# The longest last step towards the minimum, in standard errors of any number that it moves.
LONGEST = 0.5
# Simulated subjects for each observed one with which that step is surer than where training ended.
ENOUGH = 50


@final
@dataclass(frozen=True)
class Bowl:
    """Gradients of the loss at an estimate (P,), its inverse slopes (P, P), and what they say.

    ``apart`` (G, P) are the gradients without each of G groups of subjects, around their mean. ``n_draws``
    subjects were simulated for each observed one.
    """

    learned: list[torch.nn.Parameter]
    gradient: Tensor
    inverse: Tensor
    apart: Tensor
    n_draws: int

    @classmethod
    def of(cls, model: SimulatedSubjects, features: Tensor, weights: Any) -> Bowl:
        """Around what the model has learned from these subjects (n, F)."""
        learned = [p for p in model.parameters() if p.requires_grad]
        n = len(features)
        n_draws, fewer = (max(2, -(-count // n)) for count in (SIMULATED, SIMULATED_PER_GROUP))
        model.train(False)
        model.age.zero_()
        model._simulation = None
        model.simulate(features, n_draws)
        groups = np.array_split(np.arange(n), min(n, GROUPS))

        def objective(rows: Array) -> tuple[Tensor, Objective]:
            own = None if weights is None else np.asarray(weights)[rows]
            return torch.from_numpy(rows), compare(features[rows], model.n_sizes, own)

        everyone = [objective(np.arange(n))]
        gradient = _gradients(model, everyone, learned, n_draws)[0]
        slopes = _slopes(lambda: _gradients(model, everyone, learned, n_draws)[0], learned)
        rest = [objective(np.setdiff1d(np.arange(n), group)) for group in groups]
        apart = _gradients(model, rest, learned, fewer)
        values, vectors = torch.linalg.eigh(0.5 * (slopes + slopes.T))
        # A direction in which the loss is flat is one that the data do not tell: its error must come out
        # large. Where correlations are at the edge, it may also bend down, away from a law without that
        # freedom.
        inverse = vectors / values.abs().clamp_min(FLAT * float(values.max())) @ vectors.T
        return cls(learned, gradient, inverse, apart - apart.mean(0), n_draws)

    @property
    def covariance(self) -> Tensor:
        """The covariance (P, P) of what was learned, by a jackknife over groups of subjects.

        If the loss without group i has the gradient g_i at the estimate, and slopes H, the estimate without
        it is about :math:`-H^{-1} g_i` away; G of them show the spread of the estimate whatever the law is.
        """
        count = len(self.apart)
        spread = (count - 1) / count * (self.apart.T @ self.apart)
        return self.inverse @ spread @ self.inverse

    @torch.no_grad()
    def descend(self) -> None:
        """Take a Newton step, of ``LONGEST`` standard errors at most: training ends near the minimum only.

        What remains is the chance of the subjects that were simulated in the last epochs: an eighth of a
        standard error for 100 subjects, and at times several times that. The step has a chance of its own,
        about one in the root of ``n_draws`` of a standard error: with fewer than ``ENOUGH`` none is taken.
        """
        if self.n_draws < ENOUGH:
            return
        step = -self.inverse @ self.gradient
        errors = self.covariance.diagonal().sqrt()
        share = float((step.abs() / errors.clamp_min(1e-12)).max())
        step = step * min(1.0, LONGEST / max(share, 1e-12))
        if bool(step.isfinite().all()):
            vector_to_parameters(parameters_to_vector(self.learned) + step, self.learned)


def _gradients(
    model: SimulatedSubjects,
    objectives: list[tuple[Tensor, Objective]],
    learned: list[torch.nn.Parameter],
    n_draws: int,
) -> Tensor:
    """The gradient (P,) of each of the objectives, which are those of some rows."""
    assert model._simulation is not None
    simulated = model._simulation.features(model)[:n_draws]
    found = []
    for rows, objective in objectives:
        loss = objective(simulated[:, rows])
        slopes = torch.autograd.grad(loss, learned, retain_graph=True, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(learned, slopes, strict=True)]
        found.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(found)


def _slopes(function: Callable[[], Tensor], learned: list[torch.nn.Parameter]) -> Tensor:
    """The slopes (Q, P) of a function (Q,) in the learned parameters, by central differences."""
    start = parameters_to_vector(learned).detach().clone()
    columns = []
    for place in range(len(start)):
        ends = []
        for sign in (1.0, -1.0):
            moved = start.clone()
            moved[place] += sign * STEP
            vector_to_parameters(moved, learned)
            ends.append(function().detach())
        columns.append((ends[0] - ends[1]) / (2 * STEP))
    vector_to_parameters(start, learned)
    return torch.stack(columns, 1)


def propagate(
    quantities: Callable[[], Tensor], covariance: Tensor, learned: list[torch.nn.Parameter]
) -> Tensor:
    """Standard errors (Q,) of quantities of what was learned."""
    slopes = _slopes(quantities, learned)
    variances: Tensor = torch.einsum("qp,pr,qr->q", slopes, covariance, slopes)
    return variances.clamp_min(0).sqrt()


@torch.no_grad()
def gaussian_like(law: ParameterLaw, seed: int) -> ParameterLaw:
    """The law itself, or, if a part of it has any shape, the Gaussian law with its mean and covariance."""
    if law.push is None:
        return law
    laws: dict[str, Law] = {}
    for name, one in law.laws.items():
        kind = LogNormal if one.logarithmic else Normal
        pushed = isinstance(one, PushForward)
        laws[name] = kind(one.mean, one.std, one.depends_on, effect=one.effect) if pushed else one
    found = ParameterLaw(laws).to(law.location)
    noise = law.draw(20_000, torch.Generator().manual_seed(seed))
    average = noise.new_zeros(len(noise), len(law.covariates)) if law.covariates else None
    columns = dict(zip(law.laws, law.scores(noise, average).unbind(1), strict=True))
    drawn = torch.stack([columns[name] for name in found.random_names], 1)
    found.location.copy_(drawn.mean(0) / LOCATION_STEP)
    found.factor.copy_(torch.linalg.cholesky(torch.cov(drawn.T).reshape(drawn.shape[1], -1)))
    found.shared.copy_(law.shared)
    if found.slopes is not None and law.slopes is not None:
        found.slopes.copy_(law.slopes)
        found.curves.load_state_dict(law.curves.state_dict())
        for name in ("covariate_mean", "covariate_std"):
            found.get_buffer(name).copy_(law.get_buffer(name))
    return found


def describe(law: ParameterLaw) -> dict[tuple[str, str], Tensor]:
    """What is printed of a Gaussian law, by parameter and kind: typical value, spread, effects, correlations.

    The typical value is the mean, or the median of a log-normal parameter, whose spread is the standard
    deviation of its logarithm. An effect is the change per unit of a covariate, of the logarithm where there
    is one; that of a curve is its mean slope from one SD of the covariate below its mean to one above.
    """
    found: dict[tuple[str, str], Tensor] = {}
    factor = law.factor.tril()
    spread = factor.square().sum(1).sqrt()
    for name, one in law.laws.items():
        if isinstance(one, Shared):
            score = LOCATION_STEP * law.shared[law.shared_names.index(name)]
        else:
            score = LOCATION_STEP * law.location[law.random_names.index(name)]
        unit = one.scale / one.mean if one.logarithmic else one.scale
        found[name, "typical"] = (
            torch.exp(unit * score) * one.mean if one.logarithmic else one.mean + unit * score
        )
        if not isinstance(one, Shared):
            found[name, "spread"] = unit * spread[law.random_names.index(name)]
        for covariate in one.depends_on:
            assert law.slopes is not None
            row, column = list(law.laws).index(name), law.covariates.index(covariate)
            slope = law.slopes[row, column]
            if one.effect == "network":
                aside = torch.eye(len(law.covariates)).to(law.slopes)[[column]]
                slope = (law.shift(aside) - law.shift(-aside))[0, row] / 2
            found[name, f"effect of {covariate}"] = unit * slope / law.get_buffer("covariate_std")[column]
    for i, first in enumerate(law.random_names):
        for j in range(i):
            product = (factor[i] * factor[j]).sum()
            found[law.random_names[j], f"correlation with {first}"] = product / (spread[i] * spread[j])
    return found


def least_errors(
    law: ParameterLaw, described: Mapping[tuple[str, str], float], n: int
) -> dict[tuple[str, str], float]:
    """The standard errors of Gaussian parameters if n subjects showed theirs without error.

    Measured with error, none can be smaller: a jackknife of few subjects can come out too small by chance.
    """
    found = {}
    gaussian = law.random_names[: law.n_gaussian]
    for (name, kind), value in described.items():
        if name not in gaussian or n < 2:
            continue
        spread = described[name, "spread"]
        if kind == "typical":
            found[name, kind] = spread * (value if law.laws[name].logarithmic else 1.0) / n**0.5
        elif kind == "spread":
            found[name, kind] = spread / (2 * (n - 1)) ** 0.5
        elif kind.startswith("correlation") and kind.rpartition(" ")[2] in gaussian and n > 3:
            found[name, kind] = (1 - value**2) / (n - 3) ** 0.5
    return found
