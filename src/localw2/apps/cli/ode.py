"""``localw2 ode``: trajectories in a long table with a row per observation or dose."""

from __future__ import annotations

import math
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

ode = typer.Typer(
    help="Trajectories of a differential equation with random parameters.", no_args_is_help=True
)

Field = Annotated[
    str | None,
    typer.Option(
        "--field",
        metavar="FILE.py:FUNCTION",
        help="The right-hand side, function(t, y, parameters ...), in a Python file of your own. "
        "The file is run, because you name it; name none that you do not trust.",
    ),
]
Observe = Annotated[
    str | None,
    typer.Option(
        "--observe",
        metavar="0,1|FILE.py:FUNCTION",
        help="What is observed of the states: their numbers, from 0, or a function in a file that is run.",
    ),
]
Times = Annotated[
    str, typer.Option(metavar="0,0.5,1|START:STOP:COUNT", help="Times; they may go beyond the data.")
]
_NUMBERED = "0 is the first"


@ode.command("fit")
@report_errors
def fit_ode(
    context: typer.Context,
    data: options.Data,
    identity: Annotated[str, typer.Option("--id", metavar="COL", help="The subject a row belongs to.")],
    time: Annotated[str, typer.Option(metavar="COL", help="The time of a row.")],
    states: Annotated[str, typer.Option(metavar="A,B", help="The observed states.")],
    out: options.ModelOut,
    field: Field = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=LAW:MEAN:SD,..",
            help="Laws and guesses of the parameters of --field, such as "
            "ka=lognormal:1.5:0.5,V=shared:30,y0=normal:1. Laws: normal, lognormal, pushforward "
            "(:positive), shared; @A+B says on which covariates one depends, linearly or by @A+B:network.",
        ),
    ] = None,
    observe: Observe = None,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="additive|proportional|combined|NUMBER", help="Errors of measurement; a number is an SD."
        ),
    ] = None,
    limit: Annotated[
        float | None, typer.Option(help="Values at or below it are only known to be below.")
    ] = None,
    dose: Annotated[
        str | None, typer.Option(metavar="COL", help="Amounts; a row with one is a dose, maybe of no more.")
    ] = None,
    dose_state: Annotated[
        str, typer.Option(metavar="COL|NUMBER", help=f"The state to which doses go; {_NUMBERED}.")
    ] = "0",
    duration: Annotated[
        str | None, typer.Option(metavar="COL|NUMBER", help="How long a dose takes; 0 is at once.")
    ] = None,
    dose_time: Annotated[
        str | None,
        typer.Option(
            metavar="COL|NUMBER", help="When the one dose was given that all rows of a subject repeat."
        ),
    ] = None,
    event: Annotated[
        str | None, typer.Option(metavar="COL", help="0 in rows of observations, 1 of doses, 2 of neither.")
    ] = None,
    quantity: Annotated[
        str | None, typer.Option(metavar="COL", help="Which quantity the one column in --states holds.")
    ] = None,
    covariates: Annotated[
        str | None,
        typer.Option(metavar="A,NAME=B", help="One number for each subject, for laws and --field."),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="A,NAME=B", help="What changes with time, for --field.")
    ] = None,
    y0: Annotated[
        str | None, typer.Option(metavar="a,b|COL,COL2", help="Initial states: numbers, or columns.")
    ] = None,
    t0: Annotated[float | None, typer.Option(help="The initial time; the earliest one by default.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="COL", help="A column that says how much each subject counts."),
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
    """Learn dy/dt = g(t, y, omega), where omega is random, one for each trajectory.

    g is a network, or your own function (--field) whose parameters have the laws to be learned. DATA has a
    row for each observation or dose; empty cells (or .) were not observed.
    """
    from localw2.apps.cli.model_files import parse_delta, save_model
    from localw2.apps.tables.tables import read_table
    from localw2.storage.model_file import check_writable

    check_outputs(out, [data, config], list_model_files(out))
    radius = parse_delta(delta)
    if not isinstance(radius, str | float):
        raise typer.BadParameter("for an ODE, --delta is auto or a radius.")
    if parameters is not None and field is None:
        raise typer.BadParameter("--parameters are those of --field; name the file with its function.")
    laws, observed = equations.parse_parameters(parameters), equations.parse_observe(observe)
    function: Any = "mlp" if field is None else equations.load_function(field, "--field")
    check_writable(out, "--out")
    table = read_table(data, decimal)
    known = list(table.frame)
    names, weighing = (split_names(text, known) for text in (states, weights))
    check_weights(weighing, {identity, time, *names}, "--id, --time or --states")

    from localw2 import LocalW2ODE
    from localw2.estimators.dynamics.long_tables import LongTable

    long = LongTable.of(
        table.frame,
        source=table.source,
        subject=identity,
        time=time,
        observed=names,
        quantity=quantity,
        event=event,
        dose=dose,
        dose_state=equations.parse_number_or_name(dose_state),
        duration=equations.parse_number_or_name(duration),
        dose_time=equations.parse_number_or_name(dose_time),
        covariates=equations.parse_columns(covariates, known),
        inputs=equations.parse_columns(inputs, known),
        y0=parse_states(y0, known),
    )
    model = LocalW2ODE(
        function,
        laws,
        observed,
        noise=equations.parse_noise(noise),
        quantification_limit=limit,
        linked=not snapshots,
        delta=radius,
        device=device,
        random_state=seed,
        **drop_unset(max_epochs=max_epochs, learning_rate=learning_rate, width=width, depth=depth),
    )
    note(f"{len(long.subjects)} trajectories of {table.source}: {', '.join(long.quantities)}")
    roles: dict[str, Any] = {"states": long.quantities, "id": [identity], "time": [time]}
    if isinstance(observed, equations.States):
        roles["observe"] = [str(number) for number in observed.numbers]
    with keep_until_saved(out):
        learn = partial(model.fit_table, long, t0=t0, sample_weight=weighing[0] if weighing else None)
        fitted = fit_with_checkpoint(model, learn, out, restart, as_json)
        save_or_rescue(partial(save_model, model, **roles), out, "model")
    found = {
        "model": out,
        "settings": str(settings_path(out)),
        "data": table.source,
        "sha256": table.sha256,
        "rows": len(table.frame),
        "trajectories": len(long.subjects),
        "states": long.quantities,
        "weights": weighing[0] if weighing else None,
        "skipped": model.fit_.skipped,
        **fitted,
    }
    keep_settings(context, out, found, collect_training(model))
    line = f"{out}: {len(long.subjects)} trajectories, loss {found['loss']:.4g}, {found['seconds']:.1f} s"
    if model.population_ is not None:
        line = f"{model.summary()}\n{line}"
        found["population"] = list_quantities(model.population_)
    print_result(found, line, as_json)
    page = ["localw2", "report", out, data, *repeat_flags(context, "field", "observe", "decimal")]
    name_next({"see the fit beside the trajectories, on a page": page}, as_json)


@ode.command("sample")
@report_errors
def sample_ode(
    context: typer.Context,
    model: options.Model,
    times: Times,
    initial: Annotated[
        str | None,
        typer.Option(metavar="a,b", help="The initial state; none if laws or doses say where it starts."),
    ] = None,
    doses: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|TIME:AMOUNT[:STATE[:DURATION]],..",
            help="Doses: a table with the columns time and amount, maybe subject (from 0), state and "
            "duration; or a list.",
        ),
    ] = None,
    covariates: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE,..", help="The covariates of the subject.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="FILE", help="A table of inputs: a column time, one for each input.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Without errors of measurement.")] = False,
    field: Field = None,
    observe: Observe = None,
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=1, help="Number of trajectories.")] = 100,
    seed: options.Seed = 0,
    out: options.TableOut = "-",
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Simulate independent trajectories, with doses if there are any; one line per draw and time."""
    from localw2.apps.cli.model_files import write_result
    from localw2.apps.tables.tables import check_format

    check_format(out)
    check_outputs(out, [model, config, doses, inputs])
    start = None if initial is None else parse_numbers(initial, "--initial")
    grid = parse_times(times)
    given = {
        "doses": None if doses is None else equations.parse_doses(doses, decimal),
        "covariates": equations.parse_covariates(covariates),
        "inputs": None if inputs is None else read_inputs(inputs, decimal),
    }
    loaded = load_equation(model, field, observe)
    estimator = loaded.estimator
    count = estimator.n_states_
    names = loaded.columns.get("states") or [f"y{k}" for k in range(1, estimator.n_observed_ + 1)]
    if start is not None and len(start) != count:
        raise ValueError(
            f"--initial has {len(start)} number(s), but {model} has {count} state(s): {', '.join(names)}."
        )
    if start is None and getattr(estimator, "population_", None) is None:
        raise ValueError(f"{model} starts from a state; give it with --initial.")
    draws = estimator.sample(start, grid, n_samples, seed, **given, measured=not exact)
    (time,) = loaded.columns.get("time", ["time"])
    write_result(context, arrange_draws(draws, grid, time, names), out, as_json)


@ode.command("individuals")
@report_errors
def individuals_ode(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    predictions: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File for predictions of each subject, given its observations."),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            metavar="0,0.5,1|START:STOP:COUNT", help="Times of the predictions; those of DATA by default."
        ),
    ] = None,
    interval: Annotated[float, typer.Option(metavar="0.9", help="Probability of the intervals.")] = 0.9,
    field: Field = None,
    observe: Observe = None,
    identity: Annotated[
        str | None, typer.Option("--id", metavar="COL", help="The subject a row belongs to.")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COL", help="The time of a row.")] = None,
    states: Annotated[str | None, typer.Option(metavar="A,B", help="The observed states.")] = None,
    n_samples: Annotated[int, typer.Option("-n", "--draws", min=20, help="Draws of each subject.")] = 400,
    seed: options.Seed = 0,
    out: options.TableOut = "-",
    decimal: options.DecimalMark = options.Decimal.auto,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Estimate the parameters of each subject of DATA: medians and intervals given its observations."""
    import numpy as np

    from localw2._validation import check_probability
    from localw2.apps.cli.model_files import read_long_table, write_result
    from localw2.apps.tables.tables import check_format, read_table, write_table

    check_format(out)
    check_outputs(out, [model, data, config])
    if predictions is not None:
        check_format(predictions)
        check_outputs(predictions, [model, data, config, None if out == "-" else out])
    tail = (1 - check_probability(interval, "--interval")) / 2
    grid = None if times is None else parse_times(times)
    loaded = load_equation(model, field, observe)
    table = read_table(data, decimal)
    long = read_long_table(loaded, table, identity, time, states)
    estimator = loaded.estimator
    found = estimator.individual_parameters(long, n_samples=n_samples, random_state=seed)
    labels = np.array(found.subjects, dtype=object)
    columns: dict[str, Any] = {long.columns.subject: labels}
    for name, (low, middle, high) in found.quantiles((tail, 0.5, 1 - tail)).items():
        columns |= {name: middle, f"{name}_lower": low, f"{name}_upper": high}
    columns["effective_draws"] = found.effective.round(1)
    if predictions is not None:
        write_table(predictions, predict_individuals(estimator, long, grid, interval, n_samples, seed))
        note(f"{predictions}: predictions of {len(labels)} subjects")
    write_result(context, columns, out, as_json, table.sha256)


