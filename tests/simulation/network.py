"""Sockets between workers and the control plane, in any weather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gpulayer.protocol.messages import Order, ProtocolError
from tests.simulation.simulator import Process, Simulator


@dataclass(kw_only=True)
class Weather:
    """What may happen to a frame on its way: each a probability."""

    delay_s: float = 0.02  # at most; even between nothing and this
    byte_s: float = 0.0  # the time that a byte takes
    lost: float = 0.0
    doubled: float = 0.0
    overtaken: float = 0.0


class End:
    """One side of a socket. `dark`: what it sends from now on vanishes, and nobody is told."""

    def __init__(self, process: Process, name: str):
        self.process = process
        self.name = name
        self.order = Order()
        self.open = True
        self.dark = False
        self.due = 0.0  # when the last frame that it sent arrives: those behind it come later
        self.peer = self
        self.heard: Callable[[bytes], None] = lambda data: None
        self.closed: Callable[[], None] = lambda: None


class Network:
    """Carries frames; counts each that arrives."""

    def __init__(self, sim: Simulator, weather: Weather):
        self.sim = sim
        self.weather = weather
        self.ends: list[End] = []  # the worker's ends of all sockets that may be open
        self._healed_at: dict[str, float] = {}

    # ---------------------------------------------------------------- sockets

    def connect(self, worker: Process, server: Process) -> tuple[End, End]:
        """A new socket: the worker's end and the server's."""
        ours, theirs = End(worker, worker.host.name), End(server, "cp")
        ours.peer, theirs.peer = theirs, ours
        self.ends = [end for end in self.ends if end.open or end.peer.open]
        self.ends.append(ours)
        return ours, theirs

    def send(self, end: End, messages: Sequence[msgspec.Struct]) -> None:
        """One frame; to a closed socket nothing."""
        if not end.open:
            return
        frame = end.order.number(messages)
        if self.sim.trace is not None:
            self.sim.log(end.name, "sends", *map(_short, messages))
        chance = self.sim.random.random()
        weather = self.weather
        if end.dark or chance < weather.lost:
            self.sim.log(end.name, "(lost on the way)")
            return
        due = self.sim.now + weather.delay_s * self.sim.random.random() + weather.byte_s * len(frame)
        if chance < weather.lost + weather.overtaken:
            due += 3 * weather.delay_s
        else:
            due = end.due = max(due, end.due)
        self.sim.push(due, end.peer.process, self.arrive, (end.peer, frame))
        if chance > 1.0 - weather.doubled:
            self.sim.push(due + weather.delay_s, end.peer.process, self.arrive, (end.peer, frame))

    def close(self, end: End) -> None:
        """Close one side; the other hears of it after what was sent before, or never."""
        end.open = False
        if not end.dark:
            due = max(self.sim.now + self.weather.delay_s, end.due)
            self.sim.push(due, end.peer.process, self.arrive_closed, (end.peer,))

    def arrive_closed(self, end: End) -> None:
        """The other side has closed."""
        if end.open:
            end.open = False
            end.closed()

    def arrive(self, end: End, frame: bytes) -> None:
        """A frame is here."""
        if not end.open or end.peer.dark:
            return
        self.sim.events += 1
        try:
            data = end.order.accept(frame)
        except ProtocolError as error:
            self.sim.log(end.name, "breaks off:", error)
            self.close(end)
            end.closed()
            return
        if data is not None:
            end.heard(data)

    # ---------------------------------------------------------------- trouble

    def break_off(self, end: End, *, silent: bool) -> None:
        """Break a socket: each side is told on its own, or, `silent`, neither: it is half-open."""
        self.sim.log(end.name, "connection", "goes dark" if silent else "breaks")
        for side in (end, end.peer):
            side.dark = True
            if not silent:
                self.sim.push(self.sim.now + self.sim.random.random(), side.process, self.arrive_closed, (side,))

    def part(self, name: str, seconds: float) -> None:
        """Hold back everything to and from a host for a while: what is under way arrives after that."""
        self.sim.log(name, f"is cut off for {seconds:.1f} s")
        self._healed_at[name] = self.sim.now + seconds
        for end in self.ends:
            if end.name == name:
                for side in (end, end.peer):
                    side.due = max(side.due, self.sim.now + seconds)

    def reachable(self, name: str) -> bool:
        """Whether a host can open new sockets."""
        return self._healed_at.get(name, 0.0) <= self.sim.now

    def heal(self) -> None:
        """Good weather from here on."""
        self._healed_at.clear()
        self.weather.lost = self.weather.doubled = self.weather.overtaken = 0.0
        self.weather.delay_s = min(self.weather.delay_s, 0.05)
        self.weather.byte_s = 0.0


def _short(message: msgspec.Struct) -> str:
    """A message in the trace."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    parts: list[str] = []
    for name, value in fields.items():
        if isinstance(value, bytes):
            value = f"<{len(value)} bytes>"
        elif name in ("spec", "inventory", "version", "protocol", "heartbeat_s", "lost_after_s"):
            continue
        parts.append(f"{name}={value}")
    return f"{type(message).__name__}({', '.join(parts)})"
