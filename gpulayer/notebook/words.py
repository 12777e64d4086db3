"""The words and figures that people read: one vocabulary in the cell, the terminal and the panel."""

from __future__ import annotations

from gpulayer.client.errors import reason_lines
from gpulayer.protocol.types import JobView, State

SYMBOLS = {
    State.QUEUED: "○",
    State.ASSIGNED: "◐",
    State.RUNNING: "●",
    State.SUCCEEDED: "✓",
    State.FAILED: "✗",
    State.REJECTED: "✗",
    State.CANCELLED: "■",
    State.UNREACHABLE: "◌",
    State.LOST: "↻",
}


def duration(seconds: float) -> str:
    """'4.2 s', '3 min 12 s', '2 h 05 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def size(count: float) -> str:
    """'41 kB', '1.2 GB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def ordinal(place: int) -> str:
    """'1st', '2nd', '11th'."""
    if place % 100 in (11, 12, 13):
        return f"{place}th"
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th') }"


def _place(job: JobView) -> str:
    device = job.devices[0] if job.devices else None
    more = f" and {len(job.devices) - 1} more" if len(job.devices) > 1 else ""
    return f" · {device.kind}:{device.index} {device.name}{more}".rstrip() if device else ""


def _notes(job: JobView) -> str:
    return "".join(f" · {note}" for note in job.notes)


def status_line(job: JobView, now: float) -> str:
    """One line about a job: what it waits for, where it runs, how it ended."""
    if job.cancelling:
        return f"□ cancelling on {job.worker} · job {job.id}" if job.worker else f"□ cancelling · job {job.id}"
    symbol = SYMBOLS[job.state]
    if job.state is State.QUEUED:
        return _waiting(job, symbol)
    if job.state is State.ASSIGNED:
        doing = f" · {job.progress}" if job.progress else ""
        return f"{symbol} starting on {job.worker}{doing} · job {job.id}"
    if job.state is State.RUNNING:
        took = duration(now - (job.started_at or now))
        doing = f" · {job.progress}" if job.progress else ""
        return f"{symbol} running on {job.worker}{_place(job)} · {took}{doing}{_notes(job)} · job {job.id}"
    if job.state is State.UNREACHABLE:
        return f"{symbol} out of reach: {job.worker} does not answer, the job may go on there · job {job.id}"
    return _ended(job, symbol)


def _waiting(job: JobView, symbol: str) -> str:
    place = f" · {ordinal(job.ahead + 1)} in line" if job.ahead else ""
    why = " · ".join(" ".join(line.split()) for line in reason_lines(job))
    return f"{symbol} waiting{place} · {why} · job {job.id}" if why else f"{symbol} waiting{place} · job {job.id}"


def _ended(job: JobView, symbol: str) -> str:
    outcome = job.outcome
    took = duration((job.ended_at or 0) - (job.started_at or job.submitted_at))
    peak = outcome.peak_rss_bytes if outcome else None
    figures = f" · peak {size(peak)}" if peak else ""
    if job.state is State.SUCCEEDED:
        return f"{symbol} done on {job.worker} in {took}{figures}{_notes(job)} · job {job.id}"
    if job.state is State.REJECTED:
        return f"{symbol} no eligible worker · job {job.id}"
    if job.state is State.CANCELLED:
        where = f" on {job.worker} after {took}" if job.worker else ""
        return f"{symbol} cancelled{where} · job {job.id}"
    why = (outcome.problem or outcome.error) if outcome else ""
    why = f" · {why.splitlines()[0][:200]}" if why else ""
    return f"{symbol} failed on {job.worker} after {took}{why}{_notes(job)} · job {job.id}"
