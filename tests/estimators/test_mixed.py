"""Numbers and categories together: their coding, the joint law, probabilities, judging, files."""

import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

import mixed
from localw2 import LocalW2MixedRegressor, LocalW2Regressor, Network, SeenRowsWarning, load
from localw2.estimators.mixed.class_model import ClassModel
from localw2.estimators.mixed.coding import OutputCoding
from localw2.estimators.mixed.judging import judge_classes
from localw2.estimators.mixed.views import NumberOutputs
from localw2.metrics import brier_score, calibration_error, energy_score, log_loss
from localw2.storage.model_file import Stored, read, write

# Nothing else is excepted from scikit-learn's checks; a name here needs a reason.
EXCEPTIONS = {
    "check_sample_weight_equivalence_on_dense_data": "a table with copies has other folds, draws and balls",
}


@parametrize_with_checks(
    [
        LocalW2MixedRegressor("balls", base=None, random_state=0),
        LocalW2MixedRegressor("balls", categorical=[0], random_state=0),
    ],
    expected_failed_checks=lambda _: EXCEPTIONS,
)
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels of which every row has its own
        check(estimator)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = mixed.draw_inputs(1500, rng)
    return x, mixed.draw_outputs(x, rng)


@pytest.fixture(scope="module")
def fitted(rows):
    return LocalW2MixedRegressor("balls", random_state=0).fit(*rows)


def test_both_kinds_weigh_alike(rows):
    coding, numbers, codes = OutputCoding.learn(rows[1])
    points = coding.embed(numbers, codes)
    gaps = points - points[np.random.default_rng(0).permutation(len(points))]
    starts = np.cumsum([0, 1, 1, 2, 4])
    each = [(gaps[:, a:b] ** 2).sum(1).mean() for a, b in pairwise(starts)]
    np.testing.assert_allclose(each, 2, rtol=0.12)
    again = coding.decode(points + np.random.default_rng(1).uniform(-0.3, 0.3, points.shape))
    np.testing.assert_array_equal(again[1], codes)  # the nearest vertex
    np.testing.assert_allclose(coding.decode(points)[0], numbers)


def test_the_joint_law_scores_nearly_as_well_as_the_truth(fitted):
    rng = np.random.default_rng(2)
    x = mixed.draw_inputs(800, rng)
    truth = mixed.draw_outputs(x, rng)
    ideal = np.stack([fitted.encode_outputs(mixed.draw_outputs(x, rng)) for _ in range(100)])
    best = energy_score(fitted.encode_outputs(truth), ideal).mean()
    assert -fitted.score(x, truth) / best < 1.04


def test_a_class_and_a_number_depend_on_each_other_as_they_should(fitted):
    at = np.full((3000, 2), 0.3)
    rng = np.random.default_rng(3)
    known = mixed.class_gaps(mixed.draw_outputs(np.full((100_000, 2), 0.3), rng))
    drawn = fitted.sample(at, random_state=0)
    assert np.abs(mixed.class_gaps(drawn) - known).max() < 0.25
    apart = drawn.assign(soil=rng.permutation(drawn["soil"].to_numpy()))  # right margins alone
    assert np.abs(mixed.class_gaps(apart) - known).max() > 0.5


def test_probabilities_are_those_of_draws_and_near_the_truth(fitted):
    x = mixed.draw_inputs(300, np.random.default_rng(4))
    found = fitted.predict_proba(x)
    assert list(found) == ["wet", "soil"]
    np.testing.assert_allclose(found["soil"].sum(1), 1)
    assert np.abs(found["soil"] - mixed.true_soil(x)).mean() < 0.04
    assert np.abs(found["wet"][:, 1] - mixed.wet_probability(x)).mean() < 0.06
    draws = fitted.sample(x[:1], 4000, random_state=0)
    shares = [(draws["soil"] == word).mean() for word in mixed.WORDS]
    np.testing.assert_allclose(shares, found["soil"][0], atol=4 * np.sqrt(0.25 / 4000))
    laws = fitted.predict_distribution(x[:5])
    assert list(laws) == ["depth", "yield", "wet", "soil"]
    np.testing.assert_array_equal(laws["soil"].pmf("peat"), found["soil"][:5, 2])
    np.testing.assert_allclose(laws["depth"].mean(), fitted.predict(x[:5])["depth"], rtol=1e-9)
    alone = fitted.predict_proba(x[3:4])["soil"]
    np.testing.assert_allclose(alone, found["soil"][3:4])  # whatever rows come with it


