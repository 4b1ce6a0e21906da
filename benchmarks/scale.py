"""Time and memory of training against the number of rows: 1e3 to 1e7 rows of 8 columns, balls of 64 rows.

    python benchmarks/scale.py [--max-rows 1e6] [--device cpu] [--balls 32] [--block 1]
    python benchmarks/scale.py --fit [--base auto] [--max-rows 1e6]
    python benchmarks/scale.py --batches [--picture docs/how-to/scale_batches.png]

The first form times steps of ``train`` on lazy balls (32 per step, with a neighbour search in every step) for
the 50 x 2 network with 4 draws, and scales them to an epoch, which sees each ball once. ``--fit`` times whole
fits of ``LocalW2Regressor`` with its defaults. ``--batches`` shows how the error depends on the balls per
step for an equal total number of balls. Each case runs in its own process, so that peak memory is measured
separately. On a shared CPU, processor seconds (over all threads) are the reliable ones.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from localw2 import (
    FitConfig,
    LazyNeighborhoods,
    LocalW2Regressor,
    Network,
    Objective,
    RandomMLP,
    SquaredW2,
    train,
)
from localw2._validation import Array
from localw2.training.batches import BallStream
from localw2.training.distributed import Crew

COLUMNS, BALL, DRAWS = 8, 64, 4
BATCHES = (8, 32, 128, 512)
TEST_ROWS = 4000


@dataclass(frozen=True)
class Rows:
    """Rows of a problem whose mean and standard deviation are known."""

    x: Array
    y: Array
    mean: Array
    std: Array


def sample(n: int, seed: int) -> Rows:
    """A nonlinear mean with an interaction and a varying spread, in 4 of 8 columns."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, COLUMNS), dtype=np.float32)
    mean = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    std = 0.3 + 0.7 / (1 + np.exp(-2 * x[:, 3]))
    return Rows(x, mean + std * rng.standard_normal(n, dtype=np.float32), mean, std)


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def time_steps(n: int, device: str, n_steps: int, balls: int, block: int) -> dict[str, Any]:
    """Seconds of the preparation and of a step, rows per second, and memory."""
    imported = peak_mb()
    data = sample(n, 0)
    start = time.perf_counter()
    x = torch.from_numpy(data.x).to(device)
    y = torch.from_numpy(data.y)[:, None].to(device)
    hoods = LazyNeighborhoods.nearest(data.x, BALL, slack=1.0)
    objective = Objective(y, hoods, SquaredW2(debiased=True))
    size = min(balls, n)
    stream = BallStream(
        objective, x, FitConfig(batch_balls=size, epoch_balls=size, block_balls=block), Crew()
    )
    rows = next(stream.batches(0)).rows
    assert rows is not None
    stream.close()
    built = time.perf_counter() - start  # the first batch makes the tree
    net = RandomMLP(COLUMNS, 1, 50, 2, generator=torch.Generator().manual_seed(0)).to(device)

    def config(count: int) -> FitConfig:
        return FitConfig(
            max_epochs=count, batch_balls=size, epoch_balls=size, block_balls=block, n_draws=DRAWS, seed=count
        )

    train(net, objective, x, config(3))  # loads and allocates what the first steps need
    start, cpu = time.perf_counter(), time.process_time()
    train(net, objective, x, config(n_steps))
    wall, cpu = (time.perf_counter() - start) / n_steps, (time.process_time() - cpu) / n_steps
    return {
        "rows": n, "build": built, "step": wall, "step_cpu": cpu, "simulated": len(rows), "balls": size,
        "peak_mb": peak_mb(), "import_mb": imported,
    }  # fmt: skip


def measure_errors(model: LocalW2Regressor) -> tuple[float, float]:
    """Root mean square errors of the mean and of the standard deviation on new rows."""
    test = sample(TEST_ROWS, 1)
    mean, std = model.predict(test.x, return_std=True)
    return float(np.sqrt(((mean - test.mean) ** 2).mean())), float(np.sqrt(((std - test.std) ** 2).mean()))


def time_fit(n: int, device: str, base: str, **settings: Any) -> dict[str, Any]:
    """Seconds, memory and errors of a whole fit of a network with these settings."""
    imported = peak_mb()
    data = sample(n, 0)
    start, cpu = time.perf_counter(), time.process_time()
    mean_of = None if base == "none" else base
    model = LocalW2Regressor(Network(**settings), mean_of, device=device, random_state=0).fit(data.x, data.y)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = peak_mb()  # prediction needs further memory
    mean, std = measure_errors(model)
    return {
        "rows": n, "seconds": wall, "cpu": cpu, "training": model.fit_.seconds, "plan": str(model.plan_),
        "balls": str(model.delta_), "base": model.base_name_, "mean_error": mean, "std_error": std,
        "peak_mb": peak, "import_mb": imported,
    }  # fmt: skip


