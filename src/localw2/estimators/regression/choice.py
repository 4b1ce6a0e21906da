"""The choice between balls of a list: a network is trained on each, on a GPU all at once, and scored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from localw2._validation import Array, mean_of_all, take_rows
from localw2.balls.lazy import MANY_ROWS
from localw2.balls.neighborhoods import Nearest
from localw2.balls.selection import Candidate, DeltaSelection, Trial
from localw2.estimators.regression.balls import plan_rows
from localw2.estimators.settings import name_part
from localw2.metrics import crps
from localw2.training.distributed import Crew
from localw2.training.loop import train
from localw2.training.many import train_many

if TYPE_CHECKING:
    from localw2.estimators.regression.balls import ChosenBalls
    from localw2.estimators.regression.loss import ResidualLoss
    from localw2.losses.objective import Objective
    from localw2.models.base import RandomMap
    from localw2.training.config import FitConfig

HELD_OUT = 0.2  # of the rows, to score the networks
FEWEST_ROWS = 20
_DRAWS = 500  # of every network at each held-out row
_CLIMATE_ROWS = 1000  # that stand for all where the whole sample is the prediction
_RADIUS_ROWS = 1000  # whose distances show how large a ball of the nearest rows is
_AT_ONCE = ("cuda",)  # devices that one network leaves idle; a CPU takes longer for six at once than in turn
_PURPOSE = 8  # keeps these random numbers apart from others of the same seed


def choose_by_training(
    options: list[ChosenBalls],
    X: Array,
    residuals: Array,
    inputs: Tensor,
    net: RandomMap,
    loss: ResidualLoss,
    config: FitConfig,
    few: bool = False,
    weights: Array | None = None,
) -> ChosenBalls:
    """The balls whose network predicts held-out rows best, by the mean CRPS.

    ``residuals`` (N, d) and ``inputs`` (N, p) are in the units of ``net``. Each entry trains a copy of it
    with the same seed, so that scores differ by the balls and not by chance, and takes as many balls a step
    as the fit would (``few``: see ``plan_rows``). Balls on which no network can be trained are left out, with
    a warning.
    """
    n = len(X)
    if not FEWEST_ROWS <= n <= MANY_ROWS:
        raise ValueError(
            f"delta is a list and there are {n} rows (samples), but choosing balls by training takes "
            f"{FEWEST_ROWS} to {MANY_ROWS} rows. Give one delta, or 'auto'."
        )
    order = np.random.default_rng([config.seed, _PURPOSE]).permutation(n)
    held, kept = np.split(order, [round(HELD_OUT * n)])
    of_kept = take_rows(weights, kept)
    rivals = _make_rivals(options, X[kept], residuals[kept], net, loss, config, few, of_kept)
    rivals = _train_rivals(rivals, inputs[kept], config)
    if not rivals:
        raise ValueError(
            "delta: a network can be trained on none of these balls, see the warnings. Give larger ones."
        )
    others = residuals[kept[:_CLIMATE_ROWS]][:, None]
    everyone = np.broadcast_to(others, (len(others), len(held), residuals.shape[1]))
    climate = mean_of_all(crps(residuals[held], everyone), take_rows(weights, held)) or 1.0
    tried = [
        Trial(
            rival.option.norm_name,
            rival.option.norm,
            rival.option.balls,
            _radius(rival.option, X),
            _others(rival.balls),
            _scores(rival.net, inputs[held], residuals[held], config.seed),
            take_rows(weights, held),
        )
        for rival in rivals
    ]
    # On a GPU the last digits differ from run to run: ranks must not diverge because of them.
    best: int = Crew.join().broadcast(min(range(len(tried)), key=lambda v: tried[v].mean))
    found = tuple(one.candidate(tried[best], climate) for one in tried)
    why = f"trained on {len(kept)} rows, its network predicts the other {len(held)} {_gain(found[best])}"
    selection = DeltaSelection(found, found[best], tried[best].delta, why, n)
    return replace(rivals[best].option, selection=selection)


@final
@dataclass(frozen=True)
class _Rival:
    """An entry of the list: its place, its balls, their loss, and a network to train as ``config`` says."""

    place: int
    option: ChosenBalls
    balls: Any  # all of them; those of one row do not enter the loss
    objective: Objective
    net: RandomMap
    config: FitConfig


def _make_rivals(
    options: Sequence[ChosenBalls],
    X: Array,
    residuals: Array,
    net: RandomMap,
    loss: ResidualLoss,
    config: FitConfig,
    few: bool,
    weights: Array | None,
) -> list[_Rival]:
    """The entries whose balls have a loss."""
    found = []
    for place, option in enumerate(options):
        balls = option.neighborhoods(X)
        plan = plan_rows(balls, option.balls, config.batch_balls, 0, few)
        try:
            objective = loss.objective(X, residuals, option, balls, plan.batch_balls is not None, weights)
        except ValueError as error:  # balls of one row each
            _warn_of(option, error)
            continue
        found.append(_Rival(place, option, balls, objective, deepcopy(net), plan.apply(config)))
    return found


def _train_rivals(rivals: list[_Rival], inputs: Tensor, config: FitConfig) -> list[_Rival]:
    """The entries whose networks could be trained: one after the other, or at once where that is faster."""
    whole = all(rival.config.batch_balls is None for rival in rivals)
    if inputs.device.type in _AT_ONCE and whole and len(rivals) > 1:
        plain = replace(config, checkpoint=None, resume=False, history=None)
        try:
            train_many(
                [rival.net for rival in rivals],
                [rival.objective for rival in rivals],
                inputs,
                plain,
                [config.seed] * len(rivals),
            )
        except FloatingPointError:  # one of them diverged, which ends all; alone the others will not
            pass
        else:
            return rivals
    found = []
    for rival in rivals:
        own = replace(
            rival.config, checkpoint=name_part(config.checkpoint, "choice", rival.place), history=None
        )
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="interrupted after epoch")
                fit = train(rival.net, rival.objective, inputs, own)
        except FloatingPointError as error:
            _warn_of(rival.option, error)
            continue
        if fit.stopped.startswith("interrupted"):
            raise KeyboardInterrupt  # half-trained networks say nothing about their balls
        found.append(rival)
    return found


def _warn_of(option: ChosenBalls, error: Exception) -> None:
    warnings.warn(f"delta={option.balls!r} is left out of the choice: {error}", stacklevel=8)


def _gain(best: Candidate) -> str:
    gain = 100 * (1 - best.score)
    return (
        f"{gain:.1f} % better than the whole sample does" if gain > 0 else "no better than the whole sample"
    )


def _scores(net: RandomMap, inputs: Tensor, residuals: Array, seed: int) -> Array:
    """The CRPS of a network's draws at each row, (rows,), mean over outputs."""
    generator = torch.Generator(inputs.device).manual_seed(seed)
    draws = net.eval().sample(inputs, _DRAWS, generator).double().cpu().numpy()
    scores: Array = crps(residuals, draws).mean(1)
    return scores


def _others(hoods: Any) -> Array:
    """How many other rows are in the ball of each row."""
    counts: Array = np.repeat(hoods.sizes.numpy(), hoods.weights.numpy().astype(int)) - 1
    return counts


def _radius(chosen: ChosenBalls, X: Array) -> float:
    """The radius of the balls; for nearest rows, the median over some of them."""
    if not isinstance(chosen.balls, Nearest):
        return chosen.balls
    rows = chosen.norm.embed(X - X.mean(0))
    distances, _ = cKDTree(rows).query(rows[:_RADIUS_ROWS], [chosen.balls.k])
    return float(np.median(distances))
