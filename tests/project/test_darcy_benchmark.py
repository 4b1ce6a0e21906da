"""Darcy flow: the solver against known solutions, the medium, and the errors that are printed."""

import numpy as np
import pytest

import darcy


def manufactured_error(n):
    """The largest error for u = sin(pi s) sin(2 pi t), a = exp(s t), and its source, on n x n nodes."""
    s, t = np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n), indexing="ij")
    a = np.exp(s * t)
    u = np.sin(np.pi * s) * np.sin(2 * np.pi * t)
    u_s, u_t = (
        np.pi * np.cos(np.pi * s) * np.sin(2 * np.pi * t),
        2 * np.pi * np.sin(np.pi * s) * np.cos(2 * np.pi * t),
    )
    laplacian = -5 * np.pi**2 * u
    source = -(a * laplacian + t * a * u_s + s * a * u_t)
    return np.abs(darcy.solve_darcy(a, source) - u).max()


def test_the_solver_converges_with_order_two():
    errors = [manufactured_error(n) for n in (9, 17, 33, 65)]
    rates = np.log2(np.array(errors[:-1]) / errors[1:])
    assert errors[-1] < 2e-3
    np.testing.assert_allclose(rates, 2, atol=0.15)


def test_flow_is_symmetric_positive_and_scales():
    rng = np.random.default_rng(0)
    a, f = np.exp(darcy.draw_log_conductivity(rng)), np.ones((64, 64))
    u = darcy.solve_darcy(a, f)
    assert (u[1:-1, 1:-1] > 0).all()  # a maximum principle
    np.testing.assert_allclose(darcy.solve_darcy(3 * a, f), u / 3, rtol=1e-9)
    np.testing.assert_allclose(darcy.solve_darcy(a.T, f), u.T, rtol=1e-9, atol=1e-15)


def test_the_medium_has_mean_0_and_variance_1_and_is_smoother_with_a_larger_length():
    fields = {
        length: np.array([darcy.draw_log_conductivity(np.random.default_rng(i), length) for i in range(20)])
        for length in (0.02, 0.2)
    }
    for made in fields.values():
        np.testing.assert_allclose(made.mean((1, 2)), 0, atol=1e-12)
        np.testing.assert_allclose(made.std((1, 2)), 1)
    rough, smooth = (np.abs(np.diff(made, axis=1)).mean() for made in fields.values())
    assert smooth < rough


def test_rows_are_patches_and_errors_are_relative():
    small = pytest.MonkeyPatch()
    with small.context() as patch:
        patch.setattr(darcy, "solve_darcy", lambda a, f: a)
        rows = darcy.make_rows(0, 5, shared=True)
    assert rows.x.shape == (2000, 2)
    assert rows.y.shape == (2000, 25)
    assert rows.truth.shape == (20, 5, 25)
    mean, variance = rows.truth.mean(1), rows.truth.var(1)
    assert darcy.relative_errors(mean, variance, rows.truth) == (0, 0)
    assert darcy.relative_errors(1.1 * mean, 0.5 * variance, rows.truth) == pytest.approx(
        (0.1, 0.5), rel=1e-4
    )
