"""
A band around a curve
=====================

Mean and 90 % interval at every input, learned from 400 rows. The spread of y is 0 in the middle and grows
towards both sides; the model learns this from the data.
"""

import numpy as np

from localw2 import LocalW2Regressor
from localw2.datasets import Nonlinear
from localw2.plots import band

truth = Nonlinear()
x, y = truth.sample(400, random_state=0)
model = LocalW2Regressor(random_state=0).fit(x, y)

# %%
# The truth is known here; its band is computed from many draws.
grid = np.linspace(-0.5, 0.5, 41)[:, None]
draws = truth.sample_y(np.repeat(grid, 4000, axis=0), np.random.default_rng(1)).reshape(41, 4000)
lower, upper = np.quantile(draws, [0.05, 0.95], axis=1)
ax = band(
    grid,
    model.predict(grid),
    *model.predict_interval(grid),
    data=(x, y),
    truth=(truth.mean(grid), lower, upper),
)
ax.figure.set_size_inches(6, 3.8)
