"""The units in which a network sees inputs and residuals."""

from __future__ import annotations

import numpy as np

from localw2._validation import Array


def moments(X: Array, standardize: bool) -> tuple[Array, Array]:
    """Mean and scale of each column; constant columns, or all without ``standardize``, keep scale 1."""
    if not standardize:
        return np.zeros(X.shape[1]), np.ones(X.shape[1])
    mean, scale = X.mean(0), X.std(0)
    # Rounding gives a constant column a tiny spread, by which nothing must be divided.
    return mean, np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)


def factor(residuals: Array, standardize: bool) -> tuple[Array, Array]:
    """A matrix (d, d) that gives independent unit outputs the spread of the residuals, and its inverse.

    Correlation between outputs is then there from the start: the network, whose output layer has independent
    weights, would be slow to find it. Directions without any spread are 0 in both.
    """
    d = residuals.shape[1]
    if not standardize:
        return np.eye(d), np.eye(d)
    scale = np.sqrt((residuals**2).mean(0))
    inverse = np.divide(1.0, scale, out=np.zeros(d), where=scale > 0)
    values, vectors = np.linalg.eigh((residuals * inverse).T @ (residuals * inverse) / len(residuals))
    values = np.where(values > 1e-10 * values.max(), values, 0.0)
    roots = np.sqrt(values)
    inverse_roots = np.divide(1.0, roots, out=np.zeros(d), where=roots > 0)
    return (vectors * roots) @ vectors.T * scale, inverse[:, None] * ((vectors * inverse_roots) @ vectors.T)
