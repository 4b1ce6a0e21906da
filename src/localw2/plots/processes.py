"""Plots of stochastic processes: paths, drift and diffusion, the long run, jumps."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2._validation import Array, as_array, as_rows, check_count
from localw2._wording import as_label
from localw2.plots.rows import (
    _INK,
    DATA,
    MODEL,
    MOST_LINES,
    TRUTH,
    _estimate_density,
    _names,
    _observed_lines,
    _panels,
    _pyplot,
    legend_above,
)

_BARS = 40  # of a histogram
_FEWEST_OF_KIND = 2  # values that a histogram needs


def paths(
    t: Any,
    samples: Any,
    data: Any = None,
    coverage: float = 0.9,
    names: Any = None,
    axes: Any = None,
    time: str = "time",
    shown: int = 2,
) -> Any:
    """Draw observed paths, the bands that hold half and ``coverage`` of simulated ones, and some of these.

    ``samples`` is (S, n, T, d), as ``LocalW2SDE.sample`` returns it (all S * n paths make the bands);
    ``data`` is Y (m, T, d) at the same times, or a list of pairs of times (T_i,) and values (T_i, d), such as
    ``LongTable.paths()``. There is one panel per state; ``names`` of the states and ``time`` are labels. The
    first ``shown`` simulated paths are lines: they should be as rough as the observed ones. Returns the Axes.
    """
    grid, lines = as_rows(t)[:, 0], as_array(samples, "samples")
    if lines.ndim != 4 or lines.shape[2] != len(grid):
        raise ValueError(f"samples has shape {lines.shape}; expected (S, n, {len(grid)}, d), one time per t.")
    shown = check_count(shown, "shown", 0)
    lines = lines.reshape(-1, *lines.shape[2:])
    d = lines.shape[2]
    labels, axes = _labels(names, d), _wide_panels(axes, d)
    observed = _observed_lines(data, grid, d)
    few = len(observed) <= MOST_LINES
    word = ("observed" if few else f"observed ({MOST_LINES} of {len(observed)})") if observed else None
    half = 1 - coverage
    levels = np.quantile(lines, [half / 2, 0.25, 0.5, 0.75, 1 - half / 2], axis=0)
    for i, ax in enumerate(axes):
        for j, (times, values) in enumerate(observed[:MOST_LINES]):
            seen = np.isfinite(values[:, i])
            style = {"lw": 1.0 if len(observed) == 1 else 0.6, "alpha": 0.9 if len(observed) == 1 else 0.5}
            ax.plot(times[seen], values[seen, i], color=DATA, label=None if j else word, **style)
        for low, high, alpha, share in ((0, 4, 0.16, coverage), (1, 3, 0.22, 0.5)):
            label = f"simulated, {100 * share:.3g} % band"
            ends = levels[low, :, i], levels[high, :, i]
            ax.fill_between(grid, *ends, color=MODEL, alpha=alpha, lw=0, label=label, zorder=3)
        for end in (0, 4):  # edges over the data, where the band alone would be hard to see
            ax.plot(grid, levels[end, :, i], color=MODEL, lw=0.9, zorder=4)
        for j, line in enumerate(lines[:shown]):
            style = {"lw": 0.9, "alpha": 0.9, "zorder": 5}
            ax.plot(grid, line[:, i], color=TRUTH, label=None if j else "simulated path", **style)
        ax.set(xlabel=as_label(time), ylabel=labels[i])
        ax.spines[["top", "right"]].set_visible(False)
    legend_above(axes[0])
    return axes


def coefficients(found: Any, names: Any = None, truth: Any = None, axes: Any = None) -> Any:
    """Draw drift and diffusion along each state, ``LocalW2SDE.coefficients_along``, over observed states.

    A column has one state: its drift, its diffusion (SD per root of time) and, with jumps, their rate. Lines
    are the fit, the other states at their medians, with a band that holds most paths if parameters vary
    between them, or the truth by the standard errors of networks, if there are no jumps; dots are the fit
    plus what observed transitions show beyond simulated ones of the same lags, with two standard errors.
    Bars at the bottom show where states were observed. ``truth`` is a pair of functions of states (N, d), or
    None. ``names`` are those of the states. ``axes`` is (2 or 3, d). Returns the Axes.
    """
    d, kinds = len(found.place), 2 if found.rate is None else 3
    labels = _labels(names, d)
    if axes is None:
        size = (3.6 * d + 3.2 if d == 1 else 3.7 * d + 0.4, 2.5 * kinds + 0.4)
        axes = _pyplot().subplots(kinds, d, figsize=size, layout="constrained", squeeze=False)[1]
    axes = np.asarray(axes)
    if axes.shape != (kinds, d):
        raise ValueError(f"axes has shape {axes.shape}; expected ({kinds}, {d}).")
    percent = f"{100 * found.coverage:.3g} %"
    for j in range(d):
        at, name = found.place[j], labels[j]
        for k, lines in enumerate((found.drift[:, j], found.diffusion[:, j])):
            ax = axes[k, j]
            if found.varies or found.sure:
                label = f"{percent} of paths" if found.varies else f"{percent} band of the fit"
                ax.fill_between(at, lines[1], lines[2], color=MODEL, alpha=0.25, lw=0, label=label)
            ax.plot(
                at, lines[0], color=MODEL, lw=2, label="fit, median path" if found.varies else "fit", zorder=4
            )
            if found.bins is not None:
                place, *pairs = found.bins[j]
                value, error = pairs[2 * k : 2 * k + 2]
                inside = (place >= at[0]) & (place <= at[-1])
                style = {"fmt": "o", "ms": 3.5, "color": _INK, "elinewidth": 0.9, "zorder": 3}
                ax.errorbar(
                    place[inside],
                    value[inside],
                    2 * error[inside],
                    label="from observed transitions",
                    **style,
                )
            if truth is not None:
                line = np.tile(np.median(found.seen, axis=0), (len(at), 1))
                line[:, j] = at
                true = np.asarray(truth[k](line), dtype=np.float64)
                true = np.sqrt((true**2).sum(2)) if true.ndim == 3 else true
                ax.plot(at, true[:, j], color=TRUTH, lw=1.5, ls="--", label="truth", zorder=5)
        axes[0, j].axhline(0, color=_INK, lw=0.7, zorder=1)
        axes[0, j].set_ylabel(f"drift of {name}")
        axes[1, j].set_ylabel(f"diffusion of {name}")
        axes[1, j].set_ylim(bottom=0, top=1.1 * axes[1, j].get_ylim()[1])
        if found.rate is not None:
            axes[2, j].plot(at, found.rate[j], color=MODEL, lw=2)
            axes[2, j].set_ylabel("jumps per unit of time")
            axes[2, j].set_ylim(0, 1.25 * max(float(found.rate[j].max()), 1e-300))
        for ax in axes[:, j]:
            ax.set_xlim(at[0], at[-1])
            ax.set_xlabel(name)
            ax.spines[["top", "right"]].set_visible(False)
            _draw_occupation(ax, found.seen[:, j], at)
    legend_above(axes[0, 0])
    return axes


def long_run(found: Any, names: Any = None, axes: Any = None) -> Any:
    """Draw the long-run density of simulated states, ``LocalW2SDE.long_run``, over the observed states.

    There is one panel per state. If the paths had not settled, the density is that of the last time. Returns
    the Axes.
    """
    d = found.seen.shape[1]
    labels, axes = _labels(names, d), _panels(axes, d)
    word = "simulated, long run" if found.settled else f"simulated, after {found.time:.3g} (not settled)"
    for i, ax in enumerate(axes):
        seen, states = found.seen[:, i], found.states[:, i]
        low, high = _limits(np.concatenate([seen, states]) if len(states) else seen)
        style = {"density": True, "color": DATA, "alpha": 0.45, "label": "observed, all times"}
        ax.hist(seen, np.linspace(low, high, _BARS + 1), **style)
        if len(states) > _FEWEST_OF_KIND and np.ptp(states) > 0:
            (at,), shares, _ = _estimate_density(states[:, None])
            density = shares / (at[1] - at[0])
            ax.fill_between(at, 0, density, color=MODEL, alpha=0.15, lw=0)
            ax.plot(at, density, color=MODEL, lw=2, ls="-" if found.settled else "--", label=word)
        ax.set(xlabel=labels[i], ylabel="density", xlim=(low, high))
        ax.set_ylim(bottom=0)
        ax.spines[["top", "right"]].set_visible(False)
    legend_above(axes[0])
    return axes


def jumps(found: Any, names: Any = None, axes: Any = None) -> Any:
    """Draw observed transitions and the law of jumps, ``LocalW2SDE.compare_transitions``.

    For each state, on the left are the increments between observations, on a logarithmic scale: observed,
    simulated, and simulated without jumps. On the right is the law of the sizes of jumps, over the observed
    increments (less the drift) that diffusion alone hardly explains. ``axes`` is (d, 2). Returns the Axes.
    """
    d = found.observed.shape[1]
    labels = _labels(names, d)
    if axes is None:
        axes = _pyplot().subplots(d, 2, figsize=(8.6, 3 * d + 0.4), layout="constrained", squeeze=False)[1]
    axes = np.asarray(axes)
    if axes.shape != (d, 2):
        raise ValueError(f"axes has shape {axes.shape}; expected ({d}, 2).")
    for i, (left, right) in enumerate(axes):
        name = labels[i]
        low, high = _limits(np.concatenate([found.observed[:, i], found.simulated[:, i]]), 0.0005)
        edges = np.linspace(low, high, _BARS + 1)
        bars = {"density": True, "bins": edges}
        left.hist(found.observed[:, i], color=DATA, alpha=0.5, label="observed", **bars)
        for values, color, style, label in (
            (found.simulated[:, i], MODEL, "-", "simulated"),
            (found.without[:, i], TRUTH, "--", "simulated without jumps"),
        ):
            line = {"histtype": "step", "color": color, "ls": style, "lw": 1.6, "label": label}
            left.hist(values, **bars, **line)
        left.set_yscale("log")
        fewest = 1 / (len(found.observed) * (edges[1] - edges[0]))
        left.set_ylim(bottom=0.3 * fewest)
        left.set(xlabel=f"increment of {name} over {found.lag:.3g}", ylabel="density (logarithmic)")
        jumped, sizes = found.jumped[:, i], found.sizes[:, i]
        low, high = _limits(np.concatenate([jumped, sizes]))
        if len(jumped) >= _FEWEST_OF_KIND:
            bins = np.linspace(low, high, int(np.clip(2 * len(jumped) ** 0.5, 8, _BARS)) + 1)
            word = f"{len(jumped)} observed increments beyond diffusion"
            right.hist(jumped, bins, density=True, color=DATA, alpha=0.5, label=word)
        if np.ptp(sizes) > 0:
            (at,), shares, _ = _estimate_density(sizes[:, None])
            right.plot(at, shares / (at[1] - at[0]), color=MODEL, lw=2, label="law of sizes")
        else:
            right.axvline(sizes[0], color=MODEL, lw=2, label="law of sizes")
        right.set(xlabel=f"size of a jump of {name}", ylabel="density", xlim=(low, high))
        for ax in (left, right):
            ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[0]:
        legend_above(ax, 1)
    return axes


def _labels(names: Any, d: int) -> list[str]:
    """Names of states as they are, or symbols."""
    found = _names(names, d)
    return found if names is None else [as_label(str(name)) for name in found]


def _wide_panels(axes: Any, d: int) -> Any:
    """The Axes given, or d new panels that are wide enough for paths."""
    if axes is not None or d > 1:
        return _panels(axes, d)
    return [_pyplot().subplots(figsize=(7.4, 3.6), layout="constrained")[1]]


def _limits(values: Array, tail: float = 0.002) -> tuple[float, float]:
    """Ends of an axis that holds nearly all values."""
    low, high = np.quantile(values, [tail, 1 - tail])
    pad = 0.06 * (high - low) or max(0.5, 1e-3 * abs(low))
    return float(low - pad), float(high + pad)


def _draw_occupation(ax: Any, seen: Array, at: Array) -> None:
    """Where states were observed: low bars at the bottom of a panel, without a scale of their own."""
    counts, edges = np.histogram(seen, _BARS, (at[0], at[-1]))
    height = 0.16 * counts / max(counts.max(), 1)
    place = {"transform": ax.get_xaxis_transform(), "zorder": 0.5, "align": "edge"}
    ax.bar(edges[:-1], height, np.diff(edges), color=DATA, alpha=0.4, lw=0, **place)
