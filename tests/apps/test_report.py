"""The report: complete in itself, true to the numbers, safe with any text, honest about seen rows."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

from localw2 import (
    BallLaw,
    LocalW2ODE,
    LocalW2Regressor,
    Network,
    RandomCoefficientRegressor,
    column_importance,
    load,
)
from localw2.apps.cli import app
from localw2.apps.cli.model_files import save_model
from localw2.apps.report import joint, report_html, write_report
from localw2.apps.report import rows as report_of_rows
from localw2.apps.report.trajectories import JUDGED
from localw2.datasets import ZOO
from localw2.estimators.dynamics.started_paths import read_paths, simulate_paths
from localw2.estimators.scores import score_rows
from localw2.metrics import crps

pytest.importorskip("matplotlib")

VOID = {"meta", "br", "img", "link", "input", "hr"}


def problem(n, seed, d=1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    y = x[:, :1] + (1 + 0.5 * x[:, 1:]) * rng.normal(size=(n, d))
    return x, y[:, 0] if d == 1 else y


@pytest.fixture(scope="module")
def fitted():
    return LocalW2Regressor(law=Network(epochs=20), base=Ridge(), random_state=0).fit(*problem(200, 0))


@pytest.fixture(scope="module")
def page(fitted):
    x, y = problem(150, 1)
    names = {"feature_names": ["dose, mg", "age"], "target_names": ["response"]}
    return report_html(fitted, x, y, **names, settings={"seed": 0}, source="new.csv")


class Document(HTMLParser):
    """Elements, ids and text; fails on elements that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.references, self.text, self.links, self._open = [], [], [], [], [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and value:
                self.links.append(value)
            self.references += re.findall(r"url\(#([^)]+)\)", value or "")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_file_needs_nothing_else_and_nothing_in_it_runs(page):
    found = Document(page)
    assert not {"script", "link", "iframe", "object", "img"} & set(found.tags)
    assert all(link.startswith("#") for link in found.links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert not re.search(r"\son\w+=", page)


def test_names_inside_the_pictures_are_unique_and_found(page):
    found = Document(page)
    assert len(found.ids) == len(set(found.ids))
    wanted = set(found.references) | {link[1:] for link in found.links}
    assert wanted
    assert wanted <= set(found.ids)


def test_every_section_is_there_with_a_picture_where_one_belongs(page):
    text = " ".join(Document(page).text)
    for words in ("Predictions and observations", "Column by column", "selected rows", "Can it be trusted?",
                  "Which columns drive the distribution", "Data", "Model", "Citation", "arXiv:2406",
                  "dose, mg", "response", "new.csv"):  # fmt: skip
        assert words in text
    assert page.count("<svg") == 8
    assert page.count('role="img"') == page.count("aria-label=") == 8


def test_numbers_are_those_of_the_metrics(page, fitted):
    x, y = problem(150, 1)
    lower, upper = fitted.predict_interval(x, 0.9)
    draws = fitted.sample(x, 400, random_state=0)
    tiles = re.findall(r"<li><b>([^<]*)</b>", page)
    error = np.sqrt(((y - fitted.predict(x)) ** 2).mean())
    assert tiles[0] == f"{error:.4g}"
    # From 200 draws, the CRPS of a row has an error of about its SD / sqrt(200), and there are 150 rows.
    assert float(tiles[1]) == pytest.approx(crps(y, draws).mean(), rel=0.02)
    assert tiles[2] == f"{100 * ((y >= lower) & (y <= upper)).mean():.1f} %"
    assert tiles[3] == f"{(upper - lower).mean():.4g}"


def test_the_verdict_is_that_of_diagnose(page, fitted):
    x, y = problem(150, 1)
    found = fitted.diagnose(x, y, names=["dose, mg", "age"], random_state=0)
    assert found.verdict[0] in " ".join(Document(page).text)
    assert "where it is" not in found.verdict[0]
    wrong = report_html(fitted, x, y + 3.0)
    assert '<div class="verdict bad">' in wrong
    assert "Not calibrated" in wrong


def test_rows_of_the_fit_are_told_at_the_top(page, fitted):
    warned = report_html(fitted, *problem(200, 0))
    assert "trained on 100 % of these rows" in warned
    assert warned.index("trained on") < warned.index('<div class="verdict bad">')
    assert "trained on" not in page


def test_text_from_outside_stays_text(fitted):
    x, y = problem(60, 2)
    bad = "<script>alert(1)</script>\"'&"
    page = report_html(
        fitted, x, y, feature_names=[bad, "b"], target_names=[bad], settings={bad: bad}, source=bad
    )
    assert "script" not in Document(page).tags
    assert "<script>" not in page


def test_several_outputs_have_their_own_pictures():
    x, y = problem(150, 3, d=2)
    model = LocalW2Regressor(law=Network(epochs=5), base=Ridge(), random_state=0).fit(x, y)
    page = report_html(model, *problem(100, 4, d=2), target_names=["a", "b"])
    assert page.count("<svg") == 15
    found = Document(page)
    assert len(found.ids) == len(set(found.ids))
    assert "Dependence between outputs" in " ".join(found.text)
    assert page.index("Distributions at") < page.index("Dependence between") < page.index("Can it be")


# --- several outputs together ---


class MarginsOnly(LocalW2Regressor):
    """A fit whose draws have lost their dependence: every output is shuffled on its own."""

    def sample(self, X, n_samples=1, random_state=None):
        return shuffle(super().sample(X, n_samples, random_state))


def shuffle(draws, seed=1):
    rng = np.random.default_rng(seed)
    return np.stack([rng.permuted(draws[..., k], axis=0) for k in range(draws.shape[-1])], -1)


def of_zoo(name, n=400):
    """Rows of a problem, and draws of its true law at them."""
    problem, rng = ZOO[name], np.random.default_rng(0)
    x, y = problem.sample(n, random_state=1)
    return y, np.stack([problem.sample_y(x, rng) for _ in range(joint.DRAWS)])


@pytest.mark.parametrize("name", ["circle", "joint modes"])
def test_numbers_of_a_joint_law_are_not_those_of_its_margins(name):
    y, draws = of_zoo(name)
    right, margins = joint.JointRows.of(y, draws), joint.JointRows.of(y, shuffle(draws))
    assert right.gain[0] > 3 * right.gain[1]
    assert abs(margins.gain[0]) < 3 * margins.gain[1]
    # Two shuffles of the same margins: over seeds their scores differ by 0.007 (circle) and 0.010 (SD).
    assert right.energy_shuffled.mean() == pytest.approx(margins.energy.mean(), abs=0.04)
    if name == "circle":  # over all x, the modes of the other problem look independent
        found, other = right.compare(0, 1), margins.compare(0, 1)
        assert abs(found.distance - found.drawn_distance[0]) < 3 * found.drawn_distance[1]
        assert found.shuffled_distance[0] < found.drawn_distance[0] / 2
        assert not found.differs
        assert other.differs


def test_a_right_law_and_y_are_exchangeable():
    """y is one more draw: its correlation lies among those of the tables of draws, not on one side."""
    above = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        both = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], (151, 100)) * [1, 9] + 5
        found = joint.JointRows.of(both[0], both[1:]).compare(0, 1)
        above.append((found.correlation - found.drawn[0]) / found.drawn[1])
        assert found.drawn[0] == pytest.approx(0.7, abs=0.05)
    assert abs(np.mean(above)) < 3 / np.sqrt(30)
    assert 0.6 < np.std(above) < 1.6


