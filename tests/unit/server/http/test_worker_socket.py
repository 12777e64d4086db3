"""The workers' websocket: what is acknowledged, and what breaks a connection."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from gpulayer.protocol.messages import (
    Ack,
    Finished,
    Forget,
    Heartbeat,
    HeartbeatAck,
    HeldAttempt,
    NotStarted,
    Output,
    Recorded,
    Refuse,
    Released,
    Started,
    Submit,
)
from gpulayer.protocol.records import encode_text
from gpulayer.protocol.types import CellSpec, JobSpec, Outcome, State
from gpulayer_server.http import worker_socket
from tests.support.processes import until

SPEC = JobSpec(cell=CellSpec(code="1"))
TEXT = encode_text(1, b"some text")


@pytest.fixture
def attempt(client: Any, worker: Any) -> str:
    """An attempt that the worker has."""
    client.say(Submit(n=1, key="key", spec=SPEC))
    return worker.assigned().attempt


def closed(worker: Any) -> str:
    """The reason with which the other side closes."""
    with pytest.raises(ConnectionClosed) as error:
        worker.until(type(None))
    assert error.value.rcvd is not None
    return error.value.rcvd.reason


# ---------------------------------------------------------------- acknowledging


def test_bytes_are_acknowledged_by_what_is_on_the_disk(worker: Any, attempt: str, plane: Any) -> None:
    worker.say(Started(attempt=attempt), Output(attempt=attempt, offset=0, data=TEXT[:4]))
    assert worker.until(Ack) == Ack(attempt=attempt, offset=4)
    worker.say(Output(attempt=attempt, offset=4, data=TEXT[4:]), Output(attempt=attempt, offset=0, data=TEXT))
    assert worker.until(Ack) == Ack(attempt=attempt, offset=len(TEXT))
    path = next(plane.service.data.glob(f"streams/*/{attempt}.stream"))
    assert path.read_bytes() == TEXT


def test_an_end_is_recorded_and_then_forgotten(worker: Any, attempt: str) -> None:
    worker.say(Started(attempt=attempt), Output(attempt=attempt, offset=0, data=TEXT))
    worker.say(Finished(attempt=attempt, end_offset=len(TEXT), outcome=Outcome(state=State.SUCCEEDED)))
    assert worker.until(Recorded).attempt == attempt
    worker.say(Released(attempt=attempt))
    assert worker.until(Forget).attempt == attempt


def test_an_attempt_that_is_not_its_own_takes_no_bytes(
    worker: Any, attempt: str, new_worker: Callable[..., Any], plane: Any
) -> None:
    other = new_worker("w2")
    other.say(Output(attempt=attempt, offset=0, data=TEXT), Output(attempt="never-heard-of", offset=0, data=TEXT))
    other.say(Finished(attempt=attempt, end_offset=0, outcome=Outcome(state=State.FAILED)))
    assert other.until(Recorded).attempt == attempt  # it may let go of what is not its own
    assert list(plane.service.data.glob("streams/*/*.stream")) == [] or all(
        path.stat().st_size == 0 for path in plane.service.data.glob("streams/*/*.stream")
    )
    worker.say(Started(attempt=attempt), Output(attempt=attempt, offset=0, data=TEXT))
    assert worker.until(Ack).offset == len(TEXT)


# ---------------------------------------------------------------- what breaks it


def test_missing_bytes_break_the_connection_and_come_again(
    worker: Any, attempt: str, new_worker: Callable[..., Any]
) -> None:
    worker.say(Started(attempt=attempt), Output(attempt=attempt, offset=0, data=TEXT[:4]))
    worker.until(Ack)
    worker.say(Output(attempt=attempt, offset=8, data=TEXT[8:]))
    assert "bytes are missing" in closed(worker)
    again = new_worker(attempts=(HeldAttempt(attempt=attempt, started=True),))
    [verdict] = again.welcome.verdicts
    assert (verdict.go_on, verdict.acked) == (True, 4)


def test_an_end_before_its_bytes_breaks_the_connection(worker: Any, attempt: str) -> None:
    worker.say(Started(attempt=attempt))
    worker.say(Finished(attempt=attempt, end_offset=100, outcome=Outcome(state=State.SUCCEEDED)))
    assert "bytes are missing" in closed(worker)


def test_a_frame_that_came_before_is_passed_over(worker: Any, attempt: str) -> None:
    frame = worker.order.number([Started(attempt=attempt), Output(attempt=attempt, offset=0, data=TEXT)])
    worker.socket.send(frame)
    worker.socket.send(frame)
    assert worker.until(Ack).offset == len(TEXT)
    end = worker.print(attempt, "more", len(TEXT))
    assert worker.until(Ack).offset == end


@pytest.mark.parametrize("frame", [b"", b"\x02", b"\x02\0\0\0", b"\x09\0\0\0\x90", b"\x02\0\0\0\xc1"])
def test_a_bad_frame_is_refused_and_closes_it(worker: Any, frame: bytes) -> None:
    worker.socket.send(frame)
    refusal = worker.until(Refuse)
    assert (refusal.code, refusal.retry) == ("bad_frame", True)  # with a new connection all may be well
    assert closed(worker) == "bad frame"


def test_what_comes_after_a_bad_frame_is_not_looked_at(worker: Any, attempt: str, plane: Any) -> None:
    worker.socket.send(b"\x02")
    with contextlib.suppress(ConnectionClosed):  # where the other side was quicker, nothing comes at all
        worker.say(Output(attempt=attempt, offset=0, data=TEXT))
    assert closed(worker) == "bad frame"
    until(lambda: not plane.do(lambda: plane.service.shell.links), "the connection's end")
    assert plane.do(lambda: plane.service.shell.streams.length(attempt)) == 0


# ---------------------------------------------------------------- who comes


def test_the_same_agent_replaces_its_half_open_socket(
    worker: Any, attempt: str, new_worker: Callable[..., Any]
) -> None:
    again = new_worker(attempts=(HeldAttempt(attempt=attempt),))
    assert "replaced by a newer connection" in closed(worker)
    again.say(Started(attempt=attempt), Output(attempt=attempt, offset=0, data=TEXT))
    assert again.until(Ack).offset == len(TEXT)


def test_another_agent_of_the_same_worker_is_refused_while_the_first_answers(
    worker: Any, new_worker: Callable[..., Any]
) -> None:
    with pytest.raises(ConnectionClosed):
        new_worker(nonce="another")


def test_a_second_worker_of_the_same_name_gets_another_one(
    worker: Any, new_worker: Callable[..., Any], plane: Any
) -> None:
    new_worker("w2", name="alpha")
    assert {shown["name"] for shown in plane.request("GET", "/v1/workers").json()} == {"alpha", "alpha-2"}


def test_what_the_worker_gives_back_is_placed_again(worker: Any, attempt: str) -> None:
    worker.say(NotStarted(attempt=attempt, reason="its session had ended"))
    again = worker.assigned()
    assert again.attempt != attempt
    assert again.job == attempt.split("-")[0]


def test_bytes_that_find_no_room_are_asked_for_again_after_a_while(
    worker: Any, attempt: str, plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged, nothing that follows them counts, and the connection stays until then."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(worker_socket, "_FULL_PAUSE_S", 0.3)
    monkeypatch.setattr(plane.service.shell.streams, "append", full)
    worker.say(Started(attempt=attempt), Output(attempt=attempt, offset=0, data=TEXT))
    worker.say(Output(attempt=attempt, offset=len(TEXT), data=TEXT))
    worker.say(Finished(attempt=attempt, end_offset=2 * len(TEXT), outcome=Outcome(state=State.SUCCEEDED)))
    worker.say(Heartbeat())
    assert isinstance(worker.until(HeartbeatAck), HeartbeatAck)
    assert closed(worker) == "the control plane's disk is full"
    monkeypatch.undo()
    assert plane.do(lambda: plane.service.shell.streams.length(attempt)) == 0
    assert plane.do(lambda: plane.service.shell.plane.attempts[attempt].over) is False


def test_a_worker_that_comes_during_a_recovery_is_told_to_come_again(
    plane: Any, new_worker: Callable[..., Any]
) -> None:
    shell = plane.service.shell
    plane.do(lambda: setattr(shell, "_failing", True))
    with pytest.raises(ConnectionClosed) as error:
        new_worker("w2", name="beta")
    assert error.value.rcvd is not None
    assert "recovering" in error.value.rcvd.reason
    plane.do(lambda: setattr(shell, "_failing", False))
    assert new_worker("w2", name="beta").welcome.epoch == plane.endpoint.epoch
