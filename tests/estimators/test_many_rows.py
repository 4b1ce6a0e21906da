"""A regressor with many rows: a base from a sample, lazy balls, epochs of a few steps, and what it tells."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from localw2 import LazyNeighborhoods, LocalW2Regressor, Nearest, Neighborhoods, Network, load
from localw2.balls import spread
from localw2.balls.spread import rough_balls
from localw2.estimators.regression import ball_law, balls, forest, mean
from localw2.estimators.regression.balls import RowPlan, plan_rows
from localw2.estimators.regression.loss import find_near
from localw2.estimators.regression.mean import cross_fit
from localw2.estimators.tables import Columns

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale.py"
SETTINGS = {"law": Network(width=12, epochs=40), "delta": Nearest(16), "random_state": 0}


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    std = 0.2 + 0.3 * (x[:, 1] > 0)
    return x, 2 * x[:, 0] + std * rng.normal(size=n), std


@pytest.fixture
def many(monkeypatch):
    """Many rows are more than 400."""
    for module in (balls, spread):
        monkeypatch.setattr(module, "MANY_ROWS", 400)
    monkeypatch.setattr(mean, "BASE_ROWS", 300)
    monkeypatch.setattr(balls, "BATCH_EDGES", 512)
    monkeypatch.setattr(balls, "EPOCH_EDGES", 2048)


@pytest.mark.parametrize("base", [None, "auto", Ridge()])
def test_a_fit_of_many_rows_is_as_good_and_tells_what_it_used(base, many, tmp_path):
    x, y, _ = rows(1000)
    model = LocalW2Regressor(base=base, **SETTINGS).fit(x, y)
    used = 0 if base is None else 300 if isinstance(base, str) else 1000
    assert model.plan_ == RowPlan(1000, used, batch_balls=32, epoch_balls=128, slack=1.0)
    assert (model.fit_.config.batch_balls, model.fit_.config.epoch_balls) == (32, 128)
    assert len(model.fit_.history) == 40
    test, _, std = rows(500, seed=1)
    mean, spread = model.predict(test, return_std=True)
    # A mean that is constant errs by 1.2, a spread by .15; this fit by .06 at most and by .09.
    assert np.sqrt(((mean - 2 * test[:, 0]) ** 2).mean()) < 0.15
    assert np.sqrt(((spread - std) ** 2).mean()) < 0.12
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.plan_ is None
    assert again.fit_.config == model.fit_.config
    np.testing.assert_array_equal(again.predict(test), mean)


def test_a_fit_of_few_rows_uses_all_of_them():
    x, y, _ = rows(60)
    model = LocalW2Regressor(base=Ridge(), **(SETTINGS | {"law": Network(width=12, epochs=2)})).fit(x, y)
    assert model.plan_ == RowPlan(60, 60, None, None, 0.0)
    assert model.fit_.config.batch_balls is None


def test_what_the_user_asks_for_is_kept(many):
    x, y, _ = rows(500)
    settings = SETTINGS | {"law": Network(width=12, epochs=2, batch_balls=10)}
    plan = LocalW2Regressor(base=None, **settings).fit(x, y).plan_
    assert (plan.batch_balls, plan.epoch_balls) == (10, 130)  # an epoch sees about 2048 / 16 balls


def test_plans_of_balls():
    lazy = LazyNeighborhoods.nearest(np.arange(1000.0), 96, slack=1.0)
    assert plan_rows(lazy, Nearest(96), None, 0).batch_balls == 21
    assert plan_rows(lazy, Nearest(96), None, 0).epoch_balls == 168
    assert plan_rows(lazy, Nearest(384), None, 0).batch_balls == balls.FEWEST_BALLS
    wide = LazyNeighborhoods.within(np.arange(1000.0), 20.0)
    assert plan_rows(wide, 20.0, None, 0).batch_balls == round(2048 / wide.probed_size)
    assert plan_rows(wide, 20.0, 7, 5).batch_balls == 7
    assert wide.probed_size == pytest.approx(41, abs=1)


def test_rows_of_a_step_grow_as_the_root_of_all_rows():
    n = 8000
    hoods = Neighborhoods.nearest(np.linspace(0, 1, n)[:, None], 50)
    plan = plan_rows(hoods, Nearest(50), None, 0)
    assert plan.batch_balls == plan.epoch_balls == round(np.sqrt(balls.WHOLE_ROWS * n) / 50)
    assert plan_rows(hoods, Nearest(50), 7, 0) == RowPlan(n, 0, 7, None, 0.0)
    whole = Neighborhoods.nearest(np.linspace(0, 1, 2000)[:, None], 50)
    assert plan_rows(whole, Nearest(50), None, 0) == RowPlan(2000, 0, None, None, 0.0)


def test_no_row_is_centred_by_a_model_that_has_seen_it(many):
    """Rows outside of the sample have the mean of their own fold, as those of the sample have."""
    x, y, _ = rows(1000)
    columns = Columns.of_numbers(2)
    fitted = cross_fit("auto", x, y[:, None], columns, 0, held=((0,), (1,)))
    assert fitted.n_rows == 300
    assert [some for some, _ in fitted.without] == [(0,), (1,)]
    parts = [(np.arange(1000), fitted)]
    parts += [(np.flatnonzero(~np.isin(fitted.folds, some)), part) for some, part in fitted.without]
    for kept, part in parts:
        each = part.mean.predict_each(x[kept])
        own = each[part.folds, np.arange(len(kept))]
        np.testing.assert_allclose(part.out_of_fold, own, rtol=1e-12, atol=1e-12)
        assert np.ptp(np.bincount(part.folds)) <= 1
    flat = cross_fit(None, x, y[:, None], columns, 0)
    assert flat.n_rows == 0
    assert np.allclose(flat.out_of_fold, y.mean())


def test_the_default_of_many_rows_knows_their_law(many, monkeypatch):
    """Trees and their leaves take a sample of the rows too."""
    for module in (forest, ball_law):
        monkeypatch.setattr(module, "MOST_ROWS", 500)
    x, y, _ = rows(1000)
    model = LocalW2Regressor("balls", random_state=0).fit(x, y)
    test, _, std = rows(500, seed=1)
    center, width = model.predict(test, return_std=True)
    assert np.sqrt(((center - 2 * test[:, 0]) ** 2).mean()) < 0.1
    assert np.sqrt(((width - std) ** 2).mean()) < 0.14  # .15 if it were constant
    for one in model.law_.members:
        trees = one.balls.forest
        assert one.balls.counts[trees.roots].tolist() == [500] * trees.n_trees
    # Some leaves of such trees are empty; a file may have them.
    again = LocalW2Regressor.from_stored(model.to_stored())
    np.testing.assert_array_equal(again.predict(test), center)


def test_what_is_near_is_cells_of_many_rows(many):
    x, _, _ = rows(1000)
    cells = rough_balls(x)
    assert cells.n_edges == 1000
    assert rough_balls(x[:400]).n_edges > 400
    lazy, dense = (kind.nearest(x, 9) for kind in (LazyNeighborhoods, Neighborhoods))
    assert find_near(dense, Nearest(9), x) is dense
    for hoods, delta in ((lazy, Nearest(9)), (dense, 0.1)):
        assert find_near(hoods, delta, x).n_edges == 1000


@pytest.mark.slow
@pytest.mark.parametrize("base", ["none", "auto"])
def test_a_million_rows_need_less_than_four_gigabytes(base):
    case = {"kind": "fit", "n": 1_000_000, "device": "cpu", "base": base, "epochs": 3}
    done = subprocess.run(
        [sys.executable, str(SCALE), "--case", json.dumps(case)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak_mb"] < 4000
    assert "n_rows=1000000" in found["plan"]
