"""Whether a spec can be one: what is wrong with it, in one line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from gpulayer.protocol.calls import MapSpec
from gpulayer.protocol.types import CallsSpec, CellSpec, CommandSpec, JobSpec, Problem
from gpulayer_server.scheduling import asked

MOST_TASKS = 10_000
_MOST_AFTER = 1_000
_MOST_LABELS = 64
_LETTERS = 200  # of a name, a label
_HIGHEST_PRIORITY = 1_000_000
_HIGHEST_INDEX = 2**31 - 1
_MOST_RETRIES = 1_000


_of_requirements = lru_cache(4096)(asked.problem_of)  # of many jobs that come together they are the same


def problem_of(spec: JobSpec) -> Problem | None:
    """The first thing that is wrong with a spec; None where it can be a job."""
    return _bad_job(_problem(spec))


def problem_of_calls(spec: JobSpec) -> Problem | None:
    """The first thing that is wrong with the spec of a map's job; None where it can be one."""
    return _bad_job(next(_of_calls(spec), None) or next(_of_numbers(spec), None) or next(_of_words(spec), None))


def problem_of_map(spec: MapSpec, count: int) -> Problem | None:
    """The first thing that is wrong with a map that comes with so many calls; None where it can be one."""
    title = next(_of_map(spec, count), None)
    return None if title is None else Problem(status=400, code="bad_map", title=title)


def _bad_job(title: str | None) -> Problem | None:
    return None if title is None else Problem(status=400, code="bad_job", title=title)


def _problem(spec: JobSpec) -> str | None:
    cell, command = spec.cell, spec.command
    if spec.calls is not None:
        title = "calls of a function come by maps: they can't be submitted as a job"
    elif command is not None and cell is None:
        title = _of_command(command)
    elif cell is not None and command is None:
        title = _of_cell(cell, spec)
    else:
        title = f"a job is either a cell or a command, this one is {'neither' if cell is None else 'both'}"
    if title is None and spec.array:
        title = next(_of_array(spec), None)
    if title is None and spec.gang:
        title = next(_of_gang(spec), None)
    return title or next(_of_numbers(spec), None) or next(_of_words(spec), None)


def _of_calls(spec: JobSpec) -> Iterator[str]:
    calls = spec.calls
    if calls is None or spec.cell is not None or spec.command is not None:
        yield "a map is of calls of a function, and of nothing else: its job has no cell and no command"
        return
    if spec.array:
        yield "calls of a function can't be an array: a map has as many calls as it needs"
    if spec.requirements.nodes > 1:
        yield f"a call runs on one machine, and not on {spec.requirements.nodes:,}: submit a command for that"
    if spec.session:
        yield f"calls of a function run in runners of their own, not in session {spec.session!r}"
    if spec.after:
        yield f"calls of a function can't run after {spec.after[0]}: wait for that job, then call"
    if spec.retries:
        yield "a map says how often its calls are retried, its job has no retries"
    if spec.timeout_s is not None:
        yield "a map says how long its calls may take, its job has no timeout"
    yield from _of_runners(calls)


def _of_runners(calls: CallsSpec) -> Iterator[str]:
    if calls.max_runners is not None and calls.max_runners < 1:
        yield f"max_runners is a number from 1 on, not {calls.max_runners}"
    if not _is_time(calls.idle_timeout_s):
        yield f"idle_timeout_s is a time in seconds, not {calls.idle_timeout_s}"
    if calls.memory_limit_bytes is not None and calls.memory_limit_bytes < 1:
        yield f"memory_limit is a number of bytes above 0, not {calls.memory_limit_bytes}"
    if calls.stateful and not calls.instance:
        yield "an object has a name of its own, this one has none"
    if calls.stateful and calls.isolate:
        yield "an object lives in one process: isolate=True gives each call a process of its own"


def _of_map(spec: MapSpec, count: int) -> Iterator[str]:
    if spec.total is not None and spec.total < count:
        yield f"a map of {spec.total:,} calls can't have the arguments of {count:,}"
    if not 0 <= spec.retries <= _MOST_RETRIES:
        yield f"retries is a number from 0 to {_MOST_RETRIES:,}, not {spec.retries}"
    if not _is_time(spec.backoff_s):
        yield f"backoff_s is a time in seconds, not {spec.backoff_s}"
    if spec.timeout_s is not None and not (_is_time(spec.timeout_s) and spec.timeout_s > 0):
        yield f"timeout_s is a time in seconds above 0, not {spec.timeout_s}"
    if spec.name and (len(spec.name) > _LETTERS or not _in_one_line(spec.name)):
        yield f"a name is one line of at most {_LETTERS} letters"


