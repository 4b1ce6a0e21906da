"""How far simulated outputs are from observed ones: every discrepancy of the paper, and ours."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import check_count, check_flag, check_number
from localw2.losses.mmd import WeightedMMD
from localw2.losses.moments import WeightedMeanVar, WeightedMSE
from localw2.losses.pairwise import WeightedEnergy
from localw2.losses.problem import Problem
from localw2.losses.sinkhorn import WeightedSinkhorn
from localw2.losses.w2 import WeightedSlicedW2, WeightedW2

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods


class Discrepancy(ABC):
    """How far the simulated outputs of a ball are from the observed ones.

    A subclass defines ``bind`` and must pass the contract in ``tests/test_contracts.py``.
    """

    debiased: bool = False
    takes_weights = False  # whether its problem heeds the weights of rows, ``hoods.sample_weight``

    @property
    def min_draws(self) -> int:
        """The number of independent draws of yhat that are needed: debiasing compares two with each other."""
        return 2 if self.debiased else 1

    @property
    def min_size(self) -> int:
        """The number of rows that a ball needs: debiasing needs two, since one row cannot identify spread."""
        return 2 if self.debiased else 1

    @abstractmethod
    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """The sum over balls of weight times discrepancy, for observed outputs y (B, N, d)."""


@final
@dataclass(frozen=True)
class SquaredW2(Discrepancy):
    r"""Squared 2-Wasserstein distance, as published (paper, Eq. localw2) or debiased.

    .. math:: \frac1S\sum_s W_2^2(y, \hat y^s) \;-\; \frac{1}{S(S-1)}\sum_{r<s} W_2^2(\hat y^r, \hat y^s)

    The second term is included if ``debiased``; it needs S >= 2 draws. Without it, balls of n rows shrink the
    spread (by a third for n = 5). With it and d = 1, the expected loss is, up to a constant, the squared
    distance between expected order statistics, so that the truth is a minimiser at every ball size n >= 2.
    The value is then an unbiased estimate and can be negative. For d > 1 and few rows per ball the truth is
    **not** a minimiser in general: use ``SlicedW2(debiased=True)`` or ``EnergyScore`` there.
    """

    takes_weights = True

    debiased: bool = False

    def __post_init__(self) -> None:
        check_flag(self.debiased, "debiased")

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Match by sorting (d = 1) or by assignment."""
        return WeightedW2(y, hoods, weights, self.debiased)


