"""What is compared: ours, its ablations, peers and baselines, each with its settings and their source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

Group = Literal["ours", "ablation", "peer", "baseline"]


@final
@dataclass(frozen=True)
class Method:
    """A way to get from training rows to draws.

    ``factory`` is ``module:function`` in this folder: seed -> fit, fit(x, y) -> draw, draw(x, S, seed) ->
    (S, N); its module has ``read``, which says what x is. ``environment`` is one of
    ``environments.REQUIREMENTS``, or None for the library's own. ``packages`` are those on whose versions the
    results depend; ``settings`` and ``source`` go into the docs.
    ``tolerance`` is the relative difference between two runs of the same code. With more training rows than
    ``most_rows``, the method is left out.
    """

    name: str
    group: Group
    factory: str
    settings: str
    source: str
    packages: tuple[str, ...]
    environment: str | None = None
    tolerance: float = 1e-6
    most_rows: int | None = None


_OURS = ("localw2", "torch", "numpy", "scipy", "scikit-learn", "lapx", "pandas")
_SKLEARN = ("scikit-learn", "numpy", "scipy")
_ABLATION = "otherwise the defaults"

METHODS: tuple[Method, ...] = (
    Method("localw2", "ours", "ours:default", "`LocalW2Regressor()`", "its defaults (one core)", _OURS),
    Method(
        "ngboost",
        "peer",
        "peers:ngboost",
        "Normal distribution, log score, trees of depth 3, learning rate .01, the number of trees (at most "
        "2000) chosen by the squared error on a held-out fifth of the training rows, then refitted to all",
        "`examples/experiments/regression_exp.py` in its repository, used for its paper's table of the same "
        "splits",
        ("ngboost", "scikit-learn", "numpy"),
        "ngboost",
        # Its trees break ties at random: on yacht the CRPS of one split differs by .007 between runs.
        tolerance=0.02,
    ),
    Method(
        "engression",
        "peer",
        "peers:engression",
        "2 layers of 100, noise of dimension 100, standardised, learning rate .01, 500 epochs, batches of "
        "1000",
        "the call in its README, otherwise its defaults (with the default learning rate, .0001, it hardly "
        "moves in 500 full batches)",
        ("engression", "torch", "numpy"),
        "engression",
    ),
    Method(
        "quantile forest",
        "peer",
        "peers:quantile_forest",
        "`RandomForestQuantileRegressor()`, 100 trees; draws from 1000 of its quantiles",
        "its README, which uses its defaults",
        ("quantile-forest", "scikit-learn", "numpy"),
        "quantile-forest",
    ),
    Method(
        "treeffuser",
        "peer",
        "peers:treeffuser",
        "`Treeffuser()`: 30 repeats, at most 3000 trees, early stopping on a tenth of the rows; 50 steps per "
        "draw",
        "its README, which uses its defaults (except for `n_jobs=1`, as for all methods)",
        ("treeffuser", "lightgbm", "scikit-learn", "numpy"),
        "treeffuser",
    ),
    Method(
        "diffgbm",
        "peer",
        "peers:diffgbm",
        "`DiffGBM()`: the score model on residuals of a mean cross-fitted in 5 folds, 50 steps per draw",
        "its README, which uses its defaults (its more accurate operating point)",
        ("diffgbm", "lightgbm", "scikit-learn", "numpy"),
        "diffgbm",
    ),
    Method(
        "lightgbm quantiles",
        "peer",
        "peers:lightgbm",
        '`LGBMRegressor(objective="quantile")` at the 39 levels .025, .05, ..., .975, sorted in each row; '
        "draws interpolate linearly between them",
        "its defaults (100 trees of 31 leaves, learning rate .1)",
        ("lightgbm", "numpy"),
        "lightgbm",
    ),
    Method(
        "catboost",
        "peer",
        "peers:catboost",
        '`CatBoostRegressor(loss_function="RMSEWithUncertainty")`: at most 1000 trees of depth 6, early '
        "stopping (50 rounds) on a tenth of the rows; Gaussian draws with its mean and its variance",
        "the loss of its page on uncertainty, otherwise its defaults (without early stopping, its 90 % "
        "intervals cover 27 to 75 % on small tables)",
        ("catboost", "numpy"),
        "catboost",
    ),
    Method(
        "Gaussian process",
        "baseline",
        "baselines:gaussian_process",
        "constant times Matérn 5/2 with a length scale per column, plus white noise; marginal likelihood "
        "maximised once; x and y standardised; left out above 2000 rows",
        "scikit-learn's defaults except for the kernel, which is a common one (Snoek, Larochelle and Adams, "
        "2012)",
        _SKLEARN,
        most_rows=2000,
    ),
    Method(
        "boosting, split conformal",
        "baseline",
        "baselines:conformal",
        "`HistGradientBoostingRegressor()` on four fifths of the rows; a draw is its prediction plus one of "
        "the residuals of the other fifth",
        "scikit-learn's defaults; the split conformal predictive distribution of Vovk et al. (2019)",
        _SKLEARN,
    ),
    Method(
        "boosting, Gaussian",
        "baseline",
        "baselines:boosting",
        "`HistGradientBoostingRegressor()`; Gaussian, with the SD of its out-of-fold residuals (5 folds)",
        "scikit-learn's defaults",
        _SKLEARN,
    ),
    Method(
        "climatology",
        "baseline",
        "baselines:climatology",
        "draws from the training targets, ignoring x",
        "-",
        ("numpy",),
    ),
    Method("network alone", "ablation", "ours:network", '`law="network"`', _ABLATION, _OURS),
    Method("balls alone", "ablation", "ours:balls", '`law="balls"`', _ABLATION, _OURS),
)

BY_NAME = {method.name: method for method in METHODS}


def choose_methods(names: list[str]) -> list[Method]:
    """The methods with these names or in these groups, in the order of ``METHODS``.

    >>> [method.name for method in choose_methods(["ours", "climatology"])]
    ['localw2', 'climatology']
    """
    unknown = sorted(set(names) - set(BY_NAME) - {method.group for method in METHODS})
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: no such method or group; choose from ours, ablation, peer, baseline and "
            f"{', '.join(repr(name) for name in BY_NAME)}."
        )
    return [method for method in METHODS if method.name in names or method.group in names]