def run_alone(**case: Any) -> dict[str, Any]:
    """Run one case in its own process."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def fit_exponent(rows: list[float], seconds: list[float]) -> float:
    """The slope of log seconds against log rows."""
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])


def show_steps(sizes: list[int], device: str, **settings: int) -> None:
    """Print the table of steps, and how an epoch grows."""
    print("      rows  prepare s  step ms   (CPU)   rows/s   epoch s  peak MB")
    found = []
    key = "step" if device == "cuda" else "step_cpu"
    for n in sizes:
        case = run_alone(kind="steps", n=n, device=device, **settings)
        case["epoch"] = case[key] * n / case["balls"]
        found.append(case)
        print(
            f"{n:>10}{case['build']:>11.2f}{1e3 * case['step']:>9.0f}{1e3 * case['step_cpu']:>8.0f}"
            f"{case['simulated'] / case[key]:>9.0f}{case['epoch']:>10.1f}{case['peak_mb']:>9.0f}",
            flush=True,
        )
    clock = "wall" if device == "cuda" else "processor"
    print(f"(rows/s and epoch in {clock} seconds; importing takes {found[0]['import_mb']:.0f} MB)")
    some = [case for case in found if 10**4 <= case["rows"] <= 10**6]
    if len(some) > 1:
        slope = fit_exponent([c["rows"] for c in some], [c["epoch"] for c in some])
        print(f"growth of an epoch from {some[0]['rows']:.0e} to {some[-1]['rows']:.0e} rows: N^{slope:.2f}")


def show_fits(sizes: list[int], device: str, base: str) -> None:
    """Print the table of whole fits."""
    print("      rows  seconds   (CPU)  training  peak MB  error of mean, SD  what was used")
    for n in sizes:
        case = run_alone(kind="fit", n=n, device=device, base=base)
        print(
            f"{n:>10}{case['seconds']:>9.0f}{case['cpu']:>8.0f}{case['training']:>10.0f}"
            f"{case['peak_mb']:>9.0f}{case['mean_error']:>12.3f}{case['std_error']:>7.3f}  "
            f"{case['balls']}, base {case['base']}, {case['plan']}",
            flush=True,
        )


def show_batches(n: int, device: str, picture: str) -> None:
    """Print errors against the balls per step for two lengths of a fit, each at equal cost."""
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for epochs in (25, 100):
        print(f"{epochs} epochs: balls per step, error of the mean, error of the SD, CPU seconds")
        for balls in BATCHES:
            case = run_alone(kind="fit", n=n, device=device, base="none", batch_balls=balls, epochs=epochs)
            mean, std = case["mean_error"], case["std_error"]
            lines.setdefault(f"{epochs} epochs", []).append((balls, mean, std))
            print(f"{balls:>6}{mean:>9.3f}{std:>9.3f}{case['cpu']:>8.0f}  {case['plan']}", flush=True)
    if picture:
        draw_errors(lines, n, picture)


def draw_errors(lines: dict[str, list[tuple[int, float, float]]], n: int, picture: str) -> None:
    """Draw the errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for words, points in lines.items():
        balls = [p[0] for p in points]
        for panel, column in zip(panels, (1, 2), strict=True):
            panel.plot(balls, [p[column] for p in points], "o-", label=words)
    for panel, name in zip(panels, ("mean", "standard deviation"), strict=True):
        panel.set(xscale="log", xlabel="balls per step", ylabel=f"error of the {name}", ylim=(0, None))
        panel.set_xticks(BATCHES, [str(b) for b in BATCHES])
        panel.minorticks_off()
    panels[0].legend(frameon=False)
    figure.suptitle(f"{n:,} rows: the error against the batch".replace(",", " "), fontsize=11)
    figure.savefig(picture, dpi=120)


def main() -> None:
    """Run the chosen form."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--max-rows", type=float, default=1e6)
    parser.add_argument("--min-rows", type=float, default=1e3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=60, help="how many steps to time")
    parser.add_argument("--balls", type=int, default=32, help="balls per step")
    parser.add_argument("--block", type=int, default=1, help="neighbouring balls drawn together")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--base", choices=["none", "auto"], default="none")
    parser.add_argument("--batches", action="store_true")
    parser.add_argument("--picture", default="")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        case = json.loads(options.case)
        run: Callable[..., dict[str, Any]] = time_steps if case.pop("kind") == "steps" else time_fit
        print(json.dumps(run(**case)))
        return
    low, high = np.log10([options.min_rows, options.max_rows])
    sizes = [round(10**power) for power in np.arange(low, high + 1e-9)]
    if options.batches:
        show_batches(round(options.max_rows), options.device, options.picture)
    elif options.fit:
        show_fits(sizes, options.device, options.base)
    else:
        show_steps(sizes, options.device, n_steps=options.steps, balls=options.balls, block=options.block)


if __name__ == "__main__":
    main()
