"""Experiments compute, then record; figures and tables are drawn from the records alone.

An experiment is a list of cells, each a dict of plain settings with a seed, and a function from it to plain
values. ``compute`` runs the cells that have no record yet, several at a time, and writes the file after each:
a killed run goes on where it was. A record names the code and the packages that made it. Where these have
changed since, the cheapest cell of each method is computed again: if it comes out the same the method's other
records stand, and bear the name of the new code; if not, all of them are computed again. One cell is
evidence, no proof: after a change that may touch some settings only, delete the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed

import localw2

FOLDER = Path(__file__).parent
# Parts of the package that no experiment runs.
PROGRAMS = ("cli", "explorer", "report.py", "report_figures.py", "tables.py", "csv_tables.py")
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "lapx", "torchdiffeq")

Cell = dict[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How to run: ``quick`` is a reduced version for CI, whose results go to another folder."""

    quick: bool
    repeats: int
    jobs: int
    results: Path
    figures: Path

    @classmethod
    def parse(cls, description: str | None) -> Options:
        """From the command line, the same for every experiment."""
        raw = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=description, formatter_class=raw)
        parser.add_argument("--quick", action="store_true", help="small settings, for a look and for CI")
        parser.add_argument("--repeats", type=int, default=None, help="training sets (5, or 1 with --quick)")
        parser.add_argument("--jobs", type=int, default=2, help="cells at a time (default 2)")
        parser.add_argument("--out", type=Path, default=None, help="folder for results/ and figures/")
        parsed = parser.parse_args()
        out = parsed.out or (FOLDER / "quick" if parsed.quick else FOLDER)
        repeats = parsed.repeats or (1 if parsed.quick else 5)
        return cls(parsed.quick, repeats, parsed.jobs, out / "results", out / "figures")


def compute(
    experiment: str, cells: list[Cell], function: Callable[[Cell], Values], options: Options, code: Path
) -> list[dict[str, Any]]:
    """The records of all cells, in their order: those on file, and new ones.

    ``code`` is the experiment's own script, which belongs to the fingerprint beside the package.
    """
    path = options.results / f"{experiment}.json"
    options.results.mkdir(parents=True, exist_ok=True)
    fingerprint = _fingerprint(code)
    known, spent = _read(path), _wall_seconds(path)

    def run(chosen: list[Cell], verb: str) -> None:
        nonlocal spent
        start, before = time.perf_counter(), spent
        runner = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
        for i, record in enumerate(runner(delayed(_timed)(function, cell) for cell in chosen), start=1):
            key = _key(record["settings"])
            same = key in known and same_values(known[key]["values"], record["values"])
            if verb == "checked" and not same:
                differing.add((_method(record["settings"]), known[key]["code"]))
            # A check that agrees leaves the record's own seconds: it may run beside other work.
            known[key] = (known[key] if verb == "checked" and same else record) | {"code": fingerprint}
            seconds = time.perf_counter() - start
            if verb == "computed":
                spent = before + seconds
            _write(path, experiment, _kept(cells, known), spent)
            print(f"  {verb} {i}/{len(chosen)} after {seconds:.0f} s: {key}", flush=True)

    differing: set[tuple[str, str]] = set()  # a method may have records of several codes
    stale = [record["settings"] for record in _kept(cells, known) if record["code"] != fingerprint]
    run(_cheapest(stale, known), "checked")
    for cell in stale:
        record = known[_key(cell)]
        if (_method(cell), record["code"]) not in differing:
            record["code"] = fingerprint
        elif cell not in cells and record["code"] != fingerprint:
            del known[_key(cell)]  # a further repeat, which nobody asked for again
    if differing:
        print(f"other values for {', '.join(sorted({name for name, _ in differing}))}: computed again")
    missing = [cell for cell in cells if known.get(_key(cell), {}).get("code") != fingerprint]
    if all(_method(cell) in {name for name, _ in differing} for cell in cells):
        spent = 0.0  # nothing is left of what took it
    print(f"{experiment}: {len(cells) - len(missing)} of {len(cells)} cells on file", flush=True)
    run(missing, "computed")
    _write(path, experiment, _kept(cells, known), spent)
    return read(experiment, options)


