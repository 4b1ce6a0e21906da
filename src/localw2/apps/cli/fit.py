"""``localw2 fit``: from a table to a model, with its settings beside it."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

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
    DropMissing,
    Json,
    LearningRate,
    MaxEpochs,
    ModelOut,
    Restart,
    Seed,
    Width,
)
from localw2.apps.cli.running import note, print_result, report_errors, split_names
from localw2.apps.cli.scores import format_scores, score_rows

if TYPE_CHECKING:
    from localw2._validation import Array
    from localw2.apps.tables.tables import Table

DRAWS = 200  # per held-out row
_PURPOSE, _CHOSEN = 7, 8  # keep these random numbers apart from others of the same seed


class Base(StrEnum):
    """The choices of the mean."""

    auto = "auto"
    none = "none"
    ridge = "ridge"
    boosting = "boosting"
    kernel = "kernel"


class NormName(StrEnum):
    """The choices of the distance."""

    auto = "auto"
    euclidean = "euclidean"
    standardised = "standardised"


@report_errors
def fit(
    context: typer.Context,
    data: Data,
    target: Annotated[str, typer.Option(metavar="COL[,COL2]", help="The column(s) to predict.")],
    out: ModelOut,
    features: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The columns to predict from; by default, all others."),
    ] = None,
    exclude: Annotated[str | None, typer.Option(metavar="C,D", help="Columns not to predict from.")] = None,
    delta: Annotated[
        str, typer.Option(metavar="auto|RADIUS|nearest:K", help="The balls of the local loss.")
    ] = "auto",
    norm: Annotated[NormName, typer.Option(help="The distance in which balls are measured.")] = NormName.auto,
    base: Annotated[Base, typer.Option(help="The mean to which the random network is added.")] = Base.auto,
    max_epochs: MaxEpochs = None,
    learning_rate: LearningRate = None,
    width: Width = None,
    depth: Depth = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Calibrate intervals to their nominal coverage; takes longer."),
    ] = False,
    hold_out: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="Share of the rows to hold out, score and write to a file."),
    ] = 0.0,
    max_rows: Annotated[
        int | None, typer.Option(min=2, help="Use at most this many rows, chosen at random.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    restart: Restart = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Learn the conditional distribution of a column given others; write MODEL and MODEL.settings.toml.

    Text columns are categorical, and features may have missing values. Ctrl-C keeps MODEL.checkpoint; the
    same command then resumes the fit. `localw2 explore MODEL --data DATA --watch` shows the training curves
    while it runs.
    """
    from localw2.apps.cli.model_files import drop_incomplete, parse_delta, read_data, save_model
    from localw2.apps.tables.tables import write_table
    from localw2.storage.model_file import check_writable

    balls = parse_delta(delta)
    check_writable(out, "--out")
    table = read_data(data, decimal)
    targets = split_names(target, table.names)
    chosen = split_names(features, table.names), split_names(exclude, table.names)
    inputs, left_out = choose_features(table, targets, *chosen)
    if drop_missing:
        table = drop_incomplete(table, [*inputs, *targets])
    X, y = table.features(inputs), table.numbers(targets)
    y = y[:, 0] if len(targets) == 1 else y
    rows, held = split_rows(len(y), max_rows, hold_out, seed)

    from localw2 import LocalW2Regressor

    start = time.perf_counter()
    model = LocalW2Regressor(
        base=choose_base(base.value, X.iloc[rows], y[rows], seed),
        delta=balls,
        norm=choose_norm(norm.value, X.iloc[rows], y[rows]),
        calibrate=calibrate,
        checkpoint=prepare_checkpoint(out, restart),
        history=clear_history(out),
        device=device,
        random_state=seed,
        verbose=True,
        **drop_unset(max_epochs=max_epochs, learning_rate=learning_rate, width=width, depth=depth),
    )
    note(f"{len(rows)} rows of {table.source}: {', '.join(targets)} from {', '.join(inputs)}")
    model.fit(X.iloc[rows], y[rows])
    stop_if_interrupted(model.fit_.stopped, out, data, as_json)
    model.set_params(checkpoint=None, history=None, verbose=False)
    if len(held):  # before the model: an explorer takes both as soon as the model is there
        write_table(f"{out}.held-out.csv", table.frame.iloc[held])
    save_model(model, out, features=inputs, targets=targets)
    clear_history(out)
    found: dict[str, Any] = {
        "model": out,
        "settings": str(settings_path(out)),
        "data": table.source,
        "sha256": table.sha256,
        "rows": len(rows),
        "held_out": len(held),
        "features": inputs,
        "target": targets,
        "left_out": left_out,
        **describe_fit(model),
    }
    found["base"] = base.value if base is not Base.auto else found["base"]
    found["seconds"] = round(time.perf_counter() - start, 2)
    lines = [f"{out}: base {found['base']}, balls {found['delta']}, {found['seconds']:.1f} s"]
    if len(held):
        found["held_out_file"] = f"{out}.held-out.csv"
        scores = score_held_out(model, X.iloc[held], y[held], inputs, targets, seed)
        if scores is not None:
            found["held_out_scores"] = scores
            lines += ["", f"On the held-out rows, in {found['held_out_file']}:", *format_scores(scores)]
    keep_settings(context, out, found, collect_training(model))
    print_result(found, "\n".join(lines), as_json)


