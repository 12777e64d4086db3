"""Groups when the disk or the cgroup fails."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker.keeper import groups as groups_module
from gpulayer_worker.keeper.containment import Containment
from gpulayer_worker.keeper.records import read_json
from gpulayer_worker.keeper.spawning import Program
from tests.support.keptgroups import KeptGroups


class Bench(KeptGroups):
    """Groups of a containment, and the answers to requests."""

    def __init__(self, root: Path, containment: Containment) -> None:
        super().__init__(root, containment)
        self.said: list[str] = []

    def spawn(self, id: str, script: str) -> dict[str, Any]:
        """Start a group and wait for the answer."""
        answers: list[dict[str, Any]] = []
        env = {"PATH": "/usr/bin:/bin"}
        program = Program(argv=["sh", "-c", script], env=env, cwd=str(self.root), stdout=None, stderr=None)
        self.groups.spawn(id=id, program=program, exit_path=str(self.root / f"{id}.exit"), reply=answers.append)
        self.run_until(lambda: bool(answers))
        return answers[0]


@pytest.fixture
def bench(tmp_path: Path):
    bench = Bench(tmp_path, Containment("marker"))
    yield bench
    bench.loop.close()
    left = list(bench.groups._by_pid)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert left == []


def test_a_group_that_cannot_be_written_down_is_not_started(bench: Bench) -> None:
    shutil.rmtree(bench.folder.groups)
    answer = bench.spawn("a", "touch ran")
    assert answer["ok"] is False
    assert answer["error"].startswith("cannot start a: ")
    assert "No such file or directory" in answer["error"]
    assert not (bench.root / "ran").exists()
    assert bench.groups.rows() == []


def test_an_exit_record_is_written_once_there_is_space_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = groups_module.write_json, [True]

    def write(path: str, value: object) -> None:
        if full[0] and path.endswith(".exit"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        real(path, value)

    monkeypatch.setattr(groups_module, "write_json", write)
    monkeypatch.setattr(groups_module, "_RETRY_WRITE_S", 0.0)
    assert bench.spawn("a", "exit 4")["ok"]
    bench.reap()
    bench.run_until(lambda: [event["event"] for event in bench.events] == ["exit", "gone"])
    assert bench.events[0]["code"] == 4
    assert not (bench.root / "a.exit").exists()
    full[0] = False
    bench.run_until((bench.root / "a.exit").exists)
    record = read_json(str(bench.root / "a.exit"))
    assert record is not None
    assert record["code"] == 4


def test_without_its_cgroup_a_group_is_held_by_descent(bench: Bench, tmp_path: Path) -> None:
    bench.groups._containment = Containment("cgroup", str(tmp_path / "no-cgroup"))
    answer = bench.spawn("a", "exit 0")
    assert answer["ok"]
    assert answer["cgroup"] is None
    bench.reap()
    bench.run_until(lambda: bool(bench.events) and bench.events[-1]["event"] == "gone")


def test_a_kill_during_the_start_is_answered(bench: Bench) -> None:
    answers: list[dict[str, Any]] = []
    program = Program(argv=["no-such-program"], env={}, cwd=str(bench.root), stdout=None, stderr=None)
    bench.groups.spawn(id="a", program=program, exit_path=str(bench.root / "a.exit"), reply=answers.append)
    bench.groups.kill("a", answers.append)
    bench.reap()
    failed, killed = answers
    assert failed == {"ok": False, "error": "cannot start a: cannot run 'no-such-program': No such file or directory"}
    assert killed == {"ok": True, "killed": 0}


def test_after_all_were_killed_none_is_started(bench: Bench) -> None:
    done = []
    assert bench.spawn("a", "exec sleep 3600")["ok"]
    bench.groups.kill_all(lambda: done.append(True))
    answer = bench.spawn("b", "true")
    assert answer == {"ok": False, "error": "cannot start b: the keeper is stopping"}
    bench.run_until(lambda: bool(bench.groups.rows()[0]["processes"] == 0))
    bench.reap()
    bench.run_until(lambda: bool(done))
    assert bench.events[0]["killed_by_us"]
