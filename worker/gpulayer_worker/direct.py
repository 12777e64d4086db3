"""A websocket whose frames are heard in the turn of the loop in which they come, and leave in the one that says them.

`websockets` hands each message over from the loop's call-back to whoever waits for it, and waits after each that it
sends: tasks that are woken, two a call's way. What is rare stays as it is there: parts of messages, full buffers.
"""

from __future__ import annotations

from collections.abc import Callable

from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State

_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


class DirectConnection(ClientConnection):
    """A client's connection. Once `hear` was called, what comes is given to it, unless something before it waits.

    What waits is read as from any connection, and said to be read by `caught_up`. The first error of who hears
    breaks the connection, and is `failure` then.
    """

    failure: Exception | None = None
    _heard: Callable[[bytes], None] | None = None
    _behind = 0  # messages, or parts of one, that wait to be read

    def hear(self, heard: Callable[[bytes], None]) -> None:
        """Give what comes to this one from now on."""
        self._heard = heard

    def caught_up(self) -> None:
        """A message that waited was read."""
        self._behind -= 1

    def process_event(self, event: Event) -> None:
        """A frame came."""
        if not isinstance(event, Frame) or event.opcode not in _DATA:
            super().process_event(event)
        elif self.failure is not None:
            return  # nobody reads on
        elif self._heard is not None and not self._behind and event.opcode is Opcode.BINARY and event.fin:
            try:
                self._heard(bytes(event.data))
            except Exception as error:  # noqa: BLE001 - whoever reads the connection raises it
                self.failure = error
                self.transport.abort()
        else:
            self._behind += event.opcode is not Opcode.CONT
            super().process_event(event)

    @property
    def ready(self) -> bool:
        """Whether a message could leave at once."""
        if self.protocol.state is not State.OPEN or self.transport.is_closing():
            return False
        return not self.transport.get_write_buffer_size()

    def put(self, data: bytes) -> None:
        """Send a message without waiting until it has left. Only where it is `ready`."""
        self.protocol.send_binary(data)
        self.send_data()
