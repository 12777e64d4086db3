"""The control plane's API, and what strangers and strays on its sockets can't do."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gpulayer.protocol.messages import (
    ClientHello,
    Heartbeat,
    Hello,
    Order,
    Refuse,
    Refused,
    Welcome,
    encode,
    to_client,
    to_worker,
)
from gpulayer.protocol.records import Kind, decode_json, decode_kernel
from gpulayer.protocol.types import PROTOCOL_VERSION, Inventory, State
from gpulayer_server.http.routes import ROUTES as TABLE
from tests.support.deployment import Deployment
from tests.support.processes import until

OPERATIONS = [(route, operation) for route in TABLE for operation in route.operations]
ROUTES = [(each.method, route.sample) for route, each in OPERATIONS if each.status != 101 and each.method != "HEAD"]
HEADS = [route.sample for route, each in OPERATIONS if each.method == "HEAD"]
SOCKETS = [route.sample for route, each in OPERATIONS if each.status == 101]


def submit(deployment: Deployment, key: str, code: str, **more: Any) -> dict[str, Any]:
    """A job by HTTP, with its view."""
    answer = deployment.request("POST", "/v1/jobs", json={"key": key, "spec": {"cell": {"code": code}, **more}})
    assert answer.status_code == 201, answer.text
    return answer.json()


def ended(deployment: Deployment, job: str) -> dict[str, Any]:
    """The job's view once it is terminal."""
    until(lambda: deployment.api.job(job).terminal, f"the end of {job}")
    return deployment.request("GET", f"/v1/jobs/{job}").json()


def socket(deployment: Deployment, path: str, token: str | None = None) -> ClientConnection:
    """A websocket to the control plane."""
    endpoint = deployment.plane.endpoint
    headers = {"Authorization": f"Bearer {endpoint.token if token is None else token}"}
    return connect(endpoint.url.replace("http", "ws", 1) + path, additional_headers=headers, proxy=None)


def records(deployment: Deployment, job: str, after: int) -> list[bytes]:
    """What the stream's socket sends before it closes."""
    with socket(deployment, f"/v1/jobs/{job}/stream?after={after}") as stream:
        return [message if isinstance(message, bytes) else message.encode() for message in stream]


def described(payload: bytes) -> str:
    """A record in a word."""
    kind, body = Kind(payload[0]), payload[1:]
    if kind is Kind.KERNEL:
        header, _, _, content = decode_kernel(body)[:4]
        message = decode_json(header)["msg_type"]
        return decode_json(content)["text"] if message == "stream" else message
    return kind.name


# ---------------------------------------------------------------- who may ask


@pytest.mark.parametrize("token", ["", "wrong", "é"], ids=["none", "wrong", "not ASCII"])
@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[f"{method} {path[:20]}" for method, path in ROUTES])
def test_nothing_is_answered_without_the_token(deployment: Deployment, method: str, path: str, token: str) -> None:
    answer = deployment.request(method, path, token=token, content=b"{}")
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthorized"
    assert "endpoint.json" in answer.json()["detail"]
    assert deployment.plane.endpoint.token not in answer.text


