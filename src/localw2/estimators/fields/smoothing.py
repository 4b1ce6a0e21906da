r"""Smooth functions of x, as smooth as held-out rows say: polynomials and Gaussian kernels, averaged.

Every candidate is a ridge regression on one block of features. The polynomials are orthonormal over the rows
of the fit, and the penalty grows with their degree, so that a degree may come in fully, not at all, or in
part. Candidates are weighted by :math:`e^{-\text{deviance}/2}` on rows of other folds, output by output:
where rows tell them apart the best one is taken, where they do not, their mean, which is surer than any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import final

import numpy as np
from scipy.linalg import solve_triangular

from localw2._validation import Array
from localw2.estimators.powers import Powers, list_degrees

FOLDS, _PURPOSE = 5, 31
_SHARPNESS = (3.0, 10.0, 100.0)  # the penalty of a degree over that of the one below
_LENGTHS = (0.65, 1.1, 2.0)  # of kernels in two columns, in halves of their ranges
MOST_CENTERS = 120  # of kernels
_DEPENDENT = 1e-6  # what is left of a feature that follows from those before it
_TINY = 1e-9  # a penalty on all coefficients, a row
_LEAST_WEIGHT = 0.01  # of a candidate that is kept
_MOST_CHOOSING = 5000  # rows that candidates are compared on


@final
@dataclass(frozen=True, eq=False)
class SmoothFunction:
    """A function of x with d values: a polynomial plus Gaussian kernels of some lengths around centers.

    ``weights`` is (F, d), ``centers`` (m, p) in the units of the powers, ``lengths`` (k,) and
    ``kernel_weights`` (k, m, d). Beyond the rows of the fit x counts as their nearest end.
    """

    powers: Powers
    weights: Array
    centers: Array
    lengths: Array
    kernel_weights: Array

    @classmethod
    def polynomial(cls, powers: Powers, weights: Array) -> SmoothFunction:
        """One without kernels."""
        empty = np.empty((0, len(powers.lower)))
        return cls(powers, weights, empty, np.empty(0), np.empty((0, 0, weights.shape[1])))

    def evaluate(self, x: Array) -> Array:
        """The values at rows x (N, p), (N, d)."""
        found: Array = self.powers.evaluate(x) @ self.weights
        if len(self.lengths):
            units = self.powers.to_units(x)
            for length, weights in zip(self.lengths, self.kernel_weights, strict=True):
                found = found + _kernel(units, self.centers, length) @ weights
        return found

    def shift(self, by: Array) -> SmoothFunction:
        """The same with constants (d,) added."""
        weights = self.weights.copy()
        weights[0] += by  # the first term is the constant
        return SmoothFunction(self.powers, weights, self.centers, self.lengths, self.kernel_weights)

    def scale(self, by: Array) -> SmoothFunction:
        """The same with values multiplied by (d,)."""
        return SmoothFunction(
            self.powers, self.weights * by, self.centers, self.lengths, self.kernel_weights * by
        )


@final
@dataclass(frozen=True, eq=False)
class Candidate:
    """A ridge regression: the features of a block, and a penalty (F,) on their coefficients.

    The penalties of polynomials are those of all rows, and weaker for a part of them (``of_rows``).
    """

    block: int
    penalty: Array
    of_rows: bool = False


@final
@dataclass(frozen=True, eq=False)
class Basis:
    """Blocks of features that rows of a fit can bear: polynomials first, then kernels of each length.

    ``to_powers`` (n_terms, F) writes polynomials that are orthonormal over the rows by powers, ``degrees``
    (F,) are theirs. ``roots`` has for every length a matrix (m, r) that makes kernels around the centers
    features whose coefficients have a plain sum of squares as their penalty.
    """

    powers: Powers
    to_powers: Array
    degrees: Array
    centers: Array
    lengths: Array
    roots: tuple[Array, ...]

    @classmethod
    def of(cls, x: Array, seed: int, weights: Array | None = None, most_terms: int | None = None) -> Basis:
        """That of rows x (N, p); with ``most_terms``, polynomials of at most so many terms and no kernels."""
        n, p = x.shape
        degrees = list_degrees(n, p)
        if most_terms is not None:
            degrees = [d for d in degrees if d == 0 or comb(p + d, d) <= most_terms]
        powers = Powers.of(x, max(degrees))
        root = np.sqrt((np.ones(n) if weights is None else weights) / n)[:, None]
        features = root * powers.evaluate(x)
        of_terms = np.repeat(degrees, [comb(p + d - 1, d) for d in degrees])
        upper = np.linalg.qr(features, mode="r")
        new = np.abs(np.diag(upper)) > _DEPENDENT * np.linalg.norm(features, axis=0)
        upper = np.linalg.qr(features[:, new], mode="r")
        to_powers = np.zeros((powers.n_terms, int(new.sum())))
        to_powers[new] = solve_triangular(upper, np.diag(np.sign(np.diag(upper))))
        centers, lengths, roots = np.empty((0, p)), np.empty(0), []
        if most_terms is None:
            different = np.unique(powers.to_units(x), axis=0)
            some = np.random.default_rng([seed, _PURPOSE]).permutation(len(different))[:MOST_CENTERS]
            centers, lengths = different[np.sort(some)], np.array(_LENGTHS) * np.sqrt(p / 2)
            for length in lengths:
                values, directions = np.linalg.eigh(_kernel(centers, centers, length))
                kept = values > 1e-6 * values.max()
                roots.append(directions[:, kept] / np.sqrt(values[kept]))
        return cls(powers, to_powers, of_terms[new], centers, lengths, tuple(roots))

    def evaluate(self, x: Array) -> list[Array]:
        """The features of every block at rows x (N, p); the first of each is the constant."""
        found = [self.powers.evaluate(x) @ self.to_powers]
        if self.roots:
            units = self.powers.to_units(x)
            for length, root in zip(self.lengths, self.roots, strict=True):
                found.append(np.hstack([np.ones((len(x), 1)), _kernel(units, self.centers, length) @ root]))
        return found

    def candidates(
        self,
        n: int,
        of_kernels: tuple[float, ...] = (),
        lowest: int = 0,
        highest: int | None = None,
        hold_constant: bool = False,
    ) -> list[Candidate]:
        """The penalties that n rows choose from, ``of_kernels`` those of kernels.

        Degrees up to one between ``lowest`` and ``highest`` are hardly held, those above it are. The constant
        is free, or held near 0 as much as its degree says.
        """
        found, most = [], int(self.degrees.max())
        for free in range(lowest, 1 + (most if highest is None else min(highest, most))):
            for ratio in _SHARPNESS:
                penalty = n * ratio ** (self.degrees - free - 0.5)
                held = np.where((self.degrees > 0) | hold_constant, penalty, 0.0)
                found.append(Candidate(0, held, of_rows=True))
        for block, root in enumerate(self.roots, 1):
            found += [Candidate(block, np.append(0.0, np.full(root.shape[1], held))) for held in of_kernels]
        return found

    def assemble(self, parts: list[tuple[Candidate, Array]], d: int) -> SmoothFunction:
        """The sum of fits, each by the coefficients (F, d) of its candidate; without any, 0."""
        weights = np.zeros((self.powers.n_terms, d))
        of_kernels = np.zeros((len(self.roots), len(self.centers), d))
        for candidate, coefficients in parts:
            if candidate.block == 0:
                weights += self.to_powers @ coefficients
            else:
                weights[0] += coefficients[0]
                of_kernels[candidate.block - 1] += self.roots[candidate.block - 1] @ coefficients[1:]
        used = np.array([bool(one.any()) for one in of_kernels], dtype=bool)
        if not used.any():
            return SmoothFunction.polynomial(self.powers, weights)
        return SmoothFunction(self.powers, weights, self.centers, self.lengths[used], of_kernels[used])


def _kernel(a: Array, b: Array, length: float) -> Array:
    r"""Between rows a (n, p) and b (m, p): Gaussian kernels of all subsets of the columns, averaged.

    .. math:: k = \Bigl( \prod_j (1 + e^{-(a_j - b_j)^2 / 2 \ell^2}) - 1 \Bigr) / (2^p - 1)

    So a function that is a sum of functions of few columns each costs no more than it must.
    """
    found = np.ones((len(a), len(b)))
    for column in range(a.shape[1]):
        gaps = (a[:, column, None] - b[:, column]) / length
        found *= 0.5 + 0.5 * np.exp(-0.5 * gaps**2)
    share = 0.5 ** a.shape[1]
    values: Array = (found - share) / (1 - share)
    return values


def make_folds(n: int, seed: int) -> Array:
    """The fold of each row; -1 for rows beyond those that candidates are compared on."""
    order = np.random.default_rng([seed, _PURPOSE]).permutation(n)
    found: Array = np.where(order < _MOST_CHOOSING, order % min(FOLDS, n), -1)
    return found


def solve_ridge(features: Array, z: Array, weights: Array, penalties: list[Array]) -> list[Array]:
    """Coefficients (F, d) of the regression of z (N, d) with weights (N,), for each penalty (F,)."""
    left = features * weights[:, None]
    gram, right = left.T @ features, left.T @ z
    gram[np.diag_indices_from(gram)] += _TINY * len(features)
    return [np.linalg.solve(gram + np.diag(penalty), right) for penalty in penalties]


def average_fits(
    features: list[Array],
    candidates: list[Candidate],
    folds: Array,
    fit: Callable[[Array, Array, list[Array]], list[Array]],
    deviances: Callable[[Array, Array], Array],
) -> tuple[list[tuple[Candidate, Array]], Array]:
    """The parts of a weighted mean of candidates, and its values (N, d) at each row by fits to other folds.

    ``fit(features, rows, penalties)`` gives coefficients (F, d) for each penalty from some rows, a mask, and
    ``deviances(values, rows)`` those (d,) of values at the rows of all folds. Rows without a fold (-1) are
    never held out: their values are those of the whole fit.
    """
    blocks = {c.block: [k for k, one in enumerate(candidates) if one.block == c.block] for c in candidates}
    held: list[Array] = [np.empty(0)] * len(candidates)
    share = float((folds >= 0).mean())
    weaker = [one.penalty * (share if one.of_rows else 1.0) for one in candidates]
    for fold in range(folds.max() + 1):
        rows, others = folds == fold, (folds >= 0) & (folds != fold)
        for block, members in blocks.items():
            found = fit(features[block], others, [weaker[k] for k in members])
            for k, coefficients in zip(members, found, strict=True):
                if not fold:
                    held[k] = np.zeros((len(folds), coefficients.shape[1]))
                held[k][rows] = features[block][rows] @ coefficients
    compared = folds >= 0
    losses = np.stack([deviances(values[compared], compared) for values in held])
    shares = np.exp(-(losses - losses.min(0)) / 2)
    shares = np.where(shares < _LEAST_WEIGHT * shares.max(0), 0.0, shares)
    shares /= shares.sum(0)
    parts = []
    everyone = np.ones(len(folds), dtype=bool)
    for block, members in blocks.items():
        used = [k for k in members if shares[k].any()]
        fits = fit(features[block], everyone, [candidates[k].penalty for k in used]) if used else []
        parts += [(candidates[k], shares[k] * one) for k, one in zip(used, fits, strict=True)]
    whole = sum(features[candidate.block] @ coefficients for candidate, coefficients in parts)
    apart = sum(share * values for share, values in zip(shares, held, strict=True))
    return parts, np.where(compared[:, None], apart, whole)
