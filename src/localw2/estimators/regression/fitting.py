"""From rows of numbers to a law: the mean, the members around it, and their weights."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, take_rows
from localw2.estimators.regression.ball_law import BallLaw, Draws, learn_balls
from localw2.estimators.regression.law import ConditionalLaw
from localw2.estimators.regression.mean import FEW_ROWS, count_folds, cross_fit
from localw2.estimators.regression.network import Network
from localw2.estimators.regression.outcomes import MATCHED_DRAWS, Outcomes, Rounding, rows_to_match
from localw2.estimators.regression.pooling import LEAST, find_narrowing, mean_score, pool_weights
from localw2.estimators.strays import find_strays, warn_of_strays
from localw2.judging.valleys import N_BINS, bin_values, find_valley, measure_grain
from localw2.metrics import crps
from localw2.training.progress import Stages

if TYPE_CHECKING:
    import torch

    from localw2.estimators.regression.ball_law import BallMember
    from localw2.estimators.regression.mean import CrossFit, FoldedMean
    from localw2.estimators.regression.member import Member
    from localw2.estimators.regression.network import TrainedNetwork
    from localw2.estimators.tables import Columns
    from localw2.training.config import FitConfig

MANY = 400  # rows from which on one held fold is enough
TRIED_ROWS, TRIED_DRAWS = 3000, 100  # held-out rows that members are weighted by, and their draws there,
TRIED_TREES = 20  # of forests that are only grown for this
STRETCHES = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3)  # factors on the spread of residuals in balls
FEW_COLUMNS = 2  # in which a network is tried
# Standard errors by which balls must be better for a network of noise to be tried, and with it to be taken.
BETTER, CLEARLY = 0.5, 2.0
MERGED = 0.01  # the p-value below which held-out rows have modes that a network merges
_PURPOSE = 6  # keeps these random numbers apart from others of the same seed


@final
@dataclass(frozen=True, eq=False)
class Recipe:
    """How a law is learned: the settings of a regressor, checked, and a seed.

    ``chosen_base`` names a candidate of ``base="auto"`` that is known to be the best, ``fingerprint`` tells
    the checkpoint of this fit from others', and ``title`` says which of several fits it is.
    """

    columns: Columns
    outcomes: Outcomes
    laws: tuple[Network | BallLaw, ...]
    on_trial: Network | None
    base: Any
    delta: Any
    norm: Any
    bounds: Any
    values: Any
    device: torch.device
    n_jobs: Any
    seed: int
    verbose: bool
    fingerprint: str
    checkpoint: str | None = None
    history: Any = None
    chosen_base: FoldedMean | None = None
    title: str = ""


def learn(
    recipe: Recipe,
    x: Array,
    y: Array,
    weights: Array | None = None,
    in_part: bool = False,
    numbers: Array | None = None,
) -> tuple[ConditionalLaw, TrainedNetwork | None]:
    """Learn the law of outputs y (N, d) given x (N, p); ``in_part`` if it is one of many, to calibrate.

    ``weights`` (N,) are those of the rows, and ``numbers`` (N,) those that the rows have in the user's table,
    if it has more.
    """
    strays = find_strays(y)
    if len(strays):
        if not in_part:
            warn_of_strays(strays, y, stacklevel=3, numbers=numbers)
        x, y = np.delete(x, strays, axis=0), np.delete(y, strays, axis=0)
        weights = None if weights is None else np.delete(weights, strays)
        recipe = replace(recipe, outcomes=Outcomes.of(y, recipe.bounds, recipe.values))
    networks = [law for law in (*recipe.laws, recipe.on_trial) if isinstance(law, Network)]
    for network in networks:
        _configure(recipe, network)  # first: it checks the settings of training
    alone = len(recipe.laws) == 1 and isinstance(recipe.laws[0], Network)
    with Stages(recipe.verbose, recipe.title) as stages:
        fitted = cross_fit(
            recipe.base,
            x,
            y,
            recipe.columns,
            recipe.seed % 2**32,
            chosen=recipe.chosen_base,
            shift=not networks or networks[0].standardize,
            held=() if alone else hold_folds(len(x)),
            stages=stages,
            weights=weights,
        )
        if isinstance(recipe.laws[0], Network) and (alone or not fitted.without):
            stages.pause()
            trained = _train(recipe, recipe.laws[0], fitted, x, y)
            return _assemble(recipe, fitted, [trained.member], np.ones(1)), trained
        try:
            trials, weights = _try_laws(recipe, fitted, x, y, stages)
        except KeyboardInterrupt:
            if in_part:
                raise
            warnings.warn(
                "interrupted before the candidates were weighted: this fit draws from balls of similar rows.",
                stacklevel=5,
            )
            trials, weights = [], np.ones(1)
        if not trials:  # nothing to weigh laws by
            first = next((law for law in recipe.laws if isinstance(law, BallLaw)), BallLaw())
            return _assemble(recipe, fitted, [*_grow(recipe, [first], fitted, x, y)], np.ones(1)), None
        return _finish(recipe, fitted, trials, weights, x, y, stages)


def _try_laws(
    recipe: Recipe, fitted: CrossFit, x: Array, y: Array, stages: Stages
) -> tuple[list[_Trial], Array]:
    """What every law says of rows that it has not seen, and the weights that follow; () if none are held."""
    if not fitted.without:
        return [], np.ones(1)
    stages.start("comparing distributions", 1 + len(fitted.without))
    trials = _try_balls(recipe, fitted, x, y, stages)
    networks = [law for law in recipe.laws if isinstance(law, Network)]
    stages.pause()
    trials += [_try_network(recipe, fitted, law, x, y) for law in networks]
    if recipe.on_trial is None or not _worth_training(fitted):
        return trials, _weigh(trials)
    # Random weights cannot split a law, nor follow how a dependence changes: noise as an input can.
    if y.shape[1] > 1:
        trials.append(_try_network(recipe, fitted, Network.with_noise(), x, y))
        return trials, _weigh(trials)
    smooth = _try_network(recipe, fitted, recipe.on_trial, x, y)
    merged = _merges_modes(smooth)
    if merged or _are_better(trials, smooth, BETTER):
        trials.append(_try_network(recipe, fitted, Network.with_noise(), x, y))
        if merged or _are_better(trials, smooth, CLEARLY):
            return trials, _weigh(trials)
    if len(x) < MANY:  # too few held-out rows to take a network alone
        trials.append(smooth)
        return trials, _weigh(trials)
    return [smooth], np.ones(1)


def _finish(
    recipe: Recipe,
    fitted: CrossFit,
    trials: list[_Trial],
    weights: Array,
    x: Array,
    y: Array,
    stages: Stages,
) -> tuple[ConditionalLaw, TrainedNetwork | None]:
    """Learn the laws that have weight on all rows."""
    kept = [(trial, weight) for trial, weight in zip(trials, weights, strict=True) if weight > 0]
    narrowing = _narrow(kept, recipe.outcomes)
    grown: dict[BallLaw, BallMember] = {}
    if any(isinstance(trial.law, BallLaw) for trial, _ in kept):
        stages.start("finding similar rows", 1)
        # The laws that share a forest with a kept one as well: its balls are then those of the trial.
        shared = {trial.law.on for trial, _ in kept if isinstance(trial.law, BallLaw)}
        laws = [law for law in recipe.laws if isinstance(law, BallLaw) and law.on in shared]
        grown = dict(zip(laws, _grow(recipe, laws, fitted, x, y), strict=True))
        stages.advance()
    members: list[Member] = []
    trained = None
    for trial, _ in kept:
        if isinstance(trial.law, Network):
            stages.pause()
            trained = _train(recipe, trial.law, fitted, x, y)
            members.append(trained.member)
        else:
            members.append(trial.finish(grown[trial.law], narrowing, x, y, recipe.seed))
    return _assemble(recipe, fitted, members, np.array([weight for _, weight in kept])), trained


def hold_folds(n: int) -> tuple[tuple[int, ...], ...]:
    """The sets of folds that show how members should be weighted, one set at a time.

    Of 3 rows none can be spared, of less than 20 every one is needed. Of few rows, whose folds are small, two
    folds are held out at once. The last folds are taken: the first ones tell what the mean is made of.

    >>> hold_folds(3), hold_folds(8), hold_folds(100), hold_folds(300), hold_folds(1000)
    ((), ((4,), (5,), (6,), (7,)), ((8, 9),), ((3,), (4,)), ((4,),))
    """
    last = count_folds(n) - 1
    if n < 20:
        return tuple((last - i,) for i in (3, 2, 1, 0)) if n >= 4 else ()
    if n < FEW_ROWS:
        return ((last - 1, last),)
    return ((last - 1,), (last,)) if n < MANY else ((last,),)


@final
@dataclass(frozen=True, eq=False)
class _Trial:
    """What a law, learned without some folds, says of rows in them: ``draws`` (S, N, d) for outputs y (N, d).

    ``sets`` (N,) number the held sets that the rows are in, and ``weights`` (N,) are those of the rows, if
    they have any. Of a ball law, ``member`` is that of the ``options``, each with its stretch, that suits
    these rows best, and ``parts`` are what its draws are made of.
    """

    law: Network | BallLaw
    draws: Array
    y: Array
    sets: Array
    weights: Array | None = None
    member: BallMember | None = None
    options: tuple[BallMember, ...] = ()
    parts: Draws | None = None

    @classmethod
    def of_balls(
        cls,
        law: BallLaw,
        options: tuple[BallMember, ...],
        parts: Draws,
        y: Array,
        sets: Array,
        weights: Array | None = None,
    ) -> _Trial:
        """That of a ball law, with the best of some stretches."""
        drawn = [one.combine(parts) for one in options]
        best = int(np.argmin([mean_score(draws, y, weights) for draws in drawn]))
        return cls(law, drawn[best], y, sets, weights, options[best], options, parts)

    def take(self, rows: Array) -> _Trial:
        """The same for some rows only."""
        parts = None if self.parts is None else self.parts.take(rows)
        y, sets, weights = self.y[rows], self.sets[rows], take_rows(self.weights, rows)
        return replace(self, draws=self.draws[:, rows], y=y, sets=sets, weights=weights, parts=parts)

    def first_set(self) -> _Trial:
        """The same for the rows of the first held set only."""
        return self.take(self.sets == 0)

    def tuned_on(self, rows: Array) -> _Trial:
        """The same with the stretch that suits some of the rows best."""
        if self.parts is None:
            return self
        assert isinstance(self.law, BallLaw)
        own = self.take(rows)
        assert own.parts is not None
        member = _Trial.of_balls(self.law, self.options, own.parts, own.y, own.sets, own.weights).member
        assert member is not None
        return replace(self, member=member, draws=member.combine(self.parts))

    def narrow(self, factor: float) -> Array:
        """The draws with a factor on their spread; those of a network stay as they are."""
        if self.member is None or self.parts is None:
            return self.draws
        return replace(self.member, narrowing=factor).combine(self.parts)

    def finish(self, member: BallMember, narrowing: float, x: Array, y: Array, seed: int) -> BallMember:
        """A member learned on all rows, with what was found in the trial."""
        assert self.member is not None
        found = replace(member, stretch=self.member.stretch, narrowing=narrowing)
        (matched,) = _match([found], x, y, member.balls.weights, seed)
        return matched


def _try_balls(recipe: Recipe, fitted: CrossFit, x: Array, y: Array, stages: Stages) -> list[_Trial]:
    """What ball laws say of rows in each held set of folds, learned without it."""
    laws = [law for law in recipe.laws if isinstance(law, BallLaw)]
    quick = [replace(law, n_trees=min(law.n_trees, TRIED_TREES)) for law in laws]
    rng = np.random.default_rng([recipe.seed, _PURPOSE, 1])
    members: list[BallMember] = []
    parts: list[list[Draws]] = []
    rows, sets = [], []
    for number, (some, part) in enumerate(fitted.without):
        kept, held = _split_rows(fitted, some, rng)
        members = _grow(recipe, quick, part, x[kept], y[kept])
        centers = part.mean.predict_each(x[held]) if any(m.mean is not None for m in members) else None
        parts.append([member.draw_parts(x[held], TRIED_DRAWS, rng, centers) for member in members])
        rows.append(held)
        sets.append(np.full(len(held), number))
        stages.advance()
    all_held, where = np.concatenate(rows), np.concatenate(sets)
    target, weights = y[all_held], take_rows(fitted.weights, all_held)
    trials = []
    for law, member, found in zip(laws, members, zip(*parts, strict=True), strict=True):
        parts_of_draws = Draws.join(found)
        tried = [member] if law.on == "outcomes" else [replace(member, stretch=s) for s in STRETCHES]
        tried = _match(tried, x[kept], y[kept], take_rows(fitted.weights, kept), recipe.seed)
        trials.append(_Trial.of_balls(law, tuple(tried), parts_of_draws, target, where, weights))
    stages.advance()
    return trials


def _pile_up(outcomes: Outcomes, y: Array) -> bool:
    """Whether some of y (N, d) are on a bound, or an output is discrete: draws must match such shares."""
    on_bound = (y <= outcomes.lower).any() or (y >= outcomes.upper).any()
    return bool(on_bound) or any(v is not None for v in outcomes.values)


def _match(
    members: list[BallMember], x: Array, y: Array, weights: Array | None, seed: int
) -> list[BallMember]:
    """Members that differ in their spread only, with draws on each value as often as y (N, d) at rows x."""
    first = members[0]
    outcomes = first.rounding.outcomes
    if first.mean is None or not _pile_up(outcomes, y):
        return members
    rng = np.random.default_rng([seed, _PURPOSE, 2])
    rows = rows_to_match(len(x), rng, weights)
    parts = first.draw_parts(x[rows], MATCHED_DRAWS, rng)
    drawn = [member.put_together(parts).reshape(-1, y.shape[1]) for member in members]
    return [
        replace(member, rounding=Rounding.match(outcomes, draws, y, weights))
        for member, draws in zip(members, drawn, strict=True)
    ]


def _try_network(recipe: Recipe, fitted: CrossFit, law: Network, x: Array, y: Array) -> _Trial:
    """What a network says of rows in the first held folds, trained for half as long without them.

    If it was best early, training on all rows takes half as long too: scores hardly see a spread that is a
    little off, and are noisy, so it gets no shorter than that. A cycle of the learning rate is not halved.
    """
    some, part = fitted.without[0]
    rng = np.random.default_rng([recipe.seed, _PURPOSE, 1])
    kept, held = _split_rows(fitted, some, rng)
    own = replace(recipe, checkpoint=None, history=None)
    half = law if law.schedule == "one-cycle" else replace(law, epochs=max(1, law.epochs // 2))
    weights = take_rows(fitted.weights, held)
    trained = _train(own, half, part, x[kept], y[kept], (x[held], y[held], weights))
    fit = trained.fit
    if fit.stopped.startswith("interrupted"):
        raise KeyboardInterrupt
    draws = trained.member.sample(x[held], TRIED_DRAWS, rng)
    if fit.stopped.startswith("no better score"):
        law = half
    return _Trial(law, draws, y[held], np.zeros(len(held), np.int64), weights)


def _split_rows(fitted: CrossFit, folds: tuple[int, ...], rng: np.random.Generator) -> tuple[Array, Array]:
    """The rows outside of some folds, and some of those inside, ascending."""
    inside = np.isin(fitted.folds, folds)
    kept, held = np.flatnonzero(~inside), np.flatnonzero(inside)
    return kept, np.sort(rng.permutation(held)[: TRIED_ROWS // len(fitted.without)])


def _weigh(trials: list[_Trial]) -> Array:
    if not any(isinstance(trial.law, Network) for trial in trials):
        return pool_weights([trial.draws for trial in trials], trials[0].y, trials[0].weights)
    # A network takes longer than all else: one held set must do, for all members then.
    first = [trial.first_set() for trial in trials]
    found = []
    for some, rest in _halves(first[0]):
        # Stretches are not found on the rows that tell the weights: the network has none to be found.
        tuned = [trial.tuned_on(some).take(rest) for trial in first]
        found.append(pool_weights([trial.draws for trial in tuned], tuned[0].y, tuned[0].weights))
    mean = np.mean(found, axis=0)
    kept = np.where(mean >= LEAST, mean, 0.0)
    weights: Array = kept / kept.sum()
    return weights


def _halves(trial: _Trial) -> list[tuple[Array, Array]]:
    """The rows of a trial in two parts, once in either order."""
    even = np.arange(len(trial.y)) % 2 == 0
    return [(even, ~even), (~even, even)] if len(even) > 1 else [(even, even)]


def _are_better(balls: list[_Trial], network: _Trial, by: float) -> bool:
    """Whether others seem to predict better than a network, which then is not able to have the law's shape.

    ``by`` is in standard errors of the difference.
    Stretches and weights are found on one half of the rows and judged on the other: else balls, of which
    there are many to choose from, would be better on average where nothing is.
    """
    first = [trial.first_set() for trial in balls]
    gain = np.empty(len(network.y))
    for some, rest in _halves(network):
        tuned = [trial.tuned_on(some) for trial in first]
        halves = [trial.take(some) for trial in tuned]
        weights = pool_weights([half.draws for half in halves], halves[0].y, halves[0].weights)
        n_draws = np.round(weights * TRIED_DRAWS).astype(int)
        pooled = np.concatenate([trial.draws[:n, rest] for trial, n in zip(tuned, n_draws, strict=True)])
        y = network.y[rest]
        gain[rest] = (crps(y, network.draws[:, rest]) - crps(y, pooled))[:, 0]
    weights = np.ones(len(gain)) if network.weights is None else network.weights
    share = weights / weights.sum()
    mean = share @ gain
    return bool(mean > by * np.sqrt(share**2 @ (gain - mean) ** 2))


def _merges_modes(network: _Trial) -> bool:
    """Whether held-out y avoid an interval between two modes that the draws of a network fill."""
    y, draws = network.y[:, 0], network.draws[..., 0]
    mean, std = draws.mean(0), draws.std(0)
    if not (std > 0).all():
        return False
    z, drawn = (y - mean) / std, (draws - mean) / std
    aligned = (z - z.mean()) / (z.std() or 1.0)
    of_y, of_draws, of_aligned = (
        np.bincount(bin_values(each).ravel(), minlength=N_BINS + 1)[None, :N_BINS]
        for each in (z, drawn, aligned)
    )
    sizes, grain = np.array([len(y)]), measure_grain(y, std)
    p, valley = find_valley(of_y, of_y + of_draws, of_aligned, len(draws), sizes, grain)
    return valley is not None and valley.kind == "merged" and p < MERGED


def _narrow(kept: list[tuple[_Trial, float]], outcomes: Outcomes) -> float:
    """The factor on the spread of the pool; 1 where draws have to stay on some values, or a network draws."""
    trials = [trial for trial, _ in kept]
    y = trials[0].y
    if _pile_up(outcomes, y) or any(trial.member is None for trial in trials):
        return 1.0
    counts = [max(1, round(weight * TRIED_DRAWS)) for _, weight in kept]

    def draw(factor: float) -> Array:
        parts = [trial.narrow(factor)[:n] for trial, n in zip(trials, counts, strict=True)]
        return np.concatenate(parts)

    return find_narrowing(draw, y, trials[0].weights)


def _worth_training(fitted: CrossFit) -> bool:
    """Whether a network has a chance: the mean is smooth, and columns are so few that balls are small."""
    return fitted.mean.smooth and fitted.mean.columns.expanded_width <= FEW_COLUMNS


def _grow(recipe: Recipe, laws: list[BallLaw], fitted: CrossFit, x: Array, y: Array) -> list[BallMember]:
    return learn_balls(
        laws, x, y, fitted, recipe.columns, recipe.outcomes, recipe.seed % 2**32, recipe.n_jobs
    )


def _train(
    recipe: Recipe,
    law: Network,
    fitted: CrossFit,
    x: Array,
    y: Array,
    held: tuple[Array, Array, Array | None] | None = None,
) -> TrainedNetwork:
    config = _configure(recipe, law)
    return law.learn(x, y, fitted, recipe.outcomes, recipe.delta, recipe.norm, recipe.device, config, held)


def _configure(recipe: Recipe, law: Network) -> FitConfig:
    return law.config(
        seed=recipe.seed,
        progress=recipe.verbose,
        checkpoint=recipe.checkpoint,
        resume=recipe.checkpoint is not None,
        history=recipe.history,
        fingerprint=recipe.fingerprint,
    )


def _assemble(recipe: Recipe, fitted: CrossFit, members: list[Member], weights: Array) -> ConditionalLaw:
    return ConditionalLaw(recipe.columns, fitted.mean, tuple(members), weights, recipe.outcomes)
