"""Subjects of a population, from a long table: predictions, checks, residuals, diagnosis, pictures."""

import copy

import numpy as np
import pandas as pd
import pytest

from localw2 import LocalW2ODE, LogNormal, load, plots
from localw2.estimators.dynamics.long_tables import LongTable
from localw2.estimators.dynamics.population.predictive_check import PredictiveCheck, make_bins
from localw2.estimators.dynamics.population.residuals import Residuals

ROLES = {"subject": "who", "time": "h", "observed": "conc", "dose": "mg", "covariates": {"weight": "kg"}}
SIGMA = 0.15


def decay(t, y, k, weight):
    """Elimination by rates that fall with weight."""
    return -k * y * (70 / weight)


def subjects(n, seed, typical=0.5, spread=0.3, sigma=SIGMA):
    """Dose rows and observations at own times, unsorted, with the rates behind them."""
    rng = np.random.default_rng(seed)
    k, kg, rows = np.exp(rng.normal(np.log(typical), spread, n)), rng.uniform(50, 90, n), []
    mg = rng.choice([5.0, 10.0], n)
    for i in range(n):
        rows.append([f"s{i:02d}", 0.0, np.nan, mg[i], kg[i]])
        for h in rng.choice(np.arange(1, 25) / 4, rng.integers(4, 7), replace=False):
            exact = mg[i] * np.exp(-k[i] * 70 / kg[i] * h)
            rows.append([f"s{i:02d}", h, exact + sigma * rng.normal(), np.nan, kg[i]])
    frame = pd.DataFrame(rows, columns=["who", "h", "conc", "mg", "kg"])
    return frame.sample(frac=1, random_state=seed), k


def subjects_of(model, n, seed):
    """New subjects whose law is the one that was learned: there a model is right."""
    typical, spread = (model.population_.find("k", kind).value for kind in ("typical", "spread"))
    return subjects(n, seed, typical, spread, model.noise_[0])[0]


@pytest.fixture(scope="module")
def fitted():
    frame, k = subjects(40, 0)
    model = LocalW2ODE(decay, {"k": LogNormal(0.4, 0.15)}, noise="additive", max_epochs=40, random_state=0)
    return model.fit_table(frame, **ROLES), frame, k


def test_the_table_is_fitted_like_arrays(fitted):
    model, frame, _ = fitted
    assert abs(model.population_.find("k", "typical").value - 0.5) < 0.08
    assert abs(model.population_.find("k", "spread").value - 0.3) < 0.12
    assert abs(model.noise_[0] / SIGMA - 1) < 0.25
    assert model.subjects_[:2] == ["s00", "s01"]
    assert model.t0_ == 0.0
    table = LongTable.of(frame, **ROLES)
    own = model.individual_parameters(table, random_state=0)
    same = model.individual_parameters(table.Y, table.t, **table.design, random_state=0)
    np.testing.assert_array_equal(own.samples["k"], same.samples["k"])


def test_columns_and_labels_are_kept_in_files(fitted, tmp_path):
    model, frame, _ = fitted
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", field=decay)
    assert again.table_columns_ == model.table_columns_
    assert again.subjects_ == model.subjects_
    assert again.summary() == model.summary()
    one, two = (each.individual_parameters(frame, n_samples=20, random_state=0) for each in (model, again))
    np.testing.assert_allclose(one.samples["k"], two.samples["k"])


def test_states_that_start_from_zero_are_known():
    rng = np.random.default_rng(0)
    rows = {"who": np.repeat(np.arange(12), 3), "h": np.tile([1.0, 2.0, 3.0], 12)}
    rows["cm"] = np.repeat(rng.normal(2.0, 0.4, 12), 3) * rows["h"] + 0.2 * rng.normal(size=36)
    model = LocalW2ODE(
        lambda t, y, k: k + 0 * y, {"k": LogNormal(2.0)}, noise=0.2, max_epochs=2, random_state=0
    )
    with pytest.warns(UserWarning, match="12 subjects"):
        model.fit_table(rows, subject="who", time="h", observed="cm", y0=0.0, t0=0.0)
    own, given = (model.individual_parameters(rows, y0=y0, random_state=0) for y0 in (None, [0.0]))
    np.testing.assert_array_equal(own.samples["k"], given.samples["k"])


