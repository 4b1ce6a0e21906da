"""``LocalW2ODE``: differential equations with random parameters, learned from trajectories."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from localw2._validation import (
    LARGEST,
    Array,
    as_array,
    check_count,
    check_flag,
    check_probability,
    check_range,
)
from localw2.balls.norms import Norm
from localw2.distribution import DrawsDistribution, Support
from localw2.estimators import settings, stored_values
from localw2.estimators.dynamics import checks, storing
from localw2.estimators.dynamics.held_out_paths import HeldOutScore, hold_out
from localw2.estimators.dynamics.judged_paths import JudgedPaths, sketch_paths
from localw2.estimators.dynamics.mean_field import fit_mean_field
from localw2.estimators.dynamics.noise_errors import noise_errors
from localw2.estimators.dynamics.parameters import LearnedParameters
from localw2.estimators.dynamics.population.population import Population, from_plain, to_plain
from localw2.estimators.dynamics.population.subject_methods import SubjectMethods
from localw2.estimators.dynamics.simulation import SimulatedPaths
from localw2.estimators.dynamics.table_methods import TableMethods
from localw2.estimators.dynamics.trajectories import (
    WINDOW_ROWS,
    Rows,
    Trajectories,
    leave_out_strays,
    near_initial,
)
from localw2.estimators.dynamics.trajectory_batches import TrajectoryBatches
from localw2.losses.discrepancies import Discrepancy, SquaredW2, Whitened
from localw2.losses.objective import Objective
from localw2.models.fields import FunctionField, NetworkField, RandomField, parameter_names
from localw2.models.laws import as_laws
from localw2.models.measurement import MeasurementNoise
from localw2.models.ode import RandomODE, check_times
from localw2.models.paths import ObservedPaths
from localw2.storage.model_file import Stored
from localw2.training.config import Fit, FitConfig
from localw2.training.loop import train

if TYPE_CHECKING:
    from localw2.judging.seen_rows import SeenRows

# Draws behind ``parameters_``, and trajectories behind the law of each one.
PARAMETER_DRAWS, PREDICTION_DRAWS = 10_000, 2000
# Gradients are clipped to this norm: one near-explosion would blunt the steps of a thousand epochs after it.
MAX_GRADIENT = 1.0
# Trajectories times draws that are solved for at a time when sampling.
SAMPLED_TRAJECTORIES = 4096
# Trajectories per step of a network, and the steps and epochs that its training has at least.
BATCH_TRAJECTORIES, TOTAL_STEPS, FEWEST_EPOCHS = 64, 600, 30
# How often held-out trajectories are scored, and for how long a network settles, as parts of all epochs; and
# the scores without improvement after which it does.
SCORED, SETTLE, PATIENCE = 1 / 30, 0.5, 10
# Rows per ball between which debiased W2 of several values by exact assignment is both right and fast.
ASSIGNED_ROWS = (20, 150)


class LocalW2ODE(TableMethods, JudgedPaths, SubjectMethods, stored_values.Storable, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""An ODE :math:`\dot y = g(t, y, \omega)` whose omega varies from trajectory to trajectory.

    ``fit(Y, t)`` learns the distribution of omega, and with ``field="mlp"`` the field itself, so that
    simulated trajectories have the distribution of the observed ones, with no prior and no likelihood.
    Trajectories that start from similar states are compared at each time (paper, Eq. time_w2), or, with
    ``linked``, at pairs of times.

    Parameters
    ----------
    field : "mlp" or a function
        A network with random weights (paper), or your own right-hand side ``field(t, y, r, K)``, written for
        one trajectory with torch: t is a number, y (d,), parameters are numbers by name; it returns d slopes.
    parameters : dict, list or None
        The law of each parameter of a function: ``Normal(mean, std)``, ``LogNormal``, ``PushForward`` (any
        shape) or ``Shared`` (unknown but not random), where mean and std are initial guesses; or "normal" and
        so on, or a number, the guess of a Gaussian's mean. None makes all arguments after (t, y) Gaussian.
    observe : function or None
        The observed part of the states, (..., d) -> (..., p); None observes all. It needs ``y0`` in ``fit``.
        With further arguments, as in ``lambda y, V: y / V``, it sees the states (T, d) of one trajectory and
        its parameters and covariates of these names.
    linked : bool
        Rows of Y are trajectories: compare where they are and how they continue, at pairs of times. False
        compares each time separately, as published and as unpaired snapshots need.
    max_times : int or None
        At most this many times of a common grid are compared, evenly spaced; None compares all.
    delta : "auto" or float
        Radius of the balls of initial states. "auto" is one ball if all start from the same state, otherwise
        the nearest 150 trajectories (a fifth of all, 20 to 150, where initial states lie around 0).
    norm : "auto" or Norm
        Distance between initial states; "auto" is Euclidean, for ``delta="auto"`` on states of unit range.
    discrepancy : str or Discrepancy
        "w2", "sliced", "sinkhorn", "energy", "mmd", "mse", "meanvar", see ``losses``. "w2" is exact, except
        that its debiased form for several values is sliced in balls of fewer than 20 rows (where the truth is
        not its minimiser) or more than 150 (for speed).
    debiased : bool
        Remove the shrinkage of the spread by finite balls, and subtract in each ball what is linear in the
        initial state and in time.
    standardize : bool
        Compare observed quantities in units of their spread between trajectories (of a network in batches:
        whitened), and give a network states and slopes in units of theirs (if all states are observed).
    width, depth, residual, activation, n_noise
        The network of ``field="mlp"``: random weights, or with ``n_noise`` fixed ones and so many random
        inputs for each layer, which can split trajectories into separate groups (see ``NoiseMLP``). The
        paper's activation is "relu". Units that are never negative can hardly give a field that is too
        strong in one state and too weak in another, as a damping does that varies: spreads were 15 % too
        small where only that shows.
    noise : "additive", "proportional", "combined", a number or None
        Errors of measurement, fresh at every observation, of each observed quantity: a learned SD, a learned
        part of the value, both, or a known SD. None takes Y as exact, and what is not goes into omega. With
        named parameters subjects are then compared by what a fit of each alone would give, and all that can
        be learned has standard errors, see ``summary``.
    quantification_limit : float or None
        Values of Y at or below it are only known to be below, and count as that.
    method, rtol, atol, step_size
        The solver, see ``RandomODE``; ``atol`` is in units of the largest observed size of each state.
        Populations, which need no gradient, are solved by scipy's LSODA in place of the default method.
    max_epochs, learning_rate, weight_decay, n_draws, batch_balls
        Training, see ``FitConfig``. "auto" epochs, learning rate and weight decay: 200, .1 and 0 for named
        parameters; for a network in batches as many epochs as make 600 steps (at least 30), .01 and .005, and
        otherwise 500, .005 and .005 (the paper's). With "auto" epochs in batches a tenth of 50 trajectories
        or more is held out until these are predicted no better, at the latest for half of the epochs; then
        the rate falls to 0 in the other half, with all trajectories.
    schedule, keep, max_gradient
        Of the learning rate, of the final weights ("average" is that of the last fifth of the epochs) and of
        gradients, see ``FitConfig``. The paper mentions none of them: a plain reading is a "constant" rate,
        the "last" weights and no limit (None).
    batch_trajectories : "auto", int or None
        Trajectories per step. "auto" is 64 for a network that is learned from pairs of times by the debiased
        loss: it starts from the mean field that fits the observed slopes, and is solved in equal steps, as
        many as needed, while it is trained. None takes all in every step, solved to the tolerance, and a
        network starts from weights near 0, as in the paper.
    max_skipped : int
        Up to this many consecutive steps may fail (a solution explodes) and are skipped.
    checkpoint, history, device, random_state, verbose
        As in ``LocalW2Regressor``.

    Attributes
    ----------
    parameters_ : the learned law of a function's parameters: mean, std, correlation, quantiles, samples.
    model_ : the trained ``RandomODE``.
    fit_ : the ``Fit``: history, settings, skipped steps and why training stopped.
    t0_, n_states_, n_observed_ : initial time, number of states and of observed quantities.
    noise_ : the SD of the errors of each observed quantity (p,), additive or relative; (2, p) if "combined".
    noise_errors_ : the standard errors of ``noise_``, if it was learned; infinite where nothing tells them.
    population_ : what was learned with noise, doses or covariates, with standard errors, see ``summary``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> t, k = np.linspace(0, 2, 9), rng.normal(1.0, 0.2, 100)
    >>> Y = np.exp(-k[:, None] * t)[..., None]
    >>> model = LocalW2ODE(lambda t, y, k: -k * y, {"k": 0.5}, max_epochs=100, random_state=0).fit(Y, t)
    >>> model.parameters_
    parameter       mean        sd         5%        50%        95%
    k             ...
    >>> model.sample([1.0], [0.0, 1.0, 5.0], n_samples=1000).shape
    (1000, 1, 3, 1)
    """

    def __init__(
        self,
        field: Any = "mlp",
        parameters: Any = None,
        observe: Callable[..., Tensor] | None = None,
        linked: bool = True,
        max_times: int | None = 40,
        delta: Any = "auto",
        norm: Any = "auto",
        discrepancy: Any = "w2",
        debiased: bool = True,
        standardize: bool = True,
        width: int = 100,
        depth: int = 2,
        residual: bool = False,
        activation: str = "silu",
        n_noise: int | None = None,
        noise: Any = None,
        quantification_limit: float | None = None,
        method: str = "dopri5",
        rtol: float = 1e-4,
        atol: float = 1e-6,
        step_size: float | None = None,
        max_epochs: Any = "auto",
        learning_rate: Any = "auto",
        weight_decay: Any = "auto",
        n_draws: int = 2,
        batch_balls: int | None = None,
        batch_trajectories: Any = "auto",
        max_skipped: int = 20,
        schedule: str = "cosine",
        keep: str = "average",
        max_gradient: float | None = MAX_GRADIENT,
        checkpoint: Any = None,
        history: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.field = field
        self.parameters = parameters
        self.observe = observe
        self.linked = linked
        self.max_times = max_times
        self.delta = delta
        self.norm = norm
        self.discrepancy = discrepancy
        self.debiased = debiased
        self.standardize = standardize
        self.width = width
        self.depth = depth
        self.residual = residual
        self.activation = activation
        self.n_noise = n_noise
        self.noise = noise
        self.quantification_limit = quantification_limit
        self.method = method
        self.rtol = rtol
        self.atol = atol
        self.step_size = step_size
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.n_draws = n_draws
        self.batch_balls = batch_balls
        self.batch_trajectories = batch_trajectories
        self.max_skipped = max_skipped
        self.schedule = schedule
        self.keep = keep
        self.max_gradient = max_gradient
        self.checkpoint = checkpoint
        self.history = history
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    _sketch = staticmethod(sketch_paths)

    def fit(
        self,
        Y: Any,
        t: Any,
        y0: Any = None,
        t0: float | None = None,
        sample_weight: Any = None,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
    ) -> Self:
        """Learn from trajectories.

        ``Y`` is (n, n_times, d), or (n, n_times) for one state, with NaN where an observation is missing;
        ``t`` is (n_times,), or (n, n_times) if each trajectory has its own times. Trajectories of unequal
        length are given as two lists. The initial state is the first observation, or ``y0`` (n, d), (d,) or a
        number, at the time ``t0`` (the earliest time unless given); or a parameter ``y0`` (of several states
        ``y0_1``, ``y0_2``, ..) with a law, which noise makes of it where y0 is not given. ``sample_weight``
        (n,) >= 0 says how much a trajectory counts relative to others: only ratios matter, and one of weight
        0 is left out.

        With named parameters: ``doses`` is a table with the columns subject (0 to n - 1), time, amount, and
        maybe state (0) and duration (0: at once; what is observed at that time is observed before).
        ``covariates`` are numbers (n,) by name, for the field, as an argument of that name, and for laws that
        say ``depends_on``. ``inputs`` are courses ``{name: (times, values)}``, linear in between, for the
        field.
        """
        self._check_settings()
        if self.observe is not None and y0 is None and not self._initial_laws():
            raise ValueError("observe sees only a part of the states; give y0, the full initial state.")
        kept, weights = None, None
        if sample_weight is not None:
            kept, weights = settings.keep_weighted(sample_weight, len(Y), "trajectories")
        population = self._is_population(doses, covariates, inputs)
        Y, t, kept, weights = leave_out_strays(Y, t, kept, weights, starts=y0 is None and not population)
        if population:
            self._fit_population(Y, t, y0, t0, kept, weights, doses, covariates, inputs)
            checks.warn_of_start(y0, t0, self.t0_)
            return self
        data = Trajectories.of(Y, t, y0, t0, self.observe is None, kept)
        checks.warn_of_start(y0, t0, data.t0)
        check_range(data.values, "Y", LARGEST if self.standardize else settings.LARGEST_SINGLE)
        checks.check_observed(data, self.observe)
        device = settings.find_device(self.device)
        observed = np.column_stack([data.number, data.time + data.t0])
        printed = settings.hash_fit(self.get_params(deep=False), data.values, observed, weights)
        printed += "".join(storing.hash_function(function) for function in (self.field, self.observe))
        seed = settings.seed_fit(self.random_state, printed if self.checkpoint is not None else None)
        generator = torch.Generator().manual_seed(seed)
        dtype = torch.float32 if isinstance(self.field, str) else torch.float64
        rows = data.pairs() if self.linked else data.singles()
        size, quick = self._batch_size(), self._is_quick()
        part = 1.0 if size is None else min(1.0, size / data.n)
        rows, windows = rows.take(rows.windows(data.n, self.max_times, part))
        field = self._field(data, rows, generator).to(device, dtype)
        start = torch.tensor([data.t0], dtype=torch.float64)
        step = self._step(data)
        units = torch.tensor(data.state_size(), dtype=torch.float64)
        ode = RandomODE(field, start, self.method, self.rtol, self.atol, step, state_size=units).to(device)
        noise = self._network_noise(data, y0)
        equal = quick and self.method == "dopri5"
        # A network begins with hardly any spread, in units of which its equation would be solved too exactly.
        spread = torch.tensor(rows.scale(windows)[: data.initial.shape[1]]) if equal else None
        paths = ObservedPaths(
            ode, rows.times.shape[1], self.observe, noise=noise, equal_steps=equal, spread=spread
        ).to(device)
        x = np.column_stack([rows.number, rows.times, data.initial[rows.number]])
        inputs = torch.tensor(x, dtype=dtype, device=device)
        held_out = hold_out(data.n, seed) if quick and self._stops_early() else np.zeros(data.n, bool)
        objective, batches = self._objective(rows, windows, data, inputs, weights, size, seed, held_out)
        checks.check_functions(paths, inputs, objective, seed)
        done: list[dict[str, Any]] = []
        config = self._config(seed, printed, steps=batches.per_epoch if quick else None)
        score = None
        if held_out.any():
            score = HeldOutScore.of(rows, held_out, inputs, objective, seed)
            every = math.ceil(config.max_epochs * SCORED)
            config = replace(config, validate_every=every, patience=PATIENCE, settle=SETTLE)
        try:
            steps = None if size is None else batches
            fit = train(paths, objective, inputs, config, score, (done.append,), steps)
        except FloatingPointError:
            if done:  # a refit that fails leaves the old fit whole, or the last good weights of the new one
                self._keep(ode, None, None, data.values.shape[1], seed, noise)
            raise
        errors = self._noise_errors(paths, batches, inputs, fit, seed)
        checks.warn_of_coarse_times(paths.to("cpu"), inputs.cpu(), seed)
        checks.warn_of_skipped(fit)
        checks.warn_of_far_guesses(field, fit)
        self._keep(ode, fit, self._sketch(Y, kept), data.values.shape[1], seed, noise, errors=errors)
        if self.checkpoint is not None and fit.complete:
            settings.remove_checkpoints(self.checkpoint)
        return self

    def sample(
        self,
        y0: Any,
        t: Any,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        measured: bool = True,
    ) -> Array:
        """Independent trajectories (S, n, T, p) that start from states y0 (n, d) or (d,) at ``t[0]``.

        Times may go beyond the data. Every trajectory of every draw has its own omega, and with ``measured``
        the errors of measurement of a fit with noise. ``doses``, ``covariates`` and ``inputs`` are those of
        ``fit``; with doses, or with y0=None where initial states are parameters or zero, time starts at
        ``t0_``, and t may be (n, T).
        """
        check_is_fitted(self, "model_")
        if getattr(self, "population_", None) is not None:
            n_samples = check_count(n_samples, "n_samples", 1)
            seed = settings.draw_seed(random_state)
            check_flag(measured, "measured")
            given = doses, covariates, inputs
            return self._simulated(y0, t, given, measured, n_samples, seed).sample()
        _refuse(doses=doses, covariates=covariates, inputs=inputs)
        states = self._states(y0, "y0")
        times = check_times(as_array(t, "t"))
        n_samples = check_count(n_samples, "n_samples", 1)
        generator = torch.Generator().manual_seed(settings.draw_seed(random_state))
        model, noise = self.model_.at(times), self._noise if check_flag(measured, "measured") else None
        parts = []
        with torch.no_grad():
            for rows in states.repeat(n_samples, 1).split(SAMPLED_TRAJECTORIES):
                path = model(rows, None, generator)
                seen = path if self.observe is None else self.observe(path)
                parts.append(seen if noise is None else noise.draw(seen, generator))
        found: Array = torch.cat(parts).double().numpy()
        return found.reshape(n_samples, len(states), len(times), -1)

    def predict_distribution(
        self,
        y0: Any,
        t: Any,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        measured: bool = True,
    ) -> DrawsDistribution:
        """The distribution of every observed quantity at times t, of trajectories from states y0 at ``t[0]``.

        ``y0`` is (n, d) or (d,), and the laws are (n, T, p): ``law[0, -1]`` has those of the first trajectory
        at the last time. They come from 2000 trajectories of each initial state, with the same omegas for
        all, from a stored seed. ``rvs`` draws whole trajectories. See ``DrawsDistribution``.
        """
        check_is_fitted(self, "model_")
        if getattr(self, "population_", None) is not None:
            given = doses, covariates, inputs
            cohort = self._simulated(y0, t, given, measured, PREDICTION_DRAWS, self._parameter_seed)
            n, count = cohort.equation.seen.shape[:2]
            rows, shape = np.arange(n, dtype=float)[:, None], (count, self.n_observed_)
            support = Support.anything(count * self.n_observed_)
            return DrawsDistribution(cohort, rows, PREDICTION_DRAWS, shape, support)
        _refuse(doses=doses, covariates=covariates, inputs=inputs)
        states, times = self._states(y0, "y0"), check_times(as_array(t, "t"))
        shape = len(times), self.n_observed_
        noise = self._noise if check_flag(measured, "measured") else None
        paths = SimulatedPaths(
            self.model_.at(times), self.observe, PREDICTION_DRAWS, self._parameter_seed, noise
        )
        return DrawsDistribution(
            paths, states.numpy(), PREDICTION_DRAWS, shape, Support.anything(shape[0] * shape[1])
        )

    def predict_interval(
        self,
        y0: Any,
        t: Any,
        coverage: float = 0.9,
        *,
        doses: Any = None,
        covariates: Any = None,
        inputs: Any = None,
        measured: bool = True,
    ) -> tuple[Array, Array]:
        """The central interval of probability ``coverage`` of each quantity at each time, (n, T, p) each.

        The other arguments are those of ``predict_distribution``.
        """
        tail = (1 - check_probability(coverage, "coverage")) / 2
        given = {"doses": doses, "covariates": covariates, "inputs": inputs, "measured": measured}
        levels = np.array([tail, 1 - tail])[:, None, None, None]
        lower, upper = self.predict_distribution(y0, t, **given).ppf(levels)
        return lower, upper

    def sample_field(
        self, y: Any, n_samples: int = 1, t: float | None = None, random_state: Any = None
    ) -> Array:
        """Draws (S, n, d) of the field at states y (n, d) and time t (by default ``t0_``).

        Each draw is one field, with the same omega everywhere.
        """
        check_is_fitted(self, "model_")
        states = self._states(y, "y")
        generator = torch.Generator().manual_seed(settings.draw_seed(random_state))
        omega = self.model_.draw(check_count(n_samples, "n_samples", 1), generator)
        with torch.no_grad():
            field = self.model_.field.bind(omega)
            time = torch.tensor(self.t0_ if t is None else float(t), dtype=torch.float64)
            slopes = [field(time, state.expand(n_samples, -1)) for state in states]
        found: Array = torch.stack(slopes, 1).double().numpy()
        return found

    def to_stored(self) -> Stored:
        """Everything but the functions, which are named."""
        check_is_fitted(self, "model_")
        parameters = self.get_params(deep=False)
        parameters.pop("parameters")  # their laws are stored with the ODE
        functions = {name: parameters.pop(name) for name in storing.FUNCTIONS}
        plain, tensors = storing.store_ode(self.model_)
        counts, seen = stored_values.store_seen(self.seen_rows_)
        fit, history = stored_values.store_fit(self.fit_) if hasattr(self, "fit_") else (None, {})
        kind, errors = storing.store_noise(self._noise)
        if self.population_ is None and hasattr(self, "noise_errors_"):
            errors["noise_errors"] = torch.tensor(np.atleast_2d(self.noise_errors_))
        plain |= {
            "noise": kind,
            "population": None if self.population_ is None else to_plain(self.population_),
            "parameters": stored_values.store_parameters(parameters),
            "functions": {name: storing.describe_function(value) for name, value in functions.items()},
            "t0": self.t0_,
            "n_states": self.n_states_,
            "n_observed": self.n_observed_,
            "seed": self._parameter_seed,
            "fit": fit,
            "seen_rows": counts,
            "table": self._plain_columns(),
            "subjects": self._plain_subjects(),
        }
        return Stored(type(self).__name__, plain, tensors | errors | seen | history)

    @classmethod
    def from_stored(cls, stored: Stored, field: Any = None, observe: Any = None) -> LocalW2ODE:
        """The estimator that ``to_stored`` described, with the functions that it had."""
        with stored_values.check_fits_together(stored, cls.__name__):
            plain, tensors = stored.settings, stored.tensors
            parameters = stored_values.restore_parameters(plain["parameters"])
            functions = {}
            for name, given in zip(storing.FUNCTIONS, (field, observe), strict=True):
                functions[name] = storing.match_function(name, plain["functions"][name], given)
            laws = storing.restore_laws(plain["laws"], plain.get("names"), functions["field"])
            estimator = cls()
            stored_values.set_stored_parameters(estimator, {**parameters, **functions, "parameters": laws})
            estimator._check_settings()
            estimator._config(0, "")
            most = stored_values.MOST_COLUMNS
            d, t0 = stored_values.whole_number(plain["n_states"], 1, most), float(plain["t0"])
            ode = storing.restore_ode(plain, tensors, parameters, functions["field"], laws, d, t0)
            fit = None if plain["fit"] is None else stored_values.restore_fit(ode, plain["fit"], tensors)
            seen = stored_values.restore_seen(plain.get("seen_rows"), tensors)
            n_observed, seed = (
                stored_values.whole_number(plain["n_observed"], 1, most),
                stored_values.whole_number(plain["seed"], 0),
            )
            noise = storing.restore_noise(plain.get("noise"), tensors, n_observed)
            described = plain.get("population")
            if described is not None and laws is None:
                raise ValueError("a network stands where the equation of a population is expected.")
            population = None if described is None else from_plain(described)
            errors = storing.restore_noise_errors(noise, tensors)
            estimator._keep(ode, fit, seen, n_observed, seed, noise, population, errors)
            estimator._keep_columns(plain.get("table"))
            estimator._keep_subjects(plain.get("subjects"))
        return estimator

    def _check_settings(self) -> None:
        if not (callable(self.field) or (isinstance(self.field, str) and self.field == "mlp")):
            raise ValueError(f"field={self.field!r} is unknown; give 'mlp' or a function field(t, y, ...).")
        if isinstance(self.field, str) and self.parameters is not None:
            raise ValueError("parameters belong to a field that is your own function; a network has none.")
        if not (self.observe is None or callable(self.observe)):
            raise ValueError(f"observe={self.observe!r} is not a function of states (..., d).")
        if isinstance(self.delta, str) and self.delta != "auto":
            raise ValueError(f"delta={self.delta!r} is unknown; give 'auto' or a radius, such as 0.1.")
        settings.check_norm_setting(self.norm)
        for name in ("linked", "debiased", "standardize", "residual"):
            check_flag(getattr(self, name), name)
        if self.max_times is not None:
            check_count(self.max_times, "max_times", 2)
        if self.keep not in ("average", "last"):
            raise ValueError(f"keep={self.keep!r} is unknown; choose one of ('average', 'last').")
        self._batch_size()
        self._check_noise()
        settings.check_files(self.checkpoint, self.history, self.random_state)

    def _field(self, data: Trajectories, rows: Rows, generator: torch.Generator) -> RandomField:
        if isinstance(self.field, str):
            settings = self.width, self.depth, bool(self.residual), self.activation
            # The units of states that are not observed are unknown.
            known = self.standardize and self.observe is None
            slopes = rows.target[:, data.values.shape[1] :] if self.linked else None
            a, b, c = map(torch.tensor, data.units(slopes))
            units = (a, b, c) if known else None
            field = NetworkField(
                data.initial.shape[1], *settings, generator=generator, units=units, n_noise=self.n_noise
            )
            if self._is_quick():
                fit_mean_field(field, rows, generator)
            return field
        names = parameter_names(self.field) if self.parameters is None else self.parameters
        return FunctionField(self.field, as_laws(names), generator)

    def _is_quick(self) -> bool:
        """Whether a network is learned in batches from its mean field on, in equal steps."""
        return self._has_mean_field() and self._batch_size() is not None

    def _stops_early(self) -> bool:
        """Whether held-out trajectories say when a network has learned enough."""
        return isinstance(self.max_epochs, str) and self.schedule == "cosine"

    def _has_mean_field(self) -> bool:
        """Whether the mean field of a network can be seen in slopes, and the loss takes parts of balls."""
        random_weights = isinstance(self.field, str) and self.n_noise is None
        return bool(random_weights and self.observe is None and self.linked and self.debiased)

    def _batch_size(self) -> int | None:
        """Trajectories per step; None for all."""
        given = self.batch_trajectories
        if isinstance(given, str) and given == "auto":
            return BATCH_TRAJECTORIES if self._has_mean_field() and self.batch_balls is None else None
        if given is None:
            return None
        if self.batch_balls is not None:
            raise ValueError(
                "batch_trajectories and batch_balls both say what a step takes; give one of them."
            )
        return int(check_count(given, "batch_trajectories", 2))

    def _network_noise(self, data: Trajectories, y0: Any) -> MeasurementNoise | None:
        """Errors of measurement that are learned beside a network."""
        if self.noise is None:
            return None
        if y0 is None:
            raise ValueError(
                "with noise the first observation has an error, and a network must start from the states "
                "themselves; give y0."
            )
        size = torch.tensor(np.abs(data.values).mean(0), dtype=torch.float32)
        return MeasurementNoise(self.noise, torch.where(size > 0, size, 1.0))

    @staticmethod
    def _noise_errors(
        paths: ObservedPaths, batches: TrajectoryBatches, inputs: Tensor, fit: Fit, seed: int
    ) -> Array | None:
        """Standard errors (parts, p) of learned noise, infinite where training was interrupted."""
        if paths.noise is None or not paths.noise.learned:
            return None
        if fit.complete:
            try:
                return noise_errors(paths, batches, inputs, seed)
            except KeyboardInterrupt:  # the model is whole, only its errors are not
                warnings.warn("interrupted: the standard errors of the noise are not known.", stacklevel=3)
        return np.full((len(paths.noise.parts), len(paths.noise.size)), np.inf)

    def _objective(
        self,
        rows: Rows,
        windows: list[Array],
        data: Trajectories,
        inputs: Tensor,
        weights: Array | None,
        size: int | None,
        seed: int,
        held_out: Array,
    ) -> tuple[Objective, TrajectoryBatches]:
        """The loss of all rows, and that of batches of ``size`` trajectories, or of all."""
        norm = self.norm if isinstance(self.norm, Norm) else None
        near = near_initial(data.initial, self.delta, norm)
        balls = rows.balls(near, windows)
        target = torch.tensor(rows.target).to(inputs)
        scale = np.broadcast_to(rows.scale(windows), rows.target.shape) if self.standardize else None
        center = rows.center(data.initial, windows) if self.debiased else None
        ball_rows = int(balls.sizes.median())
        if size is not None:
            ball_rows = min(ball_rows, WINDOW_ROWS, math.ceil(data.n / math.ceil(data.n / size)))
        discrepancy = self._discrepancy(rows.target.shape[1], ball_rows)
        by_name = isinstance(self.discrepancy, str)
        if self._is_quick() and by_name and center is not None and scale is not None:
            matrix = rows.whitening(windows, center, scale, weights)
            discrepancy = Whitened(discrepancy, tuple(map(tuple, matrix.tolist())))
        of_rows = None if weights is None else weights[rows.number]
        objective = Objective(target, balls, discrepancy, center, scale, of_rows)
        most = data.n if size is None else size
        return objective, TrajectoryBatches(rows, windows, near, objective, most, seed, held_out)

    def _discrepancy(self, n_values: int, ball_rows: int) -> Discrepancy:
        low, high = ASSIGNED_ROWS
        if isinstance(self.discrepancy, str) and self.discrepancy == "w2" and low <= ball_rows <= high:
            return SquaredW2(bool(self.debiased))
        return settings.choose_discrepancy(self.discrepancy, bool(self.debiased), n_values)

    def _config(
        self, seed: int, printed: str, population: int | None = None, steps: int | None = None
    ) -> FitConfig:
        """The settings of training: of so many epochs of a ``population``, or of ``steps`` in every epoch."""
        network = isinstance(self.field, str)
        auto: dict[str, Any] = (
            {"max_epochs": 500, "learning_rate": 0.005, "weight_decay": 0.005}
            if network
            else {"max_epochs": 200, "learning_rate": 0.1, "weight_decay": 0.0}
        )
        if steps is not None:
            epochs = max(FEWEST_EPOCHS, math.ceil(TOTAL_STEPS / steps))
            auto = {"max_epochs": epochs, "learning_rate": 0.01, "weight_decay": 0.005}
        if population is not None:
            auto = {"max_epochs": population, "learning_rate": 0.03, "weight_decay": 0.0}
        for name, value in auto.items():
            own = getattr(self, name)
            if isinstance(own, str) and own != "auto":
                raise ValueError(f"{name}={own!r} is unknown; give 'auto' or a number, such as {value}.")
            auto[name] = value if isinstance(own, str) else own
        return FitConfig(
            n_draws=self.n_draws,
            batch_balls=self.batch_balls,
            schedule=self.schedule,
            keep=self.keep,
            # A population is simulated anew every few epochs, and more of them average its chance out.
            averaged=0.2 if population is None else 0.5,
            max_skipped=self.max_skipped,
            max_gradient=self.max_gradient,
            seed=seed,
            progress=bool(self.verbose),
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            resume=self.checkpoint is not None,
            history=self.history,
            fingerprint=printed,
            **auto,
        )

    def _keep(
        self,
        ode: RandomODE,
        fit: Fit | None,
        seen: SeenRows | None,
        n_observed: int,
        seed: int,
        noise: MeasurementNoise | None = None,
        population: Population | None = None,
        errors: Array | None = None,
    ) -> None:
        """Take over an ODE and what describes it, with nothing left of an older fit."""
        self._forget()
        self._noise = None if noise is None else noise.cpu().double()
        self.population_ = population  # None without noise, doses and covariates
        if noise is not None:
            table = np.array(list(noise.table().values()))
            self.noise_ = table if len(table) > 1 else table[0]
            if population is not None and noise.learned:
                found = [q.error for q in population.quantities if q.kind in noise.parts]
                errors = np.array(found).reshape(table.shape)
            if errors is not None:
                self.noise_errors_ = errors if len(table) > 1 else errors[0]
        assert ode.state_size is not None
        self.model_, self.seen_rows_, self._parameter_seed = ode.cpu().eval(), seen, seed
        self.t0_, self.n_states_, self.n_observed_ = float(ode.times[0]), len(ode.state_size), n_observed
        if fit is not None:
            self.fit_ = fit
        if isinstance(ode.field, FunctionField):
            self.parameters_ = LearnedParameters.of(ode.field, PARAMETER_DRAWS, seed)

    def _states(self, y: Any, name: str) -> Tensor:
        states = as_array(y if np.ndim(y) else [y], name)
        states = states[None] if states.ndim == 1 else states
        if states.ndim != 2 or states.shape[1] != self.n_states_:
            raise ValueError(
                f"{name} has shape {states.shape}; expected ({self.n_states_},) or (n, {self.n_states_})."
            )
        dtype = next(self.model_.parameters()).dtype
        return torch.tensor(states, dtype=dtype)


def _refuse(**given: Any) -> None:
    """Raise if something is given that this fit cannot heed."""
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise ValueError(
            f"{named[0]} would be ignored: this model was fitted without noise, doses, covariates and inputs."
        )
