"""What the kept jobs name: blobs, attempts. Reads the store by a connection of its own, in any thread, in slices."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpulayer.protocol.types import Struct
from gpulayer_server.store.database import StoreError, named_statements

_SLICE = 500
_SQL = named_statements("kept.sql")


class _Work(Struct, frozen=True, kw_only=True):
    bundle: str = ""
    inputs: str = ""


class _Function(Struct, frozen=True, kw_only=True):
    bundle: str = ""


class _Calls(Struct, frozen=True, kw_only=True):
    function: _Function
    init_blobs: tuple[str, ...] = ()


class _Spec(Struct, frozen=True, kw_only=True):
    cell: _Work | None = None
    command: _Work | None = None
    calls: _Calls | None = None


class _Outcome(Struct, frozen=True, kw_only=True):
    values: str = ""
    files: str = ""


class Named(Struct, frozen=True, kw_only=True):
    """Digests that some jobs name."""

    manifests: set[str]
    blobs: set[str]


_spec = msgspec.msgpack.Decoder(_Spec)
_outcome = msgspec.msgpack.Decoder(_Outcome)
_digests = msgspec.msgpack.Decoder(tuple[str, ...])


class Kept:
    """A look into a store's file; one thread at a time uses it."""

    def __init__(self, path: Path):
        """Raises `StoreError`."""
        try:
            where = f"{path.absolute().as_uri()}?mode=ro"
            self._read = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from error

    def close(self) -> None:
        """Close it."""
        self._read.close()

    def named(self) -> Iterator[Named]:
        """What all jobs name, some hundred jobs at a time. Raises `StoreError`."""
        for rows in self._slices("specs", 0):
            specs = [_spec.decode(spec) for _, spec in rows]
            works = [work for spec in specs for work in (spec.cell, spec.command) if work is not None]
            calls = [spec.calls for spec in specs if spec.calls is not None]
            yield Named(
                manifests={work.bundle for work in works} | {each.function.bundle for each in calls},
                blobs={work.inputs for work in works} | {digest for each in calls for digest in each.init_blobs},
            )
        for rows in self._slices("outcomes", 0, -1):
            ends = [_outcome.decode(outcome) for *_, outcome in rows]
            yield Named(manifests={end.files for end in ends}, blobs={end.values for end in ends})
        for name, *last in (("args_blobs", -1, -1, -1), ("results_blobs", -1)):  # of calls: in their maps' rows
            for rows in self._slices(name, *last):
                yield Named(manifests=set(), blobs={digest for *_, some in rows for digest in _digests.decode(some)})

    def attempts(self) -> Iterator[list[str]]:
        """The names of all attempts, some hundred at a time. Raises `StoreError`."""
        for rows in self._slices("attempts", 0, -1, -1):
            yield [name for *_, name in rows]

    def _slices(self, name: str, *last: int) -> Iterator[list[tuple]]:
        """Rows after `last`, the first columns of which are their place."""
        while rows := self._all(name, *last, _SLICE):
            last = rows[-1][: len(last)]
            yield rows

    def _all(self, name: str, *values: object) -> list[tuple]:
        try:
            return self._read.execute(_SQL[name], values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the store can't be read: {error}") from error
