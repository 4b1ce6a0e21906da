"""What is done with a learned process: a diagnosis by pieces, curves, the long run, jumps, long tables."""

import copy
import warnings

import numpy as np
import pytest

from localw2 import LocalW2SDE, LogNormal
from localw2.estimators.dynamics.processes import Pieces, read_long_table, read_states


def pull(t, y, theta):
    return -theta * y


def constant(t, y, sigma):
    return sigma


def paths(n=60, count=26, theta=1.0, sigma=0.5, lag=0.2, seed=0):
    """Ornstein-Uhlenbeck paths (n, count) in their long run, and their times."""
    rng = np.random.default_rng(seed)
    decay = np.exp(-theta * lag)
    spread = sigma / np.sqrt(2 * theta)
    y = np.empty((n, count))
    y[:, 0] = spread * rng.normal(size=n)
    for j in range(count - 1):
        y[:, j + 1] = decay * y[:, j] + spread * np.sqrt(1 - decay**2) * rng.normal(size=n)
    return y, lag * np.arange(count)


@pytest.fixture(scope="module")
def known():
    guesses = {"theta": 1.0, "sigma": 0.5}
    return LocalW2SDE(pull, constant, parameters=guesses, max_steps=3, random_state=0).fit(*paths())


def test_pieces_are_runs_of_paths_that_share_their_ends_only():
    Y, t = paths(3, 11)
    number, time, values = read_states(Y, t, 1)
    pieces = Pieces.of(number, time, values, 4)
    assert pieces.times.shape == (15, 3)  # 30 lags are too few for 300 pieces: two lags each
    np.testing.assert_allclose(np.diff(pieces.times, axis=1), 0.2)
    first = pieces.values[:5, :, 0]
    np.testing.assert_array_equal(first[1:, 0], first[:-1, -1])
    np.testing.assert_array_equal(first[:, 1], Y[0, 1::2])
    assert Pieces.of(number, time, values, None).values.shape == (3, 11, 1)
    # No piece spans a gap.
    kept = (time < 0.9) | (time > 1.7)
    cut = Pieces.of(number[kept], time[kept], values[kept], 4)
    assert np.diff(cut.times, axis=1).max() < 0.3


@pytest.mark.parametrize("form", ["paths", "one path", "ragged"])
def test_the_truth_is_calibrated_and_another_noise_is_not(known, form):
    def shape(Y, t):
        if form == "paths":
            return Y, t
        return (Y[0], t) if form == "one path" else ([Y[0], Y[1][:40]], [t, t[:40]])

    size = {"paths": (60, 26), "one path": (1, 900), "ragged": (2, 700)}[form]
    new, wide = (shape(*paths(*size, sigma=s, seed=7)) for s in (0.5, 0.75))
    assert known.diagnose(*new, n_samples=60, random_state=0).calibrated
    verdict = known.diagnose(*wide, n_samples=60, random_state=0)
    assert not verdict.calibrated
    assert "too narrow" in verdict.verdict[0]


def test_paths_of_the_fit_are_pointed_out(known):
    from localw2 import SeenRowsWarning

    with pytest.warns(SeenRowsWarning, match="training"):
        known.diagnose(*paths(), n_samples=10, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known.diagnose(*paths(seed=3), n_samples=10, random_state=0)


def test_curves_are_those_of_the_model_and_dots_lie_around_them(known):
    Y, t = paths(200, seed=5)
    found = known.coefficients_along(Y, t, n_points=21, random_state=0)
    np.testing.assert_allclose(found.drift[0, 0], known.drift(found.place[0][:, None])[:, 0])
    np.testing.assert_allclose(found.diffusion[0, 0], known.diffusion(found.place[0][:, None])[:, 0])
    assert not found.varies
    assert found.rate is None
    place, drift, error, diffusion, spread = found.bins[0]
    # Three steps from the true guesses leave the truth nearly where it is: ten dots, within four errors each.
    assert (np.abs(drift + place) < 4 * error + 0.1).all()
    assert (np.abs(diffusion - 0.5) < 4 * spread + 0.02).all()


def test_parameters_that_vary_make_a_band(known):
    laws = {"theta": LogNormal(1.0, 0.3), "sigma": 0.5}
    model = LocalW2SDE(pull, constant, parameters=laws, max_steps=1, random_state=0).fit(*paths())
    found = model.coefficients_along(*paths(), n_points=3, n_samples=2000, random_state=0)
    assert found.varies
    middle, low, high = found.drift[:, 0, -1]
    quantiles = -found.place[0, -1] * model.parameters_.quantiles([0.5, 0.95, 0.05])["theta"]
    np.testing.assert_allclose([middle, low, high], quantiles, rtol=0.05)
    np.testing.assert_allclose(found.diffusion[1], found.diffusion[2])
    whole = model.cut_pieces(*paths(seed=4), 2, np.random.default_rng(0))
    assert whole.values.shape == (60, 26, 1)


def test_the_long_run_is_the_stationary_law(known):
    # All paths start on one side, and forget it.
    Y, t = paths(seed=2)
    found = known.long_run(np.abs(Y) + 0.2, t, random_state=0)
    theta, sigma = (known.parameters_.mean[name] for name in ("theta", "sigma"))
    assert found.settled
    assert found.escaped == 0
    # 2000 paths at five times: the SD is known to 1.6 % or better.
    assert found.states.std() == pytest.approx(sigma / np.sqrt(2 * theta), rel=0.06)
    assert found.states.mean() == pytest.approx(0, abs=0.05)


def test_a_random_walk_has_no_long_run(known):
    walk = copy.deepcopy(known)
    walk.equation_.drift.function = lambda t, y, theta: 0 * y
    Y, t = paths(seed=2)
    found = walk.long_run(Y, t, n_samples=200, random_state=0)
    assert not found.settled
    assert found.states.std() > 5 * Y.std()


def test_a_long_table_is_read_with_or_without_a_column_of_paths(monkeypatch):
    Y, t = paths(1, 300)
    rows = {"t": t[::-1], "y": Y[0][::-1]}
    given = []
    monkeypatch.setattr(LocalW2SDE, "fit", lambda self, *data: given.extend(data))
    model = LocalW2SDE().fit_table(rows, time="t", observed="y")
    np.testing.assert_array_equal(given[0][..., 0], Y)
    np.testing.assert_array_equal(given[1], t)
    assert read_long_table({**rows, "who": ["a"] * 300}, "who", "t", ["y"]).subjects == ["a"]
    with pytest.raises(ValueError, match="several rows"):
        model.fit_table({"t": [0.0, 0.0], "y": [1.0, 2.0]}, time="t", observed="y")
    with pytest.raises(ValueError, match="no column 'x'"):
        model.fit_table(rows, time="t", observed="x")


def test_what_cannot_be_shown_is_told(known):
    with pytest.raises(ValueError, match="without jumps"):
        known.compare_transitions(*paths())
    with pytest.raises(ValueError, match="2 state"):
        known.diagnose(np.zeros((3, 4, 2)), np.arange(4.0))
    with pytest.raises(ValueError, match="later observations"):
        known.diagnose(paths()[0][:, :2], [0.0, 0.2])