def _of_command(command: CommandSpec) -> str | None:
    if not command.argv or not command.argv[0]:
        return "the command names no program"
    if "\0" in "".join(command.argv):
        return "a word of the command has a zero byte in it"
    for name, value in command.env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return f"environment variable {name!r} can't be set: a name has no '=', and nothing has a zero byte in it"
    cwd = command.cwd
    if cwd and (cwd.startswith(("/", "\\")) or ".." in cwd.split("/") or "\0" in cwd or cwd[1:2] == ":"):
        return f"the working folder {cwd!r} is not below the source: name it with '/' and without '..'"
    return None


def _of_cell(cell: CellSpec, spec: JobSpec) -> str | None:
    if cell.session is not None and spec.array:
        return f"an array can't run in session {cell.session!r}: its tasks run side by side"
    if cell.session == "":
        return "a session has a name"
    if not _is_time(cell.idle_timeout_s):
        return f"idle_timeout_s is a time in seconds, not {cell.idle_timeout_s}"
    return None


def _of_numbers(spec: JobSpec) -> Iterator[str]:
    if not 0 <= spec.retries <= _MOST_RETRIES:
        yield f"retries is a number from 0 to {_MOST_RETRIES:,}, not {spec.retries}"
    if abs(spec.priority) > _HIGHEST_PRIORITY:
        yield f"priority is a number from -{_HIGHEST_PRIORITY:,} to {_HIGHEST_PRIORITY:,}, not {spec.priority}"
    if spec.timeout_s is not None and not (_is_time(spec.timeout_s) and spec.timeout_s > 0):
        yield f"timeout_s is a time in seconds above 0, not {spec.timeout_s}"
    if not _is_time(spec.grace_s):
        yield f"grace_s is a time in seconds, not {spec.grace_s}"
    problem = _of_requirements(spec.requirements)
    if problem is not None:
        yield problem


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _of_array(spec: JobSpec) -> Iterator[str]:
    last = -1
    for low, high in spec.array:
        if low < 0 or high > _HIGHEST_INDEX:
            yield f"an array's indices go from 0 to {_HIGHEST_INDEX:,}, this one has {low}-{high}"
        if high < low:
            yield f"the array's range {low}-{high} ends before it begins"
        if low <= last:
            yield f"the array's ranges have to ascend: {low}-{high} comes after {last}"
        last = high
    count = sum(high - low + 1 for low, high in spec.array)
    if count > MOST_TASKS:
        yield f"an array has {MOST_TASKS:,} tasks at most, this one {count:,}: submit it in parts"


def _of_gang(spec: JobSpec) -> Iterator[str]:
    nodes = spec.requirements.nodes
    on = f"on {nodes:,} machines at once"
    if spec.cell is not None:
        session = f", such as session {spec.session!r}," if spec.session else ""
        yield f"a cell runs in one kernel{session} and not {on}: submit a command for that, or leave nodes out"
    if spec.array:
        yield f"a job {on} is one program, an array many of one machine each: leave nodes or the array out"
    if spec.retries:
        yield f"a job {on} can't be retried: with retries={spec.retries} its lost ones would begin anew, the others not"


def _of_words(spec: JobSpec) -> Iterator[str]:
    if spec.name and (len(spec.name) > _LETTERS or not _in_one_line(spec.name)):
        yield f"a name is one line of at most {_LETTERS} letters"
    if len(spec.labels) > _MOST_LABELS:
        yield f"a job has {_MOST_LABELS} labels at most, this one {len(spec.labels)}"
    for key, value in spec.labels.items():
        if not key or "=" in key or len(key) + len(value) > _LETTERS or not _in_one_line(key + value):
            yield f"label {f'{key}={value}'[:_LETTERS]!r}: it is one line, key=value, of at most {_LETTERS} letters"
    if len(spec.after) > _MOST_AFTER:
        yield f"a job runs after {_MOST_AFTER:,} others at most, this one names {len(spec.after):,}"


def _in_one_line(text: str) -> bool:
    return "\0" not in text and len(text.splitlines()) <= 1 and not text.endswith(("\n", "\r"))
