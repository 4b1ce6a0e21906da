"""Can the draws be trusted? Every check in one call, with a verdict, a table and a plot."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import ndtri

from localw2._validation import (
    Array,
    as_array,
    as_rows,
    check_count,
    check_probability,
    check_range,
    seed_from,
)
from localw2._wording import align, to_plain
from localw2.judging.diagnosis import checks
from localw2.judging.diagnosis.checks import FEW_NEAR, LEVEL
from localw2.judging.diagnosis.modes import check_modes
from localw2.judging.diagnosis.plots import draw_diagnosis
from localw2.judging.independence import (
    SHARED_NOISE,
    DependentDrawsWarning,
    choose_probe,
    describe_shared_noise,
    measure_shared_noise,
)
from localw2.judging.inputs import Input
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning, describe_seen, judge_seen
from localw2.models.sampler import SamplerDraws, as_inputs, encode_rows, find_owner, has_table

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods
    from localw2.balls.norms import Norm
    from localw2.judging.diagnosis.checks import Dependence, Group
    from localw2.judging.diagnosis.modes import Modes

_MEAN_ADVICE = "Improve the mean (base regressor, inputs), and check for drift since the training data."
ADVICE = {
    "narrow": (
        "Widen them: use calibrate=True (--calibrate) or, with a network, more rows per ball (delta), the "
        "debiased loss or fewer epochs."
    ),
    "wide": (
        "Narrow them: improve the mean, use calibrate=True (--calibrate) or, with a network, reduce delta (a "
        "slope inside a ball counts as spread)."
    ),
    "above": _MEAN_ADVICE,
    "below": _MEAN_ADVICE,
    "shape": "The model misses skewness or tails: try more rows or, with a network, more width or epochs.",
    "merged": "Use a model with several modes: law='balls' keeps modes that a network merges.",
    "split": (
        "Smooth the distribution: use more rows or, with a network, more rows per ball (delta) or fewer "
        "epochs."
    ),
    "dependence": "Fit the outputs jointly (SlicedW2, EnergyScore), and keep those of one draw together.",
}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """The result of ``diagnose``; the arrays at the end are (N,) or (N, d), with one entry per row.

    ``score`` is the mean CRPS or, for several outputs, the energy score with outputs in SDs of y; ``skill``
    is 1 - score / base_score, with its standard error. ``spread_ratio`` is the RMS residual divided by the
    predicted SD, for each output, with a 95 % interval (1 is right); ``constant_draws`` counts the rows in
    which all draws are equal and y differs; ``shared_noise`` is roughly how many rows share the noise of a
    draw, 1 if they are independent; ``modes`` compares the modes of y with those of its draws, from 20 rows
    and 40 draws on. ``training_share`` is the share of training rows among these, 0 if chance explains it:
    on them a judgement tells nothing of new rows, so ``to_dict`` has None for ``calibrated``. Numbers that
    cannot be computed are NaN, and None in ``to_dict``.
    """

    n_rows: int
    n_samples: int
    n_outputs: int
    training_share: float
    groups: tuple[Group, ...]
    dependence: tuple[Dependence, ...]
    modes: tuple[Modes, ...]
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
    shared_noise: float
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
    place_input: Input

    @property
    def place_name(self) -> str:
        """The name of the most relevant column of x, whose values are ``place``."""
        return self.place_input.name

    @property
    def valid(self) -> bool:
        """Whether draws are independent between rows, as far as was checked; the p-values need that."""
        return self.shared_noise <= SHARED_NOISE

    @property
    def calibrated(self) -> bool:
        """Whether no test failed, and the tests are valid; a calibrated sampler passes in 95 % of cases."""
        return self.valid and not self.failures

    @property
    def failures(self) -> list[tuple[str, str]]:
        """What failed, as pairs (kind, sentence): per output and kind all rows, or else the worst region.

        A shift that a wrong spread explains is not reported as a wrong mean, nor is a dependence that wrong
        outputs explain, nor a shape that wrong modes explain.
        """
        return [(kind, words) for _, kind, words in self._findings]

    @property
    def _findings(self) -> list[tuple[bool, str, str]]:
        """The failures, and before each whether it is of a region only."""
        found: list[tuple[bool, float, int, str, str]] = []
        for each in self.wrong_modes:
            kind, words = each.describe(self.n_outputs > 1)
            words = f"{words} (p = {each.adjusted:.2g})"
            found.append((bool(each.where), each.adjusted, each.outputs[0], kind, words))
        scattered = {group.output for group in self.groups if group.adjusted["spread"] <= LEVEL}
        for group in self.groups:
            whose = f" of output {group.output}" if self.n_outputs > 1 else ""
            for test in self._list_failed(group, group.output in scattered):
                p = group.adjusted[test]
                kind, words = group.describe(test, whose)
                most = self._describe_worst_region(group, kind) if group.overall else ""
                found.append((not group.overall, p, group.output, kind, f"{words}{most} (p = {p:.2g})"))
        for pair in self.dependence:
            if pair.adjusted <= LEVEL and pair not in self._unclear_pairs:
                j, k = pair.outputs
                side = "more" if pair.excess > 0 else "less"
                words = f"Outputs {j} and {k} vary together {side} than their draws (p = {pair.adjusted:.2g})"
                found.append((False, pair.adjusted, j, f"dependence {k}", words))
        first: dict[tuple[int, str], tuple[bool, str]] = {}
        for regional, _, output, kind, words in sorted(found):
            first.setdefault((output, kind), (regional, words))
        return [(regional, kind.split()[0], words) for (_, kind), (regional, words) in first.items()]

    def _list_failed(self, group: Group, scattered: bool) -> list[str]:
        """The failed tests of a group that have no other explanation; ``scattered``: the spread failed."""
        failed = [test for test, p in group.adjusted.items() if p <= LEVEL]
        modes = any(group.output in each.outputs for each in self.wrong_modes)
        if (modes or len(failed) > 1) and "shape" in failed:  # other errors make the shape fail as well
            failed.remove("shape")
        low, high = self.spread_interval[group.output]
        if modes and low <= 1 <= high and "spread" in failed:  # ranks scatter wrongly, the values do not
            failed.remove("spread")
        if scattered and "shift" in failed:
            # Regions made from y and few draws together sort extreme y by their sign.
            knows_y = self.n_samples < checks.ENOUGH_DRAWS and group.by in checks.PREDICTIONS
            if knows_y or self.n_tests * group.shift_pvalue_at_spread > LEVEL:
                failed.remove("shift")
        return failed

    @property
    def wrong_modes(self) -> list[Modes]:
        """Where draws merge or split modes: single outputs, and of directions of the others the clearest."""
        wrong = [each for each in self.modes if each.adjusted <= LEVEL]
        alone = [each for each in wrong if len(each.outputs) == 1]
        known = {each.outputs[0] for each in alone}
        together = [each for each in wrong if len(each.outputs) > 1 and not known & {*each.outputs}]
        return alone + sorted(together, key=lambda each: each.adjusted)[:1]

    @property
    def _unclear_pairs(self) -> list[Dependence]:
        """Failed pairs in which an output is wrong on its own, which makes the product wrong as well."""
        wrong = {group.output for group in self.groups if min(group.adjusted.values()) <= LEVEL}
        wrong |= {each.outputs[0] for each in self.wrong_modes if len(each.outputs) == 1}
        return [pair for pair in self.dependence if pair.adjusted <= LEVEL and wrong & {*pair.outputs}]

    def _describe_worst_region(self, overall: Group, kind: str) -> str:
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
        if excess(worst) <= 3:
            return ""
        size = f"{worst.spread:.2g} times" if name == "spread" else f"{abs(worst.shift):.2g} SD"
        return f", and {size}{worst.where_clause}"

    @property
    def verdict(self) -> list[str]:
        """Sentences: the judgement, what is wrong and what to do, the skill, the rows to distrust."""
        found = self._findings
        # The usual sum of two normal quantiles: what the strictest of Holm's tests finds four times in five.
        reach = (ndtri(1 - LEVEL / (2 * self.n_tests)) + ndtri(0.8)) / math.sqrt(self.n_rows)
        spread = 100 * math.expm1(reach / math.sqrt(2))
        errors = f"an error of {reach:.2g} SD in the mean or {spread:.2g} % in the spread"
        if not self.valid:
            lines = ["Not valid: the draws share noise between rows. Draw independently for every row."]
        elif found:
            regional = all(of_region for of_region, _, _ in found)
            judgement = "Not calibrated in some regions" if regional else "Not calibrated"
            lines = [f"{judgement}. {found[0][2]}."]
            lines += [f"{words}." for _, _, words in found[1:4]]
            lines += [f"table() lists {len(found) - 4} more findings."] if len(found) > 4 else []
            if not self.training_share:  # of which it would be no advice
                lines += list(dict.fromkeys(ADVICE[kind] for _, kind, _ in found[:4]))
            if self._unclear_pairs:
                lines += ["The dependence between outputs cannot be judged until each is right on its own."]
        elif self.training_share:
            lines = [f"No error shows in these {self.n_rows} rows, which says little of new ones."]
        elif self.n_rows < checks.FEW_ROWS:
            lines = [f"Too few rows to tell: with {self.n_rows} rows only {errors} would probably show."]
        else:
            lines = [f"Calibrated as far as {self.n_rows} rows can tell: {errors} would probably show."]
        stuck = max(self.constant_draws)
        if self.valid and found and stuck > 0.01 * self.n_rows:
            lines += [f"The spread has collapsed in {stuck} rows: all their draws are equal, but not to y."]
        if self.training_share:
            lines.append(describe_seen(self.training_share, self.n_rows))
        return lines + self._describe_skill() + self._describe_inputs()

    def _describe_skill(self) -> list[str]:
        if not math.isfinite(self.skill):
            return []
        score = "CRPS" if self.n_outputs == 1 else "energy score"
        percent = f"{100 * abs(self.skill):.0f} %"
        side = f"{percent} lower than" if self.skill >= 0 else f"{percent} higher than"
        if percent == "0 %":
            side = "within 1 % of"
        doubt = ", not a clear improvement" if abs(self.skill) <= 2 * self.skill_error else ""
        lines = [f"The {score} is {side} that of {self.base} (+- {100 * self.skill_error:.2g} %{doubt})."]
        if self.skill < -2 * self.skill_error:
            why = "x may say nothing about y, or the fit had too few rows"
            if self._findings and self.valid:  # otherwise they are not named
                why = f"what is named above may be the reason, or {why}"
            lines.append(f"So the model is worse than no model here: {why}.")
        return lines

    def _describe_inputs(self) -> list[str]:
        lines = []
        # By construction the default delta leaves 1 % of the rows sparse, which is nothing to report.
        usual = 0.0 if self.delta_given else 0.01 * self.n_rows
        if self.sparse.sum() > usual + 3 * math.sqrt(usual):
            whose = "other" if self.extrapolated is None else "training"
            few = f"fewer than {FEW_NEAR} {whose} rows within {self.delta:.3g}"
            if math.isnan(self.delta):
                few = f"fewer than {FEW_NEAR} other rows in their balls"
            lines.append(f"{self.sparse.sum()} of {self.n_rows} rows have {few}, so little is known there.")
        if self.extrapolated is not None and self.extrapolated.any():
            rows = f"{self.extrapolated.sum()} of {self.n_rows} rows"
            lines.append(f"{rows} lie outside the training inputs, where the model extrapolates.")
        return lines

    def table(self) -> str:
        """One line per group: rows, observed coverage in %, shift, spread and smallest adjusted p-value."""
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
        for each in self.modes:
            name = f"modes of {each.direction}" if self.n_outputs > 1 else "modes"
            blank = [""] * (len(nominal) + 2)
            lines.append([name, str(each.n), *blank, f"{each.adjusted:.2g}"])
        return align(lines, rule=True)

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain JSON types, without the values of individual rows; None where undefined."""
        of_rows = [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]
        hidden = {*of_rows, "extrapolated", "place_input"}
        found = {name: value for name, value in vars(self).items() if name not in hidden}
        found |= {name: [vars(entry) for entry in found[name]] for name in ("groups", "dependence")}
        found["modes"] = [asdict(entry) for entry in self.modes]
        calibrated = None if self.training_share else self.calibrated
        found |= {"calibrated": calibrated, "valid": self.valid, "verdict": self.verdict}
        found["ball_size_quantiles"] = np.quantile(self.ball_sizes, [0, 0.25, 0.5, 0.75, 1])
        found["sparse_rows"] = np.flatnonzero(self.sparse)
        outside = self.extrapolated
        found["extrapolated_rows"] = None if outside is None else np.flatnonzero(outside)
        plain: dict[str, Any] = to_plain(found)
        return plain

    def plot(self, output: int = 0, axes: Any = None) -> Any:
        """Draw four panels for one output: PIT, coverage, PIT along an input, spread. Returns the Axes.

        Where the draws merge or split modes of y, the last panel shows these instead of the spread.
        """
        return draw_diagnosis(self, check_count(output, "output", 0, self.n_outputs - 1), axes)

    def __repr__(self) -> str:
        ratio = ", ".join(f"{value:.3g}" for value in self.spread_ratio)
        numbers = f"{self.n_rows} rows, {self.n_samples} draws, score {self.score:.4g}, residual / SD {ratio}"
        return "\n  ".join([f"Diagnosis({numbers})", *self.verdict])


