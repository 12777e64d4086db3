"""Helpers of the bad inputs: what is left of a refused cell, commands of ours, file systems of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import until
from tests.support.tree import files_under

Mount = Callable[[Path, int], None]


class Command:
    """A command of ours, run to its end."""

    def __init__(self, *words: str, env: dict[str, str], timeout_s: float = 60):
        done = subprocess.run(
            [sys.executable, "-m", *words], env=env, capture_output=True, text=True, timeout=timeout_s, cwd="/"
        )
        self.code = done.returncode
        self.lines = done.stderr.strip().splitlines()


@pytest.fixture
def command() -> Callable[..., Command]:
    """`command('gpulayer_worker', 'join', …, env=…)`: its exit code, and the lines on its standard error."""
    return Command


class Left:
    """What there is of jobs, half-written files and processes, before and after a refusal."""

    def __init__(self, deployment: Deployment):
        self._deployment = deployment
        self._jobs = self.jobs()

    def jobs(self) -> set[str]:
        """The ids of the jobs that are not of the past as rejected ones: those were never begun."""
        return {job.id for job in self._deployment.api.jobs(limit=1000)}

    def check(self, *, rejected: bool = False) -> None:
        """Nothing was begun: at most a job that was rejected at once is told of."""
        for name in self.jobs() - self._jobs:
            job = self._deployment.api.job(name)
            assert rejected, f"a job was made: {job}"
            assert (job.state.value, job.attempts, job.attempt) == ("rejected", 0, None)
        until(lambda: not half_written(self._deployment.folder), "no half-written file to be left")


def half_written(folder: Path) -> list[Path]:
    """Temporary files of blobs and bundles, whose writers are gone."""
    return [path for path in files_under(folder) if path.name.startswith(".new-") or path.name.endswith(".tmp")]


@pytest.fixture
def left(deployment: Deployment) -> Left:
    """To be asked after a refusal."""
    return Left(deployment)


@pytest.fixture
def mount() -> Iterator[Mount]:
    """`mount(folder, size_bytes)`: a small file system of its own there, until the test ends; skips where it can't."""
    with ExitStack() as stack:

        def make(folder: Path, size_bytes: int) -> None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.geteuid() != 0 or shutil.which("mount") is None:
                pytest.skip("only root can mount a small file system")
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "tmpfs", str(folder)]
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode != 0:
                pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)

        yield make


class Disk:
    """A small file system that can be filled up."""

    def __init__(self, folder: Path):
        self._filler = folder / "filler"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Take all room, but so much."""
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, bytes(4096))
            os.ftruncate(fd, max(0, os.fstat(fd).st_size - leave_bytes))
        finally:
            os.close(fd)

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink()
