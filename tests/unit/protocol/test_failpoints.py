"""Failpoints: a process stops where a test armed one, once, and never for a test that has gone away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest

from gpulayer.protocol import failpoints
from gpulayer.protocol.failpoints import Failpoint

CODE = "from gpulayer.protocol.failpoints import reach; reach('here'); reach('here'); print('passed')"


def start(folder: Path | None) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if name != failpoints.VARIABLE}
    if folder is not None:
        env[failpoints.VARIABLE] = str(folder)
    return subprocess.Popen([sys.executable, "-c", CODE], env=env, stdout=subprocess.PIPE)


def output_of(process: subprocess.Popen[bytes]) -> bytes:
    out: IO[bytes] | None = process.stdout
    assert out is not None
    with process, out:
        return out.read()


def test_a_process_stops_once_and_goes_on_when_it_is_released(tmp_path: Path) -> None:
    with Failpoint(tmp_path, "here") as point:
        process = start(tmp_path)
        assert point.await_hit() == process.pid
        assert process.poll() is None
        point.release()
        assert output_of(process) == b"passed\n"
    assert list(tmp_path.iterdir()) == []


def test_without_the_variable_or_an_armed_point_nothing_stops(tmp_path: Path) -> None:
    with Failpoint(tmp_path, "elsewhere"):
        assert output_of(start(tmp_path)) == b"passed\n"
    with Failpoint(tmp_path, "here"):
        assert output_of(start(None)) == b"passed\n"


def test_a_killed_process_leaves_nothing_behind(tmp_path: Path) -> None:
    with Failpoint(tmp_path, "here") as point:
        process = start(tmp_path)
        point.await_hit()
        process.kill()
        assert output_of(process) == b""
    assert list(tmp_path.iterdir()) == []


def test_a_point_that_nobody_reaches_says_so(tmp_path: Path) -> None:
    with (
        Failpoint(tmp_path, "here") as point,
        pytest.raises(TimeoutError, match="no process reached the failpoint here"),
    ):
        point.await_hit(timeout_s=0)


def test_a_process_goes_on_when_the_test_has_gone_away(tmp_path: Path) -> None:
    point = Failpoint(tmp_path, "here")
    point.arm()
    process = start(tmp_path)
    point.await_hit()
    os.close(point._hit)  # as the end of the test's process does
    assert output_of(process) == b"passed\n"
    os.mkfifo(tmp_path / "here.hit")  # armed by one that has gone before anybody came
    assert output_of(start(tmp_path)) == b"passed\n"


def test_one_of_many_threads_stops(tmp_path: Path) -> None:
    failpoints.configure(str(tmp_path))
    passed: list[int] = []
    try:
        with Failpoint(tmp_path, "here") as point:
            threads = [threading.Thread(target=lambda: (failpoints.reach("here"), passed.append(1))) for _ in range(4)]
            for thread in threads:
                thread.start()
            assert point.await_hit() == os.getpid()
            point.release()
            for thread in threads:
                thread.join()
    finally:
        failpoints.configure(None)
    assert passed == [1] * 4


def test_an_armed_point_is_not_armed_again(tmp_path: Path) -> None:
    with Failpoint(tmp_path, "here"), pytest.raises(FileExistsError):
        Failpoint(tmp_path, "here").arm()