def test_the_page_tells_a_joint_law_from_its_margins():
    x, y = ZOO["joint modes"].sample(500, random_state=0)
    gains, places = [], []
    for kind in (LocalW2Regressor, MarginsOnly):
        model = kind("balls", base=Ridge(), random_state=0).fit(x[:300], y[:300])
        page = report_html(model, x[300:], y[300:])
        gains.append(re.search(r"<b>([\d.]+) % ± ([\d.]+) % (lower|higher)</b>", page).groups())
        shown = re.findall("[ABC]: correlation ([\N{MINUS SIGN}\\d.]+)", page)
        places.append([float(value.replace("\N{MINUS SIGN}", "-")) for value in shown])
        assert not re.search(r"\bnan\b|\binf\b", re.sub(r"<svg.*?</svg>", "", page, flags=re.S).lower())
    assert gains[0][2] == "lower"
    assert float(gains[0][0]) > 3 * float(gains[0][1])
    assert float(gains[1][0]) < 3 * float(gains[1][1])
    # The sign of the correlation changes with x: three rows show what all together cannot.
    assert places[0][0] < -0.5 < 0.5 < places[0][2]
    assert max(map(abs, places[1])) < 0.3


def test_names_of_outputs_stay_text_in_the_joint_part():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(120, 1)), rng.normal(size=(120, 3))
    names = ["price $x_{$", '<a href="https://elsewhere.example">y</a>', "k\x1b[2J" + 40 * "w "]
    y = pd.DataFrame(x + noise @ rng.normal(size=(3, 3)), columns=names)
    model = LocalW2Regressor("balls", base=Ridge(), random_state=0).fit(x, y)
    page = report_html(model, x, y)
    found = Document(page)
    assert all(link.startswith("#") for link in found.links)
    assert "\x1b" not in page
    part = page[page.index("Dependence between") : page.index("Can it be")]
    assert "price $x_{$ and &lt;a href" in part
    assert part.count("<tr>") == 1 + 3 + 1 + 3  # three pairs, three places


