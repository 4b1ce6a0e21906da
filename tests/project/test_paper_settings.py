"""The page on the paper states the settings that the paper prints and those that the fits receive."""

import ast
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import architecture
import concrete
import dynamics
import harder
import linear
import linear_fit
import nonlinear
import nonlinear_fit
import ode_errors
import publication
from localw2 import LocalW2ODE, Normal, Objective
from localw2.datasets import FourStates, Linear, Nonlinear
from localw2.estimators.coefficients import regressor
from localw2.estimators.dynamics import ode
from localw2.estimators.regression import network
from localw2.losses.discrepancies import MMD
from localw2.training.distributed import Crew
from localw2.training.step import Descent
from records import Options

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
TITLES = {
    "linear": "Linear regression with random coefficients",
    "nonlinear": "The nonlinear example",
    "harder": "Wider distributions",
    "architecture": "Network structures",
    "concrete": "Concrete",
    "dynamics": "The ODE",
}
VERDICTS = ("same", "choice", "ours to answer for")
FULL = Options(False, publication.REPEATS, 1, Path("results"), Path("figures"))
ALIKE = {"optimiser": "AdamW", "repeats": publication.REPEATS}
BESIDES = {"harder": "nonlinear", "architecture": "nonlinear"}  # "all else is as in the nonlinear example"


# What the page says


def read_tables():
    """Rows (setting, paper, ours, verdict) by experiment."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Settings")[2]
    sections = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", text, re.M | re.S))
    assert list(sections) == list(TITLES.values())
    found = {}
    for name, title in TITLES.items():
        lines = [line for line in sections[title].splitlines() if line.startswith("|")][2:]
        found[name] = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        assert {len(row) for row in found[name]} == {4}
    return found


def read_value(cell):
    """The checked value at the start of a cell, in a list, or an empty list."""
    found = re.match(r"`([^`]+)`", cell)
    if found is None:
        return []
    try:
        return [ast.literal_eval(found[1])]
    except (SyntaxError, ValueError):
        words = tuple(found[1].split(", "))
        return [words[0] if len(words) == 1 else words]


TABLES = read_tables()


# What the paper prints


def list_network(training):
    """The settings of Table S1 that are those of a network."""
    return {
        "network": "ResNet" if training["residual"] else "plain",
        "hidden layers": training["depth"],
        "width": training["width"],
        "activation": "relu",
        "initial a, s, b": 0.01,
        **list_training(training),
    }


def list_training(training):
    return {
        "learning rate": training["learning_rate"],
        "weight decay": training["weight_decay"],
        "epochs": training["max_epochs"],
        **ALIKE,
    }


PRINTED = {
    "linear": {
        "truth b": (1, 1, 2, 3),
        "truth s": (0.1, 0.2, 0.3, 0.4),
        "rows N": publication.LINEAR_ROWS,
        "δ": publication.LINEAR_DELTA,
        "norms": ("homo", "hete"),
        "initial b and s": 1,
        "test draws": publication.TEST_DRAWS,
        **list_training(publication.LINEAR_TRAINING),
    },
    "nonlinear": {
        "rows N": publication.NONLINEAR_ROWS,
        "δ": publication.NONLINEAR_DELTA,
        "test draws": publication.TEST_DRAWS,
        **list_network(publication.NONLINEAR_TRAINING),
    },
    "harder": {"rows N": publication.NONLINEAR_ROWS, "sd of (b)": harder.FIXED_SD},
    "architecture": {
        "δ": publication.ARCHITECTURE_DELTA,
        "width of the rows": tuple(row.width for row in publication.STRUCTURES),
        "hidden layers of the rows": tuple(row.depth for row in publication.STRUCTURES),
    },
    "concrete": {
        "rows N": publication.CONCRETE_ROWS,
        "δ": publication.CONCRETE_DELTA,
        "δ₀": publication.CONCRETE_DELTA_0,
        "test rows in a neighbourhood": publication.CONCRETE_FEWEST,
        "points of (a), (b)": publication.CONCRETE_POINTS,
        **list_network(publication.CONCRETE_TRAINING),
    },
    "dynamics": {
        "trajectories N": publication.ODE_TRAJECTORIES,
        "times": publication.ODE_TIMES,
        "δ": publication.ODE_DELTA,
        "δ₀": publication.ODE_DELTA,
        **list_network(publication.ODE_TRAINING),
    },
}


# What the fits receive


class Training(Exception):
    """Raised in place of training, with the model, the objective, the inputs and the settings."""


@pytest.fixture
def stopped(monkeypatch):
    """Run a cell up to its training and return what that would have received."""

    def stop(model, objective, x, config, *_, **__):
        raise Training(model, objective, x, config)

    for module in (network, ode, concrete):
        monkeypatch.setattr(module, "train", stop)

    def run(function, cell):
        with pytest.raises(Training) as caught:
            function(cell)
        return caught.value.args

    return run


def describe(model, objective, x, config, net=None):
    """The settings of a network and of its training."""
    net = net or model
    optimiser = Descent(model, objective, x, config, Crew()).optimizer
    return {
        "network": "ResNet" if net.residual else "plain",
        "hidden layers": net.depth,
        "width": net.width,
        "activation": net.activation,
        "initial a, s, b": net.initial_std,
        "learning rate": config.learning_rate,
        "weight decay": config.weight_decay,
        "epochs": config.max_epochs,
        "schedule": config.schedule,
        "clipping of gradients": config.max_gradient,
        "weights kept": config.keep,
        "draws per row and step": config.n_draws,
        "optimiser": type(optimiser).__name__,
    }


def count_repeats(cells):
    return len({cell["seed"] for cell in cells})


def only(values):
    """The one value that all share."""
    (value,) = set(values)
    return value


def in_order(values):
    return tuple(dict.fromkeys(values))


def check(name, received):
    """Compare a table with the paper's settings and with those that the fits received."""
    rows = {setting: (paper, ours, verdict) for setting, paper, ours, verdict in TABLES[name]}
    assert len(rows) == len(TABLES[name])
    others = {row[0]: row[1:] for row in TABLES[BESIDES[name]]} if name in BESIDES else {}
    for setting, (paper, ours, verdict) in rows.items():
        assert verdict.startswith(VERDICTS), setting
        said, stated = read_value(paper), read_value(ours)
        assert (setting in PRINTED[name], setting in received) == (bool(said), bool(stated)), setting
        if said:
            assert said[0] == PRINTED[name][setting], setting
        if stated:
            assert stated[0] == received[setting], setting
        if said and stated and verdict == "same":
            assert said == stated, setting
        if verdict.startswith(VERDICTS[2]) and stated and said:
            assert said != stated or ": " in verdict, setting
    for setting, value in received.items():
        row = rows.get(setting) or others[setting]
        assert read_value(row[1]) == [value], setting
    assert PRINTED[name].keys() <= rows.keys()


