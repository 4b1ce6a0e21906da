"""``localw2 report``: one HTML page about a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from localw2.apps.cli.config import RECORD, Config, keep_settings, read_record
from localw2.apps.cli.options import Data, Decimal, DecimalMark, DropMissing, Features, Json, Model, Target
from localw2.apps.cli.running import print_result, report_errors, split_names


@report_errors
def report(
    context: typer.Context,
    model: Model,
    data: Data,
    out: Annotated[
        str, typer.Option(metavar="FILE.html", help="File to write the page to; - is standard output.")
    ] = "report.html",
    target: Target = None,
    features: Features = None,
    identity: Annotated[
        str | None,
        typer.Option("--id", metavar="COL", help="The trajectory that a row belongs to (ODE models)."),
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COL", help="The time of a row (ODE models).")] = None,
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a model, judged on the rows of DATA, to read, print or mail.

    For a model from `localw2 ode fit`, DATA holds trajectories and --target names their states.
    """
    from localw2.apps.cli.model_files import ODE, REGRESSORS, load_model, read_data, select_rows
    from localw2.apps.report import report_html
    from localw2.apps.tables.long import gather_trajectories
    from localw2.storage.atomic import replace_file
    from localw2.storage.model_file import check_writable

    if out != "-":
        check_writable(out, "--out")
    elif as_json:
        raise typer.BadParameter("--out - and --json would both write to standard output; name a file.")
    loaded = load_model(model, (*REGRESSORS, ODE))
    table = read_data(data, decimal)
    shown = {"settings": flatten_settings(read_record(model)), "source": table.source}
    if loaded.kind == ODE:
        given = {"id": identity, "time": time, "states": target}
        columns = loaded.choose_trajectory_columns(
            {role: split_names(names, table.names) for role, names in given.items()}
        )
        Y, t = gather_trajectories(table, *columns)
        page = report_html(loaded.estimator, Y, t, state_names=columns[2], **shown)
        found, what = {"trajectories": len(Y)}, f"{len(Y)} trajectories"
    else:
        rows = select_rows(loaded, table, features, target, drop_missing)
        names = {"feature_names": rows.features, "target_names": rows.targets}
        page = report_html(loaded.estimator, rows.X, rows.outputs, **names, **shown)
        found, what = {"rows": len(rows.X)}, f"{len(rows.X)} rows"
    if out == "-":
        typer.echo(page, nl=False)
        return
    replace_file(Path(out), page.encode())
    settings = keep_settings(context, out, found | {"sha256": table.sha256})
    print_result({"out": out, "settings": settings} | found, f"{out}: {what} of {table.source}", as_json)


def flatten_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the settings and the record from a settings file, without tables such as the versions.

    >>> flatten_settings({"ode": {"fit": {"id": "who"}}, "record": {"rows": 3, "versions": {"python": "3"}}})
    {'rows': 3, 'id': 'who'}
    """
    commands = {name: table for name, table in record.items() if name != RECORD}
    found = {key: value for key, value in record.get(RECORD, {}).items() if not isinstance(value, dict)}
    while commands:  # the table of a command, such as [fit], or of a subcommand, such as [ode.fit]
        tables = [table for table in commands.values() if isinstance(table, dict)]
        commands = {key: value for table in tables for key, value in table.items()}
        found |= {key: value for key, value in commands.items() if not isinstance(value, dict)}
    return found
