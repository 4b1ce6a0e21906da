"""A smooth mean and covariance as plain settings and arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from localw2._validation import Array
from localw2.estimators import stored_values
from localw2.estimators.fields.levels import MOST_LEVELS, LevelFunction
from localw2.estimators.fields.location_scale import LocationScale
from localw2.estimators.fields.smoothing import MOST_CENTERS, SmoothFunction
from localw2.estimators.powers import Powers

_HIGHEST_DEGREE, _MOST_LENGTHS = 10, 20
_ENDS = ":ends"  # after the name of a function, its range
_OF_MEANS = ":of_means:"  # between the name of a function and the number of its part


def store_location(location: LocationScale) -> tuple[dict[str, Any], dict[str, Array]]:
    """The plain description, and the arrays by name."""
    powers = location.center.powers
    arrays = {"lower": powers.lower, "upper": powers.upper}
    plain: dict[str, Any] = {"center": _store_function(location.center, "center", arrays)}
    for name, function in (("log_variance", location.log_variance), ("mixing", location.mixing)):
        if function is None:
            plain[name] = None
            continue
        sizes = {"n_of_means": len(function.of_means), "held": function.ends is not None}
        plain[name] = _store_function(function.of_x, name, arrays) | sizes
        for number, part in enumerate(function.of_means):
            own = f"{name}{_OF_MEANS}{number}"
            plain[own] = _store_function(part, own, arrays) | {"n_columns": part.powers.n_columns}
            arrays |= {f"{own}:lower": part.powers.lower, f"{own}:upper": part.powers.upper}
        if function.ends is not None:
            arrays[f"{name}{_ENDS}"] = function.ends
    return plain, arrays


def _store_function(function: SmoothFunction, name: str, arrays: dict[str, Array]) -> dict[str, Any]:
    """The plain description of one function, whose arrays are added to the others."""
    plain = {"degree": function.powers.degree, "n_lengths": len(function.lengths)}
    arrays[f"{name}:weights"] = function.weights
    if len(function.lengths):
        plain["n_centers"] = len(function.centers)
        arrays |= {
            f"{name}:centers": function.centers,
            f"{name}:lengths": function.lengths,
            f"{name}:kernel_weights": function.kernel_weights,
        }
    return plain


def restore_location(
    plain: Mapping[str, Any], tensors: Mapping[str, Any], width: int, d: int
) -> LocationScale | None:
    """What ``store_location`` described, or a file of the first fields, which had polynomials only."""
    whole, array = stored_values.whole_number, stored_values.sized_array
    degrees, parts = plain["degrees"], plain.get("smooth_parts")
    here = {name for name in tensors if name.partition(":")[0] in ("center", "log_variance", "mixing")}
    if degrees is None and parts is None:
        _refuse(here)
        return None
    ends = array("lower", tensors["lower"], width), array("upper", tensors["upper"], width)
    if parts is None:
        found = []
        for name, degree in zip(("mean_weights", "spread_weights"), degrees, strict=True):
            powers = Powers(*ends, whole(degree, 0, _HIGHEST_DEGREE))
            weights = array(name, tensors[name], powers.n_terms, d)
            found.append(SmoothFunction.polynomial(powers, weights))
        return LocationScale(found[0], LevelFunction(found[1]), None)

    def restore(name: str, lower: Array, upper: Array, n_values: int) -> SmoothFunction:
        described = parts[name]
        powers = Powers(lower, upper, whole(described["degree"], 0, _HIGHEST_DEGREE))
        weights = array(f"{name}:weights", tensors[f"{name}:weights"], powers.n_terms, n_values)
        n_lengths = whole(described["n_lengths"], 0, _MOST_LENGTHS)
        if not n_lengths:
            return SmoothFunction.polynomial(powers, weights)
        m = whole(described["n_centers"], 1, MOST_CENTERS)
        lengths = array(f"{name}:lengths", tensors[f"{name}:lengths"], n_lengths)
        if not bool((lengths > 0).all()):
            raise ValueError(f"the lengths of {name} are {np.array2string(lengths)}; they must be positive.")
        return SmoothFunction(
            powers,
            weights,
            array(f"{name}:centers", tensors[f"{name}:centers"], m, powers.n_columns),
            lengths,
            array(f"{name}:kernel_weights", tensors[f"{name}:kernel_weights"], n_lengths, m, n_values),
        )

    def restore_levels(name: str, n_values: int) -> LevelFunction:
        of_means = []
        # Development files of before levels do not say how many there are.
        for number in range(whole(parts[name].get("n_of_means", 0), 0, MOST_LEVELS)):
            own = f"{name}{_OF_MEANS}{number}"
            count = whole(parts[own]["n_columns"], 1, min(MOST_LEVELS, d))
            lower, upper = (
                array(f"{own}:{end}", tensors[f"{own}:{end}"], count) for end in ("lower", "upper")
            )
            of_means.append(restore(own, lower, upper, n_values))
        range_of, held = f"{name}{_ENDS}", None
        # Older development files do not say whether there is a range.
        if parts[name].get("held", range_of in tensors):
            held = array(range_of, tensors[range_of], 2, n_values)
        return LevelFunction(restore(name, *ends, n_values), tuple(of_means), held)

    mixing = None if parts["mixing"] is None else restore_levels("mixing", d * (d - 1) // 2)
    location = LocationScale(restore("center", *ends, d), restore_levels("log_variance", d), mixing)
    _refuse(here - set(store_location(location)[1]))
    return location


def _refuse(unused: set[str]) -> None:
    if unused:
        raise ValueError(f"the file has {min(unused)}, which the functions that it describes do not have.")
