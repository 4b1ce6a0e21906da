"""LocalW2ODE: laws that are known are found, and everything around the fit behaves."""

import json
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from localw2 import Euclidean, LocalW2ODE, LogNormal, Neighborhoods, Normal, PushForward, Shared, load, save
from localw2.datasets import FourStates, LogisticGrowth
from localw2.estimators.dynamics import noise_errors, ode
from localw2.estimators.dynamics.held_out_paths import WORST, HeldOutScore, hold_out
from localw2.estimators.dynamics.parameters import LearnedParameters
from localw2.estimators.dynamics.trajectory_batches import TrajectoryBatches
from localw2.losses.discrepancies import EnergyScore
from localw2.losses.objective import Objective
from localw2.models.fields import FunctionField, NetworkField
from localw2.models.ode import RandomODE
from localw2.models.paths import ObservedPaths
from localw2.models.solver import SolverError
from localw2.training import loop as training


def decay(t, y, k):
    return -k * y


def other_decay(t, y, k):
    return -y * k


def first_state(y):
    return y[..., :1]


def decays(n=60, seed=0, mean=1.0, std=0.2):
    """Exponential decays with Gaussian rates: Y (n, 9, 1), t, rates."""
    k = np.random.default_rng(seed).normal(mean, std, n)
    t = np.linspace(0, 2, 9)
    return np.exp(-k[:, None] * t)[..., None], t, k


QUICK = {"max_epochs": 15, "random_state": 0}


@contextmanager
def power_cut(epoch):
    """Let training die in this epoch."""
    original, seen = training._Run.step, []

    def dying(run):
        seen.append(1)
        if len(seen) == epoch:
            raise RuntimeError("power cut")
        return original(run)

    training._Run.step = dying
    try:
        yield
    finally:
        training._Run.step = original


@contextmanager
def every_epoch_kept():
    """Write a checkpoint after every epoch."""
    before, training.CHECKPOINT_SECONDS = training.CHECKPOINT_SECONDS, -1.0
    try:
        yield
    finally:
        training.CHECKPOINT_SECONDS = before


def watch_trajectories(monkeypatch):
    """The trajectories of every step of a fit, as they come."""
    original, seen = TrajectoryBatches.make, []

    def watching(self, groups):
        seen.append(np.concatenate(groups))
        return original(self, groups)

    monkeypatch.setattr(TrajectoryBatches, "make", watching)
    return seen


@pytest.fixture(scope="module")
def fitted():
    Y, t, k = decays()
    return LocalW2ODE(decay, {"k": Normal(0.6, 0.1)}, max_epochs=120, random_state=0).fit(Y, t), Y, t, k


class TestTrainingAsPrinted:
    """The paper names a rate and a number of epochs, and no more."""

    @pytest.mark.filterwarnings("ignore:the fit moved")
    def test_settings_reach_training(self):
        Y, t, _ = decays(10)
        plain = LocalW2ODE(
            decay,
            {"k": Normal(0.6, 0.1)},
            max_epochs=2,
            random_state=0,
            schedule="constant",
            keep="last",
            max_gradient=None,
        )
        config = plain.fit(Y, t).fit_.config
        assert (config.schedule, config.keep, config.max_gradient) == ("constant", "last", None)
        assert config.rate(1) == config.learning_rate
        config = (
            LocalW2ODE(decay, {"k": Normal(0.6, 0.1)}, max_epochs=2, random_state=0).fit(Y, t).fit_.config
        )
        assert (config.schedule, config.keep, config.max_gradient) == ("cosine", "average", 1.0)

    @pytest.mark.parametrize("given", [{"keep": "best"}, {"schedule": "linear"}, {"max_gradient": 0.0}])
    def test_others_are_refused(self, given):
        Y, t, _ = decays(10)
        with pytest.raises(ValueError, match=next(iter(given))):
            LocalW2ODE(decay, {"k": Normal(0.6, 0.1)}, max_epochs=1, **given).fit(Y, t)


