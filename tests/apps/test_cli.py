"""The command line on real files: every command agrees with Python, and every error says what to do."""

import ast
import contextlib
import csv
import errno
import hashlib
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import localw2
from localw2 import LocalW2ODE, LocalW2Regressor, Network, RandomCoefficientRegressor, SolverError
from localw2.apps.cli import app, running
from localw2.apps.cli.model_files import save_model
from localw2.apps.tables.tables import read_table, write_table
from localw2.metrics import crps
from localw2.storage import atomic
from localw2.training import loop as training

QUICK = "--law network --base none --epochs 3 --width 8"
SMALL = Network(epochs=3, width=8)  # the same in Python
FIT = "fit data.csv --target strength --exclude day --drop-missing"


def run(command, code=0, stdin=None, env=None):
    """Run ``localw2 COMMAND`` in this process."""
    words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
    result = CliRunner().invoke(app, words, input=stdin, env=env, prog_name="localw2")
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def failing(command, code=1):
    """The message of a command that fails: one paragraph on standard error."""
    result = run(command, code)
    message = result.stderr
    if code == 1:
        message = message[message.index("error:") :]
        assert "\n" not in message.strip()
    return message


def found(command, **options):
    """The one JSON object on standard output."""
    words = f"{command} --json" if isinstance(command, str) else [*command, "--json"]
    result = run(words, **options)
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table of a European spreadsheet, a model of it, and the rows held out."""
    path = tmp_path_factory.mktemp("cli")
    before = Path.cwd()
    os.chdir(path)
    rng = np.random.default_rng(0)
    age, water = rng.uniform(size=(2, 150))
    strength = 1 + 2 * age + 0.5 * water * rng.normal(size=150)
    with open("data.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=";", lineterminator="\r\n")
        writer.writerow(["age", "day", "water", "strength"])
        for i, row in enumerate(zip(age, water, strength, strict=True)):
            a, w, s = (repr(float(value)).replace(".", ",") for value in row)
            w, s = ("NA", "NA") if i == 4 else (w, s)
            writer.writerow([a, f"2024-01-{i % 28 + 1:02d}", w, s])
    run(f"{FIT} --law network --base ridge --epochs 8 --hold-out 0.3 --out m.lw2")
    yield path
    os.chdir(before)


@pytest.fixture(scope="module")
def held(folder):
    """The model, and X, y of the held-out rows, as Python has them."""
    frame = read_table(folder / "m.lw2.held-out.csv").frame
    return localw2.load(folder / "m.lw2"), frame[["age", "water"]], frame["strength"].to_numpy()


# --- fit ------------------------------------------------------------------------------------------------


def test_fit_is_the_fit_of_python(folder, held):
    model, X, y = held
    frame = read_table("data.csv").frame.dropna()
    rest = frame[~frame["age"].isin(X["age"])]
    assert len(y) == 45
    assert len(rest) == 149 - 45
    again = LocalW2Regressor(Network(epochs=8), base=model.base, random_state=0)
    again.fit(rest[["age", "water"]], rest["strength"])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert not Path("m.lw2.checkpoint").exists()
    assert model.checkpoint is None


def test_every_fit_writes_its_settings(folder):
    content = tomllib.loads(Path("m.lw2.settings.toml").read_text())
    record = content["record"]
    assert record["data"] == "data.csv"
    assert record["sha256"] == hashlib.sha256(Path("data.csv").read_bytes()).hexdigest()
    assert record["rows"] == 104
    assert record["features"] == ["age", "water"]
    assert record["target"] == ["strength"]
    assert record["versions"]["localw2"] == localw2.__version__
    assert {"torch", "numpy", "python"} <= set(record["versions"])
    assert content["fit"]["epochs"] == 8
    # Those that were not given are there too.
    assert content["fit"]["learning-rate"] == Network().learning_rate
    assert content["fit"]["seed"] == 0


def test_the_held_out_file_keeps_every_column(folder):
    held_out, table = read_table("m.lw2.held-out.csv").frame, read_table("data.csv").frame
    assert list(held_out) == ["age", "day", "water", "strength"]
    whole = table.set_index("age").loc[held_out["age"]].reset_index()
    pd.testing.assert_frame_equal(held_out, whole[held_out.columns])


def test_the_settings_written_make_the_same_model(folder, held):
    model, X, _ = held
    result = found("fit --config m.lw2.settings.toml --out again.lw2")
    assert result["held_out"] == 45
    assert result["epochs"] == 8
    np.testing.assert_array_equal(localw2.load("again.lw2").predict(X), model.predict(X))


def test_flags_win_over_the_file(folder, tmp_path):
    settings = tmp_path / "s.toml"
    settings.write_text(
        'target = "strength"\nfeatures = ["water", "age"]\n[fit]\nlaw = "network"\nepochs = 9\n'
        'learning_rate = 0.01\nwidth = 8\nbase = "none"\n'
        "drop-missing = true\n[predict]\ninterval = 0.5\n[record]\nanything = 1\n"
    )
    result = found(f"fit data.csv --config {settings} --epochs 2 --out {tmp_path / 'a'}")
    assert result["epochs"] == 2
    assert result["features"] == ["water", "age"]
    assert localw2.load(tmp_path / "a").law == Network(epochs=2, learning_rate=0.01, width=8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch = 3", "Did you mean 'epochs'"),
        ("[fit]\nquantile = 1", "Known are base, bounds, calibrate, calibration,"),
        ("[fitt]\nseed = 1", "Did you mean 'fit'"),
        ("seed = ", "TOML"),
    ],
)
def test_settings_that_mean_nothing_are_told_of(content, message, folder, tmp_path):
    settings = tmp_path / "s.toml"
    settings.write_text(content)
    assert message in failing(f"fit data.csv --target strength --out {tmp_path / 'a'} --config {settings}")
    assert "cannot be read" in failing(f"fit data.csv --target y --out a --config {tmp_path / 'none'}")


def test_wrong_values_in_a_settings_file_are_wrong_usage(folder, tmp_path):
    settings = tmp_path / "s.toml"
    settings.write_text('epochs = "many"')
    assert "--epochs" in failing(f"fit data.csv --target strength --out a --config {settings}", code=2)


def test_several_targets_and_names_with_commas(tmp_path, folder):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3))
    data = tmp_path / "t.csv"
    with open(data, "w", newline="") as file:
        csv.writer(file).writerows([["x", "force (N, wet)", "b"], *rows.tolist()])
    one, two = tmp_path / "one", tmp_path / "two"
    run(["fit", data, "--target", "force (N, wet)", "--out", one, *QUICK.split()])
    assert found(f"info {one}")["targets"] == ["force (N, wet)"]
    run(["fit", data, "--target", '"force (N, wet)",b', "--features", "x", "--out", two, *QUICK.split()])
    settings = tmp_path / "s.toml"
    settings.write_text('target = ["force (N, wet)", "b"]\nfeatures = ["x"]\n')
    run(["fit", data, "--config", settings, "--out", tmp_path / "three", *QUICK.split()])
    assert found(f"info {tmp_path / 'three'}")["targets"] == ["force (N, wet)", "b"]
    run(["predict", two, data, "--quantiles", ".1,.9", "--out", tmp_path / "p.csv"])
    written = read_table(tmp_path / "p.csv")
    model, frame = localw2.load(two), pd.DataFrame({"x": rows[:, 0]})
    np.testing.assert_array_equal(written.frame["b_q0.9"], model.predict_quantiles(frame, [0.9])[0, :, 1])
    assert list(written.frame)[1:5] == [f"force (N, wet)_{part}" for part in ("mean", "std", "q0.1", "q0.9")]
    run(["sample", two, data, "-n", 2, "--out", tmp_path / "s.csv"])
    drawn = read_table(tmp_path / "s.csv").numbers(["force (N, wet)", "b"])
    expected = model.sample(frame, 2, random_state=0)
    np.testing.assert_array_equal(drawn, expected.transpose(1, 0, 2).reshape(-1, 2))
    scores = found(f"evaluate {two} {data}")["targets"]
    assert list(scores) == ["force (N, wet)", "b"]


def test_some_of_the_rows_are_taken_at_random(folder, tmp_path):
    command = f"{FIT} {QUICK} --out {tmp_path / 'm'}"
    few = found(f"{command} --max-rows 40 --hold-out 0.25")
    assert (few["rows"], few["held_out"]) == (30, 10)
    assert found(f"{command} --max-rows 149")["rows"] == 149
    again = found(f"{command} --max-rows 40 --hold-out 0.25")
    assert again["loss"] == few["loss"]


def test_names_cannot_steer_the_terminal(tmp_path, monkeypatch):
    """Escape sequences, bells and marks that turn the writing around are spelt out where names are shown."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    evil, target = "\x1b[2J\x1b[31mred\x07", "y\u202e"
    frame = pd.DataFrame({evil: rng.normal(size=40), "k": np.zeros(40), target: rng.normal(size=40)})
    frame.to_csv("d.csv", index=False)
    words = ["fit", "d.csv", "--target", target, "--out", "m", "--law", "balls", "--base", "ridge"]
    shown = [run([*words, "--hold-out", "0.5"]), run(["evaluate", "m", "d.csv"]), run(["info", "m"])]
    shown += [
        run(["test", "m", "d.csv", "--permutations", "19"]),
        run(["fit", "d.csv", "--target", "no", "--out", "n"], 1),
    ]
    text = "".join(result.stdout + result.stderr for result in shown)
    assert "\\x1b[2J" in text
    assert not any(mark in text for mark in ("\x1b[2J", "\x1b[31mred", "\x07", "\u202e"))


LINKS = {
    "the same name": lambda path, other: other,
    "another spelling": lambda path, other: Path(".") / other,
    "a symbolic link": lambda path, other: os.symlink(path.absolute(), "link.csv") or Path("link.csv"),
    "a hard link": lambda path, other: os.link(path, "hard.csv") or Path("hard.csv"),
}


@pytest.fixture
def copies(folder, tmp_path, monkeypatch):
    """Copies of the table and the model to destroy, in a folder of their own."""
    for name in ("data.csv", "m.lw2", "m.lw2.held-out.csv"):
        shutil.copy(folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("way", LINKS)
@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("fit data.csv --target strength --out {}", "data.csv"),
        ("predict m.lw2 data.csv --out {}", "data.csv"),
        ("sample m.lw2 data.csv --out {}", "data.csv"),
        ("report m.lw2 m.lw2.held-out.csv --out {}", "m.lw2.held-out.csv"),
        ("report m.lw2 m.lw2.held-out.csv --out {}", "m.lw2"),
        ("fit data.csv --target strength --config settings.csv --out {}", "settings.csv"),
        ("ode fit data.csv --id day --time age --states water --out {}", "data.csv"),
        ("predict model.csv data.csv --out {}", "model.csv"),
        ("sample model.csv data.csv --out {}", "model.csv"),
        ("ode sample model.csv --initial 0 --times 0,1 --out {}", "model.csv"),
    ],
)
def test_nothing_is_written_over_what_is_read(copies, command, read, way):
    Path("settings.csv").write_text("seed = 1\n")
    shutil.copy("m.lw2", "model.csv")
    before = {path.name: path.read_bytes() for path in Path(".").iterdir()}
    target = LINKS[way](Path(read), Path(read))
    message = failing(command.format(target), code=2)
    assert "would write over" in " ".join(message.replace("│", " ").split())
    assert {name: Path(name).read_bytes() for name in before} == before


def test_files_beside_a_model_are_not_written_over_what_is_read(copies):
    before = Path("m.lw2.held-out.csv").read_bytes()
    failing("fit m.lw2.held-out.csv --target strength --hold-out 0.3 --out m.lw2", code=2)
    assert Path("m.lw2.held-out.csv").read_bytes() == before
    os.rename("data.csv", "n.settings.toml")
    failing("fit n.settings.toml --target strength --out n", code=2)


def test_settings_that_somebody_else_wrote_are_kept(copies):
    Path("out.csv.settings.toml").write_text("mine = 1\n")
    message = failing("predict m.lw2 data.csv --out out.csv", code=2)
    assert "not written by localw2" in " ".join(message.replace("│", " ").split())
    assert Path("out.csv.settings.toml").read_text() == "mine = 1\n"
    assert not Path("out.csv").exists()
    os.remove("out.csv.settings.toml")
    run("predict m.lw2 data.csv --out out.csv")
    run("predict m.lw2 data.csv --out out.csv")  # our own settings file may be replaced,
    run("predict m.lw2 data.csv --config out.csv.settings.toml")  # even the one that is read


def test_the_demo_does_not_replace_files_of_others(copies):
    Path("held-out.csv").write_text("mine\n")
    failing("demo --out .", code=2)
    assert Path("held-out.csv").read_text() == "mine\n"
    assert not Path("penguins.csv").exists()


@pytest.mark.parametrize("kind", ["split", "cv", "cv+"])
def test_calibration_is_named_and_kept(folder, tmp_path, kind):
    out = tmp_path / "m"
    done = found(f"{FIT} --law balls --base ridge --calibration {kind} --out {out}")
    assert done["calibration"] == kind
    assert localw2.load(out).calibration_.kind == kind
    assert found(f"predict {out} data.csv --out {tmp_path / 'p.csv'}")["rows"] == 150


def test_fit_from_standard_input_and_parquet(folder, tmp_path):
    write_table(tmp_path / "t.parquet", read_table("m.lw2.held-out.csv").frame)
    losses = set()
    for name, source, stdin in (
        ("t.parquet", tmp_path / "t.parquet", None),
        ("standard input", "-", Path("m.lw2.held-out.csv").read_bytes()),
        ("standard input", "-", (tmp_path / "t.parquet").read_bytes()),
    ):
        result = found(f"fit {source} --target strength {QUICK} --out {tmp_path / 'm'}", stdin=stdin)
        assert result["data"] == name
        losses.add(result["loss"])
    assert len(losses) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--delta nearest:7 --norm standardised --base none", "Nearest(k=7)"),
        ("--delta 0.25 --norm euclidean --base none", "0.25"),
        ("--delta inf --base boosting", "inf"),
    ],
)
def test_balls_norm_and_base_reach_the_estimator(words, expected, folder, tmp_path):
    result = found(f"{FIT} --law network --epochs 2 --out {tmp_path / 'a'} {words}")
    assert result["delta"] == expected
    assert found(f"info {tmp_path / 'a'}")["delta"] == (
        float(expected) if expected == "0.25" else None if expected == "inf" else expected
    )


