"""The explorer over HTTP: answers are Python's, and whatever is asked wrongly gets a 4xx and nothing else."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("fastapi", reason="the explorer needs its extra")
pytest.importorskip("plotly", reason="the explorer needs its extra")

import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from localw2 import LocalW2Regressor, Nearest, Network, RandomCoefficientRegressor, conditional_test
from localw2.apps.explorer import create_app
from localw2.apps.explorer.answers import LEVELS, Answers, NoAnswer, correlate, estimate_density, quicken
from localw2.apps.explorer.app import FILES, MOST_BYTES, Follower
from localw2.apps.explorer.curves import MOST_POINTS, Curves
from localw2.apps.explorer.guard import ANY_ADDRESS
from localw2.apps.explorer.observations import Observations
from localw2.apps.explorer.schemas import MOST_DRAWS, MOST_ROWS
from localw2.apps.explorer.server import listen, make_config
from localw2.apps.tables.inputs import Inputs
from localw2.datasets import ZOO
from localw2.judging.inputs import Input
from localw2.metrics import distance_correlation

HOME = "http://127.0.0.1:8000"
TINY = {"law": Network(epochs=5, width=10), "base": Ridge(), "random_state": 0}


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(n, 2))
    return x, x[:, 0] + (0.5 + 0.3 * x[:, 1]) * rng.normal(size=n)


@pytest.fixture(scope="module")
def model():
    return LocalW2Regressor(**TINY).fit(*rows(150))


@pytest.fixture(scope="module")
def two_outputs():
    x, y = rows(150)
    return LocalW2Regressor(**TINY).fit(x, np.column_stack([y, x[:, 1] - y]))


@pytest.fixture(scope="module")
def coefficients():
    return RandomCoefficientRegressor(method="ml", random_state=0).fit(*rows(150))


@pytest.fixture(scope="module")
def app(model):
    return create_app(model, *rows(120, seed=1))


@pytest.fixture(scope="module")
def client(app):
    return visitor(app)


def visitor(app, home=HOME):
    # A server error must show as a 500 here, not as the exception behind it.
    return TestClient(app, base_url=home, raise_server_exceptions=False)


# ---- answers are Python's


@pytest.mark.parametrize("kind", ["model", "two_outputs", "coefficients"])
def test_draws_and_quantiles_are_pythons(kind, request):
    fitted = request.getfixturevalue(kind)
    ask = TestClient(create_app(fitted), base_url=HOME).post
    x = rows(4, seed=3)[0]
    drawn = ask("/sample", json={"x": x.tolist(), "n_samples": 7, "random_state": 5}).json()["y"]
    assert np.array_equal(drawn, fitted.sample(x, 7, random_state=5))
    q = [0.1, 0.5, 0.99]
    found = ask("/quantiles", json={"x": x.tolist(), "q": q}).json()["quantiles"]
    assert np.array_equal(found, fitted.predict_quantiles(x, q))
    assert np.array_equal(
        ask("/quantiles", json={"x": x.tolist()}).json()["quantiles"], fitted.predict_quantiles(x)
    )


def test_draws_without_a_seed_are_new(client):
    body = {"x": [[0.1, 0.2]], "n_samples": 5}
    assert client.post("/sample", json=body).json() != client.post("/sample", json=body).json()


@pytest.mark.parametrize("kind", ["model", "two_outputs", "coefficients"])
def test_the_distribution_is_pythons(kind, request):
    fitted = request.getfixturevalue(kind)
    x, y = rows(120, seed=1)
    y = np.column_stack([y, x[:, 1] - y]) if kind == "two_outputs" else y
    place = np.array([0.3, -0.2])
    answer = (
        TestClient(create_app(fitted, x, y), base_url=HOME)
        .post("/api/distribution", json={"x": place.tolist(), "k": 9})
        .json()
    )
    mean, std = (np.atleast_1d(v[0]) for v in fitted.predict(place[None], return_std=True))
    quantiles = fitted.predict_quantiles(place[None], LEVELS)[:, 0].reshape(len(LEVELS), -1)
    outputs = answer["outputs"]
    assert np.array_equal([each["mean"] for each in outputs], mean)
    assert np.array_equal([each["std"] for each in outputs], std)
    assert np.array_equal([each["quantiles"] for each in outputs], quantiles.T)
    norm = getattr(fitted, "norm_", None)
    embedded = x / x.std(0) if norm is None else norm.embed(x)
    centre = place / x.std(0) if norm is None else norm.embed(place[None])[0]
    distances = np.linalg.norm(embedded - centre, axis=1)
    nearest = np.argsort(distances)[:9]
    assert np.allclose(answer["neighbours"]["y"], y.reshape(len(y), -1)[nearest].T)
    assert answer["neighbours"]["farthest"] == pytest.approx(distances[nearest[-1]])
    assert answer["outside"] == []


def test_shifted_rows_keep_their_residuals(model):
    x, y = rows(120, seed=1)
    place = np.array([0.3, -0.2])
    answers = Answers(model, x, y)
    plain, shifted = (answers.distribution(place, 9, flag)["neighbours"]["y"][0] for flag in (False, True))
    nearest = [int(np.flatnonzero(y == value)[0]) for value in plain]
    assert np.allclose(shifted, y[nearest] - model.predict(x[nearest]) + model.predict(place[None]))


# ---- two outputs together


def three(n, seed=0):
    x, y = rows(n, seed)
    return x, np.column_stack([y, x[:, 1] - y, np.random.default_rng(seed + 9).normal(size=n)])


@pytest.fixture(scope="module")
def three_outputs():
    return LocalW2Regressor("balls", Ridge(), random_state=0).fit(*three(150))


def test_a_joint_distribution_is_pythons(three_outputs):
    x, y = three(120, seed=1)
    client = visitor(create_app(three_outputs, x, y))
    place = [0.3, -0.2]
    answer = client.post("/api/joint", json={"x": place, "outputs": [2, 0], "k": 9}).json()
    draws = three_outputs.sample([place], 2000, random_state=0)[:, 0][:, [2, 0]]
    assert np.array_equal(np.transpose(answer["draws"]), draws[::4])
    assert answer["correlation"] == pytest.approx(np.corrcoef(draws.T)[0, 1])
    assert answer["distance"] == pytest.approx(distance_correlation(*draws[::4].T))
    near = client.post("/api/distribution", json={"x": place, "k": 9}).json()["neighbours"]["y"]
    assert answer["rows"]["y"] == [near[2], near[0]]  # the rows of the other chart
    assert answer["rows"]["correlation"] == pytest.approx(np.corrcoef(near[2], near[0])[0, 1])
    moved = {"x": place, "k": 9, "shifted": True}
    near = client.post("/api/distribution", json=moved).json()["neighbours"]["y"]
    assert client.post("/api/joint", json=moved).json()["rows"]["y"] == near[:2]
    assert visitor(create_app(three_outputs)).post("/api/joint", json={"x": place}).json()["rows"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"outputs": [0, 0]},
        {"outputs": [0, 3]},
        {"outputs": [-1, 0]},
        {"outputs": [0]},
        {"outputs": [0, 1, 2]},
        {"outputs": ["0", 1]},
        {"outputs": [0.5, 1]},
        {"outputs": None},
        {"k": 0},
        {"x": [0.1]},
        {"more": 1},
    ],
)
def test_wrong_questions_about_two_outputs_are_refused(three_outputs, wrong):
    client = visitor(create_app(three_outputs, *three(30, seed=1)))
    answer = client.post("/api/joint", json={"x": [0.1, 0.2]} | wrong)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["msg"]


def test_one_output_has_no_joint_distribution(model, client):
    assert client.post("/api/joint", json={"x": [0.1, 0.2]}).status_code == 404
    with pytest.raises(NoAnswer, match="one output"):
        Answers(model).joint(np.zeros(2), [0, 1])


def test_outputs_without_spread_have_no_correlation():
    assert correlate(np.column_stack([np.arange(9.0), np.full(9, 0.1)])) == (None, None)
    assert correlate(np.zeros((2, 2))) == (None, None)
    huge = 1e200 * np.column_stack([np.arange(9.0), -np.arange(9.0)])
    assert correlate(huge) == (pytest.approx(-1), pytest.approx(0))
    x, y = three(60)
    y[:, 1] = 3.0
    fitted = LocalW2Regressor("balls", Ridge(), random_state=0).fit(x, y)
    answer = visitor(create_app(fitted, x, y)).post("/api/joint", json={"x": [0.1, 0.2]})
    assert answer.status_code == 200
    assert answer.json()["correlation"] is answer.json()["distance"] is answer.json()["rows"]["error"] is None


class MarginsOnly(LocalW2Regressor):
    """A fit whose draws have lost their dependence: every output is shuffled on its own."""

    def sample(self, X, n_samples=1, random_state=None):
        draws, rng = super().sample(X, n_samples, random_state), np.random.default_rng(1)
        return np.stack([rng.permuted(draws[..., k], axis=0) for k in range(draws.shape[-1])], -1)


@pytest.mark.parametrize(("name", "number"), [("circle", "distance"), ("joint modes", "correlation")])
def test_numbers_of_a_joint_law_are_not_those_of_its_margins(name, number):
    x, y = ZOO[name].sample(600, random_state=0)
    both = [kind("balls", Ridge(), random_state=0).fit(x, y) for kind in (LocalW2Regressor, MarginsOnly)]
    right, margins = (Answers(fitted).joint(np.array([0.25]), [0, 1])[number] for fitted in both)
    assert margins < 0.1
    assert right > margins + 0.08


def test_a_sweep_is_pythons_and_passes_by_rows(model, client):
    x, y = rows(120, seed=1)
    answer = client.post("/api/sweep", json={"x": [0.9, 0.4], "input": 0}).json()
    grid = np.column_stack([answer["x"], np.full(len(answer["x"]), 0.4)])
    assert (answer["x"][0], answer["x"][-1]) == (x[:, 0].min(), x[:, 0].max())
    assert np.array_equal(answer["mean"][0], model.predict(grid))
    assert np.array_equal(answer["quantiles"][0], model.predict_quantiles(grid, LEVELS))
    near = np.argsort(np.abs(x[:, 1] - 0.4))[: len(answer["rows"]["x"])]
    assert sorted(answer["rows"]["x"]) == sorted(x[near, 0])
    assert sorted(answer["rows"]["y"][0]) == sorted(y[near])


def test_the_test_is_pythons_and_made_once(model, client):
    first = client.post("/api/test", json={}).json()
    assert first == client.post("/api/test", json={}).json()
    assert len(first["z"]) == len(first["rejected"]) == len(first["centers"][0])
    x, y = rows(120, seed=1)
    found = conditional_test(x, y, model, Nearest(20), norm=model.norm_, n_permutations=499, random_state=0)
    assert first["pvalue"] == found.pvalue
    assert np.array_equal(first["z"], found.ball_statistics)
    assert first["trained_on"] is None


def test_rows_that_were_trained_on_are_told_of(model):
    app = TestClient(create_app(model, *rows(150)), base_url=HOME)
    assert app.get("/api/model").json()["trained_on"] == 1.0
    assert app.post("/api/test", json={}).json()["trained_on"] == 1.0


def test_places_outside_the_data_are_told_of(client):
    def outside(*x):
        return client.post("/api/distribution", json={"x": list(x)}).json()["outside"]

    assert outside(0.0, 0.0) == []
    assert outside(3.0, 0.0)[0].startswith("x0 = 3 is above")
    assert len(outside(-3.0, 9.0)) == 2
    # Inside the range of each input, but on the empty side of a diagonal.
    x = np.linspace(0, 1, 200)[:, None] + [[0.0, 0.0]]
    diagonal, inputs = Observations(x, x[:, 0], 1), [Input("a", "number"), Input("b", "number")]
    assert diagonal.explain_extrapolation(np.array([0.5, 0.5]), inputs, 10) == []
    assert "farther away" in diagonal.explain_extrapolation(np.array([0.1, 0.9]), inputs, 10)[0]


def test_density_is_that_of_the_draws():
    for law in (stats.norm(3, 2), stats.expon(), stats.uniform(-1, 2)):
        draws = law.rvs(20_000, random_state=np.random.default_rng(0))
        y, values = estimate_density(draws)
        assert values.sum() * (y[1] - y[0]) == pytest.approx(1, abs=0.01)
        inner = (y > law.ppf(0.2)) & (y < law.ppf(0.8))
        # Pointwise noise of a density from n draws with bandwidth h: sqrt(f / (2 sqrt(pi) n h)), times 4,
        # and the bias of h for the bend.
        h = 0.9 * draws.std() * 20_000**-0.2
        noise = np.sqrt(law.pdf(y) / (2 * np.sqrt(np.pi) * 20_000 * h))
        assert (np.abs(values - law.pdf(y)) < 4 * noise + 0.05 * law.pdf(y))[inner].all()
    assert len(estimate_density(np.full(100, 7.0))[0]) == 0


def test_the_whole_page_works_without_rows_and_for_named_columns(model):
    import pandas as pd

    bare = TestClient(create_app(model), base_url=HOME)
    about = bare.get("/api/model").json()
    assert (about["n_rows"], about["can_test"]) == (0, False)
    assert all(each["low"] < each["start"] < each["high"] for each in about["inputs"])
    assert bare.post("/api/distribution", json={"x": [0.0, 0.0]}).json()["neighbours"] is None
    assert bare.post("/api/sweep", json={"x": [0.0, 0.0], "input": 1}).json()["rows"] is None
    assert bare.post("/api/test", json={}).status_code == 422
    x, y = rows(60)
    frame = pd.DataFrame(x, columns=["heat", "salt"])
    named = LocalW2Regressor(**TINY).fit(frame, y)
    app = TestClient(create_app(named, frame, pd.Series(y, name="yield")), base_url=HOME)
    about = app.get("/api/model").json()
    assert [each["name"] for each in about["inputs"]] == ["heat", "salt"]
    assert about["outputs"][0]["name"] == "yield"
    found = app.post("/quantiles", json={"x": x[:2].tolist()}).json()["quantiles"]
    assert np.array_equal(found, named.predict_quantiles(frame[:2]))


def test_a_calibrated_interval_is_shown(model):
    x, y = rows(60)
    fitted = LocalW2Regressor(**TINY | {"law": Network(epochs=2, width=10)}, calibrate=True).fit(x, y)
    answer = Answers(fitted, x, y).distribution(np.array([0.1, 0.1]))
    assert np.array_equal(np.ravel(answer["interval"]), np.ravel(fitted.predict_interval([[0.1, 0.1]])))
    assert Answers(model).distribution(np.zeros(2))["interval"] is None


class Counting(Ridge):
    """A base that counts the rows it predicts."""

    asked = 0

    def predict(self, X):
        Counting.asked += len(X)
        return super().predict(X)


def test_a_default_fit_with_boosted_trees_is_explored():
    """Its base models are frozen arrays, not scikit-learn's objects."""
    x, y = rows(120)
    fitted = LocalW2Regressor(random_state=0).fit(x, 5.0 * (x[:, 0] > 0) + 0.1 * y)
    assert "boosting" in fitted.base_name_
    answer = TestClient(create_app(fitted), base_url=HOME).post("/quantiles", json={"x": x[:3].tolist()})
    assert np.array_equal(answer.json()["quantiles"], fitted.predict_quantiles(x[:3]))


