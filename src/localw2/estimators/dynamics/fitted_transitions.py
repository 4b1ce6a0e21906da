"""Whether the transitions that a learned stochastic equation simulates are those observed, at a glance."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from localw2._validation import Array

if TYPE_CHECKING:
    from localw2.estimators.dynamics.transitions import TransitionRows
    from localw2.models.sde import Transitions

# Transitions that are compared, and simulations of each.
COMPARED_ROWS, DRAWS = 5000, 4
# Far means differ by this part of the SD, far SDs by this factor, and both by so many standard errors.
FAR_MEAN, FAR_SPREAD, STANDARD_ERRORS = 0.2, 1.5, 6.0

_WITHOUT_NAMES = "Plot coefficients_along(Y, t) to see where."
_WITH_NAMES = (
    "Give parameters guesses in the unit of t, or t in a unit in which they are near 1. If that does not "
    "help, your functions cannot describe these paths."
)


@torch.no_grad()
def warn_of_other_transitions(
    model: Transitions, rows: TransitionRows, noise: Array | None, relative: bool, seed: int
) -> None:
    """Warn when mean or SD of increments, from either half of a state, are far from those observed.

    The model is without anchors, and ``noise`` (d,) the SD of errors of measurement, which may be
    ``relative`` to the state.
    """
    some = rows.take(rows.spaced(COMPARED_ROWS))
    like = next(model.parameters())
    x = torch.tensor(np.tile(some.inputs, (DRAWS, 1))).to(like)
    generator = torch.Generator(x.device).manual_seed(seed)
    d = some.state.shape[1]
    made = model(x, None, generator)[:, :d].double().cpu().numpy().reshape(DRAWS, len(some), d)
    if noise is not None:  # at both ends of a transition
        z = np.random.default_rng(seed).normal(size=made.shape)
        made = made + 2**0.5 * noise * (np.abs(some.state) if relative else 1.0) * z
    for j in range(d):
        upper = some.state[:, j] > np.median(some.state[:, j])
        for half, name in ((~upper, "lower"), (upper, "upper")):
            seen, drawn = some.increment[half, j], made[:, half, j].ravel()
            if len(seen) and _are_far(seen, drawn):
                warnings.warn(
                    f"from the {name} half of state {j + 1}, simulated increments have mean "
                    f"{drawn.mean():.3g} and SD {drawn.std():.3g}, observed ones {seen.mean():.3g} and "
                    f"{seen.std():.3g}: this equation is not that of the data, and what it simulates cannot "
                    f"be trusted. {_WITHOUT_NAMES if model.equation.law is None else _WITH_NAMES}",
                    stacklevel=4,
                )
                return


def _are_far(seen: Array, drawn: Array) -> bool:
    """Whether mean or SD of two samples differ by much, and by more than chance does."""
    means, spreads, errors = [], [], []
    for part in (seen, drawn):
        mean, std = part.mean(), max(part.std(), 1e-300)
        means.append(mean)
        spreads.append(std)
        kurtosis = np.mean(((part - mean) / std) ** 4)
        errors.append((std / len(part) ** 0.5, 0.5 * (max(kurtosis - 1, 0) / len(part)) ** 0.5))
    of_mean, of_log = STANDARD_ERRORS * np.hypot(*np.array(errors))
    near = abs(means[1] - means[0]) <= max(FAR_MEAN * spreads[0], of_mean)
    near = near and abs(np.log(spreads[1] / spreads[0])) <= max(np.log(FAR_SPREAD), of_log)
    return not near  # also if it is not a number
