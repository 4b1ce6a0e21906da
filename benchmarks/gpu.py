"""Loss and training on a CUDA device: agreement with the CPU, and time.

    python benchmarks/gpu.py [--rows 1000000] [--rows-per-ball 64] [--epochs 1000] [--models 16] [--profile]

First every discrepancy and a fit with fixed noise are compared with the CPU in float64. Then four things are
timed: training on the nonlinear problem (N = 1000, delta = .1, the 50 x 2 ResNet), with and without a CUDA
graph; several fits at once; a choice of balls; and one pass over all balls of a large problem with one
output, the model's step included.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from typing import Any, final
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from localw2 import (
    MMD,
    MSE,
    EnergyScore,
    FitConfig,
    LocalW2Regressor,
    MeanVar,
    Nearest,
    Neighborhoods,
    Objective,
    RandomMap,
    RandomMLP,
    SlicedW2,
    SquaredW2,
    train,
)
from localw2.datasets import Nonlinear
from localw2.training.cuda_graph import Leaps
from localw2.training.many import train_many

LOSSES = (
    SquaredW2(),
    SquaredW2(True),
    SlicedW2(8),
    SlicedW2(8, True),
    MMD(),
    MSE(),
    MeanVar(),
    EnergyScore(),
)


def value_and_gradient(objective: Objective, yhat: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient, as in a training step."""
    yhat = yhat.detach().requires_grad_()
    loss = objective(yhat)
    (gradient,) = torch.autograd.grad(loss, yhat)
    return loss.detach(), gradient


