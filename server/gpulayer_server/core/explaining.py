"""Who could take a task, and why one waits, machine by machine: computed when read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpulayer.protocol.types import Reason, Requirements
from gpulayer_server.core.state import Claim, Job, Session, Task, Worker
from gpulayer_server.scheduling.match import explain

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

Told = tuple[tuple[Reason, ...], str]  # reasons, and the step that would make it fit


def known(plane: Plane, now: float) -> list[Worker]:
    """The workers that could take work: connected, or gone for less than `lost_after_s`."""
    lost_after_s = plane.settings.lost_after_s
    return [
        worker
        for worker in plane.workers.values()
        if worker.gone_since is None or now - worker.gone_since < lost_after_s
    ]


class Why:
    """Why jobs wait, at one moment: for many that ask for the same it is looked at once."""

    def __init__(self, plane: Plane, now: float):
        self._plane = plane
        self._now = now
        self._known = known(plane, now)
        self._who: Mapping[str, str] | None = None
        self._told: dict[Requirements, Told] = {}

    def waits(self, task: Task) -> Told:
        """Why a queued task is not placed, worker by worker; and the step that would make it fit."""
        plane = self._plane
        job = plane.jobs[task.job]
        if job.waits_for:
            return _after(job), ""
        session = plane.session_of.get(job.session_key) if job.session_key else None
        if session is not None:
            return (_in_session(plane, session),), ""
        if not self._known and self._now < plane.local_expected_until:
            text = "a worker is being started on this machine"
            return (Reason(worker="", code="starting", text=text, temporary=True),), ""
        return self.of(job.spec.requirements)

    def of(self, requirements: Requirements) -> Told:
        """Why these requirements are not met now."""
        told = self._told.get(requirements)
        if told is None:
            told = self._told[requirements] = (explain(requirements, self._known), "")
        return told

    @property
    def who(self) -> Mapping[str, str]:
        """Who holds each device, by its UUID."""
        if self._who is None:
            self._who = {
                device.uuid: holder_words(claim, self._now)
                for worker in self._known
                for claim in worker.claims.values()
                for device in claim.devices
            }
        return self._who


def holder_words(claim: Claim, now: float) -> str:
    """Who holds something and since when: 'train.py by ana, 14 min'."""
    name = claim.name or (f"job {claim.job}" if claim.job else f"session {claim.session}")
    by = f" by {claim.owner}" if claim.owner else ""
    return f"{name}{by}, {_for_how_long(now - claim.since)}"


def _for_how_long(seconds: float) -> str:
    for unit, length_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        whole = int(seconds // length_s)
        if whole:
            return "1 day" if (whole, unit) == (1, "days") else f"{whole} {unit}"
    return "just begun"


def _after(job: Job) -> tuple[Reason, ...]:
    return tuple(
        Reason(worker="", code="after", text=f"waits until job {name} has succeeded", temporary=True)
        for name in job.spec.after
        if name in job.waits_for
    )


def _in_session(plane: Plane, session: Session) -> Reason:
    worker = plane.workers[session.worker]
    if worker.conn is None:
        text = f"session {session.name!r} lives on {worker.name}, which is out of reach"
    elif session.closing:
        text = f"session {session.name!r} is ending on {worker.name}"
    else:
        running = plane.attempts.get(session.running or "")
        by = plane.tasks[running.task].job if running is not None and running.task in plane.tasks else "another cell"
        text = f"session {session.name!r} on {worker.name} is running {by}"
    return Reason(worker=worker.name, code="session_busy", text=text, temporary=True)
