"""How the machine fares, once a second, for little: a handful of the kernel's files, and one question to NVML."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil

from gpulayer.protocol.types import DeviceSample, Process, Sample
from gpulayer_worker.inventory.limits import Limits, allowed_cores

_SOME_BYTES = 64 << 20  # of memory or disk: less is not worth a message
_SOME_DEVICE_BYTES = 16 << 20
_SOME_PART = 0.02  # of utilisation, of a size
_SOME_BPS = 50_000.0


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """A device at one moment, as the child tells of it."""

    uuid: str
    used_bytes: int | None = None
    free_bytes: int | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: tuple[tuple[int, int | None], ...] = ()  # process id, bytes


class Strangers(Protocol):
    """Tells our processes from others."""

    def seen(self, pid: int, held: int | None) -> Process | None:
        """Who a process with so many bytes is; None for one of ours."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """Counters of the last look."""

    at_s: float
    busy_s: float | None = None
    received: int = 0
    sent: int = 0


class Sampler:
    """Takes samples. Rates are those since the last one; the first has none.

    Arguments:
        data: the folder whose disk counts.
        strangers: tells foreign processes.
    """

    def __init__(self, data: Path, strangers: Strangers, limits: Limits | None = None):
        self._data = data
        self._strangers = strangers
        self._limits = limits or Limits()
        self._cores = allowed_cores()
        self._all = len(self._cores) >= (os.cpu_count() or 1)
        self._limited = self._limits.cpu_limited()
        self._cores_count = max(self._limits.cores(), 1e-3)
        self._last: _Counted | None = None

    def take(self, now_s: float, devices: Iterable[DeviceUse] = ()) -> Sample:
        """How it is now; `now_s` is of a clock that does not jump. Raises OSError where the folder is gone."""
        last, counted = self._last, self._count(now_s)
        self._last = counted
        memory = self._limits.memory()
        disk = os.statvfs(self._data)
        return Sample(
            cpu=_cpu(last, counted, self._cores_count),
            ram_used_bytes=memory.used_bytes,
            ram_free_bytes=memory.free_bytes,
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
            disk_total_bytes=disk.f_blocks * disk.f_frsize,
            received_bps=_rate(last, counted, "received"),
            sent_bps=_rate(last, counted, "sent"),
            devices=tuple(self._device(each) for each in devices),
        )

    def _count(self, now_s: float) -> _Counted:
        received = sent = 0
        for name, counters in psutil.net_io_counters(pernic=True).items():
            if name not in ("lo", "lo0"):
                received, sent = received + counters.bytes_recv, sent + counters.bytes_sent
        return _Counted(at_s=now_s, busy_s=self._busy_s(), received=received, sent=sent)

    def _busy_s(self) -> float | None:
        """CPU time used so far, of the cores that count as ours."""
        if self._limited:
            return self._limits.cpu_used_s()
        if self._all:
            return _busy(psutil.cpu_times())
        times = psutil.cpu_times(percpu=True)
        return sum(_busy(times[core]) for core in self._cores if core < len(times))

    def _device(self, use: DeviceUse) -> DeviceSample:
        seen = [self._strangers.seen(pid, held) for pid, held in use.processes]
        return DeviceSample(
            uuid=use.uuid,
            used_bytes=use.used_bytes,
            free_bytes=use.free_bytes,
            utilisation=use.utilisation,
            temperature_c=use.temperature_c,
            power_w=use.power_w,
            foreign=tuple(process for process in seen if process is not None),
        )


def _busy(times: Any) -> float:
    without = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in `user` too
    return sum(times) - sum(getattr(times, name, 0.0) for name in without)


def _cpu(last: _Counted | None, now: _Counted, cores: float) -> float | None:
    if last is None or last.busy_s is None or now.busy_s is None or now.at_s <= last.at_s:
        return None
    return round(min(1.0, max(0.0, (now.busy_s - last.busy_s) / (now.at_s - last.at_s) / cores)), 4)


def _rate(last: _Counted | None, now: _Counted, name: str) -> float | None:
    if last is None or now.at_s <= last.at_s:
        return None
    return round(max(0.0, (getattr(now, name) - getattr(last, name)) / (now.at_s - last.at_s)), 1)


# ---------------------------------------------------------------- what is worth a message


def noticeable(before: Sample, now: Sample) -> bool:
    """Whether somebody who looks at the one would see the other as different."""
    if _differs(before.cpu, now.cpu, _SOME_PART) or len(before.devices) != len(now.devices):
        return True
    for name in ("ram_used_bytes", "ram_free_bytes", "disk_free_bytes", "disk_total_bytes"):
        if _differs(getattr(before, name), getattr(now, name), _SOME_BYTES):
            return True
    for name in ("received_bps", "sent_bps"):
        least = max(_SOME_BPS, 0.2 * (getattr(before, name) or 0.0))
        if _differs(getattr(before, name), getattr(now, name), least):
            return True
    return any(_device_differs(a, b) for a, b in zip(before.devices, now.devices, strict=True))


def _device_differs(before: DeviceSample, now: DeviceSample) -> bool:
    if before.uuid != now.uuid or _who(before) != _who(now):
        return True
    least: Mapping[str, float] = {
        "used_bytes": _SOME_DEVICE_BYTES,
        "free_bytes": _SOME_DEVICE_BYTES,
        "utilisation": _SOME_PART,
        "temperature_c": 2.0,
        "power_w": max(3.0, 0.05 * (before.power_w or 0.0)),
    }
    return any(_differs(getattr(before, name), getattr(now, name), much) for name, much in least.items())


def _who(sample: DeviceSample) -> set[tuple[int, str]]:
    return {(process.pid, process.name) for process in sample.foreign}


def _differs(before: float | None, now: float | None, least: float) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(before - now) >= least
