"""Weights of paths in LocalW2SDE: whole numbers count as copies, zeros as nothing."""

import numpy as np
import pytest
import torch

from localw2 import LocalW2SDE, LogNormal, Neighborhoods, Objective, Shared, load
from localw2.estimators.dynamics.first_look import FirstLook, JumpLook, quantile
from localw2.estimators.dynamics.transitions import TransitionRows
from localw2.estimators.dynamics.whole_paths import moments
from localw2.losses.transitions import TransitionW2

QUICK = {"random_state": 0, "device": "cpu", "max_steps": 2}


def pull(t, y, theta):
    return -theta * y


def constant(t, y, sigma):
    return sigma


def paths(theta, n=30, count=21, lag=0.2, sigma=0.5, seed=0):
    """Ornstein-Uhlenbeck paths (n, count) from 0."""
    rng, decay = np.random.default_rng(seed), np.exp(-theta * lag)
    y = np.zeros((n, count))
    for j in range(count - 1):
        y[:, j + 1] = decay * y[:, j] + sigma * np.sqrt((1 - decay**2) / (2 * theta)) * rng.normal(size=n)
    return y


TIMES = 0.2 * np.arange(21)
WEIGHTS = np.random.default_rng(1).integers(1, 4, 30).astype(float)


def rows_of(Y, weights=None):
    n, count = Y.shape
    number, time = np.repeat(np.arange(n), count), np.tile(TIMES[:count], n)
    return TransitionRows.of(number, time, Y.reshape(-1, 1), weights)