def diagnose(
    x: Any,
    y: Any,
    sampler: Any,
    *,
    n_samples: int = 200,
    x_train: Any = None,
    y_train: Any = None,
    delta: float | Neighborhoods | None = None,
    norm: Norm | None = None,
    coverages: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95),
    n_regions: int = 4,
    names: Sequence[str] | None = None,
    random_state: Any = None,
) -> Diagnosis:
    r"""Judge whether draws can be trusted, on rows the sampler was **not** fitted to.

    ``x`` is (N, p) and ``y`` (N,) or (N, d). ``sampler`` is a function of x that returns one draw for every
    row, of the shape of y, or has (or is) a method ``sample(X, n_samples=..., random_state=...)``, as the
    estimators do, or is a ``RandomMap`` or another torch module, which gets x as a tensor in the precision of
    its parameters; ``n_samples`` draws are made. It may also be draws already made, (S, N) or (S, N, d), as
    ``sample`` returns them. Draws must be independent between rows, which is checked (roughly, from 10 draws
    and 20 rows on); if they are not, there is a warning, and the verdict is "not valid".

    The rank of y among its draws (``metrics.pit``) is tested in all rows and in ``n_regions`` quantile groups
    of the predicted mean, the predicted SD and the three most relevant columns of x (of a categorical one, in
    its most frequent categories): is y too high or too low, are the draws too narrow or too wide, is the
    shape wrong, and for several outputs, do pairs of them vary together as in the draws? From S = 40 on, some
    draws (every second, at most about 50) define the groups and the others rank y, and one more test asks
    whether the draws merge modes of y or split one (``modes``). The tests are exact for any S >= 2 and
    Holm-adjusted, so that a calibrated sampler is called "not calibrated" with a probability of at most .05.
    Coverage is the share of rows whose PIT is in the middle, which avoids the bias of quantiles of few draws.

    The score is compared with that of a forecast that ignores x: draws from ``y_train``, or from the other
    rows of y. Inputs are compared with ``x_train``, or with the other rows of x: rows with fewer than 5 of
    these within ``delta`` in ``norm`` are ``sparse`` (by default with x in SDs, and the delta at which 1 % of
    the rows are). ``delta`` may also be balls of the rows x, such as ``Neighborhoods.leaves(forest, x)``, of
    which a row should have at least 5 others in its own, on average. With ``x_train``, rows are
    ``extrapolated`` if a column is outside its range, or if they are farther from the nearest training row
    than 99.5 % of training rows are from theirs. ``names`` are the names of the columns of x; a data frame
    brings its own.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=(400, 1))
    >>> y = x[:, 0] + x[:, 0] * rng.normal(size=400)
    >>> right = lambda x: x[:, 0] + x[:, 0] * rng.normal(size=len(x))
    >>> print(diagnose(x, y, right, random_state=0).verdict[0])
    Calibrated as far as 400 rows can tell: an error of 0.2 SD in the mean or 15 % in the spread would ...
    >>> draws = x[:, 0] + 0.6 * x[:, 0] * rng.normal(size=(100, 400))
    >>> print(diagnose(x, y, draws, random_state=0).verdict[0])
    Not calibrated. The draws are too narrow: y scatters 1.4 times as widely (p = ...

    Two modes that the draws merge are named, although mean and spread are right:

    >>> from localw2.datasets import Humps
    >>> truth = Humps()
    >>> x, y = truth.sample(400, random_state=0)
    >>> merged = truth.mean(x) + truth.std(x) * rng.normal(size=(100, 400))
    >>> print(diagnose(x, y, merged, random_state=0).verdict[0])
    Not calibrated. Two modes of the data are one in the draws: ... % of y but 38 % of the draws lie ...
    """
    owner = find_owner(sampler)
    inputs, y = _check_data(encode_rows(owner, x), y)
    places, columns = _list_columns(owner, x, inputs, names)
    levels = tuple(check_probability(level, "coverages") for level in np.atleast_1d(coverages).tolist())
    n_regions = check_count(n_regions, "n_regions", 1)
    rng = np.random.default_rng(seed_from(random_state))
    samples = sampler
    if not (isinstance(sampler, list | tuple) or hasattr(sampler, "__array__")):  # not draws already made
        n_samples = check_count(n_samples, "n_samples", 2, why="one draw shows no spread")
        samples = SamplerDraws.of(sampler, as_inputs(owner, x, inputs), y.shape).many(n_samples, rng)
    y, samples = _check_samples(y, samples)
    training = None if x_train is None else _check_training(encode_rows(owner, x_train), inputs, "x_train")
    outputs = None if y_train is None else _check_training(y_train, y, "y_train")
    training_share = _find_seen(owner, training, outputs, inputs, y)
    shared_noise = _check_independent(samples)
    (n, d), pairs = y.shape, checks.choose_pairs(y.shape[1], rng)
    rows = checks.RowStatistics.of(y, samples, pairs, rng)
    groups, order = checks.check_groups(rows, places, columns, levels, n_regions)
    modes = check_modes(y, samples, rows, places, columns, order, n_regions)
    groups, dependence, modes, n_tests = checks.adjust_pvalues(
        groups, checks.check_pairs(rows.joint, pairs), modes
    )
    residual = y - rows.mean
    spreads = [checks.measure_spread(residual[:, k], rows.std[:, k], len(samples)) for k in range(d)]
    return Diagnosis(
        n_rows=n,
        n_samples=len(samples),
        n_outputs=d,
        training_share=training_share,
        groups=tuple(groups),
        dependence=tuple(dependence),
        modes=tuple(modes),
        n_tests=n_tests,
        crps=tuple(rows.crps.mean(0).tolist()),
        **checks.measure_skill(y, samples, rows.crps, outputs, rng),
        spread_ratio=tuple(ratio for ratio, _ in spreads),
        spread_interval=tuple(interval for _, interval in spreads),
        constant_draws=tuple(((rows.std == 0) & (rows.mean != y)).sum(0).tolist()),
        shared_noise=shared_noise,
        delta_given=delta is not None,
        **checks.check_inputs(inputs, training, delta, norm, rng),
        pit=rows.pit,
        mean=rows.mean,
        std=rows.std,
        residual=residual,
        place=places[:, order[0]],
        place_input=columns[order[0]],
    )


