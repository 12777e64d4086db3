"""Where the control plane is: what the server says of it, what goes through while it moves, fails or is elsewhere."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from gpulayer._version import __version__
from gpulayer.protocol.endpoint import Endpoint, write_private
from gpulayer.protocol.messages import ClientHello, ClientWelcome, encode, to_client
from gpulayer.protocol.types import PROTOCOL_VERSION
from tests.integration.jupyter.server import JupyterServer, Servers
from tests.support.processes import PATIENCE_S, until

BLOCKER = '''\
"""An extension whose handler holds Jupyter's loop until a file is there."""

import ctypes, os, time
from jupyter_server.base.handlers import JupyterHandler
from tornado import web


class Hold(JupyterHandler):
    @web.authenticated
    def get(self):
        open(os.environ["HELD"], "w").close()
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
        self.finish("held")


class Grip(JupyterHandler):
    """Holds the whole interpreter for a second, as a C extension can."""

    @web.authenticated
    def get(self):
        ctypes.PyDLL(None).sleep(1)
        self.finish("gripped")


def _jupyter_server_extension_points():
    return [{"module": "blocker"}]


def _load_jupyter_server_extension(app):
    app.web_app.add_handlers(".*$", [("/hold", Hold), ("/grip", Grip)])
'''


def greet(socket: object) -> ClientWelcome:
    """A message to the control plane, and its answer."""
    socket.send(encode([ClientHello(protocol=PROTOCOL_VERSION, version=__version__)]))  # type: ignore[attr-defined]
    (welcome,) = to_client(socket.recv(PATIENCE_S))  # type: ignore[attr-defined]
    assert isinstance(welcome, ClientWelcome)
    return welcome


def works(server: JupyterServer) -> None:
    """Jupyter's own server is well."""
    assert server.request("GET", "../api/status").status_code == 200


# -------------------------------------------------------------------- another extension holds Jupyter's loop


def test_messages_pass_while_jupyters_loop_is_held(servers: Servers) -> None:
    """Ours live on another thread, once they are open. Requests wait, as everything of Jupyter's does."""
    folder = servers.deployment.folder
    (folder / "blocker.py").write_text(BLOCKER)
    environment = {"PYTHONPATH": str(folder), "HELD": str(folder / "held"), "GO": str(folder / "go")}
    server = servers.start("--GpulayerApp.local_worker=False", env=environment, extensions=("blocker",))
    server.until_state("holds")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(server.request("GET", "../hold").text))
    with server.websocket("v1/client") as opened, server.websocket("v1/watch") as watching:
        greet(opened)
        assert json.loads(watching.recv(PATIENCE_S))["type"] == "fleet"
        asking.start()
        try:
            until((folder / "held").exists, "Jupyter's loop to be held")
            assert greet(opened).epoch == 1
            servers.deployment.worker("late", warm=0)
            changes = json.loads(watching.recv(PATIENCE_S))
            assert [worker["name"] for worker in changes["workers"]] == ["late"]
            assert not answers
        finally:
            (folder / "go").touch()
            asking.join(PATIENCE_S)
    assert answers == ["held"]


def test_what_holds_the_interpreter_delays_us_and_loses_nothing(servers: Servers) -> None:
    folder = servers.deployment.folder
    (folder / "blocker.py").write_text(BLOCKER)
    server = servers.start(env={"PYTHONPATH": str(folder)}, extensions=("blocker",))
    server.until_state("holds")
    server.until_worker()
    code = "%%gpulayer\nimport os, time\nn = 0\nwhile not os.path.exists({go!r}):\n    print(n)\n    n += 1\n"
    cell = servers.deployment.notebook().start(code.format(go=str(folder / "go")) + "    time.sleep(0.005)")
    cell.until_text("1\n")
    for _ in range(3):
        assert server.request("GET", "../grip").text == "gripped"
    (folder / "go").touch()
    lines = cell.wait().text().split()
    assert lines == [str(n) for n in range(len(lines))]
    assert len(lines) > 100


# -------------------------------------------------------------------- it can't be had


def test_a_folder_that_cannot_be_used_is_one_line_and_no_end_of_jupyter(servers: Servers) -> None:
    data = servers.deployment.data
    data.write_text("in the way")
    server = servers.start()
    status = server.until_state("failed")
    assert status["text"].startswith(f"the control plane can't run: {data} can't be the data folder: ")
    refused = server.request("GET", "v1/workers")
    assert (refused.status_code, refused.json()["code"]) == (503, "control_plane_away")
    assert refused.json()["detail"] == status["text"]
    with pytest.raises(InvalidStatus) as handshake, server.websocket("v1/client"):
        pass
    assert handshake.value.response.status_code == 503
    uploaded = server.request("POST", "v1/blobs", content=b"x" * 1_000_000)
    assert uploaded.status_code == 503
    works(server)
    assert server.log.count("the control plane can't run") == 1
    assert "Traceback" not in server.log
    data.unlink()  # mended: no restart is needed
    server.until_state("holds")
    server.until_worker()


def test_a_damaged_store_is_one_line(servers: Servers) -> None:
    data = servers.deployment.data
    data.mkdir(mode=0o700)
    (data / "store.db").write_bytes(b"this is no database" * 1000)
    server = servers.start()
    assert "store.db" in server.until_state("failed")["text"]
    works(server)
    assert "Traceback" not in server.log
    assert server.end() == 0


# -------------------------------------------------------------------- it moves


def test_the_control_plane_is_found_again_wherever_it_is_next(servers: Servers) -> None:
    deployment = servers.deployment
    deployment.plane.start()
    server = servers.start()
    server.until_state("attached")
    first = deployment.plane.endpoint
    assert server.request("GET", "v1/health").json()["epoch"] == 1
    with server.websocket("v1/client") as opened:
        greet(opened)
        deployment.plane.kill()
        server.until_state("holds")
    assert deployment.plane.endpoint.token != first.token
    assert server.request("GET", "v1/health").json()["epoch"] == 2
    with server.websocket("v1/client") as opened:
        assert greet(opened).epoch == 2


def test_a_token_that_is_refused_is_no_logout(servers: Servers) -> None:
    """Another control plane listens where the folder says; the page would take a 401 for Jupyter's own."""
    deployment = servers.deployment
    deployment.plane.start()
    server = servers.start()
    server.until_state("attached")
    right = deployment.plane.endpoint
    wrong = Endpoint(url=right.url, token="wrong", pid=right.pid, version=right.version)
    write_private(deployment.data / "endpoint.json", json.dumps({"url": wrong.url, "token": "wrong", "pid": wrong.pid,
                                                                 "version": wrong.version}).encode())  # fmt: skip
    refused = server.request("GET", "v1/workers")
    assert (refused.status_code, refused.json()["code"]) == (502, "token_refused")
    with pytest.raises(InvalidStatus) as handshake, server.websocket("v1/client"):
        pass
    assert handshake.value.response.status_code == 502


def test_requests_wait_for_one_that_is_just_taking_over(servers: Servers) -> None:
    """Nobody listens for a moment, and the folder names one that has ended: the request is asked again."""
    server = servers.start()
    server.until_state("holds")
    deployment = servers.deployment
    server.end(signal.SIGKILL)
    server = servers.start("--GpulayerApp.local_worker=False")
    assert server.request("GET", "v1/health").status_code == 200  # at once: it may still be starting
    assert deployment.plane.pid == server.pid


# -------------------------------------------------------------------- it is elsewhere


def remote(servers: Servers, token: str | None) -> tuple[JupyterServer, Path]:
    """A server that uses a control plane by its address; nothing of ours listens where it would hold one."""
    deployment = servers.deployment
    deployment.plane.start()
    deployment.worker("alpha", warm=0)
    file = deployment.folder / "token"
    if token is not None:
        file.write_text(f"{token or deployment.plane.endpoint.token}\n")
    arguments = [f"--GpulayerApp.url={deployment.plane.endpoint.url}/", f"--GpulayerApp.token_file={file}"]
    return servers.start(*arguments, f"--GpulayerApp.data={deployment.folder / 'none'}"), file


def test_a_remote_control_plane_is_shown_and_none_is_held(servers: Servers) -> None:
    server, _ = remote(servers, "")
    url = servers.deployment.plane.endpoint.url
    status = server.status()
    assert (status["state"], status["url"]) == ("remote", url)
    assert status["text"] == f"uses the control plane at {url}"
    assert server.workers() == {"alpha": True}
    with server.websocket("v1/client") as opened:
        assert greet(opened).epoch == 1
    assert not (servers.deployment.folder / "none").exists()
    assert server.end() == 0
    assert servers.deployment.connected("alpha")


def test_a_remote_one_without_its_token(servers: Servers) -> None:
    server, file = remote(servers, None)
    status = server.status()
    assert status["state"] == "failed"
    assert f"{file}: No such file or directory" in status["text"]
    assert server.request("GET", "v1/workers").json()["detail"] == status["text"]
    file.write_text("wrong")
    assert server.request("GET", "v1/workers").json()["code"] == "token_refused"
    file.write_text(servers.deployment.plane.endpoint.token)  # read anew each time
    assert server.workers() == {"alpha": True}


def test_a_remote_one_that_is_away(servers: Servers) -> None:
    server, _ = remote(servers, "")
    servers.deployment.plane.kill()
    away = server.request("GET", "v1/workers")
    assert (away.status_code, away.json()["code"]) == (503, "control_plane_away")
    assert servers.deployment.plane.endpoint.url in away.json()["detail"]
    os.kill(server.pid, 0)  # and Jupyter lives
    works(server)