def test_what_is_computed_without_chance_is_that_of_copies():
    Y = paths(1.0)
    again = np.repeat(np.arange(30), WEIGHTS.astype(int))
    weighted, copies = rows_of(Y, WEIGHTS), rows_of(Y[again])
    np.testing.assert_allclose(weighted.standard_units(), copies.standard_units())
    np.testing.assert_allclose(weighted.roughness(), copies.roughness())
    for level in (0.5, 0.9):
        both = quantile(weighted.increment, level, weighted.weight), quantile(copies.increment, level, None)
        np.testing.assert_allclose(*both, atol=2e-3 if level != 0.5 else 1e-12)
    hoods = [Neighborhoods.whole(len(rows)) for rows in (weighted, copies)]
    looks = [FirstLook.of(rows, own, False, 2) for rows, own in zip((weighted, copies), hoods, strict=True)]
    for name in ("location", "spread", "coefficients"):
        for part in ("fit", "variance"):
            np.testing.assert_allclose(
                *(getattr(getattr(look, part), name) for look in looks), rtol=1e-6, atol=1e-9
            )
    variance = [np.full_like(rows.increment, 0.05) for rows in (weighted, copies)]
    start = JumpLook(0.1, np.ones(1), np.ones(1), np.ones(1))
    jumps = [
        JumpLook.of(rows.increment, own, rows.lag, start, rows.weight)
        for rows, own in zip((weighted, copies), variance, strict=True)
    ]
    assert jumps[0].rate == pytest.approx(jumps[1].rate, rel=1e-9)
    np.testing.assert_allclose(jumps[0].std, jumps[1].std, rtol=1e-9)
    values = torch.tensor(Y[:, 5:7])
    for one, other in zip(
        moments(values, torch.tensor(WEIGHTS)), moments(values[torch.tensor(again)], None), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("jumps", [False, True])
def test_the_loss_of_weighted_rows_is_that_of_copies(jumps):
    rng = np.random.default_rng(3)
    n, columns = 12, 3 if jumps else 1
    y, yhat = torch.tensor(rng.normal(size=(n, columns))), torch.tensor(rng.normal(size=(2, n, columns)))
    weights = rng.integers(1, 4, n)
    again = torch.tensor(np.repeat(np.arange(n), weights))
    found = []
    for rows, own in ((torch.arange(n), weights), (again, None)):
        drawn = yhat.clone().requires_grad_()
        settings = TransitionW2(jumps=jumps)
        loss = Objective(y[rows], Neighborhoods.whole(len(rows)), settings, sample_weight=own)(drawn[:, rows])
        loss.backward()
        found.append((loss.detach(), drawn.grad[..., :1]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_the_derivative_in_the_rate_knows_the_weights():
    # Between equal weights and none nothing differs; copies differ only in how a potential is interpolated.
    rng = np.random.default_rng(4)
    n = 60
    y, yhat = torch.tensor(rng.normal(size=(n, 3))), torch.tensor(rng.normal(size=(2, n, 3)))
    weights = rng.integers(1, 4, n)

    def slopes(rows, own):
        drawn = yhat.clone().requires_grad_()
        hoods = Neighborhoods.whole(len(rows))
        Objective(y[rows], hoods, TransitionW2(jumps=True), sample_weight=own)(drawn[:, rows]).backward()
        return drawn.grad[..., 2]

    every, again = torch.arange(n), torch.tensor(np.repeat(np.arange(n), weights))
    torch.testing.assert_close(slopes(every, np.full(n, 2.0)), slopes(every, None))
    weighted, copies = slopes(every, weights), slopes(again, None)
    assert float((weighted - copies).abs().max()) < 0.1 * float(copies.abs().max())


MIXED = np.vstack([paths(0.5), paths(4.0, seed=1), np.full((2, 21), 9.0)])
MOSTLY_SLOW = np.repeat([5.0, 1.0, 0.0], [30, 30, 2])


def test_weights_count_as_copies_and_zeros_as_nothing():
    settings = {**QUICK, "parameters": {"theta": 1.0, "sigma": 0.5}}
    found = [
        LocalW2SDE(pull, constant, **settings).fit(*given).parameters_.mean
        for given in (
            (MIXED, TIMES, MOSTLY_SLOW),
            (MIXED[:60], TIMES, 2 * MOSTLY_SLOW[:60]),
            (np.repeat(MIXED, MOSTLY_SLOW.astype(int), axis=0), TIMES),
            (MIXED[:60], TIMES),
        )
    ]
    weighted, dropped, copies, plain = found
    assert weighted == dropped
    # Theta has an SD of .1, of which two fits of the same data may differ by a part.
    assert weighted["theta"] == pytest.approx(copies["theta"], abs=0.15)
    assert weighted["sigma"] == pytest.approx(copies["sigma"], abs=0.04)
    assert plain["theta"] - weighted["theta"] > 0.2


def test_whole_paths_have_weights_too():
    laws = {"theta": LogNormal(1.0, 0.5), "sigma": Shared(0.5)}
    settings = {**QUICK, "parameters": laws, "max_steps": 5, "step": 0.2}
    found = [
        LocalW2SDE(pull, constant, **settings).fit(*given).parameters_.mean
        for given in (
            (MIXED, TIMES, MOSTLY_SLOW),
            (MIXED[:60], TIMES, MOSTLY_SLOW[:60]),
            (MIXED[:60], TIMES),
        )
    ]
    assert found[0] == found[1]
    assert found[0]["theta"] < found[2]["theta"] - 0.1


def test_weights_of_a_table_are_a_column(tmp_path):
    Y = paths(1.0, 10)
    table = {"who": np.repeat(np.arange(10), 21), "time": np.tile(TIMES, 10), "y": Y.ravel()}
    table["w"] = np.repeat(np.arange(10.0), 21)
    model = LocalW2SDE(pull, constant, **QUICK).fit_table(table, subject="who", sample_weight="w")
    same = LocalW2SDE(pull, constant, **QUICK).fit(Y[:, :, None], TIMES, np.arange(10.0))
    assert model.parameters_.mean == same.parameters_.mean
    assert model.subjects_ == list(range(10))
    model.save(tmp_path / "model")
    assert load(tmp_path / "model", drift=pull, diffusion=constant).subjects_ == model.subjects_


def test_one_path_has_one_weight():
    Y = paths(1.0, 1, 21)[0]
    with pytest.raises(ValueError, match="each of the 1 paths"):
        LocalW2SDE(**QUICK).fit(Y, TIMES, np.ones(21))
