"""Build the theory note: figures and numbers from records, then the PDF.

    python paper/note/build.py [--out build/note/note.pdf]

Reads ``paper/results/linear.json``, ``benchmarks/accuracy/records`` and ``records_drawn``; writes figures
and ``values.json``, which ``note.typ`` reads, to ``build/note``. The compiler is the package ``typst`` of the
extra ``paper``; nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

import localw2
from localw2.balls.selection import shrinkage

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "note"
sys.path[:0] = [str(ROOT / "benchmarks" / "accuracy"), str(ROOT / "paper")]
CURVES = {
    ("printed", "literal"): ("published loss, radius delta = .1", "#c8442c", "s"),
    ("printed", "root"): ("published loss, radius sqrt(delta)", "#e08a1e", "^"),
    ("ours", None): ("debiased loss, balls of 12 rows", "#1f6fb4", "o"),
    ("maximum likelihood", None): ("maximum likelihood, which knows the law", "#111111", "D"),
}


def draw_shrinkage(path: Path) -> None:
    """Draw the spread that the published loss prefers, and the weights of L-moments in the debiased one."""
    from matplotlib import pyplot

    fig, (left, right) = pyplot.subplots(1, 2, figsize=(7.2, 2.7), layout="constrained")
    sizes = np.unique(np.geomspace(1, 300, 40).astype(int))
    left.semilogx(sizes, [shrinkage(int(n)) for n in sizes], ".-", color="#1f6fb4")
    left.axhline(1, color="black", lw=0.8, ls=":")
    left.set(xlabel="rows in a ball, n", ylabel="best spread / true spread", ylim=(0, 1.05))
    styles = {2: ("#c8442c", "o"), 5: ("#e08a1e", "s"), 20: ("#2e9e5b", "^"), 100: ("#1f6fb4", "D")}
    for n, (color, mark) in styles.items():
        orders = np.arange(1, min(n, 12) + 1)
        weights = [
            math.exp(math.lgamma(n + 1) + math.lgamma(n) - math.lgamma(n + r) - math.lgamma(n - r + 1))
            for r in orders
        ]
        right.plot(orders, weights, marker=mark, ms=4, color=color, label=f"{n} rows")
    right.set(xlabel="order of the L-moment, r", ylabel="its weight / (2r - 1)", xticks=range(1, 13))
    right.legend(frameon=False, fontsize=8)
    _finish(fig, path)


def draw_linear(records: list[dict[str, Any]], path: Path) -> int:
    """Draw the error in the SDs of the coefficients against N; the number of data sets of a point."""
    from matplotlib import pyplot

    fig, ax = pyplot.subplots(figsize=(5.6, 3.1), layout="constrained")
    repeats = 0
    for (method, reading), (label, color, mark) in CURVES.items():
        by_rows: dict[int, list[float]] = {}
        for record in records:
            cell = record["settings"]
            mine = (cell["method"], cell["reading"]) == (method, reading)
            if mine and cell["delta"] in (0.1, None) and cell["norm"] in ("hete", None):
                by_rows.setdefault(cell["rows"], []).append(record["values"]["s_error"])
        rows = sorted(by_rows)
        means = [float(np.mean(by_rows[n])) for n in rows]
        ax.loglog(rows, means, color=color, marker=mark, ms=4, label=label)
        repeats = max(repeats, *(len(found) for found in by_rows.values()))
    ax.set(xlabel="rows, N", ylabel="relative error in s")
    ax.set_xticks(rows, [str(n) for n in rows])
    ax.set_yticks([0.05, 0.1, 0.2, 0.5, 1], [".05", ".1", ".2", ".5", "1"])
    ax.minorticks_off()
    fig.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=2)
    _finish(fig, path)
    return repeats


def describe_accuracy(path: Path) -> dict[str, Any]:
    """Draw the comparison on real tables; the numbers of it that the text gives."""
    from methods import METHODS
    from picture import draw_dots
    from summary import ENOUGH_ROWS, split_determined, summarize
    from table import DRAWN, format_number, read_records

    found = summarize(read_records(ROOT / "benchmarks" / "accuracy" / "records"))
    draw_dots(found, path)
    kept, excluded = split_determined(read_records(DRAWN))
    drawn = summarize(kept).best
    ratios = drawn.ratios.values()
    coverages = [share for rows, share in found.coverages.values() if rows >= ENOUGH_ROWS]
    return {
        "tables": len(found.best.ratios),
        "ratio": format_number(found.best.mean),
        "first": found.best.count(1.0),
        "covlow": f"{100 * min(coverages):.0f}",
        "covhigh": f"{100 * max(coverages):.0f} %",
        "peers": sum(method.group == "peer" for method in METHODS),
        "baselines": sum(method.group == "baseline" for method in METHODS),
        "drawn": len(ratios),
        "median": f"{statistics.median(ratios):.2f}",
        "mean": f"{drawn.mean:.2f}",
        "worst": f"{max(ratios):.2f}",
        "lowest": drawn.count(1.0),
        "excluded": len(excluded),
    }


def build(out: Path) -> None:
    """Draw, count and compile."""
    import typst

    matplotlib.use("Agg")
    BUILD.mkdir(parents=True, exist_ok=True)
    draw_shrinkage(BUILD / "shrink.svg")
    linear = json.loads((ROOT / "paper" / "results" / "linear.json").read_text())
    values = {
        "version": localw2.__version__,
        "r5": f"{shrinkage(5):.2f}",
        "r50": f"{shrinkage(50):.2f}",
        "repeats": draw_linear(linear["records"], BUILD / "linear.svg"),
        **describe_accuracy(BUILD / "accuracy.svg"),
    }
    (BUILD / "values.json").write_text(json.dumps(values, indent=1) + "\n")
    out.parent.mkdir(parents=True, exist_ok=True)
    typst.compile(Path(__file__).with_name("note.typ"), output=out, root=ROOT)


def _finish(fig: Any, path: Path) -> None:
    for ax in fig.axes:
        ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path)


def main() -> None:
    """Build the note and say where it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=BUILD / "note.pdf", help="the PDF (default: %(default)s)")
    options = parser.parse_args()
    build(options.out)
    print(f"{options.out} ({options.out.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
