"""
Two dependent outputs
=====================

The correlation of two outputs changes with x, from -0.8 to 0.8. The distribution of each output alone does
not change; only their joint distribution does, and the draws show it.
"""

import numpy as np
from sklearn.linear_model import Ridge

from localw2 import BallLaw, LocalW2Regressor
from localw2.plots import pairs

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (800, 1))
a, b = rng.normal(size=(2, 800))
tilt = 0.8 * x[:, 0]
y = np.column_stack([a, tilt * a + np.sqrt(1 - tilt**2) * b])

# %%
# A draw takes over the residuals of both outputs from one row of a ball, so their dependence is kept.
model = LocalW2Regressor(BallLaw(), base=Ridge(), random_state=0).fit(x, y)
inputs = np.array([[-0.9], [0.9]])
draws = model.sample(inputs, 800, random_state=0)

# %%
# Two inputs, two colours. Below the diagonal are the regions that hold 50 and 90 % of the draws, with the 40
# rows nearest to each input as dots: they lean in opposite directions, which no margin shows. The
# correlation of the draws stands beside the true one.
near = [y[np.abs(x[:, 0] - at).argsort()[:40]] for at in inputs[:, 0]]
found = [np.corrcoef(draws[:, i].T)[0, 1] for i in range(2)]
rows = [f"x = {at}, correlation {r:.2f} ({0.8 * at:.2f})" for at, r in zip(inputs[:, 0], found, strict=True)]
axes = pairs(draws, near, names=["first output", "second output"], rows=rows)
