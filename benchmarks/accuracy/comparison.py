"""From records to numbers: means over splits, and paired differences from the best peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from methods import BY_NAME, METHODS

Record = dict[str, Any]  # the settings and values of a record in one dict

SPLITS = 5  # of each table that count; more may be on file
VALUES = ("crps", "coverage", "width", "rmse", "fit_seconds", "draw_seconds_1000_rows")


@final
@dataclass(frozen=True)
class Versus:
    """The mean paired difference from another method over their common splits, and the ratio of means.

    Errors are standard errors over splits: SD / sqrt(n) for the difference; for the ratio r, that of a - r b
    divided by the mean of b. They are NaN with fewer than two splits.
    """

    splits: int
    difference: float
    difference_error: float
    ratio: float
    ratio_error: float


@final
@dataclass(frozen=True)
class Row:
    """One method on one table: the mean of each value over finished splits, and what did not finish."""

    method: str
    group: str
    splits: int
    means: dict[str, float]
    extrapolated: bool
    versus: Versus | None
    lacking: str


@final
@dataclass(frozen=True)
class Comparison:
    """All methods on one table; ``best_peer`` has the smallest mean CRPS of all methods that are not ours.

    Rows and columns are those of the table's first split, before categories get columns of their own.
    """

    name: str
    rows: tuple[Row, ...]
    best_peer: str | None
    rows_to_fit: int
    rows_to_test: int
    columns: int
    splits: int

    def row(self, method: str) -> Row | None:
        """The row of a method, if it has any records."""
        return next((row for row in self.rows if row.method == method), None)


def compare_pair(a: dict[int, float], b: dict[int, float]) -> Versus | None:
    """Compare the scores of two methods (split -> score); None without a common split.

    >>> compare_pair({0: 1.0, 1: 3.0}, {0: 2.0, 1: 2.0, 2: 9.0})
    Versus(splits=2, difference=0.0, difference_error=1.0, ratio=1.0, ratio_error=0.5)
    """
    common = sorted(a.keys() & b.keys())
    if not common:
        return None
    first, second = (np.array([scores[split] for split in common]) for scores in (a, b))
    ratio = first.mean() / second.mean()

    def error(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")

    return Versus(
        len(common),
        float((first - second).mean()),
        error(first - second),
        float(ratio),
        error(first - ratio * second) / float(second.mean()),
    )


def compare(records: Iterable[Record], name: str, to: str | None = None) -> Comparison:
    """Compare all methods on the first splits of one table with the best peer or with the method ``to``.

    The best peer must have finished as many splits as any other peer.
    """
    of = [
        record
        for record in records
        if record["set"] == name and record["method"] in BY_NAME and record["split"] < SPLITS
    ]
    done = [record for record in of if record["status"] == "done"]
    scores: dict[str, dict[int, float]] = {}
    for record in done:
        scores.setdefault(record["method"], {})[record["split"]] = record["crps"]
    peers = [method for method in scores if BY_NAME[method].group in ("peer", "baseline")]
    most = max((len(scores[method]) for method in peers), default=0)
    means = {m: float(np.mean(list(scores[m].values()))) for m in peers if len(scores[m]) == most}
    best = min(means, key=lambda method: means[method]) if means else None
    against = scores.get(to or best or "", {})
    rows = []
    for method in METHODS:
        own = [record for record in of if record["method"] == method.name]
        finished = [record for record in own if record["status"] == "done"]
        if own:
            rows.append(
                Row(
                    method.name,
                    method.group,
                    len(finished),
                    {value: _mean(finished, value) for value in VALUES},
                    any(record.get("seconds_extrapolated") for record in finished),
                    compare_pair(scores.get(method.name, {}), against),
                    _describe_missing(own),
                )
            )
    rows.sort(key=lambda row: (np.isnan(row.means["crps"]), row.means["crps"]))
    to_fit, to_test, columns = (of[0][key] if of else 0 for key in ("rows", "test_rows", "columns"))
    splits = max((row.splits for row in rows), default=0)
    return Comparison(name, tuple(rows), best, to_fit, to_test, columns, splits)


def _mean(records: list[Record], name: str) -> float:
    values = [record[name] for record in records if record.get(name) is not None]
    return float(np.mean(values)) if values else float("nan")


def _describe_missing(records: list[Record]) -> str:
    """Say what did not finish: "too slow (draws) on 3 splits"."""
    reasons: Counter[str] = Counter()
    for record in records:
        if record["status"] == "too slow":
            reasons[f"too slow ({record['stage']}, over {record['limit']:g} s)"] += 1
        elif record["status"] == "left out":
            reasons[f"left out above {record['most_rows']} rows"] += 1
        elif record["status"] == "failed":
            reasons["failed"] += 1
    return ", ".join(f"{reason} on {count} split{'s' * (count > 1)}" for reason, count in reasons.items())
