"""The nonlinear model with wider distributions: the supplement's figure (Fig. example1_appendixic (a), (b)).

    python paper/harder.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER]

Errors in mean and SD (a) against the sd of the independent parameters (omega_1, omega_2), x ~ U(-.5, .5);
(b) against a for training inputs x ~ U(-a, a), sd = 1. The printed method has the settings of the nonlinear
figure; it is compared with our default and with an oracle that knows the formula. Both metrics are given, as
in nonlinear.py; the noise floor of the 100-draw metric also grows with sd and is part of the paper's curves.

The full settings with 5 repeats take about 15 minutes on 2 cores (estimated; a printed fit takes 13 s, one of
ours 10 s, and their 100 000 draws 5 to 9 s). ``--quick`` takes 12 s of one core.
"""

from __future__ import annotations

from typing import Any

import nonlinear_fit
import panels
import publication
from nonlinear_fit import list_printed, make_cell
from panels import FLOOR, ORACLE, OURS, PRINTED, format_number, mean_sd
from records import Cell, Options, Values, group, read, run_experiment

METHODS = {"printed": PRINTED, "ours (default)": OURS, "knows the formula": ORACLE}
METRICS = {"_100": "100 draws", "": "true moments"}
ERRORS = {"mean_error": "error in the mean", "std_error": "error in the SD"}
FIXED_SD, FIXED_HALF_WIDTH = 1.0, 0.5  # of panels (b) and (a)

Found = dict[tuple[Any, ...], list[Values]]  # repeats by method, sd and half width


def list_cells(options: Options) -> list[Cell]:
    """Every method on every data set of both panels, and the true models for the noise floors."""
    sds: tuple[float, ...] = publication.HARDER_SDS
    half_widths: tuple[float, ...] = publication.HARDER_HALF_WIDTHS
    rows, moment_draws = publication.NONLINEAR_ROWS, 100_000
    epochs: dict[str, Any] = {}
    if options.quick:
        sds, half_widths = (0.2, 1.0), (0.5, 1.0)
        rows, moment_draws, epochs = 300, 2000, {"max_epochs": 60}
    chosen: dict[str, tuple[str, dict[str, Any]]] = {
        "printed": ("regressor", list_printed(publication.NONLINEAR_DELTA, **epochs)),
        "ours (default)": ("regressor", {}),
        "knows the formula": ("formula", nonlinear_fit.ORACLE),
    }
    laws = dict.fromkeys([(sd, FIXED_HALF_WIDTH) for sd in sds] + [(FIXED_SD, a) for a in half_widths])
    seeds = range(publication.FIRST_SEED, publication.FIRST_SEED + options.repeats)
    found = [make_cell("truth", seeds[0], 0, "truth", {}, 0, sd, a) for sd, a in laws]
    for seed in seeds:
        for sd, a in laws:
            found += [make_cell(m, seed, rows, *chosen[m], moment_draws, sd, a) for m in METHODS]
    return found


def draw(options: Options) -> None:
    """Draw the figure and write the tables from the records."""
    records = read("harder", options)
    rows = max(record["settings"]["rows"] for record in records)
    found = group(records, "method", "sd", "half_width")
    shown = _list_panels(found)
    fig, axes = panels.make_figure(2, 4, width=3.2, height=2.9)
    for i, (metric, how) in enumerate(METRICS.items()):
        for j, (panel, label, values, laws) in enumerate(shown):
            for k, (error, title) in enumerate(ERRORS.items()):
                ax = axes[i, 2 * j + k]
                for method, color in METHODS.items():
                    points = [mean_sd(found[(method, *law)], error + metric) for law in laws]
                    panels.draw_curve(ax, values, points, color=color, marker="o", label=method)
                if metric:
                    floors = [found[("truth", *law)][0][error + metric] for law in laws]
                    ax.plot(values, floors, **FLOOR, label="a perfect model, 100 draws")
                panels.set_log_axis(ax.yaxis)
                ax.set(xlabel=label, ylabel=f"relative {title}")
                panels.label_panel(ax, panel, f"{title}, {how}")
    panels.add_legend(fig, axes.flat)
    panels.save_figure(fig, options.figures / "harder.png")
    parts = [f"Nonlinear example with wider distributions: N = {rows}. Mean +- SD over repeats."]
    for panel, label, values, laws in shown:
        parts += [f"({panel}) against {label}:", panels.format_table(_tabulate(found, values, laws))]
    panels.write_tables(options.figures / "harder.md", *parts)


def _list_panels(found: Found) -> list[tuple[str, str, list[float], list[tuple[float, float]]]]:
    """For each panel its letter, the label and values of the axis, and the (sd, half width) of each value."""
    known = {key[1:] for key in found}
    by_sd = sorted(law for law in known if law[1] == FIXED_HALF_WIDTH)
    by_width = sorted(law for law in known if law[0] == FIXED_SD)
    return [
        ("a", "sd of omega_1 and omega_2", [sd for sd, _ in by_sd], by_sd),
        ("b", "a, x ~ U(-a, a)", [a for _, a in by_width], by_width),
    ]


def _tabulate(found: Found, values: list[float], laws: list[tuple[float, float]]) -> list[list[str]]:
    heads = [f"{what}, {how}" for how in METRICS.values() for what in ("mean", "SD")]
    lines = [["value", "error in", *heads, "seconds per fit", "failed"]]
    for value, law in zip(values, laws, strict=True):
        for method in METHODS:
            repeats = found[(method, *law)]
            scores = [
                format_number(mean_sd(repeats, error + metric)) for metric in METRICS for error in ERRORS
            ]
            failed = str(sum("failed" in v for v in repeats))
            lines.append([f"{value:g}", method, *scores, f"{mean_sd(repeats, 'fit_seconds')[0]:.1f}", failed])
        floor = found[("truth", *law)][0]
        noise = [format_number((floor[error + "_100"], floor[error + "_100_sd"])) for error in ERRORS]
        lines.append([f"{value:g}", "a perfect model", *noise, "", "", "", ""])
    return lines


def main() -> None:
    """Compute what is missing, then draw."""
    options = Options.parse(__doc__)
    run_experiment("harder", list_cells(options), nonlinear_fit.run, draw, options)


if __name__ == "__main__":
    main()
