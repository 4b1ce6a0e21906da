"""Learn random models from data: the whole distribution of y at every x, with no prior and no likelihood."""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localw2.apps.report import report_html, write_report
    from localw2.balls.lazy import LazyNeighborhoods
    from localw2.balls.neighborhoods import Nearest, Neighborhoods
    from localw2.balls.norms import Euclidean, Mahalanobis, Norm, Weighted
    from localw2.balls.selection import DeltaSelection, select_delta
    from localw2.distribution import Distribution, DrawsDistribution, NormalDistribution
    from localw2.estimators.coefficients.regressor import RandomCoefficientRegressor
    from localw2.estimators.dynamics.long_tables import LongTable
    from localw2.estimators.dynamics.ode import LocalW2ODE
    from localw2.estimators.dynamics.population.population import Population, Quantity
    from localw2.estimators.dynamics.population.posterior import IndividualParameters
    from localw2.estimators.dynamics.population.predictions import IndividualPredictions
    from localw2.estimators.dynamics.population.predictive_check import PredictiveCheck
    from localw2.estimators.dynamics.population.residuals import Residuals
    from localw2.estimators.dynamics.sde import LocalW2SDE
    from localw2.estimators.fields.regressor import LocalW2FieldRegressor
    from localw2.estimators.files import load, save
    from localw2.estimators.mixed.regressor import LocalW2MixedRegressor
    from localw2.estimators.regression.ball_law import BallLaw
    from localw2.estimators.regression.network import Network
    from localw2.estimators.regression.regressor import LocalW2Regressor
    from localw2.judging.bounds import ErrorBound, error_bound
    from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
    from localw2.judging.explanations import (
        ColumnDependence,
        ColumnImportance,
        column_dependence,
        column_importance,
    )
    from localw2.judging.independence import DependentDrawsWarning
    from localw2.judging.seen_rows import SeenRows, SeenRowsWarning
    from localw2.judging.swap_test.conditional import ConditionalTest, conditional_test
    from localw2.losses.discrepancies import MMD, MSE, EnergyScore, MeanVar, Sinkhorn, SlicedW2, SquaredW2
    from localw2.losses.objective import Objective, local_w2, w2_squared
    from localw2.models.base import RandomMap
    from localw2.models.fields import FunctionField, NetworkField, RandomField
    from localw2.models.laws import LogNormal, Normal, PushForward, Shared
    from localw2.models.linear import RandomLinear
    from localw2.models.network import RandomMLP
    from localw2.models.noise_network import NoiseMLP
    from localw2.models.ode import RandomODE
    from localw2.models.solver import SolverError
    from localw2.training.config import Fit, FitConfig
    from localw2.training.loop import train

__version__ = "0.2.0"

__all__ = [
    "MMD",
    "MSE",
    "BallLaw",
    "ColumnDependence",
    "ColumnImportance",
    "ConditionalTest",
    "DeltaSelection",
    "DependentDrawsWarning",
    "Diagnosis",
    "Distribution",
    "DrawsDistribution",
    "EnergyScore",
    "ErrorBound",
    "Euclidean",
    "Fit",
    "FitConfig",
    "FunctionField",
    "IndividualParameters",
    "IndividualPredictions",
    "LazyNeighborhoods",
    "LocalW2FieldRegressor",
    "LocalW2MixedRegressor",
    "LocalW2ODE",
    "LocalW2Regressor",
    "LocalW2SDE",
    "LogNormal",
    "LongTable",
    "Mahalanobis",
    "MeanVar",
    "Nearest",
    "Neighborhoods",
    "Network",
    "NetworkField",
    "NoiseMLP",
    "Norm",
    "Normal",
    "NormalDistribution",
    "Objective",
    "Population",
    "PredictiveCheck",
    "PushForward",
    "Quantity",
    "RandomCoefficientRegressor",
    "RandomField",
    "RandomLinear",
    "RandomMLP",
    "RandomMap",
    "RandomODE",
    "Residuals",
    "SeenRows",
    "SeenRowsWarning",
    "Shared",
    "Sinkhorn",
    "SlicedW2",
    "SolverError",
    "SquaredW2",
    "Weighted",
    "__version__",
    "column_dependence",
    "column_importance",
    "conditional_test",
    "diagnose",
    "error_bound",
    "load",
    "local_w2",
    "report_html",
    "save",
    "select_delta",
    "train",
    "w2_squared",
    "write_report",
]

# Where each name lives. It is imported when it is first asked for: torch alone takes a second, which neither
# `localw2 --help` nor the completion of a shell can wait for.
_HOMES = {
    "apps.report": "report_html write_report",
    "balls.lazy": "LazyNeighborhoods",
    "balls.neighborhoods": "Nearest Neighborhoods",
    "balls.norms": "Euclidean Mahalanobis Norm Weighted",
    "balls.selection": "DeltaSelection select_delta",
    "distribution": "Distribution DrawsDistribution NormalDistribution",
    "estimators.coefficients.regressor": "RandomCoefficientRegressor",
    "estimators.dynamics.long_tables": "LongTable",
    "estimators.dynamics.ode": "LocalW2ODE",
    "estimators.dynamics.population.population": "Population Quantity",
    "estimators.dynamics.population.posterior": "IndividualParameters",
    "estimators.dynamics.population.predictions": "IndividualPredictions",
    "estimators.dynamics.population.predictive_check": "PredictiveCheck",
    "estimators.dynamics.population.residuals": "Residuals",
    "estimators.dynamics.sde": "LocalW2SDE",
    "estimators.fields.regressor": "LocalW2FieldRegressor",
    "estimators.files": "load save",
    "estimators.mixed.regressor": "LocalW2MixedRegressor",
    "estimators.regression.regressor": "LocalW2Regressor",
    "estimators.regression.network": "Network",
    "estimators.regression.ball_law": "BallLaw",
    "judging.bounds": "ErrorBound error_bound",
    "judging.diagnosis.diagnose": "Diagnosis diagnose",
    "judging.explanations": "ColumnDependence ColumnImportance column_dependence column_importance",
    "judging.seen_rows": "SeenRows SeenRowsWarning",
    "judging.swap_test.conditional": "ConditionalTest conditional_test",
    "judging.independence": "DependentDrawsWarning",
    "losses.discrepancies": "MMD MSE EnergyScore MeanVar Sinkhorn SlicedW2 SquaredW2",
    "losses.objective": "Objective local_w2 w2_squared",
    "models.base": "RandomMap",
    "models.fields": "FunctionField NetworkField RandomField",
    "models.laws": "LogNormal Normal PushForward Shared",
    "models.linear": "RandomLinear",
    "models.network": "RandomMLP",
    "models.noise_network": "NoiseMLP",
    "models.ode": "RandomODE",
    "models.solver": "SolverError",
    "training.config": "Fit FitConfig",
    "training.loop": "train",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # or else a misspelt name would pass for Any

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            value = getattr(import_module(f"localw2.{_HOME_OF[name]}"), name)
        elif not name.startswith("__") and find_spec(f"localw2.{name}") is not None:
            value = import_module(f"localw2.{name}")
        else:
            raise AttributeError(f"module 'localw2' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names and the rooms, which is what completion should offer; see ``__all__``."""
        return sorted({*__all__, *(room.name for room in iter_modules(__path__) if room.name[0] != "_")})
