"""The paper's regression experiments: plain cells, records that resume, pictures from records, oracles."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import architecture
import harder
import linear
import linear_fit
import nonlinear
import nonlinear_fit
import panels
import publication
import records
from localw2.datasets import Linear, Nonlinear

SCRIPTS = {"linear": linear, "nonlinear": nonlinear, "harder": harder, "architecture": architecture}


def options(folder, quick=True, repeats=1):
    return records.Options(quick, repeats, 1, folder / "results", folder / "figures")


def fake(cell):
    """Values of the right kind for any cell."""
    names = ("b_error", "s_error", "mean_error_100", "std_error_100", "mean_error", "std_error")
    values = {name: 0.1 + 0.01 * i for i, name in enumerate(names)}
    values |= {"mean_error_100_sd": 0.004, "std_error_100_sd": 0.02, "fit_seconds": 1.5, "ball_rows": 3.0}
    values |= {"b": [1.0, 1.0, 2.0, 3.0], "s": [0.05, 0.1, 0.15, 0.2]}
    if cell.get("pictured"):
        values["draws"] = np.random.default_rng(0).normal(size=(20, cell["test"][2])).tolist()
    return values


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
class TestCells:
    def test_are_plain_and_distinct(self, script, quick, tmp_path):
        cells = script.list_cells(options(tmp_path, quick))
        texts = [json.dumps(cell, sort_keys=True, allow_nan=False) for cell in cells]
        assert [json.loads(text) for text in texts] == cells
        assert len(set(texts)) == len(texts)

    def test_more_repeats_keep_the_cells_of_fewer(self, script, quick, tmp_path):
        one, two = (script.list_cells(options(tmp_path, quick, repeats)) for repeats in (1, 2))
        assert all(cell in two for cell in one)
        seeds = {cell["seed"] for cell in two if cell["method"] not in nonlinear.COMPARED}
        assert seeds == {publication.FIRST_SEED, publication.FIRST_SEED + 1}


def test_the_full_cells_have_the_papers_settings(tmp_path):
    full = options(tmp_path, quick=False, repeats=publication.REPEATS)
    drawn = [cell for cell in nonlinear.list_cells(full) if cell["method"] == "local W2"]
    for rows in (1000, 2000):
        assert len({cell["seed"] for cell in drawn if cell["rows"] == rows}) == 20
    for cell in drawn:
        wanted = {"delta": 0.025, "max_epochs": 1000, "learning_rate": 0.025, "depth": 4, "width": 50}
        assert wanted.items() <= cell["parameters"].items()
    found = [cell for cell in architecture.list_cells(full) if cell["method"] == "printed"]
    assert len(found) == 110
    assert {(cell["rows"], cell["parameters"]["delta"]) for cell in found} == {(1000, 0.1), (2000, 0.1)}
    trained = [cell["training"] for cell in linear.list_cells(full) if cell["method"] == "printed"]
    assert all(t == {"max_epochs": 1000, "learning_rate": 0.02, "weight_decay": 0.005} for t in trained)


class TestRecords:
    @pytest.fixture
    def code(self, tmp_path):
        path = tmp_path / "script.py"
        path.write_text("one = 1")
        return path

    def test_are_read_as_they_were_made(self, tmp_path, code):
        cells = [{"a": 1, "seed": 0}, {"a": None, "seed": 1}]
        made = records.compute(
            "try", cells, lambda cell: {"double": 2 * cell["seed"]}, options(tmp_path), code
        )
        assert records.read("try", options(tmp_path)) == made
        assert [record["settings"] for record in made] == cells
        assert records.group(made, "a")[(None,)][0]["double"] == 2

    def test_a_killed_run_goes_on_where_it_was(self, tmp_path, code):
        cells, seen = [{"seed": i} for i in range(3)], []

        def function(cell):
            seen.append(cell["seed"])
            if len(seen) == 3:
                raise KeyboardInterrupt
            return {"value": cell["seed"]}

        with pytest.raises(KeyboardInterrupt):
            records.compute("try", cells, function, options(tmp_path), code)
        made = records.compute("try", cells, function, options(tmp_path), code)
        assert seen == [0, 1, 2, 2]
        assert [record["values"]["value"] for record in made] == [0, 1, 2]

    def test_the_time_by_the_clock_is_that_of_all_runs(self, tmp_path, code):
        path = tmp_path / "results" / "try.json"

        def run(repeats):
            cells = [{"seed": i} for i in range(repeats)]
            records.compute("try", cells, lambda cell: time.sleep(0.2) or {}, options(tmp_path), code)
            return json.loads(path.read_text())["wall_seconds"]

        first = run(1)
        assert first >= 0.2
        assert run(1) == first  # nothing was left to do
        second = run(2)
        assert second >= first + 0.2
        code.write_text("one = 2")
        assert run(2) == second  # a check is no part of the computation
        content = json.loads(path.read_text())
        for record in content["records"]:
            record["values"] = {"of": "before"}
        path.write_text(json.dumps(content | {"wall_seconds": 1e6}))
        code.write_text("one = 3")
        assert run(2) < 1e6  # all was computed again: the time is that of what there is

    def test_new_settings_are_computed_and_old_ones_are_not(self, tmp_path, code):
        seen = []

        def run(cells):
            records.compute(
                "try", cells, lambda cell: seen.append(cell["seed"]) or {}, options(tmp_path), code
            )

        run([{"seed": 0}])
        run([{"seed": 0}])
        assert seen == [0]
        run([{"seed": 0}, {"seed": 1}])
        assert seen == [0, 1]

    def test_of_other_code_stand_only_if_a_cell_of_the_method_comes_out_the_same(self, tmp_path, code):
        cells = [{"method": m, "seed": i} for m in ("kept", "changed") for i in range(3)]
        seen, factors = [], {"kept": 1.0, "changed": 1.0}

        def function(cell):
            seen.append((cell["method"], cell["seed"]))
            return {"value": factors[cell["method"]] * cell["seed"], "fit_seconds": len(seen)}

        def run():
            seen.clear()
            return records.compute("try", cells, function, options(tmp_path), code)

        old = run()
        code.write_text("one = 2")
        factors["changed"] = 2.0
        # All of these take no time, so that the cheapest cell could be the one whose value, 0, is the same.
        path = tmp_path / "results" / "try.json"
        content = json.loads(path.read_text())
        for record in content["records"]:
            record["seconds"] = 1.0 if record["settings"]["seed"] == 1 else 2.0
        path.write_text(json.dumps(content))
        new = run()
        assert sorted(seen) == [("changed", 0), ("changed", 1), ("changed", 2), ("kept", 1)]
        assert [r["values"]["value"] for r in new] == [0, 1, 2, 0, 2, 4]
        assert new[0] == old[0] | {"seconds": 2.0}
        assert new[1] == old[1] | {
            "seconds": 1.0
        }  # checked: the same, with the seconds that it took at first
        assert json.loads(path.read_text())["stamps"] != content["stamps"]
        assert run() == new
        assert seen == []

    def test_of_several_codes_are_checked_code_by_code(self, tmp_path, code):
        cells = [{"method": "one", "seed": i} for i in range(4)]
        factor = 1.0

        def function(cell):
            if factor == 2.0 and cell["seed"] == 2:
                raise KeyboardInterrupt
            return {"value": factor * (1 + cell["seed"])}

        records.compute("try", cells, function, options(tmp_path), code)
        code.write_text("one = 2")
        factor = 2.0
        with pytest.raises(KeyboardInterrupt):  # some cells are then of the second code, others of the first
            records.compute("try", cells, function, options(tmp_path), code)
        code.write_text("one = 3")
        factor = 2.0 + 1e-12
        made = records.compute("try", cells, function, options(tmp_path), code)
        assert [r["values"]["value"] for r in made] == pytest.approx([2, 4, 6, 8])

    def test_a_check_that_is_killed_is_made_again(self, tmp_path, code):
        cells, calls = [{"method": "one", "seed": i} for i in range(3)], []

        def function(cell):
            calls.append(cell["seed"])
            if len(calls) == 5:
                raise KeyboardInterrupt
            return {"value": cell["seed"] + (len(calls) > 3)}

        records.compute("try", cells, function, options(tmp_path), code)
        code.write_text("one = 2")
        with pytest.raises(KeyboardInterrupt):
            records.compute("try", cells, function, options(tmp_path), code)
        made = records.compute("try", cells, function, options(tmp_path), code)
        assert [r["values"]["value"] for r in made] == [1, 2, 3]


@pytest.mark.parametrize(("name", "script"), SCRIPTS.items(), ids=SCRIPTS)
def test_pictures_and_tables_come_from_records_alone(name, script, tmp_path):
    chosen = options(tmp_path)
    records.compute(name, script.list_cells(chosen), fake, chosen, Path(__file__))
    script.draw(chosen)
    pictures = sorted(chosen.figures.glob("*.png"))
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    tables = (chosen.figures / f"{name}.md").read_text()
    assert ".100 +- .000" in tables or ".120 +- .000" in tables
    assert "nan" not in tables


def test_the_spread_on_the_line_is_that_of_draws():
    s = [0.1, 0.1, 0.5, 0.0]
    drawn = linear._sample_line([0.0] * 4, s, 20_000, 0).std(0)
    true = linear._sample_line([0.0] * 4, linear_fit.TRUTH.coefficient_stds, 20_000, 1).std(0)
    # The SD of a ratio of two SDs of 20 000 draws is .007, and the ten points are independent.
    assert linear.compare_spread(s) == pytest.approx((drawn / true).mean(), abs=0.01)


def test_a_failed_fit_is_told_and_left_out(tmp_path):
    chosen = options(tmp_path, repeats=2)

    def function(cell):
        broken = cell["method"] == "global MMD" or (cell["method"] == "BNN" and cell["seed"] % 2)
        return {"failed": "not finite"} if broken else fake(cell)

    records.compute("nonlinear", nonlinear.list_cells(chosen), function, chosen, Path(__file__))
    nonlinear.draw(chosen)
    lines = (chosen.figures / "nonlinear.md").read_text().splitlines()
    cells = {line.split("|")[1].strip(): line.split("|") for line in lines if line.startswith("|")}
    assert (cells["global MMD"][2].strip(), cells["global MMD"][-2].strip()) == ("-", "2")
    assert (cells["BNN"][2].strip(), cells["BNN"][-2].strip()) == (".120 +- .000", "1")


def test_numbers_and_tables_as_text():
    assert panels.format_number((0.0532, 0.0131)) == ".053 +- .013"
    assert panels.format_number((2.5523, 0.1), 1) == "2.6 +- .1"
    assert panels.format_number((math.nan, math.nan)) == "-"
    assert panels.format_table([["a", "b"], [1, "two"]]).splitlines() == [
        "| a | b   |",
        "|---|-----|",
        "| 1 | two |",
    ]


def test_no_worse_is_two_standard_errors_of_the_difference():
    limit = 0.04 + 2 * math.sqrt((0.01**2 + 0.02**2) / 5)
    assert architecture.is_no_worse((limit - 1e-9, 0.02), (0.04, 0.01))
    assert not architecture.is_no_worse((limit + 1e-9, 0.02), (0.04, 0.01))


class TestLinear:
    def test_the_error_is_the_papers(self):
        assert linear_fit.relative_error([1, 1, 2, 3], [1, 1, 2, 3]) == 0
        assert linear_fit.relative_error([1, 1, 2, 3], [0, 2, 2, 3]) == pytest.approx(2 / 7)

    def test_readings_of_delta(self):
        assert linear_fit.read_radius({"delta": 0.04, "reading": "literal"}) == 0.04
        assert linear_fit.read_radius({"delta": 0.04, "reading": "root"}) == pytest.approx(0.2)

    def test_balls_are_as_small_as_is_said(self):
        x, y = Linear().sample(1000, random_state=0)
        assert 1.5 < linear_fit.count_ball_rows(x, y, 0.05, "homo") < 2.3
        assert 1.0 < linear_fit.count_ball_rows(x, y, 0.05, "hete") < 1.3

    def test_maximum_likelihood_is_near_the_truth(self, tmp_path):
        for cell in linear.list_cells(options(tmp_path, quick=False)):
            if cell["method"] == "maximum likelihood" and cell["rows"] == 4000:
                values = linear_fit.run(cell)
                assert values["b_error"] < 0.03
                assert values["s_error"] < 0.15


class TestNonlinear:
    def cell(self, **chosen):
        return nonlinear_fit.make_cell("m", 0, 2000, "formula", nonlinear_fit.ORACLE, 100, **chosen)

    def test_the_formula_at_the_true_parameters_is_the_truth(self):
        truth, x = Nonlinear(), np.linspace(-0.5, 0.5, 11)
        root = np.linalg.cholesky(np.array(truth.omega_covariance))
        v = np.array([*truth.omega_mean, root[0, 0], root[1, 0], root[1, 1]])
        guess = nonlinear_fit.make_formula(v)
        assert guess.mean(x) == pytest.approx(truth.mean(x))
        assert guess.std(x) == pytest.approx(truth.std(x), abs=1e-6)

    def test_the_oracle_finds_the_moments(self):
        truth, cell = Nonlinear(), self.cell()
        draw = nonlinear_fit.fit_formula(cell, *truth.sample(2000, random_state=0))
        inputs = nonlinear_fit.make_inputs(cell)
        draws = draw(inputs, 20_000, 1)
        assert np.abs(draws.mean(0) - truth.mean(inputs)).sum() / np.abs(truth.mean(inputs)).sum() < 0.02
        assert np.abs(draws.std(0) - truth.std(inputs)).sum() / truth.std(inputs).sum() < 0.06

    def test_the_noise_floor_of_the_mean_is_that_of_two_gaussian_means(self):
        """E|difference of two means of 100| = SD sqrt(2 / 100) sqrt(2 / pi), nearly Gaussian; 5 sigma."""
        truth, cell = Nonlinear(), self.cell()
        inputs = nonlinear_fit.make_inputs(cell)
        expected = truth.std(inputs).sum() * math.sqrt(0.02 * 2 / math.pi) / np.abs(truth.mean(inputs)).sum()
        floor = nonlinear_fit.measure_floor(truth, cell)
        error = 5 * floor["mean_error_100_sd"] / math.sqrt(nonlinear_fit.FLOOR_PAIRS)
        assert floor["mean_error_100"] == pytest.approx(expected, abs=error + 0.01 * expected)
        assert floor["std_error_100"] == pytest.approx(0.096, abs=0.005)

    def test_wider_laws(self):
        truth = nonlinear_fit.make_truth({"sd": 0.5, "half_width": 0.7})
        assert truth == Nonlinear(omega_covariance=((0.25, 0.0), (0.0, 0.25)), half_width=0.7)
        assert nonlinear_fit.make_truth({"sd": None, "half_width": 0.5}) == Nonlinear()

    def test_draws_of_the_bayesian_network_have_its_law_at_each_input(self):
        """The exact shortcut against torchbnn's own passes, one draw of the weights each."""
        torchbnn = pytest.importorskip("torchbnn")
        inputs = np.array([[-0.4], [0.5]])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [torchbnn.BayesLinear(0, 0.3, 1, 8), torchbnn.BayesLinear(0, 0.3, 8, 1)]
            model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
            x = torch.tensor(inputs, dtype=torch.float32)
            with torch.no_grad():
                passes = torch.stack([model(x)[:, 0] for _ in range(4000)]).double().numpy()
        draws = nonlinear_fit.draw_bnn(layers, inputs, 4000, 0)
        assert draws.shape == passes.shape
        tolerance = 5 * passes.std(0).max() * math.sqrt(2 / 4000)
        assert draws.mean(0) == pytest.approx(passes.mean(0), abs=tolerance)
        assert draws.std(0) == pytest.approx(passes.std(0), abs=tolerance)

    def test_a_fit_of_each_kind_gives_plain_values_and_leaves_torch_s_generator(self, tmp_path):
        state = torch.get_rng_state()
        for cell in nonlinear.list_cells(options(tmp_path)):
            if cell["method"] in ("truth", "global W2", "BNN", "knows the formula"):
                small = cell | {
                    "parameters": cell["parameters"] | {"max_epochs": 2},
                    "rows": min(60, cell["rows"]),
                }
                values = nonlinear_fit.run(small)
                assert json.loads(json.dumps(values, allow_nan=False)) == values
                assert np.shape(values["draws"]) == (100, 11)
                assert values["mean_error_100"] > 0
        assert torch.equal(torch.get_rng_state(), state)
