import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, binom, kstest, norm

from localw2.balls.neighborhoods import Neighborhoods
from localw2.balls.norms import Euclidean
from localw2.judging.diagnosis.checks import (
    RowStatistics,
    adjust_by_holm,
    check_inputs,
    cut_input,
    cut_regions,
    exact_share,
    measure_skill,
)
from localw2.judging.diagnosis.diagnose import diagnose
from localw2.judging.independence import DependentDrawsWarning
from localw2.judging.inputs import Input
from localw2.judging.seen_rows import SeenRows, SeenRowsWarning
from localw2.metrics import crps


def problem(seed, n=300, n_samples=60, scale=1.0, shift=0.0):
    """x (n, 2), y (n,) and draws (S, n) of a law whose mean and SD change with x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    mean, std = 2 * x[:, 0], 0.5 + 0.4 * np.abs(x[:, 1])
    y = mean + std * rng.normal(size=n)
    return x, y, mean + std * (shift + scale * rng.normal(size=(n_samples, n)))


def gaussian_pairs(seed, n, correlation, n_samples=60):
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky([[1, correlation], [correlation, 1]])
    x = rng.normal(size=(n, 1))
    return x, x + rng.normal(size=(n, 2)) @ root.T, x + rng.normal(size=(n_samples, n, 2)), root


def alarms(n_sets, **settings):
    return sum(
        not diagnose(x, y, draws, random_state=seed).calibrated
        for seed, (x, y, draws) in ((seed, problem(seed, **settings)) for seed in range(n_sets))
    )


@pytest.mark.parametrize(("n", "n_samples"), [(300, 60), (60, 3)])
def test_false_alarms_are_rare(n, n_samples):
    # At most .05 by Holm; 99.9 % band of a fair count, since these are two of many tests.
    found = alarms(150, n=n, n_samples=n_samples)
    assert found <= binom.ppf(0.999, 150, 0.05)


def test_false_alarms_with_two_outputs_atoms_and_flat_spread():
    rng = np.random.default_rng(0)
    found = 0
    for seed in range(100):
        rate = rng.uniform(0, 2, 200)
        y = np.stack([rng.poisson(rate), rng.normal(size=200)], axis=-1)
        draws = np.stack([rng.poisson(rate, (30, 200)), rng.normal(size=(30, 200))], axis=-1)
        found += not diagnose(rate, y, draws, random_state=seed).calibrated
    assert found <= binom.ppf(0.999, 100, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [10, 200])
def test_false_alarms_campaign(n_samples):
    found = alarms(2000, n=400, n_samples=n_samples)
    assert found <= binom.ppf(0.995, 2000, 0.05)
    assert found >= 2000 * 0.01  # a test that never rejects would see nothing


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"scale": 1.25}, "wide"),
        ({"scale": 0.8}, "narrow"),
        ({"shift": 0.3}, "below"),
        ({"shift": -0.3}, "above"),
    ],
)
def test_power_against_wrong_spread_and_mean(change, kind):
    found = [
        diagnose(x, y, s, random_state=0) for x, y, s in (problem(i, n=500, **change) for i in range(20))
    ]
    right = sum(bool(f.failures) and f.failures[0][0] == kind for f in found)
    assert right >= 18


@pytest.mark.parametrize("unit", [1e-30, 1e-25, 1.0, 1e20])
def test_shared_noise_is_noticed_in_any_unit_of_single_precision(unit):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(100, 1))
    draws = unit * (x[:, 0] + rng.normal(size=(60, 1)))
    y = unit * (x[:, 0] + rng.normal(size=100))
    with pytest.warns(DependentDrawsWarning):
        found = diagnose(x, y.astype(np.float32), draws.astype(np.float32), random_state=0)
    assert found.shared_noise > 70
    assert not found.valid


@pytest.mark.parametrize("given", ["draws", "a sampler"])
def test_noise_that_rows_share_is_noticed(given):
    """Each draw is right at every row, but one omega serves all rows: ranks are all high or all low."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(300, 1))
    y = x[:, 0] + rng.normal(size=300)
    shared = x[:, 0] + rng.normal(size=(60, 1))

    def sampler(x):
        return x[:, 0] + rng.normal()

    with pytest.warns(DependentDrawsWarning, match=r"about \d+ rows share their noise"):
        found = diagnose(x, y, shared if given == "draws" else sampler, n_samples=60, random_state=0)
    assert not found.valid
    assert found.shared_noise > 200
    assert found.verdict[0].startswith("Not valid: the draws share noise between rows")
    assert found.to_dict()["shared_noise"] == found.shared_noise
    assert found.to_dict()["valid"] is False
    assert not found.calibrated


