"""LocalW2Regressor: scikit-learn's contract, the law it learns, the paper's method, storing, errors."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor, StackingRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from localw2 import (
    MMD,
    MSE,
    BallLaw,
    EnergyScore,
    FitConfig,
    Mahalanobis,
    MeanVar,
    Nearest,
    Neighborhoods,
    Network,
    Objective,
    Sinkhorn,
    SlicedW2,
    SquaredW2,
    Weighted,
    load,
    train,
)
from localw2.balls.spread import local_spread
from localw2.datasets import Nonlinear
from localw2.estimators.regression import fitting, network
from localw2.estimators.regression.loss import MOST, Anchored, anchor_strength
from localw2.estimators.regression.mean import CrossFit, cross_fit
from localw2.estimators.regression.network import balanced_draws
from localw2.estimators.regression.outcomes import Outcomes
from localw2.estimators.regression.regressor import LocalW2Regressor
from localw2.estimators.settings import hash_fit
from localw2.estimators.tables import Columns
from localw2.models.network import RandomMLP
from localw2.storage.model_file import Stored, read, write

NETWORK = {"width": 8, "epochs": 20}
QUICK = {"law": Network(**NETWORK)}
# Nothing else is excepted from scikit-learn's checks; a name here needs a reason.
EXCEPTIONS = {
    "check_sample_weight_equivalence_on_dense_data": "a table with copies has other folds, draws and ball "
    "sizes: test_weights compares each exact part with copies, and whole fits within the noise of seeds",
}


@parametrize_with_checks(
    [
        LocalW2Regressor(**QUICK, base=Ridge()),
        LocalW2Regressor(Network(width=8, epochs=60), base=None),
        LocalW2Regressor("balls"),
        LocalW2Regressor([BallLaw(n_trees=20), BallLaw(on="outcomes", n_trees=20), *QUICK.values()], Ridge()),
    ],
    expected_failed_checks=lambda estimator: EXCEPTIONS,
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        # The checks feed data on which scikit-learn's own bases warn (constant targets, few rows).
        warnings.simplefilter("ignore")
        check(estimator)


def two_outputs(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    noise = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    return x, np.column_stack([3 + x[:, 0], 10 * x[:, 1]]) + noise * [0.5, 2.0]


@pytest.fixture(scope="module")
def fitted():
    x, y = Nonlinear().sample(400, random_state=0)
    return LocalW2Regressor(Network(width=16, epochs=150), random_state=0).fit(x, y), x, y


@pytest.fixture(scope="module")
def fitted_pair():
    x, y = two_outputs(300)
    return LocalW2Regressor(Network(width=16, epochs=100), Ridge(), random_state=0).fit(x, y), x, y


class TestShapes:
    def test_one_output(self, fitted):
        model, x, _ = fitted
        mean, std = model.predict(x[:7], return_std=True)
        assert mean.shape == std.shape == (7,)
        assert model.sample(x[:7], 3, random_state=0).shape == (3, 7)
        assert model.predict_quantiles(x[:7], [0.1, 0.9]).shape == (2, 7)
        assert all(end.shape == (7,) for end in model.predict_interval(x[:7]))
        assert model.n_outputs_ == 1
        assert len(model.fit_.history) == 150

    def test_several_outputs(self, fitted_pair):
        model, x, y = fitted_pair
        mean, std = model.predict(x[:7], return_std=True)
        assert mean.shape == std.shape == (7, 2)
        assert model.sample(x[:7], 3, random_state=0).shape == (3, 7, 2)
        assert model.predict_quantiles(x[:7], [0.1, 0.5, 0.9]).shape == (3, 7, 2)
        assert model.score(x, y) > 0.5

    def test_a_column_stays_a_column(self):
        x, y = Nonlinear().sample(60, random_state=0)
        model = LocalW2Regressor(**QUICK, random_state=0).fit(x, y[:, None])
        assert model.predict(x).shape == (60, 1)
        assert model.sample(x, 2).shape == (2, 60, 1)


class TestLaw:
    def test_mean_and_spread_of_the_nonlinear_example(self, fitted):
        model, _, _ = fitted
        truth, x = Nonlinear(), np.array([[-0.4], [0.4]])
        mean, std = model.predict(x, return_std=True)
        np.testing.assert_allclose(mean, truth.mean(x), atol=0.4)
        np.testing.assert_allclose(std, truth.std(x), rtol=0.3)
        assert model.predict([[0.0]], return_std=True)[1][0] < 0.4 * std.min()

    def test_several_outputs_keep_their_correlation(self, fitted_pair):
        model, x, _ = fitted_pair
        draws = model.sample(x, 200, random_state=0) - model.predict(x)
        correlation = np.corrcoef(draws.reshape(-1, 2).T)[0, 1]
        assert correlation == pytest.approx(0.8, abs=0.12)
        np.testing.assert_allclose(draws.std((0, 1)), [0.5, 2.0], rtol=0.15)

    @pytest.mark.parametrize("base", ["auto", HistGradientBoostingRegressor()], ids=["auto", "boosting"])
    def test_pure_noise_keeps_its_spread(self, base):
        """Out-of-fold residuals of a base that fits noise must not inflate the spread: 3 % at most."""
        ratios = []
        for seed in range(3):
            rng = np.random.default_rng(100 + seed)
            x, y = rng.uniform(size=(800, 2)), 7 + 2 * rng.normal(size=800)
            model = LocalW2Regressor(Network(width=10, epochs=120), base, random_state=seed)
            std = model.fit(x, y).predict(x[:200], return_std=True)[1]
            ratios.append(np.sqrt((std**2).mean()) / y.std())
        assert np.mean(ratios) == pytest.approx(1, abs=0.03)

    @pytest.mark.slow
    @pytest.mark.parametrize("base", ["auto", HistGradientBoostingRegressor()], ids=["auto", "boosting"])
    def test_pure_noise_with_default_settings(self, base):
        ratios = []
        for seed in range(5):
            rng = np.random.default_rng(200 + seed)
            x, y = rng.uniform(size=(2000, 3)), rng.normal(size=2000)
            model = LocalW2Regressor(base=base, random_state=seed).fit(x, y)
            std = model.predict(x[:300], return_std=True)[1]
            ratios.append(np.sqrt((std**2).mean()) / y.std())
        assert np.mean(ratios) == pytest.approx(1, abs=0.03)

    def test_a_poor_base_leaves_its_mean_to_the_network(self):
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (600, 1))
        y = 3 * np.abs(x[:, 0]) + 0.2 * rng.normal(size=600)
        model = LocalW2Regressor(Network(width=16, epochs=200), LinearRegression(), random_state=0).fit(x, y)
        assert model.score(x, y) > 0.85
        assert isinstance(model.model_, RandomMLP)

    def test_rows_of_a_draw_are_independent(self, fitted):
        model, _, _ = fitted
        a, b = model.sample([[0.4], [0.4]], 4000, random_state=0).T
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.06

    def test_quantiles_rise_and_agree_with_samples(self, fitted):
        model, x, _ = fitted
        levels = np.linspace(0.01, 0.99, 21)
        quantiles = model.predict_quantiles(x[:50], levels)
        assert (np.diff(quantiles, axis=0) >= 0).all()
        draws = model.sample([[-0.4], [0.4]], 20000, random_state=0)
        std = draws.std(0)
        for q in (0.05, 0.25, 0.5, 0.75, 0.95):
            found = model.predict_quantiles([[-0.4], [0.4]], [q])[0]
            np.testing.assert_allclose((np.quantile(draws, q, axis=0) - found) / std, 0, atol=0.12)
        lower, upper = model.predict_interval(x[:50], coverage=0.9)
        np.testing.assert_array_equal(
            np.stack([lower, upper]), model.predict_quantiles(x[:50], [(1 - 0.9) / 2, (1 + 0.9) / 2])
        )

    def test_predict_integrates_what_sample_draws(self, fitted_pair):
        model, x, _ = fitted_pair
        mean, std = model.predict(x[:5], return_std=True)
        draws = model.sample(x[:5], 20000, random_state=0)
        np.testing.assert_allclose(draws.mean(0), mean, atol=0.03 * std.max())
        np.testing.assert_allclose(draws.std(0), std, rtol=0.04)


class TestReproducible:
    def test_bit_for_bit(self):
        x, y = Nonlinear().sample(100, random_state=0)
        fits = [LocalW2Regressor(**QUICK, random_state=3).fit(x, y) for _ in range(2)]
        np.testing.assert_array_equal(fits[0].predict(x), fits[1].predict(x))
        np.testing.assert_array_equal(fits[0].sample(x, 3, 5), fits[1].sample(x, 3, 5))
        other = LocalW2Regressor(**QUICK, random_state=4).fit(x, y)
        assert not np.array_equal(fits[0].predict(x), other.predict(x))

    def test_a_random_state_object_moves_on(self):
        x, y = Nonlinear().sample(60, random_state=0)
        runs = []
        for _ in range(2):
            model = LocalW2Regressor(**QUICK, base=Ridge(), random_state=np.random.RandomState(1))
            runs.append([model.fit(x, y).predict(x) for _ in range(2)])
        np.testing.assert_array_equal(runs[0], runs[1])
        assert not np.array_equal(runs[0][0], runs[0][1])

    def test_nothing_global_is_touched(self):
        x, y = Nonlinear().sample(60, random_state=0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
        LocalW2Regressor(**QUICK).fit(x, y).sample(x)
        np.testing.assert_array_equal(np.random.get_state()[1], before[0])  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), before[1])

    def test_a_base_without_a_seed_gets_one(self):
        x, y = two_outputs(80)
        base = HistGradientBoostingRegressor(max_iter=5, max_features=0.5)
        model = LocalW2Regressor(**QUICK, base=base, random_state=0)
        np.testing.assert_array_equal(
            model.fit(x, y[:, 0]).predict(x), clone(model).fit(x, y[:, 0]).predict(x)
        )
        assert base.random_state is None

    def test_companions_do_not_matter(self, fitted):
        model, x, _ = fitted
        together = model.predict(x, return_std=True)
        alone = [model.predict(x[i : i + 1], return_std=True) for i in range(3)]
        np.testing.assert_allclose([m[0] for m, _ in alone], together[0][:3], rtol=1e-12)
        np.testing.assert_allclose([s[0] for _, s in alone], together[1][:3], rtol=1e-10)
        q = model.predict_quantiles(x, [0.3])
        np.testing.assert_allclose(model.predict_quantiles(x[::-1], [0.3])[:, ::-1], q, rtol=1e-12)


@pytest.fixture
def objectives(monkeypatch):
    """The losses that networks are trained with, as they come."""
    found = []

    def watched(model, objective, inputs, config):
        found.append(objective)
        return train(model, objective, inputs, config)

    monkeypatch.setattr(network, "train", watched)
    return found


class TestPaper:
    def test_is_the_printed_method_on_raw_data(self):
        """The call of the documentation, but for the size of the network and the epochs."""
        x, y = Nonlinear().sample(200, random_state=0)
        law = Network(
            debiased=False,
            standardize=False,
            n_draws=1,
            depth=4,
            learning_rate=0.025,
            schedule="constant",
            width=8,
            epochs=30,
        )
        model = LocalW2Regressor(law, base=None, delta=0.1, random_state=0).fit(x, y)
        config = model.fit_.config
        net = RandomMLP(1, 1, 8, 4, generator=torch.Generator().manual_seed(config.seed))
        objective = Objective(torch.tensor(y[:, None], dtype=torch.float32), Neighborhoods.within(x, 0.1))
        by_hand = FitConfig(
            max_epochs=30, learning_rate=0.025, schedule="constant", n_draws=1, seed=config.seed
        )
        fit = train(net, objective, torch.tensor(x, dtype=torch.float32), by_hand)
        assert fit.losses == model.fit_.losses
        for ours, theirs in zip(model.model_.parameters(), net.parameters(), strict=True):
            assert torch.equal(ours, theirs.double())
        assert model.base_models_ == ()
        assert model.base_name_ == "none"
        draws = net.double().sample(torch.tensor([[0.4]], dtype=torch.float64), 20000)[:, 0, 0].numpy()
        mean, std = model.predict([[0.4]], return_std=True)
        assert mean[0] == pytest.approx(draws.mean(), abs=0.05)
        assert std[0] == pytest.approx(draws.std(), rel=0.05)

    @pytest.mark.parametrize("norm", [Weighted([1.0, 0.0]), Mahalanobis(np.diag([1.0, 1e-12]))])
    def test_a_norm_applies_to_x_as_given(self, norm, objectives):
        x, y = two_outputs(60)
        LocalW2Regressor(**QUICK, base=None, delta=0.3, norm=norm, random_state=0).fit(x, y[:, 0])
        plain = Neighborhoods.within(x[:, :1], 0.3)
        (objective,) = objectives
        assert torch.equal(objective.hoods.sizes, plain.at_least(2).sizes)

    @pytest.mark.parametrize(
        ("name", "n_outputs", "debiased", "expected"),
        [
            ("w2", 1, True, SquaredW2(debiased=True)),
            ("w2", 2, True, SlicedW2(debiased=True)),
            ("w2", 2, False, SquaredW2()),
            ("sliced", 2, False, SlicedW2()),
            ("mmd", 1, True, MMD()),
            ("energy", 2, True, EnergyScore()),
            ("mse", 1, True, MSE()),
            ("meanvar", 1, True, MeanVar()),
            ("sinkhorn", 3, True, Sinkhorn(debiased=True)),
            (MMD(3), 1, True, MMD(3)),
        ],
    )
    def test_discrepancies(self, name, n_outputs, debiased, expected, objectives):
        x, y = two_outputs(40)
        law = Network(width=4, epochs=2, discrepancy=name, debiased=debiased)
        model = LocalW2Regressor(law, base=None)
        model.fit(x, y[:, :n_outputs])
        (objective,) = objectives
        assert objective.discrepancy == expected


class TestParts:
    def test_anchored_is_the_loss_plus_the_squared_mean(self):
        y, yhat = torch.randn(30, 2, dtype=torch.float64), torch.randn(4, 30, 2, dtype=torch.float64)
        hoods = Neighborhoods.nearest(np.arange(30.0), 5)
        plain, held = SlicedW2(4, debiased=True), Anchored(SlicedW2(4, debiased=True), 3.0)
        pairs = sum((yhat[r] * yhat[s]).mean() for r in range(4) for s in range(4) if r != s) / 12
        gap = Objective(y, hoods, held)(yhat) - Objective(y, hoods, plain)(yhat)
        assert gap == pytest.approx(float(3 * pairs))
        assert torch.autograd.gradcheck(Objective(y, hoods, held), yhat.requires_grad_())

    def test_anchor_strength_tells_noise_from_signal(self):
        rng = np.random.default_rng(0)
        x = np.linspace(0, 1, 1000)
        hoods = Neighborhoods.nearest(x, 50)
        noise = rng.normal(size=(1000, 1))
        assert anchor_strength(hoods, noise) > 1
        assert anchor_strength(hoods, noise + 2 * np.sin(6 * x)[:, None]) < 0.1
        assert anchor_strength(hoods, np.zeros((1000, 1))) == MOST

    def test_local_spread_sees_the_local_size(self):
        rng = np.random.default_rng(0)
        x = np.linspace(0, 1, 400)
        residuals = rng.normal(size=(400, 1)) * np.where(x < 0.5, 1.0, 5.0)[:, None]
        spread = local_spread(Neighborhoods.nearest(x, 40), residuals)
        assert spread[350] / spread[50] == pytest.approx(5, rel=0.4)

    def test_out_of_fold_means_have_not_seen_their_row(self):
        x, y = two_outputs(60)
        changed = y.copy()
        changed[7] += 100.0
        columns = Columns.of_numbers(2)
        before, after = (cross_fit(LinearRegression(), x, v, columns, seed=0) for v in (y, changed))

        def raw(fitted: CrossFit):
            mean = fitted.mean
            return (fitted.out_of_fold - mean.intercept) / np.where(mean.slope > 0, mean.slope, 1)

        np.testing.assert_allclose(raw(before)[7], raw(after)[7])
        assert not np.allclose(raw(before), raw(after))

    @pytest.mark.parametrize("residual", [True, False])
    def test_balanced_draws_have_the_law_of_plain_ones(self, residual):
        net = RandomMLP(3, 2, 7, 3, residual, initial_std=None, generator=torch.Generator().manual_seed(0))
        x = torch.randn(9, 3, generator=torch.Generator().manual_seed(1)).double()
        draws = balanced_draws(net.double(), x, 200, torch.Generator().manual_seed(2))
        assert draws.shape == (200, 9, 2)
        alone = balanced_draws(net, x[4:5], 200, torch.Generator().manual_seed(2))
        torch.testing.assert_close(draws[:, 4:5], alone, rtol=1e-12, atol=1e-12)
        plain = net.sample_common(x, 100_000, torch.Generator().manual_seed(3))
        torch.testing.assert_close(draws.mean(0), plain.mean(0), rtol=0, atol=0.3 * float(plain.std()))
        torch.testing.assert_close(draws.std(0), plain.std(0), rtol=0.3, atol=0.05)

    def test_balanced_draws_have_exact_linear_moments(self):
        net = RandomMLP(1, 1, 5, 1).double()
        with torch.no_grad():
            for layer in net.layers:
                layer.mean.zero_(), layer.std.zero_(), layer.bias.zero_()
            net.layers[-1].bias.fill_(2.0)
            net.layers[0].bias.fill_(1.0)
            net.layers[-1].std.fill_(1.0)
        draws = balanced_draws(net, torch.zeros(3, 1, dtype=torch.float64), 200, torch.Generator())
        assert draws.mean(0).numpy() == pytest.approx(2.0)
        assert draws.var(0, correction=0).numpy() == pytest.approx(5.0)


class TestData:
    @pytest.mark.parametrize("n", [2, 3, 5, 8, 19])
    @pytest.mark.parametrize("base", ["auto", None])
    @pytest.mark.parametrize("law", [Network(width=4, epochs=10), "balls"], ids=["network", "balls"])
    def test_few_rows(self, n, base, law):
        rng = np.random.default_rng(0)
        model = LocalW2Regressor(law, base, random_state=0)
        assert np.isfinite(
            model.fit(rng.normal(size=(n, 2)), rng.normal(size=n)).predict(np.zeros((3, 2)))
        ).all()

    @pytest.mark.parametrize("base", ["auto", None])
    @pytest.mark.parametrize("law", [Network(**NETWORK), "balls"], ids=["network", "balls"])
    def test_constant_y_constant_columns_and_copies_of_x(self, base, law):
        rng = np.random.default_rng(0)
        model = LocalW2Regressor(law, base, random_state=0)
        mean, std = model.fit(rng.normal(size=(80, 2)), np.full(80, 3.0)).predict(
            [[0.0, 0.0]], return_std=True
        )
        assert mean[0] == pytest.approx(3, abs=1e-9)
        assert std[0] == pytest.approx(0, abs=1e-9)
        x = np.column_stack([np.repeat([0.0, 1.0], 50), np.ones(100)])
        assert np.isfinite(model.fit(x, rng.normal(size=100)).predict(x)).all()

    @pytest.mark.parametrize("kind", ["pandas", "polars"])
    def test_data_frames(self, kind):
        frames = pytest.importorskip(kind)
        x, y = two_outputs(60)
        frame = frames.DataFrame({"a": x[:, 0], "b": x[:, 1]})
        target = frames.DataFrame({"u": y[:, 0], "v": y[:, 1]})
        model = LocalW2Regressor(**QUICK, base=Ridge(), random_state=0).fit(frame, target)
        assert list(model.feature_names_in_) == ["a", "b"]
        plain = LocalW2Regressor(**QUICK, base=Ridge(), random_state=0).fit(x, y)
        np.testing.assert_array_equal(model.predict(frame), plain.predict(x))
        with pytest.raises(ValueError, match="names"):
            model.predict(frames.DataFrame({"b": x[:, 1], "a": x[:, 0]}))

    def test_a_base_for_one_output_is_used_for_each(self):
        x, y = two_outputs(80)
        base = HistGradientBoostingRegressor(max_iter=5)
        model = LocalW2Regressor(**QUICK, base=base, random_state=0).fit(x, y)
        assert model.predict(x).shape == (80, 2)

    @pytest.mark.filterwarnings("ignore:This fit cannot be saved")
    def test_a_base_whose_predict_comes_with_its_fit(self):
        """A stack has no attribute predict until it is fitted."""
        x, y = two_outputs(80)
        stack = StackingRegressor([("ridge", Ridge()), ("line", LinearRegression())], Ridge(), cv=2)
        model = LocalW2Regressor(**QUICK, base=stack, random_state=0).fit(x, y[:, 0])
        assert model.score(x, y[:, 0]) > 0.1
        assert model.base_name_ == "given"

    def test_numpy_scalars_are_settings(self, tmp_path):
        """As a grid of settings gives them; saved, in mini-batches, with a checkpoint."""
        x, y = two_outputs(60)
        plain = {"epochs": 4, "width": 6, "depth": 1, "n_draws": 3, "batch_balls": 20}
        plain |= {"learning_rate": 0.25, "debiased": True, "residual": False, "standardize": True}
        given = {name: np.array(value)[()] for name, value in plain.items()}
        given["learning_rate"] = np.float32(0.25)
        other = {"delta": np.float64(0.5), "random_state": np.int64(0), "checkpoint": tmp_path / "c"}
        fits = [
            LocalW2Regressor(Network(**settings), Ridge(), **{"delta": 0.5, "random_state": 0} | others)
            for settings, others in ((plain, {}), (given, other))
        ]
        for model in fits:
            model.fit(x, y[:, 0])
        fits[1].save(tmp_path / "model")
        for model in (fits[1], load(tmp_path / "model")):
            np.testing.assert_array_equal(model.predict(x), fits[0].predict(x))
        SquaredW2(debiased=np.True_)
        law = Network(**NETWORK, discrepancy=SlicedW2(np.int64(4), np.True_))
        LocalW2Regressor(law, base=None).fit(x, y).save(tmp_path / "sliced")
        assert load(tmp_path / "sliced").law == Network(**NETWORK, discrepancy=SlicedW2(4, True))
        balls = BallLaw(np.int64(3), np.int32(7))
        LocalW2Regressor(balls, base=None).fit(x, y).save(tmp_path / "balls")
        assert load(tmp_path / "balls").law == BallLaw(3, 7)

    def test_units_do_not_matter(self):
        x, y = two_outputs(80)
        model = LocalW2Regressor(**QUICK, base=Ridge(), random_state=0)
        ours = model.fit(x, y).predict(x)
        theirs = clone(model).fit(1e6 * x, 1e-3 * y).predict(1e6 * x)
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999

    def test_in_a_grid_search(self):
        x, y = Nonlinear().sample(60, random_state=0)
        laws = [Network(width=8, epochs=20, depth=1), BallLaw(n_trees=10)]
        search = GridSearchCV(LocalW2Regressor(**QUICK, base=Ridge(), random_state=0), {"law": laws}, cv=2)
        assert search.fit(x, y).best_params_["law"] in laws


class Foreign(RegressorMixin, BaseEstimator):
    """A regressor that no model file can hold."""

    def fit(self, X, y):
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


class Watched(Foreign):
    """Tells a list, which clones share, of every fit."""

    def __init__(self, fits=None):
        self.fits = fits

    def fit(self, X, y):
        self.fits.append(len(X))
        return super().fit(X, y)

    def __sklearn_clone__(self):
        return Watched(self.fits)


class TestRefit:
    @pytest.mark.parametrize("failure", [FloatingPointError, KeyboardInterrupt])
    @pytest.mark.parametrize("stage", [(network, "train"), (fitting, "cross_fit")])
    def test_one_that_fails_leaves_the_old_fit_whole(self, monkeypatch, failure, stage):
        x, y = two_outputs(60)
        model = LocalW2Regressor(**QUICK, base=Ridge(), random_state=0).fit(x, y)
        before, fitted = model.predict(x, return_std=True), dict(vars(model))

        def fail(*arguments, **settings):
            raise failure

        monkeypatch.setattr(*stage, fail)
        with pytest.raises(failure):
            model.set_params(base=LinearRegression()).fit(100 * x[:, :1], 1000 * y[:, 0])
        for old, new in zip(before, model.predict(x, return_std=True), strict=True):
            np.testing.assert_array_equal(old, new)
        assert vars(model).keys() == fitted.keys()
        assert all(vars(model)[name] is value for name, value in fitted.items() if name != "base")

    def test_one_that_succeeds_leaves_nothing_of_the_old(self):
        pandas = pytest.importorskip("pandas")
        x, y = two_outputs(60)
        model = LocalW2Regressor(**QUICK, base=Ridge(), random_state=0)
        model.fit(pandas.DataFrame(x, columns=["a", "b"]), y)
        fresh = clone(model).fit(x[:, :1], y[:, 0])
        assert model.fit(x[:, :1], y[:, 0]) is model
        assert vars(model).keys() == vars(fresh).keys()  # no feature_names_in_
        np.testing.assert_array_equal(model.predict(x[:, :1]), fresh.predict(x[:, :1]))

    def test_ctrl_c_after_an_epoch_keeps_what_there_is(self, monkeypatch):
        x, y = two_outputs(60)

        def interrupted(model, objective, inputs, config):
            def stop(entry):
                if entry["epoch"] == 3:
                    raise KeyboardInterrupt

            return train(model, objective, inputs, config, callbacks=(stop,))

        monkeypatch.setattr(network, "train", interrupted)
        with pytest.warns(UserWarning, match="interrupted"):
            model = LocalW2Regressor(**QUICK, base=Ridge(), random_state=0).fit(x, y)
        assert model.fit_.stopped == "interrupted after epoch 3"
        assert np.isfinite(model.predict(x)).all()


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "word"),
        [
            ({"base": "ridge"}, "base"),
            ({"base": Ridge}, "base"),
            ({"delta": "small"}, "delta"),
            ({"delta": -1.0}, "delta"),
            ({"norm": "l1"}, "norm"),
            ({"law": "forest"}, "law"),
            ({"law": []}, "law"),
            ({"law": [Ridge()]}, "law"),
            ({"law": Network}, "law"),
            ({"law": [Network(), Network(width=9)]}, "twice"),
            ({"law": [BallLaw(), BallLaw(n_trees=9)]}, "twice"),
            ({"checkpoint": 3}, "checkpoint"),
            pytest.param({"checkpoint": "/proc/c"}, "/proc/c", marks=pytest.mark.posix),
            ({"history": 3}, "history"),
            pytest.param({"history": "/proc/c"}, "/proc/c", marks=pytest.mark.posix),
            ({"delta": np.array([0.1, 0.2])}, "delta"),
            ({"norm": np.eye(2)}, "norm"),
            ({"device": "meta"}, "device"),
            ({"device": "abacus"}, "device"),
            ({"random_state": "x"}, "random_state"),
            ({"base": None, "delta": 1e-9}, "ball"),
        ],
    )
    @pytest.mark.filterwarnings("ignore")
    def test_parameters(self, settings, word):
        x, y = Nonlinear().sample(30, random_state=0)
        with pytest.raises(ValueError, match=word):
            LocalW2Regressor(**{**QUICK, **settings}).fit(x, y)

    @pytest.mark.parametrize(
        ("kind", "settings", "word"),
        [
            (Network, {"discrepancy": "kl"}, "discrepancy"),
            (Network, {"width": 0}, "width"),
            (Network, {"depth": -1}, "depth"),
            (Network, {"activation": "sin"}, "activation"),
            (Network, {"learning_rate": 0.0}, "learning_rate"),
            (Network, {"weight_decay": -1.0}, "weight_decay"),
            (Network, {"epochs": 0}, r"\bepochs"),
            (Network, {"n_draws": 0}, "n_draws"),
            (Network, {"batch_balls": 0}, "batch_balls"),
            (Network, {"residual": 1}, "residual"),
            (Network, {"standardize": "no"}, "standardize"),
            (Network, {"debiased": "no"}, "debiased"),
            (Network, {"schedule": "linear"}, "schedule"),
            (BallLaw, {"min_rows": 1}, "min_rows"),
            (BallLaw, {"min_rows": 5.0}, "min_rows"),
            (BallLaw, {"n_trees": 0}, "n_trees"),
            (BallLaw, {"on": "y"}, "on="),
        ],
    )
    def test_settings_of_a_law_are_refused_when_it_is_made(self, kind, settings, word):
        with pytest.raises(ValueError, match=word):
            kind(**settings)

    def test_arguments(self, fitted):
        model, x, _ = fitted
        for wrong in ([0.5, 1.5], [], [0.0, 0.5], 1.0, [[0.5]]):  # draws have no quantile 0 or 1 to tell of
            with pytest.raises(ValueError, match=r"\bq\b"):
                model.predict_quantiles(x, wrong)
        assert model.predict_quantiles(x[:3], 0.5).shape == (1, 3)
        for wrong in (90, "0.9", True, None, [0.9]):
            with pytest.raises(ValueError, match="coverage"):
                model.predict_interval(x, wrong)
        with pytest.raises(ValueError, match="n_samples"):
            model.sample(x, 0)
        with pytest.raises(ValueError, match="features"):
            model.predict(np.zeros((3, 2)))

    @pytest.mark.parametrize("settings", [{"device": "cuda"}, {"checkpoint": "/proc/c"}, {"law": "net"}])
    @pytest.mark.posix
    @pytest.mark.filterwarnings("ignore:This fit cannot be saved")
    @pytest.mark.skipif(torch.cuda.is_available(), reason="cuda can be used here")
    def test_what_would_fail_late_fails_before_the_base_is_fitted(self, settings):
        model = LocalW2Regressor(**{**QUICK, **settings}, base=Watched([]))
        with pytest.raises(ValueError, match=next(iter(settings))):
            model.fit(*Nonlinear().sample(30, random_state=0))
        assert model.base.fits == []

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            (lambda x, y: (x, 1e101 * y), "overflow"),
            (lambda x, y: (x, 1e-103 * y), "vanish"),
            (lambda x, y: (1e101 * x, y), "X"),
            (lambda x, y: (1e-102 * x, y), "X"),
        ],
    )
    def test_extreme_scales(self, change, word):
        x, y = change(*Nonlinear().sample(30, random_state=0))
        with pytest.raises(ValueError, match=word):
            LocalW2Regressor(**QUICK).fit(x, y)

    def test_scales_that_float32_cannot_hold(self):
        x, y = Nonlinear().sample(30, random_state=0)
        with pytest.raises(ValueError, match=r"1e\+18"):
            LocalW2Regressor(Network(**NETWORK, standardize=False), base=None).fit(x, 1e18 * y)
        # A column that varies in its last digits is a constant one, and fine.
        constant = np.column_stack([x, np.where(x[:, 0] > 0, 1e-110, 1e-110 * (1 + 1e-15))])
        assert np.isfinite(LocalW2Regressor(**QUICK, base=None).fit(constant, y).predict(constant)).all()

    @pytest.mark.parametrize("law", [QUICK["law"], BallLaw(n_trees=5)])
    def test_a_base_that_cannot_be_saved_gives_a_warning_before_the_fit(self, law):
        x, y = Nonlinear().sample(40, random_state=0)
        model = LocalW2Regressor(law, base=Foreign(), random_state=0)
        with pytest.warns(UserWarning, match="saved"):
            model.fit(x, y)
        assert model.sample(x).shape == (1, 40)
        with pytest.raises(ValueError, match="Foreign"):
            model.save("never written")


def assert_same_answers(ours, theirs, x):
    """Bit for bit, in everything that a regressor can be asked."""
    for a, b in zip(ours.predict(x, return_std=True), theirs.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ours.sample(x, 3, 1), theirs.sample(x, 3, 1))
    np.testing.assert_array_equal(ours.predict_quantiles(x, [0.2]), theirs.predict_quantiles(x, [0.2]))
    np.testing.assert_array_equal(ours.predict_interval(x, 0.7), theirs.predict_interval(x, 0.7))


@pytest.fixture(scope="module")
def unspoilt():
    x, y = two_outputs(40)
    stored = LocalW2Regressor(Network(width=4, epochs=2), base=None).fit(x, y[:, 0]).to_stored()
    LocalW2Regressor.from_stored(stored)
    return stored


class TestStored:
    @pytest.mark.parametrize("outputs", [1, 2])
    @pytest.mark.parametrize(
        "settings",
        [
            QUICK,
            {
                "law": Network(**NETWORK, discrepancy=EnergyScore()),
                "base": None,
                "delta": 0.5,
                "norm": Weighted([1.0, 2.0]),
            },
            {
                "law": Network(**NETWORK, residual=False, activation="tanh"),
                "base": make_pipeline(StandardScaler(), Ridge()),
            },
            {"law": "balls"},
            {"law": [BallLaw(3, 20), BallLaw(20, 10, "outcomes"), QUICK["law"]], "base": Ridge()},
            {"law": BallLaw(on="outcomes", n_trees=10), "base": None},
        ],
        ids=["network", "none", "given", "balls", "pool", "outcomes"],
    )
    def test_round_trip_is_exact(self, tmp_path, outputs, settings):
        x, y = two_outputs(90)
        y = y[:, 0] if outputs == 1 else y
        model = LocalW2Regressor(**settings, random_state=0).fit(x, y)
        write(tmp_path / "model", model.to_stored())
        loaded = LocalW2Regressor.from_stored(read(tmp_path / "model"))
        assert_same_answers(model, loaded, x)
        assert repr(loaded) == repr(model)
        assert loaded.law == model.law
        assert loaded.weights_ == model.weights_
        assert loaded.base_name_ == model.base_name_
        if "network" in model.weights_:
            assert loaded.fit_.losses == model.fit_.losses
            assert loaded.delta_ == model.delta_
        np.testing.assert_array_equal(clone(loaded).fit(x, y).predict(x), model.predict(x))

    def test_round_trip_of_the_default(self, tmp_path):
        """On rows whose law varies smoothly, where a network has a part."""
        x, y = Nonlinear().sample(120, random_state=1)
        model = LocalW2Regressor(random_state=0).fit(x, y)
        model.save(tmp_path / "model")
        loaded = load(tmp_path / "model")
        assert_same_answers(model, loaded, x)
        assert loaded.weights_ == model.weights_
        assert sum(model.weights_.values()) == pytest.approx(1)

    def test_feature_names_survive(self):
        pandas = pytest.importorskip("pandas")
        x, y = two_outputs(40)
        frame = pandas.DataFrame(x, columns=["a", "b"])
        model = LocalW2Regressor(**QUICK, base=None).fit(frame, y)
        loaded = LocalW2Regressor.from_stored(model.to_stored())
        np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
        assert list(loaded.feature_names_in_) == ["a", "b"]

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda s, t: s.pop("parameters"),
            lambda s, t: s["members"][0].update(width=10**9),
            lambda s, t: s["members"][0].update(depth=10**9),
            lambda s, t: s["members"][0].update(residual=1),
            lambda s, t: s["members"][0].update(activation="sin"),
            lambda s, t: s["members"][0].update(seed=-1),
            lambda s, t: s["members"][0].update(seed=2**63),
            lambda s, t: s["members"][0].update(seed=1.0),
            lambda s, t: s["members"][0].update(kind="balls"),
            lambda s, t: s["members"][0].update(kind="line"),
            lambda s, t: s["members"][0].pop("rounding"),
            lambda s, t: s.update(members=[]),
            lambda s, t: s.update(members=s["members"] * 2),
            lambda s, t: s.update(weights=[0.5]),
            lambda s, t: s.update(weights=[0.5, 0.5]),
            lambda s, t: s.update(weights=[float("nan")]),
            lambda s, t: s.update(weights=None),
            lambda s, t: s.update(mean=[{"name": "ridge", "weight": 1.0, "folds": 2, "native": False}]),
            lambda s, t: s.update(mean=None),
            lambda s, t: s.update(scale=-1.0),
            lambda s, t: s.update(scale=float("nan")),
            lambda s, t: s.update(scale=True),
            lambda s, t: s["parameters"].update(nonsense=1),
            lambda s, t: s["parameters"].update(norm={"object": "system", "fields": {}}),
            lambda s, t: s["parameters"].update(law={"strategy": "system", "fields": {}}),
            lambda s, t: s["parameters"]["law"]["fields"].update(width=0),
            lambda s, t: s["parameters"]["law"]["fields"].update(more=0),
            lambda s, t: s["parameters"].update(law=3),
            lambda s, t: s["parameters"].update(base="ridge"),
            lambda s, t: s["parameters"].update(base={"regressor": "other"}),
            lambda s, t: s.update(n_features=3),
            lambda s, t: s.update(n_outputs=True),
            lambda s, t: s.update(y_ndim=7),
            lambda s, t: s.update(feature_names=["a"]),
            lambda s, t: s.update(y_ndim=True),
            lambda s, t: s.update(y_ndim=1.0),
            lambda s, t: s.update(feature_names="ab"),
            lambda s, t: s.update(feature_names=["a", 3]),
            lambda s, t: s["fit"].update(stopped=3),
            lambda s, t: s["fit"].update(seconds="long"),
            lambda s, t: s["fit"].update(best_epoch="first"),
            lambda s, t: s["fit"].update(history=[{"loss": 1.0}, {"loss": 1.0}]),
            lambda s, t: t.pop("history.epoch"),
            lambda s, t: t.pop("history.loss"),
            lambda s, t: t.update({"history.rate": torch.zeros(3, dtype=torch.float64)}),
            lambda s, t: t.update({"history.epoch": torch.tensor([1.0, 3.0], dtype=torch.float64)}),
            lambda s, t: s["fit"].update(more=1),
            lambda s, t: s["fit"]["config"].update(max_epochs=-1),
            lambda s, t: t.pop("member0.x_scale"),
            lambda s, t: t.update({"member0.y_factor": torch.tensor([[np.nan]], dtype=torch.float64)}),
            lambda s, t: t.pop("member0.model.layers.0.bias"),
            lambda s, t: t.pop("base_slope"),
        ],
    )
    def test_parts_that_do_not_fit_are_refused(self, unspoilt, spoil):
        settings, tensors = json.loads(json.dumps(unspoilt.settings)), dict(unspoilt.tensors)
        spoil(settings, tensors)
        with pytest.raises(ValueError):
            LocalW2Regressor.from_stored(Stored(unspoilt.kind, settings, tensors))

    def test_paths_of_this_machine_stay_here(self, tmp_path):
        x, y = two_outputs(40)
        files = {"checkpoint": tmp_path / "c", "history": tmp_path / "h"}
        stored = LocalW2Regressor(Network(width=4, epochs=2), base=None, **files).fit(x, y).to_stored()
        assert str(tmp_path) not in repr(stored.settings)
        loaded = LocalW2Regressor.from_stored(stored)
        assert loaded.checkpoint is None
        assert loaded.history is None
        assert loaded.fit_.config.checkpoint is None
        assert loaded.fit_.config.history is None

    def test_another_kind_is_refused(self):
        with pytest.raises(ValueError, match="line"):
            LocalW2Regressor.from_stored(Stored("line"))


KILLED = """
import os, signal, sys
import numpy as np
from localw2.datasets import Nonlinear
from localw2 import LocalW2Regressor, Network
from localw2.estimators.regression import network
from localw2.training.loop import train

