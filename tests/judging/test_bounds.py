import runpy
from pathlib import Path

import numpy as np
import pytest

from localw2.balls.norms import Weighted
from localw2.datasets import Nonlinear
from localw2.judging.bounds import ErrorBound, error_bound, sampling_rate

EXAMPLE = Path(__file__).parents[2] / "examples" / "diagnostics.py"


def counted(x, delta):
    return (np.linalg.norm(x[:, None] - x[None], axis=2) <= delta).sum(1)


@pytest.mark.parametrize("d", [1, 3, 6])
def test_terms_are_the_formula(d):
    rng = np.random.default_rng(d)
    x, y = rng.normal(size=(80, 2)), rng.normal(size=(80, d)) + 5
    deltas = np.array([0.3, 1.0, 20.0])
    found = error_bound(x, y, deltas, lipschitz=2.0, constant=3.0, random_state=0)
    M = ((y - y.mean(0)) ** 2).sum(1).max()
    rate = (lambda k: k**-0.25 * np.log(1 + k) ** 0.5) if d <= 4 else (lambda k: k ** (-1 / d))
    expected = [8 * 3 * M * np.mean([rate(k) for k in counted(x, delta)]) for delta in deltas]
    np.testing.assert_allclose(found.sampling, expected)
    np.testing.assert_allclose(found.rows, 2 * M / np.sqrt(80))
    np.testing.assert_allclose(found.smoothing, 8 * np.sqrt(M) * 2 * deltas)
    np.testing.assert_allclose(found.total, found.rows + found.sampling + found.smoothing)
    assert found.ball_sizes[-1] == 80
    assert found.best_delta == deltas[np.argmin(found.total)]


def test_bound_of_y_as_given_or_centred():
    x, y = np.arange(4.0), np.array([9.0, 10.0, 11.0, 10.0])
    assert error_bound(x, y, [1.0], center=False).bound == 121
    assert error_bound(x, y, [1.0]).bound == 1
    assert error_bound(x, y, [1.0], bound=7.0).bound == 7
    shifted = error_bound(x, y + 100, random_state=0)
    np.testing.assert_allclose(shifted.total, error_bound(x, y, random_state=0).total)


def test_default_deltas_run_from_two_rows_to_all():
    x, y = Nonlinear().sample(700, random_state=0)
    found = error_bound(x, y, random_state=0)
    assert found.ball_sizes[0] <= 3
    assert 650 <= found.ball_sizes[-1] <= 700
    assert (np.diff(found.deltas) > 0).all()
    assert (np.diff(found.smoothing) > 0).all()
    full = found.ball_sizes >= 12  # below, the theorem's h itself rises with the rows
    assert (np.diff(found.sampling[full]) < 0).all()


def test_h_falls_from_five_rows_on():
    sizes = np.arange(5, 10_000)
    for d in (1, 4, 5, 9):
        assert (np.diff(sampling_rate(sizes, d)) < 0).all()


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_lipschitz_of_a_plane(noise):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(2000, 2))
    y = x @ [3.0, 4.0] + noise * rng.normal(size=2000)
    found = error_bound(x, y, [0.1], random_state=0).lipschitz
    # 270 rows of a half in a window of .5: a slope is known to .4, the mean of the steep ones better.
    assert abs(found - 5) <= 1e-9 + 0.8 * noise
    in_norm = error_bound(x, y, [0.1], norm=Weighted([2.0, 2.0]), random_state=0).lipschitz
    np.testing.assert_allclose(in_norm, found / 2)


def test_lipschitz_sees_the_spread():
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 3, 5000)
    # The mean is flat, the SD has the slope 2.
    found = [
        error_bound(x, noise * x, [0.1], random_state=0).lipschitz for noise in 2 * rng.normal(size=(8, 5000))
    ]
    assert abs(np.mean(found) - 2) < 4 * np.std(found) / np.sqrt(8)
    assert np.std(found) < 1.5
    several = np.column_stack([3 * x, -4 * x])
    np.testing.assert_allclose(error_bound(x, several, [0.1], random_state=0).lipschitz, 5)


