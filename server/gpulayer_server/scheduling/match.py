"""Whether a worker can take a job, now or at all, and every reason why not.

What a worker can't meet however free it is (`unmet`) depends on its inventory alone; what keeps it from taking the job
now (`busy`) goes away by itself. `fits` and `has_room` are their quick forms, of which placing asks thousands.

Codes of reasons that stay: worker_name, worker_unknown, no_worker, slots, os, arch, python, ram, cpu, label,
device_kind (none of that kind), device_count, device_name, vram, vram_share, capability, driver, framework (not
installed), framework_version, framework_device (does not work there), nodes (too few machines, or too far apart). Of
those that pass, in the field `temporary`: out_of_reach, disk, slots, probing, devices_busy, vram_busy, foreign
(somebody else's process), ram_busy, cpu_busy, nodes. `wanted` and `found` are bytes, counts or versions as the
constraint has them; of framework_device the kind and the kinds on which it works, or how many devices.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from gpulayer.protocol.types import Device, Inventory, Reason, Requirements
from gpulayer_server.scheduling import devicefit, gang, vacancy
from gpulayer_server.scheduling.asked import asked, os_of
from gpulayer_server.scheduling.candidate import Candidate as Candidate
from gpulayer_server.scheduling.candidate import Each as Each
from gpulayer_server.scheduling.devicereasons import device_reasons
from gpulayer_server.scheduling.figures import JOIN, count
from gpulayer_server.scheduling.frameworkfit import framework_reasons, frameworks_fit
from gpulayer_server.scheduling.hostfit import host_fits, host_reasons

_NOBODY: Mapping[str, str] = {}


# ---------------------------------------------------------------- at all


def unmet(requirements: Requirements, worker: Candidate) -> list[Reason]:
    """Every constraint that this worker can't meet, however free it is."""
    name, reasons = worker.name, list[Reason]()
    if requirements.worker is not None and requirements.worker != name:
        text, wanted = f"is not {requirements.worker!r}", requirements.worker
        reasons.append(Reason(worker=name, code="worker_name", text=text, wanted=wanted, found=name))
    if worker.slots < 1:
        remedy = f"start the worker of {name} with --slots 1 or more"
        reasons.append(Reason(worker=name, code="slots", text="offers no slots", wanted=1, found=0, remedy=remedy))
    asks = asked(requirements)
    reasons += host_reasons(requirements, asks, worker)
    if asks.kind not in worker.inventory.looking:
        reasons += device_reasons(asks, worker)
        reasons += framework_reasons(asks, worker)
    return reasons


def fits(requirements: Requirements, worker: Candidate) -> bool:
    """Whether nothing is `unmet`."""
    if worker.slots < 1 or (requirements.worker is not None and requirements.worker != worker.name):
        return False
    asks, inventory = asked(requirements), worker.inventory
    if not host_fits(requirements, asks, inventory):
        return False
    # until it is known what is there nothing is lacking for good
    known = asks.kind not in inventory.looking
    return not known or (devicefit.enough(asks, inventory) and frameworks_fit(asks, inventory))


def usable(requirements: Requirements, device: Device, inventory: Inventory) -> bool:
    """Whether a job could use a device of a machine, however busy that is."""
    return devicefit.usable(asked(requirements), device, inventory)


def shape(worker: Candidate) -> Hashable:
    """Equal for machines of which the same is `unmet`, but for the worker's name."""
    inventory = worker.inventory
    computes = [framework for framework in inventory.frameworks if framework.devices]
    devices = Counter(
        (
            (device.kind, device.name, device.vram_bytes, device.unified, device.capability, device.driver),
            bool(device.sick),
            tuple([device.uuid in framework.devices for framework in computes]),
        )
        for device in inventory.devices
    )
    frameworks = [(each.name, each.version, each.works, bool(each.devices)) for each in inventory.frameworks]
    return (
        worker.slots > 0,
        (os_of(inventory.os), inventory.arch, inventory.cpu_cores, inventory.ram_bytes, inventory.python),
        frozenset(devices.items()),
        tuple(frameworks),
        (inventory.probing, inventory.looking),
        frozenset(inventory.labels.items()),
    )


# ---------------------------------------------------------------- now


def busy(requirements: Requirements, worker: Candidate, who: Mapping[str, str] = _NOBODY) -> list[Reason]:
    """What keeps a worker that could take the job from taking it now.

    Args:
        requirements: of the job.
        worker: of which nothing is `unmet`.
        who: who holds devices, by UUID, in words such as 'train.py by ana, 14 min'.
    """
    name, reasons = worker.name, list[Reason]()

    def add(code: str, text: str, wanted: int | str | None = None, found: int | None = None) -> None:
        reasons.append(Reason(worker=name, code=code, text=text, temporary=True, wanted=wanted, found=found))

    if not worker.reachable:
        add("out_of_reach", "out of reach")
    if worker.full:
        add("disk", worker.full)
    if worker.slots_free < 1:
        add("slots", f"all {count(worker.slots, 'slot')} busy", 1, 0)
    asks = asked(requirements)
    if asks.kind in worker.inventory.looking:
        add("probing", f"its {asks.kind} devices are not known yet: {'; '.join(worker.inventory.problems)}", asks.kind)
        return reasons
    for framework in asks.frameworks:
        if framework.name in worker.inventory.probing:
            add("probing", f"{framework.name} is still being tried out there", framework.text)
    reasons += vacancy.vacancy_reasons(requirements, asks, worker, who)
    return reasons


