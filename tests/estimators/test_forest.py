"""Trees as plain arrays: the leaves that scikit-learn finds, with missing values and categories."""

import numpy as np
import pytest
from sklearn.tree import ExtraTreeRegressor

from localw2.estimators.regression import forest as forests
from localw2.estimators.regression.category_codes import CategoryCodes
from localw2.estimators.regression.forest import Forest


def table(n, seed, missing=0.15):
    """Numbers, a column with a few values, one with 6 categories, and gaps in all of them."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(n, 2)), rng.integers(3, size=n), rng.integers(6, size=n)])
    y = x[:, 0] + np.array([0.0, 3, -1, 5, 2, -4])[x[:, 3].astype(int)] + rng.normal(size=n)
    x[rng.random(x.shape) < missing] = np.nan
    return x, np.column_stack([y, y**2])


@pytest.fixture
def grown(monkeypatch):
    """The trees that scikit-learn grows, as they come."""
    found = []

    class Kept(ExtraTreeRegressor):
        def fit(self, *arguments, **options):
            found.append(self)
            return super().fit(*arguments, **options)

    monkeypatch.setattr(forests, "ExtraTreeRegressor", Kept)
    return found


def grow(x, y, n_trees=7, min_rows=4, categorical=(3,)):
    return Forest.grow(x, y, list(categorical), n_trees, min_rows, 0, None)


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("d", [1, 2])
def test_leaves_are_those_of_scikit_learn(grown, missing, d):
    x, y = table(300, 0, missing)
    forest = grow(x, y[:, :d])
    assert forest.n_trees == len(grown) == 7
    new = np.vstack([x, table(300, 1, 0.3)[0], [[1e30, -1e30, 7.5, 99.0]]])  # gaps where there were none
    numbers = forest.codes.apply(new).astype(np.float32)
    found = forest.apply(new)
    assert found.shape == (601, 7)
    for t, tree in enumerate(grown):
        np.testing.assert_array_equal(found[:, t] - forest.roots[t], tree.tree_.apply(numbers))
        alone = forest.tree(t)
        np.testing.assert_array_equal(alone.apply(new)[:, 0], tree.tree_.apply(numbers))
    assert (forest.feature[found] == -1).all()


def test_rows_at_a_threshold_go_left():
    x = np.repeat([0.0, 1.0, 2.0, 3.0], 20)[:, None]
    forest = grow(x, x.copy(), categorical=())
    inner = np.flatnonzero(forest.feature >= 0)
    for node in inner:
        tree = np.searchsorted(forest.roots, node, side="right") - 1
        # The threshold is a number of double precision, and rows are compared in single precision.
        below, above = (np.nextafter(np.float32(forest.threshold[node]), np.float32(s)) for s in (-9, 9))
        leaves = [forest.apply(np.array([[float(v)]]))[0, tree] for v in (below, above)]
        assert leaves[0] != leaves[1]


def test_each_leaf_has_enough_rows_and_trees_differ():
    x, y = table(200, 0)
    forest = grow(x, y, n_trees=20, min_rows=6)
    leaves = forest.apply(x)
    assert np.unique(leaves, return_counts=True)[1].min() >= 6
    shapes = {tuple(forest.tree(t).feature) for t in range(20)}
    assert len(shapes) > 15


def test_blocks_of_rows_and_no_rows(monkeypatch):
    x, y = table(100, 0)
    forest = grow(x, y)
    whole = forest.apply(x)
    monkeypatch.setattr(forests, "_AT_A_TIME", 50)
    np.testing.assert_array_equal(forest.apply(x), whole)
    assert forest.apply(x[:0]).shape == (0, 7)


def test_a_seed_repeats_the_forest_whatever_the_jobs():
    x, y = table(100, 0)
    first, second = (Forest.grow(x, y, [3], 5, 4, 8, jobs) for jobs in (None, 2))
    for name in ("roots", "feature", "threshold", "left", "right", "missing_left"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    other = Forest.grow(x, y, [3], 5, 4, 9, None)
    assert not np.array_equal(first.threshold, other.threshold)


def test_units_of_outputs_do_not_matter():
    """Each output counts by its spread: the trees are the same."""
    x, y = table(150, 0)
    first, second = grow(x, y), grow(x, y * [1e6, 1e-6])
    np.testing.assert_array_equal(first.apply(x), second.apply(x))


def test_trees_find_what_y_depends_on():
    """Rows of a leaf are more alike in y than those of trees that were grown for noise."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(500, 8))
    y = (x[:, [1]] > 0.5) * 10.0

    def left(target):
        leaves = grow(x, target, n_trees=20, categorical=()).apply(x)
        means = [np.bincount(part, y[:, 0])[part] / np.bincount(part)[part] for part in leaves.T]
        return np.mean((y[:, 0] - np.array(means)) ** 2)

    assert left(y) < 0.5 * left(rng.permutation(y))


