"""Linear regression with random coefficients: Fig. example2 (a), (b), (c) of the paper.

    python paper/linear.py [--quick] [--repeats 5] [--jobs 2] [--out FOLDER]

Errors in the means b and the SDs s of the coefficients against delta, for both norms, and against N. Delta is
read in two ways: as the radius, which is what the paper prints and leaves one or two rows per ball, and as a
bound on the squared norm (radius sqrt(delta)). They are compared with the debiased loss on the larger balls,
with our default (debiased, centred, balls of 12 rows) and with exact maximum likelihood. The printed error
has no sum in its numerator and is called an average: it is given as a sum over the four coefficients, as in
the other examples, and as their average.

The full settings with 5 repeats take about 5 minutes on 2 cores (estimated from the time of an epoch, 1.5 to
10 ms); ``--quick`` takes 8 s of one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import linear_fit
import panels
import publication
from panels import ORACLE, OTHER, OURS, PRINTED, TRUTH, format_number, mean_sd
from records import Cell, Options, Values, group, read, run_experiment

Key = tuple[str, str | None]  # the method and its reading of delta
Found = dict[tuple[Any, ...], list[Values]]  # repeats by method, reading, delta, norm and rows

METHODS: dict[Key, tuple[str, str]] = {
    ("printed", "literal"): ("printed loss, radius delta", PRINTED),
    ("printed", "root"): ("printed loss, radius sqrt(delta)", OTHER),
    ("debiased", "root"): ("debiased loss, radius sqrt(delta)", "#7b4fa3"),
    ("ours", None): ("ours (default)", OURS),
    ("maximum likelihood", None): ("exact maximum likelihood", ORACLE),
}
BALLS = [key for key in METHODS if key[1] is not None]
FREE = [key for key in METHODS if key[1] is None]
ERRORS = {"b_error": "error in b", "s_error": "error in s"}
DEBIASED_DRAWS = 8  # instead of 32: balls of hundreds of rows need few draws, and draws are expensive there
MARKS = {"homo": ("o", "--"), "hete": ("s", "-")}


def list_cells(options: Options) -> list[Cell]:
    """All fits: over delta and both norms, over N, and those without a delta."""
    deltas: tuple[float, ...] = publication.LINEAR_DELTAS
    sizes: tuple[int, ...] = publication.LINEAR_SIZES
    rows, training = publication.LINEAR_ROWS, publication.LINEAR_TRAINING
    if options.quick:
        deltas, sizes, rows, training = (0.1, 0.2), (150, 300), 300, training | {"max_epochs": 100}
    found: list[Cell] = []
    for seed in range(publication.FIRST_SEED, publication.FIRST_SEED + options.repeats):

        def add(key: Key, delta: float | None, norm: str | None, n: int, seed: int = seed) -> None:
            cell: Cell = {"method": key[0], "reading": key[1], "delta": delta, "norm": norm, "rows": n}
            cell["training"] = {"printed": training, "debiased": {"n_draws": DEBIASED_DRAWS}}.get(key[0])
            cell["seed"] = seed
            if cell not in found:
                found.append(cell)

        for key in BALLS:
            for norm in MARKS:
                for delta in deltas:
                    add(key, delta, norm, rows)
        for key in METHODS:
            for n in sizes:
                add(key, *_locate(key, "hete"), n)
    return found


def draw(options: Options) -> None:
    """Draw the figures and write the tables from the records."""
    records = read("linear", options)
    rows = max(r["settings"]["rows"] for r in records if r["settings"]["norm"] == "homo")
    found = group(records, "method", "reading", "delta", "norm", "rows")
    _draw_line(found, options.figures / "linear_a.png", rows)
    _draw_deltas(found, options.figures / "linear_b.png", rows)
    _draw_sizes(found, options.figures / "linear_c.png")
    panels.write_tables(
        options.figures / "linear.md",
        f"Linear example, (a): N = {rows}, delta = {publication.LINEAR_DELTA}; the SD of yhat over that of y"
        " on the line x = (x0, x0, x0), averaged over its ten points. Mean +- SD over repeats.",
        panels.format_table(_tabulate_line(found, rows)),
        f"(b): N = {rows}; sum|b - bhat| / sum|b|, likewise for s; the average has a fourth of it.",
        panels.format_table(_tabulate_deltas(found, rows)),
        f"(c): norm hete, delta = {publication.LINEAR_DELTA}.",
        panels.format_table(_tabulate_sizes(found)),
    )


def _draw_line(found: Found, path: Path, rows: int) -> None:
    """Panel (a): y and yhat of the first repeat along (x0, x0, x0), for both norms."""
    truth, draws = linear_fit.TRUTH, publication.TEST_DRAWS
    x = np.linspace(*publication.LINEAR_LINE)
    y = _sample_line(truth.coefficient_means, truth.coefficient_stds, draws, 0)
    chosen = _list_lines()
    fig, axes = panels.make_figure(2, len(chosen) // 2, width=2.9, height=3.1)
    for ax, (key, norm) in zip(axes.flat, chosen, strict=True):
        (name, color), fitted = METHODS[key], found[(*key, *_locate(key, norm), rows)][0]
        panels.draw_clouds(ax, x, y, -0.022, TRUTH, "y, 100 draws")
        yhat = _sample_line(fitted["b"], fitted["s"], draws, 1)
        panels.draw_clouds(ax, x, yhat, 0.022, color, "yhat, 100 draws")
        panels.label_panel(ax, "a", f"{name}\n{norm}" if norm else f"{name}\n")
        ax.set_xlabel("x0 of x = (x0, x0, x0)")
        ax.sharey(axes[0, 0])
        ax.legend(frameon=False, fontsize=8, loc="upper left")
    for ax in axes[:, 0]:
        ax.set_ylabel("y, yhat")
    panels.save_figure(fig, path)


def _list_lines() -> list[tuple[Key, str | None]]:
    """The panels of (a): methods with balls by norm, those without beside them."""
    return [
        *((key, "homo") for key in BALLS),
        (FREE[0], None),
        *((key, "hete") for key in BALLS),
        (FREE[1], None),
    ]


def _sample_line(b: Any, s: Any, draws: int, seed: int) -> Any:
    """Draws (S, points) of the model with independent Gaussian coefficients, intercept first."""
    x = linear_fit.place_on_line(publication.LINEAR_LINE)
    design = np.column_stack([np.ones(len(x)), x])
    omega = np.random.default_rng(seed).normal(b, s, (draws, len(x), len(b)))
    return (omega * design).sum(-1)


def compare_spread(s: Any) -> float:
    """SD of yhat over SD of y on the line, averaged over its points."""
    x = linear_fit.place_on_line(publication.LINEAR_LINE)
    squares = np.column_stack([np.ones(len(x)), x]) ** 2
    return float(
        np.sqrt(squares @ np.square(s) / (squares @ np.square(linear_fit.TRUTH.coefficient_stds))).mean()
    )


def _draw_deltas(found: Found, path: Path, rows: int) -> None:
    """Panel (b): errors against delta, both norms."""
    deltas = _list_deltas(found)
    fig, axes = panels.make_figure(1, 2, width=4.6, height=4.4)
    for ax, (error, title) in zip(axes[0], ERRORS.items(), strict=True):
        for i, (key, norm) in enumerate(product(BALLS, MARKS)):
            (name, color), (marker, line) = METHODS[key], MARKS[norm]
            points = [mean_sd(found[(*key, d, norm, rows)], error) for d in deltas]
            style = {"color": color, "marker": marker, "ls": line, "label": f"{name}, {norm}"}
            panels.draw_curve(ax, _shift(deltas, i - 2.5), points, **style)
        for key in FREE:
            name, color = METHODS[key]
            level = mean_sd(found[(*key, None, None, rows)], error)[0]
            ax.axhline(level, color=color, lw=1.4, ls="-." if key[0] == "ours" else ":", label=name)
        panels.set_log_axis(ax.xaxis, deltas)
        panels.set_log_axis(ax.yaxis)
        ax.set_xlabel("delta")
        ax.set_ylabel(f"relative {title}, summed (average: a fourth)")
        panels.label_panel(ax, "b", f"{title} against delta, N = {rows}")
    panels.add_legend(fig, axes[0], columns=2)
    panels.save_figure(fig, path)


def _draw_sizes(found: Found, path: Path) -> None:
    """Panel (c): errors against N."""
    sizes = _list_sizes(found)
    fig, axes = panels.make_figure(1, 2, width=4.6, height=4.0)
    for ax, (error, title) in zip(axes[0], ERRORS.items(), strict=True):
        for i, (key, (name, color)) in enumerate(METHODS.items()):
            points = [mean_sd(found[(*key, *_locate(key, "hete"), n)], error) for n in sizes]
            panels.draw_curve(ax, _shift(sizes, i - 2), points, color=color, marker="s", label=name)
        panels.set_log_axis(ax.xaxis, sizes)
        panels.set_log_axis(ax.yaxis)
        ax.set_xlabel("N, training rows")
        ax.set_ylabel(f"relative {title}, summed (average: a fourth)")
        panels.label_panel(ax, "c", f"{title} against N, hete, delta = {publication.LINEAR_DELTA}")
    panels.add_legend(fig, axes[0], columns=2)
    panels.save_figure(fig, path)


def _locate(key: Key, norm: str | None) -> tuple[float | None, str | None]:
    """The delta of panels (a) and (c) and this norm, for methods that have them."""
    return (publication.LINEAR_DELTA, norm) if key in BALLS else (None, None)


def _shift(values: Sequence[float], place: float) -> list[float]:
    """Shift points on a logarithmic axis, so that the error bars of several curves do not overlap."""
    return [value * 1.025**place for value in values]


def _list_deltas(found: Found) -> list[float]:
    return sorted({key[2] for key in found if key[2] is not None})


def _list_sizes(found: Found) -> list[int]:
    return sorted({key[4] for key in found if key[0] == "ours"})


def _tabulate_line(found: Found, rows: int) -> list[list[Any]]:
    lines: list[list[Any]] = [["method", "norm", "SD of yhat / SD of y"]]
    for key, (name, _) in METHODS.items():
        for norm in MARKS if key in BALLS else (None,):
            fits = found[(*key, *_locate(key, norm), rows)]
            ratios = [{"ratio": compare_spread(fit["s"])} for fit in fits]
            lines.append([name, norm or "", format_number(mean_sd(ratios, "ratio"), 2)])
    return lines


def _tabulate_deltas(found: Found, rows: int) -> list[list[Any]]:
    lines: list[list[Any]] = [["method", "norm", "delta", "rows per ball", *_ERROR_COLUMNS]]
    for key, (name, _) in METHODS.items():
        balls = [(d, norm) for norm in MARKS for d in _list_deltas(found)] if key in BALLS else [(None, None)]
        for delta, norm in balls:
            values = found[(*key, delta, norm, rows)]
            size = "" if delta is None else f"{mean_sd(values, 'ball_rows')[0]:.1f}"
            lines.append([name, norm or "", "" if delta is None else f"{delta:g}", size, *_errors(values)])
    return lines


def _tabulate_sizes(found: Found) -> list[list[Any]]:
    lines: list[list[Any]] = [["method", "N", *_ERROR_COLUMNS]]
    for key, (name, _) in METHODS.items():
        for n in _list_sizes(found):
            lines.append([name, n, *_errors(found[(*key, *_locate(key, "hete"), n)])])
    return lines


_ERROR_COLUMNS = [*ERRORS.values(), *(f"average {title}" for title in ERRORS.values())]


def _errors(values: list[Values]) -> list[str]:
    """Errors summed over the coefficients, then averaged over them."""
    found = [mean_sd(values, error) for error in ERRORS]
    count = len(linear_fit.TRUTH.coefficient_means)
    return [format_number(pair) for pair in [*found, *((mean / count, sd / count) for mean, sd in found)]]


def main() -> None:
    """Compute what is missing, then draw."""
    options = Options.parse(__doc__)
    run_experiment("linear", list_cells(options), linear_fit.run, draw, options)


if __name__ == "__main__":
    main()
