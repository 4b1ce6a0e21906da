"""The adapter for skpro, against the real package; skipped where that is not installed."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

pytest.importorskip("skpro")

from skpro.distributions import Normal
from skpro.metrics import CRPS, LogLoss, PinballLoss
from skpro.model_selection import GridSearchCV
from skpro.regression.compose import Pipeline
from skpro.utils.estimator_checks import check_estimator

from localw2 import BallLaw, LocalW2Regressor, RandomCoefficientRegressor
from localw2.apps.skpro import PredictedDistribution, ProbaRegressor
from localw2.datasets import Linear, Nonlinear
from localw2.distribution import DrawsDistribution, NormalDistribution
from localw2.metrics import gaussian_crps

QUICK = {"law": BallLaw(20, n_trees=10), "base": Ridge(), "random_state": 0}


@pytest.fixture(scope="module")
def table():
    x, y = Nonlinear().sample(200, random_state=0)
    rows = pd.Index([f"row {i}" for i in range(200)])
    return pd.DataFrame(x, rows, ["size"]), pd.DataFrame({"a": y, "b": y**2 / 20}, rows)


@pytest.mark.parametrize("checked", [ProbaRegressor, PredictedDistribution])
def test_skpros_own_checks(checked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tiny tables, and of what skpro approximates
        found = check_estimator(checked, verbose=False)
    assert len(found) > 50
    assert {name: result for name, result in found.items() if result != "PASSED"} == {}


@pytest.mark.parametrize("targets", [["a"], ["a", "b"]])
def test_predictions_are_the_estimators(table, targets):
    X, y = table[0], table[1][targets]
    model = ProbaRegressor(LocalW2Regressor(**QUICK)).fit(X, y)
    plain = LocalW2Regressor(**QUICK).fit(X, y.to_numpy())
    new = X[:7]
    mean, std = plain.predict(new, return_std=True)
    law = model.predict_proba(new)
    assert law.index.equals(new.index)
    assert list(law.columns) == targets
    for found in (model.predict(new), law.mean()):
        np.testing.assert_array_equal(found, mean)
    for found in (model.predict_var(new), law.var()):
        np.testing.assert_allclose(found, std**2, rtol=1e-12)
    expected = plain.predict_distribution(new)
    np.testing.assert_array_equal(law.cdf(8.0), expected.cdf(8.0))
    np.testing.assert_array_equal(law.ppf(0.3), expected.ppf(0.3))
    low, high = plain.predict_quantiles(new, [0.1, 0.8])
    for found in (model.predict_quantiles(new, [0.1, 0.8]), law.quantile([0.1, 0.8])):
        for k, name in enumerate(targets):
            np.testing.assert_array_equal(found[name, 0.1], low[:, k])
            np.testing.assert_array_equal(found[name, 0.8], high[:, k])
    some = law.loc[["row 3", "row 1"], targets[-1:]]
    np.testing.assert_array_equal(some.ppf(0.3), expected[[3, 1]][:, [-1]].ppf(0.3))
    some = law.iloc[1:3, -1:]
    assert list(some.index) == ["row 1", "row 2"]
    np.testing.assert_array_equal(some.ppf(0.3), expected[1:3, -1:].ppf(0.3))
    drawn = law.sample(500)
    assert drawn.shape == (3500, len(targets))
    assert drawn.loc[(4, "row 2")].shape == (len(targets),)


def test_intervals_are_calibrated_where_the_estimator_is(table):
    X, y = table[0], table[1][["a"]]
    model = ProbaRegressor(LocalW2Regressor(**QUICK, calibrate=True)).fit(X, y)
    found, (lower, upper) = (
        model.predict_interval(X[:5], [0.5, 0.9]),
        model.regressor_.predict_interval(X[:5], 0.9),
    )
    np.testing.assert_array_equal(found["a", 0.9, "lower"], lower)
    np.testing.assert_array_equal(found["a", 0.9, "upper"], upper)
    assert (found["a", 0.9, "lower"] != model.predict_proba(X[:5]).ppf(0.05)["a"]).any()


def test_scores_of_a_gaussian_are_those_of_the_closed_form():
    x, y = Linear().sample(300, random_state=0)
    X, y = pd.DataFrame(x), pd.DataFrame({"y": y})
    model = ProbaRegressor(RandomCoefficientRegressor("ml")).fit(X, y)
    law = model.predict_proba(X)
    mean, std = model.regressor_.predict(X.set_axis(["0", "1", "2"], axis=1), return_std=True)
    exact = gaussian_crps(y["y"], mean, std).mean()
    assert CRPS()(y, law) == pytest.approx(exact, rel=1e-3)
    peer = Normal(mean[:, None], std[:, None], index=X.index, columns=y.columns)
    assert LogLoss()(y, law) == pytest.approx(LogLoss()(y, peer), rel=1e-9)


def test_energy_of_draws_is_that_of_all_pairs():
    draws = np.random.default_rng(0).gamma(2.0, size=(2000, 3, 2))
    law, x = PredictedDistribution(DrawsDistribution.of(draws)), np.full((3, 2), 1.5)
    pairs = np.abs(draws[:, None] - draws[None, :]).mean((0, 1)).sum(1)
    np.testing.assert_allclose(law.energy()["energy"], pairs, rtol=5e-3)
    np.testing.assert_allclose(law.energy(x)["energy"], np.abs(draws - x).mean(0).sum(1), rtol=5e-3)
    one = law.iat[1, 0]
    assert one.energy(1.5) == pytest.approx(np.abs(draws[:, 1, 0] - 1.5).mean(), rel=5e-3)
    assert one.energy() == pytest.approx(np.abs(draws[:, None, 1, 0] - draws[None, :, 1, 0]).mean(), rel=5e-3)


def test_pipelines_metrics_and_searches_of_skpro_work(table):
    X, y = table[0], table[1][["a"]]
    model = ProbaRegressor(LocalW2Regressor(**QUICK))
    piped = Pipeline([("scale", StandardScaler()), ("model", model)]).fit(X, y)
    assert PinballLoss()(y, piped.predict_quantiles(X, [0.1, 0.9])) > 0
    grid = {"regressor__law": [BallLaw(5, n_trees=5), BallLaw(80, n_trees=5)]}
    found = GridSearchCV(model, KFold(2), grid, CRPS(), backend="None").fit(X, y)
    assert found.best_params_["regressor__law"] in grid["regressor__law"]
    assert found.predict_proba(X[:2]).shape == (2, 1)


def test_the_code_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "distribution.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from localw2.*?)```", page, re.DOTALL)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a table of 331 rows
        exec(code, found)
    assert 28 < found["score"] < 36  # the distribution of all rows, whatever x, has 40


def test_kinds_of_laws_are_told_to_skpro():
    counts = DrawsDistribution.of(np.random.default_rng(0).poisson(1.0, (50, 2)).astype(float), discrete=True)
    kinds = {"discrete": counts, "continuous": NormalDistribution([0.0], [1.0])}
    kinds["mixed"] = DrawsDistribution.of(np.random.default_rng(0).normal(size=(50, 2)))
    for kind, law in kinds.items():
        assert PredictedDistribution(law).get_tag("distr:measuretype") == kind
    with pytest.raises(ValueError, match="iat"):
        PredictedDistribution(counts)._iat(None, 1)


def test_a_regressor_without_distributions_is_refused(table):
    with pytest.raises(ValueError, match=r"Ridge\(\) has no predict_distribution"):
        ProbaRegressor(Ridge()).fit(table[0], table[1][["a"]])
