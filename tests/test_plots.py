import numpy as np
import pytest

from localw2 import plots

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def test_band_draws_everything_it_is_given():
    from localw2.plots import band

    x = np.linspace(0, 1, 20)
    ax = band(x[::-1], x, x - 1, x + 1, data=(x, x), truth=(x, x - 2, x + 2), coverage=0.8)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["data", "fit, 80 % band", "fit, mean", "truth, mean", "truth, 80 % band"]
    mean = next(line for line in ax.lines if line.get_label() == "fit, mean")
    np.testing.assert_array_equal(mean.get_xdata(), x)  # sorted
    np.testing.assert_array_equal(mean.get_ydata(), x[::-1])
    assert ax.get_xlabel() == "x"
    assert band(x, x, x, x, ax=ax) is ax
    matplotlib.pyplot.close("all")


def test_band_needs_matching_shapes():
    from localw2.plots import band

    with pytest.raises(ValueError, match="lower"):
        band(np.zeros(3), np.zeros(3), np.zeros(2), np.zeros(3))


def test_trajectories_have_a_panel_a_state():
    from localw2.plots import trajectories

    t = np.linspace(0, 1, 11)
    samples = np.random.default_rng(0).normal(size=(40, 2, 11, 3))
    data = samples[:, 0].copy()
    data[3, 4] = np.nan
    axes = trajectories(t, samples, data, coverage=0.8, names=["a", "b", "c"])
    assert [ax.get_ylabel() for ax in axes] == ["a", "b", "c"]
    labels = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert labels == ["data", "fit, 80 % band", "fit, mean"]
    mean = next(line for line in axes[1].lines if line.get_label() == "fit, mean")
    np.testing.assert_allclose(mean.get_ydata(), samples[..., 1].mean((0, 1)))
    with pytest.raises(ValueError, match="samples"):
        trajectories(t[:5], samples)
    with pytest.raises(ValueError, match="names"):
        trajectories(t, samples, names=["a"])
    matplotlib.pyplot.close("all")


def test_a_field_along_a_line():
    from localw2.plots import field_along

    z = np.linspace(0, 1, 5)
    fit, truth = np.random.default_rng(0).normal(size=(2, 30, 5, 2))
    axes = field_along(z, fit, truth)
    labels = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert labels == ["fit, mean \u00b1 SD", "truth, mean", "truth, mean \u00b1 SD"]
    true_mean = next(line for line in axes[1].lines if line.get_label() == "truth, mean")
    np.testing.assert_allclose(true_mean.get_ydata(), truth[..., 1].mean(0))
    with pytest.raises(ValueError, match="fit"):
        field_along(z, fit[:, :3])
    with pytest.raises(ValueError, match="axes"):
        field_along(z, fit, axes=[axes[0]])
    matplotlib.pyplot.close("all")


def correlated(n, d, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d))


@pytest.mark.parametrize("d", [2, 3, 6])
def test_pairs_have_a_panel_for_every_two_outputs(d):
    from localw2.plots import pairs

    samples = correlated(500, d)
    data = 0.8 * samples[:40]
    axes = pairs(samples, data, names=[f"output {i}" for i in range(d)])
    assert axes.shape == (d, d)
    assert [ax.get_xlabel() for ax in axes[-1]] == [f"output {i}" for i in range(d)]
    assert [ax.get_ylabel() for ax in axes[1:, 0]] == [f"output {i}" for i in range(1, d)]
    assert axes[0, -1].get_ylabel() == "output 0"
    for i, j in np.ndindex(d, d):
        ax = axes[i, j]
        assert ax.has_data()
        low, high = ax.get_xlim()
        # Panels of a column share their axis, which holds nearly all draws.
        assert (low, high) == axes[0, j].get_xlim()
        assert ((samples[:, j] >= low) & (samples[:, j] <= high)).mean() > 0.99
        if i > j:  # observed rows are dots on the regions, in their own order
            np.testing.assert_allclose(ax.lines[-1].get_xydata(), data[:, [j, i]])
        if i < j:
            assert len(ax.lines[-1].get_xdata()) == 500
    words = [text.get_text() for text in axes[0, 0].figure.legends[0].get_texts()]
    assert words == ["draws", "90 % of draws", "50 % of draws", "observed"]
    matplotlib.pyplot.close("all")


