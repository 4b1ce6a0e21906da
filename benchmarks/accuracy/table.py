"""Write the tables and the figure of the comparison, from the records alone, into the pages that show them.

    python benchmarks/accuracy/table.py [--records FOLDER] [--root FOLDER]

It prints the summary over tables. It writes ``docs/accuracy.png`` and the parts of ``docs/accuracy.md``,
``docs/index.md`` and ``README.md`` between the comments ``accuracy:begin NAME`` and ``accuracy:end NAME``;
the rest of the pages is left alone.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from comparison import SPLITS, Comparison, Record, compare
from methods import METHODS
from summary import BEHIND, ENOUGH_ROWS, LEVEL, OURS, Against, Summary, average, split_determined, summarize

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "records"
DRAWN = Path(__file__).parent / "records_drawn"  # of tables that were drawn at random
SECONDS = Path(__file__).parent / "seconds.json"
PAGE, README, FRONT = Path("docs/accuracy.md"), Path("README.md"), Path("docs/index.md")
PICTURE = Path("docs/accuracy.png")
FAR = 0.75
EASIEST = 2  # tables, whose part in the means is said
NOTHING = "*No records yet.*"
NO_BREAK = "\N{NO-BREAK SPACE}"
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


def format_share(value: float) -> str:
    """Format a share as a percentage.

    >>> format_share(0.934)
    '93.4 %'
    """
    return f"{value:.1%}".replace("%", " %")


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
                format_share(means["coverage"]),
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
    covered = format_share(row.means["coverage"])
    return (
        f"The CRPS of localw2 is {ratio} times that of the best peer, {comparison.best_peer}; {covered} of "
        "the outcomes are in the 90 % interval."
    )


def tabulate_all(records: Sequence[Record]) -> str:
    """The results on every table, each with its size and the verdict, folded."""
    parts = []
    for name in list_sets(records):
        found = compare(records, name)
        size = f"{found.rows_to_fit} rows to fit, {found.rows_to_test} to test, {found.columns} columns"
        verdict = state_verdict(found)
        parts.append(f":::{{dropdown}} {name}: {size}\n{verdict}\n\n{tabulate_set(found)}\n:::")
    return "\n\n".join(parts)


def tabulate_tables(records: Sequence[Record]) -> str:
    """Ours on each table beside its best peer: CRPS, their ratio, coverage and seconds."""
    lines = [["table", "best peer", "its CRPS", "ours", "ours / best peer", "in 90 %", "fit, s"]]
    for found in summarize(records).tables:
        ours = found.row(OURS)
        best = found.row(found.best_peer) if found.best_peer else None
        cells = [found.name, found.best_peer or "-", format_number(best.means["crps"]) if best else "-"]
        if ours is None or not ours.splits:
            cells += ["-"] * 4
        else:
            v = ours.versus
            cells += [
                format_number(ours.means["crps"]),
                format_pair(v.ratio, v.ratio_error) if v else "-",
                format_share(ours.means["coverage"]),
                format_seconds(ours.means["fit_seconds"]),
            ]
        lines.append(cells)
    return format_table(lines)


def tabulate_peers(records: Sequence[Record]) -> str:
    """Ours against each peer over all tables (geometric means of ratios), the strongest peer first."""
    summary = summarize(records)
    lines = [["against", "tables", "CRPS, ours / its", "ours is first", "largest"]]
    ordered = sorted(summary.peers, key=lambda peer: (math.isnan(peer.mean), -peer.mean))
    for found in (summary.best, *ordered):
        name = f"**{found.peer}**" if found is summary.best else found.peer
        if found.ratios:
            first, worst = found.count(1.0), max(found.ratios, key=lambda name: found.ratios[name])
            largest = f"{format_number(found.ratios[worst])} ({worst})"
            lines.append([name, str(len(found.ratios)), format_number(found.mean), str(first), largest])
        else:
            lines.append([name, "0", "-", "-", "-"])
    return format_table(lines)


def tabulate_closest(records: Sequence[Record]) -> str:
    """Ours against the methods that come closest to it, for the pages people see first, and a caution.

    Those whose ratio is below ``FAR`` are left out, because they flatter ours most. How much of it is due to
    the tables where ours leads by most is said, too.
    """
    summary = summarize(records)
    ordered = sorted((peer for peer in summary.peers if peer.mean >= FAR), key=lambda peer: -peer.mean)
    easiest = sorted(summary.best.ratios, key=lambda name: summary.best.ratios[name])[:EASIEST]
    lines = [
        [
            "compared with",
            "our CRPS",
            f"without {' and '.join(sorted(easiest))}",
            "tables where it is lower",
        ]
    ]
    for found in (summary.best, *ordered):
        if found.ratios:
            name = "**best competitor on each table**" if found is summary.best else found.peer
            share = f"{found.count(1.0)} of {len(found.ratios)}"
            means = found.mean, found.without(easiest).mean
            lines.append([name, *map(format_lead, means), share])
    return f"{format_table(lines)}\n\n{state_caution(summary)}"


def format_lead(ratio: float) -> str:
    r"""By how much ours is lower or higher, from its ratio to another, on one line; NaN is a dash.

    >>> format_lead(0.97), format_lead(1.02), format_lead(1.001)
    ('3\xa0%\xa0lower', '2\xa0%\xa0higher', 'the same')
    """
    if math.isnan(ratio):
        return "-"
    percent = round(100 * (ratio - 1))
    side = "lower" if percent < 0 else "higher"
    return f"{abs(percent)} % {side}".replace(" ", NO_BREAK) if percent else "the same"


def format_signed(ratio: float) -> str:
    """The same with a sign, for narrow cells.

    >>> format_signed(0.97), format_signed(1.02), format_signed(1.001)
    ('-3 %', '+2 %', '0 %')
    """
    percent = 0 if math.isnan(ratio) else round(100 * (ratio - 1))
    return f"{percent:+d} %" if percent else "0 %"


def state_caution(summary: Summary) -> str:
    """How large the lead is on a usual table, and on how many it may be chance."""
    best = summary.best
    median = format_lead(statistics.median(best.ratios.values()))
    versus = [(table.name, row.versus) for table in summary.tables if (row := table.row(OURS))]
    ties = [
        name
        for name, found in versus
        if found is not None and name in best.ratios and 0 <= -found.difference <= found.difference_error
    ]
    count = len(ties)
    return (
        f"Compared with the best competitor, our CRPS is {median} on the median table. Of the "
        f"{best.count(1.0)} leads, {count} {'is' if count == 1 else 'are'} within one standard error"
        f"{' (' + ', '.join(ties) + ')' if ties else ''}."
    )


def state_summary(summary: Summary) -> str:
    """What is asked of ours over all tables, as sentences with counts."""
    best, total = summary.best, len(summary.best.ratios)
    if not total:
        return NOTHING
    covered = [0.86 <= share <= 0.94 for rows, share in summary.coverages.values() if rows >= ENOUGH_ROWS]
    firsts = min(summary.peers, key=_share_first)
    ahead = len(firsts.ratios) - firsts.count(1.0)
    most = f"The peer that is ahead of it most often is {firsts.peer}, on {ahead} of {len(firsts.ratios)}."
    return (
        f"On {total} tables, {SPLITS} splits each, the CRPS of localw2 is {format_number(best.mean)} times "
        f"that of the best peer of each table (geometric mean). It is smaller than the best peer's on "
        f"{best.count(1.0)} tables, at most {LEVEL} times as large on {best.count(LEVEL)}, and more than "
        f"{BEHIND} times as large on {total - best.count(BEHIND)}. "
        f"{most if ahead else 'No single peer is ahead of it on any.'} Its 90 % intervals cover 86 to 94 % "
        f"on {sum(covered)} of the {len(covered)} tables with {ENOUGH_ROWS} test rows or more."
    )


def _share_first(against: Against) -> float:
    """The share of tables where ours is ahead of a peer."""
    return against.count(1.0) / len(against.ratios) if against.ratios else 1.0


def tabulate_summary(records: Sequence[Record]) -> str:
    """The verdict over all tables, the figure, and both tables of the summary."""
    return "\n\n".join(
        [
            state_summary(summarize(records)),
            "![Mean CRPS of every method on every table divided by that of its best peer](accuracy.png)",
            tabulate_peers(records),
            tabulate_tables(records),
        ]
    )


def tabulate_ablation(records: Sequence[Record]) -> str:
    """What each law adds: the CRPS of each alone divided by the default's, by table."""
    parts = [method for method in METHODS if method.group == "ablation"]
    lines = [["CRPS / the default's", *(f"{part.name} ({part.settings})" for part in parts)]]
    for name in list_sets(records):
        found = compare(records, name, to=OURS)
        rows = [found.row(part.name) for part in parts]
        if any(row is not None and row.versus is not None for row in rows):
            cells = [
                format_pair(r.versus.ratio, r.versus.ratio_error) if r and r.versus else "-" for r in rows
            ]
            lines.append([name, *cells])
    return format_table(lines) if len(lines) > 1 else NOTHING


