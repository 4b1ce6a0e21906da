"""Runs of epochs on a GPU without the host: the training step as a CUDA graph.

A small step on a GPU spends most of its time waiting for about a hundred launches and for the host to read
the loss. Recorded once and replayed, the launches cost almost nothing; losses stay on the device until a run
of epochs is over. The draws of an epoch still come from (seed, epoch), so that a run gives the same result as
single epochs, except for the order in which a GPU adds numbers. A run with a loss that is not finite is
undone and repeated epoch by epoch.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from localw2.losses.objective import Objective
    from localw2.training.step import Descent

LOG = logging.getLogger("localw2")

# Epochs between two readings of the losses: a reading costs as much as a few steps, and may undo the run.
LOOK_EVERY = 64
MOST_UNDONE = 2  # runs that may be undone before single steps are used for good
# Code that does the same work at every call. A graph replays the device's work, not Python's: a user's model
# might count its calls, for example, so it must declare that it does not (``capturable = True``).
_STEADY = (
    "localw2.models.network",
    "localw2.models.noise_network",
    "localw2.models.linear",
    "torch.nn.modules",
)

# Maps generators to the loss of all rows: a scalar, or one value for each of several stacked models.
Loss = Callable[..., Tensor]


def find_obstacle(model: nn.Module, x: Tensor) -> str:
    """The reason why the steps of a model on these rows cannot be recorded, or "" if they can.

    >>> find_obstacle(nn.Linear(1, 1), torch.zeros(3, 1))
    'the rows are on cpu'
    """
    if x.device.type != "cuda":
        return f"the rows are on {x.device.type}"
    for module in model.modules():
        kind = type(module)
        if not kind.__module__.startswith(_STEADY) and not getattr(module, "capturable", False):
            return (
                f"{kind.__name__} may behave differently at every call, which a recording would not repeat; "
                f"if it does not, set {kind.__name__}.capturable = True"
            )
    return ""


@final
class CapturedStep:
    """One step of an optimiser (fused AdamW) on the loss of all rows, repeated without the host.

    The loss is called with ``n_generators`` generators. ``limit`` bounds the norm of the gradient; with None
    the norm is not computed. Without CUDA the same step runs call by call, which is how it is tested.

    >>> weight = nn.Parameter(torch.zeros(()))
    >>> optimizer = torch.optim.AdamW([weight], fused=True)
    >>> step = CapturedStep(optimizer, lambda generator: (weight - 1).square())
    >>> [round(loss, 2) for loss, in step.repeat([((0,), 0.1), ((1,), 0.1), ((2,), 0.1)])]
    [1.0, 0.81, 0.64]
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, loss: Loss, limit: float | None = None, n_generators: int = 1
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
        """Take a step for every (seeds, learning rate); return the losses (and gradient norm) before each.

        ``after`` runs after each step and must not wait for the device. If the step cannot be recorded, a
        RuntimeError is raised before anything has changed; without ``record`` it runs call by call.
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
        # A loaded state has other addresses than the one that was recorded.
        places = tuple(
            value.data_ptr()
            for state in self._optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        if not places:
            raise RuntimeError("the optimiser has no state yet; take a single step first")
        if self._graph is None or places != self._recorded:
            with self._settings():
                self._graph = self._record()
            self._recorded = places
        replay: Callable[[], None] = self._graph.replay
        return replay

    def _record(self) -> Any:
        """Record the step as a graph, without computing it."""
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
        """Compute loss and gradient once, and fail if they wait for the device, which a graph cannot do."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it does not detect every wait
            torch.cuda.set_sync_debug_mode("error")
        try:
            self._gradients()
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def _gradients(self) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        loss = self._loss(*self._generators)
        # Not by backward(), which accumulates on the stream where a parameter was first used.
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
        """Prepare the optimiser for a recording: the learning rate is on the device and changed in place."""
        groups = self._optimizer.param_groups
        past = [(group["lr"], group["capturable"]) for group in groups]
        for group in groups:
            group["lr"], group["capturable"] = self._rate, self._device.type == "cuda"
        try:
            yield
        finally:
            for group, (rate, capturable) in zip(groups, past, strict=True):
                group["lr"], group["capturable"] = rate, capturable


@final
class Leaps:
    """Runs epochs of a fit by a captured step; if that is impossible, the reason is logged.

    ``whole`` says whether a step uses all balls.
    """

    def __init__(self, descent: Descent, objective: Objective, whole: bool) -> None:
        self._descent, self._config = descent, descent.config
        self._undone = 0
        self._plain_until: int | None = None
        self._step: CapturedStep | None = None
        reason = find_obstacle(descent.model, descent.x)
        if not reason and not whole:
            reason = "each step uses a different batch of balls"
        if not reason and self._config.settle is not None:
            reason = "the learning rate depends on held-out scores"
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
        """The records of the epochs from ``epoch`` (from 0) to the next checkpoint, score or watched epoch.

        ``after`` is called after each. The list is empty if the next epoch must be a single step; whatever
        ``after`` has already done must then be undone.
        """
        if self._plain_until is None:
            self._plain_until = epoch + 1  # the first step creates the optimiser's state and warms up
        if self._step is None or epoch < self._plain_until:
            return []
        self._descent.model.train()
        looks = [1] * watched + [self._config.validate_every] * scored
        looks += [] if self._config.checkpoint is None else [self._config.checkpoint_every]
        left = (every - epoch % every for every in looks)  # epochs until the next look of each kind
        epochs = range(epoch, epoch + min(LOOK_EVERY, self._config.max_epochs - epoch, *left))
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
            # Single steps show which one failed, and respect max_skipped.
            self._plain_until, self._undone = epochs.stop, self._undone + 1
            if self._undone > MOST_UNDONE:
                self._give_up("losses were repeatedly not finite")
            return []
        each = (time.perf_counter() - start) / len(epochs)
        return [
            {"epoch": e + 1, "loss": row[0], "rate": rate, "seconds": each}
            for e, row, rate in zip(epochs, seen, rates, strict=True)
        ]

    def _give_up(self, reason: str) -> None:
        self._step = None
        LOG.info("single steps instead of a CUDA graph: %s", reason)