def test_one_category_alone_is_a_classifier(rows):
    x, Y = rows
    model = LocalW2MixedRegressor("balls", random_state=0).fit(x, Y["soil"].to_numpy())
    test = mixed.draw_inputs(2000, np.random.default_rng(5))
    codes = np.searchsorted(mixed.WORDS, mixed.draw_outputs(test, np.random.default_rng(6))["soil"])
    p = model.predict_proba(test)
    assert log_loss(codes, p) < log_loss(codes, mixed.true_soil(test)) + 0.02
    assert brier_score(codes, p) < brier_score(codes, mixed.true_soil(test)) + 0.01
    assert calibration_error(codes, p) < 0.04
    assert list(model.classes_) == list(mixed.WORDS)
    assert model.predict(test[:4]).tolist() == [mixed.WORDS[k] for k in p[:4].argmax(1)]
    assert model.sample(test[:4], 3, random_state=0).shape == (3, 4)


def test_a_network_decodes_to_classes(rows):
    x, Y = (part[:300] for part in rows)
    model = LocalW2MixedRegressor(Network.with_noise(epochs=5), random_state=0).fit(x, Y)
    assert model.weights_["network"] == 1
    assert model.law_.network.model_.n_numbers > 0
    draws = model.sample(x[:20], 3, random_state=0)
    assert set(draws["soil"]) <= set(mixed.WORDS)
    assert list(draws.columns) == list(Y.columns)
    np.testing.assert_allclose(model.predict_proba(x[:5])["soil"].sum(1), 1)


def test_diagnosis_and_the_exact_test_tell_right_from_wrong(fitted):
    rng = np.random.default_rng(7)
    x = mixed.draw_inputs(400, rng)
    truth = mixed.draw_outputs(x, rng)
    found = fitted.diagnose(x, truth)
    assert found.numbers is not None
    assert found.classes["soil"]["calibration_error"] < 2 * found.classes["soil"]["chance"]
    assert "soil: log loss" in str(found)
    options = {"n_permutations": 199, "random_state": 0}
    assert fitted.conditional_test(x, truth, **options).pvalue > 0.01
    moved = truth.assign(soil=truth["soil"].replace({"loam": "peat", "peat": "loam"}))
    assert fitted.conditional_test(x, moved, **options).pvalue < 0.05


def test_files_come_back_bit_for_bit_and_damaged_ones_are_refused(tmp_path, fitted):
    fitted.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    x = mixed.draw_inputs(20, np.random.default_rng(8))
    pd.testing.assert_frame_equal(loaded.sample(x, 3, random_state=1), fitted.sample(x, 3, random_state=1))
    np.testing.assert_array_equal(loaded.predict_proba(x)["soil"], fitted.predict_proba(x)["soil"])
    assert vars(loaded).keys() == vars(fitted).keys()
    stored = read(tmp_path / "model")
    for change in (
        {"joint": stored.tensors["joint"] + 99},
        {"combinations": stored.tensors["combinations"] - 1},
    ):
        tensors = stored.tensors | change
        write(tmp_path / "bad", Stored(stored.kind, stored.settings, tensors, stored.regressors))
        with pytest.raises(ValueError, match="cannot be used"):
            load(tmp_path / "bad")


def test_forms_of_outputs():
    rng = np.random.default_rng(9)
    frame = pd.DataFrame({"size": rng.normal(size=60), "kind": rng.choice(["a", "b"], 60)})
    labels = rng.integers(0, 3, 60)
    Y = np.column_stack([labels, rng.normal(size=60)])
    model = LocalW2MixedRegressor("balls", categorical=[0], random_state=0).fit(frame, Y)
    assert model.sample(frame[:4], 2, random_state=0).shape == (2, 4, 2)
    assert set(model.sample(frame, 2, random_state=0)[..., 0].ravel()) <= {0.0, 1.0, 2.0}
    assert set(model.predict(frame)[:, 0]) <= {0.0, 1.0, 2.0}


def test_misuse_is_named(fitted, rows):
    x, Y = rows
    with pytest.raises(ValueError, match="not among the classes"):
        fitted.score(x[:1], Y[:1].assign(soil="moss"))
    with pytest.raises(ValueError, match="missing"):
        LocalW2MixedRegressor().fit(x, Y.assign(soil=[None, *Y["soil"][1:]]))
    with pytest.raises(ValueError, match="2 to 50"):
        LocalW2MixedRegressor().fit(x, [f"row {i}" for i in range(len(x))])
    with pytest.raises(ValueError, match="no column"):
        LocalW2MixedRegressor(categorical=["moss"]).fit(x, Y)
    with pytest.raises(ValueError, match="unknown"):
        LocalW2MixedRegressor("forest").fit(x, Y)
    with pytest.raises(ValueError, match="LocalW2MixedRegressor"):
        LocalW2Regressor().fit(x, Y)
    with pytest.raises(ValueError, match="columns"):
        fitted.encode_outputs(Y[["soil"]])
    with pytest.raises(AttributeError, match="predict_proba"):
        LocalW2MixedRegressor("balls", base=None, random_state=0).fit(
            x[:50], Y[["depth"]][:50]
        ).predict_proba(x)


