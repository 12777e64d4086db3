"""A page that was reloaded, or whose kernel was restarted, finds its jobs again, and shows all of their output."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Lab, NotebookPage, saved_text
from tests.support.processes import until

COUNT = """%%gpulayer
import os, time
for number in range(300):
    print("line", number)
print("waiting", flush=True)
while not os.path.exists({gate!r}):
    time.sleep(0.02)
for number in range(300, 600):
    print("line", number)"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that a cell waits for."""
    return tmp_path / "gate"


def press(notebook: NotebookPage, number: int, name: str) -> None:
    """One of the buttons that are offered at a cell."""
    notebook.cell(number).locator(".gpulayer-CellBar").get_by_role("button", name=name, exact=True).click()


def is_whole(text: str) -> bool:
    """No line is missing, none is doubled, and they are in order."""
    return [line for line in text.splitlines() if line.startswith("line ")] == [f"line {n}" for n in range(600)]


def attach_and_finish(notebook: NotebookPage, gate: Path) -> None:
    """Attach at the cell in mid-run; its output is whole then, on the page and in the file."""
    press(notebook, 1, "attach")
    notebook.await_text(1, "waiting")
    gate.touch()
    notebook.await_text(1, "done on laptop")
    notebook.await_text(1, is_whole, "each line once")  # the page draws one output after the other
    assert is_whole(saved_text(notebook.save().cells[1]))


def test_a_page_reloaded_in_mid_run_is_offered_attach_which_replays_all_of_it(
    opened: Callable[..., Any], gate: Path
) -> None:
    notebook = opened(COUNT.format(gate=str(gate)))
    notebook.save()
    notebook.run(1)
    notebook.await_text(1, "waiting")
    notebook.reload()
    attach_and_finish(notebook, gate)


def test_a_kernel_restarted_in_mid_run_leaves_the_job_which_is_attached(opened: Callable[..., Any], gate: Path) -> None:
    notebook = opened(COUNT.format(gate=str(gate)))
    notebook.run(1)
    notebook.await_text(1, "waiting")
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    notebook.loaded()
    attach_and_finish(notebook, gate)


def test_what_ended_while_the_page_was_away_is_offered_too(opened: Callable[..., Any], lab: Lab, gate: Path) -> None:
    notebook = opened(COUNT.format(gate=str(gate)))
    notebook.save()
    notebook.run(1)
    notebook.await_text(1, "waiting")
    notebook.page.goto("about:blank")
    gate.touch()
    until(lambda: lab.deployment.api.jobs(limit=1)[0].state == "succeeded", "the job's end")
    notebook.open()
    press(notebook, 1, "show its output")
    notebook.await_text(1, "done on laptop")
    notebook.await_text(1, is_whole, "each line once")  # the page draws one output after the other


def test_detach_at_the_cell_leaves_the_job_running(opened: Callable[..., Any], lab: Lab, gate: Path) -> None:
    notebook = opened(COUNT.format(gate=str(gate)))
    notebook.save()
    notebook.run(1)
    notebook.await_text(1, "waiting")
    notebook.reload()
    press(notebook, 1, "attach")
    notebook.await_text(1, "waiting")
    press(notebook, 1, "detach")
    notebook.cell(1).locator(".gpulayer-CellBar").get_by_role("button", name="attach", exact=True).wait_for()
    job = lab.deployment.api.jobs(limit=1)[0]
    assert job.state == "running"
    attach_and_finish(notebook, gate)
    assert lab.deployment.api.job(job.id).state == "succeeded"


def test_a_second_server_takes_over_and_the_job_goes_on(new_lab: Callable[..., Lab], page: Any, gate: Path) -> None:
    first = new_lab()
    second = new_lab()
    path = second.notebook("takeover", "%load_ext gpulayer", COUNT.format(gate=str(gate)))
    notebook = NotebookPage(page, second, path).open()
    notebook.run(0)
    notebook.await_end(0)
    notebook.run(1)
    notebook.await_text(1, "waiting")
    holder = first.deployment.plane.endpoint.pid
    assert first.process is not None
    assert holder == first.process.pid
    first.stop(signal.SIGKILL)
    until(lambda: first.deployment.plane.endpoint.pid != holder, "the second server to take over")
    gate.touch()
    notebook.await_text(1, "done on laptop")
    notebook.await_end(1)
    notebook.await_text(1, is_whole, "each line once")  # the page draws one output after the other


def test_below_the_path_of_a_hub_all_of_it_works(new_lab: Callable[..., Lab], page: Any, gate: Path) -> None:
    lab = new_lab(base_url="/user/x/")
    path = lab.notebook("hub", "%load_ext gpulayer", COUNT.format(gate=str(gate)))
    notebook = NotebookPage(page, lab, path).open()
    notebook.run(0)
    notebook.await_end(0)
    notebook.save()
    notebook.run(1)
    notebook.await_text(1, "waiting")
    notebook.reload()
    attach_and_finish(notebook, gate)
