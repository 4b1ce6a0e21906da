"""Pictures: arrays in, matplotlib Axes out."""

from __future__ import annotations

from typing import Any

import numpy as np

from localw2._validation import as_array, as_rows

DATA, MODEL, TRUTH = "#8a8f98", "#1f6fb4", "#c8442c"


def band(
    x: Any,
    mean: Any,
    lower: Any,
    upper: Any,
    data: tuple[Any, Any] | None = None,
    truth: tuple[Any, Any, Any] | None = None,
    coverage: float = 0.9,
    ax: Any = None,
) -> Any:
    """Mean and interval of the outputs along one input, over the data, beside the truth where it is known.

    ``x``, ``mean``, ``lower`` and ``upper`` are (n,); ``data`` is (x, y) of the rows; ``truth`` is the true
    mean, lower and upper end. Returns the Axes.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'localw2[plot]'") from None
    columns = [as_array(v, name) for v, name in ((mean, "mean"), (lower, "lower"), (upper, "upper"))]
    grid = as_rows(x)[:, 0]
    for values, name in zip(columns, ("mean", "lower", "upper"), strict=True):
        if values.shape != grid.shape:
            raise ValueError(
                f"{name} has shape {values.shape} and x {grid.shape}; they are drawn against each other."
            )
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    if data is not None:
        ax.plot(
            as_rows(data[0])[:, 0],
            as_array(data[1], "y"),
            ".",
            ms=3,
            color=DATA,
            alpha=0.6,
            label="data",
            zorder=1,
        )
    order = np.argsort(grid)
    percent = f"{100 * coverage:.0f} %"
    ax.fill_between(
        grid[order],
        columns[1][order],
        columns[2][order],
        color=MODEL,
        alpha=0.25,
        lw=0,
        label=f"fit, {percent} band",
    )
    ax.plot(grid[order], columns[0][order], color=MODEL, lw=2, label="fit, mean")
    if truth is not None:
        true_mean, *ends = (as_array(v, "truth")[order] for v in truth)
        ax.plot(grid[order], true_mean, color=TRUTH, lw=1.5, ls="--", label="truth, mean")
        for end, label in zip(ends, (f"truth, {percent} band", None), strict=True):
            ax.plot(grid[order], end, color=TRUTH, lw=1, ls=":", label=label)
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    ax.legend(frameon=False, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
