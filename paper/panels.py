"""What the figures and tables of all experiments share: panels, colours, files, Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from records import Values

matplotlib.use("Agg")
from matplotlib import pyplot, ticker

TRUTH, PRINTED, OURS, ORACLE, OTHER = "#8a8f98", "#c8442c", "#1f6fb4", "#2e8b57", "#b07d12"
FLOOR = {"color": "black", "ls": ":", "lw": 1.2}


def make_figure(rows: int, cols: int, width: float = 3.6, height: float = 3.0) -> tuple[Any, Any]:
    """Make a figure and its array of Axes (rows, cols); width and height are those of a panel, in inches."""
    fig, axes = pyplot.subplots(
        rows, cols, figsize=(width * cols, height * rows), layout="constrained", squeeze=False
    )
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    return fig, axes


def save_figure(fig: Any, path: Path) -> None:
    """Write a PNG and close the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    pyplot.close(fig)
    print(f"wrote {path}")


def label_panel(ax: Any, name: str, title: str = "") -> None:
    """Title a panel with its letter in the paper and what it shows."""
    ax.set_title(f"({name}) {title}".rstrip(), fontsize=9, loc="left")


def add_legend(fig: Any, axes: Sequence[Any], columns: int = 4) -> None:
    """Add one legend for all panels below them, without repeated entries."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    fig.legend(
        found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def draw_clouds(ax: Any, x: Any, draws: Any, offset: float, color: str, label: str) -> None:
    """Draws (S, n) at n inputs as columns of dots, offset so that two distributions stand side by side."""
    values, middle = np.asarray(draws, dtype=float), np.asarray(x, dtype=float) + offset
    across = 0.8 * abs(offset) * np.linspace(-1, 1, len(values))
    at = middle + across[:, None]
    ax.plot(at.ravel(), values.ravel(), ".", ms=3, alpha=0.5, mew=0, color=color)
    ax.plot([], [], "o", ms=4, color=color, label=label)


def set_log_axis(axis: Any, ticks: Sequence[float] | None = None) -> None:
    """Make an axis logarithmic with plain numbers: ``ticks``, or 1, 2, 5 (1, 3 on a long axis) and so on."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_data_interval()
    steps = (1, 3) if high > 100 * low else (1, 2, 5)
    axis.set_major_locator(ticker.FixedLocator(ticks) if ticks else ticker.LogLocator(subs=steps))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def draw_curve(ax: Any, x: Sequence[float], points: Sequence[tuple[float, float]], **style: Any) -> None:
    """Means with bars of one SD over repeats; ``points`` are (mean, sd), NaN where there is no result."""
    means, sds = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    ax.errorbar(x, means, yerr=sds, capsize=2, elinewidth=0.8, ms=4, **style)


def mean_sd(values: Sequence[Values], name: str) -> tuple[float, float]:
    """Mean and SD over the repeats that have this value: NaN if none has it, an SD of 0 if one has."""
    column = np.array([v[name] for v in values if v.get(name) is not None], dtype=np.float64)
    if not len(column):
        return math.nan, math.nan
    return float(column.mean()), float(column.std(ddof=1)) if len(column) > 1 else 0.0


def format_number(pair: tuple[float, float], digits: int = 3) -> str:
    """Format mean and SD for a table: ``.053 +- .013``, or a dash where there is no result.

    >>> format_number((0.0532, 0.013))
    '.053 +- .013'
    """
    mean, sd = (f"{v:.{digits}f}".removeprefix("0") if digits else f"{v:.0f}" for v in pair)
    return "-" if math.isnan(pair[0]) else f"{mean} +- {sd}"


def format_table(rows: Sequence[Sequence[Any]]) -> str:
    """Format rows of cells as Markdown, the header first; columns are padded to be readable as plain text.

    >>> print(format_table([["a", "b"], [1, "two"]]))
    | a | b   |
    |---|-----|
    | 1 | two |
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [" | ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)) for row in cells]
    rule = "|".join("-" * (w + 2) for w in widths)
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def write_tables(path: Path, *parts: str) -> None:
    """Write tables and the text between them to a Markdown file, and print them."""
    text = "\n\n".join(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    print(f"{text}\n\nwrote {path}")
