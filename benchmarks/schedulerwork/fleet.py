"""Machines of more than fifty shapes, as large clusters have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from gpulayer.protocol.messages import Hello
from gpulayer.protocol.types import PROTOCOL_VERSION, Device, Framework, Inventory, Link

GB = 10**9
GIB = 2**30
TEAMS = ("vision", "speech", "search", "robots")
_ZONES = ("a", "b", "c")
_GROUP = 16  # machines that share a fast network


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What machines are alike in."""

    slots: int
    cores: int
    ram_bytes: int
    device: str = ""  # its name
    vram_bytes: int = 0
    capability: str = ""
    count: int = 0
    link: str = "PHB"
    kind: str = "cuda"


_CPU = tuple(Kind(slots=cores // 4, cores=cores, ram_bytes=cores * 4 * GIB) for cores in (16, 32, 64, 96))
_GPU = (
    Kind(slots=8, cores=16, ram_bytes=64 * GIB, device="NVIDIA T4", vram_bytes=16 * GB, capability="7.5", count=1),
    Kind(slots=16, cores=32, ram_bytes=128 * GIB, device="NVIDIA T4", vram_bytes=16 * GB, capability="7.5", count=4),
    Kind(slots=8, cores=32, ram_bytes=128 * GIB, device="NVIDIA L4", vram_bytes=24 * GB, capability="8.9", count=2),
    Kind(slots=16, cores=48, ram_bytes=192 * GIB, device="NVIDIA A10G", vram_bytes=24 * GB, capability="8.6", count=4),
    Kind(
        slots=16, cores=96, ram_bytes=512 * GIB, device="NVIDIA A100-SXM4-40GB", vram_bytes=40 * GB, capability="8.0",
        count=8, link="NV",
    ),
    Kind(
        slots=16, cores=96, ram_bytes=1024 * GIB, device="NVIDIA A100-SXM4-80GB", vram_bytes=80 * GB,
        capability="8.0", count=8, link="NV",
    ),
    Kind(
        slots=24, cores=192, ram_bytes=2048 * GIB, device="NVIDIA H100 80GB HBM3", vram_bytes=80 * GB,
        capability="9.0", count=8, link="NV",
    ),
    Kind(slots=4, cores=10, ram_bytes=32 * GIB, device="Apple M2 Pro", count=1, kind="mps"),
)  # fmt: skip
_BUILDS = (("2.4.1+cu121", "12.1", "3.10.14"), ("2.6.0+cu124", "12.4", "3.11.9"), ("2.9.1+cu130", "13.0", "3.12.3"))


def inventories(count: int) -> Iterator[tuple[int, Inventory]]:
    """So many machines: the slots and the inventory of each. Their shapes take turns."""
    kinds = (*_CPU, *_GPU)
    for n in range(count):
        kind = kinds[n % len(kinds)]
        turn = n // len(kinds)
        yield kind.slots, _inventory(n, kind, turn % len(_BUILDS), TEAMS[turn // len(_BUILDS) % len(TEAMS)])


def _inventory(n: int, kind: Kind, build: int, team: str) -> Inventory:
    version, cuda, python = _BUILDS[build]
    devices = tuple(_device(n, at, kind) for at in range(kind.count))
    uuids = tuple(device.uuid for device in devices)
    torch = Framework(
        name="torch", version=version, built_for=cuda, works=("cpu", kind.kind) if uuids else ("cpu",), devices=uuids
    )
    numpyish = Framework(name="jax", version="0.8.0", works=("cpu",), devices=())
    return Inventory(
        host=f"machine-{n}",
        os="darwin" if kind.kind == "mps" else "linux",
        arch="arm64" if kind.kind == "mps" else "x86_64",
        cpu_cores=kind.cores,
        ram_bytes=kind.ram_bytes,
        python=python,
        devices=devices,
        links=_links(uuids, kind),
        frameworks=(torch, numpyish) if build else (torch,),
        cuda=cuda,
        region="r" + str(n % 2),
        zone=f"r{n % 2}-{_ZONES[n % 3]}",
        labels={"team": team},
    )


def _device(n: int, at: int, kind: Kind) -> Device:
    return Device(
        uuid=f"GPU-{n:05}-{at}",
        kind=kind.kind,
        index=at,
        name=kind.device,
        vram_bytes=kind.vram_bytes or None,
        unified=not kind.vram_bytes,
        capability=kind.capability,
        driver="580.65.06" if kind.capability else "",
        numa=at * 2 // max(1, kind.count),
    )


def _links(uuids: tuple[str, ...], kind: Kind) -> tuple[Link, ...]:
    """Cards with NVLink reach all others by it; without it the halves of a machine are apart."""
    half = max(1, len(uuids) // 2)
    return tuple(
        Link(a=a, b=b, kind=kind.link if kind.link == "NV" or at // half == to // half else "SYS", count=12)
        for (at, a), (to, b) in combinations(enumerate(uuids), 2)
    )


def hello(n: int, slots: int, inventory: Inventory) -> Hello:
    """The first word of a machine's agent."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        worker_id=f"w-{n}",
        nonce="n",
        name=inventory.host,
        version="0",
        slots=slots,
        inventory=inventory,
    )
