"""The part of ``LocalW2ODE`` for observed subjects of a population: each alone, all against simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from localw2._validation import Array, check_count, check_flag
from localw2.estimators import settings
from localw2.estimators.dynamics.population.estimator import PopulationMethods
from localw2.estimators.dynamics.population.individuals import Equation
from localw2.estimators.dynamics.population.observed import Observed
from localw2.estimators.dynamics.population.posterior import IndividualParameters, draw_posteriors
from localw2.estimators.dynamics.population.predictions import IndividualPredictions
from localw2.estimators.dynamics.population.predictive_check import PredictiveCheck
from localw2.estimators.dynamics.population.residuals import Residuals
from localw2.estimators.dynamics.population.sampling import SimulatedCohort
from localw2.models.fields import FunctionField

if TYPE_CHECKING:
    from localw2.models.cohort import Cohort

# Draws of a subject's parameters behind a residual.
INDIVIDUAL_DRAWS = 200


class SubjectMethods(PopulationMethods):
    """What a fitted population says of subjects that were observed.

    ``Y``, ``t``, ``y0``, ``doses``, ``covariates`` and ``inputs`` are those of ``fit``, of its subjects or
    others; or Y is a ``LongTable``, or, after ``fit_table``, a frame with the same columns, without t.
    """

    def individual_parameters(
        self,
        Y: Any,
        t: Any = None,
        y0: Any = None,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        n_samples: int = 200,
        random_state: Any = None,
    ) -> IndividualParameters:
        """Draws of the parameters of single subjects, given their observations, from the learned population.

        The arguments are those of ``fit``, of these subjects or others; or Y is a ``LongTable``, or, after
        ``fit_table``, a frame with the same columns.
        """
        seen = self.read_subjects(Y, t, y0, doses, covariates, inputs)
        scores, effective = self._posterior(seen, n_samples, settings.draw_seed(random_state))
        drawn = self._own_field().law.values_of(scores.flatten(0, 1))
        samples = {name: v.detach().unflatten(0, scores.shape[:2]).numpy() for name, v in drawn.items()}
        return IndividualParameters(samples, effective.numpy(), seen.subjects)

    def individual_predictions(
        self,
        Y: Any,
        t: Any = None,
        y0: Any = None,
        *,
        at: Any = None,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        measured: bool = False,
        n_samples: int = 200,
        random_state: Any = None,
    ) -> IndividualPredictions:
        """Draws of the trajectories of single subjects, given their observations.

        ``at`` are times (T,), also later than the observations: a forecast for this subject. None stands for
        100 times up to the last observation of all, and "observed" for each subject's own times. With
        ``measured`` draws have errors of measurement, as a new observation would.
        """
        seen = self.read_subjects(Y, t, y0, doses, covariates, inputs)
        own = isinstance(at, str)
        if own and at != "observed":
            raise ValueError(f"at={at!r} is unknown; give times, or 'observed'.")
        check_flag(measured, "measured")
        seed = settings.draw_seed(random_state)
        scores, _ = self._posterior(seen, n_samples, seed)
        times = None if own else seen.later(at)
        exact = self._follow(seen.cohort(times), scores)
        if measured:
            assert self._noise is not None
            with torch.no_grad():
                exact = self._noise.draw(exact, torch.Generator().manual_seed(seed + 1))
        samples, mean = exact.numpy(), self._follow_population(seen, times, n_samples, seed).mean(0)
        if times is not None:
            return IndividualPredictions(seen.subjects, np.tile(times, (len(mean), 1)), samples, mean)
        samples, mean = (np.where(seen.there[..., None], part, np.nan) for part in (samples, mean))
        shown = np.where(seen.there, seen.times + seen.t0, np.nan)
        return IndividualPredictions(seen.subjects, shown, samples, mean)

    def predictive_check(
        self,
        Y: Any,
        t: Any = None,
        y0: Any = None,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        levels: Any = (0.05, 0.5, 0.95),
        coverage: float = 0.9,
        bins: Any = None,
        corrected: bool = False,
        n_samples: int = 200,
        random_state: Any = None,
    ) -> PredictiveCheck:
        """Quantiles of the observations over time, beside those of ``n_samples`` simulated data sets.

        Simulated subjects have the times, doses, covariates and missing values of the observed ones, errors
        of measurement, and the limit of quantification. ``bins`` are ends of bins of time (B + 1,); None
        takes common times, visits, or bins of equally many observations. With ``corrected`` observations are
        scaled to the median prediction of their bin, so that differences in dose do not hide others (for
        positive quantities). Draw it by ``plots.predictive_check``.
        """
        seen = self.read_subjects(Y, t, y0, doses, covariates, inputs)
        check_count(n_samples, "n_samples", 20, why="fewer data sets do not show an interval")
        draws = self._repeat(seen, n_samples, settings.draw_seed(random_state))
        return PredictiveCheck.of(
            seen.times + seen.t0,
            self._limited(seen.values),
            draws,
            levels,
            coverage,
            bins,
            seen.quantities,
            self.quantification_limit,
            check_flag(corrected, "corrected"),
        )

    def residuals(
        self,
        Y: Any,
        t: Any = None,
        y0: Any = None,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        n_samples: int = 500,
        random_state: Any = None,
    ) -> Residuals:
        """Every observation with its population and individual prediction, and residuals by both.

        Draw them by ``plots.residuals``.
        """
        seen = self.read_subjects(Y, t, y0, doses, covariates, inputs)
        check_count(n_samples, "n_samples", 20, why="fewer draws do not show a rank")
        seed = settings.draw_seed(random_state)
        draws = self._repeat(seen, n_samples, seed)
        scores, _ = self._posterior(seen, INDIVIDUAL_DRAWS, seed)
        individual = self._follow(seen.cohort(), scores).mean(0)
        assert self._noise is not None
        with torch.no_grad():
            std = self._noise.std(individual)
        return Residuals.of(
            seen.times + seen.t0,
            self._limited(seen.values),
            draws,
            individual.numpy(),
            std.numpy(),
            self.quantification_limit,
            seen.subjects,
            seen.quantities,
            np.random.default_rng(seed),
        )

    def read_subjects(
        self,
        Y: Any,
        t: Any = None,
        y0: Any = None,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
    ) -> Observed:
        """The subjects of arrays or of a table as the methods above see them, checked against the fit."""
        check_is_fitted(self, "model_")
        if getattr(self, "population_", None) is None:
            raise ValueError(
                "single subjects are known to fits of named parameters that tell errors of measurement from "
                "the spread between subjects; fit with noise=."
            )
        design = {"doses": doses, "covariates": covariates, "inputs": inputs}
        columns = getattr(self, "table_columns_", None)
        seen = Observed.of(Y, t, y0, self.t0_, self.n_states_, design, columns, self.observe is None)
        self._check_start(seen.starts_known, seen.design["doses"])
        if seen.values.shape[2] != self.n_observed_:
            raise ValueError(
                f"there are {seen.values.shape[2]} observed quantities, but {self.n_observed_} in the fit."
            )
        return seen

    def _own_field(self) -> FunctionField:
        field = self.model_.field
        assert isinstance(field, FunctionField)
        return field

    def _posterior(self, seen: Observed, n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """Scores (S, n, k) of the subjects' parameters, and effective numbers of draws (n,)."""
        if self._noise is None:
            raise ValueError(
                "individual parameters are weighted by the errors of measurement; fit with noise=."
            )
        n_samples = check_count(n_samples, "n_samples", 1)
        equation = self._equation(seen.cohort(), torch.tensor(np.isfinite(seen.values)))
        limit = None if self.quantification_limit is None else torch.tensor(self.quantification_limit)
        target = torch.tensor(np.nan_to_num(seen.values))
        return draw_posteriors(equation, self._own_field().law, self._noise, target, limit, n_samples, seed)

    def _equation(self, cohort: Cohort, seen: Tensor) -> Equation:
        self._check_given(cohort)
        return Equation(self._own_field(), self._solver(self.model_), self.observe, cohort, seen)

    def _follow(self, cohort: Cohort, scores: Tensor) -> Tensor:
        """What subjects with these scores (S, n, k) would show without error (S, n, T, p)."""
        draws, n = scores.shape[:2]
        seen = torch.ones((*cohort.clock.places.shape, self.n_observed_), dtype=torch.bool)
        rows = torch.arange(n).repeat(draws)
        found: Tensor = self._equation(cohort, seen).exact(scores.flatten(0, 1), rows)
        return found.reshape(draws, n, *found.shape[1:])

    def _repeat(self, seen: Observed, n_samples: int, seed: int) -> Array:
        """Data sets (S, n, T, p) of new subjects with the same design."""
        equation = self._equation(seen.cohort(), torch.tensor(np.isfinite(seen.values)))
        return SimulatedCohort(equation, self._noise, self.quantification_limit, n_samples, seed).sample()

    def _follow_population(self, seen: Observed, at: Array | None, n_samples: int, seed: int) -> Array:
        """What new subjects with the same design would show at times ``at`` without error (S, n, T, p)."""
        cohort = seen.cohort(at)
        mask = torch.ones((*cohort.clock.places.shape, self.n_observed_), dtype=torch.bool)
        equation = self._equation(cohort, mask)
        return SimulatedCohort(equation, None, None, n_samples, seed).sample()

    def _limited(self, values: Array) -> Array:
        """Values with those below the limit at the limit, as simulated ones are."""
        if self.quantification_limit is None:
            return values
        found: Array = np.maximum(values, self.quantification_limit)  # NaN stays
        return found