@pytest.mark.parametrize(("offset", "size"), [(0.0, 1e-9), (0.0, 1e9), (1.7e9, 100.0), (0.0, 1e-100)])
@pytest.mark.parametrize("stray", [-999.0, 0.0, 1.0, 1e25])
def test_strays_hide_no_column(offset, size, stray):
    """A code for missing values, or a slip of the pen, is not what a column is measured in."""
    rng = np.random.default_rng(0)
    u = rng.uniform(size=500)
    x = np.where(np.arange(500) < 25, stray, offset + size * u)[:, None]
    below = u[25:] < 0.5
    forest = Forest.grow(x, (u > 0.5)[:, None].astype(float), [], 50, 5, 0, 1)
    leaves = forest.apply(x[25:])
    mixed = [
        np.mean([below[leaves[:, t] == leaf].std() > 0 for leaf in np.unique(leaves[:, t])])
        for t in range(50)
    ]
    assert np.median(mixed) < 0.2  # at random nearly every leaf of five rows has both


def test_what_differs_by_rounding_is_one_value_and_no_number_is_too_large():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([1.0] * 4, 300)
    sums = 1e12 * shares.sum(1)
    assert len(np.unique(sums)) > 1
    x = np.column_stack([shares[:, 0], sums])
    forest = Forest.grow(x, rng.normal(size=(300, 1)), [], 20, 2, 0, 1)
    assert set(np.unique(forest.feature)) <= {-1, 0}
    far = np.array([[1e300, 1e12], [np.inf, 1e12], [1.0, 1e300]])
    with np.errstate(all="raise"):
        leaves = forest.apply(far)
    np.testing.assert_array_equal(leaves, forest.apply(np.array([[1.0, 1e12]] * 3)))


class TestCategoryCodes:
    def test_by_mean_orders_categories_by_their_mean(self):
        rng = np.random.default_rng(0)
        means = np.array([3.0, -1.0, 7.0, 0.5])
        x = np.column_stack([rng.normal(size=400), rng.integers(4, size=400)])
        y = means[x[:, 1].astype(int)] + 0.1 * rng.normal(size=400)
        x[::9, 1] = np.nan
        codes = CategoryCodes.by_mean(x, y, [1])
        assert np.argsort(codes.maps[1][:4]).tolist() == np.argsort(means).tolist()
        applied = codes.apply(x)
        np.testing.assert_array_equal(applied[:, 0], x[:, 0])
        # Missing ones have the place that their y has among the others.
        assert applied[0, 1] == pytest.approx(y[::9].mean(), abs=0.3)
        assert np.ptp(applied[::9, 1]) == 0
        assert applied[1, 1] == codes.maps[1][int(x[1, 1])]

    def test_rare_categories_are_pulled_to_the_mean_of_all(self):
        x = np.append(np.zeros(98), [1.0, 2.0])[:, None]
        y = np.append(np.zeros(98), [100.0, 0.0])
        rare = CategoryCodes.by_mean(x, y, [0]).maps[0]
        assert 0 < rare[1] < 50
        assert rare[2] < rare[1]
        assert rare[3] == pytest.approx(y.mean())  # missing, of which there were none

    def test_contiguous_has_no_holes(self):
        x = np.array([[4.0], [1.0], [np.nan], [4.0], [9.0]])
        codes = CategoryCodes.contiguous(x, [0])
        assert codes.apply(x)[:, 0].tolist() == [1, 0, 3, 1, 2]
        without = CategoryCodes.contiguous(x[[0, 1, 4]], [0])
        np.testing.assert_array_equal(without.apply(x)[:, 0], [1, 0, np.nan, 1, 2])

    @pytest.mark.parametrize("kind", ["by_mean", "contiguous"])
    @pytest.mark.parametrize("gaps", [True, False])
    def test_what_was_never_seen_counts_as_missing(self, kind, gaps):
        x, y = np.array([[0.0], [2.0], [2.0], [np.nan]]), np.arange(4.0)
        x, y = (x, y) if gaps else (x[:3], y[:3])
        codes = CategoryCodes.by_mean(x, y, [0]) if kind == "by_mean" else CategoryCodes.contiguous(x, [0])
        new = np.array([[np.nan], [3.0], [250.0], [2.0]])
        missing, *unknown, known = codes.apply(new)[:, 0]
        np.testing.assert_array_equal(unknown, [missing, missing])
        assert known != missing
        assert new[1, 0] == 3.0  # rows that are given stay as they are

    @pytest.mark.parametrize("kind", ["by_mean", "contiguous"])
    def test_a_column_without_any_value(self, kind):
        x = np.full((5, 1), np.nan)
        codes = (
            CategoryCodes.contiguous(x, [0])
            if kind == "contiguous"
            else CategoryCodes.by_mean(x, np.ones(5), [0])
        )
        found = codes.apply(np.array([[0.0], [7.0], [np.nan]]))[:, 0]
        np.testing.assert_array_equal(found, np.repeat(found[0], 3))

    def test_without_categories_rows_stay_as_they_are(self):
        x = np.arange(6.0).reshape(3, 2)
        assert CategoryCodes({}).apply(x) is x
