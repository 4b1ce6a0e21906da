"""The pictures of a report, as SVG in the colours of the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from localw2._validation import Array
from localw2._wording import as_html, as_label
from localw2.judging.diagnosis.plots import INK, as_axis, group_categories
from localw2.judging.inputs import is_whole
from localw2.plots.rows import (
    DATA,
    MODEL,
    TRUTH,
    _draw_regions,
    _label_categories,
    _pair_limits,
    importance,
    pairs,
    trajectories,
)

if TYPE_CHECKING:
    from localw2.judging.inputs import Input

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_CATEGORIES = 10  # with a place of their own in a picture

_SHOWN = 300  # rows of a picture; more would hide each other and enlarge the file
_PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of the predicted mean where distributions are shown
_LOCAL_ROWS = 40  # observed rows that represent the distribution at a place
_LINES = 60  # observed trajectories in a picture
_BINS = 10  # groups of rows along a number
_PAIR_DRAWS = 5000  # of a pairs plot


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure outside pyplot, and its Axes (rows, columns)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("reports need matplotlib: pip install 'localw2[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def to_svg(figure: Any, name: str, label: str) -> str:
    """The figure as an SVG element; lines and text take the colour of the page."""
    import matplotlib as mpl

    out = io.StringIO()
    # Names inside a picture come from the salt: no two pictures of a page may share one.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=none)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace("#000000", "currentColor").replace(INK, "currentColor")
    svg = svg.replace(MODEL, "var(--model)")  # lighter where the page is dark
    # Groups have names that the pictures of a page would share, and that nothing refers to.
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r"font: (\d+(?:\.\d+)?)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head = f'<svg role="img" aria-label="{as_html(label)}"'
    return re.sub(r' (?:width|height)="[^"]*pt"', "", svg.replace("<svg", head, 1), count=2)


def draw_training_curve(losses: list[float]) -> Any:
    """The loss by epoch, on a logarithmic axis if it is positive and varies a lot."""
    figure, axes = new_figure(7.5, 3)
    ax = axes[0, 0]
    ax.plot(np.arange(1, len(losses) + 1), losses, color=MODEL, lw=1.4)
    if min(losses) > 0 and max(losses) > 20 * min(losses):
        ax.set_yscale("log")
    ax.set(xlabel="epoch", ylabel="training loss")
    return _plain(figure)


def draw_predictions(y: Array, mean: Array, lower: Array, upper: Array, name: str) -> Any:
    """Rows in the order of their predicted mean, with 90 % intervals and observed values; all are (N,)."""
    figure, axes = new_figure(7.5, 3.6)
    draw_intervals(axes[0, 0], y, mean, lower, upper, name)
    return _plain(figure)


def draw_intervals(ax: Any, y: Array, mean: Array, lower: Array, upper: Array, name: str) -> None:
    """The same on given Axes."""
    chosen = np.argsort(mean, kind="stable")
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), _SHOWN)).round().astype(int)]
    place = np.arange(len(chosen))
    inside = (y >= lower) & (y <= upper)
    ax.vlines(place, lower[chosen], upper[chosen], color=MODEL, alpha=0.35, lw=2, label="90 % interval")
    ax.plot(place, mean[chosen], color=MODEL, lw=1.5, label="mean")
    for hit, colour, label in ((True, DATA, "observed, inside"), (False, TRUTH, "observed, outside")):
        some = inside[chosen] == hit
        ax.plot(place[some], y[chosen][some], "o", ms=2.6, color=colour, label=label)
    ax.set(xlabel=_count_rows(len(chosen), len(y)), ylabel=as_label(name))
    ax.legend(frameon=False, fontsize=9, ncols=2)


def draw_column(
    each: Input, rows: tuple[Array, Array, Array], curve: tuple[Array, Array, Array], name: str
) -> Any:
    """Two panels about one column: observed and drawn values by group of rows, and the model along it.

    ``rows`` are the column (N,), y (N,) and draws (S, N); ``curve`` are values of the column (G,), the mean
    (G,) and quantiles (5, G) there.
    """
    figure, axes = new_figure(7.5, 3.1, 1, 2)
    left, right = axes[0]
    left.sharey(right)
    figure.get_layout_engine().set(wspace=0.05)  # otherwise the dates of the panels touch each other
    column, y, draws = rows
    grid, mean, quantiles = curve
    if each.kind == "category":
        groups, words = group_categories(each, column, MOST_CATEGORIES)
        _label_categories(left, words)
        for i, group in enumerate(groups):
            draw_strip(left, i - 0.2, np.quantile(draws[:, group], LEVELS), MODEL, "" if i else "draws")
            draw_strip(left, i + 0.2, np.quantile(y[group], LEVELS), INK, "" if i else "observed")
        _label_categories(right, [each.show(value) for value in grid])
        for i in range(len(grid)):
            draw_strip(right, i, quantiles[:, i], MODEL, "")
        right.plot(np.arange(len(grid)), mean, "D", ms=4, color=MODEL, label="mean")
    else:
        groups = bin_rows(column)
        at = as_axis(each, np.array([np.median(column[group]) for group in groups]))
        drawn = np.array([np.quantile(draws[:, group], LEVELS) for group in groups]).T
        seen = np.array([np.quantile(y[group], LEVELS) for group in groups]).T
        _draw_bands(left, at, drawn, "draws")
        left.plot(at, drawn[2], color=MODEL, lw=1.5)
        for level, style in ((0, "_"), (1, "."), (2, "o"), (3, "."), (4, "_")):
            label = "observed, 5 to 95 %" if level == 2 else None
            left.plot(at, seen[level], style, ms=5, color=INK, label=label)
        _draw_bands(right, as_axis(each, grid), quantiles, "50 and 90 % intervals")
        right.plot(as_axis(each, grid), mean, color=MODEL, lw=1.5, label="mean")
        for ax in (left, right):
            mark_whole(ax, each, column)
    left.set_title("All rows, by group", fontsize=10)
    right.set_title("Other columns at typical values", fontsize=10)
    left.set(xlabel=as_label(each.name), ylabel=as_label(name))
    right.set(xlabel=as_label(each.name))
    right.tick_params(labelleft=False)
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.18 * (high - low))  # room for the legends above everything
    for ax in (left, right):
        ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", borderaxespad=0)
    return _plain(figure)


def draw_strip(ax: Any, place: float, quantiles: Array, colour: str, label: str) -> None:
    """Five quantiles as a thin line, a thick one and a tick."""
    low, first, median, third, high = quantiles
    ax.vlines(place, low, high, color=colour, alpha=0.4, lw=3)
    ax.vlines(place, first, third, color=colour, alpha=0.75, lw=8, label=label or None)
    ax.hlines(median, place - 0.17, place + 0.17, color=colour, lw=2)


def _draw_bands(ax: Any, place: Array, quantiles: Array, label: str) -> None:
    ax.fill_between(place, quantiles[0], quantiles[4], color=MODEL, alpha=0.2, lw=0)
    ax.fill_between(place, quantiles[1], quantiles[3], color=MODEL, alpha=0.3, lw=0, label=label)


def bin_rows(values: Array) -> list[Array]:
    """Rows with similar values, equal ones together; rows with missing values are in no group."""
    seen = np.flatnonzero(np.isfinite(values))
    edges = np.unique(values[seen])
    if len(edges) > _BINS:
        edges = np.unique(np.quantile(values[seen], np.arange(_BINS) / _BINS))
    label = np.searchsorted(edges, values[seen], side="right")
    return [seen[label == i] for i in np.unique(label)]


def mark_whole(ax: Any, each: Input, values: Array) -> None:
    """No ticks between whole numbers, such as years, and few enough dates that they do not touch."""
    from matplotlib.ticker import MaxNLocator

    if each.kind == "date":
        from matplotlib import dates

        locator: Any = dates.AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]  # theirs
        formatter: Any = dates.ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]  # theirs
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(formatter)
    elif is_whole(values):
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def draw_importance(law: Array, mean: Array, names: Sequence[str]) -> Any:
    """How much each column matters for the law and for its mean; both are (p, n_repeats)."""
    figure, axes = new_figure(7.5, 1.25 + 0.34 * min(12, max(2, len(names))), 1, 2)
    importance(law, mean, list(names), axes[0])
    return figure


def draw_trajectories(
    grid: Array, draws: Array, observed: Sequence[tuple[Array, Array]], names: Sequence[str]
) -> Any:
    """Mean and 90 % band of draws (S, n, T, d) at times (T,), with observed times (m,) and states (m, d)."""
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
    trajectories(grid, draws, names=list(map(as_label, names)), axes=axes.ravel()[:d])
    return _plain(figure)


def draw_distributions(
    draws: Sequence[Array], near: Sequence[Array], titles: list[str], name: str, what: str = "nearby rows"
) -> Any:
    """One panel per place: the density of draws (S,), and observed values (k,) as an outline with ticks."""
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
        ax.set_ylim(0, 1.2 * ax.get_ylim()[1])  # room for the legend above the bars
        ax.set_title(as_label(title), fontsize=8.5)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(as_label(name))
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=2, loc="upper left", borderaxespad=0)
    return _plain(figure)


def choose_places(mean: Array, embedded: Array) -> tuple[Array, Array]:
    """Rows at some quantiles of the predicted mean (N,), and the k rows nearest to each, (places, k)."""
    from scipy.spatial import cKDTree

    order = np.argsort(mean, kind="stable")
    chosen = np.unique(order[(np.array(_PLACES) * (len(order) - 1)).round().astype(int)])
    chosen = chosen[np.argsort(mean[chosen], kind="stable")]
    k = int(np.clip(len(mean) // 4, 1, _LOCAL_ROWS))
    near = cKDTree(embedded).query(embedded[chosen], k)[1].reshape(len(chosen), k)
    return chosen, near


def draw_pairs(draws: Array, y: Array, names: Sequence[str]) -> Any:
    """The pairs of standardised draws (S, N, d) and outputs y (N, d)."""
    d = y.shape[1]
    side = {2: 5.4, 3: 6.4}.get(d, 7.5)
    figure, axes = new_figure(side, side, d, d)
    drawn = draws.reshape(-1, d)
    # Rows come first in their order: an even spacing takes some of every row.
    drawn = drawn[np.linspace(0, len(drawn) - 1, min(len(drawn), _PAIR_DRAWS)).round().astype(int)]
    pairs(drawn, y, list(names), axes=axes)
    figure.supxlabel("all axes: (output \N{MINUS SIGN} mean of the model) / SD of the model", fontsize=8.5)
    return figure


def draw_joint_places(
    draws: Array, near: Sequence[Array], titles: Sequence[str], names: Sequence[str]
) -> Any:
    """Two outputs at a few places: regions of draws (S, places, 2), and observed rows (k, 2) of each."""
    figure, axes = new_figure(7.5, 3.1, 1, len(titles))
    each = [_pair_limits(draws[:, i], [near[i]]) for i in range(len(titles))]
    ends = np.min([low for low, _ in each], axis=0), np.max([high for _, high in each], axis=0)
    for i, (ax, title) in enumerate(zip(axes[0], titles, strict=True)):
        _draw_regions(ax, draws[:, i], list(ends), MODEL)
        ax.plot(*np.clip(near[i], *ends).T, "o", ms=3, mew=0, color=INK, label="nearby rows")
        ax.set(xlim=[end[0] for end in ends], ylim=[end[1] for end in ends], xlabel=as_label(names[0]))
        ax.set_title(title, fontsize=9)
        ax.tick_params(labelleft=i == 0)
    axes[0, 0].set_ylabel(as_label(names[1]))
    return _plain(figure)


def draw_diagnosis(diagnosis: Any, output: int) -> Any:
    """The four panels of a diagnosis."""
    figure, axes = new_figure(7.5, 6)
    figure.clear()
    figure.get_layout_engine().set(h_pad=0.1, hspace=0.04)  # otherwise titles touch the labels above them
    axes = figure.subplots(2, 2)
    diagnosis.plot(output, axes)
    return figure


def draw_ball_sizes(sizes: Array, delta: float) -> Any:
    """How many rows are close to each row."""
    figure, axes = new_figure(7.5, 2.6)
    ax = axes[0, 0]
    ax.hist(sizes, 30, color=MODEL, alpha=0.55)
    ax.set(xlabel=f"number of rows within {delta:.3g} (standardised inputs)", ylabel="rows")
    return _plain(figure)


def _count_rows(shown: int, count: int) -> str:
    some = f"{count} rows" if shown == count else f"{shown} of {count} rows"
    return f"{some}, in order of predicted mean"


def _plain(figure: Any) -> Any:
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure
