"""Is delta="auto" as good as the best delta? The automatic choice against a grid, on the same data.

    python benchmarks/selection.py [--data-dir DIR] [--seeds 10] [--splits 5] [--jobs 2] [--out FILE]

Linear example: error in the SDs of the coefficients of ``RandomCoefficientRegressor``; nonlinear example:
error in the SD of ``LocalW2Regressor``, both N = 1000 and against the truth, mean over seeds. With
``--data-dir``, a folder of tables (NAME/data.txt, the last column the target), mean CRPS over the first
standard splits. Grids: numbers of nearest rows in the norm that "auto" chose, and radii in the units of x.
The best of a grid is picked with knowledge of the truth or the test rows, on the mean over all seeds, which
no rule could do. ``--out`` keeps what was computed, and an interrupted run continues from it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray

from ledger import Stamp, trace
from localw2 import LocalW2Regressor, Nearest, Network, RandomCoefficientRegressor
from localw2.datasets import Linear, Nonlinear
from localw2.metrics import crps, std_error
from uci import Split, names, standard_split

Array = NDArray[np.float64]
FIRST_SEED = 7000  # none of these data sets was used to find the rule
LINEAR = {"n_neighbors": (4, 6, 8, 12, 17, 24, 34, 48, 96, 192), "delta": (0.1, 0.2, 0.4, 0.8, 1.6)}
NEAREST = (8, 12, 17, 24, 34, 48, 68, 96, 136, 192, 272, 384)
RADII = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)  # of the nonlinear example, x in (-.5, .5)
TEST = np.linspace(-0.5, 0.5, 11)[:, None]
TRUE_STD = np.array([0.1, 0.2, 0.3, 0.4])
LIMITS = {"linear": 1.15, "nonlinear": 1.15}


def score_linear(seed: int, quick: bool) -> dict[str, float]:
    """The error in s of every choice on one data set."""
    x, y = Linear().sample(200 if quick else 1000, random_state=seed)
    found = {}
    choices: list[tuple[str, dict[str, Any]]] = [("auto", {})]
    choices += [(f"{name} {v:g}", {name: v}) for name, values in LINEAR.items() for v in values]
    for name, settings in choices[:3] if quick else choices:
        model = RandomCoefficientRegressor(random_state=seed, **settings).fit(x, y)
        std = np.append(model.intercept_std_, model.coef_std_)
        found[name] = float(np.abs(std - TRUE_STD).sum() / TRUE_STD.sum())
    return found


def score_nonlinear(seed: int, quick: bool) -> dict[str, float]:
    """The error in the SD of every choice on one data set."""
    truth = Nonlinear()
    x, y = truth.sample(200 if quick else 1000, random_state=seed)

    def error(model: LocalW2Regressor) -> float:
        return std_error(truth.std(TEST), model.predict(TEST, return_std=True)[1])

    return _score_grid(x, y, seed, quick, error, () if quick else RADII)


def score_table(split: Split, seed: int, quick: bool) -> dict[str, float]:
    """The CRPS of every choice on the test rows."""

    def score(model: LocalW2Regressor) -> float:
        return float(crps(split.y_test, model.sample(split.x_test, 400, random_state=seed)).mean())

    return _score_grid(split.x, split.y, seed, quick, score, ())


def _score_grid(
    x: Array, y: Array, seed: int, quick: bool, score: Any, radii: tuple[float, ...]
) -> dict[str, float]:
    law = Network(epochs=10) if quick else Network()
    settings: dict[str, Any] = {"law": law, "random_state": seed}
    auto = LocalW2Regressor(**settings).fit(x, y)
    assert isinstance(auto.delta_, Nearest)
    found = {"auto": score(auto), "rows": float(auto.delta_.k)}
    for k in NEAREST[3:5] if quick else NEAREST:
        if k <= len(x) // 2:
            found[f"nearest {k}"] = score(
                LocalW2Regressor(delta=Nearest(k), norm=auto.norm_, **settings).fit(x, y)
            )
    for radius in radii:
        found[f"radius {radius:g}"] = score(LocalW2Regressor(delta=radius, **settings).fit(x, y))
    return found


def run(
    name: str, number: int, quick: bool, data_dir: Path | None
) -> tuple[str, int, dict[str, float], float]:
    """Score all choices on one data set; also returns the seconds."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small balls are part of the grid
        if name in ("linear", "nonlinear"):
            found = {"linear": score_linear, "nonlinear": score_nonlinear}[name](FIRST_SEED + number, quick)
        else:
            assert data_dir is not None
            found = score_table(standard_split(data_dir / name, number), number, quick)
    return name, number, found, time.perf_counter() - start


def print_report(name: str, results: list[dict[str, float]]) -> None:
    """Print the grid, its best entry, and the automatic choice next to it."""
    shared = [key for key in results[0] if key not in ("auto", "rows") and all(key in r for r in results)]
    means = {key: float(np.mean([r[key] for r in results])) for key in shared}
    best = min(means, key=lambda key: means[key])
    auto = float(np.mean([r["auto"] for r in results]))
    gaps = np.array([r["auto"] - r[best] for r in results])
    error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else np.nan
    limit = LIMITS.get(name, 1.02)
    chosen = f", rows chosen {sorted({int(r['rows']) for r in results})}" if "rows" in results[0] else ""
    print(f"\n{name}: {len(results)} data sets{chosen}")
    print("  " + ", ".join(f"{key}: {value:.4f}" for key, value in means.items()))
    verdict = "within" if auto <= limit * means[best] else "BEYOND"
    print(
        f"  auto {auto:.4f}, best of the grid {means[best]:.4f} ({best}): ratio {auto / means[best]:.3f}, "
        f"difference {gaps.mean():+.4f} ± {error:.4f}; {verdict} {100 * (limit - 1):.0f} %"
    )


def main() -> None:
    """Compute what is missing, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", help="a subset of linear, nonlinear and the names of tables")
    parser.add_argument("--quick", action="store_true", help="a few epochs: does it run?")
    chosen = parser.parse_args()
    counts = {"linear": chosen.seeds, "nonlinear": chosen.seeds}
    if chosen.data_dir is not None:
        counts |= dict.fromkeys(names(chosen.data_dir), chosen.splits)
    if chosen.only:
        counts = {name: n for name, n in counts.items() if name in chosen.only}
    done: dict[str, dict[str, float]] = {}
    made_by = f"{Stamp.of(trace([(Path(__file__), 'run')]), {}).code}{' quick' * chosen.quick}"
    if chosen.out is not None and chosen.out.exists():
        content = json.loads(chosen.out.read_text())
        if content["made_by"] != made_by:
            parser.error(f"{chosen.out} was made by other code or with other settings; use another file")
        done = content["results"]
    missing = [(name, i) for name, n in counts.items() for i in range(n) if f"{name} {i}" not in done]
    runner = Parallel(n_jobs=chosen.jobs, return_as="generator_unordered")
    tasks = (delayed(run)(name, i, chosen.quick, chosen.data_dir) for name, i in missing)
    for name, i, found, seconds in runner(tasks):
        done[f"{name} {i}"] = found
        print(f"{name} {i}: {seconds:.0f} s", flush=True)
        if chosen.out is not None:
            temporary = chosen.out.with_suffix(".tmp")
            temporary.write_text(json.dumps({"made_by": made_by, "results": done}, indent=1))
            os.replace(temporary, chosen.out)
    for name, n in counts.items():
        print_report(name, [done[f"{name} {i}"] for i in range(n)])


if __name__ == "__main__":
    main()
