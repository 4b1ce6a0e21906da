"""The local loss on the paper's nonlinear example: ball sizes, loss, seconds, ratio to the usual loop.

y and yhat are two independent samples of the same random model at the same x, so the loss is the floor that
a perfect fit reaches: it falls as balls grow, because larger samples of one law are closer to each other.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from localw2 import Neighborhoods, Objective
from localw2.datasets import Nonlinear
from naive import emd2_ball, loop_over_balls

TIMED_BALLS = 20


def main() -> None:
    """Print the table."""
    truth, n = Nonlinear(), 2000
    x, y = truth.sample(n, random_state=0)
    observed = torch.tensor(y)[:, None]
    simulated = torch.tensor(truth.sample_y(x, np.random.default_rng(1)))[:, None].requires_grad_()
    emd2_ball(observed[:2], simulated[:2])  # loads the peer before any clock starts
    print(f"Local squared W2 of the nonlinear example, N = {n}, one value and gradient:\n")
    print(f"{'delta':>7}{'rows a ball: min, median, max':>32}{'loss':>9}{'ours':>12}{'loop':>12}{'ratio':>9}")
    for delta in (0.0125, 0.025, 0.05, 0.1, 0.2):
        hoods = Neighborhoods.within(x, delta)
        objective = Objective(observed, hoods)
        loss, times = objective(simulated), []  # the first call prepares what later ones reuse
        for _ in range(7):
            start = time.perf_counter()
            torch.autograd.grad(objective(simulated), simulated)
            times.append(time.perf_counter() - start)
        ours = float(np.median(times))
        balls = hoods.ball_of_row[torch.randperm(n, generator=torch.Generator().manual_seed(0))[:TIMED_BALLS]]
        start = time.perf_counter()
        loop_over_balls(observed, simulated, hoods, balls, emd2_ball)
        loop = (time.perf_counter() - start) * n / TIMED_BALLS
        sizes = hoods.row_sizes()
        spread = f"{int(sizes.min())}, {int(sizes.median())}, {int(sizes.max())}"
        print(
            f"{delta:7}{spread:>32}{loss.item():9.4f}{ours * 1e3:9.2f} ms{loop:10.2f} s{loop / ours:9.0f}",
            flush=True,
        )
    print(
        f"\nThe loop solves one transport problem per row (POT): timed on {TIMED_BALLS} rows and scaled up."
    )


if __name__ == "__main__":
    main()
