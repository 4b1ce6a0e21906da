"""Plots of rows, trajectories and laws of several outputs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.ndimage import gaussian_filter

from localw2._validation import Array, as_array, as_rows
from localw2._wording import as_label, show_controls

DATA, MODEL, TRUTH = "#8a8f98", "#1f6fb4", "#c8442c"
MOST_LINES = 50  # observed trajectories that are drawn
MOST_OUTPUTS = 6  # of a plot with panels for each: more would be too small to read
REGIONS = (0.9, 0.5)  # shares of the draws that the shaded regions of a pairs plot hold

_DAY = np.timedelta64(1, "D")
_MOST_BARS = 12  # columns of a picture of importance
_INK = "#444a54"  # of observed rows over shaded regions, where grey would be hard to see
_ROW_COLORS = (MODEL, "#b8641a", "#2c8a5b", "#8a5aa8")  # one for each input of a pairs plot
MOST_LAWS = len(_ROW_COLORS)
_SHADES = (0.22, 0.5)  # opacities of the regions
_MOST_DOTS = 600  # of a panel; more would hide each other
_CELLS = {1: 200, 2: 80}  # of a density, along each axis
_WIDTHS = (0.15, 0.25, 0.4, 0.65, 1.0)  # of its kernel, in units of that for a Gaussian
_PANEL = {2: 2.9, 3: 2.4, 4: 2.0, 5: 1.75, 6: 1.55}  # inches, by the number of outputs


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
    return _finish([ax], "x", ["y"])[0]


def trajectories(
    t: Any,
    samples: Any,
    data: Any = None,
    coverage: float = 0.9,
    names: Any = None,
    axes: Any = None,
    time: str = "t",
) -> Any:
    """Plot the mean and interval of trajectories over the observed lines, with one panel per state.

    ``samples`` is (S, n, T, d), as ``LocalW2ODE.sample`` returns it (all S * n lines make the band); ``data``
    is Y (m, T, d) at the same times, with NaN for missing values, or a list of pairs of times (T_i,) and
    values (T_i, d) of trajectories with their own times, such as ``LongTable.paths()``. ``names`` are labels
    of the states and ``time`` that of the times, with their units. Returns the array of Axes.
    """
    grid, lines = as_rows(t)[:, 0], as_array(samples, "samples")
    if lines.ndim != 4 or lines.shape[2] != len(grid):
        raise ValueError(f"samples has shape {lines.shape}; expected (S, n, {len(grid)}, d), one time per t.")
    lines = lines.reshape(-1, *lines.shape[2:])
    d = lines.shape[2]
    names, axes = _names(names, d), _panels(axes, d)
    low, high = np.quantile(lines, [(1 - coverage) / 2, (1 + coverage) / 2], axis=0)
    observed = _observed_lines(data, grid, d)
    shown = "data" if len(observed) <= MOST_LINES else f"data ({MOST_LINES} of {len(observed)})"
    for i, ax in enumerate(axes):
        for j, (times, values) in enumerate(observed[:MOST_LINES]):
            seen = np.isfinite(values[:, i])
            label = None if j else shown
            ax.plot(times[seen], values[seen, i], color=DATA, lw=0.6, alpha=0.5, label=label)
        label = f"fit, {100 * coverage:.0f} % band"
        ax.fill_between(grid, low[:, i], high[:, i], color=MODEL, alpha=0.25, lw=0, label=label, zorder=3)
        for edge in (low, high):  # edges over the data, where the band alone would be hard to see
            ax.plot(grid, edge[:, i], color=MODEL, lw=1, zorder=4)
        ax.plot(grid, lines[:, :, i].mean(0), color=MODEL, lw=2, label="fit, mean", zorder=4)
    return _finish(axes, as_label(time), names, above=True)


def _observed_lines(data: Any, grid: Array, d: int) -> list[tuple[Array, Array]]:
    """Times (T_i,) and values (T_i, d) of observed trajectories."""
    if data is None:
        return []
    if isinstance(data, list) and data and isinstance(data[0], tuple):
        lines = [(np.asarray(times, dtype=np.float64), np.asarray(y, dtype=np.float64)) for times, y in data]
        lines = [(times, values.reshape(len(values), -1)) for times, values in lines]
        if wrong := [(t.shape, y.shape) for t, y in lines if t.shape != (len(y),) or y.shape[1] != d]:
            raise ValueError(
                f"data has times {wrong[0][0]} and values {wrong[0][1]}; expected (T,), (T, {d})."
            )
        return lines
    observed = np.asarray(data, dtype=np.float64)
    if observed.ndim == 2 and d == 1:
        observed = observed[..., None]
    if observed.shape[1:] != (len(grid), d):
        raise ValueError(f"data has shape {observed.shape}; expected (trajectories, {len(grid)}, {d}).")
    return [(grid, values) for values in observed]


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
    return _finish(axes, "position on the line, z", names, above=True)


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
    return _finish([ax], "rows in the median ball", ["held-out CRPS, relative"])[0]


def importance(law: Any, mean: Any, names: Any = None, axes: Any = None) -> Any:
    """Plot how much each column matters for the law and for the mean, side by side.

    ``law`` and ``mean`` are (p, n_repeats), the increase of the CRPS and of the squared error if a column is
    shuffled, as ``column_importance`` returns them; columns are in the order of the first, the most important
    12 if there are more. Bars are means over repeats, lines one standard deviation. Returns the two Axes.
    """
    both = [as_array(values, name) for values, name in ((law, "law"), (mean, "mean"))]
    if both[0].ndim != 2 or both[0].shape != both[1].shape:
        raise ValueError(f"law has shape {both[0].shape} and mean {both[1].shape}; expected (p, n_repeats).")
    p = len(both[0])
    labels = [_fold(name, 2) for name in _names(names, p, "x")] if names is not None else _names(None, p, "x")
    shown = np.argsort(-both[0].mean(1), kind="stable")[:_MOST_BARS][::-1]
    if axes is None:
        size = (7.5, 1.25 + 0.34 * max(2, len(shown)))
        axes = _pyplot().subplots(1, 2, figsize=size, layout="constrained", sharey=True)[1]
    words = ("CRPS,\nin SDs of y", "squared error,\nin variances of y")
    titles = ("The whole distribution", "Its mean")
    for ax, values, word, title, color in zip(axes, both, words, titles, (MODEL, DATA), strict=True):
        height, error = values[shown].mean(1), values[shown].std(1)
        ax.barh(np.arange(len(shown)), height, 0.62, color=color, alpha=0.75)
        ax.errorbar(height, np.arange(len(shown)), xerr=error, fmt="none", ecolor=_INK, elinewidth=1.2)
        room = max(float((height + error).max()), 1e-3)
        ax.set_xlim(min(0.0, 1.1 * float((height - error).min())), 1.22 * room)
        for i, end in enumerate(np.maximum(height + error, 0)):  # a small one beside a large one is a number
            ax.text(end + 0.02 * room, i, f"{height[i]:z.3f}", va="center", fontsize=8.5)
        ax.axvline(0, color=_INK, lw=0.8)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel(f"increase of the {word}", fontsize=9)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.locator_params(axis="x", nbins=5)
    axes[0].set_yticks(np.arange(len(shown)), [labels[j] for j in shown])
    axes[1].tick_params(labelleft=False)
    if p > len(shown):
        axes[0].set_ylabel(f"{len(shown)} of {p} columns", fontsize=9)
    return axes


def dependence(
    grid: Any, values: Any, of: Any, name: str = "x", data: Any = None, output: str = "y", axes: Any = None
) -> Any:
    """Plot quantities of a law along a column: quantiles and the mean, and the spread in a panel of its own.

    ``grid`` (G,) are values of the column (numbers, dates or categories, a missing one last), ``values``
    (len(of), G) the quantities ``of`` (levels, "mean", "spread") there, as ``column_dependence`` returns
    them; ``data`` are values of the column in the rows, shown as ticks. Returns one or two Axes.
    """
    kinds = list(of)
    numbers = as_array(values, "values")
    if numbers.shape != (len(kinds), len(grid)):
        raise ValueError(f"values has shape {numbers.shape}; expected ({len(kinds)}, {len(grid)}).")
    panels = [part for part in ([k for k in kinds if k != "spread"], ["spread"]) if set(part) & set(kinds)]
    axes = _panels(axes, len(panels))
    for ax, part in zip(axes, panels, strict=True):
        lines = {kind: numbers[kinds.index(kind)] for kind in part}
        if np.asarray(grid).dtype.kind in "fiumM":
            _draw_along(ax, np.asarray(grid), lines, None if data is None else np.asarray(data))
        else:
            _draw_at_categories(ax, np.asarray(grid), lines)
        ax.set_xlabel(as_label(str(name)))
        ax.spines[["top", "right"]].set_visible(False)
        if part == ["spread"]:
            ax.set_ylabel(f"SD of {as_label(str(output))}, mean over rows")
            ax.set_ylim(0, 1.1 * ax.get_ylim()[1])
        else:
            ax.set_ylabel(f"{as_label(str(output))}, mean over rows")
            ax.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    return axes


def _style(kind: float | str) -> dict[str, Any]:
    """How a quantity is drawn: the median thick, other quantiles by how far they are from it."""
    if isinstance(kind, str):
        return {"label": kind, "ls": "-", "lw": 1.8, "color": _INK if kind == "mean" else MODEL}
    thick, style = (2.2, "-") if kind == 0.5 else (1.2, "--" if 0.2 <= kind <= 0.8 else "-")
    return {"label": f"{100 * kind:.3g} %", "ls": style, "lw": thick, "color": MODEL}


def _outermost(lines: dict[Any, Array]) -> list[Array]:
    """The lowest and the highest quantile, if there are two."""
    levels = sorted(kind for kind in lines if isinstance(kind, float))
    return [lines[levels[0]], lines[levels[-1]]] if len(levels) > 1 else []


def _draw_along(ax: Any, grid: Array, lines: dict[Any, Array], data: Array | None) -> None:
    """Lines along numbers or dates, with dots on the right for a missing value, and ticks where rows are."""
    if grid.dtype.kind == "m":
        grid, data = grid / _DAY, None if data is None else data / _DAY
    known = grid == grid
    at = grid[known]
    if ends := _outermost(lines):
        ax.fill_between(at, *(end[known] for end in ends), color=MODEL, alpha=0.15, lw=0)
    beyond = at.max() + (at.max() - at.min()) * 0.15
    for kind, values in lines.items():
        style = _style(kind)
        ax.plot(at, values[known], **style)
        if not known.all():
            ax.plot([beyond], values[~known], "o", ms=5, color=style["color"])
    _mark_values(ax, at, None if known.all() else beyond)
    if data is not None:
        seen = data[(data >= at.min()) & (data <= at.max())]
        across = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 1}
        ax.plot(seen, np.zeros(len(seen)), "|", ms=7, color=DATA, alpha=0.5, **across)


def _mark_values(ax: Any, at: Array, missing: Any) -> None:
    """Ticks along numbers or dates, few enough that they do not touch, and one for a missing value."""
    from matplotlib import dates
    from matplotlib.ticker import MaxNLocator

    is_date = at.dtype.kind == "M"
    if is_date:
        locator: Any = dates.AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]  # theirs
        formatter: Any = dates.ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]  # theirs
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(formatter)
    if missing is None:
        return
    low, high, place = (ax.convert_xunits(value) for value in (at.min(), at.max(), missing))
    found = locator() if is_date else MaxNLocator(5).tick_values(low, high)
    ticks = [tick for tick in found if low <= tick <= high]
    words = formatter.format_ticks(ticks) if is_date else [f"{tick:.6g}" for tick in ticks]
    ax.set_xticks([*ticks, place], [*words, "missing"])


def _draw_at_categories(ax: Any, grid: Array, lines: dict[Any, Array]) -> None:
    """Dots at the categories, over a strip between the lowest and the highest quantile."""
    _label_categories(ax, ["missing" if value is None or value != value else str(value) for value in grid])
    at = np.arange(len(grid))
    if ends := _outermost(lines):
        ax.vlines(at, *ends, color=MODEL, alpha=0.2, lw=9)
    for kind, values in lines.items():
        style = _style(kind)
        middle = isinstance(kind, str) or kind == 0.5
        ax.plot(at, values, "o" if middle else "_", ms=7 if middle else 12, mew=2, ls="",
                color=style["color"], label=style["label"])  # fmt: skip


def _label_categories(ax: Any, words: list[str]) -> None:
    """Name the places 0, 1, ... of an axis, in slanted letters if they would not fit side by side."""
    short = [word if len(word) <= 18 else f"{word[:17]}\N{HORIZONTAL ELLIPSIS}" for word in words]
    slanted = sum(map(len, short)) > 34
    style = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    ax.set_xticks(range(len(words)), list(map(as_label, short)), fontsize=9, **style)
    ax.set_xlim(-0.6, len(words) - 0.4)


def pairs(samples: Any, data: Any = None, names: Any = None, rows: Any = None, axes: Any = None) -> Any:
    """Plot the joint distribution of several outputs, two at a time, at one input or at a few.

    ``samples`` is (S, d), draws at one input, or (S, n, d) at n <= 4 inputs, as ``sample`` returns them; d is
    2 to 6. ``data`` are observed outputs near the input, (m, d) or one such array for each of the n inputs.

    On the diagonal is the density of each output, with a histogram of the observed values (at several
    inputs, ticks). Below it are the smallest regions that hold about 50 and 90 % of new draws, with observed
    rows as dots; above it, the draws themselves. What lies outside of a panel is drawn at its edge. ``names``
    of the outputs are shown as they are, by default the columns of ``data``; ``rows`` names the inputs.
    ``axes`` is (d, d). Returns the Axes (d, d).

    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> angle, noise = np.random.default_rng(0).normal(size=(2, 500))
    >>> ring = np.column_stack([np.cos(9 * angle), np.sin(9 * angle)]) + 0.1 * noise[:, None]
    >>> pairs(ring[100:], ring[:100], names=["east [m]", "north [m]"]).shape
    (2, 2)
    """
    draws = as_array(samples, "samples").astype(np.float64)
    draws = draws[:, None] if draws.ndim == 2 else draws
    if draws.ndim != 3:
        raise ValueError(
            f"samples has shape {np.shape(samples)}; expected (S, d), draws of d outputs at one input, or "
            "(S, n, d) at n inputs."
        )
    _, n, d = draws.shape
    if not 2 <= d <= MOST_OUTPUTS:
        raise ValueError(
            f"samples has {d} output(s); pairs are of 2 to {MOST_OUTPUTS}. "
            + ("Plot a histogram of one." if d < 2 else "Choose some of them, such as samples[..., :4].")
        )
    if n > len(_ROW_COLORS):
        raise ValueError(
            f"samples has draws at {n} inputs, but no more than {len(_ROW_COLORS)} can be told apart. Choose "
            "some, or pass samples.reshape(-1, samples.shape[-1]) to see all draws as those of one."
        )
    observed = _observed_rows(data, n, d)
    columns = getattr(data, "columns", None)
    given = names if names is not None or columns is None else [str(column) for column in columns]
    labels = _names(None, d) if given is None else [_fold(name, d) for name in _names(given, d)]
    if rows is not None and len(rows) != n:
        raise ValueError(f"rows has {len(rows)} name(s) for {n} input(s); give one for each.")
    grid = _pair_panels(axes, d)
    low, high = _pair_limits(draws.reshape(-1, d), observed)
    for i in range(n):
        seen = None if observed is None else np.clip(observed[i], low, high)
        _draw_pairs(grid, draws[:, i], seen, (low, high), _ROW_COLORS[i], _INK if n == 1 else _ROW_COLORS[i])
    _finish_pairs(grid, labels, low, high)
    words = None if rows is None else [as_label(str(row)) for row in rows]
    _explain_pairs(grid, n, words, observed is not None)
    return grid


@final
@dataclass(frozen=True, eq=False)
class Panel:
    """Laws of one output at n rows: ``density`` (m, n) at ``values``, ``probability`` (k, n) of ``atoms``.

    A discrete output has no density, and a continuous one no atoms.
    """

    values: Array | None
    density: Array | None
    atoms: Array | None = None
    probability: Array | None = None

    @property
    def n_laws(self) -> int:
        """How many rows there are."""
        shown = self.probability if self.density is None else self.density
        assert shown is not None
        return int(shown.shape[1])


def laws(panels: Sequence[Panel], names: Any = None, rows: Any = None, axes: Any = None) -> Any:
    """Plot the densities of up to 4 rows and the probabilities of single values, with one panel per output.

    ``names`` are those of the outputs, ``rows`` those of the rows. Returns the array of Axes.

    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> v = np.linspace(-3, 3, 50)
    >>> laws([Panel(v, np.exp(-(v**2))[:, None] / np.pi**0.5)], names=["height [m]"])[0].get_xlabel()
    'height [m]'
    """
    n = panels[0].n_laws
    if n > MOST_LAWS:
        raise ValueError(f"there are {n} rows, but no more than {MOST_LAWS} can be told apart; choose some.")
    if rows is not None and len(rows) != n:
        raise ValueError(f"rows has {len(rows)} name(s) for {n} row(s); give one for each.")
    words = [f"row {i}" for i in range(n)] if rows is None else [as_label(str(row)) for row in rows]
    names, axes = _names(names, len(panels)), _panels(axes, len(panels))
    for ax, name, panel in zip(axes, names, panels, strict=True):
        for i in range(n):
            if panel.values is not None and panel.density is not None:
                line = np.where(np.isfinite(panel.density[:, i]), panel.density[:, i], 0.0)
                ax.fill_between(panel.values, 0, line, color=_ROW_COLORS[i], alpha=0.25, lw=0)
                ax.plot(panel.values, line, color=_ROW_COLORS[i], lw=1.5, label=words[i])
            if panel.atoms is not None and panel.probability is not None:
                _draw_atoms(ax, panel.atoms, panel.probability, i, words[i], alone=panel.density is None)
        mixed = panel.probability is not None and bool((panel.probability > 0).any())
        kind = "density; dots: probability" if mixed else "density"
        ax.set(xlabel=name, ylabel="probability" if panel.density is None else kind)
        ax.set_ylim(bottom=0)
        ax.spines[["top", "right"]].set_visible(False)
    if n > 1 or rows is not None:
        axes[0].legend(frameon=False, fontsize=8)
    return axes


def _draw_atoms(ax: Any, atoms: Array, probability: Array, i: int, word: str, alone: bool) -> None:
    """The probabilities (k, n) of values (k,) at row i: bars, or dots on lines beside a density."""
    n, color = probability.shape[1], _ROW_COLORS[i]
    if alone:  # the bars of several rows side by side
        width = 0.8 * (float(np.diff(atoms).min()) if len(atoms) > 1 else 1.0) / n
        ax.bar(atoms + (i - (n - 1) / 2) * width, probability[:, i], width, color=color, label=word)
        return
    seen = probability[:, i] > 0
    ax.vlines(atoms[seen], 0, probability[seen, i], color=color, lw=1.5)
    ax.plot(atoms[seen], probability[seen, i], "o", ms=5, color=color)


def _observed_rows(data: Any, n: int, d: int) -> list[Array] | None:
    """The observed outputs (m, d) near each of n inputs."""
    if data is None:
        return None
    each = [data] if n == 1 and np.ndim(data) < 3 and not isinstance(data, list | tuple) else list(data)
    if n == 1 and len(each) != 1:  # a list of rows
        each = [data]
    if len(each) != n:
        raise ValueError(f"data has {len(each)} part(s) for {n} input(s); give the rows near each of them.")
    found = [as_array(part, "data").astype(np.float64) for part in each]
    for part in found:
        if part.ndim != 2 or part.shape[1] != d:
            raise ValueError(f"data has rows of shape {part.shape}; expected (m, {d}), as samples have them.")
    return found


def _pair_panels(axes: Any, d: int) -> Any:
    """The Axes given, or new panels (d, d)."""
    if axes is not None:
        axes = np.asarray(axes)
        if axes.shape != (d, d):
            raise ValueError(f"axes has shape {axes.shape} for {d} outputs; give ({d}, {d}).")
        return axes
    side = d * _PANEL[d] + 0.5
    return _pyplot().subplots(d, d, figsize=(side, side), layout="constrained", squeeze=False)[1]


def _pair_limits(draws: Array, observed: list[Array] | None) -> tuple[Array, Array]:
    """The ends (d,) of the axes: nearly all draws, except far tails, and observed values not far beyond."""
    least, first, last, most = np.quantile(draws, [0.002, 0.05, 0.95, 0.998], axis=0)
    reach = np.where(last > first, 1.5 * (last - first), most - least)
    low, high = np.maximum(least, first - reach), np.minimum(most, last + reach)
    if observed is not None:
        values, reach = np.concatenate(observed), np.where(high > low, 0.5 * (high - low), np.inf)
        low = np.minimum(low, np.maximum(values.min(0), low - reach))
        high = np.maximum(high, np.minimum(values.max(0), high + reach))
    width = high - low
    # Outputs that do not vary get some room around their value.
    pad = np.where(width > 0, 0.08 * width, np.maximum(0.5, 1e-3 * np.abs(low)))
    return low - pad, high + pad


def _draw_pairs(
    axes: Any, draws: Array, data: Array | None, ends: tuple[Array, Array], color: str, data_color: str
) -> None:
    """Draws (S, d) and observed rows (m, d) of one input, in all panels."""
    d = draws.shape[1]
    dots = _thin(np.clip(draws, *ends))
    for i in range(d):
        _draw_margin(axes[i, i], draws[:, i], [end[i] for end in ends], color)
        if data is not None and data_color == color:
            axes[i, i].plot(data[:, i], np.zeros(len(data)), "|", ms=9, color=color)
        elif data is not None and np.ptp(data[:, i]) > 0:
            bins = int(np.clip(1.5 * len(data) ** 0.5, 5, 30))
            axes[i, i].hist(data[:, i], bins, density=True, histtype="stepfilled", color=DATA, alpha=0.4)
        for j in range(d):
            ax = axes[i, j]
            if i < j:
                ax.plot(dots[:, j], dots[:, i], ".", ms=2.5, mew=0, color=color, alpha=0.6)
            elif i > j:
                _draw_regions(ax, draws[:, [j, i]], [end[[j, i]] for end in ends], color)
                if data is not None:
                    seen = _thin(data)
                    size = float(np.clip(_PANEL[d] * min(1.0, (120 / len(seen)) ** 0.5), 1.3, 2.8))
                    ax.plot(seen[:, j], seen[:, i], "o", ms=size, mew=0, color=data_color, alpha=0.9)


def _draw_margin(ax: Any, draws: Array, ends: list[Any], color: str) -> None:
    """The density of draws (S,) between the ends of the axis."""
    inside = draws[(draws >= ends[0]) & (draws <= ends[1])]
    if np.ptp(inside) > 0:
        (at,), shares, _ = _estimate_density(inside[:, None])
        density = shares / (at[1] - at[0]) * len(inside) / len(draws)
        ax.fill_between(at, 0, density, color=color, alpha=0.25, lw=0)
        ax.plot(at, density, color=color, lw=1.5)
    else:
        ax.axvline(inside[0], color=color, lw=1.5)


def _draw_regions(ax: Any, draws: Array, ends: list[Any], color: str) -> None:
    """The smallest regions that hold 90 and 50 % of draws (S, 2); dots if an output does not vary."""
    from matplotlib.colors import to_rgb

    inside = draws[((draws >= ends[0]) & (draws <= ends[1])).all(1)]
    if len(inside) < 2 or not (np.ptp(inside, axis=0) > 0).all():
        ax.plot(*_thin(inside).T, ".", ms=2.5, mew=0, color=color, alpha=0.6)
        return
    at, density, levels = _estimate_density(inside)
    # The region above a level holds the points whose own level is higher (Hyndman 1996), new ones as well
    # if a point's own level does not count the point itself.
    outside = [max(0.0, 1 - share * len(draws) / len(inside)) for share in REGIONS]
    edges = [*np.unique(np.maximum(np.quantile(levels, outside), 1e-3 * density.max())), 1.01 * density.max()]
    shades = [(*to_rgb(color), alpha) for alpha in _SHADES][-(len(edges) - 1) :]
    ax.contourf(*at, density.T, levels=edges, colors=shades)
    ax.contour(*at, density.T, levels=edges[:-1], colors=[color], linewidths=0.8)


def _estimate_density(points: Array) -> tuple[list[Array], Array, Array]:
    """Cells along each of k = 1 or 2 axes, the probability of each cell, and the level of each point (n, k).

    It is a smoothed histogram. Its width is the one of a few that predicts the points of a cell best from
    those of all others: one rule for all shapes would fill the hole of a ring, and draws that repeat the
    values of few rows would look like as many spikes. A point's level is the probability of its cell by
    all points that are not copies of it.

    >>> (at,), shares, _ = _estimate_density(np.random.default_rng(0).normal(size=(2000, 1)))
    >>> round(float(np.interp(0, at, shares) / (at[1] - at[0])), 1), round(float(shares.sum()), 2)
    (0.4, 1.0)
    """
    n, k = points.shape
    size = np.abs(points).max(0)
    usual = size * (points / size).std(0) * n ** (-1 / (k + 4))
    low, high = points.min(0) - 2.5 * usual, points.max(0) + 2.5 * usual
    steps = (high - low) / _CELLS[k]
    cells = tuple(np.minimum((points - low) / steps, _CELLS[k] - 1).astype(int).T)
    counts = np.zeros((_CELLS[k],) * k)
    np.add.at(counts, cells, 1.0)
    _, kinds, sizes = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    copies = sizes[kinds.ravel()]
    best, found, levels = -np.inf, counts, counts[cells]
    for factor in _WIDTHS:
        sigma = np.maximum(factor * usual / steps, 0.7)
        smooth = gaussian_filter(counts, sigma, mode="constant")
        own = np.prod([_peak(width) for width in sigma])
        score = float(np.log(np.maximum(smooth[cells] - counts[cells] * own, 1e-12 * n)).sum())
        if score > best:
            best, found, levels = score, smooth, smooth[cells] - copies * own
    at = [end + (np.arange(_CELLS[k]) + 0.5) * step for end, step in zip(low, steps, strict=True)]
    return at, found / found.sum(), levels / found.sum()


def _peak(sigma: float) -> float:
    """The middle of ``gaussian_filter``'s kernel, which is cut off at four sigmas."""
    reach = np.arange(-int(4 * sigma + 0.5), int(4 * sigma + 0.5) + 1)
    return float(1 / np.exp(-0.5 * (reach / sigma) ** 2).sum())


