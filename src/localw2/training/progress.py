"""Progress of a fit: a file with one line per epoch, and a bar on the terminal."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TextIO, final

# Called with the epoch, its loss, the best score so far, and the number of epochs as it is known by now.
Show = Callable[[int, float, float | None, int], None]


@final
class HistoryFile:
    """A JSONL file with one line per epoch, flushed at once so that other tools can follow it.

    A full disk ends the file, with a warning, but not the fit.
    """

    def __init__(self, path: str | None, past: list[dict[str, Any]]) -> None:
        self.file: TextIO | None = None
        if path is not None:
            self.file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by __exit__)
            # A resumed fit starts at its checkpoint, so later lines of the first run are rewritten.
            self.rewrite(past)

    def append(self, *entries: dict[str, Any]) -> None:
        """Append one line per entry."""
        if self.file is not None:
            try:
                self.file.write("".join(json.dumps(entry) + "\n" for entry in entries))
                self.file.flush()
            except OSError as error:
                name = self.file.name
                self.__exit__()
                warnings.warn(
                    f"the history {name!r} could not be written ({error.strerror or error}) and ends here. "
                    "Training continues, and the fit itself keeps every epoch.",
                    stacklevel=3,
                )

    def rewrite(self, entries: list[dict[str, Any]]) -> None:
        """Replace the content by these entries."""
        if self.file is not None:
            self.file.seek(0)
            self.file.truncate()
            self.append(*entries)

    def __enter__(self) -> HistoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            with suppress(OSError):  # closing tries to write the rest again
                self.file.close()
            self.file = None


@final
class Stages:
    """What a long fit is doing, in words, on standard error: a bar with the time left, or a line in a pipe.

    ``title`` comes before every line, where a fit is one of several.

    >>> with Stages(enabled=False) as stages:
    ...     stages.start("choosing the mean model", 5)
    ...     stages.advance()
    """

    def __init__(self, enabled: bool, title: str = "") -> None:
        self._enabled = enabled
        self._title = f"{title}: " if title else ""
        self._bar: Any = None
        self._task: Any = None
        self._printed = ""

    def __enter__(self) -> Stages:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description:<24}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
            )
            console = Console(stderr=True)
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        return self

    def start(self, text: str, total: int) -> None:
        """Begin a stage of so many steps; the one before is done."""
        if self._bar is None:
            return
        text = self._title + text
        if not self._bar.console.is_terminal:
            if text != self._printed:  # a stage in two parts is one line
                self._bar.console.print(text)
            self._printed = text
            return
        self.pause()
        self._task = self._bar.add_task(text, total=total)
        self._bar.start()

    def advance(self) -> None:
        """One step of the stage is done."""
        if self._task is not None:
            self._bar.advance(self._task)

    def pause(self) -> None:
        """Take the bar away: something else shows its own."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._bar.stop()
            self._task = None

    def __exit__(self, *_: object) -> None:
        self.pause()


@contextmanager
def progress_bar(enabled: bool, n_epochs: int) -> Iterator[Show]:
    """A bar with loss, score and remaining time on a terminal; nothing in a pipe."""
    if not enabled:
        yield lambda epoch, loss, best_score, n_epochs: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("training the network"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    with bar if console.is_terminal else nullcontext():  # rich < 14.3 ends a disabled bar by a newline
        task = bar.add_task("", total=n_epochs)

        def show(epoch: int, loss: float, best_score: float | None, n_epochs: int) -> None:
            text = f"loss {loss:.4g}"
            if best_score is not None:
                text += f", best score {best_score:.4g}"
            bar.update(task, completed=epoch, total=n_epochs, description=text)

        yield show
