"""How messages are put into frames."""

from __future__ import annotations

from gpulayer.protocol.messages import Output, Started, WorkerMessage
from gpulayer.protocol.types import FRAME_DATA_BYTES
from gpulayer_worker.channel import frames


def output(size: int) -> Output:
    return Output(attempt="a", offset=0, data=b"x" * size)


def test_small_messages_share_a_frame() -> None:
    messages: list[WorkerMessage] = [Started(attempt="a"), output(10), output(20)]
    assert list(frames(messages)) == [messages]
    assert list(frames([])) == []


def test_a_frame_holds_no_more_output_than_the_protocol_says() -> None:
    messages: list[WorkerMessage] = [
        output(FRAME_DATA_BYTES),
        Started(attempt="a"),
        output(1),
        output(FRAME_DATA_BYTES - 1),
        output(1),
        Started(attempt="a"),
    ]
    assert list(frames(messages)) == [messages[:2], messages[2:4], messages[4:]]
