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

from encoding import Array, Table, one_hot
from peers import Draw, Fit
from peers import read as read

HELD_OUT = 0.2


def climatology(seed: int) -> Fit:
    """Draws from the training targets with replacement, ignoring x."""

    def fit(x: Table, y: Array) -> Draw:
        return lambda x, n_samples, seed: np.random.default_rng(seed).choice(y, (n_samples, len(x)))

    return fit


def boosting(seed: int) -> Fit:
    """Histogram gradient boosting with Gaussian residuals, whose SD is that of the out-of-fold residuals."""

    def fit(x: Table, y: Array) -> Draw:
        model = _boost(x, seed)
        folds = KFold(5, shuffle=True, random_state=seed)
        std = np.sqrt(((y - cross_val_predict(model, x.values, y, cv=folds)) ** 2).mean())
        model.fit(x.values, y)
        return lambda x, n_samples, seed: draw_gaussian(model.predict(x.values), std, n_samples, seed)

    return fit


def conformal(seed: int) -> Fit:
    """Split conformal: boosting on one part of the rows, plus the signed residuals of the other part."""

    def fit(x: Table, y: Array) -> Draw:
        parts = train_test_split(x.values, y, test_size=HELD_OUT, random_state=seed)
        train, held, y_train, y_held = parts
        model = _boost(x, seed).fit(train, y_train)
        residuals = y_held - model.predict(held)

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            draws: Array = model.predict(x.values) + np.random.default_rng(seed).choice(
                residuals, (n_samples, len(x))
            )
            return draws

        return draw

    return fit


def _boost(x: Table, seed: int) -> HistGradientBoostingRegressor:
    """The regressor for such a table: it splits by categories, and sends gaps to the better side."""
    return HistGradientBoostingRegressor(categorical_features=list(x.categorical), random_state=seed)


def gaussian_process(seed: int) -> Fit:
    """A Gaussian process with one length scale per column."""

    def fit(x: Table, y: Array) -> Draw:
        expand = one_hot(x)
        scaler = StandardScaler().fit(expand(x))
        kernel = ConstantKernel() * Matern(np.ones(scaler.n_features_in_), nu=2.5) + WhiteKernel()
        model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
        with warnings.catch_warnings():
            # The length scale of an irrelevant column ends at its upper bound.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(scaler.transform(expand(x)), y)

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            mean, std = model.predict(scaler.transform(expand(x)), return_std=True)
            return draw_gaussian(mean, std, n_samples, seed)

        return draw

    return fit


def draw_gaussian(mean: Array, std: Array, n_samples: int, seed: int) -> Array:
    """Draw (S, N) from Gaussians with means (N,) and an SD for each row, or one for all."""
    draws: Array = mean + std * np.random.default_rng(seed).standard_normal((n_samples, len(mean)))
    return draws
