"""Settings from a TOML file, and the record of settings that every run leaves beside its result."""

from __future__ import annotations

import csv
import difflib
import io
import json
import platform
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from localw2.apps.cli.running import command_line, fail

RECORD = "record"  # the table of a settings file that tells what happened; not read as settings


def settings_from(context: typer.Context, path: Path | None) -> Path | None:
    """Make the settings of a TOML file the defaults of the command, so that flags win.

    Keys are the names of the flags, at the top or in a table named as the command (``[fit]``, ``[ode.fit]``).
    """
    if path is None or context.resilient_parsing:
        return path
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        fail(f"{path} is no valid TOML: {error}.")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")
    known = {_key(flag): item.name for item in context.command.params for flag in item.opts}
    for unusable in ("config", "help", "install_completion", "show_completion"):
        known.pop(unusable, None)
    found = {key: value for key, value in content.items() if not isinstance(value, dict)}
    found |= _own_table(content, context, path)
    defaults = {}
    for key, value in found.items():
        if _key(key) not in known:
            fail(f"{path} has {key!r}, which is no setting of {_place(context)}. {_near(_key(key), known)}")
        defaults[known[_key(key)]] = _as_typed(value)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        callback=settings_from,
        is_eager=True,
        help="Settings from a file, by the names of the flags; flags win.",
    ),
]


def _place(context: typer.Context) -> str:
    return " ".join(context.command_path.split()[1:])


def _own_table(content: Mapping[str, Any], context: typer.Context, path: Path) -> dict[str, Any]:
    """The table of this command; those of other commands are for them."""
    root = context.find_root().command
    commands = set(getattr(root, "commands", {}))
    for key, value in content.items():
        if isinstance(value, dict) and key != RECORD and key not in commands:
            fail(f"{path} has a table [{key}], which is no command. {_near(key, commands)}")
    table: Any = content
    for word in _place(context).split():
        table = table.get(word, {}) if isinstance(table, dict) else {}
    return {key: value for key, value in table.items() if not isinstance(value, dict)}


def _key(name: str | None) -> str:
    return (name or "").lstrip("-").replace("-", "_")


def _near(key: str, known: Any) -> str:
    close = difflib.get_close_matches(key, sorted(known), n=3, cutoff=0.5)
    names = [name.replace("_", "-") for name in close or sorted(known)]
    return f"Did you mean {' or '.join(names)}?" if close else f"Known are {', '.join(names)}."


def _as_typed(value: Any) -> Any:
    """What one would have typed on the command line."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, list):
        return str(value)
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(value)  # names with commas in quotes, as a person would
    return text.getvalue()


def settings_path(result: str | Path) -> Path:
    """Where the settings that a model or another result came from are written."""
    return Path(f"{result}.settings.toml")


def used_settings(context: typer.Context) -> dict[str, Any]:
    """The settings that a command runs with, by the names of its flags."""
    names = {item.name: _key(item.opts[-1]).replace("_", "-") for item in context.command.params}
    return {
        names[name]: value
        for name, value in context.params.items()
        if value is not None and names[name] not in ("config", "json")
    }


def write_record(path: Path, command: str, settings: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write the settings used, in a form that ``--config`` takes again, and what came of them."""
    from localw2.storage.atomic import replaced

    happened = {"command": command_line(), "time": datetime.now(UTC).isoformat(timespec="seconds")}
    tables = {command: settings, RECORD: happened | dict(record), f"{RECORD}.versions": versions()}
    head = f"# The same again: localw2 {command.replace('.', ' ')} --config {json.dumps(path.name)}\n"
    with replaced(path, "w") as file:
        file.write(head + "".join(toml_table(name, values) for name, values in tables.items()))


def keep_settings(context: typer.Context, out: str, record: Mapping[str, Any]) -> str:
    """Write the settings that a result came from beside it; the name of that file."""
    path = settings_path(out)
    write_record(path, _place(context).replace(" ", "."), used_settings(context), record)
    return str(path)


def toml_table(name: str, values: Mapping[str, Any]) -> str:
    r"""One table of a TOML file; None is left out.

    >>> print(toml_table("fit", {"target": "y", "seed": 0, "features": ["a", "b"], "delta": None}))
    <BLANKLINE>
    [fit]
    target = "y"
    seed = 0
    features = ["a", "b"]
    <BLANKLINE>
    """
    lines = [f"{_bare(key)} = {toml_value(value)}" for key, value in values.items() if value is not None]
    return "\n".join(["", f"[{name}]", *lines, ""])


def toml_value(value: Any) -> str:
    r"""A value as TOML writes it.

    >>> print(toml_value(True), toml_value(0.5), toml_value("a\"b"), toml_value([1, {"k": "v"}]))
    true 0.5 "a\"b" [1, {k = "v"}]
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # nan and inf are words of TOML too
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_bare(str(k))} = {toml_value(v)}" for k, v in value.items()) + "}"
    text = str(getattr(value, "value", value))
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    from localw2 import __version__

    found = {"localw2": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scipy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a build without metadata
            continue
    return found
