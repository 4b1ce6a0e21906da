"""What a command writes must not be what it reads, nor what somebody else wrote."""

from __future__ import annotations

import os
import secrets
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import typer

from localw2.apps.cli.config import RECORD, settings_path


def check_outputs(out: str, reads: Iterable[str | Path | None], beside: Iterable[str] = ()) -> None:
    """Raise if writing ``out``, its settings or a file ``beside`` it would destroy another file.

    ``reads`` are the files that the command reads. A settings file that localw2 wrote may be replaced, even
    if it is the --config of this run; nobody else's may.
    """
    if out == "-":
        return
    settings = settings_path(out)
    sources = [Path(path) for path in reads if path is not None and str(path) != "-"]
    for target in (Path(out), settings, *map(Path, beside)):
        for source in sources:
            if is_same_file(target, source) and not (target == settings and is_settings_file(target)):
                raise typer.BadParameter(
                    f"--out {out} would write over {source}, which this command reads. Name another file."
                )
    if settings.exists() and not is_settings_file(settings):
        raise typer.BadParameter(
            f"{settings}, where the settings of this run would go, is there already and was not written by "
            "localw2. Move it, or name another --out."
        )


def save_or_rescue(save: Callable[[str], None], path: str, what: str) -> None:
    """Save what took long to compute; if its place fails, save it elsewhere, with an error that says where.

    ``save`` is called with the name of the file.
    """
    try:
        return save(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        other = str(folder / f"rescued-{secrets.token_hex(4)}-{Path(path).name}")
        with suppress(OSError):
            save(other)
            raise RescuedError(
                f"{path} could not be written: {reason}. The {what} is in {other} instead; move it when "
                "there is space."
            )
    raise OSError(
        f"{path} could not be written: {reason}. Neither could a copy in {Path.cwd()} or "
        f"{tempfile.gettempdir()}. Make space and run the same command again; a checkpoint that is there is "
        "used."
    )


class RescuedError(RuntimeError):
    """A result is complete, but not where it should be."""


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two names lead to one file, through links of any kind, or would."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other)


def is_settings_file(path: Path) -> bool:
    """Whether localw2 wrote a settings file: its record says with which command."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    record = content.get(RECORD)
    return isinstance(record, dict) and str(record.get("command", "")).startswith("localw2")
