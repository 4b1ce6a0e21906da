"""Fields: what components leave out, the law on the grid, bands, curves with points of their own, files."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from localw2 import BallLaw, LocalW2FieldRegressor, LocalW2Regressor, Nearest, Network, load
from localw2.estimators.fields import location_scale, smoothing
from localw2.estimators.fields.bands import Bands
from localw2.estimators.fields.levels import LevelBasis
from localw2.estimators.fields.location_scale import LocationScale
from localw2.estimators.fields.regressor import list_ways
from localw2.estimators.fields.representation import Components
from localw2.estimators.fields.score_law import ScoreLaw, choose_way
from localw2.estimators.fields.storing import restore_location, store_location
from localw2.storage.model_file import Stored, read, write

T = np.linspace(0, 1, 30)
SHAPES = np.stack([np.sin(np.pi * T), np.sin(2 * np.pi * T), np.cos(np.pi * T)])

PLAIN = LocalW2Regressor(law="balls", base=None)  # one that is fitted quickly
ONE_LAW = LocalW2Regressor([BallLaw(10)], base=None)  # the quickest


def make_fields(n, seed, x=None):
    """Fields whose mean and spread grow with x, and which have known moments: (x, fields)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, 1)) if x is None else x
    factors = rng.normal(size=(len(x), 3)) * [0.5, 0.3, 0.1]
    return x, (1 + x**2) * SHAPES[0] + (0.5 + x) * (factors @ SHAPES)


def true_moments(x):
    spread = np.sqrt((np.array([0.5, 0.3, 0.1]) ** 2) @ SHAPES**2)
    return (1 + x**2) * SHAPES[0], (0.5 + x) * spread


@pytest.fixture(scope="module")
def fitted():
    x, fields = make_fields(800, 0)
    return LocalW2FieldRegressor(random_state=0).fit(x, fields)


def test_the_stated_error_is_that_of_new_fields():
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(25, 60))
    shares = 0.7 ** np.arange(25)

    def draw(n):
        return (rng.normal(size=(n, 25)) * shares) @ basis

    found = Components.learn(draw(200), 0.9, 25, 0)
    new = draw(2000)
    missed = ((new - found.rebuild(found.scores(new))) ** 2).sum() / ((new - new.mean(0)) ** 2).sum()
    assert found.error <= 0.1
    assert missed == pytest.approx(found.error, rel=0.15)
    assert found.left_out[-2] > 0.1  # one component less would not do
    np.testing.assert_allclose(found.basis @ found.basis.T, np.eye(len(found.basis)), atol=1e-12)
    np.testing.assert_allclose((found.remainders**2).sum(1).mean() / new.var(0).sum(), found.error, rtol=0.2)


def test_a_mean_and_a_spread_are_found():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (3000, 2))
    mean = np.stack([x[:, 0] ** 3, x[:, 1]], 1)
    scale = np.exp(np.stack([x[:, 0], -x[:, 1]], 1))
    found, residuals = LocationScale.learn(x, mean + scale * rng.normal(size=(3000, 2)), 0)
    assert np.sqrt((((found.mean(x) - mean) / scale) ** 2).mean()) < 0.1
    assert np.abs(found.scale(x) / scale - 1).mean() < 0.05
    np.testing.assert_allclose(residuals.std(0), 1, atol=0.05)
    far = np.array([[50.0, 0.0]])  # a polynomial of degree 3 would be at 125 000
    assert np.abs(found.mean(far)).max() < 5


def test_a_correlation_that_turns_with_x_is_found():
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (3000, 1))
    tie = 0.8 * np.sin(np.pi / 2 * x[:, 0])
    first, second, third = rng.gamma(4, 0.5, (3, 3000)) - 2  # mean 0, variance 1, skewed
    scores = np.stack([first, tie * first + np.sqrt(1 - tie**2) * second, third], 1) * [1, 3, 0.1]
    found, standardised = LocationScale.learn(x, scores, 0)
    for place in (-0.8, 0.0, 0.8):
        draws = found.place(np.array([[place]]), rng.normal(size=(20_000, 1, 3)))[:, 0]
        wanted = np.eye(3)
        wanted[0, 1] = wanted[1, 0] = 0.8 * np.sin(np.pi / 2 * place)
        np.testing.assert_allclose(np.corrcoef(draws.T), wanted, atol=0.08)
        np.testing.assert_allclose(draws.std(0), [1, 3, 0.1], rtol=0.1)
    inside = x[:, 0] > 0.5
    for part in (standardised, standardised[inside]):
        np.testing.assert_allclose(np.corrcoef(part.T), np.eye(3), atol=4 / np.sqrt(len(part)))


