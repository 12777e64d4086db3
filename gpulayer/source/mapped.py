"""A file's bytes as memory, without reading them: what nobody looks at costs nothing, and nothing is copied.

The map is private: whoever writes into it changes no file. Only for files that are never changed or cut short, such as
those of blobs; one that is removed stays until its map goes.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import threading
import weakref
from typing import Any

__all__ = ["MAPPED_BYTES", "mapped"]

MAPPED_BYTES = 256 * 1024
"""Less is copied about as quickly."""

_MOST = 8192  # maps at a time: Linux allows a process 65,530 of all kinds
_LEFT_FILES = 128  # of those that a process may have open

_live: set[weakref.ref[mmap.mmap]] = set()
_lock = threading.RLock()  # a map may go while another is being made, in the same thread


def mapped(path: str, size: int) -> memoryview | None:
    """The first `size` bytes of a file; None where they are better read: they are few, or too many maps are in use.

    Raises OSError, such as FileNotFoundError. None too where the file is shorter.
    """
    if size < MAPPED_BYTES or os.name != "posix":
        return None
    with _lock:
        if len(_live) >= _most():
            return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size < size:
            return None
        made = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY, **_OPTIONS)
    finally:
        os.close(descriptor)
    with _lock:
        _live.add(weakref.ref(made, _gone))
    return memoryview(made)


def _gone(reference: weakref.ref[mmap.mmap]) -> None:
    with _lock:
        _live.discard(reference)


_OPTIONS: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # before, each map keeps a file open


@functools.cache
def _most() -> int:
    if _OPTIONS:
        return _MOST
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if files == resource.RLIM_INFINITY else max(0, min(_MOST, (files - _LEFT_FILES) // 2))
