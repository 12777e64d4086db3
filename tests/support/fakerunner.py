"""A runner that is played by hand: as an attempt sees it, and its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gpulayer.protocol.calls import OK, CallRange
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.runner import wire
from gpulayer_worker.runners import RunnerError


class Loop(Protocol):
    """Whoever lets things happen later."""

    def later(self, call: Callable[[], object]) -> None: ...


def record(code: int | None = 0, **more: Any) -> ExitRecord:
    """How a process ended."""
    return ExitRecord(pid=1, start_time=1, boot_id="b", code=code, started_at=1.0, ended_at=2.0, **more)


class FakeRunner:
    """A runner as the attempt sees it, and its process. It runs calls when a test says so."""

    def __init__(self, id: str, user: Any, host: Loop, config: dict[str, Any]) -> None:
        self.id = id
        self.user = user
        self.host = host
        self.config = config
        self.connected = True
        self.loaded = False
        self.alive = True
        self.mute = False  # it does not answer
        self.answers = asyncio.Event()  # cleared, it takes its time with answers
        self.answers.set()
        self.queue: list[tuple[str, int]] = []
        self.methods: list[str] = []
        self.running: tuple[str, int] | None = None
        self.ran: list[tuple[str, int]] = []
        self.unsent: list[tuple[str, int, int]] = []  # results that are not flushed
        self.kept: list[tuple[str, int, int]] = []  # results that are not accepted
        self.ending = self.replaced = False
        self.interrupts: list[tuple[str, int]] = []
        self.killed = 0
        self.closed = self.forgotten = False
        self._waits: list[wire.Frame] | None = None

    # ------------------------------------------------------------ the agent's side

    @property
    def note(self) -> dict[str, str]:
        return {"id": self.id}

    async def connect(self) -> None:
        return

    def find(self, user: Any, host: Loop) -> FakeRunner:
        """As another agent finds it."""
        self.user, self.host = user, host
        return self

    async def join(self) -> dict[str, Any] | None:
        self._waits = []
        if not self.alive:
            return None
        self.connected = True
        self._say_kept()
        return await self.ask({"op": "hold"})

    def heard(self) -> None:
        waits, self._waits = self._waits, None
        if waits:
            self.user.on_frames(waits)

    async def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if self.mute:
            raise RunnerError("it does not answer for 10 s")
        await self.answers.wait()
        if not self.alive:
            return None
        match request["op"]:
            case "hold":
                return {
                    "running": [*self.running, 5] if self.running else None,
                    "waiting": [(name, index, 1) for name, index in self.queue],
                    "unaccepted": [(name, index, 1) for name, index, _ in (*self.kept, *self.unsent)],
                }
            case "recall":
                count = min(request["count"], len(self.queue))
                back = self.queue[len(self.queue) - count :]
                del self.queue[len(self.queue) - count :]
                return {"recalled": [(name, index, 1) for name, index in reversed(back)]}
            case "drop":
                gone = [each for each in self.queue if each[0] == request["map"]]
                self.queue = [each for each in self.queue if each[0] != request["map"]]
                hit = self.running if self.running is not None and self.running[0] == request["map"] else None
                return {"dropped": [(name, index, 1) for name, index in gone], "interrupting": hit and hit[1]}
            case _:
                self.interrupts.append((request["map"], request["index"]))
                return {"interrupting": request["index"]}

    def send(self, frames: Iterable[wire.Frame]) -> bool:
        if not self.connected:
            return False
        for frame in frames:
            match frame:
                case wire.Calls(map=name, first=first, args=args, method=method):
                    self.queue += [(name, first + n) for n in range(len(args))]
                    self.methods.append(method)
                case wire.End():
                    self.ending = True
                case _:
                    raise AssertionError(f"{frame}")
        return True

    def accept(self, ranges: Iterable[CallRange]) -> None:
        for each in ranges:
            span = range(each.first, each.first + each.count)
            self.kept = [kept for kept in self.kept if kept[0] != each.map or kept[1] not in span]

    async def kill(self) -> None:
        self.killed += 1
        if self.alive:
            self.host.later(lambda: self.dies(record(None, signal=9)))

    def close(self) -> None:
        self.closed = True

    def forget(self) -> None:
        self.forgotten = True

    def tail(self) -> str:
        return ""

    # ------------------------------------------------------------ the process's side

    def says(self, *frames: wire.Frame) -> None:
        """It says something on its connection."""
        if not self.connected or self.closed:
            return
        if self._waits is not None:
            self._waits += frames
        else:
            self.user.on_frames(list(frames))

    def loads(self) -> None:
        """Its function is loaded."""
        self.loaded = True
        self.says(wire.Ready({}))

    def begins(self) -> bool:
        """The next call runs from now on."""
        if self.running is not None or not self.queue or not self.loaded or self.replaced:
            return False
        self.running = self.queue.pop(0)
        return True

    def ends_call(self, code: int = OK) -> None:
        """The call that runs has a result."""
        if self.running is not None:
            self.ran.append(self.running)
            self.unsent.append((*self.running, code))
            self.running = None

    def flushes(self) -> None:
        """Results go out."""
        some, self.unsent = self.unsent, []
        self.kept += some
        self.says(*[_done(each) for each in some])

    def runs(self, count: int = 1, code: int = OK) -> None:
        """So many calls, from their begin to their results."""
        for _ in range(count):
            if not self.begins():
                break
            self.ends_call(code)
        self.flushes()
        if self.ending and not self.queue:
            self.dies(record(0))

    def is_busy(self) -> None:
        """The call that runs does for 10 ms."""
        if self.running is not None:
            self.says(wire.Busy(*self.running, 10_000))

    def replaces(self) -> None:
        """It runs nothing any more."""
        self.flushes()
        self.replaced = True
        self.says(wire.Replace({"reason": "memory", "rss_bytes": 10**9}))

    def loses_connection(self) -> None:
        """What was on its way to it may be lost with it."""
        self.connected = False
        self.user.on_lost()

    def dies(self, how: ExitRecord) -> None:
        """Nothing is left of it."""
        if self.alive:
            self.alive = self.connected = False
            if not self.closed:
                self.user.on_dead(how, "")

    def _say_kept(self) -> None:
        if self.loaded:
            self.says(wire.Ready({}), *[_done(each) for each in self.kept])
        if self.replaced:
            self.says(wire.Replace({"reason": "memory", "rss_bytes": 10**9}))


def _done(each: tuple[str, int, int]) -> wire.Done:
    name, index, code = each
    return wire.Done(name, index, bytes((code,)), [b"%d" % index], (), 5)
