"""The weights of a pool: the least CRPS over the simplex, small members dropped, and what it is made of."""

from itertools import product

import numpy as np
import pytest

from localw2.estimators.regression.pooling import LEAST, NARROWINGS, find_narrowing, mean_score, pool_weights
from localw2.metrics import crps, energy_score


def members(d, n=60, n_draws=24, seed=0):
    """Outputs (n, d) and draws of three members: too narrow, too wide, and shifted."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(n, d))
    draws = [
        center + spread * rng.normal(size=(n_draws, n, d))
        for center, spread in ((0, 0.4), (0, 2.0), (0.7, 1))
    ]
    return draws, y


def pool_score(weights, draws, y):
    """The score of the pool by its formula, with loops over pairs of members and draws."""
    scale = y.std(0)
    total = 0.0
    for w, part in zip(weights, draws, strict=True):
        total += w * np.mean([np.linalg.norm((one - y) / scale, axis=1) for one in part])
    for k, m in product(range(len(draws)), repeat=2):
        pairs = [
            np.linalg.norm((a - b) / scale, axis=1).mean()
            for i, a in enumerate(draws[k])
            for j, b in enumerate(draws[m])
            if k != m or i != j
        ]
        total -= weights[k] * weights[m] * np.mean(pairs) / 2
    return total


@pytest.mark.parametrize("d", [1, 2])
def test_no_other_weights_are_better(d):
    draws, y = members(d)
    found = pool_weights(draws, y)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    best = pool_score(found, draws, y)
    steps = np.linspace(0, 1, 11)
    grid = [(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-9]
    assert len(grid) == 66
    others = np.array([pool_score(weights, draws, y) for weights in grid])
    assert best <= others.min() + 1e-6
    assert others.max() > best + 0.05  # the weights matter


@pytest.mark.parametrize("d", [1, 3])
def test_the_score_is_that_of_the_metrics(d):
    draws, y = members(d)
    score = crps if d == 1 else energy_score
    assert mean_score(draws[0], y) == pytest.approx(score(y, draws[0]).mean(), rel=1e-9)
    scale = y.std(0)
    for k in range(3):
        alone = pool_score(np.eye(3)[k], draws, y)
        assert alone == pytest.approx(score(y / scale, draws[k] / scale).mean(), rel=1e-9)


def test_a_pool_scores_as_draws_of_its_members_together():
    """With a third of the draws from each, but for pairs of one member, which a pool has fewer of."""
    draws, y = members(1, n_draws=200)
    together = crps(y, np.concatenate(draws)).mean() / y.std()
    assert pool_score(np.full(3, 1 / 3), [part[:40] for part in draws], y) == pytest.approx(
        together, rel=0.02
    )


@pytest.mark.parametrize("d", [1, 2])
def test_the_truth_gets_all_and_small_members_are_dropped(d):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(2000, d))
    shapes = [(0, 1.0), (4, 1.0), (0, 6.0)]
    draws = [center + spread * rng.normal(size=(40, 2000, d)) for center, spread in shapes]
    assert pool_weights(draws, y).tolist() == [1.0, 0.0, 0.0]
    rare = np.where(rng.random((2000, 1)) < 0.03, y + 30, y)  # 3 % are far away, where one member is
    draws = [rng.normal(size=(40, 2000, d)), 30 + rng.normal(size=(40, 2000, d))]
    assert LEAST == 0.05
    assert pool_weights(draws, rare).tolist() == [1.0, 0.0]
    often = np.where(rng.random((2000, 1)) < 0.3, y + 30, y)
    assert pool_weights(draws, often) == pytest.approx([0.7, 0.3], abs=0.03)


def test_units_and_offsets_do_not_matter():
    draws, y = members(2)
    found = pool_weights(draws, y)
    units = np.array([1e-6, 1e5])
    shifted = pool_weights([units * (part + 1000) for part in draws], units * (y + 1000))
    np.testing.assert_allclose(shifted, found, atol=1e-3)
    one, y = members(1)
    np.testing.assert_allclose(
        pool_weights([part + 1e9 for part in one], y + 1e9), pool_weights(one, y), atol=1e-3
    )


def test_the_order_of_members_does_not_matter():
    draws, y = members(1)
    np.testing.assert_allclose(pool_weights(draws[::-1], y)[::-1], pool_weights(draws, y), atol=1e-3)


def test_one_member_has_all_the_weight():
    draws, y = members(2)
    assert pool_weights(draws[:1], y).tolist() == [1.0]


def test_a_constant_is_known_exactly():
    y = np.full((20, 1), 3.0)
    exact, other = np.full((5, 20, 1), 3.0), np.full((5, 20, 1), 4.0)
    assert pool_weights([other, exact], y).tolist() == [0.0, 1.0]
    assert pool_weights([exact, exact], y).sum() == 1


class TestNarrowing:
    """A factor on the spread of the pool, for standard normal y."""

    def find(self, spread, n=4000, d=1, shift=0.0):
        rng = np.random.default_rng(3)
        y, noise = shift + rng.normal(size=(n, d)), spread * rng.normal(size=(100, n, d))
        return find_narrowing(lambda factor: shift + factor * noise, y)

    @pytest.mark.parametrize("d", [1, 2])
    @pytest.mark.parametrize("shift", [0.0, 50.0])
    def test_the_right_factor_is_found(self, d, shift):
        assert self.find(1.25, d=d, shift=shift) in (0.8, 0.85)  # .8 may cover a little less than 90 %

    @pytest.mark.parametrize("spread", [0.7, 0.9, 1.0])
    def test_what_is_narrow_enough_stays(self, spread):
        assert self.find(spread) == 1.0

    def test_few_rows_show_nothing(self):
        """Of 40 rows 95 % would have to be inside: a pool that is 5 % too wide is rarely touched."""
        rng = np.random.default_rng(0)
        found = []
        for _ in range(200):
            y, draws = rng.normal(size=(40, 1)), 1.05 * rng.normal(size=(100, 40, 1))
            found.append(find_narrowing(lambda factor, draws=draws: factor * draws, y))
        assert np.mean(found) > 0.93
        assert set(found) <= {1.0, *NARROWINGS}
