"""What scikit-learn alone can do; functions as in ``peers.py``."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.model_selection import KFold, cross_val_predict, train_test_split
from sklearn.preprocessing import StandardScaler

from peers import Array, Draw, Fit

MOST_ROWS = 2000  # of a Gaussian process, whose time grows with the cube of the rows
HELD_OUT = 0.2


def climatology(seed: int) -> Fit:
    """Draws from the training targets with replacement, ignoring x."""

    def fit(x: Array, y: Array) -> Draw:
        return lambda x, n_samples, seed: np.random.default_rng(seed).choice(y, (n_samples, len(x)))

    return fit


def boosting(seed: int) -> Fit:
    """Histogram gradient boosting with Gaussian residuals, whose SD is that of the out-of-fold residuals."""

    def fit(x: Array, y: Array) -> Draw:
        model = HistGradientBoostingRegressor(random_state=seed)
        folds = KFold(5, shuffle=True, random_state=seed)
        std = np.sqrt(((y - cross_val_predict(model, x, y, cv=folds)) ** 2).mean())
        model.fit(x, y)
        return lambda x, n_samples, seed: draw_gaussian(model.predict(x), std, n_samples, seed)

    return fit


def conformal(seed: int) -> Fit:
    """Split conformal: boosting on one part of the rows, plus the signed residuals of the other part."""

    def fit(x: Array, y: Array) -> Draw:
        train, held, y_train, y_held = train_test_split(x, y, test_size=HELD_OUT, random_state=seed)
        model = HistGradientBoostingRegressor(random_state=seed).fit(train, y_train)
        residuals = y_held - model.predict(held)

        def draw(x: Array, n_samples: int, seed: int) -> Array:
            draws: Array = model.predict(x) + np.random.default_rng(seed).choice(
                residuals, (n_samples, len(x))
            )
            return draws

        return draw

    return fit


def gaussian_process(seed: int) -> Fit:
    """A Gaussian process with one length scale per column, on a random subset if there are many rows."""

    def fit(x: Array, y: Array) -> Draw:
        rows = np.random.default_rng(seed).permutation(len(x))[:MOST_ROWS]
        scaler = StandardScaler().fit(x[rows])
        kernel = ConstantKernel() * Matern(np.ones(x.shape[1]), nu=2.5) + WhiteKernel()
        model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
        with warnings.catch_warnings():
            # The length scale of an irrelevant column ends at its upper bound.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(scaler.transform(x[rows]), y[rows])

        def draw(x: Array, n_samples: int, seed: int) -> Array:
            mean, std = model.predict(scaler.transform(x), return_std=True)
            return draw_gaussian(mean, std, n_samples, seed)

        return draw

    return fit


def draw_gaussian(mean: Array, std: Array, n_samples: int, seed: int) -> Array:
    """Draw (S, N) from Gaussians with means (N,) and an SD for each row, or one for all."""
    draws: Array = mean + std * np.random.default_rng(seed).standard_normal((n_samples, len(mean)))
    return draws
