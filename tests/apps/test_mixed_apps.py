"""Numbers and categories in commands, report and explorer: what they say is what Python says."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mixed
from localw2 import LocalW2FieldRegressor, LocalW2MixedRegressor, load
from localw2.apps.cli import app
from localw2.metrics import brier_score, crps, log_loss

pytest.importorskip("matplotlib")
FIT = "fit rows.csv --target soil,depth,code --categorical code --law balls --hold-out 0.3"


def run(command, code=0):
    result = CliRunner().invoke(app, shlex.split(command), prog_name="localw2")
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    assert "bug in localw2" not in result.stderr
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, a model of a class, a number and a label, and one of a class alone."""
    path = tmp_path_factory.mktemp("mixed")
    rng = np.random.default_rng(0)
    x = mixed.draw_inputs(300, rng)
    table = mixed.draw_outputs(x, rng).drop(columns="yield")
    table = table.assign(a=x[:, 0], b=x[:, 1], code=1 + rng.integers(0, 3, 300))
    table["site"] = np.where(x[:, 0] > 0, "east", "west")
    table.to_csv(path / "rows.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        run(f"{FIT} --out all.localw2")
        run("fit rows.csv --target soil --features a,b --law balls --hold-out 0.3 --out soil.localw2")
        run("fit rows.csv --target wet --features a,b --law balls --out wet.localw2")
    return path


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def read(name="all"):
    model, held = load(f"{name}.localw2"), pd.read_csv(f"{name}.localw2.held-out.csv")
    return model, held[list(model.feature_names_in_)], held[list(model.coding_.names)]


def test_a_fit_finds_out_which_targets_are_categories(folder):
    model = load("all.localw2")
    assert isinstance(model, LocalW2MixedRegressor)
    assert {k: list(v) for k, v in model.classes_.items()} == {"soil": [*mixed.WORDS], "code": [1, 2, 3]}
    assert list(load("soil.localw2").classes_) == [*mixed.WORDS]
    assert list(load("wet.localw2").classes_) == [False, True]  # true and false are classes
    found = json.loads(run("info all.localw2 --json").stdout)
    assert found["classes"]["code"] == [1, 2, 3]
    assert found["targets"] == ["soil", "depth", "code"]


def test_predictions_and_draws_are_pythons(folder):
    model, X, _ = read()
    run("predict all.localw2 all.localw2.held-out.csv --quantiles 0.1,0.9 --above 0.5 --out p.csv")
    table, laws = pd.read_csv("p.csv"), model.predict_distribution(X)
    assert table["soil_class"].tolist() == laws["soil"].mode().tolist()
    for name in ("soil", "code"):
        found = table[[f"{name}_p_{word}" for word in laws[name].classes]].to_numpy()
        np.testing.assert_allclose(found, laws[name].probabilities)
    np.testing.assert_allclose(table["depth_mean"], laws["depth"].mean())
    np.testing.assert_allclose(table["depth_q0.9"], laws["depth"].ppf(0.9))
    np.testing.assert_allclose(table["depth_above_0.5"], laws["depth"].sf(0.5))
    run("sample all.localw2 all.localw2.held-out.csv -n 3 --seed 5 --keep site --out s.csv")
    drawn = pd.read_csv("s.csv")
    again = model.sample(X, 3, random_state=5).swaplevel().sort_index(level="row", sort_remaining=True)
    assert drawn["soil"].tolist() == again["soil"].tolist()
    np.testing.assert_allclose(drawn["depth"], again["depth"])
    assert set(drawn["site"]) == {"east", "west"}


def test_scores_are_those_of_the_metrics(folder):
    model, X, Y = read()
    found = json.loads(run("evaluate all.localw2 all.localw2.held-out.csv --json").stdout)
    codes = np.searchsorted(mixed.WORDS, Y["soil"])
    p = model.predict_proba(X)["soil"]
    assert found["targets"]["soil"]["log_loss"] == pytest.approx(log_loss(codes, p))
    assert found["targets"]["soil"]["brier"] == pytest.approx(brier_score(codes, p))
    draws = model.sample(X, 200, random_state=0)["depth"].to_numpy().reshape(200, -1)
    assert found["targets"]["depth"]["crps"] == pytest.approx(crps(Y["depth"], draws).mean(), rel=0.03)
    assert found["energy_score"] == pytest.approx(model.energy_scores(X, Y).mean())
    words = run("evaluate all.localw2 all.localw2.held-out.csv").stdout
    assert "log loss" in words
    assert "probabilities of soil" in words
    fitted = json.loads(run(f"{FIT} --out again.localw2 --json").stdout)
    assert fitted["held_out_scores"]["targets"] == found["targets"]


def test_the_exact_test_is_pythons(folder):
    model, X, Y = read()
    found = json.loads(run("test all.localw2 all.localw2.held-out.csv --permutations 99 --json").stdout)
    assert found["pvalue"] == model.conditional_test(X, Y, n_permutations=99, random_state=0).pvalue
    seen = run("test wet.localw2 rows.csv --permutations 19")
    assert "training rows" in seen.stdout + seen.stderr


@pytest.mark.parametrize("name", ["all", "soil"])
def test_the_report_is_whole_and_has_the_scores(folder, name):
    run(f"report {name}.localw2 {name}.localw2.held-out.csv --out page.html")
    page = (folder / "page.html").read_text()
    score = json.loads(run(f"evaluate {name}.localw2 {name}.localw2.held-out.csv --json").stdout)
    assert f"{score['targets']['soil']['log_loss']:.3f}" in page
    for words in (
        "Probabilities and observed classes",
        "peat",
        "Which columns drive",
        *score["verdict"][-1:],
    ):
        assert words in page
    assert page.count("<svg") == page.count("</svg>") >= 4
    assert ("Outputs together" in page) == (name == "all")
    assert "<script" not in page


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        ("fit rows.csv --target soil --calibrate --out x", 2, "--calibrate"),
        ("fit rows.csv --target soil,depth --bounds 0, --delta 0.5 --out x", 2, "--bounds, --delta"),
        ("fit rows.csv --target soil --categorical a --out x", 2, "'a'"),
        ("fit rows.csv --target depth --categorical depth --out x", 1, "classes"),
        ("predict soil.localw2 rows.csv --interval 0.8", 2, "classes only"),
        ("evaluate soil.localw2 gaps.csv", 1, "missing values in soil"),
        ("evaluate soil.localw2 others.csv", 1, "has seen"),
        ("fit gaps.csv --target soil --out x", 1, "--drop-missing"),
        ("fit few.csv --target soil --out x", 1, "at least 5"),
        ("predict curves.localw2 rows.csv", 1, "predict_band"),
        ("explore curves.localw2 --data rows.csv --no-browser", 1, "predict_band"),
    ],
)
def test_misuse_is_told(folder, command, code, word):
    table = pd.read_csv("rows.csv")
    table.assign(soil=table["soil"].where(table.index != 7)).to_csv("gaps.csv", index=False)
    table.assign(soil="moss").to_csv("others.csv", index=False)
    table[:4].to_csv("few.csv", index=False)
    if "curves" in command and not (folder / "curves.localw2").exists():
        curves = np.sin(np.arange(5.0) + np.random.default_rng(0).normal(size=(60, 1)))
        LocalW2FieldRegressor(random_state=0).fit(np.arange(60.0)[:, None], curves).save("curves.localw2")
        assert "variance left out" in run("info curves.localw2").stdout
    assert word in " ".join(run(command, code).stderr.replace("│", " ").split())


