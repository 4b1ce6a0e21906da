"""How a stochastic equation is learned: from transitions in balls of states, or from whole paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array, average, check_count, check_flag, check_number
from localw2.balls.neighborhoods import Neighborhoods
from localw2.estimators import settings
from localw2.estimators.dynamics.equations import EquationSettings
from localw2.estimators.dynamics.first_look import FirstLook
from localw2.estimators.dynamics.fitted_transitions import warn_of_other_transitions
from localw2.estimators.dynamics.starting_values import start_parts
from localw2.estimators.dynamics.whole_paths import Errors, WholePaths, moments
from localw2.losses.discrepancies import SlicedW2
from localw2.losses.objective import Objective
from localw2.losses.transitions import TransitionW2
from localw2.models.coefficients import NetworkCoefficient
from localw2.models.laws import Shared
from localw2.models.measurement import check_noise
from localw2.models.sde import StochasticEquation, Transitions
from localw2.training.config import Fit, FitConfig
from localw2.training.loop import train

if TYPE_CHECKING:
    from localw2.estimators.dynamics.moment_regression import CurveErrors
    from localw2.estimators.dynamics.transitions import TransitionRows

# Transitions of a step of training, before draws.
STEP_ROWS = 3600
# How far mean and SD of transitions may be from those of half the step, in SDs.
STEP_TOLERANCE = 0.004
MOST_STEPS = 64
MAX_GRADIENT = 1.0
# Whole paths: how many there must be, the longest piece of one where nothing varies, and training.
FEWEST_PATHS, LONGEST_PIECE, WHOLE_STEPS, WHOLE_RATE = 20, 50, 150, 0.03
# Errors of measurement that are learned.
NOISES = ("additive", "proportional")
# How much networks are held to the regressions that they start from, relative to the loss.
ANCHOR = 4.0


@final
@dataclass(frozen=True)
class LearnedEquation:
    """An equation, its fit, the longest step of the solver and its error, and the SD of errors of Y.

    ``errors`` say how sure the curves of networks are.
    """

    equation: StochasticEquation
    fit: Fit
    step: float
    step_error: float
    noise: Array | None = None
    errors: CurveErrors | None = None


@final
@dataclass(frozen=True)
class EquationTraining:
    """The settings of an estimator of stochastic equations, checked."""

    parts: EquationSettings
    noise: Any
    ball_rows: int
    debiased: bool
    step: Any
    n_draws: int
    max_steps: Any
    learning_rate: Any
    checkpoint: Any
    history: Any
    device: str
    verbose: bool

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> EquationTraining:
        """Check the settings of an estimator."""
        parts = EquationSettings.of(given)
        check_flag(given["debiased"], "debiased")
        check_count(given["ball_rows"], "ball_rows", 2)
        check_count(given["n_draws"], "n_draws", 1)
        if not (isinstance(given["step"], str) and given["step"] == "auto"):
            check_number(given["step"], "step", lambda v: 0 < v < math.inf, "'auto' or a positive number")
        for name in ("max_steps", "learning_rate"):
            if isinstance(given[name], str) and given[name] != "auto":
                raise ValueError(f"{name}={given[name]!r} is unknown; give 'auto' or a number.")
        settings.check_files(given["checkpoint"], given["history"], given["random_state"])
        _check_whole(parts, given["noise"])
        own = {name: given[name] for name in cls.__dataclass_fields__ if name != "parts"}
        return cls(parts, **own | {"debiased": bool(given["debiased"]), "verbose": bool(given["verbose"])})

    def learn(self, rows: TransitionRows, seed: int, printed: str) -> LearnedEquation:
        """Train on these transitions; ``printed`` is the fingerprint of the fit."""
        device = settings.find_device(self.device)
        rng = np.random.default_rng([seed, 0])
        hoods = rows.balls(self.ball_rows, rng)
        look = FirstLook.of(rows, hoods, self.parts.jumps is not None)
        generator = torch.Generator().manual_seed(seed)
        equation = self.parts.build(rows.state.shape[1], look.units(rows), generator)
        _check_no_time(equation, rows)
        _check_precision(self.parts, rows)
        equation = equation.to(device)
        stated = {} if equation.law is None else dict(equation.law.laws)
        x = torch.tensor(rows.inputs, dtype=self.parts.dtype, device=device)
        model = Transitions(equation, self._n_steps(rows))
        if isinstance(self.step, str):
            start_parts(model, x, rows, look, hoods, seed, corrected=False)
            _refine(model, x, seed)
        errors = start_parts(model, x, rows, look, hoods, seed)
        step = float(rows.lag.max()) / model.n_steps
        if equation.n_random or self.noise is not None:
            fit, noise = self._learn_whole(equation, rows, step, seed, printed)
            errors = None
        else:
            objective, inputs, anchored = self._objective(model, x, rows, look, hoods)
            config = self._config(hoods.n_balls, int(hoods.sizes[0]), seed, printed)
            fit, noise = train(anchored, objective, inputs, config), None
        if equation.law is not None:
            equation.law.restate(stated)
        relative = isinstance(self.noise, str) and self.noise == "proportional"
        warn_of_other_transitions(model, rows, noise, relative, seed)
        return LearnedEquation(equation, fit, step, _step_error(model, x, seed), noise, errors)

    def _learn_whole(
        self, equation: StochasticEquation, rows: TransitionRows, step: float, seed: int, printed: str
    ) -> tuple[Fit, Array | None]:
        """Train on whole paths, where parameters vary between them or Y has errors."""
        device = settings.find_device(self.device)
        times, there, values, weights = rows.paths(None if equation.n_random else LONGEST_PIECE)
        if len(values) < FEWEST_PATHS:
            raise ValueError(
                f"Y has {len(values)} path(s), which are compared as wholes with noise or with parameters "
                f"that vary between them; give at least {FEWEST_PATHS}, or leave noise and these laws out."
            )
        data = [torch.tensor(v, dtype=torch.float64, device=device) for v in (values, times)]
        of_paths = None if weights is None else torch.tensor(weights, device=device)
        errors = None
        if self.noise is not None:
            known, relative = not isinstance(self.noise, str), self.noise == "proportional"
            std = np.full(values.shape[2], float(self.noise)) if known else rows.roughness()
            if relative:
                std = std / np.maximum(np.sqrt(average(rows.state**2, rows.weight)), 1e-300)
            errors = Errors(torch.tensor(std, dtype=torch.float64, device=device), known, relative)
        mask = torch.tensor(there, device=device)
        model = WholePaths(equation, data[0], data[1], mask, step, errors, of_paths).to(device)
        number = torch.arange(len(values), device=device)
        with torch.no_grad():
            observed = model.features(data[0], number)
        scale = moments(observed, of_paths)[1].sqrt().clamp_min(1e-12).expand_as(observed)
        hoods = Neighborhoods.whole(len(values))
        objective = Objective(observed, hoods, SlicedW2(16, self.debiased), None, scale, weights)
        steps = (
            WHOLE_STEPS if isinstance(self.max_steps, str) else check_count(self.max_steps, "max_steps", 1)
        )
        rate = WHOLE_RATE if isinstance(self.learning_rate, str) else self.learning_rate
        fit = train(model, objective, number[:, None].double(), self._training(steps, rate, seed, printed))
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

    def _objective(
        self, model: Transitions, x: Tensor, rows: TransitionRows, look: FirstLook, hoods: Neighborhoods
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
        full = self.parts.correlated
        scale += [spread if name == "drift" or not full else np.repeat(spread, d, 1) for name in anchored]
        center.append(np.zeros(anchors.shape))
        target = [rows.increment] + ([rows.increment, np.zeros_like(lag)] if has_jumps else [])
        target.append(np.zeros(anchors.shape))
        discrepancy = TransitionW2(
            debiased=self.debiased,
            narrow=float(self.debiased),
            jumps=has_jumps,
            squashed=has_jumps and self.debiased,
            n_anchors=anchors.shape[1],
            anchor=ANCHOR,
        )
        y = torch.tensor(np.hstack(target)).to(x)
        centers = np.hstack(center) if self.debiased else None
        objective = Objective(y, hoods, discrepancy, centers, np.hstack(scale), rows.weight)
        return objective, torch.cat([x, anchors], 1), model

    def _config(self, n_balls: int, k: int, seed: int, printed: str) -> FitConfig:
        auto_steps = 120 if self.debiased else 300
        # Training starts near the optimum, and longer steps would only add the noise of the draws; but the
        # printed loss has its minimum far from the start.
        auto_rate = 0.002 if self.debiased else 0.01
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
            progress=self.verbose,
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            resume=self.checkpoint is not None,
            history=self.history,
            fingerprint=printed,
        )


def _refine(model: Transitions, x: Tensor, seed: int) -> None:
    """Double the number of steps until the law of transitions stops moving."""
    while model.n_steps < MOST_STEPS and _step_error(model, x, seed) > STEP_TOLERANCE:
        model.n_steps *= 2


def _step_error(model: Transitions, x: Tensor, seed: int) -> float:
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


def _check_whole(parts: EquationSettings, noise: Any) -> None:
    """Raise where whole paths would be compared and cannot be."""
    varies = [name for name, law in parts.laws.items() if not isinstance(law, Shared)]
    if noise is not None:
        if isinstance(noise, str) and noise not in NOISES:
            raise ValueError(
                f"noise={noise!r} is unknown here; give one of {', '.join(NOISES)}, a known standard "
                "deviation, or None. Two kinds of errors beside the noise of the state cannot be told apart."
            )
        check_noise(noise)
    if not varies and noise is None:
        return
    why = f"{varies[0]} varies between paths" if varies else "noise hides the states"
    if parts.has_networks or not parts.laws:
        raise ValueError(
            f"{why}, so that whole paths are compared by what a fit of each alone shows; give drift and "
            "diffusion as functions with named parameters, which such a fit needs."
        )
    if parts.jumps is not None:
        raise ValueError(f"{why}, and the rate of jumps cannot be learned from whole paths; leave one out.")


@torch.no_grad()
def _check_no_time(equation: StochasticEquation, rows: TransitionRows) -> None:
    """Raise if a function depends on t: transitions of all times are compared with each other."""
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), 50)).astype(int)
    states = equation.inside(torch.tensor(rows.state[chosen]).to(next(equation.parameters())))
    values = equation.values(len(states), None)
    parts: dict[str, Callable[..., Tensor]] = {"drift": equation.drift, "diffusion": equation.diffusion}
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
