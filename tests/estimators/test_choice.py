"""Balls chosen from a list by training: the same networks as trained alone, and the better balls taken."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone

from localw2 import (
    Euclidean,
    FitConfig,
    LocalW2Regressor,
    Nearest,
    Network,
    RandomMLP,
    SquaredW2,
    load,
    train,
)
from localw2.estimators.regression import choice
from localw2.estimators.regression.balls import ChosenBalls
from localw2.estimators.regression.choice import HELD_OUT, choose_by_training
from localw2.estimators.regression.loss import ResidualLoss
from localw2.metrics import crps

CPU = torch.device("cpu")
QUICK = {"law": Network(width=10, epochs=40), "random_state": 0}


def two_spreads(n, d=1, seed=0):
    """y is 20 times wider for x > 0: balls of all rows cannot tell."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 1))
    y = np.where(x > 0, 2.0, 0.1) * rng.normal(size=(n, d))
    return x, y[:, 0] if d == 1 else y


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_scores_are_those_of_networks_trained_alone(anchored, at_once, monkeypatch):
    """A CPU trains one after the other; ``at_once`` makes it do what a GPU does."""
    if at_once:
        monkeypatch.setattr(choice, "train", None)
        monkeypatch.setattr(choice, "_AT_ONCE", ("cpu", "cuda"))
    x, y = two_spreads(120)
    residuals, inputs = y[:, None] / y.std(), torch.tensor(x, dtype=torch.float32)
    options = [ChosenBalls(delta, Euclidean(), "plain") for delta in (Nearest(20), 0.2, Nearest(60))]
    net = RandomMLP(1, 1, 8, 2, generator=torch.Generator().manual_seed(0))
    loss = ResidualLoss(SquaredW2(debiased=True), anchored, CPU)
    config = FitConfig(max_epochs=25, n_draws=4, seed=7)
    before = deepcopy(net.state_dict())
    chosen = choose_by_training(options, x, residuals, inputs, net, loss, config)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())

    order = np.random.default_rng([7, 8]).permutation(120)
    held, kept = order[: round(HELD_OUT * 120)], order[round(HELD_OUT * 120) :]
    whole = crps(residuals[held], np.repeat(residuals[kept][:, None], len(held), 1)).mean()
    scores = []
    for option in options:
        alone = deepcopy(net)
        balls = option.neighborhoods(x[kept])
        train(alone, loss.objective(x[kept], residuals[kept], option, balls), inputs[kept], config)
        draws = alone.sample(inputs[held], 500, torch.Generator().manual_seed(7)).double().numpy()
        scores.append(crps(residuals[held], draws).mean() / whole)
    found = chosen.selection
    # Rounding to 1e-7 a step grows over 25 epochs.
    assert [c.score for c in found.candidates] == pytest.approx(scores, rel=1e-3)
    assert found.chosen is found.candidates[int(np.argmin(scores))]
    assert chosen.balls == found.balls == options[int(np.argmin(scores))].balls
    assert found.chosen.behind == 0


@pytest.mark.parametrize("d", [1, 2])
def test_balls_that_can_tell_are_taken(d):
    x, y = two_spreads(300, d)
    model = LocalW2Regressor(
        delta=[Nearest(300), Nearest(40)], **(QUICK | {"law": Network(width=10, epochs=150)})
    ).fit(x, y)
    assert model.delta_ == Nearest(40)
    wide, narrow = model.selection_.candidates
    assert wide.behind > 2 * wide.behind_se > 0
    assert narrow.behind == 0
    assert "better than the whole sample" in model.selection_.why
    assert model.selection_.table().count("\n") == 2
    assert 0 < model.selection_.delta < 1  # 40 of 300 rows in SDs of x


def test_auto_may_be_one_of_them_and_radii_are_in_the_units_of_x():
    x, y = two_spreads(150)
    model = LocalW2Regressor(delta=("auto", 10.0, Nearest(30)), base=None, **QUICK).fit(100 * x, y)
    names = [c.norm_name for c in model.selection_.candidates]
    assert names[1:] == ["plain", "standardised"]
    assert 8 < model.selection_.candidates[1].sizes[1] < 20  # 10 of a column that goes from -100 to 100


def test_the_choice_is_stored_cloned_and_used_by_the_parts_of_a_calibration(tmp_path):
    x, y = two_spreads(60)
    deltas = [Nearest(10), 0.5]
    model = LocalW2Regressor(delta=deltas, calibrate=True, **QUICK).fit(x, y)
    alone = LocalW2Regressor(delta=model.delta_, norm=model.norm_, calibrate=True, **QUICK).fit(x, y)
    np.testing.assert_array_equal(model.calibration_.scores, alone.calibration_.scores)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.delta == deltas
    assert loaded.delta_ == model.delta_
    assert np.array_equal(loaded.predict_interval(x), model.predict_interval(x))
    assert clone(loaded).delta == deltas


def test_rows_in_another_fit_give_the_same_choice():
    x, y = two_spreads(80)
    first, second = (LocalW2Regressor(delta=[Nearest(8), Nearest(30)], **QUICK).fit(x, y) for _ in range(2))
    assert first.selection_.table() == second.selection_.table()
    assert np.array_equal(first.predict(x), second.predict(x))


