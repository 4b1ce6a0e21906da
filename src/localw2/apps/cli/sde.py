"""``localw2 sde``: paths of a stochastic equation in a long table with a row per observation."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from localw2.apps.cli import equations, options
from localw2.apps.cli.config import Config, keep_settings, settings_path
from localw2.apps.cli.fit import (
    check_weights,
    drop_unset,
    fit_with_checkpoint,
    keep_until_saved,
    list_model_files,
)
from localw2.apps.cli.ode import Times, arrange_draws, parse_times
from localw2.apps.cli.outputs import check_outputs, save_or_rescue
from localw2.apps.cli.running import (
    name_next,
    note,
    parse_numbers,
    print_result,
    repeat_flags,
    report_errors,
    split_names,
)

sde = typer.Typer(help="Paths of a stochastic equation: drift, diffusion, jumps.", no_args_is_help=True)

_RUN = "in a Python file of your own, which is run"
Drift = Annotated[
    str | None,
    typer.Option(
        "--drift",
        metavar="FILE.py:FUNCTION",
        help=f"The drift of a stochastic equation, function(t, y, parameters ...), {_RUN}.",
    ),
]
Diffusion = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:FUNCTION", help=f"Its diffusion, function(t, y, parameters ...), {_RUN}."),
]
Jumps = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:SIZE|FILE.py:RATE,FILE.py:SIZE",
        help=f"The sizes of its jumps, size(t, y, z, parameters ...), {_RUN}, and their rate(t, y, ...).",
    ),
]


@sde.command("fit")
@report_errors
def fit_sde(
    context: typer.Context,
    data: options.Data,
    time: Annotated[str, typer.Option(metavar="COL", help="The time of a row.")],
    states: Annotated[str, typer.Option(metavar="A,B", help="The states.")],
    out: options.ModelOut,
    identity: Annotated[
        str | None,
        typer.Option("--id", metavar="COL", help="The path a row belongs to; without it all are one path."),
    ] = None,
    drift: Annotated[
        str,
        typer.Option(
            "--field",
            "--drift",
            metavar="mlp|FILE.py:FUNCTION",
            help="The drift: a network, or your own function(t, y, parameters ...). The file is run, because "
            "you name it; name none that you do not trust.",
        ),
    ] = "mlp",
    diffusion: Annotated[
        str,
        typer.Option(
            metavar="mlp|FILE.py:FUNCTION",
            help="The diffusion: a network, or your own function(t, y, parameters ...).",
        ),
    ] = "mlp",
    jumps: Annotated[
        str | None,
        typer.Option(
            metavar="normal|mlp|FILE.py:SIZE",
            help="Jumps: at a constant rate with Gaussian sizes (normal), rate and sizes by networks of the "
            "state (mlp), your own size(t, y, z, parameters ...) at the rate of a parameter rate, or "
            "FILE.py:RATE,FILE.py:SIZE.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=GUESS|NAME=LAW:MEAN:SD,..",
            help="Guesses of the parameters of your functions, such as theta=1,sigma=0.5; or laws of those "
            "that vary between paths, such as theta=lognormal:1:0.3. All are shared, from 1, by default.",
        ),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="additive|proportional|NUMBER",
            help="Errors of measurement; a number is their SD. Needs functions.",
        ),
    ] = None,
    correlated: Annotated[
        bool, typer.Option("--correlated", help="The noise of the states is correlated.")
    ] = False,
    bounds: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="Bounds of all states; either may be empty, as in 0,"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="COL", help="A column that says how much each path counts."),
    ] = None,
    step: Annotated[float | None, typer.Option(help="Longest step of the solver; chosen by default.")] = None,
    ball_rows: Annotated[int | None, typer.Option(min=2, help="Transitions per ball.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps.")] = None,
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
    """Learn dY = a(Y) dt + b(Y) dW, with jumps if there are any, from paths or from one long path.

    Drift a and diffusion b are networks, or your own functions whose parameters are learned. DATA has a row
    for each observation, at any times; empty cells were not observed.
    """
    check_outputs(out, [data, config], list_model_files(out))
    limits = parse_state_bounds(bounds)
    # With something on the screen: what follows imports torch, which takes a second or two.
    note(f"reading {'standard input' if data == '-' else data}")
    from localw2.apps.cli.model_files import save_model
    from localw2.apps.tables.tables import read_table
    from localw2.storage.model_file import check_writable

    own = [None if part == "mlp" else part for part in (drift, diffusion)]
    functions = load_parts(own[0], own[1], jumps)
    laws, errors = equations.parse_parameters(parameters), equations.parse_noise(noise)
    check_writable(out, "--out")
    table = read_table(data, decimal)
    names, weighing = (split_names(text, list(table.frame)) for text in (states, weights))
    if not names:
        raise typer.BadParameter("--states does not name a column.")
    others = {time, *names, *([] if identity is None else [identity])}
    check_weights(weighing, others, "--id, --time or --states")
    note(
        f"{len(table.frame)} rows: {', '.join(names)} over {time}"
        + (", one path" if identity is None else f", a path for each {identity}")
    )
    from localw2 import LocalW2SDE
    from localw2.estimators.dynamics.processes import read_long_table

    long = read_long_table(table.frame, identity, time, names, table.source)
    model = LocalW2SDE(
        **drop_unset(**functions),
        parameters=laws,
        noise=errors,
        correlated=correlated,
        bounds=limits,
        device=device,
        random_state=seed,
        **drop_unset(
            step=step,
            ball_rows=ball_rows,
            max_steps=max_steps,
            learning_rate=learning_rate,
            width=width,
            depth=depth,
        ),
    )
    count = len(long.subjects)
    roles: dict[str, Any] = {"states": names, "id": [] if identity is None else [identity], "time": [time]}
    with keep_until_saved(out):
        learn = partial(model.fit_table, long, sample_weight=weighing[0] if weighing else None)
        fitted = fit_with_checkpoint(model, learn, out, restart, as_json)
        save_or_rescue(partial(save_model, model, **roles), out, "model")
    found = {
        "model": out,
        "settings": str(settings_path(out)),
        "data": table.source,
        "sha256": table.sha256,
        "rows": len(table.frame),
        "paths": count,
        "states": names,
        "weights": weighing[0] if weighing else None,
        "skipped": model.fit_.skipped,
        "step": model.step_,
        "step_error": model.step_error_,
        **describe_equation(model),
        **fitted,
    }
    keep_settings(context, out, found, collect_training(model))
    paths = "1 path" if count == 1 else f"{count} paths"
    print_result(
        found,
        f"{model.summary()}\n{out}: {paths}, loss {found['loss']:.4g}, {found['seconds']:.1f} s",
        as_json,
    )
    parts = {"drift": drift, "diffusion": diffusion, "jumps": jumps}
    flags = [name for name, part in parts.items() if part is not None and ".py" in part]
    page = ["localw2", "report", out, data, *repeat_flags(context, *flags, "decimal")]
    name_next({"see the fit beside the paths, on a page": page}, as_json)


@sde.command("sample")
@report_errors
def sample_sde(
    context: typer.Context,
    model: options.Model,
    times: Times,
    initial: Annotated[str, typer.Option(metavar="a,b", help="The initial state.")],
    exact: Annotated[bool, typer.Option("--exact", help="Without errors of measurement.")] = False,
    drift: Annotated[
        str | None,
        typer.Option("--field", "--drift", metavar="FILE.py:FUNCTION", help="The drift, as in the fit."),
    ] = None,
    diffusion: Diffusion = None,
    jumps: Jumps = None,
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Number of paths.")] = 100,
    seed: options.Seed = 0,
    out: options.TableOut = "-",
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Simulate independent paths from a state; one line per draw and time."""
    from localw2.apps.cli.model_files import SDE, load_model, write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    check_outputs(out, [model, config])
    start, grid = parse_numbers(initial, "--initial"), parse_times(times)
    loaded = load_model(model, (SDE,), **load_parts(drift, diffusion, jumps))
    estimator = loaded.estimator
    names = loaded.columns.get("states") or [f"y{k + 1}" for k in range(estimator.n_states_)]
    if len(start) != estimator.n_states_:
        raise ValueError(
            f"--initial has {len(start)} number(s), but {model} has {estimator.n_states_} state(s): "
            f"{', '.join(names)}."
        )
    draws = estimator.sample([start], grid, n_samples, seed, measured=not exact)
    (time,) = loaded.columns.get("time", ["time"])
    write_result(context, arrange_draws(draws, grid, time, names), out, as_json)


