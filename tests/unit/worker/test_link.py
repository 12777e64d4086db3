"""The worker's side of the protocol, event by event: assignments, bytes, ends, orders."""

from __future__ import annotations

import pytest

from gpulayer.protocol.messages import (
    Ack,
    CancelAttempt,
    Finished,
    Forget,
    HeldAttempt,
    NotStarted,
    Output,
    Progress,
    Recorded,
    Refuse,
    Released,
    Shutdown,
    Started,
    Verdict,
)
from gpulayer.protocol.types import FRAME_DATA_BYTES, Outcome, State
from gpulayer_worker.link import (
    WINDOW_BYTES,
    Began,
    Connected,
    Disconnected,
    Doing,
    Drop,
    Ended,
    Full,
    GaveBack,
    Gone,
    Held,
    Interrupt,
    Kill,
    Link,
    Persist,
    Reconnect,
    SayHello,
    Send,
    SendOutput,
    SpoolGrew,
    Start,
    Stop,
    Tick,
    Trim,
)
from tests.support.link import DONE, Wire, assign

# ---------------------------------------------------------------- assignments


def test_an_assignment_is_persisted_before_it_starts(wire):
    assert wire.hear(assign()) == [Persist(attempt="a"), Start(assign=assign())]


def test_an_assignment_starts_at_most_once(one):
    assert one.hear(assign()) == []
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    assert one.hear(assign()) == []


def test_a_program_that_began_is_persisted_and_told_once(wire):
    wire.hear(assign())
    assert wire.do(Began(attempt="a")) == [Persist(attempt="a"), Send(message=Started(attempt="a"))]
    wire.do(SpoolGrew(attempt="a", end=10))
    assert wire.sent() == []


def test_progress_is_told_while_there_is_a_connection(wire):
    wire.hear(assign())
    wire.do(Doing(attempt="a", text="copying"))
    assert wire.sent() == [Progress(attempt="a", text="copying")]
    wire.do(Disconnected())
    assert wire.do(Doing(attempt="a", text="copying")) == []


def test_an_attempt_given_back_is_told_and_kept_until_it_is_forgotten(wire):
    wire.hear(assign())
    wire.do(GaveBack(attempt="a", reason="no disk"))
    assert wire.found(Persist)
    assert wire.sent() == [NotStarted(attempt="a", reason="no disk")]
    assert wire.hear(assign()) == []
    assert wire.hear(Forget(attempt="a")) == [Drop(attempt="a")]


def test_on_a_full_disk_what_comes_is_given_back_and_what_runs_goes_on(one):
    reason = "disk below its reserve: 0.4 GB free of 1.0 GB wanted in /data"
    one.do(Full(reason=reason))
    one.hear(assign("b"))
    assert one.sent() == [NotStarted(attempt="b", reason=reason)]
    assert list(one.link.held) == ["a"]
    one.do(SpoolGrew(attempt="a", end=5))
    assert one.spans() == [(0, 5)]
    one.do(Full(reason=""))
    assert one.hear(assign("b")) == [Persist(attempt="b"), Start(assign=assign("b"))]


def test_events_of_an_unknown_attempt_do_nothing(wire):
    for event in (Began(attempt="x"), Gone(attempt="x"), SpoolGrew(attempt="x", end=1)):
        assert wire.do(event) == []


# ---------------------------------------------------------------- bytes


def test_bytes_go_in_frames_up_to_the_window(one):
    one.do(SpoolGrew(attempt="a", end=3 * WINDOW_BYTES))
    spans = one.spans()
    assert sum(size for _, size in spans) == WINDOW_BYTES
    assert max(size for _, size in spans) == FRAME_DATA_BYTES
    assert [offset for offset, _ in spans] == list(range(0, WINDOW_BYTES, FRAME_DATA_BYTES))


def test_an_acknowledgement_trims_and_moves_the_window(one):
    one.do(SpoolGrew(attempt="a", end=3 * WINDOW_BYTES))
    one.hear(Ack(attempt="a", offset=100))
    assert one.found(Trim) == [Trim(attempt="a", offset=100)]
    assert one.spans() == [(WINDOW_BYTES, 100)]


def test_an_old_acknowledgement_changes_nothing(one):
    one.do(SpoolGrew(attempt="a", end=10))
    one.hear(Ack(attempt="a", offset=10))
    assert one.hear(Ack(attempt="a", offset=4)) == []
    assert one.hear(Ack(attempt="unknown", offset=4)) == []


