"""Laws of parameters, fields, solutions and observed paths, each against something known."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from localw2 import (
    FunctionField,
    LogNormal,
    NetworkField,
    Normal,
    PushForward,
    RandomODE,
    Shared,
    SolverError,
)
from localw2.datasets import FourStates
from localw2.models import paths
from localw2.models.laws import LOCATION_STEP, ParameterLaw, as_laws
from localw2.models.paths import ObservedPaths


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def logistic(t, y, r, K):
    return r * y * (1 - y / K)


def positional_only(t, y, k, /):
    return -k * y


class TestLaws:
    def test_gaussian_parameters_have_the_stated_moments(self):
        law = ParameterLaw({"a": Normal(1.0, 0.5), "b": Normal(-2.0, 2.0), "c": Shared(3.0)}).double()
        with torch.no_grad():
            law.location.copy_(torch.tensor([0.4, -0.1]) / LOCATION_STEP)
            law.factor.copy_(torch.tensor([[0.8, 9.0], [0.6, 0.5]]))  # the 9 is above the diagonal: unused
            law.shared.copy_(torch.tensor([1.0]) / LOCATION_STEP)
            n = 200_000
            values = {name: v.numpy() for name, v in law(law.draw(n, seeded())).items()}
        mean = {"a": 1.0 + 0.5 * 0.4, "b": -2.0 - 2.0 * 0.1}
        covariance = np.array([[0.4**2, 0.4 * 1.2], [0.4 * 1.2, 1.2**2 + 1.0]])
        for name, variance in zip("ab", np.diag(covariance), strict=True):
            # five standard errors: one false alarm in a million
            assert abs(values[name].mean() - mean[name]) < 5 * math.sqrt(variance / n)
            assert abs(values[name].var() / variance - 1) < 5 * math.sqrt(2 / n)
        assert abs(np.cov(values["a"], values["b"])[0, 1] - covariance[0, 1]) < 5 * math.sqrt(
            (covariance[0, 0] * covariance[1, 1] + covariance[0, 1] ** 2) / n
        )
        np.testing.assert_allclose(values["c"], 3.0 + 0.6 * 1.0)

    def test_shared_parameters_keep_their_values_in_other_units(self):
        stated = {"a": Shared(1.0), "b": Shared(2.0, 0.5), "c": Shared(3.0)}
        law = ParameterLaw(stated).double()
        with torch.no_grad():
            law.shared.copy_(torch.tensor([-1.6, 0.3, 0.7]))
        before, third = law(torch.zeros(1, 0).double()), law.shared[2].item()
        law.restate({"a": Shared(0.05, 0.01), "b": Shared(2.0, 5.0)})
        after = law(torch.zeros(1, 0).double())
        torch.testing.assert_close(after, before)
        torch.testing.assert_close(after["a"] - 0.05, 0.01 * LOCATION_STEP * law.shared[:1])
        law.restate(stated)
        torch.testing.assert_close(law(torch.zeros(1, 0).double()), before)
        assert law.laws == stated
        assert law.shared[2].item() == third

    def test_a_log_normal_parameter_is_the_exponential_of_a_gaussian(self):
        law = ParameterLaw({"k": LogNormal(2.0, 0.5)}).double()
        noise = torch.tensor([[-2.0], [0.0], [1.0]], dtype=torch.float64)
        expected = 2.0 * torch.exp(0.25 * noise[:, 0])
        torch.testing.assert_close(law(noise)["k"].detach(), expected)

    def test_a_push_forward_starts_from_a_gaussian_and_learns_from_all_noise(self):
        law = ParameterLaw({"a": Normal(0.0, 1.0), "b": PushForward(5.0, 0.5)}, generator=seeded()).double()
        noise = law.draw(50_000, seeded(1))
        b = law(noise)["b"]
        torch.testing.assert_close(b.detach(), 5.0 + 0.5 * noise[:, 1])
        # The noise of a, its own, and its own sign: each has a slope of its own that can be learned.
        seen = torch.stack([noise[:, 0], noise[:, 1], noise[:, 1].sign()])
        for place, one in enumerate(seen):
            (slope,) = torch.autograd.grad((b * one).mean(), law.straight, retain_graph=True)
            assert slope[0, place] == pytest.approx(0.5, rel=0.05)

    def test_named_in_many_ways(self):
        laws = as_laws({"a": "pushforward", "b": 2, "c": LogNormal(3.0), "d": Shared(1.0)})
        assert [type(law) for law in laws.values()] == [PushForward, Normal, LogNormal, Shared]
        assert laws["b"].mean == 2.0
        assert list(as_laws(["r", "K"])) == ["r", "K"]

    @pytest.mark.parametrize(
        ("parameters", "words"),
        [
            ({}, "no parameters"),
            (3, "no parameters"),
            ({"a b": 1.0}, "identifier"),
            ({"a": "cauchy"}, "not a law.*normal"),
            ({"a": None}, "is not a law"),
        ],
    )
    def test_misnamed(self, parameters, words):
        with pytest.raises(ValueError, match=words):
            as_laws(parameters)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Normal(1.0, 0.0), "std=0.0"),
            (lambda: Normal(float("nan")), "finite"),
            (lambda: LogNormal(-1.0), "mean=-1.0"),
            (lambda: Shared("x"), "finite"),
        ],
    )
    def test_bad_guesses(self, make, words):
        with pytest.raises(ValueError, match=words):
            make()


class TestFields:
    @pytest.mark.parametrize("n_noise", [None, 2])
    @pytest.mark.parametrize("activation", ["relu", "tanh"])
    @pytest.mark.parametrize("residual", [False, True])
    def test_a_bound_network_is_the_network_with_its_gradients(self, residual, activation, n_noise):
        field = NetworkField(3, 8, 3, residual, activation, 0.5, seeded(), n_noise=n_noise).double()
        omega = field.draw(5, seeded(1))
        y = torch.randn(5, 3, dtype=torch.float64, generator=seeded(2)).requires_grad_()
        wanted = [y, *field.parameters()]
        bound = field.bind(omega)
        # Twice in a row, as a solver does: the gradient of the weights sums both uses.
        ours = bound(torch.tensor(0.0), bound(torch.tensor(0.0), y)).square().sum()
        theirs = field.net(field.net(y, omega), omega).square().sum()
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted), strict=True):
            torch.testing.assert_close(a, b)

    def test_a_second_backward_pass_gives_the_same_gradient(self):
        field = NetworkField(2, 4, 1, generator=seeded(), initial_std=0.5).double()
        loss = field.bind(field.draw(3, seeded(1)))(torch.tensor(0.0), torch.ones(3, 2).double()).sum()
        first, second = (
            torch.autograd.grad(loss, field.net.layers[0].mean, retain_graph=True)[0] for _ in "ab"
        )
        torch.testing.assert_close(first, second)

    def test_without_gradients_nothing_is_kept(self):
        field = NetworkField(2, 4, 1, generator=seeded())
        with torch.no_grad():
            out = field.bind(field.draw(3, seeded()))(torch.tensor(0.0), torch.ones(3, 2))
        assert not out.requires_grad

    def test_parameters_arrive_by_name_or_as_a_dict(self):
        laws = {"r": Normal(1.0), "K": Normal(10.0)}
        y, zero = torch.full((4, 1), 2.0), torch.tensor(0.0)
        forms = [
            logistic,
            lambda t, y, K, r: r * y * (1 - y / K),
            lambda t, y, **p: p["r"] * y * (1 - y / p["K"]),
            lambda t, y, omega: omega["r"] * y * (1 - y / omega["K"]),
            lambda t, y, r, K: [r * y[0] * (1 - y[0] / K)],
        ]
        results = []
        for form in forms:
            field = FunctionField(form, laws)
            results.append(field.bind(field.draw(4, seeded()))(zero, y))
        for result in results[1:]:
            torch.testing.assert_close(result, results[0])

    def test_trajectories_never_mix(self):
        # Written for one trajectory: a sum over states must not become one over trajectories.
        field = FunctionField(lambda t, y, k: -k * y.sum() * torch.ones_like(y), {"k": Shared(1.0)})
        y = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
        slopes = field.bind(field.draw(2, seeded()))(torch.tensor(0.0), y)
        torch.testing.assert_close(slopes, torch.tensor([[-3.0, -3.0], [-30.0, -30.0]]))

    @pytest.mark.parametrize(
        ("function", "laws", "words"),
        [
            (lambda y: y, {"k": Normal()}, "time and state"),
            (lambda t, y, a, b: y, {"k": Normal()}, "a, b .*k"),
            (lambda t, y, k, b: y, {"k": Normal()}, "k, b"),
            (lambda t, y, **p: y, {"t": Normal()}, "'t' .*rename"),
            (positional_only, {"k": Normal()}, "position"),
        ],
    )
    def test_signatures_that_do_not_fit(self, function, laws, words):
        with pytest.raises(ValueError, match=words):
            FunctionField(function, laws)

    @pytest.mark.parametrize("result", [lambda y: y.sum(), lambda y: [y[0]], lambda y: 3.0])
    def test_wrong_shapes(self, result):
        field = FunctionField(lambda t, y, k: result(y), {"k": Normal()})
        with pytest.raises(ValueError, match="slope"):
            field.bind(field.draw(2))(torch.tensor(0.0), torch.ones(2, 2))


class TestRandomODE:
    def test_the_papers_system_is_solved_to_the_tolerance(self):
        truth = FourStates(a=0.3)
        Y, t, omega = truth.sample(20, random_state=0)
        field = FunctionField(truth.field, {"omega": Normal(0.0, 1.0)}).double()
        model = RandomODE(field, torch.tensor(t), rtol=1e-7, atol=1e-9)
        found = model(torch.tensor(Y[:, 0]), torch.tensor(omega["omega"])[:, None])
        np.testing.assert_allclose(found.detach().numpy(), Y, atol=2e-6)

    @pytest.mark.parametrize(("method", "order"), [("rk4", 4), ("midpoint", 2), ("euler", 1)])
    def test_fixed_steps_converge_at_their_order(self, method, order):
        field = FunctionField(lambda t, y, k: -k * y + torch.sin(t), {"k": Shared(2.0)}).double()
        start = torch.ones(1, 1, dtype=torch.float64)
        times = torch.tensor([0.0, 1.0], dtype=torch.float64)
        exact = (2 * math.sin(1) - math.cos(1)) / 5 + (1 + 1 / 5) * math.exp(-2)
        errors = []
        for step in (0.05, 0.025):
            model = RandomODE(field, times, method, step_size=step)
            errors.append(abs(float(model(start).detach()[0, -1]) - exact))
        assert abs(math.log2(errors[0] / errors[1]) - order) < 0.25

    def test_fixed_steps_land_on_the_times_asked_for(self):
        field = FunctionField(lambda t, y, k: -k * y, {"k": Shared(1.0)}).double()
        times = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64)
        found = RandomODE(field, times, "rk4", step_size=0.3)(torch.ones(1, 1).double()).detach().squeeze()
        np.testing.assert_allclose(found, np.exp(-times.numpy()), atol=2e-5)

    def test_a_field_that_is_not_finite_is_said_to_be(self):
        field = FunctionField(lambda t, y, k: k * torch.log(y - 2), {"k": Shared(1.0)}).double()
        with pytest.raises(SolverError, match=r"t = 0 .*not finite"):
            RandomODE(field, torch.tensor([0.0, 1.0]))(torch.ones(1, 1).double())

    def test_gradients_agree_with_finite_differences(self):
        field = FunctionField(logistic, {"r": Normal(1.0), "K": LogNormal(10.0)}).double()
        omega = field.draw(3, seeded())
        model = RandomODE(field, torch.tensor([0.0, 1.0, 3.0]), "rk4", step_size=0.25)
        law, y0 = field.law, torch.ones(3, 1, dtype=torch.float64)

        def path(location, factor):
            state = {"field.law.location": location, "field.law.factor": factor}
            return torch.func.functional_call(model, state, (y0, omega))

        inputs = law.location.detach().clone(), law.factor.detach().clone()
        assert torch.autograd.gradcheck(path, [v.requires_grad_() for v in inputs])

    def test_one_bad_trajectory_does_not_drown_in_good_ones(self):
        # 999 trajectories at rest and one that oscillates fast.
        field = FunctionField(lambda t, y, w: [w * y[1], -w * y[0]], {"w": Normal(0.0, 1.0)}).double()
        omega = torch.zeros(1000, 1, dtype=torch.float64)
        omega[0] = 30.0
        start = torch.tensor([[1.0, 0.0]]).double().repeat(1000, 1)
        model = RandomODE(field, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=1e-5, atol=1e-7)
        end = model(start, omega).detach()[0, -1]
        assert abs(float(end[0]) - math.cos(30)) < 3e-3

    def test_an_explosion_names_the_parameters(self):
        field = FunctionField(lambda t, y, k: k * y**2, {"k": Normal(1.0, 0.1)}).double()
        model = RandomODE(field, torch.linspace(0, 3, 7))
        with pytest.raises(SolverError, match=r"the trajectory with k = .*LogNormal"):
            model(torch.ones(4, 1, dtype=torch.float64), None, seeded())

    def test_a_stiff_equation_is_given_up_in_bounded_time(self):
        field = FunctionField(lambda t, y, k: -k * (y - torch.cos(t)), {"k": Shared(1e6)}).double()
        model = RandomODE(field, torch.tensor([0.0, 10.0]), max_evaluations=500)
        with pytest.raises(SolverError, match=r"after 500 evaluations.*stiff"):
            model(torch.zeros(1, 1, dtype=torch.float64))

    def test_overflow_with_fixed_steps(self):
        field = FunctionField(lambda t, y, k: k * y**3, {"k": Shared(50.0)}).double()
        model = RandomODE(field, torch.linspace(0, 3, 31), "rk4")
        with pytest.raises(SolverError, match="not finite"):
            model(torch.full((1, 1), 5.0).double())

    def test_at_shares_parameters(self):
        model = RandomODE(NetworkField(2, 4, 1), torch.tensor([0.0]))
        other = model.at(torch.tensor([0.0, 1.0]))
        assert other.field is model.field
        assert model(torch.ones(3, 2)).shape == (3, 1, 2)
        assert other.sample(torch.ones(3, 2), n_samples=4).shape == (4, 3, 2, 2)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"times": torch.tensor([1.0, 0.0])}, "increasing"),
            ({"times": torch.tensor([0.0, 0.0])}, "increasing"),
            ({"times": torch.tensor([0.0, float("nan")])}, "finite times"),
            ({"times": torch.ones(2, 2)}, "finite times"),
            ({"method": "magic"}, "method='magic'"),
            ({"rtol": 0.0}, "rtol=0.0"),
            ({"atol": None}, "atol=None"),
            ({"max_evaluations": 0}, "max_evaluations=0"),
        ],
    )
    def test_bad_settings(self, settings, words):
        with pytest.raises(ValueError, match=words):
            RandomODE(**{"field": NetworkField(2, 4, 1), "times": torch.tensor([0.0, 1.0]), **settings})


class TestEqualSteps:
    def test_the_error_falls_with_the_fourth_power_of_the_step_at_all_times(self):
        times = torch.linspace(0, 2, 37, dtype=torch.float64) ** 1.3 + 5  # most of them between steps
        exact = torch.stack([torch.cos(times - 5), -torch.sin(times - 5)], -1)
        turn = FunctionField(lambda t, y, w: [w * y[1], -w * y[0]], {"w": Shared(1.0)}).double()
        start, omega = torch.tensor([[1.0, 0.0]]).double(), turn.draw(1)
        ode = RandomODE(turn, times)
        errors = [float((ode.in_steps(start, omega, n)[0] - exact).detach().abs().max()) for n in (8, 16, 32)]
        assert errors[0] < 2e-3
        assert errors[0] / errors[1] > 12
        assert errors[1] / errors[2] > 12

    def test_a_time_that_the_field_takes_arrives(self):
        field = FunctionField(lambda t, y, k: k * t**2 + 0 * y, {"k": Shared(3.0)}).double()
        ode = RandomODE(field, torch.tensor([1.0, 2.0, 3.0]).double())
        found = ode.in_steps(torch.ones(1, 1).double(), field.draw(1), 2)
        np.testing.assert_allclose(found.detach().numpy().ravel(), [1.0, 8.0, 27.0], rtol=1e-12)

    def test_an_explosion_is_told(self):
        field = FunctionField(lambda t, y, k: k * y**2, {"k": Shared(1e3)})
        ode = RandomODE(field, torch.tensor([0.0, 10.0]))
        with pytest.raises(SolverError, match="k = 1000"):
            ode.in_steps(torch.ones(2, 1), field.draw(2), 20)

    def test_trajectories_solved_in_parts_are_the_same(self):
        field = NetworkField(2, 6, 1, generator=seeded(), initial_std=0.5).double()
        ode = RandomODE(field, torch.linspace(0, 1, 5).double())
        omega, y0 = field.draw(7, seeded(1)), torch.randn(7, 2, generator=seeded(2)).double()
        whole = ode.in_steps(y0, omega, 6)
        gradient = torch.autograd.grad(whole.sum(), list(field.parameters()))
        field.together = 3
        parts = ode.in_steps(y0, omega, 6)
        torch.testing.assert_close(parts, whole)
        for a, b in zip(torch.autograd.grad(parts.sum(), list(field.parameters())), gradient, strict=True):
            torch.testing.assert_close(a, b)


class TestObservedPaths:
    def swing(self, frequency, **settings):
        """Swings of about this frequency at 20 times, each with its own, and the rows of 30 of them."""
        laws = {"w": Normal(frequency, 0.02 * frequency)}
        field = FunctionField(lambda t, y, w: [w * y[1], -w * y[0]], laws).double()
        ode = RandomODE(field, torch.tensor([0.0]).double(), rtol=1e-7, atol=1e-9)
        number = torch.arange(30.0).double().repeat_interleave(20)[:, None]
        times = torch.linspace(0.1, 2, 20).double().repeat(30)[:, None]
        x = torch.cat([number, times, torch.tensor([[1.0, 0.0]]).double().expand(600, 2)], 1)
        return ObservedPaths(ode, 1, **settings), x

    @pytest.mark.parametrize("frequency", [1.0, 20.0])
    def test_steps_of_training_follow_the_equation(self, frequency):
        model, x = self.swing(frequency, equal_steps=True)
        omega = model.draw(30, seeded())
        exact = model.eval()(x, omega).detach()
        spread = exact.reshape(30, 20, 2).var(0).mean(0).sqrt()
        quick = model.train()(x, omega)
        assert float((quick - exact).detach().abs().mean() / spread.min()) < 3 * paths.ACCEPTED_STEPS
        steps, calls = model.state_dict()["steps_and_calls"].tolist()
        assert calls == 1
        assert (steps > paths.FIRST_STEPS) == (frequency > 1)

    def test_steps_become_fewer_where_they_may(self):
        model, x = self.swing(1.0, equal_steps=True)
        model.steps_and_calls[0] = 200
        for _ in range(paths.CHECK_STEPS + 1):
            model.train()(x[:40], None, seeded())
        assert int(model.steps_and_calls[0]) < 100

    def test_steps_are_as_many_as_the_observed_spread_asks_for(self):
        counts = []
        for spread in (1e-3, 1.0, 1e3):
            model, x = self.swing(20.0, equal_steps=True, spread=torch.full((2,), spread))
            model.train()(x, None, seeded())
            counts.append(int(model.steps_and_calls[0]))
        assert counts[0] > counts[1] > counts[2] == paths.FIRST_STEPS

    def test_without_equal_steps_the_state_does_not_know_them(self):
        assert not any("steps" in name for name in self.swing(1.0)[0].state_dict())

    def model(self, n_times, observe=None):
        field = FunctionField(FourStates().field, {"omega": Normal(0.0, 0.2)}).double()
        return ObservedPaths(
            RandomODE(field, torch.tensor([0.0]).double(), rtol=1e-8, atol=1e-10), n_times, observe
        )

    def rows(self, times):
        """Three trajectories with these times each; the rows of one are not together."""
        times = torch.as_tensor(times, dtype=torch.float64)
        number = torch.arange(3.0).double().repeat(len(times))
        y0 = 1 + 0.1 * number[:, None] * torch.ones(4)
        return torch.cat([number[:, None], times.repeat_interleave(3, 0), y0], 1)

    def test_rows_of_a_trajectory_share_its_omega(self):
        model, x = self.model(1), self.rows([[2.0], [0.0], [0.5], [1.0]])
        omega = model.draw(3, seeded())
        outputs = model(x, omega).detach()
        solved = model.ode.at(torch.tensor([0.0, 0.5, 1.0, 2.0]).double())(x[:3, 2:], omega).detach()
        expected = solved[:, [3, 0, 1, 2]].transpose(0, 1).reshape(-1, 4)
        torch.testing.assert_close(outputs, expected, atol=1e-7, rtol=0)

    def test_a_pair_is_a_state_and_a_slope(self):
        x = self.rows([[0.5, 1.0], [1.0, 1.2]])
        omega = self.model(1).draw(3, seeded())
        single = self.model(1)
        first, second = (single(torch.cat([x[:, :1], x[:, i : i + 1], x[:, 3:]], 1), omega) for i in (1, 2))
        expected = torch.cat([first, (second - first) / (x[:, 2] - x[:, 1])[:, None]], 1)
        torch.testing.assert_close(self.model(2)(x, omega), expected, atol=1e-6, rtol=0)

    def test_draws_are_independent_but_rows_of_one_are_not(self):
        model, x = self.model(1), self.rows([[1.0], [1.1]])
        draws = model.simulate(x, 400, seeded()).detach().numpy()
        late_of_same = np.corrcoef(draws[:, 0, 0], draws[:, 3, 0])[0, 1]
        late_of_other = np.corrcoef(draws[:, 0, 0], draws[:, 4, 0])[0, 1]
        assert abs(late_of_same) > 0.9
        assert abs(late_of_other) < 5 / math.sqrt(400)

    def test_many_times_are_interpolated_closely(self):
        times = torch.rand(300, 1, generator=seeded(), dtype=torch.float64) * 2
        x = self.rows(times)
        omega = self.model(1).draw(3, seeded())
        assert len(torch.unique(x[:, 1])) > paths.KNOTS
        outputs = self.model(1)(x, omega).detach().numpy()
        values = 0.2 * omega[:, 0].numpy()
        for row, found in zip(x.numpy(), outputs, strict=True):
            exact = expm(FourStates.matrix(values[int(row[0])]) * row[1]) @ row[2:]
            np.testing.assert_allclose(found, exact, atol=1e-6)

    def test_fast_dynamics_get_more_knots(self):
        # Twenty periods, and 400 times: 128 knots would be off by some percent of the spread.
        field = FunctionField(lambda t, y, w: [w * y[1], -w * y[0]], {"w": Normal(62.8, 1.0)}).double()
        ode = RandomODE(field, torch.tensor([0.0]).double(), rtol=1e-7, atol=1e-9)
        times = 2 * torch.rand(400, 1, generator=seeded(), dtype=torch.float64)
        x = torch.cat([torch.zeros(400, 1), times, torch.tensor([[1.0, 0.0]]).expand(400, 2)], 1)
        model = ObservedPaths(ode, 1)
        assert model.interpolation_error(x, seeded()) > 0.01
        assert model.refine(x, seeded()) <= paths.ACCEPTED
        assert model.knots > paths.KNOTS

    def test_knots_follow_the_observations(self):
        # Decays at times over four decades, as in pharmacology: early times need close knots.
        field = FunctionField(lambda t, y, k: -k * y, {"k": Normal(50.0, 8.0)}).double()
        ode = RandomODE(field, torch.tensor([0.0]).double(), rtol=1e-7, atol=1e-9)
        times = 10 ** (4 * torch.rand(400, 1, generator=seeded(), dtype=torch.float64) - 3)
        x = torch.cat([torch.zeros(400, 1), times, torch.ones(400, 1)], 1)
        model = ObservedPaths(ode, 1)
        omega = model.draw(1, seeded())
        model.refine(x, seeded())
        exact = torch.exp(-(50 + 8 * omega[0, 0]) * times)
        assert float((model(x, omega) - exact).detach().abs().max()) < 1e-3

    def test_observing_a_part(self):
        model = self.model(2, lambda y: y[..., :1] + y[..., 2:3])
        assert model.simulate(self.rows([[0.5, 1.0]]), 2, seeded()).shape == (2, 3, 2)


@pytest.mark.parametrize("name", ["pop", "keys", "forward", "k.el"])
def test_a_curve_of_covariates_takes_parameters_of_any_name(name):
    law = ParameterLaw({name: Normal(1.0, 0.1, ("w",), effect="network"), "other": Normal(2.0, 0.1)})
    found = law(torch.zeros(3, 2), torch.zeros(3, 1))
    assert list(found) == [name, "other"]
