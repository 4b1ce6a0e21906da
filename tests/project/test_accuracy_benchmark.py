"""The comparison with peers: fair scores, records that resume, tables that follow from records alone."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import baselines
import campaign
import comparing
import ledger
import methods
import ours
import scoring
import table
from localw2.metrics import gaussian_crps
from uci import Split, standard_split

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def line():
    """y = x0 + noise of SD .5: 200 rows to fit, 300 to score."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 2))
    y = x[:, 0] + 0.5 * rng.normal(size=500)
    return Split(x[:200], y[:200], x[200:], y[200:])


def write_table(folder, rows, columns=3):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, columns))
    (folder / "made").mkdir(parents=True)
    data = np.column_stack([x, x[:, 0] + rng.normal(size=rows)])
    np.savetxt(folder / "made" / "data.txt", data, fmt="%.6g")
    return folder


def record(method, split, crps, code="new", name="made", **values):
    scores = {"crps": crps, "coverage": 0.9, "width": 2.0, "rmse": 1.0}
    seconds = {"fit_seconds": 1.0, "draw_seconds": 0.1, "draw_seconds_1000_rows": 0.5, "extrapolated": False}
    size = {"rows": 90, "test_rows": 10, "columns": 3}
    key = {"set": name, "split": split, "method": method, "code": code}
    return key | {"status": "done"} | size | scores | seconds | values


class TestScores:
    def test_draws_of_a_gaussian_have_its_exact_crps(self):
        rng = np.random.default_rng(0)
        y, mean, std = rng.normal(size=400), rng.normal(size=400), rng.uniform(0.5, 2, 400)
        exact = gaussian_crps(y, mean, std)
        repeats = [scoring.scores(y, baselines.gaussian(mean, std, 1000, seed))["crps"] for seed in range(20)]
        error = np.std(repeats, ddof=1) / 20**0.5
        assert abs(np.mean(repeats) - exact.mean()) < 4.5 * error
        assert np.std(repeats) < 0.01 * exact.mean()  # the noise of 1000 draws is far below what is compared

    def test_interval_and_rmse_are_those_of_the_law(self):
        rng = np.random.default_rng(1)
        y = rng.normal(size=1500)
        values = scoring.scores(y, rng.normal(size=(1000, 1500)))
        assert values["width"] == pytest.approx(2 * stats.norm.ppf(0.95), rel=0.01)
        assert values["coverage"] == pytest.approx(0.9, abs=4.5 * (0.09 / 1500) ** 0.5)
        assert values["rmse"] == pytest.approx(np.sqrt((y**2).mean()), rel=0.01)


class TestMethods:
    def test_every_factory_exists_and_names_differ(self):
        for method in methods.METHODS:
            module, name = method.factory.split(":")
            text = (ledger.HERE / f"{module}.py").read_text()
            assert re.search(rf"^def {name}\(seed: int\) -> Fit:", text, re.MULTILINE)
        assert len(methods.BY_NAME) == len(methods.METHODS)
        assert {method.group for method in methods.METHODS} == {"ours", "ablation", "peer", "baseline"}

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(ValueError, match="forest: no such method"):
            methods.chosen(["forest", "ours"])

    @pytest.mark.parametrize("name", ["climatology", "boosting", "conformal", "gaussian_process"])
    def test_baselines_draw_what_they_should(self, line, name):
        draw = getattr(baselines, name)(0)(line.x, line.y)
        draws = draw(line.x_test, 400, 1)
        assert draws.shape == (400, 300)
        assert not np.array_equal(draws, draw(line.x_test, 400, 2))
        values = scoring.scores(line.y_test, draws)
        # The best law has CRPS .5 / sqrt(pi); climatology that of the spread of y.
        best = (np.std(line.y) if name == "climatology" else 0.5) / math.pi**0.5
        assert 0.9 * best < values["crps"] < 1.35 * best
        assert 0.8 < values["coverage"] < 0.97

    def test_climatology_draws_training_targets(self, line):
        draws = baselines.climatology(0)(line.x, line.y)(line.x_test, 50, 0)
        assert set(draws.ravel()) <= set(line.y)

    def test_conformal_covers_as_it_says(self):
        """Averaged over tables, split conformal intervals cover 90 % but for a row's worth of rounding."""
        rng = np.random.default_rng(2)
        found = []
        for seed in range(6):
            x, y = rng.normal(size=(500, 1)), rng.standard_t(3, size=500)
            draws = baselines.conformal(seed)(x[:300], y[:300])(x[300:], 2000, seed)
            found.append(scoring.scores(y[300:], draws)["coverage"])
        spread = (0.09 / 60 + 0.09 / 200) ** 0.5 / 6**0.5
        assert np.mean(found) == pytest.approx(0.9, abs=4 * spread + 1 / 61)

    def test_base_only_has_the_spread_of_residuals_out_of_fold(self, line):
        draws = ours.base_only(0)(line.x, line.y)(line.x_test, 1000, 0)
        centres, spread = draws.mean(0), draws.std(0)
        assert np.corrcoef(centres, line.x_test[:, 0])[0, 1] > 0.95
        assert spread.mean() == pytest.approx(0.5, rel=0.2)

    @pytest.mark.slow
    @pytest.mark.parametrize("method", methods.METHODS, ids=lambda method: method.name)
    def test_every_method_beats_climatology_on_a_line(self, line, method):
        values = scoring.measure(method, line, 0, 600)
        assert values["status"] == "done", values
        if method.name != "climatology":
            # The CRPS of a Gaussian climatology; NGBoost overfits so few rows, and is 7 % below it only.
            assert values["crps"] < np.std(line.y) / math.pi**0.5


