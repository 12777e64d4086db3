"""What is kept of maps: those of a job go with it, old ones and too many while it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gpulayer.protocol.calls import OK, CallRun, CallsSpec, FunctionSpec, MapSpec
from gpulayer.protocol.types import JobSpec, State
from gpulayer_server import maphistory
from gpulayer_server.clock import Clock
from gpulayer_server.core.events import ResultsRow, Row
from gpulayer_server.core.jobs import job_name
from gpulayer_server.core.state import Job, JobEnd, MapState, Settings, Task
from gpulayer_server.datafolder import DataFolder
from gpulayer_server.shell import Shell
from gpulayer_server.store.database import Store
from gpulayer_server.store.rows import encoded

DAY_S = 86_400.0


def a_job(n: int, *, ended_at: float | None = None) -> list[Row]:
    """A job of calls with one runner."""
    name = job_name(n)
    spec = JobSpec(calls=CallsSpec(function=FunctionSpec(name="f", qualname="f")))
    job = Job(id=name, n=n, owner="ana", key=f"calls {name}", payload_hash=f"h{n}", spec=spec, submitted_at=1.0)
    task = Task(id=f"{name}/0", job=name, n=n, index=0)
    rows: list[Row] = [job, task]
    if ended_at is not None:
        task.state, task.ended_at = State.SUCCEEDED, ended_at
        rows.append(JobEnd(id=name, n=n, state=State.SUCCEEDED, ended_at=ended_at))
    return rows


def a_map(n: int, k: int, *, ended_at: float | None, runs: int = 1) -> list[Row]:
    """A map with so many rows of results."""
    job = job_name(n)
    state = MapState(
        n=n, k=k, id=f"{job}.{k}", job=job, owner="ana", key=f"{n}.{k}", spec=MapSpec(), opened_at=1.0,
        state=State.SUCCEEDED if ended_at else State.QUEUED, ended_at=ended_at,
    )  # fmt: skip
    results = [
        ResultsRow(n=n, k=k, run=CallRun(map=state.id, first=first, codes=bytes([OK]), data=(b"x",)))
        for first in range(runs)
    ]
    return [state, *results]


def run(
    tmp_path: Path,
    settings: Settings,
    make: Callable[[float], list[Row]],
    check: Callable[[Shell], Coroutine[Any, Any, None]],
) -> None:
    """A control plane on a store that is made first."""

    async def body() -> None:
        folder = DataFolder(tmp_path)
        store = Store(tmp_path / "store.db")
        store.commit([encoded(make(Clock().now()))])
        store.close()
        shell = Shell(folder, settings)
        try:
            await check(shell)
        finally:
            await shell.close()

    asyncio.run(body())


async def looked(shell: Shell, times: int = 1) -> None:
    """The history has looked so often, and what it dropped is gone."""
    for _ in range(times):
        shell._history._looked_at = shell._history._maps._looked_at = float("-inf")
        shell._history.look(shell.clock.now())
        committed = asyncio.Event()
        shell.after_commits(committed.set)
        await committed.wait()


def kept(shell: Shell, n: int) -> list[int]:
    return [state.k for state in reversed(shell.store.maps.of_job(job_name(n), 10_000))]


def test_the_maps_of_a_job_go_before_it_does(tmp_path: Path) -> None:
    def make(now: float) -> list[Row]:
        old = now - 100 * DAY_S
        maps = [row for k in (1, 2) for row in a_map(1, k, ended_at=old)]
        return [*a_job(1, ended_at=old), *maps, *a_job(2), *a_map(2, 1, ended_at=None)]

    async def check(shell: Shell) -> None:
        await looked(shell)
        assert (kept(shell, 1), shell.view(job_name(1)) is None) == ([], False)
        await looked(shell)
        assert shell.view(job_name(1)) is None
        assert shell.store.maps.done((1, 1)) == 0
        assert kept(shell, 2) == [1]

    run(tmp_path, Settings(), make, check)


def test_old_maps_of_a_live_job_go_but_for_its_last(tmp_path: Path) -> None:
    """The last one keeps its number from being given again."""

    def make(now: float) -> list[Row]:
        ends = {1: now - 40 * DAY_S, 2: None, 3: now - DAY_S, 4: now - 50 * DAY_S}
        return [*a_job(1), *[row for k, end in ends.items() for row in a_map(1, k, ended_at=end)]]

    async def check(shell: Shell) -> None:
        await looked(shell)
        assert kept(shell, 1) == [2, 3, 4]

    run(tmp_path, Settings(keep_days=30.0), make, check)


def test_results_may_be_kept_for_less_long_than_jobs_or_for_longer(tmp_path: Path) -> None:
    def make(now: float) -> list[Row]:
        ends = {1: now - 40 * DAY_S, 2: now - 6 * DAY_S, 3: now - 2 * DAY_S, 4: None}
        return [*a_job(1), *[row for k, end in ends.items() for row in a_map(1, k, ended_at=end)]]

    async def check(shell: Shell) -> None:
        await looked(shell)
        assert kept(shell, 1) == [1, 2, 3, 4]
        shell._history._maps._settings = Settings(keep_days=1.0, keep_results_days=7.0)
        await looked(shell)
        assert kept(shell, 1) == [2, 3, 4]
        assert shell.store.maps.done((1, 1)) == 0
        assert shell.store.maps.done((1, 2)) == 1

    run(tmp_path, Settings(), make, check)


def test_of_too_many_maps_the_oldest_go_and_none_that_just_ended(tmp_path: Path) -> None:
    def make(now: float) -> list[Row]:
        maps = [row for k in range(1, 9) for row in a_map(1, k, ended_at=now - 2 * 3600.0 + k)]
        return [*a_job(1), *maps, *[row for k in range(9, 14) for row in a_map(1, k, ended_at=now - 60.0)]]

    async def check(shell: Shell) -> None:
        await looked(shell, 3)
        assert kept(shell, 1) == [8, 9, 10, 11, 12, 13]
        shell._history._maps._settings = Settings(keep_jobs=1)
        await looked(shell, 3)
        assert kept(shell, 1) == [9, 10, 11, 12, 13]

    run(tmp_path, Settings(keep_jobs=6), make, check)


def test_a_map_with_many_results_goes_a_part_at_a_time(tmp_path: Path) -> None:
    rows = maphistory._ROWS

    def make(now: float) -> list[Row]:
        old = now - 100 * DAY_S
        maps = [*a_map(1, 1, ended_at=old, runs=rows + 1), *a_map(1, 2, ended_at=old), *a_map(1, 3, ended_at=None)]
        return [*a_job(1), *maps]

    async def check(shell: Shell) -> None:
        await looked(shell)
        assert kept(shell, 1) == [1, 2, 3]
        assert shell.store.maps.runs_of((1, 1)) == 1
        await looked(shell)
        assert kept(shell, 1) == [3]

    run(tmp_path, Settings(), make, check)
