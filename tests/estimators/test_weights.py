"""Weights of rows in the estimators: ratios, zeros, repeated rows, and the law that they stand for."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Lars, LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from localw2 import (
    BallLaw,
    LocalW2FieldRegressor,
    LocalW2ODE,
    LocalW2Regressor,
    Nearest,
    Network,
    RandomCoefficientRegressor,
    load,
    save,
    select_delta,
)
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.spread import local_spread
from localw2.estimators.coefficients.gaussian import CoefficientLaw, _kept_variance, robust_errors
from localw2.estimators.regression.ball_law import FilledForest
from localw2.estimators.regression.boosting import Boosting
from localw2.estimators.regression.category_codes import CategoryCodes
from localw2.estimators.regression.forest import Forest
from localw2.estimators.regression.loss import Anchored, anchor_strength
from localw2.estimators.regression.outcomes import Outcomes, Rounding, rows_to_match
from localw2.estimators.regression.pooling import find_narrowing, mean_score, pool_weights
from localw2.estimators.settings import hash_fit, keep_weighted
from localw2.judging.conformal import Calibration, joint_threshold, plus_interval, threshold
from localw2.judging.seen_rows import judge_seen
from localw2.losses.discrepancies import SquaredW2


def rows(n=120, p=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    return x, x[:, 0] + (0.3 + 0.2 * (x[:, 1] > 0)) * rng.normal(size=n), rng.integers(1, 4, n)


# --- what the door does ---


def make_estimators():
    quick = Network(width=8, epochs=5)
    return [
        LocalW2Regressor("balls", random_state=0),
        LocalW2Regressor([BallLaw(n_trees=5), quick], Ridge(), random_state=0),
        LocalW2Regressor(quick, base=None, calibrate="split", random_state=0),
        RandomCoefficientRegressor(n_draws=4, n_bootstrap=3, random_state=0),
        RandomCoefficientRegressor("ml", "full", random_state=0),
        RandomCoefficientRegressor(debiased=False, max_epochs=5, random_state=0),
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", make_estimators(), ids=lambda e: repr(e)[:60])
class TestEveryRegressor:
    def test_equal_weights_are_no_weights(self, estimator):
        x, y, _ = rows()
        plain = estimator.fit(x, y).sample(x[:5], 20, random_state=0)
        for equal in (np.ones(len(y)), np.full(len(y), 3.7)):
            same = estimator.fit(x, y, sample_weight=equal).sample(x[:5], 20, random_state=0)
            np.testing.assert_array_equal(same, plain)

    def test_only_ratios_matter_and_weights_do(self, estimator):
        x, y, weights = rows()
        plain, once, again = (
            estimator.fit(x, y, sample_weight=w).sample(x[:5], 20, random_state=0)
            for w in (None, weights, 4.0 * weights)
        )
        np.testing.assert_array_equal(once, again)
        assert not np.array_equal(once, plain)

    def test_rows_of_weight_zero_are_as_if_they_were_not_there(self, estimator):
        x, y, weights = rows()
        dirty_x, dirty_y, zero = x.copy(), y.copy(), np.arange(0, len(y), 7)
        dirty_x[zero], dirty_y[zero] = 1e9, np.nan
        weights[zero] = 0
        kept = np.flatnonzero(weights)
        clean = estimator.fit(x[kept], y[kept], sample_weight=weights[kept]).sample(x[:5], 20, random_state=0)
        dirty = estimator.fit(dirty_x, dirty_y, sample_weight=weights).sample(x[:5], 20, random_state=0)
        np.testing.assert_array_equal(dirty, clean)

    @pytest.mark.parametrize(
        ("weights", "words"),
        [
            (np.ones(3), "shape"),
            (np.ones((120, 1)), "shape"),
            (-np.ones(120), "negative"),
            (np.zeros(120), "zeros"),
            (np.full(120, np.nan), "NaN"),
            (np.r_[np.ones(119), 1e-12], "drown"),
        ],
    )
    def test_bad_weights_are_refused(self, estimator, weights, words):
        x, y, _ = rows()
        with pytest.raises(ValueError, match=words):
            estimator.fit(x, y, sample_weight=weights)


def make_field_rows(n=60, seed=0):
    x, level, weights = rows(n, seed=seed)
    grid = np.linspace(0, 1, 6)
    return x, level[:, None] * np.sin(3 * grid) + x[:, 1:] * grid, weights


@pytest.mark.filterwarnings("ignore")
class TestFields:
    """The same laws for fields, which no number stands for."""

    model = LocalW2FieldRegressor(LocalW2Regressor(BallLaw(5), base=None), calibrate=True, random_state=0)

    def test_equal_weights_are_no_weights(self):
        x, fields, _ = make_field_rows()
        plain = self.model.fit(x, fields).predict_band(x[:5], 0.5)
        same = self.model.fit(x, fields, sample_weight=np.full(60, 3.7)).predict_band(x[:5], 0.5)
        np.testing.assert_array_equal(same, plain)

    def test_only_ratios_matter_and_weights_do(self, tmp_path):
        x, fields, weights = make_field_rows()
        plain, once, again = (
            self.model.fit(x, fields, sample_weight=w).predict_band(x[:5], 0.5)
            for w in (None, weights, 4.0 * weights)
        )
        np.testing.assert_array_equal(once, again)
        assert not np.array_equal(once, plain)
        save(self.model, tmp_path / "model")
        np.testing.assert_array_equal(load(tmp_path / "model").predict_band(x[:5], 0.5), again)

    def test_fields_of_weight_zero_are_as_if_they_were_not_there(self):
        x, fields, weights = make_field_rows()
        weights[::7] = 0
        kept = np.flatnonzero(weights)
        dirty = np.where(weights[:, None] > 0, fields, np.nan)
        clean = self.model.fit(x[kept], fields[kept], sample_weight=weights[kept]).sample(x, random_state=0)
        with_them = self.model.fit(x, dirty, sample_weight=weights).sample(x, random_state=0)
        np.testing.assert_array_equal(with_them, clean)

    def test_curves_of_weight_zero_lose_their_points_too(self):
        x, fields, weights = make_field_rows()
        weights[::7] = 0
        kept = np.flatnonzero(weights)
        points = [np.linspace(0, 1, 6)] * 60
        model = LocalW2FieldRegressor(LocalW2Regressor(BallLaw(5), base=None), random_state=0)
        clean = model.fit(x[kept], [fields[i] for i in kept], [points[i] for i in kept], weights[kept])
        clean = clean.predict(x[:3])
        with_them = model.fit(x, list(fields), points, sample_weight=weights).predict(x[:3])
        np.testing.assert_array_equal(with_them, clean)

    def test_weights_move_the_mean_field_and_its_spread(self):
        rng = np.random.default_rng(0)
        n = 1500
        x, common = rng.uniform(size=(n, 1)), rng.random(n) < 0.5
        grid = np.linspace(0, 1, 5)
        spread = np.where(common, 0.5, 1.5)[:, None]
        fields = np.where(common, 0.0, 2.0)[:, None] + spread * rng.normal(size=(n, 1)) * (1 + grid)
        weights = np.where(common, 3.0, 1.0)
        mean, std = self.model.fit(x, fields, sample_weight=weights).predict([[0.5]], return_std=True)
        np.testing.assert_allclose(mean[0], 0.5, atol=0.3)  # unweighted: 1
        variance = 0.75 * (spread.min() * (1 + grid)) ** 2 + 0.25 * (spread.max() * (1 + grid)) ** 2 + 0.75
        np.testing.assert_allclose(std[0] ** 2, variance, rtol=0.25)

    @pytest.mark.parametrize(("weights", "words"), [(np.ones(3), "shape"), (-np.ones(60), "negative")])
    def test_bad_weights_are_refused(self, weights, words):
        x, fields, _ = make_field_rows()
        with pytest.raises(ValueError, match=words):
            self.model.fit(x, fields, sample_weight=weights)


def test_frames_lose_the_same_rows():
    x, y, weights = rows()
    weights[::5] = 0
    frame = pd.DataFrame({"a": x[:, 0], "b": np.where(x[:, 1] > 0, "up", "down")}, index=np.arange(120)[::-1])
    target = pd.Series(y, index=frame.index)
    model = LocalW2Regressor("balls", random_state=0).fit(frame, target, sample_weight=pd.Series(weights))
    kept = weights > 0
    same = LocalW2Regressor("balls", random_state=0).fit(frame[kept], target[kept], weights[kept])
    np.testing.assert_array_equal(model.predict(frame), same.predict(frame))


def test_weights_of_unequal_size_but_no_overflow():
    assert keep_weighted([1e308, 1e308, 5e307], 3)[1] == pytest.approx([1.2, 1.2, 0.6])
    assert keep_weighted([5e-324, 0, 5e-324], 3)[1] is None


def test_a_stray_is_named_by_its_place_in_the_table():
    x, y, weights = rows()
    y[17], weights[:10] = 1e7, 0
    with pytest.warns(UserWarning, match="row 17"):
        RandomCoefficientRegressor("ml").fit(x, y, sample_weight=weights)
    for calibrate in (False, "split"):
        model = LocalW2Regressor([BallLaw(n_trees=5)], None, calibrate=calibrate, random_state=0)
        with pytest.warns(UserWarning, match="row 17"):
            model.fit(x, y, sample_weight=weights)


@pytest.mark.parametrize("estimator", [LocalW2Regressor("balls"), RandomCoefficientRegressor("ml")])
def test_rows_that_do_not_belong_together_are_refused(estimator):
    """Rows of weight 0 are dropped first, which must not hide it."""
    x, y, weights = rows()
    weights[:5] = 0
    for wrong in (y[:-1], np.append(y, 1.0)):
        with pytest.raises(ValueError, match="inconsistent"):
            estimator.fit(x, wrong, sample_weight=weights)
    with pytest.raises(ValueError, match="y"):
        estimator.fit(x, None, sample_weight=weights)


def test_the_fingerprint_of_a_fit_knows_the_weights():
    x, y, weights = rows()
    prints = {hash_fit({}, x, y), hash_fit({}, x, y, weights), hash_fit({}, x, y, weights[::-1])}
    assert len(prints) == 3


# --- parts that equal repeated rows exactly ---


def test_a_filled_forest_draws_as_if_rows_were_repeated():
    x, y, weights = rows()
    forest = Forest.grow(x, y[:, None], [], 7, 5, 0, None)
    again, folds = np.repeat(np.arange(len(y)), weights), np.zeros(len(y), np.int16)
    weighted = FilledForest.fill(forest, x, y[:, None], folds, 0, weights.astype(float))
    repeated = FilledForest.fill(forest, x[again], y[again, None], folds[again], 0)
    np.testing.assert_allclose(weighted.means, repeated.means, rtol=1e-12, atol=1e-14)
    rng = np.random.default_rng(0)
    nodes = np.flatnonzero(weighted.counts > 0)[rng.integers(0, (weighted.counts > 0).sum(), 5000)]
    levels = rng.random(5000)
    np.testing.assert_array_equal(weighted.pick(nodes, levels), again[repeated.pick(nodes, levels)])


def test_a_row_is_drawn_as_often_as_its_weight_says():
    x, y, _ = rows(60)
    weights = np.random.default_rng(1).exponential(size=60) + 0.1
    law = LocalW2Regressor([BallLaw(min_rows=60, on="outcomes")], None, random_state=0)
    draws = law.fit(x, y, sample_weight=weights).sample(x[:1], 40_000, random_state=0)[:, 0]
    chance = weights / weights.sum()
    seen = np.array([(draws == value).mean() for value in y])
    assert (np.abs(seen - chance) < 5 * np.sqrt(chance / 40_000)).all()
    (mean,) = law.predict(x[:1])
    assert mean == pytest.approx(chance @ y, abs=0.02)


@pytest.mark.parametrize("categorical", [False, True])
def test_boosting_of_whole_weights_is_boosting_of_copies(categorical):
    rng = np.random.default_rng(2)
    x = rng.integers(0, 8, (150, 3)).astype(float)
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, :1]) ** 2 + x[:, 1:2].round() * 0 + rng.normal(size=(150, 1))
    y = np.where(np.isnan(y), 0.0, y)
    weights = rng.integers(1, 4, 150)
    again = np.repeat(np.arange(150), weights)
    trees, columns = Boosting(20, 0.3, 3, 1), [0] if categorical else []
    used = np.ones((1, 150), bool)
    ((ours, codes),) = trees.fit_many(x, y, used, columns, 0, weights.astype(float))
    ((theirs, again_codes),) = trees.fit_many(x[again], y[again], np.ones((1, len(again)), bool), columns, 0)
    found, expected = ours.predict(codes.apply(x)), theirs.predict(again_codes.apply(x))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)  # histograms are in single precision


def test_boosting_counts_rows_not_weights_in_leaves():
    x, y = np.arange(20.0)[:, None], np.r_[np.zeros(3), np.ones(17)][:, None]
    weights = np.r_[np.full(3, 100.0), np.ones(17)]
    ((trees, _),) = Boosting(1, 1.0, 1, 5).fit_many(x, y, np.ones((1, 20), bool), [], 0, weights)
    assert trees.threshold[0, 0, 0] >= 4


def test_category_means_are_weighted():
    x, y = np.array([0.0, 0, 1, 1])[:, None], np.array([0.0, 1.0, 2.0, 5.0])
    plain = CategoryCodes.by_mean(x[[0, 1, 1, 2, 3, 3]], y[[0, 1, 1, 2, 3, 3]], [0])
    found = CategoryCodes.by_mean(x, y, [0], np.array([1.0, 2.0, 1.0, 2.0]))
    np.testing.assert_allclose(found.maps[0], plain.maps[0])


@pytest.mark.parametrize("d", [1, 2])
def test_scores_and_weights_of_a_pool(d):
    rng = np.random.default_rng(3)
    y, draws = rng.normal(size=(60, d)), [rng.normal(m, 1 + m, size=(40, 60, d)) for m in (0, 0.5, 1)]
    counts = rng.integers(1, 4, 60)
    again, weights = np.repeat(np.arange(60), counts), counts.astype(float)
    assert mean_score(draws[0], y, weights) == pytest.approx(mean_score(draws[0][:, again], y[again]))
    repeated = pool_weights([part[:, again] for part in draws], y[again] / y[again].std(0) * y.std(0))
    ours = pool_weights(draws, y / y[again].std(0) * y.std(0), weights)
    assert ours == pytest.approx(repeated, abs=0.02)
    wide = [3 * draws[0]]
    assert find_narrowing(lambda f: f * wide[0], y, weights) < 1


def test_cuts_match_weighted_shares():
    rng = np.random.default_rng(4)
    y, draws = rng.poisson(1.0, (300, 1)).astype(float), rng.gamma(2.0, 1.0, (5000, 1))
    weights = rng.integers(1, 5, 300).astype(float)
    again = np.repeat(y, weights.astype(int), axis=0)
    outcomes = Outcomes.of(y, "auto", "auto")
    found, expected = Rounding.match(outcomes, draws, y, weights), Rounding.match(outcomes, draws, again)
    np.testing.assert_allclose(found.cuts[0], expected.cuts[0])
    chosen = rows_to_match(300, rng, weights)
    counts = np.bincount(chosen, minlength=300)
    assert np.abs(counts - 300 * weights / weights.sum()).max() < 1 + 1e-9


def test_local_spread_and_the_anchor_are_weighted():
    rng = np.random.default_rng(5)
    weights, residuals = rng.integers(1, 4, 40), rng.normal(size=(40, 2))
    again = np.repeat(np.arange(40), weights)
    ours = local_spread(Neighborhoods.whole(40).weigh(weights), residuals)
    np.testing.assert_allclose(ours[again], local_spread(Neighborhoods.whole(len(again)), residuals[again]))
    hoods = Neighborhoods.nearest(rng.normal(size=40), 10)
    equal = anchor_strength(hoods.weigh(np.full(40, 2.0)), residuals)
    assert equal == pytest.approx(anchor_strength(hoods, residuals))
    assert Anchored(SquaredW2(), 1.0).takes_weights
    for by_ball in (False, True):
        plain = Anchored(SquaredW2(), 1.0, by_ball)._shares(Neighborhoods.whole(40).weigh(weights), _like())
        np.testing.assert_allclose(plain.numpy(), weights / weights.sum())


def _like():
    import torch

    return torch.zeros(1, dtype=torch.float64)


# --- balls and calibration ---


def test_select_delta_forecasts_with_weights():
    rng = np.random.default_rng(6)
    x, y, weights = rng.normal(size=(80, 1)), rng.normal(size=80), rng.exponential(size=80) + 0.1
    found = select_delta(x, y, None, sizes=(9,), adaptive=True, sample_weight=weights)
    expected, climate = [], []
    for i in range(80):
        near = np.argsort(np.abs(x[:, 0] - x[i, 0]))[1:9]
        expected.append(weighted_crps(y[near], weights[near], y[i]))
        climate.append(weighted_crps(y, weights, y[i]))
    score = np.average(expected, weights=weights) / np.average(climate, weights=weights)
    assert found.chosen.score == pytest.approx(score, rel=1e-9)
    hoods = {"cells": Neighborhoods.cells(x, 10)}
    same, ones = (select_delta(x, y, None, hoods=hoods, sample_weight=w) for w in (None, np.ones(80)))
    for a, b in zip(same.candidates, ones.candidates, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-9)
    with pytest.raises(ValueError, match="zeros"):
        select_delta(x, y, sample_weight=weights * (x[:, 0] > 0))


def weighted_crps(values, weights, y):
    p = weights / weights.sum()
    return p @ np.abs(values - y) - p @ np.abs(values[:, None] - values) @ p / 2


def test_equal_weights_give_the_unweighted_levels():
    scores, ones = np.random.default_rng(7).random((99, 2)), np.ones(99)
    for coverage in (0.5, 0.8, 0.9, 0.95):
        for find in (threshold, joint_threshold):
            np.testing.assert_array_equal(find(scores, coverage, ones), find(scores, coverage))
            np.testing.assert_array_equal(find(scores, coverage, 0.3 * ones), find(scores, coverage))
        plain = plus_interval(-scores, scores, coverage)
        np.testing.assert_array_equal(plus_interval(-scores, scores, coverage, 0.3 * ones), plain)


def test_too_little_weight_is_said():
    with pytest.warns(UserWarning, match="no finite interval"):
        assert threshold(np.arange(5.0), 0.9, np.ones(5)) == 4


@pytest.mark.parametrize("joint", [False, True])
def test_weighted_levels_cover_the_population_that_weights_stand_for(joint):
    """Rows come half from a narrow, half from a wide group; weights make the wide one nine tenths."""
    rng = np.random.default_rng(8)
    covered, plain = [], []

    def draw(n, share):
        wide = rng.random(n) < share
        return np.abs(rng.normal(size=(n, 2))) * np.where(wide, 3.0, 1.0)[:, None], wide

    for _ in range(200):
        scores, wide = draw(200, 0.5)
        new, _ = draw(500, 0.9)
        for found, weights in ((covered, np.where(wide, 9.0, 1.0)), (plain, None)):
            inside = new <= Calibration(scores, "split", None, weights).levels(0.8, joint)
            found.append(inside.all(1).mean() if joint else inside.mean())
    error = np.std(covered) / np.sqrt(len(covered))
    assert 0.8 - 3 * error <= np.mean(covered) < 0.84
    assert np.mean(plain) < 0.75


# --- whole fits ---


def two_groups(n, seed):
    """y is 1 or -1 plus noise, each half of the time; weights make 1 three times as frequent."""
    rng = np.random.default_rng(seed)
    x, up = rng.uniform(-1, 1, (n, 1)), rng.random(n) < 0.5
    return x, np.where(up, 1.0, -1.0) + 0.2 * rng.normal(size=n), np.where(up, 3, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "law", [[BallLaw(40), BallLaw(40, on="outcomes")], Network(width=20, epochs=60)], ids=["balls", "network"]
)
@pytest.mark.parametrize("base", [None, "auto"])
def test_a_weighted_fit_is_one_to_repeated_rows_within_the_noise_of_seeds(law, base):
    grid, found, repeated = np.linspace(-0.9, 0.9, 7)[:, None], [], []
    for seed in range(4):
        x, y, weights = two_groups(200, 0)
        again = np.repeat(np.arange(200), weights)
        for kept, data in (
            (found, (x, y, weights)),
            (repeated, (x[again], y[again])),
        ):
            model = LocalW2Regressor(law, base, delta=Nearest(40), random_state=seed).fit(*data)
            mean, std = model.predict(grid, return_std=True)
            kept.append([mean.mean(), std.mean()])
    found, repeated = np.array(found), np.array(repeated)
    gap = np.abs(found.mean(0) - repeated.mean(0))
    noise = np.sqrt((found.var(0, ddof=1) + repeated.var(0, ddof=1)) / 4)
    assert (gap < 4 * noise + 0.1).all(), (gap, noise)
    # 0 +- 1 without weights; with them 3/4 of the mass is near 1: mean .5, SD sqrt(.75 + .04).
    assert found.mean(0) == pytest.approx([0.5, np.sqrt(0.79)], abs=0.15)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("calibrate", ["split", "cv", "cv+"])
def test_calibrated_weighted_fits_are_stored_and_cover(calibrate, tmp_path):
    x, y, weights = two_groups(300, 1)
    model = LocalW2Regressor([BallLaw(20, n_trees=10)], Ridge(), calibrate=calibrate, random_state=0)
    model.fit(x, y, sample_weight=weights)
    assert model.calibration_.weights.shape == (model.calibration_.n_rows,)
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    for a, b in zip(model.predict_interval(x, 0.8), again.predict_interval(x, 0.8), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(model.sample(x, 3, random_state=0), again.sample(x, 3, random_state=0))
    new_x, new_y, new_weights = two_groups(500, 2)
    lower, upper = model.predict_interval(new_x, 0.8)
    covered = np.average((lower <= new_y) & (new_y <= upper), weights=new_weights)
    assert 0.74 < covered < 0.92


@pytest.mark.parametrize("name", ["forest0.weights", "calibration_weights"])
@pytest.mark.parametrize("damage", [lambda w: -w, lambda w: w[:-1], lambda w: w * float("nan")])
def test_damaged_weights_in_a_file_are_refused(name, damage):
    x, y, weights = rows()
    model = LocalW2Regressor([BallLaw(n_trees=5)], None, calibrate="split", random_state=0)
    stored = model.fit(x, y, sample_weight=weights).to_stored()
    LocalW2Regressor.from_stored(stored)
    with pytest.raises(ValueError, match="positive numbers"):
        LocalW2Regressor.from_stored(
            replace(stored, tensors=stored.tensors | {name: damage(stored.tensors[name])})
        )


@pytest.mark.filterwarnings("ignore:This fit cannot be saved")
def test_a_base_without_weights_is_refused_and_a_pipeline_takes_them():
    x, y, weights = rows()
    with pytest.raises(ValueError, match="Lars takes no sample_weight"):
        LocalW2Regressor([BallLaw(n_trees=5)], Lars()).fit(x, y, sample_weight=weights)
    base = make_pipeline(StandardScaler(), LinearRegression())
    model = LocalW2Regressor([BallLaw(n_trees=5)], base, random_state=0).fit(x, y, sample_weight=weights)
    # Folds differ, but each is a weighted least squares of nine tenths of the rows.
    exact = LinearRegression().fit(x, y, weights).coef_
    slopes = np.mean([m[-1].coef_ / m[0].scale_ for m in model.base_models_], axis=0)
    np.testing.assert_allclose(slopes, exact, atol=0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("values", [True, False])
def test_two_outputs_discrete_outcomes_and_logarithms(values):
    rng = np.random.default_rng(9)
    x, weights = rng.normal(size=(150, 2)), rng.exponential(size=150) + 0.1
    y = rng.poisson(np.exp(0.3 * x)).astype(float) if values else np.exp(x + 0.3 * rng.normal(size=(150, 2)))
    laws = [BallLaw(20, n_trees=5), Network(width=8, epochs=5)]
    model = LocalW2Regressor(laws, Ridge(), random_state=0).fit(x, y, sample_weight=weights)
    assert model.sample(x, 2, random_state=0).shape == (2, 150, 2)
    assert (model.sample(x, 2, random_state=0) >= 0).all()


@pytest.mark.filterwarnings("ignore")
def test_a_list_of_deltas_and_a_checkpoint(tmp_path):
    x, y, weights = rows()
    law = Network(width=8, epochs=5)
    fits = [
        LocalW2Regressor(law, None, [Nearest(12), Nearest(30)], checkpoint=path, random_state=0).fit(
            x, y, sample_weight=weights
        )
        for path in (None, tmp_path / "c")
    ]
    assert len(fits[0].selection_.candidates) == 2
    np.testing.assert_array_equal(fits[0].predict(x), fits[1].predict(x))


# --- random coefficients and ODEs ---


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_the_likelihood_of_whole_weights_is_that_of_copies(covariance):
    x, y, weights = rows(150)
    again = np.repeat(np.arange(150), weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = RandomCoefficientRegressor("ml", covariance).fit(x, y, sample_weight=weights)
        theirs = RandomCoefficientRegressor("ml", covariance).fit(x[again], y[again])
    np.testing.assert_allclose(ours.law_.mean, theirs.law_.mean, atol=1e-4)
    np.testing.assert_allclose(ours.covariance_, theirs.covariance_, atol=1e-4)


def test_weights_find_the_coefficients_of_the_population_that_they_stand_for():
    rng = np.random.default_rng(10)
    n = 3000
    x, group = rng.uniform(-2, 2, (n, 1)), rng.random(n) < 0.5
    y = rng.normal(1, 0.3, n) + rng.normal(np.where(group, 2.0, 0.0), 0.5) * x[:, 0]
    for method in ("w2", "ml"):
        model = RandomCoefficientRegressor(method, n_draws=8, random_state=0)
        model.fit(x, y, sample_weight=np.where(group, 1.0, 1e-3))
        assert model.coef_mean_[0] == pytest.approx(2.0, abs=0.06)
        assert model.coef_std_[0] == pytest.approx(0.5, abs=0.06)


def test_errors_of_weighted_least_squares():
    rng = np.random.default_rng(11)
    design, weights = np.column_stack([np.ones(40), rng.normal(size=40)]), rng.exponential(size=40) + 0.1
    hat = design @ np.linalg.solve(design.T @ (weights[:, None] * design), design.T * weights)
    left = np.eye(40) - hat
    np.testing.assert_allclose(_kept_variance(design, weights), np.maximum((left**2).sum(1), 0.1))
    np.testing.assert_allclose(_kept_variance(design, np.ones(40)), _kept_variance(design, None))

    design, weights = np.column_stack([np.ones(300), rng.normal(size=300)]), rng.exponential(size=300) + 0.1
    solve = np.linalg.solve(design.T @ (weights[:, None] * design), design.T * weights)
    errors = []
    for y in rng.normal(size=(200, 300)):
        law = CoefficientLaw(solve @ y, np.diag([1.0, 0.0]))
        errors.append(robust_errors(design, y, law, np.eye(2, dtype=bool), weights)[0])
    true = np.sqrt((solve**2).sum(1))
    assert np.sqrt(np.mean(np.square(errors), 0)) == pytest.approx(true, rel=0.05)


@pytest.mark.filterwarnings("ignore")
def test_weights_of_trajectories():
    rng = np.random.default_rng(12)
    t = np.linspace(0, 1, 6)
    fast = np.arange(60) < 30
    rate = np.where(fast, 2.0, 0.5) + 0.1 * rng.normal(size=60)
    paths = np.exp(-rate[:, None] * t)[..., None]

    def field(t, y, k):
        return -k * y

    def fit(paths, **options):
        model = LocalW2ODE(field, parameters={"k": 1.0}, max_epochs=15, random_state=0)
        return model.fit(paths, t, **options).sample(np.ones(1), t, 400, random_state=0)

    even = fit(paths)[:, 0, -1].mean()
    slow = fit(paths, sample_weight=np.where(fast, 1, 9))[:, 0, -1].mean()
    assert slow > even + 0.05
    np.testing.assert_array_equal(fit(paths, sample_weight=np.full(60, 2.0)), fit(paths))
    broken = paths.copy()
    broken[:20] = np.nan
    zero = np.where(np.arange(60) < 20, 0.0, 1.0)
    np.testing.assert_array_equal(fit(broken, sample_weight=zero), fit(paths[20:]))
    # An initial state for each trajectory loses the same ones, and messages count as the user does.
    given = fit(broken, y0=np.where(np.arange(60) < 20, np.nan, 1.0), sample_weight=zero)
    np.testing.assert_array_equal(given, fit(paths[20:], y0=np.ones(40)))
    broken[25] = np.nan
    with pytest.raises(ValueError, match="trajectory 25 "):
        fit(broken, sample_weight=zero)
    for bad, words in ((np.ones(5), "60 trajectories"), (np.arange(60) < 1, "one trajectory")):
        with pytest.raises(ValueError, match=words):
            fit(paths, sample_weight=bad)


@pytest.mark.filterwarnings("ignore:the fit moved")
def test_trajectories_of_weight_zero_were_not_seen():
    rng, t = np.random.default_rng(13), np.linspace(0, 1, 4)
    paths = np.exp(-rng.uniform(0.5, 2, size=(40, 1)) * t)[..., None] * rng.uniform(1, 2, size=(40, 1, 1))
    model = LocalW2ODE(lambda t, y, k: -k * y, max_epochs=2, random_state=0)
    model.fit(paths, t, sample_weight=np.arange(40) < 20)
    shares = [judge_seen(model.seen_rows_, some[:, 0], some)[0] for some in (paths[:20], paths[20:])]
    assert shares == [1.0, 0.0]
