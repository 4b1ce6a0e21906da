"""The paper's problems, each with its truth: data to learn from, and the moments to compare with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from localw2._validation import Array, as_rows, check_count


@dataclass(frozen=True)
class RandomModel(ABC):
    """A known random model y = f(x, omega): draw data from it, or ask for its exact moments."""

    @abstractmethod
    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, p)."""

    @abstractmethod
    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output for each input, each with its own omega, (n,)."""

    @abstractmethod
    def mean(self, x: Any) -> Array:
        """Expectation of y at each x, (n,)."""

    @abstractmethod
    def std(self, x: Any) -> Array:
        """Standard deviation of y at each x, (n,)."""

    def sample(self, n: int, random_state: Any = None) -> tuple[Array, Array]:
        """Draw n pairs: x (n, p) and y (n,)."""
        rng = np.random.default_rng(random_state)
        x = self.sample_x(check_count(n, "n", 1), rng)
        return x, self.sample_y(x, rng)


@final
@dataclass(frozen=True)
class Linear(RandomModel):
    r"""Linear regression with random coefficients (paper, Fig. example2).

    :math:`y = w_0 + w_1 x_1 + w_2 x_2 + w_3 x_3`, independent :math:`w_i \sim N(b_i, s_i^2)`; x1 is
    exponential with rate 4, x2 is N(0, 0.25) and x3 is Beta(5, 5).

    >>> x, y = Linear().sample(1000, random_state=0)
    >>> x.shape, y.shape
    ((1000, 3), (1000,))
    """

    coefficient_means: tuple[float, ...] = (1.0, 1.0, 2.0, 3.0)
    coefficient_stds: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 3)."""
        return np.column_stack([rng.exponential(0.25, n), rng.normal(0, 0.5, n), rng.beta(5, 5, n)])

    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output for each input, (n,)."""
        design = _with_ones(x)
        coefficients = rng.normal(self.coefficient_means, self.coefficient_stds, design.shape)
        y: Array = (design * coefficients).sum(1)
        return y

    def mean(self, x: Any) -> Array:
        """The regression line, (n,)."""
        mean: Array = _with_ones(as_rows(x)) @ np.array(self.coefficient_means)
        return mean

    def std(self, x: Any) -> Array:
        """Independent coefficients: variances add, (n,)."""
        std: Array = np.sqrt(_with_ones(as_rows(x)) ** 2 @ np.array(self.coefficient_stds) ** 2)
        return std


@final
@dataclass(frozen=True)
class Nonlinear(RandomModel):
    r"""The nonlinear model :math:`y = w_1 (1 - e^{-w_2 x}) + 5` (paper, Eq. example1_model).

    (w1, w2) is Gaussian; x is uniform on (-half_width, half_width). At x = 0 y is 5 without spread.

    >>> truth = Nonlinear()
    >>> truth.mean([0.0, 0.5]).round(4), truth.std([0.0, 0.5]).round(4)
    (array([5.    , 9.2219]), array([0.    , 1.1287]))
    """

    omega_mean: tuple[float, float] = (19.1426, 0.5311)
    omega_covariance: tuple[tuple[float, float], tuple[float, float]] = (
        (6.22864, -0.4322),
        (-0.4322, 0.04124),
    )
    half_width: float = 0.5

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 1)."""
        return rng.uniform(-self.half_width, self.half_width, (n, 1))

    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output for each input, (n,)."""
        w1, w2 = rng.multivariate_normal(self.omega_mean, self.omega_covariance, len(x)).T
        y: Array = 5 + w1 * (1 - np.exp(-w2 * x[:, 0]))
        return y

    def mean(self, x: Any) -> Array:
        """The exact expectation, (n,)."""
        x = as_rows(x)[:, 0]
        return 5 + self._moment(1, 0 * x) - self._moment(1, x)

    def std(self, x: Any) -> Array:
        """The exact standard deviation, (n,)."""
        x = as_rows(x)[:, 0]
        square = self._moment(2, 0 * x) - 2 * self._moment(2, x) + self._moment(2, 2 * x)
        variance = square - (self.mean(x) - 5) ** 2
        std: Array = np.sqrt(np.clip(variance, 0, None))
        return std

    def _moment(self, power: int, t: Array) -> Array:
        r"""E[w1^power exp(-t w2)]: the exponential tilts w1 to mean :math:`\mu_1 - t c_{12}`."""
        (m1, m2), ((v1, c12), (_, v2)) = self.omega_mean, self.omega_covariance
        tilted = m1 - t * c12
        moment: Array = np.exp(-t * m2 + t**2 * v2 / 2) * (tilted if power == 1 else tilted**2 + v1)
        return moment


def _with_ones(x: Array) -> Array:
    return np.column_stack([np.ones(len(x)), x])
