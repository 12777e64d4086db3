"""Output of forked children, on its way to the kernel when a cell ends."""

from __future__ import annotations

import os
import threading
from typing import Any

import zmq

from .tee import SYNC

WAIT_S = 1.0


class Children:
    """Waits for what forked children have sent through ipykernel's pipe. Used by the main thread at a cell's end."""

    def __init__(self, tee: Any, io_thread: Any) -> None:
        self._io_thread = io_thread
        self._forked = False
        self._arrived = threading.Event()
        tee.on_sync = self._on_sync
        os.register_at_fork(after_in_parent=self._note_fork)

    def await_sent(self) -> None:
        """Returns when all that children had sent before this call has been taken, or after one second.

        A message of our own goes the same way: what the children sent is in this host's buffers already, and is read
        before a connection that is made later. Without a fork there is nothing to wait for.
        """
        if not self._forked or not self._io_thread._pipe_flag:
            return
        self._arrived.clear()
        socket = self._io_thread.socket.context.socket(zmq.PUSH)
        try:
            socket.linger = 0
            socket.connect(f"tcp://127.0.0.1:{self._io_thread._pipe_port}")
            socket.send_multipart([self._io_thread._pipe_uuid, SYNC])
            self._arrived.wait(WAIT_S)
        finally:
            socket.close()

    def _note_fork(self) -> None:
        self._forked = True

    def _on_sync(self) -> None:
        pipe = self._io_thread._pipe_in.socket
        if pipe.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # others stand in line still
            self._io_thread.io_loop.add_callback(self._on_sync)
        else:
            self._arrived.set()
