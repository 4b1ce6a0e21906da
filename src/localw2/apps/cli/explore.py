"""``localw2 explore``: a page in the browser to explore a model."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from localw2.apps.cli import options
from localw2.apps.cli.config import Config
from localw2.apps.cli.running import note, print_result, report_errors


@report_errors
def explore(
    model: options.Model,
    data: Annotated[str, typer.Option(metavar="DATA", help="Rows to show together with the model.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(help="Secret that the address must contain.")] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="MODEL is still being fitted: show its curves until it is finished."),
    ] = False,
    history: Annotated[
        str | None,
        typer.Option(metavar="FILE.jsonl", help="History written by that fit, if not MODEL.history.jsonl."),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    target: options.Target = None,
    features: options.Features = None,
    drop_missing: options.DropMissing = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as a JSON object.")] = False,
) -> None:
    """Open a page in the browser: move the inputs and watch the distribution change. Ctrl-C ends it.

    While `localw2 fit` is writing MODEL, its curves are shown live, followed by the new model.
    """
    from localw2.apps.cli.model_files import history_path, load_model, select_rows
    from localw2.apps.explorer import serve_file
    from localw2.apps.tables.tables import read_table

    if watch and data == "-":
        raise typer.BadParameter("--watch reads DATA once the model is finished; name a file instead of -.")
    source = read_table(data, decimal) if data == "-" else data

    def load() -> dict[str, Any]:
        rows = select_rows(load_model(model), source, decimal, features, target, drop_missing)
        note(f"{model} with {len(rows.X)} rows of {rows.table.source}.")
        names = {"feature_names": rows.features, "target_names": rows.targets}
        return {"model": rows.model.estimator, "X": rows.X, "y": rows.y, **names}

    def tell(url: str) -> None:
        found = {"url": url, "model": model, "data": data}
        print_result(found, f"Explorer: {url}\nPress Ctrl-C to end it.", as_json)
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
