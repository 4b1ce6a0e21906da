"""Populations measured with error: against closed forms, simulated truths and each other."""

import math
import warnings

import numpy as np
import pytest
import torch

from localw2 import LocalW2ODE, LogNormal, Normal, PushForward, load
from localw2.estimators.dynamics.population.individuals import Anchor, Equation, estimate
from localw2.estimators.dynamics.population.population import Population, Quantity
from localw2.estimators.dynamics.population.posterior import _weigh
from localw2.estimators.dynamics.population.uncertainty import Bowl, describe, gaussian_like, least_errors
from localw2.estimators.dynamics.storing import restore_ode
from localw2.models.cohort import Cohort
from localw2.models.fields import FunctionField
from localw2.models.laws import ParameterLaw
from localw2.models.measurement import MeasurementNoise
from localw2.models.solver import Solver, SolverError

T = np.array([1.0, 2.0, 3.0, 4.0, 5.0])


def line(t, y, k):
    """States k t: everything about it is known in closed form."""
    return k + 0 * y


def lines(n=60, spread=0.4, sigma=0.5, seed=0):
    rng = np.random.default_rng(seed)
    k = rng.normal(2.0, spread, n)
    return k, k[:, None] * T + sigma * rng.normal(size=(n, len(T)))


def maximum_likelihood(Y):
    """Mean and SD of slopes and the noise, by restricted likelihood, closed for a balanced design."""
    slopes = Y @ T / (T @ T)
    sigma2 = ((Y - slopes[:, None] * T) ** 2).sum() / (len(Y) * (len(T) - 1))
    return slopes.mean(), math.sqrt(max(slopes.var(ddof=1) - sigma2 / (T @ T), 0.0)), math.sqrt(sigma2)


def one_compartment(t, y, ka, ke, V):
    return torch.stack([-ka * y[0], ka * y[0] / V - ke * y[1]])


def second(y):
    return y[..., 1:]


@pytest.fixture(scope="module")
def fitted():
    k, Y = lines()
    model = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, noise="additive", random_state=0).fit(
        Y, T, y0=0.0, t0=0.0
    )
    return model, k, Y


