"""Reading processes from /proc and from ps(1)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpulayer_worker.keeper import procs
from gpulayer_worker.keeper.procs import ProcFs, Ps, Snapshot, parse_ps, parse_stat

MARK = "GPULAYER_TEST_MARK=here"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, with a mark in its environment."""
    name, value = MARK.split("=")
    with subprocess.Popen(["sleep", "3600"], env={**os.environ, name: value}, start_new_session=True) as process:
        yield process
        process.kill()


def stat_line(*, name: str = "sleep", state: str = "S", threads: int = 1) -> bytes:
    fields = [state, "7", "42", "41", *["0"] * 13, str(threads), "0", "1234", "0", "0"]
    return f"42 ({name}) {' '.join(fields)}\n".encode()


@pytest.mark.parametrize("name", ["sleep", "a b", "x) S 1 2 3", "((", ")"])
def test_a_name_cannot_mislead_the_reader(name: str) -> None:
    process = parse_stat(stat_line(name=name))
    assert process is not None
    assert (process.pid, process.ppid, process.session, process.start_time) == (42, 7, 41, 1234)
    assert process.identity == (42, 1234)
    assert not process.dead


@pytest.mark.parametrize(
    ("state", "threads", "dead"), [("Z", 1, True), ("Z", 3, False), ("X", 0, True), ("D", 1, False)]
)
def test_a_zombie_is_dead_unless_other_threads_run_on(state: str, threads: int, dead: bool) -> None:
    process = parse_stat(stat_line(state=state, threads=threads))
    assert process is not None
    assert process.dead is dead


def test_a_cut_stat_is_no_process() -> None:
    assert parse_stat(b"42 (sleep) S 1 2") is None


@pytest.mark.parametrize("table", [ProcFs(), Ps()], ids=["proc", "ps"])
def test_both_tables_see_the_same_child(child: subprocess.Popen[bytes], table: ProcFs | Ps) -> None:
    process = table.one(child.pid)
    assert process is not None
    assert (process.pid, process.ppid, process.session, process.dead) == (child.pid, os.getpid(), child.pid, False)
    again = next(other for other in table.all() if other.pid == child.pid)
    assert again.identity == process.identity
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = table.one(child.pid)
    assert zombie is not None
    assert zombie.dead
    child.wait()
    assert table.one(child.pid) is None


@pytest.mark.parametrize("table", [ProcFs(), Ps()], ids=["proc", "ps"])
def test_a_snapshot_knows_children_and_environments(child: subprocess.Popen[bytes], table: ProcFs | Ps) -> None:
    # until it has executed its program, a child shows its parent's environment
    while table.one(child.pid) is None or MARK.encode() not in Snapshot(table).environ(child.pid):
        assert child.poll() is None
    snapshot = Snapshot(table)
    assert child.pid in snapshot.processes
    assert child.pid in [process.pid for process in snapshot.children(os.getpid())]
    assert MARK.encode() in snapshot.environ(child.pid)
    assert MARK.encode() not in snapshot.environ(os.getpid())
    assert snapshot.environ(1 << 30) == []
    living = snapshot.living(child.pid)
    assert living is not None
    child.kill()
    child.wait()
    assert snapshot.living(child.pid) is None


def test_lines_of_ps() -> None:
    process = parse_ps(b" 42  7 Z+   Mon Sep  1 12:00:00 2025 ")
    assert process is not None
    assert (process.pid, process.ppid, process.dead) == (42, 7, True)
    assert process.start_time == "Mon Sep 1 12:00:00 2025"
    assert parse_ps(b"  PID PPID STAT STARTED") is None


def test_a_ps_that_tells_nothing_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "run_ps", lambda *_: b"")
    with pytest.raises(OSError, match="does not list the processes"):
        Ps().all()


def test_a_lack_of_descriptors_does_not_pass_for_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(procs, "open", no_descriptor, raising=False)
    with pytest.raises(OSError, match="Too many open files"):
        ProcFs().one(os.getpid())
    with pytest.raises(OSError, match="Too many open files"):
        ProcFs().environ(os.getpid())


def test_linux_has_proc() -> None:
    if sys.platform != "linux":
        pytest.skip("for Linux")
    assert isinstance(procs.process_table(), ProcFs)
