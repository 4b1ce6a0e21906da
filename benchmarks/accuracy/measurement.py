"""One method on one split: run it in its environment under a time limit, and score its draws.

All methods are scored alike, from 1000 independent draws at every test row (fewer where a method draws too
slowly): the CRPS by the fair estimator (unbiased whatever distribution the draws come from, and however many
there are), the 90 % interval from their 5 % and 95 % quantiles, and the RMSE of their mean. Gaussian methods
get no exact formula: their draws are scored like all others.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from encoding import Array
from localw2.metrics import coverage, crps, interval_width
from tables import Task

HERE = Path(__file__).parent
DRAWS = 1000
COVERAGE = 0.9
# Every library that a method may use gets one thread, so that seconds are comparable.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def score_draws(y: Array, draws: Array) -> dict[str, float]:
    """CRPS, coverage and width at 90 %, and RMSE: means over the rows of y (N,) from draws (S, N)."""
    # Of few draws, the quantiles that cover as much as they should on average are a little farther out.
    way: Literal["linear", "weibull"] = "linear" if len(draws) >= DRAWS else "weibull"
    lower, upper = np.quantile(draws, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0, method=way)
    values = {
        "crps": crps(y, draws).mean(),
        "coverage": coverage(y, lower, upper),
        "width": interval_width(lower, upper),
        "rmse": np.sqrt(((draws.mean(0) - y) ** 2).mean()),
    }
    # Seven digits: draws on another machine agree to no more, and the files stay small.
    return {name: float(f"{value:.7g}") for name, value in values.items()}


def measure(factory: str, python: str, data: Task, split: int, limit: float) -> dict[str, Any]:
    """The values of a record: scores and seconds, or the reason why there are none.

    ``factory`` is that of a ``Method``, ``python`` the interpreter of its environment. ``status`` is "done",
    "too slow" (``stage`` took more than ``limit`` seconds of wall-clock time) or "failed" (``error`` is the
    last line of its output).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x, x_test = data.encode()
        categorical = np.array(x.categorical, dtype=int)
        np.savez(folder / "split.npz", x=x.values, y=data.y, x_test=x_test.values, categorical=categorical)
        (folder / "split.pickle").write_bytes(pickle.dumps((data.x, data.y, data.x_test)))
        command = [python, str(HERE / "runner.py"), factory, str(split), str(DRAWS), name]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= dict.fromkeys(THREADS, "1")
        error = None
        with (folder / "log").open("w") as log:
            try:
                done = subprocess.run(command, stdout=log, stderr=log, timeout=limit, env=environment)
                error = f"exit status {done.returncode}" if done.returncode else None
            except subprocess.TimeoutExpired:
                pass  # seconds.json shows how far it got
        times = folder / "seconds.json"
        seconds: dict[str, Any] = json.loads(times.read_text()) if times.exists() else {}
        seconds = {k: round(v, 4) if isinstance(v, float) else v for k, v in seconds.items()}
        shape = {"rows": len(x), "test_rows": len(x_test), "columns": x.values.shape[1]}
        if error is not None and "draw_seconds" not in seconds:
            lines = (folder / "log").read_text().strip().splitlines()
            return shape | {
                "status": "failed",
                "error": f"{error}: {lines[-1] if lines else 'no output'}"[:200],
            }
        if "draw_seconds" not in seconds:
            stage = "draws" if "fit_seconds" in seconds else "fit"
            return shape | {"status": "too slow", "stage": stage, "limit": limit} | seconds
        try:
            values = score_draws(data.y_test, np.load(folder / "draws.npy"))
        except ValueError as problem:  # draws that are not finite, or too few of them
            return shape | {"status": "failed", "error": str(problem)[:200]} | seconds
        return shape | {"status": "done"} | values | seconds