class TestTheLawIsFound:
    def test_gaussian_rate(self, fitted):
        model, _, _, k = fitted
        # Trajectories without noise show their rates: what is left is the error of the fit.
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), abs=0.1 * k.std())
        assert model.parameters_.std["k"] == pytest.approx(k.std(), rel=0.1)

    @pytest.mark.parametrize("linked", [True, False])
    def test_linked_or_not_with_a_shared_parameter(self, linked):
        rng = np.random.default_rng(1)
        k, t = rng.normal(1.0, 0.2, 80), np.linspace(0, 2, 9)
        Y = (3.0 + (1 - 3.0) * np.exp(-k[:, None] * t))[..., None]
        model = LocalW2ODE(
            lambda t, y, k, level: k * (level - y),
            {"k": LogNormal(0.7), "level": Shared(2.0)},
            linked=linked,
            max_epochs=200,
            random_state=0,
        ).fit(Y, t)
        assert model.parameters_.mean["level"] == pytest.approx(3.0, rel=0.02)
        assert model.parameters_.std["level"] < 1e-12
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), rel=0.05)
        assert model.parameters_.std["k"] == pytest.approx(k.std(), rel=0.15)

    def test_a_part_of_the_states_is_enough(self):
        # A swing of which only the angle is seen, each with its own frequency.
        rng = np.random.default_rng(2)
        w, t = rng.normal(2.0, 0.2, 60), np.linspace(0, 2, 21)
        model = LocalW2ODE(
            lambda t, y, w: [y[1], -(w**2) * y[0]],
            {"w": 1.7},
            observe=first_state,
            max_epochs=150,
            random_state=0,
        ).fit(np.cos(w[:, None] * t), t, y0=[1.0, 0.0])
        assert model.n_states_ == 2
        assert model.parameters_.mean["w"] == pytest.approx(w.mean(), rel=0.02)
        assert model.parameters_.std["w"] == pytest.approx(w.std(), rel=0.12)
        assert model.sample([1.0, 0.0], t, 5).shape == (5, 1, 21, 1)

    def test_unequal_lengths_and_missing_values(self):
        Y, t, k = decays(80)
        cut = np.random.default_rng(0).integers(3, 10, 80)
        lists = [y[:n] for y, n in zip(Y, cut, strict=True)], [t[:n] for n in cut]
        lists[0][4][1] = np.nan
        model = LocalW2ODE(decay, {"k": 0.7}, max_epochs=120, random_state=0).fit(*lists)
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), abs=0.15 * k.std())
        assert model.parameters_.std["k"] == pytest.approx(k.std(), rel=0.15)

    def test_spread_starts(self):
        rng = np.random.default_rng(3)
        k, t, y0 = rng.normal(1.0, 0.2, 100), np.linspace(0, 2, 9), 1 + rng.uniform(size=100)
        model = LocalW2ODE(decay, {"k": 0.7}, max_epochs=120, random_state=0)
        model.fit(y0[:, None] * np.exp(-k[:, None] * t), t)
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), abs=0.15 * k.std())
        assert model.parameters_.std["k"] == pytest.approx(k.std(), rel=0.15)

    def test_a_network_learns_a_decay(self):
        Y, t, _ = decays(40)
        model = LocalW2ODE(width=20, depth=1, max_epochs=150, learning_rate=0.02, random_state=0).fit(Y, t)
        samples = model.sample([1.0], t, 500, random_state=1)[:, 0, :, 0]
        assert np.abs(samples.mean(0) - Y[..., 0].mean(0)).max() < 0.05
        assert samples[:, 4].std() == pytest.approx(Y[:, 4].std(), rel=0.4)
        assert not hasattr(model, "parameters_")

    def test_linking_sees_what_single_times_cannot(self):
        # y = a + b t with a and b independent, or a + b = constant at t = 1: single times fix Var a, Var b
        # and their covariance only through Var y(t); pairs see the covariance itself.
        rng = np.random.default_rng(0)
        t = np.array([0.0, 1.0, 2.0])
        Y = rng.normal(size=(150, 3)).cumsum(1)[..., None]
        Y[:, 0] = 0.0
        pairs = LocalW2ODE(lambda t, y, v: v + 0 * y, {"v": Normal(0.0, 1.0)}, linked=True, **QUICK).fit(Y, t)
        single = LocalW2ODE(lambda t, y, v: v + 0 * y, {"v": Normal(0.0, 1.0)}, linked=False, **QUICK).fit(
            Y, t
        )
        assert pairs.fit_.losses[-1] > single.fit_.losses[-1]


