"""Plots of the checks: the four panels of a diagnosis, and the terms of the error bound."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binom

from localw2._validation import Array
from localw2.plots import DATA, MODEL, TRUTH, _pyplot

# More points would overlap and slow down drawing.
MAX_POINTS = 2000
INK = "#444a54"


def draw_pit(pit: Array, ax: Any) -> Any:
    """Histogram of PIT values (N,), with the band that holds 95 % of the bars if they are uniform."""
    n = len(pit)
    bins = int(np.clip(n // 15, 4, 20))
    low, high = binom.ppf([0.025, 0.975], n, 1 / bins) * bins / n
    counts, edges = np.histogram(pit, bins, (0, 1))
    ax.stairs(counts * bins / n, edges, fill=True, color=MODEL, alpha=0.55, label="observed")
    ax.axhline(1, color=INK, lw=1, label="calibrated")
    for level, label in ((low, "95 % of bars if calibrated"), (high, None)):
        ax.axhline(level, color=INK, lw=1, ls="--", label=label)
    ax.set(xlim=(0, 1), xlabel="rank of y among its draws (PIT)", ylabel="density")
    ax.set_ylim(0, 1.35 * max(high, counts.max() * bins / n))
    return _finish(ax, "Are all ranks equally likely?")


def draw_coverage(coverage: Array, ax: Any) -> Any:
    """Observed against nominal coverage, from (levels, 4): nominal, share, low, high."""
    nominal, share, low, high = coverage.T
    ax.plot([0, 1], [0, 1], color=INK, lw=1, label="calibrated")
    ends = np.clip([share - low, high - share], 0, None)
    ax.errorbar(nominal, share, ends, fmt="o", ms=5, capsize=3, color=MODEL, label="observed, 95 % interval")
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="nominal coverage", ylabel="observed coverage")
    return _finish(ax, "Do intervals cover as often as they should?")


def draw_pit_along(place: Array, pit: Array, name: str, ax: Any) -> Any:
    """PIT values (N,) against an input or a prediction (N,), with their quantiles in groups of rows."""
    shown = np.linspace(0, len(pit) - 1, min(len(pit), MAX_POINTS)).astype(int)
    ax.plot(place[shown], pit[shown], ".", ms=2.5, color=DATA, alpha=0.5, zorder=1)
    groups = _group_rows(place)
    centre = [np.median(place[rows]) for rows in groups]
    for level in (0.1, 0.5, 0.9):
        label = "10, 50 and 90 % quantiles, by group" if level == 0.5 else None
        ax.axhline(level, color=INK, lw=1, ls="--", zorder=2)
        found = [np.quantile(pit[rows], level) for rows in groups]
        ax.plot(centre, found, "o-", ms=3, lw=1.5, color=MODEL, label=label, zorder=3)
    ax.set(ylim=(0, 1.22), xlabel=name, ylabel="rank of y among its draws (PIT)")
    ax.set_yticks([0, 0.1, 0.5, 0.9, 1])
    return _finish(ax, f"Where is it wrong? Along {name}")


def draw_spread(std: Array, residual: Array, ax: Any) -> Any:
    """Observed against predicted spread in groups of rows with similar predicted SD (N,)."""
    groups = _group_rows(std)
    predicted = np.array([np.sqrt(np.mean(std[rows] ** 2)) for rows in groups])
    squares = [residual[rows] ** 2 for rows in groups]
    observed = np.array([np.sqrt(s.mean()) for s in squares])
    # Delta method on the mean square, which allows for heavy-tailed residuals.
    error = np.array([1.96 * s.std() / np.sqrt(len(s)) / (2 * max(s.mean() ** 0.5, 1e-300)) for s in squares])
    top = 1.08 * max(predicted.max(), (observed + error).max(), 1e-300)
    ax.plot([0, top], [0, top], color=INK, lw=1, label="calibrated")
    ends = [np.minimum(error, observed), error]
    ax.errorbar(
        predicted, observed, ends, fmt="o", ms=5, capsize=3, color=MODEL, label="groups of rows, 95 %"
    )
    ax.set(xlim=(0, top), ylim=(0, top), xlabel="predicted SD", ylabel="root mean square residual")
    return _finish(ax, "Is the spread right where it is large?")


def draw_diagnosis(
    pit: Array,
    coverage: Array,
    place: Array,
    name: str,
    std: Array,
    residual: Array,
    title: str,
    axes: Any = None,
) -> Any:
    """Draw the four panels of a diagnosis, ``coverage`` as for ``draw_coverage``. Returns the Axes."""
    if axes is None:
        size = {"figsize": (10, 7.6), "layout": "constrained"}
        figure, axes = _pyplot().subplots(2, 2, **size)
        figure.suptitle(title, fontsize=12)
    axes = np.asarray(axes).ravel()
    if len(axes) != 4:
        raise ValueError(f"axes has {len(axes)} entries; a diagnosis has 4 panels.")
    draw_pit(pit, axes[0])
    draw_coverage(coverage, axes[1])
    draw_pit_along(place, pit, name, axes[2])
    draw_spread(std, residual, axes[3])
    return axes


def draw_bound(
    deltas: Array, terms: dict[str, Array], best: float, constant: str, measured: Any = None, ax: Any = None
) -> Any:
    """Draw the bound and its terms (n,) against delta, measured errors on a second axis. Returns the Axes."""
    if ax is None:
        _, ax = _pyplot().subplots(figsize=(7.5, 5), layout="constrained")
    styles = [
        {"color": MODEL, "lw": 2.5},
        {"color": MODEL, "lw": 1.2, "ls": "--"},
        {"color": MODEL, "lw": 1.2, "ls": ":"},
        {"color": DATA, "lw": 1.2, "ls": "-."},
    ]
    for (label, values), style in zip(terms.items(), styles, strict=True):
        ax.plot(deltas, values, label=label, **style)
    ax.axvline(best, color=MODEL, lw=0.8, alpha=0.6, label=f"minimum of the bound, $\\delta$ = {best:.2g}")
    ax.set(xscale="log", yscale="log", xlabel=r"$\delta$", ylabel=f"bound, with C = {constant} assumed")
    handles, labels = ax.get_legend_handles_labels()
    if measured is not None:
        right = ax.twinx()
        at, errors = (np.asarray(values, dtype=np.float64) for values in measured)
        if at.shape != errors.shape or at.ndim != 1:
            raise ValueError(
                f"measured has shapes {at.shape} and {errors.shape}; pass (deltas, errors), (n,) each."
            )
        handles += right.plot(at, errors, "o-", ms=4, lw=1.5, color=TRUTH)
        labels.append("measured error (right axis)")
        right.set(yscale="log", ylabel="measured error")
        right.yaxis.label.set_color(TRUTH)
        right.spines["top"].set_visible(False)
    ax.legend(
        handles, labels, frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2
    )
    ax.spines["top"].set_visible(False)
    ax.set_title("Error bound: a rate, not a certificate", fontsize=11)
    return ax


def _group_rows(values: Array) -> list[Array]:
    """At most 10 groups of rows with similar values, at least 8 rows each where possible."""
    parts = int(np.clip(len(values) // 8, 1, 10))
    return [rows for rows in np.array_split(np.argsort(values, kind="stable"), parts) if len(rows)]


def _finish(ax: Any, title: str) -> Any:
    ax.set_title(title, fontsize=10.5)
    ax.legend(frameon=False, fontsize=8, loc="best")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
