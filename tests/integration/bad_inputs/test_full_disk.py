"""A full disk, on either side: one clear line, nothing half-done, and all goes on once there is room again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.types import JobView, State
from tests.integration.bad_inputs.conftest import Command, Disk, Mount, half_written
from tests.support.deployment import Deployment
from tests.support.notebook import Cell
from tests.support.processes import until

SIZE_BYTES = 64_000_000
CHATTY = """\
import os, time
print('go')
number = 0
while not os.path.exists({go!r}):
    number += 1
    print(str(number).ljust(20_000, '.'))
    time.sleep(0.02)
print('end', number)
"""


@pytest.fixture
def stage(mount: Mount) -> Iterator[Deployment]:
    """A deployment in which nothing runs, whose control plane's and worker's folders are small file systems."""
    deployment = Deployment(env={"GPULAYER_EMBEDDED": "0"})
    mount(deployment.data, SIZE_BYTES)
    mount(deployment.folder / "w-alpha", SIZE_BYTES)
    with deployment:
        deployment.plane.start()
        yield deployment
    shutil.rmtree(deployment.folder, ignore_errors=True)


def ended(deployment: Deployment) -> list[JobView]:
    """All jobs, once they are over: a cell ends a commit before its job does."""
    until(lambda: all(job.terminal for job in deployment.api.jobs()), "the jobs to end")
    return deployment.api.jobs()


def complete(text: str) -> bool:
    """Whether the chatty cell's output is whole: each line once, in order."""
    go, *lines, end = text.splitlines()
    numbers = [int(line.rstrip(".")) for line in lines]
    return (go, numbers, end) == ("go", list(range(1, len(lines) + 1)), f"end {len(lines)}")


def start_chatty(deployment: Deployment, go: Path) -> Cell:
    """The cell, once it prints."""
    notebook = deployment.notebooks[-1]
    return notebook.start(f"%%gpulayer --max-output 1GB\n{CHATTY.format(go=str(go))}").until_text("go")


# ---------------------------------------------------------------- the control plane's


def test_the_control_planes_disk(stage: Deployment) -> None:
    stage.worker("alpha")
    notebook = stage.notebook({"train.py": "LR = 0.1\n"})
    disk = Disk(stage.data)
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
    disk.fill()

    (line,) = notebook.run("%%gpulayer\nprint('never')").traceback.splitlines()
    assert line.startswith("gpulayer: the control plane could not write; nothing was done: ")
    assert line.endswith(f"{stage.data}/store.db: database or disk is full; make room on that disk, then try again")
    answer = stage.request("POST", "/v1/jobs", json={"key": "k", "spec": {"cell": {"code": "1"}}})
    assert (answer.status_code, answer.json()["code"]) == (507, "store_failed")

    (notebook.folder / "data.bin").write_bytes(os.urandom(3_000_000))
    (line,) = notebook.run("%%gpulayer\nprint('never')").traceback.splitlines()
    assert line.startswith("gpulayer: the control plane can't store the source: ")
    assert "No space left on device" in line
    until(lambda: not half_written(stage.data), "no half-written file to be left")
    assert len(stage.api.jobs()) == 1

    disk.free()
    assert notebook.run("%%gpulayer\nimport train\ntrain.LR").data("text/plain") == ["0.1"]
    assert [job.state for job in ended(stage)] == [State.SUCCEEDED, State.SUCCEEDED]


def test_the_control_planes_disk_while_a_cell_prints(stage: Deployment) -> None:
    worker = stage.worker("alpha")
    stage.notebook()
    disk, go = Disk(stage.data), stage.folder / "go"
    cell = start_chatty(stage, go)
    keeper, agent = worker.keeper_pid, worker.agent_pid
    disk.fill()
    until(
        lambda: "can't grow" in stage.plane.log or "a commit failed" in stage.plane.log, "the control plane to notice"
    )
    seen = len(cell.text())
    disk.free()
    cell.until(lambda cell: len(cell.text()) > seen + 40_000)
    go.touch()
    result = cell.wait()
    assert complete(result.text())
    assert (worker.keeper_pid, worker.agent_pid) == (keeper, agent)
    assert [(job.state, job.attempts) for job in ended(stage)] == [(State.SUCCEEDED, 1)]
    assert stage.plane.log.count("can't grow") <= 3  # it asks again after a while, not at once


