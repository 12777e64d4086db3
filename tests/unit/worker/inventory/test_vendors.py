"""AMD's and Apple's devices."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import Device
from gpulayer_worker.inventory import apple
from gpulayer_worker.inventory.amd import amd_devices
from gpulayer_worker.inventory.amdchild import cards, devices_present
from gpulayer_worker.inventory.apple import apple_devices, device
from gpulayer_worker.inventory.nvidia import Found
from gpulayer_worker.inventory.nvmlguard import NvmlGuard

REGISTRY = '"IOPlatformSerialNumber" = "C02"\n  "IOPlatformUUID" = "A1B2C3D4-0000-1111-2222-333344445555"\n'

AMDSMI = """
class AmdSmiMemoryType:
    VRAM = 0

def amdsmi_init(): ...
def amdsmi_shut_down(): ...
def amdsmi_get_processor_handles(): return [0, 1]
def amdsmi_get_gpu_asic_info(handle): return {"market_name": "AMD Instinct MI300X", "asic_serial": f"0xAB{handle}"}
def amdsmi_get_gpu_memory_total(handle, kind): return 192 << 30
def amdsmi_get_gpu_driver_info(handle): return {"driver_version": "6.8.5"}
def amdsmi_get_gpu_device_bdf(handle): return f"0000:{handle}c:00.0"
"""


def amd(present: bool, environ: dict[str, str]) -> Found:
    return asyncio.run(amd_devices(present, environ, Path("/nowhere")))


@pytest.fixture
def amdsmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amdsmi.py").write_text(AMDSMI)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_amd_is_asked_in_a_child(amdsmi: None) -> None:
    here = amd(True, {})
    assert here.problems == ()
    assert [each.uuid for each in here.devices] == ["GPU-0000000000000ab0", "GPU-0000000000000ab1"]
    first = here.devices[0]
    assert (first.kind, first.name, first.vram_bytes, first.driver, first.pci) == (
        "rocm", "AMD Instinct MI300X", 192 << 30, "6.8.5", "0000:0c:00.0")  # fmt: skip


def test_amds_own_mask_counts(amdsmi: None) -> None:
    assert [each.index for each in amd(True, {"ROCR_VISIBLE_DEVICES": "1"}).devices] == [1]
    assert [each.index for each in amd(True, {"HIP_VISIBLE_DEVICES": "0"}).devices] == [0]


def test_amd_devices_without_the_library_are_a_problem_and_not_nothing() -> None:
    [problem] = amd(True, {}).problems
    assert problem.startswith(
        "AMD devices present, amdsmi failed: No module named 'amdsmi'; install ROCm's amdsmi for "
    )
    assert amd(False, {}) == Found()


def test_a_child_that_dies_is_a_problem_too() -> None:
    guard = NvmlGuard((sys.executable, "-c", "import sys; sys.exit(4)"))
    [problem] = asyncio.run(amd_devices(True, {}, guard=guard)).problems
    assert "ended: exit code 4" in problem


def test_amds_devices_are_present_where_the_kernel_counts_units(tmp_path: Path) -> None:
    assert not devices_present(tmp_path)
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/0"
    node.mkdir(parents=True)
    (node / "properties").write_text("cpu_cores_count 16\nsimd_count 0\n")  # the processor
    assert not devices_present(tmp_path)
    (node / "properties").write_text("cpu_cores_count 0\nsimd_count 304\n")
    assert devices_present(tmp_path)


def test_a_card_that_tells_little_is_a_card() -> None:
    def told(value: Any) -> Any:
        return lambda *_: value

    poor = SimpleNamespace(
        AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        amdsmi_init=told(None),
        amdsmi_shut_down=told(None),
        amdsmi_get_processor_handles=told([0]),
        amdsmi_get_gpu_asic_info=told({}),
        amdsmi_get_gpu_memory_total=told(0),
        amdsmi_get_gpu_driver_info=told({}),
        amdsmi_get_gpu_device_bdf=told(""),
    )
    assert cards(poor) == [
        {"uuid": "GPU-0000000000000000", "index": 0, "name": "", "vram_bytes": None, "driver": "", "pci": ""}
    ]


def test_apples_gpu_is_one_device_with_the_machines_memory() -> None:
    assert device("Apple M2 Max", REGISTRY) == Device(
        uuid="MPS-A1B2C3D4-0000-1111-2222-333344445555", kind="mps", index=0, name="Apple M2 Max", unified=True
    )


def test_only_on_apples_own_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple, "_said", lambda *argv: REGISTRY if argv[0] == "ioreg" else "Apple M1\n")
    for system, machine, count in (("darwin", "arm64", 1), ("darwin", "x86_64", 0), ("linux", "arm64", 0)):
        monkeypatch.setattr(apple.sys, "platform", system)
        monkeypatch.setattr(apple.platform, "machine", lambda machine=machine: machine)
        assert len(apple_devices()) == count


@given(st.text(), st.text())
def test_any_registry_gives_a_device(name: str, registry: str) -> None:
    assert device(name, registry).uuid.startswith("MPS-")
