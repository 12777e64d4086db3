"""The store: what is committed, what is loaded, and what a newer or a broken file does."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from gpulayer.protocol.types import TERMINAL, CellSpec, Inventory, JobSpec, Outcome, State
from gpulayer_server.core.state import ENDED_SESSIONS, Attempt, Job, JobEnd, Session, Task, Worker
from gpulayer_server.store.database import STATEMENTS, Store, StoreError
from gpulayer_server.store.rows import encode

INVENTORY = Inventory(host="h", os="linux", arch="x", cpu_cores=4, ram_bytes=8, python="3.11")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def a_job(n: int = 1, owner: str = "ana") -> Job:
    spec = JobSpec(cell=CellSpec(code=f"print({n})"))
    return Job(id=f"job{n}", n=n, owner=owner, key=f"key{n}", payload_hash="h", spec=spec, submitted_at=float(n))


def a_task(job: Job, state: State = State.QUEUED, attempt: Attempt | None = None) -> Task:
    attempts = 1 if attempt else 0
    return Task(id=f"{job.id}/0", job=job.id, n=job.n, index=0, state=state, attempt=attempt, attempts=attempts)


def an_attempt(job: Job, *, released: bool = False, **more: object) -> Attempt:
    facts = {"number": 1, "worker": "w1", "session": None, "devices": (), "assigned_at": 1.0} | more
    return Attempt(id=f"{job.id}-1-1", task=f"{job.id}/0", n=job.n, index=0, released=released, **facts)  # type: ignore[arg-type]


def a_worker() -> Worker:
    return Worker(id="w1", name="alpha", slots=2, local=True, inventory=INVENTORY, last_seen_at=5.0)


def a_session(name: str, *, opened_at: float = 1.0, closed: bool = False, reason: str = "") -> Session:
    return Session(
        id=f"s-{name}-{opened_at:g}", name=name, owner="ana", worker="w1", devices=(), opened_at=opened_at,
        idle_timeout_s=60.0, used=True, closed=closed, reason=reason,
    )  # fmt: skip


def put(store: Store, *rows: object) -> None:
    store.commit([[encode(row) for row in rows]])  # type: ignore[arg-type]


# ---------------------------------------------------------------- what is there


def test_what_was_committed_is_loaded_by_the_next_process(store: Store, path: Path) -> None:
    job = a_job()
    attempt = an_attempt(job)
    task = a_task(job, State.RUNNING, attempt)
    put(store, a_worker(), job, task, attempt, a_session("s"))
    again = Store(path)
    snapshot = again.load()
    again.close()
    assert snapshot.jobs == [replace(job, tasks=[task])]
    assert snapshot.attempts == [attempt]
    assert snapshot.jobs[0].tasks[0].attempt is snapshot.attempts[0]  # one record, not two
    assert snapshot.sessions == [a_session("s")]
    assert snapshot.workers == [a_worker()]
    assert snapshot.last_job_n == 1


def test_only_what_lives_is_loaded(store: Store) -> None:
    for n, (state, released) in enumerate(
        [(State.SUCCEEDED, True), (State.FAILED, False), (State.QUEUED, True), (State.UNREACHABLE, False)], start=1
    ):
        job = a_job(n)
        attempt = an_attempt(job, released=released)
        put(store, job, attempt, a_task(job, state, attempt))
        if state in TERMINAL:
            put(store, JobEnd(id=job.id, n=n, state=state, ended_at=9.0))
    put(store, a_session("open"), a_session("over", closed=True))
    snapshot = store.load()
    assert [job.id for job in snapshot.jobs] == ["job2", "job3", "job4"]  # job2 may have processes still
    assert [attempt.id for attempt in snapshot.attempts] == ["job2-1-1", "job4-1-1"]
    assert [session.name for session in snapshot.sessions] == ["open"]
    assert snapshot.last_job_n == 4


def test_a_task_is_written_as_it_is_now(store: Store) -> None:
    job = a_job()
    task = a_task(job)
    put(store, job, task)
    task.move(State.REJECTED)
    task.outcome = Outcome(state=State.REJECTED, problem="no eligible worker")
    put(store, task)
    found = store.job("job1")
    assert found is not None
    assert found.tasks == [task]


def test_two_jobs_never_share_a_key_or_a_place_in_the_queue(store: Store) -> None:
    put(store, a_job(1))
    for twin in ({"id": "twin", "n": 2}, {"id": "twin", "key": "another"}):
        with pytest.raises(StoreError, match="UNIQUE"):
            put(store, replace(a_job(1), **twin))
    assert store.job("twin") is None


def test_sessions_that_ended_by_themselves_are_remembered_until_they_open_again(store: Store) -> None:
    put(store, a_session("died", closed=True, reason="its kernel died"))
    put(store, a_session("let-go", closed=True, reason="released"))
    put(store, a_session("again", closed=True, reason="its kernel died"), a_session("again", opened_at=2.0))
    assert store.load().ended_sessions == {("ana", "died"): "its kernel died"}


def test_of_many_such_sessions_the_newest_are_loaded_oldest_first(store: Store) -> None:
    names = [f"s{n}" for n in range(ENDED_SESSIONS + 3)]
    ended = [a_session(name, opened_at=float(n), closed=True, reason="died") for n, name in enumerate(names)]
    put(store, *ended)
    assert [name for _, name in store.load().ended_sessions] == names[3:]


def test_history_is_the_owners_newest_first(store: Store) -> None:
    for n in range(1, 6):
        job = a_job(n, owner="ana" if n != 3 else "bob")
        put(store, job, a_task(job, State.CANCELLED))
    assert [stored.job.id for stored in store.page(3, owner="ana")] == ["job5", "job4", "job2"]
    assert [stored.job.id for stored in store.page(9, before="job3")] == ["job2", "job1"]
    assert store.page(9, before="job9") == []
    assert {stored.state for stored in store.page(9)} == {State.CANCELLED}
    found = store.job_by_key("ana", "key2")
    assert found is not None
    assert found.id == "job2"
    assert store.job_by_key("bob", "key2") is None
    assert store.job("job9") is None


def test_the_file_is_the_owners_alone(store: Store, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# ---------------------------------------------------------------- commits


def test_a_failed_commit_leaves_nothing_of_it(store: Store) -> None:
    job = a_job()
    with pytest.raises(StoreError, match=r"store\.db"):
        store.commit([[encode(job)], [("put_task", ("too", "few"))]])
    assert store.job("job1") is None
    put(store, job, a_task(job))  # and the next one works
    assert store.job("job1") is not None


def test_a_full_disk_is_said_and_leaves_nothing(store: Store) -> None:
    pages = store._write.execute("PRAGMA page_count").fetchone()[0]
    store._write.execute(f"PRAGMA max_page_count = {pages}")
    big = a_job()
    big = replace(big, spec=JobSpec(cell=CellSpec(code="x" * 1_000_000)))
    with pytest.raises(StoreError, match="full"):
        put(store, big, a_task(big))
    assert store.job("job1") is None


def test_a_reader_sees_only_what_is_committed(store: Store) -> None:
    store._write.execute("BEGIN IMMEDIATE")
    name, values = encode(a_job())
    store._write.execute(STATEMENTS[name], values)
    assert store.job("job1") is None
    store._write.execute("COMMIT")
    assert store.job("job1") is not None


# ---------------------------------------------------------------- epochs and schemas


def test_every_start_has_an_epoch_of_its_own(path: Path) -> None:
    epochs = []
    for _ in range(3):
        store = Store(path)
        epochs.append(store.raise_epoch())
        store.close()
    assert epochs == [1, 2, 3]


def test_an_epoch_outlives_a_process_that_ends_without_a_word(path: Path) -> None:
    store = Store(path)
    store.raise_epoch()
    other = sqlite3.connect(path)
    assert other.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone() == (1,)
    other.close()
    store.close()


def test_a_file_of_a_newer_version_is_refused_untouched(path: Path) -> None:
    Store(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 999")
    raw.close()
    with pytest.raises(StoreError, match=r"made by a newer GPUlayer \(schema 999, this one knows \d+\); upgrade this"):
        Store(path)


def test_migrations_are_applied_once(path: Path) -> None:
    store = Store(path)
    put(store, a_job())
    store.close()
    again = Store(path)
    assert again.job("job1") is not None
    again.close()


def test_a_store_of_an_earlier_time_is_brought_up_to_date(path: Path) -> None:
    """Version 3 of the schema: jobs, tasks and attempts by their names."""
    old = sqlite3.connect(path)
    scripts = sorted(f.name for f in resources.files("gpulayer_server.store").joinpath("migrations").iterdir())
    for name in [name for name in scripts if name < "004"]:
        old.executescript(resources.files("gpulayer_server.store").joinpath("migrations").joinpath(name).read_text())
    old.execute("PRAGMA user_version = 3")
    spec = JobSpec(cell=CellSpec(code="1"))
    job = Job(id="j", n=1, owner="o", key="k", payload_hash="h", spec=spec, submitted_at=1.0)
    packed = encode(job)[1][5]
    for n, state, end in ((1, "succeeded", 5.0), (2, "running", None), (3, "failed", 6.0)):
        values = (f"job{n}", n, "ana", f"key{n}", "h", packed, 1.0)
        old.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        task = (f"job{n}/0", f"job{n}", 0, state, 0, f"job{n}-1-{n}", 1, 0, b"\x90", None, end, b"\x90")
        old.execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", task)
        tried = (f"job{n}-1-{n}", f"job{n}/0", 1, "w", None, b"\x90", 1.0, 2.0, end, 9, end is not None, n != 3)
        old.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", tried)
    old.commit()
    old.close()
    store = Store(path)
    snapshot = store.load()
    assert [(job.id, job.state) for job in snapshot.jobs] == [("job2", None), ("job3", State.FAILED)]
    assert (snapshot.ended, snapshot.last_job_n) == (2, 3)
    assert [attempt.id for attempt in snapshot.attempts] == ["job3-1-3"]
    found = store.job("job1")
    assert found is not None
    assert (found.state, found.ended_at, found.tasks[0].id) == (State.SUCCEEDED, 5.0, "job1/0")
    attempt = found.tasks[0].attempt
    assert attempt is not None
    assert (attempt.id, attempt.end_offset) == ("job1-1-1", 9)
    store.close()


def test_a_store_in_memory_is_the_same(path: Path) -> None:
    store = Store(None)
    job = a_job()
    put(store, job, a_task(job))
    assert [found.id for found in store.load().jobs] == ["job1"]
    store.close()


def test_every_statement_fits_the_schema(store: Store) -> None:
    for name, sql in STATEMENTS.items():
        values = ("x",) * sql.count("?")
        assert store._write.execute(f"EXPLAIN {sql}", values).fetchall(), name


def test_a_job_that_is_dropped_while_it_is_looked_at_is_seen_whole(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job()
    put(store, job, a_task(job, State.SUCCEEDED))
    shown = store._stored

    def dropped_meanwhile(jobs: list[Job]) -> object:
        store.commit([[("drop_tasks", (job.n,)), ("drop_job", (job.n,))]])  # as the committer's thread does
        return shown(jobs)

    monkeypatch.setattr(store, "_stored", dropped_meanwhile)
    (found,) = store.page(10)
    assert (found.job.id, found.state) == (job.id, State.SUCCEEDED)
    assert store.page(10) == []
    assert store.stored(job.id) is None
