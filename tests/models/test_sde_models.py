"""Stochastic equations: one step and many, jumps, bounds and full diffusions against what is known."""

import math

import pytest
import torch

from localw2.models.coefficients import (
    ConstantCoefficient,
    FunctionCoefficient,
    FunctionJumps,
    NetworkCoefficient,
    NormalJumps,
    count_jumps,
)
from localw2.models.sde import StochasticEquation, Transitions, simulate_paths


def equation(drift, diffusion, d=1, **more):
    shape = (d, d) if more.pop("full", False) else (d,)
    parts = FunctionCoefficient(drift, (d,), "drift"), FunctionCoefficient(diffusion, shape, "diffusion")
    return StochasticEquation(*parts, **more)


def rows(n, lag, *state):
    return torch.tensor([[0.0, lag, *state]]).double().expand(n, -1)


def test_the_drift_alone_is_heuns_second_order_method():
    model = Transitions(equation(lambda t, y: -y, lambda t, y: 0.0))
    errors = []
    for n in (1, 2, 4):
        model.n_steps = n
        errors.append(abs(float(model(rows(1, 0.4, 1.0))) + 1 - math.exp(-0.4)))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.3)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.3)


def test_mean_and_variance_of_a_square_root_process_are_right_to_second_order():
    bounds = torch.tensor([[1e-9], [math.inf]]).double()
    model = Transitions(equation(lambda t, y: 1 - y, lambda t, y: 0.5 * y.sqrt(), bounds=bounds), 2)
    n, e = 200_000, math.exp(-0.2)
    y = model(rows(n, 0.2, 0.5), None, torch.Generator().manual_seed(0)) + 0.5
    variance = 0.5 * 0.25 * (e - e * e) + 0.125 * (1 - e) ** 2
    assert float(y.mean()) == pytest.approx(1 - 0.5 * e, abs=4 * math.sqrt(variance / n) + 3e-4)
    assert float(y.std()) == pytest.approx(math.sqrt(variance), rel=4 / math.sqrt(n) + 2e-3)


def test_a_full_diffusion_gives_its_covariance():
    factor = torch.tensor([[0.5, 0.0], [0.3, 0.4]]).double()
    model = Transitions(equation(lambda t, y: 0 * y, lambda t, y: factor, 2, full=True), 3)
    increments = model(rows(100_000, 0.5, 0.0, 0.0), None, torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.cov(increments.T), 0.5 * factor @ factor.T, rtol=0.03, atol=0.003)


def test_twice_the_steps_along_the_same_noise_stay_close():
    model = Transitions(equation(lambda t, y: -y, lambda t, y: 0.5 + 0.1 * y))
    coarse, fine = model.coupled(rows(2000, 0.1, 1.0), torch.Generator().manual_seed(0))
    assert float((coarse - fine).std()) < 0.1 * float(fine.std())


def test_numbers_of_jumps_are_poisson():
    count = count_jumps(torch.full((50_000,), 0.7).double(), torch.Generator().manual_seed(0))
    assert float(count.mean()) == pytest.approx(0.7, abs=4 * math.sqrt(0.7 / 50_000))
    assert float(count.var()) == pytest.approx(0.7, rel=0.05)


def test_jumps_add_their_rate_times_their_size():
    jumps = NormalJumps(ConstantCoefficient(1, True), ConstantCoefficient(1), ConstantCoefficient(1, True))
    for part, value in ((jumps.rate, 2.0), (jumps.mean, 0.5), (jumps.std, 0.3)):
        part.start(torch.tensor([value]), torch.tensor([1.0]))
    model = Transitions(equation(lambda t, y: 0 * y, lambda t, y: 0.1, jumps=jumps.double()), 2)
    out = model(rows(100_000, 0.5, 0.0), None, torch.Generator().manual_seed(0)).detach()
    assert out.shape == (100_000, 3)
    variance = 0.5 * 0.01 + 1.0 * (0.25 + 0.09)
    assert float(out[:, 0].mean()) == pytest.approx(0.5, abs=4 * math.sqrt(variance / 1e5))
    assert float(out[:, 0].var()) == pytest.approx(variance, rel=0.04)
    torch.testing.assert_close(out[:, 2], torch.full((100_000,), 1.0).double())
    assert float((out[:, 1] - out[:, 0]).mean()) == pytest.approx(0.5, abs=0.01)