@pytest.mark.parametrize(("group", "share"), [(4, 1.0), (300, 0.05)])
def test_noise_that_is_not_noticed_does_little_harm(group, share):
    """Shared by four rows, or a twentieth of it by all: right margins are rejected as rarely as before."""
    found = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        x, y = rng.uniform(size=(300, 1)), rng.normal(size=300)
        common = np.repeat(rng.normal(size=(60, 300 // group)), group, axis=1)
        draws = np.sqrt(share) * common + np.sqrt(1 - share) * rng.normal(size=(60, 300))
        diagnosis = diagnose(x, y, draws, random_state=seed)
        assert diagnosis.valid
        found += not diagnosis.calibrated
    assert found <= binom.ppf(0.999, 150, 0.05)


@pytest.mark.parametrize("kind", ["mirrored", "quantiles"])
def test_draws_that_mirror_each_other_and_quantiles_are_valid(kind):
    """Both are dependent from draw to draw, but not between rows: alarms are as rare as they should be."""
    alarms = 0
    for seed in range(8):
        x, y, draws = problem(seed, n=600, n_samples=50)
        mean, std = 2 * x[:, 0], 0.5 + 0.4 * np.abs(x[:, 1])
        given = np.concatenate([draws, 2 * mean - draws])
        if kind == "quantiles":
            given = mean + std * norm.ppf((np.arange(100) + 0.5) / 100)[:, None]
        found = diagnose(x, y, given, random_state=0)
        assert found.valid
        alarms += not found.calibrated
    assert alarms <= binom(8, 0.05).ppf(0.999)


def test_independent_draws_and_few_draws_are_valid():
    for n_samples in (2, 9, 60):
        x, y, draws = problem(0, n_samples=n_samples)
        found = diagnose(x, y, draws, random_state=0)
        assert found.valid
        assert found.shared_noise == 1.0


def test_power_in_one_region_only():
    found = []
    for seed in range(10):
        x, y, draws = problem(seed, n=800)
        middle = draws.mean(0)
        quarter = x[:, 1] > 0.5
        found.append(
            diagnose(x, y, np.where(quarter, middle + 0.65 * (draws - middle), draws), random_state=0)
        )
    named = sum(
        any(where in " ".join(f.verdict) for where in ("x1 is in", "predicted SD is in")) for f in found
    )
    assert named >= 8
    assert all(f.verdict[0].startswith("Not calibrated") for f in found if f.failures)


def test_power_against_shape():
    rng = np.random.default_rng(0)
    y = np.sqrt(3) * rng.uniform(-1, 1, 3000)
    draws = rng.normal(size=(100, 3000))
    found = diagnose(np.arange(3000.0), y, draws, random_state=0)
    assert [kind for kind, _ in found.failures] == ["shape"]
    assert found.groups[0].adjusted["shape"] < 1e-4


@pytest.mark.parametrize("correlation", [0.5, -0.5])
def test_power_against_outputs_taken_as_independent(correlation):
    x, y, draws, root = gaussian_pairs(0, 400, correlation)
    found = diagnose(x, y, draws, random_state=0)
    assert [kind for kind, _ in found.failures] == ["dependence"]
    assert "0 and 1" in found.verdict[0]
    assert ("more" if correlation > 0 else "less") in found.verdict[0]
    together = x + (draws - x) @ root.T
    assert diagnose(x, y, together, random_state=0).calibrated
    assert "y0 times y1" in found.table()


def test_pit_stays_uniform_in_regions_of_predicted_spread():
    # Few draws: grouping by the SD of the draws alone would make y look too scattered where it is low.
    rng = np.random.default_rng(0)
    y, draws = rng.normal(size=(20_000, 1)), rng.normal(size=(8, 20_000, 1))
    rows = RowStatistics.of(y, draws, [], rng)
    for values in (rows.width[:, 0], rows.centre[:, 0]):
        for region in cut_regions(values, 4):
            assert kstest(rows.pit[region, 0], "uniform").pvalue > 1e-4
    lowest = cut_regions(rows.std[:, 0], 4)[0]
    assert kstest(rows.pit[lowest, 0], "uniform").pvalue < 1e-10


def test_row_statistics_do_not_depend_on_the_chunks(monkeypatch):
    _, y, draws = problem(0)
    whole = RowStatistics.of(y[:, None], draws[..., None], [], np.random.default_rng(0))
    monkeypatch.setattr("localw2.judging.diagnosis.checks.CHUNK", 1000)
    parts = RowStatistics.of(y[:, None], draws[..., None], [], np.random.default_rng(0))
    for name in ("crps", "mean", "std", "centre", "width"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)
    np.testing.assert_allclose(whole.mean[:, 0], draws.mean(0))
    np.testing.assert_allclose(whole.std[:, 0], draws.std(0, ddof=1))
    np.testing.assert_allclose(whole.crps[:, 0], crps(y, draws))
    assert np.abs(parts.pit - whole.pit).max() <= 1 / (30 + 1)  # half of the 60 draws place y


def test_coverage_and_its_exact_interval():
    x, y, draws = problem(1, n=300, n_samples=179)
    overall = diagnose(x, y, draws, coverages=(0.9,), random_state=0).groups[0]
    nominal, share, low, high = overall.coverage[0]
    rest = np.delete(draws, np.s_[1::3], axis=0)
    ranks = (rest < y).sum(0)
    assert nominal == 0.9
    # Of 120 places the middle 108 are surely inside.
    assert share == pytest.approx(np.mean((ranks >= 6) & (ranks < 114)))
    hits = round(share * 300)
    np.testing.assert_allclose(
        [low, high], [beta.ppf(0.025, hits, 301 - hits), beta.ppf(0.975, hits + 1, 300 - hits)]
    )
    assert exact_share(7, 7)[2] == 1.0


def test_holm_by_hand():
    p = np.array([0.04, 0.001, 0.03, 0.9])
    np.testing.assert_allclose(adjust_by_holm(p), [0.09, 0.004, 0.09, 0.9])


def test_skill_against_a_gaussian_base_rate():
    rng = np.random.default_rng(0)
    x = rng.normal(size=4000)
    y, draws = 2 * x + rng.normal(size=4000), 2 * x + rng.normal(size=(100, 4000))
    found = diagnose(x, y, draws, random_state=0)
    # The CRPS of a calibrated Gaussian is its SD times 1 / sqrt(pi): 1 here, and sqrt(5) for the base rate.
    assert abs(found.score - 1 / np.sqrt(np.pi)) < 4 * 0.4 / np.sqrt(4000)
    assert abs(found.skill - (1 - 1 / np.sqrt(5))) < 4 * found.skill_error
    assert 0.002 < found.skill_error < 0.02
    assert "distribution of all y" in found.verdict[1]
    y_train = np.sqrt(5) * rng.normal(size=3000)
    trained = diagnose(x, y, draws, y_train=y_train, random_state=0)
    assert "y_train" in trained.base
    assert abs(trained.skill - found.skill) < 0.02


def test_the_base_rate_of_other_rows_is_a_loop():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(12, 1))
    own = np.zeros((12, 1))
    found = measure_skill(y, rng.normal(size=(5, 12, 1)), own, None, rng)
    loop = [crps(y[[i], 0], np.delete(y, i)[:, None])[0] for i in range(12)]
    assert found["base_score"] == pytest.approx(np.mean(loop))
    assert found["skill"] == 1.0


def test_ignoring_the_inputs_has_no_skill():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=500)
    found = diagnose(x, rng.normal(size=500), rng.normal(size=(50, 500)), random_state=0)
    assert found.calibrated
    assert abs(found.skill) < 4 * found.skill_error
    assert any("within 1 %" in line and "not a clear improvement" in line for line in found.verdict)


def test_less_skill_than_without_inputs_is_said():
    rng = np.random.default_rng(0)
    x, noise = rng.uniform(size=(2, 500))
    found = diagnose(x, rng.normal(size=500), rng.normal(2 * noise, size=(50, 500)), random_state=0)
    assert found.skill < -2 * found.skill_error
    assert any("% higher" in line and "improvement" not in line for line in found.verdict)
    assert any("worse than no model here" in line for line in found.verdict)


def test_less_skill_because_of_a_wrong_spread_is_not_blamed_on_x():
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    found = diagnose(x, np.where(x > 0.7, 3, 0.5) * rng.normal(size=1000), rng.normal(3, 1, size=(50, 1000)))
    assert any("worse than no model here: what is named above may be" in line for line in found.verdict)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_spread_ratio(factor):
    x, y, draws = problem(3, n=2000, n_samples=20, scale=1 / factor)
    found = diagnose(x, y, draws, random_state=0)
    low, high = found.spread_interval[0]
    assert low < found.spread_ratio[0] < high
    # Half the width is 2 standard errors, all of it 4.
    assert abs(np.log(found.spread_ratio[0] / factor)) < np.log(high / low)
    if factor == 1:
        assert high / low < 1.15


def test_collapsed_draws_are_named():
    x, y, draws = problem(0)
    found = diagnose(x, y, np.broadcast_to(draws.mean(0), draws.shape), random_state=0)
    assert found.constant_draws == (300,)
    assert found.failures[0][0] == "narrow"
    assert any("collapsed" in line and "300" in line for line in found.verdict)
    assert found.to_dict()["spread_ratio"] == [None]
    some = draws.copy()
    some[:, :100] = y[:100]  # a law without spread that is right, as at x = 0 of the nonlinear example
    right = diagnose(x, y, some, random_state=0)
    assert right.calibrated
    assert right.constant_draws == (0,)
    assert 0.8 < right.spread_ratio[0] < 1.2


def test_sparse_and_extrapolated_rows():
    rng = np.random.default_rng(0)
    x_train = rng.uniform(size=(500, 2))
    x = np.vstack([rng.uniform(0.1, 0.9, (50, 2)), [[1.5, 0.5]], [[0.5, -0.2]]])
    y, draws = rng.normal(size=52), rng.normal(size=(20, 52))
    found = diagnose(x, y, draws, x_train=x_train, delta=0.1, random_state=0)
    np.testing.assert_array_equal(
        found.ball_sizes, [(np.linalg.norm(x_train - row, axis=1) <= 0.1).sum() for row in x]
    )
    assert found.extrapolated[50:].all()
    assert found.extrapolated[:50].sum() <= 2
    assert found.sparse[50:].all()
    assert "outside" in found.verdict[-1]
    assert f"{found.sparse.sum()} of 52" in found.verdict[-2]
    assert "training" in found.verdict[-2]
    assert diagnose(x, y, draws, random_state=0).extrapolated is None
    # A hole in the middle is inside the range of every column.
    ring = x_train[np.linalg.norm(x_train - 0.5, axis=1) > 0.3]
    hole = diagnose(np.vstack([x[:51], [[0.5, 0.5]]]), y, draws, x_train=ring, random_state=0)
    assert hole.extrapolated[51]


@pytest.mark.parametrize("p", [2, 7])
def test_without_training_rows_a_row_does_not_count_itself(p):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, p))
    found = check_inputs(x, None, 1.0, Euclidean(), rng)
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.testing.assert_array_equal(found["ball_sizes"], (distance <= 1.0).sum(1) - 1)
    usual = check_inputs(x, None, None, Euclidean(), rng)
    assert usual["delta"] == pytest.approx(np.quantile(np.sort(distance, axis=1)[:, 5], 0.99))
    assert 0 < usual["sparse"].sum() <= 3


