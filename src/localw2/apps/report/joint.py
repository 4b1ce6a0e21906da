"""The part of a report on several outputs at once: how they depend on each other, in rows and in draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np
from scipy.spatial import cKDTree

from localw2._validation import Array
from localw2._wording import as_html
from localw2.apps.report import figures, parts
from localw2.metrics import distance_correlation, energy_score
from localw2.plots import MOST_OUTPUTS

DRAWS = 150  # at every row: two thirds for its mean and SD, the rest to compare with y
PLACE_DRAWS = 2000  # at each of the chosen inputs
MOST_ROWS = 2000  # judged; more would take longer and say the same
_TABLES = 25  # tables of one draw per row, whose numbers are compared with those of y
_PAIRED = 300  # rows of a distance correlation
_LEAST_ROWS = 20
_LOCAL_ROWS, _CANDIDATES = 40, 300  # rows near an input, and inputs among which a few are chosen
_FAR = 3.0  # SDs between y and the draws that are worth a sentence


@final
@dataclass(frozen=True, eq=False)
class Pair:
    """How two outputs depend on each other: in y, in tables of draws (mean, SD), and in shuffled ones."""

    outputs: tuple[int, int]
    correlation: float
    drawn: tuple[float, float]
    distance: float
    drawn_distance: tuple[float, float]
    shuffled_distance: tuple[float, float]

    @property
    def differs(self) -> bool:
        """Whether y is far from what the draws say."""
        return any(
            abs(seen - mean) > _FAR * max(std, 0.01)
            for seen, (mean, std) in ((self.correlation, self.drawn), (self.distance, self.drawn_distance))
        )


@final
@dataclass(frozen=True, eq=False)
class JointRows:
    """Outputs y (N, d) and draws (S, N, d) of some rows, less the model's mean and divided by its SD there.

    Mean and SD are those of other draws, so that y is one more draw if the model is right. ``shuffled`` are
    the same draws with every output shuffled on its own: the margins without the dependence. ``energy`` (N,)
    and ``energy_shuffled`` (N,) are energy scores of both, with outputs in SDs of y.
    """

    rows: Array
    y: Array
    draws: Array
    shuffled: Array
    energy: Array
    energy_shuffled: Array

    @classmethod
    def of(cls, y: Array, draws: Array, rows: Array | None = None) -> JointRows:
        """From y (N, d) and draws (S, N, d) of these rows; those without spread are left out.

        >>> rng = np.random.default_rng(0)
        >>> y, draws = np.split(rng.normal(size=(151, 400, 1)) * [[[1.0, 2.0]]], [1])
        >>> rows = JointRows.of(y[0], draws)
        >>> bool(rows.gain[0] > 0.05), round(rows.compare(0, 1).correlation, 2)
        (True, 1.0)
        """
        rng = np.random.default_rng(0)
        # In an order of its own at every row: the first draws of a pool may all be those of one member.
        order = rng.random(draws.shape[:2]).argsort(0)
        draws = np.take_along_axis(draws.astype(np.float64), order[..., None], 0)
        n_kept = len(draws) // 3
        mean, std = draws[n_kept:].mean(0), draws[n_kept:].std(0, ddof=1)
        draws = draws[:n_kept]
        shuffled = np.stack([rng.permuted(draws[..., k], axis=0) for k in range(y.shape[1])], -1)
        scale = np.where(y.std(0) > 0, y.std(0), 1.0)
        scores = [energy_score(y / scale, samples / scale) for samples in (draws, shuffled)]
        spread = (std > 1e-9 * np.abs(mean)).all(1)
        rows = np.arange(len(y)) if rows is None else rows
        mean, std = mean[spread], std[spread]
        units = [(part[..., spread, :] - mean) / std for part in (y, draws, shuffled)]
        return cls(rows[spread], *units, *scores)

    @property
    def gain(self) -> tuple[float, float]:
        """By which share the energy score is lower for the dependence between outputs, and its error."""
        better, whole = self.energy_shuffled - self.energy, float(self.energy_shuffled.mean())
        if not whole > 0:
            return 0.0, 0.0
        return float(better.mean()) / whole, float(better.std() / np.sqrt(len(better))) / whole

    def compare(self, i: int, j: int) -> Pair:
        """Two outputs, in y and in tables of draws."""
        some = np.linspace(0, len(self.y) - 1, min(len(self.y), _PAIRED)).round().astype(int)

        def measure(table: Array) -> tuple[float, float]:
            return correlate(table[:, i], table[:, j]), distance_correlation(table[some, i], table[some, j])

        def summarise(tables: Array) -> Array:
            found = np.array([measure(table) for table in tables[:_TABLES]])
            return np.stack([found.mean(0), found.std(0, ddof=1)], 1)

        drawn, shuffled = summarise(self.draws), summarise(self.shuffled)
        correlation, distance = measure(self.y)
        words = [(float(mean), float(std)) for mean, std in (*drawn, shuffled[1])]
        return Pair((i, j), correlation, words[0], distance, words[1], words[2])


def correlate(a: Array, b: Array) -> float:
    """The correlation of two columns (n,); 0 if one of them does not vary.

    >>> correlate(np.arange(3.0), np.array([0.0, 2.0, 4.0])), correlate(np.arange(3.0), np.ones(3))
    (1.0, 0.0)
    """
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(np.clip(a @ b / scale, -1, 1)) if scale > 0 else 0.0


def choose_rows(n: int) -> Array:
    """At most 2000 of n rows, chosen at random, always the same ones."""
    return np.sort(np.random.default_rng(0).permutation(n)[:MOST_ROWS])


def describe_joint(
    judged: JointRows, names: Sequence[str], row: str = "row", rows: str = "rows"
) -> list[str]:
    """Words, the pairs plot and a table of all rows, which are called by the words given."""
    n, d = judged.y.shape
    if n < _LEAST_ROWS:
        return [f"<p>The model's draws have spread at {n} {rows} only, too few to show dependence.</p>"]
    found = [_describe_gain(judged, rows)]
    chosen = list(range(d))
    if d > MOST_OUTPUTS:
        chosen = _choose_outputs(judged)
        found.append(
            f'<p class="soft">Shown are the {MOST_OUTPUTS} outputs with the strongest correlations: '
            f"{as_html(', '.join(names[k] for k in chosen))}.</p>"
        )
    found.append(
        f"<p>In the picture, the model's mean at each {row} is subtracted from every output, which is then "
        "divided by the model's SD there. Look below the diagonal: if the outputs depend on each other as "
        "the model says, half of the dots lie in the inner regions, and nine of ten in the outer ones. "
        "Above the diagonal are draws.</p>"
    )
    shown = [names[k] for k in chosen]
    picture = figures.draw_pairs(judged.draws[..., chosen], judged.y[:, chosen], shown)
    label = f"Pairs of {parts.join_names(shown)}: draws and observed {rows}"
    found.append(parts.figure(picture, "pairs", label, "narrow" if len(chosen) < 4 else ""))
    compared = [judged.compare(i, j) for i, j in combinations(chosen, 2)]
    return [*found, *_compare_pairs(compared, names, row, rows)]


def _describe_gain(judged: JointRows, rows: str) -> str:
    """The energy score with the dependence and without, in a sentence that says what it means."""
    gain, error = judged.gain
    if gain > 2 * error:
        meaning = f"so the observed {rows} have the dependence of the draws, or a part of it"
    elif gain < -2 * error:
        meaning = f"so the draws have a dependence that the observed {rows} do not have"
    else:
        meaning = "which is within the error: the draws have little dependence, or not that of the data"
    word = "lower" if gain >= 0 else "higher"
    return (
        f"<p>The energy score of the draws is {judged.energy.mean():#.3g} (outputs in SDs, lower is better). "
        f"If the outputs of the same draws are shuffled, so that only the margins are left, it is "
        f"{judged.energy_shuffled.mean():#.3g}. The dependence between outputs makes the score "
        f"<b>{100 * abs(gain):.1f} % ± {100 * error:.1f} % {word}</b>, {meaning}.</p>"
    )


def _compare_pairs(compared: Sequence[Pair], names: Sequence[str], row: str, rows: str) -> list[str]:
    """The table of all pairs, and those in which y differs from the draws."""
    head = ["outputs", "correlation", "of draws", "distance correlation", "of draws", "of shuffled draws"]
    lines = [
        [
            _name_pair(pair, names),
            _signed(pair.correlation),
            _with_error(pair.drawn),
            _signed(pair.distance),
            _with_error(pair.drawn_distance),
            _with_error(pair.shuffled_distance),
        ]
        for pair in compared
    ]
    far = [_name_pair(pair, names) for pair in compared if pair.differs]
    found = [parts.table(head, lines)]
    if far:
        found.append(
            f"<p>More than {_FAR:.0f} SDs away from the draws: {as_html(parts.join_names(far, 4))}. There "
            "the model's dependence is not that of the data.</p>"
        )
    found.append(
        f'<p class="soft">Numbers of the observed {rows}, standardised as in the picture, beside the mean '
        f"± SD of {_TABLES} tables with one draw per {row}. The distance correlation is 0 for independent "
        "outputs only; a correlation can be 0 for dependent ones, such as points on a circle.</p>"
    )
    return found


def describe_places(
    judged: JointRows,
    names: Sequence[str],
    embedded: Array,
    sample: Callable[[Array], Array],
    y: Array,
    mean: Array,
) -> tuple[list[str], Array]:
    """The pair whose dependence changes most with the inputs, at three rows; and which rows these are.

    ``embedded`` (N, p), y and the mean (N, d) are of all rows; ``sample`` gives draws (S, n, d) at some.
    """
    if len(judged.y) < 2 * _LOCAL_ROWS:
        return [], np.empty(0, dtype=int)
    tree = cKDTree(embedded[judged.rows])
    candidates = np.linspace(0, len(judged.rows) - 1, min(len(judged.rows), _CANDIDATES)).round().astype(int)
    near = tree.query(embedded[judged.rows[candidates]], _LOCAL_ROWS)[1]
    pairs = list(combinations(range(y.shape[1]), 2))
    local = np.stack([(judged.draws[..., i] * judged.draws[..., j]).mean(0)[near].mean(1) for i, j in pairs])
    widest = int(np.ptp(local, axis=1).argmax())
    order = np.argsort(local[widest], kind="stable")
    order = order[[0, len(order) // 2, -1]]
    pair = list(pairs[widest])
    places, close = judged.rows[candidates[order]], near[order]
    draws = sample(places)[..., pair]
    dots, titles = [], []
    for i, (place, rows) in enumerate(zip(places, close, strict=True)):
        seen = judged.rows[rows]
        dots.append((y[seen] - mean[seen] + mean[place])[:, pair])
        r = correlate(*judged.y[rows][:, pair].T)
        error = (1 - r**2) / np.sqrt(len(rows) - 1)
        drawn = correlate(*draws[:, i].T)
        titles.append(f"{'ABC'[i]}: correlation {_signed(drawn)}\nobserved {_signed(r)} ± {error:.2f}")
    both = [names[k] for k in pair]
    which = " and ".join(both)
    if len(pairs) > 1:
        which += ", the pair whose correlation changes most"
    words = (
        f"<p>Does it change with the inputs? Below are {as_html(which)}, at three rows from a low to a high "
        f"correlation in the model. Dots are the {_LOCAL_ROWS} nearest observed rows, shifted by the "
        "difference between the predicted means.</p>"
    )
    picture = figures.draw_joint_places(draws, dots, titles, both)
    label = f"Draws of {' and '.join(both)} at three inputs, with nearby rows"
    return [words, parts.figure(picture, "joint", label)], places


def _choose_outputs(judged: JointRows) -> list[int]:
    """As many outputs as a picture can hold, those with the strongest correlations in y or the draws."""
    tables = [judged.y, judged.draws.reshape(-1, judged.y.shape[1])]
    found = [np.abs(np.nan_to_num(np.corrcoef(table.T))) - np.eye(table.shape[1]) for table in tables]
    strongest = np.max(found, axis=0).max(0)
    return sorted(int(k) for k in np.argsort(-strongest, kind="stable")[:MOST_OUTPUTS])


def _name_pair(pair: Pair, names: Sequence[str]) -> str:
    return " and ".join(_shorten(names[k]) for k in pair.outputs)


def _shorten(name: str, most: int = 26) -> str:
    """A name that leaves room for numbers beside it."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")


def _with_error(pair: tuple[float, float]) -> str:
    return f"{_signed(pair[0])} ± {pair[1]:.2f}"
