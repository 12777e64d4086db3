"""How a cell ended, in the words that a person reads."""

from __future__ import annotations

import re
import signal
from typing import Any

from gpulayer.protocol.types import Outcome, State
from gpulayer_worker.keeper.client import ExitRecord

_LINES = 12
_CELL = re.compile(r'File ".*ipykernel_\d+/\d+\.py"')
_AROUND = re.compile(r'File ".*/(IPython/core|ipykernel)/')


def last_words(log: str) -> str:
    """What a dead process said last: its last lines, or of a crash the frames of its cell, innermost first."""
    lines = log.strip().splitlines()
    crashes = [n for n, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if not crashes:
        return "\n".join(lines[-_LINES:])
    begin = max(0, crashes[-1] - 3)  # what a library said before it gave up
    said = lines[begin : crashes[-1] + 1]
    current = [n for n, line in enumerate(lines) if n > crashes[-1] and line.startswith("Current thread")]
    for line in lines[current[0] + 1 :] if current else []:
        if not line.startswith("  File") or _AROUND.search(line) or len(said) >= _LINES:
            break
        said.append(_CELL.sub("Cell", line))
    return "\n".join(said)


def from_reply(reply: dict[str, Any], *, wish: str, problem: str) -> Outcome:
    """The outcome of a cell whose kernel answered. `wish`: 'cancel' or 'timeout' where its end was asked for."""
    status = reply.get("status")
    peak = reply.get("peak_rss_bytes")
    if status == "ok":
        return Outcome(state=State.SUCCEEDED, peak_rss_bytes=peak)
    error = f"{reply.get('ename', 'Error')}: {reply.get('evalue', '')}".rstrip(": ")
    if wish == "cancel" and reply.get("ename") == "KeyboardInterrupt":
        return Outcome(state=State.CANCELLED, error=error, peak_rss_bytes=peak)
    why = problem if wish else ("the kernel did not run it" if status == "aborted" else "")
    return Outcome(state=State.FAILED, error=error, problem=why, peak_rss_bytes=peak)


def from_death(record: ExitRecord, tail: str, *, wish: str, problem: str) -> Outcome:
    """The outcome of a cell whose kernel died before it was done."""
    state = State.CANCELLED if wish == "cancel" else State.FAILED
    return Outcome(
        state=state,
        exit_code=record.code,
        signal=record.signal,
        problem=problem if wish else _death(record),
        peak_rss_bytes=record.peak_rss_bytes,
        cpu_s=record.cpu_s,
        tail=last_words(tail),
    )


def _death(record: ExitRecord) -> str:
    if record.oom:
        peak = f", it held {record.peak_rss_bytes / 1e9:.1f} GB" if record.peak_rss_bytes else ""
        return f"out of memory: the machine ended the kernel{peak}"
    if record.signal is not None:
        return f"the kernel was ended by {signal_words(record.signal)}"
    if record.code is not None:
        return f"the kernel exited with code {record.code}"
    return "exit unknown: the keeper had died, and the kernel ended without an answer (keeper-lost)"


def signal_words(number: int) -> str:
    """A signal for people: 'signal 9 (SIGKILL)'."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    return f"signal {number} ({name})"
