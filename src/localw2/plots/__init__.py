"""Plots from arrays, returned as matplotlib Axes."""

from localw2.plots.fields import curves, images
from localw2.plots.processes import coefficients, jumps, long_run, paths
from localw2.plots.rows import (
    DATA,
    MODEL,
    MOST_LAWS,
    MOST_LINES,
    MOST_OUTPUTS,
    REGIONS,
    TRUTH,
    Panel,
    ball_scores,
    band,
    dependence,
    field_along,
    importance,
    laws,
    pairs,
    trajectories,
)
from localw2.plots.subjects import individual_fits, predictive_check, residuals

__all__ = [
    "DATA",
    "MODEL",
    "MOST_LAWS",
    "MOST_LINES",
    "MOST_OUTPUTS",
    "REGIONS",
    "TRUTH",
    "Panel",
    "ball_scores",
    "band",
    "coefficients",
    "curves",
    "dependence",
    "field_along",
    "images",
    "importance",
    "individual_fits",
    "jumps",
    "laws",
    "long_run",
    "pairs",
    "paths",
    "predictive_check",
    "residuals",
    "trajectories",
]