def make_levels(n, seed):
    """Scores (n, 3) of six inputs whose spread and correlation follow the mean: (x, mean, scale, scores)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 6))
    mean = np.stack([2 + x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2, x[:, 4], x[:, 5]], 1)
    scale = 0.3 * np.exp(0.8 * (mean[:, :1] - 2)) * [1.0, 1.0, 0.5]
    tie = np.tanh(mean[:, 0] - 2)
    noise = rng.normal(size=(n, 3))
    noise[:, 1] = tie * noise[:, 0] + np.sqrt(1 - tie**2) * noise[:, 1]
    return x, mean, scale, mean + scale * noise


def test_a_covariance_that_follows_the_mean_needs_few_rows(monkeypatch):
    x, _, _, scores = make_levels(400, 0)
    new, mean, scale, _ = make_levels(2000, 1)
    draws = np.random.default_rng(2).normal(size=(400, 2000, 3))

    def measure():
        found = LocationScale.learn(x, scores, 0)[0].place(new, draws) - mean
        tie = (found[..., 0] * found[..., 1]).mean(0) / np.sqrt((found[..., :2] ** 2).mean(0)).prod(1)
        return np.abs(np.log(found.std(0) / scale)).mean(), np.abs(tie - np.tanh(mean[:, 0] - 2)).mean()

    of_levels = measure()
    monkeypatch.setattr(location_scale.LevelBasis, "of", lambda of_x, *_: LevelBasis(of_x, ()))
    of_x = measure()
    assert of_levels[0] < min(0.12, 0.7 * of_x[0])
    assert of_levels[1] < min(0.2, 0.7 * of_x[1])


def test_a_constant_mean_has_no_levels(monkeypatch):
    """Out of fold it is another constant in each fold, which says nothing about new rows."""
    monkeypatch.setattr(smoothing, "_LENGTHS", ())  # so few rows bear no polynomial of ten columns
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(150, 10))
        scores = rng.normal(size=(150, 3)) + 0.5 * x[:, :1]
        found, _ = LocationScale.learn(x, scores, 0)
        assert np.abs(np.log(found.scale(x)) - np.log(found.scale(x)).mean(0)).max() < 0.2
        constant, _ = LocationScale.learn(np.ones((150, 1)), scores, 0)
        assert not constant.log_variance.of_means
        assert not constant.mixing.of_means


def test_a_spread_beside_the_means_of_the_fit_is_one_that_was_seen():
    """Two means of one direction in 12 columns: their polynomials are known on a curve only."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 12))
    along = x.sum(1) / np.sqrt(12)
    mean, scale = np.stack([3 * along, np.sin(2 * along)], 1), np.exp(0.5 * along)[:, None] * [1, 0.3]
    found, standardised = LocationScale.learn(x, mean + scale * rng.normal(size=mean.shape), 0)
    assert found.log_variance.of_means
    beyond = found.scale(2 * rng.normal(size=(2000, 12)))
    assert (beyond.min(0) > scale.min(0) / 4).all()
    assert (beyond.max(0) < 4 * scale.max(0)).all()
    ties = found.mixing.evaluate(2 * x, found.mean(2 * x))
    assert np.abs(ties).max() <= np.abs(found.mixing.ends).max()
    np.testing.assert_allclose((standardised**2).mean(0), 1, atol=0.1)


def test_no_variance_is_larger_than_all_squares_of_residuals():
    """In skewed fields few rows have nearly all of the spread, and smooth logarithms overshoot there."""
    ratios = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x, shapes = rng.normal(size=(60, 1)), rng.normal(size=(3, 20))
        fields = np.exp(0.7 * (np.sin(x) + rng.normal(size=(60, 3)) * (1 + 0.3 * x**2)) @ shapes)
        scores = Components.learn(fields, 0.99, 20, 0).scores(fields)
        found, _ = LocationScale.learn(x, scores, 0)
        assert (found.scale(x).max(0) < 2 * np.ptp(scores, axis=0)).all()
        model = LocalW2FieldRegressor(PLAIN, random_state=0).fit(x, fields)
        _, std = model.predict(x, return_std=True)
        ratios.append(np.sqrt((std**2).mean() / fields.var(0).mean()))
    assert max(ratios) < 3


