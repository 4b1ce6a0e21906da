"""``localw2 evaluate``, ``test``, ``report`` and ``explore``: can a model be trusted, and a look at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localw2.cli.config import Config
from localw2.cli.options import (
    Data,
    Decimal,
    DecimalMark,
    DropMissing,
    Features,
    Json,
    Model,
    Seed,
    Target,
)
from localw2.cli.running import FAILED, aligned, give, note, told

if TYPE_CHECKING:
    from localw2.csv_tables import Array

COVERAGE = 0.9
PIT_BINS = 10


@told
def evaluate(
    model: Model,
    data: Data,
    target: Target = None,
    features: Features = None,
    draws: Annotated[int, typer.Option(min=2, help="Draws at every row behind CRPS and PIT.")] = 200,
    seed: Seed = 0,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Scores on rows that the model has not seen: CRPS, RMSE, MAE, coverage and width at 90 %, PIT."""
    from localw2.cli.model_files import load_model, read_data, rows_for

    loaded = load_model(model)
    rows = rows_for(loaded, read_data(data, decimal), features, target, drop_missing)
    found = judged(loaded.estimator, rows.X, rows.outputs, rows.features, rows.targets, draws, seed)
    found = {"model": model, "data": rows.table.source} | found
    give(found, "\n".join(judged_lines(found)), as_json)


def judged(
    estimator: Any, X: Array, y: Array, features: list[str], targets: list[str], draws: int, seed: int
) -> dict[str, Any]:
    """The scores of each target, and the verdict of ``diagnose``."""
    import numpy as np

    from localw2.metrics import coverage, interval_width

    diagnosis = estimator.diagnose(X, y, n_samples=draws, random_state=seed, names=features)
    values = (y, estimator.predict(X), *estimator.predict_interval(X, coverage=COVERAGE))
    y, mean, lower, upper = (np.asarray(v).reshape(len(X), -1) for v in values)
    scores = {}
    for k, name in enumerate(targets):
        error = mean[:, k] - y[:, k]
        spread = float(((y[:, k] - y[:, k].mean()) ** 2).sum())
        counts = np.histogram(diagnosis.pit[:, k], PIT_BINS, (0, 1))[0]
        scores[name] = {
            "crps": diagnosis.crps[k],
            "rmse": float(np.sqrt((error**2).mean())),
            "mae": float(np.abs(error).mean()),
            "r2": 1 - float((error**2).sum()) / spread if spread > 0 else float("nan"),
            "coverage": coverage(y[:, k], lower[:, k], upper[:, k]),
            "width": interval_width(lower[:, k], upper[:, k]),
            "pit": (counts / len(X)).tolist(),
        }
    return {
        "rows": len(X),
        "interval": COVERAGE,
        "targets": scores,
        "calibrated": diagnosis.calibrated,
        "verdict": list(diagnosis.verdict),
    }


