"""Machines as lines that read well in plain text: what each is and has, how it fares, and who holds what of it."""

from __future__ import annotations

from collections.abc import Sequence

from gpulayer.protocol.types import Device, DeviceSample, Framework, Holder, Inventory, Sample, WorkerView
from gpulayer.tables import Column, Row, flowing, table, wrapped
from gpulayer.words import ago, device_name, of_size, percent, roughly, size, whole_size

_WIDTH = 100
_MARGIN = "    "
_BELOW = "      "
_NO_SAMPLE = Sample()


def machine_lines(workers: Sequence[WorkerView], now: float, width: int = _WIDTH) -> list[str]:
    """Every machine: its name and room, devices and their holders, frameworks, CPU, RAM, disk, network, problems."""
    lines: list[str] = []
    for worker in workers:
        lines += _machine(worker, now, width)
    return lines


def _machine(worker: WorkerView, now: float, width: int) -> list[str]:
    inventory, sample = worker.inventory, worker.sample or _NO_SAMPLE
    lines = flowing(_headline(worker, now), width, below=_MARGIN)
    lines += [_MARGIN + line for line in _devices(worker, sample, now, width - len(_MARGIN))]
    lines += flowing(frameworks_line(inventory), width, _MARGIN, _BELOW)
    lines += flowing(
        host_line(inventory, sample, worker.ram_declared_bytes, worker.cpu_declared), width, _MARGIN, _BELOW
    )
    for problem in (*inventory.problems, *framework_problems(inventory), *worker.notes):
        lines += wrapped(f"! {problem}", width, _MARGIN, _BELOW)
    return lines


def _headline(worker: WorkerView, now: float) -> str:
    inventory = worker.inventory
    name = f"{worker.name} (this machine)" if worker.local else worker.name
    if worker.connected:
        room = worker.full or f"{worker.slots_free} of {worker.slots} slot{'s' if worker.slots != 1 else ''} free"
    else:
        last = f", last heard of {ago(now - worker.last_seen_at)}" if worker.last_seen_at else ""
        room = f"out of reach{last}; jobs may go on there"
    sessions = f"{worker.sessions} session{'s' if worker.sessions != 1 else ''}" if worker.sessions else ""
    facts = (room, sessions, place(inventory), *(f"{key}={value}" for key, value in sorted(inventory.labels.items())))
    return f"{'●' if worker.connected else '◌'} {name} · {' · '.join(filter(None, facts))}"


def place(inventory: Inventory) -> str:
    """'eu-west, eu-west-1b'."""
    return ", ".join(filter(None, (inventory.region, inventory.zone)))


# ---------------------------------------------------------------- devices


def _devices(worker: WorkerView, sample: Sample, now: float, width: int) -> list[str]:
    inventory = worker.inventory
    if not inventory.devices:
        return []
    fares = {each.uuid: each for each in sample.devices}
    rows: list[Row] = []
    for device in inventory.devices:
        fare = fares.get(device.uuid, DeviceSample(uuid=device.uuid))
        first, *more = _held(device, fare, worker, now) or [""]
        below = (f"! {device_name(device)} takes no work: {device.sick}",) if device.sick else ()
        cells = (device_name(device), *device_figures(device, fare, inventory), first)
        rows += [Row(cells=cells, below=() if more else below)]
        rows += [Row(cells=("", "", "", "", each), below=below if each is more[-1] else ()) for each in more]
    columns = (Column(cuts=True), Column(right=True), Column(right=True), Column(right=True), Column(cuts=True))
    return table(columns, rows, width)


def device_figures(device: Device, fare: DeviceSample, inventory: Inventory) -> tuple[str, str, str]:
    """How busy it is, its memory, its temperature; '' for what is not known."""
    total = inventory.ram_bytes if device.unified else device.vram_bytes
    memory = of_size(fare.used_bytes, total) + (" unified" if device.unified else "")
    warm = "" if fare.temperature_c is None else f"{fare.temperature_c:.0f} °C"
    return ("" if fare.utilisation is None else percent(fare.utilisation), memory, warm)