def difference(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> float:
    """The larger of the relative differences of value and gradient."""
    (a, b), (c, d) = ours, theirs
    return max(
        abs(float(a.cpu() / c.cpu() - 1)), float((b.cpu() - d.cpu()).abs().max() / d.abs().max().cpu())
    )


def compare_losses() -> None:
    """Compare every discrepancy with the CPU: one and two outputs, several draws and times."""
    rng = np.random.default_rng(0)
    hoods = Neighborhoods.within(rng.uniform(size=300), 0.05, min_size=2)
    for d in (1, 2):
        y = torch.tensor(rng.normal(size=(300, 3, d)))
        yhat = torch.tensor(rng.normal(size=(2, 300, 3, d)))
        for loss in LOSSES:
            cpu = value_and_gradient(Objective(y, hoods, loss), yhat)
            gpu = value_and_gradient(Objective(y.cuda(), hoods, loss), yhat.cuda())
            print(f"  d = {d}, {loss!s:50} relative difference from the CPU {difference(gpu, cpu):.1e}")


@final
class GivenNoise(RandomMap):
    """A model with fixed noise, the same on every device and in every epoch."""

    capturable = True

    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.register_buffer("noise", noise)
        self.weight = nn.Parameter(torch.tensor([[0.5], [0.1]], dtype=noise.dtype))

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """The first n rows of the noise."""
        return self.get_buffer("noise")[:n]

    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """A mean that is linear in x, and a constant spread."""
        noise = self.draw(len(x)) if omega is None else omega
        return x * self.weight[0] + noise * self.weight[1]


def compare_fits() -> None:
    """Train 200 epochs in float64 on both devices with the same noise."""
    rng = np.random.default_rng(0)
    x, noise = torch.tensor(rng.uniform(size=(300, 1))), torch.tensor(rng.normal(size=(600, 1)))
    y, hoods, weights = torch.tensor(rng.normal(size=(300, 1))), Neighborhoods.within(x, 0.05, min_size=2), []
    for device in ("cpu", "cuda"):
        model = GivenNoise(noise).to(device)
        fit = train(
            model,
            Objective(y.to(device), hoods, SquaredW2(True)),
            x.to(device),
            FitConfig(max_epochs=200, keep="average"),
        )
        weights.append(torch.cat([model.weight.detach().cpu()[:, 0], torch.tensor(fit.losses)]))
    off = float((weights[0] - weights[1]).abs().max() / weights[0].abs().max())
    print(f"  200 epochs with the same noise: weights and losses differ from the CPU's by {off:.1e}")


@contextmanager
def disable_graphs() -> Any:
    """Use plain steps, as where no CUDA graph can be recorded."""
    with patch.object(Leaps, "run", lambda *_: []):
        yield


def time_training(epochs: int) -> None:
    """Time whole calls of train on the nonlinear problem, with a CUDA graph and with plain steps."""
    x, y = (torch.tensor(v, dtype=torch.float32) for v in Nonlinear().sample(1000, random_state=0))
    hoods = Neighborhoods.within(x, 0.1)
    for n_draws, loss in ((1, SquaredW2()), (2, SquaredW2(True))):
        for device, name in (("cuda", "CUDA graph"), ("cuda", "plain steps")):
            times, last = [], 0.0
            for _ in range(4):
                net = RandomMLP(1, 1, 50, 2, generator=torch.Generator().manual_seed(0)).to(device)
                objective = Objective(y[:, None].to(device), hoods, loss)
                config = FitConfig(
                    max_epochs=epochs, learning_rate=0.025, schedule="constant", n_draws=n_draws
                )
                start = time.perf_counter()
                if name == "CUDA graph":
                    fit = train(net, objective, x.to(device), config)
                else:
                    with disable_graphs():
                        fit = train(net, objective, x.to(device), config)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
                last = float(np.mean(fit.losses[-50:]))
            print(
                f"{loss}, {n_draws} draw(s), {epochs} epochs, {name}: {np.median(times[1:]):.3f} s "
                f"(first of the process {times[0]:.2f} s), last loss {last:.4f}"
            )
    print("(required: at most 0.5 s)")


def time_many(epochs: int, count: int) -> None:
    """Time several seeds, and several deltas, at once and one after the other."""
    x, y = (torch.tensor(v, dtype=torch.float32).cuda() for v in Nonlinear().sample(1000, random_state=0))
    same = [Objective(y[:, None], Neighborhoods.within(x.cpu(), 0.1), SquaredW2(True))] * count
    deltas = np.linspace(0.05, 0.3, count)
    other = [
        Objective(y[:, None], Neighborhoods.within(x.cpu(), d, min_size=2), SquaredW2(True)) for d in deltas
    ]
    config = FitConfig(max_epochs=epochs)
    for name, goals in (("seeds", same), ("deltas", other)):
        for _ in range(2):  # the first prepares the balls
            nets = [RandomMLP(1, generator=torch.Generator().manual_seed(v)).cuda() for v in range(count)]
            start = time.perf_counter()
            many = train_many(nets, goals, x, config)
            together = time.perf_counter() - start
            nets = [RandomMLP(1, generator=torch.Generator().manual_seed(v)).cuda() for v in range(count)]
            start = time.perf_counter()
            alone = [
                train(net, goal, x, replace(config, seed=v))
                for v, (net, goal) in enumerate(zip(nets, goals, strict=True))
            ]
            apart = time.perf_counter() - start
        # Rounding grows later on: as soon as a pairing changes, the fits part.
        first = [np.array([fit.losses[:30] for fit in fits]) for fits in (many, alone)]
        off = float(np.abs(first[0] / first[1] - 1).max())
        print(
            f"{count} {name}, {epochs} epochs: at once {together:.2f} s, one after the other {apart:.2f} s, "
            f"ratio {apart / together:.1f}; the first 30 losses differ by {off:.1e}"
        )


def time_choice(n: int) -> None:
    """Time a whole fit with one delta, and with six to choose from by training."""
    x, y = Nonlinear().sample(n, random_state=0)
    six = [Nearest(k) for k in (12, 24, 48, 96, 192, 384)]
    for name, delta in (("one delta", six[2]), ("six deltas to choose from", six)):
        for _ in range(2):  # the first prepares the device
            start = time.perf_counter()
            model = LocalW2Regressor("network", None, delta, device="cuda", random_state=0).fit(x, y)
            taken = time.perf_counter() - start
        print(f"LocalW2Regressor, {n} rows, {name}: {taken:.2f} s, {model.delta_}")


def time_pass(n: int, rows_per_ball: int, profile: bool) -> None:
    """Time one pass over all balls of a large problem: the loss alone, and an epoch with a network."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=n))
    start = time.perf_counter()
    hoods = Neighborhoods.nearest(x, rows_per_ball)
    print(f"{hoods}: built on the CPU in {time.perf_counter() - start:.1f} s")
    y, yhat = (torch.tensor(rng.normal(size=n), dtype=torch.float32) for _ in range(2))
    objective, moved = Objective(y[:, None].cuda(), hoods), yhat[:, None].cuda()
    taken = milliseconds(lambda: value_and_gradient(objective, moved))
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"loss and gradient {taken:.1f} ms, {hoods.n_edges / taken / 1e6:.1f} G edges/s, peak {peak:.2f} GiB"
    )
    part = slice(0, 50_000)
    few = Neighborhoods.nearest(x[part], rows_per_ball)
    ours = value_and_gradient(Objective(y[part, None].cuda(), few), moved[part])
    theirs = value_and_gradient(Objective(y[part, None], few), yhat[part, None])
    print(f"relative difference from the CPU on 50 000 rows {difference(ours, theirs):.1e}")
    if profile:
        with torch.profiler.profile() as profiler:
            value_and_gradient(objective, moved)
            torch.cuda.synchronize()
        averages = profiler.key_averages()
        print(averages.table(sort_by="self_device_time_total", row_limit=14, max_name_column_width=60))
    rows = torch.tensor(x, dtype=torch.float32).cuda()[:, None]
    for epochs, n_draws, loss in ((1, 1, SquaredW2()), (10, 2, SquaredW2(True))):
        net = RandomMLP(1, 1, 50, 2, generator=torch.Generator().manual_seed(0)).cuda()
        start = time.perf_counter()
        fit = train(net, Objective(y[:, None].cuda(), hoods, loss), rows, FitConfig(epochs, n_draws=n_draws))
        torch.cuda.synchronize()
        taken = time.perf_counter() - start
        print(
            f"{loss}: train, {epochs} pass(es) over {n} rows: {taken:.2f} s in total, with preparation; "
            f"last pass {fit.history[-1]['seconds']:.3f} s (required: at most 2 s per pass)"
        )


def milliseconds(step: Callable[[], object], repeats: int = 10) -> float:
    """The median device time of a call."""
    times = []
    for _ in repeat(None, repeats + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times[3:]))


def main() -> None:
    """Compare, then time."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-per-ball", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--models", type=int, default=16, help="trained at once")
    parser.add_argument("--profile", action="store_true", help="print where the device time goes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and there is none here.")
    logging.basicConfig(level=logging.INFO)
    print(torch.cuda.get_device_name())
    compare_losses()
    compare_fits()
    time_training(options.epochs)
    time_many(options.epochs, options.models)
    time_choice(1000)
    time_pass(options.rows, options.rows_per_ball, options.profile)


if __name__ == "__main__":
    main()
