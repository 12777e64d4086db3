"""What delays a cold start is not imported on its way: each process, once it is ready for its work."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WEB = {"httpx", "rich", "click", "cryptography", "zstandard"}
_KERNELS = {"zmq", "jupyter_client", "traitlets", "IPython"}
_HEAVY = _WEB | _KERNELS | {"torch", "numpy", "pandas", "importlib_metadata", "packaging.requirements"}
_ALL = _HEAVY | {"asyncio", "msgspec", "tornado", "websockets", "logging", "http.client", "ssl", "email"}


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("gpulayer_server.__main__", _ALL),  # until the worker is started
        ("gpulayer_server.serving", _HEAVY | {"websockets"}),
        ("gpulayer_worker.__main__", _ALL),  # until it is the keeper
        ("gpulayer_worker.keeper.loop", _ALL | {"typing", "subprocess", "argparse"}),
        ("gpulayer_worker.agentmain", _HEAVY | {"tornado", "pynvml"}),
        ("gpulayer", _ALL),
        ("gpulayer.client.embedded", _HEAVY | {"asyncio", "tornado", "websockets", "sqlite3"}),
        ("gpulayer.functions.remote", _ALL - {"msgspec"} | {"gpulayer.client.client"}),  # until the first call
        ("gpulayer.functions.hub, gpulayer.client.client, gpulayer.functions.blobs", _HEAVY | {"asyncio", "tornado"}),
    ],
)
def test_a_start_imports_nothing_that_it_does_not_need(module: str, without: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {name for name in without if name in loaded}
