"""The report: complete in itself, true to the numbers, safe with any text, honest about seen rows."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from localw2 import LocalW2ODE, LocalW2Regressor, RandomCoefficientRegressor, diagnose
from localw2.apps.report import report_html, write_report
from localw2.apps.report.trajectories import JUDGED, _paths, _simulate
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
    return LocalW2Regressor(base=Ridge(), max_epochs=20, random_state=0).fit(*problem(200, 0))


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
    for words in ("Predictions and observations", "selected inputs", "Can it be trusted?", "Data", "Model",
                  "Citation", "arXiv:2406.06825", "dose, mg", "response", "new.csv"):  # fmt: skip
        assert words in text
    assert page.count("<svg") == 5
    assert page.count('role="img"') == page.count("aria-label=") == 5


def test_numbers_are_those_of_the_metrics(page, fitted):
    x, y = problem(150, 1)
    lower, upper = fitted.predict_interval(x, 0.9)
    draws = fitted.sample(x, 400, random_state=0)
    tiles = re.findall(r"<li><b>([^<]*)</b>", page)
    error = np.sqrt(((y - fitted.predict(x)) ** 2).mean())
    assert tiles[0] == f"{error:.4g}"
    assert float(tiles[1]) == pytest.approx(crps(y, draws).mean(), rel=2e-3)
    assert tiles[2] == f"{100 * ((y >= lower) & (y <= upper)).mean():.1f} %"
    assert tiles[3] == f"{(upper - lower).mean():.4g}"


def test_the_verdict_is_that_of_diagnose(page, fitted):
    x, y = problem(150, 1)
    found = diagnose(x, y, fitted.sample(x, 400, random_state=0), names=["dose, mg", "age"], random_state=0)
    assert found.verdict[0] in " ".join(Document(page).text)
    assert "where it is" not in found.verdict[0]
    wrong = report_html(fitted, x, y + 3.0)
    assert '<div class="verdict bad">' in wrong
    assert "Not calibrated" in wrong


def test_rows_of_the_fit_are_told_at_the_top(page, fitted):
    warned = report_html(fitted, *problem(200, 0))
    assert "trained on 100 % of these rows" in warned
    assert warned.index("trained on") < warned.index('<div class="verdict')
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
    model = LocalW2Regressor(base=Ridge(), max_epochs=5, random_state=0).fit(x, y)
    page = report_html(model, *problem(100, 4, d=2), target_names=["a", "b"])
    assert page.count("<svg") == 8
    Document(page)


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
    paths = list(_paths(Y, t, 1))
    draws = _simulate(dynamics, paths, 400, np.random.default_rng(0))
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
