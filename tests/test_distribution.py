"""Distributions: answers that agree with each other, with numpy's quantiles and with scipy's laws."""

import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from localw2 import Distribution, distribution
from localw2.distribution import DrawsDistribution, NormalDistribution

RNG = np.random.default_rng(0)
KINKED = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 5.0])  # draws with atoms at 0 and 2


def rounded_draws(seed, n_draws, n, digits):
    """Draws (S, N), of which many are equal if there are few digits."""
    return np.random.default_rng(seed).normal(size=(n_draws, n)).round(digits)


problems = st.builds(
    rounded_draws, st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 4), st.integers(0, 6)
)
levels = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(np.array)


def follow(law, drawn, n_steps=200):
    """The p-value of draws (n,) of a law with atoms or without: chi-squared of cells between quantiles."""
    edges = np.unique(law.ppf(np.linspace(0, 1, n_steps + 1)))
    shares = np.diff(law.cdf(edges), prepend=0)
    counts = np.diff(np.searchsorted(np.sort(drawn), edges, side="right"), prepend=0)
    assert counts.sum() == len(drawn)
    assert counts[shares == 0].sum() == 0
    return stats.chisquare(counts[shares > 0], len(drawn) * shares[shares > 0]).pvalue


class TestDraws:
    @settings(deadline=None, derandomize=True)
    @given(problems, levels, st.booleans())
    def test_quantiles_are_numpys_to_the_last_digit(self, draws, q, discrete):
        law = DrawsDistribution.of(draws, discrete=discrete)
        method = "inverted_cdf" if discrete else "linear"
        np.testing.assert_array_equal(law.ppf(q[:, None]), np.quantile(draws, q, axis=0, method=method))

    @settings(deadline=None, derandomize=True)
    @given(problems, levels, st.booleans())
    def test_cdf_and_ppf_are_inverse_to_each_other(self, draws, q, discrete):
        """cdf(ppf(q)) >= q and ppf(cdf(v)) <= v, with equality where the law has no atom and no gap."""
        law = DrawsDistribution.of(draws, discrete=discrete)
        at = law.ppf(q[:, None])
        found = law.cdf(at)
        slack = 1e-9  # the rounding of a value, over the smallest gap between draws of 6 digits
        exact = np.abs(found - q[:, None]) <= slack
        assert (found >= q[:, None] - slack).all()
        assert exact[law.pmf(at) == 0].all()
        inside = (found > 0) & (found < 1)
        back = law.ppf(found)
        assert (back <= at + 1e-9).all()
        if not discrete:
            np.testing.assert_allclose(back[inside], at[inside], atol=1e-9)

    def test_cdf_of_spaced_draws_is_exact(self):
        law = DrawsDistribution.of(np.sort(RNG.permutation(2000) + RNG.uniform(0, 0.5, 2000))[:, None])
        q = np.linspace(0, 1, 7777)
        np.testing.assert_allclose(law.cdf(law.ppf(q[:, None])), q[:, None], atol=1e-13)

    def test_the_cdf_jumps_at_atoms_and_is_linear_between_draws(self):
        law = DrawsDistribution.of(KINKED[:, None])[0]
        v = np.array([-np.inf, -1e-9, 0.0, 0.5, 1.0, 1.5, 2.0, 3.5, 5.0, 6.0, np.inf])
        expected = np.array([0, 0, 2, 2.5, 3, 3.5, 5, 5.5, 6, 6, 6]) / 6
        np.testing.assert_allclose(law.cdf(v), expected, atol=1e-15)
        np.testing.assert_allclose(law.sf(v), 1 - expected, atol=1e-15)
        np.testing.assert_allclose(law.pmf(v), np.array([0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]) / 6)
        # What the jump skips, the quantile does not leave.
        np.testing.assert_allclose(law.ppf([0.0, 0.3, 2 / 6, 4.5 / 6, 1.0]), [0, 0, 0, 2, 5], atol=1e-12)

    def test_a_continuous_law_is_scipys_histogram(self):
        """Between neighbouring draws lies the same probability: a histogram with unequal bins."""
        draws = RNG.gamma(2.0, size=200)
        edges = np.sort(draws)
        peer = stats.rv_histogram((np.ones(199), edges), density=False)
        law = DrawsDistribution.of(draws[:, None])[0]
        v, q = np.linspace(-1, 9, 501), np.linspace(0.001, 0.999, 501)
        np.testing.assert_allclose(law.cdf(v), peer.cdf(v), atol=1e-12)
        np.testing.assert_allclose(law.ppf(q), peer.ppf(q), rtol=1e-12)
        # The moments are those of the draws; those of the histogram differ by its ends' half steps.
        np.testing.assert_allclose(law.mean(), draws.mean(), rtol=1e-12)
        np.testing.assert_allclose(law.mean(), peer.mean(), rtol=0.02)
        np.testing.assert_allclose(law.std(), draws.std(), rtol=1e-12)

    def test_a_discrete_law_is_scipys_ecdf(self):
        draws = RNG.poisson(2.0, size=300).astype(float)
        law, peer = DrawsDistribution.of(draws[:, None], discrete=True)[0], stats.ecdf(draws)
        v = np.arange(-1, 10, 0.5)
        np.testing.assert_allclose(law.cdf(v), peer.cdf.evaluate(v), atol=1e-15)
        np.testing.assert_allclose(law.sf(v), peer.sf.evaluate(v), atol=1e-15)
        counts = np.array([(draws == one).mean() for one in v])
        np.testing.assert_allclose(law.pmf(v), counts, atol=1e-15)
        assert law.pmf(np.arange(30)).sum() == pytest.approx(1)
        with pytest.raises(ValueError, match="pmf"):
            law.pdf(1.0)

    def test_random_draws_follow_the_cdf(self):
        """Kolmogorov-Smirnov where the law is continuous, chi-squared where it has atoms; 1e5 draws."""
        draws = np.column_stack([RNG.normal(size=2000), np.maximum(0, RNG.normal(size=2000))])
        law = DrawsDistribution.of(draws)
        drawn = law.rvs(100_000, random_state=1)
        assert drawn.shape == (100_000, 2)
        assert stats.kstest(drawn[:, 0], law[0].cdf).pvalue > 0.01
        assert follow(law[1], drawn[:, 1]) > 0.01
        assert abs((drawn[:, 1] == 0).mean() - law[1].pmf(0)) < 4 * np.sqrt(0.25 / 1e5)
        assert abs(np.corrcoef(drawn.T)[0, 1]) < 4 / np.sqrt(1e5)  # rows are independent
        counts = DrawsDistribution.of(RNG.poisson(1.0, (2000, 1)).astype(float), discrete=True)[0]
        assert follow(counts, counts.rvs(100_000, random_state=2)) > 0.01
        np.testing.assert_array_equal(law.rvs(3, random_state=5), law.rvs(3, random_state=5))
        assert law.rvs(random_state=0).shape == (2,)
        assert np.ndim(law[0].rvs(random_state=0)) == 0

    def test_outputs_of_a_row_are_drawn_together(self):
        x = RNG.normal(size=(2000, 2))
        draws = np.stack([x, x**3 + 0.1 * RNG.normal(size=(2000, 2)), RNG.normal(size=(2000, 2))], axis=2)
        law = DrawsDistribution.of(draws)
        assert law.shape == (2, 3)
        drawn = law.rvs(100_000, random_state=0)
        for k in range(3):
            assert stats.kstest(drawn[:, 1, k], law[1, k].cdf).pvalue > 0.01
        found = stats.spearmanr(drawn[:, 1]).statistic
        np.testing.assert_allclose(found, stats.spearmanr(draws[:, 1]).statistic, atol=4 / np.sqrt(1e5))
        assert abs(stats.spearmanr(drawn[:, 0, 0], drawn[:, 1, 0]).statistic) < 4 / np.sqrt(1e5)

    @pytest.mark.parametrize(
        ("draws", "lower", "upper"),
        [
            (RNG.normal(size=2000), -np.inf, np.inf),
            (RNG.exponential(size=2000), 0.0, np.inf),
            (RNG.beta(0.7, 0.8, size=2000), 0.0, 1.0),
            (np.maximum(0, RNG.normal(size=2000)), 0.0, np.inf),
            (RNG.choice(RNG.normal(size=50), 2000), -np.inf, np.inf),
            (1e6 + 1e-3 * RNG.normal(size=2000), -np.inf, np.inf),
            (np.append(np.zeros(1999), 1.0), 0.0, 1.0),
        ],
        ids=["normal", "exponential", "beta", "censored", "few rows", "far away", "nearly constant"],
    )
    def test_the_density_integrates_to_one_within_the_bounds(self, draws, lower, upper):
        law = DrawsDistribution.of(draws[:, None], lower, upper)[0]
        low, high = max(lower, draws.min() - np.ptp(draws)), min(upper, draws.max() + np.ptp(draws))
        v = np.linspace(low, high, 400_001)
        density = law.pdf(v)
        assert (density >= 0).all()
        assert integrate.trapezoid(density, v) == pytest.approx(1, abs=2e-3)
        assert law.pdf(np.array([low - 1, high + 1])).tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("draws", "truth", "lower", "farthest"),
        [
            (RNG.normal(size=2000), stats.norm.pdf, -np.inf, 0.05),
            (RNG.exponential(size=2000), stats.expon.pdf, 0.0, 0.05),
            (
                np.where(RNG.random(2000) < 0.5, -3, 3) + 0.5 * RNG.normal(size=2000),
                lambda v: (stats.norm.pdf(v, -3, 0.5) + stats.norm.pdf(v, 3, 0.5)) / 2,
                -np.inf,
                0.06,
            ),
        ],
        ids=["normal", "exponential", "two modes"],
    )
    def test_the_density_is_near_the_true_one(self, draws, truth, lower, farthest):
        """Total variation, of which 2000 draws leave .03. Silverman's rule has .2 for the two modes."""
        law = DrawsDistribution.of(draws[:, None], lower)[0]
        v = np.linspace(max(lower, -8), 12, 20_001)
        assert integrate.trapezoid(np.abs(law.pdf(v) - truth(v)), v) / 2 < farthest

    def test_a_law_without_spread(self):
        law = DrawsDistribution.of(np.full((5, 1), 3.0))[0]
        np.testing.assert_array_equal(law.cdf([2.9, 3.0, 3.1]), [0, 1, 1])
        np.testing.assert_array_equal(law.ppf([0.0, 0.5, 1.0]), [3, 3, 3])
        np.testing.assert_array_equal(law.pdf([2.9, 3.0]), [0, np.inf])
        assert (law.pmf(3.0), law.std(), law.rvs(random_state=0)) == (1, 0, 3)

    def test_more_rows_than_are_kept_give_the_same_answers(self, monkeypatch):
        draws = RNG.normal(size=(50, 30, 2))
        whole = DrawsDistribution.of(draws)
        monkeypatch.setattr(distribution, "KEPT_BYTES", 50 * 2 * 9 * 3)
        monkeypatch.setattr(distribution, "_AT_A_TIME", 50 * 7)
        part = DrawsDistribution.of(draws)
        assert whole.kept is not None
        assert part.kept is None
        v = np.array([-1.0, 0.0, 2.0])[:, None, None]
        for name in ("cdf", "sf", "pdf", "pmf"):
            np.testing.assert_array_equal(getattr(part, name)(v), getattr(whole, name)(v))
        np.testing.assert_array_equal(part.ppf(0.3), whole.ppf(0.3))
        np.testing.assert_array_equal(part.rvs(4, random_state=0), whole.rvs(4, random_state=0))
        np.testing.assert_allclose(part.mean(), whole.mean())
        np.testing.assert_array_equal(part[4:6].cdf(0.1), whole.cdf(0.1)[4:6])
        assert part[4:6].kept is not None  # few rows are

    def test_the_draws_that_were_given_are_left_alone(self):
        draws = RNG.normal(size=(30, 1)).astype(np.float32)
        before = draws.copy()
        law = DrawsDistribution.of(draws)
        np.testing.assert_array_equal(draws, before)
        assert law.ppf(0.5).dtype == np.float64
        np.testing.assert_array_equal(law.ppf(0.5), np.quantile(draws.astype(np.float64), [0.5], axis=0)[0])


