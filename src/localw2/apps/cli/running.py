"""How a command runs: errors as a message and an exit code, warnings, results for people or for programs."""

from __future__ import annotations

import csv
import functools
import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
import threading
import traceback
import warnings
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import typer

from localw2._wording import show_controls, suggest, to_plain

FAILED, INTERRUPTED, PIPE_CLOSED = 1, 130, 141
TRACEBACK = "LOCALW2_TRACEBACK"  # set in the environment, it shows where an error came from
_Command = TypeVar("_Command", bound=Callable[..., Any])


def report_errors(command: _Command) -> _Command:
    """Run a command so that any failure becomes one paragraph on standard error and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            with show_warnings(), stop_on_signals():
                command(*args, **options)
                sys.stdout.flush()
        except (typer.Exit, typer.Abort):
            raise
        except typer.BadParameter as error:
            if options.get("as_json"):
                typer.echo(json.dumps({"error": error.message}))
            error.message = show_controls(error.message)
            raise
        except KeyboardInterrupt as error:
            note("stopped.")
            raise typer.Exit(error.code if isinstance(error, Stopped) else INTERRUPTED) from None
        except BrokenPipeError:  # whoever reads our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except Exception as error:  # the last stop: people get a line, and the traceback if they ask for it
            fail(describe_error(error), bool(options.get("as_json")))

    return run  # type: ignore[return-value]  # the same but for what is raised


class Stopped(KeyboardInterrupt):
    """A signal asks the process to end: what Ctrl-C saves is saved then too."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Treat a request to end (SIGTERM, of a batch system) or a lost terminal (SIGHUP) like Ctrl-C."""

    def stop(number: int, _: Any) -> None:
        raise Stopped(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):  # the second is not there on Windows, and ignored under nohup
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fail(message: str, as_json: bool = False) -> NoReturn:
    """Exit with a message, which also goes to standard output if a program reads it."""
    if os.environ.get(TRACEBACK):
        traceback.print_exc()
    note(message, "error:", "red")
    if as_json:
        typer.echo(json.dumps({"error": message}))
    raise typer.Exit(FAILED) from None


def describe_error(error: Exception) -> str:
    """Put an exception into words for the user."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        path = Path(os.fsdecode(error.filename))
        siblings = sorted(os.listdir(path.parent)) if path.parent.is_dir() else []
        return f"{path}: no such file or directory. {suggest(path.name, siblings)}".strip()
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {(error.strerror or str(error)).lower()}."
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Use fewer rows or draws."
    if isinstance(error, ValueError | OSError | ImportError | FloatingPointError | RuntimeError):
        return str(error).strip() or type(error).__name__
    return (
        f"{type(error).__name__}: {error}. This is a bug in localw2, not a mistake of yours; set "
        f"{TRACEBACK}=1 to see where it occurred, and please report it."
    )


@contextmanager
def show_warnings() -> Iterator[None]:
    """Show warnings meant for users, each once as a line on standard error, but not those for programmers."""
    shown = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            note(str(message), "warning:", "yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("default", category)
        # The commands print their own message, with the command to continue.
        warnings.filterwarnings("ignore", message="interrupted ")
        warnings.showwarning = show
        yield


def note(text: str, label: str = "", color: str = "") -> None:
    """Print a line on standard error, apart from the results, after a label in colour."""
    start = f"{typer.style(label, fg=color, bold=True)} " if label else ""
    typer.echo(start + fold(show_controls(text), sys.stderr, len(label) + bool(label)), err=True)


def print_result(found: Mapping[str, Any], lines: str, as_json: bool) -> None:
    """Print the result on standard output: one JSON object, or lines for people."""
    typer.echo(json.dumps(to_plain(found)) if as_json else fold(show_controls(lines), sys.stdout))


def name_next(steps: Mapping[str, Sequence[Any]], as_json: bool = False) -> None:
    """Tell a person on standard error what to type next: the words of commands, by what each is for."""
    if as_json:
        return
    lines = ["\nNext:"]
    for use, words in steps.items():  # what came through a pipe cannot be read again
        lines += [f"# {use}", shlex.join("DATA.csv" if word == "-" else str(word) for word in words)]
    typer.echo(show_controls("\n  ".join(lines)), err=True)


def repeat_flags(context: typer.Context, *names: str) -> list[str]:
    """The words of these flags of the running command, as far as they were given, for another command."""
    found: list[str] = []
    for item in context.command.params:
        value = context.params.get(str(item.name))
        if item.name in names and value not in (None, False, item.default):
            found += [item.opts[-1]] if value is True else [item.opts[-1], str(value)]
    return found


def fold(text: str, stream: TextIO, indent: int = 0) -> str:
    """Break long sentences between words, if the stream is a terminal; tables and commands stay whole.

    ``indent`` columns of the first line are taken.
    """
    if not stream.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns)

    def fold_line(line: str, taken: int) -> str:
        if len(line) + taken <= width or "  " in line:
            return line
        parts = textwrap.wrap("x" * taken + line, width, break_long_words=False, break_on_hyphens=False)
        return "\n".join(parts)[taken:]

    return "\n".join(fold_line(line, indent * (i == 0)) for i, line in enumerate(text.split("\n")))


def can_explore() -> bool:
    """Whether the extra for the explorer is installed, so that it can be suggested."""
    return all(find_spec(name) is not None for name in ("fastapi", "plotly", "uvicorn"))


def show_page(path: Path) -> None:
    """Open a page in the browser if a person is there: a terminal, a screen, and no robot."""
    screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if screen and sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI"):
        webbrowser.open(path.resolve().as_uri())


def command_line() -> str:
    """The command that is running, as it could be typed again."""
    return shlex.join(["localw2", *sys.argv[1:]])


def split_names(text: str | None, known: Sequence[str] = ()) -> list[str]:
    """Split a comma-separated list of names; a name that contains a comma is quoted or is the whole text.

    >>> split_names("age, water,"), split_names(None), split_names('"strength (MPa, wet)",age')
    (['age', 'water'], [], ['strength (MPa, wet)', 'age'])
    """
    if not text or text in known:
        return [text] if text else []
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def parse_numbers(text: str, option: str) -> list[float]:
    """Parse a comma-separated list of numbers; anything else is a usage error.

    >>> parse_numbers(".05,.5", "--quantiles")
    [0.05, 0.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r} is not a list of numbers, such as 0.05,0.5.") from None
