"""LocalW2Regressor(calibrate=True): who scores which rows, coverage, boxes, files, Ctrl-C, resuming."""

import copy
import subprocess
import sys
import warnings
from itertools import pairwise

import numpy as np
import pandas
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge

from localw2 import BallLaw, LocalW2Regressor, Nearest, Network, load
from localw2.estimators.regression import ball_law, calibrating, fitting, law, member, network
from localw2.estimators.settings import draw_seed
from localw2.estimators.tables import read_rows
from localw2.judging.conformal import LARGEST_SCORE, central_scores, guaranteed_plus
from localw2.metrics import coverage
from localw2.storage.model_file import Stored
from localw2.training.loop import train

QUICK = {"law": Network(width=4, epochs=5), "base": Ridge(), "delta": 1.0, "random_state": 0}


def pair(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    noise = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    return x, np.column_stack([3 + x[:, 0], 10 * x[:, 1]]) + noise * [0.5, 2.0]


def line(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 1))
    return x, 2 * x[:, 0] + (1 + x[:, 0]) * rng.standard_t(4, size=n)


@pytest.fixture(scope="module")
def fitted():
    x, y = pair(120)
    return LocalW2Regressor(**QUICK, calibrate=True).fit(x, y), x, y


@pytest.fixture
def few_draws(monkeypatch):
    """Coverage holds for any number of draws; fewer take less time."""
    for module in (ball_law, law, member, network):
        monkeypatch.setattr(module, "PREDICTION_DRAWS", 100)


@pytest.fixture
def split(monkeypatch):
    """Splits from 100 rows on."""
    monkeypatch.setattr(calibrating, "SPLIT_FROM", 100)


class TestFolds:
    def test_the_fit_itself_is_unchanged(self, fitted):
        model, x, y = fitted
        plain = LocalW2Regressor(**QUICK).fit(x, y)
        np.testing.assert_array_equal(model.predict(x), plain.predict(x))
        np.testing.assert_array_equal(model.predict_quantiles(x), plain.predict_quantiles(x))
        np.testing.assert_array_equal(model.sample(x, 2, 0), plain.sample(x, 2, 0))
        assert plain.calibration_ is None
        assert model.calibration_.kind == "cv"
        assert model.calibration_.scores.shape == (120, 2)
        again = clone(model).fit(x, y).calibration_
        np.testing.assert_array_equal(again.scores, model.calibration_.scores)

    def test_each_part_is_scored_by_a_fit_to_the_others(self, fitted):
        model, x, y = fitted
        seed, place = model.fit_.config.seed, 0
        parts = calibrating.split_into_parts(120, seed)
        assert sorted(np.concatenate(parts)) == list(range(120))
        for rows in parts:
            others = np.setdiff1d(np.arange(120), rows)
            part = LocalW2Regressor(**QUICK | {"random_state": seed % 2**32}).fit(x[others], y[others])
            ((_, draws),) = part.law_.common_draws(x[rows])
            found = model.calibration_.scores[place : place + len(rows)]
            np.testing.assert_array_equal(found, central_scores(y[rows], draws))
            np.testing.assert_allclose(
                np.quantile(draws, [0.05, 0.95], axis=0), part.predict_quantiles(x[rows], [0.05, 0.95])
            )
            place += len(rows)

    @pytest.mark.parametrize("base", ["auto", None])
    def test_other_bases(self, base):
        x, y = line(60, 0)
        model = LocalW2Regressor(**QUICK | {"base": base}, calibrate=True).fit(x, y)
        lower, upper = model.predict_interval(x, 0.8)
        assert lower.shape == upper.shape == (60,)
        assert (lower < upper).all()

    def test_intervals_cover(self, few_draws):
        """Pooled over 12 tables of 100 rows: 90 %, although these networks are hardly trained."""
        hits, plain = [], []
        for seed in range(12):
            (x, y), (new_x, new_y) = line(100, seed), line(400, 1000 + seed)
            settings = QUICK | {"base": LinearRegression(), "random_state": seed}
            model = LocalW2Regressor(**settings, calibrate=True).fit(x, y)
            hits.append(coverage(new_y, *model.predict_interval(new_x)))
            plain.append(coverage(new_y, *LocalW2Regressor(**settings).fit(x, y).predict_interval(new_x)))
        # The law of coverage with 100 rows, and of 400 new ones; twice that, as tables are fitted too.
        error = np.sqrt((stats.beta(91, 10).var() + 0.09 / 400) / 12)
        assert np.mean(hits) == pytest.approx(91 / 101, abs=2 * 3 * error)
        assert abs(np.mean(plain) - 0.9) > abs(np.mean(hits) - 0.9)


