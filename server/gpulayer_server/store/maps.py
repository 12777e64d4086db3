"""Maps of calls in the store: their rows and records, one for the other, and what is read of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gpulayer.protocol.calls import CallsCount, MapSpec, ResultRun
from gpulayer.protocol.types import Reason, State
from gpulayer_server.core.calls.state import MapState
from gpulayer_server.core.events import ArgsRow, ResultsRow

Op = tuple[str, tuple[Any, ...]]
MapKey = tuple[int, int]  # the job's number, and the map's in it

_pack = msgspec.msgpack.Encoder().encode
_NOTHING = _pack(())
_map_spec = msgspec.msgpack.Decoder(MapSpec)
_reasons = msgspec.msgpack.Decoder(tuple[Reason, ...])
_parts = msgspec.msgpack.Decoder(tuple[bytes, ...])
_digests = msgspec.msgpack.Decoder(tuple[str, ...])
_COUNTS = 1000  # jobs


class StoredRun(NamedTuple):
    """Results that stand one behind the other, and their place in the order of their coming."""

    seq: int
    run: ResultRun


# ---------------------------------------------------------------- records as rows


def map_op(r: MapState) -> Op:
    """The statement that writes a map as it is now."""
    reasons = _pack(r.reasons) if r.reasons else _NOTHING
    return "put_map", (
        r.n, r.k, r.owner, r.key, _pack(r.spec), r.opened_at, r.total, r.taken, r.done, r.failed, r.state._value_,
        r.cancel_wanted, r.started_at, r.left_at, r.ended_at, r.problem, r.failed_index, r.failed_code, r.failure,
        reasons,
    )  # fmt: skip


def args_op(r: ArgsRow) -> Op:
    """The statement that adds arguments."""
    blobs = _pack(r.blobs) if r.blobs else None
    return "put_args", (r.n, r.k, r.first, len(r.args), blobs, _pack(r.args))


def results_op(r: ResultsRow) -> Op:
    """The statement that adds results."""
    run = r.run
    blobs = _pack(run.blobs) if run.blobs else None
    data = _pack(run.data)
    return "put_results", (r.n, r.k, run.first, len(run.codes), run.spent_us, blobs, run.codes, data)


def dropped(key: MapKey) -> list[Op]:
    """The statements that remove a map, with all that is its."""
    return [("drop_args", key), ("drop_results", key), ("drop_map", key)]


# ---------------------------------------------------------------- rows as records


def map_state(row: tuple[Any, ...]) -> MapState:
    """A map, without the ranges of its results."""
    job, n, k, owner, key, spec, opened_at, total, taken, done, failed, state, cancel_wanted, *rest = row
    started_at, left_at, ended_at, problem, failed_index, failed_code, failure, reasons = rest
    return MapState(
        n=n,
        k=k,
        id=f"{job}.{k}",
        job=job,
        owner=owner,
        key=key,
        spec=_map_spec.decode(spec),
        opened_at=opened_at,
        total=total,
        taken=taken,
        done=done,
        failed=failed,
        state=State(state),
        cancel_wanted=bool(cancel_wanted),
        started_at=started_at,
        left_at=left_at,
        ended_at=ended_at,
        problem=problem,
        failed_index=failed_index,
        failed_code=failed_code,
        failure=failure,
        reasons=_reasons.decode(reasons),
    )


def split_id(name: str) -> tuple[str, int] | None:
    """The job and the number of a map's id 'k3f9.17'; None for what is none."""
    job, dot, k = name.rpartition(".")
    return (job, int(k)) if dot and k.isdecimal() and len(k) < 16 else None


