"""Learn random models from data: the whole distribution of y at every x, with no prior and no likelihood."""

from localw2.losses import MMD, MSE, EnergyScore, MeanVar, Objective, SlicedW2, SquaredW2, local_w2
from localw2.neighborhoods import LazyNeighborhoods, Neighborhoods
from localw2.norms import Euclidean, Mahalanobis, Norm, Weighted
from localw2.transport import w2_squared

__version__ = "0.1.0.dev0"

__all__ = [
    "MMD",
    "MSE",
    "EnergyScore",
    "Euclidean",
    "LazyNeighborhoods",
    "Mahalanobis",
    "MeanVar",
    "Neighborhoods",
    "Norm",
    "Objective",
    "SlicedW2",
    "SquaredW2",
    "Weighted",
    "__version__",
    "local_w2",
    "w2_squared",
]
