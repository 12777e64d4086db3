"""The agent's tie to keepers that die, with keepers of the test's in place of real ones."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker import keeperlink
from gpulayer_worker.keeper.client import ExitRecord, GroupInfo, KeeperError, KeeperEvent, KeeperGone
from gpulayer_worker.keeperlink import KeeperLink


def group(id: str, exit: ExitRecord | None = None) -> GroupInfo:
    return GroupInfo(id=id, pid=1, start_time=1, alive=exit is None, gone=False, processes=1, adopted=False, exit=exit)


class Keepers:
    """All keepers of the test: how starting them goes, and the connections to them."""

    def __init__(self) -> None:
        self.starts: list[KeeperError | None] = []  # what starting the next ones raises
        self.connects: list[KeeperError | None] = []
        self.started = 0
        self.groups: tuple[GroupInfo, ...] = ()
        self.clients: list[Client] = []

    def start(self, *_: Any, **__: Any) -> None:
        self.started += 1
        error = self.starts.pop(0) if self.starts else None
        if error is not None:
            raise error

    def client(self, _: Path, batches: Callable[[list[dict[str, Any]]], None]) -> Client:
        self.clients.append(Client(self, batches))
        return self.clients[-1]


class Client:
    def __init__(self, keepers: Keepers, tell: Callable[[list[dict[str, Any]]], None]) -> None:
        self.keepers = keepers
        self.tell = tell
        self.dead = asyncio.Event()
        self.signals: list[tuple[str, int]] = []
        self.sent: list[dict[str, Any]] = []

    async def connect(self) -> None:
        error = self.keepers.connects.pop(0) if self.keepers.connects else None
        if error is not None:
            raise error

    def send(self, messages: list[dict[str, Any]]) -> None:
        if self.dead.is_set():
            raise KeeperGone("gone")
        self.sent += messages

    async def list(self) -> tuple[GroupInfo, ...]:
        return self.keepers.groups

    async def spawn(self, **_: Any) -> None:
        raise KeeperGone("gone")

    async def signal(self, id: str, number: int) -> None:
        if self.dead.is_set():
            raise KeeperGone("gone")
        self.signals.append((id, number))

    async def events(self) -> AsyncIterator[KeeperEvent]:
        await self.dead.wait()
        raise KeeperGone("gone")
        yield  # pyright: ignore[reportUnreachable]

    async def close(self) -> None:
        self.dead.set()


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> Keepers:
    keepers = Keepers()
    monkeypatch.setattr(keeperlink, "start_keeper", keepers.start)
    monkeypatch.setattr(keeperlink, "KeeperClient", keepers.client)
    monkeypatch.setattr(keeperlink, "_AGAIN_S", 0.001)
    return keepers


def run(keepers: Keepers, check: Callable[[KeeperLink], Any]) -> None:
    async def inside() -> None:
        link = KeeperLink(Path("nowhere"), [], portable=False)
        await link.start()
        await asyncio.wait_for(check(link), 20)
        await link.close()

    asyncio.run(inside())


@pytest.mark.parametrize(
    "trouble",
    [
        {"connects": [None, KeeperGone("refused"), KeeperGone("refused")]},  # each died between start and connect
        {"starts": [KeeperError("no more processes"), KeeperError("no more processes")]},
    ],
    ids=["dies at once", "cannot start"],
)
def test_a_question_and_an_exit_outlive_keepers_that_come_and_go(keepers: Keepers, trouble: dict[str, Any]) -> None:
    vars(keepers).update(trouble)

    async def check(link: KeeperLink) -> None:
        keepers.groups = (group("k1"),)
        exit = await link.exit_of("k1", Path("nowhere"))
        keepers.clients[0].dead.set()
        ended = ExitRecord(pid=1, start_time=1, boot_id="", unknown=True, started_at=0.0, ended_at=1.0)
        keepers.groups = (group("k1", ended),)
        await link.signal("k1", signal.SIGINT)
        assert keepers.clients[-1].signals == [("k1", signal.SIGINT)]
        assert await exit == ended
        assert keepers.started == 3

    run(keepers, check)


def test_what_cannot_be_started_for_want_of_a_keeper_says_so(keepers: Keepers) -> None:
    async def check(link: KeeperLink) -> None:
        keepers.clients[0].dead.set()
        with pytest.raises(KeeperError, match="no more processes"):
            await link.spawn(id="k1", argv=["x"], env={}, cwd=Path("/"), log_file=Path("/log"))

    keepers.starts = [KeeperError("no more processes")] * 50
    keepers.connects = [None, KeeperGone("gone")]
    run(keepers, check)