def test_whole_weights_are_copies_in_every_exact_part(rows):
    """The coding and the smooth probabilities; whole fits have other folds and draws."""
    x, Y = (part[:200] for part in rows)
    counts = np.random.default_rng(10).integers(1, 4, 200)
    copies = np.repeat(np.arange(200), counts)
    ours, numbers, codes = OutputCoding.learn(Y, weights=counts.astype(float))
    theirs, _, _ = OutputCoding.learn(Y.iloc[copies])
    np.testing.assert_allclose(ours.scales, theirs.scales)
    np.testing.assert_allclose(ours.costs, theirs.costs)
    # One fold only tells the degree, so that both learn the same one here from the same rows.
    p = ClassModel.learn(x, codes[:, 1], 4, 0, counts.astype(float)).predict(x)
    equal = ClassModel.learn(x, codes[:, 1], 4, 0).predict(x)
    doubled = ClassModel.learn(x, codes[:, 1], 4, 0, np.full(200, 2.0)).predict(x)
    np.testing.assert_allclose(doubled, equal, atol=1e-6)
    assert np.abs(p - equal).max() > 0.01
    assert numbers.shape == (200, 2)


def test_weights_of_rows_shape_the_law(rows):
    x, Y = (part[:400] for part in rows)
    peat = (Y["soil"] == "peat").to_numpy()
    heavy = LocalW2MixedRegressor("balls", random_state=0).fit(x, Y, np.where(peat, 20.0, 1.0))
    share = np.average(peat, weights=np.where(peat, 20.0, 1.0))
    assert heavy.predict_proba(x)["soil"][:, 2].mean() == pytest.approx(share, abs=0.08)
    drawn = heavy.sample(x, 20, random_state=0)
    assert (drawn["soil"] == "peat").mean() == pytest.approx(share, abs=0.08)
    zero = LocalW2MixedRegressor("balls", random_state=0).fit(x, Y, np.where(peat, 0.0, 1.0))
    assert set(zero.classes_["soil"]) == {"clay", "loam", "sand"}
    kept = LocalW2MixedRegressor("balls", random_state=0).fit(x[~peat], Y[~peat])
    pd.testing.assert_frame_equal(zero.sample(x, 2, random_state=0), kept.sample(x, 2, random_state=0))
    plain = LocalW2MixedRegressor("balls", random_state=0).fit(x, Y)
    equal = LocalW2MixedRegressor("balls", random_state=0).fit(x, Y, np.full(400, 3.0))
    np.testing.assert_allclose(plain.predict_proba(x)["soil"], equal.predict_proba(x)["soil"], atol=1e-6)


def test_training_rows_are_told_of(fitted, rows):
    x, Y = (part[:200] for part in rows)
    with pytest.warns(SeenRowsWarning, match="training rows"):
        fitted.diagnose(x, Y)
    with pytest.warns(SeenRowsWarning):
        fitted.conditional_test(x, Y, n_permutations=19, random_state=0)


def test_the_test_of_probabilities_has_its_level_and_power():
    rng = np.random.default_rng(11)
    coding = OutputCoding(("kind",), {0: ("a", "b", "c")}, np.empty(0), np.ones(1), True, True)
    p = rng.dirichlet([1, 2, 3], 400)
    levels = np.cumsum(p, 1)[:, :-1]
    right = []
    for _ in range(60):
        codes = (rng.random((400, 1)) >= levels).sum(1)[:, None]
        right.append(judge_classes(coding, codes, [p])["kind"]["pvalue"])
    assert np.mean(np.array(right) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)
    sharp = p**2 / (p**2).sum(1, keepdims=True)  # too sure
    found = judge_classes(coding, codes, [sharp])["kind"]
    assert found["pvalue"] <= 0.01
    assert found["calibration_error"] > 2 * found["chance"]


def test_numbers_are_seen_as_those_of_a_regressor(fitted):
    x = mixed.draw_inputs(30, np.random.default_rng(12))
    view, laws = NumberOutputs(fitted), fitted.predict_distribution(x)
    assert view.names == ["depth", "yield"]
    mean, std = view.predict(x, return_std=True)
    np.testing.assert_allclose(mean[:, 1], laws["yield"].mean())
    np.testing.assert_allclose(std[:, 1], laws["yield"].std())
    np.testing.assert_allclose(view.predict_quantiles(x, [0.25])[0, :, 0], laws["depth"].ppf(0.25))
    lower, upper = view.predict_interval(x, 0.8)
    np.testing.assert_allclose(upper[:, 0], laws["depth"].ppf(0.9))
    assert (lower < upper).all()