def test_penalties_of_levels_are_those_of_all_rows(monkeypatch):
    monkeypatch.setattr(smoothing, "_MOST_CHOOSING", 100)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(400, 2))
    folds = smoothing.make_folds(400, 0)
    basis = smoothing.Basis.of(x, 0)
    levels = LevelBasis.of(basis, x[:, :1], folds, 0, None, 60)
    candidates = levels.candidates(400, basis.candidates(400, (1.0,)), 3, hold_constant=False)
    seen = []

    def fit(features, rows, penalties):
        seen.append((rows.sum(), [one.max() for one in penalties]))
        return [np.zeros((features.shape[1], 1)) for _ in penalties]

    def deviances(values, rows):
        return np.zeros(1)

    smoothing.average_fits(levels.evaluate(x, x), candidates, folds, fit, deviances)
    first, whole = seen[0], seen[-len(levels.of_means) - 1 - len(basis.roots) :]
    assert first[0] < 100
    parts = [one for rows, one in seen if rows < 400][: len(whole)]
    for block, (part, (_, all_rows)) in enumerate(zip(parts, whole, strict=True)):
        of_kernel = 1 <= block <= len(basis.roots)
        np.testing.assert_allclose(np.array(part) / all_rows, 1.0 if of_kernel else 0.25)


def test_levels_are_stored():
    x, _, _, scores = make_levels(300, 3)
    found, _ = LocationScale.learn(x, scores, 0)
    assert found.log_variance.of_means
    assert found.mixing.of_means
    plain, arrays = store_location(found)

    def restore(described, tensors):
        return restore_location({"degrees": None, "smooth_parts": described}, tensors, x.shape[1], 3)

    arrays = {name: torch.tensor(one) for name, one in arrays.items()}
    again = restore(plain, arrays)
    draws = np.random.default_rng(4).normal(size=(2, 300, 3))
    np.testing.assert_array_equal(again.place(x, draws), found.place(x, draws))
    for name in arrays:
        with pytest.raises((ValueError, KeyError)):
            restore(plain, arrays | {name: arrays[name][..., :-1]})
    for broken in (
        {"n_of_means": 9},
        {"n_of_means": 0},
        {"degree": 99},
        {"n_lengths": 10**6},
        {"held": False},
    ):
        changed = plain | {"log_variance": plain["log_variance"] | broken}
        with pytest.raises((ValueError, KeyError)):
            restore(changed, arrays)
    for name in arrays:
        without = {other: one for other, one in arrays.items() if other != name}
        with pytest.raises((ValueError, KeyError)):
            restore(plain, without)
    for setting in set(plain["mixing"]) - {"held"}:  # which development files do not say
        described = {key: one for key, one in plain["mixing"].items() if key != setting}
        with pytest.raises((ValueError, KeyError)):
            restore(plain | {"mixing": described}, arrays)


def test_units_do_not_matter():
    rng = np.random.default_rng(3)
    x = rng.uniform(size=(400, 2))
    scores = np.stack([x[:, 0] ** 2, x[:, 1]], 1) + (0.2 + x[:, :1]) * rng.normal(size=(400, 2))
    draws = rng.normal(size=(5, 400, 2))
    plain = LocationScale.learn(x, scores, 0)[0].place(x, draws)
    moved = LocationScale.learn(7 * x - 3, 10 * scores, 0)[0].place(7 * x - 3, draws)
    np.testing.assert_allclose(moved / 10, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "p"), [(30, 1), (60, 2), (99, 2), (99, 8), (130, 8)])
def test_few_rows_tell_a_smooth_mean_too(n, p):
    """A polynomial of the degree that so few rows bear is a plane at best."""
    errors, noises = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x, new, noise = rng.uniform(size=(n, p)), rng.uniform(size=(500, p)), rng.normal(size=(n, 1))
        found, _ = LocationScale.learn(x, np.sin(4 * x[:, :1]) + 0.05 * noise, 0)
        wanted = np.sin(4 * new[:, :1])
        errors.append(np.mean((found.mean(new) - wanted) ** 2) / wanted.var())
        noises.append(np.mean(LocationScale.learn(x, noise, 0)[0].mean(new) ** 2))
    assert np.mean(errors) < (0.05 if p < 8 else 0.15)
    # Not more than what a plane by least squares would make of noise.
    assert np.mean(noises) < (p + 1) / n


