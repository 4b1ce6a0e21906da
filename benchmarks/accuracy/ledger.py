"""Records of the comparison: one for each table, split and method, in a file a table, written as they come.

A record names the code that made it: a hash of the files it rests on and of the versions of its packages.
What has a record of the present code is not computed again. Where code has changed since, the cheapest split
of the method is computed anew: if it comes out the same, its other records stand and bear the new name; if
not, all are computed again (the idea of ``paper/records.py``). One split is evidence, no proof: after a
change that may touch some tables only, delete their records.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import localw2
from environments import versions
from methods import Method

HERE = Path(__file__).parent
FOLDER = HERE / "records"
# Parts of the package that no fit runs.
PROGRAMS = ("cli", "explorer", "report.py", "report_figures.py", "tables.py", "csv_tables.py")

Record = dict[str, Any]
Key = tuple[str, int, str]


def key(record: Record) -> Key:
    """What tells records apart: table, split, method."""
    return record["set"], record["split"], record["method"]


def read(folder: Path) -> dict[Key, Record]:
    """All records of a folder."""
    found: dict[Key, Record] = {}
    for path in sorted(folder.glob("*.json")):
        found |= {key(record): record for record in json.loads(path.read_text())["records"]}
    return found


def write(folder: Path, name: str, records: Iterable[Record], made_by: dict[str, dict[str, str]]) -> None:
    """The file of one table, in a fixed order, a line a record; ``made_by`` has the versions of each code."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    kept = sorted((r for r in records if r["set"] == name), key=lambda r: (r["method"], r["split"]))
    old = json.loads(path.read_text())["made_by"] if path.exists() else {}
    named = {code: v for code, v in sorted((old | made_by).items()) if code in {r["code"] for r in kept}}
    content = json.dumps({"set": name, "made_by": named, "records": kept}, separators=(",", ":"))
    partial = path.with_suffix(".partial")
    partial.write_text(content.replace('{"set"', '\n{"set"').lstrip("\n") + "\n")
    os.replace(partial, path)


def code_of(method: Method) -> str:
    """The name of the present code of a method: its functions, its packages, and localw2 where it is used.

    Twelve hexadecimal digits.
    """
    module = method.factory.split(":")[0]
    package = Path(localw2.__file__).parent
    files = [HERE / f"{module}.py", HERE / "runner.py", HERE / "scoring.py"]
    files += [HERE.parent / "uci.py", package / "metrics.py"]  # splits and scores are those of all methods
    if "localw2" in method.packages:
        files += [p for p in sorted(package.rglob("*.py")) if p.relative_to(package).parts[0] not in PROGRAMS]
    digest = hashlib.sha256(f"{method.factory} {versions(method.environment, method.packages)}".encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def same(a: Record, b: Record) -> bool:
    """Whether two records of one split say the same, seconds and code apart, to six digits.

    >>> same({"crps": 0.5, "fit_seconds": 1.0}, {"crps": 0.5 + 1e-9, "fit_seconds": 2.0})
    True
    """
    names = {name for name in a.keys() | b.keys() if "seconds" not in name} - {"code", "extrapolated"}
    return all(_close(a.get(name), b.get(name)) for name in names)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    return bool(a == b)


def stands(record: Record | None, code: str, limit: float) -> bool:
    """Whether a record need not be computed: it is of this code, and a longer limit would not change it."""
    if record is None or record["code"] != code or record["status"] == "failed":
        return False
    return record["status"] == "done" or bool(record["limit"] >= limit)


def cheapest(records: Iterable[Record]) -> dict[tuple[str, str], Record]:
    """Of each method and each code the finished record that took least time."""
    found: dict[tuple[str, str], Record] = {}
    done = (record for record in records if record["status"] == "done")
    for record in sorted(done, key=lambda r: float(r["fit_seconds"] + r["draw_seconds"])):
        found.setdefault((record["method"], record["code"]), record)
    return found
