"""How sure the errors of measurement are that were learned beside a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.models.fields import NetworkField
from localw2.models.network import RandomMLP
from localw2.models.solver import SolverError

if TYPE_CHECKING:
    from localw2.estimators.dynamics.trajectory_batches import TrajectoryBatches
    from localw2.models.paths import ObservedPaths

# The trajectories of a group, and the fewest and the most groups whose losses are compared.
GROUP, FEWEST, MOST = 16, 4, 100
# Simulated trajectories for each that was observed.
DRAWS = 8
# The step of differences, in logarithms of standard deviations.
STEP = 0.1
_PURPOSE = 6  # separates these random numbers from others of the same seed


def noise_errors(paths: ObservedPaths, batches: TrajectoryBatches, inputs: Tensor, seed: int) -> Array:
    r"""Standard errors (parts, p) of the learned SDs of the errors; infinite where nothing tells them.

    If groups j = 1 .. G of trajectories have losses with gradients :math:`g_j` in the logarithms of the SDs
    at the estimate, and the mean loss has slopes H, then the estimate has the covariance
    :math:`H^{-1}\,\mathrm{Cov}(g_j)\,H^{-T} / G`. The spread of the field, which the errors can be taken for,
    moves along, as one factor of all its SDs; its shape and the mean field are taken as they are.
    """
    noise = paths.noise
    assert noise is not None
    values = np.array(list(noise.table().values()))
    unknown = np.full(values.shape, np.inf)
    order = np.random.default_rng([seed, _PURPOSE]).permutation(batches.n)
    if not batches.objective.discrepancy.debiased or len(order) < FEWEST * FEWEST:
        return unknown  # in small groups only a debiased loss has its minimum where that of all has it
    count = max(FEWEST, len(order) // GROUP)
    groups = np.array_split(_from_the_start(batches, order), count)[:: -(-count // MOST)]
    known = [part for part in (batches.make([group]) for group in groups) if part is not None]
    if len(known) < FEWEST:
        return unknown
    logs = list(noise.log_std.values())
    spreads = _spreads(paths)

    def gradients() -> Tensor:
        found = []
        for place, (rows, objective) in enumerate(known):
            generator = torch.Generator(inputs.device).manual_seed(seed + place)
            paths.steps_and_calls[1] = 1  # no check of the steps is due
            loss = objective(paths.simulate(inputs[rows.to(inputs.device)], DRAWS, generator))
            slopes = torch.autograd.grad(loss, [*logs, *spreads])
            own = [slope.flatten() for slope in slopes[: len(logs)]]
            # Along a common factor of all SDs.
            along = sum((s.detach() * g).sum() for s, g in zip(spreads, slopes[len(logs) :], strict=True))
            found.append(torch.cat([*own, torch.as_tensor(along).reshape(1)] if spreads else own).double())
        return torch.stack(found)

    before = paths.training
    kept = [value.detach().clone() for value in (*logs, *spreads)]
    paths.train()
    try:
        apart = gradients().cpu().numpy()
        columns = [_difference(gradients, logs, spreads, j) for j in range(apart.shape[1])]
        slopes = torch.stack(columns, 1).cpu().numpy()
        inverse = np.linalg.inv(0.5 * (slopes + slopes.T))
    except (SolverError, np.linalg.LinAlgError):
        return unknown
    finally:  # what was learned stays as it was, whatever happened
        paths.train(before)
        with torch.no_grad():
            for value, own in zip((*logs, *spreads), kept, strict=True):
                value.copy_(own)
    # A part of the groups shows the chance of all.
    spread = np.atleast_2d(np.cov(apart.T)) / count
    variances = np.diag(inverse @ spread @ inverse.T)[: values.size]
    errors: Array = values * np.sqrt(variances).reshape(values.shape)
    return np.where(np.isfinite(errors), errors, np.inf)


def _from_the_start(batches: TrajectoryBatches, order: Array) -> Array:
    """Trajectories so that neighbours start from similar states, if balls of these are compared."""
    if len(batches.near) == 1:
        return order
    ball = np.argmax([near.members[order] for near in batches.near], axis=0)
    found: Array = order[np.argsort(ball, kind="stable")]
    return found


def _spreads(paths: ObservedPaths) -> list[Tensor]:
    """The SDs of a network's random weights, if it has any."""
    field = paths.ode.field
    net = field.net if isinstance(field, NetworkField) else None
    return [layer.std for layer in net.random_layers()] if isinstance(net, RandomMLP) else []


def _difference(
    gradients: Callable[[], Tensor], logs: list[Tensor], spreads: list[Tensor], place: int
) -> Tensor:
    """How the mean gradient (P,) changes with one of the logarithms, the last that of all spreads."""
    ends = []
    for sign in (1.0, -1.0):
        _move(logs, spreads, place, sign * STEP)
        ends.append(gradients().mean(0))
        _move(logs, spreads, place, -sign * STEP)
    found: Tensor = (ends[0] - ends[1]) / (2 * STEP)
    return found


@torch.no_grad()
def _move(logs: list[Tensor], spreads: list[Tensor], place: int, step: float) -> None:
    for log in logs:
        if place < log.numel():
            log.view(-1)[place] += step
            return
        place -= log.numel()
    for spread in spreads:
        spread *= float(np.exp(step))
