"""The scale of a mean: the logarithm where it helps, back without values that y cannot have."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from localw2 import BallLaw, LocalW2Regressor, Network, load
from localw2.estimators.regression.scale import Scale
from localw2.metrics import crps

LAWS = [Network(width=8, epochs=20), "balls", BallLaw(on="outcomes")]


def prices(n, seed, zeros=0.0):
    """A target whose logarithm is a line plus noise; a share of it is 0."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    y = np.exp(1 + 2 * x[:, 0] + 0.5 * rng.normal(size=n))
    return x, np.where(rng.random(n) < zeros, 0.0, y)


@pytest.mark.parametrize("scale", [Scale(), Scale(0.0), Scale(0.3)])
def test_forward_and_backward(scale):
    y = np.array([[1e-3], [0.5], [1.0], [1e6]])
    np.testing.assert_allclose(scale.backward(scale.forward(y)), y, rtol=1e-9)
    assert (np.diff(scale.forward(y), axis=0) > 0).all()


def test_nothing_comes_back_negative_or_infinite():
    values = np.array([-1e6, -5.0, 0.0, 5.0, 1e6])
    for scale in (Scale(0.0), Scale(2.0)):
        found = scale.backward(values)
        assert (found >= 0).all()
        assert np.isfinite(found).all()
    np.testing.assert_array_equal(Scale().backward(values), values)
    assert Scale().is_identity
    assert not Scale(0.0).is_identity


@pytest.mark.parametrize(
    ("make", "shift"),
    [
        (lambda rng: np.exp(rng.normal(size=(400, 1))), 0.0),
        (lambda rng: rng.normal(size=(400, 1)) + 50, None),  # not skewed
        (lambda rng: -np.exp(rng.normal(size=(400, 1))), None),  # negative
        (lambda rng: 100 - np.minimum(99, np.exp(rng.normal(size=(400, 1)))), None),  # skewed to the left
        (lambda rng: np.exp(rng.normal(size=(400, 2))), None),  # two outputs
        (lambda rng: np.exp(rng.normal(size=(20, 1))), None),  # few rows
        (lambda rng: np.zeros((400, 1)), None),
        (lambda rng: np.full((400, 1), 7.0), None),
    ],
)
def test_when_the_logarithm_is_tried(make, shift):
    assert Scale.candidate(make(np.random.default_rng(0))).shift == shift


def test_zeros_have_a_logarithm_too():
    _, y = prices(400, 0, zeros=0.1)
    scale = Scale.candidate(y[:, None])
    assert 0 < scale.shift < np.median(y)
    assert np.isfinite(scale.forward(y)).all()
    assert scale.backward(scale.forward(np.zeros(1)))[0] == pytest.approx(0, abs=1e-12)


def test_the_logarithm_is_taken_where_it_is_better_and_survives_a_file(tmp_path):
    x, y = prices(400, 0)
    model = LocalW2Regressor("balls", random_state=0).fit(x, y)
    assert model.law_.mean.scale == Scale(0.0)
    new, truth = prices(1000, 1)
    plain = LocalW2Regressor("balls", base=LinearRegression(), random_state=0).fit(x, y)
    assert plain.law_.mean.scale.is_identity
    ours, theirs = (crps(truth, one.sample(new, 50, random_state=0)).mean() for one in (model, plain))
    assert ours < 0.98 * theirs
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.law_.mean.scale == Scale(0.0)
    np.testing.assert_array_equal(again.sample(new, 2, random_state=0), model.sample(new, 2, random_state=0))


@pytest.mark.parametrize("base", ["auto", None])
@pytest.mark.parametrize("law", LAWS, ids=["network", "balls", "outcomes"])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_a_target_that_is_never_negative_has_no_negative_draws(law, base, zeros):
    x, y = prices(150, 0, zeros)
    model = LocalW2Regressor(law, base, random_state=0).fit(x, y)
    assert model.outcomes_.lower.tolist() == [0.0]
    far = np.vstack([x, 5 * x])
    assert model.sample(far, 100, random_state=0).min() >= 0
    assert model.predict_quantiles(far, [0.001]).min() >= 0
    assert model.predict_interval(far)[0].min() >= 0
    if zeros:
        share = (model.sample(x, 100, random_state=0) == 0).mean()
        assert share == pytest.approx((y == 0).mean(), abs=0.12)


def test_a_target_that_is_sometimes_negative_has_no_bound():
    x, y = prices(100, 0)
    model = LocalW2Regressor(BallLaw(n_trees=10), random_state=0).fit(x, y - np.median(y))
    assert model.outcomes_.free
    unbounded = LocalW2Regressor(BallLaw(n_trees=10), random_state=0, bounds=None).fit(x, y)
    assert unbounded.outcomes_.free
