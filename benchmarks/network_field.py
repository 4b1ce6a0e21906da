"""Default fits of a network field: seconds of one core, errors beside the true model, and growth of an epoch.

    python benchmarks/network_field.py [--seeds 3] [--first 0] [--only accuracy|growth|noise]

Lotka-Volterra from one initial state (four log-normal rates, SD .1 of their logarithms) and damped pendulums
from initial states that vary (SD .1), 250 trajectories at 41 times of 2 states each. Errors are those of the
mean trajectory and of the SD over trajectories at each time, as ratios of norms over times and states,
against 4000 new trajectories; the simulated ones start from the same states. "known" are the errors of the
true equation with the parameters of the 250 training trajectories: what chance leaves to a fit that knows
both; "apart" are the errors of the fit against that, which the luck of the training set does not touch.
Growth: the seconds of one epoch of Lotka-Volterra, from 100 to 2000 trajectories, as an exponent, over the
first 32 steps of training. Noise: the same pendulums with additive errors of SD .1, which are learned beside
the field, with their standard errors. ``--first`` is the first seed, for fresh training sets.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from localw2 import LocalW2ODE
from localw2.estimators.dynamics.ode import BATCH_TRAJECTORIES
from localw2.training import loop

Array = NDArray[np.float64]
N, TEST, SIZES, GROWTH_STEPS, NOISE = 250, 4000, (100, 500, 2000), 32, 0.1


def solve(slopes: Callable[[Array], Array], y: Array, times: Array) -> Array:
    """Trajectories (n, T, d) from states y (n, d), by the classical Runge-Kutta method."""
    path = [y]
    for start, end in pairwise(times):
        h = (end - start) / 10
        for _ in range(10):
            k1 = slopes(y)
            k2 = slopes(y + h / 2 * k1)
            k3 = slopes(y + h / 2 * k2)
            k4 = slopes(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(y)
    return np.stack(path, 1)


def lotka_volterra(n: int, seed: int, start: Array | None = None) -> tuple[Array, Array]:
    """Prey and predators from (1.5, 1), each pair with its own four rates: Y (n, 41, 2) and t.

    From states ``start`` (m, 2), if given, with the n pairs of rates in turn.
    """
    omega = np.exp(np.random.default_rng(seed).normal(0, 0.1, (4, n)))
    start = np.tile([1.5, 1.0], (n, 1)) if start is None else start
    (a, b, c, d), t = omega[:, np.arange(len(start)) % n], np.linspace(0, 6, 41)

    def slopes(y: Array) -> Array:
        return np.column_stack([y[:, 0] * (a - b * y[:, 1]), y[:, 1] * (d * y[:, 0] - c)])

    return solve(slopes, start, t), t


def pendulum(n: int, seed: int, start: Array | None = None) -> tuple[Array, Array]:
    """Angle and speed from about (1.5, 0), each with its own frequency and damping: Y (n, 41, 2) and t.

    From states ``start`` (m, 2), if given, with the n frequencies and dampings in turn.
    """
    rng = np.random.default_rng(seed)
    w, c = np.exp(rng.normal(np.log(2), 0.08, n)), np.exp(rng.normal(np.log(0.3), 0.3, n))
    start = np.array([1.5, 0.0]) + 0.1 * rng.normal(size=(n, 2)) if start is None else start
    turn, t = np.arange(len(start)) % n, np.linspace(0, 4, 41)
    w, c = w[turn], c[turn]

    def slopes(y: Array) -> Array:
        return np.column_stack([y[:, 1], -(w**2) * np.sin(y[:, 0]) - c * y[:, 1]])

    return solve(slopes, start, t), t


PROBLEMS = {"Lotka-Volterra": lotka_volterra, "pendulum": pendulum}


def compare(y: Array, yhat: Array) -> tuple[float, float]:
    """Relative errors of the mean trajectory and of the SD at each time."""
    mean, spread = (
        np.linalg.norm(ours - true) / np.linalg.norm(true)
        for ours, true in ((yhat.mean(0), y.mean(0)), (yhat.std(0), y.std(0)))
    )
    return float(mean), float(spread)


def fit(Y: Array, t: Array, seed: int, **settings: Any) -> tuple[LocalW2ODE, float]:
    """A default fit, and its seconds of process time."""
    y0 = settings.pop("y0", None)
    start = time.process_time()
    model = LocalW2ODE(random_state=seed, **settings).fit(Y, t, y0=y0)
    return model, time.process_time() - start


def print_accuracy(seeds: range) -> None:
    """Print a line for every training set."""
    head = f"{'problem':16}{'seed':>5}{'seconds':>9} |{'mean':>8}{'SD':>8}"
    print(f"{head} | known{'mean':>8}{'SD':>8} | apart{'mean':>8}{'SD':>8}")
    for name, make in PROBLEMS.items():
        test, _ = make(TEST, 1000)
        for seed in seeds:
            Y, t = make(N, seed)
            model, seconds = fit(Y, t, seed)
            ours, known = model.sample(test[:, 0], t, random_state=seed)[0], make(N, seed, test[:, 0])[0]
            pairs = (compare(test, ours), compare(test, known), compare(known, ours))
            errors = [f"{mean:8.4f}{spread:8.4f}" for mean, spread in pairs]
            print(f"{name:16}{seed:5}{seconds:9.1f} |{' |      '.join(errors)}", flush=True)


def print_growth() -> None:
    """Print the seconds of an epoch, and their exponent in the number of trajectories."""
    seconds = []
    for n in SIZES:
        Y, t = lotka_volterra(n, 0)
        # The same steps of training for all: as it goes on, equations are solved in more steps.
        with time_epochs() as times:
            fit(Y, t, 0, max_epochs=GROWTH_STEPS // math.ceil(n / BATCH_TRAJECTORIES))
        seconds.append(float(np.mean(times)))
        print(f"{n:6} trajectories: {seconds[-1]:8.3f} s for an epoch", flush=True)
    print(f"exponent {np.polyfit(np.log(SIZES), np.log(seconds), 1)[0]:.2f}")


@contextmanager
def time_epochs() -> Iterator[list[float]]:
    """Collect the seconds of process time of every epoch; a fit's history has those of the wall clock."""
    original, times = loop._Run.step, []

    def step(run: loop._Run) -> dict[str, Any]:
        start = time.process_time()
        entry = original(run)
        times.append(time.process_time() - start)
        return entry

    with patch.object(loop._Run, "step", step):
        yield times


