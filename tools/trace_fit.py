"""The way of the rows through ``LocalW2Regressor.fit``, file by file, as it is now.

python tools/trace_fit.py            print it
python tools/trace_fit.py --write    put it into docs/contributors/code-map.md
python tools/trace_fit.py --check    fail if a file is entered twice, or if the page is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import localw2
from pages import PAGE, replace_part
from rooms import MODULES, PACKAGE

ROOM = "estimators/"
# Small values that know how a column or y is written, asked wherever that matters; not stations of the rows.
_OF_ONE_COLUMN = ("tables", "cells", "column_screening", "regression/scale", "regression/category_codes")
WORDS = {f"{ROOM}{name}.py" for name in _OF_ONE_COLUMN}
N_ROWS = 307  # a number that nothing else in a fit is, so that arguments which hold the rows are known


@dataclass
class Entry:
    """A stay in a file of the room: the functions called from outside, and the files of lower rooms used."""

    file: str
    functions: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)


class Trace:
    """A profiler that writes down each call from one file of the package into another."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._files: dict[CodeType, str | None] = {}
        self._stays: dict[FrameType, Entry] = {}  # of the calls that have not returned yet

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Called by Python at every call and return."""
        if event == "return":
            self._stays.pop(frame, None)
        if event != "call" or (file := self._file(frame.f_code)) is None:
            return
        caller, stay = self._callers(frame)
        if file == caller:
            return
        if file.startswith(ROOM):
            rows = [] if file in WORDS and self._seen(file) else _rows(frame)
            if rows and (not self.entries or self.entries[-1].file != file):
                self.entries.append(Entry(file))
            self._stays[frame] = self.entries[-1]
            if self.entries[-1].file == file:  # a call without rows is a step aside, not a way of the rows
                _append(self.entries[-1].functions, f"{frame.f_code.co_qualname}({', '.join(rows)})")
        elif stay is not None:
            _append(stay.below, file)

    def _seen(self, file: str) -> bool:
        return any(entry.file == file for entry in self.entries)

    def _file(self, code: CodeType) -> str | None:
        """The file of the package that holds this code."""
        if code not in self._files:
            path = Path(code.co_filename)
            ours = path.is_relative_to(PACKAGE) and code.co_name != "<module>"
            self._files[code] = path.relative_to(PACKAGE).as_posix() if ours else None
        return self._files[code]

    def _callers(self, frame: FrameType) -> tuple[str | None, Entry | None]:
        """The nearest file of the package that the call came from, be it through scikit-learn or torch, and
        the stay in the room that it belongs to."""
        file, outer = None, frame.f_back
        while outer is not None:
            file = file or self._file(outer.f_code)
            if outer in self._stays:
                return file, self._stays[outer]
            outer = outer.f_back
        return file, None


def _append(found: list[str], value: str) -> None:
    if value not in found:
        found.append(value)


def _rows(frame: FrameType) -> list[str]:
    """The names of the arguments that hold the rows."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names if N_ROWS in tuple(getattr(frame.f_locals.get(name), "shape", None) or ())]


def trace_fit() -> list[Entry]:
    """The stays of a fit with both kinds of members, in order; trees and epochs are few."""
    for name in MODULES:
        if name and not name.startswith("apps"):
            import_module(f"localw2.{name}")  # otherwise what happens on import would look like the fit
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (N_ROWS, 3))
    y = x[:, 0] + (1 + x[:, 1]) * rng.normal(size=N_ROWS)
    laws = [localw2.BallLaw(40, n_trees=3), localw2.Network(epochs=3)]
    model = localw2.LocalW2Regressor(laws, device="cpu", random_state=0)
    trace = Trace()
    sys.setprofile(trace)
    try:
        model.fit(x, y)
    finally:
        sys.setprofile(None)
    return trace.entries


def repeated(entries: list[Entry]) -> dict[str, int]:
    """Files that are entered more than once, and how often."""
    return {file: n for file, n in Counter(entry.file for entry in entries).items() if n > 1}


def as_markdown(entries: list[Entry]) -> str:
    """The stays as a numbered list, and what is entered twice."""
    lines = []
    for number, entry in enumerate(entries, 1):
        functions = ", ".join(f"`{name}`" for name in entry.functions)
        label = f"{number}. "
        lines.append(f"{label}**`{entry.file.removeprefix(ROOM)}`**: {functions}")
        if entry.below:
            below = ", ".join(f"`{file}`" for file in entry.below)
            lines.append(f"{' ' * len(label)}- uses {below}")
    again = ", ".join(f"`{file.removeprefix(ROOM)}` ({n} times)" for file, n in repeated(entries).items())
    n_files = len({entry.file for entry in entries} | {file for entry in entries for file in entry.below})
    lines += [
        "",
        f"The rows pass through {n_files} files. "
        + (f"Entered more than once: {again}." if again else "No file of the room is entered twice."),
    ]
    return "\n".join(lines)


def main() -> None:
    """Print, write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help=f"put the list into {PAGE.name}")
    action.add_argument(
        "--check", action="store_true", help="fail if a file is entered twice or the page is out of date"
    )
    chosen = parser.parse_args()
    entries = trace_fit()
    text = as_markdown(entries)
    print(text)
    if chosen.write or chosen.check:
        old = PAGE.read_text(encoding="utf-8")
        new = replace_part(old, "trace", text)
        if chosen.write:
            PAGE.write_text(new, encoding="utf-8")
        elif old != new:
            sys.exit(f"\n{PAGE.name} is out of date: run `make code-map`.")
        elif repeated(entries):
            sys.exit("\nA file is entered twice: bring its calls together.")


if __name__ == "__main__":
    main()
