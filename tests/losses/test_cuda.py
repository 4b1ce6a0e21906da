"""On a CUDA device: kernels against scipy and the CPU, recorded steps against plain ones."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from localw2 import (
    MMD,
    MSE,
    EnergyScore,
    FitConfig,
    LocalW2Regressor,
    MeanVar,
    Nearest,
    Neighborhoods,
    Network,
    Objective,
    Sinkhorn,
    SlicedW2,
    SquaredW2,
    train,
    w2_squared,
)
from localw2.losses.cuda.assignment import can_assign, solve_on_device
from localw2.losses.cuda.sorting import can_sort
from localw2.models.base import RandomMap
from localw2.models.network import RandomMLP
from localw2.models.noise_network import NoiseMLP
from localw2.training import cuda_graph as captured
from localw2.training.many import train_many

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

LOSSES = [SquaredW2(), SquaredW2(True), SlicedW2(8, True), MMD(), MSE(), MeanVar(), EnergyScore()]
LOSSES += [Sinkhorn(tolerance=1e-11)]  # which has the digits that are compared


def normal(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def value_and_gradient(objective, yhat):
    yhat = yhat.detach().requires_grad_()
    loss = objective(yhat)
    return loss.detach().cpu(), torch.autograd.grad(loss, yhat)[0].cpu()


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 100, 128, 129, 300, 700, 2048])
def test_assignments_are_optimal(n):
    rng = np.random.default_rng(n)
    points = rng.normal(size=(2, n, 3))
    costs = np.stack(
        [
            rng.uniform(size=(n, n)),
            np.square(points[0][:, None] - points[1][None]).sum(2),
            rng.integers(0, 4, size=(n, n)).astype(float),
        ]
    )
    sizes = torch.full((3,), n, dtype=torch.int32, device="cuda")
    for cost, columns in zip(costs, solve_on_device(torch.tensor(costs).cuda(), sizes).cpu(), strict=True):
        assert sorted(columns.tolist()) == list(range(n))
        least = cost[linear_sum_assignment(cost)].sum()
        assert cost[np.arange(n), columns.numpy()].sum() == pytest.approx(least, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("shape", [(300,), (300, 2), (300, 3, 1), (300, 3, 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_and_gradients_are_those_of_the_cpu(loss, shape, weighted):
    hoods = Neighborhoods.within(np.random.default_rng(0).uniform(size=300), 0.05, min_size=2)
    hoods = hoods.weigh(np.random.default_rng(2).exponential(size=300) + 0.1) if weighted else hoods
    y, yhat = normal(*shape), normal(2, *shape, seed=1)
    ours = value_and_gradient(Objective(y.cuda(), hoods, loss), yhat.cuda())
    theirs = value_and_gradient(Objective(y, hoods, loss), yhat)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert can_sort(hoods, yhat[:, None, :, None].cuda())
    assert can_assign(hoods, torch.device("cuda", 0))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("hoods", [Neighborhoods.nearest(np.arange(300.0), 20), Neighborhoods.whole(300)])
def test_values_have_gradients_in_both_arguments(d, hoods):
    found = []
    for device in ("cpu", "cuda"):
        y, yhat = (normal(300, d, seed=s).to(device).requires_grad_() for s in (0, 1))
        w2_squared(y, yhat, hoods).square().sum().backward()
        found.append((y.grad.cpu(), yhat.grad.cpu()))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("d", [1, 2])
def test_a_ball_too_large_for_a_kernel_is_right_all_the_same(d):
    n = 2100 if d == 2 else 13000
    hoods, y, yhat = Neighborhoods.whole(n), normal(n, d), normal(n, d, seed=1)
    ours = value_and_gradient(Objective(y.cuda(), hoods), yhat.cuda())
    theirs = value_and_gradient(Objective(y, hoods), yhat)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


# --- training ---


def problem(device="cuda", d=1, n=200):
    x = torch.tensor(np.random.default_rng(0).uniform(size=(n, 1)))
    y = 1 + 2 * x + 0.3 * normal(n, d, seed=1)
    return x.to(device), Objective(y.to(device), Neighborhoods.nearest(x, 15), SquaredW2(debiased=True))


def network(d=1):
    return RandomMLP(1, d, width=8, generator=torch.Generator().manual_seed(3)).double().cuda()


def assert_alike(ours, theirs, tolerance=1e-4):
    """Weights and losses agree but for rounding, which training lets grow."""
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("config", [FitConfig(80), FitConfig(80, keep="average", max_gradient=0.1)])
def test_a_recorded_fit_is_the_plain_one(monkeypatch, d, config):
    x, objective = problem(d=d)
    replays, replay = [], captured.CapturedStep._replay
    monkeypatch.setattr(captured.CapturedStep, "_replay", lambda self: replays.append(1) or replay(self))
    recorded = train(network(d), objective, x, config)
    assert len(replays) == 2  # after one plain step, a run of 64 epochs and a shorter one
    monkeypatch.setattr(captured, "find_obstacle", lambda *_: "not now")
    assert_alike(recorded, train(network(d), objective, x, config), tolerance=1e-3)
    assert len(replays) == 2


class GivenNoise(RandomMap):
    """Noise that is the same on every device, in every epoch."""

    capturable = True

    def __init__(self):
        super().__init__()
        self.register_buffer("noise", normal(400, 1, seed=2))
        self.weight = nn.Parameter(torch.tensor([0.5, 0.1], dtype=torch.float64))

    def draw(self, n, generator=None):
        return self.noise[:n]

    def forward(self, x, omega=None, generator=None):
        return x * self.weight[0] + self.draw(len(x)) * self.weight[1]


def test_a_fit_is_that_of_the_cpu_given_the_same_noise():
    fits = []
    for device in ("cpu", "cuda"):
        x, objective = problem(device)
        fits.append(train(GivenNoise().to(device), objective, x, FitConfig(200)))
    assert_alike(*fits, tolerance=1e-6)  # a recorded learning rate is a float32


def test_recorded_steps_of_a_network_of_noise_are_single_ones(monkeypatch):
    x, objective = problem()
    fits = []
    for obstacle in (captured.find_obstacle, lambda *_: "not recorded"):
        monkeypatch.setattr(captured, "find_obstacle", obstacle)
        net = NoiseMLP(1, width=8, generator=torch.Generator().manual_seed(3)).double().cuda()
        fits.append(train(net, objective, x, FitConfig(60, schedule="one-cycle")))
    assert_alike(*fits)


class Waiting(GivenNoise):
    """Asks the host in every step."""

    def forward(self, x, omega=None, generator=None):
        return super().forward(x) * (1.0 if float(x.sum()) > -1 else 2.0)


def test_a_step_that_waits_for_the_host_is_not_recorded(caplog):
    caplog.set_level("INFO", "localw2")
    x, objective = problem()
    assert_alike(
        train(Waiting().cuda(), objective, x, FitConfig(50)),
        train(GivenNoise().cuda(), objective, x, FitConfig(50)),
    )
    assert "single steps" in caplog.text
    assert torch.rand(3, device="cuda").sum() > 0  # the device is as good as before
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")
def test_a_recording_that_breaks_leaves_plain_steps(caplog):
    """A loss that is still alive ties the parameters to the stream it was computed on."""
    caplog.set_level("INFO", "localw2")
    x, objective = problem()
    model = network()
    alive = objective(model.simulate(x, 2, torch.Generator("cuda").manual_seed(0)))
    assert_alike(train(model, objective, x, FitConfig(50)), train(network(), objective, x, FitConfig(50)))
    assert "single steps" in caplog.text
    assert alive.isfinite()
    assert torch.rand(3, device="cuda").sum() > 0  # the device is as good as before


def test_a_fit_that_diverges_says_so():
    x, objective = problem()
    with pytest.raises(FloatingPointError, match="failed"):
        train(model := network(), objective, x, FitConfig(100, learning_rate=1e200, schedule="constant"))
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_resumed_fit_goes_on(tmp_path):
    x, objective = problem()
    config = FitConfig(100, checkpoint=str(tmp_path / "c"), checkpoint_every=30, resume=True)
    with pytest.raises(ZeroDivisionError):
        train(network(), objective, x, config, callbacks=(lambda e: e["epoch"] == 70 and 1 / 0,))
    assert_alike(train(network(), objective, x, config), train(network(), objective, x, FitConfig(100)))


def test_models_trained_at_once_are_those_trained_alone():
    x, objective = problem()
    other = Objective(objective.y + 1, Neighborhoods.nearest(x.cpu(), 30), SquaredW2(debiased=True))
    goals = [objective, other, objective, Objective(objective.y * 2, objective.hoods, SquaredW2(True))]
    many = train_many([network() for _ in goals], goals, x, FitConfig(100))
    for v, (fit, goal) in enumerate(zip(many, goals, strict=True)):
        assert_alike(fit, train(network(), goal, x, FitConfig(100, seed=v)))


def test_the_estimator_takes_the_gpu_by_itself():
    x, y = normal(200, 2).numpy(), normal(200, seed=1).numpy()
    law = Network(epochs=20)
    fits = [LocalW2Regressor(law, base=None, random_state=0, device=d) for d in ("auto", "cuda")]
    predictions = [fit.fit(x, y).predict(x) for fit in fits]
    np.testing.assert_allclose(*predictions, rtol=1e-3, atol=1e-3)


def test_balls_are_chosen_by_training_on_the_gpu():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 1))
    y = np.where(x[:, 0] > 0, 2.0, 0.1) * rng.normal(size=400)
    settings = {"law": Network(epochs=150), "random_state": 0}
    deltas = [Nearest(400), Nearest(40), 0.1]
    found = [LocalW2Regressor(delta=deltas, device=d, **settings).fit(x, y) for d in ("cuda", "cpu")]
    for model in found:
        wide, *others = model.selection_.candidates
        assert model.delta_ != Nearest(400)
        assert wide.behind > 2 * wide.behind_se > 0
        assert min(c.behind for c in others) == 0
    # Other random numbers, the same problem: scores differ by chance alone where balls can tell.
    scores = [[c.score for c in model.selection_.candidates[1:]] for model in found]
    np.testing.assert_allclose(*scores, rtol=0.05)


NCCL = """
from dataclasses import replace
import torch, torch.distributed as dist
from localw2.training.distributed import Crew
from localw2.models.linear import RandomLinear
crew = Crew.join()
assert dist.get_backend() in ("nccl", "cuda:nccl,cpu:gloo", "cpu:gloo,cuda:nccl"), dist.get_backend()
several = replace(crew, size=2)  # messages are sent as if there were two; the sum of one rank is its own
model = RandomLinear(2).cuda()
several.share_state(model)
assert several.broadcast({"seed": 5}) == {"seed": 5}
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
assert several.add_up(list(model.parameters()), 3.0, 0.5, False) == (1.5, False)
assert all((parameter.grad == 0.5).all() for parameter in model.parameters())
flags = [None]
dist.all_gather_object(flags, True)
assert flags == [True]
print("nccl spoke")
"""


def test_messages_go_through_nccl(tmp_path):
    """One GPU can be one rank only: the messages of a step, sent and received by the same process."""
    script = tmp_path / "job.py"
    script.write_text(NCCL)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(script)]
    done = subprocess.run(start, capture_output=True, text=True, timeout=120)
    assert "nccl spoke" in done.stdout, done.stderr[-3000:]
