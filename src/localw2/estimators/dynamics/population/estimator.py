"""The part of ``LocalW2ODE`` for populations: noise, doses, covariates, single subjects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from localw2._validation import Array, check_number, check_range
from localw2.estimators import settings
from localw2.estimators.dynamics import checks, storing
from localw2.estimators.dynamics.population.individuals import Equation
from localw2.estimators.dynamics.population.learning import (
    Study,
    complete_laws,
    hash_design,
    learn,
    make_cohort,
    rescale,
    subset,
)
from localw2.estimators.dynamics.population.sampling import SimulatedCohort, count_subjects, spread_times
from localw2.estimators.dynamics.trajectories import Trajectories
from localw2.models.cohort import observed_names, state_of
from localw2.models.fields import FunctionField, is_initial, parameter_names
from localw2.models.laws import PushForward, as_laws
from localw2.models.measurement import check_noise
from localw2.models.ode import RandomODE
from localw2.models.solver import FIXED, WITHOUT_GRADIENT, Solver

if TYPE_CHECKING:
    from localw2.estimators.dynamics.population.population import Population
    from localw2.judging.seen_rows import SeenRows
    from localw2.models.cohort import Cohort
    from localw2.models.measurement import MeasurementNoise

# Training solves an equation to this many times the tolerances: errors of measurement are far larger.
LOOSER = 10.0
# Epochs of a population fit, without and with laws of any shape; with more these only follow the errors.
POPULATION_EPOCHS = (120, 150)
# Evaluations of the field in one solution of all subjects: more would take minutes for a fit.
MAX_EVALUATIONS = 5000
# The default of ``method``, in whose place a method without gradients solves the equations of subjects.
USUAL_METHOD = "dopri5"
# Steps of a method without step control over the observed span of time.
FIXED_STEPS = 100


class PopulationMethods:
    """What an estimator of ODEs does with subjects that are measured with error, or treated differently."""

    field: Any
    parameters: Any
    observe: Callable[..., Tensor] | None
    noise: Any
    quantification_limit: float | None
    method: str
    rtol: float
    atol: float
    step_size: float | None
    random_state: Any
    checkpoint: Any
    model_: RandomODE
    population_: Population | None
    t0_: float
    n_states_: int
    n_observed_: int
    _noise: MeasurementNoise | None
    get_params: Callable[..., dict[str, Any]]
    _config: Callable[..., Any]
    _keep: Callable[..., None]
    _states: Callable[[Any, str], Tensor]
    _sketch: Callable[..., SeenRows | None]

    def _step(self, data: Trajectories) -> float | None:
        """The step of a method without step control, which would be as long as the gaps in t otherwise."""
        if self.method in FIXED and self.step_size is None:
            return float(data.time.max()) / FIXED_STEPS
        return self.step_size

    def _check_noise(self) -> None:
        if self.noise is not None:
            check_noise(self.noise)
        if self.quantification_limit is not None:
            check_number(self.quantification_limit, "quantification_limit", math.isfinite, "a finite number")

    def _fit_population(
        self, Y: Any, t: Any, y0: Any, t0: Any, kept: Array | None, weights: Array | None, *given: Any
    ) -> Self:
        """Learn named parameters from noisy trajectories, or of subjects with doses and covariates."""
        doses, covariates, inputs = given
        named = self._initial_laws()
        data = Trajectories.of(Y, t, self._whole_start(y0), t0, self.observe is None, kept, partly=True)
        check_range(data.values[np.isfinite(data.values)], "Y")
        checks.check_observed(data, self.observe)
        if kept is not None and len(kept) < len(Y):
            doses, covariates, inputs = subset(doses, covariates, inputs, kept)
        times, there, values = data.padded()
        cohort = make_cohort(times, there, data.initial, data.t0, doses, covariates, inputs)
        names = [*cohort.covariates, *cohort.knots]
        free = [name for name in parameter_names(self.field) if name not in names]
        laws = as_laws(free if self.parameters is None else self.parameters)
        laws = complete_laws(laws, data, learn_initial=y0 is None and not named and doses is None)
        observed = np.column_stack([data.number, data.time + data.t0])
        printed = settings.hash_fit(
            self.get_params(deep=False), np.nan_to_num(data.values), observed, weights
        )
        printed += hash_design(cohort) + "".join(storing.hash_function(f) for f in (self.field, self.observe))
        seed = settings.seed_fit(self.random_state, printed if self.checkpoint is not None else None)
        size = torch.tensor(data.state_size(), dtype=torch.float64)
        step = self._step(data)
        start = torch.tensor([data.t0], dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)

        def as_ode(field: FunctionField) -> RandomODE:
            return RandomODE(field, start, self.method, self.rtol, self.atol, step, state_size=size)

        solver = rescale(self._solver(as_ode(FunctionField(self.field, laws, generator, names))), LOOSER)
        study = Study(
            self.field,
            laws,
            cohort,
            values,
            solver,
            self.observe,
            self.noise,
            self.quantification_limit,
            weights,
        )
        any_shape = any(isinstance(law, PushForward) for law in laws.values())
        learned = learn(study, self._config(seed, printed, POPULATION_EPOCHS[any_shape]), generator)
        ode = as_ode(learned.field)
        self._keep(
            ode, learned.fit, self._sketch(Y, kept), values.shape[2], seed, learned.noise, learned.population
        )
        if self.checkpoint is not None and learned.fit.stopped == "all epochs done":
            settings.remove_checkpoints(self.checkpoint)
        return self

    def _solver(self, ode: RandomODE) -> Solver:
        """What solves subjects, for which no gradient is needed."""
        method = WITHOUT_GRADIENT if self.method == USUAL_METHOD else self.method
        return replace(ode.solver, method=method, max_evaluations=MAX_EVALUATIONS)

    def _whole_start(self, y0: Any) -> Any:
        """The initial states, or zeros where they are all parameters."""
        named = self._initial_laws()
        if y0 is None and named and self.observe is not None:
            return np.zeros(1 + max(map(state_of, named)))
        return y0

    def _initial_laws(self) -> list[str]:
        """The parameters that are initial states."""
        named = self.parameters if isinstance(self.parameters, dict | list | tuple) else ()
        return [name for name in named if isinstance(name, str) and is_initial(name)]

    def _is_population(self, doses: Any, covariates: Any, inputs: Any) -> bool:
        """Whether subjects are compared by what a fit of each alone gives."""
        given = {"doses": doses, "covariates": covariates, "inputs": inputs}
        named = [name for name, value in given.items() if value is not None]
        if isinstance(self.field, str):
            named += [f"observe with {name}" for name in observed_names(self.observe)]
            if named or self.quantification_limit is not None:
                what = named[0] if named else "quantification_limit"
                raise ValueError(
                    f"{what} is for a field of your own, which says what it does; a network does not know."
                )
            return False
        limited = self.quantification_limit is not None
        by_name = bool(self._initial_laws() or observed_names(self.observe))
        return bool(named) or limited or self.noise is not None or by_name

    def summary(self) -> str:
        """Typical values, spread between subjects, correlations, effects and noise, with standard errors.

        For fits with noise, doses or covariates. Intervals are meant to hold the true value in 90 % of
        repetitions; see ``population_`` for the numbers. Of a law of any shape
        mean and SD are shown, with the standard errors of a Gaussian law that has them: for two groups of
        subjects these were 1.0 to 1.4 times the true ones for typical values, 1.5 to 2.6 times for spreads.
        """
        check_is_fitted(self, "model_")
        if getattr(self, "population_", None) is None:
            raise ValueError(
                "summary() is for fits of named parameters with noise, doses or covariates; this one has "
                "parameters_ (or, of a network, sample_field)."
            )
        return str(self.population_)

    def _check_given(self, cohort: Cohort) -> None:
        """Raise if the laws or the field need a covariate or an input that subjects do not have."""
        field = self.model_.field
        assert isinstance(field, FunctionField)
        missing = {*field.law.covariates, *field.given} - {*cohort.covariates, *cohort.knots}
        if missing:
            raise ValueError(
                f"the model needs {', '.join(sorted(missing))}; give them as covariates or inputs."
            )

    def _check_start(self, known: bool, doses: Any) -> None:
        """Raise if subjects would start from zero states that nobody asked for."""
        field = self.model_.field
        assert isinstance(field, FunctionField)
        if not known and len(field.initial_names) < self.n_states_ and doses is None:
            raise ValueError("y0 is unknown: give the initial states, or doses that begin from zero.")

    def _simulated(
        self, y0: Any, t: Any, given: tuple[Any, Any, Any], measured: bool, n_draws: int, seed: int
    ) -> SimulatedCohort:
        """Subjects of a fitted population at times of their own."""
        field = self.model_.field
        assert isinstance(field, FunctionField)
        doses, covariates, inputs = given
        n = count_subjects(y0, t, doses, covariates)
        times = spread_times(t, n)
        # Subjects start at t0 with their doses; without any, at the first time, as trajectories do.
        start = self.t0_ if doses is not None or y0 is None else float(times[:, 0].min())
        if times.min() < start:
            raise ValueError(f"t begins at {times.min():g}, before the start at {start:g}.")
        initial = np.zeros((n, self.n_states_)) if y0 is None else self._states(y0, "y0").numpy()
        initial = np.broadcast_to(initial, (n, self.n_states_))
        there = np.ones(times.shape, bool)
        cohort = make_cohort(times - start, there, initial, start, doses, covariates, inputs)
        self._check_given(cohort)
        self._check_start(y0 is not None, doses)
        seen = torch.ones((*times.shape, self.n_observed_), dtype=torch.bool)
        equation = Equation(field, self._solver(self.model_), self.observe, cohort, seen)
        noise = self._noise if measured else None
        return SimulatedCohort(
            equation, noise, self.quantification_limit if measured else None, n_draws, seed
        )