BALLS = {"law": [BallLaw(5, 20), BallLaw(20, 20, "outcomes")], "random_state": 0}


@pytest.mark.parametrize("base", [LinearRegression(), None])
class TestBalls:
    def test_the_fit_is_that_without_and_parts_are_scored_by_the_others(self, base):
        x, y = line(60, 0)
        model = LocalW2Regressor(**BALLS, base=base, calibrate=True).fit(x, y)
        plain = LocalW2Regressor(**BALLS, base=base).fit(x, y)
        np.testing.assert_array_equal(model.sample(x, 3, 0), plain.sample(x, 3, 0))
        np.testing.assert_array_equal(model.predict_quantiles(x), plain.predict_quantiles(x))
        assert model.calibration_.scores.shape == (60, 1)
        seed = draw_seed(0)
        rows = calibrating.split_into_parts(60, seed)[0]
        others = np.setdiff1d(np.arange(60), rows)
        part = LocalW2Regressor(**BALLS | {"random_state": seed % 2**32}, base=base)
        found = part.fit(x[others], y[others]).law_.scores(x[rows], y[rows][:, None])
        np.testing.assert_array_equal(model.calibration_.scores[: len(rows)], found)

    def test_held_out_rows_touch_nothing_but_the_scores(self, base, split):
        x, y = line(120, 0)
        model = LocalW2Regressor(**BALLS, base=base, calibrate=True).fit(x, y)
        rows, _ = calibrating.hold_out(120, draw_seed(0))
        changed = y.copy()
        changed[rows] += 1e3
        other = clone(model).fit(x, changed)
        np.testing.assert_array_equal(other.predict(x), model.predict(x))
        assert (other.calibration_.scores > model.calibration_.scores).all()

    def test_intervals_cover(self, base, few_draws):
        """Pooled over 12 tables of 100 rows: 90 %."""
        hits = []
        for seed in range(12):
            (x, y), (new_x, new_y) = line(100, seed), line(400, 1000 + seed)
            settings = {"law": BallLaw(20, 10), "base": base, "random_state": seed, "calibrate": True}
            hits.append(coverage(new_y, *LocalW2Regressor(**settings).fit(x, y).predict_interval(new_x)))
        error = np.sqrt((stats.beta(91, 10).var() + 0.09 / 400) / 12)
        assert np.mean(hits) == pytest.approx(91 / 101, abs=2 * 3 * error)


class TestSplit:
    def test_held_out_rows_touch_nothing_but_the_scores(self, split):
        x, y = pair(120)
        model = LocalW2Regressor(**QUICK, calibrate=True).fit(x, y)
        rows, _ = calibrating.hold_out(120, model.fit_.config.seed)
        assert model.calibration_.kind == "split"
        assert len(rows) == model.calibration_.n_rows == 24
        changed = y.copy()
        changed[rows] += 1e3
        other = clone(model).fit(x, changed)
        np.testing.assert_array_equal(other.predict(x), model.predict(x))
        assert (other.calibration_.scores > model.calibration_.scores).all()

    def test_how_many_are_held_out(self):
        assert len(calibrating.hold_out(2000, 0)[0]) == 400
        assert len(calibrating.hold_out(100_000, 0)[0]) == 5000
        assert calibrating.SPLIT_FROM == 2000

    def test_the_guarantee(self, split, few_draws):
        """60 tables of 120 rows, 24 of which calibrate: coverage follows Beta(23, 2), with mean 23 / 25."""
        shares = []
        for seed in range(60):
            (x, y), (new_x, new_y) = line(120, seed), line(500, 1000 + seed)
            settings = QUICK | {
                "base": LinearRegression(),
                "random_state": seed,
                "law": Network(width=4, epochs=2),
            }
            model = LocalW2Regressor(**settings, calibrate=True).fit(x, y)
            shares.append(coverage(new_y, *model.predict_interval(new_x)))
        law = stats.beta(23, 2)
        error = np.sqrt((law.var() + 0.07 / 500) / 60)
        assert np.mean(shares) == pytest.approx(23 / 25, abs=3.3 * error)
        assert stats.kstest(shares, law.cdf).pvalue > 1e-3

    def test_joint_guarantee(self, split, few_draws):
        both, each = [], []
        for seed in range(40):
            (x, y), (new_x, new_y) = pair(250, seed), pair(400, 1000 + seed)
            settings = QUICK | {"random_state": seed, "law": Network(width=4, epochs=2)}
            model = LocalW2Regressor(**settings, calibrate=True).fit(x, y)
            for joint, found in ((True, both), (False, each)):
                lower, upper = model.predict_interval(new_x, 0.8, joint=joint)
                found.append(((lower <= new_y) & (new_y <= upper)).all(1).mean())
        # 50 rows calibrate: the mean is at least .8, and above it by a few ranks of 51 at most.
        error = 3.3 * np.std(both) / np.sqrt(40)
        assert 0.8 - error < np.mean(both) < 0.8 + 4 / 51 + error
        assert np.mean(each) < 0.76


