"""How runners are started, found, spoken to, and how their ends are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpulayer.protocol.calls import CallRange
from gpulayer_worker import runners as runners_module
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.runner import wire
from gpulayer_worker.runners import Runner, RunnerError, Runners, Start
from gpulayer_worker.watch import FolderWatch


class Keeper:
    """Notes what it is asked for."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.jobs: list[dict[str, Any]] = []
        self.looked: list[str] = []
        self.dropped: list[str] = []

    def run(self, job: dict[str, Any], listener: Any) -> None:
        self.jobs.append(job)

    def look(self, id: str, listener: Any) -> None:
        self.looked.append(id)

    def drop(self, id: str) -> None:
        self.dropped.append(id)


class User:
    """Whoever uses a runner."""

    def __init__(self) -> None:
        self.frames: list[wire.Frame] = []
        self.dead: list[tuple[ExitRecord | None, str]] = []
        self.lost = 0
        self.faults: list[Exception] = []
        self.news = asyncio.Event()

    def on_frames(self, frames: list[wire.Frame]) -> None:
        self.frames += frames
        self.news.set()

    def on_lost(self) -> None:
        self.lost += 1
        self.news.set()

    def on_dead(self, record: ExitRecord | None, why: str) -> None:
        self.dead.append((record, why))

    def on_fault(self, error: Exception) -> None:
        self.faults.append(error)
        self.news.set()

    async def heard(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)


