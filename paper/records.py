"""What every experiment shares: its command line, its records on file, and how they are grouped for panels.

Experiments compute, then record; figures and tables are drawn from the records alone. Which records are
computed again after a change of the code is decided in ``benchmarks/ledger.py``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

import localw2

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from ledger import Ledger, Root, Stamp, key_of, method_of, trace

FOLDER = Path(__file__).parent

Cell = dict[str, Any]
Values = dict[str, Any]


@final
@dataclass(frozen=True)
class Options:
    """How to run an experiment; the results of ``quick``, a reduced version for CI, go to another folder."""

    quick: bool
    repeats: int
    jobs: int
    results: Path
    figures: Path
    check: bool = False
    only: tuple[str, ...] = ()

    @classmethod
    def parse(cls, description: str | None) -> Options:
        """Read the command line, which is the same for every experiment."""
        raw = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=description, formatter_class=raw)
        parser.add_argument(
            "--quick", action="store_true", help="small settings, for a first look and for CI"
        )
        parser.add_argument("--repeats", type=int, default=None, help="training sets (5, or 1 with --quick)")
        parser.add_argument("--jobs", type=int, default=2, help="cells computed at the same time (default 2)")
        parser.add_argument("--out", type=Path, default=None, help="folder for results/ and figures/")
        parser.add_argument(
            "--check",
            action="store_true",
            help="after a change of the code: only compute the cheapest cell of each method again, and mark "
            "the records of the method as valid where it agrees",
        )
        parser.add_argument(
            "--only",
            nargs="+",
            default=(),
            metavar="METHOD",
            help="only these methods or models",
        )
        parsed = parser.parse_args()
        out = parsed.out or (FOLDER / "quick" if parsed.quick else FOLDER)
        repeats = parsed.repeats or (1 if parsed.quick else 5)
        places = out / "results", out / "figures"
        return cls(parsed.quick, repeats, parsed.jobs, *places, parsed.check, tuple(parsed.only))

    def chooses(self, cell: Cell) -> bool:
        """Whether a cell is to be computed, or checked, in this run."""
        return not self.only or method_of(cell) in self.only


def run_experiment(
    name: str,
    cells: list[Cell],
    function: Callable[[Cell], Values],
    draw: Callable[[Options], None],
    options: Options,
) -> None:
    """Compute what has no valid record and draw; with ``--check``, only check what is on file."""
    if not options.check:
        compute(name, cells, function, options)
        draw(options)
    elif differing := open_ledger(name, cells, function, options).check():
        methods = ", ".join(sorted({method_of(record["settings"]) for record in differing}))
        sys.exit(f"{name}: other values for {methods}; run it without --check to compute them again.")


def compute(
    name: str,
    cells: list[Cell],
    function: Callable[[Cell], Values],
    options: Options,
    code: Path | None = None,
) -> list[dict[str, Any]]:
    """Complete the records of all cells, or of those of ``--only``, and return them."""
    ledger = open_ledger(name, cells, function, options, code)
    ledger.complete([cell for cell in cells if options.chooses(cell)])
    return read(name, options)


def open_ledger(
    name: str,
    cells: list[Cell],
    function: Callable[[Cell], Values],
    options: Options,
    code: Path | None = None,
) -> Ledger:
    """The ledger of an experiment: it holds these cells and further repeats of them.

    Its stamp is that of ``function``, or of all of the file ``code``. Records of methods that ``--only`` does
    not name stay as they are.
    """
    methods = {method_of(cell) for cell in cells}
    if unknown := set(options.only) - methods:
        sys.exit(f"{name} has no {unknown.pop()}; choose from: {', '.join(sorted(methods))}.")
    reached = trace([(code, None) if code else _locate(function)])
    versions = {"localw2": localw2.__version__, "python": platform.python_version()} | reached.versions()
    position = {key_of(cell): i for i, cell in enumerate(cells)}
    alike = {key_of(cell | {"seed": None}) for cell in cells}
    return Ledger(
        options.results / f"{name}.json",
        partial(_run_on_one_thread, function),
        dict.fromkeys(map(method_of, filter(options.chooses, cells)), Stamp.of(reached, versions)),
        order=lambda settings: position.get(key_of(settings), len(position)),
        holds=lambda settings: not options.chooses(settings) or key_of(settings | {"seed": None}) in alike,
        jobs=options.jobs,
    )


def read(name: str, options: Options) -> list[dict[str, Any]]:
    """Read the records on file, for panels."""
    records: list[dict[str, Any]] = json.loads((options.results / f"{name}.json").read_text())["records"]
    return records


def group(records: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[Values]]:
    """Collect the values of records that share these settings, in order: the repeats of one cell together."""
    found: dict[tuple[Any, ...], list[Values]] = {}
    for record in records:
        key = tuple(record["settings"].get(name) for name in names)
        found.setdefault(key, []).append({**record["values"], "seconds": count_seconds(record)})
    return found


def count_seconds(record: dict[str, Any]) -> float:
    """The seconds of a core that a record took; by the clock in older ones."""
    return float(record["values"].get("core_seconds", record["seconds"]))


def _locate(function: Callable[[Cell], Values]) -> Root:
    """The file and the name of a function, or of the one inside a ``partial``."""
    inner = function.func if isinstance(function, partial) else function
    return Path(inner.__code__.co_filename).resolve(), inner.__name__


def _run_on_one_thread(function: Callable[[Cell], Values], cell: Cell) -> Values:
    """The values of a cell, and the seconds of a core: those of the clock depend on what else is running."""
    torch.set_num_threads(1)
    start = time.process_time()
    values = function(cell)
    return {**values, "core_seconds": round(time.process_time() - start, 2)}
