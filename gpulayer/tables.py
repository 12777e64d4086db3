"""Machines, jobs and sessions as tables that read well in plain text."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpulayer.protocol.calls import CallFailure, MapView
from gpulayer.protocol.types import TERMINAL, Device, JobView, SessionView, State, WorkerView
from gpulayer.words import (
    CANCELLING,
    SYMBOLS,
    WORDS,
    ago,
    calls_line,
    calls_were,
    device_name,
    devices_short,
    duration,
    failure,
    is_warm,
    limit,
    needs,
    reasons,
    roughly,
    running_s,
    size,
    state_of,
    symbol_of,
    visible,
)

WIDTH = 80
_GAP = "  "
_HELD = "\u00a0"  # a blank at which no line ends
_NARROWEST = 10  # of a column that is cut
_DEVICE_LETTERS = 30
_ERROR_LETTERS = 120
_REASONS = 3  # machines that are named below a job


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    title: str = ""
    right: bool = False  # figures stand under one another
    cuts: bool = False  # may be cut in the middle where the table is too wide


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table, with what is said below it in whole lines."""

    cells: tuple[str, ...]
    below: tuple[str, ...] = ()


def letters(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, width: int) -> str:
    """A text of at most `width` columns; a longer one is cut in its middle: 'a-very-…-name'."""
    if letters(text) <= width:
        return text
    head = _first(text, width // 2)
    tail = _first(text[::-1], width - 1 - letters(head))[::-1]
    return f"{head}…{tail}"


def _first(text: str, width: int) -> str:
    taken = ""
    for letter in text:
        if letters(taken + letter) > width:
            break
        taken += letter
    return taken


def table(columns: Sequence[Column], rows: Sequence[Row], width: int = WIDTH) -> list[str]:
    """The lines of a table, its titles first; not wider than `width` where columns can be cut."""
    rows = [Row(cells=tuple(map(visible, row.cells)), below=row.below) for row in rows]
    titles = tuple(column.title for column in columns)
    heads = [titles] if any(titles) else []
    widths = [max(map(letters, column)) for column in zip(*heads, *(row.cells for row in rows), strict=True)]
    cuttable = [number for number, column in enumerate(columns) if column.cuts]
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - width):
        widest = max(cuttable, key=lambda number: widths[number], default=0)
        if widest not in cuttable or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    lines = [_line(columns, widths, head) for head in heads]
    for row in rows:
        lines.append(_line(columns, widths, row.cells))
        for text in row.below:
            lines += wrapped(text, width, _GAP * 2, _GAP * 3)
    return lines


def wrapped(text: str, width: int, margin: str = "", below: str = "") -> list[str]:
    """A text as lines of at most `width` columns: the first behind `margin`, the others behind `below`; [] for none."""
    said = visible(" ".join(text.split()))
    return textwrap.wrap(said, width, initial_indent=margin, subsequent_indent=below, break_on_hyphens=False)


def flowing(text: str, width: int, margin: str = "", below: str = "") -> list[str]:
    """The same of facts with points between them: each line ends between two facts."""
    held = " ".join(text.split()).replace(" ", _HELD).replace(f"{_HELD}·{_HELD}", f"{_HELD}· ")
    lines = textwrap.wrap(visible(held), width, initial_indent=margin, subsequent_indent=below, break_on_hyphens=False)
    return [line.replace(_HELD, " ").rstrip() for line in lines]


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    filled: list[str] = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        text = cut(cell, width)
        space = " " * (width - letters(text))
        filled.append(space + text if column.right else text + space)
    return _GAP.join(filled).rstrip()


# ---------------------------------------------------------------- machines


def fleet_table(workers: Sequence[WorkerView], now: float, width: int = WIDTH) -> list[str]:
    """Machines with their devices, what of them is free, and what is wrong with them."""
    columns = (
        Column(title="machine", cuts=True),
        Column(title="free"),
        Column(title="has"),
        Column(title="sessions", right=True),
    )
    return table(columns, [row for worker in workers for row in _machine(worker, now)], width)


