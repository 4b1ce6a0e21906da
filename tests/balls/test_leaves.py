"""Leaves of trees as balls: against loops, as losses, in blocks, and beside nearest rows."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from localw2 import (
    MMD,
    MSE,
    EnergyScore,
    FitConfig,
    MeanVar,
    Nearest,
    Neighborhoods,
    Objective,
    RandomMLP,
    SlicedW2,
    SquaredW2,
    select_delta,
    train,
    w2_squared,
)
from localw2.balls.selection import shrinkage
from localw2.balls.spread import local_spread
from strategies import quiet_leaves

DISCREPANCIES = [
    SquaredW2(),
    SquaredW2(debiased=True),
    SlicedW2(4),
    SlicedW2(4, debiased=True),
    EnergyScore(),
    MMD(),
    MSE(),
    MeanVar(),
]


@st.composite
def leaf_numbers(draw, outside=True):
    """Leaf numbers (N, T), some of them large, and negative ones if rows may lie outside a tree."""
    n, n_trees = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    numbers = rng.integers(0, draw(st.integers(1, 12)), (n, n_trees)) * draw(st.sampled_from([1, 2, 10**9]))
    if outside and draw(st.booleans()):
        numbers[rng.random((n, n_trees)) < 0.3] = -1
        numbers[0, 0] = 0
    return numbers


def brute_force(numbers):
    """The rows of every leaf, tree by tree and by leaf number, and the weights."""
    n_trees = [(row >= 0).sum() for row in numbers]
    balls, weights = [], []
    for tree in numbers.T:
        for leaf in sorted({number for number in tree.tolist() if number >= 0}):
            rows = [i for i, number in enumerate(tree.tolist()) if number == leaf]
            balls.append(rows)
            weights.append(sum(1 / n_trees[i] for i in rows))
    return balls, weights


def balls_of(hoods):
    return [hoods.ball(b).tolist() for b in range(hoods.n_balls)]


@given(leaf_numbers())
def test_every_leaf_of_every_tree_is_a_ball(numbers):
    hoods = quiet_leaves(numbers)
    balls, weights = brute_force(numbers)
    assert balls_of(hoods) == balls
    np.testing.assert_allclose(hoods.weights, weights, rtol=1e-12)
    some = (numbers >= 0).any(1)
    np.testing.assert_allclose(hoods.weights.sum(), some.sum())
    np.testing.assert_allclose(hoods.row_weights().sum(), some.sum())
    owned = hoods.ball_of_row.reshape(len(numbers), -1).tolist()
    for i, found in enumerate(owned):
        assert [b for b in found if b >= 0] == [b for b, rows in enumerate(balls) if i in rows]


@given(leaf_numbers(outside=False))
def test_column_t_of_ball_of_row_is_tree_t_and_rows_weigh_the_same(numbers):
    hoods = quiet_leaves(numbers)
    owned = hoods.ball_of_row.reshape(len(numbers), -1).numpy()
    assert hoods.ball_of_row.shape == (numbers.shape if numbers.shape[1] > 1 else (len(numbers),))
    for tree, column in enumerate(owned.T):
        for i, ball in enumerate(column):
            assert (
                hoods.ball(int(ball)).tolist()
                == np.flatnonzero(numbers[:, tree] == numbers[i, tree]).tolist()
            )
    np.testing.assert_allclose(hoods.row_weights(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(hoods.weights, hoods.sizes.numpy() / numbers.shape[1], rtol=1e-12)


@given(leaf_numbers(), st.data())
def test_rows_find_their_balls_and_averages(numbers, data):
    hoods = quiet_leaves(numbers)
    rows = np.array(data.draw(st.lists(st.integers(0, len(numbers) - 1), min_size=1, unique=True)))
    place, ball = hoods.balls_of(rows)
    pairs = [(k, b) for k, i in enumerate(rows) for b, held in enumerate(balls_of(hoods)) if i in held]
    assert list(zip(place.tolist(), ball.tolist(), strict=True)) == pairs
    values = np.arange(1.0, hoods.n_balls + 1)
    for i, mean in enumerate(hoods.average(values, otherwise=-7.0)):
        own = [values[b] for b, held in enumerate(balls_of(hoods)) if i in held]
        assert mean == pytest.approx(np.mean(own) if own else -7.0)


@given(leaf_numbers(), st.data())
def test_a_block_has_its_leaves_on_fewer_rows(numbers, data):
    hoods = quiet_leaves(numbers)
    chosen = data.draw(st.lists(st.integers(0, hoods.n_balls - 1), min_size=1, unique=True))
    rows, part = hoods.block(chosen)
    assert [rows[part.ball(b)].tolist() for b in range(part.n_balls)] == [balls_of(hoods)[b] for b in chosen]
    assert torch.equal(part.weights, hoods.weights[chosen])
    owned = part.ball_of_row.reshape(len(rows), -1)
    for own, row in zip(owned.tolist(), rows.tolist(), strict=True):
        held = [k for k, b in enumerate(chosen) if row in balls_of(hoods)[b]]
        assert [b for b in own if b >= 0] == held


@pytest.mark.parametrize("discrepancy", DISCREPANCIES, ids=repr)
def test_blocks_of_leaves_share_out_the_loss(discrepancy):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 5, (40, 3))
    y, yhat = torch.tensor(rng.normal(size=(40, 2))), torch.tensor(rng.normal(size=(2, 40, 2)))
    objective = Objective(y, quiet_leaves(numbers), discrepancy)
    total = 0.0
    for chosen in np.array_split(rng.permutation(objective.hoods.n_balls), 4):
        rows, part = objective.block(chosen)
        total += part(yhat[:, rows]) * part.hoods.weights.sum() / objective.hoods.weights.sum()
    torch.testing.assert_close(total, objective(yhat))


@pytest.mark.parametrize("discrepancy", DISCREPANCIES, ids=repr)
def test_the_order_of_rows_and_of_trees_does_not_matter(discrepancy):
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 6, (30, 4))
    y, yhat = torch.tensor(rng.normal(size=(30, 2))), torch.tensor(rng.normal(size=(2, 30, 2)))
    rows, trees = rng.permutation(30), rng.permutation(4)

    def loss(numbers, y, yhat):
        return Objective(y, quiet_leaves(numbers, min_size=2), discrepancy)(yhat)

    expected = loss(numbers, y, yhat)
    torch.testing.assert_close(loss(numbers[rows], y[rows], yhat[:, rows]), expected)
    torch.testing.assert_close(loss(numbers[:, trees], y, yhat), expected)
    renamed = rng.permutation(6)[numbers]
    torch.testing.assert_close(loss(renamed, y, yhat), expected)


@pytest.mark.parametrize("discrepancy", DISCREPANCIES, ids=repr)
def test_trees_without_splits_are_one_ball(discrepancy):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(25, 3)), rng.normal(size=25)
    stump = DecisionTreeRegressor(max_depth=1, min_samples_leaf=25).fit(x, y)
    one, whole = Neighborhoods.leaves(stump, x), Neighborhoods.whole(25)
    for name in ("rows", "sizes", "weights", "ball_of_row", "indptr"):
        assert torch.equal(getattr(one, name), getattr(whole, name))
    assert repr(one) == repr(whole)
    forest = RandomForestRegressor(5, min_samples_leaf=25, random_state=0).fit(x, y)
    yhat = torch.tensor(rng.normal(size=(2, 25)))
    losses = [
        Objective(y, hoods, discrepancy)(yhat) for hoods in (whole, one, Neighborhoods.leaves(forest, x))
    ]
    torch.testing.assert_close(losses[1:], losses[:1] * 2)


def test_the_loss_is_the_mean_over_rows_and_trees():
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 4, (20, 3))
    y, yhat = torch.tensor(rng.normal(size=(20, 1))), torch.tensor(rng.normal(size=(20, 1)))
    hoods = quiet_leaves(numbers)
    values = w2_squared(y, yhat, hoods)
    torch.testing.assert_close(Objective(y, hoods)(yhat), values[hoods.ball_of_row].mean())


# The bandwidth of MMD is held constant, so its gradient is not the derivative: see test_losses.
@pytest.mark.parametrize("discrepancy", [d for d in DISCREPANCIES if not isinstance(d, MMD)], ids=repr)
def test_gradients(discrepancy):
    rng = np.random.default_rng(4)
    hoods = quiet_leaves(rng.integers(0, 3, (10, 3)), min_size=2)
    yhat = torch.tensor(rng.normal(size=(2, 10, 2)), requires_grad=True)
    assert torch.autograd.gradcheck(Objective(rng.normal(size=(10, 2)), hoods, discrepancy), yhat)
    pair = [torch.tensor(rng.normal(size=(10, 2)), requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda y, yhat: w2_squared(y, yhat, hoods), pair)


def test_small_leaves_are_left_out_and_counted():
    numbers = np.array([[0, 0], [0, 1], [1, 1], [2, 1]])
    y, yhat = torch.arange(4.0), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    hoods = Neighborhoods.leaves(numbers, y)
    with pytest.warns(UserWarning, match="3 of 5"):
        objective = Objective(y, hoods, SquaredW2(debiased=True))
    kept = Neighborhoods.leaves(numbers, y, min_size=2)
    assert balls_of(kept) == balls_of(objective.hoods) == [[0, 1], [1, 2, 3]]
    assert kept.ball_of_row.tolist() == [[0, -1], [0, 1], [1, -1], [1, -1]]
    assert objective(yhat) == Objective(y, kept, SquaredW2(debiased=True))(yhat)
    with pytest.raises(ValueError, match="largest has 3"):
        Neighborhoods.leaves(numbers, y, min_size=4)
    with pytest.warns(UserWarning, match="10 of 10"):
        Neighborhoods.leaves(np.arange(10), np.zeros(10))


def test_forests_trees_and_frames_are_read():
    rng = np.random.default_rng(5)
    x = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
    y = x["a"].to_numpy() + rng.normal(size=200)
    forest = RandomForestRegressor(4, min_samples_leaf=10, random_state=0).fit(x, y)
    hoods = Neighborhoods.leaves(forest, x)
    assert hoods.ball_of_row.shape == (200, 4)
    assert balls_of(Neighborhoods.leaves(forest.apply(x), x)) == balls_of(hoods)
    assert balls_of(Neighborhoods.leaves(torch.tensor(forest.apply(x)), x)) == balls_of(hoods)
    assert balls_of(Neighborhoods.leaves(pd.DataFrame(forest.apply(x)), x)) == balls_of(hoods)
    plain = x.to_numpy()
    boosted = GradientBoostingRegressor(n_estimators=3, random_state=0).fit(plain, y)
    assert boosted.apply(plain).dtype == np.float64
    assert Neighborhoods.leaves(boosted, plain, min_size=2).ball_of_row.shape == (200, 3)
    line = rng.normal(size=200)
    tree = DecisionTreeRegressor(min_samples_leaf=20).fit(line[:, None], y)
    for one_column in (line, line.tolist(), torch.tensor(line), line[:, None]):
        assert Neighborhoods.leaves(tree, one_column).ball_of_row.shape == (200,)


@pytest.mark.parametrize(
    ("forest", "x", "message"),
    [
        (object(), [1.0, 2.0], "apply"),
        ([0, 1, 2], [1.0, 2.0], "shape"),
        (np.zeros((2, 3, 4), int), [1.0, 2.0], "shape"),
        (np.zeros((2, 0), int), [1.0, 2.0], "shape"),
        ([0.5, 1.0], [1.0, 2.0], "integers"),
        ([np.nan, 1.0], [1.0, 2.0], "integers"),
        (["a", "b"], [1.0, 2.0], "integers"),
        ([-1, -1], [1.0, 2.0], "negative"),
    ],
)
def test_bad_leaves(forest, x, message):
    with pytest.raises(ValueError, match=message):
        Neighborhoods.leaves(forest, x)


def test_a_large_forest_takes_little_more_memory_than_its_edges():
    rng = np.random.default_rng(6)
    numbers = rng.integers(0, 2000, (100_000, 20), dtype=np.int32)
    tracemalloc.start()
    hoods = Neighborhoods.leaves(numbers, numbers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert hoods.n_edges == 2_000_000
    assert hoods.rows.dtype == torch.int32
    assert peak < 2 * 4 * hoods.n_edges


def test_the_spread_around_a_row_is_the_mean_over_its_leaves():
    numbers = np.array([[0, 0], [0, 1], [1, 1], [1, -1]])
    residuals = np.array([[1.0], [1.0], [3.0], [3.0]])
    # Leaves {0, 1}, {2, 3}, {0} and {1, 2} with mean sizes 1, 3, 1 and 2, relative to the root mean square.
    expected = np.array([1.0, 1.5, 2.5, 3.0]) / np.sqrt(5)
    np.testing.assert_allclose(local_spread(quiet_leaves(numbers), residuals), expected)
    dropped = quiet_leaves(np.array([[0], [0], [1], [2]]), min_size=2)  # the last two rows have no leaf left
    np.testing.assert_allclose(local_spread(dropped, residuals)[2:], 2 / np.sqrt(5))


# --- leaves beside nearest rows ---


def grow(x, y, seed=0, **options):
    return RandomForestRegressor(20, min_samples_leaf=20, max_features=0.5, random_state=seed, **options).fit(
        x, y
    )


def naive_scores(y, numbers, shrunk):
    """The CRPS of the pooled law of the other rows in each row's leaves, by loops."""
    scores = []
    for i in range(len(y)):
        values, weights = [], []
        leaves = [np.flatnonzero(tree == tree[i]) for tree in numbers.T if tree[i] >= 0]
        others = [rows[rows != i] for rows in leaves if len(rows) > 1]
        for rows in others:
            law = y[rows].mean() + (shrinkage(len(rows)) if shrunk else 1.0) * (y[rows] - y[rows].mean())
            values += law.tolist()
            weights += [1 / len(rows) / len(others)] * len(rows)
        if not others:  # forecast by the whole sample
            values, weights = y.tolist(), [1 / len(y)] * len(y)
        law, p = np.array(values), np.array(weights)
        scores.append(p @ np.abs(law - y[i]) - p @ np.abs(law[:, None] - law) @ p / 2)
    return np.mean(scores)