def tabulate_seconds(records: Sequence[Record]) -> str:
    """Seconds of our fits and a peer's on the same rows in the same minute, as ``seconds.py`` wrote them."""
    if not SECONDS.exists():
        return NOTHING
    found = json.loads(SECONDS.read_text())
    peer, tables = found["peer"], found["tables"]
    lines = [["table", "rows", "columns", "localw2, s", f"{peer}, s", "ratio"]]
    for name, (rows, columns, ours, its) in tables.items():
        cells = [format_seconds(ours), format_seconds(its), f"{ours / its:.2f}"]
        lines.append([name, str(rows), str(columns), *cells])
    ratios = {name: ours / its for name, (_, _, ours, its) in tables.items()}
    within = sum(ratio <= 1 for ratio in ratios.values())
    words = (
        f"A fit takes at most as long as {peer}'s on {within} of {len(ratios)} tables, and more than twice "
        f"as long on {sum(ratio > 2 for ratio in ratios.values())}; the geometric mean of the ratios is "
        f"{format_number(average(ratios), 2)}."
    )
    return f"{words}\n\n{format_table(lines)}"


def tabulate_medians(records: Sequence[Record], short: bool = False) -> str:
    """Ours against each peer on the tables that were drawn at random: by how much on the median table.

    Methods have a line each. If ``short`` they have a column each, and what was left out is not said.
    """
    found = read_records(DRAWN)
    if not found:
        return NOTHING
    kept, given = split_determined(found)
    summary = summarize(kept)
    peers = [peer for peer in summary.peers if peer.ratios and peer.peer != "climatology"]
    medians = {peer.peer: statistics.median(peer.ratios.values()) for peer in (summary.best, *peers)}
    lines = [["compared with", "our CRPS (median table)", "tables where it is lower"]]
    for one in (summary.best, *sorted(peers, key=lambda peer: -medians[peer.peer])):
        name = "**best competitor on each table**" if one is summary.best else one.peer
        lead = format_signed(medians[one.peer]) if short else format_lead(medians[one.peer])
        lines.append([name, lead, f"{one.count(1.0)} of {len(one.ratios)}"])
    if short:
        lines[0], lines[1][0] = ["against", f"our{NO_BREAK}CRPS", f"lower{NO_BREAK}on"], "**best of them**"
        lines = [list(column) for column in zip(*lines, strict=True)]
        words = [state_worst(summary), state_coverage(summary)]
    else:
        words = [state_noise(summary), state_coverage(summary), state_excluded(given, summarize(found))]
    return f"{format_table(lines)}\n\n{' '.join(filter(None, words))}"


