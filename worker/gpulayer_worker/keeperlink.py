"""The agent's tie to its keeper: found again, or started again, whenever it is gone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gpulayer_worker.environ import allowed
from gpulayer_worker.keeper.client import ExitRecord, KeeperClient, KeeperError, KeeperGone, start_keeper

log = logging.getLogger("gpulayer.worker")

T = TypeVar("T")

_AGAIN_S = 2.0


class Listener(Protocol):
    """Whoever asked for a program to be run, and is told how it goes."""

    def on_started(self, at: float) -> None:
        """It runs since then, in seconds since the epoch."""
        ...

    def on_unstarted(self, step: str, number: int) -> None:
        """It can't be run: at which step of a start that was seen, and the error's number."""
        ...

    def on_ended(self, record: ExitRecord, *, gone: bool) -> None:
        """Its main process ended; `gone`: nothing of it is left. May be told more than once."""
        ...

    def on_cleared(self) -> None:
        """Nothing of it is left."""
        ...

    def on_unknown(self) -> None:
        """The keeper knows of no such program."""
        ...

    def on_fault(self, error: Exception) -> None:
        """Something in one of these failed."""
        ...


@dataclass
class _Run:
    """A program that is not over: whom to tell, and what to ask for until it is known to run."""

    listener: Listener
    job: dict[str, Any] | None
    over: bool = False  # all was told; kept until its end is written down by us


class KeeperLink:
    """Spawns, signals and ends groups, and tells when they exit, across the deaths of keepers."""

    def __init__(self, data: Path, agent_argv: list[str], *, portable: bool):
        self._data = data
        self._agent_argv = agent_argv
        self._portable = portable
        self._client: KeeperClient | None = None
        self._back = asyncio.Lock()
        self._exits: dict[str, asyncio.Future[ExitRecord]] = {}
        self._exit_files: dict[str, Path] = {}
        self._listening: asyncio.Task[None] | None = None
        self._env = allowed()
        self._runs: dict[str, _Run] = {}
        self._to_run: list[dict[str, Any]] = []
        self._to_look: list[str] = []
        self._to_drop: list[str] = []
        self._found: set[str] | None = None  # by an agent before us, and not looked at yet; None until that is known
        self._flush_due = False

    async def start(self) -> None:
        """Connect, and go on connecting as long as the agent lives.

        Raises KeeperError where the keeper that started us is gone already, and no other can be started.
        """
        try:
            await self._connect()
        except KeeperGone as error:
            log.warning("%s: starting a new one", error)
            await self._start_and_connect()
        self._listening = asyncio.create_task(self._listen())

    async def close(self, code: int | None = None) -> None:
        """Leave; with `code`, tell the keeper why this agent ends."""
        if self._listening is not None:
            self._listening.cancel()
        if self._client is not None:
            if code is not None:
                try:
                    await self._client.leaving(code)
                except KeeperGone:
                    log.info("the keeper was gone before this agent left")
            await self._client.close()

    def say(self, text: str) -> None:
        """One line on the terminal where the worker was started, if there still is one."""
        try:
            if self._client is not None:
                self._client.send([{"op": "say", "text": text}])
        except KeeperGone:
            log.info("the keeper was gone before it could say: %s", text)

    @property
    def path(self) -> str:
        """Where commands are looked for that have no PATH of their own."""
        return self._env.get("PATH", os.defpath)

    @property
    def run_dir(self) -> Path:
        """The short folder for sockets."""
        return Path(json.loads((self._data / "keeper.json").read_bytes())["run_dir"])

    async def spawn(self, *, id: str, argv: list[str], env: Mapping[str, str], cwd: Path, log_file: Path) -> int:
        """Start a group, or find the one of this id; its pid. The exit record lies beside the log.

        Raises KeeperError when it can't be started, or when no keeper can.
        """

        def ask(client: KeeperClient) -> Awaitable[int]:
            return self._spawned(client, id, argv, env, cwd, log_file)

        return await self._ask(ask, self._come_back)

    async def _spawned(
        self, client: KeeperClient, id: str, argv: list[str], env: Mapping[str, str], cwd: Path, log_file: Path
    ) -> int:
        spawned = await client.spawn(
            id=id, argv=argv, env=env, cwd=cwd, exit=log_file.with_name("exit.json"), stdout=None, stderr=log_file
        )
        return spawned.pid

    # ---------------------------------------------------------------- programs by the batch

    def run(self, job: dict[str, Any], listener: Listener) -> None:
        """Start a program: at most once, however often keepers come and go. What is asked in one turn goes together.

        Arguments:
            job: `id`, `argv`, `env` (added to what all jobs have), `cwd`, the files `stdout` and `stderr`, and `cpus`
                where it is bound to some.
            listener: is told, until it has heard of the end and that nothing is left.
        """
        self._runs[job["id"]] = _Run(listener, job)
        self._to_run.append(job)
        self._soon()

    def look(self, id: str, listener: Listener) -> None:
        """Be told of a program that an agent before us started; nothing is started."""
        self._runs[id] = _Run(listener, None)
        if self._found is not None:
            self._found.discard(id)
        self._to_look.append(id)
        self._soon()

    def drop(self, id: str) -> None:
        """Let go of a program whose end is written down by us."""
        self._runs.pop(id, None)
        self._to_drop.append(id)
        self._soon()

    def let_go(self, id: str) -> None:
        """Drop a program that was not dropped yet: its end could not be written down."""
        if id in self._runs:
            self.drop(id)

    def keep(self, ids: Iterable[str]) -> None:
        """End and forget every program but these, which `run` or `look` are for: nobody wants the others."""
        self._found = set(ids)
        self._keep_wanted()

    def _keep_wanted(self) -> None:
        if self._found is not None:  # else what runs may be wanted: nobody has looked yet
            self._tell_keeper([{"op": "keep", "ids": [*self._runs, *self._found]}])

    def _soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        requests: list[dict[str, Any]] = []
        if self._to_run:
            requests.append({"op": "run", "env": self._env, "jobs": self._to_run})
        if self._to_look:
            requests.append({"op": "look", "ids": self._to_look})
        if self._to_drop:
            requests.append({"op": "drop", "ids": self._to_drop})
        self._to_run, self._to_look, self._to_drop = [], [], []
        self._tell_keeper(requests)

    def _tell_keeper(self, requests: list[dict[str, Any]]) -> None:
        try:
            if self._client is not None:
                self._client.send(requests)
        except KeeperGone:  # the next one is told of all that is not over
            log.info("the keeper is gone: what it was asked for is asked of the next one")

    def _ask_again(self) -> None:
        """Another keeper: it is told of everything that is not over, and of nothing else."""
        going_on = {id: run for id, run in self._runs.items() if not run.over}
        self._to_run = [run.job for run in going_on.values() if run.job is not None]
        self._to_look = [id for id, run in going_on.items() if run.job is None]
        self._to_drop = []
        self._keep_wanted()
        self._flush()

    def _told(self, events: list[dict[str, Any]]) -> None:
        """What the keeper tells of programs."""
        for event in events:
            if event["event"] == "started":
                for id, at in event["groups"]:
                    run = self._runs.get(id)
                    if run is not None:
                        run.job = None
                        self._guarded(run.listener, lambda run=run, at=at: run.listener.on_started(at))
                continue
            run = self._runs.get(event["id"])
            if run is not None and not run.over:
                run.job = None
                run.over = event["event"] != "ended" or event["gone"]
                self._guarded(run.listener, lambda run=run, event=event: self._told_one(run.listener, event))

    def _guarded(self, listener: Listener, tell: Callable[[], None]) -> None:
        """One listener's fault is its own."""
        try:
            tell()
        except Exception as error:  # noqa: BLE001 - it says what becomes of it
            listener.on_fault(error)

    def _told_one(self, listener: Listener, event: dict[str, Any]) -> None:
        match event["event"]:
            case "ended":
                listener.on_ended(ExitRecord.from_json(event), gone=event["gone"])
            case "cleared":
                listener.on_cleared()
            case "unstarted":
                listener.on_unstarted(event["step"], event["errno"])
            case _:
                listener.on_unknown()

    # ---------------------------------------------------------------- groups one by one

    async def exit_of(self, id: str, exit_file: Path) -> asyncio.Future[ExitRecord]:
        """A future of the group's exit record; done at once for one that ended, or that no keeper knows."""
        self._exit_files[id] = exit_file
        future = self._exits.get(id)
        if future is None:
            future = self._exits[id] = asyncio.get_running_loop().create_future()
            await self._resync()
        return future

    async def signal(self, id: str, number: int) -> None:
        """Signal the process group of a group's main process."""
        await self._ask(lambda client: client.signal(id, number))

    async def kill(self, id: str) -> None:
        """End all of a group; returns once none is left."""
        await self._ask(lambda client: client.kill(id))

    async def forget(self, id: str) -> None:
        """Let go of a group that is gone."""
        await self._ask(lambda client: client.forget(id))
        future = self._exits.pop(id, None)
        file = self._exit_files.pop(id, None)
        if future is not None and not future.done():
            future.set_result(_record(file))

    async def groups(self) -> set[str]:
        """The groups that have a process."""
        return {group.id for group in await self._ask(lambda client: client.list()) if not group.gone}

    async def _ask(
        self,
        question: Callable[[KeeperClient], Awaitable[T]],
        come_back: Callable[[KeeperClient | None], Awaitable[None]] | None = None,
    ) -> T:
        """Ask; a keeper that died meanwhile is replaced, and asked again: every question may be asked twice.

        `come_back` is how; without it, patiently.
        """
        come_back = come_back or self._come_back_patiently
        while True:
            client = self._client
            try:
                if client is None:
                    raise KeeperGone("not connected")
                return await question(client)
            except KeeperGone:
                await come_back(client)

    async def _listen(self) -> None:
        while True:
            client = self._client
            try:
                if client is None:
                    raise KeeperGone("not connected")
                async for event in client.events():
                    if event.kind == "exit" and event.record is not None:
                        self._exited(event.id, event.record)
            except KeeperGone:
                await self._come_back_patiently(client)

    async def _come_back_patiently(self, lost: KeeperClient | None) -> None:
        """Come back however long no keeper can be started: without one nothing ends, and nobody tells of an end."""
        while True:
            try:
                return await self._come_back(lost)
            except KeeperError as error:
                log.error("%s; trying again in %.0f s", error, _AGAIN_S)
                await asyncio.sleep(_AGAIN_S)

    def _exited(self, id: str, record: ExitRecord) -> None:
        future = self._exits.get(id)
        if future is not None and not future.done():
            future.set_result(record)

    async def _come_back(self, lost: KeeperClient | None) -> None:
        async with self._back:
            if self._client is not lost:
                return  # somebody else was quicker
            log.warning("the keeper is gone: starting a new one")
            await self._start_and_connect()
        await self._resync()

    async def _start_and_connect(self) -> None:
        """A keeper and a connection to it; one that dies in between is replaced too."""
        while True:
            await asyncio.to_thread(start_keeper, self._data, self._agent_argv, portable=self._portable)
            try:
                return await self._connect()
            except KeeperGone as error:
                log.warning("%s", error)

    async def _connect(self) -> None:
        client = KeeperClient(self._data, self._told)
        await client.connect()
        self._client = client
        if self._listening is not None:
            self._ask_again()

    async def _resync(self) -> None:
        """Learn of exits that happened while nobody listened."""
        known = {group.id: group for group in await self._ask(lambda client: client.list())}
        for id, future in self._exits.items():
            if future.done():
                continue
            group = known.get(id)
            if group is not None and group.exit is not None:
                future.set_result(group.exit)
            elif group is None:
                future.set_result(_record(self._exit_files.get(id)))


def _record(file: Path | None) -> ExitRecord:
    """The record that was written of an exit, or one that says 'unknown'."""
    found = ExitRecord.from_file(file) if file is not None else None
    return found or ExitRecord(pid=0, start_time=0, boot_id="", unknown=True, started_at=0.0, ended_at=0.0)
