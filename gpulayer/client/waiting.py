"""Waiting for jobs, as requests that somebody else carries: each step is asked, and sent its answer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from gpulayer.client import asks
from gpulayer.client.asks import LONGEST_WAIT_S, Ask
from gpulayer.protocol.types import TERMINAL, JobView, State

T = TypeVar("T")
Step: TypeAlias = Generator[Ask[Any], Any, T]
Clock: TypeAlias = Callable[[], float]

_SHORTEST_WAIT_S = 0.001


def ended(job_id: str, timeout_s: float | None, clock: Clock) -> Step[JobView]:
    """A job once it has ended, or as it is `timeout_s` later."""
    until_s = None if timeout_s is None else clock() + timeout_s
    while True:
        left_s = LONGEST_WAIT_S if until_s is None else until_s - clock()
        view: JobView = yield asks.job(job_id, wait_s=min(LONGEST_WAIT_S, max(_SHORTEST_WAIT_S, left_s)))
        if view.terminal or (until_s is not None and clock() >= until_s):
            return view


def all_ended(job_ids: list[str], timeout_s: float | None, clock: Clock) -> Step[dict[str, State]]:
    """The states of jobs once all have ended, or `timeout_s` later.

    The last one that goes on is waited for, then all that went on are looked at again: few requests for many jobs.
    """
    until_s = None if timeout_s is None else clock() + timeout_s
    states: dict[str, State] = {}
    going = list(dict.fromkeys(job_ids))
    while going:
        for part in asks.parts(going):
            answer: dict[str, str] = yield asks.states(part)
            states.update((job, State(state)) for job, state in answer.items())
        going = [job for job in going if job in states and states[job] not in TERMINAL]
        if not going or (until_s is not None and clock() >= until_s):
            break
        yield from ended(going[-1], None if until_s is None else max(0.0, until_s - clock()), clock)
    return states