def test_labels_of_pairs_do_not_overlap():
    from localw2.plots import pairs

    long = "a very long name of an output that nobody could print beside a panel [kg per m2]"
    axes = pairs(1e6 * correlated(300, 6), names=[long, *"bcde", long + "!"])
    figure = axes[0, 0].figure
    figure.canvas.draw()
    for row in ([ax.xaxis.label for ax in axes[-1]], [ax.yaxis.label for ax in axes[1:, 0]]):
        boxes = [label.get_window_extent() for label in row]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    ticks = [t for ax in axes[-1] for t in ax.get_xticklabels()]
    assert not any("e+" in t.get_text() for t in ticks)
    shown = [
        t.get_window_extent()
        for ax in axes[-1]
        for t in ax.get_xticklabels()
        if ax.get_xlim()[0] <= t.get_position()[0] <= ax.get_xlim()[1]
    ]
    assert not any(a.overlaps(b) for i, a in enumerate(shown) for b in shown[:i])
    matplotlib.pyplot.close("all")


def test_pairs_at_a_few_inputs_have_a_colour_each():
    from localw2.plots import pairs

    samples = np.stack([correlated(200, 2, seed) + 9 * seed for seed in range(3)], 1)
    axes = pairs(samples, [correlated(m, 2) for m in (5, 6, 7)], rows=["x = 0", "x = $1", "x = 2"])
    words = [text.get_text() for text in axes[0, 0].figure.legends[0].get_texts()]
    assert words[:3] == ["x = 0", r"x = \$1", "x = 2"]
    assert len({line.get_color() for line in axes[0, 1].lines}) == 3
    assert [len(line.get_xdata()) for line in axes[1, 0].lines] == [5, 6, 7]
    matplotlib.pyplot.close("all")


def test_names_of_pairs_are_shown_as_they_are():
    import pandas as pd

    from localw2.plots import pairs

    names = ["cost in $x_{$", "<a href=x>b</a>", "k\x1b[2J"]
    axes = pairs(correlated(200, 3), pd.DataFrame(correlated(30, 3), columns=names))
    axes[0, 0].figure.canvas.draw()  # a formula that cannot be read would fail here
    shown = [ax.get_xlabel() for ax in axes[-1]]
    assert shown == [r"cost in \$x_{\$", "<a href=x>b</a>", r"k\x1b[2J"]
    unnamed = pairs(correlated(200, 3))
    assert [ax.get_xlabel() for ax in unnamed[-1]] == ["$y_1$", "$y_2$", "$y_3$"]
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("kind", ["constant", "whole", "heavy", "huge", "few", "stray"])
def test_pairs_of_any_values_can_be_drawn(kind):
    from localw2.plots import pairs

    samples, data = correlated(300, 2), correlated(25, 2)
    if kind == "constant":
        samples[:, 1] = data[:, 0] = 7.0
    elif kind == "whole":
        samples = np.round(samples)
    elif kind == "heavy":
        samples[:, 0] = np.exp(8 * samples[:, 0])
    elif kind == "huge":
        samples, data = 1e200 * samples, 1e200 * data
    elif kind == "few":
        samples, data = samples[:2], data[:1]
    else:
        data[0] = 1e9
    axes = pairs(samples, data)
    axes[0, 0].figure.canvas.draw()
    assert all(np.isfinite(ax.get_xlim() + ax.get_ylim()).all() for ax in axes.flat)
    if kind == "stray":  # at the edge, and the rest can still be seen
        low, high = axes[1, 0].get_xlim()
        assert axes[1, 0].lines[-1].get_xdata()[0] == high
        assert high - low < 3 * np.ptp(samples[:, 0])
    matplotlib.pyplot.close("all")