@pytest.mark.parametrize("path", SOCKETS)
def test_no_socket_opens_without_the_token(deployment: Deployment, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        socket(deployment, path, "wrong")
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize("path", HEADS)
def test_nothing_is_told_of_what_is_there_without_the_token(deployment: Deployment, path: str) -> None:
    answer = deployment.request("HEAD", path, token="wrong")
    assert (answer.status_code, answer.content) == (401, b"")
    assert "Upload-Offset" not in answer.headers


def test_the_endpoint_file_and_the_data_are_the_owners_alone(deployment: Deployment) -> None:
    modes = {path.name: path.stat().st_mode & 0o077 for path in deployment.data.iterdir()}
    assert {name for name, mode in modes.items() if mode and name != "logs"} == set()


# ---------------------------------------------------------------- jobs


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"key": "k"}', "`spec`"),
        (b'{"key": 1, "spec": {"cell": {"code": "1"}}}', "$.key"),
        (b'{"key": "k", "spec": {"cell": {"code": 1}}}', "$.spec.cell.code"),
        (b'{"key": "k", "spec": {"cell": {"code": "1"}, "timeout_s": "x"}}', "$.spec.timeout_s"),
    ],
)
def test_a_wrong_body_is_a_problem_that_names_the_field(deployment: Deployment, body: bytes, field: str) -> None:
    answer = deployment.request("POST", "/v1/jobs", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert field in answer.json()["detail"]


def test_a_job_of_nothing_is_refused(deployment: Deployment) -> None:
    answer = deployment.request("POST", "/v1/jobs", json={"key": "k", "spec": {}})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_job")
    assert "cell" in answer.json()["title"]


@pytest.mark.parametrize("query", ["limit=many", "limit=", "limit=1.5"])
def test_a_wrong_limit_is_the_askers_fault(deployment: Deployment, query: str) -> None:
    answer = deployment.request("GET", f"/v1/jobs?{query}")
    assert answer.status_code == 400
    assert "limit must be a whole number" in answer.json()["title"]


@pytest.mark.parametrize("path", ["/v1/jobs/zzzz", "/v1/nothing", "/v1/blobs/" + "0" * 64])
def test_what_is_not_there_is_a_problem_404(deployment: Deployment, path: str) -> None:
    answer = deployment.request("GET", path)
    assert answer.status_code == 404
    assert answer.json()["title"]


def test_a_job_by_http(deployment: Deployment) -> None:
    job = submit(deployment, "by-http", "print('hi')", name="by hand")
    view = ended(deployment, job["id"])
    assert (view["state"], view["name"], view["worker"]) == ("succeeded", "by hand", "alpha")
    assert view["submitted_at"] <= view["started_at"] <= view["ended_at"]
    assert [each["id"] for each in deployment.request("GET", "/v1/jobs?limit=1").json()] == [job["id"]]


def test_the_same_key_and_payload_is_the_same_job_and_another_payload_a_conflict(deployment: Deployment) -> None:
    job = submit(deployment, "key-1", "1")
    assert submit(deployment, "key-1", "1")["id"] == job["id"]
    ended(deployment, job["id"])
    assert submit(deployment, "key-1", "1")["id"] == job["id"]  # of the past too
    answer = deployment.request("POST", "/v1/jobs", json={"key": "key-1", "spec": {"cell": {"code": "2"}}})
    assert (answer.status_code, answer.json()["code"]) == (409, "key_conflict")
    assert job["id"] in answer.json()["detail"]


def test_an_unknown_bundle_is_asked_for_first(deployment: Deployment) -> None:
    spec = {"cell": {"code": "1", "bundle": "ab" * 32}}
    answer = deployment.request("POST", "/v1/jobs", json={"key": "bundle", "spec": spec})
    assert (answer.status_code, answer.json()["code"]) == (409, "bundle_unknown")


@pytest.mark.parametrize("bundle", ["../../etc/passwd", "x", "AB" * 32])
def test_what_is_no_digest_is_the_askers_fault(deployment: Deployment, bundle: str) -> None:
    spec = {"cell": {"code": "1", "bundle": bundle}}
    answer = deployment.request("POST", "/v1/jobs", json={"key": f"bundle {bundle}", "spec": spec})
    assert answer.status_code == 400
    assert "digest" in answer.json()["detail"]


def test_cancel(deployment: Deployment) -> None:
    job = submit(deployment, "cancel", "import time\ntime.sleep(600)")
    until(lambda: deployment.api.job(job["id"]).state is State.RUNNING, "its begin")
    answer = deployment.request("POST", f"/v1/jobs/{job['id']}/cancel")
    assert answer.json()["cancelling"]
    assert ended(deployment, job["id"])["state"] == "cancelled"
    again = deployment.request("POST", f"/v1/jobs/{job['id']}/cancel")
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")
    unknown = deployment.request("POST", "/v1/jobs/zzzz/cancel")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "no_such_job")


# ---------------------------------------------------------------- streams


def test_the_stream_gives_each_record_once_from_where_it_is_asked(deployment: Deployment) -> None:
    code = "from IPython.display import display\nfor n in range(3):\n    print(n)\n    display(n)"
    job = submit(deployment, "stream", code)
    followed = records(deployment, job["id"], -1)  # while it runs
    ended(deployment, job["id"])
    whole = records(deployment, job["id"], -1)
    assert followed == whole
    words = [described(payload) for payload in whole]
    assert words[0] == "status"
    assert words[-2:] == ["REPLY", "status"]
    assert [word for word in words if word in ("0\n", "1\n", "2\n", "display_data")] == [
        word for n in range(3) for word in (f"{n}\n", "display_data")
    ]
    for after in range(len(whole)):
        assert records(deployment, job["id"], after) == whole[after + 1 :]
    assert records(deployment, job["id"], len(whole) + 5) == []


def test_a_stream_from_no_number_is_refused(deployment: Deployment) -> None:
    job = submit(deployment, "stream-number", "1")
    with (
        pytest.raises((InvalidStatus, ConnectionClosed)),
        socket(deployment, f"/v1/jobs/{job['id']}/stream?after=x") as stream,
    ):
        stream.recv(timeout=30)
    ended(deployment, job["id"])


# ---------------------------------------------------------------- strangers on the sockets


def hello(protocol: int = PROTOCOL_VERSION) -> Hello:
    """The hello of a worker that nobody knows."""
    inventory = Inventory(host="h", os="linux", arch="x", cpu_cores=1, ram_bytes=1, python="3")
    return Hello(
        protocol=protocol, worker_id="stranger", nonce="n", name="stranger", version="9", slots=1, inventory=inventory
    )


def numbered(frame: bytes, number: int = 1) -> bytes:
    """A frame with its number."""
    return number.to_bytes(4, "little") + frame


