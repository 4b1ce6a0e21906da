"""The report on a random differential equation: simulated and observed trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, as_array, check_count
from localw2._wording import as_html
from localw2.apps.report import figures, joint, parts
from localw2.estimators.dynamics.started_paths import StartedPath, read_paths, simulate_paths
from localw2.judging.diagnosis.diagnose import diagnose
from localw2.judging.inputs import Input

if TYPE_CHECKING:
    from localw2.judging.diagnosis.diagnose import Diagnosis

JUDGED = 200  # trajectories that are simulated; more would take minutes and say nearly the same
GRID = 60  # times of the bands
_SHARED = 10  # trajectories observed at a time that suffice to show a distribution
LEVELS = (0.05, 0.95)


@final
@dataclass(frozen=True, eq=False)
class _Judged:
    """Trajectories, draws (S, T_i, p) at the times of each, and the verdict on their midpoints and ends."""

    paths: list[StartedPath]
    draws: list[Array]
    diagnosis: Diagnosis
    n_all: int
    states: list[str]

    def rows(self) -> Iterator[tuple[Array, Array]]:
        """Values (p,) and draws (S, p) of every observation except the first of each trajectory."""
        for path, draws in zip(self.paths, self.draws, strict=True):
            yield from zip(path.values, draws.transpose(1, 0, 2), strict=True)


def report_trajectories(
    model: Any,
    Y: Any,
    t: Any,
    *,
    state_names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    source: str | None = None,
    n_samples: int = 200,
    random_state: Any = 0,
) -> str:
    """The report as a string: see ``localw2.apps.report.report_html``.

    At most 200 trajectories, chosen at random, are simulated at their own times, each from its first complete
    observation. The states halfway and at the end are diagnosed.
    """
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws do not show a distribution")
    if getattr(model, "observe", None) is not None:
        raise ValueError(
            "this model observes only a part of its states, but a report needs all of them to start from."
        )
    rng = np.random.default_rng(random_state)
    seen = _judge(model, Y, t, state_names, n_samples, rng)
    some = f"{len(seen.paths)} trajectories"
    judged_by = some if seen.n_all == len(seen.paths) else f"{some} of the {seen.n_all}"
    body = [
        parts.lead(model, judged_by, source),
        _warn_of_training(model, Y),
        parts.verdict(seen.diagnosis),
        parts.number_outputs(_moments(seen.states)),
        _tiles(seen),
        "<h2>Simulations and observations</h2>",
        *_bands(seen, model, n_samples, rng),
        "<h2>Distributions over time</h2>",
        *_distributions(seen),
        *_joint(seen),
        "<h2>Can it be trusted?</h2>",
        *parts.trust(
            seen.diagnosis, {k + len(seen.states): f"{s} at the end" for k, s in enumerate(seen.states)}
        ),
        "<h2>Data</h2>",
        _data(seen),
        "<h2>Model</h2>",
        *parts.model_parts(model, settings),
        "<h2>Citation and reproduction</h2>",
        parts.reproduce(source),
    ]
    return parts.page(f"Trajectories of {parts.join_names(seen.states)}", body)


def _moments(states: list[str]) -> list[str]:
    return [f"{state} {when}" for when in ("halfway", "at the end") for state in states]


def _judge(model: Any, Y: Any, t: Any, names: Any, n_samples: int, rng: np.random.Generator) -> _Judged:
    every = list(read_paths(Y, t, int(model.n_states_)))
    if len(every) < 2:
        raise ValueError(
            f"only {len(every)} trajectories have two complete observations; a report needs at least two."
        )
    chosen = np.sort(rng.permutation(len(every))[:JUDGED])
    paths = [every[i] for i in chosen]
    draws = simulate_paths(model, paths, n_samples, rng)
    # As many outputs as states and moments: halfway and at the end of each trajectory.
    places = [(len(path.time) - 1) // 2 for path in paths], [len(path.time) - 1 for path in paths]
    y = np.hstack([np.stack([p.values[i] for p, i in zip(paths, at, strict=True)]) for at in places])
    samples = np.concatenate(
        [np.stack([d[:, i] for d, i in zip(draws, at, strict=True)], 1) for at in places], axis=-1
    )
    start = np.stack([path.start for path in paths])
    states = parts.name_columns(names, start.shape[1], "y", "state_names")
    initial = [f"initial {state}" for state in states]
    diagnosis = diagnose(start, y, samples, names=initial, random_state=int(rng.integers(2**31)))
    return _Judged(paths, draws, diagnosis, len(every), states)


def _warn_of_training(model: Any, Y: Any) -> str:
    """A warning if the model was trained on these trajectories; for ragged ones nothing is known."""
    try:
        paths = as_array(Y, "Y", missing=True)
    except ValueError:
        return ""
    paths = paths[..., None] if paths.ndim == 2 else paths
    return parts.warn_of_training(model, np.nan_to_num(paths[:, 0]), paths, "trajectories")


def _tiles(seen: _Judged) -> str:
    values, draws = (np.stack(part) for part in zip(*seen.rows(), strict=True))
    low, high = np.quantile(draws, LEVELS, axis=1)
    inside = ((values >= low) & (values <= high)).mean(0)
    error = np.sqrt(((values - draws.mean(1)) ** 2).mean(0))
    items = []
    for k, name in enumerate(seen.states):
        of = f" of {as_html(name)}" if len(seen.states) > 1 else ""
        items += [
            (f"{error[k]:.4g}", f"root mean squared error{of}"),
            (f"{100 * inside[k]:.1f} %", f"of observations inside their 90 % interval{of}"),
            (f"{(high - low)[:, k].mean():.4g}", f"mean width of the 90 % intervals{of}"),
        ]
    items.append(parts.describe_skill(seen.diagnosis, "the initial state"))
    return parts.tiles(items)


def _bands(seen: _Judged, model: Any, n_samples: int, rng: np.random.Generator) -> list[str]:
    first = min(path.start_time for path in seen.paths)
    begun = [path for path in seen.paths if path.start_time == first]
    grid = np.linspace(first, max(path.time[-1] for path in begun), GRID)
    draws = -(-n_samples // len(begun)) * 4  # enough in all for a smooth band
    start = np.stack([path.start for path in begun])
    lines = model.sample(start, grid, draws, random_state=int(rng.integers(2**31)))
    observed = [(np.append(p.start_time, p.time), np.vstack([p.start, p.values])) for p in seen.paths]
    picture = figures.draw_trajectories(grid, lines, observed, seen.states)
    words = (
        f"<p>Grey lines are observed trajectories. The band holds 90 % of the simulated ones at each time; "
        f"they start at t = {first:.4g} from the initial states of {len(begun)} observed trajectories.</p>"
    )
    return [words, parts.figure(picture, "bands", "Observed trajectories and the band of the simulated ones")]


def _distributions(seen: _Judged) -> list[str]:
    """Observed values and draws of the same trajectories, at a few times."""
    time = np.concatenate([path.time for path in seen.paths])
    values, draws = (np.stack(part) for part in zip(*seen.rows(), strict=True))
    chosen = _windows(time)
    titles = [_span(time[rows]) for rows in chosen]
    found = ["<p>Observed values early, midway and late, with the draws of the same trajectories.</p>"]
    for k, name in enumerate(seen.states):
        simulated = [draws[rows, :, k].ravel() for rows in chosen]
        picture = figures.draw_distributions(
            simulated, [values[rows, k] for rows in chosen], titles, name, "observed"
        )
        found.append(parts.figure(picture, f"laws{k}", f"Draws and observations of {name} over time"))
    return found


def _joint(seen: _Judged) -> list[str]:
    """How several states depend on each other at the end of the trajectories."""
    if len(seen.states) < 2:
        return []
    y = np.stack([path.values[-1] for path in seen.paths])
    found = joint.JointRows.of(y, np.stack([draws[:, -1] for draws in seen.draws], 1))
    return [
        "<h2>Dependence between states at the end</h2>",
        *joint.describe_joint(found, seen.states, "trajectory", "trajectories"),
    ]


def _windows(time: Array) -> list[Array]:
    """Observations at three times of a common grid, or in three windows of time if few share a time."""
    shared, counts = np.unique(time, return_counts=True)
    if np.median(counts) >= _SHARED:
        places = np.unique(np.ceil(len(shared) * np.array([1, 2, 3]) / 3).astype(int) - 1)
        return [np.flatnonzero(time == moment) for moment in shared[places]]
    window = np.searchsorted(np.quantile(time, [1 / 3, 2 / 3]), time, side="left")
    return [rows for k in range(3) if len(rows := np.flatnonzero(window == k)) > 1]


def _span(time: Array) -> str:
    low, high = time.min(), time.max()
    return f"t = {low:.4g}" if low == high else f"t = {low:.4g} to {high:.4g}"


def _data(seen: _Judged) -> str:
    lengths = np.array([len(path.time) + 1 for path in seen.paths])
    columns = {"observations per trajectory": lengths}
    columns["time"] = np.concatenate([np.append(path.start_time, path.time) for path in seen.paths])
    values = np.concatenate([np.vstack([path.start, path.values]) for path in seen.paths])
    columns |= {name: values[:, k] for k, name in enumerate(seen.states)}
    columns |= {
        f"initial {name}": np.array([path.start[k] for path in seen.paths])
        for k, name in enumerate(seen.states)
    }
    return parts.columns_tables([(Input(name, "number"), values) for name, values in columns.items()])[0]