@pytest.mark.parametrize("debiased", [True, False])
def test_given_balls_are_scored_by_the_pooled_law_of_the_other_rows(debiased):
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=60), rng.normal(size=60)
    numbers = rng.integers(0, 9, (60, 3))
    numbers[rng.random((60, 3)) < 0.2] = -1
    numbers[5] = [100, 101, 102]  # alone in all its leaves
    numbers[6] = -1
    hoods = {
        "leaves": quiet_leaves(numbers),
        "k": Neighborhoods.nearest(x, 9),
        "all": Neighborhoods.whole(60),
    }
    found = select_delta(x, y, None, sizes=(9,), hoods=hoods, debiased=debiased, random_state=0)
    scores = {c.norm_name: c.score for c in found.candidates if not isinstance(c.balls, float)}
    others = naive_scores(y / y.std(), np.zeros((60, 1), int), False)
    pooled = naive_scores(y / y.std(), numbers, not debiased)
    whole = np.mean([np.abs(y - v).mean() for v in y]) - np.abs(y[:, None] - y).mean() / 2
    tolerance = 1e-9 if debiased else 2e-3  # shrinkages between some sizes are interpolated
    assert scores["k"] == pytest.approx(scores["given"], rel=tolerance)
    assert scores["leaves"] == pytest.approx(pooled / (whole / y.std()), rel=tolerance)
    assert debiased is False or scores["all"] == pytest.approx(others / (whole / y.std()), rel=1e-9)


