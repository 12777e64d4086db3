"""NVIDIA devices by NVML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pynvml

from gpulayer.protocol.types import Device


def nvidia_devices(environ: Mapping[str, str]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The devices that this process may use, and what went wrong on the way.

    CUDA_VISIBLE_DEVICES of the agent itself is honoured: it was set to keep us off the others.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), ((f"NVIDIA devices present, NVML failed: {error}",) if device_files() else ())
    try:
        found = [_device(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return (), (f"NVIDIA devices present, NVML failed: {error}",)
    finally:
        pynvml.nvmlShutdown()
    return masked(found, environ.get("CUDA_VISIBLE_DEVICES")), ()


def device_files() -> bool:
    """Whether the kernel shows an NVIDIA device, whatever its libraries say."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        vram_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        vram_bytes = None  # unified memory
    return Device(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        kind="cuda",
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        vram_bytes=vram_bytes,
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def masked(devices: Sequence[Device], mask: str | None) -> tuple[Device, ...]:
    """What CUDA itself would show under a mask: indices or UUID prefixes, up to the first that names nothing."""
    if mask is None:
        return tuple(devices)
    chosen: list[Device] = []
    for part in (piece.strip() for piece in mask.split(",")):
        named = [d for d in devices if (part.isdigit() and d.index == int(part)) or (part and d.uuid.startswith(part))]
        if len(named) != 1 or named[0] in chosen:
            break
        chosen.append(named[0])
    return tuple(chosen)