def state_worst(summary: Summary) -> str:
    """How far ours is behind where it is furthest behind."""
    ratios = summary.best.ratios
    worst = max(ratios, key=lambda name: ratios[name])
    return f"One split per table; on the worst ({worst}), ours is {format_lead(ratios[worst])} than the best."


def state_noise(summary: Summary) -> str:
    """What the table of medians does not say: splits, the mean and the worst table."""
    best, ratios = summary.best, summary.best.ratios
    worst = max(ratios, key=lambda name: ratios[name])
    return (
        f"Each table is split once, so a single ratio is noisy. Compared with the best competitor, our CRPS "
        f"is {format_lead(best.mean)} in the geometric mean, and {format_lead(ratios[worst])} on the worst "
        f"table ({worst})."
    )


def state_coverage(summary: Summary) -> str:
    """Between which shares the intervals contain, on large and on small tables."""
    groups = {True: f"{ENOUGH_ROWS} or more", False: "fewer"}
    held = {
        enough: [share for rows, share in summary.coverages.values() if (rows >= ENOUGH_ROWS) == enough]
        for enough in groups
    }
    spans = [
        f"{format_share(min(shares))} to {format_share(max(shares))} on the {len(shares)} tables with "
        f"{groups[enough]}"
        for enough, shares in held.items()
        if shares
    ]
    return f"Our 90 % intervals contain {' held-out rows, and '.join(spans)}." if spans else ""