@pytest.mark.filterwarnings("ignore:delta")
def test_linear(monkeypatch):
    steps = []

    class Recorded(torch.optim.AdamW):
        def __init__(self, parameters, **given):
            super().__init__(parameters, **given)
            steps.append([p.detach().clone() for group in self.param_groups for p in group["params"]])

        def step(self, closure=None):
            super().step(closure)
            group = only_group(self)
            steps.append([group["lr"], group["weight_decay"], *(p.detach().clone() for p in group["params"])])

    def only_group(optimiser):
        (group,) = optimiser.param_groups
        return group

    cells = linear.list_cells(FULL)
    printed = [cell for cell in cells if cell["method"] == "printed"]
    training = printed[0]["training"]
    assert all(cell["training"] == training for cell in printed)
    losses = []

    def bind(y, hoods, discrepancy):
        losses.append(repr(discrepancy))
        return Objective(y, hoods, discrepancy)

    monkeypatch.setattr(torch.optim, "AdamW", Recorded)
    monkeypatch.setattr(regressor, "Objective", bind)
    short = {"training": training | {"max_epochs": 3}, "rows": 50}
    values = linear_fit.run(printed[0] | short)
    (mean, factor), *after = steps
    assert (mean == 1).all()
    assert (factor[0] == torch.eye(4)).all()
    b, s = after[-1][2].numpy()[0], np.abs(np.diag(after[-1][3].numpy()[0]))
    kept = "last" if np.allclose([b, s], [values["b"], values["s"]], atol=1e-4) else "other"
    # Adam's first step has the size of the rate in every parameter, on top of the decay.
    rates = {rate for rate, *_ in after}
    moved = (after[0][2] - mean * (1 - training["weight_decay"] * after[0][0])).abs()
    assert moved.numpy() == pytest.approx(training["learning_rate"], rel=1e-4)
    truth, at = Linear(), [c for c in printed if c["reading"] == "literal"]
    assert truth == linear_fit.TRUTH
    check(
        "linear",
        {
            "truth b": truth.coefficient_means,
            "truth s": truth.coefficient_stds,
            "rows N": only(cell["rows"] for cell in at if cell["norm"] == "homo"),
            "rows N of (c)": tuple(sorted({cell["rows"] for cell in at})),
            "δ": only(cell["delta"] for cell in at if cell["rows"] != publication.LINEAR_ROWS),
            "δ of (b)": tuple(sorted({cell["delta"] for cell in at})),
            "norms": in_order(cell["norm"] for cell in at),
            "loss": only(losses),
            "optimiser": Recorded.__base__.__name__,
            "learning rate": only(rates),
            "weight decay": only(decay for _, decay, *_ in after),
            "epochs": training["max_epochs"],
            "schedule": "constant" if len(rates) == 1 else "other",
            "weights kept": kept,
            "initial b and s": int(mean[0, 0]),
            "test inputs of (a)": publication.LINEAR_LINE,
            "test draws": publication.TEST_DRAWS,
            "repeats": count_repeats(printed),
        },
    )


