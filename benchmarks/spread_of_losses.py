"""Which spread a loss prefers, and how surely, for many outputs and few rows per ball.

    python benchmarks/spread_of_losses.py [--outputs 2 25] [--rows 5 20 64] [--balls 40] [--tables 20]

y is standard normal with d outputs, all independent; the model is s times a standard normal, and s minimises
the loss of a table of ``--balls`` balls. Prints the mean over tables of the best s, which is 1 for a loss
without bias, and its SD, which is smaller for a loss that sees more in the same rows. A second model has the
right variances and the correlation r between neighbouring outputs, where the truth is .5: the same for r.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from localw2 import EnergyScore, Neighborhoods, Objective, Sinkhorn, SlicedW2, SquaredW2
from localw2.losses.discrepancies import Discrepancy

LOSSES: dict[str, Discrepancy] = {
    "W2 as published": SquaredW2(),
    "W2 debiased": SquaredW2(debiased=True),
    "sliced W2 debiased": SlicedW2(debiased=True),
    "Sinkhorn, epsilon .1": Sinkhorn(0.1),
    "Sinkhorn, .1, debiased": Sinkhorn(0.1, debiased=True),
    "Sinkhorn, 1, debiased": Sinkhorn(1.0, debiased=True),
    "energy score": EnergyScore(),
}
DRAWS = 2
TRUE_CORRELATION = 0.5


def correlate(z: Tensor, r: float) -> Tensor:
    """Neighbouring outputs with correlation r, and r^k between outputs that are k apart; variances stay 1."""
    parts = [z[..., 0]]
    for k in range(1, z.shape[-1]):
        parts.append(r * parts[-1] + (1 - r**2) ** 0.5 * z[..., k])
    return torch.stack(parts, -1)


def find_best(
    loss: Callable[[Tensor], Tensor], model: Callable[[float], Tensor], low: float, high: float
) -> float:
    """The parameter of the model that minimises the loss."""
    options = {"xatol": 1e-3}
    found = minimize_scalar(
        lambda v: float(loss(model(v))), bounds=(low, high), method="bounded", options=options
    )
    return float(found.x)


def main() -> None:
    """Print a line for each loss, number of outputs and number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outputs", type=int, nargs="+", default=[2, 25])
    parser.add_argument("--rows", type=int, nargs="+", default=[5, 20, 64], help="of each ball")
    parser.add_argument("--balls", type=int, default=40, help="of each table (default 40)")
    parser.add_argument("--tables", type=int, default=20, help="simulated (default 20)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for d in options.outputs:
        for rows in options.rows:
            n = options.balls * rows
            hoods = Neighborhoods.within(np.repeat(np.arange(options.balls), rows), 0.5)
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in LOSSES}
            for table in range(options.tables):
                z = torch.from_numpy(np.random.default_rng([table, d, rows]).normal(size=(DRAWS + 1, n, d)))
                for name, discrepancy in LOSSES.items():
                    draws = z[1 : 1 + discrepancy.min_draws]
                    plain = Objective(z[0], hoods, discrepancy)
                    scale = find_best(plain, partial(torch.mul, draws), 0.0, 2.0)
                    linked = Objective(correlate(z[0], TRUE_CORRELATION), hoods, discrepancy)
                    r = find_best(linked, partial(correlate, draws), -0.95, 0.95)
                    found[name].append((scale, r))
            for name, values in found.items():
                (s, r), (s_sd, r_sd) = np.mean(values, 0), np.std(values, 0, ddof=1)
                print(
                    f"{d:3d} outputs, {rows:3d} rows  {name:<24} s {s:.3f} (SD {s_sd:.3f})   "
                    f"correlation {r:.3f} (SD {r_sd:.3f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
