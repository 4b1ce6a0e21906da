"""The fitted law of y given x: a weighted pool of members that draws and answers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

import numpy as np

from localw2._validation import Array
from localw2._wording import describe_weights
from localw2.estimators.regression.member import PREDICTION_DRAWS
from localw2.judging.conformal import (
    LARGEST_SCORE,
    Calibration,
    central_interval,
    central_scores,
    joint_level,
    plus_interval,
    plus_sets,
)

if TYPE_CHECKING:
    from localw2.estimators.regression.mean import FoldedMean
    from localw2.estimators.regression.member import Member
    from localw2.estimators.regression.network import NetworkMember
    from localw2.estimators.regression.outcomes import Outcomes
    from localw2.estimators.tables import Columns


_MOST_ENDS = 1 << 20  # of CV+ sets that are kept at a time


@final
@dataclass(frozen=True, eq=False)
class ConditionalLaw:
    """The distribution of d outputs at any x, as a pool: a draw comes from member k with probability w_k.

    ``columns`` turn a table into the numbers x (N, p) that all methods take, ``mean`` is what members draw
    around, and ``weights`` (K,) add up to 1. Answers are (N, d), or (S, N, d) for draws and quantiles.
    ``without`` has the laws of all rows but one part each, if the calibration needs them.
    """

    columns: Columns
    mean: FoldedMean
    members: tuple[Member, ...]
    weights: Array
    outcomes: Outcomes
    calibration: Calibration | None = None
    without: tuple[ConditionalLaw, ...] = ()

    def __post_init__(self) -> None:
        assert self.weights.shape == (len(self.members),)
        assert (self.weights >= 0).all()
        assert np.isclose(self.weights.sum(), 1)

    def __repr__(self) -> str:
        return f"ConditionalLaw({describe_weights(self.named_weights)})"

    @property
    def network(self) -> NetworkMember | None:
        """The member that is a network, if there is one."""
        found = next((member for member in self.members if hasattr(member, "net")), None)
        return cast("NetworkMember | None", found)

    @property
    def named_weights(self) -> dict[str, float]:
        """The weight of every member, by its name; of several balls of all rows, their sum."""
        found = dict.fromkeys((member.title for member in self.members), 0.0)
        for member, weight in zip(self.members, self.weights, strict=True):
            found[member.title] += float(weight)
        return found

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and variance of y at every row."""
        if len(self.members) == 1:
            return self.members[0].moments(x)
        means, variances = (
            np.stack(part) for part in zip(*(m.moments(x) for m in self.members), strict=True)
        )
        weights = self.weights[:, None, None]
        mean = (weights * means).sum(0)
        return mean, (weights * (variances + (means - mean) ** 2)).sum(0)

    def sample(self, x: Array, n_samples: int, seed: int) -> Array:
        """Independent draws of y, (S, N, d)."""
        rng = np.random.default_rng(seed)
        if len(self.members) == 1:
            return self.members[0].sample(x, n_samples, rng)
        which = rng.choice(len(self.members), size=(n_samples, len(x)), p=self.weights)
        draws = self.members[0].sample(x, n_samples, rng)
        for k, member in enumerate(self.members[1:], start=1):
            draws = np.where(which[..., None] == k, member.sample(x, n_samples, rng), draws)
        return draws

    def quantiles(self, x: Array, levels: Array) -> Array:
        """Quantiles (Q, N, d), output by output, increasing in the level. They are never calibrated."""
        parts = [self.outcomes.quantiles(draws, levels) for _, draws in self.common_draws(x)]
        return np.concatenate(parts, 1)

    def interval(self, x: Array, coverage: float, joint: bool) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals, calibrated where the law is.

        Each output has its own interval; with ``joint`` they form a box that holds all outputs together.
        """
        if self.calibration is None and not (joint and len(self.outcomes.lower) > 1):
            lower, upper = self.quantiles(x, np.array([(1 - coverage) / 2, (1 + coverage) / 2]))
            return lower, upper
        levels = None if self.calibration is None else self.calibration.levels(coverage, joint)
        parts = []
        for _, draws in self.common_draws(x):
            level = joint_level(draws, coverage)[:, None] if levels is None else levels
            parts.append(self.outcomes.within(*central_interval(draws, level)))
        lower, upper = (np.concatenate(part) for part in zip(*parts, strict=True))
        return lower, upper

    def plus_interval(self, rows: list[Array], coverage: float, joint: bool) -> tuple[Array, Array]:
        """The same by CV+; ``rows`` are the new rows in the numbers of each law ``without``."""
        assert self.calibration is not None
        n, blocks = self.calibration.n_rows, []
        weights = self.calibration.weights
        largest = 1.0 if weights is None else float(weights.max())
        total = n if weights is None else float(weights.sum())
        if (total + largest) * (1 - coverage) < largest * (1 - 1e-9):
            warnings.warn(
                f"with {n} calibration rows no CV+ interval of level {coverage:g} has a guarantee: the "
                f"widest one is used. {math.ceil(coverage / (1 - coverage) - 1e-9)} rows would be enough.",
                stacklevel=3,
            )
        numbers, step = self.calibration.parts, max(1, _MOST_ENDS // n)
        each = [self.calibration.scores[numbers == k] for k in range(len(self.without))]
        for parts in zip(
            *(law.common_draws(x) for law, x in zip(self.without, rows, strict=True)), strict=True
        ):
            for start in range(0, parts[0][1].shape[1], step):
                ends = [
                    law.outcomes.within(*plus_sets(scores, draws[:, start : start + step], joint))
                    for law, scores, (_, draws) in zip(self.without, each, parts, strict=True)
                ]
                lower, upper = (np.concatenate(side) for side in zip(*ends, strict=True))
                blocks.append(plus_interval(lower, upper, coverage, weights))
        lower, upper = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return lower, upper

    def scores(self, x: Array, y: Array) -> Array:
        """The level (N, d) of the smallest central interval that holds each y (N, d), for calibration.

        An outcome that the law says is impossible has the largest one: no interval holds it.
        """
        found = np.concatenate([central_scores(y[rows], draws) for rows, draws in self.common_draws(x)])
        return np.where(self.outcomes.allow(y), found, LARGEST_SCORE)

    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, rows, d) with the same randomness at every row, from each member by its weight."""
        if len(self.members) == 1:
            yield from self.members[0].common_draws(x)
            return
        ends = np.round(np.cumsum(self.weights) * PREDICTION_DRAWS).astype(int)
        half = PREDICTION_DRAWS // 2
        # Draws i and i + half go together: their noise may be z and -z.
        pairs = np.random.default_rng(0).permutation(half)
        order = np.stack([pairs, pairs + half], 1).ravel()
        for parts in zip(*(member.common_draws(x) for member in self.members), strict=True):
            counts = np.diff(ends, prepend=0)
            chosen = [draws[order[:count]] for (_, draws), count in zip(parts, counts, strict=True)]
            yield parts[0][0], np.concatenate(chosen)
