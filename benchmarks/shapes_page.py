"""Write the tables of ``docs/shapes.md`` from the records of ``shapes.py``, and draw the zoo.

    python benchmarks/shapes_page.py [--picture] [--rows 5000]

``--picture`` fits ``LocalW2Regressor()`` to every problem and draws true and fitted outcomes side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "accuracy"))  # the comparison on real tables

import numpy as np

from comparison import compare_pair
from localw2.datasets import ZOO
from shapes import METHODS, PROJECTIONS, RECORDS, TRUTH, VALLEYS, make_rows
from table import NOTHING, fill_page, format_number, format_seconds, format_table

Record = dict[str, Any]  # the settings and values of a record in one dict

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs/shapes.md", ROOT / "docs/shapes.png"
OURS = "localw2"
FITTED = tuple(method for method in METHODS if method != TRUTH)
ONE_OUTPUT = tuple(problem for problem in ZOO if problem not in PROJECTIONS)
SHOWN = 1500  # points of a panel
TRUE_COLOR, FITTED_COLOR = "#c8442c", "#1f6fb4"


def read_records(path: Path = RECORDS) -> list[Record]:
    """Read all records, settings and values together."""
    if not path.exists():
        return []
    return [record["settings"] | record["values"] for record in json.loads(path.read_text())["records"]]


def by_seed(records: Sequence[Record], problem: str, rows: int, method: str, value: str) -> dict[int, float]:
    """A value of a method on a problem, for each seed that has it."""
    wanted = (problem, rows, method)
    return {
        record["seed"]: record[value]
        for record in records
        if (record["problem"], record["rows"], record["method"]) == wanted and value in record
    }


def mean_value(records: Sequence[Record], problem: str, rows: int, method: str, value: str) -> float:
    """The mean of a value over seeds; NaN if there is none."""
    found = list(by_seed(records, problem, rows, method, value).values())
    return float(np.mean(found)) if found else float("nan")


def score_ratio(records: Sequence[Record], problem: str, rows: int, method: str) -> tuple[float, float]:
    """The score divided by the true law's over the same seeds, and its standard error."""
    own, true = (by_seed(records, problem, rows, name, "score") for name in (method, TRUTH))
    found = compare_pair(own, true)
    return (found.ratio, found.ratio_error) if found else (float("nan"), float("nan"))


def list_rows(records: Sequence[Record]) -> list[int]:
    """The numbers of training rows, the largest first."""
    return sorted({record["rows"] for record in records}, reverse=True)


def mark_best(cells: list[str], values: list[float]) -> list[str]:
    """The cells with the smallest value in bold."""
    best = np.nanmin(values) if not np.isnan(values).all() else None
    return [f"**{cell}**" if value == best else cell for cell, value in zip(cells, values, strict=True)]


def tabulate_scores(records: Sequence[Record]) -> str:
    """CRPS or energy score over the true law's: a line per problem, a column per method."""

    def table(rows: int) -> str:
        lines = [["problem", *FITTED]]
        for problem in ZOO:
            found = [score_ratio(records, problem, rows, method) for method in FITTED]
            lines.append(
                [problem, *mark_best([_with_error(*pair) for pair in found], [pair[0] for pair in found])]
            )
        return format_table(lines)

    return _for_rows(records, table)


def tabulate_distance(value: str) -> Callable[[Sequence[Record]], str]:
    """The maker of a table of W1 or W2, with the true law's own draws as the last column."""

    def make(records: Sequence[Record]) -> str:
        def table(rows: int) -> str:
            lines = [["problem", *FITTED, f"{TRUTH} itself"]]
            for problem in ZOO:
                found = [mean_value(records, problem, rows, method, value) for method in METHODS]
                cells = [_decimals(number) for number in found]
                lines.append([problem, *mark_best(cells[:-1], found[:-1]), cells[-1]])
            return format_table(lines)

        return _for_rows(records, table)

    return make


def tabulate_special(records: Sequence[Record]) -> str:
    """Mass in the valley, and distances of projections that only the joint law gets right."""
    lines = [["", "rows", *FITTED, f"{TRUTH} itself"]]
    values = [(problem, "valley", f"{problem}: mass in the valley") for problem in VALLEYS]
    values += [
        (problem, name, f"{problem}: W1, {name}") for problem, of in PROJECTIONS.items() for name in of
    ]
    for problem, value, label in values:
        for rows in list_rows(records):
            found = [mean_value(records, problem, rows, method, value) for method in METHODS]
            lines.append([label, str(rows), *(_decimals(number) for number in found)])
    return format_table(lines)


def tabulate_seconds(records: Sequence[Record]) -> str:
    """Processor seconds of a fit: the median over problems and seeds."""
    lines = [["rows", *FITTED]]
    for rows in list_rows(records):
        cells = [str(rows)]
        for method in FITTED:
            found = [r["fit_seconds"] for r in records if (r["rows"], r["method"]) == (rows, method)]
            cells.append(format_seconds(float(np.median(found))) if found else "-")
        lines.append(cells)
    return format_table(lines)