def state_excluded(excluded: Sequence[str], all_tables: Summary) -> str:
    """How many tables were drawn and excluded, and how ours does with them."""
    if not excluded:
        return ""
    best = all_tables.best
    one = len(excluded) == 1
    return (
        f"{len(excluded)} more table{' was' if one else 's were'} drawn, but excluded by a rule made after "
        f"the fits, because other columns nearly determine the target (with {'it' if one else 'them'}, ours "
        f"is lower on {best.count(1.0)} of {len(best.ratios)})."
    )


def tabulate_drawn(records: Sequence[Record]) -> str:
    """The same with means, and each table."""
    found = read_records(DRAWN)
    if not found:
        return NOTHING
    kept, given = split_determined(found)
    closed = f"Left out, because other columns determine the target: {', '.join(given)}." if given else ""
    peers = [
        line for line in tabulate_peers(kept).splitlines() if "| 0 | - |" not in line
    ]  # of those that ran
    return "\n\n".join([tabulate_medians(records), "\n".join(peers), tabulate_tables(kept), closed])


def tabulate_settings(records: Sequence[Record]) -> str:
    """The settings of each method and their source."""
    lines = [["method", "settings", "source"]]
    lines += [[method.name, method.settings, method.source] for method in METHODS]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], ["---"] * 3, *lines[1:]))


BLOCKS: dict[Path, dict[str, Callable[[Sequence[Record]], str]]] = {
    PAGE: {
        "summary": tabulate_summary,
        "tables": tabulate_all,
        "ablation": tabulate_ablation,
        "drawn": tabulate_drawn,
        "seconds": tabulate_seconds,
        "settings": tabulate_settings,
    },
    README: {"drawn": partial(tabulate_medians, short=True)},
    FRONT: {"drawn": tabulate_medians, "short": tabulate_closest},
}


def fill_page(
    text: str,
    blocks: dict[str, Callable[[Sequence[Record]], str]],
    records: Sequence[Record],
    mark: str = "accuracy",
) -> str:
    """Fill in the parts of a page between its markers; parts without markers are skipped."""
    for name, make in blocks.items():
        content = make(records) if records or make is tabulate_settings else NOTHING
        begin, end = f"<!-- {mark}:begin {name} -->", f"<!-- {mark}:end {name} -->"
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
        print(f"\n{name} ({found.rows_to_fit} rows to fit, {found.splits} splits). {state_verdict(found)}")
        print(tabulate_set(found, groups))


def print_summary(records: Sequence[Record]) -> None:
    """Print the summary over tables."""
    print(f"\n{tabulate_tables(records)}\n\n{tabulate_peers(records)}\n")
    print(state_summary(summarize(records)))


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

        draw_dots(summarize(records), options.root / PICTURE)
    for page, blocks in BLOCKS.items():
        path = options.root / page
        if path.exists():
            path.write_text(fill_page(path.read_text(), blocks, records))
            print(f"wrote {path}")
    print_summary(records)


if __name__ == "__main__":
    main()
