"""Laws of all shapes: ours, peers and the true law on every problem of ``datasets.ZOO``.

    python benchmarks/shapes.py [--methods localw2 "true law" ...] [--problems humps ...] [--rows 1000 5000]
        [--seeds 3]

Each method runs in a process of its own with one thread, and in its own environment if it needs one. Results
go to ``shapes.json`` as soon as they are computed: a second call continues where the first stopped, and what
is not asked for stays. After a change of a method's code its cheapest record is checked (``ledger.py``).
``shapes_page.py`` makes the tables of ``docs/shapes.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "accuracy"))  # the comparison on real tables

from encoding import Array
from environments import find_python, find_versions
from ledger import Ledger, Settings, Stamp, Values, trace
from localw2.datasets import ZOO
from localw2.metrics import energy_score
from measurement import HERE as ACCURACY
from measurement import THREADS
from methods import BY_NAME
from peers import FEWEST

TRUTH = "true law"
METHODS = ("localw2", "engression", "treeffuser", "diffgbm", "quantile forest", TRUTH)
RECORDS = Path(__file__).with_suffix(".json")
ROWS = (1000, 5000)

TEST_ROWS = 2000
LEVELS = np.linspace(0.05, 0.95, 11)  # of x, where draws are compared with the true law
REPEATS = 100  # rows of a fixed x; FEWEST draws of each count, as many as a diffusion gives: 2000 at each x
DRAWS = 200  # of a row, for the score over test rows; fewer where a method gives fewer
TRUE_DRAWS = {1: 1000, 2: 400}  # of the true law, by outputs: everybody's score is divided by its score
REFERENCE = 100  # true draws for each draw that is compared with them
DIRECTIONS = 16  # of two outputs, along which their laws are compared

# Where there should be (almost) nothing: the share of draws of which this holds.
VALLEYS: dict[str, Callable[[Array, Array], Any]] = {"humps": lambda x, y: np.abs(y - x[:, 0]) < 0.8}


def _unit(angles: Array) -> Array:
    """Unit vectors (n, 2) with these angles (n,)."""
    return np.column_stack([np.cos(angles), np.sin(angles)])


# Functions of two outputs whose law depends on the joint law, not on the margins alone.
PROJECTIONS: dict[str, dict[str, Callable[[Array, Array], Array]]] = {
    "circle": {"radius": lambda x, y: np.hypot(*y.T)},
    "joint modes": {
        "along": lambda x, y: (y * _unit(np.pi * x[:, 0])).sum(1),
        "across": lambda x, y: (y * _unit(np.pi * (x[:, 0] + 0.5))).sum(1),
    },
}


@cache
def fixed_x(problem: str) -> Array:
    """The quantiles (11, 1) of x at ``LEVELS``."""
    x = ZOO[problem].sample(100_000, random_state=0)[0]
    return np.quantile(x, LEVELS, axis=0)


def make_rows(problem: str, rows: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """Training rows x and y, test rows with every fixed x ``REPEATS`` times below them, and test outcomes."""
    x, y = ZOO[problem].sample(rows, random_state=[seed, rows])
    x_test, y_test = ZOO[problem].sample(TEST_ROWS, random_state=[seed, 0])
    return x, y, np.vstack([x_test, np.repeat(fixed_x(problem), REPEATS, axis=0)]), y_test


def draw_truth(problem: str, x: Array, n_samples: int, seed: int) -> Array:
    """Draws (S, N) or (S, N, d) of the true law."""
    y = ZOO[problem].sample_y(np.tile(x, (n_samples, 1)), np.random.default_rng([seed, 1]))
    return y.reshape(n_samples, len(x), *y.shape[1:])


def draw_fitted(name: str, x: Array, y: Array, x_test: Array, seed: int) -> tuple[Array, float]:
    """Draws of a method that is fitted in a process of its own, and the seconds of its fit."""
    method = BY_NAME[name]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        np.savez(home / "split.npz", x=x, y=y, x_test=x_test, categorical=np.array([], dtype=int))
        (home / "split.pickle").write_bytes(pickle.dumps((x, y, x_test)))
        runner = str(ACCURACY / "runner.py")
        command = [find_python(method.environment), runner, method.factory, str(seed), str(DRAWS), folder]
        environment = os.environ | dict.fromkeys(THREADS, "1")
        if method.environment is not None:
            environment.pop("PYTHONPATH", None)  # it is for our interpreter
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr.strip()[-500:]}")
        seconds = json.loads((home / "seconds.json").read_text())["fit_seconds"]
        return np.load(home / "draws.npy"), seconds


def score(problem: str, y_test: Array, draws: Array, seed: int) -> Values:
    """All scores of draws (S, N) or (S, N, d) at test rows and, below them, at the fixed x.

    ``score`` is the CRPS or, for two outputs, the energy score. The others compare 2000 draws at each fixed x
    with true ones and are means over x. Distances are in units of the true SD there (of two outputs, the root
    of the mean variance), those of projections in units of the projection's SD.
    """
    law, x, outputs = ZOO[problem], fixed_x(problem), y_test.shape[1:]
    values = {"score": energy_score(y_test, draws[:, :TEST_ROWS]).mean()}
    rows = np.repeat(x, REPEATS * FEWEST, axis=0)
    drawn = np.moveaxis(draws[:FEWEST, TEST_ROWS:], 0, 1).reshape(len(rows), *outputs)
    true_rows = np.repeat(rows, REFERENCE, axis=0)
    true = law.sample_y(true_rows, np.random.default_rng([seed, 2]))
    spread = law.std(x).reshape(len(x), -1)
    found = compare(drawn, true, len(x)) / np.sqrt((spread**2).mean(1))[:, None]
    values |= dict(zip(("w1", "w2"), found.mean(0), strict=True))
    if problem in VALLEYS:
        values["valley"] = VALLEYS[problem](rows, drawn).mean()
    for name, project in PROJECTIONS.get(problem, {}).items():
        projected = project(true_rows, true)
        found = compare(project(rows, drawn), projected, len(x))
        values[name] = (found[:, 0] / projected.reshape(len(x), -1).std(1)).mean()
    # Seven digits: draws on another machine agree to no more.
    return {name: float(f"{value:.7g}") for name, value in values.items()}


def compare(drawn: Array, true: Array, n: int) -> Array:
    """W1 and W2, (n, 2), between draws of n laws, one law below the other, and more true draws of each.

    With two outputs these are sliced distances: the mean W1 and the root mean square W2 of the components in
    directions that are spread evenly over the half circle. They are 0 only if the joint laws agree (up to the
    number of directions), and have far less noise than an optimal assignment of 2000 pairs.
    """
    angles = np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    found = []
    for a, b in zip(np.split(drawn, n), np.split(true, n), strict=True):
        pairs = [(a, b)] if a.ndim == 1 else [(a @ u, b @ u) for u in _unit(angles)]
        gaps = [np.abs(np.repeat(np.sort(c), len(d) // len(c)) - np.sort(d)) for c, d in pairs]
        found.append([np.mean(gaps), np.sqrt(np.mean(np.square(gaps)))])
    return np.array(found)


def measure(settings: Settings) -> Values:
    """Fit one method to one problem and score it."""
    problem, name, seed = settings["problem"], settings["method"], settings["seed"]
    x, y, x_test, y_test = make_rows(problem, settings["rows"], seed)
    if name == TRUTH:
        n_samples = TRUE_DRAWS[y_test.ndim]
        return score(problem, y_test, draw_truth(problem, x_test, n_samples, seed), seed)
    draws, seconds = draw_fitted(name, x, y, x_test, seed)
    return score(problem, y_test, draws, seed) | {"fit_seconds": round(seconds, 3)}


def stamp_method(name: str) -> Stamp:
    """The stamp of a method's present code: its own function, what runs and scores, its packages."""
    roots: list[tuple[Path, str | None]] = [(Path(__file__), "measure")]
    if name == TRUTH:
        return Stamp.of(trace(roots), find_versions(None, ("numpy", "scipy")))
    method = BY_NAME[name]
    module, function = method.factory.split(":")
    own = ACCURACY / f"{module}.py"
    roots += [(own, function), (own, "read"), (ACCURACY / "runner.py", "run")]
    return Stamp.of(trace(roots), find_versions(method.environment, method.packages))


def open_ledger(methods: tuple[str, ...], path: Path = RECORDS) -> Ledger:
    """The records, in one file."""
    return Ledger(
        path,
        measure,
        {name: stamp_method(name) for name in methods},
        order=lambda of: (
            list(ZOO).index(of["problem"]),
            of["rows"],
            METHODS.index(of["method"]),
            of["seed"],
        ),
        holds=lambda of: of["problem"] in ZOO and of["method"] in METHODS,
    )


def main() -> None:
    """Compute what has no valid record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="NAME")
    parser.add_argument("--problems", nargs="+", choices=list(ZOO), default=list(ZOO), metavar="NAME")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="rows to fit (default 1000 5000)")
    parser.add_argument("--seeds", type=int, default=3, help="how many tables of each problem (default 3)")
    options = parser.parse_args()
    open_ledger(tuple(options.methods)).complete(
        [
            {"problem": problem, "rows": rows, "method": method, "seed": seed}
            for seed in range(options.seeds)
            for problem in options.problems
            for rows in options.rows
            for method in options.methods
        ]
    )


if __name__ == "__main__":
    main()
