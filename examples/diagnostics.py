"""Judge three samplers of the nonlinear example, and hold the error bound against the measured error.

    python examples/diagnostics.py [--out docs] [--seeds 20]

Writes diagnostics.png (a sampler that is right for x > 0 and too narrow elsewhere) and error_bound.png.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from localw2 import local_w2
from localw2.datasets import Nonlinear
from localw2.judging.bounds import error_bound
from localw2.judging.diagnosis.diagnose import diagnose

WIDER = 1.5  # the wrong law has this many times the true spread


def main() -> None:
    """Print the verdicts, draw both pictures."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the pictures")
    parser.add_argument("--seeds", type=int, default=20, help="data sets over which the error is averaged")
    options = parser.parse_args()
    draw_diagnosis(options.out / "diagnostics.png")
    draw_bound(options.out / "error_bound.png", options.seeds)


def draw_diagnosis(path: Path) -> None:
    """The verdicts on the truth and on two wrong samplers; a picture of the last."""
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
        found = diagnose(y, samples, x, random_state=0)
        print(f"{name}\n  {found!r}\n")
    print(found.table())
    found.plot()[0].figure.savefig(path, dpi=110)
    print(f"\nPicture: {path}")


def true_loss(n_places: int = 201, n_draws: int = 20_000) -> float:
    """W: the mean over x of the squared W2 between the law of y and the same, WIDER times as wide.

    Both are one law up to a scale around its mean, so W2 pairs equal quantiles: (WIDER - 1)^2 Var(y | x).
    Computed from sorted draws all the same, which holds for any pair of laws.
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
    """One draw a row of the wrong law."""
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
    """The bound's terms with the measured error of the loss."""
    x, y = Nonlinear().sample(1000, random_state=0)
    found = error_bound(x, y, random_state=0)
    errors = measured_errors(found.deltas, 1000, n_seeds)
    print(f"\n{found!r}\n")
    print(f"{'delta':>9}{'rows a ball':>13}{'bound':>9}{'measured':>10}")
    for values in zip(found.deltas, found.ball_sizes, found.total, errors, strict=True):
        print("{:9.4f}{:13.0f}{:9.1f}{:10.4f}".format(*values))
    print(f"measured error smallest at delta = {found.deltas[np.argmin(errors)]:.3g}")
    found.plot(measured=(found.deltas, errors)).figure.savefig(path, dpi=120)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main()
