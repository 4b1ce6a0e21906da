"""Frequencies instead of pairs: the same discrepancy and slope, to rounding, for values of any kind."""

import pytest
import torch

from localw2 import MMD, Neighborhoods
from localw2.losses import mmd, spectral

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
    monkeypatch.setattr(mmd, "FREQUENCIES", share)
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

    def spy(y, yhat, balls, shares, weights, plan, chosen):
        taken.append(balls.sizes[chosen])
        return compare(y, yhat, balls, shares, weights, plan, chosen)

    compare = mmd.compare_spectra
    monkeypatch.setattr(mmd, "compare_spectra", spy)
    y = torch.randn(200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for rows in (20, 200):
        solve(monkeypatch, mmd.FREQUENCIES, y[:rows], y[:rows].flip(0)[None])
    (sizes,) = taken
    assert len(sizes) == 200
    assert min(sizes) > 50
    # Where balls of both kinds occur in one loss, their sum is that of pairs alone.
    mixed = solve(monkeypatch, 0.6, y, y.flip(0)[None])
    assert 0 < len(taken[-1]) < 200
    torch.testing.assert_close(mixed, solve(monkeypatch, 0, y, y.flip(0)[None]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scratch", [1, 300])
def test_blocks_of_frequencies_add_up(monkeypatch, scratch):
    g = torch.Generator().manual_seed(4)
    y, yhat = KINDS["gaussian"](g), KINDS["heavy tails"](g)[None]
    whole = solve(monkeypatch, 1e9, y, yhat)
    monkeypatch.setattr(spectral, "SCRATCH_NUMBERS", scratch)
    monkeypatch.setattr(spectral, "SCRATCH_EDGES", scratch)
    monkeypatch.setattr(spectral, "DENSE", 2.0)
    torch.testing.assert_close(solve(monkeypatch, 1e9, y, yhat), whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [1e-150, 1e-8, 1.0, 1e8, 1e150])
def test_scales_with_its_values(monkeypatch, scale):
    g = torch.Generator().manual_seed(5)
    y, yhat = KINDS["gaussian"](g), KINDS["gaussian"](g)[None] * 2
    loss, slope = solve(monkeypatch, 1e9, y, yhat)
    scaled, slopes = solve(monkeypatch, 1e9, y * scale, yhat * scale)
    torch.testing.assert_close(scaled, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes * scale, slope, rtol=1e-10, atol=1e-13)


def test_the_slope_is_that_of_the_loss_at_fixed_bandwidths(monkeypatch):
    """A shift of all values moves no bandwidth, nor does one that keeps mean and variance in first order."""
    g = torch.Generator().manual_seed(6)
    y, yhat = KINDS["gaussian"](g), KINDS["gaussian"](g) + 0.4
    hoods = Neighborhoods.whole(80)
    problem = KERNELS.bind(y[None, :, None], hoods, torch.ones(1, dtype=torch.float64))
    slope = problem.solve(yhat[None, None, :, None])[1][0, 0, :, 0]
    # The bandwidth is twice the pooled variance: directions without a part along its gradient leave it as is.
    middle = torch.cat([y, yhat]).mean()
    direction = torch.randn(80, generator=g, dtype=torch.float64)
    along = yhat - middle
    direction -= along * (direction @ along) / (along @ along)
    step = 1e-5
    values = [problem.solve((yhat + s * direction)[None, None, :, None])[0] for s in (step, -step)]
    torch.testing.assert_close((values[0] - values[1])[0] / (2 * step), slope @ direction, rtol=1e-6, atol=0)


def test_values_that_are_not_finite_are_left_to_pairs(monkeypatch):
    y = torch.zeros(80, dtype=torch.float64)
    loss, _ = solve(monkeypatch, 1e9, y, torch.full((1, 80), torch.nan, dtype=torch.float64))
    assert not torch.isfinite(loss)
