"""Long tables: what the columns say, whatever the order of rows and the kind of frame, and what is wrong."""

import warnings

import numpy as np
import pandas as pd
import pytest

from localw2.estimators.dynamics.long_tables import LongTable

ROLES = {
    "subject": "who",
    "time": "h",
    "observed": "conc",
    "dose": "mg",
    "duration": "over",
    "covariates": "kg",
}


@pytest.fixture
def frame():
    """Two people, own times, a dose row, a dose beside an observation, an infusion."""
    return pd.DataFrame(
        {
            "who": ["b", "b", "b", "a", "a", "a", "a"],
            "h": [0.0, 1.0, 2.0, 0.0, 0.5, 3.0, 5.0],
            "conc": [np.nan, 4.0, 2.0, 0.1, np.nan, 1.0, 0.5],
            "mg": [100.0, np.nan, 0.0, 50.0, 20.0, np.nan, np.nan],
            "over": [np.nan, np.nan, np.nan, 0.0, 0.25, np.nan, np.nan],
            "kg": [70.0, np.nan, 70.0, 60.0, 60.0, np.nan, 60.0],
            "state": [0, 0, 0, 1, 0, 0, 0],
            "light": [1.0, 2.0, np.nan, 5.0, np.nan, np.nan, 10.0],
        }
    )


def same(one, other):
    assert one.subjects == other.subjects
    for a, b in zip(one.Y, other.Y, strict=True):
        np.testing.assert_array_equal(a, b)
    for name in one.doses:
        order = [np.lexsort((table.doses["time"], table.doses["subject"])) for table in (one, other)]
        np.testing.assert_array_equal(one.doses[name][order[0]], other.doses[name][order[1]])
    np.testing.assert_array_equal(one.covariates["kg"], other.covariates["kg"])


def test_the_columns_are_read(frame):
    table = LongTable.of(frame, **ROLES, dose_state="state", inputs=["light"])
    assert table.subjects == ["a", "b"]
    np.testing.assert_array_equal(table.t, [0.0, 1.0, 2.0, 3.0, 5.0])
    nan = np.nan
    np.testing.assert_array_equal(table.Y[..., 0], [[0.1, nan, nan, 1.0, 0.5], [nan, 4.0, 2.0, nan, nan]])
    assert sorted(
        zip(*(table.doses[name].tolist() for name in ("subject", "time", "amount")), strict=True)
    ) == [
        (0, 0.0, 50.0),
        (0, 0.5, 20.0),
        (1, 0.0, 100.0),
    ]
    assert table.doses["duration"].tolist() == [0.0, 0.0, 0.25]
    assert table.doses["state"].tolist() == [0, 1, 0]
    np.testing.assert_array_equal(table.covariates["kg"], [60.0, 70.0])
    knots, values = table.inputs["light"]
    np.testing.assert_array_equal(knots, [0.0, 1.0, 5.0])
    np.testing.assert_allclose(values, [[5.0, 6.0, 10.0], [1.0, 2.0, 2.0]])


def test_order_of_rows_and_kind_of_frame_do_not_matter(frame):
    table = LongTable.of(frame, **ROLES)
    same(table, LongTable.of(frame.sample(frac=1, random_state=0), **ROLES))
    same(table, LongTable.of({name: list(column) for name, column in frame.items()}, **ROLES))
    same(table, LongTable.of(frame.convert_dtypes(), **ROLES))
    text = frame.astype(object).where(frame.notna(), ".").map(str)  # as a table of NONMEM is read
    same(table, LongTable.of(text, **ROLES))
    polars = pytest.importorskip("polars")
    same(
        table, LongTable.of(polars.DataFrame({name: list(column) for name, column in frame.items()}), **ROLES)
    )


def test_labels_are_kept():
    rows = {"id": [10, 2, 10, 2], "t": [0.0, 0.0, 1.0, 1.0], "y": [1.0, 2.0, 3.0, 4.0]}
    table = LongTable.of(rows, subject="id", time="t", observed="y")
    assert table.subjects == [2, 10]
    np.testing.assert_array_equal(table.Y[..., 0], [[2.0, 4.0], [1.0, 3.0]])
    rows["id"] = ["10", "2", "10", "2"]
    assert LongTable.of(rows, subject="id", time="t", observed="y").subjects == ["10", "2"]
    np.testing.assert_array_equal(table.of_subjects("id"), [2, 10])


def test_own_times_make_lists():
    rng = np.random.default_rng(0)
    own = [np.sort(rng.uniform(size=n)) for n in (3, 5, 4)]
    rows = {"id": np.repeat([0, 1, 2], [3, 5, 4]), "t": np.concatenate(own), "y": np.concatenate(own) + 1}
    table = LongTable.of(rows, subject="id", time="t", observed="y")
    for i in range(3):
        np.testing.assert_array_equal(table.t[i], own[i])
        np.testing.assert_array_equal(table.Y[i][:, 0], own[i] + 1)


def test_a_column_may_say_which_quantity_a_row_has():
    long = {"id": [1, 1, 1, 2], "t": [0.0, 0.0, 1.0, 1.0], "dv": [5.0, 7.0, 6.0, 8.0], "dvid": [1, 2, 2, 1]}
    table = LongTable.of(long, subject="id", time="t", observed="dv", quantity="dvid")
    assert table.quantities == ["1", "2"]
    nan = np.nan
    np.testing.assert_array_equal(table.Y, [[[5.0, 7.0], [nan, 6.0]], [[nan, nan], [8.0, nan]]])
    wide = {"id": [1, 1, 2], "t": [0.0, 1.0, 1.0], "a": [5.0, nan, 8.0], "b": [7.0, 6.0, nan]}
    np.testing.assert_array_equal(table.Y, LongTable.of(wide, subject="id", time="t", observed=["a", "b"]).Y)
    long["dvid"][3] = None
    with pytest.raises(ValueError, match=r"row 4.*does not say of what"):
        LongTable.of(long, subject="id", time="t", observed="dv", quantity="dvid")


