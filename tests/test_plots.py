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

    with pytest.raises(ValueError, match="lower has shape"):
        band(np.zeros(3), np.zeros(3), np.zeros(2), np.zeros(3))