class Maps:
    """Reads maps by the store's connection for reading. One thread uses it: the loop's."""

    def __init__(self, read: sqlite3.Connection, statements: Mapping[str, str]):
        self._read = read
        self._statements = statements
        self._counts: dict[int, CallsCount] = {}

    def live(self) -> list[MapState]:
        """Those that have not ended, with what has a result."""
        states = [map_state(row) for row in self._all("live_maps")]
        by_key = {(state.n, state.k): state.ranges for state in states}
        for n, k, first, count in self._all("done_of_live_maps"):
            ranges = by_key[n, k]
            if ranges and sum(ranges[-1]) == first:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + count)
            else:
                ranges.append((first, count))
        return states

    def last_ks(self, jobs: Iterable[int]) -> dict[int, int]:
        """By the number of a job: that of its last map. Those without maps are left out."""
        found = self._all("last_maps", json.dumps(list(jobs)))
        return {n: k for n, k in found if k is not None}

    def left_over(self) -> list[MapKey]:
        """Maps that have ended, and whose arguments are still there."""
        return [key for key in self._all("maps_with_args") if self._all("ended_map", *key)]

    def map(self, name: str) -> MapState | None:
        """A map of any age."""
        parts = split_id(name)
        return self._one("map", *parts) if parts is not None else None

    def by_key(self, owner: str, key: str) -> MapState | None:
        """The map that an idempotency key made."""
        return self._one("map_by_key", owner, key)

    def of_job(self, job: str, limit: int, before: int | None = None) -> list[MapState]:
        """The maps of a job, newest first; with `before` only those of lower numbers."""
        return [map_state(row) for row in self._all("maps_of_job", job, before or 2**62, limit)]

    def of_jobs(self, jobs: Iterable[int], limit: int) -> list[MapKey]:
        """Some maps of these jobs."""
        return self._all("maps_of_jobs", json.dumps(list(jobs)), limit)

    def oldest_ended(self, limit: int) -> list[tuple[int, int, float]]:
        """The job's number, the map's own, and the end of those that ended first."""
        return self._all("oldest_ended_maps", limit)

    def ended_count(self) -> int:
        """How many have ended."""
        return self._all("ended_maps_count")[0][0]

    def runs_of(self, key: MapKey) -> int:
        """In how many rows its results are."""
        return self._all("runs_of_map", *key)[0][0]

    def count(self, n: int, *, over: bool) -> CallsCount:
        """The calls of a job, by its maps that are kept; of one that is over it is remembered."""
        count = self._counts.get(n)
        if count is None:
            maps, calls, done, failed, dropped = self._all("tally_of_maps", n)[0]
            count = CallsCount(maps=maps, calls=calls, done=done, failed=failed, dropped=dropped)
            if over:
                self._counts[n] = count
                if len(self._counts) > _COUNTS:
                    del self._counts[next(iter(self._counts))]
        return count

    def done(self, key: MapKey) -> int:
        """How many of its calls have a result."""
        return self._all("done_of_map", *key)[0][0]

    def end_of_calls(self, owner: str, payload_hash: str) -> State | None:
        """How the last job of calls of an owner with this spec ended; None where none did."""
        found = self._all("end_of_calls", owner, payload_hash)
        return State(found[0][0]) if found else None

    def args(self, key: MapKey, first: int, count: int) -> list[ArgsRow]:
        """The rows in which the arguments of these calls are; what is not there is left out."""
        n, k = key
        rows = self._all("args_of", n, k, first + count, n, k, first)
        return [
            ArgsRow(n=n, k=k, first=at, args=_parts.decode(args), blobs=_digests.decode(blobs) if blobs else ())
            for at, args, blobs in rows
        ]

    def results_by_index(self, key: MapKey, first: int, limit_bytes: int) -> list[StoredRun]:
        """Results of calls from index `first` on without a gap, one run at least, if that one is there."""
        found: list[StoredRun] = []
        expected = first
        for stored in self._runs("results_by_index", (*key, *key, first)):
            run = stored.run
            end = run.first + len(run.codes)
            if run.first > expected or (found and limit_bytes <= 0):
                break
            if end <= expected:
                continue
            if run.first < expected:
                skip = expected - run.first
                stored = StoredRun(stored.seq, ResultRun(first=expected, codes=run.codes[skip:], data=run.data[skip:]))
            found.append(stored)
            limit_bytes -= size_of(stored.run.data)
            expected = end
        return found

    def results_by_coming(self, key: MapKey, after: int, limit_bytes: int) -> list[StoredRun]:
        """Results in the order of their coming, after that of number `after`; one run at least, if there is one."""
        found: list[StoredRun] = []
        for stored in self._runs("results_by_coming", (*key, after)):
            if found and limit_bytes <= 0:
                break
            found.append(stored)
            limit_bytes -= size_of(stored.run.data)
        return found

    def _runs(self, name: str, values: tuple[Any, ...]) -> Iterator[StoredRun]:
        rows = self._read.execute(self._statements[name], values)
        try:
            for seq, first, codes, data in rows:
                yield StoredRun(seq, ResultRun(first=first, codes=codes, data=_parts.decode(data)))
        finally:
            rows.close()  # one that was not read to its end would keep the write-ahead log from starting anew

    def _one(self, name: str, *values: Any) -> MapState | None:
        found = self._all(name, *values)
        return map_state(found[0]) if found else None

    def _all(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._read.execute(self._statements[name], values).fetchall()


_CALL_OVERHEAD_BYTES = 8


def size_of(data: tuple[bytes, ...]) -> int:
    """About how many bytes these take in a message."""
    return sum(map(len, data)) + _CALL_OVERHEAD_BYTES * len(data)
