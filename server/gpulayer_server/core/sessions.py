"""Sessions: kernels kept between cells, each with a slot and devices of one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.messages import EndSession
from gpulayer.protocol.types import Problem
from gpulayer_server.core import waiting
from gpulayer_server.core.events import Effects, ReleaseWanted
from gpulayer_server.core.state import ENDED_SESSIONS, Session, Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

RELEASED = "released"  # the reason of an end that its owner wanted: nobody is told of it


def release(plane: Plane, event: ReleaseWanted, out: Effects) -> None:
    """A person lets a session go; its devices are free when its processes are gone."""
    session = plane.session_of.get((event.owner, event.name))
    if session is None:
        problem = Problem(status=404, code="no_such_session", title=f"no session {event.name!r}")
        out.replies.append((event.request, problem))
        return
    close(plane, session, RELEASED, out)
    out.replies.append((event.request, None))


def close(plane: Plane, session: Session, reason: str, out: Effects) -> None:
    """Ask the worker to end a session; one that is out of reach hears of it in the answer to its next hello."""
    if not session.closing:
        session.closing, session.reason = True, reason
        out.put(session)
    out.send(plane.workers[session.worker].conn, EndSession(session=session.id))


def ended(plane: Plane, worker: Worker, name: str, reason: str, out: Effects) -> None:
    """No process of a session is left."""
    session = plane.sessions.get(name)
    if session is None or session.worker != worker.id:
        return
    session.closed = True
    session.reason = session.reason or reason
    out.put(session)
    out.fleet_changed = True
    waiting.free(plane, worker, session.id)
    del plane.sessions[session.id]
    del plane.session_of[session.key]
    waiting.session_free(plane, session)
    if session.reason == RELEASED:
        plane.ended_sessions.pop(session.key, None)
    elif session.used:
        plane.ended_sessions.pop(session.key, None)
        plane.ended_sessions[session.key] = session.reason
        while len(plane.ended_sessions) > ENDED_SESSIONS:
            del plane.ended_sessions[next(iter(plane.ended_sessions))]


def end_idle(plane: Plane, now: float, out: Effects) -> None:
    """End sessions that nobody used for their idle time."""
    for session in plane.sessions.values():
        if session.closing or session.running is not None or session.idle_since is None:
            continue
        if now - session.idle_since >= session.idle_timeout_s:
            limit_s = session.idle_timeout_s
            limit = f"{limit_s / 60:g} min" if limit_s >= 60 else f"{limit_s:g} s"
            close(plane, session, f"idle for {limit}", out)
