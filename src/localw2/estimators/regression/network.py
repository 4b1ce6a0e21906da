"""A member of a law: the mean plus a network with random weights, trained by the local loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, average, check_count, check_flag
from localw2.balls.norms import Norm
from localw2.estimators.regression.balls import ChosenBalls, RowPlan, choose_balls, plan_rows
from localw2.estimators.regression.choice import choose_by_training
from localw2.estimators.regression.loss import ResidualLoss
from localw2.estimators.regression.mean import measure_relevance
from localw2.estimators.regression.member import PREDICTION_DRAWS, Member, row_blocks
from localw2.estimators.regression.outcomes import MATCHED_DRAWS, Rounding, rows_to_match
from localw2.estimators.settings import choose_discrepancy
from localw2.metrics import energy_score
from localw2.models.network import RandomLayer, RandomMLP
from localw2.models.noise_network import NoiseMLP
from localw2.training.config import FitConfig
from localw2.training.loop import train

if TYPE_CHECKING:
    from localw2.estimators.regression.mean import CrossFit, FoldedMean
    from localw2.estimators.regression.outcomes import Outcomes
    from localw2.models.base import RandomMap
    from localw2.training.config import Fit

_LOOKS, _LOOKED_DRAWS = 10, 50  # at held-out rows during training, and draws at each of them
FARTHEST = 1e100  # from 0, in the network's units: squares are still numbers
_AT_A_TIME = 1 << 11  # draws times rows, so that a layer's values stay in the cache
_SINGLE_AT_A_TIME = 1 << 13  # the same in single precision, where a call does less
_MANY_ROWS, _MANY_DRAWS = 100, 1 << 17  # from here on draws are made in single precision,
_FAR = 1e12  # unless an input is so large that squares of what comes of it might not fit


@final
@dataclass(frozen=True)
class Network:
    """A law by the paper's method: a network with random weights, trained by the local loss on residuals.

    ``Network.with_noise()`` has fixed weights and random inputs instead, so that it can have separate modes.

    Parameters
    ----------
    discrepancy : {"w2", "sliced", "sinkhorn", "mmd", "energy", "mse", "meanvar"} or Discrepancy
        "w2" is the squared W2 for one output. For several outputs it is the sliced W2 if debiased, because
        the debiased W2 is not minimised by the truth on few rows, and the exact assignment if not. "mse" and
        "meanvar" are the paper's comparisons: they do not identify the spread.
    debiased : bool
        Remove the shrinkage of the spread by finite balls ("w2" and "sliced" only). With a base it also
        divides residuals by their local spread, so that rows have equal weight, and holds the mean of the
        network near 0 where the residuals show no mean in the balls (see ``anchor_strength``).
    width, depth, residual, activation
        The network, see ``RandomMLP``.
    n_draws : int
        Draws of the network at every row in a training step.
    standardize : bool
        Train on standardised inputs and on residuals of unit spread, several outputs decorrelated.
    epochs, learning_rate, weight_decay, schedule, batch_balls
        Training, see ``FitConfig``; ``batch_balls=None`` takes all balls in a step up to 2000 rows,
        and beyond that so many that the time of a fit grows slower than the rows.
    n_noise : int or None
        None for random weights; else so many random numbers join x and each hidden layer of a network with
        fixed weights (``NoiseMLP``). It is trained on a few balls a step, and its mean is left free.

    >>> Network(width=20, epochs=100)
    Network(discrepancy='w2', debiased=True, width=20, depth=2, ..., epochs=100, ...)
    """

    discrepancy: Any = "w2"
    debiased: bool = True
    width: int = 50
    depth: int = 2
    residual: bool = True
    activation: str = "relu"
    n_draws: int = 4
    standardize: bool = True
    epochs: int = 400
    learning_rate: float = 0.02
    weight_decay: float = 0.005
    schedule: str = "cosine"
    batch_balls: int | None = None
    n_noise: int | None = None

    def __post_init__(self) -> None:
        for name in ("debiased", "residual", "standardize"):
            check_flag(getattr(self, name), name)
        choose_discrepancy(self.discrepancy, self.debiased, 1)
        check_count(self.epochs, "epochs", 1)
        self.config()  # checks the other settings of training
        sizes = ("width", "depth") if self.n_noise is None else ("width", "depth", "n_noise")
        for name in sizes:  # not by a network of this size: a file may ask for any
            check_count(getattr(self, name), name, 1)
        self.build(1, 1, torch.Generator(), **dict.fromkeys(sizes, 1))

    @classmethod
    def with_noise(cls, n_noise: int = 4, **settings: Any) -> Network:
        """A network that takes noise as input, with the training that suits it.

        Its learning rate has to rise slowly: at full rate from the start, both modes of a law stay merged.

        >>> Network.with_noise(epochs=100).schedule
        'one-cycle'
        """
        training = {"n_draws": 2, "epochs": 300, "learning_rate": 0.01, "schedule": "one-cycle"}
        suitable: dict[str, Any] = {"width": 64, "n_noise": n_noise, **training}
        return cls(**(suitable | settings))

    @property
    def name(self) -> str:
        """What ``weights_`` calls it."""
        return "network" if self.n_noise is None else "network of noise"

    def build(self, p: int, d: int, generator: torch.Generator, **sizes: int) -> RandomMLP | NoiseMLP:
        """The network of p inputs and d outputs, untrained."""
        settings: dict[str, Any] = {
            "width": self.width,
            "depth": self.depth,
            "residual": self.residual,
            "activation": self.activation,
            "generator": generator,
        }
        if self.n_noise is None:
            return RandomMLP(p, d, **(settings | sizes))
        return NoiseMLP(p, d, **(settings | {"n_noise": self.n_noise} | sizes))

    def config(self, **settings: Any) -> FitConfig:
        """The settings of training, with those given on top."""
        return FitConfig(
            max_epochs=self.epochs,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            n_draws=self.n_draws,
            batch_balls=self.batch_balls,
            **settings,
        )

    def learn(
        self,
        x: Array,
        y: Array,
        fitted: CrossFit,
        outcomes: Outcomes,
        delta: Any,
        norm: Any,
        device: torch.device,
        config: FitConfig,
        held: tuple[Array, Array, Array | None] | None = None,
    ) -> TrainedNetwork:
        """Train on the residuals of rows x (N, p), y (N, d) from a cross-fitted mean.

        With ``held`` rows, outputs and weights training stops when their score has not become better for half
        of it; not if the learning rate rises first, when scores in between say nothing.
        """
        scale, center = fitted.mean.scale, fitted.out_of_fold
        rows, shown = fitted.mean.columns.expand(x), scale.forward(y)
        generator = torch.Generator().manual_seed(config.seed)
        net = self.build(rows.shape[1], y.shape[1], generator).to(device)
        residuals = shown - center
        units, whiten = Units.of(rows, residuals, self.standardize)
        residuals = residuals @ whiten
        inputs = units.inputs(rows).to(device, torch.float32)
        discrepancy = choose_discrepancy(self.discrepancy, self.debiased, y.shape[1])
        # Holding the mean takes products of draws, whose noise keeps modes merged.
        anchored = len(fitted.mean.parts) > 0 and self.debiased and self.n_noise is None
        loss, weights = ResidualLoss(discrepancy, anchored, device), fitted.weights
        given = delta if isinstance(delta, list | tuple) else [delta]
        asked = any(isinstance(one, str) for one in given) and not isinstance(norm, Norm)
        relevance = measure_relevance(fitted.mean, x) if asked and fitted.mean.parts else None
        if isinstance(delta, list | tuple):
            options = [
                choose_balls(rows, shown, center, one, norm, self.debiased, relevance, weights)
                for one in delta
            ]
            few = self.n_noise is not None
            chosen = choose_by_training(options, rows, residuals, inputs, net, loss, config, few, weights)
        else:
            chosen = choose_balls(rows, shown, center, delta, norm, self.debiased, relevance, weights)
        hoods = chosen.neighborhoods(rows)
        plan = plan_rows(hoods, chosen.balls, self.batch_balls, fitted.n_rows, self.n_noise is not None)
        config = plan.apply(config)
        objective = loss.objective(rows, residuals, chosen, hoods, plan.batch_balls is not None, weights)
        watched: dict[str, Any] = {}
        if held is not None and self.schedule != "one-cycle":
            left = (scale.forward(held[1]) - fitted.mean.predict_each(held[0]).mean(0)) @ whiten
            new = units.inputs(fitted.mean.columns.expand(held[0]))
            watched["validate"] = _make_score(new, left, device, held[2])
            every = max(1, config.max_epochs // _LOOKS)
            config = replace(config, validate_every=every, patience=_LOOKS // 2, keep="best")
        fit = train(net, objective, inputs, config, **watched)
        net = net.cpu().double().eval()
        rounding = Rounding.halfway(outcomes)
        if not outcomes.free:
            draws = _draws_to_match(net, units, rows, center, config.seed, weights)
            rounding = Rounding.match(outcomes, scale.backward(draws), y, weights)
        member = NetworkMember(net, units, fitted.mean, rounding, config.seed, self.name)
        return TrainedNetwork(member, fit, chosen, plan)


def _make_score(
    inputs: Tensor, left: Array, device: torch.device, weights: Array | None
) -> Callable[..., float]:
    """The mean energy score of residuals (N, d) in the network's units, as a function of the network."""
    inputs = inputs.to(device, torch.float32)

    def score(net: RandomMap, generator: torch.Generator) -> float:
        draws = net.sample(inputs, _LOOKED_DRAWS, generator).double().cpu().numpy()
        return float(average(energy_score(left, draws), weights))

    return score


