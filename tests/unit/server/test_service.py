"""A control plane as a whole: what it begins with, and what it leaves behind where it can't begin."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from benchmarks.restart import make_history
from gpulayer_server.datafolder import DataFolder
from gpulayer_server.service import Service
from gpulayer_server.store.database import StoreError

JOBS = 5_000


def test_a_long_history_stays_in_the_store(tmp_path: Path) -> None:
    """Whatever it holds of jobs that are over: the plane begins with none of it, and answers for all of it."""

    async def run() -> None:
        make_history(tmp_path / "store.db", JOBS).close()
        service = Service(tmp_path)
        await service.start()
        plane, shell = service.shell.plane, service.shell
        held = [plane.jobs, plane.tasks, plane.attempts, plane.sessions, plane.session_of, plane.keys, plane.done]
        assert [len(each) for each in held] == [0] * 7
        assert len(plane.ended_sessions) <= 100  # by name: why the last of each ended
        assert len(plane.queue) == 0
        assert plane.last_job_n == JOBS
        oldest, newest = shell.view("j0"), shell.view(f"j{JOBS - 1}")
        assert oldest is not None
        assert newest is not None
        assert (oldest.state.value, newest.state.value) == ("failed", "succeeded")
        assert shell.stored_by_key(newest.owner, "k17") is not None
        assert [view.id for view in shell.views(2, owner=newest.owner)] == [f"j{JOBS - 1}", f"j{JOBS - 2}"]
        await service.stop(with_local_worker=False)

    asyncio.run(run())


def test_one_that_can_not_begin_lets_go_of_its_folder(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "store.db").write_bytes(b"this is no database" * 100)
        service = Service(tmp_path)
        with pytest.raises(StoreError, match="not a database; put a copy of it back, or move it away"):
            await service.start()
        DataFolder(tmp_path).close()

    asyncio.run(run())


def test_it_takes_the_port_of_the_last_one_or_any(tmp_path: Path) -> None:
    async def run() -> None:
        urls = []
        for _ in range(2):
            service = Service(DataFolder(tmp_path))
            urls.append((await service.start()).url)
            await service.stop(with_local_worker=False)
        assert urls[0] == urls[1]
        with socket.create_server(("127.0.0.1", int(urls[0].rsplit(":", 1)[1]))):
            service = Service(tmp_path)
            assert (await service.start()).url != urls[0]
            await service.stop(with_local_worker=False)

    asyncio.run(run())
