"""Can the draws be trusted: every check in one call, with a verdict, a table and a picture."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import ndtri

from localw2._validation import (
    Array,
    as_array,
    as_rows,
    check_count,
    check_probability,
    seed_of,
)
from localw2._wording import aligned
from localw2.judging.diagnosis.checks import (
    ENOUGH_DRAWS,
    FEW_NEAR,
    FEW_ROWS,
    LEVEL,
    PREDICTIONS,
    Dependence,
    Group,
    RowStatistics,
    adjusted,
    check_groups,
    check_inputs,
    check_pairs,
    output_pairs,
    skill,
    spread_ratio,
)
from localw2.judging.diagnosis.plots import diagnosis_panels
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning, judge_seen

if TYPE_CHECKING:
    from localw2.balls.norms import Norm

_OF_MEAN = "Improve the mean (base regressor, inputs), and look for a drift since the training rows."
ADVICE = {
    "narrow": "Widen them: more rows a ball (delta), the debiased loss, fewer epochs, or calibrate=True.",
    "wide": "Narrow them: a better mean or a smaller delta (a slope inside a ball counts as spread).",
    "above": _OF_MEAN,
    "below": _OF_MEAN,
    "shape": "Skewness or tails are missed: a wider network, more epochs, or more rows.",
    "dependence": "Fit the outputs together (SlicedW2, EnergyScore) and keep those of one draw together.",
}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What ``diagnose`` found; the last arrays are (N,) or (N, d), one entry a row.

    ``score`` is the mean CRPS, or for several outputs the energy score of outputs in SDs of y; ``skill`` is
    1 - score / base_score, with its standard error. ``spread_ratio`` is the observed RMS residual over the
    predicted SD of each output, with a 95 % interval (1 is right); ``constant_draws`` counts rows in which
    all draws agree and y differs. Numbers that the rows cannot give are NaN, in ``to_dict`` None.
    """

    n_rows: int
    n_samples: int
    n_outputs: int
    groups: tuple[Group, ...]
    dependence: tuple[Dependence, ...]
    n_tests: int
    crps: tuple[float, ...]
    score: float
    base: str
    base_score: float
    skill: float
    skill_error: float
    spread_ratio: tuple[float, ...]
    spread_interval: tuple[tuple[float, float], ...]
    constant_draws: tuple[int, ...]
    delta: float
    delta_given: bool
    ball_sizes: Array
    sparse: Array
    extrapolated: Array | None
    pit: Array
    mean: Array
    std: Array
    residual: Array
    place: Array
    place_name: str

    @property
    def calibrated(self) -> bool:
        """Whether no test failed; a calibrated sampler passes with a chance of 95 % or more."""
        return not self.failures

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Kind and sentence of what failed: of each output and kind all rows, or else the worst region.

        What a wrong spread explains is not called a wrong mean, nor what wrong outputs explain a dependence.
        """
        found: list[tuple[bool, float, int, str, str]] = []
        scattered = {group.output for group in self.groups if group.adjusted["spread"] <= LEVEL}
        for group in self.groups:
            name = f"of output {group.output}, " if self.n_outputs > 1 else ""
            region = "" if group.overall else f"where {group.where}, "
            for test in self._failed(group, group.output in scattered):
                p = group.adjusted[test]
                kind, words = group.finding(test)
                most = self._worst_region(group, kind) if group.overall else ""
                words = f"{name}{region}{words}{most} (p = {p:.2g})"
                found.append((not group.overall, p, group.output, kind, words))
        for pair in self.dependence:
            if pair.adjusted <= LEVEL and pair not in self._untold:
                j, k = pair.outputs
                side = "more" if pair.excess > 0 else "less"
                words = f"outputs {j} and {k} go together {side} than their draws (p = {pair.adjusted:.2g})"
                found.append((False, pair.adjusted, j, f"dependence {k}", words))
        first: dict[tuple[int, str], str] = {}
        for _, _, output, kind, words in sorted(found):
            first.setdefault((output, kind), words)
        return [(kind.split()[0], words) for (_, kind), words in first.items()]

    def _failed(self, group: Group, scattered: bool) -> list[str]:
        """The failed tests of a group that have no other explanation; ``scattered``: the spread failed."""
        failed = [test for test, p in group.adjusted.items() if p <= LEVEL]
        if len(failed) > 1 and "shape" in failed:  # a wrong mean or spread makes the shape fail, too
            failed.remove("shape")
        if scattered and "shift" in failed:
            # Regions made of y and few draws together sort y far out by its side.
            knows_y = self.n_samples < ENOUGH_DRAWS and group.by in PREDICTIONS
            if knows_y or self.n_tests * group.shift_pvalue_at_spread > LEVEL:
                failed.remove("shift")
        return failed

    @property
    def _untold(self) -> list[Dependence]:
        """Failed pairs of outputs of which one is wrong by itself, which makes their product wrong, too."""
        wrong = {group.output for group in self.groups if min(group.adjusted.values()) <= LEVEL}
        return [pair for pair in self.dependence if pair.adjusted <= LEVEL and wrong & {*pair.outputs}]

    def _worst_region(self, overall: Group, kind: str) -> str:
        """Where an error of all rows is largest, if by more than 3 standard errors."""
        if kind == "shape":
            return ""
        name = "spread" if kind in ("narrow", "wide") else "shift"
        sign = 1 if kind in ("narrow", "above") else -1

        def excess(group: Group) -> float:
            error = overall.spread / math.sqrt(2 * group.n if name == "spread" else group.n)
            return float(sign * (getattr(group, name) - getattr(overall, name)) / error)

        regions = [group for group in self.groups if group.output == overall.output]
        worst = max(regions, key=excess)
        return f", most where {worst.where}: {getattr(worst, name):.2g}" if excess(worst) > 3 else ""

    @property
    def verdict(self) -> list[str]:
        """Sentences: the judgement, then what is wrong and what to do, the skill, the rows to distrust."""
        found = self.failures
        # The usual sum of two normal quantiles: what the strictest of Holm's tests finds four times in five.
        reach = (ndtri(1 - LEVEL / (2 * self.n_tests)) + ndtri(0.8)) / math.sqrt(self.n_rows)
        seen = (
            f"{reach:.2g} SD or a spread by {100 * math.expm1(reach / math.sqrt(2)):.2g} % would likely show"
        )
        if found:
            lines = [f"Not calibrated: {found[0][1]}.", *(f"Also {words}." for _, words in found[1:4])]
            lines += [f"{len(found) - 4} more findings, see table()."] if len(found) > 4 else []
            lines += list(dict.fromkeys(ADVICE[kind] for kind, _ in found[:4]))
            if self._untold:
                lines.append(
                    "Whether outputs go together rightly cannot be told until each is right by itself."
                )
        elif self.n_rows < FEW_ROWS:
            lines = [f"Too few rows to tell: with {self.n_rows}, only a mean off by {seen}."]
        else:
            lines = [f"Calibrated as far as {self.n_rows} rows can tell: a mean off by {seen}."]
        stuck = max(self.constant_draws)
        if found and stuck > 0.01 * self.n_rows:
            lines.append(f"The spread has collapsed in {stuck} rows: all draws agree there, and y differs.")
        return lines + self._skill_in_words() + self._inputs_in_words()

    def _skill_in_words(self) -> list[str]:
        if not math.isfinite(self.skill):
            return []
        score = "CRPS" if self.n_outputs == 1 else "energy score"
        side = "below" if self.skill >= 0 else "above"
        line = f"The {score} is {100 * abs(self.skill):.0f} % {side} that of {self.base}"
        doubt = "" if self.skill > 2 * self.skill_error else ", no sure gain"
        return [f"{line} (+- {100 * self.skill_error:.2g}{doubt})."]

    def _inputs_in_words(self) -> list[str]:
        lines = []
        # The usual delta leaves out 1 % of the rows it is read from, so as many again are no news.
        usual = 0.0 if self.delta_given else 0.01 * self.n_rows
        if self.sparse.sum() > usual + 3 * math.sqrt(usual):
            whose = "other" if self.extrapolated is None else "training"
            few = f"fewer than {FEW_NEAR} {whose} rows within {self.delta:.3g}"
            lines.append(f"{self.sparse.sum()} of {self.n_rows} rows have {few}: little is known there.")
        if self.extrapolated is not None and self.extrapolated.any():
            lines.append(f"{self.extrapolated.sum()} of {self.n_rows} rows lie outside the training inputs.")
        return lines

    def table(self) -> str:
        """One line a group: rows, observed coverage in %, shift, spread and the smallest adjusted p."""
        nominal = [f"{100 * level[0]:.3g} %" for level in self.groups[0].coverage]
        lines = [["rows", "n", *nominal, "shift", "spread", "p (Holm)"]]
        for group in self.groups:
            name = f"y{group.output}, {group.where}" if self.n_outputs > 1 else group.where
            shares = [f"{100 * level[1]:.1f}" for level in group.coverage]
            numbers = [f"{group.shift:+.2f}", f"{group.spread:.2f}", f"{min(group.adjusted.values()):.2g}"]
            lines.append([name, str(group.n), *shares, *numbers])
        for pair in self.dependence:
            name = f"y{pair.outputs[0]} times y{pair.outputs[1]}"
            blank = [""] * len(nominal)
            lines.append([name, str(self.n_rows), *blank, f"{pair.excess:+.2f}", "", f"{pair.adjusted:.2g}"])
        return aligned(lines, rule=True)

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain JSON types, without the values of single rows; None where undefined."""
        of_rows = {
            "ball_sizes",
            "sparse",
            "extrapolated",
            "pit",
            "mean",
            "std",
            "residual",
            "place",
            "place_name",
        }
        found = {name: value for name, value in vars(self).items() if name not in of_rows}
        found |= {"calibrated": self.calibrated, "verdict": self.verdict}
        found["ball_size_quantiles"] = np.quantile(self.ball_sizes, [0, 0.25, 0.5, 0.75, 1]).tolist()
        found["sparse_rows"] = np.flatnonzero(self.sparse).tolist()
        outside = self.extrapolated
        found["extrapolated_rows"] = None if outside is None else np.flatnonzero(outside).tolist()
        return {name: _plain(value) for name, value in found.items()}

    def plot(self, output: int = 0, axes: Any = None) -> Any:
        """Four panels of one output: PIT, coverage, PIT along an input, spread. Returns the Axes."""
        k = check_count(output, "output", 0, self.n_outputs - 1)
        overall = next(group for group in self.groups if group.output == k)
        title = self.verdict[0].split(":")[0] + (f" (output {k})" if self.n_outputs > 1 else "")
        arrays = self.pit[:, k], np.array(overall.coverage), self.place, self.place_name
        return diagnosis_panels(*arrays, self.std[:, k], self.residual[:, k], title, axes)

    def __repr__(self) -> str:
        ratio = ", ".join(f"{value:.3g}" for value in self.spread_ratio)
        numbers = f"{self.n_rows} rows, {self.n_samples} draws, score {self.score:.4g}, residual / SD {ratio}"
        return "\n  ".join([f"Diagnosis({numbers})", *self.verdict])


