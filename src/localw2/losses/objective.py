"""A loss is a discrepancy times neighbourhoods: ``Objective``, and the paper's loss as ``local_w2``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from localw2._validation import as_rows, as_tensor, check_finite
from localw2.balls.lazy import LazyNeighborhoods
from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.discrepancies import Discrepancy, SquaredW2
from localw2.losses.problem import Problem, evaluate
from localw2.losses.w2 import check_rows, check_same_kind, w2_squared

if TYPE_CHECKING:
    from localw2.balls.norms import Norm


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
