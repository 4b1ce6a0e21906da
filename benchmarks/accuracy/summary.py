"""Ours against each peer over all tables: geometric means of ratios, and on how many tables ours is first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from comparison import Comparison, Record, compare
from methods import METHODS

OURS = "localw2"
LEVEL, BEHIND = 1.01, 1.05
DETERMINED = 0.05  # of the score without inputs: below it, a column all but determines the target
ENOUGH_ROWS = 100  # to test, for the coverage to be judged: with fewer, it is off by more than .03 by chance


@final
@dataclass(frozen=True)
class Against:
    """Our mean CRPS divided by that of a peer, by table, over the splits that both have."""

    peer: str
    ratios: dict[str, float]

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios; NaN without any."""
        return average(self.ratios)

    def without(self, names: Sequence[str]) -> Against:
        """The same on the other tables.

        >>> Against("a peer", {"yacht": 0.9, "energy": 1.02}).without(["yacht"]).mean
        1.02
        """
        return replace(self, ratios={name: r for name, r in self.ratios.items() if name not in names})

    def count(self, most: float) -> int:
        """The number of tables where the ratio is at most this.

        >>> Against("a peer", {"yacht": 0.9, "energy": 1.02}).count(1.01)
        1
        """
        return sum(ratio <= most for ratio in self.ratios.values())


@final
@dataclass(frozen=True)
class Summary:
    """Our results over tables; ``best`` compares ours with the best peer of each table."""

    tables: tuple[Comparison, ...]
    best: Against
    peers: tuple[Against, ...]

    @property
    def coverages(self) -> dict[str, tuple[int, float]]:
        """Test rows and the coverage of our 90 % intervals, by table."""
        return {
            table.name: (table.rows_to_test, ours.means["coverage"])
            for table in self.tables
            if (ours := table.row(OURS)) and ours.splits
        }


def split_determined(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The records of tables whose target has to be predicted, and the names of the others.

    A target that other columns determine, such as its logarithm, is predicted by every method up to an error
    that says nothing about distributions: the best score there is below ``DETERMINED`` times that of
    climatology, which ignores the inputs.
    """
    scores: dict[str, dict[str, float]] = {}
    for record in records:
        if record["status"] == "done":
            scores.setdefault(record["set"], {})[record["method"]] = record["crps"]
    given = [
        name
        for name, found in scores.items()
        if "climatology" in found and min(found.values()) < DETERMINED * found["climatology"]
    ]
    return [record for record in records if record["set"] not in given], sorted(given)


def average(ratios: dict[str, float]) -> float:
    """The geometric mean, which does not depend on which of two is divided by which; NaN without any.

    >>> average({"yacht": 0.5, "energy": 2.0})
    1.0
    """
    logs = [math.log(ratio) for ratio in ratios.values()]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summarize(records: Sequence[Record]) -> Summary:
    """Compare ours with every peer on every table of these records."""
    names = sorted({record["set"] for record in records})
    tables = tuple(compare(records, name) for name in names)
    best: dict[str, str] = {table.name: table.best_peer for table in tables if table.best_peer is not None}
    peers = [method.name for method in METHODS if method.group in ("peer", "baseline")]
    return Summary(
        tables,
        _divide(records, "the best peer of each table", best),
        tuple(_divide(records, peer, dict.fromkeys(names, peer)) for peer in peers),
    )


def _divide(records: Sequence[Record], label: str, peers: dict[str, str]) -> Against:
    """Ours against a peer on each table; tables that one of the two has not finished are left out."""
    ratios = {}
    for name, peer in peers.items():
        found = compare(records, name, to=peer)
        ours, other = found.row(OURS), found.row(peer)
        if ours is not None and other is not None and ours.versus is not None:
            ratios[name] = ours.versus.ratio
    return Against(label, ratios)