def test_lipschitz_is_that_of_the_law_and_not_of_its_paths():
    """cos(x + omega) has slopes up to 1 and one law at every x: the theorem's L is 1, that of W2 is 0."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 20_000)
    outputs = [np.cos(x + rng.uniform(-np.pi, np.pi, len(x))) for _ in range(3)]
    # What is left is noise: a slope that one half of the rows shows by chance is not there in the other.
    assert np.mean([error_bound(x, y, [0.001], random_state=0).lipschitz for y in outputs]) < 0.2


@pytest.mark.parametrize("levels", [2, 3, 4])
def test_lipschitz_of_few_levels(levels):
    rng = np.random.default_rng(levels)
    x = rng.integers(0, levels, 1000) * 1.0
    found = error_bound(x, 5 * x + rng.normal(size=1000), [1.0], random_state=0).lipschitz
    # Each half has 100 rows or more at each end of a unit step: a slope is known to .15 or better.
    assert abs(found - 5) < 4 * 0.15


def test_lipschitz_with_levels_and_constant_columns():
    rng = np.random.default_rng(0)
    inside, rare = rng.uniform(size=2000), np.zeros(2000)
    rare[:4] = 1
    x = np.column_stack([inside, rng.integers(0, 2, 2000), np.ones(2000)])
    found = error_bound(x, 3 * x[:, 0] + 4 * x[:, 1], [0.1], random_state=0).lipschitz
    np.testing.assert_allclose(found, 5)
    # Balls that hold a rare level are too wide for this wave, whose local slope is up to 10.
    waves = error_bound(np.column_stack([inside, rare]), np.sin(10 * inside), [0.1], random_state=0).lipschitz
    assert 8 < waves < 12


def test_lipschitz_that_cannot_be_measured():
    x, y = np.r_[np.zeros(9), 1.0], np.arange(10.0)
    with pytest.raises(ValueError, match="lipschitz"):
        error_bound(x, y, [0.5], random_state=0)
    assert error_bound(x, y, [0.5], lipschitz=2.0).lipschitz == 2


def test_many_rows_are_sampled_and_the_seed_decides():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 3))
    y = x[:, 0] + rng.normal(size=5000)
    deltas = [0.1, 0.5, 2.0]
    one, same, other = (error_bound(x, y, deltas, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.total, same.total)
    assert (one.sampling != other.sampling).any()
    np.testing.assert_allclose(one.sampling, other.sampling, rtol=0.03)  # 1000 centres each


def test_measured_error_stays_below_the_bound_and_has_its_shape():
    example = runpy.run_path(str(EXAMPLE))
    truth = Nonlinear()
    x, y = truth.sample(400, random_state=0)
    found = error_bound(x, y, [0.005, 0.1, 0.8], random_state=0)
    places = np.linspace(-0.5, 0.5, 2001)
    exact = (example["WIDER"] - 1) ** 2 * np.mean(truth.std(places) ** 2)
    # 41 places of 2000 draws: each squared W2 has a relative error of a few per cent.
    assert abs(example["true_loss"](41, 2000) / exact - 1) < 0.05
    errors = example["measured_errors"](found.deltas, 400, 4)
    assert (errors < found.total).all()
    assert errors[1] < errors[0] / 5
    assert errors[1] < errors[2]


def test_it_says_that_it_is_no_certificate():
    x, y = Nonlinear().sample(100, random_state=0)
    found = error_bound(x, y, random_state=0)
    assert isinstance(found, ErrorBound)
    assert "not a certificate" in repr(found)
    assert "not a certificate" in " ".join(error_bound.__doc__.lower().split())


def test_plot_draws_terms_and_measured_errors():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    x, y = Nonlinear().sample(100, random_state=0)
    found = error_bound(x, y, random_state=0)
    ax = found.plot(measured=(found.deltas, found.deltas))
    assert len(ax.figure.axes) == 2
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[0] == "bound"
    assert texts[-1] == "measured error (right axis)"
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), found.total)
    assert "not a certificate" in ax.get_title()
    assert found.plot(ax=ax) is ax
    with pytest.raises(ValueError, match="measured"):
        found.plot(measured=(found.deltas, [1.0]))
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(5)}, "pairs"),
        ({"x": np.zeros(10)}, "share one x"),
        ({"y": np.ones(10)}, "spread"),
        ({"deltas": [0.1, np.inf]}, "finite"),
        ({"deltas": [-1.0]}, "radius"),
        ({"deltas": []}, "deltas"),
        ({"lipschitz": -1.0}, "lipschitz"),
        ({"bound": 0}, "bound"),
        ({"constant": "one"}, "constant"),
        ({"constant": True}, "constant"),
        ({"center": "no"}, "center"),
        ({"norm": "homo"}, "norm"),
        ({"random_state": -1}, "random_state"),
        ({"x": [0.0, 1.0], "y": [0.0, 1.0]}, "3"),
    ],
)
def test_bad_input(change, message):
    given = {"x": np.arange(10.0), "y": np.arange(10.0)} | change
    with pytest.raises(ValueError, match=message):
        error_bound(**given)
