"""Several processes that train one model: the same gradient, the same fit, and a clear end when one dies."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from scipy import stats

from localw2 import FitConfig, Neighborhoods, Objective, RandomLinear, RandomMLP, train
from localw2.training.distributed import Crew, KeyedNoise, philox

JOB = Path(__file__).with_name("distributed_job.py")
CASES = (
    "whole",
    "batches",
    "merged",
    "within",
    "lazy",
    "few",
    "sliced",
    "anchored",
    "linear",
    "own",
    "dynamics",
)


def environment():
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return clean | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def command(ranks, *arguments):
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    return [sys.executable, *start, str(JOB), *map(str, arguments)]


def run(ranks, out, *names):
    """What every rank of a job found; without ranks, one plain process."""
    done = subprocess.run(
        command(ranks, out, *names), env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [dict(np.load(f"{out}.{rank}.npz")) for rank in range(max(1, ranks))]


# --- noise that belongs to a row ---


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0,) * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, answer):
    """The known-answer vectors of Random123 for philox4x32 with 10 rounds."""
    words = philox(tuple(torch.tensor([word]) for word in counter), key)
    assert " ".join(f"{int(word):08x}" for word in words) == answer


def noise(rows, n_draws=1, seed=(0,), width=6, calls=1, dtype=torch.float64):
    source = KeyedNoise(seed, torch.as_tensor(rows), n_draws)
    found = [source.normal((n_draws * len(rows), width), torch.zeros((), dtype=dtype)) for _ in range(calls)]
    return found[-1].reshape(n_draws, len(rows), width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keyed_noise_is_standard_normal(dtype):
    """Kolmogorov-Smirnov on 240 000 numbers, and moments within 5 standard errors: a false alarm in 10^5."""
    values = noise(range(5000), 8, dtype=dtype).double().numpy().ravel()
    assert stats.kstest(values, "norm").pvalue > 1e-5
    n = len(values)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((values**power).mean() - expected) < 5 * np.sqrt(variance / n)


def test_keyed_noise_is_independent_between_rows_draws_places_steps_and_calls():
    """Correlations of values and of squares between neighbours of every kind: below 5 standard errors."""
    rows = np.arange(4000)
    first = noise(rows, 4)
    pairs = {
        "rows": (first[:, :-1], first[:, 1:]),
        "draws": (first[:-1], first[1:]),
        "places": (first[..., :-1], first[..., 1:]),
        "steps": (first, noise(rows, 4, seed=(1,))),
        "calls": (first, noise(rows, 4, calls=2)),
        "far rows": (first, noise(rows + 2**31, 4)),
    }
    for kind, (a, b) in pairs.items():
        for power in (1, 2):
            r = np.corrcoef((a**power).flatten(), (b**power).flatten())[0, 1]
            assert abs(r) < 5 / np.sqrt(a.numel()), kind


def test_a_row_has_the_same_noise_in_any_company():
    whole = noise(range(100), 3)
    some = torch.tensor([97, 3, 50])
    assert torch.equal(noise(some, 3), whole[:, some])
    assert torch.equal(noise(some, 2), whole[:2, some])
    assert torch.equal(noise(some, 3, width=4), whole[:, some, :4])


def test_noise_of_other_units_than_rows_is_refused():
    with pytest.raises(TypeError, match="keyed"):
        KeyedNoise((0,), torch.arange(3), 2).normal((5, 1), torch.zeros(()))


def test_a_keyed_fit_does_not_depend_on_how_rows_are_cut():
    """The loss of two halves of the balls, weighted, is the loss of all, draw by draw."""
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    objective = Objective(x.square(), Neighborhoods.nearest(x, 7))
    model = RandomMLP(1, 1, 5, generator=torch.Generator().manual_seed(0)).double()

    def loss(balls):
        rows, part = objective.block(balls)
        yhat = model.simulate(x[rows], 2, KeyedNoise((4, 2), rows, 2))
        return part(yhat), float(part.hoods.weights.sum())

    n = objective.hoods.n_balls
    (a, wa), (b, wb), (c, wc) = loss(range(n // 3)), loss(range(n // 3, n)), loss(range(n))
    torch.testing.assert_close((wa * a + wb * b) / (wa + wb), c, rtol=1e-12, atol=0)
    assert wa + wb == wc


def test_a_model_that_draws_by_itself_is_told_of():
    class Own(RandomLinear.__base__):
        def __init__(self):
            super().__init__()
            self.spread = torch.nn.Parameter(torch.ones(()))

        def draw(self, n, generator=None):
            return torch.randn(n, 1, generator=generator)

        def forward(self, x, omega=None, generator=None):
            return self.spread * self.draw(len(x), generator)

    x = torch.linspace(0, 1, 20)[:, None]
    objective = Objective(x, Neighborhoods.nearest(x, 5))
    with pytest.warns(UserWarning, match="keyed"):
        train(Own(), objective, x, FitConfig(max_epochs=1, noise="keyed"))


def test_alone_there_is_no_job(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    crew = Crew.join()
    assert (crew.rank, crew.size, crew.together) == (0, 1, False)
    assert crew.broadcast("x") == "x"
    assert crew.any(True)
    assert not crew.any(False)


def test_a_worker_of_joblib_is_no_rank(monkeypatch):
    """It inherits the environment of one; joining would wait for ever."""
    for name, value in (
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)
    (crew,) = Parallel(n_jobs=2)([delayed(Crew.join)()])
    assert crew == Crew()


# --- several processes ---


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(0, tmp_path_factory.mktemp("alone") / "out", *CASES)[0]


@pytest.mark.posix
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_give_the_gradient_and_the_model_of_one_process(ranks, alone, tmp_path):
    """Gradients to 1e-6 (they agree to about 1e-14), weights after 20 epochs (an ODE: 4) to 1e-6."""
    found = run(ranks, tmp_path / "out", *CASES, "regression")
    for name, expected in alone.items():
        for rank in found:
            scale = np.abs(expected).max()
            assert np.abs(rank[name] - expected).max() <= 1e-6 * scale, name
    for other in found[1:]:
        for name, value in found[0].items():  # the ranks have one model, to the last bit
            assert np.array_equal(other[name], value), name


def start(ranks, tmp_path, epochs=40, pause=0.25, out="out"):
    arguments = (tmp_path / out, "long", tmp_path / "checkpoint", epochs, pause)
    return subprocess.Popen(
        command(ranks, *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (2, 0)])
def test_a_rank_that_is_killed_ends_the_job_which_resumes_with_others(before, after, tmp_path):
    job = start(before, tmp_path)
    for line in job.stdout:
        found = re.match(r"epoch (\d+) pid (\d+) rank (\d+)", line)
        if found and int(found[1]) >= 6 and int(found[3]) == before - 1:
            os.kill(int(found[2]), signal.SIGKILL)
            break
    begin = time.monotonic()
    _, errors = job.communicate(timeout=60)
    assert time.monotonic() - begin < 30
    assert job.returncode != 0
    assert re.search(r"rank \d of \d (lost contact|was terminated)", errors), errors[-2000:]
    assert "any number of ranks" in errors

    done = start(after, tmp_path, pause=0.0)
    output, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors[-2000:]
    epochs = [int(e) for e in re.findall(r"epoch (\d+) ", output)]
    assert min(epochs) >= 5  # it went on, and did not start over
    resumed = dict(np.load(f"{tmp_path / 'out'}.0.npz"))

    (tmp_path / "checkpoint").unlink()
    whole = start(0, tmp_path, pause=0.0, out="whole")
    whole.communicate(timeout=120)
    assert whole.returncode == 0
    for name, value in dict(np.load(f"{tmp_path / 'whole'}.0.npz")).items():
        assert np.abs(resumed[name] - value).max() <= 1e-6 * np.abs(value).max(), name
