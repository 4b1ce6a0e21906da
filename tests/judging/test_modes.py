"""Modes that the draws merge or split are named by diagnose and conditional_test, and not made of chance."""

import json

import numpy as np
import pytest
from scipy.stats import binom

from localw2 import conditional_test
from localw2.datasets import ZOO
from localw2.judging.diagnosis.diagnose import ADVICE, diagnose
from localw2.judging.valleys import N_BINS, bin_values, describe_valley, find_valley, measure_grain


def draw_right(truth, x, rng, n_samples=60):
    """Draws (S, n) or (S, n, d) of the truth itself."""
    return np.stack([truth.sample_y(x, rng) for _ in range(n_samples)])


def draw_merged(truth, x, rng, n_samples=60):
    """Gaussian draws with the right mean and SD at every x."""
    mean = truth.mean(x)
    return mean + truth.std(x) * rng.normal(size=(n_samples, *mean.shape))


def judge(name, seed, draw, n=500):
    truth, rng = ZOO[name], np.random.default_rng([1, seed])
    x, y = truth.sample(n, random_state=seed)
    return diagnose(x, y, draw(truth, x, rng), names=["load"], random_state=seed)


def kinds(found):
    return [kind for kind, _ in found.failures]


def mixture(rng, *shape, share=0.5):
    """Two modes at -1 and 1 of SD .25."""
    return np.where(rng.uniform(size=shape) < share, 1.0, -1.0) + 0.25 * rng.normal(size=shape)


@pytest.mark.parametrize("name", ["humps", "two modes", "fork", "two curves", "two bands"])
def test_merged_modes_are_named(name):
    found = [judge(name, seed, draw_merged) for seed in range(3)]
    assert all("merged" in kinds(each) for each in found)
    assert all("shape" not in kinds(each) for each in found)  # one error, one name
    assert all(ADVICE["merged"] in each.verdict for each in found)


def test_four_branches_need_more_rows():
    found = [judge("branches", seed, draw_merged, n=1500) for seed in range(3)]
    assert all("merged" in kinds(each) for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 500, 2000])
def test_power_by_law(n):
    """How often Gaussian draws with the right mean and SD are said to merge modes, of 20 data sets."""
    laws = [name for name in ZOO if name not in ("rare low", "changing skew", "growing noise")]
    named = {
        name: sum("merged" in kinds(judge(name, seed, draw_merged, n)) for seed in range(20)) for name in laws
    }
    print(n, named)
    least = {200: 6, 500: 7, 2000: 8}[n]  # as measured, of 9 laws
    assert sum(count >= 18 for count in named.values()) >= least
    for name in ("changing skew", "growing noise"):  # one mode each
        assert not any("merged" in kinds(judge(name, seed, draw_merged, n)) for seed in range(20))


def test_where_and_how_much_is_said():
    fork = judge("fork", 0, draw_merged)
    kind, words = fork.failures[0]
    assert kind == "merged"
    assert words.startswith("Two modes of the data are one in the draws where load is in [0.1")
    assert (
        "% of y but 38 % of the draws lie between 0.5 SD below and 0.5 SD above the predicted mean" in words
    )
    (modes,) = fork.modes
    assert modes.n == 250
    assert modes.valley.share < 0.1 < modes.valley.drawn
    assert "modes" in fork.table()
    assert json.loads(json.dumps(fork.to_dict()))["modes"][0]["valley"]["kind"] == "merged"
    # Everywhere: no place. Where mean and SD do not depend on x, the interval is one of y.
    assert "where" not in judge("humps", 0, draw_merged).failures[0][1]
    rng = np.random.default_rng(0)
    steady = diagnose(
        np.arange(400.0), 10 + mixture(rng, 400), 10 + rng.normal(size=(200, 400)), random_state=0
    )
    assert "lie between about 9." in steady.failures[0][1]


def test_the_reverse_is_a_split():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(500, 1)), rng.normal(size=500)
    found = diagnose(x, y, mixture(rng, 60, 500), random_state=0)
    assert "split" in kinds(found)
    assert found.failures[0][1].startswith("One mode of the data is two in the draws: 4")
    assert ADVICE["split"] in found.verdict


