"""Between fitted estimators and what a model file can hold."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from localw2 import losses, norms
from localw2._validation import Array, check_probability
from localw2.checkpoints import history_tensors, tensors_history
from localw2.models.network import ACTIVATIONS, RandomMLP
from localw2.persistence import Stored
from localw2.training import Fit, FitConfig

KIND = "LocalW2Regressor"
_OBJECTS: dict[str, type[Any]] = {
    c.__name__: c
    for c in (
        norms.Euclidean, norms.Weighted, norms.Mahalanobis,
        losses.SquaredW2, losses.SlicedW2, losses.MMD, losses.MSE, losses.MeanVar, losses.EnergyScore,
    )
}  # fmt: skip
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
    base = parameters.pop("base")
    if not (base is None or isinstance(base, str)):
        regressors["base"], base = base, {"regressor": "base"}
    fit, names = estimator.fit_, getattr(estimator, "feature_names_in_", None)
    settings = {
        "parameters": {"base": base} | {name: _plain(name, value) for name, value in parameters.items()},
        "feature_names": None if names is None else [str(name) for name in names],
        "n_features": estimator.n_features_in_,
        "n_outputs": estimator.n_outputs_,
        "y_ndim": estimator._y_ndim,
        "base_name": estimator.base_name_,
        "seed": estimator._prediction_seed,
        # Files of the machine that fitted are of no use to others.
        "fit": {"config": asdict(replace(fit.config, checkpoint=None, history=None, resume=False))}
        | {name: getattr(fit, name) for name in ("stopped", "best_score", "best_epoch", "seconds")},
    }
    tensors = {f"model.{name}": value for name, value in estimator.model_.state_dict().items()}
    tensors |= history_tensors(fit.history)
    for name, attribute in _ARRAYS.items():
        tensors[name] = torch.tensor(getattr(estimator, attribute), dtype=torch.float64)
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
    parameters = {name: _object(value) for name, value in settings["parameters"].items()}
    if parameters["base"] == {"regressor": "base"}:
        parameters["base"] = regressors.pop("base")
    elif parameters["base"] not in (None, "auto"):
        raise ValueError(f"base={parameters['base']!r} is not known.")
    estimator.set_params(**parameters)
    p, d = _count(settings["n_features"]), _count(settings["n_outputs"])
    estimator.n_features_in_, estimator.n_outputs_ = p, d
    estimator._y_ndim = _count(settings["y_ndim"], 1 if d == 1 else 2, 2)
    _name_features(estimator, settings["feature_names"], p)
    for name, attribute in _ARRAYS.items():
        shape = (p,) if name.startswith("x_") else (d, d) if name == "y_factor" else (d,)
        setattr(estimator, attribute, _array(name, stored.tensors[name], *shape))
    estimator.base_models_ = tuple(regressors[name] for name in sorted(regressors))
    if (parameters["base"] is None) != (len(regressors) == 0):
        raise ValueError(f"there are {len(regressors)} base models for base={parameters['base']!r}.")
    for model in estimator.base_models_:
        if getattr(model, "n_features_in_", p) != p:
            raise ValueError(f"a base model has {model.n_features_in_} feature(s), the network {p}.")
    estimator.base_name_ = _text(settings["base_name"])
    estimator._prediction_seed = _count(settings["seed"], 0)
    estimator.model_ = _network(parameters, p, d, stored.tensors)
    estimator.fit_ = _fit(settings["fit"], estimator.model_, tensors_history(stored.tensors))


def _fit(settings: dict[str, Any], model: RandomMLP, history: list[dict[str, Any]]) -> Fit:
    fit = Fit(model, history=history, **(settings | {"config": FitConfig(**settings["config"])}))
    _text(fit.stopped)
    if fit.best_epoch is not None:
        _count(fit.best_epoch)
    for name in ("best_score", "seconds"):
        value = getattr(fit, name)
        if not (type(value) in (int, float) or (name == "best_score" and value is None)):
            raise ValueError(f"{name}={value!r} is not a number.")
    return fit


def store_coefficients(estimator: Any) -> Stored:
    """Settings and the law of the coefficients of a fitted ``RandomCoefficientRegressor``."""
    names = getattr(estimator, "feature_names_in_", None)
    settings = {
        "parameters": {name: _plain(name, v) for name, v in estimator.get_params(deep=False).items()},
        "feature_names": None if names is None else [str(name) for name in names],
        "n_features": estimator.n_features_in_,
        "confidence": getattr(estimator, "confidence_", None),
    }
    tensors = {}
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
        estimator.set_params(**{name: _object(value) for name, value in settings["parameters"].items()})
        p = _count(settings["n_features"])
        estimator.n_features_in_ = p
        _name_features(estimator, settings["feature_names"], p)
        known = [name for name in _COEFFICIENTS if name in stored.tensors]
        if set(known) not in (_ALWAYS, set(_COEFFICIENTS)) or set(known) != set(stored.tensors):
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
    whole = _array(name, tensor, *shape)
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
    width, depth = _count(parameters["width"]), _count(parameters["depth"])
    state = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    if parameters["activation"] not in ACTIVATIONS or type(parameters["residual"]) is not bool:
        raise ValueError(f"activation={parameters['activation']!r} or residual is not known.")
    if len(state) != 3 * (depth + 1):
        raise ValueError(f"there are {len(state)} parameters for a network of depth {depth}.")
    # Shapes are compared before a network of the stated size is made: a small file must not ask for memory.
    sizes = [p, *[width] * depth, d]
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        for name, shape in (("mean", (n_in, n_out)), ("std", (n_in, n_out)), ("bias", (n_out,))):
            _array(f"model.layers.{i}.{name}", state[f"layers.{i}.{name}"], *shape)
    net = RandomMLP(p, d, width, depth, parameters["residual"], parameters["activation"]).double()
    net.load_state_dict(state)
    return net.eval()


def _plain(name: str, value: Any) -> Any:
    """A parameter as JSON: our own frozen objects by name and fields, numpy scalars as numbers."""
    if name == "checkpoint":  # a path of the machine that fitted
        return None
    if type(value).__name__ in _OBJECTS and type(value) is _OBJECTS[type(value).__name__]:
        return {"object": type(value).__name__, "fields": {k: _number(v) for k, v in asdict(value).items()}}
    value = _number(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if name != "random_state":
        warnings.warn(
            f"{name}={value!r} cannot be stored. Predictions do not need it; a loaded estimator has None.",
            stacklevel=5,
        )
    return None


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _object(value: Any) -> Any:
    if isinstance(value, dict) and "object" in value:
        return _OBJECTS[value["object"]](**value["fields"])
    return value


def _count(value: Any, low: int = 1, high: int = 2**63 - 1) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} stands where a whole number from {low} to {high} is expected.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} stands where text is expected.")
    return value


def _array(name: str, tensor: Tensor, *shape: int) -> Any:
    if tuple(tensor.shape) != shape or tensor.dtype != torch.float64 or not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected finite float64 {shape}.")
    return tensor.numpy().copy()
