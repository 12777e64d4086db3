"""What a user imports: its names are pinned, and importing it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import gpulayer

HEAVY = ("IPython", "tornado", "torch", "numpy", "zmq", "httpx", "websockets", "jupyter_client", "psutil", "asyncio")


def test_the_public_names() -> None:
    assert sorted(gpulayer.__all__) == ["__version__", "load_ipython_extension", "unload_ipython_extension"]
    for name in gpulayer.__all__:
        assert hasattr(gpulayer, name)


def test_import_is_light() -> None:
    code = "import sys; before = set(sys.modules); import gpulayer; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & set(HEAVY), loaded
