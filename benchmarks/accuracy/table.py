"""Write the tables and the figure of the comparison, from the records alone, into the pages that show them.

    python benchmarks/accuracy/table.py [--records FOLDER] [--root FOLDER]

This writes ``docs/accuracy.png`` and the parts of ``docs/accuracy.md`` and ``README.md`` between the comments
``accuracy:begin NAME`` and ``accuracy:end NAME``; the rest of the pages is left alone.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from comparison import Comparison, Record, compare
from methods import METHODS

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "records"
PAGE, README, PICTURE = Path("docs/accuracy.md"), Path("README.md"), Path("docs/accuracy.png")
NOTHING = "*No records yet.*"
OURS = "localw2"
SHOWN = ("ours", "peer", "baseline")
HEADER = (
    "method",
    "CRPS",
    "minus best peer",
    "/ best peer",
    "in 90 %",
    "width",
    "RMSE",
    "fit, s",
    "draws, s",
)


def read_records(folder: Path) -> list[Record]:
    """Read all records of a folder, settings and values together."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [record["settings"] | record["values"] for file in files for record in file["records"]]


def format_number(value: float, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits and no exponent; a dash for NaN.

    >>> format_number(0.04567), format_number(1234.5), format_number(float("nan"))
    ('.0457', '1234', '-')
    """
    if math.isnan(value):
        return "-"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits - 1
    text = f"{value:.{decimals}f}"
    return re.sub(r"^(-?)0\.", r"\1.", text)


def format_pair(value: float, error: float, sign: bool = False) -> str:
    """Format a value and its standard error with the same decimals: two digits of the error.

    >>> format_pair(-0.01234, 0.0056, sign=True), format_pair(0.934, float("nan"))
    ('-.0123 ± .0056', '.934')
    """
    if math.isnan(error) or error == 0:
        return ("+" if sign and value >= 0 else "") + format_number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    found = [f"{value:{'+' if sign else ''}.{decimals}f}", f"{error:.{decimals}f}"]
    return " ± ".join(re.sub(r"^([+-]?)0\.", r"\1.", text) for text in found)


def format_seconds(value: float, extrapolated: bool = False) -> str:
    """Format seconds with two digits, from a hundredth up.

    >>> format_seconds(0.0003), format_seconds(7.04), format_seconds(623.4, extrapolated=True)
    ('< .01', '7.0', 'about 623')
    """
    return "< .01" if value < 0.01 else f"{'about ' * extrapolated}{format_number(value, 2)}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown, header first; all columns but the first are right-aligned."""
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], rule, *rows[1:]))


def list_sets(records: Sequence[Record]) -> list[str]:
    """The names of the tables that have records."""
    return sorted({record["set"] for record in records})


def tabulate_set(comparison: Comparison, groups: Sequence[str] = SHOWN) -> str:
    """The results on one table: a line per method, best first."""
    lines = [list(HEADER)]
    for row in (row for row in comparison.rows if row.group in groups):
        name = f"**{row.method}**" if row.method == OURS else row.method
        if not row.splits:
            lines.append([name, row.lacking, *["-"] * (len(HEADER) - 2)])
            continue
        best = row.method == comparison.best_peer or row.versus is None
        against = ["best peer" if row.method == comparison.best_peer else "-", "1" if row.versus else "-"]
        if row.versus is not None and not best:
            v = row.versus
            against = [
                format_pair(v.difference, v.difference_error, sign=True),
                format_pair(v.ratio, v.ratio_error),
            ]
        note = f" ({row.lacking})" if row.lacking else ""
        few = f" ({row.splits} of {comparison.splits} splits)" if row.splits < comparison.splits else ""
        means = row.means
        lines.append(
            [
                name,
                format_number(means["crps"], 4) + (note or few),
                *against,
                f"{means['coverage']:.1%}".replace("%", " %"),
                format_number(means["width"]),
                format_number(means["rmse"]),
                format_seconds(means["fit_seconds"]),
                format_seconds(means["draw_seconds_1000_rows"], row.extrapolated),
            ]
        )
    return format_table(lines)


def state_verdict(comparison: Comparison) -> str:
    """One sentence: ours against the best peer, and the coverage."""
    row = comparison.row(OURS)
    if row is None or row.versus is None or comparison.best_peer is None:
        return ""
    ratio = format_pair(row.versus.ratio, row.versus.ratio_error)
    covered = f"{row.means['coverage']:.1%}".replace("%", " %")
    return (
        f"The CRPS of localw2 is {ratio} times that of the best peer, {comparison.best_peer}; {covered} of "
        "the outcomes are in the 90 % interval."
    )


def tabulate_all(records: Sequence[Record]) -> str:
    """The results on every table, with its size and the verdict, below the figure."""
    parts = [
        "![Mean CRPS of every method divided by that of the best peer, with standard errors](accuracy.png)",
        "*Ours is blue, peers are red, baselines grey; bars are one paired standard error; ratios beyond the "
        "edge are written there.*",
    ]
    for name in list_sets(records):
        found = compare(records, name)
        title = f"### {name}\n\n{found.size[0]} rows, {found.size[1]} columns, {found.splits} splits."
        parts += [f"{title} {state_verdict(found)}".rstrip(), tabulate_set(found)]
    return "\n\n".join(parts)


