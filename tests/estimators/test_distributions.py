"""``predict_distribution`` of every estimator agrees with its predictions, also from a file."""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import Ridge

from localw2 import (
    BallLaw,
    LocalW2ODE,
    LocalW2Regressor,
    Network,
    RandomCoefficientRegressor,
    distribution,
    load,
)
from localw2.datasets import Linear, Nonlinear
from localw2.distribution import DrawsDistribution

QUICK = {"base": Ridge(), "random_state": 0}
BALLS = [BallLaw(20, n_trees=10), BallLaw(5, n_trees=10, on="outcomes")]
LEVELS = np.array([0.03, 0.25, 0.5, 0.9])


def smooth(n, seed=0):
    return Nonlinear().sample(n, random_state=seed)


def censored(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(n, 1))
    return x, np.maximum(0.0, x[:, 0] + 0.5 * rng.normal(size=n))


def counts(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 2, size=(n, 1))
    return x, rng.binomial(6, x[:, 0] / 2.5).astype(float)


def two_outputs(n, seed=0):
    """The second output is discrete."""
    x, y = smooth(n, seed)
    return x, np.column_stack([y, np.round(y / 4)])


MODELS = {
    "pool": (BALLS, smooth),
    "one law": (BallLaw(20, n_trees=10), smooth),
    "network": (Network(width=8, epochs=20), smooth),
    "pool with a network": ([BALLS[0], Network(width=8, epochs=20)], smooth),
    "censored": (BALLS, censored),
    "counts": (BALLS, counts),
    "two outputs": (BALLS, two_outputs),
}


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    law, data = MODELS[request.param]
    x, y = data(300)
    return LocalW2Regressor(law, **QUICK).fit(x, y), x[:25], y


class TestRegressor:
    def test_it_agrees_with_every_prediction(self, fitted):
        model, x, _ = fitted
        law = model.predict_distribution(x)
        mean, std = model.predict(x, return_std=True)
        np.testing.assert_array_equal(law.mean(), mean)
        np.testing.assert_array_equal(law.std(), std)
        levels = LEVELS.reshape(-1, *[1] * mean.ndim)
        np.testing.assert_array_equal(law.ppf(levels), model.predict_quantiles(x, LEVELS))
        np.testing.assert_array_equal(law.interval(0.8), model.predict_interval(x, 0.8))
        # The law itself has that mean, up to the few draws of each member: 5 standard errors.
        integral = law.ppf(((np.arange(4000) + 0.5) / 4000).reshape(-1, *[1] * mean.ndim)).mean(0)
        assert (np.abs(integral - mean) <= 5 * std / np.sqrt(2000) + 1e-12).all()

    def test_cdf_and_quantiles_are_inverse(self, fitted):
        model, x, _ = fitted
        law = model.predict_distribution(x)
        levels = np.linspace(0.001, 0.999, 333).reshape(-1, *[1] * len(law.shape))
        at = law.ppf(levels)
        found, atom = law.cdf(at), law.pmf(at)
        assert (found >= levels - 1e-6).all()
        assert (found - atom <= levels + 1e-6).all()  # at an atom the level lies inside of the jump
        continuous = np.broadcast_to(atom == 0, found.shape)
        np.testing.assert_allclose(
            found[continuous], np.broadcast_to(levels, found.shape)[continuous], atol=1e-6
        )

    def test_random_draws_follow_the_law_of_sample(self, fitted):
        """rvs has the law of 2000 draws, sample that of the fit: they differ by .05 at most."""
        model, x, _ = fitted
        law = model.predict_distribution(x[:2])
        ours = law.rvs(20_000, random_state=0).reshape(20_000, 2, -1)
        theirs = model.sample(x[:2], 20_000, random_state=1).reshape(20_000, 2, -1)
        for place in np.ndindex(ours.shape[1:]):
            assert stats.ks_2samp(ours[:, *place], theirs[:, *place]).statistic < 0.06
        if ours.shape[2] == 2:
            ranks = [stats.spearmanr(draws[:, 0]).statistic for draws in (ours, theirs)]
            assert abs(ranks[0] - ranks[1]) < 0.1
            assert ranks[0] > 0.3

    def test_a_row_does_not_depend_on_its_companions(self, fitted):
        model, x, _ = fitted
        whole, part = model.predict_distribution(x), model.predict_distribution(x[7:9])
        np.testing.assert_allclose(part.ppf(0.3), whole[7:9].ppf(0.3), rtol=1e-9)
        np.testing.assert_allclose(part.mean(), whole.mean()[7:9], rtol=1e-9)

    def test_a_model_from_a_file_has_the_same(self, fitted, tmp_path):
        model, x, y = fitted
        model.save(tmp_path / "model")
        ours, theirs = (one.predict_distribution(x) for one in (model, load(tmp_path / "model")))
        for v in np.quantile(y, [0.1, 0.6]):
            np.testing.assert_array_equal(ours.cdf(v), theirs.cdf(v))
        np.testing.assert_array_equal(ours.rvs(3, random_state=0), theirs.rvs(3, random_state=0))
        np.testing.assert_array_equal(ours.mean(), theirs.mean())

    def test_rows_beyond_what_is_kept(self, fitted, monkeypatch):
        model, x, _ = fitted
        whole = model.predict_distribution(x)
        monkeypatch.setattr(distribution, "KEPT_BYTES", 1000)
        part = model.predict_distribution(x)
        assert part.kept is None
        np.testing.assert_array_equal(part.cdf(1.0), whole.cdf(1.0))
        np.testing.assert_array_equal(part.rvs(2, random_state=0), whole.rvs(2, random_state=0))
        np.testing.assert_array_equal(part[3].ppf(0.5), part.ppf(0.5)[3])