def has_room(requirements: Requirements, worker: Candidate) -> bool:
    """Whether a worker that is there and could take the job can take it now: nothing keeps it `busy`."""
    if worker.slots_free < 1 or worker.full:
        return False
    asks, probing = asked(requirements), worker.inventory.probing
    if asks.kind in worker.inventory.looking:
        return False
    if probing and any(framework.name in probing for framework in asks.frameworks):
        return False
    return vacancy.vacant(requirements, asks, worker)


def slotless(requirements: Requirements, able: Iterable[Candidate]) -> list[str]:
    """The ids of the workers that could take the job as soon as a slot is free there: they lack nothing else."""
    asks = asked(requirements)
    return [
        worker.id
        for worker in able
        if worker.slots_free < 1 and not worker.full and vacancy.vacant(requirements, asks, worker)
    ]


def free_devices(requirements: Requirements, worker: Candidate) -> list[Device]:
    """The devices that a job could take now, in the inventory's order: whole ones, or those on which its share fits."""
    asks = asked(requirements)
    if asks.kind is None:
        return []
    if asks.share_bytes is None:
        return vacancy.free_devices(asks, worker)
    there = vacancy.shareable_devices(asks, worker)
    return [device for device in there if vacancy.share_left(worker, device) >= asks.share_bytes]


# ---------------------------------------------------------------- all of them


def explain(
    requirements: Requirements, workers: Sequence[Candidate], who: Mapping[str, str] = _NOBODY
) -> tuple[Reason, ...]:
    """Reasons for every worker that can't take the job now: those that stay, where there are any.

    Lines of their own, without a worker: that none is known, that none has the name that is asked for, that too few can
    take it at once.

    Of workers of another name than is asked for only that is told.
    """
    reasons: list[Reason] = []
    able: list[Candidate] = []
    ready: list[Candidate] = []
    for worker in workers:
        told = unmet(requirements, worker)
        if not told:
            able.append(worker)
            told = busy(requirements, worker, who)
        if not told:
            ready.append(worker)
        named = [reason for reason in told if reason.code == "worker_name"]
        reasons += named or told
    if not workers:
        text = f"no worker is connected; {JOIN}"
        reasons.append(Reason(worker="", code="no_worker", text=text, temporary=True, remedy=f"add a machine: {JOIN}"))
    if requirements.nodes > 1 and workers:
        reasons = _of_many(requirements, able, ready) + reasons
    names = [worker.name for worker in workers]
    if requirements.worker is not None and requirements.worker not in names:
        reasons.insert(0, _unknown(requirements.worker, names))
    return tuple(reasons)


def _unknown(wanted: str, names: Sequence[str]) -> Reason:
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    remedy = f"ask for worker {' or '.join(near)}" if near else ""
    text = f"no worker is named {wanted!r}{hint}"
    return Reason(
        worker="", code="worker_unknown", text=text, wanted=wanted, found=", ".join(near) or None, remedy=remedy
    )


def _of_many(requirements: Requirements, able: Sequence[Candidate], ready: Sequence[Candidate]) -> list[Reason]:
    """Why a job can't have as many machines at once as it takes, or none near enough to each other; and that for each
    machine that could take its part, so that none is without a line.
    """
    nodes = requirements.nodes
    lasting = len(able) < nodes or bool(gang.apart(requirements, able))
    there = able if lasting else ready
    found, apart = len(there), gang.apart(requirements, there)
    if found >= nodes and not apart:
        return []
    if apart:
        text, lacking = apart, "machines near it"
        remedy = "ask for another group locality than require" if lasting else ""
    else:
        what = "could take it" if lasting else ("has room now" if found == 1 else "have room now")
        text, lacking = f"needs {nodes} machines at once, {found} {what}", count(nodes - found, "more machine")
        remedy = f"add {lacking} that could take it, or ask for fewer nodes: {JOIN}" if lasting else ""
    each = f"could take its part of {nodes} machines{'; lacking:' if lasting else ', and waits for'} {lacking}"
    line = Reason(worker="", code="nodes", text=text, temporary=not lasting, wanted=nodes, found=found, remedy=remedy)
    return [line] + [
        Reason(worker=worker.name, code="nodes", text=each, temporary=not lasting, wanted=nodes, found=found)
        for worker in there
    ]
