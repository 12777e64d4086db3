"""Stop, or the end of the notebook's kernel? A front end that restarts or ends a kernel interrupts it first."""

from __future__ import annotations

import threading
from typing import Any

_WORD_S = 1.5  # after its interrupt a front end says within this that the kernel ends; people see 'cancelling' before


class Ending:
    """Hears when the front end ends this kernel: its jobs go on then, where Stop would have cancelled them.

    Not for two threads. `close` gives the kernel its own handler back.
    """

    def __init__(self, kernel: Any):
        """`kernel` is an ipykernel's, or None in a terminal."""
        self._told = threading.Event()
        self._handlers: dict[str, Any] = getattr(kernel, "control_handlers", {})
        self._original = self._handlers.get("shutdown_request")
        if self._original is not None:
            self._handlers["shutdown_request"] = self._asked

    def told(self) -> bool:
        """Whether the kernel is to end; waits a moment for the word."""
        return self._original is not None and self._told.wait(_WORD_S)

    def close(self) -> None:
        """Listen no more."""
        if self._original is not None:
            self._handlers["shutdown_request"] = self._original
            self._original = None

    def _asked(self, *arguments: Any, **more: Any) -> Any:
        """On the kernel's control thread, while the cell's thread waits."""
        self._told.set()
        return self._original(*arguments, **more) if self._original is not None else None
