import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from localw2 import (
    BallLaw,
    LocalW2ODE,
    LocalW2Regressor,
    LogNormal,
    Nearest,
    Network,
    Norm,
    Normal,
    RandomCoefficientRegressor,
    SolverError,
    Weighted,
    load,
    save,
)
from localw2.datasets import Linear, Nonlinear
from localw2.storage.model_file import Stored, write


@pytest.mark.parametrize("law", [Network(width=8, epochs=5), "balls"], ids=["network", "balls"])
def test_a_regressor_comes_back_bit_for_bit(tmp_path, law):
    x, y = Nonlinear().sample(80, random_state=0)
    model = LocalW2Regressor(law, random_state=0).fit(x, y)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(x, return_std=True), model.predict(x, return_std=True))
    np.testing.assert_array_equal(loaded.sample(x, 3, random_state=1), model.sample(x, 3, random_state=1))
    assert loaded.weights_ == model.weights_
    if law == "balls":
        with pytest.raises(AttributeError, match="network"):
            _ = loaded.fit_
    else:
        assert loaded.fit_.losses == model.fit_.losses


@pytest.mark.parametrize("n_bootstrap", [0, 3])
@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_coefficients_come_back_bit_for_bit(tmp_path, n_bootstrap, covariance):
    x, y = Linear().sample(120, random_state=0)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = RandomCoefficientRegressor(
        "ml", covariance, norm=Weighted([1.0, 2.0, 3.0]), n_bootstrap=n_bootstrap, random_state=0
    ).fit(frame, y)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.summary() == model.summary()
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(
        loaded.predict(frame, return_std=True), model.predict(frame, return_std=True)
    )
    assert vars(loaded).keys() == vars(model).keys()


@pytest.fixture(scope="module")
def bootstrapped():
    x, y = Linear().sample(60, random_state=0)
    return RandomCoefficientRegressor("ml", n_bootstrap=3, random_state=0).fit(x, y)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda s, t: s.update(confidence=90), "confidence"),
        (lambda s, t: s.update(confidence=None), "confidence"),
        (lambda s, t: s.update(feature_names="abc"), "feature_names"),
        (lambda s, t: t.pop("std_se"), "errors"),
        (lambda s, t: t.pop("covariance"), "errors"),
        (lambda s, t: t.update(more=torch.zeros(1)), "errors"),
        (lambda s, t: t["std"].neg_(), "std"),
        (lambda s, t: t["std"].mul_(2), "std"),
        (lambda s, t: t["covariance"].neg_(), "covariance"),
        (lambda s, t: t["covariance"][0].add_(1), "covariance"),
        (lambda s, t: t["covariance"].sub_(9).fill_diagonal_(float(t["covariance"][1, 1])), "covariance"),
    ],
)
def test_coefficients_that_are_no_law_are_refused(bootstrapped, spoil, word):
    stored = bootstrapped.to_stored()
    RandomCoefficientRegressor.from_stored(stored)
    spoil(stored.settings, stored.tensors)
    with pytest.raises(ValueError, match=word):
        RandomCoefficientRegressor.from_stored(stored)


def test_what_cannot_be_saved_or_loaded_says_so(tmp_path):
    with pytest.raises(ValueError, match="dict"):
        save({}, tmp_path / "model")
    with pytest.raises(ValueError, match="fitted"):
        save(LocalW2Regressor(), tmp_path / "model")
    write(tmp_path / "other", Stored("checkpoint"))
    with pytest.raises(ValueError, match="checkpoint"):
        load(tmp_path / "other")
    write(tmp_path / "broken", Stored("RandomCoefficientRegressor", {"parameters": {}}))
    with pytest.raises(ValueError, match="RandomCoefficientRegressor"):
        load(tmp_path / "broken")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")


class Doubled(Norm):
    def _embed(self, x):
        return 2 * x


@pytest.mark.filterwarnings("ignore:norm=")
@pytest.mark.parametrize("change", [{}, {"law": Network(width=30), "base": None}, {"law": "balls"}])
def test_a_file_holds_what_was_fitted_whatever_the_parameters_say_now(tmp_path, change):
    """A norm of the user's own is left out, and parameters set after the fit do not describe it."""
    x, y = Nonlinear().sample(60, random_state=0)
    law = Network(width=4, epochs=2)
    settings = {"law": law, "base": Ridge(), "delta": Nearest(20), "random_state": 0}
    model = LocalW2Regressor(norm=Doubled(), **settings).fit(x, y).set_params(**change)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(load(tmp_path / "again").predict(x), model.predict(x))


