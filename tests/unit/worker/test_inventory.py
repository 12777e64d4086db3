"""What the machine is and has."""

from __future__ import annotations

import os

import pynvml
import pytest

from gpulayer.protocol.types import Device
from gpulayer_worker.inventory import nvidia, take_inventory, usable_cores
from gpulayer_worker.inventory.nvidia import masked, nvidia_devices

GPUS = [Device(uuid=f"GPU-{letter}{n}", kind="cuda", index=n) for n, letter in enumerate("abb")]


def test_the_machine_is_described() -> None:
    inventory = take_inventory()
    assert inventory.os in ("linux", "darwin")
    assert 1 <= inventory.cpu_cores <= (os.cpu_count() or 1)
    assert inventory.ram_bytes > 1 << 28
    assert inventory.host


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_only_cores_that_we_may_use_count() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-a", [0]),
        ("GPU-b1,GPU-b2", [1, 2]),
        ("GPU-b", []),  # names two
        ("0,7,1", [0]),  # up to the first that names nothing, as CUDA does
        ("-1", []),
        ("NoDevFiles", []),
        ("0,0", [0]),
    ],
)
def test_a_mask_shows_what_cuda_would_show(mask: str | None, indices: list[int]) -> None:
    assert [device.index for device in masked(GPUS, mask)] == indices


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_driver_that_fails_beside_devices_is_not_taken_for_no_devices(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.setattr(nvidia, "device_files", lambda: True)
    devices, [problem] = nvidia_devices({})
    assert devices == ()
    assert problem.startswith("NVIDIA devices present, NVML failed: ")
    monkeypatch.setattr(nvidia, "device_files", lambda: False)
    assert nvidia_devices({}) == ((), ())


def test_devices_are_known_by_uuid_with_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        total = 24 << 30

    def memory(handle: int) -> Memory:
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return Memory()

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}".encode())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: "RTX")
    devices, problems = nvidia_devices({"CUDA_VISIBLE_DEVICES": "1,0"})
    assert problems == ()
    assert devices == (
        Device(uuid="GPU-1", kind="cuda", index=1, name="RTX", vram_bytes=None),
        Device(uuid="GPU-0", kind="cuda", index=0, name="RTX", vram_bytes=24 << 30),
    )