def _check_data(x: Any, y: Any) -> tuple[Array, Array]:
    """Float64 x (N, p), and y (N,) or (N, d) with d > 1."""
    x, y = as_rows(x).astype(np.float64), as_array(y, "y")
    if y.ndim not in (1, 2):
        raise ValueError(f"y has shape {y.shape}; expected (N,), or (N, d) with d outputs.")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}; they must be the same rows.")
    if len(y) < 2:
        raise ValueError("y has 1 row, which says nothing about spread or coverage. Pass 2, better 200.")
    check_range(y.reshape(len(y), -1).astype(np.float64), "y")
    return x, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _check_samples(y: Array, samples: Any) -> tuple[Array, Array]:
    """Float64 y (N, d), and samples (S, N, d) in their own type."""
    samples = as_array(samples, "samples")
    if samples.ndim >= 2 and samples.size:
        ends = [np.atleast_1d(end(samples, axis=(0, 1))) for end in (np.min, np.max)]
        check_range(np.stack(ends).astype(np.float64), "samples")
    if samples.ndim == 3 and samples.shape[2] == 1 and y.ndim == 1:
        samples = samples[..., 0]
    if samples.shape[1:] != y.shape:
        expected = ", ".join(["S", *map(str, y.shape)])
        shapes = f"samples has shape {samples.shape} and y {y.shape}"
        raise ValueError(f"{shapes}; the sample axis comes first, so ({expected}) is expected.")
    return y.reshape(len(y), -1).astype(np.float64), samples.reshape(len(samples), len(y), -1)


