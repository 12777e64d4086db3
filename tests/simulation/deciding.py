"""Whether what a plane made of one event is right: what it must have said, changed and placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpulayer.protocol.messages import (
    CancelAttempt,
    EndSession,
    Finished,
    Progress,
    Shutdown,
    Started,
    Welcome,
    WorkerMessage,
)
from gpulayer.protocol.types import Requirements, State
from gpulayer_server.core.assigning import session_mismatch
from gpulayer_server.core.events import (
    CancelWanted,
    Effects,
    Event,
    ReleaseWanted,
    ShutdownWanted,
    SubmittedBatch,
    Tick,
    WorkerConnected,
    WorkerSaid,
)
from gpulayer_server.core.explaining import known
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Attempt, Job, Session, Worker
from gpulayer_server.scheduling.match import fits, has_room, unmet


def wrong(plane: Plane, event: Event, effects: Effects, now: float, *, local_until: float) -> str:
    """The first thing that is wrong with what followed from an event; '' when all is right.

    `local_until`: a local worker is being started, until then at most.
    """
    for problem in (*_problems(plane, event, effects, now), *_in_general(plane, event, effects, now)):
        return problem
    if isinstance(event, Tick) and now >= local_until:
        for problem in _waiting_in_vain(plane, now):
            return problem
    return ""


def _problems(plane: Plane, event: Event, effects: Effects, now: float) -> Iterator[str]:
    match event:
        case WorkerSaid():
            yield from _said(plane, event, effects)
        case WorkerConnected():
            yield from _connected(plane, event, effects)
        case CancelWanted():
            yield from _cancelled(plane, event, effects)
        case ReleaseWanted():
            yield from _let_go(plane, event, effects)
        case ShutdownWanted():
            local = {worker.conn for worker in plane.workers.values() if worker.local and worker.conn is not None}
            told = {conn for conn, message in effects.sends if isinstance(message, Shutdown)}
            if local != told:
                yield f"the control plane ends: connections {local} should hear of it, {told} do"
        case Tick():
            yield from _ended_idle(effects, now)
        case _:
            pass


def _in_general(plane: Plane, event: Event, effects: Effects, now: float) -> Iterator[str]:
    for _, message in effects.sends:
        attempt = plane.attempts.get(message.attempt) if isinstance(message, CancelAttempt) else None
        if attempt is not None and attempt.over:
            yield f"{attempt.id} is over, and its worker is told to cancel it"
    more_follow = isinstance(event, SubmittedBatch) and event.more  # they are placed together
    if (effects.rows or effects.fleet_changed) and not more_follow:
        yield from _room_left(plane, now)


# ---------------------------------------------------------------- words of workers


def _current(plane: Plane, conn: int, name: str) -> Attempt | None:
    attempt, worker = plane.attempts.get(name), plane.by_conn.get(conn)
    theirs = attempt is not None and worker is not None and attempt.worker == worker.id
    return attempt if theirs and attempt is not None and not attempt.over else None


def _said(plane: Plane, event: WorkerSaid, effects: Effects) -> Iterator[str]:
    if event.conn in [closed for closed, _ in effects.closes]:
        return  # bytes are missing: what comes after that is not looked at
    last = {getattr(message, "attempt", ""): message for message in event.messages}
    for message in event.messages:
        if message is last[getattr(message, "attempt", "")]:
            yield from _word(plane, event.conn, message, effects)


def _word(plane: Plane, conn: int, message: WorkerMessage, effects: Effects) -> Iterator[str]:
    match message:
        case Started(attempt=name):
            attempt = _current(plane, conn, name)
            if attempt and (attempt.started_at is None or plane.tasks[attempt.task].state is not State.RUNNING):
                yield f"{name} has started, and is {plane.tasks[attempt.task].state.value}, {attempt}"
        case Progress(attempt=name, text=text):
            attempt = _current(plane, conn, name)
            if attempt and (attempt.progress != text or plane.tasks[attempt.task].job not in effects.changed):
                yield f"{name} is {text!r}, and {attempt.progress!r} is told"
        case Finished(attempt=name):
            if _current(plane, conn, name):
                yield f"{name} has ended, and nothing follows from it"
        case _:
            pass


def _connected(plane: Plane, event: WorkerConnected, effects: Effects) -> Iterator[str]:
    if not any(isinstance(message, Welcome) for conn, message in effects.sends if conn == event.conn):
        return
    told = {message.attempt for _, message in effects.sends if isinstance(message, CancelAttempt)}
    for held in event.hello.attempts:
        attempt = _current(plane, event.conn, held.attempt)
        if attempt and plane.tasks[attempt.task].cancel_wanted and attempt.id not in told:
            yield f"{attempt.id} should be cancelled, and its worker is not told when it is back"
        if attempt and held.started and attempt.started_at is None:
            yield f"{attempt.id} has started, as its worker said when it came, and is not known to"
        if attempt and not held.started and attempt.started_at is not None and not attempt.released:
            yield f"{attempt.id} has not started, as its worker said when it came, and is known to"
        if attempt and plane.tasks[attempt.task].state is State.UNREACHABLE:
            yield f"{attempt.id} is back, and still told to be out of reach"


def _cancelled(plane: Plane, event: CancelWanted, effects: Effects) -> Iterator[str]:
    job = plane.jobs.get(event.job)
    for task in job.tasks if job is not None else ():
        if task.state is State.QUEUED or not (task.cancel_wanted or task.terminal):
            yield f"{task.id} is cancelled, and still {task.state.value}"
        if event.give_up and task.state is State.UNREACHABLE:
            yield f"{task.id} is given up, and still {task.state.value}"
        if task.state in (State.ASSIGNED, State.RUNNING) and task.attempt is not None:
            told = [
                conn
                for conn, message in effects.sends
                if isinstance(message, CancelAttempt) and message.attempt == task.attempt.id
            ]
            conn = plane.workers[task.attempt.worker].conn
            if told != ([conn] if conn is not None else []):
                yield f"{task.id} is cancelled, connection {conn} should hear of it, {told} do"


def _let_go(plane: Plane, event: ReleaseWanted, effects: Effects) -> Iterator[str]:
    session = plane.session_of.get((event.owner, event.name))
    if session is None:
        return
    conn = plane.workers[session.worker].conn
    if conn is not None and (conn, EndSession(session=session.id)) not in effects.sends:
        yield f"session {session.id} is let go of, and its worker is not told"
    if not session.closing:
        yield f"session {session.id} is let go of, and stays"


def _ended_idle(effects: Effects, now: float) -> Iterator[str]:
    for row in effects.rows.values():
        if isinstance(row, Session) and row.closing and now - (row.idle_since or now) < row.idle_timeout_s:
            yield f"{row} is ended since nobody used it"


# ---------------------------------------------------------------- placing


def _room_left(plane: Plane, now: float) -> Iterator[str]:
    """Nothing waits that could be placed."""
    if plane.reservations or plane.measured:
        return  # what is kept for others is no room; what samples showed is looked at with the next tick
    candidates = [worker for worker in known(plane, now) if worker.reachable]
    for key in plane.queue.each():
        task_id = plane.queue.head(key)
        task = plane.tasks.get(task_id or "")
        if task is None:
            yield f"{task_id} waits, and is no task"
            continue
        job = plane.jobs[task.job]
        session = plane.session_of.get(job.session_key) if job.session_key else None
        if session is None:
            chosen = _with_room(job.spec.requirements, candidates)
            if chosen and not _limited(plane, job):
                yield f"{task_id} waits, and {[worker.name for worker in chosen]} have room for it"
            continue
        worker = plane.workers[session.worker]
        if session.running is None and not session.closing and worker.conn is not None:
            yield f"{task_id} waits, and nothing runs in session {session.id}"
        if session_mismatch(job, session, worker) is not None and not session.closing and session.running is None:
            yield f"{task_id} waits for a session that is none for it"


def _with_room(requirements: Requirements, there: list[Worker]) -> list[Worker]:
    """Where it could go now; nowhere, if it has to wait."""
    ready = [worker for worker in there if fits(requirements, worker) and has_room(requirements, worker)]
    if requirements.nodes > 1 and requirements.locality == "require":
        of_one = Counter(worker.inventory.region for worker in ready)
        ready = [worker for worker in ready if of_one[worker.inventory.region] >= requirements.nodes]
    return ready if len(ready) >= requirements.nodes else []


def _limited(plane: Plane, job: Job) -> bool:
    """Whether its owner may not hold that much more."""
    limits, asks = plane.limits.get(job.owner), job.spec.requirements
    if limits is None:
        return False
    mine = [claim for worker in plane.workers.values() for claim in worker.claims.values() if claim.owner == job.owner]
    devices = sum(len(claim.devices) for claim in mine)
    running = limits.max_running is not None and len(mine) + asks.nodes > limits.max_running
    wanted = asks.nodes * asks.device_count
    return running or (limits.max_devices is not None and wanted > 0 and devices + wanted > limits.max_devices)


def _waiting_in_vain(plane: Plane, now: float) -> Iterator[str]:
    """Nothing waits that nobody could take: at each tick it is rejected."""
    heads = {plane.queue.head(key) for key in plane.queue.each()}
    for task_id in plane.queue:
        job = plane.jobs[plane.tasks[task_id].job]
        session = plane.session_of.get(job.session_key) if job.session_key else None
        if session is None and task_id in heads and _nobody_could(plane, job, now):
            yield f"{task_id} waits, and nobody could take it"


def _nobody_could(plane: Plane, job: Job, now: float) -> bool:
    asks = job.spec.requirements
    able = [worker for worker in known(plane, now) if not unmet(asks, worker)]
    return len(able) < asks.nodes and not job.spec.wait_for_worker
