"""The nonlinear model by nine methods: Fig. example1 (a)-(j) of the paper.

    python paper/nonlinear.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER]

The local and global forms of W2, MMD, MSE and mean2+var train the same network with random weights; the
Bayesian network is torchbnn's, by KL. Beside them our default ``LocalW2Regressor()`` and an oracle that knows
the formula. Errors in mean and SD by two metrics: the paper's, with 100 draws on each side, whose noise floor
(what a perfect model scores) is drawn as a line; and against the true moments, with 100 000 draws.

Full settings, 5 repeats: about 32 minutes on 2 cores (estimated from the time of an epoch). Most of it is
local MMD, all pairs of 2000 balls of 100 rows: 0.5 s an epoch, 9 minutes a fit. An epoch of global MMD, one
ball of 2000 rows, takes 73 ms, of the others 9 to 20 ms. ``--quick``: 15 s of one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import drawing
import fit_nonlinear
import printed
from drawing import FLOOR, ORACLE, OTHER, OURS, PRINTED, TRUTH, mean_sd, number
from fit_nonlinear import as_printed, settings
from records import Cell, Options, Values, compute, group, read

LOSSES = {"W2": "w2", "MMD": "mmd", "MSE": "mse", "mean2+var": "meanvar"}
NINE = [f"{form} {name}" for form in ("local", "global") for name in LOSSES] + ["BNN"]  # panels (a) to (i)
METHODS = [*NINE, "ours (default)", "knows the formula"]
# Settings that examples of torchbnn use; the size of the network is the paper's, which names no others.
BNN = {
    "width": 50,
    "depth": 4,
    "max_epochs": 1000,
    "learning_rate": 0.01,
    "prior_sigma": 0.1,
    "kl_weight": 0.01,
}
METRICS = {"_100": "100 draws, as in the paper", "": "against the true moments"}
ERRORS = {"mean_error": "error in the mean", "std_error": "error in the SD"}


def cells(options: Options) -> list[Cell]:
    """Every method on every data set, and the truth for the noise floor and the pictures."""
    rows, moment_draws = printed.NONLINEAR_ROWS, 100_000
    epochs: dict[str, Any] = {}
    if options.quick:
        rows, moment_draws, epochs = 300, 2000, {"max_epochs": 60}
    deltas = {"local": printed.NONLINEAR_DELTA, "global": None}
    chosen: dict[str, tuple[str, dict[str, Any]]] = {
        f"{form} {name}": ("regressor", as_printed(delta, loss, **epochs))
        for form, delta in deltas.items()
        for name, loss in LOSSES.items()
    }
    chosen["BNN"] = "bnn", BNN | epochs
    chosen["ours (default)"] = "regressor", epochs
    chosen["knows the formula"] = "formula", fit_nonlinear.ORACLE
    seeds = range(printed.FIRST_SEED, printed.FIRST_SEED + options.repeats)
    found = [settings("truth", seeds[0], 0, "truth", {}, 0, pictured=True)]
    # The longest fits come first, so that no core waits for one in the end.
    for method in sorted(METHODS, key=lambda name: name != "local MMD"):
        for seed in seeds:
            found.append(
                settings(method, seed, rows, *chosen[method], moment_draws, pictured=seed == seeds[0])
            )
    return found


def draw(options: Options) -> None:
    """Pictures and tables from the records."""
    records = read("nonlinear", options)
    found = {key[0]: values for key, values in group(records, "method").items()}
    rows = max(record["settings"]["rows"] for record in records)
    _draw_clouds(records, options.figures / "nonlinear_a_to_i.png")
    _draw_errors(found, options.figures / "nonlinear_j.png", rows)
    floor = found["truth"][0]
    drawing.write_tables(
        options.figures / "nonlinear.md",
        f"Nonlinear example, (j): N = {rows}, mean +- SD over repeats.",
        drawing.table(_table(found)),
        "A perfect model scores {mean_error_100:.3f} in the mean and {std_error_100:.3f} in the SD by the "
        "100-draw metric: less is luck.".format(**floor),
        *(_order(found, metric) for metric in METRICS),
    )


def _draw_clouds(records: list[dict[str, Any]], path: Path) -> None:
    """Panels (a) to (i), ours and the oracle: 100 draws of y and of yhat at every test x."""
    drawn = {r["settings"]["method"]: r for r in records if r["settings"]["pictured"]}
    truth = drawn["truth"]
    x = np.linspace(*truth["settings"]["test"])
    fig, axes = drawing.figure(3, 4, width=3.1, height=2.7)
    for ax, (panel, method) in zip(axes.flat, zip("abcdefghi+*", METHODS, strict=True), strict=False):
        drawing.clouds(ax, x, truth["values"]["draws"], -0.022, TRUTH, "y, 100 draws")
        color = {"ours (default)": OURS, "knows the formula": ORACLE}.get(method, PRINTED)
        if "draws" in drawn[method]["values"]:
            drawing.clouds(ax, x, drawn[method]["values"]["draws"], 0.022, color, "yhat, 100 draws")
        drawing.letter(ax, panel, method)
        low, high = np.min(truth["values"]["draws"]), np.max(truth["values"]["draws"])
        reach = 0.25 * (high - low)  # one panel must not squeeze the others
        ax.set(xlabel="x", ylabel="y, yhat", ylim=(low - reach, high + reach))
    axes[2, 3].axis("off")
    for color, label in (
        (TRUTH, "y, 100 draws"),
        (PRINTED, "yhat, a method of the paper"),
        (OURS, "yhat, ours (+)"),
        (ORACLE, "yhat, the oracle (*)"),
    ):
        axes[2, 3].plot([], [], "o", ms=5, color=color, label=label)
    axes[2, 3].legend(frameon=False, fontsize=9, loc="center left")
    drawing.save(fig, path)


def _draw_errors(found: dict[str, list[Values]], path: Path, rows: int) -> None:
    """Panel (j): errors of all methods by both metrics, and the noise floor of the first."""
    fig, axes = drawing.figure(1, 2, width=4.8, height=4.6)
    places = np.arange(len(METHODS))[::-1]
    for ax, (error, title) in zip(axes[0], ERRORS.items(), strict=True):
        for (metric, label), shift, marker, color in zip(
            METRICS.items(), (0.14, -0.14), ("o", "D"), (OTHER, OURS), strict=True
        ):
            means, sds = np.array([mean_sd(found[m], error + metric) for m in METHODS]).T
            ax.errorbar(
                means,
                places + shift,
                xerr=sds,
                fmt=marker,
                ms=4.5,
                capsize=2,
                lw=0.9,
                color=color,
                label=label,
            )
        floor = found["truth"][0][error + "_100"]
        ax.axvline(floor, **FLOOR, label="a perfect model, 100 draws")
        drawing.log_axis(ax.xaxis)
        ax.set_yticks(places, METHODS)
        ax.grid(axis="y", lw=0.3)
        ax.set_xlabel(f"relative {title}")
        drawing.letter(ax, "j", f"{title}, N = {rows}")
    drawing.legend_below(fig, axes[0], columns=3)
    drawing.save(fig, path)


def _table(found: dict[str, list[Values]]) -> list[list[str]]:
    heads = [f"{what}, {how}" for how in ("100 draws", "true moments") for what in ("mean", "SD")]
    lines = [["error in", *heads, "seconds a fit", "failed"]]
    for method in METHODS:
        values = found[method]
        scores = [number(mean_sd(values, error + metric)) for metric in METRICS for error in ERRORS]
        seconds = f"{mean_sd(values, 'fit_seconds')[0]:.1f}"
        lines.append([method, *scores, seconds, str(sum("failed" in v for v in values))])
    return lines


def _order(found: dict[str, list[Values]], metric: str) -> str:
    """The nine methods from best to worst, for the paper's claim that local W2 is first, local MMD next."""
    words = []
    for error, title in ERRORS.items():
        ranked = sorted((mean_sd(found[m], error + metric)[0], m) for m in NINE)
        words.append(f"by {title}: " + ", ".join(f"{name} ({value:.3f})" for value, name in ranked))
    return f"The nine in order ({METRICS[metric]}), " + "; ".join(words) + "."


def main() -> None:
    """Compute what is missing, then draw."""
    options = Options.parse(__doc__)
    compute("nonlinear", cells(options), fit_nonlinear.run, options, Path(fit_nonlinear.__file__))
    draw(options)


if __name__ == "__main__":
    main()
