"""How well LocalW2SDE recovers drift, diffusion and jumps, beside likelihood, the published loss and peers.

Run: python benchmarks/accuracy_sde.py [--seeds 5] [--first 0] [--problems ou cir gbm jumps well random bands]
                                       [--printed 5] [--device cpu]

Errors of drift and diffusion are relative L2 errors over the central 80 % of the observed states (of each
state), on an even grid. "likelihood" is maximum likelihood with the true parametric form; "printed" is the
loss without debiasing, in balls of 20 rows, on as many seeds as --printed says. Seconds are of the processor
(of the clock on a GPU). On the double well kramersmoyal and jumpdiff estimate from the
same path, if they are installed.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize, special

from localw2 import LocalW2SDE, LogNormal, Shared

Array = np.ndarray[Any, Any]
DEVICE = {"name": "cpu"}  # that of all fits, see --device
BARS = {
    "ou": "drift 8 %, diffusion 5 %",
    "cir": "drift 8 %, diffusion 5 %",
    "gbm": "drift 10 %, diffusion 10 %",
    "jumps": "rate, mean and SD of jumps 15 %, diffusion 10 %",
    "well": "zeros of the drift .05, diffusion 5 %",
    "random": "mean and SD of theta 10 %",
    "bands": "90 % of the states",
}


def ornstein_uhlenbeck(
    seed: int, n: int = 400, theta: Any = 1.0, sigma: float = 0.5, span: float = 10.0
) -> Any:
    """Exact paths of dY = -theta Y dt + sigma dW at 50 times, from the stationary law of theta = 1."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, span, 50)
    decay = np.exp(-np.asarray(theta) * t[1])
    std = sigma * np.sqrt((1 - decay**2) / (2 * np.asarray(theta)))
    y = np.empty((n, 50))
    y[:, 0] = rng.normal(0, sigma / np.sqrt(2), n)
    for j in range(1, 50):
        y[:, j] = y[:, j - 1] * decay + std * rng.normal(size=n)
    return y[..., None], t


def cox_ingersoll_ross(seed: int, n: int = 400, k: float = 1.0, m: float = 1.0, sigma: float = 0.5) -> Any:
    """Exact paths of dY = k (m - Y) dt + sigma sqrt(Y) dW, stationary."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 10, 50)
    scale = sigma**2 * (1 - np.exp(-k * t[1])) / (4 * k)
    y = np.empty((n, 50))
    y[:, 0] = rng.gamma(2 * k * m / sigma**2, sigma**2 / (2 * k), n)
    for j in range(1, 50):
        y[:, j] = scale * rng.noncentral_chisquare(
            4 * k * m / sigma**2, y[:, j - 1] * np.exp(-k * t[1]) / scale
        )
    return y[..., None], t


MU, VOLATILITY = np.array([0.2, -0.2]), np.array([0.2, 0.2])


def geometric_brownian(seed: int, n: int = 400) -> Any:
    """Exact paths of dY = mu Y dt + v Y dW in two states, from log-normal starts, over 5 units of time."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 5, 50)
    steps = (MU - VOLATILITY**2 / 2) * t[1] + VOLATILITY * np.sqrt(t[1]) * rng.normal(size=(n, 50, 2))
    steps[:, 0] = 0.3 * rng.normal(size=(n, 2))
    return np.exp(np.cumsum(steps, 1)), t


JUMP = {"rate": 1.0, "mean": 0.6, "std": 0.3}


