"""Plots of subjects of a population: the visual predictive check, residuals, individual fits."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2._validation import Array, check_count
from localw2._wording import as_label
from localw2.plots.rows import _INK, DATA, MODEL, TRUTH, _names, _new_axes, _panels, _pyplot

MOST_SUBJECTS = 16  # panels of individual fits
_COLUMNS = 4
_TREND_BINS = 8  # places of the line through residuals, at most
_TREND_ROWS = 5  # residuals behind each of them, at least
_SD_90 = 1.645  # of a standard normal number, 90 % are within


def predictive_check(check: Any, names: Any = None, time: str = "time", axes: Any = None) -> Any:
    """Draw a visual predictive check, ``LocalW2ODE.predictive_check``, with one panel per quantity.

    Lines are quantiles of the observations in each bin of time; shaded are intervals of the same quantiles of
    simulated data sets. Where a line leaves its shade, the model misses something. ``names`` of the
    quantities and ``time`` are labels, with their units. Returns the Axes.
    """
    p = check.observed.shape[2]
    axes = [_new_axes()] if axes is None and p == 1 else _panels(axes, p)
    labels = _names(check.quantities if names is None else names, p)
    half = len(check.levels) / 2
    for c, ax in enumerate(axes):
        ax.plot(
            check.points[0], check.points[1][:, c], ".", ms=4, color=DATA, alpha=0.5, label="observations"
        )
        for q, level in enumerate(check.levels):
            known = np.isfinite(check.observed[q, :, c])
            at = check.time[known]
            middle = abs(q + 0.5 - half) < 0.5
            percent = f"{100 * check.coverage:.0f} %"
            label = f"simulated, {percent} interval of the quantile" if q == 0 else None
            ends = (part[q, known, c] for part in (check.lower, check.upper))
            ax.fill_between(
                at, *ends, color=MODEL, alpha=0.4 if middle else 0.22, lw=0, label=label, zorder=2
            )
            ax.plot(
                at,
                check.observed[q, known, c],
                "-" if middle else "--",
                color=_INK,
                marker="o",
                ms=3.5,
                lw=1.6,
                label=f"observed, {100 * level:.3g} %",
                zorder=3,
            )
        if check.limit is not None:
            ax.axhline(check.limit, color=TRUTH, lw=1, ls=":", label="limit of quantification")
        ax.set(xlabel=as_label(time), ylabel=as_label(labels[c]))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    return axes


def residuals(
    found: Any, quantity: int = 0, name: str | None = None, time: str = "time", axes: Any = None
) -> Any:
    """Draw the residuals of one quantity, ``LocalW2ODE.residuals``, by both kinds of predictions.

    In the first row predictions are those of the population, and residuals are ranks among simulated
    observations as normal numbers; in the second row predictions are each subject's own, and residuals are in
    SDs of the noise. They should lie around the line, nine of ten between the dashed ones, at every time and
    every prediction. ``name`` and ``time`` are labels, with their units. ``axes`` is (2, 3). Returns Axes.
    """
    quantity = check_count(
        quantity, "quantity", 0, len(found.quantities) - 1, "quantities are numbered from 0"
    )
    rows = found.quantity == quantity
    label = as_label(found.quantities[quantity] if name is None else name)
    if axes is None:
        figure, axes = _pyplot().subplots(2, 3, figsize=(10.5, 6.4), layout="constrained")
        figure.suptitle(label, fontsize=11)
    axes = np.asarray(axes)
    if axes.shape != (2, 3):
        raise ValueError(f"axes has shape {axes.shape}; expected (2, 3).")
    observed, below, when = found.observed[rows], found.below[rows], found.time[rows]
    kinds = (
        ("population", found.population[rows], found.normalised[rows], "normalised residual"),
        ("individual", found.individual[rows], found.standardised[rows], "standardised residual"),
    )
    for line, (kind, predicted, residual, words) in zip(axes, kinds, strict=True):
        _draw_identity(line[0], predicted, observed, below)
        line[0].set(xlabel=f"{kind} prediction", ylabel="observed")
        for ax, x, xlabel in (
            (line[1], when, as_label(time)),
            (line[2], predicted, f"{kind} prediction"),
        ):
            _draw_residuals(ax, x, residual, below)
            ax.set(xlabel=xlabel, ylabel=words)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    if below.any():
        axes[0, 0].legend(frameon=False, fontsize=8)
    return axes


def _draw_identity(ax: Any, predicted: Array, observed: Array, below: Array) -> None:
    """Observed against predicted values, around the line on which they are equal."""
    ax.plot(predicted[~below], observed[~below], ".", ms=5, color=DATA, alpha=0.7)
    if below.any():
        style = {"ms": 4, "mfc": "none", "mec": TRUTH, "alpha": 0.7}
        ax.plot(predicted[below], observed[below], "v", label="below the limit", **style)
    ends = [min(predicted.min(), observed.min()), max(predicted.max(), observed.max())]
    ax.plot(ends, ends, color=MODEL, lw=1.4)


def _draw_residuals(ax: Any, x: Array, residual: Array, below: Array) -> None:
    """Residuals along x, with 0, where nine of ten should lie, and their local mean."""
    known = np.isfinite(residual)
    ax.plot(x[known & ~below], residual[known & ~below], ".", ms=5, color=DATA, alpha=0.7)
    if (known & below).any():
        ax.plot(x[known & below], residual[known & below], "v", ms=4, mfc="none", mec=TRUTH, alpha=0.7)
    ax.axhline(0, color=MODEL, lw=1.4)
    for end in (-_SD_90, _SD_90):
        ax.axhline(end, color=MODEL, lw=1, ls="--")
    order = np.argsort(x[known], kind="stable")
    count = min(_TREND_BINS, len(order) // _TREND_ROWS)
    if count > 1:
        parts = np.array_split(order, count)
        place = [x[known][part].mean() for part in parts]
        ax.plot(place, [residual[known][part].mean() for part in parts], color=_INK, lw=1.6)
    top = 1.08 * max(3.0, float(np.abs(residual[known]).max(initial=0.0)))
    ax.set_ylim(-top, top)


def individual_fits(
    predictions: Any,
    data: Any,
    quantity: int = 0,
    coverage: float = 0.9,
    name: str = "y",
    time: str = "time",
    axes: Any = None,
) -> Any:
    """Draw single subjects: observations, their own prediction with its band, and that of the population.

    ``predictions`` is ``LocalW2ODE.individual_predictions``; ``data`` are pairs of times (T_i,) and values
    (T_i, p) for each subject, such as ``LongTable.paths()``. There is a panel for each of the first 16
    subjects. Returns their Axes.
    """
    n = min(len(predictions.subjects), MOST_SUBJECTS)
    if len(data) != len(predictions.subjects):
        raise ValueError(f"data has {len(data)} subjects and predictions {len(predictions.subjects)}.")
    if axes is None:
        columns = min(n, _COLUMNS)
        lines = -(-n // columns)
        size = (2.5 * columns + 0.5, 1.95 * lines + 0.7)
        figure, grid = _pyplot().subplots(
            lines, columns, figsize=size, layout="constrained", squeeze=False, sharex=True, sharey=True
        )
        axes = grid.ravel()[:n]
        for spare in grid.ravel()[n:]:
            spare.set_visible(False)
        for ax in grid[-1 if lines * columns == n else -2][n % columns :]:
            ax.tick_params(labelbottom=True)  # above an empty place
        figure.supxlabel(as_label(time), fontsize=10)
        figure.supylabel(as_label(name), fontsize=10)
    axes = np.ravel(axes)
    lower, upper = (part[..., quantity] for part in predictions.interval(coverage))
    mean = predictions.mean[..., quantity]
    for i, ax in enumerate(axes[:n]):
        at = predictions.times[i]
        known = np.isfinite(at)
        style = {"color": MODEL, "alpha": 0.25, "lw": 0, "label": f"individual, {100 * coverage:.0f} % band"}
        ax.fill_between(at[known], lower[i][known], upper[i][known], **style)
        ax.plot(at[known], mean[i][known], color=MODEL, lw=1.6, label="individual")
        own = predictions.population[i, known, quantity]
        ax.plot(at[known], own, color=TRUTH, lw=1.1, ls="--", label="population, mean")
        times, values = data[i]
        seen = np.isfinite(values[:, quantity])
        ax.plot(times[seen], values[seen, quantity], ".", ms=5, color=_INK, label="observed", zorder=3)
        ax.set_title(as_label(str(predictions.subjects[i])), fontsize=9, pad=3)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    style = {"frameon": False, "fontsize": 8}
    figure = axes[0].figure
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), **style)
    return axes
