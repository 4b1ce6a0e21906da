"""Results on file, each stamped with the code that computed it: for ``paper/`` and ``benchmarks/accuracy/``.

An experiment is a list of cells, each a dict of plain settings, and a function from a cell to plain values.
``Ledger.complete`` computes the cells that have no record yet and writes the file after each one, so that an
interrupted run continues where it stopped.

A record carries a stamp: a hash of the definitions that its function reaches by name, in the script, in the
script's own modules and in localw2, together with the versions of the packages that these import. Comments,
docstrings and formatting do not count, nor does any code that the function does not reach. Where the stamp of
a method has changed, the cheapest record of that method is computed again. If the values agree, its other
records stand and get the new stamp; if not, all of them are computed again. One cell is evidence, not proof:
after a change that may affect some settings only, delete the file.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, final

from joblib import Parallel, delayed

import localw2

Settings = dict[str, Any]
Values = dict[str, Any]
Record = dict[str, Any]  # settings, values, seconds, code
Root = tuple[Path, str | None]  # a file and one of its definitions, or all of them

BENCHMARKS = Path(__file__).parent
PACKAGE = Path(localw2.__file__).parent
SIX_DIGITS = 1e-6
# Packages whose version may change a result, by the name under which they are imported.
DISTRIBUTIONS = {
    "torch": "torch",
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "lap": "lapx",
    "torchdiffeq": "torchdiffeq",
    "torchbnn": "torchbnn",
}
NEVER_ON_IMPORT = ("TYPE_CHECKING", "__name__ == '__main__'")
UNSTAMPED = ("localw2", "python")  # recorded; localw2 is stamped by its code, not by its version


# The stamp


@final
@dataclass(frozen=True)
class Code:
    """The statements that a computation reaches, as (module, text), and the packages that they import."""

    statements: frozenset[tuple[str, str]]
    packages: frozenset[str]

    @property
    def modules(self) -> set[str]:
        """The files that hold these statements."""
        return {module for module, _ in self.statements}

    def versions(self) -> dict[str, str]:
        """The installed versions of the packages that may change a result."""
        return {name: version(name) for module, name in DISTRIBUTIONS.items() if module in self.packages}


@final
@dataclass(frozen=True)
class Stamp:
    """The name of some code, twelve hexadecimal digits, and the versions of the packages it runs with."""

    code: str
    versions: dict[str, str]

    @classmethod
    def of(cls, code: Code, versions: Mapping[str, str]) -> Stamp:
        """Hash the statements and the versions."""
        hashed = sorted((name, number) for name, number in versions.items() if name not in UNSTAMPED)
        digest = hashlib.sha256(repr((sorted(code.statements), hashed)).encode())
        return cls(digest.hexdigest()[:12], dict(versions))


class _Statement(NamedTuple):
    """A statement at the top level of a module; ``binds`` is None where it counts for its effect."""

    text: str
    binds: frozenset[str] | None
    uses: frozenset[str]
    imports: tuple[tuple[str, str | None], ...]  # module, and the name taken from it


def trace(roots: Iterable[Root]) -> Code:
    """Follow names from the roots through imports, those inside functions included, except into localw2.apps.

    A statement that only has an effect (a registration, an assertion) counts as soon as its module does.
    """
    statements: set[tuple[str, str]] = set()
    packages: set[str] = set()
    seen: set[Root] = set()
    pending = list(roots)
    while pending:
        path, name = pending.pop()
        if (path, name) in seen:
            continue
        seen.add((path, name))
        top_level = _split_module(path.read_text(encoding="utf-8"))
        bound = {one for statement in top_level for one in statement.binds or ()}
        for statement in top_level:
            if name is not None and statement.binds is not None and name not in statement.binds:
                continue
            statements.add((_module_name(path), statement.text))
            pending += [(path, used) for used in statement.uses & bound]
            for module, wanted in statement.imports:
                target = _resolve(module, wanted, path)
                if target is None:
                    packages.add(module.split(".")[0])
                elif not target[0].is_relative_to(PACKAGE / "apps"):
                    pending.append(target)
    return Code(frozenset(statements), frozenset(packages))


def _module_name(path: Path) -> str:
    if path.is_relative_to(PACKAGE):
        return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return path.stem


def _resolve(module: str, name: str | None, importer: Path) -> Root | None:
    """The file behind an import and what it takes from it; None for a package of somebody else."""
    if module == "localw2" and name in localw2._HOME_OF:
        module = f"localw2.{localw2._HOME_OF[name]}"
    inner = None if name is None else _find_file(f"{module}.{name}", importer)
    if inner is not None:
        return inner, None
    found = _find_file(module, importer)
    if found is None and module.startswith("localw2."):
        raise ImportError(f"{importer} imports {module}, which is not in {PACKAGE}.")
    return None if found is None else (found, name)


def _find_file(module: str, importer: Path) -> Path | None:
    top, *parts = module.split(".")
    if top == "localw2":
        place = PACKAGE.joinpath(*parts)
        candidates = [place.with_suffix(".py"), place / "__init__.py"] if parts else []
    else:
        candidates = [
            folder.joinpath(top, *parts).with_suffix(".py") for folder in (importer.parent, BENCHMARKS)
        ]
    return next((path for path in candidates if path.is_file()), None)


@cache
def _split_module(text: str) -> tuple[_Statement, ...]:
    """The statements that run on import, one for each imported name; not those for type checkers alone."""
    found: list[_Statement] = []
    for statement in ast.parse(text).body:
        parts: list[ast.stmt] = [statement]
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in NEVER_ON_IMPORT:
            parts = statement.orelse
        elif isinstance(statement, ast.ImportFrom):
            parts = [ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names]
        elif isinstance(statement, ast.Import):
            parts = [ast.Import([alias]) for alias in statement.names]
        found += [_read_statement(part) for part in parts if not _has_no_effect(part)]
    return tuple(found)


def _read_statement(statement: ast.stmt) -> _Statement:
    nodes = list(ast.walk(statement))
    uses = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    imports: list[tuple[str, str | None]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            imports += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [(node.module or "", alias.name) for alias in node.names]
    binds = frozenset(_list_names(statement)) or None
    return _Statement(repr(_dump(statement)), binds, frozenset(uses), tuple(imports))


def _list_names(statement: ast.stmt) -> list[str]:
    """The names that a definition, an import or a plain assignment binds."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
        case ast.Assign():
            targets = statement.targets
        case ast.AnnAssign():
            targets = [statement.target]
        case _:
            return []
    nodes = [node for target in targets for node in ast.walk(target)]
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _dump(node: Any) -> Any:
    """A syntax tree without docstrings, and without empty fields, which differ between versions of Python."""
    if isinstance(node, list):
        return [_dump(item) for item in node if not _has_no_effect(item)]
    if isinstance(node, ast.Constant):
        return ["Constant", repr(node.value)]
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return [type(node).__name__, *([name, _dump(value)] for name, value in fields)]
    return node


