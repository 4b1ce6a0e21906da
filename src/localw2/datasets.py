"""A real table, and problems with known truth: data, and exact laws or moments to compare with.

``load_penguins`` reads a small table with categories and missing values. ``Linear``, ``Nonlinear`` and
``FourStates`` are the paper's. ``ZOO`` has laws of all shapes: several modes, skew, noise that grows,
dependence between outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, final

import numpy as np
from scipy import stats
from scipy.linalg import expm

from localw2._validation import Array, as_rows, check_count


def load_penguins() -> tuple[Any, Any]:
    """342 penguins of three species: a frame of seven columns, and the body mass in grams.

    ``species``, ``island`` and ``sex`` are categorical, the sizes of bill and flipper are in mm, and the sex
    of nine penguins is missing. Two penguins without a mass are left out. The data are those of Gorman,
    Williams and Fraser (2014) as published in the R package palmerpenguins (Horst, Hill and Gorman, 2020;
    CC0).

    >>> X, mass = load_penguins()
    >>> X.shape, int(X["sex"].isna().sum()), float(mass.mean().round())
    ((342, 7), 9, 4202.0)
    """
    import pandas as pd

    with (files("localw2") / "data" / "penguins.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file).dropna(subset="body_mass_g").reset_index(drop=True)
    return table.drop(columns="body_mass_g"), table["body_mass_g"]


@dataclass(frozen=True)
class RandomModel(ABC):
    """A known random model y = f(x, omega), with data and exact moments."""

    @abstractmethod
    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, p)."""

    @abstractmethod
    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output per input, each with its own omega, (n,), or (n, d) for several outputs."""

    @abstractmethod
    def mean(self, x: Any) -> Array:
        """Expectation of y at each x, (n,) or (n, d)."""

    @abstractmethod
    def std(self, x: Any) -> Array:
        """Standard deviation of y at each x, (n,) or (n, d)."""

    def sample(self, n: int, random_state: Any = None) -> tuple[Array, Array]:
        """Draw n pairs: x (n, p), and y (n,) or (n, d)."""
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


@dataclass(frozen=True)
class Mixture(RandomModel):
    """A random model whose y is drawn from one of K components, chosen afresh for every row."""

    @abstractmethod
    def components(self, x: Array) -> tuple[Array, Any]:
        """The weights (n, K) of the components at inputs (n, p), and their laws, a frozen one of scipy."""

    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output per input, (n,)."""
        weights, laws = self.components(x)
        chosen = (rng.uniform(size=(len(x), 1)) > np.cumsum(weights, 1)[:, :-1]).sum(1)
        return _of_rows(laws.rvs(weights.shape, random_state=rng), chosen)

    def cdf(self, x: Any, y: Any) -> Array:
        """The probability (m, n) of an output of at most y (m,) or (m, n), at each x."""
        weights, laws = self.components(as_rows(x))
        y = np.asarray(y, dtype=np.float64)
        values = y[:, :, None] if y.ndim == 2 else y[:, None, None]
        found: Array = (weights * laws.cdf(values)).sum(-1)
        return found

    def mean(self, x: Any) -> Array:
        """The exact expectation, (n,)."""
        weights, laws = self.components(as_rows(x))
        found: Array = (weights * laws.mean()).sum(1)
        return found

    def std(self, x: Any) -> Array:
        """The exact standard deviation, (n,)."""
        weights, laws = self.components(as_rows(x))
        means = laws.mean()
        center = (weights * means).sum(1, keepdims=True)
        found: Array = np.sqrt((weights * (laws.var() + (means - center) ** 2)).sum(1))
        return found


