"""How tables become numbers: kinds of columns, what is left out, what is pointed out, and files."""

import datetime
import json
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from localw2 import BallLaw, LocalW2Regressor, RandomCoefficientRegressor
from localw2.estimators.regression.category_codes import CategoryCodes
from localw2.estimators.tables import (
    MOST_CATEGORIES,
    MOST_CODES,
    Columns,
    from_stored_encoder,
    read_rows,
    read_table,
)

N = 60


class Table(BaseEstimator):
    """What the functions want of an estimator."""


def read(X, y=None):
    """x, the columns and an estimator that has noted them; any warning fails the test."""
    estimator = Table()
    y = np.random.default_rng(9).normal(size=len(X)) if y is None else y
    x, _, columns = read_table(estimator, X, y)
    return x, columns, estimator


def numbers(n=N, seed=0):
    return np.random.default_rng(seed).normal(size=n)


def mixed(n=N, seed=0):
    """Numbers with gaps, text with gaps, codes, true and false, dates, durations."""
    rng = np.random.default_rng(seed)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 90, n), unit="D")
    frame = pd.DataFrame({"dose": rng.normal(size=n), "site": rng.choice(["north", "south", "west"], n)})
    frame["grade"] = pd.Categorical(rng.integers(3, size=n))
    frame["lit"] = rng.random(n) < 0.5
    frame["day"] = day
    frame["wait"] = pd.to_timedelta(rng.integers(0, 90, n), unit="h")
    frame.loc[::7, "dose"] = np.nan
    frame.loc[::11, "site"] = None
    return frame


