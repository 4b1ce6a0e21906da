"""One method on one split: run it in its environment under a time limit, and score its draws.

All methods are scored alike, from 1000 independent draws at every test row: the CRPS by the fair estimator
(unbiased for whatever law the draws come from), the 90 % interval from their 5 % and 95 % quantiles, and the
RMSE of their mean. A Gaussian law gets no exact formula: draws of it are scored as the others are.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from environments import python_of
from localw2.metrics import coverage, crps, interval_width
from methods import Method
from uci import Array, Split

HERE = Path(__file__).parent
DRAWS = 1000
COVERAGE = 0.9
# Every library that a method may compute with takes one thread, so that seconds compare.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def scores(y: Array, draws: Array) -> dict[str, float]:
    """CRPS, coverage and width at 90 %, RMSE: means over the rows of y (N,) from draws (S, N)."""
    lower, upper = np.quantile(draws, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0)
    values = {
        "crps": crps(y, draws).mean(),
        "coverage": coverage(y, lower, upper),
        "width": interval_width(lower, upper),
        "rmse": np.sqrt(((draws.mean(0) - y) ** 2).mean()),
    }
    # Seven digits: draws of another machine agree to no more, and the files stay small.
    return {name: float(f"{value:.7g}") for name, value in values.items()}


def measure(method: Method, data: Split, split: int, limit: float) -> dict[str, Any]:
    """The values of a record: scores and seconds, or why there are none.

    ``status`` is "done", "too slow" (it took more than ``limit`` seconds of the clock, in ``stage``) or
    "failed" (``error`` is the last line it wrote).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "split.npz", x=data.x, y=data.y, x_test=data.x_test)
        runner = [str(HERE / "runner.py"), method.factory, str(split), str(DRAWS), name]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= dict.fromkeys(THREADS, "1")
        error = None
        with (folder / "log").open("w") as log:
            command = [python_of(method.environment), *runner]
            try:
                done = subprocess.run(command, stdout=log, stderr=log, timeout=limit, env=environment)
                error = f"exit status {done.returncode}" if done.returncode else None
            except subprocess.TimeoutExpired:
                pass  # seconds.json tells how far it came
        times = folder / "seconds.json"
        seconds: dict[str, Any] = json.loads(times.read_text()) if times.exists() else {}
        seconds = {k: round(v, 4) if isinstance(v, float) else v for k, v in seconds.items()}
        shape = {"rows": len(data.x), "test_rows": len(data.x_test), "columns": data.x.shape[1]}
        if error is not None and "draw_seconds" not in seconds:
            lines = (folder / "log").read_text().strip().splitlines()
            return shape | {
                "status": "failed",
                "error": f"{error}: {lines[-1] if lines else 'no words'}"[:200],
            }
        if "draw_seconds" not in seconds:
            stage = "draws" if "fit_seconds" in seconds else "fit"
            return shape | {"status": "too slow", "stage": stage, "limit": limit} | seconds
        try:
            values = scores(data.y_test, np.load(folder / "draws.npy"))
        except ValueError as problem:  # draws that are no numbers, or too few
            return shape | {"status": "failed", "error": str(problem)[:200]} | seconds
        return shape | {"status": "done"} | values | seconds
