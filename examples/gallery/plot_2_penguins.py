"""
Penguins: categories and missing values
=======================================

The body mass of penguins from species, island, sex and four measurements. Categorical columns and missing
values go in as they are. Lines are 90 % prediction intervals of penguins that the fit has not seen.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import train_test_split

from localw2 import LocalW2Regressor
from localw2.datasets import load_penguins
from localw2.metrics import coverage

X, mass = load_penguins()
X_train, X_new, y_train, y_new = train_test_split(X, mass, test_size=0.25, random_state=0)
model = LocalW2Regressor(random_state=0).fit(X_train, y_train)
lower, upper = model.predict_interval(X_new)
print(f"the 90 % intervals contain {coverage(y_new, lower, upper):.0%} of {len(y_new)} new penguins")

# %%
# Sorted by the predicted mean.
order = np.argsort(model.predict(X_new))
species = X_new["species"].to_numpy()[order]
fig, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for name, colour in {"Adelie": "#b8381f", "Chinstrap": "#6b4fa0", "Gentoo": "#1f6fb4"}.items():
    at = np.flatnonzero(species == name)
    ax.vlines(at, lower[order[at]], upper[order[at]], color=colour, alpha=0.4, lw=2)
    ax.plot(at, y_new.to_numpy()[order[at]], "o", ms=3.5, color=colour, label=name)
ax.set(xlabel="new penguins", ylabel="body mass [g]")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
