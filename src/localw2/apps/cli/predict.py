"""``localw2 predict``, ``sample`` and ``info``: what a model says, and what it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localw2._wording import to_plain
from localw2.apps.cli.config import Config, read_record
from localw2.apps.cli.options import (
    Data,
    Decimal,
    DecimalMark,
    DropMissing,
    Features,
    Json,
    Model,
    Seed,
    TableOut,
)
from localw2.apps.cli.running import parse_numbers, print_result, report_errors, split_names

if TYPE_CHECKING:
    from localw2.apps.cli.model_files import ModelRows, NamedModel

Keep = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Columns of DATA to copy into the result, such as an identifier."),
]


@report_errors
def predict(
    context: typer.Context,
    model: Model,
    data: Data,
    quantiles: Annotated[
        str | None, typer.Option(metavar=".05,.5,.95", help="Quantiles to predict instead of an interval.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="0.9", help="Coverage of the prediction interval; 0.9 by default."),
    ] = None,
    out: TableOut = "-",
    keep: Keep = None,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Predict the mean, the standard deviation and an interval or quantiles for every row of DATA."""
    from localw2.apps.cli.model_files import load_model, read_data, select_rows, write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    levels = [] if quantiles is None else parse_numbers(quantiles, "--quantiles")
    coverage = 0.9 if interval is None and not levels else interval
    loaded = load_model(model)
    rows = select_rows(loaded, read_data(data, decimal), features, drop_missing=drop_missing, observed=False)
    columns = copy_columns(rows, keep) | predict_columns(loaded, rows.X, levels, coverage)
    write_result(context, columns, out, as_json, rows.table.sha256)


def predict_columns(model: NamedModel, X: Any, levels: list[float], coverage: float | None) -> dict[str, Any]:
    """Predict the columns ``y_mean`` and ``y_std``, then ``y_q0.05`` or ``y_lower_0.9`` and so on."""
    estimator, names = model.estimator, model.target_names()
    parts = dict(zip(("mean", "std"), estimator.predict(X, return_std=True), strict=True))
    if levels:
        found = estimator.predict_quantiles(X, levels)
        parts |= {f"q{level:g}": values for level, values in zip(levels, found, strict=True)}
    if coverage is not None:
        lower, upper = estimator.predict_interval(X, coverage=coverage)
        parts |= {f"lower_{coverage:g}": lower, f"upper_{coverage:g}": upper}
    return {
        f"{name}_{part}": values.reshape(len(X), -1)[:, place]
        for place, name in enumerate(names)
        for part, values in parts.items()
    }


@report_errors
def sample(
    context: typer.Context,
    model: Model,
    data: Data,
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Draws per row.")] = 100,
    seed: Seed = 0,
    out: TableOut = "-",
    keep: Keep = None,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Draw from the conditional distribution at every row of DATA; one line per row and draw."""
    import numpy as np

    from localw2.apps.cli.model_files import load_model, read_data, select_rows, write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    loaded = load_model(model)
    rows = select_rows(loaded, read_data(data, decimal), features, drop_missing=drop_missing, observed=False)
    draws = loaded.estimator.sample(rows.X, n_samples=n_samples, random_state=seed)
    draws = draws.reshape(n_samples, len(rows.X), -1)
    columns = {name: np.repeat(values, n_samples) for name, values in copy_columns(rows, keep).items()}
    columns["draw"] = np.tile(np.arange(1, n_samples + 1), len(rows.X))
    for place, name in enumerate(loaded.target_names()):
        columns[name] = draws[:, :, place].T.ravel()
    write_result(context, columns, out, as_json, rows.table.sha256)


def copy_columns(rows: ModelRows, keep: str | None) -> dict[str, Any]:
    """Copy the number of each row in its file, and the columns that the result shall carry along."""
    kept = split_names(keep, rows.table.names)
    return {"row": rows.number} | {name: rows.table.column(name).to_numpy() for name in kept}


@report_errors
def info(model: Model, config: Config = None, as_json: Json = False) -> None:
    """Describe a model: its columns, settings, balls, base, training and origin."""
    from localw2.apps.cli.model_files import ODE, REGRESSORS, load_model

    loaded = load_model(model, (*REGRESSORS, ODE))
    estimator = loaded.estimator
    found: dict[str, Any] = {
        "model": model,
        "kind": loaded.kind,
        "bytes": Path(model).stat().st_size,
        **loaded.columns,
    }
    for name in ("n_features_in_", "n_outputs_", "base_name_", "delta_", "norm_", "n_states_", "t0_"):
        if hasattr(estimator, name):
            found[name.rstrip("_")] = getattr(estimator, name)
    if hasattr(estimator, "fit_"):
        history = estimator.fit_.losses
        found |= {"epochs": len(history), "stopped": estimator.fit_.stopped, "loss": history[-1]}
        found["seconds"] = round(estimator.fit_.seconds, 2)
    calibration = getattr(estimator, "calibration_", None)
    found["calibration"] = None if calibration is None else calibration.kind
    found["parameters"] = {k: v for k, v in estimator.get_params(deep=False).items() if v is not None}
    found["record"] = read_record(model)
    found = to_plain(found)
    print_result(found, format_info(found), as_json)


def format_info(found: Mapping[str, Any]) -> str:
    """Format the description for people."""
    record = found["record"].get("record", {})
    rows = [
        [name.replace("_", " "), _shorten(value)]
        for name, value in found.items()
        if name not in ("parameters", "record") and value is not None
    ]
    rows += [
        [f"fit {name}", _shorten(record[name])] for name in ("data", "rows", "command") if name in record
    ]
    rows += [[f"  {name}", _shorten(value)] for name, value in found["parameters"].items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _shorten(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else " ".join(str(value).split())
    return text if len(text) <= 160 else text[:157] + "..."
