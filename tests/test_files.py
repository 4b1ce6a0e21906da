import numpy as np
import pandas as pd
import pytest

from localw2 import LocalW2Regressor, RandomCoefficientRegressor, Weighted, load, save
from localw2.datasets import Linear, Nonlinear
from localw2.persistence import Stored, write


def test_a_regressor_comes_back_bit_for_bit(tmp_path):
    x, y = Nonlinear().sample(80, random_state=0)
    model = LocalW2Regressor(max_epochs=5, width=8, n_folds=3, random_state=0).fit(x, y)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(x, return_std=True), model.predict(x, return_std=True))
    np.testing.assert_array_equal(loaded.sample(x, 3, random_state=1), model.sample(x, 3, random_state=1))
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


def test_what_cannot_be_saved_or_loaded_says_so(tmp_path):
    with pytest.raises(ValueError, match="dict is not an estimator of localw2"):
        save({}, tmp_path / "model")
    with pytest.raises(ValueError, match="not fitted"):
        save(LocalW2Regressor(), tmp_path / "model")
    write(tmp_path / "other", Stored("checkpoint"))
    with pytest.raises(ValueError, match="holds a checkpoint, not an estimator"):
        load(tmp_path / "other")
    write(tmp_path / "broken", Stored("RandomCoefficientRegressor", {"parameters": {}}))
    with pytest.raises(ValueError, match="do not fit together"):
        load(tmp_path / "broken")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")
