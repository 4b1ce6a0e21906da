"""Tables and picture of the comparison, from the records alone, into the pages that show them.

    python benchmarks/accuracy/table.py [--records FOLDER] [--root FOLDER]

Writes ``docs/accuracy.png``, and the parts of ``docs/accuracy.md`` and ``README.md`` between the comments
``accuracy:begin NAME`` and ``accuracy:end NAME``; the rest of the pages is left as it is.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import ledger
from comparing import Comparison, compare
from ledger import Record
from methods import METHODS

ROOT = Path(__file__).parents[2]
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


def plain(value: float, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent; a dash for NaN.

    >>> plain(0.04567), plain(1234.5), plain(float("nan"))
    ('.0457', '1234', '-')
    """
    if math.isnan(value):
        return "-"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits - 1
    text = f"{value:.{decimals}f}"
    return re.sub(r"^(-?)0\.", r"\1.", text)


def pair(value: float, error: float, sign: bool = False) -> str:
    """A value and its standard error with as many decimals: two digits of the error.

    >>> pair(-0.01234, 0.0056, sign=True), pair(0.934, float("nan"))
    ('-.0123 ± .0056', '.934')
    """
    if math.isnan(error) or error == 0:
        return ("+" if sign and value >= 0 else "") + plain(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    found = [f"{value:{'+' if sign else ''}.{decimals}f}", f"{error:.{decimals}f}"]
    return " ± ".join(re.sub(r"^([+-]?)0\.", r"\1.", text) for text in found)


def seconds(value: float, extrapolated: bool = False) -> str:
    """Seconds with two digits, from a hundredth on.

    >>> seconds(0.0003), seconds(7.04), seconds(623.4, extrapolated=True)
    ('< .01', '7.0', 'about 623')
    """
    return "< .01" if value < 0.01 else f"{'about ' * extrapolated}{plain(value, 2)}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its header, and columns but the first are right-aligned."""
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], rule, *rows[1:]))


def sets_of(records: Sequence[Record]) -> list[str]:
    """The tables that have records."""
    return sorted({record["set"] for record in records})


def set_table(comparison: Comparison, groups: Sequence[str] = SHOWN) -> str:
    """One table of data: a line a method, best first."""
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
            against = [pair(v.difference, v.difference_error, sign=True), pair(v.ratio, v.ratio_error)]
        note = f" ({row.lacking})" if row.lacking else ""
        few = f" ({row.splits} of {comparison.splits} splits)" if row.splits < comparison.splits else ""
        means = row.means
        lines.append(
            [
                name,
                plain(means["crps"], 4) + (note or few),
                *against,
                f"{means['coverage']:.1%}".replace("%", " %"),
                plain(means["width"]),
                plain(means["rmse"]),
                seconds(means["fit_seconds"]),
                seconds(means["draw_seconds_1000_rows"], row.extrapolated),
            ]
        )
    return markdown(lines)


def verdict(comparison: Comparison) -> str:
    """A sentence: ours against the best peer, and the coverage."""
    row = comparison.row(OURS)
    if row is None or row.versus is None or comparison.best_peer is None:
        return ""
    ratio = pair(row.versus.ratio, row.versus.ratio_error)
    covered = f"{row.means['coverage']:.1%}".replace("%", " %")
    return (
        f"CRPS {ratio} times that of the best peer, {comparison.best_peer}; {covered} of outcomes in the "
        "90 % interval."
    )


def all_tables(records: Sequence[Record]) -> str:
    """Every table of data, with its size and the verdict, under the picture."""
    parts = [
        "![Mean CRPS of every method divided by that of the best peer, with standard errors](accuracy.png)",
        "*Ours blue, peers red, baselines grey; bars are one paired standard error; ratios beyond the edge "
        "are written there.*",
    ]
    for name in sets_of(records):
        found = compare(records, name)
        title = f"### {name}\n\n{found.size[0]} rows, {found.size[1]} columns, {found.splits} splits."
        parts += [f"{title} {verdict(found)}".rstrip(), set_table(found)]
    return "\n\n".join(parts)