def test_no_class_that_was_seen_is_impossible(rows):
    x, Y = (part[:300] for part in rows)
    kind = Y["soil"].where(np.arange(300) != 5, "rare")
    model = LocalW2MixedRegressor("balls", random_state=0).fit(x, kind)
    p = model.predict_proba(x)
    assert p.min() > 0
    np.testing.assert_allclose(p.sum(1), 1)


def test_a_small_table_of_noise_is_left_with_the_shares_of_its_classes() -> None:
    """With 60 rows of noise the log loss of the shares exceeds the least one by about (4 - 1) / (2 * 60)."""
    excess = []
    for seed in range(6):
        rng = np.random.default_rng([20261118, seed])
        x, classes = rng.uniform(size=(60, 2)), rng.choice(list("abcd"), 60)
        model = LocalW2MixedRegressor(random_state=seed).fit(x, classes)
        found = model.predict_proba(rng.uniform(size=(500, 2)))
        excess.append(float(-np.log(found).mean() - np.log(4)))
    assert np.mean(excess) < 4 * 3 / 120


@pytest.mark.parametrize(
    "classes",
    [
        np.array(list("aaaaab")),
        pd.DataFrame({"a": [f"a{i % 6}" for i in range(30)], "b": [f"b{i // 6}" for i in range(30)]}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*classes in:UserWarning")
def test_held_out_rows_may_have_no_class_of_the_others(classes) -> None:
    x = np.random.default_rng(0).normal(size=(len(classes), 1))
    model = LocalW2MixedRegressor("balls", random_state=0).fit(x, classes)
    drawn = model.sample_columns(x, 2, random_state=0)
    assert all(values.shape == (2, len(x)) for values in drawn.values())


@pytest.mark.filterwarnings("ignore:interrupted")
def test_an_interrupted_network_is_no_law(monkeypatch) -> None:
    from localw2.training import loop

    x, original = np.random.default_rng(0).normal(size=(60, 1)), loop._Run.step

    def interrupt(run):
        if run.epoch == 2:
            raise KeyboardInterrupt
        return original(run)

    monkeypatch.setattr(loop._Run, "step", interrupt)
    model = LocalW2MixedRegressor("network", random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, np.where(x[:, 0] > 0, "a", "b"))
    assert not hasattr(model, "law_")


@pytest.mark.parametrize("dtype", ["string", "boolean"])
def test_a_missing_class_of_pandas_is_named(dtype) -> None:
    known = pd.Series(["a", "b"] * 10 if dtype == "string" else [True, False] * 10, dtype=dtype, name="kind")
    known[3] = pd.NA
    with pytest.raises(ValueError, match="'kind' has missing values"):
        LocalW2MixedRegressor("balls").fit(np.arange(20.0)[:, None], known)


@pytest.mark.parametrize("categorical", [np.array([0]), np.int64(0), [0]])
def test_categorical_columns_by_their_places(categorical, tmp_path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 1))
    model = LocalW2MixedRegressor("balls", categorical=categorical, random_state=0).fit(x, np.arange(60) % 3)
    model.save(tmp_path / "m.localw2")
    again = load(tmp_path / "m.localw2")
    assert again.categorical == [0]
    assert (again.predict_proba(x) == model.predict_proba(x)).all()


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("settings", "shares", [0.5, 1.0]),
        ("settings", "single", True),
        ("settings", "classes", {"0": "uv"}),
        ("settings", "classes", {"0": [f"c{i}" for i in range(1000)]}),
        ("settings", "classes", {"0": ["u", "u"]}),
        ("settings", "categorical", "kind"),
        ("settings", "outputs", ["kind", "kind"]),
        ("tensors", "costs", torch.tensor([-1.0], dtype=torch.float64)),
        ("tensors", "scales", torch.tensor([0.0], dtype=torch.float64)),
        ("tensors", "scale", torch.tensor([0.0], dtype=torch.float64)),
        ("tensors", "combinations", torch.tensor([[0], [0]])),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(place, name, value) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1))
    Y = pd.DataFrame({"kind": rng.choice(["u", "v"], 60), "size": rng.normal(size=60)})
    stored = LocalW2MixedRegressor("balls", random_state=0).fit(x, Y).to_stored()
    getattr(stored, place)[name] = value
    with pytest.raises(ValueError):
        LocalW2MixedRegressor.from_stored(stored)
