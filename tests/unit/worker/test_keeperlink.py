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


# ---------------------------------------------------------------- programs by the batch


class Program:
    """A listener that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.breaks = False

    def on_started(self, at: float) -> None:
        self.told.append(("started", at))
        if self.breaks:
            raise ValueError("a fault of its own")

    def on_unstarted(self, step: str, number: int) -> None:
        self.told.append(("unstarted", step, number))

    def on_ended(self, record: ExitRecord, *, gone: bool) -> None:
        self.told.append(("ended", record.code, gone))

    def on_cleared(self) -> None:
        self.told.append("cleared")

    def on_unknown(self) -> None:
        self.told.append("unknown")

    def on_fault(self, error: Exception) -> None:
        self.told.append(str(error))


def job(id: str) -> dict[str, Any]:
    return {"id": id, "argv": ["true"]}


def ended(id: str, code: int, *, gone: bool = True) -> dict[str, Any]:
    times = {"started_at": 1.0, "ended_at": 2.0}
    return {"event": "ended", "id": id, "gone": gone, "pid": 1, "start_time": 1, "boot_id": "", "code": code, **times}


async def turn() -> None:
    """One turn of the loop: what was asked in it is sent."""
    await asyncio.sleep(0)


def test_what_is_asked_in_one_turn_is_one_request(keepers: Keepers) -> None:
    async def check(link: KeeperLink) -> None:
        program = Program()
        for id in ("a", "b"):
            link.run(job(id), program)
        link.look("c", program)
        link.drop("d")
        await turn()
        (run, look, drop) = keepers.clients[0].sent
        assert (run["op"], [each["id"] for each in run["jobs"]]) == ("run", ["a", "b"])
        assert "PATH" in run["env"]
        assert (look, drop) == ({"op": "look", "ids": ["c"]}, {"op": "drop", "ids": ["d"]})

    run(keepers, check)


def test_everything_is_told_to_who_asked(keepers: Keepers) -> None:
    async def check(link: KeeperLink) -> None:
        programs = {id: Program() for id in "abcd"}
        for id, program in programs.items():
            link.run(job(id), program)
        tell = keepers.clients[0].tell
        tell([{"event": "started", "groups": [["a", 5.0], ["b", 5.0], ["other", 5.0]]}, ended("a", 3)])
        tell([ended("b", 0, gone=False), {"event": "cleared", "id": "b"}, ended("other", 0)])
        tell([{"event": "unstarted", "id": "c", "step": "find", "errno": 2}, {"event": "unknown", "id": "d"}])
        tell([ended("a", 3)])  # again: it is told no more
        assert [program.told for program in programs.values()] == [
            [("started", 5.0), ("ended", 3, True)],
            [("started", 5.0), ("ended", 0, False), "cleared"],
            [("unstarted", "find", 2)],
            ["unknown"],
        ]

    run(keepers, check)


def test_one_programs_fault_is_its_own(keepers: Keepers) -> None:
    async def check(link: KeeperLink) -> None:
        broken, well = Program(), Program()
        broken.breaks = True
        link.run(job("a"), broken)
        link.run(job("b"), well)
        keepers.clients[0].tell([{"event": "started", "groups": [["a", 5.0], ["b", 5.0]]}])
        assert broken.told == [("started", 5.0), "a fault of its own"]
        assert well.told == [("started", 5.0)]

    run(keepers, check)


def test_the_next_keeper_is_told_of_all_that_is_not_over_and_keeps_what_is_not_written_down(keepers: Keepers) -> None:
    async def check(link: KeeperLink) -> None:
        link.keep([])
        programs = {id: Program() for id in ("asked", "runs", "over", "written")}
        for id, program in programs.items():
            link.run(job(id), program)
        await turn()
        keepers.clients[0].tell(
            [{"event": "started", "groups": [["runs", 5.0]]}, ended("over", 0), ended("written", 0)]
        )
        link.drop("written")
        await turn()
        keepers.clients[0].dead.set()
        await link.signal("runs", signal.SIGINT)  # which waits for the next keeper
        await turn()
        keep, ran, look = keepers.clients[-1].sent
        assert (keep["op"], set(keep["ids"])) == ("keep", {"asked", "runs", "over"})
        assert [each["id"] for each in ran["jobs"]] == ["asked"]
        assert look == {"op": "look", "ids": ["runs"]}

    run(keepers, check)


def test_what_an_agent_before_us_runs_is_not_ended_before_it_was_looked_at(keepers: Keepers) -> None:
    async def check(link: KeeperLink) -> None:
        keepers.clients[-1].dead.set()
        await link.signal("other", signal.SIGINT)  # which waits for the next keeper: nobody has said yet what is wanted
        assert [each for each in keepers.clients[-1].sent if each["op"] == "keep"] == []
        link.keep(["a", "b"])
        link.look("a", Program())
        await turn()
        keepers.clients[-1].dead.set()
        await link.signal("other", signal.SIGINT)
        (keep,) = [each for each in keepers.clients[-1].sent if each["op"] == "keep"]
        assert sorted(keep["ids"]) == ["a", "b"]  # b is yet to be looked at

    run(keepers, check)


def test_a_program_is_dropped_once(keepers: Keepers) -> None:
    async def check(link: KeeperLink) -> None:
        link.run(job("a"), Program())
        await turn()
        for _ in range(2):
            link.let_go("a")
            await turn()
        assert [each for each in keepers.clients[0].sent if each["op"] == "drop"] == [{"op": "drop", "ids": ["a"]}]

    run(keepers, check)


def test_an_agent_whose_keeper_died_before_it_came_starts_another(keepers: Keepers) -> None:
    keepers.connects = [KeeperGone("gone")]

    async def check(link: KeeperLink) -> None:
        assert keepers.started == 1
        await link.signal("a", signal.SIGTERM)
        assert keepers.clients[-1].signals == [("a", signal.SIGTERM)]

    run(keepers, check)