def test_individuals_are_between_their_data_and_the_population(fitted):
    model, frame, k = fitted
    found = model.individual_parameters(frame, random_state=0)
    low, _, high = found.quantiles()["k"]
    assert ((low < k) & (k < high)).mean() > 0.75  # nine of ten, of 40
    predicted = model.individual_predictions(frame, at=[0.0, 1.0, 12.0], random_state=0)
    table = LongTable.of(frame, **ROLES)
    assert predicted.samples.shape == (200, 40, 3, 1)
    truth = table.doses["amount"][np.argsort(table.doses["subject"])] * np.exp(
        -k * 70 / table.covariates["weight"] * 1.0
    )
    error, spread = (np.abs(x[:, 1, 0] - truth).mean() for x in (predicted.mean, predicted.population))
    assert error < 0.6 * spread
    low, high = predicted.interval(0.9)
    assert ((low[:, 1, 0] < truth) & (truth < high[:, 1, 0])).mean() > 0.75
    wider = model.individual_predictions(frame, at=[12.0], measured=True, random_state=0)
    assert (wider.samples.std(0) > 0.8 * SIGMA).all()


def test_predictions_at_ones_own_times(fitted):
    model, frame, _ = fitted
    found = model.individual_predictions(frame, at="observed", n_samples=50, random_state=0)
    table = LongTable.of(frame, **ROLES)
    paths = table.paths()
    for i, (times, values) in enumerate(paths):
        own = np.isfinite(found.times[i])
        np.testing.assert_allclose(found.times[i][own], times)
        assert np.abs(found.mean[i][own] - values).mean() < 4 * SIGMA
        assert np.isnan(found.samples[:, i, ~own]).all()


def test_new_subjects_are_judged(fitted):
    model, _, _ = fitted
    new = subjects_of(model, 60, 5)
    found = model.diagnose(new, n_samples=100, random_state=0)
    assert found.calibrated
    noisy, _ = subjects(60, 5, sigma=1.0)
    assert not model.diagnose(noisy, n_samples=100, random_state=0).calibrated


def test_the_predictive_check_tells_right_from_wrong(fitted):
    model, _, _ = fitted
    new = subjects_of(model, 60, 6)
    right = model.predictive_check(new, n_samples=100, random_state=0)
    assert right.inside.mean() > 0.75
    assert (np.diff(right.time) > 0).all()
    wrong = model.predictive_check(new.assign(conc=1.6 * new["conc"]), n_samples=100, random_state=0)
    assert wrong.inside[1].mean() < 0.5
    corrected = model.predictive_check(new, n_samples=100, corrected=True, random_state=0)
    assert corrected.inside.mean() > 0.75
    wide = [(check.upper - check.lower)[1].mean() for check in (corrected, right)]
    assert wide[0] < wide[1]  # two doses no longer count as spread


def test_residuals_of_new_subjects_are_standard_normal(fitted):
    model, _, _ = fitted
    new = subjects_of(model, 60, 7)
    found = model.residuals(new, random_state=0)
    assert abs(found.normalised.mean()) < 0.35  # observations of a subject go together
    assert 0.8 < found.normalised.std() < 1.25
    assert 0.7 < found.standardised.std() < 1.15
    assert len(found.columns()["observed"]) == new["conc"].notna().sum()


def test_intervals_of_the_population(fitted):
    model, _, _ = fitted
    new = subjects_of(model, 20, 8)
    table = LongTable.of(new, **ROLES)
    first = np.array([[times[0], times[-1]] for times, _ in table.paths()])
    values = np.array([[y[0, 0], y[-1, 0]] for _, y in table.paths()])
    lower, upper = model.predict_interval(None, first, **table.design)
    assert lower.shape == (20, 2, 1)
    inside = (lower[..., 0] <= values) & (values <= upper[..., 0])
    assert inside.mean() > 0.75