class TestEncode:
    def test_complete_numbers_stay_as_they_are_and_expand_gives_the_same_object(self):
        x = np.random.default_rng(0).normal(size=(30, 3))
        for given in (x, pd.DataFrame(x), x.tolist(), torch.tensor(x)):
            found, columns, estimator = read(given)
            np.testing.assert_array_equal(found, x)
            assert columns.plain
            assert columns.width == columns.expanded_width == 3
            assert columns.expand(found) is found
            np.testing.assert_array_equal(read_rows(estimator, given, columns), x)

    def test_every_kind_of_column(self):
        frame = mixed()
        x, columns, _ = read(frame)
        assert columns.used_names == list(frame.columns)
        assert columns.categorical == [1, 2]
        assert columns.categories[1] == ("north", "south", "west")
        assert columns.categories[2] == ("0", "1", "2")
        assert (columns.dates, columns.durations, columns.gaps) == ((4,), (5,), (0, 1))
        by_hand = [
            frame["dose"],
            frame["site"].map({"north": 0, "south": 1, "west": 2}),
            frame["grade"].astype(float),
            frame["lit"].astype(float),
            (frame["day"] - pd.Timestamp("1970-01-01")).dt.days,
            frame["wait"].dt.total_seconds() / 86400,
        ]
        np.testing.assert_allclose(x, np.column_stack(by_hand).astype(float), rtol=1e-15)

    def test_the_order_of_rows_does_not_matter(self):
        frame, order = mixed(), np.random.default_rng(1).permutation(N)
        x, columns, estimator = read(frame)
        again, others, _ = read(frame.iloc[order])
        np.testing.assert_array_equal(again, x[order])
        assert others.to_stored() == columns.to_stored()
        np.testing.assert_array_equal(read_rows(estimator, frame.iloc[order], columns), x[order])
        np.testing.assert_array_equal(read_rows(estimator, frame[3:4], columns), x[3:4])

    def test_an_array_of_objects_is_known_again(self):
        frame = mixed()
        x, columns, estimator = read(frame)
        vars(estimator).pop("feature_names_in_")
        np.testing.assert_allclose(
            read_rows(estimator, frame.astype(object).to_numpy(), columns), x, rtol=1e-15
        )

    @pytest.mark.parametrize("kind", ["object", "missing", "decimal", "Float64", "Int64"])
    def test_numbers_of_any_type_are_numbers(self, kind):
        rng = np.random.default_rng(0)
        x = pd.DataFrame({"a": rng.integers(-50, 50, 80).astype(float), "c": rng.choice(["u", "v"], 80)})
        if kind in ("missing", "Float64", "Int64"):
            x.loc[::9, "a"] = np.nan
        convert = {
            "object": lambda a: a.astype(object),
            "missing": lambda a: a.astype(object).where(a.notna(), None),
            "decimal": lambda a: a.map(Decimal),
        }
        converted = convert.get(kind, lambda a: a.astype(kind))(x["a"])
        np.testing.assert_array_equal(read(x.assign(a=converted))[0], read(x)[0])

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: np.ma.masked_array(np.nan_to_num(x, nan=-999.0), np.isnan(x)),
            lambda x: np.where(np.isnan(x), None, x.astype(object)),
            lambda x: [[None if np.isnan(v) else v for v in row] for row in x.tolist()],
            torch.tensor,
        ],
    )
    def test_missing_values_in_other_tables(self, make):
        x = np.random.default_rng(1).normal(size=(40, 2))
        x[3, 1] = np.nan
        found, columns, estimator = read(make(x))
        np.testing.assert_array_equal(found, x)
        assert columns.gaps == (1,)
        np.testing.assert_array_equal(read_rows(estimator, make(x[2:5]), columns), x[2:5])

    def test_categories_and_true_and_false_are_known_again_as_numbers(self):
        frame = mixed()[["dose", "grade", "lit"]]
        x, columns, estimator = read(frame)
        for kind in (int, float):
            again = frame.assign(lit=frame["lit"].astype(kind), grade=frame["grade"].astype(kind))
            np.testing.assert_array_equal(read_rows(estimator, again, columns), x)

    def test_a_frame_of_polars(self):
        polars = pytest.importorskip("polars")
        frame = mixed()[["dose", "site", "lit", "day"]]
        x, columns, estimator = read(frame)
        plain = frame.astype(object).where(frame.notna(), None)
        other = polars.DataFrame({name: plain[name].tolist() for name in frame})
        again, found, _ = read(other)
        np.testing.assert_array_equal(again, x)
        assert found.to_stored() == columns.to_stored()
        np.testing.assert_array_equal(read_rows(estimator, other, columns), x)

    def test_numbers_among_text_are_categories(self):
        frame = pd.DataFrame({"a": numbers(), "lot": ["12", 7, "136A"] * (N // 3)})
        assert read(frame)[1].categories == {1: ("12", "136A", "7")}

    def test_text_from_outside_a_frame_is_refused(self):
        with pytest.raises(ValueError, match="categorical"):
            read(np.array([[1.0, "u"], [2.0, "v"]], dtype=object))

    @pytest.mark.parametrize(
        "column", [[1 + 2j] * N, [[1, 2]] * N, [b"a"] * N, [datetime.time(12)] * N], ids=str
    )
    def test_what_is_neither_a_number_nor_a_category_nor_a_date_is_refused_by_name(self, column):
        with pytest.raises(ValueError, match="'odd'"):
            read(pd.DataFrame({"a": numbers(), "odd": pd.Series(column, dtype=object)}))

    def test_infinite_values_are_refused_by_name_in_the_fit_and_later(self):
        frame = pd.DataFrame({"a": numbers(), "b": numbers(seed=1)})
        _, columns, estimator = read(frame)
        for call in (read, lambda given: read_rows(estimator, given, columns)):
            with pytest.raises(ValueError, match="'b' has infinite"):
                call(frame.assign(b=np.where(frame["b"] > 1, np.inf, frame["b"])))


class TestDates:
    MOMENTS = pd.Series(pd.date_range("2020-01-01", periods=N, freq="30h")).sample(frac=1, random_state=0)

    @pytest.mark.parametrize(
        "write",
        [
            lambda m: m,
            lambda m: m.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
            lambda m: m.astype(object),
            lambda m: m.dt.strftime("%Y-%m-%d %H:%M:%S"),
            lambda m: m.dt.strftime("%Y-%m-%dT%H:%MZ"),
        ],
        ids=["naive", "zone", "objects", "text", "utc"],
    )
    def test_moments_become_days_however_they_are_written(self, write):
        expected = (self.MOMENTS - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        frame = pd.DataFrame({"a": numbers(), "when": write(self.MOMENTS).to_numpy()})
        frame["when"] = write(self.MOMENTS).array
        x, columns, estimator = read(frame)
        assert columns.dates == (1,)
        np.testing.assert_allclose(x[:, 1], expected, rtol=1e-13)
        plain = frame.assign(when=self.MOMENTS.array)
        np.testing.assert_allclose(read_rows(estimator, plain, columns), x, rtol=1e-13)

    def test_days_and_months(self):
        days = [datetime.date(1970, 1, 1) + datetime.timedelta(int(k) % 50) for k in range(N)]
        months = pd.PeriodIndex(np.resize(["1970-01", "1970-02"], N), freq="M")
        text = [str(day) for day in days]
        x, columns, _ = read(pd.DataFrame({"a": numbers(), "day": days, "month": months, "text": text}))
        assert columns.dates == (1, 2, 3)
        expected = np.column_stack([np.arange(N) % 50, np.resize([0, 31], N), np.arange(N) % 50])
        np.testing.assert_array_equal(x[:, 1:], expected)

    def test_an_array_of_moments(self):
        moments = np.datetime64("1970-01-01T12", "h") + np.arange(20).reshape(10, 2)
        x, columns, estimator = read(moments)
        np.testing.assert_allclose(x, 0.5 + np.arange(20).reshape(10, 2) / 24)
        np.testing.assert_allclose(read_rows(estimator, moments[:3], columns), x[:3])

    def test_missing_dates_are_missing(self):
        frame = mixed()
        frame.loc[3, "day"] = pd.NaT
        x, columns, estimator = read(frame)
        assert np.isnan(x[3, 4])
        assert 4 in columns.gaps
        assert np.isnan(read_rows(estimator, frame.assign(day=np.nan), columns)[:, 4]).all()

    def test_dates_in_another_format_are_left_out_with_a_word_of_advice(self):
        days = self.MOMENTS.dt.strftime("%d/%m/%Y %H:%M").array
        with pytest.warns(UserWarning, match="'day'.*2020-01-31"):
            assert read(pd.DataFrame({"a": numbers(), "day": days}))[1].used_names == ["a"]

    def test_text_that_is_no_date_is_a_category(self):
        frame = pd.DataFrame({"a": numbers(), "day": ["2020-02-28", "2020-02-30"] * (N // 2)})
        assert read(frame)[1].categorical == [1]

    @pytest.mark.parametrize("given", ["soon", 20200131, pd.Timedelta(days=1)])
    def test_a_column_of_dates_stays_one(self, given):
        frame = mixed()
        _, columns, estimator = read(frame)
        with pytest.raises(ValueError, match="'day'"):
            read_rows(estimator, frame.assign(day=given), columns)

    def test_dates_where_there_were_numbers_are_refused(self):
        frame = mixed()
        _, columns, estimator = read(frame)
        for given in (frame["day"], frame["wait"], "much"):
            with pytest.raises(ValueError, match="'dose'"):
                read_rows(estimator, frame.assign(dose=given), columns)

    @pytest.mark.parametrize("kind", ["datetime64[ns]", "object"])
    def test_a_date_as_target_is_refused_by_name(self, kind):
        frame = mixed()
        with pytest.raises(ValueError, match="'day'"):
            read(frame[["dose", "site"]], frame["day"].astype(kind))
        with pytest.raises(ValueError, match="dates"):
            read(frame[["dose"]], frame[["lit", "day"]])


class TestLeftOut:
    def left(self, **columns):
        """What is left out of a frame of one good column and these."""
        frame = pd.DataFrame({"a": numbers()} | columns)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x, found, _ = read(frame)
        assert x.shape[1] == found.width == found.n_features - len(found.dropped)
        assert len(caught) == bool(found.dropped)
        for j in found.dropped:
            assert repr(frame.columns[j]) in str(caught[0].message)
        return [frame.columns[j] for j in found.dropped]

    @pytest.mark.parametrize("value", [1, 2.5, "north", True, pd.Timestamp("2020-01-01")], ids=str)
    def test_constant_columns(self, value):
        assert self.left(same=[value] * N) == ["same"]
        assert self.left(same=[value, None] * (N // 2)) == []

    def test_columns_without_values(self):
        empty = {"none": [None] * N, "nan": [np.nan] * N, "nat": [pd.NaT] * N}
        assert self.left(**empty) == ["none", "nan", "nat"]

    def test_different_texts(self):
        names = [f"person {k}" for k in range(N)]
        assert self.left(who=names) == ["who"]
        assert self.left(who=pd.Categorical(names)) == ["who"]
        assert self.left(who=names[:-2] + names[:2]) == ["who"]
        assert self.left(who=names[: N // 2] * 2) == []

    @pytest.mark.parametrize(
        ("numbered", "left_out"),
        [
            (np.arange(N), True),
            (np.arange(N, dtype="uint8") + 1, True),
            (np.arange(N) * 1000 + 7, True),  # increasing
            (np.random.default_rng(0).permutation(N), True),
            (
                np.random.default_rng(0).permutation(int(1.5 * N))[:N],
                True,
            ),  # row numbers after a random split
            (np.arange(N)[::-1], True),
            (pd.array(np.arange(N), dtype="Int64"), True),
            (np.random.default_rng(0).choice(10 * N, N, replace=False), False),
            (np.arange(N) // 2, False),
            (np.arange(N) / 1.0, False),
            (np.arange(N) + 1950, False),  # years
            (np.r_[np.arange(N - 1), 0], False),
        ],
    )
    def test_row_numbers(self, numbered, left_out):
        assert self.left(row=numbered) == (["row"] if left_out else [])

    @pytest.mark.parametrize(
        "name", ["time", "age", "Year", "n_days", "elapsedHours", "weekday", "MONTH", "date"]
    )
    def test_a_name_that_says_time_is_no_row_number(self, name):
        assert self.left(**{name: np.arange(N)}) == []

    @pytest.mark.parametrize("name", ["candidate", "package", "ID", "update_no", "storage"])
    def test_other_names_do_not_say_time(self, name):
        assert self.left(**{name: np.arange(N)}) == [name]

    def test_few_rows_show_no_identifier(self):
        frame = pd.DataFrame({"a": numbers(12), "row": np.arange(12), "who": list("abcdefghijkl")})
        assert read(frame)[1].width == 3

    def test_something_always_remains(self):
        for column in (np.arange(N), [f"person {k}" for k in range(N)], [1.0] * N):
            assert read(pd.DataFrame({"only": column}))[1].width == 1
        frame = pd.DataFrame({"row": np.arange(N), "same": 1.0})
        with pytest.warns(UserWarning, match="'same'"):
            assert read(frame)[1].used_names == ["row"]
        with pytest.raises(ValueError, match="no column"):
            read(pd.DataFrame({"nothing": [np.nan] * N}))

    def test_arrays_are_not_touched_unless_a_column_has_no_values(self):
        x = np.column_stack([numbers(), np.ones(N), np.arange(N)])
        assert read(x)[1].width == 3
        assert read(np.ones((N, 2), dtype=int))[1].width == 2
        x[:, 1] = np.nan
        with pytest.warns(UserWarning, match="no values"):
            _, columns, estimator = read(x)
        assert columns.used_names == ["x0", "x2"]
        np.testing.assert_array_equal(read_rows(estimator, x, columns), x[:, [0, 2]])

    def test_rows_need_not_have_the_columns_that_were_left_out(self):
        frame = pd.DataFrame({"row": np.arange(N), "a": numbers(), "b": numbers(seed=1)})
        with pytest.warns(UserWarning, match="float"):
            x, columns, estimator = read(frame)
        for given in (frame, frame[["a", "b"]], frame.assign(row="any")):
            np.testing.assert_array_equal(read_rows(estimator, given, columns), x)
        with pytest.raises(ValueError, match="b"):
            read_rows(estimator, frame[["a"]], columns)


class TestLeaks:
    def leaks(self, y, **columns):
        """Whether the last of some columns is pointed out."""
        frame = pd.DataFrame({"a": numbers(len(y), 3)} | columns)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = read(frame, pd.Series(y, name="price"))[1]
        assert not found.dropped
        assert all("'a'" not in str(one.message) and "'price'" in str(one.message) for one in caught)
        return [repr(frame.columns[-1]) in str(one.message) for one in caught] == [True]

    def test_functions_of_the_target(self):
        y = np.exp(numbers(300))
        assert self.leaks(y, log=np.log(y))
        assert self.leaks(y, inverse=-1 / y)
        assert self.leaks(y, nearly=y * np.exp(1e-3 * numbers(300, 1)))
        assert self.leaks(y, gaps=np.where(numbers(300, 2) > 1, np.nan, y))

    def test_a_target_that_is_a_curve_of_one_column(self):
        x = numbers(300)
        assert self.leaks(np.cos(2 * x), x=x)
        assert not self.leaks(np.cos(2 * x) + 0.1 * numbers(300, 1), x=x)

    def test_categories_that_fix_the_target(self):
        group = np.random.default_rng(0).integers(6, size=300)
        y = np.array([3.0, 1, 4, 1.5, 9, 2.6])[group]
        names = np.array(list("abcdef"))[group]
        assert self.leaks(y + 1e-3 * numbers(300), group=names)
        assert self.leaks(y + 1e-3 * numbers(300), group=1.0 * group)
        assert not self.leaks(y + 0.5 * numbers(300), group=names)

    def test_good_predictors_are_no_leak(self):
        x = numbers(300)
        assert not self.leaks(x + 0.1 * numbers(300, 1), x=x)
        few = np.random.default_rng(0).choice([f"g{k}" for k in range(200)], 300)
        assert not self.leaks(numbers(300), few=few)

    def test_only_where_there_is_another_column_in_a_frame(self):
        y = numbers(300)
        read(pd.DataFrame({"log": y}), y)
        read(np.column_stack([y, numbers(300, 1)]), y)
        with pytest.warns(UserWarning, match="'b'"):
            read(pd.DataFrame({"a": numbers(300, 1), "b": y}), np.column_stack([numbers(300, 2), y]))

    def test_a_constant_target_and_few_rows_say_nothing(self):
        assert not self.leaks(np.ones(300), x=numbers(300))
        assert not self.leaks(numbers(20), x=numbers(20))


class TestNewRows:
    def test_unknown_categories_count_as_missing_with_a_warning(self):
        frame = mixed()
        _, columns, estimator = read(frame)
        with pytest.warns(UserWarning, match="'site'.*'east'"):
            x = read_rows(estimator, frame.assign(site="east"), columns)
        assert np.isnan(x[:, 1]).all()
        assert np.isfinite(columns.expand(x)).all()

    @pytest.mark.parametrize("name", ["grade", "lit", "day", "wait"])
    def test_missing_values_where_there_were_none(self, name):
        frame = mixed()
        x, columns, estimator = read(frame)
        place = list(frame.columns).index(name)
        gap = frame.assign(**{name: frame[name].astype(object).where(np.arange(N) > 3, None)})
        with pytest.warns(UserWarning, match=name):
            found = read_rows(estimator, gap, columns)
        assert np.isnan(found[:4, place]).all()
        np.testing.assert_array_equal(found[4:], x[4:])
        filled, complete = columns.expand(found), columns.expand(x)
        np.testing.assert_array_equal(filled[4:], complete[4:])
        if name != "grade":
            where = columns.expanded_names().index(name)
            assert (filled[:4, where] == np.median(x[:, place])).all()

    def test_plain_arrays_have_medians_too(self):
        x = np.random.default_rng(0).normal(size=(30, 2))
        _, columns, estimator = read(x)
        with pytest.warns(UserWarning, match="missing"):
            found = read_rows(estimator, [[1.0, np.nan]], columns)
        assert columns.expand(found).tolist() == [[1.0, np.median(x[:, 1])]]
        with pytest.raises(ValueError, match="missing"):  # columns of which nothing is known
            Columns.of_numbers(2).encode(np.array([[1.0, np.nan]]))

    def test_a_masked_y_is_a_missing_one(self):
        x = np.arange(20.0)[:, None]
        with pytest.raises(ValueError, match="NaN"):
            read(x, np.ma.masked_array(x[:, 0], x[:, 0] == 3))


class TestExpand:
    def test_numbers_then_gaps_then_categories(self):
        frame = mixed()
        x, columns, _ = read(frame)
        by_hand = {
            "dose": frame["dose"].fillna(frame["dose"].median()),
            "lit": frame["lit"],
            "day": x[:, 4],
            "wait": x[:, 5],
            "missing dose": frame["dose"].isna(),
            "site_north": frame["site"] == "north",
            "site_south": frame["site"] == "south",
            "site_west": frame["site"] == "west",
            "missing site": frame["site"].isna(),
            **{f"grade_{k}": frame["grade"] == k for k in range(3)},
        }
        assert columns.expanded_names() == list(by_hand)
        assert columns.expanded_width == len(by_hand)
        np.testing.assert_array_equal(
            columns.expand(x), np.column_stack(list(by_hand.values())).astype(float)
        )
        assert columns.expanded_names(list("abcdef"))[:6] == ["a", "d", "e", "f", "missing a", "b_north"]
        with pytest.raises(ValueError, match="names"):
            columns.expanded_names(["a", "b"])

    def test_rare_categories_share_the_zeros_and_the_rarest_a_code(self):
        counts = np.r_[
            np.full(MOST_CATEGORIES, 20), np.full(MOST_CODES - MOST_CATEGORIES, 10), np.full(50, 5)
        ]
        towns = np.repeat([f"town {k:04d}" for k in range(len(counts))], counts)
        frame = pd.DataFrame({"a": numbers(len(towns)), "town": np.random.default_rng(0).permutation(towns)})
        x, columns, estimator = read(frame)
        assert columns.categories[1] == tuple(f"town {k:04d}" for k in range(MOST_CODES))
        assert np.bincount(x[:, 1].astype(int)).tolist() == [*counts[:MOST_CODES], 250]
        indicators = columns.expand(x)[:, 1:]
        assert indicators.shape[1] == MOST_CATEGORIES
        np.testing.assert_array_equal(indicators.sum(1), x[:, 1] < MOST_CATEGORIES)
        # Others are all alike, so a new one is no news.
        assert read_rows(estimator, frame[:2].assign(town="new"), columns)[:, 1].tolist() == [MOST_CODES] * 2

    def test_more_categories_than_trees_take_beside_missing_ones(self):
        """Those with a code of their own, all others, and missing ones are what scikit-learn's trees take."""
        words = np.repeat([f"word {k:03d}" for k in range(300)], 2)
        frame = pd.DataFrame({"word": np.r_[words.astype(object), np.full(20, None)], "a": numbers(620)})
        x = read(frame)[0]
        codes = CategoryCodes.contiguous(x, [0]).apply(x)
        assert len(np.unique(codes[:, 0])) == 255
        HistGradientBoostingRegressor(max_iter=2, categorical_features=[0]).fit(codes, numbers(620))


class TestStored:
    def test_round_trip(self):
        frame = mixed().assign(row=np.arange(N))
        with pytest.warns(UserWarning, match="'row'"):
            x, columns, _ = read(frame)
        stored = json.loads(json.dumps(columns.to_stored()))
        again = Columns.from_stored(stored, columns.n_features, list(columns.names))
        np.testing.assert_array_equal(again.encode(frame), x)
        np.testing.assert_array_equal(again.expand(x), columns.expand(x))
        assert again.dropped == columns.dropped
        assert again.names == columns.names
        assert again.to_stored() == columns.to_stored()

    def test_nothing_stored_is_plain_numbers(self):
        columns = Columns.from_stored(None, 2, ["a", "b"])
        assert columns.plain
        assert columns.used_names == ["a", "b"]

    @pytest.mark.parametrize(
        "change",
        [
            {"used": [0, 1]},
            {"used": [0, 1, 2, 3, 4, 5, 6]},
            {"used": [0, 2, 1, 3, 4, 5]},
            {"used": [True, 1, 2, 3, 4, 5]},
            {"used": None},
            {"dropped": {}},
            {"dropped": {"6": 3}},
            {"dropped": {"x": "it numbers the rows"}},
            {"categories": {"9": ["a"]}},
            {"categories": {"1": []}},
            {"categories": {"1": ["a", "a"]}},
            {"categories": {"1": [1]}},
            {"categories": {"4": ["a"]}},
            {"categories": {"1": [str(k) for k in range(255)]}},
            {"lumped": [0]},
            {"dates": [9]},
            {"dates": [4], "durations": [4]},
            {"gaps": [-1]},
            {"gaps": [3, 3]},
            {"medians": [1.0]},
            {"medians": ["a"] * 6},
            {"medians": [None] * 6},
            {"medians": [1e999] * 6},
        ],
        ids=str,
    )
    def test_damaged_descriptions_are_refused(self, change):
        with pytest.warns(UserWarning, match="'row'"):
            _, columns, _ = read(mixed().assign(row=np.arange(N)))
        with pytest.raises(ValueError, match="damaged"):
            Columns.from_stored(columns.to_stored() | change, 7, list(columns.names))

    @pytest.mark.parametrize("names", [["a"], "ab", [1, 2]])
    def test_damaged_names_are_refused(self, names):
        with pytest.raises(ValueError, match="names"):
            Columns.from_stored(None, 2, names)


class TestOlderEncoders:
    """Files of version 0.1 hold encoders of scikit-learn."""

    def make(self, frame, categorical, grouped=()):
        """The encoder that version 0.1 made of a frame, and the matrix that it gave."""
        text = frame.astype(object).where(frame.notna(), np.nan)
        kept = []
        for j in categorical:
            words = text.iloc[:, j].dropna().value_counts(sort=True).index[:MOST_CATEGORIES]
            gap = [np.nan] if text.iloc[:, j].isna().any() else []
            kept.append(np.array([*sorted(words), *gap], dtype=object))
        one_hot = OneHotEncoder(categories=kept, handle_unknown="ignore", sparse_output=False)
        numbers = [j for j in range(frame.shape[1]) if j not in categorical]
        imputer = SimpleImputer(strategy="median", add_indicator=True)
        encoder = ColumnTransformer([("numbers", imputer, numbers), ("names", one_hot, categorical)])
        matrix = encoder.fit_transform(text.to_numpy())
        pipeline = make_pipeline(encoder, DummyRegressor().fit([[0.0]], [0.0]))
        return pipeline, [[], list(grouped)], matrix.astype(float)

    @pytest.mark.parametrize(
        "names", [["dose"], ["site"], ["dose", "site"], ["site", "full", "dose", "town"]]
    )
    def test_the_matrix_is_the_same(self, names):
        rng = np.random.default_rng(0)
        towns = rng.choice([f"town {k}" for k in range(50)], 400, p=np.arange(1, 51) / 1275)
        frame = mixed(400)[["dose", "site"]].assign(full=rng.normal(size=400), town=towns)[names]
        categorical = [j for j, name in enumerate(names) if name in ("site", "town")]
        grouped = [j for j, name in enumerate(names) if name == "town"]
        pipeline, plain, expected = self.make(frame, categorical, grouped)
        columns = from_stored_encoder(pipeline, len(names), names, plain)
        np.testing.assert_array_equal(columns.expand(columns.encode(frame)), expected)
        assert columns.expanded_width == expected.shape[1]
        again = Columns.from_stored(json.loads(json.dumps(columns.to_stored())), len(names), names)
        np.testing.assert_array_equal(again.expand(again.encode(frame)), expected)

    def test_no_encoder_is_plain_numbers(self):
        assert from_stored_encoder(None, 2, None, None).plain

    def test_damaged_encoders_are_refused(self):
        pipeline, plain, _ = self.make(mixed(400)[["dose", "site"]], [1])
        for given in (
            (pipeline, 3, None, plain),
            (pipeline, 2, None, [[], [0]]),
            ("encoder", 2, None, plain),
        ):
            with pytest.raises(ValueError, match="damaged"):
                from_stored_encoder(*given)
        pipeline.steps[0][1].named_transformers_["names"].categories_ = []
        with pytest.raises(ValueError, match="damaged"):
            from_stored_encoder(pipeline, 2, None, plain)


def test_a_message_about_columns_stays_short():
    frame = pd.DataFrame({"a": numbers(), "9" * 5000: numbers(seed=1)})
    _, columns, estimator = read(frame)
    with pytest.raises(ValueError, match="feature names") as caught:
        read_rows(estimator, frame.rename(columns={"9" * 5000: "c"}), columns)
    assert len(str(caught.value)) < 1100


NA_OF_R = -(2**31)


@pytest.mark.filterwarnings("ignore:row .* is left out")
@pytest.mark.parametrize("dtype", ["int32", "int64", "Int64"])
@pytest.mark.parametrize("estimator", [LocalW2Regressor("balls"), RandomCoefficientRegressor("ml")])
def test_a_missing_whole_number_of_r_is_named(estimator, dtype):
    rng = np.random.default_rng(0)
    sun = pd.Series(rng.integers(0, 300, 40), dtype=dtype)
    frame = pd.DataFrame({"wind": rng.normal(size=40), "sun": sun})
    y = rng.normal(size=40)
    frame.loc[3, "sun"] = NA_OF_R
    with pytest.warns(UserWarning, match=r"-2147483648 in column 'sun': .*as\.double"):
        estimator.fit(frame, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator.fit(frame.assign(sun=frame["sun"].clip(lower=0)), y)
        estimator.predict(frame[:3])
    with pytest.warns(UserWarning, match="'sun'"):
        estimator.predict(frame[:5])
    count = np.where(np.arange(40) == 7, NA_OF_R, rng.integers(0, 300, 40))
    with pytest.warns(UserWarning, match="-2147483648 in y: "):
        estimator.fit(frame[["wind"]], count)
    with pytest.warns(UserWarning, match="-2147483648 in X: "):
        estimator.fit(np.column_stack([count, np.arange(40) % 7]), y)


def test_a_fit_in_parts_names_it_once():
    frame = pd.DataFrame({"sun": np.arange(40) % 9, "wind": numbers(40)})
    frame.loc[3, "sun"] = NA_OF_R
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        LocalW2Regressor(BallLaw(n_trees=5), None, calibrate="split").fit(frame, numbers(40, seed=1))
    assert sum("2147483648" in str(one.message) for one in said) == 1