@pytest.mark.parametrize(
    ("of_y", "of_draws"),
    [
        (lambda rng, *n: rng.normal(size=n), lambda rng, *n: 0.4 * rng.normal(size=n)),
        (lambda rng, *n: rng.normal(size=n), lambda rng, *n: 2 * rng.normal(size=n)),
        (lambda rng, *n: rng.uniform(-1.7, 1.7, n), lambda rng, *n: rng.normal(size=n)),
        (lambda rng, *n: rng.standard_t(3, n), lambda rng, *n: 1.7 * rng.normal(size=n)),
        (lambda rng, *n: rng.exponential(size=n) - 1, lambda rng, *n: rng.normal(size=n)),
        (lambda rng, *n: rng.normal(size=n), lambda rng, *n: rng.exponential(size=n) - 1),
        (mixture, lambda rng, *n: 0.6 * mixture(rng, *n)),
        (mixture, lambda rng, *n: 1.6 * mixture(rng, *n)),
        (mixture, lambda rng, *n: 0.5 + mixture(rng, *n)),
        (mixture, lambda rng, *n: mixture(rng, *n, share=0.3)),
    ],
)
def test_other_errors_are_not_called_modes(of_y, of_draws):
    """Wrong spread, mean, tails, skewness or masses, with one mode or two in both."""
    named = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        found = diagnose(rng.uniform(size=500), of_y(rng, 500), of_draws(rng, 60, 500), random_state=0)
        named += bool({"merged", "split"} & {*kinds(found)})
    assert named <= 1


def test_atoms_are_not_modes():
    """Right samplers of counts and of coins are silent, and so is the name if draws are continuous."""
    rng = np.random.default_rng(0)
    rate, alarms = rng.uniform(1, 6, 400), 0
    laws = {
        "counts": lambda *n: rng.poisson(rate, (*n, 400)) * 1.0,
        "coins": lambda *n: rng.integers(0, 2, (*n, 400)) * 1.0,
        "zeros": lambda *n: np.where(rng.uniform(size=(*n, 400)) < 0.4, 0.0, rng.gamma(rate, size=(*n, 400))),
    }
    for law in laws.values():
        for seed in range(10):
            y = law()
            alarms += not diagnose(rate, y, law(60), random_state=seed).calibrated
    for name in ("counts", "coins"):
        y = laws[name]()
        gaussian = y.mean() + y.std() * rng.normal(size=(60, 400))
        assert not {"merged", "split"} & {*kinds(diagnose(rate, y, gaussian, random_state=0))}
    assert alarms <= binom.ppf(0.999, 30, 0.05)
    # Rounding to many values leaves modes: 20 steps between these two.
    rounded = np.round(10 * mixture(rng, 400))
    assert "merged" in kinds(diagnose(rate, rounded, 10 * rng.normal(size=(60, 400)), random_state=0))


@pytest.mark.parametrize("name", list(ZOO))
def test_right_samplers_are_left_alone(name):
    found = [judge(name, seed, draw_right, n=200) for seed in range(4)]
    assert not any(modes.adjusted <= 0.05 for each in found for modes in each.modes)
    assert sum(not each.calibrated for each in found) <= binom.ppf(0.9999, 4, 0.05)


@pytest.mark.slow
def test_false_alarms_campaign_of_all_shapes():
    """100 data sets of each of the 12 laws: all tests together err in at most 5 %, that of modes far less."""
    family = of_modes = 0
    for name in ZOO:
        for seed in range(100):
            found = judge(name, seed, draw_right, n=400)
            family += not found.calibrated
            of_modes += any(modes.pvalue <= 0.05 for modes in found.modes)
    print(f"{family} of 1200 right samplers rejected, {of_modes} by an unadjusted test of modes")
    assert family <= binom.ppf(0.995, 1200, 0.05)
    assert of_modes <= binom.ppf(0.995, 1200, 0.05)


