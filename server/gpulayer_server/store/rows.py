"""Rows of the store and records of the core, one for the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gpulayer.protocol.types import Device, Inventory, JobSpec, Outcome, Reason, Requirements, State
from gpulayer_server.auth import Token
from gpulayer_server.core.events import ArgsRow, ResultsRow, Row
from gpulayer_server.core.state import Attempt, Job, JobEnd, MapState, Session, Task, Worker
from gpulayer_server.store.maps import args_op, map_op, results_op

Op = tuple[str, tuple[Any, ...]]  # a statement's name and its values

_pack = msgspec.msgpack.Encoder().encode
_NOTHING = _pack(())
_spec = msgspec.msgpack.Decoder(JobSpec)
_outcome = msgspec.msgpack.Decoder(Outcome)
_reasons = msgspec.msgpack.Decoder(tuple[Reason, ...])
_devices = msgspec.msgpack.Decoder(tuple[Device, ...])
_inventory = msgspec.msgpack.Decoder(Inventory)
_requirements = msgspec.msgpack.Decoder(Requirements)
_notes = msgspec.msgpack.Decoder(tuple[str, ...])


def encode(row: Row) -> Op:
    """The statement that writes a record as it is now."""
    return _ENCODERS[type(row)](row)


def encoded(records: Iterable[Row]) -> list[Op]:
    """The statements that write records as they are now, and the labels of new jobs."""
    ops = [_ENCODERS[type(record)](record) for record in records]
    labelled = [record for record in records if type(record) is Job and record.spec.labels]
    for job in labelled:
        ops += [("put_label", (f"{key}={value}", job.n)) for key, value in job.spec.labels.items()]
    return ops


def _task_op(r: Task) -> Op:
    reasons = _pack(r.reasons) if r.reasons else _NOTHING
    outcome = _pack(r.outcome) if r.outcome is not None else None
    notes = _pack(r.notes) if r.notes else _NOTHING
    state = r.state._value_  # .value takes ten times as long
    return "put_task", (
        r.n, r.index, state, r.cancel_wanted, r.attempts, r.lost, reasons, outcome, r.ended_at, notes
    )  # fmt: skip


def _attempt_op(r: Attempt) -> Op:
    devices = _pack(r.devices) if r.devices else _NOTHING
    return "put_attempt", (
        r.n, r.index, r.number, r.id, r.worker, r.session, devices, r.assigned_at, r.started_at, r.ended_at,
        r.end_offset, r.over, r.released, r.problem,
    )  # fmt: skip


def _job_op(r: Job) -> Op:
    return "put_job", (r.n, r.id, r.owner, r.key, r.payload_hash, _pack(r.spec), r.submitted_at, r.spec.name)


def _job_end_op(r: JobEnd) -> Op:
    return "put_end", (r.n, r.state.value, r.ended_at)


def _session_op(r: Session) -> Op:
    head = (r.id, r.name, r.owner, r.worker, _pack(r.devices), r.opened_at, r.idle_timeout_s)
    return "put_session", (*head, r.used, r.closing, r.closed, r.reason, _pack(r.requirements))


def _worker_op(r: Worker) -> Op:
    return "put_worker", (r.id, r.name, r.slots, r.local, _pack(r.inventory), r.last_seen_at)


_ENCODERS: dict[type, Callable[[Any], Op]] = {
    Task: _task_op,
    Attempt: _attempt_op,
    Job: _job_op,
    JobEnd: _job_end_op,
    Session: _session_op,
    Worker: _worker_op,
    MapState: map_op,
    ArgsRow: args_op,
    ResultsRow: results_op,
}


def job(row: tuple[Any, ...]) -> Job:
    """A job without its tasks."""
    n, name, owner, key, payload_hash, spec, submitted_at, state, ended_at = row
    return Job(
        id=name,
        n=n,
        owner=owner,
        key=key,
        payload_hash=payload_hash,
        spec=_spec.decode(spec),
        submitted_at=submitted_at,
        state=State(state) if state is not None else None,
        ended_at=ended_at,
    )


def task(row: tuple[Any, ...]) -> Task:
    """A task with its current or last attempt."""
    job_id, n, index, state, cancel_wanted, attempts, lost, reasons, outcome, ended_at, notes, *current = row
    return Task(
        id=f"{job_id}/{index}",
        job=job_id,
        n=n,
        index=index,
        state=State(state),
        cancel_wanted=bool(cancel_wanted),
        attempt=attempt((job_id, n, index, *current)) if current and current[0] is not None else None,
        attempts=attempts,
        lost=lost,
        reasons=_reasons.decode(reasons),
        outcome=_outcome.decode(outcome) if outcome is not None else None,
        ended_at=ended_at,
        notes=_notes.decode(notes),
    )


def attempt(row: tuple[Any, ...]) -> Attempt:
    """An attempt."""
    job_id, n, index, name, number, worker, session, devices, assigned_at, started_at, ended_at, *rest = row
    end_offset, over, released, problem = rest
    return Attempt(
        id=name,
        task=f"{job_id}/{index}",
        n=n,
        index=index,
        number=number,
        worker=worker,
        session=session,
        devices=_devices.decode(devices),
        assigned_at=assigned_at,
        started_at=started_at,
        ended_at=ended_at,
        end_offset=end_offset,
        over=bool(over),
        released=bool(released),
        problem=problem,
    )


def session(row: tuple[Any, ...]) -> Session:
    """A session."""
    name_id, name, owner, worker, devices, opened_at, idle_timeout_s, used, closing, closed, *rest = row
    reason, requirements = rest
    return Session(
        id=name_id,
        name=name,
        owner=owner,
        worker=worker,
        devices=_devices.decode(devices),
        opened_at=opened_at,
        idle_timeout_s=idle_timeout_s,
        used=bool(used),
        closing=bool(closing),
        closed=bool(closed),
        reason=reason,
        requirements=_requirements.decode(requirements) if requirements is not None else Requirements(),
    )


def worker(row: tuple[Any, ...]) -> Worker:
    """A worker, not connected."""
    name_id, name, slots, local, inventory, last_seen_at = row
    return Worker(
        id=name_id,
        name=name,
        slots=slots,
        local=bool(local),
        inventory=_inventory.decode(inventory),
        last_seen_at=last_seen_at,
    )


def token(row: tuple[Any, ...]) -> Token:
    """A token, of which only the hash is here."""
    id, name, role, sha256, created_at, expires_at, single_use, used_at, used_by, worker_id, issued_by, *rest = row
    revoked_at, max_running, max_devices = rest
    return Token(
        id=id,
        name=name,
        role=role,
        sha256=sha256,
        created_at=created_at,
        expires_at=expires_at,
        single_use=bool(single_use),
        used_at=used_at,
        used_by=used_by,
        worker_id=worker_id,
        issued_by=issued_by,
        revoked_at=revoked_at,
        max_running=max_running,
        max_devices=max_devices,
    )


def put_token(token: Token) -> Op:
    """The statement that adds a token."""
    head = (token.id, token.name, token.role, token.sha256, token.created_at, token.expires_at, token.single_use)
    use = (token.used_at, token.used_by, token.worker_id, token.issued_by, token.revoked_at)
    return "put_token", (*head, *use, token.max_running, token.max_devices)
