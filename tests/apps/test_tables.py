"""Tables as people have them: each torture works, or the message says exactly what to do."""

import csv
import io
import json
import math
import os
import string
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localw2.apps.tables import csv as csv_tables
from localw2.apps.tables import tables
from localw2.apps.tables.csv import is_missing, number_in
from localw2.apps.tables.tables import read_table, write_table


def saved(folder, content, name="data.csv"):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def columns(folder, content):
    return {k: v.tolist() for k, v in read_table(saved(folder, content)).columns.items()}


def test_plain(tmp_path):
    table = read_table(saved(tmp_path, "a,b\n1,2.5\n-3e2, 4 \n"))
    assert table.names == ("a", "b")
    assert table.numbers(["b", "a"]).tolist() == [[2.5, 1], [4, -300]]
    assert table.lines.tolist() == [2, 3]
    assert table.source == "data.csv"


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffa,b\n1,2\n3,4\n",
        "a;b\n1;2\n3;4\n",
        "a\tb\r\n1\t2\r\n3\t4\r\n",
        "a,b\r1,2\r3,4",
        "\n\na,b\n\n1,2\n   \n3,4\n\n\n",
        '"a","b"\n"1","2"\n"3","4"\n',
        " a , b\n 1, 2\n3 ,4\n",
        "a;b\n1,0;2\n3,0;4,00\n",
        "a,b\n1,2\n3,4\n".encode("utf-16"),
    ],
    ids=["bom", "semicolon", "tab crlf", "cr", "empty lines", "quoted", "blanks", "decimal comma", "utf-16"],
)
def test_one_table_in_many_dresses(content, tmp_path):
    assert columns(tmp_path, content) == {"a": [1, 3], "b": [2, 4]}


def test_quoted_newlines_keep_the_lines_of_the_file(tmp_path):
    table = read_table(saved(tmp_path, 'note,x\n"one\ntwo",1\n\nplain,2\n"a, ""b""",oops\n'))
    assert table.columns["note"].tolist() == ["one\ntwo", "plain", 'a, "b"']
    assert table.lines.tolist() == [2, 5, 6]
    with pytest.raises(ValueError, match=r"column 'x' of data.csv holds text: 'oops' on line 6 is no number"):
        table.numbers(["x"])


def test_missing_values(tmp_path):
    table = read_table(saved(tmp_path, "a,b,c\n1,NA,x\n,nan,y\n3,null,z\n4,5,w\n"))
    assert np.isnan(table.columns["b"]).tolist() == [True, True, True, False]
    with pytest.raises(
        ValueError, match=r"3 of 4 rows .* missing values in a, b, .* line 2.* --drop-missing"
    ):
        table.numbers(["a", "b"])
    kept = table.rows(table.complete(["a"]))
    assert kept.numbers(["a"]).ravel().tolist() == [1, 3, 4]
    assert kept.columns["c"].tolist() == ["x", "z", "w"]
    assert kept.lines.tolist() == [2, 4, 5]


def test_dates_are_text_and_only_told_of_if_asked_for(tmp_path):
    table = read_table(saved(tmp_path, "day,x\n2024-01-31,1\n2024-02-01,2\n"))
    assert table.numbers(["x"]).shape == (2, 1)
    assert not table.mostly_numbers("day")
    with pytest.raises(ValueError, match="'2024-01-31' on line 2 is no number"):
        table.numbers(["x", "day"])


