"""The choice of balls: scores against brute force, known answers, invariances, bad input, estimators."""

import matplotlib
import numpy as np
import pytest

import localw2
from localw2 import LocalW2Regressor, Mahalanobis, Nearest, Neighborhoods, Network, Weighted, select_delta
from localw2.balls.selection import SIZES, shrinkage
from localw2.datasets import Nonlinear

matplotlib.use("Agg")


def brute_force(x, y, k, shrink=1.0):
    """Mean CRPS of every row forecast by the k - 1 nearest others, by loops over pairs."""
    scores = []
    for i in range(len(x)):
        others = [j for j in np.argsort(np.abs(x - x[i]), kind="stable") if j != i][: k - 1]
        law = y[others].mean() + shrink * (y[others] - y[others].mean())
        pairs = np.abs(law[:, None] - law[None, :]).mean()
        scores.append(np.abs(law - y[i]).mean() - pairs / 2)
    return float(np.mean(scores))


def relative(selection, balls, name="given"):
    """The score of one candidate."""
    (found,) = (c.score for c in selection.candidates if c.balls == balls and c.norm_name == name)
    return found


@pytest.fixture(scope="module")
def steps():
    """Two columns; the spread of y jumps with their sum, its mean with neither."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (800, 2))
    return x, np.where(x.sum(1) > 0, 4.0, 1.0) * rng.normal(size=800)


@pytest.mark.parametrize("debiased", [True, False])
def test_scores_are_those_of_rows_held_out_of_their_balls(debiased):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=60)
    y = np.sin(6 * x) + x * rng.normal(size=60)
    sizes = (3, 8, 20)
    found = select_delta(x, y, norm=None, sizes=sizes, debiased=debiased)
    ratios = [brute_force(x, y, k, 1.0 if debiased else shrinkage(k - 1)) for k in sizes]
    tolerance = 1e-10 if debiased else 2e-3  # shrinkages between some sizes are interpolated
    scores = [relative(found, Nearest(k)) for k in sizes]
    np.testing.assert_allclose(np.array(scores) / scores[0], np.array(ratios) / ratios[0], rtol=tolerance)


def test_a_radius_is_scored_like_its_balls():
    rng = np.random.default_rng(3)
    x, y = rng.uniform(size=40), rng.normal(size=40)
    found = select_delta(x, y, norm=None, sizes=(5, 20), adaptive=False)
    radius = found.balls
    gaps = np.abs(x[:, None] - x)
    scores, climate = [], []
    for i in range(40):
        pairs = np.abs(y[:, None] - y).mean() / 2
        climate.append(np.abs(y - y[i]).mean() - pairs)
        others = np.flatnonzero((gaps[i] <= radius * (1 + 1e-12)) & (np.arange(40) != i))
        if len(others) == 0:
            scores.append(climate[-1])
            continue
        spread = np.abs(y[others][:, None] - y[others]).mean() / 2
        scores.append(np.abs(y[others] - y[i]).mean() - spread)
    assert relative(found, radius) == pytest.approx(np.mean(scores) / np.mean(climate), rel=1e-10)


def test_shrinkage_is_that_of_gaussian_order_statistics():
    rng = np.random.default_rng(0)
    for k in (1, 2, 3, 4, 7, 30):
        ordered = np.sort(rng.normal(size=(40_000, k)), axis=1)
        # Errors of the k means: SD below 1 / 200, times twice their size, in part cancelled over i.
        assert shrinkage(k) == pytest.approx((ordered.mean(0) ** 2).mean(), abs=0.01)
    assert [shrinkage(k) for k in (2, 3)] == pytest.approx([1 / np.pi, 1.5 / np.pi], abs=1e-9)


def test_noise_of_one_law_asks_for_large_balls_and_fine_structure_for_small_ones():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=1000)
    noise = rng.normal(size=1000)
    assert select_delta(x, noise).chosen.sizes[1] >= 60
    fast = np.where(np.floor(20 * x) % 2 == 0, 5.0, 0.2) * noise
    assert select_delta(x, fast).chosen.sizes[1] <= 34


def test_the_printed_loss_asks_for_no_smaller_balls():
    x, y = Nonlinear().sample(1000, random_state=0)
    sizes = [select_delta(x, y, debiased=debiased).chosen.sizes[1] for debiased in (True, False)]
    assert sizes[1] >= sizes[0]


def test_a_mean_that_is_taken_off_widens_the_balls():
    truth = Nonlinear()
    x, y = truth.sample(1000, random_state=0)
    assert select_delta(x, y).chosen.sizes[1] < select_delta(x, y, center=truth.mean(x)).chosen.sizes[1]


def test_columns_that_matter_are_found_by_slopes_or_by_relevance():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 6))
    y = 3 * x[:, 0] + 0.3 * rng.normal(size=800)
    chosen = select_delta(x, y).chosen
    assert chosen.norm_name == "slopes"
    weights = np.array(chosen.norm.weights)
    assert weights[0] > 10 * np.abs(weights[1:]).max()
    bent = np.abs(x[:, 0]) * 3 + 0.3 * rng.normal(size=800)  # no slope, so only relevance can tell
    assert select_delta(x, bent, relevance=[1, 0, 0, 0, 0, 0]).chosen.norm_name == "relevance"


def test_the_simple_norm_is_kept_where_no_other_is_better(steps):
    assert select_delta(*steps).chosen.norm_name == "standardised"


@pytest.mark.parametrize("name", ["standardised", "mahalanobis"])
def test_units_of_x_and_y_do_not_matter(steps, name):
    x, y = steps
    moved = x * [1e-3, 1e4] + [5, -7]
    here, there = (select_delta(a, b, adaptive=True) for a, b in ((x, y), (moved, 100 - 20 * y)))
    assert here.balls == there.balls
    for k in (12, 96):
        assert relative(here, Nearest(k), name) == pytest.approx(relative(there, Nearest(k), name), rel=1e-6)


def test_the_order_of_rows_does_not_matter(steps):
    x, y = steps
    order = np.random.default_rng(0).permutation(len(x))
    here, there = (select_delta(a, b, adaptive=True) for a, b in ((x, y), (x[order], y[order])))
    assert here.balls == there.balls
    assert here.chosen.score == pytest.approx(there.chosen.score, rel=1e-9)


def test_density_decides_between_one_radius_and_nearest_rows():
    rng = np.random.default_rng(0)
    even, uneven = rng.uniform(size=1000), np.exp(2 * rng.normal(size=1000))
    y = rng.normal(size=1000)
    assert isinstance(select_delta(even, y, sizes=(50, 100, 200, 400)).balls, float)
    assert isinstance(select_delta(uneven, y, sizes=(50, 100, 200, 400)).balls, Nearest)
    assert isinstance(select_delta(even, y, adaptive=True).balls, Nearest)
    assert isinstance(select_delta(uneven, y, adaptive=False).balls, float)


def test_the_choice_makes_the_balls_that_were_scored(steps):
    x, y = steps
    chosen = select_delta(x, y, adaptive=True)
    assert set(chosen.neighborhoods(x).sizes.tolist()) == {chosen.balls.k}
    one = select_delta(x, y, adaptive=False)
    sizes = one.neighborhoods(x).row_sizes().double().numpy()
    np.testing.assert_allclose(np.quantile(sizes, [0.05, 0.5, 0.95]), one.chosen.sizes)
    assert one.delta == one.balls


def test_several_outputs_are_scored_output_by_output():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=200)
    y = rng.normal(size=(200, 2)) * [1.0, 50.0]
    y[:, 1] *= x
    both = select_delta(x, y, norm=None, sizes=(20, 60))
    alone = [select_delta(x, y[:, i], norm=None, sizes=(20, 60)) for i in (0, 1)]
    climates = [brute_force(x, y[:, i] / y[:, i].std(), 200) for i in (0, 1)]
    # Each alone is relative to its own whole sample, with the row itself in it.
    for k in (20, 60):
        parts = [brute_force(x, y[:, i] / y[:, i].std(), k) for i in (0, 1)]
        ratio = relative(both, Nearest(20)) / relative(both, Nearest(60))
        assert parts[0] / climates[0] == pytest.approx(relative(alone[0], Nearest(k)), rel=0.02)
    expected = [sum(brute_force(x, y[:, i] / y[:, i].std(), k) for i in (0, 1)) for k in (20, 60)]
    assert ratio == pytest.approx(expected[0] / expected[1], rel=1e-9)


def test_many_rows_are_probed_at_random_and_repeatably():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(3000, 2))
    y = x[:, 0] * rng.normal(size=3000)
    assert select_delta(x, y, random_state=1) == select_delta(x, y, random_state=1)
    scores = [select_delta(x, y, random_state=seed).chosen.score for seed in (1, 2)]
    assert scores[0] != scores[1]


def test_copies_constants_and_few_rows():
    rng = np.random.default_rng(0)
    y = rng.normal(size=50)
    assert np.isfinite(select_delta(np.ones(50), y).chosen.score)  # all rows at one x
    assert np.isfinite(select_delta(np.repeat([0.0, 1.0], 25), y).chosen.score)
    x = np.column_stack([rng.normal(size=50), np.full(50, 0.1)])
    weights = select_delta(x, y).candidates[0].norm.weights
    assert weights[1] == 0
    assert np.isfinite(select_delta([0.0, 1, 2, 3], [0.0, 1, 2, 3]).delta)
    nothing = select_delta(rng.normal(size=50), np.zeros(50))
    assert nothing.chosen.score == 0
    assert "no spread" in nothing.why


def test_among_copies_of_one_x_chance_decides():
    rng = np.random.default_rng(0)
    x = np.repeat([0.0, 1.0], 400)
    y = np.where(x > 0, 5.0, 0.5) * rng.normal(size=800)
    ordered = np.concatenate([np.sort(y[:400]), np.sort(y[400:])])  # neighbours in the file are alike
    scores = [select_delta(x, v, sizes=(12, 100)).candidates[0].score for v in (y, ordered)]
    # A forecast of 11 draws of the right law: its CRPS is 1 + 1/11 times that of the law.
    law = [np.abs(np.subtract.outer(part, part)).mean() / 2 for part in (y[:400], y[400:])]
    climate = np.abs(np.subtract.outer(y, y)).mean() / 2
    for score in scores:
        assert score == pytest.approx(np.mean(law) * (1 + 1 / 11) / climate, rel=0.06)


def test_one_radius_is_had_at_any_size_or_refused():
    rng = np.random.default_rng(0)
    y = rng.normal(size=200)
    assert isinstance(select_delta(rng.normal(size=20), y[:20], adaptive=False).balls, float)
    assert isinstance(select_delta(rng.normal(size=200), y, sizes=(50,), adaptive=False).balls, float)
    with pytest.raises(ValueError, match="adaptive=True"):
        select_delta(np.ones(200), y, adaptive=False)


def test_units_of_outputs_do_not_decide_the_norm():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 6))
    y = 3 * x[:, :2] + 0.3 * rng.normal(size=(500, 2))
    here, there = (select_delta(x, y * [1, unit], adaptive=True) for unit in (1.0, 1e4))
    assert (here.balls, here.chosen.norm_name) == (there.balls, there.chosen.norm_name)


def test_rounding_is_no_output():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=300)
    y = np.column_stack([x * rng.normal(size=300), 3 * x + 1])
    known = np.column_stack([np.zeros(300), y[:, 1] + 4e-16 * rng.integers(-1, 2, 300)])
    both, alone = select_delta(x, y, center=known, sizes=(20, 60)), select_delta(x, y[:, 0], sizes=(20, 60))
    assert both.candidates[0].score == pytest.approx(alone.candidates[0].score, rel=1e-9)


def test_pictures_and_words(steps):
    chosen = select_delta(*steps)
    ax = chosen.plot()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"chosen", "standardised", "mahalanobis", "slopes"} <= set(labels)
    assert "<- chosen" in chosen.table()
    assert len(chosen.table().splitlines()) == 1 + len(chosen.candidates)
    assert "% better than the whole sample" in repr(chosen)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(7)}, "row by row"),
        ({"x": np.zeros((3, 1)), "y": np.zeros(3)}, "too few"),
        ({"y": np.full(100, np.nan)}, "y has"),
        ({"center": np.zeros(7)}, "center"),
        ({"relevance": [1.0, 2.0, 3.0]}, "relevance"),
        ({"relevance": [-1.0, 2.0]}, ">= 0"),
        ({"norm": "far"}, "not a norm"),
        ({"sizes": ()}, "empty"),
        ({"sizes": (1,)}, "sizes=1"),
        ({"sizes": (101,)}, "sizes=101"),
        ({"adaptive": "no"}, "adaptive='no'"),
        ({"debiased": 2}, "debiased=2"),
    ],
)
def test_bad_input(change, message):
    rng = np.random.default_rng(0)
    arguments = {"x": rng.normal(size=(100, 2)), "y": rng.normal(size=100)} | change
    with pytest.raises(ValueError, match=message):
        select_delta(**arguments)


@pytest.fixture(scope="module")
def data():
    return Nonlinear().sample(200, random_state=0)


class TestRegressor:
    def fit(self, data, **settings):
        return LocalW2Regressor(Network(width=8, epochs=3), random_state=0, **settings).fit(*data)

    def test_auto_is_what_select_delta_says_of_the_residuals(self, data):
        model = self.fit(data)
        assert isinstance(model.delta_, Nearest)
        assert model.delta_.k in SIZES
        assert model.delta_ == model.selection_.balls
        assert model.norm_ == model.selection_.norm

    def test_nearest_and_a_radius_are_taken_as_given(self, data):
        assert self.fit(data, delta=Nearest(30)).delta_ == Nearest(30)
        near = self.fit(data, delta=Nearest(30), norm=Mahalanobis([[4.0]]))
        assert near.norm_ == Mahalanobis([[4.0]])
        assert near.selection_ is None
        assert self.fit(data, delta=0.2).delta_ == 0.2
        assert self.fit(data, delta=Nearest(1000)).delta_ == Nearest(1000)  # all 200 rows

    def test_the_same_balls_give_the_same_fit(self, data):
        chosen = self.fit(data)
        given = self.fit(data, delta=chosen.delta_, norm=chosen.norm_)
        np.testing.assert_array_equal(chosen.predict(data[0][:5]), given.predict(data[0][:5]))

    def test_relevance_reaches_the_norm(self):
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (600, 5))
        y = 5 * np.sin(4 * x[:, 0]) + 0.1 * (1 + 9 * (x[:, 0] > 0)) * rng.normal(size=600)
        model = self.fit((x, y))
        assert model.selection_.chosen.norm_name in ("relevance", "slopes")
        weights = np.abs(model.norm_.weights)
        assert weights[0] == weights.max()
        assert weights[0] > 3 * weights[1:].max()

    def test_a_file_keeps_the_balls(self, data, tmp_path):
        model = self.fit(data, delta=Nearest(20))
        model.save(tmp_path / "model.safetensors")
        loaded = localw2.load(tmp_path / "model.safetensors")
        assert (loaded.delta, loaded.delta_, loaded.norm_) == (Nearest(20), model.delta_, model.norm_)
        assert loaded.selection_ is None

    @pytest.mark.parametrize("delta", [Nearest(1), "large", -1.0, [1]])
    def test_bad_delta(self, data, delta):
        with pytest.raises(ValueError, match=r"delta|k of Nearest"):
            self.fit(data, delta=delta)

    def test_forged_balls_are_refused(self, data):
        stored = self.fit(data).to_stored()
        for forged in (
            {"delta": "auto", "norm": stored.settings["balls"]["norm"]},
            {"delta": 0.1, "norm": [1, 2]},
            {"delta": {"object": "Nearest", "fields": {"k": "many"}}, "norm": None},
            {},
        ):
            stored.settings["balls"] = forged
            with pytest.raises(ValueError, match=r"balls|k of Nearest|do not fit"):
                LocalW2Regressor.from_stored(stored)

    def test_very_few_rows(self):
        model = self.fit((np.arange(5.0)[:, None], np.arange(5.0)))
        assert model.delta_ == Nearest(5)


def test_of_makes_either_kind_of_balls():
    x = np.arange(10.0)
    assert Neighborhoods.of(x, 1.0).sizes.max() == 3
    assert set(Neighborhoods.of(x, Nearest(4)).sizes.tolist()) == {4}
    assert Neighborhoods.of(x, Nearest(99), Weighted([2.0])).n_balls == 1
    for k in (0, 2.5, "many"):
        with pytest.raises(ValueError, match="k of Nearest"):
            Nearest(k)