def test_the_pvalue_is_valid_without_the_gates(monkeypatch):
    """Every interval counts as a valley: the binomial tails and Bonferroni alone keep the level."""
    monkeypatch.setattr("localw2.judging.valleys.is_valley", lambda counts, width, *_: np.ones(1, bool))
    monkeypatch.setattr("localw2.judging.valleys.mark_valleys", lambda counts, *_: 0 * counts)
    rng, hits, smallest = np.random.default_rng(0), 0, 1.0
    for _ in range(200):
        mode = rng.choice([-1.0, 1.0], (300, 1)) * 0.5  # the p_i differ between rows
        bins = bin_values(mode + 0.6 * rng.normal(size=(300, 21)))
        counts, pooled = (
            np.bincount(each.ravel(), minlength=N_BINS + 1)[None, :N_BINS] for each in (bins[:, 0], bins)
        )
        p, _ = find_valley(counts, pooled, counts, 20, np.array([300]), 0.0)
        hits, smallest = hits + (p <= 0.05), min(smallest, p)
    assert hits <= binom.ppf(0.999, 200, 0.05)
    assert smallest < 0.5  # it is conservative, but not deaf


def test_several_outputs():
    merged = judge("joint modes", 0, draw_merged)
    sentences = [words for kind, words in merged.failures if kind == "merged"]
    assert {words[:21] for words in sentences} == {"Two modes of output 0", "Two modes of output 1"}
    # Right margins that are independent have four modes: seen along sums and differences only.
    truth, rng = ZOO["joint modes"], np.random.default_rng(0)
    x, y = truth.sample(500, random_state=0)
    apart = np.stack([draw_right(truth, x, rng)[..., k] for k in range(2)], axis=-1)
    (words,) = [words for kind, words in diagnose(x, y, apart, random_state=0).failures if kind == "merged"]
    assert words.startswith("Two modes along output 0 ")
    # Modes along a direction that is no axis: the draws have their covariance.
    y = mixture(rng, 500)[:, None] * [1.0, 2.0, 2.0] + 0.6 * rng.normal(size=(500, 3))
    root = np.linalg.cholesky(np.cov(y.T))
    found = diagnose(x, y, rng.normal(size=(60, 500, 3)) @ root.T, random_state=0)
    principal = next(modes for modes in found.modes if "principal" in modes.direction)
    assert principal.adjusted < 1e-10
    assert principal.valley.kind == "merged"


def test_few_rows_and_few_draws_are_not_searched():
    truth, rng = ZOO["humps"], np.random.default_rng(0)
    for n, n_samples, searched in ((19, 60, 0), (20, 60, 1), (300, 39, 0), (300, 40, 1)):
        x, y = truth.sample(n, random_state=0)
        found = diagnose(x, y, draw_merged(truth, x, rng, n_samples), random_state=0)
        assert len(found.modes) == searched
    assert "merged" in kinds(judge("humps", 0, draw_merged, n=60))


def test_draws_without_spread_and_constant_y():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=200), mixture(rng, 200)
    point = diagnose(x, y, np.zeros((60, 200)), random_state=0)
    assert point.modes[0].adjusted == 1
    assert diagnose(x, 0 * y, rng.normal(size=(60, 200)), random_state=0).modes[0].adjusted == 1
    half = np.where(x < 0.5, 0.0, rng.normal(size=(60, 200)))
    found = diagnose(x, np.where(x < 0.5, 0.0, y), half, random_state=0)
    assert kinds(found) == ["merged"]
    assert found.modes[0].n <= (x >= 0.5).sum()


def test_groups_of_missing_values():
    """Rows whose input is missing are a region of their own, and no neighbours of any other."""
    rng = np.random.default_rng(0)
    place = np.where(np.arange(400) < 200, np.nan, rng.uniform(size=400))
    y, draws = np.where(np.isnan(place), mixture(rng, 400), rng.normal(size=400)), rng.normal(size=(60, 400))

    class OfTable:
        columns_ = "of a table"

        def sample(self, X, n_samples=1, random_state=None):
            return draws[:n_samples]

        def encode(self, x):
            return np.nan_to_num(x)

        def list_inputs(self, x, names=None):
            from localw2.judging.inputs import Input

            return x, [Input("dose", "number", gaps=True)]

    found = diagnose(place[:, None], y, OfTable(), n_samples=60, random_state=0)
    assert "where dose is missing:" in found.failures[0][1]


