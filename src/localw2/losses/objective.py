"""A loss is a discrepancy times neighbourhoods: ``Objective``, ``local_w2`` and ``w2_squared``."""

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
from localw2.losses.w2 import ball_values

if TYPE_CHECKING:
    from localw2.balls.norms import Norm


@final
class Objective:
    r"""Observed outputs, neighbourhoods and a discrepancy, as one function of simulated outputs.

    ``objective(yhat)`` is the weighted mean over balls, :math:`\sum_b w_b v_b / \sum_b w_b`. ``y`` is (N,),
    (N, d), or (N, T, d) with T times, over which the loss is averaged. ``yhat`` has the shape of y, possibly
    with a leading axis of S draws. ``center`` (shape of y) is subtracted from both, and both are divided by
    ``scale`` (shape of y, positive): comparing residuals from a good mean keeps its slope from inflating the
    spread in a wide ball, and dividing by a rough estimate of the spread gives rows equal weight. For any
    fixed center and scale the truth remains a minimiser of the debiased loss. ``sample_weight`` (N,) are
    weights of the rows (see ``Neighborhoods.weigh``): whole numbers count as copies of y and yhat, and the
    truth remains a minimiser for any fixed weights too.

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
        sample_weight: Any = None,
    ) -> None:
        if isinstance(y, Tensor) and y.requires_grad:
            raise ValueError(
                "y requires a gradient, but an objective treats it as data; use y.detach() or w2_squared."
            )
        if not isinstance(hoods, Neighborhoods | LazyNeighborhoods):
            raise ValueError(
                f"hoods is {type(hoods).__name__}; pass for example Neighborhoods.within(x, delta)."
            )
        # A copy: if the caller changes the array later, the loss must not change in part.
        self.y = as_tensor(y, "y").detach().clone()
        self.discrepancy = SquaredW2() if discrepancy is None else discrepancy
        if not isinstance(self.discrepancy, Discrepancy):
            raise ValueError(
                f"discrepancy={discrepancy!r} is not a Discrepancy; pass SquaredW2(), MMD(), ..."
            )
        if self.y.ndim not in (1, 2, 3):
            raise ValueError(f"y has shape {tuple(self.y.shape)}; expected (N,), (N, d) or (N, T, d).")
        _check_rows(self.y, hoods)
        self.center = None if center is None else self._check_like_y(center, "center")
        self.scale = None if scale is None else self._check_like_y(scale, "scale")
        if self.scale is not None and not bool((self.scale > 0).all()):
            raise ValueError(
                f"scale has the value {float(self.scale.min())}; y is divided by it, so give values > 0."
            )
        hoods = hoods if sample_weight is None else hoods.weigh(sample_weight)
        if hoods.sample_weight is not None and not self.discrepancy.takes_weights:
            raise ValueError(
                f"{self.discrepancy} does not say that it takes weights of rows, so sample_weight could be "
                "ignored in part. Use hoods.shares() in it and set takes_weights = True."
            )
        self.hoods = hoods.at_least(self.discrepancy.min_size)
        if self.hoods is not hoods:
            kept, balls = self.hoods.n_unmerged, hoods.n_unmerged
            warnings.warn(
                f"{balls - kept} of {balls} balls hold one row, where {self.discrepancy} cannot see spread, "
                "and are left out. Use a larger delta or larger leaves; min_size=2 silences this warning.",
                stacklevel=2,
            )
        self._problems: dict[int, Problem] = {}  # by the number of stacked models
        if isinstance(self.hoods, Neighborhoods):
            target = self._standardise(self.y)
            weights = (self.hoods.weights / self.hoods.weights.sum()).to(target)
            self._problems[1] = self.discrepancy.bind(self._canonical(target[None])[0], self.hoods, weights)

    def __call__(self, yhat: Tensor) -> Tensor:
        """The loss of simulated outputs, a scalar that can be differentiated once."""
        if not self._problems:
            raise ValueError("lazy neighbourhoods never hold all balls; call objective.block(balls) first.")
        expected = tuple(self.y.shape)
        if not isinstance(yhat, Tensor) or tuple(yhat.shape) not in (expected, (*yhat.shape[:1], *expected)):
            what = f"a tensor {tuple(yhat.shape)}" if isinstance(yhat, Tensor) else type(yhat).__name__
            raise ValueError(f"yhat is {what}; expected a tensor of y's shape {expected}, or (S, *that).")
        _check_same_kind(self.y, yhat)
        draws = len(yhat) if yhat.ndim > self.y.ndim else 1
        if draws < self.discrepancy.min_draws:
            raise ValueError(
                f"{self.discrepancy} needs at least {self.discrepancy.min_draws} independent draws of yhat, "
                f"shape (S, *y.shape); got {draws}. A single draw does not show the model's own spread."
            )
        return evaluate(self, yhat)

    def solve(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (V,) and gradients for the outputs (V, ...) of V stacked models, for autograd and vmap."""
        # On a GPU this check would stall the stream; there a NaN shows up in the loss.
        if models.device.type == "cpu":
            check_finite(models, "yhat")
        if len(models) not in self._problems:
            self._problems[len(models)] = self._problems[1].repeat(len(models))
        stacked = self._canonical(self._standardise(models))
        values, grads = self._problems[len(models)].solve(stacked)
        if self.y.ndim < 3:
            grads = (grads if len(models) == 1 else grads.transpose(0, 1)).reshape(models.shape)
        else:
            times = self.y.shape[1]
            grads = grads.unflatten(1, (-1, times)).permute(1, 0, 3, 2, 4).reshape(models.shape) / times
            values = values.view(-1, times).mean(1)
        return values, grads if self.scale is None else grads / self.scale

    def block(self, balls: Any, weights: Any = None) -> tuple[Tensor, Objective]:
        """The rows that these balls need, and the objective on them alone.

        Balls are numbered as in ``objective.hoods``, which lacks those that are too small for the loss. They
        keep their weights unless ``weights`` are given.
        """
        rows, hoods = self.hoods.block(balls, weights)
        at = rows.to(self.y.device)
        center, scale = (None if v is None else v[at] for v in (self.center, self.scale))
        return rows, Objective(self.y[at], hoods, self.discrepancy, center, scale)

    def __repr__(self) -> str:
        options = "".join(f", {name}" for name in ("center", "scale") if getattr(self, name) is not None)
        return f"Objective(y {tuple(self.y.shape)}, {self.hoods!r}, {self.discrepancy}{options})"

    def _check_like_y(self, values: Any, name: str) -> Tensor:
        tensor = as_tensor(values, name).detach().to(self.y, copy=True)
        if tensor.shape != self.y.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and y has {tuple(self.y.shape)}; "
                f"give one {name} for each value of y."
            )
        return tensor

    def _standardise(self, values: Tensor) -> Tensor:
        if self.center is not None:
            values = values - self.center
        return values if self.scale is None else values / self.scale

    def _canonical(self, models: Tensor) -> Tensor:
        """Reshape the outputs of V models from (V[, S], N[, T][, d]) to (S, V * T, N, d)."""
        if self.y.ndim < 3:
            n, d = len(self.y), self.y.shape[1] if self.y.ndim == 2 else 1
            if len(models) == 1:  # each view costs microseconds, which matters for small problems
                return models.reshape(-1, 1, n, d)
            return models.reshape(len(models), -1, n, d).transpose(0, 1)
        return models.reshape(len(models), -1, *self.y.shape).permute(1, 0, 3, 2, 4).flatten(1, 2)


