import numpy as np
import pytest

from localw2 import Neighborhoods
from localw2.balls import spread
from localw2.balls.spread import SPREAD_FLOOR, local_spread, rough_balls


def test_rough_balls_hold_a_fifth_of_the_rows_whatever_the_unit():
    x = np.random.default_rng(0).normal(size=(200, 3))
    hoods = rough_balls(x)
    assert set(hoods.sizes.tolist()) == {40}
    assert (rough_balls(x * [1, 1000, 1e-3] + 1e6).rows == hoods.rows).all()
    assert set(rough_balls(x[:3]).sizes.tolist()) == {2}
    assert set(rough_balls(np.arange(1000.0)).sizes.tolist()) == {150}
    assert set(rough_balls(x, min_size=150).sizes.tolist()) == {150}
    assert set(rough_balls(x[:90], min_size=150).sizes.tolist()) == {90}


def test_rough_balls_of_many_rows_are_disjoint_cells(monkeypatch):
    monkeypatch.setattr(spread, "MANY_ROWS", 500)
    x = np.random.default_rng(0).normal(size=(1000, 2))
    hoods = rough_balls(x)
    assert sorted(hoods.rows.tolist()) == list(range(1000))
    assert hoods.sizes.max() <= 200
    assert rough_balls(x[:400]).n_edges > 400
    assert rough_balls(x, min_size=150).sizes.min() >= 150


class TestLocalSpread:
    def test_is_the_size_of_the_residuals_nearby(self):
        x = np.linspace(0, 1, 400)
        noise = np.random.default_rng(0).normal(size=(400, 1))
        found = local_spread(Neighborhoods.nearest(x, 40), noise * np.where(x < 0.5, 1.0, 5.0)[:, None])
        assert found[350] / found[50] == pytest.approx(5, rel=0.4)

    def test_has_no_unit(self):
        residuals = np.random.default_rng(0).normal(size=(60, 2))
        hoods = Neighborhoods.nearest(np.arange(60.0), 12)
        np.testing.assert_allclose(
            local_spread(hoods, residuals * [1, 100]), local_spread(hoods, residuals), rtol=1e-12
        )

    def test_ignores_rows_outside_the_mask(self):
        hoods, rows = Neighborhoods.whole(4), np.array([True, True, False, False])
        residuals = np.array([[1.0], [-1.0], [50.0], [-50.0]])
        np.testing.assert_allclose(local_spread(hoods, residuals, rows), 1.0)
        # A ball without any of these rows has their overall spread.
        np.testing.assert_allclose(local_spread(Neighborhoods.singletons(4), residuals, rows), 1.0)

    def test_is_bounded_below_and_one_without_any_spread(self):
        hoods = Neighborhoods.singletons(3)
        assert local_spread(hoods, np.zeros((3, 1))).tolist() == [1.0, 1.0, 1.0]
        assert local_spread(hoods, np.array([[0.0], [1.0], [1.0]]))[0] == SPREAD_FLOOR