def survey(n, seed=0):
    """Categories, gaps, a rare category and a rare large y: what held-out rows may have alone."""
    rng = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "size": rng.normal(size=n).round(2),
            "kind": rng.choice(["a", "b", "c", "rare"], n, p=[0.4, 0.3, 0.28, 0.02]),
            "gap": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "still": np.where(rng.random(n) < 0.01, 1.0, 0.0),
        }
    )
    return frame, np.abs(frame["size"].to_numpy() + rng.normal(size=n))


class TestNothingOfHeldOutRows:
    """Encoding, bounds and values come from fitted rows only: a split fit is the fit to the others."""

    @pytest.mark.parametrize("law", [BALLS["law"], Network(width=4, epochs=3)])
    def test_a_split_fit_is_the_fit_to_the_others(self, law, tmp_path):
        x, y = survey(200)
        held, others = calibrating.hold_out(200, draw_seed(0))
        # What only held-out rows have: a category, a gap, a negative y, a value of a column that is constant.
        x.loc[held[0], "kind"], x.loc[held[1], "size"], y[held[2]] = "only here", np.nan, -5.0
        x.loc[others, "still"] = 0.0
        x.loc[held[3], "still"] = 1.0
        # Columns whose kind they would change: a word among dates and among numbers, and nothing but gaps.
        x["day"] = [f"2024-01-{1 + i % 28:02d}" for i in range(200)]
        x["dose"] = pandas.Series(list(np.arange(200.0) % 7), dtype=object)
        x["empty"], x["none"] = np.nan, pandas.Series([None] * 200, dtype=object)
        x.loc[held[4], ["day", "dose", "none"]] = "unknown"
        x.loc[held[5], "empty"] = 3.0
        delta = Nearest(10) if isinstance(law, Network) else "auto"
        settings = {"law": law, "random_state": 0, "delta": delta}
        with pytest.warns(UserWarning, match="left out: 'still'"):
            model = LocalW2Regressor(**settings, calibrate="split").fit(x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the constant column is left out
            x.loc[held[4], ["day", "dose"]] = None  # as the fit reads these cells
            alone = LocalW2Regressor(**settings).fit(x.iloc[others], y[others])
            np.testing.assert_array_equal(model.sample(x, 3, 0), alone.sample(x, 3, 0))
            numbers = alone.encode(x.iloc[held])
        assert model.columns_.dropped == alone.columns_.dropped
        assert set(model.columns_.dropped) == {3, 6, 7}
        assert model.columns_.dates == (3,)
        assert "only here" not in model.columns_.categories[1]
        assert model.outcomes_.lower == alone.outcomes_.lower == [0.0]
        np.testing.assert_array_equal(model.calibration_.scores, alone.law_.scores(numbers, y[held, None]))
        assert model.calibration_.scores[2] == LARGEST_SCORE  # the law says that this y cannot be
        if isinstance(law, list):
            model.save(tmp_path / "m")
            some = x.iloc[others]
            np.testing.assert_array_equal(load(tmp_path / "m").sample(some, 2, 0), model.sample(some, 2, 0))

    def test_what_is_left_out_is_said_of_the_rows_that_are_fitted(self):
        """Whole numbers that fill just over half of their range number the rows; in a part they may not."""
        rng = np.random.default_rng(0)
        x = pandas.DataFrame({"id": rng.choice(390, 200, replace=False), "x": rng.normal(size=200)})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = LocalW2Regressor(**BALLS, base=None, calibrate="split").fit(x, rng.normal(size=200))
        assert any("left out" in str(one.message) for one in said) == bool(model.law_.columns.dropped)

    def test_an_impossible_outcome_counts_as_a_miss(self):
        """Exact coverage with bounds found on the fitted rows: what they exclude is never covered."""
        x, y = survey(60)
        held, _ = calibrating.hold_out(60, draw_seed(0))
        y[held] = -np.abs(y[held])  # all of them below the bound that the others show
        model = LocalW2Regressor(**BALLS, base=None, calibrate="split").fit(x, y)
        assert (model.calibration_.scores == LARGEST_SCORE).all()
        lower, upper = model.predict_interval(x, 0.5)
        assert np.isneginf(lower).all()
        assert np.isposinf(upper).all()


@pytest.fixture(scope="module")
def plus():
    x, y = survey(60)
    return LocalW2Regressor(**BALLS, base=LinearRegression(), calibrate="cv+").fit(x, y), x, y


class TestPlus:
    """CV+: the fits to all but one part each, at new rows."""

    def test_the_fit_itself_is_unchanged_and_parts_share_nothing(self, plus):
        model, x, y = plus
        plain = LocalW2Regressor(**BALLS, base=LinearRegression()).fit(x, y)
        np.testing.assert_array_equal(model.sample(x, 3, 0), plain.sample(x, 3, 0))
        parts = calibrating.split_into_parts(60, draw_seed(0))
        assert model.calibration_.kind == "cv+"
        for number, rows in enumerate(parts):
            others = np.setdiff1d(np.arange(60), rows)
            part = LocalW2Regressor(**BALLS | {"random_state": draw_seed(0) % 2**32}, base=LinearRegression())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a category of these rows alone
                part.fit(x.iloc[others], y[others])
                found = part.law_.scores(part.encode(x.iloc[rows]), y[rows, None])
            chosen = model.calibration_.parts == number
            np.testing.assert_array_equal(model.calibration_.scores[chosen], found)

    @pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
    def test_the_interval_is_that_of_the_definition(self, plus, level):
        """Ends of each row's set, found by trying values, and the k-th of them from outside."""
        model, x, _ = plus
        new, grid, sets = x.iloc[:4], np.linspace(-0.01, 8, 802), []
        for number, part in enumerate(model.law_.without):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                numbers = read_rows(model, new, part.columns)
            ((_, draws),) = part.common_draws(numbers)
            own = central_scores(np.repeat(grid, 4), np.tile(draws[..., 0], len(grid))).reshape(-1, 4)
            own[grid < 0] = LARGEST_SCORE  # y is never negative
            scores = model.calibration_.scores[model.calibration_.parts == number, 0]
            inside = own <= scores[:, None, None] + 1e-12
            low, high = (np.where(inside, grid[:, None], end) for end in (np.inf, -np.inf))
            sets.append([low.min(1), high.max(1)])
        lows, highs = np.concatenate(sets, axis=1)
        k = int((1 - level) * 61 + 1e-9)
        lower, upper = model.predict_interval(new, level)
        np.testing.assert_allclose(lower, np.sort(lows, axis=0)[k - 1], atol=0.011)
        np.testing.assert_allclose(upper, np.sort(highs, axis=0)[-k], atol=0.011)

    def test_a_column_that_only_parts_use_must_be_there(self, plus):
        """A row number may be none without some rows; then the fits that make the intervals need it."""
        rng = np.random.default_rng(0)
        x = pandas.DataFrame({"id": np.append(np.arange(1, 41), [78, 79]), "x": rng.normal(size=42)})
        with pytest.warns(UserWarning, match="left out: 'id'"):
            model = LocalW2Regressor(**BALLS, base=None, calibrate="cv+").fit(x, rng.normal(size=42))
        assert model.predict(x[["x"]]).shape == (42,)
        if any(0 in part.columns.used for part in model.law_.without):
            with pytest.raises(ValueError, match="no column 'id'"):
                model.predict_interval(x[["x"]])
        assert model.predict_interval(x)[0].shape == (42,)

    def test_one_value_in_a_column_is_enough(self, tmp_path):
        """The part that holds it is scored by a fit to which the column is empty."""
        x, y = survey(60)
        x["once"], x["word"] = np.nan, pandas.Series([None] * 60, dtype=object)
        x.loc[7, "once"], x.loc[9, "word"] = 1.0, "word"
        model = LocalW2Regressor(**BALLS, base=LinearRegression(), calibrate="cv+").fit(x, y)
        model.save(tmp_path / "m")
        np.testing.assert_array_equal(load(tmp_path / "m").predict_interval(x), model.predict_interval(x))

    def test_too_few_rows_are_said_once(self, plus):
        model, x, _ = plus
        with pytest.warns(UserWarning, match="999") as said:
            model.predict_interval(pandas.concat([x] * 10), 0.999)
        assert len(said) == 1

    def test_no_checkpoint_stays(self, tmp_path):
        x, y = line(40, 0)
        settings = QUICK | {"delta": [0.5, 1.0]}
        LocalW2Regressor(**settings, calibrate="cv+", checkpoint=tmp_path / "c").fit(x, y)
        assert list(tmp_path.iterdir()) == []

    def test_intervals_cover(self, few_draws):
        """12 tables of 100 rows: about 90 %, and well above the 75 % that are guaranteed."""
        hits = []
        for seed in range(12):
            (x, y), (new_x, new_y) = line(100, seed), line(400, 1000 + seed)
            settings = {"law": BallLaw(20, 10), "base": LinearRegression(), "random_state": seed}
            model = LocalW2Regressor(**settings, calibrate="cv+").fit(x, y)
            hits.append(coverage(new_y, *model.predict_interval(new_x)))
        error = np.sqrt((stats.beta(91, 10).var() + 0.09 / 400) / 12)
        assert np.mean(hits) == pytest.approx(0.905, abs=2 * 3 * error)
        assert np.mean(hits) > guaranteed_plus(0.9, 100, 10)

    @pytest.mark.slow
    def test_unstable_fits_keep_the_guarantee(self, few_draws):
        """60 tables of 50 rows and 40 columns, where a straight line is another one in every fold."""
        shares = {"cv": [], "cv+": []}
        for seed in range(60):
            rng = np.random.default_rng(seed)
            x, slopes = rng.normal(size=(250, 40)), 3 * rng.normal(size=40) / 40**0.5
            y = x @ slopes + rng.normal(size=250)
            for kind, found in shares.items():
                settings = {"law": BallLaw(10, 5), "base": LinearRegression(), "random_state": seed}
                model = LocalW2Regressor(**settings, calibrate=kind)
                found.append(coverage(y[50:], *model.fit(x[:50], y[:50]).predict_interval(x[50:])))
        errors = {kind: np.std(found, ddof=1) / 60**0.5 for kind, found in shares.items()}
        for kind, found in shares.items():
            print(f"\n{kind}: {np.mean(found):.3f} +- {errors[kind]:.3f}")
        assert np.mean(shares["cv+"]) - 3.3 * errors["cv+"] > guaranteed_plus(0.9, 50, 10)
        assert np.mean(shares["cv+"]) + 3.3 * errors["cv+"] > 0.9  # in practice; this is not guaranteed

    def test_boxes(self, few_draws):
        x, y = pair(60)
        model = LocalW2Regressor(**QUICK, calibrate="cv+").fit(x, y)
        (low, high), (lower, upper) = (model.predict_interval(x, 0.8, joint=joint) for joint in (False, True))
        assert low.shape == upper.shape == (60, 2)
        assert (lower <= low).all()
        assert (high <= upper).all()
        new_x, new_y = pair(2000, 1)
        lower, upper = model.predict_interval(new_x, 0.8, joint=True)
        assert ((lower <= new_y) & (new_y <= upper)).all(1).mean() > guaranteed_plus(0.8, 60, 10)

    def test_round_trip(self, plus, tmp_path):
        model, x, _ = plus
        model.save(tmp_path / "model")
        loaded = load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict_interval(x, 0.8), model.predict_interval(x, 0.8))
        assert repr(loaded.calibration_) == "Calibration(60 rows, kind='cv+')"

    @pytest.mark.parametrize(
        "damage",
        [
            lambda s, t: s["without"].pop(),
            lambda s, t: s["without"][0].update(without=s["without"][1:2]),
            lambda s, t: s["without"][0].update(n_outputs=2),
            lambda s, t: t.pop("calibration_parts"),
            lambda s, t: t["calibration_parts"].fill_(0),
            lambda s, t: t["calibration_parts"].add_(1),
            lambda s, t: s.update(calibration="cv"),
        ],
    )
    def test_damaged_files_are_refused(self, plus, damage):
        stored = plus[0].to_stored()
        stored = Stored(
            stored.kind,
            copy.deepcopy(stored.settings),
            copy.deepcopy(stored.tensors),
            dict(stored.regressors),
        )
        damage(stored.settings, stored.tensors)
        with pytest.raises(ValueError):
            LocalW2Regressor.from_stored(stored)

    def test_progress_names_the_part(self, capsys):
        x, y = line(40, 0)
        LocalW2Regressor(**BALLS, base=None, calibrate="cv+", verbose=True).fit(x, y)
        assert "calibrating, part 10 of 10: finding similar rows" in capsys.readouterr().err


