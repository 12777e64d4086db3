"""How much device memory a command held at its peak: NVML is asked once a second, only while it holds devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import pynvml

from gpulayer.protocol.types import Device
from gpulayer_worker.keeper.spawning import GROUP_VARIABLE

_EVERY_S = 1.0


class Nvml(Protocol):
    """What is asked of NVML."""

    def used(self, uuid: str) -> Mapping[int, int]:
        """Bytes of a device's memory by process id. Raises `pynvml.NVMLError`."""
        ...


class RealNvml:
    """The machine's own. It is loaded at the first question, and let go of at `close`."""

    def __init__(self) -> None:
        self._open = False

    def used(self, uuid: str) -> Mapping[int, int]:
        """Bytes of a device's memory by process id. Raises `pynvml.NVMLError`."""
        if not self._open:
            pynvml.nvmlInit()
            self._open = True
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        processes = [
            *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
            *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
        ]
        # one process may be in both lists; its memory is that of the device as a whole
        return {process.pid: int(process.usedGpuMemory or 0) for process in processes}

    def close(self) -> None:
        """Let go of it."""
        if self._open:
            pynvml.nvmlShutdown()
            self._open = False


def in_group(pid: int, group: str) -> bool:
    """Whether a process was started by a group: its environment says so."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return os.fsencode(f"{GROUP_VARIABLE}={group}") in file.read().split(b"\0")
    except OSError:  # it ended, or its number is one of another pid namespace
        return False


class DeviceMemory:
    """Measures one attempt from `start` to `stop`.

    Arguments:
        group: the attempt's group of processes.
        devices: those that it holds; only CUDA's can be asked.
        nvml: who is asked.
        belongs: whether a process is of a group.
    """

    def __init__(
        self,
        group: str,
        devices: Iterable[Device],
        nvml: Nvml | None = None,
        belongs: Callable[[int, str], bool] = in_group,
    ):
        self._group = group
        self._uuids = [device.uuid for device in devices if device.kind == "cuda"]
        self._own = RealNvml() if nvml is None else None
        self._nvml: Nvml = nvml or self._own or RealNvml()
        self._belongs = belongs
        self._task: asyncio.Task[None] | None = None
        self.peak_bytes: int | None = None  # None: nothing was seen

    def start(self) -> None:
        """Measure from now on."""
        if self._uuids and self._task is None:
            self._task = asyncio.ensure_future(self._measure())

    def stop(self) -> None:
        """Measure no more. Harmless when repeated."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _measure(self) -> None:
        try:
            while True:
                used_bytes = await asyncio.to_thread(self._used)
                if used_bytes is not None:
                    self.peak_bytes = max(self.peak_bytes or 0, used_bytes)
                await asyncio.sleep(_EVERY_S)
        except pynvml.NVMLError:
            return  # it can't be measured here
        finally:
            if self._own is not None:
                self._own.close()

    def _used(self) -> int | None:
        """Bytes that the group holds on all of its devices; None where none of its processes is seen."""
        held = [
            size
            for uuid in self._uuids
            for pid, size in self._nvml.used(uuid).items()
            if self._belongs(pid, self._group)
        ]
        return sum(held) if held else None
