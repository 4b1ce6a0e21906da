"""Figures and tables for the strength of concrete, from the records alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from concrete import DELTA, FEWEST, measure_moments
from panels import (
    FLOOR,
    OTHER,
    OURS,
    PRINTED,
    TRUTH,
    add_legend,
    draw_curve,
    format_table,
    label_panel,
    make_figure,
    mean_sd,
    save_figure,
    write_tables,
)
from records import Options, Values, group, read

NAMES = {
    "local W2": "local W2, as printed",
    "MSE": "MSE, deterministic network",
    "ours": "LocalW2Regressor()",
    "no x": "no x: all training strengths",
    "resampled": "test neighbourhood resampled",
}
COLORS = {"local W2": PRINTED, "MSE": OTHER, "ours": OURS, "no x": TRUTH}
READINGS = {
    None: "strength z-scored, δ and δ₀ are radii",
    "unit": "strength scaled to [0, 1], δ and δ₀ are radii",
    "root": "strength z-scored, δ and δ₀ bound the squared norm",
}
REMARK = (
    '"Rows per ball" counts the training rows within δ, the row itself included. "Mean, MPa" and "SD, MPa" '
    "are mean absolute errors; bias is the simulated minus the true mean; SD / true SD is the ratio of the "
    "mean SDs. Which points are scored, and their neighbourhoods, depends on δ₀ and so on its reading."
)
SPLITS = {"paper": "the paper's split", "random": "random splits"}
Cells = dict[tuple[Any, ...], list[Values]]


def draw(options: Options) -> None:
    """Every panel of Fig. example3 on both splits, and a table for each."""
    everything = group(read("concrete", options), "split", "model", "delta", "reading")
    parts: list[str] = []
    for reading, words in READINGS.items():
        found = {key[:3]: values for key, values in everything.items() if key[3] == reading}
        if reading is None:
            for split in SPLITS:
                _draw_points(found, split, options)
        if all((split, "resampled", None) in found for split in SPLITS):
            _draw_delta(found, reading, options)
        if found:
            parts += [f"### {words[0].upper()}{words[1:]}", *_make_tables(found)]
    write_tables(options.results / "concrete.md", *parts, REMARK)


def _draw_points(found: Cells, split: str, options: Options) -> None:
    """Panels (a) and (b) of three models: strengths near 10 random points, and their means and SDs."""
    models = {"local W2": DELTA, "MSE": None, "ours": None}
    fig, axes = make_figure(3, 3, width=3.7, height=2.6)
    for row, (model, delta) in zip(axes, models.items(), strict=True):
        shown = found[split, model, delta][0]["shown"]
        shown = sorted(shown, key=lambda point: float(np.mean(point["y"])))
        _draw_samples(row[0], shown, model)
        pairs = {name: measure_moments([np.array(p[name]) for p in shown]) for name in ("y", "yhat")}
        for ax, k, words in ((row[1], 0, "mean"), (row[2], 1, "SD")):
            true, simulated = pairs["y"][k], pairs["yhat"][k]
            ax.plot(true, simulated, "o", ms=5, color=COLORS[model], label=f"simulated: {NAMES[model]}")
            ax.set_xlabel(f"{words} of the test rows, MPa", fontsize=8)
            ax.set_ylabel(f"{words}, simulated, MPa", fontsize=8)
            label_panel(ax, "b", f"{NAMES[model]}: {words}s")
    for k in (1, 2):
        _share_square(axes[:, k])
    low, high = (f([ax.get_ylim() for ax in axes[:, 0]]) for f in (np.min, np.max))
    for ax in axes[:, 0]:
        ax.set_ylim(low, high)
    add_legend(fig, axes.ravel(), 4)
    save_figure(fig, options.figures / f"concrete_points_{split}.png")


def _draw_samples(ax: Any, shown: list[dict[str, Any]], model: str) -> None:
    """The strengths of the test rows near each point, next to one simulated value for each."""
    for name, offset, color, label in (
        ("y", -0.17, "black", "test rows"),
        ("yhat", 0.17, COLORS[model], f"simulated: {NAMES[model]}"),
    ):
        for i, point in enumerate(shown, start=1):
            values = np.array(point[name])
            ax.plot(np.full(len(values), i + offset), values, ".", ms=4, alpha=0.6, mew=0, color=color)
        ax.plot([], [], "o", ms=4, color=color, label=label)
    ax.set_xticks(range(1, len(shown) + 1))
    ax.set_xlabel("test point, by mean strength nearby", fontsize=8)
    ax.set_ylabel("strength, MPa", fontsize=8)
    label_panel(ax, "a", NAMES[model])


def _share_square(axes: Any) -> None:
    """One range for both axes of all these panels, with the line where simulated and true agree."""
    low = min(min(ax.dataLim.min) for ax in axes)
    high = max(max(ax.dataLim.max) for ax in axes)
    margin = 0.06 * (high - low)
    for ax in axes:
        ax.plot([low - margin, high + margin], [low - margin, high + margin], color="black", lw=0.8, zorder=0)
        ax.set_xlim(low - margin, high + margin)
        ax.set_ylim(low - margin, high + margin)


def _draw_delta(found: Cells, reading: str | None, options: Options) -> None:
    """Panel (c): errors against delta, on which the other models do not depend."""
    fig, axes = make_figure(2, 2, width=4.6, height=3.0)
    deltas = sorted({key[2] for key in found if key[2] is not None})
    for row, (split, words) in zip(axes, SPLITS.items(), strict=True):
        for ax, name, word in ((row[0], "mean", "mean"), (row[1], "sd", "SD")):
            points = [mean_sd(found[split, "local W2", delta], name) for delta in deltas]
            draw_curve(ax, deltas, points, color=PRINTED, marker="o", label=NAMES["local W2"], zorder=3)
            for model in ("MSE", "ours", "no x"):
                mean, sd = mean_sd(found[split, model, None], name)
                ax.axhline(mean, color=COLORS[model], lw=1.6, label=f"{NAMES[model]}, ± SD over fits")
                ax.axhspan(mean - sd, mean + sd, color=COLORS[model], alpha=0.18, lw=0)
            floor = mean_sd(found[split, "resampled", None], name)[0]
            ax.axhline(floor, **FLOOR, label=NAMES["resampled"])
            ax.axvspan(0.05, 0.1, color="black", alpha=0.05, lw=0, label="δ the paper finds best")
            ax.set_xscale("log")
            ax.set_xticks(deltas, [f"{d:g}" for d in deltas])
            ax.minorticks_off()
            ax.set_ylim(bottom=0)
            ax.set_xlabel("δ of the loss", fontsize=9)
            ax.set_ylabel(f"relative error in the {word}", fontsize=9)
            label_panel(ax, "c", f"{word}, {words}")
    words = READINGS[reading]
    fig.suptitle(f"{words[0].upper()}{words[1:]}", fontsize=10)
    add_legend(fig, axes.ravel(), 3)
    save_figure(fig, options.figures / f"concrete_delta{f'_{reading}' if reading else ''}.png")


def _make_tables(found: Cells) -> list[str]:
    """A table for each split, with the sizes of the balls, which limit what can be learned."""
    parts: list[str] = []
    for split, words in SPLITS.items():
        if not any(key[0] == split for key in found):
            continue
        rows: list[list[Any]] = [
            ["model", "δ", "rows per ball", "error in mean", "error in SD", "mean, MPa", "SD, MPa",
             "bias, MPa", "SD / true SD", "seconds"]
        ]  # fmt: skip
        for (_, model, delta), values in ((k, v) for k, v in found.items() if k[0] == split):
            relative = [_format_pair(values, name, 3) for name in ("mean", "sd")]
            absolute = [_format_pair(values, name, 2) for name in ("mean_mpa", "sd_mpa", "bias_mpa")]
            balls = f"{mean_sd(values, 'rows')[0]:.1f}" if "rows" in values[0] else "-"
            at = "-" if delta is None else f"{delta:g}"
            seconds = f"{mean_sd(values, 'seconds')[0]:.0f}"
            ratio = f"{mean_sd(values, 'sd_ratio')[0]:.2f}"
            rows.append([NAMES[model], at, balls, *relative, *absolute, ratio, seconds])
        there = [values for key, values in found.items() if key[0] == split]
        counted, repeats = mean_sd(there[0], "points")[0], max(map(len, there))
        parts += [
            f"**{words[0].upper()}{words[1:]}**, mean ± SD over {repeats} fit(s) each. {counted:.0f} of 344 "
            f"test points have at least {FEWEST} test rows within δ₀ = .2 and are scored:",
            format_table(rows),
        ]
    return parts


def _format_pair(values: list[Values], name: str, digits: int) -> str:
    """The mean and, for several fits, the SD."""
    mean, sd = (f"{value:.{digits}f}" for value in mean_sd(values, name))
    return f"{mean} ± {sd}" if len(values) > 1 else mean