def test_more_outputs_than_a_picture_holds():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(60, 8))
    y[:, 7] = y[:, 2] + 0.1 * y[:, 7]
    draws = rng.normal(size=(90, 60, 8))
    found = joint.describe_joint(joint.JointRows.of(y, draws), [f"o{k}" for k in range(8)])
    text = " ".join(Document("".join(found)).text)
    assert "6 outputs with the strongest correlations" in text
    assert "o2 and o7" in text
    assert "More than 3 SDs away from the draws: o2 and o7" in text


def test_draws_without_spread_are_left_out():
    rng = np.random.default_rng(0)
    y, draws = rng.normal(size=(60, 2)), rng.normal(size=(90, 60, 2))
    draws[:, :10, 1] = 3.0
    some = joint.JointRows.of(y, draws)
    assert len(some.y) == 50
    assert np.isfinite(some.draws).all()
    draws[..., 1] = 3.0
    none = joint.JointRows.of(np.ones((60, 2)), draws)
    assert "too few" in joint.describe_joint(none, ["a", "b"])[0]
    assert np.isfinite(none.gain).all()
    constant = joint.JointRows.of(np.column_stack([np.ones(60), y[:, 1]]), rng.normal(size=(90, 60, 2)))
    assert "nan" not in re.sub(
        r"<svg.*?</svg>", "", "".join(joint.describe_joint(constant, "ab")), flags=re.S
    )


def test_random_coefficients_come_with_their_summary():
    x, y = problem(200, 5)
    model = RandomCoefficientRegressor(method="ml", random_state=0).fit(x, y)
    page = report_html(model, *problem(100, 6))
    assert "SD" in page
    assert Document(page).tags.count("svg") >= 4


def test_the_same_call_gives_the_same_bytes(page, fitted):
    x, y = problem(150, 1)
    names = {"feature_names": ["dose, mg", "age"], "target_names": ["response"]}
    assert page == report_html(fitted, x, y, **names, settings={"seed": 0}, source="new.csv")


def test_a_failed_report_leaves_the_old_one(tmp_path, fitted):
    x, y = problem(60, 2)
    path = tmp_path / "report.html"
    assert write_report(path, fitted, x, y) == path
    before = path.read_bytes()
    with pytest.raises(ValueError, match="feature_names"):
        write_report(path, fitted, x, y, feature_names=["one"])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_model_without_draws_is_refused():
    with pytest.raises(ValueError, match="Ridge"):
        report_html(Ridge(), *problem(60, 2))


# --- tables ---


