"""`gpulayer-worker join`: what is looked at before anything is made."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from gpulayer.protocol.endpoint import Endpoint
from gpulayer_worker import __main__ as command
from gpulayer_worker.__main__ import main

WORKERS = [{"id": "w1", "name": "alpha", "connected": True}, {"id": "w2", "name": "beta", "connected": False}]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Path]:
    """A data folder whose control plane knows two workers, and takes the token 't'."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == "Bearer t"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(WORKERS).encode() if known else b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    publish(tmp_path / "plane", server.server_port)
    yield tmp_path / "plane"
    server.shutdown()
    thread.join()
    server.server_close()


def publish(folder: Path, port: int, token: str = "t") -> None:
    endpoint = Endpoint(url=f"http://127.0.0.1:{port}", token=token, pid=1, version="0")
    folder.mkdir(exist_ok=True)
    (folder / "endpoint.json").write_bytes(msgspec.json.encode(endpoint))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The keepers that would have been started."""
    found: list[list[str]] = []

    def execv(_: str, argv: list[str]) -> int:
        found.append(argv)
        return 0

    monkeypatch.setattr(command.os, "execv", execv)
    monkeypatch.setattr(command, "_GONE_S", 0.0)
    return found


def join(plane: Path, data: Path, *more: str) -> int:
    return main(["join", "--control-plane", str(plane), "--data", str(data), *more])


def test_it_becomes_the_keeper(tmp_path: Path, plane: Path, started: list[list[str]]) -> None:
    assert join(plane, tmp_path / "w", "--name", "gamma") == 0
    assert started[0][1:5] == ["-m", "gpulayer_worker.keeper", "--data", str(tmp_path / "w")]


def test_a_control_plane_that_does_not_answer_is_waited_for(tmp_path: Path, started: list[list[str]]) -> None:
    publish(tmp_path / "plane", 1)
    assert join(tmp_path / "plane", tmp_path / "w") == 0
    assert len(started) == 1


def test_a_wrong_token(
    tmp_path: Path, plane: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    port = int(msgspec.json.decode((plane / "endpoint.json").read_bytes())["url"].rsplit(":", 1)[1])
    publish(plane, port, token="w")
    assert join(plane, tmp_path / "w") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"refuses the token of {plane}/endpoint.json" in line
    assert not started


@pytest.mark.parametrize(("id", "refused"), [("w1", True), ("w2", False), ("w3", False)])
def test_an_id_that_is_connected_already(
    tmp_path: Path, plane: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str], id: str, refused: bool
) -> None:
    data = tmp_path / "w"
    data.mkdir()
    (data / "worker.json").write_text(json.dumps({"id": id}))
    (data / "keeper.lock").touch()
    assert join(plane, data) == (2 if refused else 0)
    assert len(started) == (0 if refused else 1)
    assert (f"worker alpha is connected already, from another folder with the id of {data}/worker.json"
            in capsys.readouterr().err) is refused  # fmt: skip


def test_a_folder_with_a_keeper_is_the_keepers_to_refuse(tmp_path: Path, plane: Path, started: list[list[str]]) -> None:
    data = tmp_path / "w"
    data.mkdir()
    (data / "worker.json").write_text(json.dumps({"id": "w1"}))
    with (data / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert join(plane, data) == 0
    assert len(started) == 1


def test_a_folder_on_a_network_file_system(
    tmp_path: Path,
    plane: Path,
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "network_filesystem", lambda _: "nfs4")
    assert join(plane, tmp_path / "w") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/w lies on a network file system (nfs4)" in line
    assert "give --data a folder on a local disk" in line
    assert not started