class TestSampling:
    def test_shapes_and_initial_states(self, fitted):
        model, *_ = fitted
        draws = model.sample([[1.0], [2.0]], [0.0, 1.0, 7.0], n_samples=300, random_state=0)
        assert draws.shape == (300, 2, 3, 1)
        np.testing.assert_array_equal(draws[:, :, 0], np.broadcast_to([[1.0], [2.0]], (300, 2, 1)))
        # far beyond the data, and exact: the logarithm of a decay is its rate
        rates = -np.log(draws[:, 0, 2, 0]) / 7
        assert rates.std() == pytest.approx(model.parameters_.std["k"], rel=0.2)

    def test_draws_are_reproducible_and_independent(self, fitted):
        model, *_ = fitted
        a, b = (model.sample([1.0], [0.0, 1.0], 200, random_state=s)[:, 0, 1, 0] for s in (0, 0))
        np.testing.assert_array_equal(a, b)
        both = model.sample([[1.0], [1.0]], [0.0, 1.0], 2000, random_state=1)[:, :, 1, 0]
        assert abs(np.corrcoef(both.T)[0, 1]) < 5 / np.sqrt(2000)

    def test_the_field(self, fitted):
        model, *_ = fitted
        slopes = model.sample_field([[1.0], [2.0]], n_samples=50, random_state=0)
        assert slopes.shape == (50, 2, 1)
        np.testing.assert_allclose(slopes[:, 1], 2 * slopes[:, 0])  # one omega everywhere

    def test_parameters_for_people(self, fitted):
        law = fitted[0].parameters_
        assert repr(law).splitlines()[0].split() == ["parameter", "mean", "sd", "5%", "50%", "95%"]
        assert law.quantiles([0.5])["k"][0] == pytest.approx(law.mean["k"], rel=0.02)
        assert law.samples["k"].shape == (10_000,)
        assert law.correlation == pytest.approx(np.ones((1, 1)))

    def test_correlation_of_parameters_of_very_different_size(self):
        r = np.random.default_rng(0).normal(0.5, 0.1, 100)
        law = LearnedParameters({"r": r, "K": 1e12 * (2 + r), "c": np.full(100, 3.0)})
        np.testing.assert_allclose(law.correlation[:2, :2], 1.0)
        assert np.isnan(law.correlation[2]).all()

    @pytest.mark.parametrize(
        ("call", "word"),
        [
            (lambda m: m.sample([1.0, 2.0], [0.0, 1.0]), "y0"),
            (lambda m: m.sample([1.0], [1.0, 0.0]), "times"),
            (lambda m: m.sample([1.0], [0.0, 1.0], 0), "n_samples"),
            (lambda m: m.sample([np.nan], [0.0, 1.0]), "NaN"),
            (lambda m: m.sample_field(np.ones((2, 3))), "shape"),
        ],
    )
    def test_bad_requests(self, fitted, call, word):
        with pytest.raises(ValueError, match=word):
            call(fitted[0])

    def test_before_the_fit(self):
        with pytest.raises(NotFittedError):
            LocalW2ODE().sample([1.0], [0.0, 1.0])


