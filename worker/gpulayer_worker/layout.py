"""Where a worker keeps what: one data folder per worker, mode 0700."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from gpulayer.protocol.endpoint import write_private
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.records import RecordError, Splitter, encode, last_good
from gpulayer.protocol.spool import SpoolWriter
from gpulayer.protocol.types import Outcome, Struct
from gpulayer_worker.link import Held

log = logging.getLogger("gpulayer.worker")

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LOG = "attempt.log"
_FURNITURE = {_LOG, "kernel.json", "spool"}
_FIRST_SEGMENT = f"{0:016d}.log"
_STATE = 0  # the kind of the records in an attempt's log


class LayoutError(ValueError):
    """A name that is no name of an attempt or session: it would become a path."""


class AttemptRecord(Struct, frozen=True, kw_only=True):
    """What a new agent finds of an attempt: the last one in its log counts, with the assignment of the first."""

    assign: Assign | None = None
    began: bool = False
    outcome: Outcome | None = None
    end: int | None = None
    gone: bool = False
    recorded: bool = False

    @classmethod
    def of(cls, held: Held, *, assign: Assign | None) -> AttemptRecord:
        """What is to be found of an attempt; `assign` is None once the log has the assignment."""
        return cls(
            assign=assign,
            began=held.began,
            outcome=held.outcome,
            end=held.end,
            gone=held.gone,
            recorded=held.recorded,
        )

    def held(self) -> Held | None:
        """The attempt as it was left; None without its assignment."""
        if self.assign is None:
            return None
        return Held(
            assign=self.assign,
            began=self.began,
            outcome=self.outcome,
            end=self.end,
            gone=self.gone,
            recorded=self.recorded,
            spool_end=self.end or 0,
        )


@dataclass(frozen=True)
class Layout:
    """Paths below the data folder, and the small files in them."""

    data: Path

    @property
    def command_log(self) -> Path:
        """What is known of commands."""
        return self.data / "commands.log"

    @property
    def blobs(self) -> Path:
        """The cache of blobs."""
        return self.data / "blobs"

    def attempt(self, name: str) -> Path:
        """An attempt's folder: its record, its spool, its workspace."""
        return self._named("attempts", name)

    def session(self, name: str) -> Path:
        """A session's folder: its kernel's name, its workspace."""
        return self._named("sessions", name)

    def kernel(self, name: str) -> Path:
        """A kernel's folder: its connection file, its log, its exit record."""
        return self._named("kernels", name)

    def spool(self, attempt: str) -> Path:
        """An attempt's spool."""
        return self.attempt(attempt) / "spool"

    def values(self, attempt: str) -> Path:
        """Where an attempt's kernel leaves the values that go back."""
        return self.attempt(attempt) / "values"

    def _named(self, kind: str, name: str) -> Path:
        return _named(self.data, kind, name)

    def trouble(self, error: OSError) -> str:
        """What went wrong with this folder, in words for whoever's cell it is."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"no room is left on the worker's disk, in {self.data}: make room there, then run it again"
        return str(error)

    def disk_low(self, reserve_bytes: int) -> str:
        """That the disk is below its reserve, with the numbers; '' where it is not. Raises OSError."""
        free = shutil.disk_usage(self.data).free
        if free >= reserve_bytes:
            return ""
        figures = f"{_size(free)} free of a reserve of {_size(reserve_bytes)} in {self.data}"
        return f"takes no work, and output waits: disk below its reserve, {figures}; make room there"

    # ---------------------------------------------------------------- identity

    def worker_id(self) -> str:
        """This worker's own id, made at its first start."""
        path = self.data / "worker.json"
        try:
            return json.loads(path.read_bytes())["id"]
        except FileNotFoundError:
            name = secrets.token_hex(8)
            write_private(path, json.dumps({"id": name}).encode())
            return name

    # ---------------------------------------------------------------- attempts

    def persist(self, held: Held) -> None:
        """Add what is known of an attempt to its log; whole or not at all.

        A log, since a cell's way from the assignment to its end has five such steps, and a file that takes another
        one's place costs a millisecond each time on common file systems.
        """
        folder = self.attempt(held.assign.attempt)
        path = os.path.join(folder, _LOG)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            self._furnished(folder)
            fd = os.open(path, flags)
        try:
            record = AttemptRecord.of(held, assign=None if os.fstat(fd).st_size else held.assign)
            _append(fd, encode(_STATE, msgspec.msgpack.encode(record)), path)
        finally:
            os.close(fd)

    def furnish(self) -> None:
        """Have a folder ready for the next attempt: to make one takes longer than a small cell runs."""
        if self._ready.exists():
            return
        new = self.data / f"new-{secrets.token_hex(4)}"
        try:
            (self.data / "attempts").mkdir(mode=0o700, parents=True, exist_ok=True)
            _furnish(new)
            new.rename(self._ready)
        except OSError:  # another thread was quicker, or the disk is full: whoever needs a folder makes it then
            shutil.rmtree(new, ignore_errors=True)

    def _cleared(self, folder: Path) -> bool:
        """Let the folder of a small attempt be the next one's: to remove it and make another costs ten times as much.

        Its log goes first: a folder whose log is empty is nobody's.
        """
        try:
            if self._ready.exists() or set(os.listdir(folder)) != _FURNITURE:
                return False
            if os.listdir(folder / "spool") != [_FIRST_SEGMENT]:
                return False
            for path in (folder / _LOG, folder / "kernel.json", folder / "spool" / _FIRST_SEGMENT):
                os.truncate(path, 0)
            folder.rename(self._ready)
        except OSError:  # it is gone already, or another thread was quicker
            return False
        return True

    @property
    def _ready(self) -> Path:
        return self.data / "ready"

    def _furnished(self, folder: Path) -> None:
        try:
            self._ready.rename(folder)
        except OSError:  # none is ready, or this is the first attempt here
            _furnish(folder)

    def load(self, others: Container[str] = ()) -> list[Held]:
        """Every attempt that is here, as an agent before us left it, but `others`, which have no log of their own."""
        found: list[Held] = []
        for folder in self.data.glob("new-*"):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in sorted(self.data.glob("attempts/*")):
            if folder.name in others:
                continue
            record = _last_record(folder / _LOG)
            held = record.held() if record is not None else None
            if held is None:
                # Nothing of it began: an attempt is written down first. The control plane decides what becomes of it.
                shutil.rmtree(folder, ignore_errors=True)
                continue
            found.append(held)
        return found

    def drop(self, attempt: str) -> None:
        """Remove everything of an attempt, and have a folder ready for the next one."""
        folder = self.attempt(attempt)
        if not self._cleared(folder):
            shutil.rmtree(folder, ignore_errors=True)
            self.furnish()

    # ---------------------------------------------------------------- notes: small JSON files

    def note(self, folder: Path, name: str, value: dict[str, Any]) -> None:
        """Write `folder/name.json`. Whoever is killed meanwhile leaves nothing that `noted` takes for a note."""
        data = json.dumps(value).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            fd = os.open(folder / f"{name}.json", flags, 0o600)
        except FileNotFoundError:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(folder / f"{name}.json", flags, 0o600)
        try:
            _append(fd, data, folder / f"{name}.json")
        finally:
            os.close(fd)

    def noted(self, folder: Path, name: str) -> dict[str, Any] | None:
        """What `note` wrote, whole; else None."""
        try:
            data = (folder / f"{name}.json").read_bytes()
            return json.loads(data) if data else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            log.warning("%s/%s.json is not whole: it counts as not written", folder, name)
            return None


