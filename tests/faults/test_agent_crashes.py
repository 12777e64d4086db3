"""An agent that dies between two notes of its own: the next one finds whose each kernel is, and leaks none."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.deployment import Deployment, Worker
from tests.support.notebook import Notebook
from tests.support.processes import end, until


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        deployment.worker("alpha", slots=2)
        deployment.notebook()
        yield deployment


@pytest.fixture
def worker(deployment: Deployment) -> Worker:
    return deployment.workers["alpha"]


@pytest.fixture
def notebook(deployment: Deployment) -> Notebook:
    return deployment.notebooks[0]


def kernels(deployment: Deployment) -> list[int]:
    return [pid for pid, line in deployment.processes().items() if "kernel/main.py" in line]


@pytest.mark.parametrize("options", ["", "--session taken"], ids=["fresh", "session"])
def test_a_kernel_that_was_taken_and_not_noted_is_ended(
    deployment: Deployment, worker: Worker, notebook: Notebook, options: str
) -> None:
    with deployment.failpoint("agent.kernel-taken") as point:
        cell = notebook.start(f"%%gpulayer {options}\nprint('ran')")
        point.await_hit()
        worker.kill_agent()
    assert cell.wait().text() == "ran\n"
    if options:
        assert deployment.request("DELETE", "/v1/sessions/taken").status_code == 204
    until(lambda: deployment.slots_free("alpha") == 2, "the slot to be free")
    until(lambda: len(kernels(deployment)) == 1, lambda: f"only the warm kernel to be left: {deployment.processes()}")


def test_a_cell_whose_session_died_with_the_agent_gets_a_new_session(
    deployment: Deployment, worker: Worker, notebook: Notebook
) -> None:
    pid = int(notebook.run("%%gpulayer --session lost\nimport os\nx = 1\nprint(os.getpid())").text())
    with deployment.failpoint("agent.assigned") as point:
        cell = notebook.start("%%gpulayer --session lost\n'x' in globals()")
        point.await_hit()
        worker.kill_agent()
        end(pid, signal.SIGKILL)
    result = cell.wait()
    assert result.data("text/plain") == ["False"], result.traceback
    assert "session 'lost' had ended" in result.status[-1]
    assert deployment.request("DELETE", "/v1/sessions/lost").status_code == 204
    until(lambda: deployment.slots_free("alpha") == 2, "the slot to be free")
    until(lambda: len(kernels(deployment)) == 1, lambda: f"only the warm kernel to be left: {deployment.processes()}")
