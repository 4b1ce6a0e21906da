"""A room imports only rooms below it: the picture of ARCHITECTURE.md, enforced."""

import ast
import sys
from functools import cache

from rooms import LEVEL, MODULES, PACKAGE, imports, inside

MOST_FILES, MOST_FOLDERS, LONGEST_CHAIN = 9, 9, 12

CORE = {"threadpoolctl", "torch", "numpy", "scipy", "sklearn"}
# Imported inside functions, with a fallback or a message that names the extra.
LAZY = {
    "lap": ["losses.assignment"],
    "rich": ["training.progress"],
    "safetensors": ["storage.model_file"],
    "skops": ["storage.regressors"],
    "torchdiffeq": ["models.solver"],
    "matplotlib": ["plots.rows"],
    "pandas": ["datasets", "estimators.cells"],
}


@cache
def chain(name: str) -> tuple[str, ...]:
    """The longest chain of modules that importing this one goes through."""
    below = [chain(module) for module in inside(name, at_run_time=True) if module in MODULES]
    return (name, *max(below, key=len, default=()))


def test_the_top_of_the_package_is_small():
    files = [path for path in PACKAGE.iterdir() if path.is_file()]
    not_rooms = {"__pycache__", "data"}  # tables that come with the package, no code
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in not_rooms]
    assert len(files) <= MOST_FILES
    assert len(folders) <= MOST_FOLDERS
    rooms = {path.stem for path in [*files, *folders]} - {"__init__", "py"}
    assert rooms == set(LEVEL)


def test_rooms_import_lower_rooms_only():
    imported = [(name, module) for name in MODULES if name for module in sorted(inside(name))]
    upward = [
        f"{name} imports {module}"
        for name, module in imported
        if (room := name.split(".")[0]) != (other := module.split(".")[0]) and LEVEL[other] >= LEVEL[room]
    ]
    assert not upward


def test_import_chains_are_short():
    longest = max((chain(name) for name in MODULES if name), key=len)
    assert len(longest) <= LONGEST_CHAIN, " <- ".join(longest)


def test_the_library_needs_the_core_only():
    standard = set(sys.stdlib_module_names) | {"localw2"}
    for name, path in MODULES.items():
        if name.startswith("apps"):  # programs, with requirements of their own
            continue
        functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
        lazy = {line for f in functions for line in range(f.lineno, f.end_lineno + 1)}
        for module, node in imports(path):
            package = module.split(".")[0]
            if package in standard | CORE:
                continue
            assert name in LAZY.get(package, ()), f"{name} imports {package}"
            assert node.lineno in lazy, f"{name} imports {package} outside a function"
