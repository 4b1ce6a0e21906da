"""How mixed outputs are judged: calibration of classes beside the diagnosis of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, check_count
from localw2.judging.diagnosis.diagnose import Diagnosis, diagnose
from localw2.metrics import brier_score, calibration_error, log_loss

if TYPE_CHECKING:
    from localw2.estimators.mixed.coding import OutputCoding
    from localw2.estimators.mixed.law import MixedLaw


@final
@dataclass(frozen=True, eq=False)
class CategoricalDistribution:
    """Laws of a category at N rows: ``classes`` and their probabilities (N, K).

    >>> law = CategoricalDistribution(("no", "yes"), np.array([[0.25, 0.75]]))
    >>> law.pmf("yes"), law.mode(), law.entropy().round(2)
    (array([0.75]), array(['yes'], dtype=object), array([0.56]))
    """

    classes: tuple[Any, ...]
    probabilities: Array

    def pmf(self, value: Any) -> Array:
        """The probability (N,) of a class; 0 of anything else."""
        if value not in self.classes:
            return np.zeros(len(self.probabilities))
        found: Array = self.probabilities[:, self.classes.index(value)]
        return found

    def mode(self) -> Array:
        """The most probable class of each row, (N,)."""
        found: Array = self._words[self.probabilities.argmax(1)]
        return found

    def entropy(self) -> Array:
        """The entropy (N,) in nats: 0 where one class is certain."""
        p = self.probabilities
        found: Array = -(p * np.log(np.where(p > 0, p, 1.0))).sum(1)
        return found

    def rvs(self, size: int = 1, random_state: Any = None) -> Array:
        """Independent draws (size, N) of classes."""
        rng = np.random.default_rng(random_state)
        levels = np.cumsum(self.probabilities, 1)
        levels[:, -1] = 1.0
        uniform = rng.random((check_count(size, "size", 1), len(levels), 1))
        found: Array = self._words[(uniform >= levels).sum(-1)]
        return found

    @property
    def _words(self) -> Array:
        words = np.empty(len(self.classes), dtype=object)
        words[:] = self.classes
        return words


@final
@dataclass(frozen=True, eq=False)
class MixedDiagnosis:
    """``numbers`` is the ``Diagnosis`` of the numeric outputs, or None; ``classes`` has scores by column.

    Those are ``log_loss``, ``brier``, ``accuracy`` and ``calibration_error``, and ``chance``, the calibration
    error that right probabilities would have on so many rows.
    """

    numbers: Diagnosis | None
    classes: dict[str, dict[str, float]]

    def __str__(self) -> str:
        lines = [
            f"{name}: log loss {s['log_loss']:.3f}, Brier {s['brier']:.3f}, accuracy {s['accuracy']:.3f}, "
            f"calibration error {s['calibration_error']:.3f} (by chance {s['chance']:.3f})"
            for name, s in self.classes.items()
        ]
        return "\n".join([*([] if self.numbers is None else [str(self.numbers)]), *lines])


@final
@dataclass(frozen=True, eq=False)
class PointSampler:
    """Draws of a mixed law as points, for tests that take numbers."""

    law: MixedLaw

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Independent draws (S, N, D) at rows X (N, p) of the numbers that the law takes."""
        rng = np.random.default_rng(random_state)
        return self.law.coding.embed(*self.law.sample(np.asarray(X, dtype=np.float64), n_samples, rng))


def diagnose_mixed(
    coding: OutputCoding, x: Array, numbers: Array, codes: Array, draws: Array, probabilities: list[Array]
) -> MixedDiagnosis:
    """Judge draws (S, N, d_n) of the numbers, and probabilities (N, K_j) of each category."""
    found = diagnose(x, numbers, draws) if numbers.shape[1] else None
    classes = {}
    rng = np.random.default_rng(0)
    for k, (j, p) in enumerate(zip(coding.classes, probabilities, strict=True)):
        truth = codes[:, k]
        drawn = (rng.random((20, len(p), 1)) >= np.cumsum(p, 1)[None, :, :-1]).sum(-1)
        classes[coding.names[j]] = {
            "log_loss": log_loss(truth, p),
            "brier": brier_score(truth, p),
            "accuracy": float((p.argmax(1) == truth).mean()),
            "calibration_error": calibration_error(truth, p),
            "chance": float(np.mean([calibration_error(one, p) for one in drawn])),
        }
    return MixedDiagnosis(found, classes)
