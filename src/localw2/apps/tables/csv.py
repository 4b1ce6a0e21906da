"""CSV text to columns of numbers, a chunk of rows at a time; columns with a cell that is none stay text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})  # in any case, with blanks around
_CHUNK = 1 << 12  # rows held as text at a time; more are slower, by the collection of garbage
_LOOKED_AT = 10  # rows that tell the delimiter
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*")


@final
@dataclass(frozen=True)
class BadCell:
    """The first cell of a column that is no number, its line in the file, and what may be the cause."""

    cell: str
    line: int
    cause: str = ""


@final
class CSVFile:
    """One CSV file: its delimiter and header, then as many passes as its columns of text need."""

    def __init__(self, file: IO[bytes], encoding: str, source: str, decimal: str) -> None:
        self.file, self.encoding, self.source = file, encoding, source
        self.delimiter = self._delimiter()
        with closing(self._records()) as records:
            names = next(filter(None, records), None)
        if names is None:
            raise ValueError(f"{source} is empty; it needs a header line with the names of its columns.")
        if names[0].startswith("sep=") and not any(names[1:]):
            raise ValueError(
                f"the first line of {source} is {self.delimiter.join(names)!r}, a note to Excel. Remove it; "
                "the delimiter is found without."
            )
        self.names = header_names(names, source)
        # Where commas separate cells, one inside of a cell is no decimal comma.
        self.commas = decimal == "comma" or (decimal == "auto" and self.delimiter == ";")
        self.sure = decimal == "comma"

    def read(self) -> tuple[dict[str, Array], Array, dict[str, BadCell]]:
        """Columns by name, the line that each row begins on, and the first bad cell of columns of text.

        The file is passed over again if a column turned out to be text after its first chunk.
        """
        columns, lines = self._scan({})
        late = {place: column.bad for place, column in enumerate(columns) if column.bad and column.late}
        late |= self._unclear(columns)
        if late:
            columns, lines = self._scan(late)
        data = {name: column.array() for name, column in zip(self.names, columns, strict=True)}
        bad = {name: column.bad for name, column in zip(self.names, columns, strict=True) if column.bad}
        return data, lines, bad

    def _unclear(self, columns: list[_Column]) -> dict[int, BadCell]:
        """Columns whose commas may not be decimal ones."""
        with_commas = {place: column for place, column in enumerate(columns) if column.comma}
        unsure = not self.sure and not any(column.clear for column in with_commas.values())
        found = {}
        for place, column in with_commas.items():
            cell, line = column.comma or ("", 0)
            if column.point:
                found[place] = BadCell(cell, line, "other cells of this column have a decimal point")
            elif unsure:
                found[place] = BadCell(
                    cell,
                    line,
                    "the comma may mark thousands or decimals: say --decimal comma if it is decimal",
                )
        return found

    def _scan(self, text: Mapping[int, BadCell]) -> tuple[list[_Column], Array]:
        columns = [_Column(self.commas, text.get(place)) for place in range(len(self.names))]
        lines: list[Array] = []
        for rows, begins in self._chunks():
            for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
                column.add(cells, begins)
            lines.append(np.array(begins))
        return columns, np.concatenate(lines) if lines else np.empty(0, int)

    def _chunks(self) -> Iterator[tuple[list[list[str]], list[int]]]:
        """Rows and the lines they begin on, some at a time, without the header and empty lines."""
        with closing(self._records()) as records:
            begin = 1
            for header in records:
                begin = self.line + 1
                if header:
                    break
            while batch := list(islice(self._begun(records, begin), _CHUNK)):
                begin = self.line + 1
                yield [row for _, row in batch], [line for line, _ in batch]

    def _begun(self, records: Iterator[list[str]], begin: int) -> Iterator[tuple[int, list[str]]]:
        """Rows that are not empty, with the line that each begins on."""
        width = len(self.names)
        for row in records:
            if len(row) == width:
                yield begin, row
            elif row and not (len(row) == 1 and not row[0].strip()):
                raise ValueError(
                    f"line {begin} of {self.source} has {len(row)} cells, the header {width}. Quote cells "
                    f"that contain {self.delimiter!r}, and write missing ones as empty."
                )
            begin = self.line + 1

    def _records(self, delimiter: str | None = None) -> Generator[list[str]]:
        self.file.seek(0)
        text = io.TextIOWrapper(self.file, self.encoding, newline="")
        self.line = 0
        reader = csv.reader(text, delimiter=delimiter or self.delimiter, strict=True)
        try:
            for row in reader:
                self.line = reader.line_num
                yield row
        except csv.Error as error:
            raise ValueError(
                f"{self.source} is no valid CSV after line {self.line} ({error}). Look for a quote that is "
                "not closed, or write quotes inside of a cell twice."
            ) from None
        finally:
            text.detach()  # or else the file would be closed with it

    def _delimiter(self) -> str:
        """The one that cuts the header into the most cells, and the next rows into as many."""

        def cells(delimiter: str) -> tuple[bool, int]:
            try:
                with closing(self._records(delimiter)) as records:
                    counts = [len(row) for row in islice(filter(None, records), _LOOKED_AT)]
            except ValueError:  # quotes that make no sense with this one
                return False, 0
            return len(set(counts)) == 1 and counts[0] > 1, max(counts[:1], default=0)

        return max("\t;,", key=cells)


def header_names(cells: Sequence[str], source: str) -> tuple[str, ...]:
    """The names in a header, or what is wrong with them; a blank one is named by its place."""
    names = tuple(cell.strip() or f"column{place}" for place, cell in enumerate(cells, 1))
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        shown = ", ".join(repr(name) for name in twice)
        raise ValueError(f"{source} has more than one column named {shown}; rename them in its header line.")
    if all(number_in(cell) is not None for cell in cells):
        raise ValueError(
            f"the first line of {source} holds numbers only ({', '.join(cells[:4])}), so it is no header. "
            "Put a line with the names of the columns before it."
        )
    return names


@final
class _Column:
    """A column as it grows: numbers until a cell is none."""

    def __init__(self, commas: bool, bad: BadCell | None) -> None:
        self.commas, self.bad = commas, bad
        self.parts: list[Array] = []
        self.late = False  # text, but numbers were kept before
        self.comma: tuple[str, int] | None = None  # the first cell with a decimal comma
        self.clear = self.point = False

    def add(self, cells: Sequence[str], lines: Sequence[int]) -> None:
        """Take more cells, which begin on these lines."""
        if self.late:
            return
        if self.bad is None:
            numbers = self._numbers(cells, lines)
            if not isinstance(numbers, BadCell):
                self.parts.append(numbers)
                return
            self.bad, self.late = numbers, bool(self.parts)
            if self.late:
                return
        text = np.empty(len(cells), object)
        text[:] = cells
        self.parts.append(text)

    def array(self) -> Array:
        """The whole column."""
        return np.concatenate(self.parts) if self.parts else np.empty(0)

    def _numbers(self, cells: Sequence[str], lines: Sequence[int]) -> Array | BadCell:
        """The cells as numbers, or the first that is none."""
        joined = "".join(cells)
        if self.commas:
            self.point |= "." in joined
        try:
            if "_" not in joined:  # which Python would take for a number's
                return np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            pass
        values = np.empty(len(cells))
        for row, cell in enumerate(cells):
            number = number_in(cell)
            if number is None and self.commas and cell.count(",") == 1 and "." not in cell:
                number = number_in(cell.replace(",", "."))
                if number is not None:
                    self.comma = self.comma or (cell, lines[row])
                    self.clear = self.clear or _THOUSANDS.fullmatch(cell) is None
            if number is None and not is_missing(cell):
                return BadCell(cell, lines[row])
            values[row] = np.nan if number is None else number
        return values


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no value."""
    return cell.strip().lower() in MISSING


def number_in(cell: str) -> float | None:
    """The number that a cell holds, if it does.

    >>> number_in(" 1e3"), number_in("1_000"), number_in("x")
    (1000.0, None, None)
    """
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None
