"""Training of one model by several processes: which take part, and how they stay in step.

``torchrun`` starts a script once per process; the ranks connect when the first fit begins. Every rank has all
rows and computes its part of each step; gradients are added up, so that all ranks take the same step.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import parent_process
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun
# One rank may take much longer than another to prepare its part (a base regressor, a search). A dead rank is
# noticed at once, because its connections close.
_PATIENCE = timedelta(minutes=30)


class LostRankError(RuntimeError):
    """Another process of the job has died, or cannot be reached."""


@final
@dataclass(frozen=True)
class Crew:
    """The processes of a job, and the rank of this one; ``Crew()`` is a process that works alone.

    ``together`` is True under torchrun, even for a single process: draws are then keyed by row, so that the
    fit is the same for any number of ranks.
    """

    rank: int = 0
    size: int = 1
    together: bool = False

    @classmethod
    def join(cls) -> Crew:
        """The job that this process belongs to, which it joins if it has not yet."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized():
            # A joblib worker inherits the environment of a rank without being one.
            if parent_process() is not None or not all(os.environ.get(name) for name in _ENVIRONMENT):
                return cls()
            _open()
        return cls(dist.get_rank(), dist.get_world_size(), True)

    def broadcast(self, value: Any) -> Any:
        """The first rank's value, on all of them."""
        if self.size == 1:
            return value
        values = [value]
        with self._contact():
            dist.broadcast_object_list(values)
        return values[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is True on any rank."""
        if self.size == 1:
            return flag
        flags: list[Any] = [None] * self.size
        with self._contact():
            dist.all_gather_object(flags, flag)
        return any(flags)

    @torch.no_grad()
    def share_state(self, model: nn.Module) -> None:
        """Give every rank the first rank's parameters and buffers."""
        if self.size > 1:
            with self._contact():
                for value in model.state_dict().values():
                    dist.broadcast(value, 0)

    @torch.no_grad()
    def add_up(
        self, parameters: list[nn.Parameter], loss: float, share: float, failed: bool
    ) -> tuple[float, bool]:
        r"""Sum the gradients and losses of all ranks, :math:`\sum_r s_r g_r` with shares s.

        Returns the total loss and whether any rank failed. This takes one message per step. A parameter
        without a gradient on any rank keeps None.
        """
        device = parameters[0].device
        parts, factor = [], 0.0 if failed else share
        for parameter in parameters:
            known = parameter.grad is not None and not failed
            grad = parameter.grad if known and parameter.grad is not None else torch.zeros_like(parameter)
            parts += [grad.reshape(-1).double() * factor, grad.new_tensor([known], dtype=torch.float64)]
        words = [0.0 if failed else loss * share, float(failed)]
        total = torch.cat([*parts, torch.tensor(words, dtype=torch.float64, device=device)])
        with self._contact():
            dist.all_reduce(total)
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            known = bool(total[stop] > 0)
            parameter.grad = total[start:stop].view_as(parameter).to(parameter.dtype) if known else None
            start = stop + 1
        return float(total[-2]), bool(total[-1] > 0)

    @contextmanager
    def announce_end(self, words: Callable[[], str]) -> Iterator[None]:
        """Explain what happened if the job is ended from outside, as by torchrun after a rank has died."""
        if self.size == 1 or threading.current_thread() is not threading.main_thread():
            yield
            return

        def leave(signum: int, frame: Any) -> None:
            print(
                f"rank {self.rank} of {self.size} was terminated: another rank has died, or the job was "
                f"stopped. {words()}",
                file=sys.stderr,
                flush=True,
            )
            # Not an exception: a thread of the collective could keep waiting for a dead rank.
            os._exit(128 + signum)

        before = signal.signal(signal.SIGTERM, leave)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def _contact(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch has no narrower exception for all backends
            cause = str(error).strip().splitlines()[0]
            raise LostRankError(
                f"rank {self.rank} of {self.size} lost contact with the others: one of them has died, or "
                f"cannot be reached ({cause})."
            ) from error


def _open() -> None:
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    # Objects travel over the CPU, gradients from where the model is.
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    atexit.register(_close)


def _close() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_CHUNK, _CHUNK_GPU = 1 << 16, 1 << 22  # counters at a time: a few MB on a CPU, a few 100 MB on a GPU


def philox(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four random 32-bit words for each counter of four such words, all as int64 tensors of one shape.

    >>> zero = torch.zeros(1, dtype=torch.int64)
    >>> [f"{int(word):08x}" for word in philox((zero, zero, zero, zero), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(_ROUNDS):
        # Products wrap around at 64 bits; both halves are right once the sign is masked.
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a = (second >> 32).bitwise_and_(_WORD).bitwise_xor_(b).bitwise_xor_(low)
        c = (first >> 32).bitwise_and_(_WORD).bitwise_xor_(d).bitwise_xor_(high)
        b, d = second.bitwise_and_(_WORD), first.bitwise_and_(_WORD)
        low, high = (low + _KEY_STEPS[0]) & _WORD, (high + _KEY_STEPS[1]) & _WORD
    return a, b, c, d


@final
class KeyedNoise:
    """Noise for some rows (N,), keyed by their index in the whole data, in place of a generator.

    It serves a model that simulates S draws of these rows, stacked draw after draw, (S * N, ...), and takes
    its noise from ``localw2.models.base.normal``; each call gives a new part of each row's noise.

    >>> rows = torch.tensor([5, 7])
    >>> both = KeyedNoise((0, 1), rows, n_draws=1).normal((2, 3), torch.zeros(()))
    >>> alone = KeyedNoise((0, 1), rows[1:], n_draws=1).normal((1, 3), torch.zeros(()))
    >>> torch.equal(both[1:], alone)
    True
    """

    def __init__(self, seed: tuple[int, ...], rows: Tensor, n_draws: int) -> None:
        words = np.random.SeedSequence(seed).generate_state(2, np.uint32)
        self._key = int(words[0]), int(words[1])
        self._rows, self._n_draws = rows, n_draws
        self._calls = 0

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal numbers (S * N, ...) with the dtype and device of ``like``."""
        n = len(self._rows)
        if not shape or shape[0] != self._n_draws * n:
            raise TypeError(
                f"noise of shape {tuple(shape)} cannot be keyed by row: its first axis must be "
                f"{self._n_draws} draw(s) of {n} row(s). Fit this model without noise='keyed' and torchrun."
            )
        width = math.prod(shape[1:])
        blocks = -(-width // 4)
        rows, call = self._rows.to(like.device), self._calls
        self._calls += 1
        drawn = torch.empty((shape[0], width), dtype=like.dtype, device=like.device)
        place = torch.arange(blocks, device=like.device)
        step = max(1, (_CHUNK if like.device.type == "cpu" else _CHUNK_GPU) // max(1, blocks))
        for start in range(0, shape[0], step):
            number = torch.arange(start, min(start + step, shape[0]), device=like.device)[:, None]
            row, draw = rows[number % n].expand(-1, blocks), (number // n).expand(-1, blocks)
            words = philox((row, draw, place.expand_as(row), torch.full_like(row, call)), self._key)
            drawn[start : start + step] = _box_muller(words, like.dtype).flatten(1)[:, :width]
        return drawn.reshape(shape)


def _box_muller(words: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """Four normal numbers, (..., 4), from four words: twice the radius and angle of a planar Gaussian."""
    parts = []
    for first, second in (words[:2], words[2:]):
        # Half a step above 0, where the logarithm diverges.
        radius = first.to(dtype).add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        angle = second.to(dtype).mul_(2 * math.pi * 2.0**-32)
        parts += [radius * angle.cos(), radius * angle.sin()]
    return torch.stack(parts, -1)