def test_base_models_are_asked_once_for_an_input():
    with pytest.warns(UserWarning, match="saved"):
        fitted = LocalW2Regressor(**TINY | {"base": Counting()}).fit(*rows(60))
    answers = Answers(fitted)
    Counting.asked = 0
    for value in (0.1, 0.2, 0.1):
        answers.distribution(np.array([value, 0.0]))
    assert Counting.asked == 2 * len(fitted.base_models_)
    fitted.predict([[0.1, 0.0]])
    assert Counting.asked == 3 * len(fitted.base_models_)  # the model itself stays as it was


@pytest.mark.parametrize("settings", [{}, {"max_iter": 300, "max_leaf_nodes": 15, "min_samples_leaf": 5}])
def test_quick_trees_are_scikit_learns(settings):
    x, y = rows(400)
    trees = HistGradientBoostingRegressor(random_state=0, **settings).fit(x, y)
    quick = quicken(trees)
    assert quick != trees.predict
    # On the thresholds themselves, next to them, and far outside.
    nodes = np.concatenate([iteration[0].nodes for iteration in trees._predictors])
    edges = np.unique(nodes["num_threshold"])
    places = np.random.default_rng(1).choice(np.r_[edges, np.nextafter(edges, 9), -1e30, 1e30], size=(300, 2))
    assert np.array_equal(np.ravel([quick(place[None]) for place in places]), trees.predict(places))
    assert np.array_equal(quick(x), trees.predict(x))
    gaps = np.where(np.arange(2), np.nan, places[:4])
    assert np.array_equal(quick(gaps[:1]), trees.predict(gaps[:1]))


