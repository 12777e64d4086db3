"""What pages say to widgets of cells on workers: passed on at once, or lost. No rows, no waiting for commits."""

from __future__ import annotations

from gpulayer.protocol.messages import COMM_BYTES, CommMessage, ToKernel
from gpulayer.protocol.types import Problem
from gpulayer_server.core.plane import Plane
from gpulayer_server.shell import Shell


def pass_on(shell: Shell, owner: str, message: ToKernel) -> Problem | None:
    """Send a client's message to the worker whose kernel it is for; the problem, where it goes nowhere."""
    size = sum(map(len, message.parts))
    if size > COMM_BYTES:
        title = f"a widget's message of {size:,} bytes is too large: {COMM_BYTES:,} bytes at most"
        return Problem(status=413, code="comm_too_large", title=title)
    found = _in_session(shell.plane, owner, message) or _in_attempt(shell.plane, owner, message)
    if found is None:
        title = f"no kernel of job {message.job} is there"
        return Problem(status=404, code="no_such_kernel", title=title)
    conn, comm = found
    link = shell.links.get(conn) if conn is not None else None
    if link is None or not link.offer(comm):
        title = f"the worker of job {message.job} does not take a widget's message now"
        return Problem(status=503, code="worker_away", title=title)
    return None


_Found = tuple[int | None, CommMessage]  # the worker's connection, if it has one, and what it is told


def _in_session(plane: Plane, owner: str, message: ToKernel) -> _Found | None:
    """The kernel of an open session of this name, whether a cell runs in it or not."""
    if message.session is None:
        return None
    for session in plane.sessions.values():
        if session.key == (owner, message.session) and not session.closed:
            comm = CommMessage(kind=message.kind, parts=message.parts, session=session.id)
            return plane.workers[session.worker].conn, comm
    return None


def _in_attempt(plane: Plane, owner: str, message: ToKernel) -> _Found | None:
    """The kernel in which the job's attempt runs now."""
    job = plane.jobs.get(message.job)
    attempt = job.tasks[0].attempt if job is not None and job.owner == owner and job.tasks else None
    if attempt is None or attempt.over:
        return None
    place = {"attempt": attempt.id} if attempt.session is None else {"session": attempt.session}
    comm = CommMessage(kind=message.kind, parts=message.parts, **place)
    return plane.workers[attempt.worker].conn, comm
