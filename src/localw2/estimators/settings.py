"""From the plain settings of an estimator to what they mean: losses, seeds, devices; checks of its data."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from localw2._validation import Array, as_array
from localw2.losses.discrepancies import MMD, MSE, Discrepancy, EnergyScore, MeanVar, SlicedW2, SquaredW2
from localw2.storage.model_file import check_writable
from localw2.training.distributed import Crew

DISCREPANCIES = ("w2", "sliced", "mmd", "energy", "mse", "meanvar")
LARGEST = 1e100  # squares, and their sums over rows, stay far from overflow
_NOT_IN_PRINT = ("checkpoint", "history", "verbose", "device", "random_state", "storable")


def discrepancy_of(name: Any, debiased: bool, n_outputs: int) -> Discrepancy:
    """The discrepancy that a name means for so many outputs; one that is no string stays as it is.

    >>> discrepancy_of("w2", True, 1), discrepancy_of("w2", False, 2)
    (SquaredW2(debiased=True), SquaredW2(debiased=False))
    >>> discrepancy_of("w2", True, 2)
    SlicedW2(n_directions=32, debiased=True, random_state=0)
    """
    if isinstance(name, Discrepancy):
        return name
    if not isinstance(name, str) or name not in DISCREPANCIES:
        raise ValueError(
            f"discrepancy={name!r} is not known; give one of {', '.join(DISCREPANCIES)}, or a Discrepancy."
        )
    if name == "w2":
        # Debiased W2 of several outputs is not minimised by the truth on few rows; its slices are.
        return SlicedW2(debiased=True) if debiased and n_outputs > 1 else SquaredW2(debiased=debiased)
    if name == "sliced":
        return SlicedW2(debiased=debiased)
    if name == "mmd":
        return MMD()
    if name == "energy":
        return EnergyScore()
    return MSE() if name == "mse" else MeanVar()


def device_of(name: Any) -> torch.device:
    """The torch device of a name; "auto" is a GPU if there is one."""
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={name!r} is not one that torch knows: {error}") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch uses all three
        raise ValueError(f"device={name!r} cannot be used here: {error} Give 'auto' or 'cpu'.") from None
    return device


def fresh_seed(random_state: Any, fingerprint: str | None = None) -> int:
    """A 63-bit seed from an int, a RandomState, a Generator, or None (entropy, or a fingerprint if given)."""
    if random_state is None and fingerprint is not None:
        return int(fingerprint[:15], 16)
    if random_state is None or isinstance(random_state, np.random.Generator):
        return int(np.random.default_rng(random_state).integers(2**63))
    state = check_random_state(random_state)
    high, low = (int(v) for v in state.randint(0, 2**31, size=2, dtype=np.int64))
    return (high << 31) + low


def fit_seed(random_state: Any, fingerprint: str | None) -> int:
    """The seed of a fit: ``fresh_seed``, that of the first process if several make the fit together."""
    return int(Crew.join().agreed(fresh_seed(random_state, fingerprint)))


def fingerprint(estimator: Any, x: Array, y: Array) -> str:
    """A hash of data and settings: two fits that share it, and the seed, take the same path."""
    settings = {k: v for k, v in estimator.get_params(deep=False).items() if k not in _NOT_IN_PRINT}
    # A printed address (of a function, say) differs between processes.
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(sorted(settings.items())))
    digest = hashlib.sha256(printed.encode())
    for array in (x, y):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return digest.hexdigest()


def adopt(estimator: Any, fitted: Any) -> None:
    """Give an estimator the fit of its copy, with nothing left of an older one."""
    old = [name for name in vars(estimator) if name.endswith("_") and not hasattr(fitted, name)]
    vars(estimator).update(vars(fitted))
    for name in old:
        delattr(estimator, name)


def part_of_checkpoint(checkpoint: Any, part: str, number: int) -> str | None:
    """The checkpoint of one of several fits that a fit consists of.

    >>> part_of_checkpoint("fit.ckpt", "choice", 2)
    'fit.ckpt.choice2'
    """
    return None if checkpoint is None else f"{checkpoint}.{part}{number}"


def check_files(estimator: Any) -> None:
    """Raise unless the files of a fit can be written, and a checkpoint would be found again."""
    state = estimator.random_state
    for name in ("checkpoint", "history"):
        if getattr(estimator, name) is not None:
            check_writable(getattr(estimator, name), name)
    if estimator.checkpoint is not None and isinstance(state, np.random.RandomState | np.random.Generator):
        raise ValueError(
            f"random_state is a {type(state).__name__}, which moves on with every fit: "
            "none would find the checkpoint of another. Give an int, or None."
        )


def check_levels(q: Any) -> Array:
    """Levels of quantiles, (Q,), from a number or a list of them."""
    levels = np.atleast_1d(as_array(q, "q")).astype(np.float64)
    if levels.ndim != 1 or not bool(((levels > 0) & (levels < 1)).all()):
        raise ValueError(f"q={q!r} must be levels strictly between 0 and 1, such as [0.05, 0.5, 0.95].")
    return levels


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


def moments(X: Array, standardize: bool) -> tuple[Array, Array]:
    """Mean and scale of each column; constant columns, or all without ``standardize``, keep scale 1."""
    if not standardize:
        return np.zeros(X.shape[1]), np.ones(X.shape[1])
    mean, scale = X.mean(0), X.std(0)
    # Rounding gives a constant column a tiny spread, by which nothing must be divided.
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def factor(residuals: Array, standardize: bool) -> tuple[Array, Array]:
    """A matrix (d, d) that gives independent unit outputs the spread of the residuals, and its inverse.

    Correlation between outputs is then there from the start: the network, whose output layer has independent
    weights, would be slow to find it. Directions without any spread are 0 in both.
    """
    d = residuals.shape[1]
    if not standardize:
        return np.eye(d), np.eye(d)
    scale = np.sqrt((residuals**2).mean(0))
    inverse = np.divide(1.0, scale, out=np.zeros(d), where=scale > 0)
    values, vectors = np.linalg.eigh((residuals * inverse).T @ (residuals * inverse) / len(residuals))
    values = np.where(values > 1e-10 * values.max(), values, 0.0)
    roots = np.sqrt(values)
    inverse_roots = np.divide(1.0, roots, out=np.zeros(d), where=roots > 0)
    return (vectors * roots) @ vectors.T * scale, inverse[:, None] * ((vectors * inverse_roots) @ vectors.T)