class TestNormal:
    mean, std = np.array([0.0, -3.0, 1e6]), np.array([1.0, 0.2, 5.0])

    def test_everything_is_scipys(self):
        law, peer = NormalDistribution(self.mean, self.std), stats.norm(self.mean, self.std)
        v = self.mean + self.std * np.linspace(-40, 9, 25)[:, None]
        for name in ("cdf", "sf", "pdf"):
            np.testing.assert_allclose(getattr(law, name)(v), getattr(peer, name)(v), rtol=1e-9, atol=0)
        q = np.linspace(0, 1, 11)[:, None]
        np.testing.assert_allclose(law.ppf(q), peer.ppf(q), rtol=1e-12)
        np.testing.assert_allclose(law.interval(0.8), peer.interval(0.8), rtol=1e-12)
        for name in ("mean", "std", "var"):
            np.testing.assert_array_equal(getattr(law, name)(), getattr(peer, name)())
        assert law.pmf(v).max() == 0
        drawn = law.rvs(100_000, random_state=0)
        for i in range(3):
            assert stats.kstest(drawn[:, i], law[i].cdf).pvalue > 0.01
        inner = v[np.abs(v - self.mean).max(1) < 6 * self.std.min()]
        np.testing.assert_allclose(law.ppf(law.cdf(inner)), inner, rtol=1e-9)

    def test_without_spread_it_is_an_atom(self):
        law = NormalDistribution([0.0, 2.0], [1.0, 0.0])
        np.testing.assert_array_equal(law.cdf([[2.0], [1.9], [np.inf]])[:, 1], [1, 0, 1])
        np.testing.assert_array_equal(law.sf(2.0)[1], 0)
        np.testing.assert_array_equal(law.ppf([[0.0], [0.4], [1.0]])[:, 1], [2, 2, 2])
        np.testing.assert_array_equal(law.pmf(2.0), [0, 1])
        np.testing.assert_array_equal(law.pdf([[1.0], [2.0]])[:, 1], [0, np.inf])

    @pytest.mark.parametrize(
        ("mean", "std"),
        [
            ([0.0], [1.0, 2.0]),
            ([0.0], [-1.0]),
            ([[0.0]], [[1.0]]),
            ([np.nan], [1.0]),
            ([0.0], [np.nan]),
            ([0.0], [np.inf]),
            ([np.inf], [1.0]),
            (["wide"], [1.0]),
        ],
    )
    def test_wrong_parameters(self, mean, std):
        with pytest.raises(ValueError, match="std"):
            NormalDistribution(mean, std)


