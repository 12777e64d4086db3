"""Workers that come, go, sleep and return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.messages import HeldAttempt, Hello, Refuse, Shutdown, Verdict, Welcome
from gpulayer.protocol.types import PROTOCOL_VERSION, State
from gpulayer_server.core import attempts, condition, gangs, sessions
from gpulayer_server.core.calls import attending, leases
from gpulayer_server.core.calls import ending as calls_ending
from gpulayer_server.core.ending import cancel_attempt
from gpulayer_server.core.events import Effects, WorkerConnected
from gpulayer_server.core.state import Attempt, Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def connected(plane: Plane, event: WorkerConnected, now: float, out: Effects) -> None:
    """A worker says who it is and what it holds; the plane decides what goes on."""
    hello = event.hello
    refusal = _refusal(plane, hello, now)
    if refusal is not None:
        out.send(event.conn, refusal)
        out.closes.append((event.conn, refusal.text))
        return
    worker = plane.workers.get(hello.worker_id)
    if worker is None:
        worker = Worker(
            id=hello.worker_id,
            name="",
            slots=hello.slots,
            local=hello.local,
            inventory=hello.inventory,
            last_seen_at=now,
        )
        plane.workers[worker.id] = worker
    elif worker.conn is not None:
        del plane.by_conn[worker.conn]
        out.closes.append((worker.conn, "replaced by a newer connection of the same worker"))
    worker.name = _free_name(plane, worker.id, hello.name)
    worker.slots, worker.local, worker.inventory = hello.slots, hello.local, hello.inventory
    worker.ahead = 0
    worker.nonce, worker.conn, worker.gone_since, worker.last_seen_at = hello.nonce, event.conn, None, now
    plane.by_conn[event.conn] = worker
    plane.fleet_is_another(worker)
    out.put(worker)
    out.fleet_changed = True
    if worker.local:
        plane.local_expected_until = 0.0
    _reconcile(plane, worker, event, now, out)


def _refusal(plane: Plane, hello: Hello, now: float) -> Refuse | None:
    if hello.protocol != PROTOCOL_VERSION:
        older = "the worker" if hello.protocol < PROTOCOL_VERSION else "the control plane"
        text = f"protocol {hello.protocol} of the worker, {PROTOCOL_VERSION} here: upgrade {older}"
        return Refuse(code="protocol", text=text)
    other = plane.workers.get(hello.worker_id)
    if other is None or other.conn is None or other.nonce == hello.nonce:
        return None
    if now - other.last_seen_at >= plane.settings.silent_after_s:
        return None
    text = f"worker {other.name} ({other.id}) is connected already, from another agent that still answers"
    return Refuse(code="duplicate_worker", text=text, retry=True)


def _free_name(plane: Plane, worker_id: str, wanted: str) -> str:
    """The wanted name, with a number where another worker of that name is connected."""
    taken = {other.name for other in plane.workers.values() if other.id != worker_id and other.conn is not None}
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name


def _reconcile(plane: Plane, worker: Worker, event: WorkerConnected, now: float, out: Effects) -> None:
    hello = event.hello
    declared = {held.attempt: held for held in hello.attempts}
    held_sessions = {held.session for held in hello.sessions}
    verdicts: list[Verdict] = []
    for held in hello.attempts:
        verdicts.append(_verdict(plane, worker, held, event.acked.get(held.attempt, 0), now, out))
    unwanted = [name for name in held_sessions if not _session_goes_on(plane, worker, name)]
    settings = plane.settings
    welcome = Welcome(
        epoch=plane.epoch,
        heartbeat_s=settings.heartbeat_s,
        lost_after_s=settings.lost_after_s,
        verdicts=tuple(verdicts),
        end_sessions=tuple(sorted(unwanted)),
    )
    out.send(event.conn, welcome)
    for attempt in [a for a in plane.attempts.values() if a.worker == worker.id and a.id not in declared]:
        _not_declared(plane, worker, attempt, now, out)
    for session in [s for s in plane.sessions.values() if s.worker == worker.id and s.id not in held_sessions]:
        reason = "its kernel is no longer there" if session.used else "never opened"
        sessions.ended(plane, worker, session.id, reason, out)
    for verdict in verdicts:
        attempt = plane.attempts.get(verdict.attempt)
        if attempt is not None and not attempt.over:
            leases.back(plane, attempt, declared[attempt.id].calls, now, out)
            _end_is_wanted(plane, attempt, out)


def _end_is_wanted(plane: Plane, attempt: Attempt, out: Effects) -> None:
    """Say again, to a worker that is back, that an attempt is to end."""
    task = plane.tasks[attempt.task]
    job = plane.jobs[task.job]
    if task.cancel_wanted or gangs.being_taken_back(job):
        cancel_attempt(plane, job, task, out)


def _session_goes_on(plane: Plane, worker: Worker, name: str) -> bool:
    session = plane.sessions.get(name)
    return session is not None and session.worker == worker.id and not session.closing


def _verdict(plane: Plane, worker: Worker, held: HeldAttempt, acked: int, now: float, out: Effects) -> Verdict:
    attempt = plane.attempts.get(held.attempt)
    if attempt is None or attempt.worker != worker.id:
        return Verdict(attempt=held.attempt, go_on=False, recorded=True)
    if attempt.over:
        recorded = attempt.end_offset is not None  # one that was given up has no end: it must be ended there
        if held.released:
            attempts.release(plane, worker, attempt.id, now, out)
        return Verdict(attempt=attempt.id, go_on=False, acked=acked, recorded=recorded)
    task = plane.tasks[attempt.task]
    if held.released and not held.ended:  # the worker gave it back, but was not heard
        attempts.requeue_unstarted(plane, task, "it had not started", now, out)
        return Verdict(attempt=held.attempt, go_on=False, recorded=True)
    if held.started:
        attempts.started(plane, attempt, now, out)
    elif task.state is State.UNREACHABLE:
        task.move(State.RUNNING)
        out.put(task)
        out.changed.add(task.job)
    return Verdict(attempt=attempt.id, go_on=True, acked=acked)


def _not_declared(plane: Plane, worker: Worker, attempt: Attempt, now: float, out: Effects) -> None:
    """The worker does not hold what the plane gave it."""
    if attempt.over:
        attempts.release(plane, worker, attempt.id, now, out)
        return
    task = plane.tasks[attempt.task]
    if attempt.started_at is None:
        attempts.requeue_unstarted(plane, task, f"{worker.name} does not know of it", now, out)
        return
    attempts.lose(plane, task, f"{worker.name} no longer holds it: its record there is gone", now, out)
    attempts.release(plane, worker, attempt.id, now, out)


def gone(plane: Plane, conn: int, now: float, out: Effects) -> None:
    """A connection closed. Nothing is told for `unreachable_after_s`: agents restart, sockets break."""
    worker = plane.by_conn.pop(conn, None)
    if worker is None:
        return
    worker.conn = worker.sample = worker.sampled_at = None
    worker.gone_since = now
    leases.worker_gone(plane, worker, now)
    plane.fleet_is_another(worker)
    out.put(worker)
    out.fleet_changed = True


def tick(plane: Plane, now: float, out: Effects) -> None:
    """Time's own events: silence, leases, idle sessions, work that no worker could take any more."""
    plane.last_tick = now
    plane.ticks += 1
    plane.forget_keys()
    calls_ending.forget(plane)
    leases.look_at_later(plane, now)
    for worker in plane.workers.values():
        condition.forget_stale(plane, worker, now, out)
        if worker.conn is not None and now - worker.last_seen_at > plane.settings.silent_after_s:
            conn = worker.conn
            gone(plane, conn, now, out)
            out.closes.append((conn, "no word from the worker"))
    gone_now = {worker.id for worker in plane.workers.values() if worker.gone_since is not None}
    for attempt in [a for a in plane.attempts.values() if a.worker in gone_now and not a.over]:
        _out_of_touch(plane, plane.workers[attempt.worker], attempt.task, now, out)
    sessions.end_idle(plane, now, out)
    condition.look(plane, out)
    plane.look_for_room = True  # or for the end of all hope of it


