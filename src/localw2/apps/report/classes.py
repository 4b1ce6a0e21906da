"""The pictures of a report on categories: calibration, probabilities along a column, numbers by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from localw2._validation import Array
from localw2._wording import as_label
from localw2.apps.report import figures
from localw2.judging.diagnosis.plots import INK, as_axis, group_categories
from localw2.plots.rows import MODEL

if TYPE_CHECKING:
    from localw2.judging.inputs import Input

SHOWN_CLASSES = 8  # with a colour of their own; the others are one
_BINS = 10  # groups of rows by probability
# Light and dark enough for both modes, and told apart without colours by their order.
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
_REST = "#7f7f7f"


def choose_classes(shares: Array, words: list[str]) -> tuple[list[list[int]], list[str], list[str]]:
    """Classes by their shares (K,): groups of their numbers, with names and colours; rare ones are one.

    >>> choose_classes(np.array([0.2, 0.8]), ["no", "yes"])[:2]
    ([[0], [1]], ['no', 'yes'])
    """
    if len(words) <= SHOWN_CLASSES:
        return [[k] for k in range(len(words))], words, list(_COLOURS[: len(words)])
    frequent = sorted(int(k) for k in np.argsort(-shares, kind="stable")[: SHOWN_CLASSES - 1])
    rest = [k for k in range(len(words)) if k not in frequent]
    names = [*(words[k] for k in frequent), f"{len(rest)} others"]
    return [*([k] for k in frequent), rest], names, [*_COLOURS[: len(frequent)], _REST]


def draw_calibration(codes: Array, p: Array, words: list[str], name: str) -> Any:
    """Shares of classes against their probabilities (N, K), and mean probabilities by observed class."""
    figure, axes = figures.new_figure(7.5, 3.5, 1, 2)
    left, right = axes[0]
    groups, names, colours = choose_classes(p.mean(0), words)
    merged = np.stack([p[:, group].sum(1) for group in groups], 1)
    seen = np.stack([np.isin(codes, group) for group in groups], 1)
    size = len(p) // min(_BINS, len(p))
    grid = np.linspace(0, 1, 101)
    reach = 1.645 * np.sqrt(grid * (1 - grid) / size)
    left.fill_between(
        grid, np.clip(grid - reach, 0, 1), np.clip(grid + reach, 0, 1), color=INK, alpha=0.12, lw=0
    )
    left.plot([0, 1], [0, 1], color=INK, lw=0.8)
    for k, (word, colour) in enumerate(zip(names, colours, strict=True)):
        parts = np.array_split(np.argsort(merged[:, k], kind="stable"), min(_BINS, len(p)))
        at = [merged[rows, k].mean() for rows in parts]
        shares = [seen[rows, k].mean() for rows in parts]
        left.plot(at, shares, "o-", ms=4, lw=1, color=colour, label=as_label(word[:24]))
    left.set(xlabel="predicted probability", ylabel="observed share", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    left.set_title(as_label(name), fontsize=10)
    left.legend(frameon=False, fontsize=7.5, loc="upper left")
    mean = np.full((len(names), len(names)), np.nan)
    for k in range(len(names)):
        if seen[:, k].any():
            mean[k] = merged[seen[:, k]].mean(0)
    right.imshow(mean, cmap="Blues", vmin=0, vmax=1)
    for (k, j), value in np.ndenumerate(mean):
        if np.isfinite(value):
            ink = "#ffffff" if value > 0.6 else "#222222"
            right.text(j, k, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
    short = [as_label(word[:14]) for word in names]
    _name_ticks(right, names)
    right.set_yticks(range(len(names)), short, fontsize=8)
    right.set(xlabel="class", ylabel="observed class")
    right.set_title("mean probability", fontsize=10)
    left.spines[["top", "right"]].set_visible(False)
    return figure


def draw_along(
    each: Input, rows: tuple[Array, Array, Array], curve: tuple[Array, Array], words: list[str], name: str
) -> Any:
    """Two panels about one column: shares and mean probabilities by group of rows, and the model along it.

    ``rows`` are the column (N,), the codes (N,) and the probabilities (N, K); ``curve`` are values of the
    column (G,) and the probabilities (G, K) there.
    """
    figure, axes = figures.new_figure(7.5, 3.1, 1, 2)
    left, right = axes[0]
    column, codes, p = rows
    grid, along = curve
    groups, names, colours = choose_classes(p.mean(0), words)
    if each.kind == "category":
        members, labels = group_categories(each, column, figures.MOST_CATEGORIES)
    else:
        members = figures.bin_rows(column)
        labels = [each.show(float(np.median(column[some])), 3) for some in members]
    bottom, below = np.zeros(len(members)), np.zeros(len(members))
    for group, colour in zip(groups, colours, strict=True):
        height = np.array([p[some][:, group].sum(1).mean() for some in members])
        left.bar(range(len(members)), height, 0.8, bottom, color=colour, alpha=0.55, lw=0)
        bottom += height
        below += [np.isin(codes[some], group).mean() for some in members]
        if group is not groups[-1]:  # the last one ends at 1
            left.plot(range(len(members)), below, "o", ms=4, color=colour, mec=INK, mew=0.6)
    _name_ticks(left, labels)
    shares = [along[:, group].sum(1) for group in groups]
    if each.kind == "category":
        base = np.zeros(len(grid))
        for height, word, colour in zip(shares, names, colours, strict=True):
            right.bar(range(len(grid)), height, 0.8, base, color=colour, alpha=0.55, lw=0, label=word[:24])
            base += height
        shown = [each.show(value) for value in grid]
        _name_ticks(right, shown)
    else:
        labelled = [as_label(word[:24]) for word in names]
        right.stackplot(as_axis(each, grid), *shares, colors=colours, alpha=0.55, labels=labelled)
        figures.mark_whole(right, each, column)
        right.margins(x=0)
    left.set_title("All rows, by group", fontsize=10)
    right.set_title("Other columns at typical values", fontsize=10)
    left.set(xlabel=as_label(each.name), ylabel=f"share of {as_label(name)}", ylim=(0, 1))
    right.set(xlabel=as_label(each.name), ylim=(0, 1))
    right.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def draw_by_class(
    seen: tuple[Array, Array], drawn: tuple[Array, Array], words: list[str], category: str, name: str
) -> Any:
    """A number class by class: quantiles of observed rows (codes and numbers, (N,)) and of draws."""
    figure, axes = figures.new_figure(7.5, 3.2)
    ax = axes[0, 0]
    counts = np.bincount(seen[0], minlength=len(words))
    chosen = sorted(int(k) for k in np.argsort(-counts, kind="stable")[: figures.MOST_CATEGORIES])
    for i, k in enumerate(chosen):
        for (codes, values), colour, move, label in (
            (drawn, MODEL, -0.15, "draws"),
            (seen, INK, 0.15, "observed"),
        ):
            own = values[codes == k]
            if len(own):
                at = np.quantile(own, figures.LEVELS)
                figures.draw_strip(ax, i + move, at, colour, label if i == 0 else "")
    ax.set_xticks(range(len(chosen)), [as_label(words[k][:18]) for k in chosen], fontsize=9)
    ax.set(xlabel=as_label(category), ylabel=as_label(name), xlim=(-0.6, len(chosen) - 0.4))
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.15 * (high - low))  # room for the legend
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", borderaxespad=0)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def _name_ticks(ax: Any, words: list[str]) -> None:
    """One word at each of 0, 1, ... on the x axis, turned where they would touch each other."""
    short = [as_label(word[:14]) for word in words]
    turned = {"rotation": 30, "ha": "right"} if sum(map(len, short)) > 24 else {}
    ax.set_xticks(range(len(short)), short, fontsize=8, **turned)
