"""A fitted ODE to and from what a model file can hold: everything but the functions."""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from localw2.estimators.stored_values import (
    network_settings,
    restored_fit,
    restored_object,
    restored_seen,
    sized_array,
    stored_fit,
    stored_seen,
    stored_value,
    whole_number,
)
from localw2.models.fields import UNITS, FunctionField, NetworkField, RandomField
from localw2.models.laws import LAWS, Law, ParameterLaw, as_laws
from localw2.models.ode import RandomODE
from localw2.storage.model_file import Stored

KIND = "LocalW2ODE"
_FUNCTIONS = ("field", "observe")


def store_ode(estimator: Any) -> Stored:
    """Settings, the law or the network, and the names of the functions."""
    parameters = estimator.get_params(deep=False)
    functions = {name: parameters.pop(name) for name in _FUNCTIONS}
    parameters.pop("parameters")
    field = estimator.model_.field
    settings = {
        "parameters": {name: stored_value(name, value) for name, value in parameters.items()},
        "functions": {name: _described(value) for name, value in functions.items()},
        "laws": None,
        "t0": estimator.t0_,
        "step": estimator.model_.step_size,
        "n_states": estimator.n_states_,
        "n_observed": estimator.n_observed_,
        "seed": estimator._parameter_seed,
        "fit": None,
    }
    if isinstance(field, FunctionField):
        settings["laws"] = {
            name: [type(law).__name__.lower(), law.mean, law.std] for name, law in field.law.laws.items()
        }
    tensors = {f"field.{name}": value for name, value in field.state_dict().items()}
    tensors["state_size"] = estimator.model_.state_size
    settings["seen_rows"], seen = stored_seen(estimator)
    tensors |= seen
    if hasattr(estimator, "fit_"):
        settings["fit"], history = stored_fit(estimator.fit_)
        tensors |= history
    return Stored(KIND, settings, tensors)


def restore_ode(estimator: Any, stored: Stored, field: Any, observe: Any) -> None:
    """Fill a fresh estimator; ValueError if the parts, or the functions given, do not fit together."""
    if stored.kind != KIND:
        raise ValueError(f"this is a stored {stored.kind}, not a {KIND}; use the class that saved it.")
    try:
        _fill(estimator, stored, {"field": field, "observe": observe})
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the parts of this stored {KIND} do not fit together: {error!r}.") from error


def _fill(estimator: Any, stored: Stored, given: dict[str, Any]) -> None:
    settings = stored.settings
    parameters = {name: restored_object(value) for name, value in settings["parameters"].items()}
    functions = {name: _function(name, settings["functions"][name], given[name]) for name in _FUNCTIONS}
    laws = None if settings["laws"] is None else {n: _law(*v) for n, v in settings["laws"].items()}
    estimator.set_params(**parameters, **functions, parameters=laws)
    estimator._check_settings()
    estimator._config(0, "")
    d, p = whole_number(settings["n_states"]), whole_number(settings["n_observed"])
    estimator.n_states_, estimator.n_observed_, estimator.t0_ = d, p, float(settings["t0"])
    tensors = stored.tensors
    state = {name.removeprefix("field."): t for name, t in tensors.items() if name.startswith("field.")}
    restored = _network(parameters, d, state) if laws is None else _named(functions["field"], laws, state)
    restored.load_state_dict(state)
    start = torch.tensor([estimator.t0_], dtype=torch.float64)
    solver = {name: parameters[name] for name in ("method", "rtol", "atol")} | {"step_size": settings["step"]}
    size = tensors["state_size"]
    if (sized_array("state_size", size, d) <= 0).any():
        raise ValueError("state_size is not positive.")
    estimator.model_ = RandomODE(restored, start, **solver, state_size=size).eval()
    seed = whole_number(settings["seed"], 0)
    if settings["fit"] is not None:
        estimator.fit_ = restored_fit(estimator.model_, settings["fit"], tensors)
    estimator.seen_rows_ = restored_seen(settings.get("seen_rows"), tensors)
    estimator._summarise(seed)


def _network(parameters: dict[str, Any], d: int, state: dict[str, Tensor]) -> RandomField:
    layers = {name.removeprefix("net."): tensor for name, tensor in state.items() if name not in UNITS}
    for name in UNITS:
        sized_array(name, state[name], d, dtype=torch.float32)
    return NetworkField(d, *network_settings(parameters, d, d, layers, torch.float32))


def _named(function: Callable[..., Any], laws: dict[str, Law], state: dict[str, Tensor]) -> RandomField:
    # Counted before a law of the stated size is made: a small file must not ask for memory.
    stated = [state[f"law.{name}"].numel() for name in ("location", "shared")]
    if sum(stated) != len(laws):
        raise ValueError(f"there are {len(laws)} parameters, but {stated} values of them.")
    law = ParameterLaw(laws)
    for name, value in law.state_dict().items():
        sized_array(name, state[f"law.{name}"], *value.shape)
    return FunctionField(function, laws).double()


def _law(name: str, mean: float, std: float | None) -> Law:
    if name not in LAWS:
        raise ValueError(f"the law {name!r} is not known.")
    return as_laws({"parameter": LAWS[name](mean, std)})["parameter"]


def _described(function: Any) -> Any:
    """A function by its name and a hash of its source, which is never run."""
    if function is None or isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"function": str(name), "source": source_hash(function)}


def source_hash(function: Any) -> str | None:
    """A hash of what a function's source says; None if it has none."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def function_print(function: Any) -> str:
    """What tells a function from another: its source, and the plain values that it takes from outside."""
    if function is None or isinstance(function, str):
        return ""
    try:
        outside = inspect.getclosurevars(inspect.unwrap(function))
        values: dict[str, Any] = {**outside.nonlocals, **outside.globals}
    except TypeError:  # an object with __call__, or a partial
        values = {**getattr(function, "__dict__", {}), "partial": repr(function)}
    plain = {name: v.tolist() if hasattr(v, "tolist") else v for name, v in values.items()}
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(sorted(plain.items(), key=lambda item: item[0])))
    return hashlib.sha256(f"{source_hash(function)}{printed}".encode()).hexdigest()


def _function(name: str, described: Any, given: Any) -> Any:
    """The function that is to be used: the one given, as a file holds none."""
    if not isinstance(described, dict):
        if given is not None:
            raise ValueError(f"{name} was {described!r} when this was saved; it takes no function.")
        if described not in (None, "mlp"):
            raise ValueError(f"{name}={described!r} is not known.")
        return described
    label = str(described["function"])[:100]
    if not callable(given):
        raise ValueError(
            f"this model was fitted with your own function {label!r}, which a file does not hold (nothing in "
            f"it is ever run); pass it: load(path, {name}={label if label.isidentifier() else 'function'})."
        )
    source = source_hash(given)
    if source is not None and described["source"] is not None and source != described["source"]:
        warnings.warn(
            f"the source of {name} differs from that of {label!r} when the model was saved; samples are "
            "right only if it computes the same.",
            stacklevel=6,
        )
    return given
