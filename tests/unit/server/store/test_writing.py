"""Many rows by few statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from gpulayer.protocol.types import CommandSpec, JobSpec, State
from gpulayer_server.core.state import Job, JobEnd, Task
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op, encode, encoded


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(None)
    yield store
    store.close()


def a_job(n: int) -> tuple[Job, Task]:
    spec = JobSpec(command=CommandSpec(argv=("run", f"{n}")), labels={"n": f"{n}"})
    job = Job(id=f"job{n}", n=n, owner="ana", key=f"key{n}", payload_hash="h", spec=spec, submitted_at=1.0)
    task = Task(id=f"job{n}/0", job=job.id, n=n, index=0)
    job.tasks = [task]
    return job, task


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 63, 64, 65, 150])
def test_every_row_is_written_however_many_there_are(store: Store, count: int) -> None:
    store.commit([encoded(a_job(n)) for n in range(1, count + 1)])
    assert [job.id for job in store.load().jobs] == [f"job{n}" for n in range(1, count + 1)]
    assert [stored.job.n for stored in store.page(10, label="n=2")] == ([2] if count >= 2 else [])


def test_of_a_row_that_changes_twice_the_last_counts(store: Store) -> None:
    job, task = a_job(1)
    units: list[list[Op]] = [encoded([job, task])]
    for state in (State.ASSIGNED, State.RUNNING):
        task.state = state
        units.append([encode(task)])
    store.commit(units)
    assert [each.tasks[0].state for each in store.load().jobs] == [State.RUNNING]


def test_what_is_dropped_after_it_was_written_is_gone_and_what_follows_stays(store: Store) -> None:
    job, task = a_job(1)
    end = JobEnd(id=job.id, n=1, state=State.SUCCEEDED, ended_at=2.0)
    drops: list[Op] = [(name, (1,)) for name in ("drop_labels", "drop_tasks", "drop_end", "drop_job")]
    again, its_task = a_job(1)
    store.commit([encoded([job, task, end]), drops, encoded([again, its_task])])
    found = store.load()
    assert [(each.id, each.state) for each in found.jobs] == [("job1", None)]
    assert found.ended == 0


def test_a_statement_that_can_not_be_carried_out_undoes_the_rest(store: Store) -> None:
    rows = [a_job(n) for n in range(1, 20)]
    with pytest.raises(StoreError):
        store.commit([encoded(row) for row in rows] + [[("put_task", ())]])
    with pytest.raises(StoreError, match="UNIQUE"):
        store.commit([encoded(row) for row in [*rows, rows[0]]])
    assert store.load().jobs == []
    assert isinstance(store._write, sqlite3.Connection)
    assert not store._write.in_transaction
