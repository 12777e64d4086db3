"""What the link says of the machine, and when."""

from __future__ import annotations

from gpulayer.protocol.messages import InventoryChanged, Sampled, Welcome
from gpulayer.protocol.types import Inventory, Sample
from gpulayer_worker.link import Connected, MachineChanged, Measured
from tests.support.link import Wire


def inventory(host: str) -> Inventory:
    return Inventory(host=host, os="linux", arch="x86_64", cpu_cores=1, ram_bytes=1, python="3.11")


def test_what_changed_of_the_machine_is_told(wire: Wire) -> None:
    wire.do(MachineChanged(inventory=inventory("a")))
    assert wire.sent() == [InventoryChanged(inventory=inventory("a"))]
    wire.do(Measured(sample=Sample(cpu=0.5)))
    assert wire.sent() == [Sampled(sample=Sample(cpu=0.5))]


def test_what_changed_between_the_hello_and_its_answer_is_told_after_it() -> None:
    wire = Wire()
    wire.do(MachineChanged(inventory=inventory("before")))
    wire.do(Connected())  # the hello says it
    wire.do(MachineChanged(inventory=inventory("b")))
    wire.do(MachineChanged(inventory=inventory("c")))
    wire.do(Measured(sample=Sample(cpu=0.5)))
    assert wire.sent() == []
    welcome = Welcome(epoch=1, heartbeat_s=2, lost_after_s=60)
    wire.hear(welcome)
    assert wire.sent() == [InventoryChanged(inventory=inventory("c"))]
    wire.do(Connected())
    wire.hear(welcome)
    assert wire.sent() == []
