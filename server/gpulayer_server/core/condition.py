"""What workers say of their machines: what these are, and how they fare.

Samples come once a second from each worker, and are kept in memory only. What they measure may make room for somebody
who waits: that is looked at with the next tick, and only where it can be so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulayer.protocol.messages import InventoryChanged, Sampled, WorkerMessage
from gpulayer.protocol.types import Inventory, Sample
from gpulayer_server.core import waiting
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Worker
from gpulayer_server.scheduling import vacancy

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_STALE_S = 30.0  # a sample that old says nothing of now: they come once a second


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What placing saw of how a worker fares, since it was looked at last."""

    ram_bytes: int  # the least that a job could have had
    foreign: Hashable  # as it was at first


def heard(plane: Plane, worker: Worker, message: WorkerMessage, now: float, out: Effects) -> None:
    """A worker's word about its machine; other words change nothing."""
    match message:
        case Sampled(sample=sample):
            _sampled(plane, worker, sample, now, out)
        case InventoryChanged(inventory=inventory):
            _another(plane, worker, inventory, out)
        case _:
            pass


def _another(plane: Plane, worker: Worker, inventory: Inventory, out: Effects) -> None:
    """The machine, or what is known of it, is another now: who waits may be placed, or has other reasons."""
    if worker.inventory == inventory:
        return
    worker.inventory = inventory
    out.put(worker)
    out.fleet_changed = True
    plane.fleet_is_another(worker)


def _sampled(plane: Plane, worker: Worker, sample: Sample | None, now: float | None, out: Effects) -> None:
    if plane.queue:
        before, ram_bytes = plane.measured.get(worker.id), vacancy.ram_left(worker)
        if before is None:
            plane.measured[worker.id] = Seen(ram_bytes=ram_bytes, foreign=_foreign(worker.sample))
        elif ram_bytes < before.ram_bytes:
            plane.measured[worker.id] = Seen(ram_bytes=ram_bytes, foreign=before.foreign)
    worker.sample, worker.sampled_at = sample, now
    out.sampled.add(worker.id)


def forget_stale(plane: Plane, worker: Worker, now: float, out: Effects) -> None:
    """A worker that says no more how it fares is one of which it is not known."""
    if worker.sampled_at is not None and now - worker.sampled_at >= _STALE_S:
        _sampled(plane, worker, None, None, out)


def look(plane: Plane, out: Effects) -> None:
    """Look for room where what was measured may have made some for one who waits."""
    measured, plane.measured = plane.measured, {}
    if not measured or not plane.queue:
        return
    asked = [wants for line in plane.queue.each() if (wants := waiting.wants_of(plane, line)) is not None]
    sizes = sorted({size for wants in asked if (size := wants.requirements.ram_bytes) is not None})
    devices = any(wants.kind is not None for wants in asked)
    if not sizes and not devices:
        return
    for name, seen in measured.items():
        worker = plane.workers[name]
        more = bisect_right(sizes, seen.ram_bytes) < bisect_right(sizes, vacancy.ram_left(worker))
        if more or (devices and seen.foreign != _foreign(worker.sample)):
            out.fleet_changed = True
            plane.worker_changed(worker)


def _foreign(sample: Sample | None) -> Hashable:
    """Who else is on the devices, and how much they leave."""
    if sample is None:
        return ()
    return tuple(
        [
            (device.uuid, device.used_bytes, device.free_bytes, device.foreign)
            for device in sample.devices
            if device.foreign
        ]
    )
