"""The settings of training, validated, and its result."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, final

from localw2._validation import check_count, check_flag, check_number

if TYPE_CHECKING:
    from localw2.models.base import RandomMap


def _check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {choices}.")
    return value


def _check_path(value: Any, name: str) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name}={value!r} is not a path; give a file name or None.")
    return os.fsdecode(value)


# Why a fit stopped, if nothing interrupted it.
ALL_DONE, FLAT = "all epochs done", "the held-out score was flat"

_RISE = 0.2  # of the epochs of a one-cycle schedule, during which the learning rate grows
_EPOCHS = ("max_epochs", "validate_every", "patience", "checkpoint_every")
_SIZES = ("n_draws", "batch_balls", "epoch_balls", "block_balls")
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(_EPOCHS + _SIZES, partial(check_count, low=1)),
    **dict.fromkeys(("max_skipped", "seed"), partial(check_count, low=0)),
    **dict.fromkeys(("progress", "resume"), check_flag),
    **dict.fromkeys(("checkpoint", "history"), _check_path),
    "learning_rate": partial(
        check_number, valid=lambda v: 0 < v < math.inf, words="a number > 0, such as 0.02"
    ),
    "weight_decay": partial(check_number, valid=lambda v: 0 <= v < math.inf, words="a number >= 0"),
    "schedule": partial(_check_choice, choices=("cosine", "one-cycle", "constant")),
    "noise": partial(_check_choice, choices=("keyed",)),
    "keep": partial(_check_choice, choices=("last", "best", "average")),
    "averaged": partial(
        check_number, valid=lambda v: 0 < v <= 1, words="a fraction of the epochs, at most 1"
    ),
    "settle": partial(check_number, valid=lambda v: 0 < v <= 1, words="a fraction of the epochs, at most 1"),
    "max_gradient": partial(check_number, valid=lambda v: v > 0, words="a positive number, or None"),
}


@final
@dataclass(frozen=True)
class FitConfig:
    """The settings of training.

    A step simulates ``n_draws`` draws of every row (at least as many as the loss needs) on
    ``batch_balls`` balls, or on all. Balls are drawn at random in proportion to their weights, so that
    the loss of a batch is an unbiased estimate of the full loss; ``block_balls`` > 1 draws runs of that
    many neighbouring balls, which share rows. An epoch draws all balls, or ``epoch_balls`` of them.
    ``noise="keyed"`` keys draws by row, as under torchrun. ``schedule`` is "cosine" (down to 0 over
    ``max_epochs``), "one-cycle" (up during the first fifth, then as cosine) or "constant". ``keep``
    selects the final weights: the "last", the "best" by the held-out score, or the "average" over the
    last ``averaged`` fraction of epochs. Scores are computed every ``validate_every`` epochs and after
    the last; training stops after ``patience`` scores without improvement. With ``settle`` it does not stop
    there, but settles: the rate falls to 0, as in the second half of a cosine, over this fraction of
    ``max_epochs``, at the end of which the fit is done (and over the last epochs of which "average"
    averages); if scores go on improving, it settles in time to be done after ``max_epochs``. It scores
    weights that are averaged over the last epochs, because single steps are mostly noise while the rate is
    high. ``checkpoint`` is a file, written every ``checkpoint_every`` epochs, or after 30 seconds if these
    take longer, and at the end; ``resume`` continues from it if it exists. ``history`` is a JSONL file with
    one line per epoch. ``max_gradient`` clips the norm of the gradient in all parameters. Up to
    ``max_skipped`` consecutive steps may fail (the simulation raises FloatingPointError, or outputs, loss or
    gradient are not finite) and are skipped; one more ends the fit. A checkpoint of other rows, another loss
    or another model is refused; ``fingerprint`` identifies anything else that the result depends on (the data
    of ``validate``, for example).
    """

    max_epochs: int = 1000
    learning_rate: float = 0.02
    weight_decay: float = 0.005
    schedule: str = "cosine"
    n_draws: int = 2
    batch_balls: int | None = None
    epoch_balls: int | None = None
    block_balls: int = 1
    noise: str | None = None
    keep: str = "last"
    averaged: float = 0.25
    validate_every: int = 10
    patience: int | None = None
    settle: float | None = None
    max_gradient: float | None = None
    max_skipped: int = 0
    seed: int = 0
    progress: bool = False
    checkpoint: str | None = None
    checkpoint_every: int = 50
    resume: bool = False
    history: str | None = None
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None or getattr(FitConfig, name) is not None:
                # Built-in numbers and strings, because torch and JSON take no others.
                object.__setattr__(self, name, check(value, name))
        if self.block_balls > (self.batch_balls or self.block_balls):
            raise ValueError(
                f"block_balls={self.block_balls} exceeds batch_balls={self.batch_balls}, but a batch "
                "consists of whole blocks; reduce block_balls."
            )
        if self.resume and self.checkpoint is None:
            raise ValueError("resume=True needs checkpoint, the file to continue from.")
        if self.settle is not None and self.patience is None:
            raise ValueError("settle says what follows patience scores without improvement; give patience.")
        if self.keep == "average" and self.patience is not None and self.averaged > (self.settle or 0.0):
            raise ValueError(
                "keep='average' averages the last part of max_epochs, which a fit with patience may not "
                "reach; use keep='best', patience=None, or settle, at least as large a part."
            )

    @property
    def n_settling(self) -> int:
        """How many epochs a fit settles for."""
        return 0 if self.settle is None else math.ceil(self.settle * self.max_epochs)

    def settling(self, history: list[dict[str, Any]]) -> int | None:
        """The number of epochs after which the fit began to settle; None if it has not begun.

        >>> config = FitConfig(max_epochs=100, validate_every=1, patience=2, settle=0.3)
        >>> config.settling([{"score": score} for score in (3.0, 2.0, 2.5)])
        >>> config.settling([{"score": score} for score in (3.0, 2.0, 2.5, 2.1, 1.0)])
        4
        """
        if self.settle is None or self.patience is None:
            return None
        latest = self.max_epochs - self.n_settling
        best, since = math.inf, 0
        for epoch, record in enumerate(history[:latest], start=1):
            if "score" not in record:
                continue
            best, since = (record["score"], 0) if record["score"] < best else (best, since + 1)
            if since == self.patience:
                return epoch
        return latest if len(history) >= latest else None

    def n_epochs(self, settling: int | None) -> int:
        """How many epochs there are, if the fit settles after so many."""
        return self.max_epochs if settling is None else settling + self.n_settling

    def rate(self, epoch: int, settling: int | None = None) -> float:
        """The learning rate of an epoch, counted from 0, in a fit that settles after so many epochs."""
        if settling is not None and epoch >= settling:
            done = (epoch - settling) / self.n_settling
            return self.rate(settling) * (1 - math.sin(0.5 * math.pi * done))
        if self.schedule == "constant":
            return self.learning_rate
        start = _RISE * self.max_epochs if self.schedule == "one-cycle" else 0.0
        if epoch < start:
            return self.learning_rate * (epoch + 1) / (math.floor(start) + 1)
        done = (epoch - start) / (self.max_epochs - start)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))

    def n_averaged(self, epoch: int, settling: int | None = None) -> int:
        """How many of the first ``epoch`` epochs belong to the average."""
        unused = self.max_epochs - self.n_epochs(settling)
        before = math.floor((1 - self.averaged) * self.max_epochs) - unused
        before = before if settling is None else max(before, settling)
        return max(0, epoch - before) if self.keep == "average" else 0

    def trajectory(self) -> dict[str, Any]:
        """The settings that determine the result, which a fit must share with its checkpoint."""
        # max_skipped only says when to give up; a fit that did may resume with a larger one.
        other = {"progress", "checkpoint", "checkpoint_every", "resume", "history", "max_skipped"}
        return {name: value for name, value in asdict(self).items() if name not in other}


@final
@dataclass
class Fit:
    """The result of a fit: the trained model, the history (one record per epoch), and why it stopped."""

    model: RandomMap
    config: FitConfig
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    stopped: str = ALL_DONE
    best_score: float | None = None
    best_epoch: int | None = None
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do: all epochs are done, or it settled after a flat held-out score."""
        return self.stopped == ALL_DONE or self.stopped.startswith(FLAT)

    @property
    def losses(self) -> list[float]:
        """The training loss of every epoch."""
        return [record["loss"] for record in self.history]

    @property
    def skipped(self) -> int:
        """The number of steps that failed and were skipped."""
        return sum(record.get("skipped", 0) for record in self.history)
