"""Kernels that don't come up, with a keeper of the test's in place of the real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.kernels import KernelError, Kernels
from gpulayer_worker.layout import Layout


def record(**how: Any) -> ExitRecord:
    return ExitRecord(pid=1, start_time=1, boot_id="", started_at=0.0, ended_at=0.0, **how)


class Keeper:
    """Starts "kernels": sockets that answer, or, where `ends` says so, nothing that lives."""

    def __init__(self, run_dir: Path, ends: list[ExitRecord | None]):
        self.run_dir = run_dir
        self.started: list[str] = []
        self.news: asyncio.Queue[str] = asyncio.Queue()
        self._ends = ends
        self._exits: dict[str, asyncio.Future[ExitRecord]] = {}
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    async def spawn(self, *, id: str, argv: list[str], **_: Any) -> int:
        self.started.append(id)
        self.news.put_nowait(id)
        end = self._ends.pop(0) if self._ends else None
        if end is not None:
            (await self.exit_of(id, Path())).set_result(end)
            return 1
        self._serve(Path(argv[argv.index("--connection-file") + 1]))
        return 1

    def _serve(self, connection_file: Path) -> None:
        connection = json.loads(connection_file.read_bytes())
        socket = self._context.socket(zmq.ROUTER)
        socket.bind(f"ipc://{connection['ip']}-{connection['shell_port']}")
        asyncio.get_running_loop().add_reader(socket.fileno(), self._answer, socket)
        self._sockets.append(socket)

    def _answer(self, socket: zmq.Socket[bytes]) -> None:
        while socket.poll(0):
            socket.send_multipart(socket.recv_multipart())

    async def exit_of(self, id: str, exit_file: Path) -> asyncio.Future[ExitRecord]:
        return self._exits.setdefault(id, asyncio.get_running_loop().create_future())

    async def kill(self, id: str) -> None:
        pass

    async def forget(self, id: str) -> None:
        pass

    def close(self) -> None:
        for socket in self._sockets:
            asyncio.get_running_loop().remove_reader(socket.fileno())
        self._context.destroy(linger=0)


@pytest.fixture
def with_keeper(short_folder: Path) -> Callable[..., None]:
    """Runs `check(kernels, keeper)` with a keeper whose first kernels end as told."""

    def run(check: Callable[[Kernels, Keeper], Awaitable[None]], *ends: ExitRecord | None, warm: int = 0) -> None:
        async def inside() -> None:
            keeper = Keeper(short_folder, list(ends))
            kernels = Kernels(Layout(short_folder / "data"), keeper, warm=warm)  # type: ignore[arg-type]
            try:
                await check(kernels, keeper)
            finally:
                await kernels.close()
                keeper.close()

        asyncio.run(inside())

    return run


def test_a_kernel_that_its_keeper_took_along_is_started_again(with_keeper: Callable[..., None]) -> None:
    async def check(kernels: Kernels, keeper: Keeper) -> None:
        kernel = await kernels.take("a1")
        assert len(keeper.started) == 3
        assert kernel.name == keeper.started[-1]
        assert [path.name for path in kernel.folder.parent.iterdir()] == [kernel.name]  # nothing left of the others

    with_keeper(check, record(unknown=True), record(unknown=True))


def test_not_for_ever(with_keeper: Callable[..., None]) -> None:
    async def check(kernels: Kernels, keeper: Keeper) -> None:
        with pytest.raises(KernelError, match="ended before it was up"):
            await kernels.take("a1")
        assert len(keeper.started) == 3

    with_keeper(check, *[record(unknown=True)] * 9)


def test_a_kernel_that_ends_by_itself_is_not_tried_again(with_keeper: Callable[..., None]) -> None:
    async def check(kernels: Kernels, keeper: Keeper) -> None:
        with pytest.raises(KernelError, match="ended before it was up"):
            await kernels.take("a1")
        assert len(keeper.started) == 1

    with_keeper(check, record(code=1))


@pytest.mark.parametrize("came_up", [True, False])
def test_a_lost_warm_kernel_costs_no_cell(with_keeper: Callable[..., None], came_up: bool) -> None:
    async def check(kernels: Kernels, keeper: Keeper) -> None:
        kernels.keep_warm()
        first = await kernels.take("a1") if came_up else None
        if first is not None:  # the next warm one is on its way: it comes up and is lost
            assert await keeper.news.get() == first.name
            (await keeper.exit_of(await keeper.news.get(), Path())).set_result(record(signal=9))
        kernel = await kernels.take("a2")
        assert not kernel.exit.done()
        assert kernel.name == keeper.started[2 if came_up else 1]

    with_keeper(check, *([] if came_up else [record(code=1)]), warm=1)
