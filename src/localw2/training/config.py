"""How to train: every setting of a fit, checked and made plain."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from numbers import Real
from typing import Any, final

from localw2._validation import check_count, check_flag


def _check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} is not known; choose one of {choices}.")
    return value


def _check_number(value: Any, name: str, valid: Callable[[float], bool], words: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value!r} is not a number.")
    if not valid(float(value)):
        raise ValueError(f"{name}={value} {words}.")
    return float(value)


def _check_path(value: Any, name: str) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name}={value!r} is not a path; give a file name, or None.")
    return os.fsdecode(value)


_OPTIONAL = ("batch_balls", "epoch_balls", "noise", "patience", "max_gradient", "checkpoint", "history")
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "max_epochs": partial(check_count, low=1),
    "learning_rate": partial(
        _check_number, valid=lambda v: 0 < v < math.inf, words="must be a positive number, such as 0.02"
    ),
    "weight_decay": partial(_check_number, valid=lambda v: 0 <= v < math.inf, words="must be a number >= 0"),
    "schedule": partial(_check_choice, choices=("cosine", "constant")),
    "n_draws": partial(check_count, low=1),
    "batch_balls": partial(check_count, low=1),
    "epoch_balls": partial(check_count, low=1),
    "block_balls": partial(check_count, low=1),
    "noise": partial(_check_choice, choices=("keyed",)),
    "keep": partial(_check_choice, choices=("last", "best", "average")),
    "averaged": partial(
        _check_number, valid=lambda v: 0 < v <= 1, words="is the last fraction of epochs: between 0 and 1"
    ),
    "validate_every": partial(check_count, low=1),
    "patience": partial(check_count, low=1),
    "max_gradient": partial(_check_number, valid=lambda v: v > 0, words="must be a positive number, or None"),
    "max_skipped": partial(check_count, low=0),
    "seed": partial(check_count, low=0),
    "progress": check_flag,
    "checkpoint": _check_path,
    "checkpoint_every": partial(check_count, low=1),
    "resume": check_flag,
    "history": _check_path,
}


@final
@dataclass(frozen=True)
class FitConfig:
    """How to train.

    ``n_draws`` draws of every row a step (at least what the loss needs); ``batch_balls`` balls a step, or
    all. They are drawn at random, in proportion to their weights, so that the loss of a batch is an unbiased
    estimate of the full one; ``block_balls`` > 1 draws runs of so many neighbouring balls, which share rows.
    An epoch draws all balls, or ``epoch_balls`` of them. ``noise="keyed"`` keys draws by row, as torchrun
    does. ``schedule`` is "cosine" (down to 0 over ``max_epochs``) or "constant". ``keep`` says which weights
    the model has in the end: the "last", the "best" by the held-out score, or the "average" of the last
    ``averaged`` fraction of epochs. ``patience`` stops after so many scores without a better one; scores are
    taken every ``validate_every`` epochs and after the last. ``checkpoint`` is a file, written every
    ``checkpoint_every`` epochs and when the fit ends; ``resume`` continues from it where it exists.
    ``history`` is a JSONL file, a line an epoch. ``max_gradient`` bounds the norm of the gradient in all
    parameters: a longer one is shortened to it. So many as ``max_skipped`` steps in a row may fail (a
    simulation that raises FloatingPointError; outputs, a loss or a gradient that is not finite) and are left
    out; one more ends the fit. A checkpoint of other rows, another loss or another model is refused;
    ``fingerprint`` names anything else that the result depends on (what ``validate`` looks at, say).
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
            if value is not None or name not in _OPTIONAL:
                # Python's own numbers and strings: torch and JSON take no others.
                object.__setattr__(self, name, check(value, name))
        if self.block_balls > (self.batch_balls or self.block_balls):
            raise ValueError(
                f"block_balls={self.block_balls} is more than batch_balls={self.batch_balls}; a batch is "
                "made of whole blocks, so give at most as many."
            )
        if self.resume and self.checkpoint is None:
            raise ValueError("resume=True needs checkpoint, the file to continue from and to write to.")
        if self.keep == "average" and self.patience is not None:
            raise ValueError(
                "keep='average' takes the last part of max_epochs, which a fit with patience may not reach; "
                "choose keep='best', or patience=None."
            )

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch (from 0)."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / self.max_epochs))

    def trajectory(self) -> dict[str, Any]:
        """The settings that decide the result: a checkpoint is of use only to a fit that shares them."""
        # max_skipped only says when to give up, so that a fit which did can go on with a larger one.
        other = {"progress", "checkpoint", "checkpoint_every", "resume", "history", "max_skipped"}
        return {name: value for name, value in asdict(self).items() if name not in other}
