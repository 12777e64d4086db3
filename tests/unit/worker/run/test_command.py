"""One command's run, with an agent and a keeper that are played by hand."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CommandSpec, Device, JobSpec, Outcome, State
from gpulayer.source import SourceError
from gpulayer_worker import link
from gpulayer_worker.keeper.client import ExitRecord, KeeperError
from gpulayer_worker.layout import Layout
from gpulayer_worker.rooms import Rooms
from gpulayer_worker.run import command as command_module
from gpulayer_worker.run.command import CommandRun
from gpulayer_worker.workspace import FetchError


class Keeper:
    """Notes what it is asked for."""

    path = "/usr/bin:/bin"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.looked: list[str] = []
        self.signals: list[int] = []
        self.killed = 0
        self.kills = asyncio.Event()

    def run(self, job: dict[str, Any], listener: Any) -> None:
        self.asked.append(job)

    def look(self, id: str, listener: Any) -> None:
        self.looked.append(id)

    async def signal(self, id: str, number: int) -> None:
        self.signals.append(number)
        if number == 0:
            raise KeeperError("gone")

    async def kill(self, id: str) -> None:
        self.killed += 1
        self.kills.set()


class Host:
    """The agent, as a run sees it."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder)
        self.rooms = Rooms(self.layout)
        self.keeper = Keeper()
        self.portable = False
        self.ram_bytes = 16 << 30
        self.devices: tuple[Device, ...] = ()
        self.machine: Any = SimpleNamespace(use=None)  # no test here lives long enough to measure
        self.events: list[link.Event] = []
        self.reports: list[link.Event] = []
        self.faults: list[Exception] = []
        self.tasks: list[asyncio.Task[object]] = []
        self.watch: Any = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None)
        self.workspaces: Any = SimpleNamespace(fresh=self._fresh)
        self.fetch_breaks: list[Exception] = []
        self.news = asyncio.Event()  # something was told

    def _fresh(self, digest: str, target: Path, tell: Callable[[str], None]) -> None:
        if self.fetch_breaks:
            raise self.fetch_breaks.pop(0)
        target.mkdir(parents=True)

    def emit(self, *events: link.Event) -> None:
        self.events += events
        self.news.set()

    def report(self, event: link.Event) -> None:
        self.reports.append(event)
        self.news.set()

    def go_on(self, attempt: str, work: Coroutine[Any, Any, object]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def failed(self, attempt: str, error: Exception) -> None:
        self.faults.append(error)

    async def idle(self) -> None:
        """Until nothing goes on."""
        while pending := [task for task in self.tasks if not task.done()]:
            await asyncio.wait(pending)

    @property
    def end(self) -> link.Ended:
        """The one end that was told."""
        (ended,) = [event for event in self.reports if isinstance(event, link.Ended)]
        return ended


def assign(*, spec: dict[str, Any] | None = None, **command: Any) -> Assign:
    work = CommandSpec(argv=("prog", "x"), **command)
    return Assign(attempt="a-1", job="a", spec=JobSpec(command=work, **(spec or {})))


def record(code: int | None = 0, **more: Any) -> ExitRecord:
    return ExitRecord(pid=1, start_time=1, boot_id="b", code=code, started_at=1.0, ended_at=2.0, **more)


def play(folder: Path, test: Callable[[Host], Coroutine[Any, Any, None]]) -> Host:
    async def inside() -> Host:
        host = Host(folder)
        await test(host)
        await host.idle()
        return host

    return asyncio.run(inside())


def made(host: Host, assigned: Assign, **more: bool) -> CommandRun:
    services: Any = host
    return CommandRun(services, assigned, **more)


# ---------------------------------------------------------------- the start


def test_a_small_one_is_asked_for_at_once_and_its_end_is_one_event(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign(env={"A": "b"}, cwd="sub"))
        assert run.begin()
        (job,) = host.keeper.asked
        folder = host.layout.attempt("a-1")
        assert job["cwd"] == str(folder / "workspace" / "sub")
        assert (job["stdout"], job["stderr"]) == (str(folder / "out"), str(folder / "err"))
        assert job["env"] == {"A": "b", "GPULAYER_JOB": "a", "GPULAYER_ATTEMPT": "a-1"}
        run.on_ended(record(3), gone=True)

    host = play(tmp_path, test)
    assert host.events == []
    outcome = Outcome(state=State.FAILED, exit_code=3, wall_s=1.0)
    assert host.reports == [link.Ended(attempt="a-1", end=0, outcome=outcome, began=True, gone=True)]


def test_the_environment_names_index_and_devices(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        device = Device(uuid="GPU-1", kind="cuda", index=0)
        host.devices = (device, Device(uuid="GPU-2", kind="cuda", index=1))
        made(host, replace(assign(), in_array=True, index=0, devices=(device,))).begin()

    env = play(tmp_path, test).keeper.asked[0]["env"]
    assert env["GPULAYER_ARRAY_INDEX"] == "0"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize("cwd", ["/etc", "../up", "a/../../b"])
def test_a_folder_that_is_not_below_is_refused(tmp_path: Path, cwd: str) -> None:
    async def test(host: Host) -> None:
        made(host, assign(cwd=cwd)).begin()

    host = play(tmp_path, test)
    assert host.keeper.asked == []
    assert f"the working folder {cwd!r} is not below" in host.end.outcome.problem
    assert (host.end.began, host.end.gone) == (False, True)


def test_files_come_first_and_are_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer_worker.run.fetching._AGAIN_S", 0.001)

    async def test(host: Host) -> None:
        host.fetch_breaks = [FetchError("away"), FetchError("away")]
        run = made(host, assign(bundle="b" * 64))
        assert not run.begin()
        await run.run()

    host = play(tmp_path, test)
    assert len(host.keeper.asked) == 1
    assert [event.text for event in host.events if isinstance(event, link.Doing)] == ["away; trying again"] * 2


@pytest.mark.parametrize("error", [SourceError("the source is damaged"), OSError("the disk is bad")])
def test_files_that_cannot_be_had_end_it_with_a_line(tmp_path: Path, error: Exception) -> None:
    async def test(host: Host) -> None:
        host.fetch_breaks = [error]
        await made(host, assign(bundle="b" * 64)).run()

    host = play(tmp_path, test)
    assert host.keeper.asked == []
    assert host.end.outcome == Outcome(state=State.FAILED, problem=str(error))


def test_a_cancel_while_files_are_fetched_starts_nothing(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign(bundle="b" * 64))
        run.interrupt(5)
        await run.run()

    host = play(tmp_path, test)
    assert host.keeper.asked == []
    assert host.end.outcome == Outcome(state=State.CANCELLED)


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign())
        run.begin()
        run.on_unstarted("find", 2)

    end = play(tmp_path, test).end
    assert end.outcome.problem == "'prog' is not there on this worker: not found in PATH (/usr/bin:/bin)"
    assert (end.began, end.gone) == (False, True)


# ---------------------------------------------------------------- while it runs, and the end of it


async def running(host: Host, **more: Any) -> CommandRun:
    run = made(host, assign(**more))
    run.begin()
    run.on_started(time.time())
    return run


def test_its_begin_is_told_once_it_lives_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "_YOUNG_S", 0.0)

    async def test(host: Host) -> None:
        run = await running(host)
        await host.news.wait()
        run.on_started(1.0)  # of the next keeper
        run.on_ended(record(), gone=True)

    assert play(tmp_path, test).reports[0] == link.Began(attempt="a-1")