@final
@dataclass(frozen=True, eq=False)
class Units:
    """The units in which a network sees inputs and residuals."""

    x_mean: Array
    x_scale: Array
    y_factor: Array

    @classmethod
    def of(cls, x: Array, residuals: Array, standardize: bool) -> tuple[Units, Array]:
        """Of inputs (N, p) and residuals (N, d); and the matrix (d, d) that whitens the residuals.

        Correlation between outputs is then there from the start: the network, whose output layer has
        independent weights, would be slow to find it. Directions without any spread are 0 in both matrices,
        and constant columns keep their unit, as all do without ``standardize``.
        """
        p, d = x.shape[1], residuals.shape[1]
        if not standardize:
            return cls(np.zeros(p), np.ones(p), np.eye(d)), np.eye(d)
        x_mean, x_scale = x.mean(0), x.std(0)
        # Rounding gives a constant column a tiny spread, by which nothing must be divided.
        x_scale = np.where(x_scale > 1e-12 * np.abs(x_mean), x_scale, 1.0)
        scale = np.sqrt((residuals**2).mean(0))
        inverse = np.divide(1.0, scale, out=np.zeros(d), where=scale > 0)
        values, vectors = np.linalg.eigh((residuals * inverse).T @ (residuals * inverse) / len(residuals))
        values = np.where(values > 1e-10 * values.max(), values, 0.0)
        roots = np.sqrt(values)
        inverse_roots = np.divide(1.0, roots, out=np.zeros(d), where=roots > 0)
        factor = (vectors * roots) @ vectors.T * scale
        return cls(x_mean, x_scale, factor), inverse[:, None] * ((vectors * inverse_roots) @ vectors.T)

    def inputs(self, x: Array) -> Tensor:
        """Rows x (N, p) in the network's units; ValueError where one is too far out to be computed with."""
        rows = (x - self.x_mean) / self.x_scale
        reach = np.abs(rows)
        if not reach.max(initial=0.0) <= FARTHEST:
            raise ValueError(
                f"a row of X has the value {x.flat[reach.argmax()]:g}, which is {reach.max():.1g} in the "
                "network's units, where nothing can be computed. Check the units of X."
            )
        return torch.tensor(rows, dtype=torch.float64)


