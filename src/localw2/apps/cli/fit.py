"""``localw2 fit``: from a table to a model, with its settings beside it."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from localw2.apps.cli.config import Config, settings_path, used_settings, write_record
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
from localw2.apps.cli.running import INTERRUPTED, command_line, give, listed, note, plain, told

if TYPE_CHECKING:
    from localw2.apps.tables.csv import Array
    from localw2.apps.tables.tables import Table


DRAWS = 200  # of each row held out
_PURPOSE, _CHOSEN = 7, 8  # keep these random numbers apart from others of the same seed


class Base(StrEnum):
    """What the mean may be."""

    auto = "auto"
    none = "none"
    ridge = "ridge"
    boosting = "boosting"
    kernel = "kernel"


class NormName(StrEnum):
    """What distance may be."""

    auto = "auto"
    euclidean = "euclidean"
    standardised = "standardised"


@told
def fit(
    context: typer.Context,
    data: Data,
    target: Annotated[str, typer.Option(metavar="COL[,COL2]", help="The column(s) to predict.")],
    out: ModelOut,
    features: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The columns to predict from; otherwise all numeric ones."),
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(metavar="C,D", help="Columns that are not to be predicted from.")
    ] = None,
    delta: Annotated[
        str, typer.Option(metavar="auto|RADIUS|nearest:K", help="The balls of the local loss.")
    ] = "auto",
    norm: Annotated[NormName, typer.Option(help="The distance that balls are measured in.")] = NormName.auto,
    base: Annotated[Base, typer.Option(help="The mean that the random network is added to.")] = Base.auto,
    max_epochs: MaxEpochs = None,
    learning_rate: LearningRate = None,
    width: Width = None,
    depth: Depth = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Make intervals cover as often as they say; takes longer.")
    ] = False,
    hold_out: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="A share of the rows to judge the fit by, written to a file."),
    ] = 0.0,
    max_rows: Annotated[
        int | None, typer.Option(min=2, help="Use so many rows at most, chosen at random.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    drop_missing: DropMissing = False,
    decimal: DecimalMark = Decimal.auto,
    restart: Restart = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Learn the law of a column given others, and write MODEL and MODEL.settings.toml.

    Ctrl-C keeps MODEL.checkpoint; the same command then goes on where it stopped. `localw2 explore MODEL
    --data DATA --watch` shows the curves while it runs.
    """
    from localw2.apps.cli.model_files import ball_radius, read_data, save_model
    from localw2.storage.model_file import check_writable

    balls = ball_radius(delta)
    check_writable(out, "--out")
    rows = FitRows.of(read_data(data, decimal), target, features, exclude, drop_missing)
    rows = rows.at_most(max_rows, seed).split(hold_out, seed)
    X, y = rows.X[~rows.held], rows.y[~rows.held]

    from localw2 import LocalW2Regressor

    start = time.perf_counter()
    model = LocalW2Regressor(
        base=base_of(base.value, X, y, seed),
        delta=balls,
        norm=norm_of(norm.value, X),
        calibrate=calibrate,
        checkpoint=checkpoint_of(out, restart),
        history=fresh_history(out),
        device=device,
        random_state=seed,
        verbose=True,
        **given(max_epochs=max_epochs, learning_rate=learning_rate, width=width, depth=depth),
    )
    note(f"{len(X)} rows of {rows.table.source}: {', '.join(rows.targets)} from {', '.join(rows.features)}")
    model.fit(X, y)
    stop_if_interrupted(model.fit_.stopped, out, data, as_json)
    model.set_params(checkpoint=None, history=None, verbose=False)
    held_out = write_held_out(out, rows)  # before the model: an explorer takes both as soon as that is there
    save_model(model, out, features=rows.features, targets=rows.targets)
    fresh_history(out)
    found = {"model": out, "settings": str(settings_path(out))} | rows.described() | fitted(model)
    found["base"] = base.value if base is not Base.auto else found["base"]
    found["seconds"] = round(time.perf_counter() - start, 2)
    lines = [f"{out}: base {found['base']}, balls {found['delta']}, {found['seconds']:.1f} s"]
    if held_out is not None:
        found["held_out_file"] = held_out
        lines += judge_held_out(found, model, rows, seed)
    record = {key: value for key, value in found.items() if value not in (None, [], {})}
    write_record(settings_path(out), "fit", used_settings(context) | used_training(model), plain(record))
    give(found, "\n".join(lines), as_json)


