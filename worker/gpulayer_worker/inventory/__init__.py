"""What this machine is and has."""

from __future__ import annotations

import os
import platform
import sys

import psutil

from gpulayer.protocol.types import Inventory
from gpulayer_worker.inventory.nvidia import nvidia_devices


def usable_cores() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def take_inventory() -> Inventory:
    """Look at the machine. What fails is reported as such, never as 'nothing there'."""
    devices, problems = nvidia_devices(os.environ)
    return Inventory(
        host=platform.node(),
        os=sys.platform,
        arch=platform.machine(),
        cpu_cores=usable_cores(),
        ram_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        devices=devices,
        problems=problems,
    )


__all__ = ["take_inventory", "usable_cores"]
