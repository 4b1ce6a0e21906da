"""The paper's problems with known truth: data to learn from, and exact moments to compare with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.linalg import expm

from localw2._validation import Array, as_rows, check_count


@dataclass(frozen=True)
class RandomModel(ABC):
    """A known random model y = f(x, omega), with data and exact moments."""

    @abstractmethod
    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, p)."""

    @abstractmethod
    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output per input, each with its own omega, (n,)."""

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
        """Draw one output per input, (n,)."""
        design = _with_ones(x)
        coefficients = rng.normal(self.coefficient_means, self.coefficient_stds, design.shape)
        y: Array = (design * coefficients).sum(1)
        return y

    def mean(self, x: Any) -> Array:
        """The regression line, (n,)."""
        mean: Array = _with_ones(as_rows(x)) @ np.array(self.coefficient_means)
        return mean

    def std(self, x: Any) -> Array:
        """The standard deviation, (n,): the variances of independent coefficients add up."""
        std: Array = np.sqrt(_with_ones(as_rows(x)) ** 2 @ np.array(self.coefficient_stds) ** 2)
        return std


@final
@dataclass(frozen=True)
class Nonlinear(RandomModel):
    r"""The nonlinear model :math:`y = w_1 (1 - e^{-w_2 x}) + 5` (paper, Eq. example1_model).

    (w1, w2) is Gaussian; x is uniform on (-half_width, half_width). At x = 0, y is 5 without spread.

    >>> truth = Nonlinear()
    >>> truth.mean([0.0, 0.5]).round(4), truth.std([0.0, 0.5]).round(4)
    (array([5.    , 9.2219]), array([0.    , 1.1287]))
    """

    omega_mean: tuple[float, float] = (19.1426, 0.5311)
    omega_covariance: tuple[tuple[float, float], ...] = ((6.22864, -0.4322), (-0.4322, 0.04124))
    half_width: float = 0.5

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 1)."""
        return rng.uniform(-self.half_width, self.half_width, (n, 1))

    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output per input, (n,)."""
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


@dataclass(frozen=True)
class RandomDynamics(ABC):
    """A known ODE with random parameters, with trajectories and its field."""

    @abstractmethod
    def sample(self, n: int, random_state: Any = None) -> tuple[Array, Array, dict[str, Array]]:
        """Draw n trajectories: Y (n, T, d), t (T,) or (n, T), and their parameters (n,) by name."""

    @abstractmethod
    def field(self, t: Any, y: Any, **parameters: Any) -> list[Any]:
        """The right-hand side for one state, in the form that ``LocalW2ODE`` takes."""


@final
@dataclass(frozen=True)
class FourStates(RandomDynamics):
    r"""The paper's linear system of four states with one random parameter (paper, Eq. 4dodemodel).

    :math:`\omega \sim U(-\sigma, \sigma)`, initial states are :math:`N((1,1,1,1), a^2 I)`, and t is a grid of
    101 times in [0, 2]. Trajectories are exact (matrix exponentials).

    >>> Y, t, omega = FourStates().sample(3, random_state=0)
    >>> Y.shape, t.shape, list(omega)
    ((3, 101, 4), (101,), ['omega'])
    """

    a: float = 0.0
    sigma: float = 0.25
    n_times: int = 101

    def sample(self, n: int, random_state: Any = None) -> tuple[Array, Array, dict[str, Array]]:
        """Draw n trajectories."""
        rng = np.random.default_rng(random_state)
        y0 = 1 + self.a * rng.normal(size=(check_count(n, "n", 1), 4))
        omega = rng.uniform(-self.sigma, self.sigma, n)
        return self.paths(y0, omega), self.times, {"omega": omega}

    @property
    def times(self) -> Array:
        """The grid (T,) on [0, 2]."""
        return np.linspace(0, 2, self.n_times)

    def paths(self, y0: Array, omega: Array) -> Array:
        """The exact trajectories (n, T, 4) for given initial states and parameters."""
        steps = expm(self.matrix(omega) * self.times[1])
        path = [y0]
        for _ in range(self.n_times - 1):
            path.append(np.einsum("nij,nj->ni", steps, path[-1]))
        return np.stack(path, axis=1)

    @staticmethod
    def matrix(omega: Any) -> Array:
        """The matrix (..., 4, 4) of the system, which is linear in y."""
        w = np.asarray(omega, dtype=np.float64)
        c, zero = 1 - w**2, np.zeros_like(w)
        rows = [
            [0.05 + w, -c, zero + 0.05, zero],
            [c, zero, zero, zero + 0.05],
            [zero, zero, -0.05 + w, -c],
            [zero, zero, c, zero],
        ]
        return np.moveaxis(np.array(rows), (0, 1), (-2, -1))

    def field(self, t: Any, y: Any, **parameters: Any) -> list[Any]:
        """The right-hand side for one state."""
        (w,) = parameters.values()
        y1, y2, y3, y4 = y
        c = 1 - w**2
        return [
            (0.05 + w) * y1 + 0.05 * y3 - c * y2,
            c * y1 + 0.05 * y4,
            (-0.05 + w) * y3 - c * y4,
            c * y3,
        ]

    def sample_field(self, y: Array, n: int, random_state: Any = None) -> Array:
        """Draws (n, rows, 4) of the field at states (rows, 4), with independent omegas everywhere."""
        rng = np.random.default_rng(random_state)
        matrices = self.matrix(rng.uniform(-self.sigma, self.sigma, (n, len(y))))
        draws: Array = np.einsum("snij,nj->sni", matrices, y)
        return draws


@final
@dataclass(frozen=True)
class LogisticGrowth(RandomDynamics):
    r"""Growth :math:`\dot y = r y (1 - y/K)` from y(0) = 1, at irregular times with missing values.

    (r, K) is Gaussian with means 1 and 10, standard deviations .15 and 1.5, and correlation .5. Every
    trajectory has its own ``n_times`` times in [0, 8]; a fraction ``missing`` of its values is NaN.

    >>> Y, t, truth = LogisticGrowth().sample(300, random_state=0)
    >>> Y.shape, t.shape, float(np.isnan(Y).mean().round(1))
    ((300, 30, 1), (300, 30), 0.2)
    """

    n_times: int = 30
    missing: float = 0.2
    correlation: float = 0.5

    def sample(self, n: int, random_state: Any = None) -> tuple[Array, Array, dict[str, Array]]:
        """Draw n trajectories."""
        rng = np.random.default_rng(random_state)
        shared = self.correlation * 0.15 * 1.5
        covariance = [[0.15**2, shared], [shared, 1.5**2]]
        r, K = rng.multivariate_normal([1.0, 10.0], covariance, check_count(n, "n", 1)).T
        t = np.sort(rng.uniform(0, 8, (n, self.n_times)), axis=1)
        y = K[:, None] / (1 + (K[:, None] - 1) * np.exp(-r[:, None] * t))
        y[rng.uniform(size=y.shape) < self.missing] = np.nan
        return y[..., None], t, {"r": r, "K": K}

    def field(self, t: Any, y: Any, **parameters: Any) -> list[Any]:
        """The right-hand side for one state."""
        r, K = parameters["r"], parameters["K"]
        return [r * y[0] * (1 - y[0] / K)]
