"""``LocalW2Regressor`` with its defaults, and with one law alone.

Functions as in ``peers.py``, except that they get the table as people have it: a frame with its categories
and gaps.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from encoding import Array
from localw2 import LocalW2Regressor

Draw = Callable[[Any, int, int], Array]
Fit = Callable[[Any, Array], Draw]


def read(folder: Path) -> tuple[Any, Array, Any]:
    """Read training inputs and targets, and test inputs, from ``split.pickle`` in a folder."""
    found: tuple[Any, Array, Any] = pickle.loads((folder / "split.pickle").read_bytes())
    return found


def default(seed: int) -> Fit:
    """The estimator with its defaults."""
    return _make_estimator(seed)


def network(seed: int) -> Fit:
    """The network alone."""
    return _make_estimator(seed, law="network")


def balls(seed: int) -> Fit:
    """The law of the leaves alone."""
    return _make_estimator(seed, law="balls")


def _make_estimator(seed: int, **settings: Any) -> Fit:
    torch.set_num_threads(1)

    def fit(x: Any, y: Array) -> Draw:
        model = LocalW2Regressor(random_state=seed, n_jobs=1, **settings).fit(x, y)
        return lambda x, n_samples, seed: model.sample(x, n_samples, random_state=seed)

    return fit
