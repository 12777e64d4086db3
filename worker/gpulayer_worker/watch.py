"""Telling when files in a folder grow: inotify on Linux, a look every 20 ms elsewhere."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO, _IN_ONLYDIR = 0x2, 0x100, 0x80, 0x01000000
_EVENT = struct.Struct("iIII")
_LOOK_S = 0.02


class FolderWatch:
    """Calls back on the loop when something in a watched folder changed. Call-backs may come without a cause."""

    def __init__(self, *, portable: bool = False):
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._timer: asyncio.TimerHandle | None = None
        self._callbacks: dict[Path, Callable[[], None]] = {}
        self._folders: dict[int, Path] = {}
        if not portable and sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)  # its own C library
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._read)

    @property
    def told(self) -> bool:
        """Whether the system tells of changes: where it doesn't, each folder that is watched costs a little time."""
        return self._fd >= 0

    def add(self, folder: Path, callback: Callable[[], None]) -> None:
        """Watch a folder that exists."""
        self._callbacks[folder] = callback
        if self._fd >= 0:
            mask = _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO | _IN_ONLYDIR
            watch = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
            if watch < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(folder))
            self._folders[watch] = folder
        elif self._timer is None:
            self._look()
        callback()  # what was written before the watch stood

    def remove(self, folder: Path) -> None:
        """Watch it no more; one that is not watched is no error."""
        self._callbacks.pop(folder, None)
        for watch in [number for number, name in self._folders.items() if name == folder]:
            del self._folders[watch]
            self._libc.inotify_rm_watch(self._fd, watch)

    def close(self) -> None:
        """Watch nothing any more."""
        self._callbacks.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 64 * 1024)
        except BlockingIOError:
            return
        position, changed = 0, set[int]()
        while position < len(data):
            watch, _, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size + length
            changed.add(watch)
        for folder in [self._folders[watch] for watch in changed if watch in self._folders]:
            callback = self._callbacks.get(folder)
            if callback is not None:
                callback()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_S, self._look) if self._callbacks else None
        for callback in list(self._callbacks.values()):
            callback()
