"""Records of the core as rows, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import CellSpec, Device, Inventory, JobSpec, Outcome, Reason, Requirements, State
from gpulayer_server.core.state import Attempt, Job, JobEnd, Session, Task, Worker
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

numbers = st.integers(0, 1 << 40)
attempts = st.builds(
    lambda job, index, **more: Attempt(task=f"{job}/{index}", index=index, **more),
    job=names,
    index=numbers,
    id=names,
    n=numbers,
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
    problem=names,
)
tasks = st.builds(
    lambda job, index, **more: Task(id=f"{job}/{index}", job=job, index=index, **more),
    job=names,
    n=numbers,
    index=numbers,
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
jobs = st.builds(
    Job, id=names, n=st.integers(1, 1 << 40), owner=names, key=names, payload_hash=names, spec=specs,
    submitted_at=times, tasks=st.just([]),
)  # fmt: skip
ends = st.builds(JobEnd, id=names, n=numbers, state=st.sampled_from(State), ended_at=times)
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
    claims=st.just({}),
)  # fmt: skip


@given(tasks)
def test_a_task_comes_back(record: Task) -> None:
    n, *values = rows.encode(record)[1]
    assert rows.task((record.job, n, *values)) == record


@given(attempts)
def test_an_attempt_comes_back(record: Attempt) -> None:
    n, index, number, name, *values = rows.encode(record)[1]
    job = record.task.rpartition("/")[0]
    assert rows.attempt((job, n, index, name, number, *values)) == record


@given(jobs, st.none() | st.sampled_from(State), maybe_times)
def test_a_job_comes_back_with_its_end(record: Job, state: State | None, ended_at: float | None) -> None:
    n, name, *values, spoken_name = rows.encode(record)[1]
    record.state, record.ended_at = state, ended_at
    assert rows.job((n, name, *values, state.value if state else None, ended_at)) == record
    assert spoken_name == record.spec.name


@given(sessions)
def test_a_session_comes_back(record: Session) -> None:
    assert rows.session(rows.encode(record)[1]) == record


@given(workers)
def test_a_worker_comes_back(record: Worker) -> None:
    assert rows.worker(rows.encode(record)[1]) == record


@given(tasks, attempts)
def test_a_task_comes_back_with_its_attempt(task: Task, attempt: Attempt) -> None:
    attempt.task, attempt.n, attempt.index = task.id, task.n, task.index
    n, *values = rows.encode(task)[1]
    _, _, number, name, *more = rows.encode(attempt)[1]
    assert rows.task((task.job, n, *values, name, number, *more)).attempt == attempt


def test_a_new_job_brings_its_labels() -> None:
    spec = JobSpec(cell=CellSpec(code="1"), labels={"sweep": "lr", "seed": "1"})
    job = Job(id="j", n=7, owner="ana", key="k", payload_hash="h", spec=spec, submitted_at=1.0)
    assert rows.encoded([job]) == [rows.encode(job), ("put_label", ("sweep=lr", 7)), ("put_label", ("seed=1", 7))]


@pytest.mark.parametrize("kind", [tasks, attempts, jobs, ends, sessions, workers])
@given(data=st.data())
def test_a_row_fits_its_statement(kind: st.SearchStrategy[Any], data: st.DataObject) -> None:
    name, values = rows.encode(data.draw(kind))
    assert STATEMENTS[name].count("?") == len(values)
