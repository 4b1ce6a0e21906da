"""What a notebook shows of a fitted estimator's attributes is short, however many rows it was fitted to."""

import numpy as np
import pandas as pd
import pytest

from localw2 import (
    LocalW2FieldRegressor,
    LocalW2MixedRegressor,
    LocalW2ODE,
    LocalW2Regressor,
    LocalW2SDE,
    Network,
    Normal,
    RandomCoefficientRegressor,
)

MOST_LINES, MOST_LETTERS = 30, 1500
RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 2))
Y = X[:, 0] + RNG.normal(size=150)
MIXED = pd.DataFrame({"number": Y, "kind": np.where(Y > 0, "u", "v")})
FIELDS = np.outer(Y, np.sin(np.linspace(0, 3, 30))) + 0.1 * RNG.normal(size=(150, 30))
TIMES = np.linspace(0, 2, 9)
PATHS = np.exp(-np.abs(0.6 + 0.2 * RNG.normal(size=(40, 1))) * TIMES)[:, :, None]


def decay(t, y, k):
    return -k * y


FITS = {
    "regressor": lambda: LocalW2Regressor("balls", calibrate=True, random_state=0).fit(X, Y),
    "network": lambda: LocalW2Regressor(Network(epochs=2), random_state=0).fit(X, Y),
    "mixed": lambda: LocalW2MixedRegressor(random_state=0).fit(X, MIXED),
    "fields": lambda: LocalW2FieldRegressor(random_state=0).fit(X, FIELDS),
    "coefficients": lambda: RandomCoefficientRegressor(random_state=0).fit(X, Y),
    "ode": lambda: LocalW2ODE(decay, {"k": Normal(0.6, 0.3)}, max_epochs=60).fit(PATHS, TIMES),
    "sde": lambda: LocalW2SDE(max_steps=3, width=8, depth=1, random_state=0).fit(PATHS, TIMES),
}


@pytest.mark.parametrize("kind", FITS)
def test_what_a_fit_learned_is_shown_in_a_few_lines(kind):
    model = FITS[kind]()
    for name, value in vars(model).items():
        if name.startswith("_") or isinstance(value, np.ndarray):  # NumPy shortens its own
            continue
        shown = repr(value)
        assert shown.count("\n") < MOST_LINES, f"{name}: {shown[:200]}"
        assert len(shown) < MOST_LETTERS, f"{name}: {shown[:200]}"


def test_a_law_shows_the_shares_of_its_parts():
    model = FITS["regressor"]()
    shares = [f"{100 * share:.0f} % {name}" for name, share in model.weights_.items()]
    assert repr(model.law_) == f"ConditionalLaw({' + '.join(shares)})"