def test_a_fit_to_few_rows_is_stored(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(25, 3))
    fields = np.sin(3 * T + 4 * x[:, :1]) + 0.05 * rng.normal(size=(25, 1))
    model = LocalW2FieldRegressor(ONE_LAW, random_state=0).fit(x, fields)
    assert len(model._location.center.lengths)
    model.set_params(regressor=None).save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").sample(x, 3, 0), model.sample(x, 3, 0))


def test_held_out_rows_choose_the_law():
    rng = np.random.default_rng(6)
    x = rng.uniform(size=(600, 1))
    side = np.where(rng.random(600) < x[:, 0], 1.0, -1.0)  # modes whose shares depend on x
    modes = side[:, None] + 0.1 * rng.normal(size=(600, 1))
    steps = 3 * (np.floor(9 * x) % 2) + 0.1 * rng.normal(size=(600, 1))  # no smooth function follows
    plain = np.sin(3 * x) + np.exp(x) * rng.normal(size=(600, 1))
    ways = list_ways("auto")
    chosen = [choose_way(ways, x, scores, None, 0) for scores in (plain, modes, steps)]
    assert chosen[0].smooth
    assert chosen[0].regressor.base is None
    assert chosen[1] is not ways[0]
    assert not chosen[2].smooth
    assert [way.smooth for way in list_ways(True)] == [True] * 3
    assert [way.smooth for way in list_ways(False)] == [False]


def test_more_rows_than_candidates_are_compared_on(monkeypatch):
    monkeypatch.setattr(smoothing, "_MOST_CHOOSING", 300)
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (1000, 1))
    scores = x**2 + 0.3 * rng.normal(size=(1000, 1))
    found, standardised = LocationScale.learn(x, scores, 0)
    assert np.abs(found.mean(x) - x**2).mean() < 3 * 0.3 * np.sqrt(5 / 1000)
    np.testing.assert_allclose(standardised.std(0), 1, atol=0.1)


def test_candidates_are_compared_alike_on_a_part_of_the_rows(monkeypatch):
    """Penalties of all rows would hold fits to the few that are compared too tightly."""
    rng, n = np.random.default_rng(0), 12_000
    x = rng.uniform(-1, 1, (n + 2000, 6))
    signal = 5 * x[:, [0, 1, 2, 3]].prod(1) + x[:, 4] + 5 * x[:, [2, 3, 4, 5]].prod(1)
    scores, errors = (signal[:n] + 0.1 * rng.normal(size=n))[:, None], []
    for compared in (n, 1000):
        monkeypatch.setattr(smoothing, "_MOST_CHOOSING", compared)
        found, _ = LocationScale.learn(x[:n], scores, 0)
        errors.append(np.sqrt(np.mean((found.mean(x[n:])[:, 0] - signal[n:]) ** 2)))
    assert errors[1] < 1.5 * errors[0]


def test_an_interrupted_part_is_no_law_of_scores():
    class Interrupted(LocalW2Regressor):
        def fit(self, X, y, sample_weight=None):
            warnings.warn("interrupted before the candidates were weighted", stacklevel=2)
            return self

    with pytest.raises(KeyboardInterrupt):
        ScoreLaw.learn(Interrupted(), None, np.zeros((4, 1)), np.zeros((4, 1)), None, 0)


def test_moments_and_dependence_on_the_grid(fitted):
    x = np.array([[0.1], [0.5], [0.9]])
    mean, std = fitted.predict(x, return_std=True)
    true_mean, true_std = true_moments(x)
    assert np.linalg.norm(mean - true_mean) / np.linalg.norm(true_mean) < 0.05
    inside = slice(1, -1)
    assert np.abs(std[:, inside] / true_std[:, inside] - 1).mean() < 0.1
    draws = fitted.sample(np.repeat(x[1:2], 4000, 0), random_state=0)[0]
    np.testing.assert_allclose(draws.std(0)[inside], std[1, inside], rtol=0.06)
    _, truth = make_fields(0, 5, np.full((4000, 1), 0.5))
    places = [5, 15, 24]  # balls of some hundred rows tell a correlation to .08
    np.testing.assert_allclose(np.corrcoef(draws[:, places].T), np.corrcoef(truth[:, places].T), atol=0.2)


