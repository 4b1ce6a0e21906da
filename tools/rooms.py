"""The rooms of the package: their order, and which room imports which.

``tests/project/test_rooms.py`` enforces the order; ``tools/code_map.py`` draws it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import localw2

PACKAGE = Path(localw2.__file__).parent

# Lowest first. Rooms on one line do not know each other; inside a room any order without a cycle is fine.
LAYERS = (
    ("_validation", "_wording"),
    ("models", "storage", "datasets", "plots"),
    ("balls", "distribution"),
    ("losses",),
    ("training", "metrics"),
    ("judging",),
    ("estimators",),
    ("apps",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def module_name(path: Path) -> str:
    """``losses.w2`` of ``losses/w2.py``, "" of the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, at_run_time: bool = False) -> Iterator[tuple[str, ast.AST]]:
    """(imported module, its node), with names of the package itself traced to where they live."""

    def walk(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
        if at_run_time and (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ):
            return
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: absolute imports only"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}".removeprefix("localw2.")
                home = localw2._HOME_OF.get(alias.name, alias.name) if node.module == "localw2" else inner
                known = home in MODULES and node.module.startswith("localw2")
                yield (f"localw2.{home}" if known else node.module), node
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    return walk(ast.parse(path.read_text(encoding="utf-8")))


def inside(name: str, at_run_time: bool = False) -> set[str]:
    """Modules of the package that a module imports."""
    found = {module for module, _ in imports(MODULES[name], at_run_time) if module.startswith("localw2.")}
    return {module.removeprefix("localw2.") for module in found}


def room_imports() -> dict[str, set[str]]:
    """The rooms that each room imports, at import time, inside functions, or for its types only."""
    found: dict[str, set[str]] = {room: set() for room in LEVEL}
    for name in MODULES:
        if name:
            room = name.split(".")[0]
            found[room] |= {module.split(".")[0] for module in inside(name)} - {room}
    return found
