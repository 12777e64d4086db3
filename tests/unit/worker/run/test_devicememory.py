"""Peak device memory of a command, with a driver that is made up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import pytest

from gpulayer.protocol.types import Device
from gpulayer_worker.inventory.nvmlguard import NvmlTrouble
from gpulayer_worker.inventory.sampling import DeviceUse
from gpulayer_worker.run import devicememory
from gpulayer_worker.run.devicememory import DeviceMemory, in_group

DEVICES = (Device(uuid="GPU-1", kind="cuda", index=0), Device(uuid="GPU-2", kind="cuda", index=1))
SLICE = (Device(uuid="MIG-1", kind="cuda", index=0, parent="GPU-1"),)

Processes = Mapping[int, "int | None"]


def use(uuid: str, processes: Processes, used_bytes: int | None = None) -> DeviceUse:
    return DeviceUse(uuid=uuid, used_bytes=used_bytes, processes=tuple(processes.items()))


class Driver:
    """Answers with one measurement after the other, then with trouble."""

    def __init__(self, *measured: Mapping[str, DeviceUse] | None):
        self._measured = list(measured)
        self.asked: list[str] = []

    async def ask(self, uuid: str) -> DeviceUse:
        self.asked.append(uuid)
        now = self._measured[0] if self._measured else None
        if now is None:
            raise NvmlTrouble("no answer")
        return now.get(uuid, DeviceUse(uuid=uuid))

    def next(self) -> None:
        if self._measured:
            self._measured.pop(0)


def ours(pid: int, group: str) -> bool | None:
    return None if pid >= 1000 else group == "a-1" and pid < 100


def peak(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, devices: tuple[Device, ...] = DEVICES, *, shared: bool = False
) -> int | None:
    """All measurements, without the pauses between them."""

    async def measured() -> int | None:
        memory = DeviceMemory("a-1", devices, driver.ask, shared=shared, belongs=ours)

        async def next_one(_: float) -> None:
            driver.next()

        with monkeypatch.context() as patch:
            patch.setattr(devicememory.asyncio, "sleep", next_one)
            memory.start()
            if memory._task is not None:
                await memory._task
        memory.stop()
        return memory.peak_bytes

    return asyncio.run(measured())


def test_the_peak_is_of_all_its_processes_on_all_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(
        {"GPU-1": use("GPU-1", {10: 5, 11: 6, 200: 1000}), "GPU-2": use("GPU-2", {10: 7})},
        {"GPU-1": use("GPU-1", {10: 4})},
    )
    assert peak(driver, monkeypatch) == 18


def test_a_moment_of_trouble_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver({"GPU-1": use("GPU-1", {10: 5})}, None, {"GPU-1": use("GPU-1", {10: 9})})
    assert peak(driver, monkeypatch) == 9


def test_where_it_cannot_be_measured_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak(Driver(), monkeypatch) is None


def test_a_slice_is_asked_by_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver({"MIG-1": use("MIG-1", {10: 3})})
    assert peak(driver, monkeypatch, SLICE) == 3
    assert set(driver.asked) == {"MIG-1"}


def test_of_a_shared_device_only_its_own_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver({"GPU-1": use("GPU-1", {10: 3, 200: 50}, 53)}, {"GPU-1": use("GPU-1", {10: 8, 200: 10}, 18)})
    assert peak(driver, monkeypatch, DEVICES[:1], shared=True) == 8


def test_processes_that_cannot_be_seen_are_told_by_what_the_device_holds_since_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = [{"GPU-1": use("GPU-1", {5000: None} if held > 4 else {}, held)} for held in (4, 24, 14)]
    assert peak(Driver(*measured), monkeypatch, DEVICES[:1]) == 20
    assert peak(Driver(*measured), monkeypatch, DEVICES[:1], shared=True) is None


def test_memory_that_nobody_tells_is_unknown_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak(Driver({"GPU-1": use("GPU-1", {10: None})}), monkeypatch, DEVICES[:1]) is None


def test_without_a_cuda_device_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver({})
    assert peak(driver, monkeypatch, (Device(uuid="apple", kind="mps", index=0),)) is None
    assert driver.asked == []


def test_a_process_belongs_to_the_group_that_its_environment_names() -> None:
    assert in_group(os.getpid(), "a-1") is False
    assert in_group(2**22 + 1, "a-1") is None
