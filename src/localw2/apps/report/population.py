"""The report on a population: parameters with intervals, predictive check, residuals, single subjects."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2 import plots
from localw2._validation import check_count
from localw2._wording import as_html, as_label
from localw2.apps.report import figures, parts
from localw2.judging.inputs import Input
from localw2.judging.seen_rows import SeenRowsWarning

if TYPE_CHECKING:
    from localw2.estimators.dynamics.population.observed import Observed
    from localw2.estimators.dynamics.population.population import Population
    from localw2.estimators.dynamics.population.residuals import Residuals
    from localw2.judging.diagnosis.diagnose import Diagnosis

GRID = 80  # times of curves
MOST_SUBJECTS = 12  # panels of individual fits
_COLUMNS = 4


@final
@dataclass(frozen=True, eq=False)
class _Subjects:
    """A fitted population and subjects to judge it by, with what describes them to its methods."""

    model: Any
    observed: Observed
    arguments: tuple[Any, ...]
    design: dict[str, Any]
    names: list[str]
    time: str
    n_samples: int
    seed: int

    def ask(self, method: str, **settings: Any) -> Any:
        """What a method of the model says of the subjects."""
        own = {"n_samples": self.n_samples, "random_state": self.seed} | settings
        return getattr(self.model, method)(*self.arguments, **self.design, **own)


def report_population(
    model: Any,
    Y: Any,
    t: Any = None,
    *,
    y0: Any = None,
    doses: Any = None,
    covariates: Any = None,
    inputs: Any = None,
    state_names: Sequence[str] | None = None,
    time_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    source: str | None = None,
    n_samples: int = 200,
    random_state: int = 0,
) -> str:
    """The report as a string: see ``localw2.apps.report.report_html``.

    ``state_names`` and ``time_name`` are labels, with their units.
    """
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws do not show a distribution")
    design = {"doses": doses, "covariates": covariates, "inputs": inputs}
    seen: Observed = model.read_subjects(Y, t, y0, doses, covariates, inputs)
    names = seen.quantities if state_names is None else list(state_names)
    names = parts.name_columns(names, seen.values.shape[2], "y", "state_names")
    columns = getattr(model, "table_columns_", None)
    when = time_name or ("time" if columns is None else columns.time)
    subjects = _Subjects(model, seen, (Y, t, y0), design, names, when, n_samples, random_state)
    diagnosis = _diagnose(subjects)
    residuals = None if not hasattr(model, "noise_") else subjects.ask("residuals")
    head = f"{len(seen.subjects)} subjects"
    body = [
        parts.lead(model, head, source),
        _warn_of_training(model, Y),
        "" if diagnosis is None else parts.verdict(diagnosis),
        "" if diagnosis is None else parts.number_outputs(_moments(names)),
        _tiles(subjects, residuals),
        "<h2>Population</h2>",
        *_parameters(model.population_),
        "<h2>Visual predictive check</h2>",
        *_predictive_check(subjects),
        *([] if residuals is None else _residuals(subjects, residuals)),
        *([] if residuals is None else _individuals(subjects)),
        *([] if diagnosis is None else _trust(diagnosis, names)),
        "<h2>Data</h2>",
        _data(subjects),
        "<h2>Model</h2>",
        *parts.model_parts(model, settings),
        "<h2>Citation and reproduction</h2>",
        parts.reproduce(source),
    ]
    return parts.page(f"Population of {parts.join_names(names)}", body)


def _moments(names: list[str]) -> list[str]:
    return [f"{name} {when}" for when in ("halfway", "at the end") for name in names]


def _diagnose(subjects: _Subjects) -> Diagnosis | None:
    """The diagnosis of two observations of each subject, if all have them."""
    counts = np.isfinite(subjects.observed.values).sum(1)
    if counts.min() < 2 or len(counts) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeenRowsWarning)  # the page says it at its top
        found: Diagnosis = subjects.ask("diagnose")
    return found


def _warn_of_training(model: Any, Y: Any) -> str:
    """A warning if the model was trained on these subjects; of ragged ones nothing is known."""
    paths = getattr(Y, "Y", Y)
    try:
        values = np.asarray(paths, dtype=np.float64)
    except (TypeError, ValueError):  # lists of unequal length, or a frame
        return ""
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3:
        return ""
    return parts.warn_of_training(model, np.nan_to_num(values[:, 0]), values, "subjects")


def _tiles(subjects: _Subjects, residuals: Residuals | None) -> str:
    seen = subjects.observed
    items = [
        (str(len(seen.subjects)), "subjects"),
        (str(int(np.isfinite(seen.values).sum())), "observations"),
    ]
    if residuals is not None:
        for c, name in enumerate(subjects.names):
            own = residuals.quantity == c
            of = f" of {as_html(name)}" if len(subjects.names) > 1 else ""
            inside = np.abs(residuals.normalised[own]) <= 1.645
            error = np.sqrt(np.mean((residuals.observed - residuals.individual)[own] ** 2))
            items += [
                (f"{100 * inside.mean():.1f} %", f"of observations{of} inside their 90 % interval"),
                (f"{error:.4g}", f"root mean squared error{of} of individual predictions"),
            ]
    return parts.tiles(items)


def _parameters(population: Population) -> list[str]:
    """The table of the population: estimates, intervals, shrinkage and the two-stage estimate."""
    lines = []
    for each in population.quantities:
        low, high = each.interval
        alone = (population.two_stage or {}).get(each.parameter)
        place = {"typical": 0, "spread": 1}.get(each.kind)
        lines.append(
            [
                population.describe(each),
                f"{each.value:.4g}",
                f"{each.error:.3g}" if np.isfinite(each.error) else "",
                f"{low:.3g} to {high:.3g}" if np.isfinite(low + high) else "",
                f"{100 * population.shrinkage[each.parameter]:.0f} %"
                if each.kind == "spread" and each.parameter in population.shrinkage
                else "",
                "" if alone is None or place is None else f"{alone[place]:.4g}",
            ]
        )
    head = ["", "estimate", "standard error", "90 % interval", "shrinkage", "two-stage"]
    words = (
        "Typical values are means, or medians of log-normal parameters; SD is between subjects. Shrinkage: "
        "how much less subjects' own most probable values vary than the population; near 100 % their own "
        "data hardly tell. Two-stage: least squares for each subject alone."
    )
    words = " ".join([words, *map(as_html, population.remarks())])
    return [parts.table(head, lines), f'<p class="soft">{words}</p>']


def _predictive_check(subjects: _Subjects) -> list[str]:
    check = subjects.ask("predictive_check")
    count = len(subjects.names)
    columns = min(count, 2)
    rows = -(-count // columns)
    figure, axes = figures.new_figure(7.5, 3.4 * rows + 0.4, rows, columns)
    for spare in axes.ravel()[count:]:
        spare.set_visible(False)
    plots.predictive_check(check, subjects.names, subjects.time, axes.ravel()[:count])
    words = (
        "Lines are quantiles of the observations in bins of time; shaded are 90 % intervals of the same "
        f"quantiles in {subjects.n_samples} simulated data sets with the same times, doses and covariates. "
        "Where a line leaves its shade, the model misses something."
    )
    return [f"<p>{words}</p>", parts.figure(figure, "vpc", "Visual predictive check")]


def _residuals(subjects: _Subjects, residuals: Residuals) -> list[str]:
    words = (
        "First row: predictions of the population, and ranks of the observations among simulated ones as "
        "standard normal numbers. Second row: predictions of each subject given its data, and residuals in "
        "SDs of the noise. Nine of ten should lie between the dashed lines, everywhere."
    )
    found = ["<h2>Residuals</h2>", f"<p>{words}</p>"]
    for c, name in enumerate(subjects.names):
        figure, axes = figures.new_figure(9.6, 6, 2, 3)
        plots.residuals(residuals, c, name, subjects.time, axes)
        if len(subjects.names) > 1:
            found.append(f"<h3>{as_html(name)}</h3>")
        found.append(parts.figure(figure, f"residuals{c}", f"Residuals of {name}"))
    return found


def _individuals(subjects: _Subjects) -> list[str]:
    seen = subjects.observed
    grid = np.linspace(seen.t0, seen.t0 + float(seen.times[seen.there].max()), GRID)
    predicted = subjects.ask("individual_predictions", at=grid)
    n = min(len(seen.subjects), MOST_SUBJECTS)
    columns = min(n, _COLUMNS)
    rows = -(-n // columns)
    shown = "" if n == len(seen.subjects) else f" The first {n} of {len(seen.subjects)} are shown."
    words = (
        "The prediction for each subject given its observations, with its 90 % band (without errors of "
        f"measurement), and the mean of the population with the same doses and covariates.{shown}"
    )
    found = ["<h2>Single subjects</h2>", f"<p>{words}</p>"]
    for c, name in enumerate(subjects.names):
        figure, axes = figures.new_figure(9.6, 1.9 * rows + 0.7, rows, columns)
        for ax in axes.ravel()[1:n]:
            ax.sharex(axes[0, 0])
            ax.sharey(axes[0, 0])
        for spare in axes.ravel()[n:]:
            spare.set_visible(False)
        plots.individual_fits(predicted, seen.paths(), c, axes=axes.ravel()[:n])
        figure.supxlabel(as_label(subjects.time), fontsize=10)
        figure.supylabel(as_label(name), fontsize=10)
        found.append(parts.figure(figure, f"subjects{c}", f"Individual predictions of {name}"))
    return found


def _trust(diagnosis: Diagnosis, names: list[str]) -> list[str]:
    outputs = {k + len(names): f"{name} at the end" for k, name in enumerate(names)}
    return ["<h2>Can it be trusted?</h2>", *parts.trust(diagnosis, outputs)]


def _data(subjects: _Subjects) -> str:
    seen = subjects.observed
    columns: dict[str, Any] = {
        "observations per subject": seen.there.sum(1).astype(float),
        subjects.time: (seen.times + seen.t0)[seen.there],
    }
    columns |= {name: seen.values[seen.there][:, c] for c, name in enumerate(subjects.names)}
    if seen.design["doses"] is not None:
        columns["total dose"] = seen.amounts()
    columns |= {name: values.numpy() for name, values in seen.cohort().covariates.items()}
    return parts.columns_tables([(Input(name, "number"), values) for name, values in columns.items()])[0]
