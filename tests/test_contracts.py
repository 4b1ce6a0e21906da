"""What every norm and every discrepancy must obey."""

import numpy as np
import pytest
import torch

from localw2 import (
    MMD,
    MSE,
    EnergyScore,
    Euclidean,
    Mahalanobis,
    MeanVar,
    Neighborhoods,
    Objective,
    Sinkhorn,
    SlicedW2,
    SquaredW2,
    Weighted,
)
from localw2.balls.norms import Norm
from localw2.losses.discrepancies import Discrepancy
from localw2.losses.transitions import TransitionW2

NORMS = [
    Euclidean(),
    Weighted([2.0, 0.5, -1.0]),
    Mahalanobis([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 3.0]]),
]

# The discrepancy, and the power of c in L(c y, c yhat) = c^power L(y, yhat).
DISCREPANCIES = [
    (SquaredW2(), 2),
    (SquaredW2(debiased=True), 2),
    (SlicedW2(8), 2),
    (SlicedW2(8, debiased=True), 2),
    (MMD(), 0),
    (MMD(n_kernels=3, multiplier=1.5), 0),
    (MSE(), 2),
    (MeanVar(), 2),
    (MeanVar(summed=True), 2),
    (EnergyScore(), 1),
    (Sinkhorn(tolerance=1e-10), 2),
    (Sinkhorn(0.02, debiased=True, tolerance=1e-10), 2),
]


def names(value):
    return str(value) if isinstance(value, Norm | Discrepancy) else None


def test_the_contract_covers_every_public_class():
    import localw2

    public = {v for v in vars(localw2).values() if isinstance(v, type)}
    norms = {c for c in public if issubclass(c, Norm) and c is not Norm}
    discrepancies = {c for c in public if issubclass(c, Discrepancy)}
    assert norms == {type(n) for n in NORMS}
    assert discrepancies == {type(d) for d, _ in DISCREPANCIES}


@pytest.mark.parametrize("norm", NORMS, ids=names)
class TestNorm:
    def test_is_a_norm(self, norm):
        rng = np.random.default_rng(0)
        u, v = rng.normal(size=(2, 50, 3))

        def length(x):
            return np.linalg.norm(norm.embed(x), axis=1)

        np.testing.assert_allclose(length(-u), length(u))
        np.testing.assert_allclose(length(3 * u), 3 * length(u))
        assert (length(u + v) <= length(u) + length(v) + 1e-12).all()
        assert (length(u) > 0).all()
        assert length(0 * u).max() == 0

    def test_embedding_is_linear_so_distance_ignores_shifts(self, norm):
        rng = np.random.default_rng(1)
        u, v = rng.normal(size=(2, 50, 3))
        np.testing.assert_allclose(norm.embed(u) - norm.embed(v), norm.embed(u - v), atol=1e-12)

    def test_tensors_in_tensors_out(self, norm):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        embedded = norm.embed(x)
        assert isinstance(embedded, torch.Tensor)
        np.testing.assert_array_equal(embedded.numpy(), norm.embed(x.numpy()))

    def test_equal_settings_are_equal_and_frozen(self, norm):
        assert norm == eval(repr(norm))
        assert hash(norm) == hash(eval(repr(norm)))
        with pytest.raises(AttributeError):
            norm.anything = 1

    def test_the_columns_must_fit(self, norm):
        if isinstance(norm, Euclidean):
            assert norm.embed(np.ones((2, 5))).shape == (2, 5)
        else:
            with pytest.raises(ValueError, match=r"5 column"):
                norm.embed(np.ones((2, 5)))


@pytest.fixture(params=[1, 2], ids=["d=1", "d=2"])
def data(request):
    """x, y (N, d), yhat (S, N, d) with S = 3, balls of 2 to 8 rows."""
    rng = np.random.default_rng(request.param)
    x = rng.uniform(size=18)
    y, yhat = rng.normal(size=(18, request.param)), rng.normal(size=(3, 18, request.param))
    return Neighborhoods.within(x, 0.2, min_size=2), torch.tensor(y), torch.tensor(yhat)