def test_a_simultaneous_band_holds_whole_fields_and_a_pointwise_one_points():
    x, fields = make_fields(1000, 2)
    model = LocalW2FieldRegressor(calibrate=True, random_state=0).fit(x, fields)
    new_x, new = make_fields(400, 3)

    def inside(lower, upper):
        return (lower <= new) & (new <= upper)

    whole = inside(*model.predict_band(new_x, 0.9)).all(1).mean()
    assert abs(whole - 0.9) < 3 * np.sqrt(0.09 / 400 + 0.09 / 200)
    each = inside(*model.predict_band(new_x, 0.9, simultaneous=False))
    assert abs(each.mean() - 0.9) < 0.05
    assert each.all(1).mean() < 0.85  # so that a pointwise band is no simultaneous one
    quantiles = model.predict_quantiles(new_x[:2], [0.05, 0.95])
    pointwise = model.predict_band(new_x[:2], 0.9, simultaneous=False)
    np.testing.assert_allclose(quantiles, pointwise, rtol=1e-9, atol=1e-12)
    with pytest.warns(UserWarning, match="too few"):
        model.predict_band(new_x[:1], 0.999)


def test_a_simultaneous_band_follows_skew_and_still_holds_whole_fields():
    def draw(n, seed):
        rng = np.random.default_rng(seed)
        x = rng.uniform(0, 1, (n, 1))
        waves = rng.normal(size=(2, n, 1)) * np.stack([np.cos(3 * T), np.sin(3 * T)])[:, None]
        return x, np.exp(0.8 * waves.sum(0) * (0.5 + x))

    model = LocalW2FieldRegressor(calibrate=True, random_state=0).fit(*draw(1000, 6))
    x, fields = draw(400, 7)
    mean, std = model.predict(x, return_std=True)
    lower, upper = model.predict_band(x, 0.9)
    whole = ((lower <= fields) & (fields <= upper)).all(1).mean()
    assert abs(whole - 0.9) < 3 * np.sqrt(0.09 / 400 + 0.09 / 200)
    assert ((upper - mean) > 1.5 * (mean - lower)).mean() > 0.9
    # The narrowest band with as much on both bands that holds as many of these very fields is wider.
    k = np.quantile((np.abs(fields - mean) / std).max(1), whole)
    assert (upper - lower).mean() < 2 * k * std.mean()


