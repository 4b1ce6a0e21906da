"""``localw2 fit``: from a table to a model, with its settings beside it."""

from __future__ import annotations

import json
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localw2._wording import describe_weights
from localw2.apps.cli import options
from localw2.apps.cli.config import Config, keep_settings, settings_path
from localw2.apps.cli.judge import format_scores, score_rows
from localw2.apps.cli.outputs import check_outputs, save_or_rescue
from localw2.apps.cli.running import (
    INTERRUPTED,
    command_line,
    name_next,
    note,
    parse_numbers,
    print_result,
    report_errors,
    split_names,
)

if TYPE_CHECKING:
    from localw2._validation import Array
    from localw2.apps.tables.tables import Table

_PANEL = "The network (with --law network)"
_OF_NETWORK = ("epochs", "learning_rate", "width", "depth")  # settings of the network that have a flag
_PURPOSE, _CHOSEN = 7, 8  # keep these random numbers apart from others of the same seed

LawName = StrEnum("LawName", ["auto", "network", "balls"])
CalibrationName = StrEnum("CalibrationName", {"split": "split", "cv": "cv", "cv_plus": "cv+"})
Base = StrEnum("Base", ["auto", "none", "ridge", "boosting"])
NormName = StrEnum("NormName", ["auto", "euclidean", "standardised"])


