"""A smooth mean and covariance as plain settings and arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from localw2._validation import Array
from localw2.estimators import stored_values
from localw2.estimators.fields.location_scale import LocationScale
from localw2.estimators.fields.smoothing import MOST_CENTERS, SmoothFunction
from localw2.estimators.powers import Powers

_HIGHEST_DEGREE, _MOST_LENGTHS = 10, 20


def store_location(location: LocationScale) -> tuple[dict[str, Any], dict[str, Array]]:
    """The plain description, and the arrays by name."""
    parts = {"center": location.center, "log_variance": location.log_variance, "mixing": location.mixing}
    powers = location.center.powers
    arrays = {"lower": powers.lower, "upper": powers.upper}
    plain: dict[str, Any] = {}
    for name, part in parts.items():
        plain[name] = None
        if part is not None:
            plain[name] = {"degree": part.powers.degree, "n_lengths": len(part.lengths)}
            arrays[f"{name}:weights"] = part.weights
            if len(part.lengths):
                plain[name]["n_centers"] = len(part.centers)
                arrays |= {
                    f"{name}:centers": part.centers,
                    f"{name}:lengths": part.lengths,
                    f"{name}:kernel_weights": part.kernel_weights,
                }
    return plain, arrays


def restore_location(
    plain: Mapping[str, Any], tensors: Mapping[str, Any], width: int, d: int
) -> LocationScale | None:
    """What ``store_location`` described, or a file of before 0.3, which has polynomials only."""
    whole, array = stored_values.whole_number, stored_values.sized_array
    degrees, parts = plain["degrees"], plain.get("smooth_parts")
    if degrees is None and parts is None:
        return None
    ends = array("lower", tensors["lower"], width), array("upper", tensors["upper"], width)
    if parts is None:
        found = []
        for name, degree in zip(("mean_weights", "spread_weights"), degrees, strict=True):
            powers = Powers(*ends, whole(degree, 0, _HIGHEST_DEGREE))
            weights = array(name, tensors[name], powers.n_terms, d)
            found.append(SmoothFunction.polynomial(powers, weights))
        return LocationScale(found[0], found[1], None)

    def restore(name: str, n_values: int) -> SmoothFunction:
        described = parts[name]
        powers = Powers(*ends, whole(described["degree"], 0, _HIGHEST_DEGREE))
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
            array(f"{name}:centers", tensors[f"{name}:centers"], m, width),
            lengths,
            array(f"{name}:kernel_weights", tensors[f"{name}:kernel_weights"], n_lengths, m, n_values),
        )

    mixing = None if parts["mixing"] is None else restore("mixing", d * (d - 1) // 2)
    return LocationScale(restore("center", d), restore("log_variance", d), mixing)
