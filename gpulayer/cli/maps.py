"""Functions in the terminal: their maps and calls, and what these print while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from gpulayer.cli.errors import UsageError
from gpulayer.client import asks
from gpulayer.client.client import Client
from gpulayer.client.errors import RequestRefused
from gpulayer.client.following import LOOK_S, Following
from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import JobView

SHOWN = 10
"""Maps that are listed of a job."""

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
