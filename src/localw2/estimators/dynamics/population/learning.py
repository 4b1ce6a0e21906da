"""From trajectories, doses and covariates to a fitted population."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, as_array
from localw2.estimators.dynamics.population.fitting import (
    Trained,
    first_guess,
    fit_population,
    improve_laws,
    start_slopes,
)
from localw2.estimators.dynamics.population.individuals import Anchor, Equation, estimate
from localw2.estimators.dynamics.population.population import Population, Quantity
from localw2.estimators.dynamics.population.simulated import OBSERVED_STEPS, SimulatedSubjects
from localw2.estimators.dynamics.population.uncertainty import (
    Bowl,
    describe,
    gaussian_like,
    least_errors,
    propagate,
)
from localw2.models.cohort import Cohort, observed_names, state_of
from localw2.models.fields import FunctionField, is_initial
from localw2.models.laws import LogNormal, Normal
from localw2.models.measurement import MeasurementNoise
from localw2.models.solver import SolverError
from localw2.models.subjects import Doses, Inputs

if TYPE_CHECKING:
    from localw2.estimators.dynamics.trajectories import Trajectories
    from localw2.models.laws import Law, ParameterLaw
    from localw2.models.paths import Observe
    from localw2.models.solver import Solver
    from localw2.training.config import Fit, FitConfig

# Without noise= observations are taken as exact: an error of this part of their size is below what is seen.
EXACT = 1e-3
# A prior this many scales wide is no prior: least squares.
NO_PRIOR = 1e3
# Fewer subjects than this do not show a spread well.
FEW_SUBJECTS = 20
# A relative standard error above this means that a number is not identified.
UNSURE = 1.0


@final
@dataclass(frozen=True)
class Learned:
    """A field with the learned law, the noise, and what describes them."""

    field: FunctionField
    noise: MeasurementNoise | None
    fit: Fit
    population: Population


def make_cohort(
    times: Array,
    seen: Array,
    initial: Array,
    t0: float,
    doses: Any = None,
    covariates: Any = None,
    inputs: Any = None,
) -> Cohort:
    """Check what is done to n subjects, and put it beside their times."""
    n, d = initial.shape
    table = None if doses is None else Doses.of(doses, n, d)
    return Cohort.of(times, seen, initial, t0, table, read_covariates(covariates, n), Inputs.of(inputs, n))


def read_covariates(covariates: Any, n: int) -> dict[str, Array]:
    """Numbers (n,) by name, from a DataFrame or a dict."""
    if covariates is None:
        return {}
    if hasattr(covariates, "columns"):
        covariates = {str(name): covariates[name] for name in covariates.columns}
    if not isinstance(covariates, Mapping):
        raise ValueError(
            f"covariates is {type(covariates).__name__}; give a DataFrame or a dict of columns, with a value "
            "for each subject."
        )
    found = {}
    for name, values in covariates.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"the covariate {name!r} must have a name that is a Python identifier, such as 'weight'."
            )
        column = as_array(np.asarray(values), f"covariates[{name!r}]").astype(float)
        column = np.broadcast_to(column, (n,)) if column.ndim == 0 else column
        if column.shape != (n,):
            raise ValueError(
                f"covariates[{name!r}] has shape {column.shape}; expected a value for each of {n} subjects."
            )
        found[name] = column
    return found


def complete_laws(laws: Mapping[str, Law], data: Trajectories, learn_initial: bool) -> dict[str, Law]:
    """The laws, with one for each initial state if these are not known."""
    found = dict(laws)
    if not learn_initial or any(map(is_initial, laws)):
        return found
    d = data.initial.shape[1]
    _, there, values = data.padded()
    first = np.where(there[..., None], values, np.nan)[:, 0]
    for k in range(d):
        own = first[np.isfinite(first[:, k]), k]
        if len(own) == 0:
            raise ValueError(f"state {k + 1} is not observed at the first time of any subject; give y0.")
        mean, std = float(own.mean()), float(own.std())
        std = max(std, 0.05 * abs(mean), 1e-6 * float(np.nanmax(np.abs(values[..., k]))))
        name = "y0" if d == 1 else f"y0_{k + 1}"
        found[name] = LogNormal(mean, std) if (own > 0).all() else Normal(mean, std)
    return found


def check_laws(laws: Mapping[str, Law], cohort: Cohort) -> None:
    """Raise if a law names an initial state or a covariate that does not exist."""
    d = cohort.initial.shape[1]
    for name, law in laws.items():
        if is_initial(name) and state_of(name) >= d:
            raise ValueError(
                f"the parameter {name!r} is the initial value of state {state_of(name) + 1} of {d}."
            )
        if missing := [c for c in law.depends_on if c not in cohort.covariates]:
            raise ValueError(
                f"the law of {name!r} depends on {missing[0]!r}, which is not among the covariates "
                f"({', '.join(cohort.covariates) or 'none were given'})."
            )


@final
@dataclass(frozen=True)
class Study:
    """What is known of a population before its fit: the equation, its subjects, and what was seen of them.

    ``y`` (n, T, p) is NaN where nothing was observed. ``noise`` and ``limit`` (of quantification) are the
    estimator's settings, ``weights`` (n,) those of the subjects.
    """

    function: Any
    laws: dict[str, Law]
    cohort: Cohort
    y: Array
    solver: Solver
    observe: Observe | None
    noise: Any
    limit: float | None
    weights: Array | None

    @property
    def learns_noise(self) -> bool:
        """Whether the errors of measurement are learned."""
        return isinstance(self.noise, str)

    def check_observed(self) -> None:
        """Raise if what is observed depends on something that is not there."""
        known = {*self.laws, *self.cohort.covariates}
        if unknown := [name for name in observed_names(self.observe) if name not in known]:
            raise ValueError(
                f"observe takes {unknown[0]!r} beside the states, which is neither a parameter "
                f"({', '.join(self.laws)}) nor a covariate "
                f"({', '.join(self.cohort.covariates) or 'none were given'})."
            )

    def equation(self, laws: dict[str, Law], generator: torch.Generator) -> Equation:
        """The equation with these laws of its parameters."""
        given = [*self.cohort.covariates, *self.cohort.knots]
        field = FunctionField(self.function, laws, generator, given).double()
        field.law.learn_units(self.cohort.covariates)
        return Equation(field, self.solver, self.observe, self.cohort, torch.tensor(np.isfinite(self.y)))

    def errors(self, size: Tensor, guess: Tensor) -> MeasurementNoise:
        """Errors of observations of this size (p,): without ``noise`` hardly any."""
        if self.noise is None:
            known = MeasurementNoise("additive", size, torch.full_like(size, EXACT))
            return known.requires_grad_(False)
        return MeasurementNoise(self.noise, size, guess)


def learn(study: Study, config: FitConfig, generator: torch.Generator) -> Learned:
    """Learn laws and noise."""
    check_laws(study.laws, study.cohort)
    study.check_observed()
    start = study.equation(study.laws, generator)
    _check_function(start)
    seen, target = start.seen, torch.tensor(np.nan_to_num(study.y))
    bound = None if study.limit is None else torch.tensor(study.limit, dtype=target.dtype)
    if bound is not None:
        target = torch.where(seen, torch.maximum(target, bound), target)
    size = (target.abs() * seen).sum((0, 1)) / seen.sum((0, 1)).clamp_min(1)
    size = torch.where(size > 0, size, 1.0)
    guess, _ = first_guess(start, study.errors(size, torch.full_like(size, 0.1)), target)
    current = study.equation(improve_laws(study.laws, guess), generator)
    start_slopes(current.field.law, guess)
    errors = study.errors(size, (0.1 * guess.noise).clamp(1e-3, 1.0).expand_as(size).clone())
    trained = fit_population(current, errors, target, bound, study.weights, config)
    two_stage = _two_stage(current, errors, target)
    population = _finish(trained, study, two_stage)
    _warn(population, study.learns_noise, seen)
    return Learned(current.field, None if study.noise is None else errors, trained.fit, population)


def _check_function(equation: Equation) -> None:
    """Try the function once before training."""
    k = len(equation.field.law.laws)
    rows = torch.arange(len(equation.cohort))
    try:
        seen = equation.exact(torch.zeros(len(rows), k, dtype=torch.float64), rows)
    except (ValueError, SolverError):
        raise
    except Exception as error:  # a user's function can raise anything
        raise ValueError(
            f"the field or observe failed at the initial guess: {error!r}. The field is called with one "
            "state y (d,) of float64: use torch's functions on it (not numpy's), torch.where instead of if."
        ) from error
    if seen.shape != equation.seen.shape:
        n, times, p = equation.seen.shape
        raise ValueError(
            f"observe gives {tuple(seen.shape)} for {n} subjects at {times} times, where Y has {p} observed "
            f"value(s): expected ({n}, {times}, {p}), as y[..., :1] gives for one of them."
        )


@torch.no_grad()
def _two_stage(
    equation: Equation, noise: MeasurementNoise, y: Tensor
) -> dict[str, tuple[float, float]] | None:
    """Mean and SD of least squares for each subject alone, if all have more points than parameters."""
    k = len(equation.field.law.laws)
    if int(equation.seen.flatten(1).sum(1).min()) <= k:
        return None
    n = len(y)
    centers = torch.zeros(n, k, dtype=y.dtype)
    anchor = Anchor.of(centers, NO_PRIOR**2 * torch.eye(k, dtype=y.dtype), noise)
    try:
        found = estimate(equation, anchor, y, torch.arange(n), centers, 2 * OBSERVED_STEPS)
    except (SolverError, RuntimeError):
        return None
    values = equation.field.law.values_of(found.scores)
    return {
        name: _mean_and_spread(value.numpy(), law)
        for (name, value), law in zip(values.items(), equation.field.law.laws.values(), strict=True)
    }


def _mean_and_spread(values: Array, law: Law) -> tuple[float, float]:
    if law.logarithmic:
        logs = np.log(np.maximum(values, 1e-300))
        return float(np.exp(logs.mean())), float(logs.std(ddof=1))
    return float(values.mean()), float(values.std(ddof=1))


def _finish(trained: Trained, study: Study, two_stage: dict[str, tuple[float, float]] | None) -> Population:
    """Take the last step to the minimum, and describe what was found."""
    model, own = trained.model, trained.model.law
    law = gaussian_like(own, model.seed)
    if law is not own:
        model = _with_law(model, law)
    # Standard errors take the shape of a curve of covariates as it is; only its slope is uncertain.
    law.curves.requires_grad_(False)
    bowl = Bowl.of(model, trained.features, study.weights)
    covariance, learned = bowl.covariance, bowl.learned
    if law is own and trained.fit.complete:
        bowl.descend()
    described = {what: float(value.detach()) for what, value in describe(law).items()}
    errors = propagate(lambda: torch.stack(list(describe(law).values())), covariance, learned)
    least = least_errors(own, described, len(study.y))
    mixed = study.learns_noise and _explains_all(model.equation.seen, len(own.random_names))
    freedom = max(len(study.y) - 1, 1)
    found = []
    for ((name, kind), value), error in zip(described.items(), errors.tolist(), strict=True):
        positive = kind == "spread" or (kind == "typical" and law.laws[name].logarithmic)
        error = math.inf if mixed and kind == "spread" else max(error, least.get((name, kind), 0.0))
        found.append(Quantity(name, kind, value, error, positive, freedom))
    if study.learns_noise:
        noise = _describe_noise(model.noise, covariance, learned, freedom)
        found += [replace(one, error=math.inf) for one in noise] if mixed else noise
    drawn = law.factor.tril().square().sum(1).sqrt().detach()
    names = list(own.laws)
    apart = trained.estimates.scores
    if model.covariates is not None:  # around what covariates tell
        apart = apart - law.shift(model.covariates).detach()
    shrinkage = {
        name: 1 - float(apart[:, names.index(name)].std() / drawn[place].clamp_min(1e-12))
        for place, name in enumerate(law.random_names)
    }
    seen = int(model.equation.seen.sum())
    logarithmic = tuple(name for name, one in own.laws.items() if one.logarithmic)
    return Population(tuple(found), shrinkage, two_stage, len(study.y), seen, logarithmic)


def _with_law(model: SimulatedSubjects, law: ParameterLaw) -> SimulatedSubjects:
    """The same subjects with another law of the same parameters."""
    old = model.equation
    field = FunctionField(old.field.function, law.laws, given=old.field.given).double()
    field.law = law
    other = SimulatedSubjects(replace(old, field=field), model.anchor, model.noise, model.limit, model.seed)
    other.whiten = model.whiten
    return other


def _describe_noise(
    noise: MeasurementNoise, covariance: Tensor, learned: list[torch.nn.Parameter], freedom: int
) -> list[Quantity]:
    def values() -> Tensor:
        parts = [
            noise.log_std[part].exp() * (noise.size if part == "additive" else torch.ones_like(noise.size))
            for part in noise.parts
        ]
        return torch.cat(parts)

    errors = propagate(values, covariance, learned)
    p = len(noise.size)
    labels = [("noise" if p == 1 else f"noise of {c + 1}", part) for part in noise.parts for c in range(p)]
    found = zip(labels, values().detach().tolist(), errors.tolist(), strict=True)
    return [Quantity(name, part, value, error, True, freedom) for (name, part), value, error in found]


def _explains_all(seen: Tensor, n_random: int) -> bool:
    """Whether most subjects have no more observations than random parameters."""
    return int(seen.flatten(1).sum(1).median()) <= n_random


def _warn(population: Population, learned_noise: bool, seen: Tensor) -> None:
    random = sum(q.kind == "spread" for q in population.quantities)
    mixed = learned_noise and _explains_all(seen, random)
    if mixed:
        usual = int(seen.flatten(1).sum(1).median())
        warnings.warn(
            f"most subjects have {usual} observation(s) and {random} random parameter(s), which could "
            "explain them exactly: the noise of the measurements cannot be told from the spread between "
            "subjects. Give noise as a number, make parameters Shared, or observe subjects more often.",
            stacklevel=4,
        )
    unsure = [
        f"{q.kind} of {q.parameter} ({q.value:.3g} +- {q.error:.2g})"
        for q in population.quantities
        if (q.kind == "spread" or q.parameter.startswith("noise")) and q.error > UNSURE * abs(q.value)
    ]
    if unsure and not mixed:
        between = (
            " The noise of the measurements and the spread between subjects may not be told apart."
            if learned_noise
            else ""
        )
        warnings.warn(
            f"these data do not tell the {', the '.join(unsure[:4])}.{between} Give more observations of "
            "each subject or more subjects, make a parameter Shared, or give noise as a number.",
            stacklevel=4,
        )
    if population.n_subjects < FEW_SUBJECTS:
        warnings.warn(
            f"{population.n_subjects} subjects show the spread between subjects only roughly: an SD from so "
            f"many has a relative error of at least {(2 * (population.n_subjects - 1)) ** -0.5:.0%}. See the "
            "intervals of summary().",
            stacklevel=4,
        )


def rescale(solver: Solver, factor: float) -> Solver:
    """A solver with tolerances that many times as large."""
    return replace(solver, rtol=solver.rtol * factor, atol=solver.atol * factor)


def subset(doses: Any, covariates: Any, inputs: Any, kept: Array) -> tuple[Any, Any, Any]:
    """What belongs to the subjects ``kept``, who are numbered anew."""
    if doses is not None:
        columns = {str(name): np.asarray(doses[name]) for name in (getattr(doses, "columns", doses))}
        number = columns.get("subject", np.zeros(len(columns["amount"]), int))
        own = np.isin(number, kept)
        doses = {name: values[own] for name, values in columns.items()}
        doses["subject"] = np.searchsorted(kept, doses.get("subject", number[own]))
    if covariates is not None:
        names = getattr(covariates, "columns", covariates)
        covariates = {name: np.asarray(covariates[name])[kept] for name in names}
    if inputs is not None:
        inputs = {
            name: (times, np.asarray(values)[kept] if np.ndim(values) == 2 else values)
            for name, (times, values) in inputs.items()
        }
    return doses, covariates, inputs


def hash_design(cohort: Cohort) -> str:
    """What distinguishes what was done to subjects."""
    parts = [cohort.clock.stops, cohort.clock.jumps, cohort.clock.rates, cohort.initial]
    parts += [*cohort.covariates.values(), *cohort.knots.values(), *cohort.courses.values()]
    names = [*cohort.covariates, *cohort.knots]
    digest = hashlib.sha256(repr(names).encode())
    for part in parts:
        digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()
