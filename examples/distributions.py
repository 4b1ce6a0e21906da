"""Draw the pictures of docs/how-to: predicted distributions, and which columns drive them.

    python examples/distributions.py [--out docs/how-to]

Saves distribution.png, importance.png and dependence.png, of the data on the pages distribution.md and
explain.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from localw2 import LocalW2Regressor, column_dependence, column_importance
from localw2.datasets import Nonlinear


def main() -> None:
    """Fit both models and draw."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path("docs/how-to"), help="folder for the plots")
    folder = parser.parse_args().out
    model = LocalW2Regressor(random_state=0).fit(*Nonlinear().sample(400, random_state=0))
    law = model.predict_distribution([[-0.4], [-0.2], [0.4]])
    axes = law.plot(rows=["x = −0.4", "x = −0.2", "x = 0.4"])  # noqa: RUF001  # a minus sign, as on the axis
    axes[0].figure.savefig(folder / "distribution.png", dpi=110)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.2, 2, size=(400, 2))
    y = 2 * x[:, 0] + x[:, 1] * rng.normal(size=400)  # the second column changes the spread alone
    model = LocalW2Regressor(law="balls", random_state=0).fit(x[:300], y[:300])
    important = column_importance(x[300:], y[300:], model, random_state=0)
    important.plot()[0].figure.savefig(folder / "importance.png", dpi=110)
    dependence = column_dependence(x[300:], model, 1, random_state=0)
    dependence.plot()[0].figure.savefig(folder / "dependence.png", dpi=110)
    print(f"{important}\n{dependence}\nPlots: {folder}")


if __name__ == "__main__":
    main()
