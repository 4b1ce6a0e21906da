"""The errors of an ODE with random parameters (paper, Eq. ode_error), and the model without spread.

Shared by ``benchmarks/accuracy_ode.py`` and ``paper/dynamics.py``. Trajectories are (n, T, d), draws of a
field (S, states, d).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import expm

from localw2 import Neighborhoods, Objective, w2_squared
from localw2.datasets import FourStates

Array = NDArray[np.float64]

DELTA_0 = 0.1  # radius of the balls of initial states in the error of yhat
PRINTED = {
    "linked": False, "debiased": False, "standardize": False, "delta": 0.1, "max_times": None, "n_draws": 1,
    "schedule": "constant", "keep": "last", "max_gradient": None, "activation": "relu",
}  # fmt: skip


def path_error(y: Any, yhat: Any, delta: float = DELTA_0) -> float:
    """Error in yhat of Eq. ode_error: y and yhat (n, T, d), whose first times are the initial states."""
    observed = torch.tensor(y)
    objective = Objective(observed, Neighborhoods.within(y[:, 0], delta))
    return float(objective(torch.tensor(yhat)) / objective(torch.zeros_like(observed)))


def path_errors_in_time(y: Any, yhat: Any) -> Array:
    """The same ratio at each time alone (paper, Fig. example4 j), (T,)."""
    hoods = Neighborhoods.within(y[:, 0], DELTA_0)
    weights = hoods.weights / hoods.weights.sum()
    distances = weights @ w2_squared(torch.tensor(y), torch.tensor(yhat), hoods)
    errors: Array = distances.numpy() / (y**2).sum(-1).mean(0)
    return errors


def field_distances(g: Any, ghat: Any) -> Array:
    """Squared W2 between draws (S, states, d) of both fields at each state, (states,)."""
    values: Array = w2_squared(torch.tensor(g), torch.tensor(ghat), Neighborhoods.whole(len(g)))[0].numpy()
    return values


def field_error(g: Any, ghat: Any) -> float:
    """Error in ghat of Eq. ode_error: draws (S, states, d) of both fields at the same states."""
    return float(field_distances(g, ghat).mean() / (g**2).sum(-1).mean())


def spread_error(truth: FourStates, paths: Any) -> float:
    """Mean relative error of the SD of paths (S, T, 4) from (1, 1, 1, 1), without the initial time."""
    omega = np.linspace(-truth.sigma, truth.sigma, 4001)
    exact = truth.paths(np.ones((len(omega), 4)), omega).std(0)[1:]
    return float((np.abs(paths.std(0)[1:] - exact) / exact).mean())


def correlation_error(truth: FourStates, paths: Any) -> float:
    """Mean error of the correlations between t = .5, 1, 1.5, 2 of each state, paths (S, T, 4) from ones."""
    omega = np.linspace(-truth.sigma, truth.sigma, 4001)
    exact = truth.paths(np.ones((len(omega), 4)), omega)
    at = [25, 50, 75, 100]
    gaps = [np.corrcoef(paths[:, at, i].T) - np.corrcoef(exact[:, at, i].T) for i in range(4)]
    return float(np.abs(np.array(gaps))[:, *np.triu_indices(4, 1)].mean())


def mean_model(truth: FourStates, y0: Any, states: Any) -> tuple[Any, Any]:
    """Trajectories and field of the ODE with the mean field: no spread at all."""
    matrix = truth.matrix(np.linspace(-truth.sigma, truth.sigma, 4001)).mean(0)
    paths = np.stack([y0 @ expm(matrix * t).T for t in truth.times], 1)
    return paths, np.broadcast_to(states @ matrix.T, (100, *states.shape)).copy()