def test_calibrated_bands_hold_fields_that_differ_where_draws_do_not_vary():
    """Many points have one value in all fields of the fit, and another in a few new ones."""

    def draw(n, rng):
        x = rng.uniform(-1, 1, (n, 1))
        return x, np.hstack([np.sin(5 * T + x) + 0.3 * rng.normal(size=(n, 1)), rng.random((n, 100)) < 0.005])

    held, new, covered = 20, 60, []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*components leave")
            model = LocalW2FieldRegressor(PLAIN, calibrate=True, random_state=0).fit(*draw(5 * held, rng))
        x, fields = draw(new, rng)
        lower, upper = model.predict_band(x, 0.9)
        covered.append(((lower <= fields) & (fields <= upper)).all(1).mean())
        # A field that differs at one point needs a wider band, of the size of that difference.
        assert (upper - lower).max() < 50
    k = np.ceil(0.9 * (held + 1))  # the coverage of new fields is Beta(k, held + 1 - k)
    variance = k * (held + 1 - k) / ((held + 1) ** 2 * (held + 2)) + 0.09 / new
    assert np.mean(covered) > k / (held + 1) - 3 * np.sqrt(variance / len(covered))


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("digits", [0.0, 4.0])
def test_points_with_one_value_change_no_band_and_are_inside(calibrate, digits):
    """Such as values at a boundary, whose last ``digits`` may differ by rounding."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (500, 1))
    fields = 20.1 + x * np.sin(np.pi * T) * np.exp(0.3 * rng.normal(size=(500, 1)))
    ends = np.array([79.8, 8.7]) * (1 + digits * 2e-16 * rng.normal(size=(500, 2)))
    bands = []
    for values in (fields[:, [0, -1]], ends):
        fields[:, [0, -1]] = values
        model = LocalW2FieldRegressor(PLAIN, calibrate=calibrate, random_state=0).fit(x[:300], fields[:300])
        lower, upper = model.predict_band(x[300:])
        bands.append([lower[:, 1:-1], upper[:, 1:-1]])
        assert abs(((lower <= fields[300:]) & (fields[300:] <= upper)).all(1).mean() - 0.9) < 0.1
    np.testing.assert_allclose(bands[1], bands[0], rtol=1e-6)
    assert (upper - lower)[:, [0, -1]].max() < 1e-8
    pointwise = model.predict_band(x[300:], simultaneous=False)
    assert (pointwise[0] <= fields[300:])[:, [0, -1]].mean() > 0.85
    assert (pointwise[1] >= fields[300:])[:, [0, -1]].mean() > 0.85


@pytest.mark.parametrize("constant", [2, 8])  # points where draws do not vary, of 8
@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_bands_are_nested_and_a_field_is_on_the_end_of_its_own(constant, size):
    rng = np.random.default_rng(0)
    draws = rng.gamma(0.5, size=(400, 8)) * np.where(np.arange(8) == 5, 1e-7, 1.0)
    draws[:, 8 - constant :] = 3.0
    bands = Bands.of(draws, spread=0.5)
    assert bands.levels(draws).max() == pytest.approx(bands.last)
    fields = 1 + size * rng.normal(size=(50, 8))
    levels = bands.levels(fields)
    assert levels.max() <= bands.last + np.abs(fields - bands.mean).max() / 0.5
    for field, level in zip(fields, levels, strict=True):
        for share, inside in ((1, True), (0.999, False)):
            lower, upper = bands.widen(bands.ends(share * level))
            assert ((lower <= field) & (field <= upper)).all() == inside


def test_curves_at_points_of_their_own_vary_as_much_as_curves_do():
    rng = np.random.default_rng(4)
    x, fields = make_fields(500, 4)
    points = [np.sort(rng.uniform(0, 1, rng.integers(3, 9))) for _ in x]
    values = [
        np.interp(t, T, field) + rng.normal(0, 0.1, len(t)) for t, field in zip(points, fields, strict=True)
    ]
    model = LocalW2FieldRegressor(grid=T[3:-3], random_state=0).fit(x, values, points)
    assert model.noise_ == pytest.approx(0.1, rel=0.15)
    at = np.array([[0.2], [0.8]])
    mean, std = model.predict(at, return_std=True)
    true_mean, true_std = (part[:, 3:-3] for part in true_moments(at))
    assert np.linalg.norm(mean - true_mean) / np.linalg.norm(true_mean) < 0.1
    assert np.abs(std / true_std - 1).mean() < 0.15
    assert 0.01 < model.left_out_ < 0.4  # measurement errors are a part of it


def make_curves(seed, noise):
    """Curves of 8 measurements each, which the input shifts: (x, values, points, grid)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (80, 1))
    points = [np.sort(rng.uniform(0, 1, 8)) for _ in x]
    values = [np.sin(3 * t + 2 * own) + noise * rng.normal(size=8) for t, own in zip(points, x, strict=True)]
    return x, values, points, np.linspace(0, 1, 21)


@pytest.mark.parametrize("noise", [0.1, 1e-3])
@pytest.mark.parametrize("offset", [1e5, -3e6, 1e9])
def test_curves_far_from_0_are_those_near_it(noise, offset):
    """Pressures in Pa, times in seconds: only the rounding of the measurements makes a difference."""
    x, values, points, grid = make_curves(0, noise)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(x))
    plain, moved = (
        LocalW2FieldRegressor(ONE_LAW, grid=grid, random_state=0).fit(
            x, [y + by for y in values], points, sample_weight=weights
        )
        for by in (0.0, offset)
    )
    # The curves take up about a half of the measurements.
    assert plain.noise_ == pytest.approx(noise, rel=4 / np.sqrt(8 * len(x)))
    rounding = 100 * np.spacing(abs(offset))
    assert moved.noise_ == pytest.approx(plain.noise_, rel=1e-4 + rounding / noise)
    assert moved.left_out_ == pytest.approx(plain.left_out_, rel=1e-4 + rounding / noise)
    (mean, std), (wanted, spread) = moved.predict(x, return_std=True), plain.predict(x, return_std=True)
    np.testing.assert_allclose(mean - offset, wanted, atol=1e-3 * noise + rounding)
    np.testing.assert_allclose(std, spread, atol=1e-3 * noise + rounding)


