"""Problems with known answers, and the slow, independent solvers that know them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import ot
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from localw2 import Neighborhoods

# The first call of a solver loads it, which a deadline would take for slowness.
settings.register_profile("localw2", deadline=None, derandomize=True)
settings.load_profile("localw2")


@dataclass(frozen=True)
class Problem:
    x: np.ndarray
    y: Tensor
    yhat: Tensor
    hoods: Neighborhoods


ONE_TO_THREE = st.integers(1, 3)


@st.composite
def problems(draw, d=ONE_TO_THREE, dtype=torch.float64, times=None, max_rows=25):
    """Rows with ties, duplicates, singletons and unequal balls, in any of the kinds of graph."""
    n = draw(st.integers(1, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim = draw(d)
    shape = (n, dim) if times is None else (n, draw(times), dim)
    x = rng.uniform(size=(n, draw(st.integers(1, 2))))
    y, yhat = rng.normal(size=shape), rng.normal(size=shape)
    if draw(st.booleans()):  # a coarse grid: duplicate x, tied outputs
        x, y, yhat = x.round(1), y.round(0), yhat.round(0)
    if draw(st.booleans()):  # far from the origin
        y, yhat = y * 100 + 1000, yhat * 100 + 1000
    kind = draw(st.sampled_from(["within", "nearest", "whole", "thinned", "leaves"]))
    delta = draw(st.sampled_from([0.0, 0.05, 0.2, 0.6, 2.0]))
    hoods = {
        "within": lambda: quiet_within(x, delta),
        "nearest": lambda: (
            Neighborhoods.nearest(x, max(1, n // 3), min_size=1) if n > 5 else Neighborhoods.whole(n)
        ),
        "whole": lambda: Neighborhoods.whole(n),
        "thinned": lambda: quiet_within(x, delta, max_size=4, random_state=0),
        "leaves": lambda: quiet_leaves(rng.integers(0, 1 + n // 3, (n, 3))),
    }[kind]()
    return Problem(x, torch.tensor(y, dtype=dtype), torch.tensor(yhat, dtype=dtype), hoods)


def quiet_within(x, delta, *norm, **options) -> Neighborhoods:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Neighborhoods.within(x, delta, *norm, **options)


def quiet_leaves(numbers, **options) -> Neighborhoods:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Neighborhoods.leaves(numbers, numbers, **options)


def pot_w2_squared(y: Tensor, yhat: Tensor) -> float:
    """Squared W2 of two equally large samples (m, d) by POT's network simplex, in float64."""
    a, b = (v.detach().double().numpy() for v in (y, yhat))
    m = len(a)
    cost = ((a[:, None] - b[None]) ** 2).sum(-1)
    return float(ot.emd2(np.full(m, 1 / m), np.full(m, 1 / m), cost))


def pot_per_ball(y: Tensor, yhat: Tensor, hoods: Neighborhoods) -> np.ndarray:
    return np.array([pot_w2_squared(y[hoods.ball(b)], yhat[hoods.ball(b)]) for b in range(hoods.n_balls)])


def weighted_mean(values, hoods: Neighborhoods) -> float:
    return float(np.average(np.asarray(values), weights=hoods.weights.numpy()))
