"""Draw every figure and table from the records, and assemble paper/README.md with a verdict on each panel.

    python paper/report.py [--quick] [--out FOLDER]

Nothing is trained. The verdicts are those of ``verdicts.py``; an experiment without records says "not run
yet", and one that lacks records of some cells, or is a quick run, is not judged.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from records import Options, count_seconds
from verdicts import EXPERIMENTS, Experiment

NOT_RUN, NOT_JUDGED = "not run yet", "not judged"

INTRODUCTION = """\
# The paper, reproduced and outdone

Xia and Shen, "A local squared Wasserstein-2 method for efficient reconstruction of models with
uncertainty". This page shows every figure and table of the paper as computed by this code, next to our
defaults and, where it is known, the truth.

    make paper         # everything at the paper's settings; cells with a valid record are not computed again
    make paper-quick   # a small version in paper/quick/, for a first look: its numbers mean nothing
    make paper-check   # after a change of the code: are the records still valid?

To run one experiment: `python paper/NAME.py [--repeats 5] [--jobs 2]`. It writes its records (settings,
seeds, versions, values, seconds) to `results/NAME.json` as they are computed; figures and tables are drawn
from these records alone. `python paper/report.py` draws them again and assembles this page, with the numbers
of its verdicts computed from the records. We only have the text of the paper,
not its figures: where it gives no numbers, the column "the paper" says what its text says.
"""


def assemble(folder: Path, judged: bool = True) -> str:
    """Assemble the page from ``results/`` and ``figures/`` of a folder."""
    parts = [INTRODUCTION, _tabulate_times(folder)]
    for number, experiment in enumerate(EXPERIMENTS, start=1):
        parts += [f"## {number}. {experiment.title}", _tabulate_panels(experiment, folder, judged)]
        if experiment.remarks:
            parts.append(experiment.remarks)
        parts += [
            f"<!-- measured: results/{experiment.name}.json -->",
            *_show_results(experiment.name, folder),
        ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _tabulate_times(folder: Path) -> str:
    """A table of how much was computed and how long it took."""
    lines = ["| script | fits and references | core minutes |", "|---|---|---|"]
    total = 0.0
    for experiment in EXPERIMENTS:
        content = _read_records(experiment.name, folder)
        if content is None:
            lines.append(f"| `{experiment.name}.py` | {NOT_RUN} | |")
        else:
            minutes = sum(map(count_seconds, content["records"])) / 60
            total += minutes
            lines.append(f"| `{experiment.name}.py` | {len(content['records'])} | {minutes:.0f} |")
    note = (
        f"Everything took {total:.0f} core minutes, which is {total / 2:.0f} minutes on two cores. Records "
        "without `core_seconds` count those of the clock, on a machine with other work."
    )
    return "\n".join(lines) + (f"\n\n{note}" if total else "")


def _tabulate_panels(experiment: Experiment, folder: Path, judged: bool) -> str:
    """A row for each panel: the paper's claim and the verdict."""
    content = _read_records(experiment.name, folder)
    verdicts: dict[str, str] = {}
    empty = NOT_RUN if content is None else NOT_JUDGED
    if content is not None and judged:
        try:
            verdicts = experiment.judge(content["records"])
        except LookupError as missing:
            empty = f"{NOT_JUDGED}: no record of {missing}"
    lines = ["| panel | the paper | here |", "|---|---|---|"]
    lines += [
        f"| {panel} | {claim} | {verdicts.get(panel, empty)} |" for panel, claim in experiment.claims.items()
    ]
    return "\n".join(lines)


def _show_results(name: str, folder: Path) -> list[str]:
    """The tables and figures of an experiment, if it was run."""
    content = _read_records(name, folder)
    if content is None:
        return [f"*{NOT_RUN}*"]
    tables = [
        path
        for path in (folder / "results" / f"{name}.md", folder / "figures" / f"{name}.md")
        if path.exists()
    ]
    pictures = sorted((folder / "figures").glob(f"{name}*.png"))
    numbers = {name: number for found in content["versions"].values() for name, number in found.items()}
    versions = ", ".join(f"{name} {number}" for name, number in numbers.items())
    return [
        *(path.read_text().rstrip("\n") for path in tables),
        *(f"![{path.stem.replace('_', ' ')}](figures/{path.name})" for path in pictures),
        f"<sub>{len(content['records'])} records, {versions}.</sub>",
    ]


def _read_records(name: str, folder: Path) -> dict[str, Any] | None:
    path = folder / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def main() -> None:
    """Draw what has records, then write the page."""
    options = Options.parse(__doc__)
    folder = options.results.parent
    for experiment in EXPERIMENTS:
        if _read_records(experiment.name, folder) is not None:
            experiment.draw(options)
    page = folder / "README.md"
    partial = page.with_suffix(".partial")
    partial.write_text(assemble(folder, judged=not options.quick))
    os.replace(partial, page)
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
