"""Learn random models from data: the whole distribution of y at every x, with no prior and no likelihood."""

from localw2.estimators.coefficients import RandomCoefficientRegressor
from localw2.estimators.files import load, save
from localw2.estimators.regression import LocalW2Regressor
from localw2.losses import MMD, MSE, EnergyScore, MeanVar, Objective, SlicedW2, SquaredW2, local_w2
from localw2.models.base import RandomMap
from localw2.models.linear import RandomLinear
from localw2.models.network import RandomMLP
from localw2.neighborhoods import LazyNeighborhoods, Neighborhoods
from localw2.norms import Euclidean, Mahalanobis, Norm, Weighted
from localw2.training import Fit, FitConfig, train
from localw2.transport import w2_squared

__version__ = "0.1.0.dev0"

__all__ = [
    "MMD",
    "MSE",
    "EnergyScore",
    "Euclidean",
    "Fit",
    "FitConfig",
    "LazyNeighborhoods",
    "LocalW2Regressor",
    "Mahalanobis",
    "MeanVar",
    "Neighborhoods",
    "Norm",
    "Objective",
    "RandomCoefficientRegressor",
    "RandomLinear",
    "RandomMLP",
    "RandomMap",
    "SlicedW2",
    "SquaredW2",
    "Weighted",
    "__version__",
    "load",
    "local_w2",
    "save",
    "train",
    "w2_squared",
]
