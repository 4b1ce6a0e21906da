"""What the pages on theory state and prove, computed in ways that share no code with the library."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from localw2 import Neighborhoods, Objective, SlicedW2, SquaredW2

# Integrals over u in (0, 1) as sums over z with u = Phi(z), where all that is integrated here is smooth.
Z = np.linspace(-8, 8, 3001)
U, DU = stats.norm.cdf(Z), stats.norm.pdf(Z) * (Z[1] - Z[0])


def order_means(law, n):
    """Expected order statistics of n independent draws, (n,)."""
    places = np.arange(1, n + 1)[:, None]
    return (law.ppf(U) * stats.beta.pdf(U, places, n - places + 1) * DU).sum(1)


def l_moments(law, n):
    """The first n L-moments, (n,)."""
    return (law.ppf(U) * special.eval_sh_legendre(np.arange(n)[:, None], U) * DU).sum(1)


def weights(n):
    """Of the L-moments in balls of n rows, as docs/theory/debiasing.md has them."""
    r = np.arange(1, n + 1)
    logs = [special.gammaln(v) for v in (n + 1, n, n + r, n - r + 1)]
    return (2 * r - 1) * np.exp(logs[0] + logs[1] - logs[2] - logs[3])


LAWS = {
    "exponential, normal": (stats.expon(), stats.norm(0.8, 1.3)),
    "uniform, beta": (stats.uniform(-1, 2), stats.beta(2, 5)),
    "normal, narrower": (stats.norm(), stats.norm(0, 0.6)),
}


def gap_by_orders(y, yhat, n):
    return np.mean((order_means(y, n) - order_means(yhat, n)) ** 2)


@pytest.mark.parametrize("laws", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_identity_of_order_statistics_and_l_moments(laws, n):
    gaps = l_moments(laws[0], n) - l_moments(laws[1], n)
    assert gap_by_orders(*laws, n) == pytest.approx(float(np.dot(weights(n), gaps**2)), rel=1e-6, abs=1e-9)


def test_identity_ends_in_w2_itself():
    """Weights tend to 2r - 1, which is Parseval's sum for the integral of the squared quantile difference."""
    assert np.allclose(np.divide(weights(2000)[:5], [1, 3, 5, 7, 9]), 1, atol=0.02)
    assert gap_by_orders(stats.norm(), stats.norm(0.3, 0.6), 400) == pytest.approx(0.09 + 0.16, rel=0.03)


def simulated_gap(y, wrong, right, discrepancy):
    """Loss of one law less that of another over many balls, (value, standard error); balls are 'times'."""
    parts = []
    for part in np.array_split(np.arange(y.shape[1]), 40):
        objective = Objective(y[:, part], Neighborhoods.whole(len(y)), discrepancy)
        parts.append(float(objective(wrong[:, :, part]) - objective(right[:, :, part])))
    return np.mean(parts), np.std(parts, ddof=1) / math.sqrt(40)