def diagnose(
    y: Any,
    samples: Any,
    x: Any,
    *,
    x_train: Any = None,
    y_train: Any = None,
    delta: float | None = None,
    norm: Norm | None = None,
    coverages: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95),
    n_regions: int = 4,
    names: Sequence[str] | None = None,
    random_state: Any = None,
) -> Diagnosis:
    r"""Whether draws can be trusted, on rows they were **not** fitted to: a verdict, a table, a picture.

    ``y`` is (N,) or (N, d), ``samples`` (S, N) or (S, N, d) as ``sample`` gives them, independent from row to
    row, and ``x`` (N, p). The place of y among its draws (``metrics.pit``) is tested in all rows and in
    ``n_regions`` quantile groups of predicted mean, predicted SD and the three most relevant columns of x:
    too high or low, too narrow or wide, the wrong shape, and for several outputs whether pairs of them go
    together as in the draws. From S = 40 on, some draws (every second, at most about 50) make these groups
    and the others place y. The tests are exact for any S >= 2 and adjusted by Holm, so that a calibrated
    sampler is called "not calibrated" with a chance of at most .05. Coverage is the share of rows whose PIT
    is in the middle, free of the bias that quantiles of few draws have.

    The score is compared with a base rate that ignores x: draws of ``y_train``, or of the other rows of y.
    Inputs are compared with ``x_train``, or with the other rows of x: rows with fewer than 5 of these within
    ``delta`` in ``norm`` are ``sparse`` (by default x in SDs, and the delta at which 1 % of these are).
    With ``x_train``, rows are ``extrapolated`` if outside its range in a column, or farther from the nearest
    training row than 99.5 % of training rows are from each other's nearest. ``names`` are those of the
    columns of x; a data frame brings its own.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=400)
    >>> y, draws = x + x * rng.normal(size=400), x + x * rng.normal(size=(100, 400))
    >>> diagnose(y, draws, x, random_state=0).verdict[0]
    'Calibrated as far as 400 rows can tell: a mean off by 0.2 SD or a spread by 15 % would likely show.'
    >>> diagnose(y, x + 0.6 * (draws - x), x, random_state=0).verdict[0]
    'Not calibrated: the draws are too narrow, y scatters 1.5 times as widely as they do (p = ...'
    """
    called = [str(name) for name in (getattr(x, "columns", ()) if names is None else names)]
    y, samples, x = _checked(y, samples, x)
    called = _input_names(called, x.shape[1], given=names is not None)
    levels = tuple(check_probability(level, "coverages") for level in np.atleast_1d(coverages).tolist())
    n_regions = check_count(n_regions, "n_regions", 1)
    rng = np.random.default_rng(seed_of(random_state))
    training = None if x_train is None else _like(x_train, x, "x_train")
    outputs = None if y_train is None else _like(y_train, y, "y_train")
    if training is not None and outputs is not None:
        _warn_of_seen(x, y, training, outputs)
    (n, d), pairs = y.shape, output_pairs(y.shape[1], rng)
    rows = RowStatistics.of(y, samples, pairs, rng)
    groups, order = check_groups(rows, x, called, levels, n_regions)
    groups, dependence, n_tests = adjusted(groups, check_pairs(rows.joint, pairs))
    spreads = [spread_ratio(y[:, k] - rows.mean[:, k], rows.std[:, k], len(samples)) for k in range(d)]
    return Diagnosis(
        n_rows=n,
        n_samples=len(samples),
        n_outputs=d,
        groups=tuple(groups),
        dependence=tuple(dependence),
        n_tests=n_tests,
        crps=tuple(rows.crps.mean(0).tolist()),
        **skill(y, samples, rows.crps, outputs, rng),
        spread_ratio=tuple(ratio for ratio, _ in spreads),
        spread_interval=tuple(interval for _, interval in spreads),
        constant_draws=tuple(((rows.std == 0) & (rows.mean != y)).sum(0).tolist()),
        delta_given=delta is not None,
        **check_inputs(x, training, delta, norm, rng),
        pit=rows.pit,
        mean=rows.mean,
        std=rows.std,
        residual=y - rows.mean,
        place=x[:, order[0]],
        place_name=called[order[0]],
    )


