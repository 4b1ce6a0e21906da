"""An epoch of the paper's ODE problem: ours against the usual loop, in one run.

    python benchmarks/ode.py

Both sides have the paper's settings (100 trajectories, 101 times, a plain network of 2 x 100 as the field,
delta = .1, plain squared W2 at every time), the same weights, one thread, float32. The loop: rk4 on the
output grid, for each ball and each time a cost matrix and ``ot.emd2``, one backward pass, one AdamW step.
Ours: an adaptive solver, merged balls, exact assignments, one backward pass, one AdamW step. Both are timed
after some epochs of training, because the assignments of an untrained model take longer.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from localw2 import FitConfig, Neighborhoods, NetworkField, Objective, RandomODE, train
from localw2.datasets import FourStates
from naive import emd2_ball

WARM_EPOCHS = 40
TIMED_EPOCHS = 20


def rk4(field: NetworkField, y: Tensor, times: Tensor, omega: list[Tensor]) -> Tensor:
    """Classical Runge-Kutta on the output grid; the layers make their weights anew in every call."""
    path = [y]
    for h in (times[1:] - times[:-1]).tolist():
        k1 = field.net(y, omega)
        k2 = field.net(y + h / 2 * k1, omega)
        k3 = field.net(y + h / 2 * k2, omega)
        k4 = field.net(y + h * k3, omega)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(y)
    return torch.stack(path, 1)


def time_loop(
    field: NetworkField, y0: Tensor, y: Tensor, times: Tensor, hoods: Neighborhoods
) -> tuple[float, float]:
    """Seconds and loss of one epoch of the loop."""
    optimizer = torch.optim.AdamW(field.parameters(), lr=0.005, weight_decay=0.005)
    omega = field.draw(len(y0), torch.Generator().manual_seed(1))
    start = time.perf_counter()
    yhat = rk4(field, y0, times, omega)
    total = torch.zeros(())
    for row in range(len(y0)):
        near = hoods.ball(int(hoods.ball_of_row[row]))
        for k in range(len(times)):
            total = total + emd2_ball(y[near, k], yhat[near, k])
    loss = total / (len(y0) * len(times))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return time.perf_counter() - start, float(loss.detach())


def evaluate_ours(model: RandomODE, objective: Objective, y0: Tensor) -> float:
    """Our loss at the omegas of the loop."""
    with torch.no_grad():
        omega = model.draw(len(y0), torch.Generator().manual_seed(1))
        return float(objective(model(y0, omega)))


def compare(a: float) -> None:
    """Time both sides and print a line."""
    truth = FourStates(a=a)
    paths, t, _ = truth.sample(100, random_state=0)
    y, times = torch.tensor(paths, dtype=torch.float32), torch.tensor(t)
    y0 = y[:, 0].contiguous()
    field = NetworkField(4, 100, 2, residual=False, generator=torch.Generator().manual_seed(0))
    model = RandomODE(field, times)
    hoods = Neighborhoods.within(y0, 0.1)
    objective = Objective(y, hoods)
    fit = train(model, objective, y0, FitConfig(WARM_EPOCHS + TIMED_EPOCHS, 0.005, 0.005, "constant", 1))
    ours = float(np.median([entry["seconds"] for entry in fit.history[WARM_EPOCHS:]]))
    value = evaluate_ours(model, objective, y0)
    loop, loop_value = time_loop(field, y0, y, times, hoods)
    rows = float(hoods.row_sizes().double().mean())
    print(
        f"a = {a:3}: {rows:6.1f} rows per ball, loop {loop * 1e3:9.0f} ms, ours {ours * 1e3:7.1f} ms, "
        f"ratio {loop / ours:6.0f}, relative difference of the losses {abs(value / loop_value - 1):.1e}",
        flush=True,
    )


def main() -> None:
    """Compare on equal and on spread initial states."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for a in (0.0, 0.1):
            compare(a)


if __name__ == "__main__":
    main()