def _thin(points: Array) -> Array:
    """At most 600 of the points (n, d), evenly spaced in their order."""
    chosen: Array = points[np.linspace(0, len(points) - 1, min(len(points), _MOST_DOTS)).round().astype(int)]
    return chosen


def _finish_pairs(axes: Any, names: list[str], low: Array, high: Array) -> None:
    """Limits, ticks at the outer panels only, and names; the first row has its ticks on the right."""
    from matplotlib.ticker import MaxNLocator

    d = len(names)
    size = 9 if d < 5 else 8
    for (i, j), ax in np.ndenumerate(axes):
        ax.set_xlim(low[j], high[j])
        ax.xaxis.set_major_locator(MaxNLocator(4 if d < 4 else 3, steps=[1, 2, 5, 10]))
        ax.xaxis.set_major_formatter(_tick_words(low[j], high[j]))
        ax.tick_params(labelsize=size - 1, labelbottom=i == d - 1)
        ax.spines[["top", "right"]].set_visible(False)
        if i == d - 1:
            ax.set_xlabel(names[j], fontsize=size)
        if i == j:
            ax.set_ylim(0, 1.05 * ax.get_ylim()[1])
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)
            if i == 0:
                ax.set_ylabel("density", fontsize=size)
            continue
        ax.set_ylim(low[i], high[i])
        ax.yaxis.set_major_locator(MaxNLocator(4 if d < 4 else 3, steps=[1, 2, 5, 10]))
        ax.yaxis.set_major_formatter(_tick_words(low[i], high[i]))
        first = i == 0 and j == d - 1
        ax.tick_params(axis="y", left=not first, labelleft=j == 0, right=first, labelright=first)
        if first:
            ax.yaxis.set_label_position("right")
            ax.spines["left"].set_visible(False)
            ax.spines["right"].set_visible(True)
        if j == 0 or first:
            ax.set_ylabel(names[i], fontsize=size)
    axes[0, 0].figure.align_ylabels(list(axes[:, 0]))