def _checked(y: Any, samples: Any, x: Any) -> tuple[Array, Array, Array]:
    """Float64 y (N, d), samples (S, N, d) in their own type, float64 x (N, p)."""
    y, samples, x = as_array(y, "y"), as_array(samples, "samples"), as_rows(x).astype(np.float64)
    if y.ndim not in (1, 2):
        raise ValueError(f"y has shape {y.shape}; expected (N,), or (N, d) with d outputs.")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if samples.ndim == 3 and samples.shape[2] == 1 and y.ndim == 1:
        samples = samples[..., 0]
    if samples.shape[1:] != y.shape:
        expected = ", ".join(["S", *map(str, y.shape)])
        raise ValueError(
            f"samples has shape {samples.shape} and y {y.shape}; the sample axis comes first, "
            f"so ({expected}) is expected."
        )
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}; they must be the same rows.")
    if len(y) < 2:
        raise ValueError("y has 1 row; one row says nothing about spread or coverage. Give 2, better 200.")
    if len(samples) < 2:
        raise ValueError("samples has 1 draw of each row; spread needs 2, better 200. Draw more.")
    return y.reshape(len(y), -1).astype(np.float64), samples.reshape(len(samples), len(y), -1), x


def _like(values: Any, rows: Array, name: str) -> Array:
    training = as_rows(values, name).astype(np.float64)
    if training.shape[1] != rows.shape[1]:
        of = name.split("_")[0]
        raise ValueError(
            f"{name} has {training.shape[1]} column(s) and {of} {rows.shape[1]}; they must agree."
        )
    return training


def _input_names(called: list[str], p: int, given: bool) -> list[str]:
    if given and len(called) != p:
        raise ValueError(f"names has {len(called)} entries and x {p} column(s); give one for each.")
    return called if len(called) == p else ["x"] if p == 1 else [f"x{i}" for i in range(p)]


def _warn_of_seen(x: Array, y: Array, x_train: Array, y_train: Array) -> None:
    if len(x_train) != len(y_train):
        raise ValueError(f"x_train has {len(x_train)} rows and y_train {len(y_train)}; they must be pairs.")
    share, beyond_chance = judge_seen(SeenRows.of(x_train, y_train, size=len(x_train)), x, y)
    if beyond_chance:
        warnings.warn(
            f"{100 * share:.0f} % of the rows are training rows, on which a fit looks better than it is. "
            "Diagnose on rows that it has not seen.",
            SeenRowsWarning,
            stacklevel=3,
        )


def _plain(value: Any) -> Any:
    """The same in JSON types."""
    if dataclasses.is_dataclass(value):
        return {name: _plain(v) for name, v in vars(value).items()}
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
