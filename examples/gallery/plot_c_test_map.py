"""
Where is a model wrong?
=======================

A sampler that is right on the left and too narrow on the right is tested on 600 new rows. The test is exact,
and the map shows the balls in which the distributions differ.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from localw2 import conditional_test

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, (600, 1))
y = rng.normal(size=600)


def sampler(x: Any) -> Any:
    """Right for x < 0.2; beyond that the spread is half of what it should be."""
    return np.where(x[:, 0] < 0.2, 1.0, 0.5) * rng.normal(size=len(x))


test = conditional_test(x, y, sampler, delta=0.2, n_permutations=199, random_state=0)
print(test.summary())

# %%
# Above: the statistic among random swaps of y and yhat. Below: the balls.
fig, axes = plt.subplots(2, 1, figsize=(6, 5.6), layout="constrained")
_ = test.plot(axes)
