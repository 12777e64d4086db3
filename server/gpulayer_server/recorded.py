"""Fleets on record: machines as `gpulayer resources list --json` shows them, to be asked where a job would go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpulayer.protocol.types import Device, Explanation, Holder, Requirements, WorkerView
from gpulayer_server.core.explaining import explanation
from gpulayer_server.core.machine import Claim, Worker
from gpulayer_server.core.plane import Plane

_DECODER = msgspec.json.Decoder(WorkerView | list[WorkerView])


class NotAFleet(ValueError):
    """A file that records no machine: what, and what it is to be."""


def explain_recorded(files: Sequence[str], requirements: Requirements, *, wait_for_worker: bool = False) -> Explanation:
    """What would become of a job on the machines that these files record. Raises `NotAFleet`.

    All of it is as it was when it was recorded: who was connected, what was busy.
    """
    views = [view for name in files for view in read(Path(name))]
    now = max([view.last_seen_at for view in views], default=0.0)
    plane = Plane(epoch=0, now=now)
    for number, view in enumerate(views, 1):
        worker = candidate(view)
        worker.conn = number if view.connected else None
        worker.gone_since = None if view.connected else view.last_seen_at
        plane.workers[worker.id] = worker
        plane.room.came(worker)
    return explanation(plane, requirements, "", now, wait_for_worker=wait_for_worker)


def read(path: Path) -> list[WorkerView]:
    """The machines of one file: one of them, or a list; of a folder, those of its JSON files. Raises `NotAFleet`."""
    hint = "write one with: gpulayer resources list --json > FILE"
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise NotAFleet(f"{path} records no machines (no *.json in it); {hint}")
        return [view for each in files for view in read(each)]
    try:
        found = _DECODER.decode(path.read_bytes())
    except OSError as error:
        raise NotAFleet(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise NotAFleet(f"{path} records no machines ({error}); {hint}") from None
    return found if isinstance(found, list) else [found]


def candidate(view: WorkerView) -> Worker:
    """A machine as the plane has it, with everything that is held of it."""
    worker = Worker(
        id=view.id,
        name=view.name,
        slots=view.slots,
        local=view.local,
        inventory=view.inventory,
        last_seen_at=view.last_seen_at,
        conn=1 if view.connected else None,
        notes=view.notes,
        full=view.full,
        sample=view.sample,
        sampled_at=view.sampled_at,
    )
    by_uuid = {device.uuid: device for device in view.inventory.devices}
    for at, holder in enumerate(view.holders):
        # a view tells what was declared of memory and cores in all: the first holder has it
        ram_bytes, cpu_cores = (0, 0.0) if at else (view.ram_declared_bytes, view.cpu_declared)
        worker.take(holder.job or f"s-{holder.session}", _claim(holder, by_uuid, ram_bytes, cpu_cores))
    return worker


def _claim(holder: Holder, by_uuid: dict[str, Device], ram_bytes: int, cpu_cores: float) -> Claim:
    return Claim(
        devices=tuple(by_uuid[uuid] for uuid in holder.devices if uuid in by_uuid),
        vram_share_bytes=holder.vram_bytes,
        ram_bytes=ram_bytes,
        cpu_cores=cpu_cores,
        owner=holder.owner,
        job=holder.job,
        session=holder.session,
        name=holder.name,
        since=holder.since,
    )
