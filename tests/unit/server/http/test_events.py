"""A job's output as events of JSON, and the fleet as a panel watches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from gpulayer.protocol.messages import Output, SessionEnded, Submit
from gpulayer.protocol.records import Kind, encode_json, encode_kernel, encode_text
from gpulayer.protocol.types import CellSpec, JobSpec
from gpulayer_server.http.events import as_event, as_json, joined

PATIENCE_S = 30


class Page:
    """What a browser sees of one socket."""

    def __init__(self, connecting: AbstractContextManager[ClientConnection]):
        self._connecting = connecting
        self.socket = connecting.__enter__()

    def next(self) -> dict[str, Any]:
        """The next message."""
        return json.loads(self.socket.recv(timeout=PATIENCE_S))

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message that is wanted."""
        while not wanted(message := self.next()):
            pass
        return message

    def to_the_end(self) -> tuple[list[dict[str, Any]], int | None]:
        """All that still comes, and the code with which the socket is closed."""
        messages: list[dict[str, Any]] = []
        try:
            while True:
                messages.append(self.next())
        except ConnectionClosed as closed:
            return messages, closed.rcvd.code if closed.rcvd else None

    def close(self) -> None:
        """Leave."""
        self._connecting.__exit__(None, None, None)


@pytest.fixture
def page(plane: Any) -> Any:
    """Opens sockets as a browser does."""
    opened: list[Page] = []

    def open_(path: str) -> Page:
        opened.append(Page(plane.socket(path)))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def kernel(msg_type: str, **content: Any) -> bytes:
    """A record of a kernel's message."""
    parts: list[Any] = [{"msg_type": msg_type}, {}, {}, content]
    return encode_kernel([json.dumps(part).encode() for part in parts])


def begun(worker: Any, client: Any, **cell: Any) -> Any:
    """A job that runs."""
    client.say(Submit(n=1, key="k", spec=JobSpec(cell=CellSpec(code="1", **cell), notebook="/n.ipynb")))
    assign = worker.assigned()
    worker.begin(assign.attempt)
    return assign


def write(worker: Any, attempt: str, offset: int, *records: bytes) -> int:
    """More of its stream; the length of it then."""
    data = b"".join(records)
    worker.say(Output(attempt=attempt, offset=offset, data=data))
    return offset + len(data)


def events(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for message in messages for event in message.get("events", ())]


def test_a_jobs_events_come_in_order_and_its_end_after_them(worker: Any, client: Any, page: Any) -> None:
    assign = begun(worker, client)
    following = page(f"/v1/jobs/{assign.job}/events")
    assert following.next()["type"] == "job"
    end = write(worker, assign.attempt, 0, kernel("stream", name="stdout", text="one\n"))
    following.until(lambda message: message["type"] == "events")
    end = write(worker, assign.attempt, end, kernel("display_data", data={"text/plain": "x"}, metadata={}))
    end = write(worker, assign.attempt, end, encode_json(Kind.REPLY, {"status": "ok"}))
    worker.finish(assign.attempt, end)
    messages, code = following.to_the_end()
    assert [(event["kind"], event["msg_type"]) for event in events(messages)] == [
        ("kernel", "display_data"),
        ("reply", "reply"),
    ]
    assert (messages[-1]["type"], messages[-1]["job"]["state"], code) == ("job", "succeeded", 1000)


def test_whoever_comes_back_goes_on_where_it_was(worker: Any, client: Any, page: Any) -> None:
    assign = begun(worker, client)
    texts = [kernel("display_data", data={"text/plain": str(number)}, metadata={}) for number in range(5)]
    worker.finish(assign.attempt, write(worker, assign.attempt, 0, *texts))
    whole, _ = page(f"/v1/jobs/{assign.job}/events").to_the_end()
    assert [event["seq"] for event in events(whole)] == [0, 1, 2, 3, 4]
    rest, _ = page(f"/v1/jobs/{assign.job}/events?attempt={assign.attempt}&after=2").to_the_end()
    assert [event["seq"] for event in events(rest)] == [3, 4]
    assert [event["content"]["data"]["text/plain"] for event in events(rest)] == ["3", "4"]


def test_what_another_attempt_said_is_told_from_its_start(worker: Any, client: Any, page: Any) -> None:
    assign = begun(worker, client)
    worker.finish(assign.attempt, write(worker, assign.attempt, 0, kernel("stream", name="stdout", text="x")))
    messages, _ = page(f"/v1/jobs/{assign.job}/events?attempt=another&after=7").to_the_end()
    assert [event["seq"] for event in events(messages)] == [0]
    assert {"type": "attempt", "attempt": assign.attempt} in messages