@ode.command("summary")
@report_errors
def summary_ode(model: options.Model, config: Config = None, as_json: options.Json = False) -> None:
    """Print what a fit says of the population: typical values, spreads, correlations, noise, intervals."""
    from localw2.apps.cli.model_files import ODE, load_model

    loaded = load_model(model, (ODE,), described=True)
    text = loaded.estimator.summary()
    print_result({"model": model, "population": list_quantities(loaded.estimator.population_)}, text, as_json)


def arrange_draws(draws: Any, grid: list[float], time: str, names: list[str]) -> dict[str, Any]:
    """Trajectories (S, n, T, d) as columns, with one line per draw, subject and time."""
    import numpy as np

    n_samples, n = draws.shape[:2]
    columns = {"draw": np.repeat(np.arange(1, n_samples + 1), n * len(grid))}
    if n > 1:
        columns["subject"] = np.tile(np.repeat(np.arange(n), len(grid)), n_samples)
    columns[time] = np.tile(grid, n_samples * n)
    return columns | {name: draws[..., place].ravel() for place, name in enumerate(names)}


def load_equation(model: str, field: str | None, observe: str | None) -> Any:
    """Read an ODE with the functions that the user names."""
    from localw2.apps.cli.model_files import ODE, load_model

    function = None if field is None else equations.load_function(field, "--field")
    return load_model(model, (ODE,), field=function, observe=equations.parse_observe(observe))


