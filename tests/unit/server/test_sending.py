"""Which units' messages leave, in which order, and that each leaves once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gpulayer.protocol.calls import CallRange, Calls, DropCalls, MapSpec
from gpulayer.protocol.messages import CommMessage, Forget, ServerMessage
from gpulayer_server.callsdata import CallsData
from gpulayer_server.core.events import ArgsRow, Dispatch, Effects
from gpulayer_server.core.state import MapState
from gpulayer_server.sending import Sending, Unit
from gpulayer_server.store.streams import Streams


class Link:
    """A worker's connection."""

    def __init__(self) -> None:
        self.said: list[ServerMessage] = []
        self.hurried = 0

    def send(self, messages: list[ServerMessage]) -> None:
        self.said += messages

    def send_now(self) -> None:
        self.hurried += 1

    def offer(self, message: CommMessage) -> bool:
        return False

    def drop(self, reason: str) -> None: ...


def unit(name: str, *, commits: bool = True) -> Unit:
    effects = Effects()
    effects.send(1, Forget(attempt=name))
    return Unit(effects, commits)


def with_sending(folder: Path, body: Callable[[Sending, Link, CallsData], None]) -> None:
    async def run() -> None:
        link, calls = Link(), CallsData(lambda name, first, count: [])
        streams = Streams(folder)
        body(Sending({1: link}, calls, streams), link, calls)
        streams.close()

    asyncio.run(run())


def test_what_is_committed_leaves_with_what_stands_between_and_nothing_twice(tmp_path: Path) -> None:
    def body(sending: Sending, link: Link, _: CallsData) -> None:
        units = [unit("a"), unit("b", commits=False), unit("c"), unit("d", commits=False), unit("e")]
        sending.leave(units, 1)
        assert link.said == [Forget(attempt="a"), Forget(attempt="b")]
        for each in units[:2]:  # each is released behind that
            sending.send(each)
        assert len(link.said) == 2
        sending.leave(units[2:], 2)
        assert link.said[2:] == [Forget(attempt="c"), Forget(attempt="d"), Forget(attempt="e")]

    with_sending(tmp_path, body)


def test_calls_leave_at_once_and_what_nobody_waits_for_when_it_may(tmp_path: Path) -> None:
    def body(sending: Sending, link: Link, calls: CallsData) -> None:
        sending.leave([unit("a")], 1)
        assert link.hurried == 0
        row = MapState(n=1, k=1, id="b.1", job="b", owner="o", key="k", spec=MapSpec(), opened_at=0.0)
        calls.take([row, ArgsRow(n=1, k=1, first=0, args=(b"x",))])
        effects = Effects()
        effects.send(1, Dispatch(attempt="r", ranges=(CallRange(map=row.id, first=0),)))
        effects.send(1, DropCalls(attempt="r", map="other"))
        sending.leave([Unit(effects, True)], 1)
        assert link.hurried == 1
        assert [type(each) for each in link.said[1:]] == [Calls, DropCalls]

    with_sending(tmp_path, body)
