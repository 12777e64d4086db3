"""What NVIDIA's driver means by its Xid numbers: which speak of the device, and which of the program.

From NVIDIA's 'XID Errors' (GPU deployment and management documentation). A number that is not in the table speaks of a
program: a page fault (31), an exception of its own (13), what follows of it (43, 45).
"""

from __future__ import annotations

DEVICE_XIDS = {
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "ECC row remapping or page retirement",
    64: "ECC row remapping or page retirement failed",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP error",
    121: "C2C link error",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    144: "NVLink error",
    149: "NVLink error",
    154: "the driver asks for a reset",
}


def device_xid(number: int) -> str:
    """'Xid 79: fallen off the bus', or '' for one that speaks of a program."""
    meaning = DEVICE_XIDS.get(number, "")
    return f"Xid {number}: {meaning}" if meaning else ""
