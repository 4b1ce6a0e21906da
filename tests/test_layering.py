"""A module imports only lower ones: the map of ARCHITECTURE.md, enforced."""

import ast
from pathlib import Path

import localw2

PACKAGE = Path(localw2.__file__).parent

LAYERS = {
    "_validation": 0,
    "norms": 1,
    "balls": 1,
    "search": 2,
    "neighborhoods": 3,
    "lazy_neighborhoods": 4,
    "keyed_noise": 1,
    "distributed": 1,
    "forward_gradient": 4,
    "ordering": 4,
    "assignment": 4,
    "cuda_kernels": 0,
    "matching": 0,
    "gpu_assignment": 4,
    "gpu_sorting": 4,
    "transport": 5,
    "moments": 5,
    "pairwise": 5,
    "losses": 6,
    "datasets": 6,
    "metrics": 6,
    "archive_audit": 1,
    "regressor_checks": 2,
    "regressor_packing": 3,
    "persistence": 6,
    "plots": 6,
    "selection": 7,
    "seen_rows": 2,
    "sampler_draws": 1,
    "swap_statistics": 2,
    "swap_pairs": 2,
    "conditional_plots": 7,
    "conditional_testing": 8,
    "diagnostic_plots": 7,
    "diagnostic_checks": 7,
    "diagnostics": 8,
    "bounds": 8,
    "conformal": 7,
    "estimators.judging": 11,
    "estimators.calibration": 11,
    "models": 7,
    "models.base": 7,
    "models.linear": 8,
    "models.network": 8,
    "models.laws": 8,
    "models.fields": 9,
    "models.dynamics": 10,
    "models.paths": 11,
    "progress": 1,
    "fit_config": 1,
    "checkpoints": 8,
    "batches": 7,
    "descent": 8,
    "captured": 8,
    "stacked_losses": 7,
    "stacked_training": 10,
    "training": 9,
    "estimators": 10,
    "estimators.anchoring": 10,
    "estimators.kernel_mean": 9,
    "estimators.columns": 10,
    "estimators.outcomes": 10,
    "estimators.answering": 12,
    "estimators.bases": 10,
    "estimators.integration": 10,
    "estimators.settings": 10,
    "estimators.scaling": 10,
    "estimators.choosing": 11,
    "estimators.many_rows": 12,
    "estimators.residual_loss": 12,
    "estimators.trained_choice": 13,
    "estimators.dynamics_checks": 12,
    "estimators.stored_values": 10,
    "estimators.storing": 12,
    "estimators.coefficient_laws": 10,
    "estimators.trajectories": 10,
    "estimators.learned_parameters": 12,
    "estimators.storing_dynamics": 12,
    "estimators.coefficients": 13,
    "estimators.regression": 14,
    "estimators.dynamics": 13,
    "estimators.files": 15,
    "atomic_files": 0,
    "report_figures": 8,
    "report_parts": 9,
    "report_trajectories": 10,
    "report": 15,
    "csv_tables": 0,
    "text_tables": 0,
    "tables": 1,
    "cli.running": 1,
    "cli.options": 1,
    "cli.config": 2,
    "cli.long_tables": 2,
    "cli.model_files": 16,
    "cli.predicting": 17,
    "cli.showing": 17,
    "cli.judging": 25,
    "cli.fitting": 26,
    "cli.dynamics": 27,
    "cli": 28,
    "cli.__main__": 29,
    "explorer.guard": 0,
    "explorer.curves": 1,
    "explorer.schemas": 1,
    "explorer.quick_trees": 1,
    "explorer.observed": 15,
    "explorer.answers": 16,
    "explorer.app": 17,
    "explorer.following": 18,
    "explorer.serving": 18,
    "explorer": 19,
    "": 99,
}

CORE = {"torch", "numpy", "scipy", "sklearn"}
# Imported inside functions, with a fallback or a message.
LAZY = {
    "lap": ["assignment"],
    "rich": ["progress"],
    "torchdiffeq": ["models.dynamics"],
    "matplotlib": ["plots", "report_figures"],
    "pyarrow": ["tables"],
    "pandas": ["estimators.columns"],
}
# Imported at the top by the programs around the library, which the library itself never imports.
PROGRAMS = {
    "typer": "cli",
    "fastapi": "explorer",
    "pydantic": "explorer",
    "pydantic_core": "explorer",
    "threadpoolctl": "explorer",
    "uvicorn": "explorer",
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: absolute imports only"
            if node.module == "localw2":
                yield from ((f"localw2.{alias.name}", node) for alias in node.names)
            else:
                yield node.module, node


def test_every_module_has_a_layer():
    assert {module_name(path) for path in PACKAGE.rglob("*.py")} == set(LAYERS)


def test_imports_point_down():
    for path in PACKAGE.rglob("*.py"):
        name = module_name(path)
        for module, _ in imports(path):
            below = module.removeprefix("localw2.")
            if module.startswith("localw2.") and below in LAYERS:
                assert LAYERS[below] < LAYERS[name], f"{name} imports {below}"


def test_import_needs_the_core_only():
    import sys

    standard = set(sys.stdlib_module_names) | {"localw2"}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        lazy = {line for f in functions for line in range(f.lineno, f.end_lineno + 1)}
        for module, node in imports(path):
            name = module.split(".")[0]
            if name in standard | CORE or module_name(path).split(".")[0] == PROGRAMS.get(name):
                continue
            assert module_name(path) in LAZY.get(name, ()), f"{module_name(path)} imports {name}"
            assert node.lineno in lazy, f"{module_name(path)} imports {name} outside a function"
