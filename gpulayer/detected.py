"""What was found on this machine, as lines that read well in plain text: `gpulayer resources detect`."""

from __future__ import annotations

from gpulayer.machines import device_figures, foreign, host_line, place
from gpulayer.placement import FRAMEWORKS
from gpulayer.protocol.types import Device, DeviceSample, Framework, Inventory, Link, Sample
from gpulayer.tables import Column, Row, flowing, table, wrapped
from gpulayer.words import device_name

_WIDTH = 100
_MOST_LINKED = 16  # devices: a larger matrix is wider than a terminal

LINKS = {
    "NV": "NVLink, as many as the number says",
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches",
    "PHB": "through the host's PCIe bridge",
    "NODE": "between bridges of one NUMA node",
    "SYS": "between NUMA nodes",
    "": "not known",
}


def detected_lines(inventory: Inventory, sample: Sample, width: int = _WIDTH) -> list[str]:
    """The machine, its devices and how they are linked, the frameworks that work, and what does not and why."""
    drivers = dict.fromkeys(device.driver for device in inventory.devices if device.driver)
    cuda = f" (CUDA {inventory.cuda} at most)" if inventory.cuda else ""
    facts = (
        f"{inventory.os} {inventory.arch}",
        f"Python {inventory.python} for jobs" if inventory.python else "",
        f"driver {', '.join(drivers)}{cuda}" if drivers else "",
        place(inventory),
        *(f"{key}={value}" for key, value in sorted(inventory.labels.items())),
    )
    head = f"{inventory.host} · {' · '.join(filter(None, facts))}"
    lines = [*flowing(head, width, below="  "), *flowing(host_line(inventory, sample), width, "  ", "    ")]
    for title, body in (
        ("devices", _devices(inventory, sample, width - 2)),
        ("links", _links(inventory)),
        ("frameworks", _frameworks(inventory, width - 2)),
        ("problems", _problems(inventory, width - 2)),
    ):
        if body:
            lines += ["", title, *(f"  {line}" for line in body)]
    return lines


# ---------------------------------------------------------------- devices


def _devices(inventory: Inventory, sample: Sample, width: int) -> list[str]:
    if not inventory.devices:
        return ["none that jobs could use" if inventory.problems else "none: jobs run on the CPU"]
    fares = {each.uuid: each for each in sample.devices}
    rows = [
        _device(device, fares.get(device.uuid, DeviceSample(uuid=device.uuid)), inventory)
        for device in inventory.devices
    ]
    columns = (Column(), Column(right=True), Column(right=True), Column(right=True), Column(), Column(cuts=True))
    return table(columns, rows, width)


def _device(device: Device, fare: DeviceSample, inventory: Inventory) -> Row:
    facts = (
        f"capability {device.capability}" if device.capability else "",
        f"NUMA {device.numa}" if device.numa is not None else "",
        "slice" if device.parent else "",
    )
    below = [f"! sick: {device.sick}"] if device.sick else []
    below += [f"! held by {each}" for each in foreign(fare)]
    return Row(
        cells=(
            device_name(device),
            *device_figures(device, fare, inventory),
            " · ".join(filter(None, facts)),
            device.uuid,
        ),
        below=tuple(below),
    )


def _links(inventory: Inventory) -> list[str]:
    """How the devices reach each other, as a small matrix, and what its letters mean."""
    devices = [device for device in inventory.devices if not device.parent]
    if len(devices) < 2 or not inventory.links or len(devices) > _MOST_LINKED:
        return []
    known = {frozenset((link.a, link.b)): link for link in inventory.links}
    names = [f"{device.kind}:{device.index}" for device in devices]
    rows = [
        Row(cells=(name, *("–" if a is b else _link(known.get(frozenset((a.uuid, b.uuid)))) for b in devices)))
        for name, a in zip(names, devices, strict=True)
    ]
    columns = (Column(), *(Column(title=name, right=True) for name in names))
    kinds = {link.kind for link in inventory.links}
    meant = "; ".join(f"{kind or '?'}: {text}" for kind, text in LINKS.items() if kind in kinds)
    return [*table(columns, rows), *wrapped(meant, _WIDTH - 2)]


def _link(link: Link | None) -> str:
    if link is None or not link.kind:
        return "?"
    return f"{link.kind}{link.count}" if link.kind == "NV" else link.kind


# ---------------------------------------------------------------- frameworks and problems


def _frameworks(inventory: Inventory, width: int) -> list[str]:
    rows = [_framework(each, inventory) for each in inventory.frameworks if each.version or each.problems]
    rows += [Row(cells=(name, "", "being tried out")) for name in inventory.probing]
    there = {row.cells[0] for row in rows}
    lacking = [name for name in FRAMEWORKS if name not in there]
    lines = table((Column(), Column(cuts=True), Column()), rows, width) if rows else []
    return [*lines, f"not installed: {', '.join(lacking)}"] if lacking else lines


def _framework(framework: Framework, inventory: Inventory) -> Row:
    """Where it works, and below that what it can't use and why."""
    if not framework.version:
        return Row(cells=(framework.name, "–", "not installed"), below=_whys(framework))
    there = dict.fromkeys(device.kind for device in inventory.devices)
    works = [f"{kind} ✓" for kind in framework.works]
    fails = [f"{kind} ✗" for kind in there if kind not in framework.works]
    built = f"built for CUDA {framework.built_for}" if framework.built_for[:1].isdigit() else ""
    if framework.built_for == "cpu":
        built = "a build for the CPU alone"
    said = "  ".join([*works, *fails]) or "✗ does not work"
    return Row(
        cells=(framework.name, framework.version, f"{said}{f'  ({built})' if built else ''}"), below=_whys(framework)
    )


def _whys(framework: Framework) -> tuple[str, ...]:
    return tuple(f"! {f'{kind}: ' if kind else ''}{problem}" for kind, problem in framework.problems.items() if problem)


def _problems(inventory: Inventory, width: int) -> list[str]:
    return [line for problem in inventory.problems for line in wrapped(problem, width, "! ", "  ")]
