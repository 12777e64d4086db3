"""The worker's side of the protocol: sessions, silence and leases."""

from __future__ import annotations

import pytest

from gpulayer.protocol.messages import (
    EndSession,
    HeartbeatAck,
    HeldSession,
    NotStarted,
    Released,
    SessionEnded,
    Verdict,
    Welcome,
)
from gpulayer_worker.link import (
    Began,
    CloseSession,
    Connected,
    Disconnected,
    Ended,
    GaveBack,
    Gone,
    Held,
    Kill,
    Link,
    Persist,
    Reconnect,
    SayHello,
    SessionGone,
    SessionOpened,
    SpoolGrew,
    Start,
    Tick,
)
from tests.support.link import DONE, Wire, assign

# ---------------------------------------------------------------- sessions


def test_the_end_of_a_session_is_told(wire):
    wire.do(SessionOpened(session="s"))
    wire.do(SessionGone(session="s", reason="it died"))
    assert wire.sent() == [SessionEnded(session="s", reason="it died")]
    assert wire.do(SessionGone(session="s", reason="it died")) == []


def test_a_session_that_ended_out_of_touch_is_missing_in_the_hello(wire):
    wire.do(SessionOpened(session="s"))
    wire.do(SessionOpened(session="t"))
    wire.do(Disconnected())
    wire.do(SessionGone(session="s", reason="it died"))
    wire.do(Connected())
    [hello] = wire.found(SayHello)
    assert hello.sessions == (HeldSession(session="t"),)
    wire.hear(Welcome(epoch=1, heartbeat_s=2, lost_after_s=60))
    assert wire.sent() == []


def test_a_session_that_ended_between_hello_and_welcome_is_told_after_it(wire):
    wire.do(SessionOpened(session="s"))
    wire.do(Disconnected())
    wire.do(Connected())
    wire.do(SessionGone(session="s", reason="it died"))
    assert wire.sent() == []
    wire.hear(Welcome(epoch=1, heartbeat_s=2, lost_after_s=60))
    assert wire.sent() == [SessionEnded(session="s", reason="it died")]


def test_a_session_is_closed_once_no_attempt_is_left_in_it(wire):
    wire.do(SessionOpened(session="s"))
    wire.hear(assign(session="s"))
    wire.hear(EndSession(session="s"))
    assert [kill.attempt for kill in wire.found(Kill)] == ["a"]
    assert wire.found(CloseSession) == []
    wire.do(Gone(attempt="a"))
    assert wire.found(CloseSession) == [CloseSession(session="s")]


def test_an_order_to_end_a_session_works_once(wire):
    wire.do(SessionOpened(session="s"))
    assert wire.hear(EndSession(session="s")) == [CloseSession(session="s")]
    assert wire.hear(EndSession(session="s")) == []


def test_a_session_that_is_not_here_has_ended(wire):
    wire.hear(EndSession(session="s"))
    assert wire.sent() == [SessionEnded(session="s", reason="it is not here")]


def test_the_welcome_ends_sessions(wire):
    wire.do(SessionOpened(session="s"))
    wire.do(Disconnected())
    wire.welcome(end_sessions=("s",))
    assert wire.found(CloseSession) == [CloseSession(session="s")]


def test_a_cell_for_a_session_that_is_ending_or_ended_is_given_back(wire):
    wire.do(SessionOpened(session="s"))
    wire.hear(EndSession(session="s"))
    wire.hear(assign("a", session="s"))
    assert wire.sent() == [NotStarted(attempt="a", reason="its session is ending")]
    wire.do(SessionGone(session="s", reason="closed"))
    wire.hear(assign("b", session="s"))
    assert wire.sent() == [NotStarted(attempt="b", reason="its session had ended: closed")]
    assert wire.found(Start) == []
    assert not wire.link.busy


# ---------------------------------------------------------------- time and leases


def leased() -> Wire:
    """A leased attempt that began, at a connection made at 0 s."""
    wire = Wire()
    wire.welcome()
    wire.hear(assign(leased=True))
    wire.do(Began(attempt="a"))
    return wire


