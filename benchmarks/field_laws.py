"""Random curves with a known law: how far from the true law's energy score a fit is on new rows.

    OMP_NUM_THREADS=1 python benchmarks/field_laws.py [--seeds 5] [--first 0] [--rows 1000]

Four laws of curves on 40 points: two modes whose shares depend on x; a mean with jumps (a checkerboard of two
inputs); six inputs with a smooth mean and spread; and a correlation between parts of the curve that changes
its sign with x. Printed is the energy score of ``LocalW2FieldRegressor`` on 500 new rows over that of the
true law, by 200 draws of either, and the same of Gaussian curves with the same mean and covariance for all
rows: a ratio of 1 is as good as the truth.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from localw2 import LocalW2FieldRegressor
from localw2.metrics import energy_score

Array = np.ndarray[Any, np.dtype[Any]]
Law = Callable[[Array, np.random.Generator], Array]

T = np.linspace(0, 1, 40)
SHAPES = np.stack([np.sin(np.pi * T), np.sin(2 * np.pi * T), np.cos(np.pi * T)])
NEW, DRAWS = 500, 200


def draw_two_modes(x: Array, rng: np.random.Generator) -> Array:
    """Bumps that point up with probability x and down otherwise, with a little noise; x (N, 1)."""
    side = np.where(rng.random(len(x)) < x[:, 0], 1.0, -1.0)
    noise = 0.2 * rng.normal(size=(len(x), 2)) @ SHAPES[1:]
    found: Array = (side * (0.5 + x[:, 0]))[:, None] * SHAPES[0] + noise
    return found


def draw_checkerboard(x: Array, rng: np.random.Generator) -> Array:
    """A level that jumps between the squares of a board, with a spread that does not; x (N, 2)."""
    square = (np.floor(4 * x[:, 0]) + np.floor(3 * x[:, 1])) % 2
    factors = rng.normal(size=(len(x), 3)) * [0.4, 0.3, 0.1]
    found: Array = 2 * square[:, None] * SHAPES[0] + (0.5 + x[:, 1:]) * (factors @ SHAPES)
    return found


def draw_six_inputs(x: Array, rng: np.random.Generator) -> Array:
    """A smooth mean and spread, and two inputs that do nothing; x (N, 6)."""
    mean = np.stack([2 * np.sin(np.pi * x[:, 0] * x[:, 1]), 4 * (x[:, 2] - 0.5) ** 2, x[:, 3]], 1)
    found: Array = (mean + 0.3 * np.exp(x[:, :1] - 0.5) * rng.normal(size=(len(x), 3))) @ SHAPES
    return found


def draw_turning(x: Array, rng: np.random.Generator) -> Array:
    """Skewed factors whose correlation goes from -.9 to .9 with the first input; x (N, 2)."""
    factors = rng.gamma(4, 0.5, (len(x), 3)) - 2
    tie = 0.9 * np.sin(np.pi * (x[:, 0] - 0.5))
    second = tie * factors[:, 0] + np.sqrt(1 - tie**2) * factors[:, 1]
    mixed = np.stack([factors[:, 0], 0.7 * second, 0.2 * factors[:, 2]], 1)
    level = np.sin(np.pi * x[:, 0]) * np.sin(np.pi * x[:, 1])
    found: Array = (3 * level)[:, None] * SHAPES[0] + (0.3 + x[:, 1:]) * (mixed @ SHAPES)
    return found


LAWS: dict[str, tuple[Law, int]] = {
    "two modes": (draw_two_modes, 1),
    "checkerboard": (draw_checkerboard, 2),
    "six inputs": (draw_six_inputs, 6),
    "turning": (draw_turning, 2),
}


def run(name: str, seed: int, n_rows: int) -> dict[str, Any]:
    """Ratios of energy scores for one law and seed."""
    law, p = LAWS[name]
    rng = np.random.default_rng([seed, len(name)])
    x, new = rng.uniform(size=(n_rows, p)), rng.uniform(size=(NEW, p))
    y, outcomes = law(x, rng), law(new, rng)
    start = time.process_time()
    model = LocalW2FieldRegressor(random_state=seed).fit(x, y)
    seconds = time.process_time() - start
    ours = energy_score(outcomes, model.sample(new, DRAWS, random_state=seed)).mean()
    true = energy_score(outcomes, np.stack([law(new, rng) for _ in range(DRAWS)])).mean()
    root = np.linalg.cholesky(np.cov(y.T) + 1e-9 * np.eye(y.shape[1]))
    common = y.mean(0) + rng.normal(size=(DRAWS, NEW, y.shape[1])) @ root.T
    gaussian = energy_score(outcomes, common).mean()
    return {
        "law": name,
        "seed": seed,
        "ours": float(ours / true),
        "gaussian": float(gaussian / true),
        "seconds": seconds,
    }


def main() -> None:
    """Print the ratios of every law, means over seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first, options.first + options.seeds)
    found = []
    for name in LAWS:
        for seed in seeds:
            found.append(run(name, seed, options.rows))
            print(json.dumps(found[-1]), flush=True)
    print(f"{'':14s} ours   one Gaussian   seconds   (energy score over the true law's)")
    for name in LAWS:
        own = [one for one in found if one["law"] == name]
        means = {key: np.mean([one[key] for one in own]) for key in ("ours", "gaussian", "seconds")}
        print(f"{name:14s} {means['ours']:.3f}  {means['gaussian']:.3f}          {means['seconds']:.1f}")


if __name__ == "__main__":
    main()
