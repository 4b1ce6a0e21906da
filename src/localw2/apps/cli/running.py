"""How a command runs: errors in words and as exit codes, warnings, results for eyes or machines."""

from __future__ import annotations

import csv
import difflib
import functools
import json
import math
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer

FAILED, INTERRUPTED, PIPE_CLOSED = 1, 130, 141
TRACEBACK = "LOCALW2_TRACEBACK"  # set in the environment, it shows where an error came from
_Command = TypeVar("_Command", bound=Callable[..., Any])


def told(command: _Command) -> _Command:
    """Run a command so that whatever goes wrong is one paragraph on standard error and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            with told_warnings():
                command(*args, **options)
                sys.stdout.flush()
        except (typer.Exit, typer.Abort):
            raise
        except typer.BadParameter as error:
            if options.get("as_json"):
                typer.echo(json.dumps({"error": error.message}))
            raise
        except KeyboardInterrupt:
            note("stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except Exception as error:
            fail(words_of(error), bool(options.get("as_json")))

    return run  # type: ignore[return-value]  # the same but for what is raised


def fail(message: str, as_json: bool = False) -> NoReturn:
    """End with a message, on standard output too where a machine reads it."""
    if os.environ.get(TRACEBACK):
        traceback.print_exc()
    typer.echo(f"{typer.style('error:', fg='red', bold=True)} {message}", err=True)
    if as_json:
        typer.echo(json.dumps({"error": message}))
    raise typer.Exit(FAILED) from None


def words_of(error: Exception) -> str:
    """An exception as a person should read it."""
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {(error.strerror or str(error)).lower()}."
        return f"{text} {_near_files(error.filename)}" if isinstance(error, FileNotFoundError) else text
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Use fewer rows or draws."
    if isinstance(error, ValueError | OSError | ImportError | FloatingPointError | RuntimeError):
        return str(error).strip() or type(error).__name__
    return (
        f"{type(error).__name__}: {error}. That is a fault of localw2, not yours; set {TRACEBACK}=1 to see "
        "where, and please report it."
    )


def _near_files(name: Any) -> str:
    path = Path(os.fsdecode(name))
    if not path.parent.is_dir():
        return f"There is no folder {path.parent} either."
    close = difflib.get_close_matches(path.name, sorted(os.listdir(path.parent)), n=3)
    return f"Did you mean {' or '.join(str(path.with_name(other)) for other in close)}?" if close else ""


@contextmanager
def told_warnings() -> Iterator[None]:
    """Warnings that are meant for users, a line each on standard error; not those for programmers."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        note(f"{typer.style('warning:', fg='yellow', bold=True)} {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("default", category)
        # Our own words, with the command that goes on, come instead.
        warnings.filterwarnings("ignore", message="interrupted ")
        warnings.showwarning = show
        yield


def note(text: str) -> None:
    """A line on standard error, where it is in nobody's way."""
    typer.echo(text, err=True)


def give(found: Mapping[str, Any], lines: str, as_json: bool) -> None:
    """The result on standard output: one JSON object, or lines for people."""
    typer.echo(json.dumps(plain(found)) if as_json else lines)


def plain(value: Any) -> Any:
    """Values as JSON has them; None for what is not finite, as JSON has no word for it.

    >>> plain({"loss": math.nan, "delta": (1, 2)})
    {'loss': None, 'delta': [1, 2]}
    """
    if hasattr(value, "tolist"):  # an array, or a number of numpy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def command_line() -> str:
    """The command that is running, as it could be typed again."""
    return shlex.join(["localw2", *sys.argv[1:]])


def listed(text: str | None, known: Sequence[str] = ()) -> list[str]:
    """What a list with commas names, each once; a name with a comma is quoted, or is one that is known.

    >>> listed("age, water,"), listed(None), listed('"strength (MPa, wet)",age')
    (['age', 'water'], [], ['strength (MPa, wet)', 'age'])
    """
    if not text or text in known:
        return [text] if text else []
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def numbers_in(text: str, option: str) -> list[float]:
    """The numbers of a list with commas; wrong usage if it is none.

    >>> numbers_in(".05,.5", "--quantiles")
    [0.05, 0.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r} is no list of numbers, such as 0.05,0.5.") from None
