"""The figure of the comparison: a line per table, a dot per method, ours on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

from comparison import Comparison
from methods import METHODS
from summary import OURS, Summary

BLUE, GREY = "#1f6fb4", "#b9bec6"
# Colours that differ in lightness as well as in hue, for the peers in the order of ``METHODS``.
COLORS = ("#c8442c", "#8c2d82", "#2b8a5b", "#e39a17", "#5b3a1e", "#e17ba8", "#111111", "#17a2a2")
MARKS = ("s", "D", "^", "v", "P", "X", "*", "p")
COMPETITOR = "Gaussian process"  # a baseline that is often the best competitor
NEAREST, FARTHEST = 0.68, 2.0  # beyond these, a mark at the edge: one bad method would hide all differences
TICKS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)


def draw_dots(summary: Summary, path: Path) -> None:
    """Draw the mean CRPS of every method divided by that of the best peer of the table, as a PNG."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    tables = sorted(summary.tables, key=lambda table: (-_find_ratio(table, OURS, 9.0), table.name))
    fig, ax = pyplot.subplots(figsize=(8.2, 1.5 + 0.3 * len(tables)), layout="constrained")
    ax.axvline(1, color="black", lw=0.8, zorder=1)
    for height in range(len(tables)):
        ax.axhline(height, color="#eceef1", lw=0.8, zorder=0)
    peers = [*(method.name for method in METHODS if method.group == "peer"), COMPETITOR]
    styles: dict[str, dict[str, Any]] = {
        name: {"color": color, "marker": mark, "s": 26, "zorder": 3}
        for name, color, mark in zip(peers, COLORS, MARKS, strict=True)
    }
    baselines = [m.name for m in METHODS if m.group == "baseline" and m.name != COMPETITOR]
    styles |= {name: {"color": GREY, "marker": "o", "s": 12, "zorder": 2} for name in baselines}
    styles |= {OURS: {"color": BLUE, "marker": "o", "s": 75, "zorder": 4, "edgecolor": "white"}}
    for name, style in styles.items():
        found = [
            (min(max(ratio, NEAREST), FARTHEST), height)
            for height, table in enumerate(tables)
            if (ratio := _find_ratio(table, name))
        ]
        label = "baselines" if name == baselines[0] else None if name in baselines else name
        ax.scatter(*zip(*found, strict=True), label=label, clip_on=False, **style) if found else None
    ax.set_xscale("log")
    ax.set_xlim(NEAREST, FARTHEST)
    labels = [f"{tick:g}" for tick in TICKS[:-1]] + [f"{FARTHEST:g} or more"]
    ax.set_xticks(TICKS, labels, fontsize=8)
    ax.minorticks_off()
    ax.set_yticks(range(len(tables)), [table.name for table in tables], fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.7, len(tables) - 0.3)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_xlabel("mean CRPS / that of the best peer of the table", fontsize=9)
    fig.legend(loc="outside upper center", ncols=5, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
    pyplot.close(fig)
    print(f"wrote {path}")


def _find_ratio(table: Comparison, method: str, default: float = 0.0) -> float:
    row = table.row(method)
    return default if row is None or row.versus is None else row.versus.ratio
