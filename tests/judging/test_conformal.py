"""Central sets of draws and their calibration: levels, nestedness, the finite-sample law, joint boxes."""

import warnings

import numpy as np
import pytest
from scipy import stats

from localw2.judging.conformal import (
    Calibration,
    central_interval,
    central_scores,
    joint_level,
    joint_threshold,
    threshold,
)


def draws_of(n=40, d=2, size=101, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_t(4, size=(size, n, d)) * rng.lognormal(size=(n, d)) + rng.normal(size=(n, d))


def brute_force_score(y, draws):
    """The smallest level of a fine grid whose quantiles, as numpy has them, enclose y."""
    levels = np.linspace(0, 1, 4001)
    lower, upper = (np.quantile(draws, (1 + sign * levels) / 2) for sign in (-1, 1))
    return levels[np.argmax((lower <= y) & (y <= upper))]


class TestScores:
    def test_is_the_smallest_central_interval_of_quantiles(self):
        draws = draws_of()
        y = np.quantile(draws, 0.5, axis=0) + 0.8 * draws.std(0) * np.random.default_rng(1).uniform(
            -1, 1, (40, 2)
        )
        inside = (draws.min(0) < y) & (y < draws.max(0))
        assert inside.mean() > 0.9
        found = central_scores(y, draws)
        for i, k in np.argwhere(inside):
            assert found[i, k] == pytest.approx(brute_force_score(y[i, k], draws[:, i, k]), abs=1 / 4000)

    @pytest.mark.parametrize("level", [0.0, 0.123, 0.5, 0.9, 1.0])
    def test_up_to_1_the_ends_are_quantiles(self, level):
        draws = draws_of()
        ends = central_interval(draws, level)
        for end, sign in zip(ends, (-1, 1), strict=True):
            np.testing.assert_allclose(end, np.quantile(draws, (1 + sign * level) / 2, axis=0), atol=1e-9)

    def test_score_and_interval_are_inverse(self):
        """y is in the set of a level exactly if its score is at most that level, beyond the draws too."""
        draws = draws_of(200)
        rng = np.random.default_rng(2)
        y = draws.mean(0) + 3 * draws.std(0) * rng.standard_t(3, size=(200, 2))
        scores = central_scores(y, draws)
        assert (scores > 1).sum() > 20
        lower, upper = central_interval(draws, scores)
        assert ((lower <= y) & (y <= upper)).all()
        lower, upper = central_interval(draws, scores * (1 - 1e-6))
        assert not ((lower <= y) & (y <= upper))[scores > 1e-3].any()

    def test_sets_are_nested_and_continuous(self):
        draws = draws_of(30)
        levels = np.linspace(0, 3, 301)
        lower, upper = np.array([central_interval(draws, level) for level in levels]).transpose(1, 0, 2, 3)
        assert (np.diff(upper, axis=0) >= 0).all()
        assert (np.diff(lower, axis=0) <= 0).all()
        width = draws.max(0) - draws.min(0)
        np.testing.assert_allclose(upper[-1] - draws.max(0), 2 * width, rtol=1e-9)
        assert (np.diff(upper, axis=0) <= 0.5 * width).all()

    @pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (-3.0, 5.0), (2.0, 1e6)])
    def test_units_do_not_matter(self, scale, shift):
        draws, rng = draws_of(), np.random.default_rng(3)
        y = draws[0] + 5 * rng.normal(size=(40, 2))
        changed = central_scores(scale * y + shift, scale * draws + shift)
        np.testing.assert_allclose(changed, central_scores(y, draws), rtol=1e-6, atol=1e-6)
        ends = central_interval(draws, 1.2)
        there = central_interval(scale * draws + shift, 1.2)
        np.testing.assert_allclose(
            there[:: 1 if scale > 0 else -1], scale * np.array(ends) + shift, rtol=1e-6
        )

    def test_the_order_of_draws_does_not_matter(self):
        draws, y = draws_of(), draws_of(size=2)[0]
        np.testing.assert_array_equal(central_scores(y, draws), central_scores(y, draws[::-1]))

    def test_atoms(self):
        """Draws on few values: the smallest level that holds the atom, by enumeration."""
        draws = np.repeat([0.0, 1.0, 2.0], [2, 5, 3])[:, None]
        found = [float(central_scores([v], draws)[0]) for v in (0.0, 1.0, 2.0)]
        # Positions 0..9: the value 0 ends at 1, 1 fills 2..6 and with it the middle 4.5, 2 begins at 7.
        assert found == pytest.approx([1 - 2 / 9, 0.0, 2 * 7 / 9 - 1])

    def test_draws_without_spread(self):
        draws = np.full((5, 3), 7.0)
        scores = central_scores([7.0, np.nextafter(7.0, 8.0), 8.0], draws)
        assert scores[0] == 0
        assert 1 < scores[1] < 2
        assert 1e10 < scores[2] < np.inf
        lower, upper = central_interval(draws, scores)
        assert (lower <= [7.0, 7.0, 8.0]).all()
        assert (upper >= [7.0, np.nextafter(7.0, 8.0), 8.0]).all()
        assert np.isfinite(central_scores([1e90], np.zeros((4, 1)))).all()
        assert np.isinf(central_interval(draws, np.inf)).all()