def test_rows_with_few_others_in_their_leaves_are_sparse():
    rng = np.random.default_rng(0)
    x, y, draws = rng.normal(size=(40, 2)), rng.normal(size=40), rng.normal(size=(20, 40))
    numbers = np.zeros((40, 2), int)
    numbers[0] = [1, 1]  # alone in both trees
    numbers[1:5, 1] = 2  # with 38 others in one tree and 3 in the other
    hoods = Neighborhoods.leaves(numbers, x)
    found = diagnose(x, y, draws, delta=hoods, random_state=0)
    np.testing.assert_array_equal(found.ball_sizes[:2], [0, (38 + 3) / 2])
    assert np.flatnonzero(found.sparse).tolist() == [0]
    assert "1 of 40" in found.verdict[-1]
    assert found.to_dict()["delta"] is None
    with_training = diagnose(x, y, draws, x_train=x[5:], delta=hoods, random_state=0)
    np.testing.assert_array_equal(with_training.ball_sizes, found.ball_sizes)
    for settings, message in (({"norm": Euclidean()}, "norm"), ({"delta": Neighborhoods.whole(3)}, "3 rows")):
        with pytest.raises(ValueError, match=message):
            diagnose(x, y, draws, **{"delta": hoods, **settings})


def test_repeated_training_inputs_make_no_outsiders():
    rng = np.random.default_rng(0)
    x_train = np.repeat(np.linspace(0, 1, 20), 10)[:, None]
    x = np.linspace(0.02, 0.98, 30)
    found = diagnose(x, rng.normal(size=30), rng.normal(size=(20, 30)), x_train=x_train, random_state=0)
    assert not found.extrapolated.any()


