"""Other packages with their documented settings; each function runs in the environment of its package.

Every function takes a seed, imports the package, so that imports do not count as time of the fit, and returns
fit. fit(x, y) returns draw, and draw(x, S, seed) returns (S, N) independent draws, or fewer than S where they
would take minutes. Engression, treeffuser, DiffGBM and the quantile forest also take y (N, d) and then return
(S, N, d): joint draws, except that the forest draws each output on its own. x is an ``encoding.Table``.
Packages that know categories and missing values get its columns as they are; the others get it with
indicators (``encoding.one_hot``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from encoding import Array, Table, one_hot
from encoding import read as read  # what the functions here are given

Draw = Callable[[Table, int, int], Array]
Fit = Callable[[Table, Array], Draw]

MOST_TREES, RATE, HELD_OUT = 2000, 0.01, 0.2  # of NGBoost, see methods.py
# Draws of a diffusion: about so many on a split, at least so many of a row. 1000 of each would take an hour.
DIFFUSED, FEWEST = 10_000, 20
LEVELS = tuple(level / 40 for level in range(1, 40))  # of LightGBM's quantiles: .025, .05, ..., .975
ROWS_AT_A_TIME = 200  # 1000 draws of a row are 1000 rows of a batch: larger batches would fill the memory


def ngboost(seed: int) -> Fit:
    """NGBoost with the number of trees that minimises the squared error of held-out rows."""
    from ngboost import NGBRegressor
    from sklearn.model_selection import train_test_split

    def squared_error(law: Any, y: Array) -> float:
        return float(((law.loc - y) ** 2).mean())

    def fit(x: Table, y: Array) -> Draw:
        settings = {"learning_rate": RATE, "random_state": seed, "verbose": False}
        expand = one_hot(x)
        inputs = expand(x)
        train, held, y_train, y_held = train_test_split(inputs, y, test_size=HELD_OUT, random_state=seed)
        trial = NGBRegressor(n_estimators=MOST_TREES, **settings)
        trial.fit(train, y_train, held, y_held, val_loss_monitor=squared_error)
        model = NGBRegressor(n_estimators=trial.best_val_loss_itr + 1, **settings).fit(inputs, y)

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            law = model.pred_dist(expand(x))
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

    def fit(x: Table, y: Array) -> Draw:
        torch.manual_seed(seed)  # the package takes no seed
        expand = one_hot(x)
        tensors = (torch.tensor(values, dtype=torch.float32) for values in (expand(x), y.reshape(len(y), -1)))
        model = train(*tensors, lr=0.01, num_epochs=500, batch_size=1000, verbose=False)

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            torch.manual_seed(seed)
            parts = np.array_split(expand(x).astype(np.float32), -(-len(x) // ROWS_AT_A_TIME))
            found = [model.sample(torch.from_numpy(part), sample_size=n_samples) for part in parts]
            draws = np.moveaxis(torch.cat(found).numpy().astype(np.float64), 2, 0)
            return draws.reshape(n_samples, len(x), *y.shape[1:])

        return draw

    return fit


def quantile_forest(seed: int) -> Fit:
    """A quantile regression forest; a draw is its quantile at one of 1000 even levels, chosen at random."""
    from quantile_forest import RandomForestQuantileRegressor

    levels = [float(level) for level in (np.arange(1000) + 0.5) / 1000]

    def fit(x: Table, y: Array) -> Draw:
        expand = one_hot(x)
        model = RandomForestQuantileRegressor(random_state=seed).fit(expand(x), y)

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            quantiles = model.predict(expand(x), quantiles=levels)
            shape = (n_samples, *quantiles.shape[:-1])
            which = np.random.default_rng(seed).integers(len(levels), size=shape)
            draws: Array = np.take_along_axis(quantiles[None], which[..., None], -1)[..., 0]
            return draws

        return draw

    return fit


def treeffuser(seed: int) -> Fit:
    """Treeffuser: a diffusion model whose score is learned by boosted trees."""
    from treeffuser import Treeffuser

    return _diffuse(Treeffuser(seed=seed, n_jobs=1))


def diffgbm(seed: int) -> Fit:
    """DiffGBM: as Treeffuser, on the residuals of a cross-fitted mean."""
    from diffgbm import DiffGBM

    return _diffuse(DiffGBM(seed=seed, n_jobs=1, extra_residualizer_params={"n_jobs": 1}))


def _diffuse(model: Any) -> Fit:
    def fit(x: Table, y: Array) -> Draw:
        model.fit(x.values, y, cat_idx=list(x.categorical))

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            few = min(n_samples, max(FEWEST, DIFFUSED // len(x)))
            return np.asarray(model.sample(x.values, n_samples=few, seed=seed), dtype=np.float64)

        return draw

    return fit


def lightgbm(seed: int) -> Fit:
    """A LightGBM model for each of 39 quantiles; a draw interpolates between the sorted quantiles."""
    from lightgbm import LGBMRegressor

    def fit(x: Table, y: Array) -> Draw:
        settings = {"objective": "quantile", "n_jobs": 1, "random_state": seed, "verbose": -1}
        models = [
            LGBMRegressor(alpha=level, **settings).fit(x.values, y, categorical_feature=list(x.categorical))
            for level in LEVELS
        ]

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            quantiles = np.sort([model.predict(x.values) for model in models], axis=0)
            # Levels 0 and 1 have no model: the outermost intervals are continued by as much again.
            ends = 2 * quantiles[[0, -1]] - quantiles[[1, -2]]
            levels = np.array([0.0, *LEVELS, 1.0])
            values = np.vstack([ends[:1], quantiles, ends[1:]])
            uniform = np.random.default_rng(seed).random((n_samples, len(x)))
            draws: Array = np.stack(
                [np.interp(u, levels, v) for u, v in zip(uniform.T, values.T, strict=True)], axis=1
            )
            return draws

        return draw

    return fit


def catboost(seed: int) -> Fit:
    """CatBoost with a Gaussian whose mean and variance depend on x, stopped by its score on held-out rows."""
    from catboost import CatBoostRegressor
    from pandas import DataFrame

    def frame(x: Table) -> Any:
        """The columns as CatBoost takes them: a category is an integer, -1 where it is missing."""
        columns = DataFrame(x.values)
        for column in x.categorical:
            columns[column] = columns[column].fillna(-1).astype(int)
        return columns

    def fit(x: Table, y: Array) -> Draw:
        model = CatBoostRegressor(
            loss_function="RMSEWithUncertainty",
            random_seed=seed,
            thread_count=1,
            verbose=False,
            allow_writing_files=False,
        )
        order = np.random.default_rng(seed).permutation(len(y))
        held, train = np.split(order, [len(y) // 10])
        columns = frame(x)
        model.fit(
            columns.iloc[train],
            y[train],
            cat_features=list(x.categorical),
            eval_set=(columns.iloc[held], y[held]),
            early_stopping_rounds=50,
        )

        def draw(x: Table, n_samples: int, seed: int) -> Array:
            mean, variance = model.predict(frame(x), thread_count=1).T
            normal = np.random.default_rng(seed).standard_normal((n_samples, len(x)))
            draws: Array = mean + np.sqrt(variance) * normal
            return draws

        return draw

    return fit
