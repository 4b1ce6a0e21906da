r"""Functions of x that may follow the mean at x: spread often goes with the level.

A function of several inputs needs many coefficients. A spread that follows the mean, as that of counts,
concentrations and pressures does, needs two or three. Held-out rows say which it is, or how much of each: the
candidates of both kinds are weighted together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from localw2._validation import Array
from localw2.estimators.fields.smoothing import Basis, Candidate, SmoothFunction
from localw2.estimators.powers import Powers

MOST_LEVELS = 3  # outputs whose means a function may take


@final
@dataclass(frozen=True, eq=False)
class LevelFunction:
    """A function of x and of the mean m(x) with d outputs: ``of_x`` plus functions of the first means.

    Each of ``of_means`` takes as many of the first means as its powers have columns. Several means are
    functions of the same few inputs, so that the rows determine polynomials in them only along a curve. Off
    it they can take any value: hence ``ends`` (2, n_values), the range at the fitted rows, outside which no
    value lies.
    """

    of_x: SmoothFunction
    of_means: tuple[SmoothFunction, ...] = ()
    ends: Array | None = None

    def evaluate(self, x: Array, means: Array) -> Array:
        """The values at rows x (N, p) with means (N, d)."""
        found = self.of_x.evaluate(x)
        for part in self.of_means:
            found = found + part.evaluate(means[:, : part.powers.n_columns])
        return found if self.ends is None else np.clip(found, *self.ends)

    def hold(self, x: Array, means: Array) -> LevelFunction:
        """The same inside the range of its values at rows x (N, p) with means (N, d)."""
        values = self.evaluate(x, means)
        return replace(self, ends=np.stack([values.min(0), values.max(0)]))

    def cap(self, most: Array) -> LevelFunction:
        """The same, once it is held, with no value above ``most`` (n_values,)."""
        assert self.ends is not None
        return replace(self, ends=np.minimum(self.ends, most))

    def shift(self, by: Array) -> LevelFunction:
        """The same with constants added to its values."""
        ends = None if self.ends is None else self.ends + by
        return replace(self, of_x=self.of_x.shift(by), ends=ends)

    def scale(self, by: Array) -> LevelFunction:
        """The same with values multiplied by factors that are not negative."""
        of_means = tuple(part.scale(by) for part in self.of_means)
        return LevelFunction(self.of_x.scale(by), of_means, None if self.ends is None else self.ends * by)

    def measure_means(self, units: Array) -> LevelFunction:
        """The same function of means that are ``units`` (d,) times as large."""

        def convert(part: SmoothFunction) -> SmoothFunction:
            own, old = units[: part.powers.n_columns], part.powers
            return replace(part, powers=Powers(old.lower * own, old.upper * own, old.degree))

        return replace(self, of_means=tuple(convert(part) for part in self.of_means))


@final
@dataclass(frozen=True, eq=False)
class LevelBasis:
    """Blocks of features of x, and polynomials in the first means, a block for each number of them."""

    of_x: Basis
    of_means: tuple[Basis, ...]

    @classmethod
    def of(
        cls, of_x: Basis, means: Array, folds: Array, seed: int, weights: Array | None, most_terms: int
    ) -> LevelBasis:
        """Polynomials of the first one and of the first few of means (N, d) out of fold.

        A mean that hardly varies inside the folds is only another constant in each, which tells folds apart
        and nothing about new rows: it counts as the same for all.
        """
        means = np.where(_vary_inside(means, folds), means, means.mean(0))
        counts = sorted({1, min(MOST_LEVELS, means.shape[1])})
        found = [Basis.of(means[:, :count], seed, weights, most_terms) for count in counts]
        return cls(of_x, tuple(one for one in found if one.degrees.max() > 0))

    def evaluate(self, x: Array, means: Array) -> list[Array]:
        """The features of every block at rows x (N, p) with means (N, d)."""
        return self.of_x.evaluate(x) + self.evaluate_means(means)

    def evaluate_means(self, means: Array) -> list[Array]:
        """Those of the blocks that take means (N, d)."""
        return [block for one in self.of_means for block in one.evaluate(means[:, : one.powers.n_columns])]

    def candidates(self, n: int, of_x: list[Candidate], highest: int, hold_constant: bool) -> list[Candidate]:
        """Those ``of_x``, and polynomials in means, of which degrees up to ``highest`` may be hardly held."""
        found = list(of_x)
        for block, one in enumerate(self.of_means, self._first):
            more = one.candidates(n, lowest=1, highest=highest, hold_constant=hold_constant)
            found += [replace(candidate, block=block) for candidate in more]
        return found

    def assemble(self, parts: list[tuple[Candidate, Array]], d: int) -> LevelFunction:
        """The sum of fits, each by the coefficients (F, d) of its candidate."""
        of_means = []
        for block, one in enumerate(self.of_means, self._first):
            own = [(replace(candidate, block=0), fit) for candidate, fit in parts if candidate.block == block]
            if own:
                of_means.append(one.assemble(own, d))
        rest = [part for part in parts if part[0].block < self._first]
        return LevelFunction(self.of_x.assemble(rest, d), tuple(of_means))

    @property
    def _first(self) -> int:
        """The block of the first means."""
        return 1 + len(self.of_x.roots)


def _vary_inside(means: Array, folds: Array) -> Array:
    """Whether at least half of the variance of means (N, d) is inside the folds (N,), for each of them."""
    inside = means.copy()
    for fold in np.unique(folds):
        inside[folds == fold] -= means[folds == fold].mean(0)
    found: Array = inside.var(0) > 0.5 * means.var(0)
    return found
