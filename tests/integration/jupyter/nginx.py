"""nginx before a Jupyter server, on loopback, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

import httpx

from tests.integration.jupyter.server import free_port
from tests.support.processes import PATIENCE_S, until

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_CONFIGURATION = """\
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        '' close;
    }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        location /user/x/ {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_request_buffering off;
            proxy_buffering off;
        }}
    }}
}}
"""


def nginx_is_missing() -> str:
    """Why there is no nginx here; '' where there is."""
    return "" if shutil.which("nginx", path=_PATH) else "this machine has no nginx: install the package of that name"


class Nginx:
    """One process of it."""

    def __init__(self, folder: Path, env: dict[str, str]):
        folder.mkdir()
        self._folder = folder
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, upstream: int) -> None:
        """Start it before a server on that port, and return once it listens."""
        file = self._folder / "nginx.conf"
        file.write_text(_CONFIGURATION.format(folder=self._folder, port=self.port, upstream=upstream))
        program = shutil.which("nginx", path=_PATH)
        assert program is not None
        with (self._folder / "out").open("wb") as out:
            self._process = subprocess.Popen(
                [program, "-p", str(self._folder), "-c", str(file)],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        until(self._answers, lambda: f"nginx to listen:\n{(self._folder / 'out').read_text()}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "out").read_text()
        try:
            return httpx.get(f"{self.url}/", trust_env=False, timeout=PATIENCE_S).status_code == 404
        except httpx.TransportError:
            return False

    def __enter__(self) -> Nginx:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
