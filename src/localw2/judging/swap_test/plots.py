"""Plots of a conditional test: the null sample, and a map of where the distributions differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2._validation import Array
from localw2.plots import DATA, MODEL, TRUTH, _panels

# An input is cut into this many groups, whose mean z are compared, to find where z varies most.
GROUPS = 8


def draw_test(
    null: Array, statistic: float, pvalue: float, where: tuple[Array, Array, Array, float], axes: Any = None
) -> Any:
    """Draw the null sample (B,) with the statistic and, if there are several balls, the map; return the Axes.

    ``where`` holds x of the centres (n, p), z (n,), a mask of rejected balls (n,), and the z to be exceeded.
    """
    axes = _panels(axes, 1 if len(where[0]) == 1 else 2)
    _draw_null(axes[0], null, statistic, pvalue)
    if len(axes) == 2:
        (_draw_plane if where[0].shape[1] == 2 else _draw_line)(axes[1], *where)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return axes


def _draw_null(ax: Any, null: Array, statistic: float, pvalue: float) -> None:
    ax.hist(null, bins="auto", color=DATA, alpha=0.6, label=f"after {len(null)} swaps")
    ax.axvline(statistic, color=TRUTH, lw=2, label=f"observed, p = {pvalue:.3g}")
    ax.set_xlabel("local squared W2")
    ax.set_ylabel("swaps")
    _legend_above(ax)


def _draw_line(ax: Any, x: Array, z: Array, rejected: Array, limit: float) -> None:
    column = 0 if x.shape[1] == 1 else find_strongest_input(x, z)
    for chosen, color, label in ((~rejected, MODEL, "ball"), (rejected, TRUTH, "ball, rejected")):
        if chosen.any():
            ax.plot(x[chosen, column], z[chosen], ".", ms=5, alpha=0.7, color=color, label=label)
    if np.isfinite(limit):
        ax.axhline(limit, color=DATA, lw=1, ls="--", label="limit for all balls jointly")
    ax.set_xlabel("x" if x.shape[1] == 1 else f"$x_{{{column + 1}}}$ of the centre")
    ax.set_ylabel("z of the ball")
    _legend_above(ax)


def _draw_plane(ax: Any, x: Array, z: Array, rejected: Array, limit: float) -> None:
    far = max(float(np.abs(z).max()), limit if np.isfinite(limit) else 0.0, 1.0)
    points = ax.scatter(*x.T, c=z, cmap="RdBu_r", vmin=-far, vmax=far, s=22, lw=0)
    if rejected.any():
        ax.scatter(*x[rejected].T, facecolors="none", edgecolors="black", s=34, lw=0.8, label="rejected")
        _legend_above(ax)
    ax.figure.colorbar(points, ax=ax, label="z of the ball")
    ax.set_xlabel("$x_1$")
    ax.set_ylabel("$x_2$")


def _legend_above(ax: Any) -> None:
    """Above the axes, because the observed line may be anywhere inside them."""
    ax.legend(
        frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2
    )


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
