"""How a cell can end other than by its last line."""

from __future__ import annotations

import pytest

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook
from tests.support.processes import command_line, until

LOOP = "print('go')\nwhile True:\n    pass"
SLEEP = "import time\nprint('go')\ntime.sleep(600)"
STUBBORN = """\
import time
print('go')
while True:
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        print('not me')
"""


def test_an_exit_code_is_said_plainly(deployment: Deployment, notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer\nimport os\nprint('before')\nos._exit(3)")
    job = deployment.api.jobs(limit=1)[0]
    assert result.text() == "before\n"
    assert result.traceback == f"gpulayer: job {job.id} failed on alpha: the kernel exited with code 3"
    assert (result.error or {})["ename"] == "JobError"
    assert "the kernel exited with code 3" in result.status[-1]
    assert job.outcome is not None
    assert (job.outcome.state, job.outcome.exit_code, job.outcome.signal) == (State.FAILED, 3, None)


def test_a_segfault_names_the_signal_and_the_last_lines(deployment: Deployment, notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer\nimport ctypes\nprint('before')\nctypes.string_at(0)")
    job = deployment.api.jobs(limit=1)[0]
    assert result.text() == "before\n"
    first, second, *lines = result.traceback.splitlines()
    assert first == f"gpulayer: job {job.id} failed on alpha: the kernel was ended by signal 11 (SIGSEGV)"
    assert second == "the last lines of its process:"
    assert lines[0] == "Fatal Python error: Segmentation fault"
    assert lines[-1] == "  Cell, line 4 in <module>"
    assert "in string_at" in lines[-2]
    assert job.outcome is not None
    assert (job.outcome.exit_code, job.outcome.signal) == (None, 11)


def test_a_daemon_is_gone_once_the_slot_is_free(deployment: Deployment, notebook: Notebook) -> None:
    code = (
        "import os, subprocess\np = subprocess.Popen(['sleep', '86399'], start_new_session=True, env={})\nprint(p.pid)"
    )
    result = notebook.run(f"%%gpulayer\n{code}")
    until(lambda: deployment.slots_free("alpha") == 4, "the slot")
    assert result.ok
    assert "sleep 86399" not in command_line(int(result.text()))


@pytest.mark.parametrize("code", [LOOP, SLEEP], ids=["a loop", "a sleep"])
def test_stop_ends_the_cell_there(deployment: Deployment, notebook: Notebook, code: str) -> None:
    cell = notebook.start(f"%%gpulayer\n{code}").until_text("go")
    notebook.interrupt()
    result = cell.wait()
    assert (result.error or {})["ename"] == "KeyboardInterrupt"
    assert "line" in result.traceback  # where it was there
    assert any(line.startswith("□ cancelling on alpha") for line in result.status)
    assert result.status[-1].startswith("■ cancelled on alpha after")
    assert deployment.api.jobs(limit=1)[0].state is State.CANCELLED
    assert notebook.run("1 + 1").data("text/plain") == ["2"]


def test_a_cell_that_does_not_stop_is_ended_by_force(deployment: Deployment, notebook: Notebook) -> None:
    cell = notebook.start(f"%%gpulayer\n{STUBBORN}").until_text("go")
    notebook.interrupt()
    result = cell.wait()
    assert result.text() == "go\nnot me\n"
    assert "it did not stop within 5 s of the interrupt and was ended" in result.traceback
    assert deployment.api.jobs(limit=1)[0].state is State.CANCELLED


def test_a_second_stop_gives_the_notebook_back_at_once(deployment: Deployment, notebook: Notebook) -> None:
    cell = notebook.start(f"%%gpulayer\n{STUBBORN}").until_text("go")
    notebook.interrupt()
    cell.until_text("not me")
    notebook.interrupt()
    result = cell.wait()
    assert (result.error or {})["ename"] == "KeyboardInterrupt"
    job = deployment.api.jobs(limit=1)[0]
    assert job.state is State.RUNNING
    assert job.cancelling
    until(lambda: deployment.api.job(job.id).state is State.CANCELLED, "the job's end")


def test_stop_while_it_waits_takes_it_out_of_the_queue(deployment: Deployment, notebook: Notebook) -> None:
    notebook.run(f"%%gpulayer --worker beta --detach\n{SLEEP}")
    until(lambda: deployment.api.jobs(limit=1)[0].state is State.RUNNING, "the first job's begin")
    cell = notebook.start("%%gpulayer --worker beta\n1")
    cell.until(lambda cell: any("waiting" in line and "beta: all 1 slot busy" in line for line in cell.out.status))
    notebook.interrupt()
    assert "was cancelled" in cell.wait().traceback
    waiting, holding = deployment.api.jobs(limit=2)
    assert (waiting.state, waiting.attempts) == (State.CANCELLED, 0)
    assert holding.state is State.RUNNING


def test_a_timeout_ends_the_cell_and_says_so(deployment: Deployment, notebook: Notebook) -> None:
    result = notebook.run(f"%%gpulayer --timeout 1s\n{SLEEP}")
    assert not result.ok
    assert "timed out after 1 s" in result.status[-1]
    assert "line 4" in result.traceback  # where it was
    assert result.traceback.splitlines()[-1].endswith(
        "failed on alpha: timed out after 1 s, its --timeout; last line: go"
    )
    job = deployment.api.jobs(limit=1)[0]
    assert job.outcome is not None
    assert (job.state, job.outcome.problem) == (State.FAILED, "timed out after 1 s, its --timeout; last line: go")


def test_after_all_of_this_a_cell_runs(notebook: Notebook) -> None:
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