def list_quantities(population: Any) -> list[dict[str, Any]]:
    """The table of a population, for programs; what is not bounded is None, for which JSON has a word."""

    def bounded(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return [
        {
            "parameter": each.parameter,
            "kind": each.kind,
            "estimate": each.value,
            "error": bounded(each.error),
            "interval": [bounded(end) for end in each.interval],
            "shrinkage": population.shrinkage.get(each.parameter) if each.kind == "spread" else None,
        }
        for each in population.quantities
    ]


def predict_individuals(
    estimator: Any, long: Any, grid: list[float] | None, coverage: float, n_samples: int, seed: int
) -> dict[str, Any]:
    """One line for each subject, time and quantity: population and individual predictions, and a band."""
    import numpy as np

    settings = {"n_samples": n_samples, "random_state": seed}
    found = estimator.individual_predictions(long, at="observed" if grid is None else grid, **settings)
    lower, upper = found.interval(coverage)
    subject, place, quantity = np.nonzero(np.isfinite(found.mean))
    values: dict[str, Any] = {}
    if grid is None:
        observed = estimator.read_subjects(long).values
        subject, place, quantity = np.nonzero(np.isfinite(observed))
        values["observed"] = observed[subject, place, quantity]
    at = (subject, place, quantity)
    return {
        long.columns.subject: np.array(found.subjects, dtype=object)[subject],
        long.columns.time: found.times[subject, place],
        "quantity": np.array(long.quantities, dtype=object)[quantity],
        **values,
        "population": found.population[at],
        "individual": found.mean[at],
        "lower": lower[at],
        "upper": upper[at],
    }


def read_inputs(path: str, decimal: str) -> dict[str, Any]:
    """Read a table of inputs: a column of times, and one for each input."""
    from localw2.apps.tables.tables import read_table

    table = read_table(path, decimal)
    times = table.numbers(["time"])[:, 0]
    return {name: (times, table.numbers([name])[:, 0]) for name in table.frame if name != "time"}


def parse_states(text: str | None, known: list[str]) -> Any:
    """Parse ``--y0``: columns of the table if all are, or else numbers.

    >>> parse_states("0,1", ["t"]), parse_states("a,b", ["a", "b"]), parse_states(None, [])
    ([0.0, 1.0], ['a', 'b'], None)
    """
    names = split_names(text, known)
    if not text or all(name in known for name in names):
        return names or None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--y0 {text!r} is neither numbers nor columns of the table.") from None


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
    found = {"max-epochs": config.max_epochs, "learning-rate": config.learning_rate}
    return found if callable(model.field) else found | {"width": model.width, "depth": model.depth}
