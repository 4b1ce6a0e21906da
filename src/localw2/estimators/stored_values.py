"""The small parts of a model file: parameters, counts, arrays, fits; written plainly, checked when read."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from localw2 import losses, norms
from localw2._validation import Array
from localw2.models.base import RandomMap
from localw2.training import Fit, FitConfig

_OBJECTS: dict[str, type[Any]] = {
    c.__name__: c
    for c in (
        norms.Euclidean, norms.Weighted, norms.Mahalanobis,
        losses.SquaredW2, losses.SlicedW2, losses.MMD, losses.MSE, losses.MeanVar, losses.EnergyScore,
    )
}  # fmt: skip


def stored_value(name: str, value: Any) -> Any:
    """A parameter as JSON: our own frozen objects by name and fields, numpy scalars as numbers."""
    if name == "checkpoint":  # a path of the machine that fitted
        return None
    if type(value).__name__ in _OBJECTS and type(value) is _OBJECTS[type(value).__name__]:
        return {"object": type(value).__name__, "fields": asdict(value)}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if name != "random_state":
        warnings.warn(
            f"{name}={value!r} cannot be stored. Predictions do not need it; a loaded estimator has None.",
            stacklevel=6,
        )
    return None


def restored_object(value: Any) -> Any:
    """What ``stored_value`` made plain."""
    if isinstance(value, dict) and "object" in value:
        return _OBJECTS[value["object"]](**value["fields"])
    return value


def stored_fit(fit: Fit) -> dict[str, Any]:
    """A fit without its model."""
    return {"config": asdict(fit.config), "history": fit.history, "stopped": fit.stopped} | {
        "best_score": fit.best_score,
        "best_epoch": fit.best_epoch,
        "seconds": fit.seconds,
    }


def restored_fit(model: RandomMap, stored: dict[str, Any]) -> Fit:
    """The fit that ``stored_fit`` described."""
    fields = dict(stored)
    if not isinstance(fields["history"], list) or not all(isinstance(r, dict) for r in fields["history"]):
        raise ValueError("the history of the fit is not a list of records.")
    return Fit(model, FitConfig(**fields.pop("config")), **fields)


def whole_number(value: Any, low: int = 1, high: int = 2**63 - 1) -> int:
    """A count that a file states."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} stands where a whole number from {low} to {high} is expected.")
    return value


def sized_array(name: str, tensor: Tensor, *shape: int, dtype: torch.dtype = torch.float64) -> Array:
    """A finite array of the shape and type that the rest of the file asks for."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected finite {dtype} {shape}.")
    array: Array = tensor.numpy().copy()
    return array