@pytest.mark.parametrize("unit", [1e-90, 1e90])
def test_units_of_curves_at_points_of_their_own_do_not_matter(unit):
    x, values, points, grid = make_curves(2, 0.1)
    plain, scaled = (
        LocalW2FieldRegressor(ONE_LAW, grid=grid, random_state=0).fit(x, [by * y for y in values], points)
        for by in (1.0, unit)
    )
    assert scaled.noise_ / unit == pytest.approx(plain.noise_)
    assert scaled.left_out_ == pytest.approx(plain.left_out_)
    np.testing.assert_allclose(scaled.predict(x) / unit, plain.predict(x), atol=1e-6)


@pytest.mark.parametrize("level", [0.0, 0.1, 1e9])
def test_equal_measurements_give_one_curve_without_noise(level):
    x, values, points, grid = make_curves(3, 0.1)
    model = LocalW2FieldRegressor(ONE_LAW, grid=grid, random_state=0)
    model.fit(x, [np.full_like(y, level) for y in values], points)
    assert model.noise_ == 0
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, level, rtol=1e-14)
    np.testing.assert_allclose(std, 0, atol=1e-14 * level)


@pytest.mark.parametrize(("unit", "offset"), [(1.0, 0.0), (1.0, 1e5), (1e20, 0.0), (1e-25, 0.0)])
def test_r2_is_that_of_the_numbers_in_single_precision(unit, offset):
    """Squares of single precision lose their digits, overflow or vanish."""
    x, fields = make_fields(120, 9)
    single = (unit * (fields + offset)).astype(np.float32)
    model = LocalW2FieldRegressor(ONE_LAW, random_state=0).fit(x, single)
    for given in (single, single[::-1]):
        double = given.astype(np.float64)
        wanted = 1 - ((double - model.predict(x)) ** 2).sum() / ((double - double.mean(0)) ** 2).sum()
        assert model.score(x, given) == pytest.approx(wanted, abs=1e-9)


def test_r2_of_equal_fields_is_not_a_number_and_of_too_large_ones_an_error(fitted):
    x = np.full((7, 1), 0.5)
    assert np.isnan(fitted.score(x, np.full((7, 30), 3.3)))
    with pytest.raises(ValueError, match=r"^Y .*overflow"):
        fitted.score(x, np.full((7, 30), 1e160) * np.arange(1, 8)[:, None])


def test_images_tables_and_networks(tmp_path):
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"kind": rng.choice(["a", "b"], 120), "size": rng.normal(size=120)})
    frame.loc[3, "size"] = np.nan
    level = np.where(frame["kind"] == "a", 1.0, 3.0) + rng.normal(0, 0.1, 120)
    images = level[:, None, None] * np.outer(np.arange(1, 5), np.arange(1, 4))
    law = LocalW2Regressor(Network.with_noise(epochs=3), delta=Nearest(20), base=None)
    model = LocalW2FieldRegressor(law, random_state=0).fit(frame, images)
    assert model.n_components_ == 1
    assert model.sample(frame[:5], 2, random_state=0).shape == (2, 5, 4, 3)
    mean = model.predict(pd.DataFrame({"kind": ["a", "b"], "size": [0.0, 0.0]}))
    np.testing.assert_allclose(mean[1].mean() / mean[0].mean(), 3, rtol=0.1)
    assert model.score(frame, images) > 0.9
    with pytest.warns(UserWarning, match="regressor"):
        model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))


def test_files_come_back_bit_for_bit_and_damaged_ones_are_refused(tmp_path, fitted):
    fitted.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    x = np.array([[0.3], [0.7]])
    for name, arguments in (("predict", {"return_std": True}), ("predict_band", {})):
        again, before = (getattr(model, name)(x, **arguments) for model in (loaded, fitted))
        np.testing.assert_array_equal(again, before)
    np.testing.assert_array_equal(loaded.sample(x, 3, random_state=1), fitted.sample(x, 3, random_state=1))
    assert vars(loaded).keys() == vars(fitted).keys()
    stored = read(tmp_path / "model")
    for change in ({"basis": stored.tensors["basis"][:, :-1]}, {"mean": stored.tensors["mean"] * np.nan}):
        write(
            tmp_path / "bad", Stored(stored.kind, stored.settings, stored.tensors | change, stored.regressors)
        )
        with pytest.raises(ValueError, match="cannot be used"):
            load(tmp_path / "bad")


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("own_points", [False, True])
@pytest.mark.parametrize("grid", [None, T.astype(np.float32), list(T)])
@pytest.mark.filterwarnings("ignore:regressor is not stored")
def test_fields_in_single_precision_are_stored_and_refitted_on_their_grid(
    tmp_path, grid, own_points, calibrate
):
    x, fields = make_fields(60, 8)
    single, points = fields.astype(np.float32), [T.astype(np.float32)] * len(fields)
    model = LocalW2FieldRegressor(PLAIN, grid=grid, calibrate=calibrate, random_state=0)
    model.fit(x, *(([*single], points) if own_points else (single,)))
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_band(x), model.predict_band(x))
    again = loaded.get_params()["grid"]
    if grid is None:
        assert again is None
    else:
        np.testing.assert_array_equal(again, np.asarray(grid, float))


