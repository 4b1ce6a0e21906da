"""Optimal assignment inside every ball on a CUDA device (d > 1), without transfers to the host.

One block of threads solves one ball by shortest augmenting paths in float64 (``ball_assignment.cu``), exactly
up to rounding, like the host's solvers. Where optimal pairings are tied, host and device may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from localw2.losses.cuda.kernels import available, kernel
from localw2.losses.problem import Match, pairings

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

# The most rows of a ball that the kernel's shared memory and registers can hold.
LARGEST_BALL = 2048
# Entries of the cost matrices (8 bytes each) solved at a time.
COST_ELEMENTS = 1 << 26
# Edges of one rectangle of balls, which bounds the memory of its differences.
PIECE_ELEMENTS = 1 << 22
SLOTS = 4  # columns per thread
SHARED_BYTES = 18  # of shared memory per column
_KERNEL = ("ball_assignment.cu", "assign_balls")


def can_assign(hoods: Neighborhoods, device: torch.device) -> bool:
    """Whether the balls of a graph can be paired on this device."""
    small = hoods.compute_once("largest ball", lambda: int(hoods.sizes.max())) <= LARGEST_BALL
    return device.type == "cuda" and small and available(*_KERNEL, device)


def solve_on_device(costs: Tensor, sizes: Tensor) -> Tensor:
    """The column of each row, (problems, n) int32, in the cheapest pairing by costs (problems, n, n) float64.

    Only the first ``sizes[p]`` (int32) rows and columns of problem p count; any other row gets its own index.
    Costs that are not finite give some pairing, never an endless search.
    """
    problems, width, _ = costs.shape
    columns = torch.arange(width, dtype=torch.int32, device=costs.device).repeat(problems, 1)
    threads = 32 * -(-width // (32 * SLOTS))
    with torch.cuda.device(costs.device):
        kernel(*_KERNEL, costs.device)(
            (problems, 1), threads, SHARED_BYTES * width, costs, sizes, columns, width
        )
    return columns


@final
@dataclass(frozen=True)
class BallRectangle:
    """Balls of similar size on a device: ``rows`` (balls, width), padded with N, and their sizes."""

    balls: Tensor
    rows: Tensor
    sizes: Tensor

    @classmethod
    def all_of(cls, hoods: Neighborhoods, device: torch.device) -> list[BallRectangle]:
        """The balls of a graph, built once and kept with it."""

        def build() -> list[BallRectangle]:
            return [
                cls(
                    bucket.balls.to(device),
                    bucket.rows.to(device, torch.int64),
                    hoods.sizes[bucket.balls].to(device, torch.int32),
                )
                for bucket in hoods.buckets(1.25, PIECE_ELEMENTS)
            ]

        return hoods.compute_once(("rectangles", device), build)

    def pair(self, left: Tensor, right: Tensor) -> Tensor:
        """Pair left with right (M, N + 1, d), whose last row is padding; rows of right, (M, balls, width)."""
        entries, (balls, width) = len(left), self.rows.shape
        partner = torch.empty((entries, balls, width), dtype=torch.int64, device=left.device)
        together = max(1, COST_ELEMENTS // (balls * width**2))
        step = max(1, COST_ELEMENTS // width**2)
        for first in range(0, entries, together):
            some = slice(first, first + together)
            for low in range(0, balls, step):
                part = slice(low, low + step)
                rows, sizes = (
                    v.repeat(len(left[some]), 1) for v in (self.rows[part], self.sizes[part, None])
                )
                costs = _costs(left[some], right[some], self.rows[part], sizes)
                found = rows.gather(1, solve_on_device(costs, sizes).long())
                partner[some, part] = found.view(-1, *self.rows[part].shape)
        return partner


def _costs(left: Tensor, right: Tensor, rows: Tensor, sizes: Tensor) -> Tensor:
    """Costs (M * balls, width, width) with the same best pairing as squared distances, as on the host.

    Left and right are (M, N + 1, d), rows (balls, width) and sizes (M * balls, 1). Each ball is centred and
    right is brought to the scale of left; the column constants of |a - b|^2 are left out, since the solver's
    first step removes them.
    """
    inside = (rows < left.shape[1] - 1)[..., None].repeat(len(left), 1, 1)
    moved = []
    for sample in (left, right):
        ball = sample[:, rows].flatten(0, 1).double()
        moved.append((ball - ball.sum(1, keepdim=True) / sizes[:, None]) * inside)
    a, b = moved
    squares = a.square().sum(2)
    size_a, size_b = squares.sum(1), b.square().sum((1, 2))
    ratio = torch.where(torch.minimum(size_a, size_b) > 0, size_a / size_b.clamp_min(1e-300), 1.0)
    scaled = b * (-2 * ratio.sqrt())[:, None, None]
    return torch.baddbmm(squares[:, :, None], a, scaled.mT)


@final
class DeviceAssigned(Match):
    """d > 1: one optimal assignment per ball, batch entry and pair of samples, on the device."""

    def __init__(self, y: Tensor, yhat: Tensor, hoods: Neighborhoods, debiased: bool) -> None:
        draws, batches, n, _ = self._shape = yhat.shape
        self._terms = pairings(draws, debiased)
        # Padding points to a row of zeros at the end.
        self._samples = torch.nn.functional.pad(torch.cat([y[None], yhat]), (0, 0, 0, 1))
        self._pieces = BallRectangle.all_of(hoods, yhat.device)
        # Not by a list of indices, whose copy from the host would stall the stream.
        left = torch.cat([self._samples[left] for left, _, _ in self._terms])
        right = torch.cat([self._samples[right] for _, right, _ in self._terms])
        # Rows are numbered consecutively over batch entries, so that one gather serves all.
        shift = (n + 1) * torch.arange(batches, device=yhat.device)[:, None, None]
        self._partners = [
            piece.pair(left, right).view(len(self._terms), batches, *piece.rows.shape) + shift
            for piece in self._pieces
        ]

    def weigh(self, scale: Tensor, with_y: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the difference of every pair to one of its rows and subtract it from the other."""
        _, batches, n, d = self._shape
        values = torch.zeros_like(scale, memory_format=torch.contiguous_format)
        total = torch.zeros_like(self._samples)
        for piece, partners in zip(self._pieces, self._partners, strict=True):
            sizes, rows = piece.sizes.to(scale.dtype), piece.rows.view(-1)
            per_ball = (2 * scale[:, piece.balls] / sizes)[..., None, None]
            found = torch.zeros_like(scale[:, piece.balls])
            for (left, right, factor), partner in zip(self._terms, partners, strict=True):
                others = self._samples[right].view(-1, d)[partner]
                gap = self._samples[left][:, rows].view(others.shape) - others
                found += gap.square().sum((2, 3)) * (factor / sizes)
                step = gap * (factor * per_ball)
                total[left].index_add_(1, rows, step.view(batches, -1, d))
                if right or with_y:
                    total[right].view(-1, d).index_add_(0, partner.view(-1), step.view(-1, d), alpha=-1)
            values[:, piece.balls] = found
        grads = total[:, :, :n].contiguous()
        return values, grads[1:], grads[0] if with_y else None
