"""One fit of the nonlinear example by any method, from plain settings to plain values.

Everything that decides a record is here and in its settings: a change of pictures does not recompute it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torchbnn
from scipy.optimize import minimize
from torch import Tensor, nn

import printed
from localw2 import LocalW2Regressor
from localw2._validation import Array
from localw2.datasets import Nonlinear
from localw2.metrics import draw_errors, mean_error, std_error
from records import Cell, Values

ORACLE: dict[str, Any] = {"start": [15.0, 0.7, 2.0, -0.1, 0.2]}

# Inputs (n, 1), a number of draws and a seed to draws (S, n).
Draw = Callable[[Array, int, int], Array]

BNN_DRAWS = 1000  # drawn at a time, to stay in cache
FLOOR_PAIRS = 400  # pairs of test sets that the noise floor is the mean over


def settings(
    method: str,
    seed: int,
    rows: int,
    kind: str,
    parameters: dict[str, Any],
    moment_draws: int,
    sd: float | None = None,
    half_width: float = 0.5,
    pictured: bool = False,
) -> Cell:
    """A cell: the method's name and settings, the data set, how it is scored, and whether draws are kept."""
    data = {"rows": rows, "sd": sd, "half_width": half_width, "seed": seed}
    test = {"test": list(printed.NONLINEAR_TEST), "draws": printed.TEST_DRAWS, "moment_draws": moment_draws}
    return {"method": method, "kind": kind, "parameters": parameters} | data | test | {"pictured": pictured}


def as_printed(delta: float | None, discrepancy: str = "w2", **network: Any) -> dict[str, Any]:
    """The paper's training of a network with random weights; a delta of None is one ball with every row."""
    loss = {"base": None, "debiased": False, "delta": delta, "discrepancy": discrepancy}
    return (
        loss
        | {"standardize": False, "n_draws": 1, "schedule": "constant"}
        | printed.NONLINEAR_TRAINING
        | network
    )


def run(cell: Cell) -> Values:
    """Fit and score; a fit that ends with numbers that are not finite has a ``failed`` and no errors."""
    truth = truth_of(cell)
    if cell["method"] == "truth":
        return {**noise_floor(truth, cell), **_pictured(cell, true_draws(truth, cell))}
    x, y = truth.sample(cell["rows"], random_state=cell["seed"])
    start = time.perf_counter()
    try:
        draw = FITS[cell["kind"]](cell, x, y)
    except FloatingPointError as error:
        return {"failed": str(error)}
    seconds = time.perf_counter() - start
    return {**scores(truth, draw, cell), "fit_seconds": round(seconds, 2)}


def truth_of(cell: Cell) -> Nonlinear:
    """The paper's model, or with independent parameters of one sd, on inputs of this half width."""
    sd = cell.get("sd")
    if sd is None:
        return Nonlinear(half_width=cell["half_width"])
    return Nonlinear(omega_covariance=((sd**2, 0.0), (0.0, sd**2)), half_width=cell["half_width"])


def inputs_of(cell: Cell) -> Array:
    """The test inputs, (11, 1)."""
    return np.linspace(*cell["test"])[:, None]


def true_draws(truth: Nonlinear, cell: Cell) -> Array:
    """A test set: 100 draws at every test x, (100, 11)."""
    rng = np.random.default_rng([cell["seed"], 1])
    return np.stack([truth.sample_y(inputs_of(cell), rng) for _ in range(cell["draws"])])


def scores(truth: Nonlinear, draw: Draw, cell: Cell) -> Values:
    """The errors in mean and SD by both metrics: 100 draws on each side, and many against true moments."""
    inputs, seed = inputs_of(cell), cell["seed"]
    few = draw(inputs, cell["draws"], seed + 1)
    in_mean, in_std = draw_errors(true_draws(truth, cell), few)
    many = draw(inputs, cell["moment_draws"], seed + 2)
    mean, std = many.mean(0), many.std(0)
    return {
        "mean_error_100": in_mean,
        "std_error_100": in_std,
        "mean_error": mean_error(truth.mean(inputs), mean),
        "std_error": std_error(truth.std(inputs), std),
        "mean": _rounded(mean),
        "std": _rounded(std),
        **_pictured(cell, few),
    }


def noise_floor(truth: Nonlinear, cell: Cell) -> Values:
    """What a perfect model scores by the 100-draw metric: mean and SD over pairs of test sets."""
    rng = np.random.default_rng([cell["seed"], 2])
    inputs = inputs_of(cell)
    shape = FLOOR_PAIRS, 2, cell["draws"], len(inputs)
    y = truth.sample_y(np.tile(inputs, (math.prod(shape[:3]), 1)), rng).reshape(shape)
    found = np.array([draw_errors(a, b) for a, b in y])
    names = ("mean_error_100", "std_error_100")
    return dict(zip(names, found.mean(0).tolist(), strict=True)) | {
        f"{name}_sd": sd for name, sd in zip(names, found.std(0, ddof=1).tolist(), strict=True)
    }


