"""What jobs ask for: more than five hundred different things, each of which some machine of the fleet has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from benchmarks.schedulerwork.fleet import GB, GIB, TEAMS
from gpulayer.protocol.types import CommandSpec, JobSpec, Requirements

_COMMAND = CommandSpec(argv=("python", "train.py"))


def _plain() -> Iterator[Requirements]:
    for ram, cpus, python, team in product(
        (None, 2 * GIB, 8 * GIB, 24 * GIB), (None, 1.0, 4.0), ("", ">=3.11", ">=3.12"), ("", *TEAMS)
    ):
        labels = (f"team={team}",) if team else ()
        yield Requirements(ram_bytes=ram, cpu_cores=cpus, python=python, labels=labels)


def _devices() -> Iterator[Requirements]:
    for count, vram, torch, team in product(
        (1, 2, 4, 8), (None, 20 * GB, 40 * GB, 80 * GB), ((), ("torch>=2.5",), ("torch>=2.8",)), ("", *TEAMS)
    ):
        labels = (f"team={team}",) if team else ()
        yield Requirements(accelerator="cuda", devices=count, min_vram_bytes=vram, frameworks=torch, labels=labels)
    for name, count in product(("*T4*", "*A100*", "*H100*", "*L4", "*A10G"), (1, 2)):
        yield Requirements(accelerator="cuda", devices=count, device_names=(name,))
    for capability in ("7.5", "8.0", "8.6", "9.0"):
        yield Requirements(accelerator="cuda", devices=1, min_capability=capability)
    yield Requirements(accelerator="mps", devices=1)


def _shares() -> Iterator[Requirements]:
    for share, team in product((2 * GB, 4 * GB, 8 * GB, 10 * GB, 20 * GB), ("", *TEAMS)):
        labels = (f"team={team}",) if team else ()
        yield Requirements(accelerator="cuda", devices=1, vram_share_bytes=share, labels=labels)


def _gangs() -> Iterator[Requirements]:
    for nodes, count, locality in product((2, 4), (0, 1, 8), ("prefer", "spread", "none")):
        accelerator = "cuda" if count else None
        yield Requirements(accelerator=accelerator, devices=count, nodes=nodes, locality=locality)


def _named(machines: int) -> Iterator[Requirements]:
    for n in range(0, machines, max(1, machines // 60)):
        yield Requirements(worker=f"machine-{n}")


def jobs(tasks: int, machines: int, seed: int = 1) -> list[JobSpec]:
    """Jobs with so many tasks in all: half of them plain, a third for whole devices, the rest shares, names, gangs."""
    kinds = [list(_plain()), list(_devices()), list(_shares()), list(_named(machines)), list(_gangs())]
    draw = random.Random(seed)
    found: list[JobSpec] = []
    left = tasks
    while left > 0:
        (kind,) = draw.choices(kinds, (50, 33, 10, 6, 1))
        asked = draw.choice(kind)
        if asked.nodes <= left:
            left -= asked.nodes
            found.append(JobSpec(command=_COMMAND, requirements=asked))
    return found
