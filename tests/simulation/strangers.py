"""Workers of another version, which knock at the control plane now and then."""

from __future__ import annotations

from gpulayer.protocol.messages import Hello, to_worker
from gpulayer.protocol.types import PROTOCOL_VERSION, Inventory
from gpulayer_worker import link
from tests.simulation.controlplane import ControlPlane
from tests.simulation.network import End, Network
from tests.simulation.simulator import Host, Process, Violation

_INVENTORY = Inventory(host="stranger", os="linux", arch="x86_64", cpu_cores=8, ram_bytes=1, python="3", devices=())


class Stranger(Process):
    """It speaks another protocol: it is told so, once and for good, and never given anything."""

    def __init__(self, host: Host, network: Network, control_plane: ControlPlane):
        super().__init__(host)
        self.network = network
        self.control_plane = control_plane
        self.refused = 0  # times

    def knock(self, worker_id: str, *, newer: bool) -> None:
        """Connect, and say hello under an id, which may be another worker's."""
        plane = self.control_plane
        if not plane.up or plane.host.asleep:
            return
        end, theirs = self.network.connect(self, plane)
        ours = link.Link(now=self.host.clock())
        end.heard = lambda data: self._heard(end, ours, data, newer=newer)
        plane.accept(theirs)
        ours.handle(link.Connected(), self.host.clock())
        hello = Hello(
            protocol=PROTOCOL_VERSION + (1 if newer else -1),
            worker_id=worker_id,
            nonce=f"{self.sim.random.getrandbits(64):x}",
            name="stranger",
            version="simulated",
            slots=8,
            inventory=_INVENTORY,
        )
        self.network.send(end, [hello])

    def _heard(self, end: End, ours: link.Link, data: bytes, *, newer: bool) -> None:
        for message in to_worker(data):
            match ours.handle(link.Received(message=message), self.host.clock()):
                case [link.Stop(reason=reason, refused=True)] if _says_who(reason, newer=newer):
                    self.refused += 1
                case effects:
                    raise Violation(f"a worker of another version is answered by {message}, it does {effects}")


def _says_who(reason: str, *, newer: bool) -> bool:
    return reason.endswith("upgrade the control plane" if newer else "upgrade the worker")
