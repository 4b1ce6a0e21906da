"""Doses, inputs, covariates, errors of measurement: each against a closed form."""

import math

import numpy as np
import pytest
import torch

from localw2 import FunctionField, LogNormal, Normal, PushForward
from localw2.models.cohort import Cohort
from localw2.models.laws import ParameterLaw
from localw2.models.measurement import MeasurementNoise
from localw2.models.solver import WITHOUT_GRADIENT, Solver, SolverError
from localw2.models.subjects import Clock, Doses, Inputs

FINE = Solver("dopri5", 1e-9, 1e-11, None, 10_000)


def decay(t, y, k):
    return -k * y


def solve(
    function, laws, times, initial, values, doses=None, covariates=None, inputs=None, t0=0.0, solver=FINE
):
    times, initial = np.asarray(times, float), np.asarray(initial, float)
    n, d = initial.shape
    table = None if doses is None else Doses.of(doses, n, d)
    cohort = Cohort.of(times, np.isfinite(times), initial, t0, table, covariates, Inputs.of(inputs, n))
    field = FunctionField(function, laws, given=[*(covariates or {}), *(inputs or {})]).double()
    named = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    return cohort.solve(field, solver, named, torch.arange(n)).numpy()


def infused(t, start, length, amount, k):
    """What is left of an infusion at time t."""
    if t <= start:
        return 0.0
    inside = amount / length / k * (1 - math.exp(-k * (min(t, start + length) - start)))
    return inside * math.exp(-k * max(t - start - length, 0.0))


class TestDoses:
    @pytest.mark.parametrize(
        "times", [[[1.0, 5.0, 13.0], [1.0, 5.0, 13.0]], [[1.0, 5.0, 13.0], [2.0, 7.5, 9.0]]]
    )
    def test_at_once_repeated_and_infused(self, times):
        doses = {
            "subject": [0, 0, 1, 1],
            "time": [0.0, 6.0, 0.5, 4.0],
            "amount": [100.0, 50.0, 80.0, 30.0],
            "duration": [0.0, 0.0, 0.0, 3.0],
        }
        k = [0.2, 0.35]
        found = solve(decay, {"k": Normal(0.2)}, times, [[0.0], [0.0]], {"k": k}, doses)[..., 0]
        for t, y in zip(times[0], found[0], strict=True):
            expected = 100 * math.exp(-0.2 * t) + (50 * math.exp(-0.2 * (t - 6)) if t > 6 else 0.0)
            assert y == pytest.approx(expected, rel=1e-7)
        for t, y in zip(times[1], found[1], strict=True):
            expected = 80 * math.exp(-0.35 * (t - 0.5)) + infused(t, 4.0, 3.0, 30.0, 0.35)
            assert y == pytest.approx(expected, rel=1e-7)

    def test_own_times_after_one_dose_are_solved_together(self):
        rng = np.random.default_rng(0)
        times, k = np.sort(rng.uniform(0.1, 20, (5, 7)), axis=1), rng.uniform(0.1, 1.0, 5)
        doses = {"subject": range(5), "time": [0.0] * 5, "amount": [100.0, 50.0, 20.0, 10.0, 5.0]}
        found = solve(decay, {"k": Normal(0.2)}, times, np.zeros((5, 1)), {"k": k}, doses)[..., 0]
        expected = np.array(doses["amount"])[:, None] * np.exp(-k[:, None] * times)
        # Between steps the solver interpolates with a polynomial of degree four.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        clock = Clock.of(times, np.ones((5, 7), bool), Doses.of(doses, 5, 1), 0.0, 1)
        assert clock.runs() == [(0, 35)]

    def test_what_is_seen_at_a_dose_is_seen_before_it(self):
        found = solve(
            decay, {"k": Normal(0.2)}, [[0.0, 1.0]], [[0.0]], {"k": [0.2]}, {"time": [0.0], "amount": [10.0]}
        )
        np.testing.assert_allclose(found[0, :, 0], [0.0, 10 * math.exp(-0.2)], rtol=1e-7)

    def test_an_infusion_that_outlasts_the_observations(self):
        doses = {"time": [1.0], "amount": [10.0], "duration": [100.0]}
        found = solve(decay, {"k": Normal(0.2)}, [[3.0]], [[0.0]], {"k": [0.2]}, doses)
        assert found.item() == pytest.approx(infused(3.0, 1.0, 100.0, 10.0, 0.2), rel=1e-7)

    def test_fixed_steps(self):
        doses = {"subject": [0, 1], "time": [0.0, 1.0], "amount": [100.0, 50.0]}
        rk4 = Solver("rk4", 1e-4, 1e-6, 0.05, 10_000)
        found = solve(
            decay,
            {"k": Normal(0.2)},
            [[1.0, 4.0], [2.0, 3.0]],
            [[0.0], [0.0]],
            {"k": [0.2, 0.5]},
            doses,
            solver=rk4,
        )
        np.testing.assert_allclose(found[0, :, 0], 100 * np.exp(-0.2 * np.array([1, 4])), rtol=1e-7)
        np.testing.assert_allclose(found[1, :, 0], 50 * np.exp(-0.5 * np.array([1, 2])), rtol=1e-6)

    @pytest.mark.parametrize(
        ("table", "word"),
        [
            ({"time": [0.0], "amount": [1.0], "subject": [3]}, "subject 3 does not exist"),
            ({"time": [0.0], "amount": [1.0], "state": [0.5]}, "state 0.5 does not exist"),
            ({"time": [0.0], "amount": [1.0], "duration": [-1.0]}, "duration is -1"),
            ({"time": [0.0]}, "'amount' is missing"),
            ({"time": [0.0], "amount": [1.0], "dose": [1.0]}, "'dose' is unknown"),
            ({"time": [0.0, 1.0], "amount": [1.0]}, "columns have lengths"),
            ([1.0], "give a table"),
        ],
    )
    def test_bad_tables(self, table, word):
        with pytest.raises(ValueError, match=word):
            Doses.of(table, 2, 1)

    def test_a_dose_before_the_start(self):
        doses = Doses.of({"time": [-1.0], "amount": [1.0]}, 1, 1)
        with pytest.raises(ValueError, match="before the start t0 = 0"):
            Clock.of(np.array([[1.0]]), np.array([[True]]), doses, 0.0, 1)


