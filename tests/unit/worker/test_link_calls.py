"""Calls through the link: what comes, what goes, and what a hello says of them."""

from __future__ import annotations

import pytest

from gpulayer.protocol.calls import (
    CallBatch,
    CallRange,
    CallRun,
    Calls,
    CallsAccepted,
    CallsDone,
    CallsReturned,
    CallsSpec,
    DropCalls,
    EndRunner,
    FunctionSpec,
    RecallCalls,
)
from gpulayer.protocol.messages import Ack, Assign, Finished, Started, Verdict
from gpulayer.protocol.types import JobSpec
from gpulayer_worker.link import (
    WINDOW_BYTES,
    Began,
    CallsBack,
    CallsFound,
    Connected,
    Disconnected,
    DropMap,
    Ended,
    GiveBackCalls,
    Kill,
    LetGo,
    ResultsCame,
    RunCalls,
    SayHello,
    SendOutput,
    WindDown,
)
from tests.support.link import DONE, Wire

_SPEC = JobSpec(calls=CallsSpec(function=FunctionSpec(name="f", qualname="f")))


def batch(first: int, count: int = 1) -> CallBatch:
    return CallBatch(map="m", first=first, args=(b"x",) * count)


def span(first: int, count: int = 1) -> CallRange:
    return CallRange(map="m", first=first, count=count)


def results(first: int, count: int = 1, end: int = 0) -> ResultsCame:
    return ResultsCame(
        attempt="a", runs=(CallRun(map="m", first=first, codes=bytes(count), data=(b"",) * count),), end=end
    )


@pytest.fixture
def lease(wire: Wire) -> Wire:
    """A link with attempt 'a', whose runner is up and has calls 0 to 9."""
    wire.hear(Assign(attempt="a", job="j", spec=_SPEC, leased=True))
    wire.do(Began(attempt="a"))
    wire.hear(Calls(attempt="a", batches=(batch(0, 10),)))
    return wire


def test_calls_go_to_the_run_and_results_to_the_control_plane(lease: Wire) -> None:
    assert lease.out == [RunCalls(attempt="a", batches=(batch(0, 10),))]
    lease.do(results(0, 3))
    (told,) = lease.sent()
    assert isinstance(told, CallsDone)
    lease.hear(CallsAccepted(attempt="a", ranges=(span(0, 3),)))
    assert lease.out == [LetGo(attempt="a", ranges=(span(0, 3),))]
    lease.hear(CallsAccepted(attempt="a", ranges=(span(0, 3),)))
    assert lease.out == []


def test_calls_that_are_here_already_change_nothing(lease: Wire) -> None:
    lease.hear(Calls(attempt="a", batches=(batch(2, 5),)))
    assert lease.out == []


def test_wishes_are_passed_on(lease: Wire) -> None:
    lease.do(results(0))
    assert lease.hear(RecallCalls(attempt="a", count=4)) == [GiveBackCalls(attempt="a", count=4)]
    assert lease.hear(EndRunner(attempt="a")) == [WindDown(attempt="a")]
    dropped = [DropMap(attempt="a", map="m"), LetGo(attempt="a", ranges=(span(0),))]
    assert lease.hear(DropCalls(attempt="a", map="m")) == dropped
    assert lease.link.held["a"].declared.calls == ()


def test_what_goes_back_is_told_or_declared_until_it_is(lease: Wire) -> None:
    lease.do(CallsBack(attempt="a", ranges=(span(9),), began=True, reason="signal 9"))
    assert lease.sent() == [CallsReturned(attempt="a", ranges=(span(9),), began=True, reason="signal 9")]
    lease.do(Disconnected())
    lease.do(CallsBack(attempt="a", ranges=(span(7, 2),)))
    lease.do(Connected())
    (hello,) = lease.found(SayHello)
    assert hello.attempts[0].calls == (span(0, 7), span(7, 2))
    lease.welcome(Verdict(attempt="a", go_on=True))
    assert [each for each in lease.sent() if isinstance(each, CallsReturned)] == [
        CallsReturned(attempt="a", ranges=(span(7, 2),))
    ]


def test_results_are_told_again_on_each_connection_and_after_the_begin(lease: Wire) -> None:
    lease.do(results(0, 2))
    for _ in range(2):
        lease.do(Disconnected())
        lease.welcome(Verdict(attempt="a", go_on=True))
        assert [type(each) for each in lease.sent()] == [Started, CallsDone]
    lease.hear(CallsAccepted(attempt="a", ranges=(span(0, 2),)))
    lease.welcome(Verdict(attempt="a", go_on=True))
    assert [type(each) for each in lease.sent()] == [Started]


def test_an_attempt_that_is_not_wanted_tells_nothing(lease: Wire) -> None:
    lease.do(results(0, 2))
    lease.welcome(Verdict(attempt="a", go_on=False))
    assert lease.found(Kill)
    assert lease.sent() == []
    lease.do(results(2))
    lease.hear(Calls(attempt="a", batches=(batch(20),)))
    assert lease.out == []
    lease.do(Connected())
    assert lease.found(SayHello)[0].attempts[0].calls == ()


def test_a_result_does_not_overtake_the_text_before_it(lease: Wire) -> None:
    lease.do(results(0, end=WINDOW_BYTES))
    assert [type(each) for each in lease.out][-1] is not SendOutput
    assert isinstance(lease.sent()[-1], CallsDone)
    lease.do(results(1, end=WINDOW_BYTES + 10))
    assert lease.sent() == []
    lease.hear(Ack(attempt="a", offset=100))
    assert next(type(each) for each in lease.out[1:]) is SendOutput
    assert isinstance(lease.sent()[0], CallsDone)


def test_the_end_comes_after_all_results(lease: Wire) -> None:
    lease.do(Disconnected())
    lease.do(results(0, end=10))
    lease.do(CallsBack(attempt="a", ranges=(span(1),), began=True, reason="exit code 1"))
    lease.do(Ended(attempt="a", end=10, outcome=DONE, gone=True))
    lease.do(Connected())
    assert lease.found(SayHello)[0].attempts[0].calls == (span(0), span(1))
    lease.welcome(Verdict(attempt="a", go_on=True))
    assert [type(each) for each in lease.sent()] == [CallsDone, CallsReturned, Finished]


def test_what_a_runner_was_found_with_is_declared(wire: Wire) -> None:
    wire.hear(Assign(attempt="a", job="j", spec=_SPEC))
    wire.do(CallsFound(attempt="a", ranges=(span(3, 2),)))
    wire.do(Connected())
    assert wire.found(SayHello)[0].attempts[0].calls == (span(3, 2),)


def test_of_what_is_not_held_nothing_is_done(wire: Wire) -> None:
    assert wire.hear(Calls(attempt="b", batches=(batch(0),))) == []
    assert wire.do(ResultsCame(attempt="b", runs=(), end=0)) == []
    assert wire.hear(CallsAccepted(attempt="b", ranges=(span(0),))) == []
