import numpy as np
import pytest

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