def fit_regressor(cell: Cell, x: Array, y: Array) -> Draw:
    """``LocalW2Regressor`` with the cell's parameters; a delta of None is infinite, which JSON has not."""
    parameters = dict(cell["parameters"])
    if "delta" in parameters and parameters["delta"] is None:
        parameters["delta"] = math.inf
    model = LocalW2Regressor(random_state=cell["seed"], **parameters).fit(x, y)
    return lambda inputs, n, seed: model.sample(inputs, n, random_state=seed)


def fit_bnn(cell: Cell, x: Array, y: Array) -> Draw:
    """A Bayesian network of torchbnn, trained by MSE plus the weighted KL to the prior.

    It has no noise of its own, so its spread is what training leaves of the uncertainty of the weights.
    """
    chosen = cell["parameters"]
    sizes = [1, *[chosen["width"]] * chosen["depth"], 1]
    inputs, targets = (torch.tensor(v, dtype=torch.float32).reshape(-1, 1) for v in (x, y))
    # torchbnn draws from torch's global generator, which is put back afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell["seed"])
        parts: list[nn.Module] = []
        for a, b in pairwise(sizes):
            parts += [
                torchbnn.BayesLinear(
                    prior_mu=0, prior_sigma=chosen["prior_sigma"], in_features=a, out_features=b
                )
            ]
            parts += [nn.ReLU()]
        model = nn.Sequential(*parts[:-1])
        divergence = torchbnn.BKLLoss(reduction="mean", last_layer_only=False)
        optimiser = torch.optim.Adam(model.parameters(), lr=chosen["learning_rate"])
        for _ in range(chosen["max_epochs"]):
            loss = (model(inputs) - targets).square().mean() + chosen["kl_weight"] * divergence(model)[0]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    layers = [part for part in model if isinstance(part, torchbnn.BayesLinear)]
    return lambda inputs, n, seed: draw_bnn(layers, inputs, n, seed)


@torch.no_grad()
def draw_bnn(layers: list[Any], inputs: Array, n: int, seed: int) -> Array:
    """Draws (n, rows) with the law that the network has at each input, every one with its own weights.

    torchbnn shares one draw of the weights in a batch. Given a layer's input, its outputs are independent
    Gaussians, so drawing those is the same law at each input and needs no loop over draws.
    """
    generator = torch.Generator().manual_seed(seed)

    def outputs(h: Tensor) -> Tensor:
        for i, layer in enumerate(layers):
            h = torch.relu(h) if i else h
            spread, bias_spread = (v.exp().square() for v in (layer.weight_log_sigma, layer.bias_log_sigma))
            mean = h @ layer.weight_mu.T + layer.bias_mu
            noise = torch.randn(mean.shape, generator=generator)
            h = mean + (h.square() @ spread.T + bias_spread).sqrt() * noise
        return h

    rows = torch.tensor(inputs, dtype=torch.float32)
    counts = [min(BNN_DRAWS, n - low) for low in range(0, n, BNN_DRAWS)]
    return torch.cat([outputs(rows.repeat(c, 1)) for c in counts]).reshape(n, -1).double().numpy()


def fit_formula(cell: Cell, x: Array, y: Array) -> Draw:
    """The oracle: it knows y = w1 (1 - exp(-w2 x)) + 5 with Gaussian (w1, w2), and estimates five moments.

    Gaussian quasi-likelihood in the moments, with the covariance as the square of its root.
    """

    def loss(v: Array) -> float:
        guess = formula(v)
        variance = guess.std(x) ** 2 + 1e-6
        return float((np.log(variance) + (y - guess.mean(x)) ** 2 / variance).mean())

    v = np.array(cell["parameters"]["start"])
    for _ in range(3):  # a simplex that has collapsed starts again with a fresh one
        v = minimize(loss, v, method="Nelder-Mead", options={"maxiter": 1000, "xatol": 1e-4}).x
    model = formula(v)

    def draw(inputs: Array, n: int, seed: int) -> Array:
        return model.sample_y(np.tile(inputs, (n, 1)), np.random.default_rng(seed)).reshape(n, len(inputs))

    return draw


def formula(v: Array) -> Nonlinear:
    """The model with means v[0], v[1] and the covariance R R', R = ((v2, 0), (v3, v4))."""
    root = np.array([[v[2], 0.0], [v[3], v[4]]])
    (a, b), (_, c) = root @ root.T
    return Nonlinear((float(v[0]), float(v[1])), ((float(a), float(b)), (float(b), float(c))))


FITS: dict[str, Callable[[Cell, Array, Array], Draw]] = {
    "regressor": fit_regressor,
    "bnn": fit_bnn,
    "formula": fit_formula,
}


def _pictured(cell: Cell, draws: Array) -> Values:
    return {"draws": _rounded(draws)} if cell["pictured"] else {}


def _rounded(values: Array) -> Any:
    return np.round(values, 4).tolist()