def test_nonlinear(stopped):
    wanted = {f"{form} {loss}" for form in ("local", "global") for loss in nonlinear.LOSSES}
    cells = [cell for cell in nonlinear.list_cells(FULL) if cell["method"] in wanted]
    # Only loss and delta tell the eight methods apart.
    free = {"delta", "discrepancy"}
    common = only(str({k: v for k, v in c["parameters"].items() if k not in free}) for c in cells)
    assert "'base': None" in common
    assert "'standardize': False" in common
    first = next(c for c in cells if c["method"] == "local W2" and c["rows"] == publication.NONLINEAR_ROWS)
    trained = _, objective, x, config = stopped(nonlinear_fit.run, first)
    assert {cell["parameters"]["discrepancy"] for cell in cells} == set(nonlinear.LOSSES.values())
    deltas = in_order(cell["parameters"]["delta"] for cell in cells)
    assert deltas == (publication.NONLINEAR_DELTA, None)
    distances = np.abs(x.numpy() - x.numpy().T)
    sizes = (distances <= deltas[0] * (1 + 1e-6)).sum(1)
    assert objective.hoods.row_sizes().tolist() == sizes.tolist()
    assert config.batch_balls is None
    truth = nonlinear_fit.make_truth(first)
    kernel = MMD()
    check(
        "nonlinear",
        {
            "truth": "Nonlinear()" if truth == Nonlinear() else "other",
            "rows N": len(x),
            "inputs": truth.half_width,
            "δ": deltas[0],
            "losses": tuple(nonlinear.LOSSES.values()),
            "bandwidth of MMD": (kernel.multiplier, kernel.n_kernels),
            "test inputs": tuple(first["test"]),
            "test draws": first["draws"],
            "repeats": count_repeats([cell for cell in cells if cell["method"] == "global W2"]),
            **describe(*trained),
        },
    )


def test_wider_distributions(stopped):
    cells = [cell for cell in harder.list_cells(FULL) if cell["method"] == "printed"]
    trained = stopped(nonlinear_fit.run, cells[0])
    same = nonlinear.list_cells(FULL)
    assert only(str(cell["parameters"]) for cell in cells) == only(
        str(cell["parameters"]) for cell in same if cell["method"] == "local W2"
    )
    check(
        "harder",
        {
            "rows N": len(trained[2]),
            "sd of ω₁ and ω₂ of (a)": in_order(c["sd"] for c in cells if c["half_width"] == 0.5),
            "half width of x in (b)": in_order(c["half_width"] for c in cells if c["sd"] == 1),
            "inputs": harder.FIXED_HALF_WIDTH,
            "sd of (b)": harder.FIXED_SD,
            "δ": only(cell["parameters"]["delta"] for cell in cells),
            "test inputs": only(tuple(cell["test"]) for cell in cells),
            "test draws": only(cell["draws"] for cell in cells),
            "repeats": count_repeats(cells),
            **describe(*trained),
        },
    )


def test_structures(stopped):
    cells = [cell for cell in architecture.list_cells(FULL) if cell["method"] == "printed"]
    more = [cell for cell in cells if cell["rows"] == publication.ARCHITECTURE_MORE_ROWS]
    assert len(more) == len(cells) / 2
    sizes = tuple(sorted({cell["rows"] for cell in cells}))
    few = [cell for cell in cells if cell["rows"] == publication.ARCHITECTURE_ROWS]
    nets = [stopped(nonlinear_fit.run, cell) for cell in few[:11]]
    assert [net.residual for net, *_ in nets] == [row.residual for row in publication.STRUCTURES]
    varied = {"network", "hidden layers", "width"}
    shared = only(str({k: v for k, v in describe(*trained).items() if k not in varied}) for trained in nets)
    check(
        "architecture",
        {
            "rows N": sizes,
            "δ": only(cell["parameters"]["delta"] for cell in cells),
            "width of the rows": tuple(net.width for net, *_ in nets),
            "hidden layers of the rows": tuple(net.depth for net, *_ in nets),
            "test inputs": only(tuple(cell["test"]) for cell in cells),
            "repeats": count_repeats(cells),
            **ast.literal_eval(shared),
        },
    )


