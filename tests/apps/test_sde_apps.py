"""Stochastic equations for people: commands, a report and pictures, of one small fit."""

import json
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from localw2 import LocalW2SDE, load, plots, report_html
from localw2.apps.cli import app
from localw2.apps.cli.model_files import load_model, read_long_table
from localw2.apps.tables.tables import read_table

pytest.importorskip("matplotlib")

FIT = (
    "sde fit paths.csv --id who --time t --states level --drift eq.py:pull --diffusion eq.py:noise "
    "--jumps eq.py:size --parameters theta=1,sigma=0.4,rate=0.5,m=1 --max-steps 2"
)
PARTS = "--drift eq.py:pull --diffusion eq.py:noise --jumps eq.py:size"
EQUATION = """
def pull(t, y, theta):
    return -theta * y


def noise(t, y, sigma):
    return sigma


def size(t, y, z, m):
    return m + 0.2 * z
"""


def run(command, code=0):
    result = CliRunner().invoke(app, shlex.split(command), prog_name="localw2")
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    return result


def paths(n, seed, count=20, lag=0.1):
    """Paths (n, count) that are pulled to 0, pushed at random and jump upwards, and their times."""
    rng = np.random.default_rng(seed)
    y = np.zeros((n, count))
    for j in range(count - 1):
        jumps = (rng.random(n) < 0.05) * rng.normal(1, 0.2, n)
        y[:, j + 1] = y[:, j] * (1 - lag) + 0.4 * np.sqrt(lag) * rng.normal(size=n) + jumps
    return y, lag * np.arange(count)


