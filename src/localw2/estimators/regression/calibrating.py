"""Calibrated intervals: rows that a fit has not seen say how large a share of the draws they must span.

"split" holds some rows out of the whole fit, which scores them: coverage is guaranteed. Everything that is
learned, the encoding of columns and the values that y can have included, comes from the other rows.

Where no rows can be spared, the fit is repeated, each time without one of 5 or 10 parts of the rows, which it
scores. "cv" applies the scores to the fit to all rows. Only what was chosen on all rows is kept (the kind of
base, the balls of a list, the encoding, the values that y can have). A score is a level, not a length: fits
to fewer rows are less certain and reflect that, so their scores carry over; nothing is guaranteed. "cv+"
keeps the laws of the parts, which share nothing with the rows that they score, and asks them at every new x.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from localw2._validation import Array, take_rows
from localw2.estimators.regression.fitting import learn
from localw2.estimators.regression.outcomes import Outcomes
from localw2.estimators.settings import draw_seed, name_part
from localw2.judging.conformal import KINDS, Calibration

if TYPE_CHECKING:
    from localw2.estimators.regression.fitting import Recipe
    from localw2.estimators.regression.law import ConditionalLaw
    from localw2.estimators.regression.network import TrainedNetwork
    from localw2.estimators.tables import Columns

SPLIT_FROM = 2000  # rows: a fifth of them determines 90 % to within 1.5 %, and the fit can spare them
HELD_OUT = 0.2
MOST_HELD_OUT = 5000  # 90 % coverage is then accurate to .4 %; more rows serve the fit better
MANY = 500  # rows from which on a part is a fifth of them; with fewer rows a fit would miss so many
N_PARTS = (10, 5)  # below MANY rows, and from there on
FEWEST_ROWS = 10
_PURPOSE = 6  # keeps these random numbers apart from others of the same seed

# All rows as numbers, (N, p), by columns that only the given rows have shown.
ReadAgain = Callable[[Array], "tuple[Array, Columns]"]


def choose_kind(calibrate: Any, n: int) -> str | None:
    """How the intervals of a fit to n rows are calibrated; None if they are not.

    >>> choose_kind(False, 100), choose_kind(True, 100), choose_kind(True, 5000), choose_kind("cv+", 100)
    (None, 'cv', 'split', 'cv+')
    """
    if isinstance(calibrate, bool | np.bool_):
        kind = ("split" if n >= SPLIT_FROM else "cv") if calibrate else None
    elif isinstance(calibrate, str) and calibrate in KINDS:
        kind = calibrate
    else:
        choices = ", ".join(map(repr, KINDS))
        raise ValueError(f"calibrate={calibrate!r} is unknown; give True, False, or one of {choices}.")
    if kind is not None and n < FEWEST_ROWS:
        raise ValueError(
            f"calibrate={calibrate!r} with {n} rows (samples): fewer than {FEWEST_ROWS} cannot show how "
            "often an interval misses. Give more rows, or calibrate=False."
        )
    return kind


def hold_out(n: int, seed: int) -> tuple[Array, Array]:
    """The rows that calibrate a split fit, at random, and those that are fitted, both ascending.

    >>> [len(rows) for rows in hold_out(2500, 0)]
    [500, 2000]
    """
    held = min(round(HELD_OUT * n), MOST_HELD_OUT)
    rows = _shuffle(n, seed)
    return np.sort(rows[:held]), np.sort(rows[held:])


def split_into_parts(n: int, seed: int) -> list[Array]:
    """The rows in parts of similar size, at random.

    >>> [len(rows) for rows in split_into_parts(23, seed=0)], len(split_into_parts(1000, seed=0))
    ([3, 3, 3, 2, 2, 2, 2, 2, 2, 2], 5)
    """
    return np.array_split(_shuffle(n, seed), N_PARTS[int(n >= MANY)])


def name_checkpoints(recipe: Recipe, kind: str | None) -> list[str | None]:
    """The files that a fit by this recipe may leave when it is killed."""
    n_parts = max(N_PARTS) if kind in ("cv", "cv+") else 0
    n_tried = len(recipe.delta) if isinstance(recipe.delta, list | tuple) else 0
    fits = [recipe.checkpoint, *(name_part(recipe.checkpoint, "calibration", k) for k in range(n_parts))]
    return fits + [name_part(path, "choice", k) for path in fits for k in range(n_tried)]


def _shuffle(n: int, seed: int) -> Array:
    return np.random.default_rng([seed, _PURPOSE]).permutation(n)


def learn_split(
    recipe: Recipe, x: Array, y: Array, weights: Array | None = None, numbers: Array | None = None
) -> tuple[ConditionalLaw, TrainedNetwork | None]:
    """The law of most rows, with scores of the others, which the recipe must not know (``know_only``).

    ``numbers`` (N,) are those that the rows have in the user's table, if it has more.
    """
    held, fitted = hold_out(len(y), recipe.seed)
    own = fitted if numbers is None else numbers[fitted]
    law, trained = learn(recipe, x[fitted], y[fitted], take_rows(weights, fitted), numbers=own)
    scores = law.scores(x[held], y[held])
    return replace(law, calibration=Calibration(scores, "split", None, take_rows(weights, held))), trained


def know_only(recipe: Recipe, rows: Array, y: Array, read_again: ReadAgain) -> tuple[Array, Recipe]:
    """All rows as numbers, and the recipe, as if only some rows were known."""
    x, columns = read_again(rows)
    return x, replace(recipe, columns=columns, outcomes=Outcomes.of(y[rows], recipe.bounds, recipe.values))


def score_parts(
    recipe: Recipe,
    kind: str,
    law: ConditionalLaw,
    trained: TrainedNetwork | None,
    x: Array,
    y: Array,
    read_again: ReadAgain,
    weights: Array | None = None,
) -> tuple[ConditionalLaw, TrainedNetwork | None, bool]:
    """The same law with scores of every row by a fit that has not seen it, and whether all rows have one.

    After Ctrl-C some or all have none.
    """
    refit = replace(
        recipe,
        history=None,  # the file belongs to the whole fit, which is done
        seed=draw_seed(recipe.seed % 2**32),
    )
    if kind == "cv":
        # Which kind of base is best was seen on all rows; asking each part again would double the time.
        refit = replace(refit, chosen_base=law.mean if isinstance(recipe.base, str) else None)
        if isinstance(recipe.delta, list | tuple) and trained is not None:  # so was which of them is best
            refit = replace(refit, delta=trained.chosen.balls, norm=trained.chosen.norm)
    parts = split_into_parts(len(x), recipe.seed)
    found: list[tuple[Array, ConditionalLaw]] = []
    if trained is None or not trained.fit.stopped.startswith("interrupted"):
        try:
            # One after the other, unless a joblib.parallel_config says otherwise; each one as it is done.
            tasks = (
                delayed(_score_part)(
                    refit, x, y, weights, number, parts, read_again if kind == "cv+" else None
                )
                for number in range(len(parts))
            )
            for part in Parallel(return_as="generator")(tasks):
                found.append(part)  # one by one: what is done stays when Ctrl-C comes
        except KeyboardInterrupt:  # the fit itself is whole: only what would follow is given up
            if trained is not None:
                fit = replace(trained.fit, stopped="interrupted in the calibration")
                trained = replace(trained, fit=fit)
    if len(found) < len(parts):
        n_scored = sum(len(scores) for scores, _ in found)
        then = f"they rest on {n_scored} of {len(x)} rows" if found else "predict_interval is uncalibrated"
        kept = any(path is not None and Path(path).exists() for path in name_checkpoints(recipe, kind))
        more = " The same call continues from the checkpoint." if kept else ""
        warnings.warn(f"interrupted before the intervals were calibrated: {then}.{more}", stacklevel=4)
    if not found:
        return law, trained, False
    whole = len(found) == len(parts)
    scores = np.concatenate([scores for scores, _ in found])
    own = take_rows(weights, np.concatenate(parts[: len(found)]))
    if kind == "cv":
        return replace(law, calibration=Calibration(scores, kind, None, own)), trained, whole
    numbers = np.repeat(np.arange(len(found)), [len(scores) for scores, _ in found])
    without = tuple(part for _, part in found)
    return replace(law, calibration=Calibration(scores, kind, numbers, own), without=without), trained, whole


def _score_part(
    recipe: Recipe,
    x: Array,
    y: Array,
    weights: Array | None,
    number: int,
    parts: list[Array],
    read_again: ReadAgain | None,
) -> tuple[Array, ConditionalLaw]:
    """Scores of some rows by a fit to all others, whose checkpoint stays: a killed calibration finds it.

    With ``read_again`` nothing is known of these rows, not even how all rows are encoded.
    """
    rows = parts[number]
    others = np.setdiff1d(np.arange(len(x)), rows)
    recipe = replace(
        recipe,
        checkpoint=name_part(recipe.checkpoint, "calibration", number),
        title=f"calibrating, part {number + 1} of {len(parts)}",
    )
    if read_again is not None:
        x, recipe = know_only(recipe, others, y, read_again)
    with warnings.catch_warnings():
        # It would say that the model is half trained; a part that is given up has a warning of its own.
        warnings.filterwarnings("ignore", message="interrupted after epoch")
        law, trained = learn(recipe, x[others], y[others], take_rows(weights, others), in_part=True)
    if trained is not None and trained.fit.stopped.startswith("interrupted"):
        raise KeyboardInterrupt
    return law.scores(x[rows], y[rows]), law