class TestIntervals:
    def test_grow_with_coverage_and_joint_is_wider(self, fitted):
        model, x, _ = fitted
        ends = [model.predict_interval(x, c) for c in (0.3, 0.6, 0.9)]
        for (low, high), (lower, higher) in pairwise(ends):
            assert (lower <= low).all()
            assert (high <= higher).all()
        lower, upper = model.predict_interval(x, 0.6, joint=True)
        assert (lower <= ends[1][0]).all()
        assert (ends[1][1] <= upper).all()

    def test_companions_do_not_matter(self, fitted):
        model, x, _ = fitted
        for joint in (False, True):
            together = np.array(model.predict_interval(x, 0.8, joint=joint))
            alone = np.array(model.predict_interval(x[7:8], 0.8, joint=joint))
            np.testing.assert_allclose(alone, together[:, 7:8], rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(("scale", "shift"), [(-3.0, 7.0), (1e-3, 0.0)])
    def test_units_of_y_do_not_matter(self, scale, shift):
        """Shift, scale and sign of y change the calibrated interval with it, for a base that follows."""
        x, y = line(80, 0)
        settings = QUICK | {"base": LinearRegression()}
        ours = LocalW2Regressor(**settings, calibrate=True).fit(x, y)
        theirs = clone(ours).fit(x, scale * y + shift)
        width = [np.subtract(*model.predict_interval(x)[::-1]).mean() for model in (ours, theirs)]
        # The network starts from the same weights, not from their mirror image.
        assert width[1] / (abs(scale) * width[0]) == pytest.approx(1, abs=0.25 if scale < 0 else 1e-3)

    def test_few_values_of_y(self):
        """Outcomes 0 and 1: sets that hold both, or what there is of them."""
        rng = np.random.default_rng(0)
        x = rng.uniform(size=(100, 1))
        y = (rng.random(100) < 0.5).astype(float)
        model = LocalW2Regressor(**QUICK, calibrate=True).fit(x, y)
        lower, upper = model.predict_interval(x, 0.9)
        assert coverage(y, lower, upper) > 0.85
        constant = clone(model).fit(x, np.full(100, 3.0)).predict_interval(x)
        np.testing.assert_allclose(constant, 3.0, rtol=1e-9)

    def test_uncalibrated_box_is_that_of_the_draws(self):
        x, y = pair(80)
        model = LocalW2Regressor(**QUICK).fit(x, y)
        lower, upper = model.predict_interval(x[:5], 0.8, joint=True)
        ((_, draws),) = model.law_.common_draws(x[:5])
        held = ((lower <= draws) & (draws <= upper)).all(-1).mean(0)
        np.testing.assert_allclose(held, 0.8, atol=0.002)
        one = clone(model).fit(x, y[:, 0])
        np.testing.assert_array_equal(one.predict_interval(x, 0.8, joint=True), one.predict_interval(x, 0.8))

    def test_too_few_rows_for_the_coverage(self, fitted):
        model, x, _ = fitted
        with pytest.warns(UserWarning, match="999"):
            lower, upper = model.predict_interval(x[:3], 0.999)
        assert np.isfinite([lower, upper]).all()

    def test_a_frame_keeps_its_names(self):
        x, y = pair(60)
        frame = pandas.DataFrame(x, columns=["a", "b"])
        for calibrate in (True, False):
            model = LocalW2Regressor(**QUICK, calibrate=calibrate).fit(frame, y)
            assert model.predict_interval(frame, 0.8, joint=True)[0].shape == (60, 2)
            assert model.predict_interval(frame, 0.8)[0].shape == (60, 2)


class TestErrors:
    def test_settings(self):
        x, y = line(30, 0)
        with pytest.raises(ValueError, match="calibrate"):
            LocalW2Regressor(**QUICK, calibrate="folds").fit(x, y)
        with pytest.raises(ValueError, match="calibrate"):
            LocalW2Regressor(**QUICK, calibrate=True).fit(x[:9], y[:9])
        LocalW2Regressor(**QUICK | {"delta": 2.0}, calibrate=True).fit(x[:10], y[:10])

    def test_arguments(self, fitted):
        model, x, _ = fitted
        with pytest.raises(ValueError, match="joint"):
            model.predict_interval(x, 0.9, joint="yes")
        with pytest.raises(ValueError, match="coverage"):
            model.predict_interval(x, 1.5)
        with pytest.raises(NotFittedError):
            LocalW2Regressor(calibrate=True).predict_interval(x)

    def test_a_setting_that_came_after_the_fit(self):
        x, y = line(30, 0)
        model = LocalW2Regressor(**QUICK).fit(x, y).set_params(calibrate=True)
        with pytest.warns(UserWarning, match="calibrated"):
            model.predict_interval(x)


class TestStored:
    @pytest.mark.parametrize("outputs", [1, 2])
    def test_round_trip(self, fitted, tmp_path, outputs):
        model, x, y = fitted
        if outputs == 1:
            model = clone(model).fit(x, y[:, 0])
        model.save(tmp_path / "model")
        loaded = load(tmp_path / "model")
        for joint in (False, True):
            np.testing.assert_array_equal(
                loaded.predict_interval(x, 0.7, joint), model.predict_interval(x, 0.7, joint)
            )
        assert loaded.calibration_.kind == "cv"
        assert loaded.calibrate is True

    def test_files_from_before_still_load(self):
        x, y = line(30, 0)
        model = LocalW2Regressor(**QUICK).fit(x, y)
        stored = model.to_stored()
        del stored.settings["calibration"], stored.settings["parameters"]["calibrate"]
        loaded = LocalW2Regressor.from_stored(stored)
        assert loaded.calibration_ is None
        np.testing.assert_array_equal(loaded.predict_interval(x), model.predict_interval(x))

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda s, t: s.update(calibration=None),
            lambda s, t: s.pop("calibration"),
            lambda s, t: s.update(calibration="whole"),
            lambda s, t: s.update(calibration=3),
            lambda s, t: s.update(calibration=["split"]),
            lambda s, t: t.pop("calibration_scores"),
            lambda s, t: t.update(calibration_scores=torch.zeros(120, 3, dtype=torch.float64)),
            lambda s, t: t.update(calibration_scores=torch.zeros(120, 2)),
            lambda s, t: t.update(calibration_scores=torch.zeros(0, 2, dtype=torch.float64)),
            lambda s, t: t.update(calibration_scores=torch.zeros((), dtype=torch.float64)),
            lambda s, t: t["calibration_scores"].fill_(-1.0),
            lambda s, t: t["calibration_scores"].fill_(np.nan),
            lambda s, t: t["calibration_scores"].fill_(np.inf),
        ],
    )
    def test_parts_that_do_not_fit_are_refused(self, fitted, spoil):
        stored = fitted[0].to_stored()
        stored = Stored(stored.kind, dict(stored.settings), dict(stored.tensors), stored.regressors)
        spoil(stored.settings, stored.tensors)
        with pytest.raises(ValueError):
            LocalW2Regressor.from_stored(stored)