def _held(device: Device, fare: DeviceSample, worker: WorkerView, now: float) -> list[str]:
    """Who holds a device: jobs, sessions, processes of others; or that it is sick, or free; [] for not known."""
    sick = ["sick"] if device.sick else []
    held = [holder_words(each, now) for each in worker.holders if device.uuid in each.devices]
    held += foreign(fare)
    if sick or held:
        return sick + held
    if not worker.connected:
        return []
    return ["free" if device.uuid in worker.devices_free else "in use"]


def holder_words(holder: Holder, now: float) -> str:
    """'train.py by ana, 12 min', 'session train by ana, 8 GB of it'."""
    what = (holder.name or holder.job) if holder.job else f"session {holder.session}"
    who = f" by {holder.owner}" if holder.owner else ""
    share = f", {whole_size(holder.vram_bytes)} of it" if holder.vram_bytes else ""
    long = f", {roughly(now - holder.since)}" if holder.since else ""
    return f"{what}{who}{share}{long}"


def foreign(fare: DeviceSample) -> list[str]:
    """Processes on a device that are none of ours: 'python pid 4121 by alice, 6.2 GB'."""
    return [
        f"{each.name or 'process'} pid {each.pid}"
        + (f" by {each.user}" if each.user else "")
        + (f", {size(each.bytes)}" if each.bytes else "")
        for each in fare.foreign
    ]


# ---------------------------------------------------------------- frameworks


def frameworks_line(inventory: Inventory) -> str:
    """'torch 2.13.0 cuda ✓ · jax 0.5.3 – CPU only · mlx, cupy – not installed'; '' where nothing was looked for."""
    kinds = {device.kind for device in inventory.devices}
    there = [_framework(each, kinds) for each in inventory.frameworks if each.version]
    lacking = [each.name for each in inventory.frameworks if not each.version]
    parts = [*there, *([f"{', '.join(lacking)} – not installed"] if lacking else [])]
    if inventory.probing:
        parts.append(f"{', '.join(inventory.probing)} … being tried out")
    return " · ".join(parts)


def _framework(framework: Framework, kinds: set[str]) -> str:
    name = f"{framework.name} {framework.version.partition('+')[0]}"
    usable = [kind for kind in framework.works if kind in kinds]
    if usable:
        return f"{name} {', '.join(usable)} ✓"
    if "cpu" in framework.works:
        return f"{name} – CPU only" if kinds else f"{name} cpu ✓"
    return f"{name} ✗"


def framework_problems(inventory: Inventory) -> list[str]:
    """Why a framework can't use what is there: 'torch on cuda: CUDA driver version is insufficient …'."""
    kinds = {"", "cpu", *(device.kind for device in inventory.devices)}
    return [
        f"{framework.name}{f' on {kind}' if kind else ''}: {problem}"
        for framework in inventory.frameworks
        if framework.version
        for kind, problem in framework.problems.items()
        if kind in kinds
    ]


# ---------------------------------------------------------------- the machine around them


def host_line(inventory: Inventory, sample: Sample, ram_declared: int = 0, cpu_declared: float = 0.0) -> str:
    """'CPU 12% of 16 cores · RAM 31.2 of 64 GB · disk 812 GB free · net ↓ 1.2 MB/s ↑ 40 kB/s'."""
    cores = f"{inventory.cpu_cores} core{'s' if inventory.cpu_cores != 1 else ''}"
    busy = f"CPU {percent(sample.cpu)} of {cores}" if sample.cpu is not None else cores
    ram = f"RAM {of_size(sample.ram_used_bytes, inventory.ram_bytes)}"
    if cpu_declared:
        busy += f" ({cpu_declared:g} declared)"
    if ram_declared:
        ram += f" ({whole_size(ram_declared)} declared)"
    disk = f"disk {whole_size(sample.disk_free_bytes)} free" if sample.disk_free_bytes is not None else ""
    flows = ((sample.received_bps, "↓"), (sample.sent_bps, "↑"))
    net = " ".join(f"{sign} {size(flow)}/s" for flow, sign in flows if flow is not None)
    return " · ".join(filter(None, (busy, ram, disk, f"net {net}" if net else "")))
