"""What a diagnosis says in words: one error gets one name, and no finding is made of chance."""

import warnings

import numpy as np
import pytest
from scipy.stats import binom, kstest

from localw2.balls.norms import Weighted
from localw2.judging.diagnosis.checks import Group, RowStatistics, cut_regions
from localw2.judging.diagnosis.diagnose import ADVICE, diagnose
from localw2.judging.seen_rows import SeenRowsWarning


def calibrated(seed, n=300):
    """x (n, 2), y (n,) and draws (60, n) of one law, whose mean and SD change with x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    mean, std = 2 * x[:, 0], 0.5 + 0.4 * np.abs(x[:, 1])
    return x, mean + std * rng.normal(size=n), mean + std * rng.normal(size=(60, n))


@pytest.mark.parametrize("n_samples", [20, 60])
def test_a_wrong_spread_is_not_called_a_wrong_mean(n_samples):
    named = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, y = rng.uniform(-1, 1, (600, 2)), rng.normal(size=600)
        found = diagnose(x, y, 0.6 * rng.normal(size=(n_samples, 600)), random_state=seed)
        kinds = {kind for kind, _ in found.failures}
        assert "narrow" in kinds
        named.append(len(kinds) > 1)
    # By Holm at the observed spread a chance of at most about .05 each; 19 of 20 before.
    assert sum(named) <= binom.ppf(0.999, 20, 0.05)
    # A mean that is off as well is named.
    both = diagnose(x, y, 0.3 + 0.6 * rng.normal(size=(n_samples, 600)), random_state=0)
    assert {kind for kind, _ in both.failures} == {"narrow", "below"}
    assert {ADVICE["narrow"], ADVICE["below"]} <= {*both.verdict}


def test_wrong_outputs_are_not_called_wrong_dependence():
    rng = np.random.default_rng(0)
    x, common = rng.uniform(size=400), rng.normal(size=400)
    y = np.column_stack([common + rng.normal(size=400), common + rng.normal(size=400), rng.normal(size=400)])
    draws = rng.normal(size=(60, 400, 3)) * [np.sqrt(2), np.sqrt(2), 1.0]
    assert [kind for kind, _ in diagnose(x, y, draws, random_state=0).failures] == ["dependence"]
    shifted = diagnose(x, y, draws + np.array([1.0, 1.0, 0.0]), random_state=0)
    assert shifted.dependence[0].adjusted < 1e-3
    assert {kind for kind, _ in shifted.failures} == {"below"}
    assert "cannot be judged" in repr(shifted)
    assert ADVICE["dependence"] not in shifted.verdict
    elsewhere = diagnose(x, y, draws + np.array([0.0, 0.0, 1.0]), random_state=0)
    assert {kind for kind, _ in elsewhere.failures} == {"below", "dependence"}


def test_an_error_in_some_rows_only_is_called_that_and_its_rows_are_counted():
    rng = np.random.default_rng(0)
    kind = (np.arange(500) < 9).astype(float)[:, None]
    y, draws = rng.normal(size=500), rng.normal(size=(60, 500))
    some = diagnose(kind, y * np.where(kind[:, 0] == 1, 9, 1), draws, names=["kind"], random_state=0)
    assert some.verdict[0].startswith(
        "Not calibrated in some regions. The draws are too narrow where kind is 1 (9 rows): y"
    )
    everywhere = diagnose(kind, 2 * y, draws, names=["kind"], random_state=0)
    assert everywhere.verdict[0].startswith("Not calibrated. The draws are too narrow: y")


def test_regions_of_many_draws_do_not_know_y():
    rng = np.random.default_rng(0)
    y, draws = rng.normal(size=(2000, 1)), rng.normal(size=(60, 2000, 1))
    rows = RowStatistics.of(y, draws, [], np.random.default_rng(1))
    moved = RowStatistics.of(y + 9, draws, [], np.random.default_rng(1))
    for name in ("centre", "width"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(moved, name))
    # Made of the very draws that y is compared with, they would know where it lies among them.
    for values in (rows.centre[:, 0], rows.width[:, 0]):
        for region in cut_regions(values, 4):
            assert kstest(rows.pit[region, 0], "uniform").pvalue > 1e-4
    ascending = RowStatistics.of(y, np.sort(draws, axis=0), [], np.random.default_rng(1))
    assert kstest(ascending.pit[:, 0], "uniform").pvalue > 1e-3


def test_the_usual_one_per_cent_of_sparse_rows_is_no_finding():
    x, y, draws = calibrated(0)
    usual = diagnose(x, y, draws, random_state=0)
    assert usual.sparse.sum() == 3
    assert "of 300 rows" not in repr(usual)
    assert "3 of 300 rows" in repr(
        diagnose(x, y, draws, delta=usual.delta, norm=Weighted(1 / x.std(0)), random_state=0)
    )
    far = np.r_[x[:280], 5 * x[280:]]
    apart = diagnose(far, y, draws, x_train=np.random.default_rng(1).uniform(-1, 1, (900, 2)), random_state=0)
    assert f"{apart.sparse.sum()} of 300 rows" in repr(apart)


def test_training_rows_are_noticed():
    x, y, draws = calibrated(0)
    with pytest.warns(SeenRowsWarning, match="100 %"):
        diagnose(x, y, draws, x_train=x, y_train=y, random_state=0)
    new = np.random.default_rng(1).normal(size=300)
    with pytest.warns(SeenRowsWarning, match="10 %"):
        diagnose(x, y, draws, x_train=np.r_[x[:30], x + 2], y_train=np.r_[y[:30], new], random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnose(x, y, draws, x_train=x, y_train=new, random_state=0)
        coins = (new > 0) * 1.0  # two values of x and of y meet in other rows by chance
        diagnose(coins, coins, np.tile([[0.0], [1.0]], 300), x_train=coins, y_train=coins, random_state=0)


def region(by, shift=0.0, spread=1.0):
    return Group(0, by, 0.663, 2.11, 100, shift, spread, (), {}, {})


@pytest.mark.parametrize("by", ["all rows", "x2", "predicted SD"])
@pytest.mark.parametrize(
    ("test", "error", "kind", "words"),
    [
        ("spread", {"spread": 1.8}, "narrow", ("narrow", "1.8 times")),
        ("spread", {"spread": 0.7}, "wide", ("wide", "0.7 times")),
        ("shift", {"shift": 0.4}, "above", ("above", "0.4 SD")),
        ("shift", {"shift": -0.4}, "below", ("below", "0.4 SD")),
    ],
)
def test_a_finding_names_the_error_its_size_the_place_and_the_output(by, test, error, kind, words):
    found, sentence = region(by, **error).describe(test, " of output 1")
    assert found == kind
    assert all(word in sentence for word in (*words, "output 1"))
    assert (f"{by} is in [0.663, 2.11]" in sentence) == (by != "all rows")


def test_every_kind_of_failure_has_advice():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=2000), rng.normal(size=2000)
    draws = rng.normal(size=(60, 2000))
    kinds = {
        "narrow": (y, 0.6 * draws),
        "wide": (y, 1.6 * draws),
        "above": (y, draws - 0.5),
        "below": (y, draws + 0.5),
        "shape": (np.sqrt(3) * rng.uniform(-1, 1, 2000), draws),
        "merged": (rng.choice([-1.0, 1.0], 2000) + 0.1 * y, draws),
        "split": (y, rng.choice([-1.0, 1.0], draws.shape) + 0.1 * draws),
    }
    for kind, (observed, drawn) in kinds.items():
        found = diagnose(x, observed, drawn, random_state=0)
        assert found.failures[0][0] == kind
        assert found.verdict[0].startswith("Not calibrated")
        assert ADVICE[kind] in found.verdict


def test_training_rows_are_judged_without_advice_and_without_a_yes():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 300))
    draws = 0.5 * rng.normal(size=(60, 300))
    with pytest.warns(SeenRowsWarning, match="240 of these 300 rows"):
        found = diagnose(x, y, draws, x_train=x[:240], y_train=y[:240], random_state=0)
    assert found.training_share == pytest.approx(0.8)
    assert any("240 of these 300 rows (80 %)" in line for line in found.verdict)
    assert not set(found.verdict) & set(ADVICE.values())
    assert found.to_dict()["calibrated"] is None
    new = diagnose(x[240:], y[240:], draws[:, 240:], x_train=x[:240], y_train=y[:240], random_state=0)
    assert new.training_share == 0
    assert set(new.verdict) & set(ADVICE.values())
    assert new.to_dict()["calibrated"] is False
    with pytest.warns(SeenRowsWarning):
        right = diagnose(x, y, 2 * draws, x_train=x[:240], y_train=y[:240], random_state=0)
    assert right.verdict[0] == "No error shows in these 300 rows, which says little of new ones."
    assert not any("Calibrated" in line for line in right.verdict)
