"""Training curves: of a fit that is running, read as its file grows, or else of the model on display."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, final

MOST_POINTS = 1000  # of a curve: more than a screen has columns
RECENT = 15.0  # seconds since the last line, up to which a fit counts as running
MOST_READ = 1 << 24  # bytes read at a time
_Record = tuple[int, float, float | None]  # epoch, loss, score


@final
class Curves:
    """Loss and score by epoch; of a file only new lines are read.

    ``path`` is the file that a fit writes (``history=``). As long as there is no such file, the records
    ``past`` of a finished fit are shown.

    >>> Curves(None, [{"epoch": 1, "loss": 0.5}]).read()["loss"]
    [0.5]
    """

    def __init__(self, path: Any, past: Sequence[Mapping[str, Any]] = ()) -> None:
        self.path = _check_path(path)
        self._records: list[_Record] = []
        self._past: list[_Record] = []
        self._read, self._file, self._lock = 0, (0, 0), threading.Lock()
        for record in past:
            _keep(record, self._past)

    def read(self) -> dict[str, Any]:
        """The curves so far, thinned, and whether they belong to a fit that is adding to them."""
        with self._lock:
            age = None if self.path is None else self._follow(self.path)
            records = self._past if age is None else self._records
            step = max(1, math.ceil(len(records) / MOST_POINTS))
            # The last epoch, which people watch, is always shown.
            shown = records[(len(records) - 1) % step :: step] if records else []
            scored = [record for record in records if record[2] is not None]
            scored = scored[:: max(1, math.ceil(len(scored) / MOST_POINTS))]
        return {
            "epoch": [epoch for epoch, _, _ in shown],
            "loss": [loss for _, loss, _ in shown],
            "score_epoch": [epoch for epoch, _, _ in scored],
            "score": [score for _, _, score in scored],
            "followed": self.path is not None,
            "live": age is not None,
            "running": age is not None and age < RECENT,
        }

    def _follow(self, path: Path) -> float | None:
        """Read new lines; the seconds since the file was written, None if there is none."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                # A shorter file or another one belongs to another fit, or to one that started again.
                if identity != self._file or status.st_size < self._read:
                    self._records, self._read, self._file = [], 0, identity
                file.seek(self._read)
                text = file.read(MOST_READ)
        except OSError:
            return None
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be half written
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                _keep(json.loads(line), self._records)
            except ValueError:  # not a line of ours; the next may be
                continue
        return max(0.0, time.time() - status.st_mtime)


def _keep(record: Any, records: list[_Record]) -> None:
    if not isinstance(record, Mapping):
        return
    epoch, loss, score = (record.get(name) for name in ("epoch", "loss", "score"))
    if not isinstance(epoch, int) or not _is_finite(loss):
        return
    while records and records[-1][0] >= epoch:  # written again after an interruption
        records.pop()
    records.append((epoch, float(loss), float(score) if _is_finite(score) else None))


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _check_path(path: Any) -> Path | None:
    if path is not None and (not isinstance(path, str | os.PathLike) or Path(os.fsdecode(path)).is_dir()):
        raise ValueError(f"history={path!r} is not a file name; pass the file that a fit writes, or None.")
    return None if path is None else Path(os.fsdecode(path))
