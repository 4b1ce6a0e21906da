"""Several models trained at once on one device: same rows of x, different seeds, balls or outputs.

Parameters are stacked, (V, ...), and the model is mapped over them by ``torch.vmap``: on a GPU, where a small
step is mostly waiting, ten models take little longer than one. Each has the same noise as if trained alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from localw2._validation import check_count, seed_from
from localw2.balls.neighborhoods import Neighborhoods
from localw2.losses.objective import Objective
from localw2.losses.stacked import StackedLosses
from localw2.training.config import Fit, FitConfig
from localw2.training.cuda_graph import LOOK_EVERY, CapturedStep, find_obstacle
from localw2.training.step import epoch_seed

if TYPE_CHECKING:
    from localw2.models.base import RandomMap

LOG = logging.getLogger("localw2")
_PURPOSE = 3  # separates these random numbers from those of an epoch


def train_many(
    models: Sequence[RandomMap],
    objectives: Objective | Sequence[Objective],
    x: Tensor,
    config: FitConfig | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Fit]:
    """Train models of one architecture on the rows x at once, each with its own objective and seed.

    Fit v equals ``train(models[v], objectives[v], x, replace(config, seed=seeds[v]))`` up to rounding. All
    models may share one objective; the default seeds are config.seed, config.seed + 1, and so on. A loss that
    is not finite ends all fits with a FloatingPointError. Models must take their noise from
    ``localw2.models.base.normal``, as those of this package do, and every step uses all balls.

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

    This is a parametric bootstrap: the spread of any statistic over the refits estimates its uncertainty in
    the fit. Each refit starts from the fitted weights, with the balls, loss and config of the fit.

    >>> from localw2 import Neighborhoods
    >>> from localw2.models.linear import RandomLinear
    >>> x = torch.linspace(0, 1, 50)[:, None]
    >>> objective = Objective(2 * x, Neighborhoods.within(x, 0.1))
    >>> fits = bootstrap_fits(RandomLinear(1), objective, x, FitConfig(max_epochs=20), 3, random_state=0)
    >>> len({round(fit.model.mean[0].item(), 3) for fit in fits})
    3
    """
    n_models = check_count(n_models, "n_models", 2, why="one refit has no spread")
    seed = seed_from(random_state)
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
            f"there are {len(models)} models, {len(goals)} objectives and {len(seeds)} seeds; "
            "give the same number of each, at least one."
        )
    for seed in seeds:
        check_count(seed, "seed", 0)
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in models]
    if len({type(model) for model in models}) > 1 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(
            "the models differ in type or size, so they cannot be stacked; train them one by one."
        )
    if len(set(map(id, models))) < len(models):
        raise ValueError(
            "the same model is given twice; make one for each fit, for example by copy.deepcopy."
        )
    for goal in goals:
        if not isinstance(goal, Objective) or not isinstance(goal.hoods, Neighborhoods):
            raise ValueError(
                "objectives must be Objective(y, Neighborhoods...), because every step uses all balls."
            )
        if len(goal.y) != len(x):
            raise ValueError(
                f"x has {len(x)} rows and an objective has {len(goal.y)}; they must be the same rows."
            )
        if goal.y.shape != goals[0].y.shape or goal.y.dtype != goals[0].y.dtype:
            raise ValueError(
                "the outputs of the objectives differ in shape or dtype; train these models one by one."
            )
    given = [
        name
        for name in ("batch_balls", "checkpoint", "history", "patience", "max_gradient")
        if getattr(config, name) is not None
    ]
    given += ["max_skipped"] * (config.max_skipped > 0) + ["keep"] * (config.keep == "best")
    if given:
        raise ValueError(
            f"{', '.join(given)} cannot be used to train many models at once; call train for each."
        )


@final
class _Stack:
    """The stacked parameters of V models, and the losses of their outputs."""

    def __init__(self, models: list[RandomMap], goals: list[Objective], x: Tensor, config: FitConfig) -> None:
        self.n_models, self.x = len(models), x
        self.n_draws = max(config.n_draws, *(goal.discrepancy.min_draws for goal in goals))
        if any(goal.discrepancy.min_draws != goals[0].discrepancy.min_draws for goal in goals):
            raise ValueError("the objectives need different numbers of draws; train these models one by one.")
        self.module = _Simulation(models[0].train(), self.n_draws)
        self.parameters, self.buffers = torch.func.stack_module_state(
            [_Simulation(model, self.n_draws) for model in models]
        )
        self.losses = StackedLosses(goals)
        self.shapes = self._noise_shapes(goals[0])

    def _noise_shapes(self, goal: Objective) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """The noise that one simulation requests; the objective checks the shape of its outputs."""
        noise = _Noise()
        with torch.no_grad():
            try:
                yhat = self.module(self.x, noise)
            except TypeError as error:
                raise ValueError(
                    f"{type(self.module.model).__name__} does not take its noise from "
                    "localw2.models.base.normal(shape, like, generator), so it cannot be stacked; train "
                    "these models one by one."
                ) from error
            goal(yhat.squeeze(-1) if goal.y.ndim == 1 and yhat.ndim == 3 else yhat)
        return noise.shapes

    def loss(self, *generators: torch.Generator) -> Tensor:
        """The losses (V,), with gradients."""
        noise = [
            torch.stack([torch.randn(shape, dtype=dtype, device=g.device, generator=g) for g in generators])
            for shape, dtype in self.shapes
        ]

        def simulate(parameters: Any, buffers: Any, noise: list[Tensor]) -> Tensor:
            state, inputs = (parameters, buffers), (self.x, _Noise(noise))
            outputs: Tensor = torch.func.functional_call(self.module, state, inputs)
            return outputs

        return self.losses(torch.vmap(simulate)(self.parameters, self.buffers, noise))

    @torch.no_grad()
    def unstack(self, models: list[RandomMap]) -> None:
        """Give every model its parameters."""
        for v, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self.parameters[f"model.{name}"][v])


@final
class _Simulation(nn.Module):
    """A model whose forward is ``simulate``, since functional_call calls forward."""

    def __init__(self, model: RandomMap, n_draws: int) -> None:
        super().__init__()
        self.model, self.n_draws = model, n_draws

    def forward(self, x: Tensor, noise: Any) -> Tensor:
        return self.model.simulate(x, self.n_draws, noise)


@final
class _Noise:
    """A source of noise that was drawn beforehand, or of zeros, whose requested shapes are recorded."""

    def __init__(self, drawn: list[Tensor] | None = None) -> None:
        self.shapes: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._drawn = None if drawn is None else iter(drawn)

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        self.shapes.append((tuple(shape), like.dtype))
        return (
            torch.zeros(shape, dtype=like.dtype, device=like.device)
            if self._drawn is None
            else next(self._drawn)
        )


def _descend(stack: _Stack, seeds: list[int], config: FitConfig) -> list[list[dict[str, Any]]]:
    """Run all epochs, reading the losses at intervals; return the history of every model."""
    values = list(stack.parameters.values())
    optimizer = torch.optim.AdamW(
        values, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    step = CapturedStep(optimizer, stack.loss, n_generators=stack.n_models)
    reason = find_obstacle(stack.module.model, stack.x)
    mean, passed = [value.detach().clone() for value in values], count(1)

    @torch.no_grad()
    def average() -> None:
        if n_averaged := config.n_averaged(next(passed)):
            for old, value in zip(mean, values, strict=True):
                old.lerp_(value, 1 / n_averaged)

    histories: list[list[dict[str, Any]]] = [[] for _ in seeds]
    epoch = 0
    while epoch < config.max_epochs:
        # The first step creates the optimiser's state and warms up.
        last = min(epoch + (LOOK_EVERY if epoch else 1), config.max_epochs)
        start = time.perf_counter()
        rates = [config.rate(e) for e in range(epoch, last)]
        # Lazily, while the device is busy: a seed takes as long as a launch.
        drawn = (tuple(epoch_seed(seed, e, 0) for seed in seeds) for e in range(epoch, last))
        try:
            epochs = zip(drawn, rates, strict=True)
            seen = step.repeat(epochs, average, record=epoch > 0 and not reason)
        except RuntimeError as error:
            if reason or not epoch:
                raise
            reason = str(error).splitlines()[0]
            LOG.info("single steps instead of a CUDA graph: %s", reason)
            continue
        each = (time.perf_counter() - start) / (last - epoch)
        for losses, rate in zip(seen, rates, strict=True):
            epoch += 1
            for v, (history, loss) in enumerate(zip(histories, losses, strict=True)):
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"Training failed in epoch {epoch}: the loss of model {v} is {loss}. Try a smaller "
                        "learning_rate, or train it alone. All models are unchanged."
                    )
                history.append({"epoch": epoch, "loss": loss, "rate": rate, "seconds": each})
    if config.n_averaged(epoch):
        stack.parameters = dict(zip(stack.parameters, mean, strict=True))
    return histories