def test_panel_of_modes():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = judge("fork", 0, draw_merged).plot(axes=Figure().subplots(2, 2))
    assert axes[3].get_title().startswith("Two modes of the data are one in the draws\nwhere load is in")
    bars = [np.asarray(patch.get_data().values) for patch in axes[3].patches if hasattr(patch, "get_data")]
    assert len(bars) == 2
    assert all(0.97 < 0.25 * each.sum() <= 1 for each in bars)
    spread = judge("growing noise", 0, draw_right).plot(axes=Figure().subplots(2, 2))
    assert "spread" in spread[3].get_title()


def test_grain():
    rng = np.random.default_rng(0)
    assert measure_grain(rng.poisson(9, 500), np.full(500, 3.0)) == pytest.approx(1 / 3)
    assert measure_grain(rng.normal(size=500), np.ones(500)) < 0.02
    assert measure_grain(np.ones(5), np.ones(5)) == np.inf


class TestConditionalTest:
    def test_merged_modes_are_described_and_not_claimed(self):
        truth, rng = ZOO["fork"], np.random.default_rng(0)
        x, y = truth.sample(500, random_state=0)
        test = conditional_test(
            x, y, lambda x: draw_merged(truth, x, rng, 1)[0], n_permutations=99, random_state=0
        )
        (note,) = test.notes
        assert note in test.summary()
        assert note.startswith("Two modes of the data are one in the draws in the 166 rows around x = 0.")
        assert "is not a test; diagnose tests it" in note

    def test_nothing_is_described_without_a_rejection_or_without_modes(self):
        truth, rng = ZOO["humps"], np.random.default_rng(1)
        x, y = truth.sample(400, random_state=0)
        settings = {"n_permutations": 99, "random_state": 0}
        right = conditional_test(x, y, lambda x: truth.sample_y(x, rng), **settings)
        assert (right.reject, right.notes) == (False, ())
        samplers = [
            lambda x: 1.5 + truth.sample_y(x, rng),
            lambda x: truth.mean(x) + 0.5 * (truth.sample_y(x, rng) - truth.mean(x)),
        ]
        for sampler in samplers:
            test = conditional_test(x, y, sampler, **settings)
            assert (test.reject, test.notes) == (True, ())
        coin = conditional_test(x, 1.0 * (y > 0), lambda x: 0.5 + 0.5 * rng.normal(size=len(x)), **settings)
        assert (coin.reject, coin.notes) == (True, ())

    @pytest.mark.parametrize("more", [{}, {"delta": None}, {"standardize": False}])
    def test_other_settings(self, more):
        rng = np.random.default_rng(0)
        x = rng.uniform(size=(300, 2))
        test = conditional_test(
            x, mixture(rng, 300), lambda x: rng.normal(size=300), n_permutations=99, random_state=0, **more
        )
        assert test.reject
        assert len(test.notes) == (0 if "standardize" in more else 1)
        both = conditional_test(
            x,
            mixture(rng, 300, 2),
            lambda x: rng.normal(size=(300, 2)),
            n_permutations=99,
            random_state=0,
            **more,
        )
        assert both.notes == ()

    def test_a_split_mode(self):
        rng = np.random.default_rng(0)
        y, yhat = rng.normal(size=200), mixture(rng, 200)
        assert describe_valley(y, yhat, 0.0).kind == "split"
        assert describe_valley(yhat, y, 0.0).kind == "merged"
        assert describe_valley(yhat, y, 1.0) is None
        assert describe_valley(y, 0 * y, 0.0) is None
        assert describe_valley(y, rng.normal(size=200), 0.0) is None


def test_outputs_that_are_multiples_of_each_other_are_no_error():
    """Their difference in SDs has no spread, so that there is nothing to search along it."""
    rng = np.random.default_rng(0)
    x, y, draws = rng.uniform(size=(60, 1)), rng.normal(size=(60, 1)), rng.normal(size=(80, 60, 1))
    found = diagnose(x, y * [1.0, 2.0], draws * [1.0, 2.0], random_state=0)
    assert not found.wrong_modes
    constant = diagnose(x, y * [1.0, 0.0], draws * [1.0, 0.0], random_state=0)
    assert not constant.wrong_modes
