"""Plots of a conditional test: the null sample, and a map of where the distributions differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from localw2._validation import Array
from localw2.plots.rows import DATA, MODEL, TRUTH, _panels

if TYPE_CHECKING:
    from localw2.judging.swap_test.conditional import ConditionalTest

# An input is cut into this many groups, whose mean z are compared, to find where z varies most.
GROUPS = 8


def draw_test(test: ConditionalTest, axes: Any = None) -> Any:
    """Draw the null sample with the statistic and, if there are several balls, the map; return the Axes."""
    axes = _panels(axes, 1 if test.has_place.sum() < 2 else 2)
    axes[0].hist(test.null, bins="auto", color=DATA, alpha=0.6, label=f"after {len(test.null)} swaps")
    axes[0].axvline(test.statistic, color=TRUTH, lw=2, label=f"observed, p = {test.pvalue:.3g}")
    several = len(test.deltas) > 1
    axes[0].set(xlabel="largest z of the deltas" if several else "local squared W2", ylabel="swaps")
    if len(axes) == 2:
        (_draw_plane if test.center_x.shape[1] == 2 else _draw_line)(axes[1], test)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        if ax.get_legend_handles_labels()[0]:
            # Above the axes, because the observed line may be anywhere inside them.
            above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3, "columnspacing": 1.2}
            ax.legend(frameon=False, fontsize=8, **above)
    return axes


def _select(test: ConditionalTest) -> tuple[Array, Array, Array]:
    """Centres, z and rejections of the balls that have a place on a map."""
    shown = test.has_place
    return test.center_x[shown], test.ball_statistics[shown], test.rejected_balls[shown]


def _draw_line(ax: Any, test: ConditionalTest) -> None:
    x, z, rejected = _select(test)
    column = 0 if x.shape[1] == 1 else find_strongest_input(x, z)
    for chosen, color, label in ((~rejected, MODEL, "ball"), (rejected, TRUTH, "ball, rejected")):
        if chosen.any():
            ax.plot(x[chosen, column], z[chosen], ".", ms=5, alpha=0.7, color=color, label=label)
    if np.isfinite(test.ball_limit):
        ax.axhline(test.ball_limit, color=DATA, lw=1, ls="--", label="limit for all balls jointly")
    ax.set(xlabel="x" if x.shape[1] == 1 else f"$x_{{{column + 1}}}$ of the centre", ylabel="z of the ball")


def _draw_plane(ax: Any, test: ConditionalTest) -> None:
    (x, z, rejected), limit = _select(test), test.ball_limit
    far = max(float(np.abs(z).max()), limit if np.isfinite(limit) else 0.0, 1.0)
    points = ax.scatter(*x.T, c=z, cmap="RdBu_r", vmin=-far, vmax=far, s=22, lw=0)
    if rejected.any():
        ax.scatter(*x[rejected].T, facecolors="none", edgecolors="black", s=34, lw=0.8, label="rejected")
    ax.figure.colorbar(points, ax=ax, label="z of the ball")
    ax.set(xlabel="$x_1$", ylabel="$x_2$")


def find_strongest_input(x: Array, z: Array) -> int:
    """The column of x (n, p) whose groups (by rank) differ most in mean z (n,).

    >>> x = np.random.default_rng(0).uniform(size=(200, 3))
    >>> find_strongest_input(x, (x[:, 1] - 0.5) ** 2)
    1
    """
    explained = []
    for column in x.T:
        _, rank = np.unique(column, return_inverse=True)  # equal values share a group
        group = rank * min(GROUPS, rank.max() + 1) // (rank.max() + 1)
        count = np.bincount(group)
        means = np.bincount(group, weights=z) / np.maximum(count, 1)
        explained.append(float((count * (means - z.mean()) ** 2).sum()))
    return int(np.argmax(explained))