def test_chunks_of_probes_and_thinned_balls_change_little(monkeypatch):
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=300), rng.normal(size=300)
    hoods = {"leaves": quiet_leaves(rng.integers(0, 2, (300, 5)))}

    def score():
        (found,) = [c.score for c in select_delta(x, y, None, hoods=hoods).candidates if c.norm is None]
        return found

    exact = score()
    monkeypatch.setattr("localw2.balls.selection._CHUNK", 1000)
    assert score() == pytest.approx(exact, rel=1e-9)
    monkeypatch.setattr("localw2.balls.selection._BALL_ROWS", 60)
    assert score() == pytest.approx(exact, rel=0.02)


def test_leaves_win_on_steps_among_useless_columns_and_nearest_rows_on_a_smooth_line():
    rng = np.random.default_rng(9)

    def halves(x, y):
        forest = grow(x[::2], y[::2])
        return x[1::2], y[1::2], Neighborhoods.leaves(forest, x[1::2])

    x = rng.normal(size=(1600, 20))
    level = np.where(x[:, 3] > 0.3, 4.0, 0.0) + np.where(x[:, 7] > 0, 2.0, 0.0)
    rows, y, leaves = halves(x, level + 0.5 * rng.normal(size=1600))
    stepped = select_delta(rows, y, hoods={"leaves": leaves})
    assert stepped.balls is leaves
    assert stepped.chosen.norm_name == "leaves"
    assert stepped.norm is None
    assert np.isnan(stepped.delta)
    assert stepped.neighborhoods(rows) is leaves
    assert "leaves" in repr(stepped)
    assert "leaves" in stepped.table()
    with pytest.raises(ValueError, match="800"):
        stepped.neighborhoods(rows[:5])
    line = rng.uniform(size=(1600, 1))
    rows, y, leaves = halves(line, np.sin(6 * line[:, 0]) + 0.05 * rng.normal(size=1600))
    smooth = select_delta(rows, y, adaptive=True, hoods={"leaves": leaves})
    assert isinstance(smooth.balls, Nearest)
    assert len(smooth.plot().lines) > 0


