"""Results: the first one of an index counts; calls that failed may be tried again; what came back runs elsewhere."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from gpulayer.protocol.calls import (
    OK,
    RAISED,
    RUNNER_DIED,
    TIMED_OUT,
    CallRange,
    CallRun,
    CallsAccepted,
    CallsDone,
    CallsReturned,
)
from gpulayer_server.core.calls import dispatch, ending
from gpulayer_server.core.calls.failing import died_run
from gpulayer_server.core.calls.pool import Lease, LiveMap, Pool
from gpulayer_server.core.calls.ranges import Range, Ranges
from gpulayer_server.core.events import Effects, ResultsRow
from gpulayer_server.core.state import Attempt, Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_AGAIN = frozenset({RAISED, TIMED_OUT, RUNNER_DIED})  # what retries are for
_FREE_DEATHS = 1  # a runner may die of something else than its call: so often that counts for nothing
_LONGEST_BACKOFF_S = 3600.0


def done(plane: Plane, worker: Worker, attempt: Attempt | None, message: CallsDone, now: float, out: Effects) -> None:
    """A runner's results. Those of an attempt that is over, or another worker's, are refused: they may be let go of."""
    lease = plane.calls.leases.get(attempt.id) if attempt is not None else None
    for run in message.runs:
        of = plane.calls.maps.get(run.map)
        if lease is not None and of is not None and of.pool is lease.pool and run.codes:
            _take(plane, lease, of, run, now, out)
    accepted = tuple([CallRange(map=run.map, first=run.first, count=len(run.codes)) for run in message.runs])
    out.send(worker.conn, CallsAccepted(attempt=message.attempt, ranges=accepted))
    if lease is not None:
        lease.heard_at = now
        dispatch.file(lease, now)
        plane.calls.touch(lease.pool)


def _take(plane: Plane, lease: Lease, of: LiveMap, run: CallRun, now: float, out: Effects) -> None:
    first, end, count = run.first, run.first + len(run.codes), len(run.codes)
    if first < 0 or end > of.row.taken or len(run.data) != count:
        return  # of calls that there are not
    of.took(lease, count, run.spent_us)
    had = lease.flight.get(of)
    held = Ranges(had.within(first, end)) if had is not None else Ranges()
    lease.let_go(of, first, end)
    lease.results += count
    lease.pool.failures = 0
    new = of.done.missing(first, end)
    if len(new) == 1 and new[0] == (first, end) and run.codes.count(OK) == count:
        accept(plane, of, run, now, out)
        return
    for low, high in new:
        _sort_out(plane, of, _part(run, low, high), held, now, out)


def _part(run: CallRun, first: int, end: int) -> CallRun:
    low, high = first - run.first, end - run.first
    if low == 0 and high == len(run.codes):
        return run
    spent_us = run.spent_us * (high - low) // len(run.codes)
    return CallRun(
        map=run.map,
        first=first,
        codes=run.codes[low:high],
        data=run.data[low:high],
        blobs=run.blobs,
        spent_us=spent_us,
    )


def _sort_out(plane: Plane, of: LiveMap, run: CallRun, held: Ranges, now: float, out: Effects) -> None:
    """Accept all but the calls that are tried again. Of one that the lease did not have it was told before."""
    at = run.first
    for number, code in enumerate(run.codes):
        index = run.first + number
        if code in _AGAIN and (index not in held or _tried_again(plane, of, index, now)):
            if at < index:
                accept(plane, of, _part(run, at, index), now, out)
            at = index + 1
    end = run.first + len(run.codes)
    if at < end:
        accept(plane, of, _part(run, at, end), now, out)


def accept(plane: Plane, of: LiveMap, run: CallRun, now: float, out: Effects) -> None:
    """These are the results of their calls, for good. A failed one may end the map."""
    row, pool, count = of.row, of.pool, len(run.codes)
    if row.ended_at is not None:
        return
    failed = count - run.codes.count(OK)
    of.wait_no_more(run.first, run.first + count)
    of.done.add(run.first, run.first + count)
    row.done += count
    row.failed += failed
    pool.done += count
    pool.failed += failed
    pool.changed = True
    if of.tries or of.deaths:
        for index in range(run.first, run.first + count):
            for known in (of.tries, of.deaths, of.put_off):
                known.pop(index, None)
    out.put(ResultsRow(n=row.n, k=row.k, run=run))
    out.results.append((row.id, run))
    out.maps.add(row.id)
    if failed:
        out.put(row)
        if not row.spec.return_exceptions:
            number = next(number for number, code in enumerate(run.codes) if code != OK)
            ending.failed(plane, of, run.first + number, run.codes[number], run.data[number], now, out)
            return
    ending.end_if_done(plane, of, now, out)


def _tried_again(plane: Plane, of: LiveMap, index: int, now: float) -> bool:
    """A call failed: whether it is tried again, later."""
    spec = of.row.spec
    tries = of.tries.get(index, 0) + 1
    if tries > spec.retries:
        return False
    of.tries[index] = tries
    calls = plane.calls
    calls.serial += 1
    of.put_off[index] = calls.serial
    due = now + min(spec.backoff_s * 2.0 ** (tries - 1), _LONGEST_BACKOFF_S)
    heapq.heappush(calls.put_off, (due, calls.serial, of, index))
    return True


def try_again(plane: Plane, now: float) -> None:
    """Those that were put off until now are to run."""
    calls = plane.calls
    while calls.put_off and calls.put_off[0][0] <= now:
        _, serial, of, index = heapq.heappop(calls.put_off)
        if of.row.ended_at is None and of.put_off.get(index) == serial:
            del of.put_off[index]
            wait_again(of.pool, of, index, index + 1)
            calls.touch(of.pool)


# ---------------------------------------------------------------- what came back


def returned(plane: Plane, attempt: Attempt | None, message: CallsReturned, now: float, out: Effects) -> None:
    """A runner has these no more: they did not run there, or it died of one of them."""
    lease = plane.calls.leases.get(attempt.id) if attempt is not None else None
    if lease is None:
        return
    lease.recalled_at = None
    for each in message.ranges:
        of = plane.calls.maps.get(each.map)
        if of is None or of.pool is not lease.pool:
            continue
        ranges = lease.flight.get(of)
        gone = ranges.within(each.first, each.first + each.count) if ranges is not None else []
        for first, end in gone:
            lease.let_go(of, first, end)
            wait_again(lease.pool, of, first, end)
        if message.began:
            died(plane, of, gone, message.reason, lease.worker.name, now, out)
    if message.began:
        lease.heard_at = now
    dispatch.file(lease, now)
    plane.calls.touch(lease.pool)


def wait_again(pool: Pool, of: LiveMap, first: int, end: int) -> None:
    """These wait, unless they are done, or another runner has them as well."""
    if of.row.ended_at is not None:
        return
    for low, high in of.done.missing(first, end):
        if not pool.doubled:
            of.wait(low, high)
            continue
        left: list[Range] = [(low, high)]
        for other in pool.leases.values():
            ranges = other.flight.get(of)
            if ranges is not None:
                left = [part for each in left for part in ranges.missing(*each)]
        for part in left:
            of.wait(*part)


def died(plane: Plane, of: LiveMap, ranges: list[Range], reason: str, worker: str, now: float, out: Effects) -> None:
    """A runner died while it had these calls, which wait again: one that saw that too often has failed."""
    for first, end in ranges:
        for index in range(first, end):
            if of.row.ended_at is not None or index in of.done:
                continue
            deaths = of.deaths[index] = of.deaths.get(index, 0) + 1
            if deaths <= _FREE_DEATHS:
                continue
            of.wait_no_more(index, index + 1)
            if _tried_again(plane, of, index, now):
                continue
            text = f"its runner died {deaths} times while it ran it{reason and ': '}{reason}"
            accept(plane, of, died_run(of.row.id, index, text, worker), now, out)
