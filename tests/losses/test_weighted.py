"""Weights of rows in every loss: as repeated rows, as POT's weighted transport, as finite differences."""

import warnings

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from localw2 import (
    MMD,
    MSE,
    EnergyScore,
    LazyNeighborhoods,
    MeanVar,
    Neighborhoods,
    Objective,
    Sinkhorn,
    SlicedW2,
    SquaredW2,
    local_w2,
    w2_squared,
)
from localw2.balls.ragged import MOST_COPIES
from localw2.losses import weighted as weighted_loss
from localw2.losses.discrepancies import Discrepancy
from localw2.losses.stacked import StackedLosses
from strategies import problems, quiet_within

DISCREPANCIES = [
    SquaredW2(),
    SquaredW2(debiased=True),
    SlicedW2(8),
    SlicedW2(8, debiased=True),
    MMD(),
    MMD(n_kernels=3, multiplier=1.5),
    MSE(),
    MeanVar(),
    MeanVar(summed=True),
    EnergyScore(),
    Sinkhorn(tolerance=1e-10),
    Sinkhorn(0.02, debiased=True, tolerance=1e-10),
]


def quiet(*arguments, **options) -> Objective:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # balls of one row
        return Objective(*arguments, **options)


def value_and_gradient(objective, yhat):
    yhat = yhat.clone().requires_grad_()
    value = objective(yhat)
    value.backward()
    return value.detach(), yhat.grad


def make(d, n=25, seed=0, draws=3):
    rng = np.random.default_rng([seed, d])
    x, counts = rng.uniform(size=n).round(1), rng.integers(0, 4, n)
    return x, torch.tensor(rng.normal(size=(n, d))), torch.tensor(rng.normal(size=(draws, n, d))), counts


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("discrepancy", DISCREPANCIES, ids=str)
def test_whole_numbers_count_as_repeated_rows(discrepancy, d):
    x, y, yhat, counts = make(d)
    rows = np.repeat(np.arange(len(x)), counts)
    repeated, weighted = (quiet_within(v, 0.25, min_size=2) for v in (x[rows], x))
    # A ball of copies of one row is one ball of one row: neither may be left out of one side only.
    assert (np.bincount(weighted.weigh(counts).sizes) > 0)[:2].sum() == 0
    theirs, slope = value_and_gradient(quiet(y[rows], repeated, discrepancy), yhat[:, rows])
    ours, gradient = value_and_gradient(quiet(y, weighted, discrepancy, sample_weight=counts), yhat)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    added = torch.zeros_like(gradient).index_add_(1, torch.tensor(rows), slope)
    torch.testing.assert_close(gradient, added, rtol=1e-9, atol=1e-11)


@settings(max_examples=40)
@given(problems(d=st.just(1)), st.integers(0, 2**32 - 1))
def test_one_output_is_pot_s_weighted_transport_in_every_ball(problem, seed):
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=len(problem.y)) * (rng.random(len(problem.y)) < 0.8)
    weights[0] = 1.0
    hoods = problem.hoods.weigh(weights)
    found = w2_squared(problem.y, problem.yhat, hoods)
    for ball in range(hoods.n_balls):
        rows = hoods.ball(ball)
        share = weights[rows.numpy()] / weights[rows.numpy()].sum()
        y, yhat = (v[rows, 0].numpy() for v in (problem.y, problem.yhat))
        assert float(found[ball]) == pytest.approx(ot.emd2_1d(y, yhat, share, share), rel=1e-9, abs=1e-10)


def test_several_outputs_are_exact_for_few_copies_and_close_otherwise():
    rng = np.random.default_rng(1)
    y, yhat = torch.tensor(rng.normal(size=(2, 30, 2)))

    def transport(weights):
        share = weights / weights.sum()
        return ot.emd2(share, share, ot.dist(y.numpy(), yhat.numpy()))

    few, any_ = rng.integers(1, 4, 30) / 7, rng.exponential(size=30)
    assert float(w2_squared(y, yhat, Neighborhoods.whole(30).weigh(few))[0]) == pytest.approx(transport(few))
    near = float(w2_squared(y, yhat, Neighborhoods.whole(30).weigh(any_))[0])
    assert near != pytest.approx(transport(any_), rel=1e-6)
    assert near == pytest.approx(transport(any_), rel=0.05)


