import _thread
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from localw2 import Fit, FitConfig, LazyNeighborhoods, Neighborhoods, Objective, SquaredW2, train
from localw2.models.base import RandomMap
from localw2.models.linear import RandomLinear
from localw2.models.network import RandomMLP
from localw2.storage.lock import hold_file
from localw2.storage.model_file import Stored, read, write
from localw2.training import loop as training


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def data(n=60, seed=0, dtype=torch.float32):
    x = torch.rand(n, 1, generator=seeded(seed), dtype=dtype)
    noise = torch.randn(n, 1, generator=seeded(seed + 1), dtype=dtype)
    return x, 1 + 2 * x + 0.3 * noise


def problem(n=60, seed=0):
    x, y = data(n, seed)
    return x, Objective(y, Neighborhoods.nearest(x, 10), SquaredW2(debiased=True))


def score(model, generator):
    """A noisy held-out score that goes up and down: the squared error of the mean of a few draws."""
    x, y = data(30, seed=7)
    return float((model.sample(x, 4, generator).mean(0) - y).square().mean())


def network():
    return RandomMLP(1, width=8, generator=seeded(3))


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(ours, theirs):
    """Two fits agree bit for bit: weights, losses, scores, and what was best."""
    for (name, a), (other, b) in zip(weights(ours.model).items(), weights(theirs.model).items(), strict=True):
        assert name == other
        assert torch.equal(a, b), name
    histories = [[{k: v for k, v in e.items() if k != "seconds"} for e in f.history] for f in (ours, theirs)]
    assert histories[0] == histories[1]
    assert (ours.best_score, ours.best_epoch) == (theirs.best_score, theirs.best_epoch)


# --- what it does ---


