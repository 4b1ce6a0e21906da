"""Mini-batches of trajectories, compared with each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np
import torch

from localw2._validation import Array
from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.ragged import Balls
from localw2.losses.objective import Objective

if TYPE_CHECKING:
    from localw2.estimators.dynamics.trajectories import Near, Rows

_PURPOSE = 4  # separates these random numbers from others of the same seed and epoch


@final
@dataclass(frozen=True)
class TrajectoryBatches:
    """The steps of an epoch: about ``size`` trajectories each, as many steps as show every one once.

    If all start from one state, a step compares some of them, drawn at random, time by time. Otherwise it
    compares two parts of balls of initial states (or more, of small balls), which are drawn in proportion to
    the trajectories that they belong to. The truth minimises a debiased loss in balls of any size, so that
    parts of balls do as well as whole ones, and the cost of an epoch is linear in the trajectories.

    ``held_out`` (n,) says which trajectories are left out, until the fit settles.
    """

    rows: Rows
    windows: list[Array]
    near: list[Near]
    objective: Objective  # of all rows
    size: int
    seed: int
    held_out: Array

    @property
    def n(self) -> int:
        """Number of trajectories."""
        return len(self.near[0].members)

    @property
    def per_epoch(self) -> int:
        """Number of steps of an epoch."""
        return math.ceil(self.n / self.size)

    @property
    def largest(self) -> int:
        """Trajectories that are compared with each other, at most."""
        if len(self.near) == 1:
            return math.ceil(self.n / self.per_epoch)
        return min(max(2, self.size // 2), max(int(ball.members.sum()) for ball in self.near))

    def __call__(self, epoch: int, settling: bool) -> Iterator[tuple[torch.Tensor, Objective]]:
        """The rows and the loss of every step of an epoch, counted from 0."""
        rng = np.random.default_rng([self.seed, epoch, _PURPOSE])
        for groups in self._draw(rng, self.held_out & (not settling)):
            found = self.make(groups)
            if found is not None:
                yield found

    def _draw(self, rng: np.random.Generator, without: Array) -> list[list[Array]]:
        """For every step of an epoch, groups of trajectories that are compared with each other."""
        if len(self.near) == 1:
            drawn = rng.permutation(self.n)
            return [[part] for part in np.array_split(drawn[~without[drawn]], self.per_epoch)]
        reach = np.cumsum([ball.centres.sum() for ball in self.near])
        most, batches, count = self.largest, [], self.per_epoch
        for _ in range(count):
            groups: list[Array] = []
            while sum(map(len, groups)) < min(self.size, self.n - int(without.sum())):
                ball = self.near[int(np.searchsorted(reach, rng.integers(reach[-1]), side="right"))]
                members = np.flatnonzero(ball.members & ~without)
                groups.append(rng.choice(members, min(most, len(members)), replace=False))
            batches.append(groups)
        return batches

    def make(self, groups: list[Array]) -> tuple[torch.Tensor, Objective] | None:
        """The rows of these groups, and the loss in balls of one window and one group."""
        found, sizes = [], []
        for group in groups:
            chosen = np.zeros(self.n, bool)
            chosen[group] = True
            kept = np.flatnonzero(chosen[self.rows.number])
            kept = kept[np.argsort(self._window[kept], kind="stable")]
            counts = np.bincount(self._window[kept], minlength=len(self.windows))
            enough = counts >= self.objective.discrepancy.min_size
            found.append(kept[enough[self._window[kept]]])
            sizes.append(counts[enough])
        edges = np.concatenate(found)
        if len(edges) == 0:  # missing values left every window too small
            return None
        rows, local = np.unique(edges, return_inverse=True)
        counts = np.concatenate(sizes)
        whole, at = self.objective, torch.from_numpy(rows).to(self.objective.y.device)
        balls = Balls(counts, local.astype(np.int32))
        weights = None if whole.hoods.sample_weight is None else whole.hoods.sample_weight.numpy()
        of_balls = counts if weights is None else np.add.reduceat(weights[edges], balls.starts)
        hoods = Neighborhoods(balls, len(rows), of_balls, None, None if weights is None else weights[rows])
        center, scale = (None if v is None else v[at] for v in (whole.center, whole.scale))
        return torch.from_numpy(rows), Objective(whole.y[at], hoods, whole.discrepancy, center, scale)

    @cached_property
    def _window(self) -> Array:
        """The window of each row."""
        found = np.empty(len(self.rows.number), np.int64)
        for i, window in enumerate(self.windows):
            found[window] = i
        return found
