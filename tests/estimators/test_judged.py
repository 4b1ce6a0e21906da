"""Estimators diagnose themselves on new rows, and know which rows are not new."""

import warnings

import numpy as np
import pytest

import localw2
from localw2 import (
    LocalW2ODE,
    LocalW2Regressor,
    Network,
    Normal,
    RandomCoefficientRegressor,
    SeenRowsWarning,
    conditional_test,
)
from localw2.datasets import FourStates, Linear, Nonlinear


@pytest.fixture(scope="module")
def coefficients():
    return RandomCoefficientRegressor("ml", random_state=0).fit(*Linear().sample(500, random_state=0))


@pytest.fixture(scope="module")
def regressor():
    law = Network(width=8, epochs=3)
    return LocalW2Regressor(law, random_state=0).fit(*Nonlinear().sample(100, random_state=0))


@pytest.fixture(scope="module")
def states():
    y, t, _ = FourStates(0.1, 0.25).sample(20, random_state=0)
    return LocalW2ODE(width=8, max_epochs=2, random_state=0).fit(y, t), y, t


def test_a_good_fit_is_called_calibrated(coefficients):
    x, y = Linear().sample(400, random_state=1)
    found = coefficients.diagnose(x, y, random_state=0)
    assert found.calibrated
    assert found.verdict[0].startswith("Calibrated")


def test_an_unfinished_fit_is_not(regressor):
    found = regressor.diagnose(*Nonlinear().sample(400, random_state=1), random_state=0)
    assert not found.calibrated


def test_the_same_random_state_gives_the_same_diagnosis(coefficients):
    x, y = Linear().sample(50, random_state=1)
    assert str(coefficients.diagnose(x, y, random_state=3)) == str(
        coefficients.diagnose(x, y, random_state=3)
    )


@pytest.mark.parametrize("name", ["coefficients", "regressor"])
def test_rows_of_the_fit_give_a_warning_also_after_loading(name, request, tmp_path):
    model = request.getfixturevalue(name)
    truth = Linear() if name == "coefficients" else Nonlinear()
    x, y = truth.sample(500 if name == "coefficients" else 100, random_state=0)
    localw2.save(model, tmp_path / "model.safetensors")
    new_x, new_y = truth.sample(60, random_state=7)
    for estimator in (model, localw2.load(tmp_path / "model.safetensors")):
        with pytest.warns(SeenRowsWarning, match="training"):
            estimator.diagnose(x, y, n_samples=20, random_state=0)
        with pytest.warns(SeenRowsWarning, match=r"\b60\b"):
            estimator.diagnose(np.r_[x[:60], new_x], np.r_[y[:60], new_y], n_samples=20, random_state=0)
        with pytest.warns(SeenRowsWarning):
            conditional_test(x, y, estimator, 0.3, n_permutations=19, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", SeenRowsWarning)
            estimator.diagnose(new_x, new_y, n_samples=20, random_state=0)


def test_trajectories(states, tmp_path):
    model, y, t = states
    new, _, _ = FourStates(0.1, 0.25).sample(30, random_state=1)
    found = model.diagnose(new, t, n_samples=20, random_state=0)
    assert found.verdict
    localw2.save(model, tmp_path / "model.safetensors")
    for estimator in (model, localw2.load(tmp_path / "model.safetensors")):
        with pytest.warns(SeenRowsWarning, match=r"\b20\b"):
            estimator.diagnose(y, t, n_samples=20, random_state=0)


def test_observed_trajectories_start_in_states():
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 6)

    def paths(n):
        start, k = rng.uniform(1, 2, n), rng.normal(1.0, 0.2, n)
        return start[:, None], (start[:, None] * np.exp(-k[:, None] * t))[..., None]

    y0, train = paths(150)
    model = LocalW2ODE(
        lambda t, y, k: -k * y,
        {"k": Normal(1.0, 0.2)},
        observe=lambda y: y.log(),
        max_epochs=40,
        random_state=0,
    ).fit(np.log(train), t, y0=y0)
    new_y0, new = paths(200)
    with pytest.raises(ValueError, match="y0"):
        model.diagnose(np.log(new), t)
    assert model.diagnose(np.log(new), t, y0=new_y0, n_times=1, random_state=0).calibrated


def test_columns_of_a_frame_keep_their_names():
    pandas = pytest.importorskip("pandas")
    names = ["age", "bmi", "bp"]
    x, y = Linear().sample(300, random_state=1)
    model = RandomCoefficientRegressor("ml", random_state=0).fit(pandas.DataFrame(x, columns=names), y)
    new_x, new_y = Linear().sample(300, random_state=2)
    found = model.diagnose(pandas.DataFrame(new_x, columns=names), 3 * new_y, random_state=0)
    assert any(name in found.table() for name in names)


def test_bad_input(coefficients, states):
    x, y = Linear().sample(20, random_state=1)
    with pytest.raises(ValueError, match="n_samples"):
        coefficients.diagnose(x, y, n_samples=1)
    with pytest.raises(ValueError, match="19"):
        coefficients.diagnose(x, y[:19])
    model, paths, t = states
    with pytest.raises(ValueError, match="trajectories"):
        model.diagnose(paths[:, :3], t)
    with pytest.raises(ValueError, match="n_times"):
        model.diagnose(paths, t, n_times=0)
    with pytest.raises(ValueError, match="complete observation"):
        model.diagnose(np.where(np.arange(len(t))[:, None] > 0, np.nan, paths), t)


def test_trajectories_with_gaps_and_times_of_their_own():
    rng = np.random.default_rng(0)

    def paths(n, fewest=5):
        lengths = rng.integers(fewest, 9, n)
        t = [np.r_[0.0, np.sort(rng.uniform(0.1, 2, m - 1))] for m in lengths]
        start, k = rng.uniform(1, 2, n), rng.normal(1.0, 0.2, n)
        return [s * np.exp(-k[i] * own) for i, (s, own) in enumerate(zip(start, t, strict=True))], t, start

    Y, t, _ = paths(80)
    model = LocalW2ODE(lambda t, y, k: -k * y, {"k": Normal(1.0, 0.2)}, max_epochs=20, random_state=0)
    model.fit(Y, t)
    new, own, start = paths(50)
    assert model.diagnose(new, own, n_times=1, n_samples=40, random_state=0).calibrated
    gaps = [np.where(rng.uniform(size=len(y)) < 0.2, np.nan, y) for y in new]
    found = model.diagnose(gaps, own, y0=start[:, None], n_times=1, n_samples=40, random_state=0)
    assert found.calibrated


def test_files_of_the_first_release_have_no_memory(regressor):
    stored = regressor.to_stored()
    del stored.settings["seen_rows"], stored.settings["balls"], stored.tensors["seen_rows"]
    old = LocalW2Regressor.from_stored(stored)
    assert old.seen_rows_ is None
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeenRowsWarning)
        old.diagnose(*Nonlinear().sample(100, random_state=0), n_samples=20, random_state=0)


def test_a_forged_memory_is_refused(regressor):
    stored = regressor.to_stored()
    stored.tensors["seen_rows"] = stored.tensors["seen_rows"].flip(0)
    with pytest.raises(ValueError, match="ascending"):
        LocalW2Regressor.from_stored(stored)