@pytest.mark.parametrize("law", ["auto", "balls"])
def test_a_law_without_settings_of_the_network(law, folder, held, tmp_path):
    out = tmp_path / "m"
    told = found(f"{FIT} --law {law} --base none --hold-out 0.3 --out {out}")
    model = localw2.load(out)
    assert told["law"] == model.weights_
    assert sum(told["law"].values()) == pytest.approx(1)
    frame = read_table("data.csv").frame.dropna()
    rest = frame[~frame["age"].isin(held[1]["age"])]
    again = LocalW2Regressor(law, base=None, random_state=0).fit(rest[["age", "water"]], rest["strength"])
    np.testing.assert_array_equal(model.predict(held[1]), again.predict(held[1]))
    for command in ("predict", "sample", "evaluate", "test --permutations 19"):
        word, *rest = command.split()
        found(" ".join([word, str(out), "m.lw2.held-out.csv", *rest]))
    assert "weights" in run(f"info {out}").stdout
    # What belongs to the network is not in its settings, which would not be taken again.
    assert not {"epochs", "width"} & set(tomllib.loads(Path(f"{out}.settings.toml").read_text())["fit"])


def test_bounds_and_values_reach_the_estimator(mixed, tmp_path):
    out = tmp_path / "m"
    run(f"fit mixed.csv --target rain --features depth {QUICK} --bounds 0, --values none --out {out}")
    model = localw2.load(out)
    assert tuple(model.bounds) == (0.0, None)
    assert model.values is None
    assert model.sample(mixed[["depth"]], 50, random_state=0).min() >= 0
    run(f"fit mixed.csv --target rain --features depth {QUICK} --values 0,1,2,3,4,5,6,7,8 --out {out}")
    drawn = localw2.load(out).sample(mixed[["depth"]], 50, random_state=0)
    assert set(np.unique(drawn)) <= set(range(9))


# --- predict, sample, evaluate, test, info ---------------------------------------------------------------


def test_predict_writes_what_python_predicts(folder, held, tmp_path):
    model, X, _ = held
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X, 0.8)
    low, high = model.predict_quantiles(X, [0.05, 0.5])
    law = model.predict_distribution(X)
    expected = {
        "row": np.arange(1, 46),
        "strength_mean": mean,
        "strength_std": std,
        "strength_q0.05": low,
        "strength_q0.5": high,
        "strength_above_30": law.sf(30.0),
        "strength_above_45.5": law.sf(45.5),
        "strength_lower_0.8": lower,
        "strength_upper_0.8": upper,
    }
    command = "predict m.lw2 m.lw2.held-out.csv --quantiles .05,.5 --above 30,45.5 --interval .8"
    for name in ("p.csv", "p.tsv", "p.parquet"):
        run(f"{command} --out {tmp_path / name}")
        table = read_table(tmp_path / name)
        assert list(table.frame) == list(expected)
        for column, values in expected.items():
            np.testing.assert_array_equal(table.frame[column], values)
    printed = run(command).stdout
    assert printed == (tmp_path / "p.csv").read_text()
    run(f"{command} --out {tmp_path / 'p.json'}")
    assert json.loads((tmp_path / "p.json").read_text())["strength_std"] == std.tolist()
    assert found(command)["columns"]["strength_mean"] == mean.tolist()
    piped = run(command.replace("m.lw2.held-out.csv", "-"), stdin=Path("m.lw2.held-out.csv").read_bytes())
    assert piped.stdout == printed


def test_every_run_writes_its_settings_beside_its_result(folder, tmp_path):
    """And that file makes the result again."""
    for command, name in (
        ("predict m.lw2 m.lw2.held-out.csv --quantiles .05,.5", "p.csv"),
        ("predict m.lw2 m.lw2.held-out.csv --above 30", "a.csv"),
        ("sample m.lw2 m.lw2.held-out.csv -n 2 --seed 4", "s.csv"),
        ("report m.lw2 m.lw2.held-out.csv", "r.html"),
    ):
        result = found(f"{command} --out {tmp_path / name}")
        before = (tmp_path / name).read_bytes()
        content = tomllib.loads(Path(result["settings"]).read_text())
        word = command.split()[0]
        assert content[word]["data"] == "m.lw2.held-out.csv"
        assert (
            content["record"]["sha256"] == hashlib.sha256(Path("m.lw2.held-out.csv").read_bytes()).hexdigest()
        )
        assert content["record"]["versions"]["localw2"] == localw2.__version__
        (tmp_path / name).unlink()
        run(f"{word} --config {result['settings']}")
        assert (tmp_path / name).read_bytes() == before
    assert found("sample m.lw2 m.lw2.held-out.csv -n 1")["settings"]["seed"] == 0
    assert found("evaluate m.lw2 m.lw2.held-out.csv --draws 50")["settings"]["draws"] == 50


