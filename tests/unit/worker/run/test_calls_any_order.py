"""Whatever order frames, deaths and reconnects come in: no call is forgotten, and none that is accepted runs again."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.calls import CallRange, CallsAccepted, CallsDone, CallsReturned, RecallCalls
from gpulayer_worker import link
from gpulayer_worker.run import callstelling
from tests.support.callsworld import ATTEMPT, Host, spec
from tests.support.fakerunner import record

_TOTAL = 30
_PLAIN = ("begins", "ends", "flushes", "busy", "plane", "back", "load", "dies", "agent", "lost", "replaced")
_COUNTED = ("dispatch", "runs", "runs", "recall", "breaks")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(_PLAIN), st.just(0)),
        st.tuples(st.sampled_from(_COUNTED), st.integers(0, 9)),
    ),
    min_size=15,
    max_size=45,
)


@pytest.fixture(autouse=True, scope="module")
def at_once() -> object:
    """No result waits for others here."""
    patch = pytest.MonkeyPatch()
    patch.setattr(callstelling, "_TELL_S", 0.0)
    yield
    patch.undo()


class World:
    """A control plane of one map, whose attempt is on one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = Host(folder, spec(), {})
        self.connected = True
        self.read = 0  # of what the agent sent
        self.flying: set[int] = set()
        self.accepted: set[int] = set()
        self.deaths: dict[int, int] = {}
        self.begun: list[int] = []

    async def start(self) -> None:
        self.host.assign()
        await self.host.settle()
        self.load()
        self.dispatch(12)

    # ------------------------------------------------------------ the control plane

    def dispatch(self, count: int) -> None:
        free = [n for n in range(_TOTAL) if n not in self.flying | self.accepted and self.deaths.get(n, 0) < 2]
        if self.connected:
            for n in free[:count]:
                self.flying.add(n)
                self.host.call(n)

    def plane(self) -> None:
        """Everything that was sent arrives, and is answered."""
        while self.connected and self.read < len(self.host.sent):
            for answer in self.take():
                self.host.hear(answer)

    def take(self) -> list[CallsAccepted]:
        """The next message arrives; the answers."""
        message = self.host.sent[self.read]
        self.read += 1
        match message:
            case CallsDone(runs=runs):
                spans = tuple(CallRange(map=each.map, first=each.first, count=len(each.codes)) for each in runs)
                self.accepted |= {n for span in spans for n in range(span.first, span.first + span.count)}
                self.flying -= self.accepted
                return [CallsAccepted(attempt=ATTEMPT, ranges=spans)]
            case CallsReturned(ranges=ranges, began=began):
                for n in (n for each in ranges for n in range(each.first, each.first + each.count)):
                    assert n in self.flying
                    self.flying.discard(n)
                    self.deaths[n] = self.deaths.get(n, 0) + began
            case _:
                pass
        return []

    def breaks(self, arrives: int = 0) -> None:
        """Some of what was on its way arrives, and no answer to it."""
        if self.connected:
            for _ in range(min(arrives, len(self.host.sent) - self.read)):
                self.take()
            self.connected = False
            self.host.emit(link.Disconnected())

    def back(self) -> None:
        if not self.connected:
            self.connected = True
            declared = self.host.link.held[ATTEMPT].declared.calls
            named = {n for each in declared for n in range(each.first, each.first + each.count)}
            assert self.held_by_the_runner() <= named | self.accepted
            self.flying = named - self.accepted
            self.read = len(self.host.sent)
            self.host.connect()

    def held_by_the_runner(self) -> set[int]:
        runner = self.host.runner
        if not runner.alive:
            return set()
        running = {runner.running[1]} if runner.running else set[int]()
        return running | {n for _, n in runner.queue} | {n for _, n, _ in (*runner.kept, *runner.unsent)}

    # ------------------------------------------------------------ the machine

    def begins(self) -> None:
        runner = self.host.runner
        if runner.alive and runner.begins():
            assert runner.running is not None
            assert runner.running[1] not in self.accepted
            self.begun.append(runner.running[1])

    def runs(self, count: int) -> None:
        for _ in range(count):
            self.begins()
            self.host.runner.ends_call()
        if self.host.runner.alive:
            self.host.runner.flushes()

    async def agent(self) -> None:
        """The agent dies, and the next one takes over, before it says hello."""
        self.breaks()
        old = self.host
        assert old.run is not None
        old.run.close()
        assign = old.link.held[ATTEMPT].assign
        began = old.link.held[ATTEMPT].began
        self.host = Host(self.folder, old.spec, old.machine)
        self.host.link = link.Link(held=[link.Held(assign=assign, began=began)])
        for runner in old.machine.values():
            runner.closed = False
        self.host.begin(assign, resumed=True)
        self.read = 0
        await self.host.settle()

    def load(self) -> None:
        if self.host.runner.alive and not self.host.runner.loaded:
            self.host.runner.loads()

    def of_the_runner(self, name: str) -> None:
        """What happens to one that is loaded."""
        runner = self.host.runner
        if not runner.alive or not runner.loaded:
            return
        match name:
            case "ends":
                runner.ends_call()
            case "flushes":
                runner.flushes()
            case "busy":
                runner.is_busy()
            case "dies":
                runner.dies(record(None, signal=9))
            case "lost":
                runner.loses_connection()
            case "replaced" if runner.running is None and not runner.replaced:
                runner.replaces()
                runner.dies(record(0))
            case _:
                pass

    async def step(self, name: str, number: int) -> None:
        match name:
            case "dispatch" | "runs" | "breaks":
                getattr(self, name)(number)
            case "plane" | "back" | "begins" | "load":
                getattr(self, name)()
            case "recall" if self.connected:
                self.host.hear(RecallCalls(attempt=ATTEMPT, count=number))
            case "agent":
                await self.agent()
            case _:
                self.of_the_runner(name)
        await self.host.settle()

    @property
    def failed(self) -> set[int]:
        """Calls that have ended two runners."""
        return {n for n, count in self.deaths.items() if count >= 2}

    async def quiet(self) -> None:
        """Everything goes well from now on, until nothing is left to do."""
        self.back()
        for _ in range(6 * _TOTAL):
            self.load()
            self.plane()
            self.dispatch(_TOTAL)
            self.runs(_TOTAL)
            await self.host.settle()
            self.plane()
            if self.accepted | self.failed == set(range(_TOTAL)):
                break


@settings(max_examples=60)
@given(_STEPS)
def test_each_call_comes_to_its_end(steps: list[tuple[str, int]]) -> None:
    async def inside() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder))
            await world.start()
            for name, number in steps:
                await world.step(name, number)
            await world.quiet()
            assert world.host.faults == []
            if world.host.end is None:
                assert world.accepted | world.failed == set(range(_TOTAL))
                assert not world.host.link.held[ATTEMPT].calls
                assert world.host.runner.kept == []
            told = len(world.host.sent)
            world.breaks()
            world.back()
            assert not [each for each in world.host.sent[told:] if isinstance(each, (CallsDone, CallsReturned))]
            assert world.host.run is not None
            world.host.run.close()

    asyncio.run(inside())
