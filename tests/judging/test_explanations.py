"""Which columns drive a law, against closed forms and against scikit-learn's own functions."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import stats
from sklearn.inspection import partial_dependence
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from localw2 import (
    LocalW2Regressor,
    RandomCoefficientRegressor,
    RandomLinear,
    column_dependence,
    column_importance,
    plots,
)
from localw2.judging.explanations import _Quantity
from localw2.metrics import gaussian_crps

mpl.use("Agg")


class Law:
    """y = 3 a + N(0, b^2), with a third column that plays no part; categories multiply the spread."""

    def sample(self, X, n_samples=1, random_state=None):
        mean, std = self.moments(X)
        return mean + std * np.random.default_rng(random_state).normal(size=(n_samples, len(X)))

    @staticmethod
    def moments(X):
        if not hasattr(X, "iloc"):
            return 3 * X[:, 0], X[:, 1]
        factor = X["kind"].map({"calm": 1.0, "wild": 2.0}).astype(float).fillna(4.0).to_numpy()
        assert str(X["kind"].dtype) in ("category", "object", "str")
        mean = np.nan_to_num(3 * X["a"].to_numpy(float), nan=-5.0)
        return mean, X["b"].to_numpy(float) * factor


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 2, size=(600, 3))
    return x, 3 * x[:, 0] + x[:, 1] * rng.normal(size=600)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    n = 400
    table = pd.DataFrame(
        {
            "a": rng.uniform(0.5, 2, n),
            "b": rng.integers(1, 4, n),
            "kind": pd.Categorical(rng.choice(["calm", "wild"], n, p=[0.7, 0.3])),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
        },
        index=np.arange(n)[::-1] + 5,
    )
    mean, std = Law.moments(table)
    return table, mean + std * rng.normal(size=n)


# --- importance ---


def test_importance_is_the_increase_of_the_exact_crps(rows):
    """The exact CRPS with a column shuffled many times, and the exact error of the mean, by closed forms."""
    x, y = rows
    found = column_importance(x, y, Law(), n_repeats=10, n_samples=200, random_state=0)
    assert found.names == ("x0", "x1", "x2")
    assert found.law.shape == found.mean.shape == (3, 10)
    rng, sd = np.random.default_rng(5), y.std()
    start = gaussian_crps(y, *Law.moments(x)).mean()
    assert found.crps == pytest.approx(start / sd, abs=0.01)
    assert found.error == pytest.approx(((y - 3 * x[:, 0]) ** 2).mean() / sd**2, rel=0.03)
    for j in range(3):
        increases = []
        for _ in range(100):
            shuffled = x.copy()
            shuffled[:, j] = rng.permutation(x[:, j])
            mean, std = Law.moments(shuffled)
            by_crps = gaussian_crps(y, mean, std).mean() - start
            by_mean = ((y - mean) ** 2).mean() - ((y - 3 * x[:, 0]) ** 2).mean()
            increases.append((by_crps / sd, by_mean / sd**2))
        expected, error = np.mean(increases, 0), np.std(increases, 0) / np.sqrt(10)
        # 6 comparisons at 5 SDs of the mean of ten shuffles, and the noise of 200 draws.
        assert abs(found.law[j].mean() - expected[0]) < 5 * error[0] + 0.003
        assert abs(found.mean[j].mean() - expected[1]) < 5 * error[1] + 0.01
    assert (found.law[2] == 0).all()
    assert (found.mean[2] == 0).all()
    assert list(found.order) == [0, 1, 2]
    assert found.law[1].mean() > 5 * found.law[1].std()
    assert abs(found.mean[1]).max() < 0.02  # the mean does not know that the column is there
    assert repr(found).startswith("ColumnImportance(600 rows; law: x0 ")


def test_importance_of_frames_with_categories_and_their_kinds(frame):
    table, y = frame
    found = column_importance(table, y, Law(), random_state=0)
    assert found.names == ("a", "b", "kind", "day")
    assert found.law[2].mean() > 3 * found.law[2].std()
    assert (found.law[3] == 0).all()
    numbers = table[["a", "b"]].to_numpy(float)
    model = RandomCoefficientRegressor("ml").fit(numbers, y)
    first = column_importance(numbers, y, model, random_state=0)
    for kind in (numbers.tolist(), torch.tensor(numbers)):
        again = column_importance(kind, y, model, random_state=0)
        np.testing.assert_array_equal(again.law, first.law)


def test_importance_of_a_fit_to_a_table_with_gaps_and_of_a_pipeline(frame):
    table, y = frame
    table = table.copy()
    table.loc[table.index[::7], "a"] = np.nan
    model = LocalW2Regressor("balls", random_state=0).fit(table[:250], y[:250])
    found = column_importance(table[250:], y[250:], model, random_state=0)
    assert found.law[found.names.index("kind")].mean() > 0
    assert found.order[-1] == 3 or abs(found.law[3]).max() < 0.01  # the day plays no part
    polar = column_importance(pl.from_pandas(table[250:]), y[250:], model, random_state=0)
    np.testing.assert_allclose(polar.law, found.law, atol=1e-12)
    numbers = table[["b"]].to_numpy(float)
    piped = make_pipeline(StandardScaler(), RandomCoefficientRegressor("ml")).fit(numbers, y)
    assert column_importance(numbers, y, piped, random_state=0).law.shape == (1, 5)


def test_importance_does_not_depend_on_units_and_takes_several_outputs(rows):
    x, y = rows

    class Two:
        factor = np.array([1.0, 1.0])

        def sample(self, X, n_samples=1, random_state=None):
            one = Law().sample(X, n_samples, random_state)
            return np.stack([one, X[:, 2] + 0.1 * one], -1) * self.factor

    both = np.column_stack([y, x[:, 2] + 0.1 * y])
    first = column_importance(x, both, Two(), random_state=0)
    assert (first.law.mean(1) > 0).all()
    other = Two()
    other.factor = np.array([1000.0, 0.01])
    again = column_importance(x, both * other.factor, other, random_state=0)
    np.testing.assert_allclose(again.law, first.law, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(again.mean, first.mean, rtol=1e-9, atol=1e-12)


def test_importance_takes_few_rows_and_one_seed(rows):
    x, y = rows
    found = [column_importance(x, y, Law(), max_rows=100, random_state=seed) for seed in (0, 0, 1)]
    assert found[0].n_rows == 100
    np.testing.assert_array_equal(found[0].law, found[1].law)
    assert (found[0].law[0] != found[2].law[0]).any()


# --- dependence ---


def test_dependence_is_that_of_the_exact_law(rows):
    x, _ = rows
    of = [0.1, 0.5, 0.9, "mean", "spread"]
    for j in range(3):
        found = column_dependence(x, Law(), j, of=of, max_rows=600, n_samples=400, random_state=0)
        assert found.grid.shape == (20,)
        low, high = np.quantile(x[:, j], [0.05, 0.95])
        np.testing.assert_allclose(found.grid[[0, -1]], [low, high], atol=0.02)
        for i, value in enumerate(found.grid):
            changed = x.copy()
            changed[:, j] = value
            mean, std = (part.mean() for part in Law.moments(changed))
            expected = [*(mean + stats.norm.ppf([0.1, 0.5, 0.9]) * std), mean, std]
            # 400 draws at 600 rows: a quantile errs by less than 2 std / sqrt(240000), and 1 / 400 in bias.
            np.testing.assert_allclose(found.values[:, i], expected, atol=0.03 * std)
    assert repr(found).startswith("ColumnDependence(0.1, 0.5, 0.9, mean, spread at 20 values of x2")


@pytest.mark.parametrize("n_values", [7, 300])
def test_dependence_on_numbers_is_scikit_learn_s(rows, n_values):
    """Both ways, theirs for floats and ours for whole numbers, at the values that occur."""
    x, _ = rows
    whole = np.random.default_rng(0).integers(1, 8, 600) if n_values == 7 else np.arange(600) % 300 + 1
    x = x.copy()
    x[:, 1] = whole
    found = column_dependence(x, Law(), 1, of=[0.2, "spread"], max_rows=600, random_state=0)
    quantity = _Quantity(Law(), (0.2, "spread"), 1.0, (), 200, 0)
    theirs = partial_dependence(quantity, x, [1], grid_resolution=20, kind="average")
    np.testing.assert_array_equal(found.grid, theirs["grid_values"][0])
    np.testing.assert_array_equal(found.values, theirs["average"])

    class Named(Law):
        def sample(self, X, n_samples=1, random_state=None):
            return super().sample(X.to_numpy(float), n_samples, random_state)

    table = pd.DataFrame({"a": x[:, 0], "b": whole, "c": x[:, 2]})
    ours = column_dependence(table, Named(), "b", of=[0.2, "spread"], max_rows=600, random_state=0)
    if n_values == 7:
        np.testing.assert_array_equal(ours.grid, theirs["grid_values"][0])
        np.testing.assert_allclose(ours.values, theirs["average"], rtol=1e-12)
    else:
        assert set(ours.grid) <= set(whole)
        inner = np.interp(ours.grid, theirs["grid_values"][0], theirs["average"][1])
        np.testing.assert_allclose(ours.values[1], inner, rtol=0.02)


def test_dependence_on_categories_whole_numbers_dates_and_missing_values(frame):
    table, _ = frame
    table = table.copy()
    table.loc[table.index[::5], "kind"] = np.nan
    table.loc[table.index[::6], "a"] = np.nan
    b = table["b"].mean()
    found = column_dependence(table, Law(), "kind", of="spread", max_rows=400, random_state=0)
    assert [str(value) for value in found.grid] == ["calm", "wild", "None"]
    np.testing.assert_allclose(found.values[0], b * np.array([1, 2, 4]), rtol=0.02)
    found = column_dependence(table, Law(), "b", of=("mean", "spread"), max_rows=400, random_state=0)
    factor = table["kind"].map({"calm": 1.0, "wild": 2.0}).astype(float).fillna(4.0).mean()
    np.testing.assert_array_equal(found.grid, [1, 2, 3])
    np.testing.assert_allclose(found.values[1], factor * found.grid, rtol=0.02)
    found = column_dependence(table, Law(), "a", of="mean", max_rows=400, random_state=0)
    assert np.isnan(found.grid[-1])
    assert len(found.grid) == 21
    np.testing.assert_allclose(found.values[0], np.nan_to_num(3 * found.grid, nan=-5.0), atol=0.1)
    found = column_dependence(table, Law(), "day", of=[0.1, "spread"], random_state=0)
    assert found.grid.dtype.kind == "M"
    assert (np.diff(found.grid) > np.timedelta64(0, "s")).all()
    assert np.ptp(found.values[1]) == 0


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "string", "boolean", "object"])
def test_dependence_on_columns_of_pandas_own_types(dtype):
    values = {"string": ["p", "q", None], "object": ["p", "q", None], "boolean": [True, False, None]}
    cells = pd.Series(values.get(dtype, [1, 2, None]) * 20, dtype=dtype)
    table = pd.DataFrame({"column": cells, "other": np.linspace(0, 1, 60)})
    seen = []

    def sampler(X):
        seen.append(str(X["column"].dtype))
        return X["other"].to_numpy() + np.asarray(X["column"].isna(), float)

    found = column_dependence(table, sampler, "column", of="mean")
    assert set(seen) == {str(cells.dtype)}
    assert len(found.grid) == 3
    np.testing.assert_allclose(found.values[0], [0.5, 0.5, 1.5])
    assert len(found.plot()) == 1


def test_a_random_map_and_one_of_several_outputs_are_explained():
    x = np.random.default_rng(0).normal(size=(100, 2))
    model = RandomLinear(2, 3).double()
    with torch.no_grad():
        model.mean[1, 2] = 5.0
        model.std[:] = 0.1
    slopes = []
    for output in (0, 2):
        found = column_dependence(x, model, 0, of="mean", output=output, n_samples=400, random_state=0)
        slopes.append(np.polyfit(found.grid, found.values[0], 1)[0])
    np.testing.assert_allclose(slopes, [1, 5], atol=0.05)
    y = model.sample(torch.tensor(x), 1)[0]
    assert column_importance(x, y, model, random_state=0).order[0] == 0


# --- pictures ---


def test_pictures_show_what_was_computed(frame):
    table, y = frame
    found = column_importance(table, y, Law(), random_state=0)
    left, right = found.plot()
    widths = [bar.get_width() for bar in left.patches]
    np.testing.assert_allclose(widths, found.law.mean(1)[found.order][::-1])
    np.testing.assert_allclose([b.get_width() for b in right.patches], found.mean.mean(1)[found.order][::-1])
    assert [t.get_text() for t in left.get_yticklabels()] == [found.names[j] for j in found.order[::-1]]
    for name, panels in (("a", 2), ("kind", 2), ("b", 2), ("day", 2)):
        axes = column_dependence(table, Law(), name, random_state=0).plot()
        assert len(axes) == panels
        assert axes[1].get_ylabel().startswith("SD of y")
        assert axes[1].get_ylim()[0] == 0
    line = column_dependence(table, Law(), "a", of=0.9, random_state=0)
    (ax,) = line.plot()
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), line.values[0])
    mpl.pyplot.close("all")


def test_many_columns_are_shown_by_the_first_and_odd_names_as_they_are():
    law = np.linspace(0, 1, 30)[:, None] + np.zeros(3)
    names = [f"${i} <b>" for i in range(30)]
    axes = plots.importance(law, 0 * law, names)
    assert len(axes[0].patches) == 12
    assert axes[0].get_ylabel() == "12 of 30 columns"
    assert axes[0].get_yticklabels()[-1].get_text() == r"\$29 <b>"
    axes[0].figure.canvas.draw()
    axes = plots.dependence(np.array(["a$b$", None], dtype=object), np.ones((1, 2)), ["mean"], "n$o$")
    axes[0].figure.canvas.draw()
    assert [t.get_text() for t in axes[0].get_xticklabels()] == [r"a\$b\$", "missing"]
    gap = pd.to_timedelta([1, 2, None], "D").to_numpy()
    plots.dependence(gap, np.ones((2, 3)), [0.1, 0.9])[0].figure.canvas.draw()
    days = np.array(["2024-01-01", "2024-05-01", "NaT"], "M8[D]")
    axes = plots.dependence(days, np.ones((1, 3)), [0.5], data=days)
    axes[0].figure.canvas.draw()
    assert axes[0].get_xticklabels()[-1].get_text() == "missing"
    mpl.pyplot.close("all")


# --- words ---


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda x, y: column_importance(x, y[:3], Law()), "pairs"),
        (lambda x, y: column_importance(x[:1], y[:1], Law()), "one row"),
        (lambda x, y: column_importance(Law().sample, x, y), "order"),
        (lambda x, y: column_importance(x, y, None), "sampler"),
        (lambda x, y: column_importance(x, y, Law(), n_repeats=0), "n_repeats"),
        (lambda x, y: column_importance(x, y, Law(), max_rows=1), "max_rows"),
        (lambda x, y: column_dependence(x, Law(), 3), "column=3"),
        (lambda x, y: column_dependence(x, Law(), "x9"), "x2"),
        (lambda x, y: column_dependence(x, Law(), 0, of="median"), "quantile"),
        (lambda x, y: column_dependence(x, Law(), 0, of=90), "quantile"),
        (lambda x, y: column_dependence(x, Law(), 0, of=[]), "quantile"),
        (lambda x, y: column_dependence(x, Law(), 0, of=[0.5, 0.5]), "once"),
        (lambda x, y: column_dependence(x, Law(), 0, output=1), "output"),
        (lambda x, y: column_dependence(np.full((5, 1), np.nan), lambda x: x[:, 0] * 0, 0), "missing|NaN"),
        (lambda x, y: plots.importance([1.0], [1.0]), "n_repeats"),
        (lambda x, y: plots.dependence([1.0], [1.0], ["mean"]), "values"),
    ],
)
def test_wrong_questions_get_words(rows, call, word):
    with pytest.raises(ValueError, match=word):
        call(*rows)
