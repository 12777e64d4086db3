"""The folders of commands. Those in which nothing was left are used again: that is quicker than to make new ones."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import sys

from gpulayer_worker.layout import Layout

_SPARE = 64
_OUTPUT = ("out", "err")
_FURNITURE = frozenset({*_OUTPUT, "workspace"})


class Rooms:
    """Gives each command its folder, and takes it back. Owned by the agent, on its loop."""

    def __init__(self, layout: Layout):
        self._layout = layout
        self._spare: list[str] = []
        self._made = 0
        self._waste: list[str] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._data = os.fspath(layout.data)

    def prepare(self) -> None:
        """Remove what an agent before us had spare. Blocks."""
        for name in os.listdir(self._data):
            if name.startswith(("room-", "waste-")):
                path = os.path.join(self._data, name)
                shutil.rmtree(path, ignore_errors=True)
                number = name.partition("-")[2]
                if number.isdigit() and os.path.lexists(path):  # it can't be removed: its name is not to be had
                    self._made = max(self._made, int(number))

    def take(self, attempt: str) -> None:
        """Make a command's folder, with an empty workspace. Raises OSError."""
        folder = os.fspath(self._layout.attempt(attempt))
        if self._spare and not os.path.exists(folder):
            os.rename(self._spare.pop(), folder)
            return
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # an agent before us came so far, or something of that name is left
            shutil.rmtree(folder)
            os.mkdir(folder, 0o700)
        except FileNotFoundError:
            os.makedirs(folder, 0o700)
        os.mkdir(f"{folder}/workspace", 0o700)

    def give_back(self, attempt: str, *, pristine: bool) -> None:
        """A command's folder is wanted no more. `pristine`: it wrote no output, and no other files were given to it."""
        folder = os.fspath(self._layout.attempt(attempt))
        if pristine and len(self._spare) < _SPARE and _is_as_given(folder) and _without_output(folder):
            self._spare += self._put_away(folder, "room")
            return
        waste = self._put_away(folder, "waste")
        self._waste += waste
        if waste and self._sweeping is None:
            self._sweeping = asyncio.ensure_future(self._sweep())

    def _put_away(self, folder: str, kind: str) -> list[str]:
        """Where a folder is now, under a name that no attempt has; nothing where there was none. Raises OSError."""
        self._made += 1
        there = f"{self._data}/{kind}-{self._made}"
        try:
            os.rename(folder, there)
        except FileNotFoundError:
            return []
        return [there]

    async def close(self) -> None:
        """Wait until what is being removed is gone."""
        if self._sweeping is not None:
            await self._sweeping

    async def _sweep(self) -> None:
        """Remove what is waste, in a thread: much of it at once."""
        while self._waste:
            waste, self._waste = self._waste, []
            await asyncio.to_thread(_remove, waste)
        self._sweeping = None


def _is_as_given(folder: str) -> bool:
    workspace = f"{folder}/workspace"
    try:
        return (
            _FURNITURE.issuperset(os.listdir(folder))
            and not os.listdir(workspace)
            and stat.S_IMODE(os.stat(workspace).st_mode) == 0o700
        )
    except OSError:
        return False


def _without_output(folder: str) -> bool:
    """Remove its files of output, unless nobody has them open: whoever was handed one would write into those of the
    next command. To make them anew costs more than half of what a small command does.
    """
    try:
        for name in _OUTPUT:
            with contextlib.suppress(FileNotFoundError):
                if not _unheld(f"{folder}/{name}"):
                    os.unlink(f"{folder}/{name}")
    except OSError:
        return False
    return True


def _unheld(path: str) -> bool:
    """Whether surely nobody has a file open: a write lease is granted for no other. Raises FileNotFoundError."""
    if sys.platform != "linux":
        return False
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # somebody has, or this file system knows no leases
        return False
    finally:
        os.close(fd)
    return True


def _remove(folders: list[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
