"""Rows of the store and records of the core, one for the other."""

from __future__ import annotations

from typing import Any

import msgspec

from gpulayer.protocol.types import Device, Inventory, JobSpec, Outcome, Reason, State
from gpulayer_server.auth import Token
from gpulayer_server.core.events import Row
from gpulayer_server.core.state import Attempt, Job, Session, Task, Worker

Op = tuple[str, tuple[Any, ...]]  # a statement's name and its values

_pack = msgspec.msgpack.encode
_spec = msgspec.msgpack.Decoder(JobSpec)
_outcome = msgspec.msgpack.Decoder(Outcome)
_reasons = msgspec.msgpack.Decoder(tuple[Reason, ...])
_devices = msgspec.msgpack.Decoder(tuple[Device, ...])
_inventory = msgspec.msgpack.Decoder(Inventory)
_notes = msgspec.msgpack.Decoder(tuple[str, ...])


def encode(row: Row) -> Op:
    """The statement that writes a record as it is now."""
    match row:
        case Task() as r:
            attempt = r.attempt.id if r.attempt else None
            outcome = _pack(r.outcome) if r.outcome else None
            head = (r.id, r.job, r.index, r.state.value, r.cancel_wanted, attempt, r.attempts, r.lost)
            return "put_task", (*head, _pack(r.reasons), outcome, r.ended_at, _pack(r.notes))
        case Attempt() as r:
            head = (r.id, r.task, r.number, r.worker, r.session, _pack(r.devices))
            times = (r.assigned_at, r.started_at, r.ended_at)
            return "put_attempt", (*head, *times, r.end_offset, r.over, r.released)
        case Job() as r:
            return "put_job", (r.id, r.n, r.owner, r.key, r.payload_hash, _pack(r.spec), r.submitted_at)
        case Session() as r:
            head = (r.id, r.name, r.owner, r.worker, _pack(r.devices), r.opened_at, r.idle_timeout_s)
            return "put_session", (*head, r.used, r.closing, r.closed, r.reason)
        case Worker() as r:
            return "put_worker", (r.id, r.name, r.slots, r.local, _pack(r.inventory), r.last_seen_at)


def job(row: tuple[Any, ...]) -> Job:
    """A job without its tasks."""
    name, n, owner, key, payload_hash, spec, submitted_at = row
    return Job(
        id=name,
        n=n,
        owner=owner,
        key=key,
        payload_hash=payload_hash,
        spec=_spec.decode(spec),
        submitted_at=submitted_at,
    )


def task(row: tuple[Any, ...]) -> tuple[Task, str | None]:
    """A task without its attempt, and the attempt's name."""
    name, job_id, index, state, cancel_wanted, attempt_id, attempts, lost, reasons, outcome, ended_at, notes = row
    found = Task(
        id=name,
        job=job_id,
        index=index,
        state=State(state),
        cancel_wanted=bool(cancel_wanted),
        attempts=attempts,
        lost=lost,
        reasons=_reasons.decode(reasons),
        outcome=_outcome.decode(outcome) if outcome is not None else None,
        ended_at=ended_at,
        notes=_notes.decode(notes),
    )
    return found, attempt_id


def attempt(row: tuple[Any, ...]) -> Attempt:
    """An attempt."""
    name, task_id, number, worker, session, devices, assigned_at, started_at, ended_at, end_offset, over, released = row
    return Attempt(
        id=name,
        task=task_id,
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
    )


def session(row: tuple[Any, ...]) -> Session:
    """A session."""
    name_id, name, owner, worker, devices, opened_at, idle_timeout_s, used, closing, closed, reason = row
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
    id, name, role, sha256, created_at, expires_at, single_use, used_at, used_by, worker_id, issued_by, revoked_at = row
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
    )


def put_token(token: Token) -> Op:
    """The statement that adds a token."""
    head = (token.id, token.name, token.role, token.sha256, token.created_at, token.expires_at, token.single_use)
    return "put_token", (*head, token.used_at, token.used_by, token.worker_id, token.issued_by, token.revoked_at)
