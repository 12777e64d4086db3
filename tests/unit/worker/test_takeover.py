"""Of what an agent before us left, what lives goes on and of the rest nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CellSpec, JobSpec
from gpulayer_worker.layout import Layout
from gpulayer_worker.link import Held
from gpulayer_worker.takeover import end_kernel_of, kernels_of, sessions_left

SPEC = JobSpec(cell=CellSpec(code="1"))


class Kernel:
    """A kernel that lives, or not."""

    def __init__(self, name: str, *, lives: bool):
        self.name = name
        self.exit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not lives:
            self.exit.set_result(None)


class Kernels:
    """Finds some, and notes which are ended."""

    def __init__(self, *found: Kernel):
        self.found = {kernel.name: kernel for kernel in found}
        self.ended: list[str] = []

    async def find(self, name: str) -> Kernel | None:
        return self.found.get(name)

    async def end(self, name: str) -> None:
        self.ended.append(name)


def test_sessions_with_a_kernel_that_lives_go_on_with_their_devices(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.note(tmp_path / "sessions" / "a", "session", {"kernel": "k1", "devices": ["GPU-a"]})
    layout.note(tmp_path / "sessions" / "b", "session", {"kernel": "k2"})  # of an agent that noted no devices
    layout.note(tmp_path / "sessions" / "c", "session", {"kernel": "k3", "devices": []})
    layout.note(tmp_path / "sessions" / "d", "session", {"kernel": "k4", "devices": []})
    (tmp_path / "sessions" / "e").mkdir()

    async def go() -> None:
        kernels: Any = Kernels(Kernel("k1", lives=True), Kernel("k2", lives=True), Kernel("k3", lives=False))
        left = await sessions_left(layout, kernels)
        assert {name: (each.kernel.name, each.devices) for name, each in left.items()} == {
            "a": ("k1", ("GPU-a",)),
            "b": ("k2", ()),
        }
        assert kernels.ended == ["k3"]

    asyncio.run(go())
    assert sorted(folder.name for folder in (tmp_path / "sessions").iterdir()) == ["a", "b"]


def test_kernels_that_attempts_were_given_are_known_by_name_and_a_sessions_is_not_ended(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    own, shared = Assign(attempt="a", job="j", spec=SPEC), Assign(attempt="b", job="j", spec=SPEC, session="s")
    none = Assign(attempt="c", job="j", spec=SPEC)
    layout.note(layout.attempt("a"), "kernel", {"kernel": "k1"})
    layout.note(layout.attempt("b"), "kernel", {"kernel": "k2"})
    assert kernels_of(layout, [Held(assign=each) for each in (own, shared, none)]) == {"k1", "k2"}

    async def go() -> None:
        kernels: Any = Kernels()
        for each in (own, shared, none):
            await end_kernel_of(layout, kernels, each)
        assert kernels.ended == ["k1"]

    asyncio.run(go())