def _machine(worker: WorkerView, now: float) -> list[Row]:
    inventory = worker.inventory
    name = f"{worker.name} (this machine)" if worker.local else worker.name
    slots = f"{worker.slots_free} of {worker.slots} slots" if worker.connected else "out of reach"
    has = f"{inventory.cpu_cores} cores, {size(inventory.ram_bytes)}{'' if inventory.devices else ', cpu only'}"
    below = [f"! {problem}" for problem in inventory.problems] + [f"! {note}" for note in worker.notes]
    if not worker.connected and worker.last_seen_at:
        below.insert(0, f"! last heard of {ago(now - worker.last_seen_at)}; jobs may go on there")
    rows = [(name, slots, has, str(worker.sessions or "–"))]
    for device in inventory.devices:
        free = "free" if device.uuid in worker.devices_free else "in use"
        rows.append(("", free if worker.connected else "", _device(device), ""))
    return [*(Row(cells=cells) for cells in rows[:-1]), Row(cells=rows[-1], below=tuple(below))]


def _device(device: Device) -> str:
    memory = f", {size(device.vram_bytes)}" if device.vram_bytes else ""
    return cut(device_name(device), _DEVICE_LETTERS - letters(memory)) + memory


# ---------------------------------------------------------------- jobs


def job_table(jobs: Sequence[JobView], now: float, width: int = WIDTH) -> list[str]:
    """Jobs, each in one line; below it what one waits for, or why it failed."""
    columns = (
        Column(),
        Column(title="job"),
        Column(title="name", cuts=True),
        Column(title="where", cuts=True),
        Column(title="time", right=True),
        Column(title="when"),
    )
    return table(columns, [_job(job, now) for job in jobs], width)


def _job(job: JobView, now: float) -> Row:
    more = f"and {job.requirements.nodes - 1} more" if job.worker and job.requirements.nodes > 1 else ""
    where = " ".join(filter(None, (job.worker, more, devices_short(job.devices)))) or _sought(job)
    took = "–" if job.state is State.REJECTED else duration(running_s(job, now))
    when = ago(now - job.ended_at) if job.ended_at else state_of(job)
    below: list[str] = []
    if job.state in (State.QUEUED, State.REJECTED):
        why = reasons(job)
        more = [f"{len(why) - _REASONS} more machines"] if len(why) > _REASONS else []
        nearest = [f"nearest: {job.nearest}"] if job.nearest else []
        below = why[:_REASONS] + more + nearest
    elif job.state in (State.FAILED, State.LOST) and failure(job):
        below = [failure(job)]
    elif job.progress and not job.terminal and not is_warm(job):
        below = [job.progress]
    if job.calls is not None and job.calls.calls and job.state is not State.REJECTED:
        below.append(calls_line(job, now))
    return Row(cells=(symbol_of(job), job.id, job.name or "–", where, took, when), below=tuple(below))


def _sought(job: JobView) -> str:
    """Where a job would like to be."""
    sought = needs(job.requirements)
    return f"needs {sought}" if sought else "–"


# ---------------------------------------------------------------- maps


def map_table(maps: Sequence[MapView], now: float, width: int = WIDTH) -> list[str]:
    """Maps and calls, each in one line; below it why it waits, or did not end well."""
    columns = (
        Column(),
        Column(title="map"),
        Column(title="of"),
        Column(title="done", right=True),
        Column(title="failed", right=True),
        Column(title="where", cuts=True),
        Column(title="time", right=True),
        Column(title="when"),
    )
    return table(columns, [_map(each, now) for each in maps], width)


def _map(view: MapView, now: float) -> Row:
    cells = (
        _map_symbol(view),
        view.id,
        _map_of(view),
        f"{view.done:,}",
        f"{view.failed:,}" if view.failed else "–",
        _map_where(view) or "–",
        duration(_map_s(view, now)),
        ago(now - view.ended_at) if view.ended_at else _map_word(view),
    )
    return Row(cells=cells, below=tuple(filter(None, (_map_why(view, now),))))


def map_line(view: MapView, now: float) -> str:
    """'✓ done · map k3f9.2 of 100 calls · 100 done · 1 failed · 3.1 s'.

    Of one that was cancelled: '■ cancelled · 80 of 361 calls were done · map k3f9.2 · 3.1 s · its client went away …'.
    """
    which = f"{'call' if view.single else 'map'} {view.id}"
    why = f" · {_map_why(view, now)}" if _map_why(view, now) else ""
    took = duration(_map_s(view, now))
    head = f"{_map_symbol(view)} {_map_word(view)}"
    if view.single:
        counts = which
    elif view.state in (State.CANCELLED, State.FAILED):
        counts = f"{calls_were(_calls(view), view.done, view.failed)} · {which}"
    else:
        failed = f" · {view.failed:,} failed" if view.failed else ""
        counts = f"{which} of {_map_of(view)} · {view.done:,} done{failed}"
    where = f" · on {_map_where(view)}" if _map_where(view) and view.state not in TERMINAL else ""
    return f"{head} · {counts}{where} · {took}{why}"


