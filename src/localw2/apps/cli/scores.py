"""Scores of a model on rows that it was not fitted to, as numbers and as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from localw2._wording import align

if TYPE_CHECKING:
    from localw2._validation import Array

COVERAGE = 0.9
PIT_BINS = 10


def score_rows(
    estimator: Any, X: Any, y: Array, features: list[str], targets: list[str], draws: int, seed: int
) -> dict[str, Any]:
    """Compute the scores of each target, and the verdict of ``diagnose``."""
    import numpy as np

    from localw2.metrics import coverage, interval_width

    diagnosis = estimator.diagnose(X, y, n_samples=draws, random_state=seed, names=features)
    values = (y, estimator.predict(X), *estimator.predict_interval(X, coverage=COVERAGE))
    y, mean, lower, upper = (np.asarray(v).reshape(len(X), -1) for v in values)
    scores = {}
    for k, name in enumerate(targets):
        error = mean[:, k] - y[:, k]
        spread = float(((y[:, k] - y[:, k].mean()) ** 2).sum())
        counts = np.histogram(diagnosis.pit[:, k], PIT_BINS, (0, 1))[0]
        scores[name] = {
            "crps": diagnosis.crps[k],
            "rmse": float(np.sqrt((error**2).mean())),
            "mae": float(np.abs(error).mean()),
            "r2": 1 - float((error**2).sum()) / spread if spread > 0 else float("nan"),
            "coverage": coverage(y[:, k], lower[:, k], upper[:, k]),
            "width": interval_width(lower[:, k], upper[:, k]),
            "pit": (counts / len(X)).tolist(),
        }
    return {
        "rows": len(X),
        "interval": COVERAGE,
        "targets": scores,
        "calibrated": diagnosis.calibrated,
        "verdict": list(diagnosis.verdict),
    }


def format_scores(found: Mapping[str, Any]) -> list[str]:
    """Format the scores for people."""
    percent = f"{100 * found['interval']:.0f} %"
    rows = [["target", "CRPS", "RMSE", "MAE", "R2", f"in {percent}", f"width {percent}"]]
    for name, score in found["targets"].items():
        cells = [f"{score[key]:.4g}" for key in ("crps", "rmse", "mae", "r2")]
        rows.append([name, *cells, f"{100 * score['coverage']:.1f} %", f"{score['width']:.4g}"])
    lines = [f"{found['rows']} rows", align(rows)]
    for name, score in found["targets"].items():
        shares = " ".join(f"{100 * share:.0f}" for share in score["pit"])
        lines.append(f"PIT of {name}, % of rows per tenth (10 each if calibrated): {shares}")
    return [*lines, *found["verdict"]]