@report_errors
def fit(
    context: typer.Context,
    data: options.Data,
    target: Annotated[str, typer.Option(metavar="COL[,COL2]", help="The column(s) to predict.")],
    out: options.ModelOut,
    features: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The columns to predict from; by default, all others."),
    ] = None,
    exclude: Annotated[str | None, typer.Option(metavar="C,D", help="Columns not to predict from.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="COL", help="A column that says how much each row counts; not predicted from."),
    ] = None,
    categorical: Annotated[
        str | None,
        typer.Option(
            metavar="COL[,COL2]",
            help="Targets of whole numbers that are labels; text and true or false are categorical anyway.",
        ),
    ] = None,
    law: Annotated[
        LawName,
        typer.Option(
            help="What the distribution is made of; auto takes similar rows and, with one or two numeric "
            "columns, a network."
        ),
    ] = LawName.auto,
    base: Annotated[Base, typer.Option(help="The mean that the distribution is centred on.")] = Base.auto,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Calibrate intervals to their nominal coverage; takes longer."),
    ] = False,
    calibration: Annotated[
        CalibrationName | None,
        typer.Option(help="How to calibrate them; by default split from 2000 rows on, else cv."),
    ] = None,
    bounds: Annotated[
        str, typer.Option(metavar="auto|none|LOW,HIGH", help="Bounds of the target; either may be empty.")
    ] = "auto",
    values: Annotated[
        str, typer.Option(metavar="auto|none|0,1,2", help="The only values that the target can have.")
    ] = "auto",
    delta: Annotated[
        str, typer.Option(metavar="auto|RADIUS|nearest:K", help="The balls of the network's local loss.")
    ] = "auto",
    norm: Annotated[NormName, typer.Option(help="The distance in which balls are measured.")] = NormName.auto,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of training epochs.", rich_help_panel=_PANEL)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of the optimizer.", rich_help_panel=_PANEL)
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Units per hidden layer.", rich_help_panel=_PANEL)
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Number of hidden layers.", rich_help_panel=_PANEL)
    ] = None,
    hold_out: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="Share of the rows to hold out, score and write to a file."),
    ] = 0.0,
    max_rows: Annotated[
        int | None, typer.Option(min=2, help="Use at most this many rows, chosen at random.")
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    jobs: Annotated[
        int | None, typer.Option(help="Trees grown at the same time; by default as many as there are cores.")
    ] = None,
    drop_missing: options.DropMissing = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    restart: options.Restart = False,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Learn the conditional distribution of columns given others; write MODEL and MODEL.settings.toml.

    Text columns are categorical, unless they hold dates such as 2020-01-31; features may have missing values.
    Targets may be numbers and categories together: their joint distribution is learned. Row numbers,
    identifiers and constant columns are left out, with a line that says so. Ctrl-C keeps MODEL.checkpoint;
    the same command then resumes the fit. `localw2 explore MODEL --data DATA --watch` shows the training
    curves while it runs.
    """
    network = drop_unset(epochs=epochs, learning_rate=learning_rate, width=width, depth=depth)
    if network and law is not LawName.network:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in network)
        raise typer.BadParameter(f"{flags}: a setting of the network; add --law network.")
    limits, levels = parse_bounds(bounds), parse_values(values)
    check_outputs(out, [data, config], list_model_files(out, hold_out > 0))
    note(f"reading {'standard input' if data == '-' else data}")
    import pandas as pd

    from localw2.apps.cli.model_files import (
        drop_incomplete,
        find_known,
        parse_delta,
        read_outputs,
        save_model,
    )
    from localw2.apps.tables.tables import read_table, write_table

    table = read_table(data, decimal)
    targets, chosen, others, weighing, named_labels = (
        split_names(text, list(table.frame)) for text in (target, features, exclude, weights, categorical)
    )
    inputs = choose_features(table, targets, chosen, others, weighing)
    labels = choose_labels(table, targets, named_labels)
    if labels:
        check_for_labels(labels, context)
    if drop_missing:
        table = drop_incomplete(table, [*targets, *weighing])
    X = table.features(inputs)
    y = table.outcomes(targets, labels) if labels else read_outputs(table, targets)
    counts = read_outputs(table, weighing) if weighing else None
    rows, held = split_rows(len(y), max_rows, hold_out, seed)
    share = f"{len(rows)} rows fitted, {len(held)} held out" if len(held) else f"{len(rows)} rows"
    note(f"{share}: {', '.join(targets)} from {', '.join(inputs)}")

    # Only now, with something on the screen: these import torch, which takes a second or two.
    from localw2 import LocalW2MixedRegressor, LocalW2Regressor, Network
    from localw2.storage.model_file import check_writable

    check_writable(out, "--out")
    model: Any
    if labels:
        own: Any = Network.with_noise(**network) if network else str(law)
        # Numbers that are labels are named; a model of one column is a classifier.
        coded = [name for name in labels if name in named_labels] or None
        model = LocalW2MixedRegressor(own, choose_base(base), coded, jobs, seed)
        known = y.iloc[rows]
        observed = known.iloc[:, 0] if len(targets) == 1 else known
    else:
        model = LocalW2Regressor(
            law=Network(**network) if law is LawName.network else str(law),
            base=choose_base(base),
            delta=parse_delta(delta),
            norm=choose_norm(norm, X.iloc[rows], y[rows]),
            calibrate=calibrate if calibration is None else str(calibration),
            bounds=limits,
            values=levels,
            device=device,
            n_jobs=jobs,
            random_state=seed,
        )
        known = y[rows]
        observed = pd.Series(known, name=targets[0]) if y.ndim == 1 else pd.DataFrame(known, columns=targets)
    with keep_until_saved(out):
        extra = {} if counts is None else {"sample_weight": counts[rows]}
        learn = partial(model.fit, X.iloc[rows], observed, **extra)
        fitted = fit_with_checkpoint(model, learn, out, restart, as_json)
        if len(held):  # before the model: an explorer takes both as soon as the model is there
            try_to_write(f"{out}.held-out.csv", table.frame.iloc[held], write_table)
        save = partial(save_model, model, features=inputs, targets=targets)
        save_or_rescue(save, out, "model")
    left_out = {} if model.columns_ is None else model.columns_.dropped
    found: dict[str, Any] = {
        "model": out,
        "settings": str(settings_path(out)),
        "data": table.source,
        "sha256": table.sha256,
        "rows": len(rows),
        "held_out": len(held),
        "features": [name for j, name in enumerate(inputs) if j not in left_out],
        "target": targets,
        "weights": weighing[0] if weighing else None,
        "left_out": {inputs[j]: reason for j, reason in left_out.items()},
        "law": model.weights_,
        **describe_mean(model, base),
        "calibration": None if labels or model.calibration_ is None else model.calibration_.kind,
        **fitted,
    }
    if labels:
        found["classes"] = {model.coding_.names[j]: words for j, words in model.coding_.classes.items()}
    if hasattr(model, "delta_"):  # a network
        found |= {"delta": str(model.delta_), "norm": type(model.norm_).__name__}
    lines = [f"{out}: fitted to {len(rows)} rows in {found['seconds']:.1f} s"]
    lines += [f"mean: {found['base']}"] if found["base"] else []
    lines.append(f"distribution: {describe_weights(model.weights_)}")
    lines += [f"{name}: {join_classes(words)}" for name, words in found.get("classes", {}).items()]
    if len(held):
        found["held_out_file"] = f"{out}.held-out.csv"
        try:
            judged = held
            if labels:
                judged = held[find_known(model.coding_, y.iloc[held], "the held-out part")]
            rest = y.iloc[judged] if labels else y[judged]
            scores = score_rows(model, X.iloc[judged], rest, inputs, targets, seed)
        except ValueError as error:  # such as values missing only here; the model itself is fine
            note(f"the held-out rows cannot be scored: {error}")
        else:
            found["held_out_scores"] = scores
            lines += ["", f"On the held-out rows, in {found['held_out_file']}:", *format_scores(scores)]
    trained = model.law if hasattr(model.law, "epochs") else None
    used = {} if trained is None else {name: getattr(trained, name) for name in _OF_NETWORK}
    keep_settings(context, out, found, {name.replace("_", "-"): value for name, value in used.items()})
    print_result(found, "\n".join(lines), as_json)
    predict = {"predict other rows": ["localw2", "predict", out, "NEW.csv", "--out", "predictions.csv"]}
    judge = ["localw2", "report", out, found["held_out_file"]] if len(held) else []
    name_next(({"see how good it is, on a page": judge} if judge else {}) | predict, as_json)


def list_model_files(out: str, holds_out: bool = False) -> list[str]:
    """The files that a fit writes beside its model."""
    found = [f"{out}.checkpoint", f"{out}.checkpoint.lock", f"{out}.history.jsonl"]
    return [*found, f"{out}.held-out.csv"] if holds_out else found


def choose_features(
    table: Table, targets: list[str], features: list[str], exclude: list[str], weights: list[str]
) -> list[str]:
    """Choose the columns to predict from, by default all others; the estimator leaves out useless ones."""
    if not targets:
        raise typer.BadParameter("--target does not name a column.")
    if features and exclude:
        raise typer.BadParameter("use either --features or --exclude, not both.")
    table.select([*targets, *features, *exclude, *weights])
    check_weights(weights, {*targets, *features}, "--target or --features")
    if both := set(features) & set(targets):
        raise ValueError(
            f"{both.pop()!r} is in both --target and --features; a column cannot predict itself."
        )
    chosen = features or [name for name in table.frame if name not in {*targets, *exclude, *weights}]
    if not chosen:
        raise ValueError(f"{table.source} has no column left to predict {', '.join(targets)} from.")
    return chosen


def choose_labels(table: Table, targets: list[str], named: list[str]) -> list[str]:
    """The targets that are categorical: those named, text, and truth values."""
    if strange := [name for name in named if name not in targets]:
        raise typer.BadParameter(
            f"--categorical names {strange[0]!r}, which is not a --target; text features are categorical "
            "anyway."
        )
    found = table.find_labels(targets)
    return [name for name in targets if name in named or name in found]


def check_for_labels(labels: list[str], context: typer.Context) -> None:
    """Raise if a setting was given that a law with categories does not have."""
    plain = {"calibrate": False, "calibration": None, "bounds": "auto", "values": "auto", "delta": "auto"}
    plain |= {"norm": NormName.auto}
    given = [f"--{name}" for name, value in plain.items() if context.params[name] != value]
    if context.params["device"] not in ("auto", "cpu"):
        given.append("--device")
    if given:
        raise typer.BadParameter(
            f"{', '.join(given)}: not with a categorical target such as {labels[0]!r}. Leave it out, or fit "
            "the numbers alone."
        )


def describe_mean(model: Any, base: Base) -> dict[str, Any]:
    """What the mean of the numbers is made of; None if there are none."""
    if base is not Base.auto:
        return {"base": base}
    owner = model.law_.numbers if hasattr(model, "coding_") else model
    return {"base": None if owner is None else owner.base_name_}


def join_classes(words: Sequence[Any], most: int = 8) -> str:
    """Some classes for people.

    >>> join_classes(["no", "yes"]), join_classes(range(9), 3)
    ('no, yes', '0, 1, 2 and 6 more')
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(str(word)[:40] for word in words[:most])}{more}"


