"""What an agent writes down of commands: one file for all, to which each turn of the loop appends once."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.records import RecordError, Splitter, encode, last_good
from gpulayer.protocol.types import Outcome, Struct
from gpulayer_worker.link import Held

log = logging.getLogger("gpulayer.worker")

_STATE = 0  # the kind of the records
_TIDY_BYTES = 256 << 10  # above this a log of which nothing is held begins anew
_REWRITE_BYTES = 16 << 20  # above this what is held is written anew


class CommandRecord(Struct, frozen=True, kw_only=True):
    """The state of one attempt: the last one counts, with the assignment of the first."""

    attempt: str
    assign: Assign | None = None
    began: bool = False
    outcome: Outcome | None = None
    end: int | None = None
    gone: bool = False
    recorded: bool = False
    dropped: bool = False


class CommandLog:
    """The log of one worker's data folder; only its agent writes it."""

    def __init__(self, path: Path):
        self._path = os.fspath(path)
        self._encoder = msgspec.msgpack.Encoder()
        self._logged: dict[str, Held] = {}  # attempts whose assignment is in the log
        self._dropped: list[str] = []
        self._fd = -1
        self._size = 0

    def load(self) -> list[Held]:
        """Every command that is here, as an agent before us left it. Raises OSError."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._size, _ = last_good(self._fd)
            os.ftruncate(self._fd, self._size)
            records = Splitter().feed(os.pread(self._fd, self._size, 0))
        except RecordError as error:
            log.error("%s is damaged, its attempts are given up: %s", self._path, error)
            os.ftruncate(self._fd, 0)
            self._size, records = 0, []
        for _, _, body in records:
            self._learn(msgspec.msgpack.decode(body, type=CommandRecord))
        return list(self._logged.values())

    def _learn(self, record: CommandRecord) -> None:
        if record.dropped:
            self._logged.pop(record.attempt, None)
            return
        if record.assign is not None:
            self._logged[record.attempt] = Held(assign=record.assign)
        held = self._logged.get(record.attempt)
        if held is not None:
            held.began, held.outcome, held.end = record.began, record.outcome, record.end
            held.gone, held.recorded, held.spool_end = record.gone, record.recorded, record.end or 0

    def drop(self, attempt: str) -> None:
        """An attempt is held no more: that is written with what is written next."""
        if self._logged.pop(attempt, None) is not None:
            self._dropped.append(attempt)

    def write(self, held: Iterable[Held]) -> None:
        """Write down how these are now, whole or not at all. Raises OSError."""
        parts = [self._encoded(CommandRecord(attempt=name, dropped=True)) for name in self._dropped]
        new: dict[str, Held] = {}
        for each in held:
            name = each.assign.attempt
            parts.append(self._encoded(_record(each, with_assign=name not in self._logged)))
            new[name] = each
        if parts:
            self._append(b"".join(parts))
            self._dropped.clear()
            self._logged.update(new)
            self._tidy()

    def _encoded(self, record: CommandRecord) -> bytes:
        return encode(_STATE, self._encoder.encode(record))

    def _append(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written != len(data):
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._size += written

    def _tidy(self) -> None:
        if not self._logged and self._size > _TIDY_BYTES:
            os.ftruncate(self._fd, 0)
            self._size = 0
        elif self._size > _REWRITE_BYTES:
            self._rewrite()

    def _rewrite(self) -> None:
        """Leave only what is held. The old file stays where there is no room for a new one."""
        data = b"".join(self._encoded(_record(each, with_assign=True)) for each in self._logged.values())
        draft = f"{self._path}.new"
        fd = os.open(draft, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        if os.write(fd, data) != len(data):
            os.close(fd)
            os.unlink(draft)
            return
        os.replace(draft, self._path)
        os.close(self._fd)
        self._fd, self._size = fd, len(data)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _record(held: Held, *, with_assign: bool) -> CommandRecord:
    return CommandRecord(
        attempt=held.assign.attempt,
        assign=held.assign if with_assign else None,
        began=held.began,
        outcome=held.outcome,
        end=held.end,
        gone=held.gone,
        recorded=held.recorded,
    )
