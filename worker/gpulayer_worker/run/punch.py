"""Giving space back from the middle of files."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import sys
from functools import lru_cache
from typing import Any

log = logging.getLogger("gpulayer.worker")

_KEEP_SIZE, _PUNCH_HOLE = 0x1, 0x2
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@lru_cache(maxsize=1)
def _fallocate() -> Any:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


def punch(fd: int, start: int, stop: int) -> None:
    """Give back the space of a file's bytes from `start` to `stop`; they read as zeros then. Its length stays.

    Where the file system can't, nothing happens. Raises OSError for anything else.
    """
    fallocate = _fallocate()
    if fallocate is None or stop <= start:
        return
    if fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, stop - start):
        number = ctypes.get_errno()
        if number not in _CANNOT:
            raise OSError(number, os.strerror(number))
        log.debug("no holes can be punched here: %s", os.strerror(number))


def first_data(fd: int, size: int) -> int:
    """Where a file's first bytes are that are no hole; `size` where there are none."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA) if size else 0
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return 0
    except AttributeError:  # a platform without
        return 0