def split_rows(n: int, most: int | None, share: float, seed: int) -> tuple[Array, Array]:
    """Split n rows at random into those to fit and those held out, both ascending, together at most ``most``.

    The same seed gives the same split, so that an interrupted fit can be resumed.
    """
    import numpy as np

    kept = np.arange(n)
    if most is not None and most < n:
        kept = np.sort(np.random.default_rng([seed, _CHOSEN]).permutation(n)[:most])
        note(f"{most} of {n} rows, chosen at random with --seed {seed}.")
    count = round(share * len(kept))
    if share > 0 and count < 2:
        raise ValueError(
            f"--hold-out {share} of {len(kept)} rows leaves {count} to judge the fit; it takes at least 2, "
            "better 100."
        )
    held = np.zeros(len(kept), bool)
    held[np.random.default_rng([seed, _PURPOSE]).permutation(len(kept))[:count]] = True
    return kept[~held], kept[held]


def choose_base(name: str) -> Any:
    """The mean that a name stands for, as the estimator takes it."""
    if name in ("auto", "none"):
        return None if name == "none" else name
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "boosting":
        return HistGradientBoostingRegressor()
    return make_pipeline(StandardScaler(), RidgeCV([10.0**power for power in range(-6, 4)]))


def choose_norm(name: str, X: Any, y: Array) -> Any:
    """The norm that a name stands for, as the estimator takes it."""
    if name == "auto":
        return name
    from localw2 import Euclidean, LocalW2Regressor, Weighted
    from localw2.estimators.tables import read_table

    if name == "euclidean":
        return Euclidean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit itself says which columns are left out
        x, _, columns = read_table(LocalW2Regressor(), X, y)
    return Weighted.standardised(columns.expand(x))


