"""The paper's ODE with a random parameter (Fig. example4), every panel.

    python paper/dynamics.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER]

100 training and 100 test trajectories of the system of four states, omega ~ U(-sigma, sigma), initial states
N((1, 1, 1, 1), a^2 I), a in {0, .1, .2, .3}, sigma in {.1, .25, .4}. Six models on the same data:

  printed       the paper's loss (Eq. time_w2) and settings: a plain network of 2 x 100 as the field, 500
                epochs, learning rate and weight decay .005, radius delta = .1 of the balls of initial states;
                the rate is constant, the last weights are kept and gradients are not clipped
  printed-sqrt  the same with radius sqrt(.1), for a > 0 (at a = 0 every ball holds all rows anyway), and at
                a = .1 for sigma = .25 alone
  printed-long  the same with radius .1 and 1500 epochs, at a = .1 and sigma up to .25
  ours          LocalW2ODE() as it stands
  mean          the true ODE with the mean field: no spread at all
  true          the true model with fresh omegas: no method can do better, except by chance

The error in yhat of every model is taken with delta_0 = .1 and with sqrt(.1), as delta_0 = delta in the
paper. Each is fitted to ``repeats`` training sets; printed-sqrt, printed-long, and ours outside the panels
(a)-(i) to at most 3, and printed-sqrt at a = .1, where a fit takes minutes (its balls hold most rows, and no
two are equal), to one: ``make paper`` is to take less than 150 minutes. To draw again from the records alone:
``python paper/report.py``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localw2 import LocalW2ODE, Neighborhoods
from localw2.datasets import FourStates
from publication import (
    FIRST_SEED,
    ODE_A,
    ODE_DELTA,
    ODE_LINE,
    ODE_PANELS,
    ODE_SIGMAS,
    ODE_TRAINING,
    ODE_TRAJECTORIES,
)
from records import Cell, Options, Values, run_experiment

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from ode_errors import (
    DELTA_0,
    PRINTED,
    field_distances,
    mean_model,
    path_error,
    path_errors_in_time,
    spread_error,
)

Array = NDArray[np.float64]

PANELS = ODE_PANELS
A, SIGMA = ODE_A, ODE_SIGMAS
REFERENCES = ("mean", "true")
RADIUS = {"printed": ODE_DELTA, "printed-sqrt": ODE_DELTA**0.5}
Z = np.linspace(*ODE_LINE)
LINE = np.stack([1 - Z, 1 + Z, 1 - Z, 1 + Z], axis=1)  # states of the panels (g)-(i)
LONG_EPOCHS = 1500
FEWER = 3  # repeats of what is beside the point
STATES_EVERY, LINES_EVERY, LINES = 10, 4, 20  # of the 101 times and of the 100 trajectories


@dataclass(frozen=True)
class Simulator:
    """A model to score: trajectories (S, n, T, 4) from initial states, draws (S, states, 4) of its field."""

    paths: Callable[[Array, int], Array]
    field: Callable[[Array, int], Array]


def list_cells(options: Options) -> list[Cell]:
    """All (a, sigma, model, seed)."""
    a_grid, sigma_grid = ((0.0, 0.3), (0.25, 0.4)) if options.quick else (A, SIGMA)
    epochs = ODE_TRAINING["max_epochs"]
    size: Cell = {"trajectories": ODE_TRAJECTORIES, "epochs": epochs, "draws": 2000}
    if options.quick:
        size = {"trajectories": 25, "epochs": 10, "draws": 100}
    found: list[Cell] = []
    for a, sigma, model in product(a_grid, sigma_grid, (*REFERENCES, "printed-sqrt", "printed", "ours")):
        if model == "printed-sqrt" and (a == 0 or (a == A[1] and sigma != SIGMA[1])):
            continue
        fewer = FEWER if model == "printed-sqrt" or (model == "ours" and (a, sigma) not in PANELS) else None
        if model == "printed-sqrt" and a == A[1]:
            fewer = 1
        # Ours has its own number of epochs.
        own = {"epochs": None} if model == "ours" and not options.quick else {}
        for seed in _list_seeds(options, fewer):
            found.append({"a": a, "sigma": sigma, "model": model, **size, "seed": seed} | own)
    if not options.quick:
        long = {"model": "printed-long", **size, "epochs": LONG_EPOCHS}
        for sigma, seed in product(sigma_grid[:2], _list_seeds(options, FEWER)):
            found.append({"a": A[1], "sigma": sigma, **long, "seed": seed})
    # The references take seconds. The panels come next, then the grid repeat by repeat: an interrupted run
    # has the panels, and no core waits for a long fit at the end.
    return sorted(
        found,
        key=lambda c: (c["model"] not in REFERENCES, (c["a"], c["sigma"]) not in PANELS, c["seed"]),
    )


def _list_seeds(options: Options, at_most: int | None) -> range:
    return range(FIRST_SEED, FIRST_SEED + min(options.repeats, at_most or options.repeats))


def run_cell(cell: Cell) -> Values:
    """Fit one model to one training set and score it on one test set; ``failed`` says why a fit stopped."""
    truth = FourStates(cell["a"], cell["sigma"])
    n, seed = cell["trajectories"], cell["seed"]
    train, t, _ = truth.sample(n, random_state=seed)
    test, _, _ = truth.sample(n, random_state=10_000 + seed)
    with warnings.catch_warnings():
        # This experiment is about balls of one row; the table shows the sizes of the balls.
        warnings.simplefilter("ignore")
        try:
            model, about = _make_simulator(cell, truth, train, t)
        except FloatingPointError as error:
            return {"failed": str(error)}
        errors = _measure_errors(truth, model, test, seed, cell["draws"])
        rows = [_count_ball_rows(train[:, 0], radius) for radius in RADIUS.values()]
    values = {**about, **errors, "rows": rows[0], "rows_sqrt": rows[1]}
    place = cell["a"], cell["sigma"]
    if place not in PANELS:
        return {name: value for name, value in values.items() if not isinstance(value, list)}
    if seed == FIRST_SEED and cell["model"] in ("printed", "ours", "true"):
        paths = test if cell["model"] == "true" else model.paths(test[:, 0], 1)[0]
        states = slice(4 if place == PANELS[0] else 1)
        values["lines"] = _round(paths[:LINES, ::LINES_EVERY, states], 3)
    return values


def _make_simulator(cell: Cell, truth: FourStates, train: Array, t: Array) -> tuple[Simulator, Values]:
    """The model of a cell, fitted if it needs fitting, and facts about the fit."""
    name, seed = cell["model"], cell["seed"]
    if name == "mean":
        return Simulator(partial(_mean_paths, truth), partial(_mean_field, truth)), {}
    if name == "true":
        return Simulator(partial(_true_paths, truth, seed), partial(_true_field, truth, seed)), {}
    settings: dict[str, Any] = {}
    if name != "ours":
        settings = {**PRINTED, **ODE_TRAINING, "delta": RADIUS.get(name, ODE_DELTA)}
    if cell["epochs"] is not None:
        settings["max_epochs"] = cell["epochs"]
    start = time.process_time()
    model = LocalW2ODE(random_state=seed, **settings).fit(train, t)
    seconds = time.process_time() - start
    fitted = Simulator(
        lambda y0, draws: model.sample(y0, t, draws, random_state=seed),
        lambda states, draws: model.sample_field(states, draws, random_state=seed),
    )
    return fitted, {"fit_seconds": round(seconds, 1), "skipped": model.fit_.skipped}


def _mean_paths(truth: FourStates, y0: Array, draws: int) -> Array:
    return np.repeat(mean_model(truth, y0, y0)[0][None], draws, 0)


def _mean_field(truth: FourStates, states: Array, draws: int) -> Array:
    field = mean_model(truth, states[:1], states)[1][:1]
    return np.repeat(field, draws, 0)


def _true_paths(truth: FourStates, seed: int, y0: Array, draws: int) -> Array:
    rng = np.random.default_rng(20_000 + seed)
    start = np.tile(y0, (draws, 1))
    paths = truth.paths(start, rng.uniform(-truth.sigma, truth.sigma, len(start)))
    return paths.reshape(draws, *y0.shape[:1], *paths.shape[1:])


def _true_field(truth: FourStates, seed: int, states: Array, draws: int) -> Array:
    return truth.sample_field(states, draws, 30_000 + seed)


def _measure_errors(truth: FourStates, model: Simulator, test: Array, seed: int, draws: int) -> Values:
    """Errors in yhat, ghat and the SD, overall and against t; mean and SD of g1 along the line."""
    yhat = model.paths(test[:, 0], 1)[0]
    seen = test[:, ::STATES_EVERY]
    states = seen.reshape(-1, 4)
    g, ghat = truth.sample_field(states, 100, 40_000 + seed), model.field(states, 100)
    distances, squares = (
        values.reshape(seen.shape[:2]).mean(0)
        for values in (field_distances(g, ghat), (g**2).sum(-1).mean(0))
    )
    along = model.field(LINE, draws)[..., 0]
    return {
        "y": path_error(test, yhat),
        "y_sqrt": path_error(test, yhat, RADIUS["printed-sqrt"]),
        "g": float(distances.sum() / squares.sum()),
        "sd": spread_error(truth, model.paths(np.ones((1, 4)), draws)[:, 0]),
        "y_in_time": _round(path_errors_in_time(test, yhat)[::5], 7),
        "g_in_time": _round(distances / squares, 7),
        "line_mean": _round(along.mean(0)),
        "line_sd": _round(along.std(0)),
    }


def _count_ball_rows(initial: Array, radius: float) -> float:
    """The mean number of rows per ball, over the balls of all rows."""
    return float(Neighborhoods.within(initial, radius).row_sizes().double().mean())


def compute_line(sigma: float) -> tuple[Array, Array]:
    """Mean and SD of the true g1 along the line: Var(omega) = sigma^2/3, Var(omega^2) = 4 sigma^4/45."""
    y1, y2, y3, _ = LINE.T
    mean: Array = 0.05 * y1 + 0.05 * y3 - (1 - sigma**2 / 3) * y2
    return mean, np.sqrt(y1**2 * sigma**2 / 3 + y2**2 * 4 * sigma**4 / 45)


def _round(values: Any, digits: int = 4) -> Any:
    return np.round(np.asarray(values, dtype=np.float64), digits).tolist()


def main() -> None:
    """Compute what is missing, then draw."""
    from dynamics_figures import draw

    options = Options.parse(__doc__)
    run_experiment("dynamics", list_cells(options), run_cell, draw, options)


assert RADIUS["printed"] == PRINTED["delta"] == DELTA_0

if __name__ == "__main__":
    main()
