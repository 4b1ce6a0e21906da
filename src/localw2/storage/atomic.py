"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def replace_file(target: Path, data: bytes) -> None:
    """Write the bytes to the target, or leave it as it was."""
    with open_replacement(target, "wb") as file:
        file.write(data)


@contextmanager
def open_replacement(path: str | os.PathLike[str], mode: str) -> Iterator[IO[Any]]:
    """Open a temporary file in the same folder, which takes the place of ``path`` once it is complete."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file to write in it.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist; create it first.")
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with open(temporary, mode.replace("w", "x"), **text) as file:  # type: ignore[call-overload]  # by mode
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:  # a full disk names no file by itself
            error.filename, error.filename2 = str(path), None
        raise
    if os.name == "posix":  # the new name itself must reach the disk too
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