def parse_bounds(text: str) -> Any:
    """Parse ``--bounds``: "auto", "none", or the two ends, either of which may be empty.

    >>> parse_bounds("auto"), parse_bounds("none"), parse_bounds("0,"), parse_bounds("-1,1")
    ('auto', None, (0.0, None), (-1.0, 1.0))
    """
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        low, high = (float(end) if end.strip() else None for end in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--bounds {text!r} is neither auto, none nor LOW,HIGH.") from None
    return low, high


def parse_values(text: str) -> Any:
    """Parse ``--values``: "auto", "none", or a list of numbers."""
    if text in ("auto", "none"):
        return None if text == "none" else text
    return parse_numbers(text, "--values")


# --- for every command that fits --------------------------------------------------------------------------


def check_weights(weights: list[str], others: set[str], flags: str) -> None:
    """Raise unless at most one column has the weights, and no other use, which ``flags`` give."""
    if len(weights) > 1:
        raise typer.BadParameter(f"--weights names {len(weights)} columns; give one.")
    if weights and weights[0] in others:
        raise ValueError(f"{weights[0]!r} is in --weights and in {flags}; a column has one use.")


def drop_unset(**settings: Any) -> dict[str, Any]:
    """Keep the settings that were given; for the others the estimator has its own defaults."""
    return {name: value for name, value in settings.items() if value is not None}


@contextmanager
def keep_until_saved(out: str) -> Iterator[None]:
    """Hold the checkpoint beside a model, and keep it until the model has been written inside the block."""
    from localw2.estimators.settings import keep_checkpoints
    from localw2.training.checkpoints import hold_checkpoint
    from localw2.training.distributed import Crew

    with hold_checkpoint(f"{out}.checkpoint", Crew.join()), keep_checkpoints():
        yield


def try_to_write(path: str, rows: Any, write: Callable[[str, Any], None]) -> None:
    """Write rows that can be had again; a full disk is not the end of the fit."""
    try:
        write(path, rows)
    except OSError as error:
        note(f"{path} could not be written: {(error.strerror or str(error)).lower()}.", "warning:", "yellow")


def fit_with_checkpoint(
    model: Any, fit: Callable[[], Any], out: str, restart: bool, as_json: bool
) -> dict[str, Any]:
    """Fit, with a checkpoint and a history beside the model to be; what the record says of the training.

    ``fit`` calls a method of the model. After Ctrl-C, exit without a half-trained model, and say how to
    continue.
    """
    from localw2.apps.cli.model_files import history_path

    checkpoint, history = Path(f"{out}.checkpoint"), Path(history_path(out))
    if restart:
        for old in [checkpoint, *checkpoint.parent.glob(f"{checkpoint.name}.calibration*")]:
            old.unlink(missing_ok=True)
    elif checkpoint.exists():
        note(f"resuming from {checkpoint}; --restart would start over.")
    history.unlink(missing_ok=True)
    start = time.perf_counter()
    resumed = "checkpoint" in model.get_params(deep=False)  # a law with categories takes seconds
    if resumed:
        model.set_params(checkpoint=str(checkpoint), history=str(history), verbose=True)
    fit()
    if resumed:
        model.set_params(checkpoint=None, history=None, verbose=False)
    training = getattr(model, "fit_", None)  # a law without a network has none
    stopped = "" if training is None else training.stopped
    if stopped.startswith("interrupted"):
        note(f"{stopped}; {shlex.quote(str(checkpoint))} keeps the progress.")
        note(f"To go on, run the same command again:\n  {command_line()}")
        if as_json:
            resume = {"checkpoint": str(checkpoint), "resume": command_line()}
            typer.echo(json.dumps({"error": stopped} | resume))
        raise typer.Exit(INTERRUPTED)
    found: dict[str, Any] = {"seconds": round(time.perf_counter() - start, 2)}
    if training is not None:
        found |= {"epochs": len(training.history), "loss": training.losses[-1]}
    return found
