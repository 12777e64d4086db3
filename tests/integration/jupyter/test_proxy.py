"""What goes through Jupyter's port to the control plane: requests, large bodies, websockets."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from gpulayer._version import __version__
from gpulayer.protocol.messages import ClientHello, ClientWelcome, encode, to_client
from gpulayer.protocol.types import PROTOCOL_VERSION
from gpulayer.source import iter_pack, read_pack
from tests.integration.jupyter.server import JupyterServer
from tests.support.processes import PATIENCE_S, until

_MB = 1 << 20
_PRINTS = "%%gpulayer --detach\nfor n in range({lines}):\n    print(f'{{n:08}}' + 'x' * 91)"


@pytest.fixture(scope="session")
def printed(server: JupyterServer) -> str:
    """A job that has printed 20 MB."""
    notebook = server.deployment.notebook()
    notebook.run(_PRINTS.format(lines=200_000))
    job = server.request("GET", "v1/jobs").json()[0]
    until(
        lambda: server.request("GET", f"v1/jobs/{job['id']}").json()["state"] == "succeeded",
        lambda: f"the job's end: {server.request('GET', 'v1/jobs').json()}",
    )
    notebook.close()
    return job["id"]


def peak_bytes(pid: int) -> int:
    """The largest memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def hello() -> bytes:
    return encode([ClientHello(protocol=PROTOCOL_VERSION, version=__version__)])


# -------------------------------------------------------------------- requests


def test_answers_come_as_the_control_plane_gives_them(server: JupyterServer) -> None:
    health = server.request("GET", "v1/health")
    assert (health.status_code, health.json()["version"]) == (200, __version__)
    assert health.headers["Content-Type"] == "application/json"
    unknown = server.request("GET", "v1/jobs/j-none")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "no_such_job")
    assert unknown.headers["Content-Type"] == "application/problem+json"
    wrong = server.request("POST", "v1/jobs", content=b"{}")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_request")
    assert server.request("GET", "v1/none").json()["code"] == "no_such_path"


def test_a_name_that_needs_escapes_arrives_as_it_was(server: JupyterServer) -> None:
    answer = server.request("DELETE", "v1/sessions/a%2Fb%20c%C3%A9")
    assert answer.status_code == 404
    assert "a/b cé" in answer.text


def test_the_query_goes_on_without_the_token_of_jupyter(server: JupyterServer) -> None:
    wrong = server.request("GET", "v1/jobs?limit=many&token=of-jupyter", token=None)
    assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_request")
    assert "'many'" in wrong.text


@pytest.mark.parametrize("path", ["v1/jobs/..%2f..%2fhealth", "v1/%2e%2e/x", "v1/jobs/%252e%252e/x"])
def test_a_path_does_not_climb(server: JupyterServer, path: str) -> None:
    assert server.request("GET", path).status_code in (400, 404)


def test_what_a_blob_holds_is_shown_by_no_browser_as_a_page(server: JupyterServer) -> None:
    answer = server.request("GET", "v1/health")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" in answer.headers
    assert "Bearer" not in str(answer.headers)


def test_large_bodies_pass_and_are_never_held(server: JupyterServer) -> None:
    """96 MB there and back."""
    blob = os.urandom(_MB) * 96
    digest = hashlib.sha256(blob).hexdigest()
    before = peak_bytes(server.pid)
    pack = iter_pack([(digest, io.BytesIO(blob))])
    sent = server.request("POST", "v1/blobs", content=pack)  # of an unknown length: in chunks
    assert (sent.status_code, sent.json()) == (200, {"stored": 1})
    again = server.request("POST", "v1/blobs", content=b"".join(iter_pack([(digest, io.BytesIO(blob))])))
    assert again.status_code == 200  # of a known length
    back = server.request("GET", f"v1/blobs/{digest}")
    assert hashlib.sha256(back.content).hexdigest() == digest
    packed = server.request("POST", "v1/blobs/fetch", content=json.dumps([digest]))
    unpacked = read_pack(io.BytesIO(packed.content), max_bytes=1 << 30)
    assert [(name, hashlib.sha256(b"".join(chunks)).hexdigest()) for name, _, chunks in unpacked] == [(digest, digest)]
    assert peak_bytes(server.pid) - before < 48 * _MB


