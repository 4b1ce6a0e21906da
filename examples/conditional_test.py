"""Test two samplers on new rows: one that is right, and one that is too narrow on one side. Plot the latter.

python examples/conditional_test.py [--out docs/conditional_test.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from localw2 import conditional_test
from localw2._validation import Array
from localw2.datasets import Nonlinear


def main() -> None:
    """Print both tests and save the plot."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/conditional_test.png"), help="where to save the plot"
    )
    options = parser.parse_args()

    truth = Nonlinear()
    x, y = truth.sample(1000, random_state=1)
    rng = np.random.default_rng(0)

    def right(x: Array) -> Array:
        return truth.sample_y(x, rng)

    def too_narrow(x: Array) -> Array:
        mean, scale = truth.mean(x), np.where(x[:, 0] > 0.1, 0.6, 1.0)
        narrow: Array = mean + scale * (truth.sample_y(x, rng) - mean)
        return narrow

    for name, sampler in (("the true distribution", right), ("SD 40 % too small for x > 0.1", too_narrow)):
        test = conditional_test(x, y, sampler, delta=0.1, random_state=0)
        print(f"{name}\n{test.summary()}\n")
    axes = test.plot()
    axes[0].figure.savefig(options.out, dpi=150)
    print(f"Plot: {options.out}")


if __name__ == "__main__":
    main()
