"""`gpulayer resources list --watch`: the machines as they fare, drawn anew once a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpulayer.cli import common
from gpulayer.cli.common import print_json, print_lines
from gpulayer.cli.terminal import coloured, console_of
from gpulayer.client import asks
from gpulayer.client.client import Client
from gpulayer.client.errors import NobodyAnswers
from gpulayer.client.remote import Unreachable
from gpulayer.machines import machine_lines
from gpulayer.protocol.types import WorkerView

EVERY_S = 1.0

_AWAY = "◌ control plane out of reach; what is shown may have changed"
_NONE = "no machines yet: gpulayer up prints the line that adds one"


def watch_machines(client: Client, *, json: bool = False, pause: Callable[[float], object] = time.sleep) -> None:
    """Show the machines until Ctrl-C. On what is no terminal each change is written below the last one.

    Raises what the first look raises; later ones that meet nobody are made again.
    """
    workers, away = client.workers(), False
    try:
        with _shown(json=json) as show:
            while True:
                show(workers, away)
                pause(EVERY_S)
                try:
                    workers, away = client.api.ask(asks.workers(), patience_s=0.0), False
                except (NobodyAnswers, Unreachable):
                    away = True
    except KeyboardInterrupt:
        return  # so it is meant to end


@contextmanager
def _shown(*, json: bool) -> Iterator[Callable[[list[WorkerView], bool], None]]:
    """A function that shows the machines as they are now."""
    if json or not sys.stdout.isatty():
        yield _Written(json=json).show
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=console_of(sys.stdout), auto_refresh=False, vertical_overflow="ellipsis") as live:

        def draw(workers: list[WorkerView], away: bool) -> None:
            lines = [coloured(line) for line in _lines(workers, away)]
            live.update(Text("\n").join(lines), refresh=True)

        yield draw


class _Written:
    """Writes what has changed, as whole blocks."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._last: Any = None

    def show(self, workers: list[WorkerView], away: bool) -> None:
        what: Any = workers if self._json else _lines(workers, away)
        if what == self._last:
            return
        if self._json:
            print_json(workers)
        else:
            print_lines(([""] if self._last is not None else []) + what)
        self._last = what
        sys.stdout.flush()


def _lines(workers: list[WorkerView], away: bool) -> list[str]:
    lines = machine_lines(workers, time.time(), common.width()) or [_NONE]
    return [_AWAY, *lines] if away else lines
