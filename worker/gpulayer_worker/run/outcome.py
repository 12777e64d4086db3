"""How a cell ended, in the words that a person reads."""

from __future__ import annotations

import re
import signal
from typing import Any

from gpulayer.protocol.types import Outcome, State
from gpulayer_worker.keeper.client import ExitRecord

_LINES = 12
_LINE_LETTERS = 100
_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
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


def from_death(record: ExitRecord, tail: str, *, wish: str, problem: str, ram_bytes: int) -> Outcome:
    """The outcome of a cell whose kernel died before it was done. `ram_bytes`: the machine's."""
    state = State.CANCELLED if wish == "cancel" else State.FAILED
    return Outcome(
        state=state,
        exit_code=record.code,
        signal=record.signal,
        problem=problem if wish else _death(record, ram_bytes),
        peak_rss_bytes=record.peak_rss_bytes,
        cpu_s=record.cpu_s,
        tail=last_words(tail),
    )


def _death(record: ExitRecord, ram_bytes: int) -> str:
    if record.oom:
        return out_of_memory("the cell's kernel", record.peak_rss_bytes, ram_bytes)
    if record.signal is not None:
        return f"the kernel was ended by {signal_words(record.signal)}"
    if record.code is not None:
        return f"the kernel exited with code {record.code}"
    return "exit unknown: the keeper had died, and the kernel ended without an answer (keeper-lost)"


def out_of_memory(what: str, peak_rss_bytes: int | None, ram_bytes: int) -> str:
    """That the machine's out-of-memory killer ended `what`, with its peak and the machine's RAM, in bytes."""
    peak = f" at a peak of {peak_rss_bytes / 1e9:.1f} GB" if peak_rss_bytes else ""
    text = f"out of memory: the machine's OOM killer ended {what}{peak}, of {ram_bytes / 1e9:.1f} GB of RAM there"
    return f"{text}; hold less at a time, or ask for more with --ram SIZE"


def timed_out(timeout_s: float, last_line: str) -> str:
    """That its time was over, and the last that it said, '' for nothing."""
    said = f"last line: {last_line}" if last_line else "it had printed nothing"
    return f"timed out after {timeout_s:g} s, its --timeout; {said}"


def last_line(text: str) -> str:
    """The last line of a program's output that says anything, without commands to a terminal, and not too long."""
    lines = [_ANSI.sub("", line).strip() for line in re.split(r"[\r\n]+", text)]
    line = next((line for line in reversed(lines) if line), "")
    line = "".join(letter if letter.isprintable() else " " for letter in line)
    return line if len(line) <= _LINE_LETTERS else f"{line[: _LINE_LETTERS - 1]}…"


def signal_words(number: int) -> str:
    """A signal for people: 'signal 9 (SIGKILL)'."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    return f"signal {number} ({name})"
