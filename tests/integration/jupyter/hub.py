"""A real JupyterHub on loopback: its proxy, one user, and that user's Jupyter server with the extension."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.integration.jupyter.server import ONLY_OURS, free_port, jupyter_folders
from tests.support.deployment import Deployment
from tests.support.processes import MARKER, PATIENCE_S, until
from tests.support.sitecode import STARTS_SOON

USER = "x"
TOKEN = "of-a-service-of-the-hub"
PASSWORD = "of-everybody"
_PROXY = "configurable-http-proxy"
_INSTALLED = Path(__file__).resolve().parents[3] / ".node-tools" / "node_modules" / ".bin"
_CONFIGURATION = """\
c = get_config()
c.JupyterHub.bind_url = {url!r}
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
c.JupyterHub.cleanup_servers = True
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allowed_users = {{{user!r}}}
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {home!r}
c.Spawner.cmd = [{python!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root", "--ServerApp.jpserver_extensions={extensions}"]
c.Spawner.environment = {environment!r}
c.Spawner.start_timeout = 60
c.Spawner.http_timeout = 60
c.JupyterHub.services = [{{"name": "test", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers", "access:servers"]}}
]
"""


def find_proxy() -> str | None:
    """JupyterHub's proxy: what `make setup` has installed, or what is on the path."""
    return shutil.which(_PROXY, path=f"{_INSTALLED}{os.pathsep}{os.environ.get('PATH', '')}")


def hub_is_missing() -> str:
    """Why there can be no hub here; '' where there can."""
    if importlib.util.find_spec("jupyterhub") is None:
        return "jupyterhub is not installed"
    if find_proxy() is None:
        return f"{_PROXY} is not there: npm install --prefix .node-tools {_PROXY}"
    return ""


class Hub:
    """The hub's process, in a deployment's folder and environment."""

    def __init__(self, deployment: Deployment):
        self._deployment = deployment
        self._folder = deployment.folder / "hub"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def server(self) -> str:
        """The address of the user's Jupyter server."""
        return f"{self.url}user/{USER}/"

    @property
    def log(self) -> str:
        """What the hub, its proxy and the user's server wrote."""
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the hub, and the user's server, and return once that answers. A port that was taken is no failure."""
        (self._folder / "home").mkdir(parents=True)
        for _ in range(5):
            self._launch()
            if until(self._state, lambda: f"the hub to answer:\n{self.log}") == "answers":
                break
        started = self.request("POST", f"hub/api/users/{USER}/server")
        assert started.status_code in (201, 202), started.text
        until(self._serves, lambda: f"the user's server:\n{self.log}")

    def _launch(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}/"
        home = self._folder / "home"
        passed_on = (MARKER, "GPULAYER_DATA", "GPULAYER_LOCAL_WORKER")
        environment = {name: self._deployment.env[name] for name in passed_on} | jupyter_folders(home)
        environment["JUPYTERHUB_SINGLEUSER_APP"] = "jupyter_server.serverapp.ServerApp"
        text = _CONFIGURATION.format(
            url=self.url, hub_port=free_port(), api_port=free_port(), user=USER, token=TOKEN, password=PASSWORD,
            proxy=find_proxy(), home=str(home), python=sys.executable, extensions=ONLY_OURS, environment=environment,
        )  # fmt: skip
        (self._folder / "config.py").write_text(text)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", "config.py"],
                env=self._deployment.env | STARTS_SOON,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _state(self) -> str:
        assert self._process is not None
        if self._process.poll() is not None:
            assert "in use" in self.log or "EADDRINUSE" in self.log, f"the hub ended:\n{self.log}"
            return "ended"
        return "answers" if self._answers() else ""

    def _answers(self) -> bool:
        """Whether it knows the user."""
        try:
            return self.request("POST", f"hub/api/users/{USER}").status_code in (201, 409)
        except httpx.TransportError:
            return False

    def _serves(self) -> bool:
        answer = self.request("GET", f"user/{USER}/gpulayer/status")
        return answer.status_code == 200 and answer.json()["state"] == "holds"

    def request(self, method: str, path: str, *, token: str = TOKEN, **more: Any) -> httpx.Response:
        """A request to the hub, or through it."""
        headers = {"Authorization": f"token {token}"} if token else {}
        return httpx.request(
            method,
            self.url + path,
            headers=headers | more.pop("headers", {}),
            trust_env=False,
            timeout=PATIENCE_S,
            **more,
        )

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The hub ends its proxy and the user's server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
