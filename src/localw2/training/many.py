"""Several models trained at once on one device: other seeds, other balls, other outputs, the same rows of x.

Parameters are stacked, (V, ...), and the model is mapped over them by ``torch.vmap``: on a GPU, where a small
step is mostly waiting, ten models take little longer than one. Each has the noise that it would have alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from localw2._validation import check_count, seed_of
from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.objective import Objective
from localw2.losses.stacked import StackedLosses
from localw2.training.config import FitConfig
from localw2.training.cuda_graph import LOOK_EVERY, CapturedStep, obstacle
from localw2.training.loop import Fit
from localw2.training.step import epoch_seed

if TYPE_CHECKING:
    from localw2.models.base import RandomMap

LOG = logging.getLogger("localw2")
_PURPOSE = 3  # keeps these random numbers apart from those of an epoch


def train_many(
    models: Sequence[RandomMap],
    objectives: Objective | Sequence[Objective],
    x: Tensor,
    config: FitConfig | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Fit]:
    """Train models of one architecture on the rows x, each on its objective with its seed, all at once.

    Fit v is that of ``train(models[v], objectives[v], x, replace(config, seed=seeds[v]))`` up to rounding.
    One objective serves all models; seeds are those of the config, config.seed + 1, and so on. A loss that is
    not finite ends all fits with a FloatingPointError. Models must take their noise from
    ``localw2.models.base.normal``, as those of this package do, and a step sees all balls.

    >>> from localw2 import Neighborhoods
    >>> from localw2.models.linear import RandomLinear
    >>> x = torch.linspace(0, 1, 50)[:, None]
    >>> objectives = [Objective(2 * x, Neighborhoods.within(x, delta)) for delta in (0.1, 0.2)]
    >>> fits = train_many([RandomLinear(1), RandomLinear(1)], objectives, x, FitConfig(max_epochs=50))
    >>> [fit.losses[-1] < fit.losses[0] for fit in fits]
    [True, True]
    """
    config = FitConfig() if config is None else config
    models = list(models)
    goals = [objectives] * len(models) if isinstance(objectives, Objective) else list(objectives)
    numbers = [config.seed + v for v in range(len(models))] if seeds is None else list(seeds)
    _check(models, goals, numbers, x, config)
    start = time.perf_counter()
    stack = _Stack(models, goals, x, config)
    histories = _descend(stack, numbers, config)
    stack.unstack(models)
    taken = time.perf_counter() - start
    return [
        Fit(model.eval(), replace(config, seed=seed), history, seconds=taken)
        for model, seed, history in zip(models, numbers, histories, strict=True)
    ]


def bootstrap_fits(
    model: RandomMap,
    objective: Objective,
    x: Tensor,
    config: FitConfig | None = None,
    n_models: int = 20,
    random_state: Any = None,
) -> list[Fit]:
    """Refit a fitted model to outputs that it simulates itself at x, ``n_models`` times and all at once.

    The spread of anything computed from the refits is that of the same computed from the fit (a parametric
    bootstrap). Each starts from the fitted weights; the balls, the loss and the config are those of the fit.

    >>> from localw2 import Neighborhoods
    >>> from localw2.models.linear import RandomLinear
    >>> x = torch.linspace(0, 1, 50)[:, None]
    >>> objective = Objective(2 * x, Neighborhoods.within(x, 0.1))
    >>> fits = bootstrap_fits(RandomLinear(1), objective, x, FitConfig(max_epochs=20), 3, random_state=0)
    >>> len({round(fit.model.mean[0].item(), 3) for fit in fits})
    3
    """
    n_models = check_count(n_models, "n_models", 2, why="one refit has no spread")
    seed = seed_of(random_state)
    generator = torch.Generator(x.device).manual_seed(epoch_seed(seed, 0, _PURPOSE))
    outputs = model.sample(x, n_models, generator).reshape(n_models, *objective.y.shape)
    goals = [
        Objective(y, objective.hoods, objective.discrepancy, objective.center, objective.scale)
        for y in outputs
    ]
    seeds = np.random.SeedSequence([seed, _PURPOSE]).generate_state(n_models).tolist()
    return train_many([deepcopy(model) for _ in goals], goals, x, config, seeds)


def _check(
    models: list[RandomMap], goals: list[Objective], seeds: list[int], x: Tensor, config: FitConfig
) -> None:
    if not models or not len(models) == len(goals) == len(seeds):
        raise ValueError(
            f"{len(models)} models, {len(goals)} objectives and {len(seeds)} seeds; "
            "give as many of each, at least one."
        )
    for seed in seeds:
        check_count(seed, "seed", 0)
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in models]
    if len({type(model) for model in models}) > 1 or any(shape != shapes[0] for shape in shapes):
        raise ValueError("the models differ in kind or size, and cannot be stacked; train them one by one.")
    if len(set(map(id, models))) < len(models):
        raise ValueError("a model is there twice; make one for each fit, as by copy.deepcopy.")
    for goal in goals:
        if not isinstance(goal, Objective) or not isinstance(goal.hoods, Neighborhoods):
            raise ValueError("objectives must be Objective(y, Neighborhoods...): a step sees all balls.")
        if len(goal.y) != len(x):
            raise ValueError(f"x has {len(x)} rows and an objective {len(goal.y)}; they must be the same.")
        if goal.y.shape != goals[0].y.shape or goal.y.dtype != goals[0].y.dtype:
            raise ValueError("the objectives' outputs differ in shape or type; train those one by one.")
    given = [
        name
        for name in ("batch_balls", "checkpoint", "history", "patience", "max_gradient")
        if getattr(config, name) is not None
    ]
    given += ["max_skipped"] * (config.max_skipped > 0) + ["keep"] * (config.keep == "best")
    if given:
        raise ValueError(
            f"{', '.join(given)}: not for models trained at once; leave out, or call train for each."
        )


@final
class _Stack:
    """The parameters of V models as one, and the losses of their outputs."""

    def __init__(self, models: list[RandomMap], goals: list[Objective], x: Tensor, config: FitConfig) -> None:
        self.n_models, self.x = len(models), x
        self.n_draws = max(config.n_draws, *(goal.discrepancy.min_draws for goal in goals))
        if any(goal.discrepancy.min_draws != goals[0].discrepancy.min_draws for goal in goals):
            raise ValueError("the objectives need different numbers of draws; train those one by one.")
        self.module = _Simulating(models[0].train(), self.n_draws)
        self.parameters, self.buffers = torch.func.stack_module_state(
            [_Simulating(model, self.n_draws) for model in models]
        )
        self.losses = StackedLosses(goals)
        self.shapes = self._noise_shapes(goals[0])

    def _noise_shapes(self, goal: Objective) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """What one simulation asks of its source of noise; the objective says whether its outputs fit."""
        asked = _Recorder()
        with torch.no_grad():
            try:
                yhat = self.module(self.x, asked)
            except TypeError as error:
                raise ValueError(
                    f"{type(self.module.model).__name__} does not take its noise from "
                    "localw2.models.base.normal(shape, like, generator) and cannot be stacked; train such "
                    "models one by one."
                ) from error
            goal(yhat.squeeze(-1) if goal.y.ndim == 1 and yhat.ndim == 3 else yhat)
        return asked.shapes

    def loss(self, *generators: torch.Generator) -> Tensor:
        """The losses (V,), with gradients."""
        noise = [
            torch.stack([torch.randn(shape, dtype=dtype, device=g.device, generator=g) for g in generators])
            for shape, dtype in self.shapes
        ]
        yhat = torch.vmap(self._simulate)(self.parameters, self.buffers, noise)
        return self.losses(yhat)

    def _simulate(self, parameters: Any, buffers: Any, noise: list[Tensor]) -> Tensor:
        state = (parameters, buffers)
        outputs: Tensor = torch.func.functional_call(self.module, state, (self.x, _Given(noise)))
        return outputs

    @torch.no_grad()
    def unstack(self, models: list[RandomMap]) -> None:
        """Give every model its parameters."""
        for v, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self.parameters[f"model.{name}"][v])


@final
class _Simulating(nn.Module):
    """A model whose forward is ``simulate``, which is what functional_call can reach."""

    def __init__(self, model: RandomMap, n_draws: int) -> None:
        super().__init__()
        self.model, self.n_draws = model, n_draws

    def forward(self, x: Tensor, noise: Any) -> Tensor:
        return self.model.simulate(x, self.n_draws, noise)


@final
class _Recorder:
    """A source of noise that remembers what was asked of it."""

    def __init__(self) -> None:
        self.shapes: list[tuple[tuple[int, ...], torch.dtype]] = []

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        self.shapes.append((tuple(shape), like.dtype))
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


@final
class _Given:
    """A source of noise that was drawn beforehand."""

    def __init__(self, noise: list[Tensor]) -> None:
        self._noise = iter(noise)

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return next(self._noise)


def _descend(stack: _Stack, seeds: list[int], config: FitConfig) -> list[list[dict[str, Any]]]:
    """All epochs, in runs between which the losses are looked at; the history of every model."""
    values = list(stack.parameters.values())
    optimizer = torch.optim.AdamW(
        values, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    step = CapturedStep(optimizer, stack.loss, n_generators=stack.n_models)
    reason = obstacle(stack.module.model, stack.x)
    average = _Average(values, config)
    histories: list[list[dict[str, Any]]] = [[] for _ in seeds]
    epoch = 0
    while epoch < config.max_epochs:
        # The first makes the optimiser's state, and warms up.
        last = min(epoch + (LOOK_EVERY if epoch else 1), config.max_epochs)
        start = time.perf_counter()
        rates = [config.rate(e) for e in range(epoch, last)]
        # One by one, while the device is at work: a seed takes as long as a launch.
        drawn = (tuple(epoch_seed(seed, e, 0) for seed in seeds) for e in range(epoch, last))
        try:
            epochs = zip(drawn, rates, strict=True)
            seen = step.repeat(epochs, average.keep, record=epoch > 0 and not reason)
        except RuntimeError as error:
            if reason or not epoch:
                raise
            reason = str(error).splitlines()[0]
            LOG.info("plain steps, not a CUDA graph: %s", reason)
            continue
        each = (time.perf_counter() - start) / (last - epoch)
        for row, rate in zip(seen, rates, strict=True):
            epoch += 1
            _note(histories, row, {"epoch": epoch, "loss": math.nan, "rate": rate, "seconds": each})
    average.put_back()
    return histories


def _note(histories: list[list[dict[str, Any]]], losses: list[float], record: dict[str, Any]) -> None:
    for v, (history, loss) in enumerate(zip(histories, losses, strict=True)):
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"Training gave up in epoch {record['epoch']}: the loss of model {v} is {loss}. Try a "
                "smaller learning_rate, or train it alone. All models are as they were before."
            )
        history.append({**record, "loss": loss})


@final
class _Average:
    """The mean of the parameters over the last epochs, where the config asks for it."""

    def __init__(self, values: list[Tensor], config: FitConfig) -> None:
        self._values, self._config = values, config
        self._epoch, self._count = 0, 0
        self._mean: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Take in the parameters after an epoch."""
        self._epoch += 1
        config = self._config
        if config.keep != "average" or self._epoch <= (1 - config.averaged) * config.max_epochs:
            return
        self._count += 1
        if not self._mean:
            self._mean = [value.detach().clone() for value in self._values]
        for mean, value in zip(self._mean, self._values, strict=True):
            mean.lerp_(value, 1 / self._count)

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the parameters their means, if there are any."""
        for value, mean in zip(self._values, self._mean, strict=bool(self._mean)):
            value.copy_(mean)
