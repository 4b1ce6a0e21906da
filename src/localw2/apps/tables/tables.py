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
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np
import pandas as pd

from localw2._wording import suggest, to_plain
from localw2.storage.atomic import open_replacement

if TYPE_CHECKING:  # a table is read, and its first line printed, before torch is imported
    from localw2._validation import Array

FORMATS = (".csv", ".tsv", ".parquet", ".json")
# Cells with no value, in any case; pandas has further ones, such as #N/A.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
_MISSING_WORDS = sorted({form for word in MISSING for form in (word, word.upper(), word.title())})
# Before version 3.1 the default of pandas was not exact in the last digit; since then the option is gone.
_IS_EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
_EXACT: dict[str, Any] = {} if _IS_EXACT else {"float_precision": "round_trip"}
_START = 512  # bytes that show what kind of file it is
_INSPECTED = 1000  # rows that show the delimiter and how numbers are written
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*")  # or a decimal comma with three digits behind it
# Numbers with marks between thousands, where the decimal mark is a point or a comma.
_GROUPED = {
    "point": re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*"),
    "comma": re.compile(r"\s*[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?\s*"),
}


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

    def select(self, names: Sequence[str]) -> Any:
        """These columns as a frame; for an unknown name a ValueError suggests similar ones."""
        for name in names:
            if name not in self.frame.columns:
                hint = suggest(name, self.frame.columns, "Its columns are")
                raise ValueError(f"{self.source} has no column {name!r}. {hint}")
        return self.frame[list(names)]

    def features(self, names: Sequence[str], numeric: bool = False) -> Any:
        """These columns as a frame with text and missing values, checked for mistakes in numeric columns.

        Infinite numbers are refused, and so are numbers with commas that could be decimal commas. Another
        text among numbers makes its column categorical, with a warning, or with ``numeric`` is refused.
        """
        for name, column in self.select(names).items():
            cells = column.dropna()
            if getattr(cells.dtype, "kind", "O") in "iufb":
                wrong, reason = cells[np.isinf(cells.to_numpy(np.float64))], "infinite"
            elif numeric or _is_mostly_numeric(cells):
                good = [is_number(cell) or isinstance(cell, bool) for cell in cells]
                wrong, reason = cells[~np.array(good, dtype=bool)], "not a number"
            else:
                continue
            if not len(wrong):
                continue
            cell, row = str(wrong.iloc[0])[:60], wrong.index[0] + 1
            commas = all(is_number(str(cell).replace(",", "")) for cell in wrong)
            if numeric or commas or reason == "infinite":
                claim = "must be numeric" if numeric else "is mostly numeric"
                hint = ""
                if "," in cell:
                    hint = " If its comma is a decimal comma, add --decimal comma; if it separates thousands,"
                    hint += " add --decimal point."
                raise ValueError(
                    f"column {name!r} of {self.source} {claim}, but {cell!r} in row {row} is {reason}.{hint} "
                    "Correct the cell or leave the column out."
                )
            warnings.warn(
                f"column {name!r} of {self.source} is read as categorical, because {cell!r} in row {row} is "
                "not a number. If that is a typing error, correct the cell.",
                stacklevel=2,
            )
        return self.frame[list(names)]

    def numbers(self, names: Sequence[str], missing: bool = False) -> Array:
        """These columns as an array (N, p) of float64; a ValueError names the first unusable cell.

        With ``missing``, missing values are allowed, as NaN.
        """
        frame = self.features(names, numeric=True)
        values: Array = np.ascontiguousarray(frame.to_numpy(np.float64, na_value=np.nan))
        if not missing:
            self._refuse_missing(frame.isna() | np.isnan(values))
        return values

    def outcomes(self, names: Sequence[str], labels: Collection[str]) -> Any:
        """These columns as a frame of numbers and, if in ``labels``, categories; a ValueError as above.

        >>> frame = pd.DataFrame({"size": [1, 2], "kind": ["a", "b"]})
        >>> Table(frame, "things.csv").outcomes(["size", "kind"], {"kind"}).values.tolist()
        [[1.0, 'a'], [2.0, 'b']]
        """
        chosen = [name for name in names if name in labels]
        self._refuse_missing(self.select(chosen).isna())
        numbers = self.numbers([name for name in names if name not in labels])
        columns = dict(zip((n for n in names if n not in labels), numbers.T, strict=True))
        columns |= {name: self.frame[name].to_numpy(object) for name in chosen}
        return pd.DataFrame({name: columns[name] for name in names}, index=self.frame.index)

    def find_labels(self, names: Sequence[str]) -> list[str]:
        """Those of these columns that hold text, but neither dates nor mostly numbers, or truth values.

        >>> frame = pd.DataFrame({"size": [1, 2], "kind": ["a", "b"], "day": ["2020-01-31", "2020-02-01"]})
        >>> Table(frame, "things.csv").find_labels(list(frame))
        ['kind']
        """
        found = []
        for name, column in self.select(names).items():
            cells = column.dropna()
            kind = getattr(cells.dtype, "kind", "O")
            words = str(cells.dtype) == "category" or kind == "b"
            if not words and kind not in "iufmM" and len(cells) and not _is_mostly_numeric(cells):
                from localw2.estimators.cells import CATEGORY, NUMBER, find_kind  # here: it brings torch

                # Truth values with gaps are objects, which count as numbers.
                words = find_kind(cells, repr(name)) in (CATEGORY, NUMBER)
            if words:
                found.append(str(name))
        return found

    def _refuse_missing(self, empty: Any) -> None:
        if not empty.any(axis=None):
            return
        rows = empty.index[empty.any(axis=1)]
        raise ValueError(
            f"{len(rows)} of {len(empty)} rows of {self.source} have missing values in "
            f"{', '.join(empty.columns[empty.any()])}, the first of them row {rows[0] + 1}. Add "
            "--drop-missing to leave these rows out, or fill them in first."
        )