@pytest.mark.filterwarnings("ignore:delta")
def test_concrete(stopped):
    rng = np.random.default_rng(0)
    data = rng.uniform(100, 500, (concrete.ROWS, len(concrete.COLUMNS)))
    run = partial(concrete.run_cell, data=data)
    cells = concrete.list_cells(FULL, "0" * 64)
    printed = [cell for cell in cells if cell["model"] == "local W2" and "reading" not in cell]
    first = next(cell for cell in printed if cell["delta"] == concrete.DELTA)
    trained = _, objective, x, _ = stopped(run, first)
    by_mse = plain, on_rows, *_ = stopped(run, next(cell for cell in cells if cell["model"] == "MSE"))
    assert describe(*by_mse) == describe(*trained)
    assert all((layer.std == 0).all() and not layer.std.requires_grad for layer in plain.random_layers())
    assert on_rows.hoods.sizes.max() == 1
    problem = concrete.Problem.of(data, "paper", 0)
    scaled = concrete.scale(problem.x, problem.x) * problem.norm.weights
    distances = np.linalg.norm(scaled[:, None] - scaled[None], axis=-1)
    assert objective.hoods.row_sizes().tolist() == (distances <= concrete.DELTA).sum(1).tolist()
    assert concrete.DELTAS == publication.CONCRETE_DELTAS
    check(
        "concrete",
        {
            "rows N": len(x),
            "norm": "hete" if type(problem.norm).__name__ == "Weighted" else "other",
            "δ": concrete.DELTA,
            "δ of (c)": in_order(cell["delta"] for cell in printed),
            "δ₀": concrete.DELTA_0,
            "test rows in a neighbourhood": concrete.FEWEST,
            "points of (a), (b)": concrete.SHOWN,
            "repeats": count_repeats(printed),
            **describe(*trained),
        },
    )


def test_ode(stopped):
    cells = dynamics.list_cells(FULL)
    printed = [cell for cell in cells if cell["model"] == "printed"]
    first = next(cell for cell in printed if (cell["a"], cell["sigma"]) == (0.3, 0.25))
    trained = paths, objective, x, config = stopped(dynamics.run_cell, first)
    assert config.patience is None  # all epochs are trained
    initial = x[:, 2:].unique(dim=0).double()
    near = torch.cdist(initial, initial) <= publication.ODE_DELTA
    # Every time has the balls of the initial states, t = 0 included.
    sizes = near.sum(1).repeat_interleave(publication.ODE_TIMES).sort().values
    assert objective.hoods.row_sizes().sort().values.tolist() == sizes.tolist()
    assert objective.scale is None
    assert objective.center is None
    z = (dynamics.LINE[:, 1] - dynamics.LINE[:, 0]) / 2
    check(
        "dynamics",
        {
            "trajectories N": len(initial),
            "times": len(x[:, 1].unique()),
            "a and sigma of (a)-(i)": dynamics.PANELS,
            "a of (k), (l)": tuple(sorted({cell["a"] for cell in printed})),
            "sigma of (k), (l)": tuple(sorted({cell["sigma"] for cell in printed})),
            "line of (g)-(i)": (z[0], round(z[-1], 12), len(z)),
            "δ": dynamics.RADIUS["printed"],
            "δ₀": ode_errors.DELTA_0,
            "solver": paths.ode.method,
            "rtol": paths.ode.rtol,
            "atol": paths.ode.atol,
            "repeats": count_repeats(printed),
            **describe(*trained, net=paths.ode.field.net),
        },
    )
    assert dynamics.PANELS == publication.ODE_PANELS
    assert np.linspace(*publication.ODE_LINE) == pytest.approx(z)


# What the page says beside the tables


def test_the_tolerance_of_the_solver_is_of_no_account():
    """The true equation solved as the fits solve theirs, against its exact trajectories."""
    truth = FourStates(a=0.3, sigma=0.4)
    start, t, _ = truth.sample(50, random_state=0)
    defaults = LocalW2ODE()
    field = ode.FunctionField(truth.field, {"omega": Normal(0.0, 0.2)})
    units = torch.tensor(np.abs(start).max((0, 1)))
    solver = {"rtol": defaults.rtol, "atol": defaults.atol, "state_size": units}
    model = ode.RandomODE(field, torch.tensor(t), defaults.method, **solver).double()
    omega = model.draw(len(start), torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(torch.tensor(start[:, 0]), omega).numpy()
    exact = truth.paths(start[:, 0], 0.2 * np.asarray(omega).reshape(-1))
    assert np.abs(found - exact).max() < 1e-3
    assert ((found - exact) ** 2).sum() / (exact**2).sum() < 1e-7