def test_few_rows():
    x, y, draws = problem(0, n=5)
    found = diagnose(x, y, draws, random_state=0)
    assert found.verdict[0].startswith("Too few")
    assert len(found.groups) == 1
    far = diagnose(x, y + 50, draws, random_state=0)
    assert far.verdict[0].startswith("Not calibrated")
    assert far.failures[0][0] == "above"
    two = diagnose(x[:2], y[:2], draws[:2, :2], random_state=0)
    assert json.dumps(two.to_dict(), allow_nan=False)
    assert two.to_dict()["skill"] is None


def test_results_are_plain_and_repeat():
    x, y, draws = problem(0, n=120)
    frame = pd.DataFrame(x, columns=["speed", "load"])
    found = diagnose(frame, y, draws.astype(np.float32), random_state=0)
    again = diagnose(frame, y, draws.astype(np.float32), random_state=0)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert text == json.dumps(again.to_dict(), allow_nan=False)
    assert any(group.by == "speed" for group in found.groups)
    assert found.place_name == "speed"  # the mean depends on it
    lines = found.table().split("\n")
    assert len(lines) == 2 + len(found.groups) + len(found.modes)
    assert lines[2].startswith("all rows")
    assert repr(found).startswith("Diagnosis(120 rows, 60 draws")
    assert found.verdict[0] in repr(found)
    n_tests = sum(len(group.pvalues) for group in found.groups)
    assert n_tests == 3 + 2 * (len(found.groups) - 1)
    assert found.n_tests == n_tests + 1  # and the modes


