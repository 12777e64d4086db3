"""Telling what has changed in a source folder since the last scan, without walking through it again.

A scan runs before every cell, and mostly nothing has changed since the cell before, or one file has. What a scan finds
depends on the listings of the folders that it entered, on the files in them and on the ignore files that hold there.
The time stamps of all of these say whether it would find the same: adding, removing or renaming an entry changes its
folder's, writing changes a file's. As with remembered digests, stamps younger than a margin say nothing (`is_racy`):
what has such is looked at again by the next scan.

A folder whose stamp changed while its listing is what it was (an editor that saves by rename, a notebook's autosave)
needs no walk either; any other change of a folder or of an ignore file does.
"""

from __future__ import annotations

import copy
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from gpulayer.source.digests import is_racy
from gpulayer.source.layers import layers_above
from gpulayer.source.walk import Found, Walk, listing

__all__ = ["Asked", "Stamps"]

_MAX_FILES = 100_000  # beyond, remembering takes more memory than the time is worth

_look = attrgetter("st_mtime_ns", "st_ctime_ns", "st_size", "st_ino", "st_mode")


class Asked(NamedTuple):
    """What a scan was asked for: an answer to something else says nothing."""

    root: str  # as it was given
    explicit: bool
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    limits: object
    notebooks: bool


class Stamps:
    """What `lstat` said of everything that one scan looked at. Immutable; the next scan makes its own."""

    def __init__(
        self,
        asked: Asked,
        root: str,
        files: list[tuple[str, str]],
        paths: list[bytes],
        keys: list[int | None],
        listings: Mapping[str, frozenset[str]],
    ) -> None:
        self._asked = asked
        self._root = root
        self._root_id = _identity(asked.root)
        self._above = layers_above(root)
        self._files = files  # path in the bundle, path on disk
        self._paths = paths  # of the files, then of all else; bytes, since `lstat` would make them of text each time
        self._keys = keys  # hashes: 200 files' tuples would not stay in the processor's cache between two cells
        self._listings = listings

    @classmethod
    def of(cls, walk: Walk, found: Iterable[Found], asked: Asked, started_ns: int) -> Stamps | None:
        """The stamps of a walk that began at `started_ns`, or None where they would not tell enough.

        That is where symlinks lead elsewhere, and on Windows, whose folders' times are updated late.
        """
        if walk.linked or walk.scanned > _MAX_FILES or sys.platform == "win32":
            return None
        files: list[tuple[str, str]] = []
        paths: list[bytes] = []
        keys: list[int | None] = []
        for path, source, status in found:
            files.append((path, source))
            paths.append(os.fsencode(source))
            keys.append(_key(status, started_ns))
        try:
            for source in walk.consulted:
                paths.append(os.fsencode(source))
                keys.append(_key(os.lstat(source), started_ns))
            return cls(asked, walk.root, files, paths, keys, walk.listings)
        except OSError:  # it was there a moment ago
            return None

    def differences(self, asked: Asked) -> list[int] | None:
        """Which of the things looked at differ from then, for `renewed`; none: a scan would find the same again.

        None: only a walk can tell what a scan that is asked like this would find.
        """
        if asked != self._asked:
            return None
        try:
            # All of it runs in C: 200 files take 0.4 ms, of which the system calls are three quarters.
            keys = list(map(hash, map(_look, map(os.lstat, self._paths))))
            if _identity(asked.root) != self._root_id or layers_above(self._root) != self._above:
                return None
        except OSError:  # something is gone
            return None
        if keys == self._keys:
            return []
        return [index for index, pair in enumerate(zip(keys, self._keys, strict=True)) if pair[0] != pair[1]]

    def renewed(self, differences: list[int], started_ns: int) -> tuple[Stamps, list[Found]] | None:
        """The stamps of now and the files to be read again, where no more than files' contents and modes changed.

        None: only a walk can tell. `started_ns` is a moment before `differences` was asked.
        """
        keys = self._keys.copy()
        changed: list[Found] = []
        try:
            for index in differences:
                status = os.lstat(self._paths[index])
                keys[index] = _key(status, started_ns)
                if index >= len(self._files):
                    if not self._lists_the_same(os.fsdecode(self._paths[index])):
                        return None
                elif stat.S_ISREG(status.st_mode):
                    changed.append(Found(*self._files[index], status))
                else:
                    return None
        except OSError:  # something is gone
            return None
        stamps = copy.copy(self)
        stamps._keys = keys
        return stamps, changed

    def _lists_the_same(self, folder: str) -> bool:
        known = self._listings.get(folder)  # None: an ignore file, or a folder that was not entered
        if known is None:
            return False
        with os.scandir(folder) as entries:
            return listing(entries) == known


def _key(status: os.stat_result, started_ns: int) -> int | None:
    """None is never equal to what is seen later, so it is looked at again."""
    return None if is_racy(status, started_ns) else hash(_look(status))


def _identity(root: str) -> tuple[int, int]:
    status = os.stat(root)  # symlinks on the way to the folder may lead elsewhere now
    return status.st_dev, status.st_ino
