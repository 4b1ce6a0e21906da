"""One fit of the nonlinear example by any method, from plain settings to plain values.

``run`` and its settings determine a record completely; changing a figure does not invalidate it.
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

import publication
from localw2 import LocalW2Regressor, MeanVar, Network
from localw2._validation import Array
from localw2.datasets import Nonlinear
from localw2.metrics import draw_errors, mean_error, std_error
from records import Cell, Values

SUMMED = "meanvar, summed"
ORACLE: dict[str, Any] = {"start": [15.0, 0.7, 2.0, -0.1, 0.2]}

# From inputs (n, 1), a number of draws S and a seed to draws (S, n).
Draw = Callable[[Array, int, int], Array]

BNN_DRAWS = 1000  # at a time, to stay in the cache
FLOOR_PAIRS = 400  # pairs of test sets over which the noise floor is averaged


def make_cell(
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
    """Make a cell: the method and its settings, the data set, the scoring, and whether draws are kept."""
    data = {"rows": rows, "sd": sd, "half_width": half_width, "seed": seed}
    test = {
        "test": list(publication.NONLINEAR_TEST),
        "draws": publication.TEST_DRAWS,
        "moment_draws": moment_draws,
    }
    return {"method": method, "kind": kind, "parameters": parameters} | data | test | {"pictured": pictured}


def list_printed(delta: float | None, discrepancy: str = "w2", **network: Any) -> dict[str, Any]:
    """The paper's settings of a network with random weights; delta=None means one ball with every row."""
    loss = {"base": None, "debiased": False, "delta": delta, "discrepancy": discrepancy}
    return (
        loss
        | {"standardize": False, "n_draws": 1, "schedule": "constant"}
        | publication.NONLINEAR_TRAINING
        | network
    )


def run(cell: Cell) -> Values:
    """Fit and score a cell; a fit that diverges has the entry ``failed`` instead of errors."""
    truth = make_truth(cell)
    if cell["method"] == "truth":
        return {**measure_floor(truth, cell), **_keep_draws(cell, draw_truth(truth, cell))}
    x, y = truth.sample(cell["rows"], random_state=cell["seed"])
    start = time.process_time()
    try:
        draw = FITS[cell["kind"]](cell, x, y)
    except FloatingPointError as error:
        return {"failed": str(error)}
    seconds = time.process_time() - start
    return {**score_draws(truth, draw, cell), "fit_seconds": round(seconds, 2)}


def make_truth(cell: Cell) -> Nonlinear:
    """The paper's model, or with independent parameters of a common sd; inputs of this half width."""
    sd = cell.get("sd")
    if sd is None:
        return Nonlinear(half_width=cell["half_width"])
    return Nonlinear(omega_covariance=((sd**2, 0.0), (0.0, sd**2)), half_width=cell["half_width"])


def make_inputs(cell: Cell) -> Array:
    """The test inputs, (11, 1)."""
    return np.linspace(*cell["test"])[:, None]


def draw_truth(truth: Nonlinear, cell: Cell) -> Array:
    """Draw a test set: 100 draws at every test x, (100, 11)."""
    rng = np.random.default_rng([cell["seed"], 1])
    return np.stack([truth.sample_y(make_inputs(cell), rng) for _ in range(cell["draws"])])


def score_draws(truth: Nonlinear, draw: Draw, cell: Cell) -> Values:
    """Errors in mean and SD by both metrics: 100 draws on each side, and many against the true moments."""
    inputs, seed = make_inputs(cell), cell["seed"]
    few = draw(inputs, cell["draws"], seed + 1)
    in_mean, in_std = draw_errors(draw_truth(truth, cell), few)
    many = draw(inputs, cell["moment_draws"], seed + 2)
    mean, std = many.mean(0), many.std(0)
    return {
        "mean_error_100": in_mean,
        "std_error_100": in_std,
        "mean_error": mean_error(truth.mean(inputs), mean),
        "std_error": std_error(truth.std(inputs), std),
        "mean": _round(mean),
        "std": _round(std),
        **_keep_draws(cell, few),
    }