class TestFitting:
    def test_equal_seeds_give_equal_fits(self):
        Y, t, _ = decays(20)
        a, b = (LocalW2ODE(decay, {"k": 1.0}, **QUICK).fit(Y, t) for _ in "ab")
        np.testing.assert_array_equal(a.parameters_.samples["k"], b.parameters_.samples["k"])

    def test_interrupted_and_resumed_is_the_same_fit(self, tmp_path):
        Y, t, _ = decays(20)
        settings = {"parameters": {"k": 0.7}, "max_epochs": 80, "random_state": 0}
        whole = LocalW2ODE(decay, **settings).fit(Y, t)
        path = tmp_path / "fit.ckpt"
        settings |= {"checkpoint": path, "history": tmp_path / "fit.jsonl"}
        with power_cut(epoch=60), pytest.raises(RuntimeError, match="power cut"):
            LocalW2ODE(decay, **settings).fit(Y, t)
        assert path.exists()
        resumed = LocalW2ODE(decay, **settings).fit(Y, t)
        assert not path.exists()
        lines = [json.loads(line) for line in (tmp_path / "fit.jsonl").read_text().splitlines()]
        assert [line["loss"] for line in lines] == whole.fit_.losses
        assert resumed.fit_.losses == whole.fit_.losses
        np.testing.assert_array_equal(resumed.parameters_.samples["k"], whole.parameters_.samples["k"])

    def test_a_network_in_batches_is_resumed_as_the_same_fit(self, tmp_path):
        Y, t, _ = decays(30)
        settings = {"width": 8, "batch_trajectories": 10, "max_epochs": 30, "random_state": 0}
        whole = LocalW2ODE(**settings).fit(Y, t)
        settings["checkpoint"] = tmp_path / "fit.ckpt"
        with power_cut(epoch=20), pytest.raises(RuntimeError, match="power cut"), every_epoch_kept():
            LocalW2ODE(**settings).fit(Y, t)
        resumed = LocalW2ODE(**settings).fit(Y, t)
        assert resumed.fit_.losses == whole.fit_.losses
        assert len(whole.fit_.history) == 30
        draws = [m.sample([1.0], t, 20, random_state=0) for m in (whole, resumed)]
        np.testing.assert_array_equal(*draws)

    def test_a_network_settles_when_held_out_trajectories_are_predicted_no_better(
        self, tmp_path, monkeypatch
    ):
        """Decays are learned at once: far fewer epochs are taken than there may be; also if it is killed."""
        Y, t, _ = decays(60)
        monkeypatch.setattr(ode, "TOTAL_STEPS", 400)
        monkeypatch.setattr(ode, "PATIENCE", 3)
        settings = {"width": 20, "depth": 1, "batch_trajectories": 30, "random_state": 0}
        model = LocalW2ODE(**settings)
        seen = watch_trajectories(monkeypatch)
        model.fit(Y, t)
        history, config = model.fit_.history, model.fit_.config
        assert model.fit_.stopped.startswith("the held-out score was flat after epoch ")
        settled = int(model.fit_.stopped.split()[-1])
        assert len(history) == settled + config.n_settling < config.max_epochs == 200
        assert history[-1]["rate"] < 0.01 * config.learning_rate
        scores = [record["score"] for record in history[:settled] if "score" in record]
        assert len(scores) == settled // config.validate_every
        assert min(scores[-config.patience :]) >= min(scores[: -config.patience])
        # A tenth is held out until then, and not after it.
        held_out = np.flatnonzero(hold_out(60, model._parameter_seed))
        assert len(held_out) == 6
        steps = settled * 2
        assert not np.isin(np.concatenate(seen[:steps]), held_out).any()
        assert np.isin(held_out, np.concatenate(seen[steps:])).all()
        draws = model.sample([1.0], t, 500, random_state=1)[:, 0, 4, 0]
        assert draws.mean() == pytest.approx(Y[:, 4, 0].mean(), abs=0.02)
        settings["checkpoint"] = tmp_path / "fit.ckpt"
        with power_cut(epoch=settled + 5), pytest.raises(RuntimeError, match="power cut"), every_epoch_kept():
            LocalW2ODE(**settings).fit(Y, t)
        resumed = LocalW2ODE(**settings).fit(Y, t)
        assert not (tmp_path / "fit.ckpt").exists()
        assert resumed.fit_.losses == model.fit_.losses
        assert resumed.fit_.stopped == model.fit_.stopped
        np.testing.assert_array_equal(resumed.sample([1.0], t, 500, random_state=1)[:, 0, 4, 0], draws)

    @pytest.mark.parametrize("settings", [{"max_epochs": 4}, {"schedule": "constant"}])
    def test_epochs_and_rates_that_were_asked_for_are_kept(self, settings, monkeypatch):
        monkeypatch.setattr(ode, "TOTAL_STEPS", 4)
        monkeypatch.setattr(ode, "FEWEST_EPOCHS", 4)
        Y, t, _ = decays(60)
        fit = LocalW2ODE(width=8, batch_trajectories=60, random_state=0, **settings).fit(Y, t).fit_
        assert fit.stopped == "all epochs done"
        assert len(fit.history) == 4
        assert fit.config.patience is None
        assert not any("score" in record for record in fit.history)

    def test_a_score_leaves_the_steps_of_training_as_they_are(self):
        field = NetworkField(1, width=8, generator=torch.Generator().manual_seed(0))
        paths = ObservedPaths(RandomODE(field, torch.zeros(1)), 1, equal_steps=True)
        x = torch.tensor([[0.0, 0.5, 1.0], [1.0, 1.0, 1.0]])
        for training_mode in (True, False):
            paths.train(training_mode)
            before = paths.steps_and_calls.clone()
            first, second = (
                paths.simulate_as_trained(x, 3, torch.Generator().manual_seed(1)) for _ in range(2)
            )
            assert torch.equal(first, second)
            assert torch.equal(paths.steps_and_calls, before)
            assert paths.training == training_mode

    def test_a_model_that_explodes_has_the_worst_score(self):
        field = FunctionField(lambda t, y, k: k * y**2, {"k": Shared(50.0)})
        x = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
        alone = Neighborhoods.singletons(2)
        score = HeldOutScore(x, Objective(torch.zeros(2, 1), alone, EnergyScore()), 0)
        for equal in (False, True):
            paths = ObservedPaths(RandomODE(field, torch.zeros(1)), 1, equal_steps=equal)
            assert score(paths, torch.Generator()) == WORST

    def test_networks_in_batches_take_weights_gaps_and_times_of_their_own(self):
        rng = np.random.default_rng(0)
        k, t = rng.normal(1.0, 0.2, 60), np.sort(rng.uniform(0, 2, (60, 9)), 1)
        Y = np.exp(-k[:, None] * t)
        Y[rng.uniform(size=Y.shape) < 0.1] = np.nan
        slow = k < 1.0  # all the weight is on these
        model = LocalW2ODE(width=20, depth=1, batch_trajectories=25, max_epochs=80, random_state=0)
        model.fit(Y, t, y0=1.0, t0=0.0, sample_weight=np.where(slow, 1.0, 1e-6))
        found = model.sample([1.0], [0.0, 1.0], 500, random_state=1)[:, 0, 1, 0]
        assert found.mean() == pytest.approx(np.exp(-k[slow]).mean(), abs=0.03)

    @pytest.mark.parametrize(
        ("settings", "word"),
        [
            ({"batch_trajectories": 1}, "batch_trajectories"),
            ({"batch_trajectories": "many"}, "batch_trajectories"),
            ({"batch_trajectories": 20, "batch_balls": 3}, "batch_balls"),
        ],
    )
    def test_batches_that_cannot_be_made(self, settings, word):
        Y, t, _ = decays(10)
        with pytest.raises(ValueError, match=word):
            LocalW2ODE(**settings).fit(Y, t)

    def test_functions_learn_from_batches_of_trajectories_too(self):
        Y, t, k = decays(60)
        model = LocalW2ODE(decay, {"k": 0.7}, batch_trajectories=20, max_epochs=60, random_state=0).fit(Y, t)
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), abs=0.15 * k.std())
        assert model.parameters_.std["k"] == pytest.approx(k.std(), rel=0.15)

    def test_mini_batches_of_balls(self):
        Y, t, k = decays(40)
        model = LocalW2ODE(decay, {"k": 0.7}, batch_balls=3, max_epochs=40, random_state=0).fit(Y, t)
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), rel=0.1)

    def test_an_explosion_tells_epoch_and_parameters_and_leaves_the_last_good_model(self):
        # y' = k y^2 from 1 explodes at t = 1/k: the observed k stay below .45, the first guess is near that.
        rng = np.random.default_rng(0)
        k, t = rng.uniform(0.1, 0.4, 30), np.linspace(0, 2, 9)
        Y = 1 / (1 - k[:, None] * t)
        settings = {"learning_rate": 3.0, "max_epochs": 60, "max_skipped": 3, "random_state": 0}
        model = LocalW2ODE(lambda t, y, k: k * y**2, {"k": Normal(0.2, 0.03)}, **settings)
        with pytest.raises(FloatingPointError, match=r"epoch \d+.*\bk\b"):
            model.fit(Y, t)
        assert np.isfinite(model.parameters_.mean["k"])
        assert np.isfinite(model.sample([1.0], [0.0, 0.1])).all()

    def test_a_refit_that_fails_leaves_the_old_fit(self, fitted):
        model, Y, t, _ = fitted
        copy = clone(model).set_params(max_epochs=5, parameters={"k": 1.0}).fit(Y, t)
        before = copy.parameters_.samples["k"]
        with pytest.raises(FloatingPointError):
            copy.set_params(field=lambda t, y, k: k * y**2, parameters={"k": Normal(30.0)}).fit(Y, t)
        with pytest.raises(ValueError, match="times"):
            copy.fit(Y, t[::-1])
        assert copy.parameters_.samples["k"] is before

    def test_skipped_steps_are_counted(self):
        rng = np.random.default_rng(0)
        k, t = rng.uniform(0.1, 0.4, 30), np.linspace(0, 2, 9)
        Y = 1 / (1 - k[:, None] * t)
        model = LocalW2ODE(
            lambda t, y, k: k * y**2, {"k": Normal(0.2, 0.12)}, max_epochs=60, max_skipped=50, random_state=1
        )
        with pytest.warns(UserWarning, match="skipped"):
            model.fit(Y, t)
        assert model.fit_.skipped > 0
        assert model.fit_.skipped == sum(entry.get("skipped", 0) for entry in model.fit_.history)
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), rel=0.15)

    def test_a_first_guess_that_explodes_is_told_at_once(self):
        Y, t, _ = decays(20)
        with pytest.raises(FloatingPointError, match="explodes"):
            LocalW2ODE(lambda t, y, k: k * y**2, {"k": Normal(30.0)}, **QUICK).fit(Y, t)

    def test_a_guess_too_far_away_is_told(self):
        Y, t, _ = decays(20)
        with pytest.warns(UserWarning, match=r"\bk\b"):
            LocalW2ODE(decay, {"k": Normal(0.2, 0.02)}, **QUICK).fit(Y, t)

    @pytest.mark.parametrize("field", ["mlp", "known"])
    def test_units_do_not_matter(self, field):
        """States in 1e-9 or 1e9, time in 1e-6, from the year 2000 on: the same fit."""
        w, t = np.random.default_rng(0).normal(3, 0.3, 30), np.linspace(0, 1, 11)
        Y = np.stack([np.cos(w[:, None] * t), -w[:, None] * np.sin(w[:, None] * t)], -1)
        losses = []
        for states, time, start in ((1.0, 1.0, 0.0), (1e-9, 1.0, 2000.0), (1e9, 1e-6, 0.0)):
            settings = {"width": 5, "depth": 1} if field == "mlp" else {}
            known = (
                "mlp" if field == "mlp" else lambda t, y, w, time=time: [y[1] / time, -(w**2) * y[0] / time]
            )
            parameters = None if field == "mlp" else {"w": Normal(2.9, 0.5)}
            model = LocalW2ODE(known, parameters, **settings, **QUICK).fit(states * Y, start + time * t)
            losses.append(model.fit_.losses)
        np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
        np.testing.assert_allclose(losses[2], losses[0], rtol=0.02)

    @pytest.mark.parametrize(
        "field",
        [
            lambda t, y, k: -k * y if y[0] > 0.5 else y,
            lambda t, y, k: np.exp(y) * k,
            lambda t, y, k: k * (torch.ones(1, 1) @ y),
        ],
        ids=["if", "numpy", "float32"],
    )
    def test_fields_that_cannot_be_mapped_are_told_what_to_do(self, field):
        Y, t, _ = decays(10)
        with pytest.raises(ValueError, match="field"):
            LocalW2ODE(field, {"k": 1.0}, **QUICK).fit(Y, t)

    def test_small_units_of_a_part_that_is_seen(self):
        w, t = np.random.default_rng(0).normal(2.0, 0.2, 40), np.linspace(0, 2, 21)
        found = []
        for unit in (1.0, 1e-9):
            model = LocalW2ODE(
                lambda t, y, w: [y[1], -(w**2) * y[0]], {"w": Normal(1.9, 0.3)}, observe=first_state, **QUICK
            )
            model.fit(unit * np.cos(w[:, None] * t), t, y0=[unit, 0.0])
            found.append(model.parameters_.mean["w"])
        assert found[1] == pytest.approx(found[0], rel=1e-3)

    def test_fixed_steps_do_not_depend_on_the_times_asked_for(self):
        Y, t, _ = decays(20, mean=3.0)
        model = LocalW2ODE(decay, {"k": Normal(3.0, 0.3)}, method="rk4", **QUICK).fit(Y, t)
        near, far = (model.sample([1.0], [0.0, end], 200, random_state=0)[:, 0, 1, 0] for end in (1.0, 4.0))
        np.testing.assert_allclose(far, near**4, rtol=1e-3)

    @pytest.mark.slow
    def test_log_spaced_times_of_fast_decays(self):
        rng = np.random.default_rng(0)
        k, t = rng.normal(50, 8, 60), np.sort(10 ** rng.uniform(-3, 1, (60, 12)), 1)
        Y = np.exp(-k[:, None] * t)[..., None]
        model = LocalW2ODE(decay, {"k": Normal(45.0, 8.0)}, linked=False, max_epochs=60, random_state=0)
        model.fit(Y, t, y0=1.0, t0=0.0)
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), rel=0.05)
        assert model.parameters_.std["k"] == pytest.approx(k.std(), rel=0.25)

    def test_a_checkpoint_of_another_equation_is_refused(self, tmp_path):
        Y, t, _ = decays(20)

        def fit(c, shift):
            settings = {"max_epochs": 60, "random_state": 0, "checkpoint": tmp_path / "c"}
            return LocalW2ODE(lambda t, y, k: -c * k * y, {"k": 1.0}, **settings).fit(Y, t + shift)

        with power_cut(epoch=55), pytest.raises(RuntimeError, match="power cut"):
            fit(1.0, 0.0)
        for other in ((2.0, 0.0), (1.0, 1.0)):
            with pytest.raises(ValueError, match="checkpoint"):
                fit(*other)
        assert fit(1.0, 0.0).fit_.stopped == "all epochs done"

    def test_a_fitted_model_can_be_pickled(self, fitted):
        import pickle

        again = pickle.loads(pickle.dumps(fitted[0]))
        np.testing.assert_array_equal(again.parameters_.samples["k"], fitted[0].parameters_.samples["k"])

    def test_clone_and_repr(self):
        """Parameters are scikit-learn's; its other checks fit tables (X, y), not trajectories (Y, t)."""
        model = clone(LocalW2ODE(decay, {"k": PushForward(1.0)}, delta=0.1, norm=Euclidean()))
        assert "PushForward" in repr(model)
        assert model.get_params()["delta"] == 0.1

    @pytest.mark.parametrize(
        ("settings", "word"),
        [
            ({"field": "lstm", "parameters": None}, "field"),
            ({"field": "mlp", "parameters": {"k": 1.0}}, "parameters"),
            ({"parameters": {"q": 1.0}}, "parameters"),
            ({"observe": 3}, "observe"),
            ({"observe": first_state, "field": lambda t, y, k: -k * y}, "ok"),
            ({"delta": "small"}, "delta"),
            ({"delta": -1.0}, "delta"),
            ({"norm": 2}, "norm"),
            ({"linked": "yes"}, "linked"),
            ({"learning_rate": "fast"}, "learning_rate"),
            ({"max_epochs": 0}, "max_epochs"),
            ({"discrepancy": "kl"}, "discrepancy"),
            ({"method": "magic"}, "method"),
            ({"checkpoint": 5}, "checkpoint"),
            ({"history": 5}, "history"),
        ],
    )
    def test_bad_settings(self, settings, word):
        Y, t, _ = decays(10)
        model = LocalW2ODE(**{"field": decay, "parameters": {"k": 1.0}, **QUICK, **settings})
        if word == "ok":
            model.fit(Y, t, y0=[1.0])
            return
        with pytest.raises(ValueError, match=word):
            model.fit(Y, t)

    def test_what_observe_gives_must_be_what_is_observed(self):
        Y, t, _ = decays(10)
        with pytest.raises(ValueError, match="observe"):
            LocalW2ODE(decay, observe=first_state, **QUICK).fit(np.repeat(Y, 2, 2), t, y0=[1.0, 1.0])
        for wrong in (lambda y: y[..., 0], lambda y: y[:, :1], lambda y: y.numpy()):
            with pytest.raises(ValueError, match="observe"):
                LocalW2ODE(decay, observe=wrong, **QUICK).fit(Y, t, y0=[1.0, 1.0])
        with pytest.raises(ValueError, match="observe"):
            LocalW2ODE(decay, observe=lambda y: np.exp(y).nothing, **QUICK).fit(Y, t, y0=[1.0, 1.0])
        with pytest.raises(ValueError, match="y0"):
            LocalW2ODE(decay, observe=first_state, **QUICK).fit(Y, t)
        with pytest.raises(ValueError, match="observe"):
            LocalW2ODE(decay, **QUICK).fit(Y, t, y0=[1.0, 1.0])


