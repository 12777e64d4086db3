"""What goes out of an attempt, each in its turn: its begin, its bytes, its calls, its end, its release."""

from __future__ import annotations

from gpulayer.protocol.messages import NotStarted, Released, Started
from gpulayer.protocol.types import FRAME_DATA_BYTES
from gpulayer_worker.link_events import Effect, Held, Send, SendOutput

#: Bytes of one attempt that may be on their way without an acknowledgement.
WINDOW_BYTES = 4 * 1024 * 1024


def pump(held: Held, out: list[Effect]) -> None:
    """Send what may be sent of an attempt. The control plane has welcomed us."""
    name = held.assign.attempt
    if held.began and not held.told_began and not held.recorded and not _ends_now(held):
        held.told_began = True
        out.append(Send(message=Started(attempt=name)))
    if not held.recorded:
        _pump_stream(held, out)
    if held.outcome is not None and held.end is not None and held.sent >= held.end and not held.recorded:
        if held.told_end:
            return
        # Where nothing is left of it, that is told with the end, and only `Forget` follows.
        held.told_end, held.told_gone = True, held.gone
        out.append(Send(message=held.finished(held.outcome, held.end)))
    if held.gone and held.recorded and not held.told_gone:
        held.told_gone = True
        back = NotStarted(attempt=name, reason=held.given_back) if held.given_back else None
        out.append(Send(message=back or Released(attempt=name)))


def _pump_stream(held: Held, out: list[Effect]) -> None:
    """Its bytes, and results no sooner than the text before them."""
    while held.sent < held.spool_end and held.sent - held.acked < WINDOW_BYTES:
        size = min(FRAME_DATA_BYTES, held.spool_end - held.sent, WINDOW_BYTES - (held.sent - held.acked))
        out.append(SendOutput(attempt=held.assign.attempt, offset=held.sent, size=size))
        held.sent += size
    if held.calls is not None:
        out += [Send(message=message) for message in held.calls.pump(held.sent)]


def _ends_now(held: Held) -> bool:
    """Whether all that is left of an attempt goes out now: its end says then that it began."""
    return held.end is not None and held.end - held.acked <= WINDOW_BYTES
