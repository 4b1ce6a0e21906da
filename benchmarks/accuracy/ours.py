"""``LocalW2Regressor`` with its defaults, and with parts of it removed; functions as in ``peers.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from localw2 import LocalW2Regressor
from localw2.estimators.regression.mean import cross_fit
from peers import Array, Draw, Fit


def default(seed: int) -> Fit:
    """The estimator with its defaults."""
    return _make_estimator(seed)


def network_energy(seed: int) -> Fit:
    """No base; the local energy score."""
    return _make_estimator(seed, discrepancy="energy", base=None)


def network_plain(seed: int) -> Fit:
    """No base; the local W2 loss of the paper."""
    return _make_estimator(seed, debiased=False, base=None)


def network_debiased(seed: int) -> Fit:
    """No base; the debiased local W2 loss."""
    return _make_estimator(seed, base=None)


def centred_energy(seed: int) -> Fit:
    """The default with the local energy score."""
    return _make_estimator(seed, discrepancy="energy")


def centred_plain(seed: int) -> Fit:
    """The default with the loss of the paper."""
    return _make_estimator(seed, debiased=False)


def base_only(seed: int) -> Fit:
    """The base that the estimator chooses, with Gaussian residuals of its out-of-fold SD."""
    torch.set_num_threads(1)

    def fit(x: Array, y: Array) -> Draw:
        folds = LocalW2Regressor().n_folds
        base = cross_fit("auto", x, y[:, None], folds, seed)
        std = float(np.sqrt(((y - base.out_of_fold[:, 0]) ** 2).mean()))

        def draw(x: Array, n_samples: int, seed: int) -> Array:
            rng = np.random.default_rng(seed)
            centers = base.mean.predict_each(x)[..., 0]
            which = rng.integers(len(centers), size=(n_samples, len(x)))
            draws: Array = centers[which, np.arange(len(x))] + std * rng.standard_normal((n_samples, len(x)))
            return draws

        return draw

    return fit


def _make_estimator(seed: int, **settings: Any) -> Fit:
    torch.set_num_threads(1)

    def fit(x: Array, y: Array) -> Draw:
        model = LocalW2Regressor(random_state=seed, **settings).fit(x, y)
        return lambda x, n_samples, seed: model.sample(x, n_samples, random_state=seed)

    return fit
