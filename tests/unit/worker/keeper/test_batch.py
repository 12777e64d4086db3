"""Groups that are started by the batch, in this very process: children are reaped when the test says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker.keeper import batch as batch_module
from gpulayer_worker.keeper import journal as journal_module
from gpulayer_worker.keeper.containment import Containment
from tests.support.keptgroups import KeptGroups


class Bench(KeptGroups):
    """One keeper's groups that know no cgroups, and what they tell."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, Containment("marker"))

    def job(self, id: str, script: str, **more: Any) -> dict[str, Any]:
        files = {"stdout": str(self.root / f"{id}.out"), "stderr": str(self.root / f"{id}.err")}
        return {"id": id, "argv": ["sh", "-c", script], "env": {"B": "own"}, "cwd": str(self.root), **files, **more}

    def start(self, *jobs: dict[str, Any]) -> None:
        self.groups.start(list(jobs), {"PATH": "/usr/bin:/bin", "A": "common"})

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def close(self) -> None:
        for pid in list(self.groups._by_pid):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.groups.close()
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    before = os.getcwd()
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    os.chdir(before)


def test_the_begin_and_the_end_of_each_are_told_once(bench: Bench) -> None:
    bench.start(bench.job("a", "echo $A $B $GPULAYER_GROUP; exit 3"), bench.job("b", "kill -TERM $$"))
    bench.groups.settle()
    (started,) = bench.told("started")
    assert [id for id, _ in started["groups"]] == ["a", "b"]
    bench.reap()
    bench.run_until(lambda: len(bench.told("ended")) == 2)
    ends = {event["id"]: event for event in bench.told("ended")}
    assert (ends["a"]["code"], ends["a"]["signal"], ends["a"]["gone"]) == (3, None, True)
    assert (ends["b"]["code"], ends["b"]["signal"], ends["b"]["gone"]) == (None, signal.SIGTERM, True)
    assert ends["a"]["wall_s"] >= 0
    assert (bench.root / "a.out").read_text() == "common own a\n"
    assert os.getcwd() == "/"


def test_a_small_ones_begin_is_not_told(bench: Bench) -> None:
    bench.start(bench.job("a", "exit 0"))
    bench.reap()
    bench.run_until(lambda: bool(bench.told("ended")))
    assert bench.told("started") == []


def test_what_cannot_be_started_is_told_and_the_others_run(bench: Bench) -> None:
    missing = bench.job("b", "", argv=["no-such-program"])
    nul = bench.job("c", "", argv=["sh", "a\0b"])
    bench.start(bench.job("a", "exit 0"), missing, nul, bench.job("d", "exit 0"))
    bench.reap()
    bench.run_until(lambda: len(bench.told("ended")) == 2)
    assert [(event["id"], event["step"]) for event in bench.told("unstarted")] == [("b", "find"), ("c", "run")]
    bench.groups.look(["a", "b", "x"])
    assert [event["id"] for event in bench.told("unknown")] == ["b", "x"]


def test_who_is_started_again_is_told_of_again(bench: Bench) -> None:
    bench.start(bench.job("a", f"echo ran >> {bench.root}/runs; exec sleep 3600"))
    bench.groups.settle()
    bench.start(bench.job("a", f"echo ran >> {bench.root}/runs"))
    bench.groups.settle()
    assert len(bench.told("started")) == 2
    bench.run_until((bench.root / "runs").exists)
    (main,) = bench.groups._by_pid
    os.kill(main, signal.SIGKILL)
    bench.reap()
    bench.run_until(lambda: bool(bench.told("ended")))
    bench.start(bench.job("a", f"echo ran >> {bench.root}/runs"))
    assert len(bench.told("ended")) == 2
    assert (bench.root / "runs").read_text() == "ran\n"


