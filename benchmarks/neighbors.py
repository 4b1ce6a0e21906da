"""A million rows with 50 neighbours each: seconds and peak memory, as a whole and block by block.

    python benchmarks/neighbors.py [--rows 1000000]

Each case runs in its own process, so that peak resident memory is measured separately. "import" is the memory
of the libraries before any data.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from localw2 import LazyNeighborhoods, Neighborhoods, Objective


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def build_all(x: np.ndarray) -> str:
    """Build all edges and hold them in memory."""
    hoods = Neighborhoods.nearest(x, 50)
    return f"{hoods!r}, {hoods.rows.nbytes / 2**20:.0f} MB of edges"


def walk_blocks(x: np.ndarray) -> str:
    """Take the loss and its gradient on 100 random blocks of 1000 balls, without ever holding all edges."""
    rng = np.random.default_rng(1)
    lazy = LazyNeighborhoods.nearest(x, 50)
    objective = Objective(torch.tensor(rng.normal(size=len(x))), lazy)
    for _ in range(100):
        start = int(rng.integers(len(x) - 1000))
        rows, part = objective.block(np.arange(start, start + 1000))
        yhat = torch.zeros(len(rows), dtype=torch.float64, requires_grad=True)
        part(yhat).backward()
    return "Loss and gradient on 100 blocks of 1000 balls, 5e6 edges in total, one block at a time"


def main() -> None:
    """Run each case in its own process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--case", choices=["stored", "blocks"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is None:
        for case in ("stored", "blocks"):
            command = [sys.executable, __file__, "--rows", str(options.rows), "--case", case]
            subprocess.run(command, check=True)
        return
    libraries = peak_mb()
    x = np.random.default_rng(0).normal(size=(options.rows, 3))
    start = time.perf_counter()
    done = {"stored": build_all, "blocks": walk_blocks}[options.case](x)
    taken = time.perf_counter() - start
    print(f"{options.case}: {taken:.1f} s, peak {peak_mb():.0f} MB (import {libraries:.0f} MB). {done}")


if __name__ == "__main__":
    main()
