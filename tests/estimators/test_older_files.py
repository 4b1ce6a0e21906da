"""Files written by version 0.1, before the package moved into rooms: they load, and answer the same."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from localw2 import LocalW2Regressor, Network, load
from localw2.storage.model_file import Stored, read

FOLDER = Path(__file__).parents[1] / "data" / "files-0.1"
ANSWERS = json.loads((FOLDER / "answers.json").read_text())


def decay(t, y, k):
    return -k * y


@pytest.mark.parametrize("name", ["regressor-kernel", "coefficients"])
def test_regressors(name):
    model, expected = load(FOLDER / f"{name}.localw2"), ANSWERS[name]
    np.testing.assert_allclose(model.predict(expected["X"]), expected["mean"], rtol=1e-9)
    np.testing.assert_allclose(
        model.sample(expected["X"], 3, random_state=1), expected["draws"], rtol=1e-9, atol=1e-12
    )


def test_the_settings_of_a_network_are_those_of_its_law_now():
    model = load(FOLDER / "regressor-kernel.localw2")
    plain = read(FOLDER / "regressor-kernel.localw2").settings["parameters"]
    assert model.law == Network(width=plain["width"], epochs=plain["max_epochs"], depth=plain["depth"])
    assert model.weights_ == {"network": 1.0}
    assert model.fit_.config.max_epochs == plain["max_epochs"]


def test_what_was_loaded_is_saved_in_the_form_of_today(tmp_path):
    model, x = load(FOLDER / "regressor-kernel.localw2"), ANSWERS["regressor-kernel"]["X"]
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    np.testing.assert_array_equal(again.sample(x, 3, random_state=1), model.sample(x, 3, random_state=1))
    assert again.law == model.law


@pytest.mark.parametrize(
    "change",
    [{"width": 10**9}, {"depth": 10**9}, {"residual": 1}, {"activation": "sin"}, {"max_epochs": 0}],
    ids=lambda change: next(iter(change)),
)
def test_forged_networks_are_refused(change):
    stored = read(FOLDER / "regressor-kernel.localw2")
    settings = stored.settings | {"parameters": stored.settings["parameters"] | change}
    with pytest.raises(ValueError):
        LocalW2Regressor.from_stored(Stored(stored.kind, settings, stored.tensors, stored.regressors))


@pytest.mark.parametrize("change", [{"base_name": 3}, {"base_name": "none"}, {"seed": -1}, {"seed": 1.0}])
def test_forged_means_and_seeds_are_refused(change):
    stored = read(FOLDER / "regressor-kernel.localw2")
    with pytest.raises(ValueError):
        LocalW2Regressor.from_stored(
            Stored(stored.kind, stored.settings | change, stored.tensors, stored.regressors)
        )


def test_a_summary_with_its_errors():
    assert load(FOLDER / "coefficients.localw2").summary() == ANSWERS["coefficients"]["summary"]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.InconsistentVersionWarning")
@pytest.mark.filterwarnings("ignore:.*may predict differently")
def test_a_calibrated_regressor_of_a_table_with_categories_and_missing_values():
    model, expected = load(FOLDER / "regressor-frame.localw2"), ANSWERS["regressor-frame"]
    rows = pd.DataFrame(expected["X"])
    np.testing.assert_allclose(model.predict(rows), expected["mean"], rtol=1e-9)
    np.testing.assert_allclose(model.sample(rows, 3, random_state=1), expected["draws"], rtol=1e-9)
    np.testing.assert_allclose(
        model.predict_interval(rows), [expected["lower"], expected["upper"]], rtol=1e-9
    )
    assert model.base_name_ == expected["base"]


@pytest.mark.filterwarnings("ignore:.*source")
def test_an_ode_with_a_function_of_the_users_own():
    model, expected = load(FOLDER / "ode-function.localw2", field=decay), ANSWERS["ode-function"]
    np.testing.assert_allclose(
        model.sample([1.0], [0, 1, 2.0], 3, random_state=1), expected["draws"], rtol=1e-6
    )
    assert model.parameters_.mean == pytest.approx(expected["mean"], rel=1e-9)


def test_an_ode_with_a_network():
    model, expected = load(FOLDER / "ode-network.localw2"), ANSWERS["ode-network"]
    np.testing.assert_allclose(
        model.sample([1.0], [0, 1, 2.0], 3, random_state=1), expected["draws"], rtol=1e-5
    )


def test_fields_of_version_0_2_whose_mean_and_spread_are_polynomials():
    folder = FOLDER.parent / "files-0.2"
    expected = json.loads((folder / "answers.json").read_text())["fields"]
    model = load(folder / "fields.localw2")
    mean, std = model.predict(expected["X"], return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-9)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-9)
    np.testing.assert_allclose(model.sample(expected["X"], 3, random_state=1), expected["draws"], rtol=1e-9)
    band = model.predict_band(expected["X"], 0.5)
    np.testing.assert_allclose(band, [expected["lower"], expected["upper"]], rtol=1e-9, atol=1e-9)
    assert model.get_params()["smooth"] is True
