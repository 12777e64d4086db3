"""A little discrete-event model of runners around a real plane: messages take a while, calls take their time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from gpulayer.protocol.calls import (
    CallRange,
    CallRun,
    CallsDone,
    CallsReturned,
    EndRunner,
    MapSpec,
    MapView,
    RecallCalls,
)
from gpulayer.protocol.messages import Assign, Finished, Started
from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core.events import ArgsCame, Dispatch, Effects, Event, MapOpened, Tick, WorkerSaid
from tests.unit.server.core.calls.conftest import CallsWorld, calls_spec

_HANDED_US = 4_000.0  # what an agent hands to its runner at a time: the rest can be recalled
_FLUSH = 32
_FLUSH_S = 0.01


class Runner:
    """One runner: it runs its calls one after the other, and tells of them in groups."""

    def __init__(self, model: Model, conn: int, attempt: str):
        self.model = model
        self.conn = conn
        self.attempt = attempt
        self.queue: deque[tuple[str, int]] = deque()
        self.done: list[tuple[str, int, float]] = []
        self.busy = False
        self.busy_s = 0.0
        self.mean_us = _HANDED_US
        self.told_at = 0.0

    def take(self, ranges: Sequence[CallRange]) -> None:
        for each in ranges:
            self.queue.extend((each.map, each.first + n) for n in range(each.count))
        self.go_on()

    def give_back(self, wanted: int) -> None:
        handed = max(1, int(_HANDED_US / self.mean_us))
        ranges: list[CallRange] = []
        while wanted > 0 and len(self.queue) > handed - self.busy:
            name, index = self.queue.pop()
            ranges.append(CallRange(map=name, first=index))
            wanted -= 1
        self.model.say(self.conn, CallsReturned(attempt=self.attempt, ranges=tuple(ranges)))

    def go_on(self) -> None:
        if self.busy or not self.queue:
            return
        self.busy = True
        name, index = self.queue.popleft()
        took_s = self.model.takes(index)
        self.busy_s += took_s
        self.model.after(took_s, lambda: self.ended(name, index, took_s))

    def ended(self, name: str, index: int, took_s: float) -> None:
        self.busy = False
        self.mean_us = max(1.0, took_s * 1e6)
        self.done.append((name, index, took_s))
        self.model.ran.append(index)
        if len(self.done) >= _FLUSH or not self.queue or self.model.now - self.told_at >= _FLUSH_S:
            self.told_at = self.model.now
            done, self.done = self.done, []
            self.model.say(self.conn, CallsDone(attempt=self.attempt, runs=tuple(_runs(done))))
        self.go_on()


def _runs(done: list[tuple[str, int, float]]) -> Iterator[CallRun]:
    at = 0
    while at < len(done):
        end = at + 1
        while end < len(done) and done[end][0] == done[at][0] and done[end][1] == done[end - 1][1] + 1:
            end += 1
        size, spent = end - at, sum(took for _, _, took in done[at:end])
        yield CallRun(
            map=done[at][0],
            first=done[at][1],
            codes=bytes(size),
            data=(b"r",) * size,
            spent_us=round(spent * 1e6),
        )
        at = end


class Model:
    """The plane, workers with one slot each, and time."""

    def __init__(self, workers: int, *, hop_s: float = 0.0005, start_s: float = 0.0):
        self.world = CallsWorld()
        self.conns = [self.world.join(f"w{n}", slots=1) for n in range(workers)]
        self.now = 0.0
        self.hop_s = hop_s
        self.start_s = start_s
        self.takes: Callable[[int], float] = lambda _: 0.0
        self.ran: list[int] = []
        self.messages = 0  # to runners, with calls
        self.runners: dict[str, Runner] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._n = count()
        self.after(0.5, self._tick)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._n), call))

    def _tick(self) -> None:
        self.after(0.5, self._tick)
        for worker in self.world.plane.workers.values():
            worker.last_seen_at = 1000.0 + self.now
        self.do(Tick())

    def do(self, event: Event) -> Effects:
        out = self.world.plane.handle(event, 1000.0 + self.now)
        for conn, message in out.sends:
            self.after(self.hop_s, lambda conn=conn, message=message: self._at_worker(conn, message))
        return out

    def say(self, conn: int, *messages: Any) -> None:
        ended = {each.attempt: 0 for each in messages if isinstance(each, Finished)}
        self.after(self.hop_s, lambda: self.do(WorkerSaid(conn=conn, messages=messages, acked=ended)) and None)

    def _at_worker(self, conn: int, message: Any) -> None:
        match message:
            case Assign(attempt=name):
                self.runners[name] = Runner(self, conn, name)
                self.after(self.start_s, lambda: self.say(conn, Started(attempt=name)))
            case Dispatch(attempt=name, ranges=ranges):
                self.messages += 1
                self.runners[name].take(ranges)
            case RecallCalls(attempt=name, count=wanted):
                self.runners[name].give_back(wanted)
            case EndRunner(attempt=name):
                done = Finished(attempt=name, end_offset=0, outcome=Outcome(state=State.SUCCEEDED), released=True)
                self.say(conn, done)
            case _:
                pass

    def map(self, count: int, takes: Callable[[int], float], *, at_once: bool = True, key: str = "") -> float:
        """Run a map to its end; the seconds that it took."""
        self.takes = takes
        self.ran.clear()
        self.messages = 0
        begun, sent = self.now, count if at_once else min(count, 512)
        out = self.do(
            MapOpened(
                request=1,
                owner="ann",
                key=key or f"k{self.now}",
                payload_hash="h",
                spec=calls_spec(),
                map=MapSpec(),
                args=(b"a",) * sent,
                last=sent == count,
            )
        )
        [(_, view)] = out.replies
        assert isinstance(view, MapView)
        name = view.id
        while sent < count:
            size = min(512, count - sent)
            self.do(ArgsCame(request=2, map=name, first=sent, args=(b"a",) * size, last=sent + size == count))
            sent += size
        while name in self.world.plane.maps:
            self.now, _, call = heapq.heappop(self._due)
            call()
        return self.now - begun
