"""A learned stochastic equation to and from what a model file can hold: everything but the functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from localw2.estimators.dynamics import storing
from localw2.estimators.dynamics.moment_regression import CurveErrors
from localw2.estimators.dynamics.polynomials import MOST_DEGREE, count_terms
from localw2.estimators.stored_values import sized_array

if TYPE_CHECKING:
    from localw2.estimators.dynamics.equations import EquationSettings
    from localw2.models.sde import StochasticEquation

_ERRORS = ("location", "spread", "curves", "drift", "variance")
FUNCTIONS = ("drift", "diffusion", "jumps")  # those of the user's own are named in a file, not held


def store_equation(equation: StochasticEquation, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds, functions and laws of an equation as plain values; ``parts`` are "mlp" or functions by name."""
    laws = None if equation.law is None else equation.law.laws
    return {
        "bounds": None if equation.bounds is None else _plain_bounds(equation),
        "functions": {name: _describe(value) for name, value in parts.items()},
        "laws": None if laws is None else storing.plain_laws(laws),
        "names": None if laws is None else list(laws),  # a file sorts the laws
    }


def restore_parts(plain: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Parts, laws and bounds as the settings of an estimator, with the functions that it had."""
    parts: dict[str, Any] = {}
    for name, own in given.items():
        described = plain["functions"][name]
        if name == "jumps" and isinstance(described, str) and described == "normal":
            if own is not None:
                raise ValueError("jumps was 'normal' when this model was saved; it takes no function.")
            parts[name] = described
        else:
            parts[name] = _match(name, described, own)
    laws = storing.restore_laws(plain["laws"], plain["names"], None)
    bounds = None if plain["bounds"] is None else tuple(map(tuple, plain["bounds"]))
    return {**parts, "parameters": laws, "bounds": bounds}


def store_errors(errors: CurveErrors | None) -> dict[str, Tensor]:
    """How sure the curves are, as tensors."""
    if errors is None:
        return {}
    return {f"errors.{name}": torch.tensor(getattr(errors, name)) for name in _ERRORS}


def restore_errors(tensors: Mapping[str, Tensor], d: int) -> CurveErrors | None:
    """What ``store_errors`` stored, checked."""
    if not any(name.startswith("errors.") for name in tensors):
        return None
    count = tensors["errors.drift"].shape[-1]
    degree = next((k for k in range(MOST_DEGREE + 1) if count_terms(d, k) == count), -1)
    if degree < 0:
        raise ValueError(f"the file states errors of {count} terms, which no polynomial of {d} states has.")
    shapes = {"location": (d,), "spread": (d,), "curves": (2, count, d)}
    shapes |= {"drift": (d, count, count), "variance": (d, count, count)}
    found = {name: sized_array(name, tensors[f"errors.{name}"], *shape) for name, shape in shapes.items()}
    return CurveErrors(degree=degree, **found)


def check_size(state: dict[str, Tensor], checked: EquationSettings, d: int) -> None:
    """Raise before networks are made that the file does not hold: it must not ask for memory."""
    held = sum(tensor.numel() for tensor in state.values())
    stated = checked.width * (d + (checked.depth - 1) * checked.width)
    if stated > held:
        raise ValueError(f"the file states networks of {stated} weights and holds {held} numbers.")


def _describe(functions: Any) -> Any:
    """A function by name and source, or both of a pair (rate, size)."""
    if isinstance(functions, list | tuple):
        return [storing.describe_function(function) for function in functions]
    return storing.describe_function(functions)


def _match(name: str, described: Any, given: Any) -> Any:
    """The functions to be used: those given, if they are as many as a file names."""
    pair = isinstance(given, list | tuple)
    if not isinstance(described, list):
        if pair:
            raise ValueError(f"{name} was no pair of functions when this model was saved; pass one.")
        return storing.match_function(name, described, given)
    if not pair or len(given) != len(described):
        raise ValueError(
            f"{name} was a pair of functions when this model was saved; pass both: load(path, {name}=(rate, "
            "size))."
        )
    return tuple(storing.match_function(name, *both) for both in zip(described, given, strict=True))


def _plain_bounds(equation: StochasticEquation) -> Any:
    """Bounds as JSON has them, which knows no infinity."""
    assert equation.bounds is not None
    return [[v if math.isfinite(v) else None for v in end] for end in equation.bounds.tolist()]
