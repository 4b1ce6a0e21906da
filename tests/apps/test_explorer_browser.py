"""The explorer's page in a real browser: what it shows is what Python says, and it asks no other host."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

NEEDED = os.environ.get("LOCALW2_REQUIRE_BROWSER") == "1"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 30_000  # milliseconds, on a machine that is busy


if not NEEDED:  # where a browser is demanded, what is missing is an error
    for name in ("fastapi", "uvicorn", "plotly", "playwright"):
        pytest.importorskip(name, reason=f"the browser tests need {name}")

import uvicorn  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402
from sklearn.linear_model import Ridge  # noqa: E402

from localw2 import LocalW2MixedRegressor, LocalW2Regressor, Network, load  # noqa: E402
from localw2.apps.explorer import create_app  # noqa: E402
from localw2.apps.explorer.server import listen, make_config  # noqa: E402
from localw2.apps.tables.tables import write_table  # noqa: E402

if CHROMIUM is None and not NEEDED:
    pytest.skip("no Chromium is installed: apt-get install chromium", allow_module_level=True)
expect.set_options(timeout=PATIENCE)


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform([-1, 0], [1, 40], size=(n, 2))
    x[:, 1] = x[:, 1].round()
    y = 100 * x[:, 0] + (5 + x[:, 1]) * rng.normal(size=n)
    return x, np.column_stack([y, x[:, 1] + y / 50])


@pytest.fixture(scope="module")
def model():
    return LocalW2Regressor(law=Network(epochs=5, width=10), base=Ridge(), random_state=0).fit(*rows(150))


@contextmanager
def serving(app):
    server = uvicorn.Server(make_config(app))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server ended before it began"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def home(model, tmp_path_factory):
    history = tmp_path_factory.mktemp("fit") / "history.jsonl"
    app = create_app(
        model,
        *rows(120, seed=1),
        feature_names=["heat [K]", "days"],
        target_names=["strength [MPa]", "yield"],
        history=history,
    )
    with serving(app) as url:
        yield url, history


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def page(browser, home):
    """A page that has drawn its charts; at the end it must have had no error and asked no other host."""
    with watched(browser, home[0]) as opened:
        start(opened, home[0])
        yield opened


@contextmanager
def watched(browser, url, **settings):
    context = browser.new_context(viewport={"width": 1200, "height": 900}, **settings)
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    errors, asked = [], []
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    context.close()
    assert errors == []
    assert asked
    assert [each for each in asked if not each.startswith((url + "/", "data:"))] == []


def start(opened, url):
    opened.goto(url)
    opened.wait_for_selector("#density .main-svg")
    opened.wait_for_selector("#bands .main-svg")


def settled(opened, *x):
    """Wait until the charts are those of the input x."""
    opened.wait_for_function(
        "x => JSON.stringify(JSON.parse(document.body.dataset.drawn || '[]')) === JSON.stringify(x)",
        arg=list(x),
    )


def test_tags_in_names_stay_text(browser):
    """Plotly would make a link of a name such as this one, on every axis."""
    link = '<a href="https://elsewhere.example">click</a> & <b>x</b>'
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({link: rng.choice([link, "b"], 60), "x": rng.normal(size=60)})
    y = pd.Series(rng.normal(size=60), name=link)
    fitted = LocalW2Regressor("balls", Ridge(), random_state=0).fit(frame, y)
    app = create_app(fitted, frame, y.to_numpy(), target_names=[link])
    with serving(app) as url, watched(browser, url) as opened:
        start(opened, url)
        assert opened.locator("a[href*='elsewhere']").count() == 0
        assert opened.locator("svg a").count() == 0
        assert link in opened.locator("#density").text_content()
        assert link in opened.locator("#bands").text_content()


def test_classes_have_bars_and_sweeps_of_probabilities(browser):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (80, 1))
    kind = np.where(x[:, 0] + 0.5 * rng.normal(size=80) > 0, "<i>high</i>", "low")
    Y = pd.DataFrame({"kind": kind, "size": x[:, 0] + rng.normal(size=80)})
    fitted = LocalW2MixedRegressor("balls", base=None, random_state=0).fit(x, Y)
    with serving(create_app(fitted, x, Y)) as url, watched(browser, url) as opened:
        start(opened, url)
        p = fitted.predict_proba([[value_of(opened, 0)]])["kind"][0]
        shown = opened.inner_text("#mean")
        assert shown.startswith(fitted.classes_["kind"][p.argmax()])
        assert f"{100 * p.max():.1f}".rstrip("0").rstrip(".") in shown
        assert opened.locator("#q05").is_hidden()
        drawn = opened.evaluate("document.getElementById('density').data.map((one) => [one.name, one.x])")
        np.testing.assert_allclose(dict(drawn)["model"], p)
        assert "<i>high</i>" in opened.locator("#density").text_content()
        opened.wait_for_function("document.getElementById('bands').data?.length === 2")
        opened.select_option("#output", "1")
        assert opened.locator("#q05").is_visible()
        opened.wait_for_function("document.getElementById('bands').data?.length === 4")


def number(text):
    return float(text.replace("\N{MINUS SIGN}", "-"))


def check_numbers(opened, model, x, output=0):
    """Every number on the page is Python's, to the digits that it shows."""
    mean, std = (values[0, output] for values in model.predict([x], return_std=True))
    low, median, high = model.predict_quantiles([x], [0.05, 0.5, 0.95])[:, 0, output]
    expected = {"mean": mean, "std": std, "q05": low, "q50": median, "q95": high}
    for name, value in expected.items():
        # Four digits, or all before the point.
        unit = 10.0 ** (np.floor(np.log10(abs(value))) - 3) if abs(value) < 1000 else 1.0
        assert number(opened.inner_text(f"#{name}")) == pytest.approx(value, abs=0.5000001 * unit), name


