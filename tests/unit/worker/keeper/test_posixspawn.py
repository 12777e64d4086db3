"""Starting a program in one step."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer_worker.keeper import posixspawn
from gpulayer_worker.keeper.posixspawn import StartError, find, start, start_on
from gpulayer_worker.keeper.spawning import Program


@pytest.fixture(autouse=True)
def _back_home() -> Iterator[None]:
    before = os.getcwd()
    yield
    os.chdir(before)


def program(folder: Path, *argv: str, path: str = "/usr/bin:/bin", cwd: Path | None = None) -> Program:
    out, err = str(folder / "out"), str(folder / "err")
    return Program(argv=list(argv), env={"PATH": path, "A": "b"}, cwd=str(cwd or folder), stdout=out, stderr=err)


def run(program: Program) -> int:
    """The exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(start(program), 0)[1])


SCRIPT = "pwd; echo $A $#; [ $(ps -o sid= -p $$) = $$ ] && echo own; cat; echo words >&2; exit 4"


def test_it_runs_in_its_folder_its_session_and_its_files(tmp_path: Path) -> None:
    assert run(program(tmp_path, "sh", "-c", SCRIPT, "x", "y z")) == 4
    assert (tmp_path / "out").read_text() == f"{tmp_path}\nb 1\nown\n"
    assert (tmp_path / "err").read_text() == "words\n"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_where_no_session_can_be_made_on_the_way_it_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object, **__: object) -> int:
        raise NotImplementedError

    monkeypatch.setattr(posixspawn.os, "posix_spawn", cannot)
    assert run(program(tmp_path, "sh", "-c", SCRIPT, "x", "y z")) == 4
    assert (tmp_path / "out").read_text() == f"{tmp_path}\nb 1\nown\n"
    with pytest.raises(StartError) as caught:
        start(program(tmp_path, "./missing"))
    assert caught.value.step == "run"


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_name_is_looked_up_in_the_programs_own_path(tmp_path: Path) -> None:
    executable(tmp_path / "first" / "hello", "#!/bin/sh\nexit 11\n")
    executable(tmp_path / "second" / "hello", "#!/bin/sh\nexit 12\n")
    (tmp_path / "folder" / "hello").mkdir(parents=True)
    path = f"{tmp_path}/none:{tmp_path}/folder:{tmp_path}/first:{tmp_path}/second"
    assert run(program(tmp_path, "hello", path=path)) == 11
    executable(tmp_path / "here", "#!/bin/sh\nexit 13\n")
    assert run(program(tmp_path, "./here")) == 13
    assert run(program(tmp_path, "here", path=":/bin")) == 13  # an empty entry is the working folder


@pytest.mark.parametrize(
    ("argv", "step", "number"),
    [
        (("no-such-program",), "find", errno.ENOENT),
        (("plain",), "find", errno.EACCES),
        (("./plain",), "run", errno.EACCES),
        (("./missing",), "run", errno.ENOENT),
        (("./no-program",), "run", errno.ENOEXEC),
        (("./no-interpreter",), "run", errno.ENOENT),
    ],
)
def test_what_cannot_be_started_says_at_which_step(
    tmp_path: Path, argv: tuple[str, ...], step: str, number: int
) -> None:
    executable(tmp_path / "no-program", "words")
    executable(tmp_path / "no-interpreter", "#!/no/such/interpreter\n")
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "plain").chmod(0o644)
    with pytest.raises(StartError) as caught:
        start(program(tmp_path, *argv, path=str(tmp_path)))
    assert (caught.value.step, caught.value.number) == (step, number)


def test_a_folder_or_an_output_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        start(program(tmp_path, "true", cwd=tmp_path / "none"))
    assert (caught.value.step, caught.value.number) == ("cwd", errno.ENOENT)
    wanted = program(tmp_path, "true")
    wanted.stderr = str(tmp_path / "none" / "err")
    with pytest.raises(StartError) as caught:
        start(wanted)
    assert (caught.value.step, caught.value.number) == ("output", errno.ENOENT)


def test_a_name_with_a_slash_is_not_looked_up() -> None:
    assert find("./x", "/bin") == "./x"
    assert find("/bin/sh", "") == "/bin/sh"
    assert find("sh", "/bin").endswith("/sh")


def test_what_we_were_started_with_does_not_reach_a_program(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    posixspawn.keep_from_programs()
    assert not os.get_inheritable(write)
    os.close(read)
    os.close(write)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_it_is_born_on_the_cores_that_it_is_bound_to_and_the_keeper_stays_where_it_is(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    words = "import os; print(sorted(os.sched_getaffinity(0)))"
    pid = start_on(program(tmp_path, sys.executable, "-c", words), [core])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "out").read_text() == f"[{core}]\n"
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_cores_that_are_not_there_are_no_place_to_start(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(StartError) as caught:
        start_on(program(tmp_path, "true"), [60000])
    assert caught.value.step == "run"
    assert os.sched_getaffinity(0) == before