@dataclass(frozen=True)
class _OnInterval(Mixture):
    """A mixture whose only input is uniform on ``(low, high)``."""

    low: float = 0.0
    high: float = 1.0

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 1)."""
        return rng.uniform(self.low, self.high, (n, 1))


@final
@dataclass(frozen=True)
class Humps(_OnInterval):
    r"""Two separate modes, :math:`y = x \pm 2 + e`, :math:`e \sim N(0, .5^2)`, x uniform on (-1, 1).

    >>> Humps().cdf([0.0], [-0.8, 0.8]).ravel().round(4)  # hardly anything lies between the modes
    array([0.4959, 0.5041])
    """

    low: float = -1.0

    def components(self, x: Array) -> tuple[Array, Any]:
        """Two Gaussians."""
        return _equal(x + np.array([-2.0, 2.0]), 0.5)


@final
@dataclass(frozen=True)
class TwoModes(_OnInterval):
    r"""Two Gaussians of SD .25, :math:`1 + 2x` apart around :math:`\sin 2\pi x`; the upper has mass .2 + .6x.

    >>> TwoModes().mean([0.0, 1.0]).round(2)
    array([-0.3,  0.9])
    """

    def components(self, x: Array) -> tuple[Array, Any]:
        """Two Gaussians."""
        upper = 0.2 + 0.6 * x
        centers = np.sin(2 * np.pi * x) + (0.5 + x) * [-1.0, 1.0]
        return np.hstack([1 - upper, upper]), stats.norm(centers, 0.25)


@final
@dataclass(frozen=True)
class Fork(_OnInterval):
    r"""A fork, :math:`y = \pm\max(x, 0) + e`, :math:`e \sim N(0, .1^2)`, x uniform on (-1, 1)."""

    low: float = -1.0

    def components(self, x: Array) -> tuple[Array, Any]:
        """Two Gaussians, which are one for x < 0."""
        return _equal(np.maximum(x, 0) * [-1.0, 1.0], 0.1)


@final
@dataclass(frozen=True)
class GrowingNoise(Mixture):
    r"""Noise that grows, :math:`y = x^2 + (1 + x) e`, with standard normal e and :math:`x = |N(0, 1)|`."""

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 1)."""
        return np.abs(rng.normal(size=(n, 1)))

    def components(self, x: Array) -> tuple[Array, Any]:
        """One Gaussian."""
        return _equal(x**2, 1 + x)


@final
@dataclass(frozen=True)
class RareLow(_OnInterval):
    r"""Now and then too low: :math:`.95 N(m, .05^2) + .05 N(m - .3, .1^2)` with m = .01 + .9x."""

    def components(self, x: Array) -> tuple[Array, Any]:
        """Two Gaussians, the second with a twentieth of the mass."""
        weights = np.broadcast_to([0.95, 0.05], (len(x), 2))
        return weights, stats.norm(0.01 + 0.9 * x + [0.0, -0.3], [0.05, 0.1])


@final
@dataclass(frozen=True)
class ChangingSkew(_OnInterval):
    r"""Skew normal: location .1x, scale :math:`.05 + .1x^2`, shape :math:`-4 + 4/(1 + e^{-x})`."""

    low: float = -3.0
    high: float = 3.0

    def components(self, x: Array) -> tuple[Array, Any]:
        """One skew normal."""
        skew = -4 + 4 / (1 + np.exp(-x))
        return np.ones((len(x), 1)), stats.skewnorm(skew, 0.1 * x, 0.05 + 0.1 * x**2)


@final
@dataclass(frozen=True)
class TwoCurves(_OnInterval):
    r"""By a coin :math:`\sin(x - \pi/2)` or :math:`\cos x`, Laplace noise of scale x/30, x on (0, 2 pi)."""

    high: float = 2 * np.pi

    def components(self, x: Array) -> tuple[Array, Any]:
        """Two Laplace laws."""
        centers = np.hstack([np.sin(x - np.pi / 2), np.cos(x)])
        return np.full(centers.shape, 0.5), stats.laplace(centers, np.maximum(x, 1e-9) / 30)


