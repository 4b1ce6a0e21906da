"""What runs on a GPU, tested without one: the kernels compiled for the host, their Python on the CPU."""

import ctypes
import shutil
import subprocess
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

import localw2
from localw2 import FitConfig, Neighborhoods, Objective, SquaredW2, train
from localw2.losses.cuda import assignment as gpu_assignment
from localw2.losses.cuda import sorting as gpu_sorting
from localw2.losses.cuda.assignment import DeviceAssigned, solve_on_device
from localw2.losses.cuda.kernels import available
from localw2.losses.cuda.sorting import DeviceBalls, DeviceSorted
from localw2.losses.w2 import AssignedMatch, SortedMatch, Target
from localw2.models.base import RandomMap
from localw2.models.network import RandomMLP
from localw2.models.noise_network import NoiseMLP
from localw2.training import cuda_graph as captured

# What CUDA's words mean for a block of one thread, which then holds all columns itself.
ON_HOST = r"""
#include <algorithm>
#include <cstring>
#define __device__
#define __global__
#define __shared__
#define SLOTS 320
struct Index { int x, y; };
static Index threadIdx{0, 0}, blockDim{1, 1}, blockIdx, gridDim;
static void __syncthreads() {}
static void __syncwarp() {}
static unsigned __reduce_min_sync(unsigned, unsigned value) { return value; }
template <class T> T __shfl_xor_sync(unsigned, T, int) { return 0; }
template <class T> void atomicAdd(T *at, T value) { *at += value; }
static int atomicMax(int *at, int value) { int old = *at; *at = std::max(old, value); return old; }
static long long __double_as_longlong(double v) { long long b; std::memcpy(&b, &v, 8); return b; }
static double __longlong_as_double(long long b) { double v; std::memcpy(&v, &b, 8); return v; }
extern "C" void place(int x, int y, int columns, int rows) { blockIdx = {x, y}; gridDim = {columns, rows}; }
double shared[1 << 14];
int items[1 << 14];
"""


class HostKernel:
    """A kernel that was compiled for the host, launched as the real one is, one block after the other."""

    def __init__(self, library, name):
        self.place, self.function = library.place, getattr(library, name)

    def __call__(self, grid, threads, shared, *arguments):
        assert 0 < threads <= 1024
        assert shared <= 48 * 1024
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a)
            for a in arguments
        ]
        for x in range(grid[0]):
            for y in range(grid[1]):
                self.place(x, y, *grid)
                self.function(*values)


@pytest.fixture(scope="module")
def compile_for_host(tmp_path_factory):
    compiler, made = shutil.which("g++") or shutil.which("clang++"), {}
    if compiler is None:
        pytest.skip("no C++ compiler here")

    def kernel(file, name, device=None, defines=()):
        if (file, defines) not in made:
            folder = tmp_path_factory.mktemp("kernel")
            with open(f"{localw2.__path__[0]}/losses/cuda/{file}", encoding="utf-8") as source:
                (folder / "kernel.cpp").write_text(ON_HOST + source.read())
            command = [compiler, "-O2", "-shared", "-fPIC", "-w", *(f"-D{define}" for define in defines)]
            subprocess.run([*command, "-o", folder / "kernel.so", folder / "kernel.cpp"], check=True)
            made[file, defines] = HostKernel(ctypes.CDLL(str(folder / "kernel.so")), name)
        return made[file, defines]

    return kernel


@pytest.fixture
def on_host(compile_for_host, monkeypatch):
    """The Python around the kernels, on the CPU."""
    for module in (gpu_assignment, gpu_sorting):
        monkeypatch.setattr(module, "kernel", compile_for_host)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())


# --- assignment ---


