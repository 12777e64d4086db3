"""What pages say to widgets, on its way from the control plane to a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpulayer.protocol.messages import CommMessage, ServerMessage
from gpulayer_worker.kernels import Kernel, Kernels


class _Run(Protocol):
    @property
    def kernel(self) -> Kernel | None: ...


def pass_on(
    messages: list[ServerMessage], sessions: Mapping[str, Kernel], runs: Mapping[str, _Run], kernels: Kernels
) -> list[ServerMessage]:
    """Give kernels what is for widgets of theirs; the other messages. What no kernel takes is lost."""
    others: list[ServerMessage] = []
    for message in messages:
        if not isinstance(message, CommMessage):
            others.append(message)
            continue
        kernel = sessions.get(message.session) if message.session is not None else None
        if message.attempt is not None and message.attempt in runs:
            kernel = runs[message.attempt].kernel
        if kernel is not None and not kernel.exit.done():
            kernels.tell_comm(kernel, message)
    return others