@pytest.mark.parametrize("laws", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("n", [2, 5])
def test_identity_is_that_of_the_debiased_loss(laws, n):
    rng, balls = np.random.default_rng(n), 20_000
    y = torch.tensor(laws[0].rvs((n, balls, 1), random_state=rng))
    wrong, right = (torch.tensor(laws[i].rvs((4, n, balls, 1), random_state=rng)) for i in (1, 0))
    found, error = simulated_gap(y, wrong, right, SquaredW2(debiased=True))
    expected = gap_by_orders(*laws, n)
    # Six cases within 4.5 standard errors but for 4e-5 of seeds; the errors are small enough to see a defect.
    assert abs(found - expected) < 4.5 * error
    assert error < 0.2 * expected
    plain, plain_error = simulated_gap(y, wrong, right, SquaredW2())
    assert abs(plain - expected) > 10 * plain_error


def test_identity_holds_for_unequal_rows_and_any_centre():
    """Rows of different laws, shifted by any fixed numbers: expected order statistics still tell the loss."""
    rng, n, balls = np.random.default_rng(0), 6, 40_000
    means, spreads = rng.normal(size=(n, 1, 1)) * 2, rng.uniform(0.3, 2, (n, 1, 1))
    for shift in (np.zeros((n, 1, 1)), means, rng.normal(size=(n, 1, 1)) * 3):
        y = torch.tensor(means + spreads * rng.normal(size=(n, balls, 1)) - shift)
        right = torch.tensor(means + spreads * rng.normal(size=(4, n, balls, 1)) - shift)
        wrong = torch.tensor(means + 1.4 * spreads * rng.normal(size=(4, n, balls, 1)) - shift)
        orders = [v.sort(dim=-3).values.mean((0, 2) if v.ndim == 4 else 1).squeeze() for v in (right, wrong)]
        found, error = simulated_gap(y, wrong, right, SquaredW2(debiased=True))
        # The expected order statistics are themselves from 160 000 balls, far more exact than the loss.
        assert abs(found - float((orders[0] - orders[1]).square().mean())) < 4.5 * error
        assert found > 4.5 * error


def test_for_two_outputs_the_truth_wins_with_ten_rows():
    """What the picture in debiasing.md shows; that it loses with two rows has a test in test_losses."""
    rng = np.random.default_rng(1)

    def excess(n, balls, discrepancy):
        shape = (4, n, balls, 1)
        y, right = (torch.tensor(rng.normal(size=(*s, n, balls, 2))) for s in ((), (4,)))
        wrong = np.zeros((4, n, balls, 2))
        np.put_along_axis(wrong, rng.integers(0, 2, shape), rng.choice([-1.6, 1.6], shape), -1)
        return simulated_gap(y, torch.tensor(wrong), right, discrepancy)

    for balls, discrepancy in ((1500, SquaredW2(debiased=True)), (6000, SlicedW2(8, debiased=True))):
        gap, error = excess(10, balls, discrepancy)
        assert gap > 4.5 * error


def best_spread(residuals):
    """The s for which s times standard normal draws has the smallest expected debiased loss, balls (B, n)."""
    normal = order_means(stats.norm(), residuals.shape[1])
    return float(np.sort(residuals, axis=1).mean(0) @ normal / (normal @ normal))


def test_the_truth_pays_the_variance_of_the_order_statistics():
    """c of identity (2), from the loss itself, for exponential rows: 1/n sum of Var y_(k) in closed form."""
    rng, n, balls = np.random.default_rng(0), 5, 40_000
    y, right = (torch.tensor(rng.exponential(size=(*s, n, balls, 1))) for s in ((), (4,)))
    parts = []
    for part in np.array_split(np.arange(balls), 40):
        objective = Objective(y[:, part], Neighborhoods.whole(n), SquaredW2(debiased=True))
        parts.append(float(objective(right[:, :, part])))
    # Renyi: y_(k) is the sum of k independent exponentials with rates n, n - 1, ..., n - k + 1.
    expected = np.mean([np.sum(1 / np.arange(n, n - k, -1.0) ** 2) for k in range(1, n + 1)])
    assert abs(np.mean(parts) - expected) < 4.5 * np.std(parts) / math.sqrt(40)


def test_identity_needs_no_independence_inside_y_or_inside_yhat():
    """Rows of a ball share noise, on both sides, by different amounts; only y and yhat are independent."""
    rng, n, balls = np.random.default_rng(0), 5, 40_000

    def draw(shape, shared):
        own, common = rng.normal(size=(*shape, n, balls, 1)), rng.normal(size=(*shape, 1, balls, 1))
        return torch.tensor(math.sqrt(1 - shared) * own + math.sqrt(shared) * common)

    y, wrong, right = draw((), 0.5), draw((4,), 0.0), draw((4,), 0.5)
    found, error = simulated_gap(y, wrong, right, SquaredW2(debiased=True))
    # Noise common to a ball adds its mean, 0, to every order statistic; the rest has variance .5.
    expected = (1 - math.sqrt(0.5)) ** 2 * np.mean(order_means(stats.norm(), n) ** 2)
    assert abs(found - expected) < 4.5 * error
    # So the right margins with independent draws are not best for dependent rows: narrower ones are.
    narrow = draw((4,), 0.0) * math.sqrt(0.5)
    better, error = simulated_gap(y, narrow, wrong, SquaredW2(debiased=True))
    assert better < -4.5 * error


@pytest.mark.parametrize("n", [5, 20, 60])
def test_out_of_fold_residuals_of_an_intercept_inflate_the_spread(n):
    """One row left out at a time: n / (n - 1)."""
    y = np.random.default_rng(0).normal(size=(200_000 // n, n))
    residuals = y - (y.sum(1, keepdims=True) - y) / (n - 1)
    # A ball's estimate of the spread varies by about 1 / sqrt(2 n), and there are 200 000 rows.
    assert best_spread(residuals) == pytest.approx(n / (n - 1), abs=4.5 / math.sqrt(2 * 200_000))


def test_out_of_fold_residuals_of_an_intercept_with_ten_folds():
    """20 rows, two in a fold: a ball sees 1.054 where new rows scatter by 1.027 around the fold models."""
    n, in_fold, balls = 20, 2, 40_000
    y = np.random.default_rng(0).normal(size=(balls, n // in_fold, in_fold))
    means = (y.sum((1, 2))[:, None] - y.sum(2)) / (n - in_fold)
    found = np.array([best_spread(part.reshape(len(part), n)) for part in np.split(y - means[..., None], 40)])
    error = found.std(ddof=1) / math.sqrt(40)
    # 1.0539 +- .0003 is from ten times as many balls and another seed.
    assert found.mean() == pytest.approx(1.0539, abs=4.5 * math.hypot(error, 0.0003))
    real = math.sqrt(1 + means.var())
    assert real == pytest.approx(math.sqrt(1 + 1 / (n - in_fold)), abs=4.5 * math.sqrt(2 / means.size) / 36)
    assert found.mean() - real > 4.5 * error


@pytest.mark.parametrize(("n", "shrunk"), [(12, 0.908), (24, 0.956), (48, 0.978)])
def test_own_scale_of_a_ball_shrinks_the_spread(n, shrunk):
    """By about 1/n for a scale from the n rows of the ball, and by 1/150 for one from 150 that hold them."""
    y = np.random.default_rng(0).normal(size=(400_000 // n, n))
    others = np.abs(np.random.default_rng(1).normal(size=(len(y), 150)))
    normal = order_means(stats.norm(), n)
    fits = np.sort(y, axis=1) @ normal / (normal @ normal)

    def best(scale):
        """The minimiser, and its standard error by the ratio's own residuals."""
        weights = scale**-2.0 / (scale**-2.0).mean()
        value = float((fits * weights).mean())
        return value, float((weights * (fits - value)).std()) / math.sqrt(len(y))

    total = np.abs(y).sum(1)
    for scale, expected, slack in (
        (total / n, shrunk, 0.0005),  # rounding of the figures on the page
        ((total + others[:, n:].sum(1)) / 150, 1 - 1 / 150, 0.0005),  # of higher order: 1 / 150^2
        (others.mean(1), 1.0, 0.0),
    ):
        found, error = best(scale)
        assert abs(found - expected) < 4.5 * error + slack
        assert error < 0.003


def test_copies_of_rows_shrink_the_spread():
    """Every row twice in a ball of 20: the best spread, from the order statistics of ten, is below 1."""
    ten, twenty = order_means(stats.norm(), 10), order_means(stats.norm(), 20)
    expected = np.repeat(ten, 2) @ twenty / (twenty @ twenty)
    y = np.repeat(np.random.default_rng(0).normal(size=(20_000, 10)), 2, axis=1)
    assert best_spread(y) == pytest.approx(expected, abs=4.5 / math.sqrt(2 * 200_000))
    assert expected == pytest.approx(0.938, abs=0.0005)


def test_the_counterexample_in_closed_form():
    """Balls of two rows in the plane: the four points pay 1.470 and the truth 1.5."""

    def distance(u, v):
        """W2 of two rows each, (2, B, 2), as the page has it: the better of two pairings."""
        squares = ((u**2).sum((0, 2)) + (v**2).sum((0, 2))) / 2
        together = (u.sum(0) * v.sum(0)).sum(1)
        return squares - (together + np.abs(((u[0] - u[1]) * (v[0] - v[1])).sum(1))) / 2

    def losses(y, draws):
        return (distance(y, draws[0]) + distance(y, draws[1]) - distance(*draws)) / 2

    rng, balls, length = np.random.default_rng(0), 500_000, 1.6
    shape = (2, 2, balls, 1)
    y, right = (rng.normal(size=(*s, 2, balls, 2)) for s in ((), (2,)))
    wrong = np.zeros((2, 2, balls, 2))
    np.put_along_axis(wrong, rng.integers(0, 2, shape), rng.choice([-length, length], shape), -1)
    expected = 2 - (0.5 + math.sqrt(0.5)) * length / math.sqrt(math.pi) + 7 / 32 * length**2
    assert expected == pytest.approx(1.4703, abs=1e-4)
    gaps = losses(y, wrong) - losses(y, right)
    error = gaps.std() / math.sqrt(balls)
    assert abs(gaps.mean() - (expected - 1.5)) < 4.5 * error
    assert expected - 1.5 < -9 * error
    # The loss of the library is that of these formulas.
    some = slice(0, 300)
    objective = Objective(torch.tensor(y[:, some]), Neighborhoods.whole(2), SquaredW2(debiased=True))
    for draws in (wrong, right):
        value = float(objective(torch.tensor(draws[:, :, some])))
        assert value == pytest.approx(losses(y, draws)[some].mean(), rel=1e-6)
