"""What the calls of one map write, on its way to one client: what comes now, from memory, what was before, from the
streams of its job's attempts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpulayer.protocol.records import HEADER_BYTES, Kind, RecordError, Splitter, decode_call

log = logging.getLogger("gpulayer.server")

_KINDS = frozenset({Kind.CALL_STDOUT, Kind.CALL_STDERR, Kind.CALL_ITEM})
_FRESH_BYTES = 1024 * 1024
_TEXT_BYTES = 100  # what a text takes beside its data, about


class Streams(Protocol):
    """Where the streams are read."""

    def visible(self, attempt: str) -> int: ...

    def read(self, attempt: str, offset: int, limit: int) -> bytes: ...


class Text(NamedTuple):
    """A record of a call, or some of the same kind, one behind the other."""

    map: str
    index: int
    kind: int
    seq: int
    data: bytes
    attempt: str
    start: int  # where its first record begins in the attempt's stream
    at: int  # where its last one ends


class _Reader:
    """Cuts an attempt's stream into texts of calls."""

    def __init__(self, attempt: str, offset: int):
        self.attempt = attempt
        self.offset = offset  # how far it was read
        self._at = offset  # the end of the last whole record
        self._splitter = Splitter()

    def feed(self, data: bytes) -> list[Text]:
        """The texts that these bytes complete. Raises RecordError."""
        self.offset += len(data)
        texts: list[Text] = []
        for _, kind, body in self._splitter.feed(data):
            start = self._at
            self._at += HEADER_BYTES + 1 + len(body)
            if kind in _KINDS:
                name, index, seq, text = decode_call(body)
                _add(texts, Text(name, index, kind, seq, bytes(text), self.attempt, start, self._at))
        return texts


def _add(texts: list[Text], text: Text) -> None:
    """Append; what a call prints in a row is one text."""
    last = texts[-1] if texts else None
    if (
        last is not None
        and text.kind != Kind.CALL_ITEM
        and (last.index, last.kind, last.map) == (text.index, text.kind, text.map)
    ):
        texts[-1] = last._replace(data=last.data + text.data, at=text.at)
    else:
        texts.append(text)


def texts_of(streams: Streams, attempt: str, before: int) -> list[Text]:
    """What calls wrote in a stream behind byte `before`, where whole records ended."""
    try:
        return _Reader(attempt, before).feed(streams.read(attempt, before, streams.visible(attempt) - before))
    except RecordError as error:
        _log_damage(attempt, before, error)
        return []


def _log_damage(attempt: str, offset: int, error: RecordError) -> None:
    log.error("what attempt %s wrote can't be read behind byte %d: %s", attempt, offset, error)


@dataclass(slots=True)
class _Goal:
    ends: dict[str, int] = field(default_factory=dict[str, int])  # of streams that are read here
    fresh: int = 0  # texts that came by then


class MapTexts:
    """The texts of a map for one client. Used on the loop's thread."""

    def __init__(self, streams: Streams, name: str, offsets: Mapping[str, int] | None = None):
        """`offsets`: of attempts that may have written already, from where on each is read."""
        self._streams = streams
        self._name = name
        self._behind = {attempt: _Reader(attempt, offset) for attempt, offset in (offsets or {}).items()}
        self._fresh: deque[Text] = deque()
        self._fresh_bytes = 0
        self._came = self._went = 0  # texts that were fresh
        self._goal = _Goal()

    @property
    def unread(self) -> bool:
        """Whether `take` may give some."""
        return bool(self._fresh or self._behind)

    def wrote(self, texts: Iterable[Text]) -> None:
        """Calls of the map wrote these now."""
        for text in texts:
            if text.attempt not in self._behind:
                self._fresh.append(text)
                self._fresh_bytes += len(text.data) + _TEXT_BYTES
                self._came += 1
        if self._fresh_bytes > _FRESH_BYTES:
            self._fall_behind()

    def _fall_behind(self) -> None:
        """The client is slow: what waits is read once more when its turn comes."""
        for text in self._fresh:
            if text.attempt not in self._behind:
                self._behind[text.attempt] = _Reader(text.attempt, text.start)
                self._goal.ends[text.attempt] = self._streams.visible(text.attempt)
        self._went = self._came
        self._fresh.clear()
        self._fresh_bytes = 0

    def set_goal(self) -> None:
        """What is there now is to be taken before `reached`."""
        self._goal = _Goal({attempt: self._streams.visible(attempt) for attempt in self._behind}, self._came)

    @property
    def reached(self) -> bool:
        """Whether what was there when the goal was set is taken; a damaged stream is not read any more."""
        if self._went < self._goal.fresh:
            return False
        ends = self._goal.ends
        return all(reader.offset >= ends.get(attempt, 0) for attempt, reader in self._behind.items())

    def take(self, limit_bytes: int) -> list[Text]:
        """The next texts of the map's calls; about so many bytes are looked at."""
        texts: list[Text] = []
        while self._fresh and limit_bytes > 0:
            text = self._fresh.popleft()
            self._went += 1
            self._fresh_bytes -= len(text.data) + _TEXT_BYTES
            limit_bytes -= len(text.data)
            texts.append(text)
        for reader in list(self._behind.values()):
            if limit_bytes <= 0:
                break
            limit_bytes -= self._read(reader, limit_bytes, texts)
        return texts

    def _read(self, reader: _Reader, limit_bytes: int, texts: list[Text]) -> int:
        """Read on; from the end of a stream on its texts come by `wrote`. How many bytes were looked at."""
        attempt, end, offset = reader.attempt, self._streams.visible(reader.attempt), reader.offset
        if offset < end:
            try:
                found = reader.feed(self._streams.read(attempt, offset, limit_bytes))
                texts += [text for text in found if text.map == self._name]
            except RecordError as error:
                _log_damage(attempt, offset, error)
                reader.offset = end
        if reader.offset >= end:
            del self._behind[attempt]
        return max(0, reader.offset - offset)
