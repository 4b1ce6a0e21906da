"""The curves of training: those of a file that a fit under way writes, or those of the fit that is shown."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any, final

MOST_POINTS = 1000  # of a curve: more than a screen has columns
RECENT = 15.0  # seconds since the last line, up to which a fit counts as running
MOST_READ = 1 << 24  # bytes read at a time


@final
class Curves:
    """Loss and score by epoch, followed line by line: only what is new is read again.

    ``path`` is the file of ``FitConfig(history=...)``, which need not exist yet; without one, ``past`` are
    the records of a finished fit.

    >>> Curves(None, [{"epoch": 1, "loss": 0.5}]).now()["loss"]
    [0.5]
    """

    def __init__(self, path: Any, past: list[dict[str, Any]] | None = None) -> None:
        self.path = None if path is None else Path(os.fsdecode(path))
        self._records: list[tuple[int, float, float | None]] = []
        self._read, self._file, self._lock = 0, (0, 0), threading.Lock()
        for record in past or []:
            self._keep(record)

    def now(self) -> dict[str, Any]:
        """The curves so far, thinned, and whether a fit is adding to them."""
        with self._lock:
            age = None if self.path is None else self._follow(self.path)
            step = max(1, math.ceil(len(self._records) / MOST_POINTS))
            # The last epoch is always there: it is the one that is watched.
            shown = self._records[(len(self._records) - 1) % step :: step] if self._records else []
            scored = [record for record in self._records if record[2] is not None]
            scored = scored[:: max(1, math.ceil(len(scored) / MOST_POINTS))]
        return {
            "epoch": [epoch for epoch, _, _ in shown],
            "loss": [loss for _, loss, _ in shown],
            "score_epoch": [epoch for epoch, _, _ in scored],
            "score": [score for _, _, score in scored],
            "live": self.path is not None,
            "running": age is not None and age < RECENT,
        }

    def _follow(self, path: Path) -> float | None:
        """Read new lines; the seconds since the file was written, None where there is none."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                # A shorter or another file is another fit; so is one that a resumed fit has begun anew.
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
                self._keep(json.loads(line))
            except ValueError:  # not a line of ours; the next may be
                continue
        return max(0.0, time.time() - status.st_mtime)

    def _keep(self, record: Any) -> None:
        if not isinstance(record, dict):
            return
        epoch, loss, score = (record.get(name) for name in ("epoch", "loss", "score"))
        if not isinstance(epoch, int) or not _finite(loss):
            return
        while self._records and self._records[-1][0] >= epoch:  # written anew after an interruption
            self._records.pop()
        self._records.append((epoch, float(loss), float(score) if _finite(score) else None))  # type: ignore[arg-type]  # _finite has seen them


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def check_history(path: Any) -> None:
    """Raise unless this can be the name of a history file."""
    if path is not None and (not isinstance(path, str | os.PathLike) or Path(os.fsdecode(path)).is_dir()):
        raise ValueError(
            f"history={path!r} is not a file name; give that of FitConfig(history=...), or None."
        )
