import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import localw2.losses.assignment
import localw2.losses.sorting
import localw2.losses.w2
from localw2 import Neighborhoods, Objective, SquaredW2, local_w2, w2_squared
from localw2.losses.sorting import DeviceOrdering, HostOrdering
from localw2.losses.w2 import Target
from strategies import pot_per_ball, problems, quiet_within


@settings(max_examples=150)
@given(problems())
def test_values_equal_pot_in_float64(problem):
    expected = pot_per_ball(problem.y, problem.yhat, problem.hoods)
    values = w2_squared(problem.y, problem.yhat, problem.hoods)
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@settings(max_examples=100)
@given(problems(dtype=torch.float32))
def test_values_equal_pot_in_float32(problem):
    expected = pot_per_ball(problem.y, problem.yhat, problem.hoods)
    values = w2_squared(problem.y, problem.yhat, problem.hoods)
    assert values.dtype == torch.float32
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@given(problems(times=st.integers(1, 4)))
def test_times_are_compared_one_by_one(problem):
    values = w2_squared(problem.y, problem.yhat, problem.hoods)
    assert values.shape == (problem.hoods.n_balls, problem.y.shape[1])
    for t in range(problem.y.shape[1]):
        single = w2_squared(problem.y[:, t], problem.yhat[:, t], problem.hoods)
        torch.testing.assert_close(values[:, t], single)


@given(problems())
def test_one_ball_is_the_global_distance_and_singletons_are_mse(problem):
    y, yhat, n = problem.y, problem.yhat, len(problem.y)
    whole = Neighborhoods.whole(n)
    wide = quiet_within(problem.x, 1e6)
    assert local_w2(problem.x, y, yhat, np.inf) == pytest.approx(pot_per_ball(y, yhat, whole)[0], rel=1e-10)
    torch.testing.assert_close(w2_squared(y, yhat, wide), w2_squared(y, yhat, whole))
    alone = w2_squared(y, yhat, Neighborhoods.singletons(n))
    torch.testing.assert_close(alone, (y - yhat).square().sum(1))