class TestIndividuals:
    def test_a_linear_model_has_the_estimate_of_bayes(self):
        _, Y = lines(7)
        field = FunctionField(line, {"k": Normal(1.0, 0.5)}).double()
        times = np.tile(T, (7, 1))
        seen = torch.ones(7, 5, 1, dtype=torch.bool)
        seen[0, 3:] = False
        cohort = Cohort.of(times, np.ones((7, 5), bool), np.zeros((7, 1)), 0.0)
        equation = Equation(field, Solver("dopri5", 1e-9, 1e-11, None, 1000), None, cohort, seen)
        noise = MeasurementNoise(0.5, torch.ones(1).double())
        center, covariance = torch.full((7, 1), 1.5).double(), torch.tensor([[4.0]]).double()
        anchor = Anchor.of(center, covariance, noise)
        y = torch.tensor(Y[..., None])
        found = estimate(equation, anchor, y, torch.arange(7), torch.zeros(7, 1).double(), 3)
        # In natural units the prior of k is N(1 + .5 * 1.5, (.5 * 2)^2).
        for i, times_i in ((0, T[:3]), (4, T)):
            precision = times_i @ times_i / 0.25 + 1.0
            mean = (times_i @ Y[i, : len(times_i)] / 0.25 + 1.75) / precision
            assert 1 + 0.5 * float(found.scores[i, 0]) == pytest.approx(mean, rel=1e-5)
            assert 0.25 * float(found.covariance[i, 0, 0]) == pytest.approx(1 / precision, rel=1e-5)
        # The fit and its residuals follow a change of the data as a new fit would.
        change = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        scores, residuals = found.follow(torch.where(seen, change, 0.0))
        again = estimate(equation, anchor, y + change, torch.arange(7), torch.zeros(7, 1).double(), 3)
        torch.testing.assert_close(scores, again.scores, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(residuals, again.residuals, rtol=1e-4, atol=1e-5)


class TestLines:
    def test_mean_spread_and_noise_are_those_of_maximum_likelihood(self, fitted):
        model, _, Y = fitted
        mean, spread, sigma = maximum_likelihood(Y)
        # A fraction of the standard error of each: the draws of the last refreshes remain.
        assert model.parameters_.mean["k"] == pytest.approx(mean, abs=0.25 * spread / 60**0.5)
        assert model.parameters_.std["k"] == pytest.approx(spread, rel=0.5 * (2 * 60) ** -0.5)
        assert model.noise_ == pytest.approx([sigma], rel=0.5 * (2 * 240) ** -0.5)

    def test_without_noise_the_errors_go_into_the_law(self):
        _, Y = lines(sigma=2.0)
        doses = {"subject": [0], "time": [0.0], "amount": [0.0]}
        model = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, random_state=0).fit(
            Y, T, y0=0.0, t0=0.0, doses=doses
        )
        alone = (Y @ T / (T @ T)).std(ddof=1)
        assert model.parameters_.std["k"] == pytest.approx(alone, rel=0.05)
        assert not hasattr(model, "noise_")

    def test_standard_errors(self, fitted):
        model, _, Y = fitted
        _, spread, sigma = maximum_likelihood(Y)
        whole = math.sqrt(spread**2 + sigma**2 / (T @ T))  # of a subject's own slope
        found = {kind: model.population_.find("k", kind) for kind in ("typical", "spread")}
        # A jackknife of 60 subjects has a relative error of about (2 * 60)^-.5 = .09, more for spreads.
        assert found["typical"].error == pytest.approx(whole / 60**0.5, rel=0.3)
        assert found["spread"].error == pytest.approx(whole**2 / spread / (2 * 60) ** 0.5, rel=0.4)
        noise = model.population_.find("noise", "additive")
        assert noise.error == pytest.approx(sigma / (2 * 240) ** 0.5, rel=0.4)
        assert model.noise_errors_ == pytest.approx([noise.error])
        low, high = found["spread"].interval
        assert low < found["spread"].value < high
        with pytest.raises(ValueError, match="there are: k typical"):
            model.population_.find("k", "median")

    def test_intervals_of_few_subjects_are_those_of_student(self):
        few, many = (Quantity("k", "typical", 1.0, 0.1, False, degrees) for degrees in (4, 10_000))
        np.testing.assert_allclose(few.interval, [1 - 0.2132, 1 + 0.2132], rtol=1e-3)
        np.testing.assert_allclose(many.interval, [1 - 0.1645, 1 + 0.1645], rtol=1e-3)

    def test_intervals_of_correlations(self):
        def interval(value, error, degrees=39):
            return np.array(Quantity("a", "correlation with b", value, error, False, degrees).interval)

        # Fisher's, where the error is small against the distance to the edge.
        z = np.arctanh(0.5) + np.array([-1, 1]) * 1.6849 * 0.1 / 0.75
        np.testing.assert_allclose(interval(0.5, 0.1), np.tanh(z), rtol=1e-4)
        for value in (0.0, 0.3, 0.9, 0.99, 1.0):
            for error in (1e-4, 0.03, 0.3, 3.0):
                low, high = interval(value, error)
                assert -1 <= low <= value <= high + 1e-6 <= 1 + 1e-6
                np.testing.assert_allclose(interval(-value, error), [-high, -low], atol=1e-9)
        # At the edge a small error still tells something, and a large one nothing.
        assert interval(0.99, 0.03)[0] > 0.7
        assert np.ptp(interval(0.99, 0.6)) > 1.8

    def test_a_summary_says_which_correlations_are_not_told(self):
        kind = "correlation with b"
        told, untold = (Quantity("a", kind, 0.9, error, False, 9) for error in (0.05, 0.9))
        assert (told.undetermined, untold.undetermined) == (False, True)
        texts = [str(Population((one,), {}, None, 10, 50, ())) for one in (told, untold)]
        assert "next to nothing" not in texts[0]
        assert "next to nothing about: a: correlation with b." in texts[1]

    @pytest.mark.slow
    def test_standard_errors_do_not_depend_on_the_simulations(self):
        """A shallow direction of the loss must not be taken for a flat one by chance."""
        rng = np.random.default_rng(1)
        z = rng.normal(size=(80, 2))
        r, K = 0.8 * np.exp(0.2 * z[:, :1]), 10 * np.exp(0.15 * (0.5 * z[:, :1] + 0.75**0.5 * z[:, 1:]))
        t = np.sort(rng.uniform(0.5, 6.0, (80, 4)), axis=1)
        Y = K / (1 + (K - 1) * np.exp(-r * t))
        Y = Y * (1 + 0.1 * rng.normal(size=Y.shape))
        laws = {"r": LogNormal(0.5, 0.2), "K": LogNormal(8.0, 2.0)}
        errors = []
        for seed in range(3):
            model = LocalW2ODE(
                lambda t, y, r, K: r * y * (1 - y / K), laws, noise="proportional", random_state=seed
            )
            errors.append(model.fit(Y, t, y0=1.0, t0=0.0).population_.find("K", "spread").error)
        assert max(errors) < 2 * min(errors) < 0.1

    def test_no_standard_error_is_below_that_of_subjects_seen_without_error(self):
        law = ParameterLaw({"a": LogNormal(2.0, 0.4), "b": Normal(1.0, 0.5), "c": PushForward(1.0, 0.5)})
        values = {what: float(v.detach()) for what, v in describe(gaussian_like(law, 0)).items()}
        least = least_errors(law, values, 25)
        assert least["a", "typical"] == pytest.approx(2.0 * 0.2 / 5, rel=0.05)
        assert least["b", "spread"] == pytest.approx(0.5 / 48**0.5, rel=0.05)
        assert least["a", "correlation with b"] == pytest.approx(22**-0.5, rel=0.01)
        assert all("c" not in (name, kind.rpartition(" ")[2]) for name, kind in least)

    def test_summary(self, fitted):
        model, _, Y = fitted
        text = model.summary()
        assert "60 subjects, 300 observations" in text
        assert "SD of k" in text
        assert "noise: additive" in text
        alone = model.population_.two_stage["k"]
        slopes = Y @ T / (T @ T)
        np.testing.assert_allclose(alone, [slopes.mean(), slopes.std(ddof=1)], rtol=1e-3)

    def test_posteriors_of_subjects(self, fitted):
        model, _, Y = fitted
        found = model.individual_parameters(Y[:5], T, 0.0, n_samples=2000, random_state=0)
        mean, spread, sigma = model.parameters_.mean["k"], model.parameters_.std["k"], float(model.noise_[0])
        precision = T @ T / sigma**2 + spread**-2
        expected = (Y[:5] @ T / sigma**2 + mean / spread**2) / precision
        error = precision**-0.5
        # 400 weighted proposals: five standard errors of a mean of 150
        np.testing.assert_allclose(found.mean["k"], expected, atol=5 * error / 150**0.5)
        np.testing.assert_allclose(found.std["k"], error, rtol=5 * (2 * 150) ** -0.5)
        assert (found.effective > 150).all()

    def test_draws_have_the_errors_of_measurement_or_not(self, fitted):
        model, _, _ = fitted
        drawn = model.sample([0.0], np.r_[0.0, T], 4000, random_state=0)[:, 0, :, 0]
        mean, spread, sigma = model.parameters_.mean["k"], model.parameters_.std["k"], float(model.noise_[0])
        variance = (spread * np.r_[0.0, T]) ** 2 + sigma**2
        np.testing.assert_allclose(
            drawn.mean(0), mean * np.r_[0.0, T], atol=5 * np.sqrt(variance.max() / 4000)
        )
        np.testing.assert_allclose(drawn.var(0), variance, rtol=5 * (2 / 4000) ** 0.5)
        exact = model.sample([0.0], [0.0, 1.0, 2.0], 50, random_state=0, measured=False)[:, 0, :, 0]
        np.testing.assert_allclose(exact[:, 2], 2 * exact[:, 1], rtol=1e-4)
        law = model.predict_distribution([0.0], [0.0, 2.0])
        assert law.std()[0, 1, 0] == pytest.approx(math.sqrt(variance[2]), rel=5 * (2 * 2000) ** -0.5)

    def test_the_start_alone(self, fitted):
        drawn = fitted[0].sample([3.0], [0.0], 10, random_state=0, measured=False)
        np.testing.assert_array_equal(drawn, np.full((10, 1, 1, 1), 3.0))

    def test_what_observe_gives_must_be_what_is_observed(self):
        _, Y = lines(6)
        model = LocalW2ODE(one_compartment, {"ka": 1.0, "ke": 0.1, "V": 10.0}, lambda y: y, noise=0.5)
        with pytest.raises(ValueError, match="Y has 1 observed value"):
            model.fit(Y, T, y0=[1.0, 0.0], t0=0.0)

    def test_a_file_holds_it(self, fitted, tmp_path):
        model, _, Y = fitted
        model.save(tmp_path / "m.localw2")
        again = load(tmp_path / "m.localw2", field=line)
        np.testing.assert_array_equal(
            again.sample([0.0], [0.0, 1.0], 20, random_state=3),
            model.sample([0.0], [0.0, 1.0], 20, random_state=3),
        )
        assert again.summary() == model.summary()
        np.testing.assert_array_equal(again.noise_, model.noise_)
        first, second = (m.individual_parameters(Y[:2], T, 0.0, random_state=0) for m in (model, again))
        np.testing.assert_array_equal(first.samples["k"], second.samples["k"])

    def test_gaps_weights_and_repeated_rows(self):
        _, Y = lines(40)
        gaps = Y.copy()
        gaps[::3, 1] = np.nan
        settings = {"noise": "additive", "random_state": 0}
        model = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, **settings).fit(gaps, T, y0=0.0, t0=0.0)
        assert model.population_.n_observations == 40 * 5 - 14
        weights = np.r_[np.full(20, 2.0), np.ones(20)]
        weighted = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, **settings).fit(Y, T, 0.0, 0.0, weights)
        repeated = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, **settings).fit(np.r_[Y[:20], Y], T, 0.0, 0.0)
        # The noise of the draws of both fits
        assert weighted.parameters_.mean["k"] == pytest.approx(repeated.parameters_.mean["k"], abs=0.03)
        assert weighted.parameters_.std["k"] == pytest.approx(repeated.parameters_.std["k"], rel=0.08)

    def test_a_subject_of_weight_0_is_left_out_with_what_was_done_to_it(self):
        _, Y = lines(30)
        wild = np.r_[Y[:5], Y[:1] + 1e3, Y[5:]]
        dose = {"subject": np.arange(31), "time": np.zeros(31), "amount": np.zeros(31)}
        dose["amount"][5] = 50.0
        settings = {"noise": "additive", "random_state": 0, "max_epochs": 20}
        weights = np.ones(31)
        weights[5] = 0.0
        model = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, **settings)
        with_it = model.fit(wild, T, 0.0, 0.0, weights, doses=dose).parameters_
        rest = {"subject": np.arange(30), "time": np.zeros(30), "amount": np.zeros(30)}
        without = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, **settings).fit(
            Y, T, 0.0, 0.0, np.ones(30), doses=rest
        )
        assert with_it.mean == without.parameters_.mean

    def test_interrupted_and_resumed_is_the_same_fit(self, tmp_path):
        _, Y = lines(30)
        settings = {"noise": "additive", "random_state": 0, "max_epochs": 40}
        whole = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, **settings).fit(Y, T, 0.0, 0.0)
        path = tmp_path / "c.localw2"
        from localw2.estimators.dynamics.population import fitting

        original, calls = fitting.train, []

        def stopping(model, objective, x, config):
            calls.append(config)
            stop = (lambda entry: entry["epoch"] == 13) if len(calls) == 2 else (lambda entry: None)
            return original(model, objective, x, config, callbacks=(stop,))

        first = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, checkpoint=path, **settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fitting, "train", stopping)
            first.fit(Y, T, 0.0, 0.0)
        assert path.exists()
        resumed = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, checkpoint=path, **settings).fit(Y, T, 0.0, 0.0)
        assert not path.exists()
        assert len(resumed.fit_.history) == 40
        assert resumed.parameters_.mean["k"] == pytest.approx(whole.parameters_.mean["k"], rel=1e-9)