LAWS = [
    NormalDistribution(np.arange(4.0), np.arange(1.0, 5.0)),
    DrawsDistribution.of(np.random.default_rng(1).normal(size=(50, 4))),
    DrawsDistribution.of(np.random.default_rng(2).normal(size=(50, 4, 3))),
    DrawsDistribution.of(np.random.default_rng(3).normal(size=(50, 4, 3, 2))),
]


@pytest.mark.parametrize("law", LAWS, ids=["normal", "one output", "outputs", "trajectories"])
class TestEveryDistribution:
    def test_answers_have_the_shape_of_numpys_broadcasting(self, law):
        assert isinstance(law, Distribution)
        assert len(law) == 4
        for name in ("cdf", "sf", "ppf", "pdf", "pmf"):
            ask = getattr(law, name)
            assert ask(0.3).shape == law.shape
            assert ask(np.full(law.shape, 0.3)).shape == law.shape
            assert ask(np.full((5,) + (1,) * len(law.shape), 0.3)).shape == (5, *law.shape)
            assert ask(np.full((2, 5, *law.shape), 0.3)).shape == (2, 5, *law.shape)
        assert law.mean().shape == law.std().shape == law.var().shape == law.shape
        np.testing.assert_allclose(law.std() ** 2, law.var())
        assert law.rvs(7, random_state=0).shape == (7, *law.shape)

    def test_values_of_each_row_are_asked_of_that_row(self, law):
        v = np.random.default_rng(0).normal(size=law.shape)
        whole = law.cdf(v)
        for place in np.ndindex(law.shape):
            assert law[place].cdf(v[place]) == whole[place]
            assert law[place].shape == ()

    def test_indices_are_numpys(self, law):
        median = law.ppf(0.4)
        keys = [1, -1, slice(1, 3), [2, 0], np.array([True, False, True, False]), slice(0, 0), Ellipsis]
        keys += [(slice(None), *[0] * (median.ndim - 1)), (Ellipsis, 1), np.int64(2), [0, 0], []]
        keys += [(slice(None), [1, 0])] if median.ndim > 1 else []
        keys += [(2, slice(None), 1), (slice(1, 3), -1)] if median.ndim > 2 else []
        for key in keys:
            part = law[key]
            assert part.shape == median[key].shape
            np.testing.assert_array_equal(part.ppf(0.4), median[key])
            np.testing.assert_array_equal(part.mean(), law.mean()[key])
        assert [one.shape for one in law] == [law.shape[1:]] * 4

    @pytest.mark.parametrize("key", [4, (0,) * 4, None, 0.5, "a", [[0, 1]], (Ellipsis, Ellipsis)])
    def test_other_indices_are_errors(self, law, key):
        if key != (0,) * 4 or len(law.shape) < 4:
            with pytest.raises(IndexError):
                law[key]

    def test_monotone_and_within_zero_and_one(self, law):
        v = np.linspace(-20, 20, 301).reshape(-1, *[1] * len(law.shape))
        cdf = law.cdf(v)
        assert (np.diff(cdf, axis=0) >= 0).all()
        assert cdf.min() >= 0
        assert cdf.max() <= 1
        np.testing.assert_allclose(cdf + law.sf(v), 1)
        low, high = law.interval(0.6)
        assert (low <= high).all()
        np.testing.assert_array_equal(low, law.ppf(0.2))

    def test_wrong_values_are_refused_with_words(self, law):
        with pytest.raises(ValueError, match=r"v\[:, None"):
            law.cdf(np.zeros(7))
        with pytest.raises(ValueError, match="NaN"):
            law.sf(np.nan)
        with pytest.raises(ValueError, match="numbers"):
            law.cdf("much")
        for q in (-0.1, 1.1):
            with pytest.raises(ValueError, match="from 0 to 1"):
                law.ppf(q)
        with pytest.raises(ValueError, match="confidence"):
            law.interval(90)
        with pytest.raises(ValueError, match="size"):
            law.rvs(0)
        with pytest.raises(ValueError, match="random_state"):
            law.rvs(2, random_state="new")

    def test_nothing_can_be_changed_from_outside(self, law):
        before = law.mean()
        law.mean()[:] = 0
        law.var()[:] = 0
        np.testing.assert_array_equal(law.mean(), before)

    def test_it_is_printed_in_short_and_pickled(self, law):
        assert repr(law).startswith(f"{type(law).__name__}(shape={law.shape}")
        one = law[(0,) * len(law.shape)]
        assert repr(one).startswith(f"{type(law).__name__}(mean={one.mean():.3g}, std=")
        assert max(len(repr(one)), len(repr(law))) < 100
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(law)).cdf(0.3), law.cdf(0.3))
        with pytest.raises(TypeError, match="single"):
            len(one)


