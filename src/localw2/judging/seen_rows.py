"""A sketch of the training rows in a few kilobytes, from which a test can tell whether it reuses them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_array, as_rows, check_count
from localw2.balls.ragged import mix

# The number of hashes kept: all rows up to this size, a random sample of a larger set (32 KB).
SKETCH_ROWS = 4096
# A share of training rows up to this is only noted, because it hardly affects a test.
FEW_SEEN = 0.05


class SeenRowsWarning(UserWarning):
    """Rows that should be new to a model are among its training rows."""


def describe_seen(share: float, n_rows: int) -> str:
    """What is wrong with judging a fit by rows of which this share are training rows.

    >>> describe_seen(0.84, 50)
    '42 of these 50 rows (84 %) are training rows, on which a fit looks better than it is. ...'
    """
    return (
        f"{share * n_rows:.0f} of these {n_rows} rows ({100 * share:.0f} %) are training rows, on which a "
        "fit looks better than it is. Judge it by held-out rows."
    )


@final
@dataclass(frozen=True, eq=False)
class SeenRows:
    """The smallest hashes of the training rows (x, y), which are a random sample of the rows.

    ``codes`` is ascending int64 (63 bits of a hash of the row's float64 bytes); ``n_distinct`` is the number
    of distinct rows that were hashed, ``n_rows`` the number of all rows if it is known. A row counts as seen
    if all its inputs and outputs agree to the last bit (0.0 and -0.0 are equal), so copies in another
    precision are not found.

    >>> x, y = np.arange(6.0).reshape(-1, 1), np.arange(6.0) ** 2
    >>> seen = SeenRows.of(x[:4], y[:4])
    >>> seen.share(x, y), seen.share(x[4:], y[4:])
    (0.6666666666666666, 0.0)
    """

    codes: Array
    n_distinct: int
    n_rows: int | None = None

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        kind = codes.ndim == 1 and codes.dtype == np.int64 and len(codes) > 0
        if not kind or codes[0] < 0 or (np.diff(codes) <= 0).any():
            raise ValueError(
                f"codes has shape {codes.shape} and dtype {codes.dtype}; a sketch is a non-empty array of "
                "strictly ascending int64 >= 0, as SeenRows.of(x, y) makes it."
            )
        check_count(self.n_distinct, "n_distinct", len(codes), why="each code stands for a distinct row")
        if self.n_rows is not None:
            check_count(self.n_rows, "n_rows", self.n_distinct, why="it counts the distinct rows too")
        object.__setattr__(self, "codes", codes)

    def __repr__(self) -> str:
        kept = "all" if self.is_complete else f"{len(self.codes)} of"
        return f"SeenRows({kept} {self.n_distinct} distinct rows)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeenRows) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[bytes, int, int | None]:
        return self.codes.tobytes(), self.n_distinct, self.n_rows

    @classmethod
    def of(cls, x: Any, y: Any, size: int = SKETCH_ROWS) -> SeenRows:
        """The sketch of rows x (N, p) and y (N,), (N, d) or (N, T, d), with at most ``size`` hashes."""
        size = check_count(size, "size", 1)
        rows = _codes(x, y)
        codes = np.unique(rows)
        return cls(codes[:size], len(codes), len(rows))

    @property
    def is_complete(self) -> bool:
        """Whether every training row is kept, so that ``share`` is exact."""
        return len(self.codes) == self.n_distinct

    def share(self, x: Any, y: Any) -> float:
        """The share of these rows that were seen, between 0 and 1.

        Exact if the sketch is complete. Otherwise it is estimated from the rows whose hash does not exceed
        the largest one kept, a random sample; NaN if there are none.
        """
        codes = _codes(x, y)
        if not self.is_complete:
            codes = codes[codes <= self.codes[-1]]
        return float(np.isin(codes, self.codes).mean()) if len(codes) else float("nan")


def judge_seen(seen: SeenRows, x: Any, y: Any) -> tuple[float, bool]:
    r"""The share s of rows that equal training rows, and whether chance or a few rows do not explain it.

    Rows of discrete data coincide by chance. Let r be the share of these rows that have an equal among
    themselves or, if larger, the share of training rows that repeat an earlier one (where ``n_rows`` is
    known). The answer is True if s exceeds :math:`.05 + 2 r` by three standard errors of a share 2r. Twice r
    is enough: the probability that the m-th row is a repeat is concave in m, so for the next row it is at
    most twice its mean so far. If most rows are repeats, nothing can be concluded. A share of NaN gives
    False.

    >>> x, y = np.arange(100.0), np.random.default_rng(0).normal(size=100)
    >>> judge_seen(SeenRows.of(x[:50], y[:50]), x, y)
    (0.5, True)
    >>> coins = y > 0
    >>> judge_seen(SeenRows.of(x % 2, coins), x % 2, coins)
    (1.0, False)
    """
    share = seen.share(x, y)
    _, place, counts = np.unique(_codes(x, y), return_inverse=True, return_counts=True)
    repeated = float((counts[place] > 1).mean())
    if seen.n_rows is not None:
        repeated = max(repeated, 1 - seen.n_distinct / seen.n_rows)
    by_chance = min(1.0, 2 * repeated)
    error = float(np.sqrt(by_chance * (1 - by_chance) / len(place)))
    return share, share > FEW_SEEN + by_chance + 3 * error


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


def as_paths(Y: Any) -> Array | None:
    """Trajectories (n, T, d); None if they are ragged, or a table that is not read."""
    try:
        paths = as_array(Y, "Y", missing=True)
    except ValueError:  # a list of unequal lengths
        return None
    return paths[..., None] if paths.ndim == 2 else paths


def warn_of_seen_paths(seen: SeenRows | None, paths: Array | None) -> None:
    """Warn if more trajectories (n, T, d) were trained on than chance explains.

    Estimators from older files cannot know, and nothing is known of ragged trajectories.
    """
    if seen is None or paths is None:
        return
    share, beyond_chance = judge_seen(seen, np.nan_to_num(paths[:, 0]), paths)
    if beyond_chance:
        warnings.warn(
            f"{share * len(paths):.0f} of these {len(paths)} rows are equal to training rows, on which "
            "any overfit looks calibrated. Judge the fit by rows that it has not seen.",
            SeenRowsWarning,
            stacklevel=3,
        )
