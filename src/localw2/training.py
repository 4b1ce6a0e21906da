"""Training: one function, ``train(model, objective, x, config)``, to be watched, stopped and resumed."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, TextIO, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import check_count
from localw2.losses import Objective
from localw2.models.base import RandomMap
from localw2.neighborhoods import LazyNeighborhoods, Neighborhoods
from localw2.persistence import Stored, read, write

# A model and a generator to a score on held-out rows, the lower the better.
Validate = Callable[[RandomMap, torch.Generator], float]
# Called after every epoch with its record; returning True stops the fit.
Callback = Callable[[dict[str, Any]], bool | None]


@final
@dataclass(frozen=True)
class FitConfig:
    """How to train.

    ``n_draws`` draws of every row a step (at least what the loss needs); ``batch_balls`` balls a step, or
    all. ``schedule`` is "cosine" (down to 0 over ``max_epochs``) or "constant". ``keep`` says which weights
    the model has in the end: the "last", the "best" by the held-out score, or the "average" of the last
    ``averaged`` fraction of epochs. ``patience`` stops after so many scores without a better one; scores are
    taken every ``validate_every`` epochs and after the last. ``checkpoint`` is a file, written every
    ``checkpoint_every`` epochs and when the fit ends; ``resume`` continues from it where it exists.
    ``history`` is a JSONL file, a line an epoch. A checkpoint of other rows, another loss or another model is
    refused; ``fingerprint`` names anything else that the result depends on (what ``validate`` looks at, say).
    """

    max_epochs: int = 1000
    learning_rate: float = 0.02
    weight_decay: float = 0.005
    schedule: str = "cosine"
    n_draws: int = 2
    batch_balls: int | None = None
    keep: str = "last"
    averaged: float = 0.25
    validate_every: int = 10
    patience: int | None = None
    seed: int = 0
    progress: bool = False
    checkpoint: str | None = None
    checkpoint_every: int = 50
    resume: bool = False
    history: str | None = None
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in ("max_epochs", "n_draws", "validate_every", "checkpoint_every"):
            check_count(getattr(self, name), name, 1)
        check_count(self.seed, "seed", 0)
        for name, choices in (("schedule", ("cosine", "constant")), ("keep", ("last", "best", "average"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known; choose one of {choices}.")
        for name in ("learning_rate", "weight_decay", "averaged"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{name}={value!r} is not a number.")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate={self.learning_rate} must be a positive number, such as 0.02.")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay={self.weight_decay} must be a number >= 0.")
        if not 0 < self.averaged <= 1:
            raise ValueError(f"averaged={self.averaged} is the last fraction of epochs: between 0 and 1.")
        if self.batch_balls is not None:
            check_count(self.batch_balls, "batch_balls", 1)
        if self.patience is not None:
            check_count(self.patience, "patience", 1)
        if self.resume and self.checkpoint is None:
            raise ValueError("resume=True needs checkpoint, the file to continue from and to write to.")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch (from 0)."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / self.max_epochs))

    def trajectory(self) -> dict[str, Any]:
        """The settings that decide the result: a checkpoint is of use only to a fit that shares them."""
        seen = {"progress", "checkpoint", "checkpoint_every", "resume", "history"}
        return {name: value for name, value in asdict(self).items() if name not in seen}


@final
@dataclass
class Fit:
    """What a fit leaves: the trained model, the history (one record an epoch), and why it stopped."""

    model: RandomMap
    config: FitConfig
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    stopped: str = "all epochs done"
    best_score: float | None = None
    best_epoch: int | None = None
    seconds: float = 0.0

    @property
    def losses(self) -> list[float]:
        """The training loss of every epoch."""
        return [record["loss"] for record in self.history]


def train(
    model: RandomMap,
    objective: Objective,
    x: Tensor,
    config: FitConfig | None = None,
    validate: Validate | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> Fit:
    """Minimise the objective over the model's parameters with AdamW.

    The draws of an epoch depend on (seed, epoch) alone, so that a resumed fit continues as if it had never
    stopped. Ctrl-C stops cleanly: the epoch under way is undone and what there is is kept. A callback that
    returns True stops too. A loss or score that is not finite is a FloatingPointError, after which the model
    has the best weights so far, or the last that gave a finite loss.

    >>> from localw2 import Neighborhoods
    >>> from localw2.models.linear import RandomLinear
    >>> x = torch.linspace(0, 1, 50)[:, None]
    >>> objective = Objective(2 * x, Neighborhoods.within(x, 0.1))
    >>> fit = train(RandomLinear(1), objective, x, FitConfig(max_epochs=50))
    >>> fit.losses[-1] < fit.losses[0], fit.stopped
    (True, 'all epochs done')
    """
    config = config or FitConfig()
    _check(model, objective, x, config, validate)
    start = time.perf_counter()
    run = _Run(model, objective, x, config, validate)
    if config.resume and config.checkpoint is not None and Path(config.checkpoint).exists():
        run.restore(config.checkpoint)
    before = run.fit.seconds
    with _History(config.history, run.fit.history) as history, _progress(config) as show:
        try:
            while run.epoch < config.max_epochs and not run.exhausted():
                entry = run.step()
                history.append(entry)
                show(run)
                if sum(bool(callback(entry)) for callback in callbacks):
                    run.fit.stopped = f"a callback asked for it after epoch {run.epoch}"
                    break
                run.fit.seconds = before + time.perf_counter() - start
                if config.checkpoint is not None and run.epoch % config.checkpoint_every == 0:
                    run.save(config.checkpoint)
        except KeyboardInterrupt:
            run.roll_back()
            history.rewrite(run.fit.history)
            run.fit.stopped = f"interrupted after epoch {run.epoch}"
    run.check_weights()
    run.fit.seconds = before + time.perf_counter() - start
    if config.checkpoint is not None:
        run.save(config.checkpoint)
    run.finish()
    return run.fit


def _check(
    model: RandomMap, objective: Objective, x: Tensor, config: FitConfig, validate: Validate | None
) -> None:
    """Say now what would otherwise show after hours."""
    if config.keep == "best" and validate is None:
        raise ValueError("keep='best' needs validate, a score on held-out rows, to know which is best.")
    if config.patience is not None and validate is None:
        raise ValueError("patience needs validate: the training loss of a flexible model falls for ever.")
    if not isinstance(model, RandomMap):
        raise ValueError(f"model is {type(model).__name__}; give a RandomMap, such as RandomMLP(n_inputs).")
    if not isinstance(x, Tensor):
        raise ValueError(f"x is {type(x).__name__}; give a tensor, as in torch.as_tensor(x).")
    if len(x) != len(objective.y):
        raise ValueError(
            f"x has {len(x)} rows and the objective {len(objective.y)}; they must be the same rows."
        )
    if isinstance(objective.hoods, LazyNeighborhoods) and config.batch_balls is None:
        raise ValueError("lazy neighbourhoods never hold all balls: set batch_balls, such as 256.")
    for name in ("checkpoint", "history"):
        path = getattr(config, name)
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise ValueError(f"{name}={str(path)!r}: its folder does not exist; create it before the fit.")


@dataclass(frozen=True)
class _Boundary:
    """All that the next epoch depends on, as it was between two epochs; never changed in place."""

    epoch: int
    model: dict[str, Tensor]
    optimizer: dict[int, dict[str, Tensor]]
    best: dict[str, Tensor]
    average: dict[str, Tensor]
    n_averaged: int
    best_score: float | None
    best_epoch: int | None


class _Run:
    """A fit under way: live state, and the boundary to fall back to when an epoch is cut short."""

    def __init__(
        self, model: RandomMap, objective: Objective, x: Tensor, config: FitConfig, validate: Validate | None
    ) -> None:
        self.model, self.objective, self.x, self.config, self.validate = model, objective, x, config, validate
        # The fused form takes a quarter of the time of the others for a network of this size.
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.fit = Fit(model, config)
        self.epoch = 0
        self.best: dict[str, Tensor] = {}
        self.average: dict[str, Tensor] = {}
        self.n_averaged = 0
        self.n_draws = max(config.n_draws, objective.discrepancy.min_draws)
        self.boundary = self._boundary()
        self.good = self.boundary.model

    def generator(self, purpose: int) -> torch.Generator:
        """Random numbers of this epoch: from (seed, epoch, purpose) alone, so nothing needs to be stored."""
        seed = np.random.SeedSequence([self.config.seed, self.epoch, purpose]).generate_state(1, np.uint64)[0]
        return torch.Generator(device=self.x.device).manual_seed(int(seed >> np.uint64(1)))

    def step(self) -> dict[str, Any]:
        """One epoch: every ball once."""
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.epoch)
        self.model.train()
        generator = self.generator(0)
        total, weight = 0.0, 0.0
        for rows, objective, share in self._batches():
            loss = objective(self._simulate(self.x if rows is None else self.x[rows], generator))
            value = float(loss.detach())
            if not math.isfinite(value):
                self._give_up(f"the loss is {value}", self.epoch + 1)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total, weight = total + share * value, weight + share
        self.epoch += 1
        entry: dict[str, Any] = {
            "epoch": self.epoch,
            "loss": total / weight,
            "rate": self.config.rate(self.epoch - 1),
        }
        self._keep_average()
        last = self.epoch == self.config.max_epochs
        if self.validate is not None and (last or self.epoch % self.config.validate_every == 0):
            entry["score"] = self._score()
        entry["seconds"] = time.perf_counter() - start
        self.fit.history.append(entry)
        # These weights gave finite losses; those that came out of the last step are yet to be seen.
        self.good = self.boundary.model
        self.boundary = self._boundary()
        return entry

    def _simulate(self, x: Tensor, generator: torch.Generator) -> Tensor:
        yhat = self.model.simulate(x, self.n_draws, generator)
        if self.objective.y.ndim == 1 and yhat.ndim == 3 and yhat.shape[-1] == 1:
            yhat = yhat.squeeze(-1)
        # On a GPU the look would stall the stream; there the loss tells.
        if yhat.device.type == "cpu" and not math.isfinite(float(yhat.detach().sum())):
            self._give_up("the model gives values that are not finite", self.epoch + 1)
        return yhat

    def _batches(self) -> Iterator[tuple[Tensor | None, Objective, float]]:
        size, n_balls = self.config.batch_balls, self.objective.hoods.n_balls
        whole = isinstance(self.objective.hoods, Neighborhoods)
        if size is None or (size >= n_balls and whole):
            yield None, self.objective, 1.0
            return
        order = torch.randperm(
            n_balls, generator=torch.Generator().manual_seed(self.generator(1).initial_seed())
        )
        for balls in order.split(size):
            rows, part = self.objective.block(balls.numpy())
            yield rows.to(self.x.device), part, float(part.hoods.weights.sum())

    def _keep_average(self) -> None:
        if self.config.keep != "average" or self.epoch <= (1 - self.config.averaged) * self.config.max_epochs:
            return
        self.n_averaged += 1
        state = _copy(self.model.state_dict())
        for name, old in self.average.items():
            if old.is_floating_point():  # a buffer that counts is not averaged
                state[name] = old.lerp(state[name], 1 / self.n_averaged)
        self.average = state

    def _score(self) -> float:
        assert self.validate is not None
        self.model.eval()
        with torch.no_grad():
            score = float(self.validate(self.model, self.generator(2)))
        if not math.isfinite(score):
            self._give_up(f"the held-out score is {score}", self.epoch)
        if self.fit.best_score is None or score < self.fit.best_score:
            self.fit.best_score, self.fit.best_epoch = score, self.epoch
            self.best = _copy(self.model.state_dict())
        return score

    def exhausted(self) -> bool:
        """Whether patience has run out."""
        if self.config.patience is None or self.fit.best_epoch is None:
            return False
        since = (self.epoch - self.fit.best_epoch) // self.config.validate_every
        if since < self.config.patience:
            return False
        self.fit.stopped = f"no better score since epoch {self.fit.best_epoch}"
        return True

    def finish(self) -> None:
        """Put the weights that were asked for into the model."""
        if self.config.keep == "best" and self.best:
            self.model.load_state_dict(self.best)
        elif self.config.keep == "average" and self.average:
            self.model.load_state_dict(self.average)
        self.model.eval()

    def check_weights(self) -> None:
        """Raise if the last step, whose result no loss has seen, spoilt the weights."""
        if not _all_finite(self.model.state_dict()):
            self._give_up("the last step made weights that are not finite,", self.epoch)

    def _give_up(self, what: str, epoch: int) -> None:
        kept = f"those of epoch {self.fit.best_epoch}, the best" if self.best else "the last that were finite"
        self.model.load_state_dict(self.best or self.good)
        self.model.eval()
        raise FloatingPointError(
            f"{what} in epoch {epoch}. Try a smaller learning_rate "
            f"(it was {self.config.learning_rate}), "
            "scale x and y to about unit variance, or look for extreme values in them. "
            f"The model has weights again, {kept}."
        )

    def _boundary(self) -> _Boundary:
        state = {index: _copy(values) for index, values in self.optimizer.state_dict()["state"].items()}
        model, fit = _copy(self.model.state_dict()), self.fit
        return _Boundary(
            self.epoch, model, state, self.best, self.average, self.n_averaged, fit.best_score, fit.best_epoch
        )

    def roll_back(self) -> None:
        """Undo an epoch that was cut short."""
        last = self.boundary
        self.model.load_state_dict(last.model)
        # The optimiser's own loading keeps the tensors that it is given and would then change them.
        state = {index: _copy(values) for index, values in last.optimizer.items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.epoch, self.best, self.average, self.n_averaged = (
            last.epoch,
            last.best,
            last.average,
            last.n_averaged,
        )
        self.fit.best_score, self.fit.best_epoch = last.best_score, last.best_epoch
        del self.fit.history[last.epoch :]

    def save(self, path: str) -> None:
        """Write everything that the next epoch depends on, atomically."""
        last = self.boundary
        if not _all_finite(last.model):
            return  # the next epoch will say so; the file keeps the last state of use
        tensors = {f"model.{name}": value for name, value in last.model.items()}
        tensors |= {f"best.{name}": value for name, value in last.best.items()}
        tensors |= {f"average.{name}": value for name, value in last.average.items()}
        for index, state in last.optimizer.items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        settings = {
            "epoch": last.epoch,
            "n_averaged": last.n_averaged,
            "best_score": last.best_score,
            "best_epoch": last.best_epoch,
            "seconds": self.fit.seconds,
            "history": self.fit.history[: last.epoch],
            "identity": self.identity,
        }
        write(path, Stored("checkpoint", settings, tensors, {}))

    def restore(self, path: str) -> None:
        """Continue from a checkpoint of the same fit."""
        stored = read(path)
        if stored.kind != "checkpoint":
            raise ValueError(
                f"{path} holds a {stored.kind}, not a checkpoint; name another file to resume from."
            )
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "average": {}, "optimizer": {}}
        for name, value in stored.tensors.items():
            group, _, rest = name.partition(".")
            groups.setdefault(group, {})[rest] = value
        self._check_same(path, stored.settings.get("identity"), groups["model"])
        optimizer: dict[int, dict[str, Tensor]] = {}
        for name, value in groups["optimizer"].items():
            index, _, key = name.partition(".")
            optimizer.setdefault(int(index), {})[key] = value
        device = {name: value.device for name, value in self.model.state_dict().items()}
        best, average = (
            {name: value.to(device[name]) for name, value in groups[group].items()}
            for group in ("best", "average")
        )
        past = stored.settings
        self.boundary = _Boundary(
            past["epoch"],
            groups["model"],
            optimizer,
            best,
            average,
            past["n_averaged"],
            past["best_score"],
            past["best_epoch"],
        )
        self.fit.history = list(past["history"])
        self.fit.seconds = past["seconds"]
        self.roll_back()
        self.boundary = self._boundary()
        self.good = self.boundary.model

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with a fit to be of use to it."""
        # A printed address (of an activation function, say) differs between processes.
        model = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.model))
        data = _digest(self.x, self.objective)
        identity: dict[str, Any] = json.loads(json.dumps({**self.config.trajectory(), "data": data}))
        return {**identity, "model": model}

    def _check_same(self, path: str, theirs: Any, weights: dict[str, Tensor]) -> None:
        ours, theirs = self.identity, theirs if isinstance(theirs, dict) else {}
        changed = sorted(name for name in ours if ours[name] != theirs.get(name))
        if not changed and _kinds(weights) != _kinds(self.model.state_dict()):
            changed = ["model"]
        if not changed:
            return
        named = [name for name in changed if name not in ("data", "model")]
        named += ["the model"] * ("model" in changed) + ["the data or the loss"] * ("data" in changed)
        raise ValueError(
            f"{path} is the checkpoint of another fit: {', '.join(named)} differ. "
            "Resume with the same ones, or name another checkpoint file."
        )


