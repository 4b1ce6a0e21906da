"""Seconds of a fit beside a peer's, on the same split in the same minute, as a ratio.

    python benchmarks/accuracy/seconds.py [--data-dir DIR] [--sets yacht ...] [--repeats 3] [--peer NAME]
        [--write]

The records of ``campaign.py`` have seconds too, but ours and a peer's may come from other days, beside other
work on the machine. Here they take turns, each in a process of its own with one thread; of the repeats the
median counts. Nothing is drawn, and neither imports nor reading are counted. ``--write`` keeps the result for
the page that ``table.py`` makes; tables that were not run now keep theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # uci.py

import numpy as np

from environments import find_python
from measurement import HERE, THREADS
from methods import BY_NAME
from table import SECONDS
from tables import Task, list_tables, load

_FIT = """
import sys, time
from importlib import import_module
from pathlib import Path
home, name, folder = sys.argv[1:]
module = import_module(home)
fit = getattr(module, name)(0)
x, y, _ = module.read(Path(folder))
start = time.process_time()
fit(x, y)
print("seconds", time.process_time() - start)
"""


def time_fits(data: Task, names: list[str], repeats: int) -> dict[str, float]:
    """Median seconds of processor time that each method takes to fit these rows."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= dict.fromkeys(THREADS, "1") | {"PYTHONPATH": str(HERE)}
    found: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        x, x_test = data.encode()
        categorical = np.array(x.categorical, dtype=int)
        arrays = Path(folder) / "split.npz"
        np.savez(arrays, x=x.values, y=data.y, x_test=x_test.values, categorical=categorical)
        (Path(folder) / "split.pickle").write_bytes(pickle.dumps((data.x, data.y, data.x_test)))
        for _ in range(repeats):
            for name in names:
                method = BY_NAME[name]
                command = [find_python(method.environment), "-c", _FIT, *method.factory.split(":"), folder]
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
                found[name].append(float(done.stdout.rpartition("seconds ")[2]))
    return {name: float(np.median(seconds)) for name, seconds in found.items()}


def main() -> None:
    """Time the fits of every table and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="a folder with <set>/data.txt (default: none)")
    parser.add_argument("--sets", nargs="+", help="names of tables (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="fits of each (default 3)")
    parser.add_argument("--peer", default="treeffuser", choices=sorted(BY_NAME), help="beside whom")
    parser.add_argument("--write", action="store_true", help=f"write {SECONDS.name}")
    options = parser.parse_args()
    ratios, lines = [], {}
    print(f"{'table':<12}{'rows':>7}{'columns':>9}{'ours, s':>10}{options.peer + ', s':>16}{'ratio':>8}")
    for name in options.sets or list_tables(options.data_dir):
        data = load(name, 0, options.data_dir)
        seconds = time_fits(data, ["localw2", options.peer], options.repeats)
        ratios.append(seconds["localw2"] / seconds[options.peer])
        lines[name] = [*data.x.shape, *(round(s, 3) for s in seconds.values())]
        print(
            f"{name:<12}{len(data.y):>7}{data.x.shape[1]:>9}{seconds['localw2']:>10.2f}"
            f"{seconds[options.peer]:>16.2f}{ratios[-1]:>8.2f}",
            flush=True,
        )
    if options.write:
        before = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
        known = before["tables"] if before.get("peer") == options.peer else {}
        tables = dict(sorted((known | lines).items()))
        SECONDS.write_text(json.dumps({"peer": options.peer, "tables": tables}, indent=1) + "\n")
    found = np.array(ratios)
    print(
        f"at most the peer's on {(found <= 1).sum()} of {len(found)}, above twice on {(found > 2).sum()}, "
        f"geometric mean {np.exp(np.log(found).mean()):.2f}"
    )


if __name__ == "__main__":
    main()
