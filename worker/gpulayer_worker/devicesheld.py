"""Which devices the agent's attempts and sessions hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpulayer.protocol.messages import Assign
from gpulayer_worker.link import Link


class DevicesHeld:
    """Knows it from the link, and of sessions from the assignments that opened them.

    Arguments:
        link: gives what is held now.
    """

    def __init__(self, link: Callable[[], Link]):
        self._link = link
        self._of: dict[str, frozenset[str]] = {}  # by session

    def assigned(self, assign: Assign) -> None:
        """A session's devices are those of the attempts in it."""
        if assign.session is not None:
            self.found(assign.session, [device.uuid for device in assign.devices])

    def found(self, session: str, uuids: Iterable[str]) -> None:
        """A session holds devices."""
        known = {name: devices for name, devices in self._of.items() if name in self._link().sessions}
        self._of = {**known, session: frozenset(uuids)}

    def uuids(self) -> set[str]:
        """UUIDs of the devices with attempts on them, or sessions."""
        link = self._link()
        held = {device.uuid for each in link.held.values() if not each.gone for device in each.assign.devices}
        return held.union(*(self._of.get(name, frozenset()) for name in link.sessions))