def test_a_cancel_asks_and_then_forces(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = await running(host)
        run.interrupt(0.001)
        run.interrupt(3600)  # asked again, nothing changes
        await host.keeper.kills.wait()
        run.on_ended(record(None, signal=9), gone=True)

    host = play(tmp_path, test)
    assert host.keeper.signals == [signal.SIGTERM]
    assert host.end.outcome.state is State.CANCELLED
    assert host.end.outcome.problem == "it did not stop within 0.001 s of SIGTERM and was ended"


def test_a_wish_after_the_end_changes_nothing(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = await running(host)
        run.on_ended(record(), gone=False)
        run.interrupt(5)
        run.kill("its results are not wanted")
        run.on_cleared()

    host = play(tmp_path, test)
    assert (host.keeper.signals, host.keeper.killed) == ([], 0)
    assert host.end.outcome.state is State.SUCCEEDED


def test_the_end_waits_for_its_last_process_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "_GONE_S", 0.001)

    async def test(host: Host) -> None:
        run = await running(host)
        run.on_ended(record(), gone=False)
        assert host.reports == []
        await host.news.wait()
        assert not host.end.gone
        run.on_cleared()

    assert play(tmp_path, test).reports[1:] == [link.Gone(attempt="a-1")]


def test_a_fault_in_it_is_the_agents_to_tell(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        (await running(host)).on_fault(ValueError("ours"))

    assert [str(error) for error in play(tmp_path, test).faults] == ["ours"]


# ---------------------------------------------------------------- after another agent


def test_one_that_was_begun_before_is_looked_for_and_not_started(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign(), resumed=True)
        assert run.begin()
        run.on_started(time.time())
        run.on_ended(record(4), gone=True)

    host = play(tmp_path, test)
    assert (host.keeper.looked, host.keeper.asked) == (["a-1"], [])
    assert host.end.outcome.exit_code == 4


def test_one_that_nobody_started_is_started(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign(), resumed=True)
        run.begin()
        run.on_unknown()

    assert len(play(tmp_path, test).keeper.asked) == 1


def test_one_that_was_cancelled_before_anybody_started_it_is_not_started(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign(), resumed=True)
        run.begin()
        run.interrupt(5)
        run.on_unknown()

    host = play(tmp_path, test)
    assert host.keeper.asked == []
    assert host.end.outcome.state is State.CANCELLED


def test_a_wish_reaches_one_that_is_found(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign(), resumed=True)
        run.begin()
        run.kill("its results are not wanted")
        assert host.keeper.killed == 0
        run.on_started(time.time())
        await host.idle()
        assert host.keeper.killed == 1
        run.on_ended(record(None, signal=9), gone=True)

    assert play(tmp_path, test).end.outcome.problem == "its results are not wanted"


def test_a_time_limit_counts_from_its_begin(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        run = made(host, assign(spec={"timeout_s": 10.0, "grace_s": 0.0}), resumed=True)
        run.begin()
        run.on_started(time.time() - 11)
        await host.keeper.kills.wait()
        run.on_ended(record(None, signal=9), gone=True)

    problem = play(tmp_path, test).end.outcome.problem
    assert problem == "timed out after 10 s, its --timeout; it had printed nothing"


def test_one_whose_keeper_knows_nothing_of_it_any_more_has_an_unknown_end(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        (await running(host)).on_unknown()

    assert play(tmp_path, test).end.outcome.problem.startswith("exit unknown")


@pytest.mark.parametrize("known", [True, False])
def test_of_one_whose_end_was_told_only_the_release_follows(tmp_path: Path, known: bool) -> None:
    async def test(host: Host) -> None:
        folder = host.layout.attempt("a-1")
        folder.mkdir(parents=True)
        (folder / "out").write_bytes(b"words")
        run = made(host, assign(), resumed=True, told=True)
        run.begin()
        if known:
            run.on_ended(record(), gone=True)
        else:
            run.on_unknown()
        assert run.read(0, 100)[9:] == b"words"
        run.close()

    assert play(tmp_path, test).reports == [link.Gone(attempt="a-1")]
