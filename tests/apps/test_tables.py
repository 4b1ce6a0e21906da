"""Tables as people have them: each peculiarity works, or the message says what to do."""

import csv
import gzip
import io
import json
import math
import os
import string
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localw2.apps.tables.tables import MISSING, is_number, read_table, write_table


def save(folder, content, name="data.csv"):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def columns(folder, content, **options):
    return read_table(save(folder, content), **options).frame.to_dict("list")


def test_plain(tmp_path):
    table = read_table(save(tmp_path, "a,b\n1,2.5\n-3e2, 4 \n"))
    assert list(table.frame) == ["a", "b"]
    assert table.numbers(["b", "a"]).tolist() == [[2.5, 1], [4, -300]]
    assert table.numbers(["b", "a"]).flags.c_contiguous
    assert table.source == "data.csv"
    assert len(table.frame) == 2


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
        "a,b\n1,2,\n3,4,\n",
        "a|b\n1|2\n3|4\n",
        "a,b\n1,2\n3,4\n".encode("utf-16-le"),
        "a,b\n1,2\n3,4\n".encode("utf-16-be"),
        'a,b\n"1,0","2"\n"3,0","4,00"\n',
    ],
    ids=[
        "bom",
        "semicolon",
        "tab crlf",
        "cr",
        "empty lines",
        "quoted",
        "blanks",
        "decimal comma",
        "utf-16",
        "trailing delimiters",
        "vertical bars",
        "utf-16-le without a mark",
        "utf-16-be without a mark",
        "quoted decimal comma",
    ],
)
def test_one_table_in_many_dresses(content, tmp_path):
    assert columns(tmp_path, content) == {"a": [1, 3], "b": [2, 4]}


def test_quoted_newlines(tmp_path):
    table = read_table(save(tmp_path, 'note,x\n"one\ntwo",1\n\nplain,2\n"a, ""b""",oops\n'))
    assert table.frame["note"].tolist() == ["one\ntwo", "plain", 'a, "b"']
    with pytest.raises(ValueError, match=r"'x' of data.csv .*'oops' in row 3"):
        table.numbers(["x"])


def test_missing_values(tmp_path):
    table = read_table(save(tmp_path, "a,b,c\n1,NA,x\n,nan,\n3,null,N/A\n4,5,w\n"))
    assert table.frame["b"].isna().tolist() == [True, True, True, False]
    assert table.frame["c"].isna().tolist() == [False, True, True, False]
    with pytest.raises(ValueError, match=r"3 of 4 rows .* in a, b, .* row 1\. .*--drop-missing"):
        table.numbers(["a", "b"])
    np.testing.assert_array_equal(table.numbers(["a"], missing=True).ravel(), [1, np.nan, 3, 4])


def test_missing_values_with_blanks_leave_a_column_numeric(tmp_path):
    found = columns(tmp_path, "a,b\n1, na \n2,1234567890123456789012\n")
    np.testing.assert_array_equal(found["b"], [np.nan, 1234567890123456789012.0])