def _is_mostly_numeric(cells: Any) -> bool:
    some = [is_number(str(cell).replace(",", "")) for cell in cells.iloc[:_INSPECTED]]
    return str(cells.dtype) != "category" and 2 * sum(some) > len(some)


def is_number(cell: Any) -> bool:
    """Whether a cell can be read as a number.

    >>> is_number(" 1e3"), is_number("1_000"), is_number("x")
    (True, False, False)
    """
    if isinstance(cell, bool) or (isinstance(cell, str) and "_" in cell):
        return False
    try:
        float(cell)
    except (TypeError, ValueError, OverflowError):  # the last of an int of hundreds of digits
        return False
    return True


def read_table(path: str | os.PathLike[str], decimal: str = "auto", text: Sequence[str] = ()) -> Table:
    """Read a CSV, TSV or Parquet file, or standard input (``-``).

    The delimiter (comma, semicolon, tab or a vertical bar) is detected, and so is UTF-16. ``decimal`` is
    "point", "comma" or "auto", which takes decimal commas in files with semicolons, and the commas of a whole
    column for decimal commas or for marks between thousands where they can only be one of the two. With
    "point" or "comma" the other one may stand between thousands. Columns named in ``text`` are categorical:
    their cells stay as they are written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("x;day\\n0,5;2024-01-01\\n;2024-01-02\\n")
    ...     table = read_table(Path(folder, "a.csv"))
    >>> table.frame["x"].tolist(), table.frame["day"].tolist()
    ([0.5, nan], ['2024-01-01', '2024-01-02'])
    """
    if decimal not in ("auto", "point", "comma"):
        raise ValueError(f"decimal={decimal!r} is unknown; choose 'auto', 'point' or 'comma'.")
    name = os.fspath(path)
    source = "standard input" if name == "-" else Path(name).name
    with io.BytesIO(sys.stdin.buffer.read()) if name == "-" else open(name, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        start = file.read(_START)
        file.seek(0)
        try:
            if start[:4] == b"PAR1":
                frame = _keep_digits(pd.read_parquet(file, engine="pyarrow"), file)
                # An index with a name was a column of the file; others only number the rows.
                frame = frame.reset_index(drop=all(label is None for label in frame.index.names))
            else:
                with io.TextIOWrapper(file, _guess_encoding(start), newline="") as lines:
                    frame = _read_csv(lines, decimal, text)
        except (ValueError, OSError, csv.Error, pd.errors.ParserWarning) as error:
            raise ValueError(
                f"{source} cannot be read as a table: {' '.join(str(error).split()).rstrip('.')}. A table is "
                "a CSV or TSV file in UTF-8 with a header, or a Parquet file. Save an Excel sheet as CSV, "
                "unpack a compressed file, convert other encodings by iconv, quote cells with delimiters."
            ) from None
    names = [str(name).strip() or f"column{place}" for place, name in enumerate(frame.columns, 1)]
    if repeated := [repr(name) for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{source} has more than one column named {', '.join(repeated)}; rename them.")
    if frame.empty:
        raise ValueError(f"{source} has a header but no rows; at least one row is needed.")
    return Table(_keep_whole(frame.set_axis(names, axis=1)), source, sha256)


def _keep_digits(frame: Any, file: Any) -> Any:
    """The frame of a Parquet file with the digits of large whole numbers, also where some are missing."""
    large = [
        place
        for place, (_, column) in enumerate(frame.items())
        if column.dtype == np.float64 and column.hasnans and column.abs().max() >= 2**53
    ]
    if large:
        file.seek(0)
        exact = pd.read_parquet(file, engine="pyarrow", dtype_backend="numpy_nullable")
        for place in large:
            if exact.dtypes.iloc[place].kind in "iu":
                frame.isetitem(place, exact.iloc[:, place])
    return frame


def _guess_encoding(start: bytes) -> str:
    """UTF-8 or, where every second byte is empty, UTF-16, with or without a mark at the beginning.

    >>> [_guess_encoding(text.encode(code)) for text, code in (("x,y", "utf-16-le"), ("x,y", "utf-8"))]
    ['utf-16-le', 'utf-8-sig']
    """
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    for name, empty, filled in (
        ("utf-16-le", start[1::2], start[::2]),
        ("utf-16-be", start[::2], start[1::2]),
    ):
        if len(empty) > 1 and 2 * empty.count(0) > len(empty) and not filled.count(0):
            return name
    return "utf-8-sig"


def _keep_whole(frame: Any) -> Any:
    """The frame with whole numbers kept whole where some are missing: a year is written 2021, not 2021.0."""
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        if column.dtype == np.float64 and column.hasnans:
            known = column.dropna()
            if len(known) and (known % 1 == 0).all() and known.abs().max() < 2**53:
                frame.isetitem(place, column.astype("Int64"))
    return frame


def _read_csv(lines: IO[str], decimal: str, text: Sequence[str]) -> Any:
    delimiter, (header, *rows) = _sniff(lines)
    if header[0].startswith("sep=") or all(map(is_number, header)):
        raise ValueError(f"its first line is {delimiter.join(header)!r}, not the names of the columns")
    # Where commas separate the cells, a comma inside a cell is not taken for a decimal comma.
    commas = decimal == "comma" or (
        decimal == "auto"
        and delimiter == ";"
        and any(
            _DECIMAL_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for row in rows for cell in row
        )
    )
    options: dict[str, Any] = {
        "sep": delimiter,
        "header": 0,
        "names": range(len(header)),
        "index_col": False,
        "na_values": _MISSING_WORDS,
        "low_memory": False,  # in parts, a column could come as numbers here and as text there
    }
    lines.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # cells beyond the header would be lost
        frame = pd.read_csv(lines, decimal="," if commas else ".", **options, **_EXACT)
    if frame.iloc[:, -1].isna().any():  # pandas fills up short rows silently
        lines.seek(0)
        reader = csv.reader(lines, delimiter=delimiter)
        for row in reader:
            if len(row) < len(header) and any(map(str.strip, row)):
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} cells, but the header has {len(header)}"
                )
    known = [place for place, name in enumerate(header) if name.strip() in text]
    if written := [place for place in known if frame[place].dtype.kind in "iuf"]:  # codes such as 007
        lines.seek(0)
        frame[written] = pd.read_csv(lines, dtype=str, usecols=written, **options)
    for place, column in frame.items():
        if getattr(column.dtype, "kind", "O") not in "iufb":
            mark = "comma" if commas else decimal
            frame[place] = column.astype("category") if place in known else _convert(column, mark)
    return frame.set_axis(header, axis=1)


