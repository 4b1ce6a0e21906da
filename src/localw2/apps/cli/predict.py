"""``localw2 predict``, ``sample`` and ``info``: what a model says, and what it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from localw2._wording import describe_weights, to_plain
from localw2.apps.cli import options
from localw2.apps.cli.config import Config, read_record
from localw2.apps.cli.outputs import check_outputs
from localw2.apps.cli.running import (
    name_next,
    parse_numbers,
    print_result,
    repeat_flags,
    report_errors,
)


@report_errors
def predict(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    quantiles: Annotated[
        str | None,
        typer.Option(metavar=".05,.5,.95", help="Quantiles to predict; then an interval only if asked for."),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="0.9", help="Coverage of the prediction interval; 0.9 by default."),
    ] = None,
    above: Annotated[
        str | None,
        typer.Option(
            metavar="V[,V2]",
            help="Probabilities of exceeding these values; then an interval only if asked for.",
        ),
    ] = None,
    out: options.TableOut = "-",
    keep: options.Keep = None,
    features: options.Features = None,
    drop_missing: options.DropMissingInputs = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Predict the mean, the SD and an interval, quantiles or probabilities for every row of DATA.

    Of a categorical target, the most probable class and the probability of each.
    """
    from localw2.apps.cli.model_files import load_model, select_rows, write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    check_outputs(out, [model, data, config])
    levels = [] if quantiles is None else parse_numbers(quantiles, "--quantiles")
    limits = [] if above is None else parse_numbers(above, "--above")
    coverage = 0.9 if interval is None and not levels and not limits else interval
    rows = select_rows(load_model(model), data, decimal, features, None, drop_missing, observed=False)
    columns, estimator, names = rows.copy_columns(keep), rows.model.estimator, rows.model.name_outputs()
    if hasattr(estimator, "coding_"):
        from localw2.estimators.mixed.views import NumberOutputs

        given = {"--quantiles": quantiles, "--above": above, "--interval": interval}
        asked = [flag for flag, value in given.items() if value is not None]
        if asked and not estimator.coding_.numeric:
            raise typer.BadParameter(
                f"{', '.join(asked)}: {model} predicts classes only, by their probabilities. Leave it out."
            )
        laws = estimator.predict_distribution(rows.X)
        numeric = [names[j] for j in estimator.coding_.numeric]
        found = _predict_numbers(NumberOutputs(estimator), rows.X, numeric, levels, limits, coverage)
        for name, law in zip(names, laws.values(), strict=True):
            probabilities = (
                {} if name in found else {f"{name}_p_{word}": law.pmf(word) for word in law.classes}
            )
            columns = _join(columns, found.get(name) or {f"{name}_class": law.mode(), **probabilities})
    else:
        for values in _predict_numbers(estimator, rows.X, names, levels, limits, coverage).values():
            columns = _join(columns, values)
    write_result(context, columns, out, as_json, rows.table.sha256)
    if out != "-":
        draw = ["localw2", "sample", model, data, "--draws", 100, "--out", "draws.csv"]
        draw += repeat_flags(context, "features", "drop_missing", "decimal")
        name_next({"draw possible outcomes of each row": draw}, as_json)