def test_rows_with_new_classes_are_left_out_of_scores(folder):
    _, _, Y = read("soil")
    held = pd.read_csv("soil.localw2.held-out.csv")
    held.assign(soil=Y["soil"].where(held.index > 2, "moss")).to_csv("moss.csv", index=False)
    result = run("evaluate soil.localw2 moss.csv --json")
    assert json.loads(result.stdout)["rows"] == len(held) - 3
    assert "3 of" in result.stderr


def test_weights_of_rows_reach_the_fit(folder):
    table = pd.read_csv("rows.csv")
    table.assign(n=(table["soil"] == "clay") * 1.0 + 0.001).to_csv("weighted.csv", index=False)
    run("fit weighted.csv --target soil --features a,b --law balls --weights n --out w.localw2")
    p = load("w.localw2").predict_proba(table[["a", "b"]])
    assert p[:, 0].min() > 0.5
    assert load("soil.localw2").predict_proba(table[["a", "b"]])[:, 0].max() < 0.8


@pytest.fixture(scope="module")
def client(folder):
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from localw2.apps.explorer import create_app

    held = pd.read_csv(folder / "all.localw2.held-out.csv")
    model = load(folder / "all.localw2")
    shown = create_app(model, held[list(model.feature_names_in_)], held[list(model.coding_.names)])
    return TestClient(shown, base_url="http://localhost")


