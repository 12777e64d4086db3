"""What a machine is and has: devices and the links between them, frameworks that work there, and how it fares now."""

from __future__ import annotations

from gpulayer.protocol.base import Struct


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator, keyed by its UUID: a whole card, or one MIG slice of it (its parent is then not a device)."""

    uuid: str
    kind: str  # cuda, rocm, mps
    index: int  # in bus order, as the vendor's tools count; slices of one card share it
    name: str = ""
    vram_bytes: int | None = None  # None: unknown or unified
    unified: bool = False  # its memory is the machine's
    capability: str = ""  # compute capability, like '8.0'; '' unknown
    driver: str = ""  # version of the driver, like '535.104.05'
    parent: str = ""  # UUID of the card that a MIG slice is of
    pci: str = ""  # bus id
    numa: int | None = None  # the node that it is closest to
    sick: str = ""  # why it takes no work, such as 'Xid 79: fallen off the bus'; '' where it does


class Link(Struct, frozen=True, kw_only=True):
    """How two devices of a machine reach each other."""

    a: str  # UUIDs, a < b
    b: str
    kind: str  # NV, PIX, PXB, PHB, NODE, SYS; '' unknown
    count: int = 1  # bonded NVLinks


class Framework(Struct, frozen=True, kw_only=True):
    """What a real computation with a library showed in the worker's interpreter for jobs."""

    name: str  # torch, jax, cupy, mlx, tensorflow
    version: str = ""  # as installed, like '2.13.0+cpu'; '' where it is not installed
    built_for: str = ""  # of a build for a device: the version of CUDA or ROCm, like '13.0'; 'cpu' for a build for none
    works: tuple[str, ...] = ()  # the kinds, cpu among them, on which a computation gave what it should
    devices: tuple[str, ...] = ()  # UUIDs of the devices on which it did
    problems: dict[str, str] = {}  # by kind: why it can't use it, with the versions of both sides; '' key: in general


class Process(Struct, frozen=True, kw_only=True):
    """A process on a device that is none of ours."""

    pid: int
    name: str = ""
    user: str = ""
    bytes: int | None = None  # of device memory


class DeviceSample(Struct, frozen=True, kw_only=True):
    """A device at one moment; None is unknown."""

    uuid: str
    used_bytes: int | None = None
    free_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1
    temperature_c: float | None = None
    power_w: float | None = None
    foreign: tuple[Process, ...] = ()


class Sample(Struct, frozen=True, kw_only=True):
    """A machine at one moment; None is unknown."""

    cpu: float | None = None  # of the cores that count as `cpu_cores`, 0 to 1
    ram_used_bytes: int | None = None
    ram_free_bytes: int | None = None  # what a new process could have, within the limits
    disk_free_bytes: int | None = None  # where the worker's data lies
    disk_total_bytes: int | None = None
    received_bps: float | None = None  # bytes per second, all interfaces but loopback
    sent_bps: float | None = None
    devices: tuple[DeviceSample, ...] = ()


class Inventory(Struct, frozen=True, kw_only=True):
    """What a machine is and has, as its agent sees it."""

    host: str
    os: str  # linux, darwin
    arch: str
    cpu_cores: int  # within affinity and cgroup limits
    ram_bytes: int  # within cgroup limits
    python: str  # version of the interpreter for jobs
    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()  # such as 'NVIDIA devices present, NVML failed: ...'
    links: tuple[Link, ...] = ()  # none between two devices: unknown
    frameworks: tuple[Framework, ...] = ()  # those that were looked for and probed
    probing: tuple[str, ...] = ()  # names of frameworks whose probes are not through
    looking: tuple[str, ...] = ()  # kinds of devices that may be there: their maker's library has not answered yet
    cuda: str = ""  # the highest CUDA version that the driver supports, like '12.2'
    region: str = ""
    zone: str = ""
    labels: dict[str, str] = {}  # of the worker, `gpulayer.dev/network-group` among them