def choose_features(
    table: Table, targets: list[str], features: list[str], exclude: list[str]
) -> tuple[list[str], dict[str, str]]:
    """Choose the columns to predict from, by default all but empty ones; also say why others are left out."""
    if not targets:
        raise typer.BadParameter("--target does not name a column.")
    for name in [*targets, *features, *exclude]:
        table.column(name)
    if features and exclude:
        raise typer.BadParameter("use either --features or --exclude, not both.")
    if both := [name for name in features if name in targets]:
        raise ValueError(f"{both[0]!r} is in both --target and --features; a column cannot predict itself.")
    if features:
        return features, {}
    others = [name for name in table.names if name not in (*targets, *exclude)]
    left_out = {name: "it is empty" for name in others if table.n_rows and table.column(name).isna().all()}
    for name, reason in left_out.items():
        note(f"column {name!r} is left out: {reason}.")
    chosen = [name for name in others if name not in left_out]
    if not chosen:
        raise ValueError(f"{table.source} has no column left to predict {', '.join(targets)} from.")
    return chosen, left_out


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


def describe_fit(model: Any) -> dict[str, Any]:
    """Describe a fit, for the result and its record."""
    return {
        "base": model.base_name_,
        "delta": str(model.delta_),
        "norm": type(model.norm_).__name__,
        "epochs": len(model.fit_.history),
        "loss": model.fit_.losses[-1],
        "calibration": None if model.calibration_ is None else model.calibration_.kind,
    }


def score_held_out(
    model: Any, X: Any, y: Array, features: list[str], targets: list[str], seed: int
) -> dict[str, Any] | None:
    """Score the fit on held-out rows; None, with a note, where they hold what the fitted rows did not."""
    try:
        return score_rows(model, X, y, features, targets, DRAWS, seed)
    except ValueError as error:  # such as missing values in a column that had none; the model itself is fine
        note(f"the held-out rows cannot be scored: {error}")
        return None


def choose_base(name: str, X: Any, y: Array, seed: int) -> Any:
    """The mean that a name stands for."""
    if name in ("auto", "none"):
        return "auto" if name == "auto" else None
    from localw2.estimators.regression.mean import candidates

    known = candidates(len(X), encode(X, y), y.reshape(len(y), -1), seed, name)
    if name not in known:
        raise ValueError(f"--base {name} needs more than {len(X)} rows; use --base auto or none.")
    return known[name]


def choose_norm(name: str, X: Any, y: Array) -> Any:
    """The norm that a name stands for."""
    if name == "auto":
        return "auto"
    from localw2 import Euclidean, Weighted

    return Euclidean() if name == "euclidean" else Weighted.standardised(encode(X, y))


def encode(X: Any, y: Array) -> Array:
    """The matrix of numbers that the estimator makes of a frame."""
    from localw2 import LocalW2Regressor
    from localw2.estimators.tables import read_table

    return read_table(LocalW2Regressor(), X, y)[0]
