"""Run one method on one split, in its own environment: a table from a file, draws and seconds to files.

    python runner.py FACTORY SEED DRAWS FOLDER

FOLDER holds what the method's module reads: ``split.npz``, or ``split.pickle`` for ours. ``seconds.json`` is
written after each step, so that whoever stops this process knows how far it got; ``draws.npy`` has the draws
(S, N). This script needs only numpy and the method's package: localw2 is not installed in every environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from encoding import Table

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

    home, name = factory.split(":")
    module = import_module(home)
    fit = getattr(module, name)(seed)
    x, y, x_test = module.read(folder)
    start, busy = time.perf_counter(), time.process_time()
    draw = fit(x, y)
    note("fit_clock_seconds", time.perf_counter() - start)
    note("fit_seconds", time.process_time() - busy)
    busy = time.process_time()
    draws = draw(x_test, n_samples, seed)
    took = time.process_time() - busy
    np.save(folder / "draws.npy", np.asarray(draws, dtype=np.float64))
    note("draw_seconds", took)
    expected = took * (ROWS / len(x_test)) * (n_samples / len(draws))
    extrapolated = len(draws) < n_samples or expected > PATIENCE
    note("seconds_extrapolated", extrapolated)
    if not extrapolated:
        rows = repeat(x_test, ROWS)
        busy = time.process_time()
        draw(rows, n_samples, seed)
        expected = time.process_time() - busy
    note("draw_seconds_1000_rows", expected)


def repeat(table: Any, n: int) -> Any:
    """The first n rows of a table that is repeated without end: an array, a ``Table`` or a frame."""
    rows = np.arange(n) % len(table)
    if isinstance(table, Table):
        return Table(table.values[rows], table.categorical)
    return table[rows] if isinstance(table, np.ndarray) else table.iloc[rows]


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
