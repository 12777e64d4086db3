"""Machines elsewhere join through Jupyter's own port, whatever stands before it."""

from __future__ import annotations

import sys

import pytest

from tests.integration.jupyter.nginx import Nginx, nginx_is_missing
from tests.integration.jupyter.server import JupyterServer, Servers, cookies, handshake, logged_in, websocket
from tests.support.deployment import Deployment, Worker
from tests.support.processes import PATIENCE_S, until


def join_token(server: JupyterServer) -> str:
    """A join token, as the panel asks for one."""
    made = server.request("POST", "v1/tokens", json={"role": "join", "name": "for a test"})
    assert made.status_code == 201, made.text
    return made.json()["token"]


def join(deployment: Deployment, url: str, token: str, name: str) -> Worker:
    """A worker that knows nothing but a join line: it does not see the control plane's folder."""
    data = deployment.folder / f"w-{name}"
    command = [sys.executable, "-m", "gpulayer_worker", "join", url, "--token", token, "--data", str(data)]
    command += ["--name", name, "--slots", "1", "--warm", "0", "--reserve-bytes", "0"]
    environment = {name: value for name, value in deployment.env.items() if name != "GPULAYER_DATA"}
    worker = deployment.workers[name] = Worker(name, data, command, environment)
    worker.start()
    return worker


def runs(deployment: Deployment, name: str) -> None:
    """A cell runs there, with a file from beside the notebook, and what it makes comes back."""
    notebook = deployment.notebook({"beside.py": f"VALUE = {name!r}\n"})
    result = notebook.run(f"%%gpulayer --worker {name}\nimport beside\nprint(beside.VALUE)")
    assert result.text() == f"{name}\n"
    assert notebook.run(f"%%gpulayer --worker {name} --out made\nmade = [1, 2]").ok
    assert notebook.run("made").data("text/plain") == ["[1, 2]"]
    notebook.close()


def test_a_worker_joins_by_a_join_line_through_jupyters_port(server: JupyterServer) -> None:
    token = join_token(server)
    worker = join(server.deployment, server.url("gpulayer"), token, "far")
    until(lambda: server.workers().get("far"), lambda: f"the worker to join: {worker.log}\n{server.log}")
    runs(server.deployment, "far")
    assert token not in server.log
    worker.stop()
    del server.deployment.workers["far"]
    until(lambda: not server.workers()["far"], "the worker to be gone")


def test_a_wrong_token_does_not_join(server: JupyterServer) -> None:
    worker = join(server.deployment, server.url("gpulayer"), "gl-join-wrong", "stranger")
    assert worker.process is not None
    assert worker.process.wait(PATIENCE_S) != 0
    assert "stranger" not in server.workers()
    assert "does not know this token" in (worker.data / "join.log").read_text()


@pytest.mark.skipif(bool(nginx_is_missing()), reason=nginx_is_missing())
def test_behind_nginx(servers: Servers) -> None:
    """Under a path of its own, with the settings that the documentation of nginx gives for websockets."""
    deployment = servers.deployment
    server = servers.make(base_url="/user/x/")
    with Nginx(deployment.folder / "nginx", deployment.env) as nginx:
        server.start(f"--ServerApp.custom_display_url={nginx.url}/user/x/", "--ServerApp.allow_remote_access=True")
        nginx.start(server.port)
        server.until_state("holds")
        behind = f"{nginx.url}/user/x/gpulayer"
        with logged_in(f"{nginx.url}/user/x/") as browser:  # the page's own origin is nginx
            assert browser.get("gpulayer/v1/workers", headers={"Origin": nginx.url}).status_code == 200
            socket = f"{behind}/v1/watch".replace("http", "ws", 1)
            assert handshake(socket, cookies(browser), origin=nginx.url) == 101
            assert handshake(socket, cookies(browser), origin="https://evil.example") == 403
            with websocket(socket, cookies(browser), origin=nginx.url) as watching:
                assert '"type":"fleet"' in str(watching.recv(PATIENCE_S))
        worker = join(deployment, behind, join_token(server), "far")
        until(lambda: server.workers().get("far"), lambda: f"the worker to join: {worker.log}\n{server.log}")
        runs(deployment, "far")
        worker.stop()
        del deployment.workers["far"]