def judged_lines(found: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    percent = f"{100 * found['interval']:.0f} %"
    rows = [["target", "CRPS", "RMSE", "MAE", "R2", f"in {percent}", f"width {percent}"]]
    for name, score in found["targets"].items():
        cells = [f"{score[key]:.4g}" for key in ("crps", "rmse", "mae", "r2")]
        rows.append([name, *cells, f"{100 * score['coverage']:.1f} %", f"{score['width']:.4g}"])
    lines = [f"{found['rows']} rows", aligned(rows)]
    for name, score in found["targets"].items():
        shares = " ".join(f"{100 * share:.0f}" for share in score["pit"])
        lines.append(f"PIT of {name}, % of rows in tenths (10 each if calibrated): {shares}")
    return [*lines, *found["verdict"]]


@told
def compare(
    model: Model,
    data: Data,
    delta: Annotated[
        str | None,
        typer.Option(metavar="RADIUS|nearest:K|inf", help="Balls; those of the fit if none are said."),
    ] = None,
    permutations: Annotated[int, typer.Option(min=19, help="Random swaps behind the p-value.")] = 999,
    level: Annotated[float, typer.Option(help="Reject if the p-value is at most this.")] = 0.05,
    fail_on_reject: Annotated[
        bool, typer.Option("--fail-on-reject", help="Exit code 1 if the test rejects.")
    ] = False,
    target: Target = None,
    features: Features = None,
    seed: Seed = 0,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Test exactly whether the model's law of y given x is that of new rows, and where it is not."""
    from localw2 import conditional_test
    from localw2.cli.model_files import load_model, read_data, rows_for

    loaded = load_model(model)
    rows = rows_for(loaded, read_data(data, decimal), features, target, drop_missing)
    balls, norm = balls_of(loaded.estimator, rows.X, delta)
    result = conditional_test(
        rows.X,
        rows.outputs,
        loaded.estimator,
        balls,
        norm=norm,
        n_permutations=permutations,
        level=level,
        random_state=seed,
    )
    found = {
        "model": model,
        "data": rows.table.source,
        "pvalue": result.pvalue,
        "statistic": result.statistic,
        "level": result.level,
        "reject": result.reject,
        "valid": not result.verdict.startswith("not valid"),
        "verdict": result.verdict,
        "notes": result.notes,
        "seen_share": result.seen_share,
        "balls": {
            "row": rows.number[result.centers],
            "size": result.ball_sizes,
            "statistic": result.ball_statistics,
            "pvalue": result.ball_pvalues,
        },
    }
    give(found, result.summary(), as_json)
    if fail_on_reject and result.reject:
        raise typer.Exit(FAILED)


def balls_of(estimator: Any, X: Array, delta: str | None) -> tuple[Any, Any]:
    """The balls to look at and their norm: as said, as in the fit, or else a fifth of the rows."""
    import math

    from localw2 import Nearest
    from localw2.cli.model_files import ball_radius
    from localw2.estimators.choosing import standardised

    fitted = getattr(estimator, "delta_", None), getattr(estimator, "norm_", None)
    balls = fitted[0] if delta in (None, "auto") else ball_radius(str(delta))
    if not isinstance(balls, Nearest | int | float):
        balls = Nearest(max(2, len(X) // 5))
    if isinstance(balls, Nearest):
        return Nearest(min(balls.k, len(X))), fitted[1] or standardised(X)
    return (None if math.isinf(balls) else balls), fitted[1]


@told
def report(
    model: Model,
    data: Data,
    out: Annotated[str, typer.Option(metavar="FILE.html", help="Where to write the page.")] = "report.html",
    target: Target = None,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """One HTML page about a model, judged by the rows of DATA, to read, print or mail."""
    from localw2.cli.model_files import load_model, read_data, rows_for
    from localw2.cli.predicting import recorded
    from localw2.report import write_report

    loaded = load_model(model)
    rows = rows_for(loaded, read_data(data, decimal), features, target, drop_missing)
    write_report(
        out,
        loaded.estimator,
        rows.X,
        rows.outputs,
        feature_names=rows.features,
        target_names=rows.targets,
        settings=settings_shown(recorded(model)),
        source=rows.table.source,
    )
    give({"out": out, "rows": len(rows.X)}, f"{out}: {len(rows.X)} rows of {rows.table.source}", as_json)


def settings_shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a settings file as one, without the versions of packages."""
    return {
        key: value
        for table in record.values()
        for key, value in (table.items() if isinstance(table, dict) else ())
        if not isinstance(value, dict)
    }


@told
def explore(
    model: Model,
    data: Annotated[str, typer.Option(metavar="DATA", help="Rows to show beside the model.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(help="A secret that the address must carry.")] = None,
    history: Annotated[
        str | None, typer.Option(metavar="FILE.jsonl", help="The history of a fit under way, to watch it.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    target: Target = None,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
) -> None:
    """A page in the browser: move the inputs and watch the distribution change. Ctrl-C ends it."""
    from localw2.cli.model_files import load_model, read_data, rows_for
    from localw2.explorer import serve

    loaded = load_model(model)
    rows = rows_for(loaded, read_data(data, decimal), features, target, drop_missing)
    note(f"{model} with {len(rows.X)} rows of {rows.table.source}.")
    serve(
        loaded.estimator,
        rows.X,
        rows.outputs,
        feature_names=rows.features,
        target_names=rows.targets,
        host=host,
        port=port,
        token=token,
        history=history,
        open_browser=not no_browser,
    )
