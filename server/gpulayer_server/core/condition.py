"""What workers say of their machines: what these are, and how they fare."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from gpulayer.protocol.messages import InventoryChanged, Sampled, WorkerMessage
from gpulayer.protocol.types import Inventory, Sample
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_STALE_S = 30.0  # a sample that old says nothing of now: they come once a second
_MUCH_BYTES = 128 * 2**20  # less than that, more or less, makes no difference to who waits
_ENOUGH = 0.9  # of the memory that no job declared is free: no measurement keeps a job from it


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


def _sampled(plane: Plane, worker: Worker, sample: Sample, now: float, out: Effects) -> None:
    """Kept in memory only. Placing looks anew only where somebody waits and what it measures is another."""
    before = measured(worker)
    worker.sample, worker.sampled_at = sample, now
    out.sampled.add(worker.id)
    if plane.queue and measured(worker) != before:
        _looks_another(plane, worker, out)


def forget_stale(plane: Plane, worker: Worker, now: float, out: Effects) -> None:
    """A worker that says no more how it fares is one of which it is not known."""
    if worker.sampled_at is None or now - worker.sampled_at < _STALE_S:
        return
    before = measured(worker)
    worker.sample = worker.sampled_at = None
    out.sampled.add(worker.id)
    if plane.queue and before is not None:
        _looks_another(plane, worker, out)


def _looks_another(plane: Plane, worker: Worker, out: Effects) -> None:
    out.fleet_changed = True
    plane.worker_changed(worker)


def measured(worker: Worker) -> Hashable:
    """What placing takes from how a worker fares: None where nothing is amiss there, and what is declared decides.

    In steps: who else is on the devices and with how much, and how much memory is free where that is little.
    """
    sample = worker.sample
    if sample is None:
        return None
    foreign = tuple(
        [
            (device.uuid, *[(process.pid, (process.bytes or 0) // _MUCH_BYTES) for process in device.foreign])
            for device in sample.devices
            if device.foreign
        ]
    )
    free = sample.ram_free_bytes
    tight = free is not None and free < worker.ram_left_bytes * _ENOUGH
    return (foreign, free // _MUCH_BYTES if tight and free is not None else None) if foreign or tight else None
