"""Which runner gets which calls: as many as take a window's time, so that no runner waits for the next, and few behind
one that may be long. What waits at one while another has nothing is called back.
"""

from __future__ import annotations

from gpulayer.protocol.calls import CallRange, RecallCalls
from gpulayer.protocol.types import State
from gpulayer_server.core.calls.pool import WINDOW_CALLS, WINDOW_US, Lease, LiveMap, Pool, ranges_of
from gpulayer_server.core.events import Dispatch, Effects

_LEAST_US = 2_000.0  # what a runner is given at least near the end: about the time until it can be given more
_RECALL_US = 5_000.0  # it is not worth a message to call back what takes less
_PATIENCE_S = 0.25  # an answer to a recall takes less


def file(lease: Lease, now: float) -> None:
    """Note what a lease may be given, after any change of it."""
    pool, idle = lease.pool, not lease.count
    ready = lease.attempt.started_at is not None and lease.worker.conn is not None and not lease.ending
    if ready != lease.ready:
        lease.ready = ready
        pool.ready += 1 if ready else -1
    if not (ready and idle):
        pool.idle.pop(lease, None)
    elif lease not in pool.idle:
        pool.idle[lease] = None
        lease.idle_since = now
    if ready and not idle and _has_room(lease):
        pool.open[lease] = None
    else:
        pool.open.pop(lease, None)


def _has_room(lease: Lease) -> bool:
    """Whether half of its window is free: less is not worth a message."""
    return lease.count <= WINDOW_CALLS // 2 and lease.left_us() <= WINDOW_US / 2


def give_out(pool: Pool, now: float, out: Effects) -> None:
    """Give what waits to those who have room; call back what waits behind others where somebody has nothing."""
    if pool.unheard:
        return  # what runs there must not be run twice
    while pool.waiting and pool.idle:
        _give(pool, next(reversed(pool.idle)), now, out)  # the warmest: the others may be wanted elsewhere
    if pool.waiting and pool.open:
        for lease in list(pool.open):
            _give(pool, lease, now, out)
            if not pool.waiting:
                break
    if pool.idle and not pool.waiting and pool.held > 1 and not pool.stateful:
        _call_back(pool, now, out)


def _give(pool: Pool, lease: Lease, now: float, out: Effects) -> None:
    ranges: list[CallRange] = []
    left_us = lease.left_us()
    while pool.waiting:
        of = next(iter(pool.turns))
        us = of.cost_us(lease)
        count = _how_many(pool, lease, us, left_us)
        if count < 1:
            break
        if len(pool.turns) > 1 and not pool.stateful:  # its first call has to wait for no other map's last
            count = max(1, count // len(pool.turns))
            pool.turns.move_to_end(of)
        taken = of.take(count)
        for first, end in taken:
            lease.hold(of, first, end)
            left_us += (end - first) * (WINDOW_US if us is None else us)
        ranges += ranges_of(of, taken)
        _begun(of, now, out)
    if ranges:
        lease.heard_at = now if len(lease.flight) == len(ranges) else lease.heard_at
        out.send(lease.worker.conn, Dispatch(attempt=lease.attempt.id, ranges=tuple(ranges)))
        file(lease, now)


def _how_many(pool: Pool, lease: Lease, us: float | None, left_us: float) -> int:
    """How many more calls that take so long a lease gets."""
    if not lease.count:
        return 1 if us is None else max(1, min(int(WINDOW_US // us), _share(pool, us)))
    if us is None:
        return 1 if left_us <= WINDOW_US / 2 else 0
    most = min(int((WINDOW_US - left_us) // us), WINDOW_CALLS - lease.count)
    share = _share(pool, us)
    return min(most, share - lease.count) if lease.count <= share // 2 else 0


def _share(pool: Pool, us: float) -> int:
    """Half of what would be each one's part of what is left: towards the end all get less, and end together."""
    if pool.ready <= 1 or pool.stateful:
        return WINDOW_CALLS
    part = -(-(pool.waiting + pool.held) // (2 * pool.ready))
    return min(WINDOW_CALLS, max(part, int(_LEAST_US // us) + 1))


def _begun(of: LiveMap, now: float, out: Effects) -> None:
    row = of.row
    if row.state is State.QUEUED:
        row.state, row.started_at = State.RUNNING, now
        out.put(row)
        out.maps.add(row.id)


# ---------------------------------------------------------------- calling back


def _call_back(pool: Pool, now: float, out: Effects) -> None:
    """For each runner that has nothing, ask the one that is behind most for half of what waits there."""
    behind: list[tuple[float, Lease]] = []
    for lease in pool.leases.values():
        if lease.count > 1 and lease.ready:
            if lease.recalled_at is not None and now - lease.recalled_at < _PATIENCE_S:
                continue
            us = _waiting_us(lease, now)
            if us >= _RECALL_US:
                behind.append((us, lease))
    behind.sort(key=_by_time)
    for _, lease in behind[: len(pool.idle)]:
        lease.recalled_at = now
        out.send(lease.worker.conn, RecallCalls(attempt=lease.attempt.id, count=lease.count // 2))


def _by_time(entry: tuple[float, Lease]) -> tuple[float, str]:
    return (-entry[0], entry[1].attempt.id)


def _waiting_us(lease: Lease, now: float) -> float:
    """About how long the last of its calls waits: by what they take, or by how long the first one has."""
    left_us = lease.left_us()
    return max(left_us - left_us / lease.count, (now - lease.heard_at) * 1e6)