@pytest.mark.parametrize(("batch_balls", "keep", "max_epochs"), [(None, "last", 300), (200, "average", 100)])
def test_it_recovers_a_linear_model(batch_balls, keep, max_epochs):
    """Intercept N(1, .5^2) and slope N(2, 1), 600 rows, x uniform on (-1, 1).

    The bounds are six standard errors of maximum likelihood, from the Fisher information. Over ten seeds this
    fit had at most 1.2 times those, so they are five of its own: a false alarm in about a million.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(600, 1))
    y = rng.normal(1, 0.5, size=(600, 1)) + rng.normal(2, 1, size=(600, 1)) * x
    variance, powers = 0.25 + x**2, [np.hstack([np.ones_like(x), x**k]) for k in (1, 2)]
    errors = [
        np.sqrt(np.diag(np.linalg.inv(powers[0].T @ (powers[0] / variance)))),
        np.sqrt(np.diag(np.linalg.inv(powers[1].T @ (powers[1] / variance**2) / 2))) / [1.0, 2.0],
    ]
    x, y = torch.tensor(x), torch.tensor(y)
    objective = Objective(y, Neighborhoods.nearest(x, 60), SquaredW2(debiased=True))
    config = FitConfig(max_epochs=max_epochs, batch_balls=batch_balls, keep=keep, weight_decay=0)
    fit = train(RandomLinear(1).double(), objective, x, config)
    assert np.mean(fit.losses[-20:]) < 0.5 * fit.losses[0]
    mean, std = (v.detach().abs()[:, 0].numpy() for v in (fit.model.mean, fit.model.std))
    assert (abs(mean - [1, 2]) < 6 * errors[0]).all()
    assert (abs(std - [0.5, 1]) < 6 * errors[1]).all()
    assert fit.stopped == "all epochs done"
    assert fit.seconds > 0


def test_the_result_depends_on_the_seed_alone():
    x, objective = problem()
    state = torch.get_rng_state()
    fits = [train(network(), objective, x, FitConfig(max_epochs=8, seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(fits[0], fits[1])
    assert fits[0].losses != fits[2].losses


def test_the_history_is_a_record_an_epoch():
    x, objective = problem()
    config = FitConfig(max_epochs=10, learning_rate=0.1, validate_every=4)
    fit = train(network(), objective, x, config, score)
    assert [e["epoch"] for e in fit.history] == list(range(1, 11))
    assert [e["epoch"] for e in fit.history if "score" in e] == [4, 8, 10]  # and after the last
    rates = [e["rate"] for e in fit.history]
    assert rates == [config.rate(epoch) for epoch in range(10)]
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert len({e["rate"] for e in train_constant(x, objective).history}) == 1
    assert "epoch'" not in repr(fit)  # a thousand records are nothing to print
    assert not fit.model.training


def test_one_cycle_rises_and_then_falls():
    config = FitConfig(max_epochs=100, learning_rate=0.1, schedule="one-cycle")
    rates = [config.rate(epoch) for epoch in range(100)]
    assert np.argmax(rates) == 20
    assert max(rates) == 0.1
    assert np.all(np.diff(rates[:21]) > 0)
    assert np.all(np.diff(rates[20:]) < 0)
    assert min(rates) > 0
    assert FitConfig(max_epochs=1, learning_rate=0.1, schedule="one-cycle").rate(0) == 0.1


def train_constant(x, objective):
    return train(network(), objective, x, FitConfig(max_epochs=3, schedule="constant"))


def test_a_step_with_mini_batches_sees_every_ball_once():
    x, objective = problem()
    seen = []

    class Watched(RandomMap):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))

        def draw(self, n, generator=None):
            return torch.randn(n, 1, generator=generator)

        def forward(self, x, omega=None, generator=None):
            seen.append(len(x))
            return self.shift + x * self.draw(len(x), generator)

    train(Watched(), objective, x, FitConfig(max_epochs=1, batch_balls=16))
    assert len(seen) == math.ceil(objective.hoods.n_balls / 16)
    assert max(seen) < 2 * len(x)  # two draws, and never all rows


def test_batches_of_the_caller_replace_the_choice_of_balls():
    x, objective = problem()
    everything = torch.arange(len(x)), objective
    ours = train(network(), objective, x, FitConfig(max_epochs=3), batches=lambda *_: [everything])
    assert_same(ours, train(network(), objective, x, FitConfig(max_epochs=3)))
    halves = [objective.block(range(20)), objective.block(range(20, objective.hoods.n_balls))]
    asked = []

    def batches(epoch, settling):
        asked.append(epoch)
        return halves[: 1 + epoch % 2]

    train(network(), objective, x, FitConfig(max_epochs=3), batches=batches)
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("batch_balls", [20, 1000])
def test_lazy_neighbourhoods_train_by_blocks(batch_balls):
    x, y = data()
    lazy, dense = (
        Objective(y, kind.nearest(x, 10), SquaredW2(debiased=True))
        for kind in (LazyNeighborhoods, Neighborhoods)
    )
    config = FitConfig(max_epochs=30, batch_balls=batch_balls)
    fit = train(network(), lazy, x, config)
    assert np.mean(fit.losses[-5:]) < 0.7 * fit.losses[0]
    assert fit.losses[-1] == pytest.approx(train(network(), dense, x, config).losses[-1], abs=0.2)
    with pytest.raises(ValueError, match="set batch_balls"):
        train(network(), lazy, x, FitConfig(max_epochs=3))


def test_one_dimensional_y_and_float64():
    x, y = data(dtype=torch.float64)
    fits = [
        train(
            RandomLinear(1).double(), Objective(v, Neighborhoods.nearest(x, 10)), x, FitConfig(max_epochs=5)
        )
        for v in (y, y[:, 0])
    ]
    assert fits[0].losses == fits[1].losses


def test_enough_draws_are_made_for_the_loss():
    x, objective = problem()
    assert len(train(network(), objective, x, FitConfig(max_epochs=2, n_draws=1)).losses) == 2


# --- which weights are kept, and when it stops ---


def scripted(scores):
    """A validation whose scores are known beforehand."""
    values = iter(scores)
    return lambda model, generator: next(values)


def test_keep_best_is_the_state_at_the_best_score():
    x, objective = problem()
    seen = []

    def watching(model, generator):
        seen.append(weights(model))
        return [5.0, 3.0, 4.0, 3.0, 6.0][len(seen) - 1]

    fit = train(network(), objective, x, FitConfig(max_epochs=10, validate_every=2, keep="best"), watching)
    assert (fit.best_score, fit.best_epoch) == (3.0, 4)  # the first of equals
    for name, value in fit.model.state_dict().items():
        assert torch.equal(value, seen[1][name])
    assert not torch.equal(seen[1]["layers.0.mean"], seen[4]["layers.0.mean"])


def test_keep_average_is_the_mean_over_the_last_epochs():
    x, objective = problem()
    model, seen = network().double(), []
    objective = Objective(objective.y.double(), objective.hoods, objective.discrepancy)
    config = FitConfig(max_epochs=8, keep="average", averaged=0.5)
    fit = train(model, objective, x.double(), config, callbacks=(lambda e: seen.append(weights(model)),))
    for name, value in fit.model.state_dict().items():
        torch.testing.assert_close(value, torch.stack([w[name] for w in seen[4:]]).mean(0))


def test_patience_counts_scores():
    x, objective = problem()
    config = FitConfig(max_epochs=100, validate_every=3, patience=2, keep="best")
    fit = train(network(), objective, x, config, scripted([5.0, 4.0, 4.5, 4.0, 9.0]))
    assert len(fit.history) == 12
    assert fit.stopped == "no better score since epoch 6"
    assert fit.best_epoch == 6


def test_a_fit_settles_when_scores_are_flat():
    """The rate falls from where it was to 0 in 4 of 20 epochs, and the last 3 are averaged."""
    x, objective = problem()
    model, seen, asked = network(), [], []
    everything = torch.arange(len(x)), objective

    def batches(epoch, settling):
        asked.append(settling)
        return [everything]

    config = FitConfig(max_epochs=20, validate_every=2, patience=2, settle=0.2, keep="average", averaged=0.15)
    scores = scripted([5.0, 4.0, 4.5, 4.0, 1.0, 1.0])
    fit = train(model, objective, x, config, scores, (lambda e: seen.append(weights(model)),), batches)
    assert fit.stopped == "the held-out score was flat after epoch 8"
    assert fit.complete
    assert asked == [False] * 8 + [True] * 4
    rates = [record["rate"] for record in fit.history]
    assert rates[:9] == [config.rate(epoch) for epoch in range(9)]
    assert rates[8:] == pytest.approx([config.rate(8) * v for v in (1, 0.6173, 0.2929, 0.0761)], rel=1e-3)
    for name, value in fit.model.state_dict().items():
        torch.testing.assert_close(value, torch.stack([w[name] for w in seen[-3:]]).mean(0))


def test_a_fit_whose_scores_improve_settles_in_time():
    x, objective = problem()
    config = FitConfig(max_epochs=10, validate_every=1, patience=2, settle=0.3)
    fit = train(network(), objective, x, config, scripted(range(10, 0, -1)))
    assert fit.stopped == "all epochs done"
    assert len(fit.history) == 10
    assert fit.history[7]["rate"] == config.rate(7) < config.learning_rate


def test_smoothed_weights_are_scored_and_training_goes_on_from_its_own():
    """Scores of a fit that settles are those of averaged weights, and do not disturb it."""
    x, objective = problem()
    settings = {"max_epochs": 8, "validate_every": 2, "keep": "last"}
    scored, model = [], network()

    def watch(model, generator):
        scored.append(weights(model))
        return -len(scored)

    seen = []
    config = FitConfig(**settings, patience=9, settle=0.1)
    fit = train(model, objective, x, config, watch, (lambda e: seen.append(weights(model)),))
    plain = train(network(), objective, x, FitConfig(**settings))
    assert fit.losses == plain.losses
    assert torch.equal(seen[-1]["layers.0.mean"], plain.model.state_dict()["layers.0.mean"])
    first = torch.stack([seen[0]["layers.0.mean"], seen[1]["layers.0.mean"]]).mean(0)
    torch.testing.assert_close(scored[0]["layers.0.mean"], first)


def test_a_callback_sees_each_record_and_can_stop():
    x, objective = problem()
    seen = []

    def third(entry):
        seen.append(entry["epoch"])
        return entry["epoch"] == 3

    fit = train(network(), objective, x, FitConfig(max_epochs=50), callbacks=(third, lambda entry: None))
    assert seen == [1, 2, 3]
    assert len(fit.history) == 3
    assert fit.stopped == "a callback asked for it after epoch 3"


# --- interruptions ---

KINDS = {
    "full batch": {},
    "mini-batches": {"batch_balls": 16},
    "best": {"keep": "best", "validate_every": 2},
    "average": {"keep": "average", "averaged": 0.8},
    "patience": {"keep": "best", "validate_every": 1, "patience": 4, "batch_balls": 20},
    "settle": {"keep": "average", "averaged": 0.3, "validate_every": 2, "patience": 1, "settle": 0.5},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("at", [1, 5, 11])
def test_a_resumed_fit_ends_as_an_uninterrupted_one(options, at, tmp_path):
    x, objective = problem()
    validate = score if "validate_every" in options else None
    whole = train(network(), objective, x, FitConfig(max_epochs=12, **options), validate)
    if "patience" not in options:
        assert len(whole.history) == 12

    def stop(entry):
        if entry["epoch"] == at:
            raise KeyboardInterrupt

    settings = {"checkpoint": str(tmp_path / "c"), "checkpoint_every": 100, "resume": True, **options}
    config = FitConfig(max_epochs=12, **settings)
    reached = len(whole.history) >= at
    with warns(f"epoch {at} of 12") if reached else nullcontext():
        first = train(network(), objective, x, config, validate, callbacks=(stop,))
    if reached:
        assert first.stopped == f"interrupted after epoch {at}"
    other = RandomMLP(1, width=8, generator=seeded(99))  # its own weights must not matter
    second = train(other, objective, x, FitConfig(max_epochs=12, **settings), validate)
    assert_same(second, whole)
    assert second.stopped == whole.stopped
    # A finished fit resumes to itself.
    assert_same(train(network(), objective, x, FitConfig(max_epochs=12, **settings), validate), whole)


def warns(message):
    return pytest.warns(UserWarning, match=message)


class Interrupting(RandomMap):
    """Presses Ctrl-C in the middle of an epoch, once."""

    def __init__(self, at_call):
        super().__init__()
        self.inner = network()
        self.calls, self.at_call = 0, at_call

    def draw(self, n, generator=None):
        return self.inner.draw(n, generator)

    def forward(self, x, omega=None, generator=None):
        self.calls += 1
        if self.calls == self.at_call:
            raise KeyboardInterrupt
        return self.inner(x, omega, generator)


@pytest.mark.parametrize("at_call", [1, 2, 7, 10])
@pytest.mark.parametrize("keep", ["last", "best", "average"])
def test_an_epoch_cut_short_is_undone(at_call, keep, tmp_path):
    """With mini-batches some steps of the epoch are done already; they must not count twice."""
    x, objective = problem()
    options = {"max_epochs": 5, "batch_balls": 20, "keep": keep, "averaged": 1.0, "validate_every": 1}
    whole = train(Interrupting(None), objective, x, FitConfig(**options), score_inner)
    settings = FitConfig(**options, checkpoint=str(tmp_path / "c"), history=str(tmp_path / "h"), resume=True)
    model = Interrupting(at_call)
    start = weights(model)
    done = (at_call - 1) // math.ceil(objective.hoods.n_balls / 20)
    if done == 0:  # nothing to keep: the interrupt is the caller's
        with pytest.raises(KeyboardInterrupt):
            train(model, objective, x, settings, score_inner)
        assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
        assert not (tmp_path / "c").exists()
    else:
        with warns(f"interrupted after epoch {done} of 5"):
            cut = train(model, objective, x, settings, score_inner)
        assert cut.stopped == f"interrupted after epoch {done}"
        assert len(cut.history) == done
    assert len(lines(tmp_path / "h")) == done
    assert_same(train(Interrupting(None), objective, x, settings, score_inner), whole)


def score_inner(model, generator):
    return score(model.inner, generator)


@pytest.fixture
def interruptible():
    """Interrupts reach Python even where a shell started the tests as a background job, ignoring them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
