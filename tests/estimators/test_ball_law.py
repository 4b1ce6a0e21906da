"""The law of balls: which rows a draw takes over, what it does with them, and how it is stored."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression

from localw2 import BallLaw, LocalW2Regressor
from localw2.estimators.regression.ball_law import learn_balls
from localw2.estimators.regression.forest import Forest
from localw2.estimators.regression.mean import cross_fit
from localw2.estimators.regression.member import PREDICTION_DRAWS
from localw2.estimators.regression.outcomes import Outcomes
from localw2.estimators.tables import Columns
from localw2.storage.model_file import Stored, read, write

ERRORS = 5  # standard errors that a statistic may be off by


def rows(n, seed=0, d=1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    noise = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    return x, (np.column_stack([x[:, 0], x[:, 1] ** 2]) + 0.3 * noise)[:, :d]


def learn(law, base=None, n=80, d=1):
    """A member, and the cross-fit that it was learned from."""
    x, y = rows(n, 0, d)
    columns = Columns.of_numbers(2)
    fitted = cross_fit(base, x, y, columns, 0)
    (member,) = learn_balls([law], x, y, fitted, columns, Outcomes.anything(d), 3, None)
    return member, fitted


def possible(member, x):
    """For each row of x what each tree and each row of its leaf give, with the probability of that draw."""
    centred = member.mean is not None
    balls = member.balls
    centers = member.mean.predict_each(x) if centred else np.zeros((1, len(x), balls.shown.shape[1]))
    inputs = np.hstack([x, centers.mean(0)]) if centred and member.mean.parts else x
    found = []
    for i, places in enumerate(balls.find(inputs, member.min_rows)):
        draws, chances = [], []
        for node in places:
            held = balls.kept[balls.starts[node] : balls.starts[node] + balls.counts[node]]
            middle = balls.shown[held].mean(0)
            draws += [
                centers[balls.folds[j], i] + middle + member.stretch * (balls.shown[j] - middle) for j in held
            ]
            chances += [1 / len(places) / len(held)] * len(held)
        found.append((np.array(draws), np.array(chances)))
    return found


@pytest.mark.parametrize("on", ["residuals", "outcomes"])
@pytest.mark.parametrize("base", [None, LinearRegression()], ids=["none", "line"])
def test_nodes_hold_the_rows_that_pass_through_them(on, base):
    member, fitted = learn(BallLaw(5, 6, on), base)
    balls, forest = member.balls, member.balls.forest
    x, _ = rows(80)
    inputs = np.hstack([x, fitted.out_of_fold]) if on == "residuals" and base is not None else x
    leaves = forest.apply(inputs)
    assert len(balls.kept) == 80 * 6
    parent = {child: node for node in np.flatnonzero(forest.feature >= 0) for child in children(forest, node)}
    passed = {node: [] for node in range(len(forest.feature))}
    for row, tree in np.ndindex(leaves.shape):
        node = leaves[row, tree]
        while node is not None:
            passed[node].append(row)
            node = parent.get(node)
    for node, expected in passed.items():
        held = balls.kept[balls.starts[node] : balls.starts[node] + balls.counts[node]]
        assert sorted(held) == sorted(expected)
        assert len(held) >= 5
        np.testing.assert_allclose(balls.means[node], balls.shown[held].mean(0), atol=1e-12)


def children(forest, node):
    return int(forest.left[node]), int(forest.right[node])


@pytest.mark.parametrize("min_rows", [2, 7, 30, 1000])
def test_a_tree_offers_the_smallest_ball_with_enough_rows(min_rows):
    """Laws share a forest; with more rows than there are, a ball is all of them."""
    x, y = rows(80)
    columns = Columns.of_numbers(2)
    fitted = cross_fit(None, x, y, columns, 0)
    laws = [BallLaw(2, 6), BallLaw(min_rows, 6), BallLaw(2, 6, "outcomes")]
    fine, coarse, other = learn_balls(laws, x, y, fitted, columns, Outcomes.anything(1), 3, None)
    assert fine.balls is coarse.balls is not other.balls
    balls, forest = coarse.balls, coarse.balls.forest
    new, _ = rows(40, seed=1)
    found = balls.find(new, min_rows)
    for row, tree in np.ndindex(found.shape):
        node = forest.roots[tree]
        while forest.feature[node] >= 0:
            left = np.float32(new[row, forest.feature[node]]) <= forest.threshold[node]
            below = children(forest, node)[0 if left else 1]
            if balls.counts[below] < min_rows:
                break
            node = below
        assert found[row, tree] == node


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("on", ["residuals", "outcomes"])
@pytest.mark.parametrize("base", [None, LinearRegression()], ids=["none", "line"])
@pytest.mark.parametrize("stretch", [1.0, 1.3])
def test_a_draw_is_a_row_of_a_leaf_that_holds_x_beside_the_mean_of_its_fold(d, on, base, stretch):
    """Whole rows, if there are several outputs: every draw is one of those that are possible."""
    member, _ = learn(BallLaw(5, 4, on), base, d=d)
    member = replace(member, stretch=stretch)
    new, _ = rows(6, seed=1)
    n = 4000
    draws = member.sample(new, n, np.random.default_rng(0))
    assert draws.shape == (n, 6, d)
    for i, (values, chances) in enumerate(possible(member, new)):
        gaps = np.abs(draws[:, i][:, None] - values).max(2)
        assert gaps.min(1).max() < 1e-9
        mean = chances @ values
        variance = chances @ (values - mean) ** 2
        assert (np.abs(draws[:, i].mean(0) - mean) < ERRORS * np.sqrt(variance / n)).all()
        assert draws[:, i].var(0) == pytest.approx(variance, rel=0.15)
        hits = (gaps < 1e-9).sum(0)  # values that occur twice are counted twice, and their chances too
        alike = (np.abs(values[:, None] - values).max(2) < 1e-9) @ chances
        assert (np.abs(hits / n - alike) < ERRORS * np.sqrt(alike / n)).all()


def test_residuals_are_those_of_the_fold_that_left_the_row_out():
    member, fitted = learn(BallLaw(5, 3), LinearRegression())
    x, y = rows(80)
    each = fitted.mean.predict_each(x)
    own = each[member.balls.folds, np.arange(80)]
    np.testing.assert_allclose(member.balls.shown, y - own, atol=1e-12)
    assert len(np.unique(member.balls.folds)) == fitted.mean.n_folds == 10


def test_draws_of_outcomes_are_outcomes_that_were_seen():
    x, y = rows(100, d=2)
    model = LocalW2Regressor(BallLaw(on="outcomes"), base=None, random_state=0).fit(x, y)
    draws = model.sample(rows(20, seed=1)[0], 50, random_state=0).reshape(-1, 2)
    seen = {tuple(one) for one in y}
    assert all(tuple(one) in seen for one in draws)


def test_several_outputs_keep_their_dependence():
    x, y = rows(400, d=2)
    y[:, 1] -= x[:, 1] ** 2  # which no line follows
    model = LocalW2Regressor("balls", base=LinearRegression(), random_state=0).fit(x, y)
    draws = model.sample(x[:100], 300, random_state=0)
    left = (draws - draws.mean(0)).reshape(-1, 2)
    assert np.corrcoef(left.T)[0, 1] == pytest.approx(0.8, abs=0.1)


class TestCommonDraws:
    @pytest.mark.parametrize("on", ["residuals", "outcomes"])
    def test_companions_do_not_matter(self, on):
        member, _ = learn(BallLaw(5, 7, on), LinearRegression())
        new, _ = rows(300, seed=1)  # more than one block
        together = np.concatenate([draws for _, draws in member.common_draws(new)], 1)
        assert together.shape == (PREDICTION_DRAWS, 300, 1)
        for part in (slice(0, 1), slice(270, 275), slice(None, None, -1)):
            ((_, alone),) = list(member.common_draws(new[part]))[:1]
            np.testing.assert_allclose(alone, together[:, part][:, : alone.shape[1]], rtol=0, atol=1e-12)

    def test_trees_and_rows_are_visited_evenly(self):
        member, _ = learn(BallLaw(8, 1), None)
        new, _ = rows(5, seed=1)
        ((_, draws),) = member.common_draws(new)
        for i, (values, _) in enumerate(possible(member, new)):
            counts = (np.abs(draws[:, i] - values.T) < 1e-12).sum(0)
            assert np.abs(counts - PREDICTION_DRAWS / len(values)).max() <= 1

    @pytest.mark.parametrize("on", ["residuals", "outcomes"])
    @pytest.mark.parametrize("n_trees", [3, 100])
    def test_moments_are_those_of_the_draws(self, on, n_trees):
        member, _ = learn(BallLaw(5, n_trees, on), LinearRegression(), d=2)
        new, _ = rows(8, seed=1)
        mean, variance = member.moments(new)
        for i, (values, chances) in enumerate(possible(member, new)):
            expected = chances @ values
            spread = chances @ (values - expected) ** 2
            np.testing.assert_allclose(mean[i], expected, atol=0.1 * np.sqrt(spread.max()))
            np.testing.assert_allclose(variance[i], spread, rtol=0.15)


class TestSettings:
    def test_names(self):
        assert BallLaw(7).name == "residuals of similar rows (7 or more per tree)"
        assert BallLaw(on="outcomes").name == "y of similar rows (5 or more per tree)"

    def test_min_rows_and_trees_are_kept_to(self):
        for min_rows, n_trees in ((3, 4), (25, 9)):
            member, _ = learn(BallLaw(min_rows, n_trees), None, n=200)
            assert member.balls.forest.n_trees == n_trees
            assert member.balls.counts.min() >= min_rows

    @pytest.mark.parametrize("far", [1e8, 1.7e9, -1e12])  # of seconds since 1970, say
    def test_balls_do_not_depend_on_where_zero_is(self, far):
        """Trees grow in single precision, which has no digits for a small range far from 0."""
        rng = np.random.default_rng(0)
        x = np.round(rng.uniform(0, 50, (500, 1)) * 64) / 64  # exact with the offset as well
        y = np.where(x[:, 0] > 25, 3, 0.3) * rng.normal(size=500)
        near, moved = (
            LocalW2Regressor("balls", base=None, random_state=0).fit(x + offset, y) for offset in (0.0, far)
        )
        spread = near.predict(x, return_std=True)[1]
        np.testing.assert_allclose(moved.predict(x + far, return_std=True)[1], spread, rtol=0.1)

    @pytest.mark.parametrize("unit", [1e-6, 1e-9, 1e-20, 1e-40, 1e20])
    def test_balls_do_not_depend_on_the_unit_of_a_column(self, unit):
        """Trees do not split between numbers that are closer than 1e-7."""
        rng = np.random.default_rng(1)
        x = rng.integers(0, 50, (500, 1)).astype(float)
        y = np.where(x[:, 0] > 25, 3, 0.3) * rng.normal(size=500)
        own, other = (LocalW2Regressor("balls", base=None, random_state=0).fit(u * x, y) for u in (1.0, unit))
        spread = own.predict(x, return_std=True)[1]
        np.testing.assert_allclose(other.predict(unit * x, return_std=True)[1], spread, rtol=0.1)

    @pytest.mark.parametrize(
        "column",
        [
            lambda rng: 1.7e9 + 3600 * rng.integers(0, 50, 500),
            lambda rng: 1.7e9 + 60 * rng.integers(0, 4320, 500),
            lambda rng: np.where(rng.random(500) < 0.02, 0, 1.7e9 + 3600 * rng.integers(0, 240, 500)),
            lambda rng: 20150000 + 100 * rng.integers(1, 13, 500) + rng.integers(1, 29, 500),
            lambda rng: 1e-9 * rng.normal(size=500),
        ],
    )
    def test_rows_fall_into_the_leaves_that_they_grew(self, column):
        """A number that single precision rounds is on the side of a threshold that growing saw."""
        rng = np.random.default_rng(0)
        x = column(rng).astype(float)[:, None]
        forest = Forest.grow(x, rng.normal(size=(500, 1)), [], 30, 5, 0, None)
        leaves = forest.apply(x)
        counts = np.bincount(leaves.ravel(), minlength=len(forest.feature))
        assert counts[forest.feature < 0].min() >= 5

    def test_more_rows_than_there_are(self):
        x, y = rows(12)
        model = LocalW2Regressor(BallLaw(min_rows=50), base=None, random_state=0).fit(x, y[:, 0])
        assert np.isfinite(model.predict(x)).all()

    def test_a_law_of_one_kind_of_balls_has_all_the_weight(self):
        x, y = rows(60)
        model = LocalW2Regressor(BallLaw(6, 10), random_state=0).fit(x, y[:, 0])
        assert model.weights_ == {"residuals of similar rows (6 or more per tree)": 1.0}
        for name in ("model_", "fit_", "delta_", "norm_", "selection_", "plan_"):
            with pytest.raises(AttributeError, match="network"):
                getattr(model, name)
            assert not hasattr(LocalW2Regressor(), name)

    def test_a_seed_repeats_a_fit_bit_for_bit_whatever_the_jobs(self):
        x, y = rows(90)
        fits = [LocalW2Regressor("balls", random_state=5, n_jobs=jobs).fit(x, y[:, 0]) for jobs in (None, 2)]
        assert fits[0].weights_ == fits[1].weights_
        np.testing.assert_array_equal(fits[0].sample(x, 4, 1), fits[1].sample(x, 4, 1))
        np.testing.assert_array_equal(fits[0].predict(x), fits[1].predict(x))
        other = LocalW2Regressor("balls", random_state=6).fit(x, y[:, 0])
        assert not np.array_equal(other.predict(x), fits[0].predict(x))


def frame(n, seed=0):
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"dose": rng.normal(size=n), "site": rng.choice(["north", "south", "west"], n)})
    y = x["dose"].to_numpy() + 3 * (x["site"] == "north").to_numpy() + 0.2 * rng.normal(size=n)
    x.loc[::7, "dose"] = np.nan
    return x, y


@pytest.fixture(scope="module")
def model():
    """Two kinds of balls around a given base, of a table with a categorical column and missing values."""
    x, y = frame(70)
    laws = [BallLaw(4, 5), BallLaw(4, 5, "outcomes")]
    model = LocalW2Regressor(laws, LinearRegression(), random_state=0).fit(x, y)
    assert next(iter(model.weights_)) == laws[0].name
    return model


FIELDS = {
    "roots": 0,
    "feature": 0,
    "threshold": 0.0,
    "left": 0,
    "right": 0,
    "missing_left": False,
    "kept": 0,
    "in_leaves": 0,
    "shown": 0.0,
    "folds": 0,
    "codes.1": 0.0,
}


def alter(name, change):
    """A way to spoil the tensor of this name, by a function that gets a copy."""

    def spoil(settings, tensors):
        tensors[f"forest0.{name}"] = change(tensors[f"forest0.{name}"].clone())

    return spoil


def put(place, value):
    """A change of one entry; ``place`` may be a function of the tensor."""

    def change(tensor):
        tensor[place(tensor) if callable(place) else place] = value(tensor) if callable(value) else value
        return tensor

    return change


SPOILT = {
    **{f"{name} is lost": lambda s, t, n=name: t.pop(f"forest0.{n}") for name in FIELDS},
    **{
        f"{name} is of another type": alter(
            name, lambda v: v.float() if v.dtype != torch.float32 else v.double()
        )
        for name in FIELDS
    },
    **{f"{name} has two axes more": alter(name, lambda v: v[None, None]) for name in FIELDS},
    **{
        f"{name} is longer": alter(name, lambda v: torch.cat([v, v[-1:]]))
        for name in FIELDS
        if name != "codes.1"
    },
    **{
        f"{name} is shorter": alter(name, lambda v: v[:-1])
        for name in FIELDS
        if name not in ("codes.1", "roots")
    },
    **{f"{name} is empty": alter(name, lambda v: v[:0]) for name in FIELDS},
    "roots do not start at 0": alter("roots", put(0, 1)),
    "roots are not ascending": alter("roots", lambda v: v.flip(0)),
    "roots lie beyond the nodes": alter("roots", put(-1, 10**6)),
    "a root is negative": alter("roots", put(1, -3)),
    "a feature is beyond the columns": alter("feature", put(0, 3)),
    "a feature is negative": alter("feature", put(0, -2)),
    "an inner node is a leaf without rows": alter("feature", put(0, -1)),
    "a leaf is an inner node": alter("feature", put(-1, 0)),
    "a threshold is no number": alter("threshold", put(0, torch.nan)),
    "a threshold is infinite": alter("threshold", put(0, torch.inf)),
    "a node is its own left child": alter("left", put(0, 0)),
    "a node is its own right child": alter("right", put(0, 0)),
    "a left child is in another tree": alter("left", put(0, lambda v: len(v) - 1)),
    "a right child is in another tree": alter("right", put(0, lambda v: len(v) - 1)),
    "a left child is negative": alter("left", put(0, -1)),
    "a right child is beyond the nodes": alter("right", put(0, 10**6)),
    "a row of a leaf is not there": alter("kept", put(0, 70)),
    "a row of a leaf is negative": alter("kept", put(0, -1)),
    "a leaf has more rows": alter("in_leaves", put(-1, lambda v: v[-1] + 1)),
    "a leaf has no rows": alter("in_leaves", put(-1, 0)),
    "trees are empty": lambda s, t: t.update(
        {"forest0.in_leaves": t["forest0.in_leaves"] * 0, "forest0.kept": t["forest0.kept"][:0]}
    ),
    "a residual is huge": alter("shown", put(slice(0, 9), 1e308)),
    "children are exchanged": lambda s, t: t.update(
        {"forest0.left": t["forest0.right"], "forest0.right": t["forest0.left"]}
    ),
    "the stretch is 50": lambda s, t: s["members"][0].update(stretch=50.0),
    "an inner node has rows": alter("in_leaves", put(0, 3)),
    "a count is negative": alter("in_leaves", put(-1, -1)),
    "a residual is no number": alter("shown", put(0, torch.nan)),
    "a residual is infinite": alter("shown", put(0, torch.inf)),
    "a fold is not there": alter("folds", put(0, 10)),
    "a fold is negative": alter("folds", put(0, -1)),
    "the stretch is 0": lambda s, t: s["members"][0].update(stretch=0.0),
    "the stretch is no number": lambda s, t: s["members"][0].update(stretch=float("nan")),
    "the narrowing is 0": lambda s, t: s["members"][0].update(narrowing=0.0),
    "the narrowing is lost": lambda s, t: s["members"][0].pop("narrowing"),
    "the stretch is text": lambda s, t: s["members"][0].update(stretch="wide"),
    "centred is a number": lambda s, t: s["members"][0].update(centred=1),
    "centred is wrong": lambda s, t: s["members"][0].update(centred=False),
    "the least rows are 0": lambda s, t: s["members"][0].update(min_rows=0),
    "the least rows are text": lambda s, t: s["members"][0].update(min_rows="few"),
    "the forest is not there": lambda s, t: s["members"][0].update(forest=9),
    "the forest is negative": lambda s, t: s["members"][0].update(forest=-1),
    "the title is a number": lambda s, t: s["members"][0].update(title=3),
    "the rounding is lost": lambda s, t: s["members"][0].pop("rounding"),
    "the cuts are of other outcomes": lambda s, t: s["members"][0]["rounding"].update(cuts=[[1.0]]),
    "it is called a network": lambda s, t: s["members"][0].update(kind="network"),
    "the strategy has other settings": lambda s, t: s["parameters"]["law"][0]["fields"].update(min_rows=0),
    "the strategy is unknown": lambda s, t: s["parameters"]["law"][0].update(strategy="Forest"),
}


class TestStored:
    def test_round_trip_through_a_file(self, model, tmp_path):
        write(tmp_path / "model", model.to_stored())
        again = LocalW2Regressor.from_stored(read(tmp_path / "model"))
        new = frame(30, seed=1)[0]
        np.testing.assert_array_equal(again.sample(new, 5, 2), model.sample(new, 5, 2))
        np.testing.assert_array_equal(
            again.predict(new, return_std=True), model.predict(new, return_std=True)
        )
        ours, theirs = (one.law_.members[0] for one in (model, again))
        for name in ("kept", "starts", "counts", "means", "shown", "folds"):
            np.testing.assert_array_equal(getattr(ours.balls, name), getattr(theirs.balls, name))
        for name in ("roots", "feature", "threshold", "left", "right", "missing_left"):
            np.testing.assert_array_equal(
                getattr(ours.balls.forest, name), getattr(theirs.balls.forest, name)
            )
        assert again.law == model.law

    @pytest.mark.parametrize("spoil", list(SPOILT.values()), ids=list(SPOILT))
    def test_damaged_parts_are_refused(self, model, spoil):
        stored = model.to_stored()
        settings = json.loads(json.dumps(stored.settings))
        tensors = {name: tensor.clone() for name, tensor in stored.tensors.items()}
        LocalW2Regressor.from_stored(Stored(stored.kind, settings, tensors, stored.regressors))
        spoil(settings, tensors)
        with pytest.raises(ValueError):
            LocalW2Regressor.from_stored(Stored(stored.kind, settings, tensors, stored.regressors))


def test_a_ball_of_all_rows_is_called_that():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(120, 3))
    model = LocalW2Regressor("balls", random_state=0).fit(x, rng.normal(size=120))
    assert sum(model.weights_.values()) == pytest.approx(1)
    assert not [name for name in model.weights_ if "160" in name or "640" in name]
    assert model.weights_["residuals of all rows"] > 0.2  # of pure noise