@pytest.mark.parametrize(
    ("delta", "word"),
    [
        ([], "choice"),
        ([0.1], "choice"),
        ([0.1, [0.2, 0.3]], "list"),
        ([0.1, -1.0], "-1"),
        ([0.1, "small"], "small"),
        ([Nearest(1), 0.1], "spread"),
    ],
)
def test_lists_that_mean_nothing_are_refused(delta, word):
    x, y = two_spreads(40)
    with pytest.raises(ValueError, match=word):
        LocalW2Regressor(delta=delta, **QUICK).fit(x, y)


def test_too_few_rows_are_refused():
    x, y = two_spreads(15)
    with pytest.raises(ValueError, match=r"\b15\b"):
        LocalW2Regressor(delta=[0.1, 0.5], **QUICK).fit(x, y)


def watched(monkeypatch, change=lambda place, fit: None):
    """A list of (epochs trained, config) of every network of a choice; ``change`` sees each fit."""
    seen = []

    def watching(model, objective, x, config):
        epochs = []
        fit = train(model, objective, x, config, callbacks=[lambda record: epochs.append(record)])
        seen.append((len(epochs), config))
        change(len(seen) - 1, fit)
        return fit

    monkeypatch.setattr(choice, "train", watching)
    return seen


def test_networks_are_trained_in_the_batches_of_the_fit(monkeypatch):
    seen = watched(monkeypatch)
    x, y = two_spreads(60)
    law = Network(width=10, epochs=40, batch_balls=8)
    LocalW2Regressor(law, None, [Nearest(10), Nearest(30)], random_state=0).fit(x, y)
    assert [config.batch_balls for _, config in seen] == [8, 8]


def test_a_choice_that_was_stopped_goes_on_where_it_was(monkeypatch, tmp_path):
    x, y = two_spreads(60)
    settings = {"delta": [Nearest(10), Nearest(20), Nearest(30)], **QUICK}
    whole = LocalW2Regressor(**settings).fit(x, y)

    def interrupt(place, fit):
        if place == 1:
            raise KeyboardInterrupt

    model = LocalW2Regressor(checkpoint=tmp_path / "fit", **settings)
    with monkeypatch.context() as patch:
        watched(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, y)
    seen = watched(monkeypatch)
    model.fit(x, y)
    assert [epochs for epochs, _ in seen] == [0, 0, 40]
    assert model.selection_.table() == whole.selection_.table()
    assert np.array_equal(model.predict(x), whole.predict(x))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*balls")
def test_balls_that_cannot_be_trained_on_are_left_out_by_name(monkeypatch):
    x, y = two_spreads(60)
    with pytest.warns(UserWarning, match="1e-09"):
        model = LocalW2Regressor(delta=[1e-9, Nearest(10), Nearest(30)], base=None, **QUICK).fit(x, y)
    assert [c.balls for c in model.selection_.candidates] == [Nearest(10), Nearest(30)]
    with (
        pytest.warns(UserWarning, match="delta"),
        pytest.raises(ValueError, match="delta"),
    ):
        LocalW2Regressor(delta=[1e-9, 1e-8], base=None, **QUICK).fit(x, y)

    def diverge(place, fit):
        if place == 0:
            raise FloatingPointError("the loss is nan")

    watched(monkeypatch, diverge)
    with pytest.warns(UserWarning, match="k=10"):
        model = LocalW2Regressor(delta=[Nearest(10), Nearest(30)], base=None, **QUICK).fit(x, y)
    assert model.delta_ == Nearest(30)


def test_a_network_that_diverges_beside_others_is_left_out_too(monkeypatch):
    """On a GPU one of a stack ends all: they are then trained alone."""
    x, y = two_spreads(60)
    settings = {"delta": [Nearest(10), Nearest(30)], "base": None, **QUICK}
    expected = LocalW2Regressor(**settings).fit(x, y)

    def fail(*_):
        raise FloatingPointError

    monkeypatch.setattr(choice, "_AT_ONCE", ("cpu",))
    monkeypatch.setattr(choice, "train_many", fail)
    assert LocalW2Regressor(**settings).fit(x, y).selection_.table() == expected.selection_.table()


def test_ranks_go_the_way_of_the_first(monkeypatch):
    x, y = two_spreads(60)
    settings = {"delta": [Nearest(10), Nearest(30)], "base": None, **QUICK}
    alone = LocalW2Regressor(**settings).fit(x, y)
    crew = SimpleNamespace(broadcast=lambda best: 1 - best)  # the first rank has found the other ones better
    monkeypatch.setattr(choice, "Crew", SimpleNamespace(join=lambda: crew))
    other = LocalW2Regressor(**settings).fit(x, y)
    assert {alone.delta_, other.delta_} == set(settings["delta"])
    assert other.selection_.balls == other.delta_


def test_an_interrupted_choice_ends_the_fit(monkeypatch):
    x, y = two_spreads(60)
    model = LocalW2Regressor(delta=[Nearest(10), Nearest(30)], base=None, **QUICK).fit(x, y)
    before = model.predict(x)
    fits = []

    def interrupted(*arguments):
        fits.append(train(*arguments))
        if len(fits) == 2:
            fits[-1].stopped = "interrupted after epoch 3"
        return fits[-1]

    monkeypatch.setattr(choice, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y + 1)
    assert len(fits) == 2
    assert np.array_equal(model.predict(x), before)