# Python itself drops a file unclosed when the interrupt strikes between open() and with.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_ctrl_c_anywhere_is_harmless(seed, tmp_path, interruptible):
    """Five interrupts of the main thread, wherever they strike, a resume after each, and the same end."""
    x, objective = problem()
    options = {"max_epochs": 200, "batch_balls": 30, "keep": "average", "averaged": 1.0, "validate_every": 2}
    whole = train(network(), objective, x, FitConfig(**options), score)
    files = {"checkpoint": str(tmp_path / "c"), "history": str(tmp_path / "h")}
    config = FitConfig(**options, **files, checkpoint_every=3, resume=True)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        timer = threading.Timer(rng.uniform(0, 0.02), _thread.interrupt_main)
        # Started from inside, so that it never strikes outside of the fit.
        begin = (lambda entry, timer=timer: None if timer.ident else timer.start(),)
        with warns(r"interrupted after epoch \d+ of 200"):
            fit = train(network(), objective, x, config, score, begin)
        timer.cancel()
        assert fit.stopped == f"interrupted after epoch {len(fit.history)}"
        assert lines(tmp_path / "h") == fit.history
    assert_same(train(network(), objective, x, config, score), whole)
    assert lines(tmp_path / "h")[-1]["epoch"] == 200


def test_ctrl_c_keeps_the_best_so_far():
    x, objective = problem()
    best = []

    def validate(model, generator):
        best.append(weights(model))
        return [3.0, 1.0, 2.0, 5.0][len(best) - 1]

    def stop(entry):
        if entry["epoch"] == 4:
            raise KeyboardInterrupt

    config = FitConfig(max_epochs=50, keep="best", validate_every=1)
    with warns("interrupted after epoch 4 of 50"):
        fit = train(network(), objective, x, config, validate, callbacks=(stop,))
    assert fit.best_epoch == 2
    assert all(torch.equal(value, best[1][name]) for name, value in fit.model.state_dict().items())