def test_lists_of_rows_and_of_outputs_are_not_paired():
    with pytest.raises(IndexError, match="one after the other"):
        LAWS[2][[0, 1], [0, 1]]


def test_ten_thousand_rows_answer_a_hundred_values_in_two_seconds():
    draws = np.random.default_rng(0).standard_normal((2000, 10_000), dtype=np.float32)
    law = DrawsDistribution.of(draws)
    start = time.process_time()  # of this process, however busy the machine is
    found = law.cdf(np.linspace(-3, 3, 100)[:, None])
    assert time.process_time() - start < 2
    assert found.shape == (100, 10_000)
    np.testing.assert_allclose(found.mean(1), stats.norm.cdf(np.linspace(-3, 3, 100)), atol=1e-3)


def test_laws_of_no_rows():
    for law in LAWS:
        none = law[law.mean().reshape(4, -1)[:, 0] > 1e9]
        assert none.shape == (0, *law.shape[1:])
        assert none[:].cdf(0.0).shape == none.mean().shape == none.shape
        assert none.rvs(3).shape == (3, *none.shape)
        with pytest.raises(IndexError):
            none[0]
        with pytest.raises(ValueError, match="Choose"):
            none.plot()


def test_values_that_differ_by_rounding_are_one_to_the_density():
    """A cluster of draws with a spread of 1e-16 is an atom, not a bandwidth."""
    draws = np.append(1 + RNG.normal(0, 2e-16, 1000), RNG.normal(size=1000))
    law = DrawsDistribution.of(draws[:, None])[0]
    v = np.linspace(-5, 5, 20_001)
    assert integrate.trapezoid(law.pdf(v), v) == pytest.approx(1, abs=1e-2)
    assert law.pdf(1.0) < 10


