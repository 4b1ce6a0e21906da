"""The loss on transitions: its gradient, its parts, and the derivative in the rate of jumps."""

import numpy as np
import pytest
import torch

from localw2 import Neighborhoods, Objective, SlicedW2
from localw2.losses.transitions import TransitionW2


def sample(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"squashed": True}, {"debiased": False}, {"n_anchors": 1}])
def test_the_gradient_is_that_of_the_value(d, settings):
    columns = d + settings.get("n_anchors", 0)
    hoods = Neighborhoods.nearest(np.linspace(0, 1, 12), 5)
    objective = Objective(sample((12, columns)), hoods, TransitionW2(4, **settings))
    yhat = sample((2, 12, columns), 1).requires_grad_()
    assert torch.autograd.gradcheck(objective, (yhat,), eps=1e-6, atol=1e-6)


def test_it_is_the_sliced_loss_plus_the_debiased_error_of_rows():
    y, yhat, hoods = sample((9, 2)), sample((3, 9, 2), 1), Neighborhoods.whole(9)
    wide = Objective(y, hoods, SlicedW2(8, debiased=True))(yhat)
    mean = yhat.mean(0)
    rows = (mean - y).square().sum() - (yhat - mean).square().sum() / 6
    both = Objective(y, hoods, TransitionW2(8, narrow=2.0))(yhat)
    torch.testing.assert_close(both, wide + 2.0 * rows / 9)


@pytest.mark.parametrize("squashed", [False, True])
def test_a_small_jump_changes_the_loss_by_the_slope(squashed):
    # The potential's difference over a short way is the derivative times the way.
    n, small = 40, 1e-5
    y, seen = sample((n, 1)), sample((2, n, 1), 1)
    jump = small * (1 + sample((2, n, 1), 2).abs())
    yhat = torch.cat([seen, seen + jump, torch.ones(2, n, 1).double()], 2).requires_grad_()
    target = torch.cat([y, y, torch.zeros(n, 1).double()], 1)
    hoods = Neighborhoods.nearest(np.linspace(0, 1, n), 20)
    settings = {"jumps": True, "squashed": squashed, "narrow": 0.0}
    Objective(target, hoods, TransitionW2(**settings))(yhat).backward()
    # Inside a step of the sorted draws the potential is linear between its ends, hence equal only on average.
    change, slope = yhat.grad[..., 2].sum(), (yhat.grad[..., 0] * jump[..., 0]).sum()
    assert float(change) == pytest.approx(float(slope), rel=0.3)
    assert bool((yhat.grad[..., 1] == 0).all())


def test_the_derivative_in_the_rate_is_that_of_the_expected_loss():
    # Finite differences of the expected loss in the rate of jumps of size 2 in standard normal noise.
    n, draws = 100, 800
    y = sample((n, 1)) + 2 * (torch.rand(n, 1, generator=torch.Generator().manual_seed(5)) < 0.3)
    target = torch.cat([y, y, torch.zeros(n, 1).double()], 1)
    objective = Objective(target, Neighborhoods.whole(n), TransitionW2(jumps=True))
    generator = torch.Generator().manual_seed(1)

    def simulate(rate):
        count = torch.poisson(torch.full((2, n, 1), rate), generator=generator).double()
        seen = torch.randn((2, n, 1), generator=generator, dtype=torch.float64) + 2 * count
        return torch.cat([seen, seen + 2, torch.full_like(seen, rate)], 2)

    slopes = []
    for _ in range(draws // 5):
        yhat = simulate(0.5).requires_grad_()
        objective(yhat).backward()
        slopes.append(float(yhat.grad[..., 2].sum()))
    high, low = (np.array([float(objective(simulate(r))) for _ in range(draws)]) for r in (0.6, 0.4))
    difference = (high.mean() - low.mean()) / 0.2
    error = np.hypot(high.std(), low.std()) / np.sqrt(draws) / 0.2 + np.std(slopes) / np.sqrt(len(slopes))
    assert np.mean(slopes) == pytest.approx(difference, abs=4 * error)
    assert difference > 4 * error  # the true rate is .3 at most once, so that .5 is too high