def _sniff(text: IO[str]) -> tuple[str, list[list[str]]]:
    """The delimiter that cuts the first rows into equally many cells, or else the header into most cells."""
    found = {}
    for delimiter in "\t;,|":
        text.seek(0)
        rows = (row for row in csv.reader(text, delimiter=delimiter) if any(map(str.strip, row)))
        with suppress(csv.Error):  # a cell of more than 131 072 characters: not this delimiter
            found[delimiter] = list(islice(rows, _INSPECTED))
            if not found[delimiter]:
                raise ValueError("it is empty")
    if not found:
        raise ValueError("its cells are too long, whatever separates them")

    def rate(delimiter: str) -> tuple[bool, int, bool]:
        widths = [len(row) for row in found[delimiter]]
        is_even = len(set(widths)) == 1
        return is_even and widths[0] > 1, widths[0], is_even

    best = max(found, key=rate)
    return best, found[best]


def _convert(column: Any, decimal: str) -> Any:
    """A text column as numbers if all its cells are.

    pandas keeps integers of many digits, missing values with blanks around them, decimal points in a file of
    decimal commas, quoted decimal commas and marks between thousands as text.
    """
    known = [str(cell) for cell in column if not _is_missing(cell)]
    mark = "point" if all(map(is_number, known)) else _find_decimal_mark(known, decimal)
    if mark is None:
        return column
    between = "," if mark == "point" else "."

    def read(cell: Any) -> float:
        if _is_missing(cell):
            return np.nan
        text = str(cell)
        if is_number(text) and not (mark == "comma" and _GROUPED[mark].fullmatch(text)):
            return float(text)
        return float(text.replace(between, "").replace(",", "."))

    return np.array([read(cell) for cell in column])


