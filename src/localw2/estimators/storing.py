"""Between fitted estimators and what a model file can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, check_probability
from localw2.balls.norms import Norm
from localw2.estimators.regression.balls import check_delta
from localw2.estimators.regression.outcomes import Outcomes
from localw2.estimators.stored_values import (
    network_settings,
    restored_fit,
    restored_object,
    restored_seen,
    sized_array,
    stored_fit,
    stored_seen,
    stored_value,
    text,
    whole_number,
)
from localw2.estimators.tables import Columns
from localw2.judging.conformal import Calibration
from localw2.models.network import RandomMLP
from localw2.storage.model_file import Stored

KIND = "LocalW2Regressor"
_SCORES = "calibration_scores"
_ARRAYS = {
    "x_mean": "_x_mean",
    "x_scale": "_x_scale",
    "y_factor": "_y_factor",
    "base_slope": "base_slope_",
    "base_intercept": "base_intercept_",
}

# Intercept and coefficients of each kind, stored side by side; standard errors only after a bootstrap.
_COEFFICIENTS: dict[str, tuple[str, ...]] = {
    name: (f"intercept_{name}_", f"coef_{name}_")
    for name in ("mean", "std", "mean_se", "std_se", "mean_interval", "std_interval")
} | {"covariance": ("covariance_",), "covariance_se": ("covariance_se_",)}
_ALWAYS = {"mean", "std", "covariance"}


def store_regressor(estimator: Any) -> Stored:
    """Settings, network, scales and fold models of a fitted regressor."""
    parameters = estimator.get_params(deep=False)
    regressors = {f"fold{i:04d}": model for i, model in enumerate(estimator.base_models_)}
    columns = estimator.columns_
    if columns is not None:
        regressors["columns"] = columns.as_regressor()
    base = parameters.pop("base")
    if not (base is None or isinstance(base, str)):
        regressors["base"], base = base, {"regressor": "base"}
    names = getattr(estimator, "feature_names_in_", None)
    fit, history = stored_fit(estimator.fit_)
    settings = {
        "parameters": {"base": base}
        | {name: stored_value(name, value) for name, value in parameters.items()},
        "feature_names": None if names is None else [str(name) for name in names],
        "n_features": estimator.n_features_in_,
        "n_outputs": estimator.n_outputs_,
        "y_ndim": estimator._y_ndim,
        "base_name": estimator.base_name_,
        "balls": {name: stored_value(name, getattr(estimator, f"{name}_")) for name in ("delta", "norm")},
        "seed": estimator._prediction_seed,
        "fit": fit,
        "calibration": None if estimator.calibration_ is None else estimator.calibration_.kind,
        "outcomes": estimator.outcomes_.plain(),
        "encoded_columns": None if columns is None else [list(columns.complete), list(columns.grouped)],
    }
    tensors = {f"model.{name}": value for name, value in estimator.model_.state_dict().items()}
    settings["seen_rows"], seen = stored_seen(estimator)
    tensors |= history | seen
    for name, attribute in _ARRAYS.items():
        tensors[name] = torch.tensor(getattr(estimator, attribute), dtype=torch.float64)
    if estimator.calibration_ is not None:
        tensors[_SCORES] = torch.tensor(estimator.calibration_.scores, dtype=torch.float64)
    return Stored(KIND, settings, tensors, regressors)


def restore_regressor(estimator: Any, stored: Stored) -> None:
    """Fill a fresh estimator; ValueError if the parts do not fit together."""
    if stored.kind != KIND:
        raise ValueError(f"this is a stored {stored.kind}, not a {KIND}; use the class that saved it.")
    try:
        _fill(estimator, stored)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the parts of this stored {KIND} do not fit together: {error!r}.") from error


def _fill(estimator: Any, stored: Stored) -> None:
    settings, regressors = stored.settings, dict(stored.regressors)
    parameters = {name: restored_object(value) for name, value in settings["parameters"].items()}
    if parameters["base"] == {"regressor": "base"}:
        parameters["base"] = regressors.pop("base")
    elif parameters["base"] not in (None, "auto"):
        raise ValueError(f"base={parameters['base']!r} is not known.")
    estimator.set_params(**parameters)
    p, d = whole_number(settings["n_features"]), whole_number(settings["n_outputs"])
    estimator.n_features_in_, estimator.n_outputs_ = p, d
    estimator._y_ndim = whole_number(settings["y_ndim"], 1 if d == 1 else 2, 2)
    _name_features(estimator, settings["feature_names"], p)
    estimator.columns_ = None
    if "columns" in regressors:
        estimator.columns_ = Columns.from_regressor(
            regressors.pop("columns"), p, *settings["encoded_columns"]
        )
        p = estimator.columns_.width  # what the network sees
    outcomes = settings.get("outcomes")  # files of the first release have none
    estimator.outcomes_ = Outcomes.anything(d) if outcomes is None else Outcomes.from_plain(outcomes, d)
    for name, attribute in _ARRAYS.items():
        shape = (p,) if name.startswith("x_") else (d, d) if name == "y_factor" else (d,)
        setattr(estimator, attribute, sized_array(name, stored.tensors[name], *shape))
    estimator.base_models_ = tuple(regressors[name] for name in sorted(regressors))
    if (parameters["base"] is None) != (len(regressors) == 0):
        raise ValueError(f"there are {len(regressors)} base models for base={parameters['base']!r}.")
    for model in estimator.base_models_:
        if getattr(model, "n_features_in_", p) != p:
            raise ValueError(f"a base model has {model.n_features_in_} feature(s), the network {p}.")
    estimator.base_name_ = text(settings["base_name"])
    if "balls" in settings:  # files of the first release have none
        estimator.delta_, estimator.norm_ = (restored_object(settings["balls"][n]) for n in ("delta", "norm"))
        check_delta(estimator.delta_)
        if not isinstance(estimator.norm_, Norm) or isinstance(estimator.delta_, str | list | tuple):
            raise ValueError(f"balls={str(settings['balls'])[:80]} are none.")
    estimator.selection_ = estimator.plan_ = None
    estimator.seen_rows_ = restored_seen(settings.get("seen_rows"), stored.tensors)
    estimator._prediction_seed = whole_number(settings["seed"], 0)
    estimator.model_ = _network(parameters, p, d, stored.tensors)
    estimator.fit_ = restored_fit(estimator.model_, settings["fit"], stored.tensors)
    estimator.calibration_ = _calibration(settings.get("calibration"), stored.tensors.get(_SCORES), d)


def _calibration(kind: Any, scores: Tensor | None, d: int) -> Calibration | None:
    """What calibrates the intervals, if anything does; files from before it existed have neither."""
    if kind is None and scores is None:
        return None
    if kind is None or scores is None:
        raise ValueError(f"calibration={kind!r} comes {'without' if scores is None else 'with'} its scores.")
    return Calibration(sized_array(_SCORES, scores, len(scores), d), text(kind))


def store_coefficients(estimator: Any) -> Stored:
    """Settings and the law of the coefficients of a fitted ``RandomCoefficientRegressor``."""
    names = getattr(estimator, "feature_names_in_", None)
    settings = {
        "parameters": {name: stored_value(name, v) for name, v in estimator.get_params(deep=False).items()},
        "feature_names": None if names is None else [str(name) for name in names],
        "n_features": estimator.n_features_in_,
        "confidence": getattr(estimator, "confidence_", None),
    }
    settings["seen_rows"], tensors = stored_seen(estimator)
    for name, attributes in _COEFFICIENTS.items():
        if hasattr(estimator, attributes[0]):
            columns = [
                np.asarray(getattr(estimator, attribute), dtype=np.float64) for attribute in attributes
            ]
            whole = (
                columns[0] if len(columns) == 1 else np.concatenate([columns[0][..., None], columns[1]], -1)
            )
            tensors[name] = torch.tensor(whole)
    return Stored("RandomCoefficientRegressor", settings, tensors)


def restore_coefficients(estimator: Any, stored: Stored) -> None:
    """Fill a fresh estimator; ValueError if the parts do not fit together."""
    if stored.kind != "RandomCoefficientRegressor":
        raise ValueError(f"this is a stored {stored.kind}; use the class that saved it.")
    try:
        settings = stored.settings
        estimator.set_params(
            **{name: restored_object(value) for name, value in settings["parameters"].items()}
        )
        p = whole_number(settings["n_features"])
        estimator.n_features_in_ = p
        _name_features(estimator, settings["feature_names"], p)
        estimator.seen_rows_ = restored_seen(settings.get("seen_rows"), stored.tensors)
        known = [name for name in _COEFFICIENTS if name in stored.tensors]
        given = set(stored.tensors) - {"seen_rows"}
        if set(known) not in (_ALWAYS, set(_COEFFICIENTS)) or set(known) != given:
            raise ValueError(
                f"it has {sorted(stored.tensors)}: standard errors come all together or not at all."
            )
        if len(known) == len(_COEFFICIENTS):
            estimator.confidence_ = check_probability(settings["confidence"], "confidence")
        for name in known:
            _restore_coefficient(estimator, name, stored.tensors[name], p)
        _check_law(np.append(estimator.intercept_std_, estimator.coef_std_), estimator.covariance_)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the parts of this stored estimator do not fit together: {error!r}.") from error


def _restore_coefficient(estimator: Any, name: str, tensor: Tensor, p: int) -> None:
    attributes, square = _COEFFICIENTS[name], name.startswith("covariance")
    shape = (p + 1, p + 1) if square else (2, p + 1) if "interval" in name else (p + 1,)
    whole = sized_array(name, tensor, *shape)
    if square:
        setattr(estimator, attributes[0], whole)
        return
    first = whole[..., 0]
    setattr(estimator, attributes[0], float(first) if name in ("mean", "std") else first)
    setattr(estimator, attributes[1], whole[..., 1:].copy())


def _check_law(std: Array, covariance: Array) -> None:
    lengths = np.linalg.eigvalsh(covariance)
    if (
        not np.allclose(covariance, covariance.T, rtol=1e-9, atol=0)
        or lengths.min() < -1e-9 * abs(lengths).max()
    ):
        raise ValueError("covariance is not symmetric and positive semidefinite.")
    if (std < 0).any() or not np.allclose(std**2, np.diag(covariance), rtol=1e-6, atol=0):
        raise ValueError("std is negative, or not that of covariance.")


def _name_features(estimator: Any, names: Any, p: int) -> None:
    if names is None:
        return
    if not isinstance(names, list) or len(names) != p or not all(isinstance(name, str) for name in names):
        raise ValueError(f"feature_names={str(names)[:80]} is not a list of {p} names.")
    estimator.feature_names_in_ = np.array(names, dtype=object)


def _network(parameters: dict[str, Any], p: int, d: int, tensors: dict[str, Tensor]) -> RandomMLP:
    state = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    net = RandomMLP(p, d, *network_settings(parameters, p, d, state, torch.float64)).double()
    net.load_state_dict(state)
    return net.eval()
