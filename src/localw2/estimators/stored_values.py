"""The small parts of a model file: parameters, counts, arrays, fits; stored plainly, checked when read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.balls import norms
from localw2.balls.neighborhoods import Nearest
from localw2.judging.seen_rows import SeenRows
from localw2.losses import discrepancies as losses
from localw2.models.network import ACTIVATIONS, RandomMLP
from localw2.models.noise_network import NoiseMLP
from localw2.storage.checks import MOST_WORK
from localw2.storage.model_file import write
from localw2.training.checkpoints import history_tensors, tensors_history
from localw2.training.config import Fit, FitConfig

if TYPE_CHECKING:
    from localw2.models.base import RandomMap
    from localw2.storage.model_file import Stored

MOST_COLUMNS = 1_000_000  # of inputs or outputs that a file may state
_OBJECTS: dict[str, type[Any]] = {
    c.__name__: c
    for c in (
        Nearest, norms.Euclidean, norms.Weighted, norms.Mahalanobis,
        losses.SquaredW2, losses.SlicedW2, losses.Sinkhorn, losses.MMD, losses.MSE, losses.MeanVar,
        losses.EnergyScore,
    )
}  # fmt: skip


def store_value(name: str, value: Any) -> Any:
    """A parameter as JSON: our own frozen objects by name and fields, numpy scalars as numbers."""
    if name in ("checkpoint", "history"):  # paths of the machine that fitted
        return None
    if type(value).__name__ in _OBJECTS and type(value) is _OBJECTS[type(value).__name__]:
        return {"object": type(value).__name__, "fields": {k: _number(v) for k, v in asdict(value).items()}}
    if name == "delta" and isinstance(value, list | tuple):
        return [store_value(name, one) for one in value]
    value = _number(value)
    if name in ("bounds", "values") and not (value is None or isinstance(value, str)):
        return [None if v is None else float(v) for v in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if name != "random_state":
        warnings.warn(
            f"{name}={value!r} cannot be stored. Predictions do not need it; a loaded estimator has None.",
            stacklevel=5,
        )
    return None


def store_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an estimator as JSON."""
    stored = {}
    for name, value in parameters.items():  # no comprehension, which is a frame of its own to a warning
        stored[name] = store_value(name, value)
    return stored


def restore_parameters(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What ``store_parameters`` made plain."""
    return {name: restore_object(value) for name, value in stored.items()}


def set_stored_parameters(estimator: Any, parameters: Mapping[str, Any]) -> None:
    """Set parameters that a file holds: those of the estimator itself, never those of an object inside.

    A name such as ``base__memory`` would reach into an object after it was audited. Files that a fit writes
    (``checkpoint``, ``history``) are not taken over: a refit would replace what the file's author named. More
    jobs than this machine has cores are not started either, nor is work of a size that nobody asks for.
    """
    known = estimator.get_params(deep=False)
    if unknown := sorted(set(parameters) - set(known)):
        raise ValueError(f"{unknown[0]!r} is not a parameter of {type(estimator).__name__}.")
    found = drop_excess(parameters)
    for name in {"checkpoint", "history"} & set(known):
        found[name] = None
    if isinstance(jobs := found.get("n_jobs"), int) and jobs > (os.cpu_count() or 1):
        found["n_jobs"] = None
    estimator.set_params(**found)


def drop_excess(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a file, but defaults in place of those that no refit could finish, with a warning."""
    kept = dict(settings)
    for name, most in MOST_WORK.items():
        if isinstance(value := kept.get(name), int) and value > most:
            del kept[name]
            warnings.warn(
                f"{name}={value} of the file is not taken over: a refit would hardly end. Predictions do not "
                f"need it; to refit, set {name} yourself.",
                stacklevel=2,
            )
    return kept


class Storable:
    """An estimator that can be written to a file, and that takes over a fit with nothing left of an older."""

    def save(self: Any, path: Any) -> None:
        """Write the fitted estimator to one file without pickle; ``localw2.load`` reads it.

        A function of your own is not stored: ``load`` asks for it.
        """
        write(path, self.to_stored())

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)


@contextmanager
def check_fits_together(stored: Stored, kind: str) -> Iterator[None]:
    """Raise ValueError unless a file is of this kind and its parts can be put together inside the block."""
    if stored.kind != kind:
        raise ValueError(f"this is a stored {stored.kind}, not a {kind}; use the class that saved it.")
    try:
        yield
    except Exception as error:  # whatever the content of a file provokes
        if type(error) is ValueError:  # ours, in words
            raise
        raise ValueError(f"the parts of this stored {kind} do not fit together: {error!r}.") from error


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def restore_object(value: Any) -> Any:
    """What ``store_value`` made plain."""
    if isinstance(value, dict) and "object" in value:
        return _OBJECTS[value["object"]](**drop_excess(value["fields"]))
    if isinstance(value, str) and len(value) > 200:  # no setting of ours has such a name
        raise ValueError(f"a setting is a text of {len(value)} characters, such as {value[:50]!r}.")
    return [restore_object(one) for one in value] if isinstance(value, list) else value


