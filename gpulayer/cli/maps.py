"""Functions in the terminal: their maps and calls, and what these print while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from gpulayer.cli.errors import UsageError
from gpulayer.client import asks
from gpulayer.client.client import Client
from gpulayer.client.errors import RequestRefused
from gpulayer.client.following import LOOK_S, Following
from gpulayer.protocol.calls import CallFailure, MapView
from gpulayer.protocol.types import TERMINAL, JobView, State
from gpulayer.tables import Column, Row, table
from gpulayer.words import CANCELLING, SYMBOLS, WORDS, ago, duration

SHOWN = 10
"""Maps that are listed of a job."""

_ERROR_LETTERS = 120
_LOOK_S = 1.0


def is_map(name: str) -> bool:
    """Whether a name is a map's or a call's, 'k3f9.17', and no job's."""
    job, _, number = name.partition(".")
    return bool(job) and number.isdecimal()


def known_map(client: Client, name: str) -> MapView:
    """A map by its id. Raises `UsageError` where there is none."""
    try:
        return client.ask(asks.map_view(name))
    except RequestRefused as error:
        if error.problem.status != 404:
            raise
    job = name.partition(".")[0]
    raise UsageError(f"no map or call {name}; gpulayer job show {job} lists those of job {job}")


# ---------------------------------------------------------------- in words


def map_table(maps: Sequence[MapView], now: float, width: int) -> list[str]:
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
    return table(columns, [_row(each, now) for each in maps], width)


def _row(view: MapView, now: float) -> Row:
    cells = (
        _symbol(view),
        view.id,
        _of(view),
        f"{view.done:,}",
        f"{view.failed:,}" if view.failed else "–",
        _where(view) or "–",
        duration(_took_s(view, now)),
        ago(now - view.ended_at) if view.ended_at else _word(view),
    )
    return Row(cells=cells, below=tuple(filter(None, (_why(view),))))


def map_line(view: MapView, now: float) -> str:
    """'✓ done · map k3f9.2 of 100 calls · 100 done · 1 failed · 3.1 s'."""
    kind = "call" if view.single else "map"
    done = "" if view.single else f" of {_of(view)} · {view.done:,} done"
    failed = f" · {view.failed:,} failed" if view.failed and not view.single else ""
    where = f" · on {_where(view)}" if _where(view) and view.state not in TERMINAL else ""
    why = f" · {_why(view)}" if _why(view) else ""
    took = duration(_took_s(view, now))
    return f"{_symbol(view)} {_word(view)} · {kind} {view.id}{done}{failed}{where} · {took}{why}"


def _symbol(view: MapView) -> str:
    return CANCELLING if view.cancelling and view.state not in TERMINAL else SYMBOLS[view.state]


def _word(view: MapView) -> str:
    return "cancelling" if view.cancelling and view.state not in TERMINAL else WORDS[view.state]


def _of(view: MapView) -> str:
    if view.single:
        return "1 call"
    count = view.total if view.total is not None else view.taken
    more = "" if view.total is not None or view.state in TERMINAL else " so far"
    return f"{count:,} call{'' if count == 1 else 's'}{more}"


def _where(view: MapView) -> str:
    return ", ".join(view.workers[:3]) + (f" and {len(view.workers) - 3} more" if len(view.workers) > 3 else "")


def _took_s(view: MapView, now: float) -> float:
    return (view.ended_at or now) - (view.started_at or view.opened_at or now)


def _why(view: MapView) -> str:
    """Why it waits, or what ended it; '' where there is nothing to say."""
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


# ---------------------------------------------------------------- waiting, following


def idle(view: JobView) -> bool:
    """Whether nothing of a job is left to do: it is over, or a function whose calls are all done."""
    return view.terminal or (view.calls is not None and view.calls.idle_since is not None)


def wait_for_calls(client: Client, job: str, timeout_s: float | None) -> JobView:
    """A function's job once its calls are done, however long its runners stay; or as it is `timeout_s` later."""
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = _LOOK_S if until_s is None else min(_LOOK_S, until_s - time.monotonic())
        view = client.status(job)
        if idle(view) or left_s <= 0:
            return view
        client.ask(asks.job(job, wait_s=max(0.001, left_s)))


def follow_runners(client: Client, job: str, take: Callable[[str, bytes], None]) -> None:
    """What a function's runners write, side by side, until its job is over."""
    followed: dict[int, Following] = {}
    try:
        while True:
            view = client.status(job)
            for task in client.ask(asks.tasks(job)):
                if task.attempt and task.index not in followed:
                    followed[task.index] = Following(client.connection, job, index=task.index)
            going = [each for each in followed.values() if each.view is None or not each.view.terminal]
            if view.terminal and not going:
                return
            _take_all(going, take)
    finally:
        for each in followed.values():
            each.close()


def _take_all(going: Sequence[Following], take: Callable[[str, bytes], None]) -> None:
    """What they write within a second."""
    until_s = time.monotonic() + _LOOK_S
    while (left_s := until_s - time.monotonic()) > 0:
        for each in going:
            for news in each.take(min(LOOK_S, left_s) / len(going)):
                if isinstance(news, tuple):
                    take(*news)
        if not going:
            threading.Event().wait(left_s)  # until there is a runner
