"""Figures and tables for the ODE with a random parameter, from the records alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynamics import LINE, LINES_EVERY, LONG_EPOCHS, PANELS, REFERENCES, STATES_EVERY, compute_line
from localw2.datasets import FourStates
from panels import ORACLE as TRUE
from panels import (
    OTHER,
    add_legend,
    draw_curve,
    format_table,
    label_panel,
    make_figure,
    mean_sd,
    save_figure,
    write_tables,
)
from panels import OURS as BLUE
from panels import PRINTED as RED
from panels import TRUTH as GREY
from records import Options, Values, group, read

NAMES = {
    "printed": "as printed (δ = .1)",
    "printed-sqrt": "as printed, radius √.1",
    "ours": "LocalW2ODE()",
    "mean": "mean model, no spread",
    "true": "true model",
}
STYLES: dict[str, dict[str, Any]] = {
    "printed": {"color": RED, "marker": "o"},
    "printed-sqrt": {"color": OTHER, "marker": "s"},
    "ours": {"color": BLUE, "marker": "o"},
    "mean": {"color": "black", "ls": ":"},
    "true": {"color": TRUE, "ls": "--"},
}
LONG = "printed-long"
TIMES = FourStates().times
Cells = dict[tuple[Any, ...], list[Values]]


def draw(options: Options) -> None:
    """Every panel of Fig. example4, and two tables."""
    everything = group(read("dynamics", options), "model", "a", "sigma")
    failed = sum("failed" in v for values in everything.values() for v in values)
    finished = {key: [v for v in values if "failed" not in v] for key, values in everything.items()}
    longer = {key: values for key, values in finished.items() if key[0] == LONG}
    found = {key: values for key, values in finished.items() if key[0] != LONG}
    for model in ("printed", "ours"):
        _draw_paths(found, model, options)
    _draw_field(found, options)
    _draw_in_time(found, options)
    _draw_grid(found, options)
    _write_tables(found, longer, failed, options)


def _draw_paths(found: Cells, model: str, options: Options) -> None:
    """Panels (a)-(f): test trajectories and simulated ones from the same initial states."""
    fig, axes = make_figure(2, 3, height=2.6)
    panels = [(PANELS[0], i) for i in range(4)] + [(PANELS[2], 0), (PANELS[1], 0)]
    t = TIMES[::LINES_EVERY]
    for ax, name, ((a, sigma), i) in zip(axes.flat, "abcdef", panels, strict=True):
        for kind, color, label in (("true", GREY, "test trajectories"), (model, STYLES[model]["color"], "")):
            lines = np.array(found[kind, a, sigma][0]["lines"])[..., i]
            ax.plot(t, lines.T, color=color, lw=0.8, alpha=0.6)
            ax.plot([], [], color=color, lw=2, label=label or f"simulated: {NAMES[model]}")
        label_panel(ax, name, f"a = {a:g}, $\\sigma$ = {sigma:g}")
        ax.set_xlabel("t", fontsize=9)
        ax.set_ylabel(f"$y_{i + 1}$", fontsize=9)
    add_legend(fig, axes.ravel(), 2)
    save_figure(fig, options.figures / f"dynamics_paths_{model}.png")


def _draw_field(found: Cells, options: Options) -> None:
    """Panels (g)-(i): mean and SD of g1 along the line, over repeats; both radii where they differ."""
    fig, axes = make_figure(2, 3, height=2.6)
    z = LINE[:, 1] - 1
    for column, (a, sigma) in enumerate(PANELS):
        exact = dict(zip(("line_mean", "line_sd"), compute_line(sigma), strict=True))
        for ax, name, words in zip(axes[:, column], exact, ("mean of $g_1$", "SD of $g_1$"), strict=True):
            ax.plot(z, exact[name], color=TRUE, ls="--", lw=2, label="truth, exact", zorder=3)
            for model in ("printed", "printed-sqrt", "ours"):
                if (model, a, sigma) not in found:
                    continue
                lines = np.array([values[name] for values in found[model, a, sigma]])
                color = STYLES[model]["color"]
                ax.plot(z, lines.T, color=color, lw=0.7, alpha=0.5)
                ax.plot(z, lines.mean(0), color=color, lw=2, label=f"{NAMES[model]}: fits and their mean")
            ax.set_xlabel("z, at y = (1 - z, 1 + z, 1 - z, 1 + z)", fontsize=8)
            ax.set_ylabel(words, fontsize=9)
        axes[1, column].set_ylim(bottom=0)
        label_panel(axes[0, column], "ghi"[column], f"a = {a:g}, $\\sigma$ = {sigma:g}")
    add_legend(fig, axes.ravel(), 2)
    save_figure(fig, options.figures / "dynamics_field.png")


def _draw_in_time(found: Cells, options: Options) -> None:
    """Panel (j): errors in yhat and ghat at each time, a = 0, sigma = .25; the paper's 0.1 as a line."""
    fig, axes = make_figure(1, 2, width=4.4, height=3.4)
    grids = {"y_in_time": TIMES[::5], "g_in_time": TIMES[::STATES_EVERY]}
    for ax, (name, t) in zip(axes[0], grids.items(), strict=True):
        for model, style in STYLES.items():
            if (model, *PANELS[0]) in found:
                errors = np.array([values[name] for values in found[model, *PANELS[0]]])
                later = (
                    t > 0 if name == "y_in_time" else t >= 0
                )  # yhat starts at y: its error is 0, which a log axis cannot show
                line = {k: v for k, v in style.items() if k != "marker"}
                ax.plot(t[later], errors.mean(0)[later], lw=1.8, label=NAMES[model], **line)
        if name == "y_in_time":
            ax.axhline(0.1, color="black", lw=0.8, label='0.1: "kept below" in the paper')
        ax.set_yscale("log")
        ax.set_xlabel("t", fontsize=9)
        ax.set_ylabel(f"error in $\\hat {name[0]}$ at t", fontsize=9)
    label_panel(axes[0, 0], "j", "a = 0, $\\sigma$ = 0.25: paths")
    label_panel(axes[0, 1], "j", "field at the test states")
    add_legend(fig, axes.ravel(), 3)
    save_figure(fig, options.figures / "dynamics_in_time.png")


