"""Sinkhorn divergence against POT, its two limits, and what it must do where plans are hard to find."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from localw2 import Neighborhoods, Objective, Sinkhorn, SquaredW2


def transport(a, b, mass, epsilon):
    """The smoothed cost by POT, with the entropy relative to independence."""
    cost = ((a[:, None] - b) ** 2).sum(-1)
    plan = ot.bregman.sinkhorn_log(mass, mass, cost, epsilon, numItermax=1000, stopThr=1e-9, warn=False)
    seen = plan > 0
    entropy = (plan[seen] * np.log((plan / np.outer(mass, mass))[seen])).sum()
    return (plan * cost).sum() + epsilon * entropy


def divergence(y, yhat, mass, epsilon):
    parts = [transport(a, b, mass, epsilon) for a, b in ((y, yhat), (y, y), (yhat, yhat))]
    return parts[0] - 0.5 * (parts[1] + parts[2])


def scale(y, mass):
    return 2 * (mass @ ((y - mass @ y) ** 2)).sum()


@pytest.mark.parametrize(("n", "d", "epsilon"), [(12, 1, 1.0), (40, 3, 0.5), (64, 25, 0.1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_ball_agrees_with_pot(n, d, epsilon, weighted):
    rng = np.random.default_rng([n, d])
    x = np.repeat([0.0, 1.0], [n, n - 5])
    y, yhat = rng.normal(size=(2, 2 * n - 5, d)) * [[[1.0]], [[1.3]]]
    weights = rng.uniform(0.5, 2, len(x)) if weighted else np.ones(len(x))
    hoods = Neighborhoods.within(x, 0.5)
    found = Objective(torch.tensor(y), hoods, Sinkhorn(epsilon), sample_weight=weights if weighted else None)(
        torch.tensor(yhat)
    )
    expected, total = 0.0, 0.0
    for ball in (x == 0, x == 1):
        mass = weights[ball] / weights[ball].sum()
        value = divergence(y[ball], yhat[ball], mass, epsilon * scale(y[ball], mass))
        expected, total = expected + weights[ball].sum() * value, total + weights[ball].sum()
    assert float(found) == pytest.approx(expected / total, rel=1e-6)


@pytest.mark.parametrize("draws", [2, 3])
def test_debiased_subtracts_half_the_divergence_between_draws(draws):
    rng = np.random.default_rng(draws)
    y, yhat = rng.normal(size=(15, 2)), rng.normal(size=(draws, 15, 2))
    mass = np.full(15, 1 / 15)
    epsilon = 0.2 * scale(y, mass)
    loss = Objective(torch.tensor(y), Neighborhoods.whole(15), Sinkhorn(0.2, debiased=True))
    to_y = np.mean([divergence(y, one, mass, epsilon) for one in yhat])
    pairs = [divergence(yhat[r], yhat[s], mass, epsilon) for s in range(draws) for r in range(s)]
    assert float(loss(torch.tensor(yhat))) == pytest.approx(to_y - np.mean(pairs) / 2, rel=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_between_the_distance_of_the_means_and_w2(seed, n, d):
    rng = np.random.default_rng(seed)
    y, yhat = torch.tensor(rng.normal(size=(2, n, d)) * rng.choice([0.01, 1.0, 100.0]))
    hoods = Neighborhoods.whole(n)
    unit = scale(y.numpy(), np.full(n, 1 / n))
    exact = float(Objective(y, hoods, SquaredW2())(yhat))
    # A plan's entropy relative to independence is between 0 and log(n).
    assert abs(float(Objective(y, hoods, Sinkhorn(1e-3))(yhat)) - exact) <= 1e-3 * unit * np.log(n) * 1.001
    means = float((y.mean(0) - yhat.mean(0)).square().sum())
    size = float(yhat.var(0, correction=0).sum() + y.var(0, correction=0).sum())
    # The plan's departure from independence is of the order of the cost over epsilon.
    loose = 4 * (size + means) ** 2 / (1e5 * unit) + 1e-9 * 1e5 * unit
    assert abs(float(Objective(y, hoods, Sinkhorn(1e5))(yhat)) - means) <= loose
    middle = float(Objective(y, hoods, Sinkhorn(0.3))(yhat))
    assert -1e-6 * size <= middle
    assert Objective(y, hoods, Sinkhorn(0.3))(y) == pytest.approx(0, abs=1e-6 * size)


def test_far_samples_equal_rows_and_single_rows_are_no_trouble():
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.normal(size=(30, 2)))
    hoods = Neighborhoods.whole(30)
    loss = Objective(y, hoods, Sinkhorn(0.05))
    moved = float(loss(y + 1e4))
    assert moved == pytest.approx(2e8, rel=1e-6)
    outlier = y.clone()
    outlier[0] = 1e3
    exact = float(Objective(y, hoods, SquaredW2())(outlier))
    assert float(loss(outlier)) == pytest.approx(exact, rel=1e-3)
    constant = Objective(torch.zeros(30, 2, dtype=torch.float64), hoods, Sinkhorn())
    assert float(constant(y)) == pytest.approx(float(y.square().sum(1).mean()), rel=0.2)
    alone = Objective(y, Neighborhoods.singletons(30), Sinkhorn())
    assert float(alone(2 * y)) == pytest.approx(float(y.square().sum(1).mean()))


@pytest.mark.filterwarnings("ignore:The plans of")
@pytest.mark.parametrize("debiased", [False, True])
def test_numbers_that_are_none_end_in_one_and_not_in_a_loop(debiased):
    """On a GPU nothing looks at yhat before the loss does."""
    y = torch.tensor(np.random.default_rng(0).normal(size=(1, 12, 2)))
    problem = Sinkhorn(debiased=debiased).bind(y, Neighborhoods.whole(12), torch.ones(1).double())
    for bad in (torch.nan, torch.inf, 1e200):
        yhat = y.repeat(2, 1, 1, 1).clone()
        yhat[0, 0, 3, 1] = bad
        assert not problem.solve(yhat)[0].isfinite().all()


def test_a_tolerance_beyond_rounding_ends():
    rng = np.random.default_rng(1)
    y, yhat = torch.tensor(rng.normal(size=(2, 150, 2)))
    hoods = Neighborhoods.whole(150)
    with pytest.warns(UserWarning, match="tolerance"):
        tight = Objective(y, hoods, Sinkhorn(tolerance=1e-30))(yhat)
    torch.testing.assert_close(tight, Objective(y, hoods, Sinkhorn())(yhat))


def test_single_precision_has_its_digits_by_default():
    rng = np.random.default_rng(2)
    hoods = Neighborhoods.within(np.repeat(np.arange(6.0), 40), 0.5)
    y, yhat = (torch.tensor(part) for part in rng.normal(size=(2, 240, 25)) * [[[1.0]], [[1.3]]])
    found = []
    for precision in (torch.float64, torch.float32):
        draws = yhat.to(precision, copy=True).requires_grad_()
        value = Objective(y.to(precision), hoods, Sinkhorn())(draws)
        value.backward()
        assert value.dtype == precision
        found.append((value.item(), draws.grad.double()))
    (value, slope), (single, its_slope) = found
    assert single == pytest.approx(value, rel=1e-6)
    assert (its_slope - slope).norm() < 1e-5 * slope.norm()


def solve_alone(y, yhat, hoods, weights=None, **settings):
    """The mean over balls of the divergence, each ball in a call of its own, in double precision."""
    total, mass = 0.0, 0.0
    weights = np.ones(len(y)) if weights is None else weights
    for ball in range(hoods.n_balls):
        rows = hoods.block(torch.tensor([ball]))[0].numpy()
        rows = rows[weights[rows] > 0]
        own, share = torch.tensor(weights[rows]), float(hoods.weights[ball])
        if len(rows):
            loss = Objective(
                y[rows].double(), Neighborhoods.whole(len(rows)), Sinkhorn(**settings), sample_weight=own
            )
            total, mass = total + share * float(loss(yhat[rows].double())), mass + share
    return total / mass


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
@pytest.mark.parametrize(("d", "epsilon"), [(1, 0.1), (2, 0.1), (2, 0.003), (25, 0.1), (25, 0.01)])
def test_balls_of_other_sizes_are_as_right_as_alone(precision, d, epsilon):
    """Their rows are padded, and padding has no logarithm."""
    rng = np.random.default_rng([d, int(1 / epsilon)])
    x = rng.uniform(size=200)
    y, yhat = (
        torch.tensor(part, dtype=precision) for part in rng.normal(size=(2, 200, d)) * [[[1.0]], [[1.3]]]
    )
    hoods = Neighborhoods.within(x, 0.05)
    yhat = yhat.requires_grad_()
    value = Objective(y, hoods, Sinkhorn(epsilon))(yhat)
    value.backward()
    assert yhat.grad.isfinite().all()
    assert value.item() == pytest.approx(solve_alone(y, yhat.detach(), hoods, epsilon=epsilon), rel=1e-5)


@pytest.mark.parametrize("level", [0.0, 1.1, 21.7, 1e4])
def test_equal_rows_in_single_precision_have_the_unit_of_the_draws(level):
    """Their middle is off by rounding, which is no spread; nor is it their cost."""
    for size, spread in ((5, 1.0), (23, 1.0), (100, 1e-2)):
        generator = torch.Generator().manual_seed(size)
        y = torch.full((size, 2), level)
        yhat = y + spread * torch.randn(size, 2, generator=generator)
        hoods = Neighborhoods.whole(size)
        exact = float(Objective(y.double(), hoods, Sinkhorn())(yhat.double()))
        assert float(Objective(y, hoods, Sinkhorn())(yhat)) == pytest.approx(exact, rel=1e-5)
    tiny = 1e-8 * torch.randn(50, 2, generator=generator)
    values = [
        float(Objective(torch.zeros(50, 2, dtype=kind), Neighborhoods.whole(50), Sinkhorn())(tiny.to(kind)))
        for kind in (torch.float32, torch.float64)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_rows_without_weight_are_not_there():
    rng = np.random.default_rng(4)
    hoods = Neighborhoods.within(np.repeat(np.arange(5.0), 40), 0.5)
    for _ in range(5):
        y, yhat = torch.tensor(rng.normal(size=(2, 200, 2)))
        weights = rng.integers(0, 3, 200).astype(float)
        value = Objective(y, hoods, Sinkhorn(), sample_weight=weights)(yhat)
        kept = weights > 0
        few = Neighborhoods.within(np.repeat(np.arange(5.0), 40)[kept], 0.5)
        expected = Objective(y[kept], few, Sinkhorn(), sample_weight=weights[kept])(yhat[kept])
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("settings", [{}, {"tolerance": 0.01}, {"epsilon": 0.005}])
def test_far_rows_end_in_numbers(settings):
    """Longer turns may run away while a few light rows are far from right."""
    for seed in range(4):
        y, yhat = torch.tensor(np.random.default_rng(seed).standard_t(1.2, size=(2, 1600, 3)))
        yhat.requires_grad_()
        value = Objective(y, Neighborhoods.within(np.repeat(np.arange(4.0), 400), 0.5), Sinkhorn(**settings))(
            yhat
        )
        value.backward()
        assert value.isfinite()
        assert yhat.grad.isfinite().all()


def slope(y, yhat, hoods, weights=None, **settings):
    draws = yhat.clone().requires_grad_()
    Objective(y, hoods, Sinkhorn(**settings), sample_weight=weights)(draws).backward()
    return draws.grad


@pytest.mark.filterwarnings("ignore:The plans of")  # of one seed and the small tolerance
@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
@pytest.mark.parametrize(("epsilon", "tails"), [(0.1, 100.0), (1.0, 1.0), (0.02, 3.0)])
def test_the_default_gradient_of_weighted_rows_is_that_of_a_small_tolerance(
    epsilon, tails, precision, debiased
):
    """Kernels of heavy tails and unequal weights leave the range of single precision."""
    for seed in (60, 65, 103):
        rng = np.random.default_rng(seed)
        y = torch.tensor(rng.standard_t(tails, (100, 5)))
        yhat = torch.tensor(rng.standard_t(tails, (3, 100, 5)))
        weights = 10 ** rng.uniform(-4, 0, 100)
        hoods = Neighborhoods.whole(100)
        exact = slope(y, yhat, hoods, weights, epsilon=epsilon, debiased=debiased, tolerance=1e-8)
        found = slope(y.to(precision), yhat.to(precision), hoods, weights, epsilon=epsilon, debiased=debiased)
        assert (found - exact).norm() < 1e-3 * exact.norm()


@pytest.mark.parametrize("share", [1e-7, 1e-9, 1e-11, 1e-14])
def test_a_far_cluster_of_hardly_any_weight_has_a_gradient(share):
    """Its rows go to each other: a shift of them by .01 has the slope 2 * .01 times their weight."""
    for precision in (torch.float64, torch.float32):
        rng = np.random.default_rng(8)
        y = torch.tensor(rng.normal(size=(40, 1)), dtype=precision)
        y[:3] = 300.0 + torch.tensor([[-0.25], [0.0], [0.25]])
        yhat = torch.tensor(rng.normal(size=(40, 1)), dtype=precision)
        yhat[:3] = y[:3] + 0.0625
        weights = np.ones(40)
        weights[:3] = share
        found = slope(y, yhat, Neighborhoods.whole(40), weights, epsilon=1.0)
        assert found.isfinite().all()
        total = float(found[:3].sum()) / (3 * share) * 37
        assert total == pytest.approx(2 * 0.0625, rel=0.05)


@pytest.mark.parametrize("unit", [1e-120, 1e-44, 1e40, 1e100])
def test_the_unit_of_double_precision_does_not_matter(unit):
    rng = np.random.default_rng(3)
    y, yhat = (torch.tensor(part) for part in rng.normal(size=(2, 30, 2)))
    hoods = Neighborhoods.whole(30)
    torch.testing.assert_close(slope(unit * y, unit * yhat, hoods) / unit, slope(y, yhat, hoods))


@pytest.mark.parametrize("unit", [1e-24, 1e-6, 1.0, 1e15])
def test_the_unit_of_single_precision_does_not_matter(unit):
    rng = np.random.default_rng(3)
    y, yhat = (torch.tensor(part) for part in rng.normal(size=(2, 40, 3)))
    hoods = Neighborhoods.whole(40)
    slopes = []
    for scale, precision in ((1.0, torch.float64), (unit, torch.float32)):
        draws = (scale * yhat).to(precision).requires_grad_()
        Objective((scale * y).to(precision), hoods, Sinkhorn())(draws).backward()
        slopes.append(draws.grad.double() / scale)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("epsilon", [1.0, 1e2, 1e4])
def test_a_large_epsilon_costs_single_precision_no_digits(epsilon):
    rng = np.random.default_rng(5)
    y, yhat = (torch.tensor(part) for part in np.add(rng.normal(size=(2, 60, 3)), [[[0.0]], [[0.3]]]))
    hoods = Neighborhoods.whole(60)
    exact = float(Objective(y, hoods, Sinkhorn(epsilon))(yhat))
    assert float(Objective(y.float(), hoods, Sinkhorn(epsilon))(yhat.float())) == pytest.approx(
        exact, rel=1e-5
    )


def test_autocast_changes_nothing():
    rng = np.random.default_rng(6)
    y, yhat = (torch.tensor(part, dtype=torch.float32) for part in rng.normal(size=(2, 60, 25)))
    loss = Objective(y, Neighborhoods.whole(60), Sinkhorn())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(yhat)
    assert found == loss(yhat)


def test_a_far_row_of_another_ball_changes_no_digit():
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.uniform(size=100), [50.0, 50.1]])
    y, yhat = (torch.tensor(part, dtype=torch.float32) for part in rng.normal(size=(2, 102, 2)))
    hoods, slopes = Neighborhoods.within(x, 0.2), []
    for far in (0.0, 1e4):
        moved = torch.zeros(102, 1)
        moved[-1] = far
        draws = (yhat + moved).requires_grad_()
        Objective(y + moved, hoods, Sinkhorn())(draws).backward()
        slopes.append(draws.grad[:100])
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 1e7}, "1e6"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"tolerance": 1}, "tolerance"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Sinkhorn(**settings)


@pytest.mark.parametrize(("d", "epsilon"), [(2, 0.1), (25, 0.1), (25, 0.005)])
@pytest.mark.parametrize("far", [0.0, 1e5])
def test_a_rough_tolerance_is_nearly_right(d, epsilon, far):
    """Single precision, also far from the origin and where plans are nearly sharp."""
    rng = np.random.default_rng(d)
    hoods = Neighborhoods.within(np.repeat(np.arange(6.0), 40), 0.5)
    y, yhat = (torch.tensor(part) for part in rng.normal(size=(2, 240, d)) * [[[1.0]], [[1.3]]] + far)
    found = []
    for tolerance in (1e-9, 1e-2):
        draws = yhat.clone().requires_grad_()
        value = Objective(y, hoods, Sinkhorn(epsilon, tolerance=tolerance))(draws)
        value.backward()
        found.append((value.item(), draws.grad))
    (value, slope), (rough, its_slope) = found
    assert rough == pytest.approx(value, rel=1e-3)
    assert (its_slope - slope).norm() < 0.02 * slope.norm()
