"""Smooth probabilities of classes: multinomial logistic regression on polynomials in x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from localw2._validation import Array
from localw2.estimators.powers import Powers, list_degrees

_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)  # on squared weights, in units of a row
_HIGHEST = 4
_FOLDS, _PURPOSE = 5, 41
_MANY = 2000  # rows from which on one fold shows which settings predict best


@final
@dataclass(frozen=True, eq=False)
class ClassModel:
    r"""Probabilities :math:`\mathrm{softmax}(P(x) W)` of K classes, W (F, K)."""

    powers: Powers
    weights: Array

    @classmethod
    def learn(
        cls, x: Array, codes: Array, n_classes: int, seed: int, weights: Array | None = None
    ) -> ClassModel:
        """From rows x (N, p) and classes (N,), by the degree and penalty that predict best."""
        counts = np.ones(len(x)) if weights is None else weights
        n_folds = min(_FOLDS, len(x))
        folds = np.random.default_rng([seed, _PURPOSE]).permutation(len(x)) % n_folds
        parts = [folds == k for k in range(1 if len(x) >= _MANY else n_folds)]
        best = (np.inf, 0, _PENALTIES[0])
        for degree in (d for d in list_degrees(*x.shape) if d <= _HIGHEST):
            features = Powers.of(x, degree).evaluate(x)
            for penalty in _PENALTIES if degree else _PENALTIES[:1]:
                loss = 0.0
                for held in parts:
                    found = _fit(features[~held], codes[~held], n_classes, penalty, counts[~held])
                    logarithms = log_softmax(features[held] @ found, 1)[np.arange(held.sum()), codes[held]]
                    loss -= float((counts[held] * logarithms).sum())
                best = min(best, (loss, degree, penalty))
        powers = Powers.of(x, best[1])
        return cls(powers, _fit(powers.evaluate(x), codes, n_classes, best[2], counts))

    def predict(self, x: Array) -> Array:
        """Probabilities (N, K) at rows x (N, p)."""
        found: Array = softmax(self.powers.evaluate(x) @ self.weights, axis=1)
        return found


def _fit(features: Array, codes: Array, n_classes: int, penalty: float, counts: Array) -> Array:
    """Weights (F, K) with the least penalised log loss; the constants are free, rows count as ``counts``."""
    f = features.shape[1]
    shares = (counts / counts.sum())[:, None]
    truth = shares * np.eye(n_classes)[codes]
    held = np.full((f, 1), penalty)
    held[0] = 1e-9

    def loss(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(f, n_classes)
        logarithms = log_softmax(features @ weights, 1)
        value = -float((truth * logarithms).sum()) + float((held * weights**2).sum())
        slope = features.T @ (shares * np.exp(logarithms) - truth) + 2 * held * weights
        return value, slope.ravel()

    start = np.zeros((f, n_classes))
    start[0] = np.log(truth.sum(0) + 1e-6)
    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights: Array = found.x.reshape(f, n_classes)
    return weights
