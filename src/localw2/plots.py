"""Plots from arrays, returned as matplotlib Axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2._validation import as_array, as_rows

DATA, MODEL, TRUTH = "#8a8f98", "#1f6fb4", "#c8442c"
MOST_LINES = 50  # observed trajectories that are drawn


def band(
    x: Any,
    mean: Any,
    lower: Any,
    upper: Any,
    data: tuple[Any, Any] | None = None,
    truth: tuple[Any, Any, Any] | None = None,
    coverage: float = 0.9,
    ax: Any = None,
) -> Any:
    """Plot the mean and interval of the outputs along one input, with the data and, if known, the truth.

    ``x``, ``mean``, ``lower`` and ``upper`` are (n,); ``data`` is (x, y) of the rows; ``truth`` is the true
    mean, lower end and upper end. Returns the Axes.
    """
    grid = as_rows(x)[:, 0]
    order = np.argsort(grid)
    fit = {name: as_array(v, name) for name, v in (("mean", mean), ("lower", lower), ("upper", upper))}
    for name, values in fit.items():
        if values.shape != grid.shape:
            raise ValueError(f"{name} has shape {values.shape} and x has {grid.shape}; they must agree.")
    grid, middle, low, high = (values[order] for values in (grid, *fit.values()))
    ax = _new_axes() if ax is None else ax
    if data is not None:
        at, observed = as_rows(data[0])[:, 0], as_array(data[1], "y")
        ax.plot(at, observed, ".", ms=3, color=DATA, alpha=0.6, label="data", zorder=1)
    percent = f"{100 * coverage:.0f} %"
    ax.fill_between(grid, low, high, color=MODEL, alpha=0.25, lw=0, label=f"fit, {percent} band")
    ax.plot(grid, middle, color=MODEL, lw=2, label="fit, mean")
    if truth is not None:
        true_mean, *ends = (as_array(v, "truth")[order] for v in truth)
        ax.plot(grid, true_mean, color=TRUTH, lw=1.5, ls="--", label="truth, mean")
        for end, label in zip(ends, (f"truth, {percent} band", None), strict=True):
            ax.plot(grid, end, color=TRUTH, lw=1, ls=":", label=label)
    return _finish([ax], "x", ["y"], fontsize=9)[0]


def trajectories(
    t: Any, samples: Any, data: Any = None, coverage: float = 0.9, names: Any = None, axes: Any = None
) -> Any:
    """Plot the mean and interval of trajectories over the observed lines, with one panel per state.

    ``samples`` is (S, n, T, d), as ``LocalW2ODE.sample`` returns it (all S * n lines make the band); ``data``
    is Y (m, T, d) at the same times, with NaN for missing values. Returns the array of Axes.
    """
    grid, lines = as_rows(t)[:, 0], as_array(samples, "samples")
    if lines.ndim != 4 or lines.shape[2] != len(grid):
        raise ValueError(f"samples has shape {lines.shape}; expected (S, n, {len(grid)}, d), one time per t.")
    lines = lines.reshape(-1, *lines.shape[2:])
    d = lines.shape[2]
    names, axes = _names(names, d), _panels(axes, d)
    low, high = np.quantile(lines, [(1 - coverage) / 2, (1 + coverage) / 2], axis=0)
    observed = np.empty((0, len(grid), d)) if data is None else np.asarray(data, dtype=np.float64)
    if observed.ndim == 2 and d == 1:
        observed = observed[..., None]
    if observed.shape[1:] != (len(grid), d):
        raise ValueError(f"data has shape {observed.shape}; expected (trajectories, {len(grid)}, {d}).")
    shown = "data" if len(observed) <= MOST_LINES else f"data ({MOST_LINES} of {len(observed)})"
    for i, ax in enumerate(axes):
        for j, line in enumerate(observed[:MOST_LINES, :, i]):
            seen = np.isfinite(line)
            label = None if j else shown
            ax.plot(grid[seen], line[seen], color=DATA, lw=0.6, alpha=0.5, label=label)
        label = f"fit, {100 * coverage:.0f} % band"
        ax.fill_between(grid, low[:, i], high[:, i], color=MODEL, alpha=0.25, lw=0, label=label, zorder=3)
        for edge in (low, high):  # edges over the data, where the band alone would be hard to see
            ax.plot(grid, edge[:, i], color=MODEL, lw=1, zorder=4)
        ax.plot(grid, lines[:, :, i].mean(0), color=MODEL, lw=2, label="fit, mean", zorder=4)
    return _finish(axes, "t", names)


def field_along(z: Any, fit: Any, truth: Any = None, names: Any = None, axes: Any = None) -> Any:
    """Plot the mean and standard deviation of a field along a line of states, with one panel per component.

    ``z`` (n,) is the position on the line; ``fit`` (S, n, d) are draws of the field there, and ``truth``
    (S', n, d) those of the true field. One standard deviation around the mean is shaded. Returns the Axes.
    """
    place, draws = as_rows(z)[:, 0], as_array(fit, "fit")
    if draws.ndim != 3 or draws.shape[1] != len(place):
        raise ValueError(f"fit has shape {draws.shape}; expected (S, {len(place)}, d), one state per z.")
    d = draws.shape[2]
    names, axes = _names(names, d, "g"), _panels(axes, d)
    for i, ax in enumerate(axes):
        mean, std = draws[..., i].mean(0), draws[..., i].std(0)
        shade = {"color": MODEL, "alpha": 0.25, "lw": 0, "label": "fit, mean \u00b1 SD"}
        ax.fill_between(place, mean - std, mean + std, **shade)
        ax.plot(place, mean, color=MODEL, lw=2)
        if truth is not None:
            true = as_array(truth, "truth")[..., i]
            for sign, label in ((0, "truth, mean"), (1, "truth, mean \u00b1 SD"), (-1, None)):
                style = {"ls": "--", "lw": 1.5} if sign == 0 else {"ls": ":", "lw": 1.2}
                ax.plot(place, true.mean(0) + sign * true.std(0), color=TRUTH, label=label, **style)
    return _finish(axes, "position on the line, z", names)


def ball_scores(lines: Any, chosen: tuple[float, float], ax: Any = None) -> Any:
    """Plot held-out score against ball size, one line per kind of ball, with the choice circled.

    ``lines`` maps a name to (rows per ball, score, standard error of its difference from the best) of its
    balls. Returns the Axes.
    """
    ax = _new_axes() if ax is None else ax
    for i, (name, points) in enumerate(lines.items()):
        size, score, error = np.array(sorted(points)).T
        style = {"ls": "--" if "radius" in name else "-", "color": f"C{i}", "label": name}
        ax.errorbar(size, score, yerr=error, marker="o", ms=4, capsize=2, lw=1.4, elinewidth=0.7, **style)
    ax.plot(*chosen, "o", ms=13, mfc="none", mec="black", mew=1.5, label="chosen")
    ax.axhline(1, color=DATA, lw=1, label="whole sample as forecast")
    ax.set_xscale("log")
    ticks = sorted({round(size) for size, *_ in next(iter(lines.values()))})
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    return _finish([ax], "rows in the median ball", ["held-out CRPS, relative"], fontsize=9)[0]


def _finish(axes: Any, xlabel: str, names: list[str], fontsize: int = 8) -> Any:
    """Label the panels, with a legend in the first."""
    for ax, name in zip(axes, names, strict=True):
        ax.set(xlabel=xlabel, ylabel=name)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=fontsize)
    return axes


def _new_axes() -> Any:
    return _pyplot().subplots(figsize=(7, 4.5), layout="constrained")[1]


def _panels(axes: Any, d: int) -> Any:
    """The Axes given, or d new panels in two columns."""
    if axes is not None:
        axes = np.atleast_1d(axes)
        if len(axes) != d:
            raise ValueError(f"axes has {len(axes)} entries for {d} panels; give one for each.")
        return axes
    columns = min(d, 2)
    rows = -(-d // columns)
    size = (4.2 * columns + 0.6, 2.9 * rows + 0.3)
    _, grid = _pyplot().subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for spare in grid.ravel()[d:]:
        spare.set_visible(False)
    return grid.ravel()[:d]


def _names(names: Any, d: int, letter: str = "y") -> list[str]:
    if names is None:
        return [letter] if d == 1 else [f"${letter}_{i + 1}$" for i in range(d)]
    if len(names) != d:
        raise ValueError(f"names has {len(names)} entries for {d} panels; give one for each.")
    return list(names)


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'localw2[plot]'") from None
    return plt
