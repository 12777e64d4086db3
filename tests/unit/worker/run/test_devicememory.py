"""Peak device memory of a command, with an NVML that is made up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import pynvml
import pytest

from gpulayer.protocol.types import Device
from gpulayer_worker.run import devicememory
from gpulayer_worker.run.devicememory import DeviceMemory, in_group

DEVICES = (Device(uuid="GPU-1", kind="cuda", index=0), Device(uuid="GPU-2", kind="cuda", index=1))


class FakeNvml:
    """Answers with one measurement after the other; says when all were taken."""

    def __init__(self, *measured: Mapping[str, Mapping[int, int]]):
        self._measured = list(measured)
        self.asked: list[str] = []

    def used(self, uuid: str) -> Mapping[int, int]:
        self.asked.append(uuid)
        if not self._measured:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._measured[0].get(uuid, {})

    def used_up(self) -> None:
        self._measured.pop(0)


def ours(pid: int, group: str) -> bool:
    return group == "a-1" and pid < 100


async def measured(nvml: FakeNvml, devices: tuple[Device, ...], monkeypatch: pytest.MonkeyPatch) -> DeviceMemory:
    """All measurements, without the pauses between them."""
    memory = DeviceMemory("a-1", devices, nvml, ours)

    async def next_one(_: float) -> None:
        nvml.used_up()

    monkeypatch.setattr(devicememory.asyncio, "sleep", next_one)
    memory.start()
    task = memory._task
    if task is not None:
        await task
    memory.stop()
    return memory


def test_the_peak_is_of_all_its_processes_on_all_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(
        {"GPU-1": {}, "GPU-2": {}},
        {"GPU-1": {10: 5, 11: 6, 200: 1000}, "GPU-2": {10: 7}},
        {"GPU-1": {10: 4}, "GPU-2": {}},
    )
    memory = asyncio.run(measured(nvml, DEVICES, monkeypatch))
    assert memory.peak_bytes == 18


def test_where_it_cannot_be_measured_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(measured(FakeNvml(), DEVICES, monkeypatch)).peak_bytes is None


def test_without_a_cuda_device_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml({})
    device = Device(uuid="apple", kind="mps", index=0)
    assert asyncio.run(measured(nvml, (device,), monkeypatch)).peak_bytes is None
    assert nvml.asked == []


def test_a_process_belongs_to_the_group_that_its_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_group(os.getpid(), "a-1")
    assert not in_group(2**22 + 1, "a-1")
