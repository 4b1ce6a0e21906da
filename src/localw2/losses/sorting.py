"""The order of values inside every ball (d = 1), and the sums over edges that a loss needs.

One global sort of the N values determines their order in every ball. The host engine obtains it in linear
time from one sparse transpose; the device engine sorts padded balls of ranks. Both give the same results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

if TYPE_CHECKING:
    from localw2.balls.neighborhoods import Neighborhoods

# Columns are stacked into one sparse product up to this many edges; with fewer, Python overhead dominates.
STACK_EDGES = 1 << 18
# Edges of one run of balls on the host: enough to pay for a pass over all rows, few enough that the
# transpose's write positions (one per ball) stay in cache: at 5e7 edges, 3 times faster than a single run.
PIECE_EDGES = 1 << 20
# Elements of one padded rectangle on a device; it bounds the scratch memory of its sort (12 bytes each).
PIECE_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class Ranking:
    """C columns of N values, each sorted: ``order`` (C, N) holds rows, ``ordered`` (C, N) their values."""

    order: Tensor
    ordered: Tensor


class Ordering(ABC):
    """Sorts values inside the balls of one graph, on one kind of device.

    ``balls`` has the balls of each piece, in the order of its sums.
    """

    balls: list[Tensor]

    def rank(self, values: Tensor) -> Ranking:
        """Sort each column of (C, N) once; ties keep the order of rows, on every device."""
        ordered, order = torch.sort(values.detach(), dim=1, stable=True)
        return Ranking(order, ordered)

    @abstractmethod
    def gather(self, piece: int, ranking: Ranking) -> tuple[Tensor, Any]:
        """Values of every ball, ascending, (C, edges), and their positions, for ``row_sums``."""

    @abstractmethod
    def ball_sums(self, piece: int, edges: Tensor) -> Tensor:
        """Sum (C, edges) over each ball: (C, balls)."""

    @abstractmethod
    def row_sums(self, piece: int, ranking: Ranking, places: Any, edges: Tensor, scale: Tensor) -> Tensor:
        """Sum ``scale[ball] * edges`` over each row: (C, N)."""


@final
class HostOrdering(Ordering):
    """Linear time on the CPU: with the balls x rows incidence stored by columns, permuting the columns into
    sorted order and converting back to rows leaves every ball's entries sorted.

    Pieces are runs of balls, see ``PIECE_EDGES``.
    """

    def __init__(self, hoods: Neighborhoods) -> None:
        indptr, rows = hoods.indptr.numpy(), hoods.rows.numpy()
        cuts = np.unique(np.searchsorted(indptr, np.arange(0, hoods.n_edges, PIECE_EDGES)))
        cuts = np.append(cuts[cuts < hoods.n_balls], hoods.n_balls)
        self.balls, self._starts = [], []
        self._incidences: dict[tuple[int, int], Any] = {}  # by piece and number of copies
        for piece, (low, high) in enumerate(pairwise(cuts)):
            bounds = indptr[low : high + 1] - indptr[low]
            edges = (np.ones(bounds[-1], np.int8), rows[indptr[low] : indptr[high]], bounds)
            # Storage by columns is essential: from rows the permuted result would not be sorted.
            incidence = sp.csr_matrix(edges, shape=(high - low, hoods.n_rows)).tocsc()
            self._incidences[piece, 1] = incidence
            self.balls.append(torch.arange(int(low), int(high)))
            self._starts.append(bounds[:-1])

    def _incidence(self, piece: int, copies: int) -> Any:
        """The incidence of a piece, repeated along the diagonal so that one product sorts several columns."""
        if (piece, copies) not in self._incidences:
            self._incidences[piece, copies] = _repeat_diagonally(self._incidences[piece, 1], copies)
        return self._incidences[piece, copies]

    def gather(self, piece: int, ranking: Ranking) -> tuple[Tensor, list[Any]]:
        """Values of every ball, ascending, and one sparse graph of ranks per stack of columns."""
        order, ordered = ranking.order.numpy(), ranking.ordered.numpy()
        n, edges = order.shape[1], self._incidences[piece, 1].nnz
        columns = max(1, STACK_EDGES // edges)
        values = np.empty((len(order), edges), ordered.dtype)
        graphs = []
        for low in range(0, len(order), columns):
            chosen = order[low : low + columns]
            shifted = chosen if len(chosen) == 1 else chosen + n * np.arange(len(chosen))[:, None]
            graph = self._incidence(piece, len(chosen))[:, shifted.ravel()].tocsr()
            flat = values[low : low + len(chosen)].reshape(-1)
            np.take(ordered[low : low + len(chosen)].reshape(-1), graph.indices, out=flat, mode="clip")
            graphs.append(graph)
        return torch.from_numpy(values), graphs

    def ball_sums(self, piece: int, edges: Tensor) -> Tensor:
        """Sum over each ball in float64, so that large balls do not lose float32's digits."""
        starts = self._starts[piece]
        sums = [np.add.reduceat(column, starts, dtype=np.float64) for column in edges.numpy()]
        return torch.from_numpy(np.stack(sums)).to(edges.dtype)

    def row_sums(
        self, piece: int, ranking: Ranking, places: list[Any], edges: Tensor, scale: Tensor
    ) -> Tensor:
        """One transposed sparse product per stack, of the edges as a matrix and the scale as a vector."""
        columns, n = ranking.order.shape
        by_rank = np.empty((columns, n), edges.numpy().dtype)
        low = 0
        for graph in places:
            high = low + graph.shape[1] // n
            graph.data = edges[low:high].reshape(-1).numpy()
            product = graph.T @ scale[low:high].reshape(-1).numpy()
            by_rank[low:high] = product.reshape(-1, n)
            low = high
        return _by_row(ranking, torch.from_numpy(by_rank))


