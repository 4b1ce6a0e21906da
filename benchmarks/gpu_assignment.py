"""Exact assignment on a CUDA device: checked against scipy, and timed against all CPU cores with scipy.

    python benchmarks/gpu_assignment.py [--balls 10000] [--rows-per-ball 100] [--outputs 4]

First the totals of random, tied and degenerate problems of 1 to 300 rows are compared with scipy's. Then
value and exact gradient of the squared W2 are timed on the device and on the host, with threads and with
processes; the faster of these two is the peer.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from localw2 import Neighborhoods, Objective
from localw2._validation import Array
from localw2.losses.cuda.assignment import solve_on_device

SIZES = (1, 2, 3, 7, 31, 32, 33, 64, 100, 127, 128, 129, 200, 257, 300)
REPEATS = 20  # random problems of each size and kind


def make_problems(n: int, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Cost matrices that are hard for solvers."""
    a, b = rng.normal(size=(2, n, 3))
    squares = np.square(a[:, None] - b[None]).sum(2)
    yield "uniform", rng.uniform(size=(n, n))
    yield "negative", -rng.exponential(size=(n, n))
    yield "geometric", squares
    yield "far away", squares + 1e6
    yield "nearly paired", np.square(a[:, None] - (a + 1e-6 * b)[None]).sum(2)
    yield "tied", rng.integers(0, 3, size=(n, n)).astype(float)
    yield "equal", np.full((n, n), 0.7)
    yield "rank one", np.multiply.outer(np.arange(1.0, n + 1), np.arange(1.0, n + 1))
    yield "wide scales", 10.0 ** rng.uniform(-12, 12, size=(n, n))


def check() -> None:
    """Print the largest relative excess of the device's totals over scipy's, for each kind of problem."""
    rng, worst = np.random.default_rng(0), dict[str, float]()
    for n in SIZES:
        found: dict[str, list[Array]] = {}
        for _ in range(REPEATS):
            for kind, costs in make_problems(n, rng):
                found.setdefault(kind, []).append(costs)
        for kind, many in found.items():
            costs = np.stack(many)
            sizes = torch.full((len(costs),), n, dtype=torch.int32, device="cuda")
            columns = solve_on_device(torch.tensor(costs, device="cuda"), sizes).cpu().numpy()
            assert (np.sort(columns, axis=1) == np.arange(n)).all(), f"{kind}, n = {n}: not a permutation"
            for cost, column in zip(costs, columns, strict=True):
                total, least = cost[np.arange(n), column].sum(), cost[linear_sum_assignment(cost)].sum()
                worst[kind] = max(worst.get(kind, 0.0), (total - least) / max(abs(least), 1e-300))
    for kind, excess in worst.items():
        print(f"  {kind:15} {len(SIZES) * REPEATS} problems: relative excess over scipy at most {excess:.1e}")
    print(f"largest {max(worst.values()):.1e} (required: at most 1e-6)")


_held: list[Array] = []  # y, yhat, rows and weights of balls, in every process


def hold(*arrays: Array) -> None:
    """Keep the problem in a process, so that only the indices of balls are sent."""
    _held[:] = arrays


def solve_share(balls: Array) -> tuple[float, Array]:
    """The weighted sum of the values of some balls and its gradient in yhat (N, d), by scipy."""
    y, yhat, rows, weights = _held
    total, gradient = 0.0, np.zeros_like(yhat)
    with threadpool_limits(1):
        for ball, weight in zip(rows[balls], weights[balls], strict=True):
            a, b = y[ball], yhat[ball]
            costs = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
            best = linear_sum_assignment(costs)[1]
            gap = b[best] - a
            total += weight * np.square(gap).sum() / len(ball)
            gradient[ball[best]] += (2 * weight / len(ball)) * gap
    return total, gradient


def solve_on_cores(pool: Executor, parts: list[Array]) -> tuple[float, Array]:
    """The value and its gradient, over all balls."""
    found = list(pool.map(solve_share, parts))
    return sum(total for total, _ in found), np.sum([gradient for _, gradient in found], axis=0)


def time_call(step: Callable[[], object], repeats: int) -> float:
    """The median wall time of a call."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def main() -> None:
    """Check, then time."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--balls", type=int, default=10_000)
    parser.add_argument("--rows-per-ball", type=int, default=100)
    parser.add_argument("--outputs", type=int, default=4)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and there is none here.")
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(options.balls, 2))
    y, yhat = rng.normal(size=(2, options.balls, options.outputs))
    hoods = Neighborhoods.nearest(x, options.rows_per_ball)
    print(hoods)
    weights = (hoods.weights / hoods.weights.sum()).numpy()
    hold(y, yhat, hoods.rows.numpy().reshape(hoods.n_balls, -1), weights)
    cores = len(os.sched_getaffinity(0))
    parts = np.array_split(np.arange(hoods.n_balls), 8 * cores)
    peers: dict[str, float] = {}
    # Forked processes share the arrays; they are started before CUDA is.
    with ProcessPoolExecutor(cores, get_context("fork")) as processes, ThreadPoolExecutor(cores) as threads:
        for name, pool in (("processes", processes), ("threads", threads)):
            value, gradient = solve_on_cores(pool, parts)
            peers[name] = time_call(partial(solve_on_cores, pool, parts), 3)
            print(f"{cores} {name} with scipy: {peers[name] * 1e3:.0f} ms")
    best = min(peers, key=lambda name: peers[name])
    print(torch.cuda.get_device_name())
    check()
    for dtype in (torch.float64, torch.float32):
        objective = Objective(torch.tensor(y, dtype=dtype, device="cuda"), hoods)
        moved = torch.tensor(yhat, dtype=dtype, device="cuda")
        taken = time_call(partial(measure_on_device, objective, moved), 10)
        memory = torch.cuda.max_memory_allocated() / 2**30
        print(f"{dtype}: device {taken * 1e3:.1f} ms, peak memory {memory:.2f} GiB; ", end="")
        print(f"{peers[best] / taken:.1f} times faster than {cores} {best} (required: at least 3)")
        ours, slope = measure_on_device(objective, moved)
        off = np.abs(slope.double().cpu().numpy() - gradient).max() / np.abs(gradient).max()
        print(f"  value differs by {abs(ours / value - 1):.1e}, gradient by {off:.1e} of its largest entry")


def measure_on_device(objective: Objective, yhat: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Value and gradient; waits for the device."""
    yhat = yhat.detach().requires_grad_()
    loss = objective(yhat)
    (gradient,) = torch.autograd.grad(loss, yhat)
    return float(loss.detach()), gradient


if __name__ == "__main__":
    main()
