"""Whatever draws can be judged: estimators, random maps, torch modules, functions; others get words."""

import functools
import inspect

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from localw2 import (
    BallLaw,
    LocalW2ODE,
    LocalW2Regressor,
    NoiseMLP,
    RandomCoefficientRegressor,
    RandomLinear,
    RandomMap,
    RandomMLP,
    conditional_test,
    datasets,
    diagnose,
    error_bound,
    metrics,
    plots,
    select_delta,
)
from localw2.judging import conformal
from localw2.judging.seen_rows import SeenRows
from localw2.models.sampler import SamplerDraws


class Walk(RandomMap):
    """A user's model, y = slope x + N(0, 1), that draws in single precision whatever its parameters are."""

    def __init__(self, slope=2.0):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def draw(self, n, generator=None):
        return torch.randn(n, 1, generator=generator)

    def forward(self, x, omega=None, generator=None):
        omega = self.draw(len(x), generator) if omega is None else omega
        return self.slope * x[:, :1] + omega


class Noisy(nn.Module):
    """The same law as a plain module: noise of torch's own generator in every call."""

    def __init__(self, slope=2.0):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x):
        return self.slope * x[:, 0] + torch.randn(len(x), dtype=x.dtype)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(300, 2))
    return x, 2 * x[:, 0] + rng.normal(size=300)


def as_kinds(x):
    return {
        "float64": x,
        "float32": x.astype(np.float32),
        "tensor": torch.tensor(x),
        "tensor32": torch.tensor(x, dtype=torch.float32),
        "frame": pd.DataFrame(x, columns=["a", "b"]),
        "list": x.tolist(),
    }


SAMPLERS = {
    "regressor": lambda x, y: LocalW2Regressor(BallLaw(40), random_state=0).fit(x, y),
    "coefficients": lambda x, y: RandomCoefficientRegressor("ml").fit(x, y),
    "pipeline": lambda x, y: make_pipeline(StandardScaler(), RandomCoefficientRegressor("ml")).fit(x, y),
    "RandomLinear": lambda x, y: RandomLinear(2),
    "RandomMLP": lambda x, y: RandomMLP(2, generator=torch.Generator().manual_seed(0)).double(),
    "NoiseMLP": lambda x, y: NoiseMLP(2, generator=torch.Generator().manual_seed(0)),
    "own map": lambda x, y: Walk(),
    "own map, double": lambda x, y: Walk().double(),
    "its sample": lambda x, y: Walk().sample,
    "module": lambda x, y: Noisy(),
    "module, double": lambda x, y: Noisy().double(),
    "sequential": lambda x, y: nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1)),
    "no parameters": lambda x, y: nn.AvgPool1d(2),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.filterwarnings("ignore:X has feature names")  # of a fit to an array
@pytest.mark.filterwarnings("ignore::localw2.DependentDrawsWarning")
def test_every_sampler_is_judged_with_rows_of_every_kind_and_no_delta(rows, name):
    x, y = rows
    sampler = SAMPLERS[name](x[:200], y[:200])
    x, y = x[200:], y[200:]
    found = {}
    for kind, inputs in as_kinds(x).items():
        torch.manual_seed(0)
        found[kind] = conditional_test(inputs, y, sampler, n_permutations=99, random_state=0)
        for outputs in (torch.tensor(y), y.astype(np.float32), y[:, None]):
            torch.manual_seed(0)
            again = conditional_test(inputs, outputs, sampler, n_permutations=99, random_state=0)
            assert again.pvalue == found[kind].pvalue
        diagnosis = diagnose(inputs, y, sampler, n_samples=20, random_state=0)
        assert diagnosis.n_rows == 100
        assert diagnosis.residual.shape == (100, 1)
    assert len({test.pvalue for test in found.values()}) == 1


def test_the_right_map_passes_and_a_wrong_one_fails(rows):
    x, y = rows
    for kind in (Walk, Noisy):
        torch.manual_seed(1)
        assert conditional_test(x, y, kind(), random_state=0).pvalue > 0.05
        assert conditional_test(x, y, kind(1.0), random_state=0).pvalue < 0.01
        assert diagnose(x, y, kind(), random_state=0).calibrated
        assert not diagnose(x, y, kind(1.0), random_state=0).calibrated


