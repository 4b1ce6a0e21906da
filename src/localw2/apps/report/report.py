"""One self-contained HTML file about a fit: what it says of rows that it has not seen, in words and pictures.

Nothing in the file is fetched from elsewhere and nothing in it runs: text, tables and SVG pictures, readable
on paper and on a phone, light and dark.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array, as_rows, check_count
from localw2.apps.report import figures as pictures
from localw2.apps.report import parts
from localw2.apps.report.trajectories import trajectory_report_html
from localw2.estimators.judged import warn_of_seen
from localw2.estimators.regression.balls import standardised
from localw2.estimators.tables import on_numbers
from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
from localw2.judging.seen_rows import SeenRowsWarning
from localw2.storage.atomic import replace_file


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
    trained_on: str
    features: list[str]
    targets: list[str]


def write_report(path: Any, model: Any, X: Any, y: Any, **settings: Any) -> Path:
    """Write the report of ``page_of`` to a file; returns its path.

    The file is complete in itself, and comes under its name only when it is whole.
    """
    target = Path(path)
    replace_file(target, page_of(model, X, y, **settings).encode())
    return target


def page_of(model: Any, X: Any, y: Any, **settings: Any) -> str:
    """A report on a fitted model, judged by rows X (N, p), y (N,) or (N, d), as a string.

    For a ``LocalW2ODE`` X and y are trajectories Y and their times t, as its ``fit`` takes them. ``settings``
    are those of ``report_html`` or ``trajectory_report_html``.
    """
    made = trajectory_report_html if hasattr(model, "sample_field") else report_html
    return made(model, X, y, **settings)


def report_html(
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
    """The report on a regressor as a string.

    The rows should be new to the model; if it was fitted to them the report says so at the top. ``settings``
    and ``source`` (a file's name, a command) are shown as they are.
    """
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws show no law")
    model, X, feature_names = on_numbers(model, X, feature_names)
    seen = _judge(model, X, y, feature_names, target_names, n_samples, random_state)
    body = [
        parts.lead(model, f"{len(seen.X)} rows", source),
        parts.warning(seen.trained_on),
        parts.verdict(seen.diagnosis),
        parts.numbered(seen.targets),
        _tiles(seen),
        "<h2>Predicted and observed</h2>",
        *_predictions(seen),
        "<h2>Distributions at chosen inputs</h2>",
        *_laws(seen, model, random_state),
        "<h2>Can it be trusted?</h2>",
        *_trust(seen),
        "<h2>The data</h2>",
        parts.columns_table(dict(zip([*seen.features, *seen.targets], [*seen.X.T, *seen.y.T], strict=True))),
        "<h2>The model</h2>",
        *parts.model_parts(model, settings),
        "<h2>Cite and reproduce</h2>",
        parts.reproduce(source),
    ]
    return parts.page(f"{', '.join(seen.targets)} given {parts.listed(seen.features)}", body)


def _judge(
    model: Any, X: Any, y: Any, features: Any, targets: Any, n_samples: int, random_state: Any
) -> _Judged:
    if not hasattr(model, "sample") or not hasattr(model, "predict_interval"):
        raise ValueError(
            f"a {type(model).__name__} cannot be reported on; give a fitted LocalW2Regressor, "
            "RandomCoefficientRegressor or LocalW2ODE."
        )
    if features is None:
        features = getattr(X, "columns", getattr(model, "feature_names_in_", None))
    rows, outputs = as_rows(X).astype(np.float64), as_array(y, "y").astype(np.float64)
    outputs = outputs.reshape(len(outputs), -1)
    features = parts.column_names(features, rows.shape[1], "x", "feature_names")
    targets = parts.column_names(targets, outputs.shape[1], "y", "target_names")
    # The frame of a fit with names would be asked for by scikit-learn; the names were matched by the caller.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draws = model.sample(rows, n_samples, random_state=random_state)
        mean = model.predict(rows).reshape(outputs.shape)
        lower, upper = (end.reshape(outputs.shape) for end in model.predict_interval(rows, 0.9))
        warn_of_seen(model, rows, y)
        diagnosis = diagnose(y, draws, rows, names=features, random_state=random_state)
    trained_on = next((str(w.message) for w in caught if issubclass(w.category, SeenRowsWarning)), "")
    draws = draws.reshape(n_samples, *outputs.shape)
    return _Judged(rows, outputs, draws, mean, lower, upper, diagnosis, trained_on, features, targets)


def _tiles(seen: _Judged) -> str:
    """The numbers that people ask for first, output by output."""
    items = []
    for k, name in enumerate(seen.targets):
        residual = seen.y[:, k] - seen.mean[:, k]
        inside = ((seen.y[:, k] >= seen.lower[:, k]) & (seen.y[:, k] <= seen.upper[:, k])).mean()
        width = (seen.upper[:, k] - seen.lower[:, k]).mean()
        of = f" of {escape(name)}" if len(seen.targets) > 1 else ""
        items += [
            (f"{np.sqrt((residual**2).mean()):.4g}", f"root mean square error{of}"),
            (f"{seen.diagnosis.crps[k]:.4g}", f"CRPS{of} (lower is better)"),
            (f"{100 * inside:.1f} %", f"of rows in their 90 % interval{of}"),
            (f"{width:.4g}", f"mean width of 90 % intervals{of}"),
        ]
    items.append(parts.skill(seen.diagnosis, "the inputs"))
    return parts.tiles(items)


def _predictions(seen: _Judged) -> list[str]:
    found = []
    for k, name in enumerate(seen.targets):
        columns = (seen.y[:, k], seen.mean[:, k], seen.lower[:, k], seen.upper[:, k])
        picture = pictures.observed_against_predicted(*columns, name)
        found.append(
            parts.figure(picture, f"rows{k}", f"Observed {name} and its predicted mean and interval")
        )
    return found


def _laws(seen: _Judged, model: Any, random_state: Any) -> list[str]:
    norm = getattr(model, "norm_", None) or standardised(seen.X)
    embedded = norm.embed(seen.X - seen.X.mean(0))
    chosen, near = pictures.places(seen.mean[:, 0], embedded)
    draws = model.sample(seen.X[chosen], 4000, random_state=random_state).reshape(4000, len(chosen), -1)
    head = ["", *seen.features, *(f"mean of {name}" for name in seen.targets)]
    letters = "ABCDEFGH"
    lines = [
        [letters[i], *(f"{v:.4g}" for v in seen.X[row]), *(f"{v:.4g}" for v in seen.mean[row])]
        for i, row in enumerate(chosen)
    ]
    found = [
        f"<p>Draws of the model at {len(chosen)} rows, from a low to a high predicted mean. Beside them what "
        f"was observed in the {near.shape[1]} rows nearest to each (outline and marks), moved by the "
        "difference of the predicted means, since these rows have inputs of their own.</p>"
    ]
    for k, name in enumerate(seen.targets):
        titles = [f"{letters[i]}: mean {seen.mean[row, k]:.4g}" for i, row in enumerate(chosen)]
        moved = seen.y[near, k] - seen.mean[near, k] + seen.mean[chosen, k][:, None]
        picture = pictures.laws(draws[..., k].T, moved, titles, name)
        found.append(parts.figure(picture, f"laws{k}", f"Draws of {name} at {len(chosen)} places"))
    return [*found, parts.table(head, lines)]


def _trust(seen: _Judged) -> list[str]:
    diagnosis = seen.diagnosis
    balls = pictures.ball_sizes(diagnosis.ball_sizes, diagnosis.delta)
    return [
        *parts.trust(diagnosis, dict(enumerate(seen.targets))),
        parts.figure(balls, "balls", "How many rows are near each row"),
    ]
