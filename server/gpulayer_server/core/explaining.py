"""Who could take a task, and why one waits, machine by machine: computed when read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulayer.protocol.types import Explanation, Placement, Reason, Requirements
from gpulayer_server.core import waiting
from gpulayer_server.core.state import Claim, Job, Limits, Session, Task, Worker
from gpulayer_server.scheduling import advice, gang, match
from gpulayer_server.scheduling.fair import Use
from gpulayer_server.scheduling.room import Pick

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
        return self.of(job.spec.requirements, job.owner)

    def of(self, requirements: Requirements, owner: str) -> Told:
        """Why these requirements of an owner's job are not met now."""
        plane = self._plane
        if not self.known and self._now < plane.local_expected_until:
            return (_STARTING,), ""
        told = self._told.get(requirements)
        if told is None:
            reasons = match.explain(requirements, self.known, self.who)
            nearest = advice.nearest(requirements, self.known, reasons)
            told = self._told[requirements] = (*reasons, *_reserved(plane, requirements, self.known)), nearest
        if waiting.limited(plane, owner, requirements):
            return (_over_limit(plane, owner), *told[0]), told[1]
        return told

    @property
    def who(self) -> Mapping[str, str]:
        """Who holds each device, by its UUID; of those who share one all."""
        if self._who is None:
            holders: dict[str, list[str]] = {}
            for worker in self.known:
                for claim in worker.claims.values():
                    for device in claim.devices:
                        holders.setdefault(device.uuid, []).append(holder_words(claim, self._now))
            self._who = {uuid: " and ".join(dict.fromkeys(words)) for uuid, words in holders.items()}
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
    reasons, nearest = why.of(requirements, owner)
    able = [worker for worker in why.known if match.fits(requirements, worker)]
    chosen = [] if waiting.limited(plane, owner, requirements) else _chosen(plane, requirements)
    enough = gang.could(requirements, able) if requirements.nodes > 1 else bool(able)
    waits = enough or wait_for_worker or now < plane.local_expected_until
    placement = Placement.PLACED if chosen else Placement.WAITING if waits else Placement.REJECTED
    ready = [worker.name for worker in able if worker.reachable and match.has_room(requirements, worker)]
    return Explanation(
        placement=placement,
        eligible=(*ready, *[worker.name for worker in able if worker.name not in ready]),
        reasons=reasons,
        nearest="" if chosen else nearest,
        chosen=tuple([pick.worker.name for pick in chosen]),
        devices=chosen[0].devices if chosen else (),
    )


def _chosen(plane: Plane, requirements: Requirements) -> list[Pick[Worker]]:
    """Where it would go now, beside what is reserved for others; nowhere, if it has to wait."""
    room = plane.room
    wants = room.wants(requirements)
    if requirements.nodes == 1:
        pick = room.best(wants)
        return [] if pick is None else [pick]
    nodes = gang.choose_nodes(requirements, list(room.roomy(wants)), lambda _: True) or []
    picks = [room.pick(wants, worker) for worker in nodes]
    found = [pick for pick in picks if pick is not None]
    return found if len(found) == len(picks) else []


def nearest_of(requirements: Requirements, reasons: Sequence[Reason]) -> str:
    """The step that would have made a rejected job fit, by the reasons that are stored with it."""
    names = dict.fromkeys(reason.worker for reason in reasons if reason.worker)
    machines: Any = [_Named(name) for name in names]  # no more is looked at than how they are called
    return advice.nearest(requirements, machines, reasons)


@dataclass(frozen=True)
class _Named:
    name: str


def _reserved(plane: Plane, requirements: Requirements, known: Sequence[Worker]) -> list[Reason]:
    """Where there is room, but kept for others."""
    reasons: list[Reason] = []
    there = {worker.id for worker in known} if plane.reservations else set[str]()
    for reservation in plane.reservations.values():
        job = reservation.task.rpartition("/")[0]
        text = f"kept for job {job}, which has waited longer"
        for kept in reservation.kept.values():
            worker = kept.worker
            left = plane.room.seen(worker)
            could = worker.id in there and match.fits(requirements, worker) and match.has_room(requirements, worker)
            if could and worker.reachable and not match.has_room(requirements, left):
                reasons.append(Reason(worker=worker.name, code="reserved", text=text, temporary=True))
    return reasons


def _over_limit(plane: Plane, owner: str) -> Reason:
    """What an owner holds, and what its token lets it hold."""
    limits, use = plane.limits.get(owner, Limits()), plane.usage.of.get(owner, Use())
    held = [
        f"{now} of {most} {what}{'' if most == 1 else 's'}"
        for now, most, what in (
            (use.running, limits.max_running, "running task"),
            (use.devices, limits.max_devices, "device"),
        )
        if most is not None
    ]
    text = f"{owner} holds {' and '.join(held)} that the token allows at once"
    return Reason(worker="", code="limit", text=text, temporary=True)


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
