"""The parts that every report has: the page around it, tables, pictures, the model, how to cite it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np

from localw2._validation import Array
from localw2.apps.report import figures as pictures
from localw2.judging.diagnosis.diagnose import Diagnosis

CITATION = (
    "M. Xia, Q. Shen: A local squared Wasserstein-2 method for efficient reconstruction of models with "
    "uncertainty. arXiv:2406.06825 (2024)"
)


def page(title: str, body: Sequence[str]) -> str:
    """A whole HTML file with its style inside; empty parts are left out."""
    style = files("localw2.apps.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join([f"<h1>{escape(title)}</h1>", *filter(None, body)])
        + "\n</body>\n</html>\n"
    )


def lead(model: Any, judged_by: str, source: str | None) -> str:
    """What the page is about, in a line."""
    of = f" of {escape(source)}" if source else ""
    kind = f"<code>{escape(type(model).__name__)}</code>"
    return f'<p class="soft">A random model of {kind}, judged by {judged_by}{of}.</p>'


def column_names(names: Any, count: int, letter: str, argument: str) -> list[str]:
    """The names given, one for each column, or plain ones.

    >>> column_names(None, 2, "x", "feature_names")
    ['x0', 'x1']
    """
    if names is None:
        return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]
    if len(names) != count:
        raise ValueError(f"{argument} has {len(names)} entries for {count} column(s); give one for each.")
    return [str(name) for name in names]


def listed(names: Sequence[str]) -> str:
    """Names in a row, the last of many counted.

    >>> listed("abc"), listed("abcdefgh")
    ('a, b, c', 'a, b, c, d, e and 3 more')
    """
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def warning(text: str) -> str:
    """That the rows were trained on, if there is anything to say."""
    return f'<p class="warning"><b>Rows that were trained on.</b> {escape(text)}</p>' if text else ""


def verdict(diagnosis: Diagnosis) -> str:
    """The verdict of ``diagnose`` in its own words."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in diagnosis.verdict)
    return f'<div class="verdict{"" if diagnosis.calibrated else " bad"}">{lines}</div>'


def numbered(names: Sequence[str]) -> str:
    """What outputs are called by their number, where there are several.

    >>> numbered(["a", "b"])
    '<p class="soft">Output 0 (y0) is a, 1 is b.</p>'
    """
    if len(names) < 2:
        return ""
    rest = "".join(f", {k} is {escape(name)}" for k, name in enumerate(names) if k)
    return f'<p class="soft">Output 0 (y0) is {escape(names[0])}{rest}.</p>'


def tiles(items: Sequence[tuple[str, str]]) -> str:
    """Numbers with what they are, side by side; the words are HTML."""
    return "<ul class='tiles'>" + "".join(f"<li><b>{v}</b><span>{t}</span></li>" for v, t in items) + "</ul>"


def skill(diagnosis: Diagnosis, what: str) -> tuple[str, str]:
    """How much better than a forecast that ignores something, or how much worse, for a tile."""
    word = "better" if diagnosis.skill >= 0 else "worse"
    return f"{100 * abs(diagnosis.skill):.1f} %", f"{word} than a forecast that ignores {what}"


def figure(drawn: Any, name: str, label: str) -> str:
    """A picture; no two of a page may have the same name."""
    return f"<figure>{pictures.as_svg(drawn, name, label)}</figure>"


def trust(diagnosis: Diagnosis, outputs: Mapping[int, str]) -> list[str]:
    """The panels of a diagnosis for some outputs, by their names, and the table of all."""
    found = []
    for k, name in outputs.items():
        if len(outputs) > 1:
            found.append(f"<h3>{escape(name)}</h3>")
        label = f"Calibration of {name}: places among draws, coverage, places along an input, spread"
        found.append(figure(pictures.diagnosis_figure(diagnosis, k), f"diagnosis{k}", label))
    found.append(f"<pre>{escape(diagnosis.table())}</pre>")
    found.append(
        '<p class="soft">Shift: by how many standard deviations y lies above its draws. Spread: the scatter '
        "of y over that of the draws, 1 is right. p: the smallest of a group's tests, adjusted for their "
        "number; below 0.05 is a failure.</p>"
    )
    return found


def columns_table(columns: Mapping[str, Array]) -> str:
    """Quantiles, mean, SD and the number of different values of each column (N,)."""
    head = ["column", "min", "5 %", "median", "95 %", "max", "mean", "SD", "values"]
    lines = []
    for name, values in columns.items():
        numbers = [*np.quantile(values, [0, 0.05, 0.5, 0.95, 1]), values.mean(), values.std()]
        lines.append([name, *(f"{v:.4g}" for v in numbers), str(len(np.unique(values)))])
    return table(head, lines)


def model_parts(model: Any, settings: Mapping[str, Any] | None) -> list[str]:
    """The training curve, what the fit found, its parameters, and the settings of the run."""
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
        parts.append(figure(pictures.training_curve(fit.losses), "loss", "Training loss of every epoch"))
    for summary in (getattr(model, "summary", None), getattr(model, "parameters_", None)):
        if summary is not None:
            parts.append(f"<pre>{escape(str(summary() if callable(summary) else summary))}</pre>")
    parts.append(settings_table("Found by the fit", found))
    parts.append(settings_table("Parameters", rows))
    parts.append(settings_table("Settings of the run", dict(settings or {})))
    return parts


def settings_table(title: str, values: Mapping[str, Any]) -> str:
    """Names and values, shortened; nothing where there are none."""
    if not values:
        return ""
    lines = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(_short(value))}</td></tr>"
        for name, value in values.items()
    )
    return f'<h3>{title}</h3><div class="wide"><table class="settings">{lines}</table></div>'


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def table(head: list[str], lines: list[list[str]]) -> str:
    """Cells under their heads.

    >>> table(["a"], [["<"]])
    '<div class="wide"><table><tr><th>a</th></tr><tr><td>&lt;</td></tr></table></div>'
    """

    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(line, "td") for line in lines)
    return f'<div class="wide"><table>{row(head, "th")}{body}</table></div>'


def reproduce(source: str | None) -> str:
    """Versions, and what to cite."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("localw2", "torch", "numpy", "scikit-learn"))
    made = f" from {escape(source)}" if source else ""
    return (
        f"<p>Made{made} by Python {platform.python_version()} with {escape(versions)}. The same versions, "
        "rows and seed give the same report.</p>"
        f"<p>The method: {escape(CITATION)}.</p>"
    )