def same_values(a: Any, b: Any) -> bool:
    """Whether two results agree to six digits, times of computation apart.

    >>> same_values({"error": [0.5], "fit_seconds": 1.0}, {"error": [0.5 + 1e-9], "fit_seconds": 2.0})
    True
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_values(a[k], b[k]) for k in a if "seconds" not in k)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same_values(v, w) for v, w in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return bool(a == b)


def read(experiment: str, options: Options) -> list[dict[str, Any]]:
    """The records on file, for drawing."""
    content = json.loads((options.results / f"{experiment}.json").read_text())
    records: list[dict[str, Any]] = content["records"]
    return records


def group(records: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[Values]]:
    """The values of records that share these settings, in order: repeats of one cell together."""
    found: dict[tuple[Any, ...], list[Values]] = {}
    for record in records:
        key = tuple(record["settings"].get(name) for name in names)
        found.setdefault(key, []).append({**record["values"], "seconds": record["seconds"]})
    return found


def _timed(function: Callable[[Cell], Values], cell: Cell) -> dict[str, Any]:
    torch.set_num_threads(1)
    start = time.perf_counter()
    values = function(cell)
    return {"settings": cell, "values": values, "seconds": round(time.perf_counter() - start, 2)}


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _fingerprint(code: Path) -> str:
    """A hash of the package, of this file, of the experiment's script and of the packages' versions."""
    digest = hashlib.sha256()
    package = Path(localw2.__file__).parent
    used = [p for p in sorted(package.rglob("*.py")) if p.relative_to(package).parts[0] not in PROGRAMS]
    for path in [*used, Path(__file__), code]:
        digest.update(path.read_bytes())
    digest.update(repr([version(name) for name in PACKAGES]).encode())
    return digest.hexdigest()


def _method(cell: Cell) -> str:
    return str(cell.get("method", cell.get("model")))


def _kept(cells: list[Cell], known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of these cells, and further repeats of them that are on file, in a fixed order."""
    wanted = [_key(cell) for cell in cells if _key(cell) in known]
    alike = {_key(cell | {"seed": None}) for cell in cells}
    others = (r for key, r in known.items() if key not in set(wanted))
    repeats = [r for r in others if _key(r["settings"] | {"seed": None}) in alike]
    return [known[key] for key in wanted] + repeats


def _cheapest(cells: list[Cell], known: dict[str, dict[str, Any]]) -> list[Cell]:
    """One cell of each method and each code that made its records, the one that took least time."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in sorted(cells, key=lambda cell: known[_key(cell)]["seconds"]):
        found.setdefault((_method(cell), known[_key(cell)]["code"]), cell)
    return list(found.values())


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    return {
        _key(record["settings"]): {"code": content.get("code"), **record} for record in content["records"]
    }


def _wall_seconds(path: Path) -> float:
    """How long the records of a file took by the clock, over all runs that went on with it."""
    if not path.exists():
        return 0.0
    return float(json.loads(path.read_text()).get("wall_seconds", 0.0))


def _write(path: Path, experiment: str, records: list[dict[str, Any]], wall_seconds: float) -> None:
    """Records share one code once the run is done: it is then written once, above them."""
    codes = {record["code"] for record in records}
    if len(codes) == 1:
        records = [{name: v for name, v in record.items() if name != "code"} for record in records]
    content = {
        "experiment": experiment,
        "code": codes.pop() if len(codes) == 1 else "mixed: the run is not done",
        "versions": {"localw2": localw2.__version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "wall_seconds": round(wall_seconds, 1),
        "records": records,
    }
    temporary = path.with_suffix(".tmp")
    lines = json.dumps(content, indent=None, separators=(",", ":")).replace('{"settings"', '\n{"settings"')
    temporary.write_text(lines + "\n")
    os.replace(temporary, path)