class TestSubjects:
    def test_covariates_and_doses(self):
        rng = np.random.default_rng(1)
        n, t = 60, np.array([0.5, 1.0, 2.0, 4.0, 8.0, 12.0])
        weight = rng.uniform(50, 90, n)
        ke = np.exp(np.log(0.2) + 0.01 * (weight - 70) + 0.2 * rng.normal(size=n))
        Y = 100 / 20 * np.exp(-ke[:, None] * t) + 0.1 * rng.normal(size=(n, 6))
        doses = {"subject": np.arange(n), "time": np.zeros(n), "amount": np.full(n, 100 / 20)}
        model = LocalW2ODE(
            lambda t, y, ke: -ke * y, {"ke": LogNormal(0.1, 0.03, "weight")}, noise="additive", random_state=0
        )
        model.fit(Y, t, y0=0.0, t0=0.0, doses=doses, covariates={"weight": weight})
        slope = model.population_.find("ke", "effect of weight")
        # four standard errors around the truth, and the errors are those of a regression
        assert abs(slope.value - 0.01) < 4 * slope.error
        assert slope.error == pytest.approx(0.2 / (60**0.5 * weight.std()), rel=0.6)
        assert model.population_.find("ke", "spread").value == pytest.approx(0.2, rel=4 * (2 * n) ** -0.5)
        # Each subject's data tell its ke well, whatever its weight says.
        assert 0 <= model.population_.shrinkage["ke"] + 0.1 < 0.3
        heavy, light = (
            model.sample(
                None, [4.0], 2000, 0, doses={"time": [0.0], "amount": [5.0]}, covariates={"weight": [w]}
            )
            for w in (90.0, 50.0)
        )
        assert np.median(heavy) < np.median(light)
        with pytest.raises(ValueError, match="needs weight"):
            model.sample(None, [4.0], 1, doses={"time": [0.0], "amount": [5.0]})

    def test_a_network_finds_an_effect_that_is_not_linear(self, tmp_path):
        """A rate that is lowest at the average: a linear effect leaves the curve in the spread."""
        rng = np.random.default_rng(0)
        n, weight = 100, rng.uniform(50.0, 90.0, 100)
        bend = lambda w: 0.8 * ((w - 70) / 20) ** 2  # noqa: E731
        k = 1.0 + bend(weight) + 0.1 * rng.normal(size=n)
        Y = k[:, None] * T + 0.3 * rng.normal(size=(n, len(T)))
        found = {}
        for effect in ("linear", "network"):
            laws = {"k": Normal(1.5, 0.3, "weight", effect=effect)}
            model = LocalW2ODE(line, laws, noise="additive", random_state=0)
            found[effect] = model.fit(Y, T, 0.0, 0.0, covariates={"weight": weight})
        assert found["linear"].population_.find("k", "spread").value > 0.2
        model = found["network"]
        spread = model.population_.find("k", "spread")
        assert abs(spread.value - 0.1) < 4 * spread.error < 0.1
        at = np.array([55.0, 62.0, 70.0, 78.0, 85.0])
        drawn = model.sample(np.zeros((5, 1)), [0.0, 1.0], 400, 0, covariates={"weight": at}, measured=False)
        # A tenth of the bend, of which five subjects on either side would tell half that.
        np.testing.assert_allclose(drawn[:, :, 1, 0].mean(0), 1.0 + bend(at), atol=0.1)
        # The mean slope between one SD below the mean and one above: of this curve, near 0.
        slope = model.population_.find("k", "effect of weight")
        assert abs(slope.value) < 0.008
        assert 0 < slope.error < 0.004
        model.save(tmp_path / "m.localw2")
        again = load(tmp_path / "m.localw2", field=line)
        given = {"random_state": 0, "covariates": {"weight": at}}
        np.testing.assert_array_equal(
            *(m.sample(np.zeros((5, 1)), [0.0, 1.0], 3, **given) for m in (model, again))
        )
        own = [
            m.individual_parameters(Y[:2], T, 0.0, covariates={"weight": weight[:2]}, random_state=0)
            for m in (model, again)
        ]
        np.testing.assert_array_equal(*(one.samples["k"] for one in own))
        np.testing.assert_allclose(own[0].mean["k"], k[:2], atol=4 * 0.3 / (T @ T) ** 0.5)

    @pytest.mark.parametrize(
        ("settings", "word"), [({"effect": "curved"}, "effect"), ({"effect": "network"}, "depends_on")]
    )
    def test_effects_that_do_not_exist(self, settings, word):
        with pytest.raises(ValueError, match=word):
            LogNormal(1.0, 0.3, **settings)

    def test_covariates_do_not_hide_the_correlation_that_is_left(self):
        """Both parameters follow a covariate closely; what is left of them is correlated the other way."""
        rng = np.random.default_rng(0)
        n = 100
        weight, z = rng.normal(size=n), rng.normal(size=(n, 2))
        left = 0.2 * np.column_stack([z[:, 0], -0.7 * z[:, 0] + 0.51**0.5 * z[:, 1]])
        k, start = (left + weight[:, None]).T[..., None]
        Y = start + k * T + 0.1 * rng.normal(size=(n, len(T)))
        laws = {"k": Normal(0.2, 0.5, "weight"), "y0": Normal(0.2, 0.5, "weight")}
        model = LocalW2ODE(line, laws, noise="additive", random_state=0)
        found = model.fit(Y, T, t0=0.0, covariates={"weight": weight}).population_
        # Least squares of a balanced design are sufficient: their residuals given the covariate have the
        # covariance of the parameters and that of the errors, which is known.
        design = np.column_stack([T, np.ones_like(T)])
        own = Y @ np.linalg.pinv(design).T
        regressors = np.column_stack([np.ones(n), weight])
        rest = own - regressors @ np.linalg.lstsq(regressors, own, rcond=None)[0]
        among = rest.T @ rest / (n - 2) - 0.01 * np.linalg.inv(design.T @ design)
        spread = np.sqrt(np.diag(among))
        # Half of the standard errors of n subjects, which both estimates share.
        for name, value in zip(laws, spread, strict=True):
            assert found.find(name, "spread").value == pytest.approx(value, rel=0.15)
        correlation = found.find("k", "correlation with y0").value
        assert correlation == pytest.approx(among[0, 1] / spread.prod(), abs=0.15)
        assert correlation < 0

    def test_what_is_observed_may_depend_on_parameters_and_covariates(self):
        rng = np.random.default_rng(4)
        n, t = 12, np.array([0.5, 1.0, 2.0, 4.0])
        volume = rng.uniform(10, 30, n)
        Y = 100 / volume[:, None] * np.exp(-np.exp(rng.normal(-1, 0.2, (n, 1))) * t)
        Y += 0.05 * rng.normal(size=Y.shape)
        settings = {"noise": "additive", "random_state": 0, "max_epochs": 10}
        doses = {"subject": np.arange(n), "time": np.zeros(n), "amount": np.full(n, 100.0)}
        found = []
        for observe, given in ((lambda y, V: y / V, doses), (None, doses | {"amount": 100 / volume})):
            model = LocalW2ODE(lambda t, y, ke: -ke * y, {"ke": LogNormal(0.3, 0.1)}, observe, **settings)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 12 subjects
                model.fit(Y, t, y0=0.0, t0=0.0, doses=given, covariates={"V": volume})
            found.append(model.parameters_.mean["ke"])
        assert found[0] == pytest.approx(found[1], rel=1e-4)  # tolerances of the solver
        model = LocalW2ODE(lambda t, y, ke: -ke * y, {"ke": 0.3}, lambda y, v: y / v, noise=0.1)
        with pytest.raises(ValueError, match="'v' beside the states"):
            model.fit(Y, t, y0=0.0, t0=0.0, doses=doses)
        with pytest.raises(ValueError, match="observe with V"):
            LocalW2ODE(observe=lambda y, V: y / V).fit(Y, t, y0=0.0)

    def test_initial_states_are_learned_where_noise_hides_them(self):
        rng = np.random.default_rng(2)
        n, t = 60, np.linspace(0, 4, 7)
        start, k = np.exp(rng.normal(np.log(5.0), 0.15, n)), np.exp(rng.normal(np.log(0.5), 0.2, n))
        Y = start[:, None] * np.exp(-k[:, None] * t) * (1 + 0.05 * rng.normal(size=(n, 7)))
        model = LocalW2ODE(
            lambda t, y, k: -k * y, {"k": LogNormal(0.3, 0.1)}, noise="proportional", random_state=0
        )
        model.fit(Y, t)
        assert model.parameters_.names == ["k", "y0"]
        typical, spread = model.population_.find("y0", "typical"), model.population_.find("y0", "spread")
        assert abs(typical.value - 5.0) < 4 * typical.error
        assert spread.value == pytest.approx(np.log(start).std(), rel=4 * (2 * n) ** -0.5)
        assert model.sample(None, [0.0, 1.0], 5).shape == (5, 1, 2, 1)

    def test_values_below_the_limit_count_as_below(self):
        rng = np.random.default_rng(3)
        n, t = 80, np.array([1.0, 2.0, 4.0, 6.0, 8.0])
        k = np.exp(rng.normal(np.log(0.5), 0.25, n))
        Y = 10 * np.exp(-k[:, None] * t) + 0.2 * rng.normal(size=(n, 5))
        limit = 1.0  # two fifths of the values
        kinds = {}
        for name, data, given in (
            ("limit", np.maximum(Y, limit), limit),
            ("ignored", np.maximum(Y, limit), None),
        ):
            model = LocalW2ODE(
                lambda t, y, k: -k * y,
                {"k": LogNormal(0.4, 0.1)},
                noise="additive",
                quantification_limit=given,
                random_state=0,
            ).fit(data, t, y0=10.0, t0=0.0)
            kinds[name] = model.population_.find("k", "typical").value, float(model.noise_[0])
        true = math.exp(np.log(k).mean())
        assert kinds["limit"][0] == pytest.approx(true, rel=4 * 0.25 / n**0.5)
        assert kinds["limit"][1] == pytest.approx(0.2, rel=0.2)
        assert abs(kinds["ignored"][1] / 0.2 - 1) > 2 * abs(kinds["limit"][1] / 0.2 - 1)

    def test_few_subjects_and_what_cannot_be_told_are_said(self):
        _, Y = lines(8)
        with pytest.warns(UserWarning, match="8 subjects show the spread"):
            LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, noise="additive", random_state=0).fit(Y, T, 0.0, 0.0)
        k, _ = lines(60)
        once = k[:, None] + 0.5 * np.random.default_rng(0).normal(
            size=(60, 1)
        )  # one observation each, at t = 1
        with pytest.warns(UserWarning, match="cannot be told from the spread"):
            model = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, noise="additive", random_state=0).fit(
                once, [1.0], 0.0, 0.0
            )
        assert model.population_.find("k", "spread").interval == (0.0, math.inf)
        assert model.population_.find("noise", "additive").interval == (0.0, math.inf)
        assert math.isfinite(model.population_.find("k", "typical").error)
        assert "Noise cannot be told from spread" in model.summary()

    def test_a_law_of_any_shape_has_standard_errors_and_is_stored(self, tmp_path):
        _, Y = lines(30)
        laws = {"k": PushForward(1.0, 0.5)}
        model = LocalW2ODE(line, laws, noise="additive", max_epochs=40, random_state=0).fit(Y, T, 0.0, 0.0)
        mean, spread, _ = maximum_likelihood(Y)
        typical = model.population_.find("k", "typical")
        assert abs(typical.value - mean) < 0.5 * spread / 30**0.5
        assert typical.error == pytest.approx(spread / 30**0.5, rel=0.5)
        model.save(tmp_path / "m.localw2")
        again = load(tmp_path / "m.localw2", field=line)
        found = [m.individual_parameters(Y[:1], T, 0.0, random_state=0).samples["k"] for m in (model, again)]
        np.testing.assert_array_equal(*found)
        assert found[0].mean() == pytest.approx(Y[0] @ T / (T @ T), abs=4 * 0.5 / (T @ T) ** 0.5)

    def test_files_from_before_the_linear_part_of_a_law_are_read(self):
        law = ParameterLaw({"k": PushForward(1.0, 0.5)}, torch.Generator().manual_seed(0)).double()
        old = {f"law.{name}": value for name, value in law.state_dict().items() if name != "straight"}
        tensors = {f"field.{name}": value for name, value in old.items()} | {
            "state_size": torch.ones(1).double()
        }
        settings = {"method": "dopri5", "rtol": 1e-4, "atol": 1e-6}
        ode = restore_ode({"step": None}, tensors, settings, line, law.laws, 1, 0.0)
        noise = law.draw(5, torch.Generator().manual_seed(1))
        torch.testing.assert_close(ode.field.law.scores(noise), law.scores(noise))

    def test_steps_that_explode_are_skipped_with_other_draws(self):
        """Exponential growth: a few draws of a wide law cannot be solved, and the rest of the fit can."""
        rng = np.random.default_rng(0)
        k, t = rng.normal(1.0, 0.2, 30), np.array([0.5, 1.0, 1.5, 2.0])
        Y = np.exp(k[:, None] * t) * (1 + 0.05 * rng.normal(size=(30, 4)))
        calls = []

        def field(t, y, k):
            return k * y

        from localw2.estimators.dynamics.population import simulated

        original = simulated._Simulation.of

        def sometimes(model, n_draws, generator):
            calls.append(generator.initial_seed())
            if len(calls) in (6, 9):
                raise SolverError("exploded")
            return original(model, n_draws, generator)

        model = LocalW2ODE(
            field, {"k": LogNormal(0.8, 0.2)}, noise="proportional", random_state=0, max_epochs=60
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulated._Simulation, "of", sometimes)
            model.fit(Y, t, y0=1.0, t0=0.0)
        assert calls[5] != calls[6]
        assert model.parameters_.mean["k"] == pytest.approx(k.mean(), abs=4 * 0.2 / 30**0.5)

    def test_a_known_error(self):
        _, Y = lines(40)
        model = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, noise=0.5, random_state=0).fit(Y, T, 0.0, 0.0)
        assert model.noise_ == pytest.approx([0.5], rel=1e-6)
        assert all(q.parameter != "noise" for q in model.population_.quantities)

    @pytest.mark.parametrize(
        ("settings", "given", "word"),
        [
            ({"noise": "loud"}, {}, "noise='loud' is unknown"),
            ({"quantification_limit": "low"}, {}, "quantification_limit"),
            ({"field": "mlp", "parameters": None}, {"doses": {"time": [0.0], "amount": [1.0]}}, "a network"),
            (
                {"parameters": {"k": Normal(1.0, 0.5, "age")}},
                {"covariates": {"w": np.ones(6)}},
                "depends on 'age'",
            ),
            ({"noise": 1.0}, {"covariates": {"w": np.ones(5)}}, "for each of 6 subjects"),
            ({"noise": 1.0}, {"covariates": [1]}, "give a DataFrame"),
            ({"noise": 1.0, "parameters": {"k": Normal(1.0), "y0_2": Normal(1.0)}}, {}, "state 2 of 1"),
        ],
    )
    def test_bad_requests(self, settings, given, word):
        _, Y = lines(6)
        model = LocalW2ODE(**({"field": line, "parameters": {"k": Normal(1.0, 0.5)}} | settings))
        with pytest.raises(ValueError, match=word):
            model.fit(Y, T, 0.0, 0.0, **given)

    def test_summary_and_individuals_are_for_populations(self):
        k, _ = lines(30)
        Y = np.c_[np.zeros(30), k[:, None] * T][..., None]
        model = LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, max_epochs=5, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(Y, np.r_[0.0, T])
        with pytest.raises(ValueError, match="noise, doses or covariates"):
            model.summary()
        with pytest.raises(ValueError, match="noise="):
            model.individual_parameters(Y, np.r_[0.0, T])
        for ask in (model.sample, model.predict_distribution):
            with pytest.raises(ValueError, match="doses would be ignored"):
                ask([0.0], [0.0, 1.0], doses={"time": [0.0], "amount": [1.0]})
        network = LocalW2ODE(noise=0.1, width=4, max_epochs=1, random_state=0).fit(Y, np.r_[0.0, T], [0.0])
        with pytest.raises(ValueError, match="named parameters"):
            network.individual_parameters(Y, np.r_[0.0, T], [0.0])


