"""All that is known of one job, in lines."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpulayer.explaining import why_table
from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import AttemptView, JobView, Outcome, State, TaskView
from gpulayer.tables import Column, Row, map_table, table
from gpulayer.words import (
    SYMBOLS,
    WORDS,
    devices_short,
    duration,
    needs,
    overall_line,
    program_end,
    size,
)

_MOST_TASKS = 20
_NO_RUNNER = (State.REJECTED, State.CANCELLED)  # of a function: one that was not needed, or is said of the whole


def details(
    job: JobView,
    attempts: Sequence[AttemptView],
    tasks: Sequence[TaskView],
    now: float,
    width: int = 100,
    maps: Sequence[MapView] = (),
) -> list[str]:
    """The job, what it asked for, why it waits, its tries, and of one with many tasks those that are not done; of a
    function its runners and its last `maps`.
    """
    lines = [overall_line(job, now, "all below")]
    lines += [f"  {name:<10} {text}" for name, text in _facts(job) if text]
    if job.state in (State.QUEUED, State.REJECTED):
        lines += why_table(job, width)
    if job.calls is not None:
        lines += _tasks([task for task in tasks if task.state not in _NO_RUNNER], "runner")
        lines += ["", *map_table(maps, now, width)] if maps else []
        more = job.calls.maps - len(maps)
        lines += [f"  and {more:,} older"] if maps and more > 0 else []
    else:
        lines += _tasks(tasks, "node" if job.requirements.nodes > 1 else "task")
    if attempts and not job.tasks:
        lines += ["", *_attempts(attempts, now)]
    tail = job.outcome.tail if job.outcome is not None else ""
    if tail:
        lines += ["", "  the last lines of its process:", *(f"    {line}" for line in tail.splitlines()[-16:])]
    return lines


def _facts(job: JobView) -> list[tuple[str, str]]:
    labels = ", ".join(f"{name}={value}" for name, value in sorted(job.labels.items()))
    return [
        ("name", job.name),
        ("command", job.command),
        ("owner", job.owner),
        ("needs", needs(job.requirements)),
        ("labels", labels),
        ("after", ", ".join(job.after)),
        ("priority", str(job.priority) if job.priority else ""),
        ("session", job.session or ""),
        ("submitted", _moment(job.submitted_at)),
        ("started", _moment(job.started_at)),
        ("ended", _moment(job.ended_at)),
        ("notes", "; ".join(job.notes)),
    ]


def _moment(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else ""


def _attempts(attempts: Sequence[AttemptView], now: float) -> list[str]:
    columns = (
        Column(title="attempt"),
        Column(title="where", cuts=True),
        Column(title="time", right=True),
        Column(title="end"),
        Column(title="peak RAM", right=True),
        Column(title="CPU", right=True),
        Column(title="peak device", right=True),
    )
    return table(columns, [_attempt(each, now) for each in attempts], 110)


def _attempt(attempt: AttemptView, now: float) -> Row:
    outcome = attempt.outcome
    where = " ".join(filter(None, (attempt.worker, devices_short(attempt.devices))))
    began = attempt.started_at
    took = outcome.wall_s if outcome is not None and outcome.wall_s is not None else None
    if took is None and began is not None:
        took = (attempt.ended_at or now) - began
    below = tuple(filter(None, (attempt.problem, outcome.problem if outcome is not None else "")))
    return Row(
        cells=(
            str(attempt.number),
            where,
            "–" if took is None else duration(took),
            _end(attempt, outcome),
            _bytes(outcome.peak_rss_bytes if outcome is not None else None),
            f"{outcome.cpu_s:.1f} s" if outcome is not None and outcome.cpu_s is not None else "–",
            _bytes(outcome.peak_device_bytes if outcome is not None else None),
        ),
        below=below,
    )


def _end(attempt: AttemptView, outcome: Outcome | None) -> str:
    if outcome is None:
        return "lost" if attempt.over else "goes on"
    code = f"exit code {outcome.exit_code}" if outcome.exit_code is not None else ""
    return program_end(outcome) or code or WORDS[outcome.state]


def _bytes(count: int | None) -> str:
    return size(count) if count else "–"


def _tasks(tasks: Sequence[TaskView], called: str) -> list[str]:
    """Of an array, or of several machines at once: those that are not done, the failed ones first."""
    order = {State.FAILED: 0, State.UNREACHABLE: 1, State.LOST: 1, State.RUNNING: 2, State.ASSIGNED: 3}
    left = [task for task in tasks if task.state is not State.SUCCEEDED]
    left.sort(key=lambda task: (order.get(task.state, 4), task.index))
    lines = [
        f"  {SYMBOLS[task.state]} {called} {task.index} {WORDS[task.state]}"
        + (f" on {task.worker}" if task.worker else "")
        + (f" · {_why(task.outcome)}" if task.outcome is not None and _why(task.outcome) else "")
        for task in left[:_MOST_TASKS]
    ]
    more = len(left) - _MOST_TASKS
    return [*lines, f"  and {more} more (--json lists all)"] if more > 0 else lines


def _why(outcome: Outcome) -> str:
    return outcome.problem or outcome.error or program_end(outcome)