def test_torch_sorts_as_numpy_does(monkeypatch):
    """Devices other than the CPU sort by torch."""
    x, y, yhat, _ = make(1)
    objective = Objective(y, quiet_within(x, 0.25, min_size=2), SquaredW2(True), sample_weight=x + 0.1)
    here = value_and_gradient(objective, yhat)
    monkeypatch.setattr(weighted_loss, "_sort", lambda values, small=False: torch.sort(values, dim=-1).values)
    torch.testing.assert_close(value_and_gradient(objective, yhat), here)


@pytest.mark.parametrize("draws", [1, 3])
def test_samples_that_are_equal_are_at_no_distance_and_far_ones_keep_their_digits(draws):
    rng = np.random.default_rng(8)
    hoods = Neighborhoods.nearest(rng.normal(size=50), 9).weigh(rng.exponential(size=50) + 0.1)
    y = torch.tensor(rng.normal(size=50))
    objective = Objective(y, hoods)
    assert abs(float(objective(y.expand(draws, -1)))) <= (0 if draws == 1 else 1e-14)
    far = Objective(y + 1e8, hoods)
    assert float(far(y.expand(draws, -1) + (1e8 + 2))) == pytest.approx(4, rel=1e-9)


@pytest.mark.parametrize("draws", [2, 5])
@pytest.mark.parametrize("debiased", [False, True])
def test_several_draws_are_pot_s_transport_between_all_pairs(draws, debiased):
    rng = np.random.default_rng([9, draws])
    weights, y, yhat = rng.exponential(size=40), rng.gamma(1.0, size=40), rng.normal(size=(draws, 40))
    share = weights / weights.sum()

    def transport(a, b):
        return ot.emd2_1d(a, b, share, share)

    expected = np.mean([transport(one, y) for one in yhat])
    if debiased:
        pairs = [transport(a, b) for i, a in enumerate(yhat) for b in yhat[:i]]
        expected -= np.sum(pairs) / (draws * (draws - 1))
    objective = Objective(y, Neighborhoods.whole(40), SquaredW2(debiased), sample_weight=weights)
    assert float(objective(torch.tensor(yhat))) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("discrepancy", [d for d in DISCREPANCIES if d != MeanVar(summed=True)], ids=str)
def test_weights_may_be_of_any_size(discrepancy, dtype):
    """Also where all weights of a ball are too small, or too large, for single precision."""
    x, y, yhat, _ = make(1)
    hoods, weights = quiet_within(x, 0.25, min_size=2), np.where(x > 0.5, 1.0, 1e-60)
    values = [
        value_and_gradient(quiet(y.to(dtype), hoods, discrepancy, sample_weight=c * weights), yhat.to(dtype))
        for c in (1.0, 1e-50, 1e50, 1e-240)
    ]
    assert all(torch.isfinite(value) and torch.isfinite(slope).all() for value, slope in values)
    if not isinstance(discrepancy, MMD):  # whose bandwidth counts copies
        for value, slope in values[1:]:
            torch.testing.assert_close((value, slope), values[0], rtol=1e-5, atol=1e-6)


def test_stacked_losses_share_weighted_balls():
    x, y, yhat, counts = make(1)
    hoods = quiet_within(x, 0.25, min_size=2).weigh(counts + 1)
    goals = [Objective(y, hoods, SquaredW2(True)), Objective(2 * y + 1, hoods, SquaredW2(True))]
    together = StackedLosses(goals)(torch.stack([yhat, yhat]))
    torch.testing.assert_close(together, torch.stack([goal(yhat) for goal in goals]))


def test_rows_are_apportioned_by_largest_remainders():
    rng = np.random.default_rng(2)
    weights = rng.exponential(size=40)
    hoods = Neighborhoods.nearest(rng.normal(size=40), 12).weigh(weights)
    copies = hoods.repeat_rows()
    assert copies.sizes.tolist() == [12 * MOST_COPIES] * hoods.n_balls
    for ball in range(hoods.n_balls):
        rows = hoods.ball(ball).numpy()
        counts = np.bincount(copies.ball(ball).numpy(), minlength=40)[rows]
        assert np.abs(counts - weights[rows] / weights[rows].sum() * 12 * MOST_COPIES).max() < 1


