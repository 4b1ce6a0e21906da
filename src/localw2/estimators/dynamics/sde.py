"""``LocalW2SDE``: stochastic differential equations and jump-diffusions, learned from paths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from localw2._validation import Array, as_array, check_count, check_flag, check_number, check_range
from localw2.distribution import DrawsDistribution, Support
from localw2.estimators import settings, stored_values
from localw2.estimators.dynamics import stored_processes, storing
from localw2.estimators.dynamics.equation_training import EquationTraining, LearnedEquation
from localw2.estimators.dynamics.judged_paths import sketch_paths
from localw2.estimators.dynamics.parameters import LearnedParameters
from localw2.estimators.dynamics.processes import Processes
from localw2.estimators.dynamics.trajectories import Trajectories
from localw2.estimators.dynamics.transitions import TransitionRows, one_among_paths
from localw2.models.ode import check_times
from localw2.models.sde import Transitions, simulate_paths
from localw2.storage.model_file import Stored

if TYPE_CHECKING:
    from localw2.judging.seen_rows import SeenRows

# Draws behind ``parameters_``, and paths behind the law of each state.
PARAMETER_DRAWS, PREDICTION_DRAWS = 10_000, 2000
# Paths times draws that are simulated at a time.
SAMPLED_PATHS = 8192
# Fewest transitions from which a law can be learned.
FEWEST_ROWS = 50
# Observed states that are kept, enough to know where the process usually is.
TYPICAL_STATES = 500


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
        rate of a parameter ``rate``; a pair is ``(rate(t, y, ...), size)``, without jumps where rate <= 0.
    parameters : dict, list or None
        The law of each parameter of your functions. A number is the guess of one value for all paths
        (``Shared``); ``Normal(mean, std)`` and ``LogNormal`` vary between paths. None: all are shared, from a
        guess of 1.
    noise : "additive", "proportional", a number or None
        Errors of measurement, fresh at every observation: a learned SD of each state, a learned part of its
        value, or a known SD. It needs functions for drift and diffusion.
    correlated : bool
        Whether the noise of the states is correlated: a full diffusion matrix (a lower triangular network).
    bounds : pair or None
        Lower and upper bounds of the states, such as ``(0, None)``: coefficients are evaluated inside, and no
        simulated state lies outside.
    ball_rows : int
        Transitions per ball: wide ones identify the spread.
    debiased : bool
        Remove the shrinkage of the spread by finite balls, and compare rows one by one as well, which
        identifies means best. False is the loss as published.
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
    noise_ : SD (d,) of the errors of measurement, relative to the state if they are proportional.
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

    def fit(self, Y: Any, t: Any, sample_weight: Any = None) -> Self:
        """Learn from paths.

        ``Y`` is (n, n_times, d), or (n, n_times) for one state, or (n_times,) for one path of one state, with
        NaN where an observation is missing; ``t`` is (n_times,), or (n, n_times) if each path has its own
        times. Paths of unequal length are given as two lists. States are taken as they were observed, at
        whatever times; a gap of more than three usual lags is left out. ``sample_weight`` (n,) >= 0 says how
        much a path counts relative to others: only ratios matter, and one of weight 0 is left out. Parts of
        one path cannot be weighted.
        """
        training = EquationTraining.of(self.get_params(deep=False))
        Y, t = one_among_paths(Y, t)
        kept, weights = None, None
        if sample_weight is not None:
            kept, weights = settings.keep_weighted(sample_weight, len(Y), "paths")
        data = Trajectories.of(Y, t, kept=kept, partly=True, fewest=1)
        complete = np.isfinite(data.values).all(1)
        number, values = data.number[complete], data.values[complete]
        time = data.time[complete] + data.t0
        check_range(values, "Y")
        rows = TransitionRows.of(number, time, values, weights)
        if len(rows) < FEWEST_ROWS:
            raise ValueError(
                f"Y has {len(rows)} transitions between complete observations of a path; a law needs at "
                f"least {FEWEST_ROWS}. Give more paths, longer ones, or fewer missing values."
            )
        observed = np.column_stack([number, time])
        printed = settings.hash_fit(self.get_params(deep=False), values, observed, weights)
        printed += "".join(storing.hash_function(f) for f in self._functions().values())
        seed = settings.seed_fit(self.random_state, printed if self.checkpoint is not None else None)
        learned = training.learn(rows, seed, printed)
        self._keep(learned, sketch_paths(Y, kept), seed, rows.state[rows.spaced(TYPICAL_STATES)].copy())
        if self.checkpoint is not None and learned.fit.stopped == "all epochs done":
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
        """The rate of jumps (N,) at states y (N, d); it is 0 where a function of yours is negative."""
        check_is_fitted(self, "equation_")
        if self.equation_.jumps is None:
            raise ValueError("this equation was fitted without jumps; set jumps='normal' or 'mlp'.")
        states = self.equation_.inside(self._states(y, "y"))
        with torch.no_grad():
            values = self.equation_.values(len(states), None)
            rate = self.equation_.jumps.rate(torch.full((len(states),), t).to(states), states, values)
        found: Array = rate[:, 0].double().numpy()
        return found

    def standard_errors(self, y: Any) -> tuple[Array, Array]:
        """Standard errors (N, d) of drift and diffusion at states y (N, d), of networks without jumps.

        They are those of the polynomials to which the networks are held, given the degrees of these: what
        varies between samples of paths (or stretches of one); and what training has moved away from these.
        The diffusion is the SD of each state.
        """
        check_is_fitted(self, "equation_")
        if self._errors is None:
            raise ValueError(
                "standard errors are known where drift and diffusion are networks (with correlated=False), "
                "without jumps, and each term of the polynomials behind them changes what is simulated. Fit "
                "resampled paths to see how sure this model is."
            )
        states = self.equation_.inside(self._states(y, "y")).double().numpy()
        return self._errors.of(states, self.drift(states), self.diffusion(states))

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
            part = " of the state" if self._is_relative() else ""
            lines.append(f"Errors of measurement: SD {_numbers(self.noise_)}{part}")
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
        parts = {name: parameters.pop(name) for name in stored_processes.FUNCTIONS}
        for name in ("parameters", "bounds"):
            parameters.pop(name)
        counts, seen = stored_values.store_seen(self.seen_rows_)
        fit, history = stored_values.store_fit(self.fit_)
        tensors = {f"equation.{name}": value for name, value in self.equation_.state_dict().items()}
        plain = stored_processes.store_equation(self.equation_, parts) | {
            "parameters": stored_values.store_parameters(parameters),
            "n_states": self.n_states_,
            "step": self.step_,
            "step_error": self.step_error_,
            "seed": self._seed,
            "fit": fit,
            "seen_rows": counts,
            "subjects": self._plain_subjects(),
        }
        if self.noise is not None:
            tensors["noise"] = torch.tensor(self.noise_, dtype=torch.float64)
        tensors |= stored_processes.store_errors(self._errors)
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
            given = {"drift": drift, "diffusion": diffusion, "jumps": jumps}
            d = stored_values.whole_number(plain["n_states"], 1, stored_values.MOST_COLUMNS)
            estimator = cls()
            parts = stored_processes.restore_parts(plain, given)
            stored_values.set_stored_parameters(estimator, {**parameters, **parts})
            checked = EquationTraining.of(estimator.get_params(deep=False)).parts
            state = {n.removeprefix("equation."): v for n, v in tensors.items() if n.startswith("equation.")}
            if checked.has_networks:
                stored_processes.check_size(state, checked, d)
            equation = checked.build(d, {}, torch.Generator().manual_seed(0))
            equation.load_state_dict(state)
            fit = stored_values.restore_fit(Transitions(equation), plain["fit"], tensors)
            seen = stored_values.restore_seen(plain.get("seen_rows"), tensors)
            step = check_number(plain["step"], "step", lambda v: 0 < v < math.inf, "a positive number")
            typical = stored_values.sized_array("typical", tensors["typical"], len(tensors["typical"]), d)
            noise = tensors["noise"].numpy() if estimator.noise is not None else None
            seed = stored_values.whole_number(plain["seed"], 0)
            errors = stored_processes.restore_errors(tensors, d)
            learned = LearnedEquation(equation, fit, step, float(plain["step_error"]), noise, errors)
            estimator._keep(learned, seen, seed, typical)
            estimator._keep_subjects(plain.get("subjects"))
        return estimator

    def _is_relative(self) -> bool:
        return isinstance(self.noise, str) and self.noise == "proportional"

    def _functions(self) -> dict[str, Any]:
        pair = self.jumps if isinstance(self.jumps, list | tuple) else [self.jumps]
        named = {**self._parts, **{f"jumps {i}": part for i, part in enumerate(pair)}}
        return {name: part for name, part in named.items() if callable(part)}

    def _keep(self, learned: LearnedEquation, seen: SeenRows | None, seed: int, typical: Array) -> None:
        """Take over an equation and what describes it, with nothing left of an older fit."""
        self._forget()
        equation = learned.equation
        self.equation_, self.fit_, self.seen_rows_ = equation.cpu().eval(), learned.fit, seen
        self.step_, self.step_error_, self._seed = learned.step, learned.step_error, seed
        self.n_states_, self._typical, self._errors = typical.shape[1], typical, learned.errors
        if learned.noise is not None:
            self.noise_ = np.asarray(learned.noise)
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
            size = paths.abs() if self._is_relative() else 1.0
            paths = paths + torch.tensor(self.noise_).to(paths) * size * errors
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


def _numbers(values: Array) -> str:
    return ", ".join(f"{v:.4g}" for v in values)
