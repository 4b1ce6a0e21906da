"""``localw2 predict``, ``sample`` and ``info``: what a model says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localw2.apps.cli.config import Config, keep_settings, settings_path, used_settings
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
from localw2.apps.cli.running import give, listed, numbers_in, plain, told

if TYPE_CHECKING:
    from localw2.apps.cli.model_files import NamedModel, Rows

Keep = Annotated[
    str | None, typer.Option(metavar="A,B", help="Columns of DATA to copy into the result, such as a name.")
]


@told
def predict(
    context: typer.Context,
    model: Model,
    data: Data,
    quantiles: Annotated[
        str | None, typer.Option(metavar=".05,.5,.95", help="Quantiles to give, instead of an interval.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="0.9", help="Coverage of the interval to give (0.9 if none is said)."),
    ] = None,
    out: TableOut = "-",
    keep: Keep = None,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Mean, standard deviation and an interval or quantiles of the target at every row of DATA."""
    from localw2.apps.cli.model_files import load_model, read_data, rows_for
    from localw2.apps.tables.tables import check_format

    check_format(out)
    levels = [] if quantiles is None else numbers_in(quantiles, "--quantiles")
    coverage = 0.9 if interval is None and not levels else interval
    loaded = load_model(model)
    rows = rows_for(loaded, read_data(data, decimal), features, drop_missing=drop_missing, observed=False)
    columns = kept_columns(rows, keep) | predicted(loaded, rows.X, levels, coverage)
    give_table(context, columns, out, as_json, rows.table.sha256)


def predicted(model: NamedModel, X: Any, levels: list[float], coverage: float | None) -> dict[str, Any]:
    """Columns with the predictions: ``y_mean``, ``y_std``, then ``y_q0.05`` or ``y_lower_0.9``."""
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


@told
def sample(
    context: typer.Context,
    model: Model,
    data: Data,
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Draws at every row.")] = 100,
    seed: Seed = 0,
    out: TableOut = "-",
    keep: Keep = None,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Independent draws of the target at every row of DATA: a line for each row and draw."""
    import numpy as np

    from localw2.apps.cli.model_files import load_model, read_data, rows_for
    from localw2.apps.tables.tables import check_format

    check_format(out)
    loaded = load_model(model)
    rows = rows_for(loaded, read_data(data, decimal), features, drop_missing=drop_missing, observed=False)
    draws = loaded.estimator.sample(rows.X, n_samples=n_samples, random_state=seed)
    draws = draws.reshape(n_samples, len(rows.X), -1)
    columns = {name: np.repeat(values, n_samples) for name, values in kept_columns(rows, keep).items()}
    columns["draw"] = np.tile(np.arange(1, n_samples + 1), len(rows.X))
    for place, name in enumerate(loaded.target_names()):
        columns[name] = draws[:, :, place].T.ravel()
    give_table(context, columns, out, as_json, rows.table.sha256)


def kept_columns(rows: Rows, keep: str | None) -> dict[str, Any]:
    """The number of each row in its file, and the columns that the result shall carry along."""
    return {"row": rows.number} | {name: rows.table.column(name) for name in listed(keep, rows.table.names)}


def give_table(
    context: typer.Context, columns: Mapping[str, Any], out: str, as_json: bool, sha256: str | None = None
) -> None:
    """The columns as a file, with the settings beside it, or on standard output.

    ``sha256`` is the hash of the table that they came from. Of a file a machine is told the name.
    """
    from localw2.apps.tables.tables import plain_columns, write_table

    n = len(next(iter(columns.values())))
    if out != "-":
        write_table(out, columns)
        settings = keep_settings(context, out, {"rows": n, "columns": list(columns), "sha256": sha256})
        found = {"out": out, "settings": settings, "rows": n, "columns": list(columns)}
        give(found, f"{out}: {n} rows", as_json)
    elif as_json:
        found = {"rows": n, "columns": plain_columns(columns), "settings": used_settings(context)}
        give(found, "", True)
    else:
        write_table("-", columns)


@told
def info(model: Model, config: Config = None, as_json: Json = False) -> None:
    """What a model is: its columns, settings, balls, base, training and where it came from."""
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
    found["record"] = recorded(model)
    found = plain(found)
    give(found, info_lines(found), as_json)


def recorded(model: str) -> dict[str, Any]:
    """What MODEL.settings.toml tells, where it lies beside the model."""
    import tomllib

    try:
        return tomllib.loads(settings_path(model).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def info_lines(found: Mapping[str, Any]) -> str:
    """The same for people."""
    record = found["record"].get("record", {})
    rows = [
        [name.replace("_", " "), _short(value)]
        for name, value in found.items()
        if name not in ("parameters", "record") and value is not None
    ]
    rows += [
        [f"{name} of the fit", _short(record[name])] for name in ("data", "rows", "command") if name in record
    ]
    rows += [[f"  {name}", _short(value)] for name, value in found["parameters"].items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else " ".join(str(value).split())
    return text if len(text) <= 160 else text[:157] + "..."
