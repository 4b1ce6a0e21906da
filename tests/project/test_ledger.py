"""The stamp of a record: it follows the code that computed the record, and nothing else."""

import ast
import json
import shutil
from functools import partial
from pathlib import Path

import pytest

import concrete
import dynamics
import ledger
import linear_fit
import localw2
import nonlinear_fit
import records
from ledger import Ledger, Stamp, agree, trace

EXPERIMENTS = {
    "linear": (linear_fit, "run"),
    "nonlinear": (nonlinear_fit, "run"),
    "concrete": (concrete, "run_cell"),
    "dynamics": (dynamics, "run_cell"),
}


def reach(name):
    module, function = EXPERIMENTS[name]
    return trace([(Path(module.__file__), function)])


def stamp(name):
    return Stamp.of(reach(name), {}).code


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of localw2 that a test may edit."""
    folder = tmp_path / "src" / "localw2"
    shutil.copytree(ledger.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(ledger, "PACKAGE", folder)
    return folder


def append(path, text):
    path.write_text(path.read_text() + text)


class TestStampsOfThePaper:
    def test_comments_docstrings_and_formatting_do_not_count(self, package):
        before = stamp("linear")
        path = package / "losses" / "w2.py"
        append(path, "\n# a reason\n")
        assert stamp("linear") == before
        tree = ast.parse(path.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert all(ast.get_docstring(node) for node in functions if not node.name.startswith("_"))
        for node in [tree, *functions]:
            if ast.get_docstring(node):
                node.body[0].value.value = "Other words."
        path.write_text(ast.unparse(tree))  # which drops comments and blank lines, too
        assert stamp("linear") == before

    def test_programs_and_their_pages_do_not_count(self, package):
        before = {name: stamp(name) for name in EXPERIMENTS}
        for path in [path for path in (package / "apps").rglob("*") if path.is_file()]:
            if path.suffix == ".py":
                append(path, "\nraise SystemExit\n")
            else:
                path.write_text("")
        append(package / "__init__.py", "\n__version__ = '9'\n")
        assert {name: stamp(name) for name in EXPERIMENTS} == before

    def test_other_rooms_do_not_count(self, package):
        before = stamp("linear")
        for path in (package / "estimators" / "dynamics").glob("*.py"):
            path.write_text("")
        for path in (package / "models").glob("*.py"):
            append(path, "\nX = 1\n")
        append(package / "metrics.py", "\ndef another_score():\n    return 1\n")
        assert stamp("linear") == before

    @pytest.mark.parametrize(
        ("module", "affected"),
        [
            ("losses/w2.py", {"linear", "nonlinear", "concrete", "dynamics"}),
            ("estimators/coefficients/gaussian.py", {"linear"}),
            ("models/ode.py", {"dynamics"}),
        ],
    )
    def test_what_computed_a_record_counts(self, package, module, affected):
        before = {name: stamp(name) for name in EXPERIMENTS}
        path = package / module
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                node.body.append(ast.parse("changed = True").body[0])
        path.write_text(ast.unparse(tree))
        assert {name for name in EXPERIMENTS if stamp(name) != before[name]} == affected

    def test_figures_are_not_reached_and_helpers_are(self):
        assert "ode_errors" in reach("dynamics").modules
        for name in EXPERIMENTS:
            assert not {"panels", "concrete_figures", "dynamics_figures"} & reach(name).modules

    @pytest.mark.parametrize(
        ("name", "own"),
        [("linear", None), ("nonlinear", None), ("concrete", "CONCRETE"), ("dynamics", "ODE")],
    )
    def test_the_papers_settings_of_other_experiments_do_not_count(self, name, own):
        found = [text for module, text in reach(name).statements if module == "publication"]
        found = [text for text in found if "ImportFrom" not in text and "FIRST_SEED" not in text]
        assert bool(found) == (own is not None)
        assert all(f"{own}_" in text for text in found)

    def test_versions_are_those_of_the_packages_that_are_imported(self):
        assert "torchdiffeq" in reach("dynamics").versions()
        assert "torchbnn" in reach("nonlinear").versions()
        assert not {"torchdiffeq", "torchbnn"} & reach("linear").versions().keys()
        code = reach("linear")
        assert Stamp.of(code, {"numpy": "1"}).code != Stamp.of(code, {"numpy": "2"}).code
        assert Stamp.of(code, {"localw2": "1"}).code == Stamp.of(code, {"localw2": "2"}).code


class TestTracing:
    @pytest.fixture
    def script(self, tmp_path):
        def write(text, name="script"):
            path = tmp_path / f"{name}.py"
            path.write_text(text)
            return path

        return write

    def test_names_are_followed_through_modules(self, script):
        script(
            "def used():\n    return helper()\n\ndef helper():\n    return 1\n\ndef other():\n    pass\n",
            "tool",
        )
        path = script("from tool import other, used\n\ndef run(cell):\n    return used()\n")
        before = Stamp.of(trace([(path, "run")]), {}).code
        script(
            "def used():\n    return helper()\n\ndef helper():\n    return 1\n\ndef other():\n    return 5\n",
            "tool",
        )
        assert Stamp.of(trace([(path, "run")]), {}).code == before
        script(
            "def used():\n    return helper()\n\ndef helper():\n    return 2\n\ndef other():\n    return 5\n",
            "tool",
        )
        assert Stamp.of(trace([(path, "run")]), {}).code != before

    @pytest.mark.parametrize(
        "text",
        [
            "def run(cell):\n    from tool import used\n    return used()\n",
            "import tool\n\ndef run(cell):\n    return tool.used()\n",
            "from tool import used\nTABLE = {}\n\ndef run(cell):\n    return TABLE\n\nTABLE['key'] = used\n",
            "from tool import used\n\nclass Base:\n    value = used()\n\nclass run(Base):\n    pass\n",
        ],
        ids=["inside a function", "a whole module", "an effect", "a base class"],
    )
    def test_ways_to_use_a_name(self, script, text):
        script("def used():\n    return 1\n", "tool")
        assert "tool" in trace([(script(text), "run")]).modules

    @pytest.mark.parametrize("guard", ["TYPE_CHECKING", "__name__ == '__main__'"])
    def test_what_does_not_run_on_import_does_not_count(self, script, guard):
        script("def used():\n    return 1\n", "tool")
        path = script(f"def run(cell):\n    pass\n\nif {guard}:\n    from tool import used\n    used()\n")
        assert trace([(path, "run")]).modules == {"script"}

    def test_public_names_lead_to_their_homes(self, script):
        path = script(
            "from localw2 import Nearest, datasets\n\ndef run(cell):\n    return Nearest, datasets\n"
        )
        homes = {f"localw2.{localw2._HOME_OF['Nearest']}", "localw2.datasets"}
        assert homes <= trace([(path, "run")]).modules

    def test_a_module_that_is_gone_is_an_error(self, script):
        with pytest.raises(ImportError, match="nowhere"):
            trace([(script("from localw2.nowhere import f\n"), None)])


class TestAgreement:
    def test_times_do_not_count_and_six_digits_do(self):
        assert agree({"a": [1.0], "fit_seconds": 1.0}, {"a": [1.0 + 1e-8]})
        assert not agree({"a": 1.0}, {"a": 1.0 + 1e-4})
        assert not agree({"a": 1.0}, {"a": 1.0, "b": 2.0})
        assert not agree([1.0, 2.0], [1.0])
        assert not agree("one", "two")

    def test_a_tolerance_is_relative(self):
        assert agree({"a": 100.0}, {"a": 101.0}, tolerance=0.02)
        assert not agree({"a": 100.0}, {"a": 103.0}, tolerance=0.02)


def test_a_check_restamps_and_computes_nothing_else(tmp_path):
    cells = [{"method": m, "seed": i} for m in ("kept", "changed") for i in range(3)]
    seen, factors = [], {"kept": 1.0, "changed": 1.0}

    def function(cell):
        seen.append(cell["method"])
        return {"value": factors[cell["method"]] * (1 + cell["seed"])}

    def open_ledger(code):
        stamps = dict.fromkeys(factors, Stamp(code, {"numpy": code}))
        return Ledger(tmp_path / "try.json", function, stamps, order=lambda settings: settings["seed"])

    open_ledger("old").complete(cells[1:])
    before = json.loads((tmp_path / "try.json").read_text())
    seen.clear()
    factors["changed"] = 2.0
    differing = open_ledger("new").check()
    assert sorted(seen) == ["changed", "kept"]
    assert [record["settings"]["method"] for record in differing] == ["changed"]
    after = json.loads((tmp_path / "try.json").read_text())
    assert after["records"] == before["records"]
    assert after["stamps"] == {"kept": "new", "changed": "old"}
    assert after["versions"] == {"new": {"numpy": "new"}, "old": {"numpy": "old"}}


def test_an_experiment_is_stamped_by_its_function(tmp_path):
    options = records.Options(True, 1, 1, tmp_path, tmp_path)
    made = records.open_ledger("linear", [{"method": "ours"}], linear_fit.run, options)
    same = records.open_ledger("linear", [{"method": "ours"}], partial(linear_fit.run), options)
    assert (
        made.stamps["ours"].code
        == same.stamps["ours"].code
        == Stamp.of(reach("linear"), reach("linear").versions()).code
    )


def test_only_the_chosen_methods_are_computed_and_the_others_stay(tmp_path):
    def function(cell):
        return {"value": float(cell["seed"])}

    cells = [{"method": method, "seed": seed} for method in ("a", "b") for seed in (0, 1)]
    run = partial(records.compute, "try", function=function, code=Path(linear_fit.__file__))
    everything = records.Options(True, 1, 1, tmp_path, tmp_path)
    run(cells=cells, options=everything)
    # The cells of both methods have changed, and those of one of them are wanted.
    wanted = [cell | {"rows": 5} for cell in cells]
    chosen = records.Options(True, 1, 1, tmp_path, tmp_path, only=("a",))
    found = [record["settings"] for record in run(cells=wanted, options=chosen)]
    assert found == [*wanted[:2], *cells[2:]]