def test_without_its_intent_written_none_is_started(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(journal_module.os, "write", lambda fd, data: real(fd, data[:3]))
    bench.start(bench.job("a", f"touch {bench.root}/ran"), bench.job("b", f"touch {bench.root}/ran"))
    monkeypatch.undo()
    assert [(event["id"], event["step"]) for event in bench.told("unstarted")] == [("a", "journal"), ("b", "journal")]
    assert not (bench.root / "ran").exists()
    bench.start(bench.job("a", "exit 0"))  # the id is free
    bench.reap()
    bench.run_until(lambda: bool(bench.told("ended")))


def test_an_end_that_cannot_be_written_is_told_and_written_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "_RETRY_WRITE_S", 0.0)
    bench.start(bench.job("a", "exit 5"))
    bench.reap()
    with monkeypatch.context() as full:
        full.setattr(journal_module.Journal, "_append", _no_space)
        bench.run_until(lambda: bool(bench.told("ended")))
    assert "exit" not in Bench(bench.root).groups._journal.known["a"]
    bench.run_until(lambda: b'"code": 5' in Path(bench.folder.journal).read_bytes())


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_the_next_keeper_knows_ends_and_finds_who_runs(bench: Bench) -> None:
    bench.start(bench.job("done", "exit 6"))
    bench.reap()
    bench.run_until(lambda: bool(bench.told("ended")))
    bench.start(bench.job("runs", f"touch {bench.root}/up; exec sleep 3600"))
    bench.run_until((bench.root / "up").exists)
    (main,) = bench.groups._by_pid
    assert bench.groups._journal.known["runs"].get("pid") in (None, main)
    following = Bench(bench.root)
    following.groups.adopt()
    following.groups.look(["done", "runs", "other"])
    following.groups.settle()
    assert [(event["id"], event["code"], event["gone"]) for event in following.told("ended")] == [("done", 6, True)]
    assert [id for id, _ in following.told("started")[0]["groups"]] == ["runs"]
    assert [event["id"] for event in following.told("unknown")] == ["other"]
    os.kill(main, signal.SIGKILL)
    os.waitpid(main, 0)
    bench.groups._by_pid.clear()
    following.run_until(lambda: len(following.told("ended")) == 2)
    assert following.told("ended")[1]["unknown"]
    following.close()


def test_what_is_kept_is_all_that_stays(bench: Bench) -> None:
    bench.start(*[bench.job(id, "exec sleep 3600") for id in ("a", "b", "c")])
    bench.groups.keep(["b"])
    bench.groups.settle()
    killed = [pid for pid, group in bench.groups._by_pid.items() if group.id != "b"]
    for pid in killed:
        bench.groups.reaped(*os.wait4(pid, 0))
    bench.run_until(lambda: list(bench.groups._by_id) == ["b"])
    assert set(bench.groups._journal.known) == {"b"}


def test_who_is_dropped_early_is_forgotten_once_it_is_gone(bench: Bench) -> None:
    bench.start(bench.job("a", "exit 0"))
    bench.groups.drop(["a", "never-there"])
    assert "a" in bench.groups._by_id
    bench.reap()
    bench.run_until(lambda: not bench.groups._by_id)
    assert bench.groups._journal.known == {}


def test_a_cgroup_that_is_given_back_twice_is_not_given_to_two(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    pool = bench.groups._pool
    monkeypatch.setattr(pool, "take", lambda: "p0")
    monkeypatch.setattr(pool, "enter", lambda path: None)  # the kernel refuses
    monkeypatch.setattr(pool, "give_back", given.append)
    bench.start(bench.job("a", "true", cwd=str(bench.root / "missing")))
    assert given == ["p0"]
    assert [event["step"] for event in bench.told("unstarted")] == ["cwd"]


def test_a_fault_in_a_start_leaves_the_keeper_in_its_own_cgroup(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr(bench.groups._pool, "leave", lambda: left.append("left"))
    monkeypatch.setattr(bench.groups._pool, "enter", lambda path: path)
    with pytest.raises(IndexError):
        bench.start(bench.job("a", "true", argv=[]))
    assert left == ["left"]
    assert os.getcwd() == "/"
