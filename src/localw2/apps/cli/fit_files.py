"""The files around a fit under way: its checkpoint, its history, and how to continue after Ctrl-C."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from localw2.apps.cli.running import INTERRUPTED, command_line, note


def prepare_checkpoint(out: str, restart: bool) -> str:
    """The file from which an interrupted fit is resumed; ``restart`` removes it."""
    path = f"{out}.checkpoint"
    if restart:
        for old in [Path(path), *Path(path).parent.glob(f"{Path(path).name}.calibration*")]:
            with suppress(FileNotFoundError):
                old.unlink()
    elif Path(path).exists():
        note(f"resuming from {path}; --restart would start over.")
    return path


def history_path(out: str) -> str:
    """The file to which a fit under way writes its epochs, for the explorer to follow."""
    return f"{out}.history.jsonl"


def clear_history(out: str) -> str:
    """Remove the history of an earlier fit; the name of the file."""
    Path(history_path(out)).unlink(missing_ok=True)
    return history_path(out)


def stop_if_interrupted(stopped: str, out: str, data: str, as_json: bool) -> None:
    """After Ctrl-C, exit without writing a half-trained model, and say how to continue."""
    if not stopped.startswith("interrupted"):
        return
    same = "the same command, with the same input," if data == "-" else "the same command"
    note(f"{stopped}; {shlex.quote(f'{out}.checkpoint')} keeps the progress. To go on, run {same} again:")
    note(f"  {command_line()}")
    if as_json:
        typer.echo(
            json.dumps({"error": stopped, "checkpoint": f"{out}.checkpoint", "resume": command_line()})
        )
    raise typer.Exit(INTERRUPTED)


def drop_unset(**settings: Any) -> dict[str, Any]:
    """Keep the settings that were given; for the others the estimator has its own defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def collect_training(model: Any) -> dict[str, Any]:
    """Collect how a model was trained, by the names of the flags, whether they were given or not."""
    config = model.fit_.config
    return {
        "max-epochs": config.max_epochs,
        "learning-rate": config.learning_rate,
        "width": model.width,
        "depth": model.depth,
    }
