"""A file that one fit uses at a time: a lock that ends with its process, however that ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_OURS = b"localw2 process "
_TRIES = 100  # while others remove the file
_HELD: dict[str, int] = {}  # what this process holds, and in which thread


@contextmanager
def hold_file(path: Any, inside: bool = False) -> Iterator[None]:
    """Hold ``path`` inside the block; ValueError if another fit holds it.

    The lock is that of the operating system on the file ``path.lock``, which is removed at the end. A process
    that was killed leaves the file but not the lock, so that it keeps nobody waiting. A block in the same
    thread may hold the path again; with ``inside``, so may any thread of a fit that holds it.
    """
    target = os.path.realpath(path)
    if target in _HELD and (inside or _HELD[target] == threading.get_ident()):
        yield
        return
    lock = Path(f"{target}.lock")
    file = _open(lock, str(path))
    _HELD[target] = threading.get_ident()
    try:
        yield
    finally:
        del _HELD[target]
        if file is not None:
            if os.name == "posix":  # before the lock ends, or it could be another's by then
                lock.unlink(missing_ok=True)
            os.close(file)
            with suppress(OSError):
                if os.name != "posix":
                    lock.unlink()


def _open(lock: Path, name: str) -> int | None:
    """The locked file; None where files cannot be locked, or where it belongs to somebody else."""
    for _ in range(_TRIES):
        try:
            file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return None
        try:
            content = os.read(file, 100)
        except OSError:  # no plain file
            os.close(file)
            return None
        if content and not content.startswith(_OURS):
            os.close(file)
            return None
        try:
            _lock(file)
        except BlockingIOError:
            os.close(file)
            who = content.decode("ascii", "replace").removeprefix("localw2 ").strip()
            raise ValueError(
                f"{name} is in use: another fit writes it{f' ({who})' if who else ''}. Wait for it to end, "
                "or give this fit a checkpoint (with the command line, --out) of its own."
            ) from None
        except OSError:  # some network drives
            os.close(file)
            return None
        try:
            same = os.path.samestat(os.fstat(file), os.stat(lock))
        except FileNotFoundError:
            same = False
        if not same:  # removed meanwhile
            os.close(file)
            continue
        with suppress(OSError):  # a full disk
            os.lseek(file, 0, os.SEEK_SET)
            os.ftruncate(file, 0)
            os.write(file, _OURS + f"{os.getpid()}\n".encode())
        return file
    return None


def _lock(file: int) -> None:
    """Lock an open file, or raise BlockingIOError."""
    if os.name == "posix":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            raise BlockingIOError from error