def test_rows_left_out_keep_their_numbers(folder):
    result = run("predict m.lw2 data.csv --drop-missing --keep day --json")
    assert "1 of 150 rows" in result.stderr
    columns = json.loads(result.stdout)["columns"]
    assert columns["row"][:6] == [1, 2, 3, 4, 6, 7]
    assert columns["day"][4] == "2024-01-06"
    assert list(columns)[2:] == ["strength_mean", "strength_std", "strength_lower_0.9", "strength_upper_0.9"]


def test_sample_writes_what_python_draws(folder, held, tmp_path):
    model, X, _ = held
    run(f"sample m.lw2 m.lw2.held-out.csv -n 3 --seed 5 --out {tmp_path / 's.csv'}")
    frame = read_table(tmp_path / "s.csv").frame
    assert list(frame) == ["row", "draw", "strength"]
    np.testing.assert_array_equal(frame["strength"], model.sample(X, 3, random_state=5).T.ravel())
    assert frame["row"][:4].tolist() == [1, 1, 1, 2]
    assert frame["draw"][:4].tolist() == [1, 2, 3, 1]


def test_evaluate_agrees_with_the_definitions(folder, held):
    model, X, y = held
    result = found("evaluate m.lw2 m.lw2.held-out.csv --draws 400")
    score = result["targets"]["strength"]
    mean = model.predict(X)
    assert score["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert score["mae"] == pytest.approx(np.mean(np.abs(y - mean)))
    assert score["r2"] == pytest.approx(model.score(X, y))
    lower, upper = model.predict_interval(X, 0.9)
    assert score["coverage"] == np.mean((lower <= y) & (y <= upper))
    assert score["width"] == pytest.approx(np.mean(upper - lower))
    # Both are estimates from draws; they differ by their noise alone.
    assert score["crps"] == pytest.approx(crps(y, model.sample(X, 400, random_state=1)).mean(), rel=0.1)
    assert sum(score["pit"]) == pytest.approx(1)
    text = run("evaluate m.lw2 m.lw2.held-out.csv").stdout
    assert "CRPS" in text
    assert f"{100 * score['coverage']:.1f} %" in text
    assert (
        found("info m.lw2")["record"]["record"]["held_out_scores"]["targets"]["strength"]["rmse"]
        == score["rmse"]
    )


def test_rows_of_the_fit_are_told_of(folder):
    result = run("evaluate m.lw2 data.csv --drop-missing")
    assert "warning: 104 of these 149 rows" in result.stderr


def test_the_test_rejects_what_is_wrong_and_says_so_by_its_exit_code(folder, held, tmp_path):
    model, X, _ = held
    drawn = model.sample(X, 1, random_state=3)[0]
    for name, y in (("right.csv", drawn), ("wrong.csv", drawn + 1)):
        with open(tmp_path / name, "w", newline="") as file:
            csv.writer(file).writerows([["age", "water", "strength"], *np.column_stack([X, y]).tolist()])
    right = found(f"test m.lw2 {tmp_path / 'right.csv'} --permutations 99 --fail-on-reject")
    assert right["pvalue"] > 0.05
    wrong = found(f"test m.lw2 {tmp_path / 'wrong.csv'} --permutations 99 --delta nearest:20")
    assert wrong["pvalue"] == 0.01
    assert wrong["reject"]
    assert set(wrong["balls"]["size"]) == {20}
    several = found(f"test m.lw2 {tmp_path / 'wrong.csv'} --permutations 99 --delta nearest:20,inf")
    assert list(several["deltas"]) == ["Nearest(k=20)", "one ball of all rows"]
    assert set(several["balls"]["delta"]) == {*several["deltas"]}
    failing(f"test m.lw2 {tmp_path / 'wrong.csv'} --delta nearest:20,0.5", code=2)
    assert several["reject"]
    summary = run(f"test m.lw2 {tmp_path / 'wrong.csv'} --permutations 99 --fail-on-reject", code=1).stdout
    assert "differs from the data's" in summary


def test_info_for_people(folder):
    text = run("info m.lw2").stdout
    for word in ("LocalW2Regressor", "age, water", "strength", "all epochs done", "data.csv"):
        assert word in text


def test_models_of_python(folder, tmp_path):
    frame = pd.read_csv("m.lw2.held-out.csv")
    named = RandomCoefficientRegressor(method="ml").fit(frame[["water", "age"]], frame["strength"])
    named.save(tmp_path / "named")
    plain = RandomCoefficientRegressor(method="ml").fit(frame[["water", "age"]].to_numpy(), frame["strength"])
    plain.save(tmp_path / "plain")
    values = found(f"predict {tmp_path / 'named'} m.lw2.held-out.csv")["columns"]
    # Another order of the bytes in memory rounds otherwise.
    expected = plain.predict(frame[["water", "age"]].to_numpy())
    np.testing.assert_allclose(values["y_mean"], expected, rtol=1e-12)
    message = failing(f"predict {tmp_path / 'plain'} m.lw2.held-out.csv")
    assert "--features with 2 name(s)" in message
    said = found(f"predict {tmp_path / 'plain'} m.lw2.held-out.csv --features water,age")["columns"]
    np.testing.assert_allclose(said["y_lower_0.9"], values["y_lower_0.9"], rtol=1e-12)
    assert "with --target" in failing(f"evaluate {tmp_path / 'named'} m.lw2.held-out.csv")
    assert found(f"evaluate {tmp_path / 'named'} m.lw2.held-out.csv --target strength")["rows"] == 45
    assert found(f"test {tmp_path / 'named'} m.lw2.held-out.csv --target strength --permutations 19")[
        "pvalue"
    ]
    assert found(f"info {tmp_path / 'plain'}")["kind"] == "RandomCoefficientRegressor"


# --- text columns and missing values ---------------------------------------------------------------------

ROWS = 90
MIXED = {"site": ["bay", "fen", "hill"], "wet": [True, False]}  # values of columns that are not numeric


@pytest.fixture(scope="module")
def mixed(folder):
    """A frame with a text column, truth values, an empty column and missing values in all but the target."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"depth": rng.uniform(size=ROWS), "rain": rng.integers(9, size=ROWS)})
    frame["site"], frame["wet"] = rng.choice(MIXED["site"], ROWS), rng.choice(MIXED["wet"], ROWS)
    frame["flow"] = frame["depth"] + (frame["site"] == "fen") + 0.3 * frame["depth"] * rng.normal(size=ROWS)
    frame["nothing"] = np.nan
    frame.loc[::4, "depth"] = np.nan
    frame.loc[1::5, "site"] = None
    for name in ("mixed.csv", "mixed.tsv", "mixed.parquet"):
        write_table(name, frame)
    fit = f"fit mixed.csv --target flow --hold-out 0.3 {QUICK} --out mixed.lw2"
    result = found(fit)
    assert result["features"] == ["depth", "rain", "site", "wet"]
    assert list(result["left_out"]) == ["nothing"]
    assert set(result["held_out_scores"]["targets"]) == {"flow"}
    return frame


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_with_text_and_missing_values_goes_all_the_way(mixed, tmp_path, ending):
    out, data = tmp_path / "m", f"mixed.{ending}"
    result = run(f"fit {data} --target flow --hold-out 0.3 {QUICK} --out {out}")
    assert "warning: left out: 'nothing'" in result.stderr
    model, reference = localw2.load(out), localw2.load("mixed.lw2")
    features = mixed[["depth", "rain", "site", "wet"]]
    np.testing.assert_array_equal(model.predict(features), reference.predict(features))
    held_out = read_table(f"{out}.held-out.csv").frame
    assert list(held_out) == list(mixed)
    command = f"predict {out} {data} --keep site,nothing --out {tmp_path / f'p.{ending}'}"
    run(command)
    predicted = read_table(tmp_path / f"p.{ending}").frame
    np.testing.assert_array_equal(predicted["flow_mean"], model.predict(features))
    assert predicted["site"].isna().sum() == mixed["site"].isna().sum()
    drawn = found(f"sample {out} {data} -n 2 --seed 3")["columns"]["flow"]
    np.testing.assert_array_equal(drawn, model.sample(features, 2, random_state=3).T.ravel())
    assert found(f"evaluate {out} {out}.held-out.csv")["rows"] == 27
    assert 0 < found(f"test {out} {out}.held-out.csv --permutations 19")["pvalue"] <= 1
    assert found(f"report {out} {out}.held-out.csv --out {tmp_path / 'r.html'}")["rows"] == 27
    dropped = found(f"predict {out} {data} --drop-missing")["columns"]["row"]
    whole = features.notna().all(axis=1).to_numpy()
    assert dropped == (np.flatnonzero(whole) + 1).tolist()
    assert found(f"evaluate {out} {data} --drop-missing")["rows"] == len(mixed)


@pytest.mark.parametrize("words", ["--base boosting", "--base ridge --norm standardised"])
def test_bases_and_norms_see_the_numbers_that_a_table_becomes(mixed, tmp_path, words):
    result = found(f"fit mixed.csv --target flow --law network --epochs 2 {words} --out {tmp_path / 'm'}")
    assert result["base"] == words.split()[1]


def test_frames_go_between_python_and_the_command_line(mixed, tmp_path):
    features = mixed[["site", "depth", "wet"]]
    model = LocalW2Regressor(SMALL, base=None, random_state=0).fit(features, mixed["flow"])
    model.save(tmp_path / "python")
    assert found(f"info {tmp_path / 'python'}")["features"] == ["site", "depth", "wet"]
    values = found(f"predict {tmp_path / 'python'} mixed.csv")["columns"]["y_mean"]
    np.testing.assert_array_equal(values, model.predict(features))
    assert found(f"evaluate {tmp_path / 'python'} mixed.csv --target flow --draws 20")["rows"] == ROWS
    # Other names in the table, in the order of the model's features.
    renamed = features.rename(columns={"site": "place", "depth": "d", "wet": "w"})[["w", "d", "place"]]
    write_table(tmp_path / "renamed.csv", renamed)
    command = f"predict {tmp_path / 'python'} {tmp_path / 'renamed.csv'} --features place,d,w"
    assert found(command)["columns"]["y_mean"] == values
    assert "no column 'site'" in failing(command.split(" --features")[0])


def test_files_of_models_that_were_fitted_to_arrays(folder, held, tmp_path):
    """As version 0.1 wrote them: the names of the columns lie beside an estimator without names."""
    _, X, y = held
    model = LocalW2Regressor(SMALL, base=None, random_state=0).fit(X.to_numpy(), y)
    save_model(model, str(tmp_path / "old"), features=["age", "water"], targets=["strength"])
    values = found(f"predict {tmp_path / 'old'} m.lw2.held-out.csv")["columns"]["strength_mean"]
    np.testing.assert_array_equal(values, model.predict(X.to_numpy()))
    assert "104 of these" not in run(f"evaluate {tmp_path / 'old'} data.csv --drop-missing").stderr
    run(f"report {tmp_path / 'old'} data.csv --drop-missing --out {tmp_path / 'r.html'}")
    assert "missing" in run(f"predict {tmp_path / 'old'} data.csv").stderr


def test_only_rows_without_a_target_are_left_out_of_a_fit(folder, tmp_path):
    """Missing inputs are no trouble; those that only held-out rows have are scored with a warning."""
    frame = read_table("data.csv").frame.dropna()
    frame.loc[frame.index[0], "water"] = np.nan
    frame.loc[frame.index[1:4], "strength"] = np.nan
    data = tmp_path / "gaps.csv"
    frame.to_csv(data, index=False)
    assert "3 of 149 rows" in failing(f"fit {data} --target strength --out {tmp_path / 'm'} {QUICK}")
    for seed in range(20):
        words = f"fit {data} --target strength --exclude day --hold-out 0.5 --seed {seed} {QUICK}"
        result = run(f"{words} --drop-missing --out {tmp_path / 'm'} --json")
        answer = json.loads(result.stdout)
        assert answer["rows"] + answer["held_out"] == 146
        assert "strength" in answer["held_out_scores"]["targets"]
        if "missing values in 'water'" in result.stderr:
            return
    pytest.fail("no seed held the row out")


@pytest.fixture(scope="module")
def survey(folder):
    """A table with an identifier, row numbers, a date, a year with gaps, text, a constant and a leak."""
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"row": np.arange(1, ROWS + 1), "who": [f"person {k:03d}" for k in range(ROWS)]})
    frame["joined"] = (
        pd.Timestamp("2020-01-31") + pd.to_timedelta(rng.integers(400, size=ROWS), unit="D")
    ).strftime("%Y-%m-%d")
    frame["year"] = pd.array(rng.integers(1990, 2022, ROWS), dtype="Int64")
    frame.loc[::8, "year"] = pd.NA
    frame["town"] = rng.choice(["Bath", "Ely", "York"], ROWS)
    frame["country"] = "UK"
    frame["pay"] = 20 + 5 * (frame["town"] == "York") + rng.normal(size=ROWS)
    frame["log_pay"] = np.log(frame["pay"])
    write_table("survey.csv", frame)
    write_table("survey.parquet", frame.assign(joined=pd.to_datetime(frame["joined"])))
    return frame


SURVEY = "--target pay --exclude log_pay --hold-out 0.3"
KNOWN = ["joined", "year", "town"]


def test_a_survey_loses_nothing_but_its_identifiers_and_constants(survey, tmp_path):
    out = tmp_path / "m"
    result = run(f"fit survey.csv {SURVEY} {QUICK} --out {out} --json")
    found_ = json.loads(result.stdout)
    assert found_["features"] == KNOWN
    assert list(found_["left_out"]) == ["row", "who", "country"]
    assert "'row' (it numbers the rows)" in result.stderr
    assert found(f"info {out}")["features"] == KNOWN
    assert "row (it numbers the rows), who" in run(f"info {out}").stdout
    assert "'pay' alone" not in result.stderr
    model = localw2.load(out)
    assert model.columns_.dates == (0,)
    assert model.columns_.gaps == (1,)
    # The same from Parquet, where dates are dates.
    other = found(f"fit survey.parquet {SURVEY} {QUICK} --out {tmp_path / 'p'}")
    assert other["loss"] == found_["loss"]


def test_years_and_dates_are_written_as_they_came(survey, tmp_path):
    out = tmp_path / "m"
    run(f"fit survey.csv {SURVEY} {QUICK} --out {out}")
    source = Path("survey.csv").read_text().splitlines()
    held_out = Path(f"{out}.held-out.csv").read_text().splitlines()
    assert held_out[0] == source[0]
    assert set(held_out) < set(source)
    for name in ("p.csv", "p.tsv", "p.json", "p.parquet"):
        run(f"predict {out} survey.csv --keep year,joined,who --out {tmp_path / name}")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    for line, year, day in zip(lines[1:], survey["year"], survey["joined"], strict=True):
        assert line.split(",")[1:3] == ["" if year is pd.NA else str(year), day]
    kept = json.loads((tmp_path / "p.json").read_text())["year"]
    assert kept == [None if year is pd.NA else year for year in survey["year"]]
    assert found(f"predict {out} survey.csv --keep year")["columns"]["year"] == kept
    drawn = run(f"sample {out} survey.csv -n 2 --keep year").stdout
    assert ".0," not in "".join(line.split(",")[1] + "," for line in drawn.splitlines())


def test_new_rows_need_only_what_the_model_uses(survey, tmp_path):
    out = tmp_path / "m"
    run(f"fit survey.csv {SURVEY} {QUICK} --out {out}")
    expected = run(f"predict {out} survey.csv").stdout
    write_table(tmp_path / "new.csv", survey[KNOWN])
    assert run(f"predict {out} {tmp_path / 'new.csv'}").stdout == expected
    assert "no column 'joined'" in failing(f"predict {out} data.csv")
    write_table(tmp_path / "odd.csv", survey[KNOWN].assign(town="Rye", joined="2021-05-01 12:30"))
    told = run(f"predict {out} {tmp_path / 'odd.csv'}").stderr
    assert "'Rye'" in told
    write_table(tmp_path / "bad.csv", survey[KNOWN].assign(joined="soon"))
    assert "'joined'" in failing(f"predict {out} {tmp_path / 'bad.csv'}")


def test_a_leak_is_named_before_the_fit(survey, tmp_path):
    told = run(f"fit survey.csv --target pay {QUICK} --out {tmp_path / 'm'}").stderr
    assert "warning: 'log_pay' nearly determines 'pay' alone" in told


def test_evaluate_and_report_give_the_same_score(survey, tmp_path):
    out = tmp_path / "m"
    run(f"fit survey.csv {SURVEY} {QUICK} --out {out}")
    score = found(f"evaluate {out} {out}.held-out.csv")["targets"]["pay"]
    run(f"report {out} {out}.held-out.csv --out {tmp_path / 'r.html'}")
    page = (tmp_path / "r.html").read_text()
    for name in ("crps", "rmse", "width"):
        assert f"{score[name]:.4g}" in page


def test_a_survey_goes_between_python_and_the_command_line(survey, tmp_path):
    X = survey.drop(columns=["pay", "log_pay"])
    with pytest.warns(UserWarning, match="left out"):
        model = LocalW2Regressor(SMALL, base=None, random_state=0).fit(X, survey["pay"])
    model.save(tmp_path / "python")
    values = found(f"predict {tmp_path / 'python'} survey.csv")["columns"]["y_mean"]
    np.testing.assert_array_equal(values, model.predict(X))
    assert found(f"evaluate {tmp_path / 'python'} survey.csv --target pay --draws 20")["rows"] == ROWS
    run(f"fit survey.csv --target pay --exclude log_pay {QUICK} --out {tmp_path / 'm'}")
    np.testing.assert_array_equal(localw2.load(tmp_path / "m").predict(X), values)


# --- report, explore, reproduce, demo --------------------------------------------------------------------


def test_report(folder, tmp_path):
    run(f"report m.lw2 m.lw2.held-out.csv --out {tmp_path / 'r.html'}")
    page = (tmp_path / "r.html").read_text()
    assert "strength" in page
    assert "m.lw2.held-out.csv" in page
    assert run("report m.lw2 m.lw2.held-out.csv --out -").stdout == page
    failing("report m.lw2 m.lw2.held-out.csv --out - --json", code=2)


def test_explore_serves_the_model_and_its_rows(folder, held, monkeypatch):
    calls = []

    def serve_file(path, load, tell, **options):
        calls.append((path, load(), options))
        tell("http://here/")

    fake = types.ModuleType("localw2.apps.explorer")
    fake.serve_file = serve_file
    monkeypatch.setitem(sys.modules, "localw2.apps.explorer", fake)
    command = "explore m.lw2 --data m.lw2.held-out.csv --port 0 --token secret --no-browser"
    assert "Explorer: http://here/" in run(command).stdout
    path, shown, options = calls[0]
    assert path == "m.lw2"
    np.testing.assert_array_equal(shown["X"], held[1])
    np.testing.assert_array_equal(shown["y"], held[2])
    np.testing.assert_array_equal(shown["model"].predict(held[1]), held[0].predict(held[1]))
    assert (shown["feature_names"], shown["target_names"]) == (["age", "water"], ["strength"])
    expected = {"wait": False, "host": "127.0.0.1", "port": 0, "token": "secret", "open_browser": False}
    assert options == expected | {"history": "m.lw2.history.jsonl"}
    assert found(command)["url"] == "http://here/"
    run(command.replace("m.lw2.held-out.csv", "-"), stdin=Path("m.lw2.held-out.csv").read_bytes())
    np.testing.assert_array_equal(calls[-1][1]["X"], held[1])
    assert "--watch" in failing("explore m.lw2 --data - --watch", code=2)


def test_reproduce_runs_the_script_of_a_checkout(tmp_path, monkeypatch, folder):
    # The package has the function under the name of its module.
    module = importlib.import_module("localw2.apps.cli.reproduce")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "site-packages" / "localw2" / "reproduce.py"))
    monkeypatch.chdir(tmp_path)
    message = failing("reproduce linear --quick")
    assert "paper/linear.py" in message
    assert "pip install -e" in message
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "records.py").touch()
    script = (
        "import sys, pathlib\n"
        "print('words for people')\n"
        "pathlib.Path('args').write_text(' '.join(sys.argv[1:]))\n"
        "folder = pathlib.Path('there/results')\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        "(folder / 'linear.json').write_text('{}')\n"
        "sys.exit(int('3' in sys.argv))"
    )
    (tmp_path / "paper" / "linear.py").write_text(script)
    (tmp_path / "there" / "results").mkdir(parents=True)
    (tmp_path / "there" / "results" / "older.json").touch()
    run("reproduce linear --quick --jobs 1")
    assert Path("args").read_text() == "--quick --jobs 1"
    assert "ended with exit code 1" in failing("reproduce linear --repeats 3")
    assert "mean 'linear'" in failing("reproduce linea", code=2)
    # In a process of its own, as the script writes past this one's streams.
    command = [sys.executable, "-m", "localw2.apps.cli", "reproduce", "linear", "--out", "there", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == {
        "experiment": "linear",
        "folder": "there",
        "files": ["there/results/linear.json"],
    }
    assert result.stderr == "words for people\n"


def test_demo(tmp_path, folder):
    """Its figures are those of `fit --hold-out` on the table that it writes, and it ends with commands."""
    out = tmp_path / "d"
    result = run(["demo", "--out", out])
    names = ("penguins.csv", "held-out.csv", "model.localw2", "demo.png", "report.html")
    assert all((out / name).stat().st_size > 0 for name in names)
    assert len(next_commands(result)) == 2
    again = found(f"fit {out / names[0]} --target body_mass_g --hold-out 0.25 --out {tmp_path / 'again'}")
    scores = again["held_out_scores"]["targets"]["body_mass_g"]
    shown = found(["demo", "--out", out])  # its own files may be replaced
    assert shown["held_out"] == again["held_out"] == 86
    assert shown["mean_error"] == pytest.approx(scores["mae"])
    assert shown["inside"] == round(86 * scores["coverage"])
    assert f"contain {shown['inside']} of 86" in result.stdout
    assert f"off by {shown['mean_error']:.0f} g" in result.stdout
    pd.testing.assert_frame_equal(
        read_table(out / names[1]).frame, read_table(tmp_path / "again.held-out.csv").frame
    )


def next_commands(result):
    """The commands that a run ends with, of which the last is the last line."""
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("  localw2 ")
    return [line.strip().removeprefix("localw2 ") for line in lines if line.startswith("  localw2 ")]


def test_the_demo_opens_its_page_only_for_people(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = tmp_path / "a page.html"
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("CI", raising=False)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(sys, stream, types.SimpleNamespace(isatty=lambda: True))
    running.show_page(page)
    assert opened == [page.as_uri()]
    monkeypatch.setenv("CI", "true")
    running.show_page(page)
    monkeypatch.delenv("CI")
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: False))
    running.show_page(page)
    assert len(opened) == 1


def test_every_command_ends_with_the_next_one(folder, tmp_path):
    """What a command suggests runs as it is, once placeholders are filled in."""
    for command in (
        "predict m.lw2 m.lw2.held-out.csv --out p.csv",
        "sample m.lw2 m.lw2.held-out.csv -n 2 --out d.csv",
        "evaluate m.lw2 m.lw2.held-out.csv --draws 20",
        "test m.lw2 m.lw2.held-out.csv --permutations 19 --decimal point",
        f"{FIT} {QUICK} --out {tmp_path / 'again'}",
        "info m.lw2",
    ):
        result = run(command)
        for step in next_commands(result):
            step = step.replace("VALUE", "2").replace("NEW.csv", "m.lw2.held-out.csv")
            assert ("--decimal point" in step) == ("--decimal" in command)
            run(step)
        assert "Next:" not in run(f"{command} --json").stderr
    (explore,) = next_commands(run("report m.lw2 m.lw2.held-out.csv --drop-missing"))
    assert explore == "explore m.lw2 --data m.lw2.held-out.csv --drop-missing"
    assert "Next:" not in run("predict m.lw2 m.lw2.held-out.csv").stderr  # a table goes down the pipe
    with open("m.lw2.held-out.csv") as rows:
        assert "DATA.csv" in next_commands(run("evaluate m.lw2 - --draws 20", stdin=rows.read()))[0]


def test_sentences_are_folded_on_a_terminal_and_tables_are_not(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = types.SimpleNamespace(isatty=lambda: True)
    words, table = "nine and three are twelve " * 3, "a  b  " * 20
    folded = running.fold(f"{words}\n{table}", terminal, indent=7).split("\n")
    assert folded[-1] == table
    assert " ".join(folded[:-1]).split() == words.split()
    assert len(folded[0]) <= 33
    assert all(len(line) <= 40 for line in folded[1:-1])
    assert running.fold(words, types.SimpleNamespace(isatty=lambda: False)) == words


# --- ode --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paths(folder):
    """Decays with gaps, in a long table whose lines are shuffled."""
    rng = np.random.default_rng(0)
    t, k = np.linspace(0, 2, 6), rng.normal(1.0, 0.2, 20)
    Y = np.stack([np.exp(-k[:, None] * t), 1 + k[:, None] * t], -1)
    gone = rng.uniform(size=(20, 6)) < 0.1
    gone[:, 0] = False
    Y[gone] = np.nan
    Y[3, 4, 1] = np.nan
    rows = [[f"p{i:02d}", t[j], *Y[i, j]] for i in range(20) for j in range(6) if not gone[i, j]]
    rng.shuffle(rows)
    with open("paths.csv", "w", newline="") as file:
        csv.writer(file).writerows([["who", "t", "a", "b"], *rows])
    return Y, t


def test_ode_commands_agree_with_python(paths, tmp_path):
    Y, t = paths
    out = tmp_path / "o.lw2"
    result = found(f"ode fit paths.csv --id who --time t --states a,b --max-epochs 2 --width 8 --out {out}")
    assert result["trajectories"] == 20
    model = LocalW2ODE(max_epochs=2, width=8, random_state=0).fit(Y, t)
    run(f"ode sample {out} --initial 1,1 --times 0:3:4 -n 5 --seed 2 --out {tmp_path / 's.csv'}")
    table = read_table(tmp_path / "s.csv")
    expected = model.sample([1.0, 1.0], np.linspace(0, 3, 4), 5, random_state=2)
    np.testing.assert_array_equal(table.numbers(["a", "b"]), expected.reshape(-1, 2))
    assert table.frame["t"][:5].tolist() == [0, 1, 2, 3, 0]
    settings = tomllib.loads(Path(f"{out}.settings.toml").read_text())
    assert settings["ode"]["fit"]["id"] == "who"
    assert settings["ode"]["fit"]["learning-rate"] == 0.01
    again = found(f"ode fit --config {out}.settings.toml --out {tmp_path / 'again'}")
    assert again["loss"] == result["loss"]
    assert "LocalW2ODE" in run(f"info {out}").stdout
    report = found(f"report {out} paths.csv --out {tmp_path / 'r.html'}")
    assert report["trajectories"] == 20
    page = (tmp_path / "r.html").read_text()
    assert "Trajectories of a, b" in page
    assert "<td>learning-rate</td><td>0.01</td>" in page
    LocalW2ODE(max_epochs=2, width=8).fit(Y, t).save(tmp_path / "python")
    assert "--id with 1 name(s)" in failing(f"report {tmp_path / 'python'} paths.csv")
    named = (
        f"report {tmp_path / 'python'} paths.csv --id who --time t --target a,b --out {tmp_path / 'p.html'}"
    )
    assert found(named)["trajectories"] == 20
    assert "has 1 number(s)" in failing(f"ode sample {out} --initial 1 --times 0,1")
    assert "list of numbers" in failing(f"ode sample {out} --initial 1,x --times 0,1", code=2)
    assert "START:STOP:COUNT" in failing(f"ode sample {out} --initial 1,1 --times 0:1", code=2)
    assert "Use `localw2 ode sample`" in failing(f"predict {out} paths.csv")


def test_two_states_at_one_time_are_told_of(tmp_path, folder):
    (tmp_path / "p.csv").write_text("who,t,a\n1,0,1\n2,0,1\n1,1,2\n1,0,3\n")
    message = failing(f"ode fit {tmp_path / 'p.csv'} --id who --time t --states a --out {tmp_path / 'o'}")
    assert "row 4 of p.csv is the second with who = 1 and t = 0" in message


def test_a_column_of_weights(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(size=60), "count": rng.integers(0, 4, 60)})
    frame["pay"] = frame["age"] + rng.normal(size=60)
    frame.to_csv(tmp_path / "survey.csv", index=False)
    out = tmp_path / "m"
    record = found(f"fit {tmp_path / 'survey.csv'} --target pay --weights count --law balls --out {out}")
    assert record["features"] == ["age"]
    assert record["weights"] == "count"
    again = LocalW2Regressor("balls", random_state=0)
    again.fit(frame[["age"]], frame["pay"], sample_weight=frame["count"])
    np.testing.assert_array_equal(localw2.load(out).predict(frame[["age"]]), again.predict(frame[["age"]]))
    settings = tomllib.loads(Path(f"{out}.settings.toml").read_text())
    assert settings["fit"]["weights"] == "count"
    repeated = tmp_path / "again"
    run(f"fit --config {out}.settings.toml --out {repeated} {tmp_path / 'survey.csv'}")
    assert repeated.exists()


def test_a_column_of_weights_of_trajectories(tmp_path):
    rng = np.random.default_rng(0)
    who, t = np.repeat([f"cell {i}" for i in rng.permutation(12)], 4), np.tile([0.0, 1.0, 2.0, 3.0], 12)
    frame = pd.DataFrame({"who": who, "t": t, "mass": np.exp(-0.3 * t) + 0.1 * rng.normal(size=48)})
    frame["count"] = frame["who"].str[-1].astype(int)
    path, out = tmp_path / "cells.csv", tmp_path / "m"
    frame.sample(frac=1, random_state=0).to_csv(path, index=False)
    fit = f"ode fit {path} --id who --time t --states mass --weights count --max-epochs 2 --width 8"
    assert found(f"{fit} --out {out}")["weights"] == "count"
    assert tomllib.loads(Path(f"{out}.settings.toml").read_text())["ode"]["fit"]["weights"] == "count"
    by_cell = frame.sort_values(["who", "t"])
    again = LocalW2ODE(max_epochs=2, width=8, random_state=0).fit(
        by_cell["mass"].to_numpy().reshape(12, 4), [0, 1, 2, 3], sample_weight=by_cell["count"][::4]
    )
    draws = [model.sample([1.0], [0, 1], 5, random_state=0) for model in (localw2.load(out), again)]
    np.testing.assert_array_equal(*draws)
    frame.loc[5, "count"] += 1
    frame.to_csv(path, index=False)
    assert "there is one for each subject" in failing(f"{fit} --out {out}")
    frame.loc[frame["who"] == frame["who"][5], "count"] = np.nan
    frame.to_csv(path, index=False)
    assert "'count' of cells.csv is empty in row 5 and in every other row" in failing(f"{fit} --out {out}")
    assert "one use" in failing(f"{fit.replace('--weights count', '--weights t')} --out {out}")
    failing(f"{fit.replace('--weights count', '--weights t,mass')} --out {out}", code=2)


@pytest.fixture(scope="module")
def drug(folder):
    """Decays after a dose of one's own, in a table of NONMEM's kind, with a file that has the equation."""
    rng = np.random.default_rng(0)
    n, hours = 20, [0.5, 1.0, 2.0, 4.0]
    mg, rate = rng.choice([50.0, 100.0], n), np.exp(rng.normal(np.log(0.5), 0.3, n))
    lines = ["ID,TIME,AMT,DV,WT"]
    for i in range(n):
        kg = 60 + i
        lines.append(f"{i + 1},0,{mg[i]:g},.,{kg}")
        for hour in hours:
            value = mg[i] * np.exp(-rate[i] * hour) + 2 * rng.normal()
            lines.append(f"{i + 1},{hour},.,{value:.4f},{kg}")
    Path("drug.csv").write_text("\n".join([lines[0], *rng.permutation(lines[1:])]))
    Path("drug.py").write_text(
        "import torch\n\n\ndef decay(t, y, k):\n    return torch.stack([-k * y[0], 0 * y[1]])\n\n\n"
        "def first(y):\n    return y[..., :1]\n"
    )
    fit = (
        "ode fit drug.csv --id ID --time TIME --states DV --dose AMT --y0 0,0 --field drug.py:decay "
        "--observe 0 --parameters k=lognormal:0.4:0.1@WT --covariates WT --noise additive --limit 0.1 "
        "--max-epochs 20 --out drug.lw2"
    )
    return found(fit)


def test_a_population_from_the_command_line(drug, tmp_path):
    record = drug
    assert record["trajectories"] == 20
    typical = record["population"][0]
    assert (typical["parameter"], typical["kind"]) == ("k", "typical")
    assert typical["interval"][0] < 0.5 < typical["interval"][1]
    assert "SD of log k" in run("ode summary drug.lw2").stdout
    told = run("info drug.lw2").stdout
    assert "SD of log k" in told
    assert "decay (a function of your own)" in told
    assert "--field FILE.py:decay" in failing("ode individuals drug.lw2 drug.csv")
    out, curves = tmp_path / "i.csv", tmp_path / "p.csv"
    run(f"ode individuals drug.lw2 drug.csv -n 40 --field drug.py:decay --out {out} --predictions {curves}")
    table, lines = read_table(out).frame, read_table(curves).frame
    assert table["ID"].tolist() == list(range(1, 21))
    assert (table["k_lower"] < table["k"]).all()
    assert len(lines) == 20 * 4
    assert abs(lines["observed"] - lines["individual"]).mean() < 4
    assert (
        abs(lines["observed"] - lines["individual"]) < abs(lines["observed"] - lines["population"])
    ).mean() > 0.6
    grid = (
        f"ode individuals drug.lw2 drug.csv -n 40 --field drug.py:decay --predictions {curves} --times 0:8:5"
    )
    run(grid)
    assert len(read_table(curves).frame) == 20 * 5
    report = found(f"report drug.lw2 drug.csv --field drug.py:decay --out {tmp_path / 'r.html'}")
    assert report["trajectories"] == 20
    page = (tmp_path / "r.html").read_text()
    for part in (
        "Population of DV",
        "SD of log k",
        "Visual predictive check",
        "Residuals",
        "Single subjects",
    ):
        assert part in page


def test_doses_of_a_simulation(drug, tmp_path):
    common = "ode sample drug.lw2 --field drug.py:decay --covariates WT=70 --times 1,13 -n 200 --exact"
    once = read_table_of(f"{common} --doses 0:100", tmp_path)
    twice = read_table_of(f"{common} --doses 0:100,12:100:0", tmp_path)
    np.testing.assert_allclose(once["DV"][::2], twice["DV"][::2], rtol=1e-3)
    assert (twice["DV"][1::2] > once["DV"][1::2] + 10).all()
    (tmp_path / "doses.csv").write_text("time,amount\n0,100\n12,100\n")
    same = read_table_of(f"{common} --doses {tmp_path / 'doses.csv'}", tmp_path)
    np.testing.assert_array_equal(same["DV"], twice["DV"])
    assert "neither a file" in failing(f"{common} --doses none.csv", code=2)
    assert "needs WT" in failing(common.replace("--covariates WT=70", "--doses 0:100"))
    assert "y0 is unknown" in failing(common)


def read_table_of(command, folder):
    run(f"{command} --out {folder / 's.csv'}")
    return read_table(folder / "s.csv").frame


@pytest.mark.parametrize(
    ("flags", "message", "code"),
    [
        ("--field drug.py:decai", "Did you mean 'decay'", 1),
        ("--field none.py:decay", "no such file", 1),
        ("--field drug.py", "FILE.py:function", 2),
        ("--field drug.py:decay --parameters k=log:1", "NAME=LAW", 2),
        ("--field drug.py:decay --parameters k=lognormal:1:2:3", "too many", 2),
        ("--parameters k=1", "--field", 2),
        ("--field drug.py:decay --observe x", "--observe", 2),
        ("--field drug.py:decay --noise loud", "--noise", 2),
        ("--field drug.py:decay --y0 a,b", "--y0", 2),
        ("--field drug.py:decay --covariates DV", "inputs", 1),
        ("--field drug.py:decay --dose MG", "no column 'MG'", 1),
    ],
)
def test_wrong_equations_are_told_of(drug, flags, message, code):
    fit = "ode fit drug.csv --id ID --time TIME --states DV --out wrong.lw2"
    assert message in failing(f"{fit} {flags}", code=code)


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("fit data.csv --target strenght --out x", "Did you mean 'strength'?"),
        ("fit data.csv --target strength --features agee --out x", "Did you mean 'age'?"),
        ("fit data.csv --target day --out x", "'2024-01-01' in row 1 is not a number"),
        ("fit data.csv --target strength --features strength --out x", "cannot predict itself"),
        ("fit data.csv --target water --out x", "1 of 150 rows of data.csv have missing values in water"),
        ("fit data.csv --target strength --exclude age,water,day --out x", "no column left"),
        ("fit data.csv --target strength --weights wates --out x", "Did you mean 'water'?"),
        ("fit data.csv --target strength --weights strength --out x", "one use"),
        ("fit data.csv --target strength --features age --weights age --out x", "one use"),
        (
            "fit data.csv --target strength --drop-missing --hold-out 0.001 --out x",
            "better 100",
        ),
        ("fit data.csv --target strength --drop-missing --out no/x", "folder"),
        (
            "fit data.csv --target strength --drop-missing --law network --learning-rate -1 --out x",
            "learning_rate=-1",
        ),
        (
            "fit date.csv --target strength --out x",
            "date.csv: no such file or directory. Did you mean 'data.csv'",
        ),
        ("predict m.lw data.csv", "m.lw does not exist"),
        ("predict data.csv data.csv", "data.csv is not a localw2 model file"),
        ("predict m.lw2 paths.csv", "paths.csv has no column 'age'"),
        ("predict m.lw2 data.csv --features age,day", "'2024-01-01' in row 1 is not a number"),
        ("predict m.lw2 data.csv --drop-missing --out p.xls", "'p.xls'"),
        ("predict m.lw2 data.csv --drop-missing --out no/p.csv", "'no/p.csv'"),
        ("report m.lw2 data.csv --drop-missing --out no/r.html", "'no/r.html'"),
        ("predict m.lw2 data.csv --drop-missing --interval 1.5", "coverage=1.5 must be a probability"),
        ("predict m.lw2 data.csv --features age", "m.lw2 has 2 features, but 1 are named"),
        ("sample m.lw2 data.csv --drop-missing --keep dya", "Did you mean 'day'?"),
    ],
)
def test_errors_are_one_paragraph_and_code_1(command, message, folder, paths):
    assert message in failing(command)
    assert message in json.loads(run(f"{command} --json", code=1).stdout)["error"]


@pytest.mark.parametrize(
    "command",
    [
        "fit data.csv --out x",
        "fit data.csv --target strength --base nothing --out x",
        "fit data.csv --target strength --drop-missing --delta wide --out x",
        "fit data.csv --target strength --features age --exclude water --out x",
        "fit data.csv --target , --out x",
        "fit data.csv --target strength --epochs 3 --out x",
        "fit data.csv --target strength --law balls --width 8 --out x",
        "fit data.csv --target strength --bounds low --out x",
        "fit data.csv --target strength --values few --out x",
        "predict m.lw2 data.csv --quantiles low",
        "predict m.lw2 data.csv --above much",
        "sample m.lw2 data.csv -n 0",
        "nothing",
    ],
)
def test_wrong_usage_is_code_2(command, folder):
    failing(command, code=2)


def test_wrong_usage_that_a_command_finds_is_told_to_machines_too(folder):
    result = run("fit data.csv --target strength --drop-missing --delta wide --out x --json", code=2)
    assert "neither auto, a radius nor nearest:K" in json.loads(result.stdout)["error"]


def test_a_column_of_numbers_with_a_text_is_read_as_categorical_with_a_word(tmp_path, folder):
    (tmp_path / "t.csv").write_text(
        "x,z,y\n" + "".join(f"{i},{i % 7},{i % 5}\n" for i in range(40)) + "5,136A,1\n"
    )
    told = run(f"fit {tmp_path / 't.csv'} --target y {QUICK} --out {tmp_path / 'm'}").stderr
    assert "'z' of t.csv is read as categorical, because '136A' in row 41" in told
    assert localw2.load(tmp_path / "m").columns_.categories[1][-1] == "6"
    # As a target, or where the fit had numbers, the cell is refused by name.
    message = failing(f"fit {tmp_path / 't.csv'} --target z --out {tmp_path / 'n'}")
    assert "'136A' in row 41 is not a number" in message
    run(f"fit {tmp_path / 't.csv'} --target y --features x {QUICK} --out {tmp_path / 'n'}")
    assert "'136A' in row 41" in failing(f"predict {tmp_path / 'n'} {tmp_path / 't.csv'} --features z")


def test_unforeseen_errors_are_called_a_fault_of_ours(folder, monkeypatch):
    def broken(*_, **__):
        raise KeyError("lost")

    monkeypatch.setattr(LocalW2Regressor, "predict", broken)
    message = failing("predict m.lw2 m.lw2.held-out.csv")
    assert "KeyError: 'lost'" in message
    assert "a bug in localw2" in message
    monkeypatch.setattr(
        LocalW2Regressor, "predict", lambda *_, **__: (_ for _ in ()).throw(SolverError("too stiff"))
    )
    assert failing("predict m.lw2 m.lw2.held-out.csv").strip() == "error: too stiff"


# --- Ctrl-C -----------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_checkpoint_and_the_same_command_goes_on(folder, tmp_path, monkeypatch):
    words = f"{FIT} --law network --base none --width 8 --epochs 12 --out "
    whole = found(words + str(tmp_path / "whole"))
    step = training._Run.step

    def interrupted(self):
        if self.epoch == 5:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(training._Run, "step", interrupted)
    monkeypatch.setattr(sys, "argv", ["localw2", *shlex.split(words), "part.lw2"])
    result = run(words + str(tmp_path / "part"), code=130)
    assert "interrupted after epoch 5" in result.stderr
    assert f"localw2 {words}part.lw2" in result.stderr
    assert result.stdout == ""
    told = json.loads(run(f"{words}{tmp_path / 'other'} --json", code=130).stdout)
    assert told["error"] == "interrupted after epoch 5"
    assert told["checkpoint"] == str(tmp_path / "other.checkpoint")
    assert told["resume"] == f"localw2 {words}part.lw2"
    assert (tmp_path / "part.checkpoint").exists()
    assert len((tmp_path / "part.history.jsonl").read_text().splitlines()) == 5
    assert not (tmp_path / "part").exists()
    monkeypatch.setattr(training._Run, "step", step)
    # Other settings do not go on from it, but may begin anew.
    assert "checkpoint" in failing(f"{words}{tmp_path / 'part'} --seed 1")
    again = run(f"{words}{tmp_path / 'part'} --json")
    assert "resuming from" in again.stderr
    assert json.loads(again.stdout)["loss"] == whole["loss"]
    assert not (tmp_path / "part.checkpoint").exists()
    assert not (tmp_path / "part.history.jsonl").exists()
    (tmp_path / "part.checkpoint").write_text("nonsense")
    assert found(f"{words}{tmp_path / 'part'} --restart")["loss"] == whole["loss"]


def test_ctrl_c_before_the_fit(folder, monkeypatch):
    def impatient(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalW2Regressor, "predict", impatient)
    assert run("predict m.lw2 m.lw2.held-out.csv", code=130).stderr == "stopped.\n"


@pytest.mark.posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_that_end_a_process_keep_what_ctrl_c_keeps(folder, tmp_path, name):
    out = tmp_path / "m"
    words = f"{FIT} --law network --base none --width 8 --epochs 100000 --out {out}"
    process, stdout, stderr = stop_fit(words, out, getattr(signal, name))
    assert process.returncode == 130, stderr
    assert "keeps the progress" in stderr
    assert f"localw2 {words}" in stderr
    assert stdout == ""
    assert Path(f"{out}.checkpoint").exists()
    assert not out.exists()


def stop_fit(words, out, number):
    """Start a fit in a process of its own, and send it a signal once it has a checkpoint."""
    command = [sys.executable, "-m", "localw2.apps.cli", *shlex.split(words)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that started the tests in the background has interrupts ignored, which a child inherits.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    while not Path(f"{out}.checkpoint").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    return process, *process.communicate()


@pytest.mark.slow
@pytest.mark.posix
def test_a_real_interrupt_of_a_real_process(folder, tmp_path):
    out = tmp_path / "m"
    words = f"{FIT} --law network --base none --width 8 --epochs 4000 --out {out}"
    process, stdout, stderr = stop_fit(words, out, signal.SIGINT)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert f"localw2 {words}" in stderr
    assert not out.exists()
    assert found(words)["epochs"] == 4000
    whole = found(words.replace(str(out), str(tmp_path / "whole")))
    X = read_table("m.lw2.held-out.csv").frame[["age", "water"]]
    assert whole["epochs"] == 4000
    np.testing.assert_array_equal(localw2.load(out).predict(X), localw2.load(tmp_path / "whole").predict(X))


def in_terminal(command, code=0, until=None):
    """Run ``localw2 COMMAND`` on a terminal of its own; what it shows. ``until`` is when to press Ctrl-C."""
    import pty

    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "localw2.apps.cli", *shlex.split(command)]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with its process
        while part := os.read(ours, 1 << 16):
            shown += part
            if until is not None and until.encode() in shown:
                process.send_signal(signal.SIGINT)
                until = None
    os.close(ours)
    text = shown.decode()
    assert process.wait() == code, text
    assert "Traceback" not in text
    return text


@pytest.mark.slow
@pytest.mark.posix
def test_every_command_on_a_real_terminal(folder, paths, tmp_path):
    fit = f"{FIT} --law network --base none --epochs 30 --out {tmp_path / 'm'}"
    assert "30/30" in in_terminal(fit)  # the progress bar
    assert "strength_mean" in in_terminal(f"predict {tmp_path / 'm'} m.lw2.held-out.csv")
    assert "strength" in in_terminal(f"sample {tmp_path / 'm'} m.lw2.held-out.csv -n 1")
    assert "CRPS" in in_terminal(f"evaluate {tmp_path / 'm'} m.lw2.held-out.csv")
    assert "p = " in in_terminal(f"test {tmp_path / 'm'} m.lw2.held-out.csv --permutations 99")
    assert "45 rows" in in_terminal(f"report {tmp_path / 'm'} m.lw2.held-out.csv --out {tmp_path / 'r.html'}")
    assert "LocalW2Regressor" in in_terminal(f"info {tmp_path / 'm'}")
    assert "penguins that were held out" in in_terminal(f"demo --no-open --out {tmp_path / 'demo'}")
    ode = f"ode fit paths.csv --id who --time t --states a,b --max-epochs 2 --width 8 --out {tmp_path / 'o'}"
    assert "20 trajectories" in in_terminal(ode)
    assert "draw,t,a,b" in in_terminal(f"ode sample {tmp_path / 'o'} --initial 1,1 --times 0,1 -n 2")
    assert "is not an experiment" in in_terminal("reproduce nothing", code=2)
    explore = f"explore {tmp_path / 'm'} --data m.lw2.held-out.csv --port 0 --no-browser"
    assert "Explorer: http://127.0.0.1:" in in_terminal(explore, until="Press Ctrl-C")
    longer = fit.replace("30", "9000").replace("/m", "/long")
    assert "To go on, run the same command again" in in_terminal(longer, code=130, until="9/9000")


# --- start ------------------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy():
    """In a process of its own, through the same function as the installed command."""
    code = (
        "import sys; sys.argv = ['localw2', 'fit', '--help']\n"
        "from localw2.apps.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    known = {'torch', 'numpy', 'scipy', 'sklearn', 'pandas', 'pyarrow', 'fastapi'}\n"
        "    heavy = known & set(sys.modules)\n"
        "    print('heavy:', sorted(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--target" in result.stdout
    assert result.stdout.endswith("heavy: []\n")


def test_fit_says_what_it_reads_before_it_loads_torch(folder):
    """The import of torch takes seconds on a cold machine; a person should see a line before."""
    code = (
        "import sys, shlex; from localw2.apps.cli import running\n"
        "seen, note = [], running.note\n"
        "def watch(text):\n    seen.append((text, 'torch' in sys.modules)); note(text)\n"
        "from localw2.apps.cli import fit as _; sys.modules['localw2.apps.cli.fit'].note = watch\n"
        "from localw2.apps.cli import app\n"
        "app(shlex.split(sys.argv[1]), standalone_mode=False); print(seen)"
    )
    words = f"{FIT} {QUICK} --out first.lw2"
    result = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True, check=True)
    seen = ast.literal_eval(result.stdout.splitlines()[-1])
    assert ("149 rows: strength from age, water", False) in seen


@pytest.mark.parametrize(
    "command",
    ["", *sorted(typer.main.get_command(app).commands), "ode fit", "ode sample"],
)
def test_every_command_has_help(command):
    assert "Usage: localw2" in run(f"{command} --help").stdout


def test_version_and_completion():
    assert run("--version").stdout.strip() == localw2.__version__
    words = {"_LOCALW2_COMPLETE": "complete_bash", "COMP_WORDS": "localw2 re", "COMP_CWORD": "1"}
    assert run("", env=words).stdout.split() == ["report", "reproduce"]


def test_public_names_are_lazy_and_complete():
    tree = ast.parse(Path(localw2.__file__).read_text())
    typed = {
        alias.name: node.module.removeprefix("localw2.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("localw2.")
        for alias in node.names
    }
    assert typed == localw2._HOME_OF
    assert {*typed, "__version__"} == set(localw2.__all__)
    for name in localw2.__all__:
        assert getattr(localw2, name) is not None
    rooms = {"apps", "balls", "estimators", "judging", "losses", "models", "storage", "training"}
    assert {*localw2.__all__, *rooms, "datasets", "distribution", "metrics", "plots"} == set(dir(localw2))
    assert localw2.metrics.crps is crps
    with pytest.raises(AttributeError, match="no attribute 'LocalW2Regresor'"):
        _ = localw2.LocalW2Regresor


def test_a_text_column_stays_text_where_its_cells_look_like_numbers(tmp_path, monkeypatch):
    """Codes such as 007: in a file of their own they would be read as the number 7, which is another code."""
    monkeypatch.chdir(tmp_path)
    codes = ["a", "b", "007"]
    rows = [f"{codes[i % 3]},{i % 7},{i % 7 + 5 * (i % 3 == 2)}.{i % 10}" for i in range(90)]
    Path("data.csv").write_text("\n".join(["code,x,y", *rows]) + "\n")
    run("fit data.csv --target y --law network --epochs 2 --out m.lw2")
    Path("new.csv").write_text("code,x\n007,1\n007,2\n")
    predicted = found("predict m.lw2 new.csv --json")["columns"]["y_mean"]
    assert min(predicted) > 5


# --- full disks and two fits at once --------------------------------------------------------------------


def fill_disk(monkeypatch, *folders):
    """From now on nothing can be written below these folders."""
    fsync = os.fsync

    def full(file):
        path = os.readlink(f"/proc/self/fd/{file}")
        if any(path.startswith(str(folder)) for folder in folders) and not os.path.isdir(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return fsync(file)

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.posix
def test_a_full_disk_at_the_end_loses_nothing(folder, tmp_path, monkeypatch):
    for name in ("full", "other"):
        (tmp_path / name).mkdir()
    words = f"{FIT} {QUICK} --out {tmp_path / 'full' / 'm'}"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    step = training._Run.finish

    def finish(self, whole=False):
        step(self, whole)  # the last checkpoint still fits
        fill_disk(monkeypatch, tmp_path / "full", folder)

    monkeypatch.setattr(training._Run, "finish", finish)
    message = failing(words)
    (rescued,) = (tmp_path / "other").iterdir()
    assert "no space left" in message
    assert str(tmp_path / "full" / "m") in message
    assert str(rescued) in message
    assert localw2.load(rescued).n_features_in_ == 2
    assert (tmp_path / "full" / "m.checkpoint").exists()
    rescued.unlink()
    fill_disk(monkeypatch, tmp_path, folder)
    assert "same command again" in failing(words)
    assert (tmp_path / "full" / "m.checkpoint").exists()
    monkeypatch.undo()
    assert "resuming" in run(words).stderr
    assert {file.name for file in (tmp_path / "full").iterdir()} == {"m", "m.settings.toml"}


@pytest.mark.posix
def test_a_prediction_that_is_written_is_a_success(folder, tmp_path, monkeypatch):
    replace = atomic.open_replacement

    def full(path, mode):
        if str(path).endswith("settings.toml"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(path, mode)

    monkeypatch.setattr(atomic, "open_replacement", full)
    result = run(f"predict m.lw2 m.lw2.held-out.csv --out {tmp_path / 'p.csv'}")
    assert "p.csv.settings.toml could not be written: no space left" in result.stderr
    assert len(read_table(tmp_path / "p.csv").frame) == 45


@pytest.mark.posix
def test_a_full_disk_names_the_file(folder, tmp_path, monkeypatch):
    fill_disk(monkeypatch, tmp_path)
    assert str(tmp_path / "p.csv") in failing(f"predict m.lw2 m.lw2.held-out.csv --out {tmp_path / 'p.csv'}")
    with pytest.raises(OSError, match=r"m\.lw2"):
        localw2.load("m.lw2").save(tmp_path / "m.lw2")


@pytest.mark.posix
def test_a_second_fit_with_the_same_checkpoint_says_so(folder, tmp_path):
    out = tmp_path / "m"
    words = f"{FIT} --law network --base none --width 8 --epochs 100000 --out {out}"
    command = [sys.executable, "-m", "localw2.apps.cli", *shlex.split(words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not Path(f"{out}.checkpoint").exists() and process.poll() is None:
            time.sleep(0.05)
        message = failing(f"{words} --restart")
    finally:
        process.kill()
        process.wait()
    assert f"process {process.pid}" in message
    assert Path(f"{out}.checkpoint").exists()
    assert Path(f"{out}.history.jsonl").exists()
    (tmp_path / "m.checkpoint").unlink()
    run(f"{FIT} {QUICK} --out {out}")  # the lock of a killed process does not keep others waiting
    assert not Path(f"{out}.checkpoint.lock").exists()


def test_a_settings_file_that_is_no_text_is_left_out(folder, tmp_path):
    shutil.copy("m.lw2", tmp_path / "m.lw2")
    (tmp_path / "m.lw2.settings.toml").write_bytes(b"\xff\xfe\x00")
    assert "n features in" in run(f"info {tmp_path / 'm.lw2'}").stdout