class TestInputs:
    def test_a_course_is_integrated(self):
        inputs = {"light": ([0.0, 2.0, 4.0], [[0.0, 2.0, 0.0], [1.0, 1.0, 1.0]])}
        found = solve(
            lambda t, y, a, light: a * light + 0 * y,
            {"a": Normal(1.0)},
            [[1.0, 4.0], [1.0, 4.0]],
            [[0.0], [0.0]],
            {"a": [1.0, 2.0]},
            inputs=inputs,
        )
        np.testing.assert_allclose(found[..., 0], [[0.5, 4.0], [2.0, 8.0]], rtol=1e-6)

    def test_covariates_reach_the_field_and_time_is_that_of_the_data(self):
        found = solve(
            lambda t, y, a, weight: a * weight * t + 0 * y,
            {"a": Normal(1.0)},
            [[1.0], [2.0]],
            [[0.0], [0.0]],
            {"a": [1.0, 1.0]},
            covariates={"weight": np.array([3.0, 5.0])},
            t0=10.0,
        )
        # The integral of t from 10 to 11 and to 12.
        np.testing.assert_allclose(found[:, 0, 0], [3 * 10.5, 5 * 22.0], rtol=1e-8)

    @pytest.mark.parametrize(
        ("inputs", "word"),
        [([1], "give a dict"), ({"u": 3}, "pair"), ({"u": ([1.0, 0.0], [1.0, 2.0])}, "rising times")],
    )
    def test_bad_courses(self, inputs, word):
        with pytest.raises(ValueError, match=word):
            Inputs.of(inputs, 2)


class TestColumns:
    def call(self, function):
        field = FunctionField(function, {"k": Normal(1.0)}).double()
        generator = torch.Generator().manual_seed(0)
        t, y = (torch.rand(s, generator=generator, dtype=torch.float64) for s in ((6,), (6, 2)))
        k = torch.rand(6, generator=generator, dtype=torch.float64)
        found = field.slopes(t, y, {"k": k})
        return field, found, torch.vmap(field._one)(t, y, {"k": k})

    @pytest.mark.parametrize(
        "function",
        [
            lambda t, y, k: -k * y,
            lambda t, y, k: torch.stack([-k * y[0] + t, torch.where(y[1] > 0.5, k * y[1], y[0])]),
            lambda t, y, k: [-k * y[0], torch.exp(-t) * y[1]],
        ],
    )
    def test_elementary_functions_are_called_once_for_all(self, function):
        field, found, mapped = self.call(function)
        assert field._by_columns
        torch.testing.assert_close(found, mapped, rtol=1e-12, atol=0)

    @pytest.mark.parametrize(
        "function",
        [lambda t, y, k: -k * y.sum() * y, lambda t, y, k: -k * y * y.norm(), lambda t, y, k: y - y.mean()],
    )
    def test_functions_that_would_mix_trajectories_are_mapped(self, function):
        field, found, mapped = self.call(function)
        assert not field._by_columns
        torch.testing.assert_close(found, mapped, rtol=0, atol=0)