def trips(n, seed):
    """A table with text, missing values, a year, a date and a row number, and outputs that depend on them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "trip": np.arange(n),
            "city": rng.choice(["Oslo", "Rome & Milan", "Wien"], n),
            "year": rng.integers(1995, 2021, n),
            "load": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "start": pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
        }
    )
    y = 4.0 * (frame["city"] == "Oslo") + 0.1 * (frame["year"] - 2000) + rng.normal(size=n)
    return frame, pd.Series(y, name="delay [min]")


@pytest.fixture(scope="module")
def of_trips():
    with pytest.warns(UserWarning, match="trip"):
        return LocalW2Regressor(law="balls", base=Ridge(), random_state=0).fit(*trips(200, 0))


@pytest.fixture(scope="module")
def trip_page(of_trips):
    return report_html(of_trips, *trips(150, 1))


def test_a_table_is_reported_in_its_own_words(trip_page):
    text = " ".join(Document(trip_page).text)
    assert "delay [min] given city, year, load, start" in text
    missing = f"{100 * trips(150, 1)[0]['load'].isna().mean():.1f} %"
    for words in ("city = Oslo", "Rome & Milan", "trip (it numbers the rows)", missing, "2019-0"):
        assert words in text
    assert "missing city" not in text
    assert "city_" not in text
    assert not re.search(r"\b(199\d|200\d|201\d)\.0\b|2e\+03|2\.01e\+03", text)


def test_a_category_has_its_names_on_the_axis(trip_page):
    svg = trip_page[trip_page.index('aria-label="delay [min] by city"') :]
    svg = svg[: svg.index("</svg>")]
    for word in ("Oslo", "Rome &amp; Milan", "Wien", "city", "delay [min]"):
        assert f">{word}</text>" in svg


def test_the_column_that_drives_the_law_is_named(trip_page):
    """The city moves y by 4; the number of the row is not used, so it is not among the bars."""
    section = trip_page[trip_page.index("Which columns drive") :]
    section = section[: section.index("<h2>")]
    text = " ".join(Document(section[section.index("<p>") :]).text)
    assert "Shuffling city matters most" in text
    assert "From 150 of 150 rows, 3 shuffles" in text
    for name in ("city", "year", "load", "start"):
        assert f">{name}</text>" in section
    assert ">trip</text>" not in section


def test_columns_that_change_the_spread_alone_are_named():
    rng = np.random.default_rng(0)
    x = rng.uniform(0.2, 2, size=(700, 3))
    y = 2 * x[:, 0] + x[:, 1] * rng.normal(size=700)
    model = LocalW2Regressor("balls", random_state=0).fit(x[:400], y[:400])
    text = report_html(model, x[400:], y[400:], feature_names=["a", "b <i>", "c"])
    assert "b &lt;i&gt; changes the spread or the shape, but hardly the mean." in text
    one = LocalW2Regressor("balls", random_state=0).fit(x[:400, :1], y[:400])
    assert "Which columns drive" not in report_html(one, x[400:, :1], y[400:])


def test_importance_is_bounded_however_many_columns(monkeypatch):
    asked = []

    def watch(X, y, model, **settings):
        asked.append(settings["max_rows"] * settings["n_repeats"] * X.shape[1])
        return column_importance(X, y, model, **settings)

    monkeypatch.setattr(report_of_rows, "column_importance", watch)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 40))
    model = RandomCoefficientRegressor("ml").fit(x, x[:, 0] + rng.normal(size=150))
    assert "12 of 40 columns" in report_html(model, x, x[:, 0])
    assert asked[0] <= 20_000


def test_other_columns_are_held_at_typical_values(trip_page):
    frame, _ = trips(150, 1)
    held = re.search(r"typical values: ([^<]*)\.</p>", trip_page)[1].split(", ")
    typical = dict(each.split(" = ") for each in held)
    assert typical["city"] == frame["city"].mode()[0].replace("&", "&amp;")
    assert abs(int(typical["year"]) - frame["year"].median()) <= 0.5
    days = frame["start"].sort_values()
    assert days.iloc[74] <= pd.Timestamp(typical["start"]) <= days.iloc[75]


def test_the_same_table_by_names_or_loaded_gives_the_same_report(trip_page, of_trips, tmp_path):
    of_trips.save(tmp_path / "m")
    frame, y = trips(150, 1)
    assert report_html(load(tmp_path / "m"), frame, y) == trip_page
    other = report_html(of_trips, frame, y, feature_names=list("abcde"), target_names=["z"])
    assert "z given b, c, d, e" in other


def test_report_and_evaluate_give_the_same_score(trip_page, of_trips, tmp_path):
    frame, y = trips(150, 1)
    found = score_rows(of_trips, frame, y, list(frame)).list_scores(["delay"])["delay"]
    tiles = re.findall(r"<li><b>([^<]*)</b>", trip_page)
    assert tiles[:2] == [f"{found['rmse']:.4g}", f"{found['crps']:.4g}"]
    assert tiles[2] == f"{100 * found['coverage']:.1f} %"
    save_model(of_trips, str(tmp_path / "m"), features=list(frame), targets=["delay [min]"])
    frame.assign(**{"delay [min]": y}).to_csv(tmp_path / "new.csv", index=False)
    printed = CliRunner().invoke(app, ["evaluate", str(tmp_path / "m"), str(tmp_path / "new.csv"), "--json"])
    scores = json.loads(printed.stdout)["targets"]["delay [min]"]
    assert scores["crps"] == pytest.approx(found["crps"], rel=1e-12)
    assert scores["rmse"] == pytest.approx(found["rmse"], rel=1e-12)


def test_weights_of_a_pool_are_listed(trip_page, of_trips):
    text = " ".join(Document(trip_page).text)
    assert of_trips.weights_
    for member, weight in of_trips.weights_.items():
        assert f"{member} {100 * weight:.0f} %" in text


def test_a_law_without_a_network_is_reported_and_a_plain_one_has_no_gaps(page):
    x, y = problem(200, 0)
    model = LocalW2Regressor(law=BallLaw(), base=Ridge(), random_state=0).fit(x, y)
    found = report_html(model, *problem(100, 1))
    assert Document(found).tags.count("svg") == 7  # all but the training curve
    assert "missing" not in found
    assert "not use" not in page


# --- trajectories ---


def decay(t, y, k):
    return -k * y


def decays(n, seed, times=7):
    """Trajectories of decays with rates around 1, on a grid, and their times."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 2, times)
    k, start = rng.normal(1.0, 0.2, n), rng.uniform(1, 2, n)
    return (start[:, None] * np.exp(-k[:, None] * t))[..., None], t