class TestNetworks:
    def test_errors_are_learned_beside_a_network(self, tmp_path):
        rng = np.random.default_rng(0)
        t, k = np.linspace(0, 2, 6), rng.normal(1.0, 0.2, 40)
        Y = np.exp(-k[:, None] * t) + 0.1 * rng.normal(size=(40, 6))
        model = LocalW2ODE(
            noise="additive", width=8, depth=1, max_epochs=150, learning_rate=0.02, random_state=0
        )
        with pytest.raises(ValueError, match="give y0"):
            model.fit(Y, t)
        model.fit(Y, t, y0=1.0)
        # It begins at a tenth of the mean size, .05; six standard errors of an SD from 240 errors
        assert model.noise_ == pytest.approx([0.1], rel=6 * (2 * 240) ** -0.5)
        noisy, exact = (
            model.sample([1.0], t, 500, random_state=0, measured=m)[:, 0, :, 0] for m in (True, False)
        )
        assert exact[:, 0].std() == 0
        assert noisy[:, 0].std() == pytest.approx(float(model.noise_[0]), rel=5 * (2 * 500) ** -0.5)
        law = model.predict_distribution([1.0], t)
        assert law.std()[0, 0, 0] == pytest.approx(float(model.noise_[0]), rel=5 * (2 * 2000) ** -0.5)
        model.save(tmp_path / "m.localw2")
        again = load(tmp_path / "m.localw2")
        np.testing.assert_array_equal(
            again.sample([1.0], t, 3, random_state=1), model.sample([1.0], t, 3, random_state=1)
        )


