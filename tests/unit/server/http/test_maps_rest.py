"""Maps over HTTP, and how their job shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from websockets.sync.client import ClientConnection

from gpulayer.protocol.calls import (
    OK,
    CallRun,
    Calls,
    CallsDone,
    CallsSpec,
    FunctionSpec,
    MapSpec,
    MapUpdate,
    OpenMap,
    ResultRun,
)
from gpulayer.protocol.messages import Output
from gpulayer.protocol.records import Kind, encode_call
from gpulayer.protocol.types import TERMINAL, JobSpec
from gpulayer_server.http.routes import roles

pack = msgspec.msgpack.Encoder().encode
JOB = pack(JobSpec(name="square", calls=CallsSpec(function=FunctionSpec(name="f", qualname="f"), max_runners=1)))
runs_of = msgspec.msgpack.Decoder(list[ResultRun])


def opened(client: Any, n: int, *args: bytes) -> str:
    """A new map."""
    client.say(OpenMap(n=n, key=f"k{n}", job=JOB, map=MapSpec(name="square"), args=args, last=True))
    while (message := client.until(MapUpdate)).n != n:
        pass
    return message.map.id


class Runner:
    """One runner; `printed` is how long its stream is."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.attempt = worker.assigned().attempt
        self.printed = 0
        worker.begin(self.attempt)

    def print(self, name: str, index: int, text: bytes, kind: int = Kind.CALL_STDOUT) -> None:
        """What a call writes."""
        data = encode_call(kind, name, index, 0, text)
        self.worker.say(Output(attempt=self.attempt, offset=self.printed, data=data))
        self.printed += len(data)

    def run(self, count: int) -> None:
        """Do so many calls."""
        while count > 0:
            for batch in self.worker.until(Calls).batches:
                data = tuple([each + each for each in batch.args])
                run = CallRun(map=batch.map, first=batch.first, codes=bytes([OK]) * len(data), data=data)
                self.worker.say(CallsDone(attempt=self.attempt, runs=(run,)))
                count -= len(data)


def ended(client: Any) -> None:
    """A map has."""
    while client.until(MapUpdate).map.state not in TERMINAL:
        pass


def test_a_map_is_shown_with_its_results(plane: Any, client: Any, worker: Any) -> None:
    name = opened(client, 1, b"0", b"1", b"2")
    waiting = plane.request("GET", f"/v1/maps/{name}").json()
    assert (waiting["id"], waiting["state"], waiting["taken"], waiting["name"]) == (name, "queued", 3, "square")
    runner = Runner(worker)
    runner.run(3)
    ended(client)
    shown = plane.request("GET", f"/v1/maps/{name}").json()
    assert (shown["state"], shown["done"], shown["total"]) == ("succeeded", 3, 3)
    answer = plane.request("GET", f"/v1/maps/{name}/results")
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert [each for run in runs_of.decode(answer.content) for each in run.data] == [b"00", b"11", b"22"]
    part = runs_of.decode(plane.request("GET", f"/v1/maps/{name}/results?after=1&limit=1").content)
    assert [(run.first, run.codes, run.data) for run in part] == [(1, bytes([OK]), (b"11",))]
    assert runs_of.decode(plane.request("GET", f"/v1/maps/{name}/results?after=3").content) == []


def test_the_maps_of_a_job_are_listed_newest_first(plane: Any, worker: Any, client: Any) -> None:
    names = [opened(client, n, b"x") for n in (1, 2, 3)]
    job = names[0].partition(".")[0]
    listed = plane.request("GET", f"/v1/maps?job={job}").json()
    assert [each["id"] for each in listed] == names[::-1]
    older = plane.request("GET", f"/v1/maps?job={job}&limit=1&before=3").json()
    assert [each["id"] for each in older] == [names[1]]


def test_a_map_is_cancelled(plane: Any, worker: Any, client: Any) -> None:
    name = opened(client, 1, b"x")
    assert plane.request("POST", f"/v1/maps/{name}/cancel").json()["state"] == "cancelled"
    plane.do(plane.service.shell.plane.calls.ended.clear)
    assert plane.request("POST", f"/v1/maps/{name}/cancel").json()["state"] == "cancelled"  # once more changes nothing
    assert plane.request("GET", f"/v1/maps/{name}").json()["state"] == "cancelled"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/maps", 400, "bad_request"),
        ("GET", "/v1/maps?job=nnnn", 404, "no_such_job"),
        ("GET", "/v1/maps?job=nnnn&limit=x", 400, "bad_request"),
        ("GET", "/v1/maps/nnnn.1", 404, "no_such_map"),
        ("GET", "/v1/maps/nnnn", 404, "no_such_path"),
        ("POST", "/v1/maps/nnnn.1/cancel", 404, "no_such_map"),
        ("GET", "/v1/maps/nnnn.1/results", 404, "no_such_map"),
        ("GET", "/v1/maps/nnnn.1/results?after=-1", 400, "bad_request"),
    ],
)
def test_what_is_not_there_is_a_problem(plane: Any, method: str, path: str, status: int, code: str) -> None:
    answer = plane.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_who_only_looks_changes_nothing() -> None:
    looking = ("/v1/maps", "/v1/maps/k3f9.1", "/v1/maps/k3f9.1/results")
    assert all("reader" in roles("GET", path) for path in looking)
    assert roles("POST", "/v1/maps/k3f9.1/cancel") == ["submitter", "admin"]


def test_what_calls_print_is_their_jobs_log_and_comes_as_its_events(plane: Any, client: Any, worker: Any) -> None:
    name = opened(client, 1, b"x", b"y")
    job = name.partition(".")[0]
    runner = Runner(worker)
    runner.print(name, 0, b"one\n")
    runner.print(name, 0, b"item", Kind.CALL_ITEM)
    runner.print(name, 1, b"two\n", Kind.CALL_STDERR)
    runner.run(2)
    ended(client)
    assert plane.request("GET", f"/v1/jobs/{job}/logs").text == "one\ntwo\n"
    assert plane.request("GET", f"/v1/jobs/{job}/logs?stream=stderr").text == "two\n"
    with plane.socket(f"/v1/jobs/{job}/events") as socket:
        found = events(socket, 3)
    assert [(each["msg_type"], each["content"]) for each in found] == [
        ("stream", {"name": "stdout", "text": "one\n"}),
        ("call_item", {"map": name, "index": 0, "number": 0, "size_bytes": 4}),
        ("stream", {"name": "stderr", "text": "two\n"}),
    ]


def events(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        message = msgspec.json.decode(socket.recv(timeout=30))
        found += message.get("events", [])
    return found


def test_a_job_of_calls_shows_how_many_it_had(plane: Any, client: Any, worker: Any) -> None:
    name = opened(client, 1, b"x", b"y")
    job = name.partition(".")[0]
    Runner(worker).run(2)
    ended(client)
    view = plane.request("GET", f"/v1/jobs/{job}").json()
    assert (view["kind"], view["name"], view["calls"]["calls"], view["calls"]["done"]) == ("calls", "square", 2, 2)
    stored = plane.do(lambda: plane.service.shell.stored_view(job))
    assert (stored.kind, stored.calls.maps, stored.calls.calls, stored.calls.done) == ("calls", 1, 2, 2)
