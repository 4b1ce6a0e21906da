"""The nonlinear model with wider laws: the supplement's figure (Fig. example1_appendixic (a), (b)).

    python paper/harder.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER]

Errors in mean and SD (a) against the sd of the independent parameters (omega_1, omega_2), x ~ U(-.5, .5);
(b) against a for training inputs x ~ U(-a, a), sd = 1. The printed method has the settings of the nonlinear
figure. Beside it our default and an oracle that knows the formula. Both metrics, as in nonlinear.py; the
noise floor of the 100-draw metric grows with sd too, which the paper's curves contain.

Full settings, 5 repeats: about 15 minutes on 2 cores (estimated; a printed fit takes 13 s, ours 10 s, their
100 000 draws 5 to 9 s). ``--quick``: 12 s of one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drawing
import fit_nonlinear
import printed
from drawing import FLOOR, ORACLE, OURS, PRINTED, mean_sd, number
from fit_nonlinear import as_printed, settings
from records import Cell, Options, Values, compute, group, read

METHODS = {"printed": PRINTED, "ours (default)": OURS, "knows the formula": ORACLE}
METRICS = {"_100": "100 draws", "": "true moments"}
ERRORS = {"mean_error": "error in the mean", "std_error": "error in the SD"}
FIXED_SD, FIXED_HALF_WIDTH = 1.0, 0.5  # of panels (b) and (a)

Found = dict[tuple[Any, ...], list[Values]]  # values of repeats by method, sd, half width


def cells(options: Options) -> list[Cell]:
    """Every method on every data set of both panels, and the truths for the noise floors."""
    sds: tuple[float, ...] = printed.HARDER_SDS
    half_widths: tuple[float, ...] = printed.HARDER_HALF_WIDTHS
    rows, moment_draws = printed.NONLINEAR_ROWS, 100_000
    epochs: dict[str, Any] = {}
    if options.quick:
        sds, half_widths = (0.2, 1.0), (0.5, 1.0)
        rows, moment_draws, epochs = 300, 2000, {"max_epochs": 60}
    chosen: dict[str, tuple[str, dict[str, Any]]] = {
        "printed": ("regressor", as_printed(printed.NONLINEAR_DELTA, **epochs)),
        "ours (default)": ("regressor", epochs),
        "knows the formula": ("formula", fit_nonlinear.ORACLE),
    }
    laws = dict.fromkeys([(sd, FIXED_HALF_WIDTH) for sd in sds] + [(FIXED_SD, a) for a in half_widths])
    seeds = range(printed.FIRST_SEED, printed.FIRST_SEED + options.repeats)
    found = [settings("truth", seeds[0], 0, "truth", {}, 0, sd, a) for sd, a in laws]
    for seed in seeds:
        for sd, a in laws:
            found += [settings(m, seed, rows, *chosen[m], moment_draws, sd, a) for m in METHODS]
    return found


def draw(options: Options) -> None:
    """Picture and tables from the records."""
    records = read("harder", options)
    rows = max(record["settings"]["rows"] for record in records)
    found = group(records, "method", "sd", "half_width")
    panels = _panels(found)
    fig, axes = drawing.figure(2, 4, width=3.2, height=2.9)
    for i, (metric, how) in enumerate(METRICS.items()):
        for j, (panel, label, values, laws) in enumerate(panels):
            for k, (error, title) in enumerate(ERRORS.items()):
                ax = axes[i, 2 * j + k]
                for method, color in METHODS.items():
                    points = [mean_sd(found[(method, *law)], error + metric) for law in laws]
                    drawing.curve(ax, values, points, color=color, marker="o", label=method)
                if metric:
                    floors = [found[("truth", *law)][0][error + metric] for law in laws]
                    ax.plot(values, floors, **FLOOR, label="a perfect model, 100 draws")
                drawing.log_axis(ax.yaxis)
                ax.set(xlabel=label, ylabel=f"relative {title}")
                drawing.letter(ax, panel, f"{title}, {how}")
    drawing.legend_below(fig, axes.flat)
    drawing.save(fig, options.figures / "harder.png")
    parts = [f"Nonlinear example, harder: N = {rows}, mean +- SD over repeats."]
    for panel, label, values, laws in panels:
        parts += [f"({panel}) against {label}:", drawing.table(_table(found, values, laws))]
    drawing.write_tables(options.figures / "harder.md", *parts)


def _panels(found: Found) -> list[tuple[str, str, list[float], list[tuple[float, float]]]]:
    """Letter, label of the axis, its values, and the laws (sd, half width) that they stand for."""
    known = {key[1:] for key in found}
    by_sd = sorted(law for law in known if law[1] == FIXED_HALF_WIDTH)
    by_width = sorted(law for law in known if law[0] == FIXED_SD)
    return [
        ("a", "sd of omega_1 and omega_2", [sd for sd, _ in by_sd], by_sd),
        ("b", "a, x ~ U(-a, a)", [a for _, a in by_width], by_width),
    ]


def _table(found: Found, values: list[float], laws: list[tuple[float, float]]) -> list[list[str]]:
    heads = [f"{what}, {how}" for how in METRICS.values() for what in ("mean", "SD")]
    lines = [["value", "error in", *heads, "seconds a fit", "failed"]]
    for value, law in zip(values, laws, strict=True):
        for method in METHODS:
            repeats = found[(method, *law)]
            scores = [number(mean_sd(repeats, error + metric)) for metric in METRICS for error in ERRORS]
            failed = str(sum("failed" in v for v in repeats))
            lines.append([f"{value:g}", method, *scores, f"{mean_sd(repeats, 'fit_seconds')[0]:.1f}", failed])
        floor = found[("truth", *law)][0]
        noise = [number((floor[error + "_100"], floor[error + "_100_sd"])) for error in ERRORS]
        lines.append([f"{value:g}", "a perfect model", *noise, "", "", "", ""])
    return lines


def main() -> None:
    """Compute what is missing, then draw."""
    options = Options.parse(__doc__)
    compute("harder", cells(options), fit_nonlinear.run, options, Path(fit_nonlinear.__file__))
    draw(options)


if __name__ == "__main__":
    main()
