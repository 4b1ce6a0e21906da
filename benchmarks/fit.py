"""A whole fit: 1000 epochs of the 50 x 2 ResNet, ours against the usual implementation.

    python benchmarks/fit.py [--epochs 1000] [--slow-epochs 2]

N = 1000, delta = .1, one thread for both, the same data and the same published loss. The usual implementation
draws every weight of the network for every row (N x in x out numbers per layer) and loops over the balls with
ot.emd2; a few of its epochs are timed and scaled up. Ours draws activations, which have the same
distribution, and sorts.
"""

from __future__ import annotations

import argparse
import time

import torch
from threadpoolctl import threadpool_limits

from localw2 import FitConfig, Neighborhoods, Objective, train
from localw2.datasets import Nonlinear
from localw2.models.network import RandomMLP
from naive import emd2_ball


def main() -> None:
    """Time both and print the ratio."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--slow-epochs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        x, y = (torch.tensor(v, dtype=torch.float32) for v in Nonlinear().sample(1000, random_state=0))
        hoods = Neighborhoods.within(x, 0.1)
        ours = RandomMLP(1, 1, 50, 2, generator=torch.Generator().manual_seed(0))
        config = FitConfig(max_epochs=options.epochs, learning_rate=0.025, schedule="constant", n_draws=1)
        start = time.perf_counter()
        fit = train(ours, Objective(y[:, None], hoods), x, config)
        fast = (time.perf_counter() - start) / options.epochs

        usual = RandomMLP(1, 1, 50, 2, generator=torch.Generator().manual_seed(0))
        optimizer = torch.optim.AdamW(usual.parameters(), lr=0.025, weight_decay=0.005)
        generator = torch.Generator().manual_seed(0)
        emd2_ball(y[:2, None], y[:2, None])  # loads the peer before the timer starts
        start = time.perf_counter()
        for _ in range(options.slow_epochs):
            yhat = usual(x, usual.draw(len(x), generator))
            balls = [hoods.ball(int(b)) for b in hoods.ball_of_row]
            loss = torch.stack([emd2_ball(y[rows, None], yhat[rows]) for rows in balls]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        slow = (time.perf_counter() - start) / options.slow_epochs
    print(f"ours: {options.epochs} epochs in {fast * options.epochs:.2f} s ({fast * 1e3:.2f} ms each),")
    print(f"      last loss {fit.losses[-1]:.4f}")
    print(f"usual: {slow * options.epochs:.0f} s ({slow:.2f} s each, timed on {options.slow_epochs} epochs)")
    print(f"ratio {slow / fast:.0f}")
    print("(The paper reports 2801 s for this network on one core of another machine.)")


if __name__ == "__main__":
    main()
