"""A loss is a discrepancy times neighbourhoods: every local and global loss of the paper, and ours."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import as_rows, as_tensor, check_count, check_finite, check_flag
from localw2.forward_gradient import Problem, evaluate
from localw2.lazy_neighborhoods import LazyNeighborhoods
from localw2.moments import WeightedMeanVar, WeightedMSE
from localw2.neighborhoods import Neighborhoods
from localw2.norms import Norm
from localw2.pairwise import WeightedEnergy, WeightedMMD
from localw2.transport import WeightedSlicedW2, WeightedW2, check_rows, check_same_kind, w2_squared


class Discrepancy(ABC):
    """How far the simulated outputs of a ball are from the observed ones.

    A subclass gives ``bind``; it must pass the contract in ``tests/test_contracts.py``.
    """

    @property
    def min_draws(self) -> int:
        """How many independent draws of yhat it needs."""
        return 1

    @property
    def min_size(self) -> int:
        """How many rows a ball needs to say anything."""
        return 1

    @abstractmethod
    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """The sum over balls of weight times discrepancy, for observed outputs y (B, N, d)."""


@final
@dataclass(frozen=True)
class SquaredW2(Discrepancy):
    r"""Squared 2-Wasserstein distance, as printed (paper, Eq. localw2) or debiased.

    .. math:: \frac1S\sum_s W_2^2(y, \hat y^s) \;-\; \frac{1}{S(S-1)}\sum_{r<s} W_2^2(\hat y^r, \hat y^s)

    The second term is there when ``debiased``; it needs S >= 2 draws. Without it a ball of n rows shrinks
    the spread (n = 5: by a third). With it, for d = 1, the expected loss is the squared distance between
    expected order statistics, up to a constant, so that the truth is a minimiser at every ball size n >= 2.
    The value is then an unbiased estimate and can be negative. For d > 1 and few rows a ball the truth is
    **not** a minimiser in general: use ``SlicedW2(debiased=True)`` or ``EnergyScore`` there.
    """

    debiased: bool = False

    def __post_init__(self) -> None:
        check_flag(self.debiased, "debiased")

    @property
    def min_draws(self) -> int:
        """Two independent draws are needed to see the model's own spread."""
        return 2 if self.debiased else 1

    @property
    def min_size(self) -> int:
        """A ball of one row cannot identify spread."""
        return 2 if self.debiased else 1

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Match by sorting (d = 1) or by assignment."""
        return WeightedW2(y, hoods, weights, self.debiased)


@final
@dataclass(frozen=True)
class SlicedW2(Discrepancy):
    r"""Mean over directions :math:`\theta` of the squared W2 of the projections :math:`\theta\cdot y`.

    Every projection is one-dimensional, so the debiased form keeps the truth as a minimiser for any number
    of outputs and any ball size, in linear time. Directions are fixed by ``random_state``: evenly
    spaced on the half circle for two outputs, random orthonormal frames beyond.
    """

    n_directions: int = 32
    debiased: bool = False
    random_state: int = 0

    def __post_init__(self) -> None:
        check_count(self.n_directions, "n_directions", 1)
        check_count(self.random_state, "random_state", 0)
        check_flag(self.debiased, "debiased")

    @property
    def min_draws(self) -> int:
        """As for ``SquaredW2``."""
        return 2 if self.debiased else 1

    @property
    def min_size(self) -> int:
        """As for ``SquaredW2``."""
        return 2 if self.debiased else 1

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

    :math:`\sum_k \exp(-\|u - v\|^2 / (h\,m^{k}))`, k from -n//2 on for n = ``n_kernels``, multiplier m.
    The base h is the mean squared distance over the ball's pooled sample, held constant in the gradient.
    All pairs of a ball are used: the cost grows with the square of its size.
    """

    n_kernels: int = 5
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        check_count(self.n_kernels, "n_kernels", 1)
        multiplier: Any = self.multiplier
        if not isinstance(multiplier, Real) or not 0 < float(multiplier) < math.inf:
            raise ValueError(f"multiplier={self.multiplier} must be a positive number: it scales bandwidths.")

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare all pairs."""
        return WeightedMMD(y, hoods, weights, self.n_kernels, self.multiplier)


@final
@dataclass(frozen=True)
class MSE(Discrepancy):
    r"""Mean over the ball of :math:`\|y_j - \hat y_j\|^2`, each row with its own (paper, supplement)."""

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare row by row."""
        return WeightedMSE(y, hoods, weights)


