"""The parts that all reports share: the page, tables, pictures, the model, how to cite it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from localw2._validation import Array
from localw2._wording import as_html
from localw2.apps.report import figures
from localw2.judging.inputs import show_number
from localw2.judging.seen_rows import judge_seen

if TYPE_CHECKING:
    from localw2.estimators.mixed.judging import MixedDiagnosis
    from localw2.judging.diagnosis.diagnose import Diagnosis
    from localw2.judging.inputs import Input

FREQUENT = 4  # categories that are named
CITATION = (
    "M. Xia, Q. Shen: A local squared Wasserstein-2 method for efficient reconstruction of models with "
    "uncertainty. arXiv:2406.06825 (2024)"
)


def page(title: str, body: Sequence[str]) -> str:
    """A whole HTML file that includes its style; empty parts are left out."""
    style = files("localw2.apps.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{as_html(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join([f"<h1>{as_html(title)}</h1>", *filter(None, body)])
        + "\n</body>\n</html>\n"
    )


def lead(model: Any, judged_by: str, source: str | None) -> str:
    """One line that says what the page is about."""
    of = f" of {as_html(source)}" if source else ""
    kind = f"<code>{as_html(type(model).__name__)}</code>"
    return f'<p class="soft">A fitted {kind}, judged by {judged_by}{of}.</p>'


def name_columns(names: Any, count: int, letter: str, argument: str) -> list[str]:
    """The given names, one for each column, or default ones.

    >>> name_columns(None, 2, "x", "feature_names")
    ['x0', 'x1']
    """
    if names is None:
        return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]
    if len(names) != count:
        raise ValueError(f"{argument} has {len(names)} name(s) for {count} column(s); give one for each.")
    return [str(name) for name in names]


def join_names(names: Sequence[str], most: int = 6) -> str:
    """Names in a row; of many, only the first are spelt out.

    >>> join_names("abc"), join_names("abcdefgh")
    ('a, b, c', 'a, b, c, d, e and 3 more')
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


def warn_of_training(model: Any, x: Any, y: Any, what: str) -> str:
    """A warning if the model was trained on more of these rows than by chance; older files cannot tell."""
    seen = getattr(model, "seen_rows_", None)
    share, beyond_chance = (0.0, False) if seen is None else judge_seen(seen, x, y)
    if not beyond_chance:
        return ""
    return (
        f'<p class="warning"><b>The model was trained on {100 * share:.0f} % of these {what}.</b> '
        f"There a fit looks better than it is; judge it by held-out {what} instead.</p>"
    )


def verdict(diagnosis: Diagnosis | MixedDiagnosis) -> str:
    """The verdict of ``diagnose`` in its words."""
    lines = "".join(f"<p>{as_html(line)}</p>" for line in diagnosis.verdict)
    good = diagnosis.calibrated and not diagnosis.training_share
    return f'<div class="verdict{"" if good else " bad"}">{lines}</div>'


def number_outputs(names: Sequence[str]) -> str:
    """Which output has which number, if there are several.

    >>> number_outputs(["a", "b"])
    '<p class="soft">Output 0 (y0) is a, 1 is b.</p>'
    """
    if len(names) < 2:
        return ""
    rest = "".join(f", {k} is {as_html(name)}" for k, name in enumerate(names) if k)
    return f'<p class="soft">Output 0 (y0) is {as_html(names[0])}{rest}.</p>'


def tiles(items: Sequence[tuple[str, str]]) -> str:
    """Numbers with labels, side by side; the labels are HTML."""
    cells = (f"<li><b>{v}</b><span>{t.replace(' %', '&nbsp;%')}</span></li>" for v, t in items)
    return "<ul class='tiles'>" + "".join(cells) + "</ul>"


def describe_skill(diagnosis: Diagnosis, what: str) -> tuple[str, str]:
    """How much better or worse than a forecast that ignores something, for a tile."""
    word = "better" if diagnosis.skill >= 0 else "worse"
    return f"{100 * abs(diagnosis.skill):.1f} %", f"{word} than a forecast that ignores {what}"


def figure(drawn: Any, name: str, label: str, kind: str = "") -> str:
    """A picture, "narrow" if not as wide as the page; no two pictures of a page may have the same name."""
    own = f' class="{kind}"' if kind else ""
    return f"<figure{own}>{figures.to_svg(drawn, name, label)}</figure>"


def trust(diagnosis: Diagnosis, outputs: Mapping[int, str]) -> list[str]:
    """The panels of a diagnosis for some outputs, by number and name, and the table of all."""
    found = []
    for k, name in outputs.items():
        if len(outputs) > 1:
            found.append(f"<h3>{as_html(name)}</h3>")
        label = f"Calibration of {name}: PIT, coverage, PIT along an input, spread"
        found.append(figure(figures.draw_diagnosis(diagnosis, k), f"diagnosis{k}", label))
    found.append(f"<pre>{as_html(diagnosis.table())}</pre>")
    found.append(
        '<p class="soft">Shift: how many standard deviations y lies above its draws. Spread: the spread of y '
        "divided by that of the draws; 1 is right. p: the smallest p-value of a group's tests, adjusted for "
        "their number; below 0.05 the group fails.</p>"
    )
    return found


