"""Errors of LocalW2ODE on the paper's system and on logistic growth, next to the truth and the mean model.

    python benchmarks/accuracy_ode.py [--seeds 3] [--grid-seeds 1] [--jobs 2]
    python benchmarks/accuracy_ode.py --only grid --a .1 .2, or --only default, times or printed

Error in yhat and ghat: Eq. ode_error of the paper on 100 test trajectories (delta_0 = .1; one simulated
trajectory per test trajectory; 100 draws of the field at every tenth test state). "mean model" is the ODE
with the mean field, which has no spread; "true model" draws from the truth: no method can do better, except
by chance. From y0 = (1, 1, 1, 1), 2000 draws against the exact distribution: SD is the mean over states and
times of |SDhat - SD| / SD, and "corr." the mean error of the correlations between the times .5, 1, 1.5 and 2.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.stats import ks_2samp

from localw2 import LocalW2ODE, Neighborhoods, PushForward
from localw2.datasets import FourStates, LogisticGrowth
from ode_errors import PRINTED, correlation_error, field_error, mean_model, path_error, spread_error

sys.path.append(str(Path(__file__).parents[1] / "paper"))
from publication import ODE_TRAINING

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default (pairs of times)", {}),
    "times": ("single times", {"linked": False}),
    "printed": ("as printed", {**PRINTED, **ODE_TRAINING}),
}


def run_cell(
    a: float, sigma: float, seed: int, settings: dict[str, Any], watched: bool = False
) -> dict[str, float]:
    """Fit one training set; score the fit, the mean model and the truth on one test set."""
    torch.set_num_threads(1)  # in a process of its own too
    truth = FourStates(a, sigma)
    paths, t, _ = truth.sample(100, random_state=seed)
    start = time.process_time()
    model = LocalW2ODE(random_state=seed, **settings).fit(paths, t)
    seconds = time.process_time() - start
    test, _, _ = truth.sample(100, random_state=10_000 + seed)
    _, _, again = truth.sample(100, random_state=20_000 + seed)
    states = test[:, ::10].reshape(-1, 4)
    field = truth.sample_field(states, 100, seed)
    flat_paths, flat_field = mean_model(truth, test[:, 0], states)
    samples = model.sample(test[:, 0], t, random_state=seed)[0]
    spread = model.sample(np.ones(4), t, 2000, random_state=seed)[:, 0]
    found = {
        "rows": float(Neighborhoods.within(paths[:, 0], 0.1).row_sizes().double().mean()),
        "y": path_error(test, samples),
        "g": field_error(field, model.sample_field(states, 100, random_state=seed)),
        "sd": spread_error(truth, spread),
        "correlation": correlation_error(truth, spread),
        "mean y": path_error(test, flat_paths),
        "mean g": field_error(field, flat_field),
        "true y": path_error(test, truth.paths(test[:, 0], again["omega"])),
        "true g": field_error(field, truth.sample_field(states, 100, 1 + seed)),
        "seconds": seconds,
    }
    if watched:
        print(
            f"a {a}, sigma {sigma}, set {seed}: error in g {found['g']:.5f}, {seconds:.0f} s", file=sys.stderr
        )
    return found


def fit_known_form(seed: int) -> dict[str, float]:
    """The same system with a known form and unknown omega: its distribution from 500 trajectories."""
    truth = FourStates()
    paths, t, realised = truth.sample(500, random_state=seed)
    start = time.perf_counter()
    model = LocalW2ODE(truth.field, {"omega": PushForward(0.1, 0.3)}, random_state=seed).fit(paths, t)
    seconds = time.perf_counter() - start
    omega, found = realised["omega"], model.parameters_.samples["omega"]
    test, _, _ = truth.sample(100, random_state=10_000 + seed)
    states = test[:, ::10].reshape(-1, 4)
    return {
        "mean / SD": abs(found.mean() - omega.mean()) / omega.std(),
        "SD ratio": found.std() / omega.std(),
        "KS": float(ks_2samp(found, omega).statistic),
        "g": field_error(
            truth.sample_field(states, 100, seed), model.sample_field(states, 100, random_state=seed)
        ),
        "seconds": seconds,
    }


def fit_logistic(seed: int, linked: bool) -> dict[str, float]:
    """Logistic growth at irregular times with missing values: estimates divided by the realised values."""
    truth = LogisticGrowth()
    paths, t, realised = truth.sample(300, random_state=seed)
    start = time.perf_counter()
    model = LocalW2ODE(truth.field, {"r": 0.7, "K": 7.0}, linked=linked, random_state=seed)
    law = model.fit(paths, t, y0=1.0, t0=0.0).parameters_
    return {
        **{f"mean {n}": law.mean[n] / v.mean() for n, v in realised.items()},
        **{f"SD {n}": law.std[n] / v.std() for n, v in realised.items()},
        "correlation": float(law.correlation[0, 1]),
        "realised": float(np.corrcoef(realised["r"], realised["K"])[0, 1]),
        "seconds": time.perf_counter() - start,
    }


def average(records: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each entry."""
    return {name: float(np.mean([record[name] for record in records])) for name in records[0]}