def store_fit(fit: Fit) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A fit without its model: plain settings, and its history as tensors."""
    # Files of the machine that fitted are of no use to others.
    config = replace(fit.config, checkpoint=None, history=None, resume=False)
    plain = {name: getattr(fit, name) for name in ("stopped", "best_score", "best_epoch", "seconds")}
    return {"config": asdict(config), **plain}, history_tensors(fit.history)


def store_seen(seen: SeenRows | None) -> tuple[list[int | None] | None, dict[str, Tensor]]:
    """The sketch of the training rows, if there is one: how many rows there were, and their hashes."""
    if seen is None:
        return None, {}
    return [seen.n_distinct, seen.n_rows], {"seen_rows": torch.tensor(seen.codes)}


def restore_seen(counts: Any, tensors: dict[str, Tensor]) -> SeenRows | None:
    """What ``store_seen`` described; older files have none."""
    if counts is None:
        return None
    n_distinct, n_rows = counts
    rows = None if n_rows is None else whole_number(n_rows)
    return SeenRows(tensors["seen_rows"].numpy().copy(), whole_number(n_distinct), rows)


def restore_fit(model: RandomMap, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Fit:
    """The fit that ``store_fit`` described."""
    history = tensors_history(tensors)
    fit = Fit(model, history=history, **(settings | {"config": FitConfig(**settings["config"])}))
    text(fit.stopped)
    if fit.best_epoch is not None:
        whole_number(fit.best_epoch)
    for name in ("best_score", "seconds"):
        value = getattr(fit, name)
        if not (type(value) in (int, float) or (name == "best_score" and value is None)):
            raise ValueError(f"{name}={value!r} is not a number.")
    return fit


def whole_number(value: Any, low: int = 1, high: int = 2**63 - 1) -> int:
    """A count that a file states."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} stands where a whole number from {low} to {high} is expected.")
    return value


def text(value: Any) -> str:
    """A name that a file states."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} stands where text is expected.")
    return value


def sized_array(name: str, tensor: Tensor, *shape: int, dtype: torch.dtype = torch.float64) -> Array:
    """A finite array of the shape and type that the rest of the file asks for."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected finite {dtype} {shape}.")
    array: Array = tensor.numpy().copy()
    return array


def restore_network(
    parameters: Mapping[str, Any], p: int, d: int, tensors: dict[str, Tensor]
) -> RandomMLP | NoiseMLP:
    """The network of p inputs and d outputs whose tensors are named ``model.*``, in double precision."""
    state = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    settings = network_settings(parameters, p, d, state, torch.float64)
    plain = {name: value for name, value in settings.items() if name != "n_noise"}
    noise = settings["n_noise"] is not None
    net = (NoiseMLP(p, d, **settings) if noise else RandomMLP(p, d, **plain)).double()
    net.load_state_dict(state)
    return net.eval()


def network_settings(
    parameters: Mapping[str, Any], n_inputs: int, n_outputs: int, state: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Any]:
    """The settings of a stored network, by name, if its tensors have the shapes that they ask for.

    Shapes are compared before a network of the stated size is made: a small file must not ask for memory.
    """
    width, depth = whole_number(parameters["width"]), whole_number(parameters["depth"])
    n_noise = parameters.get("n_noise")
    if n_noise is not None:
        whole_number(n_noise, 1, MOST_COLUMNS)
    if parameters["activation"] not in ACTIVATIONS or type(parameters["residual"]) is not bool:
        raise ValueError(
            f"activation={parameters['activation']!r}, residual={parameters['residual']!r} is unknown."
        )
    if len(state) != (3 if n_noise is None else 2) * (depth + 1):
        raise ValueError(f"there are {len(state)} tensors for a network of depth {depth}.")
    for i, (n_in, n_out) in enumerate(pairwise([n_inputs, *[width] * depth, n_outputs])):
        shapes: dict[str, tuple[int, ...]] = {"bias": (n_out,)}
        if n_noise is None:
            shapes |= dict.fromkeys(("mean", "std"), (n_in, n_out))
        else:
            shapes["weight"] = (n_out, n_in + 2 * n_noise)
        for name, shape in shapes.items():
            sized_array(f"layers.{i}.{name}", state[f"layers.{i}.{name}"], *shape, dtype=dtype)
    settings = {name: parameters[name] for name in ("residual", "activation")}
    return {"width": width, "depth": depth, "n_noise": n_noise, **settings}
