r"""Paths compared as wholes: parameters that vary between paths, and errors of measurement.

A transition does not know the omega of its path, and from a noisy state no transition can be simulated. What
can be compared is any function of whole paths, the same for observed and simulated ones: the truth minimises
the debiased loss whatever the function. Here it is what a fit of each path alone would give: two steps of
Fisher scoring of the Gaussian pseudo-likelihood of its transitions, drawn to the population. With errors of
measurement the correlations of its residuals at lags one and two join it, which tell noise that is fresh at
every observation from noise that moves the state.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from localw2.models.base import RandomMap, normal
from localw2.models.sde import StochasticEquation, follow

# Steps of learning the size of errors of measurement relative to those of other parameters.
_NOISE_STEP = 3.0
# The least part of the spread of first observations that is due to the states themselves.
_LEAST_SIGNAL = 0.05
# Steps of Fisher scoring of each path, and how far these may go, in units of a parameter.
SCORING_STEPS, FARTHEST = 2, 8.0
# Of a parameter, in its units, by which slopes are found.
_DIFFERENCE = 1e-4


@final
class Errors(nn.Module):
    """Errors of measurement with one SD per state, learned or known, or ``relative`` to the state."""

    def __init__(self, std: Tensor, known: bool, relative: bool = False) -> None:
        super().__init__()
        self.relative = relative
        self.register_buffer("unit", std.clone())
        self.log = nn.Parameter(torch.zeros_like(std), requires_grad=not known)

    @property
    def std(self) -> Tensor:
        """The SD (d,) of each state's errors, relative or not."""
        return self.get_buffer("unit") * torch.exp(_NOISE_STEP * self.log)

    def at(self, states: Tensor) -> Tensor:
        """The SD of errors at states (..., d)."""
        return self.std * states.abs() if self.relative else self.std.expand_as(states)


def moments(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance (m,) of values (n, m), whose rows have weights (n,)."""
    share = values.new_full((len(values), 1), 1 / len(values))
    if weights is not None:
        share = (weights / weights.sum()).to(values)[:, None]
    mean = (share * values).sum(0)
    return mean, (share * (values - mean).square()).sum(0)


@final
class WholePaths(RandomMap):
    """Features (N, m) of simulated paths; a row is the number of a path, whose start and times are known.

    ``times`` (n, T) repeat the last one where a path is shorter, and ``there`` (n, T) says where it is not.
    ``weights`` (n,) are those of the paths.
    """

    def __init__(
        self,
        equation: StochasticEquation,
        values: Tensor,
        times: Tensor,
        there: Tensor,
        step: float,
        errors: Errors | None,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        assert equation.law is not None
        self.equation, self.step, self.errors = equation, step, errors
        self.law = equation.law
        for name, tensor in (("start", values[:, 0]), ("times", times), ("there", there)):
            self.register_buffer(name, tensor.clone(), persistent=False)
        mean, variance = moments(values[:, 0], weights)
        self.register_buffer("first_mean", mean, persistent=False)
        self.register_buffer("first_variance", variance, persistent=False)
        none = self.law.location.new_zeros(1, len(self.law.random_names))
        with torch.no_grad():
            self.register_buffer("reference", self.law.scores(none)[0], persistent=False)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Noise of the random parameters of n paths."""
        return self.law.draw(n, generator)

    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """Features of one simulated path for each number in x (N, 1)."""
        number = x[:, 0].long()
        omega = self.draw(len(x), generator) if omega is None else omega
        start, times = self.get_buffer("start")[number], self.get_buffer("times")[number]
        first = start
        if self.errors is not None:
            # Given a first observation, the state is nearer to the mean of all, and uncertain.
            variance, total = self.errors.at(start).square(), self.get_buffer("first_variance")
            mean = self.get_buffer("first_mean")
            usual = self.errors.at((mean.square() + total).sqrt()).square()
            own = torch.maximum(total - usual, _LEAST_SIGNAL * total)
            signal = own / (own + variance).clamp_min(1e-300)
            z = normal(tuple(start.shape), start, generator)
            # The root has no slope at 0, where all paths start at one value.
            unsure = (variance * signal).clamp_min(torch.finfo(start.dtype).tiny).sqrt()
            first = mean + signal * (start - mean) + unsure * z
        paths = follow(self.equation, first, times, self.step, omega, generator)
        if self.errors is not None:
            paths = paths + self.errors.at(paths) * normal(tuple(paths.shape), paths, generator)
            paths = torch.cat([start[:, None], paths[:, 1:]], 1)
        return self.features(paths, number)

    def features(self, paths: Tensor, number: Tensor) -> Tensor:
        """What a fit of each path (N, T, d) alone would give, (N, m)."""
        times, there = self.get_buffer("times")[number], self.get_buffer("there")[number]
        both = (there[:, 1:] & there[:, :-1])[..., None]
        n, count, d = len(paths), times.shape[1] - 1, paths.shape[2]
        h = (times[:, 1:] - times[:, :-1])[..., None]
        h = torch.where(both, h, 1.0)
        y, change = paths[:, :-1], paths[:, 1:] - paths[:, :-1]
        at, t = self.equation.inside(y).reshape(-1, d), times[:, :-1].reshape(-1)

        def coefficients(scores: Tensor) -> tuple[Tensor, Tensor]:
            values = self.law.values_of(scores.repeat_interleave(count, 0))
            a, b = self.equation.drift(t, at, values), self.equation.diffusion(t, at, values)
            return a, b.abs() if b.ndim == 2 else b.square().sum(2).sqrt()

        reference = self.get_buffer("reference").expand(n, -1)
        moves = torch.eye(reference.shape[1]).to(reference)
        moved = torch.zeros_like(reference)
        first: Tensor | None = None
        for _ in range(SCORING_STEPS):
            now = reference + moved
            a, b = coefficients(now)
            # Central differences: any function that observed and simulated paths share will do.
            ends = [(coefficients(now + _DIFFERENCE * m), coefficients(now - _DIFFERENCE * m)) for m in moves]
            slopes = [torch.stack([(u[i] - v[i]) / (2 * _DIFFERENCE) for u, v in ends], -1) for i in (0, 1)]
            a, b = a.view(n, count, d), b.view(n, count, d).clamp_min(1e-12)
            in_a, in_b = (v.view(n, count, d, -1) for v in slopes)
            r = torch.where(both, (change - a * h) / (b * h.sqrt()), 0.0)
            first = r if first is None else first
            weight = both.to(r) / b
            by_a, by_b = in_a * (weight * h.sqrt())[..., None], in_b * weight[..., None]
            score = torch.einsum("ntd,ntdk->nk", r, by_a)
            score = score + torch.einsum("ntd,ntdk->nk", r.square() - 1, by_b)
            information = torch.einsum("ntdk,ntdl->nkl", by_a, by_a)
            information = information + 2 * torch.einsum("ntdk,ntdl->nkl", by_b, by_b)
            step = torch.linalg.solve(information + moves, (score - moved)[..., None])[..., 0]
            moved = (moved + step).clamp(-FARTHEST, FARTHEST)
        assert first is not None
        found, r = [moved], first
        if self.errors is not None:
            for lag in (1, 2):
                pairs = (both[:, lag:] & both[:, :-lag]).sum(1).clamp_min(1)
                found.append((r[:, lag:] * r[:, :-lag]).sum(1) / pairs)
        return torch.cat(found, 1)
