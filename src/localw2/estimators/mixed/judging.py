"""How mixed outputs are judged: calibration of classes beside the diagnosis of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from localw2._validation import Array, check_count
from localw2.judging.diagnosis.diagnose import ADVICE, Diagnosis
from localw2.judging.seen_rows import describe_seen
from localw2.metrics import CalibrationBins, brier_score, log_loss

if TYPE_CHECKING:
    from localw2.estimators.mixed.coding import OutputCoding

LEVEL = 0.05
TABLES = 199  # of classes drawn from the probabilities, for the p-value of their calibration


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

    Those are ``log_loss``, ``brier``, ``accuracy``, and ``calibration_error`` with ``chance``, the mean error
    of right probabilities on so many rows, and ``pvalue``, the share of tables drawn from the probabilities
    themselves that have no smaller error: it tests whether they are calibrated. ``base_log_loss`` is that of
    the shares of the classes in these rows, whatever x. ``training_share`` is as in ``Diagnosis``.
    """

    numbers: Diagnosis | None
    classes: dict[str, dict[str, float]]
    training_share: float = 0.0
    n_rows: int = 0

    @property
    def valid(self) -> bool:
        """Whether the draws of numbers are independent between rows, as far as was checked."""
        return self.numbers is None or self.numbers.valid

    @property
    def calibrated(self) -> bool:
        """Whether neither the numbers nor the probabilities failed a test, each at 5 % together."""
        return not self.miscalibrated and (self.numbers is None or self.numbers.calibrated)

    @property
    def miscalibrated(self) -> list[str]:
        """The categorical columns whose probabilities are clearly not calibrated (Bonferroni, 5 %)."""
        most = LEVEL / max(1, len(self.classes))
        return [name for name, scores in self.classes.items() if scores["pvalue"] <= most]

    @property
    def verdict(self) -> list[str]:
        """Sentences: the judgement of the numbers, and of the probabilities of each category."""
        # Advice on the settings of a regressor, which this law does not have, is left out.
        known = [] if self.numbers is None else self.numbers.verdict
        lines = [line for line in known if line not in ADVICE.values()]
        lines[:1] = [f"Numbers: {line[:1].lower()}{line[1:]}" for line in lines[:1]]
        for name, s in self.classes.items():
            off = f"calibration error {s['calibration_error']:.3f}, by chance {s['chance']:.3f}"
            if name in self.miscalibrated:
                lines.append(
                    f"The probabilities of {name} are not calibrated: {off} (p = {s['pvalue']:.2g})."
                )
            else:
                told = "show no error in these rows, which says little of new ones"
                if not self.training_share:
                    told = "are calibrated as far as these rows can tell"
                lines.append(f"The probabilities of {name} {told}: {off}.")
            if s["base_log_loss"] == 0:
                lines.append(f"All of these rows have the same {name}, so they tell little of it.")
                continue
            gain = 1 - s["log_loss"] / s["base_log_loss"]
            side = "lower" if gain >= 0 else "higher"
            lines.append(
                f"Its log loss is {100 * abs(gain):.0f} % {side} than that of the class shares alone."
            )
        if self.training_share:
            lines.append(describe_seen(self.training_share, self.n_rows))
        return lines

    def __str__(self) -> str:
        lines = [
            f"{name}: log loss {s['log_loss']:.3f}, Brier {s['brier']:.3f}, accuracy {s['accuracy']:.3f}, "
            f"calibration error {s['calibration_error']:.3f} (by chance {s['chance']:.3f})"
            for name, s in self.classes.items()
        ]
        return "\n".join([*([] if self.numbers is None else [str(self.numbers)]), *lines])


def judge_classes(
    coding: OutputCoding, codes: Array, probabilities: list[Array]
) -> dict[str, dict[str, float]]:
    """Scores of probabilities (N, K_j) of each category for rows with these codes (N, d_c)."""
    found = {}
    rng = np.random.default_rng(0)
    for k, (j, p) in enumerate(zip(coding.classes, probabilities, strict=True)):
        truth = codes[:, k]
        levels, bins = np.cumsum(p, 1)[:, :-1], CalibrationBins.of(p)
        chance = [bins.error((rng.random((len(p), 1)) >= levels).sum(1)) for _ in range(TABLES)]
        error = bins.error(truth)
        shares = np.bincount(truth, minlength=p.shape[1]) / len(truth)
        found[coding.names[j]] = {
            "log_loss": log_loss(truth, p),
            "base_log_loss": float(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum()),
            "brier": brier_score(truth, p),
            "accuracy": float((p.argmax(1) == truth).mean()),
            "calibration_error": error,
            "chance": float(np.mean(chance)),
            "pvalue": float((1 + np.sum(np.array(chance) >= error)) / (1 + TABLES)),
        }
    return found
