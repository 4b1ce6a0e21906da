"""Plots of fields: curves with their bands, and images."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2._validation import as_array, as_rows
from localw2._wording import as_label
from localw2.plots.rows import DATA, MODEL, MOST_LINES, TRUTH, _finish, _observed_lines, _pyplot

_MOST_IMAGES = 24


def curves(
    t: Any,
    mean: Any,
    bands: Any = (),
    samples: Any = None,
    data: Any = None,
    labels: Any = None,
    ax: Any = None,
    place: str = "t",
) -> Any:
    """Plot the mean curve at one x over its bands, with draws and observed curves.

    ``t`` and ``mean`` are (G,). ``bands`` are pairs of lower and upper ends (G,), the widest first, such as a
    simultaneous and a pointwise band of ``LocalW2FieldRegressor.predict_band``, and ``labels`` their names.
    ``samples`` (S, G) are drawn as lines, ``data`` is (n, G) or a list of pairs of points and values. Returns
    the Axes.
    """
    grid, middle = as_rows(t)[:, 0], as_array(mean, "mean")
    if middle.shape != grid.shape:
        raise ValueError(f"mean has shape {middle.shape} and t has {grid.shape}; they must agree.")
    ends = [tuple(as_array(end, "bands") for end in pair) for pair in bands]
    if any(len(pair) != 2 or any(end.shape != grid.shape for end in pair) for pair in ends):
        raise ValueError(f"bands must be pairs of lower and upper ends of shape {grid.shape}.")
    names = [f"band {i + 1}" for i in range(len(ends))] if labels is None else list(labels)
    if len(names) != len(ends):
        raise ValueError(f"labels has {len(names)} names for {len(ends)} bands; give one for each.")
    if ax is None:
        ax = _pyplot().subplots(figsize=(5.2, 3.4), layout="constrained")[1]
    if data is not None and not isinstance(data, list | tuple):
        data = as_array(data, "data")[..., None]
    elif data is not None:
        data = [(at, as_array(values, "data").reshape(-1, 1)) for at, values in data]
    observed = _observed_lines(data, grid, 1)
    for j, (places, values) in enumerate(observed[:MOST_LINES]):
        ax.plot(places, values[:, 0], color=DATA, lw=0.7, alpha=0.6, label=None if j else "data", zorder=1)
    for i, ((low, high), name) in enumerate(zip(ends, names, strict=True)):
        depth = min(0.2 + 0.15 * i, 0.6)  # the legend, too, tells them apart
        ax.fill_between(grid, low, high, color=MODEL, alpha=depth, lw=0, label=as_label(name))
    if samples is not None:
        for j, line in enumerate(as_array(samples, "samples")):
            ax.plot(grid, line, color=TRUTH, lw=0.8, alpha=0.8, label=None if j else "draws", zorder=4)
    ax.plot(grid, middle, color=MODEL, lw=2, label="mean", zorder=5)
    return _finish([ax], as_label(place), ["y"])[0]


def images(fields: Any, names: Any = None, axes: Any = None) -> Any:
    """Plot fields (n, H, W) as images with one scale of colours, such as draws, a mean, an SD; the Axes."""
    pictures = as_array(fields, "fields")
    if pictures.ndim != 3 or not 1 <= len(pictures) <= _MOST_IMAGES:
        raise ValueError(f"fields has shape {pictures.shape}; expected (n, H, W), n up to {_MOST_IMAGES}.")
    n = len(pictures)
    labels = [""] * n if names is None else [as_label(name) for name in names]
    if len(labels) != n:
        raise ValueError(f"names has {len(labels)} names for {n} fields; give one for each.")
    if axes is None:
        columns = min(n, 6)
        rows = -(-n // columns)
        size = (1.7 * columns + 0.8, 1.9 * rows)
        figure = _pyplot().subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)[1]
        axes = figure.ravel()
        for spare in axes[n:]:
            spare.set_axis_off()
    axes = np.atleast_1d(axes)[:n]
    low, high = float(pictures.min()), float(pictures.max())
    for ax, picture, label in zip(axes, pictures, labels, strict=True):
        shown = ax.imshow(picture, origin="lower", vmin=low, vmax=high, cmap="viridis")
        ax.set(xticks=[], yticks=[], title=label)
        ax.title.set_fontsize(9)
    axes[0].figure.colorbar(shown, ax=list(axes), shrink=0.8)
    return axes
