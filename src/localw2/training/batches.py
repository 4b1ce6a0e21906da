r"""The balls of each step: mini-batches whose loss is an unbiased estimate of the full loss.

Balls are laid out over n places in proportion to their weights: a ball of weight w has :math:`n w / \sum w`
places in expectation. Runs of ``block_balls`` places are drawn at random, and the loss of a batch is the
plain mean over its places. Each place is then equally likely to be any row's ball, so that the expected loss
of any batch, even a short last one, is the full loss :math:`\sum_b w_b v_b / \sum_b w_b`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from torch import Tensor

from localw2._validation import Array
from localw2.balls.lazy import LazyNeighborhoods
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.search import space_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from localw2.losses.objective import Objective
    from localw2.training.config import FitConfig
    from localw2.training.distributed import Crew

_PURPOSE = 1  # separates these random numbers from others of the same seed and epoch


@final
@dataclass(frozen=True)
class Batch:
    """The batch of one step: the rows to simulate (None means all) and the loss on them.

    ``weight`` is the weight of the whole batch within its epoch and ``share`` this process's part of it;
    ``objective`` is None if this process has no part.
    """

    rows: Tensor | None
    objective: Objective | None
    weight: float = 1.0
    share: float = 1.0


@final
class GivenBatches:
    """Batches that the caller makes: the rows and the loss of every step of an epoch, which tells them."""

    whole = False

    def __init__(self, make: Callable[[int, bool], Iterable[tuple[Tensor, Objective]]], crew: Crew) -> None:
        self._make, self._crew = make, crew

    def batches(self, epoch: int, settling: bool) -> Iterator[Batch]:
        """This process's part of the batches of an epoch, counted from 0."""
        for rows, objective in self._make(epoch, settling):
            weight, share = float(len(rows)), 1.0
            if self._crew.size > 1:
                assert isinstance(objective.hoods, Neighborhoods)
                mine = np.array_split(np.arange(objective.hoods.n_balls), self._crew.size)[self._crew.rank]
                if len(mine) == 0:
                    yield Batch(None, None, weight, 0.0)
                    continue
                total = float(objective.hoods.weights.sum())
                own, objective = objective.block(mine)
                rows, share = rows[own], float(objective.hoods.weights.sum()) / total
            yield Batch(rows, objective, weight, share)

    def close(self) -> None:
        """Nothing is in progress between batches."""