def tabulate_ablation(records: Sequence[Record]) -> str:
    """What each part of ours adds: CRPS by table, and its paired difference from the default."""
    found = [compare(records, name, to=OURS) for name in list_sets(records)]
    lines = [["", *(f"{c.name}: CRPS | minus default" for c in found)]]
    settings = {method.name: method.settings for method in METHODS}
    for method in [m.name for m in METHODS if m.group == "ablation"] + [OURS]:
        if any(comparison.row(method) is not None for comparison in found):
            name = f"**base + network, local W2 debiased** ({settings[method]})" if method == OURS else method
            lines.append([name, *(_format_ablation(comparison, method) for comparison in found)])
    if len(lines) == 1:
        return NOTHING
    width = 2 * len(found)
    rule = ["---", *["---:"] * width]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def _format_ablation(comparison: Comparison, method: str) -> str:
    row = comparison.row(method)
    if row is None or not row.splits:
        return f"{'-' if row is None else row.lacking} | -"
    few = f" ({row.splits} of {comparison.splits} splits)" if row.splits < comparison.splits else ""
    crps, v = format_number(row.means["crps"], 4) + few, row.versus
    if method == OURS or v is None:
        return f"{crps} | {'0' if method == OURS else '-'}"
    return f"{crps} | {format_pair(v.difference, v.difference_error, sign=True)}"


def tabulate_short(records: Sequence[Record]) -> str:
    """The table of the README: mean CRPS by method and table, the smallest in bold, and the ratio."""
    found = [compare(records, name) for name in list_sets(records)]
    lines = [["mean CRPS", *(comparison.name for comparison in found)]]
    for method in (m.name for m in METHODS if m.group in SHOWN):
        if any(comparison.row(method) is not None for comparison in found):
            lines.append([method, *(_format_short(comparison, method) for comparison in found)])
    ours = [comparison.row(OURS) for comparison in found]
    ratios = [format_pair(r.versus.ratio, r.versus.ratio_error) if r and r.versus else "-" for r in ours]
    covered = [f"{r.means['coverage']:.0%}".replace("%", " %") if r and r.splits else "-" for r in ours]
    lines += [["localw2 / best peer", *ratios], ["coverage of localw2's 90 % intervals", *covered]]
    return format_table(lines)


def _format_short(comparison: Comparison, method: str) -> str:
    row = comparison.row(method)
    if row is None or not row.splits:
        return "-" if row is None else row.lacking.split(" (")[0].split(" on ")[0]
    if row.splits < comparison.splits:
        return f"{format_number(row.means['crps'])} ({row.splits} of {comparison.splits} splits)"
    complete = [r for r in comparison.rows if r.group in SHOWN and r.splits == comparison.splits]
    smallest = row.means["crps"] == min(r.means["crps"] for r in complete)
    return f"**{format_number(row.means['crps'])}**" if smallest else format_number(row.means["crps"])


def tabulate_settings(records: Sequence[Record]) -> str:
    """The settings of each method and their source."""
    lines = [["method", "settings", "source"]]
    lines += [[method.name, method.settings, method.source] for method in METHODS]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], ["---"] * 3, *lines[1:]))


BLOCKS: dict[Path, dict[str, Callable[[Sequence[Record]], str]]] = {
    PAGE: {"tables": tabulate_all, "ablation": tabulate_ablation, "settings": tabulate_settings},
    README: {"short": tabulate_short},
}


def fill_page(
    text: str, blocks: dict[str, Callable[[Sequence[Record]], str]], records: Sequence[Record]
) -> str:
    """Fill in the parts of a page between its markers; parts without markers are skipped."""
    for name, make in blocks.items():
        content = make(records) if records or make is tabulate_settings else NOTHING
        begin, end = f"<!-- accuracy:begin {name} -->", f"<!-- accuracy:end {name} -->"
        before, found, rest = text.partition(begin)
        if found:
            if end not in rest:
                raise ValueError(
                    f"{begin} is not followed by {end}; filling it in would lose the rest of the page."
                )
            text = f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"
    return text


def print_tables(records: Sequence[Record]) -> None:
    """Print the tables of these records."""
    for name in list_sets(records):
        found = compare(records, name)
        groups = (*SHOWN, "ablation")
        print(f"\n{name} ({found.size[0]} rows, {found.splits} splits). {state_verdict(found)}")
        print(tabulate_set(found, groups))


def main() -> None:
    """Write the figure and the parts of both pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=FOLDER, help="the folder of records")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with README.md and docs/")
    options = parser.parse_args()
    records = read_records(options.records)
    if records:
        from picture import draw_dots  # matplotlib, which nothing else needs

        draw_dots([compare(records, name) for name in list_sets(records)], options.root / PICTURE)
    for page, blocks in BLOCKS.items():
        path = options.root / page
        if path.exists():
            path.write_text(fill_page(path.read_text(), blocks, records))
            print(f"wrote {path}")
    print_tables(records)


if __name__ == "__main__":
    main()
