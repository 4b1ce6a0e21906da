"""The joint law of numbers and categories at x: whole rows of balls, and a network in the space of points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np
from scipy.sparse import csr_array

from localw2._validation import Array
from localw2.estimators.regression.member import PREDICTION_DRAWS
from localw2.estimators.regression.outcomes import Rounding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localw2.estimators.mixed.class_model import ClassModel
    from localw2.estimators.mixed.coding import OutputCoding
    from localw2.estimators.regression.regressor import LocalW2Regressor

_ROWS_AT_A_TIME = 200


@final
@dataclass(frozen=True, eq=False)
class MixedLaw:
    """Draws a class of each category and the numbers together, at rows x (N, p) of finite numbers.

    ``balls`` is a law of points whose balls hold whole training rows, with the classes ``joint`` (n,), one
    number for every combination of categories, ``combinations`` (K, d_c). A ball says how often each
    combination is; ``model`` says so smoothly, and has the share ``smooth`` of the probabilities. A row of
    the ball that has the combination drawn then gives its residuals to the mean of the numbers, which
    ``numbers`` has. ``network`` draws points of its own, with the weight ``of_network``.
    """

    coding: OutputCoding
    combinations: Array
    joint: Array
    balls: LocalW2Regressor
    model: ClassModel | None
    smooth: float
    numbers: LocalW2Regressor | None
    network: LocalW2Regressor | None = None
    of_network: float = 0.0

    def __repr__(self) -> str:
        return f"MixedLaw({', '.join(self.coding.names)})"

    def sample(self, x: Array, n_samples: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Independent draws: numbers (S, N, d_n) and codes (S, N, d_c)."""
        parts = []
        for start in range(0, len(x), _ROWS_AT_A_TIME):
            some = x[start : start + _ROWS_AT_A_TIME]
            parts.append(self._draw(some, rng.random((3, n_samples, len(some)))))
        numbers, codes = (np.concatenate(same, 1) for same in zip(*parts, strict=True))
        if self.network is not None and self.of_network > 0:
            seed = int(rng.integers(2**32))
            others = self.read_points(x, as_points(self.network.sample(x, n_samples, random_state=seed)))
            chosen = rng.random((n_samples, len(x), 1)) < self.of_network
            numbers, codes = (np.where(chosen, b, a) for a, b in zip((numbers, codes), others, strict=True))
        return numbers, codes

    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array, Array]]:
        """Draws with the same randomness at every row, some rows at a time: rows, numbers, codes."""
        uniform = np.random.default_rng(0).random((3, PREDICTION_DRAWS, 1))
        n_own = PREDICTION_DRAWS - round(self.of_network * PREDICTION_DRAWS)
        for start in range(0, len(x), _ROWS_AT_A_TIME):
            rows = slice(start, start + _ROWS_AT_A_TIME)
            numbers, codes = self._draw(x[rows], uniform)
            if self.network is not None and n_own < PREDICTION_DRAWS:
                points = np.concatenate([d for _, d in self.network.law_.common_draws(x[rows])], 1)
                others = self.read_points(x[rows], points)
                numbers, codes = (
                    np.concatenate([a[:n_own], b[n_own:]])
                    for a, b in zip((numbers, codes), others, strict=True)
                )
            yield rows, numbers, codes

    def probabilities(self, x: Array) -> Array:
        """Those of the combinations, (N, K)."""
        found = np.concatenate(
            [self._mix(x[i : i + _ROWS_AT_A_TIME])[0] for i in range(0, len(x), _ROWS_AT_A_TIME)]
        )
        if self.network is None or self.of_network == 0:
            return found
        parts = []
        for start in range(0, len(x), _ROWS_AT_A_TIME):
            some = x[start : start + _ROWS_AT_A_TIME]
            points = np.concatenate([d for _, d in self.network.law_.common_draws(some)], 1)
            codes = self.coding.decode(points)[1]
            parts.append((codes[..., None, :] == self.combinations).all(-1).mean(0))
        drawn = np.concatenate(parts)
        drawn /= np.maximum(drawn.sum(1, keepdims=True), 1e-12)  # combinations that no row has are left out
        mixed: Array = (1 - self.of_network) * found + self.of_network * drawn
        return mixed

    def column_probabilities(self, x: Array) -> list[Array]:
        """The probabilities (N, K_j) of the classes of each category."""
        joint = self.probabilities(x)
        return [joint @ np.eye(size)[self.combinations[:, k]] for k, size in enumerate(self.coding.n_classes)]

    @cached_property
    def _order(self) -> Array:
        """Training rows, combination by combination."""
        return np.argsort(self.joint, kind="stable")

    @cached_property
    def _reach(self) -> Array:
        """The weights of all rows before each one in ``_order``, and of all, (n + 1,)."""
        weights = self.balls.law_.members[0].balls.weights  # type: ignore[attr-defined]
        own = np.ones(len(self.joint)) if weights is None else weights
        return np.append(0.0, np.cumsum(own[self._order]))

    @cached_property
    def _margins(self) -> Array:
        """The shares (K,) of the combinations in all rows."""
        ends = np.cumsum(np.bincount(self.joint, minlength=len(self.combinations)))
        found: Array = np.diff(self._reach[np.append(0, ends)]) / self._reach[-1]
        return found

    @cached_property
    def _residuals(self) -> tuple[Array, Array]:
        """What the rows show of the numbers, (n, d_n), and their folds (n,)."""
        if self.numbers is None:
            return np.empty((len(self.joint), 0)), np.zeros(len(self.joint), np.int64)
        balls = self.numbers.law_.members[0].balls  # type: ignore[attr-defined]  # its law is one of balls
        return balls.shown, balls.folds.astype(np.int64)

    def _weigh(self, x: Array) -> csr_array:
        """How much every training row counts at every row of x, (N, n) in ``_order``; rows add up to 1."""
        place = np.empty(len(self.joint), np.int64)
        place[self._order] = np.arange(len(place))
        total = csr_array((len(x), len(place)))
        for member, weight in zip(self.balls.law_.members, self.balls.law_.weights, strict=True):
            filled = member.balls  # type: ignore[attr-defined]
            nodes = filled.find(x, member.min_rows)  # type: ignore[attr-defined]
            counts = filled.counts[nodes]
            starts, sizes = filled.starts[nodes].ravel(), counts.ravel()
            ends = np.cumsum(sizes)
            inside = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes) + np.repeat(starts, sizes)
            rows = np.repeat(np.arange(len(x)), counts.sum(1))
            chosen = filled.kept[inside]
            own = np.ones(len(chosen)) if filled.weights is None else filled.weights[chosen]
            totals = np.add.reduceat(own, ends - sizes)
            values = np.repeat(weight / (nodes.shape[1] * totals), sizes) * own
            shape = (len(x), len(place))
            total = total + csr_array((values, (rows, place[chosen])), shape=shape)
        total.sort_indices()
        return total

    def _mix(self, x: Array) -> tuple[Array, csr_array, Array]:
        """Probabilities (N, K) of combinations, weights of rows, and where combinations start in them."""
        weights = self._weigh(x)
        n_kinds = len(self.combinations)
        kinds = self.joint[self._order][weights.indices]
        keys = np.repeat(np.arange(len(x)), np.diff(weights.indptr)) * n_kinds + kinds
        bounds = np.searchsorted(keys, np.arange(len(x) * n_kinds + 1))
        shares: Array = np.bincount(keys, weights.data, len(x) * n_kinds).reshape(len(x), n_kinds)
        shares /= shares.sum(1, keepdims=True)
        if self.model is not None and self.smooth > 0:
            shares = (1 - self.smooth) * shares + self.smooth * self.model.predict(x)
        # One more row from anywhere: no combination that was seen is impossible.
        shares = (len(self.joint) * shares + self._margins) / (len(self.joint) + 1)
        return shares, weights, bounds

    def _draw(self, x: Array, uniform: Array) -> tuple[Array, Array]:
        """Draws by uniform numbers (3, S, N or 1): a combination, then a row that has it."""
        shares, weights, bounds = self._mix(x)
        n, n_kinds = shares.shape
        levels = np.cumsum(shares, 1)
        levels[:, -1] = 1.0
        flat = (levels + np.arange(n)[:, None]).ravel()
        each = np.arange(n)
        kind = np.searchsorted(flat, uniform[0] * (1 - 1e-12) + each, side="right") - each * n_kinds
        kind = np.clip(kind, 0, n_kinds - 1)
        reach = np.append(0.0, np.cumsum(weights.data))
        segment = each * n_kinds + kind
        first, last = bounds[segment], bounds[segment + 1]
        level = reach[first] + uniform[1] * (reach[last] - reach[first])
        entry = np.clip(np.searchsorted(reach, level, side="right") - 1, first, np.maximum(last - 1, first))
        place = np.append(weights.indices, 0)[entry]
        # A combination that no ball at x holds comes from all rows that have it.
        ends = np.cumsum(np.bincount(self.joint, minlength=n_kinds))
        starts, all_reach = np.append(0, ends[:-1]), self._reach
        level = all_reach[starts[kind]] + uniform[1] * (all_reach[ends[kind]] - all_reach[starts[kind]])
        anywhere = np.searchsorted(all_reach, level, side="right") - 1
        anywhere = np.clip(anywhere, starts[kind], ends[kind] - 1)
        row = self._order[np.where(last > first, place, anywhere)]
        codes = self.combinations[kind]
        shown, folds = self._residuals
        if self.numbers is None:
            return np.empty((*row.shape, 0)), codes
        mean = self.numbers.law_.mean
        centers = mean.predict_each(x)
        found = shown[row] + centers[folds[row], each]
        return self._finish(found), codes

    def read_points(self, x: Array, points: Array) -> tuple[Array, Array]:
        """Numbers and codes of points that a network draws: residuals get a random fold's mean in turn."""
        off, codes = self.coding.decode(points)
        if self.numbers is None:
            return off, codes
        centers = self.numbers.law_.mean.predict_each(x)
        turns = (np.arange(len(points))[:, None] + np.arange(len(x))) % len(centers)
        return self._finish(off + centers[turns, np.arange(len(x))]), codes

    def _finish(self, found: Array) -> Array:
        """Numbers on their own scale, where they can be."""
        assert self.numbers is not None
        law = self.numbers.law_
        return Rounding.halfway(law.outcomes).apply(law.mean.scale.backward(found))


def as_points(draws: Array) -> Array:
    """Draws (S, N, D), also of one output."""
    return draws[..., None] if draws.ndim == 2 else draws
