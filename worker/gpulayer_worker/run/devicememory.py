"""How much device memory a command held at its peak: NVML is asked once a second, only while it holds devices."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Device
from gpulayer_worker.inventory.nvmlguard import NvmlTrouble
from gpulayer_worker.inventory.sampling import DeviceUse
from gpulayer_worker.keeper.spawning import GROUP_VARIABLE
from gpulayer_worker.run.services import Services

log = logging.getLogger("gpulayer.worker")

_EVERY_S = 1.0
_TROUBLES = 3  # one after the other: then it is given up

Ask: TypeAlias = Callable[[str], Awaitable[DeviceUse]]


def in_group(pid: int, group: str) -> bool | None:
    """Whether a process was started by a group: its environment says so. None: it can't be seen from here."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return os.fsencode(f"{GROUP_VARIABLE}={group}") in file.read().split(b"\0")
    except PermissionError:  # another user's, so none of ours
        return False
    except OSError:  # it ended, or its number is one of another pid namespace
        return None


def measuring(services: Services, assign: Assign, group: str) -> DeviceMemory | None:
    """What measures an attempt whose processes are a group's, once it is started; None for one without devices."""
    if not assign.devices:
        return None
    shared = assign.spec.requirements.vram_share_bytes is not None
    return DeviceMemory(group, assign.devices, services.machine.use, shared=shared)


class DeviceMemory:
    """Measures one attempt from `start` to `stop`.

    What counts is what NVML says of the attempt's own processes. Where they can't be told, as in a container that does
    not see NVML's process ids, and the attempt has its devices for itself, it is what the devices hold beyond what they
    held at its start.

    Arguments:
        group: the attempt's group of processes.
        devices: those that it holds, cards or MIG slices; only NVIDIA's can be asked.
        ask: gives a device's use by its UUID, or raises `NvmlTrouble`.
        shared: others may be on the same device.
        belongs: whether a process is of a group; None where that can't be known.
    """

    def __init__(
        self,
        group: str,
        devices: Iterable[Device],
        ask: Ask,
        *,
        shared: bool = False,
        belongs: Callable[[int, str], bool | None] = in_group,
    ):
        self._group = group
        self._uuids = [device.uuid for device in devices if device.kind == "cuda"]
        self._ask = ask
        self._shared = shared
        self._belongs = belongs
        self._task: asyncio.Task[None] | None = None
        self._before_bytes: int | None = None  # on all of the devices, at the first look
        self._seen_own = False
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
        troubles = 0
        while troubles < _TROUBLES:
            try:
                held = self._held([await self._ask(uuid) for uuid in self._uuids])
                troubles = 0
            except NvmlTrouble as error:
                log.info("device memory of %s can't be measured: %s", self._group, error)
                held, troubles = None, troubles + 1
            if held is not None:
                self.peak_bytes = max(self.peak_bytes or 0, held)
            await asyncio.sleep(_EVERY_S)

    def _held(self, uses: list[DeviceUse]) -> int | None:
        """Bytes that the group holds on all of its devices; None where that is not known."""
        own, others = 0, False
        for pid, size in (process for use in uses for process in use.processes):
            belongs = self._belongs(pid, self._group)
            others = others or belongs is False
            if belongs and size is not None:
                self._seen_own = True
                own += size
        if self._seen_own:
            return own
        return None if self._shared or others else self._beyond(uses)

    def _beyond(self, uses: list[DeviceUse]) -> int | None:
        sizes = [use.used_bytes for use in uses]
        known = [size for size in sizes if size is not None]
        if len(known) != len(sizes):
            return None
        if self._before_bytes is None:
            self._before_bytes = sum(known)
        return max(0, sum(known) - self._before_bytes) or None
