"""What the calls of one map write, out of the streams of their job's attempts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpulayer.protocol.records import HEADER_BYTES, Kind, RecordError, Splitter, decode_call

log = logging.getLogger("gpulayer.server")

_KINDS = frozenset({Kind.CALL_STDOUT, Kind.CALL_STDERR, Kind.CALL_ITEM})


class Streams(Protocol):
    """Where the streams are read."""

    def visible(self, attempt: str) -> int: ...

    def read(self, attempt: str, offset: int, limit: int) -> bytes: ...


class Text(NamedTuple):
    """A record of a call, or some of the same kind, one behind the other."""

    index: int
    kind: int
    seq: int
    data: bytes
    attempt: str
    at: int  # how far the stream was read with it


@dataclass(slots=True)
class _Stream:
    offset: int  # how far it was read
    at: int  # the end of the last record of it
    splitter: Splitter = field(default_factory=Splitter)


class MapTexts:
    """Reads the streams of a job's attempts, and gives what is of one map. Used on the loop's thread."""

    def __init__(self, streams: Streams, name: str, offsets: Mapping[str, int] | None = None):
        """`offsets`: of attempts that may have written already, from where on each is read."""
        self._streams = streams
        encoded = name.encode()
        self._name = bytes((len(encoded),)) + encoded  # as such a record's body begins
        self._read = {attempt: _Stream(offset, offset) for attempt, offset in (offsets or {}).items()}
        self._unread = dict.fromkeys(self._read)

    @property
    def unread(self) -> bool:
        """Whether there are bytes that were not looked at."""
        return bool(self._unread)

    def grew(self, attempt: str, before: int) -> None:
        """A stream grew. `before`: how long it was; one that is new here is read from there."""
        if attempt not in self._read:
            self._read[attempt] = _Stream(before, before)
        self._unread[attempt] = None

    def goal(self) -> dict[str, int]:
        """How far the streams reach now that are not read to their ends."""
        return {attempt: self._streams.visible(attempt) for attempt in self._unread}

    def reached(self, goal: Mapping[str, int]) -> bool:
        """Whether they are read so far; one that is damaged is not read any more."""
        return all(self._read[attempt].offset >= end for attempt, end in goal.items() if attempt in self._unread)

    def take(self, limit_bytes: int) -> list[Text]:
        """The next records of the map's calls; about so many bytes are looked at."""
        texts: list[Text] = []
        for attempt in list(self._unread):
            stream = self._read[attempt]
            end = self._streams.visible(attempt)
            if stream.offset < end:
                data = self._streams.read(attempt, stream.offset, limit_bytes)
                stream.offset += len(data)
                limit_bytes -= len(data)
                self._split(attempt, stream, data, texts)
            if stream.offset >= end:
                self._unread.pop(attempt, None)
            if limit_bytes <= 0:
                break
        return texts

    def _split(self, attempt: str, stream: _Stream, data: bytes, texts: list[Text]) -> None:
        try:
            records = stream.splitter.feed(data)
            for _, kind, body in records:
                stream.at += HEADER_BYTES + 1 + len(body)
                if kind in _KINDS and body[: len(self._name)] == self._name:
                    _, index, seq, text = decode_call(body)
                    _add(texts, Text(index, kind, seq, bytes(text), attempt, stream.at))
        except RecordError as error:
            log.error("what attempt %s wrote can't be read behind byte %d: %s", attempt, stream.at, error)
            stream.offset = self._streams.visible(attempt)
            stream.splitter = Splitter()
            self._unread.pop(attempt, None)


def _add(texts: list[Text], text: Text) -> None:
    """Append; what a call prints in a row is one text."""
    last = texts[-1] if texts else None
    if (
        last is not None
        and text.kind != Kind.CALL_ITEM
        and (last.index, last.kind, last.attempt) == (text.index, text.kind, text.attempt)
    ):
        texts[-1] = text._replace(data=last.data + text.data)
    else:
        texts.append(text)