def test_a_silent_connection_is_given_up(wire):
    wire.now = 12.0
    assert wire.do(Tick()) == []
    wire.now = 12.5
    assert [type(effect) for effect in wire.do(Tick())] == [Reconnect]
    wire.do(Disconnected())
    assert wire.do(Tick()) == []


def test_a_leased_attempt_is_killed_before_its_lease_ends():
    wire = leased()
    wire.do(Disconnected())
    wire.now = 47.9
    assert wire.do(Tick()) == []
    wire.now = 48.0
    assert [type(effect) for effect in wire.do(Tick())] == [Persist, Kill]
    wire.now = 49.0
    assert wire.do(Tick()) == []


def test_an_attempt_without_a_lease_is_never_killed_for_silence(one):
    one.do(Disconnected())
    one.now = 10_000.0
    assert one.do(Tick()) == []


def test_a_lease_holds_from_when_the_heartbeat_was_sent():
    wire = leased()
    wire.now = 10.0
    wire.do(Tick())
    wire.now = 30.0  # its answer was long on its way
    wire.hear(HeartbeatAck())
    wire.do(Disconnected())
    wire.now = 57.9
    assert wire.do(Tick()) == []
    wire.now = 58.0
    assert wire.do(Tick()) != []


def test_a_lease_holds_from_when_the_hello_was_sent():
    wire = leased()
    wire.do(Disconnected())
    wire.now = 20.0
    wire.do(Connected())
    wire.now = 40.0
    wire.hear(Welcome(epoch=1, heartbeat_s=2, lost_after_s=60, verdicts=(Verdict(attempt="a", go_on=True),)))
    wire.now = 67.9
    assert wire.found(Kill) == []
    wire.do(SpoolGrew(attempt="a", end=1))
    assert wire.found(Kill) == []
    wire.now = 68.0
    wire.do(Tick())
    assert [kill.attempt for kill in wire.found(Kill)] == ["a"]


def test_an_answer_to_a_heartbeat_of_an_earlier_connection_grants_nothing():
    wire = leased()
    wire.now = 10.0
    wire.do(Tick())
    wire.do(Disconnected())
    wire.do(Connected())
    wire.hear(HeartbeatAck())
    wire.now = 48.0
    wire.do(Tick())
    assert wire.found(Kill) != []


def test_a_new_agent_grants_found_leases_a_few_seconds():
    wire = Wire(Link(held=[Held(assign=assign(leased=True), began=True)], now=100.0))
    wire.now = 104.9
    assert wire.do(Tick()) == []
    wire.now = 105.0
    wire.do(Tick())
    assert [kill.attempt for kill in wire.found(Kill)] == ["a"]


def test_an_assignment_whose_lease_is_over_is_given_back(wire):
    wire.now = 50.0
    wire.hear(assign(leased=True))
    assert wire.sent() == [NotStarted(attempt="a", reason="its lease was over when it came")]
    assert wire.found(Start) == []
    wire.hear(assign("b"))
    assert wire.found(Start) != []


def test_results_after_the_end_of_a_lease_are_not_sent():
    wire = leased()
    wire.now = 48.0
    wire.do(Tick())
    wire.do(Ended(attempt="a", end=7, outcome=DONE))
    assert (wire.sent(), wire.spans()) == ([], [])
    wire.do(Gone(attempt="a"))
    assert wire.sent() == [Released(attempt="a")]


@pytest.mark.parametrize(
    "end",
    [
        GaveBack(attempt="a", reason="it can't be started here"),
        Ended(attempt="a", end=0, outcome=DONE, gone=True),
        Gone(attempt="a"),
    ],
    ids=["given back", "ended", "gone"],
)
def test_of_an_attempt_that_ends_as_its_lease_does_nothing_is_left_to_end(end):
    wire = leased()
    wire.hear(assign("b", leased=True))
    wire.now = 100.0  # the machine slept: this is the first that is heard
    wire.do(end)
    assert [kill.attempt for kill in wire.found(Kill)] == ["b"]