@final
@dataclass(frozen=True, eq=False)
class FitRows:
    """What a table has for a fit: X (N, p), y (N,) or (N, d), a mask (N,) of rows held out, and names."""

    X: Array
    y: Array
    held: Array
    table: Table
    features: list[str]
    targets: list[str]
    left_out: dict[str, str]

    @classmethod
    def of(
        cls, table: Table, target: str, features: str | None, exclude: str | None, drop_missing: bool
    ) -> FitRows:
        """The rows with these columns, none of them held out."""
        import numpy as np

        from localw2.apps.cli.model_files import used_rows

        targets = listed(target, table.names)
        if not targets:
            raise typer.BadParameter("--target names no column.")
        chosen = listed(features, table.names), listed(exclude, table.names)
        inputs, left_out = choose_features(table, targets, *chosen)
        table, _ = used_rows(table, [*inputs, *targets], drop_missing)
        X, y = table.numbers(inputs), table.numbers(targets)
        outputs = y[:, 0] if len(targets) == 1 else y
        return cls(X, outputs, np.zeros(len(X), bool), table, inputs, targets, left_out)

    def at_most(self, count: int | None, seed: int) -> FitRows:
        """The same with so many rows at most, chosen at random."""
        import numpy as np

        n = len(self.X)
        if count is None or count >= n:
            return self
        kept = np.sort(np.random.default_rng([seed, _CHOSEN]).permutation(n)[:count])
        note(f"{count} of {n} rows, chosen at random by --seed {seed}.")
        table, held = self.table.rows(kept), self.held[kept]
        return replace(self, X=self.X[kept], y=self.y[kept], held=held, table=table)

    def split(self, share: float, seed: int) -> FitRows:
        """The same with a share of rows held out at random: one seed, one choice, so that a fit can go on."""
        import numpy as np

        n, held = len(self.X), self.held.copy()
        count = round(share * n)
        if share > 0 and count < 2:
            raise ValueError(f"--hold-out {share} of {n} rows is {count}; it takes 2, better 100, to judge.")
        held[np.random.default_rng([seed, _PURPOSE]).permutation(n)[:count]] = True
        return replace(self, held=held)

    def described(self) -> dict[str, Any]:
        """What to tell and to record of the rows."""
        return {
            "data": self.table.source,
            "sha256": self.table.sha256,
            "rows": int((~self.held).sum()),
            "held_out": int(self.held.sum()),
            "features": self.features,
            "target": self.targets,
            "left_out": self.left_out,
        }


def fitted(model: Any) -> dict[str, Any]:
    """What to tell and to record of a fit."""
    return {
        "base": model.base_name_,
        "delta": str(model.delta_),
        "norm": type(model.norm_).__name__,
        "epochs": len(model.fit_.history),
        "loss": model.fit_.losses[-1],
        "calibration": None if model.calibration_ is None else model.calibration_.kind,
    }


def choose_features(
    table: Table, targets: list[str], features: list[str], exclude: list[str]
) -> tuple[list[str], dict[str, str]]:
    """The columns to predict from, and why others are not: all numbers, unless they are named."""
    for name in [*targets, *features, *exclude]:
        table.column(name)
    if features and exclude:
        raise typer.BadParameter("--features and --exclude say the same thing twice; give one of them.")
    if both := [name for name in features if name in targets]:
        raise ValueError(f"{both[0]!r} is in --target and in --features; it cannot explain itself.")
    if features:
        return features, {}
    left_out: dict[str, str] = {}
    for name in table.names:
        values = table.columns[name]
        if name in targets or name in exclude:
            continue
        if values.dtype != object and table.n_rows and (values != values).all():
            left_out[name] = "it is empty"
        elif values.dtype == object and not table.mostly_numbers(name):
            left_out[name] = f"it holds text, such as {table.bad[name].cell[:30]!r}"
    chosen = [name for name in table.names if name not in (*targets, *exclude, *left_out)]
    for name, reason in left_out.items():
        note(f"column {name!r} is left out: {reason}.")
    if not chosen:
        raise ValueError(
            f"{table.source} has no column of numbers left to predict {', '.join(targets)} from."
        )
    return chosen, left_out


