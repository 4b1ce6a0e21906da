"""Run one method on one split, in its own environment: arrays from a file, draws and seconds to files.

    python runner.py FACTORY SEED DRAWS FOLDER

FOLDER holds ``split.npz`` with x, y and x_test. ``seconds.json`` is written after each step, so that whoever
stops this process knows how far it got; ``draws.npy`` has the draws (S, N). This script needs only numpy and
the method's package: localw2 is not installed in every environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np

ROWS = 1000  # for which drawing is timed, so that test sets of all sizes are comparable
PATIENCE = 30.0  # seconds; where these rows would take longer, the time is extrapolated instead


def run(factory: str, seed: int, n_samples: int, folder: Path) -> None:
    """Fit, draw, and draw once more for ``ROWS`` rows.

    Seconds are processor time, which other work on the machine does not change; with one thread they equal
    the wall-clock time of an idle machine. The wall-clock time of the fit is recorded as well.
    """
    seconds: dict[str, float | bool] = {}

    def note(name: str, value: float | bool) -> None:
        seconds[name] = value
        partial = folder / "seconds.partial"
        partial.write_text(json.dumps(seconds))
        os.replace(partial, folder / "seconds.json")

    module, name = factory.split(":")
    fit = getattr(import_module(module), name)(seed)
    with np.load(folder / "split.npz") as split:
        x, y, x_test = (split[key] for key in ("x", "y", "x_test"))
    start, busy = time.perf_counter(), time.process_time()
    draw = fit(x, y)
    note("fit_clock_seconds", time.perf_counter() - start)
    note("fit_seconds", time.process_time() - busy)
    busy = time.process_time()
    draws = draw(x_test, n_samples, seed)
    took = time.process_time() - busy
    np.save(folder / "draws.npy", np.asarray(draws, dtype=np.float64))
    note("draw_seconds", took)
    expected = took * ROWS / len(x_test)
    note("seconds_extrapolated", expected > PATIENCE)
    if expected <= PATIENCE:
        rows = np.resize(x_test, (ROWS, x_test.shape[1]))
        busy = time.process_time()
        draw(rows, n_samples, seed)
        expected = time.process_time() - busy
    note("draw_seconds_1000_rows", expected)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
