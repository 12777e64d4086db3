"""Real Jupyter servers with the extension, in a deployment's folder and environment."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, until
from tests.support.sitecode import STARTS_SOON

TOKEN = "of-jupyter"
ONLY_OURS = {name: name == "gpulayer_jupyter" for name in ("gpulayer_jupyter", "jupyterlab", "notebook", "jupyter_lsp")}
WORKER = "--name here --slots 2 --warm 0 --reserve-bytes 0"


def free_port() -> int:
    """A port of loopback that was free a moment ago, and none that the system gives to whoever connects next."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class JupyterServer:
    """One Jupyter server's process; `start` and `stop` may be called any number of times."""

    def __init__(self, deployment: Deployment, name: str = "j", *, base_url: str = "/", secure: bool = False):
        self.deployment = deployment
        self.home = deployment.folder / name
        self.base_url = base_url
        self._s = "s" if secure else ""  # of https and wss
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    # ---------------------------------------------------------------- its life

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, extensions: tuple[str, ...] = ()
    ) -> JupyterServer:
        """Start it, with further extensions, and return once it listens. A port that was taken is no failure."""
        for folder in ("config", "data", "runtime"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        for _ in range(5):
            self.port = free_port()
            self._launch(arguments, env or {}, ONLY_OURS | dict.fromkeys(extensions, True))
            if until(self._state, lambda: f"the Jupyter server to listen:\n{self.log}") == "listens":
                return self
        raise AssertionError(f"the Jupyter server does not start:\n{self.log}")

    def _launch(self, arguments: tuple[str, ...], env: Mapping[str, str], extensions: dict[str, bool]) -> None:
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
        command += [f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"]
        command += [f"--ServerApp.base_url={self.base_url}", f"--ServerApp.jpserver_extensions={extensions}"]
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                env={**self.deployment.env, **jupyter_folders(self.home), **env},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _state(self) -> str:
        assert self.process is not None
        if self.process.poll() is not None:
            assert "already in use" in self.log, f"the Jupyter server ended:\n{self.log}"
            return "ended"
        try:
            httpx.get(self.url("api"), trust_env=False, verify=False, timeout=PATIENCE_S)
        except httpx.TransportError:
            return ""
        return "listens"

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code. Harmless when done twice."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """What it wrote, over all of its lives."""
        return (self.home / "server.log").read_text(errors="replace")

    # ---------------------------------------------------------------- asking it

    def url(self, path: str = "", scheme: str = "http") -> str:
        """An address on this server, below its base URL."""
        return f"{scheme}{self._s}://127.0.0.1:{self.port}{self.base_url}{path}"

    def request(self, method: str, path: str, *, token: str | None = TOKEN, **more: Any) -> httpx.Response:
        """A request below `gpulayer/`, with Jupyter's token, or another, or none."""
        headers = httpx.Headers(more.pop("headers", {}))
        if token:
            headers["Authorization"] = f"token {token}"
        url = self.url(f"gpulayer/{path}")
        return httpx.request(method, url, headers=headers, trust_env=False, verify=False, timeout=PATIENCE_S, **more)

    def websocket(self, path: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> Any:
        """A websocket below `gpulayer/`; by default with Jupyter's token."""
        given = {"Authorization": f"token {TOKEN}"} if headers is None else headers
        return websocket(self.url(f"gpulayer/{path}", "ws"), given, **more)

    def status(self) -> dict[str, Any]:
        """`gpulayer/status`."""
        answer = self.request("GET", "status")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def until_state(self, state: str) -> dict[str, Any]:
        """Wait until the server stands so to the control plane."""

        def reached() -> dict[str, Any] | None:
            status = self.status()
            return status if status["state"] == state else None

        return until(reached, lambda: f"the state {state}, not {self.status()}:\n{self.log}")

    def workers(self) -> dict[str, bool]:
        """The workers that the control plane knows, through this server: whether each is connected."""
        answer = self.request("GET", "v1/workers")
        assert answer.status_code == 200, answer.text
        return {worker["name"]: worker["connected"] for worker in answer.json()}

    def until_worker(self, name: str = "here") -> None:
        """Wait until a worker is connected."""
        until(lambda: self.workers().get(name), lambda: f"worker {name}, not {self.workers()}:\n{self.log}")


def jupyter_folders(home: Path) -> dict[str, str]:
    """An environment in which Jupyter sees nothing of whoever runs the tests."""
    folders = {name: str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    own = {f"JUPYTER_{name}_DIR": folder for name, folder in folders.items()}
    return own | {"IPYTHONDIR": str(home / "ipython")} | STARTS_SOON


def websocket(url: str, headers: Mapping[str, str], **more: Any) -> Any:
    """A websocket, as any client opens one that asks for no certificate."""
    if url.startswith("wss:"):
        more["ssl"] = ssl.create_default_context()
        more["ssl"].check_hostname, more["ssl"].verify_mode = False, ssl.CERT_NONE
    return connect(url, additional_headers=dict(headers), proxy=None, max_size=None, open_timeout=PATIENCE_S, **more)


@contextlib.contextmanager
def logged_in(url: str) -> Iterator[httpx.Client]:
    """A browser whose user has logged in at a server: a cookie is all that it has."""
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        client.get("login")
        answer = client.post("login", data={"password": TOKEN, "_xsrf": client.cookies["_xsrf"]})
        assert answer.status_code == 302, answer.text
        yield client


def cookies(browser: httpx.Client) -> dict[str, str]:
    """The header with which a browser opens a websocket."""
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}


def handshake(url: str, headers: Mapping[str, str], **more: Any) -> int:
    """The status that answers a handshake."""
    try:
        with websocket(url, headers, **more):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


@contextlib.contextmanager
def jupyter_deployment(*, env: Mapping[str, str] | None = None) -> Iterator[Deployment]:
    """A folder for Jupyter servers, their control plane and its workers, all of which end with it."""
    with Deployment(env={"GPULAYER_LOCAL_WORKER": WORKER, **(env or {})}) as deployment:
        yield deployment
        if (deployment.data / "worker" / "keeper.json").exists():
            deployment.local_worker()  # so that it ends too


class Servers:
    """The Jupyter servers of one deployment; those that stand by are ended before the one that holds."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.all: list[JupyterServer] = []

    def make(self, **more: Any) -> JupyterServer:
        """One more, not started yet."""
        self.all.append(JupyterServer(self.deployment, f"j{len(self.all)}", **more))
        return self.all[-1]

    def start(self, *arguments: str, **more: Any) -> JupyterServer:
        """One more, which listens."""
        return self.make().start(*arguments, **more)

    def close(self) -> None:
        """End all of them, however the test ended; the notebooks first, which would start a control plane instead."""
        for notebook in self.deployment.notebooks:
            notebook.close()
        holder = _holder(self.deployment)
        living = [each for each in self.all if each.process is not None]
        for each in sorted(living, key=lambda each: each.pid == holder):
            each.end()


def _holder(deployment: Deployment) -> int:
    try:
        return json.loads((deployment.data / "endpoint.json").read_bytes())["pid"]
    except FileNotFoundError:
        return 0
