"""The store: SQLite in WAL, named statements, numbered migrations.

One connection writes, on the committer's thread; another reads. A commit survives the kill of any process; a power
cut may lose the last ones, but never an epoch: that is raised with `synchronous=FULL`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gpulayer.protocol.types import State
from gpulayer_server.auth import Token
from gpulayer_server.core.state import ENDED_SESSIONS, Attempt, Job, Snapshot, Task, whole_of
from gpulayer_server.store import rows
from gpulayer_server.store.maps import Maps
from gpulayer_server.store.rows import Op
from gpulayer_server.store.writing import Writer


def _text(*path: str) -> str:
    return resources.files("gpulayer_server.store").joinpath(*path).read_text(encoding="utf-8")


def named_statements(file: str) -> dict[str, str]:
    """The statements of one of our files of SQL, by their names."""
    parts = re.split(r"^-- name: (\w+)\n", _text(file), flags=re.MULTILINE)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


STATEMENTS = named_statements("statements.sql")


_LOST = 5000  # a mark that is still to be written is of a loss just before the end: of one of the last
_LOG_PAGES = 4000  # of the write-ahead log: rows that change thrice are moved once
_ROOM_BYTES = 1_000_000  # of less, SQLite finds none for its log and its index
_ADVICE = {  # by SQLite's own words: its codes are known to Python 3.11 and later only
    "disk is full": "; make room on that disk, then try again",
    "not a database": "; put a copy of it back, or move it away to begin with no history",
    "malformed": "; put a copy of it back, or move it away to begin with no history",
}


_NEWEST = 2**62
_SLICE = 1000
_FILTERS = {
    "owner": "owner = ?",
    "state": "ends.state = ?",
    "name": "name = ? AND name <> ''",
    "label": "jobs.n IN (SELECT labels.n FROM labels WHERE label = ?)",
}


@dataclass(frozen=True)
class Stored:
    """A job as lists need it: without its tasks, but for one that is shown, and with a count by state of many.

    `state` is that of the job as a whole, or of the task that was asked for.
    """

    job: Job
    task: Task
    state: State
    tally: Mapping[State, int]


class StoreError(RuntimeError):
    """The store could not do what it was asked; nothing of it is half-done."""


class Store:
    """Rows in SQLite. `path` None keeps them in memory (tests and the simulator; one connection for everything)."""

    def __init__(self, path: Path | None):
        """Open the file, made when missing, and bring it up to date. Raises `StoreError`."""
        self.path = path
        try:
            self._write = self._opened()
            self._read = self._write
            self._writer = Writer(self._write, STATEMENTS)
            if path is not None:
                path.chmod(0o600)
                self._read = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
                self._read.execute("PRAGMA query_only = 1")
            self.maps = Maps(self._read, STATEMENTS)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error

    def _opened(self) -> sqlite3.Connection:
        target = str(self.path) if self.path is not None else ":memory:"
        self._write = sqlite3.connect(target, isolation_level=None, check_same_thread=False)
        self._write.execute("PRAGMA journal_mode = WAL")
        self._write.execute("PRAGMA synchronous = NORMAL")
        self._write.execute("PRAGMA cache_size = -32768")  # KiB: the indexes of some thousand live jobs
        self._write.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        self._checkpoints = True
        self._migrate()
        return self._write

    def _migrate(self) -> None:
        """Apply the migrations that this file lacks, each in a transaction of its own."""
        (version,) = self._write.execute("PRAGMA user_version").fetchone()
        names = sorted(f.name for f in resources.files("gpulayer_server.store").joinpath("migrations").iterdir())
        numbered = [(int(name.split("_")[0]), name) for name in names if name.endswith(".sql")]
        newest = numbered[-1][0]
        if version > newest:
            text = (
                f"{self.path}: made by a newer GPUlayer (schema {version}, this one knows {newest}); upgrade this one"
            )
            raise StoreError(text)
        for number, name in numbered:
            if number > version:
                script = _text("migrations", name)
                self._write.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")

    def raise_epoch(self) -> int:
        """The next epoch, on disk before this returns. Raises `StoreError`."""
        try:
            self._write.execute("PRAGMA synchronous = FULL")
            self._write.execute("BEGIN IMMEDIATE")
            ((epoch,),) = self._write.execute(STATEMENTS["raise_epoch"]).fetchall()
            self._write.execute("COMMIT")
            self._write.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return epoch

    def commit(self, units: Iterable[Iterable[Op]], *, checkpoint: bool = True) -> None:
        """Write many units in one transaction; raises `StoreError`, and then none of them is written.

        `checkpoint`: it may take the time to move the write-ahead log into the database, if that is long.
        """
        try:
            if checkpoint is not self._checkpoints:
                self._checkpoints = checkpoint
                self._write.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES if checkpoint else 0}")
            self._write.execute("BEGIN IMMEDIATE")
            self._writer.write(units)
            self._write.execute("COMMIT")
        except sqlite3.Error as error:
            if self._write.in_transaction:
                self._write.execute("ROLLBACK")
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error | OSError) -> StoreError:
        text = str(error)
        if "disk I/O" in text and self._no_room():
            text = "disk is full"  # SQLite could not map its index of the write-ahead log, and does not say why
        advice = next((advice for words, advice in _ADVICE.items() if words in text), "")
        return StoreError(f"{self.path or 'memory'}: {text}{advice}")

    def _no_room(self) -> bool:
        return self.path is not None and shutil.disk_usage(self.path.parent).free < _ROOM_BYTES

    def load(self) -> Snapshot:
        """Everything live."""
        snapshot = Snapshot(last_job_n=self._all("last_job_n")[0][0], ended=self._all("ended_count")[0][0])
        snapshot.workers = [rows.worker(row) for row in self._all("workers")]
        snapshot.sessions = [rows.session(row) for row in self._all("open_sessions")]
        ended = reversed(self._all("ended_sessions", ENDED_SESSIONS))  # oldest first, as they came
        snapshot.ended_sessions = {(owner, name): reason for owner, name, reason in ended}
        snapshot.attempts = [rows.attempt(row) for row in self._all("held_attempts")]
        snapshot.lost = [name for (name,) in self._all("lost_attempts", _LOST)]
        held = {attempt.id: attempt for attempt in snapshot.attempts}
        snapshot.jobs = self._with_tasks([rows.job(row) for row in self._all("live_jobs")], held)
        named = {name for job in snapshot.jobs for name in job.spec.after}
        snapshot.maps = self.maps.live()
        snapshot.last_map_k = self.maps.last_ks(job.n for job in snapshot.jobs if job.spec.calls is not None)
        snapshot.succeeded = {name for name, state in self.states(named).items() if state is State.SUCCEEDED}
        return snapshot

    def job(self, name: str) -> Job | None:
        """A job of any age, with its tasks and their current attempts."""
        return self._one_job("job", name)

    def job_by_key(self, owner: str, key: str) -> Job | None:
        """The job that an idempotency key made."""
        return self._one_job("job_by_key", owner, key)

    def page(
        self,
        limit: int,
        *,
        owner: str | None = None,
        state: State | None = None,
        label: str | None = None,
        name: str | None = None,
        before: str | None = None,
    ) -> list[Stored]:
        """Jobs, newest first. `state`: only those that ended so; `before`: only those older than this job."""
        given = {"owner": owner, "state": state.value if state else None, "label": label, "name": name}
        wanted = {_FILTERS[key]: value for key, value in given.items() if value is not None}
        n = self.n_of(before) if before is not None else _NEWEST
        sql = " AND ".join([STATEMENTS["page"], *wanted]) + " ORDER BY jobs.n DESC LIMIT ?"
        with self._at_once():
            found = self._read.execute(sql, (n or 0, *wanted.values(), limit)).fetchall()
            return self._stored([rows.job(row) for row in found])

    def stored(self, name: str, index: int | None = None) -> Stored | None:
        """A job of any age, with the task that stands for it, or that of an index; None where it is not there."""
        with self._at_once():
            found = [rows.job(row) for row in self._all("job", name)]
            if not found or index is None:
                return self._stored(found)[0] if found else None
            tasks = [rows.task(row) for row in self._all("task", found[0].n, index)]
        return Stored(found[0], tasks[0], tasks[0].state, {}) if tasks else None

    def _stored(self, jobs: list[Job]) -> list[Stored]:
        single = json.dumps([job.n for job in jobs if not job.many])
        tasks = {row[1]: rows.task(row) for row in self._all("tasks_of_jobs", single)}
        return [self._many(job) if job.many else Stored(job, tasks[job.n], tasks[job.n].state, {}) for job in jobs]

    def _many(self, job: Job) -> Stored:
        tally = {State(state): count for state, count in self._all("tally", job.n)}
        ended_as = job.state if job.spec.calls is not None else None  # not every one of its runners was needed
        whole = ended_as or whole_of(tally)
        found = self._all("first_task_in_state", job.n, whole.value) or self._all("first_task", job.id)
        return Stored(job, rows.task(found[0]), whole, tally)

    def oldest_ended(self, limit: int) -> list[tuple[int, str, float]]:
        """Number, id and end of the jobs that ended first."""
        return self._all("oldest_ended", limit)

    def attempt_names(self, n: int) -> list[str]:
        """The attempts of the job of a number."""
        return [name for (name,) in self._all("attempt_names", n)]

    def first_tasks(self, name: str) -> list[Task]:
        """A job's first task; none where the job is not there."""
        return [rows.task(row) for row in self._all("first_task", name)]

    def attempts_of_job(self, name: str) -> list[Attempt]:
        """Every attempt of a job's tasks."""
        return [rows.attempt(row) for row in self._all("attempts_of_job", name)]

    def owner_of(self, name: str) -> str | None:
        """Whose job it is; None where it is not there."""
        found = self._all("owner_of_job", name)
        return found[0][0] if found else None

    def n_of(self, name: str) -> int | None:
        """A job's place in the order of submission; None where it is not there."""
        found = self._all("n_of_job", name)
        return found[0][0] if found else None

    def states(self, names: Iterable[str]) -> dict[str, State | None]:
        """How each of these jobs ended as a whole, None for one that goes on; those that are not there are left out."""
        found = self._all("states", json.dumps(list(names)))
        return {name: State(state) if state is not None else None for name, state in found}

    def jobs_by_keys(self, owner: str, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
        """By key: id and payload's hash of the jobs that these keys made."""
        found = self._all("jobs_by_keys", json.dumps(list(keys)), owner)
        return {key: (name, payload_hash) for key, name, payload_hash in found}

    def tokens(self) -> list[Token]:
        """Every token that is kept, oldest first."""
        return [rows.token(row) for row in self._all("tokens")]

    def close(self) -> None:
        """Close both connections."""
        if self._read is not self._write:
            self._read.close()
        self._write.close()

    @contextlib.contextmanager
    def _at_once(self) -> Iterator[None]:
        """Rows of several tables as they are at one moment: the committer's thread drops those of old jobs."""
        alone = self._read is self._write or self._read.in_transaction
        if not alone:
            self._read.execute("BEGIN")
        try:
            yield
        finally:
            if not alone and self._read.in_transaction:
                self._read.execute("COMMIT")

    def _all(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._read.execute(STATEMENTS[name], values).fetchall()

    def _one_job(self, name: str, *values: Any) -> Job | None:
        with self._at_once():
            found = self._all(name, *values)
            return self._with_tasks([rows.job(found[0])], {})[0] if found else None

    def _with_tasks(self, jobs: list[Job], held: dict[str, Attempt]) -> list[Job]:
        """The same jobs, with their tasks; of an attempt that is held there is one record."""
        by_n = {job.n: job for job in jobs}
        for first in range(0, len(jobs), _SLICE):
            wanted = json.dumps([job.n for job in jobs[first : first + _SLICE]])
            for task in map(rows.task, self._all("tasks_of_jobs", wanted)):
                if task.attempt is not None:
                    task.attempt = held.get(task.attempt.id, task.attempt)
                by_n[task.n].tasks.append(task)
        return jobs