class TestFiles:
    def test_a_function_is_asked_for(self, fitted, tmp_path):
        model, *_ = fitted
        path = tmp_path / "m.localw2"
        save(model, path)
        with pytest.raises(ValueError, match="decay"):
            load(path)
        with pytest.raises(ValueError, match="magic"):
            load(path, magic=decay)
        loaded = load(path, field=decay)
        for a, b in ((model, loaded),):
            np.testing.assert_array_equal(
                a.sample([1.0], [0.0, 3.0], 9, 1), b.sample([1.0], [0.0, 3.0], 9, 1)
            )
            np.testing.assert_array_equal(a.parameters_.samples["k"], b.parameters_.samples["k"])
        assert loaded.fit_.losses == model.fit_.losses
        assert loaded.parameters == {"k": Normal(0.6, 0.1)}
        with pytest.warns(UserWarning, match="source"):
            load(path, field=other_decay)

    def test_a_network_needs_nothing(self, tmp_path):
        Y, t, _ = decays(10)
        model = LocalW2ODE(width=5, depth=1, **QUICK).fit(Y, t)
        model.save(tmp_path / "m")
        loaded = load(tmp_path / "m")
        np.testing.assert_array_equal(model.sample([1.0], t, 4, 0), loaded.sample([1.0], t, 4, 0))
        with pytest.raises(ValueError, match="function"):
            load(tmp_path / "m", field=decay)

    def test_errors_of_learned_noise_survive_and_few_trajectories_tell_none(self, tmp_path):
        Y, t, _ = decays(40)
        noisy = Y + 0.05 * np.random.default_rng(0).normal(size=Y.shape)
        settings = {"noise": "additive", "width": 10, "depth": 1, **QUICK}
        model = LocalW2ODE(**settings).fit(noisy, t, y0=[1.0])
        assert model.noise_errors_.shape == model.noise_.shape == (1,)
        # At least that of an SD of so many independent errors, at most of one for each trajectory.
        relative = float(model.noise_errors_[0] / model.noise_[0])
        assert 0.5 * (2 * noisy.size) ** -0.5 < relative < 2 * (2 * len(noisy)) ** -0.5
        model.save(tmp_path / "m")
        np.testing.assert_array_equal(load(tmp_path / "m").noise_errors_, model.noise_errors_)
        few = LocalW2ODE(**settings).fit(noisy[:10], t, y0=[1.0])
        assert np.isinf(few.noise_errors_).all()
        few.save(tmp_path / "few")
        assert np.isinf(load(tmp_path / "few").noise_errors_).all()

    def test_errors_of_noise_leave_the_fit_as_it_is(self, monkeypatch):
        """Also where they cannot be found, or are not waited for."""
        Y, t, _ = decays(40)
        noisy = Y + 0.05 * np.random.default_rng(0).normal(size=Y.shape)
        settings = {"noise": "additive", "width": 10, "depth": 1, **QUICK}
        model = LocalW2ODE(**settings).fit(noisy, t, y0=[1.0])
        simulate, calls = ObservedPaths.simulate, []

        for failure in (SolverError("it explodes"), KeyboardInterrupt()):

            def fail(paths, *arguments, failure=failure):
                calls.append(arguments[1] == noise_errors.DRAWS)
                if sum(calls) == 5:  # a group of moved values
                    raise failure
                return simulate(paths, *arguments)

            calls.clear()
            monkeypatch.setattr(ObservedPaths, "simulate", fail)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = LocalW2ODE(**settings).fit(noisy, t, y0=[1.0])
            assert np.isinf(again.noise_errors_).all()
            np.testing.assert_array_equal(again.noise_, model.noise_)
            np.testing.assert_array_equal(again.sample([1.0], t, 4, 0), model.sample([1.0], t, 4, 0))
        monkeypatch.undo()
        common = LocalW2ODE(**settings, n_noise=2).fit(noisy, t, y0=[1.0])
        assert np.isfinite(common.noise_errors_).all()

    def test_forged_errors_of_noise(self):
        Y, t, _ = decays(20)
        stored = LocalW2ODE(noise="additive", width=5, depth=1, **QUICK).fit(Y, t, y0=[1.0]).to_stored()
        stored.tensors["noise_errors"] = torch.full((1, 1), torch.nan).double()
        with pytest.raises(ValueError, match="noise_errors"):
            LocalW2ODE.from_stored(stored)

    def test_push_forward_and_observation_survive(self, tmp_path):
        Y, t, _ = decays(10)
        model = LocalW2ODE(decay, {"k": PushForward(1.0)}, observe=first_state, **QUICK).fit(Y, t, y0=[1.0])
        model.save(tmp_path / "m")
        loaded = load(tmp_path / "m", field=decay, observe=first_state)
        np.testing.assert_array_equal(model.sample([1.0], t, 4, 0), loaded.sample([1.0], t, 4, 0))

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            (lambda s: s.settings.update(n_states=3), "finite"),
            (lambda s: s.settings["parameters"].update(width=10**9), "finite"),
            (lambda s: s.settings["parameters"].update(depth=50), "depth"),
            (lambda s: s.settings["parameters"].update(method="magic"), "method"),
            (lambda s: s.settings.update(seed=2**70), "whole"),
            (lambda s: s.settings.pop("t0"), "LocalW2ODE"),
            (lambda s: s.settings.update(t0=10**400), "LocalW2ODE"),
            (lambda s: s.settings["parameters"].update(max_epochs={"a": 1}), "max_epochs"),
            (lambda s: s.settings["functions"].update(field="rm -rf"), "field"),
            (lambda s: s.settings.update(laws={"k": ["cauchy", 0.0, 1.0]}), "cauchy"),
            (lambda s: s.tensors.pop("field.net.layers.0.mean"), "tensors"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:width=1000000000 of the file is not taken over")
    def test_forged_files(self, change, word):
        Y, t, _ = decays(10)
        stored = LocalW2ODE(width=5, depth=1, max_epochs=1, random_state=0).fit(Y, t).to_stored()
        change(stored)
        with pytest.raises(ValueError, match=word):
            LocalW2ODE.from_stored(stored)


def test_a_small_file_cannot_ask_for_a_large_law():
    Y, t, _ = decays(10)
    stored = LocalW2ODE(decay, {"k": 1.0}, **QUICK).fit(Y, t).to_stored()
    stored.settings["laws"] = {f"k{i}": ["normal", 0.0, 1.0] for i in range(50_000)}
    stored.settings["functions"]["field"]["source"] = None
    with pytest.raises(ValueError, match="50000"):
        LocalW2ODE.from_stored(stored, field=lambda t, y, **p: y)


@pytest.mark.slow
class TestTheIssuesProblems:
    @pytest.mark.parametrize("seed", range(3))
    def test_known_form_with_any_law(self, seed):
        """DESIGN's known-form bar: mean within .15 SD, SD within 8 %, KS distance below .08."""
        truth = FourStates()
        Y, t, realised = truth.sample(500, random_state=seed)
        omega = realised["omega"]
        model = LocalW2ODE(truth.field, {"omega": PushForward(0.1, 0.3)}, random_state=seed).fit(Y, t)
        found = model.parameters_.samples["omega"]
        assert abs(found.mean() - omega.mean()) < 0.15 * omega.std()
        assert found.std() == pytest.approx(omega.std(), rel=0.08)
        assert ks_2samp(found, omega).statistic < 0.08

    @pytest.mark.parametrize("seed", range(3))
    def test_logistic_growth(self, seed):
        """Irregular times and missing values: means within 3 %, SDs within 12 %, correlation within .15."""
        truth = LogisticGrowth()
        Y, t, realised = truth.sample(300, random_state=seed)
        model = LocalW2ODE(truth.field, {"r": 0.7, "K": 7.0}, random_state=seed).fit(Y, t, y0=1.0, t0=0.0)
        law = model.parameters_
        for name, values in realised.items():
            assert law.mean[name] == pytest.approx(values.mean(), rel=0.03)
            assert law.std[name] == pytest.approx(values.std(), rel=0.12)
        assert abs(law.correlation[0, 1] - np.corrcoef(realised["r"], realised["K"])[0, 1]) < 0.15


def test_an_initial_state_before_the_first_time_needs_its_time():
    """Taken at t = .5, the state 1 makes rates too large by 4 / 3 on average, without another sign of it."""
    t = np.array([0.5, 1.0, 2.0])
    rates = np.random.default_rng(0).normal(1.0, 0.1, (40, 1))
    model = LocalW2ODE(lambda t, y, k: -k * y, {"k": 1.0}, random_state=0)
    with pytest.warns(UserWarning, match=r"earliest time, t = 0\.5"):
        model.fit(np.exp(-rates * t), t, y0=1.0)
    model.fit(np.exp(-rates * t), t, y0=1.0, t0=0.0)  # warnings are errors here
    assert model.t0_ == 0.0