def _join(columns: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    if both := sorted(columns.keys() & found.keys()):
        raise typer.BadParameter(
            f"--keep {both[0]}: the predictions have a column of this name. Rename the one in the table."
        )
    return columns | found


def _predict_numbers(
    estimator: Any,
    X: Any,
    names: list[str],
    levels: list[float],
    limits: list[float],
    coverage: float | None,
) -> dict[str, dict[str, Any]]:
    """The columns of a result for each numeric output, by its name."""
    if not names:
        return {}
    parts = dict(zip(("mean", "std"), estimator.predict(X, return_std=True), strict=True))
    if levels:
        found = estimator.predict_quantiles(X, levels)
        parts |= {f"q{level:g}": values for level, values in zip(levels, found, strict=True)}
    if limits:
        law = estimator.predict_distribution(X)
        parts |= {f"above_{limit:g}": law.sf(limit) for limit in limits}
    if coverage is not None:
        lower, upper = estimator.predict_interval(X, coverage=coverage)
        parts |= {f"lower_{coverage:g}": lower, f"upper_{coverage:g}": upper}
    return {
        name: {f"{name}_{k}": values.reshape(len(X), -1)[:, place] for k, values in parts.items()}
        for place, name in enumerate(names)
    }


@report_errors
def sample(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Draws per row.")] = 100,
    seed: options.Seed = 0,
    out: options.TableOut = "-",
    keep: options.Keep = None,
    features: options.Features = None,
    drop_missing: options.DropMissingInputs = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Draw from the conditional distribution at every row of DATA; one line per row and draw."""
    import numpy as np

    from localw2.apps.cli.model_files import load_model, select_rows, write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    check_outputs(out, [model, data, config])
    rows = select_rows(load_model(model), data, decimal, features, None, drop_missing, observed=False)
    estimator, names = rows.model.estimator, rows.model.name_outputs()
    if hasattr(estimator, "coding_"):
        drawn = list(estimator.sample_columns(rows.X, n_samples, random_state=seed).values())
    else:
        draws = estimator.sample(rows.X, n_samples=n_samples, random_state=seed)
        drawn = list(np.moveaxis(draws.reshape(n_samples, len(rows.X), -1), 2, 0))
    columns = {name: np.repeat(values, n_samples) for name, values in rows.copy_columns(keep).items()}
    columns["draw"] = np.tile(np.arange(1, n_samples + 1), len(rows.X))
    columns |= {name: values.T.ravel() for name, values in zip(names, drawn, strict=True)}
    write_result(context, columns, out, as_json, rows.table.sha256)
    if out != "-":
        has_numbers = not hasattr(estimator, "coding_") or estimator.coding_.numeric
        asked = "the probability of exceeding a value" if has_numbers else "the probability of each class"
        command = ["localw2", "predict", model, data, *(["--above", "VALUE"] if has_numbers else [])]
        command += [
            "--out",
            "probabilities.csv",
            *repeat_flags(context, "features", "drop_missing", "decimal"),
        ]
        name_next({asked: command}, as_json)


@report_errors
def info(model: options.Model, config: Config = None, as_json: options.Json = False) -> None:
    """Describe a model: its columns, settings, balls, base, training and origin."""
    from localw2.apps.cli.model_files import FIELD, ODE, REGRESSORS, SDE, load_model

    loaded = load_model(model, (*REGRESSORS, ODE, SDE, FIELD), described=True)
    estimator = loaded.estimator
    found: dict[str, Any] = {"model": model, "kind": type(estimator).__name__}
    found |= {"bytes": Path(model).stat().st_size, **loaded.columns}
    columns, names = getattr(estimator, "columns_", None), loaded.columns.get("features")
    if columns is not None and names is not None:
        found["features"] = [names[j] for j in columns.used]
        found["left_out"] = {names[j]: reason for j, reason in columns.dropped.items()}
    for name in (
        "n_features_in_",
        "n_outputs_",
        "weights_",
        "smooth_share_",
        "n_components_",
        "field_shape_",
        "base_name_",
        "delta_",
        "norm_",
        "n_states_",
        "t0_",
        "step_",
        "step_error_",
        "jump_rate_",
        "jump_mean_",
        "jump_std_",
        "noise_",
        "noise_errors_",
    ):
        if hasattr(estimator, name):
            found[name.rstrip("_")] = getattr(estimator, name)
    if hasattr(estimator, "fit_"):
        history = estimator.fit_.losses
        found |= {"epochs": len(history), "stopped": estimator.fit_.stopped, "loss": history[-1]}
        found["seconds"] = round(estimator.fit_.seconds, 2)
    if hasattr(estimator, "n_components_"):  # fields; columns that are left out have another meaning
        found["variance_left_out"] = estimator.left_out_
    if (coding := getattr(estimator, "coding_", None)) is not None:
        found["classes"] = {coding.names[j]: list(words) for j, words in coding.classes.items()}
    calibration = getattr(estimator, "calibration_", None)
    found["calibration"] = None if calibration is None else calibration.kind
    parameters = {k: v for k, v in estimator.get_params(deep=False).items() if v is not None}
    record = read_record(model)
    origin = {f"fit {k}": v for k, v in record.get("record", {}).items() if k in ("data", "rows", "command")}
    words: dict[str, Any] = {
        "left_out": [f"{name} ({reason})" for name, reason in found.get("left_out", {}).items()] or None
    }
    if "noise_errors" in found and not all(map(math.isfinite, found["noise_errors"].flat)):
        words["noise_errors"] = "unknown: too few trajectories, or training did not end"
    if "weights" in found:
        words["weights"] = describe_weights(found["weights"])
    named = {name.replace("_", " "): value for name, value in (found | words | origin).items()}
    lines = to_plain(named | {f"  {name}": value for name, value in parameters.items()})
    width = max(map(len, lines)) + 2
    text = "\n".join(name.ljust(width) + _shorten(v) for name, v in lines.items() if v is not None)
    if getattr(estimator, "population_", None) is not None or type(estimator).__name__ == SDE:
        text += f"\n\n{estimator.summary()}"
    print_result(found | {"parameters": parameters, "record": record}, text, as_json)
    if type(estimator).__name__ not in (ODE, SDE):
        predict = ["localw2", "predict", model, "NEW.csv", "--out", "predictions.csv"]
        name_next({"predict other rows": predict}, as_json)


def _shorten(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else " ".join(str(value).split())
    return text if len(text) <= 160 else text[:157] + "..."
