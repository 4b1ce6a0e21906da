"""The first lines that a newcomer writes: ``make dist`` runs them where only the package is installed."""

from __future__ import annotations

import numpy as np

import localw2
from localw2 import LocalW2Regressor

rng = np.random.default_rng(0)
X = rng.uniform(size=(200, 2))
y = X[:, 0] + X[:, 1] * rng.normal(size=200)

model = LocalW2Regressor(random_state=0).fit(X, y)
mean = model.predict(X)
draws = model.sample(X, n_samples=100, random_state=0)

assert mean.shape == (200,)
assert draws.shape == (100, 200)
assert np.corrcoef(draws.std(0), X[:, 1])[0, 1] > 0.5, "the spread of y grows with the second column"
print(f"localw2 {localw2.__version__} in {localw2.__file__} fits, predicts and samples")
