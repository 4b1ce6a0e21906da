"""Runs of epochs on a GPU without a look from the host: the training step as a CUDA graph.

A small step on a GPU is mostly waiting: for some hundred launches, and for the host to read the loss.
Recorded once and replayed, its launches cost almost nothing; losses stay on the device until a run of epochs
is over. The draws of an epoch still come from (seed, epoch), so that a run gives what the same epochs one by
one would, but for the order in which a GPU adds numbers. A run with a loss that is not finite is undone and
gone through again one by one.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from localw2.losses.objective import Objective
    from localw2.models.base import RandomMap
    from localw2.training.config import FitConfig

LOG = logging.getLogger("localw2")

# Epochs between two looks at the losses: a look costs as much as a few steps, and what it undoes is as long.
LOOK_EVERY = 64
MOST_UNDONE = 2  # runs undone before plain steps are taken for good
# Code that does the same work at every call. A graph repeats what the device was told, not what Python did: a
# model of a user's own might count its calls, so it must say that it does not (``capturable = True``).
_STEADY = ("localw2.models.network", "localw2.models.linear", "torch.nn.modules")

# Generators to the loss of all rows with their draws: a scalar, or one for each of several stacked models.
Loss = Callable[..., Tensor]


def obstacle(model: nn.Module, x: Tensor) -> str:
    """Why the steps of a model on these rows cannot be recorded; empty if nothing speaks against it.

    >>> obstacle(nn.Linear(1, 1), torch.zeros(3, 1))
    'the rows are on cpu'
    """
    if x.device.type != "cuda":
        return f"the rows are on {x.device.type}"
    for module in model.modules():
        kind = type(module)
        if not kind.__module__.startswith(_STEADY) and not getattr(module, "capturable", False):
            return (
                f"{kind.__name__} may do other things at every call, which a recording would not repeat; "
                f"if it does not, set {kind.__name__}.capturable = True"
            )
    return ""


@final
class CapturedStep:
    """One step of an optimiser (fused AdamW) on a loss of all rows, to be repeated without the host.

    The loss is called with ``n_generators`` generators. ``limit`` bounds the norm of the gradient; None
    neither bounds it nor looks at it. Off CUDA the same step runs call by call, which is how it is tested.

    >>> weight = nn.Parameter(torch.zeros(()))
    >>> optimizer = torch.optim.AdamW([weight], fused=True)
    >>> step = CapturedStep(optimizer, lambda generator: (weight - 1).square())
    >>> [round(loss, 2) for loss, in step.repeat([((0,), 0.1), ((1,), 0.1), ((2,), 0.1)])]
    [1.0, 0.81, 0.64]
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        limit: float | None = None,
        n_generators: int = 1,
    ) -> None:
        self._optimizer, self._loss, self._limit = optimizer, loss, limit
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._parameters = [p for p in parameters if p.requires_grad]
        self._device = parameters[0].device
        self._generators = [torch.Generator(self._device) for _ in range(n_generators)]
        self._rate = torch.zeros((), device=self._device)
        self._seen = torch.zeros(0)
        self._graph: Any = None
        self._recorded: tuple[int, ...] = ()

    def repeat(
        self,
        epochs: Iterable[tuple[tuple[int, ...], float]],
        after: Callable[[], None] = lambda: None,
        record: bool = True,
    ) -> list[list[float]]:
        """A step for every (seeds, learning rate); the losses (and norm of the gradient) before each.

        ``after`` runs after each step and must not wait for the device. Raises RuntimeError if the step
        cannot be recorded, before anything has changed; without ``record`` it runs call by call.
        """
        replay = self._replay() if record and self._device.type == "cuda" else self._step
        seen = []
        with self._settings():
            for seeds, rate in epochs:
                for generator, seed in zip(self._generators, seeds, strict=True):
                    generator.manual_seed(seed)
                self._rate.fill_(rate)
                replay()
                seen.append(self._seen.clone())
                after()
        found: list[list[float]] = torch.stack(seen).tolist()
        return found

    def _replay(self) -> Callable[[], None]:
        # A state that was loaded lives elsewhere than the one that was recorded.
        places = tuple(
            value.data_ptr()
            for state in self._optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        if not places:
            raise RuntimeError("the optimiser has no state yet; take a plain step first")
        if self._graph is None or places != self._recorded:
            with self._settings():
                self._graph = self._record()
            self._recorded = places
        replay: Callable[[], None] = self._graph.replay
        return replay

    def _record(self) -> Any:
        """The step as a graph: nothing of it is computed here."""
        self._rehearse()
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._step()
                except BaseException:
                    with suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        return graph

    def _rehearse(self) -> None:
        """Loss and gradient once, where waiting for the device is an error: a recording would break at it."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it does not find every wait
            torch.cuda.set_sync_debug_mode("error")
        try:
            self._gradients()
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def _gradients(self) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        loss = self._loss(*self._generators)
        # Not by backward(), which would do its adding on the stream on which a parameter was first used.
        return loss.detach().view(-1), torch.autograd.grad(loss.sum(), self._parameters, allow_unused=True)

    def _step(self) -> None:
        losses, gradients = self._gradients()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._limit is not None:
            norm = nn.utils.clip_grad_norm_(self._parameters, self._limit)
            losses = torch.cat([losses, norm.view(1)])
        self._seen = losses
        self._optimizer.step()

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """The optimiser as a recording needs it: its learning rate on the device, to be changed in place."""
        groups = self._optimizer.param_groups
        past = [(group["lr"], group["capturable"]) for group in groups]
        for group in groups:
            group["lr"], group["capturable"] = self._rate, self._device.type == "cuda"
        try:
            yield
        finally:
            for group, (rate, capturable) in zip(groups, past, strict=True):
                group["lr"], group["capturable"] = rate, capturable


class Steps(Protocol):
    """What a run of epochs needs to know of the steps of a fit (see ``descent``)."""

    model: RandomMap
    x: Tensor
    config: FitConfig
    optimizer: torch.optim.AdamW
    keyed: bool

    def generator(self, epoch: int, purpose: int) -> torch.Generator:
        """Random numbers of an epoch."""
        ...

    def loss_of_all(self, objective: Objective, generator: torch.Generator) -> Tensor:
        """The loss of all rows."""
        ...


@final
class Leaps:
    """Runs of epochs of a fit by a captured step; where that cannot be, the reason is logged.

    ``whole`` says that a step sees all balls.
    """

    def __init__(self, descent: Steps, objective: Objective, whole: bool) -> None:
        self._descent, self._config = descent, descent.config
        self._undone = 0
        self._plain_until: int | None = None
        self._step: CapturedStep | None = None
        reason = obstacle(descent.model, descent.x)
        if not reason and not whole:
            reason = "a step sees some balls only, others each time"
        if not reason and descent.keyed:
            reason = "draws are keyed by row"
        if reason:
            self._give_up(reason)
        else:
            watch = self._config.max_gradient is not None or self._config.max_skipped
            limit = math.inf if self._config.max_gradient is None else self._config.max_gradient
            self._step = CapturedStep(
                descent.optimizer, partial(descent.loss_of_all, objective), limit if watch else None
            )

    def run(self, epoch: int, watched: bool, scored: bool, after: Callable[[], None]) -> list[dict[str, Any]]:
        """Records of the epochs from ``epoch`` (from 0) to the next that is checkpointed, scored or watched.

        None if the next epoch must be a plain step; if ``after``, which is called after each, was called all
        the same, what it has seen must be undone.
        """
        if self._plain_until is None:
            self._plain_until = epoch + 1  # the first makes the optimiser's state, and warms up
        if self._step is None or epoch < self._plain_until:
            return []
        self._descent.model.train()
        looks = [1] * watched + [self._config.validate_every] * scored
        looks += [] if self._config.checkpoint is None else [self._config.checkpoint_every]
        epochs = range(epoch, epoch + stretch(epoch, self._config.max_epochs, *looks))
        start = time.perf_counter()
        rates = [self._config.rate(e) for e in epochs]
        seeds = ((self._descent.generator(e, 0).initial_seed(),) for e in epochs)
        seen: list[list[float]] = [[math.nan]]
        try:
            with suppress(FloatingPointError):
                seen = self._step.repeat(zip(seeds, rates, strict=True), after)
        except RuntimeError as error:
            self._give_up(str(error).splitlines()[0])
            return []
        if not all(math.isfinite(value) for row in seen for value in row):
            # One by one they say which failed, and keep to what max_skipped allows.
            self._plain_until, self._undone = epochs.stop, self._undone + 1
            if self._undone > MOST_UNDONE:
                self._give_up("losses that are not finite, again and again")
            return []
        each = (time.perf_counter() - start) / len(epochs)
        return [
            {"epoch": e + 1, "loss": row[0], "rate": rate, "seconds": each}
            for e, row, rate in zip(epochs, seen, rates, strict=True)
        ]

    def _give_up(self, reason: str) -> None:
        self._step = None
        LOG.info("plain steps, not a CUDA graph: %s", reason)


def stretch(epoch: int, last: int, *every: int) -> int:
    """How many epochs from ``epoch`` (done so far) run before someone looks: at multiples of ``every``.

    >>> stretch(0, 1000), stretch(95, 1000, 10, 50), stretch(95, 97, 10)
    (64, 5, 2)
    """
    return min(LOOK_EVERY, last - epoch, *(each - epoch % each for each in every))
