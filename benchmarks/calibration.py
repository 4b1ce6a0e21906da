"""Coverage and width of calibrated and uncalibrated 90 % intervals on standard UCI splits.

    python benchmarks/calibration.py --data-dir DIR [--sets concrete energy yacht] [--splits 20] [--jobs 2]
                                     [--out FILE] [--quick]

DIR holds ``<set>/data.txt`` (see ``uci.py``, also for the splits). Coverage is over the test rows of all
splits together; its interval is the exact binomial one (95 %), as if the rows were independent (a row can be
in several test sets). The uncalibrated interval comes from the same model. With ``--out`` every finished
split is kept in a JSON file, and a second call continues where the first stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.stats import binomtest

from localw2 import LocalW2Regressor, Network
from localw2.metrics import coverage, interval_width
from uci import standard_split

SETS = ("concrete", "energy", "yacht")
COVERAGE = 0.9
BAND = (0.88, 0.92)


def measure(folder: Path, split: int, epochs: int | None) -> dict[str, Any]:
    """Measure one split: hits and widths of calibrated and plain intervals, and the seconds of the fit."""
    torch.set_num_threads(1)
    data = standard_split(folder, split)
    law = "auto" if epochs is None else Network(epochs=epochs)
    model = LocalW2Regressor(law, calibrate=True, random_state=split)
    start = time.perf_counter()
    model.fit(data.x, data.y)
    seconds = time.perf_counter() - start
    assert model.calibration_ is not None
    x, y = data.x_test, data.y_test
    ends = {
        "calibrated": model.predict_interval(x, COVERAGE),
        "plain": tuple(model.predict_quantiles(x, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])),
    }
    record: dict[str, Any] = {
        "split": split,
        "rows": len(y),
        "seconds": seconds,
        "of one fit": model.fit_.seconds,
        "kind": model.calibration_.kind,
        "level": float(model.calibration_.levels(COVERAGE)[0]),
    }
    for name, (lower, upper) in ends.items():
        record[name] = {
            "hits": round(coverage(y, lower, upper) * len(y)),
            "width": interval_width(lower, upper),
        }
    return record


def run(folder: Path, options: argparse.Namespace, kept: dict[str, Any]) -> list[dict[str, Any]]:
    """Run all splits of one table that are not in the file, and add each to it."""
    name, epochs = folder.name, 20 if options.quick else None
    found: dict[int, dict[str, Any]] = {r["split"]: r for r in kept["sets"].get(name, [])}
    missing = [split for split in range(options.splits) if split not in found]
    work = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    for record in work(delayed(measure)(folder, split, epochs) for split in missing):
        found[record["split"]] = record
        kept["sets"][name] = [found[split] for split in sorted(found)]
        if options.out is not None:
            partial = Path(f"{options.out}.partial")
            partial.write_text(json.dumps(kept, indent=1) + "\n")
            os.replace(partial, options.out)
    return [found[split] for split in range(options.splits)]


def format_row(name: str, kind: str, records: list[dict[str, Any]]) -> str:
    """Format a line of the table."""
    n, hits = sum(r["rows"] for r in records), sum(r[kind]["hits"] for r in records)
    interval = binomtest(hits, n).proportion_ci(0.95)
    width = np.average([r[kind]["width"] for r in records], weights=[r["rows"] for r in records])
    inside = "" if kind == "plain" else "in" if BAND[0] <= hits / n <= BAND[1] else "OUT"
    limits = f"{interval.low:6.1%} to {interval.high:6.1%}"
    return f"{name:10}{kind:12}{n:6}{hits / n:9.1%}  {limits}{width:9.3f}{inside:>5}"


def main() -> None:
    """Measure, then print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", type=Path, required=True, help="the folder with <set>/data.txt")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a JSON file that keeps finished splits, to continue from")
    parser.add_argument("--quick", action="store_true", help="20 epochs: does it run?")
    options = parser.parse_args()
    kept: dict[str, Any] = {"quick": options.quick, "sets": {}}
    if options.out is not None and options.out.exists():
        kept = json.loads(options.out.read_text())
        if kept["quick"] != options.quick:
            parser.error(f"{options.out} has quick={kept['quick']}; use another file.")
    for name in options.sets:
        if not (options.data_dir / name / "data.txt").is_file():
            parser.error(f"--data-dir {options.data_dir} has no {name}/data.txt.")
    print(f"{'set':10}{'interval':12}{'rows':>6}{'coverage':>9}  {'95 % binomial':16}{'width':>9}")
    for name in options.sets:
        records = run(options.data_dir / name, options, kept)
        for kind in ("calibrated", "plain"):
            print(format_row(name, kind, records))
        widths = [np.mean([r[kind]["width"] for r in records]) for kind in ("calibrated", "plain")]
        seconds = [np.mean([r[key] for r in records]) for key in ("seconds", "of one fit")]
        levels = [r["level"] for r in records]
        print(
            f"{'':10}width ratio {widths[0] / widths[1]:.2f}, level {np.mean(levels):.3f} "
            f"({min(levels):.3f} to {max(levels):.3f}), {seconds[0]:.0f} s per fit ({records[0]['kind']}), "
            f"of which the model's own network {seconds[1]:.0f} s",
            flush=True,
        )
    print(f"required: calibrated coverage pooled over 20 splits between {BAND[0]:.0%} and {BAND[1]:.0%}")


if __name__ == "__main__":
    main()
