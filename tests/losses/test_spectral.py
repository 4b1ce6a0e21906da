"""Frequencies instead of pairs: the same discrepancy and slope, to rounding, for values of any kind."""

import pytest
import torch

from localw2 import MMD, Neighborhoods
from localw2.losses import pairwise

KINDS = {
    "gaussian": lambda g: torch.randn(80, generator=g, dtype=torch.float64),
    "an outlier": lambda g: torch.cat([torch.zeros(79), torch.tensor([1e4])]).double() + KINDS["gaussian"](g),
    "heavy tails": lambda g: KINDS["gaussian"](g) / torch.rand(80, generator=g, dtype=torch.float64),
    "two values": lambda g: torch.randint(2, (80,), generator=g).double(),
    "one value": lambda g: torch.full((80,), 3.0, dtype=torch.float64),
    "far from 0": lambda g: 1e6 + KINDS["gaussian"](g),
    "tiny": lambda g: 1e-12 * KINDS["gaussian"](g),
}
KERNELS = MMD()


def solve(monkeypatch, share, y, yhat, weights=None, kernels=KERNELS):
    """The loss and its gradient, with frequencies for up to ``share`` times the rows."""
    monkeypatch.setattr(pairwise, "FREQUENCIES", share)
    hoods = Neighborhoods.within(torch.linspace(0, 1, len(y))[:, None].numpy(), 0.3)
    hoods = hoods if weights is None else hoods.weigh(weights)
    problem = kernels.bind(y[None, :, None], hoods, (hoods.weights / hoods.weights.sum()).to(y))
    loss, slope = problem.solve(yhat[:, None, :, None])
    return loss[0], slope[:, 0, :, 0]


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_frequencies_give_what_pairs_give(monkeypatch, kind, shift, weighted):
    g = torch.Generator().manual_seed(0)
    y = KINDS[kind](g)
    yhat = torch.stack([KINDS[kind](g) + shift * y.std() for _ in range(2)])
    weights = torch.rand(80, generator=g).double().numpy() if weighted else None
    by_pairs = solve(monkeypatch, 0, y, yhat, weights)
    by_waves = solve(monkeypatch, 1e9, y, yhat, weights)
    # Values far from 0 have lost digits before they are compared.
    digits = 1e-8 if kind == "far from 0" else 1e-12
    assert (by_waves[0] - by_pairs[0]).abs() < digits
    largest = by_pairs[1].abs().max()
    assert (by_waves[1] - by_pairs[1]).abs().max() <= digits * max(float(largest), 1 / float(y.std() + 1))


@pytest.mark.parametrize("kernels", [MMD(1), MMD(3, 1.5), MMD(4, 0.5), MMD(2, 100.0)])
def test_any_kernels(monkeypatch, kernels):
    g = torch.Generator().manual_seed(1)
    y, yhat = KINDS["gaussian"](g), KINDS["heavy tails"](g)[None]
    by_pairs = solve(monkeypatch, 0, y, yhat, kernels=kernels)
    by_waves = solve(monkeypatch, 1e9, y, yhat, kernels=kernels)
    torch.testing.assert_close(by_waves, by_pairs, rtol=1e-11, atol=1e-12)


def test_single_precision_loses_no_more_digits_than_pairs(monkeypatch):
    g = torch.Generator().manual_seed(2)
    y, yhat = KINDS["gaussian"](g), KINDS["gaussian"](g)[None] + 0.3
    loss, slope = solve(monkeypatch, 0, y, yhat)
    errors = []
    for share in (0, 1e9):
        single = solve(monkeypatch, share, y.float(), yhat.float())
        errors.append((float((single[0] - loss).abs()), float((single[1] - slope).abs().max())))
    assert errors[1][0] <= 2 * errors[0][0] + 1e-7
    assert errors[1][1] <= 2 * errors[0][1] + 1e-7 * float(slope.abs().max())


def test_large_balls_take_frequencies_and_small_ones_pairs(monkeypatch):
    taken = []

    def spy(*given):
        taken.append(given[0].shape[1])
        return compare(*given)

    compare = pairwise.compare_spectra
    monkeypatch.setattr(pairwise, "compare_spectra", spy)
    y = torch.randn(200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for rows in (20, 200):
        solve(monkeypatch, pairwise.FREQUENCIES, y[:rows], y[:rows].flip(0)[None])
    assert min(taken) > 50


def test_values_that_are_not_finite_are_left_to_pairs(monkeypatch):
    y = torch.zeros(80, dtype=torch.float64)
    loss, _ = solve(monkeypatch, 1e9, y, torch.full((1, 80), torch.nan, dtype=torch.float64))
    assert not torch.isfinite(loss)
