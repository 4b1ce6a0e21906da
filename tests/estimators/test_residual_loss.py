"""The loss of a network on residuals: its scale comes from many rows, so that small balls keep the spread."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from localw2 import MSE, LocalW2Regressor, Nearest, Neighborhoods, Network, Objective, SquaredW2, Weighted
from localw2.estimators.regression.balls import ChosenBalls
from localw2.estimators.regression.loss import Anchored, ResidualLoss
from strategies import quiet_leaves

K = [12, 24, 48]


def best_spread(x, residuals, k, seed, n_draws=10):
    """The factor s at which s times independent noise has the lowest loss, a quadratic in s."""
    loss = ResidualLoss(SquaredW2(debiased=True), anchored=True, device=torch.device("cpu"))
    chosen = ChosenBalls(Nearest(k), Weighted.standardised(x), "standardised")
    objective = loss.objective(x, residuals[:, None], chosen, chosen.neighborhoods(x))
    noise = torch.randn(n_draws, len(x), 1, generator=torch.Generator().manual_seed(seed))
    low, middle, high = (float(objective(s * noise)) for s in (0.5, 1.0, 1.5))
    return 1 - 0.5 * (high - low) / (2 * (low + high - 2 * middle))


@pytest.mark.parametrize("k", K)
def test_the_best_spread_of_pure_noise_is_its_own(k):
    """Divided by their spread in their own balls of 12 rows, residuals would ask for .90 of it."""
    found = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, residuals = rng.normal(size=(1500, 2)), rng.normal(size=1500)
        found.append(best_spread(x, residuals, k, seed) / residuals.std())
    assert np.mean(found) == pytest.approx(1, abs=0.02)


def ratio(k, n, seed, law):
    """Fitted over true spread of pure noise, with a base whose residuals are out of fold."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 2)), rng.normal(size=n)
    model = LocalW2Regressor(law, base=LinearRegression(), delta=Nearest(k), random_state=seed)
    std = model.fit(x, y).predict(rng.normal(size=(300, 2)), return_std=True)[1]
    return np.sqrt((std**2).mean()) / y.std()


def test_a_fit_on_small_balls_keeps_the_spread():
    found = [ratio(12, 1000, seed, Network(width=16, epochs=200)) for seed in range(3)]
    assert np.mean(found) == pytest.approx(1, abs=0.03)  # .94 by the spread in the rows' own balls


@pytest.mark.slow
@pytest.mark.parametrize("k", K)
def test_fits_on_small_balls_keep_the_spread_campaign(k):
    found = [ratio(k, 1000, seed, Network(width=16, epochs=200)) for seed in range(12)]
    print(f"\n{k} rows per ball: fitted / true spread {np.mean(found):.3f} +- {np.std(found) / 12**0.5:.3f}")
    assert np.mean(found) == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("k", K)
def test_the_default_network_keeps_the_spread_of_pure_noise(k):
    """Everything at its default but the balls, 400 rows: within 2 % of the truth.

    In units of the rows' own SD, which is right on average: that of the fit varies with it, by 3.5 %.
    """
    found = []
    for seed in range(12):
        rng = np.random.default_rng([seed, 400])
        x, y = rng.normal(size=(400, 2)), rng.normal(size=400)
        model = LocalW2Regressor("network", delta=Nearest(k), random_state=seed).fit(x, y)
        _, std = model.predict(rng.normal(size=(500, 2)), return_std=True)
        found.append(np.sqrt((std**2).mean()) / y.std(ddof=1))
    error = np.std(found, ddof=1) / 12**0.5
    print(f"\n{k} rows per ball, default network: fitted / true spread {np.mean(found):.3f} +- {error:.3f}")
    assert error < 0.01
    assert abs(np.mean(found) - 1) < 0.02 + 2 * error


def test_blocks_of_leaves_share_out_the_anchor():
    """Weighted by their leaves, blocks add up to the loss; the penalty of all leaves is the plain mean."""
    rng = np.random.default_rng(0)
    hoods = quiet_leaves(rng.integers(0, 5, (40, 3)), min_size=2)
    y, yhat = torch.tensor(rng.normal(size=(40, 1))), torch.tensor(rng.normal(size=(2, 40, 1)))
    inner = SquaredW2(debiased=True)
    objective = Objective(y, hoods, Anchored(inner, 2.0))
    parts = 0.0
    for balls in np.array_split(rng.permutation(hoods.n_balls), 3):
        rows, part = objective.block(balls)
        parts += part(yhat[:, rows]) * part.hoods.weights.sum() / hoods.weights.sum()
    torch.testing.assert_close(parts, objective(yhat))
    full = quiet_leaves(rng.integers(0, 5, (40, 3)))
    means = yhat[0] * yhat[1]
    whole = Neighborhoods.whole(40)
    for graph in (full, whole):
        gap = Objective(y, graph, Anchored(MSE(), 2.0))(yhat) - Objective(y, graph, MSE())(yhat)
        torch.testing.assert_close(gap, 2 * means.mean())