def test_other_regressors_stay_as_they_are():
    x, y = rows(100)
    other = HistGradientBoostingRegressor(loss="poisson", max_iter=5).fit(x, np.abs(y))
    categorical = HistGradientBoostingRegressor(categorical_features=[1], max_iter=5).fit(
        np.c_[x[:, 0], x[:, 1] > 0], y
    )
    changed = HistGradientBoostingRegressor(max_iter=5).fit(x, y)
    assert quicken(changed) != changed.predict
    del changed._baseline_prediction
    for regressor in (Ridge().fit(x, y), other, categorical, changed):
        assert quicken(regressor) == regressor.predict


# ---- tables with categories, missing values, years and dates


def houses(n, seed=0):
    """A table with an identifier, and prices that depend on all other columns."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(1, n + 1),
            "region": rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2]),
            "built": rng.integers(1950, 2021, n),
            "rooms": np.where(rng.random(n) < 0.2, np.nan, rng.integers(1, 8, n)),
            "sold": pd.Timestamp("2018-01-01") + pd.to_timedelta(rng.integers(0, 1500, n), unit="D"),
            "kind": np.where(rng.random(n) < 0.2, None, rng.choice(["flat", "house"], n)),
        }
    )
    mean = (
        100.0 * (frame["region"] == "north") + 0.5 * (frame["built"] - 1980) + 9 * (frame["kind"] == "flat")
    )
    return frame, pd.Series(mean + 5 * rng.normal(size=n), name="price")


@pytest.fixture(scope="module")
def of_houses():
    with pytest.warns(UserWarning, match="left out"):
        return LocalW2Regressor(**TINY).fit(*houses(200))


@pytest.fixture(scope="module")
def house_client(of_houses):
    return visitor(create_app(of_houses, *houses(120, seed=1)))


PLACE = ["south", 1987, None, "2019-05-03", "flat"]


def place_frame(*rows):
    """Rows of the page as the table that Python gets."""
    frame = pd.DataFrame(list(rows), columns=["region", "built", "rooms", "sold", "kind"])
    frame = frame.astype({"rooms": float}).assign(sold=pd.to_datetime(frame["sold"]), id=0)
    return frame[["id", "region", "built", "rooms", "sold", "kind"]]


def test_a_table_gets_choosers_and_sliders_in_its_own_words(house_client):
    about = house_client.get("/api/model").json()
    inputs = {each["name"]: each for each in about["inputs"]}
    frame, _ = houses(120, seed=1)
    assert list(inputs) == ["region", "built", "rooms", "sold", "kind"]
    assert [each["kind"] for each in inputs.values()] == ["category", "number", "number", "date", "category"]
    assert [each["missing"] for each in inputs.values()] == [False, False, True, False, True]
    assert inputs["region"]["values"] == ["north", "south", "west"]
    assert inputs["region"]["start"] == frame["region"].mode()[0]
    assert inputs["kind"]["start"] == frame["kind"].mode()[0]
    for name in ("built", "rooms"):
        assert inputs[name]["step"] == 1
        assert inputs[name]["start"] == round(inputs[name]["start"])
        assert abs(inputs[name]["start"] - frame[name].median()) <= 0.5
    assert (inputs["built"]["low"], inputs["built"]["high"]) == (frame["built"].min(), frame["built"].max())
    days = frame["sold"].dt.strftime("%Y-%m-%d")
    assert (inputs["sold"]["low"], inputs["sold"]["high"]) == (days.min(), days.max())
    assert about["left_out"] == [{"name": "id", "reason": "it numbers the rows"}]


def test_draws_at_a_row_of_a_table_are_pythons(house_client, of_houses):
    asked = [PLACE, ["north", 2001, 3, "2020-02-29", None]]
    body = {"x": asked, "n_samples": 7, "random_state": 5}
    drawn = house_client.post("/sample", json=body).json()["y"]
    frame = place_frame(*asked)
    assert np.array_equal(drawn, of_houses.sample(frame, 7, random_state=5))
    found = house_client.post("/quantiles", json={"x": asked}).json()["quantiles"]
    assert np.array_equal(found, of_houses.predict_quantiles(frame))
    answer = house_client.post("/api/distribution", json={"x": PLACE, "shifted": True}).json()
    assert answer["outputs"][0]["mean"] == of_houses.predict(place_frame(PLACE))[0]
    assert answer["outside"] == []


@pytest.mark.parametrize(
    ("name", "size"), [("region", 3), ("kind", 3), ("built", None), ("rooms", None), ("sold", None)]
)
def test_a_sweep_goes_through_the_categories_years_and_days(house_client, of_houses, name, size):
    about = house_client.get("/api/model").json()["inputs"]
    j = [each["name"] for each in about].index(name)
    answer = house_client.post("/api/sweep", json={"x": PLACE, "input": j}).json()
    rows = [[*PLACE[:j], value, *PLACE[j + 1 :]] for value in answer["x"]]
    assert np.array_equal(answer["mean"][0], of_houses.predict(place_frame(*rows)))
    values = [value for value in answer["x"] if value is not None]
    if about[j]["kind"] == "category":
        assert values == about[j]["values"]
        assert (None in answer["x"]) == about[j]["missing"]
        assert len(answer["x"]) == size
    else:
        assert (values[0], values[-1]) == (about[j]["low"], about[j]["high"])
        assert about[j]["kind"] == "date" or all(value == round(value) for value in values)
    assert None not in answer["rows"]["x"]
    assert set(answer["rows"]["x"]) <= {Inputs(of_houses).each[j].to_plain(v) for v in column(j)}


def column(j):
    model_free = houses(120, seed=1)[0].drop(columns="id").iloc[:, j]
    if model_free.dtype.kind == "M":
        return (model_free - pd.Timestamp(0)) / pd.Timedelta(days=1)
    return model_free if model_free.dtype.kind in "if" else range(model_free.nunique())


def test_the_test_of_a_table_is_pythons(house_client, of_houses):
    first = house_client.post("/api/test", json={}).json()
    x, y = houses(120, seed=1)
    settings = {"norm": of_houses.norm_, "n_permutations": 499, "random_state": 0}
    found = conditional_test(x, y, of_houses, Nearest(20), **settings)
    assert first["pvalue"] == found.pvalue
    assert first["centers"][0] == x["region"].iloc[found.centers].tolist()
    assert first["trained_on"] is None
    seen = visitor(create_app(of_houses, *houses(200))).get("/api/model").json()
    assert seen["trained_on"] == 1.0


@pytest.mark.parametrize(
    ("j", "value", "word"),
    [
        *((0, "east", "category"), (0, None, "string"), (0, 1, "string"), (4, "castle", "flat")),
        *((1, "1987", "number"), (1, None, "number"), (2, True, "number"), (2, "", "number")),
        *((3, "2019-02-30", "date"), (3, "yesterday", "match"), (3, 17, "string"), (3, "9999-01-01", "date")),
    ],
)
def test_values_that_a_column_cannot_have_are_refused_in_words(house_client, j, value, word):
    row = [*PLACE[:j], value, *PLACE[j + 1 :]]
    for path, body in (("/sample", {"x": [row]}), ("/api/distribution", {"x": row})):
        answer = house_client.post(path, json=body)
        assert answer.status_code == 422
        assert word in " ".join(each["msg"] for each in answer.json()["detail"])


def test_values_that_no_observed_row_has_are_told_of(of_houses):
    x, y = houses(120, seed=1)
    app = visitor(create_app(of_houses, x[x["region"] != "west"], y[x["region"] != "west"]))

    def outside(**changed):
        row = dict(zip(("region", "built", "rooms", "sold", "kind"), PLACE, strict=True)) | changed
        return " ".join(app.post("/api/distribution", json={"x": list(row.values())}).json()["outside"])

    assert "region = west" in outside(region="west")
    assert "built = 2040 is above" in outside(built=2040)
    assert "sold = 2010-01-01 is below" in outside(sold="2010-01-01")


def test_a_table_is_explored_without_rows_and_under_other_names(of_houses):
    names = ["number", "area", "year", "size", "day", "type"]
    app = visitor(create_app(of_houses, feature_names=names, target_names=["euro"]))
    about = app.get("/api/model").json()
    assert [each["name"] for each in about["inputs"]] == names[1:]
    assert about["left_out"][0]["name"] == "number"
    start = [each["start"] for each in about["inputs"]]
    assert app.post("/api/distribution", json={"x": start}).status_code == 200
    for j in range(len(start)):
        assert app.post("/api/sweep", json={"x": start, "input": j}).json()["rows"] is None


@given(seed=st.integers(0, 50))
@settings(max_examples=10, deadline=None)
def test_tables_become_numbers_and_back(of_houses, seed):
    inputs = Inputs(of_houses)
    frame, _ = houses(30, seed)
    x = inputs.encode(frame)
    assert np.array_equal(inputs.encode(inputs.decode(x)), x, equal_nan=True)
    plain = [[each.to_plain(v) for each, v in zip(inputs.each, row, strict=True)] for row in x]
    again = [[each.from_plain(v) for each, v in zip(inputs.each, row, strict=True)] for row in plain]
    assert np.array_equal(again, x, equal_nan=True)
    assert np.array_equal(inputs.model.predict(inputs.decode(x)), of_houses.predict(frame))


# ---- curves of training


def test_a_history_file_is_followed(tmp_path):
    path = tmp_path / "history.jsonl"
    curves = Curves(path)
    assert curves.read() == {
        **{key: [] for key in ("epoch", "loss", "score_epoch", "score")},
        "followed": True,
        "live": False,
        "running": False,
    }
    lines = [json.dumps({"epoch": e, "loss": 1 / e, "rate": 0.1, "score": -e}) for e in (1, 2, 3)]
    path.write_text("\n".join(lines)[:-5])  # the last line is being written
    assert curves.read()["epoch"] == [1, 2]
    path.write_text("\n".join(lines) + "\nnot JSON\n[]\n" + '{"epoch": 4, "loss": NaN}\n')
    assert curves.read()["epoch"] == [1, 2, 3]
    assert curves.read()["score"] == [-1, -2, -3]
    assert curves.read()["running"]
    assert curves.read()["live"]
    path.write_text(lines[0] + "\n")  # another fit
    assert curves.read()["epoch"] == [1]
    with path.open("a") as file:
        file.writelines(f'{{"epoch": {e}, "loss": {e}}}\n' for e in range(2, 5001))
    now = curves.read()
    assert len(now["epoch"]) <= MOST_POINTS
    assert now["epoch"][-1] == 5000


def test_curves_of_the_file_while_there_is_one_else_of_the_fit(model, client, tmp_path):
    alone = client.get("/api/history").json()
    assert alone["loss"] == pytest.approx(model.fit_.losses)
    assert not alone["followed"]
    path = tmp_path / "history.jsonl"
    ask = TestClient(create_app(model, history=path), base_url=HOME).get
    assert ask("/api/history").json() == alone | {"followed": True}
    path.write_text('{"epoch": 1, "loss": 7.0}\n')
    assert ask("/api/history").json()["loss"] == [7.0]
    path.unlink()  # that fit is done
    assert ask("/api/history").json() == alone | {"followed": True}


def test_a_file_is_waited_for_and_every_new_model_taken(model, coefficients, tmp_path):
    path, x, given = tmp_path / "m", [[0.1, 0.2]], {}
    names = {"feature_names": ["a", "b"], "target_names": ["y"]}
    following = Follower(str(path), lambda: given | names, None, ("localhost",), tmp_path / "h")
    client = visitor(following, "http://localhost")
    following.look()
    waiting = client.get("/api/history").json()
    assert (waiting["version"], waiting["epoch"], waiting["followed"]) == (0, [], True)
    assert client.get("/").status_code == 200
    assert client.get("/api/history", headers={"host": "evil.example"}).status_code == 400
    assert client.post("/quantiles", json={"x": x}).status_code == 404
    for version, fitted in ((1, model), (2, coefficients)):
        given["model"] = fitted
        path.write_text("x" * version)  # a file of another size
        for _ in range(2):
            following.look()  # the second finds nothing new
        assert client.get("/api/history").json()["version"] == version
        found = client.post("/quantiles", json={"x": x}).json()["quantiles"]
        assert np.array_equal(found, fitted.predict_quantiles(x))
    # One that cannot be shown leaves the last one, and says why.
    given["model"] = Ridge()
    path.write_text("xxx")
    following.look()
    now = client.get("/api/history").json()
    assert now["version"] == 2
    assert "Ridge" in now["problem"]
    assert client.post("/quantiles", json={"x": x}).status_code == 200
    with pytest.raises(ValueError, match="Ridge"):
        following.take()


def test_rows_that_come_after_the_model_are_waited_for(model, tmp_path):
    def load():
        raise FileNotFoundError("no rows.csv")

    (tmp_path / "m").touch()
    following = Follower(str(tmp_path / "m"), load, None, ("localhost",), None)
    following.look()
    assert visitor(following, "http://localhost").get("/api/history").json()["problem"] == "no rows.csv"
    following._load = lambda: {"model": model}
    following.look()
    assert visitor(following, "http://localhost").get("/api/history").json()["version"] == 1


# ---- who may ask, and what


def test_the_page_needs_no_other_host(client):
    for path in FILES:
        answer = client.get(path)
        assert answer.status_code == 200
        if path != "/plotly.min.js":
            assert "http://" not in answer.text.replace("http://www.w3.org", "")
            assert "https://" not in answer.text
        again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
    listing = client.get("/programs").text
    assert "POST /sample" in listing
    assert "POST /quantiles" in listing


def test_every_answer_has_the_headers_that_keep_browsers_careful(client):
    answers = [client.get("/"), client.get("/api/model"), client.get("/nothing"), client.post("/sample")]
    answers.append(client.get("/", headers={"host": "evil.example"}))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/api/model").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "10.0.0.1"),
        *("", "a b", "user@localhost", "localhost:abc", "[::1"),
    ],
)
def test_other_hosts_are_refused(client, host):
    assert client.get("/api/model", headers={"host": host}).status_code == 400
    assert client.post("/sample", json={"x": [[0, 0]]}, headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:8000", "[::1]:8000"])
def test_this_machines_names_are_answered(client, host):
    assert client.get("/api/model", headers={"host": host}).status_code == 200


def test_numeric_hosts_are_answered_where_all_addresses_are(model):
    app = create_app(model, token="a-long-token", allowed_hosts=("localhost", ANY_ADDRESS))
    ask = visitor(app)
    key = {"authorization": "Bearer a-long-token"}
    assert ask.get("/api/model", headers={"host": "192.168.3.4:8000", **key}).status_code == 200
    assert ask.get("/api/model", headers={"host": "rebound.example", **key}).status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_from_elsewhere_may_not_ask(client, headers):
    assert client.post("/sample", json={"x": [[0, 0]]}, headers=headers).status_code == 403


def test_the_page_itself_and_programs_may_ask(client):
    own = {"origin": HOME, "sec-fetch-site": "same-origin"}
    assert client.post("/sample", json={"x": [[0, 0]]}, headers=own).status_code == 200
    assert client.post("/sample", json={"x": [[0, 0]]}).status_code == 200


def test_a_token_opens_by_address_header_and_cookie(model):
    ask = visitor(create_app(model, token="a-long-token"))
    for path in [*FILES, "/api/model", "/openapi.json", "/programs", "/nothing"]:
        assert ask.get(path).status_code == 401
        assert ask.get(path, params={"token": "a-long-tokem"}).status_code == 401
    assert ask.post("/sample", json={"x": [[0, 0]]}).status_code == 401
    key = {"authorization": "Bearer a-long-token"}
    assert ask.post("/sample", json={"x": [[0, 0]]}, headers=key).status_code == 200
    assert "set-cookie" not in ask.get("/", headers=key).headers
    opened = ask.get("/", params={"token": "a-long-token"})
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    ask.cookies.clear()
    pair = cookie.partition(";")[0]
    assert ask.get("/api/model", headers={"cookie": f'x="a b; broken; {pair}'}).status_code == 200
    assert ask.get("/api/model", headers={"cookie": pair[:-1]}).status_code == 401


def test_large_bodies_are_refused_before_they_are_read(client):
    large = b"[" * (MOST_BYTES + 1)
    assert client.post("/sample", content=large).status_code == 413
    assert client.post("/sample", content=iter([large[:1000]] * 2000)).status_code == 413
    assert client.post("/sample", content=b"{}", headers={"content-length": "9" * 30}).status_code == 413


BAD_BODIES = [
    *(b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{", b'{"x": [[0]]}', b'{"x": []}', b"[" * 100_000),
    *(b'{"x": [[0, NaN]]}', b'{"x": [[0, 1e999]]}', b'{"x": [[0, -Infinity]]}', b'{"x": [[0, 1e31]]}'),
    *(b'{"x": [["0", "1"]]}', b'{"x": [[true, false]]}', b'{"x":' * 50_000),
    *(b'{"x": [[0, ' + b"9" * 400 + b"]]}", b'{"x": [[0, ' + b"9" * 5000 + b"]]}"),
    *(b'{"x": [[0, 0]], "n_samples": 0}', b'{"x": [[0, 0]], "n_samples": 10001}'),
    *(b'{"x": [[0, 0]], "n_samples": 1.5}', b'{"x": [[0, 0]], "random_state": "0"}'),
    *(b'{"x": [[0, 0]], "random_state": -1}', b'{"x": [[0, 0]], "random_state": 4294967296}'),
    *(b'{"x": [[0, 0]], "\\ud800": 1}', b'{"x": [[0, 0]], "more": 1}'),
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_wrong_bodies_are_told_why(client, body):
    for kind in ("application/json", "text/plain"):
        answer = client.post("/sample", content=body, headers={"content-type": kind})
        assert 400 <= answer.status_code < 500
        assert answer.json()["detail"]


def test_the_size_of_an_answer_is_bounded(client):
    many = [[0.0, 0.0]] * 11
    answer = client.post("/sample", json={"x": many, "n_samples": 10_000})
    assert answer.status_code == 422
    assert str(MOST_DRAWS) in answer.json()["detail"][0]["msg"]
    assert client.post("/quantiles", json={"x": [[0.0, 0.0]] * (MOST_ROWS + 1)}).status_code == 422


def test_values_that_overflow_are_an_answer_too():
    x = np.linspace(-1e-90, 1e-90, 40)[:, None]
    steep = RandomCoefficientRegressor(method="ml").fit(x, 1e9 * np.sin(np.arange(40.0)))
    answer = visitor(create_app(steep)).post("/sample", json={"x": [[1e30]], "n_samples": 1})
    far = visitor(create_app(steep)).post("/api/distribution", json={"x": [1e30]})
    assert {answer.status_code, far.status_code} <= {200, 422}


PATHS = [
    *("/../../../../etc/passwd", "/..%2f..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd"),
    *(
        "/static/../app.py",
        "/static/index.html",
        "/app.py",
        "/explorer.js/../../app.py",
        "/explorer.js%00.py",
    ),
    *("//etc/passwd", "/file:///etc/passwd", "/C:%5cwindows%5cwin.ini", "/plotly.min.js/..", "/.git/config"),
    *("/api", "/api/../", "/%", "/%ff%fe", "/" + "a" * 5000),
]


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_no_path_leads_to_a_file(app, path):
    for method in ("GET", "POST", "PUT", "DELETE"):
        status, body = raw(app, method, path)
        assert 400 <= status < 500, (method, path)
        assert b"root:" not in body
        assert b"import" not in body


def raw(app, method, path):
    """Ask with a path as it is: clients tidy it up on the way."""
    sent = []
    place = {"server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 1), "scheme": "http", "root_path": ""}
    asked = {"method": method, "path": unquote(path), "raw_path": path.encode(), "query_string": b""}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1:8000")],
        **place,
        **asked,
    }

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:])


def test_websockets_are_refused(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
        pass


def test_too_many_questions_are_told_to_wait(model, monkeypatch):
    monkeypatch.setattr("localw2.apps.explorer.app.MOST_WAITING", 0)
    answer = visitor(create_app(model)).post("/sample", json={"x": [[0, 0]]})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_questions_at_once_get_their_own_answers(model, app):
    expected = {seed: model.sample([[0.1, 0.2]], 50, random_state=seed)[:, 0].tolist() for seed in range(12)}
    found = {}

    def work(seed):
        body = {"x": [[0.1, 0.2]], "n_samples": 50, "random_state": seed}
        found[seed] = [y[0] for y in visitor(app).post("/sample", json=body).json()["y"]]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


@contextmanager
def served(app):
    """The application behind a real socket; its port."""
    server = uvicorn.Server(make_config(app))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def said(port, *parts):
    """What the server says to these bytes, sent one after the other, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        heard = b""
        try:
            for part in parts:
                client.sendall(part)
                if part is not parts[-1]:
                    heard += client.recv(1 << 16)
            while more := client.recv(1 << 16):
                heard += more
        except ConnectionResetError:
            pass
        return heard


