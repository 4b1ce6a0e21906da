import numpy as np
import pytest
from scipy import integrate, stats

from localw2.datasets import ZOO, InverseSine, Linear, Nonlinear

ONE_OUTPUT = {name: law for name, law in ZOO.items() if name not in ("circle", "joint modes")}


def fixed_x(law):
    """Five x of a law, (5, 1), from its lowest to its highest percent."""
    return np.quantile(law.sample(10_000, random_state=0)[0], [0.01, 0.3, 0.5, 0.7, 0.99], axis=0)


def draw(law, x, n):
    """Draws (n, len(x)) or (n, len(x), d) at each x."""
    draws = law.sample_y(np.tile(x, (n, 1)), np.random.default_rng(0))
    return draws.reshape(n, len(x), *draws.shape[1:])


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Linear(), np.array([[-0.3, -0.3, -0.3], [0.25, 1.0, 0.5]])),
        (Nonlinear(), np.array([[-0.5], [0.1], [0.5]])),
        (Nonlinear(omega_covariance=((1.0, 0.0), (0.0, 1.0)), half_width=2.0), np.array([[-0.5], [0.4]])),
        *(pytest.param(law, fixed_x(law), id=name) for name, law in ZOO.items()),
    ],
)
def test_moments_agree_with_simulation(model, x):
    n = 200_000
    draws = draw(model, x, n)
    mean, std = draws.mean(0), draws.std(0)
    kurtosis = ((draws - mean) ** 4).mean(0) / std**4
    assert model.mean(x).shape == model.std(x).shape == mean.shape
    # 150 comparisons at 4.5 standard errors: a false alarm in 1e-3 of seeds.
    assert (np.abs(mean - model.mean(x)) < 4.5 * std / np.sqrt(n)).all()
    assert (np.abs(std - model.std(x)) < 4.5 * std * np.sqrt((kurtosis - 1) / 4 / n)).all()


def test_inputs_have_the_paper_s_laws():
    n = 100_000
    x, _ = Linear().sample(n, random_state=0)
    # Means and variances of Exp(4), N(0, .25), Beta(5, 5).
    np.testing.assert_allclose(x.mean(0), [0.25, 0, 0.5], atol=4.5 * 0.5 / np.sqrt(n))
    np.testing.assert_allclose(x.var(0), [1 / 16, 0.25, 1 / 44], rtol=4.5 * np.sqrt(8 / n))
    x, _ = Nonlinear(half_width=2).sample(n, random_state=0)
    assert x.min() >= -2
    assert x.max() <= 2
    assert abs(x.var() - 4 / 3) < 4.5 * 4 / 3 * np.sqrt(0.8 / n)


def test_no_spread_at_zero_and_seeds_are_honoured():
    assert Nonlinear().std([0.0]) == pytest.approx(0, abs=1e-6)
    first, again = (Nonlinear().sample(10, random_state=3)[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", ZOO)
def test_seeds_are_honoured(name):
    (x, y), again, other = (ZOO[name].sample(20, random_state=seed) for seed in (3, 3, 4))
    assert x.shape == (20, 1)
    assert y.shape == ((20,) if name in ONE_OUTPUT else (20, 2))
    np.testing.assert_array_equal(x, again[0])
    np.testing.assert_array_equal(y, again[1])
    assert (x != other[0]).all()


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_the_cdf_is_that_of_the_draws(name):
    law, n = ONE_OUTPUT[name], 20_000
    x = fixed_x(law)
    draws = draw(law, x, n)
    limit = stats.kstwo.isf(1e-5, n)  # fifty comparisons: a false alarm in 5e-4 of seeds
    for column, at in zip(draws.T, x, strict=True):
        assert stats.kstest(column, lambda y, at=at: law.cdf([at], y)[:, 0]).statistic < limit


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_the_cdf_grows_from_0_to_1(name):
    law = ONE_OUTPUT[name]
    x = fixed_x(law)
    units = np.concatenate([[-1000.0], np.linspace(-40, 40, 2001), [1000.0]])
    y = law.mean(x) + units[:, None] * law.std(x)
    found = law.cdf(x, y)
    assert found.shape == y.shape
    assert (np.diff(found, axis=0) >= -1e-15).all()
    np.testing.assert_allclose(found[0], 0, atol=1e-15)
    np.testing.assert_allclose(found[-1], 1, atol=1e-15)
    same = law.cdf(x, y[:, 0])  # the same y at every x
    np.testing.assert_allclose(same[:, 0], found[:, 0], atol=1e-15)
    np.testing.assert_allclose(same[:, 2], law.cdf(x[2:3], y[:, 0])[:, 0], atol=1e-15)


class TestInverseSine:
    law = InverseSine()

    def test_probabilities_are_integrals_of_the_density(self):
        def density(y, x):
            return stats.norm.pdf(x, self.law.curve(y), self.law.noise)

        def integral(function, end, x):
            return integrate.quad(function, 0, end, args=(x,), epsabs=1e-12, limit=200)[0]

        for x in (-0.15, 0.3, 0.52, 1.2):
            total = integral(density, 1, x)
            y = np.array([0.01, 0.31234, 0.5, 0.77777, 0.99999])
            below = np.array([integral(density, end, x) for end in y]) / total
            np.testing.assert_allclose(self.law.cdf([x], y)[:, 0], below, atol=1e-4)
            mean = integral(lambda y, x: y * density(y, x), 1, x) / total
            np.testing.assert_allclose(self.law.mean([x]), mean, atol=1e-6)

    def test_draws_of_y_given_x_have_the_law_of_the_pairs(self):
        x, y = self.law.sample(20_000, random_state=0)
        drawn = self.law.sample_y(x, np.random.default_rng(1))
        slices = np.digitize(x[:, 0], np.quantile(x, np.arange(1, 10) / 10))
        for k in range(10):
            # Both samples have the same x, so they are not independent; the test is then conservative.
            assert stats.ks_2samp(y[slices == k], drawn[slices == k]).pvalue > 1e-5

    def test_far_from_the_curve_nobody_waits_for_ever(self):
        drawn = self.law.sample_y(np.array([[-2.0], [3.0]]), np.random.default_rng(0))
        assert (drawn >= 0).all()
        assert (drawn <= 1).all()
