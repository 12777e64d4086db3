"""The same cells on workers that are not of the usual kind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.deployment import Deployment
from tests.support.notebook import Notebook
from tests.support.processes import command_line, until

PYTHON6 = os.environ.get("GPULAYER_TEST_IPYKERNEL6", "")


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """A control plane with a worker of each kind that can be had."""
    with Deployment() as deployment:
        deployment.plane.start()
        deployment.worker("portable", "--portable", slots=2, warm=0)
        if PYTHON6:
            deployment.worker("ipykernel6", slots=2, warm=0, python=PYTHON6)
        yield deployment


@pytest.fixture(scope="module")
def notebook(deployment: Deployment) -> Notebook:
    return deployment.notebook({"train.py": "LR = 1\n"})


@pytest.fixture(params=["portable", "ipykernel6"])
def on(request: pytest.FixtureRequest) -> str:
    """The options that name the worker."""
    if request.param == "ipykernel6" and not PYTHON6:
        pytest.skip("GPULAYER_TEST_IPYKERNEL6 names no interpreter that has ipykernel 6")
    return f"--worker {request.param}"


def test_output_of_all_kinds(notebook: Notebook, on: str) -> None:
    code = "import sys, train\nprint('out')\nprint('err', file=sys.stderr)\ndisplay(train.LR)\n!echo program\n'last'"
    result = notebook.run(f"%%gpulayer {on}\n{code}")
    shown = [(o.get("text") or o["data"]["text/plain"]).strip() for o in result.outputs]
    assert shown == ["out", "err", "1", "program", "'last'"]
    assert result.outputs[-1]["execution_count"] == result.execution_count


def test_an_error(notebook: Notebook, on: str) -> None:
    result = notebook.run(f"%%gpulayer {on}\nx = 1\nx / 0")
    assert f"Cell In[{result.execution_count}], line 3" in result.traceback
    assert (result.error or {})["ename"] == "ZeroDivisionError"


def test_the_version_that_was_asked_for(notebook: Notebook, on: str) -> None:
    result = notebook.run(f"%%gpulayer {on}\nimport ipykernel\nprint(ipykernel.__version__)")
    assert result.text().startswith("6.") == ("ipykernel6" in on)


def test_stop_and_a_session(notebook: Notebook, on: str) -> None:
    session = f"{on} --session {on.split()[-1]}"
    cell = notebook.start(f"%%gpulayer {session}\nx = 1\nprint('go')\nwhile True:\n    pass").until_text("go")
    notebook.interrupt()
    assert (cell.wait().error or {})["ename"] == "KeyboardInterrupt"
    assert notebook.run(f"%%gpulayer {session}\nx").data("text/plain") == ["1"]
    died = notebook.run(f"%%gpulayer {session}\nimport os\nos._exit(7)")
    assert "the kernel exited with code 7" in died.traceback
    fresh = notebook.run(f"%%gpulayer {session}\n'x' in globals()")
    assert fresh.data("text/plain") == ["False"]
    assert "its state is fresh" in fresh.status[-1]


def test_nothing_is_left_of_a_cell(deployment: Deployment, notebook: Notebook, on: str) -> None:
    code = "import subprocess\np = subprocess.Popen(['sleep', '86397'], start_new_session=True)\nprint(p.pid)"
    for session in deployment.api.sessions():
        deployment.api.release(session.name)
    until(lambda: all(worker.slots_free == worker.slots for worker in deployment.api.workers()), "the slots")
    pid = int(notebook.run(f"%%gpulayer {on}\n{code}").text())
    until(lambda: all(worker.slots_free == worker.slots for worker in deployment.api.workers()), "the slot")
    assert "sleep 86397" not in command_line(pid)