def given(**settings: Any) -> dict[str, Any]:
    """The settings that were said; for others the estimator has its own defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def used_training(model: Any) -> dict[str, Any]:
    """How a model was trained, by the names of the flags, whether they were given or not."""
    config = model.fit_.config
    return {
        "max-epochs": config.max_epochs,
        "learning-rate": config.learning_rate,
        "width": model.width,
        "depth": model.depth,
    }


def write_held_out(out: str, rows: FitRows) -> str | None:
    """Write the rows held out, for a report or a test; None if there are none."""
    from localw2.apps.tables.tables import write_table

    if not rows.held.any():
        return None
    path = f"{out}.held-out.csv"
    kept = rows.table.rows(rows.held)
    write_table(path, {name: kept.columns[name] for name in [*rows.features, *rows.targets]})
    return path


def judge_held_out(found: dict[str, Any], model: Any, rows: FitRows, seed: int) -> list[str]:
    """Judge the fit by rows that it has not seen."""
    from localw2.apps.cli.judge import judged, judged_lines

    scores = judged(model, rows.X[rows.held], rows.y[rows.held], rows.features, rows.targets, DRAWS, seed)
    found["held_out_scores"] = scores
    return ["", f"On the rows held out, which are in {found['held_out_file']}:", *judged_lines(scores)]


def base_of(name: str, X: Array, y: Array, seed: int) -> Any:
    """The mean that a name stands for."""
    if name in ("auto", "none"):
        return "auto" if name == "auto" else None
    from localw2.estimators.regression.mean import candidates

    known = candidates(len(X), X, y.reshape(len(y), -1), seed, name)
    if name not in known:
        raise ValueError(f"--base {name} needs more than {len(X)} rows; take --base auto or none.")
    return known[name]


def norm_of(name: str, X: Array) -> Any:
    """The norm that a name stands for."""
    if name == "auto":
        return "auto"
    from localw2 import Euclidean
    from localw2.estimators.regression.balls import standardised

    return Euclidean() if name == "euclidean" else standardised(X)


def checkpoint_of(out: str, restart: bool) -> str:
    """The file that an interrupted fit goes on from."""
    path = f"{out}.checkpoint"
    if restart:
        for old in [Path(path), *Path(path).parent.glob(f"{Path(path).name}.calibration*")]:
            with suppress(FileNotFoundError):
                old.unlink()
    elif Path(path).exists():
        note(f"going on from {path}; --restart would begin anew.")
    return path


def fresh_history(out: str) -> str:
    """The file in which a fit under way tells of its epochs; an older one is removed."""
    from localw2.apps.cli.model_files import history_path

    path = history_path(out)
    Path(path).unlink(missing_ok=True)
    return path


def stop_if_interrupted(stopped: str, out: str, data: str, as_json: bool) -> None:
    """After Ctrl-C no half-trained model is written: say how to go on."""
    if not stopped.startswith("interrupted"):
        return
    same = "the same command, with the same input," if data == "-" else "the same command"
    note(f"{stopped}; {shlex.quote(f'{out}.checkpoint')} keeps what there is. To go on, run {same} again:")
    note(f"  {command_line()}")
    if as_json:
        typer.echo(
            json.dumps({"error": stopped, "checkpoint": f"{out}.checkpoint", "resume": command_line()})
        )
    raise typer.Exit(INTERRUPTED)
