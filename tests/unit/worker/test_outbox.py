"""What is sent at once, what waits, and that nothing of a stream is overtaken."""

from __future__ import annotations

from gpulayer.protocol.messages import Finished, Output, Started, WorkerMessage
from gpulayer.protocol.types import Outcome, State
from gpulayer_worker.outbox import Outbox

DONE = Outcome(state=State.SUCCEEDED)


def finished(name: str) -> Finished:
    return Finished(attempt=name, end_offset=0, outcome=DONE)


def output(name: str) -> Output:
    return Output(attempt=name, offset=0, data=b"x")


class Wire:
    """An outbox, and the frames that it sent."""

    def __init__(self) -> None:
        self.frames: list[list[WorkerMessage]] = []
        self.outbox = Outbox(self.frames.append)

    def put(self, *messages: WorkerMessage) -> None:
        for message in messages:
            self.outbox.put(message)


def test_what_is_put_goes_in_one_frame_and_once() -> None:
    wire = Wire()
    wire.put(Started(attempt="a"), output("a"))
    wire.outbox.send()
    wire.outbox.send()
    assert wire.frames == [[Started(attempt="a"), output("a")]]


def test_what_waits_goes_together_and_others_go_before_it() -> None:
    wire = Wire()
    for name in ("a", "b"):
        wire.put(finished(name))
        wire.outbox.keep()
    wire.put(output("c"))
    wire.outbox.send()
    wire.outbox.send_kept()
    assert wire.frames == [[output("c")], [finished("a"), finished("b")]]


def test_what_waits_of_a_stream_goes_before_what_follows_of_it() -> None:
    wire = Wire()
    wire.put(output("a"))
    wire.outbox.keep()
    wire.put(finished("a"))
    wire.outbox.send()
    assert wire.frames == [[output("a")], [finished("a")]]


def test_what_waited_for_a_connection_that_is_gone_is_not_sent() -> None:
    wire = Wire()
    wire.put(finished("a"))
    wire.outbox.keep()
    wire.outbox.forget()
    wire.outbox.send_kept()
    assert wire.frames == []
