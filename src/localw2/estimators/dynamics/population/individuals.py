"""What a fit of each subject alone shows: the same function of observed and simulated data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from localw2.models.solver import SolverError, Unsolved

if TYPE_CHECKING:
    from localw2.models.cohort import Cohort
    from localw2.models.fields import FunctionField
    from localw2.models.measurement import MeasurementNoise
    from localw2.models.paths import Observe
    from localw2.models.solver import Solver

# The step of a finite difference, in units of a parameter's scale.
STEP = 1e-4
# The longest step of a subject's fit, in the same units.
LONGEST = 2.0
# Trajectories that are solved at a time.
AT_ONCE = 1 << 14


@final
@dataclass(frozen=True)
class Equation:
    """A field with its solver: from scores of parameters (m, k) to what is observed (m, T, p).

    ``seen`` (n, T, p) says what was measured.
    """

    field: FunctionField
    solver: Solver
    observe: Observe | None
    cohort: Cohort
    seen: Tensor

    @torch.no_grad()
    def exact(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Observations without error of the subjects ``rows`` (m,)."""
        parts = []
        for part, own in zip(scores.split(AT_ONCE), rows.split(AT_ONCE), strict=True):
            values = self.field.law.values_of(part)
            try:
                parts.append(self.cohort.solve(self.field, self.solver, values, own, self.observe))
            except Unsolved as stop:
                worst = int(stop.y.detach().abs().amax(1).nan_to_num(nan=torch.inf).argmax())
                named = ", ".join(f"{name} = {float(value[worst]):.4g}" for name, value in values.items())
                raise SolverError(
                    f"{stop}. The largest state is that of subject {int(own[worst])}, with {named}. The "
                    "equation explodes or is stiff there: give better initial guesses (means and stds of the "
                    "parameters), or LogNormal for parameters that must be positive."
                ) from stop
        return torch.cat(parts)

    def linear(self, scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (m, T, p), and their slopes in the scores (m, T, p, k), by differences.

        All are solved in one batch, with the same steps, so that differences are smooth.
        """
        k = scores.shape[1]
        moved = torch.cat([scores[None], scores + STEP * torch.eye(k).to(scores)[:, None]])
        found = self.exact(moved.flatten(0, 1), rows.repeat(k + 1)).unflatten(0, (k + 1, len(scores)))
        return found[0], ((found[1:] - found[0]) / STEP).movedim(0, -1)


@final
@dataclass(frozen=True)
class Anchor:
    """The population that a subject's own fit is drawn to: centres (n, k), precision (k, k), and noise."""

    centers: Tensor
    precision: Tensor
    std: Callable[[Tensor], Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, centers: Tensor, covariance: Tensor, noise: MeasurementNoise) -> Anchor:
        """Around these centres; the noise is that of now, whatever it is later."""
        fixed = {name: value.detach().clone() for name, value in noise.named_parameters()}
        std = lambda exact: torch.func.functional_call(noise, fixed, (exact,))  # noqa: E731
        return cls(centers.clone(), torch.linalg.inv(covariance), std)


@final
@dataclass(frozen=True)
class Estimates:
    """Fits of subjects (m,): scores (m, k), and how they and their residuals follow the observations.

    At observations y + dy the scores are ``scores + gain @ dy``, and the residuals, in units of the noise,
    ``residuals + (dy - slopes @ gain @ dy) / std``.
    """

    scores: Tensor
    gain: Tensor  # (m, k, T * p)
    slopes: Tensor  # (m, T * p, k)
    residuals: Tensor  # (m, T, p), 0 where nothing is seen
    std: Tensor  # (m, T, p), infinite where nothing is seen
    covariance: Tensor  # (m, k, k) of the scores, given the observations

    def follow(self, change: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (S, m, k) and residuals (S, m, T, p) after changes (S, m, T, p) of the observations."""
        flat = change.flatten(-2)
        moved = torch.einsum("mkt,...mt->...mk", self.gain, flat)
        rest = flat - torch.einsum("mtk,...mk->...mt", self.slopes, moved)
        return self.scores + moved, self.residuals + rest.reshape(change.shape) / self.std


@torch.no_grad()
def estimate(
    equation: Equation,
    anchor: Anchor,
    y: Tensor,
    rows: Tensor,
    start: Tensor,
    n_steps: int,
    known: tuple[Tensor, Tensor] | None = None,
) -> Estimates:
    """Gauss-Newton steps towards the scores that are most probable given the observations y (m, T, p).

    ``known`` is the linear form of the observations at the start, if it has been computed.
    """
    seen = equation.seen[rows]
    scores = start
    for _ in range(n_steps):
        exact, slopes = known or equation.linear(scores, rows)
        known = None
        std = torch.where(seen, anchor.std(exact), torch.inf)
        found = _step(anchor, y, rows, scores, exact, slopes, std)
        scores = found.scores
    return found


def _step(
    anchor: Anchor, y: Tensor, rows: Tensor, at: Tensor, exact: Tensor, slopes: Tensor, std: Tensor
) -> Estimates:
    """One step from scores ``at`` (m, k), where the observations have these slopes."""
    flat, weights = slopes.flatten(1, 2), std.flatten(1).square().reciprocal()
    weighted = flat * weights[..., None]
    information = weighted.transpose(1, 2) @ flat
    if not bool(information.isfinite().all()):
        raise SolverError("the slopes of a trajectory in its parameters are not finite")
    covariance = torch.linalg.inv(anchor.precision + information)
    gain = covariance @ weighted.transpose(1, 2)
    rest = torch.where(std.isfinite(), y - exact, 0.0)
    toward = (
        covariance
        @ (
            (weighted.transpose(1, 2) @ rest.flatten(1)[..., None]).squeeze(-1)
            + (anchor.centers[rows] - at) @ anchor.precision
        )[..., None]
    )
    moved = toward.squeeze(-1).clamp(-LONGEST, LONGEST)
    left = rest - (flat @ moved[..., None]).reshape(rest.shape)
    return Estimates(at + moved, gain, flat, torch.where(std.isfinite(), left / std, 0.0), std, covariance)
