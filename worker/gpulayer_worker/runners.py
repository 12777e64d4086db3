"""Runners: the processes that run calls. This is the one door through which they start, and are found again.

What is said to one stands in `runner/wire.py`. A runner listens; whoever is the agent connects.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gpulayer.protocol as protocol_package
from gpulayer.protocol.calls import CallRange
from gpulayer_worker import runner as runner_package
from gpulayer_worker.keeper.client import ExitRecord, KeeperError
from gpulayer_worker.keeperlink import KeeperLink
from gpulayer_worker.runner import wire
from gpulayer_worker.runnersockets import Control, Data
from gpulayer_worker.watch import FolderWatch

log = logging.getLogger("gpulayer.worker")

_MAIN = Path(runner_package.__file__).with_name("main.py")
_PROTOCOL = Path(protocol_package.__file__).parent
_AGAIN_S = 0.02  # between the birth of a socket and the moment that somebody listens at it
_SAID_S = 0.02  # so long what is not urgent waits: each write wakes the runner
_ANSWER_S = 10.0  # whoever says nothing for so long, on a thread of its own, is stuck
_TAIL_BYTES = 64 * 1024


class RunnerError(RuntimeError):
    """A runner that can't be reached, or does not answer."""


class User(Protocol):
    """Whoever uses a runner, and is told what becomes of it."""

    def on_frames(self, frames: list[wire.Frame]) -> None:
        """It said something."""
        ...

    def on_lost(self) -> None:
        """The connection is gone, and the process may live."""
        ...

    def on_dead(self, record: ExitRecord | None, why: str) -> None:
        """Nothing of it is left, and all that it said was told. Without a record it could not be started: why."""
        ...

    def on_fault(self, error: Exception) -> None:
        """Something in one of these failed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a runner is started with."""

    folder: Path  # for its files
    cwd: Path
    config: Mapping[str, Any]  # for `runner/main.py`, without the sockets
    env: Mapping[str, str]
    cpus: tuple[int, ...] = ()


class Runners:
    """Starts runners by way of the keeper, and finds those that an agent before us started."""

    def __init__(self, keeper: KeeperLink, watch: FolderWatch, *, python: str = sys.executable, name: str = ""):
        """`python` runs them; `name` is the machine's, for failures."""
        self._keeper = keeper
        self._watch = watch
        self._python = python
        self._name = name

    def start(self, start: Start, user: User) -> Runner:
        """A new process; `user` is told how it goes. Raises OSError."""
        name = f"r{secrets.token_hex(6)}"
        sockets = self._keeper.run_dir / name
        sockets.mkdir(mode=0o700)
        start.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        out, err = start.folder / f"{name}.out", start.folder / f"{name}.err"
        config = start.folder / f"{name}.json"
        places = {"data_socket": sockets / "d", "control_socket": sockets / "c", "stdout": out, "stderr": err}
        facts = {"protocol": _PROTOCOL, "worker": self._name, **places}
        text = json.dumps({**start.config, **{name: os.fspath(value) for name, value in facts.items()}})
        _write(config, text.encode())
        runner = Runner(name, sockets, err, user, self._keeper, self._watch)
        job: dict[str, Any] = {
            "id": name,
            "argv": [self._python, str(_MAIN), str(config)],
            "env": dict(start.env),
            "cwd": str(start.cwd),
            "stdout": str(out),
            "stderr": str(err),
        }
        if start.cpus:
            job["cpus"] = start.cpus
        self._keeper.run(job, runner)
        return runner

    def find(self, note: Mapping[str, str], user: User) -> Runner:
        """The one of which `Runner.note` was written down."""
        runner = Runner(note["id"], Path(note["sockets"]), Path(note["err"]), user, self._keeper, self._watch)
        self._keeper.look(runner.id, runner)
        return runner


class Runner:
    """One runner's process, and the sockets to it. `id` is its group's, for the keeper."""

    def __init__(self, id: str, sockets: Path, err: Path, user: User, keeper: KeeperLink, watch: FolderWatch):
        self.id = id
        self._sockets = sockets
        self._err = err
        self._user = user
        self._keeper = keeper
        self._watch = watch
        self._data: Data | None = None
        self._control: Control | None = None
        self._kept: list[wire.Frame] | None = None  # while nobody may be told what it says
        self._born = asyncio.Event()  # something happened in its folder, or to it
        self._due: list[wire.Accepted] = []  # that is to be said
        self._record: ExitRecord | None = None
        self._unstarted = ""
        self._gone = False
        self._told = False

    @property
    def note(self) -> dict[str, str]:
        """What `Runners.find` needs."""
        return {"id": self.id, "sockets": str(self._sockets), "err": str(self._err)}

    @property
    def dead(self) -> bool:
        """Whether nothing of it is left."""
        return self._gone

    # ---------------------------------------------------------------- talking to it

    async def connect(self) -> None:
        """Connect to it, once it listens; what it says is told from then on. Returns without, where it is dead."""
        loop = asyncio.get_running_loop()
        watched = not self._gone and self._watched()
        try:
            while not self._gone:
                self._born.clear()
                try:
                    await loop.create_unix_connection(lambda: Data(self), str(self._sockets / "d"))
                    return
                except FileNotFoundError:
                    await _within(self._born.wait(), None if watched else _AGAIN_S)
                except OSError as error:  # nobody listens yet, or nobody any more
                    log.debug("runner %s is not reached yet: %s", self.id, error)
                    await _within(self._born.wait(), _AGAIN_S)
        finally:
            self._watch.remove(self._sockets)

    def _watched(self) -> bool:
        """Have `_born` set with the birth of its sockets; False where that can't be watched."""
        try:
            self._watch.add(self._sockets, self._born.set)
        except OSError as error:
            log.warning("%s can't be watched, so it is looked at: %s", self._sockets, error)
            return False
        return True

    async def join(self) -> dict[str, Any] | None:
        """Connect to one that has lived before, and learn what it holds; None where it is dead.

        What it says meanwhile is kept until `heard`. Raises RunnerError where it does not answer.
        """
        self._kept = []
        try:
            await asyncio.wait_for(self.connect(), _ANSWER_S)
        except asyncio.TimeoutError:
            raise RunnerError(f"it does not listen for {_ANSWER_S:g} s") from None
        return None if self._gone else await self.ask({"op": "hold"})

    def heard(self) -> None:
        """From now on whatever it says is told at once, and first what was kept."""
        kept, self._kept = self._kept, None
        if kept:
            self._user.on_frames(kept)

    async def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Ask its control thread, which answers also while a call runs; None where it is dead.

        Raises RunnerError.
        """
        if self._control is None:
            self._control = Control(self._sockets / "c")
        try:
            answer = await asyncio.wait_for(self._control.ask(request), _ANSWER_S)
        except asyncio.TimeoutError:
            raise RunnerError(f"it does not answer for {_ANSWER_S:g} s") from None
        except (OSError, ValueError) as error:
            if self._gone or self._record is not None:
                return None
            raise RunnerError(f"it does not answer: {error}") from error
        if "error" in answer:
            raise RunnerError(str(answer["error"]))
        return answer

    def send(self, frames: Iterable[wire.Frame]) -> bool:
        """Say something, in one write; whether there is a connection. Without one it is lost."""
        if self._data is None:
            return False
        due, self._due = self._due, []
        self._data.write(b"".join([wire.encode(frame) for frame in (*due, *frames)]))
        return True

    def accept(self, ranges: Iterable[CallRange]) -> None:
        """The results of these are needed no more. That is said with what is said next, or soon."""
        if not self._due:
            asyncio.get_running_loop().call_later(_SAID_S, self._say_due)
        self._due += [wire.Accepted(each.map, each.first, each.count) for each in ranges]

    def _say_due(self) -> None:
        if self._due:
            self.send(())

    async def kill(self) -> None:
        """End all of it."""
        await self._keeper.kill(self.id)

    async def signal(self, number: int) -> None:
        """Signal its process group."""
        try:
            await self._keeper.signal(self.id, number)
        except KeeperError as error:  # it has just ended
            log.info("runner %s could not be signalled: %s", self.id, error)

    def close(self) -> None:
        """Hear no more of it; where it lives it goes on."""
        self._told = True
        if self._gone:
            self.forget()
        else:
            self._disconnect()

    def forget(self) -> None:
        """It is dead, and its end is written down."""
        self._disconnect()
        self._keeper.drop(self.id)
        shutil.rmtree(self._sockets, ignore_errors=True)
        for suffix in (".err", ".out", ".json"):
            self._err.with_suffix(suffix).unlink(missing_ok=True)

    def tail(self) -> str:
        """The last that the process itself wrote to its standard error."""
        try:
            with open(self._err, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _TAIL_BYTES))
                return file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def _disconnect(self) -> None:
        if self._data is not None:
            self._data.close()
        if self._control is not None:
            self._control.close()
        self._data = self._control = None

    # ---------------------------------------------------------------- what the sockets tell

    def connected(self, data: Data) -> None:
        """The data connection is open."""
        if self._data is not None:
            self._data.close()
        self._data = data

    def said(self, frames: list[wire.Frame]) -> None:
        """It said something."""
        if self._kept is not None:
            self._kept += frames
        elif not self._told:
            self._user.on_frames(frames)

    def lost(self, data: Data) -> None:
        """A data connection is closed."""
        if self._data is not data:
            return
        self._data = None
        if self._record is not None or self._gone:
            self._tell_end()
        elif not self._told:
            self._user.on_lost()

    # ---------------------------------------------------------------- what the keeper tells

    def on_started(self, at: float) -> None:
        """It runs."""

    def on_unstarted(self, step: str, number: int) -> None:
        """It can't be started."""
        why = os.strerror(number) if number else "the worker is stopping"
        self._unstarted = f"the interpreter of runners could not be started on this worker ({step}): {why}"
        self.on_cleared()

    def on_ended(self, record: ExitRecord, *, gone: bool) -> None:
        """Its main process ended."""
        self._record = self._record or record
        if gone:
            self.on_cleared()

    def on_cleared(self) -> None:
        """Nothing of it is left."""
        self._gone = True
        self._born.set()
        if self._data is None:
            self._tell_end()  # else once what it has said before is read

    def on_unknown(self) -> None:
        """The keeper knows nothing of it."""
        self._record = self._record or ExitRecord(
            pid=0, start_time=0, boot_id="", unknown=True, started_at=0.0, ended_at=0.0
        )
        self.on_cleared()

    def on_fault(self, error: Exception) -> None:
        """One of these failed."""
        self._user.on_fault(error)

    def _tell_end(self) -> None:
        if self._gone and not self._told:
            self._told = True
            self._user.on_dead(self._record, self._unstarted)


async def _within(event: Awaitable[object], seconds: float | None) -> None:
    """Wait for something, but not longer than so; None: for as long as it takes."""
    try:
        await asyncio.wait_for(event, seconds)
    except asyncio.TimeoutError:
        return


def _write(path: Path, data: bytes) -> None:
    """A file that only this user reads: values that were captured are in it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
