"""Other packages with their documented settings; each function runs in the environment of its package.

Every function takes a seed, imports the package, so that imports do not count as time of the fit, and returns
fit. fit(x, y) returns draw, and draw(x, S, seed) returns (S, N) independent draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Draw = Callable[[Array, int, int], Array]
Fit = Callable[[Array, Array], Draw]

MOST_TREES, RATE, HELD_OUT = 2000, 0.01, 0.2  # of NGBoost, see methods.py
ROWS_AT_A_TIME = 200  # 1000 draws of a row are 1000 rows of a batch: larger batches would fill the memory


def ngboost(seed: int) -> Fit:
    """NGBoost with the number of trees that minimises the squared error of held-out rows."""
    from ngboost import NGBRegressor
    from sklearn.model_selection import train_test_split

    def squared_error(law: Any, y: Array) -> float:
        return float(((law.loc - y) ** 2).mean())

    def fit(x: Array, y: Array) -> Draw:
        settings = {"learning_rate": RATE, "random_state": seed, "verbose": False}
        train, held, y_train, y_held = train_test_split(x, y, test_size=HELD_OUT, random_state=seed)
        trial = NGBRegressor(n_estimators=MOST_TREES, **settings)
        trial.fit(train, y_train, held, y_held, val_loss_monitor=squared_error)
        model = NGBRegressor(n_estimators=trial.best_val_loss_itr + 1, **settings).fit(x, y)

        def draw(x: Array, n_samples: int, seed: int) -> Array:
            law = model.pred_dist(x)
            normal = np.random.default_rng(seed).standard_normal((n_samples, len(x)))
            draws: Array = law.params["loc"] + law.params["scale"] * normal
            return draws

        return draw

    return fit


def engression(seed: int) -> Fit:
    """Engression: a network of (x, noise) trained with the energy score."""
    import torch
    from engression import engression as train

    torch.set_num_threads(1)

    def fit(x: Array, y: Array) -> Draw:
        torch.manual_seed(seed)  # the package takes no seed
        tensors = (torch.tensor(values, dtype=torch.float32) for values in (x, y[:, None]))
        model = train(*tensors, lr=0.01, num_epochs=500, batch_size=1000, verbose=False)

        def draw(x: Array, n_samples: int, seed: int) -> Array:
            torch.manual_seed(seed)
            parts = np.array_split(np.asarray(x, dtype=np.float32), -(-len(x) // ROWS_AT_A_TIME))
            found = [model.sample(torch.from_numpy(part), sample_size=n_samples) for part in parts]
            return np.asarray(torch.cat(found)[:, 0].T, dtype=np.float64)

        return draw

    return fit


def quantile_forest(seed: int) -> Fit:
    """A quantile regression forest; a draw is its quantile at one of 1000 even levels, chosen at random."""
    from quantile_forest import RandomForestQuantileRegressor

    levels = [float(level) for level in (np.arange(1000) + 0.5) / 1000]

    def fit(x: Array, y: Array) -> Draw:
        model = RandomForestQuantileRegressor(random_state=seed).fit(x, y)

        def draw(x: Array, n_samples: int, seed: int) -> Array:
            quantiles = model.predict(x, quantiles=levels)
            which = np.random.default_rng(seed).integers(len(levels), size=(n_samples, len(x)))
            draws: Array = quantiles[np.arange(len(x)), which]
            return draws

        return draw

    return fit


def treeffuser(seed: int) -> Fit:
    """Treeffuser: a diffusion model whose score is learned by boosted trees."""
    from treeffuser import Treeffuser

    def fit(x: Array, y: Array) -> Draw:
        model = Treeffuser(seed=seed, n_jobs=1)
        model.fit(x, y)

        def draw(x: Array, n_samples: int, seed: int) -> Array:
            return np.asarray(model.sample(x, n_samples=n_samples, seed=seed), dtype=np.float64)

        return draw

    return fit
