"""Sinkhorn divergence of many balls with its gradient: ours in one call, and a loop of GeomLoss calls.

    python benchmarks/sinkhorn.py [--balls 1000] [--rows 64] [--outputs 25] [--epsilon .1] [--rough .001]
        [--loop 200] [--device cpu]

Needs ``pip install geomloss``. Ours is timed in single and in double precision with the default tolerance,
and in double with ``--rough``, a larger one. Values and gradients are compared, too, with ours at a tolerance
of 1e-9. GeomLoss has the cost |u - v|^2 / 2 and cools epsilon by a factor from step to step, with one step at
the last one: its default factor leaves an error (which is printed), and one near 1 takes many steps. Times
are of the processor, or of the clock on a GPU; a loop over ``--loop`` balls is scaled up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from localw2 import Neighborhoods, Objective, Sinkhorn


def measure(compute: Callable[[], Tensor], yhat: Tensor, repeats: int = 3) -> tuple[float, Tensor, Tensor]:
    """The least seconds of value and gradient, and both."""
    clock = time.perf_counter if yhat.is_cuda else time.process_time
    seconds = []
    for _ in range(repeats):
        yhat.grad = None
        if yhat.is_cuda:
            torch.cuda.synchronize()
        start = clock()
        value = compute()
        value.backward()
        if yhat.is_cuda:
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    assert yhat.grad is not None
    return min(seconds), value.detach(), yhat.grad.clone()


def loop_over(losses: list[Callable[[Tensor, Tensor], Tensor]], y: Tensor, yhat: Tensor) -> Tensor:
    """The mean over balls, one call for each."""
    values = [loss(a, b) for loss, a, b in zip(losses, y, yhat, strict=False)]
    return 2 * torch.stack(values).mean()


def main() -> None:
    """Print seconds, ratios and differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--balls", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=64, help="of each ball (default 64)")
    parser.add_argument("--outputs", type=int, default=25)
    parser.add_argument("--epsilon", type=float, default=0.1)
    parser.add_argument("--rough", type=float, default=0.001, help="the larger tolerance (default 0.001)")
    parser.add_argument("--loop", type=int, default=200, help="balls that GeomLoss is timed on (default 200)")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    from geomloss import SamplesLoss

    torch.set_num_threads(1)
    balls, rows, loop = options.balls, options.rows, min(options.loop, options.balls)
    generator = torch.Generator().manual_seed(0)
    shape = balls, rows, options.outputs
    y, yhat = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    y, yhat = y.to(options.device), 1.2 * yhat.to(options.device)
    hoods = Neighborhoods.within(torch.arange(balls).repeat_interleave(rows).double(), 0.5)
    print(f"{balls} balls of {rows} rows, {options.outputs} outputs, epsilon {options.epsilon}")

    def solve(tolerance: float, precision: torch.dtype) -> tuple[float, Tensor, Tensor, Objective]:
        observed, draws = y.to(precision), yhat.to(precision, copy=True).requires_grad_()
        bound = Objective(observed.flatten(0, 1), hoods, Sinkhorn(options.epsilon, tolerance=tolerance))
        return *measure(lambda: bound(draws.flatten(0, 1)), draws), bound

    _, value, slope, objective = solve(1e-9, torch.float64)
    ours = {}
    for precision, tolerance in (
        (torch.float32, Sinkhorn().tolerance),
        (torch.float64, Sinkhorn().tolerance),
        (torch.float64, options.rough),
    ):
        seconds, found, its_slope, _ = solve(tolerance, precision)
        ours[precision, tolerance] = seconds
        off = float((found.double() / value - 1).abs())
        gap = float((its_slope - slope).norm() / slope.norm())
        print(
            f"localw2, {name(precision)}, tolerance {tolerance:g}: {seconds:.3f} s, value off by {off:.1e}, "
            f"gradient by {gap:.1e}"
        )

    few = objective.block(torch.arange(loop))[1]
    value = few(yhat[:loop].flatten(0, 1))
    slope = slope[:loop] * balls / loop  # of the mean over these balls
    # Epsilon is in units of the mean squared distance inside y; GeomLoss halves costs, and takes the root.
    blurs = [float((options.epsilon * one.var(0, correction=0).sum()).sqrt()) for one in y[:loop]]
    for precision, scaling in ((torch.float32, 0.5), *((torch.float64, one) for one in (0.5, 0.9, 0.99))):
        losses = [SamplesLoss(p=2, blur=blur, scaling=scaling, backend="tensorized") for blur in blurs]
        observed, draws = y[:loop].to(precision), yhat[:loop].to(precision, copy=True).requires_grad_()
        repeats = 3 if scaling == 0.5 else 1
        theirs, their_value, their_slope = measure(
            partial(loop_over, losses, observed, draws), draws, repeats
        )
        off = float((their_value.double() / value - 1).abs())
        gap = float((their_slope - slope).norm() / slope.norm())
        seconds = theirs * balls / loop
        ratios = [f"{seconds / one:.0f}" for (own, _), one in ours.items() if own == precision]
        print(
            f"GeomLoss, {name(precision)}, scaling {scaling}: {seconds:.1f} s for as many "
            f"({' and '.join(ratios)} times ours), value off by {off:.1e}, gradient by {gap:.1e}"
        )


def name(precision: torch.dtype) -> str:
    """That of a precision without its module."""
    return str(precision).removeprefix("torch.")


if __name__ == "__main__":
    main()
