"""The figure of the comparison: a panel per table, a dot per method, bars of one standard error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from comparison import Comparison, Row
from methods import METHODS

OURS, PEER, BASELINE = "#1f6fb4", "#c8442c", "#8a8f98"
COLORS = {"ours": OURS, "peer": PEER, "baseline": BASELINE}
FARTHEST = 2.0  # larger ratios are written at the edge: one bad method would hide all differences
COLUMNS = 3


def draw_dots(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw the mean CRPS divided by that of the best peer on each table, as a PNG."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    methods = [method for method in METHODS if method.group in COLORS]
    columns = min(COLUMNS, len(comparisons))
    lines = -(-len(comparisons) // columns)
    size = (1.9 + 2.5 * columns, lines * (0.9 + 0.27 * len(methods)))
    fig, axes = pyplot.subplots(
        lines, columns, figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for ax in axes.flat[len(comparisons) :]:
        ax.set_visible(False)
    for ax, comparison in zip(axes.flat, comparisons, strict=False):
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.axvline(1, color="black", lw=0.8)
        ax.set_xlim(_find_left_edge(comparison), FARTHEST + 0.12)
        for height, method in enumerate(reversed(methods)):
            row = comparison.row(method.name)
            ax.axhline(height, color="#e6e8eb", lw=0.8, zorder=0)
            if row is not None:
                _draw_dot(ax, row, height)
        ax.set_title(f"{comparison.name}, {comparison.splits} splits", fontsize=9, loc="left")
        ax.set_xlabel("CRPS / that of the best peer", fontsize=8)
    axes[0, 0].set_yticks(range(len(methods)), [method.name for method in reversed(methods)])
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
    pyplot.close(fig)
    print(f"wrote {path}")


def _find_left_edge(comparison: Comparison) -> float:
    """A round number below every bar."""
    ends = [row.versus.ratio - row.versus.ratio_error for row in comparison.rows if row.versus is not None]
    return min([0.8, *(end - 0.05 for end in ends if end == end)])


def _draw_dot(ax: Any, row: Row, height: int) -> None:
    words = {"fontsize": 7.5, "va": "center", "color": COLORS[row.group]}
    if row.versus is None:
        ax.text(1.03, height, row.lacking.split(" (")[0] or "no common split", **words)
        return
    ratio, error = row.versus.ratio, row.versus.ratio_error
    if ratio > FARTHEST:
        ax.text(FARTHEST + 0.1, height, f"{ratio:.1f} →", ha="right", **words)
        return
    bar = None if error != error else error
    ax.errorbar(ratio, height, xerr=bar, fmt="o", ms=5, capsize=2.5, elinewidth=1.2, color=COLORS[row.group])
