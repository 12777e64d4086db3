"""The lock of a data folder: one holder at a time, on a local disk.

Apart from `datafolder`, since a control plane takes it before it has imported what it does with it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gpulayer.protocol.localdisk import network_filesystem


class DataFolderError(RuntimeError):
    """The folder can't be used; says which, why, and what to do."""


class FolderHeld(DataFolderError):
    """Another control plane holds the folder."""


class Taken:
    """A folder that is held as long as this object, or whoever `give` gave it to, has the descriptor."""

    def __init__(self, path: Path, lock: int):
        self.path = path
        self._lock = lock

    def give(self) -> int:
        """The descriptor: who has it lets the lock go."""
        lock, self._lock = self._lock, -1
        return lock

    def close(self) -> None:
        """Let the lock go, unless somebody else has it now."""
        if self._lock >= 0:
            os.close(self.give())


def take(path: Path, *, wait: bool = False) -> Taken:
    """Take a folder, which is made when missing; arguments and errors as of `DataFolder`."""
    kind = network_filesystem(path)
    if kind:
        text = f"{path} lies on a network file system ({kind}), where locks and SQLite are not safe"
        raise DataFolderError(f"{text}; set GPULAYER_DATA to a folder on a local disk")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _take(path / "lock", wait=wait)
        _sign(lock)
    except OSError as error:
        text = f"{path} can't be the data folder: {error.strerror}"
        raise DataFolderError(f"{text}; mend that, or set GPULAYER_DATA to another folder") from error
    return Taken(path, lock)


def _sign(lock: int) -> None:
    """Say who holds it. Raises OSError, and the lock is free again."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(lock)
        raise


def _take(path: Path, *, wait: bool) -> int:
    """A descriptor with the lock on this file. Raises `FolderHeld` or OSError."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except FileNotFoundError:  # removed while we waited, with its folder: there is another, or nothing to hold
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            text = f"{path.parent} is held by another control plane (pid {holder})"
            raise FolderHeld(f"{text}; attach to it through {path.parent}/endpoint.json") from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
