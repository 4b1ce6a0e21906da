"""The fitted law of y given x: a weighted pool of members that draws, answers and stores itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from localw2._validation import Array
from localw2.estimators.regression.mean import FoldedMean
from localw2.estimators.regression.member import PREDICTION_DRAWS
from localw2.estimators.regression.network import NetworkMember, Units
from localw2.estimators.regression.outcomes import Outcomes, Rounding
from localw2.estimators.stored_values import restore_network, sized_array, text, whole_number
from localw2.estimators.tables import Columns
from localw2.judging.conformal import Calibration, central_interval, central_scores, joint_level

if TYPE_CHECKING:
    from localw2.estimators.regression.member import Member

_SCORES = "calibration_scores"


@final
@dataclass(frozen=True, eq=False)
class ConditionalLaw:
    """The distribution of d outputs at any x, as a pool: a draw comes from member k with probability w_k.

    ``columns`` turn a table into the numbers x (N, p) that all methods take, ``mean`` is what members draw
    around, and ``weights`` (K,) add up to 1. Answers are (N, d), or (S, N, d) for draws and quantiles.
    """

    columns: Columns
    mean: FoldedMean
    members: tuple[Member, ...]
    weights: Array
    outcomes: Outcomes
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        assert self.weights.shape == (len(self.members),)
        assert (self.weights >= 0).all()
        assert np.isclose(self.weights.sum(), 1)
        assert all(m.mean is self.mean for m in self.members if isinstance(m, NetworkMember))

    @property
    def network(self) -> NetworkMember:
        """The member that is a network."""
        return next(member for member in self.members if isinstance(member, NetworkMember))

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Mean and variance of y at every row."""
        if len(self.members) == 1:
            return self.members[0].moments(x)
        means, variances = (
            np.stack(part) for part in zip(*(m.moments(x) for m in self.members), strict=True)
        )
        weights = self.weights[:, None, None]
        mean = (weights * means).sum(0)
        return mean, (weights * (variances + (means - mean) ** 2)).sum(0)

    def sample(self, x: Array, n_samples: int, seed: int) -> Array:
        """Independent draws of y, (S, N, d)."""
        rng = np.random.default_rng(seed)
        if len(self.members) == 1:
            return self.members[0].sample(x, n_samples, rng)
        which = rng.choice(len(self.members), size=(n_samples, len(x)), p=self.weights)
        draws = self.members[0].sample(x, n_samples, rng)
        for k, member in enumerate(self.members[1:], start=1):
            draws = np.where(which[..., None] == k, member.sample(x, n_samples, rng), draws)
        return draws

    def quantiles(self, x: Array, levels: Array) -> Array:
        """Quantiles (Q, N, d), output by output, increasing in the level. They are never calibrated."""
        parts = [self.outcomes.quantiles(draws, levels) for _, draws in self.common_draws(x)]
        return np.concatenate(parts, 1)

    def interval(self, x: Array, coverage: float, joint: bool) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals, calibrated where the law is.

        Each output has its own interval; with ``joint`` they form a box that holds all outputs together.
        """
        if self.calibration is None and not (joint and len(self.outcomes.lower) > 1):
            lower, upper = self.quantiles(x, np.array([(1 - coverage) / 2, (1 + coverage) / 2]))
            return lower, upper
        levels = None if self.calibration is None else self.calibration.levels(coverage, joint)
        parts = []
        for _, draws in self.common_draws(x):
            level = joint_level(draws, coverage)[:, None] if levels is None else levels
            parts.append(self.outcomes.within(*central_interval(draws, level)))
        lower, upper = (np.concatenate(part) for part in zip(*parts, strict=True))
        return lower, upper

    def scores(self, x: Array, y: Array) -> Array:
        """The level (N, d) of the smallest central interval that holds each y (N, d), for calibration."""
        return np.concatenate([central_scores(y[rows], draws) for rows, draws in self.common_draws(x)])

    def common_draws(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """Draws (S, rows, d) with the same randomness at every row, from each member by its weight."""
        if len(self.members) == 1:
            yield from self.members[0].common_draws(x)
            return
        ends = np.round(np.cumsum(self.weights) * PREDICTION_DRAWS).astype(int)
        half = PREDICTION_DRAWS // 2
        # Draws i and i + half go together: their noise may be z and -z.
        pairs = np.random.default_rng(0).permutation(half)
        order = np.stack([pairs, pairs + half], 1).ravel()
        for parts in zip(*(member.common_draws(x) for member in self.members), strict=True):
            counts = np.diff(ends, prepend=0)
            chosen = [draws[order[:count]] for (_, draws), count in zip(parts, counts, strict=True)]
            yield parts[0][0], np.concatenate(chosen)

    def to_stored(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        """Plain settings, tensors and scikit-learn regressors that ``from_stored`` takes."""
        member = self.network
        if len(self.members) > 1:
            raise ValueError("a pool of several members cannot be stored.")
        columns, mean, net, units = self.columns, self.mean, member.net, member.units
        regressors = {f"fold{i:04d}": model for i, model in enumerate(mean.models)}
        if columns.encoder is not None:
            regressors["columns"] = columns.as_regressor()
        settings = {
            "feature_names": None if columns.names is None else list(columns.names),
            "n_features": columns.n_features,
            "n_outputs": len(self.outcomes.lower),
            "base_name": mean.name,
            "seed": member.seed,
            "calibration": None if self.calibration is None else self.calibration.kind,
            "outcomes": self.outcomes.plain() | member.rounding.plain(),
            "encoded_columns": None if columns.encoder is None else columns.plain(),
            "network": {
                "width": net.random_layers()[0].mean.shape[1],
                "depth": len(net.layers) - 1,
                "residual": bool(net.residual),
                "activation": net.activation,
            },
        }
        tensors = {f"model.{name}": value for name, value in net.state_dict().items()}
        arrays = {
            "x_mean": units.x_mean,
            "x_scale": units.x_scale,
            "y_factor": units.y_factor,
            "base_slope": mean.slope,
            "base_intercept": mean.intercept,
        }
        if self.calibration is not None:
            arrays[_SCORES] = self.calibration.scores
        tensors |= {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}
        return settings, tensors, regressors

    @classmethod
    def from_stored(
        cls, settings: dict[str, Any], tensors: dict[str, Tensor], regressors: dict[str, Any]
    ) -> ConditionalLaw:
        """The law that ``to_stored`` described; an error if the parts do not fit together."""
        models = dict(regressors)
        d = whole_number(settings["n_outputs"])
        columns = Columns.from_stored(
            models.pop("columns", None),
            whole_number(settings["n_features"]),
            settings["feature_names"],
            settings.get("encoded_columns"),
        )
        p = columns.width
        plain = settings.get("outcomes")  # files of the first release have none
        outcomes = Outcomes.anything(d) if plain is None else Outcomes.from_plain(plain, d)
        rounding = Rounding.halfway(outcomes) if plain is None else Rounding.from_plain(outcomes, plain, d)
        shapes = {"x_mean": (p,), "x_scale": (p,), "y_factor": (d, d)}
        units = Units(**{name: sized_array(name, tensors[name], *shape) for name, shape in shapes.items()})
        for model in models.values():
            if getattr(model, "n_features_in_", p) != p:
                raise ValueError(f"a base model has {model.n_features_in_} feature(s), the network {p}.")
        mean = FoldedMean(
            text(settings["base_name"]),
            tuple(models[name] for name in sorted(models)),
            sized_array("base_intercept", tensors["base_intercept"], d),
            sized_array("base_slope", tensors["base_slope"], d),
        )
        # Files of version 0.1 name the network among the parameters of the estimator.
        net = restore_network(settings.get("network") or settings["parameters"], p, d, tensors)
        member = NetworkMember(net, units, mean, rounding, whole_number(settings["seed"], 0))
        calibration = _restore_calibration(settings.get("calibration"), tensors.get(_SCORES), d)
        return cls(columns, mean, (member,), np.ones(1), outcomes, calibration)


def _restore_calibration(kind: Any, scores: Tensor | None, d: int) -> Calibration | None:
    """What calibrates the intervals, if anything does."""
    if kind is None and scores is None:
        return None
    if kind is None or scores is None:
        raise ValueError(f"calibration={kind!r} comes {'without' if scores is None else 'with'} its scores.")
    return Calibration(sized_array(_SCORES, scores, len(scores), d), text(kind))