@pytest.mark.filterwarnings("ignore:regressor is not stored")
def test_files_that_hold_single_precision_are_read(tmp_path):
    x, fields = make_fields(60, 8)
    model = LocalW2FieldRegressor(PLAIN, grid=T, random_state=0).fit(x, fields)
    stored = model.to_stored()
    single = {name: stored.tensors[name].float() for name in ("mean", "basis", "remainders", "grid")}
    write(tmp_path / "old", Stored(stored.kind, stored.settings, stored.tensors | single, stored.regressors))
    np.testing.assert_allclose(load(tmp_path / "old").predict(x), model.predict(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("unit", "word"), [(1e-170, "vanish"), (1e160, "overflow")])
def test_units_whose_squares_are_no_numbers_are_named(unit, word):
    x, fields = make_fields(60, 8)
    for arguments in ((unit * fields,), ([*(unit * fields)], [T] * 60)):
        with pytest.raises(ValueError, match=f"^Y .*{word}"):
            LocalW2FieldRegressor(PLAIN).fit(x, *arguments)
    fading = fields * np.exp(-300 * T)  # a single point may be as small as it likes
    found, wanted = (
        LocalW2FieldRegressor(PLAIN, random_state=0).fit(x, one).predict(x)
        for one in (fading, np.where(np.arange(30) < 25, fading, 0.0))
    )
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_misuse_is_named(fitted):
    x = np.zeros((20, 1))
    with pytest.raises(ValueError, match="points"):
        LocalW2FieldRegressor().fit(x, np.full((20, 4), np.nan))
    with pytest.raises(ValueError, match="shape"):
        LocalW2FieldRegressor().fit(x, np.zeros(20))
    with pytest.raises(ValueError, match="curve 0"):
        LocalW2FieldRegressor().fit(x, [np.zeros(2)] * 20, [np.zeros(3)] * 20)
    with pytest.raises(ValueError, match="regressor"):
        LocalW2FieldRegressor(regressor="balls").fit(x, np.zeros((20, 4)))
    with pytest.raises(ValueError, match="grid"):
        LocalW2FieldRegressor(grid=[0.0, 1.0]).fit(x, np.zeros((20, 4)))
    with pytest.raises(ValueError, match="Y has shape"):
        fitted.score(x, np.zeros((20, 4)))
    rng = np.random.default_rng(0)
    model = LocalW2FieldRegressor(max_components=2, random_state=0)
    with pytest.warns(UserWarning, match="components leave"):
        model.fit(rng.normal(size=(60, 1)), rng.normal(size=(60, 10)))
    assert model.left_out_ > 0.5


def test_curves_at_points_of_their_own_are_drawn_and_odd_ones_named():
    rng = np.random.default_rng(5)
    x = rng.uniform(size=(60, 1))
    points = [rng.uniform(0, 1, rng.integers(1, 6)) for _ in x]  # unsorted, some have one point
    values = [np.sin(3 * t) + shift + rng.normal(0, 0.1, len(t)) for t, shift in zip(points, x, strict=True)]
    model = LocalW2FieldRegressor(random_state=0).fit(x, values, points)
    draws = model.sample(x[:3], 40, random_state=0)
    assert draws.shape == (40, 3, 50)
    np.testing.assert_allclose(draws.mean(0), model.predict(x[:3]), atol=0.3)
    with pytest.raises(ValueError, match="curve 0"):
        LocalW2FieldRegressor().fit(x, [np.empty(0), *values[1:]], points)
    with pytest.raises(ValueError, match="points="):
        LocalW2FieldRegressor().fit(x, values)
