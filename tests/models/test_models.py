"""What every random map must obey, and what the built-in ones are.

Statistical tests use fixed seeds; under fresh seeds ALPHA is the chance that a correct law fails a test, or
one of the parts that the test names.
"""

import math
from collections import namedtuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from localw2 import FitConfig, Neighborhoods, Objective, SquaredW2, train
from localw2.models import base
from localw2.models.base import RandomMap
from localw2.models.linear import RandomLinear
from localw2.models.network import ACTIVATIONS, RandomLayer, RandomMLP
from localw2.models.noise_network import NoiseMLP

ALPHA = 1e-6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Oscillator(RandomMap):
    """A user's model: a random phase, and an omega in a dict."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([[1.0], [0.5]]))
        self.spread = nn.Parameter(torch.ones(()))

    def draw(self, n, generator=None):
        return {"phase": torch.randn(n, 1, dtype=self.rate.dtype, generator=generator)}

    def forward(self, x, omega=None, generator=None):
        omega = self.draw(len(x), generator) if omega is None else omega
        return torch.sin(x @ self.rate + self.spread * omega["phase"])


def linear(n_outputs=1):
    model = RandomLinear(2, n_outputs)
    with torch.no_grad():
        model.mean.normal_(generator=seeded(1))
        model.std.normal_(generator=seeded(2))
    return model


def network(n_outputs=1, **options):
    """A network far from Gaussian: spreads as large as means."""
    model = RandomMLP(2, n_outputs, width=6, generator=seeded(3), **options)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(0.3, 0.5, generator=seeded(10 + number))
    return model


MODELS = {
    "linear": linear,
    "linear, 3 outputs": lambda: linear(3),
    "ResNet 6 x 1": lambda: network(depth=1),
    "ResNet 6 x 2": lambda: network(depth=2),
    "ResNet 6 x 4, 3 outputs": lambda: network(3, depth=4),
    "plain 6 x 2, tanh": lambda: network(depth=2, residual=False, activation="tanh"),
    "plain 6 x 3, gelu, 3 outputs": lambda: network(3, depth=3, residual=False, activation="gelu"),
    "ResNet 6 x 2, silu": lambda: network(depth=2, activation="silu"),
    "ResNet 6 x 2, softplus": lambda: network(depth=2, activation="softplus"),
    "He": lambda: RandomMLP(2, 1, width=6, initial_std=None, generator=seeded(4)),
    "noise": lambda: NoiseMLP(2, 1, width=6, generator=seeded(5)),
    "noise, plain 6 x 3, tanh, 3 outputs": lambda: NoiseMLP(
        2, 3, width=6, depth=3, n_noise=2, residual=False, activation="tanh", generator=seeded(6)
    ),
    "a user's": Oscillator,
}
OURS = {name: build for name, build in MODELS.items() if name != "a user's"}


def shape_of(omega):
    if isinstance(omega, dict):
        omega = list(omega.values())
    return [tuple(part.shape) for part in omega] if isinstance(omega, list) else tuple(omega.shape)


def flat(omega):
    parts = list(omega.values()) if isinstance(omega, dict) else omega if isinstance(omega, list) else [omega]
    return torch.cat([part.flatten(1) for part in parts], 1)


def part_of(omega, rows):
    if isinstance(omega, dict):
        return {name: value[rows] for name, value in omega.items()}
    return [value[rows] for value in omega] if isinstance(omega, list) else omega[rows]


X = torch.tensor([[0.0, 0.0], [1.0, -0.5], [-2.0, 0.3]])


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
class TestRandomMap:
    def test_shapes(self, build):
        model = build()
        d = model(X).shape[1]
        assert d in (1, 3)
        assert model(X).shape == model(X, model.draw(3)).shape == (3, d)
        assert model.simulate(X, 4).shape == model.sample(X, 4).shape == (4, 3, d)
        assert model.sample_common(X, 4).shape == (4, 3, d)
        assert model.sample(X[:1]).shape == model.sample_common(X[:1]).shape == (1, 1, d)
        assert model.sample(X[:0], 4).shape == model.sample_common(X[:0], 4).shape == (4, 0, d)

    def test_the_output_is_a_function_of_x_and_omega(self, build):
        model = build().double()
        x, omega = X.double(), model.draw(3)
        torch.testing.assert_close(model(x, omega), model(x, omega), rtol=0, atol=0)
        for row in range(3):  # each row with its own omega, whatever the others are
            alone = model(x[row : row + 1], part_of(omega, slice(row, row + 1)))
            torch.testing.assert_close(alone, model(x, omega)[row : row + 1], rtol=1e-12, atol=1e-12)
        assert not torch.equal(model(x, omega), model(x, model.draw(3)))

    def test_draws_do_not_depend_on_the_parameters_nor_on_each_other(self, build):
        model = build()
        before = flat(model.draw(4, seeded()))
        assert not before.requires_grad
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-3).add_(1)
        assert torch.equal(flat(model.draw(4, seeded())), before)
        assert len(before.unique(dim=0)) == 4

    def test_seeds_are_honoured_and_the_global_generator_is_left_alone(self, build):
        model, state = build(), torch.get_rng_state()
        ways = {
            "draw": lambda g: flat(model.draw(3, g)),
            "forward": lambda g: model(X, None, g),
            "simulate": lambda g: model.simulate(X, 2, g),
            "sample": lambda g: model.sample(X, 2, g),
            "sample_common": lambda g: model.sample_common(X, 2, g),
        }
        for name, way in ways.items():
            assert torch.equal(way(seeded(5)), way(seeded(5))), name
            assert not torch.equal(way(seeded(5)), way(seeded(6))), name
            generator = seeded(5)
            assert not torch.equal(way(generator), way(generator)), name
        assert torch.equal(torch.get_rng_state(), state)

    def test_chunks_change_no_shape_and_keep_rows_in_place(self, build, monkeypatch):
        model = build().double()
        x = torch.linspace(-1, 1, 14, dtype=torch.float64).reshape(7, 2)
        whole = model.sample_common(x, 6, seeded())
        for limit in (1, 4, 11):  # less than the draws, and more
            monkeypatch.setattr(base, "SAMPLE_ROWS", limit)
            assert model.sample(x, 6, seeded()).shape == whole.shape
            torch.testing.assert_close(model.sample_common(x, 6, seeded()), whole, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("n_samples", [1, 5, 6])
    def test_common_draws_of_a_row_ignore_its_companions(self, build, n_samples):
        model = build().double()
        x = torch.randn(40, 2, dtype=torch.float64, generator=seeded(1))
        batch = model.sample_common(x, n_samples, seeded())
        for rows in ([7], [39, 7], [7, 7, 3]):
            part = model.sample_common(x[rows], n_samples, seeded())
            torch.testing.assert_close(part, batch[:, rows], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_dtypes_and_gradients(self, build, dtype):
        model = build().to(dtype)
        x = X.clone().to(dtype).requires_grad_()
        for omega in (None, model.draw(3)):
            model.zero_grad()
            outputs = model(x, omega)
            assert outputs.dtype == dtype
            outputs.square().sum().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                assert torch.isfinite(parameter.grad).all()
            assert torch.isfinite(x.grad).all()
        assert model.sample(X.to(dtype), 2).dtype == model.sample_common(X.to(dtype), 2).dtype == dtype
        assert not model.sample(X.to(dtype), 2).requires_grad

    def test_float32_agrees_with_float64(self, build):
        model = build()
        omega = model.draw(3, seeded())
        single = model(X, omega)
        if isinstance(omega, dict):
            wide = {name: value.double() for name, value in omega.items()}
        else:
            wide = [v.double() for v in omega] if isinstance(omega, list) else omega.double()
        torch.testing.assert_close(model.double()(X.double(), wide), single.double(), rtol=1e-4, atol=1e-4)

    def test_bad_arguments_are_named(self, build):
        model = build()
        with pytest.raises(ValueError, match=r"\(3,\).*x\[:, None\]"):
            model.sample(X[:, 0], 2)
        with pytest.raises(ValueError, match="x is ndarray"):
            model.sample(X.numpy(), 2)
        for n_samples in (0, -1, 2.5, True):
            with pytest.raises(ValueError, match="n_samples="):
                model.sample(X, n_samples)
            with pytest.raises(ValueError, match="n_samples="):
                model.sample_common(X, n_samples)

    def test_it_trains(self, build):
        model, x = build(), torch.rand(60, 2, generator=seeded())
        d = model(x[:1]).shape[1]
        y = (x @ torch.ones(2, d)).sin() + 0.3 * torch.randn(60, d, generator=seeded(1))
        objective = Objective(y, Neighborhoods.nearest(x, 10), SquaredW2())
        fit = train(model, objective, x, FitConfig(max_epochs=30, learning_rate=0.03))
        assert np.mean(fit.losses[-5:]) < 0.8 * np.mean(fit.losses[:3])

    def test_functional_call_and_vmap_over_stacked_models(self, build):
        models = [build().double(), build().double()]
        with torch.no_grad():
            for parameter in models[1].parameters():
                parameter.mul_(0.5)
        x, omega = X.double(), models[0].draw(3, seeded())
        parameters, buffers = torch.func.stack_module_state(models)

        def loss(state, omega, generator=None):
            return (
                torch.func.functional_call(models[0], (state, buffers), (x, omega, generator)).square().sum()
            )

        grads = torch.vmap(torch.func.grad(loss), (0, None))(parameters, omega)
        for number, model in enumerate(models):
            model(x, omega).square().sum().backward()
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(grads[name][number], parameter.grad)
        if isinstance(models[0], Oscillator):
            return
        # One noise for all models: the hand-written gradient under vmap is autograd's without.
        same = torch.vmap(torch.func.grad(loss), (0, None, None), randomness="same")
        grads = same(parameters, None, seeded())
        for number, model in enumerate(models):
            model.zero_grad()
            model(x, None, seeded()).square().sum().backward()
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(grads[name][number], parameter.grad)
        alone = torch.func.functional_call
        one = {name: value[0] for name, value in parameters.items()}
        many = torch.vmap(lambda _: alone(models[0], one, (x,)), randomness="different")(torch.zeros(4))
        assert len(many.unique(dim=0)) == 4


# --- the cheaper draws have the law of full weights ---

N_LAW = 20_000


def law_of_full_weights(model, x, seed):
    """Draws (n, d) at one x with a fresh omega each."""
    rows = x.expand(N_LAW, -1)
    return model(rows, model.draw(N_LAW, seeded(seed))).detach().double()


def same_law(a, b, alpha=ALPHA):
    """Whether no comparison of two samples (n, d) rejects: means, variances, KS and the outputs' covariance.

    ``alpha`` is shared between all comparisons (Bonferroni); means and covariances by a normal limit with the
    samples' own standard errors, KS by its asymptotic law.
    """
    a, b = a.numpy(), b.numpy()
    pvalues = []

    def compare(u, v):
        error = math.sqrt(u.var() / len(u) + v.var() / len(v)) + 1e-12
        pvalues.append(2 * stats.norm.sf(abs(u.mean() - v.mean()) / error))

    centre = b.mean(0)
    d = a.shape[1]
    for i in range(d):
        compare(a[:, i], b[:, i])
        for j in range(i, d):
            products = [(v[:, i] - centre[i]) * (v[:, j] - centre[j]) for v in (a, b)]
            compare(*products)
        pvalues.append(stats.ks_2samp(a[:, i], b[:, i], method="asymp").pvalue)
    return min(pvalues) * len(pvalues) > alpha


@pytest.fixture(params=OURS.values(), ids=OURS.keys(), scope="module")
def laws(request):
    """A model, and draws by full weights at three x."""
    model = request.param()
    return model, {row: law_of_full_weights(model, X[row], seed=row) for row in range(len(X))}


class TestLaw:
    """ALPHA for each x and each kind of draw."""

    def test_forward_and_sample(self, laws):
        model, full = laws
        for row, expected in full.items():
            cheap = model(X[row].expand(N_LAW, -1), None, seeded(100 + row)).detach().double()
            assert same_law(cheap, expected)
            sampled = model.sample(X[row][None], N_LAW, seeded(200 + row))[:, 0].double()
            assert same_law(sampled, expected)

    @pytest.mark.parametrize("n_samples", [N_LAW - 1, 2 * N_LAW], ids=["odd", "even"])
    def test_common_draws(self, laws, n_samples):
        model, full = laws
        draws = model.sample_common(X, n_samples, seeded(300)).double()
        for row, expected in full.items():
            # Antithetic halves depend on each other, but each alone is a sample of independent draws.
            for half in draws[:, row].split(N_LAW):
                assert same_law(half, expected)

    def test_a_wrong_law_fails(self, laws):
        """The power of the comparison: spreads wrong by 10 %, a mean by a tenth of the spread, the shape."""
        model, full = laws
        expected = full[1]
        mean, spread = expected.mean(0), expected.std(0)
        fresh = model.sample(X[1][None], N_LAW, seeded(400))[:, 0].double()
        assert same_law(fresh, expected)
        assert not same_law(mean + 1.1 * (fresh - mean), expected)
        assert not same_law(fresh + 0.1 * spread, expected)
        uniform = torch.rand(fresh.shape, dtype=fresh.dtype, generator=seeded(401))
        assert not same_law(mean + spread * math.sqrt(12) * (uniform - 0.5), expected)

    def test_rows_of_a_draw_are_independent_and_so_are_draws(self, laws):
        model, _ = laws
        n, x = 4000, X[1].expand(2, -1)
        draws = model.sample(x, n, seeded(500))[..., 0].double()
        # Fisher's z of a zero correlation has SD 1 / sqrt(n); two comparisons.
        bound = stats.norm.isf(ALPHA / 4) / math.sqrt(n)
        for a, b in ((draws[:, 0], draws[:, 1]), (draws[:-1, 0], draws[1:, 0])):
            ranks = [torch.tensor(stats.rankdata(v)) for v in (a, b)]
            assert abs(float(torch.corrcoef(torch.stack(ranks))[0, 1])) < bound


def test_the_same_noise_at_every_row_would_fail_independence():
    """The power of the test of independence: common draws are as dependent as can be."""
    draws = linear().sample_common(X[1].expand(2, -1), 4000, seeded())[..., 0]
    torch.testing.assert_close(draws[:, 0], draws[:, 1])


@pytest.mark.parametrize("build", OURS.values(), ids=OURS.keys())
def test_antithetic_pairs_make_means_more_exact(build):
    """The mean of 20 antithetic draws against 20 independent ones, over 400 seeds, at one x.

    For a linear model it is exact. For a network a pair cancels the part that is odd in the noise. The ratio
    of two variances over 400 seeds has a relative SD of 10 %.
    """
    model = build().double()
    x = X[1:2].double()
    pairs, plain = (
        torch.stack([model.sample_common(x, n, seeded(s))[:20].mean(0)[0] for s in range(400)])
        for n in (20, 21)
    )
    if isinstance(model, RandomLinear):
        exact = torch.cat([torch.ones(1, dtype=torch.float64), x[0]]) @ model.mean.detach()
        torch.testing.assert_close(pairs, exact.expand(400, -1))
    else:
        assert (pairs.var(0) < 0.85 * plain.var(0)).all()


# --- linear ---


@pytest.mark.parametrize("d", [1, 3])
def test_the_moments_of_a_linear_model_are_in_closed_form(d):
    """Mean (1, x) b, variance (1, x)^2 s^2, outputs independent; false alarm ALPHA for each kind of draw."""
    model = linear(d).double()
    n, x = 40_000, torch.tensor([[0.7, -1.3]], dtype=torch.float64)
    design = torch.tensor([1.0, 0.7, -1.3], dtype=torch.float64)
    mean, variance = design @ model.mean.detach(), design.square() @ model.std.detach().square()
    z = stats.norm.isf(ALPHA / (4 * d + 2 * d * d))
    for draws in (
        model.sample(x, n, seeded())[:, 0],
        model(x.expand(n, -1), model.draw(n, seeded(1))).detach(),
        model.sample_common(x, n + 1, seeded(2))[:, 0],
    ):
        assert ((draws.mean(0) - mean).abs() < z * (variance / n).sqrt()).all()
        assert ((draws.var(0) / variance - 1).abs() < z * math.sqrt(2 / n)).all()
        if d > 1:
            correlation = torch.corrcoef(draws.T) - torch.eye(d, dtype=torch.float64)
            assert (correlation.abs() < z / math.sqrt(n)).all()


def test_a_linear_model_starts_as_in_the_paper_and_ignores_the_sign_of_the_spread():
    model = RandomLinear(3, 2)
    assert (model.mean == 1).all()
    assert (model.std == 1).all()
    assert model.mean.shape == (4, 2)
    x = torch.randn(5, 3, generator=seeded())
    before = model(x, None, seeded(1))
    with torch.no_grad():
        model.std.neg_()
    assert torch.equal(model(x, None, seeded(1)), before)


# --- networks ---


def by_autograd(layer, h, noise):
    """A layer's outputs as one would write them, where no variance is zero."""
    return h @ layer.mean + layer.bias + (h.square() @ layer.std.square()).sqrt() * noise