@pytest.mark.parametrize(("discrepancy", "power"), [*DISCREPANCIES, (TransitionW2(4), 2)], ids=names)
class TestDiscrepancy:
    def test_is_a_finite_scalar_that_knows_its_gradient(self, discrepancy, power, data):
        hoods, y, yhat = data
        objective = Objective(y, hoods, discrepancy)
        assert objective(yhat).shape == ()
        if not isinstance(discrepancy, MMD):  # its bandwidth is held constant: see test_losses
            quick = isinstance(discrepancy, Sinkhorn)  # in one random direction
            assert torch.autograd.gradcheck(objective, yhat.clone().requires_grad_(), fast_mode=quick)

    def test_shift_and_scale(self, discrepancy, power, data):
        hoods, y, yhat = data
        value = Objective(y, hoods, discrepancy)(yhat)
        torch.testing.assert_close(Objective(y + 7, hoods, discrepancy)(yhat + 7), value)
        scaled = Objective(3 * y, hoods, discrepancy)(3 * yhat)
        torch.testing.assert_close(scaled, 3.0**power * value)

    def test_centre_is_subtracted_from_both(self, discrepancy, power, data):
        hoods, y, yhat = data
        centre = torch.linspace(-5, 5, y.numel(), dtype=y.dtype).reshape(y.shape)
        expected = Objective(y - centre, hoods, discrepancy)(yhat - centre)
        torch.testing.assert_close(Objective(y, hoods, discrepancy, centre)(yhat), expected)

    def test_both_are_divided_by_the_scale(self, discrepancy, power, data):
        hoods, y, yhat = data
        scale = torch.linspace(0.5, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
        expected = Objective(y / scale, hoods, discrepancy)
        divided = Objective(y, hoods, discrepancy, scale=scale)
        torch.testing.assert_close(divided(yhat), expected(yhat / scale))
        ours, theirs = (yhat.clone().requires_grad_() for _ in range(2))
        divided(ours).backward()
        expected(theirs / scale).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        rows, part = divided.block([0])
        torch.testing.assert_close(part(yhat[:, rows]), expected.block([0])[1]((yhat / scale)[:, rows]))

    def test_the_mean_over_blocks_is_the_whole(self, discrepancy, power, data):
        hoods, y, yhat = data
        objective = Objective(y, hoods, discrepancy)
        total = 0.0
        for balls in (range(3), range(3, hoods.n_balls)):
            rows, part = objective.block(balls)
            total += part(yhat[:, rows]) * hoods.weights[list(balls)].sum() / hoods.weights.sum()
        torch.testing.assert_close(total, objective(yhat))

    def test_times_are_averaged(self, discrepancy, power, data):
        hoods, y, yhat = data
        timed = Objective(torch.stack([y, 2 * y], 1), hoods, discrepancy)(torch.stack([yhat, yhat], 2))
        each = [Objective(c * y, hoods, discrepancy)(yhat) for c in (1, 2)]
        torch.testing.assert_close(timed, (each[0] + each[1]) / 2)

    def test_one_column_may_drop_its_axis(self, discrepancy, power, data):
        hoods, y, yhat = data
        flat = Objective(y[:, 0], hoods, discrepancy)(yhat[..., 0])
        torch.testing.assert_close(flat, Objective(y[:, :1], hoods, discrepancy)(yhat[..., :1]))

    def test_draws(self, discrepancy, power, data):
        hoods, y, yhat = data
        objective = Objective(y, hoods, discrepancy)
        if discrepancy.min_draws == 2:
            with pytest.raises(ValueError, match="at least 2"):
                objective(yhat[0])
            with pytest.raises(ValueError, match="got 1"):
                objective(yhat[:1])
            torch.testing.assert_close(objective(yhat.flip(0)), objective(yhat))
        else:
            each = torch.stack([objective(draw) for draw in yhat])
            torch.testing.assert_close(objective(yhat), each.mean())

    def test_rows_in_another_order(self, discrepancy, power, data):
        hoods, y, yhat = data
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        x = torch.tensor(np.random.default_rng(y.shape[1]).uniform(size=18))
        moved = Neighborhoods.within(x[order], 0.2, min_size=2)
        value = Objective(y[order], moved, discrepancy)(yhat[:, order])
        torch.testing.assert_close(value, Objective(y, hoods, discrepancy)(yhat))

    def test_float32_agrees_with_float64(self, discrepancy, power, data):
        hoods, y, yhat = data
        double = yhat.clone().requires_grad_()
        single = yhat.float().requires_grad_()
        losses = Objective(y, hoods, discrepancy)(double), Objective(y.float(), hoods, discrepancy)(single)
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1].double(), losses[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(single.grad.double(), double.grad, rtol=1e-4, atol=1e-5)

    def test_vmap_over_models_equals_a_loop(self, discrepancy, power, data):
        hoods, y, yhat = data
        objective = Objective(y, hoods, discrepancy)
        models = torch.stack([yhat, yhat + 1, 2 * yhat])
        values, grads = torch.vmap(torch.func.grad_and_value(objective))(models)[::-1]
        for model, value, grad in zip(models, values, grads, strict=True):
            single = model.clone().requires_grad_()
            loss = objective(single)
            loss.backward()
            torch.testing.assert_close(value, loss.detach())
            torch.testing.assert_close(grad, single.grad)

    def test_nan_is_refused(self, discrepancy, power, data):
        hoods, y, yhat = data
        spoilt = yhat.clone()
        spoilt[1, 5, 0] = torch.nan
        with pytest.raises(ValueError, match="yhat has 1 NaN"):
            Objective(y, hoods, discrepancy)(spoilt)

    def test_equal_settings_are_equal(self, discrepancy, power, data):
        assert discrepancy == eval(repr(discrepancy))
