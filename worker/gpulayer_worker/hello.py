"""What a worker says first on a connection."""

from __future__ import annotations

from gpulayer._version import __version__
from gpulayer.protocol.messages import Hello
from gpulayer.protocol.types import PROTOCOL_VERSION, Inventory
from gpulayer_worker.link import SayHello
from gpulayer_worker.options import Options


def hello(options: Options, effect: SayHello, *, worker_id: str, nonce: str, inventory: Inventory) -> Hello:
    """Who it is, what its machine has, and what it holds; `nonce` is the agent's own."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        worker_id=worker_id,
        nonce=nonce,
        name=options.name,
        version=__version__,
        slots=options.slots,
        inventory=inventory,
        local=options.local,
        attempts=effect.attempts,
        sessions=effect.sessions,
        comms=True,
    )
