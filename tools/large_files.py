"""Refuse files that are too large for the repository: ``python tools/large_files.py FILE ...``.

Every clone carries every version of a file for ever. Keep results in records of a few KiB and pictures at
screen size, and leave data where they were published.
"""

from __future__ import annotations

import sys
from pathlib import Path

LARGEST = 500  # KiB


def find_large(names: list[str]) -> list[str]:
    """A line for each of the files that is too large."""
    sizes = {name: Path(name).stat().st_size / 1024 for name in names if Path(name).is_file()}
    return [
        f"{name} has {size:.0f} KiB; files of more than {LARGEST} KiB do not belong in the repository."
        for name, size in sizes.items()
        if size > LARGEST
    ]


if __name__ == "__main__":
    sys.exit("\n".join(find_large(sys.argv[1:])) or 0)
