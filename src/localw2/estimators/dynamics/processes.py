"""What is done with a learned process: tables, a diagnosis by pieces of paths, and what pictures show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from scipy import stats
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from localw2._validation import Array, check_count
from localw2.estimators.dynamics.long_tables import LabelledSubjects, LongTable
from localw2.estimators.dynamics.trajectories import Trajectories
from localw2.estimators.dynamics.transitions import LONGEST_LAG, TransitionRows, one_among_paths
from localw2.estimators.settings import draw_seed
from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
from localw2.judging.seen_rows import as_paths, warn_of_seen_paths
from localw2.models.sde import StochasticEquation, follow

if TYPE_CHECKING:
    from localw2.estimators.dynamics.moment_regression import CurveErrors
    from localw2.judging.seen_rows import SeenRows

# Pieces of paths that a diagnosis looks at, and the most lags of one.
PIECES, LONGEST_PIECE = 300, 20
# Paths times draws that are simulated at a time.
CHUNK = 8192
# Transitions that are compared with simulated ones, and simulations of each.
COMPARED_ROWS, COMPARED_DRAWS = 6000, 8
BINS, FEWEST_IN_BIN = 10, 20
# A transition this many SDs of the diffusion from its mean has most probably jumped.
JUMPED = 4.0
# The long run: paths, lags of the first stretch, most steps of the solver, later times that are pooled.
LONG_PATHS, FIRST_LAGS, LONG_STEPS, POOLED = 2000, 10, 4000, 5
# Paths this many ranges of the observed states away from them have escaped; the most that may.
ESCAPED, MOST_ESCAPED = 10.0, 0.01
# How much the SD may change while the time doubles: that of a random walk grows by 40 %.
SPREAD_CHANGE = 0.15
_KS_CRITICAL = 1.63  # at the level .01, times the root of (m + n) / (m n)


@final
@dataclass(frozen=True, eq=False)
class CoefficientCurves:
    """Drift, diffusion and rate of jumps along each of d states, the others at their medians.

    ``place`` is (d, G); ``drift`` and ``diffusion`` are (3, d, G): a curve and the ends of its band. If
    parameters vary between paths (``varies``) the curve is the median and the band holds ``coverage`` of the
    paths; if it is ``sure`` the band holds the truth at a state with probability ``coverage``, by the
    standard errors of networks; else all three are the same. ``rate`` is (d, G), or None without jumps. The
    diffusion is the SD of each state per root of time. ``seen`` are observed states (N, d). ``bins`` has, for
    each state, place (B,), drift, its error, diffusion and its error: the curve plus what observed
    transitions show beyond simulated ones; None with errors of measurement.
    """

    place: Array
    drift: Array
    diffusion: Array
    rate: Array | None
    coverage: float
    varies: bool
    seen: Array
    bins: list[tuple[Array, Array, Array, Array, Array]] | None
    sure: bool = False

    def take(self, states: list[int]) -> CoefficientCurves:
        """The curves of some of the states."""
        return CoefficientCurves(
            self.place[states],
            self.drift[:, states],
            self.diffusion[:, states],
            None if self.rate is None else self.rate[states],
            self.coverage,
            self.varies,
            self.seen[:, states],
            None if self.bins is None else [self.bins[j] for j in states],
            self.sure,
        )


@final
@dataclass(frozen=True, eq=False)
class LongRun:
    """States (S, d) of simulated paths after a long ``time``, and all observed ones (N, d).

    ``settled`` says whether their distribution had stopped moving and forgotten the initial states;
    ``escaped`` is the share of paths that left the region of the observed states for good, which are not in
    ``states``.
    """

    states: Array
    seen: Array
    time: float
    settled: bool
    escaped: float


@final
@dataclass(frozen=True, eq=False)
class ComparedTransitions:
    """Increments: ``observed`` (R, d), ``simulated`` (S, d), and simulated ``without`` jumps (S, d).

    ``sizes`` (K, d) are draws of the law of jumps; ``jumped`` (J, d) are observed increments, less the drift,
    that diffusion alone hardly explains. ``lag`` is the usual time between observations.
    """

    observed: Array
    simulated: Array
    without: Array
    sizes: Array
    jumped: Array
    lag: float


class Processes(LabelledSubjects):
    """An estimator of stochastic equations that reads tables, can be diagnosed, and shows what it learned."""

    fit: Callable[..., Any]
    drift: Callable[..., Array]
    diffusion: Callable[..., Array]
    jump_rate: Callable[..., Array]
    standard_errors: Callable[..., tuple[Array, Array]]
    n_states_: int
    step_: float
    equation_: StochasticEquation
    noise: Any
    seen_rows_: SeenRows | None
    _states: Callable[..., Tensor]
    _errors: CurveErrors | None

    def fit_table(
        self,
        frame: Any,
        *,
        time: str = "time",
        observed: Any = "y",
        subject: str | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Learn from a long table with a row per observation: a frame, a dict of columns, or a ``LongTable``.

        ``time`` and ``observed`` name columns, the latter one for each state, and ``subject`` the one that
        says to which path a row belongs; without it all rows are one path. Empty cells were not observed.
        ``sample_weight`` is a column with one value for each path, or (n,) in the order of ``subjects_``,
        which has the labels of the paths.

        >>> rng = np.random.default_rng(0)
        >>> y = np.zeros(1001)
        >>> for i in range(1000):
        ...     y[i + 1] = 0.9 * y[i] + 0.1 * rng.normal()
        >>> from localw2 import LocalW2SDE
        >>> model = LocalW2SDE(max_steps=2, random_state=0)
        >>> model = model.fit_table({"s": np.arange(1001) / 10, "y": y}, time="s", observed="y")
        >>> float(model.drift([[0.2]])[0, 0]) < 0
        True
        """
        if not isinstance(frame, LongTable):
            frame = read_long_table(frame, subject, time, observed)
        given = {**frame.design, "y0": frame.y0}
        if named := [name for name, value in given.items() if value is not None]:
            raise ValueError(
                f"the table has {named[0]}, which would be ignored: a stochastic equation starts from the "
                "observed states and knows no doses, covariates or inputs."
            )
        if isinstance(sample_weight, str):
            sample_weight = frame.of_subjects(sample_weight)
        self.fit(frame.Y, frame.t, sample_weight)
        self.subjects_ = frame.subjects
        return self

    def diagnose(
        self,
        Y: Any,
        t: Any,
        n_times: int = 2,
        n_samples: int = 200,
        random_state: Any = None,
        **settings: Any,
    ) -> Diagnosis:
        """Check on new paths Y at times t, in the forms of ``fit``, whether simulated ones can be trusted.

        What comes after a state depends on this state alone, so that paths are cut into pieces: about 300, of
        at most 20 lags, and one long path will do. If parameters vary between paths, pieces are whole paths.
        Each piece is simulated from its first state, and ``n_times`` of its later observations, evenly spaced
        up to the last, are diagnosed as that many outputs; ``settings`` are those of ``localw2.diagnose``.
        """
        n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
        rng = np.random.default_rng(draw_seed(random_state))
        pieces = self.cut_pieces(Y, t, n_times, rng)
        warn_of_seen_paths(getattr(self, "seen_rows_", None), as_paths(one_among_paths(Y, t)[0]))
        draws = self.simulate_pieces(pieces, n_samples, rng)
        return pieces.diagnose(draws, int(rng.integers(2**31)), n_times, **settings)

    def cut_pieces(self, Y: Any, t: Any, n_times: int, rng: np.random.Generator) -> Pieces:
        """Pieces of paths, at random if there are more than 300."""
        check_is_fitted(self, "equation_")
        if getattr(self, "noise", None) is not None:
            raise ValueError(
                "this model has errors of measurement: observed states are not those from which a path goes "
                "on, so that pieces of observed paths cannot be simulated."
            )
        whole = self.equation_.n_random > 0
        pieces = Pieces.of(*read_states(Y, t, self.n_states_), None if whole else LONGEST_PIECE)
        check_count(n_times, "n_times", 1, pieces.times.shape[1] - 1, "a piece has so few later observations")
        if len(pieces.times) < 2:
            raise ValueError(
                f"there is only {len(pieces.times)} path or piece of one; a diagnosis needs at least two, "
                "better a hundred."
            )
        return pieces.take(np.sort(rng.permutation(len(pieces.times))[:PIECES]))

    def simulate_pieces(self, pieces: Pieces, n_samples: int, rng: np.random.Generator) -> Array:
        """Draws (S, n, L, d) of the later observations of every piece."""
        start = np.tile(pieces.values[:, 0], (n_samples, 1))
        found = self._follow(start, np.tile(pieces.times, (n_samples, 1)), int(rng.integers(2**31)))
        return found[:, 1:].reshape(n_samples, *pieces.values[:, 1:].shape)

    def coefficients_along(
        self,
        Y: Any,
        t: Any,
        *,
        n_points: int = 101,
        coverage: float = 0.9,
        n_samples: int = 400,
        random_state: Any = None,
    ) -> CoefficientCurves:
        """Drift and diffusion along each state, over the observed states of paths Y at times t.

        For ``localw2.plots.coefficients``. The curves go from the 0.5 % to the 99.5 % quantile of each state;
        ``coverage`` is that of a band: over ``n_samples`` draws of paths if parameters vary between them, or
        by ``standard_errors`` if drift and diffusion are networks and there are no jumps.
        """
        check_is_fitted(self, "equation_")
        number, time, states = read_states(Y, t, self.n_states_)
        rng = np.random.default_rng(draw_seed(random_state))
        d = self.n_states_
        ends = np.quantile(states, [0.005, 0.995], axis=0)
        place = np.linspace(ends[0], ends[1], check_count(n_points, "n_points", 2)).T
        typical = np.median(states, axis=0)
        seed = int(rng.integers(2**31))
        parts = []
        for j in range(d):
            line = np.tile(typical, (place.shape[1], 1))
            line[:, j] = place[j]
            parts.append([c[..., j] for c in self._draw_coefficients(line, n_samples, seed)])
        levels = [0.5, (1 - coverage) / 2, (1 + coverage) / 2]
        drift, diffusion = (
            np.stack([np.quantile(part[k], levels, axis=0) for part in parts], 1) for k in (0, 1)
        )
        rate = None
        if self.equation_.jumps is not None:
            rate = np.stack([self.jump_rate(_along(typical, j, place[j])) for j in range(d)])
        curves = place, drift, diffusion, rate, coverage, self.equation_.n_random > 0, states
        if getattr(self, "noise", None) is not None:
            return CoefficientCurves(*curves, None)
        rows = TransitionRows.of(number, time, states)
        bins = self._bin(rows, place, drift[0], diffusion[0], rng)
        sure = getattr(self, "_errors", None) is not None
        if sure:
            half = float(stats.norm.ppf((1 + coverage) / 2))
            errors = [self.standard_errors(_along(typical, j, place[j])) for j in range(d)]
            wide = [half * np.stack([part[k][:, j] for j, part in enumerate(errors)]) for k in (0, 1)]
            drift[1:] = drift[0] - wide[0], drift[0] + wide[0]
            diffusion[1:] = np.maximum(diffusion[0] - wide[1], 0.0), diffusion[0] + wide[1]
        return CoefficientCurves(*curves, bins, sure)

    def long_run(self, Y: Any, t: Any, *, n_samples: int = LONG_PATHS, random_state: Any = None) -> LongRun:
        """Where paths are in the long run, beside the observed states of paths Y at times t.

        Paths from observed states are simulated until those from the lower and those from the upper half of
        each state have the same distribution, and it is that of half the time (Kolmogorov-Smirnov tests at
        1 %). A process without a long run, such as geometric Brownian motion, never settles; see ``settled``.
        """
        check_is_fitted(self, "equation_")
        n_samples = check_count(n_samples, "n_samples", 100, why="fewer paths do not show a distribution")
        number, time, seen = read_states(Y, t, self.n_states_)
        rows = TransitionRows.of(number, time, seen)
        rng = np.random.default_rng(draw_seed(random_state))
        start = seen[rng.integers(0, len(seen), n_samples)]
        omega = self._omega(n_samples, int(rng.integers(2**31)))
        now, elapsed = start, 0.0
        stretch, settled = FIRST_LAGS * float(np.median(rows.lag)), False
        begin, most = float(time.max()), LONG_STEPS * self.step_
        while not settled and elapsed + stretch <= most:
            before, now = now, self._go_on(now, begin + elapsed, stretch, omega, rng)
            elapsed += stretch
            stretch = elapsed  # twice as long each time
            settled = (
                float(_are_escaped(now, seen).mean()) <= MOST_ESCAPED
                and _are_alike(before, now)
                and _spread_alike(before, now)
                and _has_forgotten(start, now)
            )
        found = [now]
        pause = min(elapsed, most / 4) / POOLED
        for _ in range(POOLED - 1 if settled else 0):
            now = self._go_on(now, begin + elapsed, pause, omega, rng)
            found.append(now)
        states = np.concatenate(found)
        gone = _are_escaped(states, seen)
        return LongRun(states[~gone], seen, elapsed, settled, float(gone.mean()))

    def compare_transitions(self, Y: Any, t: Any, *, random_state: Any = None) -> ComparedTransitions:
        """Observed increments beside simulated ones with and without jumps, for ``localw2.plots.jumps``."""
        check_is_fitted(self, "equation_")
        equation = self.equation_
        if equation.jumps is None:
            raise ValueError("this equation was fitted without jumps; set jumps='normal' or 'mlp'.")
        rng = np.random.default_rng(draw_seed(random_state))
        rows = TransitionRows.of(*read_states(Y, t, self.n_states_))
        some = rows.take(np.sort(rng.permutation(len(rows))[:COMPARED_ROWS]))
        smooth = StochasticEquation(
            equation.drift, equation.diffusion, None, equation.law, equation.bounds
        ).eval()
        simulated = self._simulate_rows(some, COMPARED_DRAWS, equation, rng)
        without = self._simulate_rows(some, COMPARED_DRAWS, smooth, rng)
        rest = some.increment - self.drift(some.state) * some.lag[:, None]
        spread = _row_spread(self.diffusion(some.state)) * np.sqrt(some.lag)[:, None]
        likely = (np.abs(rest) > JUMPED * spread).any(1)
        sizes = self._draw_sizes(some.state, rng)
        usual = float(np.median(rows.lag))
        return ComparedTransitions(some.increment, simulated, without, sizes, rest[likely], usual)

    # Simulation

    @torch.no_grad()
    def _follow(
        self, start: Array, times: Array, seed: int, equation: StochasticEquation | None = None
    ) -> Array:
        """Paths (n, T, d) from states (n, d), at own times (n, T) of each."""
        equation = self.equation_ if equation is None else equation
        generator = torch.Generator().manual_seed(seed)
        states, when = self._states(start, "y0"), torch.from_numpy(times)
        found = []
        for rows, own in zip(states.split(CHUNK), when.split(CHUNK), strict=True):
            omega = equation.law.draw(len(rows), generator) if equation.n_random and equation.law else None
            found.append(follow(equation, rows, own, self.step_, omega, generator))
        paths: Array = torch.cat(found).double().numpy()
        return paths

    @torch.no_grad()
    def _go_on(self, now: Array, begin: float, length: float, omega: Any, rng: np.random.Generator) -> Array:
        """States (n, d) after a stretch of time, of paths with these parameters."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        times = torch.tensor([begin, begin + length], dtype=torch.float64).expand(len(now), -1)
        held = np.where(np.isfinite(now), now, 0.0)
        later = follow(self.equation_, self._states(held, "y0"), times, self.step_, omega, generator)[:, -1]
        found: Array = np.where(np.isfinite(now), later.double().numpy(), np.nan)
        return found

    def _omega(self, n: int, seed: int) -> Any:
        law = self.equation_.law
        if law is None or not self.equation_.n_random:
            return None
        return law.draw(n, torch.Generator().manual_seed(seed))

    def _simulate_rows(
        self, rows: TransitionRows, n_draws: int, equation: StochasticEquation, rng: np.random.Generator
    ) -> Array:
        """Increments (n_draws R, d) of the same states and lags."""
        times = np.tile(np.column_stack([rows.time, rows.time + rows.lag]), (n_draws, 1))
        start = np.tile(rows.state, (n_draws, 1))
        found: Array = self._follow(start, times, int(rng.integers(2**31)), equation)[:, 1] - start
        return found

    # Coefficients

    @torch.no_grad()
    def _draw_coefficients(self, y: Array, n_samples: int, seed: int) -> tuple[Array, Array]:
        """Drift and diffusion (S, N, d) at states y (N, d), of random paths; S = 1 if none is random."""
        equation = self.equation_
        if not equation.n_random:
            return self.drift(y)[None], _row_spread(self.diffusion(y))[None]
        values = equation.values(n_samples, self._omega(n_samples, seed))
        each = {name: value.repeat_interleave(len(y)) for name, value in values.items()}
        states = equation.inside(self._states(np.tile(y, (n_samples, 1)), "y"))
        at = torch.zeros(len(states)).to(states)
        drift = equation.drift(at, states, each).double().numpy().reshape(n_samples, *y.shape)
        diffusion = _row_spread(equation.diffusion(at, states, each).double().numpy())
        return drift, diffusion.reshape(n_samples, *y.shape)

    @torch.no_grad()
    def _draw_sizes(self, y: Array, rng: np.random.Generator) -> Array:
        """Sizes of jumps (K, d), each from a state where one happens."""
        jumps = self.equation_.jumps
        assert jumps is not None
        rate = self.jump_rate(y)
        share = rate / rate.sum() if rate.sum() > 0 else np.full(len(y), 1 / len(y))
        states = self._states(y[rng.choice(len(y), LONG_PATHS, p=share)], "y")
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        values = self.equation_.values(len(states), self._omega(len(states), int(rng.integers(2**31))))
        z = torch.randn(states.shape, generator=generator, dtype=states.dtype)
        found: Array = jumps.size(torch.zeros(len(states)).to(states), states, values, z).double().numpy()
        return found

    def _bin(
        self, rows: TransitionRows, place: Array, drift: Array, diffusion: Array, rng: np.random.Generator
    ) -> list[tuple[Array, Array, Array, Array, Array]]:
        """Partial residuals: the curves plus what observed transitions in bins show beyond simulated ones.

        Simulated ones have the same states and lags, so that their finite lag does not matter.
        """
        some = rows.take(np.sort(rng.permutation(len(rows))[:COMPARED_ROWS]))
        drawn = self._simulate_rows(some, COMPARED_DRAWS, self.equation_, rng)
        drawn = drawn.reshape(COMPARED_DRAWS, *some.increment.shape)
        jumps = self.equation_.jumps is not None
        count = min(BINS, len(some) // FEWEST_IN_BIN)
        noise = np.sqrt(1 + 1 / COMPARED_DRAWS)  # simulated means and spreads have errors too
        found = []
        for j in range(self.n_states_):
            order = np.argsort(some.state[:, j], kind="stable")
            lines = []
            for part in np.array_split(order, count) if count else []:
                lag = some.lag[part]
                seen, made = some.increment[part, j], drawn[:, part, j]
                speed, modelled = seen / lag, (made / lag).mean()
                error = speed.std(ddof=1) * noise / np.sqrt(len(part))
                # Jumps hardly move the middle half.
                wide = _middle_half if jumps else np.std
                relative = (1.17 if jumps else 0.71) * noise / np.sqrt(len(part))
                spread = wide(seen / np.sqrt(lag)) / max(wide(made / np.sqrt(lag)), 1e-300)
                at = float(some.state[part, j].mean())
                here = np.interp(at, place[j], drift[j]), np.interp(at, place[j], diffusion[j])
                lines.append(
                    [
                        at,
                        here[0] + speed.mean() - modelled,
                        error,
                        here[1] * spread,
                        here[1] * spread * relative,
                    ]
                )
            columns = np.array(lines).reshape(-1, 5).T
            found.append((columns[0], columns[1], columns[2], columns[3], columns[4]))
        return found


@final
@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of paths of the same number of observations: times (n, L + 1) and values (n, L + 1, d)."""

    times: Array
    values: Array

    @classmethod
    def of(cls, number: Array, time: Array, values: Array, longest: int | None) -> Pieces:
        """Cut paths, also at gaps, into pieces of as many lags as give 300 of them, at most ``longest``.

        With None the pieces are whole paths, as long as the shortest.
        """
        lag, same = np.diff(time), np.diff(number) == 0
        usual = float(np.median(lag[same])) if same.any() else 0.0
        gap = ~same if longest is None else ~same | (lag > LONGEST_LAG * usual * (1 + 1e-9))
        runs = np.split(np.arange(len(time)), np.flatnonzero(gap) + 1)
        runs = [run for run in runs if len(run) > 1]
        if longest is None:
            length = min((len(run) - 1 for run in runs), default=1)
            chosen = [run[: length + 1] for run in runs]
        else:
            lags = sum(len(run) - 1 for run in runs)
            length = int(np.clip(lags // PIECES, 2, longest))
            length = max(1, min(length, max((len(run) - 1 for run in runs), default=1)))
            starts = [(run, k) for run in runs for k in range(0, len(run) - length, length)]
            chosen = [run[k : k + length + 1] for run, k in starts]
        places = np.array(chosen, dtype=int).reshape(-1, length + 1)
        return cls(time[places], values[places])

    def take(self, chosen: Array) -> Pieces:
        """Some of the pieces."""
        return Pieces(self.times[chosen], self.values[chosen])

    def diagnose(
        self, draws: Array, seed: int, n_times: int = 2, names: Any = None, **settings: Any
    ) -> Diagnosis:
        """The diagnosis of draws (S, n, L, d) at ``n_times`` of the later observations.

        ``names`` are those of the states.
        """
        length = self.times.shape[1] - 1
        at = np.ceil(np.arange(1, n_times + 1) * length / n_times).astype(int) - 1
        later = self.values[:, 1:]
        y = later[:, at].reshape(len(later), -1)
        samples = draws[:, :, at].reshape(*draws.shape[:2], -1)
        elapsed = (self.times[:, 1:] - self.times[:, :1])[:, at]
        columns = [f"y{j}" for j in range(later.shape[2])] if names is None else list(names)
        columns = [f"first {name}" for name in columns] + [f"time {k + 1}" for k in range(n_times)]
        x = np.column_stack([self.values[:, 0], elapsed])
        # Lags that differ by rounding only are one.
        kept = np.ptp(x, axis=0) > 1e-9 * np.abs(x).max(0)
        kept[0] |= not kept.any()
        used = [name for name, own in zip(columns, kept, strict=True) if own]
        return diagnose(x[:, kept], y, samples, names=used, random_state=seed, **settings)


def read_long_table(
    frame: Any, subject: str | None, time: str, observed: Any, source: str = "the table"
) -> LongTable:
    """A long table, all of whose rows are one path if no column says to which path each belongs."""
    if subject is None:
        columns = {str(name): frame[name] for name in getattr(frame, "columns", frame)}
        moments = [str(moment) for moment in columns.get(time, ())]
        if len(set(moments)) < len(moments):
            raise ValueError(
                f"{source} has several rows with the same {time}, but without a column that says to which "
                "path a row belongs all rows are one path. Name this column: subject, or --id on the command "
                "line."
            )
        subject = "path"
        while subject in columns:
            subject += "_"
        frame = columns | {subject: np.zeros(max(map(len, columns.values()), default=0), dtype=int)}
    return LongTable.of(frame, source=source, subject=subject, time=time, observed=observed)


def read_states(Y: Any, t: Any, n_states: int) -> tuple[Array, Array, Array]:
    """Number of the path (N,), time (N,) and state (N, d) of complete observations, by path and time."""
    data = Trajectories.of(*one_among_paths(Y, t), partly=True, fewest=1)
    if data.values.shape[1] != n_states:
        raise ValueError(f"Y has {data.values.shape[1]} state(s), but the model has {n_states}.")
    complete = np.isfinite(data.values).all(1)
    number, time, values = data.number[complete], data.time[complete] + data.t0, data.values[complete]
    order = np.lexsort((time, number))
    if len(order) < 2 or not (np.diff(number[order]) == 0).any():
        raise ValueError("no path has two complete observations, between which a state could move.")
    return number[order], time[order], values[order]


def _along(typical: Array, j: int, place: Array) -> Array:
    """States (G, d) along one of them, with the others at typical values."""
    line = np.tile(typical, (len(place), 1))
    line[:, j] = place
    return line


def _row_spread(diffusion: Array) -> Array:
    """The SD (N, d) of each state per root of time, of a diagonal or full diffusion."""
    found: Array = np.sqrt((diffusion**2).sum(2)) if diffusion.ndim == 3 else np.abs(diffusion)
    return found


def _middle_half(values: Array) -> float:
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low)


def _are_escaped(states: Array, seen: Array) -> Array:
    """Which states (S,) are not numbers, or far from all that was observed."""
    low, high = seen.min(0), seen.max(0)
    reach = ESCAPED * np.maximum(high - low, 1e-300)
    gone: Array = ~((states >= low - reach) & (states <= high + reach)).all(1)
    return gone


def _has_forgotten(start: Array, now: Array) -> bool:
    """Whether paths from the lower and the upper half of the starts of each state are alike now."""
    halves = [column > np.median(column) for column in start.T]
    return all(
        _are_alike(now[~upper], now[upper]) for upper in halves if 10 <= upper.sum() <= len(upper) - 10
    )


def _are_alike(first: Array, second: Array) -> bool:
    """Whether no state of two samples (m, d) and (n, d) differs, by Kolmogorov-Smirnov tests at 1 %."""
    critical = _KS_CRITICAL * np.sqrt((len(first) + len(second)) / (len(first) * len(second)))
    for one, other in zip(np.sort(first, axis=0).T, np.sort(second, axis=0).T, strict=True):
        both = np.concatenate([one, other])
        steps = [np.searchsorted(part, both, side="right") / len(part) for part in (one, other)]
        if float(np.abs(steps[0] - steps[1]).max()) > critical:
            return False
    return True


def _spread_alike(first: Array, second: Array) -> bool:
    """Whether the SDs of all states of two samples are nearly the same."""
    one, other = (np.maximum(part.std(0), 1e-300) for part in (first, second))
    return bool((np.abs(np.log(other / one)) < SPREAD_CHANGE).all())
