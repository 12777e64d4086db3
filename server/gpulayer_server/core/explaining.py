"""Who could take a task, and why one waits, machine by machine: computed when read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulayer.protocol.types import Explanation, JobSpec, Placement, Reason, Requirements
from gpulayer_server.core.state import Claim, Job, Session, Task, Worker
from gpulayer_server.scheduling import advice, gang, match, topology

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_STARTING = Reason(worker="", code="starting", text="a worker is being started on this machine", temporary=True)
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
        self.known = known(plane, now)
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
        return self.of(job.spec.requirements)

    def of(self, requirements: Requirements) -> Told:
        """Why these requirements are not met now."""
        if not self.known and self._now < self._plane.local_expected_until:
            return (_STARTING,), ""
        told = self._told.get(requirements)
        if told is None:
            reasons = match.explain(requirements, self.known, self.who)
            told = self._told[requirements] = reasons, advice.nearest(requirements, self.known, reasons)
        return told

    @property
    def who(self) -> Mapping[str, str]:
        """Who holds each device, by its UUID."""
        if self._who is None:
            self._who = {
                device.uuid: holder_words(claim, self._now)
                for worker in self.known
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


def explanation(
    plane: Plane, requirements: Requirements, owner: str, now: float, *, wait_for_worker: bool = False
) -> Explanation:
    """What would become of a job of `owner` with these requirements, if it came now."""
    why = Why(plane, now)
    reasons, nearest = why.of(requirements)
    able = [worker for worker in why.known if match.fits(requirements, worker)]
    chosen = _chosen(requirements, able)
    waits = chosen or wait_for_worker or now < plane.local_expected_until or some_could(requirements, able)
    placement = Placement.PLACED if chosen else Placement.WAITING if waits else Placement.REJECTED
    ready = [worker.name for worker in able if worker.reachable and match.has_room(requirements, worker)]
    return Explanation(
        placement=placement,
        eligible=(*ready, *[worker.name for worker in able if worker.name not in ready]),
        reasons=reasons,
        nearest="" if chosen else nearest,
        chosen=tuple([worker.name for worker in chosen]),
        devices=(topology.choose(requirements, chosen[0]) or ()) if chosen else (),
    )


def some_could(requirements: Requirements, able: Sequence[Worker]) -> bool:
    """Whether those who could take it, if all of them were free, are enough."""
    return gang.could(requirements, able) if requirements.nodes > 1 else bool(able)


def hopeless(plane: Plane, spec: JobSpec, now: float) -> tuple[Reason, ...]:
    """Every reason why no worker could take a job; none where it waits.

    A known worker counts until `lost_after_s`, one that is being started counts as known, and one that still tries out
    a framework may find that it works.
    """
    if spec.wait_for_worker or now < plane.local_expected_until:
        return ()
    there = known(plane, now)
    requirements = spec.requirements
    if some_could(requirements, [worker for worker in there if match.fits(requirements, worker)]):
        return ()
    return match.explain(requirements, there)


def _chosen(requirements: Requirements, able: list[Worker]) -> list[Worker]:
    """Where it would go now; nowhere, if it has to wait."""
    there = [worker for worker in able if worker.reachable]
    if requirements.nodes > 1:
        return gang.choose_nodes(requirements, there, lambda worker: match.has_room(requirements, worker)) or []
    best = match.roomiest(requirements, there)
    return [best] if best is not None else []


def nearest_of(requirements: Requirements, reasons: Sequence[Reason]) -> str:
    """The step that would have made a rejected job fit, by the reasons that are stored with it."""
    names = dict.fromkeys(reason.worker for reason in reasons if reason.worker)
    machines: Any = [_Named(name) for name in names]  # no more is looked at than how they are called
    return advice.nearest(requirements, machines, reasons)


@dataclass(frozen=True)
class _Named:
    name: str


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
