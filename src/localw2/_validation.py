"""Arrays, tensors and data frames in; checked arrays and tensors out.

Every check that more than one module needs lives here, so that a wrong input gets the same message
everywhere: what came, why it matters, what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from torch import Tensor

Array = NDArray[Any]
MOST_SHOWN = 100  # characters of a value in a message
LARGEST = 1e100  # squares, and their sums over rows, stay far from overflow


def brief(value: Any) -> str:
    """A value as a message shows it: its repr if that is one short line, or else its beginning or its kind.

    >>> brief([1, 2]), brief(torch.nn.Sequential(torch.nn.Linear(1, 1)))
    ('[1, 2]', '<Sequential>')
    """
    if isinstance(value, torch.nn.Module):  # its repr lists every layer
        return f"<{type(value).__name__}>"
    line = " ".join(repr(value).split())
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 3]}..."


def as_array(values: Any, name: str, missing: bool = False) -> Array:
    """Turn anything array-like into a finite, non-empty float array, or say what is wrong with it.

    With ``missing``, NaN (also None or a masked value) marks a missing value; infinities are still refused.
    """
    _check_not_model(values, name)
    if isinstance(values, Tensor):
        values = _coarse(values, name).detach().cpu().numpy()
    if issparse(values):
        raise ValueError(f"{name} is a sparse matrix; pass a dense one, such as {name}.toarray().")
    if np.ma.isMaskedArray(values):
        values = np.ma.filled(values.astype(np.float64), np.nan)  # a masked value is a missing one
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is ragged: its rows have different lengths ({error}).") from None
    if array.dtype == np.float16:
        raise ValueError(
            f"{name} is float16, which holds only three digits; convert it to float32 or float64."
        )
    if array.dtype.kind in "USV":
        raise ValueError(f"{name} holds text, such as {str(array.flat[0])!r}; encode it as numbers first.")
    if array.dtype.kind == "O":
        for value in array.flat:
            if not (isinstance(value, Real) or value is None):
                raise ValueError(
                    f"{name} holds {brief(value)}, which is not a real number; encode it or drop its "
                    "row first."
                )
    elif array.dtype.kind in "mM":
        raise ValueError(
            f"{name} has dtype {array.dtype}, whose unit would change the result. Convert it to numbers "
            "in a unit of your choice, such as (times - times[0]) / np.timedelta64(1, 'h')."
        )
    elif array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has dtype {array.dtype}; only real numbers are supported.")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}); at least one row is needed.")
    if not missing:
        check_finite(array, name)
    elif np.isinf(array).any():
        raise ValueError(f"{name} has infinite values; use NaN for missing values.")
    return array


def as_rows(x: Any, name: str = "x") -> Array:
    """Turn inputs into an (N, p) array; a 1-D array is one column."""
    _check_not_scalar(x, name)
    array = as_array(x, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}; expected (rows, columns).")
    return array


def as_tensor(values: Any, name: str) -> Tensor:
    """Turn outputs into a finite float32 or float64 tensor; a tensor keeps its device and its graph."""
    _check_not_scalar(values, name)
    if not isinstance(values, Tensor):
        return torch.tensor(as_array(values, name))
    tensor = _coarse(values, name)
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    if tensor.numel() == 0:
        raise ValueError(f"{name} is empty (shape {tuple(tensor.shape)}); at least one row is needed.")
    check_finite(tensor, name)
    return tensor


def _check_not_model(values: Any, name: str) -> None:
    if callable(values) or hasattr(type(values), "predict"):  # a frame may have a column of that name
        raise ValueError(
            f"{name}={brief(values)} is a model or a function, where an array of rows is expected. Arguments "
            "come in this order: inputs, outputs, what is judged."
        )


def _check_not_scalar(values: Any, name: str) -> None:
    _check_not_model(values, name)
    if getattr(values, "ndim", 1) == 0 or values is None or not hasattr(values, "__len__"):
        raise ValueError(
            f"{name}={brief(values)} is not an array of rows; pass a list, an array or a data frame."
        )


def _coarse(values: Tensor, name: str) -> Tensor:
    """Refuse half-precision and complex types."""
    if values.dtype in (torch.float16, torch.bfloat16) or values.is_complex():
        raise ValueError(
            f"{name} is {values.dtype}; use float32 or float64, because the loss needs that precision."
        )
    return values


def check_finite(values: Array | Tensor, name: str) -> None:
    """Raise unless every value is finite, and give the index of the first that is not."""
    # One cheap pass settles nearly every case: a sum of finite values overflows only if they are huge.
    with nullcontext() if isinstance(values, Tensor) else np.errstate(over="ignore", invalid="ignore"):
        total = values.sum().item()
    if math.isfinite(total):
        return
    finite = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if bool(finite.all()):
        return
    bad = np.argwhere(~np.asarray(finite.cpu() if isinstance(finite, Tensor) else finite))
    first = tuple(int(i) for i in bad[0])
    raise ValueError(
        f"{name} has {len(bad)} NaN or infinite value(s), the first at index {first}. "
        "Distances and sorting are undefined there: drop or impute these rows."
    )


def check_range(values: Array, name: str, largest: float = LARGEST) -> None:
    """Raise where the squares of numbers (N, p), or of their differences, would overflow or vanish."""
    size, spread = np.abs(values).max(0), np.ptp(values, axis=0)
    if size.max() > largest:
        raise ValueError(
            f"{name} has values of size {size.max():.2g}; squares of more than {largest:.0e} overflow. "
            "Change its unit, so that values are near 1."
        )
    # What varies in its last digits only is a constant.
    faint = (spread > 1e-12 * size) & (spread < 1 / largest)
    if faint.any():
        raise ValueError(
            f"{name} varies by {spread[faint].min():.2g}; squares below {1 / largest:.0e} vanish. "
            "Change its unit, so that values are near 1."
        )


def check_radius(delta: Any) -> float:
    """Return delta as a float; infinity is allowed and means one ball that holds every row."""
    if isinstance(delta, Tensor) and delta.numel() == 1:
        delta = delta.item()
    if isinstance(delta, bool) or not isinstance(delta, Real):
        raise ValueError(f"delta={brief(delta)} is not a number; give the radius of the balls, such as 0.1.")
    radius = float(delta)
    if math.isnan(radius) or radius < 0:
        raise ValueError(f"delta={radius} is not a radius; give a number >= 0, or inf for a single ball.")
    return radius


def check_count(value: Any, name: str, low: int, high: int | None = None, why: str = "") -> int:
    """Return value as an int within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={brief(value)} is not a whole number.")
    count = int(value)
    if count < low or (high is not None and count > high):
        limits = f">= {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name}={count} must be {limits}{': ' + why if why else ''}.")
    return count