@final
@dataclass(frozen=True)
class Branches(_OnInterval):
    """Up to four branches: centres x, and 2s - x for every s in {0, .33, .66} below x; SD .1."""

    starts: tuple[float, ...] = (0.0, 0.33, 0.66)

    def components(self, x: Array) -> tuple[Array, Any]:
        """As many Gaussians of equal mass as there are branches at x."""
        starts = np.array(self.starts)
        there = np.hstack([np.ones_like(x), starts < x])
        return there / there.sum(1, keepdims=True), stats.norm(np.hstack([x, 2 * starts - x]), 0.1)


@final
@dataclass(frozen=True)
class TwoBands(_OnInterval):
    r"""Two narrow bands, :math:`m(x) \pm d(x) + N(0, .04^2)`, whose distance and middle both bend."""

    def components(self, x: Array) -> tuple[Array, Any]:
        """Two Gaussians."""
        middle = 0.5 + 0.2 * x + np.exp(-5 * (x - 0.6) ** 2) + 0.4 * np.sin(x / 2)
        half = 0.38 + 0.1 * np.exp(-((x - 0.7) ** 2) / (2 * 0.14**2))
        return _equal(middle + half * [-1.0, 1.0], 0.04)


@final
@dataclass(frozen=True)
class InverseSine(RandomModel):
    r"""The inverse of a curve that is not monotone: y from :math:`x = y + .3 \sin 2\pi y + N(0, .08^2)`.

    y is uniform on (0, 1), so its density given x is proportional to that of x given y there. Probabilities
    are sums over ``n_steps`` steps of y, exact to 1e-4, and moments to 1e-6.
    """

    noise: float = 0.08
    n_steps: int = 4000

    def sample(self, n: int, random_state: Any = None) -> tuple[Array, Array]:
        """Draw n pairs: y first, and x from it."""
        rng = np.random.default_rng(random_state)
        y = rng.uniform(size=check_count(n, "n", 1))
        return (self.curve(y) + self.noise * rng.normal(size=n))[:, None], y

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 1)."""
        return self.sample(n, rng)[0]

    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one output per input, (n,): uniform proposals, accepted by the density of x given y."""
        curve = self.curve(self._steps())
        nearest = (x[:, 0] - np.clip(x[:, 0], curve.min(), curve.max())) ** 2
        y, left = np.empty(len(x)), np.arange(len(x))
        while len(left):
            proposed = rng.uniform(size=len(left))
            excess = (x[left, 0] - self.curve(proposed)) ** 2 - nearest[left]
            accepted = rng.exponential(size=len(left)) > excess / (2 * self.noise**2)
            y[left[accepted]] = proposed[accepted]
            left = left[~accepted]
        return y

    def cdf(self, x: Any, y: Any) -> Array:
        """The probability (m, n) of an output of at most y (m,) or (m, n), at each x."""
        edges, below = self._steps(), self._table(as_rows(x))
        y = np.asarray(y, dtype=np.float64)
        values = y if y.ndim == 2 else np.repeat(y[:, None], len(below), 1)
        found = [np.interp(column, edges, row) for column, row in zip(values.T, below, strict=True)]
        return np.stack(found, 1)

    def mean(self, x: Any) -> Array:
        """The expectation, (n,)."""
        return self._moment(x, 1)

    def std(self, x: Any) -> Array:
        """The standard deviation, (n,)."""
        found: Array = np.sqrt(self._moment(x, 2) - self._moment(x, 1) ** 2)
        return found

    @staticmethod
    def curve(y: Array) -> Array:
        """What x is without noise."""
        found: Array = y + 0.3 * np.sin(2 * np.pi * y)
        return found

    def _steps(self) -> Array:
        return np.linspace(0, 1, self.n_steps + 1)

    def _masses(self, x: Array) -> Array:
        """The probability (n, n_steps) of each step of y, by the density at its middle."""
        middles = self._steps()[:-1] + 0.5 / self.n_steps
        exponents = -((x - self.curve(middles)) ** 2) / (2 * self.noise**2)
        masses = np.exp(exponents - exponents.max(1, keepdims=True))
        found: Array = masses / masses.sum(1, keepdims=True)
        return found

    def _table(self, x: Array) -> Array:
        below = np.cumsum(self._masses(x), 1)
        return np.hstack([np.zeros((len(x), 1)), below / below[:, -1:]])

    def _moment(self, x: Any, power: int) -> Array:
        middles = self._steps()[:-1] + 0.5 / self.n_steps
        found: Array = self._masses(as_rows(x)) @ middles**power
        return found


