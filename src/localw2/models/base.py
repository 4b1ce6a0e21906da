"""The base class of random models: a function of x and omega, and a way to draw omega."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from localw2._validation import check_count

# Pairs of row and draw simulated at a time. On a CPU the activations of typical networks then stay in cache,
# which is 2.5 times faster than 2^18; a GPU needs more at once, which takes a few hundred MB.
SAMPLE_ROWS = 1 << 13
SAMPLE_ROWS_GPU = 1 << 18


class RandomMap(nn.Module, ABC):
    r"""A random model :math:`\hat y = \hat f(x, \hat\omega)`.

    ``omega = model.draw(n)`` draws the latent variables of n rows. They do not depend on the parameters, so
    ``model(x, omega)`` is an ordinary differentiable function. With ``omega=None`` a model may draw outputs
    in any cheaper way that has the same distribution. Random numbers come from ``generator``, or from fresh
    entropy without one. Your own module becomes a random model in a few lines:

    >>> class Oscillator(RandomMap):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.log_rate = nn.Parameter(torch.zeros(()))
    ...         self.spread = nn.Parameter(torch.ones(()))
    ...     def draw(self, n, generator=None):
    ...         return torch.randn(n, 1, generator=generator)
    ...     def forward(self, x, omega=None, generator=None):
    ...         omega = self.draw(len(x), generator) if omega is None else omega
    ...         return torch.sin(self.log_rate.exp() * x) + self.spread * omega
    >>> Oscillator().sample(torch.zeros(5, 1), n_samples=3).shape
    torch.Size([3, 5, 1])
    """

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Latent variables of n rows, independent of each other and of the parameters."""

    @abstractmethod
    def forward(self, x: Tensor, omega: Any = None, generator: torch.Generator | None = None) -> Tensor:
        """Outputs (N, d) for inputs (N, p), each row with its own omega."""

    def simulate(self, x: Tensor, n_draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Several independent draws at every row, (S, N, d), with gradients."""
        check_rows_of(x)
        outputs: Tensor = self(x.repeat(n_draws, 1), None, generator)
        return outputs.reshape(n_draws, len(x), *outputs.shape[1:])

    @torch.no_grad()
    def sample(self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws at every row, (S, N, d), without gradients and in bounded memory."""
        check_rows_of(x)
        n_samples = check_count(n_samples, "n_samples", 1)
        generator = source(generator, x.device)
        return in_chunks(lambda part, s: self.simulate(part, s.stop - s.start, generator), x, n_samples)

    @torch.no_grad()
    def sample_common(
        self, x: Tensor, n_samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws (S, N, d) whose latent noise is shared between rows: for means, quantiles and the like.

        Draw s is one function of x, so that a row's values depend only on that row and the generator, not on
        the other rows. At any single row a draw has the same distribution as in ``sample``. If S is even,
        Gaussian models draw antithetic pairs (draws s and s + S/2): means are then more accurate, but the S
        draws are not independent of each other.
        """
        check_rows_of(x)
        omega = self.draw(check_count(n_samples, "n_samples", 1), source(generator, x.device))
        # A user's omega can be large (every weight of a network), so its numbers count as well as its rows.
        limit = max(1, _limit(x) * 50 // max(50, _numbers(omega) // n_samples))

        def evaluate(part: Tensor, s: slice) -> Tensor:
            draws = torch.arange(s.start, s.stop, device=x.device).repeat_interleave(len(part))
            outputs: Tensor = self(part.repeat(s.stop - s.start, 1), _take(omega, draws))
            return outputs.reshape(s.stop - s.start, len(part), *outputs.shape[1:])

        return in_chunks(evaluate, x, n_samples, limit)


def in_chunks(
    evaluate: Callable[[Tensor, slice], Tensor], x: Tensor, n_samples: int, limit: int | None = None
) -> Tensor:
    """Outputs (S, N, ...) of ``evaluate(rows, draws)``, at most ``limit`` pairs of row and draw at a time."""
    limit = limit or _limit(x)
    step = min(n_samples, limit)
    draws = [slice(a, min(a + step, n_samples)) for a in range(0, n_samples, step)]
    parts = x.split(max(1, limit // n_samples))
    return torch.cat([torch.cat([evaluate(part, s) for s in draws]) for part in parts], dim=1)


def source(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """The generator, or a new one with fresh entropy; torch's global generator is never used."""
    if generator is None:
        generator = torch.Generator("cpu" if device.type == "meta" else device)  # "meta" has no numbers
        generator.seed()
    return generator


class NoiseSource(Protocol):
    """A substitute for a generator, such as noise that is keyed by row or drawn beforehand."""

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal numbers with the dtype and device of ``like``."""
        ...


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | NoiseSource | None) -> Tensor:
    """Standard normal numbers with the dtype and device of ``like``."""
    if generator is not None and not isinstance(generator, torch.Generator):
        return generator.normal(shape, like)
    generator = source(generator, like.device)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def paired_normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers, as antithetic pairs z, -z if the number of draws (first axis) is even."""
    if shape[0] % 2:
        return normal(shape, like, generator)
    half = normal((shape[0] // 2, *shape[1:]), like, generator)
    return torch.cat([half, -half])


def check_rows_of(x: Any) -> None:
    """Raise unless x is a tensor (N, p)."""
    if not isinstance(x, Tensor) or x.ndim != 2:
        came = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x is {came}; expected a tensor (rows, inputs); use x[:, None] for one input.")


def check_inputs(x: Any, n_inputs: int, like: Tensor) -> None:
    """Raise unless x is a tensor (N, n_inputs) of the model's dtype."""
    check_rows_of(x)
    if x.shape[1] != n_inputs:
        raise ValueError(
            f"x has {x.shape[1]} column(s) and the model has {n_inputs} input(s); they must agree."
        )
    if x.dtype != like.dtype:
        raise ValueError(
            f"x is {x.dtype} and the model is {like.dtype}; convert one, as in x.to({like.dtype})."
        )


def check_omega(omega: Any, shape: tuple[int, ...], name: str = "omega") -> None:
    """Raise unless omega is a tensor of this shape."""
    if not isinstance(omega, Tensor) or tuple(omega.shape) != shape:
        came = f"of shape {tuple(omega.shape)}" if isinstance(omega, Tensor) else type(omega).__name__
        raise ValueError(f"{name} is {came}; expected a tensor {shape}: use model.draw({shape[0]}).")


def _limit(x: Tensor) -> int:
    return SAMPLE_ROWS if x.device.type == "cpu" else SAMPLE_ROWS_GPU


def _take(omega: Any, index: Tensor) -> Any:
    """The latent variables of some draws, in a tensor or (nested) lists, tuples and dicts of tensors."""
    if isinstance(omega, Tensor):
        return omega[index]
    if isinstance(omega, dict):
        return {name: _take(value, index) for name, value in omega.items()}
    if isinstance(omega, list | tuple):
        parts = [_take(value, index) for value in omega]
        return type(omega)(*parts) if hasattr(omega, "_fields") else type(omega)(parts)
    raise ValueError(
        f"draw returned {type(omega).__name__}, which sample_common cannot index by row; return a tensor or "
        "a list, tuple or dict of tensors (rows first), or override sample_common."
    )


def _numbers(omega: Any) -> int:
    if isinstance(omega, Tensor):
        return omega.numel()
    parts = omega.values() if isinstance(omega, dict) else omega if isinstance(omega, list | tuple) else ()
    return sum(map(_numbers, parts))