@pytest.mark.parametrize("discrepancy", [d for d in DISCREPANCIES if not isinstance(d, MMD)], ids=str)
@pytest.mark.parametrize("d", [1, 2])
def test_gradients_are_those_of_finite_differences(discrepancy, d):
    x, y, yhat, _ = make(d, n=12)
    weights = np.random.default_rng(3).exponential(size=12) + 0.1
    objective = quiet(y, quiet_within(x, 0.3, min_size=2), discrepancy, sample_weight=weights)
    assert torch.autograd.gradcheck(objective, yhat.requires_grad_())


def test_the_gradient_in_y_too():
    x, y, yhat, _ = make(1, n=12)
    hoods = quiet_within(x, 0.3).weigh(np.random.default_rng(4).exponential(size=12))
    inputs = y.requires_grad_(), yhat[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: w2_squared(a, b, hoods), inputs)


@pytest.mark.parametrize("discrepancy", DISCREPANCIES, ids=str)
@pytest.mark.parametrize("d", [1, 2])
class TestEveryLoss:
    def test_equal_weights_change_nothing(self, discrepancy, d):
        x, y, yhat, _ = make(d)
        hoods = quiet_within(x, 0.25, min_size=2)
        plain = value_and_gradient(Objective(y, hoods, discrepancy), yhat)
        ones = value_and_gradient(Objective(y, hoods, discrepancy, sample_weight=np.ones(len(x))), yhat)
        torch.testing.assert_close(ones, plain, rtol=1e-10, atol=1e-12)

    def test_a_row_of_weight_zero_is_not_there(self, discrepancy, d):
        x, y, yhat, _ = make(d)
        weights = np.random.default_rng(5).integers(0, 3, len(x)) + 0.5
        weights[::4] = 0
        kept = np.flatnonzero(weights)
        part = quiet(y[kept], quiet_within(x[kept], 0.25), discrepancy, sample_weight=weights[kept])
        whole = quiet(y, quiet_within(x, 0.25), discrepancy, sample_weight=weights)
        value, gradient = value_and_gradient(whole, yhat)
        expected = value_and_gradient(part, yhat[:, kept])
        torch.testing.assert_close((value, gradient[:, kept]), expected, rtol=1e-10, atol=1e-12)
        assert not gradient[:, ::4].any()

    def test_only_ratios_matter(self, discrepancy, d):
        if isinstance(discrepancy, MMD) or (isinstance(discrepancy, MeanVar) and discrepancy.summed):
            return  # pairs of different rows, and sums, count copies
        x, y, yhat, _ = make(d)
        hoods, weights = quiet_within(x, 0.25, min_size=2), np.random.default_rng(6).exponential(size=len(x))
        one, many = (quiet(y, hoods, discrepancy, sample_weight=c * weights)(yhat) for c in (1.0, 1e4))
        torch.testing.assert_close(one, many, rtol=1e-9, atol=1e-12)

    def test_the_mean_over_blocks_is_the_whole(self, discrepancy, d):
        x, y, yhat, counts = make(d)
        objective = quiet(y, quiet_within(x, 0.25, min_size=2), discrepancy, sample_weight=counts + 0.3)
        hoods, total = objective.hoods, 0.0
        for balls in (range(3), range(3, hoods.n_balls)):
            rows, part = objective.block(balls)
            total += part(yhat[:, rows]) * hoods.weights[list(balls)].sum() / hoods.weights.sum()
        torch.testing.assert_close(total, objective(yhat))

    def test_single_precision_and_vmap_agree(self, discrepancy, d):
        x, y, yhat, counts = make(d)
        hoods = quiet_within(x, 0.25, min_size=2).weigh(counts + 1.0)
        exact = Objective(y, hoods, discrepancy)
        single = Objective(y.float(), hoods, discrepancy)(yhat.float())
        torch.testing.assert_close(single.double(), exact(yhat), rtol=1e-4, atol=1e-5)
        models = torch.stack([yhat, yhat + 1])
        together = torch.vmap(exact)(models)
        torch.testing.assert_close(together, torch.stack([exact(m) for m in models]))