@lru_cache(maxsize=1024)  # a cell asks for the same few a dozen times
def _named(data: Path, kind: str, name: str) -> Path:
    if not _SAFE.fullmatch(name):
        raise LayoutError(f"not a name: {name[:80]!r}")
    return data / kind / name


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _furnish(folder: Path) -> None:
    """Make an attempt's folder with the files that every attempt has, empty. Files that are there stay as they are."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    SpoolWriter(folder / "spool").close()
    for name in (_LOG, "kernel.json"):
        os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _append(fd: int, data: bytes, path: Path | str) -> None:
    """Write all of `data`, or nothing. Raises OSError."""
    written = os.write(fd, data)
    if written != len(data):
        os.ftruncate(fd, os.fstat(fd).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _last_record(path: Path) -> AttemptRecord | None:
    """The state that a log ends with. What a killed agent had begun to write is cut off, so that more can follow."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        end, _ = last_good(fd)
        os.ftruncate(fd, end)
        records = Splitter().feed(os.pread(fd, end, 0))
    except RecordError as error:
        log.error("%s is damaged, the attempt is given up: %s", path, error)
        return None
    finally:
        os.close(fd)
    states = [msgspec.msgpack.decode(body, type=AttemptRecord) for _, _, body in records]
    return msgspec.structs.replace(states[-1], assign=states[0].assign) if states else None