def test_pictures(fitted):
    pytest.importorskip("matplotlib").use("Agg")
    model, frame, _ = fitted
    table = LongTable.of(frame, **ROLES)
    axes = plots.predictive_check(model.predictive_check(table, n_samples=20), ["conc [mg/L]"], "time [h]")
    assert (axes[0].get_xlabel(), axes[0].get_ylabel()) == ("time [h]", "conc [mg/L]")
    axes = plots.residuals(model.residuals(table, n_samples=20), time="h")
    assert axes.shape == (2, 3)
    assert all(ax.get_xlabel() and ax.get_ylabel() and ax.lines for ax in axes.flat)
    grid = np.linspace(0, 6, 5)
    predicted = model.individual_predictions(table, at=grid, n_samples=20)
    axes = plots.individual_fits(predicted, table.paths(), name="$conc")
    assert [ax.get_title() for ax in axes[:2]] == ["s00", "s01"]
    assert len(axes) == 16
    lines = model.sample(None, grid, 5, **table.design)
    ax = plots.trajectories(grid, lines, table.paths(), names=["conc"], time="h")[0]
    assert sum(line.get_alpha() == 0.5 for line in ax.lines) == 40
    with pytest.raises(ValueError, match="expected"):
        plots.trajectories(grid, lines, [(grid, np.zeros((4, 1)))])


def test_bins():
    common = np.tile([0.0, 1.0, 5.0], (8, 1))
    everything = np.ones(common.shape, bool)
    np.testing.assert_allclose(make_bins(common, everything), [0.0, 0.5, 3.0, 5.0])
    rng = np.random.default_rng(0)
    visits = common + rng.uniform(0, 0.4, common.shape)
    edges = make_bins(visits, everything)
    assert len(edges) == 4
    assert [np.histogram(visits[:, j], edges)[0].max() for j in range(3)] == [8, 8, 8]
    anytime = rng.uniform(size=(30, 4))
    edges = make_bins(anytime, np.ones(anytime.shape, bool))
    assert np.histogram(anytime, edges)[0].min() >= 10
    assert make_bins(np.zeros((3, 1)), np.ones((3, 1), bool)).tolist() == [0.0, 0.0]


def test_a_check_of_the_truth_covers_as_it_says():
    """Simulated and observed values from one law: about 90 % of the quantiles are inside."""
    rng = np.random.default_rng(0)
    times = np.tile(np.arange(10.0), (50, 1))
    share = []
    for _ in range(10):
        values, draws = rng.normal(size=(50, 10, 1)), rng.normal(size=(100, 50, 10, 1))
        check = PredictiveCheck.of(times, values, draws, (0.1, 0.5, 0.9), 0.9, None, ["y"], None)
        share.append(check.inside.mean())
    assert 0.84 < np.mean(share) < 0.96


def test_values_at_a_limit_have_normal_ranks():
    rng = np.random.default_rng(0)
    values = np.maximum(rng.normal(size=(100, 5, 1)), -0.5)
    draws = np.maximum(rng.normal(size=(300, 100, 5, 1)), -0.5)
    times = np.tile(np.arange(5.0), (100, 1))
    nothing = np.zeros((100, 5, 1))
    found = Residuals.of(times, values, draws, nothing, nothing + 1, -0.5, list(range(100)), ["y"], rng)
    assert abs(found.normalised.mean()) < 0.15
    assert abs(found.normalised.std() - 1) < 0.1
    assert np.isnan(found.standardised[found.below]).all()
    assert abs(found.below.mean() - 0.31) < 0.08


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m, f: m.predictive_check(f, n_samples=5), "n_samples"),
        (lambda m, f: m.predictive_check(f, bins=[0, 1]), "widen"),
        (lambda m, f: m.predictive_check(f, bins=[0, 1e-9, 9]), "no observation"),
        (lambda m, f: m.individual_predictions(f, at="now"), "observed"),
        (lambda m, f: m.individual_predictions(f, at=[-1.0]), "rising"),
        (lambda m, f: m.individual_parameters(f, doses={}), "ignored"),
        (lambda m, f: m.individual_parameters([[1.0, 2.0]], [1.0, 2.0]), "y0 is unknown"),
        (lambda m, f: m.individual_parameters([[1.0, 2.0]], [1.0, 2.0], y0=1.0), "needs weight"),
        (lambda m, f: m.fit_table(f, subject="who", time="h"), "observed"),
        (lambda m, f: m.fit_table(LongTable.of(f, **ROLES), subject="who"), "has been read"),
        (lambda m, f: m.diagnose(f, n_times=9), "n_times"),
    ],
)
def test_bad_questions(fitted, ask, message):
    model, frame, _ = fitted
    with pytest.raises(ValueError, match=message):
        ask(model, frame)


def test_frames_need_a_fit_by_table(fitted):
    model, frame, _ = fitted
    other = copy.copy(model)
    del other.table_columns_
    with pytest.raises(ValueError, match="LongTable"):
        other.individual_parameters(frame)
