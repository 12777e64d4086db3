"""Cores and memory that this process may use: affinity, cgroups of both versions, the machine."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_UNLIMITED = 1 << 60  # cgroup v1 writes 'no limit' as a number beyond any machine


@dataclass(frozen=True, kw_only=True)
class Cgroup:
    """Where the limits of a controller lie, from the process's own group up to the mounted root."""

    folders: tuple[Path, ...]
    version: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory at one moment, within the limits."""

    total_bytes: int
    used_bytes: int
    free_bytes: int


class Limits:
    """Reads them below `root`, '/' but in tests. Cheap: the groups are looked for once."""

    def __init__(self, root: Path = Path("/")):
        self._root = root
        self._cpu = _cgroup(root, "cpu")
        self._memory = _cgroup(root, "memory")

    def cores(self) -> float:
        """Cores that we may use: no more than the affinity's, and what a cgroup grants of time on them."""
        granted = [share for folder in self._cpu.folders if (share := _cpu_share(folder, self._cpu.version))]
        return min([float(len(allowed_cores())), *granted])

    def cpu_limited(self) -> bool:
        """Whether a cgroup grants less time than the affinity has cores."""
        return self.cores() < len(allowed_cores())

    def cpu_used_s(self) -> float | None:
        """CPU time that the limited group has used, in seconds; None where that is not known."""
        limited = [folder for folder in self._cpu.folders if _cpu_share(folder, self._cpu.version)]
        if self._cpu.version == 1:  # who counts is another controller
            limited = list(_cgroup(self._root, "cpuacct").folders[:1])
        return _cpu_used_s(limited[0], self._cpu.version) if limited else None

    def ram_bytes(self) -> int:
        """The machine's memory, or less where a cgroup grants less."""
        return min([psutil.virtual_memory().total, *(limit for limit, _ in self._memory_limits())])

    def memory(self) -> Memory:
        """Memory now. A file's pages that can be let go of at once do not count as used."""
        machine = psutil.virtual_memory()
        total, free = machine.total, machine.available
        for limit, folder in self._memory_limits():
            used = _memory_used(folder, self._memory.version)
            total = min(total, limit)
            if used is not None:
                free = min(free, max(0, limit - used))
        free = min(free, total)
        return Memory(total_bytes=total, used_bytes=total - free, free_bytes=free)

    def _memory_limits(self) -> list[tuple[int, Path]]:
        name = "memory.max" if self._memory.version == 2 else "memory.limit_in_bytes"
        limits = [(_number(folder / name), folder) for folder in self._memory.folders]
        return [(limit, folder) for limit, folder in limits if limit is not None and 0 < limit < _UNLIMITED]


def allowed_cores() -> frozenset[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Whole cores that this process may use, at least one: part of a core does not count."""
    return max(1, math.floor(Limits().cores() + 1e-6))


def parse_cores(text: str) -> frozenset[int]:
    """A list of cores as Linux writes it, '0-3,8': what can't be read of it is left out."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if _is_number(first) and (_is_number(last) or not dash):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5


def node_cores(node: int, root: Path = Path("/")) -> frozenset[int]:
    """The cores of a NUMA node; none where that is not known."""
    return parse_cores(_text(root / "sys/devices/system/node" / f"node{node}" / "cpulist"))


# ---------------------------------------------------------------- files


def _cgroup(root: Path, controller: str) -> Cgroup:
    """Where this process's groups lie. In a container the path is the host's, and the mounted root is its own group."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = ([*line.split(":", 2), "", ""])[:3]
        if controller in names.split(","):
            return Cgroup(folders=_upwards(root / "sys/fs/cgroup" / controller, path), version=1)
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                if (root / mount / "cgroup.procs").exists() or (root / mount / "cgroup.controllers").exists():
                    return Cgroup(folders=_upwards(root / mount, line[3:]), version=2)
    return Cgroup(folders=(), version=2)


def _upwards(mount: Path, path: str) -> tuple[Path, ...]:
    parts = [part for part in path.split("/") if part and part != ".."]
    folders = [mount.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
    return tuple(folder for folder in folders if folder.is_dir())


def _cpu_share(folder: Path, version: int) -> float | None:
    """Cores' worth of time that a group grants; None without a limit."""
    if version == 2:
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    else:
        quota = _text(folder / "cpu.cfs_quota_us").strip()
        period = _text(folder / "cpu.cfs_period_us").strip()
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0 or int(quota) == 0:
        return None
    return int(quota) / int(period)


def _cpu_used_s(folder: Path, version: int) -> float | None:
    if version == 1:
        used = _number(folder / "cpuacct.usage")
        return None if used is None else used / 1e9
    used = _field(folder / "cpu.stat", "usage_usec")
    return None if used is None else used / 1e6


def _memory_used(folder: Path, version: int) -> int | None:
    """What a group holds and can't let go of at once."""
    used = _number(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
    if used is None:
        return None
    field = "inactive_file" if version == 2 else "total_inactive_file"
    return max(0, used - (_field(folder / "memory.stat", field) or 0))


def _field(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    """A small file of the kernel's; '' where it is not there, or is none of ours."""
    try:
        return path.read_text(errors="replace")
    except (OSError, ValueError):
        return ""