def test_nothing_is_sent_before_the_welcome():
    wire = Wire(Link(held=[Held(assign=assign(), began=True)]))
    assert wire.do(SpoolGrew(attempt="a", end=10)) == []
    assert wire.do(Connected()) == [SayHello(attempts=(HeldAttempt(attempt="a", started=True),), sessions=())]
    assert wire.do(SpoolGrew(attempt="a", end=20)) == []


def test_a_new_connection_sends_again_from_what_is_acknowledged(one):
    one.do(SpoolGrew(attempt="a", end=100))
    one.hear(Ack(attempt="a", offset=40))
    one.do(Disconnected())
    one.welcome(Verdict(attempt="a", go_on=True, acked=30))
    assert one.sent() == [Started(attempt="a")]
    assert one.spans() == [(30, 70)]
    assert one.found(Trim) == [Trim(attempt="a", offset=30)]


# ---------------------------------------------------------------- the end


def test_finished_is_told_only_after_all_bytes(one):
    one.do(Ended(attempt="a", end=WINDOW_BYTES + 5, outcome=DONE))
    assert sum(size for _, size in one.spans()) == WINDOW_BYTES
    assert one.sent() == []
    one.hear(Ack(attempt="a", offset=WINDOW_BYTES))
    finished = Finished(attempt="a", end_offset=WINDOW_BYTES + 5, outcome=DONE, began=True)
    assert [type(effect) for effect in one.out] == [Trim, SendOutput, Send]
    assert one.sent() == [finished]
    one.hear(Ack(attempt="a", offset=WINDOW_BYTES + 5))
    assert one.sent() == []


def test_a_second_end_is_not_one(one):
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    assert one.do(Ended(attempt="a", end=0, outcome=Outcome(state=State.FAILED))) == []


def test_released_is_told_only_after_recorded(one):
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    one.do(Gone(attempt="a"))
    assert one.sent() == []
    assert one.hear(Recorded(attempt="a")) == [Persist(attempt="a"), Send(message=Released(attempt="a"))]
    assert one.hear(Recorded(attempt="a")) == []


def test_released_waits_for_the_last_process(one):
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    one.hear(Recorded(attempt="a"))
    assert one.sent() == []
    one.do(Gone(attempt="a"))
    assert one.sent() == [Released(attempt="a")]


def test_an_attempt_is_dropped_only_when_it_is_forgotten_and_gone(one):
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    one.hear(Recorded(attempt="a"))
    assert one.hear(Forget(attempt="a")) == []
    assert one.link.busy
    one.do(Gone(attempt="a"))
    assert one.found(Drop) == []
    assert one.hear(Forget(attempt="a")) == [Drop(attempt="a")]
    assert not one.link.busy


def test_a_new_connection_tells_begin_and_end_again(one):
    one.do(Ended(attempt="a", end=5, outcome=DONE))
    one.do(Disconnected())
    one.do(Connected())
    [hello] = one.found(SayHello)
    assert hello.attempts == (HeldAttempt(attempt="a", started=True, ended=True),)
    one.welcome(Verdict(attempt="a", go_on=True, acked=5))
    assert one.sent() == [Finished(attempt="a", end_offset=5, outcome=DONE, began=True)]


def test_a_new_connection_tells_the_release_again(one):
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    one.hear(Recorded(attempt="a"))
    one.do(Gone(attempt="a"))
    one.do(Disconnected())
    one.welcome(Verdict(attempt="a", go_on=False, recorded=True))
    assert one.sent() == [Released(attempt="a")]


# ---------------------------------------------------------------- orders


def test_a_verdict_not_to_go_on_kills_and_releases_when_gone(one):
    one.do(Disconnected())
    one.welcome(Verdict(attempt="a", go_on=False))
    assert [kill.attempt for kill in one.found(Kill)] == ["a"]
    assert one.sent() == []
    one.do(Ended(attempt="a", end=9, outcome=DONE))
    assert (one.sent(), one.spans()) == ([], [])
    one.do(Gone(attempt="a"))
    assert one.sent() == [Released(attempt="a")]


def test_a_verdict_not_to_go_on_kills_nothing_that_has_ended(one):
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    one.do(Disconnected())
    one.welcome(Verdict(attempt="a", go_on=False, recorded=True))
    assert one.found(Kill) == []


def test_a_cancel_interrupts_what_lives(one):
    order = CancelAttempt(attempt="a", grace_s=3)
    assert one.hear(order) == [Interrupt(attempt="a", grace_s=3)]
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    assert one.hear(order) == []


def test_a_new_agent_kills_what_the_one_before_it_was_told_to_end():
    wire = Wire(Link(held=[Held(assign=assign(), began=True, recorded=True)]))
    wire.do(Tick())
    assert [kill.attempt for kill in wire.found(Kill)] == ["a"]
    wire.do(Tick())
    assert wire.found(Kill) == []