@final
@dataclass(frozen=True)
class MeanVar(Discrepancy):
    r"""MSE plus :math:`|\mathrm{Var}(y) - \mathrm{Var}(\hat y)|` in the ball (paper: "mean2+var").

    Var is the mean squared distance from the mean. The printed formula lacks its 1/N: ``summed=True``
    follows the print, where the sum grows with the ball.
    """

    summed: bool = False

    def __post_init__(self) -> None:
        check_flag(self.summed, "summed")

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare row by row, and variances."""
        return WeightedMeanVar(y, hoods, weights, self.summed)


@final
@dataclass(frozen=True)
class EnergyScore(Discrepancy):
    r"""Energy score of the ball: :math:`E\|y-\hat y\| - \tfrac12 E\|\hat y-\hat y'\|` from S >= 2 draws.

    Strictly proper for any number of outputs. On ``Neighborhoods.singletons`` it is the usual row-wise
    score (CRPS for one output); on larger balls it compares the mixtures of the ball's rows.
    """

    @property
    def min_draws(self) -> int:
        """The spread of the model shows between two draws."""
        return 2

    def bind(self, y: Tensor, hoods: Neighborhoods, weights: Tensor) -> Problem:
        """Compare all pairs."""
        return WeightedEnergy(y, hoods, weights)


@final
class Objective:
    r"""Observed outputs, neighbourhoods and a discrepancy, as one function of simulated outputs.

    ``objective(yhat)`` is the weighted mean over balls, :math:`\sum_b w_b v_b / \sum_b w_b`. ``y`` is (N,),
    (N, d), or (N, T, d) with T times, over which the loss is averaged. ``yhat`` has the shape of y, or that
    with a leading axis of S draws. ``center`` (shape of y) is subtracted from both, and both are divided by
    ``scale`` (shape of y, positive): comparing residuals from a good mean keeps its slope out of the spread
    of a wide ball, and dividing by a rough spread weighs rows alike. For any fixed center and scale the truth
    stays a minimiser of the debiased loss.

    >>> x, y = torch.linspace(0, 1, 5), torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    >>> objective = Objective(y, Neighborhoods.within(x, 0.3))
    >>> objective(y + 3)
    tensor(9.)
    >>> rows, part = objective.block([0, 1])
    >>> part(y[rows] + 3)
    tensor(9.)
    """

    def __init__(
        self,
        y: Any,
        hoods: Neighborhoods | LazyNeighborhoods,
        discrepancy: Discrepancy | None = None,
        center: Any = None,
        scale: Any = None,
    ) -> None:
        if isinstance(y, Tensor) and y.requires_grad:
            raise ValueError(
                "y requires a gradient, but an objective takes it as data: y.detach(), or w2_squared."
            )
        if not isinstance(hoods, Neighborhoods | LazyNeighborhoods):
            raise ValueError(f"hoods is {type(hoods).__name__}; give Neighborhoods.within(x, delta), say.")
        # A copy: changing the caller's array later must not change the loss by half.
        self.y = as_tensor(y, "y").detach().clone()
        self.discrepancy = SquaredW2() if discrepancy is None else discrepancy
        if not isinstance(self.discrepancy, Discrepancy):
            raise ValueError(f"discrepancy={discrepancy!r} is not one; give SquaredW2(), MMD(), ...")
        if self.y.ndim not in (1, 2, 3):
            raise ValueError(f"y has shape {tuple(self.y.shape)}; expected (N,), (N, d) or (N, T, d).")
        check_rows(self.y, hoods)
        self.center = None if center is None else self._like_y(center, "center")
        self.scale = None if scale is None else self._like_y(scale, "scale")
        if self.scale is not None and not bool((self.scale > 0).all()):
            raise ValueError(
                f"scale has the value {float(self.scale.min())}; y is divided by it: give values > 0."
            )
        self.hoods = hoods.at_least(self.discrepancy.min_size)
        if self.hoods is not hoods:
            self._tell_of_singletons(float(hoods.weights.sum()))
        self._problems: dict[int, Problem] = {}
        if isinstance(self.hoods, Neighborhoods):
            self._problems[1] = self._bind(self.hoods)

    def __call__(self, yhat: Tensor) -> Tensor:
        """The loss of simulated outputs, a scalar that can be differentiated once."""
        if not self._problems:
            raise ValueError("lazy neighbourhoods never hold all balls: take objective.block(balls) first.")
        self._check(yhat)
        return evaluate(self, yhat)

    def solve(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (V,) and gradients of V stacked models' outputs (V, ...): what autograd and vmap call."""
        # On a GPU the look would stall the stream; a NaN shows in the loss there.
        if models.device.type == "cpu":
            check_finite(models, "yhat")
        stacked = self._canonical(self._standardised(models))
        values, grads = self._problem_for(len(models)).solve(stacked)
        if len(models) == 1 and self.y.ndim < 3:
            grads = grads.view(models.shape)
        elif self.y.ndim < 3:
            grads = grads.transpose(0, 1).reshape(models.shape)
        else:
            times = self.y.shape[1]
            grads = grads.unflatten(1, (-1, times)).permute(1, 0, 3, 2, 4).reshape(models.shape) / times
            values = values.view(-1, times).mean(1)
        return values, grads if self.scale is None else grads / self.scale

    def block(self, balls: Any, weights: Any = None) -> tuple[Tensor, Objective]:
        """The rows that these balls need, and the objective on them alone.

        Balls are numbered as in ``objective.hoods``, from which those too small for the loss are gone. They
        keep their weights, or have those given.
        """
        rows, hoods = self.hoods.block(balls, weights)
        at = rows.to(self.y.device)
        center, scale = (None if v is None else v[at] for v in (self.center, self.scale))
        return rows, Objective(self.y[at], hoods, self.discrepancy, center, scale)

    def __repr__(self) -> str:
        options = "".join(f", {name}" for name in ("center", "scale") if getattr(self, name) is not None)
        return f"Objective(y {tuple(self.y.shape)}, {self.hoods!r}, {self.discrepancy}{options})"

    def _bind(self, hoods: Neighborhoods) -> Problem:
        target = self._standardised(self.y)
        weights = (hoods.weights / hoods.weights.sum()).to(target)
        return self.discrepancy.bind(self._canonical(target[None])[0], hoods, weights)

    def _like_y(self, values: Any, name: str) -> Tensor:
        tensor = as_tensor(values, name).detach().to(self.y, copy=True)
        if tensor.shape != self.y.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and y {tuple(self.y.shape)}; "
                "it has one value for each y, so they must agree."
            )
        return tensor

    def _standardised(self, values: Tensor) -> Tensor:
        if self.center is not None:
            values = values - self.center
        return values if self.scale is None else values / self.scale

    def _canonical(self, models: Tensor) -> Tensor:
        """V models' outputs, (V[, S], N[, T][, d]), to (S, V * T, N, d)."""
        n, d = len(self.y), self.y.shape[-1] if self.y.ndim > 1 else 1
        if self.y.ndim < 3:
            if len(models) == 1:  # each view costs microseconds, which small problems feel
                return models.reshape(-1, 1, n, d)
            return models.reshape(len(models), -1, n, d).transpose(0, 1)
        return models.reshape(len(models), -1, *self.y.shape).permute(1, 0, 3, 2, 4).flatten(1, 2)

    def _problem_for(self, models: int) -> Problem:
        if models not in self._problems:
            self._problems[models] = self._problems[1].repeated(models)
        return self._problems[models]

    def _check(self, yhat: Tensor) -> None:
        expected = tuple(self.y.shape)
        if not isinstance(yhat, Tensor) or tuple(yhat.shape) not in (expected, (*yhat.shape[:1], *expected)):
            what = f"a tensor {tuple(yhat.shape)}" if isinstance(yhat, Tensor) else type(yhat).__name__
            raise ValueError(f"yhat is {what}; expected a tensor of y's shape {expected}, or (S, *that).")
        check_same_kind(self.y, yhat)
        draws = len(yhat) if yhat.ndim > self.y.ndim else 1
        if draws < self.discrepancy.min_draws:
            raise ValueError(
                f"{self.discrepancy} needs at least {self.discrepancy.min_draws} independent draws of yhat, "
                f"shape (S, *y.shape); got {draws}. One draw does not show the model's own spread."
            )

    def _tell_of_singletons(self, balls: float) -> None:
        dropped = balls - float(self.hoods.weights.sum())
        warnings.warn(
            f"{dropped:.0f} of {balls:.0f} balls hold one row, where {self.discrepancy} cannot see spread; "
            "they are left out. A larger delta or min_size=2 avoids this message.",
            stacklevel=3,
        )


