"""``localw2 ode fit`` and ``ode sample``: trajectories in a long table with a row per observation."""

from __future__ import annotations

import time as clock
from typing import TYPE_CHECKING, Annotated

import typer

from localw2.apps.cli.config import Config, keep_settings, settings_path
from localw2.apps.cli.fit_files import (
    clear_history,
    collect_training,
    drop_unset,
    prepare_checkpoint,
    stop_if_interrupted,
)
from localw2.apps.cli.options import (
    Data,
    Decimal,
    DecimalMark,
    Depth,
    Device,
    Json,
    LearningRate,
    MaxEpochs,
    Model,
    ModelOut,
    Restart,
    Seed,
    TableOut,
    Width,
)
from localw2.apps.cli.running import note, parse_numbers, print_result, report_errors, split_names

if TYPE_CHECKING:
    from localw2._validation import Array

ode = typer.Typer(
    help="Trajectories of a differential equation with random parameters.", no_args_is_help=True
)
_MOST_TIMES = 100_000


@ode.command("fit")
@report_errors
def fit_ode(
    context: typer.Context,
    data: Data,
    identity: Annotated[str, typer.Option("--id", metavar="COL", help="The trajectory a row belongs to.")],
    time: Annotated[str, typer.Option(metavar="COL", help="The time of a row.")],
    states: Annotated[str, typer.Option(metavar="A,B", help="The observed states.")],
    out: ModelOut,
    delta: Annotated[
        str,
        typer.Option(metavar="auto|RADIUS", help="Radius of balls of initial states; inf is one ball."),
    ] = "auto",
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Each time shows new individuals, not the same trajectories.")
    ] = False,
    max_epochs: MaxEpochs = None,
    learning_rate: LearningRate = None,
    width: Width = None,
    depth: Depth = None,
    seed: Seed = 0,
    device: Device = "auto",
    decimal: DecimalMark = Decimal.auto,
    restart: Restart = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Learn dy/dt = g(y, omega), where g is a network and omega is random, one for each trajectory.

    DATA has a row for each observation; empty cells are missing observations.
    """
    from localw2.apps.cli.model_files import parse_delta, read_data, save_model
    from localw2.apps.tables.long import gather_trajectories
    from localw2.storage.model_file import check_writable

    radius = parse_delta(delta)
    if not isinstance(radius, str | float):
        raise typer.BadParameter("for an ODE, --delta is auto or a radius.")
    check_writable(out, "--out")
    table = read_data(data, decimal)
    names = split_names(states, table.names)
    Y, t = gather_trajectories(table, identity, time, names)

    from localw2 import LocalW2ODE

    start = clock.perf_counter()
    model = LocalW2ODE(
        linked=not snapshots,
        delta=radius,
        checkpoint=prepare_checkpoint(out, restart),
        history=clear_history(out),
        device=device,
        random_state=seed,
        verbose=True,
        **drop_unset(max_epochs=max_epochs, learning_rate=learning_rate, width=width, depth=depth),
    )
    note(f"{len(Y)} trajectories of {table.source}: {', '.join(names)}")
    model.fit(Y, t)
    stop_if_interrupted(model.fit_.stopped, out, data, as_json)
    model.set_params(checkpoint=None, history=None, verbose=False)
    save_model(model, out, states=names, id=[identity], time=[time])
    clear_history(out)
    found = {
        "model": out,
        "settings": str(settings_path(out)),
        "data": table.source,
        "sha256": table.sha256,
        "rows": table.n_rows,
        "trajectories": len(Y),
        "states": names,
        "epochs": len(model.fit_.history),
        "loss": model.fit_.losses[-1],
        "skipped": model.fit_.skipped,
        "seconds": round(clock.perf_counter() - start, 2),
    }
    keep_settings(context, out, found, collect_training(model))
    line = f"{out}: {len(Y)} trajectories, loss {found['loss']:.4g}, {found['seconds']:.1f} s"
    print_result(found, line, as_json)


@ode.command("sample")
@report_errors
def sample_ode(
    context: typer.Context,
    model: Model,
    initial: Annotated[str, typer.Option(metavar="a,b", help="The initial state, at the first time.")],
    times: Annotated[
        str, typer.Option(metavar="0,0.5,1|START:STOP:COUNT", help="Times; they may go beyond the data.")
    ],
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Number of trajectories.")] = 100,
    seed: Seed = 0,
    out: TableOut = "-",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Simulate independent trajectories from one initial state; one line per draw and time."""
    import numpy as np

    from localw2.apps.cli.model_files import ODE, load_model, write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    start, grid = parse_numbers(initial, "--initial"), parse_times(times)
    loaded = load_model(model, (ODE,))
    if len(start) != loaded.estimator.n_states_:
        known = ", ".join(loaded.columns.get("states", []))
        raise ValueError(
            f"--initial has {len(start)} number(s), but {model} has {loaded.estimator.n_states_} "
            f"state(s): {known}."
        )
    draws = loaded.estimator.sample(start, grid, n_samples=n_samples, random_state=seed)[:, 0]
    names = loaded.columns.get("states") or [f"y{k}" for k in range(1, draws.shape[-1] + 1)]
    time = (loaded.columns.get("time") or ["time"])[0]
    columns = {"draw": np.repeat(np.arange(1, n_samples + 1), len(grid)), time: np.tile(grid, n_samples)}
    columns |= {name: draws[..., place].ravel() for place, name in enumerate(names)}
    write_result(context, columns, out, as_json)


def parse_times(text: str) -> Array:
    """Parse times: a list, or START:STOP:COUNT for evenly spaced ones.

    >>> parse_times("0:1:3").tolist(), parse_times("0,2").tolist()
    ([0.0, 0.5, 1.0], [0.0, 2.0])
    """
    import numpy as np

    if ":" not in text:
        return np.array(parse_numbers(text, "--times"))
    parts = text.split(":")
    if len(parts) != 3 or not parts[2].isdigit() or not 2 <= int(parts[2]) <= _MOST_TIMES:
        raise typer.BadParameter(f"--times {text!r} is not START:STOP:COUNT, such as 0:10:101.")
    start, stop = parse_numbers(",".join(parts[:2]), "--times")
    return np.linspace(start, stop, int(parts[2]))