def test_a_control_plane_that_finds_no_room_does_not_start(stage: Deployment) -> None:
    stage.plane.stop()
    disk = Disk(stage.data)
    disk.fill()
    refused = Command("gpulayer_server", "--data", str(stage.data), env=stage.env)
    assert (refused.code, len(refused.lines)) == (1, 1)
    assert str(stage.data) in refused.lines[0]
    assert "No space left on device" in refused.lines[0] or "disk is full; make room" in refused.lines[0]
    disk.free()
    stage.plane.start()
    assert stage.api.jobs() == []


# ---------------------------------------------------------------- the worker's


def test_the_workers_disk_below_its_reserve(stage: Deployment) -> None:
    """The running cell's output waits there, and new work waits for the machine; both say so, and both go on."""
    stage.worker("alpha", "--reserve-bytes", "16000000")
    stage.notebook()
    disk, go = Disk(stage.folder / "w-alpha"), stage.folder / "go"
    cell = start_chatty(stage, go)
    disk.fill(leave_bytes=8_000_000)
    cell.until(lambda cell: "MB free on the worker's disk" in cell.out.status[-1])
    assert "output waits: " in cell.out.status[-1]
    until(lambda: "disk below its reserve" in str(stage.api.workers()[0].notes), "the worker to say so")
    second = stage.notebook().start("%%gpulayer\nprint('second')")
    second.until(lambda cell: bool(cell.out.status) and cell.out.status[-1].startswith("○ waiting"))
    (job,) = [job for job in stage.api.jobs() if job.state is State.QUEUED]
    (reason,) = until(lambda: stage.api.job(job.id).reasons, "why it waits")
    assert (reason.worker, reason.code, reason.temporary) == ("alpha", "disk", True)
    said = reason.text[: reason.text.index("its reserve, ")]  # how much is free changes
    second.until(lambda cell: said in cell.out.status[-1])
    disk.free()
    assert second.wait().text() == "second\n"
    go.touch()
    assert complete(cell.wait().text())
    assert [job.state for job in ended(stage)] == [State.SUCCEEDED, State.SUCCEEDED]


def test_the_workers_disk_with_no_room_at_all(stage: Deployment) -> None:
    """A running cell waits; one that can't even be begun there fails with what to do, and nothing of it is left."""
    worker = stage.worker("alpha")
    stage.notebook()
    disk, go = Disk(worker.data), stage.folder / "go"
    cell = start_chatty(stage, go)
    agent = worker.agent_pid
    disk.fill()
    cell.until(lambda cell: "output waits: 0 MB free" in cell.out.status[-1])
    other = stage.notebook({"train.py": "LR = 0.1\n"})
    for options in ("", "--session s"):
        result = other.run(f"%%gpulayer {options}\nprint('never')")
        (line,) = result.traceback.splitlines()
        said = f"no room is left on the worker's disk, in {worker.data}: make room there, then run it again"
        assert line.endswith(f" failed on alpha: {said}")
        assert said in result.status[-1]
    disk.free()
    go.touch()
    assert complete(cell.wait().text())
    until(lambda: stage.slots_free("alpha") + len(stage.api.sessions()) == 4, "the slots")
    assert other.run("%%gpulayer\nimport train\ntrain.LR").data("text/plain") == ["0.1"]
    assert other.run("%%gpulayer --session s\nimport train\ntrain.LR").data("text/plain") == ["0.1"]
    assert worker.agent_pid == agent
    until(lambda: not half_written(worker.data), "no half-written file to be left")
