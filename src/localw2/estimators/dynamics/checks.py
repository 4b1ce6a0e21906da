"""Checks before an ODE is learned, and warnings afterwards."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from localw2.models.fields import FunctionField, RandomField
from localw2.models.laws import LOCATION_STEP
from localw2.models.paths import ACCEPTED, Observe, ObservedPaths
from localw2.models.solver import SolverError

if TYPE_CHECKING:
    from localw2.estimators.dynamics.trajectories import Trajectories
    from localw2.losses.objective import Objective
    from localw2.training.config import Fit


def check_observed(data: Trajectories, observe: Observe | None) -> None:
    """Raise if Y has other columns than the states and no function says how they are observed."""
    d, p = data.initial.shape[1], data.values.shape[1]
    if observe is None and d != p:
        raise ValueError(
            f"y0 has {d} state(s) and Y {p}; give observe, a function from states (..., {d}) to Y's."
        )


def warn_of_start(y0: Any, t0: Any, start: float) -> None:
    """Warn if an initial state is given without its time, and the earliest time of all is not 0."""
    if y0 is not None and t0 is None and start > 0:
        warnings.warn(
            f"y0 is taken as the state at the earliest time, t = {start:.6g}. If it holds at another time, "
            f"such as 0, pass t0; t0={start:.6g} silences this warning.",
            stacklevel=3,
        )


def warn_of_skipped(fit: Fit) -> None:
    """Warn when many steps were skipped, so that some draws did not take part."""
    if fit.skipped > 0.1 * len(fit.history):
        warnings.warn(
            f"{fit.skipped} of {len(fit.history)} steps were skipped because a trajectory exploded; "
            "the law is learned from the others and may lack its tail. Start closer, or choose laws "
            "(LogNormal, PushForward) that keep parameters where the equation can be solved.",
            stacklevel=3,
        )


def warn_of_far_guesses(field: RandomField, fit: Fit) -> None:
    """Warn when a parameter moved so far from its guess that the steps may not have sufficed."""
    if not isinstance(field, FunctionField):
        return
    reach = LOCATION_STEP * sum(fit.config.rate(epoch) for epoch in range(len(fit.history)))
    far = {n: d for n, d in field.law.displacements().items() if abs(d) > 0.5 * reach}
    if far:
        moved = ", ".join(f"{name} by {distance:+.2g}" for name, distance in far.items())
        warnings.warn(
            f"the fit moved {moved} standard deviations of the initial guess, close to the {reach:.2g} that "
            "its steps allow, and may not have converged. Start closer: give the mean (and a larger std) of "
            "the parameter, or more max_epochs.",
            stacklevel=3,
        )


def warn_of_coarse_times(paths: ObservedPaths, inputs: Tensor, seed: int) -> None:
    """Warn when states interpolated between the solved times deviate from the equation."""
    if paths.equal_steps:
        return
    error = 0.0
    with suppress(SolverError):
        error = paths.interpolation_error(inputs, torch.Generator().manual_seed(seed))
    if error > 10 * ACCEPTED:
        warnings.warn(
            f"states interpolated between {paths.knots} solved times are off by {error:.1%} of their spread: "
            "the learned equation moves faster than the observations show. Do not trust the fit; give fewer "
            "distinct times (round them), or a shorter span.",
            stacklevel=3,
        )


def check_functions(paths: ObservedPaths, inputs: Tensor, objective: Objective, seed: int) -> None:
    """Try the functions once before hours of training."""
    generator = torch.Generator(inputs.device).manual_seed(seed)
    initial = inputs[:1, 1 + paths.n_times :]
    with torch.no_grad():
        try:
            paths.ode.slopes(paths.ode.times[0], initial, paths.draw(1, generator))
        except ValueError:
            raise
        except Exception as error:  # a user's function can raise anything
            raise ValueError(
                f"the field failed at the first initial state: {error!r}. It is called with one state y "
                f"(d,) of {initial.dtype}: use torch's functions on it (not numpy's), torch.where instead of "
                "if, and constants of the same type."
            ) from error
        if paths.observe is not None:
            _check_observe(paths.observe, initial, objective.y.shape[1] // paths.n_times)
    if not paths.equal_steps:
        with suppress(SolverError):  # training reports it, with the epoch
            paths.refine(inputs, generator)


def _check_observe(observe: Observe, initial: Tensor, n_observed: int) -> None:
    states = initial.expand(1, 2, -1)
    try:
        seen = observe(states)
    except Exception as error:  # a user's function can raise anything
        raise ValueError(
            f"observe failed on states of shape {tuple(states.shape)}: {error!r}. It takes (..., "
            f"{states.shape[2]}) and gives (..., {n_observed}), with torch's functions, as in y[..., :1]."
        ) from error
    if not isinstance(seen, Tensor) or seen.shape != (1, 2, n_observed):
        came = f"shape {tuple(seen.shape)}" if isinstance(seen, Tensor) else type(seen).__name__
        raise ValueError(
            f"observe gives {came} for states of shape {tuple(states.shape)}, and Y has {n_observed} "
            f"observed value(s): expected (1, 2, {n_observed}), as y[..., :1] gives for one of them."
        )
