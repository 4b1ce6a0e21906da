r"""Maximum mean discrepancy of one output from frequencies, in time linear in the rows of a ball.

A sum of Gaussian kernels is a Fourier series, if repeated with a period that no pair of values reaches:

.. math::
    \sum_s e^{-u^2 / b_s} = \sum_{|k| \le K} c_k e^{i \omega_k u}, \quad
    c_k = \sum_s \frac{\sqrt{\pi b_s}}{T} e^{-b_s \omega_k^2 / 4}, \quad \omega_k = \frac{2 \pi k}{T},

so that the discrepancy is :math:`\sum_k c_k |\varphi_k(y) - \varphi_k(\hat y)|^2`, where
:math:`\varphi_k` is the mean of :math:`e^{i \omega_k u}` over the ball. T and K are chosen so that what the
series leaves out is below the rounding of a kernel. About 30 frequencies do for single precision and 60 for
double.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Complex numbers in a scratch array: within a core's second-level cache.
SCRATCH_NUMBERS = 1 << 17
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def measure_periods(y: Tensor, yhat: Tensor, shares: Tensor, bandwidths: Tensor) -> Tensor:
    """A period (n,) for each ball: its range and the reach of its widest kernel.

    y, yhat and ``shares`` are (n, w), where rows of share 0 do not count; ``bandwidths`` is (n, kernels).
    """
    inside = shares > 0
    high = torch.where(inside, torch.maximum(y, yhat), -math.inf).amax(1)
    low = torch.where(inside, torch.minimum(y, yhat), math.inf).amin(1)
    return high - low + _reach(y.dtype) * bandwidths.amax(1).sqrt()


def count_frequencies(periods: Tensor, bandwidths: Tensor) -> Tensor:
    """How many frequencies (n,) the narrowest kernel of each ball takes."""
    highest = 2 * _reach(periods.dtype) / bandwidths.amin(1).sqrt()
    return (highest * periods / (2 * math.pi)).ceil()


def _reach(dtype: torch.dtype) -> float:
    """Where exp(-u^2) is below the rounding of 1."""
    return math.sqrt(-math.log(torch.finfo(dtype).eps / 8))


def compare_spectra(
    y: Tensor, yhat: Tensor, shares: Tensor, bandwidths: Tensor, periods: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The discrepancy of each ball (n,) and its slope in yhat (n, w), from ``count`` frequencies.

    The shares (n, w) of the rows sum to 1 in every ball and are 0 for padding.

    >>> y = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    >>> ball, halves, one = (y, y + 1), torch.full_like(y, 0.5), torch.ones_like(y[:, :1])
    >>> periods = measure_periods(*ball, halves, one)
    >>> loss, _ = compare_spectra(*ball, halves, one, periods, int(count_frequencies(periods, one)))
    >>> bool((loss - (1 - math.exp(-4)) / 2).abs() < 1e-15)  # (1 + 1/e) - (1 + 2/e + e^-4) / 2
    True
    """
    step = max(1, SCRATCH_NUMBERS // (count * y.shape[1]))
    if step < len(y):
        cuts = [slice(low, low + step) for low in range(0, len(y), step)]
        parts = [
            compare_spectra(y[cut], yhat[cut], shares[cut], bandwidths[cut], periods[cut], count)
            for cut in cuts
        ]
        return torch.cat([loss for loss, _ in parts]), torch.cat([slope for _, slope in parts])
    base = 2 * math.pi / periods.double()
    omega = (base[:, None] * torch.arange(1, count + 1, device=y.device)).to(y)
    widths = bandwidths[:, None]
    weights = (2 / periods)[:, None] * (
        (math.pi * widths).sqrt() * torch.exp(omega.square()[..., None] * widths / -4)
    ).sum(2)
    # Real and imaginary parts side by side, as real products are several times as fast as complex ones.
    mass = torch.einsum("nw,ab->nwab", shares, torch.eye(2).to(shares)).flatten(1, 2)
    waves = _raise(base[:, None] * yhat.double(), count, y.dtype)
    gap = _raise(base[:, None] * y.double(), count, y.dtype) @ mass - waves @ mass
    losses = (weights * gap.square().sum(2)).sum(1)
    pull = gap.mT * (weights * omega)[:, None]
    turned = (pull @ waves).unflatten(2, (-1, 2))
    return losses, 2 * shares * (turned[:, 0, :, 1] - turned[:, 1, :, 0])


def _raise(angle: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The powers 1 to ``count`` of exp(i angle) as pairs of numbers, (n, count, 2 w).

    Each half is the product of the one before and a factor in double precision: an error of the angle would
    grow with the power.
    """
    kind = COMPLEX[dtype]
    n, width = angle.shape
    factor = torch.polar(torch.ones_like(angle), angle)
    powers = torch.empty((n, count, width), dtype=kind, device=angle.device)
    powers[:, 0] = factor
    done = 1
    while done < count:
        more = min(done, count - done)
        torch.mul(powers[:, :more], factor.to(kind)[:, None], out=powers[:, done : done + more])
        factor, done = factor * factor, done + more
    return torch.view_as_real(powers).flatten(2)
