"""A second control plane stands by on the data folder, and takes over when the first ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.endpoint import read_endpoint
from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.processes import end, until

COUNT = """\
import os, time
for n in range(3):
    print(n, flush=True)
while not os.path.exists({go!r}):
    print('.', end='', flush=True)
    time.sleep(0.05)
print()
print('end')
"""
ENDS = {"killed": signal.SIGKILL, "asked to end": signal.SIGTERM}


class StandBy:
    """A control plane that waits for the folder."""

    def __init__(self, deployment: Deployment, number: int):
        self._data = deployment.data
        self._log = deployment.folder / f"stand-by-{number}.log"
        command = [sys.executable, "-m", "gpulayer_server", "--data", str(deployment.data), "--stand-by"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=deployment.env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        until(lambda: "standing by" in self.log, lambda: f"a control plane that stands by:\n{self.log}")

    @property
    def log(self) -> str:
        """What it said."""
        return self._log.read_text()

    @property
    def holds(self) -> bool:
        """Whether it is the one that the folder names."""
        endpoint = read_endpoint(self._data)
        return endpoint is not None and endpoint.pid == self.process.pid

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


class Stage:
    """A deployment, and those who stand by in it."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.waiting: list[StandBy] = []

    def stand_by(self) -> StandBy:
        """One more."""
        self.waiting.append(StandBy(self.deployment, len(self.waiting)))
        return self.waiting[-1]

    def end_holder(self, number: int) -> str:
        """End whoever holds the folder now; its address."""
        endpoint = self.deployment.plane.endpoint
        if self.deployment.plane.process is not None and self.deployment.plane.process.pid == endpoint.pid:
            self.deployment.plane.process.send_signal(number)
            self.deployment.plane.process.wait(60)
            self.deployment.plane.process = None
        else:
            next(each for each in self.waiting if each.holds).end(number)
        return endpoint.url

    def successor(self) -> StandBy:
        """The one that took over; waits for one."""
        return until(lambda: next((each for each in self.waiting if each.holds), None), "somebody to take over")


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A control plane, a worker; whoever stands by is ended first, or it would take over once more."""
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:  # nobody else takes the folder meanwhile
        deployment.plane.start()
        deployment.worker("alpha", warm=0)
        stage = Stage(deployment)
        yield stage
        for each in sorted(stage.waiting, key=lambda each: each.holds):
            if each.process.poll() is None:
                each.end()


def gate(stage: Stage) -> Path:
    """The file that lets the cell go on."""
    return stage.deployment.folder / "go"


@pytest.mark.parametrize("number", ENDS.values(), ids=ENDS.keys())
def test_a_running_cell_shows_all_of_its_output_over_a_take_over(stage: Stage, number: int) -> None:
    deployment = stage.deployment
    notebook = deployment.notebook()
    waiter = stage.stand_by()
    cell = notebook.start(f"%%gpulayer --session s\n{COUNT.format(go=str(gate(stage)))}").until_text("2\n")
    url = stage.end_holder(number)
    assert stage.successor() is waiter
    assert deployment.plane.endpoint.url == url  # at the same address: workers elsewhere find it there
    until(lambda: deployment.connected("alpha"), "the worker to be back")
    gate(stage).touch()
    result = cell.wait()
    first, _, rest = result.text().partition("2\n")
    dots, _, last = rest.partition("\n")
    assert (first, set(dots), last) == ("0\n1\n", {"."}, "end\n")
    until(lambda: all(job.terminal for job in deployment.api.jobs()), "the job's end")
    assert [(job.state, job.attempts) for job in deployment.api.jobs()] == [(State.SUCCEEDED, 1)]
    assert notebook.run("%%gpulayer --session s\nn").data("text/plain") == ["2"]  # the session went on too


def test_of_two_that_stand_by_one_takes_over_and_then_the_other(stage: Stage) -> None:
    deployment = stage.deployment
    notebook = deployment.notebook()
    both = [stage.stand_by(), stage.stand_by()]
    url = stage.end_holder(signal.SIGKILL)
    first = stage.successor()
    (second,) = [each for each in both if each is not first]
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
    assert [" listens on " in each.log for each in (first, second)] == [True, False]
    assert second.process.poll() is None
    assert stage.end_holder(signal.SIGKILL) == url
    until(lambda: second.holds, "the other to take over")
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
    assert len(deployment.api.jobs()) == 2
    assert deployment.plane.endpoint.url == url
    assert deployment.plane.endpoint.epoch == 3


def test_one_that_stands_by_is_quiet_and_ends_when_asked(stage: Stage) -> None:
    waiter = stage.stand_by()
    lines = waiter.log.splitlines()
    assert len(lines) == 1
    assert f"held by another control plane (pid {stage.deployment.plane.pid})" in lines[0]
    assert waiter.end() == 0
    assert waiter.log.splitlines() == lines
    assert stage.deployment.plane.endpoint.pid != waiter.process.pid


def test_with_nobody_there_it_starts_at_once(stage: Stage) -> None:
    stage.end_holder(signal.SIGTERM)
    stage.deployment.plane.start("--stand-by")
    assert stage.deployment.plane.endpoint.epoch == 2
    assert "standing by" not in stage.deployment.plane.log


def test_an_embedded_one_that_is_killed_is_followed_by_the_one_that_stands_by() -> None:
    """The notebook would start another: whoever is quicker holds the folder, and there is only one."""
    with Deployment(env={"GPULAYER_LOCAL_WORKER": "--name here --slots 2 --warm 0 --reserve-bytes 0"}) as deployment:
        notebook = deployment.notebook()
        assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
        deployment.local_worker()
        waiter = StandBy(deployment, 0)
        end(deployment.plane.pid, signal.SIGKILL)
        assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
        assert len(deployment.api.jobs()) == 2
        notebook.close()
        holders = [pid for pid, line in deployment.processes().items() if "gpulayer_server" in line]
        if not waiter.holds:
            waiter.end()
            holders.remove(waiter.process.pid)
        assert holders == [deployment.plane.pid]
        end(deployment.plane.pid)
        if waiter.process.poll() is None:
            waiter.process.wait(60)
        assert os.path.exists(deployment.data / "endpoint.json")
