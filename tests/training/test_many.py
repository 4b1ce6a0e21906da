import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from localw2 import EnergyScore, FitConfig, LazyNeighborhoods, Neighborhoods, Objective, SquaredW2, train
from localw2.losses.stacked import StackedLosses
from localw2.models.base import RandomMap
from localw2.models.linear import RandomLinear
from localw2.models.network import RandomMLP
from localw2.training import many as stacked_training
from localw2.training.many import bootstrap_fits, train_many

N = 60
X = torch.tensor(np.random.default_rng(0).uniform(size=(N, 1)))
BALLS = [Neighborhoods.nearest(X, k) for k in (8, 15)]


def outputs(seed, *shape):
    noise = torch.tensor(np.random.default_rng(seed).normal(size=shape or (N, 1)))
    return noise + 2 * X.view(N, *[1] * (noise.ndim - 1))


def networks(count, n_outputs=1):
    return [
        RandomMLP(1, n_outputs, width=6, generator=torch.Generator().manual_seed(v)).double()
        for v in range(count)
    ]


def objectives():
    """Other outputs on the same balls, other balls, another loss, a center and a scale."""
    return [
        Objective(outputs(0), BALLS[0], SquaredW2(True)),
        Objective(outputs(1), BALLS[0], SquaredW2(True), center=outputs(2), scale=outputs(3).exp()),
        Objective(outputs(0), BALLS[1], SquaredW2(True)),
        Objective(outputs(0), BALLS[0], EnergyScore()),
        Objective(outputs(4), BALLS[0], SquaredW2(True), scale=outputs(3).exp()),
    ]