def ablation(records: Sequence[Record]) -> str:
    """What each part of ours adds: CRPS by table, and its paired difference to the default."""
    found = [compare(records, name, to=OURS) for name in sets_of(records)]
    lines = [["", *(f"{c.name}: CRPS | minus default" for c in found)]]
    settings = {method.name: method.settings for method in METHODS}
    for method in [m.name for m in METHODS if m.group == "ablation"] + [OURS]:
        if any(comparison.row(method) is not None for comparison in found):
            name = f"**base + network, local W2 debiased** ({settings[method]})" if method == OURS else method
            lines.append([name, *(_ablated(comparison, method) for comparison in found)])
    if len(lines) == 1:
        return NOTHING
    width = 2 * len(found)
    rule = ["---", *["---:"] * width]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def _ablated(comparison: Comparison, method: str) -> str:
    row = comparison.row(method)
    if row is None or not row.splits:
        return f"{'-' if row is None else row.lacking} | -"
    few = f" ({row.splits} of {comparison.splits} splits)" if row.splits < comparison.splits else ""
    crps, v = plain(row.means["crps"], 4) + few, row.versus
    if method == OURS or v is None:
        return f"{crps} | {'0' if method == OURS else '-'}"
    return f"{crps} | {pair(v.difference, v.difference_error, sign=True)}"


def short(records: Sequence[Record]) -> str:
    """The table of the README: mean CRPS by method and table, the smallest in bold, and the ratio."""
    found = [compare(records, name) for name in sets_of(records)]
    lines = [["mean CRPS", *(comparison.name for comparison in found)]]
    for method in (m.name for m in METHODS if m.group in SHOWN):
        if any(comparison.row(method) is not None for comparison in found):
            lines.append([method, *(_short_cell(comparison, method) for comparison in found)])
    ours = [comparison.row(OURS) for comparison in found]
    ratios = [pair(r.versus.ratio, r.versus.ratio_error) if r and r.versus else "-" for r in ours]
    covered = [f"{r.means['coverage']:.0%}".replace("%", " %") if r and r.splits else "-" for r in ours]
    lines += [["localw2 / best peer", *ratios], ["in the 90 % intervals of localw2", *covered]]
    return markdown(lines)


def _short_cell(comparison: Comparison, method: str) -> str:
    row = comparison.row(method)
    if row is None or not row.splits:
        return "-" if row is None else row.lacking.split(" (")[0].split(" on ")[0]
    if row.splits < comparison.splits:
        return f"{plain(row.means['crps'])} ({row.splits} of {comparison.splits} splits)"
    complete = [r for r in comparison.rows if r.group in SHOWN and r.splits == comparison.splits]
    smallest = row.means["crps"] == min(r.means["crps"] for r in complete)
    return f"**{plain(row.means['crps'])}**" if smallest else plain(row.means["crps"])


def settings(records: Sequence[Record]) -> str:
    """What each method was run with, and where these settings are from."""
    lines = [["method", "settings", "from"]]
    lines += [[method.name, method.settings, method.source] for method in METHODS]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], ["---"] * 3, *lines[1:]))


BLOCKS: dict[Path, dict[str, Callable[[Sequence[Record]], str]]] = {
    PAGE: {"tables": all_tables, "ablation": ablation, "settings": settings},
    README: {"short": short},
}


def filled(text: str, blocks: dict[str, Callable[[Sequence[Record]], str]], records: Sequence[Record]) -> str:
    """A page with the parts between its markers made anew; parts without markers are left out."""
    for name, make in blocks.items():
        content = make(records) if records or make is settings else NOTHING
        begin, end = f"<!-- accuracy:begin {name} -->", f"<!-- accuracy:end {name} -->"
        before, found, rest = text.partition(begin)
        if found:
            if end not in rest:
                raise ValueError(
                    f"{begin} has no {end} after it; without, the rest of the page would be lost."
                )
            text = f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"
    return text


def print_tables(records: Sequence[Record]) -> None:
    """The tables of these records, to be read on a screen."""
    for name in sets_of(records):
        found = compare(records, name)
        groups = (*SHOWN, "ablation")
        print(f"\n{name} ({found.size[0]} rows, {found.splits} splits). {verdict(found)}")
        print(set_table(found, groups))


def main() -> None:
    """Write the picture and the parts of both pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=ledger.FOLDER, help="the folder of records")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with README.md and docs/")
    options = parser.parse_args()
    records = list(ledger.read(options.records).values())
    if records:
        from picture import dot_plot  # matplotlib, for this alone

        dot_plot([compare(records, name) for name in sets_of(records)], options.root / PICTURE)
    for page, blocks in BLOCKS.items():
        path = options.root / page
        if path.exists():
            path.write_text(filled(path.read_text(), blocks, records))
            print(f"wrote {path}")
    print_tables(records)


if __name__ == "__main__":
    main()
