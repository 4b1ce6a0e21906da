"""Tables from files and to files: CSV, TSV and Parquet in, the same and JSON out, ``-`` for the terminal.

A file is read in chunks: numbers are turned into float64 as they come, so that a million rows need no more
memory than their numbers. A column with a cell that is no number is kept as text, and only a question for its
numbers is an error, which then shows that cell and its line.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, final

import numpy as np

from localw2.apps.tables.csv import Array, BadCell, CSVFile, header_names, is_missing, number_in
from localw2.storage.atomic import replaced

FORMATS = (".csv", ".tsv", ".parquet", ".json")
_NUMERIC = ("integer", "floating", "decimal", "boolean", "null")  # types of Arrow
_WRITTEN = 1 << 14  # rows written at a time
_LOOKED_AT = 1000  # cells that tell whether a column was meant as numbers


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length: float64 with NaN where a value is missing, or text (dtype object).

    ``lines`` (N,) is the line of the file that each row begins on, ``bad`` the first cell of each column of
    text that is no number, ``sha256`` the hash of the bytes that were read.

    >>> table = Table(("x", "day"), {"x": np.array([1.0, 2.0]), "day": np.array(["Mo", "Tu"], object)},
    ...               np.array([2, 3]), "days.csv", bad={"day": BadCell("Mo", 2)})
    >>> table.numbers(["x"]).tolist()
    [[1.0], [2.0]]
    >>> table.numbers(["day"])
    Traceback (most recent call last):
    ValueError: column 'day' of days.csv holds text: 'Mo' on line 2 is no number. ...
    """

    names: tuple[str, ...]
    columns: dict[str, Array] = field(repr=False)
    lines: Array = field(repr=False)
    source: str
    bad: dict[str, BadCell] = field(default_factory=dict, repr=False)
    sha256: str = ""

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.lines)

    def column(self, name: str) -> Array:
        """One column (N,), numbers or text; a ValueError names the near ones of an unknown name."""
        if name not in self.columns:
            raise ValueError(f"{self.source} has no column {name!r}. {_near(name, self.names)}")
        return self.columns[name]

    def numbers(self, names: Sequence[str]) -> Array:
        """These columns side by side, (N, p) float64, or what is wrong with the first bad cell of them."""
        for name in names:
            self._check_numeric(name)
        values = np.column_stack([self.columns[name] for name in names])
        if self.n_rows == 0:
            raise ValueError(f"{self.source} has a header but no rows; at least one row is needed.")
        if (infinite := np.argwhere(np.isinf(values))).size:
            row, column = infinite[0]
            raise ValueError(
                f"column {names[column]!r} of {self.source} is infinite on line {self.lines[row]}, which has "
                "no distance to anything. Correct that cell, or leave it empty and add --drop-missing."
            )
        if (missing := np.isnan(values)).any():
            rows = missing.any(1)
            few = ", ".join(str(name) for name, hit in zip(names, missing.any(0), strict=True) if hit)
            raise ValueError(
                f"{rows.sum()} of {self.n_rows} rows of {self.source} have missing values in {few}, the "
                f"first on line {self.lines[rows.argmax()]}. Add --drop-missing to leave these rows out, or "
                "fill them in first."
            )
        return values

    def complete(self, names: Sequence[str]) -> Array:
        """A mask (N,) of the rows with no missing value in these columns, which must be numbers."""
        for name in names:
            self._check_numeric(name)
        whole: Array = ~np.isnan(np.column_stack([self.columns[name] for name in names])).any(1)
        return whole

    def rows(self, which: Array) -> Table:
        """The table of some rows, by a mask (N,) or by their numbers."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return Table(self.names, columns, self.lines[which], self.source, self.bad, self.sha256)

    def mostly_numbers(self, name: str) -> bool:
        """Whether a column of text looks like one of numbers with some cells gone wrong."""
        cells = [cell for cell in self.columns[name][:_LOOKED_AT].tolist() if not is_missing(cell)]
        return 2 * sum(number_in(cell) is not None for cell in cells) > len(cells)

    def _check_numeric(self, name: str) -> None:
        if self.column(name).dtype != object:
            return
        cell = self.bad[name]
        cause = f" ({cell.cause})" if cell.cause else ""
        raise ValueError(
            f"column {name!r} of {self.source} holds text: {cell.cell[:60]!r} on line {cell.line} is no "
            f"number{cause}. Correct the cell, leave the column out, or write it as numbers."
        )


def _near(name: str, known: Sequence[str]) -> str:
    folded = {other.casefold(): other for other in reversed(known)}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(repr(folded[other]) for other in close)}?"
    shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    return f"Its columns are {shown}."


# --- reading --------------------------------------------------------------------------------------------


def read_table(path: str | os.PathLike[str], decimal: str = "auto") -> Table:
    """Read a CSV, TSV or Parquet file, or standard input (``-``).

    The delimiter (comma, semicolon, tab) is that of the header line. ``decimal`` is "point", "comma" or
    "auto": in a file with semicolons commas are decimal ones, unless they could as well mark thousands.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("x;day\\n0,5;2024-01-01\\n;2024-01-02\\n")
    ...     table = read_table(Path(folder, "a.csv"))
    >>> table.names, table.columns["x"].tolist(), table.columns["day"].tolist()
    (('x', 'day'), [0.5, nan], ['2024-01-01', '2024-01-02'])
    """
    if decimal not in ("auto", "point", "comma"):
        raise ValueError(f"decimal={decimal!r} is not known; give 'auto', 'point' or 'comma'.")
    name = os.fspath(path)
    with _opened(name) as file:
        source = "standard input" if name == "-" else Path(name).name
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it is a file
        file.seek(0)
        start = file.read(4)
        file.seek(0)
        if start == b"PAR1":
            return _parquet(file, source, sha256)
        if start.startswith(b"PK\3\4"):
            raise ValueError(f"{source} is a zip or Excel file; save the sheet as CSV and give that.")
        if start.startswith(b"\x1f\x8b"):
            raise ValueError(
                f"{source} is compressed; give it as it is inside: gunzip -c FILE | localw2 ... -"
            )
        encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            parsed = CSVFile(file, encoding, source, decimal)
            columns, lines, bad = parsed.read()
            return Table(parsed.names, columns, lines, source, bad, sha256)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{source} is not UTF-8 text ({error.reason}: byte {error.object[error.start]:#04x}). Save "
                "it as UTF-8, as in: iconv -f latin1 -t utf-8 FILE > NEW."
            ) from None


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """The bytes of a file that can be read twice: standard input goes by way of a temporary file."""
    if name != "-":
        with open(name, "rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        yield copy


def _parquet(file: IO[bytes], source: str, sha256: str) -> Table:
    arrow, parquet = _arrow()
    try:
        stored = parquet.ParquetFile(file)
        names = header_names(stored.schema_arrow.names, source)
        n_rows, kinds = stored.metadata.num_rows, stored.schema_arrow.types
        numeric = [any(getattr(arrow.types, f"is_{known}")(kind) for known in _NUMERIC) for kind in kinds]
        columns = {
            name: np.empty(n_rows, np.float64 if number else object)
            for name, number in zip(names, numeric, strict=True)
        }
        start = 0
        # Group by group, so that a large file is never held twice.
        for group in range(stored.num_row_groups):
            part = stored.read_row_group(group)
            for name, column, number in zip(names, part.columns, numeric, strict=True):
                columns[name][start : start + len(column)] = _parquet_cells(arrow, column, number)
            start += part.num_rows
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{source} is no valid Parquet file: {error}") from None
    bad = {}
    for name, kind, number in zip(names, kinds, numeric, strict=True):
        if not number:
            first = next((place for place, cell in enumerate(columns[name]) if cell), 0)
            cell = "".join(columns[name][first : first + 1])
            bad[name] = BadCell(cell, first + 1, f"the column's type is {kind}")
    return Table(names, columns, np.arange(1, n_rows + 1), source, bad, sha256)


def _parquet_cells(arrow: Any, column: Any, number: bool) -> Any:
    """A part of a column as float64, NaN where nothing is, or as text."""
    if not number:
        return ["" if value is None else str(value) for value in column.to_pylist()]
    # Arrow has no way from truth values to numbers but by way of small integers.
    whole = column.cast(arrow.int8()) if arrow.types.is_boolean(column.type) else column
    return whole.cast(arrow.float64()).to_numpy()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet needs pyarrow: pip install 'localw2[tables]', or use CSV.") from None
    return pyarrow, pyarrow.parquet


# --- writing --------------------------------------------------------------------------------------------


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> None:
    """Write columns of equal length in the format that the name ends in; ``-`` is CSV on standard output.

    Numbers are written with all their digits (``repr``), so that they are read again as the same float64;
    NaN is an empty cell, or null. A file appears as a whole or not at all.

    >>> write_table("-", {"row": np.array([1, 2]), "mean": np.array([0.1, np.nan])})
    row,mean
    1,0.1
    2,
    """
    name = os.fspath(path)
    if name == "-":
        _write_csv(sys.stdout, columns, ",")
        return
    check_format(name)
    if name.lower().endswith(".parquet"):
        arrow, parquet = _arrow()
        with replaced(name, "wb") as file:
            parquet.write_table(arrow.table({key: _arrow_cells(v) for key, v in columns.items()}), file)
        return
    with replaced(name, "w") as file:
        if name.lower().endswith(".json"):
            json.dump(plain_columns(columns), file)
            file.write("\n")
        else:
            _write_csv(file, columns, "\t" if name.lower().endswith(".tsv") else ",")


def check_format(path: str) -> None:
    """Raise unless a table can be written under this name, which long work had better know before."""
    if path == "-":
        return
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"{path!r} says no format; let the name end in {', '.join(FORMATS)}, or give - .")
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"{path!r}: its folder does not exist; create it first.")


def plain_columns(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns as JSON has them: lists, with None for what is not finite."""
    return {name: _json_cells(np.asarray(values)) for name, values in columns.items()}


def _json_cells(values: Array) -> list[Any]:
    cells: list[Any] = values.tolist()
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return [cell if math.isfinite(cell) else None for cell in cells]
    return cells


def _cells(values: Array) -> list[Any]:
    cells: list[Any] = values.tolist()
    if values.dtype.kind == "f" and np.isnan(values).any():
        return ["" if cell != cell else cell for cell in cells]
    return cells


def _arrow_cells(values: Any) -> Any:
    array = np.asarray(values)
    return array.tolist() if array.dtype.kind in "OU" else array


def _write_csv(file: IO[str], columns: Mapping[str, Any], delimiter: str) -> None:
    arrays = [np.asarray(values) for values in columns.values()]
    # Python leaves a carriage return without quotes, where a reader takes it for the end of a line.
    words = [columns, *(values.tolist() for values in arrays if values.dtype.kind in "OU")]
    returns = any("\r" in str(word) for cells in words for word in cells)
    quoting: Literal[0, 1] = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting)
    writer.writerow(columns)
    for start in range(0, len(arrays[0]), _WRITTEN):
        writer.writerows(zip(*(_cells(v[start : start + _WRITTEN]) for v in arrays), strict=True))