GARBAGE = {
    "not msgpack": numbered(b"\xc1\xff\x00garbage"),
    "no list": numbered(b"\x01"),
    "an unknown message": numbered(encode([]) and b"\x91\x81\xa4type\xa4evil"),
    "too short for a number": b"\x01",
    "empty": b"",
    "a number that jumps": numbered(encode([Heartbeat()]), 7),
    "a client's message": numbered(encode([ClientHello(protocol=1, version="1")])),
}


@pytest.mark.parametrize("frame", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("greets", [False, True], ids=["at first", "after the hello"])
def test_garbage_on_the_workers_socket_closes_it_and_hurts_nobody(
    deployment: Deployment, frame: bytes, greets: bool
) -> None:
    with socket(deployment, "/v1/worker") as stray:
        if greets:
            stray.send(Order().number([hello()]))
            first = to_worker(Order().accept(_bytes(stray.recv(timeout=30))) or b"")
            assert isinstance(first[0], Welcome)
            frame = frame.replace(b"\x01\0\0\0", b"\x02\0\0\0", 1)
        stray.send(frame)
        assert closed_with(stray) == 1002
    until(lambda: not deployment.connected("stranger"), "the stranger's end")
    view = ended(deployment, submit(deployment, f"after garbage {frame!r} {greets}", "1")["id"])
    assert view["state"] == "succeeded"


@pytest.mark.parametrize(
    ("protocol", "older"), [(PROTOCOL_VERSION - 1, "the worker"), (PROTOCOL_VERSION + 1, "the control plane")]
)
def test_a_worker_of_another_protocol_is_told_which_side_to_upgrade(
    deployment: Deployment, protocol: int, older: str
) -> None:
    with socket(deployment, "/v1/worker") as stray:
        stray.send(Order().number([hello(protocol)]))
        [refusal] = to_worker(Order().accept(_bytes(stray.recv(timeout=30))) or b"")
    assert isinstance(refusal, Refuse)
    assert not refusal.retry
    assert refusal.text.endswith(f"upgrade {older}")


@pytest.mark.parametrize(
    ("protocol", "older"), [(PROTOCOL_VERSION - 1, "the client"), (PROTOCOL_VERSION + 1, "the control plane")]
)
def test_a_client_of_another_protocol_is_told_which_side_to_upgrade(
    deployment: Deployment, protocol: int, older: str
) -> None:
    with socket(deployment, "/v1/client") as stray:
        stray.send(encode([ClientHello(protocol=protocol, version="0")]))
        [refusal] = to_client(_bytes(stray.recv(timeout=30)))
    assert isinstance(refusal, Refused)
    assert (refusal.problem.status, refusal.problem.detail.rpartition(": ")[2]) == (426, f"upgrade {older}")


def test_garbage_on_the_clients_socket_closes_it(deployment: Deployment) -> None:
    with socket(deployment, "/v1/client") as stray:
        stray.send(b"\xc1garbage")
        assert closed_with(stray) == 1002


def closed_with(stray: ClientConnection) -> int | None:
    """The code with which the other side closes, whatever it sends before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            stray.recv(timeout=30)
    return stray.protocol.close_code


def _bytes(message: str | bytes) -> bytes:
    assert isinstance(message, bytes)
    return message


# ---------------------------------------------------------------- folders that somebody holds


def ask(*command: str, env: dict[str, str]) -> tuple[int, list[str]]:
    """The exit code of a command of ours, and the lines on its standard error."""
    done = subprocess.run([sys.executable, "-m", *command], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr.strip().splitlines()


def test_a_second_control_plane_on_the_folder_is_refused_in_one_line(deployment: Deployment) -> None:
    code, lines = ask("gpulayer_server", "--data", str(deployment.data), env=deployment.env)
    assert (code, len(lines)) == (3, 1)
    assert f"held by another control plane (pid {deployment.plane.pid})" in lines[0]
    assert "endpoint.json" in lines[0]


def test_a_second_worker_on_the_folder_is_refused_in_one_line(deployment: Deployment) -> None:
    worker = deployment.workers["alpha"]
    code, lines = ask(*worker.command[2:], env=deployment.env)
    assert (code, len(lines)) == (3, 1)
    assert str(worker.data) in lines[0]


def test_a_worker_without_a_control_plane_is_told_where_it_looked(deployment: Deployment) -> None:
    command = ["gpulayer_worker", "join", "--control-plane", str(deployment.folder / "nowhere")]
    code, lines = ask(*command, "--data", str(deployment.folder / "w"), env=deployment.env)
    assert (code, len(lines)) == (2, 1)
    assert f"{deployment.folder}/nowhere/endpoint.json is not there" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"), [(("--slots", "0"), "at least one"), (("http://127.0.0.1:1",), "endpoint.json is for")]
)
def test_wrong_arguments_of_a_worker(deployment: Deployment, arguments: tuple[str, ...], said: str) -> None:
    command = ["gpulayer_worker", "join", "--control-plane", str(deployment.data), *arguments]
    code, lines = ask(*command, "--data", str(deployment.folder / "w"), env=deployment.env)
    assert (code, len(lines)) == (2, 1)
    assert said in lines[0]
