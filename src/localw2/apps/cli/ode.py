"""``localw2 ode fit`` and ``ode sample``: trajectories in a long table with a row per observation."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from localw2.apps.cli import options
from localw2.apps.cli.config import Config, keep_settings, settings_path
from localw2.apps.cli.fit import (
    check_weights,
    drop_unset,
    fit_with_checkpoint,
    keep_until_saved,
    list_model_files,
)
from localw2.apps.cli.outputs import check_outputs, save_or_rescue
from localw2.apps.cli.running import note, parse_numbers, print_result, report_errors, split_names

ode = typer.Typer(
    help="Trajectories of a differential equation with random parameters.", no_args_is_help=True
)


@ode.command("fit")
@report_errors
def fit_ode(
    context: typer.Context,
    data: options.Data,
    identity: Annotated[str, typer.Option("--id", metavar="COL", help="The trajectory a row belongs to.")],
    time: Annotated[str, typer.Option(metavar="COL", help="The time of a row.")],
    states: Annotated[str, typer.Option(metavar="A,B", help="The observed states.")],
    out: options.ModelOut,
    weights: Annotated[
        str | None,
        typer.Option(metavar="COL", help="A column that says how much each trajectory counts."),
    ] = None,
    delta: Annotated[
        str,
        typer.Option(metavar="auto|RADIUS", help="Radius of balls of initial states; inf is one ball."),
    ] = "auto",
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Each time shows new individuals, not the same trajectories.")
    ] = False,
    max_epochs: options.MaxEpochs = None,
    learning_rate: options.LearningRate = None,
    width: options.Width = None,
    depth: options.Depth = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    decimal: options.DecimalMark = options.Decimal.auto,
    restart: options.Restart = False,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Learn dy/dt = g(y, omega), where g is a network and omega is random, one for each trajectory.

    DATA has a row for each observation; empty cells are missing observations.
    """
    from localw2.apps.cli.model_files import parse_delta, save_model
    from localw2.apps.tables.tables import gather_trajectories, gather_weights, read_table
    from localw2.storage.model_file import check_writable

    check_outputs(out, [data, config], list_model_files(out))
    radius = parse_delta(delta)
    if not isinstance(radius, str | float):
        raise typer.BadParameter("for an ODE, --delta is auto or a radius.")
    check_writable(out, "--out")
    table = read_table(data, decimal)
    names, weighing = (split_names(text, list(table.frame)) for text in (states, weights))
    check_weights(weighing, {identity, time, *names}, "--id, --time or --states")
    Y, t = gather_trajectories(table, identity, time, names)
    extra = {"sample_weight": gather_weights(table, identity, weighing[0])} if weighing else {}

    from localw2 import LocalW2ODE

    model = LocalW2ODE(
        linked=not snapshots,
        delta=radius,
        device=device,
        random_state=seed,
        **drop_unset(max_epochs=max_epochs, learning_rate=learning_rate, width=width, depth=depth),
    )
    note(f"{len(Y)} trajectories of {table.source}: {', '.join(names)}")
    with keep_until_saved(out):
        fitted = fit_with_checkpoint(model, Y, t, out, restart, as_json, extra)
        save_or_rescue(partial(save_model, model, states=names, id=[identity], time=[time]), out, "model")
    found = {
        "model": out,
        "settings": str(settings_path(out)),
        "data": table.source,
        "sha256": table.sha256,
        "rows": len(table.frame),
        "trajectories": len(Y),
        "states": names,
        "weights": weighing[0] if weighing else None,
        "skipped": model.fit_.skipped,
        **fitted,
    }
    keep_settings(context, out, found, collect_training(model))
    line = f"{out}: {len(Y)} trajectories, loss {found['loss']:.4g}, {found['seconds']:.1f} s"
    print_result(found, line, as_json)


@ode.command("sample")
@report_errors
def sample_ode(
    context: typer.Context,
    model: options.Model,
    initial: Annotated[str, typer.Option(metavar="a,b", help="The initial state, at the first time.")],
    times: Annotated[
        str, typer.Option(metavar="0,0.5,1|START:STOP:COUNT", help="Times; they may go beyond the data.")
    ],
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Number of trajectories.")] = 100,
    seed: options.Seed = 0,
    out: options.TableOut = "-",
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Simulate independent trajectories from one initial state; one line per draw and time."""
    import numpy as np

    from localw2.apps.cli.model_files import ODE, load_model, write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    check_outputs(out, [model, config])
    start, grid = parse_numbers(initial, "--initial"), parse_times(times)
    loaded = load_model(model, (ODE,))
    count = loaded.estimator.n_states_
    names = loaded.columns.get("states") or [f"y{k}" for k in range(1, count + 1)]
    if len(start) != count:
        raise ValueError(
            f"--initial has {len(start)} number(s), but {model} has {count} state(s): {', '.join(names)}."
        )
    draws = loaded.estimator.sample(start, grid, n_samples=n_samples, random_state=seed)[:, 0]
    (time,) = loaded.columns.get("time", ["time"])
    columns = {"draw": np.repeat(np.arange(1, n_samples + 1), len(grid)), time: np.tile(grid, n_samples)}
    columns |= {name: draws[..., place].ravel() for place, name in enumerate(names)}
    write_result(context, columns, out, as_json)


def parse_times(text: str) -> list[float]:
    """Parse times: a list, or START:STOP:COUNT for evenly spaced ones.

    >>> parse_times("0:1:3"), parse_times("0,2")
    ([0.0, 0.5, 1.0], [0.0, 2.0])
    """
    import numpy as np

    if ":" not in text:
        return parse_numbers(text, "--times")
    try:
        start, stop, count = text.split(":")
        times: list[float] = np.linspace(float(start), float(stop), int(count)).tolist()
    except ValueError:
        raise typer.BadParameter(f"--times {text!r} is not START:STOP:COUNT, such as 0:10:101.") from None
    return times


def collect_training(model: Any) -> dict[str, Any]:
    """Collect how a model was trained, by the names of the flags, whether they were given or not."""
    config = model.fit_.config
    values = (config.max_epochs, config.learning_rate, model.width, model.depth)
    return dict(zip(("max-epochs", "learning-rate", "width", "depth"), values, strict=True))
