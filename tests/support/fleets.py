"""Recorded fleets: machines of many kinds as a control plane shows them, for tests that place work on them.

Each file of `tests/fleets` is the `WorkerView` of one machine, as `GET /v1/workers` gives it; links are those of the
recorded topologies beside them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpulayer.protocol.messages import Hello
from gpulayer.protocol.types import PROTOCOL_VERSION, Device, Holder, WorkerView
from gpulayer_server.core.machine import Claim, Worker

FOLDER = Path(__file__).parents[1] / "fleets"
#: The machines' names, in order.
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def recorded(name: str) -> WorkerView:
    """A machine by its name."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=WorkerView)


def fleet(*names: str) -> list[WorkerView]:
    """The machines of these names; without any, all of them."""
    return [recorded(name) for name in names or NAMES]


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


def candidates(*names: str) -> list[Worker]:
    """The machines of these names as the plane has them; without any, all of them."""
    return [candidate(view) for view in fleet(*names)]


def hello(view: WorkerView) -> Hello:
    """The first message of a machine's agent."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        worker_id=view.id,
        nonce=f"nonce-of-{view.name}",
        name=view.name,
        version="0.1.0",
        slots=view.slots,
        inventory=view.inventory,
        local=view.local,
    )


def _claim(holder: Holder, by_uuid: dict[str, Device], ram_bytes: int, cpu_cores: float) -> Claim:
    return Claim(
        devices=tuple(by_uuid[uuid] for uuid in holder.devices),
        vram_share_bytes=holder.vram_bytes,
        ram_bytes=ram_bytes,
        cpu_cores=cpu_cores,
        owner=holder.owner,
        job=holder.job,
        session=holder.session,
        name=holder.name,
        since=holder.since,
    )