def load_parts(drift: str | None, diffusion: str | None, jumps: str | None) -> dict[str, Any]:
    """The parts of a stochastic equation that are the user's own functions; None for others."""
    named = (("drift", drift), ("diffusion", diffusion))
    found = {
        name: None if part is None else equations.load_function(part, f"--{name}") for name, part in named
    }
    return found | {"jumps": parse_jumps(jumps)}


def parse_jumps(text: str | None) -> Any:
    """Parse ``--jumps``: "normal", "mlp", FILE.py:size, or FILE.py:rate,FILE.py:size.

    >>> parse_jumps("normal"), parse_jumps(None)
    ('normal', None)
    """
    if text is None or text in ("normal", "mlp"):
        return text
    if ".py" not in text:
        raise typer.BadParameter(f"--jumps {text!r} is neither normal, mlp nor FILE.py:function.")
    found = [equations.load_function(part.strip(), "--jumps") for part in text.split(",")]
    if len(found) > 2:
        raise typer.BadParameter(
            f"--jumps names {len(found)} functions; it takes a size, or a rate and a size."
        )
    return found[0] if len(found) == 1 else tuple(found)


def parse_state_bounds(text: str | None) -> Any:
    """Parse ``--bounds``: two ends, either of which may be empty.

    >>> parse_state_bounds("0,"), parse_state_bounds("-1,1"), parse_state_bounds(None)
    ((0.0, None), (-1.0, 1.0), None)
    """
    if text is None:
        return None
    try:
        low, high = (float(end) if end.strip() else None for end in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--bounds {text!r} is not LOW,HIGH, such as 0, or 0,1.") from None
    return low, high


def describe_equation(model: Any) -> dict[str, Any]:
    """Parameters, jumps and errors of measurement that were learned, for programs."""
    found: dict[str, Any] = {}
    if hasattr(model, "parameters_"):
        law, varies = model.parameters_, model.equation_.law.random_names
        found["parameters"] = {
            name: {"mean": law.mean[name], "sd": law.std[name] if name in varies else 0.0}
            for name in law.mean
        }
    if hasattr(model, "jump_rate_"):
        found["jumps"] = {"rate": model.jump_rate_, "mean": model.jump_mean_, "sd": model.jump_std_}
    if hasattr(model, "noise_"):
        found["noise"] = model.noise_
    return found


def collect_training(model: Any) -> dict[str, Any]:
    """Collect how networks were made, by the names of the flags, whether they were given or not."""
    has_networks = any(isinstance(model.get_params()[part], str) for part in ("drift", "diffusion"))
    found = {"learning-rate": model.fit_.config.learning_rate, "ball-rows": model.ball_rows}
    return found | {"width": model.width, "depth": model.depth} if has_networks else found
