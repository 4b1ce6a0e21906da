"""``localw2 report``: one HTML page about a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from localw2.apps.cli import options
from localw2.apps.cli.config import RECORD, Config, keep_settings, read_record, settings_path
from localw2.apps.cli.equations import load_function, parse_observe
from localw2.apps.cli.ode import Field, Observe
from localw2.apps.cli.outputs import check_outputs
from localw2.apps.cli.running import can_explore, name_next, print_result, repeat_flags, report_errors
from localw2.apps.cli.sde import Diffusion, Drift, Jumps, load_parts


@report_errors
def report(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    out: Annotated[
        str, typer.Option(metavar="FILE.html", help="File to write the page to; - is standard output.")
    ] = "report.html",
    target: options.Target = None,
    features: options.Features = None,
    identity: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="COL", help="The trajectory that a row belongs to (ODE and SDE models)."
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COL", help="The time of a row (ODE and SDE models).")
    ] = None,
    field: Field = None,
    observe: Observe = None,
    drift: Drift = None,
    diffusion: Diffusion = None,
    jumps: Jumps = None,
    drop_missing: options.DropMissing = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Write one HTML page about a model, judged on the rows of DATA, to read, print or mail.

    For a model from `localw2 ode fit` or `sde fit`, DATA holds trajectories and --target names their states.
    """
    from localw2.apps.cli.model_files import ODE, REGRESSORS, SDE, load_model, read_long_table, select_rows
    from localw2.apps.report import report_html
    from localw2.apps.tables.tables import read_table
    from localw2.storage.atomic import replace_file
    from localw2.storage.model_file import check_writable

    check_outputs(out, [model, data, config, settings_path(model)])
    if out != "-":
        check_writable(out, "--out")
    elif as_json:
        raise typer.BadParameter("--out - and --json would both write to standard output; name a file.")
    loaded = load_model(
        model,
        (*REGRESSORS, ODE, SDE),
        **load_parts(drift, diffusion, jumps),
        field=None if field is None else load_function(field, "--field"),
        observe=parse_observe(observe),
    )
    table = read_table(data, decimal)
    about: dict[str, Any] = {"settings": flatten_settings(read_record(model)), "source": table.source}
    if type(loaded.estimator).__name__ in (ODE, SDE):
        long = read_long_table(loaded, table, identity, time, target)
        about["state_names"] = long.quantities
        is_population = getattr(loaded.estimator, "population_", None) is not None
        inputs: tuple[Any, ...] = (long, None) if is_population else (long.Y, long.t)
        count = len(long.subjects)
        kind = "trajectories" if type(loaded.estimator).__name__ == ODE else "paths"
    else:
        rows = select_rows(loaded, table, decimal, features, target, drop_missing)
        about |= {"feature_names": rows.features, "target_names": rows.targets}
        inputs, kind, count = (rows.X, rows.y), "rows", len(rows.X)
    page = report_html(loaded.estimator, *inputs, **about)
    if out == "-":
        typer.echo(page, nl=False)
        return
    replace_file(Path(out), page.encode())
    found = {kind: count}
    settings = keep_settings(context, out, found | {"sha256": table.sha256})
    line = f"{out}: {count} {kind} of {table.source}. Open it in a browser."
    print_result({"out": out, "settings": settings} | found, line, as_json)
    if kind == "rows" and can_explore():
        explore = ["localw2", "explore", model, "--data", data]
        explore += repeat_flags(context, "target", "features", "drop_missing", "decimal")
        name_next({"change the inputs with sliders, in a browser": explore}, as_json)


def flatten_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the settings and the record from a settings file, without tables such as the versions.

    >>> flatten_settings({"ode": {"fit": {"id": "who"}}, "record": {"rows": 3, "versions": {"python": "3"}}})
    {'rows': 3, 'id': 'who'}
    """
    found = {key: value for key, value in record.get(RECORD, {}).items() if not isinstance(value, dict)}
    commands = [table for name, table in record.items() if name != RECORD]
    for table in commands:  # of a command, such as [fit], or of a group of commands, such as [ode]
        commands += [value for value in table.values() if isinstance(value, dict)]
        found |= {key: value for key, value in table.items() if not isinstance(value, dict)}
    return found
