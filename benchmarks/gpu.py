"""The loss on a CUDA device: equal to the CPU's, and how long value and gradient take.

    python benchmarks/gpu.py [--rows 100000] [--rows-a-ball 1000] [--profile]

First every discrepancy is compared with the CPU in float64; then the squared W2 of one output is timed in
float32 on about rows x rows-a-ball edges, eagerly and replayed as a CUDA graph, and compared with the CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from localw2 import MMD, MSE, EnergyScore, MeanVar, Neighborhoods, Objective, SlicedW2, SquaredW2


def value_and_gradient(objective: Objective, yhat: Tensor) -> tuple[Tensor, Tensor]:
    """One training step's worth of loss."""
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


def compare_all() -> None:
    """Every discrepancy, one and two outputs, draws and times, against the CPU."""
    rng = np.random.default_rng(0)
    hoods = Neighborhoods.within(rng.uniform(size=300), 0.05, min_size=2)
    losses = (
        SquaredW2(),
        SquaredW2(True),
        SlicedW2(8),
        SlicedW2(8, True),
        MMD(),
        MSE(),
        MeanVar(),
        EnergyScore(),
    )
    for d in (1, 2):
        y = torch.tensor(rng.normal(size=(300, 3, d)))
        yhat = torch.tensor(rng.normal(size=(2, 300, 3, d)))
        for loss in losses:
            cpu = value_and_gradient(Objective(y, hoods, loss), yhat)
            gpu = value_and_gradient(Objective(y.cuda(), hoods, loss), yhat.cuda())
            print(f"  d = {d}, {loss!s:50} relative difference from the CPU {difference(gpu, cpu):.1e}")


def milliseconds(step: Callable[[], object], repeats: int = 10) -> float:
    """The median device time of a call."""
    times = []
    for _ in range(repeats + 3):
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
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rows-a-ball", type=int, default=1000)
    parser.add_argument("--profile", action="store_true", help="print where the device time goes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; this benchmark needs one.")
    print(torch.cuda.get_device_name())
    compare_all()

    rng = np.random.default_rng(0)
    x = rng.uniform(size=options.rows)
    y = torch.tensor(rng.normal(size=options.rows), dtype=torch.float32)
    yhat = torch.tensor(rng.normal(size=options.rows), dtype=torch.float32)
    start = time.perf_counter()
    hoods = Neighborhoods.within(x, options.rows_a_ball / options.rows / 2)
    print(f"{hoods}: built in {time.perf_counter() - start:.1f} s")
    print(f"{float(hoods.row_sizes().sum()):.3g} edges before identical balls were merged")
    start = time.perf_counter()
    host = Objective(y, hoods)
    host(yhat)
    start = time.perf_counter()
    expected = value_and_gradient(host, yhat)
    on_host = (time.perf_counter() - start) * 1e3
    device, moved = Objective(y.cuda(), hoods), yhat.cuda()
    eager = milliseconds(lambda: value_and_gradient(device, moved))
    print(f"CPU {on_host:.0f} ms, GPU eager {eager:.2f} ms, {hoods.n_edges / eager / 1e6:.1f} G edges/s")
    print(f"relative difference from the CPU {difference(value_and_gradient(device, moved), expected):.1e}")
    print(f"peak device memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            value_and_gradient(device, moved)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = value_and_gradient(device, moved)
    replay = milliseconds(graph.replay)
    print(f"CUDA graph {replay:.2f} ms, difference {difference(result, expected):.1e}")
    for n, delta in ((1000, 0.1), (2000, 0.1), (20_000, 0.01)):
        small = Neighborhoods.within(x[:n], delta)
        objective, part = Objective(y[:n].cuda(), small), moved[:n]
        taken = milliseconds(partial(value_and_gradient, objective, part))
        print(f"N = {n}, {small.n_edges:.2g} edges: {taken:.2f} ms eager")
    if options.profile:
        with torch.profiler.profile() as profile:
            value_and_gradient(device, moved)
            torch.cuda.synchronize()
        print(
            profile.key_averages().table(
                sort_by="self_device_time_total", row_limit=14, max_name_column_width=60
            )
        )


if __name__ == "__main__":
    main()