def test_regions_hold_their_share_and_follow_the_shape():
    from localw2.datasets import ZOO
    from localw2.plots.rows import _estimate_density

    _, ring = ZOO["circle"].sample(4000, random_state=0)
    at, density, levels = _estimate_density(ring[:2000])
    steps = [axis[1] - axis[0] for axis in at]
    places = [(ring[2000:, k] - at[k][0]) / steps[k] for k in range(2)]
    new = density[tuple(np.clip(place.round().astype(int), 0, len(density) - 1) for place in places)]
    for share in (0.9, 0.5):
        level = np.quantile(levels, 1 - share)
        assert (new >= level).mean() == pytest.approx(share, abs=0.05)
    middle = density[len(at[0]) // 2, len(at[1]) // 2]
    assert middle < 0.01 * density.max()  # the hole stays a hole
    # Draws that repeat a few values are no spikes, and their regions are those of new values.
    rng = np.random.default_rng(0)
    at, density, levels = _estimate_density(ring[rng.integers(0, 150, 2000)])
    places = [((ring[150:, k] - at[k][0]) / (at[k][1] - at[k][0])).round().astype(int) for k in range(2)]
    new = density[tuple(np.clip(place, 0, len(density) - 1) for place in places)]
    for share in (0.9, 0.5):
        assert (new >= np.quantile(levels, 1 - share)).mean() == pytest.approx(share, abs=0.1)
    (at,), repeated, _ = _estimate_density(rng.choice(rng.normal(size=60), 2000)[:, None])
    assert repeated.max() / (at[1] - at[0]) < 0.8


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((np.zeros((9, 1)),), "histogram"),
        ((np.zeros((9, 7)),), "6"),
        ((np.zeros(9),), "shape"),
        ((np.zeros((9, 5, 2)),), "reshape"),
        ((np.full((9, 2), np.nan),), "NaN"),
        ((np.zeros((9, 2)), np.full((9, 2), np.nan)), "data"),
        ((np.zeros((9, 2)), np.zeros((9, 3))), "data"),
        ((np.zeros((9, 2, 2)), [np.zeros((9, 2))]), "data"),
        ((np.zeros((9, 2)), None, ["a"]), "names"),
        ((np.zeros((9, 2)), None, None, ["a", "b"]), "rows"),
        ((np.zeros((9, 2)), None, None, None, np.zeros(2)), "axes"),
    ],
)
def test_pairs_say_what_is_wrong(arguments, word):
    from localw2.plots import pairs

    with pytest.raises(ValueError, match=word):
        pairs(*arguments)


def test_pairs_in_a_figure_of_ones_own():
    from localw2.plots import pairs

    figure, axes = matplotlib.pyplot.subplots(2, 3)
    assert (pairs(correlated(50, 2), axes=axes[:, :2]) == axes[:, :2]).all()
    assert axes[0, 0].get_legend() is not None
    assert not figure.legends
    matplotlib.pyplot.close("all")


def test_curves_have_bands_draws_and_data():
    t = np.linspace(0, 1, 12)
    mean, draws = np.sin(t), np.sin(t) + np.ones((3, 1)) * [[0.1]]
    bands = [(mean - 1, mean + 1), (mean - 0.5, mean + 0.5)]
    ax = plots.curves(t, mean, bands, draws, data=draws, labels=["whole", "pointwise"])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "data", "whole", "pointwise", "draws", "mean",
    ]  # fmt: skip
    assert len(ax.lines) == 3 + 3 + 1
    own = plots.curves(t, mean, data=[(np.array([0.1, 0.4]), np.array([1.0, 2.0]))])
    np.testing.assert_array_equal(own.lines[0].get_xdata(), [0.1, 0.4])
    for arguments in ({"mean": mean[1:]}, {"bands": [(mean, mean[1:])]}, {"bands": bands, "labels": ["one"]}):
        with pytest.raises(ValueError, match=r"must|give"):
            plots.curves(**({"t": t, "mean": mean} | arguments))


def test_images_share_their_colours():
    axes = plots.images(np.arange(24.0).reshape(2, 3, 4), names=["mean", "draw"])
    assert [ax.get_title() for ax in axes] == ["mean", "draw"]
    assert {ax.images[0].get_clim() for ax in axes} == {(0.0, 23.0)}
    with pytest.raises(ValueError, match="shape"):
        plots.images(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="names"):
        plots.images(np.zeros((2, 3, 4)), names=["one"])
