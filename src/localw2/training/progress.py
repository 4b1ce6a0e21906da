"""How a fit is watched: a file with a line an epoch, and a bar on the terminal."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, final

# Called with the epoch, its loss and the best score so far.
Show = Callable[[int, float, float | None], None]


@final
class HistoryFile:
    """A JSONL file with a line an epoch, flushed as it is written so that other tools can follow it.

    A disk that is full ends the file, with a warning, and not the fit.
    """

    def __init__(self, path: str | None, past: list[dict[str, Any]]) -> None:
        self.file: TextIO | None = None
        if path is not None:
            self.file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by __exit__)
            # A resumed fit starts where its checkpoint ended: later lines of the first run are written anew.
            self.rewrite(past)

    def append(self, *entries: dict[str, Any]) -> None:
        """Add a line for each."""
        if self.file is not None:
            try:
                self.file.write("".join(json.dumps(entry) + "\n" for entry in entries))
                self.file.flush()
            except OSError as error:
                self._give_up(error)

    def rewrite(self, entries: list[dict[str, Any]]) -> None:
        """Start again with these lines."""
        if self.file is not None:
            self.file.seek(0)
            self.file.truncate()
            self.append(*entries)

    def _give_up(self, error: OSError) -> None:
        name = self.file.name if self.file is not None else ""
        self.__exit__()
        warnings.warn(
            f"the history {name!r} could not be written ({error.strerror or error}) and ends here. Training "
            "goes on; the fit itself keeps every epoch.",
            stacklevel=4,
        )

    def __enter__(self) -> HistoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            with suppress(OSError):  # what could not be written is tried again here
                self.file.close()
            self.file = None


@contextmanager
def progress_bar(enabled: bool, n_epochs: int) -> Iterator[Show]:
    """A bar with loss, score and time left on a terminal; nothing in a pipe."""
    if not enabled:
        yield lambda epoch, loss, best_score: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("fit"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=n_epochs)

        def show(epoch: int, loss: float, best_score: float | None) -> None:
            text = f"loss {loss:.4g}"
            if best_score is not None:
                text += f", best score {best_score:.4g}"
            bar.update(task, completed=epoch, description=text)

        yield show
