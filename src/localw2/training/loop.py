"""Training with ``train(model, objective, x, config)``, which can be watched, stopped and resumed."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from localw2.balls.lazy import LazyNeighborhoods
from localw2.losses.objective import Objective
from localw2.models.base import RandomMap
from localw2.storage.model_file import check_writable
from localw2.training.batches import BallStream, GivenBatches
from localw2.training.checkpoints import (
    Checkpoint,
    State,
    all_finite,
    copy_state,
    hold_checkpoint,
    identify,
    read_checkpoint,
    write_checkpoint,
)
from localw2.training.config import FLAT, Fit, FitConfig
from localw2.training.cuda_graph import Leaps
from localw2.training.distributed import Crew, LostRankError
from localw2.training.progress import HistoryFile, progress_bar
from localw2.training.step import Descent

SMOOTHED = 2  # times validate_every are the epochs over which weights are averaged before they are scored
CHECKPOINT_SECONDS = 30.0  # that may pass without a checkpoint, however long an epoch takes
# Maps a model and a generator to a score on held-out rows; lower is better.
Validate = Callable[[RandomMap, torch.Generator], float]
# Maps an epoch, counted from 0, and whether the fit settles, to the rows and the loss of each of its steps.
Batches = Callable[[int, bool], Iterable[tuple[Tensor, Objective]]]
# Called after every epoch with its record; returning True stops the fit.
Callback = Callable[[dict[str, Any]], bool | None]


def train(
    model: RandomMap,
    objective: Objective,
    x: Tensor,
    config: FitConfig | None = None,
    validate: Validate | None = None,
    callbacks: tuple[Callback, ...] = (),
    batches: Batches | None = None,
) -> Fit:
    """Minimise the objective over the model's parameters with AdamW.

    The draws of an epoch depend only on (seed, epoch), so that a resumed fit continues as if it had never
    stopped. Ctrl-C stops cleanly, with a warning: the current epoch is undone and all earlier ones are kept;
    before the end of the first epoch it raises KeyboardInterrupt as usual. A callback that returns True also
    stops the fit. A score that is not finite, or more than ``max_skipped`` consecutive losses that are not,
    raise a FloatingPointError, after which the model has the best weights so far, or the last that gave a
    finite loss. The loss of an epoch is over the steps that did not fail, or that of the previous epoch if
    all did.

    ``batches`` replaces the choice of balls for each step: a function of the epoch, counted from 0, and of
    whether the fit settles, so that held-out rows can be used from then on, that gives the rows and the loss
    of each of its steps. These two must determine them.

    Under ``torchrun`` all processes train one model: each simulates its part of the balls and their rows, and
    the first one writes the files. Draws then depend only on (seed, epoch, step, row, draw), as with
    ``noise="keyed"``, so that the fit is the same for any number of ranks, up to rounding.

    >>> from localw2 import Neighborhoods
    >>> from localw2.models.linear import RandomLinear
    >>> x = torch.linspace(0, 1, 50)[:, None]
    >>> objective = Objective(2 * x, Neighborhoods.within(x, 0.1))
    >>> fit = train(RandomLinear(1), objective, x, FitConfig(max_epochs=50))
    >>> fit.losses[-1] < fit.losses[0], fit.stopped
    (True, 'all epochs done')
    """
    config = FitConfig() if config is None else config
    crew = Crew.join()
    _check(model, objective, x, config, validate)
    run = _Run(model, objective, x, config, validate, crew, batches)
    first = crew.rank == 0
    with ExitStack() as stack:
        stack.enter_context(hold_checkpoint(config.checkpoint, crew, inside=True))
        run.restore()
        history = stack.enter_context(HistoryFile(config.history if first else None, run.fit.history))
        show = stack.enter_context(progress_bar(config.progress and first, config.max_epochs))
        stack.enter_context(crew.announce_end(run.how_to_resume))
        stack.enter_context(closing(run.stream))
        try:
            while run.epoch < run.n_epochs and not run.exhausted():
                entries = run.advance(watched=bool(callbacks))
                history.append(*entries)
                show(run.epoch, entries[-1]["loss"], run.fit.best_score, run.n_epochs)
                stops = sum(bool(callback(entry)) for entry in entries for callback in callbacks)
                if callbacks and crew.any(stops > 0):
                    run.fit.stopped = f"a callback asked for it after epoch {run.epoch}"
                    break
                late = time.perf_counter() - run.saved > CHECKPOINT_SECONDS
                if run.epoch % config.checkpoint_every == 0 or late:
                    run.save()
            run.finish(whole=run.epoch == run.n_epochs)
        except LostRankError as error:
            raise LostRankError(f"{error} {run.how_to_resume()}") from error
        except KeyboardInterrupt:
            run.roll_back()
            history.rewrite(run.fit.history)
            # With several ranks, none knows how far the others are.
            if run.epoch == 0 or crew.size > 1:
                raise
            run.fit.stopped = f"interrupted after epoch {run.epoch}"
            run.finish()
            warnings.warn(
                f"{run.fit.stopped} of {config.max_epochs}: the model is only partly trained. With a "
                "checkpoint, the same call continues from here.",
                stacklevel=2,
            )
    return run.fit


def _check(
    model: RandomMap, objective: Objective, x: Tensor, config: FitConfig, validate: Validate | None
) -> None:
    """Raise now for errors that would otherwise surface after hours."""
    for name, value, kind, advice in (
        ("config", config, FitConfig, "a FitConfig, such as FitConfig(max_epochs=100)"),
        ("objective", objective, Objective, "an Objective(y, hoods)"),
        ("model", model, RandomMap, "a RandomMap, such as RandomMLP(n_inputs)"),
        ("x", x, Tensor, "a tensor, as in torch.as_tensor(x)"),
    ):
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {type(value).__name__}; pass {advice}.")
    if validate is None and (config.keep == "best" or config.patience is not None):
        raise ValueError(
            "keep='best' and patience need validate, a function that scores held-out rows, because the "
            "training loss of a flexible model never stops falling."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no parameters to train; make them nn.Parameter.")
    if len(x) != len(objective.y):
        raise ValueError(
            f"x has {len(x)} rows and the objective has {len(objective.y)}; they must be the same rows."
        )
    if isinstance(objective.hoods, LazyNeighborhoods) and config.batch_balls is None:
        raise ValueError("lazy neighbourhoods never hold all balls; set batch_balls, for example to 256.")
    if Crew.join().rank > 0:  # only the first writes files
        return
    if config.checkpoint is not None:
        check_writable(config.checkpoint, "checkpoint")
    if config.history is not None and not Path(config.history).absolute().parent.is_dir():
        raise ValueError(f"history={config.history!r}: its folder does not exist; create it before the fit.")


class _Run:
    """A fit in progress: its live state, and the boundary to return to if an epoch is interrupted."""

    def __init__(
        self,
        model: RandomMap,
        objective: Objective,
        x: Tensor,
        config: FitConfig,
        validate: Validate | None,
        crew: Crew,
        batches: Batches | None = None,
    ) -> None:
        self.model, self.objective, self.x, self.config, self.validate = model, objective, x, config, validate
        self.crew = crew
        self.descent = Descent(model, objective, x, config, crew)
        self.optimizer = self.descent.optimizer
        self.stream: BallStream | GivenBatches
        if batches is None:
            self.stream = BallStream(objective, x, config, self.descent.shards)
        else:
            self.stream = GivenBatches(batches, self.descent.shards)
        self.leaps = Leaps(self.descent, objective, self.stream.whole)
        self.fit = Fit(model, config)
        self.epoch = 0
        self.settling: int | None = None  # the epochs after which the fit began to settle
        self.best: State = {}
        self.average: State = {}
        self.n_failed = 0  # consecutive steps
        self.warned = False  # of a checkpoint that could not be written
        self.started = self.saved = time.perf_counter()
        self.boundary = self._boundary()
        self.good = self.boundary.model

    @property
    def n_epochs(self) -> int:
        """How many epochs there will be, as far as is known."""
        return self.config.n_epochs(self.settling)

    def advance(self, watched: bool) -> list[dict[str, Any]]:
        """Run the next epoch; on a GPU, all epochs up to the next that is watched."""
        entries = self.leaps.run(self.epoch, watched, self.validate is not None, self._pass)
        if not entries:
            if self.epoch != self.boundary.epoch:
                self.roll_back()
            return [self.step()]
        self._keep(entries, good=True)
        return entries

    def step(self) -> dict[str, Any]:
        """Run one epoch: every ball once, or ``epoch_balls`` of them."""
        start = time.perf_counter()
        rate = self.config.rate(self.epoch, self.settling)
        self.model.train()
        self.descent.begin(self.epoch, rate)
        total, weight, skipped = self._over_balls()
        while not weight and not self.fit.history:  # no loss to report yet: try other draws
            total, weight, more = self._over_balls()
            skipped += more
        self._pass()
        loss = total / weight if weight else self.fit.history[-1]["loss"]
        entry: dict[str, Any] = {"epoch": self.epoch, "loss": loss, "rate": rate}
        if skipped:
            entry["skipped"] = skipped
        self._keep([entry], good=weight > 0)
        entry["seconds"] = time.perf_counter() - start
        return entry

    def _keep(self, entries: list[dict[str, Any]], good: bool) -> None:
        last = self.epoch == self.n_epochs
        if self.validate is not None and (last or self.epoch % self.config.validate_every == 0):
            entries[-1]["score"] = self._score()
        self.fit.history += entries
        self.settling = self.config.settling(self.fit.history)
        if good:
            # These weights gave finite losses; those after the last step have not been evaluated yet.
            self.good = self.boundary.model
        self.boundary = self._boundary()

    def _over_balls(self) -> tuple[float, float, int]:
        """Take a step for every batch; return the weighted sum of losses, the total weight and failures."""
        total, weight, skipped = 0.0, 0.0, 0
        for batch in self.stream.batches(self.epoch, self.settling is not None):
            try:
                value = self.descent.step(batch)
            except FloatingPointError as error:
                skipped, self.n_failed = skipped + 1, self.n_failed + 1
                if self.n_failed > self.config.max_skipped:
                    self._give_up(str(error), self.epoch + 1)
                continue
            self.n_failed = 0
            total, weight = total + batch.weight * value, weight + batch.weight
        return total, weight, skipped

    def _pass(self) -> None:
        """Count an epoch and add its weights to the average."""
        self.epoch += 1
        n_averaged = self.config.n_averaged(self.epoch, self.settling)
        if n_averaged == 0 and self.config.settle is None:
            return
        state = copy_state(self.model.state_dict())
        newest = 1 / n_averaged if n_averaged else 1 / min(self.epoch, SMOOTHED * self.config.validate_every)
        for name, old in self.average.items():
            if old.is_floating_point():  # integer buffers, such as counters, are not averaged
                state[name] = old.lerp(state[name], newest)
        self.average = state

    def _score(self) -> float:
        assert self.validate is not None
        self.model.eval()
        now = self.model.state_dict()
        if self.config.settle is not None:
            # The last steps are mostly noise while the rate is high, and their score would say little.
            now = copy_state(now)
            self.model.load_state_dict(self.average)
        with torch.no_grad():
            try:
                score = float(self.validate(self.model, self.descent.generator(self.epoch, 2)))
            except FloatingPointError as error:
                self._give_up(str(error), self.epoch)
        if self.config.settle is not None:
            self.model.load_state_dict(now)
        score = float(self.crew.broadcast(score))  # otherwise rounding could make machines diverge
        if not math.isfinite(score):
            self._give_up(f"the held-out score is {score}", self.epoch)
        if self.fit.best_score is None or score < self.fit.best_score:
            self.fit.best_score, self.fit.best_epoch = score, self.epoch
            # What was scored: the average, in a fit that settles.
            self.best = copy_state(self.model.state_dict() if self.config.settle is None else self.average)
        return score

    def exhausted(self) -> bool:
        """Whether patience has run out, in a fit that does not settle then."""
        if self.config.settle is not None or self.config.patience is None or self.fit.best_epoch is None:
            return False
        since = (self.epoch - self.fit.best_epoch) // self.config.validate_every
        if since < self.config.patience:
            return False
        self.fit.stopped = f"no better score since epoch {self.fit.best_epoch}"
        return True

    def finish(self, whole: bool = False) -> None:
        """Write the checkpoint, and load the weights selected by ``keep``; ``whole`` if no epoch is left."""
        if whole and self.n_epochs < self.config.max_epochs:
            self.fit.stopped = f"{FLAT} after epoch {self.settling}"
        # No loss has been computed with the weights after the last step.
        if not all_finite(self.model.state_dict()):
            self._give_up("the last step gave weights that are not finite", self.epoch)
        self.save(last=True)
        if self.config.keep == "best" and self.best:
            self.model.load_state_dict(self.best)
        elif self.config.keep == "average" and self.average:
            self.model.load_state_dict(self.average)
        self.model.eval()

    def _give_up(self, failure: str, epoch: int) -> NoReturn:
        kept = f"the best, of epoch {self.fit.best_epoch}" if self.best else "the last finite ones"
        self.model.load_state_dict(self.best or self.good)
        self.model.eval()
        row = f", after {self.n_failed} consecutive failed steps" if self.n_failed > 1 else ""
        raise FloatingPointError(
            f"Training failed in epoch {epoch}{row}: {failure.rstrip('.')}. "
            f"Try a smaller learning_rate (it was {self.config.learning_rate}), "
            "scale x and y to about unit variance, or look for extreme values in them. "
            f"The weights of the model are {kept}."
        )

    def _boundary(self) -> Checkpoint:
        state = self.optimizer.state_dict()["state"]
        return Checkpoint(
            epoch=self.epoch,
            model=copy_state(self.model.state_dict()),
            optimizer={index: copy_state(values) for index, values in state.items()},
            best=self.best,
            average=self.average,
            n_failed=self.n_failed,
            best_score=self.fit.best_score,
            best_epoch=self.fit.best_epoch,
        )

    def roll_back(self) -> None:
        """Undo an interrupted epoch."""
        last = self.boundary
        last.put_into(self.model, self.optimizer)
        self.epoch, self.n_failed = last.epoch, last.n_failed
        self.best, self.average = last.best, last.average
        self.fit.best_score, self.fit.best_epoch = last.best_score, last.best_epoch
        del self.fit.history[last.epoch :]
        self.settling = self.config.settling(self.fit.history)

    def save(self, last: bool = False) -> None:
        """Write the checkpoint, if there is one; a full disk does not end the fit."""
        self.saved = time.perf_counter()
        self.fit.seconds = self.saved - self.started
        path, state = self.config.checkpoint, self.boundary
        # The next epoch will report weights that are not finite; the file keeps the last good state.
        if path is None or self.crew.rank > 0 or not all_finite(state.model):
            return
        try:
            history = self.fit.history[: state.epoch]
            write_checkpoint(path, state, self.identity, history, self.fit.seconds)
        except OSError as error:
            if last or not self.warned:
                then = "The fit is complete" if last else "Training continues, and will try again"
                warnings.warn(
                    f"the checkpoint {path!r} could not be written after epoch {state.epoch} "
                    f"({error.strerror or error}). {then}; the file, if there is one, is older.",
                    stacklevel=3,
                )
            self.warned = True

    def restore(self) -> None:
        """Continue from the checkpoint, if ``resume`` is set and it exists."""
        path, found, failure = self.config.checkpoint, None, ""
        if self.config.resume and path is not None and self.crew.rank == 0 and Path(path).exists():
            try:
                found = read_checkpoint(path, self.identity, self.model.state_dict())
            except ValueError as error:
                failure = str(error)
        found, failure = self.crew.broadcast((found, failure))
        if failure:
            raise ValueError(failure)
        if found is not None:
            self.boundary, self.fit.history, seconds = found
            self.started -= seconds
            self.roll_back()
            self.good = self.boundary.model

    def how_to_resume(self) -> str:
        """How to resume a fit that was ended from outside."""
        if self.config.checkpoint is None:
            return f"It was in epoch {self.epoch + 1}; without a checkpoint the fit must start again."
        return (
            f"It was in epoch {self.epoch + 1}; start it again with resume, on any number of ranks, to "
            f"continue from the checkpoint {self.config.checkpoint!r}."
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with this fit."""
        settings = self.config.trajectory() | {"noise": "keyed" if self.descent.keyed else None}
        return identify(self.model, self.objective, self.x, settings)
