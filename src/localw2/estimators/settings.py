"""From the plain settings of an estimator to what they mean: losses, seeds, devices, files; their checks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.validation import _num_samples
from threadpoolctl import threadpool_limits

from localw2._validation import Array, as_array, check_count, check_radius, check_sample_weight, seed_from
from localw2.balls.neighborhoods import Nearest
from localw2.balls.norms import Norm
from localw2.losses.discrepancies import (
    MMD,
    MSE,
    Discrepancy,
    EnergyScore,
    MeanVar,
    Sinkhorn,
    SlicedW2,
    SquaredW2,
)
from localw2.storage.model_file import check_writable
from localw2.training.distributed import Crew

_WORTH_THREADS = 1_000_000  # numbers in a table from which on threads inside a regressor pay
DISCREPANCIES = ("w2", "sliced", "sinkhorn", "mmd", "energy", "mse", "meanvar")
LARGEST_SINGLE = 1e18  # of numbers that a network meets as they are, in single precision
SMALLEST_WEIGHT = 1e-9  # of a row, relative to the largest: sums of all rows still have some of its digits
_LEFT: list[list[Any]] = []  # checkpoints to be removed at the end of a block of ``keep_checkpoints``
_NOT_HASHED = ("checkpoint", "history", "verbose", "device", "random_state", "n_jobs")


def choose_discrepancy(name: Any, debiased: bool, n_outputs: int) -> Discrepancy:
    """The discrepancy that a name means for this number of outputs; a ``Discrepancy`` stays as it is.

    >>> choose_discrepancy("w2", True, 1), choose_discrepancy("w2", False, 2)
    (SquaredW2(debiased=True), SquaredW2(debiased=False))
    >>> choose_discrepancy("w2", True, 2)
    SlicedW2(n_directions=32, debiased=True, random_state=0)
    """
    if isinstance(name, Discrepancy):
        return name
    if not isinstance(name, str) or name not in DISCREPANCIES:
        raise ValueError(
            f"discrepancy={name!r} is unknown; give one of {', '.join(DISCREPANCIES)}, or a Discrepancy."
        )
    if name == "w2":
        # Debiased W2 of several outputs is not minimised by the truth on few rows; its slices are.
        return SlicedW2(debiased=True) if debiased and n_outputs > 1 else SquaredW2(debiased=debiased)
    if name == "sliced":
        return SlicedW2(debiased=debiased)
    if name == "sinkhorn":
        return Sinkhorn(debiased=debiased)
    if name == "mmd":
        return MMD()
    if name == "energy":
        return EnergyScore()
    return MSE() if name == "mse" else MeanVar()


def find_device(name: Any) -> torch.device:
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


@contextmanager
def share_threads(n_numbers: int, n_jobs: Any) -> Iterator[None]:
    """Inside the block, small problems use one thread, because threads then mostly wait for each other.

    Afterwards torch and OpenMP have as many as before. With ``n_jobs`` trees share the cores instead.
    """
    if n_numbers > _WORTH_THREADS and n_jobs in (None, -1):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def check_jobs(n_jobs: Any) -> None:
    """Raise unless this is a number of jobs, or None.

    >>> check_jobs(-1)
    """
    number = isinstance(n_jobs, int | np.integer) and not isinstance(n_jobs, bool)
    if n_jobs is not None and not (number and n_jobs != 0):
        raise ValueError(f"n_jobs={n_jobs!r} must be None, a number of jobs, or -1 for one per core.")


def draw_seed(random_state: Any, fingerprint: str | None = None) -> int:
    """The seed that scikit-learn's ``random_state`` means; None takes it from a fingerprint, if given.

    An int means the ``RandomState`` that it seeds, as everywhere in scikit-learn.
    """
    if random_state is None and fingerprint is not None:
        return int(fingerprint[:15], 16)
    if random_state is None or isinstance(random_state, np.random.Generator):
        return seed_from(random_state)
    if not isinstance(random_state, np.random.RandomState):
        seed_from(random_state)  # raises, in our words, for what is no random state
    return seed_from(check_random_state(random_state))


def seed_fit(random_state: Any, fingerprint: str | None) -> int:
    """The seed of a fit: that of the first process if several make the fit together."""
    return int(Crew.join().broadcast(draw_seed(random_state, fingerprint)))


def hash_fit(settings: Mapping[str, Any], x: Array, y: Array, weights: Array | None = None) -> str:
    """A hash of data and settings: two fits that share it, and the seed, take the same path."""
    used = sorted((name, value) for name, value in settings.items() if name not in _NOT_HASHED)
    # A printed address (of a function, say) differs between processes.
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(used))
    digest = hashlib.sha256(printed.encode())
    for array in (x, y) if weights is None else (x, y, weights):
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return digest.hexdigest()


def keep_weighted(sample_weight: Any, n_rows: int, rows: str = "rows") -> tuple[Array | None, Array | None]:
    """The rows that have weight, None for all; and their weights with mean 1, None where all are equal.

    >>> keep_weighted([2, 0, 2], 3), keep_weighted([1, 3], 2)
    ((array([0, 2]), None), (None, array([0.5, 1.5])))
    """
    weights = check_sample_weight(sample_weight, n_rows, rows)
    kept = np.flatnonzero(weights)
    weights = weights[kept] / weights[kept].max()  # first: their sum must not overflow
    if weights.min() < SMALLEST_WEIGHT:
        raise ValueError(
            f"sample_weight has positive values from {weights.min():.2g} to 1 times the largest; give 0 for "
            f"those below {SMALLEST_WEIGHT:.0e} times the largest, which would drown in rounding."
        )
    equal = bool((weights == weights[0]).all())
    return None if len(kept) == n_rows else kept, None if equal else weights / weights.mean()


def weigh_rows(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Array | None, Array | None]:
    """The rows of X and y that have weight, and what ``keep_weighted`` says of them."""
    kept, weights = keep_weighted(sample_weight, _num_samples(X))
    if kept is not None and y is not None:  # without y the fit says so
        check_consistent_length(X, y)  # or rows that do not belong together would be fitted
        X, y = _safe_indexing(X, kept), _safe_indexing(y, kept)
    return X, y, kept, weights


def name_part(checkpoint: Any, part: str, number: int) -> str | None:
    """The checkpoint of one of the several fits that a fit consists of.

    >>> name_part("fit.ckpt", "choice", 2)
    'fit.ckpt.choice2'
    """
    return None if checkpoint is None else f"{checkpoint}.{part}{number}"


@contextmanager
def keep_checkpoints() -> Iterator[None]:
    """Inside the block a finished fit leaves its checkpoints; its end removes them, unless it raises."""
    left: list[Any] = []
    _LEFT.append(left)
    try:
        yield
    finally:
        _LEFT.remove(left)
    remove_checkpoints(*left)


def remove_checkpoints(*paths: Any) -> None:
    """Remove the files that a finished fit could have been resumed from."""
    if _LEFT:
        _LEFT[-1].extend(paths)
        return
    for path in paths:
        with suppress(OSError):  # a file that stays would only be found finished
            Path(path).unlink()


def check_files(checkpoint: Any, history: Any, random_state: Any) -> None:
    """Raise unless the files of a fit can be written, and a checkpoint would be found again."""
    for name, path in (("checkpoint", checkpoint), ("history", history)):
        if path is not None:
            check_writable(path, name)
    if checkpoint is not None and isinstance(random_state, np.random.RandomState | np.random.Generator):
        raise ValueError(
            f"random_state is a {type(random_state).__name__}, which moves on with every fit, so no fit "
            "would find the checkpoint of another. Give an int, or None."
        )


def check_norm_setting(norm: Any) -> None:
    """Raise unless norm is "auto" or a ``Norm``."""
    if not (isinstance(norm, Norm) or (isinstance(norm, str) and norm == "auto")):
        raise ValueError(f"norm={norm!r} is unknown; give 'auto' or a Norm, such as Euclidean().")


def check_delta(delta: Any) -> None:
    """Raise unless delta is "auto", a radius, ``Nearest(k)``, or a list of them."""
    if isinstance(delta, list | tuple):
        if len(delta) < 2:
            raise ValueError(f"delta={delta!r} leaves no choice; give two or more, or one without a list.")
        for one in delta:
            if isinstance(one, list | tuple):
                raise ValueError(f"delta={delta!r} has a list inside a list; give radii and Nearest(k).")
            check_delta(one)
    elif isinstance(delta, Nearest):
        check_count(delta.k, "k of Nearest", 2, why="a ball of one row shows no spread")
    elif isinstance(delta, str) and delta != "auto":
        raise ValueError(f"delta={delta!r} is unknown; give 'auto', a radius such as 0.1, or Nearest(50).")
    elif not isinstance(delta, str):
        check_radius(delta)


def check_levels(q: Any) -> Array:
    """Levels of quantiles, (Q,), from a number or a list of them."""
    levels = np.atleast_1d(as_array(q, "q")).astype(np.float64)
    if levels.ndim != 1 or not bool(((levels > 0) & (levels < 1)).all()):
        raise ValueError(f"q={q!r} must be levels strictly between 0 and 1, such as [0.05, 0.5, 0.95].")
    return levels