def _draw_grid(found: Cells, options: Options) -> None:
    """Panels (k), (l): errors against a, a column for each sigma."""
    sigmas = sorted({key[2] for key in found})
    fig, axes = make_figure(3, len(sigmas), width=3.4, height=2.8)
    for row, (name, panel) in enumerate((("y", "k"), ("y_sqrt", "k"), ("g", "l"))):
        for ax, sigma in zip(axes[row], sigmas, strict=True):
            for model, style in STYLES.items():
                aside = {"printed": -0.006, "printed-sqrt": 0.006}.get(
                    model, 0.0
                )  # so that bars do not overlap
                a = sorted(key[1] for key in found if key[0] == model and key[2] == sigma)
                points = [mean_sd(found[model, v, sigma], name) for v in a]
                if a:
                    draw_curve(ax, [v + aside for v in a], points, label=NAMES[model], **style)
            ax.set_xticks(sorted({key[1] for key in found}))
            ax.set_yscale("log")
            ax.set_xlabel("a, SD of the initial states", fontsize=9)
            radius = {"y": ", $\\delta_0$ = .1", "y_sqrt": ", $\\delta_0 = \\sqrt{.1}$"}.get(name, "")
            ax.set_ylabel(f"error in $\\hat {name[0]}${radius}", fontsize=9)
            label_panel(ax, panel, f"$\\sigma$ = {sigma:g}")
        low = min(ax.get_ylim()[0] for ax in axes[row])
        high = max(ax.get_ylim()[1] for ax in axes[row])
        for ax in axes[row]:
            ax.set_ylim(low, high)
    add_legend(fig, axes.ravel(), 3)
    save_figure(fig, options.figures / "dynamics_grid.png")


def _write_tables(found: Cells, longer: Cells, failed: int, options: Options) -> None:
    """A table of the main cell, one of the grid, and one of longer training."""
    a, sigma = PANELS[0]
    rows: list[list[Any]] = [
        [
            "model",
            "fits",
            "error in ŷ",
            "error in ĝ",
            "error in SD",
            "largest error in ŷ at any t",
            "seconds per fit",
        ]
    ]
    for model in ("printed", "ours", "mean", "true"):
        values = found[model, a, sigma]
        largest = np.mean([max(v["y_in_time"]) for v in values])
        seconds = f"{mean_sd(values, 'fit_seconds')[0]:.0f}" if "fit_seconds" in values[0] else "-"
        errors = [_format_pair(values, name) for name in ("y", "g", "sd")]
        rows.append([NAMES[model], len(values), *errors, f"{largest:.4f}", seconds])
    grid: list[list[Any]] = [
        ["a", "sigma", "rows per ball, δ = .1", "radius √.1", "error", *NAMES.values(), "fits"]
    ]
    for a, sigma in sorted({key[1:] for key in found}):
        first = found["printed", a, sigma]
        for name, word in (("y", "ŷ, δ₀ = .1"), ("y_sqrt", "ŷ, δ₀ = √.1"), ("g", "ĝ")):
            errors = [_format_pair(found.get((m, a, sigma), []), name) for m in NAMES]
            balls = [f"{np.mean([v[k] for v in first]):.1f}" for k in ("rows", "rows_sqrt")]
            fits = [
                str(len(found[m, a, sigma])) for m in NAMES if m not in REFERENCES and (m, a, sigma) in found
            ]
            grid.append([f"{a:g}", f"{sigma:g}", *balls, word, *errors, ", ".join(fits)])
    epochs = [["a", "sigma", "error", "500 epochs", f"{LONG_EPOCHS} epochs", "fits"]]
    for (_, a, sigma), values in longer.items():
        for name, word in (("y", "ŷ, δ₀ = .1"), ("g", "ĝ"), ("sd", "SD")):
            same = found["printed", a, sigma][: len(values)]
            errors = [_format_pair(some, name) for some in (same, values)]
            epochs.append([f"{a:g}", f"{sigma:g}", word, *errors, str(len(values))])
    last = "As printed with more epochs, on the same data sets:", format_table(epochs)
    write_tables(
        options.results / "dynamics.md",
        'Panels (a)-(d), (g), (j): a = 0, sigma = .25. Mean ± SD over fits; "error in SD" is the mean '
        "relative error of the SD of the four states from (1, 1, 1, 1) over t.",
        format_table(rows),
        "Panels (k), (l): over a and sigma. Rows per ball are counted in the training set, the row itself "
        "included. A ball of one row shows no spread, neither to the loss nor to the error in ŷ, which is "
        "then a mean squared error, in which the mean model beats the truth; δ₀ is the radius of its "
        "balls, which equals δ in the paper. At a = 0 both radii hold all rows. "
        "The last column counts the fits of each method in turn. "
        f"Fits that stopped early: {failed}.",
        format_table(grid),
        *(last if longer else ()),
    )


def _format_pair(values: list[Values], name: str) -> str:
    """The mean and, for several fits, the SD."""
    values = [v for v in values if name in v]
    mean, sd = mean_sd(values, name)
    return "-" if not values else f"{mean:.4f} ± {sd:.4f}" if len(values) > 1 else f"{mean:.4f}"
