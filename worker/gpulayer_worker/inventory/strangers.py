"""Which processes on a device are none of ours, and whose they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil

from gpulayer.protocol.types import Process
from gpulayer_worker.keeper.spawning import KEEPER_VARIABLE

_MOST_KNOWN = 4096


class Foreigners:
    """Knows processes by id and start time, so that each is looked at once.

    Ours is whatever the worker's keeper started: its environment says so, or that of a process that it descends from.

    Arguments:
        data: the worker's folder, in which its keeper says who it is.
        key: the mark of what the keeper starts; by default that of this process.
        holds: whether an attempt of ours holds any device: then a process that can't be seen from here may be its.
    """

    def __init__(self, data: Path, holds: Callable[[], bool], key: str | None = None):
        self._data = data
        self._holds = holds
        self._mark = os.fsencode(f"{KEEPER_VARIABLE}={key or os.environ.get(KEEPER_VARIABLE, '')}")
        self._known: dict[tuple[int, float], Process | None] = {}

    def seen(self, pid: int, held: int | None) -> Process | None:
        """Who a process with so many bytes is; None for one of ours."""
        try:
            process = psutil.Process(pid)
            key = (pid, process.create_time())
        except psutil.Error:  # of another pid namespace, as in a container, or it has just ended
            return None if self._holds() else Process(pid=pid, bytes=held)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = None if self._is_ours(process) else _who(process)
        known = self._known[key]
        return None if known is None else Process(pid=pid, name=known.name, user=known.user, bytes=held)

    def _is_ours(self, process: psutil.Process) -> bool:
        keeper = self._keeper_pid()
        try:
            line = [process, *process.parents()]
        except psutil.Error:
            line = [process]
        return any(each.pid == keeper or self._marked(each.pid) for each in line)

    def _keeper_pid(self) -> int:
        try:
            return int(json.loads((self._data / "keeper.json").read_bytes())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def _marked(self, pid: int) -> bool:
        if self._mark.endswith(b"="):
            return False
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or is another user's
            return False


def _who(process: psutil.Process) -> Process:
    name = user = ""
    try:
        name = process.name()
        user = process.username()
    except (psutil.Error, KeyError):  # what could be read before it ended is kept
        return Process(pid=process.pid, name=name, user=user)
    return Process(pid=process.pid, name=name, user=user)