def _find_decimal_mark(cells: list[str], decimal: str) -> str | None:
    """The decimal mark with which all of these cells are numbers; None if there is none, or no telling."""
    fits = {
        "point": all(is_number(cell) or _GROUPED["point"].fullmatch(cell) for cell in cells),
        "comma": all(
            (is_number(cell) and "." not in cell)
            or _DECIMAL_COMMA.fullmatch(cell)
            or _GROUPED["comma"].fullmatch(cell)
            for cell in cells
        ),
    }
    if decimal != "auto":
        return decimal if fits[decimal] else None
    possible = [mark for mark, fit in fits.items() if fit]
    return possible[0] if len(possible) == 1 else None


def _is_missing(cell: Any) -> bool:
    return str(cell).strip().lower() in MISSING


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
    check_format(name)
    ending = Path(name).suffix.lower()
    # Before Python 3.13, a carriage return is not quoted, which a reader takes for the end of a line.
    returns = frame.select_dtypes(exclude="number").map(lambda cell: "\r" in str(cell)).any(axis=None)
    style: dict[str, Any] = {"index": False, "lineterminator": "\n", "sep": "\t" if ending == ".tsv" else ","}
    style["quoting"] = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    if name == "-":
        frame.to_csv(sys.stdout, **style)
        return
    with open_replacement(name, "wb" if ending == ".parquet" else "w") as file:
        if ending == ".parquet":
            frame.to_parquet(file, engine="pyarrow", index=False)
        elif ending == ".json":
            file.write(
                json.dumps(to_plain(frame.astype(object).where(frame.notna(), None).to_dict("list"))) + "\n"
            )
        else:
            frame.to_csv(file, **style)


def check_format(path: str) -> None:
    """Raise unless a table can be written under this name: better before long work than after it."""
    if path == "-":
        return
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"{path!r} has no known format; use a name that ends in {', '.join(FORMATS)}, or -.")
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder of {path!r} does not exist; create it first.")