def measure_floor(truth: Nonlinear, cell: Cell) -> Values:
    """The score of a perfect model by the 100-draw metric: mean and SD over pairs of test sets."""
    rng = np.random.default_rng([cell["seed"], 2])
    inputs = make_inputs(cell)
    shape = FLOOR_PAIRS, 2, cell["draws"], len(inputs)
    y = truth.sample_y(np.tile(inputs, (math.prod(shape[:3]), 1)), rng).reshape(shape)
    found = np.array([draw_errors(a, b) for a, b in y])
    names = ("mean_error_100", "std_error_100")
    return dict(zip(names, found.mean(0).tolist(), strict=True)) | {
        f"{name}_sd": sd for name, sd in zip(names, found.std(0, ddof=1).tolist(), strict=True)
    }


def fit_regressor(cell: Cell, x: Array, y: Array) -> Draw:
    """Fit ``LocalW2Regressor``, by its defaults if the cell has no parameters, else by a network with these.

    delta=None in the cell stands for infinity, which JSON does not have.
    """
    model = LocalW2Regressor(random_state=cell["seed"])
    if cell["parameters"]:
        settings = dict(cell["parameters"])
        others = {name: settings.pop(name) for name in ("base", "delta") if name in settings}
        if "max_epochs" in settings:
            settings["epochs"] = settings.pop("max_epochs")
        if settings.get("discrepancy") == SUMMED:
            settings["discrepancy"] = MeanVar(summed=True)
        if others.get("delta", 0) is None:
            others["delta"] = math.inf
        model.set_params(law=Network(**settings), **others)
    model.fit(x, y)
    return lambda inputs, n, seed: model.sample(inputs, n, random_state=seed)


def fit_bnn(cell: Cell, x: Array, y: Array) -> Draw:
    """Fit a Bayesian network of torchbnn by MSE plus the weighted KL divergence from the prior.

    It has no noise term, so its spread is the uncertainty of the weights that training leaves.
    """
    chosen = cell["parameters"]
    sizes = [1, *[chosen["width"]] * chosen["depth"], 1]
    inputs, targets = (torch.tensor(v, dtype=torch.float32).reshape(-1, 1) for v in (x, y))
    # torchbnn draws from torch's global generator, whose state is restored afterwards.
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
    """Draw (n, rows) from the network's distribution at each input, each draw with its own weights.

    torchbnn shares one draw of the weights within a batch. Given a layer's input, its outputs are independent
    Gaussians, so drawing the outputs gives the same distribution at each input without a loop over draws.
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
    """Fit the oracle, which knows y = w1 (1 - exp(-w2 x)) + 5 with Gaussian (w1, w2), by five moments.

    It maximises the Gaussian quasi-likelihood; the covariance is parametrised by its root.
    """

    def loss(v: Array) -> float:
        guess = make_formula(v)
        variance = guess.std(x) ** 2 + 1e-6
        return float((np.log(variance) + (y - guess.mean(x)) ** 2 / variance).mean())

    v = np.array(cell["parameters"]["start"])
    for _ in range(3):  # a collapsed simplex is replaced by a fresh one
        v = minimize(loss, v, method="Nelder-Mead", options={"maxiter": 1000, "xatol": 1e-4}).x
    model = make_formula(v)

    def draw(inputs: Array, n: int, seed: int) -> Array:
        return model.sample_y(np.tile(inputs, (n, 1)), np.random.default_rng(seed)).reshape(n, len(inputs))

    return draw


def make_formula(v: Array) -> Nonlinear:
    """The model with means v[0], v[1] and the covariance R R', R = ((v2, 0), (v3, v4))."""
    root = np.array([[v[2], 0.0], [v[3], v[4]]])
    (a, b), (_, c) = root @ root.T
    return Nonlinear((float(v[0]), float(v[1])), ((float(a), float(b)), (float(b), float(c))))


FITS: dict[str, Callable[[Cell, Array, Array], Draw]] = {
    "regressor": fit_regressor,
    "bnn": fit_bnn,
    "formula": fit_formula,
}


def _keep_draws(cell: Cell, draws: Array) -> Values:
    return {"draws": _round(draws)} if cell["pictured"] else {}


def _round(values: Array) -> Any:
    return np.round(values, 4).tolist()
