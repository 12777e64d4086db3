"""Cells in a real notebook page: their output while they run, Stop, attach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Lab, saved_text
from tests.support.processes import until

TRAIN = """
import os, time

def wait_for(gate):
    while not os.path.exists(gate):
        time.sleep(0.02)

def main(gate):
    print("epoch 1", flush=True)
    wait_for(gate)
    print("epoch 2")
"""
PLOT = """%%gpulayer
import train
train.main({gate!r})
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.show()"""
ENDLESS = """%%gpulayer
import time
print("begun", flush=True)
while True:
    time.sleep(0.02)"""
STUBBORN = """%%gpulayer
import train
print("begun", flush=True)
while True:
    try:
        train.wait_for({gate!r})
        break
    except KeyboardInterrupt:
        print("not yet", flush=True)
raise KeyboardInterrupt"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that a cell waits for."""
    return tmp_path / "gate"


def test_the_first_line_comes_before_the_cell_ends_then_the_plot(opened: Callable[..., Any], gate: Path) -> None:
    notebook = opened(PLOT.format(gate=str(gate)), train=TRAIN)
    notebook.run(1)
    notebook.await_text(1, "epoch 1")
    assert notebook.running(1)
    assert "running on laptop" in notebook.await_text(1, "running on laptop")
    gate.touch()
    notebook.await_text(1, "epoch 2")
    notebook.cell(1).locator(".jp-OutputArea-output img").wait_for()
    notebook.await_end(1)
    notebook.await_text(1, "done on laptop")
    saved = notebook.save().cells[1]
    assert saved_text(saved).count("epoch 1\n") == 1
    assert [output.output_type for output in saved.outputs].count("display_data") == 2  # the line, and the plot


def test_stop_on_an_endless_cell_cancels_it_there(opened: Callable[..., Any], lab: Lab) -> None:
    notebook = opened(ENDLESS)
    notebook.run(1)
    notebook.await_text(1, "begun")
    notebook.command("notebook:interrupt-kernel")
    notebook.await_end(1)
    notebook.await_text(1, "cancelled")
    assert lab.deployment.api.jobs(limit=1)[0].state == "cancelled"


def test_a_cell_that_is_stopped_says_cancelling_until_the_worker_confirms(
    opened: Callable[..., Any], gate: Path
) -> None:
    notebook = opened(STUBBORN.format(gate=str(gate)), train=TRAIN)
    notebook.run(1)
    notebook.await_text(1, "begun")
    notebook.command("notebook:interrupt-kernel")
    notebook.await_text(1, "not yet")
    shown = notebook.await_text(1, "cancelling")
    assert "cancelled" not in shown
    gate.touch()
    notebook.await_end(1)
    notebook.await_text(1, "cancelled")


def test_stop_under_attach_detaches_and_the_job_goes_on(opened: Callable[..., Any], lab: Lab, gate: Path) -> None:
    detached = PLOT.format(gate=str(gate)).replace("%%gpulayer", "%%gpulayer --detach", 1)
    notebook = opened(detached, "get_ipython().run_line_magic('gpulayer', 'attach ' + _.id)", train=TRAIN)
    notebook.run(1)
    notebook.await_end(1)
    notebook.run(2)
    notebook.await_text(2, "epoch 1")
    notebook.command("notebook:interrupt-kernel")
    notebook.await_text(2, "detached")
    notebook.await_end(2)
    job = lab.deployment.api.jobs(limit=1)[0]
    assert job.state == "running"
    gate.touch()
    until(lambda: lab.deployment.api.job(job.id).state == "succeeded", "the job's end")


def test_an_error_is_shown_with_its_own_lines_and_ends_run_all(opened: Callable[..., Any]) -> None:
    notebook = opened("%%gpulayer\nx = 1\n\n1 / 0", "print('never')")
    notebook.command("notebook:run-all-cells")
    notebook.await_text(1, "ZeroDivisionError")
    notebook.await_end(1)
    shown = notebook.await_text(1, "1 / 0")
    assert "line 4" in shown
    assert notebook.text(2) == ""


def test_two_notebooks_at_once(opened: Callable[..., Any], lab: Lab, page: Any, tmp_path: Path) -> None:
    from tests.support.lab import NotebookPage

    gates = [tmp_path / "first", tmp_path / "second"]
    first = opened(PLOT.format(gate=str(gates[0])), train=TRAIN)
    other = page.context.new_page()
    path = lab.notebook("beside", "%load_ext gpulayer", PLOT.format(gate=str(gates[1])), train=TRAIN)
    second = NotebookPage(other, lab, path).open()
    second.run(0)
    second.await_end(0)
    for notebook in (first, second):
        notebook.run(1)
        notebook.await_text(1, "epoch 1")
    gates[1].touch()
    second.await_text(1, "done on laptop")
    assert "epoch 2" not in first.text(1)
    gates[0].touch()
    first.await_text(1, "done on laptop")