def kinds_of_costs(n, rng):
    """Problems that solvers stumble over: random, geometric, tied, degenerate, badly scaled."""
    points = rng.normal(size=(2, n, 3))
    squares = np.square(points[0][:, None] - points[1][None]).sum(2)
    return {
        "uniform": rng.uniform(size=(n, n)),
        "negative": -rng.exponential(size=(n, n)),
        "geometric": squares,
        "far away": squares + 1e6,
        "nearly paired": np.square(points[0][:, None] - (points[0] + 1e-6 * points[1])[None]).sum(2),
        "tied": rng.integers(0, 3, size=(n, n)).astype(float),
        "equal": np.full((n, n), 0.7),
        "zero": np.zeros((n, n)),
        "rank one": np.multiply.outer(np.arange(1.0, n + 1), np.arange(1.0, n + 1)),
        "copies": np.repeat(rng.uniform(size=(n, -(-n // 4))), 4, axis=1)[:, :n],
        "wide scales": 10.0 ** rng.uniform(-12, 12, size=(n, n)),
    }


def solved(costs, sizes):
    arrays = (torch.tensor(costs, dtype=torch.float64), torch.tensor(sizes, dtype=torch.int32))
    return solve_on_device(*arrays).numpy()


def assert_optimal(costs, columns, kind):
    n = len(costs)
    assert sorted(columns[:n]) == list(range(n)), kind
    total, least = costs[np.arange(n), columns[:n]].sum(), costs[linear_sum_assignment(costs)].sum()
    # Prices are rounded at the size of the largest entry: that is what a total can be off by.
    assert total <= least + 1e-9 * abs(least) + 1e-15 * n * abs(costs).max(), kind


@pytest.mark.parametrize("n", [1, 2, 3, 5, 17, 31, 32, 33, 64, 100, 129, 200, 300])
def test_the_kernel_solves_assignments_exactly(on_host, n):
    kinds = kinds_of_costs(n, np.random.default_rng(n))
    found = solved(np.stack(list(kinds.values())), [n] * len(kinds))
    for (kind, costs), columns in zip(kinds.items(), found, strict=True):
        assert_optimal(costs, columns, kind)


def test_only_the_first_rows_and_columns_of_a_problem_count(on_host):
    rng = np.random.default_rng(0)
    costs, sizes = rng.uniform(size=(40, 12, 12)), rng.integers(1, 13, size=40)
    for cost, columns, n in zip(costs, solved(costs, sizes), sizes, strict=True):
        assert_optimal(cost[:n, :n], columns, "part")
        assert columns[n:].tolist() == list(range(n, 12))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_costs_that_are_not_finite_still_give_a_pairing(on_host, bad):
    costs = np.random.default_rng(0).uniform(size=(3, 20, 20))
    costs[0, 3, 4] = costs[1, 5] = costs[2] = bad
    for columns in solved(costs, [20] * 3):
        assert sorted(columns) == list(range(20))


def sample(shape, seed=0, dtype=torch.float64):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape)).to(dtype)


def uneven_balls(n=60, seed=0):
    return Neighborhoods.within(np.random.default_rng(seed).uniform(size=n) ** 2, 0.1, min_size=2)


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("memory", [1 << 26, 1 << 10])  # all balls at once, and a few at a time
def test_pairs_on_a_device_weigh_as_those_of_the_host(on_host, monkeypatch, debiased, memory):
    monkeypatch.setattr(gpu_assignment, "COST_ELEMENTS", memory)
    hoods, y, yhat = uneven_balls(), sample((3, 60, 2)), sample((2, 3, 60, 2), 1)
    scale = torch.rand(3, hoods.n_balls, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = DeviceAssigned(y, yhat, hoods, debiased).weigh(scale, with_y=True)
    theirs = AssignedMatch(Target(y, hoods, with_y=True), yhat, debiased).weigh(scale, with_y=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert DeviceAssigned(y, yhat, hoods, debiased).weigh(scale)[2] is None


# --- sorting ---


def test_values_are_sorted_inside_every_ball():
    hoods, values = uneven_balls(), sample((3, 60)).round(decimals=1)
    found = DeviceBalls.of(hoods, torch.device("cpu")).sort(values)
    for b in range(hoods.n_balls):
        part = slice(int(hoods.indptr[b]), int(hoods.indptr[b + 1]))
        assert torch.equal(found[:, part], values[:, hoods.ball(b)].sort(1).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("draws", "debiased"), [(1, False), (3, False), (2, True), (3, True)])
def test_sorts_on_a_device_weigh_as_those_of_the_host(on_host, dtype, draws, debiased):
    hoods = uneven_balls(150)
    balls = DeviceBalls.of(hoods, torch.device("cpu"))
    assert len(balls.by_width) > 1  # or one launch would do
    # Rounded, so that there are ties.
    y, yhat = sample((2, 150, 1), 0, dtype).round(decimals=1), sample((draws, 2, 150, 1), 1, dtype)
    yhat = yhat.round(decimals=1)
    scale = torch.rand(2, hoods.n_balls, generator=torch.Generator().manual_seed(0)).to(dtype)
    ours = DeviceSorted(balls, balls.sort(y[..., 0]), yhat, debiased).weigh(scale)
    theirs = SortedMatch(Target(y, hoods), yhat, debiased).weigh(scale)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_without_a_gpu_there_are_no_kernels(caplog):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert not available("ball_sorting.cu", "match_balls", torch.device("cuda"), ("REAL=float",))
    assert "slower" in caplog.text
    assert not gpu_assignment.can_assign(uneven_balls(), torch.device("cpu"))
    assert not gpu_sorting.can_sort(uneven_balls(), sample((1, 1, 60, 1)))


def test_balls_too_large_for_the_kernels_go_other_ways():
    hoods = Neighborhoods.whole(5000)
    assert not gpu_assignment.can_assign(hoods, torch.device("cuda"))
    assert not gpu_sorting.can_sort(hoods, torch.zeros(2, 1, 5000, 1, device="meta"))


# --- recorded steps ---


def problem(n=80):
    x = torch.tensor(np.random.default_rng(0).uniform(size=(n, 1)))
    y = 1 + 2 * x + 0.3 * sample((n, 1), 1)
    return x, Objective(y, Neighborhoods.nearest(x, 10), SquaredW2(debiased=True))


def network():
    return RandomMLP(1, width=8, generator=torch.Generator().manual_seed(3)).double()


def score(model, generator):
    """A noisy held-out score."""
    x, objective = problem(30)
    return float((model.sample(x, 4, generator).mean(0) - objective.y).square().mean())


@pytest.fixture
def leaping(monkeypatch):
    """Let runs of epochs happen on the CPU, call by call."""
    monkeypatch.setattr(captured, "find_obstacle", lambda model, x: "")


def assert_alike(ours, theirs, tolerance=1e-5):
    """Two fits agree but for rounding (a recorded learning rate is a float32)."""
    close = {"rtol": tolerance, "atol": tolerance}
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, **close)
    np.testing.assert_allclose(ours.losses, theirs.losses, **close)
    assert [e["epoch"] for e in ours.history] == [e["epoch"] for e in theirs.history]
    assert [e["rate"] for e in ours.history] == [e["rate"] for e in theirs.history]
    scores = [[e.get("score", np.nan) for e in fit.history] for fit in (ours, theirs)]
    np.testing.assert_allclose(*scores, **close)
    assert ours.best_epoch == theirs.best_epoch
    assert ours.stopped == theirs.stopped


CONFIGS = {
    "plain": FitConfig(max_epochs=150),
    "average": FitConfig(max_epochs=100, keep="average", schedule="constant"),
    "best": FitConfig(max_epochs=70, keep="best", validate_every=7),
    "patience": FitConfig(max_epochs=300, keep="best", validate_every=5, patience=3),
    "bounded": FitConfig(max_epochs=90, max_gradient=0.1, max_skipped=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_runs_of_epochs_are_those_epochs_one_by_one(monkeypatch, name):
    (x, objective), config = problem(), CONFIGS[name]
    validate = score if config.keep == "best" else None
    plain = train(network(), objective, x, config, validate)
    monkeypatch.setattr(captured, "find_obstacle", lambda model, x: "")
    runs, repeat = [], captured.CapturedStep.repeat
    monkeypatch.setattr(captured.CapturedStep, "repeat", lambda *a: runs.append(repeat(*a)) or runs[-1])
    assert_alike(train(network(), objective, x, config, validate), plain)
    assert 1 + sum(map(len, runs)) == len(plain.history)  # the first epoch is a plain step
    assert len(runs) < len(plain.history) / 3


def test_a_checkpoint_of_runs_resumes(leaping, tmp_path):
    x, objective = problem()
    config = FitConfig(max_epochs=60, checkpoint=str(tmp_path / "c"), checkpoint_every=20, resume=True)

    class Killed(Exception):
        pass

    def kill(entry):
        if entry["epoch"] == 47:
            raise Killed

    with pytest.raises(Killed):
        train(network(), objective, x, config, callbacks=(kill,))
    resumed = train(network(), objective, x, config)
    assert_alike(resumed, train(network(), objective, x, FitConfig(max_epochs=60)))


def test_a_callback_sees_every_epoch_and_stops_at_once(leaping):
    (x, objective), seen = problem(), []
    fit = train(network(), objective, x, callbacks=(lambda e: seen.append(e["epoch"]) or e["epoch"] == 13,))
    assert seen == list(range(1, 14))
    assert len(fit.history) == 13


class Faulty(RandomMap):
    """Does something bad at some of its calls."""

    def __init__(self, bad, what):
        super().__init__()
        self.bad, self.what, self.calls = bad, what, 0
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def draw(self, n, generator=None):
        return torch.randn(n, 1, generator=generator, dtype=torch.float64, device=self.weight.device)

    def forward(self, x, omega=None, generator=None):
        self.calls += 1
        if self.calls in self.bad:
            if self.what is KeyboardInterrupt:
                raise KeyboardInterrupt
            return x * self.weight + self.what
        return x * self.weight + self.draw(len(x), generator)


def test_a_run_with_a_failed_step_is_undone_and_taken_one_by_one(leaping):
    x, objective = problem()
    config = FitConfig(max_epochs=100, max_skipped=1)
    # Epoch 40 fails in a run (call 40) and again one by one, where it is call 41 + 38.
    fit = train(Faulty({40, 79}, float("nan")), objective, x, config)
    assert [e["epoch"] for e in fit.history if "skipped" in e] == [40]
    assert [e["epoch"] for e in fit.history] == list(range(1, 101))
    with pytest.raises(FloatingPointError, match="epoch 40"):
        train(Faulty({40, 79}, float("nan")), objective, x, replace(config, max_skipped=0))


def test_runs_that_keep_failing_end_in_plain_steps(leaping, caplog):
    caplog.set_level("INFO", "localw2")
    x, objective = problem()
    fit = train(Faulty(set(range(3, 10**6, 4)), float("nan")), objective, x, FitConfig(300, max_skipped=1))
    assert len(fit.history) == 300
    assert "repeatedly" in caplog.text


def test_ctrl_c_in_a_run_undoes_the_run(leaping):
    x, objective = problem()
    with pytest.warns(UserWarning, match="epoch 65 of 100"):
        fit = train(Faulty({80}, KeyboardInterrupt), objective, x, FitConfig(100))
    assert len(fit.history) == 65  # one plain step and a run
    shorter = train(
        Faulty(set(), None), objective, x, FitConfig(100), callbacks=(lambda e: e["epoch"] == 65,)
    )
    torch.testing.assert_close(fit.model.weight, shorter.model.weight)


def test_why_steps_are_not_recorded(caplog):
    caplog.set_level("INFO", "localw2")
    x, objective = problem()
    train(network(), objective, x, FitConfig(2))
    assert "the rows are on cpu" in caplog.text
    on_gpu = type("OnGpu", (), {"device": torch.device("cuda")})()
    assert captured.find_obstacle(network(), on_gpu) == captured.find_obstacle(NoiseMLP(1), on_gpu) == ""
    assert "Faulty" in captured.find_obstacle(Faulty(set(), None), on_gpu)
    sure = Faulty(set(), None)
    sure.capturable = True
    assert captured.find_obstacle(sure, on_gpu) == ""
