"""A commit that fails: nothing of it happened, whoever asked is told 507, and everything goes on from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.messages import (
    Assign,
    ClientHello,
    Hello,
    Order,
    Refused,
    ServerMessage,
    ServerToClient,
    Submit,
    Update,
    Welcome,
    encode,
    to_client,
    to_worker,
)
from gpulayer.protocol.types import PROTOCOL_VERSION, CellSpec, Inventory, JobSpec, State
from gpulayer_server.service import Service
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op

PATIENCE_S = 20.0
INVENTORY = Inventory(host="h", os="linux", arch="x86_64", cpu_cores=2, ram_bytes=1, python="3.11")


def headers(endpoint: Endpoint) -> dict[str, str]:
    return {"Authorization": f"Bearer {endpoint.token}"}


async def submit(socket: ClientConnection, n: int, key: str) -> ServerToClient:
    """Submit and return the first answer to it."""
    await socket.send(encode([Submit(n=n, key=key, spec=JobSpec(cell=CellSpec(code="1")), follow=False)]))
    while True:
        frame = await asyncio.wait_for(socket.recv(), PATIENCE_S)
        assert isinstance(frame, bytes)
        for message in to_client(frame):
            if isinstance(message, (Update, Refused)) and message.n == n:
                return message


class FakeWorker:
    """A worker that says hello and keeps what it is told."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self.nonce = 0

    async def join(self) -> tuple[ClientConnection, list[ServerMessage]]:
        socket = await connect(
            self.endpoint.url.replace("http", "ws") + "/v1/worker", additional_headers=headers(self.endpoint)
        )
        hello = Hello(
            protocol=PROTOCOL_VERSION, worker_id="w", nonce="n", name="w", version="0", slots=1, inventory=INVENTORY
        )
        await socket.send(Order().number([hello]))
        return socket, await self.hear(socket)

    async def hear(self, socket: ClientConnection) -> list[ServerMessage]:
        frame = await asyncio.wait_for(socket.recv(), PATIENCE_S)
        assert isinstance(frame, bytes)
        return to_worker(frame[4:])


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Commits that fail while `left` is above 0."""
    plan = {"left": 0, "failed": 0}
    commit = Store.commit

    def maybe(self: Store, units: Iterable[Iterable[Op]]) -> None:
        if plan["left"] > 0:
            plan["left"] -= 1
            plan["failed"] += 1
            raise StoreError("database or disk is full")
        commit(self, units)

    monkeypatch.setattr(Store, "commit", maybe)
    return plan


def test_a_failed_commit_is_told_and_nothing_of_it_happened(tmp_path: Path, failing: dict[str, int]) -> None:
    async def run() -> None:
        service = Service(tmp_path / "data")
        endpoint = await service.start()
        worker = FakeWorker(endpoint)
        socket, welcome = await worker.join()
        assert isinstance(welcome[0], Welcome)
        client_url = endpoint.url.replace("http", "ws") + "/v1/client"
        async with connect(client_url, additional_headers=headers(endpoint)) as client:
            await client.send(encode([ClientHello(protocol=PROTOCOL_VERSION, version="0")]))
            failing["left"] = 1
            refused = await submit(client, 1, "key-1")
            assert isinstance(refused, Refused)
            assert refused.problem.status == 507
            assert "disk is full" in refused.problem.detail
            await asyncio.wait_for(socket.wait_closed(), PATIENCE_S)  # it says hello again, and learns what is true
            assert service.shell.store.load().jobs == []
            assert service.shell.plane.jobs == {}

            accepted = await submit(client, 2, "key-1")
            assert isinstance(accepted, Update)
            assert accepted.job.state is State.QUEUED
            socket, messages = await worker.join()
            while not any(isinstance(message, Assign) for message in messages):
                messages += await worker.hear(socket)
            (assign,) = [message for message in messages if isinstance(message, Assign)]
            assert assign.job == accepted.job.id
            await socket.close()
        await service.stop(with_local_worker=False)
        stored = Store(tmp_path / "data" / "store.db")
        (job,) = stored.load().jobs
        assert job.tasks[0].attempt is not None
        assert job.tasks[0].attempt.id == assign.attempt
        assert msgspec.msgpack.encode(job.spec)
        stored.close()

    asyncio.run(run())
    assert failing["failed"] == 1