@given(problems(), st.floats(-50, 50), st.floats(0.1, 10))
def test_laws_of_the_distance(problem, shift, scale):
    y, yhat, hoods = problem.y, problem.yhat, problem.hoods
    value = w2_squared(y, yhat, hoods)
    close = {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(w2_squared(yhat, y, hoods), value, **close)
    torch.testing.assert_close(w2_squared(y + shift, yhat + shift, hoods), value, **close)
    torch.testing.assert_close(w2_squared(y * scale, yhat * scale, hoods), value * scale**2, **close)
    moved = w2_squared(y, y + shift, hoods)
    torch.testing.assert_close(moved, torch.full_like(moved, y.shape[1] * shift**2), rtol=1e-7, atol=1e-7)
    assert (value >= 0).all()
    assert (w2_squared(y, y, hoods) == 0).all()


@given(problems(max_rows=12), st.randoms())
def test_the_order_of_rows_does_not_matter(problem, random):
    order = list(range(len(problem.x)))
    random.shuffle(order)
    before, after = (
        Objective(problem.y[rows], quiet_within(problem.x[rows], 0.4))(problem.yhat[rows])
        for rows in (sorted(order), order)
    )
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_gradcheck_in_both_arguments(d):
    rng = np.random.default_rng(d)
    hoods = Neighborhoods.within(rng.uniform(size=12), 0.3)
    y, yhat = (torch.tensor(rng.normal(size=(12, d)), requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b: w2_squared(a, b, hoods), (y, yhat), fast_mode=False)
    timed = [torch.tensor(rng.normal(size=(12, 2, d)), requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda a, b: w2_squared(a, b, hoods), timed)


def test_the_gradient_is_pot_s_gradient():
    import ot

    rng = np.random.default_rng(0)
    for d in (1, 2):
        y, yhat = (
            torch.tensor(rng.normal(size=(30, d))),
            torch.tensor(rng.normal(size=(30, d)), requires_grad=True),
        )
        uniform = torch.full((30,), 1 / 30, dtype=torch.float64)
        ot.emd2(uniform, uniform, (y[:, None] - yhat[None]).square().sum(-1)).backward()
        expected, yhat.grad = yhat.grad.clone(), None
        w2_squared(y, yhat, Neighborhoods.whole(30)).sum().backward()
        torch.testing.assert_close(yhat.grad, expected, rtol=1e-10, atol=1e-12)


def test_batches_are_grouped_to_bound_memory(monkeypatch):
    rng = np.random.default_rng(0)
    hoods = Neighborhoods.within(rng.uniform(size=20), 0.3)
    for d in (1, 2):
        y, yhat = torch.tensor(rng.normal(size=(20, 5, d))), torch.tensor(rng.normal(size=(2, 20, 5, d)))
        whole = Objective(y, hoods)(yhat), w2_squared(y, yhat[0], hoods)
        monkeypatch.setattr(localw2.losses.w2, "GROUP_EDGES", 1)
        torch.testing.assert_close(Objective(y, hoods)(yhat), whole[0])
        torch.testing.assert_close(w2_squared(y, yhat[0], hoods), whole[1])
        monkeypatch.undo()


def test_second_derivatives_are_refused():
    y, yhat = (
        torch.randn(5, 1, generator=torch.Generator().manual_seed(0)),
        torch.zeros(5, 1, requires_grad=True),
    )
    for loss in (
        w2_squared(y, yhat, Neighborhoods.whole(5)).sum(),
        Objective(y, Neighborhoods.whole(5))(yhat),
    ):
        (first,) = torch.autograd.grad(loss.square(), yhat, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


@settings(max_examples=60)
@given(problems(d=st.just(1)), st.integers(1, 3), st.booleans())
def test_the_device_engine_gives_what_the_host_engine_gives(problem, draws, debiased):
    rng = np.random.default_rng(0)
    yhat = problem.yhat + torch.tensor(rng.normal(size=(draws, 1, *problem.y.shape)))
    scale = torch.tensor(rng.uniform(size=(1, problem.hoods.n_balls)))
    results = []
    for engine in (HostOrdering(problem.hoods), DeviceOrdering(problem.hoods, torch.device("cpu"))):
        problem.hoods._cache["host ordering"] = engine
        match = Target(problem.y[None], problem.hoods, with_y=True).match(yhat, debiased and draws > 1)
        results.append(match.weigh(scale, with_y=True))
    for host, device in zip(*results, strict=True):
        torch.testing.assert_close(host, device)


def test_columns_are_stacked_and_balls_cut_with_the_same_result(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=40)
    y, yhat = torch.tensor(rng.normal(size=(40, 7, 1))), torch.tensor(rng.normal(size=(40, 7, 1)))
    stacked = w2_squared(y, yhat, Neighborhoods.within(x, 0.2))
    monkeypatch.setattr(localw2.losses.sorting, "STACK_EDGES", 1)
    torch.testing.assert_close(w2_squared(y, yhat, Neighborhoods.within(x, 0.2)), stacked)
    monkeypatch.setattr(localw2.losses.sorting, "STACK_EDGES", 1000)
    monkeypatch.setattr(localw2.losses.sorting, "PIECE_EDGES", 30)
    torch.testing.assert_close(w2_squared(y, yhat, Neighborhoods.within(x, 0.2)), stacked)


@settings(max_examples=50)
@given(problems(d=st.integers(2, 4)))
def test_scipy_gives_what_lapx_gives(problem):
    lapx = w2_squared(problem.y, problem.yhat, problem.hoods)
    solver = localw2.losses.assignment._solver
    try:
        localw2.losses.assignment._solver = lambda: (
            lambda costs: np.stack([linear_sum_assignment(c)[1] for c in costs])
        )
        scipy = w2_squared(problem.y, problem.yhat, problem.hoods)
    finally:
        localw2.losses.assignment._solver = solver
    torch.testing.assert_close(lapx, scipy, rtol=1e-10, atol=1e-10)


def test_without_lapx_scipy_is_used(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lap", None)
    localw2.losses.assignment._solver.cache_clear()
    try:
        assert localw2.losses.assignment._solver()(np.array([[[1.0, 0.0], [0.0, 1.0]]])).tolist() == [[1, 0]]
    finally:
        localw2.losses.assignment._solver.cache_clear()


def test_far_from_the_origin_no_digit_is_lost():
    rng = np.random.default_rng(0)
    for d in (1, 3):
        y, yhat = (torch.tensor(rng.normal(size=(50, d))) for _ in range(2))
        near = w2_squared(y, yhat, Neighborhoods.whole(50))
        far = w2_squared(y + 1e6, yhat + 1e6, Neighborhoods.whole(50))
        torch.testing.assert_close(far, near, rtol=1e-8, atol=0)


def test_large_float32_balls_keep_their_digits():
    rng = np.random.default_rng(0)
    y, yhat = rng.normal(size=(2, 200_000, 1))
    exact = ((np.sort(y, 0) - np.sort(yhat, 0)) ** 2).mean()
    value = w2_squared(torch.tensor(y).float(), torch.tensor(yhat).float(), Neighborhoods.whole(200_000))
    assert float(value) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    ("y", "yhat", "message"),
    [
        (torch.zeros(3, 1), torch.zeros(4, 1), "both must be"),
        (torch.zeros(3), torch.zeros(3), "both must be"),
        (torch.zeros(4, 1), torch.zeros(4, 1), "4 rows.*3"),
        (torch.zeros(3, 1), torch.zeros(3, 1).double(), "convert one"),
        (torch.full((3, 1), torch.nan), torch.zeros(3, 1), "y has 3 NaN"),
        (torch.zeros(3, 1), torch.full((3, 1), torch.inf), "yhat has 3 NaN"),
        (torch.zeros(3, 1).half(), torch.zeros(3, 1).half(), "float16"),
        (torch.zeros(0, 1), torch.zeros(0, 1), "empty"),
        (np.zeros((3, 1)), torch.zeros(3, 1), "y is ndarray"),
        (1e200 * torch.eye(3, 2).double(), torch.zeros(3, 2).double(), "1e150"),
    ],
)
def test_bad_outputs_say_what_is_wrong(y, yhat, message):
    with pytest.raises(ValueError, match=message):
        w2_squared(y, yhat, Neighborhoods.whole(3))


def test_debiased_for_several_outputs_equals_its_definition():
    rng = np.random.default_rng(0)
    for d in (1, 2):
        hoods = Neighborhoods.within(rng.uniform(size=20), 0.3, min_size=2)
        y, draws = torch.tensor(rng.normal(size=(20, d))), torch.tensor(rng.normal(size=(4, 20, d)))
        toward = torch.stack([w2_squared(y, draw, hoods) for draw in draws]).mean(0)
        pairs = [w2_squared(draws[r], draws[s], hoods) for r in range(4) for s in range(r)]
        expected = ((toward - torch.stack(pairs).mean(0) / 2) * hoods.weights).sum() / hoods.weights.sum()
        torch.testing.assert_close(Objective(y, hoods, SquaredW2(debiased=True))(draws), expected)