def columns_tables(columns: Sequence[tuple[Input, Array]]) -> list[str]:
    """A table of the columns (N,) of numbers and dates, and one of categories, with their missing values."""
    numbers, words = [], []
    for each, values in columns:
        seen = values[np.isfinite(values)]
        missing = f"{100 * (1 - len(seen) / len(values)):.1f} %" if len(seen) < len(values) else ""
        codes, counts = np.unique(seen, return_counts=True)
        if each.kind == "category":
            order = np.argsort(-counts, kind="stable")[:FREQUENT]
            shares = [f"{each.show(codes[i])} {100 * counts[i] / len(values):.0f} %" for i in order]
            more = [f"{len(codes) - FREQUENT} more"] if len(codes) > FREQUENT else []
            words.append([each.name, ", ".join(shares + more), str(len(codes)), missing])
        elif len(seen):
            level = [each.show(v) for v in np.quantile(seen, [0, 0.05, 0.5, 0.95, 1])]
            unit = " days" if each.kind == "date" else ""
            moments = [each.show(seen.mean()), show_number(seen.std()) + unit]
            if each.kind == "date":
                level, moments[0] = [day[:10] for day in level], moments[0][:10]
            numbers.append([each.name, *level, *moments, str(len(codes)), missing])
        else:
            numbers.append([each.name, *[""] * 8, missing])
    found = []
    if numbers:
        head = ["column", "min", "5 %", "median", "95 %", "max", "mean", "SD", "distinct", "missing"]
        found.append(table(*_drop_empty(head, numbers)))
    if words:
        head = ["column", "most frequent categories", "distinct", "missing"]
        found.append(table(*_drop_empty(head, words)))
    return found


def _drop_empty(head: list[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Leave out the last column if it is empty: most tables have no missing values."""
    return (head, lines) if any(line[-1] for line in lines) else (head[:-1], [line[:-1] for line in lines])


def left_out(columns: Mapping[str, str]) -> str:
    """Which columns of the table the model does not use, and why."""
    if not columns:
        return ""
    named = ", ".join(f"{as_html(name)} ({as_html(reason)})" for name, reason in columns.items())
    return f"<p>Columns that the model does not use: {named}.</p>"


def model_parts(model: Any, settings: Mapping[str, Any] | None) -> list[str]:
    """The training curve, what the fit chose, its parameters, and the settings of the run."""
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
        parts.append(figure(figures.draw_training_curve(fit.losses), "loss", "Training loss by epoch"))
    # An ODE has a summary if it is one of a population; otherwise the law of its named parameters.
    written = None if getattr(model, "population_", model) is None else getattr(model, "summary", None)
    # The summary of a stochastic equation has its parameters, and its page shows it further up.
    told = () if hasattr(model, "coefficients_along") else (written, getattr(model, "parameters_", None))
    for summary in told:
        if summary is not None:
            parts.append(f"<pre>{as_html(str(summary() if callable(summary) else summary))}</pre>")
    weights = {member: f"{100 * weight:.0f} %" for member, weight in getattr(model, "weights_", {}).items()}
    parts.append(settings_table("Weights of the pool", weights))
    parts.append(settings_table("Chosen by the fit", found))
    parts.append(settings_table("Parameters", rows))
    parts.append(settings_table("Settings of the run", dict(settings or {})))
    return parts


def settings_table(title: str, values: Mapping[str, Any]) -> str:
    """Names and values, shortened; empty if there are none."""
    if not values:
        return ""
    lines = "".join(
        f"<tr><td>{as_html(str(name))}</td><td>{as_html(_short(value))}</td></tr>"
        for name, value in values.items()
    )
    return f'<h3>{title}</h3><div class="wide"><table class="settings">{lines}</table></div>'


def _short(value: Any) -> str:
    """One line for a setting: functions by name, numbers with five digits.

    >>> _short(len), _short((1, 1 / 3)), _short({"k": 0.1 + 0.2})
    ('len', '1, 0.33333', "{'k': 0.3}")
    """
    if callable(value) and hasattr(value, "__qualname__"):  # otherwise its address, new in every run
        return str(value.__qualname__)
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    text = re.sub(r"\d+\.\d{6,}(?!\d|e)", lambda number: f"{float(number[0]):.5g}", text)
    return text if len(text) <= 200 else f"{text[:197]}..."


def table(head: list[str], lines: list[list[str]]) -> str:
    """A table of cells under headings.

    >>> table(["a"], [["<"]])
    '<div class="wide"><table><tr><th>a</th></tr><tr><td>&lt;</td></tr></table></div>'
    """

    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{as_html(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(line, "td") for line in lines)
    return f'<div class="wide"><table>{row(head, "th")}{body}</table></div>'


def reproduce(source: str | None) -> str:
    """Versions, and what to cite."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("localw2", "torch", "numpy", "scikit-learn"))
    made = f" from {as_html(source)}" if source else ""
    return (
        f"<p>Made{made} with Python {platform.python_version()}, {as_html(versions)}. The same versions, "
        "data and seed give the same report.</p>"
        f"<p>The local loss that networks and equations are trained by is that of {as_html(CITATION)}; "
        "distributions that are drawn from similar rows of a table are made without it.</p>"
    )
