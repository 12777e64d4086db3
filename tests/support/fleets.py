"""Recorded fleets: machines of many kinds as a control plane shows them, for tests that place work on them.

Each file of `tests/fleets` is the `WorkerView` of one machine, as `GET /v1/workers` gives it; links are those of the
recorded topologies beside them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpulayer.protocol.messages import Hello
from gpulayer.protocol.types import PROTOCOL_VERSION, WorkerView
from gpulayer_server.core.machine import Worker
from gpulayer_server.recorded import candidate

FOLDER = Path(__file__).parents[1] / "fleets"
#: The machines' names, in order.
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def recorded(name: str) -> WorkerView:
    """A machine by its name."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=WorkerView)


def fleet(*names: str) -> list[WorkerView]:
    """The machines of these names; without any, all of them."""
    return [recorded(name) for name in names or NAMES]


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