@pytest.fixture(scope="module")
def dynamics():
    pytest.importorskip("torchdiffeq")
    return LocalW2ODE(decay, {"k": 0.9}, max_epochs=40, random_state=0).fit(*decays(60, 0))


def test_a_report_on_trajectories(dynamics, tmp_path):
    Y, t = decays(50, 1)
    Y[3, 2] = np.nan
    path = write_report(tmp_path / "r.html", dynamics, Y, t, state_names=["mass <g>"], source="cells.csv")
    page = path.read_text()
    found = Document(page)
    text = " ".join(found.text)
    for words in ("Trajectories of mass <g>", "judged by 50 trajectories of cells.csv", "Can it be trusted?",
                  "Simulations and observations", "over time", "initial mass <g>", "parameter"):  # fmt: skip
        assert words in text
    assert page.count("<svg") == 4
    assert len(found.ids) == len(set(found.ids))
    assert not {"script", "link", "img"} & set(found.tags)
    assert page == report_html(dynamics, Y, t, state_names=["mass <g>"], source="cells.csv")
    assert "trained on" not in page
    assert "trained on 100 % of these trajectories" in report_html(dynamics, *decays(60, 0))


def decay_two(t, y, k):
    return -k * y


def test_several_states_are_shown_together_at_the_end():
    """Both states decay at one random rate: at the end they are low together."""
    pytest.importorskip("torchdiffeq")
    first, t = decays(60, 0)
    Y = np.concatenate([first, 2 * first], axis=-1)
    model = LocalW2ODE(decay_two, {"k": 0.9}, max_epochs=40, random_state=0).fit(Y, t)
    page = report_html(model, Y, t, state_names=["a", "b"])
    assert Document(page).tags.count("svg") == page.count("<svg")
    text = page[page.index("Dependence between states at the end") : page.index("Can it be")]
    assert "one draw per trajectory" in text
    assert float(re.search(r"<td>a and b</td><td>([\d.]+)</td>", text)[1]) > 0.95
    assert re.search(r"<b>[\d.]+ % ± [\d.]+ % lower</b>", text)


