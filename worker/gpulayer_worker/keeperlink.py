"""The agent's tie to its keeper: found again, or started again, whenever it is gone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from gpulayer_worker.keeper.client import ExitRecord, KeeperClient, KeeperError, KeeperGone, start_keeper

log = logging.getLogger("gpulayer.worker")

T = TypeVar("T")

_AGAIN_S = 2.0


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

    async def start(self) -> None:
        """Connect, and go on connecting as long as the agent lives."""
        await self._connect()
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
        client = KeeperClient(self._data)
        await client.connect()
        self._client = client

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