def line(opened, chart, name):
    """The x and y of a line of a chart."""
    return opened.evaluate(
        """([chart, name]) => {
            const found = document.getElementById(chart).data.find((trace) => trace.name === name);
            return [found.x, found.y];
        }""",
        [chart, name],
    )


def value_of(opened, j):
    return float(opened.input_value(f"#number-{j}"))


def test_the_page_shows_pythons_numbers_and_follows_a_slider(page, model):
    start_x = [value_of(page, 0), value_of(page, 1)]
    settled(page, *start_x)
    check_numbers(page, model, start_x)
    before, drawing = page.inner_text("#mean"), line(page, "density", "model")
    box = page.locator("#slider-0").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()
    moved = [value_of(page, 0), start_x[1]]
    assert moved[0] > start_x[0] + 0.3
    settled(page, *moved)
    check_numbers(page, model, moved)
    assert page.inner_text("#mean") != before
    assert line(page, "density", "model") != drawing
    # The chart's own data are the server's: the density's mean is that of the model, to its draws.
    y, density = line(page, "density", "model")
    mean, std = (values[0, 0] for values in model.predict([moved], return_std=True))
    assert np.average(y, weights=density) == pytest.approx(mean, abs=5 * std / np.sqrt(2000))
    assert float(page.evaluate("document.body.dataset.redraw")) > 0


def test_keys_move_inputs_and_readers_hear_the_result(page, model):
    page.focus("#slider-1")
    before = value_of(page, 1)
    page.keyboard.press("ArrowRight")
    assert value_of(page, 1) == before + 1  # whole numbers in the data: whole steps
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "k"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "number-1"
    page.keyboard.press("ArrowUp")
    x = [value_of(page, 0), before + 2]
    settled(page, *x)
    check_numbers(page, model, x)
    expect(page.locator("#spoken")).to_contain_text(f"mean {page.inner_text('#mean')}")
    assert page.get_attribute("#spoken", "aria-live") == "polite"
    for selector in ("input", "select", "button"):
        for each in page.locator(selector).all():
            assert each.evaluate("e => e.labels?.length || e.getAttribute('aria-label') || e.textContent")
    page.click("#reset")
    settled(page, value_of(page, 0), before)


def test_a_place_outside_the_data_is_told_of(page, model):
    page.fill("#number-0", "5")
    x = [5, value_of(page, 1)]
    settled(page, *x)
    expect(page.locator("#warning")).to_contain_text("heat [K] = 5 is above")
    check_numbers(page, model, x)
    page.fill("#number-0", "")  # half typed: nothing is asked
    page.fill("#number-0", "0.1")
    settled(page, 0.1, x[1])
    expect(page.locator("#warning")).to_have_text("")


