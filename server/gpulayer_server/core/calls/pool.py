"""What the plane keeps of calls beside the rows: pools of runners, their leases, and the maps that live in them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from gpulayer.protocol.calls import CallRange, CallsCount
from gpulayer_server.core.calls.ranges import Range, Ranges
from gpulayer_server.core.calls.state import MapState
from gpulayer_server.core.state import Attempt, Job, Task, Worker

PoolKey = tuple[str, str]  # owner, hash of the packed spec
MapKey = tuple[str, str]  # owner, idempotency key

#: A runner gets as many calls as take so long; one that takes longer goes alone.
WINDOW_US = 50_000.0
#: The bound on their number.
WINDOW_CALLS = 512
#: The bound on the runners of one job.
MOST_RUNNERS = 1000
#: The note of a lease whose end a person wanted: after a restart it is known by it.
LET_GO = "let go of"
_WEIGHT = 0.5  # of what was measured last, in the mean
_DEAD_INSTANCES = 1000  # of so many objects that are gone it is remembered why


@dataclass(kw_only=True, eq=False, slots=True)
class LiveMap:
    """A map that has not ended. Each of its calls that is taken waits, is held by a lease, is put off, or is done."""

    row: MapState
    pool: Pool
    waiting: Ranges = field(default_factory=Ranges)
    done: Ranges = field(default_factory=Ranges)
    held: int = 0  # calls that leases have
    put_off: dict[int, int] = field(default_factory=dict[int, int])  # calls that are tried again later: `Calls.put_off`
    tries: dict[int, int] = field(default_factory=dict[int, int])  # of calls that failed: how often
    deaths: dict[int, int] = field(default_factory=dict[int, int])  # of calls whose runner died: how often
    mean_us: float | None = None  # that a call takes; None until one came back
    means: dict[Lease, float] = field(default_factory=dict["Lease", float])  # the same, by runner
    alone_since: float | None = None  # more calls may come, and who would bring them is not connected

    @property
    def id(self) -> str:
        """Its name."""
        return self.row.id

    @property
    def single(self) -> bool:
        """Whether it is one call: how long it takes is known from others."""
        return self.row.spec.single

    def wait(self, first: int, end: int) -> None:
        """These calls are to be given to a runner."""
        before = self.waiting.count
        self.waiting.add(first, end)
        self.pool.waiting_more(self, self.waiting.count - before)

    def take(self, count: int) -> list[Range]:
        """The first calls that wait, to be given to a runner."""
        taken = self.waiting.take(count)
        self.pool.waiting_more(self, -sum([end - first for first, end in taken]))
        return taken

    def wait_no_more(self, first: int, end: int) -> None:
        """These calls need no runner."""
        self.pool.waiting_more(self, -self.waiting.remove(first, end))

    def drop_waiting(self) -> None:
        """Nothing waits."""
        count = self.waiting.count
        self.waiting.clear()
        self.pool.waiting_more(self, -count)

    def cost_us(self, lease: Lease) -> float | None:
        """What a call takes on a runner; None where that is not known."""
        return self.pool.single_us if self.single else self.means.get(lease, self.mean_us)

    def took(self, lease: Lease, count: int, spent_us: int) -> None:
        """So many calls took so long together."""
        us = max(spent_us / count, 1.0)
        if self.single:
            self.pool.single_us = _mean(self.pool.single_us, us)
        else:
            self.mean_us = _mean(self.mean_us, us)
            self.means[lease] = _mean(self.means.get(lease), us)
        self.pool.mean_us = _mean(self.pool.mean_us, us)


def _mean(before: float | None, us: float) -> float:
    return us if before is None else before + _WEIGHT * (us - before)


@dataclass(kw_only=True, eq=False, slots=True)
class Lease:
    """A runner: an attempt of a job of calls that is not over."""

    pool: Pool
    attempt: Attempt
    task: Task
    worker: Worker
    flight: dict[LiveMap, Ranges] = field(default_factory=dict[LiveMap, Ranges])  # calls that it has, by map
    count: int = 0  # of them
    singles: int = 0  # of them, those of maps of one call
    ready: bool = False  # its runner is there, its worker connected
    away: bool = False  # its worker is out of reach
    ending: bool = False  # told to end
    results: int = 0  # calls that it did
    heard_at: float = 0.0  # when it last did anything
    idle_since: float | None = None
    recalled_at: float | None = None  # when it was asked to give calls back, until it does

    def hold(self, of: LiveMap, first: int, end: int) -> None:
        """It has these calls."""
        ranges = self.flight.get(of)
        if ranges is None:
            ranges = self.flight[of] = Ranges()
        before = ranges.count
        ranges.add(first, end)
        self._more(of, ranges.count - before)

    def let_go(self, of: LiveMap, first: int, end: int) -> int:
        """It no longer has these; how many of them it had."""
        ranges = self.flight.get(of)
        if ranges is None:
            return 0
        removed = ranges.remove(first, end)
        if not ranges.count:
            del self.flight[of]
        self._more(of, -removed)
        return removed

    def let_go_of(self, of: LiveMap) -> Ranges | None:
        """It has nothing of a map any more; what it had."""
        ranges = self.flight.pop(of, None)
        if ranges is not None:
            self._more(of, -ranges.count)
        return ranges

    def _more(self, of: LiveMap, count: int) -> None:
        self.count += count
        of.held += count
        self.pool.held += count
        if of.single:
            self.singles += count

    def left_us(self) -> float:
        """About how long it will be busy; of a call of which nothing is known, a whole window."""
        if not self.count:
            return 0.0
        single_us = self.pool.single_us
        left = self.singles * (WINDOW_US if single_us is None else single_us)
        if self.count > self.singles:
            for of, ranges in self.flight.items():
                if not of.single:
                    us = of.cost_us(self)
                    left += ranges.count * (WINDOW_US if us is None else us)
        return left


@dataclass(kw_only=True, eq=False)
class Pool:
    """A job of calls that lives: its maps, and the runners that take them."""

    job: Job
    key: PoolKey
    last_k: int = 0
    maps: dict[int, LiveMap] = field(default_factory=dict[int, LiveMap])  # those that live, by number
    turns: OrderedDict[LiveMap, None] = field(default_factory=OrderedDict[LiveMap, None])  # of which calls wait
    waiting: int = 0  # calls that wait
    waiting_singles: int = 0  # of them, those of maps of one call
    held: int = 0  # calls that leases have
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])  # by attempt
    usable: dict[Lease, None] = field(default_factory=dict[Lease, None])  # not ending, not out of reach
    idle: dict[Lease, None] = field(default_factory=dict[Lease, None])  # ready, and without a call; the latest last
    open: dict[Lease, None] = field(default_factory=dict[Lease, None])  # ready, with calls, and with room for more
    ready: int = 0  # leases that may be given calls
    queued: dict[str, Task] = field(default_factory=dict[str, Task])  # lease tasks that wait for a place
    later: dict[str, tuple[float, Task]] = field(default_factory=dict[str, tuple[float, Task]])  # and those not to yet
    unheard: set[str] = field(default_factory=set[str])  # attempts of before a restart: what they have is not known
    doubled: bool = False  # a call may be with two leases: one was given up, and came back
    closing: bool = False  # it takes no new maps, and ends with the last one
    single_us: float | None = None  # that one call takes, of maps of one call
    mean_us: float | None = None  # of all
    rejected: int = -1  # the fleet, as it was when a further runner was rejected
    failures: int = 0  # runners that could not be had, one after the other
    yielded_at: float = 0.0  # when a busy runner was last given up for others
    opened: int = 0  # maps, ever
    calls: int = 0
    done: int = 0
    failed: int = 0
    dropped: int = 0  # whose map ended before they had a result
    changed: bool = False  # its counts, since somebody was told

    @property
    def stateful(self) -> bool:
        """Whether its one runner keeps an object."""
        spec = self.job.spec.calls
        return spec is not None and spec.stateful

    @property
    def most(self) -> int:
        """The bound on its runners."""
        spec = self.job.spec.calls
        most = spec.max_runners if spec is not None else None
        return MOST_RUNNERS if most is None else min(most, MOST_RUNNERS)

    def waiting_more(self, of: LiveMap, count: int) -> None:
        """So many more calls of a map wait."""
        if not count:
            return
        self.waiting += count
        if of.single:
            self.waiting_singles += count
        if not of.waiting.count:
            self.turns.pop(of, None)
        elif of not in self.turns:
            self.turns[of] = None

    def count(self) -> CallsCount:
        """Its calls, as views have them."""
        idle = [lease.idle_since for lease in self.idle if lease.idle_since is not None]
        return CallsCount(
            maps=self.opened,
            calls=self.calls,
            done=self.done,
            failed=self.failed,
            dropped=self.dropped,
            running=self.held,
            runners=self.ready,
            idle_since=max(idle) if idle and not self.maps else None,
        )


class Calls:
    """Everything of calls that lives. Only the plane changes it."""

    def __init__(self) -> None:
        self.pools: dict[PoolKey, Pool] = {}  # those that take new maps
        self.by_job: dict[str, Pool] = {}  # all
        self.maps: dict[str, LiveMap] = {}  # by id
        self.incomplete: dict[str, LiveMap] = {}  # of them, those of which calls are yet to come
        self.leases: dict[str, Lease] = {}  # by attempt
        self.keys: dict[MapKey, str] = {}  # maps by idempotency key: those that live, and those of `ended`
        self.ended: dict[str, tuple[int, LiveMap]] = {}  # until the store surely answers for them
        self.touched: dict[Pool, None] = {}  # of this event: something is to be given out, or not needed any more
        self.put_off: list[tuple[float, int, LiveMap, int]] = []  # a heap: when, a number, the call that is tried then
        self.serial = 0
        self.replies: list[tuple[int, LiveMap]] = []  # of this event: who is answered, once all of it is known
        self.gone: dict[PoolKey, str] = {}  # objects that are gone, and why
        self.asked: dict[str, list[str]] = {}  # tasks for which runners were ended, and which
        self.waits: dict[str, float] = {}  # first tasks of lines, and since when they are seen to wait

    def touch(self, pool: Pool) -> None:
        """Look at a pool at the end of this event."""
        self.touched[pool] = None

    def gone_because(self, key: PoolKey, why: str) -> None:
        """An object is gone for good."""
        self.gone[key] = why
        while len(self.gone) > _DEAD_INSTANCES:
            del self.gone[next(iter(self.gone))]


def ranges_of(of: LiveMap, ranges: list[Range]) -> list[CallRange]:
    """Ranges of a map, as messages have them."""
    return [CallRange(map=of.row.id, first=first, count=end - first) for first, end in ranges]