def _repeat_diagonally(one: Any, copies: int) -> Any:
    """What ``sp.block_diag`` makes of copies of a matrix stored by columns, in a few calls."""
    shifts = np.arange(copies)[:, None]
    rows = (one.indices + one.shape[0] * shifts).ravel()
    bounds = np.append((one.indptr[:-1] + one.nnz * shifts).ravel(), copies * one.nnz)
    shape = (copies * one.shape[0], copies * one.shape[1])
    return sp.csc_matrix((np.tile(one.data, copies), rows, bounds), shape=shape)


@final
class DeviceOrdering(Ordering):
    """Padded sorts of integer ranks for GPUs, with static shapes and no transfer to the host.

    Padding has rank N, which sorts last; its value is always 0, so that it adds nothing.
    """

    def __init__(self, hoods: Neighborhoods, device: torch.device) -> None:
        # Few launches for small problems, little padding for large ones.
        growth = 1.25 if hoods.n_edges > 1 << 22 else 2.0
        buckets = hoods.buckets(growth, PIECE_ELEMENTS)
        self.balls = [bucket.balls.to(device) for bucket in buckets]
        self._rows = [bucket.rows.to(device, torch.int32) for bucket in buckets]

    def gather(self, piece: int, ranking: Ranking) -> tuple[Tensor, Tensor]:
        """Values of every ball, ascending and padded with zeros, and their ranks."""
        rows = self._rows[piece]
        columns, n = ranking.order.shape
        ranks = torch.empty((columns, n + 1), dtype=torch.int32, device=rows.device)
        place = torch.arange(n, dtype=torch.int32, device=rows.device)
        ranks.scatter_(1, ranking.order, place.expand(columns, n))
        ranks[:, n] = n
        padded = torch.nn.functional.pad(ranking.ordered, (0, 1))
        values, places = [], []
        for rank, ordered in zip(ranks, padded, strict=True):
            sorted_ranks = torch.sort(
                rank.index_select(0, rows.view(-1)).view(rows.shape), dim=1
            ).values.view(-1)
            places.append(sorted_ranks)
            values.append(ordered.index_select(0, sorted_ranks))
        return torch.stack(values), torch.stack(places)

    def ball_sums(self, piece: int, edges: Tensor) -> Tensor:
        """Sum over each padded ball."""
        return edges.view(len(edges), *self._rows[piece].shape).sum(2)

    def row_sums(self, piece: int, ranking: Ranking, places: Tensor, edges: Tensor, scale: Tensor) -> Tensor:
        """Add every edge to its rank (atomically, hence in no fixed order), then undo the sort."""
        columns, n = ranking.order.shape
        by_rank = edges.new_zeros((columns, n + 1))
        scaled = edges.view(columns, *self._rows[piece].shape) * scale[:, :, None]
        for total, place, part in zip(by_rank, places, scaled, strict=True):
            total.index_add_(0, place, part.reshape(-1))
        return _by_row(ranking, by_rank[:, :n])


def _by_row(ranking: Ranking, by_rank: Tensor) -> Tensor:
    return torch.empty_like(ranking.ordered).scatter_(1, ranking.order, by_rank)


def ordering_for(hoods: Neighborhoods, device: torch.device) -> Ordering:
    """The engine for a graph on a device, built once and kept with the graph."""
    if device.type == "cpu":
        return hoods.compute_once("host ordering", lambda: HostOrdering(hoods))
    return hoods.compute_once(("device ordering", device), lambda: DeviceOrdering(hoods, device))