def test_outputs_sweeps_neighbours_and_the_test(page, model):
    x = [value_of(page, 0), value_of(page, 1)]
    page.select_option("#output", "1")
    expect(page.locator("#distribution-title")).to_have_text("Distribution of yield")
    check_numbers(page, model, x, output=1)
    page.select_option("#output", "0")
    page.select_option("#swept", "1")
    page.wait_for_function("() => document.getElementById('bands').layout.xaxis.title.text === 'days'")
    grid, mean = line(page, "bands", "mean")
    expected = model.predict(np.column_stack([np.full(len(grid), x[0]), grid]))[:, 0]
    assert np.allclose(mean, expected)
    page.fill("#k", "7")
    expect(page.locator("#neighbours")).to_contain_text("the 7 nearest observed rows")
    page.check("#shifted")
    page.wait_for_function(
        "() => document.getElementById('density').data[0].name === '7 observed rows, shifted'"
    )
    page.click("#run-test")
    expect(page.locator("#verdict")).to_contain_text("p = ")
    page.wait_for_selector("#map .main-svg")
    page.select_option("#map-y", "z")
    page.wait_for_function(
        "() => document.getElementById('map').layout.yaxis.title.text === 'z of each ball'"
    )


def joint_of(opened, x, outputs):
    """Wait until the chart of two outputs is that of the input x."""
    opened.wait_for_function(
        "now => document.body.dataset.joint === JSON.stringify(now)", arg=[list(x), list(outputs)]
    )
    draws = opened.evaluate(
        "[document.getElementById('cloud').data[0].x, document.getElementById('cloud').data[0].y]"
    )
    return np.transpose(draws)


def test_two_outputs_are_shown_together(page, model):
    x = [value_of(page, 0), value_of(page, 1)]
    draws = joint_of(page, x, [0, 1])
    assert np.allclose(draws, model.sample([x], 2000, random_state=0)[::4, 0])
    expect(page.locator("#joint-title")).to_have_text("strength [MPa] and yield together")
    assert not page.is_visible("#joint-choice")  # two outputs: nothing to choose
    before = page.inner_text("#dependence")
    assert "distance correlation" in before
    page.fill("#number-0", "0.7")
    moved = joint_of(page, [0.7, x[1]], [0, 1])
    assert np.allclose(moved, model.sample([[0.7, x[1]]], 2000, random_state=0)[::4, 0])
    found = np.corrcoef(model.sample([[0.7, x[1]]], 2000, random_state=0)[:, 0].T)[0, 1]
    expect(page.locator("#dependence")).to_contain_text(
        f"correlation {found:.2f}".replace("-", "\N{MINUS SIGN}")
    )
    page.check("#shifted")
    page.wait_for_function("() => document.getElementById('cloud').data[1].name.endsWith('shifted')")
    wide = page.evaluate("document.getElementById('cloud').layout.xaxis.range")
    page.check("#zoom")
    page.wait_for_function(
        "wide => document.getElementById('cloud').layout.xaxis.range[1] !== wide[1]", arg=wide
    )


def test_any_two_of_three_outputs_can_be_chosen_whatever_their_names(browser):
    names = ['<a href="https://elsewhere.example">click</a>', "cost in $x_{$", "k\x1b[2J"]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 1)), rng.normal(size=(80, 3))
    fitted = LocalW2Regressor("balls", Ridge(), random_state=0).fit(x, y)
    with serving(create_app(fitted, x, y, target_names=names)) as url, watched(browser, url) as opened:
        start(opened, url)
        place = [value_of(opened, 0)]
        joint_of(opened, place, [0, 1])
        assert names[0] in opened.locator("#cloud").text_content()
        assert opened.locator("a[href*='elsewhere']").count() == opened.locator("svg a").count() == 0
        opened.select_option("#joint-x", "2")
        draws = joint_of(opened, place, [2, 1])
        assert np.allclose(draws, fitted.sample([place], 2000, random_state=0)[::4, 0][:, [2, 1]])
        # The output of the other axis: they change places.
        opened.select_option("#joint-x", "1")
        joint_of(opened, place, [1, 2])
        assert opened.input_value("#joint-y") == "2"
        expect(opened.locator("#joint-title")).to_contain_text("cost in $x_{$ and k")


def test_one_output_has_no_joint_chart(browser):
    x, y = rows(80)
    fitted = LocalW2Regressor("balls", Ridge(), random_state=0).fit(x, y[:, 0])
    with serving(create_app(fitted, x, y[:, 0])) as url, watched(browser, url) as opened:
        start(opened, url)
        assert not opened.is_visible("#joint")


