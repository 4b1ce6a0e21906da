"""Large tables of a known law: seconds of one core and CRPS, ours beside a quantile forest in the same run.

    python benchmarks/large_tables.py [--rows 41000 1000000] [--forest-rows 50000] [--limit 3600]

Nine columns decide where two modes are, how far apart, how wide and how likely each, with interactions. The
CRPS is divided by that of draws from the true law on the same 5000 test rows, so 1 is the best there is. The
forest runs on tables of at most ``--forest-rows`` rows.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

sys.path.insert(
    0, str(Path(__file__).parent / "accuracy")
)  # the comparison with peers, which this is part of

from encoding import Array
from environments import find_python
from measurement import DRAWS, measure, score_draws
from methods import BY_NAME
from tables import Task

OURS, FOREST = "localw2", "quantile forest"
COLUMNS, TEST_ROWS = 9, 5000


@final
@dataclass(frozen=True)
class TwoModes:
    """The law of y at each row, N(low, std²), or with probability p N(low + gap, std²); all are (N,)."""

    low: Array
    gap: Array
    std: Array
    p: Array

    @classmethod
    def at(cls, x: Array) -> TwoModes:
        """The law at rows x (N, 9) of numbers between 0 and 1."""
        a, b, c, d, e, f, g, h, i = x.T
        low = np.sin(4 * a * b) + 2 * c * (d > 0.5) + e * (1 - f)
        return cls(low, 1 + 2 * g * a, 0.2 + 0.3 * i, 1 / (1 + np.exp(-4 * (h - 0.5) - 2 * (b - d))))

    def sample(self, n_samples: int, rng: np.random.Generator) -> Array:
        """Independent draws, shape (n_samples, N)."""
        shape = (n_samples, len(self.low))
        draws: Array = (
            self.low + self.gap * (rng.random(shape) < self.p) + self.std * rng.standard_normal(shape)
        )
        return draws


def make_task(rows: int, seed: int) -> Task:
    """Training rows and 5000 test rows of the law."""
    rng = np.random.default_rng(seed)
    x = rng.random((rows + TEST_ROWS, COLUMNS))
    y = TwoModes.at(x).sample(1, rng)[0]
    return Task(x[:rows], y[:rows], x[rows:], y[rows:])


def compare_rows(rows: int, methods: list[str], limit: float, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The record of each method on a table, with ``ratio``: its CRPS divided by that of the true law."""
    task = make_task(rows, seed)
    law = TwoModes.at(task.x_test)
    best = score_draws(task.y_test, law.sample(DRAWS, np.random.default_rng(seed + 1)))["crps"]
    found = {}
    for name in methods:
        method = BY_NAME[name]
        values = measure(method.factory, find_python(method.environment), task, seed, limit)
        found[name] = values | ({"ratio": values["crps"] / best} if values["status"] == "done" else {})
        print(f"{rows:>9}  {name:<16}  {describe(found[name])}", flush=True)
    return found


def describe(values: dict[str, Any]) -> str:
    """One line for people."""
    if values["status"] != "done":
        return str(values.get("error", values["status"]))
    return (
        f"fit {values['fit_seconds']:7.1f} s   CRPS / true law's {values['ratio']:.3f}   "
        f"in 90 % {values['coverage']:.1%}   1000 draws of 1000 rows {values['draw_seconds_1000_rows']:.2f} s"
    )


def main() -> None:
    """Print a line per table and method, and how their seconds compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[41_000, 1_000_000], help="sizes of tables")
    parser.add_argument("--forest-rows", type=int, default=50_000, help="largest table for the forest")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds a fit and its draws may take")
    options = parser.parse_args()
    for rows in options.rows:
        methods = [FOREST, OURS] if rows <= options.forest_rows else [OURS]
        found = compare_rows(rows, methods, options.limit)
        if {"done"} == {values["status"] for values in found.values()} and len(found) == 2:
            ratio = found[OURS]["fit_seconds"] / found[FOREST]["fit_seconds"]
            print(f"{rows:>9}  the fit takes {ratio:.2f} times as long as the forest's")


if __name__ == "__main__":
    main()
