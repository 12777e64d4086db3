"""The two steps of a start."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from gpulayer_worker.keeper.spawning import Launch, Program


def program(folder: Path, *argv: str) -> Program:
    return Program(argv=list(argv), env={"PATH": "/usr/bin:/bin"}, cwd=str(folder), stdout=None, stderr=None)


def decided(launch: Launch) -> str:
    """Wait for the outcome."""
    while (outcome := launch.outcome()) is None:
        assert select.select([launch.error_fd], [], [], 30)[0]
    launch.close()
    return outcome


def exit_code(launch: Launch) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(launch.pid, 0)[1])


def test_nothing_runs_before_it_is_told_to_go(tmp_path: Path) -> None:
    launch = Launch(program(tmp_path, "sh", "-c", "echo ran > ran; exit 3"))
    assert launch.outcome() is None
    assert not (tmp_path / "ran").exists()
    launch.go()
    assert decided(launch) == ""
    assert exit_code(launch) == 3
    assert (tmp_path / "ran").exists()


def test_a_child_whose_keeper_is_gone_runs_nothing(tmp_path: Path) -> None:
    launch = Launch(program(tmp_path, "sh", "-c", "echo ran > ran"))
    launch.abandon()  # what the end of the keeper does to the pipe
    assert exit_code(launch) == 125
    launch.close()
    assert not (tmp_path / "ran").exists()


def test_a_discarded_child_is_reaped(tmp_path: Path) -> None:
    launch = Launch(program(tmp_path, "true"))
    launch.discard()
    with pytest.raises(ChildProcessError):
        os.waitpid(launch.pid, 0)


def test_the_reason_of_a_failure_comes_back(tmp_path: Path) -> None:
    launch = Launch(program(tmp_path, "no-such-program"))
    launch.go()
    assert decided(launch) == "cannot run 'no-such-program': No such file or directory"
    assert exit_code(launch) == 127


def test_the_child_leads_its_own_session_before_it_goes(tmp_path: Path) -> None:
    launch = Launch(program(tmp_path, "sh", "-c", "read x < go"))
    os.mkfifo(tmp_path / "go")
    launch.go()
    assert decided(launch) == ""
    assert os.getsid(launch.pid) == os.getpgid(launch.pid) == launch.pid
    (tmp_path / "go").write_text("\n")
    assert exit_code(launch) == 0


def test_descriptors_of_ours_are_not_inherited(tmp_path: Path) -> None:
    (tmp_path / "open").write_text("")
    ours = os.open(tmp_path / "open", os.O_RDONLY)
    os.set_inheritable(ours, True)
    spec = program(tmp_path, "sh", "-c", "ls /proc/self/fd")
    spec.stdout = str(tmp_path / "out")
    launch = Launch(spec)
    launch.go()
    assert decided(launch) == ""
    assert exit_code(launch) == 0
    os.close(ours)
    assert (tmp_path / "out").read_text().split() == ["0", "1", "2", "3"]
