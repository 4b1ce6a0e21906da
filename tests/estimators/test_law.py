"""ConditionalLaw as a weighted pool: what it draws and answers, how it is stored, who delegates to it."""

import json
from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.linear_model import Ridge

from localw2 import BallLaw, LocalW2Regressor, Nearest, Network
from localw2.estimators.regression.law import ConditionalLaw
from localw2.estimators.regression.mean import FoldedMean
from localw2.estimators.regression.member import PREDICTION_DRAWS, Member
from localw2.estimators.regression.outcomes import Outcomes
from localw2.estimators.regression.storing import restore_law, store_law
from localw2.estimators.settings import draw_seed
from localw2.estimators.tables import Columns
from localw2.judging.conformal import Calibration, central_scores

QUICK = {"law": Network(width=6, epochs=5), "base": Ridge(), "delta": Nearest(20), "random_state": 0}
X = np.array([[0.0], [1.0], [-2.0], [0.5], [3.0]])
LEVELS = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
ERRORS = 5  # standard errors that a statistic may be off by


@dataclass(frozen=True)
class Gaussian(Member):
    """N(mean + x, std^2) in each of d independent outputs, whatever else comes."""

    mean: float
    std: float = 1.0
    d: int = 1

    @property
    def title(self):
        return f"normal {self.mean:g}"

    def sample(self, x, n_samples, rng):
        return self.mean + x + self.std * rng.normal(size=(n_samples, len(x), self.d))

    def common_draws(self, x):
        noise = np.random.default_rng(abs(int(self.mean))).normal(size=(PREDICTION_DRAWS, 1, self.d))
        for start in range(0, len(x), 2):  # in parts, as a network does for many rows
            rows = slice(start, start + 2)
            yield rows, self.mean + x[rows] + self.std * noise


def pool(members, weights, d=1):
    columns = Columns.of_numbers(1)
    nothing = FoldedMean(columns, (), np.zeros(d), np.zeros(d))
    return ConditionalLaw(columns, nothing, tuple(members), np.array(weights), Outcomes.anything(d))


def cdf(values, means, weights):
    """The distribution function at x = 0 of the mixture of N(mean, 1)."""
    return sum(w * stats.norm.cdf(values - mean) for mean, w in zip(means, weights, strict=True))


