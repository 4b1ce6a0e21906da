"""Normal numbers that depend on (seed, step, row, draw) alone: a row has the same draw on every machine.

A generator that runs on gives a row other numbers when other rows are simulated beside it. Philox (Salmon,
Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) instead scrambles a counter by
a key: any number can be made on its own. The key is (seed, step), the counter (row, draw, call, place).
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_CHUNK, _CHUNK_GPU = 1 << 16, 1 << 22  # counters at a time: in some MB of a CPU, some 100 MB of a GPU


def philox(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four random words of 32 bits for each counter of four such words, all as int64 tensors of one shape.

    >>> zero = torch.zeros(1, dtype=torch.int64)
    >>> [f"{int(word):08x}" for word in philox((zero, zero, zero, zero), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(_ROUNDS):
        # Products wrap around at 64 bits, which leaves both halves right once the sign is masked away.
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a = (second >> 32).bitwise_and_(_WORD).bitwise_xor_(b).bitwise_xor_(low)
        c = (first >> 32).bitwise_and_(_WORD).bitwise_xor_(d).bitwise_xor_(high)
        b, d = second.bitwise_and_(_WORD), first.bitwise_and_(_WORD)
        low, high = (low + _KEY_STEPS[0]) & _WORD, (high + _KEY_STEPS[1]) & _WORD
    return a, b, c, d


@final
class KeyedNoise:
    """A source of noise for some rows (N,), by their numbers in the whole data, in place of a generator.

    It serves a model that simulates S draws of these rows, stacked draw after draw, (S * N, ...), and takes
    its noise from ``localw2.models.base.normal``; each call is a new part of the row's noise.

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
                f"noise of shape {tuple(shape)} cannot be keyed by row: its first axis must run over "
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
    """Four normal numbers, (..., 4), from four words: radius and angle of a Gaussian in the plane, twice."""
    parts = []
    for first, second in (words[:2], words[2:]):
        # Half a step above 0, where the logarithm ends.
        radius = first.to(dtype).add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        angle = second.to(dtype).mul_(2 * math.pi * 2.0**-32)
        parts += [radius * angle.cos(), radius * angle.sin()]
    return torch.stack(parts, -1)
