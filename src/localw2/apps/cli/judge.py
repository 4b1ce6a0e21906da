"""``localw2 evaluate``, ``test``, ``report`` and ``explore``: can a model be trusted, and a look at it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localw2._wording import aligned
from localw2.apps.cli.config import RECORD, Config, keep_settings, used_settings
from localw2.apps.cli.options import (
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
from localw2.apps.cli.running import FAILED, give, listed, note, told

if TYPE_CHECKING:
    from localw2.apps.tables.csv import Array

COVERAGE = 0.9
PIT_BINS = 10


@told
def evaluate(
    context: typer.Context,
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
    from localw2.apps.cli.model_files import load_model, read_data, rows_for

    loaded = load_model(model)
    rows = rows_for(loaded, read_data(data, decimal), features, target, drop_missing)
    found = judged(loaded.estimator, rows.X, rows.outputs, rows.features, rows.targets, draws, seed)
    found = {"model": model, "data": rows.table.source} | found | {"settings": used_settings(context)}
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
    context: typer.Context,
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
    from localw2.apps.cli.model_files import load_model, read_data, rows_for

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
        "settings": used_settings(context),
    }
    give(found, result.summary(), as_json)
    if fail_on_reject and result.reject:
        raise typer.Exit(FAILED)


def balls_of(estimator: Any, X: Array, delta: str | None) -> tuple[Any, Any]:
    """The balls to look at and their norm: as said, as in the fit, or else a fifth of the rows."""
    import math

    from localw2 import Nearest
    from localw2.apps.cli.model_files import ball_radius
    from localw2.estimators.regression.balls import standardised

    fitted = getattr(estimator, "delta_", None), getattr(estimator, "norm_", None)
    balls = fitted[0] if delta in (None, "auto") else ball_radius(str(delta))
    if not isinstance(balls, Nearest | int | float):
        balls = Nearest(max(2, len(X) // 5))
    if isinstance(balls, Nearest):
        return Nearest(min(balls.k, len(X))), fitted[1] or standardised(X)
    return (None if math.isinf(balls) else balls), fitted[1]


@told
def report(
    context: typer.Context,
    model: Model,
    data: Data,
    out: Annotated[
        str, typer.Option(metavar="FILE.html", help="Where to write the page; - is standard output.")
    ] = "report.html",
    target: Target = None,
    features: Features = None,
    identity: Annotated[
        str | None, typer.Option("--id", metavar="COL", help="Whose trajectory a row is, for an ode.")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COL", help="The time of a row, for an ode.")] = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """One HTML page about a model, judged by the rows of DATA, to read, print or mail.

    For a model of `localw2 ode fit` DATA are trajectories, and --target names their states.
    """
    from localw2.apps.cli.model_files import ODE, REGRESSORS, load_model, read_data, rows_for
    from localw2.apps.cli.predict import recorded
    from localw2.apps.report.report import page_of
    from localw2.apps.tables.long import trajectories
    from localw2.storage.atomic import replace_file
    from localw2.storage.model_file import check_writable

    if out != "-":
        check_writable(out, "--out")
    elif as_json:
        raise typer.BadParameter("--out - and --json would both write to standard output; give a file.")
    loaded = load_model(model, (*REGRESSORS, ODE))
    table = read_data(data, decimal)
    shown = {"settings": settings_shown(recorded(model)), "source": table.source}
    if loaded.kind == ODE:
        given = {"id": identity, "time": time, "states": target}
        columns = loaded.trajectory_columns({role: listed(v, table.names) for role, v in given.items()})
        Y, t = trajectories(table, *columns)
        page = page_of(loaded.estimator, Y, t, state_names=columns[2], **shown)
        found, said = {"trajectories": len(Y)}, f"{len(Y)} trajectories"
    else:
        rows = rows_for(loaded, table, features, target, drop_missing)
        names = {"feature_names": rows.features, "target_names": rows.targets}
        page = page_of(loaded.estimator, rows.X, rows.outputs, **names, **shown)
        found, said = {"rows": len(rows.X)}, f"{len(rows.X)} rows"
    if out == "-":
        typer.echo(page, nl=False)
        return
    replace_file(Path(out), page.encode())
    settings = keep_settings(context, out, found | {"sha256": table.sha256})
    give({"out": out, "settings": settings} | found, f"{out}: {said} of {table.source}", as_json)


def settings_shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a settings file with the record of the run, without tables such as the versions.

    >>> settings_shown({"ode": {"fit": {"id": "who"}}, "record": {"rows": 3, "versions": {"python": "3"}}})
    {'rows': 3, 'id': 'who'}
    """
    commands = {name: table for name, table in record.items() if name != RECORD}
    found = {key: value for key, value in record.get(RECORD, {}).items() if not isinstance(value, dict)}
    while commands:  # a table of a command, such as [fit], or of a command's command, such as [ode.fit]
        tables = [table for table in commands.values() if isinstance(table, dict)]
        commands = {key: value for table in tables for key, value in table.items()}
        found |= {key: value for key, value in commands.items() if not isinstance(value, dict)}
    return found


@told
def explore(
    model: Model,
    data: Annotated[str, typer.Option(metavar="DATA", help="Rows to show beside the model.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(help="A secret that the address must carry.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="MODEL is still being fitted: show its curves until it is there.")
    ] = False,
    history: Annotated[
        str | None,
        typer.Option(metavar="FILE.jsonl", help="What that fit writes, if not MODEL.history.jsonl."),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    target: Target = None,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="The address as a JSON object.")] = False,
) -> None:
    """A page in the browser: move the inputs and watch the distribution change. Ctrl-C ends it.

    While `localw2 fit` writes MODEL, its curves are shown live, and then the new model.
    """
    from localw2.apps.cli.model_files import history_path, load_model, read_data, rows_for
    from localw2.apps.explorer import serve_file

    if watch and data == "-":
        raise typer.BadParameter("--watch reads DATA when the model is there; give a file instead of -.")
    piped = read_data(data, decimal) if data == "-" else None

    def load() -> dict[str, Any]:
        loaded = load_model(model)
        table = piped or read_data(data, decimal)
        rows = rows_for(loaded, table, features, target, drop_missing)
        note(f"{model} with {len(rows.X)} rows of {rows.table.source}.")
        names = {"feature_names": rows.features, "target_names": rows.targets}
        return {"model": loaded.estimator, "X": rows.X, "y": rows.outputs, **names}

    def tell(url: str) -> None:
        give({"url": url, "model": model, "data": data}, f"Explorer: {url}\nCtrl-C ends it.", as_json)
        sys.stdout.flush()

    serve_file(
        model,
        load,
        wait=watch,
        host=host,
        port=port,
        token=token,
        history=history or history_path(model),
        open_browser=not no_browser,
        tell=tell,
    )
