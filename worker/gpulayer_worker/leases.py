"""From when on the control plane's word holds, and until when: see `link`."""

from __future__ import annotations

from collections import deque


class Leases:
    """When leased attempts must end. All times are of the link's clock.

    Arguments:
        now: when this agent begins.
        part: of the time after which the control plane gives up a worker: after so much its agent acts.
        resumed_s: what is granted at the begin, when no word of the control plane's is known.
    """

    def __init__(self, now: float, *, part: float, resumed_s: float):
        self._part = part
        self._lost_after_s = 60.0
        self._from = now - part * self._lost_after_s + resumed_s
        self._heartbeats: deque[float] = deque()  # when each was sent that is not answered yet

    def connected(self) -> None:
        """A new connection: no heartbeat on it was answered."""
        self._heartbeats.clear()

    def welcomed(self, connected_at: float, lost_after_s: float) -> None:
        """The hello, which was sent at that time, is answered."""
        self._lost_after_s = lost_after_s
        self._from = max(self._from, connected_at)

    def asked(self, now: float) -> None:
        """A heartbeat is sent."""
        self._heartbeats.append(now)

    def answered(self) -> None:
        """The oldest heartbeat that is not answered yet, is: what it grants holds from when it was sent."""
        if self._heartbeats:
            self._from = max(self._from, self._heartbeats.popleft())

    def over(self, now: float) -> bool:
        """Whether leased attempts must end."""
        return now - self._from >= self._part * self._lost_after_s
