"""Tables in files, as pandas data frames: CSV, TSV and Parquet are read and written, JSON is written.

``-`` stands for standard input and standard output.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import pandas as pd

from localw2._validation import Array
from localw2._wording import suggest, to_plain
from localw2.storage.atomic import open_replacement

FORMATS = (".csv", ".tsv", ".parquet", ".json")
# Cells with no value, in any case; pandas has further ones, such as #N/A.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_MISSING_WORDS = sorted({form for word in MISSING for form in (word, word.upper(), word.title())})
# Before version 3.1 the default of pandas was not exact in the last digit; since then the option is gone.
_IS_EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
_EXACT: dict[str, Any] = {} if _IS_EXACT else {"float_precision": "round_trip"}
_DELIMITERS = "\t;,"
_SNIFFED, _INSPECTED = (
    10,
    1000,
)  # rows that tell the delimiter; rows or cells that tell how numbers are written
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*")


@final
@dataclass(frozen=True, eq=False)
class Table:
    """A data frame, the name of the file it came from and the SHA-256 of that file.

    The index numbers the rows of the file from 0, also where some rows have been dropped. Messages number
    rows from 1.

    >>> table = Table(pd.DataFrame({"x": [1.0, 2.0], "day": ["Mo", "Tu"]}), "days.csv")
    >>> table.numbers(["x"]).tolist()
    [[1.0], [2.0]]
    >>> table.numbers(["day"])
    Traceback (most recent call last):
    ValueError: column 'day' of days.csv must be numeric, but 'Mo' in row 1 is not a number. ...
    """

    frame: Any = field(repr=False)
    source: str
    sha256: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame.columns)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.frame)

    def column(self, name: str) -> Any:
        """One column; for an unknown name a ValueError suggests similar ones."""
        if name not in self.frame.columns:
            hint = suggest(name, self.names, "Its columns are")
            raise ValueError(f"{self.source} has no column {name!r}. {hint}")
        return self.frame[name]

    def features(self, names: Sequence[str]) -> Any:
        """These columns as a frame with text and missing values, checked for mistakes in numeric columns.

        Infinite numbers are refused, and so is a text column in which more than half of the cells are
        numbers: treated as categorical, a numeric column with a typo would be useless.
        """
        columns = [self.column(name) for name in names]
        if self.n_rows == 0:
            raise ValueError(f"{self.source} has a header but no rows; at least one row is needed.")
        for name, column in zip(names, columns, strict=True):
            if is_numeric(column):
                self._check_finite(name, column)
            elif is_mostly_numeric(column):
                raise ValueError(
                    f"column {name!r} of {self.source} is mostly numeric, but {self._describe_cell(column)} "
                    "Correct the cell or leave the column out. If its values are categories, begin each "
                    "with a letter."
                )
        return self.frame[list(names)]

    def numbers(self, names: Sequence[str], missing: bool = False) -> Array:
        """These columns as an array (N, p) of float64; a ValueError names the first unusable cell.

        With ``missing``, missing values are allowed, as NaN.
        """
        for name in names:
            if not is_numeric(column := self.column(name)) and self.n_rows:
                raise ValueError(
                    f"column {name!r} of {self.source} must be numeric, but {self._describe_cell(column)} "
                    "Correct the cell, leave the column out, or encode it as numbers."
                )
        frame = self.features(names)
        values = np.column_stack([frame[name].to_numpy(np.float64, na_value=np.nan) for name in names])
        gaps = np.isnan(values)
        if gaps.any() and not missing:
            rows = gaps.any(1)
            few = ", ".join(name for name, hit in zip(names, gaps.any(0), strict=True) if hit)
            raise ValueError(
                f"{rows.sum()} of {self.n_rows} rows of {self.source} have missing values in {few}, the "
                f"first of them row {self.frame.index[rows.argmax()] + 1}. Add --drop-missing to leave these "
                "rows out, or fill them in first."
            )
        return values

    def _check_finite(self, name: str, column: Any) -> None:
        infinite = np.isinf(column.to_numpy(np.float64, na_value=np.nan))
        if infinite.any():
            row = self.frame.index[infinite.argmax()] + 1
            raise ValueError(
                f"column {name!r} of {self.source} is infinite in row {row}; distances to that row are "
                "undefined. Correct the cell or leave it empty."
            )

    def _describe_cell(self, column: Any) -> str:
        """Say which cell of a text column is not a number, and what may help."""
        row, cell = next(_text_cells(column), (column.index[0], column.iloc[0]))
        hint = ""
        if "," in str(cell) and parse_number(str(cell).replace(",", "")) is not None:
            hint = (
                " If its comma is a decimal comma, add --decimal comma, and use one decimal mark throughout."
            )
        return f"{str(cell)[:60]!r} in row {row + 1} is not a number.{hint}"


def is_numeric(column: Any) -> bool:
    """Whether a column holds numbers or truth values, or nothing at all."""
    return getattr(column.dtype, "kind", "O") in "iufb" or bool(column.isna().all())


def is_mostly_numeric(column: Any) -> bool:
    """Whether a text column looks like a numeric one in which some cells went wrong.

    >>> is_mostly_numeric(pd.Series(["1", "2", "3?"])), is_mostly_numeric(pd.Series(["red", "4"]))
    (True, False)
    """
    if str(column.dtype) == "category":
        return False
    cells = [str(cell).replace(",", "") for cell in column.dropna().iloc[:_INSPECTED]]
    numbers = sum(parse_number(cell) is not None for cell in cells)
    return 2 * numbers > len(cells) and next(_text_cells(column), None) is not None


def _text_cells(column: Any) -> Iterator[tuple[int, Any]]:
    return ((row, cell) for row, cell in column.dropna().items() if parse_number(cell) is None)


def parse_number(cell: Any) -> float | None:
    """Read a cell as a number; None if it is not one.

    >>> parse_number(" 1e3"), parse_number("1_000"), parse_number("x")
    (1000.0, None, None)
    """
    if isinstance(cell, bool) or (isinstance(cell, str) and "_" in cell):
        return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


# --- reading --------------------------------------------------------------------------------------------


def read_table(path: str | os.PathLike[str], decimal: str = "auto") -> Table:
    """Read a CSV, TSV or Parquet file, or standard input (``-``).

    The delimiter (comma, semicolon or tab) is detected. ``decimal`` is "point", "comma" or "auto", which
    takes decimal commas in files with semicolons, unless the commas could also separate thousands.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("x;day\\n0,5;2024-01-01\\n;2024-01-02\\n")
    ...     table = read_table(Path(folder, "a.csv"))
    >>> table.frame["x"].tolist(), table.frame["day"].tolist()
    ([0.5, nan], ['2024-01-01', '2024-01-02'])
    """
    if decimal not in ("auto", "point", "comma"):
        raise ValueError(f"decimal={decimal!r} is not known; choose 'auto', 'point' or 'comma'.")
    name = os.fspath(path)
    source = "standard input" if name == "-" else Path(name).name
    with io.BytesIO(sys.stdin.buffer.read()) if name == "-" else open(name, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK\3\4"):
            raise ValueError(f"{source} is a zip or Excel file; save the sheet as CSV and use that.")
        if start.startswith(b"\x1f\x8b"):
            raise ValueError(f"{source} is compressed; unpack it first: gunzip -c FILE | localw2 ... -")
        if start == b"PAR1":
            return Table(_read_parquet(file, source), source, sha256)
        encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            return Table(_read_csv(file, encoding, source, decimal), source, sha256)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{source} is not UTF-8 text ({error.reason}: byte {error.object[error.start]:#04x}). Save "
                "it as UTF-8, for example by: iconv -f latin1 -t utf-8 FILE > NEW."
            ) from None


def _read_csv(file: IO[bytes], encoding: str, source: str, decimal: str) -> Any:
    try:
        delimiter, rows = _sniff(file, encoding)
        names = _read_header(rows, delimiter, source)
        # Where commas separate the cells, a comma inside a cell is not taken for a decimal comma.
        commas = decimal == "comma" or (
            decimal == "auto"
            and delimiter == ";"
            and any(
                _DECIMAL_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell)
                for row in rows[1:]
                for cell in row
            )
        )
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # cells beyond the header would be lost
            frame = pd.read_csv(
                file,
                sep=delimiter,
                decimal="," if commas else ".",
                encoding=encoding,
                header=0,
                names=names,
                index_col=False,
                na_values=_MISSING_WORDS,
                low_memory=False,  # in parts, a column could come as numbers here and as text there
                **_EXACT,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        _check_widths(file, encoding, source)
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{source} is not a valid CSV file ({reason}). Look for a quote that is not closed; quotes "
            "inside a cell must be doubled."
        ) from None
    if frame.iloc[:, -1].isna().any():  # short rows are filled up silently
        _check_widths(file, encoding, source)
    for name in names:
        if not is_numeric(frame[name]) and (numbers := _convert(frame[name])) is not None:
            frame[name] = numbers
    return frame


def _sniff(file: IO[bytes], encoding: str) -> tuple[str, list[list[str]]]:
    """The delimiter that cuts the header into most cells, and the next rows into as many; the first rows."""

    def count_cells(delimiter: str) -> tuple[bool, int]:
        counts = [len(row) for row in found[delimiter][:_SNIFFED]]
        return len(set(counts)) == 1 and counts[0] > 1, max(counts[:1], default=0)

    found = {}
    for delimiter in _DELIMITERS:
        with _open_text(file, encoding) as text:
            rows = (row for row in csv.reader(text, delimiter=delimiter) if any(cell.strip() for cell in row))
            found[delimiter] = list(islice(rows, _INSPECTED))
    best = max(_DELIMITERS, key=count_cells)
    return best, found[best]


@contextmanager
def _open_text(file: IO[bytes], encoding: str) -> Iterator[IO[str]]:
    file.seek(0)
    text = io.TextIOWrapper(file, encoding, newline="")
    try:
        yield text
    finally:
        text.detach()  # otherwise the file would be closed along with it


def _read_header(rows: list[list[str]], delimiter: str, source: str) -> list[str]:
    """The names in the header, or what is wrong with them; a blank one is named by its position."""
    if not rows:
        raise ValueError(f"{source} is empty; it needs a header line with the names of its columns.")
    cells = rows[0]
    if cells[0].startswith("sep=") and not any(cells[1:]):
        raise ValueError(
            f"the first line of {source} is {delimiter.join(cells)!r}, an instruction to Excel. Remove it; "
            "the delimiter is detected without it."
        )
    if all(parse_number(cell) is not None for cell in cells):
        raise ValueError(
            f"the first line of {source} contains only numbers ({', '.join(cells[:4])}), so it is not a "
            "header. Add a first line with the names of the columns."
        )
    return _check_names([cell.strip() or f"column{place}" for place, cell in enumerate(cells, 1)], source)


def _check_names(names: list[str], source: str) -> list[str]:
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        shown = ", ".join(repr(name) for name in repeated)
        raise ValueError(f"{source} has more than one column named {shown}; rename them.")
    return names


def _check_widths(file: IO[bytes], encoding: str, source: str) -> None:
    """Raise for the first row with more or fewer cells than the header."""
    delimiter, rows = _sniff(file, encoding)
    with _open_text(file, encoding) as text:
        reader = csv.reader(text, delimiter=delimiter)
        for row in reader:
            if len(row) != len(rows[0]) and any(cell.strip() for cell in row):
                raise ValueError(
                    f"line {reader.line_num} of {source} has {len(row)} cells, but the header has "
                    f"{len(rows[0])}. Quote cells that contain {delimiter!r}, and leave missing ones empty."
                )


def _convert(column: Any) -> Any:
    """A column that pandas took for text as numbers, where it is: None if it is not.

    That are integers of many digits, missing values with blanks around them, and decimal points in a file
    of decimal commas.
    """
    values = np.empty(len(column))
    for place, cell in enumerate(column):
        number = parse_number(cell)
        if number is None and not (isinstance(cell, str) and cell.strip().lower() in MISSING):
            return None
        values[place] = np.nan if number is None else number
    return values


def _read_parquet(file: IO[bytes], source: str) -> Any:
    arrow = _import_arrow()
    try:
        frame = pd.read_parquet(file, engine="pyarrow")
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{source} is not a valid Parquet file: {error}") from None
    # An index with a name was a column of the file; others only number the rows.
    frame = frame.reset_index(drop=all(name is None for name in frame.index.names))
    frame.columns = _check_names([str(name) for name in frame.columns], source)
    for name, column in frame.items():
        if pd.api.types.infer_dtype(column) == "decimal":
            frame[name] = column.astype(np.float64)
    return frame


def _import_arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError("Parquet needs pyarrow: pip install 'localw2[tables]', or use CSV.") from None
    return pyarrow


# --- writing --------------------------------------------------------------------------------------------


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> None:
    """Write columns of equal length in the format of the file's ending; ``-`` is CSV to standard output.

    Numbers are written with all their digits, so that they are read again as the same float64. Missing
    values become empty cells, or null. A file appears complete or not at all.

    >>> write_table("-", {"row": np.array([1, 2]), "mean": np.array([0.1, np.nan])})
    row,mean
    1,0.1
    2,
    """
    frame, name = pd.DataFrame(columns), os.fspath(path)
    if name == "-":
        _write_csv(frame, sys.stdout, ",")
        return
    check_format(name)
    ending = Path(name).suffix.lower()
    with open_replacement(name, "wb" if ending == ".parquet" else "w") as file:
        if ending == ".parquet":
            frame.to_parquet(file, engine="pyarrow", index=False)
        elif ending == ".json":
            file.write(json.dumps(to_plain(frame.to_dict("list"))) + "\n")
        else:
            _write_csv(frame, file, "\t" if ending == ".tsv" else ",")


def check_format(path: str) -> None:
    """Raise unless a table can be written under this name: better before long work than after it."""
    if path == "-":
        return
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise ValueError(f"{path!r} has no known format; use a name that ends in {', '.join(FORMATS)}, or -.")
    if ending == ".parquet":
        _import_arrow()
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder of {path!r} does not exist; create it first.")


def _write_csv(frame: Any, file: IO[str], delimiter: str) -> None:
    # Python does not quote a carriage return, which a reader takes for the end of a line.
    words = [*frame.columns, *(cell for name in frame for cell in frame[name] if isinstance(cell, str))]
    quoting = csv.QUOTE_ALL if any("\r" in word for word in words) else csv.QUOTE_MINIMAL
    frame.to_csv(file, sep=delimiter, index=False, lineterminator="\n", quoting=quoting)