@final
@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A member, and how it came about: training, balls, and what was used of the rows."""

    member: NetworkMember
    fit: Fit
    chosen: ChosenBalls
    plan: RowPlan


@final
@dataclass(frozen=True, eq=False)
class NetworkMember(Member):
    r""":math:`\hat y = m_f(x) + \hat f(x, \hat\omega) A`, with a random fold f of the mean for every draw."""

    net: RandomMLP | NoiseMLP
    units: Units
    mean: FoldedMean
    rounding: Rounding
    seed: int
    title: str = "network"

    def sample(self, x: Array, n_samples: int, rng: np.random.Generator) -> Array:
        """Independent draws (S, N, d)."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        inputs = self._inputs(x)
        centers = self.mean.predict_each(x)
        which = rng.integers(len(centers), size=(n_samples, len(x)))
        draws = independent_draws(self.net, inputs, n_samples, generator).numpy() @ self.units.y_factor
        draws = self.mean.scale.backward(draws + centers[which, np.arange(len(x))])
        return self.rounding.apply(draws)

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and variance (N, d): those of the folds' means and of balanced draws, added."""
        if not (self.rounding.outcomes.free and self.mean.scale.is_identity):
            return super().moments(x)
        inputs = self._inputs(x)  # first: rows that are too far out must not reach the regressors
        centers = self.mean.predict_each(x)
        mean, variance = centers.mean(0), centers.var(0)
        for rows, draws in self._centred_draws(inputs):
            mean[rows] += draws.mean(0)
            variance[rows] += draws.var(0)
        return mean, variance

    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, rows, d) with the same omegas at every row, the folds taking turns."""
        inputs = self._inputs(x)
        centers = self.mean.predict_each(x)
        which = np.arange(PREDICTION_DRAWS) % len(centers)
        for rows, draws in self._centred_draws(inputs):
            yield rows, self.rounding.apply(self.mean.scale.backward(draws + centers[:, rows][which]))

    def _inputs(self, x: Array) -> Tensor:
        return self.units.inputs(self.mean.columns.expand(x))

    def _centred_draws(self, inputs: Tensor) -> Iterator[tuple[slice, Array]]:
        """Draws around the mean, (S, rows, d), some rows at a time."""
        for rows in row_blocks(len(inputs)):
            generator = torch.Generator().manual_seed(self.seed)
            draws = balanced_draws(self.net, inputs[rows], PREDICTION_DRAWS, generator)
            yield rows, draws.numpy() @ self.units.y_factor


def _draws_to_match(
    net: RandomMLP | NoiseMLP, units: Units, x: Array, center: Array, seed: int, weights: Array | None
) -> Array:
    """Draws (M, d) at some of the rows, around their out-of-fold means."""
    chosen = rows_to_match(len(x), np.random.default_rng(seed), weights)
    generator = torch.Generator().manual_seed(seed)
    draws = independent_draws(net, units.inputs(x[chosen]), MATCHED_DRAWS, generator).numpy()
    found: Array = (draws @ units.y_factor + center[chosen]).reshape(-1, center.shape[1])
    return found


@torch.no_grad()
def balanced_draws(net: RandomMLP | NoiseMLP, x: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
    """Draws (S, N, d) whose noise is the same at every row and has exactly mean 0 and covariance I.

    Noise comes in pairs z, -z and is whitened over the S draws. What is linear in the noise then has its
    exact variance: on the nonlinear example 2000 draws give the standard deviation to .5 %, plain ones to
    2 %. A network with so many units that whitening would distort the noise gets plain draws.
    """
    layers = [] if isinstance(net, NoiseMLP) else net.random_layers()
    sizes = [net.n_numbers] if isinstance(net, NoiseMLP) else [layer.mean.shape[1] for layer in layers]
    half = n_draws // 2
    if n_draws % 2 or sum(sizes) > half // 2:
        return net.sample_common(x, n_draws, generator)
    z = torch.randn(half, sum(sizes), dtype=x.dtype, generator=generator)
    values, vectors = torch.linalg.eigh(z.T @ z / half)
    z = z @ (vectors / values.sqrt()) @ vectors.T
    noise = [part.contiguous() for part in torch.cat([z, -z])[:, None].split(sizes, dim=-1)]
    parts = x.split(max(1, _AT_A_TIME // n_draws))
    if isinstance(net, NoiseMLP):
        return torch.cat([net.evaluate(part, noise[0]) for part in parts], 1)
    return torch.cat([net._through(part, lambda i, h: _outputs(layers[i], h, noise[i])) for part in parts], 1)


def _outputs(layer: RandomLayer, h: Tensor, noise: Tensor) -> Tensor:
    """``layer.common(h, noise)`` through one flat matrix, where torch would take one product a draw."""
    rows = h.reshape(-1, h.shape[-1])
    shape = (*h.shape[:-1], len(layer.bias))
    means = torch.addmm(layer.bias, rows, layer.mean).view(shape)
    spreads = (rows.square() @ layer.std.square()).sqrt_().view(shape)
    return torch.addcmul(means, spreads, noise)


@torch.no_grad()
def independent_draws(
    net: RandomMLP | NoiseMLP, x: Tensor, n_draws: int, generator: torch.Generator
) -> Tensor:
    """Draws (S, N, d) as ``net.sample`` makes them, independent over draws and rows.

    Many draws at many rows are made in single precision, and what the first layer does to a row is
    computed once for all draws: five times faster, with rounding errors of 1e-7 that no distribution shows.
    """
    if len(x) < _MANY_ROWS or len(x) * n_draws < _MANY_DRAWS or float(x.abs().max()) > _FAR:
        return net.sample(x, n_draws, generator)
    if isinstance(net, NoiseMLP):
        return _noise_draws(net, x, n_draws, generator)
    layers = [_Moments.of(layer) for layer in net.random_layers()]
    first = layers[0]
    rows = x.float()
    means, spreads = first.means(rows), first.spreads(rows)
    draws = torch.empty(n_draws, len(x), len(layers[-1].bias))
    step = max(1, _SINGLE_AT_A_TIME // len(x))
    for start in range(0, n_draws, step):
        count = min(step, n_draws - start)

        def outputs(i: int, h: Tensor, count: int = count) -> Tensor:
            if i > 0:
                return layers[i].draw(h, generator)
            noise = torch.randn(count, *means.shape, generator=generator)
            return torch.addcmul(means, spreads, noise).flatten(0, 1)

        draws[start : start + count] = net._through(rows, outputs).view(count, len(x), -1)
    return draws.double()


def _noise_draws(net: NoiseMLP, x: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
    """The same of a network that takes noise as input."""
    single, rows = deepcopy(net).float(), x.float()
    draws = []
    step = max(1, _SINGLE_AT_A_TIME // len(x))
    for start in range(0, n_draws, step):
        count = min(step, n_draws - start)
        noise = torch.randn(count, len(x), net.n_numbers, generator=generator)
        draws.append(single.evaluate(rows, noise).double())
    return torch.cat(draws)


@dataclass(frozen=True)
class _Moments:
    """A random layer in single precision, with its variances at hand."""

    mean: Tensor
    variance: Tensor
    bias: Tensor

    @classmethod
    def of(cls, layer: RandomLayer) -> _Moments:
        return cls(layer.mean.float(), layer.std.float().square(), layer.bias.float())

    def means(self, h: Tensor) -> Tensor:
        return torch.addmm(self.bias, h, self.mean)

    def spreads(self, h: Tensor) -> Tensor:
        return (h.square() @ self.variance).sqrt_()

    def draw(self, h: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(h), len(self.bias), generator=generator)
        return self.means(h).addcmul_(self.spreads(h), noise)