def local_w2(x: Any, y: Any, yhat: Any, delta: float, norm: Norm | None = None) -> Any:
    r"""The paper's loss in one call: the mean over rows i of the squared W2 in the ball around x_i.

    .. math:: \frac1N\sum_i W_2^2\bigl(\{y_j\}, \{\hat y_j\}\bigr), \quad j:\ |x_j - x_i|_x \le \delta

    ``x`` is (N,) or (N, p); ``y`` and ``yhat`` are (N,), (N, d) or (N, T, d). Arrays give a float,
    tensors a tensor that can be differentiated in both, in the wider of their types. For repeated calls
    build an ``Objective`` once.

    >>> local_w2(x=[0.0, 0.1, 5.0], y=[1.0, 2.0, 7.0], yhat=[2.0, 1.0, 8.0], delta=0.5)
    0.333...
    """
    as_tensors = isinstance(y, Tensor) or isinstance(yhat, Tensor)
    x, y, yhat = as_rows(x), as_tensor(y, "y"), as_tensor(yhat, "yhat")
    if len(y) != len(x):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}; they must be pairs.")
    dtype = torch.promote_types(y.dtype, yhat.dtype)
    y, yhat = y.to(yhat.device, dtype), yhat.to(dtype)
    hoods = Neighborhoods.within(x, delta, norm)
    if y.requires_grad:
        if y.ndim == 1:
            y, yhat = y[:, None], yhat[:, None]
        values = w2_squared(y, yhat, hoods).view(hoods.n_balls, -1).mean(1)
        return values @ (hoods.weights / hoods.weights.sum()).to(values)
    loss = Objective(y, hoods)(yhat)
    return loss if as_tensors else float(loss)