class TestThreshold:
    @pytest.mark.parametrize(("n", "coverage"), [(19, 0.9), (20, 0.9), (37, 0.5), (99, 0.95), (10, 0.9)])
    def test_coverage_has_its_exact_law(self, n, coverage):
        """Given the rows, coverage of uniform scores is Beta(k, n + 1 - k), with mean k / (n + 1)."""
        rng, runs = np.random.default_rng(n), 4000
        k = int(np.ceil(round((n + 1) * coverage, 9)))
        found = threshold(rng.random((n, runs)), coverage)
        assert stats.kstest(found, stats.beta(k, n + 1 - k).cdf).pvalue > 1e-3
        assert k / (n + 1) >= coverage

    def test_exchangeable_rows_are_covered(self):
        """The whole chain, with a model that is badly wrong: 2000 runs of 30 rows and a new one."""
        rng, runs, n = np.random.default_rng(0), 2000, 30
        draws = 0.3 * rng.standard_t(3, size=(50, runs * (n + 1))) + 1.0
        y = rng.normal(size=runs * (n + 1))
        scores = central_scores(y, draws).reshape(runs, n + 1)
        covered = scores[:, n] <= threshold(scores[:, :n].T, 0.8)
        expected = np.ceil(31 * 0.8) / 31
        assert abs(covered.mean() - expected) < 3.3 * np.sqrt(expected * (1 - expected) / runs)

    def test_ties_only_add_coverage(self):
        rng = np.random.default_rng(1)
        scores = rng.integers(0, 3, size=(21, 20000)) / 2
        assert (scores[20] <= threshold(scores[:20], 0.7)).mean() >= 0.7

    def test_rises_with_coverage(self):
        scores = np.random.default_rng(0).random((50, 3))
        levels = [threshold(scores, c) for c in (0.1, 0.5, 0.9, 0.98)]
        assert (np.diff(levels, axis=0) >= 0).all()
        joint = [joint_threshold(scores, c) for c in (0.1, 0.5, 0.8, 0.9)]
        assert (np.diff(joint, axis=0) >= 0).all()

    @pytest.mark.parametrize(("n", "coverage", "enough"), [(8, 0.9, 9), (98, 0.99, 99), (3, 0.8, 4)])
    def test_too_few_rows(self, n, coverage, enough):
        scores = np.arange(1.0, n + 1)
        with pytest.warns(UserWarning, match=f"{n} calibration rows .* {enough} rows"):
            assert threshold(scores, coverage) == n
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            threshold(np.arange(1.0, enough + 1), coverage)