def stopping(at_fit, epoch, stop):
    """A ``train`` in which ``stop`` is called after an epoch of one of the fits, counted from 0."""
    fits = []

    def cut(model, objective, inputs, config):
        fits.append(config)

        def watch(entry):
            if len(fits) == at_fit + 1 and entry["epoch"] == epoch:
                stop()

        return train(model, objective, inputs, config, callbacks=(watch,))

    return cut


def interrupt():
    raise KeyboardInterrupt


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from localw2 import LocalW2Regressor
from localw2.estimators.regression import network
from test_calibrated_regression import KEPT, line, stopping

network.train = stopping(2, 52, lambda: os.kill(os.getpid(), signal.SIGKILL))
LocalW2Regressor(**KEPT, checkpoint=sys.argv[1]).fit(*line(60, 0))
"""
KEPT = QUICK | {"law": Network(width=4, epochs=55), "calibrate": True}


class TestStopped:
    def test_ctrl_c_in_the_fit_leaves_intervals_uncalibrated(self, monkeypatch):
        x, y = line(40, 0)
        monkeypatch.setattr(network, "train", stopping(0, 3, interrupt))
        with (
            pytest.warns(UserWarning, match="epoch"),
            pytest.warns(UserWarning, match="predict_interval"),
        ):
            model = LocalW2Regressor(**QUICK, calibrate=True).fit(x, y)
        assert model.calibration_ is None
        with pytest.warns(UserWarning, match="calibrated"):
            model.predict_interval(x)

    @pytest.mark.parametrize(("at_fit", "rows"), [(1, 0), (3, 8)])
    @pytest.mark.parametrize("epoch", [1, 3])
    def test_ctrl_c_in_the_calibration_keeps_what_there_is(self, monkeypatch, at_fit, rows, epoch):
        x, y = line(40, 0)
        whole = LocalW2Regressor(**QUICK, calibrate=True).fit(x, y)
        monkeypatch.setattr(network, "train", stopping(at_fit, epoch, interrupt))
        with pytest.warns(UserWarning, match="calibrated") as caught:
            model = LocalW2Regressor(**QUICK, calibrate=True).fit(x, y)
        assert len(caught) == 1  # and none about the training of a part
        np.testing.assert_array_equal(model.predict(x), whole.predict(x))
        assert model.fit_.stopped == "interrupted in the calibration"
        if rows:
            np.testing.assert_array_equal(model.calibration_.scores, whole.calibration_.scores[:rows])
        else:
            assert model.calibration_ is None

    def test_ctrl_c_while_a_part_of_a_pool_is_weighed_ends_the_calibration(self, monkeypatch):
        x, y = line(60, 0)
        calls = []
        tried = fitting._try_balls

        def try_balls(*args):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return tried(*args)

        monkeypatch.setattr(fitting, "_try_balls", try_balls)
        with pytest.warns(UserWarning, match="calibrated") as caught:
            model = LocalW2Regressor("balls", base=Ridge(), calibrate=True, random_state=0).fit(x, y)
        assert len(caught) == 1
        assert len(calls) == 3
        assert model.calibration_.n_rows == 6

    @pytest.mark.parametrize("n", [76, 82])
    def test_parts_have_fewer_rows_than_a_candidate_is_listed_for(self, n):
        """Boosting is chosen from 75 rows on; a part without a tenth of them uses it too."""
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (n, 2))
        y = 5.0 * (x[:, 0] > 0) + 0.1 * rng.normal(size=n)
        model = LocalW2Regressor("balls", calibrate=True, random_state=0).fit(x, y)
        assert "boosting" in model.base_name_
        assert model.calibration_.n_rows == n

    def test_a_split_fit_is_calibrated_as_far_as_it_came(self, split, monkeypatch):
        x, y = line(120, 0)
        monkeypatch.setattr(network, "train", stopping(0, 3, interrupt))
        with pytest.warns(UserWarning, match="epoch"):
            model = LocalW2Regressor(**QUICK, calibrate=True).fit(x, y)
        assert model.calibration_.n_rows == 24

    def test_a_part_that_fails_leaves_the_old_fit_whole(self, monkeypatch):
        x, y = line(40, 0)
        model = LocalW2Regressor(**QUICK, calibrate=True).fit(x, y)
        before = model.predict_interval(x, 0.8)

        def fail():
            raise FloatingPointError

        monkeypatch.setattr(network, "train", stopping(2, 3, fail))
        with pytest.raises(FloatingPointError):
            model.fit(x, 10 * y)
        np.testing.assert_array_equal(model.predict_interval(x, 0.8), before)

    @pytest.mark.posix
    def test_a_killed_calibration_resumes(self, tmp_path, monkeypatch, request):
        path = tmp_path / "checkpoint"
        command = [sys.executable, "-c", KILLED, str(path), str(request.path.parent)]
        killed = subprocess.run(command, check=False, capture_output=True)
        assert killed.returncode == -9, killed.stderr
        names = ["checkpoint", "checkpoint.calibration0", "checkpoint.calibration1"]
        assert len(calibrating.split_into_parts(60, 0)) == 10
        # A process that was killed leaves its lock files, but not the locks.
        assert sorted(file.name for file in tmp_path.iterdir() if file.suffix != ".lock") == names
        epochs = []

        def counted(model, objective, inputs, config):
            fit = train(model, objective, inputs, config, callbacks=(lambda e: epochs.append(e["epoch"]),))
            return fit

        x, y = line(60, 0)
        whole = LocalW2Regressor(**KEPT).fit(x, y)
        monkeypatch.setattr(network, "train", counted)
        resumed = LocalW2Regressor(**KEPT, checkpoint=path).fit(x, y)
        # Of the first three fits only the end of the third was missing.
        assert epochs == [*range(51, 56), *(list(range(1, 56)) * 8)]
        np.testing.assert_array_equal(resumed.calibration_.scores, whole.calibration_.scores)
        np.testing.assert_array_equal(resumed.predict(x), whole.predict(x))
        assert list(tmp_path.iterdir()) == []
