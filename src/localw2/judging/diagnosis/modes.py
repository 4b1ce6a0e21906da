"""Do the draws have the modes of y? A check of each output, and of several outputs together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, final

import numpy as np

from localw2._validation import Array
from localw2.judging.diagnosis.checks import (
    ENOUGH_DRAWS,
    FEW_ROWS,
    PREDICTIONS,
    RELEVANT,
    SMALLEST_REGION,
    compute_moments,
    cut_input,
    describe_place,
    set_apart,
    split_rows,
)
from localw2.judging.inputs import Input
from localw2.judging.valleys import N_BINS, Valley, bin_values, find_valley, measure_grain

if TYPE_CHECKING:
    from localw2.judging.diagnosis.checks import RowStatistics

MODE_DRAWS = 50  # at most about this many draws per row are compared with y
MOST_TOGETHER = 5  # outputs; more are searched one by one only
PREDICTED = 0.8  # regions of predictions are named if their log p-value is so much clearer than any other
STEADY = 0.3  # an interval is given in units of y if its ends move by at most this share of its width


@final
@dataclass(frozen=True)
class Modes:
    """Whether y and its draws have the same modes along one ``direction`` of the outputs.

    ``outputs`` are those that the direction involves. ``valley`` is the clearest valley that only one of y
    and its draws has, None if there is none; ``where`` names its ``n`` rows as the end of a sentence, empty
    if these are all. ``low`` and ``high`` are its ends in units of y, NaN if they depend on x.
    """

    direction: str
    outputs: tuple[int, ...]
    pvalue: float
    adjusted: float
    valley: Valley | None
    where: str
    n: int
    low: float
    high: float

    def describe(self, several: bool) -> tuple[str, str]:
        """The kind of error, and a sentence; ``several``: there are other outputs to tell this from."""
        valley = self.valley
        assert valley is not None
        between = f"between about {self.low:.3g} and {self.high:.3g}"
        if math.isnan(self.low):
            between = valley.describe_interval("the predicted mean")
        return valley.kind, f"{self.say_what(several)}{self.where}: {valley.shares} lie {between}"

    def say_what(self, several: bool) -> str:
        """What happens to the modes, in words."""
        assert self.valley is not None
        if not several:
            return self.valley.describe_modes()
        joint = len(self.outputs) > 1
        return self.valley.describe_modes(f"along {self.direction}" if joint else f"of {self.direction}")


@final
@dataclass(frozen=True)
class Direction:
    """A direction of the standardised outputs: ``weights`` (d,), or None for the principal one."""

    name: str
    outputs: tuple[int, ...]
    weights: Array | None

    def project(self, values: Array, apart: Array) -> tuple[Array, Array]:
        """Values (m, rows, d) along the direction, standardised by draws set apart, and where these vary."""
        if self.weights is None:
            # The principal direction of each row's own draws, with a fixed sign.
            _, vectors = np.linalg.eigh(np.einsum("sni,snj->nij", apart, apart))
            weights = vectors[..., -1]
            weights *= np.where(weights.sum(1) < 0, -1.0, 1.0)[:, None]
            along, by = (np.einsum("snk,nk->sn", each, weights) for each in (values, apart))
        else:
            along, by = values @ self.weights, apart @ self.weights
        centre, width = compute_moments(by)
        varies = width > 1e-9
        return (along - centre) / np.where(varies, width, 1.0), varies


@final
@dataclass(frozen=True)
class Regions:
    """Parts of the rows, and groups of parts: all rows, single parts and runs of adjacent ones.

    ``parts`` (P, N) and ``groups`` (G, P) are zeros and ones, and ``words`` (G,) end a sentence. Groups of
    inputs, which are easier to read, have a larger ``preference`` (G,) than those of predictions.
    """

    parts: Array
    groups: Array
    words: tuple[str, ...]
    preference: Array

    @classmethod
    def of(cls, columns: Sequence[tuple[Input, Array]], n_regions: int) -> Regions:
        """From inputs (or predictions) and their values (N,)."""
        n = len(columns[0][1])
        parts, runs, words = [np.ones(n)], [range(1)], [""]
        for each, values in columns:
            cut = cut_input(each, values, n_regions)
            for i, (rows, said) in enumerate(cut):
                place = len(parts) + i
                runs.append(range(place, place + 1))
                words.append(describe_place(each.name, said))
                low = values[rows].min()
                # Categories have no order, and missing values, which come last, are not next to others.
                for j in range(i + 1, 0 if each.kind == "category" or np.isnan(low) else len(cut)):
                    high = values[cut[j][0]].max()
                    if not np.isnan(high):
                        runs.append(range(place, len(parts) + j + 1))
                        words.append(
                            describe_place(each.name, f"in [{each.show(low, 3)}, {each.show(high, 3)}]")
                        )
            parts += [np.bincount(rows, minlength=n).astype(float) for rows, _ in cut]
        groups = np.zeros((len(runs), len(parts)))
        for group, run in zip(groups, runs, strict=True):
            group[run.start : run.stop] = 1.0
        partial = groups @ np.array(parts).sum(1) < n  # a run of all parts is all rows once more
        partial[0] = True
        kept = [said for said, keep in zip(words, partial, strict=True) if keep]
        of_predictions = [
            said.startswith(tuple(describe_place(name, "") for name in PREDICTIONS)) for said in kept
        ]
        return cls(np.array(parts), groups[partial], tuple(kept), np.where(of_predictions, PREDICTED, 1.0))


def check_modes(
    y: Array,
    samples: Array,
    rows: RowStatistics,
    x: Array,
    inputs: Sequence[Input],
    order: Sequence[int],
    n_regions: int,
) -> list[Modes]:
    """Search y (N, d) and samples (S, N, d) for modes that only one of them has, without adjustment.

    Each output is one test, over all rows and the regions of ``check_groups``, of which adjacent ones are
    also taken together; ``order`` ranks the columns of x (N, p) by relevance. Up to five outputs are also
    searched along the principal direction of each row's draws and along sums and differences of two, in SDs.
    Fewer than 40 draws per row or 20 rows are not searched.
    """
    n, d = y.shape
    if n < FEW_ROWS or len(samples) < ENOUGH_DRAWS:
        return []
    places = [(inputs[i], x[:, i]) for i in order[:RELEVANT]]
    directions, regions = list_directions(d), list[Regions]()
    for direction in directions:
        columns = list(places)
        if len(direction.outputs) == 1:
            of_output = rows.centre[:, direction.outputs[0]], rows.width[:, direction.outputs[0]]
            columns += [(Input(name, "number"), v) for name, v in zip(PREDICTIONS, of_output, strict=True)]
        regions.append(Regions.of(columns, n_regions))
    apart = set_apart(len(samples))
    rest = np.flatnonzero(~apart)
    step = max(1, len(rest) // MODE_DRAWS)
    rest = rest[step // 2 :: step]
    # Of every part: the number of y in each bin, and that of all values of the same rows.
    tables = [[np.zeros((len(each.parts), N_BINS + 1)) for _ in range(2)] for each in regions]
    kept, observed = np.zeros((len(directions), n), bool), np.zeros((len(directions), n))
    for at in split_rows(n, samples[:, 0].size):
        centre, scale = rows.centre[at], np.where(rows.width[at] > 0, rows.width[at], 1.0)
        others = (samples[apart, at] - centre) / scale
        values = (np.concatenate([y[None, at], samples[rest, at]]) - centre) / scale
        for i, (direction, region, table) in enumerate(zip(directions, regions, tables, strict=True)):
            z, kept[i, at] = direction.project(values, others)
            bins, within = bin_values(z), region.parts[:, at] * kept[i, at]
            observed[i, at] = z[0]
            table[0] += within @ _count_by_row(bins[:1])
            table[1] += within @ _count_by_row(bins)
    some_draw = samples[rest[len(rest) // 2]].astype(np.float64)
    grains = [_measure_coarser(y[:, k], some_draw[:, k], rows.width[:, k]) for k in range(d)]
    found = []
    for direction, region, table, varies, z in zip(directions, regions, tables, kept, observed, strict=True):
        sizes = (region.groups @ (region.parts @ varies)).astype(int)
        many = np.flatnonzero(sizes >= SMALLEST_REGION)
        within = region.parts * varies
        table.append(within @ _count_by_row(bin_values(_align(z, within))[None]))
        counts, pooled, aligned = (region.groups[many] @ each[:, :N_BINS] for each in table)
        grain = max(grains[k] for k in direction.outputs)
        pvalue, valley = find_valley(
            counts, pooled, aligned, len(rest), sizes[many], grain, region.preference[many]
        )
        where, size, ends = "", n, (math.nan, math.nan)
        if valley is not None:
            group = many[valley.group]
            where, size = region.words[group], int(sizes[group])
            if len(direction.outputs) == 1:
                there = (region.groups[group] @ region.parts > 0) & varies
                k = direction.outputs[0]
                ends = _find_ends(rows.mean[there, k], rows.std[there, k], valley)
        found.append(Modes(direction.name, direction.outputs, pvalue, 1.0, valley, where, size, *ends))
    return found


def list_directions(d: int) -> list[Direction]:
    """Each of d outputs, and of several the principal direction and the sums and differences of pairs.

    >>> [direction.name for direction in list_directions(2)][2:]
    ['the principal direction of the outputs', 'output 0 plus output 1', 'output 0 minus output 1']
    """
    unit = np.eye(d)
    found = [Direction(f"output {k}", (k,), unit[k]) for k in range(d)]
    if 1 < d <= MOST_TOGETHER:
        found.append(Direction("the principal direction of the outputs", tuple(range(d)), None))
        for j, k in combinations(range(d), 2):
            found.append(Direction(f"output {j} plus output {k}", (j, k), unit[j] + unit[k]))
            found.append(Direction(f"output {j} minus output {k}", (j, k), unit[j] - unit[k]))
    return found


def _count_by_row(bins: Array) -> Array:
    """The number of values (m, rows) in each bin, by row, (rows, N_BINS + 1)."""
    n = bins.shape[1]
    place = np.arange(n) * (N_BINS + 1) + bins
    return np.bincount(place.ravel(), minlength=n * (N_BINS + 1)).reshape(n, N_BINS + 1)


def _align(z: Array, parts: Array) -> Array:
    """Standardised y (N,) with mean 0 and SD 1 in every part (P, N) of many rows, as its draws have."""
    z = z.copy()
    for part in parts > 0:
        if part.sum() >= FEW_ROWS:
            z[part] -= z[part].mean()
    for part in parts > 0:
        if part.sum() >= FEW_ROWS:
            z[part] /= max(z[part].std(), 1e-9)
    return z


def _measure_coarser(y: Array, drawn: Array, width: Array) -> float:
    """The larger grain of y and one draw per row, (N,) each, in rows whose draws vary."""
    some = width > 0
    return max(measure_grain(each[some], width[some]) for each in (y, drawn)) if some.any() else math.inf


def _find_ends(mean: Array, std: Array, valley: Valley) -> tuple[float, float]:
    """The ends of a valley in units of y, if they hardly depend on the row (N,)."""
    ends = np.stack([mean + std * valley.low, mean + std * valley.high])
    spread = np.diff(np.quantile(ends, [0.1, 0.9], axis=1), axis=0).max()
    low, high = np.median(ends, axis=1)
    return (float(low), float(high)) if spread <= STEADY * (high - low) else (math.nan, math.nan)
