"""The kinds of work, and who runs them."""

from __future__ import annotations

from typing import TypeAlias

from gpulayer.protocol.messages import Assign
from gpulayer_worker.run.calls import CallsRun
from gpulayer_worker.run.cell import CellRun
from gpulayer_worker.run.command import CommandRun
from gpulayer_worker.run.services import Services

Run: TypeAlias = CellRun | CommandRun | CallsRun


def run_of(services: Services, assign: Assign, *, resumed: bool, ended: bool = False) -> Run:
    """Whoever runs an attempt.

    Args:
        services: the agent.
        assign: the attempt.
        resumed: an agent before us began it.
        ended: and told its end.

    Raises:
        OSError: its files can't be had.
    """
    if assign.spec.cell is not None:
        return CellRun(services, assign, resumed=resumed)
    kind = CallsRun if assign.spec.calls is not None else CommandRun
    return kind(services, assign, resumed=resumed, told=ended)


def abandoned(run: Run | None) -> str | None:
    """An attempt failed for a fault of ours, and its run does nothing more: the processes that are to be ended.

    They are named as the keeper knows them, '' for none; None for a cell, whose kernel may be its session's.
    """
    if run is None or isinstance(run, CellRun):
        return None
    if isinstance(run, CallsRun):
        run.abandon()
    return run.group
