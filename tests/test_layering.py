"""A module imports only lower ones: the map of ARCHITECTURE.md, enforced."""

import ast
from pathlib import Path

import localw2

PACKAGE = Path(localw2.__file__).parent

LAYERS = {
    "_validation": 0,
    "norms": 1,
    "search": 2,
    "neighborhoods": 3,
    "forward_gradient": 4,
    "ordering": 4,
    "assignment": 4,
    "transport": 5,
    "moments": 5,
    "pairwise": 5,
    "losses": 6,
    "datasets": 6,
    "__init__": 99,
}

CORE = {"torch", "numpy", "scipy", "sklearn"}
LAZY = {"lap": "assignment"}  # imported inside functions, with a fallback or a message


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: absolute imports only"
            yield node.module, node


def test_every_module_has_a_layer():
    assert {path.stem for path in PACKAGE.rglob("*.py")} == set(LAYERS)


def test_imports_point_down():
    for path in PACKAGE.rglob("*.py"):
        for module, _ in imports(path):
            if module.startswith("localw2."):
                below = module.split(".")[1]
                assert LAYERS[below] < LAYERS[path.stem], f"{path.stem} imports {below}"


def test_import_needs_the_core_only():
    import sys

    standard = set(sys.stdlib_module_names) | {"localw2"}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        top = {id(node) for node in tree.body}
        for module, node in imports(path):
            name = module.split(".")[0]
            if name in standard | CORE:
                continue
            assert LAZY.get(name) == path.stem, f"{path.stem} imports {name}"
            assert id(node) not in top