class Process:
    """The other end of a runner's sockets."""

    def __init__(self, sockets: Path) -> None:
        self.sockets = sockets
        self.splitter = wire.Splitter()
        self.got: list[wire.Frame] = []
        self.news = asyncio.Event()
        self.writer: asyncio.StreamWriter | None = None
        self.answers: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.servers: list[asyncio.Server] = []

    async def listen(self) -> None:
        for name, serve in (("c", self._control), ("d", self._data)):
            self.servers.append(await asyncio.start_unix_server(serve, str(self.sockets / name)))

    async def _data(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.writers.append(writer)
        self.news.set()
        while data := await reader.read(65536):
            self.got += self.splitter.feed(data)
            self.news.set()

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while await reader.readline():
            writer.write(self.answers.pop(0))

    def says(self, *frames: wire.Frame) -> None:
        assert self.writer is not None
        self.writer.write(b"".join(map(wire.encode, frames)))

    async def heard(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)

    def close(self) -> None:
        for end in (*self.servers, *self.writers):
            end.close()


class World:
    def __init__(self, folder: Path, *, portable: bool = False) -> None:
        self.folder = folder
        self.keeper = Keeper(folder)
        self.watch = FolderWatch(portable=portable)
        keeper: Any = self.keeper
        self.runners = Runners(keeper, self.watch, python="/env/bin/python", name="alpha")
        self.user = User()
        self.ends: list[Runner | Process] = []

    def start(self) -> tuple[Runner, Process]:
        start = Start(folder=self.folder / "a", cwd=self.folder, config={"spool": "s"}, env={"A": "b"}, cpus=(1, 3))
        runner = self.runners.start(start, self.user)
        process = Process(Path(runner.note["sockets"]))
        self.ends += [runner, process]
        return runner, process


def play(folder: Path, test: Callable[[World], Coroutine[Any, Any, None]], **more: bool) -> None:
    async def inside() -> None:
        world = World(folder, **more)
        try:
            await test(world)
        finally:
            for end in world.ends:
                end.close()
            world.watch.close()
            for _ in range(5):  # connections end in the next turns of the loop
                await asyncio.sleep(0)

    asyncio.run(inside())


def record(code: int = 0) -> ExitRecord:
    return ExitRecord(pid=1, start_time=1, boot_id="b", code=code, started_at=1.0, ended_at=2.0)


def read(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_bytes())


def test_what_the_keeper_is_asked_for(short_folder: Path) -> None:
    async def test(world: World) -> None:
        runner, _ = world.start()
        (job,) = world.keeper.jobs
        assert (job["id"], job["env"], job["cpus"]) == (runner.id, {"A": "b"}, (1, 3))
        python, main, config = job["argv"]
        assert python == "/env/bin/python"
        assert main.endswith("/gpulayer_worker/runner/main.py")
        facts = read(config)
        assert (facts["spool"], facts["worker"]) == ("s", "alpha")
        assert facts["data_socket"] == f"{runner.note['sockets']}/d"
        assert facts["protocol"].endswith("/gpulayer/protocol")
        assert (job["stdout"], job["stderr"]) == (facts["stdout"], facts["stderr"])

    play(short_folder, test)


@pytest.mark.parametrize("portable", [False, True])
def test_it_is_spoken_to_once_it_listens(short_folder: Path, portable: bool) -> None:
    async def test(world: World) -> None:
        runner, process = world.start()
        assert not runner.send([wire.End()])
        connecting = asyncio.ensure_future(runner.connect())
        await asyncio.sleep(0)
        await process.listen()
        await connecting
        await process.heard(lambda: process.writer)
        process.says(wire.Ready({"pid": 7}), wire.Busy("m", 1, 2))
        await world.user.heard(lambda: len(world.user.frames) == 2)
        assert world.user.frames == [wire.Ready({"pid": 7}), wire.Busy("m", 1, 2)]
        runner.accept([CallRange(map="m", first=0, count=3)])
        assert runner.send([wire.Calls("m", 3, [b"x"])])
        await process.heard(lambda: len(process.got) == 2)
        assert [type(frame) for frame in process.got] == [wire.Accepted, wire.Calls]
        runner.accept([CallRange(map="m", first=3)])  # and nothing follows
        await process.heard(lambda: len(process.got) == 3)

    play(short_folder, test, portable=portable)


def test_what_one_that_is_found_says_waits_until_it_is_known_what_it_holds(short_folder: Path) -> None:
    async def test(world: World) -> None:
        runner, process = world.start()
        await process.listen()
        process.answers = [wire.write_object({"waiting": []}), wire.write_object({"error": "no"})]
        found = world.runners.find(runner.note, world.user)
        assert world.keeper.looked == [runner.id]
        assert await found.join() == {"waiting": []}
        await process.heard(lambda: process.writer)
        process.says(wire.Ready({}))
        with pytest.raises(RunnerError, match="no"):
            await found.ask({"op": "what"})
        assert world.user.frames == []
        found.heard()
        await world.user.heard(lambda: world.user.frames)
        found.close()

    play(short_folder, test)


def test_one_that_says_nothing_is_no_use(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners_module, "_ANSWER_S", 0.01)

    async def test(world: World) -> None:
        runner, _ = world.start()
        with pytest.raises(RunnerError, match=r"it does not listen for 0\.01 s"):
            await runner.join()
        with pytest.raises(RunnerError, match="it does not answer"):
            await runner.ask({"op": "hold"})

    play(short_folder, test)


def test_its_end_is_told_after_all_that_it_said(short_folder: Path) -> None:
    async def test(world: World) -> None:
        runner, process = world.start()
        await process.listen()
        await runner.connect()
        await process.heard(lambda: process.writer)
        process.says(wire.Busy("m", 1, 2))
        process.close()
        runner.on_ended(record(3), gone=True)
        assert world.user.dead == []
        await world.user.heard(lambda: world.user.frames)
        while not world.user.dead:  # noqa: ASYNC110 - the connection's end tells nobody else
            await asyncio.sleep(0.001)
        assert [(each and each.code, why) for each, why in world.user.dead] == [(3, "")]
        assert world.user.lost == 0
        assert await runner.ask({"op": "hold"}) is None
        runner.forget()
        assert world.keeper.dropped == [runner.id]
        assert not [each for each in world.folder.iterdir() if each.name == runner.id]

    play(short_folder, test)


def test_a_connection_that_ends_before_its_process_is_told(short_folder: Path) -> None:
    async def test(world: World) -> None:
        runner, process = world.start()
        await process.listen()
        await runner.connect()
        await process.heard(lambda: process.writer)
        process.close()
        await world.user.heard(lambda: world.user.lost)
        runner.on_ended(record(), gone=False)
        assert world.user.dead == []
        runner.on_cleared()
        assert len(world.user.dead) == 1
        runner.on_cleared()
        assert len(world.user.dead) == 1

    play(short_folder, test)


def test_one_that_never_came_up(short_folder: Path) -> None:
    async def test(world: World) -> None:
        runner, _ = world.start()
        connecting = asyncio.ensure_future(runner.connect())
        await asyncio.sleep(0)
        runner.on_unstarted("find", 2)
        await asyncio.wait_for(connecting, 60)
        ((ended, why),) = world.user.dead
        assert ended is None
        assert "could not be started on this worker (find): No such file or directory" in why

    play(short_folder, test)


def test_one_that_the_keeper_does_not_know(short_folder: Path) -> None:
    async def test(world: World) -> None:
        runner, _ = world.start()
        runner.on_unknown()
        ((ended, _),) = world.user.dead
        assert ended is not None
        assert ended.unknown

    play(short_folder, test)


def test_bytes_that_are_no_frame_are_a_fault(short_folder: Path) -> None:
    async def test(world: World) -> None:
        runner, process = world.start()
        await process.listen()
        await runner.connect()
        await process.heard(lambda: process.writer)
        assert process.writer is not None
        process.writer.write(b"\xff" * 16)
        await world.user.heard(lambda: world.user.faults)
        assert isinstance(world.user.faults[0], wire.WireError)

    play(short_folder, test)


def test_where_folders_can_t_be_watched_it_is_looked_for(short_folder: Path) -> None:
    async def test(world: World) -> None:
        def refuse(*_: object) -> None:
            raise OSError(28, "no more watches")

        watch: Any = SimpleNamespace(add=refuse, remove=lambda _: None)
        runner, process = world.start()
        runner._watch = watch
        connecting = asyncio.ensure_future(runner.connect())
        await asyncio.sleep(0)
        await process.listen()
        await asyncio.wait_for(connecting, 60)
        await process.heard(lambda: process.writer)
        assert runner.send([])

    play(short_folder, test)
