"""What a user imports: its names are pinned, and importing it loads nothing heavy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpulayer

HEAVY = ("IPython", "tornado", "torch", "numpy", "zmq", "httpx", "websockets", "jupyter_client", "psutil", "asyncio")
NAMES = [
    "AsyncClient",
    "Call",
    "Client",
    "Command",
    "ControlPlaneError",
    "Explanation",
    "GpulayerError",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobRejected",
    "Map",
    "RemoteError",
    "RemoteFunction",
    "RequestRefused",
    "Source",
    "__version__",
    "call",
    "explain",
    "load_ipython_extension",
    "put",
    "remote",
    "unload_ipython_extension",
]


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a line imports."""
    line = f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_public_names() -> None:
    assert sorted(gpulayer.__all__) == NAMES
    assert set(NAMES) <= set(dir(gpulayer))
    for name in gpulayer.__all__:
        value = getattr(gpulayer, name)
        assert value is getattr(gpulayer, name)
        assert name.startswith("_") or value.__name__ == name


def test_a_name_that_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'gpulayer' has no attribute 'Clint'"):
        gpulayer.Clint  # noqa: B018


def test_import_is_light() -> None:
    assert not loaded_by("import gpulayer") & set(HEAVY)


def test_a_client_that_asks_nothing_loads_no_http() -> None:
    assert not loaded_by("import gpulayer; gpulayer.Client()") & {"httpx", "tornado", "IPython", "zmq", "typer", "rich"}


def test_help_imports_no_command() -> None:
    code = "from gpulayer.cli.app import command; command().get_help(__import__('typer').Context(command()))"
    assert not loaded_by(code) & {"rich", "httpx", "websockets", "msgspec", "zstandard", "asyncio"}


def test_no_class_is_a_generic_named_tuple() -> None:
    """Python 3.10 refuses to make one: a module that has it can't be imported there."""
    root = Path(__file__).resolve().parents[2]
    files = [
        path for package in ("gpulayer", "server", "worker", "jupyter_ext") for path in (root / package).rglob("*.py")
    ]
    assert len(files) > 100
    texts = {str(path): path.read_text() for path in files if "node_modules" not in path.parts}
    assert [
        path
        for path, text in texts.items()
        if re.search(r"^ *class .*\bNamedTuple\b *,|, *NamedTuple\b.*\):", text, re.M)
    ] == []