def check_flag(value: Any, name: str) -> bool:
    """Return True or False; anything else may be a mistake, such as the string "no", which is truthy."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={brief(value)} must be True or False.")
    return bool(value)


def check_number(value: Any, name: str, valid: Callable[[float], bool], words: str) -> float:
    """Return value as a float if it is a valid number; ``words`` say what it must be."""
    if isinstance(value, bool) or not isinstance(value, Real) or not valid(float(value)):
        raise ValueError(f"{name}={brief(value)} must be {words}.")
    return float(value)


def check_probability(value: Any, name: str) -> float:
    """Return value as a float strictly between 0 and 1."""
    words = "a probability strictly between 0 and 1, such as 0.9"
    return check_number(value, name, lambda v: 0 < v < 1, words)


def check_sample_weight(sample_weight: Any, n_rows: int, rows: str = "rows") -> Array:
    """One weight >= 0 for each row, (n_rows,), some of them positive.

    >>> check_sample_weight([2, 0, 1], 3)
    array([2., 0., 1.])
    """
    weights = as_array(sample_weight, "sample_weight").astype(np.float64)
    if weights.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {weights.shape}; give one weight for each of the {n_rows} {rows}, "
            f"({n_rows},)."
        )
    if not (weights.min() >= 0 and weights.max() > 0):
        what = "a negative value" if weights.min() < 0 else "only zeros"
        raise ValueError(f"sample_weight has {what}; a weight says how often a row counts, so give >= 0.")
    return weights


def average(values: Array, weights: Array | None) -> Any:
    """The mean of values (N, ...) over rows, with weights (N,) of the rows if there are any.

    >>> average(np.array([[1.0], [4.0]]), None), average(np.array([[1.0], [4.0]]), np.array([2.0, 1.0]))
    (array([2.5]), array([2.]))
    """
    return values.mean(0) if weights is None else np.average(values, axis=0, weights=weights)


def mean_of_all(values: Array, weights: Array | None) -> float:
    """The mean of all values (N, d), with weights (N,) of the rows if there are any."""
    return float(values.mean() if weights is None else np.average(values.mean(1), weights=weights))


def take_rows(weights: Array | None, rows: Any) -> Array | None:
    """The weights of some of the rows, if rows have weights."""
    return None if weights is None else weights[rows]


def seed_from(random_state: Any) -> int:
    """A seed below 2^63 from None (fresh entropy), an int >= 0, a numpy Generator or a RandomState.

    An int always gives the same seed; a generator is advanced, so that each call gives another.

    >>> seed_from(7) == seed_from(np.int64(7)) == seed_from(np.random.default_rng(7))
    True
    """
    if isinstance(random_state, np.random.RandomState):
        high, low = (int(half) for half in random_state.randint(0, 2**31, size=2, dtype=np.int64))
        return (high << 31) + low
    is_int = isinstance(random_state, Integral) and not isinstance(random_state, bool)
    is_seed = is_int and int(random_state) >= 0
    if is_seed or random_state is None or isinstance(random_state, np.random.Generator):
        return int(np.random.default_rng(random_state).integers(2**63))
    raise ValueError(
        f"random_state={brief(random_state)} must be None, an int >= 0, a numpy Generator or a numpy "
        "RandomState."
    )