def test_the_debiased_loss_has_the_truth_as_minimiser_whatever_the_weights():
    """E D(model) - E D(truth) is the squared distance of expected weighted quantile functions, so >= 0."""
    rng = np.random.default_rng(7)
    n, balls = 5, 20_000
    weights = np.array([5.0, 1.0, 1.0, 0.5, 0.2])
    y = torch.tensor(rng.normal(size=(n, balls, 1)))
    objective = Objective(y, Neighborhoods.whole(n), SquaredW2(debiased=True), sample_weight=weights)
    scales = np.array([0.6, 0.8, 1.0, 1.2, 1.4])
    noise = torch.tensor(rng.normal(size=(4, n, balls, 1)))
    losses = [float(objective(s * noise)) for s in scales]
    parabola = np.polyfit(scales, losses, 2)
    best = -parabola[1] / (2 * parabola[0])
    # In the sampling error of this many balls: E Q = 0 and the loss is c (s - 1)^2 + const.
    assert best == pytest.approx(1.0, abs=0.02)
    plain = Objective(y, Neighborhoods.whole(n), SquaredW2(), sample_weight=weights)
    shrunk = np.polyfit(scales, [float(plain(s * noise)) for s in scales], 2)
    # The published loss shrinks the spread as in a ball of (sum w)^2 / sum w^2 = 2.2 rows, r_2 = .32.
    assert -shrunk[1] / (2 * shrunk[0]) == pytest.approx(0.32, abs=0.03)


def test_the_ball_of_a_row_counts_as_often_as_the_row():
    x, weights = np.array([0.0, 0.0, 1.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0])
    hoods = quiet_within(x, 0.1).weigh(weights)
    assert hoods.weights.tolist() == [3.0, 3.0, 4.0]
    assert hoods.row_weights().tolist() == weights.tolist()
    leaves = Neighborhoods.leaves([[0, 1], [0, 2], [1, 2]], x=np.zeros(3)).weigh([1.0, 2.0, 3.0])
    assert leaves.weights.tolist() == [1.5, 1.5, 0.5, 2.5]
    np.testing.assert_allclose(Neighborhoods.whole(4).weigh(weights).row_weights(), weights)


def test_lazy_balls_have_the_same_loss_block_by_block():
    rng = np.random.default_rng(8)
    x, weights = rng.uniform(size=60), rng.exponential(size=60) + 0.1
    y, yhat = torch.tensor(rng.normal(size=(2, 60)))
    whole = Objective(y, Neighborhoods.nearest(x, 9), sample_weight=weights)
    lazy = Objective(y, LazyNeighborhoods.nearest(x, 9), sample_weight=weights)
    rows, part = lazy.block(range(60))
    torch.testing.assert_close(part(yhat[rows]), whole(yhat))
    assert lazy.hoods.weights.tolist() == weights.tolist()
    with pytest.raises(ValueError, match="zeros"):
        LazyNeighborhoods.nearest(x, 9).weigh(weights * (x > 0.5))


def test_local_w2_takes_weights_for_arrays_and_for_tensors():
    x, y, yhat, counts = make(1)
    rows = np.repeat(np.arange(len(x)), counts)
    expected = local_w2(x[rows], y[rows].numpy(), yhat[0][rows].numpy(), 0.25)
    assert local_w2(x, y.numpy(), yhat[0].numpy(), 0.25, sample_weight=counts) == pytest.approx(expected)
    again = local_w2(x, y.requires_grad_(), yhat[0], 0.25, sample_weight=counts)
    assert float(again.detach()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, 2.0], r"shape \(2,\)"),
        ([1.0, -2.0, 1.0], "negative"),
        ([0.0, 0.0, 0.0], "only zeros"),
        ([1.0, np.nan, 1.0], "NaN"),
        (["a", "b", "c"], "text"),
    ],
)
def test_bad_weights_are_refused(weights, words):
    with pytest.raises(ValueError, match=words):
        Objective(torch.zeros(3), Neighborhoods.whole(3), sample_weight=weights)


def test_a_loss_that_does_not_know_weights_is_refused():
    class Own(Discrepancy):
        def bind(self, y, hoods, weights):
            return SquaredW2().bind(y, hoods, weights)

    with pytest.raises(ValueError, match="takes_weights"):
        Objective(torch.zeros(3), Neighborhoods.whole(3), Own(), sample_weight=[1, 2, 3])
    with pytest.raises(ValueError, match="already"):
        Neighborhoods.whole(3).weigh([1, 2, 3]).weigh([1, 2, 3])