def test_a_map_draws_as_it_does_itself_in_its_own_precision():
    x = np.linspace(-1, 1, 5)[:, None]
    model = RandomLinear(1).double()
    draws = SamplerDraws.of(model, x, (5,)).many(3, np.random.default_rng(0))
    seed = int(np.random.default_rng(0).integers(2**31))
    expected = model.sample(torch.tensor(x), 3, torch.Generator().manual_seed(seed))[..., 0]
    np.testing.assert_array_equal(draws, expected.numpy())
    state = torch.random.get_rng_state()
    SamplerDraws.of(model, x, (5,)).many(3, np.random.default_rng(0))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_module_is_called_in_its_own_precision_without_gradients():
    seen = []

    class Watching(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.weight = nn.Parameter(torch.ones((), dtype=dtype))

        def forward(self, x):
            seen.append((x.dtype, tuple(x.shape), torch.is_grad_enabled()))
            return self.weight * x

    rng = np.random.default_rng(0)
    for dtype in (torch.float32, torch.float64):
        SamplerDraws.of(Watching(dtype), np.zeros((4, 1)), (4,)).one(rng)
        assert seen.pop() == (dtype, (4, 1), False)
    SamplerDraws.of(nn.Identity(), np.zeros((4, 1), np.float32), (4,)).one(rng)


def test_trajectories_are_tested_with_their_times_fixed():
    y, t, _ = datasets.FourStates(a=0.1, n_times=6).sample(30, random_state=0)
    model = LocalW2ODE(width=4, max_epochs=2, random_state=0).fit(y[:15], t)
    new = y[15:]
    sampler = functools.partial(model.sample, t=t)
    assert 0 < conditional_test(new[:, 0], new, sampler, n_permutations=99, random_state=0).pvalue <= 1
    with pytest.raises(ValueError, match="also needs t"):
        conditional_test(new[:, 0], new, model)


BIG = nn.Sequential(
    nn.Linear(2, 50), *(m for _ in range(50) for m in (nn.Linear(50, 50), nn.ReLU())), nn.Linear(50, 3)
)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((BIG, "y", "x"), "order"),
        (("x", BIG, "x"), "order"),
        (("x", "y", BIG), "shape"),
        (("x", "y", nn.Linear(3, 1)), "fails"),
        (("x", "y", nn.Bilinear(2, 2, 1)), "fails"),
        (("x", "y", nn.ModuleList([BIG])), "fails"),
        (("x", "y", nn.LSTM(2, 1)), "tuple"),
        (("x", "y", RandomLinear(3)), "column"),
        (("x", "y", [BIG]), None),
        (("x", "y", {"model": BIG}), "not callable"),
        (("x", "y", "a model"), "not callable"),
        (("x", "y", None), "not callable"),
        (("x", "y", LocalW2Regressor), "instance"),
        (("x", "y", Walk), "instance"),
        (("x", "y", LocalW2Regressor()), "not fitted"),
        (("x", "y", lambda x: BIG), "model"),
    ],
)
@pytest.mark.parametrize("judge", [conditional_test, diagnose])
def test_a_wrong_thing_gets_words(rows, arguments, word, judge):
    named = dict(zip("xy", rows, strict=True))
    arguments = [named.get(value, value) if isinstance(value, str) else value for value in arguments]
    with pytest.raises(ValueError, match=word) as raised:
        judge(*arguments)
    assert len(str(raised.value)) < 400
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "setting", ["delta", "norm", "level", "random_state", "n_permutations", "standardize"]
)
def test_a_model_as_a_setting_gets_words(rows, setting):
    with pytest.raises(ValueError, match=f"{setting}=<Sequential>"):
        conditional_test(*rows, Walk(), **{setting: BIG})


# --- one order of arguments ---

INPUTS = {"x", "X", "t", "z"}
OUTPUTS = {"y", "Y", "y_draws", "true_mean", "true_std"}
JUDGED = {
    "sampler",
    "samples",
    "draws",
    "estimator",
    "mean",
    "std",
    "lower",
    "upper",
    "yhat_draws",
    "quantiles",
}
JUDGED |= {"model", "fit"}


def list_public():
    named = [conditional_test, diagnose, error_bound, select_delta, SeenRows.of, SeenRows.share]
    for module in (metrics, plots, conformal):
        named += [
            value
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
        ]
    laws = {type(law) for law in datasets.ZOO.values()}
    return named + [law.cdf for law in laws if hasattr(law, "cdf")]


def test_arguments_come_in_one_order():
    """Inputs, outputs, what is judged. Only scorers, whose order is scikit-learn's, begin with the model."""
    found = list_public()
    assert len(found) > 30
    for function in found:
        names = [p for p in inspect.signature(function).parameters if p != "self"]
        ranks = [r for n in names for r, known in enumerate((INPUTS, OUTPUTS, JUDGED)) if n in known]
        if function.__name__.endswith("_scorer"):
            assert names[:4] == ["estimator", "X", "y", "sample_weight"]
        else:
            assert ranks == sorted(ranks), function.__name__