def local_w2(
    x: Any, y: Any, yhat: Any, delta: float, norm: Norm | None = None, sample_weight: Any = None
) -> Any:
    r"""The paper's loss in one call: the mean over rows i of the squared W2 in the ball around x_i.

    .. math:: \frac1N\sum_i W_2^2\bigl(\{y_j\}, \{\hat y_j\}\bigr), \quad j:\ |x_j - x_i|_x \le \delta

    ``x`` is (N,) or (N, p); ``y`` and ``yhat`` are (N,), (N, d) or (N, T, d). For arrays the result is a
    float; for tensors, a tensor that can be differentiated in both, with the wider of their dtypes. With
    ``sample_weight`` (N,) rows have weights, see ``Neighborhoods.weigh``. For repeated calls build one
    ``Objective``.

    >>> local_w2(x=[0.0, 0.1, 5.0], y=[1.0, 2.0, 7.0], yhat=[2.0, 1.0, 8.0], delta=0.5)
    0.333...
    >>> local_w2([0.0, 0.1, 5.0], [1.0, 2.0, 7.0], [2.0, 1.0, 8.0], 0.5, sample_weight=[1, 1, 2])
    0.5
    """
    as_tensors = isinstance(y, Tensor) or isinstance(yhat, Tensor)
    x, y, yhat = as_rows(x), as_tensor(y, "y"), as_tensor(yhat, "yhat")
    if len(y) != len(x):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}; they must match row by row.")
    dtype = torch.promote_types(y.dtype, yhat.dtype)
    y, yhat = y.to(yhat.device, dtype), yhat.to(dtype)
    hoods = Neighborhoods.within(x, delta, norm)
    hoods = hoods if sample_weight is None else hoods.weigh(sample_weight)
    if y.requires_grad:
        if y.ndim == 1:
            y, yhat = y[:, None], yhat[:, None]
        values = w2_squared(y, yhat, hoods).view(hoods.n_balls, -1).mean(1)
        return values @ (hoods.weights / hoods.weights.sum()).to(values)
    loss = Objective(y, hoods)(yhat)
    return loss if as_tensors else float(loss)


