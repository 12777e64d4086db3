"""Whether a worker can take a job, and every reason why not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from gpulayer.protocol.types import Device, Reason, Requirements
from gpulayer_server.scheduling.candidate import Candidate as Candidate
from gpulayer_server.scheduling.candidate import Each as Each


def unmet(requirements: Requirements, worker: Candidate) -> list[Reason]:
    """Every constraint that this worker can't meet, however free it is."""
    reasons: list[Reason] = []

    def add(code: str, text: str) -> None:
        reasons.append(Reason(worker=worker.name, code=code, text=text))

    if requirements.worker is not None and requirements.worker != worker.name:
        add("worker_name", f"is not {requirements.worker!r}")
    if worker.slots < 1:
        add("slots", "offers no slots")
    kind = requirements.device_kind
    if kind is not None:
        there = [device for device in worker.inventory.devices if device.kind == kind]
        wanted = requirements.device_count
        if len(there) < wanted:
            problems = "; ".join(worker.inventory.problems)
            has = f"worker has {len(there)}" + (f" ({problems})" if problems else "")
            add("device_count", f"needs {wanted} usable {kind} device{'s' if wanted > 1 else ''}, {has}")
    return reasons


def busy(requirements: Requirements, worker: Candidate) -> list[Reason]:
    """What keeps a worker that could take the job from taking it now."""
    reasons: list[Reason] = []

    def add(code: str, text: str) -> None:
        reasons.append(Reason(worker=worker.name, code=code, text=text, temporary=True))

    if not worker.reachable:
        add("out_of_reach", "out of reach")
    if worker.full:
        add("disk", worker.full)
    if worker.slots_free < 1:
        add("slots", f"all {worker.slots} slot{'s' if worker.slots > 1 else ''} busy")
    kind = requirements.device_kind
    if kind is not None:
        free = _free(kind, worker)
        wanted = requirements.device_count
        if free < wanted:
            add("devices_busy", f"needs {wanted} free {kind} device{'s' if wanted > 1 else ''}, {free} free now")
    return reasons


def has_room(requirements: Requirements, worker: Candidate) -> bool:
    """Whether a worker that is there and could take the job can take it now: nothing keeps it `busy`."""
    if worker.slots_free < 1 or worker.full:
        return False
    kind = requirements.device_kind
    return kind is None or _free(kind, worker) >= requirements.device_count


def _free(kind: str, worker: Candidate) -> int:
    return sum(1 for device in worker.devices_free if device.kind == kind)


def roomiest(requirements: Requirements, able: Iterable[Each]) -> Each | None:
    """The worker to take of those that are there and could take the job: of those that can now, the one with the fewest
    devices to strand, then the most room.
    """
    wants_devices = requirements.device_kind is not None
    best: Each | None = None
    least: tuple[int, int, str] | None = None
    for worker in able:
        if not has_room(requirements, worker):
            continue
        cost = (0 if wants_devices else len(worker.inventory.devices), -worker.slots_free, worker.name)
        if least is None or cost < least:
            best, least = worker, cost
    return best


def slotless(requirements: Requirements, able: Iterable[Candidate]) -> list[str]:
    """The ids of the workers that could take the job as soon as a slot is free there: they lack nothing else."""
    kind, count = requirements.device_kind, requirements.device_count
    return [
        worker.id
        for worker in able
        if worker.slots_free < 1 and not worker.full and (kind is None or _free(kind, worker) >= count)
    ]


def soonest(able: Iterable[Each]) -> Each | None:
    """Where no slot is free: the worker that ends small commands so soon that one more may wait there."""
    willing = [worker for worker in able if worker.room_ahead > 0 and not worker.full]
    return max(willing, key=lambda worker: (worker.room_ahead, worker.name), default=None)


def pick(requirements: Requirements, workers: Iterable[Each]) -> Each | None:
    """The worker to take of all that are known."""
    there = [worker for worker in workers if worker.reachable]
    return roomiest(requirements, [worker for worker in there if not unmet(requirements, worker)])


def choose_devices(requirements: Requirements, free: Sequence[Device]) -> tuple[Device, ...]:
    """The devices to take of those that are free, in the inventory's order."""
    kind = requirements.device_kind
    return tuple(device for device in free if device.kind == kind)[: requirements.device_count] if kind else ()


def explain(requirements: Requirements, workers: Sequence[Candidate]) -> tuple[Reason, ...]:
    """Reasons for every worker, permanent ones first asked; and a line of its own where no worker is known."""
    reasons: list[Reason] = []
    for worker in workers:
        reasons += unmet(requirements, worker) or busy(requirements, worker)
    if not workers:
        text = "no worker is connected; `gpulayer up` prints the line with which a machine joins"
        reasons.append(Reason(worker="", code="no_worker", text=text, temporary=True))
    names = [worker.name for worker in workers]
    if requirements.worker is not None and requirements.worker not in names:
        near = difflib.get_close_matches(requirements.worker, names, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        text = f"no worker is named {requirements.worker!r}{hint}"
        reasons.insert(0, Reason(worker="", code="worker_unknown", text=text))
    return tuple(reasons)