def print_methods(run: Parallel, seeds: range, only: str | None = None) -> None:
    """Print the errors of all methods at a = 0, sigma = .25, or of one."""
    print("Network field, a = 0, sigma = .25, 100 trajectories, mean of", len(seeds), "training sets")
    print(f"{'loss':28}{'y':>9}{'g':>9}{'SD':>8}{'corr.':>8}{'seconds':>9}")
    for name, settings in [METHODS[only]] if only else METHODS.values():
        record = average(run(delayed(run_cell)(0.0, 0.25, seed, settings) for seed in seeds))
        print(
            f"{name:28}{record['y']:9.5f}{record['g']:9.5f}{record['sd']:8.1%}{record['correlation']:8.3f}{record['seconds']:9.0f}",
            flush=True,
        )
    for name in ("mean", "true"):
        print(f"{name + ' model':28}{record[name + ' y']:9.5f}{record[name + ' g']:9.5f}")


def print_grid(run: Parallel, a_grid: list[float], seeds: range) -> None:
    """Print the errors of the default over a and sigma."""
    print(f"\nDefault over a and sigma, mean of {len(seeds)} training set(s); rows: per ball of radius .1")
    columns = "".join(f"{name:>9}" for name in ("ours", "mean", "true"))
    print(f"{'':18} |{'error in y':>27} |{'error in g':>27} |")
    print(f"{'a':>4}{'sigma':>7}{'rows':>7} |{columns} |{columns} |{'SD':>7}{'seconds':>9}")
    cells = [(a, s) for a in a_grid for s in (0.1, 0.25, 0.4)]
    # Training set by training set, so that a look at a run in progress sees all cells.
    tasks = [(a, s, seed) for seed in seeds for a, s in cells]
    records = run(delayed(run_cell)(a, s, seed, {}, watched=True) for a, s, seed in tasks)
    for a, s in cells:
        r = average([record for record, task in zip(records, tasks, strict=True) if task[:2] == (a, s)])
        print(
            f"{a:4}{s:7}{r['rows']:7.1f} |{r['y']:9.5f}{r['mean y']:9.5f}{r['true y']:9.5f} "
            f"|{r['g']:9.5f}{r['mean g']:9.5f}{r['true g']:9.5f} |{r['sd']:7.1%}{r['seconds']:9.0f}",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seeds", type=int, default=3, help="training sets of a = 0, sigma = .25")
    parser.add_argument("--grid-seeds", type=int, default=1, help="training sets of each other (a, sigma)")
    parser.add_argument("--a", type=float, nargs="+", default=[0.0, 0.1, 0.2, 0.3], help="a of the grid")
    parser.add_argument("--only", choices=("grid", *METHODS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = Parallel(n_jobs=options.jobs)
    warnings.filterwarnings("ignore", message=".*balls with one row")  # that is what the published delta does
    seeds = range(options.seeds)
    if options.only == "grid":
        print_grid(run, options.a, range(options.grid_seeds))
        return
    print_methods(run, seeds, options.only)
    if options.only:
        return
    print_grid(run, options.a, range(options.grid_seeds))

    print("\nKnown form, distribution of omega by push-forward, 500 trajectories: each training set")
    for record in run(delayed(fit_known_form)(seed) for seed in seeds):
        print("  " + ", ".join(f"{name} {value:.4g}" for name, value in record.items()), flush=True)

    print("\nLogistic growth, 300 trajectories: divided by the realised values, each training set")
    for linked in (True, False):
        print("pairs of times" if linked else "single times")
        for record in run(delayed(fit_logistic)(seed, linked) for seed in seeds):
            print("  " + ", ".join(f"{name} {value:.3f}" for name, value in record.items()), flush=True)


if __name__ == "__main__":
    main()
