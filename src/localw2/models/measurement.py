"""Errors of measurement: fresh at every observation, unlike omega, which belongs to a trajectory."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn

from localw2._validation import check_number
from localw2.models.base import normal

KINDS = ("additive", "proportional", "combined")
# A proportional error has no size where the state is 0; this part of the usual size of a state stands there.
FLOOR = 1e-6


@final
class MeasurementNoise(nn.Module):
    r"""Gaussian errors of p observed quantities, with standard deviations that are known or learned.

    ``kind`` is "additive" (SD :math:`a`), "proportional" (:math:`b\,|f|` at the true value f), "combined"
    (:math:`\sqrt{a^2 + b^2 f^2}`), or a number: a known additive SD of all quantities. ``size`` (p,) is the
    usual size of each quantity; learning starts at ``guess`` (p,) times it, or times 1 for a proportional
    error.

    >>> noise = MeasurementNoise("combined", torch.tensor([10.0]).double(), torch.tensor([0.1]).double())
    >>> [round(v, 4) for v in noise.std(torch.tensor([[0.0], [10.0]]).double()).flatten().tolist()]
    [1.0, 1.4142]
    """

    def __init__(self, kind: Any, size: Tensor, guess: Tensor | None = None) -> None:
        super().__init__()
        self.kind = check_noise(kind)
        self.register_buffer("size", size.detach().clone(), persistent=True)
        self.size: Tensor
        guess = torch.full_like(size, 0.1) if guess is None else guess.to(size)
        # Logarithms of the standard deviations, additive ones in units of the size.
        self.log_std = nn.ParameterDict()
        if not isinstance(self.kind, str):
            known = torch.full_like(size, math.log(self.kind)) - size.log()
            self.log_std["additive"] = nn.Parameter(known, requires_grad=False)
            return
        for part in self.parts:
            self.log_std[part] = nn.Parameter(guess.log().clone())

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the standard deviations."""
        if self.kind == "combined":
            return ("additive", "proportional")
        return (self.kind,) if isinstance(self.kind, str) else ("additive",)

    @property
    def learned(self) -> bool:
        """Whether the standard deviations are learned."""
        return isinstance(self.kind, str)

    def std(self, exact: Tensor) -> Tensor:
        """The standard deviation of the error at exact values (..., p)."""
        variance = (FLOOR * self.size).square().expand_as(exact)
        if "additive" in self.log_std:
            variance = variance + (self.log_std["additive"].exp() * self.size).square()
        if "proportional" in self.log_std:
            variance = variance + (self.log_std["proportional"].exp() * exact).square()
        return variance.sqrt()

    def forward(self, exact: Tensor) -> Tensor:
        """The standard deviation of the error at exact values (..., p)."""
        return self.std(exact)

    def draw(self, exact: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Exact values (..., p) with a fresh error each."""
        return exact + self.std(exact) * normal(tuple(exact.shape), exact, generator)

    def table(self) -> dict[str, list[float]]:
        """The standard deviations of every quantity, additive ones in its units."""
        found = {}
        for part in self.parts:
            values = self.log_std[part].detach().exp()
            found[part] = (values * self.size if part == "additive" else values).tolist()
        return found


def check_noise(kind: Any) -> Any:
    """The kind of noise, checked: one of ``KINDS``, or a known standard deviation."""
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(
                f"noise={kind!r} is unknown; give one of {', '.join(KINDS)}, a known standard deviation, or "
                "None if Y is exact."
            )
        return kind
    words = f"a positive number, the known standard deviation of the error, or one of {', '.join(KINDS)}"
    return float(check_number(kind, "noise", lambda v: 0 < v < math.inf, words))