def test_values_and_bounds_are_known_to_the_law():
    x, y = counts(300)
    law = LocalW2Regressor(BALLS, **QUICK).fit(x, y).predict_distribution(x[:5])
    np.testing.assert_allclose(law.pmf(np.arange(7)[:, None]).sum(0), 1)
    assert law.pmf(2.5).max() == 0
    with pytest.raises(ValueError, match="pmf"):
        law.pdf(1.0)
    x, y = censored(300)
    law = LocalW2Regressor(BALLS, **QUICK).fit(x, y).predict_distribution(np.array([[-0.5], [0.9]]))
    assert law.pmf(0.0)[0] > 0.5
    np.testing.assert_array_equal(law.cdf(-1e-9), [0, 0])
    assert law.pdf(-0.01).max() == 0
    x, y = two_outputs(300)
    law = LocalW2Regressor(BALLS, **QUICK).fit(x, y).predict_distribution(x[:5])
    assert law[:, 0].pdf(y[0, 0]).shape == (5,)
    np.testing.assert_allclose(law[:, 1].pmf(np.unique(y[:, 1])[:, None]).sum(0), 1)


def test_intervals_of_a_calibrated_fit_are_the_laws_own():
    x, y = smooth(200)
    model = LocalW2Regressor(BALLS, **QUICK, calibrate=True).fit(x, y)
    law = model.predict_distribution(x[:5])
    np.testing.assert_array_equal(law.interval(0.9), model.predict_quantiles(x[:5], [0.05, 0.95]))
    assert (law.interval(0.9)[0] != model.predict_interval(x[:5])[0]).any()


def test_a_refit_leaves_older_distributions_alone():
    x, y = smooth(200)
    model = LocalW2Regressor(BALLS, **QUICK).fit(x, y)
    before = model.predict(x[:5])
    asked = x[:5].copy()
    law = model.predict_distribution(asked)
    asked += 100  # nor does a change of the rows that were asked
    model.fit(x, y + 100)
    np.testing.assert_array_equal(law.mean(), before)


def test_random_coefficients_have_exact_laws(tmp_path):
    x, y = Linear().sample(300, random_state=0)
    model = RandomCoefficientRegressor(random_state=0).fit(x, y)
    law, peer = model.predict_distribution(x[:9]), stats.norm(*model.predict(x[:9], return_std=True))
    np.testing.assert_array_equal(law.mean(), model.predict(x[:9]))
    np.testing.assert_array_equal(law.ppf(LEVELS[:, None]), model.predict_quantiles(x[:9], LEVELS))
    np.testing.assert_allclose(law.interval(0.8), model.predict_interval(x[:9], 0.8), rtol=1e-12)
    np.testing.assert_allclose(law.sf([[1.0], [30.0]]), peer.sf([[1.0], [30.0]]), rtol=1e-9)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_distribution(x[:9]).cdf(1.0), law.cdf(1.0))
    exact = RandomCoefficientRegressor().fit(x, 1 + 2 * x[:, 0])  # no spread at all
    np.testing.assert_allclose(exact.predict_distribution(np.ones((1, 3))).sf([[2.9], [3.1]])[:, 0], [1, 0])