def _tick_words(low: Any, high: Any) -> Any:
    """Ticks as whole words: a power of ten at the end of an axis would stand on its name."""
    digits = int(np.clip(np.ceil(np.log10(10 * max(abs(low), abs(high)) / (high - low))) + 1, 3, 12))

    def say(value: float, _: int) -> str:
        text = re.sub(r"e([+-])0?", r"e\1", f"{value:.{digits}g}")
        return text.replace("e+", "e").replace("-", "\N{MINUS SIGN}")

    return say


def _explain_pairs(axes: Any, n: int, rows: list[str] | None, observed: bool) -> None:
    """A legend above the panels or, if the figure holds more than these, in the first one."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def dot(color: str, size: float, label: str) -> Any:
        return Line2D([], [], ls="", marker="o", ms=size, mew=0, color=color, label=label)

    if n == 1:
        known: list[Any] = [dot(MODEL, 3, "draws" if rows is None else f"draws, {rows[0]}")]
        for share, alpha in zip(REGIONS, (_SHADES[0], sum(_SHADES)), strict=True):
            known.append(Patch(color=MODEL, alpha=alpha, lw=0, label=f"{100 * share:.0f} % of draws"))
    else:
        names = rows or [f"input {i + 1}" for i in range(n)]
        colors = _ROW_COLORS[:n]
        known = [Patch(color=c, alpha=0.6, lw=0, label=name) for c, name in zip(colors, names, strict=True)]
    if observed:
        known.append(dot(_INK, 4, "observed" if n == 1 else "observed (dots below the diagonal)"))
    figure = axes[0, 0].figure
    style = {"frameon": False, "fontsize": 8.5}
    if figure.get_layout_engine() is not None and set(figure.axes) == set(axes.flat):
        # In one line if it fits: a letter takes about 0.075 inches, and the mark before a label 0.55.
        widths = [0.075 * len(each.get_label()) + 0.55 for each in known]
        columns = len(known) if sum(widths) <= figure.get_figwidth() else 1
        figure.legend(handles=known, loc="outside upper left", ncols=columns, **style)
    else:
        axes[0, 0].legend(handles=known, **style)


def _fold(name: str, d: int) -> str:
    """A name as a label of at most two lines that fit beside a panel."""
    width = int(_PANEL[d] * 11)
    lines = textwrap.wrap(show_controls(str(name)).replace("\n", " "), width, max_lines=2, placeholder=" …")
    return "\n".join(map(as_label, lines))


def _finish(axes: Any, xlabel: str, names: list[str], above: bool = False) -> Any:
    """Label the panels, with a legend in the first, or above it."""
    for ax, name in zip(axes, names, strict=True):
        ax.set(xlabel=xlabel, ylabel=name)
        ax.spines[["top", "right"]].set_visible(False)
    if above:
        legend_above(axes[0], 2 if len(axes) > 1 else None)  # a wide one would push panels apart
    else:
        axes[0].legend(frameon=False, fontsize=9)
    return axes


def legend_above(ax: Any, columns: int | None = None) -> None:
    """A legend above the panel, where it hides no line."""
    handles, _ = ax.get_legend_handles_labels()
    columns = columns or (2 if len(handles) > 3 else len(handles))
    style = {"frameon": False, "fontsize": 8, "borderaxespad": 0.2, "columnspacing": 1.2}
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, **style)


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