@pytest.mark.parametrize(
    ("hoods", "message"),
    [
        (Neighborhoods.whole(20), "name"),
        ({"leaves": 3}, "int"),
        ({"leaves": Neighborhoods.whole(19)}, "19"),
    ],
)
def test_bad_hoods(hoods, message):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=message):
        select_delta(rng.normal(size=20), rng.normal(size=20), hoods=hoods)


# --- training ---


@pytest.mark.parametrize("batch_balls", [None, 30])
def test_a_network_is_trained_on_leaves(batch_balls):
    """The spread is 3 where two of ten columns are positive, 1 elsewhere; leaves come from other rows."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(1200, 10))
    spread = np.where((x[:, 0] > 0) & (x[:, 1] > 0), 3.0, 1.0)
    y = spread * rng.normal(size=1200)
    forest = grow(x[:600], np.abs(y[:600]))
    inputs = torch.tensor(x[600:], dtype=torch.float32)
    target = torch.tensor(y[600:, None], dtype=torch.float32)
    objective = Objective(target, Neighborhoods.leaves(forest, inputs), SquaredW2(debiased=True))
    generator = torch.Generator().manual_seed(0)
    model = RandomMLP(10, 1, width=16, generator=generator)
    epochs = 150 if batch_balls is None else 8
    config = FitConfig(max_epochs=epochs, learning_rate=0.01, batch_balls=batch_balls, n_draws=2, seed=0)
    train(model, objective, inputs, config)
    found = model.sample(inputs, 200, generator).std(0)[:, 0].detach().numpy()
    wide = spread[600:] == 3.0
    assert found[wide].mean() > 1.5 * found[~wide].mean()
    assert np.sqrt((found**2).mean()) == pytest.approx(y[600:].std(), rel=0.15)