def w2_squared(y: Tensor, yhat: Tensor, hoods: Neighborhoods) -> Tensor:
    r"""Squared 2-Wasserstein distance inside each ball (paper, Eq. localw2).

    .. math:: \min_\sigma \tfrac1m \sum_s \|y_s - \hat y_{\sigma(s)}\|^2

    ``y`` and ``yhat`` are (N, d), or (N, T, d) with T times (or other batch entries) that are compared one
    by one; rows may have weights (``hoods.weigh``). The result has one value per ball, (n_balls,) or
    (n_balls, T), and can be differentiated once in both arguments. Under ``torch.func`` (vmap, grad) use an
    ``Objective``.

    >>> y = torch.tensor([[0.0], [1.0]])
    >>> w2_squared(y, y.flip(0) + 2, Neighborhoods.whole(2))
    tensor([4.])
    """
    for name, value in (("y", y), ("yhat", yhat)):
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name} is {type(value).__name__}; w2_squared takes tensors, local_w2 also takes arrays."
            )
    if not isinstance(hoods, Neighborhoods):
        raise ValueError(
            f"hoods is {type(hoods).__name__}; pass a block of it, or Neighborhoods.within(...)."
        )
    y, yhat = as_tensor(y, "y"), as_tensor(yhat, "yhat")
    if y.shape != yhat.shape or y.ndim not in (2, 3):
        raise ValueError(
            f"y has shape {tuple(y.shape)} and yhat {tuple(yhat.shape)}; both must be (N, d), or (N, T, d)."
        )
    _check_rows(y, hoods)
    _check_same_kind(y, yhat)
    if y.ndim == 2:
        return ball_values(y[None], yhat[None], hoods)[0]
    return ball_values(y.movedim(1, 0), yhat.movedim(1, 0), hoods).T


def _check_rows(y: Tensor, hoods: Neighborhoods | LazyNeighborhoods) -> None:
    """Raise unless the outputs and the graph have the same rows."""
    if len(y) != hoods.n_rows:
        raise ValueError(
            f"y has {len(y)} rows and the neighbourhoods have {hoods.n_rows}; they must be the same rows."
        )


def _check_same_kind(y: Tensor, yhat: Tensor) -> None:
    """Raise unless both tensors have the same dtype and device."""
    if y.dtype != yhat.dtype or y.device != yhat.device:
        raise ValueError(
            f"y is {y.dtype} on {y.device}, yhat is {yhat.dtype} on {yhat.device}; convert one, "
            "such as torch.as_tensor(y, dtype=torch.float32)."
        )
