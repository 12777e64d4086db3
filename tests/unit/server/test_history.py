"""What is kept of the past, and what is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpulayer.protocol.types import CommandSpec, JobSpec, JobView, Outcome, Problem, State
from gpulayer_server.clock import Clock
from gpulayer_server.core.state import Attempt, Job, JobEnd, Settings, Task
from gpulayer_server.datafolder import DataFolder
from gpulayer_server.shell import Shell
from gpulayer_server.store.database import Store
from gpulayer_server.store.rows import encoded
from gpulayer_server.submitting import submit

DAY_S = 86_400.0


def ended(store: Store, n: int, *, days_ago: float, now: float, released: bool = True) -> None:
    """A job that ended, with a label and an attempt."""
    spec = JobSpec(command=CommandSpec(argv=("run",)), labels={"n": f"{n}"})
    at = now - days_ago * DAY_S
    job = Job(id=f"old{n}", n=n, owner="ana", key=f"key{n}", payload_hash="h", spec=spec, submitted_at=at)
    attempt = Attempt(
        id=f"old{n}-1-{n}", task=f"old{n}/0", n=n, index=0, number=1, worker="w", session=None, devices=(),
        assigned_at=at, started_at=at, ended_at=at, end_offset=0, over=True, released=released,
    )  # fmt: skip
    task = Task(id=f"old{n}/0", job=job.id, n=n, index=0, state=State.SUCCEEDED, attempt=attempt, attempts=1)
    task.outcome, task.ended_at = Outcome(state=State.SUCCEEDED), at
    store.commit([encoded([job, task, attempt, JobEnd(id=job.id, n=n, state=State.SUCCEEDED, ended_at=at)])])


async def dropped(shell: Shell) -> None:
    """Everything that may go now is gone."""
    for _ in range(10):
        shell._history._looked_at = 0.0
        shell._history.look(shell.clock.now())
        committed = asyncio.Event()
        shell.after_commits(committed.set)
        await committed.wait()


def run(tmp_path: Path, settings: Settings, make: Callable[[Store, float], None], check: Any) -> None:
    """A control plane on a store that is made first."""

    async def body() -> None:
        folder = DataFolder(tmp_path)
        store = Store(tmp_path / "store.db")
        make(store, Clock().now())
        store.close()
        shell = Shell(folder, settings)
        try:
            await check(shell)
        finally:
            await shell.close()

    asyncio.run(body())


def kept(shell: Shell) -> list[str]:
    return [stored.job.id for stored in reversed(shell.store.page(1_000))]


def test_the_oldest_of_too_many_are_dropped_with_all_that_is_theirs(tmp_path: Path) -> None:
    def make(store: Store, now: float) -> None:
        for n in range(1, 11):
            ended(store, n, days_ago=1.0 - n / 100, now=now)

    async def check(shell: Shell) -> None:
        shell.streams.append("old2-1-2", 0, b"x")
        path = shell.streams.path("old2-1-2")
        assert path.exists()
        await dropped(shell)
        assert kept(shell) == [f"old{n}" for n in range(7, 11)]
        assert not path.exists()
        assert shell.store.page(10, label="n=2") == []
        assert [len(shell.store._all("attempt_names", n)) for n in (2, 9)] == [0, 1]
        assert shell.plane.ended == 4
        assert shell.view("old2") is None

    run(tmp_path, Settings(keep_jobs=4), make, check)


def test_what_is_too_old_is_dropped_but_for_the_last(tmp_path: Path) -> None:
    """The last one keeps its name from being given again."""

    def make(store: Store, now: float) -> None:
        for n, days in enumerate((40, 31, 29, 1, 50), start=1):
            ended(store, n, days_ago=days, now=now)

    async def check(shell: Shell) -> None:
        await dropped(shell)
        assert kept(shell) == ["old3", "old4", "old5"]

    run(tmp_path, Settings(keep_days=30.0), make, check)


def test_the_key_of_a_dropped_job_is_free_again(tmp_path: Path) -> None:
    def make(store: Store, now: float) -> None:
        for n in (1, 2):
            ended(store, n, days_ago=100, now=now)

    async def check(shell: Shell) -> None:
        def ask(key: str) -> asyncio.Future[JobView | Problem | None]:
            answer: asyncio.Future[JobView | Problem | None] = asyncio.get_running_loop().create_future()
            submit(shell, "ana", key, JobSpec(command=CommandSpec(argv=("other",))), answer.set_result)
            return answer

        conflict = await ask("key1")
        assert isinstance(conflict, Problem)
        await dropped(shell)
        view = await ask("key1")
        assert isinstance(view, JobView)
        assert view.id != "old1"

    run(tmp_path, Settings(), make, check)


@pytest.mark.parametrize("named", [False, True])
def test_what_a_live_job_is_to_run_after_stays(tmp_path: Path, named: bool) -> None:
    def make(store: Store, now: float) -> None:
        for n in (1, 2, 3):
            ended(store, n, days_ago=100, now=now)
        spec = JobSpec(command=CommandSpec(argv=("run",)), after=("old1",) if named else ())
        job = Job(id="live", n=4, owner="ana", key="live", payload_hash="h", spec=spec, submitted_at=now)
        store.commit([encoded([job, Task(id="live/0", job="live", n=4, index=0)])])

    async def check(shell: Shell) -> None:
        await dropped(shell)
        assert kept(shell) == (["old1", "live"] if named else ["live"])

    run(tmp_path, Settings(), make, check)


def test_what_may_have_processes_still_stays(tmp_path: Path) -> None:
    def make(store: Store, now: float) -> None:
        ended(store, 1, days_ago=100, now=now, released=False)
        ended(store, 2, days_ago=100, now=now)
        ended(store, 3, days_ago=1, now=now)

    async def check(shell: Shell) -> None:
        await dropped(shell)
        assert kept(shell) == ["old1", "old3"]

    run(tmp_path, Settings(), make, check)


def test_a_job_whose_rows_are_about_to_go_is_nobodys_to_run_after(tmp_path: Path) -> None:
    def make(store: Store, now: float) -> None:
        for n in (1, 2):
            ended(store, n, days_ago=100, now=now)

    async def check(shell: Shell) -> None:
        shell._history.look(shell.clock.now())
        assert shell._history.going == {"old1"}
        assert shell.ends_of(["old1", "old2"]) == {"old2": State.SUCCEEDED}
        await dropped(shell)

    run(tmp_path, Settings(), make, check)
