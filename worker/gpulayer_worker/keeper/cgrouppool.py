"""Cgroups that serve one group after the other: to make one and remove it takes longer than a small program runs."""

from __future__ import annotations

import contextlib
import os

from gpulayer_worker.keeper.containment import remove_cgroup
from gpulayer_worker.keeper.records import read_json, remove, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class CgroupPool:
    """Gives out cgroups below `base`. A program is born in one: we go there ourselves before we start it.

    Arguments:
        base: the folder for cgroups; None where there are none to be had.
        note: the file that names `base`, so that the next keeper can remove what we leave.
        log: takes a line about what goes wrong.
    """

    def __init__(self, base: str | None, note: str, log: Callable[[str], None]) -> None:
        self._base = base
        self._note = note
        self._log = log
        self._free: list[str] = []
        self._doors: dict[str, int] = {}  # the open cgroup.procs of each
        self._home: int | None = None
        self._away = False
        self._made = 0
        self._remove_old()

    def take(self) -> str | None:
        """A cgroup with nothing in it; None where there is none."""
        if self._base is None:
            return None
        if self._free:
            return self._free.pop()
        path = os.path.join(self._base, f"p{self._made}")
        try:
            self._open_home()
            os.makedirs(path, exist_ok=True)
            self._doors[path] = _open_door(path)
        except OSError as error:
            self._log(f"no cgroup ({error}): a program is held by descent instead")
            return None
        self._made += 1
        return path

    def enter(self, path: str | None) -> str | None:
        """Be in this cgroup, so that what is started now is born there; None where that can't be, and we stay."""
        if path is None:
            self.leave()
            return None
        try:
            os.write(self._doors[path], b"0")
        except OSError as error:
            self._log(f"the cgroup {path} can't be entered ({error}): a program is held by descent instead")
            self.leave()
            return None
        self._away = True
        return path

    def leave(self) -> None:
        """Be back in our own cgroup."""
        if self._away and self._home is not None:
            os.write(self._home, b"0")
            self._away = False

    def give_back(self, path: str) -> None:
        """Nothing is left in this cgroup: another group may have it."""
        if path in self._doors:
            self._free.append(path)
        else:
            remove_cgroup(path)  # an earlier keeper's

    def close(self) -> None:
        """Remove what is empty."""
        for path, door in self._doors.items():
            os.close(door)
            remove_cgroup(path)
        self._doors.clear()
        if self._home is not None:
            os.close(self._home)
            self._home = None
            remove(self._note)

    def _open_home(self) -> None:
        if self._home is None and self._base is not None:
            self._home = _open_door(os.path.dirname(self._base))
            write_json(self._note, {"base": self._base})

    def _remove_old(self) -> None:
        """Remove what a keeper that was killed left empty; what is not empty goes with its group."""
        base = (read_json(self._note) or {}).get("base")
        if not isinstance(base, str):
            return
        with contextlib.suppress(OSError):  # it is gone already
            for name in os.listdir(base):
                if os.path.isdir(os.path.join(base, name)):
                    remove_cgroup(os.path.join(base, name))


def _open_door(folder: str) -> int:
    return os.open(os.path.join(folder, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)
