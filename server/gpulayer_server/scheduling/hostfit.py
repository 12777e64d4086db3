"""Whether a machine is what a job asks for beside devices and frameworks, and every reason why not."""

from __future__ import annotations

from collections.abc import Iterator

from gpulayer.protocol.types import Inventory, Reason, Requirements
from gpulayer_server.scheduling import versions
from gpulayer_server.scheduling.asked import Asked, arch_of, os_of
from gpulayer_server.scheduling.candidate import Candidate
from gpulayer_server.scheduling.figures import cores, size


def host_fits(requirements: Requirements, asks: Asked, inventory: Inventory) -> bool:
    """Whether the machine is as asked: the quick form of `host_reasons`."""
    return (
        (not asks.os or os_of(inventory.os) == asks.os)
        and (not asks.arch or arch_of(inventory.arch) == asks.arch)
        and (asks.python is None or versions.satisfies(inventory.python, asks.python))
        and (requirements.ram_bytes is None or inventory.ram_bytes >= requirements.ram_bytes)
        and (requirements.cpu_cores is None or inventory.cpu_cores >= requirements.cpu_cores)
        and all(inventory.labels.get(key) == value for key, value in asks.labels)
    )


def host_reasons(requirements: Requirements, asks: Asked, worker: Candidate) -> Iterator[Reason]:
    """Every constraint on the machine itself that it can't meet."""
    name, inventory = worker.name, worker.inventory
    if asks.os and os_of(inventory.os) != asks.os:
        text = f"needs {asks.os}, worker runs {inventory.os}"
        remedy = f"add a machine with {asks.os}, or leave out the operating system"
        yield Reason(worker=name, code="os", text=text, wanted=asks.os, found=inventory.os, remedy=remedy)
    if asks.arch and arch_of(inventory.arch) != asks.arch:
        text = f"needs {asks.arch}, worker is {inventory.arch}"
        remedy = f"add a machine with {asks.arch}, or leave out the architecture"
        yield Reason(worker=name, code="arch", text=text, wanted=asks.arch, found=inventory.arch, remedy=remedy)
    if asks.python is not None and not versions.satisfies(inventory.python, asks.python):
        wanted, has = requirements.python, inventory.python
        text = f"needs Python {wanted}, worker has {has or 'one of unknown version'}"
        remedy = f"install Python {wanted} on {name} and start its worker with it"
        yield Reason(worker=name, code="python", text=text, wanted=wanted, found=has or None, remedy=remedy)
    ram = requirements.ram_bytes
    if ram is not None and inventory.ram_bytes < ram:
        has = size(inventory.ram_bytes)
        text, remedy = f"needs {size(ram)} of memory, worker has {has}", f"ask for {has} of memory, which {name} has"
        yield Reason(worker=name, code="ram", text=text, wanted=ram, found=inventory.ram_bytes, remedy=remedy)
    cpus = requirements.cpu_cores
    if cpus is not None and inventory.cpu_cores < cpus:
        has = cores(inventory.cpu_cores)
        text, remedy = f"needs {cores(cpus)}, worker has {inventory.cpu_cores}", f"ask for {has}, which {name} has"
        yield Reason(worker=name, code="cpu", text=text, wanted=cpus, found=inventory.cpu_cores, remedy=remedy)
    for key, value in asks.labels:
        has = inventory.labels.get(key)
        if has != value:
            there = f"label {key} with {has!r}" if has is not None else f"no label {key}"
            text = f"needs label {key}={value}, worker has {there}"
            remedy = f"start the worker of {name} with --label {key}={value}"
            yield Reason(worker=name, code="label", text=text, wanted=f"{key}={value}", found=has, remedy=remedy)
