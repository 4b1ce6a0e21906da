import numpy as np
import pytest

from localw2.datasets import Linear, Nonlinear


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Linear(), np.array([[-0.3, -0.3, -0.3], [0.25, 1.0, 0.5]])),
        (Nonlinear(), np.array([[-0.5], [0.1], [0.5]])),
        (Nonlinear(omega_covariance=((1.0, 0.0), (0.0, 1.0)), half_width=2.0), np.array([[-0.5], [0.4]])),
    ],
)
def test_moments_agree_with_simulation(model, x):
    n = 200_000
    draws = model.sample_y(np.repeat(x, n, axis=0), np.random.default_rng(0)).reshape(len(x), n)
    mean, std = draws.mean(1), draws.std(1)
    kurtosis = ((draws - mean[:, None]) ** 4).mean(1) / std**4
    # Ten comparisons at 4.5 standard errors: a false alarm in 7e-5 of seeds.
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