def test_a_refusal_of_a_large_body_is_read(server: JupyterServer) -> None:
    refused = server.request("POST", "v1/blobs", content=b"nonsense" * _MB)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_source")
    nowhere = server.request("POST", "v1/none", content=b"x" * (4 * _MB))
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "no_such_path")


def test_a_body_that_breaks_off_leaves_nothing_behind(server: JupyterServer) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"x" * 1000
        raise InterruptedError

    with pytest.raises(InterruptedError):
        server.request("POST", "v1/blobs", content=breaks())
    assert server.request("GET", "v1/health").status_code == 200


# -------------------------------------------------------------------- websockets


def test_a_websocket_carries_both_ways(server: JupyterServer) -> None:
    with server.websocket("v1/client") as opened:
        opened.send(hello())
        data = opened.recv(PATIENCE_S)
        assert isinstance(data, bytes)
        (welcome,) = to_client(data)
        assert isinstance(welcome, ClientWelcome)
        opened.ping().wait(PATIENCE_S)  # answered by the control plane itself


def test_a_page_authenticates_a_websocket_by_its_address(server: JupyterServer) -> None:
    with server.websocket("v1/watch?token=of-jupyter", headers={}) as opened:
        fleet = json.loads(opened.recv(PATIENCE_S))
    assert fleet["type"] == "fleet"
    assert "here" in [worker["name"] for worker in fleet["workers"]]


def test_closing_codes_pass(server: JupyterServer) -> None:
    with server.websocket("v1/jobs/j-none/stream") as opened, pytest.raises(ConnectionClosed) as closed:
        opened.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4404, "no such job")
    with server.websocket("v1/client") as opened:
        opened.send(b"\xff")
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1002


def test_a_refusal_before_the_upgrade_is_the_control_planes(server: JupyterServer) -> None:
    status, body = refusal(server, "v1/none")
    assert (status, json.loads(body)["code"]) == (404, "no_such_path")


def test_without_an_upgrade_a_websockets_route_says_what_it_is(server: JupyterServer) -> None:
    assert server.request("GET", "v1/client").status_code == 400


def refusal(server: JupyterServer, path: str, **more: Any) -> tuple[int, bytes]:
    """The answer of a handshake that is refused."""
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as refused, server.websocket(path, **more):
        pass
    return refused.value.response.status_code, bytes(refused.value.response.body or b"")


def test_a_slow_reader_is_waited_for_and_loses_nothing(server: JupyterServer, printed: str) -> None:
    before = peak_bytes(server.pid)
    with server.websocket(f"v1/jobs/{printed}/stream") as opened:
        # while nothing is read here others are served, and no more is kept for this one
        assert server.request("GET", "v1/health").status_code == 200
        with server.websocket(f"v1/jobs/{printed}/stream") as other:
            size = sum(len(data) for data in other if isinstance(data, bytes))
        assert peak_bytes(server.pid) - before < 16 * _MB
        assert sum(len(data) for data in opened if isinstance(data, bytes)) == size
    assert size > 20_000_000


def test_a_client_that_goes_leaves_no_connection_behind(server: JupyterServer) -> None:
    def tunnels() -> int:
        """Connections to the control plane, which lives in the same process."""
        port = server.deployment.plane.endpoint.url.rpartition(":")[2]
        ours = f":{int(port):04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[3] == "01" and row[2].endswith(ours) for row in rows)

    at_rest = 1  # the worker's
    until(lambda: tunnels() == at_rest, lambda: f"the worker's connection only, not {tunnels()}")
    with contextlib.ExitStack() as politely:
        for _ in range(2):
            politely.enter_context(server.websocket("v1/client"))
        with contextlib.ExitStack() as rudely:
            for _ in range(3):
                rudely.enter_context(server.websocket("v1/client")).socket.shutdown(socket.SHUT_RDWR)
        until(lambda: tunnels() == at_rest + 2, lambda: f"2 more than {at_rest}, not {tunnels()}")
    until(lambda: tunnels() == at_rest, lambda: f"{at_rest}, not {tunnels()}")
    assert server.request("GET", "v1/health").status_code == 200