def test_a_file_sets_no_parameter_of_an_object_inside(tmp_path):
    """base__memory would make a refit read pickles from a folder that the file's author chose."""
    x, y = np.random.default_rng(0).normal(size=(2, 40, 1))
    base = make_pipeline(StandardScaler(), Ridge())
    model = LocalW2Regressor("balls", base, random_state=0).fit(x, y[:, 0])
    for name, value in (("base__memory", str(tmp_path)), ("base__ridge__alpha", 2.0), ("evil", 1)):
        stored = model.to_stored()
        stored.settings["parameters"][name] = value
        with pytest.raises(ValueError, match=name):
            LocalW2Regressor.from_stored(stored)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["regressor", "coefficients", "ode"])
def test_a_file_names_no_file_that_a_refit_would_write(tmp_path, kind):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    rng = np.random.default_rng(0)
    if kind == "ode":
        y = rng.normal(size=(6, 4, 1)).cumsum(1)
        model = LocalW2ODE(width=4, max_epochs=1, random_state=0).fit(y, np.arange(4.0))
    else:
        x, y = rng.normal(size=(40, 1)), rng.normal(size=40)
        model = LocalW2Regressor(Network(width=4, epochs=1), Ridge(), delta=2.0, random_state=0)
        model = (RandomCoefficientRegressor("ml") if kind == "coefficients" else model).fit(x, y)
    stored = model.to_stored()
    known = set(model.get_params(deep=False))
    stored.settings["parameters"] |= {name: str(precious) for name in {"checkpoint", "history"} & known}
    if "n_jobs" in known:
        stored.settings["parameters"]["n_jobs"] = 1024
    loaded = type(model).from_stored(stored)
    assert getattr(loaded, "checkpoint", None) is None
    assert getattr(loaded, "history", None) is None
    assert getattr(loaded, "n_jobs", None) is None
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda s: s.update(n_features=10**8), "whole number"),
        (lambda s: s.update(n_outputs=10**8), "whole number"),
        (lambda s: s.update(y_ndim=[]), "whole number"),
        (lambda s: s.pop("outcomes"), "fit together"),
        (lambda s: s.update(weights=[10**400]), "fit together"),  # an OverflowError of numpy's
        (lambda s: s["parameters"].update(norm="x" * 5000), "5000"),
    ],
)
def test_whatever_a_file_provokes_names_the_file(tmp_path, spoil, word):
    x, y = Nonlinear().sample(40, random_state=0)
    stored = LocalW2Regressor(BallLaw(5, 3), None, random_state=0).fit(x, y).to_stored()
    spoil(stored.settings)
    write(tmp_path / "model", stored)
    with pytest.raises(ValueError, match=word) as caught:
        load(tmp_path / "model")
    assert str(tmp_path / "model") in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_work_that_no_refit_could_finish_is_not_taken_over(tmp_path):
    x, y = Nonlinear().sample(40, random_state=0)
    model = LocalW2Regressor(Network(width=4, epochs=1), None, Nearest(10), random_state=0).fit(x, y)
    stored = model.to_stored()
    stored.settings["parameters"]["law"]["fields"]["epochs"] = 2**32 - 1
    with pytest.warns(UserWarning, match="epochs"):
        loaded = LocalW2Regressor.from_stored(stored)
    assert loaded.law.epochs == Network().epochs
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


def test_a_tiny_step_of_an_ode_costs_nothing(tmp_path):
    y = np.random.default_rng(0).normal(size=(6, 4, 1)).cumsum(1)
    model = LocalW2ODE(width=4, max_epochs=1, method="euler", step_size=0.5, random_state=0)
    stored = model.fit(y, np.arange(4.0)).to_stored()
    stored.settings["step"] = 1e-9
    loaded = LocalW2ODE.from_stored(stored)
    with pytest.raises(SolverError, match="step_size"):
        loaded.sample(y[:, 0], np.arange(4.0), 3)


def test_parameters_keep_their_order(tmp_path):
    """Keys of a file are sorted, and the tensors of laws are not."""
    rng = np.random.default_rng(0)
    t, Y = np.linspace(0, 2, 5), np.exp(-rng.normal(1.0, 0.2, (30, 1)) * np.linspace(0, 2, 5))

    def grow(t, y, rate, inflow):
        return inflow - rate * y

    laws = {"rate": LogNormal(1.0, 0.3), "inflow": Normal(0.1, 0.05)}
    with pytest.warns(UserWarning, match="converged"):
        model = LocalW2ODE(grow, laws, max_epochs=2, random_state=0).fit(Y, t)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", field=grow)
    assert again.parameters_.names == ["rate", "inflow"]
    for name, values in model.parameters_.samples.items():
        np.testing.assert_allclose(again.parameters_.samples[name], values)
    stored = model.to_stored()
    del stored.settings["names"]  # as an older version wrote it
    with pytest.warns(UserWarning, match="order"):
        old = LocalW2ODE.from_stored(stored, field=grow)
    assert old.parameters_.mean == model.parameters_.mean
    stored.settings["names"] = ["rate", "rate"]
    with pytest.raises(ValueError, match="names"):
        LocalW2ODE.from_stored(stored, field=grow)
