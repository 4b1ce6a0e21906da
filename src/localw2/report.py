"""One self-contained HTML file about a fit: what it says of rows that it has not seen, in words and pictures.

Nothing in the file is fetched from elsewhere and nothing in it runs: text, tables and SVG pictures, readable
on paper and on a phone, light and dark.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import numpy as np

from localw2 import report_figures as pictures
from localw2._validation import Array, as_array, as_rows, check_count
from localw2.atomic_files import replace_file
from localw2.diagnostics import Diagnosis, diagnose
from localw2.estimators.choosing import standardised
from localw2.estimators.judging import warn_of_seen
from localw2.seen_rows import SeenRowsWarning

CITATION = (
    "M. Xia, Q. Shen: A local squared Wasserstein-2 method for efficient reconstruction of models with "
    "uncertainty. arXiv:2406.06825 (2024)"
)


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
    """Write a report on a fitted regressor, judged by rows X (N, p), y (N,) or (N, d); returns the path.

    ``settings`` are those of ``report_html``. The file is complete in itself, and comes under its name only
    when it is whole.
    """
    target = Path(path)
    replace_file(target, report_html(model, X, y, **settings).encode())
    return target


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
    """The report as a string.

    The rows should be new to the model; if it was fitted to them the report says so at the top. ``settings``
    and ``source`` (a file's name, a command) are shown as they are.
    """
    n_samples = check_count(n_samples, "n_samples", 40, why="fewer draws show no law")
    seen = _judge(model, X, y, feature_names, target_names, n_samples, random_state)
    title = f"{', '.join(seen.targets)} given {_listed(seen.features)}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">A random model of {_words(type(model).__name__)}, judged by {len(seen.X)} rows'
        + (f" of {escape(source)}" if source else "")
        + ".</p>",
        _warning(seen.trained_on),
        _verdict(seen.diagnosis),
        _tiles(seen),
        "<h2>Predicted and observed</h2>",
        *_predictions(seen),
        "<h2>Distributions at chosen inputs</h2>",
        *_laws(seen, model, random_state),
        "<h2>Can it be trusted?</h2>",
        *_trust(seen),
        "<h2>The data</h2>",
        _columns(seen),
        "<h2>The model</h2>",
        *_model(model, settings),
        "<h2>Cite and reproduce</h2>",
        _reproduce(source),
    ]
    style = files("localw2").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _judge(
    model: Any, X: Any, y: Any, features: Any, targets: Any, n_samples: int, random_state: Any
) -> _Judged:
    if not hasattr(model, "sample") or not hasattr(model, "predict_interval"):
        raise ValueError(
            f"a {type(model).__name__} cannot be reported on; give a fitted LocalW2Regressor or "
            "RandomCoefficientRegressor."
        )
    if features is None:
        features = getattr(X, "columns", getattr(model, "feature_names_in_", None))
    rows, outputs = as_rows(X).astype(np.float64), as_array(y, "y").astype(np.float64)
    outputs = outputs.reshape(len(outputs), -1)
    features = _named(features, rows.shape[1], "x", "feature_names")
    targets = _named(targets, outputs.shape[1], "y", "target_names")
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


def _named(names: Any, count: int, letter: str, argument: str) -> list[str]:
    if names is None:
        return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]
    if len(names) != count:
        raise ValueError(f"{argument} has {len(names)} entries for {count} column(s); give one for each.")
    return [str(name) for name in names]


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def _words(name: str) -> str:
    return f"<code>{escape(name)}</code>"


def _warning(text: str) -> str:
    return f'<p class="warning"><b>Rows that were trained on.</b> {escape(text)}</p>' if text else ""


def _verdict(diagnosis: Diagnosis) -> str:
    lines = "".join(f"<p>{escape(line)}</p>" for line in diagnosis.verdict)
    return f'<div class="verdict{"" if diagnosis.calibrated else " bad"}">{lines}</div>'


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
    items.append((f"{100 * seen.diagnosis.skill:.1f} %", "better than a forecast that ignores the inputs"))
    return "<ul class='tiles'>" + "".join(f"<li><b>{v}</b><span>{t}</span></li>" for v, t in items) + "</ul>"


def _figure(figure: Any, name: str, label: str) -> str:
    return f"<figure>{pictures.as_svg(figure, name, label)}</figure>"


def _predictions(seen: _Judged) -> list[str]:
    found = []
    for k, name in enumerate(seen.targets):
        columns = (seen.y[:, k], seen.mean[:, k], seen.lower[:, k], seen.upper[:, k])
        picture = pictures.observed_against_predicted(*columns, name)
        found.append(_figure(picture, f"rows{k}", f"Observed {name} and its predicted mean and interval"))
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
        picture = pictures.laws(draws[..., k], moved, titles, name)
        found.append(_figure(picture, f"laws{k}", f"Draws of {name} at {len(chosen)} places"))
    return [*found, _table(head, lines)]


def _trust(seen: _Judged) -> list[str]:
    diagnosis = seen.diagnosis
    found = []
    for k, name in enumerate(seen.targets):
        if len(seen.targets) > 1:
            found.append(f"<h3>{escape(name)}</h3>")
        label = f"Calibration of {name}: places among draws, coverage, places along an input, spread"
        found.append(_figure(pictures.diagnosis_figure(diagnosis, k), f"diagnosis{k}", label))
    found.append(f"<pre>{escape(diagnosis.table())}</pre>")
    found.append(
        '<p class="soft">Shift: by how many standard deviations y lies above its draws. Spread: the scatter '
        "of y over that of the draws, 1 is right. p: the smallest of a group's tests, adjusted for their "
        "number; below 0.05 is a failure.</p>"
    )
    label = "How many rows are near each row"
    found.append(_figure(pictures.ball_sizes(diagnosis.ball_sizes, diagnosis.delta), "balls", label))
    return found


def _columns(seen: _Judged) -> str:
    head = ["column", "min", "5 %", "median", "95 %", "max", "mean", "SD", "values"]
    lines = []
    for name, values in zip([*seen.features, *seen.targets], [*seen.X.T, *seen.y.T], strict=True):
        numbers = [*np.quantile(values, [0, 0.05, 0.5, 0.95, 1]), values.mean(), values.std()]
        lines.append([name, *(f"{v:.4g}" for v in numbers), str(len(np.unique(values)))])
    return _table(head, lines)


def _model(model: Any, settings: Mapping[str, Any] | None) -> list[str]:
    rows = {name: value for name, value in model.get_params(deep=False).items() if value is not None}
    found: dict[str, Any] = {}
    for name, attribute in (("base", "base_name_"), ("balls", "delta_"), ("norm", "norm_")):
        if hasattr(model, attribute):
            found[name] = getattr(model, attribute)
    fit = getattr(model, "fit_", None)
    if fit is not None:
        found["training"] = f"{len(fit.history)} epochs in {fit.seconds:.1f} s; {fit.stopped}"
    if getattr(model, "calibration_", None) is not None:
        found["calibration"] = f"{model.calibration_.kind}, {len(model.calibration_.scores)} rows"
    parts = []
    if fit is not None and len(fit.losses) > 1:
        parts.append(_figure(pictures.training_curve(fit.losses), "loss", "Training loss of every epoch"))
    if hasattr(model, "summary"):
        parts.append(f"<pre>{escape(str(model.summary()))}</pre>")
    parts.append(_settings("Found by the fit", found))
    parts.append(_settings("Parameters", rows))
    parts.append(_settings("Settings of the run", dict(settings or {})))
    return parts


def _settings(title: str, values: Mapping[str, Any]) -> str:
    if not values:
        return ""
    lines = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(_short(value))}</td></tr>"
        for name, value in values.items()
    )
    return f'<h3>{title}</h3><div class="wide"><table class="settings">{lines}</table></div>'


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _table(head: list[str], lines: list[list[str]]) -> str:
    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(line, "td") for line in lines)
    return f'<div class="wide"><table>{row(head, "th")}{body}</table></div>'


def _reproduce(source: str | None) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("localw2", "torch", "numpy", "scikit-learn"))
    made = f" from {escape(source)}" if source else ""
    return (
        f"<p>Made{made} by Python {platform.python_version()} with {escape(versions)}. The same versions, "
        "rows and seed give the same report.</p>"
        f"<p>The method: {escape(CITATION)}.</p>"
    )
