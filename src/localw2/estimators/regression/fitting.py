"""From rows of numbers to a law: the mean, the members around it, and calibrated intervals.

With ``calibrate`` and from ``SPLIT_FROM`` rows on, some rows are held out of the whole fit and scored by it:
coverage is then guaranteed. With fewer rows none can be spared: the whole fit (base, scales, network) is
repeated, each time without one of 5 or 10 parts of the rows, which it scores. Only what was chosen on all
rows is kept (the kind of base, the balls of a list, the values that y can have), because a score must be made
as an interval will be, from fold models and a network that none of the scored rows has touched. A score is a
level, not a length: fits to fewer rows are less certain and reflect that, so their scores carry over.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from localw2._validation import Array
from localw2.balls.norms import Norm
from localw2.estimators.regression.law import ConditionalLaw
from localw2.estimators.regression.mean import cross_fit
from localw2.estimators.settings import draw_seed, name_part
from localw2.judging.conformal import Calibration

if TYPE_CHECKING:
    import torch

    from localw2.estimators.regression.network import Network, TrainedNetwork
    from localw2.estimators.regression.outcomes import Outcomes
    from localw2.estimators.tables import Columns

SPLIT_FROM = 2000  # rows: a fifth of them determines 90 % to within 1.5 %, and the fit can spare them
HELD_OUT = 0.2
MOST_HELD_OUT = 5000  # 90 % coverage is then accurate to .4 %; more rows serve the fit better
MANY = 500  # rows from which on a part is a fifth of them; with fewer rows a fit would miss so many
N_PARTS = (10, 5)  # below MANY rows, and from there on
FEWEST_ROWS = 10
_PURPOSE = 6  # keeps these random numbers apart from others of the same seed


@final
@dataclass(frozen=True, eq=False)
class Recipe:
    """How a law is learned: the settings of a regressor, checked, and a seed.

    ``chosen_base`` names a candidate of ``base="auto"`` that is known to be the best, and ``fingerprint``
    tells the checkpoint of this fit from others'.
    """

    columns: Columns
    outcomes: Outcomes
    network: Network
    base: Any
    delta: Any
    norm: Any
    n_folds: int
    calibrate: bool
    device: torch.device
    seed: int
    verbose: bool
    fingerprint: str
    checkpoint: str | None = None
    history: Any = None
    chosen_base: str | None = None

    @property
    def checkpoints(self) -> list[str | None]:
        """The files that a fit by this recipe may leave when it is killed."""
        parts = [("calibration", k) for k in range(max(N_PARTS) if self.calibrate else 0)]
        parts += [
            ("choice", k) for k in range(len(self.delta) if isinstance(self.delta, list | tuple) else 0)
        ]
        return [self.checkpoint, *(name_part(self.checkpoint, *part) for part in parts)]

    @property
    def asks_for_relevance(self) -> bool:
        """Whether the choice of balls asks how much each column moves the mean."""
        deltas = self.delta if isinstance(self.delta, list | tuple) else [self.delta]
        return any(isinstance(delta, str) for delta in deltas) and not isinstance(self.norm, Norm)


def learn(recipe: Recipe, x: Array, y: Array) -> tuple[ConditionalLaw, TrainedNetwork]:
    """Learn the law of outputs y (N, d) given x (N, p), calibrated if the recipe says so."""
    held = hold_out(len(x), recipe.seed) if recipe.calibrate else None
    if held is not None:
        kept = np.setdiff1d(np.arange(len(x)), held)
        law, trained = _learn_plain(recipe, x[kept], y[kept])
        return replace(law, calibration=Calibration(law.scores(x[held], y[held]), "split")), trained
    law, trained = _learn_plain(recipe, x, y)
    return _calibrate_by_refits(recipe, law, trained, x, y) if recipe.calibrate else (law, trained)


def hold_out(n: int, seed: int) -> Array | None:
    """The rows that calibrate a split fit, at random, ascending; None where no rows can be spared.

    >>> hold_out(2500, 0).shape, hold_out(100, 0)
    ((500,), None)
    """
    if n < FEWEST_ROWS:
        raise ValueError(
            f"calibrate=True with {n} rows (samples): fewer than {FEWEST_ROWS} cannot show how often an "
            "interval misses. Give more rows, or calibrate=False."
        )
    size = min(round(HELD_OUT * n), MOST_HELD_OUT)
    return None if n < SPLIT_FROM else np.sort(_shuffle(n, seed)[:size])


def split_into_parts(n: int, seed: int) -> list[Array]:
    """The rows in parts of similar size, at random.

    >>> [len(rows) for rows in split_into_parts(23, seed=0)], len(split_into_parts(1000, seed=0))
    ([3, 3, 3, 2, 2, 2, 2, 2, 2, 2], 5)
    """
    return np.array_split(_shuffle(n, seed), N_PARTS[int(n >= MANY)])


def _shuffle(n: int, seed: int) -> Array:
    return np.random.default_rng([seed, _PURPOSE]).permutation(n)


def _learn_plain(recipe: Recipe, x: Array, y: Array) -> tuple[ConditionalLaw, TrainedNetwork]:
    """The law of rows that are all fitted, not calibrated."""
    config = recipe.network.config(  # first: it checks the settings of training
        seed=recipe.seed,
        progress=recipe.verbose,
        checkpoint=recipe.checkpoint,
        resume=recipe.checkpoint is not None,
        history=recipe.history,
        fingerprint=recipe.fingerprint,
    )
    fitted = cross_fit(
        recipe.base,
        x,
        y,
        recipe.n_folds,
        recipe.seed % 2**32,
        recipe.chosen_base,
        shift=recipe.network.standardize,
        with_relevance=recipe.asks_for_relevance,
    )
    trained = recipe.network.learn(
        x, y, fitted, recipe.outcomes, recipe.delta, recipe.norm, recipe.device, config
    )
    return ConditionalLaw(
        recipe.columns, fitted.mean, (trained.member,), np.ones(1), recipe.outcomes
    ), trained


def _calibrate_by_refits(
    recipe: Recipe, law: ConditionalLaw, trained: TrainedNetwork, x: Array, y: Array
) -> tuple[ConditionalLaw, TrainedNetwork]:
    """The same law with scores of every row by a fit that has not seen it, as far as Ctrl-C lets it come."""
    refit = replace(
        recipe,
        history=None,  # the file belongs to the whole fit, which is done
        seed=draw_seed(recipe.seed % 2**32),
        # Which kind of base is best was seen on all rows; asking each part again would double the time.
        chosen_base=law.mean.name if isinstance(recipe.base, str) else None,
    )
    if isinstance(recipe.delta, list | tuple):  # which of them is best was seen on all rows too
        refit = replace(refit, delta=trained.chosen.balls, norm=trained.chosen.norm)
    found: list[Array] = []
    parts = split_into_parts(len(x), recipe.seed)
    if not trained.fit.stopped.startswith("interrupted"):
        try:
            # One after the other, unless a joblib.parallel_config says otherwise; each one as it is done.
            tasks = (delayed(_score_part)(refit, x, y, number, rows) for number, rows in enumerate(parts))
            for scores in Parallel(return_as="generator")(tasks):
                found.append(scores)  # one by one: what is done stays when Ctrl-C comes
        except KeyboardInterrupt:  # the fit itself is whole: only what would follow is given up
            fit = replace(trained.fit, stopped="interrupted in the calibration")
            trained = replace(trained, fit=fit)
    if len(found) < len(parts):
        n_scored = sum(map(len, found))
        then = f"they rest on {n_scored} of {len(x)} rows" if found else "predict_interval is uncalibrated"
        warnings.warn(
            f"interrupted before the intervals were calibrated: {then}. With a checkpoint, the same call "
            "continues from here.",
            stacklevel=4,
        )
    calibration = Calibration(np.concatenate(found), "folds") if found else None
    return replace(law, calibration=calibration), trained


def _score_part(recipe: Recipe, x: Array, y: Array, number: int, rows: Array) -> Array:
    """Scores of some rows by a fit to all others, whose checkpoint stays: a killed calibration finds it."""
    others = np.setdiff1d(np.arange(len(x)), rows)
    own = replace(recipe, checkpoint=name_part(recipe.checkpoint, "calibration", number))
    with warnings.catch_warnings():
        # It would say that the model is half trained; a part that is given up has a warning of its own.
        warnings.filterwarnings("ignore", message="interrupted after epoch")
        law, trained = _learn_plain(own, x[others], y[others])
    if trained.fit.stopped.startswith("interrupted"):
        raise KeyboardInterrupt
    return law.scores(x[rows], y[rows])