@pytest.fixture(scope="module")
def decay():
    t, k = np.linspace(0, 2, 9), np.random.default_rng(0).normal(1.0, 0.2, 100)
    Y = np.exp(-k[:, None] * t)[..., None] * np.array([1.0, 3.0])
    settings = {"parameters": {"k": 0.9}, "max_epochs": 60, "random_state": 0}
    return LocalW2ODE(slow_down, **settings).fit(Y, t)


class TestTrajectories:
    times = (0.0, 0.5, 2.0)

    def test_the_laws_of_a_decay_are_known(self, decay):
        """y(t) = y0 exp(-k t) with k Gaussian: P(y <= v) = P(k >= log(y0 / v) / t)."""
        law = decay.predict_distribution([[1.0, 3.0], [2.0, 1.0]], self.times)
        assert isinstance(law, DrawsDistribution)
        assert law.shape == (2, 3, 2)
        k = stats.norm(decay.parameters_.mean["k"], decay.parameters_.std["k"])
        for i, start in enumerate(([1.0, 3.0], [2.0, 1.0])):
            for j, y0 in enumerate(start):
                for place, time in ((1, 0.5), (2, 2.0)):
                    v = y0 * np.exp(-time * k.ppf([0.9, 0.5, 0.1]))
                    # 2000 draws of k, and 10 000 behind its own mean and SD: 4 standard errors.
                    np.testing.assert_allclose(law[i, place, j].cdf(v), [0.1, 0.5, 0.9], atol=0.05)
        np.testing.assert_allclose(law[:, 0].pmf([[1.0, 3.0], [2.0, 1.0]]), 1)  # the initial state is given

    def test_draws_are_whole_trajectories(self, decay):
        law = decay.predict_distribution([1.0, 3.0], self.times)
        drawn = law.rvs(500, random_state=0)
        assert drawn.shape == (500, 1, 3, 2)
        rates = -np.log(drawn[:, 0, 1:] / np.array([1.0, 3.0])) / np.array([0.5, 2.0])[:, None]
        np.testing.assert_allclose(rates, np.broadcast_to(rates[:, :1, :1], rates.shape), atol=0.02)

    def test_a_trajectory_does_not_depend_on_its_companions_or_the_file(self, decay, tmp_path):
        states = np.array([[1.0, 3.0], [2.0, 1.0]])
        law = decay.predict_distribution(states, self.times)
        np.testing.assert_array_equal(
            decay.predict_distribution(states[1:], self.times).ppf(0.3), law[1:].ppf(0.3)
        )
        decay.save(tmp_path / "model")
        again = load(tmp_path / "model", field=slow_down)
        np.testing.assert_array_equal(again.predict_distribution(states, self.times).ppf(0.3), law.ppf(0.3))

    def test_moments_are_those_of_many_samples(self, decay):
        law = decay.predict_distribution([1.0, 3.0], self.times)
        drawn = decay.sample([1.0, 3.0], self.times, 4000, random_state=1)
        np.testing.assert_allclose(law.mean(), drawn.mean(0), atol=5 * drawn.std() / np.sqrt(2000))
        np.testing.assert_allclose(law.std(), drawn.std(0), rtol=0.15, atol=1e-9)

    def test_only_what_is_observed_has_laws(self):
        t, k = np.linspace(0, 1, 5), np.random.default_rng(0).normal(1.0, 0.2, 30)
        seen = np.exp(-k[:, None] * t)[..., None]
        settings = {"parameters": {"k": 1.0}, "observe": first, "max_epochs": 5, "random_state": 0}
        model = LocalW2ODE(slow_down, **settings).fit(seen, t, y0=[1.0, 3.0])
        assert model.predict_distribution([1.0, 3.0], t).shape == (1, 5, 1)

    def test_wrong_arguments(self, decay):
        with pytest.raises(ValueError, match="y0"):
            decay.predict_distribution([1.0], self.times)
        with pytest.raises(ValueError, match="increasing"):
            decay.predict_distribution([1.0, 3.0], [1.0, 0.0])


def slow_down(t, y, k):
    return -k * y


def first(states):
    return states[..., :1]
