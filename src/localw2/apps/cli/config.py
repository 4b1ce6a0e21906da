"""Settings from a TOML file, and the record of its settings that every run writes beside its result."""

from __future__ import annotations

import csv
import io
import json
import platform
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from localw2._wording import suggest, to_plain
from localw2.apps.cli.running import command_line, fail, note

RECORD = "record"  # the table of a settings file that says what happened; not read as settings


def load_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Make the settings in a TOML file the defaults of the command, so that flags take precedence.

    Keys are the names of the flags, at the top or in a table named after the command (``[fit]``,
    ``[ode.fit]``). Tables for other commands are allowed.
    """
    if path is None or context.resilient_parsing:
        return path
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read as TOML: {error}.")
    command = context.command_path.split()[1:]
    own: Any = content
    for word in command:
        own = own.get(word, {}) if isinstance(own, dict) else {}
    settings = {k: v for table in (content, own) for k, v in table.items() if not isinstance(v, dict)}
    flags = {_name_key(flag): item.name for item in context.command.params for flag in item.opts}
    flags = {key: name for key, name in flags.items() if key not in ("config", "help")}
    commands = [RECORD, *getattr(context.find_root().command, "commands", {})]
    tables = [key for key, value in content.items() if isinstance(value, dict) and key not in commands]
    for key in [*tables, *(key for key in settings if _name_key(key) not in flags)]:
        hint = suggest(_name_key(key), sorted(flags) if key in settings else commands[1:], "Known are")
        kind = f"a setting of {' '.join(command)}" if key in settings else "a command"
        fail(f"{path} contains {key!r}, which is not {kind}. {hint}")
    defaults = {flags[_name_key(key)]: _as_typed(value) for key, value in settings.items()}
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        callback=load_settings,
        is_eager=True,
        help="File with settings, named like the flags; flags take precedence.",
    ),
]


def _name_key(flag: str) -> str:
    """The key of a flag in a settings file, where ``max_epochs`` stands for ``max-epochs``."""
    return flag.lstrip("-").replace("_", "-")


def _as_typed(value: Any) -> Any:
    """The value as one would have typed it on the command line."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, list):
        return str(value)
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(value)  # quotes names that contain commas
    return text.getvalue()


def settings_path(result: str | Path) -> Path:
    """The file in which the settings behind a model or another result are recorded."""
    return Path(f"{result}.settings.toml")


def collect_settings(context: typer.Context) -> dict[str, Any]:
    """Collect the settings that a command runs with, by the names of its flags."""
    names = {item.name: _name_key(item.opts[-1]) for item in context.command.params}
    found = {names[name]: value for name, value in context.params.items() if value is not None}
    return {name: value for name, value in found.items() if name not in ("config", "json")}


def keep_settings(
    context: typer.Context, out: str, record: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> str | None:
    """Write the settings behind a result, and what came of them, to a file beside it; the file's name.

    A file that cannot be written is no reason to fail: it comes last, when the result is there.

    ``--config`` reads the file again. ``settings`` are added to those on the command line.
    """
    import tomli_w

    from localw2 import __version__
    from localw2.storage.atomic import replace_file

    path, words = settings_path(out), context.command_path.split()[1:]
    versions = {"localw2": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scipy", "scikit-learn", "pandas"):
        with suppress(PackageNotFoundError):  # a build without metadata
            versions[name] = version(name)
    table: dict[str, Any] = collect_settings(context) | dict(settings or {})
    for word in reversed(words):
        table = {word: table}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    table[RECORD] = {"command": command_line(), "time": now, **record, "versions": versions}
    head = f"# To run this again: localw2 {' '.join(words)} --config {json.dumps(path.name)}\n"
    try:
        replace_file(path, (head + tomli_w.dumps(_drop_none(to_plain(table)))).encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        note(f"{path} could not be written: {reason}. The result itself is complete.", "warning:", "yellow")
        return None
    return str(path)


def _drop_none(value: Any) -> Any:
    """Remove None, for which TOML has no word."""
    if isinstance(value, dict):
        return {key: _drop_none(item) for key, item in value.items() if item is not None}
    return [_drop_none(item) for item in value if item is not None] if isinstance(value, list) else value


def read_record(model: str) -> dict[str, Any]:
    """Read MODEL.settings.toml, if it lies beside the model."""
    try:
        return tomllib.loads(settings_path(model).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not TOML, or not even text
        return {}
