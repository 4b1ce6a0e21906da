"""Random maps in files: numbers, plain settings and a name, never code."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from localw2 import (
    FitConfig,
    Neighborhoods,
    NoiseMLP,
    Objective,
    RandomLinear,
    RandomMap,
    RandomMLP,
    conditional_test,
    diagnose,
    load,
    plots,
    save,
    train,
)
from localw2.storage.model_file import Stored, read, write


class Ride(RandomMap):
    """A user's model with plain arguments, a start value that is learned, a network inside and a buffer."""

    def __init__(self, width, start=5.0, activation="tanh", scale=(1.0, 2.0), generator=None):
        super().__init__()
        self.width, self.activation, self.scale = width, activation, scale
        self.start = nn.Parameter(torch.tensor(start))
        self.net = RandomMLP(2, width=width, activation=activation, generator=generator)
        self.register_buffer("unit", torch.tensor(scale))

    def draw(self, n, generator=None):
        return self.net.draw(n, generator)

    def forward(self, x, omega=None, generator=None):
        return self.start + self.net(x * self.unit, omega, generator)


class Tied(RandomMap):
    """Two names for one parameter, and arguments that are no plain values."""

    def __init__(self, layer):
        super().__init__()
        self.first = layer
        self.second = layer

    def draw(self, n, generator=None):
        return torch.randn(n, 1, generator=generator)

    def forward(self, x, omega=None, generator=None):
        return self.second(x) + (self.draw(len(x), generator) if omega is None else omega)


def draw(model, dtype=torch.float32):
    x = torch.linspace(-1, 1, 10, dtype=dtype).reshape(5, 2)
    return model.sample(x, 3, torch.Generator().manual_seed(1))