def jump_diffusion(seed: int, n: int = 400, theta: float = 1.0, sigma: float = 0.3) -> Any:
    """dY = -theta Y dt + sigma dW + J dN, with normal J, in steps of a twentieth of the lag."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 10, 50)
    h = t[1] / 20
    state = rng.normal(0, 0.5, n) + JUMP["rate"] * JUMP["mean"] / theta
    paths = [state]
    decay, std = np.exp(-theta * h), sigma * np.sqrt((1 - np.exp(-2 * theta * h)) / (2 * theta))
    for _ in range(49):
        for _ in range(20):
            count = rng.poisson(JUMP["rate"] * h, n)
            jump = count * JUMP["mean"] + np.sqrt(count) * JUMP["std"] * rng.normal(size=n)
            state = state * decay + std * rng.normal(size=n) + jump
        paths.append(state)
    return np.stack(paths, 1)[..., None], t


def double_well(seed: int, n: int = 5000, sigma: float = 0.5, lag: float = 0.4) -> Any:
    """One path of dY = (Y - Y^3) dt + sigma dW, in steps of a fiftieth of the lag."""
    rng = np.random.default_rng(seed)
    h = lag / 50
    noise = sigma * np.sqrt(h) * rng.normal(size=(n, 50))
    y, state = np.empty(n), 1.0
    for j in range(n):
        y[j] = state
        for z in noise[j]:
            state = state + (state - state**3) * h + z
    return y[None, :, None], lag * np.arange(n)


def seconds() -> float:
    """The time: of the processor, or of the clock where another device works."""
    return time.process_time() if DEVICE["name"] == "cpu" else time.perf_counter()


def grid_errors(
    model: Any, Y: Array, drift: Callable[[Array], Array], diffusion: Callable[[Array], Array]
) -> Any:
    """Relative L2 errors of drift and diffusion over the central 80 % of the states."""
    flat = Y.reshape(-1, Y.shape[-1])
    axes = [span(flat[:, j], 0.1, 0.9, 200 if flat.shape[1] == 1 else 25) for j in
            range(flat.shape[1])]  # fmt: skip
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, flat.shape[1])
    return relative(model.drift(grid), drift(grid)), relative(model.diffusion(grid), diffusion(grid))


def span(values: Array, low: float, high: float, count: int) -> Array:
    """An even grid between two quantiles."""
    a, b = np.quantile(values, [low, high])
    return np.linspace(float(a), float(b), count)


def relative(found: Array, true: Array) -> float:
    """Relative L2 error."""
    return float(np.sqrt(((found - true) ** 2).mean() / (true**2).mean()))


def solve_smooth(seed: int, kind: str, printed: bool) -> dict[str, float]:
    """OU, CIR and geometric Brownian motion: errors of ours, of the likelihood, and of the published loss."""
    Y, t = {"ou": ornstein_uhlenbeck, "cir": cox_ingersoll_ross, "gbm": geometric_brownian}[kind](seed)
    drift, diffusion = {
        "ou": (lambda y: -y, lambda y: 0.5 + 0 * y),
        "cir": (lambda y: 1 - y, lambda y: 0.5 * np.sqrt(np.maximum(y, 0))),
        "gbm": (lambda y: MU * y, lambda y: VOLATILITY * y),
    }[kind]
    bounds = None if kind == "ou" else (0, None)
    start = seconds()
    model = LocalW2SDE(bounds=bounds, device=DEVICE["name"], random_state=seed).fit(Y, t)
    taken = seconds() - start
    a, b = grid_errors(model, Y, drift, diffusion)
    found = {"drift": a, "diffusion": b, "seconds": taken}
    x, y, h = Y[:, :-1].reshape(-1, Y.shape[2]), Y[:, 1:].reshape(-1, Y.shape[2]), t[1]
    if kind == "ou":
        slope = (x * y).sum() / (x * x).sum()
        theta = -np.log(slope) / h
        std = np.sqrt(((y - slope * x) ** 2).mean() * 2 * theta / (1 - slope**2))
        found |= {"likelihood drift": abs(theta - 1), "likelihood diffusion": abs(std / 0.5 - 1)}
    elif kind == "cir":
        k, m, s = fit_cir(x[:, 0], y[:, 0], h)
        grid = span(x, 0.1, 0.9, 200)
        found["likelihood drift"] = relative(k * (m - grid), 1 - grid)
        found["likelihood diffusion"] = abs(s / 0.5 - 1)
    else:
        steps = np.log(y / x)
        v = steps.std(0) / np.sqrt(h)
        mu = steps.mean(0) / h + v**2 / 2
        grid = np.quantile(x, np.linspace(0.1, 0.9, 9), axis=0)
        found["likelihood drift"] = relative(mu * grid, MU * grid)
        found["likelihood diffusion"] = relative(v * grid, VOLATILITY * grid)
    if printed:
        for k_rows in (20,):
            other = LocalW2SDE(
                bounds=bounds,
                debiased=False,
                ball_rows=k_rows,
                n_draws=1,
                device=DEVICE["name"],
                random_state=seed,
            )
            a, b = grid_errors(other.fit(Y, t), Y, drift, diffusion)
            found |= {f"printed {k_rows} drift": a, f"printed {k_rows} diffusion": b}
    return found


def fit_cir(x: Array, y: Array, h: float) -> Array:
    """Maximum likelihood of Gaussian transitions with the exact mean and variance."""

    def loss(log: Array) -> float:
        k, m, s = np.exp(log)
        e = np.exp(-k * h)
        variance = x * s**2 / k * (e - e**2) + m * s**2 / (2 * k) * (1 - e) ** 2
        return float((np.log(variance) + (y - m - (x - m) * e) ** 2 / variance).sum())

    found: Array = np.exp(optimize.minimize(loss, np.log([1.0, 1.0, 0.5]), method="Nelder-Mead").x)
    return found


def solve_jumps(seed: int, printed: bool) -> dict[str, float]:
    """A jump-diffusion with constant rate and normal jumps; drift and diffusion are networks."""
    Y, t = jump_diffusion(seed)
    start = seconds()
    model = LocalW2SDE(jumps="normal", device=DEVICE["name"], random_state=seed).fit(Y, t)
    found = {"seconds": seconds() - start}
    a, b = grid_errors(model, Y, lambda y: -y, lambda y: 0.3 + 0 * y)
    found |= {"drift": a, "diffusion": b, "rate": abs(model.jump_rate_ / JUMP["rate"] - 1)}
    found["jump mean"] = abs(float(model.jump_mean_[0]) / JUMP["mean"] - 1)
    found["jump std"] = abs(float(model.jump_std_[0]) / JUMP["std"] - 1)
    if printed:
        other = LocalW2SDE(
            jumps="normal", debiased=False, ball_rows=20, n_draws=1, device=DEVICE["name"], random_state=seed
        )
        other.fit(Y, t)
        found["printed 20 diffusion"] = grid_errors(other, Y, lambda y: -y, lambda y: 0.3 + 0 * y)[1]
        found["printed 20 rate"] = abs(other.jump_rate_ / JUMP["rate"] - 1)
    return found


def zeros_of(values: Array, grid: Array) -> Array:
    """Where a function on a grid changes its sign, nearest to -1, 0 and 1."""
    at = np.flatnonzero(np.sign(values[1:]) != np.sign(values[:-1]))
    if len(at) == 0:
        return np.full(3, np.inf)
    zeros = grid[at] - values[at] * np.diff(grid)[at] / np.diff(values)[at]
    return np.array([zeros[np.abs(zeros - z).argmin()] for z in (-1.0, 0.0, 1.0)])


def solve_well(seed: int, printed: bool) -> dict[str, float]:
    """One long path of a double well."""
    Y, t = double_well(seed)
    path, lag = Y[0, :, 0], t[1]
    grid = span(path, 0.02, 0.98, 400)
    middle = span(path, 0.1, 0.9, 200)
    start = seconds()
    model = LocalW2SDE(device=DEVICE["name"], random_state=seed).fit(Y, t)
    found = {"seconds": seconds() - start}
    found["zeros"] = float(np.abs(zeros_of(model.drift(grid)[:, 0], grid) - [-1, 0, 1]).max())
    found["diffusion"] = relative(model.diffusion(middle)[:, 0], np.full(200, 0.5))
    x, dy = path[:-1], np.diff(path)
    cubic = np.linalg.lstsq(np.stack([x**3, x**2, x, x**0], 1), dy / lag, rcond=None)[0]
    found["cubic regression zeros"] = float(
        np.abs(zeros_of(np.polyval(cubic, grid), grid) - [-1, 0, 1]).max()
    )
    rest = dy - np.polyval(cubic, x) * lag
    found["cubic regression diffusion"] = abs(float(np.sqrt((rest**2).mean() / lag)) / 0.5 - 1)
    for name, moments in peers().items():
        edges, first, second = moments(path, lag)
        kept = (edges > middle[0]) & (edges < middle[-1])
        wide = (edges > grid[0]) & (edges < grid[-1])
        found[f"{name} zeros"] = float(np.abs(zeros_of(first[wide], edges[wide]) - [-1, 0, 1]).max())
        found[f"{name} diffusion"] = relative(np.sqrt(second[kept]), np.full(int(kept.sum()), 0.5))
    if printed:
        other = LocalW2SDE(
            debiased=False, ball_rows=20, n_draws=1, device=DEVICE["name"], random_state=seed
        ).fit(Y, t)
        found["printed 20 diffusion"] = relative(other.diffusion(middle)[:, 0], np.full(200, 0.5))
    return found


def peers() -> dict[str, Callable[[Array, float], tuple[Array, Array, Array]]]:
    """Estimators of the first two moments of increments that are installed: (states, drift, diffusion^2)."""
    found: dict[str, Any] = {}
    try:
        km = importlib.import_module("kramersmoyal").km

        def by_kernels(path: Array, lag: float) -> tuple[Array, Array, Array]:
            moments, edges = km(
                path[:, None], bins=np.array([200]), powers=np.array([[0], [1], [2]]), bw=0.15
            )
            # Its coefficients are moments divided by the factorial of the power.
            return edges[0], moments[1] / lag, 2 * moments[2] / lag

        found["kramersmoyal"] = by_kernels
    except ImportError:
        print("kramersmoyal is not installed and left out.")
    try:
        jd = importlib.import_module("jumpdiff")

        def by_moments(path: Array, lag: float) -> tuple[Array, Array, Array]:
            edges, moments = jd.moments(path, bw=0.15, lag=[1])
            return edges[:, 0] if edges.ndim == 2 else edges, moments[1, :, 0] / lag, moments[2, :, 0] / lag

        found["jumpdiff"] = by_moments
    except ImportError:
        print("jumpdiff is not installed and left out.")
    return found


def solve_random(seed: int, printed: bool) -> dict[str, float]:
    """OU paths whose theta is log-normal with mean 1 and SD .5, over 20 units of time."""
    log = np.sqrt(np.log(1.25))
    theta = np.exp(np.random.default_rng([seed, 1]).normal(-(log**2) / 2, log, 400))
    Y, t = ornstein_uhlenbeck(seed, theta=theta, span=20.0)
    start = seconds()
    model = LocalW2SDE(
        lambda t, y, theta: -theta * y,
        lambda t, y, sigma: sigma,
        parameters={"theta": LogNormal(0.7, 0.3), "sigma": Shared(0.7)},
        device=DEVICE["name"],
        random_state=seed,
    ).fit(Y, t)
    found = {"seconds": seconds() - start}
    law = model.parameters_
    found |= {"mean": abs(law.mean["theta"] - 1), "std": abs(law.std["theta"] / 0.5 - 1)}
    found |= {"sigma": abs(law.mean["sigma"] / 0.5 - 1)}
    mean, std = fit_random(Y[..., 0], t[1])
    found |= {"likelihood mean": abs(mean - 1), "likelihood std": abs(std / 0.5 - 1)}
    # What one would have if every theta were known.
    found |= {"known mean": abs(theta.mean() - 1), "known std": abs(theta.std() / 0.5 - 1)}
    return found


def solve_bands(seed: int, printed: bool) -> dict[str, float]:
    """At which part of the states nominal 90 % bands of an OU process hold the truth."""
    Y, t = ornstein_uhlenbeck(seed)
    model = LocalW2SDE(device=DEVICE["name"], random_state=seed).fit(Y, t)
    grid = span(Y, 0.1, 0.9, 50)[:, None]
    gaps = np.abs(model.drift(grid) + grid), np.abs(model.diffusion(grid) - 0.5)
    inside = [
        float((gap < 1.645 * e).mean()) for gap, e in zip(gaps, model.standard_errors(grid), strict=True)
    ]
    return {"drift inside": inside[0], "diffusion inside": inside[1]}


def fit_random(y: Array, h: float) -> tuple[float, float]:
    """Mean and SD of a log-normal theta by maximum likelihood, theta integrated out on a grid."""
    now, later = y[:, :-1], y[:, 1:]
    sums = [(a * b).sum(1)[:, None] for a, b in ((now, now), (now, later), (later, later))]
    z = np.linspace(-5, 5, 201)
    share = -(z**2) / 2 - np.log(np.exp(-(z**2) / 2).sum())

    def loss(p: Array) -> float:
        theta = np.exp(p[0] + np.exp(p[1]) * z)
        e = np.exp(-theta * h)
        variance = np.exp(2 * p[2]) * (1 - e**2) / (2 * theta)
        square = sums[2] - 2 * e * sums[1] + e**2 * sums[0]
        each = share - 0.5 * (now.shape[1] * np.log(variance) + square / variance)
        return -float(special.logsumexp(each, axis=1).sum())

    mu, log_std, _ = optimize.minimize(loss, np.array([-0.1, -0.7, -0.7]), method="BFGS").x
    mean = np.exp(mu + np.exp(2 * log_std) / 2)
    return float(mean), float(mean * np.sqrt(np.expm1(np.exp(2 * log_std))))


def main() -> None:
    """Print a table for each problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--problems", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--printed", type=int, default=5, help="seeds of the published loss")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ..")
    options = parser.parse_args()
    DEVICE["name"] = options.device
    warnings.simplefilter("ignore")
    solvers: dict[str, Any] = {
        **{
            kind: lambda seed, printed, kind=kind: solve_smooth(seed, kind, printed)
            for kind in ("ou", "cir", "gbm")
        },
        "jumps": solve_jumps,
        "well": solve_well,
        "random": solve_random,
        "bands": solve_bands,
    }
    for problem in options.problems:
        runs = []
        for seed in range(options.first, options.first + options.seeds):
            runs.append(solvers[problem](seed, seed - options.first < options.printed))
            print(
                problem, seed, {name: round(float(value), 4) for name, value in runs[-1].items()}, flush=True
            )
        print(f"\n{problem} (bar: {BARS[problem]})")
        print(f"{'':28}{'mean':>9}{'worst':>9}")
        for name in runs[0]:
            values = [run[name] for run in runs if name in run]
            print(f"{name:28}{np.mean(values):9.4f}{np.max(values):9.4f}")
        print(flush=True)


if __name__ == "__main__":
    main()