def test_a_negative_rate_of_jumps_is_none_from_which_parameters_come_back():
    """The probability of no jump would be above 1; and a rate that is cut off has no derivative."""
    rate = FunctionCoefficient(lambda t, y, a: a - y, (1,), "rate")
    size = FunctionCoefficient(lambda t, y, z: 1.0 + 0 * z, (1,), "jump", ("z",))
    falling = equation(lambda t, y: 0 * y, lambda t, y: 0.0, jumps=FunctionJumps(rate, size))
    n = 20_000
    start = torch.tensor([0.0, 1.5, 4.0]).double().repeat(n)[:, None]
    a, t, h = torch.ones(3 * n).double().requires_grad_(), torch.zeros(3 * n).double(), 0.5
    lag = torch.full_like(start, h)
    total, _, expected = falling.jump(t, start, lag, {"a": a}, torch.Generator().manual_seed(0))
    count = total.detach().view(n, 3)
    assert float(count[:, 0].mean()) == pytest.approx(h, abs=4 * math.sqrt(h / n))
    assert bool((count[:, 1:] == 0).all())
    torch.testing.assert_close(expected.detach().view(n, 3)[0], torch.tensor([h, 0.0, 0.0]).double())
    expected.sum().backward()
    torch.testing.assert_close(a.grad, torch.full_like(a, h))
    odd = torch.tensor([-1.0, -math.inf, 0.0, math.nan]).double()
    for part in (odd, odd[:2]):
        count = count_jumps(part, torch.Generator().manual_seed(0))
        torch.testing.assert_close(count, 0 * part.clamp_min(0), equal_nan=True)


def test_a_rate_of_jumps_in_another_unit_is_refused_and_an_unknown_one_shows():
    """Jumps are drawn one by one: 2e9 of them would take hours, in which Ctrl-C finds no stage to end."""
    parts = ConstantCoefficient(1, True), ConstantCoefficient(1), ConstantCoefficient(1, True)
    jumps = NormalJumps(*parts).double()
    still = equation(lambda t, y: 0 * y, lambda t, y: 0.1, jumps=jumps)
    y0, times = torch.tensor([[1.5], [2.5]]).double(), torch.tensor([0.0, 2.0]).double()
    for rate in (2e9, 1e30):
        jumps.rate.start(torch.tensor([rate]), torch.tensor([1.0]))
        with pytest.raises(ValueError, match=r"one step of 0.5 from the state \([12]\.5\).*unit"):
            simulate_paths(still, y0, times, 0.5)
    jumps.rate.start(torch.tensor([math.nan]), torch.tensor([1.0]))
    paths = simulate_paths(still, y0, times, 0.5)
    assert paths[:, 0].isfinite().all()
    assert paths[:, 1].isnan().all()


def test_states_stay_inside_bounds():
    bounds = torch.tensor([[0.0], [math.inf]]).double()
    steep = equation(lambda t, y: 0.1 - y, lambda t, y: 2 * (y + 1e-6).sqrt(), bounds=bounds)
    generator = torch.Generator().manual_seed(0)
    paths = simulate_paths(
        steep, torch.ones(200, 1).double(), torch.linspace(0, 3, 31), 0.05, None, generator
    )
    assert paths.shape == (200, 31, 1)
    assert bool(torch.isfinite(paths).all())
    assert float(paths.min()) == 0.0


def test_a_matrix_network_is_lower_triangular_with_a_positive_diagonal():
    net = NetworkCoefficient(
        3, 3, 8, 2, positive=True, matrix=True, generator=torch.Generator().manual_seed(0)
    )
    found = net(torch.zeros(4), torch.randn(4, 3), {}).detach()
    assert found.shape == (4, 3, 3)
    assert bool((found.diagonal(dim1=1, dim2=2) > 0).all())
    assert float(found.triu(1).abs().max()) == 0.0


def test_functions_written_for_one_path_are_mapped():
    mixing = FunctionCoefficient(lambda t, y, k: torch.stack([y.sum() * k, y[0]]), (2,), "drift")
    y, k = torch.randn(7, 2), torch.rand(7)
    expected = torch.stack([y.sum(1) * k, y[:, 0]], 1)
    torch.testing.assert_close(mixing(torch.zeros(7), y, {"k": k}), expected)


def test_functions_that_would_mix_paths_only_where_states_are_large_are_mapped():
    def grown(t, y, k):
        return -k * y * (1 + torch.relu(y.sum() - 10))

    y = 0.1 + torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = FunctionCoefficient(grown, (2,), "drift")(
        torch.zeros(200).double(), y, {"k": torch.ones(200).double()}
    )
    torch.testing.assert_close(found, -y)


def test_many_jumps_have_the_moments_of_poisson_numbers():
    for dtype in (torch.float32, torch.float64):
        count = count_jumps(torch.full((20_000,), 120.0, dtype=dtype), torch.Generator().manual_seed(0))
        # SDs of mean and variance: .08 and 1.2.
        assert float(count.mean()) == pytest.approx(120, abs=0.4)
        assert float(count.var()) == pytest.approx(120, abs=6)


def test_a_function_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        FunctionCoefficient(lambda t, y: torch.zeros(3), (2,), "drift")(torch.zeros(4), torch.zeros(4, 2), {})
    with pytest.raises(ValueError, match="first"):
        FunctionCoefficient(lambda t: t, (1,), "drift")
