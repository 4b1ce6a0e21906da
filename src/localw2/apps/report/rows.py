"""The report on a regressor: what it says of observed rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, as_array, as_rows, check_count
from localw2.apps.report import figures, parts
from localw2.balls.norms import Weighted
from localw2.estimators.tables import on_numbers
from localw2.judging.diagnosis.diagnose import diagnose

if TYPE_CHECKING:
    from localw2.judging.diagnosis.diagnose import Diagnosis

_PLACE_DRAWS = 4000  # at each of the chosen inputs


@final
@dataclass(frozen=True, eq=False)
class _Judged:
    """Rows, what the model says of them, and the verdict; outputs are (N, d), draws (S, N, d)."""

    X: Array
    y: Array
    draws: Array
    mean: Array
    lower: Array
    upper: Array
    diagnosis: Diagnosis
    features: list[str]
    targets: list[str]


def report_rows(
    model: Any,
    X: Any,
    y: Any,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    source: str | None = None,
    n_samples: int = 400,
    random_state: Any = 0,
) -> str:
    """The report as a string: see ``localw2.apps.report.report_html``."""
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws do not show a distribution")
    if not hasattr(model, "sample") or not hasattr(model, "predict_interval"):
        raise ValueError(
            f"there is no report on a {type(model).__name__}; pass a fitted LocalW2Regressor, "
            "RandomCoefficientRegressor or LocalW2ODE."
        )
    model, X, feature_names = on_numbers(model, X, feature_names)
    if feature_names is None:
        feature_names = getattr(X, "columns", getattr(model, "feature_names_in_", None))
    if target_names is None:
        target_names = getattr(y, "columns", [y.name] if getattr(y, "name", None) else None)
    if hasattr(X, "columns"):
        model.predict(X[:1])  # scikit-learn checks the names of the columns and their order
    model = copy.copy(model)
    vars(model).pop("feature_names_in_", None)  # scikit-learn would warn of arrays without names
    judged = _judge(model, X, y, feature_names, target_names, n_samples, random_state)
    columns = zip([*judged.features, *judged.targets], [*judged.X.T, *judged.y.T], strict=True)
    body = [
        parts.lead(model, f"{len(judged.X)} rows", source),
        parts.warn_of_training(model, judged.X, y, "rows"),
        parts.verdict(judged.diagnosis),
        parts.number_outputs(judged.targets),
        _tiles(judged),
        "<h2>Predictions and observations</h2>",
        *_predictions(judged),
        "<h2>Distributions at selected inputs</h2>",
        *_distributions(judged, model, random_state),
        "<h2>Can it be trusted?</h2>",
        *parts.trust(judged.diagnosis, dict(enumerate(judged.targets))),
        parts.figure(
            figures.draw_ball_sizes(judged.diagnosis.ball_sizes, judged.diagnosis.delta),
            "balls",
            "Number of rows close to each row",
        ),
        "<h2>Data</h2>",
        parts.columns_table(dict(columns)),
        "<h2>Model</h2>",
        *parts.model_parts(model, settings),
        "<h2>Citation and reproduction</h2>",
        parts.reproduce(source),
    ]
    return parts.page(f"{', '.join(judged.targets)} given {parts.join_names(judged.features)}", body)


def _judge(
    model: Any, X: Any, y: Any, features: Any, targets: Any, n_samples: int, random_state: Any
) -> _Judged:
    rows, outputs = as_rows(X).astype(np.float64), as_array(y, "y").astype(np.float64)
    outputs = outputs.reshape(len(outputs), -1)
    features = parts.name_columns(features, rows.shape[1], "x", "feature_names")
    targets = parts.name_columns(targets, outputs.shape[1], "y", "target_names")
    draws = model.sample(rows, n_samples, random_state=random_state)
    mean = model.predict(rows).reshape(outputs.shape)
    lower, upper = (end.reshape(outputs.shape) for end in model.predict_interval(rows, 0.9))
    diagnosis = diagnose(rows, y, draws, names=features, random_state=random_state)
    draws = draws.reshape(n_samples, *outputs.shape)
    return _Judged(rows, outputs, draws, mean, lower, upper, diagnosis, features, targets)


def _tiles(judged: _Judged) -> str:
    """The numbers that people ask for first, output by output."""
    error = np.sqrt(((judged.y - judged.mean) ** 2).mean(0))
    inside = ((judged.y >= judged.lower) & (judged.y <= judged.upper)).mean(0)
    width = (judged.upper - judged.lower).mean(0)
    items = []
    for k, name in enumerate(judged.targets):
        of = f" of {escape(name)}" if len(judged.targets) > 1 else ""
        items += [
            (f"{error[k]:.4g}", f"root mean squared error{of}"),
            (f"{judged.diagnosis.crps[k]:.4g}", f"CRPS{of} (lower is better)"),
            (f"{100 * inside[k]:.1f} %", f"of rows inside their 90 % interval{of}"),
            (f"{width[k]:.4g}", f"mean width of the 90 % intervals{of}"),
        ]
    items.append(parts.describe_skill(judged.diagnosis, "the inputs"))
    return parts.tiles(items)


def _predictions(judged: _Judged) -> list[str]:
    found = []
    for k, name in enumerate(judged.targets):
        columns = (judged.y[:, k], judged.mean[:, k], judged.lower[:, k], judged.upper[:, k])
        picture = figures.draw_predictions(*columns, name)
        found.append(parts.figure(picture, f"rows{k}", f"Observed {name}, predicted means and intervals"))
    return found


def _distributions(judged: _Judged, model: Any, random_state: Any) -> list[str]:
    norm = getattr(model, "norm_", None) or Weighted.standardised(judged.X)
    embedded = norm.embed(judged.X - judged.X.mean(0))
    chosen, near = figures.choose_places(judged.mean[:, 0], embedded)
    draws = model.sample(judged.X[chosen], _PLACE_DRAWS, random_state=random_state)
    draws = draws.reshape(_PLACE_DRAWS, len(chosen), -1)
    head = ["", *judged.features, *(f"mean of {name}" for name in judged.targets)]
    letters = "ABCDEFGH"
    lines = [
        [letters[i], *(f"{v:.4g}" for v in judged.X[row]), *(f"{v:.4g}" for v in judged.mean[row])]
        for i, row in enumerate(chosen)
    ]
    found = [
        f"<p>The model's draws at {len(chosen)} rows, from a low to a high predicted mean. Outline and ticks "
        f"show the {near.shape[1]} observed rows nearest to each. Since these rows have other inputs, their "
        "values are shifted by the difference between the predicted means.</p>"
    ]
    for k, name in enumerate(judged.targets):
        titles = [f"{letters[i]}: mean {judged.mean[row, k]:.4g}" for i, row in enumerate(chosen)]
        shifted = judged.y[near, k] - judged.mean[near, k] + judged.mean[chosen, k][:, None]
        picture = figures.draw_distributions(draws[..., k].T, shifted, titles, name)
        found.append(parts.figure(picture, f"laws{k}", f"Draws of {name} at {len(chosen)} inputs"))
    return [*found, parts.table(head, lines)]