@pytest.mark.slow
class TestCampaigns:
    """Five seeds each; what the pages say."""

    def test_one_compartment(self):
        t, ratios = np.array([0.25, 0.5, 1, 2, 3, 5, 7, 9, 12, 24]), []
        means = []
        for seed in range(5):
            rng = np.random.default_rng(seed)
            logs = np.log([1.5, 0.1, 30]) + rng.normal(size=(100, 3)) * [0.5, 0.25, 0.2]
            ka, ke, V = np.exp(logs).T[:, :, None]
            Y = 100 * ka / (V * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t)) + 0.15 * rng.normal(
                size=(100, 10)
            )
            doses = {"subject": np.arange(100), "time": np.zeros(100), "amount": np.full(100, 100.0)}
            laws = {"ka": LogNormal(1.0, 0.4), "ke": LogNormal(0.2, 0.06), "V": LogNormal(20.0, 6.0)}
            model = LocalW2ODE(one_compartment, laws, second, noise="additive", random_state=seed)
            model.fit(Y, t, y0=[0.0, 0.0], t0=0.0, doses=doses)
            found = [
                [model.population_.find(name, kind).value for name in laws] for kind in ("typical", "spread")
            ]
            means.append(np.log(found[0]) - logs.mean(0))
            ratios.append([*(found[1] / logs.std(0, ddof=1)), float(model.noise_[0]) / 0.15])
        assert np.abs(np.mean(means, 0)).max() < 0.03
        assert np.abs(np.mean(ratios, 0)[:3] - 1).max() < 0.12
        assert abs(np.mean(ratios, 0)[3] - 1) < 0.10

    def test_two_groups_are_found(self):
        from sklearn.mixture import GaussianMixture

        t = np.array([0.25, 0.5, 1, 2, 3, 5, 7, 9, 12, 24])
        rng = np.random.default_rng(0)
        ka = np.repeat([0.7, 3.5], 30)[:, None]
        Y = 100 * ka / (30 * (ka - 0.1)) * (np.exp(-0.1 * t) - np.exp(-ka * t)) + 0.3 * rng.normal(
            size=(60, 10)
        )
        doses = {"subject": np.arange(60), "time": np.zeros(60), "amount": np.full(60, 100.0)}
        laws = {
            "ka": PushForward(1.5, 1.0, positive=True),
            "ke": LogNormal(0.12, 0.03),
            "V": LogNormal(25.0, 5.0),
        }
        model = LocalW2ODE(one_compartment, laws, second, noise="additive", random_state=0)
        model.fit(Y, t, y0=[0.0, 0.0], t0=0.0, doses=doses)
        logs = np.log(model.parameters_.samples["ka"][:2000])
        found = GaussianMixture(2, random_state=0).fit(logs[:, None])
        order = found.means_.ravel().argsort()
        np.testing.assert_allclose(np.exp(found.means_.ravel()[order]), [0.7, 3.5], rtol=0.15)
        assert found.weights_.min() > 0.4