class TestJoint:
    @pytest.mark.parametrize("correlation", [0.0, 0.95, -0.95])
    @pytest.mark.parametrize("n", [40, 100])
    def test_covers_all_outputs_together(self, n, correlation):
        """At least the coverage, and not more than the two ranks that it may lose."""
        rng, runs, coverage = np.random.default_rng(n), 3000, 0.8
        normal = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], size=(runs, n + 1))
        scores = np.abs(normal) * [1.0, 100.0]
        covered = [(row[n] <= joint_threshold(row[:n], coverage)).all() for row in scores]
        error = 3.3 * np.sqrt(coverage * (1 - coverage) / runs)
        assert coverage - error < np.mean(covered) < coverage + 4 / (n + 1) + error

    def test_is_exact_for_every_order_of_few_rows(self):
        """Each of 5 rows as the new one: exchangeability asks for a share k / (n + 1) in every table."""
        rng = np.random.default_rng(0)
        for _ in range(200):
            table = rng.integers(0, 6, size=(5, 2)).astype(float)  # with ties
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                hits = [(table[i] <= joint_threshold(np.delete(table, i, 0), 0.4)).all() for i in range(5)]
            assert np.mean(hits) >= 0.4

    def test_outputs_share_the_misses(self):
        """One output's spread is far too small, the other's too large: both miss alike."""
        rng = np.random.default_rng(1)
        scores = np.abs(rng.normal(size=(4000, 2))) * [0.1, 10.0]
        levels = joint_threshold(scores, 0.9)
        misses = (np.abs(rng.normal(size=(40000, 2))) * [0.1, 10.0] > levels).mean(0)
        np.testing.assert_allclose(misses, 1 - np.sqrt(0.9), atol=0.012)

    def test_is_no_smaller_than_the_marginal_one(self):
        rng = np.random.default_rng(2)
        for _ in range(50):
            scores = rng.integers(0, 15, size=(60, 3)).astype(float)
            assert (joint_threshold(scores, 0.8) >= threshold(scores, 0.8)).all()
        one = rng.random((60, 1))
        np.testing.assert_array_equal(joint_threshold(one, 0.8), threshold(one, 0.8))

    @pytest.mark.parametrize(("d", "coverage"), [(2, 0.9), (5, 0.95), (3, 0.5)])
    def test_the_rows_it_asks_for_are_enough(self, d, coverage):
        rng = np.random.default_rng(3)
        enough = int(np.ceil((d + 1 + coverage) / (1 - coverage)))
        with pytest.warns(UserWarning, match=f"2 calibration rows .* {enough} rows") as told:
            joint_threshold(rng.random((2, d)), coverage)
        assert len(told) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # The worst case: each output's largest score is another row's.
            joint_threshold(np.stack([np.roll(np.arange(float(enough)), k) for k in range(d)], 1), coverage)

    @pytest.mark.parametrize("correlation", [0.0, 0.9])
    def test_box_of_draws_holds_that_share_of_them(self, correlation):
        rng = np.random.default_rng(4)
        draws = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], size=(1000, 3))
        level = joint_level(draws, 0.9)
        lower, upper = central_interval(draws, level[:, None])
        held = ((lower <= draws) & (draws <= upper)).all(-1).mean(0)
        assert (held >= 0.9).all()
        assert (held <= 0.905).all()
        # What the normal law says of the common level of both outputs.
        fresh = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], size=200_000)
        exact = np.quantile(2 * stats.norm.cdf(np.abs(fresh)).max(1) - 1, 0.9)
        np.testing.assert_allclose(level, exact, atol=0.015)


class TestCalibration:
    def test_holds_its_own_scores(self):
        scores = np.random.default_rng(0).random((50, 2))
        calibration = Calibration(scores, "cv")
        before = calibration.levels(0.9)
        scores[:] = 0
        np.testing.assert_array_equal(calibration.levels(0.9), before)
        with pytest.raises(ValueError, match="read-only"):
            calibration.scores[0] = 1
        assert repr(calibration) == "Calibration(50 rows, kind='cv')"
        assert (calibration.levels(0.9, joint=True) > before).all()

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda: Calibration(np.zeros(3), "split"), "shape"),
            (lambda: Calibration(np.zeros((3, 1)), "whole"), "kind"),
            (lambda: Calibration(-np.ones((3, 1)), "split"), "negative"),
            (lambda: Calibration(np.full((3, 1), np.inf), "split"), "infinite"),
            (lambda: threshold([0.1, 0.2], 1.0), "coverage"),
            (lambda: threshold(np.zeros((2, 2, 2)), 0.5), "shape"),
            (lambda: threshold([], 0.5), "empty"),
            (lambda: central_scores([1.0, 2.0], np.zeros((5, 3))), r"\(S, 2\)"),
            (lambda: central_scores([1.0], np.zeros((1, 1))), "at least 2"),
            (lambda: central_scores([np.nan], np.zeros((2, 1))), "NaN"),
            (lambda: central_interval(np.zeros(5), 0.5), "shape"),
            (lambda: central_interval(np.zeros((5, 1)), -0.1), "not >= 0"),
            (lambda: central_interval(np.zeros((5, 1)), np.nan), "not >= 0"),
            (lambda: joint_level(np.zeros((5, 2)), 0.9), "outputs"),
            (lambda: joint_threshold(np.zeros((30, 2)), "0.9"), "probability"),
        ],
    )
    def test_bad_input(self, call, words):
        with pytest.raises(ValueError, match=words):
            call()
