"""What the paper prints about its examples: settings, test inputs, values to compare with.

Xia and Shen, "A local squared Wasserstein-2 method for efficient reconstruction of models with uncertainty",
arXiv:2406.06825. Each constant names its place there: Table S1 is "Training hyperparameters" of the
supplement, Table S2 the one of network structures. What the paper does not print is marked as ours (the grids
of delta, N, sd and a appear only in its figures). docs/paper.md has these settings beside those that the fits
receive, and tests/project/test_paper_settings.py compares both with the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

REPEATS = 5  # Table S1
COMPARED_REPEATS = 20  # ours: of local W2 and local MMD, whose difference is small
TEST_DRAWS = 100  # of y and of yhat at every test x, in all three figures
FIRST_SEED = 5000  # ours: none of these data sets was used while the defaults were tuned

# Linear regression with coefficient uncertainty (Fig. example2; Table S1, first column).
LINEAR_TRAINING: dict[str, Any] = {"max_epochs": 1000, "learning_rate": 0.02, "weight_decay": 0.005}
LINEAR_ROWS = 1000
LINEAR_DELTA = 0.1
LINEAR_LINE = (-0.3, 0.6, 10)  # from, to, how many: x0 of x = (x0, x0, x0), caption of Fig. example2
LINEAR_DELTAS = (0.025, 0.05, 0.1, 0.2, 0.4)  # the text names .025, .05 and .1; the rest is ours
LINEAR_SIZES = (250, 500, 1000, 2000, 4000)  # ours

# A neural network with weight uncertainty (Fig. example1; Table S1, second column).
NONLINEAR_TRAINING: dict[str, Any] = {
    "width": 50,
    "depth": 4,
    "residual": True,
    "max_epochs": 1000,
    "learning_rate": 0.025,
    "weight_decay": 0.005,
}
NONLINEAR_ROWS = 2000  # Table S1; the text says 1000
NONLINEAR_DELTA = 0.025
NONLINEAR_TEST = (-0.5, 0.5, 11)  # from, to, how many: i = 0..10, as the printed i = 11 is outside the data

# The same with other distributions of parameters and inputs (supplement, Fig. example1_appendixic).
HARDER_SDS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of omega_1 and omega_2, independent; the values are ours
HARDER_HALF_WIDTHS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # a of x ~ U(-a, a), with sd 1; the values are ours

# Network structures (supplement, Table S2): N = 1000 fits its seconds, delta is in the text.
ARCHITECTURE_ROWS = 1000
ARCHITECTURE_MORE_ROWS = 2000  # Table S1: the paper does not say which of the two N its table has
ARCHITECTURE_DELTA = 0.1

# Strength of concrete (Fig. example3; Table S1, third column).
CONCRETE_TRAINING: dict[str, Any] = {
    "width": 50,
    "depth": 4,
    "residual": True,
    "max_epochs": 1000,
    "learning_rate": 0.02,
    "weight_decay": 0.005,
}
CONCRETE_ROWS = 686  # the first two thirds of 1030
CONCRETE_DELTA = 0.05
CONCRETE_DELTAS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)  # the text names .05 and .1; the rest is ours
CONCRETE_DELTA_0 = 0.2  # of the neighbourhoods in which errors are taken
CONCRETE_FEWEST = 5  # test rows in such a neighbourhood
CONCRETE_POINTS = 10  # of panels (a) and (b)

# An ODE with a random parameter (Fig. example4; Table S1, fourth column).
ODE_TRAINING: dict[str, Any] = {
    "width": 100,
    "depth": 2,
    "residual": False,
    "max_epochs": 500,
    "learning_rate": 0.005,
    "weight_decay": 0.005,
}
ODE_TRAJECTORIES = 100  # for training, and as many for the test
ODE_TIMES = 101  # m + 1 with m = 100, on [0, 2]
ODE_DELTA = 0.1  # of the loss, and delta_0 of the error in yhat
ODE_PANELS = ((0.0, 0.25), (0.0, 0.4), (0.3, 0.25))  # (a, sigma) of the panels (a)-(i)
ODE_LINE = (0.0, 0.5, 11)  # from, to, how many: z of y = (1-z, 1+z, 1-z, 1+z), panels (g)-(i)
ODE_A, ODE_SIGMAS = (0.0, 0.1, 0.2, 0.3), (0.1, 0.25, 0.4)  # of (k), (l): ours, but for the panels


@dataclass(frozen=True)
class Structure:
    """A row of Table S2: the network, its errors in mean and SD, its seconds; each (mean, SD) of 5 runs."""

    width: int
    depth: int
    residual: bool
    mean: tuple[float, float]
    std: tuple[float, float]
    seconds: tuple[float, float]

    @property
    def name(self) -> str:
        """The name in the table."""
        return f"{self.width} x {self.depth} {'ResNet' if self.residual else 'plain'}"


STRUCTURES = (
    Structure(12, 4, True, (0.053, 0.013), (0.127, 0.023), (3099, 561)),
    Structure(25, 4, True, (0.035, 0.005), (0.126, 0.026), (2469, 502)),
    Structure(50, 4, True, (0.051, 0.013), (0.114, 0.012), (3346, 213)),
    Structure(100, 4, True, (0.232, 0.409), (0.190, 0.138), (3706, 781)),
    Structure(50, 1, True, (0.044, 0.005), (0.106, 0.018), (2853, 593)),
    Structure(50, 2, True, (0.034, 0.003), (0.106, 0.034), (2801, 299)),
    Structure(50, 3, True, (0.043, 0.010), (0.115, 0.024), (2428, 499)),
    Structure(50, 1, False, (0.049, 0.005), (0.106, 0.023), (2503, 90)),
    Structure(50, 2, False, (0.044, 0.011), (0.129, 0.019), (2526, 560)),
    Structure(50, 3, False, (0.075, 0.031), (0.161, 0.020), (2526, 560)),
    Structure(50, 4, False, (0.060, 0.028), (0.175, 0.022), (2820, 622)),
)
