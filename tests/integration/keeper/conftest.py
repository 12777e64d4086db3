"""A keeper with a data folder of its own, and a check that it left no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer_worker.keeper.client import KeeperClient, start_keeper
from gpulayer_worker.keeper.containment import VARIABLE

TAG = "GPULAYER_TEST_TAG"
PATIENCE_S = 30


class Mailbox:
    """A named pipe into which the processes under test write lines."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def line(self) -> str:
        """The next line; fails when none comes."""
        while b"\n" not in self._rest:
            assert select.select([self._fd], [], [], PATIENCE_S)[0], f"no line came into {self.path.name}"
            self._rest += os.read(self._fd, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._fd)


class House:
    """A data folder, the keepers started for it, and what their processes are known by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "worker"
        self.tag = uuid.uuid4().hex
        # processes that clear their environment are known by their command line
        self.sleep = f"sleep 3600.{int(self.tag[:8], 16)}"
        self.mail = Mailbox(folder / "mail")
        self.env = {"PATH": "/usr/bin:/bin", TAG: self.tag, "MAIL": str(self.mail.path)}
        self.keepers: list[subprocess.Popen[str]] = []
        self.containment: str | None = None

    @property
    def keeper_env(self) -> dict[str, str]:
        forced = {} if self.containment is None else {VARIABLE: self.containment}
        return {**os.environ, **self.env, **forced}

    @property
    def agent_argv(self) -> list[str]:
        """An agent that says that it is up and stays."""
        return ["sh", "-c", f"echo agent $$ > $MAIL; exec {self.sleep}"]

    def start(self, *flags: str, agent: str | None = None, argv: list[str] | None = None) -> subprocess.Popen[str]:
        """Start a keeper; its agent is a line of shell, or any argv, or one that stays, which is waited for."""
        if argv is None:
            argv = self.agent_argv if agent is None else ["sh", "-c", agent]
        command = [sys.executable, "-m", "gpulayer_worker.keeper", "--data", str(self.data), *flags, "--", *argv]
        keeper = subprocess.Popen(command, env=self.keeper_env, stderr=subprocess.PIPE, text=True)
        self.keepers.append(keeper)
        if argv == self.agent_argv:
            assert self.mail.line().startswith("agent ")  # the agent starts when the socket answers
        return keeper

    def start_detached(self, *, portable: bool = False) -> None:
        """Start a keeper as an agent does that lost its own."""
        start_keeper(self.data, self.agent_argv, portable=portable, env=self.keeper_env)

    def end(self, keeper: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
        """Signal a keeper; its exit code and what it said."""
        keeper.send_signal(number)
        return self.ended(keeper)

    def ended(self, keeper: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for a keeper's end; its exit code and what it said."""
        _, said = keeper.communicate(timeout=PATIENCE_S)
        return keeper.returncode, said

    def client(self) -> KeeperClient:
        return KeeperClient(self.data)

    def record(self, name: str) -> dict:
        return json.loads((self.data / name).read_bytes())

    def job(self, id: str, script: str, **more: object) -> dict:
        """The arguments of `spawn` for a line of shell."""
        exit_path = self.folder / f"{id}.exit"
        return {
            "id": id,
            "argv": ["sh", "-c", script],
            "env": self.env,
            "cwd": str(self.folder),
            "exit": exit_path,
            "stdout": self.folder / f"{id}.out",
            "stderr": self.folder / f"{id}.out",
            **more,
        }

    def output(self, id: str) -> str:
        return (self.folder / f"{id}.out").read_text()

    def processes(self) -> dict[int, str]:
        """Living processes of this house but its keepers and agents: pid and command line."""
        return {pid: line for pid, line in self.everyone().items() if not self._is_keeper_or_agent(pid)}

    def everyone(self) -> dict[int, str]:
        """All living processes of this house: pid and command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                tagged = f"{TAG}={self.tag}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if state != "Z" and (tagged or self.sleep in line):
                    found[int(entry.name)] = line
        return found

    def _is_keeper_or_agent(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return (
                b"gpulayer_worker.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
                or b"GPULAYER_GROUP=@agent" in Path(f"/proc/{pid}/environ").read_bytes()
            )
        return True

    def stop_all(self) -> None:
        """End every keeper that still runs, detached ones too."""
        for keeper in self.keepers:
            if keeper.poll() is None:
                keeper.terminate()
            keeper.communicate(timeout=PATIENCE_S)
        if (self.data / "keeper.json").exists():
            pid = self.record("keeper.json")["pid"]
            pidfd = os.pidfd_open(pid)
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            assert select.select([pidfd], [], [], PATIENCE_S)[0], "the detached keeper does not end"
            os.close(pidfd)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    try:
        yield house
        house.stop_all()
        left = house.everyone()
        assert not left, f"processes were left: {left}"
    finally:
        for pid in house.everyone():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        house.mail.close()


@pytest.fixture(scope="session")
def has_cgroup() -> bool:
    """Whether this machine lets us make cgroups."""
    code = "import sys; from gpulayer_worker.keeper.containment import usable_base; sys.exit(usable_base() is None)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(params=["cgroup", "subreaper", "marker"])
def contained(request: pytest.FixtureRequest, house: House, has_cgroup: bool) -> House:
    """A house for each way to hold groups together."""
    if request.param == "cgroup" and not has_cgroup:
        pytest.skip("no writable cgroup2 here")
    house.containment = request.param
    return house


def wait_until_dead(pid: int) -> None:
    """Wait for a process that may be nobody's child here; a zombie counts as dead."""
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        assert select.select([pidfd], [], [], deadline - time.monotonic())[0], f"{pid} does not end"
        os.close(pidfd)


@pytest.fixture
def until_dead():
    """`wait_until_dead`, for tests."""
    return wait_until_dead
