"""How a command ended, or why it could not be started, in the words that a person reads."""

from __future__ import annotations

import errno
import os

from gpulayer.protocol.types import CommandSpec, Outcome, State
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.run.outcome import last_words, out_of_memory, signal_words

_FULL = (errno.ENOSPC, errno.EDQUOT)


def from_exit(record: ExitRecord, tail: str, *, wish: str, problem: str, forced: bool, ram_bytes: int) -> Outcome:
    """The outcome of a command whose main process ended.

    Arguments:
        record: how it ended.
        tail: the last that it wrote.
        wish: 'cancel', 'timeout' or another word where its end was asked for, with its `problem`.
        forced: it was ended by force, for it did not follow a cancel.
        ram_bytes: the machine's.
    """
    state = State.SUCCEEDED if record.code == 0 and not wish else State.FAILED
    words = problem if wish and (wish != "cancel" or forced) else ""
    if wish == "cancel":
        state = State.CANCELLED
    elif not wish:
        words = _death(record, ram_bytes)
    return Outcome(
        state=state,
        exit_code=record.code,
        signal=record.signal,
        problem=words,
        peak_rss_bytes=record.peak_rss_bytes,
        cpu_s=record.cpu_s,
        wall_s=_wall_s(record),
        tail=last_words(tail) if tail and state is not State.SUCCEEDED else "",
    )


def _wall_s(record: ExitRecord) -> float | None:
    if record.wall_s is not None or record.unknown:
        return record.wall_s
    return max(0.0, round(record.ended_at - record.started_at, 6))


def _death(record: ExitRecord, ram_bytes: int) -> str:
    if record.oom:
        return out_of_memory("it" if record.code is None else "a process of it", record.peak_rss_bytes, ram_bytes)
    if record.code is not None:
        return ""
    if record.signal is not None:
        return f"ended by {signal_words(record.signal)}"
    return "exit unknown: the keeper had died, and nobody was told how the program ended (keeper-lost)"


def unstarted(step: str, number: int, command: CommandSpec, path: str, folder: str) -> str:
    """Why a command could not be started.

    Arguments:
        step: of the keeper's start: 'cwd', 'output', 'find', 'run', 'journal', 'stopping'.
        number: the error's.
        command: what was to run.
        path: where commands are looked for.
        folder: the worker's data folder.
    """
    name, why = command.argv[0], os.strerror(number) if number else ""
    if number in _FULL:
        return f"no room is left on the worker's disk, in {folder}: make room there, then run it again"
    if step == "cwd":
        return f"the working folder {command.cwd!r} is not there in what was sent: {why}"
    if step == "find" and number == errno.ENOENT:
        return f"{name!r} is not there on this worker: not found in PATH ({path})"
    if step == "find" or number == errno.EACCES:
        return f"{name!r} may not be executed on this worker: {why}; chmod +x it, or name its interpreter"
    if number == errno.ENOENT:
        return f"{name!r} is not there on this worker, or the interpreter that its first line names is not"
    if number == errno.ENOEXEC:
        return f"{name!r} is no program for this worker: {why}; a script begins with a line such as #!/bin/sh"
    if step == "stopping":
        return f"{name!r} was not started: the worker is stopping"
    return f"{name!r} could not be started on this worker ({step}): {why}"


def exit_code_of(step: str, number: int) -> int | None:
    """What a shell would have said of a command that is not there (127) or may not be run (126); else None."""
    if step not in ("find", "run"):
        return None
    return {errno.ENOENT: 127, errno.EACCES: 126, errno.ENOEXEC: 126}.get(number)