def test_connections_that_ask_nothing_whole_are_cut(app, monkeypatch):
    monkeypatch.setattr("localw2.apps.explorer.guard.SLOWEST", 0.3)
    whole = b"GET /api/history HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(app) as port:
        assert said(port, b"") == b""
        assert said(port, b"GET / HTTP/1.1\r\nHost: loc") == b""
        # After an answer, too.
        assert said(port, whole, b"GET / HT").count(b"HTTP/1.1 200") == 1
        head = b"POST /sample HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
        assert said(port, head).startswith(b"HTTP/1.1 408")
        for length in (b"-1", b"x", b"1e3", b"\xb2"):
            head = b"POST /sample HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length
            assert said(port, head + b"\r\n\r\n{}").startswith(b"HTTP/1.1 400")
        # A question that takes longer than that is answered all the same.
        body = json.dumps({"x": [[0.0, 0.0]] * 400, "q": [0.1, 0.9]}).encode()
        head = b"POST /quantiles HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        assert said(port, head + body).startswith(b"HTTP/1.1 200")


def test_connections_are_bounded(app, monkeypatch):
    monkeypatch.setattr("localw2.apps.explorer.server.MOST_CONNECTIONS", 3)
    with served(app) as port:
        held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3)]
        for client in held:
            client.sendall(b"GET /api/history HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            client.sendall(b"GET")  # and so on, some day
        assert said(port, b"GET / HTTP/1.1\r\n") == b""
        held.pop().close()
        close = b"GET /api/history HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        deadline = time.monotonic() + 30  # until the server has seen that one is gone
        while not (heard := said(port, close)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert heard.startswith(b"HTTP/1.1 200")
        for client in held:
            client.close()


# ---- misuse


def test_misuse_is_told(model, tmp_path):
    x, y = rows(20)
    for arguments, words in [
        (((Ridge(),), {}), "LocalW2Regressor"),
        (((model, x), {}), "together"),
        (((model, x[:, :1], y), {}), "features"),
        (((model, x, y[:-1]), {}), "row"),
        (((model,), {"feature_names": ["a"]}), "feature_names"),
        (((model,), {"target_names": ["a", "b"]}), "target_names"),
        (((model,), {"token": "short"}), "token"),
        (((model,), {"token": "with space and ;"}), "token"),
        (((model,), {"allowed_hosts": "localhost"}), "allowed_hosts"),
        (((model,), {"allowed_hosts": ["*"]}), "allowed_hosts"),
        (((model,), {"history": tmp_path}), "history"),
    ]:
        with pytest.raises(ValueError, match=words):
            create_app(*arguments[0], **arguments[1])


def test_a_port_in_use_is_told():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="port=0"):
            listen("127.0.0.1", port)


# ---- fuzzing by the schema


def fuzz(app, per_operation):
    """Ask every operation with data that fit the schema and data that do not; the statuses that came."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase
    from schemathesis.specs.openapi import checks

    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"host": "localhost"})
    kept = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    kept.append(checks.negative_data_rejection)
    modes = schemathesis.GenerationMode
    setup = settings(
        max_examples=per_operation,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    statuses = []
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (modes.POSITIVE, modes.NEGATIVE) if operation.body else (modes.POSITIVE,):

            @setup
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case):
                answer = case.call(headers={"host": "localhost"})
                statuses.append(answer.status_code)
                assert answer.status_code < 500, case
                case.validate_response(answer, checks=kept)

            ask()
    return statuses


@pytest.mark.parametrize("kind", ["numbers", "table", "several outputs"])
def test_fuzzed_requests_never_fail(model, of_houses, three_outputs, kind):
    fitted, observed = {
        "numbers": (model, rows(60, seed=1)),
        "table": (of_houses, houses(60, seed=1)),
        "several outputs": (three_outputs, three(60, seed=1)),
    }[kind]
    statuses = fuzz(create_app(fitted, *observed), per_operation=8)
    assert len(statuses) >= 60
    assert {200, 422} <= set(statuses) <= {200, 400, 413, 422}


@pytest.mark.slow
def test_two_thousand_fuzzed_requests_never_fail(model):
    statuses = fuzz(create_app(model, *rows(60, seed=1)), per_operation=230)
    assert len(statuses) >= 2000
    assert {200, 422} <= set(statuses) <= {200, 400, 413, 422}
