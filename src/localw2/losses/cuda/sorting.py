"""Squared W2 of one output on a CUDA device: the sort inside every ball, value and gradient in one kernel.

Besides one sort of all rows, a step takes one launch for each power of two among the ball sizes; sorts by
torch take about fifty, and a small problem spends most of its time on launches (``ball_sorting.cu``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from localw2.losses.cuda.kernels import available, kernel
from localw2.losses.problem import Match

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

# Bytes of shared memory that a block has on every device; a position of a ball takes 4 of them per draw.
SHARED_BYTES = 48 * 1024 - 512
NARROWEST = 32  # the fewest positions of a ball: those of a warp
MOST_THREADS = 512
_REALS = {torch.float32: "REAL=float", torch.float64: "REAL=double"}
_KERNEL = ("ball_sorting.cu", "match_balls")


def can_sort(hoods: Neighborhoods, yhat: Tensor) -> bool:
    """Whether the kernel can handle simulated outputs (S, B, N, 1) on these balls."""
    if yhat.device.type != "cuda" or yhat.dtype not in _REALS or yhat.shape[1] > 65535:
        return False
    widest = hoods.compute_once("widest", lambda: max(int(w) for w in _widths(hoods.sizes).unique()))
    fits = 4 * widest * len(yhat) <= SHARED_BYTES
    return fits and available(*_KERNEL, yhat.device, (_REALS[yhat.dtype],))


def _widths(sizes: Tensor) -> Tensor:
    """The least power of two that holds each ball.

    >>> _widths(torch.tensor([1, 32, 33, 64, 65]))
    tensor([ 32,  32,  64,  64, 128])
    """
    return 2 ** torch.ceil(torch.log2(sizes.clamp_min(NARROWEST).double())).long()


@final
@dataclass(frozen=True)
class DeviceBalls:
    """The balls of a graph on a device: their edges, and the balls of each width."""

    rows: Tensor
    starts: Tensor
    sizes: Tensor
    by_width: tuple[tuple[int, Tensor], ...]

    @classmethod
    def of(cls, hoods: Neighborhoods, device: torch.device) -> DeviceBalls:
        """Lay out the balls, once per graph and device."""

        def build() -> DeviceBalls:
            widths = _widths(hoods.sizes)
            groups = [(int(w), torch.nonzero(widths == w)[:, 0]) for w in widths.unique()]
            return cls(
                hoods.rows.to(device, torch.int32),
                hoods.indptr.to(device),
                hoods.sizes.to(device),
                tuple((width, balls.to(device, torch.int32)) for width, balls in groups),
            )

        return hoods.compute_once(("device balls", device), build)

    def sort(self, values: Tensor) -> Tensor:
        """Values (B, N) in the order of edges, ascending inside every ball: (B, edges)."""
        count = values.shape[1]
        ball = torch.repeat_interleave(self.sizes) * count
        found = []
        for ordered, ranks in zip(*_rank(values)[::2], strict=True):
            places = torch.sort(ball + ranks[self.rows]).values - ball
            found.append(ordered[places])
        return torch.stack(found)


def _rank(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values (C, N) ascending, the rows they come from, and the rank of every row; ties are broken by row."""
    ordered, order = torch.sort(values, dim=1, stable=True)
    places = torch.arange(values.shape[1], dtype=torch.int32, device=values.device)
    ranks = torch.empty(values.shape, dtype=torch.int32, device=values.device)
    return ordered, order, ranks.scatter_(1, order, places.expand(values.shape))


@final
class DeviceSorted(Match):
    """d = 1: the k-th smallest values are paired in one kernel, ball by ball; see ``SortedMatch``.

    ``ascending`` (B, edges) holds the observed outputs, sorted inside every ball.
    """

    def __init__(self, balls: DeviceBalls, ascending: Tensor, yhat: Tensor, debiased: bool) -> None:
        draws, batches, n, _ = yhat.shape
        self._balls, self._ascending = balls, ascending
        self._debiased, self._shape = debiased, yhat.shape
        self._ordered, self._order, self._ranks = _rank(yhat.detach().reshape(draws * batches, n))

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Launch the kernel for the balls of every width; it does not compute the gradient in y."""
        assert not with_y
        balls = self._balls
        draws, batches, n, _ = self._shape
        factors = (2 * scale / balls.sizes).contiguous()
        values, gradient = torch.empty_like(factors), torch.zeros_like(self._ordered)
        with torch.cuda.device(scale.device):
            launch = kernel(*_KERNEL, scale.device, (_REALS[scale.dtype],))
            for width, chosen in balls.by_width:
                threads = min(MOST_THREADS, max(32, draws * width // 2))
                arrays = (self._ranks, self._order, self._ordered, self._ascending, balls.rows)
                graph = (balls.starts, chosen, factors, values, gradient)
                numbers = (n, factors.shape[1], draws, width, int(self._debiased))
                launch((len(chosen), batches), threads, 4 * draws * width, *arrays, *graph, *numbers)
        return values, gradient.view(self._shape), None
