"""Records of the core as rows, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import CellSpec, Device, Inventory, JobSpec, Outcome, Reason, Requirements, State
from gpulayer_server.core.state import Attempt, Job, Session, Task, Worker
from gpulayer_server.store import rows
from gpulayer_server.store.database import STATEMENTS

names = st.text(max_size=20)
times = st.floats(allow_nan=False, allow_infinity=False)
maybe_times = st.none() | times
devices = st.lists(
    st.builds(Device, uuid=names, kind=st.sampled_from(["cuda", "mps"]), index=st.integers(0, 7)), max_size=3
).map(tuple)
reasons = st.lists(st.builds(Reason, worker=names, code=names, text=names, temporary=st.booleans()), max_size=2)
outcomes = st.builds(
    Outcome,
    state=st.sampled_from(State),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    problem=names,
    error=names,
    tail=names,
)
cells = st.builds(CellSpec, code=names, bundle=names, session=st.none() | names)
specs = st.builds(
    JobSpec,
    cell=cells,
    requirements=st.builds(Requirements, accelerator=st.none() | names, devices=st.integers(0, 8)),
    timeout_s=maybe_times,
    retries=st.integers(0, 3),
)

tasks = st.builds(
    Task,
    id=names,
    job=names,
    index=st.integers(0, 1 << 40),
    state=st.sampled_from(State),
    cancel_wanted=st.booleans(),
    attempt=st.none(),
    attempts=st.integers(0, 9),
    lost=st.integers(0, 9),
    reasons=reasons.map(tuple),
    outcome=st.none() | outcomes,
    ended_at=maybe_times,
    notes=st.lists(names, max_size=2).map(tuple),
)
attempts = st.builds(
    Attempt,
    id=names,
    task=names,
    number=st.integers(1, 9),
    worker=names,
    session=st.none() | names,
    devices=devices,
    assigned_at=times,
    started_at=maybe_times,
    ended_at=maybe_times,
    end_offset=st.none() | st.integers(0, 1 << 60),
    over=st.booleans(),
    released=st.booleans(),
)
jobs = st.builds(
    Job, id=names, n=st.integers(1, 1 << 40), owner=names, key=names, payload_hash=names, spec=specs,
    submitted_at=times, tasks=st.just([]),
)  # fmt: skip
sessions = st.builds(
    Session, id=names, name=names, owner=names, worker=names, devices=devices, opened_at=times, idle_timeout_s=times,
    running=st.none(), idle_since=st.none(), used=st.booleans(), closing=st.booleans(), closed=st.booleans(),
    reason=names,
)  # fmt: skip
inventories = st.builds(
    Inventory, host=names, os=names, arch=names, cpu_cores=st.integers(1, 512), ram_bytes=st.integers(0, 1 << 60),
    python=names, devices=devices,
)  # fmt: skip
workers = st.builds(
    Worker, id=names, name=names, slots=st.integers(0, 64), local=st.booleans(), inventory=inventories,
    last_seen_at=times, nonce=st.just(""), conn=st.none(), gone_since=st.none(), notes=st.just(()),
    holders=st.just({}),
)  # fmt: skip


@given(tasks)
def test_a_task_comes_back(record: Task) -> None:
    assert rows.task(rows.encode(record)[1]) == (record, None)


@given(attempts)
def test_an_attempt_comes_back(record: Attempt) -> None:
    assert rows.attempt(rows.encode(record)[1]) == record


@given(jobs)
def test_a_job_comes_back(record: Job) -> None:
    assert rows.job(rows.encode(record)[1][:-1]) == record


@given(sessions)
def test_a_session_comes_back(record: Session) -> None:
    assert rows.session(rows.encode(record)[1]) == record


@given(workers)
def test_a_worker_comes_back(record: Worker) -> None:
    assert rows.worker(rows.encode(record)[1]) == record


@given(tasks, attempts)
def test_a_task_names_its_attempt(task: Task, attempt: Attempt) -> None:
    task.attempt = attempt
    assert rows.task(rows.encode(task)[1])[1] == attempt.id


@pytest.mark.parametrize("kind", [tasks, attempts, jobs, sessions, workers])
@given(data=st.data())
def test_a_row_fits_its_statement(kind: st.SearchStrategy[Any], data: st.DataObject) -> None:
    name, values = rows.encode(data.draw(kind))
    assert STATEMENTS[name].count("?") == len(values)
