"""``localw2 fit``: from a table to a model, with its settings beside it."""

from __future__ import annotations

import json
import shlex
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localw2.apps.cli import options
from localw2.apps.cli.config import Config, keep_settings, settings_path
from localw2.apps.cli.judge import format_scores, score_rows
from localw2.apps.cli.running import INTERRUPTED, command_line, note, print_result, report_errors, split_names

if TYPE_CHECKING:
    from localw2._validation import Array
    from localw2.apps.tables.tables import Table

_PURPOSE, _CHOSEN = 7, 8  # keep these random numbers apart from others of the same seed

Base = StrEnum("Base", ["auto", "none", "ridge", "boosting", "kernel"])
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
    delta: Annotated[
        str, typer.Option(metavar="auto|RADIUS|nearest:K", help="The balls of the local loss.")
    ] = "auto",
    norm: Annotated[NormName, typer.Option(help="The distance in which balls are measured.")] = NormName.auto,
    base: Annotated[Base, typer.Option(help="The mean to which the random network is added.")] = Base.auto,
    max_epochs: options.MaxEpochs = None,
    learning_rate: options.LearningRate = None,
    width: options.Width = None,
    depth: options.Depth = None,
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
    seed: options.Seed = 0,
    device: options.Device = "auto",
    drop_missing: options.DropMissing = False,
    decimal: options.DecimalMark = options.Decimal.auto,
    restart: options.Restart = False,
    config: Config = None,
    as_json: options.Json = False,
) -> None:
    """Learn the conditional distribution of a column given others; write MODEL and MODEL.settings.toml.

    Text columns are categorical, and features may have missing values. Ctrl-C keeps MODEL.checkpoint; the
    same command then resumes the fit. `localw2 explore MODEL --data DATA --watch` shows the training curves
    while it runs.
    """
    from localw2.apps.cli.model_files import drop_incomplete, parse_delta, read_outputs, save_model
    from localw2.apps.tables.tables import read_table, write_table
    from localw2.storage.model_file import check_writable

    balls = parse_delta(delta)
    check_writable(out, "--out")
    table = read_table(data, decimal)
    targets, chosen, others = (split_names(text, list(table.frame)) for text in (target, features, exclude))
    inputs, left_out = choose_features(table, targets, chosen, others)
    if drop_missing:
        table = drop_incomplete(table, [*inputs, *targets])
    X, y = table.features(inputs), read_outputs(table, targets)
    rows, held = split_rows(len(y), max_rows, hold_out, seed)

    from localw2 import LocalW2Regressor

    model = LocalW2Regressor(
        **choose_mean_and_norm(base, norm, X.iloc[rows], y[rows], seed),
        delta=balls,
        calibrate=calibrate,
        device=device,
        random_state=seed,
        **drop_unset(max_epochs=max_epochs, learning_rate=learning_rate, width=width, depth=depth),
    )
    note(f"{len(rows)} rows of {table.source}: {', '.join(targets)} from {', '.join(inputs)}")
    fitted = fit_with_checkpoint(model, X.iloc[rows], y[rows], out, restart, as_json)
    if len(held):  # before the model: an explorer takes both as soon as the model is there
        write_table(f"{out}.held-out.csv", table.frame.iloc[held])
    save_model(model, out, features=inputs, targets=targets)
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
        "base": model.base_name_ if base is Base.auto else base,
        "delta": str(model.delta_),
        "norm": type(model.norm_).__name__,
        "calibration": None if model.calibration_ is None else model.calibration_.kind,
        **fitted,
    }
    lines = [f"{out}: base {found['base']}, balls {found['delta']}, {found['seconds']:.1f} s"]
    if len(held):
        found["held_out_file"] = f"{out}.held-out.csv"
        try:
            scores = score_rows(model, X.iloc[held], y[held], inputs, targets, seed)
        except ValueError as error:  # such as values missing only here; the model itself is fine
            note(f"the held-out rows cannot be scored: {error}")
        else:
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
    if features and exclude:
        raise typer.BadParameter("use either --features or --exclude, not both.")
    table.select([*targets, *features, *exclude])
    if both := set(features) & set(targets):
        raise ValueError(
            f"{both.pop()!r} is in both --target and --features; a column cannot predict itself."
        )
    if features:
        return features, {}
    others = table.frame.drop(columns=[*targets, *exclude])
    chosen = others.dropna(axis=1, how="all")
    left_out = {name: "it is empty" for name in others if name not in chosen}
    for name, reason in left_out.items():
        note(f"column {name!r} is left out: {reason}.")
    if chosen.empty:
        raise ValueError(f"{table.source} has no column left to predict {', '.join(targets)} from.")
    return list(chosen), left_out


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


def choose_mean_and_norm(base: str, norm: str, X: Any, y: Array, seed: int) -> dict[str, Any]:
    """The settings of the estimator that the names of a mean and of a norm stand for."""
    from localw2 import Euclidean, LocalW2Regressor, Weighted
    from localw2.estimators.regression.mean import candidates
    from localw2.estimators.tables import read_table

    x, _, _ = read_table(LocalW2Regressor(), X, y)
    means: dict[str, Any] = {"auto": "auto", "none": None}
    if base not in means:
        means = candidates(len(x), x, y.reshape(len(y), -1), seed, base)
    if base not in means:
        raise ValueError(f"--base {base} needs more than {len(x)} rows; use --base auto or none.")
    if norm == "standardised":
        return {"base": means[base], "norm": Weighted.standardised(x)}
    return {"base": means[base], "norm": Euclidean() if norm == "euclidean" else norm}


# --- for every command that fits --------------------------------------------------------------------------


def drop_unset(**settings: Any) -> dict[str, Any]:
    """Keep the settings that were given; for the others the estimator has its own defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def fit_with_checkpoint(model: Any, X: Any, y: Any, out: str, restart: bool, as_json: bool) -> dict[str, Any]:
    """Fit, with a checkpoint and a history beside the model to be; what the record says of the training.

    After Ctrl-C, exit without a half-trained model, and say how to continue.
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
    model.set_params(checkpoint=str(checkpoint), history=str(history), verbose=True).fit(X, y)
    model.set_params(checkpoint=None, history=None, verbose=False)
    stopped = model.fit_.stopped
    if stopped.startswith("interrupted"):
        note(f"{stopped}; {shlex.quote(str(checkpoint))} keeps the progress.")
        note(f"To go on, run the same command again:\n  {command_line()}")
        if as_json:
            resume = {"checkpoint": str(checkpoint), "resume": command_line()}
            typer.echo(json.dumps({"error": stopped} | resume))
        raise typer.Exit(INTERRUPTED)
    seconds = round(time.perf_counter() - start, 2)
    return {"epochs": len(model.fit_.history), "loss": model.fit_.losses[-1], "seconds": seconds}


def collect_training(model: Any) -> dict[str, Any]:
    """Collect how a model was trained, by the names of the flags, whether they were given or not."""
    config = model.fit_.config
    values = (config.max_epochs, config.learning_rate, model.width, model.depth)
    return dict(zip(("max-epochs", "learning-rate", "width", "depth"), values, strict=True))