@pytest.mark.parametrize("keep", ["last", "average"])
def test_each_fit_is_that_of_the_model_alone(keep):
    config, goals = FitConfig(max_epochs=68, keep=keep), objectives()
    seeds = [3, 3, 0, 7, 8]
    many = train_many(networks(5), goals, X, config, seeds)
    for fit, model, goal, seed in zip(many, networks(5), goals, seeds, strict=True):
        alone = train(model, goal, X, replace(config, seed=seed))
        for a, b in zip(fit.model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(fit.losses, alone.losses, rtol=1e-5, atol=1e-7)
        assert [(e["epoch"], e["rate"]) for e in fit.history] == [
            (e["epoch"], e["rate"]) for e in alone.history
        ]
        assert (fit.config, fit.stopped) == (alone.config, alone.stopped)
        assert not fit.model.training


@pytest.mark.parametrize(("shape", "n_outputs"), [((N,), 1), ((N, 2), 2)])
def test_one_objective_serves_several_seeds(shape, n_outputs):
    goal, config = Objective(outputs(0, *shape), BALLS[0]), FitConfig(max_epochs=20, seed=5)
    first, second = train_many(networks(1, n_outputs) + networks(1, n_outputs), goal, X, config)
    alone = train(networks(1, n_outputs)[0], goal, X, replace(config, seed=6))
    assert first.losses != second.losses
    np.testing.assert_allclose(second.losses, alone.losses, rtol=1e-5)


def test_stacked_losses_and_gradients_are_those_of_each():
    with_times = [Objective(outputs(v, N, 3, 2), balls) for v, balls in enumerate((*BALLS, BALLS[0]))]
    for many in (with_times, objectives()):
        rng = np.random.default_rng(1)
        yhat = torch.tensor(rng.normal(size=(len(many), 2, *many[0].y.shape)), requires_grad=True)
        weights = torch.tensor(rng.uniform(size=len(many)))
        values = StackedLosses(many)(yhat)
        (ours,) = torch.autograd.grad(values @ weights, yhat)
        alone = torch.stack([goal(part) for goal, part in zip(many, yhat, strict=True)])
        (theirs,) = torch.autograd.grad(alone @ weights, yhat)
        torch.testing.assert_close(values, alone)
        torch.testing.assert_close(ours, theirs)


def test_a_loss_that_is_not_finite_names_the_model_and_leaves_all_as_they_were():
    models = [RandomLinear(1).double() for _ in range(2)]
    models[1].mean.data.fill_(1e200)
    with pytest.raises(FloatingPointError, match=r"epoch 1: .*model 1 is (inf|nan)"):
        train_many(models, Objective(outputs(0), BALLS[0]), X, FitConfig(max_epochs=3))
    assert float(models[0].mean.detach()[0, 0]) == 1.0


class OwnDraws(RandomMap):
    """Takes its noise from torch itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def draw(self, n, generator=None):
        return torch.randn(n, 1, generator=generator, dtype=torch.float64)

    def forward(self, x, omega=None, generator=None):
        return x * self.weight + self.draw(len(x), generator)


GOAL = Objective(outputs(0), BALLS[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], GOAL, X), "0 models"),
        ((networks(2), [GOAL], X), "2 models, 1 objectives"),
        ((networks(2), GOAL, X, None, [1]), "1 seeds"),
        ((networks(1), GOAL, X, None, [-1]), "seed"),
        (([networks(1)[0]] * 2, GOAL, X), "twice"),
        (([*networks(1), RandomLinear(1).double()], GOAL, X), "stacked"),
        (([*networks(1), *networks(1, 2)], GOAL, X), "stacked"),
        ((networks(1), GOAL, X[:5]), "same"),
        ((networks(1), Objective(outputs(0), LazyNeighborhoods.nearest(X, 5)), X), "all balls"),
        ((networks(2), [GOAL, Objective(outputs(0, N), BALLS[0])], X), "dtype"),
        ((networks(2), [GOAL, Objective(outputs(0), BALLS[0], EnergyScore())], X), "draws"),
        ((networks(1), GOAL, X, FitConfig(batch_balls=3, max_skipped=1)), "batch_balls, max_skipped"),
        ((networks(1, 2), GOAL, X), "yhat is"),
        (([OwnDraws()], GOAL, X), "one by one"),
    ],
)
def test_what_cannot_be_stacked_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_many(*arguments)


def test_the_reason_for_plain_steps_is_logged_once(monkeypatch, caplog):
    """A recording that fails leaves the fit as it would have been."""
    caplog.set_level("INFO", "localw2")
    repeat = stacked_training.CapturedStep.repeat

    def failing(self, epochs, after, record):
        if record:
            raise RuntimeError("no graphs today\nand more")
        return repeat(self, epochs, after, record)

    plain = train_many(networks(2), GOAL, X, FitConfig(max_epochs=10))
    monkeypatch.setattr(stacked_training, "find_obstacle", lambda *_: "")
    monkeypatch.setattr(stacked_training.CapturedStep, "repeat", failing)
    fits = train_many(networks(2), GOAL, X, FitConfig(max_epochs=10))
    assert [fit.losses for fit in fits] == [fit.losses for fit in plain]
    assert caplog.messages == ["single steps instead of a CUDA graph: no graphs today"]
    assert not any(math.isnan(loss) for fit in fits for loss in fit.losses)


def test_refits_spread_as_the_estimate_does():
    """Intercept N(1, .5^2): the mean of n rows has standard error .5 / sqrt(n), the SD .5 / sqrt(2 n).

    Thirty refits tell an SD to within 13 %; the bounds are a factor of 1.8 either way, over four of those.
    """
    n, count = 200, 30
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.uniform(size=(n, 1)))
    # The slope is held where it is: nothing of x is in y, and x is 0 to the model.
    zero = torch.zeros_like(x)
    goal = Objective(torch.tensor(rng.normal(1, 0.5, (n, 1))), Neighborhoods.whole(n), SquaredW2(True))
    config = FitConfig(max_epochs=100, weight_decay=0, learning_rate=0.05)
    fitted = train(RandomLinear(1).double(), goal, zero, config).model
    fits = bootstrap_fits(fitted, goal, zero, config, count, random_state=0)
    means = np.array([fit.model.mean.detach()[0, 0].item() for fit in fits])
    spreads = np.abs([fit.model.std.detach()[0, 0].item() for fit in fits])
    assert 1 / 1.8 < means.std(ddof=1) / (0.5 / np.sqrt(n)) < 1.8
    assert 1 / 1.8 < spreads.std(ddof=1) / (0.5 / np.sqrt(2 * n)) < 1.8
    again = bootstrap_fits(fitted, goal, zero, config, count, random_state=0)
    assert [fit.losses for fit in fits] == [fit.losses for fit in again]
    with pytest.raises(ValueError, match="n_models"):
        bootstrap_fits(fitted, goal, zero, config, 1)
