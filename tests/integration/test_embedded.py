"""A control plane that nobody started: the first cell does, the next notebook finds it, and it ends by itself."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import end, until


@pytest.fixture
def bare() -> Iterator[Deployment]:
    """A deployment in which nothing runs."""
    with Deployment(env={"GPULAYER_LOCAL_WORKER": "--name here --slots 2 --warm 1 --reserve-bytes 0"}) as deployment:
        yield deployment


def test_the_first_cells_of_two_notebooks_start_one_control_plane(bare: Deployment) -> None:
    notebooks = [bare.notebook(), bare.notebook()]
    cells = [notebook.start("%%gpulayer\nprint('hi')") for notebook in notebooks]
    results = [cell.wait() for cell in cells]
    bare.local_worker()
    assert [result.text() for result in results] == ["hi\n", "hi\n"]
    assert all(result.status[-1].startswith("✓ done on here") for result in results)
    assert len(bare.api.jobs()) == 2
    servers = [line for line in bare.processes().values() if "gpulayer_server" in line]
    assert len(servers) == 1
    assert " --idle-exit 60" in servers[0]


def test_a_control_plane_that_died_is_started_again_and_keeps_its_jobs(bare: Deployment) -> None:
    notebook = bare.notebook()
    notebook.run("%%gpulayer\n1")
    bare.local_worker()
    first = bare.plane.pid
    end(first, signal.SIGKILL)
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
    assert bare.plane.pid != first
    assert len(bare.api.jobs()) == 2


def test_it_ends_by_itself_with_its_worker_once_nobody_needs_it(bare: Deployment) -> None:
    notebook = bare.notebook()
    bare.plane.start("--local-worker", "--idle-exit", "3", "--worker-arguments", "--reserve-bytes 0")
    cell = notebook.start("%%gpulayer\n1 + 1")  # at once: a worker may take longer to come than it stays for nobody
    bare.local_worker()
    assert cell.wait().data("text/plain") == ["2"]
    assert bare.plane.process is not None
    assert bare.plane.process.poll() is None  # a client is there
    notebook.close()
    assert bare.plane.process.wait(60) == 0
    until(lambda: not bare.processes(), lambda: f"the end of {bare.processes()}")
    bare.plane.process = None


def test_a_session_keeps_it_alive_until_it_is_released(bare: Deployment) -> None:
    spec = {"cell": {"code": "x = 1", "session": "kept"}}
    bare.plane.start("--local-worker", "--idle-exit", "3", "--worker-arguments", "--reserve-bytes 0 --warm 0")
    assert bare.request("POST", "/v1/jobs", json={"key": "k", "spec": spec}).status_code == 201  # at once, as above
    bare.local_worker()
    process = bare.plane.process
    assert process is not None
    until(lambda: bare.api.jobs()[0].terminal, "the cell's end")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(4)
    assert bare.request("DELETE", "/v1/sessions/kept").status_code == 204
    assert process.wait(60) == 0
    bare.plane.process = None


def test_without_a_local_worker_that_comes_up_the_cell_says_why(bare: Deployment) -> None:
    notebook = bare.notebook(env={"GPULAYER_LOCAL_WORKER": "--python /nowhere/python --name here"})
    result = notebook.run("%%gpulayer\n1")
    bare.local_worker()
    assert not result.ok
    assert "/nowhere/python" in result.traceback