@pytest.mark.parametrize("strike", ["all_finite", "write_checkpoint"])
def test_ctrl_c_while_the_fit_is_wound_up_loses_nothing(strike, tmp_path, monkeypatch):
    """After the last epoch there is still a file to write and weights to choose."""
    x, objective = problem()
    options = {"max_epochs": 6, "keep": "average", "averaged": 0.5}
    whole = train(network(), objective, x, FitConfig(**options))
    original, done = getattr(training, strike), []

    def interrupt_once(*arguments):
        if len(done) == 6:
            done.append("struck")
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(training, strike, interrupt_once)
    config = FitConfig(**options, checkpoint=str(tmp_path / "c"))
    with warns("interrupted after epoch 6 of 6"):
        fit = train(network(), objective, x, config, callbacks=(lambda entry: done.append(entry["epoch"]),))
    assert_same(fit, whole)
    assert read(tmp_path / "c").settings["epoch"] == 6


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_fit(tmp_path, monkeypatch):
    x, objective = problem()
    whole = train(network(), objective, x, FitConfig(max_epochs=8))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training, "write_checkpoint", full)
    with warns("could not be written") as warned:
        fit = train(
            network(),
            objective,
            x,
            FitConfig(max_epochs=8, checkpoint=str(tmp_path / "c"), checkpoint_every=2),
        )
    assert_same(fit, whole)
    # Once on the way, and once at the end.
    first, last = (str(w.message) for w in warned)
    assert re.search(r"epoch 2 \(No space left on device\)\. Training continues", first)
    assert re.search(r"epoch 8 .*complete", last)


def test_checkpoints_are_written_on_the_way_and_at_the_end(tmp_path):
    x, objective = problem()
    path, epochs = tmp_path / "c", []

    def look(entry):
        epochs.append(read(path).settings["epoch"] if path.exists() else None)

    train(
        network(),
        objective,
        x,
        FitConfig(max_epochs=8, checkpoint=str(path), checkpoint_every=3),
        None,
        (look,),
    )
    assert epochs == [None] * 3 + [3] * 3 + [6] * 2
    assert read(path).settings["epoch"] == 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]


def test_slow_epochs_are_kept_by_time(tmp_path, monkeypatch):
    x, objective = problem()
    path, epochs = tmp_path / "c", []
    assert training.CHECKPOINT_SECONDS <= 30  # as promised
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)

    def look(entry):
        epochs.append(read(path).settings["epoch"] if path.exists() else None)

    config = FitConfig(max_epochs=3, checkpoint=str(path), checkpoint_every=1000)
    train(network(), objective, x, config, None, (look,))
    assert epochs == [None, 1, 2]


@pytest.mark.posix
def test_a_checkpoint_has_one_fit_at_a_time(tmp_path):
    x, objective = problem()
    path, said = str(tmp_path / "c"), []

    def train_another():
        try:
            train(network(), objective, x, FitConfig(max_epochs=1, checkpoint=path))
        except ValueError as error:
            said.append(str(error))

    with hold_file(path):
        train_another()  # a part of the fit that holds it
        assert Path(path).exists()
    code = "import sys; from localw2.storage.lock import hold_file; hold = hold_file(sys.argv[1])\n"
    code += "with hold: print('held', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code, path], **pipes)
    process.stdout.readline()
    before = Path(path).read_bytes()
    train_another()
    process.communicate("\n")
    assert "in use" in said[0]
    assert Path(path).read_bytes() == before


def test_without_resume_a_checkpoint_is_not_looked_at(tmp_path):
    x, objective = problem()
    config = FitConfig(max_epochs=4, checkpoint=str(tmp_path / "c"))
    assert_same(train(network(), objective, x, config), train(network(), objective, x, config))


def test_a_checkpoint_of_another_fit_is_refused_and_touches_nothing(tmp_path):
    x, objective = problem()
    path = str(tmp_path / "c")
    same = {"max_epochs": 4, "checkpoint": path, "resume": True}
    train(network(), objective, x, FitConfig(**same))
    written = Path(path).read_bytes()

    def refused(message, model=None, objective=objective, x=x, **changes):
        model = model or network()
        before = weights(model)
        with pytest.raises(ValueError, match=message):
            train(model, objective, x, FitConfig(**{**same, **changes}))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert Path(path).read_bytes() == written

    other = "is the checkpoint of another fit: "
    refused(other + "learning_rate, seed differ. Resume with the same ones", learning_rate=0.5, seed=1)
    refused(other + "max_epochs differ", max_epochs=9)
    refused(other + "settings, data or functions of the estimator differ", fingerprint="concrete, split 3")
    refused(other + "the model differ", RandomMLP(1, width=9))
    refused(other + "the model differ", RandomMLP(1, width=8, residual=False))  # the same shapes
    refused(other + "the model differ", RandomMLP(1, width=8, activation="tanh"))
    refused(other + "the model differ", RandomLinear(1))
    refused(other + "the data or the loss differ", x=x + 1)
    refused(
        other + "the data or the loss differ",
        objective=Objective(objective.y + 1, objective.hoods, SquaredW2(True)),
    )
    refused(other + "the data or the loss differ", objective=Objective(objective.y, objective.hoods))
    refused(
        other + "the data or the loss differ",
        objective=Objective(objective.y, Neighborhoods.nearest(x, 9), SquaredW2(True)),
    )
    double = Objective(objective.y.double(), objective.hoods, SquaredW2(True))
    refused(other + "the model, the data or the loss differ|the data", network().double(), double, x.double())
    # Where a fit looks, and how often it writes, may change.
    train(network(), objective, x, FitConfig(**same, checkpoint_every=2, history=str(tmp_path / "h")))


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    x, objective = problem()
    path = tmp_path / "c"
    config = FitConfig(max_epochs=4, checkpoint=str(path), resume=True)
    write(path, Stored("LocalW2Regressor", {}, {}))
    with pytest.raises(ValueError, match="LocalW2Regressor, not a checkpoint"):
        train(network(), objective, x, config)
    write(path, Stored("checkpoint", {}, {}))
    with pytest.raises(ValueError, match="another fit"):
        train(network(), objective, x, config)
    path.write_bytes(b"not ours")
    with pytest.raises(ValueError, match=r"not a localw2 model file.* delete it"):
        train(network(), objective, x, config)


