"""A link, one attempt of calls, and runners and a control plane that are played by hand, all in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from gpulayer.protocol.calls import (
    CallBatch,
    CallRange,
    Calls,
    CallsAccepted,
    CallsDone,
    CallsReturned,
    CallsSpec,
    FunctionSpec,
)
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.messages import Assign, Finished, ServerMessage, Started, Verdict, Welcome, WorkerMessage
from gpulayer.protocol.spool import SpoolWriter
from gpulayer.protocol.types import Device, JobSpec
from gpulayer.source.blobs import Span
from gpulayer_worker import link
from gpulayer_worker.layout import Layout
from gpulayer_worker.run.calls import CallsRun
from gpulayer_worker.run.kinds import abandoned
from gpulayer_worker.runners import Start
from tests.support.fakerunner import FakeRunner, record

ATTEMPT = "j-1"


class Host:
    """The agent: a link, the attempt's run, and what leaves for the control plane."""

    def __init__(self, folder: Path, spec: CallsSpec, machine: dict[str, FakeRunner]) -> None:
        self.layout = Layout(folder)
        self.layout.data.mkdir(exist_ok=True)
        SpoolWriter(self.layout.spool(ATTEMPT)).close()
        self.spec = spec
        self.link = link.Link()
        self.sent: list[WorkerMessage] = []
        self.machine = machine
        self.devices: tuple[Device, ...] = ()
        self.ram_bytes = 1 << 30
        self.reserve_bytes = 0
        self.machine_use: Any = None
        self.watch: Any = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None)
        self.runners: Any = SimpleNamespace(start=self._start, find=self._find)
        self.workspaces: Any = SimpleNamespace(
            fresh=self._fresh, blob=self._blob, at_hand=self._at_hand, fetch=self._together
        )
        self.blobs: dict[str, Span] = {}
        self.fetch: dict[str, Exception] = {}
        self.fails: list[Exception] = []  # starts of runners
        self.faults: list[Exception] = []
        self.tasks: set[asyncio.Task[object]] = set()
        self.alive = True
        self.run: CallsRun | None = None

    def endpoint(self) -> Endpoint:
        """Nobody knows where the control plane is."""
        raise OSError("no endpoint.json names a control plane")

    def blobs_beside(self) -> Path | None:
        """The control plane's blobs are on another machine."""
        return None

    def _fresh(self, digest: str, target: Path, tell: Any) -> None:
        target.mkdir(parents=True, exist_ok=True)

    def _blob(self, digest: str, tell: Any, what: str = "") -> Span:
        if digest in self.fetch:
            raise self.fetch.pop(digest)
        self.blobs[digest] = Span(f"/{digest}", 0, 1)
        return self.blobs[digest]

    def _together(self, digests: Any, client: Any, came: Any) -> None:
        raise OSError("they come one by one only")

    def _at_hand(self, digest: str) -> Span | None:
        return self.blobs.get(digest)

    def _start(self, start: Start, user: Any) -> FakeRunner:
        if self.fails:
            raise self.fails.pop(0)
        name = f"r{len(self.machine)}"
        runner = self.machine[name] = FakeRunner(name, user, self, dict(start.config))
        return runner

    def _find(self, note: dict[str, str], user: Any) -> FakeRunner:
        runner = self.machine[note["id"]].find(user, self)
        if not runner.alive:
            self.later(lambda: user.on_dead(record(None, unknown=True), ""))
        return runner

    def later(self, call: Any) -> None:
        """In the next turn of the loop."""
        asyncio.get_running_loop().call_soon(call)

    @property
    def runner(self) -> FakeRunner:
        """The newest."""
        return next(reversed(self.machine.values()))

    # ------------------------------------------------------------ as the agent

    def emit(self, *events: link.Event) -> None:
        for event in events:
            for effect in self.link.handle(event, 0.0):
                self._carry_out(effect)

    def report(self, event: link.Event) -> None:
        self.emit(event)

    def go_on(self, attempt: str, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._reaped)

    def _reaped(self, task: asyncio.Task[object]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.failed(ATTEMPT, error)

    def failed(self, attempt: str, error: Exception) -> None:
        self.faults.append(error)
        if abandoned(self.run):
            self.go_on(ATTEMPT, self.runner.kill())

    def _carry_out(self, effect: link.Effect) -> None:
        match effect:
            case link.Send(message=message):
                self.sent.append(message)
            case link.Start(assign=assign):
                self.begin(assign)
            case link.RunCalls() | link.LetGo() | link.GiveBackCalls() | link.DropMap() | link.WindDown():
                if self.run is not None:
                    self.run.follow(effect)
            case link.Interrupt(grace_s=grace_s):
                if self.run is not None:
                    self.run.interrupt(grace_s)
            case link.Kill(why=why):
                if self.run is not None:
                    self.run.kill(why)
            case _:
                pass

    def begin(self, assign: Assign, *, resumed: bool = False) -> None:
        """Start the attempt's run."""
        services: Any = self
        self.run = CallsRun(services, assign, resumed=resumed)
        self.go_on(ATTEMPT, self.run.run())

    def hear(self, *messages: ServerMessage) -> None:
        """Messages of the control plane."""
        self.emit(*[link.Received(message=message) for message in messages])

    # ------------------------------------------------------------ as a test

    def assign(self) -> None:
        """The attempt comes."""
        self.connect()
        self.hear(Assign(attempt=ATTEMPT, job="j", spec=JobSpec(calls=self.spec)))

    def connect(self, *, go_on: bool = True) -> None:
        """A new connection, up to the welcome."""
        self.emit(link.Connected())
        verdicts = tuple(Verdict(attempt=name, go_on=go_on) for name in self.link.held)
        self.hear(Welcome(epoch=1, heartbeat_s=2.0, lost_after_s=60.0, verdicts=verdicts))

    def call(self, first: int, count: int = 1, name: str = "m", **more: Any) -> None:
        """Calls of a map."""
        args = tuple(b"%d" % n for n in range(first, first + count))
        batch = CallBatch(map=name, first=first, args=args, **more)
        self.hear(Calls(attempt=ATTEMPT, batches=(batch,)))

    def accept(self, first: int, count: int = 1, name: str = "m") -> None:
        """Results are committed."""
        ranges = (CallRange(map=name, first=first, count=count),)
        self.hear(CallsAccepted(attempt=ATTEMPT, ranges=ranges))

    async def settle(self) -> None:
        """Until nothing goes on but timers."""
        for _ in range(6):
            await asyncio.sleep(0)
        while pending := [task for task in self.tasks if not task.done()]:
            await asyncio.wait(pending)
        for _ in range(3):
            await asyncio.sleep(0)

    @property
    def done(self) -> dict[tuple[str, int], int]:
        """The results that were told, by call: their codes."""
        return {
            (each.map, each.first + n): code
            for message in self.sent
            if isinstance(message, CallsDone)
            for each in message.runs
            for n, code in enumerate(each.codes)
        }

    def failure(self, index: int, name: str = "m") -> dict[str, Any]:
        """What is said of a call that failed."""
        for message in self.sent:
            for each in message.runs if isinstance(message, CallsDone) else ():
                if each.map == name and each.first <= index < each.first + len(each.codes):
                    return msgspec.json.decode(each.data[index - each.first])
        raise AssertionError(f"{name}:{index} has no result")

    def back(self, *, began: bool = False) -> set[int]:
        """The calls that were given back."""
        told = [each for each in self.sent if isinstance(each, CallsReturned) and each.began is began]
        spans = [span for each in told for span in each.ranges]
        return {n for span in spans for n in range(span.first, span.first + span.count)}

    @property
    def begun(self) -> bool:
        """Whether it was told that the attempt runs."""
        return any(isinstance(each, Started) for each in self.sent)

    @property
    def end(self) -> Finished | None:
        """The attempt's end."""
        return next((each for each in self.sent if isinstance(each, Finished)), None)


def spec(**more: Any) -> CallsSpec:
    """Calls of some function."""
    return CallsSpec(function=FunctionSpec(name="f", qualname="f"), **more)


async def until(condition: Callable[[], object]) -> None:
    """Let threads and timers do their work."""
    while not condition():  # noqa: ASYNC110 - nothing tells of what a test plays
        await asyncio.sleep(0.001)


def play(
    folder: Path,
    test: Callable[[Host], Coroutine[Any, Any, None]],
    calls: CallsSpec | None = None,
    *,
    loaded: bool = True,
) -> Host:
    """An attempt with a runner that is loaded, and what a test does with it."""

    async def inside() -> Host:
        host = Host(folder, calls or spec(), {})
        host.assign()
        await host.settle()
        if loaded:
            host.runner.loads()
        await test(host)
        await host.settle()
        if host.run is not None:
            host.run.close()
        return host

    host = asyncio.run(inside())
    if host.faults:
        raise host.faults[0]
    return host
