"""Looking at a machine, vendor by vendor. What fails is reported as such, never as 'nothing there'."""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpulayer.protocol.types import Device, Inventory, Link
from gpulayer_worker.inventory import topo
from gpulayer_worker.inventory.limits import Limits, usable_cores
from gpulayer_worker.inventory.nvidia import Found, Nvidia, found
from gpulayer_worker.inventory.nvmlguard import NvmlGuard

log = logging.getLogger("gpulayer.worker")

_TOPO_DEADLINE_S = 10.0


def host() -> Inventory:
    """The machine without its devices, and without what its interpreter for jobs has."""
    return Inventory(
        host=platform.node(),
        os=sys.platform,
        arch=platform.machine(),
        cpu_cores=usable_cores(),
        ram_bytes=Limits().ram_bytes(),
        python=platform.python_version(),
    )


async def nvidia_devices(
    guard: NvmlGuard, environ: Mapping[str, str], deadline_s: float, root: Path = Path("/")
) -> Found:
    """NVIDIA's devices and their links, by NVML, and what NVML does not tell of links by `nvidia-smi topo -m`.

    Raises `NvmlTrouble`.
    """
    answer = await guard.ask({"ask": "machine"}, deadline_s)
    nvidia = msgspec.convert(answer, Nvidia)
    here = found(nvidia, environ, root)
    whole = [device for device in here.devices if not device.parent]
    if len(whole) > 1 and _links_are_missing(here, nvidia):
        uuids = [""] * (max(card.index for card in nvidia.cards) + 1)
        for device in whole:
            uuids[device.index] = device.uuid
        here = _with_topology(here, topo.parse(await _smi_topology(), uuids))
    return here


def _links_are_missing(here: Found, nvidia: Nvidia) -> bool:
    """Whether nothing is known of a pair, or a card has NVLinks of which NVML does not tell where they end."""
    if len(here.links) < len(here.devices) * (len(here.devices) - 1) // 2:
        return True
    ours = {device.uuid for device in here.devices}
    bonded = {uuid for link in here.links if link.kind == "NV" for uuid in (link.a, link.b)}
    return any(card.nvlinks and card.uuid in ours - bonded for card in nvidia.cards)


def _with_topology(here: Found, topology: topo.Topology) -> Found:
    """What NVML told counts, but where the other knows of NVLinks; what it did not tell is taken from there."""
    links: dict[tuple[str, str], Link] = {(link.a, link.b): link for link in here.links}
    for link in topology.links:
        known = links.get((link.a, link.b))
        if known is None or (link.kind == "NV" and known.kind != "NV"):
            links[link.a, link.b] = link
    return msgspec.structs.replace(
        here,
        devices=tuple(_seated(device, topology) for device in here.devices),
        links=tuple(links[pair] for pair in sorted(links)),
    )


def _seated(device: Device, topology: topo.Topology) -> Device:
    seat = topology.seats.get(device.uuid)
    if device.numa is not None or seat is None:
        return device
    return msgspec.structs.replace(device, numa=seat.numa)


async def _smi_topology() -> str:
    """What `nvidia-smi topo -m` prints; '' where it is not there, or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        child = await asyncio.create_subprocess_exec(
            program,
            "topo",
            "-m",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        log.warning("%s can't be started, so that links stay unknown: %s", program, error)
        return ""
    try:
        said, _ = await asyncio.wait_for(child.communicate(), _TOPO_DEADLINE_S)
    except asyncio.TimeoutError:
        log.warning("nvidia-smi topo -m did not answer within %g s: links stay unknown", _TOPO_DEADLINE_S)
        return ""
    finally:
        if child.returncode is None:  # also where the agent ends meanwhile
            child.kill()
    return said.decode(errors="replace")
