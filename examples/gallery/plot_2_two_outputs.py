"""
Two dependent outputs
=====================

The correlation of two outputs changes with x, from -0.8 to 0.8. The distribution of each output alone does
not change; only their joint distribution does, and the draws show it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import Ridge

from localw2 import BallLaw, LocalW2Regressor

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (800, 1))
a, b = rng.normal(size=(2, 800))
tilt = 0.8 * x[:, 0]
y = np.column_stack([a, tilt * a + np.sqrt(1 - tilt**2) * b])

# %%
# A draw takes over the residuals of both outputs from one row of a ball, so their dependence is kept.
model = LocalW2Regressor(BallLaw(), base=Ridge(), random_state=0).fit(x, y)
inputs = np.array([[-0.9], [0.0], [0.9]])
draws = model.sample(inputs, 800, random_state=0)

fig, axes = plt.subplots(1, 3, figsize=(6, 2.6), sharex=True, sharey=True, layout="constrained")
for i, ax in enumerate(axes):
    ax.plot(*draws[:, i].T, ".", ms=2, color="#1f6fb4", alpha=0.5)
    found, true = np.corrcoef(draws[:, i].T)[0, 1], 0.8 * inputs[i, 0]
    ax.set_title(f"x = {inputs[i, 0]}\ncorrelation {found:.2f} ({true:.2f})", fontsize=9)
    ax.set_xlabel("first output")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("second output")
