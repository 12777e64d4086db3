"""Which devices the agent's attempts and sessions hold."""

from __future__ import annotations

from collections.abc import Callable

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Device
from gpulayer_worker.link import Link


class DevicesHeld:
    """Knows it from the link, and of sessions from the assignments that opened them.

    Arguments:
        link: gives what is held now; None: nothing yet.
    """

    def __init__(self, link: Callable[[], Link | None]):
        self._link = link
        self._of: dict[str, tuple[Device, ...]] = {}  # by session

    def assigned(self, assign: Assign) -> None:
        """A session's devices are those of the attempts in it."""
        link = self._link()
        if assign.session is not None and link is not None:
            known = {name: devices for name, devices in self._of.items() if name in link.sessions}
            self._of = {**known, assign.session: assign.devices}

    def uuids(self) -> set[str]:
        """UUIDs of the devices with attempts on them, or sessions."""
        link = self._link()
        if link is None:
            return set()
        held = {device.uuid for each in link.held.values() if not each.gone for device in each.assign.devices}
        return held | {device.uuid for name in link.sessions for device in self._of.get(name, ())}
