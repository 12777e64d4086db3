"""What an agent before us left: sessions whose kernels live, and kernels that cells have."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from gpulayer.protocol.messages import Assign
from gpulayer_worker.kernels import Kernel, Kernels
from gpulayer_worker.layout import Layout
from gpulayer_worker.link import Held


@dataclass(frozen=True, kw_only=True)
class LeftSession:
    """A session that goes on."""

    kernel: Kernel
    devices: tuple[str, ...]  # UUIDs of those that it holds


async def sessions_left(layout: Layout, kernels: Kernels) -> dict[str, LeftSession]:
    """Those with a kernel that lives; of the others nothing is left after this."""
    found: dict[str, LeftSession] = {}
    for folder in sorted(layout.data.glob("sessions/*")):
        note = layout.noted(folder, "session")
        kernel = await kernels.find(note["kernel"]) if note else None
        if note and kernel is not None and not kernel.exit.done():
            found[folder.name] = LeftSession(kernel=kernel, devices=tuple(note.get("devices", ())))
            continue
        if kernel is not None:
            await kernels.end(kernel.name)
        shutil.rmtree(folder, ignore_errors=True)
    return found


def kernel_of(layout: Layout, assign: Assign) -> str | None:
    """The name of the kernel that an attempt was given; None where it was given none."""
    note = layout.noted(layout.attempt(assign.attempt), "kernel")
    return note["kernel"] if note is not None else None


def kernels_of(layout: Layout, held: Iterable[Held]) -> set[str]:
    """The names of the kernels that attempts were given."""
    return {name for each in held if (name := kernel_of(layout, each.assign)) is not None}


def runners_of(layout: Layout, held: Iterable[Held]) -> list[str]:
    """The runners that attempts were given, as the keeper knows them."""
    here = [each.assign for each in held if each.assign.spec.calls is not None and not each.gone]
    notes = [layout.noted(layout.attempt(assign.attempt), "runner") for assign in here]
    return [note["id"] for note in notes if note is not None]


async def end_kernel_of(layout: Layout, kernels: Kernels, assign: Assign) -> None:
    """A cell has ended, and its kernel, where it was its own, may still be there."""
    kernel = kernel_of(layout, assign)
    if assign.session is None and kernel is not None:
        await kernels.end(kernel)