def test_coverage_of_trajectories_is_that_of_fresh_draws(dynamics):
    """Of every observation but the first, by draws of our own from the same starts."""
    Y, t = decays(50, 1)
    tile = re.findall(r"<li><b>([^<]*)</b><span>of observations", report_html(dynamics, Y, t))[0]
    draws = dynamics.sample(Y[:, 0], t, 400, random_state=9)[:, :, 1:]
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    inside = ((Y[:, 1:] >= low) & (Y[:, 1:] <= high)).mean()
    # Ends of an interval from 200 draws move by .015 of the rows (one SD); a trajectory has 6 rows alike.
    assert float(tile[:-2]) / 100 == pytest.approx(inside, abs=4 * 0.015 * 2)


def test_a_wrong_equation_is_called_wrong(dynamics):
    Y, t = decays(50, 1)
    assert '<div class="verdict bad">' in report_html(dynamics, Y * np.exp(1.5 * t)[:, None], t)
    assert "worse than a forecast" in report_html(dynamics, Y * np.exp(1.5 * t)[:, None], t)


def test_times_of_ones_own_and_too_many_trajectories(dynamics):
    Y, t = decays(JUDGED + 20, 2)
    rng = np.random.default_rng(0)
    keep = [np.sort(np.append(0, 1 + rng.permutation(6)[:m])) for m in rng.integers(2, 6, len(Y))]
    own = [t[rows] + 0.01 * i * (rows > 0) for i, rows in enumerate(keep)]
    page = report_html(dynamics, [y[rows] for y, rows in zip(Y, keep, strict=True)], own, n_samples=40)
    assert f"judged by {JUDGED} trajectories of the {JUDGED + 20}" in " ".join(Document(page).text)


def test_simulations_stand_at_the_times_of_their_trajectory(dynamics):
    """Whether solved together, with gaps, or alone: draws agree with the closed form in mean."""
    Y, t = decays(40, 3)
    Y[::2, 3] = np.nan
    Y[5, :2] = np.nan  # begins later than the others
    paths = list(read_paths(Y, t, 1))
    draws = simulate_paths(dynamics, paths, 400, np.random.default_rng(0))
    k = dynamics.parameters_.samples["k"]
    for path, found in zip(paths, draws, strict=True):
        assert found.shape == (400, len(path.time), 1)
        expected = path.start * np.exp(-k[:, None] * (path.time - path.start_time))
        error = expected.std(0) / np.sqrt(400)
        np.testing.assert_array_less(np.abs(found[..., 0].mean(0) - expected.mean(0)), 5 * error + 1e-3)


@pytest.mark.parametrize(
    ("Y", "t", "message"),
    [
        (np.ones((5, 3, 2)), [0, 1, 2], "state"),
        (np.ones((5, 3, 1)), [0, 1], "times"),
        (np.full((5, 3, 1), np.nan), [0, 1, 2], "complete"),
        ([np.ones((3, 1)), np.ones((2, 1))], [[0, 1, 2]], "one for each"),
    ],
)
def test_trajectories_that_do_not_fit_are_told_of(dynamics, Y, t, message):
    with pytest.raises(ValueError, match=message):
        report_html(dynamics, Y, t)


def test_dollars_and_control_characters_in_names_are_shown():
    """matplotlib takes $x_{$ for a formula that it cannot read; a report must not fail for a name."""
    rng = np.random.default_rng(0)
    names = ["price $x_{$", "k\x1b[2J\n$"]
    frame = pd.DataFrame({names[0]: rng.normal(size=60), names[1]: rng.choice(["$a_{$", "b"], 60)})
    y = frame[names[0]] + rng.normal(size=60)
    model = LocalW2Regressor("balls", Ridge(), random_state=0).fit(frame, y)
    page = report_html(model, frame, y.to_numpy(), target_names=["cost in $_{$"])
    assert "price $x_{$" in page
    assert "cost in $_{$" in page
    assert "\x1b" not in page
