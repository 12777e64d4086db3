"""The arguments of calls on their way to the runners. No I/O, but for what `read` does.

The plane says which calls go where, and keeps none of their bytes. Those that came just now are still here when they
go; others are read from the store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from gpulayer.protocol.calls import MESSAGE_BYTES, CallBatch, CallRange, Calls, MapSpec
from gpulayer_server.core.events import ArgsRow, Dispatch, Row
from gpulayer_server.core.jobs import job_name
from gpulayer_server.core.state import MapState

#: The arguments of these calls, in rows by index: the map's name, the first call's index, how many.
Read = Callable[[str, int, int], Sequence[ArgsRow]]

_LIMIT_BYTES = 32 * 1024 * 1024
_CALL_BYTES = 64  # what a call takes beside its arguments, about


@dataclass(slots=True)
class _Chunk:
    """Arguments that came together."""

    first: int
    args: tuple[bytes, ...]
    blobs: tuple[str, ...]
    size_bytes: int = 0
    left: int = 0  # calls that did not go to any runner yet
    named: list[list[str]] | None = None  # by call: the blobs that it names; the last item is of those that any may

    @property
    def end(self) -> int:
        return self.first + len(self.args)

    def batch(self, spec: MapSpec, name: str, first: int, end: int) -> CallBatch:
        """The calls from index `first` to before `end`."""
        all_of_them = end - first == len(self.args)
        return CallBatch(
            map=name,
            first=first,
            args=self.args if all_of_them else self.args[first - self.first : end - self.first],
            blobs=self.blobs if all_of_them or not self.blobs else self._blobs_of(first, end),
            method=spec.method,
            timeout_s=spec.timeout_s,
            stream=spec.stream,
        )

    def _blobs_of(self, first: int, end: int) -> tuple[str, ...]:
        """Those that these calls name: a worker fetches no others."""
        if self.named is None:
            self.named = _named(self.args, self.blobs)
        some = [*self.named[first - self.first : end - self.first], self.named[-1]]
        return tuple(dict.fromkeys(chain.from_iterable(some)))


@dataclass(slots=True)
class _Map:
    spec: MapSpec
    firsts: list[int] = field(default_factory=list[int])  # of `chunks`, ascending
    chunks: list[_Chunk] = field(default_factory=list[_Chunk])


class CallsData:
    """Arguments by maps, as many bytes of them as may be kept. Used on one thread."""

    def __init__(self, read: Read, limit_bytes: int = _LIMIT_BYTES):
        self._read = read
        self._limit_bytes = limit_bytes
        self.size_bytes = 0
        self._maps: dict[str, _Map] = {}

    def load(self, maps: Iterable[MapState]) -> None:
        """Begin anew with the maps that live: what the plane begins with."""
        self._maps = {state.id: _Map(state.spec) for state in maps}
        self.size_bytes = 0

    def take(self, rows: Iterable[Row]) -> list[MapState]:
        """What the plane decided: new maps and their arguments may be among it. Gives the maps that ended."""
        args: list[ArgsRow] = []
        ended: list[MapState] = []
        for row in rows:
            if isinstance(row, ArgsRow):
                args.append(row)
            elif isinstance(row, MapState):
                if row.id not in self._maps:
                    self._maps[row.id] = _Map(row.spec)
                if row.ended_at is not None:
                    ended.append(row)
        for row in args:
            self._add(row)
        return ended

    def forget(self, name: str) -> None:
        """A map has ended, and all that was to be sent of it was."""
        known = self._maps.pop(name, None)
        if known is not None:
            self.size_bytes -= sum([chunk.size_bytes for chunk in known.chunks])

    def calls_message(self, dispatch: Dispatch) -> Calls:
        """The message that hands these calls to a runner.

        Calls whose arguments are gone have ended: they are left out.
        """
        batches = [batch for wanted in dispatch.ranges for batch in self._batches(wanted)]
        return Calls(attempt=dispatch.attempt, batches=tuple(batches))

    def calls_messages(self, dispatch: Dispatch) -> list[Calls]:
        """The same in messages of about `MESSAGE_BYTES` at most, unless a single call has more."""
        whole = self.calls_message(dispatch)
        if sum([len(each) for batch in whole.batches for each in batch.args]) <= MESSAGE_BYTES:
            return [whole]
        return [Calls(attempt=dispatch.attempt, batches=(part,)) for batch in whole.batches for part in _cut(batch)]

    def _add(self, row: ArgsRow) -> None:
        known = self._maps.get(f"{job_name(row.n)}.{row.k}")
        size_bytes = sum(map(len, row.args)) + _CALL_BYTES * len(row.args)
        if known is None or self.size_bytes + size_bytes > self._limit_bytes:
            return
        if not row.args or (known.firsts and row.first <= known.firsts[-1]):
            return
        known.firsts.append(row.first)
        known.chunks.append(_Chunk(row.first, row.args, row.blobs, size_bytes, len(row.args)))
        self.size_bytes += size_bytes

    def _batches(self, wanted: CallRange) -> Iterator[CallBatch]:
        known = self._maps.get(wanted.map)
        if known is None:
            return
        first, end = wanted.first, wanted.first + wanted.count
        while first < end:
            at = bisect_right(known.firsts, first) - 1
            chunk = known.chunks[at] if at >= 0 else None
            if chunk is None or first >= chunk.end:
                stop = min(end, known.firsts[at + 1]) if at + 1 < len(known.firsts) else end
                yield from self._stored(known.spec, wanted.map, first, stop)
            else:
                stop = min(end, chunk.end)
                yield chunk.batch(known.spec, wanted.map, first, stop)
                chunk.left -= stop - first
                if chunk.left <= 0:  # what goes once more is read
                    del known.firsts[at], known.chunks[at]
                    self.size_bytes -= chunk.size_bytes
            first = stop

    def _stored(self, spec: MapSpec, name: str, first: int, end: int) -> Iterator[CallBatch]:
        for row in self._read(name, first, end - first):
            chunk = _Chunk(row.first, row.args, row.blobs)
            start, stop = max(first, chunk.first), min(end, chunk.end)
            if start < stop:
                yield chunk.batch(spec, name, start, stop)


def _named(args: tuple[bytes, ...], blobs: tuple[str, ...]) -> list[list[str]]:
    """Which blobs each call names, and at the end those that are found in none.

    What arguments look like only clients and runners know: digests are looked for as text and as bytes, and one that
    is not found may be of any call.
    """
    ends = list(accumulate(map(len, args)))
    joined = b"".join(args)
    named: list[list[str]] = [[] for _ in range(len(args) + 1)]
    for digest in blobs:
        found = False
        for needle in (digest.encode(), _raw(digest)):
            at = joined.find(needle)
            while at >= 0:
                call = bisect_right(ends, at)
                named[call].append(digest)
                found = True
                at = joined.find(needle, ends[call])
        if not found:
            named[-1].append(digest)
    return named


def _raw(digest: str) -> bytes:
    try:
        return bytes.fromhex(digest)
    except ValueError:  # not a digest: whoever looks for the blob will say so
        return digest.encode()


def _cut(batch: CallBatch) -> Iterator[CallBatch]:
    """A batch in parts of about `MESSAGE_BYTES`."""
    chunk = _Chunk(batch.first, batch.args, batch.blobs)
    spec = MapSpec(method=batch.method, timeout_s=batch.timeout_s, stream=batch.stream)
    first, size_bytes = 0, 0
    for at, each in enumerate(batch.args):
        if at > first and size_bytes + len(each) > MESSAGE_BYTES:
            yield chunk.batch(spec, batch.map, batch.first + first, batch.first + at)
            first, size_bytes = at, 0
        size_bytes += len(each) + _CALL_BYTES
    yield chunk.batch(spec, batch.map, batch.first + first, batch.first + len(batch.args))
