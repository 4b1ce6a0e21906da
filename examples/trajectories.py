"""Two ODEs learned from trajectories, with plots.

    python examples/trajectories.py [--out docs] [--epochs 300]

The paper's system of four states with a network as its field (its trajectories and field are plotted), and
logistic growth of known form, observed at irregular times with missing values (the distribution of its
parameters is printed and plotted).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from localw2 import LocalW2ODE, plots
from localw2.datasets import FourStates, LogisticGrowth


def main() -> None:
    """Fit both and plot them."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the plots")
    parser.add_argument("--epochs", type=int, help="of the network (default: the estimator's)")
    options = parser.parse_args()
    import matplotlib.pyplot as plt

    truth = FourStates()
    paths, t, _ = truth.sample(100, random_state=0)
    epochs = "auto" if options.epochs is None else options.epochs
    model = LocalW2ODE(max_epochs=epochs, random_state=0, verbose=True).fit(paths, t)
    samples = model.sample(np.ones(4), t, n_samples=1000, random_state=0)
    axes = plots.trajectories(t, samples, paths)
    axes[0].figure.suptitle(
        "The paper's system, network field: 100 observed trajectories and the fit", fontsize=11
    )
    _save(axes[0].figure, options.out / "ode_paths.png")

    z = np.linspace(0, 0.5, 11)
    line = np.column_stack([1 - z, 1 + z, 1 - z, 1 + z])
    axes = plots.field_along(
        z, model.sample_field(line, 1000, random_state=0), truth.sample_field(line, 1000, random_state=0)
    )
    axes[0].figure.suptitle("Its field on y = (1 - z, 1 + z, 1 - z, 1 + z)", fontsize=11)
    _save(axes[0].figure, options.out / "ode_field.png")

    growth = LogisticGrowth()
    paths, t, realised = growth.sample(300, random_state=0)
    model = LocalW2ODE(growth.field, {"r": 0.7, "K": 7.0}, random_state=0, verbose=True)
    model.fit(paths, t, y0=1.0, t0=0.0)
    print("\nLogistic growth, 300 trajectories at irregular times, 20 % missing")
    print(model.parameters_)
    print(f"correlation {model.parameters_.correlation[0, 1]:.3f}")
    print("realised: " + ", ".join(f"{n} {v.mean():.4g} (sd {v.std():.3g})" for n, v in realised.items()))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")
    grid = np.linspace(0, 8, 81)
    plots.trajectories(grid, model.sample([1.0], grid, 1000, random_state=0), axes=[left])
    for own, values in zip(t[:60], paths[:60, :, 0], strict=True):
        left.plot(own, values, ".", ms=2.5, color=plots.DATA, zorder=1)
    left.plot([], [], ".", color=plots.DATA, label="data (60 of 300)")
    left.legend(frameon=False, fontsize=8)
    law = model.parameters_.samples
    right.plot(
        law["r"][:2000],
        law["K"][:2000],
        ".",
        ms=2,
        color=plots.MODEL,
        alpha=0.4,
        label="learned distribution",
    )
    right.plot(realised["r"], realised["K"], ".", ms=4, color=plots.TRUTH, label="realised")
    right.set_xlabel("growth rate r")
    right.set_ylabel("capacity K")
    right.legend(frameon=False, fontsize=8)
    right.spines[["top", "right"]].set_visible(False)
    _save(figure, options.out / "ode_logistic.png")


def _save(figure: object, path: Path) -> None:
    figure.savefig(path, dpi=110)  # type: ignore[attr-defined]
    print(f"Plot: {path}")


if __name__ == "__main__":
    main()