def print_noise(seeds: int) -> None:
    """Print the learned SD of the errors, and the error of the spread of exact trajectories."""
    test, t = pendulum(TEST, 1000)
    for seed in range(seeds):
        Y, _ = pendulum(N, seed)
        noisy = Y + NOISE * np.random.default_rng(seed).normal(size=Y.shape)
        for noise in ("additive", None):
            model, seconds = fit(noisy, t, seed, noise=noise, y0=Y[:, 0])
            mean, spread = compare(test, model.sample(test[:, 0], t, random_state=seed, measured=False)[0])
            learned = ""
            if noise is not None:
                both = zip(model.noise_, model.noise_errors_, strict=True)
                learned = ", ".join(f"{value:.4f} +- {error:.4f}" for value, error in both)
            print(
                f"noise={noise!s:9} seed {seed}: SD of errors {learned or 'none'} (true {NOISE}), errors of "
                f"mean {mean:.3f} and SD {spread:.3f} of the exact trajectories, {seconds:.0f} s",
                flush=True,
            )


def main() -> None:
    """Print the tables."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first training set (default 0)")
    parser.add_argument("--only", choices=("accuracy", "growth", "noise"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only in (None, "accuracy"):
        print_accuracy(range(options.first, options.first + options.seeds))
    if options.only in (None, "growth"):
        print_growth()
    if options.only in (None, "noise"):
        print_noise(1)


if __name__ == "__main__":
    main()