class TestRunner:
    def test_scores_and_seconds_of_a_process(self, line):
        values = scoring.measure(methods.BY_NAME["climatology"], line, 3, 600)
        assert values["status"] == "done"
        draws = baselines.climatology(3)(line.x, line.y)(line.x_test, scoring.DRAWS, 3)
        assert values.items() >= scoring.scores(line.y_test, draws).items()
        assert values["fit_seconds"] >= 0
        assert values["draw_seconds_1000_rows"] > 0
        assert (values["rows"], values["test_rows"], values["columns"]) == (200, 300, 2)

    def test_too_slow_is_recorded(self, line):
        values = scoring.measure(methods.BY_NAME["boosting, Gaussian"], line, 0, 0.05)
        assert (values["status"], values["stage"], values["limit"]) == ("too slow", "fit", 0.05)

    def test_failure_is_recorded_with_its_reason(self, line):
        holes = Split(np.full_like(line.x, np.nan), line.y, line.x_test, line.y_test)
        values = scoring.measure(methods.BY_NAME["Gaussian process"], holes, 0, 600)
        assert values["status"] == "failed"
        assert "exit status 1" in values["error"]


def run(folder, out, names=("climatology",), splits=2, limit=600.0):
    chosen = tuple(methods.chosen(list(names)))
    return campaign.Campaign(folder, ("made",), splits, chosen, 1, limit, out).run()


