"""What is known of the groups that are started by the batch: one file that is appended to, instead of two for each.

Each line is a JSON object about any number of groups: what has become known of some (`know`), or which are wanted no
more (`forget`). Lines are gathered and written together, before anybody is told what they say. A line that its keeper
did not finish does not count.
"""

from __future__ import annotations

import errno
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TIDY_BYTES = 64 << 10  # above this a journal that knows of no group begins anew
_REWRITE_BYTES = 8 << 20  # above this what is known is written anew


class Journal:
    """The journal of one folder; only its keeper writes it."""

    def __init__(self, path: str) -> None:
        """Read what an earlier keeper left, and go on after it. Raises OSError."""
        self._path = path
        self.known: dict[str, dict[str, Any]] = {}
        self._new: dict[str, dict[str, Any]] = {}
        self._forgotten: list[str] = []
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = self._read()

    def add(self, id: str, facts: dict[str, Any]) -> None:
        """Something more is known of a group; `flush` writes it."""
        self._new[id] = self._new[id] | facts if id in self._new else facts
        known = self.known.get(id)
        self.known[id] = facts if known is None else known | facts

    def forget(self, id: str) -> None:
        """A group is wanted no more."""
        if self.known.pop(id, None) is not None:
            self._new.pop(id, None)
            self._forgotten.append(id)

    def flush(self) -> None:
        """Write what was added, whole or not at all: then it is tried again. Raises OSError."""
        if not self._new and not self._forgotten:
            return
        if not self.known and self._size > _TIDY_BYTES:
            os.ftruncate(self._fd, 0)
            self._size = 0
            self._forgotten.clear()
            return
        line: dict[str, Any] = {"know": self._new}
        if self._forgotten:
            line["forget"] = self._forgotten
        self._append(self._fd, line, self._size)
        self._new, self._forgotten = {}, []
        if self._size > _REWRITE_BYTES:
            self._rewrite()

    def take_back(self, ids: list[str]) -> None:
        """Nothing was written of these, and nothing is to be."""
        for id in ids:
            self.known.pop(id, None)
            self._new.pop(id, None)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def _append(self, fd: int, line: dict[str, Any], size: int) -> None:
        data = json.dumps(line).encode("ascii") + b"\n"
        written = os.write(fd, data)
        if written != len(data):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._size = size + written

    def _read(self) -> int:
        with open(self._fd, "rb", closefd=False) as file:
            data = file.read()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            os.ftruncate(self._fd, end)
        for line in data[:end].splitlines():
            self._learn(line)
        return end

    def _learn(self, line: bytes) -> None:
        try:
            value = json.loads(line)
            know, forget = value["know"], value.get("forget", [])
            for id in forget:
                self.known.pop(id, None)
            for id, facts in know.items():
                self.known[id] = self.known.get(id, {}) | facts
        except (ValueError, KeyError, AttributeError, TypeError):  # a disk's damage: the other lines still count
            return

    def _rewrite(self) -> None:
        """Leave only what is known. The old file stays where there is no room for a new one."""
        draft, size = f"{self._path}.tmp", self._size
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._append(fd, {"know": self.known}, 0)
        except OSError:
            self._size = size
            os.close(fd)
            os.unlink(draft)
            return
        os.replace(draft, self._path)
        os.close(self._fd)
        self._fd = fd
