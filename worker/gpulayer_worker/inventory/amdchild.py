"""The process that asks AMD's library, `amdsmi`: one answer, then it ends. See `nvmlguard` for why a process."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from gpulayer_worker.inventory.nvml import pci_id


def devices_present(root: Path = Path("/")) -> bool:
    """Whether the kernel's driver for AMD's devices shows any that can compute."""
    for properties in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        try:
            words = properties.read_text(errors="replace").split()
        except OSError:
            continue
        counts = dict(zip(words[::2], words[1::2], strict=False))
        if counts.get("simd_count", "0") != "0":
            return True
    return (root / "dev/kfd").exists() and not (root / "sys/class/kfd/kfd/topology/nodes").exists()


def cards(amdsmi: Any) -> list[dict[str, Any]]:
    """The devices that the library knows. Raises its errors."""
    amdsmi.amdsmi_init()
    try:
        return [_card(amdsmi, handle, index) for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())]
    finally:
        amdsmi.amdsmi_shut_down()


def _card(amdsmi: Any, handle: Any, index: int) -> dict[str, Any]:
    asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
    serial = str(asic.get("asic_serial", "")).lower().removeprefix("0x").rjust(16, "0")
    total = amdsmi.amdsmi_get_gpu_memory_total(handle, amdsmi.AmdSmiMemoryType.VRAM)
    driver = amdsmi.amdsmi_get_gpu_driver_info(handle)
    return {
        "uuid": f"GPU-{serial}",  # as ROCm's own tools and ROCR_VISIBLE_DEVICES write it
        "index": index,
        "name": str(asic.get("market_name", "")),
        "vram_bytes": int(total) or None,
        "driver": str(driver.get("driver_version", "")),
        "pci": pci_id(str(amdsmi.amdsmi_get_gpu_device_bdf(handle))),
    }


def main() -> int:
    """Exit code 0: it was said what is there, or why that can't be known."""
    _say({"present": devices_present()})
    for _ in sys.stdin:
        try:
            amdsmi = importlib.import_module("amdsmi")  # it comes with ROCm, and with no registry's package of ours
        except (ImportError, OSError, KeyError) as error:  # its import loads the library, as ROCM_PATH names it
            _say({"failed": f"{error}", "over": True})
            return 0
        try:
            _say({"answer": {"cards": cards(amdsmi)}})
        except Exception as error:  # noqa: BLE001 - its errors have no base that all its versions share
            _say({"failed": f"{type(error).__name__}: {error}"})
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
