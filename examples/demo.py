"""Fit the paper's nonlinear example, print the errors beside the paper's, and save a plot.

python examples/demo.py [--rows 1000] [--out demo.png]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from localw2 import LocalW2Regressor
from localw2.datasets import Nonlinear
from localw2.metrics import draw_errors, mean_error, std_error
from localw2.plots import band


def main() -> None:
    """Fit, compare with the truth, and plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000, help="rows to learn from (default 1000)")
    parser.add_argument("--out", default="demo.png", help="where to save the plot (default demo.png)")
    options = parser.parse_args()

    truth = Nonlinear()
    x, y = truth.sample(options.rows, random_state=0)
    print(f"y = w1 (1 - exp(-w2 x)) + 5 with random (w1, w2): {len(x)} rows, one output, x in (-0.5, 0.5)")
    start = time.perf_counter()
    model = LocalW2Regressor(random_state=0, verbose=True).fit(x, y)
    print(f"LocalW2Regressor() fitted in {time.perf_counter() - start:.1f} s\n")

    test = -0.5 + 0.1 * np.arange(11)[:, None]
    mean, std = model.predict(test, return_std=True)
    rng = np.random.default_rng(1)
    observed = truth.sample_y(np.repeat(test, 100, axis=0), rng).reshape(11, 100).T
    by_draws = draw_errors(observed, model.sample(test, 100, random_state=1))
    again = draw_errors(observed, truth.sample_y(np.repeat(test, 100, axis=0), rng).reshape(11, 100).T)
    print(f"{'relative error over 11 test inputs':52}{'mean':>8}{'SD':>8}")
    print(f"{'ours, against the true moments':52}{mean_error(truth.mean(test), mean):8.3f}", end="")
    print(f"{std_error(truth.std(test), std):8.3f}")
    print(f"{'ours, the 100-draw metric of the paper':52}{by_draws[0]:8.3f}{by_draws[1]:8.3f}")
    print(f"{'the truth by that metric (sampling noise only)':52}{again[0]:8.3f}{again[1]:8.3f}")
    print(f"{'the paper, 50 x 2 ResNet, that metric, mean of 5':52}{0.034:8.3f}{0.106:8.3f}")

    grid = np.linspace(-0.5, 0.5, 101)[:, None]
    draws = truth.sample_y(np.repeat(grid, 20_000, axis=0), rng).reshape(101, 20_000)
    lower, upper = np.quantile(draws, [0.05, 0.95], axis=1)
    ax = band(
        grid,
        model.predict(grid),
        *model.predict_interval(grid),
        data=(x, y),
        truth=(truth.mean(grid), lower, upper),
    )
    ax.set_title(f"Nonlinear example: {len(x)} rows, default LocalW2Regressor", fontsize=11)
    ax.figure.savefig(options.out, dpi=150)
    print(f"\nPlot: {options.out}")


if __name__ == "__main__":
    main()