def test_curves_of_another_fit_appear_while_it_runs(page, home):
    expect(page.locator("#training-state")).to_contain_text("The model on display: epoch 5")
    home[1].write_text('{"epoch": 1, "loss": 2.5}\n{"epoch": 2, "loss": 1.5}\n')
    expect(page.locator("#training-state")).to_have_text("A fit is running: epoch 2, loss 1.5.")
    assert line(page, "curves", "loss") == [[1, 2], [2.5, 1.5]]
    home[1].unlink()
    expect(page.locator("#training-state")).to_contain_text("The model on display: epoch 5")


@contextmanager
def command(*words, **settings):
    """``localw2 WORDS`` in a process of its own, ended with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "localw2.apps.cli", *map(str, words)], text=True, **settings
    )
    try:
        yield process
    finally:
        process.kill()  # also when it is stopped
        process.communicate()


def test_the_first_fit_is_watched_and_then_explored(browser, tmp_path):
    """No model yet: the page shows the curves of a real fit beside it, then the model that it wrote."""
    x, y = rows(150)
    write_table(tmp_path / "d.csv", {"heat": x[:, 0], "days": x[:, 1], "strength": y[:, 0]})
    model, data = tmp_path / "m.localw2", tmp_path / "d.csv"
    explore = ("explore", model, "--data", data, "--watch", "--port", 0, "--no-browser", "--json")
    fit = ("fit", data, "--target", "strength", "--base", "none", "--delta", "nearest:20")
    with command(*explore, stdout=subprocess.PIPE) as server:
        url = json.loads(server.stdout.readline())["url"].rstrip("/")
        with watched(browser, url) as opened:
            opened.goto(url)
            expect(opened.locator("#training-state")).to_have_text("Waiting for a fit: no epoch yet.")
            assert not opened.is_visible("#inputs")
            with command(*fit, "--law", "network", "--epochs", 1000, "--out", model) as fitting:
                while "A fit is running: epoch" not in (said := opened.inner_text("#training-state")):
                    assert fitting.poll() is None, f"the fit ended unseen ({fitting.returncode}): {said}"
                    opened.wait_for_timeout(50)
                # The page loads itself anew as soon as there is a model: none comes while we look.
                fitting.send_signal(signal.SIGSTOP)
                assert fitting.poll() is None, "the fit ended before it was looked at"
                opened.wait_for_selector("#curves .main-svg")
                assert opened.locator("#curves .main-svg").first.bounding_box()["width"] > 1000  # all of it
                early, _ = line(opened, "curves", "loss")
                fitting.send_signal(signal.SIGCONT)
                opened.wait_for_function(
                    "n => document.getElementById('curves').data?.[0].x.length > n", arg=len(early)
                )
                assert fitting.wait() == 0
            opened.wait_for_selector("#bands .main-svg")
            expect(opened.locator("#training-state")).to_contain_text("The model on display: epoch 1000")
            place = pd.DataFrame({"heat": [value_of(opened, 0)], "days": [value_of(opened, 1)]})
            mean = load(model).predict(place)[0]
            assert number(opened.inner_text("#mean")) == pytest.approx(mean, rel=1e-3)
            assert line(opened, "curves", "loss")[1] == pytest.approx(load(model).fit_.losses)
    assert not (tmp_path / "m.localw2.history.jsonl").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_sideways(browser, home, scheme):
    with watched(browser, home[0], color_scheme=scheme) as opened:
        opened.set_viewport_size({"width": 390, "height": 844})
        start(opened, home[0])
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390
        beyond = """() => [...document.querySelectorAll("body *")].filter(
            (each) => each.getBoundingClientRect().right > 391 && !each.closest("svg")).length"""
        assert opened.evaluate(beyond) == 0
        # Nothing below jumps when numbers, notes and charts change.
        parts = '["density", "inputs", "joint", "sweep"]'
        places = f"() => {parts}.map((id) => document.getElementById(id).offsetTop)"
        before = opened.evaluate(places)
        opened.fill("#number-0", "0.5")
        settled(opened, 0.5, value_of(opened, 1))
        assert opened.evaluate(places) == before
        colour = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(int(v) for v in colour[4:-1].split(",")) < 60) == (scheme == "dark")


def flights(n, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "airline": np.where(rng.random(n) < 0.15, None, rng.choice(["Alpha", "Beta air", "Gamma"], n)),
            "built": rng.integers(1990, 2021, n),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 200, n), unit="D"),
            "load": np.where(rng.random(n) < 0.2, np.nan, rng.uniform(0, 1, n).round(2)),
        }
    )
    mean = 50.0 * (frame["airline"] == "Alpha") + (frame["built"] - 2000)
    return frame, pd.Series(mean + 5 * rng.normal(size=n), name="delay")


def test_a_table_is_explored_by_choosers_dates_and_missing_values(browser):
    fitted = LocalW2Regressor(law=Network(epochs=5, width=10), base=Ridge(), random_state=0)
    fitted.fit(*flights(150))

    def expected(*row):
        frame = pd.DataFrame([row], columns=["airline", "built", "day", "load"])
        frame = frame.astype({"load": float}).assign(day=pd.to_datetime(frame["day"]))
        return fitted.predict(frame)[0]

    with serving(create_app(fitted, *flights(120, seed=1))) as url, watched(browser, url) as opened:
        start(opened, url)
        expect(opened.locator("#distribution-title")).to_have_text("Distribution of delay")
        options = opened.locator("#choice-0 option").all_inner_texts()
        assert options == ["Alpha", "Beta air", "Gamma", "missing"]
        built, day = opened.input_value("#number-1"), opened.input_value("#number-2")
        assert built.isdigit()
        assert opened.inner_text("#ends-1").split()[0] == "1990"
        load = float(opened.input_value("#number-3"))
        means = {}
        for name in ("Alpha", "Gamma", "missing"):
            opened.select_option("#choice-0", label=name)
            value = None if name == "missing" else name
            settled(opened, value, int(built), day, load)
            means[name] = number(opened.inner_text("#mean"))
            assert means[name] == pytest.approx(expected(value, int(built), day, load), rel=1e-3)
        assert means["Alpha"] > means["Gamma"] + 20
        # The curve along another input is that of the chosen category.
        opened.select_option("#swept", label="built")
        opened.wait_for_function("() => document.getElementById('bands').layout.xaxis.title.text === 'built'")
        curves = {}
        for name in ("Alpha", "Gamma"):
            before = line(opened, "bands", "mean")
            opened.select_option("#choice-0", label=name)
            opened.wait_for_function(
                """y => JSON.stringify(y) !== JSON.stringify(
                    document.getElementById('bands').data.find((trace) => trace.name === 'mean').y)""",
                arg=before[1],
            )
            years, curves[name] = line(opened, "bands", "mean")
            assert years == sorted({round(year) for year in years})
        assert (np.array(curves["Alpha"]) > np.array(curves["Gamma"])).all()
        # By category: one strip for each, missing ones too.
        opened.select_option("#swept", label="airline")
        opened.wait_for_function(
            "() => document.getElementById('bands').layout.xaxis.title.text === 'airline'"
        )
        assert opened.evaluate("document.getElementById('bands').layout.xaxis.ticktext") == options
        expect(opened.locator("#swept-rows")).to_contain_text("current category")
        # Missing and back, another day, and the way to the start.
        opened.check("#missing-3")
        settled(opened, "Gamma", int(built), day, None)
        assert opened.is_disabled("#slider-3")
        opened.fill("#number-2", "2024-03-05")
        settled(opened, "Gamma", int(built), "2024-03-05", None)
        mean = expected("Gamma", int(built), "2024-03-05", None)
        assert number(opened.inner_text("#mean")) == pytest.approx(mean, rel=1e-3)
        opened.uncheck("#missing-3")
        settled(opened, "Gamma", int(built), "2024-03-05", load)
        opened.fill("#number-2", "2030-01-01")
        expect(opened.locator("#warning")).to_contain_text("day = 2030-01-01 is above")
        opened.focus("#slider-2")
        opened.keyboard.press("End")
        opened.keyboard.press("ArrowLeft")
        last = flights(120, seed=1)[0]["day"].max() - pd.Timedelta(days=1)
        settled(opened, "Gamma", int(built), f"{last:%Y-%m-%d}", load)
        opened.click("#run-test")
        opened.wait_for_selector("#map .main-svg")
        opened.select_option("#map-x", label="airline")
        opened.wait_for_function("() => document.getElementById('map').layout.xaxis.ticktext.length === 4")


def test_a_token_leaves_the_address(browser, model):
    with serving(create_app(model, token="a-long-token")) as url:
        with watched(browser, url) as opened:
            start(opened, f"{url}/?token=a-long-token")
            assert opened.url == f"{url}/"
            opened.reload()
            opened.wait_for_selector("#density .main-svg")
        answer = browser.new_context().request.get(url)
        assert answer.status == 401