def test_y_of_one_column_is_one_output():
    x, y, draws = problem(0)
    flat, column = (
        diagnose(x, y, draws, random_state=0),
        diagnose(x, y[:, None], draws[..., None], random_state=0),
    )
    assert flat.to_dict() == column.to_dict()
    assert flat.to_dict() == diagnose(x, y[:, None], draws, random_state=0).to_dict()
    assert flat.to_dict() == diagnose(x, y, draws[..., None], random_state=0).to_dict()


class Replay:
    """A sampler that returns given draws (S, N), some at a time, as the estimators' ``sample`` would."""

    def __init__(self, draws):
        self.draws, self.calls, self.inputs = draws, [], []

    def sample(self, X, n_samples=1, random_state=None):
        start = sum(self.calls)
        self.calls.append(n_samples)
        self.inputs.append(X)
        return self.draws[start : start + n_samples]


def test_a_sampler_serves_as_well_as_its_draws():
    x, y, draws = problem(0)
    expected = diagnose(x, y, draws, random_state=0)
    for shape in ((300,), (300, 1)):
        replay = iter(draws)
        one_each = diagnose(
            x, y, lambda x, r=replay, s=shape: next(r).reshape(s), n_samples=60, random_state=0
        )
        assert one_each.to_dict() == expected.to_dict()
        assert next(replay, None) is None
    frame, model = pd.DataFrame(x, columns=["speed", "load"]), Replay(draws)
    found = diagnose(frame, y, model, n_samples=60, random_state=np.random.default_rng(0))
    assert model.calls == [60]
    assert model.inputs[0] is frame
    assert found.n_samples == 60
    np.testing.assert_array_equal(found.mean[:, 0], expected.mean[:, 0])
    assert diagnose(x, y, Replay(np.repeat(draws, 4, axis=0)), random_state=0).n_samples == 200
    assert diagnose(x[:, 0], y, lambda x: x[:, 0] * 0.0, n_samples=2, random_state=0).constant_draws == (300,)
    # Draws in a frame or in lists are draws, although a frame has a method ``sample`` of its own.
    for given in (pd.DataFrame(draws), draws.tolist()):
        np.testing.assert_array_equal(diagnose(x, y, given, random_state=0).pit, expected.pit)