def _map_symbol(view: MapView) -> str:
    return CANCELLING if view.cancelling and view.state not in TERMINAL else SYMBOLS[view.state]


def _map_word(view: MapView) -> str:
    return "cancelling" if view.cancelling and view.state not in TERMINAL else WORDS[view.state]


def _map_of(view: MapView) -> str:
    if view.single:
        return "1 call"
    count = _calls(view)
    more = "" if view.total is not None or view.state in TERMINAL else " so far"
    return f"{count:,} call{'' if count == 1 else 's'}{more}"


def _calls(view: MapView) -> int:
    """How many it has, as far as that is known."""
    return view.total if view.total is not None else view.taken


def _map_where(view: MapView) -> str:
    return ", ".join(view.workers[:3]) + (f" and {len(view.workers) - 3} more" if len(view.workers) > 3 else "")


def _map_s(view: MapView, now: float) -> float:
    return (view.ended_at or now) - (view.started_at or view.opened_at or now)


def _map_why(view: MapView, now: float) -> str:
    """Why it waits, or what ended it; '' where there is nothing to say."""
    if view.left_at is not None and view.state not in TERMINAL:
        return f"its client is away for {roughly(now - view.left_at)}, and did not send all of its calls"
    if view.state in (State.QUEUED, State.REJECTED) and view.reasons:
        each = view.reasons[0]
        more = f" and {len(view.reasons) - 1} more" if len(view.reasons) > 1 else ""
        return f"{each.worker}: {each.text}{more}" if each.worker else f"{each.text}{more}"
    if view.failed_index is not None and view.failure:
        where = "" if view.single else f"call {view.failed_index}: "
        return where + _failure(view.failure)
    return view.problem


def _failure(data: bytes) -> str:
    try:
        failure = msgspec.json.decode(data, type=CallFailure)
    except msgspec.MsgspecError:
        return "it failed"
    first = (failure.text.splitlines() or [""])[0]
    text = ": ".join(filter(None, (failure.type, first)))
    return text if len(text) <= _ERROR_LETTERS else f"{text[: _ERROR_LETTERS - 1]}…"


# ---------------------------------------------------------------- sessions


def session_table(sessions: Sequence[SessionView], now: float, width: int = WIDTH) -> list[str]:
    """Sessions, what each does, and when it would end by itself."""
    columns = (
        Column(),
        Column(title="session", cuts=True),
        Column(title="where", cuts=True),
        Column(title="does"),
        Column(title="ends after"),
    )
    return table(columns, [_session(session, now) for session in sessions], width)


def _session(session: SessionView, now: float) -> Row:
    where = " ".join(filter(None, (session.worker, devices_short(session.devices))))
    if not session.connected:
        does, symbol = "out of reach", "◌"
    elif session.running:
        does, symbol = f"runs {session.running}", "●"
    else:
        idle = f" {roughly(now - session.idle_since)}" if session.idle_since is not None else ""
        does, symbol = f"idle{idle}", "○"
    return Row(cells=(symbol, session.name, where, does, f"{limit(session.idle_timeout_s)} idle"))


# ---------------------------------------------------------------- all of it


def overview(
    workers: Sequence[WorkerView], jobs: Sequence[JobView], sessions: Sequence[SessionView], now: float
) -> list[str]:
    """Machines, jobs and sessions below each other."""
    online = sum(1 for worker in workers if worker.connected)
    lines = [
        f"machines · {online} online" + (f", {len(workers) - online} out of reach" if online < len(workers) else "")
    ]
    lines += (
        _indented(fleet_table(workers, now, WIDTH - 2)) if workers else ["  none yet: the first cell starts this one"]
    )
    live = sum(1 for job in jobs if not job.terminal)
    lines += ["", f"jobs · {live} live" if live else "jobs"]
    lines += _indented(job_table(jobs, now, WIDTH - 2)) if jobs else ["  none yet"]
    if sessions:
        lines += ["", "sessions", *_indented(session_table(sessions, now, WIDTH - 2))]
    return lines


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