def cut(model, objective, x, config):
    stop = lambda entry: entry["epoch"] == 70 and os.kill(os.getpid(), signal.SIGKILL)
    return train(model, objective, x, config, callbacks=(stop,))

network.train = cut
x, y = Nonlinear().sample(80, random_state=0)
model = LocalW2Regressor(Network(width=8, epochs=100), random_state=0)
model.set_params(checkpoint=sys.argv[1]).fit(x, y)
"""


class TestCheckpoint:
    @pytest.mark.posix
    def test_a_killed_fit_resumes(self, tmp_path):
        path = tmp_path / "checkpoint"
        killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, capture_output=True)
        assert killed.returncode == -9, killed.stderr
        assert path.exists()
        x, y = Nonlinear().sample(80, random_state=0)
        settings = {"law": Network(width=8, epochs=100), "random_state": 0}
        whole = LocalW2Regressor(**settings).fit(x, y)
        with pytest.raises(ValueError, match="checkpoint"):
            LocalW2Regressor(**settings, checkpoint=path).fit(x, y + 1)
        resumed = LocalW2Regressor(**settings, checkpoint=path).fit(x, y)
        np.testing.assert_array_equal(resumed.predict(x), whole.predict(x))
        assert resumed.fit_.losses == whole.fit_.losses
        assert not path.exists()

    def test_a_random_state_that_moves_on_is_refused(self, tmp_path):
        x, y = Nonlinear().sample(60, random_state=0)
        for state in (np.random.RandomState(0), np.random.default_rng(0)):
            model = LocalW2Regressor(**QUICK, checkpoint=tmp_path / "c", random_state=state)
            with pytest.raises(ValueError, match="random_state"):
                model.fit(x, y)

    def test_the_fingerprint_is_that_of_the_law_alone(self):
        """Addresses differ between processes; where a fit is stored, or how it is shown, does not matter."""
        x, y = two_outputs(20)

        def taken(**settings):
            return hash_fit(LocalW2Regressor(**settings).get_params(deep=False), x, y)

        steps = [make_pipeline(FunctionTransformer(lambda v: v), Ridge()) for _ in range(2)]
        assert repr(steps[0]) != repr(steps[1])
        assert taken(base=steps[0]) == taken(base=steps[1])
        assert taken() == taken(verbose=True, checkpoint="c", history="h", device="cpu", n_jobs=2)
        assert taken() != taken(law=Network(width=51))

    @pytest.mark.parametrize("calibrate", [False, True])
    def test_the_history_file_has_the_epochs_of_the_fit_and_changes_nothing(self, tmp_path, calibrate):
        """With calibration it stays that of the whole fit, not of the parts that follow."""
        x, y = Nonlinear().sample(60, random_state=0)
        settings = QUICK | {"base": None, "calibrate": calibrate, "random_state": 0}
        plain = LocalW2Regressor(**settings).fit(x, y)
        model = clone(LocalW2Regressor(**settings, history=tmp_path / "h.jsonl"))
        assert model.get_params()["history"] == tmp_path / "h.jsonl"
        model.fit(x, y)
        np.testing.assert_array_equal(model.predict(x), plain.predict(x))
        lines = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()]
        assert lines == model.fit_.history
        assert [line["loss"] for line in lines] == plain.fit_.losses

    def test_without_a_random_state_the_second_call_finds_the_first(self, tmp_path):
        x, y = Nonlinear().sample(60, random_state=0)
        fits = [LocalW2Regressor(**QUICK, checkpoint=tmp_path / "c").fit(x, y).predict(x) for _ in range(2)]
        np.testing.assert_array_equal(*fits)


def test_balls_for_a_network_are_not_ignored_in_silence():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = x[:, 0] + rng.normal(size=60)
    with pytest.warns(UserWarning, match=r"delta=Nearest\(k=5\) changed nothing"):
        LocalW2Regressor(delta=Nearest(5), random_state=0).fit(x, y)


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_rows_that_no_number_can_follow_are_refused(value):
    x = np.random.default_rng(0).normal(size=(40, 1))
    model = LocalW2Regressor(Network(width=4, epochs=1), base=None, random_state=0).fit(x, x[:, 0])
    for answer in (model.predict, model.sample, model.predict_quantiles):
        with pytest.raises(ValueError, match="units"):
            answer([[0.0], [value]])


def test_far_rows_have_finite_draws_few_or_many():
    x = np.random.default_rng(0).normal(size=(40, 1))
    model = LocalW2Regressor(Network(width=4, epochs=1), base=None, random_state=0).fit(x, x[:, 0])
    rows = np.full((100, 1), 1e21)
    assert np.isfinite(model.sample(rows[:2], 10)).all()
    assert np.isfinite(model.sample(rows, 2000)).all()


def test_what_is_no_table_is_told_as_by_scikit_learn():
    x = np.arange(20.0)
    model = LocalW2Regressor(Network(epochs=1), base=None)
    with pytest.raises(ValueError, match="Expected"):
        model.fit(pd.Series(x), x)
    with pytest.raises(ValueError, match="requires"):
        model.fit(pd.DataFrame({"a": x, "b": "u"}), None)


@pytest.mark.parametrize("jobs", [0, "x", 1.5, True])
def test_jobs_must_be_a_number(jobs):
    with pytest.raises(ValueError, match="n_jobs"):
        LocalW2Regressor("balls", n_jobs=jobs).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])


class TestHeldOutRowsStopANetwork:
    def learn(self, held):
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (100, 1))
        y = x + 0.2 * rng.normal(size=(100, 1))
        columns = Columns.of_numbers(1)
        fitted = cross_fit(None, x, y, columns, 0)
        law = Network(epochs=60)
        outcomes, device = Outcomes.anything(1), torch.device("cpu")
        return law.learn(x, y, fitted, outcomes, "auto", "auto", device, law.config(seed=0), held).fit

    def test_rows_that_contradict_the_fit_stop_it_early(self):
        x = np.linspace(-1, 1, 50)[:, None]
        fit = self.learn((x, -5 * x, None))
        assert fit.stopped.startswith("no better score")
        assert fit.best_epoch < 30
        assert len(fit.history) < 60

    def test_rows_that_agree_do_not(self):
        rng = np.random.default_rng(1)
        x = rng.uniform(-1, 1, (400, 1))
        fit = self.learn((x, x + 0.2 * rng.normal(size=(400, 1)), None))
        assert fit.stopped == "all epochs done"
        scores = [entry["score"] for entry in fit.history if entry.get("score") is not None]
        assert fit.best_score == min(scores) < scores[0]
