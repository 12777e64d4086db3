"""Where a worker keeps what: one data folder per worker, mode 0700."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpulayer.protocol.endpoint import write_private
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Outcome, Struct
from gpulayer_worker.link import Held

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LayoutError(ValueError):
    """A name that is no name of an attempt or session: it would become a path."""


class AttemptRecord(Struct, frozen=True, kw_only=True):
    """What a new agent finds of an attempt."""

    assign: Assign
    began: bool = False
    outcome: Outcome | None = None
    end: int | None = None
    gone: bool = False
    recorded: bool = False


@dataclass(frozen=True)
class Layout:
    """Paths below the data folder, and the small files in them."""

    data: Path

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

    def _named(self, kind: str, name: str) -> Path:
        if not _SAFE.fullmatch(name):
            raise LayoutError(f"not a name: {name[:80]!r}")
        return self.data / kind / name

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
        """Write an attempt's record; whole or not at all."""
        folder = self.attempt(held.assign.attempt)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = AttemptRecord(
            assign=held.assign,
            began=held.began,
            outcome=held.outcome,
            end=held.end,
            gone=held.gone,
            recorded=held.recorded,
        )
        write_private(folder / "attempt.msgpack", msgspec.msgpack.encode(record))

    def load(self) -> list[Held]:
        """Every attempt that is here, as an agent before us left it."""
        found: list[Held] = []
        for path in sorted(self.data.glob("attempts/*/attempt.msgpack")):
            record = msgspec.msgpack.decode(path.read_bytes(), type=AttemptRecord)
            found.append(
                Held(
                    assign=record.assign,
                    began=record.began,
                    outcome=record.outcome,
                    end=record.end,
                    gone=record.gone,
                    recorded=record.recorded,
                    spool_end=record.end or 0,
                )
            )
        return found

    def drop(self, attempt: str) -> None:
        """Remove everything of an attempt."""
        shutil.rmtree(self.attempt(attempt), ignore_errors=True)

    # ---------------------------------------------------------------- notes: small JSON files

    def note(self, folder: Path, name: str, value: dict[str, Any]) -> None:
        """Write `folder/name.json`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folder / f"{name}.json", json.dumps(value).encode())

    def noted(self, folder: Path, name: str) -> dict[str, Any] | None:
        """What `note` wrote, or None."""
        try:
            return json.loads((folder / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