def test_events_say_which_cells_count():
    rows = {
        "id": [1, 1, 2, 2],
        "t": [0.0, 1.0, 0.0, 1.0],
        "dv": [0.0, 3.0, 0.0, 4.0],
        "amt": [9.0, 0, 8.0, 0],
    }
    rows["evid"] = [1, 0, 1, 0]
    roles = {"subject": "id", "time": "t", "observed": "dv", "dose": "amt", "event": "evid"}
    table = LongTable.of(rows, **roles)
    np.testing.assert_array_equal(table.Y[..., 0], [[3.0], [4.0]])
    assert table.first == 0.0
    rows["evid"] = [1, 0, 4, 0]
    with pytest.raises(ValueError, match="started anew"):
        LongTable.of(rows, **roles)
    rows["evid"], rows["amt"] = [1, 1, 1, 0], [9.0, 0, 8.0, 0]
    with pytest.raises(ValueError, match=r"row 2.*no amount"):
        LongTable.of(rows, **roles)


def test_one_dose_in_every_row():
    rows = {"id": np.repeat([1, 2], 3), "t": np.tile([1.0, 2.0, 3.0], 2), "y": np.arange(6.0)}
    rows["mg"] = np.repeat([10.0, 20.0], 3)
    roles = {"subject": "id", "time": "t", "observed": "y", "dose": "mg"}
    with pytest.warns(UserWarning, match="dose_time"):
        assert len(LongTable.of(rows, **roles).doses["amount"]) == 6
    table = LongTable.of(rows, **roles, dose_time=0.0, duration=0.5, dose_state=1)
    assert table.doses["amount"].tolist() == [10.0, 20.0]
    assert table.doses["time"].tolist() == [0.0, 0.0]
    assert table.doses["duration"].tolist() == [0.5, 0.5]
    assert table.doses["state"].tolist() == [1, 1]
    assert table.first == 0.0


def put(name, row, value):
    def change(frame):
        frame.loc[row, name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("who", 2, None), "'who'.*row 3"),
        (put("h", 2, np.nan), "'h'.*row 3"),
        (put("h", 2, 1.0), "row 3 of the table is the second with who = b and h = 1"),
        (put("kg", 2, 71.0), "row 3.*kg = 71.*inputs"),
        (put("kg", slice(0, 2), np.nan), "'kg'.*who = b"),
        (put("over", 4, -1.0), "row 5.*duration -1"),
        (put("over", 5, 2.0), "row 6.*no amount"),
        (put("mg", 0, -5.0), "row 1.*amount -5"),
        (put("conc", slice(0, 2), np.nan), "who = b.*no observation"),
        (put(["h", "state"], 4, [0.0, 1]), "row 5.*second dose"),
        (put("light", [0, 1, 2], np.nan), "no value of the input"),
        (put("state", 3, np.nan), "row 4.*to which state"),
        (put("conc", 1, np.inf), "infinite"),
    ],
)
def test_what_is_wrong_is_said(frame, change, message):
    change(frame)
    with pytest.raises(ValueError, match=message):
        LongTable.of(frame, **ROLES, dose_state="state", inputs="light")


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"observed": "cons"}, "Did you mean 'conc'"),
        ({"covariates": "body weight"}, "name of its own"),
        ({"covariates": "kg", "inputs": "kg"}, "both"),
        ({"observed": ["conc", "kg"], "quantity": "who"}, "name one"),
        ({"dose": None}, "dose="),
        ({"covariates": "who"}, "must be numeric, but 'b' in row 1"),
    ],
)
def test_wrong_names_are_said(frame, roles, message):
    with pytest.raises(ValueError, match=message):
        LongTable.of(frame, **(ROLES | roles))


def test_what_is_no_table():
    with pytest.raises(ValueError, match="data frame"):
        LongTable.of([1, 2], subject="a", time="b")
    with pytest.raises(ValueError, match="no rows"):
        LongTable.of({"a": [], "b": []}, subject="a", time="b")


def test_a_course_shared_by_rows_of_one_time(frame):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twice = pd.concat([frame, frame.iloc[[1]].assign(conc=np.nan)])
        table = LongTable.of(twice, **ROLES, inputs="light")
    np.testing.assert_allclose(table.inputs["light"][1][1], [1.0, 2.0, 2.0])
    twice.iloc[-1, twice.columns.get_loc("light")] = 3.0
    with pytest.raises(ValueError, match="one value at a time"):
        LongTable.of(twice, **ROLES, inputs="light")


def test_dates_are_refused_and_large_labels_stay_apart():
    times = pd.to_datetime(["2024-01-01", "2024-01-02"])
    for column in (times, times - times[0]):
        with pytest.raises(ValueError, match="dates or durations"):
            LongTable.of({"who": [1, 1], "h": column, "y": [1.0, 2.0]}, subject="who", time="h", observed="y")
    who = [2**53, 2**53 + 1]
    table = LongTable.of(
        {"who": who, "h": [0.0, 1.0], "y": [1.0, 2.0]}, subject="who", time="h", observed="y"
    )
    assert table.subjects == who
