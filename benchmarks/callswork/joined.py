"""A deployment whose worker shares no folder with its control plane: it joins by address and token, over loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.callswork.rival import CallsFailed
from benchmarks.home import Home
from gpulayer.client import asks
from gpulayer.client.api import Api
from gpulayer.protocol.endpoint import read_endpoint

_READY_S = 60.0


def start(home: Home, *, slots: int) -> Path:
    """Start both in the folders of `home`, which ends them; the worker's folder, once it is connected."""
    _launch(home, "gpulayer_server", "--data", str(home.data))
    _until(lambda: read_endpoint(home.data) is not None, "the control plane to listen")
    api = Api(home.endpoint)
    try:
        token = api.ask(asks.new_token("join", single_use=True, expires_s=600.0)).token
        folder = home.root / "joined"
        where = ("--data", str(folder), "--name", "joined", "--slots", str(slots), "--warm", "0")
        _launch(home, "gpulayer_worker", "join", home.endpoint.url, "--token", token, *where)
        _until(lambda: any(worker.connected for worker in api.workers()), "the worker to join")
        return folder
    finally:
        api.close()


def _launch(home: Home, module: str, *arguments: str) -> None:
    with (home.root / f"{module}.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=home.env(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not done():
        if time.monotonic() > deadline:
            raise CallsFailed(f"waited {_READY_S:.0f} s for {what}")
        time.sleep(0.05)  # files and HTTP tell no news
