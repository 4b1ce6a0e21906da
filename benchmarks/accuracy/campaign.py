"""Ours and every peer on the same standard splits, in one run: CRPS, coverage, width, RMSE, seconds.

    python benchmarks/accuracy/campaign.py --data-dir DIR [--sets yacht ...] [--splits 20]
        [--methods ours peer ...] [--jobs 2] [--limit 900] [--out FOLDER]

DIR holds ``<set>/data.txt``: numbers, the target last (see ``benchmarks/uci.py``, also for the splits).
``--methods`` takes names and groups: ours, peer, baseline, ablation (all by default). Each method runs in a
process of its own with one thread, and in an environment of its own where it needs one. Every result is
written to FOLDER/<set>.json as it is done, and a second call goes on where the first was stopped; a method
that takes longer than ``--limit`` seconds on a split is recorded as too slow. Tables: ``table.py``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from joblib import Parallel, delayed

sys.path.insert(0, str(Path(__file__).parents[1]))  # uci.py

import ledger
from environments import versions
from ledger import Key, Record
from methods import BY_NAME, METHODS, Method, chosen
from scoring import measure
from table import print_tables
from uci import names, standard_split


@final
@dataclass(frozen=True)
class Campaign:
    """What to run, and where its records are."""

    data_dir: Path
    sets: tuple[str, ...]
    splits: int
    methods: tuple[Method, ...]
    jobs: int
    limit: float
    out: Path

    def run(self) -> dict[Key, Record]:
        """Compute what has no record, and give all records back."""
        self.out.mkdir(parents=True, exist_ok=True)
        known = ledger.read(self.out)
        codes = {method.name: ledger.code_of(method) for method in self.methods}
        self._check(known, codes)
        wanted = [(s, i, m.name) for s in self.sets for i in range(self.splits) for m in self.methods]
        missing = [k for k in wanted if not ledger.stands(known.get(k), codes[k[2]], self.limit)]
        print(f"{len(wanted) - len(missing)} of {len(wanted)} records on file in {self.out}", flush=True)
        for record in self._compute(missing, codes):
            self._keep(known, record)
        return known

    def _check(self, known: dict[Key, Record], codes: dict[str, str]) -> None:
        """Records of other code stand if the cheapest of them comes out the same today."""
        stale = [
            r
            for r in known.values()
            if r["set"] in self.sets and r["code"] != codes.get(r["method"], r["code"])
        ]
        probes = {ledger.key(r): r for r in ledger.cheapest(stale).values()}
        if probes:
            print(f"code has changed: {len(probes)} records computed again, to see whether the rest stand")
        confirmed = set()
        for record in self._compute(list(probes), codes):
            before = probes[ledger.key(record)]
            verdict = (
                "the same" if ledger.same(before, record) else "OTHER: all its records are computed again"
            )
            print(f"  {record['method']}: {verdict}", flush=True)
            if ledger.same(before, record):  # its seconds are of the run that made its companions
                confirmed.add((before["method"], before["code"]))
                record = before | {"code": record["code"]}
            self._keep(known, record)
        for record in stale:
            if known[ledger.key(record)] is not record:
                continue  # it was the one computed again
            if (record["method"], record["code"]) in confirmed:
                self._keep(known, record | {"code": codes[record["method"]]})
            else:
                del known[ledger.key(record)]

    def _compute(self, keys: list[Key], codes: dict[str, str]) -> Iterator[Record]:
        start = time.perf_counter()
        # Threads, because each waits for a process of its own, which can be stopped when its time is up.
        work = Parallel(n_jobs=self.jobs, prefer="threads", return_as="generator_unordered")
        for i, record in enumerate(work(delayed(self._one)(k, codes[k[2]]) for k in keys), start=1):
            said = f"CRPS {record['crps']:.4g}" if record["status"] == "done" else record["status"]
            took = time.perf_counter() - start
            print(
                f"  {i}/{len(keys)} after {took:.0f} s: {' '.join(map(str, ledger.key(record)))}: {said}",
                flush=True,
            )
            yield record

    def _one(self, k: Key, code: str) -> Record:
        name, split, method = k
        data = standard_split(self.data_dir / name, split)
        values = measure(BY_NAME[method], data, split, self.limit)
        return {"set": name, "split": split, "method": method, "code": code} | values

    def _keep(self, known: dict[Key, Record], record: Record) -> None:
        known[ledger.key(record)] = record
        method = BY_NAME[record["method"]]
        made_by = {record["code"]: {"method": method.name} | versions(method.environment, method.packages)}
        ledger.write(self.out, record["set"], known.values(), made_by)


def main() -> None:
    """Run, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="the folder with <set>/data.txt")
    parser.add_argument("--sets", nargs="+", help="tables of it (all)")
    parser.add_argument("--splits", type=int, default=20, help="the first so many standard splits (20)")
    parser.add_argument("--methods", nargs="+", help="names, or ours, peer, baseline, ablation (all)")
    parser.add_argument("--jobs", type=int, default=2, help="methods at a time (2)")
    parser.add_argument(
        "--limit", type=float, default=900.0, help="seconds a method may take on a split (900)"
    )
    parser.add_argument("--out", type=Path, default=ledger.FOLDER, help="the folder of records")
    options = parser.parse_args()
    present = names(options.data_dir)
    sets = tuple(options.sets or present)
    if not sets or set(sets) - set(present):
        lacking = ", ".join(sorted(set(sets) - set(present))) or "<set>"
        parser.error(f"there is no {lacking}/data.txt in the folder that --data-dir names.")
    if options.splits < 1:
        parser.error(f"--splits {options.splits} leaves nothing to run; give 1 or more.")
    try:
        methods = chosen(options.methods) if options.methods else list(METHODS)
    except ValueError as error:
        parser.error(str(error))
    campaign = Campaign(
        options.data_dir, sets, options.splits, tuple(methods), options.jobs, options.limit, options.out
    )
    records = campaign.run()
    print_tables([r for r in records.values() if r["set"] in sets])


if __name__ == "__main__":
    main()
