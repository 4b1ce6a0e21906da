"""Value and gradient of the local loss: ours against a loop of POT over the balls, in one run.

    python benchmarks/loss.py [--quick]

Both sides use one thread, the same data and float64. The loop is the usual implementation: for each ball a
cost matrix in torch and ``ot.emd2``, then one backward pass; with one output also the way that POT has for
it, ``ot.wasserstein_1d``, which sorts. With more than ``--balls`` balls, the loop is
timed on that many, drawn at random in proportion to their multiplicity, and scaled up: the column "timed"
says how many of how many. Graphs are built before the timer starts on both sides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from localw2 import MMD, Neighborhoods, Objective, SquaredW2
from localw2.datasets import Nonlinear
from localw2.losses.discrepancies import Discrepancy
from naive import BallLoss, emd2_ball, loop_over_balls, mmd_ball, sorted_ball


def time_call(step: Callable[[], object], repeats: int) -> float:
    """The median time of a call, after one that is not counted; short calls are repeated for 0.2 s."""
    step()
    times: list[float] = []
    while len(times) < repeats or sum(times) < 0.2:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def value_and_gradient(objective: Objective, yhat: Tensor) -> tuple[float, Tensor]:
    """The loss and its gradient, as in a training step."""
    yhat = yhat.detach().requires_grad_()
    loss = objective(yhat)
    (gradient,) = torch.autograd.grad(loss, yhat)
    return float(loss.detach()), gradient


def compare(
    name: str,
    y: Tensor,
    yhat: Tensor,
    hoods: Neighborhoods,
    loss: Discrepancy,
    ball_loss: BallLoss,
    limit: int,
) -> float:
    """Time both sides, check that they agree, print a line, return the ratio of times."""
    objective = Objective(y, hoods, loss)
    ours = time_call(lambda: value_and_gradient(objective, yhat), repeats=20)
    # The paper's loop visits the ball of every row, even if balls are identical.
    rows = torch.arange(hoods.n_rows)
    if hoods.n_rows > limit:
        rows = torch.randperm(hoods.n_rows, generator=torch.Generator().manual_seed(0))[:limit]
    balls = hoods.ball_of_row[rows]
    start = time.perf_counter()
    loop_over_balls(y, yhat, hoods, balls, ball_loss)
    loop = (time.perf_counter() - start) * hoods.n_rows / len(rows)
    # Compare on exactly the rows that were timed: every ball counts as often as the loop visits it.
    kept = balls.unique()
    ours_loss, ours_gradient = 0.0, torch.zeros_like(yhat)
    for ball in kept.tolist():
        inside, part = objective.block([ball])
        share = float((balls == ball).sum()) / len(rows)
        value, gradient = value_and_gradient(part, yhat[inside])
        ours_loss += share * value
        ours_gradient[inside] += share * gradient
    value, gradient = loop_over_balls(y, yhat, hoods, balls, ball_loss)
    difference = max(
        abs(ours_loss / value - 1), float((ours_gradient - gradient).abs().max() / gradient.abs().max())
    )
    sizes = hoods.row_sizes().double()
    print(
        f"{name:37}{float(sizes.mean()):8.1f}{float(sizes.sum()):11.3g}{loop * 1e3:12.1f}{ours * 1e3:10.3f}"
        f"{loop / ours:10.0f}{difference:11.1e}   {len(rows)}/{hoods.n_rows}",
        flush=True,
    )
    return loop / ours


def emd2_each_time(y: Tensor, yhat: Tensor) -> Tensor:
    """The mean over times of the squared W2 of one ball, (m, T, d)."""
    return torch.stack([emd2_ball(y[:, t], yhat[:, t]) for t in range(y.shape[1])]).mean()


def measure_bandwidth() -> float:
    """Bytes per second (read plus written) of a copy much larger than the caches, on one thread."""
    source = torch.ones(1 << 25, dtype=torch.float64)
    target = torch.empty_like(source)
    return 2 * source.numel() * 8 / time_call(lambda: target.copy_(source), 5)


def print_roofline() -> None:
    """Edges per second of the d = 1 engine, and the fewest bytes that an edge can move."""
    bandwidth = measure_bandwidth()
    print(f"\nCopy bandwidth of one core: {bandwidth / 1e9:.1f} GB/s.")
    for n, delta in ((2000, 0.1), (20_000, 0.01), (20_000, 0.1)):
        x, y = Nonlinear().sample(n, random_state=0)
        _, other = Nonlinear().sample(n, random_state=1)
        hoods = Neighborhoods.within(x, delta)
        for dtype in (torch.float64, torch.float32):
            objective = Objective(torch.tensor(y).to(dtype), hoods)
            yhat = torch.tensor(other).to(dtype)
            time_ = time_call(partial(value_and_gradient, objective, yhat), 5)
            # Per edge: read the graph's column (4), write and read the rank (8), read the sorted y, and
            # write and read the difference.
            least = 12 + 3 * torch.finfo(dtype).bits // 8
            rate = hoods.n_edges / time_
            print(
                f"  N = {n}, delta = {delta}, {str(dtype)[6:]}: {hoods.n_edges:.3g} stored edges, "
                f"{time_ * 1e3:.2f} ms, {rate / 1e6:.0f} M edges/s, at least {least} bytes per edge: "
                f"{rate * least / bandwidth:.0%} of copy bandwidth"
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--balls", type=int, default=200, help="balls of the slow side to time (default 200)")
    parser.add_argument("--quick", action="store_true", help="20 balls: a first look, not a measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        print_table(20 if options.quick else options.balls)
        print_roofline()


def print_table(limit: int) -> None:
    """Print ours against the loop, line by line."""
    print(f"{'':37}{'rows /':>8}{'':11}{'loop':>12}{'ours':>10}{'':10}{'largest':>11}   balls")
    print(f"{'problem':37}{'ball':>8}{'edges':>11}{'ms':>12}{'ms':>10}{'ratio':>10}{'rel. diff':>11}   timed")
    for n in (1000, 2000):
        for delta in (0.025, 0.1):
            x, y = Nonlinear().sample(n, random_state=0)
            _, yhat = Nonlinear().sample(n, random_state=1)
            outputs = torch.tensor(y)[:, None], torch.tensor(yhat)[:, None]
            hoods = Neighborhoods.within(x, delta)
            name = f"W2, d = 1, N = {n}, delta = {delta}"
            compare(name, *outputs, hoods, SquaredW2(), emd2_ball, limit)
            compare("  the same beside wasserstein_1d", *outputs, hoods, SquaredW2(), sorted_ball, limit)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(1000, 2))
    outputs = torch.tensor(rng.normal(size=(1000, 4))), torch.tensor(rng.normal(size=(1000, 4)))
    for k in (20, 50, 100):
        hoods = Neighborhoods.nearest(x, k)
        compare(f"W2, d = 4, N = 1000, {k} rows per ball", *outputs, hoods, SquaredW2(), emd2_ball, limit)
    same = torch.tensor(rng.normal(size=(100, 4))), torch.tensor(rng.normal(size=(100, 4)))
    hoods = Neighborhoods.within(np.zeros(100), 0.1)
    compare("W2, d = 4, 100 identical balls", *same, hoods, SquaredW2(), emd2_ball, limit)
    # The ODE example with equal initial states: the same balls at each of 101 times.
    path = torch.tensor(rng.normal(size=(100, 101, 4))), torch.tensor(rng.normal(size=(100, 101, 4)))
    compare("W2, d = 4, 100 identical balls, T=101", *path, hoods, SquaredW2(), emd2_each_time, 5)
    for delta in (0.025, 0.1):
        x, y = Nonlinear().sample(1000, random_state=0)
        _, yhat = Nonlinear().sample(1000, random_state=1)
        outputs = torch.tensor(y)[:, None], torch.tensor(yhat)[:, None]
        hoods = Neighborhoods.within(x, delta)
        compare(f"MMD, d = 1, N = 1000, delta = {delta}", *outputs, hoods, MMD(), mmd_ball, limit)


if __name__ == "__main__":
    main()