def test_a_sampler_that_remembers_its_training_rows_is_asked():
    x, y, draws = problem(0)
    model = Replay(draws)
    model.seen_rows_ = SeenRows.of(x, y)
    with pytest.warns(SeenRowsWarning, match="100 %"):
        diagnose(x, y, model.sample, n_samples=60, random_state=0)


def test_a_sampler_of_a_table_encodes_it():
    _, y, draws = problem(0)
    table = np.where(np.arange(300) % 2, "red", "blue").astype(object)[:, None]

    class OfTable(Replay):
        columns_ = "of a table"

        def encode(self, x):
            return np.column_stack([x[:, 0] == "red", x[:, 0] == "blue"]).astype(float)

        def list_inputs(self, x, names=None):
            return (x == "red").astype(float), [Input("hue", "category", ("blue", "red"))]

    model = OfTable(draws)
    found = diagnose(table, y, model, n_samples=60, x_train=table, random_state=0)
    assert model.inputs[0] is table
    assert {"hue = red", "hue = blue"} <= {group.where for group in found.groups}
    assert not found.extrapolated.any()


@pytest.mark.parametrize(
    ("each", "values", "expected"),
    [
        (Input("year", "number"), [2001, 2001, 2003, 2004], {"= 2001": 2, "= 2003": 1, "= 2004": 1}),
        (
            Input("day", "date"),
            [0, 1, 2, 30],
            {"in [1970-01-01, 1970-01-02]": 2, "in [1970-01-03, 1970-01-31]": 2},
        ),
        (Input("dose", "number"), [0.5, np.nan, 0.5, np.nan], {"= 0.5": 2, "= missing": 2}),
        (
            Input("site", "category", tuple("abcdef")),
            [0, 0, 0, 1, 1, 2, 3, 4, 5, np.nan],
            {"= a": 3, "= b": 2, "= c": 1, "one of 3 other categories": 3, "= missing": 1},
        ),
    ],
)
def test_regions_of_an_input_are_said_in_its_own_words(each, values, expected):
    n_regions = 2 if each.kind == "date" else 3
    cut = cut_input(each, np.array(values, dtype=float), n_regions)
    assert {words: len(rows) for rows, words in cut} == expected
    assert sorted(np.concatenate([rows for rows, _ in cut])) == list(range(len(values)))


def test_a_category_in_which_the_spread_is_wrong_is_named_and_drawn():
    rng = np.random.default_rng(0)
    hue = rng.integers(0, 3, 600)
    y = np.where(hue == 2, 3.0, 1.0) * rng.normal(size=600)

    class OfTable(Replay):
        columns_ = "of a table"

        def encode(self, x):
            return (x == np.arange(3)).astype(float)

        def list_inputs(self, x, names=None):
            return x, [Input("hue", "category", ("red", "green", "blue"))]

    found = diagnose(
        hue[:, None].astype(float), y, OfTable(rng.normal(size=(60, 600))), n_samples=60, random_state=0
    )
    assert not found.calibrated
    assert any("hue is blue" in line for line in found.verdict)
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = found.plot(axes=Figure().subplots(2, 2))
    assert [tick.get_text() for tick in axes[2].get_xticklabels()] == ["red", "green", "blue"]


def test_regions_of_few_values_and_constants():
    assert [len(r) for r in cut_regions(np.repeat([0.0, 1.0], [95, 5]), 4)] == [95, 5]
    assert [len(r) for r in cut_regions(np.zeros(10), 4)] == [10]
    assert [len(r) for r in cut_regions(np.arange(100.0), 4)] == [25, 25, 25, 25]
    assert sorted(np.concatenate(cut_regions(np.random.default_rng(0).integers(0, 9, 50), 3))) == list(
        range(50)
    )


