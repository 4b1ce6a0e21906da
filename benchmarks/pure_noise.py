"""The spread that the default finds in pure noise, where no column says anything about y.

    python benchmarks/pure_noise.py [--seeds 20]

Prints the mean predicted SD at 500 new rows, where the true one is 1, over seeds, with its standard error.
Too large a value is the price of a mean that was fitted to noise.
"""

from __future__ import annotations

import argparse

import numpy as np

from localw2 import LocalW2Regressor

SHAPES = ((200, 4), (100, 10))  # rows and columns


def measure_spread(n: int, p: int, seed: int) -> float:
    """The mean predicted SD of standard normal y at new rows."""
    rng = np.random.default_rng([seed, n, p])
    model = LocalW2Regressor(random_state=seed).fit(rng.normal(size=(n, p)), rng.normal(size=n))
    _, std = model.predict(rng.normal(size=(500, p)), return_std=True)
    return float(std.mean())


def main() -> None:
    """Print a line per shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="fits per shape (default 20)")
    options = parser.parse_args()
    for n, p in SHAPES:
        found = np.array([measure_spread(n, p, seed) for seed in range(options.seeds)])
        error = found.std() / np.sqrt(len(found))
        print(f"{n} rows, {p} columns: predicted / true SD = {found.mean():.3f} +- {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
