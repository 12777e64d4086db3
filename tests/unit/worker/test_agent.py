"""What an agent writes down and sends, without a keeper and without a control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulayer.protocol.messages import Ack, Assign, Finished, Output, Verdict, Welcome, WorkerMessage
from gpulayer.protocol.types import CommandSpec, JobSpec, Outcome, State
from gpulayer_worker import link
from gpulayer_worker.agent import Agent, Options
from gpulayer_worker.layout import Layout
from gpulayer_worker.link import WINDOW_BYTES, Held, Link

ASSIGN = Assign(attempt="a", job="j", spec=JobSpec(command=CommandSpec(argv=("true",))))
DONE = Outcome(state=State.SUCCEEDED)


class Wire:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[WorkerMessage] = []

    def send(self, messages: list[WorkerMessage]) -> None:
        self.sent += messages


def with_agent(data: Path, check: Callable[[Agent, Wire], None]) -> None:
    """An agent that takes up what one before it wrote down."""

    async def go() -> None:
        agent = Agent(Options(data=data, name="w", slots=1, python="python"), lambda: None)
        wire = Wire()
        agent._channel = wire  # type: ignore[assignment]
        agent._link = Link(held=agent._log.load(), slots=1)
        check(agent, wire)
        agent._log.close()

    asyncio.run(go())


def test_a_command_that_ended_under_an_agent_before_us_is_forgotten_for_good(tmp_path: Path) -> None:
    Layout(tmp_path).furnish()

    def runs(agent: Agent, _: Wire) -> None:
        for name in ("a", "b"):
            agent._link.held[name] = Held(
                assign=Assign(attempt=name, job="j", spec=ASSIGN.spec), outcome=DONE, end=0, gone=True
            )
        agent._log.changed(["a", "b"])
        agent._log.write()

    def forgets(agent: Agent, _: Wire) -> None:
        assert sorted(agent._link.held) == ["a", "b"]
        del agent._link.held["a"]
        agent._drop("a")
        agent._log.changed(["b"])
        agent._log.write()

    def finds(agent: Agent, _: Wire) -> None:
        assert list(agent._link.held) == ["b"]

    for check in (runs, forgets, finds):
        with_agent(tmp_path, check)


def test_what_follows_of_a_stream_does_not_overtake_what_waits_to_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Layout(tmp_path).furnish()
    size = WINDOW_BYTES + 100

    class Run:
        running = True

        def read(self, offset: int, size: int) -> bytes:
            return bytes(size)

        def trim(self, offset: int) -> None:
            pass

    def check(agent: Agent, wire: Wire) -> None:
        monkeypatch.setattr(agent, "_say_hello", lambda effect: None)
        agent._link.held["a"] = Held(assign=ASSIGN, began=True)
        agent._runs["a"] = Run()  # type: ignore[assignment]
        verdict = Verdict(attempt="a", go_on=True)
        agent.emit(
            link.Connected(),
            link.Received(message=Welcome(epoch=1, heartbeat_s=2.0, lost_after_s=60.0, verdicts=(verdict,))),
        )
        agent.emit(link.SpoolGrew(attempt="a", end=100))
        agent._take_reports([link.Ended(attempt="a", end=size, outcome=DONE, began=True)])
        agent.emit(link.Received(message=Ack(attempt="a", offset=100)))
        streams = [each for each in wire.sent if isinstance(each, (Output, Finished))]
        at = 0
        for each in streams[:-1]:
            assert isinstance(each, Output)
            assert each.offset == at
            at += len(each.data)
        assert at == size
        assert isinstance(streams[-1], Finished)

    with_agent(tmp_path, check)


def test_a_fault_while_reports_are_taken_up_ends_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Layout(tmp_path).furnish()

    def fault(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    def check(agent: Agent, wire: Wire) -> None:
        agent._done = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(agent, "_take", fault)
        agent._take_reports([link.Ended(attempt="a", end=0, outcome=DONE, began=True)])
        assert agent._done.result() == 1  # the keeper starts a fresh one, which takes up everything
        assert wire.sent == []

    with_agent(tmp_path, check)
