"""Apple's GPU: one device, whose memory is the machine's. It can't be masked, and nobody tells who uses it."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import uuid

from gpulayer.protocol.types import Device

_DEADLINE_S = 5.0
_UUID = re.compile(r'"IOPlatformUUID"\s*=\s*"([0-9A-Fa-f-]{8,})"')


def apple_devices() -> tuple[Device, ...]:
    """The one device of a Mac with Apple's own processor; none anywhere else. Blocks for some milliseconds."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return ()
    name = _said("sysctl", "-n", "machdep.cpu.brand_string").strip()
    return (device(name, _said("ioreg", "-rd1", "-c", "IOPlatformExpertDevice")),)


def device(name: str, registry: str) -> Device:
    """The device by its name and what the registry says: the machine's UUID is the device's."""
    found = _UUID.search(registry)
    of_hardware = found[1] if found else f"{uuid.getnode():012x}"
    return Device(uuid=f"MPS-{of_hardware}", kind="mps", index=0, name=name or "Apple GPU", unified=True)


def _said(*argv: str) -> str:
    """What a program of the system prints; '' where it does not run."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_DEADLINE_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
