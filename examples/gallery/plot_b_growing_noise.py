"""
Your regressor, with a distribution around it
=============================================

Any scikit-learn regressor can provide the mean. Here it is a random forest, and the noise is skewed and grows
with x. The model learns the distribution of what the forest leaves unexplained.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import RandomForestRegressor

from localw2 import LocalW2Regressor

rng = np.random.default_rng(0)
x = rng.uniform(0, 3, (500, 1))
y = np.sin(2 * x[:, 0]) + rng.gamma(2.0, 0.05 + 0.2 * x[:, 0])

forest = RandomForestRegressor(50, min_samples_leaf=15, random_state=0)
model = LocalW2Regressor(base=forest, random_state=0).fit(x, y)

# %%
# Quantiles at every x. The bands are wider above the median than below it.
grid = np.linspace(0, 3, 61)[:, None]
q = model.predict_quantiles(grid, [0.05, 0.25, 0.5, 0.75, 0.95])
fig, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
ax.plot(x, y, ".", ms=3, color="#8a8f98")
ax.fill_between(grid[:, 0], q[0], q[4], color="#1f6fb4", alpha=0.2, lw=0, label="90 %")
ax.fill_between(grid[:, 0], q[1], q[3], color="#1f6fb4", alpha=0.35, lw=0, label="50 %")
ax.plot(grid, q[2], color="#1f6fb4", label="median")
ax.set(xlabel="x", ylabel="y")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