def table(n, seed):
    """A categorical column, missing values, and an output that depends on both."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"dose": rng.normal(size=n), "site": rng.choice(["north", "south"], n)})
    y = x["dose"].to_numpy() + 2 * (x["site"] == "north").to_numpy() + 0.3 * rng.normal(size=n)
    x.loc[::7, "dose"] = np.nan
    return x, y


@pytest.fixture(scope="module")
def model():
    """Calibrated, of a table with a categorical column and missing values."""
    return LocalW2Regressor(**QUICK, calibrate=True).fit(*table(60, 0))


@pytest.fixture(scope="module")
def rows(model):
    return model.encode(table(12, 1)[0])


@pytest.fixture(scope="module")
def both(model):
    """A law of one member, and the pool that has this member twice."""
    alone = replace(model.law_, calibration=None)
    return alone, replace(alone, members=alone.members * 2, weights=np.array([0.3, 0.7]))


def assert_equal_answers(ours, theirs, x):
    """Bit for bit, in everything that a law can be asked."""
    for joint in (False, True):
        np.testing.assert_array_equal(ours.interval(x, 0.8, joint), theirs.interval(x, 0.8, joint))
    np.testing.assert_array_equal(ours.moments(x), theirs.moments(x))
    np.testing.assert_array_equal(ours.sample(x, 7, 3), theirs.sample(x, 7, 3))
    np.testing.assert_array_equal(ours.quantiles(x, LEVELS), theirs.quantiles(x, LEVELS))


class TestOneMember:
    @pytest.mark.parametrize("kind", ["gaussian", "network"])
    def test_a_pool_of_one_answers_as_its_member(self, kind, model, rows):
        law, x = (pool([Gaussian(2.0)], [1.0]), X) if kind == "gaussian" else (model.law_, rows)
        (member,) = law.members
        draws = np.concatenate([part for _, part in member.common_draws(x)], 1)
        np.testing.assert_array_equal(law.moments(x), member.moments(x))
        np.testing.assert_array_equal(law.sample(x, 9, 4), member.sample(x, 9, np.random.default_rng(4)))
        np.testing.assert_array_equal(law.quantiles(x, LEVELS), np.quantile(draws, LEVELS, axis=0))
        y = draws[3] + 0.1
        np.testing.assert_array_equal(law.scores(x, y), central_scores(y, draws))
        plain = replace(law, calibration=None)
        ends = np.quantile(draws, [0.05, 0.95], axis=0)
        np.testing.assert_allclose(plain.interval(x, 0.9, False), ends, rtol=1e-12)


class TestTheSameMemberTwice:
    def test_moments_are_the_same_to_rounding(self, both, rows):
        alone, twice = both
        np.testing.assert_allclose(twice.moments(rows), alone.moments(rows), rtol=1e-12)

    def test_quantiles_are_close(self, both, rows):
        alone, twice = both
        ((_, draws),) = alone.common_draws(rows)
        found = twice.quantiles(rows, LEVELS)
        below = (draws <= found[:, None]).mean(1)
        error = np.sqrt(LEVELS * (1 - LEVELS) / PREDICTION_DRAWS)[:, None, None]
        assert (np.abs(below - LEVELS[:, None, None]) < ERRORS * error).all()

    def test_draws_have_the_same_mean_and_spread(self, both, rows):
        n = 4000
        ours, theirs = (law.sample(rows, n, seed) for law, seed in zip(both, (0, 1), strict=True))
        std = theirs.std(0)
        assert (np.abs(ours.mean(0) - theirs.mean(0)) < ERRORS * std * np.sqrt(2 / n)).all()
        kurtosis = stats.kurtosis(theirs, fisher=False)
        error = std * np.sqrt((kurtosis - 1) / 4 * 2 / n)
        assert (np.abs(ours.std(0) - std) < ERRORS * error).all()


@pytest.mark.parametrize(
    ("means", "weights"),
    [((0.0, 5.0), (0.3, 0.7)), ((5.0, 0.0), (0.123, 0.877)), ((0.0, 5.0, 20.0), (0.25, 0.5, 0.25))],
)
class TestMixture:
    def law(self, means, weights):
        return pool([Gaussian(mean) for mean in means], weights)

    def test_moments(self, means, weights):
        mean, variance = self.law(means, weights).moments(X)
        expected = np.dot(weights, means)
        spread = 1 + np.dot(weights, (np.array(means) - expected) ** 2)
        error = np.sqrt(1 / PREDICTION_DRAWS)  # of a member's mean; all of them may err
        np.testing.assert_allclose(mean, expected + X, atol=ERRORS * error)
        # A member's variance errs by sqrt(2 / S), and the spread of the means by as much as their distance.
        tolerance = ERRORS * error * (np.sqrt(2) + np.ptp(means))
        np.testing.assert_allclose(variance, spread, atol=tolerance)

    def test_quantiles(self, means, weights):
        found = self.law(means, weights).quantiles(X, LEVELS)
        assert found.shape == (6, 5, 1)
        assert (np.diff(found, axis=0) > 0).all()
        np.testing.assert_allclose(found - X, np.broadcast_to(found[:, :1], found.shape), atol=1e-12)
        levels = cdf(found[:, 0, 0], means, weights)
        error = np.sqrt(LEVELS * (1 - LEVELS) / PREDICTION_DRAWS)
        assert (np.abs(levels - LEVELS) < ERRORS * error).all()

    @pytest.mark.parametrize("coverage", [0.5, 0.9])
    def test_intervals_cover(self, means, weights, coverage):
        lower, upper = self.law(means, weights).interval(X, coverage, joint=False)
        share = cdf((upper - X)[:, 0], means, weights) - cdf((lower - X)[:, 0], means, weights)
        error = np.sqrt(coverage * (1 - coverage) / PREDICTION_DRAWS)
        np.testing.assert_allclose(share, coverage, atol=ERRORS * error)

    def test_scores_of_outcomes_are_uniform(self, means, weights):
        law, x = self.law(means, weights), np.zeros((400, 1))
        y = law.sample(x, 1, seed=1)[0]
        assert stats.kstest(law.scores(x, y)[:, 0], "uniform").pvalue > 1e-3

    def test_draws_are_of_the_mixture_and_independent_between_rows(self, means, weights):
        n = 20_000
        draws = self.law(means, weights).sample(X, n, seed=2) - X
        assert draws.shape == (n, 5, 1)
        ends = np.append(-np.inf, np.append((np.sort(means)[1:] + np.sort(means)[:-1]) / 2, np.inf))
        shares = np.diff(cdf(ends, means, weights))
        for row in draws[..., 0].T:
            found = np.histogram(row, ends)[0] / n
            assert (np.abs(found - shares) < ERRORS * np.sqrt(shares * (1 - shares) / n)).all()
            assert stats.kstest(row, lambda values: cdf(values, means, weights)).pvalue > 1e-4
        correlation = np.corrcoef(draws[..., 0].T)[~np.eye(5, dtype=bool)]
        assert np.abs(correlation).max() < ERRORS / np.sqrt(n)

    def test_other_rows_do_not_matter_and_a_seed_repeats_the_draws(self, means, weights):
        law = self.law(means, weights)
        for part in (X[1:2], X[1:]):
            np.testing.assert_array_equal(law.quantiles(part, LEVELS)[:, 0], law.quantiles(X, LEVELS)[:, 1])
        np.testing.assert_array_equal(law.sample(X, 3, 5), law.sample(X, 3, 5))
        assert (law.sample(X, 3, 5) != law.sample(X, 3, 6)).any()


class TestWeights:
    @pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, 0.0), (0.0, 1.0, 0.0), (0.5, 0.0, 0.5)])
    def test_a_member_of_weight_0_never_draws(self, weights):
        means = [1000.0 * k for k in range(len(weights))]
        law = pool([Gaussian(mean) for mean in means], weights)
        common = np.concatenate([draws for _, draws in law.common_draws(X)], 1)
        for draws in (law.sample(X, 500, 0), common):
            nearest = np.round((draws - X) / 1000).astype(int)
            shares = np.bincount(nearest.ravel(), minlength=len(weights)) / nearest.size
            assert ((shares > 0) == (np.array(weights) > 0)).all()
        if 1.0 in weights:
            only = law.members[weights.index(1.0)]
            np.testing.assert_array_equal(law.moments(X), only.moments(X))
            alone = pool([only], [1.0])
            np.testing.assert_array_equal(law.quantiles(X, LEVELS), alone.quantiles(X, LEVELS))

    @pytest.mark.parametrize("weights", [np.full(7, 1 / 7), (0.0004, 0.9996), np.arange(1, 13) / 78])
    def test_common_draws_are_shared_out_by_weight(self, weights):
        law = pool([Gaussian(1000.0 * k) for k in range(len(weights))], weights)
        for rows, draws in law.common_draws(X):
            assert draws.shape == (PREDICTION_DRAWS, len(X[rows]), 1)
            nearest = np.round((draws[:, 0, 0] - X[rows][0, 0]) / 1000).astype(int)
            counts = np.bincount(nearest, minlength=len(weights))
            assert np.abs(counts - np.array(weights) * PREDICTION_DRAWS).max() <= 1  # rounding


def test_outputs_of_a_draw_come_from_the_same_member():
    means, weights = (0.0, 20.0), (0.4, 0.6)
    law = pool([Gaussian(mean, d=2) for mean in means], weights, d=2)
    n = 20_000
    draws = law.sample(X, n, 0)
    high = draws - X > 10
    assert (high[..., 0] == high[..., 1]).all()
    assert np.abs(high[..., 0].mean(0) - 0.6).max() < ERRORS * np.sqrt(0.24 / n)
    lower, upper = law.interval(X, 0.9, joint=True)
    held = ((lower <= draws) & (draws <= upper)).all(-1).mean(0)
    error = np.sqrt(0.09 / n + 0.09 / PREDICTION_DRAWS)
    np.testing.assert_allclose(held, 0.9, atol=ERRORS * error)


def test_calibrated_intervals_are_those_of_their_level():
    law = pool([Gaussian(0.0), Gaussian(5.0)], [0.3, 0.7])
    scores = np.linspace(0.01, 0.99, 99)[:, None]
    calibrated = replace(law, calibration=Calibration(scores, "split"))
    # The 60th of 99 scores is .6: coverage .6 needs central intervals of level .6, and so on.
    for coverage, level in ((0.6, 0.6), (0.9, 0.9)):
        found, plain = calibrated.interval(X, coverage, False), law.interval(X, level, False)
        np.testing.assert_allclose(found, plain, atol=1e-9)
    shrunk = replace(law, calibration=Calibration(scores / 2, "split"))
    np.testing.assert_allclose(shrunk.interval(X, 0.8, False), law.interval(X, 0.4, False), atol=1e-9)
    np.testing.assert_array_equal(calibrated.quantiles(X, LEVELS), law.quantiles(X, LEVELS))


def test_weights_are_called_by_the_names_of_their_members():
    law = pool([Gaussian(0.0), Gaussian(5.0)], [0.3, 0.7])
    assert law.named_weights == {"normal 0": 0.3, "normal 5": 0.7}
    assert law.network is None


def test_a_law_is_frozen(model, rows):
    law = model.law_
    for name in ("weights", "members", "calibration", "anything"):
        with pytest.raises(FrozenInstanceError):
            setattr(law, name, None)
    with pytest.raises(FrozenInstanceError):
        law.network.seed = 1


def test_a_refit_leaves_the_law_of_the_fit_before_as_it_was():
    x, y = table(40, 2)
    model = LocalW2Regressor(**QUICK).fit(x, y)
    law, numbers = model.law_, model.encode(x)
    before = law.moments(numbers)
    model.fit(x, 100 * y)
    assert model.law_ is not law
    np.testing.assert_array_equal(law.moments(numbers), before)


class TestStored:
    def plain_parts(self, law):
        settings, tensors, regressors = store_law(law)
        return json.loads(json.dumps(settings)), dict(tensors), dict(regressors)

    def test_round_trip_with_calibration_and_categorical_columns(self, model, rows):
        again = restore_law(*self.plain_parts(model.law_))
        assert_equal_answers(again, model.law_, rows)
        np.testing.assert_array_equal(again.calibration.scores, model.law_.calibration.scores)
        new = table(9, 3)[0]
        np.testing.assert_array_equal(again.columns.encode(new), model.encode(new))
        assert again.columns.names == ("dose", "site")
        assert again.weights.tolist() == [1.0]

    @pytest.mark.parametrize("base", [None, "auto", Ridge()])
    @pytest.mark.parametrize(
        "kind",
        [QUICK["law"], [BallLaw(3, 10), BallLaw(10, 10, "outcomes"), QUICK["law"]]],
        ids=["network", "pool"],
    )
    def test_round_trip_of_plain_numbers_and_two_outputs(self, base, kind):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(50, 2))
        y = np.column_stack([x[:, 0] + rng.normal(size=50), rng.integers(2, size=50)])
        law = LocalW2Regressor(**QUICK | {"base": base, "law": kind}).fit(x, y).law_
        assert law.outcomes.values[1].tolist() == [0, 1]
        again = restore_law(*self.plain_parts(law))
        assert_equal_answers(again, law, x[:10])
        assert set(np.unique(again.sample(x, 5, 0)[..., 1])) <= {0, 1}

    @pytest.mark.parametrize(
        ("spoil", "word"),
        [
            (lambda s, t, r: s.update(n_features=3), "feature_names"),
            (lambda s, t, r: s.update(n_features=3, feature_names=None), "columns"),
            (lambda s, t, r: s["table"].update(gaps=[7]), "columns"),
            (lambda s, t, r: s.update(n_outputs=True), "whole"),
            (lambda s, t, r: s.update(n_outputs=2), "outcomes"),
            (lambda s, t, r: s["members"][0].update(seed=-1), "whole"),
            (lambda s, t, r: s["members"][0].update(width=10**9), "finite"),
            (lambda s, t, r: s["members"][0].update(activation="sin"), "activation"),
            (lambda s, t, r: s.update(weights=[0.9]), "weights"),
            (lambda s, t, r: s.update(scale=-1.0), "scale"),
            (lambda s, t, r: s["mean"][0].update(name=3), "text"),
            (lambda s, t, r: s["mean"][0].update(weight=2.0), "weight"),
            (lambda s, t, r: s["mean"][0].update(folds=9), "mean"),
            (lambda s, t, r: s.update(mean=[]), "mean"),
            (lambda s, t, r: s["mean"].append(s["mean"][0] | {"folds": 0}), "whole"),
            (lambda s, t, r: s["outcomes"].update(lower=[1.0], upper=[0.0]), "outcomes"),
            (lambda s, t, r: s.update(calibration=None), "calibration"),
            (lambda s, t, r: t.pop("calibration_scores"), "calibration"),
            (lambda s, t, r: t.update(calibration_scores=torch.zeros(5, 2, dtype=torch.float64)), "scores"),
            (lambda s, t, r: t.update({"member0.x_scale": torch.zeros(9, dtype=torch.float64)}), "x_scale"),
            (
                lambda s, t, r: t.update({"member0.y_factor": torch.full((1, 1), torch.nan).double()}),
                "y_factor",
            ),
            (lambda s, t, r: r.update(part0fold0000=Ridge().fit([[0.0], [1.0]], [0.0, 1.0])), "feature"),
        ],
    )
    def test_damaged_parts_are_refused(self, model, spoil, word):
        settings, tensors, regressors = self.plain_parts(model.law_)
        spoil(settings, tensors, regressors)
        with pytest.raises(ValueError, match=word):
            restore_law(settings, tensors, regressors)


class TestDelegation:
    def test_the_regressor_answers_as_its_law(self, model, rows):
        new, law = table(12, 1)[0], model.law_
        np.testing.assert_array_equal(model.encode(new), rows)
        mean, variance = law.moments(rows)
        np.testing.assert_array_equal(model.predict(new), mean[:, 0])
        np.testing.assert_array_equal(model.predict(new, return_std=True)[1], np.sqrt(variance[:, 0]))
        for state in (0, 7):
            expected = law.sample(rows, 4, draw_seed(state))[..., 0]
            np.testing.assert_array_equal(model.sample(new, 4, random_state=state), expected)
        np.testing.assert_array_equal(
            model.predict_quantiles(new, LEVELS), law.quantiles(rows, LEVELS)[..., 0]
        )
        found = model.predict_interval(new, 0.7)
        np.testing.assert_array_equal(found, np.array(law.interval(rows, 0.7, False))[..., 0])

    def test_several_outputs_keep_their_axis(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(40, 1))
        model = LocalW2Regressor(**QUICK).fit(x, x + rng.normal(size=(40, 2)))
        np.testing.assert_array_equal(model.predict(x), model.law_.moments(x)[0])
        np.testing.assert_array_equal(model.sample(x, 3, 1), model.law_.sample(x, 3, draw_seed(1)))
        found = model.predict_interval(x, 0.8, joint=True)
        np.testing.assert_array_equal(found, model.law_.interval(x, 0.8, True))