class TestMeasurement:
    def test_standard_deviations(self):
        size, guess = torch.tensor([2.0, 4.0]).double(), torch.tensor([0.5, 0.25]).double()
        exact = torch.tensor([[0.0, 3.0], [10.0, -2.0]]).double()
        additive, proportional, combined = (
            MeasurementNoise(kind, size, guess).std(exact).detach().numpy()
            for kind in ("additive", "proportional", "combined")
        )
        np.testing.assert_allclose(additive, [[1.0, 1.0], [1.0, 1.0]], rtol=1e-6)
        np.testing.assert_allclose(proportional, [[0.0, 0.75], [5.0, 0.5]], atol=1e-5)
        np.testing.assert_allclose(combined, np.sqrt(additive**2 + proportional**2), rtol=1e-6)
        known = MeasurementNoise(0.3, size)
        np.testing.assert_allclose(known.std(exact).detach(), 0.3, rtol=1e-4)
        assert not known.learned
        assert not any(p.requires_grad for p in known.parameters())

    def test_errors_are_fresh_at_every_observation(self):
        noise = MeasurementNoise("additive", torch.ones(1).double(), torch.full((1,), 0.3).double())
        exact = torch.zeros(20_000, 2, 1).double()
        errors = noise.draw(exact, torch.Generator().manual_seed(0)).detach().numpy()[..., 0]
        # five standard errors
        assert abs(errors.std() / 0.3 - 1) < 5 * (2 * errors.size) ** -0.5
        assert abs(np.corrcoef(errors.T)[0, 1]) < 5 * len(errors) ** -0.5

    @pytest.mark.parametrize("kind", ["gauss", 0.0, -1.0, float("nan"), True])
    def test_bad_kinds(self, kind):
        with pytest.raises(ValueError, match="noise"):
            MeasurementNoise(kind, torch.ones(1))


class TestLawsWithCovariates:
    def test_effects_are_linear_on_the_scale_of_the_law(self):
        law = ParameterLaw({"a": LogNormal(2.0, 0.5, ("w",)), "b": Normal(1.0, 0.2)}).double()
        w = torch.tensor([10.0, 20.0, 60.0]).double()
        law.learn_units({"w": w})
        with torch.no_grad():
            law.slopes[0, 0] = 0.7
            law.slopes[1, 0] = 99.0  # not linked
        noise = torch.zeros(3, 2).double()
        with torch.no_grad():
            values = law(noise, law.standardise({"w": w}))
        standard = ((w - 30) / w.std(correction=0)).numpy()
        np.testing.assert_allclose(values["a"], 2.0 * np.exp(0.25 * 0.7 * standard), rtol=1e-6)
        np.testing.assert_allclose(values["b"], 1.0)
        with pytest.raises(ValueError, match="depend on w"):
            law(noise)

    def test_positive_push_forward(self):
        law = ParameterLaw({"k": PushForward(0.5, 2.0, positive=True)}, torch.Generator().manual_seed(0))
        assert float(law(law.draw(1000, torch.Generator().manual_seed(1)))["k"].detach().min()) > 0
        with pytest.raises(ValueError, match="must be > 0"):
            PushForward(-1.0, positive=True)

    @pytest.mark.parametrize("names", [3, ["a b"], ["w", "w"]])
    def test_bad_names(self, names):
        with pytest.raises(ValueError, match="depends_on"):
            Normal(1.0, 0.1, names)


class TestWithoutGradient:
    """Scipy's solver, in which all trajectories are one banded system."""

    solver = Solver(WITHOUT_GRADIENT, 1e-9, 1e-11, None, 10_000)

    def test_states_that_act_on_each_other(self):
        w, t = np.array([0.5, 1.0, 3.0]), np.linspace(0.1, 4, 9)
        initial = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
        laws = {"w": Normal(1.0)}
        states = solve(
            lambda t, y, w: torch.stack([w * y[1], -w * y[0]]),
            laws,
            np.tile(t, (3, 1)),
            initial,
            {"w": w},
            solver=self.solver,
        )
        angle = w[:, None] * t
        turned = initial[:, :1] * np.cos(angle) + initial[:, 1:] * np.sin(angle)
        np.testing.assert_allclose(states[..., 0], turned, atol=1e-6)

    def test_doses_at_own_times_are_as_by_the_other_solver(self):
        doses = {"subject": [0, 0, 1, 1], "time": [0.0, 1.5, 0.0, 2.5], "amount": [1.0, 2.0, 3.0, 1.0]}
        doses["duration"] = [0.0, 0.5, 0.0, 0.0]
        times, values = [[1.0, 2.0, 4.0], [0.5, 3.0, 3.5]], {"k": [0.4, 1.1]}
        laws, start = {"k": Normal(1.0)}, [[0.0], [1.0]]
        found, other = (
            solve(decay, laws, times, start, values, doses, solver=one) for one in (self.solver, FINE)
        )
        np.testing.assert_allclose(found, other, rtol=1e-6)

    def test_stiff_equations_take_few_evaluations(self):
        few = Solver(WITHOUT_GRADIENT, 1e-4, 1e-6, None, 2000)
        k = np.array([1e6, 1.0])
        found = solve(decay, {"k": Normal(1.0)}, [[1.0], [1.0]], [[1.0], [1.0]], {"k": k}, solver=few)
        np.testing.assert_allclose(found[:, 0, 0], [0.0, math.exp(-1)], atol=1e-3)

    def test_an_explosion_is_an_error_that_says_when(self):
        with pytest.raises(SolverError, match="stopped at t = 1 of 2"):
            solve(
                lambda t, y, k: k * y**2,
                {"k": Normal(1.0)},
                [[0.5, 2.0]],
                [[1.0]],
                {"k": [1.0]},
                solver=self.solver,
            )
