"""``localw2 ode fit`` and ``ode sample``: trajectories in a long table, a line for each observation."""

from __future__ import annotations

import time as clock
from typing import TYPE_CHECKING, Annotated

import typer

from localw2.apps.cli.config import Config, settings_path, used_settings, write_record
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
from localw2.apps.cli.running import give, listed, note, numbers_in, plain, told

if TYPE_CHECKING:
    from localw2.apps.tables.csv import Array

ode = typer.Typer(
    help="Trajectories of a differential equation with random parameters.", no_args_is_help=True
)
_MOST_TIMES = 100_000


@ode.command("fit")
@told
def fit_ode(
    context: typer.Context,
    data: Data,
    identity: Annotated[str, typer.Option("--id", metavar="COL", help="Which trajectory a row is of.")],
    time: Annotated[str, typer.Option(metavar="COL", help="The time of a row.")],
    states: Annotated[str, typer.Option(metavar="A,B", help="The states that were observed.")],
    out: ModelOut,
    delta: Annotated[
        str, typer.Option(metavar="auto|RADIUS", help="The balls of initial states; inf is one ball.")
    ] = "auto",
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Rows are new individuals at each time, not trajectories.")
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
    """Learn dy/dt = g(y, omega), with a network as g and its own omega for every trajectory.

    DATA has a line for each observation; empty cells are observations that were not made.
    """
    from localw2.apps.cli.fit import checkpoint_of, fresh_history, given, stop_if_interrupted, used_training
    from localw2.apps.cli.model_files import ball_radius, read_data, save_model
    from localw2.apps.tables.long import trajectories
    from localw2.storage.model_file import check_writable

    radius = ball_radius(delta)
    if not isinstance(radius, str | float):
        raise typer.BadParameter("--delta of an ode is auto or a radius.")
    check_writable(out, "--out")
    table = read_data(data, decimal)
    names = listed(states, table.names)
    Y, t = trajectories(table, identity, time, names)

    from localw2 import LocalW2ODE

    start = clock.perf_counter()
    model = LocalW2ODE(
        linked=not snapshots,
        delta=radius,
        checkpoint=checkpoint_of(out, restart),
        history=fresh_history(out),
        device=device,
        random_state=seed,
        verbose=True,
        **given(max_epochs=max_epochs, learning_rate=learning_rate, width=width, depth=depth),
    )
    note(f"{len(Y)} trajectories of {table.source}: {', '.join(names)}")
    model.fit(Y, t)
    stop_if_interrupted(model.fit_.stopped, out, data, as_json)
    model.set_params(checkpoint=None, history=None, verbose=False)
    save_model(model, out, states=names, id=[identity], time=[time])
    fresh_history(out)
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
    write_record(settings_path(out), "ode.fit", used_settings(context) | used_training(model), plain(found))
    give(found, f"{out}: {len(Y)} trajectories, loss {found['loss']:.4g}, {found['seconds']:.1f} s", as_json)


@ode.command("sample")
@told
def sample_ode(
    context: typer.Context,
    model: Model,
    initial: Annotated[str, typer.Option(metavar="a,b", help="The state to start from, at the first time.")],
    times: Annotated[
        str, typer.Option(metavar="0,0.5,1|START:STOP:COUNT", help="Times, which may go beyond the data.")
    ],
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Trajectories.")] = 100,
    seed: Seed = 0,
    out: TableOut = "-",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Independent trajectories from one initial state: a line for each draw and time."""
    import numpy as np

    from localw2.apps.cli.model_files import ODE, load_model
    from localw2.apps.cli.predict import give_table
    from localw2.apps.tables.tables import check_format

    check_format(out)
    start, grid = numbers_in(initial, "--initial"), times_in(times)
    loaded = load_model(model, (ODE,))
    if len(start) != loaded.estimator.n_states_:
        known = ", ".join(loaded.columns.get("states", []))
        raise ValueError(
            f"--initial gives {len(start)} number(s), but {model} has {loaded.estimator.n_states_} "
            f"state(s): {known}."
        )
    draws = loaded.estimator.sample(start, grid, n_samples=n_samples, random_state=seed)[:, 0]
    names = loaded.columns.get("states") or [f"y{k}" for k in range(1, draws.shape[-1] + 1)]
    time = (loaded.columns.get("time") or ["time"])[0]
    columns = {"draw": np.repeat(np.arange(1, n_samples + 1), len(grid)), time: np.tile(grid, n_samples)}
    columns |= {name: draws[..., place].ravel() for place, name in enumerate(names)}
    give_table(context, columns, out, as_json)


def times_in(text: str) -> Array:
    """Times from a list, or evenly spaced from START:STOP:COUNT.

    >>> times_in("0:1:3").tolist(), times_in("0,2").tolist()
    ([0.0, 0.5, 1.0], [0.0, 2.0])
    """
    import numpy as np

    if ":" not in text:
        return np.array(numbers_in(text, "--times"))
    parts = text.split(":")
    if len(parts) != 3 or not parts[2].isdigit() or not 2 <= int(parts[2]) <= _MOST_TIMES:
        raise typer.BadParameter(f"--times {text!r} is not START:STOP:COUNT, such as 0:10:101.")
    start, stop = numbers_in(",".join(parts[:2]), "--times")
    return np.linspace(start, stop, int(parts[2]))