def test_the_gradient_by_hand_is_autograd_s():
    layer = RandomLayer(4, 3).double()
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.normal_(generator=seeded(number))
    h = torch.randn(7, 4, dtype=torch.float64, generator=seeded(9)).requires_grad_()
    noise = torch.randn(7, 3, dtype=torch.float64, generator=seeded(5))
    inputs = (h, *layer.parameters())
    ours, theirs = layer(h, None, seeded(5)), by_autograd(layer, h, noise)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(7, 3, dtype=torch.float64, generator=seeded(6))
    for a, b in zip(
        torch.autograd.grad((weights * ours).sum(), inputs),
        torch.autograd.grad((weights * theirs).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_a_network_with_no_spread_is_an_ordinary_one():
    model = network(2, depth=3)
    with torch.no_grad():
        for layer in model.layers:
            layer.std.zero_()
    first, second, third, last = model.layers
    g = torch.relu(X @ first.mean + first.bias)
    g = g + torch.relu(g @ second.mean + second.bias)
    g = g + torch.relu(g @ third.mean + third.bias)
    for outputs in (model(X), model(X, model.draw(3)), model.sample_common(X)[0]):
        torch.testing.assert_close(outputs, g @ last.mean + last.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_finite_where_nothing_varies(activation, dtype):
    """x = 0 has no variance in the first layer; dead units have none in the next."""
    model = network(depth=3, activation=activation).to(dtype)
    with torch.no_grad():
        for layer in model.layers[:-1]:
            layer.bias.fill_(-1e4)  # every ReLU is dead
    for x in (torch.zeros(5, 2), torch.full((5, 2), 1e-30), torch.ones(5, 2)):
        x = x.to(dtype).requires_grad_()
        model.zero_grad()
        outputs = model(x, None, seeded())
        outputs.square().sum().backward()
        assert torch.isfinite(outputs).all()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("scale", [1e-18, 1e-22, 1e-30])
def test_the_slope_of_a_tiny_spread_stays_bounded(scale):
    """h^2 s^2 underflows in float32; the slope of sqrt(h^2 s^2) z in s, at most |h z|, must not blow up."""
    layer = RandomLayer(1, 1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1.0)
    h = torch.full((8, 1), scale).requires_grad_()
    layer(h, None, seeded()).sum().backward()
    assert float(layer.std.grad.abs()) <= 8 * 5 * scale
    assert float((h.grad - layer.mean.detach()).abs().max()) <= 5


def test_the_start_of_a_network():
    """N(0, 0.01^2) as in the paper; He's scale on request; ALPHA for each of the five bounds."""
    paper, he = (
        RandomMLP(1, width=200, depth=2, initial_std=std, generator=seeded()) for std in (0.01, None)
    )
    z = stats.norm.isf(ALPHA / 2)
    middle = paper.layers[1]
    for values in (middle.mean.detach(), middle.std.detach()):
        assert abs(float(values.std()) / 0.01 - 1) < z / math.sqrt(2 * values.numel())
        assert abs(float(values.mean())) < z * 0.01 / math.sqrt(values.numel())
    middle = he.layers[1]
    assert abs(float(middle.mean.detach().std()) / math.sqrt(2 / 200) - 1) < z / math.sqrt(2 * 200**2)
    assert middle.std.abs().max() < middle.mean.abs().max()
    assert (middle.bias == 0).all()


def test_the_start_comes_from_the_generator_alone():
    state = torch.get_rng_state()
    a, b, c, d = (RandomMLP(2, generator=g) for g in (seeded(), seeded(), seeded(1), None))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a.layers[1].mean, b.layers[1].mean)
    assert not torch.equal(a.layers[1].mean, c.layers[1].mean)
    assert not torch.equal(a.layers[1].mean, d.layers[1].mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_inputs": 0}, "n_inputs=0"),
        ({"n_outputs": 0}, "n_outputs=0"),
        ({"width": 0}, "width=0"),
        ({"width": 2.5}, "width=2.5"),
        ({"depth": 0}, "depth=0"),
        ({"activation": "cube"}, "activation='cube'.*relu, tanh"),
        ({"initial_std": 0.0}, "initial_std=0.0"),
        ({"initial_std": math.nan}, "initial_std=nan"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        RandomMLP(**{"n_inputs": 2, **options})
    if "initial_std" not in options:
        with pytest.raises(ValueError, match=message):
            NoiseMLP(**{"n_inputs": 2, **options})
    if set(options) <= {"n_inputs", "n_outputs"}:
        with pytest.raises(ValueError, match=message):
            RandomLinear(**{"n_inputs": 2, **options})


@pytest.mark.parametrize("build", OURS.values(), ids=OURS.keys())
def test_inputs_and_omegas_that_do_not_fit_are_named(build):
    model = build()
    for way in (model, model.sample, model.sample_common):
        with pytest.raises(ValueError, match=r"3 column.*2 input"):
            way(torch.zeros(4, 3))
        with pytest.raises(ValueError, match=r"float64 .*float32.*x\.to\("):
            way(X.double())
    with pytest.raises(ValueError, match=r"omega.*draw\(3\)"):
        model(X, model.draw(4))
    with pytest.raises(ValueError, match=r"omega.*draw\(3\)"):
        model(X, model.draw(3)[0])
    with pytest.raises(ValueError, match="n=-1"):
        model.draw(-1)


def test_a_printed_model_tells_models_apart():
    """Checkpoints rely on it where the weights have the same shapes."""
    variants = [{}, {"residual": False}, {"activation": "tanh"}, {"width": 9}, {"depth": 3}]
    assert len({repr(RandomMLP(2, **options)) for options in variants}) == len(variants)
    assert repr(RandomLinear(2, 3)) == "RandomLinear(n_inputs=2, n_outputs=3)"


def test_a_network_of_noise_needs_noise_and_says_what_it_has():
    with pytest.raises(ValueError, match=r"n_noise=0.*every draw is the same"):
        NoiseMLP(2, n_noise=0)
    variants = [{}, {"residual": False}, {"activation": "tanh"}, {"width": 9}, {"depth": 3}, {"n_noise": 2}]
    assert len({repr(NoiseMLP(2, **options)) for options in variants}) == len(variants)
    model = NoiseMLP(2, depth=3, n_noise=5)
    assert model.n_numbers == 20
    assert model.draw(7).shape == (7, 20)


def test_a_network_of_noise_is_what_its_formula_says():
    model = NoiseMLP(2, 1, width=5, depth=2, n_noise=3, generator=seeded(0))
    omega = model.draw(3, seeded(1))
    (w0, b0), (w1, b1), (w2, b2) = ((layer.weight, layer.bias) for layer in model.linear_layers())
    z = [torch.cat([part, part.sign()], 1) for part in omega.split(3, 1)]
    first = torch.relu(torch.cat([X, z[0]], 1) @ w0.T + b0)
    second = first + torch.relu(torch.cat([first, z[1]], 1) @ w1.T + b1)
    torch.testing.assert_close(model(X, omega), torch.cat([second, z[2]], 1) @ w2.T + b2)


# --- a user's omega ---

Pair = namedtuple("Pair", ["shift", "slope"])


@pytest.mark.parametrize("wrap", [list, tuple, lambda v: Pair(*v), lambda v: {"a": v[0], "b": [v[1]]}])
def test_an_omega_of_several_parts_is_shared_between_rows(wrap):
    class Line(RandomMap):
        def draw(self, n, generator=None):
            return wrap([torch.randn(n, 1, generator=generator) for _ in range(2)])

        def forward(self, x, omega=None, generator=None):
            omega = self.draw(len(x), generator) if omega is None else omega
            shift, slope = (omega["a"], omega["b"][0]) if isinstance(omega, dict) else omega
            return shift + slope * x

    x = torch.tensor([[0.0], [1.0], [3.0]])
    draws = Line().sample_common(x, 5, seeded())[..., 0]
    torch.testing.assert_close(draws[:, 2] - draws[:, 0], 3 * (draws[:, 1] - draws[:, 0]))  # straight lines
    assert len(draws[:, 0].unique()) == 5


def test_an_omega_without_rows_is_named():
    class Odd(RandomMap):
        def draw(self, n, generator=None):
            return "seed"

        def forward(self, x, omega=None, generator=None):
            return x

    with pytest.raises(ValueError, match=r"str.*sample_common"):
        Odd().sample_common(torch.zeros(2, 1), 3)


def test_outputs_with_a_time_axis_keep_it():
    class Path(RandomMap):
        def draw(self, n, generator=None):
            return torch.randn(n, 1, 1, generator=generator)

        def forward(self, x, omega=None, generator=None):
            omega = self.draw(len(x), generator) if omega is None else omega
            return x[:, None] * omega * torch.ones(5, 1)

    x = torch.ones(4, 2)
    assert Path().sample(x, 3).shape == Path().sample_common(x, 3).shape == (3, 4, 5, 2)
