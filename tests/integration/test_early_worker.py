"""A control plane's own worker comes up beside it, and does not outlive one of which nothing comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, until

_WORKER = ("--local-worker", "--worker-arguments", "--name here --slots 2 --warm 0 --reserve-bytes 0")
_BLOCKS = """\
import pathlib, signal
pathlib.Path({0!r}).touch()
signal.pause()
"""


@pytest.fixture
def bare() -> Iterator[Deployment]:
    """A deployment in which nothing runs."""
    with Deployment() as deployment:
        deployment.data.mkdir(mode=0o700, exist_ok=True)
        yield deployment


def begin(deployment: Deployment, **env: str) -> subprocess.Popen[str]:
    """A control plane that is not waited for."""
    command = [sys.executable, "-m", "gpulayer_server", "--data", str(deployment.data), "--announce", *_WORKER]
    return subprocess.Popen(
        command, env=deployment.env | env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_of_one_that_can_not_start_nothing_is_left(bare: Deployment) -> None:
    (bare.data / "store.db").write_bytes(b"this is no database\n" * 500)
    process = begin(bare)
    said, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (1, "")
    assert error.splitlines()[-1].startswith("gpulayer: ")
    assert "Traceback" not in error
    until(lambda: not bare.processes(), lambda: f"the end of {bare.processes()}")


def test_beside_another_one_no_worker_is_started(bare: Deployment) -> None:
    bare.plane.start()
    process = begin(bare)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert "is held by another control plane" in error
    assert not (bare.data / "logs/local-worker.log").exists()


def test_of_one_that_is_told_to_end_while_it_starts_nothing_is_left(bare: Deployment, tmp_path: Path) -> None:
    module = tmp_path / "modules/tornado.py"  # which the worker does without
    module.parent.mkdir()
    module.write_text(_BLOCKS.format(str(tmp_path / "blocked")))
    process = begin(bare, PYTHONPATH=str(module.parent))
    until((tmp_path / "blocked").exists, lambda: "a control plane that is about to import what it needs")
    assert len(bare.processes()) > 1  # its worker is there already
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == 0
    until(lambda: not bare.processes(), lambda: f"the end of {bare.processes()}")


def test_a_worker_that_left_something_comes_after_its_control_plane(bare: Deployment) -> None:
    """As after a crash of the machine: a control plane that can't start does not end what goes on there."""
    (bare.data / "worker").mkdir()
    (bare.data / "worker/keeper.json").write_text("{}")
    (bare.data / "store.db").write_bytes(b"this is no database\n" * 500)
    process = begin(bare)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert not (bare.data / "logs/local-worker.log").exists()
    (bare.data / "store.db").unlink()
    bare.plane.start(*_WORKER)
    until(lambda: bare.connected("here"), "the worker")
    bare.local_worker()