def as_table(Y, t):
    who = np.repeat([f"p{i}" for i in range(len(Y))], len(t))
    return pd.DataFrame({"who": who, "t": np.tile(t, len(Y)), "level": Y.ravel()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table, functions, a model of them from the command line, and new paths."""
    place = tmp_path_factory.mktemp("processes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        as_table(*paths(60, 0)).sample(frac=1, random_state=0).to_csv("paths.csv", index=False)
        as_table(*paths(40, 1)).to_csv("new.csv", index=False)
        Path("eq.py").write_text(EQUATION)
        told = json.loads(run(f"{FIT} --out m.lw2 --json").stdout)
        yield told


@pytest.fixture(scope="module")
def model(folder):
    from localw2.apps.cli.sde import load_parts

    return load("m.lw2", **load_parts("eq.py:pull", "eq.py:noise", "eq.py:size"))


def test_the_commands_agree_with_python(folder, model, tmp_path):
    assert folder["paths"] == 60
    assert folder["parameters"]["theta"]["mean"] == pytest.approx(model.parameters_.mean["theta"])
    assert folder["jumps"]["rate"] == pytest.approx(model.jump_rate_)
    run(f"sde sample m.lw2 {PARTS} --initial 0.5 --times 0:1:3 -n 4 --seed 2 --out {tmp_path / 's.csv'}")
    table = pd.read_csv(tmp_path / "s.csv")
    drawn = model.sample([0.5], [0.0, 0.5, 1.0], 4, random_state=2)
    np.testing.assert_array_equal(table["level"], drawn.ravel())
    assert table["draw"].tolist() == np.repeat([1, 2, 3, 4], 3).tolist()
    settings = tomllib.loads(Path("m.lw2.settings.toml").read_text())
    assert settings["sde"]["fit"]["drift"] == "eq.py:pull"
    again = run(f"sde fit --config m.lw2.settings.toml --out {tmp_path / 'again'} --json").stdout
    assert json.loads(again)["parameters"] == folder["parameters"]
    text = run("info m.lw2").stdout  # needs no function
    assert "LocalW2SDE" in text
    assert "theta" in text
    assert not list(Path().glob("m.lw2.checkpoint*"))


def test_weights_of_paths_are_a_column(folder, tmp_path):
    Y, t = paths(20, 3, 10)
    table = as_table(Y, t)
    name = next(column for column in table if column not in ("t", "level"))
    table["w"] = 1.0 + (table[name].rank(method="dense") > 10)
    table.to_csv(tmp_path / "w.csv", index=False)
    parts = "--drift eq.py:pull --diffusion eq.py:noise --max-steps 1"
    fit = f"sde fit {tmp_path / 'w.csv'} --id {name} --time t --states level {parts}"
    found = json.loads(run(f"{fit} --weights w --out {tmp_path / 'w.lw2'} --json").stdout)
    assert found["weights"] == "w"
    plain = json.loads(run(f"{fit} --out {tmp_path / 'p.lw2'} --json").stdout)
    assert found["parameters"]["theta"]["mean"] != plain["parameters"]["theta"]["mean"]


def test_a_table_without_paths_is_one_path(folder, tmp_path):
    Y, t = paths(1, 3, 200)
    as_table(Y, t)[["t", "level"]].to_csv(tmp_path / "one.csv", index=False)
    out = tmp_path / "one.lw2"
    parts = "--drift eq.py:pull --diffusion eq.py:noise"
    fit = f"sde fit {tmp_path / 'one.csv'} --time t --states level {parts} --bounds=-5, --max-steps 1"
    told = run(f"{fit} --out {out}")
    assert "one path" in told.stderr
    assert "1 path," in told.stdout
    loaded = load_model(str(out), ("LocalW2SDE",), described=True)
    assert len(read_long_table(loaded, read_table(tmp_path / "one.csv")).subjects) == 1


@pytest.mark.parametrize(
    ("command", "message", "code"),
    [
        ("sde sample m.lw2 --initial 0 --times 0,1", "--drift FILE.py:pull", 1),
        (f"sde sample m.lw2 {PARTS} --initial 0,1 --times 0,1", "1 state(s): level", 1),
        ("predict m.lw2 new.csv", "localw2 sde sample", 1),
        ("sde fit new.csv --time t --states level --out x", "--id on the command line", 1),
        ("sde fit new.csv --id who --time t --states levels --out x", "Did you mean 'level'", 1),
        ("sde fit new.csv --time t --states level --out x --bounds 1", "LOW,HIGH", 2),
        ("sde fit new.csv --time t --states level --out x --jumps many", "normal, mlp", 2),
        ("sde fit new.csv --time t --states level --out x --noise loud", "--noise", 2),
        ("sde fit new.csv --id who --time t --states level --out x --parameters k=1", "networks", 1),
        ("sde fit new.csv --time t --states level --out new.csv", "new.csv", 2),
    ],
)
def test_errors_say_what_to_do(folder, command, message, code):
    result = run(command, code)
    said = " ".join(result.stderr.replace("│", " ").split())
    assert message in said


def test_the_report_has_every_part(folder, tmp_path):
    told = json.loads(run(f"report m.lw2 new.csv {PARTS} --out {tmp_path / 'r.html'} --json").stdout)
    assert told["paths"] == 40
    page = (tmp_path / "r.html").read_text()
    headings = ("The equation", "Jumps", "Paths", "In the long run", "Can it be trusted?")
    for words in (
        "Stochastic equation of level",
        "judged by 40 paths",
        "longest step of the solver",
        *headings,
    ):
        assert words in page
    assert page.count("<svg") >= 5
    assert "trained on" not in page


def test_the_pictures_show_what_was_computed(model, folder):
    import matplotlib.pyplot as plt

    Y, t = paths(40, 1)
    curves = model.coefficients_along(Y, t, random_state=0)
    axes = plots.coefficients(curves, ["level"], truth=(lambda y: -y, lambda y: 0.4 + 0 * y))
    assert axes.shape == (3, 1)
    np.testing.assert_array_equal(axes[0, 0].lines[0].get_ydata(), curves.drift[0, 0])
    assert axes[0, 0].get_ylabel() == "drift of level"
    drawn = model.sample(Y[:, :1], t, 10, random_state=0)
    (panel,) = plots.paths(t, drawn, Y[..., None], shown=1)
    assert len(panel.lines) == 40 + 2 + 1  # observed, the edges of the band, one simulated
    with pytest.raises(ValueError, match="samples"):
        plots.paths(t[:3], drawn)
    run_long = model.long_run(Y, t, n_samples=100, random_state=0)
    (panel,) = plots.long_run(run_long)
    at, density = panel.lines[0].get_data()
    assert np.trapezoid(density, at) == pytest.approx(1, abs=0.02)
    compared = model.compare_transitions(Y, t, random_state=0)
    axes = plots.jumps(compared, ["level"])
    assert axes.shape == (1, 2)
    assert axes[0, 0].get_yscale() == "log"
    with pytest.raises(ValueError, match="axes"):
        plots.jumps(compared, axes=axes[0])
    plt.close("all")


def test_jumps_are_seen_in_the_transitions(model):
    Y, t = paths(40, 1)
    found = model.compare_transitions(Y, t, random_state=0)
    # Jumps of 1 +- .2 stand out of a noise of .13: each of 760 transitions has one with probability .05.
    assert 38 - 4 * 6 < len(found.jumped) < 38 + 4 * 6
    assert found.jumped.min() > 0.4
    assert found.sizes.mean() == pytest.approx(model.jump_mean_[0], abs=0.03)
    assert np.abs(found.without).max() < 1 < found.simulated.max()
    assert model.coefficients_along(Y, t).rate == pytest.approx(model.jump_rate_)


def test_errors_of_measurement_leave_out_the_verdict():
    def pull(t, y, theta):
        return -theta * y

    def constant(t, y, sigma):
        return sigma

    Y, t = paths(30, 0)
    guesses = {"theta": 1.0, "sigma": 0.4}
    noisy = LocalW2SDE(pull, constant, parameters=guesses, noise=0.05, max_steps=1, random_state=0).fit(Y, t)
    with pytest.raises(ValueError, match="errors of measurement"):
        noisy.diagnose(Y, t)
    assert noisy.coefficients_along(Y, t).bins is None
    page = report_html(noisy, Y[:1], t, n_samples=40)
    assert "no verdict" in page
    assert "from the first observed state" in page
    assert "Can it be trusted?" not in page
