"""A random ODE to and from what a model file can hold: everything but the functions."""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from tokenize import TokenError
from typing import Any

import torch
from torch import Tensor

from localw2._validation import Array
from localw2.estimators.stored_values import network_settings, sized_array
from localw2.models.fields import UNITS, FunctionField, NetworkField, RandomField, parameter_names
from localw2.models.laws import LAWS, Law, ParameterLaw, PushForward, as_laws
from localw2.models.measurement import MeasurementNoise
from localw2.models.ode import RandomODE

FUNCTIONS = ("field", "observe")  # of the user's own, which a file names but does not hold


def store_ode(ode: RandomODE) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The laws of named parameters (None of a network) and the step, plain; and all tensors."""
    laws, names = None, None
    if isinstance(ode.field, FunctionField):
        named = ode.field.law.laws
        # The tensors are in the order of the names, which a file, whose keys are sorted, would not keep.
        laws, names = plain_laws(named), list(named)
    tensors = {f"field.{name}": value for name, value in ode.field.state_dict().items()}
    given = ode.field.given if isinstance(ode.field, FunctionField) else []
    plain = {"laws": laws, "names": names, "given": given, "step": ode.step_size}
    return plain, tensors | {"state_size": ode.state_size}


def restore_laws(plain: Any, names: Any = None, field: Any = None) -> dict[str, Law] | None:
    """The laws of named parameters as they were before the fit, in their order; None for a network."""
    if plain is None:
        return None
    if names is None:
        names = _guess_order(plain, field)
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(plain):
        count = len(names) if isinstance(names, list) else "no list of"
        raise ValueError(f"there are {len(plain)} laws and {count} names of parameters, which do not agree.")
    return {name: _law(*plain[name]) for name in names}


def _guess_order(plain: Mapping[str, Any], field: Any) -> list[str]:
    """The order of the parameters in a file that does not say it: that of the field's arguments, if any."""
    named = [name for name in parameter_names(field) if name in plain] if callable(field) else []
    if len(named) < len(plain) or named == sorted(plain):
        return list(plain)
    warnings.warn(
        "this file was written by an older version, which did not keep the order of the parameters; it is "
        f"taken to be {', '.join(named)}. If they were named in another order, fit again.",
        stacklevel=5,
    )
    return named


def restore_ode(
    settings: Mapping[str, Any],
    tensors: dict[str, Tensor],
    parameters: Mapping[str, Any],
    field: Any,
    laws: dict[str, Law] | None,
    d: int,
    t0: float,
) -> RandomODE:
    """The ODE of d states that ``store_ode`` described, with the settings of its estimator."""
    state = {name.removeprefix("field."): t for name, t in tensors.items() if name.startswith("field.")}
    given = settings.get("given", [])
    restored = _network(parameters, d, state) if laws is None else _function_field(field, laws, state, given)
    restored.load_state_dict(state)
    solver = {name: parameters[name] for name in ("method", "rtol", "atol")} | {"step_size": settings["step"]}
    size = tensors["state_size"]
    if (sized_array("state_size", size, d) <= 0).any():
        raise ValueError("state_size is not positive.")
    start = torch.tensor([t0], dtype=torch.float64)
    ode: RandomODE = RandomODE(restored, start, **solver, state_size=size).eval()
    return ode


def _network(parameters: Mapping[str, Any], d: int, state: dict[str, Tensor]) -> RandomField:
    layers = {name.removeprefix("net."): tensor for name, tensor in state.items() if name not in UNITS}
    for name in UNITS:
        sized_array(name, state[name], d, dtype=torch.float32)
    return NetworkField(d, **network_settings(parameters, d, d, layers, torch.float32))


def _function_field(
    function: Callable[..., Any], laws: dict[str, Law], state: dict[str, Tensor], given: Any
) -> RandomField:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ValueError("the names of covariates and inputs are not text.")
    # Counted before a law of the stated size is made: a small file must not ask for memory.
    stated = [state[f"law.{name}"].numel() for name in ("location", "shared")]
    if sum(stated) != len(laws):
        raise ValueError(f"there are {len(laws)} parameters, but {stated} values of them.")
    law = ParameterLaw(laws)
    if law.push is not None:  # files of earlier versions have no linear part: it was 0
        state.setdefault("law.straight", torch.zeros_like(law.straight).double())
    for name, value in law.state_dict().items():
        sized_array(name, state[f"law.{name}"], *value.shape)
    return FunctionField(function, laws, given=given).double()