def test_many_outputs_are_tested_in_a_part_of_the_pairs():
    rng = np.random.default_rng(0)
    y, draws = rng.normal(size=(40, 12)), rng.normal(size=(10, 40, 12))
    found = diagnose(np.arange(40.0), y, draws, n_regions=1, random_state=0)
    assert len(found.dependence) == 45
    assert len({pair.outputs for pair in found.dependence}) == 45
    assert len(found.groups) == 12


def test_normal_scores_are_the_tests():
    x, y, draws = problem(5, n=400)
    group = diagnose(x, y, draws, random_state=0)
    z = norm.ppf(group.pit[:, 0])
    overall = group.groups[0]
    assert overall.shift == pytest.approx(z.mean())
    assert overall.spread == pytest.approx(z.std(ddof=1))
    assert overall.pvalues["shift"] == pytest.approx(2 * norm.sf(abs(z.mean()) * 20))
    assert overall.pvalues["shape"] == pytest.approx(kstest(group.pit[:, 0], "uniform").pvalue)


def test_plot_has_four_panels():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    x, y, draws, _ = gaussian_pairs(0, 200, 0.5)
    found = diagnose(x, y, draws, random_state=0)
    axes = found.plot(output=1)
    assert len(axes) == 4
    assert "(output 1)" in axes[0].figure.get_suptitle()
    bars = axes[0].patches[0].get_data().values
    assert bars.mean() == pytest.approx(1)
    again = found.plot(axes=axes)
    assert again[2].get_xlabel() == "x"
    with pytest.raises(ValueError, match="axes"):
        found.plot(axes=axes[:1])
    with pytest.raises(ValueError, match="output"):
        found.plot(output=2)
    x, y, draws = problem(0, n=5)
    diagnose(x, y, np.broadcast_to(y, draws.shape), random_state=0).plot()
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [0.0], "y": [1.0], "sampler": np.zeros((3, 1))}, "1 row"),
        ({"sampler": np.zeros((1, 30))}, "1 draw"),
        ({"sampler": np.zeros((30, 5))}, r"\(S, 30\)"),
        ({"sampler": 3}, "callable"),
        ({"sampler": dict}, "class"),
        ({"sampler": lambda x: np.zeros(29)}, "shape"),
        ({"sampler": lambda x: np.full(30, np.nan)}, "NaN"),
        ({"sampler": lambda x: np.zeros(30), "n_samples": 1}, "n_samples"),
        ({"x": np.zeros(29)}, "same rows"),
        ({"names": ["a", "b"]}, "names"),
        ({"x_train": np.zeros((9, 2))}, "x_train"),
        ({"y_train": np.zeros((9, 2))}, "y_train"),
        ({"x_train": np.zeros(9), "y_train": np.zeros(8)}, "pairs"),
        ({"coverages": (0.5, 1.0)}, "coverages"),
        ({"n_regions": 0}, "n_regions"),
        ({"delta": -1.0}, "delta"),
        ({"norm": "homo"}, "norm"),
        ({"y": np.full(30, np.nan)}, "NaN"),
        ({"y": np.zeros((30, 1, 1))}, "shape"),
    ],
)
def test_bad_input(change, message):
    given = {
        "x": np.arange(30.0),
        "y": np.arange(30.0),
        "sampler": np.zeros((5, 30)),
        "random_state": 0,
    } | change
    with pytest.raises(ValueError, match=message):
        diagnose(**given)


@pytest.mark.slow
@pytest.mark.parametrize(("p", "d"), [(3, 1), (12, 2)])
def test_a_hundred_thousand_rows(p, d):
    import resource
    import time

    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000, p))
    y, draws = x[:, :1] + rng.normal(size=(100_000, d)), x[:, :1] + rng.normal(size=(200, 100_000, d))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    found = diagnose(x, y, draws, x_train=x + 0.01, random_state=0)
    assert time.perf_counter() - start < 60
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
    )  # KiB; the draws have 160 000
    assert found.calibrated


@pytest.mark.parametrize("unit", [1e200, 1e-200])
def test_units_whose_squares_are_no_numbers_are_refused(unit):
    x, y = np.random.default_rng(0).normal(size=(2, 100))
    with pytest.raises(ValueError, match="Change its unit"):
        diagnose(x, unit * y, lambda x: unit * np.ones(len(x)))
