"""From rows of numbers and classes to a mixed law: means, balls, probabilities, a network, their shares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array
from localw2.balls.neighborhoods import Nearest
from localw2.estimators.mixed.class_model import ClassModel
from localw2.estimators.mixed.law import MixedLaw, as_points
from localw2.estimators.regression.ball_law import BallLaw
from localw2.estimators.regression.network import Network
from localw2.estimators.regression.pooling import LEAST, pool_weights
from localw2.estimators.strays import find_strays, warn_of_strays

if TYPE_CHECKING:
    from localw2.estimators.mixed.coding import OutputCoding

BALLS = (5, 15, 40, 120)  # rows of a ball, at least
SHARES = np.linspace(0, 1, 11)  # of smooth probabilities, that are tried
MOST_COMBINATIONS = 60  # of categories, up to which there is a smooth model of them
FEW_COLUMNS = 2  # in which a network is tried
_HELD, _MOST_HELD, _DRAWS = 0.2, 3000, 50
FEW = 400  # rows below which every fifth is held out in turn
SHOWN = 50  # held-out rows that the weight of a network takes at least
_ROUND, _PURPOSE = 1e-12, 42


@final
@dataclass(frozen=True)
class MixedRecipe:
    """The settings of a fit, checked. ``network`` is None, or tried; ``alone`` it is all there is."""

    coding: OutputCoding
    network: Network | None
    alone: bool
    base: Any
    n_jobs: Any
    seed: int


def learn_mixed(
    recipe: MixedRecipe, x: Array, numbers: Array, codes: Array, weights: Array | None = None
) -> MixedLaw:
    """The joint law of numbers (N, d_n) and codes (N, d_c) at rows x (N, p), which are finite.

    ``weights`` (N,) are those of the rows, if they have any.
    """
    n = len(x)
    order = np.random.default_rng([recipe.seed, _PURPOSE]).permutation(n)
    size = min(_MOST_HELD, int(_HELD * n))
    losses, weight = np.zeros(len(SHARES)), 0.0
    if size < SHOWN and not recipe.alone:
        recipe = replace(recipe, network=None)
    for turn in range(round(1 / _HELD) if n < FEW and codes.shape[1] else 1):
        held, kept = np.split(np.roll(order, -turn * size), [size])
        of_kept, of_held = (None, None) if weights is None else (weights[kept], weights[held])
        # The network, which takes longest, is weighed on the first part alone.
        tried = _learn(
            recipe if turn == 0 else replace(recipe, network=None),
            x[kept],
            numbers[kept],
            codes[kept],
            of_kept,
        )
        losses += _score_shares(tried, x[held], codes[held], of_held)
        if turn == 0:
            rated = replace(tried, smooth=_least(losses))
            weight = _weigh_network(rated, x[held], numbers[held], codes[held], of_held)
    smooth = _least(losses)
    weight = 1.0 if recipe.alone else weight
    network = recipe.network if weight > 0 else None
    found = _learn(replace(recipe, network=network), x, numbers, codes, weights)
    return replace(found, smooth=smooth, of_network=weight)


def _learn(recipe: MixedRecipe, x: Array, numbers: Array, codes: Array, weights: Array | None) -> MixedLaw:
    from localw2.estimators.regression.regressor import LocalW2Regressor  # here: chains of imports stay short

    coding = recipe.coding
    combinations, joint = np.unique(codes, axis=0, return_inverse=True)
    joint = joint.reshape(-1)
    center, residuals = None, numbers
    if numbers.shape[1]:
        center = LocalW2Regressor(
            BallLaw(5), recipe.base, n_jobs=recipe.n_jobs, random_state=recipe.seed
        ).fit(x, numbers, sample_weight=weights)
        residuals = center.law_.members[0].balls.shown  # type: ignore[attr-defined]
    points = coding.embed(residuals, codes)
    laws = [BallLaw(rows, on="outcomes") for rows in BALLS if 2 * rows <= len(x)] or [
        BallLaw(2, on="outcomes")
    ]
    plain: dict[str, Any] = {"base": None, "bounds": None, "values": None, "random_state": recipe.seed}
    balls = LocalW2Regressor(laws, n_jobs=recipe.n_jobs, **plain).fit(x, points, sample_weight=weights)
    model = None
    if codes.shape[1] and len(combinations) <= MOST_COMBINATIONS:
        model = ClassModel.learn(x, joint, len(combinations), recipe.seed, weights)
    network = None
    if recipe.network is not None:
        network = LocalW2Regressor(recipe.network, delta=Nearest(min(48, len(x))), **plain)
        network.fit(x, points, sample_weight=weights)
        if network.fit_.stopped.startswith("interrupted"):  # a half-trained part is no law
            raise KeyboardInterrupt
    return MixedLaw(coding, combinations, joint, balls, model, 0.0, center, network)


def _score_shares(law: MixedLaw, x: Array, codes: Array, weights: Array | None) -> Array:
    """The log loss on held-out rows, summed, with each of ``SHARES`` of the smooth probabilities."""
    if law.model is None or not len(x):
        return np.zeros(len(SHARES))
    known = (codes[:, None, :] == law.combinations).all(-1)
    rows = known.any(1)
    if not rows.any():
        return np.zeros(len(SHARES))
    place = known[rows].argmax(1)
    each = np.arange(len(place))
    by_balls, smooth = law.probabilities(x[rows])[each, place], law.model.predict(x[rows])[each, place]
    counts = np.ones(len(place)) if weights is None else weights[rows]
    return np.array([-(counts * np.log((1 - a) * by_balls + a * smooth + _ROUND)).sum() for a in SHARES])


def _least(losses: Array) -> float:
    """The share with the least loss."""
    return float(SHARES[int(np.argmin(losses))])


def _weigh_network(law: MixedLaw, x: Array, numbers: Array, codes: Array, weights: Array | None) -> float:
    """The weight of the network in a pool with the balls, by the energy score of points of held-out rows."""
    if law.network is None or not len(x):
        return 0.0
    rng = np.random.default_rng([0, _PURPOSE])
    own = law.coding.embed(*law.sample(x, _DRAWS, rng))
    drawn = as_points(law.network.sample(x, _DRAWS, random_state=0))
    others = law.coding.embed(*law.read_points(x, drawn))
    weight = float(pool_weights([own, others], law.coding.embed(numbers, codes), weights)[1])
    return weight if weight >= LEAST else 0.0


def check_network(law: Any, n_columns: int) -> tuple[Network | None, bool]:
    """The network that a setting asks for, and whether it is all there is."""
    # Points are in their own units, in which a mismatch costs what it should: they are not whitened.
    if isinstance(law, Network):
        return replace(law, standardize=False), True
    if law == "network":
        return Network.with_noise(standardize=False), True
    if law == "balls":
        return None, False
    if law == "auto":
        return (Network.with_noise(standardize=False) if n_columns <= FEW_COLUMNS else None), False
    raise ValueError(f"law={law!r} is unknown; give 'auto', 'balls', 'network' or a Network(...).")


def find_usual_rows(numbers: Array) -> Array:
    """The rows (N,) but for those whose numbers are so far out that they alone would set every scale."""
    kept = np.arange(len(numbers))
    while len(strays := find_strays(numbers[kept]) if numbers.shape[1] else np.empty(0, np.int64)):
        warn_of_strays(strays, numbers[kept], stacklevel=4)
        kept = np.delete(kept, strays)
    return kept
