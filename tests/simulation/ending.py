"""What must hold at the end, when all is quiet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpulayer.protocol.records import BoundaryScanner, Kind, RecordError, Splitter, decode_json
from gpulayer.protocol.types import TERMINAL, JobView, State
from gpulayer_server.core.state import Job, SessionKey, Task
from gpulayer_server.core.views import stored_view
from tests.simulation.cellrun import LATE
from tests.simulation.runnerrun import RunnerRun
from tests.simulation.simulator import Violation
from tests.simulation.truth import Truth

if TYPE_CHECKING:
    from tests.simulation.world import World


def unfinished(world: World) -> str:
    """The first thing that is not over; '' when all is."""
    for problem in (*_unanswered(world), *_unfinished_jobs(world), *_still_held(world)):
        return problem
    return ""


def _unanswered(world: World) -> Iterator[str]:
    for caller in world.callers:
        for wish in caller.wishes.values():
            if wish.open:
                yield f"map {wish.key} of {caller.owner} was never taken"
    for client in world.clients:
        for wanted in client.wanted.values():
            if wanted.job is None:
                yield f"{wanted.key} of {client.owner} was never answered"


def _unfinished_jobs(world: World) -> Iterator[str]:
    plane = world.control_plane.plane
    dead = {f"id-{machine.name}" for machine in world.machines if machine.dead}
    for task in plane.tasks.values():
        job = plane.jobs[task.job]
        if job.waits_for and any(name in plane.jobs for name in job.waits_for):
            continue  # that one is told of
        session = plane.session_of.get(job.session_key) if job.session_key else None
        stuck_in_session = session is not None and session.worker in dead and task.state is State.QUEUED
        on_dead = task.attempt is not None and task.attempt.worker in dead
        if not (stuck_in_session or (on_dead and (task.terminal or not job.spec.leased))):
            yield f"task {task.id} is {task.state.value}, attempt {task.attempt}"
    for of in plane.maps.values():
        left = f"{of.waiting.count} calls wait, {of.held} are held, {len(of.put_off)} put off"
        yield f"map {of.row.id} is {of.row.state.value}: {left}"


def _still_held(world: World) -> Iterator[str]:
    plane = world.control_plane.plane
    alive = {f"id-{machine.name}" for machine in world.machines if not machine.dead}
    for what in (*plane.attempts.values(), *plane.sessions.values()):
        if what.worker in alive:
            yield f"the plane holds {what}"
    for agent in world.agents:
        if agent.machine.dead:
            continue
        link = agent.link
        if link.held or link.sessions or agent.machine.kernels:
            yield f"{agent.name} holds {list(link.held)}, {link.sessions}, {len(agent.machine.kernels)} kernels"


def nowhere(world: World) -> set[tuple[str, str, int]]:
    """Calls that the plane takes to be with a runner, and that are not there: with the attempt. Some are on the way."""
    found: set[tuple[str, str, int]] = set()
    runs = {name: run for agent in world.agents if agent.up for name, run in agent.runs.items()}
    for name, lease in world.control_plane.plane.calls.leases.items():
        run = runs.get(name)
        if lease.ready and isinstance(run, RunnerRun):
            there = set(run.keys)
            taken = [(of.row.id, range(*each)) for of, ranges in lease.flight.items() for each in ranges]
            found |= {(name, of, index) for of, indices in taken for index in indices if (of, index) not in there}
    return found


def check_end(world: World) -> None:
    """Everything that was promised was kept. Raises `Violation`."""
    store = world.control_plane.store
    truth = world.truth
    truth.calls.check(store)
    jobs = {view.job for view in truth.calls.views.values()}
    for name in (*truth.job_of_key.values(), *sorted(jobs)):
        job = store.job(name)
        if job is None:
            raise Violation(f"job {name} was answered, and is not in the store")
        for task in job.tasks:
            index = task.index if job.many else None
            _check_task(world, job, task, stored_view(job, {}, index))
        _check_whole_job(job)
    _check_sessions(world)


def _check_whole_job(job: Job) -> None:
    """How it ended follows from how its tasks ended."""
    states = {task.state for task in job.tasks}
    well = states == {State.SUCCEEDED} if job.spec.calls is None else job.state is State.SUCCEEDED
    if job.state is not None and (well != (job.state is State.SUCCEEDED) or not states <= TERMINAL):
        raise Violation(f"{job.id} ended as {job.state}, its tasks as {states}")
    if job.state is None and states <= TERMINAL:
        raise Violation(f"all tasks of {job.id} have ended, and the store does not say so")
    if job.spec.calls is not None:
        return
    if [task.index for task in job.tasks] != list(job.spec.indices):
        raise Violation(f"{job.id} has tasks {[task.index for task in job.tasks]}, and should have {job.spec.indices}")


def _check_task(world: World, job: Job, task: Task, view: JobView) -> None:
    truth = world.truth
    key = task.id if job.many else job.id
    told = truth.views.get(key)
    if told is not None and told.terminal and (told.state is not view.state or told.outcome != view.outcome):
        raise Violation(f"the last that was told of {key} is {told}, the store says {view}")
    for program in world.truth.of_task.get(key, []):
        is_last = program.attempt == view.attempt
        if program.index != task.index:
            raise Violation(f"{program.attempt} ran as index {program.index} of {job.id}, it is of {task.id}")
        if program.live and not program.kernel.machine.dead:
            raise Violation(f"{program.attempt} runs on; its task is {view.state.value}")
        if is_last and view.end_offset is not None:
            _check_whole(world, program.attempt, view.end_offset)
        elif not is_last or view.terminal:
            _check_cut(world, program.attempt)
    _check_cause(truth, job, task, view)


def _check_cause(truth: Truth, job: Job, task: Task, view: JobView) -> None:
    """A task ends as it does for a reason."""
    lost = view.state is State.FAILED and view.end_offset is None
    if lost and not job.spec.leased and job.id not in truth.given_up and view.attempt not in truth.damaged:
        raise Violation(f"{task.id} was lost without a cause: {view}")
    if lost and task.lost <= job.spec.retries and not task.cancel_wanted and job.spec.calls is None:
        raise Violation(f"{task.id} was lost, and a retry was left: {view}")
    problem = view.outcome.problem if view.outcome else ""
    if problem == LATE:
        raise Violation(f"{task.id} ended by itself, and what was heard later counts: {view}")
    if problem.startswith("cancelled") and not task.cancel_wanted:
        raise Violation(f"{task.id} was cancelled by nobody: {view}")
    if view.started_at is not None and view.attempt not in truth.programs:
        raise Violation(f"{view.attempt} is told to have started, and never ran: {view}")
    told_all = view.kind == "command" and view.terminal and view.end_offset is not None
    if told_all and view.attempt in truth.programs and view.started_at is None:
        raise Violation(f"{view.attempt} ran and ended, and is not told to have started: {view}")
    if view.state is State.SUCCEEDED and view.attempt not in truth.programs:
        raise Violation(f"{task.id} succeeded, but {view.attempt} never ran")
    after = [reason for reason in view.reasons if reason.code == "after"]
    if after and all(truth.store.states([name])[name] is State.SUCCEEDED for name in job.spec.after):
        raise Violation(f"{task.id} is rejected, and all that it was to run after have succeeded: {view}")


def _check_whole(world: World, attempt: str, end_offset: int) -> None:
    """The stream is what the program wrote, byte by byte."""
    wrote = bytes(world.truth.spools[attempt].data)
    stream = _stream(world, attempt)
    if stream != wrote or end_offset != len(wrote):
        raise Violation(f"{attempt} wrote {len(wrote)} bytes, the stream has {len(stream)}, its end is {end_offset}")


def _check_cut(world: World, attempt: str) -> None:
    """A lost attempt's stream is some of its records, whole, and the mark that it is cut short."""
    stream = _stream(world, attempt)
    try:
        records = Splitter().feed(stream)
    except RecordError as error:
        raise Violation(f"{attempt} is lost, and its stream is none: {error}") from error
    if not records or records[-1][1] != Kind.MARK or decode_json(records[-1][2])["mark"] != "truncated":
        raise Violation(f"{attempt} is lost, and its stream of {len(stream)} bytes does not end with the mark")
    scanner = BoundaryScanner()
    scanner.feed(stream)
    body = records[-1][2]
    kept = len(stream) - len(body) - 9
    if scanner.boundary != len(stream) or stream[:kept] != world.truth.spools[attempt].data[:kept]:
        raise Violation(f"{attempt} is lost, and its stream is not the beginning of what it wrote")


def _stream(world: World, attempt: str) -> bytes:
    streams = world.control_plane.streams
    return streams.read(attempt, 0, streams.length(attempt)) if streams.length(attempt) else b""


def _check_sessions(world: World) -> None:
    """Where a session's state is gone, the first cell that finds it so was told."""
    store = world.control_plane.store
    told: dict[SessionKey, str] = {}  # the kernel in which a cell succeeded last
    noted: set[str] = set()  # sessions of which a cell was told
    for attempt, program in world.truth.programs.items():
        job = store.job(attempt.split("-")[0])
        if job is None or job.session_key is None or job.session_key in world.truth.released:
            continue
        task, kernel = job.tasks[0], program.kernel.owner
        if task.notes:
            noted.add(kernel)
        if task.state is State.SUCCEEDED and task.attempt is not None and task.attempt.id == attempt:
            before = told.setdefault(job.session_key, kernel)
            if before != kernel and kernel not in noted:
                raise Violation(f"{attempt}: its session's state is fresh since {before}, and nobody said so")
            told[job.session_key] = kernel
