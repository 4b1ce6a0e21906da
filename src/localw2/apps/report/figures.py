"""The pictures of a report, as SVG that takes the colours of the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from localw2._validation import Array
from localw2.judging.diagnosis.plots import INK
from localw2.plots import DATA, MODEL, TRUTH, trajectories

_SHOWN = 300  # rows of a picture; more would hide each other and make the file large
_PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the predicted means, where a law is shown
_LOCAL_ROWS = 40  # observed rows that stand for the law at a place
_LINES = 60  # observed trajectories of a picture


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure of our own, outside pyplot, and its Axes (rows, columns)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("reports need matplotlib: pip install 'localw2[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def as_svg(figure: Any, name: str, label: str) -> str:
    """The figure as an SVG element: lines and text in the page's colour, its own everywhere else."""
    import matplotlib as mpl

    out = io.StringIO()
    # Names inside the picture come from the salt: two pictures of a page must not share any.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace("#000000", "currentColor").replace(INK, "currentColor")
    svg = svg.replace(MODEL, "var(--model)")  # lighter where the page is dark
    # Groups have names that pictures of one page would share, and that nothing refers to.
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r"font: (\d+(?:\.\d+)?)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head = f'<svg role="img" aria-label="{escape(label)}"'
    return re.sub(r' (?:width|height)="[^"]*pt"', "", svg.replace("<svg", head, 1), count=2)


def training_curve(losses: list[float]) -> Any:
    """The loss of every epoch; on a logarithmic axis where it is positive throughout."""
    figure, axes = new_figure(7.5, 3)
    ax = axes[0, 0]
    ax.plot(np.arange(1, len(losses) + 1), losses, color=MODEL, lw=1.4)
    if min(losses) > 0 and max(losses) > 20 * min(losses):
        ax.set_yscale("log")
    ax.set(xlabel="epoch", ylabel="training loss")
    return _plain(figure)


def observed_against_predicted(y: Array, mean: Array, lower: Array, upper: Array, name: str) -> Any:
    """Rows by predicted mean: its line, 90 % intervals, and what was observed; all (N,)."""
    chosen = np.argsort(mean, kind="stable")
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), _SHOWN)).round().astype(int)]
    place = np.arange(len(chosen))
    inside = (y >= lower) & (y <= upper)
    figure, axes = new_figure(7.5, 3.6)
    ax = axes[0, 0]
    ax.vlines(place, lower[chosen], upper[chosen], color=MODEL, alpha=0.35, lw=2, label="90 % interval")
    ax.plot(place, mean[chosen], color=MODEL, lw=1.5, label="mean")
    for hit, colour, label in ((True, DATA, "observed, inside"), (False, TRUTH, "observed, outside")):
        some = inside[chosen] == hit
        ax.plot(place[some], y[chosen][some], "o", ms=2.6, color=colour, label=label)
    ax.set(xlabel=f"{len(chosen)} of {len(y)} rows, by predicted mean", ylabel=name)
    ax.legend(frameon=False, fontsize=9, ncols=2)
    return _plain(figure)


def trajectory_bands(
    grid: Array, draws: Array, observed: Sequence[tuple[Array, Array]], names: Sequence[str]
) -> Any:
    """Draws (S, n, T, d) at times (T,) as mean and 90 % band, with observed times (m,) and states (m, d)."""
    d = len(names)
    columns = min(d, 2)
    rows = -(-d // columns)
    figure, axes = new_figure(7.5, 2.8 * rows + 0.4, rows, columns)
    shown = list(observed)[:_LINES]
    label = "observed" if len(observed) <= _LINES else f"observed ({_LINES} of {len(observed)})"
    for ax in axes.ravel()[d:]:
        ax.set_visible(False)
    for k, ax in enumerate(axes.ravel()[:d]):
        for j, (time, values) in enumerate(shown):
            ax.plot(time, values[:, k], color=DATA, lw=0.7, alpha=0.6, label=None if j else label)
    trajectories(grid, draws, names=list(names), axes=axes.ravel()[:d])
    return _plain(figure)


def laws(
    draws: Sequence[Array], near: Sequence[Array], titles: list[str], name: str, what: str = "rows near"
) -> Any:
    """At every place draws (S,) as a density, and observed values (k,) as an outline with marks."""
    columns = min(3, len(titles))
    rows = -(-len(titles) // columns)
    figure, axes = new_figure(7.5, 2.3 * rows + 0.3, rows, columns)
    for ax in axes.ravel()[len(titles) :]:
        ax.set_visible(False)
    for i, title in enumerate(titles):
        ax = axes.ravel()[i]
        low, high = np.quantile(draws[i], [0.002, 0.998])
        low, high = min(low, near[i].min()), max(high, near[i].max())
        bins = np.linspace(low, high, 31) if high > low else np.array([low - 0.5, low + 0.5])
        ax.hist(draws[i], bins, density=True, color=MODEL, alpha=0.45, label="draws")
        ax.hist(near[i], bins[::3], density=True, histtype="step", color=INK, lw=1.2, label=what)
        ax.plot(near[i], np.zeros(len(near[i])), "|", color=INK, ms=7, clip_on=False)
        ax.set_ylim(0, 1.2 * ax.get_ylim()[1])  # the legend is above the bars
        ax.set_title(title, fontsize=8.5)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(name)
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=2, loc="upper left", borderaxespad=0)
    return _plain(figure)


def places(mean: Array, embedded: Array) -> tuple[Array, Array]:
    """Rows at some quantiles of the predicted mean (N,), and the rows nearest to each, (places, k)."""
    from scipy.spatial import cKDTree

    order = np.argsort(mean, kind="stable")
    chosen = np.unique(order[(np.array(_PLACES) * (len(order) - 1)).round().astype(int)])
    chosen = chosen[np.argsort(mean[chosen], kind="stable")]
    k = int(np.clip(len(mean) // 4, 1, _LOCAL_ROWS))
    near = cKDTree(embedded).query(embedded[chosen], k)[1].reshape(len(chosen), k)
    return chosen, near


def diagnosis_figure(diagnosis: Any, output: int) -> Any:
    """The four panels of a diagnosis."""
    figure, axes = new_figure(7.5, 6)
    figure.clear()
    figure.get_layout_engine().set(h_pad=0.1, hspace=0.04)  # or titles touch the labels above them
    axes = figure.subplots(2, 2)
    diagnosis.plot(output, axes)
    return figure


def ball_sizes(sizes: Array, delta: float) -> Any:
    """How many rows are near each row."""
    figure, axes = new_figure(7.5, 2.6)
    ax = axes[0, 0]
    ax.hist(sizes, 30, color=MODEL, alpha=0.55)
    ax.set(xlabel=f"rows within {delta:.3g} of a row, in standardised inputs", ylabel="rows")
    return _plain(figure)


def _plain(figure: Any) -> Any:
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure
