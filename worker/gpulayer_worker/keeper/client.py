"""Talking to the keeper: asyncio, for the agent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from gpulayer_worker.keeper.spawning import GROUP_VARIABLE, KEEPER_VARIABLE

__all__ = [
    "ExitRecord",
    "GroupInfo",
    "KeeperClient",
    "KeeperError",
    "KeeperEvent",
    "KeeperGone",
    "Spawned",
    "start_keeper",
]

_BATCHED = frozenset(
    {"started", "unstarted", "unknown", "ended", "cleared"}
)  # events of groups that were started by the batch
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_HELD = 3  # the keeper's exit code when another one holds the folder
_HELD_PATIENCE_S = 10.0


class KeeperError(Exception):
    """The keeper could not do what was asked; the text is its own clear line."""


class KeeperGone(KeeperError):
    """There is no keeper at the other end (any more): start one with `start_keeper`, then connect anew."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """How a group's main process ended. Either `code` or `signal` is set, or `unknown` is true."""

    pid: int
    start_time: int | str  # clock ticks since boot; on macOS the text of `ps -o lstart=`
    boot_id: str
    code: int | None = None
    signal: int | None = None
    unknown: bool = False  # its keeper died before it did: nobody was told
    oom: bool = False  # the machine's out-of-memory killer ended it
    killed_by_us: bool = False  # it ended by a signal that was asked of the keeper
    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    started_at: float  # seconds since the epoch
    ended_at: float
    wall_s: float | None = None  # between the two, by a clock that nobody sets

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ExitRecord:
        """Read a record; fields that this version does not know are ignored. Raises KeeperError when it is none."""
        try:
            return cls(**{name: item for name, item in value.items() if name in _FIELDS})
        except TypeError as error:
            raise KeeperError(f"not an exit record: {error}")

    @classmethod
    def from_file(cls, path: Path) -> ExitRecord | None:
        """Read a record from its file; None while there is no file. Raises KeeperError when it holds no record."""
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise KeeperError(f"{path} is not an exit record: {error}")
        if not isinstance(value, dict):
            raise KeeperError(f"{path} is not an exit record: it holds no object")
        return cls.from_json(value)


_FIELDS = frozenset(field.name for field in fields(ExitRecord))


@dataclass(frozen=True, kw_only=True)
class Spawned:
    """The answer to `spawn`."""

    pid: int
    start_time: int | str
    cgroup: str | None
    already: bool  # the group was there before: nothing was started now
    alive: bool  # its main process runs; can be False only with `already`


@dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """One group as `list` shows it."""

    id: str
    pid: int
    start_time: int | str
    alive: bool  # the main process runs
    gone: bool  # no process of the group is left
    processes: int  # how many belong to it now
    adopted: bool  # an earlier keeper started it: its exit status will be unknown
    exit: ExitRecord | None  # once the main process ended


@dataclass(frozen=True, kw_only=True)
class KeeperEvent:
    """Something that happened to a group. `kind` is 'exit' (then `record` is set) or 'gone' (no process is left)."""

    kind: str
    id: str
    record: ExitRecord | None


class KeeperClient:
    """One connection to the keeper of a data folder; not for several event loops or threads.

    Every method raises KeeperGone when the keeper is not there, and KeeperError when it says no.
    """

    def __init__(self, data: Path, batches: Callable[[list[dict[str, Any]]], None] | None = None) -> None:
        """`batches` is called with what the keeper tells of groups that `send` started, as it comes."""
        self._data = data
        self._batches = batches
        self._lines: _Lines | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: asyncio.Queue[KeeperEvent | None] = asyncio.Queue()

    async def __aenter__(self) -> KeeperClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect to the keeper that the data folder's keeper.json names."""
        path = self._data / "keeper.json"
        try:
            address = json.loads(path.read_bytes())["socket"]
            loop = asyncio.get_running_loop()
            _, self._lines = await loop.create_unix_connection(lambda: _Lines(self._take_all, self._lose), address)
        except (OSError, ValueError, KeyError) as error:
            raise KeeperGone(f"no keeper answers for {self._data}: {error}")

    async def close(self) -> None:
        """Leave; the keeper and its groups stay."""
        if self._lines is not None:
            self._lines.close()
            await self._lines.closed.wait()

    def send(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Send requests whose answers are events: `run`, `look`, `drop`. One write for all.

        Raises KeeperGone; what a keeper that dies just then took of it is not known.
        """
        self._connected().write(b"".join(_encode({"n": 0, **message}) for message in messages))

    def _connected(self) -> _Lines:
        if self._lines is None or self._lines.closed.is_set():
            raise KeeperGone(f"not connected to the keeper of {self._data}")
        return self._lines

    async def spawn(
        self,
        *,
        id: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | Path,
        exit: str | Path,
        stdout: str | Path | None = None,
        stderr: str | Path | None = None,
    ) -> Spawned:
        """Start a group, or learn of the one that has this id already (until it is forgotten).

        Arguments:
            id: 1 to 64 of A-Z a-z 0-9 _ -.
            argv: the command; a name without a slash is looked up in the PATH of `env`.
            env: the complete environment; the group's marker variables are added to it.
            cwd: absolute, as are the other paths.
            exit: where the exit record is written.
            stdout, stderr: files to append to; None for nowhere. Standard input is empty.
        """
        answer = await self._ask(
            "spawn",
            id=id,
            argv=list(argv),
            env=dict(env),
            cwd=os.fspath(cwd),
            exit=os.fspath(exit),
            stdout=None if stdout is None else os.fspath(stdout),
            stderr=None if stderr is None else os.fspath(stderr),
        )
        return Spawned(
            pid=answer["pid"],
            start_time=answer["start_time"],
            cgroup=answer["cgroup"],
            already=answer.get("already", False),
            alive=answer.get("alive", True),
        )

    async def signal(self, id: str, number: int) -> None:
        """Send a signal to the process group of a group's main process."""
        await self._ask("signal", id=id, signal=int(number))

    async def kill(self, id: str) -> int:
        """Kill all of a group and return, once none is left, how many there were; 0 when it is gone or unknown."""
        return (await self._ask("kill", id=id))["killed"]

    async def list(self) -> tuple[GroupInfo, ...]:
        """Every group that is not forgotten, with its exit record once it has one."""
        rows = (await self._ask("list"))["groups"]
        return tuple(
            GroupInfo(**{**row, "exit": None if row["exit"] is None else ExitRecord.from_json(row["exit"])})
            for row in rows
        )

    async def forget(self, id: str) -> None:
        """Drop a group that is gone; its exit record stays."""
        await self._ask("forget", id=id)

    async def leaving(self, code: int) -> None:
        """Say, as the agent, with which exit code we are about to end: 0 (asked to stop), 77 (refused for good), else.

        An adopted agent is not the keeper's child, so the keeper would not learn the code otherwise.
        """
        await self._ask("leaving", code=code)

    async def ping(self) -> dict[str, Any]:
        """The keeper's `pid` and `containment`."""
        return await self._ask("ping")

    async def events(self) -> AsyncIterator[KeeperEvent]:
        """What happens to groups from `connect` on, in order; for one consumer. Raises KeeperGone at the end."""
        while True:
            event = await self._events.get()
            if event is None:
                self._events.put_nowait(None)  # for whoever asks again
                raise KeeperGone(f"the keeper of {self._data} is gone")
            yield event

    async def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        lines = self._connected()
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            lines.write(_encode({"n": number, "op": operation, **arguments}))
            reply = await answer
        finally:
            self._waiting.pop(number, None)
        if not reply["ok"]:
            raise KeeperError(reply["error"])
        return reply

    def _take_all(self, messages: list[dict[str, Any]]) -> None:
        of_batches: list[dict[str, Any]] = []
        for message in messages:
            if message.get("event") in _BATCHED:
                of_batches.append(message)
            else:
                self._take(message)
        if of_batches and self._batches is not None:
            self._batches(of_batches)

    def _take(self, message: dict[str, Any]) -> None:
        kind = message.get("event")
        if kind is not None:
            record = ExitRecord.from_json(message) if kind == "exit" else None
            self._events.put_nowait(KeeperEvent(kind=kind, id=message["id"], record=record))
            return
        answer = self._waiting.get(message.get("n") or 0)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _lose(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(KeeperGone(f"the keeper of {self._data} is gone"))
        self._events.put_nowait(None)


class _Lines(asyncio.Protocol):
    """JSON lines over a unix socket, given on as they come, all that came at once together."""

    def __init__(self, take: Callable[[list[dict[str, Any]]], None], lose: Callable[[], None]) -> None:
        self._take = take
        self._lose = lose
        self._rest = b""
        self._transport: asyncio.WriteTransport | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self._take([_decode(line) for line in lines])

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._lose()

    def write(self, data: bytes) -> None:
        """Send, now or as the other side reads."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def _encode(message: Mapping[str, Any]) -> bytes:
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:  # a path that is not UTF-8
        return json.dumps(message).encode("ascii") + b"\n"


def _decode(line: bytes) -> dict[str, Any]:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:  # the same in an answer
        return json.loads(line)


def start_keeper(
    data: Path, agent_argv: Sequence[str], *, portable: bool = False, env: Mapping[str, str] | None = None
) -> None:
    """Start a keeper in a session of its own and return when its socket answers; another one that serves is as good.

    Blocking for some hundred milliseconds. A keeper takes over the groups and the agent that it finds running.

    Arguments:
        data: the worker's data folder.
        agent_argv: the command line with which it starts agents.
        portable: use nothing that only Linux has.
        env: the keeper's environment and so the agent's; None means our own.

    Raises KeeperError with the keeper's own line when it can't start.
    """
    deadline = time.monotonic() + _HELD_PATIENCE_S
    while True:
        code, said = _run_detached(data, agent_argv, portable=portable, env=env)
        if code == 0 or (code == _HELD and _answers(data)):
            return
        if code != _HELD or time.monotonic() > deadline:
            raise KeeperError(f"cannot start a keeper for {data}: {said}")
        time.sleep(0.1)  # the other one is about to serve, or to end: nothing tells which


def _answers(data: Path) -> bool:
    """Whether a keeper of this folder accepts connections."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(json.loads((data / "keeper.json").read_bytes())["socket"])
        except (OSError, ValueError, KeyError):
            return False
    return True


def _run_detached(
    data: Path, agent_argv: Sequence[str], *, portable: bool, env: Mapping[str, str] | None
) -> tuple[int, str]:
    """Start a keeper that detaches itself; its exit code (0 once it serves) and the last line that it said."""
    environment = dict(os.environ if env is None else env)
    for name in (GROUP_VARIABLE, KEEPER_VARIABLE):
        environment.pop(name, None)
    flags = ["--portable"] if portable else []
    command = [sys.executable, "-m", "gpulayer_worker.keeper", "--data", str(data.resolve()), *flags, "--detach", "--"]
    done = subprocess.run(
        [*command, *agent_argv],
        env=environment,
        cwd="/",  # python -m looks for modules in the current folder first
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        text=True,
        errors="replace",
    )
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return done.returncode, lines[-1]
