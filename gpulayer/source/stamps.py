"""Telling that a source folder is what it was at the last scan, without listing it again.

A scan runs before every cell, and mostly nothing has changed since the cell before. What a scan finds depends on the
listings of the folders that it entered, on the files in them and on the ignore files that hold there. The time stamps
of all of these say whether it would find the same: adding, removing or renaming an entry changes its folder's, writing
changes a file's. As with remembered digests, stamps younger than a margin say nothing: see `is_racy`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpulayer.source.digests import is_racy
from gpulayer.source.walk import layers_above

if TYPE_CHECKING:
    from gpulayer.source.walk import Found, Walk

__all__ = ["Stamps"]

_MAX_FILES = 20_000  # beyond, remembering takes more memory than the time is worth

_Key = tuple[int, int, int, int, int]


class Stamps:
    """What `stat` said of everything that one scan looked at. `asked` is how it was asked to scan."""

    def __init__(self, root: str, asked: object, keys: list[tuple[str, _Key]]) -> None:
        self._asked = asked
        self._root = root
        self._above = layers_above(root)
        self._keys = keys

    @classmethod
    def of(cls, walk: Walk, found: Iterable[Found], asked: object, started_ns: int) -> Stamps | None:
        """The stamps of a walk that began at `started_ns`, or None where they would not tell enough.

        That is where something changed just now, where symlinks lead elsewhere, and on Windows, whose folders' times
        are updated late.
        """
        if walk.linked or walk.scanned > _MAX_FILES or sys.platform == "win32":
            return None
        keys: list[tuple[str, _Key]] = []
        try:
            for path in walk.consulted:
                status = os.lstat(path)
                if is_racy(status, started_ns):
                    return None
                keys.append((path, _key(status)))
        except OSError:  # it was there a moment ago
            return None
        for _, source, status in found:
            if is_racy(status, started_ns):
                return None
            keys.append((source, _key(status)))
        return cls(walk.root, asked, keys)

    def hold(self, asked: object) -> bool:
        """Whether a scan that is asked like this would find the same again."""
        if asked != self._asked:
            return False
        lstat = os.lstat
        try:
            for path, key in self._keys:
                status = lstat(path)
                if key != (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode):
                    return False
        except OSError:
            return False
        return layers_above(self._root) == self._above


def _key(status: os.stat_result) -> _Key:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode
