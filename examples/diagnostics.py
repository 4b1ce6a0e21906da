"""Judge three samplers of the nonlinear example, and compare the error bound with the measured error.

    python examples/diagnostics.py [--out docs] [--seeds 20]

Saves diagnostics.png (a sampler that is right for x > 0 and too narrow elsewhere) and error_bound.png.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from localw2 import diagnose, error_bound, local_w2
from localw2.datasets import Nonlinear

WIDER = 1.5  # the spread of the wrong distribution, relative to the truth


def main() -> None:
    """Print the verdicts and draw both plots."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the plots")
    parser.add_argument("--seeds", type=int, default=20, help="number of data sets to average over")
    options = parser.parse_args()
    draw_diagnosis(options.out / "diagnostics.png")
    draw_bound(options.out / "error_bound.png", options.seeds)


def draw_diagnosis(path: Path) -> None:
    """Print the verdicts on the truth and on two wrong samplers, and plot the last."""
    truth, rng = Nonlinear(), np.random.default_rng(1)
    x, y = truth.sample(1000, random_state=0)
    draws = np.stack([truth.sample_y(x, rng) for _ in range(200)])
    mean = truth.mean(x)
    partly = np.where(x[:, 0] < 0, mean + 0.7 * (draws - mean), draws)
    for name, samples in {
        "the truth": draws,
        "spread 25 % too large": mean + 1.25 * (draws - mean),
        "spread 30 % too small where x < 0": partly,
    }.items():
        found = diagnose(x, y, samples, random_state=0)
        print(f"{name}\n  {found!r}\n")
    print(found.table())
    found.plot()[0].figure.savefig(path, dpi=110)
    print(f"\nPlot: {path}")


def true_loss(n_places: int = 201, n_draws: int = 20_000) -> float:
    """W: the mean over x of the squared W2 between the distribution of y and one WIDER times as wide.

    The two differ only by a scale around the mean, so W2 pairs equal quantiles: (WIDER - 1)^2 Var(y | x). It
    is computed from sorted draws all the same, which works for any pair of distributions.
    """
    truth, rng = Nonlinear(), np.random.default_rng(0)
    places = np.linspace(-truth.half_width, truth.half_width, n_places + 1)[:-1] + truth.half_width / n_places
    total = 0.0
    for place in places:
        x = np.full((n_draws, 1), place)
        y, yhat = np.sort(truth.sample_y(x, rng)), np.sort(wider(x, rng))
        total += float(((y - yhat) ** 2).mean()) / n_places
    return total


def wider(x: Any, rng: np.random.Generator) -> Any:
    """One draw per row from the wrong distribution."""
    truth = Nonlinear()
    mean = truth.mean(x)
    return mean + WIDER * (truth.sample_y(x, rng) - mean)


def measured_errors(deltas: Any, n: int, n_seeds: int) -> Any:
    """The mean over data sets of |W - W_delta^e| at each delta."""
    truth, loss = Nonlinear(), true_loss()
    errors = np.zeros((n_seeds, len(deltas)))
    for seed in range(n_seeds):
        x, y = truth.sample(n, random_state=seed)
        yhat = wider(x, np.random.default_rng(10_000 + seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # balls of one row are part of the story here
            errors[seed] = [abs(local_w2(x, y, yhat, delta) - loss) for delta in deltas]
    return errors.mean(0)


def draw_bound(path: Path, n_seeds: int) -> None:
    """Plot the terms of the bound with the measured error of the loss."""
    x, y = Nonlinear().sample(1000, random_state=0)
    found = error_bound(x, y, random_state=0)
    errors = measured_errors(found.deltas, 1000, n_seeds)
    print(f"\n{found!r}\n")
    print(f"{'delta':>9}{'rows per ball':>15}{'bound':>9}{'measured':>10}")
    for values in zip(found.deltas, found.ball_sizes, found.total, errors, strict=True):
        print("{:9.4f}{:15.0f}{:9.1f}{:10.4f}".format(*values))
    print(f"The measured error is smallest at delta = {found.deltas[np.argmin(errors)]:.3g}.")
    found.plot(measured=(found.deltas, errors)).figure.savefig(path, dpi=120)
    print(f"Plot: {path}")


if __name__ == "__main__":
    main()