def notice_gap(plane: Plane, now: float, out: Effects) -> None:
    """After a gap in the ticks the machine slept: nobody could be heard, so nobody is late; leases start anew.

    Any event may be the first one after the sleep, and must not be decided by what was before it.
    """
    if now - plane.last_tick <= plane.settings.gap_s:
        return
    plane.last_tick = now
    for worker in plane.workers.values():
        worker.last_seen_at = max(worker.last_seen_at, now)
        if worker.gone_since is not None:
            worker.gone_since = now
    for session in plane.sessions.values():
        if session.idle_since is not None:
            session.idle_since = now
    attending.anew(plane, now)
    out.fleet_changed = True


def _out_of_touch(plane: Plane, worker: Worker, task_id: str, now: float, out: Effects) -> None:
    task = plane.tasks[task_id]
    away_s = now - (worker.gone_since or now)
    if task.state in (State.ASSIGNED, State.RUNNING) and away_s >= plane.settings.unreachable_after_s:
        task.move(State.UNREACHABLE)
        leases.out_of_reach(plane, task.attempt)
        out.put(task)
        out.changed.add(task.job)
    leased = plane.jobs[task.job].spec.leased
    if leased and away_s >= plane.settings.lost_after_s and task.state is State.UNREACHABLE:
        attempts.lose(plane, task, f"{worker.name} was out of reach for {away_s:.0f} s", now, out)


def shutdown_local(plane: Plane, reason: str, out: Effects) -> None:
    """Local workers end with the control plane that started them."""
    for worker in plane.workers.values():
        if worker.local:
            out.send(worker.conn, Shutdown(reason=reason))