@final
@dataclass(frozen=True)
class Circle(RandomModel):
    r"""Two outputs on a circle: :math:`y = 10 (\cos\theta, \sin\theta) + N(0, .5^2 I)`.

    They are uncorrelated, and yet far from independent. x is uniform on (0, 1) and says nothing about them.
    """

    radius: float = 10.0
    noise: float = 0.5

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 1), uniform on (0, 1)."""
        return rng.uniform(size=(n, 1))

    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one row of outputs per input, (n, 2)."""
        angle = rng.uniform(0, 2 * np.pi, len(x))
        points = np.column_stack([np.cos(angle), np.sin(angle)])
        y: Array = self.radius * points + self.noise * rng.normal(size=(len(x), 2))
        return y

    def mean(self, x: Any) -> Array:
        """0, (n, 2)."""
        return np.zeros((len(as_rows(x)), 2))

    def std(self, x: Any) -> Array:
        """The standard deviation of each output, (n, 2)."""
        return np.full((len(as_rows(x)), 2), np.sqrt(self.radius**2 / 2 + self.noise**2))


@final
@dataclass(frozen=True)
class JointModes(RandomModel):
    r"""Two outputs, two modes: :math:`y = \pm 2 (\cos\phi, \sin\phi) + N(0, .3^2 I)`, :math:`\phi = \pi x`.

    Each output alone has two modes at most x; independent outputs with the same margins would have four.
    x is uniform on (0, 1).
    """

    distance: float = 2.0
    noise: float = 0.3

    def sample_x(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n inputs, (n, 1)."""
        return rng.uniform(size=(n, 1))

    def sample_y(self, x: Array, rng: np.random.Generator) -> Array:
        """Draw one row of outputs per input, (n, 2)."""
        sign = rng.choice([-1.0, 1.0], (len(x), 1))
        y: Array = sign * self._center(x) + self.noise * rng.normal(size=(len(x), 2))
        return y

    def mean(self, x: Any) -> Array:
        """0, (n, 2)."""
        return np.zeros((len(as_rows(x)), 2))

    def std(self, x: Any) -> Array:
        """The standard deviation of each output, (n, 2)."""
        return np.sqrt(self._center(as_rows(x)) ** 2 + self.noise**2)

    def _center(self, x: Array) -> Array:
        angle = np.pi * x[:, 0]
        return self.distance * np.column_stack([np.cos(angle), np.sin(angle)])


ZOO: dict[str, RandomModel] = {
    "humps": Humps(),
    "two modes": TwoModes(),
    "fork": Fork(),
    "branches": Branches(),
    "two curves": TwoCurves(),
    "two bands": TwoBands(),
    "inverse sine": InverseSine(),
    "rare low": RareLow(),
    "changing skew": ChangingSkew(),
    "growing noise": GrowingNoise(),
    "circle": Circle(),
    "joint modes": JointModes(),
}
"""Laws of all shapes by name; the last two have two outputs."""


def _equal(centers: Array, std: Any) -> tuple[Array, Any]:
    """Gaussians of equal mass."""
    return np.full(centers.shape, 1 / centers.shape[1]), stats.norm(centers, std)


def _of_rows(values: Array, chosen: Array) -> Array:
    """The chosen entry of every row."""
    return values[np.arange(len(values)), chosen]


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