def without(name):
    return lambda settings, tensors: settings.pop(name)


@pytest.mark.parametrize(
    "spoil",
    [
        without("epoch"),
        without("n_failed"),
        without("seconds"),
        lambda settings, tensors: settings.update(seconds="long"),
        lambda settings, tensors: settings.update(epoch=7),
        lambda settings, tensors: settings.update(n_failed=None),
        lambda settings, tensors: tensors.pop("history.loss"),
        lambda settings, tensors: tensors.update({"history.rate": torch.zeros(9, dtype=torch.float64)}),
        lambda settings, tensors: tensors.update({"optimizer.first.step": torch.zeros(1)}),
        lambda settings, tensors: tensors.update({"best.other": torch.zeros(1)}),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_advice(spoil, tmp_path):
    x, objective = problem()
    path = tmp_path / "c"
    config = FitConfig(max_epochs=4, checkpoint=str(path), resume=True)
    train(network(), objective, x, config)
    stored = read(path)
    spoil(stored.settings, stored.tensors)
    write(path, stored)
    with pytest.raises(ValueError, match=r"damaged .*delete it"):
        train(network(), objective, x, config)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"damaged.* delete it"):
        train(network(), objective, x, config)


# --- losses that are not finite ---


class Fragile(RandomMap):
    """A model that gives what it is told to at a call, and a gradient of that."""

    def __init__(self, at_call, factor):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1, 1))
        self.calls, self.at_call, self.factor = 0, at_call, factor

    def draw(self, n, generator=None):
        return torch.randn(n, 1, generator=generator)

    def forward(self, x, omega=None, generator=None):
        self.calls += 1
        outputs = x @ self.slope + (self.draw(len(x), generator) if omega is None else omega)
        return outputs * self.factor if self.calls == self.at_call else outputs


ADVICE = r"epoch {}: {}\. Try a smaller learning_rate \(it was 0.02\), scale x .* weights "


@pytest.mark.parametrize(
    ("factor", "what"),
    [
        (math.nan, "values that are not finite"),
        (math.inf, "values that are not finite"),
        (1e25, "the loss is (nan|inf)"),
    ],
)
def test_a_loss_that_is_not_finite_is_an_error_with_advice(factor, what):
    x, objective = problem()
    model, seen = Fragile(3, factor), [torch.ones(1, 1)]
    watch = (lambda entry: seen.append(model.slope.detach().clone()),)
    with pytest.raises(FloatingPointError, match=ADVICE.format(3, ".*" + what) + ".*last"):
        train(model, objective, x, FitConfig(max_epochs=5), callbacks=watch)
    # After two epochs: the weights that gave the second loss, the last to be finite.
    assert torch.equal(model.slope.detach(), seen[1])


def test_the_best_weights_are_left_where_there_are_scores():
    x, objective = problem()
    model, seen = Fragile(4, math.nan), []

    def validate(model, generator):
        seen.append(model.slope.detach().clone())
        return [2.0, 1.0, 3.0][len(seen) - 1]

    with pytest.raises(FloatingPointError, match=ADVICE.format(4, ".*") + ".*epoch 2"):
        train(model, objective, x, FitConfig(max_epochs=9, validate_every=1), validate)
    assert torch.equal(model.slope.detach(), seen[1])


def test_an_exploding_fit_leaves_finite_weights():
    x, objective = problem()
    model = network()
    with pytest.raises(FloatingPointError, match=r"learning_rate \(it was 1e\+20\)"):
        train(model, objective, x, FitConfig(max_epochs=50, learning_rate=1e20))
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


@pytest.mark.parametrize("max_epochs", [3, 4])
def test_a_last_step_that_spoils_the_weights_is_noticed(max_epochs, tmp_path):
    """The loss is finite but its gradient is not: the next epoch would tell, if there is one."""

    class Kink(Fragile):
        def forward(self, x, omega=None, generator=None):
            outputs = super().forward(x, omega, generator)
            # sqrt has an infinite slope at 0, where its value is fine.
            return outputs + (self.slope - self.slope).sqrt() if self.calls == 3 else outputs

    x, objective = problem()
    model, path = Kink(0, 1.0), tmp_path / "c"
    config = FitConfig(max_epochs=max_epochs, checkpoint=str(path), checkpoint_every=1)
    with pytest.raises(FloatingPointError, match="not finite"):
        train(model, objective, x, config)
    assert torch.isfinite(model.slope).all()
    assert read(path).settings["epoch"] == 2  # no checkpoint holds spoilt weights


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_an_error(value):
    x, objective = problem()
    with pytest.raises(FloatingPointError, match=f"in epoch 4: the held-out score is {value}"):
        train(network(), objective, x, FitConfig(max_epochs=9, validate_every=2), scripted([1.0, value]))


# --- steps that fail and are left out ---