class TestResuming:
    """Methods are replaced by a count of calls: what is computed, and what not."""

    @pytest.fixture
    def calls(self, monkeypatch):
        made = []

        def measure(method, data, split, limit):
            made.append((method.name, split))
            values = record(method.name, split, 1.0 + split)
            return {k: v for k, v in values.items() if k not in ("set", "split", "method", "code")} | answers

        answers = {}
        monkeypatch.setattr(campaign, "measure", measure)
        monkeypatch.setattr(ledger, "code_of", lambda method: codes.get(method.name, "new"))
        codes = {}
        return made, answers, codes

    def test_a_second_run_computes_what_is_missing(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        run(data, tmp_path / "out", splits=2)
        assert calls[0] == [("climatology", 0), ("climatology", 1)]
        found = run(data, tmp_path / "out", ["climatology", "boosting, Gaussian"], splits=3)
        later = [("boosting, Gaussian", split) for split in (0, 1, 2)] + [("climatology", 2)]
        assert sorted(calls[0][2:]) == later
        assert found == ledger.read(tmp_path / "out")
        assert len(found) == 6

    def test_changed_code_with_the_same_result_costs_one_split(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        run(data, tmp_path / "out", splits=3)
        calls[0].clear()
        calls[2]["climatology"] = "newer"
        found = run(data, tmp_path / "out", splits=3)
        assert len(calls[0]) == 1
        assert {r["code"] for r in found.values()} == {"newer"}
        assert list(json.loads((tmp_path / "out" / "made.json").read_text())["made_by"]) == ["newer"]

    def test_changed_code_with_another_result_costs_all(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        run(data, tmp_path / "out", splits=3)
        calls[0].clear()
        calls[1]["crps"] = 7.0
        calls[2]["climatology"] = "newer"
        found = run(data, tmp_path / "out", splits=3)
        assert sorted(calls[0]) == [("climatology", 0), ("climatology", 1), ("climatology", 2)]
        assert {(r["code"], r["crps"]) for r in found.values()} == {("newer", 7.0)}

    def test_too_slow_is_tried_again_with_a_longer_limit_only(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        calls[1].update(status="too slow", stage="fit", limit=10.0)
        run(data, tmp_path / "out", splits=1, limit=10.0)
        run(data, tmp_path / "out", splits=1, limit=10.0)
        assert len(calls[0]) == 1
        run(data, tmp_path / "out", splits=1, limit=20.0)
        assert len(calls[0]) == 2

    def test_what_failed_is_tried_again(self, tmp_path, calls):
        data = write_table(tmp_path / "data", 50)
        calls[1].update(status="failed", error="no words")
        run(data, tmp_path / "out", splits=1)
        run(data, tmp_path / "out", splits=1)
        assert len(calls[0]) == 2


def test_code_names_follow_what_a_method_rests_on(monkeypatch, tmp_path):
    names = ("localw2", "base + network, energy score", "climatology")
    (tmp_path / "cli").mkdir()
    for file in ("__init__.py", "losses.py", "metrics.py", "cli/options.py"):
        (tmp_path / file).write_text("")
    monkeypatch.setattr(ledger.localw2, "__file__", str(tmp_path / "__init__.py"))

    def codes():
        return [ledger.code_of(methods.BY_NAME[name]) for name in names]

    before = codes()
    assert len(set(before)) == 3
    (tmp_path / "cli" / "options.py").write_text("a program around the library")
    assert codes() == before
    (tmp_path / "losses.py").write_text("another loss")
    assert [old == new for old, new in zip(before, codes(), strict=True)] == [False, False, True]
    (tmp_path / "metrics.py").write_text("another score")  # by which all are judged
    assert not set(before) & set(codes())


def test_a_table_of_45000_rows_runs(tmp_path):
    data = write_table(tmp_path / "data", 45_000, columns=9)
    split = standard_split(data / "made", 0)
    assert (len(split.x), len(split.x_test)) == (40_500, 4_500)
    found = run(data, tmp_path / "out", ["climatology"], splits=1)
    assert found["made", 0, "climatology"]["status"] == "done"
    slow = run(data, tmp_path / "out", ["Gaussian process"], splits=1, limit=2.0)
    assert slow["made", 0, "Gaussian process"]["status"] == "too slow"


@pytest.mark.slow
def test_every_method_ends_on_45000_rows(tmp_path):
    data = write_table(tmp_path / "data", 45_000, columns=9)
    found = run(data, tmp_path / "out", ["ours", "peer", "baseline"], splits=1, limit=60.0)
    assert len(found) == sum(method.group != "ablation" for method in methods.METHODS)
    assert {r["status"] for r in found.values()} == {"done", "too slow"}


class TestComparing:
    def test_paired_errors_are_those_of_scipy(self):
        rng = np.random.default_rng(0)
        b = rng.gamma(9, size=20)
        a = 0.9 * b + 0.1 * rng.normal(size=20)
        found = comparing.versus(dict(enumerate(a)), dict(enumerate(b)))
        t = stats.ttest_rel(a, b)
        assert found.difference / found.difference_error == pytest.approx(t.statistic)
        assert found.ratio == pytest.approx(a.mean() / b.mean())

    def test_error_of_a_ratio_is_its_spread_over_repeats(self):
        rng = np.random.default_rng(1)
        ratios, errors = [], []
        for _ in range(2000):
            b = rng.gamma(9, size=20)
            a = 0.9 * b + rng.normal(size=20)
            found = comparing.versus(dict(enumerate(a)), dict(enumerate(b)))
            ratios.append(found.ratio)
            errors.append(found.ratio_error)
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(ratios), rel=0.1)

    def test_only_common_splits_count(self):
        found = comparing.versus({0: 1.0, 5: 100.0}, {0: 2.0, 1: 50.0})
        assert (found.splits, found.difference, found.ratio) == (1, -1.0, 0.5)
        assert math.isnan(found.difference_error)
        assert comparing.versus({0: 1.0}, {1: 1.0}) is None

    def test_the_best_peer_is_none_of_ours_and_has_all_splits(self):
        records = [record("localw2", i, 1.0) for i in range(3)]
        records += [record("base only", i, 0.5) for i in range(3)]
        records += [record("ngboost", i, 2.0) for i in range(3)]
        records += [record("engression", i, 4.0) for i in range(3)]
        records += [record("treeffuser", 0, 1.5)]
        records += [record("treeffuser", i, 0.0, status="too slow", stage="draws", limit=9.0) for i in (1, 2)]
        found = comparing.compare(records, "made")
        assert found.best_peer == "ngboost"
        assert found.row("localw2").versus.ratio == 0.5
        assert found.row("treeffuser").means["crps"] == 1.5
        assert found.row("treeffuser").lacking == "too slow (draws, over 9 s) on 2 splits"
        assert [row.method for row in found.rows][:2] == ["base only", "localw2"]


class TestTables:
    @pytest.fixture
    def records(self):
        scores = {"localw2": 0.9, "ngboost": 1.0, "climatology": 5.0, "base only": 1.2}
        found = [
            record(method, i, score + 0.01 * i, name=name)
            for name in ("a", "b")
            for method, score in scores.items()
            for i in (0, 1)
        ]
        slow = {"status": "too slow", "stage": "draws", "limit": 900.0}
        return found + [record("treeffuser", i, 0.0, name="a", **slow) for i in (0, 1)]

    def test_say_what_the_records_say(self, records):
        text = table.all_tables(records)
        assert text.index("### a") < text.index("### b")
        assert "CRPS .90050 ± .00050 times that of the best peer, ngboost; 90.0 % of outcomes" in text
        assert "| treeffuser | too slow (draws, over 900 s) on 2 splits | - |" in text
        assert text.count("| best peer | 1 |") == 2
        assert "base only" not in text
        assert "| base only | 1.205 | +.300 | 1.205 | +.300 |" in table.ablation(records)

    def test_the_short_one_marks_the_smallest(self, records):
        lines = table.short(records).splitlines()
        assert lines[0] == "| mean CRPS | a | b |"
        assert "| localw2 | **.905** | **.905** |" in lines
        assert "| treeffuser | too slow | - |" in lines

    def test_are_rectangular(self, records):
        for make in (table.all_tables, table.ablation, table.short, table.settings):
            for block in re.findall(r"(?:^\|.*\|$\n?)+", make(records), re.MULTILINE):
                assert len({line.count(" | ") for line in block.splitlines()}) == 1

    def test_only_what_is_between_markers_changes(self, records):
        begin, end = "<!-- accuracy:begin short -->", "<!-- accuracy:end short -->"
        page = f"before\n{begin}\nold\n{end}\nafter <!-- other -->\n"
        once = table.filled(page, table.BLOCKS[table.README], records)
        assert once.startswith(f"before\n{begin}\n| mean CRPS |")
        assert once.endswith(f"\n{end}\nafter <!-- other -->\n")
        assert "old" not in once
        assert table.filled(once, table.BLOCKS[table.README], records) == once
        with pytest.raises(ValueError, match="the rest of the page would be lost"):
            table.filled(
                page.replace(end, "<!-- accuracy:end shrot -->"), table.BLOCKS[table.README], records
            )

    def test_the_picture_is_drawn(self, records, tmp_path):
        from picture import dot_plot

        dot_plot([comparing.compare(records, name) for name in ("a", "b")], tmp_path / "accuracy.png")
        assert (tmp_path / "accuracy.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", table.BLOCKS, ids=str)
def test_pages_show_the_committed_records(page):
    text = (ROOT / page).read_text()
    markers = [f"<!-- accuracy:{end} {name} -->" for name in table.BLOCKS[page] for end in ("begin", "end")]
    assert all(text.count(marker) == 1 for marker in markers)
    records = list(ledger.read(ledger.FOLDER).values())
    assert table.filled(text, table.BLOCKS[page], records) == text, "run python benchmarks/accuracy/table.py"
