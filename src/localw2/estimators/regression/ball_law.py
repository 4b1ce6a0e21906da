"""A member of a law: the empirical distribution of balls, which are the nodes of a forest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, check_count
from localw2.estimators.regression.forest import MOST_ROWS, Forest
from localw2.estimators.regression.member import PREDICTION_DRAWS, Member, row_blocks
from localw2.estimators.regression.outcomes import Rounding

if TYPE_CHECKING:
    from localw2.estimators.regression.mean import CrossFit, FoldedMean
    from localw2.estimators.regression.outcomes import Outcomes
    from localw2.estimators.tables import Columns

_DRAWN_AT_A_TIME = 1 << 20  # draws times rows that are made at once
ALL_ROWS = 10**9  # ``min_rows`` of a ball that is never split


@final
@dataclass(frozen=True)
class BallLaw:
    """A law without training: draw a ball that holds x, draw a row of it, and take over what it shows.

    Every node of every tree of a forest is a ball, and a tree offers the smallest one with ``min_rows`` rows
    or more that holds x; the trees are grown to separate rows of different y. ``on="residuals"`` takes over
    the row's residual, which is added to the mean at x of the fold that it was left out of; with several
    outputs the whole row of residuals, so that their dependence is kept. ``on="outcomes"`` takes over y
    itself. A row is drawn by its weight, if rows have weights; ``min_rows`` counts rows.

    >>> BallLaw(min_rows=20)
    BallLaw(min_rows=20, n_trees=50, on='residuals')
    """

    min_rows: int = 5
    n_trees: int = 50
    on: str = "residuals"

    def __post_init__(self) -> None:
        check_count(self.min_rows, "min_rows", 2, why="one row does not show a spread")
        check_count(self.n_trees, "n_trees", 1)
        if self.on not in ("residuals", "outcomes"):
            raise ValueError(f"on={self.on!r} is unknown; give 'residuals' or 'outcomes'.")

    @property
    def name(self) -> str:
        """What ``weights_`` calls it."""
        drawn = "y" if self.on == "outcomes" else "residuals"
        if self.min_rows >= ALL_ROWS:
            return f"{drawn} of all rows"
        return f"{drawn} of similar rows ({self.min_rows} or more per tree)"


def learn_balls(
    laws: Sequence[BallLaw],
    x: Array,
    y: Array,
    fitted: CrossFit,
    columns: Columns,
    outcomes: Outcomes,
    seed: int,
    n_jobs: Any,
) -> list[BallMember]:
    """A member for each law, from rows x (N, p), y (N, d).

    Laws on the same with as many trees share a forest, which has the smallest leaves that one of them wants.
    """
    mean = fitted.mean
    grown: dict[tuple[str, int], FilledForest] = {}
    for on, n_trees in dict.fromkeys((law.on, law.n_trees) for law in laws):
        centred = on == "residuals"
        shown = mean.scale.forward(y) - fitted.out_of_fold if centred else y
        # The mean is a column of its own: residuals often depend on it. Here it must be out of fold.
        inputs = np.hstack([x, fitted.out_of_fold]) if centred and mean.parts else x
        target = shown if centred else mean.scale.forward(y)
        smallest = min(law.min_rows for law in laws if (law.on, law.n_trees) == (on, n_trees))
        min_rows = min(smallest, max(2, len(x) // 2))
        forest = Forest.grow(
            inputs, target, columns.categorical, n_trees, min_rows, seed, n_jobs, fitted.weights
        )
        folds = (fitted.folds if centred and mean.parts else np.zeros(len(x), np.int64)).astype(np.int16)
        grown[on, n_trees] = FilledForest.fill(forest, inputs, shown, folds, seed, fitted.weights)
    return [
        BallMember(
            grown[law.on, law.n_trees],
            int(law.min_rows),
            mean if law.on == "residuals" else None,
            Rounding.halfway(outcomes),
            law.name if law.min_rows <= len(x) else replace(law, min_rows=ALL_ROWS).name,
        )
        for law in laws
    ]


@final
@dataclass(frozen=True, eq=False)
class FilledForest:
    """A forest and the rows that its nodes hold, with what these show.

    ``kept[starts[node] : starts[node] + counts[node]]`` are the rows of a node, ``shown`` (n, d) what they
    show (residuals on the mean's scale, or y), ``means`` (M, d) its mean in every node, and ``folds`` (n,)
    the folds that they were left out of. ``weights`` (n,) are those of the rows, if they have any.
    """

    forest: Forest
    kept: Array
    starts: Array
    counts: Array
    means: Array
    shown: Array
    folds: Array
    weights: Array | None = None

    @classmethod
    def fill(
        cls,
        forest: Forest,
        x: Array,
        shown: Array,
        folds: Array,
        seed: int,
        weights: Array | None = None,
    ) -> FilledForest:
        """Lead the rows down. Of many rows every tree keeps a sample of its own."""
        rng = np.random.default_rng([seed, 12])
        counts = np.zeros(len(forest.feature), np.int32)
        n_kept = min(len(x), MOST_ROWS)
        kept = np.empty((forest.n_trees, n_kept), np.int32)
        everything = forest.apply(x) if len(x) <= MOST_ROWS else None
        ends = np.append(forest.roots[1:], len(forest.feature))
        for tree, (root, end) in enumerate(zip(forest.roots, ends, strict=True)):
            if everything is None:
                rows = np.sort(rng.choice(len(x), n_kept, replace=False))
                leaves = forest.tree(tree).apply(x[rows])[:, 0] + root
            else:
                rows, leaves = np.arange(len(x)), everything[:, tree]
            kept[tree] = rows[np.argsort(leaves, kind="stable")]
            counts[root:end] = np.bincount(leaves - root, minlength=end - root)
        return cls.of(forest, kept.ravel(), counts, shown, folds, weights)

    @classmethod
    def of(
        cls,
        forest: Forest,
        kept: Array,
        in_leaves: Array,
        shown: Array,
        folds: Array,
        weights: Array | None = None,
    ) -> FilledForest:
        """The rows ``kept`` leaf by leaf, ``in_leaves`` (M,) of them in each; inner nodes have 0 there.

        The nodes below a node come right after it, those on its left first: so do their rows.
        """
        starts = np.cumsum(in_leaves, dtype=np.int64) - in_leaves
        counts = in_leaves.astype(np.int64)
        values = shown if weights is None else np.column_stack([shown * weights[:, None], weights])
        sums = np.zeros((len(counts), values.shape[1]))
        filled = counts > 0
        sums[filled] = np.add.reduceat(values[kept], starts[filled], axis=0)
        for inner in reversed(forest.levels()):  # from below: a sum of few numbers keeps their digits
            left, right = forest.left[inner], forest.right[inner]
            counts[inner], sums[inner] = counts[left] + counts[right], sums[left] + sums[right]
        if weights is None:
            means = sums / np.maximum(counts, 1)[:, None]
        else:
            means = sums[:, :-1] / np.where(counts > 0, sums[:, -1], 1.0)[:, None]
        return cls(forest, kept, starts, counts, means, shown, folds, weights)

    def find(self, x: Array, min_rows: int) -> Array:
        """The smallest ball with ``min_rows`` rows that holds each row x (N, p), for every tree, (N, T)."""
        return self.forest.apply(x, self.counts >= min_rows)

    def pick(self, node: Array, level: Array) -> Array:
        """The row of each ball at a level in [0, 1): rows take up as much of it as their weights say."""
        chosen: Array
        starts, counts = self.starts[node], self.counts[node]
        if self._reach is None:
            chosen = self.kept[starts + (level * counts).astype(np.int64)]
            return chosen
        before, end = self._reach[starts], self._reach[starts + counts]
        place = np.searchsorted(self._reach, before + level * (end - before), side="right") - 1
        chosen = self.kept[np.clip(place, starts, starts + counts - 1)]
        return chosen

    @cached_property
    def _reach(self) -> Array | None:
        """The weights of all rows before each kept one, and of all, (n + 1,)."""
        return None if self.weights is None else np.append(0.0, np.cumsum(self.weights[self.kept]))


@final
@dataclass(frozen=True, eq=False)
class Draws:
    """Draws on the mean's scale, in parts: ``plain`` (S, N, d) as rows show them, with the mean added.

    ``deviation`` (S, N, d) is how far a row is from the middle of its ball, and ``middle`` (1, N, d) the
    mean of the folds' means and of the means of the balls at x.
    """

    plain: Array
    deviation: Array
    middle: Array

    @classmethod
    def join(cls, parts: Iterable[Draws]) -> Draws:
        """The draws of several sets of rows."""
        every = [(one.plain, one.deviation, one.middle) for one in parts]
        return cls(*(np.concatenate(same, axis=1) for same in zip(*every, strict=True)))

    def take(self, rows: Array) -> Draws:
        """The draws at some of the rows."""
        return Draws(self.plain[:, rows], self.deviation[:, rows], self.middle[:, rows])


@final
@dataclass(frozen=True, eq=False)
class BallMember(Member):
    r""":math:`\hat y = m_f(x) + \bar r + c\,(r_j - \bar r)`: a row j of a ball that holds x, f the fold of j.

    :math:`r_j` is what the row shows, :math:`\bar r` the mean of its ball. The ``stretch`` c makes up for
    what a ball of few rows shows too little of the spread. The balls of many trees, or several laws, can
    together show too much of it: ``narrowing`` is a factor on the distance of a draw from the middle of all
    (on the mean's scale, as all of this).
    """

    balls: FilledForest
    min_rows: int
    mean: FoldedMean | None
    rounding: Rounding
    title: str
    stretch: float = 1.0
    narrowing: float = 1.0

    def sample(self, x: Array, n_samples: int, rng: np.random.Generator) -> Array:
        """Independent draws (S, N, d): ball and row are drawn afresh for every row and draw."""
        return self.combine(self.draw_parts(x, n_samples, rng))

    def draw_parts(
        self, x: Array, n_samples: int, rng: np.random.Generator, centers: Array | None = None
    ) -> Draws:
        """Independent draws before anything is done with their spread; ``centers`` are the means if known."""
        nodes, centers = self._look_up(x, centers)
        rows = np.arange(len(x))
        plain = np.empty((n_samples, len(x), self.balls.shown.shape[1]))
        deviation = np.empty_like(plain)
        step = max(1, _DRAWN_AT_A_TIME // max(1, len(x)))
        for start in range(0, n_samples, step):
            count = min(step, n_samples - start)
            node = nodes[rows, rng.integers(nodes.shape[1], size=(count, len(x)))]
            part = slice(start, start + count)
            plain[part], deviation[part] = self._split(node, rng.random((count, len(x))), rows, centers)
        return Draws(plain, deviation, self._find_middle(nodes, centers))

    def combine(self, draws: Draws) -> Array:
        """Draws (S, N, d) of y."""
        return self.rounding.apply(self.put_together(draws))

    def put_together(self, draws: Draws) -> Array:
        """The same before draws are moved to values that y can have."""
        found = draws.plain
        if self.stretch != 1:
            found = found + (self.stretch - 1) * draws.deviation
        if self.narrowing != 1:
            found = draws.middle + self.narrowing * (found - draws.middle)
        return found if self.mean is None else self.mean.scale.backward(found)

    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, rows, d) that visit every tree equally often, and the rows of its ball evenly."""
        nodes, centers = self._look_up(x)
        middle = self._find_middle(nodes, centers)
        rng = np.random.default_rng(0)
        n_trees = nodes.shape[1]
        visits = -(-PREDICTION_DRAWS // n_trees)
        levels = (np.arange(visits)[:, None] + rng.random(n_trees)) / visits
        order = rng.permutation(visits * n_trees)[:PREDICTION_DRAWS]
        trees, levels = np.tile(np.arange(n_trees), visits)[order], levels.ravel()[order]
        for rows in row_blocks(len(x)):
            places = np.arange(len(x))[rows]
            parts = self._split(nodes[places][:, trees].T, levels[:, None], places, centers)
            yield rows, self.combine(Draws(*parts, middle[:, rows]))

    def _look_up(self, x: Array, centers: Array | None = None) -> tuple[Array, Array | None]:
        """The balls of the rows, and every fold's mean at them."""
        if self.mean is None:
            return self.balls.find(x, self.min_rows), None
        centers = self.mean.predict_each(x) if centers is None else centers
        inputs = np.hstack([x, centers.mean(0)]) if self.mean.parts else x
        return self.balls.find(inputs, self.min_rows), centers

    def _find_middle(self, nodes: Array, centers: Array | None) -> Array:
        middle: Array = self.balls.means[nodes].mean(1)
        return middle[None] if centers is None else middle[None] + centers.mean(0)

    def _split(self, node: Array, level: Array, rows: Array, centers: Array | None) -> tuple[Array, Array]:
        """The row of each ball (S, n) at this level, with the mean added, and its deviation in the ball."""
        balls = self.balls
        chosen = balls.pick(node, level)
        plain: Array = balls.shown[chosen]
        deviation: Array = plain - balls.means[node]
        return plain if centers is None else plain + centers[balls.folds[chosen], rows], deviation