def test_a_bad_cell_far_down_keeps_the_text_above_it(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "_CHUNK", 3)
    cells = ["01", "1e0", " 2", "NA", "5", "6", "7", "?", "9"]
    table = read_table(saved(tmp_path, "x,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells))))
    assert table.columns["x"].tolist() == cells
    assert table.columns["y"].tolist() == list(range(9))
    assert table.bad["x"].cell == "?"
    assert table.bad["x"].line == 9
    assert table.mostly_numbers("x")


def test_unknown_columns_name_the_near_ones(tmp_path):
    table = read_table(saved(tmp_path, "Strength,age\n1,2\n"))
    with pytest.raises(ValueError, match=r"no column 'strenght'. Did you mean 'Strength'\?"):
        table.numbers(["strenght"])
    with pytest.raises(ValueError, match=r"no column 'zzz'. Its columns are Strength, age."):
        table.column("zzz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,a,c,b\n1,2,3,4,5\n", "more than one column named 'a', 'b'; rename"),
        ("", "is empty; it needs a header"),
        ("\n\n", "is empty; it needs a header"),
        ("1,2\n3,4\n", r"first line of data.csv holds numbers only \(1, 2\)"),
        ("a,b\n1,2\n1,2,3\n", "line 3 of data.csv has 3 cells, the header 2"),
        ("a,b\n1,2\n3\n", "line 3 of data.csv has 1 cells, the header 2"),
        ('a,b\n1,2\n"3,4\n5,6\n', "no valid CSV after line 2"),
        ("a,b\n1,\xe9\n".encode("latin1"), r"is not UTF-8 text .*0xe9.* iconv"),
        (b"PK\3\4 and so on", "zip or Excel file; save the sheet as CSV"),
        (b"\x1f\x8b and so on", "is compressed; .*gunzip"),
        ("sep=;\na;b\n1;2\n", "is 'sep=;', a note to Excel. Remove it"),
        (b"PAR1 but not really", "no valid Parquet file"),
    ],
)
def test_what_cannot_be_read_says_why(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_table(saved(tmp_path, content))


def test_no_rows_and_infinite_cells(tmp_path):
    with pytest.raises(ValueError, match="has a header but no rows"):
        read_table(saved(tmp_path, "a,b\n")).numbers(["a"])
    with pytest.raises(ValueError, match=r"'b' of data.csv is infinite on line 3"):
        read_table(saved(tmp_path, "a,b\n1,2\n1,inf\n")).numbers(["a", "b"])


def test_a_blank_name_is_named_by_its_place(tmp_path):
    assert columns(tmp_path, ",x\n0,5\n1,6\n") == {"column1": [0, 1], "x": [5, 6]}


def test_underscores_are_no_part_of_numbers(tmp_path):
    assert columns(tmp_path, "a,b\n1_000,2\n") == {"a": ["1_000"], "b": [2]}


def test_the_delimiter_is_that_of_the_rows_too(tmp_path):
    assert columns(tmp_path, "ratio a;b;c,x\n1,2\n3,4\n") == {"ratio a;b;c": [1, 3], "x": [2, 4]}


def test_decimal_commas_only_where_nothing_else_is_meant(tmp_path):
    thousands = saved(tmp_path, "a;b\n1,234;1\n12,500;2\n")
    with pytest.raises(ValueError, match=r"'1,234' on line 2 .*thousands or decimals.*--decimal comma"):
        read_table(thousands).numbers(["a"])
    assert read_table(thousands, decimal="comma").numbers(["a"]).ravel().tolist() == [1.234, 12.5]
    # Another column settles it.
    assert columns(tmp_path, "a;b\n1,234;0,5\n") == {"a": [1.234], "b": [0.5]}
    mixed = read_table(saved(tmp_path, "a;b\n1.5;1\n2,5;2\n"))
    assert mixed.columns["a"].tolist() == ["1.5", "2,5"]
    with pytest.raises(
        ValueError, match=r"'2,5' on line 3 .*other cells of this column have a decimal point"
    ):
        mixed.numbers(["a"])
    point = read_table(saved(tmp_path, "a;b\n1,5;1\n"), decimal="point")
    assert point.columns["a"].tolist() == ["1,5"]
    with pytest.raises(ValueError, match="decimal='dot' is not known"):
        read_table(thousands, decimal="dot")


def test_standard_input_may_turn_to_text_late(monkeypatch):
    monkeypatch.setattr(csv_tables, "_CHUNK", 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,2\n3,4\n5,six\n")))
    table = read_table("-")
    assert table.source == "standard input"
    assert table.columns["b"].tolist() == ["2", "4", "six"]
    assert table.numbers(["a"]).ravel().tolist() == [1, 3, 5]


# --- read again what was written --------------------------------------------------------------------------

plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
a_word = plain_text.filter(lambda cell: not is_missing(cell) and number_in(cell) is None)
a_number = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-(10**9), 10**9).map(str)
a_gap = st.sampled_from(["", "NA", "NaN", "null", " na "])
names = st.text(string.ascii_letters + " _-'\"\n()", min_size=1, max_size=6).map(str.strip).filter(bool)


@st.composite
def tables_of_cells(draw):
    n = draw(st.integers(1, 7))
    header = draw(st.lists(names.filter(lambda v: number_in(v) is None), min_size=1, max_size=4, unique=True))
    cells = []
    for _ in header:
        if draw(st.booleans()):
            cells.append(draw(st.lists(a_number | a_gap, min_size=n, max_size=n)))
        else:
            column = draw(st.lists(a_number | a_gap | plain_text, min_size=n, max_size=n))
            column[draw(st.integers(0, n - 1))] = draw(a_word)
            cells.append(column)
    return header, cells


@settings(max_examples=150, deadline=None)
@given(
    tables_of_cells(),
    st.sampled_from([",", "\t"]),
    st.sampled_from([("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]),
    st.integers(1, 4),
)
def test_what_csv_writes_is_read_again(tmp_path_factory, table, delimiter, ends, chunk):
    header, cells = table
    path = tmp_path_factory.getbasetemp() / "random.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=ends[0], quoting=ends[1])
        writer.writerow(header)
        writer.writerows(zip(*cells, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_tables, "_CHUNK", chunk)
        found = read_table(path)
    assert found.names == tuple(header)
    for name, column in zip(header, cells, strict=True):
        if all(is_missing(cell) or number_in(cell) is not None for cell in column):
            expected = [math.nan if is_missing(cell) else float(cell) for cell in column]
            np.testing.assert_array_equal(found.columns[name], expected)
        else:
            assert found.columns[name].tolist() == column


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_written_tables_are_read_with_every_digit(name, tmp_path):
    values = np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25)
    values[3] = np.nan
    words = np.array([f'w"{i},\n;{chr(i)}' for i in range(50)], object)
    write_table(tmp_path / name, {"row": np.arange(50), "x": values, "word": words})
    found = read_table(tmp_path / name)
    np.testing.assert_array_equal(found.columns["x"], values)
    np.testing.assert_array_equal(found.columns["row"], np.arange(50))
    assert found.columns["word"].tolist() == words.tolist()
    assert os.listdir(tmp_path) == [name]


def test_json_has_no_words_for_what_is_not_finite(tmp_path):
    write_table(tmp_path / "t.json", {"x": np.array([1.0, np.nan, np.inf, -np.inf]), "row": np.arange(4)})
    text = (tmp_path / "t.json").read_text()
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found == {"x": [1.0, None, None, None], "row": [0, 1, 2, 3]}


def test_parquet_is_read_in_row_groups(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    numbers = [None, *range(1, 25)]
    table = arrow.table({"a": numbers, "day": [None, "", *(f"d{i}" for i in range(23))], "b": [True] * 25})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    monkeypatch.setattr(parquet, "read_table", None)  # which would hold all of it twice
    found = read_table(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found.columns["a"], [np.nan, *range(1, 25)])
    assert found.columns["day"].tolist() == ["", "", *(f"d{i}" for i in range(23))]
    assert found.columns["b"].tolist() == [1.0] * 25
    assert (found.bad["day"].cell, found.bad["day"].line) == ("d0", 3)
    assert found.n_rows == 25


def test_parquet_types(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"i": [1, None], "b": [True, False], "s": ["u", None], "n": arrow.nulls(2)})
    table = table.append_column("d", arrow.array([1, 2], arrow.date32()))
    parquet.write_table(table, tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found.columns["i"], [1, np.nan])
    np.testing.assert_array_equal(found.columns["b"], [1, 0])
    assert np.isnan(found.columns["n"]).all()
    assert found.columns["s"].tolist() == ["u", ""]
    with pytest.raises(ValueError, match=r"column 'd' .*the column's type is date32"):
        found.numbers(["d"])


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = saved(tmp_path, "old")
    with pytest.raises(ValueError, match="argument 2"):
        write_table(path, {"a": np.arange(3), "b": np.arange(2)})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["data.csv"]
    with pytest.raises(ValueError, match="is a folder"), tables.replaced(tmp_path, "w"):
        pass
    with pytest.raises(FileNotFoundError, match="does not exist; create it first"):
        write_table(tmp_path / "no" / "t.csv", {"a": [1]})
    with pytest.raises(ValueError, match=r"'t.xls' says no format; let the name end in .csv, .tsv"):
        write_table("t.xls", {"a": [1]})


@pytest.mark.slow
def test_a_million_rows_need_little_more_than_their_numbers(tmp_path):
    """Nine columns of a million numbers are 72 MB; their text, held as a whole, would be over a gigabyte."""
    import subprocess

    row = ",".join(map(repr, np.random.default_rng(0).normal(size=9).tolist()))
    path = tmp_path / "million.csv"
    with open(path, "w") as file:
        file.write(",".join("abcdefghi") + "\n")
        file.writelines(f"{row}\n" for _ in range(1_000_000))
    code = (
        "import resource, sys; from localw2.apps.tables.tables import read_table\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "table = read_table(sys.argv[1])\n"
        "assert not table.bad\n"
        "print(table.n_rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    found = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    n_rows, megabytes = map(int, found.stdout.split())
    assert n_rows == 1_000_000
    assert megabytes < 300