MADE = {
    "RandomLinear": lambda: RandomLinear(2, 3),
    "RandomMLP": lambda: RandomMLP(
        2, 2, width=7, depth=3, residual=False, activation="gelu", initial_std=None
    ),
    "NoiseMLP": lambda: NoiseMLP(2, 1, width=5, depth=1, n_noise=2, activation="silu"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MADE)
def test_built_in_maps_come_back_bit_for_bit(tmp_path, name, dtype):
    model = MADE[name]().to(dtype)
    for parameter in model.parameters():
        parameter.data += torch.rand_like(parameter)
    save(model.eval(), tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert repr(loaded) == repr(model)
    assert not loaded.training
    assert torch.equal(draw(loaded, dtype), draw(model, dtype))
    save(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def test_an_own_map_comes_back_by_its_name(tmp_path):
    model = Ride(4, activation="relu").double()
    model.start.data.fill_(7.25)
    save(model, tmp_path / "ride")
    for classes in ({"Ride": Ride}, {"Ride": Ride(4, activation="relu"), "Other": Tied}):
        loaded = load(tmp_path / "ride", classes=classes)
        assert type(loaded) is Ride
        assert loaded.start.item() == 7.25
        assert loaded.training
        assert torch.equal(draw(loaded, torch.float64), draw(model, torch.float64))
    # A start value that is learned is not among the settings; lists stand for tuples.
    assert read(tmp_path / "ride").settings["settings"] == {
        "width": 4,
        "activation": "relu",
        "scale": [1.0, 2.0],
    }


def test_what_a_map_was_made_with_is_in_the_file_or_is_asked_for(tmp_path):
    model = Tied(nn.Linear(2, 1))
    with pytest.warns(UserWarning, match="Tied.*layer"):
        save(model, tmp_path / "tied")
    with pytest.raises(ValueError, match=r"Tied\(\.\.\.\)"):
        load(tmp_path / "tied", classes={"Tied": Tied})
    loaded = load(tmp_path / "tied", classes={"Tied": Tied(nn.Linear(2, 1))})
    assert torch.equal(draw(loaded), draw(model))
    assert loaded.first.weight is loaded.second.weight

    class Forgetful(RandomLinear.__mro__[1]):
        def __init__(self, power=1):
            super().__init__()
            self.slope, self._power = nn.Parameter(torch.ones(())), power

        draw, forward = Tied.draw, Tied.forward

    with pytest.warns(UserWarning, match=r"self\.power = power"):
        save(Forgetful(2), tmp_path / "forgetful")


def test_an_own_map_that_was_trained_is_judged_plotted_and_stored(tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(200, 2))
    y = 5 + x[:, :1] + 0.5 * rng.normal(size=(200, 1))
    objective = Objective(torch.tensor(y, dtype=torch.float32), Neighborhoods.nearest(x, 20))
    fit = train(Ride(8), objective, torch.tensor(x, dtype=torch.float32), FitConfig(max_epochs=5))
    with pytest.raises(ValueError, match=r"fit\.model"):
        save(fit, tmp_path / "fit")
    save(fit.model, tmp_path / "fit")
    model = load(tmp_path / "fit", classes={"Ride": Ride})
    test = conditional_test(x, y, model, n_permutations=99, random_state=0)
    assert test.pvalue == conditional_test(x, y, fit.model, n_permutations=99, random_state=0).pvalue
    diagnosis = diagnose(x, y, model, n_samples=40, random_state=0)
    assert len(test.plot()) == 2
    assert diagnosis.plot().size == 4
    inputs = torch.tensor(x[:2], dtype=torch.float32)
    draws = model.sample(inputs, 300).squeeze(-1)
    assert plots.pairs(draws).shape == (2, 2)
    lower, upper = np.quantile(draws.numpy(), [0.05, 0.95], axis=0)
    assert plots.band(inputs[:, :1], draws.mean(0), lower, upper) is not None


# --- what is refused ---


def test_a_file_without_its_class_says_what_to_pass(tmp_path):
    save(Ride(3), tmp_path / "ride")
    with pytest.raises(ValueError, match=r"classes=\{'Ride': Ride\}"):
        load(tmp_path / "ride")
    for wrong in ([Ride], {"Ride": nn.Linear}, {"Ride": "Ride"}, {"Ride": None}):
        with pytest.raises(ValueError, match="classes="):
            load(tmp_path / "ride", classes=wrong)
    with pytest.raises(ValueError, match="built in"):
        load(tmp_path / "ride", classes={"RandomMLP": Ride})
    with pytest.raises(ValueError, match="width=3"):
        load(tmp_path / "ride", classes={"Ride": Ride(4)})
    with pytest.raises(ValueError, match="does not take field"):
        load(tmp_path / "ride", field=len)


def test_a_class_with_a_name_of_ours_is_refused(tmp_path):
    other = type("RandomLinear", (Tied,), {})
    with pytest.raises(ValueError, match="rename"):
        save(other(nn.Linear(1, 1)), tmp_path / "model")


def test_nothing_is_imported_or_called_because_a_file_says_so(tmp_path):
    save(Ride(3), tmp_path / "ride")
    stored = read(tmp_path / "ride")
    for name in ("os.system", "Tied", "localw2.models.paths.ObservedPaths", "__import__", "a\x1b[2J", ""):
        stored.settings["class"] = name
        write(tmp_path / "forged", stored)
        with pytest.raises(ValueError, match="your own") as raised:
            load(tmp_path / "forged", classes={"Ride": Ride})
        assert "\x1b" not in str(raised.value)


def forge(**changes):
    return lambda s, t: s["settings"].update(changes)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (forge(width=4), "net.layers"),
        (forge(width="wide"), "width"),
        (forge(activation="evil"), "activation"),
        (forge(evil=1), "evil"),
        (forge(self=1), "self"),
        (lambda s, t: s.update(settings=["width"]), "width"),
        (lambda s, t: s.update(settings=3), "arguments"),
        (lambda s, t: s.update(settings=None), "arguments"),
        (lambda s, t: s.update(training="yes"), "training"),
        (lambda s, t: s.pop("training"), "fit together"),
        (lambda s, t: s.update({"class": 3}), "text"),
        (lambda s, t: t.pop("state.start"), "start"),
        (lambda s, t: t.update({"state.more": torch.zeros(1)}), "more"),
        (lambda s, t: t.update({"state.start": torch.zeros(2)}), "start"),
        (lambda s, t: t.update({"state.start": torch.tensor(1)}), "start"),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused_in_words(tmp_path, spoil, word):
    save(Ride(3), tmp_path / "ride")
    stored = read(tmp_path / "ride")
    write(tmp_path / "same", stored)
    load(tmp_path / "same", classes={"Ride": Ride})
    spoil(stored.settings, stored.tensors)
    write(tmp_path / "spoilt", stored)
    with pytest.raises(ValueError, match=word) as raised:
        load(tmp_path / "spoilt", classes={"Ride": Ride})
    assert "spoilt" in str(raised.value)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that is made in memory."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.device.type != "meta":
            self.numbers = max(self.numbers, found.numel())
        return found


NETWORK = {"n_inputs": 2, "n_outputs": 1, "width": 3000, "depth": 2, "residual": True, "activation": "relu"}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("RandomLinear", {"n_inputs": 3000, "n_outputs": 3000}),
        ("RandomMLP", NETWORK),
        ("RandomMLP", NETWORK | {"depth": 10**12}),
        ("NoiseMLP", NETWORK | {"n_noise": 1}),
        ("NoiseMLP", NETWORK | {"depth": 10**12, "n_noise": 1}),
        ("Ride", {"width": 3000}),
    ],
)
def test_a_small_file_asks_for_no_memory(tmp_path, kind, settings):
    stored = Stored("RandomMap", {"class": kind, "settings": settings, "training": True})
    stored.tensors["state.mean"] = torch.zeros(1)
    write(tmp_path / "forged", stored)
    with LargestTensor() as seen:
        RandomLinear(30, 30)
        assert seen.numbers == 31 * 30  # or else the test could not fail
        with pytest.raises(ValueError, match="forged"):
            load(tmp_path / "forged", classes={"Ride": Ride})
    assert seen.numbers == 31 * 30
