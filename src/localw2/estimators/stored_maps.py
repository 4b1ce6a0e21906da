"""Random maps to and from what a model file can hold: their numbers, plain settings, and the name of a class.

A file holds no code. It names a class, and whoever loads it says which class that is, unless it is built in.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from localw2._validation import brief
from localw2._wording import show_controls
from localw2.estimators.stored_values import network_settings, text, whole_number
from localw2.models.base import RandomMap
from localw2.models.linear import RandomLinear
from localw2.models.network import RandomMLP
from localw2.models.noise_network import NoiseMLP
from localw2.storage.model_file import Stored, as_json

KIND = "RandomMap"
BUILT_IN: dict[str, type[RandomMap]] = {c.__name__: c for c in (RandomLinear, RandomMLP, NoiseMLP)}
_STATE = "state."  # the prefix of the tensors of the state dict


def store_map(model: RandomMap) -> Stored:
    """The state dict, the name of the class, and the arguments that made the model if they are plain."""
    name = type(model).__name__
    if type(model) is not BUILT_IN.get(name, type(model)):
        raise ValueError(f"your class has the name of the built-in {name}, which load would make; rename it.")
    settings, reason = _read_settings(model)
    if settings is None:
        warnings.warn(
            f"{reason}, so the file cannot say how to make it again. load will ask for a model that you have "
            f"made yourself: load(path, classes={{{name!r}: {name}(...)}}).",
            stacklevel=3,
        )
    state = {_STATE + key: value for key, value in model.state_dict().items()}
    return Stored(KIND, {"class": name, "settings": settings, "training": model.training}, state)


def restore_map(stored: Stored, classes: Mapping[str, Any] | None = None) -> RandomMap:
    """The random map that ``store_map`` described; ``classes`` has its class, or a model of it, by name."""
    plain, name = stored.settings, text(stored.settings["class"])
    state = {key.removeprefix(_STATE): value for key, value in stored.tensors.items()}
    known = _check_classes(classes) | BUILT_IN
    if name not in known:
        shown = show_controls(name[:100])
        word = shown if shown.isidentifier() else "YourClass"
        raise ValueError(
            f"it holds a random map of your own, {shown!r}: its numbers, but not its code (nothing in a file "
            f"is ever run). Pass the class: load(path, classes={{{shown!r}: {word}}})."
        )
    found = known[name]
    settings = plain["settings"]
    model = _match(found, settings) if isinstance(found, RandomMap) else _make(found, settings, state)
    _fill(model, state)
    if type(plain["training"]) is not bool:
        raise ValueError(f"training={brief(plain['training'])} is not True or False.")
    return model.train(plain["training"])


def _read_settings(model: RandomMap) -> tuple[dict[str, Any] | None, str]:
    """The plain arguments of the constructor, from attributes of the same names; None with the reason."""
    kind, found = type(model).__name__, {}
    state = model.state_dict()
    for argument in list(inspect.signature(type(model).__init__).parameters.values())[1:]:
        name, has_default = argument.name, argument.default is not argument.empty
        if name == "generator":
            continue
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            return None, f"{kind} takes any arguments (*{name})"
        value = getattr(model, name, argument.empty)
        if name in state and has_default:  # a start value, which the state dict replaces
            continue
        if value is argument.empty:
            return None, f"{kind} does not keep its argument {name} (self.{name} = {name})"
        try:
            found[name] = as_json(value.item() if hasattr(value, "item") else value, name)
        except (ValueError, RuntimeError):
            return None, f"{kind} has {name}={brief(value)}, which is not a plain value"
    return found, ""


def _check_classes(classes: Any) -> dict[str, Any]:
    """Classes or models by name."""
    if classes is None:
        return {}
    fits = isinstance(classes, Mapping) and all(
        isinstance(c, RandomMap) or (inspect.isclass(c) and issubclass(c, RandomMap))
        for c in classes.values()
    )
    if not fits:
        raise ValueError(
            f"classes={brief(classes)} must be a dict of names and classes of random maps (or models of "
            "them), such as {'Ride': Ride}."
        )
    if taken := sorted(set(classes) & set(BUILT_IN)):
        raise ValueError(f"classes names {taken[0]!r}, which is built in; leave it out.")
    return dict(classes)


def _make(kind: type[RandomMap], settings: Any, state: dict[str, Tensor]) -> RandomMap:
    """A model of the class, if its tensors have the shapes of the file's.

    It is tried without memory first, on torch's "meta" device: a small file must not ask for much.
    """
    name = kind.__name__
    by_hand = f"Pass a model that you have made yourself: load(path, classes={{{name!r}: {name}(...)}})."
    if settings is None:
        raise ValueError(f"the file does not say with which arguments {name} was made. {by_hand}")
    if not isinstance(settings, dict):
        raise ValueError(f"the settings of {name} are {brief(settings)}, not arguments by name.")
    if unknown := sorted(set(settings) - set(inspect.signature(kind).parameters)):
        raise ValueError(f"{show_controls(unknown[0][:100])!r} is not an argument of {name}.")
    if kind in (RandomMLP, NoiseMLP):  # their depth is a loop
        p, d = (whole_number(settings[key]) for key in ("n_inputs", "n_outputs"))
        network_settings(settings, p, d, state, next(iter(state.values())).dtype)
    try:
        with torch.device("meta"):
            trial = kind(**settings)
    except Exception as error:  # whatever a class does with its arguments
        if kind in BUILT_IN.values():
            raise
        raise ValueError(
            f"{name} cannot be made from the settings in the file ({error!r:.200}). {by_hand}"
        ) from error
    _check_shapes(trial, state)
    return kind(**settings)


def _match(model: RandomMap, settings: Any) -> RandomMap:
    """A model that was given, if what it was made with is what the file says."""
    own, _ = _read_settings(model)
    for key in sorted(set(own or {}) & set(settings or {})):
        if own is not None and own[key] != settings[key]:
            raise ValueError(
                f"the stored model has {key}={brief(settings[key])}, and the one given {brief(own[key])}; "
                "make it with the stored value."
            )
    return model


def _check_shapes(model: nn.Module, state: dict[str, Tensor]) -> None:
    own = model.state_dict()
    if own.keys() != state.keys():
        odd = sorted(own.keys() ^ state.keys())[0]
        where = "in the file but not in the model" if odd in state else "in the model but not in the file"
        raise ValueError(f"the tensor {show_controls(odd[:100])!r} is {where}.")
    for name, value in own.items():
        given = state[name]
        if value.shape != given.shape or value.is_floating_point() != given.is_floating_point():
            raise ValueError(
                f"{name} is {given.dtype} {tuple(given.shape)} in the file and {value.dtype} "
                f"{tuple(value.shape)} in the model."
            )


def _fill(model: RandomMap, state: dict[str, Tensor]) -> None:
    """Load the state dict in its own precision; tied parameters stay tied."""
    _check_shapes(model, state)
    for name, value in model.state_dict(keep_vars=True).items():
        value.data = value.data.to(state[name].dtype)
    model.load_state_dict(state)
