"""Eleven network structures: the supplement's Table S2 (errors in mean and SD, seconds).

    python paper/architecture.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER]

The printed loss and training with delta = .1 on 1000 rows (the text's N) and on 2000 (that of Table S1), and
our default estimator with the same network on 1000 rows, all scored by the paper's 100-draw metric and
compared with the paper's values and seconds (one core of an i9-13900KF). An error counts as no worse than the
paper's if it exceeds it by at most 2 sqrt((sd_paper^2 + sd_ours^2) / 5). With one hidden layer,
ResNet and plain are the same network: a residual connection needs two hidden layers.

The full settings with 5 repeats take about 14 minutes on 2 cores (estimated; a fit takes 4 to 17 s and its
100 000 draws up to 9 s). ``--quick`` takes 15 s of one core.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nonlinear_fit
import panels
import publication
from nonlinear_fit import list_printed, make_cell
from panels import FLOOR, OTHER, OURS, PRINTED, TRUTH, format_number, mean_sd
from publication import STRUCTURES, Structure
from records import Cell, Options, Values, group, read, run_experiment

MORE = "printed, more rows"
FEWER_DRAWS = 20_000  # for these, against the true moments
METHODS = {"printed": PRINTED, MORE: OTHER, "ours": OURS}
ERRORS = {"mean": "error in the mean", "std": "error in the SD"}

Found = dict[tuple[Any, ...], list[Values]]  # repeats by method and structure


def list_cells(options: Options) -> list[Cell]:
    """Both methods with every structure on every data set, and the truth for the noise floor."""
    rows, moment_draws = publication.ARCHITECTURE_ROWS, 100_000
    epochs: dict[str, Any] = {}
    if options.quick:
        rows, moment_draws, epochs = 200, 2000, {"max_epochs": 30}
    seeds = range(publication.FIRST_SEED, publication.FIRST_SEED + options.repeats)
    found = [make_cell("truth", seeds[0], 0, "truth", {}, 0)]
    for seed in seeds:
        for row in STRUCTURES:
            network: dict[str, Any] = {"width": row.width, "depth": row.depth, "residual": row.residual}
            as_in_paper = list_printed(publication.ARCHITECTURE_DELTA, **network, **epochs)
            for method, parameters in (("printed", as_in_paper), ("ours", network | epochs)):
                cell = make_cell(method, seed, rows, "regressor", parameters, moment_draws)
                found.append(cell | {"structure": row.name})
            more = publication.ARCHITECTURE_MORE_ROWS if not options.quick else 2 * rows
            fewer = min(moment_draws, FEWER_DRAWS)
            cell = make_cell("printed", seed, more, "regressor", as_in_paper, fewer)
            found.append(cell | {"structure": row.name})
    return found


def draw(options: Options) -> None:
    """Draw the figure and write the tables from the records."""
    records = read("architecture", options)
    sizes = sorted({record["settings"]["rows"] for record in records} - {0})
    found = group([r for r in records if r["settings"]["rows"] in (0, sizes[0])], "method", "structure")
    # The same with more rows, as a method of its own.
    more = group([r for r in records if r["settings"]["rows"] == sizes[-1]], "structure")
    found |= {(MORE, structure): values for (structure,), values in more.items()}
    floor = found[("truth", None)][0]
    fig, axes = panels.make_figure(1, 2, width=4.8, height=4.6)
    places = np.arange(len(STRUCTURES))[::-1]
    for ax, (error, title) in zip(axes[0], ERRORS.items(), strict=True):
        paper = np.array([getattr(row, error) for row in STRUCTURES])
        series = [("the paper's table", TRUTH, paper)]
        for method, color in METHODS.items():
            scores = [mean_sd(found[(method, row.name)], f"{error}_error_100") for row in STRUCTURES]
            rows = f", N = {sizes[method == MORE]}"
            name = method if method == "ours" else "printed method, here"
            series.append((name + rows, color, np.array(scores)))
        for (name, color, values), shift in zip(series, (0.27, 0.09, -0.09, -0.27), strict=True):
            style: dict[str, Any] = {"fmt": "o", "ms": 4.5, "capsize": 2, "lw": 0.9, "color": color}
            ax.errorbar(values[:, 0], places + shift, xerr=values[:, 1], label=name, **style)
        ax.axvline(floor[f"{error}_error_100"], **FLOOR, label="a perfect model, 100 draws")
        panels.set_log_axis(ax.xaxis)
        ax.set_yticks(places, [row.name for row in STRUCTURES])
        ax.grid(axis="y", lw=0.3)
        ax.set_xlabel(f"relative {title}, 100 draws")
        ax.set_title(title, fontsize=9, loc="left")
    panels.add_legend(fig, axes[0], columns=3)
    panels.save_figure(fig, options.figures / "architecture.png")
    parts = []
    names = [f"printed, N = {sizes[0]}", f"printed, N = {sizes[-1]}", f"ours, N = {sizes[0]}"]
    for error, title in ERRORS.items():
        heads = ["the paper", *(head for name in names for head in (name, "no worse"))]
        heads += [f"{name}, true moments" for name in names]
        lines = [
            [title, *heads],
            *(_format_row(found, row, error) for row in STRUCTURES),
            _format_means(found, error),
        ]
        parts += [f"Table S2, {title} (100 draws; a perfect model scores {floor[f'{error}_error_100']:.3f}):"]
        parts.append(panels.format_table(lines))
    parts.append(
        "50 x 1 ResNet and 50 x 1 plain are one network. Their rows are equal here; in the paper they "
        "differ by chance."
    )
    parts.append("Seconds per fit, one core:")
    parts.append(
        panels.format_table([["", "the paper", *names], *(_format_seconds(found, row) for row in STRUCTURES)])
    )
    panels.write_tables(options.figures / "architecture.md", *parts)


def is_no_worse(ours: tuple[float, float], paper: tuple[float, float]) -> bool:
    """Whether our mean over repeats exceeds the paper's by no more than two standard errors.

    >>> is_no_worse((0.05, 0.01), (0.04, 0.01)), is_no_worse((0.06, 0.01), (0.04, 0.01))
    (True, False)
    """
    return ours[0] <= paper[0] + 2 * math.sqrt((paper[1] ** 2 + ours[1] ** 2) / publication.REPEATS)


def _format_row(found: Found, row: Structure, error: str) -> list[str]:
    paper = getattr(row, error)
    cells = [row.name, format_number(paper)]
    for method in METHODS:
        score = mean_sd(found[(method, row.name)], f"{error}_error_100")
        cells += [format_number(score), "yes" if is_no_worse(score, paper) else "NO"]
    return cells + [format_number(mean_sd(found[(method, row.name)], f"{error}_error")) for method in METHODS]


def _format_means(found: Found, error: str) -> list[str]:
    """The last row of a table: the means over the structures."""

    def over_rows(method: str, name: str) -> str:
        values = [mean_sd(found[(method, row.name)], name)[0] for row in STRUCTURES]
        return f"{np.mean(values):.3f}".removeprefix("0")

    paper = f"{np.mean([getattr(row, error)[0] for row in STRUCTURES]):.3f}".removeprefix("0")
    cells = ["mean over rows", paper]
    for method in METHODS:
        cells += [over_rows(method, f"{error}_error_100"), ""]
    return cells + [over_rows(method, f"{error}_error") for method in METHODS]


def _format_seconds(found: Found, row: Structure) -> list[str]:
    ours = [format_number(mean_sd(found[(method, row.name)], "fit_seconds"), 1) for method in METHODS]
    return [row.name, format_number(row.seconds, 0), *ours]


def main() -> None:
    """Compute what is missing, then draw."""
    options = Options.parse(__doc__)
    run_experiment("architecture", list_cells(options), nonlinear_fit.run, draw, options)


if __name__ == "__main__":
    main()