def draw_places(
    n: int, block: int, batch: int, most: int | None, rng: np.random.Generator
) -> Iterator[Array]:
    """Batches of about ``batch`` of the places 0 .. n - 1, in runs of ``block``, ``most`` in total.

    Runs start at a random place and wrap around, so that the short last one is equally likely anywhere.

    >>> rng = np.random.default_rng(0)
    >>> [places.tolist() for places in draw_places(7, 2, 4, None, rng)]
    [[6, 0, 2, 3], [4, 5, 1]]
    >>> [len(places) for places in draw_places(10**9, 1, 4, 8, rng)]
    [4, 4]
    """
    n_runs = -(-n // block)
    wanted = n_runs if most is None else min(n_runs, max(1, most // block))
    runs = rng.permutation(n_runs) if wanted == n_runs else rng.choice(n_runs, wanted, replace=False)
    begin = int(rng.integers(n))
    # Batches of similar size: a very short last one would be a noisy step.
    n_batches = -(-wanted // max(1, batch // block))
    for part in np.array_split(runs, n_batches):
        places = (part[:, None] * block + np.arange(block)).ravel()
        yield (places[places < n] + begin) % n


@final
class BallStream:
    """This process's part of the batches of every epoch of a fit.

    They depend only on (seed, epoch). Blocks of lazy neighbourhoods are searched one step ahead, while the
    previous step is computed.
    """

    def __init__(self, objective: Objective, x: Tensor, config: FitConfig, crew: Crew) -> None:
        self._objective, self._config, self._crew = objective, config, crew
        hoods, size = objective.hoods, config.batch_balls
        fits = size is None or (size >= hoods.n_balls and isinstance(hoods, Neighborhoods))
        self.whole = fits and config.epoch_balls is None  # every epoch is one step on all balls
        order = self._spatial_order(x) if crew.size > 1 or config.block_balls > 1 else None
        # The draws must not depend on the number of ranks, only their division among the ranks.
        self._order = order if config.block_balls > 1 else None
        self._place = None if order is None else np.argsort(order)
        self._reach: Array | None = None  # cumulative weights of the balls
        weights = hoods.weights.numpy() if self._order is None else hoods.weights.numpy()[self._order]
        if (weights != weights[0]).any():
            self._reach = np.cumsum(weights)
        self._static = self._shard_of_all() if self.whole else None
        self._ahead: dict[tuple[int, int], Future[Batch]] = {}
        self._searcher = ThreadPoolExecutor(1) if isinstance(hoods, LazyNeighborhoods) else None

    def batches(self, epoch: int, settling: bool = False) -> Iterator[Batch]:
        """The batches of an epoch, counted from 0, the same whether the fit settles or not."""
        if self._static is not None:
            yield self._static
            return
        drawn = self._draw(epoch)
        for number, part in enumerate(drawn):
            ahead = self._ahead.pop((epoch, number), None)
            batch = self._build(*part) if ahead is None else ahead.result()
            if self._searcher is not None:
                self._look_ahead(epoch, number + 1, drawn)
            yield batch

    def close(self) -> None:
        """Cancel the search in progress."""
        if self._searcher is not None:
            self._searcher.shutdown(wait=True, cancel_futures=True)

    def _spatial_order(self, x: Tensor) -> Array:
        hoods = self._objective.hoods
        if isinstance(hoods, LazyNeighborhoods):
            return hoods.order()
        return hoods.order(np.argsort(space_order(x.detach().cpu().double().numpy())))

    def _shard_of_all(self) -> Batch:
        hoods = self._objective.hoods
        assert isinstance(hoods, Neighborhoods)
        if self._crew.size == 1 or self._place is None:
            return Batch(None, self._objective)
        # Shards with similar numbers of edges, which determine the cost of a step.
        order = np.argsort(self._place)
        edges = np.cumsum(hoods.sizes.numpy()[order])
        cuts = np.searchsorted(edges, edges[-1] * np.arange(1, self._crew.size) / self._crew.size)
        mine = np.sort(np.split(order, cuts)[self._crew.rank])
        if len(mine) == 0:
            return Batch(None, None, share=0.0)
        rows, part = self._objective.block(mine)
        return Batch(rows, part, share=float(part.hoods.weights.sum() / hoods.weights.sum()))

    def _draw(self, epoch: int) -> list[tuple[Array, int]]:
        """This process's balls (with repeats) in every batch of an epoch, and the size of the batch."""
        config, n = self._config, self._objective.hoods.n_balls
        rng = np.random.default_rng([config.seed, epoch, _PURPOSE])
        shift = rng.random()
        size = n if config.batch_balls is None else config.batch_balls
        found = []
        for places in draw_places(n, config.block_balls, size, config.epoch_balls, rng):
            balls = places
            if self._reach is not None:
                line = (places + shift) * (self._reach[-1] / n)
                balls = np.minimum(np.searchsorted(self._reach, line, side="right"), n - 1)
            if self._order is not None:
                balls = self._order[balls]
            if self._crew.size > 1 and self._place is not None:
                # Neighbours stay together, so that they share rows.
                near = balls[np.argsort(self._place[balls], kind="stable")]
                balls = np.array_split(near, self._crew.size)[self._crew.rank]
            found.append((balls, len(places)))
        return found

    def _build(self, balls: Array, weight: int) -> Batch:
        if len(balls) == 0:
            return Batch(None, None, weight, 0.0)
        distinct, counts = np.unique(balls, return_counts=True)
        rows, part = self._objective.block(distinct, counts)
        return Batch(rows, part, weight, len(balls) / weight)

    def _look_ahead(self, epoch: int, number: int, drawn: list[tuple[Array, int]]) -> None:
        assert self._searcher is not None
        if number == len(drawn):
            epoch, number = epoch + 1, 0
            if epoch == self._config.max_epochs:
                return
            drawn = self._draw(epoch)
        if (epoch, number) not in self._ahead:
            self._ahead[epoch, number] = self._searcher.submit(self._build, *drawn[number])
