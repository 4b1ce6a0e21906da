"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(target: Path, data: bytes) -> None:
    """Put the bytes where the target is, through a temporary name in the same folder."""
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name itself must reach the disk too
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
