"""Mini-batches of balls: the loss of a batch is an unbiased estimate of the full loss, exactly."""

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch

from localw2 import FitConfig, LazyNeighborhoods, Neighborhoods, Objective, RandomMLP, SquaredW2, train
from localw2.balls.search import space_order
from localw2.estimators.regression.loss import Anchored
from localw2.training.batches import BallStream, draw_places
from localw2.training.distributed import Crew


class EveryDraw:
    """In place of a generator: one possible outcome of all random choices, to be enumerated."""

    def __init__(self, order, begin, shift=0.0):
        self.order, self.begin, self.shift = order, begin, shift

    def permutation(self, n):
        assert n == len(self.order)
        return np.array(self.order)

    def choice(self, n, size, replace):
        assert not replace
        return np.array(self.order)[:size]

    def integers(self, n):
        return self.begin

    def random(self):
        return self.shift


@pytest.mark.parametrize(
    ("n", "block", "batch", "most"),
    [(5, 1, 2, None), (7, 2, 4, None), (7, 3, 3, None), (6, 1, 2, 3), (8, 3, 6, 6), (5, 1, 5, None)],
)
def test_every_place_is_as_likely_in_every_batch(n, block, batch, most):
    """All orders of the runs and all beginnings, with equal chances: the mean over a batch has no bias.

    Short runs, a short last batch and epochs that see a part only are among the cases.
    """
    n_runs = -(-n // block)
    means = Counter()
    outcomes = [(order, begin) for order in permutations(range(n_runs)) for begin in range(n)]
    for order, begin in outcomes:
        for number, places in enumerate(draw_places(n, block, batch, most, EveryDraw(order, begin))):
            assert len(set(places)) == len(places)
            for place in places:
                means[number, int(place)] += 1 / len(places) / len(outcomes)
    n_batches = 1 + max(number for number, _ in means)
    np.testing.assert_allclose([means[b, p] for b in range(n_batches) for p in range(n)], 1 / n, rtol=1e-12)


LEAVES = np.array([[0, 0], [0, 0], [0, 0], [1, 0], [1, 0], [1, 1], [1, 1]])


def weighted_problem(anchored=False, leaves=False):
    """Seven rows of which five share their x with others: four balls of weights 3, 2, 1, 1.

    In two trees they have four leaves of weights 1.5, 2, 2.5 and 1, of which each row is in two.
    """
    x = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 2.2, 3.5], dtype=torch.float64)[:, None]
    rng = np.random.default_rng(0)
    y, yhat = (torch.tensor(rng.normal(size=s)) for s in ((7, 1), (2, 7, 1)))
    inner = SquaredW2(debiased=True)
    discrepancy = Anchored(inner, 2.0, by_ball=not leaves) if anchored else inner
    hoods = Neighborhoods.leaves(LEAVES, x) if leaves else Neighborhoods.within(x, 1.3)
    objective = Objective(y, hoods, discrepancy)
    assert len(set(objective.hoods.weights.tolist())) > 1
    return x, objective, yhat


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize(("batch", "block"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)])
def test_the_loss_of_a_batch_of_weighted_balls_has_the_full_loss_as_its_mean(
    batch, block, anchored, leaves, monkeypatch
):
    """Exact: every order, every beginning, and the shift integrated over between its finitely many jumps."""
    x, objective, yhat = weighted_problem(anchored, leaves)
    n, weights = objective.hoods.n_balls, objective.hoods.weights.numpy()
    config = FitConfig(batch_balls=batch, block_balls=block)
    stream = BallStream(objective, x, config, Crew())
    # Where the ball at some place changes as the shift goes from 0 to 1.
    order = np.arange(n) if block == 1 else stream._order
    jumps = np.cumsum(weights[order]) * n / weights.sum() % 1.0
    cuts = np.unique(np.concatenate([[0.0, 1.0], np.round(jumps, 12)]))
    full, total, known = float(objective(yhat)), Counter(), {}

    def loss(balls, size):
        key = tuple(sorted(balls))
        if key not in known:
            batch = stream._build(balls, size)
            known[key] = float(batch.objective(yhat[:, batch.rows]))
        return known[key]

    runs = range(-(-n // block))
    outcomes = [(order, begin) for order in permutations(runs) for begin in range(n)]
    for low, high in pairwise(cuts):
        for order, begin in outcomes:
            draw = EveryDraw(order, begin, (low + high) / 2)
            monkeypatch.setattr(np.random, "default_rng", lambda _, draw=draw: draw)
            for number, drawn in enumerate(stream._draw(0)):
                total[number] += (high - low) / len(outcomes) * loss(*drawn)
    assert len(total) > 1 or batch >= n
    np.testing.assert_allclose(list(total.values()), full, rtol=1e-10)


def test_balls_of_equal_weight_are_seen_once_an_epoch():
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lazy = LazyNeighborhoods.nearest(x, 7)
    for block in (1, 4):
        stream = BallStream(
            Objective(x[:, :1], lazy), x, FitConfig(batch_balls=12, block_balls=block), Crew()
        )
        drawn = np.concatenate([balls for balls, _ in stream._draw(3)])
        assert sorted(drawn) == list(range(50))
        sizes = [size for _, size in stream._draw(3)]
        assert max(sizes) <= 12
        assert max(sizes) - min(sizes) <= block + (50 % block > 0) * block
        stream.close()


def test_the_mean_over_an_epoch_is_the_full_loss_at_fixed_weights():
    """The batches of an epoch, weighted by their balls: with equal weights not only on average but always."""
    x = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, yhat = x[:, :1].square(), torch.rand(2, 50, 1, generator=torch.Generator().manual_seed(1)).double()
    lazy, dense = (
        Objective(y, kind.nearest(x, 7), SquaredW2(debiased=True))
        for kind in (LazyNeighborhoods, Neighborhoods)
    )
    stream = BallStream(lazy, x, FitConfig(batch_balls=12), Crew())
    batches = list(stream.batches(0))
    stream.close()
    mean = sum(b.weight * b.objective(yhat[:, b.rows]) for b in batches) / sum(b.weight for b in batches)
    torch.testing.assert_close(mean, dense(yhat), rtol=1e-12, atol=0)


def test_an_epoch_may_see_some_balls_only():
    x = torch.rand(200, 1, generator=torch.Generator().manual_seed(0))
    seen = Counter()

    class Watched(RandomMLP.__base__):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(()))

        def draw(self, n, generator=None):
            return torch.randn(n, 1, generator=generator)

        def forward(self, x, omega=None, generator=None):
            seen["steps"] += 1
            return self.shift + self.draw(len(x), generator)

    objective = Objective(x, LazyNeighborhoods.nearest(x, 5))
    fit = train(Watched(), objective, x, FitConfig(max_epochs=7, batch_balls=10, epoch_balls=20))
    assert seen["steps"] == 7 * 2
    assert len(fit.losses) == 7


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_shards_add_up_to_the_batch(size, leaves):
    """Every ball of a batch is on one rank, neighbours together, and shares are those of the balls."""
    x, objective, yhat = weighted_problem(anchored=True, leaves=leaves)
    for settings in ({}, {"batch_balls": 3}):
        config = FitConfig(**settings)
        alone = list(BallStream(objective, x, config, Crew()).batches(2))
        parts = [
            list(BallStream(objective, x, config, Crew(rank, size, True)).batches(2)) for rank in range(size)
        ]
        for number, whole in enumerate(alone):
            rows = slice(None) if whole.rows is None else whole.rows
            mine = [p[number] for p in parts]
            assert sum(p.share for p in mine) == pytest.approx(1, abs=1e-12)
            total = sum(p.share * p.objective(yhat[:, p.rows]) for p in mine if p.objective is not None)
            torch.testing.assert_close(total, whole.objective(yhat[:, rows]), rtol=1e-10, atol=1e-12)


def test_shards_of_neighbours_need_few_rows_beyond_their_own():
    """On a grid each of four shards simulates its quarter and a rim; shards at random would need all rows."""
    side = torch.linspace(0, 1, 40, dtype=torch.float64)
    x = torch.cartesian_prod(side, side)[torch.randperm(1600, generator=torch.Generator().manual_seed(0))]
    objective = Objective(x[:, :1], Neighborhoods.nearest(x, 9))
    parts = [next(BallStream(objective, x, FitConfig(), Crew(r, 4, True)).batches(0)) for r in range(4)]
    assert max(len(part.rows) for part in parts) < 1600 / 4 * 1.25
    assert len(torch.cat([part.rows for part in parts]).unique()) == 1600


def test_the_order_in_space_keeps_neighbours_together():
    x = np.random.default_rng(0).uniform(size=(4096, 2))
    order = space_order(x)
    assert sorted(order) == list(range(4096))
    runs = x[order].reshape(64, 64, 2)
    # A square of a 64th of the area has a standard deviation of 1/8/sqrt(12) a side.
    assert np.median(runs.std(1)) < 1.5 / 8 / np.sqrt(12)


def test_cells_are_a_partition_into_near_rows():
    x = np.random.default_rng(0).normal(size=(3000, 2))
    x[:100] = x[0]
    hoods = Neighborhoods.cells(x, 60)
    assert sorted(hoods.rows.tolist()) == list(range(3000))
    assert torch.equal(hoods.weights, hoods.sizes.double())
    sizes = hoods.sizes[hoods.sizes != hoods.sizes.max()]  # copies of one x cannot be cut
    assert int(sizes.max()) <= 60
    for ball in (0, 5):
        assert bool((hoods.ball_of_row[hoods.ball(ball)] == ball).all())
    spread = np.mean([x[hoods.ball(b).numpy()].std(0).mean() for b in range(hoods.n_balls)])
    assert spread < 0.25  # of rows at random it is 1
    with pytest.raises(ValueError, match="size=1"):
        Neighborhoods.cells(x, 1)


def test_a_search_with_slack_finds_nearly_the_nearest():
    """No row of a ball is farther than 1 + slack times the k-th nearest; the centre is always in."""
    x = np.random.default_rng(0).normal(size=(3000, 5))
    rough, exact = (LazyNeighborhoods.nearest(x, 20, slack=s).block(range(200)) for s in (1.0, 0.0))
    reach = []
    for rows, hoods in (rough, exact):
        own = {int(b): int(rows[i]) for i, b in enumerate(hoods.ball_of_row.tolist()) if b >= 0}
        reach.append(
            [np.linalg.norm(x[rows[hoods.ball(b)]] - x[own[b]], axis=1).max() for b in range(hoods.n_balls)]
        )
    ratio = np.array(reach[0]) / np.array(reach[1])
    assert ratio.max() <= 2
    assert 1 <= ratio.mean() < 1.1
    with pytest.raises(ValueError, match="slack=-1"):
        LazyNeighborhoods.nearest(x, 20, slack=-1)


def test_weights_of_a_block_are_checked():
    hoods = Neighborhoods.singletons(4)
    assert hoods.block([1, 2], [3, 1])[1].weights.tolist() == [3, 1]
    for weights in ([1], [1, 0]):
        with pytest.raises(ValueError, match="weights"):
            hoods.block([1, 2], weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch_balls": 0}, "epoch_balls=0"),
        ({"block_balls": 0}, "block_balls=0"),
        ({"block_balls": 9, "batch_balls": 8}, "block_balls=9.*batch_balls=8"),
        ({"noise": "loud"}, "noise='loud'"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        FitConfig(**options)


@pytest.mark.parametrize("lazy", [False, True])
def test_batches_of_weighted_rows_estimate_the_weighted_loss(lazy):
    """The ball of a row comes as often as its weight says, whether all balls are at hand or not."""
    rng = np.random.default_rng(1)
    x, weights = rng.uniform(size=40), rng.exponential(size=40) + 0.05
    y, yhat = torch.tensor(rng.normal(size=(40, 1))), torch.tensor(rng.normal(size=(2, 40, 1)))
    whole = Objective(y, Neighborhoods.nearest(x, 6), SquaredW2(True), sample_weight=weights)(yhat)
    hoods = (LazyNeighborhoods if lazy else Neighborhoods).nearest(x, 6)
    objective = Objective(y, hoods, SquaredW2(True), sample_weight=weights)
    config = FitConfig(max_epochs=400, batch_balls=8, epoch_balls=8)
    stream = BallStream(objective, torch.tensor(x)[:, None], config, Crew.join())
    losses = []
    for epoch in range(400):
        (batch,) = stream.batches(epoch)
        losses.append(float(batch.objective(yhat[:, batch.rows])))
    stream.close()
    error = np.std(losses) / np.sqrt(len(losses))
    assert abs(np.mean(losses) - float(whole)) < 4 * error
    plain = Objective(y, Neighborhoods.nearest(x, 6), SquaredW2(True))(yhat)
    assert abs(float(plain) - float(whole)) > 8 * error  # a difference that the first line would see
