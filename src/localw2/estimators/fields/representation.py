"""Fields by few numbers: principal components, with the error that they have on fields not seen."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import final

import numpy as np

from localw2._validation import Array

KEPT_REMAINDERS = 200  # fields whose left-out parts are kept, to be added to draws
_FOLDS, _PURPOSE = 5, 32


@final
@dataclass(frozen=True, eq=False)
class Components:
    """A field of G numbers is ``mean`` (G,) + scores (q,) @ ``basis`` (q, G) + what is left out.

    The basis is orthonormal, so that distances between scores are those between fields. ``left_out`` (q + 1,)
    is the share of the variance of held-out fields that 0 .. q components leave out, and ``remainders``
    (R, G) are left-out parts of held-out fields. ``spread`` is the root mean square SD of a point.
    """

    mean: Array
    basis: Array
    left_out: Array
    remainders: Array
    spread: float

    def __repr__(self) -> str:
        sizes = f"{len(self.basis)} of {len(self.mean)} numbers"
        return f"Components({sizes}, {self.error:.2g} of the variance left out)"

    @property
    def error(self) -> float:
        """The share of the variance of held-out fields that is left out."""
        return float(self.left_out[-1])

    def scores(self, fields: Array) -> Array:
        """The scores (N, q) of fields (N, G)."""
        found: Array = (fields - self.mean) @ self.basis.T
        return found

    def rebuild(self, scores: Array) -> Array:
        """The fields (..., G) that scores (..., q) stand for, without what is left out."""
        found: Array = scores @ self.basis + self.mean
        return found

    @classmethod
    def learn(
        cls, fields: Array, explained: float, most: int, seed: int, weights: Array | None = None
    ) -> Components:
        """The fewest components that leave at most 1 - ``explained`` of the variance of held-out fields out.

        Held out is one fold of five at a time; the components themselves then come from all fields. A field
        counts by its weight (N,).

        >>> rng = np.random.default_rng(0)
        >>> fields = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 40)) + rng.normal(0, 0.01, (300, 40))
        >>> found = Components.learn(fields, 0.99, 10, 0)
        >>> len(found.basis), bool(found.error < 0.001)
        (2, True)
        """
        n, size = fields.shape
        rng = np.random.default_rng([seed, _PURPOSE])
        folds = rng.permutation(n) % min(_FOLDS, n)
        most = min(most, size, n - 1 - int(np.bincount(folds).max()))
        total, kept = 0.0, np.zeros(max(most, 0))
        parts = {}
        for fold in range(folds.max() + 1):
            inside = folds == fold
            mean, basis = _decompose(
                fields[~inside], max(most, 1), None if weights is None else weights[~inside]
            )
            scores = (fields[inside] - mean) @ basis.T
            own = np.ones(len(scores)) if weights is None else weights[inside]
            total += float(own @ ((fields[inside] - mean) ** 2).sum(1))
            kept[: len(basis)] += (own @ scores**2)[: len(kept)]
            parts[fold] = (inside, mean, basis, scores)
        if total == 0:
            return cls(fields.mean(0), np.zeros((1, size)), np.zeros(2), np.zeros((1, size)), 0.0)
        left = np.append(1.0, 1 - np.cumsum(kept) / total)
        enough = np.flatnonzero(left[1:] <= 1 - explained)
        q = max(1, int(enough[0]) + 1 if len(enough) else most)
        if not len(enough):
            warnings.warn(
                f"{q} components leave {100 * left[min(q, len(left) - 1)]:.2g} % of the variance of held-out "
                f"fields out, more than the {100 * (1 - explained):.2g} % of explained={explained:g}. Draws "
                "add that part as it was in rows of the fit. More components or rows may help.",
                stacklevel=3,
            )
        remainders = np.empty_like(fields)
        for inside, mean, basis, scores in parts.values():
            remainders[inside] = fields[inside] - mean - scores[:, :q] @ basis[:q]
        if weights is not None:
            remainders = remainders[rng.choice(n, KEPT_REMAINDERS, p=weights / weights.sum())]
        elif n > KEPT_REMAINDERS:
            remainders = remainders[np.sort(rng.choice(n, KEPT_REMAINDERS, replace=False))]
        mean, basis = _decompose(fields, q, weights)
        spread = float(np.sqrt(np.average((fields - mean) ** 2, axis=0, weights=weights).mean()))
        return cls(mean, basis, left[: q + 1], remainders - remainders.mean(0), spread)


def _decompose(fields: Array, q: int, weights: Array | None = None) -> tuple[Array, Array]:
    """Mean (G,) and first q principal directions (q, G) of fields (N, G), each with its largest part > 0."""
    # A mean of equal numbers is off by the rounding of their sum, unless the sum is one of zeros.
    mean = fields[0] + np.average(fields - fields[0], axis=0, weights=weights)
    off = fields - mean if weights is None else (fields - mean) * np.sqrt(weights)[:, None]
    _, _, directions = np.linalg.svd(off, full_matrices=False)
    basis = directions[:q]
    signs = np.sign(basis[np.arange(len(basis)), np.abs(basis).argmax(1)])
    return mean, basis * signs[:, None]
