"""The spread that the default finds in pure noise, where no column says anything about y.

    python benchmarks/pure_noise.py [--seeds 20]

Prints the mean predicted SD at 500 new rows over seeds, with its standard error: of the default, and of a
network around the default mean in balls of 12, 24 and 48 rows. The true SD is 1; predictions are in units of
the SD of the rows that were fitted, which is right on average, because most of what they vary by is its own
chance. Too large a value is the price of a mean that was fitted to noise; too small a one would be the
debiased loss failing in small balls.
"""

from __future__ import annotations

import argparse

import numpy as np

from localw2 import LocalW2Regressor, Nearest

SHAPES = ((200, 4), (100, 10))  # rows and columns
NETWORK_SHAPE, BALLS = (400, 2), (12, 24, 48)


def measure_spread(n: int, p: int, seed: int, rows_per_ball: int | None = None) -> float:
    """The mean predicted SD at new rows, in units of the SD of the fitted y, all of it noise."""
    rng = np.random.default_rng([seed, n, p])
    model = LocalW2Regressor(random_state=seed)
    if rows_per_ball is not None:
        model.set_params(law="network", delta=Nearest(rows_per_ball))
    x, y = rng.normal(size=(n, p)), rng.normal(size=n)
    _, std = model.fit(x, y).predict(rng.normal(size=(500, p)), return_std=True)
    return float(std.mean() / y.std(ddof=1))


def main() -> None:
    """Print a line per shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="fits per shape (default 20)")
    options = parser.parse_args()
    cases: list[tuple[int, int, int | None]] = [(n, p, None) for n, p in SHAPES]
    cases += [(*NETWORK_SHAPE, k) for k in BALLS]
    for n, p, k in cases:
        found = np.array([measure_spread(n, p, seed, k) for seed in range(options.seeds)])
        error = found.std(ddof=1) / np.sqrt(len(found))
        law = "default" if k is None else f"network, balls of {k} rows"
        print(
            f"{n} rows, {p} columns, {law}: predicted / true SD = {found.mean():.3f} +- {error:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