@pytest.mark.parametrize(("query", "code"), [("zzzz/events", 4404), ("zzzz/events?after=x", 4400)])
def test_a_wrong_address_closes_with_a_code_of_its_own(page: Any, query: str, code: int) -> None:
    assert page(f"/v1/jobs/{query}").to_the_end() == ([], code)


def test_neighbouring_texts_of_one_stream_are_one_event() -> None:
    def text(seq: int, name: str, text: str) -> dict[str, Any]:
        return {"seq": seq, "kind": "kernel", "msg_type": "stream", "content": {"name": name, "text": text}}

    made = joined([text(0, "stdout", "a"), text(1, "stdout", "b"), text(2, "stderr", "c"), text(3, "stdout", "d")])
    assert [(e["seq"], e["content"]["name"], e["content"]["text"]) for e in made] == [
        (1, "stdout", "ab"),
        (2, "stderr", "c"),
        (3, "stdout", "d"),
    ]


def test_events_carry_metadata_buffers_and_a_programs_own_text() -> None:
    parts = [b'{"msg_type": "comm_msg"}', b"{}", b'{"version": 2}', b'{"data": {}}', b"\x00\xff"]
    payload = memoryview(encode_kernel(parts))[9:]
    event = as_event(0, Kind.KERNEL, payload)
    assert (event["metadata"], event["buffers"]) == ({"version": 2}, ["AP8="])
    assert as_event(1, Kind.TEXT, memoryview(encode_text(2, b"\xffx"))[9:])["content"] == {
        "name": "stderr",
        "text": "\ufffdx",
    }


def test_text_that_is_no_json_elsewhere_is_made_so() -> None:
    made = as_json({"text": "half \ud800", "loss": float("nan")})
    assert json.loads(made, parse_constant=lambda name: pytest.fail(name)) == {"text": "half \ud800", "loss": None}


def test_the_fleet_comes_whole_then_what_changes(plane: Any, new_worker: Any, client: Any, page: Any) -> None:
    watching = page("/v1/watch")
    first = watching.next()
    assert (first["type"], first["workers"], first["jobs"], first["epoch"]) == ("fleet", [], [], plane.endpoint.epoch)
    worker = new_worker()
    came = watching.until(lambda message: message.get("workers"))
    assert [each["name"] for each in came["workers"]] == ["alpha"]
    assign = begun(worker, client, session="train")
    running = watching.until(lambda m: [job["state"] for job in m.get("jobs", ())] == ["running"])
    assert running["jobs"][0]["id"] == assign.job
    worker.finish(assign.attempt, 0)
    watching.until(lambda m: [job["state"] for job in m.get("jobs", ())] == ["succeeded"])
    worker.say(SessionEnded(session=assign.session, reason="idle"))
    gone = watching.until(lambda message: message.get("sessions_gone"))
    assert gone["sessions_gone"] == [assign.session]
    again = page("/v1/watch").next()
    assert [job["id"] for job in again["jobs"]] == [assign.job]


def test_a_waiting_job_tells_anew_why_when_the_fleet_changes(new_worker: Any, client: Any, page: Any) -> None:
    first = new_worker("w1", name="alpha", slots=1)
    begun(first, client)
    client.say(Submit(n=2, key="k2", spec=JobSpec(cell=CellSpec(code="2"))))
    watching = page("/v1/watch")
    waiting = watching.until(lambda m: any(job.get("reasons") for job in m.get("jobs", ())))
    assert waiting["jobs"][0]["reasons"][0]["worker"] == "alpha"
    new_worker("w2", name="beta", slots=1)
    watching.until(lambda m: any(job.get("worker") == "beta" for job in m.get("jobs", ())))


def test_who_watches_keeps_an_embedded_control_plane(plane: Any, page: Any) -> None:
    page("/v1/watch").next()
    assert plane.do(lambda: len(plane.service.shell.clients)) == 1


def test_a_stream_that_cannot_be_read_closes_the_socket(
    plane: Any, worker: Any, client: Any, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign = begun(worker, client)
    worker.finish(assign.attempt, write(worker, assign.attempt, 0, kernel("stream", name="stdout", text="x")))
    page(f"/v1/jobs/{assign.job}/events").to_the_end()  # it is over

    def broken(*arguments: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(plane.service.shell.streams, "read", broken)
    _, code = page(f"/v1/jobs/{assign.job}/events").to_the_end()
    assert code == 1011