def test_text_is_kept_as_it_is(tmp_path):
    """A cell far down decides; the cells above it are not rewritten as numbers would be."""
    cells = ["01", "1e0", " 2", "5"] * 40_000 + ["?"]
    table = read_table(save(tmp_path, "x,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells))))
    assert table.frame["x"].tolist() == cells
    assert table.frame["y"].tolist() == list(range(len(cells)))


def test_a_numeric_column_with_a_text_is_read_as_categorical_with_a_warning(tmp_path):
    table = read_table(save(tmp_path, "x,day,size\n1,2024-01-31,s\n2,2024-02-01,4\nb?,2024-02-01,m\n"))
    assert table.features(["day", "size"]).shape == (3, 2)
    with pytest.warns(UserWarning, match=r"'x' of data.csv .*'b.' in row 3"):
        assert table.features(["day", "x"])["x"].tolist() == ["1", "2", "b?"]
    with pytest.raises(ValueError, match=r"'x' of data.csv must be numeric, but 'b.' in row 3"):
        table.numbers(["x"])
    with pytest.raises(ValueError, match=r"'day' of data.csv .*'2024-01-31' in row 1"):
        table.numbers(["day"])
    # Strings of digits in a typed file are meant as categories.
    codes = pd.DataFrame({"code": ["1", "2", "03"], "kind": pd.Categorical(["1", "2", "x"])})
    codes.to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").features(["code", "kind"]).shape == (3, 2)


def test_unknown_columns_suggest_known_ones(tmp_path):
    table = read_table(save(tmp_path, "Strength,age\n1,2\n"))
    with pytest.raises(ValueError, match=r"'strenght'.*mean 'Strength'"):
        table.numbers(["strenght"])
    with pytest.raises(ValueError, match=r"'zzz'.*Strength, age"):
        table.select(["Strength", "zzz"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,a,c,b\n1,2,3,4,5\n", "more than one column named 'a', 'b'"),
        ("", "empty"),
        ("\n\n", "empty"),
        ("1,2\n3,4\n", "'1,2', not the names"),
        ("a,b\n1,2\n1,2,3\n", "line 3"),
        ("a,b\n1,2,3\n1,2,3\n", "header"),
        ("a,b\n1,2\n3\n", "line 3 has 1 cells"),
        ("a,b,c\n1,2,3\n3,4\n5,6,\n", "line 3 has 2 cells"),
        ('a,b\n1,2\n"3,4\n5,6\n', "line|quote"),
        ("a,b\n1,\xe9\n".encode("latin1"), "0xe9.*iconv"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "compressed"),
        ("sep=;\na;b\n1;2\n", "'sep=;', not the names"),
        (b"PAR1 but not really", "Parquet"),
    ],
)
def test_what_cannot_be_read_says_why(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_table(save(tmp_path, content))


def test_no_rows_and_infinite_cells(tmp_path):
    with pytest.raises(ValueError, match="no rows"):
        read_table(save(tmp_path, "a,b\n"))
    table = read_table(save(tmp_path, "a,b\n1,2\n1,inf\n"))
    for read in (table.numbers, table.features):
        with pytest.raises(ValueError, match=r"'b' of data.csv .*'inf' in row 2 is infinite"):
            read(["a", "b"])


def test_hundreds_of_digits_are_too_large_in_words(tmp_path):
    (tmp_path / "t.csv").write_text(f"a,y\n1,2\n2,{'9' * 400}\n")
    with pytest.raises(ValueError, match="infinite"):
        read_table(tmp_path / "t.csv").numbers(["y"])


def test_a_blank_name_is_named_by_its_position(tmp_path):
    assert columns(tmp_path, ",x\n0,5\n1,6\n") == {"column1": [0, 1], "x": [5, 6]}


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_whole_numbers_with_gaps_stay_whole(name, tmp_path):
    years = pd.array([2019, None, 2021], dtype="Int64")
    write_table(tmp_path / name, pd.DataFrame({"year": years, "size": [1.5, np.nan, 2.0]}))
    table = read_table(tmp_path / name)
    np.testing.assert_array_equal(table.numbers(["year"], missing=True)[:, 0], [2019, np.nan, 2021])
    write_table(tmp_path / "again.csv", table.frame)
    assert (tmp_path / "again.csv").read_text() == "year,size\n2019,1.5\n,\n2021,2.0\n"
    write_table(tmp_path / "again.json", table.frame)
    assert json.loads((tmp_path / "again.json").read_text())["year"] == [2019, None, 2021]


def test_underscores_are_not_part_of_numbers(tmp_path):
    assert columns(tmp_path, "a,b\n1_000,2\n") == {"a": ["1_000"], "b": [2]}


def test_the_delimiter_is_that_of_the_rows_too(tmp_path):
    assert columns(tmp_path, "ratio a;b;c,x\n1,2\n3,4\n") == {"ratio a;b;c": [1, 3], "x": [2, 4]}


def test_decimal_commas_only_where_nothing_else_is_meant(tmp_path):
    thousands = save(tmp_path, "a;b\n1,234;1\n12,500;2\n")
    for read in (read_table(thousands).numbers, read_table(thousands).features):
        with pytest.raises(ValueError, match=r"'1,234' in row 1 .*--decimal comma"):
            read(["a"])
    assert read_table(thousands, decimal="comma").numbers(["a"]).ravel().tolist() == [1.234, 12.5]
    # Another column settles it.
    assert columns(tmp_path, "a;b\n1,234;0,5\n") == {"a": [1.234], "b": [0.5]}
    # A column may have the other mark, but not both.
    assert columns(tmp_path, "a;b\n1.5;0,5\n2;1,5\n") == {"a": [1.5, 2.0], "b": [0.5, 1.5]}
    mixed = read_table(save(tmp_path, "a;b\n1.5;1\n2,5;2\n"))
    assert mixed.frame["a"].tolist() == ["1.5", "2,5"]
    with pytest.raises(ValueError, match="'2,5' in row 2"):
        mixed.features(["a"])
    assert columns(tmp_path, "a;b\n1,5;1\n", decimal="point")["a"] == ["1,5"]
    assert columns(tmp_path, 'a,b\n"1,5",1\n', decimal="comma")["a"] == [1.5]
    with pytest.raises(ValueError, match="dot"):
        read_table(thousands, decimal="dot")


@pytest.mark.parametrize(
    ("cells", "decimal", "numbers"),
    [
        (["1,234,567", "-2,345.5", ""], "auto", [1234567, -2345.5, np.nan]),  # can only be thousands
        (["1,234", "0,5"], "auto", [1.234, 0.5]),  # can only be decimal commas
        (["1,234", "12,500"], "auto", None),  # may be either:
        (["1,234", "12,500"], "point", [1234, 12500]),
        (["1,234", "12,500"], "comma", [1.234, 12.5]),
        (["1.234,5", "12.500", "7"], "comma", [1234.5, 12500, 7]),
        (["1,2,3", "4,5,6"], "auto", None),  # neither
        (["1,23,456"], "point", None),
        (["1.5", "2,5"], "auto", None),
    ],
)
def test_marks_between_thousands(tmp_path, cells, decimal, numbers):
    rows = "".join(f'"{cell}",x\n' for cell in cells)
    found = columns(tmp_path, f"a,b\n{rows}", decimal=decimal)["a"]
    np.testing.assert_array_equal(found, [cell or np.nan for cell in cells] if numbers is None else numbers)


def test_an_ambiguous_comma_says_what_to_do(tmp_path):
    table = read_table(save(tmp_path, 'a,b\n"1,234",x\n'))
    with pytest.raises(ValueError, match=r"--decimal comma; if it separates thousands, add --decimal point"):
        table.features(["a"])


def test_a_line_longer_than_csv_allows_a_cell_is_read(tmp_path):
    """20 000 columns; where no delimiter cuts the line, it is one cell of 200 000 characters."""
    names = ",".join(f"column {j}" for j in range(20_000))
    assert read_table(save(tmp_path, f"{names}\n{',1' * 19_999}\n")).frame.shape == (1, 20_000)


def test_large_whole_numbers_keep_their_digits(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    numbers = pyarrow.array([2**60 + 1, None, 5])  # without a word of pandas, which would make them floats
    pyarrow.parquet.write_table(pyarrow.table({"id": numbers, "x": [1.0, 2.0, None]}), tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet").frame
    assert frame["id"][0] == 2**60 + 1
    assert frame["id"].isna().tolist() == [False, True, False]
    write_table(tmp_path / "again.csv", frame)
    assert (tmp_path / "again.csv").read_text().splitlines()[1].startswith("1152921504606846977,")


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,2\n3,4\n5,six\n")))
    table = read_table("-")
    assert table.source == "standard input"
    assert table.frame["b"].tolist() == ["2", "4", "six"]
    assert table.numbers(["a"]).ravel().tolist() == [1, 3, 5]


# --- read again what was written --------------------------------------------------------------------------


def is_missing(cell):
    return cell.strip().lower() in MISSING


numbers = st.floats(allow_nan=False, allow_infinity=False)
plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
# Words that pandas has for missing values or truth values are told apart by other tests.
a_word = plain_text.map("w{}".format)
a_number = numbers.map(repr) | st.integers(-(10**9), 10**9).map(str)
a_gap = st.sampled_from(["", "NA", "NaN", "null"])
names = st.text(string.ascii_letters + " _-'\"\n()", min_size=1, max_size=6).map(str.strip).filter(bool)


@st.composite
def tables_of_cells(draw):
    n = draw(st.integers(1, 7))
    header = draw(st.lists(names.filter(lambda v: not is_number(v)), min_size=1, max_size=4, unique=True))
    cells = []
    for _ in header:
        column = draw(st.lists(a_number | a_gap, min_size=n, max_size=n))
        if draw(st.booleans()):
            column = draw(st.lists(a_number | a_gap | a_word, min_size=n, max_size=n))
            column[draw(st.integers(0, n - 1))] = draw(a_word)
        cells.append(column)
    return header, cells


@settings(max_examples=150, deadline=None)
@given(
    tables_of_cells(),
    st.sampled_from([",", "\t"]),
    st.sampled_from([("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]),
)
def test_what_csv_writes_is_read_again(tmp_path_factory, table, delimiter, ends):
    header, cells = table
    path = tmp_path_factory.getbasetemp() / "random.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=ends[0], quoting=ends[1])
        writer.writerow(header)
        writer.writerows(zip(*cells, strict=True))
    found = read_table(path)
    assert list(found.frame) == header
    for name, column in zip(header, cells, strict=True):
        if all(is_missing(cell) or is_number(cell) for cell in column):
            expected = [math.nan if is_missing(cell) else float(cell) for cell in column]
            np.testing.assert_array_equal(found.numbers([name], missing=True)[:, 0], expected)
        else:
            expected = [None if is_missing(cell) else cell for cell in column]
            assert (
                found.frame[name].astype(object).where(found.frame[name].notna(), None).tolist() == expected
            )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_infinity=False), min_size=1, max_size=20),
    st.sampled_from(["t.csv", "t.tsv", "t.parquet"]),
)
def test_every_digit_survives(tmp_path_factory, values, name):
    path = tmp_path_factory.getbasetemp() / name
    write_table(path, {"row": np.arange(len(values)), "x": values})
    found = read_table(path)
    np.testing.assert_array_equal(found.numbers(["x"], missing=True)[:, 0], values)
    assert found.frame["row"].tolist() == list(range(len(values)))


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=20).filter(lambda v: any(x % 1 for x in v)))
def test_every_digit_survives_a_decimal_comma(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "comma.csv"
    path.write_text("x;y\n" + "".join(f"{v!r};1\n".replace(".", ",") for v in values))
    np.testing.assert_array_equal(read_table(path, decimal="comma").numbers(["x"])[:, 0], values)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_written_text_is_read_again(name, tmp_path):
    words = [f'w"{i},\n;{chr(i)}' for i in range(1, 50)]
    frame = pd.DataFrame({"word": words, "gap": [None, *words[1:]]})
    write_table(tmp_path / name, frame)
    found = read_table(tmp_path / name).frame
    assert found["word"].tolist() == words
    assert found["gap"].isna().tolist() == frame["gap"].isna().tolist()
    assert found["gap"].tolist()[1:] == words[1:]
    assert os.listdir(tmp_path) == [name]


def test_json_has_no_words_for_what_is_not_finite(tmp_path):
    write_table(tmp_path / "t.json", {"x": np.array([1.0, np.nan, np.inf, -np.inf]), "row": np.arange(4)})
    text = (tmp_path / "t.json").read_text()
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found == {"x": [1.0, None, None, None], "row": [0, 1, 2, 3]}


def test_parquet_types(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"i": [1, None], "b": [True, False], "s": ["u", None], "n": arrow.nulls(2)})
    table = table.append_column("d", arrow.array([1, 2], arrow.date32()))
    table = table.append_column("m", arrow.array(["1.50", "2.25"]).cast(arrow.decimal128(5, 2)))
    parquet.write_table(table, tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    np.testing.assert_array_equal(
        found.numbers(["i", "b", "n", "m"], missing=True), [[1, 1, np.nan, 1.5], [np.nan, 0, np.nan, 2.25]]
    )
    assert found.frame["s"].isna().tolist() == [False, True]
    with pytest.raises(ValueError, match=r"'d' .*'1970-01-02' in row 1"):
        found.numbers(["d"])


def test_an_index_with_a_name_is_a_column(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0]}, index=pd.Index(["a", "b", "c"], name="who"))
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").frame.to_dict("list") == {
        "who": ["a", "b", "c"],
        "x": [1, 2, 3],
    }
    frame.reset_index(drop=True)[1:].to_parquet(tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet").frame
    assert (list(found), found.index.tolist()) == (["x"], [0, 1])


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = save(tmp_path, "old")
    with pytest.raises(ValueError, match="length"):
        write_table(path, {"a": np.arange(3), "b": np.arange(2)})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["data.csv"]
    with pytest.raises(ValueError, match="folder"):
        write_table(make_folder(tmp_path / "d.csv"), {"a": [1]})
    with pytest.raises(FileNotFoundError, match="folder"):
        write_table(tmp_path / "no" / "t.csv", {"a": [1]})
    with pytest.raises(ValueError, match=r"'t.xls' .*\.csv, \.tsv"):
        write_table("t.xls", {"a": [1]})


def make_folder(path):
    path.mkdir()
    return path


@pytest.mark.slow
def test_a_million_rows_need_moderate_memory(tmp_path):
    """Nine columns of a million numbers are 72 MB, and their text is 180 MB."""
    row = ",".join(map(repr, np.random.default_rng(0).normal(size=9).tolist()))
    path = tmp_path / "million.csv"
    with open(path, "w") as file:
        file.write(",".join("abcdefghi") + "\n")
        file.writelines(f"{row}\n" for _ in range(1_000_000))
    code = (
        "import resource, sys; from localw2.apps.tables.tables import read_table\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "table = read_table(sys.argv[1])\n"
        "print(len(table.frame), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    found = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    n_rows, megabytes = map(int, found.stdout.split())
    assert n_rows == 1_000_000
    assert megabytes < 500