def test_a_refusal_ends_the_agent_unless_it_may_come_again(wire):
    assert wire.hear(Refuse(code="c", text="old")) == [Stop(reason="old", refused=True)]
    assert wire.hear(Refuse(code="c", text="twice", retry=True)) == [Reconnect(reason="twice")]


def test_a_shutdown_ends_the_agent(wire):
    assert wire.hear(Shutdown(reason="bye")) == [Stop(reason="bye", refused=False)]


def test_a_message_without_a_rule_is_an_error(wire):
    with pytest.raises(TypeError, match="no rule for Output"):
        wire.hear(Output(attempt="a", offset=0, data=b""))


def test_processes_that_are_gone_before_the_end_is_known_release_nothing_yet(one):
    one.do(Gone(attempt="a"))
    assert one.sent() == []
    one.do(Ended(attempt="a", end=0, outcome=DONE))
    assert one.sent() == [Finished(attempt="a", end_offset=0, outcome=DONE, began=True, released=True)]


# ---------------------------------------------------------------- small commands: one message from begin to release


def test_the_end_says_that_it_began_and_that_nothing_is_left(wire):
    wire.hear(assign())
    out = wire.do(Ended(attempt="a", end=0, outcome=DONE, began=True, gone=True))
    finished = Finished(attempt="a", end_offset=0, outcome=DONE, began=True, released=True)
    assert out == [Persist(attempt="a"), Send(message=finished)]
    assert wire.hear(Forget(attempt="a")) == [Drop(attempt="a")]
    assert not wire.link.busy


def test_a_recorded_instead_of_a_forget_is_answered_with_the_release(wire):
    wire.hear(assign())
    wire.do(Ended(attempt="a", end=0, outcome=DONE, began=True, gone=True))
    wire.hear(Recorded(attempt="a"))
    assert wire.sent() == [Released(attempt="a")]


def test_what_is_left_after_the_end_is_released_by_itself(wire):
    wire.hear(assign())
    wire.do(Ended(attempt="a", end=0, outcome=DONE, began=True))
    assert wire.sent() == [Finished(attempt="a", end_offset=0, outcome=DONE, began=True)]
    wire.do(Gone(attempt="a"))
    assert wire.sent() == []
    wire.hear(Recorded(attempt="a"))
    assert wire.sent() == [Released(attempt="a")]


def test_a_begin_is_told_at_once_where_not_all_bytes_go_now(wire):
    wire.hear(assign())
    wire.do(Ended(attempt="a", end=WINDOW_BYTES + 5, outcome=DONE, began=True, gone=True))
    assert wire.sent() == [Started(attempt="a")]
    wire.hear(Ack(attempt="a", offset=WINDOW_BYTES))
    assert wire.sent() == [Finished(attempt="a", end_offset=WINDOW_BYTES + 5, outcome=DONE, began=True, released=True)]


def test_a_new_connection_tells_an_end_with_its_release_again(wire):
    wire.hear(assign())
    wire.do(Ended(attempt="a", end=0, outcome=DONE, began=True, gone=True))
    wire.do(Disconnected())
    wire.do(Connected())
    [hello] = wire.found(SayHello)
    assert hello.attempts == (HeldAttempt(attempt="a", started=True, ended=True, released=True),)
    wire.welcome(Verdict(attempt="a", go_on=True))
    assert wire.sent() == [Finished(attempt="a", end_offset=0, outcome=DONE, began=True, released=True)]
    wire.do(Disconnected())
    wire.welcome(Verdict(attempt="a", go_on=False, recorded=True))
    assert wire.sent() == [Released(attempt="a")]


def test_an_end_that_comes_again_with_the_release_tells_the_release_once(one: Wire) -> None:
    one.do(Ended(attempt="a", end=0, outcome=DONE, began=True))
    one.hear(Recorded(attempt="a"))
    one.do(Ended(attempt="a", end=0, outcome=DONE, began=True, gone=True))
    assert one.out[0] == Persist(attempt="a")
    assert one.sent() == [Released(attempt="a")]
    assert one.do(Ended(attempt="a", end=0, outcome=DONE, began=True, gone=True)) == []


def test_an_end_that_comes_again_without_a_release_changes_nothing(one: Wire) -> None:
    one.do(Ended(attempt="a", end=0, outcome=DONE, began=True))
    assert one.do(Ended(attempt="a", end=0, outcome=Outcome(state=State.FAILED), began=True)) == []