class TestTheLastStep:
    """A Newton step from where training ended."""

    @staticmethod
    def bowl(gradient, n_draws=100):
        """A loss with slopes 2 and 4, and standard errors .1 and .3 of two numbers."""
        learned = [torch.nn.Parameter(torch.tensor([1.0, -1.0]).double())]
        inverse = torch.diag(torch.tensor([0.5, 0.25]).double())
        groups = torch.tensor([[0.2, 1.2], [-0.2, -1.2]]).double()
        return Bowl(learned, torch.tensor(gradient).double(), inverse, groups, n_draws)

    def test_standard_errors(self):
        errors = self.bowl([0.0, 0.0]).covariance.diagonal().sqrt()
        torch.testing.assert_close(errors, torch.tensor([0.1, 0.3]).double())

    @pytest.mark.parametrize(
        ("gradient", "expected"),
        [
            ([0.02, -0.04], [0.99, -0.99]),  # to the minimum
            ([2.0, 0.0], [0.95, -1.0]),  # half a standard error at most
            ([math.nan, 0.0], [1.0, -1.0]),  # nowhere, if nothing is known
        ],
    )
    def test_goes_to_the_minimum_or_half_a_standard_error(self, gradient, expected):
        bowl = self.bowl(gradient)
        bowl.descend()
        torch.testing.assert_close(bowl.learned[0].detach(), torch.tensor(expected).double())

    def test_with_few_draws_there_is_none(self):
        bowl = self.bowl([0.02, -0.04], n_draws=10)
        bowl.descend()
        assert bowl.learned[0].tolist() == [1.0, -1.0]

    def test_a_fit_ends_with_it(self, monkeypatch):
        taken = []
        monkeypatch.setattr(Bowl, "descend", lambda bowl: taken.append(bowl.n_draws))
        _, Y = lines(40)
        LocalW2ODE(line, {"k": Normal(1.0, 0.5)}, noise="additive", max_epochs=5, random_state=0).fit(
            Y, T, 0.0, 0.0
        )
        assert taken == [400]


def test_draws_whose_density_is_no_number_have_no_weight():
    log = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [math.inf, -math.inf]]).double()
    torch.testing.assert_close(_weigh(log), torch.tensor([[1.0, 0.5], [0.0, 0.5], [0.0, 0.0]]).double())
    with pytest.raises(FloatingPointError, match=r"subject 1 \(1 of 2 such\).*unit"):
        _weigh(torch.stack([log[:, 0], log[:, 0] + math.nan], 1))