def _check_training(values: Any, rows: Array, name: str) -> Array:
    training = as_rows(values, name).astype(np.float64)
    if training.shape[1] != rows.shape[1]:
        of = name.split("_")[0]
        raise ValueError(
            f"{name} has {training.shape[1]} column(s) but {of} has {rows.shape[1]}; they must agree."
        )
    return training


def _list_columns(owner: Any, x: Any, inputs: Array, names: Any) -> tuple[Array, list[Input]]:
    """The columns (N, p) that regions are made of, those of the table if there is one, and their meaning."""
    if has_table(owner):
        places, columns = owner.list_inputs(x, names)
        return places, columns
    p = inputs.shape[1]
    called = getattr(x, "columns", ()) if names is None else names
    if names is not None and len(called) != p:
        raise ValueError(f"names has {len(called)} entries but x has {p} column(s); pass one per column.")
    if len(called) != p:
        called = ["x"] if p == 1 else [f"x{i}" for i in range(p)]
    return inputs, [Input(str(name), "number") for name in called]


def _check_independent(samples: Array) -> float:
    """How many rows share the noise of a draw (S, N, d), with a warning if they are many."""
    rows, columns = choose_probe(*samples.shape[1:])
    probe = samples[:, rows][..., columns]
    shared_noise = measure_shared_noise(probe - probe[0])  # so that equal draws differ by exactly 0
    if shared_noise > SHARED_NOISE:
        consequence = "Ranks then err together in many rows, and the verdict is not valid."
        warnings.warn(
            describe_shared_noise(shared_noise, "the", consequence), DependentDrawsWarning, stacklevel=3
        )
    return shared_noise


def _find_seen(owner: Any, x_train: Array | None, y_train: Array | None, x: Array, y: Array) -> float:
    """The share of training rows: of those that were passed, or else of those that the sampler remembers.

    If it is more than chance explains, a warning says so; otherwise it is 0.
    """
    seen = getattr(owner, "seen_rows_", None)
    if x_train is not None and y_train is not None:
        if len(x_train) != len(y_train):
            n, m = len(x_train), len(y_train)
            raise ValueError(f"x_train has {n} rows and y_train {m}; they must be pairs.")
        seen = SeenRows.of(x_train, y_train, size=len(x_train))
    share, beyond_chance = judge_seen(seen, x, y) if isinstance(seen, SeenRows) else (0.0, False)
    if beyond_chance:
        warnings.warn(describe_seen(share, len(x)), SeenRowsWarning, stacklevel=3)
    return share if beyond_chance else 0.0
