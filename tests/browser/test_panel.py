"""The panel: machines, jobs, sessions, live; a job's output in the main area; a machine that joins by a pasted line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.deployment import Worker
from tests.support.lab import Lab
from tests.support.processes import PATIENCE_S, until

WAIT = """%%gpulayer {options}
import os, time
print("epoch 1", flush=True)
while not os.path.exists({gate!r}):
    time.sleep(0.02)
print("epoch 2")"""


@pytest.fixture(autouse=True)
def patience() -> None:
    expect.set_options(timeout=PATIENCE_S * 1000)


def panel(notebook: Any) -> Any:
    """The panel, opened by its command: a click on its tab would close it where it is open."""
    notebook.command("gpulayer:open-panel")
    shown = notebook.page.locator("#gpulayer-panel")
    shown.wait_for()
    return shown


def test_this_machine_and_the_jobs_are_shown_live(opened: Callable[..., Any], lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    notebook = opened(WAIT.format(options="--name trial", gate=str(gate)))
    shown = panel(notebook)
    machine = shown.locator('[data-worker="laptop"]')
    expect(machine).to_have_attribute("data-online", "true")
    expect(machine).to_contain_text("4 of 4 slots free")
    notebook.run(1)
    notebook.await_text(1, "epoch 1")
    job = lab.deployment.api.jobs(limit=1)[0]
    row = shown.locator(f'[data-job="{job.id}"]')
    expect(row).to_have_attribute("data-state", "running")
    expect(row).to_contain_text("trial")
    expect(machine).to_contain_text("3 of 4 slots free")
    gate.touch()
    expect(row).to_have_attribute("data-state", "succeeded")
    expect(machine).to_contain_text("4 of 4 slots free")


def test_a_jobs_output_opens_in_the_main_area_and_follows(opened: Callable[..., Any], lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    notebook = opened(WAIT.format(options="--detach", gate=str(gate)))
    shown = panel(notebook)
    notebook.run(1)
    notebook.await_end(1)
    job = lab.deployment.api.jobs(limit=1)[0]
    shown.locator(f'[data-job="{job.id}"] [data-action="open-job"]').click()
    view = notebook.page.locator(".gpulayer-JobView")
    expect(view).to_contain_text("epoch 1")
    expect(view.locator(".gpulayer-JobHeader")).to_have_attribute("data-state", "running")
    gate.touch()
    expect(view).to_contain_text("epoch 2")
    expect(view.locator(".gpulayer-JobHeader")).to_have_attribute("data-state", "succeeded")


def test_its_tab_stands_in_the_left_sidebar(opened: Callable[..., Any]) -> None:
    notebook = opened("1")
    notebook.page.locator('.jp-SideBar.jp-mod-left .lm-TabBar-tab[data-id="gpulayer-panel"]').click()
    expect(notebook.page.locator("#gpulayer-panel")).to_contain_text("Machines")


def test_why_a_job_has_no_machine_is_told_by_machine(opened: Callable[..., Any], lab: Lab) -> None:
    notebook = opened("%%gpulayer --accelerator cuda\n1")
    shown = panel(notebook)
    notebook.run(1)
    notebook.await_text(1, "no eligible worker")
    job = lab.deployment.api.jobs(limit=1)[0]
    shown.locator(f'[data-job="{job.id}"]').get_by_text("why?").click()
    expect(shown.locator(".gpulayer-Why")).to_contain_text("needs 1 usable cuda device")


def test_a_job_is_cancelled_and_a_session_released_from_the_panel(opened: Callable[..., Any], lab: Lab) -> None:
    notebook = opened("%%gpulayer --session kept\nx = 1", "%%gpulayer --detach\nwhile True:\n    pass")
    shown = panel(notebook)
    notebook.run(1)
    notebook.await_end(1)
    session = shown.locator('[data-session="kept"]')
    session.get_by_text("release").click()
    expect(session).to_have_count(0)
    notebook.run(2)
    notebook.await_end(2)
    job = lab.deployment.api.jobs(limit=1)[0]
    row = shown.locator(f'[data-job="{job.id}"]')
    row.get_by_text("cancel", exact=True).click()
    expect(row).to_have_attribute("data-state", "cancelled")


def test_a_machine_is_added_by_the_line_that_the_panel_shows(opened: Callable[..., Any], lab: Lab) -> None:
    notebook = opened("1")
    shown = panel(notebook)
    shown.get_by_role("button", name="Add a machine").first.click()
    dialog = notebook.page.locator(".gpulayer-AddMachine")
    expect(dialog).to_have_attribute("data-state", "waiting")
    line = shlex.split(dialog.locator(".gpulayer-JoinLine textarea").input_value())
    assert line[0] == "gpulayer-worker"
    data = lab.deployment.folder / "w-added"
    command = [str(Path(sys.executable).with_name(line[0])), *line[1:]]
    command += ["--name", "added", "--data", str(data), "--slots", "1", "--warm", "0", "--reserve-bytes", "0"]
    worker = lab.deployment.workers["added"] = Worker("added", data, command, lab.deployment.env)
    worker.start()
    expect(dialog).to_have_attribute("data-state", "arrived")
    expect(dialog).to_contain_text("added is here")
    expect(shown.locator('[data-worker="added"]')).to_have_attribute("data-online", "true")
    assert not [each for each in lab.deployment.processes().values() if "gl-join" in each]  # in no process's arguments
    worker.stop()
    until(lambda: not lab.deployment.connected("added"), "the worker to be gone")
