"""The report on a stochastic equation: drift and diffusion, paths, the long run, jumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2 import plots
from localw2._validation import Array, as_array, check_count
from localw2._wording import as_html
from localw2.apps.report import figures, parts
from localw2.estimators.dynamics.processes import Pieces, read_states
from localw2.judging.inputs import Input

if TYPE_CHECKING:
    from localw2.judging.diagnosis.diagnose import Diagnosis

GRID = 200  # most times of the bands
BAND_PATHS = 1000  # simulated paths behind them
LONGEST_SHOWN = 400  # observations of one long path that are shown
LEVELS = (0.05, 0.95)


@final
@dataclass(frozen=True, eq=False)
class _Judged:
    """A fitted process and the observations to judge it by: path (N,), time (N,) and state (N, d)."""

    model: Any
    number: Array
    time: Array
    values: Array
    states: list[str]
    rng: np.random.Generator

    def paths(self) -> list[tuple[Array, Array]]:
        """Times (T_i,) and states (T_i, d) of each path."""
        cuts = np.flatnonzero(np.diff(self.number)) + 1
        return list(zip(np.split(self.time, cuts), np.split(self.values, cuts), strict=True))

    def seed(self) -> int:
        """A new seed."""
        return int(self.rng.integers(2**31))


def report_process(
    model: Any,
    Y: Any,
    t: Any,
    *,
    state_names: Sequence[str] | None = None,
    time_name: str = "time",
    settings: Mapping[str, Any] | None = None,
    source: str | None = None,
    n_samples: int = 200,
    random_state: Any = 0,
) -> str:
    """The report as a string: see ``localw2.apps.report.report_html``.

    The verdict is that of ``LocalW2SDE.diagnose``: about 300 pieces of the paths are simulated from their
    first states. ``state_names`` and ``time_name`` are labels, with their units.
    """
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws do not show a distribution")
    rng = np.random.default_rng(random_state)
    read = read_states(Y, t, model.n_states_)
    states = parts.name_columns(state_names, model.n_states_, "y", "state_names")
    seen = _Judged(model, *read, states, rng)
    count = len(seen.paths())
    diagnosis, words, tiles = _judge(seen, Y, t, n_samples)
    body = [
        parts.lead(model, "one path" if count == 1 else f"{count} paths", source),
        _warn_of_training(model, Y),
        *([f'<p class="soft">{words}</p>'] if diagnosis is None else [parts.verdict(diagnosis), words]),
        "" if diagnosis is None else parts.number_outputs(_moments(states)),
        parts.tiles([*tiles, *_describe(model)]),
        "<h2>The equation</h2>",
        *_equation(seen, Y, t),
        *(["<h2>Jumps</h2>", *_jumps(seen, Y, t)] if model.equation_.jumps is not None else []),
        "<h2>Paths</h2>",
        *_paths(seen, time_name),
        "<h2>In the long run</h2>",
        *_long_run(seen, Y, t),
        *([] if diagnosis is None else _trust(diagnosis, states)),
        "<h2>Data</h2>",
        _data(seen, time_name),
        "<h2>Model</h2>",
        *parts.model_parts(model, settings),
        "<h2>Citation and reproduction</h2>",
        parts.reproduce(source),
    ]
    return parts.page(f"Stochastic equation of {parts.join_names(states)}", body)


def _moments(states: list[str]) -> list[str]:
    return [f"{state} {when}" for when in ("halfway", "at the end") for state in states]


def _judge(
    seen: _Judged, Y: Any, t: Any, n_samples: int
) -> tuple[Diagnosis | None, str, list[tuple[str, str]]]:
    """The diagnosis, what it is about in words (or why there is none), and scores for tiles."""
    if getattr(seen.model, "noise", None) is not None:
        words = (
            "The model has errors of measurement, so that observed states are not those from which a path "
            "goes on: there is no verdict from simulated pieces of paths."
        )
        return None, words, []
    try:
        pieces: Pieces = seen.model.cut_pieces(Y, t, 2, seen.rng)
    except ValueError as error:  # too few observations
        return None, f"There is no verdict: {as_html(str(error))}", []
    draws = seen.model.simulate_pieces(pieces, n_samples, seen.rng)
    diagnosis = pieces.diagnose(draws, seen.seed(), names=seen.states)
    later = pieces.values[:, 1:]
    low, high = np.quantile(draws, LEVELS, axis=0)
    inside = ((later >= low) & (later <= high)).mean((0, 1))
    tiles = [(str(len(pieces.times)), "pieces of paths, simulated from their first state")]
    for k, name in enumerate(seen.states):
        of = f" of {as_html(name)}" if len(seen.states) > 1 else ""
        tiles.append((f"{100 * inside[k]:.1f} %", f"of observations{of} inside their 90 % interval"))
    tiles.append(parts.describe_skill(diagnosis, "the first state"))
    length = later.shape[1]
    span = float(np.median(pieces.times[:, -1] - pieces.times[:, 0]))
    words = (
        f'<p class="soft">Judged by {len(pieces.times)} pieces of {length} lags ({span:.4g} units of time), '
        "each simulated from its first state; halfway is the observation in its middle.</p>"
    )
    return diagnosis, words, tiles


def _describe(model: Any) -> list[tuple[str, str]]:
    """The solver and the jumps, for tiles."""
    items = [
        (f"{model.step_:.3g}", "longest step of the solver"),
        (f"{model.step_error_:.2g}", "SDs by which half the step moves transitions"),
    ]
    if hasattr(model, "jump_rate_"):
        items.append((f"{model.jump_rate_:.3g}", "jumps per unit of time"))
    return items


def _warn_of_training(model: Any, Y: Any) -> str:
    """A warning if the model was trained on these paths; for ragged ones nothing is known."""
    try:
        paths = as_array(Y, "Y", missing=True)
    except ValueError:
        return ""
    paths = paths[None] if paths.ndim == 1 else paths
    paths = paths[..., None] if paths.ndim == 2 else paths
    return parts.warn_of_training(model, np.nan_to_num(paths[:, 0]), paths, "paths")


def _equation(seen: _Judged, Y: Any, t: Any) -> list[str]:
    curves = seen.model.coefficients_along(Y, t, random_state=seen.seed())
    d, kinds = len(seen.states), 2 if curves.rate is None else 3
    columns = min(d, 2)
    words = "Drift and diffusion (SD per root of time)" + (" and the rate of jumps" if kinds == 3 else "")
    others = ", the other states at their medians" if d > 1 else ""
    told = [f"{words} along each state{others}; bars at the bottom show where states were observed."]
    if curves.varies:
        told.append("The band holds 90 % of the paths, whose parameters vary.")
    if curves.bins is not None:
        told.append(
            "Dots are the curve plus what the observed transitions show beyond simulated ones of the same "
            "lags, with two standard errors: nearly all should touch the curve."
        )
    found = [f"<pre>{as_html(seen.model.summary())}</pre>", f"<p>{' '.join(told)}</p>"]
    for first in range(0, d, columns):  # two states beside each other
        some = list(range(first, min(first + columns, d)))
        figure, axes = figures.new_figure(7.5, 2.3 * kinds + 0.4, kinds, len(some))
        plots.coefficients(curves.take(some), [seen.states[j] for j in some], axes=axes)
        names = parts.join_names([seen.states[j] for j in some])
        found.append(parts.figure(figure, f"coefficients{first}", f"Drift and diffusion of {names}"))
    return found


def _jumps(seen: _Judged, Y: Any, t: Any) -> list[str]:
    compared = seen.model.compare_transitions(Y, t, random_state=seen.seed())
    d = len(seen.states)
    figure, axes = figures.new_figure(7.5, 2.8 * d + 0.4, d, 2)
    plots.jumps(compared, seen.states, axes)
    words = (
        "Left: increments between observations, on a logarithmic scale. Right: the law of the sizes of "
        "jumps, over the observed increments, less the drift, that are more than four SDs of the diffusion "
        "away; small jumps are not among them, and two jumps count as one."
    )
    return [f"<p>{words}</p>", parts.figure(figure, "jumps", "Increments and sizes of jumps")]


def _paths(seen: _Judged, time_name: str) -> list[str]:
    every = seen.paths()
    if len(every) == 1:
        times, values = (part[:LONGEST_SHOWN] for part in every[0])
        shown, starts, first = [(times, values)], values[:1], float(times[0])
        some = (
            "" if len(every[0][0]) <= LONGEST_SHOWN else f" Its first {LONGEST_SHOWN} observations are shown."
        )
        begun = f"all start at t = {first:.4g} from the first observed state.{some}"
        last = float(times[-1])
    else:
        first = min(float(times[0]) for times, _ in every)
        own = [(times, values) for times, values in every if times[0] == first]
        shown, starts = every, np.stack([values[0] for _, values in own])
        last = max(float(times[-1]) for times, _ in own)
        begun = f"they start at t = {first:.4g} from the states of {len(own)} observed paths."
    grid = np.linspace(first, last, min(GRID, max(len(times) for times, _ in shown)))
    # The first draw has paths from different states.
    lines = seen.model.sample(starts, grid, -(-BAND_PATHS // len(starts)), random_state=seen.seed())
    d = len(seen.states)
    columns = min(d, 2)
    rows = -(-d // columns)
    figure, axes = figures.new_figure(7.5, 2.9 * rows + 0.5, rows, columns)
    for spare in axes.ravel()[d:]:
        spare.set_visible(False)
    lone = len(every) == 1
    plots.paths(grid, lines, shown, 0.9, seen.states, axes.ravel()[:d], time_name, 1 if lone else 2)
    words = (
        "Grey lines are observed. The bands hold 50 and 90 % of the simulated paths at each time; "
        f"{begun} Red lines are simulated: they should be as rough as the grey ones."
    )
    return [f"<p>{words}</p>", parts.figure(figure, "paths", "Observed paths and bands of simulated ones")]


def _long_run(seen: _Judged, Y: Any, t: Any) -> list[str]:
    found = seen.model.long_run(Y, t, random_state=seen.seed())
    if found.settled:
        words = (
            f"After {found.time:.4g} units of time simulated paths had forgotten their initial states, and "
            "their distribution no longer moved. Observed states differ from it where paths were observed "
            "before they had settled, or too briefly to have been everywhere."
        )
    else:
        words = (
            f"After {found.time:.4g} units of time the distribution of simulated paths still moved or "
            "depended on their initial states: the process has no long run, or it takes longer to reach it."
        )
    if found.escaped > 0:
        words += f" {100 * found.escaped:.3g} % of the paths left the region of the observed states for good."
    d = len(seen.states)
    columns = min(d, 2)
    rows = -(-d // columns)
    figure, axes = figures.new_figure(7.5, 2.7 * rows + 0.4, rows, columns)
    for spare in axes.ravel()[d:]:
        spare.set_visible(False)
    plots.long_run(found, seen.states, axes.ravel()[:d])
    return [f"<p>{words}</p>", parts.figure(figure, "longrun", "Density of simulated and observed states")]


def _trust(diagnosis: Diagnosis, states: list[str]) -> list[str]:
    outputs = {k + len(states): f"{name} at the end of a piece" for k, name in enumerate(states)}
    return ["<h2>Can it be trusted?</h2>", *parts.trust(diagnosis, outputs)]


def _data(seen: _Judged, time_name: str) -> str:
    every = seen.paths()
    lags = np.concatenate([np.diff(times) for times, _ in every])
    columns: dict[str, Any] = {
        "observations per path": np.array([float(len(times)) for times, _ in every]),
        time_name: seen.time,
        "lag": lags,
    }
    columns |= {name: seen.values[:, k] for k, name in enumerate(seen.states)}
    return parts.columns_tables([(Input(name, "number"), values) for name, values in columns.items()])[0]