def test_draws_that_are_none():
    with pytest.raises(ValueError, match="shape"):
        DrawsDistribution.of(np.zeros(5))
    with pytest.raises(ValueError, match="shape"):
        DrawsDistribution.of(np.zeros((1, 5)))
    with pytest.raises(ValueError, match="bounds"):
        DrawsDistribution.of(np.zeros((3, 5)), lower=1.0)
    with pytest.raises(ValueError, match="lower"):
        DrawsDistribution.of(np.zeros((3, 5)), lower=np.nan)


def test_plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    lines = LAWS[2][:2].plot(names=["a", "b", "c"], rows=["first", "second"])
    assert [ax.get_xlabel() for ax in lines] == ["a", "b", "c"]
    assert [text.get_text() for text in lines[0].get_legend().get_texts()] == ["first", "second"]
    values, heights = lines[1].lines[0].get_data()
    # The same bandwidth, with a kernel of more boxes: the line is smooth.
    np.testing.assert_allclose(heights, LAWS[2][0, 1].pdf(values), atol=0.03 * heights.max())
    assert np.abs(np.diff(heights, 2)).max() < 0.02 * heights.max()
    counts = DrawsDistribution.of(RNG.poisson(1.0, (200, 1)).astype(float), discrete=True)
    (bars,) = counts[0].plot()
    np.testing.assert_allclose(
        [bar.get_height() for bar in bars.patches], counts[0].pmf(np.arange(len(bars.patches)))
    )
    assert bars.get_ylabel() == "probability"
    censored = DrawsDistribution.of(np.maximum(0, RNG.normal(size=(2000, 1))), lower=0.0)
    (ax,) = censored.plot()
    assert ax.get_ylabel() == "density; dots: probability"
    curve, dot = ax.lines
    assert dot.get_data()[1] == pytest.approx(censored.pmf(0.0))
    # What the density leaves out is in the dot.
    assert integrate.trapezoid(curve.get_ydata(), curve.get_xdata()) == pytest.approx(0.5, abs=0.05)
    assert curve.get_xdata().min() == 0  # nothing is drawn beyond a bound
    # A law without spread has no density: it is a dot, too.
    still = np.column_stack([np.full(50, 2.0), RNG.normal(size=50)])
    for law in (NormalDistribution([2.0, 0.0], [0.0, 1.0]), DrawsDistribution.of(still)):
        dots = [line for line in law.plot()[0].lines if line.get_marker() == "o"]
        assert [line.get_xydata().tolist() for line in dots if len(line.get_xdata())] == [[[2.0, 1.0]]]
    assert DrawsDistribution.of(np.zeros((5, 1)), lower=0.0).plot()[0].lines
    with pytest.raises(ValueError, match="Choose"):
        NormalDistribution(np.zeros(9), np.ones(9)).plot()
    with pytest.raises(ValueError, match="rows"):
        LAWS[0].plot(rows=["one"])
    matplotlib.pyplot.close("all")
