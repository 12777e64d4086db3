"""Finding a control plane, or starting one."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from gpulayer import client
from gpulayer.client import embedded, remote
from gpulayer.client.embedded import find_or_start, listens
from gpulayer.client.errors import ControlPlaneError
from gpulayer.protocol.endpoint import Endpoint, read_endpoint
from tests.support.processes import until


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which somebody accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def ended_pid() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def publish(folder: Path, port: int, pid: int) -> Endpoint:
    endpoint = Endpoint(url=f"http://127.0.0.1:{port}", token="t", pid=pid, version="0")
    (folder / "endpoint.json").write_bytes(msgspec.json.encode(endpoint))
    return endpoint


def test_one_that_listens_is_taken(tmp_path: Path, port: int) -> None:
    endpoint = publish(tmp_path, port, os.getpid())
    assert find_or_start(tmp_path) == endpoint


def test_a_port_that_belongs_to_somebody_else_by_now_is_none(tmp_path: Path, port: int, ended_pid: int) -> None:
    assert not listens(publish(tmp_path, port, ended_pid))


def test_one_that_lives_and_does_not_listen_is_none(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not listens(publish(tmp_path, port, os.getpid()))
    assert not listens(None)


def test_none_is_started_where_that_is_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, ended_pid: int
) -> None:
    monkeypatch.setenv("GPULAYER_EMBEDDED", "0")
    with pytest.raises(ControlPlaneError, match=r"endpoint\.json is not there"):
        find_or_start(tmp_path)
    publish(tmp_path, port, ended_pid)
    with pytest.raises(OSError, match="does not answer, and GPULAYER_EMBEDDED=0"):  # it may come back
        find_or_start(tmp_path)


def test_one_that_can_not_start_says_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ControlPlaneError, match=r"the control plane did not start: .*not a database"):
        find_or_start(tmp_path)


def test_while_somebody_holds_the_folder_his_endpoint_is_waited_for(tmp_path: Path, port: int) -> None:
    """As when two notebooks run their first cells at once: one starts it, both use it."""
    found: list[Endpoint] = []
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.append(find_or_start(tmp_path)))
        thread.start()
        log = tmp_path / "logs" / "control-plane.log"
        until(lambda: log.exists() and "is held by another" in log.read_text(), "the second one to be refused")
        endpoint = publish(tmp_path, port, os.getpid())
        thread.join()
    assert found == [endpoint]


# ---------------------------------------------------------------- who answers there


@pytest.fixture
def answering() -> Iterator[HTTPServer]:
    """A server that takes the token 't' and no other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["Authorization"] == "Bearer t" else 401)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_one_that_does_not_take_the_token_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: HTTPServer
) -> None:
    monkeypatch.setenv("GPULAYER_EMBEDDED", "0")
    right = publish(tmp_path, answering.server_port, os.getpid())
    assert find_or_start(tmp_path) == right
    wrong = msgspec.structs.replace(right, token="w")
    (tmp_path / "endpoint.json").write_bytes(msgspec.json.encode(wrong))
    assert not listens(wrong)
    with pytest.raises(ControlPlaneError) as refused:
        find_or_start(tmp_path)
    assert f"{right.url} refuses the token of {tmp_path}/endpoint.json (HTTP 401)" in str(refused.value)
    assert "name its data folder with GPULAYER_DATA" in str(refused.value)


def test_nothing_is_made_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "network_filesystem", lambda _: "nfs4")
    with pytest.raises(ControlPlaneError, match=r"network file system \(nfs4\).*; set GPULAYER_DATA to a folder"):
        find_or_start(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_folder_that_can_not_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ControlPlaneError, match="can't be the data folder of a control plane: Not a directory"):
        find_or_start(tmp_path / "file" / "data")


# ---------------------------------------------------------------- one that is begun before it is asked for


@pytest.fixture
def spawned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders in which one was started: it writes its endpoint, and says so."""
    started: list[Path] = []
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("GPULAYER_EMBEDDED", raising=False)
    monkeypatch.setattr(client, "remote", remote)  # as it is again after the test, and not the one that is made anew
    monkeypatch.delitem(sys.modules, remote.__name__)
    (tmp_path / "data").mkdir()

    def spawn(folder: Path) -> subprocess.Popen[bytes]:
        started.append(folder)
        publish(folder, 1, os.getpid())
        return subprocess.Popen([sys.executable, "-c", "print('here')"], stdout=subprocess.PIPE)

    monkeypatch.setattr(embedded, "_spawned", spawn)
    yield started
    for process in embedded._begun.values():
        process.communicate()
    embedded._begun.clear()


def test_who_begins_one_finds_that_one(spawned: list[Path], tmp_path: Path) -> None:
    embedded.begin()
    embedded.begin()  # as another thread may
    assert spawned == [tmp_path / "data"]
    endpoint = read_endpoint(tmp_path / "data")
    process = next(iter(embedded._begun.values()))
    assert embedded._try_to_start(tmp_path / "data") == (0, endpoint)
    process.wait()
    assert (spawned, embedded._begun) == ([tmp_path / "data"], {})


def test_none_is_begun_where_one_lives_or_another_is_named(
    spawned: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setenv("GPULAYER_EMBEDDED", "0")
        embedded.begin()
    with monkeypatch.context() as context:
        context.setenv("GPULAYER_URL", "https://there.example:8443")
        embedded.begin()
    publish(tmp_path / "data", 1, os.getpid())
    embedded.begin()
    assert spawned == []


def test_what_goes_wrong_is_said_by_who_waits_for_it(
    spawned: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "file/data"))
    embedded.begin()
    assert spawned == []
    with pytest.raises(ControlPlaneError, match="can't be the data folder"):
        find_or_start()
