"""Tables in the common layout (NAME/data.txt, columns separated by blanks, target last) and their splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Split:
    """Training and test rows: inputs (n, p) and targets (n,)."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array


def names(folder: Path) -> list[str]:
    """The tables of a folder."""
    return sorted(path.parent.name for path in folder.glob("*/data.txt"))


def standard_split(folder: Path, number: int) -> Split:
    """Make one of the standard splits: permutations by ``RandomState(1)``, 90 % of the rows for training.

    The permutations are drawn one after the other: split 3 is the fourth, whatever was drawn before.
    """
    data: Array = np.loadtxt(folder / "data.txt")
    generator, n = np.random.RandomState(1), len(data)
    for _ in range(number + 1):
        order = generator.choice(n, n, replace=False)
    train, test = data[order[: round(0.9 * n)]], data[order[round(0.9 * n) :]]
    return Split(train[:, :-1], train[:, -1], test[:, :-1], test[:, -1])