def _plain_law(law: Law) -> list[Any]:
    plain = [type(law).__name__.lower(), law.mean, law.std]
    # Older files have these three; a file of a law without covariates and signs is as it was.
    if law.effect != "linear":
        return [*plain, list(law.depends_on), getattr(law, "positive", None), law.effect]
    if isinstance(law, PushForward):
        return [*plain, list(law.depends_on), law.positive]
    return [*plain, list(law.depends_on)] if law.depends_on else plain


def plain_laws(laws: Mapping[str, Law]) -> dict[str, Any]:
    """The laws as a file holds them."""
    return {name: _plain_law(law) for name, law in laws.items()}


def _law(
    name: str,
    mean: float,
    std: float | None,
    depends_on: Any = (),
    positive: Any = None,
    effect: Any = "linear",
) -> Law:
    if name not in LAWS:
        raise ValueError(f"the law {name!r} is unknown.")
    if (positive is not None) != (LAWS[name] is PushForward):
        raise ValueError(f"the law {name!r} does not say, or must not say, whether it is positive.")
    settings = {} if positive is None else {"positive": positive}
    law: Law = LAWS[name](mean, std, tuple(depends_on), **settings, effect=effect)
    return as_laws({"parameter": law})["parameter"]


def store_noise(noise: MeasurementNoise | None) -> tuple[Any, dict[str, Tensor]]:
    """The kind of the errors of measurement, and their sizes."""
    if noise is None:
        return None, {}
    return noise.kind, {f"noise.{name}": value for name, value in noise.state_dict().items()}


def restore_noise(kind: Any, tensors: dict[str, Tensor], n_observed: int) -> MeasurementNoise | None:
    """The errors that ``store_noise`` described."""
    if kind is None:
        return None
    noise = MeasurementNoise(kind, torch.ones(n_observed, dtype=torch.float64))
    state = {name.removeprefix("noise."): t for name, t in tensors.items() if name.startswith("noise.")}
    for name in noise.state_dict():
        sized_array(f"noise.{name}", state[name], n_observed)
    if set(state) != set(noise.state_dict()) or not bool((state["size"] > 0).all()):
        raise ValueError("the errors of measurement have other parts, or sizes that are not positive.")
    noise.load_state_dict(state)
    return noise


def restore_noise_errors(noise: MeasurementNoise | None, tensors: dict[str, Tensor]) -> Array | None:
    """The standard errors (parts, p) of learned errors of measurement; None where a file has none."""
    if noise is None or "noise_errors" not in tensors:
        return None
    found, shape = tensors["noise_errors"], (len(noise.parts), len(noise.size))
    # Infinite ones are fine, what is not a number is not.
    if tuple(found.shape) != shape or found.dtype != torch.float64 or not bool((found >= 0).all()):
        raise ValueError(f"noise_errors is no table {shape} of standard errors.")
    errors: Array = found.numpy().copy()
    return errors


def describe_function(function: Any) -> Any:
    """A function by its name and a hash of its source, which is never run; None and names as they are."""
    if function is None or isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"function": str(name), "source": hash_source(function)}


def hash_source(function: Any) -> str | None:
    """A hash of what a function's source says; None if it has none."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError, TokenError):  # TokenError: a part of an expression, as lambdas can be
        return None


def hash_function(function: Any) -> str:
    """What distinguishes a function: its source, and the plain values that it takes from outside."""
    if function is None or isinstance(function, str):
        return ""
    try:
        outside = inspect.getclosurevars(inspect.unwrap(function))
        values: dict[str, Any] = {**outside.nonlocals, **outside.globals}
    except TypeError:  # an object with __call__, or a partial
        values = {**getattr(function, "__dict__", {}), "partial": repr(function)}
    plain = {name: v.tolist() if hasattr(v, "tolist") else v for name, v in values.items()}
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(sorted(plain.items(), key=lambda item: item[0])))
    return hashlib.sha256(f"{hash_source(function)}{printed}".encode()).hexdigest()


def match_function(name: str, described: Any, given: Any) -> Any:
    """The function to be used: the one given, since a file holds none."""
    if not isinstance(described, dict):
        if given is not None:
            raise ValueError(f"{name} was {described!r} when this model was saved; it takes no function.")
        if described not in (None, "mlp"):
            raise ValueError(f"{name}={described!r} is unknown.")
        return described
    label = str(described["function"])[:100]
    if not callable(given):
        raise ValueError(
            f"this model was fitted with your own function {label!r}, which a file does not hold (nothing in "
            f"it is ever run); pass it: load(path, {name}={label if label.isidentifier() else 'function'})."
        )
    source = hash_source(given)
    if source is not None and described["source"] is not None and source != described["source"]:
        warnings.warn(
            f"the source of {name} differs from that of {label!r} when the model was saved; samples are "
            "right only if it computes the same.",
            stacklevel=4,
        )
    return given
