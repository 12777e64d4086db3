"""Why calls failed, or a runner ended, in the words that a person reads."""

from __future__ import annotations

from typing import Any

import msgspec

from gpulayer.protocol.calls import CallFailure
from gpulayer.protocol.types import Outcome, State
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.run.outcome import last_words, out_of_memory, signal_words


def failure(kind: str, text: str, *, type: str = "") -> bytes:
    """A `CallFailure`, as it stands in the place of a result."""
    return msgspec.json.encode(CallFailure(kind=kind, text=text, type=type))


def death(record: ExitRecord, tail: str, ram_bytes: int) -> str:
    """How a runner ended, with the last that its process wrote; `ram_bytes`: the machine's."""
    if record.oom:
        text = out_of_memory("the runner", record.peak_rss_bytes, ram_bytes)
    elif record.signal is not None:
        text = signal_words(record.signal)
    elif record.code is not None:
        text = f"exit code {record.code}"
    else:
        text = "exit unknown: the keeper had died, and nobody was told how the runner ended (keeper-lost)"
    said = last_words(tail) if tail else ""
    return f"{text}\n{said}" if said else text


def overdue(timeout_s: float) -> bytes:
    """The failure of a call that took too long."""
    return failure("timeout", f"timed out after {timeout_s:g} s, its timeout", type="TimeoutError")


def load_failed(found: dict[str, Any]) -> Outcome:
    """How an attempt ended whose function could not be loaded: `found` are the fields of the `CallFailure`."""
    error = f"{found.get('type', 'Error')}: {found.get('text', '')}".rstrip(": ")
    return Outcome(state=State.FAILED, error=error, problem=f"the function could not be loaded: {error}")


def outgrown(why: dict[str, Any]) -> Outcome:
    """How an attempt ended whose runner can't be replaced: its object would be gone. `why` is what the runner said."""
    size = f"{why.get('rss_bytes', 0) / 1e9:.1f} GB of memory"
    return Outcome(state=State.FAILED, problem=f"its runner had {size}, above its limit: its object is gone")
