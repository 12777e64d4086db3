"""A data folder on a network file system, as FUSE mounts it: refused in one line by all who would use it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.localdisk import filesystem_type, network_filesystem
from tests.integration.bad_inputs.conftest import Command
from tests.support.deployment import Deployment

Run = Callable[..., Command]


@pytest.fixture
def remote(deployment: Deployment) -> Iterator[Path]:
    """A folder that is mounted through FUSE; skips where none can be."""
    helper = shutil.which("bindfs")
    if helper is None or os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("no FUSE mount here: it takes bindfs, /dev/fuse and root")
    origin, folder = deployment.folder / "origin", deployment.folder / "remote"
    for path in (origin, folder):
        path.mkdir()
    made = subprocess.run([helper, str(origin), str(folder)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no FUSE mount here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    for path in (origin, folder):
        path.rmdir()  # nothing was made in it


def test_it_is_recognized(remote: Path) -> None:
    assert filesystem_type(remote).startswith("fuse")
    assert network_filesystem(remote / "not" / "there" / "yet")
    assert not network_filesystem(remote.parent)


def test_a_control_plane_there(deployment: Deployment, command: Run, remote: Path) -> None:
    refused = command("gpulayer_server", "--data", str(remote / "data"), env=deployment.env)
    assert (refused.code, len(refused.lines)) == (1, 1)
    assert f"{remote}/data lies on a network file system (fuse" in refused.lines[0]
    assert "set GPULAYER_DATA to a folder on a local disk" in refused.lines[0]


def test_a_worker_there(deployment: Deployment, command: Run, remote: Path) -> None:
    join = ("gpulayer_worker", "join", "--control-plane", str(deployment.data), "--data", str(remote / "w"))
    refused = command(*join, env=deployment.env)
    assert (refused.code, len(refused.lines)) == (2, 1)
    assert f"{remote}/w lies on a network file system (fuse" in refused.lines[0]
    assert "give --data a folder on a local disk" in refused.lines[0]


def test_a_notebook_that_would_start_one_there(deployment: Deployment, remote: Path) -> None:
    notebook = deployment.notebook(env={"GPULAYER_DATA": str(remote / "data")})
    for code in ("%%gpulayer\nprint('never')", "%gpulayer status"):
        (line,) = notebook.run(code).traceback.splitlines()
        assert f"{remote}/data lies on a network file system (fuse" in line
        assert "set GPULAYER_DATA to a folder on a local disk" in line
    notebook.run(f"import os\nos.environ['GPULAYER_DATA'] = {str(deployment.data)!r}")
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
    notebook.close()
