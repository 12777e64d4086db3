"""Which devices an agent's attempts and sessions hold."""

from __future__ import annotations

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CellSpec, Device, JobSpec
from gpulayer_worker.devicesheld import DevicesHeld
from gpulayer_worker.link import Held, Link

SPEC = JobSpec(cell=CellSpec(code="1"))


def assign(name: str, *uuids: str, session: str | None = None) -> Assign:
    devices = tuple(Device(uuid=uuid, kind="cuda", index=0) for uuid in uuids)
    return Assign(attempt=name, job="j", spec=SPEC, session=session, devices=devices)


def test_attempts_hold_theirs_until_they_are_gone() -> None:
    held = [Held(assign=assign("a", "GPU-a")), Held(assign=assign("b", "GPU-b"), gone=True)]
    link = Link(held=held)
    assert DevicesHeld(lambda: link).uuids() == {"GPU-a"}


def test_a_session_holds_its_own_between_its_cells_and_no_longer_than_it_lives() -> None:
    link = Link(sessions=["s"])
    devices = DevicesHeld(lambda: link)
    devices.assigned(assign("a", "GPU-a", session="s"))
    assert devices.uuids() == {"GPU-a"}
    link.sessions.clear()
    assert devices.uuids() == set()


def test_of_a_session_that_an_agent_before_us_opened_it_is_told() -> None:
    link = Link(sessions=["s"])
    devices = DevicesHeld(lambda: link)
    devices.found("s", ["GPU-a"])
    assert devices.uuids() == {"GPU-a"}