def _kinds(state: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (value.dtype, *value.shape) for name, value in state.items()}


def _digest(x: Tensor, objective: Objective) -> str:
    """A hash of the rows, the balls and the loss."""
    digest = hashlib.sha256()
    hoods, discrepancy = objective.hoods, objective.discrepancy
    tensors = [x, objective.y, objective.center, objective.scale]
    if isinstance(hoods, Neighborhoods):
        tensors += [hoods.indptr, hoods.rows, hoods.weights]
    for tensor in tensors:
        if tensor is not None:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().numpy().tobytes())
        digest.update(b";")
    # Another's discrepancy may print its address, so only its name is used.
    loss = repr(discrepancy) if is_dataclass(discrepancy) else type(discrepancy).__qualname__
    digest.update(f"{loss};{hoods!r}".encode())
    return digest.hexdigest()


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _all_finite(state: dict[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in state.values())


class _History:
    """A JSONL file with a line an epoch, flushed as it is written so that other tools can follow it."""

    def __init__(self, path: str | None, past: list[dict[str, Any]]) -> None:
        self.file: TextIO | None = None
        if path is not None:
            self.file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by __exit__)
            # A resumed fit starts where its checkpoint ended: later lines of the first run are written anew.
            self.rewrite(past)

    def append(self, *entries: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write("".join(json.dumps(entry) + "\n" for entry in entries))
            self.file.flush()

    def rewrite(self, entries: list[dict[str, Any]]) -> None:
        if self.file is not None:
            self.file.seek(0)
            self.file.truncate()
            self.append(*entries)

    def __enter__(self) -> _History:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()


@contextmanager
def _progress(config: FitConfig) -> Iterator[Callable[[_Run], None]]:
    """A bar with loss, score and time left on a terminal; nothing in a pipe."""
    if not config.progress:
        yield lambda run: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("fit"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=config.max_epochs)

        def show(run: _Run) -> None:
            text = f"loss {run.fit.history[-1]['loss']:.4g}"
            if run.fit.best_score is not None:
                text += f", best score {run.fit.best_score:.4g}"
            bar.update(task, completed=run.epoch, description=text)

        yield show
