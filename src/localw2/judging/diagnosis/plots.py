"""The four panels of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from localw2._validation import Array
from localw2._wording import as_label
from localw2.judging.inputs import DAY, MISSING
from localw2.judging.valleys import BIN, N_BINS, REACH
from localw2.plots.rows import DATA, MODEL, TRUTH, _label_categories, _pyplot

if TYPE_CHECKING:
    from localw2.judging.diagnosis.diagnose import Diagnosis
    from localw2.judging.diagnosis.modes import Modes
    from localw2.judging.inputs import Input

# More points would overlap and slow down drawing.
MAX_POINTS = 2000
MOST_CATEGORIES = 8  # with a place of their own in a panel
INK = "#444a54"


def _draw_pit(pit: Array, ax: Any) -> None:
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
    ax.set_title("Are all ranks equally likely?", fontsize=10.5)


def _draw_coverage(coverage: Array, ax: Any) -> None:
    """Observed against nominal coverage, from (levels, 4): nominal, share, low, high."""
    nominal, share, low, high = coverage.T
    ax.plot([0, 1], [0, 1], color=INK, lw=1, label="calibrated")
    ends = np.clip([share - low, high - share], 0, None)
    ax.errorbar(nominal, share, ends, fmt="o", ms=5, capsize=3, color=MODEL, label="observed, 95 % interval")
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="nominal coverage", ylabel="observed coverage")
    ax.set_title("Do intervals cover as often as they should?", fontsize=10.5)


def _draw_pit_along(place: Array, pit: Array, each: Input, ax: Any) -> None:
    """PIT values (N,) against an input (N,), with their quantiles in groups of rows, or by category."""
    shown = np.linspace(0, len(pit) - 1, min(len(pit), MAX_POINTS)).astype(int)
    if each.kind == "category":
        groups, words = group_categories(each, place, MOST_CATEGORIES)
        position = np.full(len(place), np.nan)
        for i, rows in enumerate(groups):
            # Spread out evenly in the order of the rows: random places would differ from run to run.
            position[rows] = i + 0.6 * ((0.618 * np.arange(len(rows))) % 1 - 0.5)
        _label_categories(ax, words)
        style = "o"
    else:
        position = as_axis(each, place)
        groups, style = _group_rows(place), "o-"
    size = 3 if style == "o-" else 5
    ax.plot(position[shown], pit[shown], ".", ms=2.5, color=DATA, alpha=0.5, zorder=1)
    centre = np.arange(len(groups))
    if each.kind != "category":
        centre = as_axis(each, np.array([np.median(place[rows]) for rows in groups]))
    for level in (0.1, 0.5, 0.9):
        label = "10, 50 and 90 % quantiles, by group" if level == 0.5 else None
        ax.axhline(level, color=INK, lw=1, ls="--", zorder=2)
        found = [np.quantile(pit[rows], level) for rows in groups]
        ax.plot(centre, found, style, ms=size, lw=1.5, color=MODEL, label=label, zorder=3)
    ax.set(ylim=(0, 1.22), xlabel=as_label(each.name), ylabel="rank of y among its draws (PIT)")
    ax.set_yticks([0, 0.1, 0.5, 0.9, 1])
    ax.set_title(f"Where is it wrong? Along {as_label(each.name)}", fontsize=10.5)


def group_categories(each: Input, values: Array, most: int) -> tuple[list[Array], list[str]]:
    """Row numbers by category (N,), at most so many of the most frequent ones, and their names."""
    seen = values[~np.isnan(values)]
    codes, counts = np.unique(seen, return_counts=True)
    codes = np.sort(codes[np.argsort(-counts, kind="stable")[:most]])
    groups = [np.flatnonzero(values == code) for code in codes]
    words = [each.show(code) for code in codes]
    if len(seen) < len(values):
        groups.append(np.flatnonzero(np.isnan(values)))
        words.append(MISSING)
    return groups, words


def as_axis(each: Input, values: Array) -> Array:
    """Values of a numeric input for an axis; days as dates, which get ticks of their own."""
    if each.kind != "date":
        return values
    seen = np.isfinite(values)
    moments = np.where(seen, values * DAY, 0).round().astype("M8[s]")
    return np.where(seen, moments, np.datetime64("NaT", "s"))


def _draw_spread(std: Array, residual: Array, ax: Any) -> None:
    """Observed against predicted spread in groups of rows with similar predicted SD (N,)."""
    groups = _group_rows(std)
    predicted = np.array([np.sqrt(np.mean(std[rows] ** 2)) for rows in groups])
    squares = [residual[rows] ** 2 for rows in groups]
    observed = np.array([np.sqrt(s.mean()) for s in squares])
    # Delta method on the mean square, which allows for heavy-tailed residuals.
    error = np.array([1.96 * s.std() / np.sqrt(len(s)) / (2 * max(s.mean() ** 0.5, 1e-300)) for s in squares])
    top = 1.08 * max(predicted.max(), (observed + error).max(), 1e-300)
    ax.plot([0, top], [0, top], color=INK, lw=1, label="calibrated")
    style = {"fmt": "o", "ms": 5, "capsize": 3, "color": MODEL, "label": "groups of rows, 95 %"}
    # As lists: matplotlib converts arrays with one element to numbers, about which numpy before 2.4 warns.
    ax.errorbar(predicted, observed, [np.minimum(error, observed).tolist(), error.tolist()], **style)
    ax.set(xlim=(0, top), ylim=(0, top), xlabel="predicted SD", ylabel="root mean square residual")
    ax.set_title("Is the spread right where it is large?", fontsize=10.5)


def _draw_modes(modes: Modes, several: bool, ax: Any) -> None:
    """Densities of y and of its draws in the rows whose modes differ; ``several``: name the direction."""
    valley = modes.valley
    assert valley is not None
    edges = np.arange(N_BINS + 1) * BIN - REACH
    of_y, of_draws = valley.densities
    ax.axvspan(valley.low, valley.high, color=INK, alpha=0.12, lw=0, label="where they differ most")
    ax.stairs(of_draws, edges, fill=True, color=MODEL, alpha=0.45, label="draws")
    ax.stairs(of_y, edges, color=TRUTH, lw=1.6, label="y")
    # Room for the legend above the bars.
    ax.set(xlim=(-REACH, REACH), ylim=(0, 1.3 * max(*of_y, *of_draws)))
    ax.set(xlabel="distance from the predicted mean, in predicted SDs", ylabel="density")
    place = f"\n{as_label(modes.where.strip())}" if modes.where else ""
    ax.set_title(modes.say_what(several) + place, fontsize=10.5)


def draw_diagnosis(found: Diagnosis, k: int, axes: Any = None) -> Any:
    """Draw the four panels of a diagnosis for output k. Returns the Axes."""
    if axes is None:
        figure, axes = _pyplot().subplots(2, 2, figsize=(10, 7.6), layout="constrained")
        title = found.verdict[0].split(":" if found.calibrated else ".")[0]
        figure.suptitle(as_label(title) + (f" (output {k})" if found.n_outputs > 1 else ""), fontsize=12)
    axes = np.asarray(axes).ravel()
    if len(axes) != 4:
        raise ValueError(f"axes has {len(axes)} entries; a diagnosis has 4 panels.")
    overall = next(group for group in found.groups if group.output == k)
    _draw_pit(found.pit[:, k], axes[0])
    _draw_coverage(np.array(overall.coverage), axes[1])
    _draw_pit_along(found.place, found.pit[:, k], found.place_input, axes[2])
    if modes := [each for each in found.wrong_modes if k in each.outputs]:
        _draw_modes(modes[0], found.n_outputs > 1, axes[3])
    else:
        _draw_spread(found.std[:, k], found.residual[:, k], axes[3])
    for ax in axes:
        ax.legend(frameon=False, fontsize=8, loc="best")
        ax.spines[["top", "right"]].set_visible(False)
    return axes


def _group_rows(values: Array) -> list[Array]:
    """At most 10 groups of rows with similar values, at least 8 rows each where possible; none is missing."""
    order = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
    parts = int(np.clip(len(order) // 8, 1, 10))
    return [rows for rows in np.array_split(order, parts) if len(rows)]