def _has_no_effect(node: Any) -> bool:
    """Whether this is a docstring or another constant that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# Records


def agree(a: Any, b: Any, tolerance: float = SIX_DIGITS) -> bool:
    """Whether two results agree to a relative tolerance, apart from the time they took.

    >>> agree({"error": [0.5], "fit_seconds": 1.0}, {"error": [0.5 + 1e-9], "fit_seconds": 2.0})
    True
    """
    if isinstance(a, dict) and isinstance(b, dict):
        a, b = ({k: v for k, v in values.items() if "seconds" not in k} for values in (a, b))
        return a.keys() == b.keys() and all(agree(a[name], b[name], tolerance) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(agree(v, w, tolerance) for v, w in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-9)
    return bool(a == b)


def key_of(settings: Settings) -> str:
    """Settings as text, to compare and to look up."""
    return json.dumps(settings, sort_keys=True)


def method_of(settings: Settings) -> str:
    """The method of a cell, by which its records are checked and stamped."""
    return str(settings.get("method", settings.get("model")))


def _accept(_: Any) -> bool:
    return True


@final
@dataclass
class Ledger:
    """The records of one experiment, in one file.

    ``stamps`` are those of the present code, by method; methods without one are left alone. ``order`` sorts
    the file. Records whose settings ``holds`` rejects are dropped; one that does not stand (``stands``) is
    computed again whatever its stamp. ``tolerances`` are for methods that do not repeat to six digits.
    """

    path: Path
    run: Callable[[Settings], Values]
    stamps: Mapping[str, Stamp]
    order: Callable[[Settings], Any]
    holds: Callable[[Settings], bool] = _accept
    stands: Callable[[Record], bool] = _accept
    tolerances: Mapping[str, float] = field(default_factory=dict)
    jobs: int = 1
    threads: bool = False  # instead of processes, for functions that start their own

    def __post_init__(self) -> None:
        """Read the file, if there is one."""
        text = self.path.read_text() if self.path.exists() else '{"wall_seconds": 0.0}'
        content: dict[str, Any] = json.loads(text)
        codes = content.get("stamps", {})
        self.wall_seconds: float | None = content.get("wall_seconds")
        self.versions: dict[str, dict[str, str]] = content.get("versions", {})
        self.records: dict[str, Record] = {
            key_of(record["settings"]): {"code": codes.get(method_of(record["settings"]), ""), **record}
            for record in content.get("records", ())
            if self.holds(record["settings"])
        }

    def check(self) -> list[Record]:
        """Compute the cheapest stale record of each method again, and restamp the method where it agrees.

        Returns the new records that differ; the file keeps the old ones.
        """
        stale = [record for record in self.records.values() if self._is_stale(record) and self.stands(record)]
        cheapest: dict[tuple[str, str], Record] = {}  # a method may have records of several codes
        for record in sorted(stale, key=lambda record: float(record["seconds"])):
            cheapest.setdefault((method_of(record["settings"]), record["code"]), record)
        if cheapest:
            print(
                f"{self.path.stem}: the code has changed; {len(cheapest)} of {len(stale)} records are checked"
            )
        differing = []
        for new in self._compute([record["settings"] for record in cheapest.values()], "checked"):
            method, old = method_of(new["settings"]), self.records[key_of(new["settings"])]
            if not agree(old["values"], new["values"], self.tolerances.get(method, SIX_DIGITS)):
                print(f"  {method}: DIFFERENT values", flush=True)
                differing.append(new)
                continue
            # The seconds on file stay: a check may run beside other work.
            before = old["code"]
            for record in self.records.values():
                if (method_of(record["settings"]), record["code"]) == (method, before):
                    record["code"] = self.stamps[method].code
            self._write()
        return differing

    def complete(self, cells: list[Settings]) -> None:
        """Check what is stale, then compute every cell without a valid record."""
        differing = self.check()
        for record in differing:
            self._keep(record)
        wanted = {key_of(cell) for cell in cells}
        for key, record in list(self.records.items()):
            if self._is_stale(record) and key not in wanted:
                del self.records[key]  # a further repeat, which nobody asked for again
        changed = {method_of(record["settings"]) for record in differing}
        if changed:
            print(f"computed again: {', '.join(sorted(changed))}")
        if self.wall_seconds is not None and all(method_of(cell) in changed for cell in cells):
            self.wall_seconds = 0.0  # nothing is left of what took that time
        missing = [cell for cell in cells if not self._is_valid(self.records.get(key_of(cell)))]
        print(f"{self.path.stem}: {len(cells) - len(missing)} of {len(cells)} cells on file", flush=True)
        before, start = self.wall_seconds, time.perf_counter()
        for record in self._compute(missing, "computed"):
            if before is not None:
                self.wall_seconds = before + time.perf_counter() - start
            self._keep(record)
            self._write()
        self._write()

    def _is_stale(self, record: Record) -> bool:
        stamp = self.stamps.get(method_of(record["settings"]))
        return stamp is not None and record["code"] != stamp.code

    def _is_valid(self, record: Record | None) -> bool:
        return record is not None and not self._is_stale(record) and self.stands(record)

    def _keep(self, record: Record) -> None:
        self.records[key_of(record["settings"])] = record

    def _compute(self, cells: list[Settings], verb: str) -> Iterator[Record]:
        start = time.perf_counter()
        prefer = "threads" if self.threads else None
        work = Parallel(n_jobs=self.jobs, prefer=prefer, return_as="generator_unordered")
        for i, record in enumerate(work(delayed(_time)(self.run, cell) for cell in cells), start=1):
            took = time.perf_counter() - start
            print(f"  {verb} {i}/{len(cells)} after {took:.0f} s: {key_of(record['settings'])}", flush=True)
            yield record | {"code": self.stamps[method_of(record["settings"])].code}

    def _write(self) -> None:
        """Replace the file in one step. A method's code is written once, unless its records differ in it."""
        records = sorted(self.records.values(), key=lambda record: self.order(record["settings"]))
        codes: dict[str, set[str]] = {}
        for record in records:
            codes.setdefault(method_of(record["settings"]), set()).add(record["code"])
        shared = {method: next(iter(found)) for method, found in codes.items() if len(found) == 1}
        lines = [
            {k: v for k, v in record.items() if k != "code" or method_of(record["settings"]) not in shared}
            for record in records
        ]
        present = {stamp.code: stamp.versions for stamp in self.stamps.values()}
        known = self.versions | present
        used = sorted({code for found in codes.values() for code in found} & known.keys())
        content = {
            "experiment": self.path.stem,
            **({} if self.wall_seconds is None else {"wall_seconds": round(self.wall_seconds, 1)}),
            "stamps": shared,
            "versions": {code: known[code] for code in used},
            "records": lines,
        }
        text = json.dumps(content, separators=(",", ":")).replace('{"settings"', '\n{"settings"')
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(text + "\n")
        os.replace(partial, self.path)


def _time(run: Callable[[Settings], Values], cell: Settings) -> Record:
    start = time.perf_counter()
    values = run(cell)
    return {"settings": cell, "values": values, "seconds": round(time.perf_counter() - start, 2)}