class Unsteady(RandomMap):
    """A network whose simulation fails at chosen calls, in a chosen way."""

    def __init__(self, at_calls, how="raise"):
        super().__init__()
        self.inner = network()
        self.calls, self.at_calls, self.how = 0, set(at_calls), how

    def draw(self, n, generator=None):
        return self.inner.draw(n, generator)

    def forward(self, x, omega=None, generator=None):
        self.calls += 1
        outputs = self.inner(x, omega, generator)
        if self.calls not in self.at_calls:
            return outputs
        if self.how == "raise":
            raise Explosion("the solution explodes at t = 3.")
        if self.how == "gradient":  # sqrt has an infinite slope at 0, where its value is fine
            return outputs + sum((p - p).abs().sum().sqrt() for p in self.parameters())
        return outputs * {"output": math.nan, "loss": 1e25}[self.how]


class Explosion(FloatingPointError):
    """What a solver would raise."""


@pytest.mark.parametrize("how", ["raise", "output", "loss", "gradient"])
@pytest.mark.parametrize("batch_balls", [None, 20])
def test_a_step_that_fails_is_left_out_and_counted(how, batch_balls):
    x, objective = problem()
    model, seen = Unsteady({6, 7}, how), []
    config = FitConfig(max_epochs=8, max_skipped=2, batch_balls=batch_balls)
    fit = train(model, objective, x, config, callbacks=(lambda e: seen.append(weights(model)),))
    steps = 1 if batch_balls is None else math.ceil(objective.hoods.n_balls / 20)
    epochs = [math.ceil(call / steps) for call in (6, 7)]
    assert {e["epoch"]: e["skipped"] for e in fit.history if "skipped" in e} == Counter(epochs)
    assert fit.skipped == 2
    assert len(fit.history) == 8
    assert np.isfinite(fit.losses).all()
    if steps == 1:  # nothing moved, and the loss is the last that there is
        assert fit.losses[4] == fit.losses[5] == fit.losses[6] != fit.losses[7]
        for name, value in seen[4].items():
            assert torch.equal(value, seen[6][name]), name
            assert not torch.equal(value, seen[7][name]), name
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_too_many_failures_in_a_row_end_the_fit_with_good_weights():
    x, objective = problem()
    model, seen = Unsteady({3, 5, 6, 7, 8}), []
    watch = (lambda e: seen.append(weights(model)),)
    message = r"epoch 7, after 3 .*the solution explodes at t = 3\. Try"
    with pytest.raises(FloatingPointError, match=message) as caught:
        train(model, objective, x, FitConfig(max_epochs=20, max_skipped=2), callbacks=watch)
    assert isinstance(caught.value.__context__, Explosion)
    # Epoch 4 had the last finite loss, from the weights of epochs 3 and 2.
    assert all(torch.equal(value, seen[2][name]) for name, value in model.state_dict().items())
    assert not model.training


def test_one_failure_ends_a_fit_that_allows_none():
    x, objective = problem()
    with pytest.raises(FloatingPointError, match=r"epoch 4: the solution explodes at t = 3\. Try"):
        train(Unsteady({4}), objective, x, FitConfig(max_epochs=20))
    # In the first epoch there is no loss to record: other draws are tried at once.
    first = train(Unsteady({1}), objective, x, FitConfig(max_epochs=2, max_skipped=9))
    assert first.history[0]["skipped"] == 1
    with pytest.raises(FloatingPointError, match="epoch 1, after 4"):
        train(Unsteady(set(range(1, 99))), objective, x, FitConfig(max_epochs=20, max_skipped=3))
    first = train(Unsteady({1}), objective, x, FitConfig(max_epochs=2, max_skipped=1, batch_balls=20))
    assert first.history[0]["skipped"] == 1


def test_a_held_out_simulation_that_fails_leaves_good_weights():
    x, objective = problem()

    def validate(model, generator):
        raise Explosion("the solution explodes at t = 3.")

    with pytest.raises(FloatingPointError, match="epoch 2: the solution explodes"):
        train(network(), objective, x, FitConfig(max_epochs=9, validate_every=2), validate)


