"""A probe's process leaves nothing, however it ends, and ends where nobody waits for it any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpulayer_worker.probes.child import Child
from tests.support.frameworks import TORCH, interpreter
from tests.support.processes import until, wait_for_end

ASK = {
    "script": "probe_torch",
    "targets": [{"name": "cpu", "kind": "cpu", "index": 0}],
    "about": {"cuda": "", "driver": "", "packages": {}},
}
HANGS = """
import subprocess
note = os.environ["CUDA_NOTE"]
def hook(name):
    other = subprocess.Popen([sys.executable, "-c", "import os, time; os.setpgid(0, 0); time.sleep(3600)"])
    with open(note + ".new", "w") as file:
        file.write(f"{os.getpid()} {other.pid}")
    os.rename(note + ".new", note)
    time.sleep(3600)
"""


@pytest.fixture
def hanging(tmp_path: Path) -> str:
    """An interpreter whose torch hangs, with a process that left its process group."""
    return interpreter(tmp_path / "env", {"torch": ("2.13.0", TORCH + HANGS)})


def pids(note: Path) -> list[int]:
    until(note.exists, "the probe to hang")
    return [int(pid) for pid in note.read_text().split()]


def test_what_gives_no_answer_is_killed_whole(hanging: str, tmp_path: Path) -> None:
    answer = Child(hanging, ASK, {"CUDA_NOTE": str(tmp_path / "note")}, limit_s=4.0).run()
    assert (answer.stage, answer.ended) == ("computing on cpu", "gave no answer in 4 s")
    for pid in pids(tmp_path / "note"):
        wait_for_end(pid)


def test_another_thread_may_end_it(hanging: str, tmp_path: Path) -> None:
    child = Child(hanging, ASK, {"CUDA_NOTE": str(tmp_path / "note")})
    thread = threading.Thread(target=child.run)
    thread.start()
    found = pids(tmp_path / "note")
    child.end()
    thread.join(60.0)
    assert not thread.is_alive()
    for pid in found:
        wait_for_end(pid)


def test_one_that_is_ended_before_its_start_is_not_started(hanging: str, tmp_path: Path) -> None:
    child = Child(hanging, ASK, {"CUDA_NOTE": str(tmp_path / "note")})
    child.end()
    assert child.run().ended == "can't be started: the agent ends"
    assert not (tmp_path / "note").exists()


def test_it_ends_with_an_agent_that_is_killed(hanging: str, tmp_path: Path) -> None:
    code = f"""
from gpulayer_worker.probes.child import Child
Child({hanging!r}, {ASK!r}, {{"CUDA_NOTE": {str(tmp_path / "note")!r}}}).run()
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        probe, other = pids(tmp_path / "note")
        parent.kill()
    wait_for_end(probe)
    os.kill(other, signal.SIGKILL)  # it left the group of a probe that was killed with its parent


def test_time_without_a_core_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The step takes longer than its limit, but by the system's word it waited for most of that."""
    python = interpreter(tmp_path / "env", {"torch": ("2.13.0", TORCH + "\ndef hook(name):\n    time.sleep(2.5)\n")})
    waited = iter(range(0, 10_000, 2))
    monkeypatch.setattr("gpulayer_worker.probes.child._waited_s", lambda pid: float(next(waited)))
    answer = Child(python, ASK, {}, limit_s=1.0).run()
    assert answer.ended == ""


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    answer = Child(str(tmp_path / "python"), ASK, {}).run()
    assert answer.ended == "can't be started: No such file or directory"
