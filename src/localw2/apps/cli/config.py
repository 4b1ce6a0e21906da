"""Settings from a TOML file, and the record of its settings that every run writes beside its result."""

from __future__ import annotations

import csv
import io
import json
import platform
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from localw2._wording import suggest, to_plain
from localw2.apps.cli.running import command_line, fail

RECORD = "record"  # the table of a settings file that says what happened; not read as settings


def load_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Make the settings in a TOML file the defaults of the command, so that flags take precedence.

    Keys are the names of the flags, at the top or in a table named after the command (``[fit]``,
    ``[ode.fit]``).
    """
    if path is None or context.resilient_parsing:
        return path
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        fail(f"{path} is not valid TOML: {error}.")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")
    known = {_key(flag): item.name for item in context.command.params for flag in item.opts}
    for unusable in ("config", "help", "install_completion", "show_completion"):
        known.pop(unusable, None)
    found = {key: value for key, value in content.items() if not isinstance(value, dict)}
    found |= _command_table(content, context, path)
    defaults = {}
    for key, value in found.items():
        if _key(key) not in known:
            hint = _suggest_key(key, known)
            fail(f"{path} contains {key!r}, which is not a setting of {_command_name(context)}. {hint}")
        defaults[known[_key(key)]] = _as_typed(value)
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


def _command_name(context: typer.Context) -> str:
    return " ".join(context.command_path.split()[1:])


def _command_table(content: Mapping[str, Any], context: typer.Context, path: Path) -> dict[str, Any]:
    """The table for this command; tables for other commands are allowed."""
    root = context.find_root().command
    commands = set(getattr(root, "commands", {}))
    for key, value in content.items():
        if isinstance(value, dict) and key != RECORD and key not in commands:
            hint = _suggest_key(key, commands)
            fail(f"{path} contains a table [{key}], which is not a command. {hint}")
    table: Any = content
    for word in _command_name(context).split():
        table = table.get(word, {}) if isinstance(table, dict) else {}
    return {key: value for key, value in table.items() if not isinstance(value, dict)}


def _key(name: str | None) -> str:
    return (name or "").lstrip("-").replace("-", "_")


def _suggest_key(key: str, known: Iterable[str]) -> str:
    return suggest(key.replace("_", "-"), sorted(name.replace("_", "-") for name in known), "Known are")


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
    names = {item.name: _key(item.opts[-1]).replace("_", "-") for item in context.command.params}
    return {
        names[name]: value
        for name, value in context.params.items()
        if value is not None and names[name] not in ("config", "json")
    }


def keep_settings(
    context: typer.Context,
    out: str,
    record: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Write the settings behind a result, and what came of them, to a file beside it; the file's name.

    ``--config`` reads the file again. ``settings`` are added to those on the command line.
    """
    import tomli_w

    from localw2.storage.atomic import open_replacement

    path, command = settings_path(out), _command_name(context)
    happened = {"command": command_line(), "time": datetime.now(UTC).isoformat(timespec="seconds")}
    table: dict[str, Any] = collect_settings(context) | dict(settings or {})
    for word in reversed(command.split()):
        table = {word: table}
    table[RECORD] = happened | dict(record) | {"versions": list_versions()}
    head = f"# To run this again: localw2 {command} --config {json.dumps(path.name)}\n"
    with open_replacement(path, "w") as file:
        file.write(head + tomli_w.dumps(_drop_empty(to_plain(table))))
    return str(path)


def _drop_empty(value: Any) -> Any:
    """Remove what TOML has no word for (None), and empty tables and lists."""
    if isinstance(value, dict):
        items = {key: _drop_empty(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in (None, [], {})}
    if isinstance(value, list):
        return [_drop_empty(item) for item in value if item is not None]
    return value


def read_record(model: str) -> dict[str, Any]:
    """Read MODEL.settings.toml, if it lies beside the model."""
    try:
        return tomllib.loads(settings_path(model).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def list_versions() -> dict[str, str]:
    """List the versions that a result may depend on."""
    from localw2 import __version__

    found = {"localw2": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scipy", "scikit-learn", "pandas"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a build without metadata
            continue
    return found