class Unlucky(RandomMap):
    """Fails on draws that a generator decides, so that a resumed fit meets the same failures."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def draw(self, n, generator=None):
        return self.inner.draw(n, generator)

    def forward(self, x, omega=None, generator=None):
        if self.training and torch.rand((), generator=generator) < 0.4:
            raise Explosion("the solution explodes.")
        return self.inner(x, omega, generator)


@pytest.mark.parametrize("batch_balls", [None, 20])
def test_a_fit_with_failures_resumes_to_the_same_end(batch_balls, tmp_path):
    x, objective = problem()
    options = {
        "max_epochs": 16,
        "max_skipped": 20,
        "max_gradient": 0.5,
        "batch_balls": batch_balls,
        "seed": 1,
    }
    whole = train(Unlucky(), objective, x, FitConfig(**options))
    assert whole.skipped > 3
    config = FitConfig(**options, checkpoint=str(tmp_path / "c"), checkpoint_every=1, resume=True)
    for at in (3, 7, 12):

        def cut(entry, at=at):
            if entry["epoch"] > at:
                raise RuntimeError("power cut")

        with pytest.raises(RuntimeError, match="power cut"):
            train(Unlucky(), objective, x, config, callbacks=(cut,))
    resumed = train(Unlucky(), objective, x, config)
    assert_same(resumed, whole)
    assert resumed.skipped == whole.skipped


def test_failures_in_a_row_are_counted_across_a_resume(tmp_path):
    x, objective = problem()
    settings = {"max_epochs": 20, "checkpoint": str(tmp_path / "c"), "checkpoint_every": 1, "resume": True}
    failing = range(4, 99)
    with pytest.raises(FloatingPointError, match="epoch 6, after 3"):
        train(Unsteady(failing), objective, x, FitConfig(**settings, max_skipped=2))
    assert read(tmp_path / "c").settings["n_failed"] == 2  # epochs 4 and 5
    with pytest.raises(FloatingPointError, match="epoch 6, after 3"):
        train(Unsteady(range(1, 99)), objective, x, FitConfig(**settings, max_skipped=2))
    # A fit that gave up goes on if it may skip more.
    assert len(train(Unsteady({1}), objective, x, FitConfig(**settings, max_skipped=3)).history) == 20


def test_a_long_gradient_is_shortened():
    x, objective = problem()
    fits = [
        train(network(), objective, x, FitConfig(max_epochs=9, max_gradient=g)) for g in (None, 1e9, 1e-3)
    ]
    assert_same(fits[0], fits[1])  # never reached
    assert fits[0].losses != fits[2].losses

    def norms(max_gradient):
        model, seen = network(), []
        watch = (lambda e: seen.append(nn.utils.get_total_norm([p.grad for p in model.parameters()])),)
        train(model, objective, x, FitConfig(max_epochs=9, max_gradient=max_gradient), callbacks=watch)
        return torch.stack(seen)

    assert norms(None).max() > 0.5
    assert norms(0.5).max() <= 0.5 * (1 + 1e-6)


# --- settings ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epochs": 0}, "max_epochs=0"),
        ({"max_epochs": 1.5}, "max_epochs=1.5"),
        ({"n_draws": 0}, "n_draws=0"),
        ({"validate_every": 0}, "validate_every=0"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"batch_balls": 0}, "batch_balls=0"),
        ({"patience": 0}, "patience=0"),
        ({"seed": -1}, "seed=-1"),
        ({"schedule": "linear"}, "schedule='linear'"),
        ({"keep": "first"}, "keep='first'"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"learning_rate": "fast"}, "learning_rate='fast'"),
        ({"weight_decay": -1}, "weight_decay=-1"),
        ({"averaged": 0.0}, "averaged=0.0"),
        ({"averaged": 1.5}, "averaged=1.5"),
        ({"max_skipped": -1}, "max_skipped=-1"),
        ({"max_gradient": 0.0}, "max_gradient=0.0"),
        ({"max_gradient": math.nan}, "max_gradient=nan"),
        ({"max_gradient": "1"}, "max_gradient='1'"),
        ({"resume": True}, "resume=True"),
        ({"checkpoint": 5}, "checkpoint=5"),
        ({"history": 5}, "history=5"),
        ({"progress": "no"}, "progress='no'"),
        ({"keep": "average", "patience": 3}, "patience.*keep='best'"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        FitConfig(**options)


def test_numpy_scalars_become_plain(tmp_path):
    """As a search over settings gives them."""
    x, objective = problem()
    path = tmp_path / "c"
    options = {
        "max_epochs": 4,
        "n_draws": 2,
        "batch_balls": 20,
        "learning_rate": 0.25,
        "patience": 3,
        "seed": 1,
    }
    options |= {
        "checkpoint_every": 2,
        "validate_every": 2,
        "weight_decay": 0.5,
        "max_gradient": 1.0,
        "keep": "best",
    }
    plain = FitConfig(**options, checkpoint=str(path), resume=True, progress=False)
    given = {k: np.array(v)[()] if not isinstance(v, str) else v for k, v in options.items()}
    given["learning_rate"] = np.float32(0.25)
    config = FitConfig(**given, checkpoint=path, resume=np.True_, progress=np.False_)
    assert config == plain
    assert [type(value) for value in vars(config).values()] == [type(value) for value in vars(plain).values()]
    fit = train(network(), objective, x, config, score)
    assert_same(train(network(), objective, x, plain, score), fit)  # from its checkpoint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "best"}, "keep='best'"),
        pytest.param(
            {"checkpoint": "/proc/c"},
            "checkpoint='/proc/c'",
            marks=pytest.mark.posix,
        ),
        ({"checkpoint": "/"}, "checkpoint='/' .*folder"),
        ({"patience": 3}, "validate"),
        ({"checkpoint": "/no/such/folder/c"}, "checkpoint='/no/such/folder/c'"),
        ({"history": "/no/such/folder/h"}, "history='/no/such/folder/h'"),
    ],
)
def test_what_would_fail_late_fails_before_the_first_epoch(options, message):
    x, objective = problem()
    with pytest.raises(ValueError, match=message):
        train(network(), objective, x, FitConfig(max_epochs=2, **options))


def test_arguments_that_do_not_fit_are_named():
    x, objective = problem()
    with pytest.raises(ValueError, match=r"59 rows.*60"):
        train(network(), objective, x[1:])
    with pytest.raises(ValueError, match="x is ndarray"):
        train(network(), objective, x.numpy())
    with pytest.raises(ValueError, match="model is Linear"):
        train(nn.Linear(1, 1), objective, x)
    with pytest.raises(ValueError, match="config is dict"):
        train(network(), objective, x, {"max_epochs": 3})
    with pytest.raises(ValueError, match="objective is function"):
        train(network(), score, x)
    with pytest.raises(ValueError, match="RandomMLP has no parameters to train"):
        train(network().requires_grad_(False), objective, x)
    with pytest.raises(ValueError, match=r"float64 .*float32"):
        train(network(), objective, x.double())


# --- the history file ---


def lines(path):
    text = Path(path).read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.posix
def test_a_full_disk_ends_the_history_file_and_not_the_fit(tmp_path):
    import resource

    x, objective = problem()
    path = tmp_path / "h"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.warns(UserWarning, match=r"h' could not be written"):
            fit = train(network(), objective, x, FitConfig(max_epochs=20, history=str(path)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(fit.history) == 20
    assert json.loads(path.read_text().splitlines()[0]) == fit.history[0]


def test_the_history_file_can_be_followed_and_is_continued_without_repeats(tmp_path):
    x, objective = problem()
    path, seen = tmp_path / "h.jsonl", []
    settings = {
        "max_epochs": 9,
        "history": str(path),
        "checkpoint": str(tmp_path / "c"),
        "checkpoint_every": 4,
        "resume": True,
    }

    def follow(entry):
        assert lines(path)[-1] == entry
        seen.append(entry["epoch"])
        if seen == [1, 2, 3, 4, 5, 6]:
            raise RuntimeError("power cut")  # two epochs after the checkpoint

    with pytest.raises(RuntimeError, match="power cut"):
        train(network(), objective, x, FitConfig(**settings), callbacks=(follow,))
    assert [entry["epoch"] for entry in lines(path)] == [1, 2, 3, 4, 5, 6]
    with open(path, "a") as file:
        file.write('{"epoch": 7, "lo')  # killed in the middle of a line
    fit = train(network(), objective, x, FitConfig(**settings), callbacks=(follow,))
    assert seen == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9]
    assert lines(path) == fit.history
    assert [entry["epoch"] for entry in fit.history] == list(range(1, 10))


# --- the progress bar ---


def shown(monkeypatch, opened):
    """What a fit writes to stderr when that is one end of a pipe or a terminal."""
    reader, writer = opened
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    x, objective = problem()
    with open(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        config = FitConfig(max_epochs=6, progress=True, validate_every=2)
        train(network(), objective, x, config, score)
        monkeypatch.undo()
        stderr.write("end")
    text = b""
    while not text.endswith(b"end"):
        text += os.read(reader, 4096)
    os.close(reader)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode()).removesuffix("end")


def test_the_bar_is_silent_in_a_pipe(monkeypatch, capfd):
    assert shown(monkeypatch, os.pipe()) == ""
    assert capfd.readouterr() == ("", "")


@pytest.mark.posix
def test_the_bar_shows_loss_score_and_time_left_on_a_terminal(monkeypatch, capfd):
    import pty

    text = shown(monkeypatch, pty.openpty())
    assert re.search(r"6/6 loss -?\d[\d.e-]*, best score \d", text)
    assert re.search(r"\d:\d\d:\d\d", text)
    assert capfd.readouterr().out == ""


# --- processes of their own ---

SCRIPT = textwrap.dedent(
    """
    import sys, time
    sys.path.insert(0, {tests!r})
    import torch
    torch.set_num_threads(1)
    from localw2 import FitConfig, train
    from test_training import network, problem, score
    x, objective = problem()
    config = FitConfig({options})
    """
)


def script(options, body):
    return SCRIPT.format(tests=str(Path(__file__).parent), options=options) + textwrap.dedent(body)


def environment(**extra):
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **extra}


KILLED = (
    "max_epochs=150, batch_balls=20, keep='best', validate_every=5, checkpoint={path!r}, "
    "checkpoint_every=4, resume=True, history={history!r}"
)


def campaign(folder, kills, seed):
    """Train in processes, each resuming, each killed at a random moment; the files that are left."""
    path, history = folder / "c", folder / "h"
    body = """
        def slowly(entry):
            print(entry["epoch"], flush=True)
            time.sleep(.01)
        train(network(), objective, x, config, score, (slowly,))
    """
    code = script(KILLED.format(path=str(path), history=str(history)), body)
    rng = np.random.default_rng(seed)
    epochs = []
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment())
        assert int(process.stdout.readline()) > 0  # its first epoch is done
        time.sleep(rng.uniform(0, 0.25))
        process.kill()
        process.wait()
        process.stdout.close()
        epochs.append(read(path).settings["epoch"] if path.exists() else 0)
    return path, history, epochs


def check_campaign(tmp_path, kills, seed):
    x, objective = problem()
    options = {"max_epochs": 150, "batch_balls": 20, "keep": "best", "validate_every": 5}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # bit for bit holds for one number of threads
    try:
        whole = train(network(), objective, x, FitConfig(**options), score)
        path, history, epochs = campaign(tmp_path, kills, seed)
        config = FitConfig(**options, checkpoint=str(path), history=str(history), resume=True)
        resumed = train(network(), objective, x, config, score)
    finally:
        torch.set_num_threads(threads)
    assert_same(resumed, whole)
    assert [entry["epoch"] for entry in lines(history)] == list(range(1, 151))
    return epochs


@pytest.mark.posix
def test_a_killed_fit_resumes_to_the_same_end(tmp_path):
    check_campaign(tmp_path, kills=1, seed=0)


@pytest.mark.slow
def test_a_fit_killed_ten_times_resumes_to_the_same_end(tmp_path):
    epochs = check_campaign(tmp_path, kills=10, seed=1)
    print("epochs in the checkpoint at each kill:", epochs)
    assert len(epochs) == 10
    assert sum(0 < epoch < 150 for epoch in epochs) >= 5, epochs  # most kills hit a fit that was under way


def test_a_fit_is_what_it_says():
    fit = Fit(network(), FitConfig(), [{"loss": 2.0}, {"loss": 1.0}])
    assert fit.losses == [2.0, 1.0]


def test_the_best_weights_of_a_fit_that_settles_are_those_that_were_scored():
    x = torch.linspace(-1, 1, 40)[:, None]
    y = x + torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    objective = Objective(y, Neighborhoods.whole(40))

    def validate(model, generator):
        return float(sum((value.detach() - 0.3).square().sum() for value in model.parameters()))

    model = RandomLinear(1)
    settings = {"validate_every": 5, "patience": 2, "settle": 0.3, "learning_rate": 0.3}
    fit = train(model, objective, x, FitConfig(max_epochs=40, keep="best", **settings), validate)
    assert validate(model, None) == pytest.approx(fit.best_score)


@pytest.mark.parametrize("share", [0.2, 0.8, 0.9])
def test_an_average_begins_when_the_fit_settles_at_the_earliest(share):
    for max_epochs in range(3, 40):
        config = FitConfig(
            max_epochs=max_epochs, patience=1, settle=share, keep="average", averaged=share, validate_every=1
        )
        counts = [config.n_averaged(epoch, 1) for epoch in range(1, config.n_epochs(1) + 1)]
        assert counts[0] == 0
        assert all(after - before in (0, 1) for before, after in pairwise(counts))