def test_the_explorer_has_probabilities_and_classes(folder, client):
    model, X, Y = read()
    about = client.get("/api/model").json()
    assert [each["classes"] for each in about["outputs"]] == [[*mixed.WORDS], None, ["1", "2", "3"]]
    assert about["trained_on"] is None
    names = [each["name"] for each in about["inputs"]]
    rows = [[v if isinstance(v, str) else float(v) for v in row] for row in X[names][:3].to_numpy(object)]
    p = model.predict_proba(X[:3])
    found = client.post("/probabilities", json={"x": rows}).json()["probabilities"]
    np.testing.assert_allclose(found[0], p["soil"])
    assert found[1] is None
    drawn = client.post("/sample", json={"x": rows, "n_samples": 4, "random_state": 3}).json()["y"]
    frame = model.sample(X[:3], 4, random_state=3)
    assert [one[0] for draw in drawn for one in draw] == frame["soil"].tolist()
    np.testing.assert_allclose([one[1] for draw in drawn for one in draw], frame["depth"])
    law = client.post("/api/distribution", json={"x": rows[0], "k": 9, "shifted": True}).json()
    np.testing.assert_allclose(law["outputs"][0]["probabilities"], p["soil"][0])
    assert law["outputs"][0]["mean"] is None
    assert set(law["neighbours"]["y"][0]) <= {0, 1, 2, 3}  # a class is not shifted
    sweep = client.post("/api/sweep", json={"x": rows[0], "input": names.index("a")}).json()
    np.testing.assert_allclose(np.sum(sweep["probabilities"][0], axis=0), 1)
    joint = client.post("/api/joint", json={"x": rows[0], "outputs": [0, 1]}).json()
    assert joint["correlation"] is None
    assert joint["distance"] > 0.2  # depth depends on the soil
    apart = client.post("/api/joint", json={"x": rows[0], "outputs": [1, 2]}).json()
    assert apart["distance"] < joint["distance"]
    tested = client.post("/api/test", json={}).json()
    assert 0 < tested["pvalue"] <= 1
    quantiles = client.post("/quantiles", json={"x": rows, "q": [0.5]}).json()["quantiles"]
    assert quantiles[0][0][0] is None
    np.testing.assert_allclose(
        [row[1] for row in quantiles[0]], model.predict_distribution(X[:3])["depth"].ppf(0.5)
    )
    assert Y["soil"].iloc[0] in mixed.WORDS


def test_a_kept_column_is_not_overwritten_by_a_prediction():
    pd.read_csv("rows.csv").assign(soil_class="mine").to_csv("named.csv", index=False)
    result = run("predict soil.localw2 named.csv --keep soil_class --out p.csv", code=2)
    assert "soil_class" in result.stderr