def state_summary(records: Sequence[Record]) -> str:
    """Ours beside the true law and the best peer, in sentences."""
    sentences = []
    for rows in list_rows(records):
        ratios = {problem: score_ratio(records, problem, rows, OURS)[0] for problem in ZOO}
        if np.isnan(list(ratios.values())).any():
            continue
        worst, joint = (
            max(of, key=lambda problem: ratios[problem]) for of in (ONE_OUTPUT, tuple(PROJECTIONS))
        )
        seeds = {
            method: min(len(by_seed(records, problem, rows, method, "score")) for problem in ZOO)
            for method in FITTED
        }
        fewest = min(seeds[method] for method in FITTED if method != OURS)
        first = 0
        for problem in ZOO:
            ours, *peers = (mean_value(records, problem, rows, method, "w1") for method in FITTED)
            first += ours <= np.nanmin(peers)
        sentences.append(
            f"With {rows} rows, the CRPS of localw2 is at most {format_number(ratios[worst], 4)} times the "
            f"true law's ({worst}), and its energy score at most {format_number(ratios[joint], 4)} times "
            f"({joint}). Its W1 to the true law is no larger than the best peer's on {first} of {len(ZOO)} "
            f"problems. (Seeds: localw2 {seeds[OURS]}, peers {fewest}.)"
        )
    return "\n\n".join(sentences) or NOTHING


def state_seeds(records: Sequence[Record]) -> str:
    """How many seeds each method has, which may differ while records are being computed."""
    lines = [["seeds", *METHODS]]
    for rows in list_rows(records):
        counts = [
            [len(by_seed(records, problem, rows, method, "score")) for problem in ZOO] for method in METHODS
        ]
        ends = [(min(found), max(found)) for found in counts]
        cells = [str(low) if low == high else f"{low} to {high}" for low, high in ends]
        lines.append([f"{rows} rows", *cells])
    return format_table(lines)


def _for_rows(records: Sequence[Record], table: Callable[[int], str]) -> str:
    return "\n\n".join(f"{rows} rows:\n\n{table(rows)}" for rows in list_rows(records))


def _decimals(value: float) -> str:
    """Three decimals: differences of the last are noise of the draws.

    >>> _decimals(0.0174), _decimals(1.5), _decimals(float("nan"))
    ('.017', '1.500', '-')
    """
    return "-" if np.isnan(value) else f"{value:.3f}".removeprefix("0")


def _with_error(value: float, error: float) -> str:
    return _decimals(value) + ("" if np.isnan(error) else f" ± {_decimals(error)}")


BLOCKS: dict[str, Callable[[Sequence[Record]], str]] = {
    "summary": state_summary,
    "scores": tabulate_scores,
    "w1": tabulate_distance("w1"),
    "w2": tabulate_distance("w2"),
    "special": tabulate_special,
    "seconds": tabulate_seconds,
    "seeds": state_seeds,
}


def draw_zoo(path: Path, rows: int, make_model: Callable[[], Any], shown: int = SHOWN) -> None:
    """Draw true outcomes beside fitted ones at the same new x, for every problem, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(10, 2.1 * len(ZOO) / 2), layout="constrained")
    parts: Any = figure.subfigures(len(ZOO) // 2, 2, wspace=0.07)
    for part, (problem, law) in zip(parts.ravel(), ZOO.items(), strict=True):
        x, y, _, _ = make_rows(problem, rows, seed=0)
        x_new, y_new = law.sample(shown, random_state=[0, 3])
        fitted = make_model().fit(x, y).sample(x_new, 1, random_state=0)[0]
        axes = part.subplots(1, 2, sharex=True, sharey=True)
        for ax, drawn, color, label in zip(
            axes, (y_new, fitted), (TRUE_COLOR, FITTED_COLOR), ("true", "fitted"), strict=True
        ):
            if drawn.ndim == 1:
                ax.scatter(x_new[:, 0], drawn, s=3, color=color, alpha=0.5, linewidths=0)
                ax.set_xlabel("x", fontsize=8, labelpad=1)
            else:
                ax.scatter(*drawn.T, s=3, c=x_new[:, 0], cmap="viridis", alpha=0.6, linewidths=0)
                ax.set_xlabel("first output", fontsize=8, labelpad=1)
                ax.set_aspect("equal", "box")
            ax.set_title(f"{problem}, {label}", fontsize=9)
            ax.tick_params(labelsize=7)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("y" if y.ndim == 1 else "second output", fontsize=8, labelpad=1)
        print(f"drew {problem}", flush=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Write the tables, and the picture if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", action="store_true", help="fit ours and draw the picture as well")
    parser.add_argument("--rows", type=int, default=5000, help="training rows of the picture (default 5000)")
    options = parser.parse_args()
    if options.picture:
        from localw2 import LocalW2Regressor

        draw_zoo(PICTURE, options.rows, lambda: LocalW2Regressor(random_state=0))
    PAGE.write_text(fill_page(PAGE.read_text(), BLOCKS, read_records(), "shapes"))
    print(state_summary(read_records()))


if __name__ == "__main__":
    main()
