"""The nonlinear model by nine methods: Fig. example1 (a)-(j) of the paper.

    python paper/nonlinear.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER]

The local and global forms of W2, MMD, MSE and mean2+var train the same network with random weights; the
Bayesian network (BNN) is torchbnn's, trained with a KL term. They are compared with our default,
``LocalW2Regressor()``, and with an oracle that knows the formula. Errors in mean and SD are given by two
metrics: the paper's, with 100 draws on each side, whose noise floor (the score of a perfect model) is drawn
as a line; and the error against the true moments, with 100 000 draws.

Local W2 and local MMD are also compared on 20 data sets of 1000 and of 2000 rows. Most of the time is that of
local MMD. ``--quick`` takes 20 s of one core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from scipy import stats

import nonlinear_fit
import panels
import publication
from nonlinear_fit import list_printed, make_cell
from panels import FLOOR, ORACLE, OTHER, OURS, PRINTED, TRUTH, format_number, mean_sd
from records import Cell, Options, Values, group, read, run_experiment

LOSSES = {"W2": "w2", "MMD": "mmd", "MSE": "mse", "mean2+var": "meanvar"}
NINE = [f"{form} {name}" for form in ("local", "global") for name in LOSSES] + ["BNN"]  # panels (a) to (i)
METHODS = [*NINE, "ours (default)", "knows the formula"]
SUMMED = "local mean2+var, summed"  # without 1/N in the variances, once beside the form with it
FEWER_DRAWS = 10_000  # against the true moments, where the mean over data sets counts
COMPARED = ("local W2", "local MMD")  # on more data sets, as their difference is small
# The settings of torchbnn's own examples; the paper gives the size of the network and nothing else.
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


def list_cells(options: Options) -> list[Cell]:
    """Every method on every data set, and the truth for the noise floor and the figures."""
    rows, moment_draws = publication.NONLINEAR_ROWS, 100_000
    epochs: dict[str, Any] = {}
    if options.quick:
        rows, moment_draws, epochs = 300, 2000, {"max_epochs": 60}
    deltas = {"local": publication.NONLINEAR_DELTA, "global": None}
    chosen: dict[str, tuple[str, dict[str, Any]]] = {
        f"{form} {name}": ("regressor", list_printed(delta, loss, **epochs))
        for form, delta in deltas.items()
        for name, loss in LOSSES.items()
    }
    chosen[SUMMED] = "regressor", list_printed(deltas["local"], nonlinear_fit.SUMMED, **epochs)
    chosen["BNN"] = "bnn", BNN | epochs
    chosen["ours (default)"] = "regressor", {}
    chosen["knows the formula"] = "formula", nonlinear_fit.ORACLE
    seeds = range(publication.FIRST_SEED, publication.FIRST_SEED + options.repeats)
    found = [make_cell("truth", seeds[0], 0, "truth", {}, 0, pictured=True)]
    # The longest fits come first, so that no core waits for one at the end.
    for method in sorted([*METHODS, SUMMED], key=lambda name: name != "local MMD"):
        for seed in seeds:
            found.append(
                make_cell(method, seed, rows, *chosen[method], moment_draws, pictured=seed == seeds[0])
            )
    more = range(seeds[0], seeds[0] + publication.COMPARED_REPEATS * options.repeats // publication.REPEATS)
    for size in (rows // 2, rows):  # 1000 in the text, 2000 in Table S1
        for seed in more:
            for method in reversed(COMPARED):
                # A cell must not depend on how many repeats are asked for.
                full = size == rows and seed < seeds[0] + publication.REPEATS
                draws = moment_draws if full else min(moment_draws, FEWER_DRAWS)
                if size < rows or seed not in seeds:
                    found.append(make_cell(method, seed, size, *chosen[method], draws))
    return found


def draw(options: Options) -> None:
    """Draw the figures and write the tables from the records."""
    records = read("nonlinear", options)
    rows = max(record["settings"]["rows"] for record in records)
    seeds = {r["settings"]["seed"] for r in records if r["settings"]["method"] == "BNN"}
    drawn = [r for r in records if r["settings"]["rows"] in (0, rows) and r["settings"]["seed"] in seeds]
    found = {key[0]: values for key, values in group(drawn, "method").items()}
    _draw_clouds(records, options.figures / "nonlinear_a_to_i.png")
    _draw_errors(found, options.figures / "nonlinear_j.png", rows)
    floor = found["truth"][0]
    panels.write_tables(
        options.figures / "nonlinear.md",
        f"Nonlinear example, (j): N = {rows}. Mean +- SD over repeats. The last row leaves 1/N out of the "
        "variances of mean2+var, as its formula is printed.",
        panels.format_table(_tabulate(found)),
        "A perfect model scores {mean_error_100:.3f} in the mean and {std_error_100:.3f} in the SD by the "
        "100-draw metric; a smaller error is due to chance.".format(**floor),
        *(_rank(found, metric) for metric in METRICS),
        f"{' and '.join(COMPARED)} on the same data sets: mean errors, mean differences with their standard "
        "errors, and p of a paired t test.",
        panels.format_table(_tabulate_pairs(records)),
    )


def _draw_clouds(records: list[dict[str, Any]], path: Path) -> None:
    """Panels (a) to (i), our default and the oracle: 100 draws of y and of yhat at every test x."""
    drawn = {r["settings"]["method"]: r for r in records if r["settings"]["pictured"]}
    truth = drawn["truth"]
    x = np.linspace(*truth["settings"]["test"])
    fig, axes = panels.make_figure(3, 4, width=3.1, height=2.7)
    for ax, (panel, method) in zip(axes.flat, zip("abcdefghi+*", METHODS, strict=True), strict=False):
        panels.draw_clouds(ax, x, truth["values"]["draws"], -0.022, TRUTH, "y, 100 draws")
        color = {"ours (default)": OURS, "knows the formula": ORACLE}.get(method, PRINTED)
        if "draws" in drawn[method]["values"]:
            panels.draw_clouds(ax, x, drawn[method]["values"]["draws"], 0.022, color, "yhat, 100 draws")
        panels.label_panel(ax, panel, method)
        low, high = np.min(truth["values"]["draws"]), np.max(truth["values"]["draws"])
        reach = 0.25 * (high - low)  # one poor method must not compress the other panels
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
    panels.save_figure(fig, path)


def _draw_errors(found: dict[str, list[Values]], path: Path, rows: int) -> None:
    """Panel (j): errors of all methods by both metrics, and the noise floor of the first."""
    fig, axes = panels.make_figure(1, 2, width=5.0, height=4.8)
    methods = [name for name in [*METHODS, SUMMED] if name in found]
    places = np.arange(len(methods))[::-1]
    for ax, (error, title) in zip(axes[0], ERRORS.items(), strict=True):
        for (metric, label), shift, marker, color in zip(
            METRICS.items(), (0.14, -0.14), ("o", "D"), (OTHER, OURS), strict=True
        ):
            means, sds = np.array([mean_sd(found[m], error + metric) for m in methods]).T
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
        panels.set_log_axis(ax.xaxis)
        ax.set_yticks(places, methods)
        ax.grid(axis="y", lw=0.3)
        ax.set_xlabel(f"relative {title}")
        panels.label_panel(ax, "j", f"{title}, N = {rows}")
    panels.add_legend(fig, axes[0], columns=3)
    panels.save_figure(fig, path)


def _tabulate(found: dict[str, list[Values]]) -> list[list[str]]:
    heads = [f"{what}, {how}" for how in ("100 draws", "true moments") for what in ("mean", "SD")]
    lines = [["error in", *heads, "seconds per fit", "failed"]]
    for method in (name for name in [*METHODS, SUMMED] if name in found):
        values = found[method]
        scores = [format_number(mean_sd(values, error + metric)) for metric in METRICS for error in ERRORS]
        seconds = f"{mean_sd(values, 'fit_seconds')[0]:.1f}"
        lines.append([method, *scores, seconds, str(sum("failed" in v for v in values))])
    return lines


@final
@dataclass(frozen=True)
class Pair:
    """Two methods on the same data sets: mean errors, their mean difference, a paired t test."""

    repeats: int
    means: tuple[float, float]
    difference: float
    standard_error: float
    p: float

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Pair:
        """Compare the errors of two methods, data set by data set."""
        a, b = np.array(first), np.array(second)
        error = float((a - b).std(ddof=1) / np.sqrt(len(a)))
        p = float(stats.ttest_rel(a, b).pvalue) if error > 0 else math.nan
        return cls(len(a), (float(a.mean()), float(b.mean())), float((a - b).mean()), error, p)


def compare_pairs(records: list[dict[str, Any]]) -> dict[tuple[int, str], Pair]:
    """Local W2 against local MMD by number of rows and error, on the data sets that both were fitted to."""
    scores: dict[tuple[int, str], dict[int, Values]] = {}
    for record in records:
        settings = record["settings"]
        if settings["method"] in COMPARED and "failed" not in record["values"]:
            repeats = scores.setdefault((settings["rows"], settings["method"]), {})
            repeats[settings["seed"]] = record["values"]
    found: dict[tuple[int, str], Pair] = {}
    for rows in sorted({size for size, _ in scores}):
        first, second = (scores.get((rows, method), {}) for method in COMPARED)
        shared = sorted(first.keys() & second.keys())
        for error in [name + metric for metric in METRICS for name in ERRORS] if len(shared) > 1 else ():
            found[rows, error] = Pair.of(*([values[s][error] for s in shared] for values in (first, second)))
    return found


def _tabulate_pairs(records: list[dict[str, Any]]) -> list[list[Any]]:
    lines: list[list[Any]] = [["N", "data sets", "error in", *COMPARED, "difference", "p"]]
    names = {
        name + metric: f"{title}, {how}" for metric, how in METRICS.items() for name, title in ERRORS.items()
    }
    for (rows, error), pair in compare_pairs(records).items():
        means = [f"{value:.4f}".removeprefix("0") for value in pair.means]
        difference = format_number((pair.difference, pair.standard_error), 4)
        p = "-" if math.isnan(pair.p) else f"{pair.p:.2g}"
        lines.append([rows, pair.repeats, names[error], *means, difference, p])
    return lines


def _rank(found: dict[str, list[Values]], metric: str) -> str:
    """Rank the nine methods: the paper claims that local W2 comes first and local MMD second."""
    words = []
    for error, title in ERRORS.items():
        ranked = sorted((mean_sd(found[m], error + metric)[0], m) for m in NINE)
        words.append(f"by {title}: " + ", ".join(f"{name} ({value:.3f})" for value, name in ranked))
    return f"The nine methods, best first ({METRICS[metric]}), " + "; ".join(words) + "."


def main() -> None:
    """Compute what is missing, then draw."""
    options = Options.parse(__doc__)
    run_experiment("nonlinear", list_cells(options), nonlinear_fit.run, draw, options)


if __name__ == "__main__":
    main()
