"""The law of the scores of fields: a smooth mean and covariance, and the law of what they leave."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from sklearn.base import clone

from localw2._validation import Array
from localw2.estimators.fields.location_scale import LocationScale
from localw2.metrics import energy_score

if TYPE_CHECKING:
    from localw2.estimators.regression.regressor import LocalW2Regressor

_PURPOSE, _MATCHED = 34, 1000  # rows at which the spread of draws is compared with that of scores
_MOST_COMPARED, _COMPARED_DRAWS = 10_000, 50  # rows, and draws at each, that the default law is chosen by
_FOLDS, _ENOUGH_HELD = 5, 500  # and how many of them are held out


@final
@dataclass(frozen=True, eq=False)
class ScoreLaw:
    """A fitted ``regressor`` of scores, standardised by ``location`` unless that is None."""

    location: LocationScale | None
    regressor: LocalW2Regressor

    @classmethod
    def learn(
        cls,
        regressor: LocalW2Regressor,
        location: LocationScale | None,
        x: Array,
        scores: Array,
        weights: Array | None,
        seed: int,
    ) -> ScoreLaw:
        """From rows x (N, p), weights (N,) and scores (N, q), which ``location`` has standardised, if any."""
        own = {} if regressor.random_state is not None else {"random_state": seed}
        law = clone(regressor).set_params(**own)
        with warnings.catch_warnings():
            # An interrupted fit is whole for those who asked for it, but no law of scores to go on with.
            warnings.filterwarnings("error", message="interrupted", category=UserWarning)
            try:
                law.fit(x, scores, sample_weight=weights)
            except UserWarning as stop:
                raise KeyboardInterrupt from stop
        if location is not None:
            # Few held-out rows tell a law its spread only roughly; that of all rows is known here.
            some = np.sort(np.random.default_rng([seed, _PURPOSE]).permutation(len(x))[:_MATCHED])
            mean, variance = law.law_.moments(x[some])
            counts = None if weights is None else weights[some]
            drawn = np.average(mean**2 + variance, axis=0, weights=counts)
            seen = np.average(scores[some] ** 2, axis=0, weights=counts)
            known = (drawn > 0) & (seen > 0)
            location = location.rescale(np.sqrt(np.where(known, seen, 1.0) / np.where(known, drawn, 1.0)))
        return cls(location, law)

    def place(self, x: Array, draws: Array) -> Array:
        """Draws of the regressor at rows x (N, p) as scores (S, N, q)."""
        draws = draws.reshape(*draws.shape[:2], -1)
        return draws if self.location is None else self.location.place(x, draws)

    def sample(self, x: Array, n_samples: int, seed: int) -> Array:
        """Independent draws of the scores, (S, N, q)."""
        return self.place(x, self.regressor.sample(x, n_samples, random_state=seed))


@final
@dataclass(frozen=True, eq=False)
class Way:
    """How a law of scores is learned: by a regressor, and whether a smooth mean and covariance come first."""

    regressor: LocalW2Regressor
    smooth: bool


def choose_way(ways: list[Way], x: Array, scores: Array, weights: Array | None, seed: int) -> Way:
    """The first way whose energy score on held-out rows is within a standard error of the best.

    What varies more with x than rows can show adds noise to every answer, so that the simpler one is better
    where they cannot be told apart. As many of five folds are held out in turn as give enough rows.
    """
    if len(ways) == 1:
        return ways[0]
    some = np.random.default_rng([seed, _PURPOSE, 1]).permutation(len(x))[:_MOST_COMPARED]
    needed = int(np.ceil(_FOLDS * _ENOUGH_HELD / len(some)))
    folds = np.array_split(some, _FOLDS)[: min(_FOLDS, needed)]
    rows = np.concatenate(folds)
    own = np.ones(len(rows)) if weights is None else weights[rows] / weights[rows].mean()
    lost: list[list[Array]] = [[] for _ in ways]
    for held in folds:
        kept = np.setdiff1d(some, held)
        inputs, outputs, counts = x[kept], scores[kept], None if weights is None else weights[kept]
        location, standardised = LocationScale.learn(inputs, outputs, seed, counts)
        for parts, way in zip(lost, ways, strict=True):
            first, targets = (location, standardised) if way.smooth else (None, outputs)
            law = ScoreLaw.learn(way.regressor, first, inputs, targets, counts, seed)
            parts.append(energy_score(scores[held], law.sample(x[held], _COMPARED_DRAWS, seed)))
    of_rows = [own * np.concatenate(parts) for parts in lost]
    best = min(of_rows, key=lambda one: float(one.mean()))
    gaps = [one - best for one in of_rows]
    return ways[[gap.mean() <= gap.std() / np.sqrt(len(rows)) for gap in gaps].index(True)]
