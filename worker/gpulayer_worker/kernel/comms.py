"""What a page says to widgets of this kernel: handled while a cell runs, in a subshell, where ipykernel has subshells.

The agent sends it by the control channel, which is read whatever the main thread does. With ipykernel 6 it waits for
the main thread, as everything there does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from .outstream import report

KINDS = ("comm_msg", "comm_close")


class CommMessages:
    """Hands comm messages to the kernel's own handlers. Used by the control thread."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._subshell: str | None = None  # made when the first message comes

    async def take(self, stream: Any, ident: Any, request: dict[str, Any]) -> None:
        """The handler of a gpulayer_comm_request: its buffers are metadata, content and buffers of the message.

        Nothing is answered.
        """
        kernel, session = self._kernel, self._kernel.session
        kind, parts = request["content"]["kind"], request["buffers"]
        if kind not in KINDS or len(parts) < 2:
            report(f"no message to a widget: {kind!r} with {len(parts)} parts")
            return
        metadata, content = (session.unpack(bytes(part)) for part in parts[:2])
        message = session.msg(kind, content, metadata=metadata)
        buffers = [bytes(part) for part in parts[2:]]
        if not getattr(kernel, "_supports_kernel_subshells", False):
            frames = [*session.serialize(message), *buffers]
            kernel.io_loop.add_callback(kernel.dispatch, [zmq.Frame(frame) for frame in frames])
            return
        if self._subshell is None:
            answer = _Answer()
            await kernel.create_subshell_request(answer, ident, request)
            self._subshell = session.unpack(answer.frames[-1])["subshell_id"]
            for each in KINDS:
                kernel.shell_handlers[each] = self._waking(kernel.shell_handlers[each])
        message["header"]["subshell_id"] = self._subshell
        frames = [*session.serialize(message), *buffers]
        kernel.shell_channel_thread.io_loop.add_callback(self._to_subshell, frames)

    def _waking(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """`handler`, after which the main thread's loop looks up: a cell there may await what a handler has set."""
        loop = self._kernel.io_loop.asyncio_loop

        def handle(*arguments: Any) -> None:
            try:
                handler(*arguments)
            finally:
                loop.call_soon_threadsafe(bool)

        return handle

    def _to_subshell(self, frames: list[Any]) -> None:
        """In the thread of the shell channel. Not by way of that: ipykernel 7.4 would let most wait for the cell."""
        socket = self._kernel.shell_channel_thread.manager.get_shell_channel_to_subshell_socket(self._subshell)
        try:
            socket.send_multipart(frames, flags=zmq.NOBLOCK)
        except zmq.Again:
            report("a message to a widget is lost: its handlers are behind")


class _Answer:
    """Stands in for the control channel: takes the answer to our own request."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def send_multipart(self, frames: list[Any], **options: Any) -> None:
        """Keeps it."""
        self.frames = frames
