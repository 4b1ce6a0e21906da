"""
Springs that all differ
=======================

Sixty springs, each with its own frequency, are observed at ten times with some values missing. ``LocalW2ODE``
finds the distribution of the frequency and forecasts a new spring beyond the data.
"""

from typing import Any

import numpy as np

from localw2 import LocalW2ODE, Normal
from localw2.plots import trajectories

rng = np.random.default_rng(0)
t = np.linspace(0, 3, 10)
frequency = rng.normal(2.0, 0.2, 60)
Y = np.stack([np.cos(frequency[:, None] * t), -frequency[:, None] * np.sin(frequency[:, None] * t)], axis=-1)
Y[rng.uniform(size=Y.shape[:2]) < 0.15] = np.nan
Y[:, 0] = [1.0, 0.0]  # all start from the same state


def spring(t: Any, y: Any, w: Any) -> list[Any]:
    """The derivatives of position and speed."""
    return [y[1], -(w**2) * y[0]]


model = LocalW2ODE(spring, {"w": Normal(1.6, 0.3)}, max_epochs=60, random_state=0).fit(Y, t)
print(model.parameters_)
print(f"realised: mean {frequency.mean():.3f}, SD {frequency.std():.3f}")

# %%
# Six time units from one initial state: the springs drift out of phase, and the band widens.
times = np.linspace(0, 6, 61)
paths = model.sample([[1.0, 0.0]], times, n_samples=300, random_state=0)
axes = trajectories(times, paths, names=["position", "speed"])
axes[0].figure.set_size_inches(6.4, 3)
