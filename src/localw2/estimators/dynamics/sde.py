"""``LocalW2SDE``: stochastic differential equations and jump-diffusions, learned from paths."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from localw2._validation import Array, as_array, check_count, check_flag, check_number
from localw2.balls.neighborhoods import Neighborhoods
from localw2.distribution import DrawsDistribution, Support
from localw2.estimators import settings, stored_values
from localw2.estimators.dynamics import storing
from localw2.estimators.dynamics.equations import EquationSettings
from localw2.estimators.dynamics.first_look import FirstLook, start_parts
from localw2.estimators.dynamics.judged_paths import sketch_paths
from localw2.estimators.dynamics.parameters import LearnedParameters
from localw2.estimators.dynamics.processes import Processes
from localw2.estimators.dynamics.trajectories import Trajectories
from localw2.estimators.dynamics.transitions import TransitionRows
from localw2.estimators.dynamics.whole_paths import Errors, WholePaths
from localw2.losses.discrepancies import SlicedW2
from localw2.losses.objective import Objective
from localw2.losses.transitions import TransitionW2
from localw2.models.coefficients import NetworkCoefficient
from localw2.models.laws import Shared
from localw2.models.measurement import check_noise
from localw2.models.ode import check_times
from localw2.models.sde import StochasticEquation, Transitions, simulate_paths
from localw2.storage.model_file import Stored
from localw2.training.config import Fit, FitConfig
from localw2.training.loop import train

if TYPE_CHECKING:
    from localw2.judging.seen_rows import SeenRows

# Draws behind ``parameters_``, and paths behind the law of each state.
PARAMETER_DRAWS, PREDICTION_DRAWS = 10_000, 2000
# Paths times draws that are simulated at a time.
SAMPLED_PATHS = 8192
# Transitions of a step of training, before draws.
STEP_ROWS = 3600
# Fewest transitions from which a law can be learned.
FEWEST_ROWS = 50
# How far mean and SD of transitions may be from those of half the step, in SDs.
STEP_TOLERANCE = 0.004
MOST_STEPS = 64
MAX_GRADIENT = 1.0
# Whole paths: how many there must be, the longest piece of one where nothing varies, and training.
FEWEST_PATHS, LONGEST_PIECE, WHOLE_STEPS, WHOLE_RATE = 20, 50, 150, 0.03
# How much networks are held to the regressions that they start from, relative to the loss.
ANCHOR = 4.0


class LocalW2SDE(Processes, stored_values.Storable, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""A stochastic equation :math:`dY = a(Y)\,dt + b(Y)\,dW + c\,dN`, learned from paths.

    ``fit(Y, t)`` learns drift a, diffusion b and jumps c, as networks or as functions with named parameters,
    so that simulated transitions have the distribution of the observed ones. Rows are transitions, (state
    now, state after a lag), and balls hold the nearest states now; so one long path will do, as many short
    ones will, and each transition has its own lag.

    Parameters
    ----------
    drift, diffusion : "mlp" or a function
        A network of the state, or your own function ``drift(t, y, theta)``, written for one path with torch:
        t is a number, y (d,), parameters are numbers by name. The diffusion is the SD of each state (d,) per
        root of time, or one number for all; with ``correlated`` it is a matrix (d, d).
    jumps : None, "normal", "mlp", a function or a pair of functions
        "normal": jumps at a constant rate whose sizes are Gaussian. "mlp": rate, mean and SD of the sizes are
        networks of the state. A function ``size(t, y, z, ...)`` of standard normal z (d,) has the constant
        rate of a parameter ``rate``; a pair is ``(rate(t, y, ...), size)``.
    parameters : dict, list or None
        The law of each parameter of your functions. A number is the guess of one value for all paths
        (``Shared``); ``Normal(mean, std)`` and ``LogNormal`` vary between paths. None: all are shared, from a
        guess of 1.
    noise : "additive", a number or None
        Errors of measurement, fresh at every observation: a learned SD of each state, or a known one. It
        needs functions for drift and diffusion.
    correlated : bool
        Whether the noise of the states is correlated: a full diffusion matrix (a lower triangular network).
    bounds : pair or None
        Lower and upper bounds of the states, such as ``(0, None)``: coefficients are evaluated inside, and no
        simulated state lies outside.
    ball_rows : int
        Transitions per ball: wide ones identify the spread.
    debiased : bool
        Remove the shrinkage of the spread by finite balls, and compare rows one by one as well, which
        identifies means best. False is the loss as printed.
    step : "auto" or float
        Longest step of the solver; "auto" halves it until the law of transitions stops moving.
    width, depth : int
        The networks.
    n_draws, max_steps, learning_rate
        Training: draws of every transition, steps, and the learning rate of Adam.
    checkpoint, history, device, random_state, verbose
        As in ``LocalW2Regressor``.

    Attributes
    ----------
    parameters_ : the learned law of the parameters of functions: mean, std, quantiles, samples.
    jump_rate_ : jumps per unit of time, on average over the observed states.
    jump_mean_, jump_std_ : mean and SD (d,) of the sizes of jumps, likewise.
    noise_ : SD (d,) of the errors of measurement.
    step_, step_error_ : longest step of the solver, and how far halving it moves mean and SD of transitions,
        in SDs.
    equation_ : the trained ``StochasticEquation``.
    fit_ : the ``Fit``: history, settings and why training stopped.
    n_states_ : number of states.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> t, Y = np.linspace(0, 5, 26), np.zeros((100, 26))
    >>> for j in range(25):
    ...     Y[:, j + 1] = 0.8187 * Y[:, j] + 0.2031 * rng.normal(size=100)  # dY = -Y dt + .5 dW
    >>> model = LocalW2SDE(lambda t, y, theta: -theta * y, lambda t, y, sigma: sigma, random_state=0)
    >>> model.fit(Y, t).parameters_
    parameter       mean        sd         5%        50%        95%
    theta         ...
    sigma         ...
    >>> model.sample([0.5], [0.0, 1.0, 2.0], n_samples=100).shape
    (100, 1, 3, 1)
    """

    def __init__(
        self,
        drift: Any = "mlp",
        diffusion: Any = "mlp",
        jumps: Any = None,
        parameters: Any = None,
        noise: Any = None,
        correlated: bool = False,
        bounds: Any = None,
        ball_rows: int = 300,
        debiased: bool = True,
        step: Any = "auto",
        width: int = 32,
        depth: int = 2,
        n_draws: int = 2,
        max_steps: Any = "auto",
        learning_rate: Any = "auto",
        checkpoint: Any = None,
        history: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        # drift and diffusion are also methods, so that their settings have other names; see get_params.
        self._parts = {"drift": drift, "diffusion": diffusion}
        self.jumps = jumps
        self.parameters = parameters
        self.noise = noise
        self.correlated = correlated
        self.bounds = bounds
        self.ball_rows = ball_rows
        self.debiased = debiased
        self.step = step
        self.width = width
        self.depth = depth
        self.n_draws = n_draws
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.checkpoint = checkpoint
        self.history = history
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name; ``drift`` and ``diffusion`` are those of the constructor."""
        return {**super().get_params(deep), **self._parts}

    def set_params(self, **params: Any) -> Self:
        """Change settings by name."""
        self._parts = {name: params.pop(name, value) for name, value in self._parts.items()}
        super().set_params(**params)
        return self

    def fit(self, Y: Any, t: Any) -> Self:
        """Learn from paths.

        ``Y`` is (n, n_times, d), or (n, n_times) for one state, or (n_times,) for one path of one state, with
        NaN where an observation is missing; ``t`` is (n_times,), or (n, n_times) if each path has its own
        times. Paths of unequal length are given as two lists. States are taken as they were observed, at
        whatever times; a gap of more than three usual lags is left out.
        """
        equation_settings = self._check_settings()
        Y, t = _as_paths(Y, t)
        data = Trajectories.of(Y, t, partly=True, fewest=1)
        complete = np.isfinite(data.values).all(1)
        number, values = data.number[complete], data.values[complete]
        time = data.time[complete] + data.t0
        settings.check_range(values, "Y")
        rows = TransitionRows.of(number, time, values)
        if len(rows) < FEWEST_ROWS:
            raise ValueError(
                f"Y has {len(rows)} transitions between complete observations of a path; a law needs at "
                f"least {FEWEST_ROWS}. Give more paths, longer ones, or fewer missing values."
            )
        printed = settings.hash_fit(self.get_params(deep=False), values, np.column_stack([number, time]))
        printed += "".join(storing.hash_function(f) for f in self._functions().values())
        seed = settings.seed_fit(self.random_state, printed if self.checkpoint is not None else None)
        equation, fit, step, error, noise = self._learn(equation_settings, rows, seed, printed)
        self._keep(equation, fit, sketch_paths(Y), step, error, seed, rows.state, noise)
        if self.checkpoint is not None and fit.stopped == "all epochs done":
            settings.remove_checkpoints(self.checkpoint)
        return self

    def sample(
        self, y0: Any, t: Any, n_samples: int = 1, random_state: Any = None, *, measured: bool = True
    ) -> Array:
        """Independent paths (S, n, T, d) that start from states y0 (n, d) or (d,) at ``t[0]``.

        Times may go beyond the data. Every path has its own noise and its own random parameters; with
        ``measured`` it has the errors of measurement of a fit with noise, from the second time on.
        """
        check_is_fitted(self, "equation_")
        check_flag(measured, "measured")
        states, times = self._states(y0, "y0"), check_times(as_array(t, "t"))
        n_samples = check_count(n_samples, "n_samples", 1)
        generator = torch.Generator().manual_seed(settings.draw_seed(random_state))
        parts = [
            self._simulate(rows, times, generator, measured)
            for rows in states.repeat(n_samples, 1).split(SAMPLED_PATHS)
        ]
        found: Array = torch.cat(parts).double().numpy()
        return found.reshape(n_samples, len(states), len(times), -1)

    def predict_distribution(self, y0: Any, t: Any, *, measured: bool = True) -> DrawsDistribution:
        """The distribution of every state at times t, of paths from states y0 at ``t[0]``.

        ``y0`` is (n, d) or (d,), and the laws are (n, T, d): ``law[0, -1]`` has those of the first path at
        the last time. They come from 2000 paths of each initial state with the same noise for all, from a
        stored seed. ``rvs`` draws whole paths. See ``DrawsDistribution``.
        """
        check_is_fitted(self, "equation_")
        check_flag(measured, "measured")
        states, times = self._states(y0, "y0"), check_times(as_array(t, "t"))
        shape = len(times), self.n_states_
        paths = _CommonPaths(self, times, measured)
        return DrawsDistribution(
            paths, states.numpy(), PREDICTION_DRAWS, shape, Support.anything(shape[0] * shape[1])
        )

    def drift(self, y: Any, t: float = 0.0) -> Array:
        """The drift (N, d) at states y (N, d), of a path with average parameters."""
        return self._coefficient("drift", y, t)

    def diffusion(self, y: Any, t: float = 0.0) -> Array:
        """The diffusion (N, d) at states y (N, d), or matrices (N, d, d) of a correlated one."""
        return self._coefficient("diffusion", y, t)

    def jump_rate(self, y: Any, t: float = 0.0) -> Array:
        """The rate of jumps (N,) at states y (N, d)."""
        check_is_fitted(self, "equation_")
        if self.equation_.jumps is None:
            raise ValueError("this equation was fitted without jumps; set jumps='normal' or 'mlp'.")
        states = self._states(y, "y")
        with torch.no_grad():
            values = self.equation_.values(len(states), None)
            rate = self.equation_.jumps.rate(torch.full((len(states),), t).to(states), states, values)
        found: Array = rate[:, 0].double().numpy()
        return found

    def summary(self) -> str:
        """What was learned, in words and tables."""
        check_is_fitted(self, "equation_")
        parts = {name: "network" if isinstance(p, str) else "function" for name, p in self._parts.items()}
        lines = [
            f"Stochastic equation of {self.n_states_} state(s): drift by a {parts['drift']}, "
            f"diffusion by a {parts['diffusion']}" + (", with jumps" if self.jumps is not None else ""),
            f"Steps of at most {self.step_:.4g}; half of it moves transitions by {self.step_error_:.2g} SD",
        ]
        if self.jumps is not None:
            lines.append(
                f"Jumps: {self.jump_rate_:.4g} per unit of time, mean size {_numbers(self.jump_mean_)}, "
                f"SD {_numbers(self.jump_std_)}"
            )
        if self.noise is not None:
            lines.append(f"Errors of measurement: SD {_numbers(self.noise_)}")
        if hasattr(self, "parameters_"):
            lines.append(repr(self.parameters_))
        else:
            states = np.quantile(self._typical, [0.1, 0.5, 0.9], axis=0)
            lines.append(
                f"{'state':>10}{'drift':>12}{'diffusion':>12}" + "   (10 %, 50 %, 90 % of the states)"
            )
            drift, diffusion = self.drift(states), self.diffusion(states)
            diffusion = np.sqrt((diffusion**2).sum(2)) if diffusion.ndim == 3 else diffusion
            for j in range(self.n_states_):
                for i in range(3):
                    lines.append(f"{states[i, j]:10.4g}{drift[i, j]:12.4g}{diffusion[i, j]:12.4g}")
        return "\n".join(lines)

    def to_stored(self) -> Stored:
        """Everything but the functions, which are named."""
        check_is_fitted(self, "equation_")
        parameters = self.get_params(deep=False)
        functions = {name: parameters.pop(name) for name in ("drift", "diffusion", "jumps")}
        parameters.pop("parameters")
        bounds = parameters.pop("bounds")
        laws = None if self.equation_.law is None else self.equation_.law.laws
        counts, seen = stored_values.store_seen(self.seen_rows_)
        fit, history = stored_values.store_fit(self.fit_)
        tensors = {f"equation.{name}": value for name, value in self.equation_.state_dict().items()}
        plain = {
            "parameters": stored_values.store_parameters(parameters),
            "bounds": None if bounds is None else _plain_bounds(self.equation_),
            "functions": {name: _describe(value) for name, value in functions.items()},
            "laws": None if laws is None else storing.plain_laws(laws),
            "names": None if laws is None else list(laws),  # a file sorts the laws
            "n_states": self.n_states_,
            "step": self.step_,
            "step_error": self.step_error_,
            "seed": self._seed,
            "fit": fit,
            "seen_rows": counts,
        }
        if self.noise is not None:
            tensors["noise"] = torch.tensor(self.noise_, dtype=torch.float64)
        typical = {"typical": torch.tensor(self._typical, dtype=torch.float64)}
        return Stored(type(self).__name__, plain, tensors | typical | seen | history)

    @classmethod
    def from_stored(
        cls, stored: Stored, drift: Any = None, diffusion: Any = None, jumps: Any = None
    ) -> LocalW2SDE:
        """The estimator that ``to_stored`` described, with the functions that it had."""
        with stored_values.check_fits_together(stored, cls.__name__):
            plain, tensors = stored.settings, stored.tensors
            parameters = stored_values.restore_parameters(plain["parameters"])
            parts = {"drift": drift, "diffusion": diffusion, "jumps": jumps}
            for name, given in parts.items():
                described = plain["functions"][name]
                if name == "jumps" and isinstance(described, str) and described == "normal":
                    if given is not None:
                        raise ValueError(
                            "jumps was 'normal' when this model was saved; it takes no function."
                        )
                    parts[name] = described
                else:
                    parts[name] = _match(name, described, given)
            laws = storing.restore_laws(plain["laws"], plain["names"], None)
            d = stored_values.whole_number(plain["n_states"], 1, stored_values.MOST_COLUMNS)
            estimator = cls()
            bounds = None if plain["bounds"] is None else tuple(map(tuple, plain["bounds"]))
            stored_values.set_stored_parameters(
                estimator, {**parameters, **parts, "parameters": laws, "bounds": bounds}
            )
            checked = estimator._check_settings()
            state = {n.removeprefix("equation."): v for n, v in tensors.items() if n.startswith("equation.")}
            if checked.has_networks:
                check_size(state, checked, d)
            equation = checked.build(d, {}, torch.Generator().manual_seed(0))
            equation.load_state_dict(state)
            model = Transitions(equation)
            fit = stored_values.restore_fit(model, plain["fit"], tensors)
            seen = stored_values.restore_seen(plain.get("seen_rows"), tensors)
            step = check_number(plain["step"], "step", lambda v: 0 < v < math.inf, "a positive number")
            typical = stored_values.sized_array("typical", tensors["typical"], len(tensors["typical"]), d)
            noise = tensors["noise"] if estimator.noise is not None else None
            seed = stored_values.whole_number(plain["seed"], 0)
            estimator._keep(equation, fit, seen, step, float(plain["step_error"]), seed, typical, noise)
        return estimator

    def _functions(self) -> dict[str, Any]:
        pair = self.jumps if isinstance(self.jumps, list | tuple) else [self.jumps]
        named = {**self._parts, **{f"jumps {i}": part for i, part in enumerate(pair)}}
        return {name: part for name, part in named.items() if callable(part)}

    def _check_settings(self) -> EquationSettings:
        checked = EquationSettings.of(self.get_params(deep=False))
        check_flag(self.debiased, "debiased")
        check_count(self.ball_rows, "ball_rows", 2)
        check_count(self.n_draws, "n_draws", 1)
        if not (isinstance(self.step, str) and self.step == "auto"):
            check_number(self.step, "step", lambda v: 0 < v < math.inf, "'auto' or a positive number")
        for name in ("max_steps", "learning_rate"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise ValueError(f"{name}={value!r} is unknown; give 'auto' or a number.")
        settings.check_files(self.checkpoint, self.history, self.random_state)
        self._check_whole(checked)
        return checked

    def _check_whole(self, checked: EquationSettings) -> None:
        """Raise where whole paths would be compared and cannot be."""
        varies = [name for name, law in checked.laws.items() if not isinstance(law, Shared)]
        if self.noise is not None:
            if isinstance(self.noise, str) and self.noise != "additive":
                raise ValueError(
                    f"noise={self.noise!r} is unknown; give 'additive', a known standard deviation, or None."
                )
            check_noise(self.noise)
        if not varies and self.noise is None:
            return
        why = f"{varies[0]} varies between paths" if varies else "noise hides the states"
        if checked.has_networks or not checked.laws:
            raise ValueError(
                f"{why}, so that whole paths are compared by what a fit of each alone shows; give drift and "
                "diffusion as functions with named parameters, which such a fit needs."
            )
        if checked.jumps is not None:
            raise ValueError(
                f"{why}, and the rate of jumps cannot be learned from whole paths; leave one out."
            )

    def _learn(
        self, checked: EquationSettings, rows: TransitionRows, seed: int, printed: str
    ) -> tuple[StochasticEquation, Fit, float, float, Array | None]:
        """Train; returns the equation, the fit, the longest step and its error, and the SD of errors of Y."""
        device = settings.find_device(self.device)
        rng = np.random.default_rng([seed, 0])
        hoods = rows.balls(self.ball_rows, rng)
        look = FirstLook.of(rows, hoods, checked.jumps is not None)
        equation = checked.build(rows.state.shape[1], look.units(rows), torch.Generator().manual_seed(seed))
        _check_no_time(equation, rows)
        _check_precision(checked, rows)
        equation = equation.to(device)
        x = torch.tensor(rows.inputs, dtype=checked.dtype, device=device)
        model = Transitions(equation, self._n_steps(rows))
        if isinstance(self.step, str):
            start_parts(model, x, rows, look, hoods, seed, rounds=0)
            self._refine(model, x, seed)
        start_parts(model, x, rows, look, hoods, seed)
        step = float(rows.lag.max()) / model.n_steps
        if equation.n_random or self.noise is not None:
            fit, noise = self._learn_whole(equation, rows, step, seed, printed)
            return equation, fit, step, self._step_error(model, x, seed), noise
        objective, x, model = self._objective(model, x, rows, look, hoods)
        fit = train(
            model, objective, x, self._config(checked, hoods.n_balls, int(hoods.sizes[0]), seed, printed)
        )
        return equation, fit, step, self._step_error(model, x, seed), None

    def _learn_whole(
        self, equation: StochasticEquation, rows: TransitionRows, step: float, seed: int, printed: str
    ) -> tuple[Fit, Array | None]:
        """Train on whole paths, where parameters vary between them or Y has errors."""
        device = settings.find_device(self.device)
        times, there, values = rows.paths(None if equation.n_random else LONGEST_PIECE)
        if len(values) < FEWEST_PATHS:
            raise ValueError(
                f"Y has {len(values)} path(s), which are compared as wholes with noise or with parameters "
                f"that vary between them; give at least {FEWEST_PATHS}, or leave noise and these laws out."
            )
        data = [torch.tensor(v, dtype=torch.float64, device=device) for v in (values, times)]
        errors = None
        if self.noise is not None:
            known = not isinstance(self.noise, str)
            std = np.full(values.shape[2], float(self.noise)) if known else rows.roughness()
            errors = Errors(torch.tensor(std, dtype=torch.float64, device=device), known)
        mask = torch.tensor(there, device=device)
        model = WholePaths(equation, data[0], data[1], mask, step, errors).to(device)
        number = torch.arange(len(values), device=device)
        with torch.no_grad():
            observed = model.features(data[0], number)
        scale = observed.std(0).clamp_min(1e-12).expand_as(observed)
        discrepancy = SlicedW2(16, bool(self.debiased))
        objective = Objective(observed, Neighborhoods.whole(len(values)), discrepancy, None, scale)
        steps = (
            WHOLE_STEPS if isinstance(self.max_steps, str) else check_count(self.max_steps, "max_steps", 1)
        )
        rate = WHOLE_RATE if isinstance(self.learning_rate, str) else self.learning_rate
        config = self._training(steps, rate, seed, printed)
        fit = train(model, objective, number[:, None].double(), config)
        return fit, None if errors is None else errors.std.detach().cpu().numpy()

    def _n_steps(self, rows: TransitionRows) -> int:
        if isinstance(self.step, str):
            return 1
        steps = max(1, math.ceil(float(rows.lag.max()) / float(self.step) - 1e-9))
        if steps > MOST_STEPS:
            raise ValueError(
                f"step={self.step:g} makes {steps} steps of the longest lag, {rows.lag.max():g}; at most "
                f"{MOST_STEPS} are made. Give a longer step, or step='auto', which finds one that is short "
                "enough."
            )
        return steps

    def _refine(self, model: Transitions, x: Tensor, seed: int) -> None:
        """Double the number of steps until the law of transitions stops moving."""
        while model.n_steps < MOST_STEPS and self._step_error(model, x, seed) > STEP_TOLERANCE:
            model.n_steps *= 2

    def _step_error(self, model: Transitions, x: Tensor, seed: int) -> float:
        """How far half the step moves mean and SD of transitions, in SDs: root mean square over states."""
        generator = torch.Generator(x.device).manual_seed(seed)
        few = x[torch.linspace(0, len(x) - 1, min(len(x), 20_000), device=x.device).long()]
        coarse, fine = model.coupled(few, generator)
        groups = few[:, 2].argsort().tensor_split(20)
        squares = []
        for group in groups:
            std = fine[group].std(0, correction=0).clamp_min(1e-30)
            shift = (coarse[group] - fine[group]).mean(0) / std
            squares.append(shift.square() + (coarse[group].std(0, correction=0) / std - 1).square())
        return float(torch.stack(squares).mean(0).max().sqrt())

    def _objective(
        self, model: Transitions, x: Tensor, rows: TransitionRows, look: FirstLook, hoods: Any
    ) -> tuple[Objective, Tensor, Transitions]:
        """The loss on transitions, its rows, and the model with the columns that the loss needs."""
        equation, d = model.equation, rows.state.shape[1]
        anchored: tuple[str, ...] = ()
        if self.debiased:
            anchored = tuple(
                n for n in ("drift", "diffusion") if isinstance(getattr(equation, n), NetworkCoefficient)
            )
        model = Transitions(equation, model.n_steps, anchored)
        with torch.no_grad():
            anchors = model.anchors(x, d)
        has_jumps = equation.jumps is not None
        lag = rows.lag[:, None]
        spread = np.sqrt(look.local * lag)
        center, scale = [look.mean * lag], [spread]
        if has_jumps:
            center += [look.mean * lag, np.zeros_like(lag)]
            scale += [spread, np.ones_like(lag)]
        scale += [
            spread if name == "drift" or not self.correlated else np.repeat(spread, d, 1) for name in anchored
        ]
        center.append(np.zeros(anchors.shape))
        target = [rows.increment] + ([rows.increment, np.zeros_like(lag)] if has_jumps else [])
        target.append(np.zeros(anchors.shape))
        discrepancy = TransitionW2(
            debiased=bool(self.debiased),
            narrow=float(self.debiased),
            jumps=has_jumps,
            squashed=has_jumps and bool(self.debiased),
            n_anchors=anchors.shape[1],
            anchor=ANCHOR,
        )
        y = torch.tensor(np.hstack(target)).to(x)
        centers = np.hstack(center) if self.debiased else None
        objective = Objective(y, hoods, discrepancy, centers, np.hstack(scale))
        return objective, torch.cat([x, anchors], 1), model

    def _config(self, checked: EquationSettings, n_balls: int, k: int, seed: int, printed: str) -> FitConfig:
        auto_steps = 120 if self.debiased else 300
        auto_rate = 0.02 if not checked.has_networks else 0.005 if checked.has_functions else 0.002
        auto_rate = (
            auto_rate if self.debiased else 0.01
        )  # the printed loss has its minimum far from the start
        steps = auto_steps if isinstance(self.max_steps, str) else check_count(self.max_steps, "max_steps", 1)
        rate = auto_rate if isinstance(self.learning_rate, str) else self.learning_rate
        batch = min(n_balls, max(1, STEP_ROWS // k))
        per_epoch = max(1, min(n_balls // batch, 10))
        return replace(
            self._training(-(-steps // per_epoch), rate, seed, printed),
            batch_balls=batch,
            epoch_balls=batch * per_epoch,
        )

    def _training(self, epochs: int, rate: float, seed: int, printed: str) -> FitConfig:
        return FitConfig(
            max_epochs=epochs,
            learning_rate=rate,
            weight_decay=0.0,
            n_draws=max(self.n_draws, 2) if self.debiased else self.n_draws,
            keep="average",
            averaged=0.3,
            max_skipped=20,
            max_gradient=MAX_GRADIENT,
            seed=seed,
            progress=bool(self.verbose),
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            resume=self.checkpoint is not None,
            history=self.history,
            fingerprint=printed,
        )

    def _keep(
        self,
        equation: StochasticEquation,
        fit: Fit,
        seen: SeenRows | None,
        step: float,
        error: float,
        seed: int,
        states: Array,
        noise: Any = None,
    ) -> None:
        """Take over an equation and what describes it, with nothing left of an older fit."""
        self._forget()
        self.equation_, self.fit_, self.seen_rows_ = equation.cpu().eval(), fit, seen
        self.step_, self.step_error_, self._seed = step, error, seed
        self.n_states_ = states.shape[1]
        # Enough states to know where the process usually is.
        self._typical = states[np.linspace(0, len(states) - 1, min(len(states), 500)).astype(int)].copy()
        if noise is not None:
            self.noise_ = np.asarray(noise)
        if equation.law is not None:
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                values = equation.values(PARAMETER_DRAWS, equation.law.draw(PARAMETER_DRAWS, generator))
            self.parameters_ = LearnedParameters({n: v.double().numpy().copy() for n, v in values.items()})
        if equation.jumps is not None:
            self._describe_jumps()

    @torch.no_grad()
    def _describe_jumps(self) -> None:
        jumps, states = self.equation_.jumps, self._states(self._typical, "y")
        assert jumps is not None
        draws = states.repeat(20, 1)
        t, values = torch.zeros(len(draws)).to(draws), self.equation_.values(len(draws), None)
        z = torch.randn(draws.shape, generator=torch.Generator().manual_seed(self._seed)).to(draws)
        # As many of each sign, so that means and SDs of Gaussian sizes are exact.
        z = torch.cat([z[: len(z) // 2], -z[: len(z) // 2]]) / z[: len(z) // 2].square().mean(0).sqrt()
        sizes = jumps.size(t, draws, values, z).double()
        self.jump_rate_ = float(jumps.rate(t, draws, values).double().mean())
        self.jump_mean_ = sizes.mean(0).numpy()
        self.jump_std_ = sizes.std(0, correction=0).numpy()

    def _simulate(self, states: Tensor, times: Tensor, generator: torch.Generator, measured: bool) -> Tensor:
        equation = self.equation_
        omega = equation.law.draw(len(states), generator) if equation.n_random and equation.law else None
        paths = simulate_paths(equation, states, times.double(), self.step_, omega, generator)
        if measured and self.noise is not None:
            errors = torch.randn(paths.shape, generator=generator, dtype=paths.dtype)
            errors[:, 0] = 0.0
            paths = paths + torch.tensor(self.noise_).to(paths) * errors
        return paths

    @torch.no_grad()
    def _coefficient(self, name: str, y: Any, t: float) -> Array:
        check_is_fitted(self, "equation_")
        states = self._states(y, "y")
        values = self.equation_.values(len(states), None)
        at = torch.full((len(states),), float(t)).to(states)
        found: Array = (
            getattr(self.equation_, name)(at, self.equation_.inside(states), values).double().numpy()
        )
        return found

    def _states(self, y: Any, name: str) -> Tensor:
        states = as_array(y if np.ndim(y) else [y], name)
        if states.ndim == 1:
            states = states[:, None] if self.n_states_ == 1 else states[None]
        if states.ndim != 2 or states.shape[1] != self.n_states_:
            raise ValueError(
                f"{name} has shape {states.shape}; expected ({self.n_states_},) or (n, {self.n_states_})."
            )
        functions = (
            any(not isinstance(p, str) for p in self._parts.values()) or self.equation_.law is not None
        )
        return torch.tensor(states, dtype=torch.float64 if functions else torch.float32)


class _CommonPaths:
    """Paths from any initial state with the same noise for all."""

    def __init__(self, estimator: LocalW2SDE, times: Tensor, measured: bool) -> None:
        self.estimator, self.times, self.measured = estimator, times, measured

    def common_draws(self, x: Array) -> Any:
        """Draws (S, 1, T * d) from each of the states x (n, d)."""
        for i, state in enumerate(torch.from_numpy(x)):
            generator = torch.Generator().manual_seed(self.estimator._seed)
            rows = state.expand(PREDICTION_DRAWS, -1)
            paths = self.estimator._simulate(rows, self.times, generator, self.measured)
            yield slice(i, i + 1), paths.double().numpy().reshape(PREDICTION_DRAWS, 1, -1)


def check_size(state: dict[str, Tensor], checked: EquationSettings, d: int) -> None:
    """Raise before networks are made that the file does not hold: it must not ask for memory."""
    held = sum(tensor.numel() for tensor in state.values())
    stated = checked.width * (d + (checked.depth - 1) * checked.width)
    if stated > held:
        raise ValueError(f"the file states networks of {stated} weights and holds {held} numbers.")


def _describe(functions: Any) -> Any:
    """A function by name and source, or both of a pair (rate, size)."""
    if isinstance(functions, list | tuple):
        return [storing.describe_function(function) for function in functions]
    return storing.describe_function(functions)


def _match(name: str, described: Any, given: Any) -> Any:
    """The functions to be used: those given, if they are as many as a file names."""
    pair = isinstance(given, list | tuple)
    if not isinstance(described, list):
        if pair:
            raise ValueError(f"{name} was no pair of functions when this model was saved; pass one.")
        return storing.match_function(name, described, given)
    if not pair or len(given) != len(described):
        raise ValueError(
            f"{name} was a pair of functions when this model was saved; pass both: load(path, {name}=(rate, "
            "size))."
        )
    return tuple(storing.match_function(name, *both) for both in zip(described, given, strict=True))


@torch.no_grad()
def _check_no_time(equation: StochasticEquation, rows: TransitionRows) -> None:
    """Raise if a function depends on t: transitions of all times are compared with each other."""
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), 50)).astype(int)
    states = equation.inside(torch.tensor(rows.state[chosen]).to(next(equation.parameters())))
    values = equation.values(len(states), None)
    parts = {"drift": equation.drift, "diffusion": equation.diffusion}
    if equation.jumps is not None:
        parts["the rate of jumps"] = equation.jumps.rate
    first, last = float(rows.time.min()), float(rows.time.max())
    for name, part in parts.items():
        found = [
            part(torch.full((len(states),), t).to(states), states, values)
            for t in np.linspace(first, last, 5).tolist()
        ]
        if any(not torch.allclose(found[0], other, rtol=1e-4, equal_nan=True) for other in found[1:]):
            raise ValueError(
                f"{name} is another one at another time t between {first:g} and {last:g}, but transitions of "
                "all times are compared with each other, so that what changes with time would be taken for "
                "noise. Make it a state that is observed, such as a phase, or fit shorter spans of time."
            )


def _check_precision(checked: EquationSettings, rows: TransitionRows) -> None:
    """Raise if steps between observations are lost to rounding in single precision, which networks have."""
    size, step = np.abs(rows.state).max(0), rows.increment.std(0)
    if checked.dtype == torch.float32 and (6e-8 * size > 0.01 * step).any():
        worst = int((size / np.maximum(step, 1e-300)).argmax())
        raise ValueError(
            f"state {worst + 1} has values up to {size[worst]:.4g}, but moves by {step[worst]:.2g} between "
            "observations, which single precision cannot tell. Subtract a constant from Y, such as its mean."
        )


def _plain_bounds(equation: StochasticEquation) -> Any:
    """Bounds as JSON has them, which knows no infinity."""
    assert equation.bounds is not None
    return [[v if math.isfinite(v) else None for v in end] for end in equation.bounds.tolist()]


def _numbers(values: Array) -> str:
    return ", ".join(f"{v:.4g}" for v in values)


def _as_paths(Y: Any, t: Any) -> tuple[Any, Any]:
    """One path (T,) of one state as a path among others."""
    if not isinstance(Y, list | tuple) and np.ndim(Y) == 1 and np.ndim(t) == 1:
        return np.asarray(Y)[None], np.asarray(t)[None]
    return Y, t
