"""Which rows a model was trained on, in a few kilobytes: enough to tell whether a test uses them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array, as_rows, check_count
from localw2.balls import mix

# Hashes that are kept: every row of a set up to this size, a random sample of a larger one (32 KB).
SKETCH_ROWS = 4096


class SeenRowsWarning(UserWarning):
    """Rows that should be new to a model were among those that it was trained on."""


@final
@dataclass(frozen=True)
class SeenRows:
    """The smallest hashes of the training rows (x, y): a random sample of them that needs no random numbers.

    ``codes`` is ascending int64 (63 bits of a hash of the row's float64 bytes); ``n_distinct`` counts the
    distinct rows that it was made of. A row counts as seen when all its inputs and outputs are equal to the
    last bit (0.0 and -0.0 are equal), so copies in another precision are not found.

    >>> x, y = np.arange(6.0).reshape(-1, 1), np.arange(6.0) ** 2
    >>> seen = SeenRows.of(x[:4], y[:4])
    >>> seen.share(x, y), seen.share(x[4:], y[4:])
    (0.6666666666666666, 0.0)
    """

    codes: Array
    n_distinct: int

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        if codes.ndim != 1 or codes.dtype != np.int64 or len(codes) == 0:
            raise ValueError(
                f"codes has shape {codes.shape} and dtype {codes.dtype}; a sketch of rows is a non-empty "
                "list of int64, as SeenRows.of(x, y) makes it."
            )
        if codes[0] < 0 or (np.diff(codes) <= 0).any():
            raise ValueError("codes must be >= 0 and strictly ascending, as SeenRows.of(x, y) makes them.")
        check_count(self.n_distinct, "n_distinct", len(codes), why="codes are of distinct rows")
        object.__setattr__(self, "codes", codes)

    @classmethod
    def of(cls, x: Any, y: Any, size: int = SKETCH_ROWS) -> SeenRows:
        """The sketch of rows x (N, p) and y (N,), (N, d) or (N, T, d), with at most ``size`` hashes."""
        size = check_count(size, "size", 1)
        codes = np.unique(_codes(x, y))
        return cls(codes[:size], len(codes))

    @property
    def is_complete(self) -> bool:
        """Whether every training row is kept, so that ``share`` is exact."""
        return len(self.codes) == self.n_distinct

    def share(self, x: Any, y: Any) -> float:
        """The share of these rows that were seen, between 0 and 1.

        Exact where the sketch is complete. Otherwise only rows whose hash is not above the largest kept one
        can be told, a random sample of them; NaN where there is none.
        """
        codes = _codes(x, y)
        if not self.is_complete:
            codes = codes[codes <= self.codes[-1]]
        return float(np.isin(codes, self.codes).mean()) if len(codes) else float("nan")


def _codes(x: Any, y: Any) -> Array:
    """A 63-bit hash of each row, int64."""
    inputs, outputs = as_rows(x), as_array(y, "y", missing=True)
    if outputs.ndim == 0 or len(outputs) != len(inputs):
        raise ValueError(f"x has {len(inputs)} rows and y has shape {outputs.shape}; they must be pairs.")
    code = np.full(len(inputs), inputs.shape[1], np.uint64)
    for block in (inputs, outputs.reshape(len(outputs), -1)):
        for column in block.T:
            values = np.where(np.isnan(column), np.nan, column.astype(np.float64) + 0.0)  # -0.0 + 0.0 is 0.0
            code = mix(code ^ values.view(np.uint64))
    return (code >> np.uint64(1)).astype(np.int64)
