"""Fits that are the same however many processes make them: run alone, or by torchrun, and then compared.

    python tests/distributed_job.py OUT CASE ...
    torchrun --nproc-per-node 2 tests/distributed_job.py OUT CASE ...

The first process writes the gradient of the last step and the final weights of each case into OUT.
"""

import os
import sys
import time
import warnings

import numpy as np
import torch

from localw2 import (
    FitConfig,
    LazyNeighborhoods,
    LocalW2ODE,
    LocalW2Regressor,
    Neighborhoods,
    Network,
    Objective,
    RandomLinear,
    RandomMLP,
    SlicedW2,
    SquaredW2,
    train,
)
from localw2.datasets import FourStates
from localw2.estimators.regression.loss import Anchored
from localw2.models.base import RandomMap

N = 120


def rows(d=1, copies=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2))
    if copies:  # a third of the rows share their x with others: merged balls with weights
        x[: N // 3] = x[N // 3 : N // 3 + 5].repeat(8, 0)
    y = x[:, :1] + (0.5 + np.abs(x[:, 1:])) * rng.normal(size=(N, d))
    return torch.tensor(x), torch.tensor(y)


def network(d=1, width=8):
    return RandomMLP(2, d, width, 2, initial_std=None, generator=torch.Generator().manual_seed(1)).double()


class Own(RandomMap):
    """A user's model, which takes its noise from a generator by itself."""

    def __init__(self):
        super().__init__()
        self.spread = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def draw(self, n, generator=None):
        return torch.randn(n, 1, generator=generator, dtype=torch.float64)

    def forward(self, x, omega=None, generator=None):
        return self.spread * (self.draw(len(x), generator) if omega is None else omega) + x[:, :1]


def case(name):
    """The model, the objective, the inputs and the settings of a case."""
    debiased = SquaredW2(debiased=True)
    x, y = rows(2 if name == "sliced" else 1, copies=name in ("merged", "within"))
    hoods = Neighborhoods.nearest(x, 9)
    settings = {}
    if name == "batches":
        settings = {"batch_balls": 32}
    elif name == "merged":
        hoods, settings = Neighborhoods.within(x, 0.6, min_size=2), {"batch_balls": 24, "block_balls": 3}
    elif name == "within":
        hoods = Neighborhoods.within(x, 0.6)
    elif name == "lazy":
        hoods, settings = LazyNeighborhoods.nearest(x, 9, slack=0.5), {"batch_balls": 40, "epoch_balls": 80}
    elif name == "few":  # fewer balls than ranks
        hoods = Neighborhoods.whole(N)
    discrepancy = {
        "sliced": SlicedW2(debiased=True),
        "anchored": Anchored(debiased, 2.0),
        "merged": Anchored(debiased, 2.0, by_ball=True),
    }.get(name, debiased)
    model = {"linear": RandomLinear(2).double(), "own": Own()}.get(name) or network(y.shape[1])
    return model, Objective(y, hoods, discrepancy), x, settings


def fit(name):
    """The gradient of the first step, and the weights after 20 epochs."""
    found = {}
    for epochs in (1, 20):
        model, objective, x, settings = case(name)
        keyed = {} if "RANK" in os.environ or name == "own" else {"noise": "keyed"}
        config = FitConfig(max_epochs=epochs, seed=3, learning_rate=0.02, **settings, **keyed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Own does not accept noise keyed by row")
            warnings.filterwarnings("ignore", message=".*balls hold one row")
            result = train(model, objective, x, config)
        kind = "gradient" if epochs == 1 else "weight"
        for parameter, value in model.named_parameters():
            tensor = value.grad if epochs == 1 else value.detach()
            found[f"{name}.{kind}.{parameter}"] = tensor.numpy()
        found[f"{name}.{kind}.losses"] = np.array(result.losses)
    return found


def regression():
    """A whole estimator, without a seed: all ranks must agree on one."""
    x, y = (v.numpy() for v in rows())
    state = None if "RANK" in os.environ else 0
    law = Network(width=6, epochs=3)
    model = LocalW2Regressor(law, base=None, random_state=state).fit(x, y[:, 0])
    return {f"regression.{k}": v.numpy() for k, v in model.model_.state_dict().items()}


def dynamics():
    """An ODE, whose trajectories every rank simulates: the fit of one process with the same seed."""
    paths, t, _ = FourStates().sample(12, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ObservedPaths does not accept noise keyed by row")
        model = LocalW2ODE(max_epochs=4, width=6, random_state=0).fit(paths[:, :6], t[:6])
    found = {f"dynamics.{k}": v.numpy() for k, v in model.model_.state_dict().items()}
    return found | {"dynamics.losses": np.array(model.fit_.losses)}


def long(path, epochs, pause):
    """A fit with a checkpoint that lasts long enough to be killed."""
    model, objective, x, settings = case("batches")
    config = FitConfig(
        max_epochs=epochs, seed=3, checkpoint=path, checkpoint_every=2, resume=True, **settings
    )
    keyed = {} if "RANK" in os.environ else {"noise": "keyed"}
    config = FitConfig(**{**vars(config), **keyed})

    def wait(entry):
        print(f"epoch {entry['epoch']} pid {os.getpid()} rank {os.environ.get('RANK')}", flush=True)
        time.sleep(pause)

    train(model, objective, x, config, callbacks=(wait,))
    return {name: value.numpy() for name, value in model.state_dict().items()}


def main(out, *names):
    """Run the cases; every rank must end with the same weights."""
    torch.set_num_threads(1)
    if names[0] == "long":
        found = long(names[1], int(names[2]), float(names[3]))
    else:
        found = {}
        for name in names:
            found |= {"regression": regression, "dynamics": dynamics}.get(name, lambda n=name: fit(n))()
    rank = os.environ.get("RANK", "0")
    np.savez(f"{out}.{rank}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