@final
@dataclass(frozen=True)
class SlicedW2(Discrepancy):
    r"""Mean over directions :math:`\theta` of the squared W2 of the projections :math:`\theta\cdot y`.

    Every projection is one-dimensional, so the debiased form keeps the truth as a minimiser for any number
    of outputs and any ball size, in linear time. The directions are fixed by ``random_state``: evenly
    spaced on the half circle for two outputs, random orthonormal frames for more.
    """

    takes_weights = True

    n_directions: int = 32
    debiased: bool = False
    random_state: int = 0

    def __post_init__(self) -> None:
        check_count(self.n_directions, "n_directions", 1)
        check_count(self.random_state, "random_state", 0)
        check_flag(self.debiased, "debiased")

    def directions(self, d: int) -> Tensor:
        """Unit vectors, (d, n_directions); a single 1 for d = 1.

        >>> SlicedW2(4).directions(2).square().sum(0)
        tensor([1., 1., 1., 1.], dtype=torch.float64)
        """
        if d == 1:
            return torch.ones((1, 1), dtype=torch.float64)
        rng = np.random.default_rng(self.random_state)
        if d == 2:
            angles = (np.arange(self.n_directions) + rng.uniform()) * (math.pi / self.n_directions)
            return torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)]))
        frames = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(-(-self.n_directions // d))]
        return torch.from_numpy(np.concatenate(frames, axis=1)[:, : self.n_directions].copy())

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Match every projection by sorting."""
        return WeightedSlicedW2(y, hoods, weights, self.directions(y.shape[2]).to(y), self.debiased)


@final
@dataclass(frozen=True)
class MMD(Discrepancy):
    r"""Maximum mean discrepancy with a sum of Gaussian kernels (paper, supplement "Definitions").

    :math:`\sum_k \exp(-\|u - v\|^2 / (h\,m^{k}))` for n = ``n_kernels`` values of k from -n//2 on, with
    multiplier m. The bandwidth h is the mean squared distance in the ball's pooled sample; the gradient
    treats it as a constant.
    All pairs of a ball count. The cost grows with the square of its size, except for one output on a CPU:
    there large balls are summed by frequencies, at a cost that grows with the size (``spectral``).
    """

    takes_weights = True

    n_kernels: int = 5
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        check_count(self.n_kernels, "n_kernels", 1)
        words = "a positive number: it scales the bandwidths"
        check_number(self.multiplier, "multiplier", lambda m: 0 < m < math.inf, words)

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare all pairs."""
        return WeightedMMD(y, hoods, weights, self.n_kernels, self.multiplier)


@final
@dataclass(frozen=True)
class MSE(Discrepancy):
    r"""Mean over the ball of :math:`\|y_j - \hat y_j\|^2`, row by row (paper, supplement)."""

    takes_weights = True

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare row by row."""
        return WeightedMSE(y, hoods, weights)


@final
@dataclass(frozen=True)
class MeanVar(Discrepancy):
    r"""MSE plus :math:`|\mathrm{Var}(y) - \mathrm{Var}(\hat y)|` in the ball (paper: "mean2+var").

    Var is the mean squared distance from the mean. The published formula of Var lacks the factor 1/N:
    ``summed=True`` leaves it out there, so that the weight of the variances grows with the ball. (In the
    published sum of squares a second sum over rows, if it is meant, cancels 1/N as well.)
    """

    takes_weights = True

    summed: bool = False

    def __post_init__(self) -> None:
        check_flag(self.summed, "summed")

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare rows and variances."""
        return WeightedMeanVar(y, hoods, weights, self.summed)


@final
@dataclass(frozen=True)
class EnergyScore(Discrepancy):
    r"""Energy score of the ball: :math:`E\|y-\hat y\| - \tfrac12 E\|\hat y-\hat y'\|` from S >= 2 draws.

    It is strictly proper for any number of outputs. On ``Neighborhoods.singletons`` it is the usual row-wise
    score (the CRPS for one output); on larger balls it compares the mixtures over the ball's rows.
    """

    takes_weights = True

    min_draws = 2  # they show the model's own spread

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare all pairs."""
        return WeightedEnergy(y, hoods, weights)


@final
@dataclass(frozen=True)
class Sinkhorn(Discrepancy):
    r"""Sinkhorn divergence: squared W2 with transport smoothed by entropy, less what smoothing adds.

    .. math:: T_\varepsilon(y, \hat y) - \tfrac12 T_\varepsilon(y, y) - \tfrac12 T_\varepsilon(\hat y, \hat y)

    :math:`T_\varepsilon` is the least cost :math:`|y_i - \hat y_j|^2` of a plan plus :math:`\varepsilon`
    times its entropy relative to independence. The divergence is 0 only for equal samples; it tends to the
    squared W2 for small ``epsilon``, and to the squared distance of the means for a large one. ``epsilon`` is
    in units of the mean squared distance between the observed rows of a ball, and at most 1e6: beyond it the
    divergence is the difference of numbers that are equal up to rounding.

    With ``debiased``, half the divergence between the model's own draws is subtracted, as in ``SquaredW2``.
    The iterations stop when the margins of all plans are right within ``tolerance``; the value's error is of
    the order of its square. They are in single precision if y is, or if the tolerance is 1e-3 or more, and in
    double precision otherwise; also where numbers are too far apart for single precision. The gradient is
    summed in single precision, with an error of 1e-7 to 1e-4, unless the tolerance is below 1e-6.
    """

    takes_weights = True

    epsilon: float = 0.1
    debiased: bool = False
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        check_flag(self.debiased, "debiased")
        words = "a positive number up to 1e6: the smoothing, in units of the ball's mean squared distance"
        check_number(self.epsilon, "epsilon", lambda e: 0 < e <= 1e6, words)
        words = "a number between 0 and 1: how far the margins of a plan may be off"
        check_number(self.tolerance, "tolerance", lambda t: 0 < t < 1, words)

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Smooth the plans of all balls at once."""
        return WeightedSinkhorn(y, hoods, weights, self.epsilon, self.debiased, self.tolerance)


@final
@dataclass(frozen=True)
class Whitened(Discrepancy):
    r"""Another discrepancy of outputs that are multiplied by a ``matrix`` (d, d), a tuple of rows.

    Any fixed linear map that observed and simulated outputs share keeps the truth optimal. With the inverse
    root of their covariance a discrepancy also sees what hardly varies: that a speed is the slope of a
    position, say, which makes up a hundredth of the squared distance otherwise.

    >>> from localw2 import Neighborhoods, Objective
    >>> y, hoods = torch.zeros(2, 2), Neighborhoods.whole(2)
    >>> Objective(y, hoods, Whitened(SquaredW2(), ((1.0, 0.0), (0.0, 10.0))))(y + 1)
    tensor(101.)
    """

    discrepancy: Discrepancy
    matrix: tuple[tuple[float, ...], ...]

    @property
    def debiased(self) -> bool:  # type: ignore[override]  # a field of some discrepancies
        """That of the discrepancy."""
        return self.discrepancy.debiased

    @property
    def takes_weights(self) -> bool:  # type: ignore[override]
        """That of the discrepancy."""
        return self.discrepancy.takes_weights

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Bind the discrepancy to the product."""
        matrix = torch.tensor(self.matrix).to(y)
        return WhitenedProblem(y, hoods, weights, matrix, self.discrepancy.bind(y @ matrix, hoods, weights))


@final
@dataclass(frozen=True)
class WhitenedProblem(Problem):
    """What ``Whitened`` binds."""

    matrix: Tensor
    inner: Problem

    def solve(self, yhat: Tensor) -> tuple[Tensor, Tensor]:
        """Values, and gradients in the outputs before the product."""
        values, grad = self.inner.solve(yhat @ self.matrix)
        return values, grad @ self.matrix.T

    def repeat(self, times: int) -> Problem:
        """For so many stacked models."""
        return replace(self, y=self.y.repeat(times, 1, 1), inner=self.inner.repeat(times))
